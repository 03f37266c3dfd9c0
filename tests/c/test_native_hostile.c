/* The native engine on plans that somebody made up: it runs them in this process, so what a plan says wrong is an error. */
#include "artifacts.h"

#include <stdlib.h>

#include "tensor/tensor.h"

#define HEAD "cleave-plan 1\nmodel \"Net\" training=no grad=no\n"

static clv_status open_with(const char *text, double timeout, int64_t memory, clv_runtime **out)
{
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	artifact *a = new_artifact(text);
	OK(artifact_ready(a));
	o.engine = "native";
	o.unproven = true;
	o.threads = 1;
	o.timeout = timeout;
	o.max_memory = memory;
	clv_status st = clv_runtime_create(a, &o, out);
	artifact_free(a);
	return st;
}

/* Zeros of the sizes that the plan has. */
static clv_tensor *input_of(const clv_runtime *r, uint32_t i)
{
	clv_port port = {.size = sizeof port};
	int64_t sizes[8], count = 1;
	clv_tensor *t;
	OK(clv_runtime_input(r, i, &port));
	for (uint32_t d = 0; d < port.ndim; d++)
		count *= sizes[d] = strtoll(port.dims[d], NULL, 10);
	void *zeros = calloc((size_t)count + 1, 8);
	OK(clv_tensor_from_data(zeros, port.dtype, port.ndim, sizes, &t));
	free(zeros);
	return t;
}

/* Drops the results. */
static clv_status run_on(const clv_runtime *r, clv_tensor *const *in, uint32_t nin)
{
	clv_tensor *out[4] = {0};
	uint32_t nout = clv_runtime_output_count(r);
	clv_status st = clv_runtime_run(r, (const clv_tensor *const *)in, nin, out, nout);
	for (uint32_t i = 0; i < nout && st == CLV_OK; i++)
		clv_tensor_free(out[i]);
	return st;
}

/* Runs it on zeros; results are dropped. */
static clv_status run_text(const char *text, double timeout, int64_t memory)
{
	clv_runtime *r = NULL;
	clv_tensor *in[4];
	TRY(open_with(text, timeout, memory, &r));
	uint32_t nin = clv_runtime_input_count(r);
	for (uint32_t i = 0; i < nin; i++)
		in[i] = input_of(r, i);
	clv_status st = run_on(r, in, nin);
	for (uint32_t i = 0; i < nin; i++)
		clv_tensor_free(in[i]);
	clv_runtime_free(r);
	return st;
}

/* Kernels lay results out by their arguments: of another shape a result would be too small, or not written as a whole. */
static void a_result_of_another_shape_than_the_operator_gives_is_an_error(void **state)
{
	static const char *const plans[] = {
		"input %0 f32[65536] name=\"x\"\n%1 = aten::_softmax(%0, 2, false) -> f32[2,2,16384]\n%2 = aten::relu(%1) -> "
		"f32[2,2,16384]\noutput %2\n",
		"input %0 f32[2,8] name=\"x\"\n%1 = aten::_softmax(%0, 1, false) -> f32[4,4]\noutput %1\n",
		"input %0 f32[2,8] name=\"x\"\n%1 = aten::log_softmax.int(%0, 1, none) -> f32[4,4]\noutput %1\n",
		"input %0 f32[1,4,8] name=\"x\"\ninput %1 f32[8,8] name=\"w\"\n%2 = aten::matmul(%0, %1) -> "
		"f32[64,4,8]\noutput "
		"%2\n",
		"input %0 f32[1,4,8] name=\"x\"\ninput %1 f32[24,8] name=\"w\"\ninput %2 f32[8,8] name=\"o\"\ninput %3 f32[8] "
		"name=\"v\"\n%4 = aten::expand(%3, [3, 8]) -> f32[3,8] view-of %3\n%5 = aten::reshape(%4, [24]) -> f32[24]\n"
		"%6 = aten::_transformer_encoder_layer_fwd(%0, 8, 2, %1, %5, %2, %3, false, true, 0.00001, %3, %3, %3, %3, %2, "
		"%3, %2, %3, none, none) -> f32[64,4,8]\noutput %6\n",
	};
	(void)state;
	for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
		char text[1024];
		snprintf(text, sizeof text, "%s%s", HEAD, plans[i]);
		assert_int_equal(run_text(text, 0, 0), CLV_E_VERIFY);
	}
}

