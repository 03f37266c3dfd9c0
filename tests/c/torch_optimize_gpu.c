/* What passes for GPUs make computes the same: they take the CPU for one, and both plans run there. */
#include "support.h"

#include <math.h>

#include "exec/program.h"
#include "optimize/optimize.h"

static bool has_op(const char *name)
{
	return strncmp(name, "mkldnn::", 8) && !strstr(name, "cudnn") && br_has_operator(name);
}

static const optimize_spec spec = {.level = OPTIMIZE_FAST,
                                   .channels_last = true,
                                   .conv_as_linear = true,
                                   .bias_apart = true,
                                   .has_op = has_op,
                                   .gpu = "cpu"};

/* Numbers of -1 to 1 that differ from tensor to tensor. */
static clv_tensor *numbers(const plan *p, value_id v, int64_t b)
{
	const value *x = &p->values.at[v];
	int64_t shape[8], n = 1, symbols[] = {b};
	for (uint32_t d = 0; d < x->ndim; d++) {
		OK(expr_eval(p, p->dims.at[x->shape + d], symbols, &shape[d]));
		n *= shape[d];
	}
	float *data = mem_alloc((size_t)n * sizeof *data);
	assert_non_null(data);
	for (int64_t i = 0; i < n; i++)
		data[i] = (float)sin((double)(i * (int64_t)(v + 3) + v));
	clv_tensor *t = NULL;
	OK(clv_tensor_from_data(data, "f32", x->ndim, shape, &t));
	mem_free(data);
	return t;
}

static void bind_all(clv_program *g, const plan *p)
{
	for (value_id v = 0; v < p->values.n; v++) {
		if (p->values.at[v].kind != VALUE_PARAM)
			continue;
		clv_tensor *t = numbers(p, v, 1);
		OK(clv_program_bind(g, plan_s(p, p->values.at[v].name), t));
		clv_tensor_free(t);
	}
}

static clv_tensor *result_of(const plan *p, int64_t b)
{
	clv_program *g = NULL;
	clv_tensor *out = NULL, *in = numbers(p, p->inputs.at[0], b);
	clv_program_options options = CLV_PROGRAM_OPTIONS_INIT;
	options.optimize = "none";
	OK(clv_program_create(p, &options, &g));
	bind_all(g, p);
	if (clv_program_run(g, (const clv_tensor *const[]){in}, 1, &out, 1) != CLV_OK)
		fail_msg("%s", status_message());
	clv_program_free(g);
	clv_tensor_free(in);
	return out;
}

static void compare(const plan *before, const plan *after, int64_t b)
{
	double error, scale;
	clv_tensor *want = result_of(before, b), *got = result_of(after, b);
	OK(br_difference(got, want, &error, &scale));
	assert_true(scale > 0);
	assert_true(error <= 1e-5 * scale);
	clv_tensor_free(want);
	clv_tensor_free(got);
}

/* `done`: passes with what they are to count, NULL ends. */
static void same_numbers(const char *text, const optimize_count *done)
{
	plan *p = load_ok(text);
	optimized_plan o;
	OK(optimize(p, 0, p->nodes.n, &spec, &o));
	for (; done->pass; done++) {
		uint32_t found = 0;
		for (uint32_t i = 0; i < o.counts.n; i++)
			found += !strcmp(o.counts.at[i].pass, done->pass) ? o.counts.at[i].changes : 0;
		assert_int_equal(found, done->changes);
	}
	for (int64_t b = 1; b <= 3; b++)
		compare(p, o.p, b);
	optimized_plan_free(&o);
	plan_free(p);
}

#define HEAD "cleave-plan 1\nmodel \"M\" training=no grad=any\nsymbol B 1..64\n"

