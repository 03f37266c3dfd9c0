/* An estimate of the work of a node, from shapes alone: multiply-adds count two, everything else one per element. */
#pragma once

#include "plan/plan.h"

/* The work of a node as a product: factor * elements of `of` * dims[0] * dims[1] * … */
typedef struct work_product {
	double factor;
	value_id of;       /* NONE: all tensors among the results together */
	uint32_t first, n; /* slice of plan->dims */
} work_product;

work_product node_work(const plan *p, node_id n);

/* sizes: value of every expression (expr_eval_all). Never fails; an unknown operator costs its output's elements. */
double node_flops(const plan *p, node_id n, const int64_t *sizes);