/* What expands a tensor takes no memory, so these sizes can be: what kernels need beside it is counted without wrapping. */
static void sizes_that_wrap_are_errors(void **state)
{
	static const char *const plans[] = {
		"input %0 u8[1] name=\"x\"\n%1 = aten::expand(%0, [576460752303423496]) -> u8[576460752303423496] view-of %0\n"
		"%2, %3 = aten::topk(%1, 1, 0, true, true) -> u8[1], i64[1]\noutput %3\n",
		"input %0 f32[1,524288,1,1] name=\"x\"\ninput %1 f32[1,1,1,1] name=\"w\"\n"
		"%2 = aten::expand(%1, [524288,1,1048576,524288]) -> f32[524288,1,1048576,524288] view-of %1\n"
		"%3 = aten::conv_transpose2d.input(%0, %2, none, [1,1], [524288,262144], [1,1], 16384, [1,1]) -> "
		"f32[1,16384,1,1]\noutput %3\n",
		"input %0 f32[1,0,4,8] name=\"q\"\ninput %1 f32[1,3,4,8] name=\"k\"\n"
		"%2 = aten::scaled_dot_product_attention(%0, %1, %1, none, 0.0, false, none, true) -> f32[1,0,4,8]\noutput "
		"%2\n",
	};
	(void)state;
	for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
		char text[1024];
		snprintf(text, sizeof text, "%s%s", HEAD, plans[i]);
		assert_int_not_equal(run_text(text, 0, 0), CLV_OK);
	}
}

