/* Recycling: see recycle.h. */
#include "memory/recycle.h"

#include <stdatomic.h>
#include <string.h>

#include "memory/chunk.h"

enum { LEAST = 1 << 16 }; /* smaller blocks are left to malloc */

typedef struct block {
	unsigned char *at;
	size_t size;
} block;

typedef VEC(block) blocks;

static _Thread_local unsigned depth;
static atomic_uint users;  /* threads that recycle, and blocks that they have: nobody else has to look */
static blocks busy, spare; /* under the lock; busy by address */

void recycle_begin(void)
{
	if (depth++ == 0)
		atomic_fetch_add(&users, 1);
}

void recycle_end(void (*give_back)(void *at))
{
	blocks left = {0};
	if (--depth)
		return;
	memory_lock();
	if (atomic_fetch_sub(&users, 1) == 1) {
		left = spare;
		spare = (blocks){0};
		vec_free(&busy);
	}
	memory_unlock();
	for (uint32_t i = 0; i < left.n; i++)
		give_back(left.at[i].at);
	vec_free(&left);
}

bool recycle_entered(size_t size)
{
	return depth && size >= LEAST;
}

/* Sizes in steps of an eighth: what differs a little finds the same block. */
static size_t room_for(size_t size)
{
	size_t step = LEAST / 8;
	while (step * 16 <= size)
		step *= 2;
	return size > SIZE_MAX - step ? size : (size + step - 1) / step * step;
}

/* Of the first busy block that does not lie before `at`. */
static uint32_t find(const void *at)
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
	uint32_t i = find(b.at);
	if (vec_push(&busy, b) != CLV_OK)
		return; /* it will be given back to where it came from */
	memmove(&busy.at[i + 1], &busy.at[i], (busy.n - 1 - i) * sizeof b);
	busy.at[i] = b;
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

bool recycle_keep(void *at)
{
	if (!atomic_load(&users))
		return false;
	memory_lock();
	uint32_t i = find(at);
	bool kept = atomic_load(&users) && i < busy.n && busy.at[i].at == at && vec_push(&spare, busy.at[i]) == CLV_OK;
	if (kept) {
		memmove(&busy.at[i], &busy.at[i + 1], (busy.n - 1 - i) * sizeof *busy.at);
		busy.n--;
	}
	memory_unlock();
	return kept;
}
