/* Steps of chains that work along rows: sums and maxima that give a number per row, what spreads such numbers, softmax, norms. */
#ifndef NATIVE_ROWS_H
#define NATIVE_ROWS_H

#include "native/chain.h"

enum row_ops {
	ROW_SPREAD = CHAIN_OPS, /* a number per row, in all elements of the row; of any type */
	ROW_SUM,
	ROW_MEAN,
	ROW_MAX,
	ROW_MIN,
	ROW_VAR, /* number: the correction */
	ROW_STD,
	ROW_ARGMAX,
	ROW_ARGMIN,
	ROW_SOFTMAX,
	ROW_LOG_SOFTMAX,
	ROW_LAYER_NORM, /* number: eps; b, c: weight and bias, rows all alike */
	ROW_RMS_NORM,
	ROW_OPS
};
_Static_assert(ROW_OPS < 256, "chain_step has a byte for it");

/* n > 0. The result is as that of the operator by itself (op_reduce.c, op_norm.c), bit for bit. */
void row_step_run(const native_kernels *k, const chain_step *t, void *out, const void *a, const void *b, const void *c,
                  int64_t rows, int64_t n);

#endif