/* Kernels write one type: a smaller one in the plan would be less memory, a larger one memory that nobody writes. */
static void a_result_of_another_type_than_the_kernel_writes_is_an_error(void **state)
{
	static const char *const plans[] = {
		"input %0 f32[1,4,6,6] name=\"x\"\n%1 = aten::_adaptive_avg_pool2d(%0, [4, 1]) -> f64[1,4,4,1]\noutput %1\n",
		"input %0 f32[1,4,6,6] name=\"x\"\n%1 = aten::avg_pool2d(%0, [2, 2], [], [0, 0], false, true, none) -> "
		"i64[1,4,3,3]\noutput %1\n",
		"input %0 f32[1,4,6] name=\"x\"\n%1, %2 = aten::max_pool1d_with_indices(%0, [2], [], [0], [1], false) -> "
		"f32[1,4,3], u8[1,4,3]\noutput (%1, %2)\n",
		"input %0 f32[1,2,3,3] name=\"x\"\n%1 = aten::upsample_bilinear2d(%0, [6, 6], false, none, none) -> "
		"bool[1,2,6,6]\noutput %1\n",
		"input %0 f32[1,2,3,3] name=\"x\"\n%1 = aten::upsample_nearest2d(%0, [6, 6], none, none) -> "
		"f64[1,2,6,6]\noutput %1\n",
		"input %0 f32[2,4] name=\"x\"\n%1 = aten::constant_pad_nd(%0, [-1, 0], num(0)) -> f64[2,3]\noutput %1\n",
		"input %0 f32[1,4,9] name=\"x\"\ninput %1 f32[3,4,3] name=\"w\"\n"
		"%2 = aten::conv1d(%0, %1, none, [1], [0], [1], 1) -> u8[1,3,7]\noutput %2\n",
		"input %0 f32[1,2,4,8] name=\"q\"\n%1 = aten::scaled_dot_product_attention(%0, %0, %0, none, 0.0, false, none, "
		"false) -> u8[1,2,4,8]\noutput %1\n",
		"input %0 f32[6,8] name=\"x\"\n%1 = aten::layer_norm(%0, [8], none, none, 1e-05, false) -> i8[6,8]\noutput "
		"%1\n",
		"input %0 f32[6,8] name=\"x\"\n%1, %2, %3 = aten::native_layer_norm(%0, [8], none, none, 1e-05) -> f32[6,8], "
		"u8[6,1], f64[6,1]\noutput (%1, %2, %3)\n",
		"input %0 f32[6,8] name=\"x\"\n%1, %2 = aten::max.dim(%0, 1, false) -> f32[6], u8[6]\noutput (%1, %2)\n",
		"input %0 f64[6,8] name=\"x\"\n%1, %2 = aten::var_mean.correction(%0, [1], num(1), false) -> f64[6], "
		"f32[6]\noutput (%1, %2)\n",
		"input %0 f32[6,8] name=\"x\"\n%1 = aten::sum.dim_IntList(%0, [1], false, none) -> i64[6]\noutput %1\n",
		"input %0 f32[6,8] name=\"x\"\n%1 = aten::cdist(%0, %0, 2.0, none) -> f32[6,7]\noutput %1\n",
		"input %0 f32[6,8] name=\"x\"\n%1 = aten::cdist(%0, %0, 2.0, none) -> f64[6,6]\noutput %1\n",
		"input %0 f32[6,8] name=\"x\"\n%1 = aten::cdist(%0, %0, -2.0, none) -> f32[6,6]\noutput %1\n",
		"input %0 f32[6,8] name=\"x\"\n%1 = aten::cosine_similarity(%0, %0, 1, 1e-08) -> f32[7]\noutput %1\n",
		"input %0 f32[6,8] name=\"x\"\n%1 = aten::pairwise_distance(%0, %0, 2.0, 1e-06, true) -> f32[6]\noutput %1\n",
		"input %0 f32[6,8] name=\"x\"\n%1 = aten::histc(%0, 4, num(0), num(1)) -> f32[5]\noutput %1\n",
		"input %0 f32[6,8] name=\"x\"\n%1 = aten::_weight_norm(%0, %0, 0) -> f32[6,8]\noutput %1\n",
		"input %0 f32[6,8] name=\"x\"\ninput %1 bool[5,8] name=\"m\"\n%2 = aten::masked_scatter(%0, %1, %0) -> "
		"f32[6,8]\noutput %2\n",
		"%0 = aten::tril_indices(3, 3, 0, dtype:i64, none, device:cpu, false) -> i64[2,7]\noutput %0\n",
		"%0 = aten::triu_indices(3, 3, 0, dtype:i64, none, device:cpu, false) -> i64[2,5]\noutput %0\n",
		"input %0 f32[1,2,3,3,3] name=\"x\"\ninput %1 f32[1,4,4,4,2] name=\"g\"\n"
		"%2 = aten::grid_sampler(%0, %1, 0, 0, false) -> f32[1,2,4,4,4]\noutput %2\n",
		"input %0 f32[6,8] name=\"x\"\ninput %1 f32[6,4] name=\"h\"\ninput %2 f32[16,8] name=\"w\"\n"
		"%3, %4 = aten::lstm_cell(%0, [%1, %1], %2, %2, none, none) -> f32[6,4], f32[6,4]\noutput (%3, %4)\n",
		"input %0 f32[6,8] name=\"x\"\ninput %1 f32[2,8,4] name=\"w\"\ninput %2 i32[3] name=\"e\"\n"
		"%3 = aten::_grouped_mm(%0, %1, %2, none, none) -> f32[6,4]\noutput %3\n",
		"input %0 f32[6,8] name=\"x\"\ninput %1 i64[6,7] name=\"s\"\n"
		"%2 = aten::searchsorted.Tensor(%0, %0, false, false, none, %1) -> i64[6,8]\noutput %2\n",
	};
	(void)state;
	for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
		char text[1024];
		snprintf(text, sizeof text, "%s%s", HEAD, plans[i]);
		if (run_text(text, 0, 0) == CLV_OK)
			fail_msg("it ran: %s", text);
	}
}

static void a_result_of_other_sizes_than_the_operator_gives_is_an_error(void **state)
{
	(void)state;
	FAILS(run_text(HEAD "input %0 f32[100] name=\"x\"\n%1 = aten::cumsum(%0, 0, none) -> f32[2]\noutput %1\n", 0, 0),
	      CLV_E_VERIFY, "another size");
	FAILS(run_text(HEAD "input %0 f32[1,2,4,4] name=\"x\"\n%1, %2 = aten::adaptive_max_pool2d(%0, [3, 3]) -> "
	                    "f32[1,2,3,3], i64[3]\noutput (%1, %2)\n",
	               0, 0),
	      CLV_E_VERIFY, "indices of pooling");
	FAILS(run_text(HEAD "input %0 f32[1,2,3] name=\"x\"\n"
	                    "%1 = aten::upsample_nearest1d(%0, [3], none) -> f32[2,3]\noutput %1\n",
	               0, 0),
	      CLV_E_VERIFY, "another shape");
}

