/* Folding of batch normalizations and joining of nodes: text of a plan in, text out. */
#include "passes.h"

static bool has_all(const char *name)
{
	return !strncmp(name, "mkldnn::", 8) || !strncmp(name, "aten::cudnn", 11);
}

static const optimize_spec fast = {.level = OPTIMIZE_FAST, .channels_last = true, .has_op = has_all};

/* NULL: nothing changes. */
static void check_fold(const char *text, const char *want)
{
	check_job((job){.text = text, .run = pass_fold_batch_norm, .spec = fast}, want);
}

/* ---- batch normalization ------------------------------------------------------------------------------------------- */

#define HEAD "cleave-plan 1\nmodel \"M\" training=no grad=any\n"
#define NORM(c)                                                                                                        \
	"param @g f32[" c "]\nparam @b f32[" c "]\nbuffer @m f32[" c "]\nbuffer @v f32[" c "]\n"                           \
	"buffer @w2 f32[" c "]\n"

static const char conv_norm[] = HEAD "symbol B 1..64\ninput %0 f32[B,3,8,8] name=\"x\"\nparam @w f32[4,3,3,3]\n" NORM(
	"4") "%1 = aten::conv2d(%0, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,4,8,8]\n"
		 "%2 = aten::batch_norm(%1, @g, @b, @m, @v, false, 0.1, 1e-05, true) -> f32[B,4,8,8]\n"
		 "%3 = aten::relu_(%2) -> f32[B,4,8,8] view-of %2 writes %2\n"
		 "inputs ((%0,), {})\n"
		 "output %3\n";

static const char conv_norm_folded[] = "%1 = aten::add.Scalar(@v, 1e-05, 1) -> f32[4]\n"
									   "%2 = aten::rsqrt(%1) -> f32[4]\n"
									   "%3 = aten::mul.Tensor(%2, @g) -> f32[4]\n"
									   "%4 = aten::view(%3, [4, 1, 1, 1]) -> f32[4,1,1,1] view-of %3\n"
									   "%5 = aten::mul.Tensor(@w, %4) -> f32[4,3,3,3]\n"
									   "%6 = aten::neg(@m) -> f32[4]\n"
									   "%7 = aten::mul.Tensor(%6, %3) -> f32[4]\n"
									   "%8 = aten::add.Tensor(%7, @b, 1) -> f32[4]\n"
									   "%9 = aten::conv2d(%0, %5, %8, [1, 1], [1, 1], [1, 1], 1) -> f32[B,4,8,8]\n"
									   "%10 = aten::relu_(%9) -> f32[B,4,8,8] view-of %9 writes %9\n"
									   "inputs ((%0,), {})\n"
									   "output %10\n";

static void a_normalization_goes_into_the_convolution_before_it(void **state)
{
	(void)state;
	check_fold(conv_norm, conv_norm_folded);
}

static void a_transposed_convolution_has_its_channels_second(void **state)
{
	(void)state;
	check_fold(HEAD "input %0 f32[2,3,8] name=\"x\"\nparam @w f32[3,4,3]\nparam @c f32[4]\n" NORM(
				   "4") "%1 = aten::conv_transpose1d(%0, @w, @c, [1], [1], [0], 1, [1]) -> f32[2,4,8]\n"
	                    "%2 = aten::batch_norm(%1, none, none, @m, @v, false, 0.1, 1e-05, true) -> f32[2,4,8]\n"
	                    "inputs ((%0,), {})\noutput %2\n",
	           "%1 = aten::add.Scalar(@v, 1e-05, 1) -> f32[4]\n"
	           "%2 = aten::rsqrt(%1) -> f32[4]\n"
	           "%3 = aten::view(%2, [1, 4, 1]) -> f32[1,4,1] view-of %2\n"
	           "%4 = aten::mul.Tensor(@w, %3) -> f32[3,4,3]\n"
	           "%5 = aten::sub.Tensor(@c, @m, 1) -> f32[4]\n"
	           "%6 = aten::mul.Tensor(%5, %2) -> f32[4]\n"
	           "%7 = aten::conv_transpose1d(%0, %4, %6, [1], [1], [0], 1, [1]) -> f32[2,4,8]\n"
	           "inputs ((%0,), {})\noutput %7\n");
}

