/* A program: a view of a plan made ready to run. Immutable once made; many threads run it at once, each with its own
 * frame. program.c lowers a view to steps, run.c runs them. */
#pragma once

#include <stdatomic.h>

#include "bridge/bridge.h"
#include "plan/edit.h"
#include "plan/view.h"
#include "runtime/call.h"

typedef enum step_kind { STEP_CALL, STEP_GUARD_EQUAL, STEP_PYTHON, STEP_SEGMENT } step_kind;

typedef struct step {
	step_kind kind;
	node_id node;                            /* SEGMENT: its first */
	br_site *site;                           /* CALL; owned */
	context_id context;                      /* NONE: as around the run */
	uint32_t checks, nchecks;                /* slice of program->checks */
	uint32_t frees, nfrees;                  /* slice of program->frees: slots released after the step */
	uint32_t args, nargs, results, nresults; /* PYTHON, GUARD_EQUAL, SEGMENT: slots, slices of program->slots_of */
	value_id object;                         /* PYTHON */
	uint32_t reads, nreads;                  /* slice of program->reads */
	uint32_t keeps, nkeeps;                  /* slice of program->keeps */
	struct code *compiled;                   /* SEGMENT: counted */
	struct clv_program *tape; /* SEGMENT: the same nodes, for what the code does not serve; owned, but of a
	                                            variant: its program's */
} step;

/* After a step: a data symbol is this host result of it, or this size of this tensor. */
typedef struct data_read {
	symbol_id symbol;
	value_id value;
	uint32_t dim, host; /* one is NONE */
} data_read;

/* After a step: a host result of it becomes a number for later calls. */
typedef struct host_keep {
	uint32_t host, number;
} host_keep;

/* After a step: a host result must equal its literal, or a tensor must have the plan's type. */
typedef struct check {
	value_id value;
	uint32_t host; /* index among the step's host results, NONE: tensor */
} check;

/* A number that calls take and that differs from run to run. */
typedef struct live_number {
	enum { NUMBER_INT, NUMBER_REAL, NUMBER_HOST } kind;
	uint32_t id; /* expression, real, host value */
	bool later;  /* what it depends on is read from data on the way */
} live_number;

typedef struct frame {
	br_tensor **slots;
	br_arg *numbers;
	int64_t *symbols; /* -1: not known yet */
	int64_t *exprs;
	bool *defined;
	br_arg *hosts;
	bool refused; /* a guard does not hold, and its step has been called */
} frame;

/* Calls the Python object of value `object`; fills results with new references. */
typedef clv_status (*python_fn)(void *ctx, value_id object, br_tensor *const *args, uint32_t nargs, br_tensor **results,
                                uint32_t nresults);

typedef enum native_turn {
	NATIVE_WAITS,    /* the tape runs until program_ask */
	NATIVE_COMPARED, /* the next run is compared with the tape's */
	NATIVE_RUNS
} native_turn;

struct clv_program {
	const plan *p; /* borrowed */
	view v;
	bool debug, inference, whole, autocast;
	bool flags;         /* a context sets global flags of torch */
	bool segment;       /* of another program, whose names it has */
	bool variant;       /* of another program, whose tapes of segments it has */
	bool writes_inputs; /* of the plan, in place */
	bool untrusted;     /* of a plan from a file */
	bool resizes;       /* untrusted: a step may change memory or autograd state of a tensor */
	VEC(step) steps;
	VEC(check) checks;
	VEC(uint32_t) frees;
	VEC(uint32_t) slots_of;
	VEC(live_number) numbers;  /* that calls need */
	value_ids outputs;         /* view_gives */
	VEC(uint32_t) out_numbers; /* of the output tree that differ from run to run: places in `numbers` */
	VEC(uint32_t) out_places;  /* and where they are among its tensors and numbers */
	VEC(data_read) reads;
	VEC(host_keep) keeps;
	VEC(value_id) cloned; /* inputs that the view writes but does not own */
	uint32_t *slot;       /* per value; NONE: not in this program */
	uint32_t nslots, nhosts;
	br_modes *modes;   /* per context of the plan */
	br_tensor **bound; /* per external: what clv_program_bind gave; owned */
	node_names *names;
	_Atomic(frame *) spare;
	struct optimizer *optimizer;        /* NULL: it runs as it is */
	struct native_part *native;         /* runs it where no gradients are wanted; NULL: the tape does */
	_Atomic(native_turn) turn;          /* whether it does already */
	struct undo *undo;                  /* what it changes before a guard may end its run; NULL: nothing */
	struct apart *apart;                /* memory from outside that it writes; NULL: none */
	bool assumes;                       /* passes or compilers took that for apart from the rest */
	int threads;                        /* that operators use in its runs; 0: as many as outside */
	pool *memory;                       /* for its runs without gradients; NULL: from wherever torch takes it */
	uint64_t id;                        /* no other program of the process ever has it */
	VEC(struct beginning *) beginnings; /* that it shares with variants (resume.h) */
};