/* It is no default. */
static void a_complex_number_is_an_error(void **state)
{
	(void)state;
	FAILS(
		run_text(HEAD "input %0 f32[5]\n%1 = aten::hardtanh(%0, complex(1.0, 0.0), 0.5) -> f32[5]\noutput %1\n", 0, 0),
		CLV_E_UNSUPPORTED, "complex");
}

static void a_missing_tensor_is_an_error(void **state)
{
	static const char *const nodes[] = {"aten::detach()",
	                                    "aten::mm(%0)",
	                                    "aten::squeeze(none)",
	                                    "aten::cat([%0, none], 0)",
	                                    "aten::expand_as(%0)",
	                                    "aten::sum(none, none)",
	                                    "aten::relu()",
	                                    "aten::meshgrid([none])",
	                                    "aten::sort(none, 0, false)"};
	(void)state;
	for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++) {
		char text[512];
		snprintf(text, sizeof text, "%sinput %%0 f32[2,2] name=\"x\"\n%%1 = %s -> f32[2,2]\noutput %%1\n", HEAD,
		         nodes[i]);
		if (run_text(text, 0, 0) == CLV_OK)
			fail_msg("it ran: %s", nodes[i]);
	}
}

/* What is worked out once per element of a dimension is memory too. */
static void huge_dimensions_and_none_are_no_trap(void **state)
{
	(void)state;
	FAILS(run_text(HEAD "input %0 u8[4] name=\"x\"\n"
	                    "%1 = aten::constant_pad_nd(%0, [0, 2305843009213693947], num(0)) -> u8[2305843009213693951]\n"
	                    "output %1\n",
	               1, 1 << 20),
	      CLV_E_NOMEM, "");
	FAILS(run_text(HEAD "input %0 u8[4,0] name=\"x\"\n"
	                    "%1 = aten::constant_pad_nd(%0, [0, 0, 0, 1099511627772], num(0)) -> u8[1099511627776,0]\n"
	                    "output %1\n",
	               1, 1 << 20),
	      CLV_E_LIMIT, "more");
	OK(run_text(HEAD "input %0 f32[] name=\"x\"\n%1 = aten::constant_pad_nd(%0, [], 0) -> f32[]\noutput %1\n", 0, 0));
	OK(run_text(HEAD "input %0 f32[1,0,9,9] name=\"x\"\n"
	                 "%1 = aten::im2col(%0, [536870912, 536870912], [1, 1], [536870912, 536870912], [1, 1]) -> "
	                 "f32[1,0,288230386889130084]\noutput %1\n",
	            5, 1 << 20));
}

static void one_long_step_ends_at_its_time(void **state)
{
	(void)state;
	FAILS(run_text(HEAD "input %0 f32[1,1,2048,2048] name=\"x\"\n"
	                    "%1 = aten::avg_pool2d(%0, [255, 255], [1, 1], [0, 0], false, true, none) -> "
	                    "f32[1,1,1794,1794]\noutput %1\n",
	               0.05, 0),
	      CLV_E_LIMIT, "longer than");
}

static void making_a_plan_ready_ends_at_its_time_and_memory(void **state)
{
	static const char *const plans[] = {
		HEAD
		"input %0 u8[1] name=\"x\"\n%1 = aten::expand(%0, [1099511627776], false) -> u8[1099511627776] view-of %0\n"
		"%2 = aten::diff(%1, 1099511627776, 0, none, none) -> u8[0]\noutput %2\n",
		HEAD "input %0 f32[1,1,1,1] name=\"x\"\n"
			 "%1 = aten::expand(%0, [1,1,262144,262144], false) -> f32[1,1,262144,262144] view-of %0\n"
			 "%2 = aten::im2col(%1, [262144,262144], [1,1], [0,0], [1,1]) -> f32[1,68719476736,1]\noutput %2\n",
	};
	(void)state;
	for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
		FAILS(run_text(plans[i], 0.2, 0), CLV_E_LIMIT, "longer");
		FAILS(run_text(plans[i], 0, 1 << 20), CLV_E_LIMIT, "");
	}
}

