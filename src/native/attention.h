/* Attention: softmax(Q·Kᵀ · scale + mask) · V for blocks of query rows, whose scores stay in the cache. A row of the result has
 * the same bits in every batch, at any number of threads. */
#ifndef NATIVE_ATTENTION_H
#define NATIVE_ATTENTION_H

#include "native/product.h"

enum { ATTENTION_BATCHES = 8 };

typedef struct attention_side {
	int64_t row, col, batch[ATTENTION_BATCHES]; /* strides */
} attention_side;

typedef struct attention {
	uint8_t nbatch;
	int64_t batch[ATTENTION_BATCHES];
	int64_t queries, keys, size, values; /* L, S, size of a query and a key, size of a value */
	attention_side q, k, v, mask, out;   /* out.col is 1 */
	mask_kind kind;
	bool causal;
	float scale;
	float nothing; /* the result of a row whose keys are all hidden */
	/* What attention_plan works out. */
	int64_t batches, rows, blocks;   /* query rows of a block, blocks of a batch */
	int64_t grain;                   /* blocks that are worth a thread */
	int64_t scores, key_panels, all; /* floats of scratch memory of a thread: where panels begin, how many there are */
	bool direct;                     /* values are read where they are */
	size_t scratch;                  /* bytes, for all threads */
} attention;

static inline int64_t attention_offset(const attention *a, const int64_t *strides, int64_t batch)
{
	return batch_offset(a->nbatch, a->batch, strides, batch);
}

clv_status attention_plan(attention *a, const native_kernels *k, int threads);

typedef struct attention_run {
	const native_kernels *kernels;
	team *team;
	const float *q, *k, *v;
	const void *mask; /* floats or flags */
	float *out;
	void *scratch;
} attention_run;

void attention_do(const attention *a, const attention_run *r);

#endif
