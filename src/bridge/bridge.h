/* The bridge to libtorch, as plain C. Behind it all C++ and every exception stay.
 *
 * Three parts: tensors (counted references to PyTorch tensors), call sites (one operator call, bound once, called
 * many times) and the recorder (sees every operator a thread runs). Capture, the executor and the compile back ends
 * are its only callers. The implementation is bridge_*.cpp in this folder. */
#pragma once

#include "base/status.h"
#include "memory/pool.h"
#include "plan/plan.h"
#include "tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- tensors: a br_tensor* is one counted reference; NULL is the undefined tensor ------------------------------- */

typedef struct br_tensor br_tensor;

br_tensor *br_ref(const br_tensor *t); /* a new reference; NULL for NULL */
void br_unref(br_tensor *t);           /* NULL is allowed */

bool br_exhausted(void); /* the last CLV_E_MACHINE of this thread came from an allocator that had no memory left */

typedef struct br_meta {
	bool strided;   /* false: sparse, nested, opaque: sizes may be missing, strides are */
	uint8_t dtype;  /* dtype of plan.h; DT_COUNT if we have no name for it */
	uint8_t layout; /* index in layout_names */
	uint32_t ndim;
	const int64_t *sizes;   /* borrowed from the tensor */
	const int64_t *strides; /* borrowed; NULL when not strided */
	int64_t offset;
	char device[16];
	bool requires_grad;
	bool conj, neg;
	const void *storage; /* identity only; NULL when it has none */
} br_meta;

clv_status br_meta_get(const br_tensor *t, br_meta *out);
void br_look(const br_tensor *t, tensor_meta *out); /* the part of it that every run looks at; NULL: not there */
/* Has this dtype, device and shape (dims are indices into sizes). False for what is not strided. */
bool br_fits(const br_tensor *t, uint8_t dtype, const char *device, uint32_t ndim, const uint32_t *dims,
             const int64_t *sizes);
bool br_requires_grad(const br_tensor *t);            /* false for NULL */
bool br_has_graph(const br_tensor *t);                /* gradients go on behind it */
static inline bool br_is_contiguous(const br_meta *m) /* row-major, dimensions of size 1 ignored */
{
	tensor_meta t = {true, m->strided, m->dtype, m->ndim, m->sizes, m->strides, m->device};
	return tensor_is_contiguous(&t);
}
clv_status br_bits_equal(const br_tensor *a, const br_tensor *b, bool *out); /* same type, shape and bits */
clv_status br_clone(const br_tensor *t, bool grad, br_tensor **out); /* same strides; grad: gradients flow through */
/* The elements in row-major order: of a bool or integer tensor, of a floating one. Any device. */
clv_status br_read_ints(const br_tensor *t, int64_t *out);
clv_status br_read_floats(const br_tensor *t, double *out);
clv_status br_tensor_copy_(br_tensor *dst, const br_tensor *src); /* data only; the version counter does not move */

/* ---- tensors of the core: bridge_memory.cpp ----------------------------------------------------------------------- */

/* The tensor of torch that a tensor of the core is, on the same memory: made once. Borrowed from it; NULL for NULL. */
clv_status br_of(const clv_tensor *t, br_tensor **out);
/* The other way: takes the reference, also on failure; NULL for NULL. */
clv_status br_give(br_tensor *t, clv_tensor **out);
/* Of many at once; what br_give_all cannot give is released, and nothing is left in `out`. */
clv_status br_of_all(const clv_tensor *const *t, uint32_t n, br_tensor **out);
clv_status br_give_all(br_tensor *const *t, uint32_t n, clv_tensor **out);
/* New references to the tensors of torch; the tensors of the core are released. After a failure nothing is left in `out`. */
clv_status br_take_all(clv_tensor *const *t, uint32_t n, br_tensor **out);
/* After an operator changed the sizes of a tensor in place, or gave it other memory. */
clv_status br_refresh(clv_tensor *t);

/* ---- tensors as memory: bridge_memory.cpp ------------------------------------------------------------------------ */

typedef struct br_memory {
	const void *data; /* the first element; NULL when the storage is empty */
	const void *base; /* the first byte of the storage */
} br_memory;

/* The bytes that its elements lie on, or with `whole` those of its storage: first and behind the last, the same where there
   are none. */