static void a_layer_of_a_transformer(void **state)
{
	(void)state;
	same_numbers(HEAD "input %x f32[B,6,8] name=\"x\"\nparam @q f32[8,8]\nparam @k f32[4,8]\nparam @v f32[4,8]\n"
	                  "param @o f32[8,8]\nparam @u f32[16,8]\nparam @d f32[8,16]\nparam @bq f32[8]\nparam @bk f32[4]\n"
	                  "param @bv f32[4]\nparam @bo f32[8]\nparam @bu f32[16]\n"
	                  "%q = aten::linear(%x, @q, @bq) -> f32[B,6,8]\n"
	                  "%qs = aten::view(%q, [B, 6, 2, 4]) -> f32[B,6,2,4] view-of %q\n"
	                  "%qt = aten::transpose.int(%qs, 1, 2) -> f32[B,2,6,4] view-of %q\n"
	                  "%k = aten::linear(%x, @k, @bk) -> f32[B,6,4]\n"
	                  "%ks = aten::view(%k, [B, 6, 1, 4]) -> f32[B,6,1,4] view-of %k\n"
	                  "%kt = aten::transpose.int(%ks, 1, 2) -> f32[B,1,6,4] view-of %k\n"
	                  "%ke = aten::expand(%kt, [B, 2, 6, 4], false) -> f32[B,2,6,4] view-of %k\n"
	                  "%v = aten::linear(%x, @v, @bv) -> f32[B,6,4]\n"
	                  "%vs = aten::view(%v, [B, 6, 1, 4]) -> f32[B,6,1,4] view-of %v\n"
	                  "%vt = aten::transpose.int(%vs, 1, 2) -> f32[B,1,6,4] view-of %v\n"
	                  "%ve = aten::expand(%vt, [B, 2, 6, 4], false) -> f32[B,2,6,4] view-of %v\n"
	                  "%a = aten::scaled_dot_product_attention(%qt, %ke, %ve, none, 0.0, false, none, false) -> "
	                  "f32[B,2,6,4]\n"
	                  "%at = aten::transpose.int(%a, 1, 2) -> f32[B,6,2,4] view-of %a\n"
	                  "%ac = aten::clone(%at, memory:contiguous) -> f32[B,6,2,4]\n"
	                  "%am = aten::view(%ac, [6*B, 8]) -> f32[6*B,8] view-of %ac\n"
	                  "%ot = aten::t(@o) -> f32[8,8] view-of @o\n"
	                  "%o = aten::addmm(@bo, %am, %ot, 1, 1) -> f32[6*B,8]\n"
	                  "%os = aten::view(%o, [B, 6, 8]) -> f32[B,6,8] view-of %o\n"
	                  "%r = aten::add.Tensor(%os, %x, 1) -> f32[B,6,8]\n"
	                  "%g = aten::linear(%r, @u, @bu) -> f32[B,6,16]\n"
	                  "%gs = aten::silu(%g) -> f32[B,6,16]\n"
	                  "%u = aten::linear(%r, @u, @bu) -> f32[B,6,16]\n"
	                  "%m = aten::mul.Tensor(%gs, %u) -> f32[B,6,16]\n"
	                  "%d = aten::linear(%m, @d, @bo) -> f32[B,6,8]\n"
	                  "%y = aten::add_.Tensor(%d, %r, 1) -> f32[B,6,8] view-of %d writes %d\n"
	                  "output %y\n",
	             (optimize_count[]){{"merge_linears", 3}, {"bias_apart", 6}, {NULL, 0}});
}

static void two_linears_that_differ(void **state)
{
	(void)state;
	same_numbers(HEAD "input %x f32[B,6,8] name=\"x\"\nparam @g f32[16,8]\nparam @u f32[16,8]\n"
	                  "%g = aten::linear(%x, @g, none) -> f32[B,6,16]\n%s = aten::silu(%g) -> f32[B,6,16]\n"
	                  "%u = aten::linear(%x, @u, none) -> f32[B,6,16]\n"
	                  "%y = aten::mul.Tensor(%s, %u) -> f32[B,6,16]\noutput %y\n",
	             (optimize_count[]){{"merge_linears", 2}, {NULL, 0}});
}

static void a_block_of_a_convolutional_network(void **state)
{
	(void)state;
	same_numbers(HEAD
	             "input %x f32[B,8,5,7] name=\"x\"\nparam @w f32[16,8,1,1]\nparam @b f32[16]\nparam @d f32[16,1,3,3]\n"
	             "param @s f32[4,16,1,1]\nparam @sb f32[4]\nparam @t f32[16,4,1,1]\nparam @p f32[8,16,1,1]\n"
	             "%1 = aten::conv2d(%x, @w, @b, [1, 1], [0, 0], [1, 1], 1) -> f32[B,16,5,7]\n"
	             "%2 = aten::hardswish_(%1) -> f32[B,16,5,7] view-of %1 writes %1\n"
	             "%3 = aten::conv2d(%2, @d, @b, [1, 1], [1, 1], [1, 1], 16) -> f32[B,16,5,7]\n"
	             "%4 = aten::adaptive_avg_pool2d(%3, [1, 1]) -> f32[B,16,1,1]\n"
	             "%5 = aten::conv2d(%4, @s, @sb, [1, 1], [0, 0], [1, 1], 1) -> f32[B,4,1,1]\n"
	             "%6 = aten::relu(%5) -> f32[B,4,1,1]\n"
	             "%7 = aten::conv2d(%6, @t, @b, [1, 1], [0, 0], [1, 1], 1) -> f32[B,16,1,1]\n"
	             "%8 = aten::hardsigmoid(%7) -> f32[B,16,1,1]\n"
	             "%9 = aten::mul.Tensor(%8, %3) -> f32[B,16,5,7]\n"
	             "%10 = aten::conv2d(%9, @p, none, [1, 1], [0, 0], [1, 1], 1) -> f32[B,8,5,7]\n"
	             "%11 = aten::add_.Tensor(%10, %x, 1) -> f32[B,8,5,7] view-of %10 writes %10\n"
	             "%12 = aten::conv2d(%11, @w, @b, [1, 1], [0, 0], [1, 1], 1) -> f32[B,16,5,7]\n"
	             "%13 = aten::relu_(%12) -> f32[B,16,5,7] view-of %12 writes %12\n"
	             "output %13\n",
	             (optimize_count[]){{"conv_as_linear", 7}, {NULL, 0}});
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_layer_of_a_transformer),
		cmocka_unit_test(two_linears_that_differ),
		cmocka_unit_test(a_block_of_a_convolutional_network),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
