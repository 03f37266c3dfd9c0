/* Passes for GPUs: linears that become one, convolutions that become products, biases that are added apart. Texts are
 * without devices, plans are moved to one. */
#include "passes.h"

static bool has_all(const char *name)
{
	return strncmp(name, "mkldnn::", 8) != 0;
}

static const optimize_spec fast = {
	.level = OPTIMIZE_FAST, .conv_as_linear = true, .bias = BIAS_APART, .has_op = has_all};

/* want NULL: nothing changes. */
static void check_on(const char *device, pass_fn run, const char *text, const char *want)
{
	check_job((job){.text = text, .run = run, .spec = fast, .device = device}, want);
}

#define HEAD "cleave-plan 1\nmodel \"M\" training=no grad=any\nsymbol B 1..64\n"
#define ENDS(v) "inputs ((%0,), {})\noutput " v "\n"

/* ---- linears of one input ------------------------------------------------------------------------------------------ */

static void check_merge(const char *text, const char *want)
{
	check_on("cuda:0", pass_merge_linears, text, want);
}

#define ATTENTION                                                                                                      \
	HEAD "scope \"\" \"M\"\nscope a \"A\"\nscope a.q \"Linear\"\nscope b \"A\"\nscope b.k \"Linear\"\n"                \
		 "input %0 f32[B,6,8] name=\"x\"\nparam @w f32[8,8]\nparam @k f32[4,8]\nparam @c f32[8]\nparam @d f32[4]\n"
#define SPLIT(x, n) "aten::view(" x ", [B, 6, " n ", 4]) -> f32[B,6," n ",4] view-of " x "\n"

static const char attention[] = ATTENTION
	"%1 = aten::linear(%0, @w, @c) -> f32[B,6,8]\n"
	"%2 = " SPLIT("%1", "2") "%3 = aten::transpose.int(%2, 1, 2) -> f32[B,2,6,4] view-of %1\n"
							 "%4 = aten::linear(%0, @k, @d) -> f32[B,6,4]\n"
							 "%5 = " SPLIT("%4", "1") "%6 = aten::transpose.int(%5, 1, 2) -> f32[B,1,6,4] view-of %4\n"
													  "%7 = aten::matmul(%3, %6) -> f32[B,2,6,6]\n" ENDS("%7");

static void linears_of_one_input_become_one(void **state)
{
	(void)state;
	check_merge(attention,
	            "%1 = aten::cat([@w, @k], 0) -> f32[12,8]\n"
	            "%2 = aten::cat([@c, @d], 0) -> f32[12]\n"
	            "%3 = aten::linear(%0, %1, %2) -> f32[B,6,12]\n"
	            "[%4, %5] = aten::split_with_sizes(%3, [8, 4], -1) -> [f32[B,6,8] view-of %3, f32[B,6,4] view-of %3]\n"
	            "%6 = aten::view(%4, [B, 6, 2, 4]) -> f32[B,6,2,4] view-of %3\n"
	            "%7 = aten::transpose.int(%6, 1, 2) -> f32[B,2,6,4] view-of %3\n"
	            "%8 = aten::view(%5, [B, 6, 1, 4]) -> f32[B,6,1,4] view-of %3\n"
	            "%9 = aten::transpose.int(%8, 1, 2) -> f32[B,1,6,4] view-of %3\n"
	            "%10 = aten::matmul(%7, %9) -> f32[B,2,6,6]\n" ENDS("%10"));
	/* gate and up */
	check_merge(ATTENTION "%1 = aten::linear(%0, @w, none) -> f32[B,6,8]\n"
	                      "%2 = aten::silu(%1) -> f32[B,6,8]\n"
	                      "%3 = aten::linear(%0, @w, none) -> f32[B,6,8]\n"
	                      "%4 = aten::mul.Tensor(%2, %3) -> f32[B,6,8]\n" ENDS("%4"),
	            "%1 = aten::cat([@w, @w], 0) -> f32[16,8]\n"
	            "%2 = aten::linear(%0, %1, none) -> f32[B,6,16]\n"
	            "[%3, %4] = aten::split_with_sizes(%2, [8, 8], -1) -> [f32[B,6,8] view-of %2, f32[B,6,8] view-of %2]\n"
	            "%5 = aten::silu(%3) -> f32[B,6,8]\n"
	            "%6 = aten::mul.Tensor(%5, %4) -> f32[B,6,8]\n" ENDS("%6"));
}

