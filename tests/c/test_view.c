/* Last uses and views of node ranges. */
#include "support.h"

#include "plan/view.h"

/* 0 relu reads %0; 1 add_ writes %2 in place; 2 mul reads the parameter; 3 cat reads %1, an input of the end only. */
static const char *const text = "cleave-plan 1\n"
								"model \"m\"\n"
								"input %0 f32[4]\n"
								"input %1 f32[4]\n"
								"input %unused f32[4]\n"
								"param @w f32[4] trainable\n"
								"buffer @h f32[4]\n"
								"const #0 f32[4]\n"
								"const #1 f32[4]\n"
								"%2 = aten::relu(%0) -> f32[4]\n"
								"%3 = aten::add_(%2, #0) -> f32[4] view-of %2 writes %2\n"
								"%4 = aten::mul(%3, @w) -> f32[4]\n"
								"%5 = aten::cat([%4, [%1]]) -> f32[8]\n"
								"rebind @h = %3\n"
								"output (%5, %0, #1)\n";

/* Value ids in the order of definition. */
enum { X0, X1, UNUSED, W, H, C0, C1, R2, R3, R4, R5 };

#define CHECK_IDS(vec, ...)                                                                                            \
	do {                                                                                                               \
		const uint32_t want_[] = {__VA_ARGS__};                                                                        \
		assert_int_equal((vec).n, sizeof want_ / sizeof *want_);                                                       \
		assert_memory_equal((vec).at, want_, sizeof want_);                                                            \
	} while (0)

static view range(const plan *p, node_id first, node_id end)
{
	view v = {0};
	OK(view_range(p, first, end, &v));
	return v;
}

static void last_uses_count_reads_writes_and_outputs(void **state)
{
	(void)state;
	plan *p = load_ok(text);
	liveness l;
	OK(liveness_new(p, &l));
	assert_int_equal(l.last[X0], 4); /* in the output tree */
	assert_int_equal(l.last[X1], 3); /* in a nested list */
	assert_int_equal(l.last[UNUSED], NONE);
	assert_int_equal(l.last[W], 2);
	assert_int_equal(l.last[H], NONE); /* re-bound, not read */
	assert_int_equal(l.last[C0], 1);
	assert_int_equal(l.last[R2], 1); /* its view %3 is used later, but counts for itself */
	assert_int_equal(l.last[R3], 4); /* bound at the end */
	assert_int_equal(l.last[R4], 3);
	assert_int_equal(l.last[R5], 4);
	liveness_free(&l);
	plan_free(p);
}

static void a_prefix_takes_all_inputs_and_gives_the_boundary(void **state)
{
	(void)state;
	plan *p = load_ok(text);
	view v = range(p, 0, 2);
	CHECK_IDS(v.nodes, 0, 1);
	CHECK_IDS(v.inputs, X0, X1, UNUSED);
	CHECK_IDS(v.outputs, X0, X1, R3);
	CHECK_IDS(v.externals, C0);
	CHECK_IDS(v.passthrough, X1); /* %0 goes on too, but is read here */
	CHECK_IDS(v.rebinds, 0);      /* %3 is made and written here, and nobody needs the old @h */
	view_free(&v);
	plan_free(p);
}

static void a_suffix_takes_the_boundary_and_gives_the_outputs(void **state)
{
	(void)state;
	plan *p = load_ok(text);
	view v = range(p, 2, 4);
	CHECK_IDS(v.nodes, 2, 3);
	CHECK_IDS(v.inputs, X0, X1, R3);
	CHECK_IDS(v.outputs, X0, R5);
	CHECK_IDS(v.externals, W, C1); /* the output tree has #1 */
	CHECK_IDS(v.passthrough, X0);
	assert_int_equal(v.rebinds.n, 0);
	view_free(&v);
	plan_free(p);
}

/* Who does the rebind of a plan, cut after the node that makes %1, and whether something crosses. */
static void check_rebind(const char *lines, node_id place, bool prefix_does_it, bool crosses)
{
	char plan_text[1024];
	node_id places[1];
	liveness l;
	snprintf(plan_text, sizeof plan_text,
	         "cleave-plan 1\nmodel \"m\"\ninput %%0 f32[4]\nbuffer @h f32[4]\nbuffer @g f32[4]\n"
	         "%%1 = aten::relu(%%0) -> f32[4]\n%s",
	         lines);
	plan *p = load_ok(plan_text);
	OK(liveness_parts(p, &l, places));
	assert_int_equal(places[0], place);
	view prefix = range(p, 0, 1), suffix = range(p, 1, p->nodes.n);
	assert_int_equal(prefix.rebinds.n, prefix_does_it);
	assert_int_equal(suffix.rebinds.n, !prefix_does_it);
	assert_int_equal(prefix.outputs.n, suffix.inputs.n);
	assert_int_equal(prefix.outputs.n, crosses);
	view_free(&prefix);
	view_free(&suffix);
	liveness_free(&l);
	plan_free(p);
}

