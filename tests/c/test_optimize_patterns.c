/* Trees of nodes that PyTorch has one operator for: text of a plan in, text out. */
#include "passes.h"

#include <math.h>

#include "optimize/match.h"

static bool has_all(const char *name)
{
	(void)name;
	return true;
}

static bool has_none(const char *name)
{
	(void)name;
	return false;
}

static const optimize_spec fast = {.level = OPTIMIZE_FAST, .has_op = has_all};

static clv_status leave_it(edit *e, const optimize_spec *spec, uint32_t *changes)
{
	(void)e;
	(void)spec;
	(void)changes;
	return CLV_OK;
}

/* NULL: nothing changes. */
static void check_nodes(job j, const char *want)
{
	job plain = {.text = j.text, .run = leave_it};
	if (run_job(&j) != CLV_OK)
		fail_msg("%s\nin\n%s", status_message(), j.text);
	OK(run_job(&plain));
	assert_string_equal(nodes_of(j.out), want ? want : nodes_of(plain.out));
	assert_int_equal(j.changes > 0, want != NULL);
	mem_free(j.out);
	mem_free(plain.out);
}

#define HEAD "cleave-plan 1\nmodel \"M\" training=no grad=any\n"
#define ENDS(v) "inputs ((%0,), {})\noutput " v "\n"

/* ---- functions ----------------------------------------------------------------------------------------------------- */

static void check_functions(const char *text, const char *want)
{
	check_nodes((job){.text = text, .run = pass_functions, .spec = fast}, want);
}

#define X HEAD "symbol B 1..64\ninput %0 f32[B,8] name=\"x\"\n"
#define T " -> f32[B,8]\n"
#define IN_PLACE(v) " -> f32[B,8] view-of " v " writes " v "\n"

#define NEW_GELU(half, cube, factor, root, one)                                                                        \
	"%1 = aten::mul.Tensor(%0, num(" half "))" T "%2 = aten::pow.Tensor_Scalar(%0, " cube ")" T                        \
	"%3 = aten::mul.Tensor(%2, num(" factor "))" T "%4 = aten::add.Tensor(%0, %3, 1)" T                                \
	"%5 = aten::mul.Tensor(%4, num(" root "))" T "%6 = aten::tanh(%5)" T "%7 = aten::add.Tensor(%6, num(" one          \
	"), 1)" T "%8 = aten::mul.Tensor(%1, %7)" T

#define GELU_OF(half, cube, factor, root, one) X NEW_GELU(half, cube, factor, root, one) ENDS("%8")

static const char new_gelu[] = GELU_OF("0.5", "3.0", "0.044715", "0.7978845608028654", "1.0");

static void a_gelu_in_eight_steps_is_one(void **state)
{
	(void)state;
	check_functions(new_gelu, "%1 = aten::gelu(%0, \"tanh\")" T ENDS("%1"));
	check_functions(X "%1 = aten::div.Tensor(%0, num(1.4142135623730951))" T "%2 = aten::erf(%1)" T
	                  "%3 = aten::add.Tensor(%2, num(1.0), 1)" T "%4 = aten::mul.Tensor(%0, num(0.5))" T
	                  "%5 = aten::mul.Tensor(%4, %3)" T ENDS("%5"),
	                "%1 = aten::gelu(%0, \"none\")" T ENDS("%1"));
	/* 0.5x(1 + tanh(0.79788456x(1 + 0.044715xx))), and numbers that were written shorter */
	check_functions(X "%1 = aten::mul.Tensor(%0, num(0.5))" T "%2 = aten::mul.Tensor(%0, num(0.79788456))" T
	                  "%3 = aten::mul.Tensor(%0, num(0.044715))" T "%4 = aten::mul.Tensor(%3, %0)" T
	                  "%5 = aten::add.Tensor(%4, num(1), 1)" T "%6 = aten::mul.Tensor(%2, %5)" T "%7 = aten::tanh(%6)" T
	                  "%8 = aten::add.Tensor(%7, num(1), 1)" T "%9 = aten::mul.Tensor(%8, %1)" T ENDS("%9"),
	                "%1 = aten::gelu(%0, \"tanh\")" T ENDS("%1"));
}

static void other_numbers_are_another_function(void **state)
{
	(void)state;
	check_functions(GELU_OF("0.5", "3.0", "0.0447", "0.7978845608028654", "1.0"), NULL);
	check_functions(GELU_OF("0.5", "3.0", "0.044715", "0.79788", "1.0"), NULL);
	check_functions(GELU_OF("0.500001", "3.0", "0.044715", "0.7978845608028654", "1.0"), NULL);
	check_functions(GELU_OF("0.5", "2.0", "0.044715", "0.7978845608028654", "1.0"), NULL);
	check_functions(GELU_OF("0.5", "3.0", "0.044715", "0.7978845608028654", "0.0"), NULL);
	check_functions(X "%1 = aten::mul.Tensor(%0, num(1.702))" T "%2 = aten::sigmoid(%1)" T
	                  "%3 = aten::mul.Tensor(%0, %2)" T ENDS("%3"),
	                NULL);
	check_functions(X "%1 = aten::clamp(%0, none, 1000.0)" T "%2 = aten::sigmoid(%0)" T
	                  "%3 = aten::mul.Tensor(%1, %2)" T ENDS("%3"),
	                NULL); /* silu up to 1000 */
	check_functions(X "%1 = aten::sigmoid(%0)" T "%2 = aten::add.Tensor(%0, %1, 1)" T ENDS("%2"), NULL);
}

static void activations_have_their_operators(void **state)
{
	(void)state;
	check_functions(X "%1 = aten::sigmoid(%0)" T "%2 = aten::mul.Tensor(%0, %1)" T ENDS("%2"),
	                "%1 = aten::silu(%0)" T ENDS("%1"));
	check_functions(X "%1 = aten::add.Tensor(%0, num(3), 1)" T "%2 = aten::relu6(%1)" T
	                  "%3 = aten::mul.Tensor(%0, %2)" T "%4 = aten::div.Tensor(%3, num(6))" T ENDS("%4"),
	                "%1 = aten::hardswish(%0)" T ENDS("%1"));
	check_functions(X "%1 = aten::add.Tensor(%0, num(3), 1)" T "%2 = aten::clamp(%1, 0, 6)" T
	                  "%3 = aten::mul.Tensor(%2, num(0.16666666666666666))" T ENDS("%3"),
	                "%1 = aten::hardsigmoid(%0)" T ENDS("%1"));
	check_functions(X "%1 = aten::softplus(%0, 1, 20)" T "%2 = aten::tanh(%1)" T
	                  "%3 = aten::mul.Tensor(%0, %2)" T ENDS("%3"),
	                "%1 = aten::mish(%0)" T ENDS("%1"));
	check_functions(X "%1 = aten::exp(%0)" T "%2 = aten::add.Scalar(%1, 1, 1)" T "%3 = aten::log(%2)" T ENDS("%3"),
	                "%1 = aten::softplus(%0, 1.0, 20.0)" T ENDS("%1"));
	check_functions(X "%1 = aten::neg(%0)" T "%2 = aten::exp(%1)" T "%3 = aten::add.Tensor(%2, num(1), 1)" T
	                  "%4 = aten::reciprocal(%3)" T ENDS("%4"),
	                "%1 = aten::sigmoid(%0)" T ENDS("%1"));
}