static void halves_are_folded_in_f32(void **state)
{
	(void)state;
	check_fold(HEAD "input %0 bf16[2,3] name=\"x\"\nparam @w bf16[4,3]\n" NORM(
				   "4") "%1 = aten::linear(%0, @w, none) -> bf16[2,4]\n"
	                    "%2 = aten::batch_norm(%1, none, @b, @m, @v, false, 0.1, 0.5, true) -> bf16[2,4]\n"
	                    "inputs ((%0,), {})\noutput %2\n",
	           "%1 = aten::add.Scalar(@v, 0.5, 1) -> f32[4]\n"
	           "%2 = aten::rsqrt(%1) -> f32[4]\n"
	           "%3 = aten::view(%2, [4, 1]) -> f32[4,1] view-of %2\n"
	           "%4 = aten::to.dtype(@w, dtype:f32, false, false, none) -> f32[4,3]\n"
	           "%5 = aten::mul.Tensor(%4, %3) -> f32[4,3]\n"
	           "%6 = aten::to.dtype(%5, dtype:bf16, false, false, none) -> bf16[4,3]\n"
	           "%7 = aten::neg(@m) -> f32[4]\n"
	           "%8 = aten::mul.Tensor(%7, %2) -> f32[4]\n"
	           "%9 = aten::add.Tensor(%8, @b, 1) -> f32[4]\n"
	           "%10 = aten::to.dtype(%9, dtype:bf16, false, false, none) -> bf16[4]\n"
	           "%11 = aten::linear(%0, %6, %10) -> bf16[2,4]\n"
	           "inputs ((%0,), {})\noutput %11\n");
}

static void statistics_that_nobody_reads_do_not_hinder(void **state)
{
	(void)state;
	job j = {.run = pass_fold_batch_norm, .spec = fast};
	j.text = HEAD "input %0 f32[2,3,8,8] name=\"x\"\nparam @w f32[4,3,3,3]\n" NORM(
		"4") "%1 = aten::convolution(%0, @w, none, [1, 1], [1, 1], [1, 1], false, [0, 0], 1) -> f32[2,4,8,8]\n"
			 "%2, %3, %4 = aten::_native_batch_norm_legit_no_training(%1, @g, @b, @m, @v, 0.1, 1e-05) -> "
			 "f32[2,4,8,8], f32[0], f32[0]\n"
			 "inputs ((%0,), {})\noutput %2\n";
	OK(run_job(&j));
	assert_int_equal(j.changes, 1);
	assert_null(strstr(j.out, "batch_norm"));
	mem_free(j.out);
}

#define CONV "%1 = aten::conv2d(%0, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[2,4,8,8]"
#define BN "aten::batch_norm(%1, @g, @b, @m, @v, false, 0.1, 1e-05, true) -> f32[2,4,8,8]"
#define IMAGE HEAD "input %0 f32[2,3,8,8] name=\"x\"\nparam @w f32[4,3,3,3]\n" NORM("4")
#define ENDS(v) "inputs ((%0,), {})\noutput " v "\n"