static void a_rebind_is_done_by_the_part_that_uses_the_old_tensor(void **state)
{
	(void)state;
	/* nobody does: where the new one is made */
	check_rebind("%2 = aten::ones([4]) -> f32[4]\nrebind @h = %1\noutput %2\n", 0, true, false);
	check_rebind("%2 = aten::mul(%1, @h) -> f32[4]\nrebind @h = %1\noutput %2\n", 1, false, true);
	check_rebind("%2 = aten::ones([4]) -> f32[4]\n%3 = aten::neg(@h) -> f32[4]\nrebind @h = %1\noutput %2\n", 2, false,
	             true);
	/* where the last write to the new one is */
	check_rebind("%2 = aten::neg_(%1) -> f32[4] view-of %1 writes %1\nrebind @h = %1\noutput %2\n", 1, false, true);
	/* at the end: the output has the old one, or the new one is another of the model's */
	check_rebind("%2 = aten::ones([4]) -> f32[4]\nrebind @h = %1\noutput (%2, @h)\n", 2, false, true);
	check_rebind("%2 = aten::ones([4]) -> f32[4]\nrebind @h = @g\noutput %2\n", 2, false, false);
	/* an input is there from the start */
	check_rebind("%2 = aten::ones([4]) -> f32[4]\nrebind @h = %0\noutput %2\n", 0, true, false);
}

static void the_whole_plan_is_a_view(void **state)
{
	(void)state;
	plan *p = load_ok(text);
	view v = range(p, 0, 4);
	CHECK_IDS(v.inputs, X0, X1, UNUSED);
	CHECK_IDS(v.outputs, X0, R5);
	CHECK_IDS(v.externals, W, C0, C1);
	CHECK_IDS(v.rebinds, 0);
	assert_int_equal(v.passthrough.n, 0);
	view_free(&v);
	plan_free(p);
}

static void an_empty_range_passes_everything_through(void **state)
{
	(void)state;
	plan *p = load_ok(text);
	view v = range(p, 2, 2);
	assert_int_equal(v.nodes.n, 0);
	CHECK_IDS(v.inputs, X0, X1, R3);
	CHECK_IDS(v.outputs, X0, X1, R3);
	CHECK_IDS(v.passthrough, X0, X1, R3);
	view_free(&v);
	plan_free(p);
}

static void neighbouring_ranges_agree_about_what_crosses(void **state)
{
	(void)state;
	plan *p = load_ok(text);
	for (node_id a = 0; a < 4; a++) {
		for (node_id b = a; b < 4; b++) {
			view left = range(p, a, b + 1), right = range(p, b + 1, 4);
			assert_int_equal(left.outputs.n, right.inputs.n);
			assert_memory_equal(left.outputs.at, right.inputs.at, left.outputs.n * sizeof *left.outputs.at);
			view_free(&left);
			view_free(&right);
		}
	}
	plan_free(p);
}

static void a_range_outside_the_plan_is_refused(void **state)
{
	(void)state;
	plan *p = load_ok(text);
	view v;
	FAILS(view_range(p, 0, 5, &v), CLV_E_INVALID, "no nodes 0 to 5 in a plan of 4 nodes");
	FAILS(view_range(p, 3, 2, &v), CLV_E_INVALID, "no nodes 3 to 2");
	plan_free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(last_uses_count_reads_writes_and_outputs),
		cmocka_unit_test(a_prefix_takes_all_inputs_and_gives_the_boundary),
		cmocka_unit_test(a_suffix_takes_the_boundary_and_gives_the_outputs),
		cmocka_unit_test(the_whole_plan_is_a_view),
		cmocka_unit_test(a_rebind_is_done_by_the_part_that_uses_the_old_tensor),
		cmocka_unit_test(an_empty_range_passes_everything_through),
		cmocka_unit_test(neighbouring_ranges_agree_about_what_crosses),
		cmocka_unit_test(a_range_outside_the_plan_is_refused),
	};
	return cmocka_run_group_tests_name("view", tests, NULL, NULL);
}