static void loops_over_the_sizes_of_nothing_end(void **state)
{
	static const char *const plans[] = {
		HEAD "input %0 f32[0,1] name=\"x\"\n"
			 "%1 = aten::expand(%0, [0,1125899906842624], false) -> f32[0,1125899906842624] view-of %0\n"
			 "%2 = aten::cumsum(%1, 0, none) -> f32[0,1125899906842624]\noutput %2\n",
		HEAD "input %0 f32[1,0,4,4] name=\"x\"\n"
			 "%1 = aten::expand(%0, [1125899906842624,0,4,4], false) -> f32[1125899906842624,0,4,4] view-of %0\n"
			 "%2, %3 = aten::max_pool2d_with_indices(%1, [2,2], [2,2], [0,0], [1,1], false) -> "
			 "f32[1125899906842624,0,2,2], i64[1125899906842624,0,2,2]\noutput (%2,%3)\n",
		HEAD "input %0 f32[1,0,4] name=\"x\"\ninput %1 f32[1,0,4] name=\"h\"\ninput %2 f32[16,4] name=\"w\"\n"
			 "%3 = aten::expand(%0, [4398046511104,0,4], false) -> f32[4398046511104,0,4] view-of %0\n"
			 "%4, %5, %6 = aten::lstm.input(%3, [%1, %1], [%2, %2], false, 1, 0.0, false, false, false) -> "
			 "f32[4398046511104,0,4], f32[1,0,4], f32[1,0,4]\noutput %4\n",
	};
	(void)state;
	for (size_t i = 0; i < sizeof plans / sizeof *plans; i++)
		OK(run_text(plans[i], 10, 0));
	FAILS(run_text(HEAD "input %0 f32[3,0,4] name=\"x\"\n%2 = aten::group_norm(%0, 4611686018427387904, none, none, "
	                    "0.00001, false) -> f32[3,0,4]\noutput %2\n",
	               0, 0),
	      CLV_E_OVERFLOW, "groups");
}

static void taps_of_a_transposed_convolution_are_not_looked_for_one_by_one(void **state)
{
	(void)state;
	OK(run_text(HEAD "input %0 f32[1,1,1] name=\"x\"\ninput %1 f32[1,1,1] name=\"w\"\n"
	                 "%2 = aten::expand(%1, [1,1,2147483646], false) -> f32[1,1,2147483646] view-of %1\n"
	                 "%3 = aten::conv_transpose1d(%0, %2, none, [2147483646], [1073740800], [0], 1, [1]) -> "
	                 "f32[1,1,2046]\noutput %3\n",
	            10, 0));
}

static void places_of_far_taps_are_not_looked_for_one_by_one(void **state)
{
	(void)state;
	FAILS(run_text(HEAD "%1 = aten::zeros([1,1,200000], dtype:f32, none, none, none) -> f32[1,1,200000]\n"
	                    "%2 = aten::zeros([1,1,200000], dtype:f32, none, none, none) -> f32[1,1,200000]\n"
	                    "%3 = aten::conv1d(%1, %2, none, [1], [400000], [4], 1) -> f32[1,1,200004]\noutput %3\n",
	               0.5, 0),
	      CLV_E_LIMIT, "longer than");
}

/* Written element by element in another order, it would have other numbers. */
static void a_tensor_whose_elements_overlap_is_not_written(void **state)
{
	static const char *const views[] = {"[2,2], [1,1]", "[2,4], [2,1]", "[4,2], [1,2]", "[3], [0]"};
	static const char *const apart[] = {"[2,2], [1,2]", "[2,2], [2,1]", "[2,1,2], [2,0,1]", "[1,4], [0,1]"};
	static const char *const sizes[][4] = {{"2,2", "2,4", "4,2", "3"}, {"2,2", "2,2", "2,1,2", "1,4"}};
	char text[512];
	(void)state;
	for (int i = 0; i < 8; i++) {
		const char *size = sizes[i / 4][i % 4];
		snprintf(text, sizeof text,
		         HEAD "input %%0 f32[8] name=\"x\"\n%%1 = aten::relu(%%0) -> f32[8]\n"
		              "%%2 = aten::as_strided(%%1, %s, 0) -> f32[%s] view-of %%1\n"
		              "%%3 = aten::neg_(%%2) -> f32[%s] view-of %%1 writes %%1\noutput %%1\n",
		         i < 4 ? views[i] : apart[i - 4], size, size);
		if (i < 4)
			FAILS(run_text(text, 0, 0), CLV_E_UNSUPPORTED, "overlap");
		else
			OK(run_text(text, 0, 0));
	}
}