/* Other ways to write what has an operator. */
static void any_spelling_counts(void **state)
{
	(void)state;
	const char sigmoid[] = "%1 = aten::sigmoid(%0)" T ENDS("%1"), silu[] = "%1 = aten::silu(%0)" T ENDS("%1");
	const char softplus[] = "%1 = aten::softplus(%0, 1.0, 20.0)" T ENDS("%1");
	/* (1 + tanh(x / 2)) / 2 */
	check_functions(X "%1 = aten::div.Tensor(%0, num(2))" T "%2 = aten::tanh(%1)" T "%3 = aten::add.Scalar(%2, 1, 1)" T
	                  "%4 = aten::mul.Scalar(%3, 0.5)" T ENDS("%4"),
	                sigmoid);
	/* 1 - 1 / (1 + e^x), e^x / (1 + e^x) */
	check_functions(X "%1 = aten::exp(%0)" T "%2 = aten::add.Scalar(%1, 1, 1)" T "%3 = aten::reciprocal(%2)" T
	                  "%4 = aten::rsub.Scalar(%3, 1, 1)" T ENDS("%4"),
	                sigmoid);
	check_functions(X "%1 = aten::exp(%0)" T "%2 = aten::add.Scalar(%1, 1, 1)" T "%3 = aten::div.Tensor(%1, %2)" T
	                  "%4 = aten::mul.Tensor(%3, %0)" T ENDS("%4"),
	                silu);
	/* x + log(1 + e^-x), -log(sigmoid(-x)) */
	check_functions(X "%1 = aten::neg(%0)" T "%2 = aten::exp(%1)" T "%3 = aten::log1p(%2)" T
	                  "%4 = aten::add.Tensor(%0, %3, 1)" T ENDS("%4"),
	                softplus);
	check_functions(X "%1 = aten::neg(%0)" T "%2 = aten::sigmoid(%1)" T "%3 = aten::log(%2)" T
	                  "%4 = aten::neg(%3)" T ENDS("%4"),
	                softplus);
	/* x ((1 + e^x)^2 - 1) / ((1 + e^x)^2 + 1) */
	check_functions(X "%1 = aten::exp(%0)" T "%2 = aten::add.Scalar(%1, 1, 1)" T "%3 = aten::square(%2)" T
	                  "%4 = aten::sub.Scalar(%3, 1, 1)" T "%5 = aten::add.Scalar(%3, 1, 1)" T
	                  "%6 = aten::div.Tensor(%4, %5)" T "%7 = aten::mul.Tensor(%0, %6)" T ENDS("%7"),
	                "%1 = aten::mish(%0)" T ENDS("%1"));
	/* x clamp(x / 6 + 1/2, 0, 1), in steps that are clamped twice */
	check_functions(X "%1 = aten::div.Tensor(%0, num(6))" T "%2 = aten::add.Scalar(%1, 0.5, 1)" T
	                  "%3 = aten::clamp_min(%2, 0)" T "%4 = aten::clamp_max(%3, 1)" T "%5 = aten::relu(%4)" T
	                  "%6 = aten::mul.Tensor(%5, %0)" T ENDS("%6"),
	                "%1 = aten::hardswish(%0)" T ENDS("%1"));
}

/* silu(x) + height * e^-(steep(x - at))^2 */
#define BUMP(steep, at, height)                                                                                        \
	X "%1 = aten::sigmoid(%0)" T "%2 = aten::mul.Tensor(%0, %1)" T "%3 = aten::sub.Scalar(%0, " at ", 1)" T            \
	  "%4 = aten::mul.Scalar(%3, " steep ")" T "%5 = aten::square(%4)" T "%6 = aten::neg(%5)" T "%7 = aten::exp(%6)" T \
	  "%8 = aten::mul.Scalar(%7, " height ")" T "%9 = aten::add.Tensor(%2, %8, 1)" T ENDS("%9")
#define BUMP_STAYS(steep, at, height)                                                                                  \
	"%1 = aten::silu(%0)" T "%2 = aten::sub.Scalar(%0, " at ", 1)" T "%3 = aten::mul.Scalar(%2, " steep ")" T          \
	"%4 = aten::square(%3)" T "%5 = aten::neg(%4)" T "%6 = aten::exp(%5)" T "%7 = aten::mul.Scalar(%6, " height ")" T  \
	"%8 = aten::add.Tensor(%1, %7, 1)" T ENDS("%8")
#define CHECK_BUMP(steep, at, height) check_functions(BUMP(steep, at, height), BUMP_STAYS(steep, at, height))

/* Whatever lies between the points at which functions are compared. */
static void a_bump_of_any_width_is_seen(void **state)
{
	(void)state;
	CHECK_BUMP("200.0", "0.03125", "1.0");
	CHECK_BUMP("1000000.0", "0.03125", "1.0");
	CHECK_BUMP("100.0", "25.3", "0.5");
	CHECK_BUMP("0.1", "100000.0", "1.0");
	CHECK_BUMP("200.0", "-7.53", "-3.0");
	/* the difference of two that are almost the same, times a large number */
	check_functions(X "%1 = aten::sigmoid(%0)" T "%2 = aten::sub.Scalar(%0, 0.03125, 1)" T "%3 = aten::square(%2)" T
	                  "%4 = aten::mul.Scalar(%3, -40000.0)" T "%5 = aten::exp(%4)" T
	                  "%6 = aten::mul.Scalar(%3, -40000.04)" T "%7 = aten::exp(%6)" T
	                  "%8 = aten::sub.Tensor(%5, %7, 1)" T "%9 = aten::mul.Scalar(%8, 1000000.0)" T
	                  "%10 = aten::add.Tensor(%1, %9, 1)" T ENDS("%10"),
	                NULL);
	/* hardsigmoid with a spike: a ramp up, and down again right after it */
#define SPIKE                                                                                                          \
	"%1 = aten::sub.Scalar(%0, 0.03125, 1)" T "%2 = aten::mul.Scalar(%1, 1000000000.0)" T                              \
	"%3 = aten::add.Scalar(%2, 1, 1)" T "%4 = aten::clamp(%3, 0, 1)" T "%5 = aten::clamp(%2, 0, 1)" T                  \
	"%6 = aten::sub.Tensor(%4, %5, 1)" T
	check_functions(X SPIKE "%7 = aten::div.Scalar(%0, 6)" T "%8 = aten::add.Scalar(%7, 0.5, 1)" T
	                        "%9 = aten::clamp(%8, 0, 1)" T "%10 = aten::add.Tensor(%9, %6, 1)" T ENDS("%10"),
	                SPIKE "%7 = aten::hardsigmoid(%0)" T "%8 = aten::add.Tensor(%7, %6, 1)" T ENDS("%8"));
	/* no number at one place: x (x - 0.3) / (x - 0.3) / (1 + e^-x) */
	check_functions(X "%1 = aten::sub.Scalar(%0, 0.3, 1)" T "%2 = aten::mul.Tensor(%0, %1)" T
	                  "%3 = aten::div.Tensor(%2, %1)" T "%4 = aten::neg(%0)" T "%5 = aten::exp(%4)" T
	                  "%6 = aten::add.Scalar(%5, 1, 1)" T "%7 = aten::div.Tensor(%3, %6)" T ENDS("%7"),
	                NULL);
	/* a tanh that turns between two points */
	check_functions(X "%1 = aten::sigmoid(%0)" T "%2 = aten::sub.Scalar(%0, 0.03125, 1)" T
	                  "%3 = aten::mul.Scalar(%2, 100000.0)" T "%4 = aten::tanh(%3)" T "%5 = aten::square(%4)" T
	                  "%6 = aten::mul.Tensor(%1, %5)" T ENDS("%6"),
	                NULL);
}

