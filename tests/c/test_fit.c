/* Fitting: which formulas are found from the numbers at a few sizes, and which are not believed. */
#include "plan/fit.h"
#include "support.h"

enum { POINTS_MAX = 64 };

static plan *p;

/* A number as a function of the symbols B and S. */
typedef int64_t (*formula)(int64_t b, int64_t s);

static int make_plan(void **state)
{
	(void)state;
	symbol_id b, s;
	OK(plan_new(&p));
	OK(plan_symbol(p, "B", 1, 64, &b));
	OK(plan_symbol(p, "S", 1, 1000, &s));
	return 0;
}

static int drop_plan(void **state)
{
	(void)state;
	plan_free(p);
	p = NULL;
	return 0;
}

static int64_t value_at(expr_id e, int64_t b, int64_t s)
{
	int64_t out;
	OK(expr_eval(p, e, (int64_t[]){b, s}, &out));
	return out;
}

static expr_id fit_at(const int64_t *at, uint32_t n, const int64_t *y)
{
	expr_id e = 12345;
	fit_points points = {.at = at, .n = n, .nsymbols = 2};
	OK(fit_int(p, &points, y, &e));
	if (e != NONE)
		for (uint32_t i = 0; i < n; i++)
			assert_int_equal(value_at(e, at[2 * i], at[2 * i + 1]), y[i]);
	return e;
}

/* Numbers seen at these values of B, with S = 10 at all of them. */
static expr_id fit_b(const int64_t *b, uint32_t n, const int64_t *y)
{
	int64_t at[2 * POINTS_MAX];
	assert_true(n <= POINTS_MAX);
	for (uint32_t i = 0; i < n; i++) {
		at[2 * i] = b[i];
		at[2 * i + 1] = 10;
	}
	return fit_at(at, n, y);
}

static const int64_t SIZES[] = {2, 3, 5, 7, 1, 4, 6, 9, 13, 8, 12, 16};
enum { SIZES_N = sizeof SIZES / sizeof *SIZES };

/* The formula is found from `n` of the usual sizes and holds at all others. */
static void check_found(formula f, uint32_t n)
{
	int64_t y[SIZES_N];
	for (uint32_t i = 0; i < n; i++)
		y[i] = f(SIZES[i], 10);
	expr_id e = fit_b(SIZES, n, y);
	assert_int_not_equal(e, NONE);
	for (int64_t b = 1; b <= 64; b++)
		assert_int_equal(value_at(e, b, 10), f(b, 10));
}

static void check_text(formula f, uint32_t n, const char *want)
{
	int64_t y[SIZES_N];
	for (uint32_t i = 0; i < n; i++)
		y[i] = f(SIZES[i], 10);
	strbuf b = STRBUF_INIT;
	expr_id e = fit_b(SIZES, n, y);
	assert_int_not_equal(e, NONE);
	expr_print(p, e, &b);
	char *text = taken(&b);
	assert_string_equal(text, want);
	mem_free(text);
}

/* Both symbols move: a line of each through the first point, and points off the lines. */
static void check_found_in_two(formula f)
{
	static const int64_t at[] = {2, 6, 3, 6, 5, 6, 7, 6, 4,  6, 6, 6, 9, 6, 2, 4, 2,  5, 2,
	                             7, 2, 9, 2, 8, 2, 3, 2, 11, 3, 4, 5, 9, 7, 7, 4, 11, 9, 3};
	enum { N = sizeof at / sizeof *at / 2 };
	int64_t y[N];
	for (uint32_t i = 0; i < N; i++)
		y[i] = f(at[2 * i], at[2 * i + 1]);
	expr_id e = fit_at(at, N, y);
	assert_int_not_equal(e, NONE);
	for (int64_t b = 1; b <= 20; b++)
		for (int64_t s = 1; s <= 40; s++)
			assert_int_equal(value_at(e, b, s), f(b, s));
}

