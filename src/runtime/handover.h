/* A run that a guard ended, kept for a variant that goes on with it.
 *
 * The dispatcher has one around each plan that it runs for a call. An engine that can leaves its run there, effects included,
 * instead of taking it back; the plans that are run next go on with it, or pass. Where all of them pass, the dispatcher has it
 * taken back, and runs them from the beginning. Threads have their own. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct handover handover;

/* Of the engine that leaves something. */
typedef struct handover_kind {
	clv_status (*undo)(handover *h, bool *whole); /* takes everything back that runs of the call have changed */
	void (*drop)(handover *h);                    /* frees what is kept; what was changed stays */
} handover_kind;

struct handover {
	const handover_kind *kind; /* NULL: nothing is kept */
	void *left;                /* the run that was left; NULL: none waits */
	void *effects;             /* what runs of the call have changed */
	uint32_t taken;            /* how often a plan went on */
	bool passed;               /* the last plan could not go on, and has done nothing */
	handover *outer;
};

void handover_open(handover *h);
void handover_close(handover *h);
/* The thread's, for one run: what runs inside of that has none. NULL: there is none. */
handover *handover_enter(void);
void handover_leave(handover *h); /* NULL is allowed */
/* What a plan says that cannot go on. */
clv_status handover_pass(handover *h);
clv_status handover_undo(handover *h, bool *whole);
void handover_drop(handover *h);