static void what_is_not_folded(void **state)
{
	(void)state;
	/* its statistics are those of the batch */
	check_fold(IMAGE CONV
	           "\n%2 = aten::batch_norm(%1, @g, @b, @m, @v, true, 0.1, 1e-05, true) -> f32[2,4,8,8]\n" ENDS("%2"),
	           NULL);
	/* somebody else reads the convolution */
	check_fold(IMAGE CONV "\n%2 = " BN "\n%3 = aten::relu(%1) -> f32[2,4,8,8]\n" ENDS("(%2, %3)"), NULL);
	check_fold(IMAGE CONV "\n%2 = " BN "\n" ENDS("(%1, %2)"), NULL);
	/* it is written before the normalization reads it, or seen through a view */
	check_fold(IMAGE CONV "\n%2 = aten::relu_(%1) -> f32[2,4,8,8] view-of %1 writes %1\n%3 = " BN "\n" ENDS("%3"),
	           NULL);
	check_fold(IMAGE CONV "\n%2 = aten::view(%1, [512]) -> f32[512] view-of %1\n%3 = " BN "\n" ENDS("(%2, %3)"), NULL);
	/* a parameter is written in the run */
	check_fold(IMAGE "%1 = aten::mul_.Tensor(@g, num(2.0)) -> f32[4] view-of @g writes @g\n"
	                 "%2 = aten::conv2d(%0, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[2,4,8,8]\n"
	                 "%3 = aten::batch_norm(%2, @g, @b, @m, @v, false, 0.1, 1e-05, true) -> f32[2,4,8,8]\n" ENDS("%3"),
	           NULL);
	/* autocast decides which type the convolution has */
	check_fold(IMAGE CONV " {autocast=cpu:bf16}\n%2 = " BN " {autocast=cpu:bf16}\n" ENDS("%2"), NULL);
	/* an image without a batch: channels of the two are not the same */
	check_fold(HEAD "input %0 f32[3,4,8] name=\"x\"\nparam @w f32[4,3,3,3]\n" NORM(
				   "4") "%1 = aten::conv2d(%0, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f32[4,4,8]\n"
	                    "%2 = aten::batch_norm(%1, @g, @b, @m, @v, false, 0.1, 1e-05, true) -> f32[4,4,8]\n" ENDS("%2"),
	           NULL);
	/* a linear with more dimensions: likewise */
	check_fold(HEAD "input %0 f32[2,4,3] name=\"x\"\nparam @w f32[4,3]\n" NORM(
				   "4") "%1 = aten::linear(%0, @w, none) -> f32[2,4,4]\n"
	                    "%2 = aten::batch_norm(%1, @g, @b, @m, @v, false, 0.1, 1e-05, true) -> f32[2,4,4]\n" ENDS("%2"),
	           NULL);
	/* the weight comes with the call */
	check_fold(HEAD "input %0 f32[2,3,8,8] name=\"x\"\ninput %1 f32[4,3,3,3] name=\"w\"\n" NORM(
				   "4") "%2 = aten::conv2d(%0, %1, none, [1, 1], [1, 1], [1, 1], 1) -> f32[2,4,8,8]\n"
	                    "%3 = aten::batch_norm(%2, @g, @b, @m, @v, false, 0.1, 1e-05, true) -> f32[2,4,8,8]\n"
	                    "inputs ((%0, %1), {})\noutput %3\n",
	           NULL);
	/* groups of a transposed convolution */
	check_fold(
		HEAD "input %0 f32[2,4,8] name=\"x\"\nparam @w f32[4,4,3]\n" NORM(
			"4") "%1 = aten::conv_transpose1d(%0, @w, none, [1], [1], [0], 2, [1]) -> f32[2,4,8]\n"
				 "%2 = aten::batch_norm(%1, none, none, @m, @v, false, 0.1, 1e-05, true) -> f32[2,4,8]\n" ENDS("%2"),
		NULL);
}

/* ---- joining ------------------------------------------------------------------------------------------------------- */

static void check_fuse(const char *text, const char *want)
{
	check_job((job){.text = text, .run = pass_fuse, .spec = fast}, want);
}

#define PIXELS HEAD "input %0 f32[2,4,8,8] name=\"x\"\nparam @w f32[4,4,3,3]\nparam @c f32[4]\n"
#define LAID "%1 = aten::clone(%0, memory:channels_last) -> f32[2,4,8,8]\n"
#define CONV_OF(x) "aten::conv2d(" x ", @w, @c, [1, 1], [1, 1], [1, 1], 1) -> f32[2,4,8,8]\n"
#define PACKED(n)                                                                                                      \
	"%" n " = mkldnn::_reorder_convolution_weight(@w, [1, 1], [1, 1], [1, 1], 1, [2, 4, 8, 8]) -> f32[4,4,3,3] odd\n"
#define WITH(x, packed) "(" x ", %" packed ", @c, [1, 1], [1, 1], [1, 1], 1"
#define SHAPE ") -> f32[2,4,8,8]"

