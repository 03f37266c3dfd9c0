/* Order: which nodes of a plan must not change places though no value goes from one to the other. */
#pragma once

#include "plan/plan.h"

typedef struct order_pair {
	node_id before, after;
} order_pair;

typedef VEC(order_pair) order_pairs;

/* Pairs whose order has to stay, together with what follows from them and from values; linear in the plan, but for each use of
   an input with each write of other memory from outside. */
clv_status order_of_effects(const plan *p, order_pairs *out /* empty; caller frees with vec_free, also on failure */);
/* The same for nodes that are run once more, ahead of the run: behind writes of what they read and answers that they rest on,
   but not behind draws and other writes. An input counts as memory of its own. */
clv_status order_of_reads(const plan *p, order_pairs *out);
