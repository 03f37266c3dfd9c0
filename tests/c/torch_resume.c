/* Runs that a guard ended, and that another program goes on with: what is taken over, what runs again, and what is refused. */
#include "torch.h"

#include "base/limits.h"
#include "exec/resume.h"
#include "optimize/optimize.h"

#define HEAD "cleave-plan 1\nmodel \"Net\"\n"

/* A program of a plan that is no longer there once the rig is freed. */
typedef struct rig {
	plan *p;
	clv_program *g;
} rig;

static rig rig_with(const char *text, program_spec spec)
{
	rig r = {load_ok(text), NULL};
	spec.end = spec.end ? spec.end : r.p->nodes.n;
	if (program_new(r.p, &spec, &r.g) != CLV_OK)
		fail_msg("%s\nin\n%s", status_message(), text);
	return r;
}

static rig rig_new(const char *text)
{
	return rig_with(text, (program_spec){.inference = true});
}

static void rig_free(rig *r)
{
	program_free(r->g);
	plan_free(r->p);
}

static clv_tensor *vector(const float *data, int64_t n)
{
	clv_tensor *t = NULL;
	OK(clv_tensor_from_data(data, "f32", 1, &n, &t));
	return t;
}

#define VECTOR(...) vector((float[]){__VA_ARGS__}, sizeof((float[]){__VA_ARGS__}) / sizeof(float))
#define HOLDS(t, ...) assert_memory_equal(clv_tensor_data(t), ((float[]){__VA_ARGS__}), sizeof((float[]){__VA_ARGS__}))

static clv_status run_in(handover *h, const rig *r, br_tensor *const *in, br_tensor *const *externals, br_tensor **out)
{
	return program_run(r->g, &(run_spec){.inputs = in, .externals = externals, .outputs = out, .over = h});
}

static void end(handover *h)
{
	bool whole;
	OK(handover_undo(h, &whole));
	assert_null(h->left);
	assert_null(h->effects);
}

/* The sum decides; the first input is written before. */
#define COUNTS(expect)                                                                                                 \
	HEAD "input %0 f32[2]\ninput %1 f32[2]\n"                                                                          \
		 "%2 = aten::add_.Tensor(%0, %1, 1) -> f32[2] view-of %0 writes %0\n"                                          \
		 "%3 = aten::sin(%1) -> f32[2]\n%4 = aten::mul.Tensor(%1, num(3)) -> f32[2]\n"                                 \
		 "%5 = aten::sum(%1) -> f32[]\n%6 = aten::gt.Scalar(%5, 0) -> bool[]\n"                                        \
		 "%7 = aten::is_nonzero(%6) -> bool = " expect " {host}\n"
#define UP COUNTS("true") "%8 = aten::add.Tensor(%4, num(1), 1) -> f32[2]\noutput %8\n"
#define DOWN COUNTS("false") "%8 = aten::sub.Tensor(%4, %0, 1) -> f32[2]\noutput %8\n"

static void another_program_goes_on_and_nothing_is_written_twice(void **state)
{
	(void)state;
	for (int level = OPTIMIZE_NONE; level <= OPTIMIZE_SAFE; level++) {
		program_spec spec = {.inference = true, .optimize = (uint8_t)level};
		rig a = rig_with(UP, spec), b = rig_with(DOWN, spec);
		for (int times = 0; times < 3; times++) {
			handover h = {0};
			clv_tensor *x = VECTOR(1, 2), *y = VECTOR(-1, -2), *got;
			br_tensor *in[] = {torch_of(x), torch_of(y)}, *out = NULL;
			assert_int_equal(run_in(&h, &a, in, NULL, &out), CLV_E_GUARD);
			assert_non_null(h.left);
			HOLDS(x, 0, 0); /* it stays */
			OK(run_in(&h, &b, in, NULL, &out));
			assert_int_equal(h.taken, 1);
			assert_null(h.left);
			handover_drop(&h);
			got = core_of(out);
			HOLDS(x, 0, 0);
			HOLDS(got, -3, -6);
			clv_tensor_free(got);
			clv_tensor_free(x);
			clv_tensor_free(y);
		}
		assert_int_equal(b.g->optimizer ? 1 : b.g->beginnings.n, 1);
		rig_free(&a);
		rig_free(&b);
	}
}