void br_extent(const br_tensor *t, bool whole, uintptr_t *low, uintptr_t *high);
/* A number that changes when a tensor gets other memory or another layout. */
uint64_t br_place(const br_tensor *t);
/* One that also changes when it is written. Writes that no version counts (x.data) are seen where they reach one of a few
   elements that are looked at: all of them on the CPU, where it has up to `whole` bytes. False: nothing counts writes of
   this tensor, and not all of it was looked at. */
bool br_mark(const br_tensor *t, size_t whole, uint64_t *out);
clv_status br_memory_get(const br_tensor *t, br_memory *out);    /* refuses what is not plain memory of the CPU */
clv_status br_bytes_new(size_t n, br_tensor **out, void **data); /* u8[n] with no values yet */

bool br_is_fixed(const br_tensor *t); /* on memory that nobody may write: calls of plans from elsewhere refuse to */
/* A tensor on the same elements whose storage ends where they end, so that no operator reaches what lies around them; a new
   reference to t itself where that is so already. */
clv_status br_fence(const br_tensor *t, br_tensor **out);
bool br_needs_fence(const br_tensor *t);
int64_t br_numel(const br_tensor *t);
int64_t br_itemsize(const br_tensor *t);
clv_status br_copy(const br_tensor *from, br_tensor *to); /* elements, into a tensor of the same shape and dtype */
/* A device as tensors call it ("cuda" is "cuda:0"), if it is here; n: 16 are enough. */
clv_status br_device(const char *text, char *out, size_t n);
/* On another device, or itself if it is there; on the CPU with plain elements: what is conjugated lazily is made so. */
clv_status br_to_device(const br_tensor *t, const char *device, br_tensor **out);

/* A leaf on the same memory that requires grad or does not. */
clv_status br_leaf(const br_tensor *t, bool requires_grad, br_tensor **out);
/* Waits until the device ("cuda:0") has done all that it was given; nothing on the CPU. */
clv_status br_synchronize(const char *device);
/* The stream that this thread gives work of the device to, by number; 0 on the CPU. */
int64_t br_stream(const char *device);
/* This thread's stream reads the tensor: when it is freed, its memory is not reused before the stream is done. */
void br_used_on_stream(const br_tensor *t);
bool br_allows_tf32(void); /* CUDA may round what goes into products and convolutions of f32 to 10 bits */

/* A tensor on the memory of `bytes`, from `offset` bytes on: a multiple of the element size. It must lie inside. */
clv_status br_view_bytes(const br_tensor *bytes, int64_t offset, const tensor_form *f, br_tensor **out);
/* The quantiser of a quantised tensor but for its numbers, and those: `n` scales and then as many zero points. */
clv_status br_quantiser_get(const br_tensor *t, quantiser *out);
clv_status br_quantiser_numbers(const br_tensor *t, const quantiser *q, double *out);

/* ---- what libraries set up once: bridge_warm.cpp --------------------------------------------------------------------- */

/* Calls what makes libraries below torch look at the machine, so that later they need no file for it. */
void br_warm(void);
/* Settings of the process for all operators on the CPU, in addition to br_modes. */
typedef struct br_settings {
	uint8_t precision[3]; /* of f32 in convolutions, recurrent layers, products of oneDNN */
	uint8_t engine;       /* of quantised operators */
	bool nnpack, half_sums;
} br_settings;
clv_status br_settings_get(br_settings *out);
clv_status br_settings_set(const br_settings *s); /* what is as it should be is left alone */
/* The state of a device's random generator as a tensor of bytes; and set. What is no state is refused: CLV_E_TORCH. */
clv_status br_random_get(const char *device, br_tensor **out);
clv_status br_random_set(const char *device, const br_tensor *state);
clv_status br_random_seeded(uint64_t seed, br_tensor **out); /* the state of the CPU's after torch.manual_seed(seed) */
/* CLV_OK: a state of the CPU's that br_random_set takes, and draws nothing from beyond its own memory. */
clv_status br_random_check(const br_tensor *state);

/* ---- threads: bridge_threads.cpp ----------------------------------------------------------------------------------- */

enum { MOST_THREADS = 1024 };

typedef struct br_team {
	int operators, mkl;
} br_team;

