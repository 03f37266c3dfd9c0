/* State: tensors of the model that its forward changes, and which nodes have a part in that. */
#pragma once

#include "plan/plan.h"

/* A tensor that is written in place, or re-bound. Parts of a plan run at different times, and maybe in different
   processes: all that touch it are in one part, which does with it in each of its runs what the model would. */
typedef struct state {
	value_id v;     /* the tensor; the first of those on its memory */
	node_id change; /* a node that changes it; NONE: a rebind to another tensor of the model, or to an input */
	node_id first;  /* first node that uses it; NONE: none does */
	node_id last;   /* last touch; nodes.n: by the output */
} state;

/* A node that uses the tensor; or, `before`, has a part in what it is re-bound to, and may be in an earlier part then. */
typedef struct state_touch {
	uint32_t state;
	node_id node; /* nodes.n: the output */
	bool before;
} state_touch;

typedef struct state_list {
	VEC(state) all;
	VEC(state_touch) touches; /* of each state by node */
} state_list;

/* Linear in the plan. Caller frees, also on failure. */
clv_status find_state(const plan *p, state_list *out /* empty */);
void state_list_free(state_list *s);