/* ---- formulas in one symbol ---------------------------------------------------------------------------------------- */

static int64_t seven(int64_t b, int64_t s)
{
	(void)b;
	(void)s;
	return 7;
}

static int64_t zero(int64_t b, int64_t s)
{
	(void)b;
	(void)s;
	return 0;
}

static int64_t just_b(int64_t b, int64_t s)
{
	(void)s;
	return b;
}

static int64_t four_b_plus_one(int64_t b, int64_t s)
{
	(void)s;
	return 4 * b + 1;
}

static int64_t falling(int64_t b, int64_t s)
{
	(void)s;
	return 100 - 3 * b;
}

static int64_t b_squared(int64_t b, int64_t s)
{
	(void)s;
	return b * b;
}

static int64_t quadratic(int64_t b, int64_t s)
{
	(void)s;
	return 2 * b * b - 3 * b + 5;
}

static int64_t half(int64_t b, int64_t s)
{
	(void)s;
	return b / 2;
}

static int64_t half_up(int64_t b, int64_t s)
{
	(void)s;
	return (b + 1) / 2;
}

static int64_t mod_3(int64_t b, int64_t s)
{
	(void)s;
	return b % 3;
}

static int64_t at_most_4(int64_t b, int64_t s)
{
	(void)s;
	return b < 4 ? b : 4;
}

static int64_t at_least_3(int64_t b, int64_t s)
{
	(void)s;
	return b > 3 ? b : 3;
}

static void constants_are_found_from_any_number_of_points(void **state)
{
	(void)state;
	for (uint32_t n = 1; n <= SIZES_N; n++) {
		check_found(seven, n);
		check_found(zero, n);
	}
	check_text(seven, 4, "7");
}

static void lines_are_found_from_four_points(void **state)
{
	(void)state;
	for (uint32_t n = 4; n <= SIZES_N; n++) {
		check_found(just_b, n);
		check_found(four_b_plus_one, n);
		check_found(falling, n);
	}
	check_text(just_b, 4, "B");
}

static void two_or_three_points_never_prove_a_line(void **state)
{
	(void)state;
	for (uint32_t n = 2; n <= 3; n++) {
		int64_t y[3];
		for (uint32_t i = 0; i < n; i++)
			y[i] = 4 * SIZES[i] + 1;
		assert_int_equal(fit_b(SIZES, n, y), NONE);
	}
}

static void the_same_size_again_is_no_other_point(void **state)
{
	(void)state;
	const int64_t b[] = {2, 3, 2, 3, 2, 3, 2, 3}, y[] = {2, 3, 2, 3, 2, 3, 2, 3};
	assert_int_equal(fit_b(b, 8, y), NONE);
}

static void the_same_size_with_two_numbers_follows_nothing(void **state)
{
	(void)state;
	const int64_t b[] = {2, 3, 5, 7, 9, 4, 2}, y[] = {2, 3, 5, 7, 9, 4, 8};
	assert_int_equal(fit_b(b, 7, y), NONE);
}

static void squares_are_found(void **state)
{
	(void)state;
	check_found(b_squared, 6);
	check_found(quadratic, 6);
	check_found(b_squared, SIZES_N);
	check_found(quadratic, SIZES_N);
}

static void quotients_and_remainders_are_found(void **state)
{
	(void)state;
	check_found(half, SIZES_N);
	check_found(half_up, SIZES_N);
	check_found(mod_3, SIZES_N);
}

static void bounds_are_found(void **state)
{
	(void)state;
	check_found(at_most_4, SIZES_N);
	check_found(at_least_3, SIZES_N);
}

/* ---- two symbols --------------------------------------------------------------------------------------------------- */

static int64_t product(int64_t b, int64_t s)
{
	return b * s;
}

static int64_t product_of_half(int64_t b, int64_t s)
{
	return b * (s / 2);
}

static int64_t scaled_product(int64_t b, int64_t s)
{
	return 12 * b * s;
}

