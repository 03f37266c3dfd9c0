/* Measures the blocks of a plan, each by itself, on the values that come to it in a real forward. */
#pragma once

#include "exec/program.h"
#include "pipe/profile.h"

#define PROFILE_WHOLE UINT32_MAX

typedef struct profile_spec {
	const node_id *ends; /* block i is the nodes ends[i-1] … ends[i]-1 */
	uint32_t n;
	uint32_t warmup, iterations; /* iterations >= 1 */
	bool training;               /* forward with gradients, and backward; false: neither */
	br_tensor *const *inputs;    /* of the plan; not changed */
	br_tensor *const *externals; /* by value id; not changed, nor their .grad; NULL for what is none */
	br_object *const *objects;   /* by value id, nobjects of them; may be NULL. Generators are put back */
	uint32_t nobjects;
	python_fn python;
	void *python_ctx;
	/* Before each run of block i (or of PROFILE_WHOLE). What is not CLV_OK ends the profile. */
	clv_status (*tick)(void *ctx, uint32_t block);
	void *ctx;
} profile_spec;

/* out: one per block, in the order of the plan. whole: all blocks in one run; NULL: not wanted. *whole_ran is false where
   a run of all at once has no room (out of memory, where the blocks have): not an error. The caller has the grad mode that
   `training` says, and puts the process's own random generators back. */
clv_status profile_blocks(const plan *p, const profile_spec *s, block_profile *out, block_profile *whole,
                          bool *whole_ran);

/* The path of the smallest module that nodes first … end-1 are all in, appended to b. */
void block_module(const plan *p, node_id first, node_id end, strbuf *b);