/* A reshape that copied before, as of what was expanded, copies now. */
static void copies_of_results_are_no_hindrance(void **state)
{
	(void)state;
	job j = {.text = ATTENTION "%1 = aten::linear(%0, @k, none) -> f32[B,6,4]\n"
	                           "%2 = aten::unsqueeze(%1, 1) -> f32[B,1,6,4] view-of %1\n"
	                           "%3 = aten::expand(%2, [B, 2, 6, 4], false) -> f32[B,2,6,4] view-of %1\n"
	                           "%4 = aten::reshape(%3, [2*B, 6, 4]) -> f32[2*B,6,4]\n"
	                           "%5 = aten::linear(%0, @k, none) -> f32[B,6,4]\n"
	                           "%6 = aten::relu(%5) -> f32[B,6,4]\n" ENDS("(%4, %6)"),
	         .run = pass_merge_linears,
	         .spec = fast,
	         .device = "cuda:1"};
	OK(run_job(&j));
	assert_int_equal(j.changes, 2);
	mem_free(j.out);
	check_merge(ATTENTION "%1 = aten::linear(%0, @k, none) -> f32[B,6,4]\n"
	                      "%2 = aten::reshape(%1, [B, 24]) -> f32[B,24] view-of %1\n"
	                      "%3 = aten::relu(%2) -> f32[B,24]\n"
	                      "%4 = aten::linear(%0, @k, none) -> f32[B,6,4]\n"
	                      "%5 = aten::relu(%4) -> f32[B,6,4]\n" ENDS("(%3, %5)"),
	            NULL);
}

static void products_that_add_become_one(void **state)
{
	(void)state;
	check_merge(HEAD "input %0 f16[B,8] name=\"x\"\nparam @w f16[8,4]\nparam @c f16[4]\n"
	                 "%1 = aten::addmm(@c, %0, @w, 1, 1) -> f16[B,4]\n"
	                 "%2 = aten::addmm(@c, %0, @w, 1, 1) -> f16[B,4]\n"
	                 "%3 = aten::add.Tensor(%1, %2, 1) -> f16[B,4]\n" ENDS("%3"),
	            "%1 = aten::cat([@w, @w], 1) -> f16[8,8]\n"
	            "%2 = aten::cat([@c, @c], 0) -> f16[8]\n"
	            "%3 = aten::addmm(%2, %0, %1, 1, 1) -> f16[B,8]\n"
	            "[%4, %5] = aten::split_with_sizes(%3, [4, 4], -1) -> [f16[B,4] view-of %3, f16[B,4] view-of %3]\n"
	            "%6 = aten::add.Tensor(%4, %5, 1) -> f16[B,4]\n" ENDS("%6"));
}

#define LINEAR(n) "%" n " = aten::linear(%0, @w, @c) -> f32[B,6,8]"
#define SUM(n) "%" n " = aten::add.Tensor(%1, %2, 1) -> f32[B,6,8]\n" ENDS("%" n)