static void a_resize_to_other_sizes_than_its_scale_gives_is_refused(void **state)
{
	static const char *const resizes[] = {
		"upsample_nearest1d(%0, [7], 2.0) -> f32[1,1,7]",
		"upsample_nearest1d(%0, [14], 3.3) -> f32[1,1,14]",
		"_upsample_nearest_exact1d(%0, [7], 1e30) -> f32[1,1,7]",
		"upsample_linear1d(%0, [9], false, 2.0) -> f32[1,1,9]",
		"upsample_linear1d(%0, [7], false, -1.0) -> f32[1,1,7]",
	};
	static const char *const held[] = {
		"upsample_nearest1d(%0, [7], none) -> f32[1,1,7]",
		"upsample_nearest1d(%0, [14], 2.0) -> f32[1,1,14]",
		"upsample_nearest1d(%0, [4], 0.6) -> f32[1,1,4]",
		"upsample_linear1d(%0, [11], false, 1.7) -> f32[1,1,11]",
	};
	char text[256];
	(void)state;
	for (size_t i = 0; i < sizeof resizes / sizeof *resizes + sizeof held / sizeof *held; i++) {
		size_t n = sizeof resizes / sizeof *resizes;
		snprintf(text, sizeof text, HEAD "input %%0 f32[1,1,7] name=\"x\"\n%%1 = aten::%s\noutput %%1\n",
		         i < n ? resizes[i] : held[i - n]);
		if (i < n)
			FAILS(run_text(text, 0, 0), CLV_E_UNSUPPORTED, "scale");
		else
			OK(run_text(text, 0, 0));
	}
}

/* Each of them is within the limit. */
static void all_that_is_packed_is_within_the_memory_of_a_run(void **state)
{
	char text[2048] = HEAD "input %0 f32[1,512] name=\"x\"\n";
	(void)state;
	for (int i = 0; i < 4; i++) {
		size_t n = strlen(text);
		snprintf(text + n, sizeof text - n,
		         "%%%d = aten::ones([%d,512], dtype:f32, none, none, none) -> f32[%d,512]\n"
		         "%%%d = aten::linear(%%%d, %%%d, none) -> f32[1,%d]\n%%%d = aten::sum(%%%d, none) -> f32[]\n",
		         3 * i + 1, 512 - i, 512 - i, 3 * i + 2, 0, 3 * i + 1, 512 - i, 3 * i + 3, 3 * i + 2);
	}
	strcat(text, "output (%3,%6,%9,%12)\n");
	FAILS(run_text(text, 0, 6 << 20), CLV_E_LIMIT, "");
	OK(run_text(text, 0, 16 << 20));
}

static void a_mask_with_more_than_the_plan_saw_is_an_error(void **state)
{
	clv_runtime *r;
	clv_tensor *x, *mask, *y = NULL;
	(void)state;
	OK(open_with(HEAD "input %0 f32[3] name=\"x\"\ninput %1 bool[3] name=\"m\"\n"
	                  "%2 = aten::index.Tensor(%0, [%1]) -> f32[0]\noutput %2\n",
	             0, 0, &r));
	OK(clv_tensor_from_data((float[]){1, 2, 3}, "f32", 1, (int64_t[]){3}, &x));
	OK(clv_tensor_from_data((uint8_t[]){0, 1, 0}, "bool", 1, (int64_t[]){3}, &mask));
	FAILS(clv_runtime_run(r, (const clv_tensor *const[]){x, mask}, 2, &y, 1), CLV_E_GUARD, "more true elements");
	clv_tensor_free(x);
	clv_tensor_free(mask);
	clv_runtime_free(r);
}

