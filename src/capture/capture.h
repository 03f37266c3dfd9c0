/* Capture: the operators of a forward as a stream, and a plan built from such streams.
 *
 *   forward, recorded ──▶ stream ─┐
 *   again, other data ──▶ stream ─┴─ compare ──▶ build ──▶ plan and its data
 *
 * A stream (stream.c) is the raw record: every operator with its arguments, every tensor that was seen.
 * Comparing two streams (compare.c) finds what a record alone cannot show: numbers and constants that depend on the
 * data, though no operator says so. Building (build.c) turns a stream that stood the test into a plan. */
#pragma once

#include "base/arena.h"
#include "bridge/bridge.h"
#include "plan/ops.h"

typedef enum origin { ORIGIN_INPUT, ORIGIN_STATE, ORIGIN_EXTERNAL, ORIGIN_FRESH, ORIGIN_RESULT } origin;

typedef struct stream_tensor {
	origin origin;
	uint32_t index;   /* INPUT, STATE: number in its list */
	uint32_t storage; /* NONE: has none */
	bool strided, requires_grad, conj, neg;
	bool number; /* stands for a Python number: see stream_number */
	uint8_t dtype;
	uint32_t ndim;
	const int64_t *sizes, *strides; /* in the arena; strides NULL when not strided */
	int64_t offset;
	const char *device;
	br_tensor *data; /* EXTERNAL, FRESH: owned; else NULL */
} stream_tensor;

typedef struct stream_op {
	const char *op;
	uint16_t op_id;         /* its row (plan/ops.h) */
	br_arg *args, *results; /* in the arena; TENSOR ids are numbers of stream_tensor */
	uint32_t nargs, nresults;
	uint32_t *writes, nwrites;
	uint32_t flags; /* br_event_flags */
	br_modes modes;
	uint32_t scope;    /* number in stream->scopes */
	const char *at;    /* source line or NULL */
	const char *label; /* cleave::python: what is called */
} stream_op;

typedef struct stream_state {
	value_kind kind; /* PARAM, BUFFER, ATTR */
	const char *name;
	bool trainable;
	uint32_t tensor; /* number of the stream_tensor */
} stream_state;

typedef struct stream_scope {
	const char *path, *cls;
} stream_scope;

typedef struct stream_rebind {
	uint32_t state, tensor;
} stream_rebind;

/* Operators first … end-1 that eager runs again in the backward. */
typedef struct stream_region {
	uint32_t first, end; /* end NONE: it is not over */
	bool keeps_random;   /* with the random state of the first time */
	bool reentrant;      /* in a backward of its own */
} stream_region;

/* Tells where the user's program is ("model.py:12"; "" if unknown). Given by the Python skin. */
typedef void (*stream_where)(char *out, size_t n);

typedef struct stream {
	arena a;
	br_recorder *recorder;
	br_modes ambient; /* modes when recording started */
	VEC(stream_tensor) tensors;
	VEC(stream_op) ops;
	VEC(stream_state) states;
	VEC(stream_state) ties; /* further names of a state's tensor */
	VEC(uint32_t) inputs;   /* tensor numbers */
	VEC(const char *) input_names;
	VEC(uint32_t) outputs;    /* tensor numbers */
	VEC(stream_scope) scopes; /* 0 is the root */
	VEC(uint32_t) open_scopes;
	VEC(stream_rebind) rebinds;
	VEC(stream_region) regions;
	uint32_t python_op; /* between stream_python_begin and _end: its number */
	stream_where where;
	origin defining; /* what stream_input/stream_state make */
} stream;

clv_status stream_new(const char *root_class, stream **out);
void stream_free(stream *s);
clv_status stream_input(stream *s, const char *name, const br_tensor *t);
clv_status stream_define_state(stream *s, value_kind kind, const char *name, bool trainable, const br_tensor *t);
clv_status stream_start(stream *s, bool alone); /* alone: see br_recorder_start */
clv_status stream_stop(stream *s);
/* A module; paths are unique, number 0 is the root. */
clv_status stream_scope_add(stream *s, const char *path, const char *cls, uint32_t *out);
clv_status stream_enter(stream *s, uint32_t number); /* a module's forward begins */
void stream_leave(stream *s);
clv_status stream_output(stream *s, const br_tensor *t);
clv_status stream_operands(const stream *s, bool **out); /* per tensor: an operator took it; mem_free */
clv_status stream_rebound(stream *s, const char *state_name, const br_tensor *t); /* module tensor now is t */

/* The forward read the data of `t` on the host (tolist, numpy): replay must find the same data. Data of more than
   `STREAM_HOST_READ_MAX` elements is refused. */
enum { STREAM_HOST_READ_MAX = 65536 };
clv_status stream_host_read(stream *s, const br_tensor *t, const char *how);

/* What a call that stays Python did. */
typedef struct python_call {
	uint32_t object; /* the caller's number of it */
	br_tensor *const *results;
	uint32_t nresults;
	const int64_t *written; /* which of its arguments it wrote */
	uint32_t nwritten;
} python_call;

/* A call that stays Python: recorded as one node. begin before, end after it. */
clv_status stream_python_begin(stream *s, const char *label, br_tensor *const *args, uint32_t nargs);
clv_status stream_python_end(stream *s, const python_call *c);
void stream_python_abort(stream *s); /* it raised */