static void only_the_function_goes_not_what_it_is_of(void **state)
{
	(void)state;
	check_functions(X "%1 = aten::add.Tensor(%0, num(2), 1)" T "%2 = aten::sigmoid(%1)" T
	                  "%3 = aten::mul.Tensor(%2, %1)" T "%4 = aten::mul.Tensor(%3, num(2.0))" T ENDS("%4"),
	                "%1 = aten::add.Tensor(%0, num(2), 1)" T "%2 = aten::silu(%1)" T
	                "%3 = aten::mul.Tensor(%2, num(2.0))" T ENDS("%3"));
	/* one function of another */
	check_functions(X "%1 = aten::sigmoid(%0)" T "%2 = aten::mul.Tensor(%0, %1)" T "%3 = aten::sigmoid(%2)" T
	                  "%4 = aten::mul.Tensor(%2, %3)" T ENDS("%4"),
	                "%1 = aten::silu(%0)" T "%2 = aten::silu(%1)" T ENDS("%2"));
}

static void steps_in_place_are_steps(void **state)
{
	(void)state;
	check_functions(X "%1 = aten::add.Tensor(%0, num(3), 1)" T
	                  "%2 = aten::hardtanh_(%1, 0.0, 6.0)" IN_PLACE("%1") "%3 = aten::div_.Tensor(%2, num(6))" IN_PLACE(
						  "%1") "%4 = aten::mul.Tensor(%0, %3)" T ENDS("%4"),
	                "%1 = aten::hardswish(%0)" T ENDS("%1"));
	/* what was written is read under its old name */
	check_functions(X "%1 = aten::add.Tensor(%0, num(3), 1)" T
	                  "%2 = aten::relu6_(%1)" IN_PLACE("%1") "%3 = aten::div.Tensor(%1, num(6))" T
	                                                         "%4 = aten::mul.Tensor(%0, %3)" T ENDS("%4"),
	                NULL);
	/* one that writes what it is of, as its own form in place does */
	check_functions(X "%1 = aten::sigmoid(%0)" T "%2 = aten::mul_.Tensor(%0, %1)" IN_PLACE("%0") ENDS("%2"),
	                "%1 = aten::silu_(%0)" IN_PLACE("%0") ENDS("%1"));
	/* one that writes a step */
	check_functions(X "%1 = aten::sigmoid(%0)" T "%2 = aten::mul_.Tensor(%1, %0)" IN_PLACE("%1") ENDS("%2"), NULL);
	/* on the way, by somebody else */
	check_functions(X
	                "%1 = aten::sigmoid(%0)" T
	                "%2 = aten::add_.Tensor(%0, num(1), 1)" IN_PLACE("%0") "%3 = aten::mul.Tensor(%0, %1)" T ENDS("%3"),
	                NULL);
}

static void what_others_need_stays(void **state)
{
	(void)state;
	check_functions(X "%1 = aten::sigmoid(%0)" T "%2 = aten::mul.Tensor(%0, %1)" T ENDS("(%1, %2)"), NULL);
	check_functions(
		X "%1 = aten::sigmoid(%0)" T "%2 = aten::mul.Tensor(%0, %1)" T "%3 = aten::cos(%1)" T ENDS("(%2, %3)"), NULL);
	check_functions(X "%1 = aten::sigmoid(%0)" T "%2 = aten::view(%1, [8*B]) -> f32[8*B] view-of %1\n"
	                  "%3 = aten::mul.Tensor(%0, %1)" T ENDS("(%2, %3)"),
	                NULL);
	check_functions(X "%1 = aten::sigmoid(%0)" T
	                  "%2 = aten::mul.Tensor(%0, %1) -> f32[B,8] {autocast=cpu:bf16}\n" ENDS("%2"),
	                NULL);
	check_functions(X "%1 = aten::sigmoid(%0) -> f32[B,8] {nograd}\n"
	                  "%2 = aten::mul.Tensor(%0, %1)" T ENDS("%2"),
	                NULL);
	/* shapes and types that change on the way */
	check_functions(HEAD "input %0 f32[8,1] name=\"x\"\n%1 = aten::sigmoid(%0) -> f32[8,1]\n"
	                     "%2 = aten::transpose.int(%1, 0, 1) -> f32[1,8] view-of %1\n"
	                     "%3 = aten::mul.Tensor(%0, %2) -> f32[8,8]\n" ENDS("%3"),
	                NULL);
	check_functions(HEAD "input %0 i64[8] name=\"x\"\n%1 = aten::sigmoid(%0) -> f32[8]\n"
	                     "%2 = aten::mul.Tensor(%0, %1) -> f32[8]\n" ENDS("%2"),
	                NULL);
	check_functions(HEAD "input %0 f32[] name=\"x\"\ninput %1 f32[8] name=\"y\"\n%2 = aten::sigmoid(%1) -> f32[8]\n"
	                     "%3 = aten::mul.Tensor(%0, %2) -> f32[8]\ninputs ((%0, %1), {})\noutput %3\n",
	                NULL);
}

