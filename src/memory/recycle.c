/* Recycles memory during a capture: keeps released blocks and hands them out again. */
#include "memory/recycle.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "memory/chunk.h"

enum { LEAST = 1 << 16 }; /* smaller blocks are left to malloc */

typedef struct block {
	unsigned char *at;
	size_t size;
} block;

typedef VEC(block) blocks;

static _Thread_local unsigned depth;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_uint users; /* threads that recycle: where there are none nobody has to look */
/* Under the lock. No more is spare than was in use at once. */
static blocks busy, spare; /* busy by address */
static size_t busy_bytes, spare_bytes, most_bytes;

/* A child has one thread. */
static void forget_other_threads(void)
{
	atomic_store(&users, depth ? 1 : 0);
}

static void watch_forks(void)
{
	(void)pthread_atfork(NULL, NULL, forget_other_threads);
}

void recycle_begin(void)
{
	pthread_once(&once, watch_forks);
	if (depth++ == 0)
		atomic_fetch_add(&users, 1);
}

/* What is spare, for the caller to free. */
static blocks take_spare(void)
{
	blocks left = spare;
	spare = (blocks){0};
	spare_bytes = 0;
	return left;
}

static void free_all(blocks *left, recycle_free *give_back)
{
	for (uint32_t i = 0; i < left->n; i++)
		give_back(left->at[i].at);
	vec_free(left);
}

void recycle_drop(recycle_free *give_back)
{
	memory_lock();
	blocks left = take_spare();
	memory_unlock();
	free_all(&left, give_back);
}

void memory_trim(void)
{
#ifdef __GLIBC__
	(void)malloc_trim(0);
#endif
}

void recycle_end(recycle_free *give_back)
{
	blocks left = {0};
	size_t most = 0; /* that a capture had at once, when the last one ends */
	if (!depth || --depth)
		return;
	memory_lock();
	if (atomic_fetch_sub(&users, 1) == 1) {
		most = most_bytes;
		left = take_spare();
		vec_free(&busy);
		busy_bytes = most_bytes = 0;
	}
	memory_unlock();
	free_all(&left, give_back);
	if (most >= 1 << 20)
		memory_trim();
}

bool recycle_entered(size_t size)
{
	return depth && size >= LEAST;
}

/* Sizes in steps of an eighth: what differs a little finds the same block. */
static size_t room_for(size_t size)
{
	size_t step = LEAST / 8;
	while (step <= size / 16)
		step *= 2;
	return size > SIZE_MAX - step ? size : (size + step - 1) / step * step;
}

/* Of the first busy block that does not lie before `at`. */
static uint32_t find_busy(const void *at)
{
	uint32_t low = 0, high = busy.n;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (busy.at[middle].at < (const unsigned char *)at)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static void make_busy(block b)
{
	uint32_t i = find_busy(b.at);
	if (vec_push(&busy, b) != CLV_OK)
		return; /* it will be given back to where it came from */
	memmove(&busy.at[i + 1], &busy.at[i], (busy.n - 1 - i) * sizeof b);
	busy.at[i] = b;
	busy_bytes += b.size;
	if (busy_bytes > most_bytes)
		most_bytes = busy_bytes;
}

/* The smallest that fits and is not much too large. */
static uint32_t find_spare(size_t size)
{
	uint32_t best = spare.n;
	for (uint32_t i = 0; i < spare.n; i++)
		if (spare.at[i].size >= size && spare.at[i].size / 2 <= size)
			if (best == spare.n || spare.at[i].size < spare.at[best].size)
				best = i;
	return best;
}

void *recycle_take(size_t size, size_t *room)
{
	block found = {0};
	*room = room_for(size);
	memory_lock();
	uint32_t i = find_spare(size);
	if (i < spare.n) {
		found = spare.at[i];
		spare.at[i] = spare.at[--spare.n];
		spare_bytes -= found.size;
		make_busy(found);
	}
	memory_unlock();
	return found.at;
}

void recycle_note(void *at, size_t room)
{
	memory_lock();
	make_busy((block){at, room});
	memory_unlock();
}

/* Out of those in use; one of no size: it is none of them. */
static block end_use(const void *at)
{
	uint32_t i = find_busy(at);
	block b = {0};
	if (i == busy.n || busy.at[i].at != at)
		return b;
	b = busy.at[i];
	memmove(&busy.at[i], &busy.at[i + 1], (busy.n - 1 - i) * sizeof b);
	busy.n--;
	busy_bytes -= b.size;
	return b;
}

bool recycle_keep(void *at)
{
	if (!atomic_load(&users))
		return false;
	memory_lock();
	block b = end_use(at);
	bool kept = b.size && spare_bytes + b.size <= most_bytes && vec_push(&spare, b) == CLV_OK;
	spare_bytes += kept ? b.size : 0;
	memory_unlock();
	return kept;
}
