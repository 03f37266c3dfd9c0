/* Segments: one test for each rule of src/segment. */
#include "segments.h"

#include "plan/view.h"

static void chooses_with(const char *text, uint32_t minimum, uint32_t most, const char *want)
{
	plan *p = load_ok(text);
	const char **no = no_of(p);
	segments s = {0};
	OK(segments_choose(p, &(segments_spec){.no = no, .minimum = minimum, .most = most}, &s));
	char *got = segments_text(&s);
	if (strcmp(got, want) != 0)
		fail_msg("\"%s\" instead of \"%s\" of\n%s", got, want, text);
	node_id firsts[64], ends[64];
	plan *ordered = NULL;
	assert_in_range(s.at.n, 0, 64);
	OK(segments_plan(&s, &ordered, firsts, ends));
	plan_free(ordered);
	mem_free(got);
	mem_free(no);
	segments_free(&s);
	plan_free(p);
}

static void chooses(const char *text, const char *want)
{
	chooses_with(text, 1, 0, want);
}

/* Why the node called `name` is on the tape. */
static void refuses(const char *text, uint32_t minimum, uint32_t most, const char *name, const char *want)
{
	plan *p = load_ok(text);
	const char **no = no_of(p);
	segments s = {0};
	node_names *names = NULL;
	OK(segments_choose(p, &(segments_spec){.no = no, .minimum = minimum, .most = most}, &s));
	OK(node_names_new(p, &names));
	node_id k = node_find(names, name);
	assert_int_not_equal(k, NONE);
	if (!s.reason[k])
		fail_msg("%s is compiled", name);
	assert_string_equal(s.reason[k], want);
	assert_int_equal(s.of_node[k], NONE);
	node_names_free(names);
	mem_free(no);
	segments_free(&s);
	plan_free(p);
}

/* ---- shapes of graphs ------------------------------------------------------------------------------------------------- */

static void a_plan_that_is_supported_is_one_segment(void **state)
{
	(void)state;
	chooses(HEAD "input %x f32[2]\n%1 = aten::a(%x) -> f32[2]\n%2 = aten::b(%1) -> f32[2]\noutput %2\n", "[a b]");
	chooses(HEAD "input %x f32[2]\noutput %x\n", "");
	chooses(HEAD "input %x f32[2]\n%1 = no::a(%x) -> f32[2]\noutput %1\n", "a");
}

static void the_tape_cuts_a_chain(void **state)
{
	(void)state;
	chooses(HEAD "input %x f32[2]\n"
	             "%1 = aten::a(%x) -> f32[2]\n"
	             "%2 = no::sort(%1) -> f32[2]\n"
	             "%3 = aten::b(%2) -> f32[2]\n"
	             "output %3\n",
	        "[a] sort [b]");
}

/* a → sort → b and a → b: together, a and b would need sort, which needs a. */
static void what_goes_around_the_tape_is_not_joined(void **state)
{
	(void)state;
	chooses(HEAD "input %x f32[2]\n"
	             "%1 = aten::a(%x) -> f32[2]\n"
	             "%2 = no::sort(%1) -> f32[2]\n"
	             "%3 = aten::b(%2, %1) -> f32[2]\n"
	             "output %3\n",
	        "[a] sort [b]");
}

static void branches_beside_the_tape_are_one_segment(void **state)
{
	(void)state;
	chooses(HEAD "input %x f32[2]\n"
	             "%1 = aten::a(%x) -> f32[2]\n"
	             "%2 = no::sort(%1) -> f32[2]\n"
	             "%3 = aten::b(%1) -> f32[2]\n"
	             "%4 = aten::c(%3) -> f32[1]\n"
	             "%5 = aten::d(%2, %4) -> f32[2]\n"
	             "%6 = aten::e(%2, %5) -> f32[2]\n"
	             "output %6\n",
	        "[a b c] sort [d e]");
}

/* As it is, %4 would cross and %1 crosses already. */
static void a_unit_moves_to_its_reader_where_fewer_bytes_cross(void **state)
{
	(void)state;
	chooses(HEAD "input %x f32[2]\n"
	             "%1 = aten::a(%x) -> f32[2]\n"
	             "%2 = no::sort(%1) -> f32[2]\n"
	             "%3 = aten::b(%1) -> f32[200]\n"
	             "%4 = aten::c(%3) -> f32[100]\n"
	             "%5 = aten::d(%2, %4) -> f32[2]\n"
	             "output %5\n",
	        "[a] sort [b c d]");
}