static void doubles_are_compared_as_doubles(void **state)
{
	(void)state;
#define D(root)                                                                                                        \
	HEAD "input %0 f64[8] name=\"x\"\n%1 = aten::mul.Tensor(%0, num(" root ")) -> f64[8]\n"                            \
		 "%2 = aten::erf(%1) -> f64[8]\n%3 = aten::add.Tensor(%2, num(1), 1) -> f64[8]\n"                              \
		 "%4 = aten::mul.Tensor(%3, %0) -> f64[8]\n%5 = aten::mul.Tensor(%4, num(0.5)) -> f64[8]\n" ENDS("%5")
	check_functions(D("0.7071067811865476"), "%1 = aten::gelu(%0, \"none\") -> f64[8]\n" ENDS("%1"));
	check_functions(D("0.70710678"), NULL);
}

/* ---- normalizations ------------------------------------------------------------------------------------------------ */

static void check_norms(const char *text, const char *want)
{
	check_nodes((job){.text = text, .run = pass_norms, .spec = fast}, want);
}

#define ROWS_OF(type, device)                                                                                          \
	HEAD "symbol B 1..64\ninput %0 " type "[B,4,8]" device " name=\"x\"\nparam @w " type "[8]" device                  \
		 "\nparam @b " type "[8]" device "\n"
#define CUDA " device=cuda:0"
#define R32 " -> f32[B,4,8]" CUDA "\n"
#define ONE32 " -> f32[B,4,1]" CUDA "\n"
#define R16 " -> bf16[B,4,8]" CUDA "\n"

static const char rms[] =
	ROWS_OF("f32", CUDA) "%1 = aten::pow.Tensor_Scalar(%0, 2)" R32 "%2 = aten::mean.dim(%1, [-1], true, none)" ONE32
						 "%3 = aten::add.Tensor(%2, num(1e-06), 1)" ONE32 "%4 = aten::rsqrt(%3)" ONE32
						 "%5 = aten::mul.Tensor(%0, %4)" R32 "%6 = aten::mul.Tensor(@w, %5)" R32 ENDS("%6");

static void rms_norms_are_one_kernel_on_cuda(void **state)
{
	(void)state;
	check_norms(rms, "%1 = aten::rms_norm(%0, [8], @w, 1e-06)" R32 ENDS("%1"));
	/* without a weight, divided by the root, x * x */
	check_norms(ROWS_OF("f32", CUDA) "%1 = aten::mul.Tensor(%0, %0)" R32
	                                 "%2 = aten::mean.dim(%1, [2], true, none)" ONE32
	                                 "%3 = aten::add.Scalar(%2, 1e-05, 1)" ONE32 "%4 = aten::sqrt(%3)" ONE32
	                                 "%5 = aten::div.Tensor(%0, %4)" R32 ENDS("%5"),
	            "%1 = aten::rms_norm(%0, [8], none, 1e-05)" R32 ENDS("%1"));
	/* as Llama has it in bf16: the middle in f32 */
	check_norms(ROWS_OF("bf16", CUDA) "%1 = aten::to.dtype(%0, dtype:f32, false, false, none)" R32
	                                  "%2 = aten::pow.Tensor_Scalar(%1, 2)" R32
	                                  "%3 = aten::mean.dim(%2, [-1], true, none)" ONE32
	                                  "%4 = aten::add.Tensor(%3, num(1e-06), 1)" ONE32 "%5 = aten::rsqrt(%4)" ONE32
	                                  "%6 = aten::mul.Tensor(%1, %5)" R32
	                                  "%7 = aten::to.dtype(%6, dtype:bf16, false, false, none)" R16
	                                  "%8 = aten::mul.Tensor(@w, %7)" R16 ENDS("%8"),
	            "%1 = aten::rms_norm(%0, [8], @w, 1e-06)" R16 ENDS("%1"));
	/* as T5 has it: only the mean in f32 */
	check_norms(ROWS_OF("bf16", CUDA) "%1 = aten::to.dtype(%0, dtype:f32, false, false, none)" R32
	                                  "%2 = aten::pow.Tensor_Scalar(%1, 2)" R32
	                                  "%3 = aten::mean.dim(%2, [-1], true, none)" ONE32
	                                  "%4 = aten::add.Tensor(%3, num(1e-06), 1)" ONE32 "%5 = aten::rsqrt(%4)" ONE32
	                                  "%6 = aten::mul.Tensor(%0, %5)" R32
	                                  "%7 = aten::to.dtype(%6, dtype:bf16, false, false, none)" R16
	                                  "%8 = aten::mul.Tensor(@w, %7)" R16 ENDS("%8"),
	            "%1 = aten::rms_norm(%0, [8], @w, 1e-06)" R16 ENDS("%1"));
}

#define RMS_WITH(square, mean, top)                                                                                    \
	ROWS_OF("f32", CUDA)                                                                                               \
	"%1 = aten::pow.Tensor_Scalar(%0, " square ")" R32 "%2 = aten::mean.dim(%1, " mean ")" ONE32                       \
	"%3 = aten::add.Tensor(%2, num(1e-06), 1)" ONE32 "%4 = aten::rsqrt(%3)" ONE32 "%5 = aten::mul.Tensor(" top         \
	", %4)" R32

static void what_is_no_rms_norm_stays(void **state)
{
	(void)state;
	check_norms(RMS_WITH("3", "[-1], true, none", "%0") ENDS("%5"), NULL);
	check_norms(RMS_WITH("2", "[1], true, none", "%0") ENDS("%5"), NULL);
	check_norms(RMS_WITH("2", "[-1, 1], true, none", "%0") ENDS("%5"), NULL);
	check_norms(RMS_WITH("2", "[-1], true, none", "%1") ENDS("%5"), NULL);
	check_norms(RMS_WITH("2", "[-1], true, none", "%0") ENDS("(%4, %5)"), NULL);
	/* there is no kernel */
	check_nodes((job){.text = rms, .run = pass_norms, .spec = {.level = OPTIMIZE_FAST, .has_op = has_none}}, NULL);
	check_nodes((job){.text = rms, .run = pass_norms, .spec = {.level = OPTIMIZE_FAST}}, NULL);
	check_norms(HEAD "input %0 f32[4,8] name=\"x\"\n%1 = aten::square(%0) -> f32[4,8]\n"
	                 "%2 = aten::mean.dim(%1, [-1], true, none) -> f32[4,1]\n"
	                 "%3 = aten::add.Tensor(%2, num(1e-06), 1) -> f32[4,1]\n%4 = aten::rsqrt(%3) -> f32[4,1]\n"
	                 "%5 = aten::mul.Tensor(%0, %4) -> f32[4,8]\n" ENDS("%5"),
	            NULL);
	/* rows that lie otherwise in memory */
	check_norms(HEAD "input %0 f32[4,8] strides(1,4)" CUDA " name=\"x\"\n%1 = aten::square(%0) -> f32[4,8]" CUDA
	                 "\n%2 = aten::mean.dim(%1, [-1], true, none) -> f32[4,1]" CUDA
	                 "\n%3 = aten::add.Tensor(%2, num(1e-06), 1) -> f32[4,1]" CUDA
	                 "\n%4 = aten::rsqrt(%3) -> f32[4,1]" CUDA "\n%5 = aten::mul.Tensor(%0, %4) -> f32[4,8]" CUDA
	                 "\n" ENDS("%5"),
	            NULL);
}

