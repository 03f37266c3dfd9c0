/* Guards of the suffix that move into the prefix. */
#include "support.h"

#include "split/early.h"

#define HEAD                                                                                                           \
	"cleave-plan 1\nmodel \"Net\" training=no grad=no\ninput %x f32[4] name=\"x\"\ninput %m bool[4] name=\"m\"\n"      \
	"buffer @yes bool[1]\n%a = aten::relu(%x) -> f32[4]\n%b = aten::sin(%a) -> f32[4]\n"
#define TAIL "%z = aten::cos(%b) -> f32[4]\noutput %z\n"

/* The operators of the plan, in order, after the cut behind its second node; "": nothing moves. */
static void check_order_of(const char *middle, uint32_t most, uint32_t moved, node_id cut_then, const char *ops)
{
	strbuf text = STRBUF_INIT, found = STRBUF_INIT;
	char *made, *list;
	strbuf_printf(&text, "%s%s%s", HEAD, middle, TAIL);
	OK(strbuf_take(&text, &made));
	plan *p = load_ok(made), *q = NULL;
	node_id cut = 2;
	OK(guards_early(p, &cut, &most, &q));
	assert_int_equal(most, moved);
	for (node_id n = 0; q && n < q->nodes.n; n++)
		strbuf_printf(&found, "%s ", plan_s(q, q->nodes.at[n].op) + 6);
	OK(strbuf_take(&found, &list));
	assert_string_equal(list, ops);
	assert_int_equal(cut, cut_then);
	mem_free(made);
	mem_free(list);
	plan_free(q);
	plan_free(p);
}

static void check_order(const char *middle, node_id cut_then, const char *ops)
{
	check_order_of(middle, NONE, *ops ? NONE : 0, cut_then, ops);
}

static void what_needs_inputs_alone_goes_first(void **state)
{
	(void)state;
	check_order("%all = aten::all(%m) -> bool[]\n%full = aten::is_nonzero(%all) -> bool = true {host}\n", 4,
	            "all is_nonzero relu sin cos ");
}

static void what_needs_the_prefix_goes_behind_what_it_needs(void **state)
{
	(void)state;
	check_order("%p = aten::isfinite(%a) -> bool[4]\n%all = aten::all(%p) -> bool[]\n"
	            "%full = aten::is_nonzero(%all) -> bool = true {host}\n",
	            5, "relu isfinite all is_nonzero sin cos ");
}

static void what_needs_a_weight_of_the_suffix_stays(void **state)
{
	(void)state;
	check_order("%p = aten::bitwise_and.Tensor(%m, @yes) -> bool[4]\n%all = aten::all(%p) -> bool[]\n"
	            "%full = aten::is_nonzero(%all) -> bool = true {host}\n",
	            2, "");
}

static void what_the_suffix_reads_stays_with_what_comes_after_it(void **state)
{
	(void)state;
	check_order("%all = aten::all(%m) -> bool[]\n%full = aten::is_nonzero(%all) -> bool = true {host}\n"
	            "%c = aten::mul.Tensor(%b, %all) -> f32[4]\n%any = aten::any(%m) -> bool[]\n"
	            "%some = aten::is_nonzero(%any) -> bool = true {host}\n",
	            2, "");
}

static void two_questions_about_one_value_go_together(void **state)
{
	(void)state;
	check_order("%n = aten::logical_not(%m) -> bool[4]\n%all = aten::all(%n) -> bool[]\n"
	            "%full = aten::is_nonzero(%all) -> bool = true {host}\n%any = aten::any(%n) -> bool[]\n"
	            "%some = aten::is_nonzero(%any) -> bool = true {host}\n",
	            7, "logical_not all is_nonzero any is_nonzero relu sin cos ");
}

static void no_more_guards_go_first_than_in_other_variants(void **state)
{
	(void)state;
	const char *two = "%all = aten::all(%m) -> bool[]\n%full = aten::is_nonzero(%all) -> bool = true {host}\n"
					  "%any = aten::any(%m) -> bool[]\n%some = aten::is_nonzero(%any) -> bool = true {host}\n";
	const char *late = "%all = aten::all(%m) -> bool[]\n%full = aten::is_nonzero(%all) -> bool = true {host}\n"
					   "%any = aten::any(@yes) -> bool[]\n%some = aten::is_nonzero(%any) -> bool = true {host}\n";
	check_order_of(two, NONE, NONE, 6, "all is_nonzero any is_nonzero relu sin cos ");
	check_order_of(two, 2, NONE, 6, "all is_nonzero any is_nonzero relu sin cos ");
	check_order_of(two, 1, 1, 4, "all is_nonzero relu sin any is_nonzero cos ");
	check_order_of(two, 0, 0, 2, "");
	check_order_of(late, NONE, 1, 4, "all is_nonzero relu sin any is_nonzero cos ");
	check_order_of("", 0, NONE, 2, "");
}

