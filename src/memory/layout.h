/* Layouts: a place in memory for each block that a run asks for, planned from the trace of an earlier run.
 *
 * A trace is the list of blocks that the steps of a run asked for, with the events at which they came and went. A layout
 * has a place for the k-th request of each step, or none for a block that outlived the run. It does not rely on runs being
 * alike: it lists for each block those that had its bytes before (`before`), and a place is given out only when these are
 * free. */
#pragma once

#include "memory/place.h"

enum { MEMORY_ALIGN = 64 }; /* as torch's own; kernels go other ways for less */

typedef struct traced_block {
	uint32_t step;
	uint64_t size;
	uint32_t born, died; /* events; died UINT32_MAX: after the run */
} traced_block;

typedef struct planned_block {
	uint64_t size;            /* that may be asked for */
	uint64_t offset;          /* of its data, MEMORY_ALIGN behind the start of its place; PLACE_NONE: it has none */
	uint32_t before, nbefore; /* slice of layout->before */
} planned_block;

typedef struct layout {
	uint32_t refs; /* under memory_lock */
	uint32_t nsteps, n;
	uint32_t *first; /* per step and one more: its first block */
	planned_block *blocks;
	VEC(uint32_t) before;
	uint32_t placed;
	uint64_t bytes, bound; /* of all places; the most that lives at once */
} layout;

/* Blocks in the order of steps, and of birth. */
clv_status layout_new(const traced_block *at, uint32_t n, uint32_t nsteps, layout **out);
void layout_free(layout *l); /* NULL is allowed */
