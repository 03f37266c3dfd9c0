/* Nodes of a plan as a plan of their own, and the view that code for them has. */
#include "random_plan.h"
#include "support.h"

#include "plan/view.h"

/* Two layers with a shortcut, an in-place operator, modes, lists, formulas, and something after them that reads data. */
static const char net[] =
	"cleave-plan 1\n"
	"model \"Net\" training=no grad=any\n"
	"symbol U 1..9\n"
	"symbol B 1..64\n"
	"symbol T 2..8\n"
	"symbol n 0..64 data\n"
	"scope \"\" \"Net\"\n"
	"scope a \"Linear\"\n"
	"scope b \"Block\"\n"
	"scope b.c \"Linear\"\n"
	"input %0 f32[B,T] name=\"x\"\n"
	"input %1 f32[U] name=\"unused\"\n"
	"param @a.weight f32[4,4] trainable tied=@z.weight\n"
	"param @b.weight f32[4,4] trainable\n"
	"const #0 f32[2] persistent\n"
	"const #1 f32[4]\n"
	"%2 = aten::linear(%0, @a.weight, none) -> f32[B,4*T] in a at \"net.py:3\"\n"
	"%3 = aten::relu(%2) -> f32[B,4*T] in b\n"
	"%4 = aten::view(%3, [B, T, 2*2]) -> f32[B,T,4] view-of %3 in b\n"
	"%5 = aten::add_.Tensor(%4, #1, float(1.0/int(B))) -> f32[B,T,4] view-of %3 writes %4 in b.c {nograd}\n"
	"%6, [%7, %8] = my::op([%5, @b.weight], \"s\", device:cpu) -> f32[T], [f32[2], f32[B-1]] in b.c\n"
	"%9 = aten::add.Tensor(%6, %2, 1) -> f32[B,4*T] in \"\"\n"
	"%10 = aten::nonzero(%9) -> i64[n,2] guard {host}\n"
	"%11 = aten::item(%7) -> float = 1.0 {host}\n"
	"output (%9, %10, %0, #0)\n";

static char *extracted(const plan *p, node_id first, node_id end)
{
	plan *part = NULL;
	if (plan_extract(p, first, end, &part, NULL) != CLV_OK)
		fail_msg("%s", status_message());
	char *text = print_ok(part);
	plan *again = load_ok(text);
	assert_true(plan_equal(part, again));
	assert_true(plan_in_text_order(part));
	plan_free(again);
	plan_free(part);
	return text;
}

static void a_range_becomes_a_plan_that_says_nothing_of_the_rest(void **state)
{
	(void)state;
	plan *p = load_ok(net);
	char *text = extracted(p, 1, 5);
	assert_string_equal(
		text, "cleave-plan 1\n"
			  "model \"segment\" training=no grad=any\n"
			  "symbol B 1..64\n"
			  "symbol T 2..8\n"
			  "scope \"\" \"Net\"\n"
			  "scope b \"Block\"\n"
			  "scope b.c \"Linear\"\n"
			  "input %0 f32[B,4*T]\n"
			  "param @b.weight f32[4,4] trainable\n"
			  "const #0 f32[4]\n"
			  "%1 = aten::relu(%0) -> f32[B,4*T] in b\n"
			  "%2 = aten::view(%1, [B, T, 4]) -> f32[B,T,4] view-of %1 in b\n"
			  "%3 = aten::add_.Tensor(%2, #0, float(1.0/int(B))) -> f32[B,T,4] view-of %1 writes %2 {nograd} in b.c\n"
			  "%4, [%5, %6] = my::op([%3, @b.weight], \"s\", device:cpu) -> f32[T], [f32[2], f32[B-1]] in "
			  "b.c\n"
			  "inputs ((%0,), {})\n"
			  "output (%4, %5)\n");
	mem_free(text);
	plan_free(p);
}

