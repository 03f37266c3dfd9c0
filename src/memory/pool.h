/* Pools: memory for intermediate results, planned from the requests of an earlier run with the same sizes.
 *
 * A thread that runs a program enters its pool; an allocator then asks pool_serve before it takes memory from
 * anywhere else, and pool_release before it gives any back. The first run with given sizes (`key`) is traced, and
 * those after it get their memory from one chunk, each block at its planned place (layout.h). What outlived the
 * traced run has no place: outputs never lie in a chunk.
 *
 * Nothing is taken for granted. A request gets its place when it is not larger than planned and when those who had
 * the bytes have released them; otherwise it is served from elsewhere, and the run traced anew later. A chunk that
 * has a block in use when its run ends belongs to that block from then on, and the next run takes another. Blocks
 * may be released by any thread, at any time. */
#pragma once

#include "base/strbuf.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pool pool;
typedef struct pool_run pool_run;

/* For runs of this many steps, whose sizes are this many numbers. */
clv_status pool_new(uint32_t nsteps, uint32_t nkey, pool **out);
void pool_free(pool *p); /* NULL is allowed; nobody runs with it */

/* The calling thread's requests are this run's until it leaves; runs within a run are left first. Requests before the
   first pool_step are of step 0. NULL: it runs without a pool, this time. */
pool_run *pool_enter(pool *p, const int64_t *key);
void pool_step(pool_run *r, uint32_t step);  /* ascending */
void pool_leave(pool_run *r, bool complete); /* complete: all steps ran */
uint64_t pool_run_bytes(const pool_run *r);  /* of its places in a chunk; 0: it has none */

/* Between these two requests of this thread are nobody's. */
pool_run *pool_suspend(void);
void pool_resume(pool_run *r);

/* ---- for the allocator ----------------------------------------------------------------------------------------- */

bool pool_entered(void); /* a run of this thread wants to see requests */
/* Memory for `size` bytes, more than none; NULL: take it from elsewhere, and tell pool_note. */
void *pool_serve(size_t size);
/* What was got elsewhere; true: pool_release wants to know when it goes. */
bool pool_note(const void *at, size_t size);
/* True: it was a pool's, and is released; false: give it back to where it came from. */
bool pool_release(const void *at);

/* ---- counts and report ------------------------------------------------------------------------------------------------ */

typedef struct pool_counts {
	uint64_t served;  /* runs that had a chunk */
	uint64_t placed;  /* requests of the last of them that got their place */
	uint64_t outside; /* and those that were served from elsewhere, */
	uint64_t outside_bytes;
	uint64_t missed; /* of these: had a place and did not get it */
	uint64_t bytes;  /* of the places of that run, and the most that lives at once */
	uint64_t bound;
} pool_counts;

void pool_count(pool *p, pool_counts *out);
void pool_report(pool *p, strbuf *b); /* a line for each size, none where nothing is planned yet */

#ifdef __cplusplus
}
#endif
