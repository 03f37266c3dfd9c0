/* Results on the memory of what they are made of: text of a plan in, text out. */
#include "support.h"

#include "optimize/optimize.h"

#define HEAD "cleave-plan 1\nmodel \"M\" training=no grad=any\n"
#define X HEAD "input %0 f32[4,4] name=\"x\"\nparam @w f32[4,4]\nconst #0 f32[4,4]\n"
#define OWN X "%1 = aten::mm(%0, @w) -> f32[4,4]\n" /* memory of the range */

static const char *const *all_but_this(void)
{
	static const char *off[32];
	uint32_t n = 0;
	for (const pass *x = passes; x->name; x++)
		if (strcmp(x->name, "in_place") != 0)
			off[n++] = x->name;
	return off;
}

static void check(node_id first, node_id end, const char *before, const char *after)
{
	plan *p = load_ok(before), *want = load_ok(after);
	optimize_spec s = {.level = OPTIMIZE_SAFE, .off = all_but_this()};
	optimized_plan o;
	OK(optimize(p, first, end == NONE ? p->nodes.n : end, &s, &o));
	char *text = print_ok(o.p), *wanted = print_ok(want);
	assert_string_equal(text, wanted);
	assert_int_equal(o.counts.n, strcmp(before, after) != 0);
	mem_free(text);
	mem_free(wanted);
	plan_free(p);
	plan_free(want);
	optimized_plan_free(&o);
}

static void becomes(const char *before, const char *after)
{
	check(0, NONE, before, after);
}

static void stays(const char *text)
{
	check(0, NONE, text, text);
}

static void a_result_takes_the_memory_of_what_dies(void **state)
{
	(void)state;
	becomes(OWN "%2 = aten::relu(%1) -> f32[4,4]\noutput %2\n",
	        OWN "%2 = aten::relu_(%1) -> f32[4,4] view-of %1 writes %1\noutput %2\n");
	becomes(OWN "%2 = aten::add.Tensor(%1, %0, 2) -> f32[4,4]\noutput %2\n",
	        OWN "%2 = aten::add_.Tensor(%1, %0, 2) -> f32[4,4] view-of %1 writes %1\noutput %2\n");
	becomes(OWN "%2 = aten::mul.Tensor(%1, num(0.5)) -> f32[4,4]\noutput %2\n",
	        OWN "%2 = aten::mul_.Tensor(%1, num(0.5)) -> f32[4,4] view-of %1 writes %1\noutput %2\n");
	becomes(OWN "%2 = aten::pow.Tensor_Scalar(%1, 3) -> f32[4,4]\noutput %2\n",
	        OWN "%2 = aten::pow_.Scalar(%1, 3) -> f32[4,4] view-of %1 writes %1\noutput %2\n");
}

static void one_after_another_on_the_same_memory(void **state)
{
	(void)state;
	becomes(OWN "%2 = aten::view(%1, [16]) -> f32[16] view-of %1\n"
	            "%3 = aten::tanh(%2) -> f32[16]\n"
	            "%4 = aten::view(%3, [2, 8]) -> f32[2,8] view-of %3\n"
	            "%5 = aten::exp(%4) -> f32[2,8]\n"
	            "%6 = aten::detach(%5) -> f32[2,8] view-of %5\n"
	            "output %6\n",
	        OWN "%2 = aten::view(%1, [16]) -> f32[16] view-of %1\n"
	            "%3 = aten::tanh_(%2) -> f32[16] view-of %1 writes %2\n"
	            "%4 = aten::view(%3, [2, 8]) -> f32[2,8] view-of %1\n"
	            "%5 = aten::exp_(%4) -> f32[2,8] view-of %1 writes %4\n"
	            "%6 = aten::detach(%5) -> f32[2,8] view-of %1\n"
	            "output %6\n");
}

/* The second sees what the first made, so only it may write there. */
static void the_last_reader_writes(void **state)
{
	(void)state;
	becomes(OWN "%2 = aten::sigmoid(%1) -> f32[4,4]\n"
	            "%3 = aten::mul.Tensor(%1, %2) -> f32[4,4]\n"
	            "output %3\n",
	        OWN "%2 = aten::sigmoid(%1) -> f32[4,4]\n"
	            "%3 = aten::mul_.Tensor(%1, %2) -> f32[4,4] view-of %1 writes %1\n"
	            "output %3\n");
}

