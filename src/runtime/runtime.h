/* A runtime: an artifact, or a part of it, ready to run. It has a program of its engine for each plan, and the tensors they
 * read: on the file's own memory where that is possible. What the plans write or re-bind is the runtime's own. */
#pragma once

#include <pthread.h>

#include <stdatomic.h>

#include "base/table.h"
#include "runtime/dispatch.h"
#include "runtime/engine.h"

/* At the end of a run `state[slot]` becomes output `output` of the program. */
typedef struct runtime_rebind {
	uint32_t slot, output;
} runtime_rebind;

typedef struct runtime_plan {
	const artifact_plan *e; /* borrowed from the artifact */
	plan *moved;            /* the plan for another device; NULL: as it is */
	plan_part of;           /* that runs */
	void *program;          /* the engine's; NULL: the process of the sandbox has it */
	uint32_t *slot;         /* per external: its place in runtime->state; NONE: no tensor */
	clv_tensor **externals; /* borrowed from runtime->state */
	VEC(runtime_rebind) rebinds;
	node_names *names;  /* of the plan; NULL: it was never profiled */
	VEC(int64_t) times; /* of profiled runs: nanoseconds per step, run after run */
	bool asks;          /* a call is held to what the forward asked of its inputs */
	bool *writes;       /* per input: a run writes the caller's tensor; NULL: none */
	uint32_t noutputs;  /* that a caller gets: without what is re-bound and what Python stored */
	VEC(clv_port) outputs;
	bool other_outputs; /* they have other names than those of the first plan */
} runtime_plan;

typedef enum runtime_part { PART_ALL, PART_PREFIX, PART_SUFFIX, PART_STAGE } runtime_part;

struct clv_runtime {
	artifact *a;
	const engine *engine;
	runtime_part part;
	bool profiling;     /* runs are timed, node by node */
	bool unproven;      /* sizes that were never recorded are served too */
	const char *device; /* as tensors call it; "": as captured */
	VEC(runtime_plan) plans;
	clv_tensor **state; /* per tensor of the artifact, then per unbound name; NULL: no plan reads it, or not bound */
	uint32_t nstate;    /* 0: there is no state yet */
	bool *changes;      /* per place in the state: a run of some plan writes it, or puts another tensor there */
	VEC(const char *) unbound; /* names that a file without weights leaves to the caller */
	VEC(clv_port) inputs;
	bool stateful;          /* runs change `state`: one at a time */
	bool in_order;          /* a prefix: plans that leave guards to their suffix come behind those that look first */
	bool bound;             /* some of it came from the caller */
	bool any_weights;       /* boundaries of other weights are taken too */
	int64_t weight_version; /* the sum of `weights`, but for a file of before digests, where it starts elsewhere */
	VEC(payload_number) weights; /* digests of the model's tensors by name, as far as they are known; else 0 */
	table weights_by_name;
	double timeout;         /* of a run, in seconds; 0: none */
	int64_t max_memory;     /* of a run; 0: no limit */
	_Atomic uint64_t stops; /* goes up when runs are to end */
	pthread_rwlock_t
		lock; /* shared by runs; exclusive for changes to what they read, runs of models with state included */
	dispatch *dispatch;      /* which of the plans serves a run; made when all plans are there */
	bool apart;              /* runs are made by another process */
	struct sandbox *sandbox; /* which one; NULL: there is none yet */
	bool unasked;            /* nobody asked for that sandbox: nobody vouches for the file */
	arena arena;
};

typedef struct clv_runtime runtime;

/* state.c. The tensors of the artifact that the plans read. */
clv_status runtime_load_state(runtime *r);
void runtime_free_state(runtime *r);
clv_status runtime_refresh(runtime *r); /* externals of all plans, after state changed */
/* Puts copies in the place of tensors that lie on the file, which nobody may write. Wants the lock. */
clv_status runtime_own_state(runtime *r);

/* runtime.c. A set of tensors takes the place of those of the same names, between two runs: copied into tensors of the file,
   bound where the file has none; what only another part reads is counted in the version of the weights. Nothing happens
   where one does not fit a tensor of the file; what is bound is looked at by the next run. */
typedef struct named_tensor {
	const char *name;
	const clv_tensor *t;
} named_tensor;
clv_status runtime_assign(runtime *r, const named_tensor *set, uint32_t n);

/* runtime.c. As clv_runtime_create(), on this engine, also of files that train, which no caller's runtime runs. */
/* Options as they are now, with texts of their own. */
clv_status runtime_options_keep(arena *a, const clv_runtime_options *given, clv_runtime_options *out);
clv_status runtime_create_on(const artifact *a, const clv_runtime_options *o, const engine *e, runtime **out);

/* boundary.c. What crosses a cut, for training: whether a training prefix made it; its tensors as leaves, with the grad flags
   that they had there; and one with its ids and sizes and no tensors, to which gradients are added (t is taken). */
bool boundary_trains(const struct clv_boundary *b);
clv_status boundary_leaves(const runtime *r, const struct clv_boundary *b, struct clv_boundary **out);
clv_status boundary_empty(const struct clv_boundary *b, struct clv_boundary **out);
clv_status boundary_add(struct clv_boundary *b, const char *label, clv_tensor *t);
/* Tensors by label as bytes, for others than cuts: with names, and numbers, that are not looked at here. */
clv_status boundary_named(const char *split_id, const char *signature, struct clv_boundary **out);
bool boundary_is_named(const struct clv_boundary *b, const char *split_id, const char *signature);
clv_status boundary_add_number(struct clv_boundary *b, const char *name, int64_t number); /* clv_boundary_size() */