typedef struct program_spec {
	node_id first, end;
	bool debug, inference;
	bool writes_through; /* inputs that it writes are the caller's copies already: they are written, not copied again */
	br_object *const *objects; /* by value id, may be NULL; referenced by the program */
	uint32_t nobjects;
	struct code *const *codes; /* run instead of their nodes; ascending and apart, referenced. debug does without */
	uint32_t ncodes;
	const struct clv_program *outer; /* that this is a segment of; NULL: it is none */
	const struct clv_program *of;    /* that this is a variant of, with its segments; NULL: it is none */
	const node_span *places;         /* of a variant: where the codes are in its plan */
	const liveness *live; /* of the plan: only what goes in and is used, and what is needed outside (view_segment) */
	uint8_t optimize;     /* optimize_level */
	bool native;          /* the native engine runs it where no gradients are wanted; CLV_E_UNSUPPORTED: it cannot */
	bool pooled;          /* intermediate results come from a pool, as they do where it is optimized */
	bool choose_later;    /* what may give other numbers runs, or is chosen, after program_ask, not in the first run */
	bool guards_first;    /* the rest of what passes made can run alone, after optimizer_prepare */
	const char *const *passes_off; /* names, NULL ends; may be NULL */
	int threads;                   /* that operators use in its runs; 0: as many as outside */
	bool untrusted;                /* a stranger may have written the plan: it comes from a file */
} program_spec;

clv_status program_new(const plan *p, const program_spec *spec, clv_program **out);
void program_free(clv_program *g);

/* Outputs without what is re-bound, which comes after them. */
static inline uint32_t program_given(const clv_program *g)
{
	return g->outputs.n - g->v.rebinds.n;
}

/* A segment that ran on its tape. */
typedef struct segment_call {
	const struct code *code;
	const view *v;
	const int64_t *sizes, *symbols; /* of all expressions, of all symbols */
	br_tensor *const *inputs;       /* v->inputs.n, borrowed, as the outputs are */
	br_tensor *const *externals;    /* v->externals.n; NULL: the code does not ask for them */
	br_tensor *const *counters;     /* run_spec.counters of those; may be NULL */
	br_tensor *const *outputs;      /* v->outputs.n */
	double tape_ms;
} segment_call;

typedef clv_status (*segment_fn)(void *ctx, const segment_call *c);

typedef struct run_spec {
	br_tensor *const *inputs;    /* g->v.inputs.n, borrowed */
	br_tensor *const *externals; /* g->v.externals.n, borrowed; entries of objects are ignored */
	/* Per external a tensor whose version counts writes of it that its own version does not (see STATISTICS_COUNTER), borrowed,
	   or NULL; NULL: there is none. */
	br_tensor *const *counters;
	br_tensor **outputs;      /* g->outputs.n, new references */
	run_number *numbers;      /* g->out_numbers.n; NULL: not wanted */
	const int64_t *symbols;   /* values of the plan's symbols; NULL: read off the inputs */
	br_tensor *const *guards; /* what optimizer_prepare gave; NULL: guards run with the rest */
	uint32_t nguards;
	int64_t *times; /* per step: nanoseconds are added; NULL: nobody asks */
	bool grad;      /* the caller has grad enabled: what requires grad must be as at capture */
	bool tapes;     /* segments run on their tapes */
	python_fn python;
	void *python_ctx;
	run_place *place;      /* told before each node; NULL: nobody looks */
	struct handover *over; /* where a run is left that a guard ends; NULL: it is taken back */
	segment_fn watch;      /* segments run on their tape and are shown to it; NULL: compiled code runs */
	void *watch_ctx;
} run_spec;

clv_status program_run(const clv_program *g, const run_spec *r);
/* For callers that repeat the main part alone: optimizer_prepare, with the program's threads. */
clv_status program_prepare(const clv_program *g, const run_spec *r, uint64_t *generation);
clv_status program_run_plain(const clv_program *g, const run_spec *r); /* as captured, whatever passes made of it */
clv_status program_check_inputs(const clv_program *g, br_tensor *const *inputs); /* as a run would, without running */
/* All that a run checks before its first step: inputs, externals, sizes, what requires grad. */
clv_status program_check_run(const clv_program *g, const run_spec *r);
/* Tensors from outside share no memory but what they shared at capture, as far as that matters (apart.h). Else only the
   captured operators give what the model gives. */
bool program_is_apart(const clv_program *g, const run_spec *r);

/* The values of the plan's symbols in a call (-1: read from data on the way), each in its range. */
clv_status program_symbols(const clv_program *g, const run_spec *r, int64_t *out);

void frame_free(frame *f);