static void linears_that_stay_apart(void **state)
{
	(void)state;
	/* as they are they would go together */
	job j = {.text = ATTENTION LINEAR("1") "\n" LINEAR("2") "\n" SUM("3"), .run = pass_merge_linears, .spec = fast};
	j.device = "cuda";
	OK(run_job(&j));
	assert_int_equal(j.changes, 2);
	mem_free(j.out);
	/* not on a GPU */
	check_on(NULL, pass_merge_linears, attention, NULL);
	/* somebody needs one without gaps: a view that puts dimensions together, an operator that is not known, the caller */
	check_merge(ATTENTION LINEAR("1") "\n" LINEAR("2") "\n"
	                                                   "%3 = aten::view(%2, [6*B, 8]) -> f32[6*B,8] view-of %2\n"
	                                                   "%4 = aten::relu(%3) -> f32[6*B,8]\n" SUM("5"),
	            NULL);
	check_merge(
		ATTENTION LINEAR("1") "\n" LINEAR("2") "\n"
											   "%3 = aten::transpose.int(%2, 0, 1) -> f32[6,B,8] view-of %2\n"
											   "%4 = aten::view(%3, [6, 8*B]) -> f32[6,8*B] view-of %2\n" SUM("5"),
		NULL);
	check_merge(ATTENTION LINEAR("1") "\n" LINEAR("2") "\n%3 = aten::cumsum(%2, 1, none) -> f32[B,6,8]\n" SUM("4"),
	            NULL);
	check_merge(ATTENTION LINEAR("1") "\n" LINEAR("2") "\n" ENDS("(%1, %2)"), NULL);
	check_merge(
		ATTENTION LINEAR("1") "\n" LINEAR("2") "\n%3 = aten::slice.Tensor(%2, 1, 0, 2, 1) -> f32[B,2,8] view-of "
											   "%2\n" ENDS("(%1, %3)"),
		NULL);
	/* one is written, or their input in between */
	check_merge(
		ATTENTION LINEAR("1") "\n" LINEAR("2") "\n%3 = aten::relu_(%2) -> f32[B,6,8] view-of %2 writes %2\n" SUM("4"),
		NULL);
	check_merge(HEAD "input %0 f32[B,6,8] name=\"x\"\nparam @w f32[8,8]\nparam @c f32[8]\n"
	                 "%1 = aten::clone(%0, none) -> f32[B,6,8]\n"
	                 "%2 = aten::linear(%1, @w, @c) -> f32[B,6,8]\n"
	                 "%3 = aten::zero_(%1) -> f32[B,6,8] view-of %1 writes %1\n"
	                 "%4 = aten::linear(%1, @w, @c) -> f32[B,6,8]\n"
	                 "%5 = aten::add.Tensor(%2, %4, 1) -> f32[B,6,8]\n" ENDS("%5"),
	            NULL);
	/* one has no bias, another mode, or is of a module elsewhere */
	check_merge(ATTENTION LINEAR("1") "\n%2 = aten::linear(%0, @w, none) -> f32[B,6,8]\n" SUM("3"), NULL);
	check_merge(ATTENTION LINEAR("1") "\n" LINEAR("2") " {nograd}\n" SUM("3"), NULL);
	check_merge(ATTENTION LINEAR("1") " {autocast=cpu:f16}\n" LINEAR("2") " {autocast=cpu:f16}\n" SUM("3"), NULL);
	check_merge(ATTENTION LINEAR("1") " in a.q\n" LINEAR("2") " in b.k\n" SUM("3"), NULL);
	/* a weight comes with the call */
	check_merge(HEAD "input %0 f32[B,6,8] name=\"x\"\ninput %1 f32[8,8] name=\"w\"\n"
	                 "%2 = aten::linear(%0, %1, none) -> f32[B,6,8]\n"
	                 "%3 = aten::linear(%0, %1, none) -> f32[B,6,8]\n"
	                 "%4 = aten::add.Tensor(%2, %3, 1) -> f32[B,6,8]\ninputs ((%0, %1), {})\noutput %4\n",
	            NULL);
}

/* ---- convolutions of single pixels --------------------------------------------------------------------------------- */

static void check_conv(const char *text, const char *want)
{
	check_on("cuda:0", pass_conv_as_linear, text, want);
}

#define PIXELS HEAD "input %0 f32[B,8,5,7] name=\"x\"\nparam @w f32[4,8,1,1]\nparam @c f32[4]\n"
#define LAID "%1 = aten::clone(%0, memory:channels_last) -> f32[B,8,5,7]\n"
#define CONV "%2 = aten::conv2d(%1, @w, @c, [1, 1], [0, 0], [1, 1], 1) -> f32[B,4,5,7]\n"
#define BACK(n, v) "%" n " = aten::clone(" v ", memory:contiguous) -> f32[B,4,5,7]\n" ENDS("%" n)
#define MATRIX                                                                                                         \
	"%4 = aten::squeeze.dim(@w, 3) -> f32[4,8,1] view-of @w\n"                                                         \
	"%5 = aten::squeeze.dim(%4, 2) -> f32[4,8] view-of @w\n"                                                           \
	"%6 = aten::t(%5) -> f32[8,4] view-of @w\n"
#define ROWS                                                                                                           \
	LAID "%2 = aten::permute(%1, [0, 2, 3, 1]) -> f32[B,5,7,8] view-of %1\n"                                           \
		 "%3 = aten::reshape(%2, [35*B, 8]) -> f32[35*B,8] view-of %1\n" MATRIX
