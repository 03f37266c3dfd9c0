/* Engines: what runs plans. The runtime decides which plan serves a call and keeps the tensors it reads; an engine lowers the
 * plan to a program of its own and runs that on tensors of the core.
 *
 * A new engine is a folder with a table like that of the tape over libtorch (src/exec/tape.c), and a line in the list of
 * engines (engine.c). */
#ifndef RUNTIME_ENGINE_H
#define RUNTIME_ENGINE_H

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

struct clv_runtime;

/* Runs in a process that can only compute. */
typedef struct engine_sandbox {
	clv_status (*open)(struct clv_runtime *r, const clv_runtime_options *o, void **out);
	clv_status (*run)(const struct clv_runtime *r, uint32_t plan, const run_call *c, clv_tensor **outputs);
	clv_status (*assign)(void *s, const char *name,
	                     const clv_tensor *t); /* the runs that come after have this tensor */
	void (*close)(void *s);
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
	const engine_tensors *tensors;
	const engine_sandbox *sandbox;
} engine;

/* engine.c. The engines of this library, in the order in which "auto" asks them. */
const engine *engine_at(uint32_t i); /* NULL: there are no more */
/* The engine of that name; of "auto" or NULL the first that takes all nodes of the artifact. */
clv_status engine_choose(const char *name, const artifact *a, const engine **out);

#endif
