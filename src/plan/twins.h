/* The train and eval plans of one model: one of them, and how the other differs.
 *
 * The other plan's nodes are found in this one, in order. Arguments may be other constants there (a rate, a flag), and
 * nodes may be missing there: then another value stands for what they make. A forward in which the nodes without a twin
 * are left out, with these values and constants, does what the other plan does. */
#pragma once

#include "plan/plan.h"

typedef struct twins {
	const plan *p, *other; /* borrowed */
	node_id *node;         /* per node of p: the same in the other; NONE: it is in p alone */
	value_id *value;       /* per value of p that they have in common: the other's; NONE */
	value_id *stand;       /* per result of a node that is in p alone: the value of p that is there instead; NONE */
} twins;

/* Whether two constants or objects, of the one plan and of the other, are the same. */
typedef bool (*same_data)(void *ctx, value_id a, value_id b);

/* CLV_E_UNSUPPORTED says where they part: a node of the other that p does not have, or an output. */
clv_status twins_find(const plan *p, const plan *other, same_data same /* or NULL: none are */, void *ctx, twins *out);
void twins_free(twins *t);

/* Argument i of node n as it is in the other mode, where that is another constant; NULL: it is the same there. */
const arg *twins_arg(const twins *t /* or NULL */, node_id n, uint32_t i);
bool twins_alone(const twins *t /* or NULL */, node_id n); /* the node is in p alone */

bool twins_absent(const twins *t /* or NULL */, value_id v); /* there is nothing in its place in the other mode */
/* The shape of a tensor depends on the data, in one of the modes at least. */
bool twins_guarded(const twins *t /* or NULL */, const plan *p, value_id v);

/* Memory that is written, per value of p that is the first on it: what is written of a value is written of the one that
   stands for it. */
void twins_spread(const twins *t /* or NULL */, bool *written);
