/* Memory that captures let go of and get again. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "memory/recycle.h"
#include "support.h"

enum { LARGE = 1 << 20, SMALL = 1000 };

static unsigned given_back;

static void give_back(void *at)
{
	given_back++;
	free(at);
}

/* As an allocator does it. */
static unsigned char *get(size_t size)
{
	size_t room;
	if (!recycle_entered(size))
		return malloc(size);
	unsigned char *at = recycle_take(size, &room);
	if (at)
		return at;
	at = malloc(room);
	assert_non_null(at);
	recycle_note(at, room);
	return at;
}

static void put(void *at)
{
	if (!recycle_keep(at))
		free(at);
}

static void what_is_let_go_of_comes_again(void **state)
{
	(void)state;
	recycle_begin();
	unsigned char *first = get(LARGE);
	memset(first, 1, LARGE);
	put(first);
	unsigned char *second = get(LARGE - 100), *third = get(LARGE);
	assert_ptr_equal(second, first);
	assert_ptr_not_equal(third, first);
	memset(third, 2, LARGE);
	put(third);
	put(second);
	given_back = 0;
	recycle_end(give_back);
	assert_int_equal(given_back, 2);
}

static void blocks_fit_and_are_not_much_too_large(void **state)
{
	(void)state;
	recycle_begin();
	unsigned char *large = get(4 * LARGE), *middle = get(LARGE + LARGE / 2);
	put(large);
	put(middle);
	unsigned char *a = get(LARGE);
	assert_ptr_equal(a, middle);
	unsigned char *b = get(LARGE);
	assert_ptr_not_equal(b, large);
	unsigned char *c = get(3 * LARGE);
	assert_ptr_equal(c, large);
	assert_false(recycle_entered(SMALL));
	put(a);
	put(b);
	put(c);
	recycle_end(give_back);
}

static void what_outlives_a_capture_belongs_to_where_it_came_from(void **state)
{
	(void)state;
	recycle_begin();
	recycle_begin();
	unsigned char *kept = get(LARGE), *gone = get(LARGE);
	put(gone);
	recycle_end(give_back);
	given_back = 0;
	unsigned char *again = get(LARGE);
	assert_ptr_equal(again, gone); /* it nests */
	put(again);
	recycle_end(give_back);
	assert_int_equal(given_back, 1);
	assert_false(recycle_entered(LARGE));
	recycle_begin(); /* another capture knows nothing of it */
	assert_false(recycle_keep(kept));
	recycle_end(give_back);
	free(kept);
}

typedef struct one {
	uint64_t seed;
	unsigned wrong;        /* bytes that are not what was written; cmocka must not jump out of a thread */
	unsigned char *passed; /* to who is next */
} one;

static void *work(void *ctx)
{
	one *mine = ctx;
	unsigned char *at[16] = {0};
	size_t sizes[16] = {0};
	recycle_begin();
	if (mine->passed)
		put(mine->passed);
	for (int i = 0; i < 4000; i++) {
		uint32_t k = random_below(&mine->seed, 16);
		if (at[k]) {
			for (size_t b = 0; b < sizes[k]; b += 4096)
				mine->wrong += at[k][b] != (unsigned char)(k + 1);
			put(at[k]);
			at[k] = NULL;
			continue;
		}
		sizes[k] = 1 + random_below(&mine->seed, LARGE / 2);
		at[k] = get(sizes[k]);
		for (size_t b = 0; b < sizes[k]; b += 4096)
			at[k][b] = (unsigned char)(k + 1);
	}
	for (uint32_t k = 0; k < 16; k++)
		if (at[k])
			put(at[k]);
	recycle_end(free);
	return NULL;
}

static void threads_share_nothing_that_is_in_use(void **state)
{
	pthread_t threads[3];
	one of[3];
	(void)state;
	recycle_begin();
	for (uint32_t i = 0; i < 3; i++) {
		of[i] = (one){.seed = 77 + i, .passed = get(LARGE)};
		assert_int_equal(pthread_create(&threads[i], NULL, work, &of[i]), 0);
	}
	for (uint32_t i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	recycle_end(free);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(of[i].wrong, 0);
}

static void no_more_is_spare_than_was_in_use(void **state)
{
	(void)state;
	recycle_begin();
	unsigned char *a = get(LARGE);
	put(a);
	unsigned char *b = get(4 * LARGE);
	assert_false(recycle_keep(b)); /* with the first it would be more than there ever was */
	free(b);
	unsigned char *c = get(LARGE);
	assert_ptr_equal(c, a);
	put(c);
	recycle_drop(give_back);
	unsigned char *d = get(LARGE);
	put(d);
	recycle_end(give_back);
	recycle_end(give_back); /* one too many */
	assert_false(recycle_entered(LARGE));
}

/* Who is not kept is forgotten: its address may come again, for less. */
static void what_could_not_be_kept_is_nobodys(void **state)
{
	(void)state;
	recycle_begin();
	unsigned char *a = get(LARGE);
	mem_fail_after(1);
	bool kept = recycle_keep(a);
	mem_fail_after(0);
	assert_false(kept);
	assert_false(recycle_keep(a));
	free(a);
	recycle_end(give_back);
}

/* Without room to note a block it is an ordinary one. */
static void without_memory_nothing_is_lost(void **state)
{
	(void)state;
	for (int n = 1; n < 6; n++) {
		recycle_begin();
		mem_fail_after(n);
		unsigned char *a = get(LARGE), *b = get(LARGE);
		put(a);
		unsigned char *c = get(LARGE);
		put(b);
		put(c);
		mem_fail_after(0);
		recycle_end(give_back);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_let_go_of_comes_again),
		cmocka_unit_test(blocks_fit_and_are_not_much_too_large),
		cmocka_unit_test(what_outlives_a_capture_belongs_to_where_it_came_from),
		cmocka_unit_test(threads_share_nothing_that_is_in_use),
		cmocka_unit_test(no_more_is_spare_than_was_in_use),
		cmocka_unit_test(what_could_not_be_kept_is_nobodys),
		cmocka_unit_test(without_memory_nothing_is_lost),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