static void what_no_program_goes_on_with_is_taken_back(void **state)
{
	(void)state;
	rig a = rig_new(UP);
	handover h = {0};
	clv_tensor *x = VECTOR(1, 2), *y = VECTOR(-1, -2);
	br_tensor *in[] = {torch_of(x), torch_of(y)}, *out = NULL;
	assert_int_equal(run_in(&h, &a, in, NULL, &out), CLV_E_GUARD);
	assert_true(status_details()->undone);
	HOLDS(x, 0, 0);
	end(&h);
	HOLDS(x, 1, 2);
	clv_tensor_free(x);
	clv_tensor_free(y);
	rig_free(&a);
}

/* The same value at the guard: refused on the spot. Other steps before it: passed. Neither touches what waits. */
static void a_program_that_cannot_go_on_does_nothing(void **state)
{
	(void)state;
	rig a = rig_new(UP), same = rig_new(UP), b = rig_new(DOWN);
	rig other = rig_new(HEAD "input %0 f32[2]\ninput %1 f32[2]\n"
	                         "%2 = aten::sub_.Tensor(%0, %1, 1) -> f32[2] view-of %0 writes %0\n"
	                         "%3 = aten::sum(%1) -> f32[]\n%4 = aten::gt.Scalar(%3, 0) -> bool[]\n"
	                         "%5 = aten::is_nonzero(%4) -> bool = false {host}\noutput %0\n");
	handover h = {0};
	clv_tensor *x = VECTOR(1, 2), *y = VECTOR(-1, -2);
	br_tensor *in[] = {torch_of(x), torch_of(y)}, *out = NULL;
	assert_int_equal(run_in(&h, &a, in, NULL, &out), CLV_E_GUARD);
	void *left = h.left;
	assert_int_equal(run_in(&h, &same, in, NULL, &out), CLV_E_GUARD);
	assert_false(h.passed);
	assert_int_equal(run_in(&h, &other, in, NULL, &out), CLV_E_GUARD);
	assert_true(h.passed);
	/* and other tensors than the run has */
	clv_tensor *z = VECTOR(5, 5);
	assert_int_equal(run_in(&h, &b, (br_tensor *[]){torch_of(z), in[1]}, NULL, &out), CLV_E_GUARD);
	assert_true(h.passed);
	HOLDS(z, 5, 5);
	HOLDS(x, 0, 0);
	assert_ptr_equal(h.left, left);
	assert_int_equal(h.taken, 0);
	end(&h);
	HOLDS(x, 1, 2);
	clv_tensor_free(x);
	clv_tensor_free(y);
	clv_tensor_free(z);
	rig_free(&a);
	rig_free(&b);
	rig_free(&same);
	rig_free(&other);
}

/* Two guards: a, then b, then c; and where c is missing, all of it is taken back. */
#define TWICE(one, two)                                                                                                \
	HEAD "input %0 f32[1]\ninput %1 f32[1]\n"                                                                          \
		 "%2 = aten::add_.Tensor(%0, num(1), 1) -> f32[1] view-of %0 writes %0\n"                                      \
		 "%3 = aten::item(%1) -> float = " one " {host}\n"                                                             \
		 "%4 = aten::mul_.Tensor(%0, num(10)) -> f32[1] view-of %0 writes %0\n"                                        \
		 "%5 = aten::neg(%1) -> f32[1]\n%6 = aten::item(%5) -> float = " two " {host}\n"                               \
		 "%7 = aten::add.Tensor(%0, %5, 1) -> f32[1]\noutput %7\n"

