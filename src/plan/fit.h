/* Fitting: a number seen at several sizes becomes a formula in the plan's symbols, or is known to follow none.
 *
 * A formula is taken only when more points agree with it than it has free numbers: two points fit any line. Simple
 * formulas are tried first. No torch, no data: numbers in, a formula out. */
#pragma once

#include "plan/plan.h"

/* Where a number was seen: value of every symbol of the plan, point after point. */
typedef struct fit_points {
	const int64_t *at; /* n rows of nsymbols */
	uint32_t n, nsymbols;
} fit_points;

static inline const int64_t *fit_point(const fit_points *points, uint32_t i)
{
	return points->at + (size_t)i * points->nsymbols;
}

/* *out: an expression that is y[i] at point i for all i, or NONE when no formula is proven. */
clv_status fit_int(plan *p, const fit_points *points, const int64_t *y, expr_id *out);

/* What happened to a float after it was computed: nothing, or it became an element of an f32 tensor. */
typedef enum fit_rounding { FIT_DOUBLE, FIT_SINGLE } fit_rounding;

/* As fit_int for floats (fit_real.c): bit for bit at every point. *out is NONE too when several formulas agree at all
   points but not everywhere in the ranges of the symbols; then doubt->is is true and doubt->at (one per symbol) a point that
   would tell which it is. */
typedef struct fit_doubt {
	bool is;
	int64_t *at;
} fit_doubt;

clv_status fit_real(plan *p, const fit_points *points, const double *y, fit_rounding rounding, fit_doubt *doubt,
                    real_id *out);

/* How many points with distinct values of one symbol (others equal) prove any formula in that symbol. */
enum { FIT_ENOUGH = 6 };
