/* Undoes a run that a guard ends: its writes and random draws are restored, so that another plan of the model can
 * serve the call. */
#pragma once

#include "exec/program.h"

/* What a program changes before its last guard. */
typedef struct undo undo;

/* What it was before a run. */
typedef struct undo_log {
	const undo *u;       /* borrowed */
	br_tensor **tensors; /* copies, then states of generators; owned */
	br_tensor **changed; /* what these are copies of; counted */
	uint32_t n;
} undo_log;

clv_status undo_new(const clv_program *g, undo **out); /* *out: NULL where nothing is changed before a guard */
void undo_free(undo *u);
clv_status undo_begin(const undo *u, const run_spec *r, undo_log *log);
/* Puts it back; *whole becomes false where that is not all, for what Python code did, or a generator of the caller's, stays. */
clv_status undo_run(const undo_log *log, bool *whole);
void undo_end(undo_log *log);