#define IMAGE                                                                                                          \
	"%8 = aten::view(%7, [B, 5, 7, 4]) -> f32[B,5,7,4] view-of %7\n"                                                   \
	"%9 = aten::permute(%8, [0, 3, 1, 2]) -> f32[B,4,5,7] view-of %7\n"

static const char conv[] = PIXELS LAID CONV BACK("3", "%2");

static void a_convolution_of_pixels_is_a_product(void **state)
{
	(void)state;
	check_conv(conv, ROWS "%7 = aten::addmm(@c, %3, %6, 1, 1) -> f32[35*B,4]\n" IMAGE BACK("10", "%9"));
	check_conv(PIXELS LAID "%2 = aten::conv2d(%1, @w, none, [1, 1], [0, 0], [1, 1], 1) -> f32[B,4,5,7]\n"
	                       "%3 = aten::relu(%2) -> f32[B,4,5,7]\n" BACK("4", "%3"),
	           ROWS "%7 = aten::mm(%3, %6) -> f32[35*B,4]\n" IMAGE
	                "%10 = aten::relu(%9) -> f32[B,4,5,7]\n" BACK("11", "%10"));
}

static void the_product_does_a_relu(void **state)
{
	(void)state;
	const char *want =
		ROWS "%7 = aten::_addmm_activation(@c, %3, %6, 1, 1, false) -> f32[35*B,4]\n" IMAGE BACK("10", "%9");
	check_conv(PIXELS LAID CONV "%3 = aten::relu(%2) -> f32[B,4,5,7]\n" BACK("4", "%3"), want);
	check_conv(PIXELS LAID CONV "%3 = aten::relu_(%2) -> f32[B,4,5,7] view-of %2 writes %2\n" BACK("4", "%3"), want);
	/* others write its memory, which is the product's */
	check_conv(PIXELS LAID CONV "%3 = aten::silu_(%2) -> f32[B,4,5,7] view-of %2 writes %2\n" BACK("4", "%3"),
	           ROWS "%7 = aten::addmm(@c, %3, %6, 1, 1) -> f32[35*B,4]\n" IMAGE
	                "%10 = aten::silu_(%9) -> f32[B,4,5,7] view-of %7 writes %9\n" BACK("11", "%10"));
}

static void one_pixel_has_no_layout(void **state)
{
	(void)state;
	check_conv(HEAD "input %0 f32[B,8,1,1] name=\"x\"\nparam @w f32[4,8,1,1]\n"
	                "%1 = aten::conv2d(%0, @w, none, [1, 1], [0, 0], [1, 1], 1) -> f32[B,4,1,1]\n"
	                "%2 = aten::sigmoid(%1) -> f32[B,4,1,1]\n" ENDS("%2"),
	           "%1 = aten::permute(%0, [0, 2, 3, 1]) -> f32[B,1,1,8] view-of %0\n"
	           "%2 = aten::reshape(%1, [B, 8]) -> f32[B,8] view-of %0\n"
	           "%3 = aten::squeeze.dim(@w, 3) -> f32[4,8,1] view-of @w\n"
	           "%4 = aten::squeeze.dim(%3, 2) -> f32[4,8] view-of @w\n"
	           "%5 = aten::t(%4) -> f32[8,4] view-of @w\n"
	           "%6 = aten::mm(%2, %5) -> f32[B,4]\n"
	           "%7 = aten::view(%6, [B, 1, 1, 4]) -> f32[B,1,1,4] view-of %6\n"
	           "%8 = aten::permute(%7, [0, 3, 1, 2]) -> f32[B,4,1,1] view-of %6\n"
	           "%9 = aten::sigmoid(%8) -> f32[B,4,1,1]\n" ENDS("%9"));
}