static void a_convolution_is_laid_out_and_does_the_activation(void **state)
{
	(void)state;
	check_fuse(PIXELS LAID "%2 = " CONV_OF("%1") ENDS("%2"),
	           LAID PACKED("2") "%3 = mkldnn::_convolution_pointwise" WITH("%1", "2") ", \"none\", [], none" SHAPE
	                                                                                  "\n" ENDS("%3"));
	check_fuse(PIXELS LAID "%2 = " CONV_OF("%1") "%3 = aten::silu_(%2) -> f32[2,4,8,8] view-of %2 writes %2\n"
	                                             "%4 = aten::view(%3, [512]) -> f32[512] view-of %2\n" ENDS("%4"),
	           LAID PACKED("2") "%3 = mkldnn::_convolution_pointwise" WITH(
				   "%1", "2") ", \"swish\", [], none" SHAPE
	                          "\n%4 = aten::view(%3, [512]) -> f32[512] view-of %3\n" ENDS("%4"));
	check_fuse(PIXELS LAID "%2 = " CONV_OF("%1") "%3 = aten::gelu(%2, \"tanh\") -> f32[2,4,8,8]\n" ENDS("%3"),
	           LAID PACKED("2") "%3 = mkldnn::_convolution_pointwise" WITH("%1", "2") ", \"gelu\", [], \"tanh\"" SHAPE
	                                                                                  "\n" ENDS("%3"));
	check_fuse(PIXELS LAID "%2 = " CONV_OF("%1") "%3 = aten::hardtanh(%2, 0, 6) -> f32[2,4,8,8]\n" ENDS("%3"),
	           LAID PACKED("2") "%3 = mkldnn::_convolution_pointwise" WITH(
				   "%1", "2") ", \"hardtanh\", [0.0, 6.0], none" SHAPE "\n" ENDS("%3"));
}

static void a_convolution_is_laid_out_for_the_sizes_of_the_first_run(void **state)
{
	(void)state;
	check_fuse(
		HEAD "symbol B 1..64\ninput %0 f32[B,4,8,8] name=\"x\"\nparam @w f32[4,4,3,3]\nparam @c f32[4]\n"
			 "%1 = aten::clone(%0, memory:channels_last) -> f32[B,4,8,8]\n"
			 "%2 = aten::conv2d(%1, @w, @c, [1, 1], [1, 1], [1, 1], 1) -> f32[B,4,8,8]\n" ENDS("%2"),
		"%1 = aten::clone(%0, memory:channels_last) -> f32[B,4,8,8]\n"
		"%2 = mkldnn::_reorder_convolution_weight(@w, [1, 1], [1, 1], [1, 1], 1, [B, 4, 8, 8]) -> f32[4,4,3,3] odd\n"
		"%3 = mkldnn::_convolution_pointwise(%1, %2, @c, [1, 1], [1, 1], [1, 1], 1, \"none\", [], none) -> "
		"f32[B,4,8,8]\n" ENDS("%3"));
}

static void the_weight_of_a_transposed_convolution_gets_outputs_first(void **state)
{
	(void)state;
	check_fuse(
		HEAD "input %0 f32[2,8,4,4] name=\"x\"\nparam @w f32[8,6,3,3]\nparam @c f32[12]\n"
			 "%1 = aten::clone(%0, memory:channels_last) -> f32[2,8,4,4]\n"
			 "%2 = aten::conv_transpose2d.input(%1, @w, @c, [1, 1], [1, 1], [0, 0], 2, [1, 1]) -> "
			 "f32[2,12,4,4]\n" ENDS("%2"),
		"%1 = aten::clone(%0, memory:channels_last) -> f32[2,8,4,4]\n"
		"%2 = mkldnn::_reorder_convolution_transpose_weight(@w, [1, 1], [0, 0], [1, 1], [1, 1], 2, [2, 8, 4, 4]) -> "
		"f32[12,4,3,3] odd\n"
		"%3 = mkldnn::_convolution_transpose_pointwise(%1, %2, @c, [1, 1], [0, 0], [1, 1], [1, 1], 2, \"none\", [], "
		"none) -> f32[2,12,4,4]\n" ENDS("%3"));
}

