/* An arena: memory that is released all at once. Starts as all zero bytes.
 *
 * Failures stick, as in a strbuf: allocate freely, ask once with arena_status(). */
#pragma once

#include "base/strbuf.h"

typedef struct arena {
	struct arena_block *top;
	bool failed; /* an allocation failed since the arena was made */
} arena;

void *arena_alloc(arena *a, size_t size);           /* zeroed, aligned for any type; NULL: out of memory */
void *arena_array(arena *a, size_t n, size_t each); /* n elements and one more, zeroed */
uint32_t *arena_ids(arena *a, size_t n);            /* n ids, all NONE (0xffffffff) */
void *arena_copy(arena *a, const void *from, size_t size);
char *arena_str(arena *a, const char *s);
clv_status arena_keep(arena *a, const char *s /* NULL stays NULL */, const char **out);
clv_status arena_take(arena *a, strbuf *b, const char **out); /* the text of b, which is empty after */
clv_status arena_status(const arena *a);                      /* CLV_E_NOMEM if any allocation failed */
void arena_free(arena *a);                                    /* leaves an empty arena */