static int64_t sum(int64_t b, int64_t s)
{
	return b + s;
}

static int64_t other_sum(int64_t b, int64_t s)
{
	return 3 * b - 2 * s + 7;
}

static int64_t sum_of_square_and_half(int64_t b, int64_t s)
{
	return b * b + s / 2;
}

static int64_t only_s(int64_t b, int64_t s)
{
	(void)b;
	return 2 * s + 1;
}

static void products_of_two_symbols_are_found(void **state)
{
	(void)state;
	check_found_in_two(product);
	check_found_in_two(product_of_half);
	check_found_in_two(scaled_product);
}

static void sums_over_two_symbols_are_found(void **state)
{
	(void)state;
	check_found_in_two(sum);
	check_found_in_two(other_sum);
	check_found_in_two(sum_of_square_and_half);
	check_found_in_two(only_s);
}

static int64_t patches_and_one(int64_t b, int64_t s)
{
	return ((b + 1) / 2) * (s / 2) + 1;
}

static int64_t rows_without_one(int64_t b, int64_t s)
{
	return 3 * b * s - b + 2 * s - 7;
}

static void sums_of_products_are_found(void **state)
{
	(void)state;
	check_found_in_two(patches_and_one);
	check_found_in_two(rows_without_one);
}

/* What five strides of two make of an image: ((s-1)/2+1 ... five times over, and without padding. */
static int64_t five_times_half(int64_t b, int64_t s)
{
	(void)b;
	for (int i = 0; i < 5; i++)
		s = (s - 1) / 2 + 1;
	return s;
}

static int64_t unpadded(int64_t b, int64_t s)
{
	(void)b;
	return ((s - 11) / 4 + 1 - 3) / 2 + 1;
}

static void nested_divisions_are_found_from_a_few_image_sizes(void **state)
{
	(void)state;
	static const int64_t sizes[] = {64, 65, 67, 70, 63, 95, 96, 97};
	enum { N = sizeof sizes / sizeof *sizes };
	formula formulas[] = {five_times_half, unpadded};
	for (size_t k = 0; k < 2; k++) {
		int64_t at[2 * N], y[N];
		for (uint32_t i = 0; i < N; i++) {
			at[2 * i] = 2;
			at[2 * i + 1] = sizes[i];
			y[i] = formulas[k](2, sizes[i]);
		}
		expr_id e = fit_at(at, N, y);
		assert_int_not_equal(e, NONE);
		for (int64_t s = 32; s <= 512; s++)
			assert_int_equal(value_at(e, 2, s), formulas[k](2, s));
	}
}

static void a_line_in_steps_is_found_from_four_points(void **state)
{
	(void)state;
	static const int64_t sizes[] = {64, 80, 112, 160};
	int64_t y[4];
	for (int i = 0; i < 4; i++)
		y[i] = 3 * (sizes[i] / 16) + 1;
	expr_id e = fit_b(sizes, 4, y);
	assert_int_not_equal(e, NONE);
	for (int64_t x = 16; x < 1000; x += 16)
		assert_int_equal(value_at(e, x, 10), 3 * (x / 16) + 1);
	y[3]++;
	assert_int_equal(fit_b(sizes, 4, y), NONE);
}

static void the_point_that_is_built_need_not_be_where_the_lines_cross(void **state)
{
	(void)state;
	static const int64_t at[] = {9, 30, 2, 6, 3, 6, 5, 6, 7, 6, 2, 4, 2, 5, 2, 7, 2, 9, 3, 4, 5, 9, 7, 7};
	enum { N = sizeof at / sizeof *at / 2 };
	int64_t y[N];
	for (uint32_t i = 0; i < N; i++)
		y[i] = at[2 * i] * at[2 * i + 1] + 1;
	expr_id e = fit_at(at, N, y);
	assert_int_not_equal(e, NONE);
	assert_int_equal(value_at(e, 11, 13), 144);
}