static void where_layouts_must_stay_only_the_activation_is_joined(void **state)
{
	(void)state;
	check_fuse(PIXELS "%1 = aten::conv2d(%0, @w, @c, [1, 1], [1, 1], [1, 1], 1) -> f32[2,4,8,8]\n"
	                  "%2 = aten::relu(%1) -> f32[2,4,8,8]\n" ENDS("%2"),
	           "%1 = mkldnn::_convolution_pointwise(%0, @w, @c, [1, 1], [1, 1], [1, 1], 1, \"relu\", [], none" SHAPE
	           "\n" ENDS("%1"));
	check_fuse(PIXELS "%1 = aten::conv2d(%0, @w, @c, [1, 1], [1, 1], [1, 1], 1) -> f32[2,4,8,8]\n" ENDS("%1"), NULL);
}

static const char residual[] = PIXELS LAID "%2 = " CONV_OF("%1") "%3 = " CONV_OF(
	"%1") "%4 = aten::add_.Tensor(%2, %3, 1) -> f32[2,4,8,8] view-of %2 writes %2\n"
		  "%5 = aten::relu_(%4) -> f32[2,4,8,8] view-of %2 writes %4\n"
		  "%6 = " CONV_OF("%5") "%7 = aten::add.Tensor(%5, %6, 1) -> f32[2,4,8,8]\n"
								"%8 = aten::relu(%7) -> f32[2,4,8,8]\n" ENDS("%8");

/* The first sum takes the memory of what was added; the second cannot: its convolution reads it. */
static const char residual_joined[] = LAID PACKED("2") PACKED("3") "%4 = mkldnn::_convolution_pointwise" WITH(
	"%1", "3") ", \"none\", [], none" SHAPE "\n"
			   "%5 = mkldnn::_convolution_pointwise_.binary(%4, %1, %2, @c, [1, 1], [1, 1], [1, 1], 1, \"add\", 1.0, "
			   "\"relu\", [], "
			   "none" SHAPE
			   " view-of %4 writes %4\n" PACKED("6") "%7 = mkldnn::_convolution_pointwise.binary(%5, %5, %6, @c, [1, "
													 "1], [1, 1], [1, 1], 1, \"add\", 1.0, \"relu\", [], "
													 "none" SHAPE "\n" ENDS("%7");

static void sums_are_joined_on_memory_that_is_free(void **state)
{
	(void)state;
	check_fuse(residual, residual_joined);
}

static void a_sum_that_others_see_gets_memory_of_its_own(void **state)
{
	(void)state;
	/* the other operand leaves the plan */
	check_fuse(PIXELS LAID "%2 = aten::exp(%0) -> f32[2,4,8,8]\n%3 = " CONV_OF(
				   "%1") "%4 = aten::add.Tensor(%3, %2, 1) -> f32[2,4,8,8]\n" ENDS("(%2, %4)"),
	           LAID "%2 = aten::exp(%0) -> f32[2,4,8,8]\n" PACKED(
				   "3") "%4 = mkldnn::_convolution_pointwise.binary(%1, %2, %3, @c, [1, 1], [1, 1], [1, 1], 1, "
	                    "\"add\", 1.0, none, "
	                    "[], none" SHAPE "\n" ENDS("(%2, %4)"));
	/* it is read later */
	check_fuse(PIXELS LAID "%2 = aten::exp(%0) -> f32[2,4,8,8]\n%3 = " CONV_OF(
				   "%1") "%4 = aten::add.Tensor(%3, %2, 1) -> f32[2,4,8,8]\n%5 = aten::mul.Tensor(%2, %4) -> "
	                     "f32[2,4,8,8]\n" ENDS("%5"),
	           LAID "%2 = aten::exp(%0) -> f32[2,4,8,8]\n" PACKED(
				   "3") "%4 = mkldnn::_convolution_pointwise.binary(%1, %2, %3, @c, [1, 1], [1, 1], [1, 1], 1, "
	                    "\"add\", 1.0, none, "
	                    "[], none" SHAPE "\n%5 = aten::mul.Tensor(%2, %4) -> f32[2,4,8,8]\n" ENDS("%5"));
}

