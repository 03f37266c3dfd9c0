/* Goes on with a run that a guard ended, in a variant of its program.
 *
 * The steps of both programs are compared as they are, whatever passes made of them: what one has done up to the guard must be
 * what the other would have done. Tensors move from one frame to the other; what was changed stays changed. beginning.c finds
 * how far two programs are the same, resume.c moves a run. */
#pragma once

#include "exec/program.h"
#include "exec/undo.h"
#include "runtime/handover.h"

/* A run that waits at a guard: the step has been called, and nothing was released after it. */
typedef struct left_run {
	const clv_program *g; /* borrowed: the dispatcher keeps it */
	frame *f;             /* owned */
	uint32_t step;
	br_tensor **given; /* inputs and externals, by slot; counted */
	pool_run *memory;  /* that some of the tensors are in */
	bool grad;
} left_run;

typedef struct slot_pair {
	uint32_t left, here; /* slots, or places in `numbers` */
} slot_pair;

/* What two programs do first, up to a guard at which the run of one was left. Never changes once it is made. */
typedef struct beginning {
	uint64_t of;            /* id of the other program */
	uint32_t left, joined;  /* its step, and ours; NONE: they differ before that */
	VEC(slot_pair) given;   /* from outside: both must have the same tensors here */
	VEC(slot_pair) numbers; /* that were read from data */
	VEC(slot_pair) looks;   /* that the guard looks at */
	VEC(slot_pair) moves;   /* that steps after it read */
	VEC(uint32_t) again;    /* steps before it whose results the other does not have, or not any more */
} beginning;

/* Of g and the run that was left. r, f: of the run that is to go on with it. *out: NULL where it cannot, or not with these
   tensors. */
clv_status beginning_find(const clv_program *g, const frame *f, const run_spec *r, const left_run *l,
                          const beginning **out);
void beginnings_free(clv_program *g);

/* Keeps what g changes before its last guard, for a call that has a handover. */
clv_status resume_note(handover *h, const undo *u, const run_spec *r);
void resume_forget(handover *h); /* the last of these: nothing of that plan has run */
/* Leaves a run that a guard has ended after step `at`; false: the caller ends it. Else f and memory are taken. */
bool resume_leave(handover *h, const clv_program *g, const run_spec *r, frame *f, uint32_t at, pool_run *memory);
/* Goes on in f, which was loaded and has only what is borrowed: *out then says with which steps. A failure leaves f with
   nothing, and what was left where it was. */
clv_status resume_take(handover *h, const clv_program *g, const run_spec *r, frame *f, const beginning **out);

/* run.c. The rest of a step whose call was made, or made by another program: reads and guards. */
clv_status step_checks(const clv_program *g, const step *s, frame *f);
clv_status frame_read_data(const clv_program *g, frame *f); /* numbers that follow from data symbols */
void clear_frame(const clv_program *g, frame *f);           /* of what it owns */
void frame_give(const clv_program *g, frame *f);