static void what_others_need_is_not_written(void **state)
{
	(void)state;
	static const char *const texts[] = {
		/* not made here */
		X "%1 = aten::relu(%0) -> f32[4,4]\noutput %1\n",
		X "%1 = aten::relu(@w) -> f32[4,4]\noutput %1\n",
		X "%1 = aten::relu(#0) -> f32[4,4]\noutput %1\n",
		X "%1 = aten::view(%0, [4, 4]) -> f32[4,4] view-of %0\n%2 = aten::relu(%1) -> f32[4,4]\noutput %2\n",
		/* read later, or by the caller; also through a view */
		OWN "%2 = aten::relu(%1) -> f32[4,4]\n%3 = aten::mm(%1, %2) -> f32[4,4]\noutput %3\n",
		OWN "%2 = aten::relu(%1) -> f32[4,4]\noutput (%1, %2)\n",
		OWN "%2 = aten::t(%1) -> f32[4,4] view-of %1\n%3 = aten::relu(%1) -> f32[4,4]\n"
			"%4 = aten::mm(%2, %3) -> f32[4,4]\noutput %4\n",
		OWN "%2 = aten::t(%1) -> f32[4,4] view-of %1\n%3 = aten::relu(%1) -> f32[4,4]\noutput (%2, %3)\n",
		/* the other argument is on the memory */
		OWN "%2 = aten::add.Tensor(%1, %1, 1) -> f32[4,4]\noutput %2\n",
		OWN "%2 = aten::t(%1) -> f32[4,4] view-of %1\n%3 = aten::add.Tensor(%1, %2, 1) -> f32[4,4]\noutput %3\n",
		/* may be a view of it in another run */
		OWN "%2 = aten::reshape(%1, [2, 8]) -> f32[2,8]\n%3 = aten::relu(%1) -> f32[4,4]\noutput (%2, %3)\n",
		OWN "%2 = test::part(%1, 0) -> f32[4,4]\n%3 = aten::relu(%1) -> f32[4,4]\noutput (%2, %3)\n",
		X "%1 = aten::t(@w) -> f32[4,4] view-of @w\n%2 = aten::contiguous(%1, memory:contiguous) -> f32[4,4]\n"
		  "%3 = aten::relu(%2) -> f32[4,4]\noutput %3\n",
		/* the module keeps it */
		OWN "%2 = aten::relu(%1) -> f32[4,4]\noutput %2\nrebind @w = %1\n",
		/* set_ joins memories */
		OWN "%2 = aten::mm(%0, %0) -> f32[4,4]\n"
			"%3 = aten::set_.source_Tensor(%2, %1) -> f32[4,4] view-of %2 writes %2\n"
			"%4 = aten::relu(%1) -> f32[4,4]\noutput (%3, %4)\n",
	};
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		stays(texts[i]);
}

static void results_of_another_kind_get_memory(void **state)
{
	(void)state;
	static const char *const texts[] = {
		/* wider, of another type, of integers, complex */
		OWN "%2 = aten::mm(%0, %0) -> f32[1,4]\n%3 = aten::add.Tensor(%2, %1, 1) -> f32[4,4]\noutput %3\n",
		HEAD "input %0 f16[4,4] name=\"x\"\ninput %1 f32[4,4] name=\"y\"\n%2 = aten::mm(%0, %0) -> f16[4,4]\n"
			 "%3 = aten::mul.Tensor(%2, %1) -> f32[4,4]\noutput %3\n",
		HEAD "input %0 f16[4,4] name=\"x\"\ninput %1 f32[4,4] name=\"y\"\n%2 = aten::mm(%1, %1) -> f32[4,4]\n"
			 "%3 = aten::mul.Tensor(%2, %0) -> f32[4,4]\noutput %3\n",
		HEAD "input %0 i64[4,4] name=\"x\"\n%1 = aten::mm(%0, %0) -> i64[4,4]\n"
			 "%2 = aten::relu(%1) -> i64[4,4]\noutput %2\n",
		HEAD "input %0 c64[4,4] name=\"x\"\n%1 = aten::mm(%0, %0) -> c64[4,4]\n"
			 "%2 = aten::exp(%1) -> c64[4,4]\noutput %2\n",
		HEAD "input %0 c64[4,4] name=\"x\"\n%1 = aten::mm(%0, %0) -> c64[4,4]\n"
			 "%2 = aten::abs(%1) -> f32[4,4]\noutput %2\n",
		/* spread over it; without dimensions */
		OWN "%2 = aten::mm(%0, %0) -> f32[4]\n%3 = aten::add.Tensor(%1, %2, 1) -> f32[4,4]\noutput %3\n",
		OWN "%2 = aten::sum(%0, none) -> f32[]\n%3 = aten::add.Tensor(%1, %2, 1) -> f32[4,4]\noutput %3\n",
		/* a part of its memory, or strides that nobody knows */
		OWN "%2 = aten::slice.Tensor(%1, 0, 0, 2, 1) -> f32[2,4] view-of %1\n%3 = aten::relu(%2) -> f32[2,4]\noutput "
			"%3\n",
		OWN "%2 = aten::t(%1) -> f32[4,4] view-of %1\n%3 = aten::relu(%2) -> f32[4,4]\noutput %3\n",
		X "%1 = test::strange(%0) -> f32[4,4]\n%2 = aten::relu(%1) -> f32[4,4]\noutput %2\n",
		/* autocast */
		OWN "%2 = aten::relu(%1) -> f32[4,4] {autocast=cpu:bf16}\noutput %2\n",
		/* made in inference mode, read outside */
		X "%1 = aten::mm(%0, @w) -> f32[4,4] {inference}\n%2 = aten::relu(%1) -> f32[4,4]\noutput %2\n",
		/* no such form */
		OWN "%2 = aten::softmax.int(%1, 0, none) -> f32[4,4]\noutput %2\n",
		OWN "%2 = aten::dropout(%1, 0.5, true) -> f32[4,4] {random}\noutput %2\n",
	};
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		stays(texts[i]);
}

