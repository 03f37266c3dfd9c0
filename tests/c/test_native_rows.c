/* Every family of operators, on every instruction set: a row has the same bits alone, in any batch, at any place in it, with any
 * number of threads; and numbers are those of the portable kernels. */
#include "families.h"

#include <math.h>
#include <stdlib.h>

#include "file/narrow.h"
#include "native/kernels.h"

/* Rows first … of the whole are those of `part`. */
static void check_rows(const family *f, const family_results *whole, const family_results *part, int64_t first,
                       int64_t rows, const char *what)
{
	assert_int_equal(whole->n, part->n);
	for (uint32_t i = 0; i < whole->n; i++) {
		size_t all = (size_t)clv_tensor_bytes(whole->at[i]), n = (size_t)clv_tensor_bytes(part->at[i]);
		char *a = malloc(all + 1), *b = malloc(n + 1);
		assert_int_equal(all / FAMILY_ROWS * (size_t)rows, n);
		OK(clv_tensor_copy_to(whole->at[i], a, all));
		OK(clv_tensor_copy_to(part->at[i], b, n));
		if (memcmp(a + n / (size_t)rows * (size_t)first, b, n) != 0)
			fail_msg("%s, output %u: row %lld has other bits %s", f->name, i, (long long)first, what);
		free(a);
		free(b);
	}
}

static void run_and_check(const family *f, const family_case *c, const clv_runtime *r, const family_results *whole,
                          int64_t first, int64_t rows, const char *what)
{
	family_results part;
	if (family_run(c, r, first, rows, &part) != CLV_OK)
		fail_msg("%s: %s", f->name, status_message());
	check_rows(f, whole, &part, first, rows, what);
	family_release(&part);
}

static void check_family(const family *f)
{
	family_case c = family_open(f);
	clv_runtime *one = NULL, *two = NULL;
	family_results whole;
	if (family_runtime(&c, 1, &one) != CLV_OK || family_run(&c, one, 0, FAMILY_ROWS, &whole) != CLV_OK)
		fail_msg("%s: %s", f->name, status_message());
	OK(family_runtime(&c, 3, &two));
	run_and_check(f, &c, two, &whole, 0, FAMILY_ROWS, "with three threads");
	run_and_check(f, &c, two, &whole, 1, FAMILY_ROWS - 1, "at another place");
	run_and_check(f, &c, one, &whole, 3, 2, "in another batch");
	for (int64_t row = 0; row < FAMILY_ROWS; row++)
		run_and_check(f, &c, row % 2 ? two : one, &whole, row, 1, "alone");
	family_release(&whole);
	clv_runtime_free(one);
	clv_runtime_free(two);
	family_close(&c);
}

/* The set of the test, or the test is skipped: the machine has not got it. */
static void use_isa(void **state)
{
	const char *isa = *state;
	if (!native_kernels_named(isa))
		skip();
	setenv("CLEAVE_ISA", isa, 1);
}

static void a_row_of_every_family_has_the_same_bits_everywhere(void **state)
{
	use_isa(state);
	for (int i = 0; i < FAMILIES; i++)
		check_family(&families[i]);
}

/* ---- instruction sets ---------------------------------------------------------------------------------------------- */

static double number_at(const clv_tensor *t, const char *data, int64_t i)
{
	switch (t->m.dtype) {
	case DT_F32: return ((const float *)data)[i];
	case DT_F64: return ((const double *)data)[i];
	case DT_BF16: return (double)narrow_from_bf16(((const uint16_t *)data)[i]);
	default: return (double)((const int64_t *)data)[i];
	}
}

/* Sums are added in another order: the last digits differ, of the largest number of the tensor. */
static void check_close(const family *f, const clv_tensor *want, const clv_tensor *got, const char *isa)
{
	size_t bytes = (size_t)clv_tensor_bytes(want);
	int64_t n = tensor_numel(want);
	char *a = malloc(bytes + 1), *b = malloc(bytes + 1);
	double most = 0, near = want->m.dtype == DT_F32 ? 2e-5 : want->m.dtype == DT_BF16 ? 1e-2 : 1e-12;
	assert_int_equal(bytes, clv_tensor_bytes(got));
	OK(clv_tensor_copy_to(want, a, bytes));
	OK(clv_tensor_copy_to(got, b, bytes));
	for (int64_t i = 0; i < n; i++)
		most = fmax(most, fabs(number_at(want, a, i)));
	for (int64_t i = 0; i < n; i++)
		if (!(fabs(number_at(want, a, i) - number_at(got, b, i)) <= near * fmax(most, 1)))
			fail_msg("%s: element %lld is %g on %s, %g on base", f->name, (long long)i, number_at(got, b, i), isa,
			         number_at(want, a, i));
	free(a);
	free(b);
}

