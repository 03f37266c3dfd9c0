/* The native engine: plans lowered and run without torch. */
#include "artifacts.h"

#include <malloc.h>

#include "native/program.h"
#include "runtime/runtime.h"

extern const engine engine_native;

static artifact *file_of(const char *text)
{
	artifact *a = new_artifact(text);
	OK(artifact_ready(a));
	return a;
}

static clv_runtime *runtime_of(const char *text)
{
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	clv_runtime *r = NULL;
	artifact *a = file_of(text);
	o.engine = "native";
	o.unproven = true;
	OK(clv_runtime_create(a, &o, &r));
	artifact_free(a);
	return r;
}

#define HEAD "cleave-plan 1\nmodel \"Net\" training=no grad=no\nsymbol B 1..8\n"

static void a_plan_runs_from_text(void **state)
{
	clv_runtime *r = runtime_of(HEAD "input %0 f32[B,2] name=\"x\" strides(1,B)\n"
	                                 "%1 = aten::detach(%0) -> f32[B,2] view-of %0\n"
	                                 "%2 = aten::contiguous(%1) -> f32[B,2]\noutput (%2, %2, B)\n");
	clv_tensor *x, *columns, *y[2] = {0};
	(void)state;
	assert_string_equal(clv_runtime_engine(r), "native");
	for (int run = 0; run < 3; run++) {
		OK(clv_tensor_from_data((float[]){1, 2, 3, 4, 5, 6}, "f32", 2, (int64_t[]){2, 3}, &x));
		OK(tensor_view(
			x, 0, &(tensor_form){.dtype = DT_F32, .ndim = 2, .sizes = (int64_t[]){3, 2}, .strides = (int64_t[]){1, 3}},
			&columns));
		OK(clv_runtime_run(r, (const clv_tensor *const[]){columns}, 1, y, 2));
		assert_memory_equal(clv_tensor_data(y[0]), ((float[]){1, 4, 2, 5, 3, 6}), 24);
		assert_ptr_equal(y[0], y[1]);
		clv_tensor_free(x);
		clv_tensor_free(columns);
		clv_tensor_free(y[0]);
		clv_tensor_free(y[1]);
	}
	clv_runtime_free(r);
}

static void an_input_that_comes_out_is_the_input(void **state)
{
	clv_runtime *r =
		runtime_of(HEAD "input %0 f32[B] name=\"x\"\n%1 = aten::alias(%0) -> f32[B] view-of %0\noutput (%0, %1)\n");
	clv_tensor *x, *y[2] = {0};
	(void)state;
	OK(clv_tensor_from_data((float[]){1, 2, 3}, "f32", 1, (int64_t[]){3}, &x));
	OK(clv_runtime_run(r, (const clv_tensor *const[]){x}, 1, y, 2));
	assert_ptr_equal(y[0], x);
	assert_ptr_equal(clv_tensor_data(y[1]), clv_tensor_data(x));
	clv_tensor_free(x);
	clv_tensor_free(y[0]);
	clv_tensor_free(y[1]);
	clv_runtime_free(r);
}

static void what_it_does_not_take_has_a_reason(void **state)
{
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	clv_runtime *r = NULL;
	artifact *a =
		file_of(HEAD "input %0 f32[B] name=\"x\"\n%1 = mylib::strange(%0) -> f32[B] at \"net.py:3\"\noutput %1\n");
	(void)state;
	o.engine = "native";
	FAILS(clv_runtime_create(a, &o, &r), CLV_E_UNSUPPORTED,
	      "native does not take mylib::strange (net.py:3): there is no kernel");
	artifact_free(a);
}

static void a_guard_ends_a_run_that_reads_another_value(void **state)
{
	clv_runtime *r = runtime_of(HEAD "input %0 i64[] name=\"x\"\ninput %1 f32[B] name=\"y\"\n"
	                                 "%2 = aten::item(%0) -> int = 2*B {host}\n"
	                                 "%3 = aten::detach(%1) -> f32[B] view-of %1\noutput %3\n");
	clv_tensor *x, *y, *out = NULL;
	(void)state;
	OK(clv_tensor_from_data((float[]){1, 2, 3}, "f32", 1, (int64_t[]){3}, &y));
	OK(clv_tensor_from_data((int64_t[]){6}, "i64", 0, NULL, &x));
	OK(clv_runtime_run(r, (const clv_tensor *const[]){x, y}, 2, &out, 1));
	clv_tensor_free(out);
	clv_tensor_free(x);
	OK(clv_tensor_from_data((int64_t[]){7}, "i64", 0, NULL, &x));
	FAILS(clv_runtime_run(r, (const clv_tensor *const[]){x, y}, 2, &out, 1), CLV_E_GUARD, "captured, now it is 7");
	assert_string_equal(clv_last_error_details()->expected, "6");
	assert_true(clv_last_error_details()->undone);
	clv_tensor_free(x);
	clv_tensor_free(y);
	clv_runtime_free(r);
}

/* ---- steady runs ------------------------------------------------------------------------------------------------------- */

