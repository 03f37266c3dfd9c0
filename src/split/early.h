/* Guards that can be decided earlier than the model meets them (early.c). */
#pragma once

#include "plan/plan.h"

/* The plan with guards of the suffix before the cut, and where the cut is then. *out: NULL where none can move. *n: so many
   guards at most, the first ones; then how many moved, NONE if none is left behind them. Where variants of a model move equally
   many, the suffix of one can go on where that of another one was refused. */
clv_status guards_early(const plan *p, node_id *cut, uint32_t *n, plan **out);

/* Neither writes, nor draws, nor has any other effect but to end a run. */
bool node_only_computes(const plan *p, node_id k);

/* The plan with the guards in front that only compute, from inputs and from weights that nodes before `end` read, and with them
   what they need: *n nodes, to be run once more, by themselves. *out: NULL where there are none. *late: how many guards are
   left. */
clv_status guards_first(const plan *p, node_id end, plan **out, node_id *n, uint32_t *late);