static void guards_one_after_the_other(void **state)
{
	(void)state;
	rig a = rig_new(TWICE("1.0", "-1.0")), b = rig_new(TWICE("2.0", "-1.0")), c = rig_new(TWICE("2.0", "-2.0"));
	for (int all = 0; all < 2; all++) {
		handover h = {0};
		clv_tensor *x = VECTOR(4), *y = VECTOR(2);
		br_tensor *in[] = {torch_of(x), torch_of(y)}, *out = NULL;
		assert_int_equal(run_in(&h, &a, in, NULL, &out), CLV_E_GUARD);
		HOLDS(x, 5);
		assert_int_equal(run_in(&h, &b, in, NULL, &out), CLV_E_GUARD);
		assert_int_equal(h.taken, 1);
		assert_non_null(h.left);
		HOLDS(x, 50);
		if (all) {
			OK(run_in(&h, &c, in, NULL, &out));
			clv_tensor *got = core_of(out);
			HOLDS(got, 48);
			clv_tensor_free(got);
			handover_drop(&h);
		} else {
			end(&h);
		}
		HOLDS(x, all ? 50 : 4);
		clv_tensor_free(x);
		clv_tensor_free(y);
	}
	rig_free(&a);
	rig_free(&b);
	rig_free(&c);
}

/* sin is released early in one plan, and missing in the last; it runs again, unless what it read was written since. */
static void what_was_released_is_computed_again(void **state)
{
	(void)state;
	static const struct {
		const char *before, *after;
		bool goes_on;
	} cases[] = {
		{"%2 = aten::sin(%0) -> f32[1]\n%3 = aten::item(%1) -> float = ", "%4 = aten::cos(%0) -> f32[1]\noutput %4\n",
	     true},
		{"%3 = aten::item(%1) -> float = ", "%4 = aten::cos(%0) -> f32[1]\noutput %4\n", true},
		{"%2 = aten::sin(%0) -> f32[1]\n%9 = aten::neg_(%0) -> f32[1] view-of %0 writes %0\n%3 = aten::item(%1) -> "
	     "float = ",
	     "%4 = aten::cos(%0) -> f32[1]\noutput %4\n", false},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char one[512], two[512];
		const char *written = cases[i].goes_on ? "" : "%9 = aten::neg_(%0) -> f32[1] view-of %0 writes %0\n";
		snprintf(one, sizeof one, HEAD "input %%0 f32[1]\ninput %%1 f32[1]\n%s1.0 {host}\n%s", cases[i].before,
		         cases[i].after);
		snprintf(two, sizeof two,
		         HEAD "input %%0 f32[1]\ninput %%1 f32[1]\n%%2 = aten::sin(%%0) -> f32[1]\n%s"
		              "%%3 = aten::item(%%1) -> float = 2.0 {host}\n%%4 = aten::add.Tensor(%%2, %%2, 1) -> f32[1]\n"
		              "output %%4\n",
		         written);
		rig a = rig_new(one), b = rig_new(two);
		handover h = {0};
		clv_tensor *x = VECTOR(0), *y = VECTOR(2);
		br_tensor *in[] = {torch_of(x), torch_of(y)}, *out = NULL;
		assert_int_equal(run_in(&h, &a, in, NULL, &out), CLV_E_GUARD);
		clv_status st = run_in(&h, &b, in, NULL, &out);
		assert_int_equal(st, cases[i].goes_on ? CLV_OK : CLV_E_GUARD);
		assert_int_equal(h.passed, !cases[i].goes_on);
		br_unref(out);
		end(&h);
		clv_tensor_free(x);
		clv_tensor_free(y);
		rig_free(&a);
		rig_free(&b);
	}
}

