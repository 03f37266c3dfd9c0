/* Engines run plans. The runtime decides which plan serves a call and keeps the tensors it reads; an engine lowers the
 * plan to a program of its own and runs that on tensors of the core.
 *
 * A new engine is a folder with a table like that of the tape over libtorch (src/exec/tape.c), and a line in the list of
 * engines (engine.c). */
#pragma once

#include "base/strbuf.h"
#include "file/artifact.h"
#include "runtime/call.h"

/* A part of a plan as its callers see it. */
typedef struct plan_part {
	const plan *p; /* borrowed */
	view v;
	bool whole;            /* it ends where the plan does: outputs are those of the output tree */
	value_ids outputs;     /* that a run gives (view_gives) */
	VEC(uint32_t) numbers; /* places of numbers that runs give, among tensors and numbers of the output tree */
} plan_part;

clv_status plan_part_new(const plan *p, node_id first, node_id end, plan_part *out); /* plan_part_free in any case */
void plan_part_free(plan_part *x);

/* What an engine makes a program of. The plan stays until the program is released, the rest is valid during the call. */
typedef struct engine_order {
	const artifact *a;
	uint32_t number;     /* of the plan in the artifact */
	const plan_part *of; /* its plan may be for another device than the file's */
	node_id first, end;
	const char *device; /* as tensors call it; "": as captured */
	const clv_runtime_options *o;
	/* Threads of the caller's that an engine with threads of its own is to use instead: calls work(ctx, i) once for each i below n,
	   at the same time as far as it can. NULL: it uses its own. */
	void (*lend)(int n, void (*work)(void *ctx, int i), void *ctx);
} engine_order;

/* Tensors that are not plain memory of the CPU. */
typedef struct engine_tensors {
	clv_status (*device)(const char *text, char *out); /* as tensors call it ("cuda" is "cuda:0"), if it is here */
	/* On that device, or itself if it is there; on the CPU with plain elements. */
	clv_status (*to_device)(const clv_tensor *t, const char *device, clv_tensor **out);
	clv_status (*clone)(const clv_tensor *t, clv_tensor **out);
	/* On the same memory, as parameters are bound: it requires grad or does not. */
	clv_status (*leaf)(const clv_tensor *t, bool requires_grad, clv_tensor **out);
	clv_status (*write)(const clv_tensor *from, clv_tensor *to); /* elements, between runs */
} engine_tensors;

/* Room for what operators of an engine depend on besides their arguments: settings of a thread and its process. */
typedef struct engine_settings {
	_Alignas(8) uint8_t bytes[128];
} engine_settings;

/* What a sandbox (src/sandbox) needs of an engine, so that its process computes as this one does. */
typedef struct engine_sandbox {
	const char *program;  /* that has the engine: the name of its file */
	const char *variable; /* of the environment, which names another file */

	/* From here on all may be NULL. */
	void (*warm)(void);                                   /* while the process still has its rights */
	int (*threads)(void);                                 /* that operators use, called by this thread */
	void (*set_threads)(int n);                           /* for this thread, from now on */
	clv_status (*settings)(engine_settings *out);         /* of this thread */
	clv_status (*set_settings)(const engine_settings *s); /* likewise, from now on */
	clv_status (*random)(clv_tensor **out);               /* the state of the random generator */
	clv_status (*check_random)(const clv_tensor *state);  /* whether it can be set to that */
	clv_status (*set_random)(const clv_tensor *state);    /* and set */
} engine_sandbox;

typedef struct engine {
	const char *name;
	const char *(*takes)(const plan *p, node_id n); /* NULL: it runs this node; else why not, static or in the plan */
	clv_status (*lower)(const engine_order *o, void **program);
	/* The tensors from outside, one per external of the view, that runs read from now on; borrowed until others come. No run is
	   under way. */
	clv_status (*bind)(void *program, clv_tensor *const *externals);
	/* New references into outputs, one per output of the part; none of them on memory that is fixed. Many threads run a program
	   at once. Inputs are not checked yet. */
	clv_status (*run)(void *program, const run_call *c, clv_tensor **outputs);
	void (*release)(void *program); /* NULL is allowed */

	/* From here on all may be NULL. */
	clv_status (*accepts)(const clv_runtime_options *o); /* options that it cannot serve are an error */
	clv_status (*report)(const void *program, strbuf *b);
	uint32_t (*steps)(const void *program); /* that runs time one by one */
	node_id (*step)(const void *program, uint32_t i);
	/* An external value, or all of them (NONE), has other data than what was compiled. */
	void (*changed)(void *program, value_id external, const char *why);
	uint32_t (*segments)(const void *program); /* compiled ones */
	void (*segment)(const void *program, uint32_t i, clv_segment_state *out);
	void (*packing)(const void *program, clv_packing_state *out); /* adds to it */
	/* Its runs go on where those of other programs were left, or pass (handover.h). NULL: none do. */
	bool (*goes_on)(const void *program);
	const engine_tensors *tensors;
	const engine_sandbox *sandbox;
} engine;

/* engine.c. The engines of this library, in the order in which "auto" asks them. */
const engine *engine_at(uint32_t i); /* NULL: there are no more */
clv_status engine_named(const char *name, const engine **out);
/* The engine of that name; of "auto" or NULL the first that takes all nodes of the artifact. */
clv_status engine_choose(const char *name, const artifact *a, const engine **out);
/* Tensors as the engine has them: a copy; and elements, between runs. */
clv_status engine_clone(const engine *e, const clv_tensor *t, clv_tensor **out);
clv_status engine_write(const engine *e, const clv_tensor *from, clv_tensor *to);