static void what_is_not_joined(void **state)
{
	(void)state;
#define ALONE LAID PACKED("2") "%3 = mkldnn::_convolution_pointwise" WITH("%1", "2") ", \"none\", [], none" SHAPE "\n"
#define RELU "aten::relu(%2) -> f32[2,4,8,8]\n"
	/* read twice; kept; seen through a view */
	check_fuse(PIXELS LAID "%2 = " CONV_OF("%1") "%3 = " RELU "%4 = aten::exp(%2) -> f32[2,4,8,8]\n" ENDS("(%3, %4)"),
	           ALONE "%4 = aten::relu(%3) -> f32[2,4,8,8]\n%5 = aten::exp(%3) -> f32[2,4,8,8]\n" ENDS("(%4, %5)"));
	check_fuse(PIXELS LAID "%2 = " CONV_OF("%1") "%3 = " RELU ENDS("(%2, %3)"),
	           ALONE "%4 = aten::relu(%3) -> f32[2,4,8,8]\n" ENDS("(%3, %4)"));
	check_fuse(PIXELS LAID "%2 = " CONV_OF("%1") "%3 = aten::view(%2, [512]) -> f32[512] view-of %2\n"
	                                             "%4 = aten::relu(%3) -> f32[512]\n" ENDS("%4"),
	           ALONE "%4 = aten::view(%3, [512]) -> f32[512] view-of %3\n%5 = aten::relu(%4) -> f32[512]\n" ENDS("%5"));
	/* the sum is weighted, or spreads one of the two */
	check_fuse(PIXELS LAID "%2 = " CONV_OF("%1") "%3 = aten::add.Tensor(%2, %0, 2) -> f32[2,4,8,8]\n" ENDS("%3"),
	           ALONE "%4 = aten::add.Tensor(%3, %0, 2) -> f32[2,4,8,8]\n" ENDS("%4"));
	check_fuse(PIXELS LAID "%2 = " CONV_OF("%1") "%3 = aten::add.Tensor(%2, @c, 1) -> f32[2,4,8,8]\n" ENDS("%3"),
	           ALONE "%4 = aten::add.Tensor(%3, @c, 1) -> f32[2,4,8,8]\n" ENDS("%4"));
	/* the input is written before the sum */
	check_fuse(PIXELS LAID "%2 = " CONV_OF("%1") "%3 = aten::exp(%0) -> f32[2,4,8,8]\n"
	                                             "%4 = aten::zero_(%1) -> f32[2,4,8,8] view-of %1 writes %1\n"
	                                             "%5 = aten::add.Tensor(%2, %3, 1) -> f32[2,4,8,8]\n" ENDS("%5"),
	           ALONE "%4 = aten::exp(%0) -> f32[2,4,8,8]\n%5 = aten::zero_(%1) -> f32[2,4,8,8] view-of %1 writes %1\n"
	                 "%6 = aten::add.Tensor(%3, %4, 1) -> f32[2,4,8,8]\n" ENDS("%6"));
	/* other types, autocast, weights that come with the call */
	check_fuse(HEAD "input %0 f64[2,4,8,8] name=\"x\"\nparam @w f64[4,4,3,3]\n"
	                "%1 = aten::conv2d(%0, @w, none, [1, 1], [1, 1], [1, 1], 1) -> f64[2,4,8,8]\n"
	                "%2 = aten::relu(%1) -> f64[2,4,8,8]\n" ENDS("%2"),
	           NULL);
	check_fuse(PIXELS "%1 = aten::conv2d(%0, @w, @c, [1, 1], [1, 1], [1, 1], 1) -> f32[2,4,8,8] {autocast=cpu:bf16}\n"
	                  "%2 = aten::relu(%1) -> f32[2,4,8,8] {autocast=cpu:bf16}\n" ENDS("%2"),
	           NULL);
	check_fuse(HEAD "input %0 f32[2,4,8,8] name=\"x\"\ninput %1 f32[4,4,3,3] name=\"w\"\n"
	                "%2 = aten::conv2d(%0, %1, none, [1, 1], [1, 1], [1, 1], 1) -> f32[2,4,8,8]\n"
	                "%3 = aten::relu(%2) -> f32[2,4,8,8]\ninputs ((%0, %1), {})\noutput %3\n",
	           NULL);
}

