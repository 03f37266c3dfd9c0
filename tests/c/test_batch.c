/* src/serve/batch.c: how many requests run together, and how long a worker waits for more, by measured times. */
#include "support.h"

#include "serve/batch.h"

enum { MS = 1000000 };

/* A run takes 1 ms and a little for each row. */
static uint32_t flat_sizes[] = {1, 2, 4, 8, 16};
static int64_t flat_times[] = {1000000, 1020000, 1060000, 1140000, 1300000};
static const batch_point flat = {.n = 5, .sizes = flat_sizes, .times = flat_times};

/* Each row takes its own time. */
static int64_t steep_times[] = {1000000, 2000000, 4000000, 8000000, 16000000};
static const batch_point steep = {.n = 5, .sizes = flat_sizes, .times = steep_times};

/* 16 rows take more than twice what 8 take. */
static int64_t bent_times[] = {1000000, 1100000, 1200000, 1300000, 4000000};
static const batch_point bent = {.n = 5, .sizes = flat_sizes, .times = bent_times};

static void test_all_that_wait_run_together_where_rows_cost_little(void **state)
{
	const int64_t rows[] = {1, 1, 2, 1, 1};
	(void)state;
	assert_int_equal(batch_choose(&flat, rows, 5), 5);
}

static void test_what_fits_no_size_stays(void **state)
{
	const int64_t rows[] = {8, 8, 1};
	(void)state;
	assert_int_equal(batch_choose(&flat, rows, 3), 2);
}

static void test_twelve_are_eight_and_four_where_sixteen_cost_too_much(void **state)
{
	const int64_t rows[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
	(void)state;
	assert_int_equal(batch_choose(&bent, rows, 12), 8);
	assert_int_equal(batch_choose(&bent, rows, 4), 4);
}

static void test_nobody_waits_where_little_comes(void **state)
{
	(void)state;
	assert_int_equal(batch_patience(&flat, 1, 0), 0);
	assert_int_equal(batch_patience(&flat, 1, 0.1 / MS), 0);
	assert_int_equal(batch_patience(&flat, 1, 0.9 / MS), 0); /* one row at a time keeps up with it */
}

static void test_nobody_waits_where_a_batch_saves_nothing(void **state)
{
	(void)state;
	assert_int_equal(batch_patience(&steep, 1, 20.0 / MS), 0);
	assert_int_equal(batch_patience(&flat, 16, 20.0 / MS), 0);
}

static void test_a_worker_waits_for_more_where_that_pays(void **state)
{
	(void)state;
	int64_t one = batch_patience(&flat, 1, 8.0 / MS), four = batch_patience(&flat, 4, 8.0 / MS);
	assert_in_range(one, 1, 1 * MS);
	assert_in_range(four, 1, 1 * MS);
	/* never for longer than the run that is saved takes */
	for (int64_t have = 1; have <= 16; have++)
		for (double rate = 0.5; rate < 100; rate *= 1.5)
			assert_in_range(batch_patience(&flat, have, rate / MS), 0, 1140000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_that_wait_run_together_where_rows_cost_little),
		cmocka_unit_test(test_what_fits_no_size_stays),
		cmocka_unit_test(test_twelve_are_eight_and_four_where_sixteen_cost_too_much),
		cmocka_unit_test(test_nobody_waits_where_little_comes),
		cmocka_unit_test(test_nobody_waits_where_a_batch_saves_nothing),
		cmocka_unit_test(test_a_worker_waits_for_more_where_that_pays),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
