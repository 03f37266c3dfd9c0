/* Polynomials over the symbols of a plan: sums of products of sizes in one short normal form.
 *
 * A polynomial is a sum of terms, a term a number times a product of factors. A factor is a symbol or an expression
 * that is no polynomial (a quotient, a remainder, min, max), taken as a whole. */
#pragma once

#include "plan/plan.h"

enum { POLY_DEGREE = 12 };

typedef struct poly_term {
	__int128 k;
	uint32_t degree;
	expr_id factors[POLY_DEGREE]; /* ascending */
} poly_term;

typedef VEC(poly_term) poly; /* starts as all zero bytes, which is 0; vec_free releases it */

clv_status poly_const(poly *out, int64_t k);                     /* out: 0 before */
clv_status poly_add(poly *sum, const poly *more);                /* sum += more */
clv_status poly_times(const plan *p, poly *product, expr_id by); /* product *= by; CLV_E_OVERFLOW: too large */
clv_status poly_print(const plan *p, poly *x /* sorted by it */, strbuf *b); /* "4*B*S+1024", "0" */