static void convolutions_that_stay(void **state)
{
	(void)state;
	check_on(NULL, pass_conv_as_linear, conv, NULL);
	/* row-major, and an operator that gives row-major images on a GPU */
	check_conv(PIXELS "%1 = aten::exp(%0) -> f32[B,8,5,7]\n" CONV BACK("3", "%2"), NULL);
	check_conv(PIXELS LAID "%2 = aten::group_norm(%1, 2, none, none, 1e-05, true) -> f32[B,8,5,7]\n"
	                       "%3 = aten::conv2d(%2, @w, @c, [1, 1], [0, 0], [1, 1], 1) -> f32[B,4,5,7]\n" BACK("4", "%3"),
	           NULL);
	/* a stride, a border, groups */
	check_conv(PIXELS LAID
	           "%2 = aten::conv2d(%1, @w, @c, [2, 2], [0, 0], [1, 1], 1) -> f32[B,4,3,4]\n"
	           "%3 = aten::relu(%2) -> f32[B,4,3,4]\n%4 = aten::clone(%3, none) -> f32[B,4,3,4]\n" ENDS("%4"),
	           NULL);
	check_conv(PIXELS LAID "%2 = aten::conv2d(%1, @w, @c, [1, 1], [1, 1], [1, 1], 1) -> f32[B,4,7,9]\n"
	                       "%3 = aten::clone(%2, memory:contiguous) -> f32[B,4,7,9]\n" ENDS("%3"),
	           NULL);
	check_conv(HEAD "input %0 f32[B,8,5,7] name=\"x\"\nparam @w f32[4,4,1,1]\nparam @c f32[4]\n" LAID
	                "%2 = aten::conv2d(%1, @w, @c, [1, 1], [0, 0], [1, 1], 2) -> f32[B,4,5,7]\n" BACK("3", "%2"),
	           NULL);
	/* cuDNN adds, and does the relu, in one */
	check_conv(PIXELS LAID CONV "%3 = aten::slice.Tensor(%1, 1, 0, 4, 1) -> f32[B,4,5,7] view-of %1\n"
	                            "%4 = aten::add.Tensor(%2, %3, 1) -> f32[B,4,5,7]\n"
	                            "%5 = aten::relu(%4) -> f32[B,4,5,7]\n" BACK("6", "%5"),
	           NULL);
	/* somebody sees its strides */
	check_conv(PIXELS LAID CONV ENDS("%2"), NULL);
	check_conv(PIXELS LAID CONV "%3 = aten::relu_(%2) -> f32[B,4,5,7] view-of %2 writes %2\n" ENDS("%3"), NULL);
}

static void depthwise_convolutions_are_not_joined(void **state)
{
	(void)state;
	check_on("cuda:0", pass_fuse,
	         HEAD "input %0 f32[B,8,5,7] name=\"x\"\nparam @w f32[8,1,3,3]\n"
	              "%1 = aten::conv2d(%0, @w, none, [1, 1], [1, 1], [1, 1], 8) -> f32[B,8,5,7]\n"
	              "%2 = aten::relu(%1) -> f32[B,8,5,7]\n" ENDS("%2"),
	         NULL);
	check_on("cuda:0", pass_fuse,
	         HEAD "input %0 f32[B,8,5,7] name=\"x\"\nparam @w f32[8,4,3,3]\n"
	              "%1 = aten::conv2d(%0, @w, none, [1, 1], [1, 1], [1, 1], 2) -> f32[B,8,5,7]\n"
	              "%2 = aten::relu(%1) -> f32[B,8,5,7]\n" ENDS("%2"),
	         "%1 = aten::cudnn_convolution_relu(%0, @w, none, [1, 1], [1, 1], [1, 1], 2) -> f32[B,8,5,7]\n" ENDS("%1"));
}

/* ---- biases apart -------------------------------------------------------------------------------------------------- */

static void check_bias(const char *text, const char *want)
{
	check_on("cuda:0", pass_bias_apart, text, want);
}

#define TOKENS HEAD "input %0 f32[B,6,8] name=\"x\"\nparam @w f32[8,8]\nparam @c f32[8]\n"
#define PRODUCT "%1 = aten::linear(%0, @w, @c) -> f32[B,6,8]\n"