/* The guard asks for its place before what comes after it, not for anything of the tensors. */
static void what_an_effect_tore_apart_is_brought_together(void **state)
{
	(void)state;
	chooses(HEAD "input %x f32[200]\n"
	             "input %m bool[]\n"
	             "%1 = aten::a(%x) -> f32[100]\n"
	             "%2 = aten::b(%1) -> f32[100]\n"
	             "%3 = aten::is_nonzero(%m) -> bool = true {host}\n"
	             "%4 = aten::c(%2) -> f32[100]\n"
	             "output %4\n",
	        "is_nonzero [a b c]");
}

static void who_reads_the_same_tensor_is_joined(void **state)
{
	(void)state;
	chooses(HEAD "input %x f32[2]\ninput %y f32[2]\nparam @w f32[2]\n"
	             "%1 = aten::a(%x, @w) -> f32[2]\n"
	             "%2 = aten::b(%x) -> f32[2]\n"
	             "%3 = aten::c(%y, @w) -> f32[2]\n"
	             "output (%1, %2, %3)\n",
	        "[a b] [c]");
}

/* ---- memory ------------------------------------------------------------------------------------------------------------ */

static const char *const residual = HEAD "input %x f32[2,4]\nparam @w f32[4,4]\nparam @v f32[4,4]\n"
										 "%1 = aten::conv(%x, @w) -> f32[2,4]\n"
										 "%2 = aten::relu_(%1) -> f32[2,4] view-of %1 writes %1\n"
										 "%3 = aten::conv(%2, @v) -> f32[2,4]\n"
										 "%4 = aten::add_.Tensor(%3, %x, 1) -> f32[2,4] view-of %3 writes %3\n"
										 "%5 = aten::relu_(%4) -> f32[2,4] view-of %3 writes %3\n"
										 "%6 = aten::mean(%5) -> f32[2]\n"
										 "output %6\n";

static void a_residual_network_in_place_is_one_segment(void **state)
{
	(void)state;
	chooses_with(residual, 2, 0, "[conv relu_ conv_1 add_ relu__1 mean]");
}

static void memory_that_is_written_is_on_one_side(void **state)
{
	(void)state;
	static const char *const text = HEAD "input %x f32[2]\n"
										 "%1 = aten::a(%x) -> f32[2]\n"
										 "%2 = aten::b(%1) -> f32[2]\n"
										 "%3 = aten::c(%2) -> f32[2]\n"
										 "%4 = no::sort_(%2) -> f32[2] view-of %2 writes %2\n"
										 "%5 = aten::relu_(%4) -> f32[2] view-of %2 writes %2\n"
										 "%6 = aten::d(%5, %3) -> f32[2]\n"
										 "output %6\n";
	chooses(text, "[a] b [c] sort_ relu_ [d]");
	refuses(text, 1, 0, "b", "memory that is written in place ties it to sort_ (no::sort_), which is not compiled");
	refuses(text, 1, 0, "relu_", "memory that is written in place ties it to sort_ (no::sort_), which is not compiled");
	refuses(text, 1, 0, "sort_", "is not known");
}

static void who_reads_after_the_last_write_is_free(void **state)
{
	(void)state;
	chooses(HEAD "input %x f32[2]\n"
	             "%1 = no::a(%x) -> f32[2]\n"
	             "%2 = aten::relu_(%1) -> f32[2] view-of %1 writes %1\n"
	             "%3 = aten::view(%1) -> f32[2] view-of %1\n"
	             "%4 = aten::c(%3) -> f32[2]\n"
	             "output %4\n",
	        "a relu_ [view c]");
}

/* What is read between two writes has to see the first alone: it is in the unit, though it shares nothing. */
static void what_lies_between_two_writes_is_in_the_unit(void **state)
{
	(void)state;
	static const char *const text = HEAD "input %x f32[2]\n"
										 "%1 = aten::a(%x) -> f32[2]\n"
										 "%2 = no::sort(%1) -> f32[2]\n"
										 "%3 = aten::mul_(%1, %2) -> f32[2] view-of %1 writes %1\n"
										 "%4 = aten::b(%3) -> f32[2]\n"
										 "output %4\n";
	chooses(text, "a sort mul_ [b]");
	refuses(text, 1, 0, "mul_", "memory that is written in place ties it to sort (no::sort), which is not compiled");
}

