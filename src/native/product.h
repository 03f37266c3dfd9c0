/* Matrix products with batches, threads and what is done to C while it is in cache.
 *
 *   C[b] = alpha · A[b]·B[b] + beta · D[b]      then finish() on each block of C
 *
 * Every operand has strides of its own for rows, columns and each batch dimension; a stride of 0 repeats it. A row of C has the
 * same bits for every M, batch and number of threads. */
#ifndef NATIVE_PRODUCT_H
#define NATIVE_PRODUCT_H

#include "base/status.h"
#include "native/kernels.h"
#include "plan/plan.h"

enum { PRODUCT_BATCHES = 8 };

typedef struct product_side {
	int64_t row, col; /* strides */
	int64_t batch[PRODUCT_BATCHES];
} product_side;

typedef struct product {
	uint8_t dtype, nbatch;
	int64_t m, n, k, batch[PRODUCT_BATCHES];
	product_side a, b, c, d; /* B has K rows; floats: c.col is 1 */
	double alpha, beta;      /* beta 0: there is no D */
	bool packed;             /* B is panels: product_pack; b.batch counts matrices then */
	panel_type type;         /* of packed panels */
	/* What product_plan works out. */
	int64_t batches, blocks; /* of C: row_blocks × panel_blocks for each batch */
	int64_t rows, panels;    /* of a block */
	int64_t row_blocks, panel_blocks;
	int64_t grain; /* blocks that are worth a thread */
	bool direct;   /* B is read where it is; else a run packs it */
	int64_t
		matrix[PRODUCT_BATCHES]; /* strides of packed matrices of B, in matrices; 0 where one serves several batches */
	int64_t matrices, part;      /* all of them; how many of the first batch dimension are packed at a time */
	size_t scratch;              /* bytes that a run needs */
} product;

/* Chooses blocks for so many threads; sizes and strides are set. Fails if the panels of B are too large for memory. */
clv_status product_plan(product *p, const native_kernels *k, int threads);

typedef struct product_run {
	const native_kernels *kernels;
	team *team;
	const void *a, *b, *d; /* b: panels if they are packed */
	void *c, *scratch;
	/* A block of C is done: rows from `row` of batch `batch`, columns from `col`; floats only. NULL: nothing to do. */
	void (*finish)(void *ctx, float *c, int64_t c_row, int64_t batch, int64_t row, int64_t rows, int64_t col,
	               int64_t cols);
	void *ctx;
} product_run;

void product_do(const product *p, const product_run *r);

/* The element of a batch in an operand with such strides: n dimensions of these sizes. */
static inline int64_t batch_offset(int n, const int64_t *sizes, const int64_t *strides, int64_t batch)
{
	int64_t at = 0;
	for (int d = n - 1; d >= 0; d--) {
		at += batch % sizes[d] * strides[d];
		batch /= sizes[d];
	}
	return at;
}

/* Floats of a K×N matrix as panels of `cols` columns; -1: too many. */
int64_t product_packed(int cols, int64_t k, int64_t n);

#endif
