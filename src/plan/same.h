/* Two plans, or two places of one, compared part by part (same.c). */
#pragma once

#include "plan/plan.h"

/* Calls f for the values at the same place of two slices of arguments, lists included. */
typedef void (*value_pair_fn)(void *ctx, value_id a, value_id b);
void each_value_pair(const plan *p, uint32_t first, const plan *other, uint32_t second, uint32_t n, value_pair_fn f,
                     void *ctx);

/* Two plans, and how their values correspond: by label, unless `same` says so. */
typedef struct pair {
	const plan *a, *b;
	bool (*same)(void *ctx, value_id a, value_id b); /* or NULL */
	void *ctx;
	const struct expr_values *at_a, *at_b; /* sizes are compared as they are in one call; NULL: as formulas */
	bool (*same_const)(void *ctx, value_id a, value_id b); /* have the same data, which plans do not have; or NULL */
} pair;

/* Every expression of a plan in one call. */
typedef struct expr_values {
	int64_t *value;
	bool *defined;
} expr_values;

bool pair_str(const pair *q, str_id a, str_id b);
bool pair_arg(const pair *q, const arg *x, const arg *y, unsigned depth); /* depth: 0 */
bool pair_dims(const pair *q, uint32_t a, uint32_t b, uint32_t n);        /* NONE equals NONE */
bool pair_context(const pair *q, context_id a, context_id b);
bool pair_call(const pair *q, const node *x, const node *y);    /* the same operator, arguments, writes and modes */
bool pair_results(const pair *q, const node *x, const node *y); /* the same types, sizes and guards of results */
bool pair_leaf(const pair *q, const tree *x, const tree *y);