static void a_weight_of_another_kind_is_multiplied_apart(void **state)
{
	(void)state;
	check_norms(RMS_WITH("2", "[-1], true, none", "%0") "%6 = aten::mul.Tensor(%0, %5)" R32 ENDS("%6"),
	            "%1 = aten::rms_norm(%0, [8], none, 1e-06)" R32 "%2 = aten::mul.Tensor(%0, %1)" R32 ENDS("%2"));
}

#define L " -> f32[B,4,8]\n"
#define L1 " -> f32[B,4,1]\n"

static void layer_norms_are_one_operator(void **state)
{
	(void)state;
	check_norms(ROWS_OF("f32", "") "%1 = aten::mean.dim(%0, [-1], true, none)" L1 "%2 = aten::sub.Tensor(%0, %1, 1)" L
	                               "%3 = aten::pow.Tensor_Scalar(%2, 2)" L
	                               "%4 = aten::mean.dim(%3, [-1], true, none)" L1
	                               "%5 = aten::add.Tensor(%4, num(1e-12), 1)" L1 "%6 = aten::sqrt(%5)" L1
	                               "%7 = aten::div.Tensor(%2, %6)" L "%8 = aten::mul.Tensor(@w, %7)" L
	                               "%9 = aten::add.Tensor(%8, @b, 1)" L ENDS("%9"),
	            "%1 = aten::layer_norm(%0, [8], @w, @b, 1e-12, true)" L ENDS("%1"));
	check_norms(ROWS_OF("f32", "") "%1 = aten::mean.dim(%0, [-1], true, none)" L1
	                               "%2 = aten::var.correction(%0, [-1], 0, true)" L1
	                               "%3 = aten::sub.Tensor(%0, %1, 1)" L "%4 = aten::add.Tensor(%2, num(1e-05), 1)" L1
	                               "%5 = aten::rsqrt(%4)" L1 "%6 = aten::mul.Tensor(%3, %5)" L
	                               "%7 = aten::mul.Tensor(%6, @w)" L ENDS("%7"),
	            "%1 = aten::layer_norm(%0, [8], @w, none, 1e-05, true)" L ENDS("%1"));
	/* the other variance */
	check_norms(ROWS_OF("f32", "") "%1 = aten::mean.dim(%0, [-1], true, none)" L1
	                               "%2 = aten::var.correction(%0, [-1], 1, true)" L1
	                               "%3 = aten::sub.Tensor(%0, %1, 1)" L "%4 = aten::add.Tensor(%2, num(1e-05), 1)" L1
	                               "%5 = aten::rsqrt(%4)" L1 "%6 = aten::mul.Tensor(%3, %5)" L ENDS("%6"),
	            NULL);
	/* what is taken away is added twice */
	check_norms(ROWS_OF("f32", "") "%1 = aten::mean.dim(%0, [-1], true, none)" L1
	                               "%2 = aten::var.dim(%0, [-1], false, true)" L1 "%3 = aten::sub.Tensor(%0, %1, 2)" L
	                               "%4 = aten::add.Tensor(%2, num(1e-05), 1)" L1 "%5 = aten::rsqrt(%4)" L1
	                               "%6 = aten::mul.Tensor(%3, %5)" L ENDS("%6"),
	            NULL);
}

/* ---- attention ----------------------------------------------------------------------------------------------------- */

static void check_attention(const char *text, const char *want)
{
	check_nodes((job){.text = text, .run = pass_attention, .spec = fast}, want);
}

#define HEADS(name, n, dtype) "input %" name " " dtype "[B," n ",16,32]" CUDA " name=\"i" name "\"\n"
#define GROUPED(dtype, dropout)                                                                                        \
	HEAD "symbol B 1..64\n" HEADS("0", "8", dtype) HEADS("1", "2", dtype)                                              \
		HEADS("2", "2", dtype) "%3 = aten::scaled_dot_product_attention(%0, %1, %2, none, " dropout                    \
							   ", true, 0.25, true) -> " dtype "[B,8,16,32]" CUDA                                      \
							   "\ninputs ((%0, %1, %2), {})\noutput %3\n"

static void groups_get_copies_of_their_keys_in_f32_on_cuda(void **state)
{
	(void)state;
	check_attention(GROUPED("f32", "0.0"),
	                "%3 = aten::repeat_interleave.self_int(%1, 4, 1, none) -> f32[B,8,16,32]" CUDA "\n"
	                "%4 = aten::repeat_interleave.self_int(%2, 4, 1, none) -> f32[B,8,16,32]" CUDA "\n"
	                "%5 = aten::scaled_dot_product_attention(%0, %3, %4, none, 0.0, true, 0.25, false) -> "
	                "f32[B,8,16,32]" CUDA "\ninputs ((%0, %1, %2), {})\noutput %5\n");
	check_attention(GROUPED("bf16", "0.0"), NULL);
	check_attention(
		HEAD "symbol B 1..64\n" HEADS("0", "8", "f32") HEADS("1", "2", "f32") HEADS(
			"2", "2", "f32") "%3 = aten::scaled_dot_product_attention(%0, %1, %2, none, 0.0, true, 0.25, true) -> "
							 "f32[B,8,16,32]" CUDA "\n%4 = aten::view(%3, [B, 8, 512]) -> f32[B,8,512]" CUDA
							 " view-of %3\ninputs ((%0, %1, %2), {})\noutput %4\n",
		NULL); /* who lays it out so that this is a view? */
	check_attention(GROUPED("f32", "0.5"), NULL);
}

#define QKV                                                                                                            \
	HEAD "symbol B 1..64\ninput %0 f32[B,4,256,32] name=\"q\"\ninput %1 f32[B,4,256,32] name=\"k\"\n"                  \
		 "input %2 f32[B,4,256,32] name=\"v\"\nparam @bias f32[1,4,256,256]\ninput %3 bool[B,1,1,256] name=\"m\"\n"    \
		 "input %4 f32[B,1,1,256] name=\"f\"\nbuffer @table f32[512,256]\nbuffer @zero f32[]\n"
#define INS "inputs ((%0, %1, %2, %3, %4), {})\n"
#define S " -> f32[B,4,256,256]\n"
#define O " -> f32[B,4,256,32]\n"
#define AFTER(o, t, r)                                                                                                 \
	"%" t " = aten::transpose.int(%" o ", 1, 2) -> f32[B,256,4,32] view-of %" o "\n"                                   \
	"%" r " = aten::reshape(%" t ", [B, 256, 128]) -> f32[B,256,128]\n" INS "output %" r "\n"
