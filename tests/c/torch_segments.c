/* Programs with compiled segments that passes worked on: variants have the segments of their program, and whatever memory
 * runs out, nothing is lost. The code is not used, so that segments run on their tapes. */
#include "torch.h"

#include "exec/code.h"
#include "exec/optimized.h"

/* Nodes 2 and 3 are the segment; around it nodes to remove and two alike. */
static const char text[] = "cleave-plan 1\nmodel \"M\" training=no grad=any\n"
						   "input %0 f32[4] name=\"x\"\n"
						   "%1 = aten::alias(%0) -> f32[4] view-of %0\n"
						   "%2 = aten::neg(%1) -> f32[4]\n"
						   "%3 = aten::sin(%2) -> f32[4]\n"
						   "%4 = aten::cos(%3) -> f32[4]\n"
						   "%5 = aten::alias(%4) -> f32[4] view-of %4\n"
						   "%6 = aten::exp(%5) -> f32[4]\n"
						   "%7 = aten::exp(%4) -> f32[4]\n"
						   "%8 = aten::add.Tensor(%6, %7, 1) -> f32[4]\n"
						   "output %8\n";

typedef struct bench {
	plan *p;
	code *c;
} bench;

static bench begin(void)
{
	bench b = {.p = load_ok(text)};
	OK(code_empty(2, 4, &b.c));
	code_stop(b.c, "there is none");
	return b;
}

static void end(bench *b)
{
	code_unref(b->c);
	plan_free(b->p);
}

static clv_status make(const bench *b, uint8_t level, clv_program **out)
{
	program_spec spec = {.end = b->p->nodes.n, .inference = true, .codes = &b->c, .ncodes = 1, .optimize = level};
	return program_new(b->p, &spec, out);
}

static clv_status run_once(const bench *b, uint8_t level, br_tensor **out)
{
	static const int64_t four[] = {4};
	static const float data[] = {1, 2, 3, 4};
	clv_program *g = NULL;
	clv_tensor *x = NULL;
	clv_status st = make(b, level, &g);
	if (st == CLV_OK)
		st = clv_tensor_from_data(data, "f32", 1, four, &x);
	if (st == CLV_OK)
		st = program_run(g, &(run_spec){.inputs = (br_tensor *[]){torch_of(x)}, .outputs = out});
	clv_tensor_free(x);
	program_free(g);
	return st;
}

static void what_runs_around_a_segment_does_the_same(void **state)
{
	(void)state;
	bench b = begin();
	br_tensor *want, *got;
	bool same;
	OK(run_once(&b, OPTIMIZE_NONE, &want));
	OK(run_once(&b, OPTIMIZE_SAFE, &got));
	OK(br_bits_equal(got, want, &same));
	assert_true(same);
	assert_int_equal(b.c->tape_runs, 2);
	br_unref(want);
	br_unref(got);
	end(&b);
}

static void passes_work_around_it(void **state)
{
	(void)state;
	bench b = begin();
	clv_program *g;
	OK(make(&b, OPTIMIZE_SAFE, &g));
	const optimized_plan *made = optimizer_plan(g->optimizer);
	assert_non_null(made);
	assert_int_equal(made->p->nodes.n, 5);
	assert_true(made->pinned[0].first == 1 && made->pinned[0].end == 3);
	program_free(g);
	end(&b);
}

static clv_status live_and_die(const void *ctx)
{
	br_tensor *out = NULL;
	clv_status st = run_once(ctx, OPTIMIZE_SAFE, &out);
	if (st == CLV_OK)
		br_unref(out);
	return st;
}

static void every_allocation_may_fail(void **state)
{
	(void)state;
	bench b = begin();
	assert_true(sweep_each(live_and_die, &b, CLV_OK, true) > 50); /* it can do without a pool */
	end(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_runs_around_a_segment_does_the_same),
		cmocka_unit_test(passes_work_around_it),
		cmocka_unit_test(every_allocation_may_fail),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
