/* A view: some nodes of a plan in plan order, with their inputs and outputs. Prefix, suffix, stage and segment are
 * all views; nothing copies nodes. */
#pragma once

#include "plan/plan.h"

typedef struct view {
	const plan *p;             /* borrowed */
	VEC(node_id) nodes;        /* ascending */
	VEC(value_id) inputs;      /* come in: plan inputs and results of nodes outside; ascending value id */
	VEC(value_id) outputs;     /* needed outside: by other nodes or the output tree; ascending value id */
	VEC(value_id) externals;   /* PARAM BUFFER ATTR CONST OBJECT read; ascending value id */
	VEC(value_id) passthrough; /* view_range only: values that came in, are not needed here, and must go on:
	                              subset of inputs and of outputs */
	VEC(uint32_t) rebinds;     /* view_range only: those of the plan that it does at its end; ascending */
} view;

/* Nodes first … end-1. For a prefix (first == 0) inputs are all plan inputs, outputs the boundary, passthrough the
   plan inputs that only later nodes or the output tree need. For a range whose end is the plan's end, outputs are the
   distinct RESULT and INPUT values of the output tree (its externals are in externals).
   A range 0 … k and a range k … n agree: outputs of the first are the inputs of the second. */
clv_status view_range(const plan *p, node_id first, node_id end, view *out);
/* The same for the range of a rewritten plan that does what `like` did: it has the rebinds of that one. */
clv_status view_range_like(const plan *p, node_id first, node_id end, const view *like, view *out);
/* The same nodes as code that takes their place: inputs are what comes in and is used here, outputs what is made here and
   needed outside (also by rebinds); nothing passes through. Costs what the range has, not what the plan has: `l` is of the
   plan. */
clv_status view_segment(const plan *p, const liveness *l, node_id first, node_id end, view *out);
void view_free(view *v);

typedef VEC(value_id) value_ids;
/* What a run of it gives: the leaves of the output tree, if that is wanted whole, else its outputs; then values of its
   rebinds. CLV_E_UNSUPPORTED: one is no tensor. */
clv_status view_gives(const view *v, bool whole, value_ids *out);

/* Per value of the plan: nodes of the view write its memory in place, and it is the first value there. Caller frees with
   mem_free. */
clv_status view_written(const view *v, bool **out);
bool view_draws(const view *v); /* random numbers */