#define KT "%5 = aten::transpose.int(%1, -2, -1) -> f32[B,4,32,256] view-of %1\n"
#define SDPA(mask, scale) "aten::scaled_dot_product_attention(%0, %1, %2, " mask ", 0.0, false, " scale ", false)" O

static const char spelt[] =
	QKV KT "%6 = aten::matmul(%0, %5)" S "%7 = aten::mul.Tensor(%6, num(0.25))" S
		   "%8 = aten::softmax.int(%7, -1, none)" S "%9 = aten::matmul(%8, %2)" O AFTER("9", "10", "11");

static void attention_that_is_spelt_out_is_one_call(void **state)
{
	(void)state;
	check_attention(spelt, "%5 = " SDPA("none", "0.25") AFTER("5", "6", "7"));
	/* queries are scaled, a bias is added in place */
	check_attention(QKV KT "%6 = aten::div.Tensor(%0, num(4))" O "%7 = aten::matmul(%6, %5)" S
	                       "%8 = aten::add_.Tensor(%7, @bias, 1) -> f32[B,4,256,256] view-of %7 writes %7\n"
	                       "%9 = aten::softmax.int(%8, -1, none)" S
	                       "%10 = aten::matmul(%9, %2)" O AFTER("10", "11", "12"),
	                "%5 = " SDPA("@bias", "0.25") AFTER("5", "6", "7"));
}

#define MASKED(made)                                                                                                   \
	QKV KT "%6 = aten::matmul(%0, %5)" S made "%8 = aten::add.Tensor(%6, %7, 1)" S                                     \
		   "%9 = aten::softmax.int(%8, -1, none)" S "%10 = aten::matmul(%9, %2)" O AFTER("10", "11", "12")
#define MASK(k) "%7 = aten::where.Scalar(%3, 0.0, " k ") -> f32[B,1,1,256]\n"

static void masks_must_be_finite(void **state)
{
	(void)state;
	check_attention(MASKED(MASK("-1e9")), "%5 = aten::where.Scalar(%3, 0.0, -1000000000.0) -> f32[B,1,1,256]\n"
	                                      "%6 = " SDPA("%5", "1.0") AFTER("6", "7", "8"));
	check_attention(MASKED("%7 = aten::slice.Tensor(@table, 0, 0, 256, 1) -> f32[256,256] view-of @table\n"),
	                "%5 = aten::slice.Tensor(@table, 0, 0, 256, 1) -> f32[256,256] view-of @table\n"
	                "%6 = " SDPA("%5", "1.0") AFTER("6", "7", "8")); /* the same in every run */
	check_attention(MASKED("%7 = aten::where.self(%3, @zero, @zero) -> f32[B,1,1,256]\n"), NULL); /* picked by data */
	check_attention(MASKED(MASK("-inf")), NULL);
	check_attention(MASKED(MASK("nan")), NULL);
	check_attention(MASKED("%7 = aten::mul.Tensor(%4, num(-1000.0)) -> f32[B,1,1,256]\n"), NULL); /* whatever it is */
	check_attention(MASKED("%x = aten::where.Scalar(%3, 0.0, -3e38) -> f32[B,1,1,256]\n"
	                       "%7 = aten::add.Tensor(%x, %x, 1) -> f32[B,1,1,256]\n"),
	                NULL); /* beyond what f32 holds */
}

static void what_is_another_attention_stays(void **state)
{
	(void)state;
	/* over another dimension; scores that are kept; results whose layout is seen */
	check_attention(QKV KT "%6 = aten::matmul(%0, %5)" S "%7 = aten::softmax.int(%6, 2, none)" S
	                       "%8 = aten::matmul(%7, %2)" O AFTER("8", "9", "10"),
	                NULL);
	check_attention(QKV KT "%6 = aten::matmul(%0, %5)" S "%7 = aten::softmax.int(%6, -1, none)" S
	                       "%8 = aten::matmul(%7, %2)" O
	                       "%9 = aten::transpose.int(%8, 1, 2) -> f32[B,256,4,32] view-of %8\n"
	                       "%10 = aten::reshape(%9, [B, 256, 128]) -> f32[B,256,128]\n" INS "output (%7, %10)\n",
	                NULL);
	check_attention(QKV KT "%6 = aten::matmul(%0, %5)" S "%7 = aten::softmax.int(%6, -1, none)" S
	                       "%8 = aten::matmul(%7, %2)" O INS "output %8\n",
	                NULL);
	/* keys that are not turned are none */
	check_attention(HEAD "symbol B 1..64\ninput %0 f32[B,4,256,256] name=\"q\"\n%1 = aten::matmul(%0, %0)" S
	                     "%2 = aten::softmax.int(%1, -1, none)" S "%3 = aten::matmul(%2, %0)" S
	                     "%4 = aten::transpose.int(%3, 1, 2) -> f32[B,256,4,256] view-of %3\n"
	                     "%5 = aten::reshape(%4, [B, 256, 1024]) -> f32[B,256,1024]\n" ENDS("%5"),
	                "%1 = aten::transpose.int(%0, 2, 3) -> f32[B,4,256,256] view-of %0\n"
	                "%2 = aten::scaled_dot_product_attention(%0, %1, %0, none, 0.0, false, 1.0, false)" S
	                "%3 = aten::transpose.int(%2, 1, 2) -> f32[B,256,4,256] view-of %2\n"
	                "%4 = aten::reshape(%3, [B, 256, 1024]) -> f32[B,256,1024]\n" ENDS("%4"));
}

/* ---- rotary embeddings --------------------------------------------------------------------------------------------- */

static void check_rotary(const char *text, const char *want)
{
	check_nodes((job){.text = text, .run = pass_rotary, .spec = fast}, want);
}

#define Q " -> f32[B,4,6,16]\n"
#define HALF(v) " -> f32[B,4,6,8] view-of " v "\n"
#define ROTARY(parts, from, sum)                                                                                       \
	HEAD "symbol B 1..64\ninput %0 f32[B,4,6,16] name=\"x\"\nbuffer @cos f32[6,16]\nbuffer @sin f32[6,16]\n"           \
		 "%1 = aten::mul.Tensor(%0, @cos)" Q "%2 = aten::slice.Tensor(%0, 3, 0, 8, 1)" HALF(                           \
			 "%0") "%3 = aten::slice.Tensor(%0, 3, " from                                                              \
				   ", 9223372036854775807, 1)" HALF("%0") "%4 = aten::neg(%3) -> f32[B,4,6,8]\n%5 = aten::cat([" parts \
														  "], -1)" Q "%6 = aten::mul.Tensor(%5, @sin)" Q               \
														  "%7 = aten::add.Tensor(" sum ")" Q ENDS("%7")

