/* Order: which nodes of a plan must not change places though no value goes from one to the other. */
#ifndef SPLIT_ORDER_H
#define SPLIT_ORDER_H

#include "plan/plan.h"

typedef struct order_pair {
	node_id before, after;
} order_pair;

typedef VEC(order_pair) order_pairs;

/* Pairs whose order has to stay, together with what follows from them and from values; linear in the plan, but for each use of
   an input with each write of other memory from outside. */
clv_status order_of_effects(const plan *p, order_pairs *out /* empty; caller frees with vec_free, also on failure */);

#endif