#define CONV(shape)                                                                                                    \
	HEAD "symbol B 1..9\ninput %0 f32[B,3,8,8] name=\"x\"\nparam @k f32[4,3,3,3]\n"                                    \
		 "%1 = aten::conv2d(%0, @k, none, [1, 1], [1, 1], [1, 1], 1) -> f32" shape "\n"

/* Weights may be channels-last, and the images then are; of what is the same in both layouts strides are not certain. */
static void images_keep_their_strides(void **state)
{
	(void)state;
	becomes(CONV("[B,4,8,8]") "%2 = aten::silu(%1) -> f32[B,4,8,8]\n%3 = aten::sub.Tensor(%2, %0, 1) -> "
	                          "f32[B,4,8,8]\noutput %2\n",
	        CONV("[B,4,8,8]") "%2 = aten::silu_(%1) -> f32[B,4,8,8] view-of %1 writes %1\n"
	                          "%3 = aten::sub.Tensor(%2, %0, 1) -> f32[B,4,8,8]\noutput %2\n");
	becomes(CONV("[B,4,8,8]") "%2 = aten::group_norm(%1, 2, none, none, 1e-05, true) -> f32[B,4,8,8]\n"
	                          "%3 = aten::relu(%2) -> f32[B,4,8,8]\noutput %3\n",
	        CONV("[B,4,8,8]") "%2 = aten::group_norm(%1, 2, none, none, 1e-05, true) -> f32[B,4,8,8]\n"
	                          "%3 = aten::relu_(%2) -> f32[B,4,8,8] view-of %2 writes %2\noutput %3\n");
	/* a norm may give the strides of what it gets, and those of inputs may be odd where sizes are 1 */
	stays(HEAD "input %0 f32[1,4,8,8] name=\"x\"\n%1 = aten::group_norm(%0, 2, none, none, 1e-05, true) -> "
	           "f32[1,4,8,8]\n%2 = aten::relu(%1) -> f32[1,4,8,8]\noutput %2\n");
	stays(CONV("[B,1,8,8]") "%2 = aten::silu(%1) -> f32[B,1,8,8]\noutput %2\n");
	stays(CONV("[B,4,1,8]") "%2 = aten::silu(%1) -> f32[B,4,1,8]\noutput %2\n");
	stays(CONV("[B,4,1,1]") "%2 = aten::silu(%1) -> f32[B,4,1,1]\noutput %2\n");
	stays(CONV("[B,4,B,8]") "%2 = aten::silu(%1) -> f32[B,4,B,8]\noutput %2\n");
	/* a flat copy of a channels-last image is a view of a row-major one */
	stays(CONV("[B,4,8,8]") "%2 = aten::flatten.using_ints(%1, 1, 3) -> f32[B,256]\n"
	                        "%3 = aten::relu(%1) -> f32[B,4,8,8]\noutput (%2, %3)\n");
	/* other nodes may turn what they write */
	stays(CONV("[B,4,8,8]") "%2 = aten::transpose_(%1, 2, 3) -> f32[B,4,8,8] view-of %1 writes %1\n"
	                        "%3 = aten::relu(%1) -> f32[B,4,8,8]\noutput %3\n");
}

