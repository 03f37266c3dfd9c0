/* Checked allocation with a fault hook for tests. */
#include "base/mem.h"

#include <string.h>
#include <sys/mman.h>

enum { SMALL = 1024, PAGE = 4096, HUGE_PAGE = 2 << 20 };

static _Thread_local uint64_t fail_countdown;

void mem_fail_after(uint64_t n)
{
	fail_countdown = n;
}

bool mem_fail_waits(void)
{
	return fail_countdown != 0;
}

static bool must_fail(void)
{
	return fail_countdown && --fail_countdown == 0;
}

void *mem_alloc(size_t size)
{
	if (must_fail())
		return NULL;
	if (size > SMALL)
		return calloc(1, size);
	void *at = malloc(size ? size : 1); /* calloc does not look into the thread's cache of small blocks */
	return at ? memset(at, 0, size) : NULL;
}

void *mem_realloc(void *at, size_t count, size_t elem)
{
	size_t size;
	if (must_fail() || __builtin_mul_overflow(count, elem, &size))
		return NULL;
	return realloc(at, size ? size : 1);
}

void *mem_pages(size_t size)
{
	size_t page = size < HUGE_PAGE ? PAGE : HUGE_PAGE;
	void *at = NULL;
	if (must_fail() || size > PTRDIFF_MAX || posix_memalign(&at, page, size) != 0)
		return NULL;
#ifdef MADV_HUGEPAGE
	if (page == HUGE_PAGE)
		(void)madvise(at, size / page * page, MADV_HUGEPAGE); /* not more than was asked for */
#endif
	return at;
}

void mem_free(void *at)
{
	free(at);
}

uint32_t *mem_ids(size_t n)
{
	uint32_t *at = n < SIZE_MAX / sizeof *at ? mem_alloc((n + 1) * sizeof *at) : NULL;
	if (at)
		memset(at, 0xff, (n + 1) * sizeof *at);
	return at;
}

char *mem_strdup(const char *s, size_t n)
{
	char *copy = n < SIZE_MAX ? mem_alloc(n + 1) : NULL;
	if (copy && n)
		memcpy(copy, s, n);
	return copy;
}

/* The array pointer has another type than void *, so it is read and written as bytes. */
clv_status vec_reserve_(void **at, uint32_t *cap, size_t need, size_t elem)
{
	if (need <= *cap)
		return CLV_OK;
	if (need >= UINT32_MAX) /* UINT32_MAX itself is no index: it means "none" */
		return fail_nomem();
	size_t want = *cap < UINT32_MAX / 2 ? (size_t)*cap * 2 : UINT32_MAX - 1;
	if (want < need)
		want = need;
	if (want < 8)
		want = 8;
	void *old;
	memcpy(&old, at, sizeof old);
	void *grown = mem_realloc(old, want, elem);
	TRY_MEM(grown);
	memcpy(at, &grown, sizeof grown);
	*cap = (uint32_t)want;
	return CLV_OK;
}