static void a_bias_is_added_to_the_new_product(void **state)
{
	(void)state;
	check_bias(TOKENS PRODUCT ENDS("%1"),
	           "%1 = aten::linear(%0, @w, none) -> f32[B,6,8]\n"
	           "%2 = aten::add_.Tensor(%1, @c, 1) -> f32[B,6,8] view-of %1 writes %1\n" ENDS("%2"));
	check_bias(HEAD "input %0 bf16[B,8] name=\"x\"\nparam @w bf16[8,4]\nparam @c bf16[4]\n"
	                "%1 = aten::addmm(@c, %0, @w, 1, 1) -> bf16[B,4]\n"
	                "%2 = aten::view(%1, [B, 2, 2]) -> bf16[B,2,2] view-of %1\n"
	                "%3 = aten::gelu_(%2, \"none\") -> bf16[B,2,2] view-of %1 writes %2\n" ENDS("%3"),
	           "%1 = aten::mm(%0, @w) -> bf16[B,4]\n"
	           "%2 = aten::add_.Tensor(%1, @c, 1) -> bf16[B,4] view-of %1 writes %1\n"
	           "%3 = aten::view(%2, [B, 2, 2]) -> bf16[B,2,2] view-of %1\n"
	           "%4 = aten::gelu_(%3, \"none\") -> bf16[B,2,2] view-of %1 writes %3\n" ENDS("%4"));
}

#define IN_PLACE                                                                                                       \
	"%1 = aten::add.Tensor(%0, @c, 1) -> f32[B,6,8]\n"                                                                 \
	"%2 = aten::reshape(%1, [6*B, 8]) -> f32[6*B,8] view-of %1\n"                                                      \
	"%3 = aten::reshape(%0, [6*B, 8]) -> f32[6*B,8] view-of %0\n"                                                      \
	"%4 = aten::t(@w) -> f32[8,8] view-of @w\n"                                                                        \
	"%5 = aten::addmm_(%2, %3, %4, 1, 1) -> f32[6*B,8] view-of %1 writes %2\n"                                         \
	"%6 = aten::view(%5, [B, 6, 8]) -> f32[B,6,8] view-of %1\n"

static const char residual[] = TOKENS PRODUCT "%2 = aten::add.Tensor(%1, %0, 1) -> f32[B,6,8]\n"
											  "%3 = aten::relu_(%2) -> f32[B,6,8] view-of %2 writes %2\n" ENDS("%3");

static void what_the_result_is_added_to_takes_the_bias(void **state)
{
	(void)state;
	const char *want = IN_PLACE "%7 = aten::relu_(%6) -> f32[B,6,8] view-of %1 writes %6\n" ENDS("%7");
	check_bias(residual, want);
	check_bias(TOKENS PRODUCT "%2 = aten::add_.Tensor(%1, %0, 1) -> f32[B,6,8] view-of %1 writes %1\n"
	                          "%3 = aten::relu_(%2) -> f32[B,6,8] view-of %1 writes %2\n" ENDS("%3"),
	           want);
	check_bias(TOKENS PRODUCT "%2 = aten::add.Tensor(%0, %1, 1) -> f32[B,6,8]\n" ENDS("%2"), IN_PLACE ENDS("%6"));
	/* through a view; one product after the other */
	check_bias(HEAD "input %0 f32[B,6,8] name=\"x\"\nparam @w f32[8,8]\nparam @c f32[8]\n"
	                "%1 = aten::view(%0, [6*B, 8]) -> f32[6*B,8] view-of %0\n"
	                "%2 = aten::addmm(@c, %1, @w, 1, 1) -> f32[6*B,8]\n"
	                "%3 = aten::view(%2, [B, 6, 8]) -> f32[B,6,8] view-of %2\n"
	                "%4 = aten::add.Tensor(%3, %0, 1) -> f32[B,6,8]\n"
	                "%5 = aten::linear(%4, @w, @c) -> f32[B,6,8]\n" ENDS("%5"),
	           "%1 = aten::view(%0, [6*B, 8]) -> f32[6*B,8] view-of %0\n"
	           "%2 = aten::add.Tensor(%0, @c, 1) -> f32[B,6,8]\n"
	           "%3 = aten::reshape(%2, [6*B, 8]) -> f32[6*B,8] view-of %2\n"
	           "%4 = aten::addmm_(%3, %1, @w, 1, 1) -> f32[6*B,8] view-of %2 writes %3\n"
	           "%5 = aten::view(%4, [B, 6, 8]) -> f32[B,6,8] view-of %2\n"
	           "%6 = aten::linear(%5, @w, none) -> f32[B,6,8]\n"
	           "%7 = aten::add_.Tensor(%6, @c, 1) -> f32[B,6,8] view-of %6 writes %6\n" ENDS("%7"));
	/* matrices need no views */
	check_bias(HEAD "input %0 f32[B,8] name=\"x\"\nparam @w f32[8,8]\nparam @c f32[8]\n"
	                "%1 = aten::addmm(@c, %0, @w, 1, 1) -> f32[B,8]\n"
	                "%2 = aten::add.Tensor(%1, %0, 1) -> f32[B,8]\n" ENDS("%2"),
	           "%1 = aten::add.Tensor(%0, @c, 1) -> f32[B,8]\n"
	           "%2 = aten::addmm_(%1, %0, @w, 1, 1) -> f32[B,8] view-of %1 writes %1\n" ENDS("%2"));
}

