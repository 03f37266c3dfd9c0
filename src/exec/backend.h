/* Back ends: compile segments and run the result. One small table of functions each; the tables are in
 * inductor.c, openvino.c, native_backend.c, and those that others add in backends.c.
 *
 * A back end runs on tensors of the CPU or of the device that the segment is on. Its code is loaded once, and run by many
 * threads at a time. */
#pragma once

#include "bridge/bridge.h"
#include "segment/compile.h"
#include "segment/segment.h"

/* What code is loaded for. */
typedef struct code_spec {
	const char *device; /* "cpu", "cuda:0" */
	uint32_t ninputs, noutputs;
	int threads; /* that a run may use; 0: as many as operators use, or what it was compiled with says */
} code_spec;

/* One run. Inputs are dense, in the layout that the job said; outputs are new references that the back end makes, in
   whatever layout it likes; after a failure nobody looks at them. Sizes of outputs are known: wanted[i].sizes is for
   output i. */
typedef struct code_run {
	br_tensor *const *inputs; /* borrowed */
	uint32_t ninputs, noutputs;
	const struct segment_call *of; /* the segment's run: for code that reads the tensors of the model as they are now */
	const tensor_form *wanted;     /* per output: dtype and sizes (strides NULL) */
	br_tensor **outputs;
} code_run;

/* Whether a failure is about the code: not when memory ran out or the user stopped it. */
static inline bool fault_of_code(clv_status st)
{
	return st != CLV_OK && st != CLV_E_NOMEM && st != CLV_E_CANCELLED;
}

typedef struct backend {
	const char *name;
	/* It was made for a live model: reads its tensors in every run, as they are then, and takes inputs in any layout. Such code is
	   made by whoever made the back end: what follows but run and unload is NULL. */
	bool live;
	void *ctx; /* first argument of every function */
	clv_status (*support)(void *ctx, const plan *p, const support_spec *s, const char **no, arena *a);
	/* Checks compiler_args; CLV_E_INVALID names the one that is not known. */
	clv_status (*check_args)(void *ctx, const char *const *args, uint32_t n);
	/* In this process; NULL: `python -m cleave.compilers.<name> FOLDER` is started. */
	clv_status (*compile)(void *ctx, const char *dir, compiled *out);
	/* Version of the compiler, and everything else that results depend on, as one text; "": unknown. CLV_E_NOT_FOUND:
	   it is not installed, with the command that installs it. */
	clv_status (*version)(void *ctx, strbuf *out);
	/* Whether compiled parts can run here; *reason: why not (in `a`), NULL: they can. */
	clv_status (*fits)(void *ctx, const compiled *c, const code_spec *s, arena *a, const char **reason);
	/* `c` is gone when it returns: what is needed of it is copied. */
	clv_status (*load)(void *ctx, const compiled *c, const code_spec *s, void **code);
	clv_status (*run)(void *ctx, void *code, const code_run *r);
	void (*unload)(void *ctx, void *code);
} backend;

/* backends.c */
clv_status backend_find(const char *name, const backend **out); /* CLV_E_NOT_FOUND lists those that are there */
/* Copied, and there for ever; a name that is taken is replaced for what is loaded from now on, built-in ones are not. */
clv_status backend_add(const backend *b);
const backend *backend_at(uint32_t i); /* built-in ones first; NULL ends */

#define DECLARE(name) extern const backend backend_##name;
CLV_BACKEND_LIST(DECLARE)
#undef DECLARE