static void views_of_what_stays_outside_share_memory_with_the_first_that_comes_in(void **state)
{
	(void)state;
	plan *p = load_ok("cleave-plan 1\n"
	                  "model \"m\"\n"
	                  "input %0 f32[4]\n"
	                  "param @w f32[4]\n"
	                  "%1 = aten::t(@w) -> f32[4] view-of @w\n"
	                  "%2 = aten::relu(%0) -> f32[4]\n"
	                  "%3 = aten::view(%2) -> f32[4] view-of %2\n"
	                  "%4 = aten::view(%2) -> f32[4] view-of %2\n"
	                  "%5 = aten::cat([%3, %4, %1, @w]) -> f32[16]\n"
	                  "output %5\n");
	char *text = extracted(p, 4, 5);
	assert_string_equal(text, "cleave-plan 1\n"
	                          "model \"segment\" training=no grad=any\n"
	                          "input %0 f32[4]\n"
	                          "input %1 f32[4]\n"
	                          "input %2 f32[4] view-of %1\n"
	                          "param @w f32[4] view-of %0\n"
	                          "%3 = aten::cat([%1, %2, %0, @w]) -> f32[16]\n"
	                          "inputs ((%0, %1, %2), {})\n"
	                          "output (%3,)\n");
	mem_free(text);
	plan_free(p);
}

static void equal_nodes_of_different_models_are_equal_plans(void **state)
{
	(void)state;
	plan *p = load_ok(net);
	plan *q = load_ok("cleave-plan 1\n"
	                  "model \"Other\" training=no grad=any\n"
	                  "symbol T 2..8\n"
	                  "symbol B 1..64\n"
	                  "scope \"\" \"Net\"\n"
	                  "scope b \"Block\"\n"
	                  "input %0 f32[3]\n"
	                  "input %1 f32[B,4*T]\n"
	                  "%2 = aten::neg(%0) -> f32[3]\n"
	                  "%3 = aten::relu(%1) -> f32[B,4*T] in b\n"
	                  "%4 = aten::view(%3, [B, T, 4]) -> f32[B,T,4] view-of %3 in b\n"
	                  "output [%4, %2, %3]\n");
	plan *one = NULL, *two = NULL;
	OK(plan_extract(p, 1, 3, &one, NULL));
	OK(plan_extract(q, 1, 3, &two, NULL));
	char *a = print_ok(one), *b = print_ok(two);
	assert_non_null(strstr(a, "output (%2,)\n")); /* %1 is needed outside only in the second */
	assert_non_null(strstr(b, "output (%1, %2)\n"));
	*strstr(a, "output") = *strstr(b, "output") = '\0';
	assert_string_equal(a, b);
	mem_free(a);
	mem_free(b);
	plan_free(one);
	plan_free(two);
	plan_free(p);
	plan_free(q);
}

static void origins_name_the_values_of_the_whole(void **state)
{
	(void)state;
	plan *p = load_ok(net), *part = NULL;
	value_id *origin = NULL;
	OK(plan_extract(p, 1, 5, &part, &origin));
	for (value_id v = 0; v < part->values.n; v++) {
		const value *a = &part->values.at[v], *b = &p->values.at[origin[v]];
		assert_int_equal(a->dtype, b->dtype);
		assert_int_equal(a->ndim, b->ndim);
		assert_true(a->kind == b->kind || (a->kind == VALUE_INPUT && b->kind == VALUE_RESULT));
	}
	mem_free(origin);
	plan_free(part);
	plan_free(p);
}

static void what_depends_on_data_is_refused(void **state)
{
	(void)state;
	plan *p = load_ok(net), *part = NULL;
	FAILS(plan_extract(p, 5, 7, &part, NULL), CLV_E_UNSUPPORTED, "%10 has a shape that depends on data");
	FAILS(plan_extract(p, 7, 8, &part, NULL), CLV_E_UNSUPPORTED, "%11 is no tensor");
	FAILS(plan_extract(p, 7, 9, &part, NULL), CLV_E_INVALID, "no nodes 7 to 9");
	FAILS(plan_extract(p, 3, 2, &part, NULL), CLV_E_INVALID, "no nodes 3 to 2");
	plan_free(p);
	p = load_ok("cleave-plan 1\n"
	            "model \"m\"\n"
	            "symbol n 0..64 data\n"
	            "input %0 f32[4]\n"
	            "object #0 \"Packed\"\n"
	            "%1 = aten::nonzero(%0) -> i64[n,1] guard\n"
	            "%2 = aten::neg(%1) -> i64[n,1]\n"
	            "%3 = my::op(%0, #0) -> f32[4]\n"
	            "output (%2, %3)\n");
	FAILS(plan_extract(p, 1, 2, &part, NULL), CLV_E_UNSUPPORTED, "depends on n, which is read from data");
	FAILS(plan_extract(p, 2, 3, &part, NULL), CLV_E_UNSUPPORTED, "#0 is no tensor");
	plan_free(p);
}

