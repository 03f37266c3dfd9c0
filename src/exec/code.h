/* Code: a compiled segment of a plan, ready to run in a program instead of its nodes. */
#ifndef EXEC_CODE_H
#define EXEC_CODE_H

#include <stdatomic.h>

#include "exec/backend.h"
#include "plan/view.h"

/* Immutable but for the counters. Counted: programs share it. */
typedef struct code {
	const backend *b;
	void *loaded;           /* of the back end */
	node_id first, end;     /* nodes of the plan that it replaces */
	VEC(int64_t) low, high; /* per symbol of the plan: sizes it was compiled for */
	VEC(uint32_t) in_order,
		out_order; /* per input and output of the view, one after another: dimensions from the slowest
	                                      to the fastest in memory */
	_Atomic uint32_t users;
} code;

/* Which sizes and layouts: as an artifact has them. */
clv_status code_new(const artifact_segment *from, const plan *p, const code_spec *s, code **out);
code *code_ref(code *c);
void code_unref(code *c); /* NULL is allowed; the last unloads it */

bool code_serves(const code *c, const int64_t *symbols); /* it was compiled for these sizes */

/* Runs it on the inputs of the view; copies what is laid out otherwise than the code, or the tape, would have it. `sizes`:
   value of every expression of the plan. */
clv_status code_run_view(const code *c, const view *v, const int64_t *sizes, clv_tensor *const *inputs,
                         clv_tensor **outputs);

#endif
