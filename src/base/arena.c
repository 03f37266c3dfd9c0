/* Blocks in a list, each at least twice the one before, newest first. */
#include "base/arena.h"

#include <stddef.h>
#include <string.h>

struct arena_block {
	struct arena_block *next;
	size_t used, size;
	max_align_t data[];
};

enum { FIRST_BLOCK = 4096 };

static struct arena_block *block_new(arena *a, size_t need)
{
	size_t size = a->top ? a->top->size * 2 : FIRST_BLOCK;
	while (size < need)
		size *= 2;
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
	if (size > SIZE_MAX / 4)
		return NULL;
	size = (size + align - 1) / align * align;
	struct arena_block *b = a->top;
	if (!b || b->size - b->used < size)
		b = block_new(a, size);
	if (!b)
		return NULL;
	void *at = (char *)b->data + b->used;
	b->used += size;
	return at;
}

void *arena_array(arena *a, size_t n, size_t element)
{
	return n < SIZE_MAX / element ? arena_alloc(a, (n + 1) * element) : NULL;
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

clv_status arena_take(arena *a, strbuf *b, const char **out)
{
	char *text;
	TRY(strbuf_take(b, &text));
	*out = arena_str(a, text);
	mem_free(text);
	return *out ? CLV_OK : fail_nomem();
}

void arena_free(arena *a)
{
	while (a->top) {
		struct arena_block *b = a->top;
		a->top = b->next;
		mem_free(b);
	}
}
