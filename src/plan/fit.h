/* Fitting: a number seen at several sizes becomes a formula in the plan's symbols, or is known to follow none.
 *
 * A formula is taken only when more points agree with it than it has free numbers: two points fit any line. Simple
 * formulas are tried first. No torch, no data: integers in, an expression out. */
#ifndef PLAN_FIT_H
#define PLAN_FIT_H

#include "plan/plan.h"

/* Where a number was seen: value of every symbol of the plan, point after point. */
typedef struct fit_points {
	const int64_t *at; /* n rows of nsymbols */
	uint32_t n, nsymbols;
} fit_points;

/* *out: an expression that is y[i] at point i for all i, or NONE when no formula is proven. */
clv_status fit_int(plan *p, const fit_points *points, const int64_t *y, expr_id *out);

/* How many points with distinct values of one symbol (others equal) prove any formula in that symbol. */
enum { FIT_ENOUGH = 6 };

#endif