static family_results results_on(const family *f, const family_case *c, const char *isa)
{
	clv_runtime *r = NULL;
	family_results out;
	setenv("CLEAVE_ISA", isa, 1);
	if (family_runtime(c, 2, &r) != CLV_OK || family_run(c, r, 0, FAMILY_ROWS, &out) != CLV_OK)
		fail_msg("%s on %s: %s", f->name, isa, status_message());
	clv_runtime_free(r);
	return out;
}

static void every_family_agrees_with_portable_kernels(void **state)
{
	use_isa(state);
	for (int i = 0; i < FAMILIES; i++) {
		family_case c = family_open(&families[i]);
		family_results want = results_on(&families[i], &c, "base"), got = results_on(&families[i], &c, *state);
		for (uint32_t k = 0; k < want.n; k++)
			check_close(&families[i], want.at[k], got.at[k], *state);
		family_release(&want);
		family_release(&got);
		family_close(&c);
	}
}

static void a_steady_run_of_no_family_allocates(void **state)
{
	(void)state;
	if (ADDRESS_SANITIZER)
		skip(); /* memory is not used again, so that it sees who reads what is freed */
	for (int i = 0; i < FAMILIES; i++) {
		family_case c = family_open(&families[i]);
		clv_tensor *in[FAMILY_INPUTS], *out[FAMILY_OUTPUTS];
		clv_runtime *r = NULL;
		OK(family_runtime(&c, 1, &r));
		OK(family_inputs(&c, 0, FAMILY_ROWS, in));
		for (int run = 0; run < 4; run++) {
			mem_fail_after(run ? 1 : 0);
			clv_status st =
				clv_runtime_run(r, (const clv_tensor *const *)in, c.ninputs, out, clv_runtime_output_count(r));
			bool allocated = run && !mem_fail_waits();
			mem_fail_after(0);
			if (st != CLV_OK || allocated)
				fail_msg("%s: run %d %s", families[i].name, run, st == CLV_OK ? "allocates" : status_message());
			for (uint32_t k = 0; k < clv_runtime_output_count(r); k++)
				clv_tensor_free(out[k]);
		}
		for (uint32_t k = 0; k < c.ninputs; k++)
			clv_tensor_free(in[k]);
		clv_runtime_free(r);
		family_close(&c);
	}
}

static void a_set_that_the_machine_has_not_got_is_an_error(void **state)
{
	static const char *const sets[] = {"base", "avx2", "avx512", "neon", "sse9"};
	family_case c = family_open(&families[0]);
	(void)state;
	for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
		clv_runtime *r = NULL;
		setenv("CLEAVE_ISA", sets[i], 1);
		if (native_kernels_named(sets[i]))
			OK(family_runtime(&c, 1, &r));
		else
			FAILS(family_runtime(&c, 1, &r), CLV_E_INVALID, "CLEAVE_ISA");
		clv_runtime_free(r);
	}
	family_close(&c);
}

#define EACH_SET(test)                                                                                                 \
	{#test " (base)", test, NULL, unset, "base"}, {#test " (avx2)", test, NULL, unset, "avx2"},                        \
		{#test " (avx512)", test, NULL, unset, "avx512"},                                                              \
	{                                                                                                                  \
#test " (neon)", test, NULL, unset, "neon"                                                                     \
	}

static int unset(void **state)
{
	(void)state;
	return unsetenv("CLEAVE_ISA");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		EACH_SET(a_row_of_every_family_has_the_same_bits_everywhere),
		EACH_SET(every_family_agrees_with_portable_kernels),
		cmocka_unit_test(a_steady_run_of_no_family_allocates),
		cmocka_unit_test_teardown(a_set_that_the_machine_has_not_got_is_an_error, unset),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