/* regions.c: what the forward does inside torch.utils.checkpoint. */
clv_status stream_region_begin(stream *s, bool keeps_random, bool reentrant);
void stream_region_end(stream *s);         /* of the last that is open */
uint32_t stream_storages(const stream *s); /* numbers of storages are below this */
/* Refuses what makes a second run differ from the first, or leaves a trace. nstores: of the last outputs, which are tensors
   that the forward keeps. Before stream_fold. */
clv_status stream_check_regions(const stream *s, uint32_t nstores);

/* hooks.c: refuses gradient hooks behind what the forward gave, which replay would not have. */
clv_status stream_check_hooks(const stream *s, br_tensor *const *tensors, uint32_t n);

/* ---- compare.c -------------------------------------------------------------------------------------------------- */

typedef enum verdict {
	STREAMS_EQUAL,
	STREAMS_PART, /* a value read on the host differs: equal up to there, then the data took another path */
	STREAMS_DIFFER
} verdict;

typedef enum external_class {
	EXTERNAL_UNKNOWN,
	EXTERNAL_PERSISTENT, /* the same tensor each time */
	EXTERNAL_FRESH,      /* another tensor with equal bits: a constant the forward makes */
	EXTERNAL_ALIAS       /* another tensor on the memory of a recorded one (.data) */
} external_class;

typedef struct comparison {
	verdict verdict;
	uint32_t op;      /* where they part or differ */
	uint8_t *classes; /* per tensor of the first stream: external_class; caller frees with comparison_free */
	char *reason;     /* NULL when equal */
} comparison;

/* The grad mode around operators may differ: one plan serves both modes when all else agrees. */
clv_status stream_compare(const stream *a, const stream *b, comparison *out);
void comparison_free(comparison *c);

/* Streams of the same forward at other sizes: same operators, same tensors in the same places; numbers and shapes may
   differ. *reason: NULL when they align, else where they do not (caller frees with mem_free); *lengths: as
   far as the operator's lists of tensors are concerned. */
clv_status stream_align(const stream *a, const stream *b, bool *lengths, char **reason);

/* sequence.c: parts of unbind, split and chunk that are put together again or used by index, written so that streams at
   other sizes may align. */
clv_status stream_fold(stream *s, bool *changed);

/* ---- flow.c ------------------------------------------------------------------------------------------------------ */

/* A number or a shape depends on what is in the inputs. */
clv_status stream_reads_data(const stream *s, bool *out);

/* Per state of the stream: the forward changes it, where it also reads a number that follows such a state. The next call
   would find another number. counters: s->states.n, all false where there is nothing of the kind. */
clv_status stream_counters(const stream *s, bool *counters);

/* Such numbers are recorded as tensors (Number in python/cleave/_numbers.py): what Python computes from them is operators,
   and what it asks of them is a guard, so nothing else that happens to them goes unseen. Where one is read to become an
   argument, that argument is the value of that read in every run. */
clv_status stream_number(stream *s, const br_tensor *t);
bool stream_reads_number(const stream *s, const stream_op *o); /* it takes such a tensor */
/* Apart from what numbers need, both made the same calls: that they are tensors has changed nothing. */
bool stream_same_calls(const stream *a, const stream *b);

/* From aligned streams on other data (and at other sizes: `points`, n rows of nsymbols): the points with one more symbol for
   each number that is read from data and that nothing before it explains. *out: n rows of *nall, caller frees with
   mem_free. CLV_E_UNSUPPORTED: the records do not tell. */
clv_status stream_data_points(const stream *const *streams, uint32_t n, const int64_t *points, uint32_t nsymbols,
                              int64_t **out, uint32_t *nall);

/* ---- build.c ---------------------------------------------------------------------------------------------------- */

/* What makes a plan symbolic: the same forward recorded at several sizes. All streams align with the one built. */
typedef struct size_probes {
	const stream *const *streams; /* without the one that is built */
	uint32_t n;
	const int64_t *points; /* symbol values: first those of the stream that is built, then of each of the others */
	uint32_t nsymbols;
	const char *const *names;
	const int64_t *lo, *hi; /* range of each symbol */
	uint32_t ndata;         /* so many symbols at the end are read from data, and floats may be */
	bool flow;              /* records are on other data: floats that were read from it may be arguments */
	int64_t *doubt; /* one per symbol: where building failed because two formulas fit, sizes that would tell which
	                           it is; else -1 */
} size_probes;

/* The data that goes with a plan, by value id; entries are NULL for values that have none here. */
typedef struct plan_data {
	uint32_t n;
	br_tensor **tensors; /* CONST */
	br_object **objects; /* OBJECT */
	uint32_t *python;    /* OBJECT: the caller's number of a Python object, else NONE */
} plan_data;

void plan_data_free(plan_data *d);
/* A copy with its tensors where another plan of the same values has them. plan_data_free, also on failure. */
clv_status plan_data_move(const plan_data *d, const plan *to, plan_data *out /* empty */);

/* `classes` from a comparison, or NULL. `with_grad`: the stream recorded with grad enabled whose grad modes count
   (may be s itself), or NULL. `sizes`: NULL for a plan at the recorded sizes alone. The plan still lacks its trees. */
clv_status stream_build(const stream *s, const uint8_t *classes, const stream *with_grad, const size_probes *sizes,
                        plan **plan_out, plan_data *data_out, value_id *outputs_out /* s->outputs.n */);
