/* Places: where a node ran, and the same place in another plan of the same model. */
#include "split/frontier.h"
#include "support.h"

#define HEAD                                                                                                           \
	"cleave-plan 1\nmodel \"Net\"\nscope \"\" \"Net\"\nscope a \"Block\"\nscope a.0 \"Linear\"\nscope ab "             \
	"\"Linear\"\ninput %x f32[2]\n"

/* a ends with dropout, and add runs twice there. */
static const char *const training = HEAD "%1 = aten::linear(%x) -> f32[2] in a.0\n"
										 "%2 = aten::add(%1) -> f32[2] in a\n"
										 "%3 = aten::add(%2) -> f32[2] in a\n"
										 "%4 = aten::dropout(%3) -> f32[2] in a at \"m.py:7\"\n"
										 "%5 = aten::add(%4) -> f32[2] in ab\n"
										 "%6 = aten::relu(%5) -> f32[2]\n"
										 "output %6\n";

/* In eval mode there is a check before, and no dropout. */
static const char *const eval = HEAD "%0 = aten::relu(%x) -> f32[2] in ab\n"
									 "%1 = aten::linear(%0) -> f32[2] in a.0\n"
									 "%2 = aten::add(%1) -> f32[2] in a\n"
									 "%3 = aten::add(%2) -> f32[2] in a\n"
									 "%5 = aten::add(%3) -> f32[2] in ab\n"
									 "%6 = aten::relu(%5) -> f32[2]\n"
									 "output %6\n";

/* want[k]: where `to` is cut if `from` is cut after its node k. */
static void check_matches(const char *from, const char *to, const node_id *want, uint32_t n)
{
	plan *p = load_ok(from), *q = load_ok(to);
	assert_int_equal(p->nodes.n, n);
	for (node_id k = 0; k <= n; k++) {
		node_id found = 0;
		assert_int_equal(place_match(p, k, q, &found), CLV_OK);
		assert_int_equal(found, k < n ? want[k] : NONE);
	}
	plan_free(p);
	plan_free(q);
}

static void a_place_is_found_by_what_runs_before_and_after_it(void **state)
{
	(void)state;
	check_matches(eval, training, (const node_id[]){NONE, 0, 1, 3, 4, 5},
	              6); /* nothing comes before; dropout belongs to a */
	check_matches(training, training, (const node_id[]){0, 1, 2, 3, 4, 5}, 6);
	check_matches(training, eval, (const node_id[]){1, 2, 3, 3, 4, 5}, 6); /* dropout ends a, as its second add does */
}

static void an_operator_that_runs_once_more_before_a_place_does_not_move_it(void **state)
{
	(void)state;
	static const char *const few = HEAD "%1 = aten::linear(%x) -> f32[2] in a.0\n"
										"%2 = aten::relu(%1) -> f32[2]\n"
										"%3 = aten::add(%2) -> f32[2] in ab\n"
										"%4 = aten::relu(%3) -> f32[2]\n"
										"output %4\n";
	static const char *const more = HEAD "%1 = aten::linear(%x) -> f32[2] in a.0\n"
										 "%2 = aten::relu(%1) -> f32[2]\n"
										 "%7 = aten::mul(%2) -> f32[2]\n"
										 "%8 = aten::relu(%7) -> f32[2]\n"
										 "%3 = aten::add(%8) -> f32[2] in ab\n"
										 "%4 = aten::relu(%3) -> f32[2]\n"
										 "output %4\n";
	check_matches(few, more, (const node_id[]){0, 1, 4, 5}, 4);
	check_matches(more, few, (const node_id[]){0, 1, 1, 1, 2, 3}, 6);
}

static void what_belongs_to_a_module_that_ended_comes_before_the_place(void **state)
{
	(void)state;
	check_matches(HEAD "%1 = aten::add(%x) -> f32[2] in a\n"
	                   "%2 = aten::relu(%1) -> f32[2] in ab\n"
	                   "output %2\n",
	              HEAD "%1 = aten::add(%x) -> f32[2] in a\n"
	                   "%2 = aten::linear(%1) -> f32[2] in a.0\n"
	                   "%3 = aten::mul(%2) -> f32[2]\n"
	                   "%4 = aten::relu(%3) -> f32[2] in ab\n"
	                   "output %4\n",
	              (const node_id[]){1, 3}, 2);
}

static void a_place_is_before_what_runs_after_it_where_something_else_runs_before(void **state)
{
	(void)state;
	check_matches(HEAD "%1 = aten::add(%x) -> f32[2] in a\n"
	                   "%2 = aten::relu(%1) -> f32[2]\n"
	                   "output %2\n",
	              HEAD "%1 = aten::tanh(%x) -> f32[2] in ab\n"
	                   "%2 = aten::relu(%1) -> f32[2]\n"
	                   "output %2\n",
	              (const node_id[]){0, 1}, 2);
}

static void a_place_before_which_nothing_runs_is_not_matched(void **state)
{
	(void)state;
	static const char *const last = HEAD "%2 = aten::relu(%x) -> f32[2]\noutput %2\n";
	check_matches(HEAD "%1 = aten::add(%x) -> f32[2] in a\n"
	                   "%2 = aten::relu(%1) -> f32[2]\n"
	                   "output %2\n",
	              last, (const node_id[]){NONE, 0}, 2);
	check_matches(HEAD "%1 = aten::add(%x) -> f32[2] in a\noutput %1\n", last, (const node_id[]){NONE}, 1);
}

static void a_module_is_inside_itself_and_not_inside_a_longer_name(void **state)
{
	(void)state;
	assert_true(is_inside("a", "a"));
	assert_true(is_inside("a.0", "a"));
	assert_false(is_inside("ab", "a"));
	assert_false(is_inside("a", "a.0"));
}

static char *place_of(const plan *p, node_id n)
{
	strbuf b = STRBUF_INIT;
	place_print(p, n, &b);
	return taken(&b);
}

static void a_place_is_module_and_line_as_far_as_known(void **state)
{
	(void)state;
	static const char *const want[] = {" in a.0", " in a", " in a", " in a at m.py:7", " in ab", ""};
	plan *p = load_ok(training);
	for (node_id k = 0; k < p->nodes.n; k++) {
		char *got = place_of(p, k);
		assert_string_equal(got, want[k]);
		mem_free(got);
	}
	plan_free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_place_is_found_by_what_runs_before_and_after_it),
		cmocka_unit_test(an_operator_that_runs_once_more_before_a_place_does_not_move_it),
		cmocka_unit_test(what_belongs_to_a_module_that_ended_comes_before_the_place),
		cmocka_unit_test(a_place_is_before_what_runs_after_it_where_something_else_runs_before),
		cmocka_unit_test(a_place_before_which_nothing_runs_is_not_matched),
		cmocka_unit_test(a_module_is_inside_itself_and_not_inside_a_longer_name),
		cmocka_unit_test(a_place_is_module_and_line_as_far_as_known),
	};
	return cmocka_run_group_tests_name("match", tests, NULL, NULL);
}
