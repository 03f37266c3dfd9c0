/* Guards that can be decided earlier than the model meets them (early.c). */
#pragma once

#include "plan/plan.h"

/* The plan with those guards before the cut, and where the cut is then. *out: NULL where none can move. */
clv_status guards_early(const plan *p, node_id *cut, plan **out);

/* Neither writes, nor draws, nor has any other effect but to end a run. */
bool node_only_computes(const plan *p, node_id k);

/* The plan with the guards in front that only compute, from inputs and from weights that nodes before `end` read, and with them
   what they need: *n nodes, to be run once more, by themselves. *out: NULL where there are none. *late: how many guards are
   left. */
clv_status guards_first(const plan *p, node_id end, plan **out, node_id *n, uint32_t *late);
