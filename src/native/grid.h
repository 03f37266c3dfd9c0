/* A tensor as [outer, n, inner] for what works along some of its dimensions. */
#ifndef NATIVE_GRID_H
#define NATIVE_GRID_H

#include "native/native.h"

typedef struct grid {
	slot x; /* the tensor itself, or a copy in another order */
	int64_t outer, n, inner;
	nt lie; /* sizes and strides of x */
} grid;

/* Along the dimensions of the mask. rows: inner is 1. A tensor that lies otherwise is copied for the steps of this node. */
clv_status low_grid(lowering *l, slot x, uint32_t mask, bool rows, grid *out);
/* The result without these dimensions, or with size 1 in their place, lies as [outer, inner] does. */
clv_status grid_result_form(lowering *l, node_id n, uint32_t i, const grid *g, uint32_t mask, nt *out);

/* Dimensions as an operator names them: none or no entries are all of them. */
clv_status low_mask(lowering *l, node_id n, uint32_t i, uint32_t ndim, uint32_t *out);

#endif
