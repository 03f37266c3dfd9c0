/* An arena: memory that is released all at once. Starts as all zero bytes. */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include "base/strbuf.h"

typedef struct arena {
	struct arena_block *top;
} arena;

void *arena_alloc(arena *a, size_t size);              /* zeroed, aligned for any type; NULL: out of memory */
void *arena_array(arena *a, size_t n, size_t element); /* n elements and one more, zeroed */
uint32_t *arena_ids(arena *a, size_t n);               /* n ids, all NONE */
void *arena_copy(arena *a, const void *from, size_t size);
char *arena_str(arena *a, const char *s);
clv_status arena_take(arena *a, strbuf *b, const char **out); /* the text of b, which is empty after */
void arena_free(arena *a);

#endif