static void two_symbols_that_always_move_together_prove_nothing(void **state)
{
	(void)state;
	static const int64_t at[] = {2, 12, 3, 13, 4, 14, 5, 15, 6, 16, 7, 17};
	const int64_t y[] = {2, 3, 4, 5, 6, 7};
	assert_int_equal(fit_at(at, 6, y), NONE);
}

static void a_point_off_the_lines_can_disprove_all(void **state)
{
	(void)state;
	const int64_t at[] = {2, 6, 3, 6, 5, 6, 7, 6, 2, 4, 2, 5, 2, 7, 2, 9, 3, 4};
	const int64_t y[] = {12, 18, 30, 42, 8, 10, 14, 18, 16};
	assert_int_equal(fit_at(at, 9, y), NONE);
}

/* ---- what is not believed ------------------------------------------------------------------------------------------- */

static void noise_follows_no_formula(void **state)
{
	(void)state;
	uint64_t seed = 7;
	for (int round = 0; round < 200; round++) {
		int64_t y[SIZES_N];
		for (uint32_t i = 0; i < SIZES_N; i++)
			y[i] = (int64_t)random_below(&seed, 1000000);
		assert_int_equal(fit_b(SIZES, SIZES_N, y), NONE);
	}
}

static void one_wrong_number_spoils_a_line(void **state)
{
	(void)state;
	for (uint32_t wrong = 0; wrong < SIZES_N; wrong++) {
		int64_t y[SIZES_N];
		for (uint32_t i = 0; i < SIZES_N; i++)
			y[i] = 4 * SIZES[i] + 1 + (i == wrong ? 1000003 : 0);
		assert_int_equal(fit_b(SIZES, SIZES_N, y), NONE);
	}
}

static void large_numbers_do_not_overflow(void **state)
{
	(void)state;
	const int64_t big = INT64_MAX, low = INT64_MIN;
	const int64_t swings[] = {big, low, big, low, big, low, 0, 1, -1, big, low, 5};
	assert_int_equal(fit_b(SIZES, SIZES_N, swings), NONE);
	const int64_t ends[] = {low, big, low + 1, big - 1, 0, big, low, big / 2, low / 2, 3, 1, 7};
	assert_int_equal(fit_b(SIZES, SIZES_N, ends), NONE);
	int64_t y[SIZES_N];
	for (uint32_t i = 0; i < SIZES_N; i++)
		y[i] = big / 16 * SIZES[i];
	expr_id e = fit_b(SIZES, SIZES_N, y);
	assert_int_not_equal(e, NONE);
	assert_int_equal(value_at(e, 10, 10), big / 16 * 10);
	for (uint32_t i = 0; i < SIZES_N; i++)
		y[i] = low;
	assert_int_equal(value_at(fit_b(SIZES, SIZES_N, y), 10, 10), low);
}

static void large_numbers_in_two_symbols_do_not_overflow(void **state)
{
	(void)state;
	const int64_t at[] = {2, 6, 3, 6, 5, 6, 7, 6, 2, 4, 2, 5, 2, 7, 2, 9, 3, 4};
	int64_t y[9];
	for (int i = 0; i < 9; i++)
		y[i] = INT64_MAX / 128 * at[2 * i] * at[2 * i + 1];
	(void)fit_at(at, 9, y); /* found or not: what is found is right at every point */
	for (int i = 0; i < 9; i++)
		y[i] = INT64_MAX - 100 + at[2 * i] + at[2 * i + 1];
	(void)fit_at(at, 9, y);
}

static void nothing_cannot_be_fitted(void **state)
{
	(void)state;
	expr_id e;
	fit_points points = {.at = NULL, .n = 0, .nsymbols = 2};
	FAILS(fit_int(p, &points, NULL, &e), CLV_E_INVALID, "nothing to fit");
}