int br_threads(void); /* that operators on the CPU use, called by this thread */
/* So many from now on, for operators that this thread calls; no other thread notices. `had`: what it had before. */
void br_team_enter(int n, br_team *had);
void br_team_leave(const br_team *had);
/* Calls work(ctx, i) once for each i below n, on the threads that operators use, at the same time as far as there are so many. */
void br_parallel(int n, void (*work)(void *ctx, int i), void *ctx);
/* 0, or a number of threads that can be had: CLV_E_INVALID, CLV_E_UNSUPPORTED where all threads have one number. */
clv_status br_team_check(int n);

/* ---- comparing: bridge_compare.cpp --------------------------------------------------------------------------------- */

/* The largest difference of two elements, infinite where they cannot be compared (dtype, shape, device; nan or infinity in
   one alone; integers that are not equal), and the largest finite element of `want`. */
clv_status br_difference(const br_tensor *got, const br_tensor *want, double *error, double *scale);
/* Laid out densely, dimensions from the slowest to the fastest as order says: itself where it is so already (dimensions of
   size 1 do not matter), else a copy. No gradients flow through. */
clv_status br_dense(const br_tensor *t, const uint32_t *order, br_tensor **out);
bool br_shares_memory(const br_tensor *a, const br_tensor *b); /* are on one storage; false for NULL */

/* ---- measuring: bridge_profile.cpp -------------------------------------------------------------------------------- */

/* Copies on memory of their own; those that share memory still do. grad[i]: copy i requires grad; leaf: as a leaf, else as
   the result of an operator, which may be written in place. On failure what was made is in out. */
clv_status br_copies(br_tensor *const *from, uint32_t n, const bool *grad, bool leaf, br_tensor **out);

/* Bytes that this thread's operators allocate from now on: of the CPU, or of all other devices. What was there before
   must not be released meanwhile. */
typedef struct br_meter br_meter;
clv_status br_meter_start(bool device, br_meter **out);
void br_meter_stop(br_meter *m);    /* NULL is allowed; on the thread that started it */
int64_t br_meter_live(br_meter *m); /* since the start */
int64_t br_meter_peak(br_meter *m); /* since the start, or since it was asked for last */

/* Time: of events on the device's current stream, or of the CPU. A start waits until the device is idle. */
typedef struct br_clock br_clock;
clv_status br_clock_new(const char *device, br_clock **out);
void br_clock_free(br_clock *c); /* NULL is allowed */
clv_status br_clock_start(br_clock *c);
/* A start behind `work` products of matrices, which keep the device busy while the host hands it what is timed. */
clv_status br_clock_start_behind(br_clock *c, uint32_t work);
clv_status br_clock_stop(br_clock *c, double *ms);
/* When the clock was stopped the device was still busy with that work: nothing waited for the host. */
bool br_clock_was_behind(const br_clock *c);

/* The backward from outputs (all gradients are ones) to the leaves behind them. Gradients are kept until it is freed; no
   .grad is touched. *out is NULL where there is nothing to do. Run it once, without the lock of Python. */
typedef struct br_backward br_backward;
clv_status br_backward_new(br_tensor *const *outputs, uint32_t n, br_backward **out);
clv_status br_backward_run(br_backward *b);
void br_backward_free(br_backward *b); /* NULL is allowed */
/* The gradients that a backward from a loss of one element gives these leaves, as new references: NULL where there is none.
   The graph behind the loss is gone afterwards; no .grad is touched. */
clv_status br_gradients(const br_tensor *loss, br_tensor *const *leaves, uint32_t n, br_tensor **out);

/* ---- code of AOTInductor: bridge_aoti.cpp -------------------------------------------------------------------------- */

typedef struct br_aoti br_aoti;
/* A shared object, given as bytes, which are copied. It is machine code: what it does when it is loaded is up to it. */
clv_status br_aoti_load(const void *data, size_t n, const char *device, br_aoti **out);
void br_aoti_free(br_aoti *m); /* NULL is allowed */
void br_aoti_count(const br_aoti *m, uint32_t *ninputs, uint32_t *noutputs);
/* Runs it on the device's current stream, as if no mode were set. Threads may at once. Inputs are borrowed, outputs new
   references. */
