/* Chunks of memory that runs take and give back. */
#include "memory/chunk.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PATIENCE = 64, LONG_AGO = 256 };
static const size_t HUGE_PAGE = (size_t)2 << 20;

/* The exception to having no globals: an allocator that torch calls from anywhere has nothing else to start from. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static chunk *spare, *abandoned;
static uint64_t takes;
static size_t bytes_held;

/* ---- the lock: a child that is forked while another thread has it must find it open ---------------------------- */

static void lock_it(void)
{
	pthread_mutex_lock(&lock);
}

static void unlock_it(void)
{
	pthread_mutex_unlock(&lock);
}

static void watch_forks(void)
{
	(void)pthread_atfork(lock_it, unlock_it, unlock_it);
}

void memory_lock(void)
{
	pthread_once(&once, watch_forks);
	lock_it();
}

void memory_unlock(void)
{
	unlock_it();
}

/* ---- memory of the system -------------------------------------------------------------------------------------- */

static size_t page_size(void)
{
	long n = sysconf(_SC_PAGESIZE);
	return n > 0 ? (size_t)n : 4096;
}

static size_t round_up(size_t n, size_t to)
{
	return (n + to - 1) / to * to;
}

/* Large ones on whole huge pages, where the system gives them: fewer faults at first, fewer misses later. */
static unsigned char *map_bytes(size_t size)
{
	bool huge = size >= HUGE_PAGE;
	size_t slack = huge ? HUGE_PAGE - page_size() : 0;
	unsigned char *at =
		mmap(NULL, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		return NULL;
	if (!huge)
		return at;
	size_t front = round_up((uintptr_t)at, HUGE_PAGE) - (uintptr_t)at;
	if (front)
		munmap(at, front);
	if (slack - front)
		munmap(at + front + size, slack - front);
#ifdef MADV_HUGEPAGE
	(void)madvise(at + front, size / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE); /* not more than was asked for */
#endif
	return at + front;
}

static chunk *chunk_new(size_t bytes)
{
	if (bytes > SIZE_MAX / 2)
		return NULL;
	chunk *c = mem_alloc(sizeof *c);
	if (!c)
		return NULL;
	c->size = round_up(bytes, page_size());
	c->at = map_bytes(c->size);
	if (!c->at) {
		mem_free(c);
		return NULL;
	}
	bytes_held += c->size;
	return c;
}

static void chunk_free(chunk *c)
{
	munmap(c->at, c->size);
	mem_free(c);
}

/* ---- lists ----------------------------------------------------------------------------------------------------- */

static void unlink_chunk(chunk **list, chunk *c)
{
	while (*list != c)
		list = &(*list)->next;
	*list = c->next;
	c->next = NULL;
}

static void drop(chunk *c)
{
	unlink_chunk(&spare, c);
	bytes_held -= c->size;
	chunk_free(c);
}

static void drop_old(void)
{
	for (chunk *c = spare, *next; c; c = next) {
		next = c->next;
		if (takes - c->used > LONG_AGO)
			drop(c);
	}
}

static chunk *smallest_that_fits(size_t bytes)
{
	chunk *found = NULL;
	for (chunk *c = spare; c; c = c->next)
		if (c->size >= bytes && (!found || c->size < found->size))
			found = c;
	return found;
}

/* One that is too small makes room for a new one: as many stay as run at once. */
static void drop_largest(void)
{
	chunk *found = spare;
	for (chunk *c = spare; c; c = c->next)
		if (c->size > found->size)
			found = c;
	if (found)
		drop(found);
}

chunk *chunk_take(size_t bytes)
{
	takes++;
	drop_old();
	chunk *c = smallest_that_fits(bytes);
	if (c) {
		c->loose = bytes < c->size / 2 && c->size > HUGE_PAGE ? c->loose + 1 : 0;
		if (c->loose > PATIENCE) {
			drop(c);
			c = NULL;
		}
	} else {
		drop_largest();
	}
	if (c)
		unlink_chunk(&spare, c);
	else
		c = chunk_new(bytes);
	if (c)
		c->used = takes;
	return c;
}

void chunk_give(chunk *c)
{
	c->next = spare;
	spare = c;
}

void chunk_abandon(chunk *c)
{
	bytes_held -= c->size;
	c->next = abandoned;
	abandoned = c;
}

bool chunk_let_go(const void *at, bool *gone)
{
	for (chunk *c = abandoned; c; c = c->next) {
		if (!chunk_has(c, at))
			continue;
		*gone = atomic_fetch_sub(&c->live, 1) == 1;
		if (*gone) {
			unlink_chunk(&abandoned, c);
			chunk_free(c);
		}
		return true;
	}
	return false;
}

void chunk_drop_spare(void)
{
	while (spare)
		drop(spare);
}

size_t chunk_bytes(void)
{
	return bytes_held;
}
