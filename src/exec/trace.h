/* Tracing: an artifact in, the same one with compiled segments out.
 *
 *     support ──▶ segments ──▶ attempts: layouts, jobs, comparison ──▶ weighed ──▶ artifact
 *        ▲                          │ one fails
 *        └── the bad unit is out ◀── bisected
 *
 * trace.c has the loop, trace_try.c the attempts; trace_check.c runs plans to record layouts, to compare and to time;
 * trace_weigh.c drops segments that are slower than the tape. An attempt is a range of nodes that is compiled and compared
 * with the tape: a segment, or half of one while a failure is bisected. Results are remembered by content: choosing
 * segments again compiles only what is new. */
#pragma once

#include "exec/code.h"
#include "exec/tape.h"

/* What became of one job. */
typedef struct trace_made {
	digest key;
	bool cached;          /* it was in the cache: nothing was compiled */
	bool kept;            /* it is there now */
	double seconds;       /* that it took */
	compiled made;        /* if why is NULL */
	char *why;            /* it could not be compiled; owned */
	VEC(uint32_t) blamed; /* nodes that the compiler named, counted from the first of the attempt */
} trace_made;

typedef struct tracer {
	const artifact *from;
	const clv_trace_options *o;
	const backend *b;
	runtime *r;     /* of `from`, without compiled parts: its tensors are what plans run on */
	cache kept;     /* of compiled segments */
	strbuf context; /* what results depend on besides the job: versions, this CPU */
	char *folder;   /* of the jobs */
	bool temporary; /* it is removed at the end */
	uint32_t jobs;  /* that were made, for their names */
	VEC(trace_made) made;
} tracer;

/* A plan with its nodes in the order of segments. */
typedef struct trace_plan {
	tracer *t;
	uint32_t number;       /* in the artifact */
	artifact *a;           /* `from` with this plan in this order */
	const plan *p;         /* the plan, in it */
	liveness live;         /* of it */
	br_tensor **externals; /* per value: borrowed from the runtime */
	VEC(uint32_t) calls;   /* those of the options that this plan serves; the first one is what it is compiled on */
} trace_plan;

typedef struct attempt {
	artifact_segment segment; /* the range, its sizes and layouts; once it is compiled, needs and members: borrowed */
	bool half;                /* made to bisect a failure; it will not be kept */
	code *code;               /* empty until it is compiled */
	uint32_t made;            /* in tracer->made; NONE: not yet */
	char *why;                /* NULL: it can be used; owned */
	VEC(node_id) blamed;      /* nodes of the ordered plan that the compiler named */
	double error, allowed;    /* the largest difference from the tape, and what it may be there */
	double tape_ms, code_ms;  /* on the example; negative: not known */
	double all_tape_ms, all_code_ms;            /* at all sizes that it is compared at, together */
	int64_t bytes_in, bytes_out;                /* of its inputs and outputs, measured */
	enum { KEPT, SLOW, SLOW_IN_WHOLE } dropped; /* it is slower than the tape; or else the whole is, with it */
} attempt;

/* trace_try.c. Compiles and compares all; what an attempt says of itself is no error. */
clv_status attempts_run(trace_plan *p, attempt *at, uint32_t n);
void attempt_free(attempt *a);
clv_status attempt_init(const trace_plan *p, node_id first, node_id end, attempt *out);

/* trace_check.c */
clv_status attempts_look(trace_plan *p, attempt *at, uint32_t n);  /* layouts, sizes */
clv_status attempts_check(trace_plan *p, attempt *at, uint32_t n); /* those that are loaded, against the tape */
clv_status attempts_time(trace_plan *p, attempt *at, uint32_t n);  /* likewise, all of which agree with it */

/* One run of a program of the plan on call c, without what is before and after it. */
/* The values of the symbols in the first example of a plan. */
clv_status trace_symbols(const trace_plan *p, int64_t *out);
clv_status trace_run(const clv_program *g, br_tensor *const *externals, const clv_trace_call *c, segment_fn seen,
                     void *ctx, double *ms);

/* Times of two ways in turn, for as many rounds as there is time for. */
enum { LEAST_ROUNDS = 3, MOST_ROUNDS = 32 };
typedef struct rounds {
	double started;
	uint32_t n;
} rounds;
bool rounds_go_on(rounds *r, bool example); /* other sizes than the example's get less time */
/* What a run takes when nothing disturbs it: the lower quartile. Sorts them; -1 where there are none. */
double undisturbed(double *ms, uint32_t n);

/* trace_weigh.c. Marks those that are slower than the tape, by themselves or in the whole. */
clv_status attempts_weigh(trace_plan *p, attempt *at, uint32_t n);
