/* The engine over libtorch: programs of the tape behind the table of engines. */
#ifndef EXEC_TAPE_H
#define EXEC_TAPE_H

#include "exec/code.h"
#include "exec/program.h"
#include "runtime/runtime.h"

/* A compiled segment of the file. */
typedef struct tape_segment {
	const artifact_segment *from; /* borrowed from the artifact */
	code *c;                      /* counted; NULL: its nodes run on the tape */
	const char *reason;           /* why, in the arena of the program */
} tape_segment;

typedef struct taped {
	clv_program *g;
	br_tensor **externals; /* per external of the view; borrowed from the runtime's tensors */
	VEC(tape_segment) segments;
	_Atomic uint64_t runs; /* of one with compiled segments */
	arena arena;
} taped;

extern const engine engine_tape;

static inline clv_program *tape_program(const runtime_plan *e)
{
	return ((const taped *)e->program)->g;
}

clv_status tape_check_run(const taped *t, const run_call *c); /* all that a run checks before its first step */
/* tape_segments.c. The codes of the segments that run compiled, for the program; kept in t->segments. */
typedef VEC(code *) code_list;
clv_status tape_load_codes(taped *t, const engine_order *o, code_list *out);
void tape_free_codes(taped *t);
void tape_changed(void *program, value_id external, const char *why);
uint32_t tape_segments(const void *program);
void tape_segment_state(const void *program, uint32_t i, clv_segment_state *out);

extern const engine_sandbox tape_sandbox; /* sandbox.c */

#endif