static void a_normalization_of_channels_last_images_is_a_product_and_a_sum(void **state)
{
	(void)state;
	const char *norm = "%2 = aten::batch_norm(%1, none, @c, @c, @c, false, 0.1, 0.5, true) -> f32[2,4,8,8]\n";
	char text[2000];
	snprintf(text, sizeof text, "%s%s%s%s", PIXELS, LAID, norm, ENDS("%2"));
	check_fuse(text, LAID "%2 = aten::add.Scalar(@c, 0.5, 1) -> f32[4]\n"
	                      "%3 = aten::rsqrt(%2) -> f32[4]\n"
	                      "%4 = aten::neg(@c) -> f32[4]\n"
	                      "%5 = aten::mul.Tensor(%4, %3) -> f32[4]\n"
	                      "%6 = aten::add.Tensor(%5, @c, 1) -> f32[4]\n"
	                      "%7 = aten::view(%3, [1, 4, 1, 1]) -> f32[1,4,1,1] view-of %3\n"
	                      "%8 = aten::view(%6, [1, 4, 1, 1]) -> f32[1,4,1,1] view-of %6\n"
	                      "%9 = aten::addcmul(%8, %1, %7, 1) -> f32[2,4,8,8]\n" ENDS("%9"));
	snprintf(text, sizeof text, "%s%s%s%s", PIXELS, "%1 = aten::exp(%0) -> f32[2,4,8,8]\n", norm, ENDS("%2"));
	check_fuse(text, NULL);
}

static bool has_none(const char *name)
{
	(void)name;
	return false;
}

#define CUDA_HEAD                                                                                                      \
	HEAD "input %0 f16[2,4,8,8] device=cuda:0 name=\"x\"\nparam @w f16[4,4,3,3] device=cuda:0\nparam @c f16[4] "       \
		 "device=cuda:0\n"                                                                                             \
		 "%1 = aten::conv2d(%0, @w, @c, [1, 1], [1, 1], [1, 1], 1) -> f16[2,4,8,8] device=cuda:0\n"

static void cudnn_does_a_relu_and_a_sum_with_one(void **state)
{
	(void)state;
	check_fuse(
		CUDA_HEAD "%2 = aten::relu_(%1) -> f16[2,4,8,8] device=cuda:0 view-of %1 writes %1\n"
				  "inputs ((%0,), {})\noutput %2\n",
		"%1 = aten::cudnn_convolution_relu(%0, @w, @c, [1, 1], [1, 1], [1, 1], 1) -> f16[2,4,8,8] device=cuda:0\n"
		"inputs ((%0,), {})\noutput %1\n");
	check_fuse(CUDA_HEAD "%2 = aten::add_.Tensor(%1, %0, 1) -> f16[2,4,8,8] device=cuda:0 view-of %1 writes %1\n"
	                     "%3 = aten::relu(%2) -> f16[2,4,8,8] device=cuda:0\n"
	                     "inputs ((%0,), {})\noutput %3\n",
	           "%1 = aten::cudnn_convolution_add_relu(%0, @w, %0, 1.0, @c, [1, 1], [1, 1], [1, 1], 1) -> "
	           "f16[2,4,8,8] device=cuda:0\n"
	           "inputs ((%0,), {})\noutput %1\n");
	/* a sum without a relu, another activation */
	check_fuse(CUDA_HEAD
	           "%2 = aten::add.Tensor(%1, %0, 1) -> f16[2,4,8,8] device=cuda:0\ninputs ((%0,), {})\noutput %2\n",
	           NULL);
	check_fuse(CUDA_HEAD "%2 = aten::silu(%1) -> f16[2,4,8,8] device=cuda:0\ninputs ((%0,), {})\noutput %2\n", NULL);
}

static void operators_that_are_not_there_are_not_used(void **state)
{
	(void)state;
	optimize_spec without = fast;
	without.has_op = has_none;
	check_job((job){.text = residual, .run = pass_fuse, .spec = without}, NULL);
	without.has_op = NULL;
	check_job((job){.text = residual, .run = pass_fuse, .spec = without}, NULL);
}