/* Their last dimension has size 1 and any stride. */
static void values_of_an_index_are_read_where_they_are(void **state)
{
	clv_runtime *r;
	clv_tensor *x, *at, *values, *y = NULL;
	(void)state;
	OK(open_with(HEAD "input %0 f32[6] name=\"x\"\ninput %1 i64[5,1] name=\"i\"\ninput %2 f32[1,5] name=\"v\"\n"
	                  "%3 = aten::t(%2) -> f32[5,1] view-of %2\n"
	                  "%4 = aten::index_put(%0, [%1], %3, false) -> f32[6]\noutput %4\n",
	             0, 0, &r));
	OK(clv_tensor_from_data((float[6]){0}, "f32", 1, (int64_t[]){6}, &x));
	OK(clv_tensor_from_data((int64_t[]){5, 4, 3, 2, 1}, "i64", 2, (int64_t[]){5, 1}, &at));
	OK(clv_tensor_from_data((float[]){1, 2, 3, 4, 5}, "f32", 2, (int64_t[]){1, 5}, &values));
	OK(clv_runtime_run(r, (const clv_tensor *const[]){x, at, values}, 3, &y, 1));
	assert_memory_equal(clv_tensor_data(y), ((float[]){0, 5, 4, 3, 2, 1}), 24);
	clv_tensor_free(y);
	clv_tensor_free(x);
	clv_tensor_free(at);
	clv_tensor_free(values);
	clv_runtime_free(r);
}

static void large_integers_are_counted_exactly(void **state)
{
	clv_runtime *r;
	clv_tensor *y = NULL;
	(void)state;
	OK(open_with(HEAD "%0 = aten::arange.start_step(9007199254740993, 9007199254740996, 1, none, none, none, none) -> "
	                  "i64[3]\noutput %0\n",
	             0, 0, &r));
	OK(clv_runtime_run(r, NULL, 0, &y, 1));
	assert_memory_equal(clv_tensor_data(y), ((int64_t[]){9007199254740993, 9007199254740994, 9007199254740995}), 24);
	clv_tensor_free(y);
	clv_runtime_free(r);
}

/* ---- inputs that are made up --------------------------------------------------------------------------------------- */

static clv_status make_input(const clv_runtime *r, uint32_t i, int64_t *made, clv_tensor **out)
{
	void *data;
	clv_status st = clv_runtime_make_input(r, 0, i, NULL, made, out, &data);
	if (st == CLV_OK)
		assert_ptr_equal(data, (*out)->data);
	return st;
}

static void inputs_of_any_size_are_not_made_up(void **state)
{
	static const char *const inputs[] = {
		"input %0 f32[1099511627776] name=\"x\"\n",
		"input %0 f32[2] strides(1099511627776) name=\"x\"\n",                    /* few elements, far apart */
		"input %0 u8[1099511627776,1048576,1048576] strides(0,0,0) name=\"x\"\n", /* little memory, many elements */
		"input %0 u8[1048576,1048576,2] strides(0,0,1) name=\"x\"\n",
	};
	(void)state;
	for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
		char text[512];
		clv_runtime *r;
		clv_tensor *t;
		int64_t made = 0;
		snprintf(text, sizeof text, HEAD "%soutput %%0\n", inputs[i]);
		OK(open_with(text, 0, 0, &r));
		clv_status st = make_input(r, 0, &made, &t);
		assert_true(st == CLV_E_LIMIT || st == CLV_E_OVERFLOW);
		assert_int_equal(made, 0);
		clv_runtime_free(r);
	}
}

static void inputs_that_are_made_up_count_for_the_limit(void **state)
{
	enum { MEGA = 1 << 20 };
	const char *text = HEAD "input %0 f32[262144] name=\"x\"\ninput %1 f32[262144] name=\"y\"\n"
							"%2 = aten::relu(%0) -> f32[262144]\noutput %2\n";
	clv_runtime *r;
	clv_tensor *made[2], *own[2];
	int64_t bytes = 0;
	(void)state;
	OK(open_with(text, 0, 3 * MEGA / 2, &r));
	OK(make_input(r, 0, &bytes, &made[0]));
	FAILS(make_input(r, 1, &bytes, &made[1]), CLV_E_LIMIT, "input y takes 1048576 bytes");
	assert_int_equal(bytes, MEGA);
	own[0] = input_of(r, 0);
	own[1] = made[1] = input_of(r, 1);
	OK(run_on(r, own, 2));
	FAILS(run_on(r, made, 2), CLV_E_LIMIT, "has 1048576 of the 1572864");
	clv_tensor_free(made[0]);
	clv_tensor_free(own[0]);
	clv_tensor_free(own[1]);
	clv_runtime_free(r);
}