/* Numbers and sizes that were read from data before the guard; the copy of a boundary that the steps write. */
static void numbers_and_copies_move_too(void **state)
{
	(void)state;
#define READS(expect, then)                                                                                            \
	HEAD "symbol n 0..4 data\ninput %0 f32[3]\n%1 = aten::mul.Tensor(%0, num(1)) -> f32[3]\n"                          \
		 "%2 = aten::neg_(%1) -> f32[3] view-of %1 writes %1\n%3 = aten::nonzero(%1) -> i64[n,1] guard\n"              \
		 "%4 = aten::max(%1) -> f32[]\n%5 = aten::item(%4) -> float = [0.0, 9.0] {host}\n"                             \
		 "%6 = aten::min(%1) -> f32[]\n%7 = aten::item(%6) -> float = " expect " {host}\n"                             \
		 "%8 = aten::" then ".Scalar(%3, 0) -> bool[n,1]\n%9 = aten::mul.Tensor(%8, num(%5)) -> f32[n,1]\n"            \
		 "%10 = aten::mul_.Tensor(%1, num(%5)) -> f32[3] view-of %1 writes %1\noutput (%9, %1)\n"
	program_spec rest = {.inference = true, .first = 1};
	rig a = rig_with(READS("0.0", "lt"), rest), b = rig_with(READS("-3.0", "ge"), rest);
	handover h = {0};
	clv_tensor *x = VECTOR(-2, 0, 3);
	br_tensor *in[] = {torch_of(x)}, *out[2] = {NULL};
	assert_int_equal(run_in(&h, &a, in, NULL, out), CLV_E_GUARD);
	OK(run_in(&h, &b, in, NULL, out));
	clv_tensor *y = core_of(out[0]), *z = core_of(out[1]);
	HOLDS(y, 2, 2);
	HOLDS(z, 4, -0.0f, -6);
	HOLDS(x, -2, 0, 3);
	end(&h);
	clv_tensor_free(x);
	clv_tensor_free(y);
	clv_tensor_free(z);
	rig_free(&a);
	rig_free(&b);
}

static void a_run_with_a_limit_on_memory_is_not_left(void **state)
{
	(void)state;
	rig a = rig_new(UP);
	handover h = {0};
	limits most = {.bytes = 1 << 20};
	clv_tensor *x = VECTOR(1, 2), *y = VECTOR(-1, -2);
	br_tensor *in[] = {torch_of(x), torch_of(y)}, *out = NULL;
	limits_enter(&most);
	assert_int_equal(run_in(&h, &a, in, NULL, &out), CLV_E_GUARD); /* memory is counted run by run */
	limits_leave(&most);
	assert_null(h.left);
	assert_true(status_details()->undone);
	HOLDS(x, 1, 2);
	end(&h);
	clv_tensor_free(x);
	clv_tensor_free(y);
	rig_free(&a);
}

/* Each allocation of both runs fails once: nothing leaks, and what was written is put back. */
static void every_allocation_may_fail(void **state)
{
	(void)state;
	for (uint64_t n = 1;; n++) {
		rig a = rig_new(UP), b = rig_new(DOWN);
		handover h = {0};
		clv_tensor *x = VECTOR(1, 2), *y = VECTOR(-1, -2);
		br_tensor *in[] = {torch_of(x), torch_of(y)}, *out = NULL;
		mem_fail_after(n);
		clv_status st = run_in(&h, &a, in, NULL, &out);
		if (st == CLV_E_GUARD)
			st = run_in(&h, &b, in, NULL, &out);
		mem_fail_after(0);
		if (st != CLV_OK) {
			assert_true(st == CLV_E_NOMEM || st == CLV_E_GUARD);
			end(&h);
			assert_true(h.taken || ((const float *)clv_tensor_data(x))[0] == 1);
		}
		handover_drop(&h);
		br_unref(out);
		clv_tensor_free(x);
		clv_tensor_free(y);
		rig_free(&a);
		rig_free(&b);
		if (st == CLV_OK && h.taken)
			break;
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(another_program_goes_on_and_nothing_is_written_twice),
		cmocka_unit_test(what_no_program_goes_on_with_is_taken_back),
		cmocka_unit_test(a_program_that_cannot_go_on_does_nothing),
		cmocka_unit_test(guards_one_after_the_other),
		cmocka_unit_test(what_was_released_is_computed_again),
		cmocka_unit_test(numbers_and_copies_move_too),
		cmocka_unit_test(a_run_with_a_limit_on_memory_is_not_left),
		cmocka_unit_test(every_allocation_may_fail),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