#define MATRIX HEAD "symbol B 1..64\ninput %0 f32[B,16,768] name=\"x\"\nparam @w f32[768,768]\nparam @c f32[768]\n"
#define LINEAR "%1 = aten::linear(%0, @w, @c) -> f32[B,16,768]\n"

static void a_linear_is_laid_out_for_the_rows_of_the_first_run(void **state)
{
	(void)state;
	check_fuse(MATRIX LINEAR "%2 = aten::gelu(%1, \"none\") -> f32[B,16,768]\n" ENDS("%2"),
	           "%1 = mkldnn::_reorder_linear_weight(@w, 16*B) -> f32[768,768] odd\n"
	           "%2 = mkldnn::_linear_pointwise(%0, %1, @c, \"gelu\", [], \"none\") -> f32[B,16,768]\n" ENDS("%2"));
	check_fuse(MATRIX LINEAR "%2 = aten::add.Tensor(%0, %1, 1) -> f32[B,16,768]\n" ENDS("%2"),
	           "%1 = mkldnn::_reorder_linear_weight(@w, 16*B) -> f32[768,768] odd\n"
	           "%2 = mkldnn::_linear_pointwise.binary(%0, %0, %1, @c, \"add\") -> f32[B,16,768]\n" ENDS("%2"));
}

static void a_product_with_a_parameter_is_a_linear(void **state)
{
	(void)state;
	check_fuse(HEAD "input %0 f32[64,768] name=\"x\"\nparam @w f32[768,512]\nparam @c f32[512]\n"
	                "%1 = aten::addmm(@c, %0, @w, 1, 1) -> f32[64,512]\n" ENDS("%1"),
	           "%1 = aten::t(@w) -> f32[512,768] view-of @w\n"
	           "%2 = mkldnn::_reorder_linear_weight(%1, 64) -> f32[512,768] odd\n"
	           "%3 = mkldnn::_linear_pointwise(%0, %2, @c, \"none\", [], none) -> f32[64,512]\n" ENDS("%3"));
}

static void small_linears_stay(void **state)
{
	(void)state;
	check_fuse(HEAD "input %0 f32[2,64] name=\"x\"\nparam @w f32[64,64]\n"
	                "%1 = aten::linear(%0, @w, none) -> f32[2,64]\n" ENDS("%1"),
	           NULL);
}

/* ---- faults -------------------------------------------------------------------------------------------------------- */

static void memory_may_run_out_anywhere(void **state)
{
	(void)state;
	job fold = {.text = conv_norm, .run = pass_fold_batch_norm, .spec = fast};
	job fuse = {.text = residual, .run = pass_fuse, .spec = fast};
	assert_true(sweep_faults(attempt_job, &fold, CLV_OK) > 20);
	assert_true(sweep_faults(attempt_job, &fuse, CLV_OK) > 20);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_normalization_goes_into_the_convolution_before_it),
		cmocka_unit_test(a_transposed_convolution_has_its_channels_second),
		cmocka_unit_test(halves_are_folded_in_f32),
		cmocka_unit_test(statistics_that_nobody_reads_do_not_hinder),
		cmocka_unit_test(what_is_not_folded),
		cmocka_unit_test(a_convolution_is_laid_out_and_does_the_activation),
		cmocka_unit_test(where_layouts_must_stay_only_the_activation_is_joined),
		cmocka_unit_test(sums_are_joined_on_memory_that_is_free),
		cmocka_unit_test(a_sum_that_others_see_gets_memory_of_its_own),
		cmocka_unit_test(what_is_not_joined),
		cmocka_unit_test(a_normalization_of_channels_last_images_is_a_product_and_a_sum),
		cmocka_unit_test(cudnn_does_a_relu_and_a_sum_with_one),
		cmocka_unit_test(operators_that_are_not_there_are_not_used),
		cmocka_unit_test(a_convolution_is_laid_out_for_the_sizes_of_the_first_run),
		cmocka_unit_test(the_weight_of_a_transposed_convolution_gets_outputs_first),
		cmocka_unit_test(a_linear_is_laid_out_for_the_rows_of_the_first_run),
		cmocka_unit_test(a_product_with_a_parameter_is_a_linear),
		cmocka_unit_test(small_linears_stay),
		cmocka_unit_test(memory_may_run_out_anywhere),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