/* What comes in and is used, what is made and needed; the plan's inputs and what passes by are nobody's business. */
static void a_segment_has_no_more_than_it_needs(void **state)
{
	(void)state;
	plan *p = load_ok(net);
	liveness l;
	view v;
	OK(liveness_new(p, &l));
	OK(view_segment(p, &l, 0, 2, &v));
	assert_int_equal(v.inputs.n, 1);
	assert_int_equal(v.outputs.n, 2);
	assert_int_equal(v.externals.n, 1);
	assert_int_equal(v.passthrough.n, 0);
	view_free(&v);
	OK(view_segment(p, &l, 5, 6, &v)); /* ends before the end, and the output tree wants the constant */
	assert_int_equal(v.inputs.n, 2);
	assert_int_equal(v.outputs.n, 1);
	assert_int_equal(v.externals.n, 0);
	view_free(&v);
	OK(view_segment(p, &l, 3, 3, &v));
	assert_int_equal(v.inputs.n + v.outputs.n + v.nodes.n, 0);
	view_free(&v);
	FAILS(view_segment(p, &l, 3, 9, &v), CLV_E_INVALID, "no nodes 3 to 9");
	liveness_free(&l);
	plan_free(p);
}

static bool holds(const value_id *at, uint32_t n, value_id v)
{
	for (uint32_t i = 0; i < n; i++)
		if (at[i] == v)
			return true;
	return false;
}

static bool is_bound(const plan *p, value_id v)
{
	for (uint32_t i = 0; i < p->rebinds.n; i++)
		if (p->rebinds.at[i].value == v)
			return true;
	return false;
}

/* A segment's inputs and outputs are among those of the range, and what it re-binds. */
static void check_range(const plan *p, const liveness *l, node_id first, node_id end)
{
	view whole, v;
	plan *part;
	OK(view_range(p, first, end, &whole));
	OK(view_segment(p, l, first, end, &v));
	for (uint32_t i = 0; i < v.inputs.n; i++)
		assert_true(holds(whole.inputs.at, whole.inputs.n, v.inputs.at[i]));
	for (uint32_t i = 0; i < v.outputs.n; i++)
		assert_true(holds(whole.outputs.at, whole.outputs.n, v.outputs.at[i]) || is_bound(p, v.outputs.at[i]));
	clv_status st = plan_extract(p, first, end, &part, NULL);
	if (st == CLV_OK) {
		char *text = print_ok(part);
		plan *again = load_ok(text);
		assert_true(plan_equal(part, again));
		assert_int_equal(part->inputs.n, v.inputs.n);
		assert_int_equal(part->out_tree.n, v.outputs.n + 1);
		plan_free(again);
		plan_free(part);
		mem_free(text);
	} else {
		assert_int_equal(st, CLV_E_UNSUPPORTED);
	}
	view_free(&v);
	view_free(&whole);
}

static void every_range_of_random_plans_is_a_plan_or_refused(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 60; seed++) {
		plan *p = random_plan(seed);
		liveness l;
		OK(liveness_new(p, &l));
		for (node_id first = 0; first < p->nodes.n; first += 1 + p->nodes.n / 12)
			for (node_id end = first; end <= p->nodes.n; end += 1 + p->nodes.n / 12)
				check_range(p, &l, first, end);
		liveness_free(&l);
		plan_free(p);
	}
}

static clv_status try_extract(const void *ctx)
{
	plan *part;
	value_id *origin;
	TRY(plan_extract(ctx, 1, 5, &part, &origin));
	mem_free(origin);
	plan_free(part);
	return CLV_OK;
}

static void memory_that_runs_out_leaves_nothing_behind(void **state)
{
	(void)state;
	plan *p = load_ok(net);
	assert_true(sweep_faults(try_extract, p, CLV_OK) > 20);
	plan_free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_range_becomes_a_plan_that_says_nothing_of_the_rest),
		cmocka_unit_test(views_of_what_stays_outside_share_memory_with_the_first_that_comes_in),
		cmocka_unit_test(equal_nodes_of_different_models_are_equal_plans),
		cmocka_unit_test(origins_name_the_values_of_the_whole),
		cmocka_unit_test(what_depends_on_data_is_refused),
		cmocka_unit_test(a_segment_has_no_more_than_it_needs),
		cmocka_unit_test(every_range_of_random_plans_is_a_plan_or_refused),
		cmocka_unit_test(memory_that_runs_out_leaves_nothing_behind),
	};
	return cmocka_run_group_tests_name("extract", tests, NULL, NULL);
}