static void an_input_that_is_made_up_has_the_strides_of_the_plan(void **state)
{
	clv_runtime *r;
	clv_tensor *t;
	int64_t made = 0;
	(void)state;
	OK(open_with(HEAD "input %0 f32[2,3] strides(1,2) name=\"x\"\noutput %0\n", 0, 0, &r));
	OK(make_input(r, 0, &made, &t));
	assert_int_equal(made, 24);
	assert_int_equal(t->m.strides[0], 1);
	assert_memory_equal(t->data, ((float[6]){0}), 24);
	clv_tensor_free(t);
	clv_runtime_free(r);
}

/* Sums of sums, each of a value as often as an argument list can have it. */
static void looking_behind_a_view_has_an_end(void **state)
{
	enum { TIMES = 200 };
	strbuf b = STRBUF_INIT;
	clv_runtime *r;
	(void)state;
	strbuf_puts(&b, HEAD "input %0 f32[4] name=\"x\"\n");
	for (int i = 0; i < 5; i++) {
		strbuf_printf(&b, "%%%d = aten::add.Tensor(", i + 1);
		for (int k = 0; k < TIMES; k++)
			strbuf_printf(&b, "%s%%%d", k ? "," : "", i);
		strbuf_puts(&b, ") -> f32[4]\n");
	}
	strbuf_puts(&b, "%6 = aten::as_strided(%5, [2], [1], 0) -> f32[2] view-of %5\noutput %6\n");
	char *text = taken(&b);
	FAILS(open_with(text, 0, 0, &r), CLV_E_UNSUPPORTED, "may not be row-major");
	mem_free(text);
}

/* ---- names ------------------------------------------------------------------------------------------------------ */

static void outputs_in_a_long_place_have_numbers_and_share_their_sizes(void **state)
{
	char key[300], text[1024];
	clv_runtime *r;
	clv_port first = {.size = sizeof first}, second = first, third = first;
	(void)state;
	memset(key, 'k', sizeof key - 1);
	key[sizeof key - 1] = 0;
	snprintf(text, sizeof text,
	         HEAD "input %%0 f32[2] name=\"x\"\noutput {\"short\": %%0, \"%s\": [%%0, [%%0, %%0]]}\n", key);
	OK(open_with(text, 0, 0, &r));
	OK(clv_runtime_output(r, 0, &first));
	OK(clv_runtime_output(r, 1, &second));
	OK(clv_runtime_output(r, 3, &third));
	assert_string_equal(first.name, "short");
	assert_string_equal(second.name, "output");
	assert_string_equal(third.name, "output_3");
	assert_ptr_equal(first.dims, second.dims);
	assert_ptr_equal(first.dims, third.dims);
	clv_runtime_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_result_of_another_shape_than_the_operator_gives_is_an_error),
		cmocka_unit_test(sizes_that_wrap_are_errors),
		cmocka_unit_test(a_result_of_another_type_than_the_kernel_writes_is_an_error),
		cmocka_unit_test(a_result_of_other_sizes_than_the_operator_gives_is_an_error),
		cmocka_unit_test(a_complex_number_is_an_error),
		cmocka_unit_test(a_missing_tensor_is_an_error),
		cmocka_unit_test(huge_dimensions_and_none_are_no_trap),
		cmocka_unit_test(one_long_step_ends_at_its_time),
		cmocka_unit_test(making_a_plan_ready_ends_at_its_time_and_memory),
		cmocka_unit_test(loops_over_the_sizes_of_nothing_end),
		cmocka_unit_test(taps_of_a_transposed_convolution_are_not_looked_for_one_by_one),
		cmocka_unit_test(places_of_far_taps_are_not_looked_for_one_by_one),
		cmocka_unit_test(a_tensor_whose_elements_overlap_is_not_written),
		cmocka_unit_test(a_resize_to_other_sizes_than_its_scale_gives_is_refused),
		cmocka_unit_test(all_that_is_packed_is_within_the_memory_of_a_run),
		cmocka_unit_test(a_mask_with_more_than_the_plan_saw_is_an_error),
		cmocka_unit_test(values_of_an_index_are_read_where_they_are),
		cmocka_unit_test(large_integers_are_counted_exactly),
		cmocka_unit_test(inputs_of_any_size_are_not_made_up),
		cmocka_unit_test(inputs_that_are_made_up_count_for_the_limit),
		cmocka_unit_test(an_input_that_is_made_up_has_the_strides_of_the_plan),
		cmocka_unit_test(looking_behind_a_view_has_an_end),
		cmocka_unit_test(outputs_in_a_long_place_have_numbers_and_share_their_sizes),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
