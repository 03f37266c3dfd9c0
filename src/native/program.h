/* Programs, shaped programs and frames: what the core of the native engine shares between its files. Operators see native.h. */
#ifndef NATIVE_PROGRAM_H
#define NATIVE_PROGRAM_H

#include <pthread.h>

#include "native/native.h"
#include "optimize/optimize.h"
#include "runtime/engine.h"

/* ---- shaped programs --------------------------------------------------------------------------------------------------- */

/* Where a tensor's memory is. */
typedef enum slot_root {
	ROOT_BLOCK,    /* a block of the frame, or of an output */
	ROOT_INPUT,    /* of the call */
	ROOT_EXTERNAL, /* one that runs may change: looked up in every run */
	ROOT_FIXED     /* the same in every run: data is set while lowering */
} slot_root;

typedef struct slot_info {
	nt t;
	uint8_t root; /* slot_root */
	bool constant;
	uint32_t id;    /* block, input, external */
	int64_t offset; /* in bytes, from the first element of the root */
	uint64_t reach; /* bytes from there that belong to the root */
	value_id owner; /* of the plan, the first value on the memory; NONE: none is */
	value_id from;  /* of a constant: the value that it is a view of, `offset` bytes behind its first element */
	uint32_t use;   /* of a constant: 1 + the reading of an argument that it comes of, in lowering.uses; 0: none */
} slot_info;

/* Memory that lives from a node to a node; positions in the order of lowering. */
typedef struct native_block {
	uint64_t bytes, offset;
	uint32_t born, died; /* the last position that needs it */
	bool output;         /* a run gives it away: it is no part of the frame */
} native_block;

typedef struct native_step {
	step_fn run;
	const void *params;
	node_id node; /* NONE: it makes a copy for an output */
} native_step;

typedef enum output_from { OUTPUT_BLOCK, OUTPUT_INPUT, OUTPUT_COPY } output_from;
typedef struct output_info {
	uint8_t from;  /* output_from */
	uint32_t same; /* an earlier output that is the same value; NONE */
	slot s;
} output_info;

typedef struct shaped {
	struct shaped *next; /* the last used first */
	uint32_t refs;       /* under the lock of the program */
	arena arena;
	int64_t *symbols, *exprs;
	bool *defined;
	VEC(slot_info) slots;
	VEC(native_block) blocks;
	VEC(native_step) steps;
	VEC(output_info) outputs;
	VEC(slot) moving;      /* slots whose data differs from run to run */
	slot *slot_of;         /* per value of the plan; NONE: it is not in here */
	slot *inputs;          /* per input of the view; NONE: no step reads it */
	run_number *numbers;   /* of the part */
	uint64_t bytes, given; /* of a frame; of outputs */
	uint64_t beside;       /* of what the program keeps between runs, when this was made */
	int64_t largest, each; /* the tensor with the most elements */
	struct shaped *sized;  /* what was made once for these sizes; NULL: nothing */
	struct native_frame *spare;
	uint32_t nspare;
} shaped;

typedef struct native_frame {
	frame f;
	struct native_frame *next;
	char *memory;
	tensor_memory **outputs; /* per block: memory that is given away; NULL: the frame's */
	clv_tensor **copies;     /* per input: a copy in the layout that steps expect; NULL: it fits */
	clv_tensor **rooms;      /* per input: memory for such a copy, once there was one */
	uint32_t ninputs;
} native_frame;

/* ---- programs ------------------------------------------------------------------------------------------------------------ */

/* What a constant is made of. */
typedef struct source {
	digest is;
	bool known;
} source;

typedef struct native_program {
	const plan *original; /* borrowed */
	const plan *p;        /* what runs: made.p, or the original */
	optimized_plan made;
	view v;                /* of p: inputs and externals are those of the part */
	value_ids outputs;     /* as in the part */
	VEC(uint32_t) numbers; /* entries of the output tree that are numbers */
	node_id part[PARTS + 1];
	node_names *names;
	node_id *last;       /* per value of p: the last node of the range that uses it; NONE */
	uint32_t *uses;      /* per value: arguments of nodes of the range that it is */
	node_id *last_write; /* per value that owns its memory: the last node that writes it; NONE */
	bool *strict;        /* per value that owns its memory: views of it see writes, so they must be views here too */
	bool *writes;        /* per input */
	bool *changing;      /* per external: not the same in every run */
	bool *kept;          /* per value: an output */
	bool guards, writes_outside;
	const artifact *of; /* borrowed; and which of its plans it is */
	uint32_t number;
	const native_kernels *k; /* that run */
	native_kernels lays;     /* whose layouts the steps are made for: another set's while packing for it */
	const char *isa;         /* its name */
	bool packs;              /* it is lowered to pack weights for a file */
	team *team;
	int threads;

	memory_store *given; /* for outputs: what callers let go is used again */

	clv_tensor **externals; /* what is bound, counted */
	bool bound, stale;
	pthread_mutex_t lock;
	shaped *shaped; /* under the lock, as the rest */
	uint32_t nshaped;
	shaped *once;             /* the prelude, and its frame */
	native_frame *once_frame; /* NULL: not computed, the file may have what is needed of it */
	bool once_waits;          /* it is lowered for its layouts alone */
	bool once_wanted;         /* the file does not have it */
	struct packed *packed;
	uint64_t kept_bytes;                 /* of what was packed in memory */
	source *sources;                     /* per value; NULL: not known yet */
	const struct artifact_packed *store; /* packed weights of the file; NULL: there are none */
	const artifact *origin;              /* the open file, with which packed weights are shared; NULL: there is none */
	struct room *room;                   /* where the next piece goes */
	uint32_t found, repacked, damaged;   /* pieces: of the file, made in memory, of the file and of no use */
} native_program;

/* program.c */
clv_status native_lower(const engine_order *o, native_program **out);
clv_status native_bind(native_program *g, clv_tensor *const *externals);
void native_changed(native_program *g, value_id external); /* NONE: any of them */
void native_packing(const native_program *g, clv_packing_state *out);
clv_status native_pack_for(native_program *g, const char *isa); /* from now on it packs instead of running */
void native_program_free(native_program *g);                    /* NULL is allowed */
node_id native_node_of(const native_program *g, node_id n);     /* a node of the plan as captured */

/* lower.c. The nodes of a part at these sizes; PART_GUARDS: and all after it. `sized`: what PART_SIZED gave, with its frame;
   taken over on success; NULL: nothing. */
clv_status shaped_lower(native_program *g, part_id part, const int64_t *symbols, shaped *sized, shaped **out);
void shaped_free(shaped *s); /* NULL is allowed */

/* shaped.c. The shaped program for these sizes, counted; made where there is none. A frame of it if one waits, else NULL. */
clv_status shaped_take(native_program *g, const int64_t *symbols, const run_call *c, shaped **out,
                       native_frame **frame);
void shaped_give(native_program *g, shaped *s, native_frame *f);
void shaped_drop_all(native_program *g);
clv_status shaped_pack(native_program *g, const int64_t *symbols); /* asks for what runs of these sizes need packed */

/* run.c */
clv_status native_run(native_program *g, const run_call *c, clv_tensor **outputs);
clv_status native_frame_new(const native_program *g, const shaped *s, native_frame **out);
void native_frame_free(native_frame *f); /* NULL is allowed */
clv_status native_frame_load(const native_program *g, const shaped *s, native_frame *f, const run_call *c);
clv_status run_steps(const native_program *g, const shaped *s, frame *f, const run_call *c);

/* nt.c */
clv_status step_copy(const void *params, frame *f); /* params: two slots, from and to */

#endif
