/* The arena: a list of blocks, newest first. Blocks double up to a limit; what is larger gets a block of its own. */
#include "base/arena.h"

#include <stddef.h>
#include <string.h>

struct arena_block {
	struct arena_block *next;
	size_t used, size;
	max_align_t data[];
};

enum { FIRST_BLOCK = 4096, LARGEST_BLOCK = 1 << 20 };

static struct arena_block *block_new(arena *a, size_t need)
{
	size_t size = !a->top ? FIRST_BLOCK : a->top->size < LARGEST_BLOCK / 2 ? a->top->size * 2 : LARGEST_BLOCK;
	if (size < need)
		size = need;
	struct arena_block *b = mem_alloc(sizeof *b + size);
	if (!b)
		return NULL;
	b->size = size;
	b->next = a->top;
	a->top = b;
	return b;
}

void *arena_alloc(arena *a, size_t size)
{
	const size_t align = sizeof(max_align_t);
	struct arena_block *b = NULL;
	if (size <= SIZE_MAX / 4) {
		size = (size + align - 1) / align * align;
		b = a->top && a->top->size - a->top->used >= size ? a->top : block_new(a, size);
	}
	if (!b) {
		a->failed = true;
		return NULL;
	}
	void *at = (char *)b->data + b->used;
	b->used += size;
	return at;
}

void *arena_array(arena *a, size_t n, size_t each)
{
	size_t size;
	bool fits = n < SIZE_MAX && !__builtin_mul_overflow(n + 1, each, &size);
	return arena_alloc(a, fits ? size : SIZE_MAX);
}

uint32_t *arena_ids(arena *a, size_t n)
{
	uint32_t *at = arena_array(a, n, sizeof *at);
	if (at)
		memset(at, 0xff, (n + 1) * sizeof *at);
	return at;
}

void *arena_copy(arena *a, const void *from, size_t size)
{
	void *at = arena_alloc(a, size);
	if (at && size)
		memcpy(at, from, size);
	return at;
}

char *arena_str(arena *a, const char *s)
{
	return arena_copy(a, s, strlen(s) + 1);
}

clv_status arena_keep(arena *a, const char *s, const char **out)
{
	*out = s ? arena_str(a, s) : NULL;
	return *out || !s ? CLV_OK : fail_nomem();
}

clv_status arena_take(arena *a, strbuf *b, const char **out)
{
	char *text;
	TRY(strbuf_take(b, &text));
	*out = arena_str(a, text);
	mem_free(text);
	return *out ? CLV_OK : fail_nomem();
}

clv_status arena_status(const arena *a)
{
	return a->failed ? fail_nomem() : CLV_OK;
}

void arena_free(arena *a)
{
	while (a->top) {
		struct arena_block *b = a->top;
		a->top = b->next;
		mem_free(b);
	}
	a->failed = false;
}