static void memory_from_outside_is_written_on_the_tape(void **state)
{
	(void)state;
	static const char *const text = HEAD "input %x f32[2]\nbuffer @n f32[2]\n"
										 "%1 = aten::view(@n) -> f32[2] view-of @n\n"
										 "%2 = aten::a(%x, @n) -> f32[2]\n"
										 "%3 = aten::add_(@n, %2) -> f32[2] view-of @n writes @n\n"
										 "%4 = aten::b(%1, %2) -> f32[2]\n"
										 "%5 = aten::view(@n) -> f32[2] view-of @n\n"
										 "%6 = aten::c(%4, %5) -> f32[2]\n"
										 "output %6\n";
	chooses(text, "view a add_ view_1 [b c]");
	refuses(text, 1, 0, "add_", "writes @n in place, which is there before the run");
	refuses(text, 1, 0, "view", "reads @n, which changes from run to run");
	refuses(text, 1, 0, "a", "reads @n, which changes from run to run");
}

static void an_input_that_is_written_is_read_by_segments(void **state)
{
	(void)state;
	static const char *const text = HEAD "input %x f32[2]\n"
										 "%1 = aten::view(%x) -> f32[2] view-of %x\n"
										 "%2 = aten::a(%x) -> f32[2]\n"
										 "%3 = aten::add_(%x, %2) -> f32[2] view-of %x writes %x\n"
										 "%4 = aten::b(%1, %2) -> f32[2]\n"
										 "%5 = aten::view(%x) -> f32[2] view-of %x\n"
										 "%6 = aten::c(%4, %5) -> f32[2]\n"
										 "output %6\n";
	chooses(text, "view [a] add_ [b view_1 c]");
	refuses(text, 1, 0, "view", "is a view of %0, whose memory is used in place afterwards");
}

static void memory_of_the_caller_leaves_by_the_tape(void **state)
{
	(void)state;
	static const char *const text = HEAD "input %x f32[2]\n"
										 "%1 = aten::view(%x) -> f32[2] view-of %x\n"
										 "%2 = aten::view(%1) -> f32[2] view-of %x\n"
										 "%3 = aten::view(%x) -> f32[2] view-of %x\n"
										 "%4 = aten::a(%3) -> f32[2]\n"
										 "output (%2, %4)\n";
	chooses(text, "view view_1 [view_2 a]");
	refuses(text, 1, 0, "view", "gives memory of %0 to the caller, and a segment would give a copy");
}

static void a_tensor_that_is_re_bound_may_come_out_of_a_segment(void **state)
{
	(void)state;
	chooses(HEAD "input %x f32[2]\nbuffer @n f32[2]\n"
	             "%1 = aten::a(%x, @n) -> f32[2]\n"
	             "%2 = aten::b(%1) -> f32[2]\n"
	             "rebind @n = %2\noutput %2\n",
	        "a [b]"); /* and who reads the old one is on the tape: the code would have the first of all */
}

static void who_reads_memory_beyond_a_tensor_is_with_its_maker(void **state)
{
	(void)state;
	chooses(HEAD "input %x f32[4]\n"
	             "%1 = no::a(%x) -> f32[4]\n"
	             "%2 = aten::as_strided(%1, [2], [1], 2) -> f32[2] view-of %1\n"
	             "%3 = aten::b(%2) -> f32[2]\n"
	             "output %3\n",
	        "a as_strided [b]");
	chooses(HEAD "input %x f32[4]\n"
	             "%1 = no::a(%x) -> f32[4]\n"
	             "%2 = aten::view(%1) -> f32[4] view-of %1\n"
	             "%3 = aten::as_strided_copy(%2, [2], [1], 2) -> f32[2]\n"
	             "%4 = aten::b(%3) -> f32[2]\n"
	             "output %4\n",
	        "a view as_strided_copy [b]");
	chooses(HEAD "input %x f32[4]\n"
	             "%1 = aten::view(%x) -> f32[4] view-of %x\n"
	             "%2 = aten::as_strided(%1, [2], [1], 2) -> f32[2] view-of %x\n"
	             "%3 = aten::b(%2) -> f32[2]\n"
	             "output %3\n",
	        "view as_strided [b]");
}

/* ---- effects ------------------------------------------------------------------------------------------------------------ */

static void draws_stay_in_order_on_the_tape(void **state)
{
	(void)state;
	chooses(HEAD "input %x f32[2]\n"
	             "%1 = aten::a(%x) -> f32[2]\n"
	             "%2 = aten::bernoulli(%1) -> f32[2] {random}\n"
	             "%3 = aten::mul(%1, %2) -> f32[2]\n"
	             "%4 = aten::bernoulli(%3) -> f32[2] {random}\n"
	             "%5 = aten::mul(%3, %4) -> f32[2]\n"
	             "output %5\n",
	        "[a] bernoulli [mul] bernoulli_1 [mul_1]");
}