/* ---- random formulas ------------------------------------------------------------------------------------------------ */

typedef struct family {
	expr_op op;
	int64_t a, b, c, d;
} family;

static int64_t family_at(const family *f, int64_t x)
{
	int64_t line = f->a * x + f->b;
	switch (f->op) {
	case EXPR_MUL: return f->a * x * x + f->b * x + f->c;
	case EXPR_FLOORDIV: return f->a * ((x + f->b) / f->d) + f->c;
	case EXPR_MOD: return f->a * ((x + f->b) % f->d) + f->c;
	case EXPR_MIN: return line < f->c ? line : f->c;
	case EXPR_MAX: return line > f->c ? line : f->c;
	default: return line;
	}
}

static int64_t between(uint64_t *seed, int64_t low, int64_t high)
{
	return low + (int64_t)random_below(seed, (uint32_t)(high - low + 1));
}

static family random_family(uint64_t *seed, expr_op op)
{
	family f = {.op = op, .a = between(seed, 1, 20), .b = between(seed, -30, 30), .c = between(seed, -30, 30), .d = 1};
	if (op == EXPR_FLOORDIV || op == EXPR_MOD) {
		f.d = between(seed, 2, 6);
		f.b = between(seed, 0, f.d - 1);
		f.a = random_below(seed, 2) ? f.a : -f.a;
	}
	if (op == EXPR_MIN || op == EXPR_MAX) /* the bend lies among the points */
		f.c = f.a * between(seed, 6, 14) + f.b;
	return f;
}

static void random_formulas_are_found_and_hold_elsewhere(void **state)
{
	(void)state;
	static const expr_op ops[] = {EXPR_ADD, EXPR_MUL, EXPR_FLOORDIV, EXPR_MOD, EXPR_MIN, EXPR_MAX};
	uint64_t seed = 42;
	int64_t b[20], y[20];
	for (int round = 0; round < 600; round++) {
		family f = random_family(&seed, ops[round % 6]);
		for (uint32_t i = 0; i < 20; i++) {
			b[i] = (int64_t)(i * 7 % 20) + 1; /* in no order */
			y[i] = family_at(&f, b[i]);
		}
		expr_id e = fit_b(b, 20, y);
		assert_int_not_equal(e, NONE);
		for (int64_t x = 1; x <= 200; x++)
			if (value_at(e, x, 10) != family_at(&f, x))
				fail_msg("operator %d: a=%d b=%d c=%d d=%d at %d", (int)f.op, (int)f.a, (int)f.b, (int)f.c, (int)f.d,
				         (int)x);
	}
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_plan, drop_plan)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(constants_are_found_from_any_number_of_points),
		TEST(lines_are_found_from_four_points),
		TEST(two_or_three_points_never_prove_a_line),
		TEST(the_same_size_again_is_no_other_point),
		TEST(the_same_size_with_two_numbers_follows_nothing),
		TEST(squares_are_found),
		TEST(quotients_and_remainders_are_found),
		TEST(bounds_are_found),
		TEST(products_of_two_symbols_are_found),
		TEST(sums_over_two_symbols_are_found),
		TEST(sums_of_products_are_found),
		TEST(nested_divisions_are_found_from_a_few_image_sizes),
		TEST(a_line_in_steps_is_found_from_four_points),
		TEST(the_point_that_is_built_need_not_be_where_the_lines_cross),
		TEST(two_symbols_that_always_move_together_prove_nothing),
		TEST(a_point_off_the_lines_can_disprove_all),
		TEST(noise_follows_no_formula),
		TEST(one_wrong_number_spoils_a_line),
		TEST(large_numbers_do_not_overflow),
		TEST(large_numbers_in_two_symbols_do_not_overflow),
		TEST(nothing_cannot_be_fitted),
		TEST(random_formulas_are_found_and_hold_elsewhere),
	};
	return cmocka_run_group_tests_name("fit", tests, NULL, NULL);
}
