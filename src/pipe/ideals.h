/* Ideals: sets of nodes that contain all predecessors of their nodes.
 *
 * A chain of stages is a chain of ideals, each with one stage more than the one before; so where ideals are few, the best
 * chain is a shortest path through them. */
#pragma once

#include "pipe/chain.h"

typedef struct ideals {
	const chain *c; /* borrowed */
	arena arena;    /* of scratch */
	uint32_t n;     /* numbered so that a larger one has the larger number; 0 is empty, n - 1 has all nodes */
	uint32_t words; /* of one set */
	bool closed;    /* nodes that take no time are in as soon as they can be */
	bool whole;     /* all there are; false: they were too many */
	VEC(uint64_t) bits;
	VEC(double) us;
	VEC(uint64_t) hash;
	VEC(chain_load) load;    /* of all nodes in it, but for work; only where not closed */
	VEC(pipe_border) border; /* what goes out of it */
	/* ways up: for ideal i first[i] … first[i+1]-1: the node that is added, and the ideal that it gives */
	VEC(uint32_t) first, via, up;
	/* scratch */
	uint32_t *slots, nslots;
	uint64_t *mark, *zobrist;                /* one set; per node */
	double *time;                            /* per node */
	uint32_t *added, nadded, *fresh, nfresh; /* of the set in mark: what came in, what became ready */
} ideals;

/* All ideals, or as many as fit the limits. `closed` loses nothing where time alone counts and devices are
   alike, and at least k nodes take time. */
clv_status ideals_new(const chain *c, bool closed, ideals *out);
void ideals_free(ideals *d);

static inline bool ideals_has(const ideals *d, uint32_t i, uint32_t n)
{
	return d->bits.at[(size_t)i * d->words + n / 64] >> (n % 64) & 1;
}

/* Time alone: the best chain below `*worst`, over every order of the devices. When one is found it goes to
   stage_of and device_of and `*worst` is its bottleneck; `*bound` is what is proven. */
clv_status ideals_by_time(const ideals *d, uint64_t *steps, uint64_t limit, uint32_t *stage_of, uint32_t *device_of,
                          double *worst, double *bound);

/* With links and memory, devices in the order of the chain. `*found` if there is one below `*worst`; `*proven` if the
   steps sufficed to look at all. */
clv_status ideals_by_cost(const ideals *d, uint64_t *steps, uint64_t limit, uint32_t *stage_of, double *worst,
                          bool *found, bool *proven);
