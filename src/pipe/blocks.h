/* Blocks: a plan folded to the units that a pipeline is cut between.
 *
 * A block is a set of nodes that stays together: a layer, a module that the caller wants whole, a single operator between
 * layers, or more where a cut inside would be wrong (memory that is written in place, numbers on the host, state of the
 * model that is written). Blocks are in a topological order, and their nodes can be brought into that order too. */
#pragma once

#include "pipe/estimate.h"
#include "pipe/pipe.h"
#include "plan/plan.h"

typedef struct blocks_spec {
	uint32_t depth;           /* modules this deep are not opened ("a.b" is 2 deep) */
	const char *const *whole; /* classes or paths of modules that are not opened either */
	uint32_t nwhole;          /* how many they are */
	bool ties_together;       /* what reads the same parameter stays together */
	bool keep_order;          /* blocks are cut from the plan in its own order */
	const clv_sizes *sizes;   /* of symbols; NULL: the lowest */
} blocks_spec;

typedef struct block {
	uint32_t first, n; /* slice of blocks->order: its nodes, ascending */
	scope_id scope;    /* the module it is, or is a part of; NONE: none */
	bool layer;        /* it is a call of that module; else an operator, or several that must stay together */
	bool layers;       /* some of it belongs to a layer */
	char *name;        /* "layer1.0.conv1", "add_3"; unique */
} block;

typedef struct blocks {
	const plan *p; /* borrowed */
	VEC(block) at;
	VEC(node_id) order;   /* all nodes of the plan, block by block */
	uint32_t *of_node;    /* per node: its block */
	VEC(pipe_edge) edges; /* between blocks: values and order; each pair once, ascending */
	int64_t *syms;        /* size of every symbol */
} blocks;

clv_status blocks_new(const plan *p, const blocks_spec *s, blocks *out);
void blocks_free(blocks *b);

/* The graph for partitioning: one node per block. */
clv_status blocks_graph(const blocks *b, const block_cost *costs /* per block */, pipe_graph *out);

/* The plan with its nodes block by block: block i is nodes ends[i-1] … ends[i]-1. */
clv_status blocks_plan(const blocks *b, plan **out, node_id *ends);

/* The plan with its nodes stage by stage, within a stage in the plan's order. CLV_E_UNSUPPORTED if a boundary between
   stages is not safe: it says where and why. */
clv_status stages_plan(const plan *p, const uint32_t *stage_of /* per node */, uint32_t nstages, plan **out,
                       node_id *ends);

/* The stages of another plan of the same model (another mode, other sizes): every block of `b` goes where the nodes of
   `from` that do the same are, or later if what it reads is. */
clv_status stages_match(const plan *from, const uint32_t *stage_of, const blocks *b,
                        uint32_t *out /* per node of b->p */);
