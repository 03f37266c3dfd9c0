/* Shared by the methods that may give a device several stages (metis, mpipe, auto): joining and placing stages
 * (stages.c), and moving nodes at the borders of stages (polish.c). */
#pragma once

#include "pipe/pipe.h"

/* A bottleneck this close to the lower bound counts as reached: beyond it fewer stages and bytes are worth more. */
#define POLISH_REACHED 1e-4

/* keeper_offer, with every device used: what is compared is what comes out in the end. */
clv_status offer_filled(const pipe_problem *pr, keeper *kept, pipe_partition *p);
/* No partition can be much better: the bottleneck is at the lower bound, within POLISH_REACHED, and memory fits. */
bool kept_reached(const keeper *kept);

/* The most stages that the mixed methods make: max_stages, or four for each device. */
uint32_t stages_limit(const pipe_problem *pr);

/* Whether no new attempt may start, for pr->seconds; `began` is what clock_seconds said when the method began. */
bool time_is_up(const pipe_problem *pr, double began);

/* ---- stages ------------------------------------------------------------------------------------------------------ */

/* Neighbouring stages are joined, the lightest first and where most bytes are saved, until `limit` are left. */
clv_status stages_join(const pipe_problem *pr, pipe_partition *p, uint32_t limit);

/* Stages on devices, the largest first and each where it would be done first among those whose memory it fits. The
   devices that p had stay when they are as good. */
clv_status stages_place(const pipe_problem *pr, pipe_partition *p);

/* ---- polish ------------------------------------------------------------------------------------------------------ */

typedef struct polisher polisher; /* tables of one problem, for any number of partitions */

clv_status polisher_new(const pipe_problem *pr, polisher **out); /* caller frees */
void polisher_free(polisher *po);                                /* NULL is allowed */

typedef struct polish_effort {
	uint64_t steps; /* proposals, about */
	double heat;    /* by how much a step may make things worse in the beginning, in mean nodes; 0: never */
	uint64_t seed;
} polish_effort;

uint64_t polish_steps(const pipe_graph *g); /* what an attempt is worth on this graph */

/* Moves nodes between stages, and stages between devices, their number staying: less over the memory, then a smaller
   bottleneck, then fewer bytes. p is not worse after it, but that a bottleneck may end anywhere within
   POLISH_REACHED of the bound when it was not there before. */
clv_status polish(polisher *po, pipe_partition *p, const polish_effort *effort);
