/* Segments: parts of a plan that a back end compiles ahead of time; the rest runs on the tape.
 *
 * support.c decides which nodes a back end takes, and why not others; choose.c joins them to segments; order.c brings the
 * plan into an order in which each segment is a range, so that segments are views like stages. Segments have no cycles by
 * construction: a node's level counts how often a path to it comes back from the tape, and a segment is a connected part
 * of one level. Nodes that share memory that is written in place, up to its last write, are one unit: a unit is in one
 * segment or on the tape.
 *
 * coverage.c counts what is compiled, report.c prints it. Nothing here needs torch. */
#pragma once

#include <math.h>

#include "base/arena.h"
#include "plan/plan.h"

/* ---- which nodes: support.c --------------------------------------------------------------------------------------- */

typedef struct support_spec {
	bool dynamic; /* sizes that follow symbols have to stay so; else each symbol has one value */
} support_spec;

/* Why back end `name` does not take each node of a plan: no[n] is NULL where it does; texts live in `a` or for ever.
   CLV_E_NOT_FOUND: there is no such back end here. */
clv_status support_of(const char *name, const plan *p, const support_spec *s, const char **no, arena *a);

/* What no back end can take: random draws, host reads, guards, Python, effects outside, sizes read from data,
   tensors that are not plain. NULL: nothing stands against it. */
const char *support_obstacle(const plan *p, node_id n);
/* The same for a whole plan, after a back end was asked; then what is on another device than most of the rest. */
clv_status support_limit(const plan *p, const char **no, arena *a);

/* ---- which segments: choose.c ------------------------------------------------------------------------------------- */

typedef struct segments_spec {
	const char *const *no; /* per node: why it is not compiled; NULL: it may be. Borrowed while segments are used */
	uint32_t minimum;      /* nodes of a segment; smaller ones run on the tape */
	uint32_t most;       /* segments; 0: as many as there are. Joined within a level, then given up from the smallest */
	const int64_t *syms; /* per symbol: sizes for work and bytes; NULL: the smallest */
} segments_spec;

typedef struct segment {
	uint32_t first, n;           /* slice of segments->order: its nodes in order of running */
	double work;                 /* operations */
	int64_t bytes_in, bytes_out; /* of tensors that come in (weights are not counted) and go out */
} segment;

typedef struct segments {
	const plan *p; /* borrowed */
	VEC(segment) at;
	VEC(node_id) order;  /* all nodes, in an order of running in which segments, and units, are together */
	uint32_t *of_node;   /* per node: its segment; NONE: it runs on the tape */
	uint32_t *unit_of;   /* per node: units are numbered in order of running */
	const char **reason; /* per node: why it runs on the tape; NULL in a segment */
	arena arena;
} segments;

clv_status segments_choose(const plan *p, const segments_spec *s, segments *out);
void segments_free(segments *s);
/* Whether a reason is about segments (too few together, tied by memory, too many, too slow): the node itself could be
   compiled. */
bool reason_is_chooser(const char *reason);

/* order.c. The plan with its nodes in s->order: segment i is nodes firsts[i] … ends[i]-1 of it. */
clv_status segments_plan(const segments *s, plan **out, node_id *firsts, node_id *ends);

/* ---- what is compiled: coverage.c --------------------------------------------------------------------------------- */

/* An operator that runs on the tape for one reason. */
typedef struct fallback_row {
	const char *op, *reason, *place; /* place: " in body.0 at model.py:12" of the first one; "" unknown */
	uint32_t count;
	double work;
	uint32_t boundaries; /* segments less if this operator were supported, wherever it is; 0: it would change nothing */
} fallback_row;

typedef struct coverage {
	uint32_t nodes, compiled; /* all, and those in segments */
	double work, compiled_work;
	int64_t bytes;          /* that cross between segments and the tape in a run */
	VEC(fallback_row) rows; /* the most work first */
	arena arena;
} coverage;

/* what_if: also count boundaries (segments are chosen again per operator, for the first 32 rows). */
clv_status coverage_of(const segments *s, const segments_spec *spec, bool what_if, coverage *out);
void coverage_free(coverage *c);

/* The note of a file that has the size of a symbol in the example it was traced on; the name of the symbol follows. */
#define EXAMPLE_SIZE "example_size."

/* The reason of a node that would be compiled; the number of its segment follows. */
#define DRY_RUN "dry run: it would be in segment "

/* The reason of a node that was compiled, in a segment that takes longer than the tape. */
#define SLOWER "compiled, its segment is slower than the tape"

/* ---- for people: report.c ------------------------------------------------------------------------------------------ */

/* What is known about a segment; a number that is not is NAN, or -1, and is left out. */
typedef struct segment_row {
	const char *name, *backend;
	uint32_t nodes;
	double work;
	int64_t bytes_in, bytes_out;       /* predicted, for a run */
	int64_t measured_in, measured_out; /* as they were when it ran */
	double compile_s;
	int64_t size;            /* of what the compiler made, in bytes */
	double error, tolerance; /* the largest difference from the tape that was seen, and that is allowed */
	double tape_ms, code_ms; /* a run on the tape, and of the compiled code */
	const char *on_tape;     /* why it runs on the tape though it was chosen ("needs avx512f"); NULL: the code runs */
} segment_row;

#define SEGMENT_ROW_INIT                                                                                               \
	{                                                                                                                  \
		.bytes_in = -1, .bytes_out = -1, .measured_in = -1, .measured_out = -1, .compile_s = NAN, .size = -1,          \
		.error = NAN, .tolerance = NAN, .tape_ms = NAN, .code_ms = NAN                                                 \
	}

typedef struct segment_report {
	const char *backend;
	const coverage *covered;
	const segment_row *rows; /* may be NULL where there are none */
	uint32_t nrows;
	double eager_ms, tape_ms, traced_ms; /* a run of the whole; NAN: not known */
	bool planned;                        /* of a dry run: nothing is compiled */
	const segment_row *dropped;          /* segments that are slower than the tape, and run on it */
	uint32_t ndropped;
} segment_report;

/* "98.4 % of FLOPs (176 of 180 operators) compiled in 3 segments by inductor", the segments, every operator on the
   tape with its reason, what it would take, bytes and speed. */
clv_status report_text(const segment_report *r, strbuf *b);
clv_status report_json(const segment_report *r, strbuf *b); /* the same as one object of JSON */

/* Share of the work that is compiled, in 0 … 1; by nodes where nothing has work, 1 where there is nothing. */
double coverage_share(const coverage *c);