#define APART                                                                                                          \
	"%1 = aten::linear(%0, @w, none) -> f32[B,6,8]\n"                                                                  \
	"%2 = aten::add_.Tensor(%1, @c, 1) -> f32[B,6,8] view-of %1 writes %1\n"

static void sums_that_are_made_as_before(void **state)
{
	(void)state;
	/* a weighted sum, a sum with itself, with a smaller tensor, into the other */
	check_bias(TOKENS PRODUCT "%2 = aten::add.Tensor(%1, %0, 2) -> f32[B,6,8]\n" ENDS("%2"),
	           APART "%3 = aten::add.Tensor(%2, %0, 2) -> f32[B,6,8]\n" ENDS("%3"));
	check_bias(TOKENS PRODUCT "%2 = aten::add.Tensor(%1, %1, 1) -> f32[B,6,8]\n" ENDS("%2"),
	           APART "%3 = aten::add.Tensor(%2, %2, 1) -> f32[B,6,8]\n" ENDS("%3"));
	check_bias(TOKENS PRODUCT "%2 = aten::add.Tensor(%1, @c, 1) -> f32[B,6,8]\n" ENDS("%2"),
	           APART "%3 = aten::add.Tensor(%2, @c, 1) -> f32[B,6,8]\n" ENDS("%3"));
	check_bias(TOKENS PRODUCT "%2 = aten::add_.Tensor(%0, %1, 1) -> f32[B,6,8] view-of %0 writes %0\n" ENDS("%2"),
	           APART "%3 = aten::add_.Tensor(%0, %2, 1) -> f32[B,6,8] view-of %0 writes %0\n" ENDS("%3"));
	/* the result is read twice */
	check_bias(TOKENS PRODUCT "%2 = aten::add.Tensor(%1, %0, 1) -> f32[B,6,8]\n" ENDS("(%1, %2)"),
	           APART "%3 = aten::add.Tensor(%2, %0, 1) -> f32[B,6,8]\n" ENDS("(%2, %3)"));
	/* the layout of the other is not known */
	check_bias(TOKENS PRODUCT "%2 = aten::transpose.int(%0, 1, 2) -> f32[B,6,8] view-of %0\n"
	                          "%3 = aten::add.Tensor(%1, %2, 1) -> f32[B,6,8]\n" ENDS("%3"),
	           APART "%3 = aten::transpose.int(%0, 1, 2) -> f32[B,6,8] view-of %0\n"
	                 "%4 = aten::add.Tensor(%2, %3, 1) -> f32[B,6,8]\n" ENDS("%4"));
	/* a view has other rows: the bias does not fit them */
	check_bias(HEAD "input %0 f32[B,4] name=\"x\"\nparam @w f32[4,4]\nparam @c f32[4]\n"
	                "%1 = aten::relu(%0) -> f32[B,4]\n%2 = aten::view(%1, [B, 2, 2]) -> f32[B,2,2] view-of %1\n"
	                "%3 = aten::addmm(@c, %0, @w, 1, 1) -> f32[B,4]\n"
	                "%4 = aten::view(%3, [B, 2, 2]) -> f32[B,2,2] view-of %3\n"
	                "%5 = aten::add.Tensor(%4, %2, 1) -> f32[B,2,2]\n" ENDS("%5"),
	           "%1 = aten::relu(%0) -> f32[B,4]\n%2 = aten::view(%1, [B, 2, 2]) -> f32[B,2,2] view-of %1\n"
	           "%3 = aten::mm(%0, @w) -> f32[B,4]\n"
	           "%4 = aten::add_.Tensor(%3, @c, 1) -> f32[B,4] view-of %3 writes %3\n"
	           "%5 = aten::view(%4, [B, 2, 2]) -> f32[B,2,2] view-of %3\n"
	           "%6 = aten::add.Tensor(%5, %2, 1) -> f32[B,2,2]\n" ENDS("%6"));
}

