/* Chains: partitions whose stages stand one after the other, cut out of one topological order.
 *
 * Such a partition cannot have a cycle, whatever the cuts are, and what a stage costs is told by what is between
 * its two cuts and by what crosses them. Methods that look for chains share the order (chain.c), the cuts and the
 * cost (chain_cut.c) and the search (chain_search.c) here. */
#pragma once

#include "pipe/pipe.h"

/* What is in a stage. Times are for a device of speed 1. */
typedef struct chain_load {
	double fwd, bwd, param, held, work;
} chain_load;

typedef struct chain {
	arena arena;
	const pipe_problem *pr; /* borrowed */
	uint32_t n, k;
	bool plain;          /* time alone counts: no links that cost, no memory that ends */
	bool alike;          /* one device is as good as another, at every place of the chain */
	uint32_t *order;     /* nodes, topological */
	uint32_t *cut;       /* k + 1; stage s is order[cut[s]] … order[cut[s+1]-1], and is never empty */
	uint32_t *stage_of;  /* per node: what order and cut say */
	uint32_t *device_of; /* per stage */
	double worst;        /* cost of the costliest stage */
	double least;        /* no partition can be below */
	uint64_t steps;      /* of work so far: what limits count */
	uint64_t most_steps; /* beyond, a cut by everything is given up */
	double deadline;     /* of clock_seconds(); 0: none */
	bool stopped;        /* it has come */

	/* values of a node: made[made_first[n]] …, read[read_first[n]] … */
	uint32_t *made, *made_first, *read, *read_first;
	/* scratch */
	double *sum;                    /* n + 1: time before a position */
	chain_load *load;               /* n + 1: the same of everything; work is that of the node at the position */
	pipe_border *border;            /* n + 1 */
	uint32_t *wait, *ready, *place; /* n each */
	uint32_t *trial, *in_flight;    /* k + 1 */
	uint32_t *spot, nspots;         /* candidates for cuts */
	double *reach;                  /* k + 1 rows of candidates */
	uint32_t *back;
	uint32_t *kept_order, *kept_cut, *kept_device;
	double kept_worst;
} chain;

clv_status chain_new(const pipe_problem *pr, chain *out);
void chain_free(chain *c);

/* The cost of stage s as score.c reckons it; what is over the memory comes on top and outweighs every time. Where a
   stage is recomputed, all that comes in counts as held, which is at least what is. */
double chain_cost(const chain *c, uint32_t s, const chain_load *in, const pipe_border *before,
                  const pipe_border *after);

/* Begins with stages that are given, k of them in a row, none empty. */
void chain_take(chain *c, const uint32_t *stage_of, const uint32_t *device_of);

/* Several orders (random ones; some that are not, if `given`) cut as well as each can be, the best of them
   refined until that does not help; about `steps` steps at most. */
clv_status chain_search(chain *c, uint64_t steps, bool given, pipe_random *r);
/* Orders inside of the stages are shuffled and the whole is cut anew, so many times, or until c->steps is at
   `end`; never worse than before. */
void chain_refine(chain *c, uint32_t attempts, uint64_t end, pipe_random *r);
/* Fewer bytes over the borders where no stage gets slower than the slowest is. */
void chain_polish(chain *c, uint64_t steps, pipe_random *r);

clv_status chain_partition(const chain *c, pipe_partition *out);

chain_load node_load(const pipe_problem *pr, uint32_t n); /* of one node; work is its own */

/* Below this no partition can be, mixed ones included: work over all speeds, the heaviest nodes. */
clv_status least_bottleneck(const pipe_problem *pr, double *us_out);

/* ---- parts of these ---------------------------------------------------------------------------------------- */

#define CHAIN_EQUAL 1e-9     /* as score_better: what is closer than that is no gain */
#define CHAIN_ROUNDING 1e-13 /* of sums taken in another order */

static inline double chain_speed(const chain *c, uint32_t s)
{
	return c->pr->devices[c->device_of[s]].speed;
}

/* How the next node of an order is chosen from those that are ready: the newest, or any; how often, in 256. New ones may
   be buried below others, so that a branch is left for later. */
typedef struct chain_taste {
	uint32_t newest, bury;
} chain_taste;

/* chain.c */
void chain_set_stages(chain *c); /* stage_of by the cuts */
void chain_sort(chain *c);       /* order and cuts by stage_of; nodes of a stage stay in their order */
void chain_swap_devices(chain *c, uint32_t a, uint32_t b);
chain_taste chain_any_taste(pipe_random *r);
/* Another topological order of the nodes at order[from] … order[to-1], which are all those with stage_of from `a` to
   `b`. */
void chain_shuffle_run(chain *c, uint32_t from, uint32_t to, uint32_t a, uint32_t b, chain_taste by, pipe_random *r);
void chain_shuffle_by(chain *c, chain_taste by, pipe_random *r); /* inside of the stages */
void chain_shuffle(chain *c, pipe_random *r);                    /* the same, by any taste */
void chain_shuffle_all(chain *c, chain_taste by, pipe_random *r);

/* chain_cut.c */
uint32_t chain_spots(const chain *c); /* the most candidates for cuts that the DP looks at */
void chain_sum(chain *c);             /* time along the order */
void chain_sum_all(chain *c);         /* and loads, and borders */
double chain_costliest(const chain *c);
/* The best cut of the order, among those with no stage over `most`: by the costliest stage, or by bytes over borders.
   Leaves c->cut alone if there is none, or if that takes too many steps; what it found otherwise. */
double chain_cut_spots(chain *c, double most, bool bytes);
void chain_cut_order(chain *c, pipe_random *r); /* the best cut of the order that is there */
/* Cuts the order anew, never worse than c->worst; false if that is not possible (devices were changed). */
bool chain_recut(chain *c, pipe_random *r);