static const char rotary[] = ROTARY("%4, %2", "8", "%1, %6, 1");

static void the_sign_of_a_rotation_goes_into_the_sine(void **state)
{
	(void)state;
	check_rotary(rotary, "%1 = aten::slice.Tensor(@sin, 1, 0, 8, 1) -> f32[6,8] view-of @sin\n"
	                     "%2 = aten::slice.Tensor(@sin, 1, 8, 16, 1) -> f32[6,8] view-of @sin\n"
	                     "%3 = aten::neg(%1) -> f32[6,8]\n"
	                     "%4 = aten::cat([%3, %2], -1) -> f32[6,16]\n"
	                     "%5 = aten::mul.Tensor(%0, @cos)" Q "%6 = aten::slice.Tensor(%0, 3, 0, 8, 1)" HALF(
							 "%0") "%7 = aten::slice.Tensor(%0, 3, 8, 9223372036854775807, "
	                               "1)" HALF("%0") "%8 = aten::cat([%7, %6], -1)" Q
	                                               "%9 = aten::addcmul(%5, %8, %4, 1)" Q ENDS("%9"));
	check_rotary(ROTARY("%2, %4", "8", "%1, %6, 1"), NULL);
	check_rotary(ROTARY("%4, %2", "8", "%1, %6, 2"), NULL);
	check_rotary(ROTARY("%4, %2", "8", "%6, %1, 1"), NULL);
	check_rotary(ROTARY("%4, %2", "8", "%6, %6, 1"), NULL);
}

/* ---- views --------------------------------------------------------------------------------------------------------- */

static void check_views(const char *text, const char *want)
{
	check_nodes((job){.text = text, .run = pass_views, .spec = fast}, want);
}

#define PRODUCT                                                                                                        \
	HEAD "symbol B 1..64\ninput %0 f32[4*B,8] name=\"x\"\nparam @w f32[8,16]\nparam @c f32[16]\n"                      \
		 "%1 = aten::addmm(@c, %0, @w, 1, 1) -> f32[4*B,16]\n"                                                         \
		 "%2 = aten::view(%1, [B, 4, 16]) -> f32[B,4,16] view-of %1\n"

static const char shaped[] = PRODUCT "%3 = aten::gelu(%2, \"tanh\") -> f32[B,4,16]\n"
									 "%4 = aten::view(%3, [4*B, 16]) -> f32[4*B,16] view-of %3\n" ENDS("%4");

static void an_activation_comes_before_the_view_of_a_product(void **state)
{
	(void)state;
	check_views(shaped, "%1 = aten::addmm(@c, %0, @w, 1, 1) -> f32[4*B,16]\n"
	                    "%2 = aten::gelu(%1, \"tanh\") -> f32[4*B,16]\n"
	                    "%3 = aten::view(%2, [B, 4, 16]) -> f32[B,4,16] view-of %2\n"
	                    "%4 = aten::view(%3, [4*B, 16]) -> f32[4*B,16] view-of %2\n" ENDS("%4"));
	check_views(PRODUCT "%3 = aten::relu(%2) -> f32[B,4,16]\n" ENDS("(%2, %3)"), NULL);
	check_views(PRODUCT "%3 = aten::relu(%2) -> f32[B,4,16]\n%4 = aten::cos(%1) -> f32[4*B,16]\n" ENDS("(%3, %4)"),
	            NULL);
	check_views(PRODUCT "%3 = aten::relu_(%2) -> f32[B,4,16] view-of %1 writes %1\n" ENDS("%3"), NULL);
	check_views(PRODUCT "%3 = aten::cos(%2) -> f32[B,4,16]\n" ENDS("%3"), NULL);
	check_views(PRODUCT "%3 = aten::relu(%2) -> f32[B,4,16] {autocast=cpu:bf16}\n" ENDS("%3"), NULL);
}

/* ---- random programs ----------------------------------------------------------------------------------------------- */

/* Programs of steps, some of which spell out a function; before and after they give the same numbers and leave the
   same in what they write. */
enum { POINTS = 16 };

typedef struct run {
	const plan *p;
	double (*at)[POINTS]; /* per owner of memory */
} run;

static double number_at(const run *r, const arg *a, uint32_t k)
{
	int64_t whole = 0;
	if (a->kind == ARG_VALUE)
		return r->at[alias_root(r->p, a->u.v)][k];
	if (a->kind == ARG_INT)
		(void)expr_is_const(r->p, a->u.e, &whole);
	return a->kind == ARG_FLOAT ? a->u.f : (double)whole;
}

static double apply_op(const char *op, double a, double b)
{
	if (!strcmp(op, "aten::mul.Tensor") || !strcmp(op, "aten::mul_.Tensor"))
		return a * b;
	if (!strcmp(op, "aten::add.Tensor") || !strcmp(op, "aten::add_.Tensor"))
		return a + b;
	if (!strcmp(op, "aten::div.Tensor") || !strcmp(op, "aten::div_.Tensor"))
		return a / b;
	if (!strcmp(op, "aten::sigmoid") || !strcmp(op, "aten::sigmoid_"))
		return 1 / (1 + exp(-a));
	if (!strcmp(op, "aten::relu6") || !strcmp(op, "aten::relu6_"))
		return fmin(fmax(a, 0), 6);
	if (!strcmp(op, "aten::silu") || !strcmp(op, "aten::silu_"))
		return a / (1 + exp(-a));
	if (!strcmp(op, "aten::hardsigmoid") || !strcmp(op, "aten::hardsigmoid_"))
		return fmin(fmax(a + 3, 0), 6) / 6;
	if (!strcmp(op, "aten::hardswish") || !strcmp(op, "aten::hardswish_"))
		return a * fmin(fmax(a + 3, 0), 6) / 6;
	if (!strcmp(op, "aten::tanh"))
		return tanh(a);
	fail_msg("the model of a run does not know %s", op);
	return 0;
}

static void run_plan(run *r)
{
	const plan *p = r->p;
	for (node_id n = 0; n < p->nodes.n; n++) {
		const node *x = &p->nodes.at[n];
		const arg *a = &p->args.at[x->args];
		value_id to = alias_root(p, p->args.at[x->results].u.v);
		double out[POINTS];
		for (uint32_t k = 0; k < POINTS; k++)
			out[k] = apply_op(plan_s(p, x->op), number_at(r, &a[0], k), x->nargs > 1 ? number_at(r, &a[1], k) : 0);
		memcpy(r->at[to], out, sizeof out);
	}
}

static run start_run(const plan *p)
{
	run r = {p, mem_alloc((p->values.n + 1) * sizeof *r.at)};
	assert_non_null(r.at);
	for (uint32_t k = 0; k < POINTS; k++)
		r.at[p->inputs.at[0]][k] = ((double)k - 7.5) * 0.9;
	return r;
}

