/* The engine over libtorch: programs of the tape behind the table of engines. */
#pragma once

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
	bool trains;           /* gradients are wanted of its runs */
	bool draws;            /* random numbers */
	VEC(tape_segment) segments;
	_Atomic uint64_t runs; /* of one with compiled segments */
	arena arena;
} taped;

extern const engine engine_tape;
/* Held by runs that draw random numbers: the generator belongs to the process, and a trainer puts its own in its place. */
extern pthread_mutex_t tape_drawing;
extern const engine engine_training; /* not in the list: callers get no runtime on it */

static inline clv_program *tape_program(const runtime_plan *e)
{
	return ((const taped *)e->program)->g;
}
/* tape_segments.c. The codes of the segments that run compiled, for the program; kept in t->segments. */
typedef VEC(code *) code_list;
clv_status tape_load_codes(taped *t, const engine_order *o, code_list *out);
void tape_free_codes(taped *t);
void tape_changed(void *program, value_id external, const char *why);
uint32_t tape_segments(const void *program);
void tape_segment_state(const void *program, uint32_t i, clv_segment_state *out);

extern const engine_sandbox tape_sandbox; /* tape_sandbox.c */