/* Outputs of half a megabyte, which the heap maps; an input that has to be copied; chains, a product, a convolution. */
#define STEADY                                                                                                         \
	HEAD "input %0 f32[B,3,64,64] name=\"x\"\n"                                                                        \
		 "%1 = aten::repeat(%0, [1, 6, 1, 1]) -> f32[B,18,64,64]\n"                                                    \
		 "%2 = aten::softmax.int(%1, -1, none) -> f32[B,18,64,64]\n"                                                   \
		 "%3 = aten::matmul(%2, %2) -> f32[B,18,64,64]\n%4 = aten::max_pool2d(%3, [2, 2], [2, 2], [0, 0], [1, 1], "    \
		 "false) -> f32[B,18,32,32]\n%5 = aten::gelu(%1, \"none\") -> f32[B,18,64,64]\noutput (%3, %4, %5, %2)\n"

static void drop(clv_tensor **y)
{
	for (int i = 0; i < 4; i++)
		clv_tensor_free(y[i]);
}

/* Also where the caller holds one result while the next is made. */
static void a_steady_run_allocates_nothing(void **state)
{
	(void)state;
	if (ADDRESS_SANITIZER)
		skip(); /* memory is not used again, so that it sees who reads what is freed */
	clv_runtime *r = runtime_of(STEADY);
	float *numbers = calloc(2 * 3 * 64 * 64, sizeof *numbers);
	clv_tensor *x, *y[2][4];
	struct mallinfo2 before = {0};
	OK(clv_tensor_from_data(numbers, "f32", 4, (int64_t[]){2, 3, 64, 64}, &x));
	for (int i = 0; i < 20; i++) {
		if (i >= 2)
			drop(y[i % 2]);
		mem_fail_after(i < 4 ? 0 : 1);
		clv_status st = clv_runtime_run(r, (const clv_tensor *const[]){x}, 1, y[i % 2], 4);
		bool allocated = i >= 4 && !mem_fail_waits();
		mem_fail_after(0);
		OK(st);
		assert_false(allocated);
		struct mallinfo2 now = mallinfo2(); /* nor does a library */
		if (i < 4)
			before = now;
		assert_int_equal(now.uordblks, before.uordblks);
		assert_int_equal(now.hblkhd, before.hblkhd);
		assert_int_equal(now.arena, before.arena);
	}
	drop(y[0]);
	drop(y[1]);
	clv_tensor_free(x);
	clv_runtime_free(r);
	free(numbers);
}

static void what_a_caller_holds_is_not_used_again(void **state)
{
	clv_runtime *r = runtime_of(HEAD "input %0 f32[B] name=\"x\"\n%1 = aten::neg(%0) -> f32[B]\noutput %1\n");
	clv_tensor *x, *y[8];
	(void)state;
	for (int i = 0; i < 8; i++) {
		OK(clv_tensor_from_data((float[]){(float)i, 1}, "f32", 1, (int64_t[]){2}, &x));
		OK(clv_runtime_run(r, (const clv_tensor *const[]){x}, 1, &y[i], 1));
		clv_tensor_free(x);
	}
	clv_tensor_free(y[3]);
	OK(clv_tensor_from_data((float[]){30, 1}, "f32", 1, (int64_t[]){2}, &x));
	OK(clv_runtime_run(r, (const clv_tensor *const[]){x}, 1, &y[3], 1));
	clv_tensor_free(x);
	clv_runtime_free(r); /* results outlive the runtime */
	for (int i = 0; i < 8; i++) {
		assert_true(*(const float *)clv_tensor_data(y[i]) == (i == 3 ? -30.0f : (float)-i));
		clv_tensor_free(y[i]);
	}
}

/* ---- concatenations ---------------------------------------------------------------------------------------------------- */

/* Steps that the only plan of a runtime makes of concatenations, once it has run; `others`: all other steps. */
static uint32_t steps_of_cat(const clv_runtime *r, uint32_t *others)
{
	const native_program *g = r->plans.at[0].program;
	uint32_t n = 0;
	*others = 0;
	assert_non_null(g->shaped);
	for (uint32_t i = 0; i < g->shaped->steps.n; i++) {
		node_id at = g->shaped->steps.at[i].node;
		bool cat = at != NONE && strcmp(plan_s(g->p, g->p->nodes.at[at].op), "aten::cat") == 0;
		n += cat;
		*others += !cat;
	}
	return n;
}

static uint32_t cat_steps(const char *text, uint32_t *others)
{
	clv_runtime *r = runtime_of(text);
	float *numbers = calloc(2 * 8 * 6 * 6, sizeof *numbers);
	clv_tensor *x, *y = NULL;
	OK(clv_tensor_from_data(numbers, "f32", 4, (int64_t[]){2, 8, 6, 6}, &x));
	OK(clv_runtime_run(r, (const clv_tensor *const[]){x}, 1, &y, 1));
	uint32_t n = steps_of_cat(r, others);
	clv_tensor_free(x);
	clv_tensor_free(y);
	clv_runtime_free(r);
	free(numbers);
	return n;
}