typedef struct writer {
	strbuf text;
	uint64_t random;
	uint32_t n;         /* the last label */
	uint32_t owner[64]; /* per label: the first on its memory */
} writer;

static uint32_t any_label(writer *w)
{
	uint32_t near = w->n > 4 && random_below(&w->random, 4) ? w->n - 4 : 0;
	return near + random_below(&w->random, w->n + 1 - near);
}

static uint32_t put_step(writer *w, const char *op, uint32_t a, const char *rest, bool in_place)
{
	uint32_t n = ++w->n;
	w->owner[n] = in_place ? w->owner[a] : n;
	strbuf_printf(&w->text, "%%%u = aten::%s(%%%u%s) -> f32[16]", n, op, a, rest);
	if (in_place)
		strbuf_printf(&w->text, " view-of %%%u writes %%%u", w->owner[a], w->owner[a]);
	strbuf_puts(&w->text, "\n");
	return n;
}

static uint32_t put_two(writer *w, const char *op, uint32_t a, uint32_t b, const char *rest, bool in_place)
{
	char text[32];
	(void)snprintf(text, sizeof text, ", %%%u%s", b, rest);
	return put_step(w, op, a, text, in_place);
}

/* x * sigmoid(x), x * relu6(x + 3) / 6, or a step; now and then with something between or in place. */
static void put_something(writer *w)
{
	uint32_t x = any_label(w), y = any_label(w);
	bool in_place = !random_below(&w->random, 5), other = !random_below(&w->random, 6);
	switch (random_below(&w->random, 6)) {
	case 0:
		y = put_step(w, "sigmoid", x, "", false);
		if (other)
			put_step(w, "add_.Tensor", any_label(w), ", num(0.25), 1", true);
		put_two(w, in_place ? "mul_.Tensor" : "mul.Tensor", x, y, "", in_place);
		break;
	case 1:
		y = put_step(w, "add.Tensor", x, other ? ", num(2), 1" : ", num(3), 1", false);
		y = put_step(w, in_place ? "relu6_" : "relu6", y, "", in_place);
		y = put_two(w, "mul.Tensor", y, x, "", false);
		put_step(w, in_place ? "div_.Tensor" : "div.Tensor", y, ", num(6.0)", in_place);
		break;
	case 2: put_two(w, "mul.Tensor", x, y, "", false); break;
	case 3: put_step(w, in_place ? "sigmoid_" : "tanh", x, "", in_place); break;
	case 4: put_two(w, in_place ? "add_.Tensor" : "add.Tensor", x, y, ", 1", in_place); break;
	default: put_step(w, "mul.Tensor", x, ", num(0.5)", false); break;
	}
}

static char *random_program(uint64_t seed)
{
	writer w = {.text = STRBUF_INIT, .random = seed};
	strbuf_puts(&w.text, HEAD "input %0 f32[16] name=\"x\"\n");
	for (uint32_t i = 2 + random_below(&w.random, 8); i; i--)
		put_something(&w);
	strbuf_printf(&w.text, "inputs ((%%0,), {})\noutput (%%%u, %%%u)\n", w.n, any_label(&w));
	return taken(&w.text);
}

static void check_same(const run *a, const run *b, value_id v, const char *text)
{
	const double *x = a->at[alias_root(a->p, v)], *y = b->at[alias_root(b->p, v)];
	for (uint32_t k = 0; k < POINTS; k++)
		if (fabs(x[k] - y[k]) > 1e-9 * (1 + fabs(x[k])))
			fail_msg("%g became %g in\n%s", x[k], y[k], text);
}

static void random_programs_give_the_same_numbers(void **state)
{
	uint32_t changes = 0;
	(void)state;
	for (uint64_t seed = 1; seed <= 4000; seed++) {
		char *text = random_program(seed);
		plan *p = load_ok(text);
		edit e;
		OK(edit_new(p, 0, p->nodes.n, &e));
		OK(pass_functions(&e, &fast, &changes));
		OK(edit_apply(&e));
		run before = start_run(p), after = start_run(e.p);
		run_plan(&before);
		run_plan(&after);
		check_same(&before, &after, p->inputs.at[0], text);
		for (uint32_t i = 0; i < p->out_tree.n; i++)
			if (p->out_tree.at[i].kind == TREE_VALUE)
				check_same(&before, &after, p->out_tree.at[i].u.v, text);
		mem_free(before.at);
		mem_free(after.at);
		edit_free(&e);
		plan_free(p);
		mem_free(text);
	}
	assert_true(changes > 1000);
}

/* ---- faults -------------------------------------------------------------------------------------------------------- */

static void memory_may_run_out_anywhere(void **state)
{
	(void)state;
	const job jobs[] = {
		{.text = new_gelu, .run = pass_functions, .spec = fast},
		{.text = rms, .run = pass_norms, .spec = fast},
		{.text = GROUPED("f32", "0.0"), .run = pass_attention, .spec = fast},
		{.text = spelt, .run = pass_attention, .spec = fast},
		{.text = rotary, .run = pass_rotary, .spec = fast},
		{.text = shaped, .run = pass_views, .spec = fast},
	};
	for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++)
		assert_true(sweep_faults(attempt_job, &jobs[i], CLV_OK) > 20);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_gelu_in_eight_steps_is_one),
		cmocka_unit_test(other_numbers_are_another_function),
		cmocka_unit_test(activations_have_their_operators),
		cmocka_unit_test(any_spelling_counts),
		cmocka_unit_test(a_bump_of_any_width_is_seen),
		cmocka_unit_test(only_the_function_goes_not_what_it_is_of),
		cmocka_unit_test(steps_in_place_are_steps),
		cmocka_unit_test(what_others_need_stays),
		cmocka_unit_test(doubles_are_compared_as_doubles),
		cmocka_unit_test(rms_norms_are_one_kernel_on_cuda),
		cmocka_unit_test(what_is_no_rms_norm_stays),
		cmocka_unit_test(a_weight_of_another_kind_is_multiplied_apart),
		cmocka_unit_test(layer_norms_are_one_operator),
		cmocka_unit_test(groups_get_copies_of_their_keys_in_f32_on_cuda),
		cmocka_unit_test(attention_that_is_spelt_out_is_one_call),
		cmocka_unit_test(masks_must_be_finite),
		cmocka_unit_test(what_is_another_attention_stays),
		cmocka_unit_test(the_sign_of_a_rotation_goes_into_the_sine),
		cmocka_unit_test(an_activation_comes_before_the_view_of_a_product),
		cmocka_unit_test(random_programs_give_the_same_numbers),
		cmocka_unit_test(memory_may_run_out_anywhere),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
