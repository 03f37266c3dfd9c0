/* Estimates the cost of blocks from shapes alone: for plans that cannot be run here (very large ones, those of the meta
 * device). Block i is the nodes ends[i-1] … ends[i]-1. */
#pragma once

#include "plan/plan.h"

typedef struct estimate_spec {
	double flops_per_s, bytes_per_s; /* what the device reaches, not what its maker says; > 0 */
	double node_us;                  /* what starting an operator takes at least; >= 0 */
	bool training;                   /* false: no backward, and nothing is held for it */
} estimate_spec;

/* A GPU of the data centre at half of what it could do: 100 Tflop/s, 1 TB/s, 5 us to start an operator. Shares between
   blocks, which are what a partition needs, depend little on them. */
#define ESTIMATE_SPEC_INIT                                                                                             \
	{                                                                                                                  \
		100e12, 1e12, 5, true                                                                                          \
	}

typedef struct block_cost {
	double fwd_us, bwd_us;
	int64_t held_bytes;  /* what the forward leaves for the backward: outputs, and all that the block makes and that an
	                        operator with gradients reads or makes */
	int64_t work_bytes;  /* more, at the worst moment of forward or backward: the larger of the last two */
	int64_t param_bytes; /* parameters, buffers and attributes that it reads, each once */
	int64_t in_bytes;    /* values from before that it reads, each once */
	int64_t out_bytes;   /* values that it makes and that are needed after it */
	int64_t fwd_work_bytes, bwd_work_bytes;
} block_cost;

/* ends: n of them, ascending, the last is the number of nodes. syms: values of the plan's symbols; one that is not
   defined (read from data) counts as 1. */
clv_status estimate_blocks(const plan *p, const node_id *ends, uint32_t n, const int64_t *syms, const estimate_spec *s,
                           block_cost *out);

/* CLV_E_INVALID unless ends are as above. */
clv_status check_ends(const plan *p, const node_id *ends, uint32_t n);

/* Per value: gradients flow through it in a training step. Besides what required grad when it was captured, what an
   operator with gradients wrote later. Caller frees with mem_free. */
clv_status plan_grads(const plan *p, bool **out);
