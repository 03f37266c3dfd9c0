/* Chunks: memory that runs put their intermediate results into. A run takes one and gives it back, so that programs
 * that run one after another share it, and that there are as many as run at once.
 *
 * Which chunks there are is known to the whole process, as the allocator is that serves from them. All of it is
 * under one lock. */
#pragma once

#include <stdatomic.h>

#include "base/mem.h"

typedef struct chunk {
	unsigned char *at;
	size_t size;
	atomic_uint live;   /* blocks in use */
	uint64_t used;      /* when it was taken last, counted in takes */
	uint32_t loose;     /* how often in a row less than half of it was asked for */
	struct chunk *next; /* of a list that it is in */
} chunk;

void memory_lock(void);
void memory_unlock(void);

/* All under the lock. */
chunk *chunk_take(size_t bytes); /* NULL: there is no memory */
void chunk_give(chunk *c);       /* nothing in it is in use */
void chunk_abandon(chunk *c);    /* something is: it goes when that does (chunk_let_go) */
/* A block of an abandoned chunk is released; false: `at` is in none. *gone: with it the chunk is, too. */
bool chunk_let_go(const void *at, bool *gone);
void chunk_drop_spare(void); /* memory that no run has goes back to the system */
size_t chunk_bytes(void);    /* of all that are not abandoned, in use or not */

static inline bool chunk_has(const chunk *c, const void *at)
{
	return (const unsigned char *)at >= c->at && (const unsigned char *)at < c->at + c->size;
}