/* runtime.c. An external value of a plan, or all of them (NONE), has other data than was compiled, or may have. */
void runtime_changed(runtime *r, uint32_t plan, value_id external, const char *why);
#define OTHER_WEIGHTS "it was compiled with other weights than the model has now"
bool runtime_draws(const runtime *r); /* some plan draws random numbers */
/* CLV_E_UNSUPPORTED for one with a sandbox, with what to do. */
clv_status runtime_needs_here(const runtime *r, const char *what);

/* weights.c. The version of the weights follows what is bound: the tensor of that name is another one now. */
clv_status runtime_load_weights(runtime *r);
void runtime_free_weights(runtime *r);
bool runtime_knows(const runtime *r, const char *name); /* a tensor of the model, whichever part reads it */
clv_status runtime_note_weight(runtime *r, const char *name, const clv_tensor *t);
clv_status runtime_check_weights(const runtime *r, int64_t version); /* CLV_E_INPUT: of other weights than these */
clv_status tensor_digest(const char *name, const clv_tensor *t, int64_t *out);

/* ports.c */
clv_status runtime_describe(runtime *r);
/* An input of zeros that nobody gave, of a size that a file says: refused where it is more than a run may have, and counted in
   runs that get it. *made: bytes of those that the call has so far, 0 at first. */
clv_status runtime_make(const runtime *r, const plan *p, value_id v, const tensor_form *s, int64_t *made,
                        clv_tensor **out);
clv_status runtime_fail_outputs(const runtime *r, uint32_t plan); /* CLV_E_UNSUPPORTED: its outputs have other names */

/* profile.c. One more run of a plan is timed: into *times; and taken back, where it failed. */
clv_status profile_begin(const runtime *r, runtime_plan *e, int64_t **times);
void profile_drop(const runtime *r, runtime_plan *e);

/* runtime.c. Which plan serves these inputs. */
clv_status runtime_pick(const runtime *r, clv_tensor *const *inputs, uint32_t ninputs, uint32_t *out);
/* Whether the inputs are to each other what they were when plan i was recorded, as far as its forward asks (`q is k`), and
   require grad as they did. CLV_E_LAYOUT: they are not. */
clv_status runtime_check_asked(const runtime *r, uint32_t i, clv_tensor *const *inputs);
/* Has `run` run it. Several plans may be for the same sizes, and hold for other values at their guards: where a run ends at
   one, the next of them is run. */
typedef clv_status (*serve_fn)(void *ctx, uint32_t plan);
clv_status runtime_serve(const runtime *r, clv_tensor *const *inputs, uint32_t ninputs, serve_fn run, void *ctx);
/* The same for a suffix, after a check that the boundary belongs to it: first the plan that made the boundary, then those that
   are proven for its sizes, did the same up to the cut there, and take no more of it. */
clv_status runtime_serve_suffix(const runtime *r, const boundary_facts *got, int64_t weight_version, serve_fn run,
                                void *ctx);
/* The values of plan i's symbols in a call with a boundary's sizes; -1: data or nothing says it. false: it is not for them. */
bool runtime_sizes(const runtime *r, uint32_t i, const boundary_facts *got, int64_t *out);
/* boundary.c. Which plan made a boundary, after a check that it belongs to this suffix. */
clv_status runtime_find_boundary(const runtime *r, const boundary_facts *got, int64_t weight_version, uint32_t *out);
/* A boundary of hostile bytes for this suffix. Where it comes from, its labels, types and shapes are checked by its header; then
   `room` is asked for the bytes that its tensors need; only then they are made. */
typedef struct boundary_gate {
	clv_status (*room)(void *ctx, size_t bytes); /* a failure is that of the call */
	void *ctx;
	tensor_memory *memory; /* that the bytes are in: tensors are used where they lie in it; NULL: they are copied */
	bool elsewhere;        /* it failed because the boundary is of another split, plan or weights */
} boundary_gate;
clv_status runtime_read_boundary(const runtime *r, const void *data, size_t n, boundary_gate *gate,
                                 struct clv_boundary **out);
/* A boundary as a file whose bytes stay where they are: `image` and what it points at last until boundary_image_free. */
typedef struct boundary_image boundary_image;
clv_status boundary_image_new(const struct clv_boundary *b, boundary_image **out, const st_image **image);
void boundary_image_free(void *image);
/* A boundary for this suffix of tensors in the order of its inputs, which were made at the prefix and came without one: nothing
   says that they fit its weights. The sizes are those of the first plan that they fit. */
clv_status runtime_boundary_of(const runtime *r, clv_tensor *const *inputs, uint32_t ninputs,
                               struct clv_boundary **out);
/* Whether plan i was recorded at the sizes of this call, or need not be. */
clv_status runtime_check_sizes(const runtime *r, uint32_t i, const run_call *call);
/* Runs plan i for a caller who knows outputs by the names that the first plan gives them: CLV_E_UNSUPPORTED where the data
   leads to others. `plan` not NULL: it takes all names, and *plan is i. */
clv_status runtime_run_named(const runtime *r, uint32_t i, const run_call *call, clv_tensor **outputs,
                             uint32_t noutputs, uint32_t *plan);
/* Runs plan i; outputs: what a caller gets. */
clv_status runtime_run_plan(const runtime *r, uint32_t i, const run_call *call, clv_tensor **outputs);
int64_t runtime_made(const runtime_plan *e,
                     const run_call *c); /* bytes of inputs that count for the limit of the run */