/* The operators of the plan with guards first, as far as the first node can decide them; "": none. */
static void check_first(const char *middle, node_id count, uint32_t left, const char *ops)
{
	strbuf text = STRBUF_INIT, found = STRBUF_INIT;
	char *made, *list;
	strbuf_printf(&text, "%s%s%s", HEAD, middle, TAIL);
	OK(strbuf_take(&text, &made));
	plan *p = load_ok(made), *q = NULL;
	node_id n = 7;
	uint32_t late = 7;
	OK(guards_first(p, 1, &q, &n, &late));
	assert_int_equal(n, count);
	assert_int_equal(late, left);
	for (node_id k = 0; q && k < n; k++)
		strbuf_printf(&found, "%s ", plan_s(q, q->nodes.at[k].op) + 6);
	OK(strbuf_take(&found, &list));
	assert_string_equal(list, ops);
	mem_free(made);
	mem_free(list);
	plan_free(q);
	plan_free(p);
}

#define ASK "%all = aten::all(%q) -> bool[]\n%full = aten::is_nonzero(%all) -> bool = true {host}\n"

static void a_first_stage_decides_what_only_computes(void **state)
{
	(void)state;
	/* the result may be read later, and draws and writes elsewhere are not in the way */
	check_first(
		"%d = aten::dropout(%b, 0.5, true) -> f32[4] {random}\n%w = aten::relu_(%d) -> f32[4] view-of %d writes %d\n"
		"%q = aten::logical_not(%m) -> bool[4]\n" ASK "%c = aten::mul.Tensor(%d, %all) -> f32[4]\n",
		3, 0, "logical_not all is_nonzero ");
	check_first("%d = aten::dropout(%b, 0.5, true) -> f32[4] {random}\n%q = aten::isfinite(%d) -> bool[4]\n" ASK, 0, 1,
	            "");
	check_first("%q = aten::bitwise_and.Tensor(%m, @yes) -> bool[4]\n" ASK, 0, 1, "");
	check_first(
		"%i = aten::logical_not_(%m) -> bool[4] view-of %m writes %m\n%q = aten::logical_not(%m) -> bool[4]\n" ASK, 0,
		1, "");
	check_first("%q = aten::logical_not(%m) -> bool[4]\n", 0, 0, "");
}

/* Each of them stays because the one before it does: this ends soon, wherever the guards are put. */
static void a_long_chain_of_guards_takes_no_time(void **state)
{
	enum { GUARDS = 6000 };
	strbuf text = STRBUF_INIT;
	char *made;
	uint32_t v = 0;
	(void)state;
	strbuf_puts(&text, HEAD "%v0 = aten::relu(%b) -> f32[4]\n");
	for (; v < GUARDS; v++)
		strbuf_printf(&text,
		              "%%v%u = aten::relu(%%v%u) -> f32[4]\n%%a%u = aten::all(%%v%u) -> bool[]\n"
		              "%%g%u = aten::is_nonzero(%%a%u) -> bool = true {host}\n",
		              v + 1, v, v, v + 1, v, v);
	strbuf_printf(&text, "output %%v%u\n", v);
	OK(strbuf_take(&text, &made));
	plan *p = load_ok(made), *q = NULL;
	node_id cut = 2;
	OK(guards_early(p, &cut, &(uint32_t){NONE}, &q));
	plan_free(q);
	plan_free(p);
	mem_free(made);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_long_chain_of_guards_takes_no_time),
		cmocka_unit_test(what_needs_inputs_alone_goes_first),
		cmocka_unit_test(what_needs_the_prefix_goes_behind_what_it_needs),
		cmocka_unit_test(what_needs_a_weight_of_the_suffix_stays),
		cmocka_unit_test(what_the_suffix_reads_stays_with_what_comes_after_it),
		cmocka_unit_test(two_questions_about_one_value_go_together),
		cmocka_unit_test(no_more_guards_go_first_than_in_other_variants),
		cmocka_unit_test(a_first_stage_decides_what_only_computes),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
