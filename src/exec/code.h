/* Code: a compiled segment of a plan, ready to run in a program instead of its nodes. */
#pragma once

#include <stdatomic.h>

#include "exec/backend.h"
#include "plan/view.h"

/* Immutable but for the counters and the reason. Counted: programs share it. */
typedef struct code {
	const backend *b;
	void *loaded;                      /* of the back end */
	node_id first, end;                /* nodes of the plan that it replaces */
	VEC(int64_t) low, high;            /* per symbol of the plan: sizes it was compiled for */
	VEC(uint32_t) in_order, out_order; /* per input and output of view_segment, one after another: dimensions from the
	                                      slowest to the fastest in memory */
	_Atomic(const char *) reason;      /* why it is not used any more; NULL: it is. Set once, stays until it is freed */
	_Atomic uint64_t runs, tape_runs;  /* by the code, and by the tape instead of it */
	_Atomic uint32_t users;
} code;

typedef struct code_source {
	const artifact_segment *from;
	const plan *p;
	const liveness *live; /* of the plan */
	bool allowed;         /* it may run, whatever its origin */
	int threads;          /* that a run may use; 0: nobody says */
	const artifact *file; /* that has the segment, and the weights in it; NULL: its members are whole */
} code_source;

/* Loads what an artifact has for a segment. What cannot run here is no error: *out is NULL then, and *reason, in `a`, says
   why. Errors are for a segment that does not fit the plan, and for want of memory. */
extern const char code_barred[]; /* the reason where it is not allowed, and has no seal of this user */
clv_status code_new(const code_source *s, arena *a, code **out, const char **reason);
/* One that serves nothing: the tape of the segment runs, and can be watched. */
clv_status code_empty(node_id first, node_id end, code **out);
code *code_ref(code *c);
void code_unref(code *c); /* NULL is allowed; the last unloads it */

bool code_serves(const code *c, const int64_t *symbols); /* it is in use, and was compiled for these sizes */
/* From now on the tape runs instead; the first reason stays. */
void code_stop(code *c, const char *reason);

/* Runs it on the inputs of view_segment, new references into outputs; NULLs after a failure. Copies what is laid out
   otherwise than the code, or the tape, would have it. Of the call: the view, its sizes and what comes in. */
clv_status code_run_view(const code *c, const struct segment_call *call, br_tensor **outputs);

/* The one device that the tensors of a segment are on; NULL: there are several, or none. Borrowed from the plan. */
const char *code_device(const view *v);
