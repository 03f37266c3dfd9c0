/* An estimate of the work of a node, from shapes alone: multiply-adds count two, everything else one per element. */
#ifndef PLAN_FLOPS_H
#define PLAN_FLOPS_H

#include "plan/plan.h"

/* sizes: value of every expression (expr_eval_all). Never fails; an unknown operator costs its output's elements. */
double node_flops(const plan *p, node_id n, const int64_t *sizes);

#endif