clv_status br_aoti_run(const br_aoti *m, br_tensor *const *inputs, br_tensor **outputs);
const char *br_torch_version(void); /* of the libtorch that is loaded: "2.13.0" */

/* ---- the operator cleave::segment: bridge_operators.cpp ------------------------------------------------------------- */

/* What cleave::segment(Tensor code, Tensor[] inputs) -> Tensor[] does with the bytes that `code` is. */
typedef struct br_segment_fns {
	bool (*allowed)(void); /* machine code in it may run */
	/* Bytes that start at a multiple of 64 and stay as they are until it is closed. may_run: the code in them, whatever its origin.
	   *reason: why it runs on the tape, borrowed from what is opened; NULL: it does not. */
	clv_status (*open)(const void *data, size_t n, bool may_run, void **out, const char **reason);
	uint32_t (*noutputs)(const void *opened);
	clv_status (*run)(const void *opened, br_tensor *const *inputs, uint32_t n, br_tensor **outputs);
	void (*close)(void *opened); /* does not look at the bytes, which may be gone */
} br_segment_fns;

/* Registers the operator for as long as the process lives, unless another copy of this library has. */
clv_status br_segment_register(const br_segment_fns *fns);
/* These bytes were made here: machine code in them, and in equal ones while this tensor lives, may run. */
clv_status br_segment_trust(const br_tensor *code);

/* ---- memory of runs: bridge_pool.cpp ------------------------------------------------------------------------------- */

/* Puts the allocator in place that serves from pools (memory/pool.h), for all CPU tensors of the process; what no pool has
   comes from the one that was there. False: somebody else's is there already, and stays. */
bool br_pool_install(void);
/* As pool_enter and pool_leave; a memory profiler is told of the chunk. NULL: without a pool. */
pool_run *br_pool_enter(pool *p, const int64_t *key);
void br_pool_leave(pool_run *r, bool complete); /* NULL is allowed */
/* This thread's tensors are made of memory that others let go of, where the allocator is in place; it nests. */
void br_recycle(bool on);

/* ---- modes around operators ------------------------------------------------------------------------------------- */

enum { BR_AUTOCAST_DEVICES = 4 };
extern const char *const br_autocast_device_names[BR_AUTOCAST_DEVICES]; /* cpu cuda xpu mps */

typedef struct br_modes {
	bool grad, inference;
	bool autocast[BR_AUTOCAST_DEVICES];
	uint8_t autocast_dtype[BR_AUTOCAST_DEVICES]; /* dtype; 0 where autocast is off */
	bool autocast_cache;                         /* false where autocast is off everywhere */
	uint32_t flags;                              /* bit i: global flag i of CTX_FLAG_LIST is on */
	uint8_t default_dtype;
} br_modes;

void br_modes_get(br_modes *out);
uint8_t br_default_dtype(void); /* that operators make tensors of where nothing says another */
bool br_modes_equal(const br_modes *a, const br_modes *b, bool grad); /* grad: compare the grad mode too */
/* Sets grad, autocast and those global flags that are in flags_mask. */
void br_modes_set(const br_modes *m, uint32_t flags_mask);
typedef struct br_autocast {
	uint8_t dtype[BR_AUTOCAST_DEVICES];
	bool cache;
} br_autocast;
void br_autocast_enter(br_autocast *saved);
void br_autocast_exit(const br_autocast *saved);

/* ---- arguments that cross the bridge ---------------------------------------------------------------------------- */

typedef enum br_kind {
	BR_NONE,
	BR_TENSOR, /* u.id: recorder: tensor number; call site: slot */
	BR_INT,
	BR_FLOAT,
	BR_BOOL,
	BR_COMPLEX,
	BR_STR,
	BR_DTYPE,
	BR_LAYOUT,
	BR_MEMFMT,
	BR_DEVICE,
	BR_LIST,
	BR_OBJECT,  /* u.id: recorder: object number; call site: index into the objects given */
	BR_INTVAR,  /* call site: u.id is an index into the numbers of a call, which is a BR_INT there */
	BR_REALVAR, /* likewise a BR_FLOAT */
	BR_BOOLVAR  /* likewise a BR_BOOL */
} br_kind;