static void biases_that_stay(void **state)
{
	(void)state;
	optimize_spec sums = fast;
	sums.bias = BIAS_IN_SUMS;
	check_job((job){.text = TOKENS PRODUCT ENDS("%1"), .run = pass_bias_apart, .spec = sums, .device = "cuda"}, NULL);
	check_job((job){.text = TOKENS PRODUCT "%2 = aten::add.Tensor(%0, %1, 1) -> f32[B,6,8]\n" ENDS("%2"),
	                .run = pass_bias_apart,
	                .spec = sums,
	                .device = "cuda"},
	          IN_PLACE ENDS("%6"));
	check_on(NULL, pass_bias_apart, residual, NULL);
	check_bias(TOKENS "%1 = aten::linear(%0, @w, none) -> f32[B,6,8]\n" ENDS("%1"), NULL);
	check_bias(TOKENS "%1 = aten::linear(%0, @w, @c) -> f32[B,6,8] {autocast=cpu:f16}\n" ENDS("%1"), NULL);
	check_bias(HEAD "input %0 f32[8,8] name=\"x\"\nparam @w f32[8,8]\n"
	                "%1 = aten::addmm(@w, %0, @w, 1, 1) -> f32[8,8]\n" ENDS("%1"),
	           NULL);
	check_bias(HEAD "input %0 f32[8,8] name=\"x\"\nparam @w f32[8,8]\nparam @c f32[8]\n"
	                "%1 = aten::addmm(@c, %0, @w, 2, 1) -> f32[8,8]\n" ENDS("%1"),
	           NULL);
	check_bias(HEAD "input %0 f64[B,8] name=\"x\"\nparam @w f64[8,8]\nparam @c f64[8]\n"
	                "%1 = aten::linear(%0, @w, @c) -> f64[B,8]\n" ENDS("%1"),
	           NULL);
}

/* ---- all ----------------------------------------------------------------------------------------------------------- */

static void passes_do_nothing_unless_asked(void **state)
{
	(void)state;
	optimize_spec plain = {.level = OPTIMIZE_FAST, .has_op = has_all};
	check_job((job){.text = conv, .run = pass_conv_as_linear, .spec = plain, .device = "cuda:0"}, NULL);
	check_job((job){.text = residual, .run = pass_bias_apart, .spec = plain, .device = "cuda:0"}, NULL);
}

static void memory_may_run_out_anywhere(void **state)
{
	(void)state;
	job merge = {.text = attention, .run = pass_merge_linears, .spec = fast, .device = "cuda:0"};
	job product = {.text = conv, .run = pass_conv_as_linear, .spec = fast, .device = "cuda:0"};
	job apart = {.text = residual, .run = pass_bias_apart, .spec = fast, .device = "cuda:0"};
	assert_true(sweep_faults(attempt_job, &merge, CLV_OK) > 20);
	assert_true(sweep_faults(attempt_job, &product, CLV_OK) > 20);
	assert_true(sweep_faults(attempt_job, &apart, CLV_OK) > 20);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(linears_of_one_input_become_one),
		cmocka_unit_test(copies_of_results_are_no_hindrance),
		cmocka_unit_test(products_that_add_become_one),
		cmocka_unit_test(linears_that_stay_apart),
		cmocka_unit_test(a_convolution_of_pixels_is_a_product),
		cmocka_unit_test(the_product_does_a_relu),
		cmocka_unit_test(one_pixel_has_no_layout),
		cmocka_unit_test(convolutions_that_stay),
		cmocka_unit_test(depthwise_convolutions_are_not_joined),
		cmocka_unit_test(a_bias_is_added_to_the_new_product),
		cmocka_unit_test(what_the_result_is_added_to_takes_the_bias),
		cmocka_unit_test(sums_that_are_made_as_before),
		cmocka_unit_test(biases_that_stay),
		cmocka_unit_test(passes_do_nothing_unless_asked),
		cmocka_unit_test(memory_may_run_out_anywhere),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