#define IMAGE HEAD "input %0 f32[B,8,6,6] name=\"x\"\n"
#define POOL(to, size)                                                                                                 \
	to " = aten::max_pool2d(%0, [" size ", " size "], [1, 1], [1, 1], [1, 1], false) -> f32[B,8,6,6]\n"

static void what_is_made_for_a_concatenation_is_not_copied(void **state)
{
	uint32_t others;
	(void)state;
	assert_int_equal(
		cat_steps(IMAGE POOL("%1", "3") "%2 = aten::exp(%0) -> f32[B,8,6,6]\n"
	                                    "%3 = aten::cat([%1, %2, %1], 1) -> f32[B,24,6,6]\n"
	                                    "%4 = aten::mean.dim(%3, [2, 3], false, none) -> f32[B,24]\noutput %4\n",
	              &others),
		1); /* %1 is in it twice */
	assert_int_equal(
		cat_steps(IMAGE POOL("%1", "3") "%2 = aten::exp(%0) -> f32[B,8,6,6]\n"
	                                    "%3 = aten::cat([%1, %2], 1) -> f32[B,16,6,6]\n"
	                                    "%4 = aten::mean.dim(%3, [2, 3], false, none) -> f32[B,16]\noutput %4\n",
	              &others),
		0);
	assert_in_range(others, 3, 4); /* one each; the picture as pixels, for the pooling */
	assert_int_equal(cat_steps(IMAGE "%1 = aten::exp(%0) -> f32[B,8,6,6]\n%2 = aten::neg(%0) -> f32[B,8,6,6]\n"
	                                 "%3 = aten::cat([%1, %2], 0) -> f32[2*B,8,6,6]\noutput %3\n",
	                           &others),
	                 0);
	assert_int_equal(others, 2);
	/* An input cannot be made anywhere else. */
	assert_true(cat_steps(IMAGE "%1 = aten::cat([%0, %0], 1) -> f32[B,16,6,6]\noutput %1\n", &others) > 0);
}

/* ---- faults ------------------------------------------------------------------------------------------------------------ */

#define PARTS                                                                                                          \
	HEAD "input %0 f32[B,2] name=\"x\" strides(1,B)\nconst #0 f32[4]\n"                                                \
		 "%1 = aten::contiguous(%0) -> f32[B,2]\n%2 = aten::detach(#0) -> f32[4] view-of #0\n"                         \
		 "%3 = aten::alias(%2) -> f32[4] view-of #0\ncleave::guard_equal(%3, #0, \"tolist\")\n"                        \
		 "output (%1, %3, %0, B)\n"

static clv_status run_twice(const clv_runtime *r, const clv_tensor *x)
{
	for (int i = 0; i < 2; i++) {
		clv_tensor *y[3] = {0};
		TRY(clv_runtime_run(r, &x, 1, y, 3));
		for (int k = 0; k < 3; k++)
			clv_tensor_free(y[k]);
	}
	return CLV_OK;
}

static clv_status load_and_run(const artifact *a, const clv_tensor *x)
{
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	clv_runtime *r;
	o.engine = "native";
	o.unproven = true;
	o.threads = 1;
	TRY(clv_runtime_create(a, &o, &r));
	clv_status st = run_twice(r, x);
	clv_runtime_free(r);
	return st;
}

static void every_allocation_may_fail(void **state)
{
	artifact *a = new_artifact(PARTS);
	clv_tensor *x, *columns;
	uint64_t n = 0;
	(void)state;
	set_weights();
	add_const(a, "#0", tensor_on("const.0.0", DT_F32, weights, 0, 1, (int64_t[]){4}, (int64_t[]){1}));
	OK(artifact_ready(a));
	OK(clv_tensor_from_data((float[]){1, 2, 3, 4, 5, 6}, "f32", 2, (int64_t[]){2, 3}, &x));
	OK(tensor_view(x, 0,
	               &(tensor_form){.dtype = DT_F32, .ndim = 2, .sizes = (int64_t[]){3, 2}, .strides = (int64_t[]){1, 3}},
	               &columns));
	for (bool failed = true; failed; n++) {
		mem_fail_after(n + 1);
		clv_status st = load_and_run(a, columns);
		failed = !mem_fail_waits();
		mem_fail_after(0);
		if (failed)
			assert_int_equal(st, CLV_E_NOMEM);
		else
			OK(st);
	}
	assert_in_range(n, 100, 5000);
	clv_tensor_free(x);
	clv_tensor_free(columns);
	artifact_free(a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_plan_runs_from_text),
		cmocka_unit_test(an_input_that_comes_out_is_the_input),
		cmocka_unit_test(what_it_does_not_take_has_a_reason),
		cmocka_unit_test(a_guard_ends_a_run_that_reads_another_value),
		cmocka_unit_test(a_steady_run_allocates_nothing),
		cmocka_unit_test(what_a_caller_holds_is_not_used_again),
		cmocka_unit_test(what_is_made_for_a_concatenation_is_not_copied),
		cmocka_unit_test(every_allocation_may_fail),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