typedef struct br_arg {
	uint8_t kind;
	uint8_t wrapped; /* a number where the operator takes a tensor */
	uint8_t take;    /* call site, TENSOR: the slot's reference is handed over and the slot becomes NULL */
	uint8_t written; /* call site, TENSOR: the plan says that the call writes it */
	union {
		uint32_t id;
		int64_t i;
		double f;
		bool b;
		const char *s;
		uint32_t code;
		struct {
			double re, im;
		} c;
		struct {
			struct br_arg *at;
			uint32_t n;
		} list;
	} u;
} br_arg;

/* Same kind and same value; tensors and objects by number. */
bool br_arg_same(const br_arg *a, const br_arg *b);

/* Between a plan's arguments and the bridge's, for what is plain: none, float, bool, complex, string, device, dtype, layout,
   memory format. from_plain borrows the plan's text, and is false for what is not plain; to_plain refuses it. */
bool br_from_plain(const plan *p, const arg *from, br_arg *to);
clv_status br_to_plain(plan *p, const br_arg *from, arg *to);

/* Something an operator takes that is neither tensor nor plain (packed weights, a generator). Counted. */
typedef struct br_object br_object;
br_object *br_object_ref(br_object *o);
void br_object_unref(br_object *o);
const char *br_object_type(const br_object *o); /* borrowed */
bool br_object_same(const br_object *a, const br_object *b);

/* The state of a generator; *out is NULL for what is none. */
clv_status br_generator_state(const br_object *o, br_tensor **out);
clv_status br_generator_restore(const br_object *o, const br_tensor *state);

/* ---- call sites ------------------------------------------------------------------------------------------------- */

typedef struct br_site br_site;

/* Binds `op` ("aten::add.Tensor") to arguments. Results are TENSOR (slot), NONE (dropped), LIST of those, or a host
   kind (BR_INT, BR_FLOAT, BR_BOOL, BR_COMPLEX, BR_STR), which br_call writes to hosts in order. untrusted: the plan may be a
   stranger's, so that no call writes memory that is fixed (tensor_memory) or gives memory that nobody wrote. */
clv_status br_site_new(const char *op, const br_arg *args, uint32_t nargs, const br_arg *results, uint32_t nresults,
                       br_object *const *objects, bool untrusted, br_site **out);
/* It may change the shape of an argument, or how much memory it has; false unless untrusted. */
bool br_site_resizes(const br_site *s);
/* While calls of untrusted sites of this thread last, these tensors keep their shape and their memory its size: a call that
   would change them fails. Borrowed until br_keep_end. */
typedef struct br_kept {
	br_tensor *const *at;
	uint32_t n;
} br_kept;
void br_keep_sizes(br_tensor *const *tensors, uint32_t n, br_kept *before);
void br_keep_end(const br_kept *before);
void br_site_free(br_site *s);

/* Calls. Slots named by TENSOR arguments are read (or taken), those of results are written with new references. */
clv_status br_call(const br_site *s, br_tensor **slots, const br_arg *numbers, br_arg *hosts);

/* A function transform (vmap, grad) or a dispatch mode (fake tensors) is around: operators give what only holds in there. */
bool br_transforms(void);
bool br_has_operator(const char *op); /* it is registered, and the library it calls was built in */

/* Argument i of an operator's schema: its name (borrowed while the operator is registered), whether it is taken by name
   alone, whether its default is None; false if there is no such operator or argument. */
bool br_formal(const char *op, uint32_t i, const char **name, bool *named, bool *none);

/* ---- the recorder ----------------------------------------------------------------------------------------------- */

typedef struct br_recorder br_recorder;

typedef enum br_origin {
	BR_DEFINED,  /* named by br_recorder_define before recording: an input or module tensor */
	BR_EXTERNAL, /* seen first as an argument: it was there before, or came from somewhere unseen */
	BR_FRESH,    /* literal data made inside the forward (torch.tensor) */
	BR_RESULT    /* of a recorded operator */
} br_origin;

/* A tensor seen for the first time. Numbers count up from 0 in order of sight. */
typedef struct br_seen {
	uint32_t id;
	br_origin origin;
	uint32_t storage; /* number of its storage; NONE if it has none */
	br_meta meta;     /* borrowed: copy what you keep */
	br_tensor *data;  /* EXTERNAL, FRESH (a private copy), DEFINED: borrowed; else NULL */
} br_seen;