static void what_leaves_the_range_is_not_written(void **state)
{
	(void)state;
	static const char text[] = OWN "%2 = aten::relu(%1) -> f32[4,4]\n"
								   "%3 = aten::tanh(%2) -> f32[4,4]\n"
								   "%4 = aten::mm(%2, %3) -> f32[4,4]\n"
								   "output %4\n";
	check(1, 3, text, text); /* %1 is given, %2 is read after */
	check(0, 3, text,
	      OWN "%2 = aten::relu_(%1) -> f32[4,4] view-of %1 writes %1\n"
	          "%3 = aten::tanh(%2) -> f32[4,4]\n"
	          "%4 = aten::mm(%2, %3) -> f32[4,4]\n"
	          "output %4\n");
}

static void check_parts(bool guards_first, node_id main, const char *before, const char *after)
{
	plan *p = load_ok(before);
	optimize_spec s = {.level = OPTIMIZE_SAFE, .guards_first = guards_first};
	optimized_plan o;
	OK(optimize(p, 0, p->nodes.n, &s, &o));
	char *text = print_ok(o.p);
	assert_int_equal(o.part[PART_MAIN], main);
	assert_string_equal(text, after);
	mem_free(text);
	optimized_plan_free(&o);
	plan_free(p);
}

static void what_is_made_before_every_run_is_not_written(void **state)
{
	(void)state;
	check_parts(false, 2,
	            X "%1 = aten::sin(#0) -> f32[4,4]\n"
	              "%2 = aten::cos(%1) -> f32[4,4]\n"
	              "%3 = aten::mul.Tensor(%2, %0) -> f32[4,4]\n"
	              "%4 = aten::exp(%3) -> f32[4,4]\n"
	              "output %4\n",
	            X "%1 = aten::sin(#0) -> f32[4,4]\n"
	              "%2 = aten::cos(%1) -> f32[4,4]\n"
	              "%3 = aten::mul.Tensor(%2, %0) -> f32[4,4]\n"
	              "%4 = aten::exp_(%3) -> f32[4,4] view-of %3 writes %3\n"
	              "output %4\n");
}

#define SIZED HEAD "symbol B 1..9\ninput %0 f32[B] name=\"x\"\n"

static void what_follows_sizes_is_not_written(void **state)
{
	(void)state;
	check_parts(false, 2,
	            SIZED "%1 = aten::ones([B], none, none, none, none) -> f32[B]\n"
	                  "%2 = aten::sin(%1) -> f32[B]\n"
	                  "%3 = aten::mul.Tensor(%2, %0) -> f32[B]\n"
	                  "output %3\n",
	            SIZED "%1 = aten::ones([B], none, none, none, none) -> f32[B]\n"
	                  "%2 = aten::sin(%1) -> f32[B]\n"
	                  "%3 = aten::mul.Tensor(%2, %0) -> f32[B]\n"
	                  "output %3\n");
}

/* Guards that are to come first take what they read along; others do not matter. */
static void what_guards_need_is_not_written(void **state)
{
	(void)state;
	static const char before[] = X "%1 = aten::mm(%0, %0) -> f32[4,4]\n"
								   "%2 = aten::neg(%1) -> f32[4,4]\n"
								   "%3 = aten::all(%2) -> bool[]\n"
								   "%4 = aten::is_nonzero(%3) -> bool = true {host}\n"
								   "output %0\n";
	check_parts(true, 4, before, before);
	check_parts(false, 0, before,
	            X "%1 = aten::mm(%0, %0) -> f32[4,4]\n"
	              "%2 = aten::neg_(%1) -> f32[4,4] view-of %1 writes %1\n"
	              "%3 = aten::all(%2) -> bool[]\n"
	              "%4 = aten::is_nonzero(%3) -> bool = true {host}\n"
	              "output %0\n");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_result_takes_the_memory_of_what_dies),
		cmocka_unit_test(one_after_another_on_the_same_memory),
		cmocka_unit_test(the_last_reader_writes),
		cmocka_unit_test(what_others_need_is_not_written),
		cmocka_unit_test(results_of_another_kind_get_memory),
		cmocka_unit_test(images_keep_their_strides),
		cmocka_unit_test(what_leaves_the_range_is_not_written),
		cmocka_unit_test(what_is_made_before_every_run_is_not_written),
		cmocka_unit_test(what_follows_sizes_is_not_written),
		cmocka_unit_test(what_guards_need_is_not_written),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
