/* Which plan serves a call, for everything that has several plans of one model: files, captures, splits, pipelines.
 *
 * A dispatch holds entries: a plan (an opaque payload), the regime it is for, the sizes it is proven for, and a name. A
 * plan also holds only for the values that it met at its guards, which nobody can tell before it runs: so a call runs
 * the entries for its regime and sizes in turn, from the one that served last, until none of its guards ends the run: first
 * those that go on where that was (handover.h), then the others, from the beginning.
 * Where none is left, the owner may record one more (the miss callback). Threads may call and add at once. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct dispatch dispatch;

enum { DISPATCH_ANY = 0xffffffff }; /* every regime; of a point: every size */

/* Which entries give way when there are too many: of the lowest rank, the one that has not served for longest. */
typedef enum dispatch_rank { RANK_ONE_SIZE, RANK_SIZES, RANK_MAIN /* stays */ } dispatch_rank;

typedef struct dispatch_entry {
	uint32_t regime;
	dispatch_rank rank;
	const char *name;     /* copied; "": none */
	const int64_t *point; /* copied: sizes it is proven for */
	uint32_t npoint;      /* DISPATCH_ANY: it serves every size */
	void *payload;        /* taken */
} dispatch_entry;

/* What happens to payloads; both are called without a lock, and may be NULL. */
typedef struct dispatch_hooks {
	void (*release)(void *payload);              /* its entry is gone, and no call runs it any more */
	void (*evicted)(void *owner, void *payload); /* it has to give way; a call may still run it */
	void *owner;
} dispatch_hooks;

/* limit: entries; 0: as many as are added. */
clv_status dispatch_new(uint32_t limit, const dispatch_hooks *hooks, dispatch **out);
void dispatch_free(dispatch *d); /* NULL is allowed */

/* Adds an entry. Where one of this regime has the payload already, that one gets the point: *taken is false then, and
   the payload is still the caller's. */
clv_status dispatch_add(dispatch *d, const dispatch_entry *e, bool *taken);
void dispatch_clear(dispatch *d);                     /* no entry is left */
void dispatch_drop(dispatch *d, const void *payload); /* from all regimes */
uint32_t dispatch_count(dispatch *d);
uint64_t dispatch_version(dispatch *d); /* another one after every entry and point that is added */

/* What entries are looked for. */
typedef struct dispatch_query {
	uint32_t regime; /* or DISPATCH_ANY */
	const int64_t *point;
	uint32_t npoint;  /* or DISPATCH_ANY */
	const char *name; /* NULL: any */
} dispatch_query;

/* Visits the entries that answer, in the order in which they were added. visit may not touch the dispatch. */
clv_status dispatch_each(dispatch *d, const dispatch_query *q, clv_status (*visit)(void *ctx, const dispatch_entry *e),
                         void *ctx);

/* Why nothing serves: the regime was never met, its sizes were never seen, or a guard met a value that is new. */
typedef enum dispatch_why { MISS_REGIME, MISS_SIZES, MISS_GUARD } dispatch_why;

typedef struct dispatch_answer {
	void *payload; /* is run now; valid until the call ends. NULL: nothing could be recorded */
	bool again;    /* another thread has added something meanwhile: look once more */
} dispatch_answer;

typedef struct dispatch_call {
	dispatch_query query;
	const void *first; /* a payload that is run first, whatever it is for; NULL: the one that served last */
	bool in_order;     /* as they were added, rather than from the one that served last */
	bool hands_over;   /* runs go on where others were left (handover.h), or pass */
	/* CLV_OK: the payload takes this call; CLV_E_NOMEM ends the call. NULL: all that answer the query do. */
	clv_status (*fits)(void *ctx, void *payload);
	/* A run that a guard ended gives CLV_E_GUARD, with status_details()->undone where it left no trace. */
	clv_status (*run)(void *ctx, void *payload);
	/* Records what is missing and adds it. NULL: nothing ever can be. */
	clv_status (*miss)(void *ctx, dispatch_why why, dispatch_answer *out);
	void *ctx;
} dispatch_call;

/* Runs the plan that serves the call. CLV_E_GUARD: the first refusal, of a run that left no trace if `undone` says so;
   CLV_E_NOT_FOUND: nothing is for this call. */
clv_status dispatch_serve(dispatch *d, const dispatch_call *c);
/* The first payload that fits, without a run; NULL: none does. It is valid as long as its entry. */
clv_status dispatch_find(dispatch *d, const dispatch_call *c, void **payload);