enum br_event_flags {
	BR_RANDOM = 1,
	BR_DYNAMIC = 2, /* shape of a result depends on data */
	BR_HOST_READ = 4
};

typedef struct br_event {
	const char *op;
	const br_arg *args;
	uint32_t nargs;
	const br_arg *results;
	uint32_t nresults;
	const uint32_t *writes; /* tensor numbers */
	uint32_t nwrites;
	uint32_t flags;
	br_modes modes;
	const char *at; /* source line, or NULL */
} br_event;

/* Called on the recording thread, in order. An error they return ends the recording and comes out of br_recorder_stop. */
typedef struct br_record_fns {
	clv_status (*seen)(void *ctx, const br_seen *t);
	clv_status (*event)(void *ctx, const br_event *e);
	/* The user's source line into out ("" if unknown). Called on the recorder's own thread, with no lock held. May be
	   NULL. */
	void (*where)(void *ctx, char *out, size_t n);
} br_record_fns;

clv_status br_recorder_new(const br_record_fns *fns, void *ctx, br_recorder **out);
void br_recorder_free(br_recorder *r);
clv_status br_recorder_define(br_recorder *r, const br_tensor *t, uint32_t *id_out); /* same tensor: same number */

/* Recording is for the calling thread (and what it forks). Start and stop on the same thread. alone: no other thread
   runs, so that any unexplained move of the random generators is the forward's own. */
clv_status br_recorder_start(br_recorder *r, bool alone);
clv_status br_recorder_stop(br_recorder *r);
/* External tensors that recorded operators wrote in place get their old data back. */
clv_status br_recorder_restore(br_recorder *r);

bool br_recording_here(void); /* some recorder records this thread */

/* Explicit generators that were drawn from get their old state back. */
clv_status br_recorder_restore_generators(br_recorder *r);
/* A copy of the memory of `t` is kept for restore, if it was there before the recording. */
clv_status br_recorder_keep(br_recorder *r, const br_tensor *t);

/* Threads that the forward forks record too: around whatever shares data with the callbacks. Recursive. */
void br_recorder_lock(br_recorder *r);
void br_recorder_unlock(br_recorder *r);

/* Number of a tensor; one never seen becomes EXTERNAL. */
clv_status br_recorder_see(br_recorder *r, const br_tensor *t, uint32_t *id_out);
/* A private copy of the data of `t`, as a FRESH tensor. */
clv_status br_recorder_fresh(br_recorder *r, const br_tensor *t, uint32_t *id_out);
br_object *br_recorder_object(const br_recorder *r, uint32_t number); /* borrowed */

/* Between these two (an opaque call) nothing is recorded, on this thread or on those that it forks; results are then made known. */
void br_recorder_suspend(br_recorder *r);
void br_recorder_resume(br_recorder *r);
clv_status br_recorder_result(br_recorder *r, const br_tensor *t, uint32_t *id_out);
void br_recorder_fail(br_recorder *r, clv_status code, const char *message); /* ends the recording with an error */
bool br_recorder_failed(const br_recorder *r);
bool br_recorder_active(const br_recorder *r); /* recording, on this thread */

/* bridge_hooks.cpp. Gradient hooks that a recorded forward has put on the graph behind the tensors it gave: they change, or
   look at, what flows back, and no operator shows them. Hooks of tensors that were there before live with these. */
typedef struct br_hook {
	bool found;
	bool retains;    /* retain_grad() of one of the tensors, not a hook behind them */
	uint32_t tensor; /* number of a result of the operator that has it; NONE: not known */
	char node[64];   /* what autograd calls it */
} br_hook;
clv_status br_recorder_find_hook(br_recorder *r, br_tensor *const *tensors, uint32_t n, br_hook *out);
/* Those behind the results of the call that br_recorder_suspend began are made again when the call is repeated. */
clv_status br_recorder_pass_hooks(br_recorder *r, br_tensor *const *tensors, uint32_t n);

/* Explicit generators: digest of the state before the first and after the last use of object `number`; false if it
   is no generator. */
bool br_recorder_generator(const br_recorder *r, uint32_t number, uint64_t *first, uint64_t *last);

#ifdef __cplusplus
}
#endif