/* ---- how many ----------------------------------------------------------------------------------------------------------- */

static const char *const islands = HEAD "input %x f32[2]\n"
										"%1 = aten::a(%x) -> f32[2]\n"
										"%2 = aten::b(%1) -> f32[2]\n"
										"%3 = no::s(%2) -> f32[2]\n"
										"%4 = aten::c(%3) -> f32[2]\n"
										"%5 = no::s(%4) -> f32[2]\n"
										"%6 = aten::d(%5) -> f32[2,100]\n"
										"%7 = aten::e(%6) -> f32[2,100]\n"
										"output %7\n";

static void small_segments_run_on_the_tape(void **state)
{
	(void)state;
	chooses_with(islands, 1, 0, "[a b] s [c] s_1 [d e]");
	chooses_with(islands, 2, 0, "[a b] s c s_1 [d e]");
	chooses_with(islands, 3, 0, "a b s c s_1 d e");
	refuses(islands, 2, 0, "c", "alone: a segment has at least 2 operators, and 1 would be together here");
	refuses(islands, 3, 0, "e", "alone: a segment has at least 3 operators, and 2 would be together here");
}

static void a_small_segment_moves_to_its_reader_at_any_price(void **state)
{
	(void)state;
	static const char *const text = HEAD "input %x f32[2]\ninput %y f32[200]\n"
										 "%1 = aten::small(%y) -> f32[2]\n"
										 "%2 = no::s(%x) -> f32[2]\n"
										 "%3 = aten::a(%2, %1) -> f32[2]\n"
										 "%4 = aten::b(%3) -> f32[2]\n"
										 "output (%4, %y)\n";
	chooses_with(text, 2, 0, "s [small a b]");
}

static void there_are_at_most_so_many(void **state)
{
	(void)state;
	chooses_with(islands, 1, 2, "[a b] s c s_1 [d e]");
	chooses_with(islands, 1, 1, "a b s c s_1 [d e]");
	refuses(islands, 1, 1, "a", "given up: there may be 1 segment, and others have more work");
}

static void segments_of_one_level_are_joined_before_any_is_given_up(void **state)
{
	(void)state;
	static const char *const text = HEAD "input %x f32[2]\ninput %y f32[2]\n"
										 "%1 = aten::a(%x) -> f32[2]\n"
										 "%2 = no::s(%1) -> f32[2]\n"
										 "%3 = aten::b(%2) -> f32[2]\n"
										 "%4 = aten::c(%y) -> f32[2]\n"
										 "output (%3, %4)\n";
	chooses_with(text, 1, 0, "[a] s [b] [c]");
	chooses_with(text, 1, 2, "[a c] s [b]");
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(a_plan_that_is_supported_is_one_segment),
	cmocka_unit_test(the_tape_cuts_a_chain),
	cmocka_unit_test(what_goes_around_the_tape_is_not_joined),
	cmocka_unit_test(branches_beside_the_tape_are_one_segment),
	cmocka_unit_test(a_unit_moves_to_its_reader_where_fewer_bytes_cross),
	cmocka_unit_test(what_an_effect_tore_apart_is_brought_together),
	cmocka_unit_test(who_reads_the_same_tensor_is_joined),
	cmocka_unit_test(a_residual_network_in_place_is_one_segment),
	cmocka_unit_test(memory_that_is_written_is_on_one_side),
	cmocka_unit_test(who_reads_after_the_last_write_is_free),
	cmocka_unit_test(what_lies_between_two_writes_is_in_the_unit),
	cmocka_unit_test(memory_from_outside_is_written_on_the_tape),
	cmocka_unit_test(an_input_that_is_written_is_read_by_segments),
	cmocka_unit_test(memory_of_the_caller_leaves_by_the_tape),
	cmocka_unit_test(a_tensor_that_is_re_bound_may_come_out_of_a_segment),
	cmocka_unit_test(who_reads_memory_beyond_a_tensor_is_with_its_maker),
	cmocka_unit_test(draws_stay_in_order_on_the_tape),
	cmocka_unit_test(small_segments_run_on_the_tape),
	cmocka_unit_test(a_small_segment_moves_to_its_reader_at_any_price),
	cmocka_unit_test(there_are_at_most_so_many),
	cmocka_unit_test(segments_of_one_level_are_joined_before_any_is_given_up),
};

int main(void)
{
	return cmocka_run_group_tests(tests, NULL, NULL);
}
