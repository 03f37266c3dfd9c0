/* A matrix product as a step of a node: views of tensors, which operators arrange, and one lowering for all of them. */
#ifndef NATIVE_MULTIPLY_H
#define NATIVE_MULTIPLY_H

#include "native/native.h"
#include "native/product.h"

/* C = alpha · A·B + beta · D, then the epilogue. A is […, M, K], B is […, K, N], C is […, M, N]; D is broadcast to C. Batch
   dimensions of A and B are broadcast to those of C. B that is constant is packed once. */
typedef struct multiply {
	slot a, b, c, d; /* d: NONE, or beta 0: there is none */
	double alpha, beta;
	epilogue e;
} multiply;

clv_status mul_lower(lowering *l, const multiply *m);
/* For a step of the operator's own, which does it any number of times. Factors are f32, rows of C have no gaps. */
clv_status mul_prepare(lowering *l, const multiply *m, const void **out);
void mul_run(const void *prepared, frame *f);
/* A is [M, K], B [groups, K, N], C [M, N]: group i are the rows before ends[i] (i32) that are in none before. Nothing is added. */
clv_status mul_grouped(lowering *l, const multiply *m, slot ends);
/* relu or gelu of a block, then `next`. */
clv_status mul_activation(lowering *l, bool gelu, const epilogue *next, epilogue *out);
/* A matrix, turned. */
clv_status mul_turned(lowering *l, slot s, slot *out);
/* A matrix with batches, these broadcast to those of C; its own rows and columns. */
clv_status mul_spread(const nt *t, const nt *c, nt *out);

/* The tensor with its dimensions in this order. */
clv_status mul_view(lowering *l, slot s, uint8_t ndim, const uint8_t *dims, slot *out);
clv_status mul_with_one(lowering *l, slot s, uint32_t at, slot *out); /* with a new dimension of size 1 */
/* Dimensions d and d+1 as one: whether strides allow that, and the view. */
bool mul_merges(const nt *t, uint8_t d);
clv_status mul_merge(lowering *l, slot s, uint8_t d, slot *out);
/* The dimensions between `first` and the last one as one, of size 1 if there is none; a copy where strides do not allow it. */
clv_status mul_fold_middle(lowering *l, slot s, uint32_t first, slot *out);

#endif
