/* Sandboxes: a model that nobody vouches for runs in a process of its own, which can compute and nothing else.
 *
 *     runtime (sandbox.c)  ──socket──▶  child.c: the engine is loaded, warm, then confined (filter.c)
 *     checks the answer    ◀──────────  only then it reads the file and runs
 *
 * The runtime on our side has plans and ports as any other, and runs no operator: runtime_run_plan hands calls over. A call and
 * its answer are a short message each; what they are about lies in two memory files that the child has mapped. We read and
 * write them as files, so that nothing of ours changes while we look at it, and take all that comes back as hostile
 * (wire.c). What the child does right now stands at the start of the second one: a crash has the name of a node. */
#pragma once

#include <fenv.h>

#include "base/limits.h"
#include "runtime/runtime.h"

/* ---- filter.c: what a process may still do --------------------------------------------------------------------------- */

/* For this process and all its threads, for good: memory and threads of its own, the files that are open, nothing else.
   `room`: bytes of address space beyond what it has now. CLV_E_UNSUPPORTED: the system cannot do it. */
clv_status sandbox_confine(uint64_t room);

/* ---- wire.c: messages ------------------------------------------------------------------------------------------------ */

/* One end of the socket. */
typedef struct wire {
	int fd;
	clv_status (*wait)(void *ctx, short events); /* until poll() would see one of them; NULL: the socket blocks */
	void *ctx;
} wire;

clv_status wire_write(const wire *w, const void *at, size_t n); /* CLV_E_IO: nobody is there any more */
clv_status wire_read(const wire *w, void *at, size_t n);        /* likewise */

/* Memory files. */
clv_status memory_write(int file, uint64_t at, const void *from, size_t n); /* it grows; CLV_E_NOMEM */
clv_status memory_read(int file, uint64_t at, void *to, size_t n);          /* CLV_E_PARSE: it is shorter */

/* Tensors as bytes: a payload of values. What is packed borrows the tensors. */
typedef struct parcel {
	payload *p;
	st_image image;
	clv_tensor *keep; /* a tensor that is in there, and nobody else's */
} parcel;

clv_status parcel_make(clv_tensor *const *tensors, uint32_t n, parcel *out); /* CLV_E_UNSUPPORTED: no plain memory */
clv_status parcel_write(const parcel *x, int file, uint64_t at);             /* image.total bytes */
void parcel_free(parcel *x);
/* Exactly n tensors of hostile bytes, which take `most` bytes at most; new references. */
clv_status parcel_open(const void *bytes, size_t size, int64_t most, clv_tensor **out, uint32_t n);

enum { PLACE_ROOM = 1 << 16, CALL_ALIGN = 64, SANDBOX_FILES = 3 }; /* the model, calls, answers */

/* What a process is made for. Texts follow: the engine, part, device, optimize, then nallow operators, each with its NUL. */
typedef struct sandbox_order {
	char version[32]; /* first: both sides are of one build, or say so */
	uint64_t file_bytes, texts;
	double timeout;
	int64_t max_memory;    /* as the caller said it */
	uint64_t room, answer; /* bytes: of address space, of an answer at most */
	int32_t threads;       /* of the runtime */
	uint32_t nallow;
	bool has_part, has_device, has_optimize, unproven, debug;
} sandbox_order;

typedef enum sandbox_kind { SANDBOX_RUN, SANDBOX_ASSIGN } sandbox_kind;

/* A call: symbols and a name, then at a multiple of CALL_ALIGN tensors. Of ASSIGN the one of that name. */
typedef struct sandbox_call {
	uint32_t kind, plan;
	int32_t threads; /* that the caller has */
	uint32_t nsymbols, ntensors;
	uint32_t name;    /* bytes, with its NUL */
	bool has_symbols; /* -1 is one that is read from data */
	bool draws;       /* the last tensor is the state of the random generator; so it is in the answer */
	uint64_t tensors; /* bytes */
	int64_t made;     /* of these that count for the limit of the run */
	engine_settings settings;
	fenv_t arithmetic; /* rounding, and whether denormal numbers are flushed */
} sandbox_call;

static inline uint64_t call_head(const sandbox_call *c)
{
	uint64_t n = c->nsymbols * sizeof(int64_t) + c->name;
	return (n + CALL_ALIGN - 1) / CALL_ALIGN * CALL_ALIGN;
}

/* What came of it, from PLACE_ROOM on: a message, numbers of the output (run_number), tensors (outputs, inputs that the plan writes, the
   generator). */
typedef struct sandbox_answer {
	int32_t status;
	uint32_t undone; /* of CLV_E_GUARD: 0 or 1, as in clv_error_details */
	uint32_t message, nnumbers, ntensors;
	uint64_t tensors; /* bytes */
} sandbox_answer;

enum { SANDBOX_MESSAGE = 4096 }; /* bytes of a message, with its NUL */

/* Whether a run of a plan writes input i, the caller's own tensor. */
static inline bool sandbox_writes(const runtime_plan *e, uint32_t i)
{
	return e->writes && e->writes[i];
}

/* A text of the child's as one that can be shown: n bytes at most, ASCII, no control characters but newlines. */
void sandbox_clean(char *to, const char *from, size_t n);

/* An answer as it was read. */
typedef struct reply {
	clv_status status; /* of the call; a failure has its message in the thread's slot */
	run_number *numbers;
	uint32_t nnumbers;
	clv_tensor **tensors;
	uint32_t ntensors;
	uint64_t bytes; /* that the tensors were */
} reply;

/* An answer with n numbers and m tensors in `most` bytes at most, or with an error; what is anything else fails. */
clv_status reply_read(const wire *w, int file, int64_t most, uint32_t n, uint32_t m, reply *out);
void reply_free(reply *x);

/* ---- sandbox.c: our side --------------------------------------------------------------------------------------------- */

typedef struct sandbox sandbox;

/* A process for this runtime, whose plans and tensors are there. CLV_E_UNSUPPORTED, CLV_E_NOT_FOUND: there can be none. */
clv_status sandbox_new(runtime *r, const clv_runtime_options *o, sandbox **out);
clv_status sandbox_run(const runtime *r, uint32_t plan, const run_call *c, clv_tensor **outputs);
clv_status sandbox_assign(sandbox *s, const char *name,
                          const clv_tensor *t); /* runs that come after have this tensor */
void sandbox_grow(sandbox *s, uint32_t n);      /* up to n processes run the model at a time */
void sandbox_free(sandbox *s);                  /* NULL is allowed */
