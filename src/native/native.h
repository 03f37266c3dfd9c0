/* The native engine: plans run by kernels of our own, without libtorch.
 *
 *   plan part ──passes──▶ program ──one per sizes──▶ shaped ──one per run under way──▶ frame
 *                         packed weights             steps, layouts, offsets            memory
 *
 * A program is a part of a plan after the passes of src/optimize, with the tensors it reads and what was made of them once:
 * results of nodes that depend on nothing else, packed weights. A shaped program has every size of one call worked out: each
 * value is a tensor with strides at an offset of one block of memory, each node a step with its numbers at hand. A frame is
 * that block. A steady run looks up the shaped program, takes a frame, runs the steps: no allocation, and no system call but to
 * wake threads. Outputs are on memory that callers of earlier runs let go (tensor/store.c).
 *
 * An operator is a row of native_op: whether it takes a node, and how the node becomes steps. Rows are in op_<family>.c, the
 * loops they call in kernels.h. Views are strides: permute, slice and expand make no step. */
#ifndef NATIVE_NATIVE_H
#define NATIVE_NATIVE_H

#include "base/arena.h"
#include "base/status.h"
#include "native/kernels.h"
#include "plan/ops.h"
#include "plan/plan.h"

enum { NT_DIMS = 8 };

/* A tensor as steps see it. Strides are in elements; 0 where it is broadcast; never negative. */
typedef struct nt {
	char *data; /* set in a frame */
	uint8_t dtype, ndim;
	int64_t size[NT_DIMS], stride[NT_DIMS];
} nt;

int64_t nt_numel(const nt *t);
bool nt_bytes(const nt *t, uint64_t *out);  /* of memory that its elements reach; false: too many */
bool nt_is_rows(const nt *t);               /* row-major without gaps, dimensions of size 1 ignored */
bool nt_is_dense(const nt *t);              /* without gaps or overlaps, in whatever order of dimensions */
void nt_copy(const nt *from, const nt *to); /* copies and casts; same sizes */
void nt_rows(nt *t);                        /* gives it row-major strides */
void nt_channels_last(nt *t);               /* NHWC strides for sizes N, C, spatial…; others row-major */
void nt_strides_like(nt *t,
                     const nt *other); /* strides in the order of those of `other`, without gaps; sizes may differ */
/* Broadcasts: `t` as a tensor of these sizes, with stride 0 where it has size 1. False: it does not fit. */
bool nt_expand(const nt *t, uint8_t ndim, const int64_t *size, nt *out);

/* ---- running -------------------------------------------------------------------------------------------------------- */

typedef uint32_t slot; /* a tensor of a shaped program; NONE: none */

typedef struct frame {
	nt *t; /* per slot */
	const native_kernels *k;
	team *team;
} frame;

/* Params are what the lowering made. A failure (an index out of range) ends the run. */
typedef clv_status (*step_fn)(const void *params, frame *f);

/* ---- lowering: a node at given sizes becomes steps ------------------------------------------------------------------- */

typedef struct lowering lowering;

const plan *low_plan(const lowering *l);
const native_kernels *low_kernels(const lowering *l);
int low_threads(const lowering *l); /* the most that a run has: scratch for each of them */

/* Arguments of a node, counted as in the plan. `absent` is for an argument that is none or not there. */
bool low_has(const lowering *l, node_id n, uint32_t i); /* there, and not none */
clv_status low_int(lowering *l, node_id n, uint32_t i, int64_t absent, int64_t *out);
clv_status low_real(lowering *l, node_id n, uint32_t i, double absent, double *out); /* integers and flags too */
clv_status low_bool(lowering *l, node_id n, uint32_t i, bool absent, bool *out);
/* A list of integers, or one integer as a list of one; 0 of them if it is none. More than max are an error. */
clv_status low_ints(lowering *l, node_id n, uint32_t i, uint32_t max, int64_t *out, uint32_t *count);
/* Of a number anywhere in the plan, a guard's for instance. */
clv_status low_int_of(lowering *l, const arg *a, int64_t *out);
clv_status low_real_of(lowering *l, const arg *a, double *out);
/* Likewise of numbers. */
clv_status low_reals(lowering *l, node_id n, uint32_t i, uint32_t max, double *out, uint32_t *count);
clv_status low_dtype(lowering *l, node_id n, uint32_t i, uint8_t absent, uint8_t *out);
const char *low_str(const lowering *l, node_id n, uint32_t i); /* "" if none */
/* A dimension: negative ones count from the end; out of range is an error. */
clv_status low_dim(lowering *l, node_id n, uint32_t i, int64_t absent, uint32_t ndim, uint32_t *out);

/* A tensor argument. A number where the operator takes a tensor is no tensor: see low_is_number. */
clv_status low_tensor(lowering *l, node_id n, uint32_t i, slot *out);
clv_status low_tensor_or_none(lowering *l, node_id n, uint32_t i, slot *out); /* NONE if it is none, or not there */
bool low_is_number(const lowering *l, node_id n, uint32_t i);
/* A list; in low_alloc memory. */
clv_status low_tensors(lowering *l, node_id n, uint32_t i, slot **out, uint32_t *count);
clv_status low_tensors_or_none(lowering *l, node_id n, uint32_t i, slot **out, uint32_t *count); /* some are NONE */
const nt *low_at(const lowering *l, slot s); /* sizes, strides, dtype; valid until the next result is made */

/* Results. Lists count as their elements: split gives results 0, 1, 2, … */
uint32_t low_results(const lowering *l, node_id n);
bool low_wants(const lowering *l, node_id n, uint32_t i); /* somebody reads it; else it need not be made */
/* The plan says the dtype and the shape of result i of the node: low_form reads them, row-major. An operator whose
   sizes differ from the plan's must fail, so take the sizes from here or compare with them. */
clv_status low_form(lowering *l, node_id n, uint32_t i, nt *out);
/* For kernels that write one type: the plan must have that one. */
clv_status low_form_of_type(lowering *l, node_id n, uint32_t i, uint8_t type, nt *out);
/* On new memory, with the strides of `form` — or with others, where the result is to be written into a part of a larger
   tensor (concatenation) or where an output wants its layout: look at low_at afterwards. Kernels take any strides, or ask
   with `fixed` for those they gave. */
clv_status low_result(lowering *l, node_id n, uint32_t i, const nt *form, bool fixed, slot *out);
/* Nodes that write in place (relu_, add_, copy_, index_put_, …) write argument 0 and give it as result 0. For one that computes
   all elements anew low_result gives the memory of argument 0 itself, so that relu_ is relu; kernels allow that an argument and
   the result are the same memory with the same strides. One that leaves elements as they are writes here: this is argument 0,
   and result 0. */
clv_status low_in_place(lowering *l, node_id n, slot *out);
/* On the memory of `of`, `offset` elements behind its first; no step is needed. */
clv_status low_view(lowering *l, node_id n, uint32_t i, slot of, int64_t offset, const nt *form, slot *out);
/* A tensor on that memory for the steps of this node alone. */
clv_status low_part(lowering *l, slot of, int64_t offset, const nt *form, slot *out);
/* The result of the node is this tensor itself, or a tensor made before. Both low_view and low_same make a copy where a later
   write in place would show. */
clv_status low_same(lowering *l, node_id n, uint32_t i, slot of);
/* Memory for the steps of this node alone, 64-byte aligned, as a tensor of bytes. */
clv_status low_scratch(lowering *l, size_t bytes, slot *out);
/* A tensor of another layout or dtype for the steps of this node alone, e.g. a row-major copy of an argument. */
clv_status low_temp(lowering *l, const nt *form, slot *out);
/* A step that copies and casts; same sizes, any strides. No step where both are the same memory already. */
clv_status low_copy(lowering *l, slot from, slot to);
/* The tensor with row-major elements: itself, or a copy for the steps of this node. */
clv_status low_as_rows(lowering *l, slot s, slot *out);

void *low_alloc(lowering *l, size_t n); /* zeroed, lives as long as the shaped program; NULL: no memory */
/* As many elements as a tensor has along a dimension, or no memory: sizes come from strangers. */
void *low_array(lowering *l, int64_t n, size_t each);
clv_status low_step(lowering *l, step_fn run, const void *params);

/* ---- constants and packed weights -------------------------------------------------------------------------------------- */

/* The tensor is the same in every run until other weights are bound. Its data need not be there while lowering, or ever: where
   a file has all that was packed of it, it is not computed. */
bool low_is_constant(const lowering *l, slot s);
/* What `pack` makes of a constant, once per program however many sizes it is lowered for: 64-byte aligned bytes that live
   until other weights are bound. `kind` and `spec` (compared as bytes) name the packing; packed files are keyed by them too, so
   a change of the format changes `kind`. bytes() gives the size. An argument
   that is packed is read in no other way, unless low_reads says so; the same value as another argument is another matter. Packing runs on any machine for any instruction set (simd/layouts.h). */
typedef struct packing {
	const char *kind; /* "gemm-panel-16/1" */
	const void *spec;
	size_t nspec;
	size_t (*bytes)(const nt *t, const void *spec); /* SIZE_MAX: too large */
	void (*pack)(const nt *t, const void *spec, void *out);
} packing;
clv_status low_packed(lowering *l, slot constant, const packing *k, const void **out);
/* For a node that packs an argument and reads its elements in runs, too: without it their data may not be there. */
clv_status low_reads(lowering *l, slot constant);

/* ---- epilogues --------------------------------------------------------------------------------------------------------- */

/* Elementwise work on a block of a product or convolution that was just written, while it is in cache: rows of `cols` floats
   from column col. The columns are one dimension of the result (a product's last one, the channels of a convolution), rows count
   all others in the order in which they lie in memory (NHWC: pixels). */
typedef struct epilogue {
	void (*run)(const void *ctx, frame *f, float *block, int64_t ldc, int64_t row, int64_t rows, int64_t col,
	            int64_t cols);
	const void *ctx;
} epilogue;
/* The rest of the group of which node n is the first, where its result 0 is f32 and is made with the strides of `form`, and
   dimension `columns` of it is that of blocks: strides do not tell it where sizes are 1. run is NULL if there is nothing. The result of the node is then that of the last node of the group, of the same sizes; low_result takes
   care of that, so call this before it. An operator that never calls this gets no epilogue, and the others of the group run as
   a step of their own. */
clv_status low_epilogue(lowering *l, node_id n, const nt *form, unsigned columns, epilogue *out);

/* ---- operators ----------------------------------------------------------------------------------------------------------- */

typedef struct native_op {
	uint16_t id; /* of ops.h; OP_UNKNOWN ends a list */
	/* NULL: it takes the node; else why not, static text. It sees dtypes, dimensions and literal arguments; sizes only as far
	   as they are no formulas. A NULL function: whatever types the engine has (f32 f64 i64 i32 i16 i8 u8 bool), and f16 and
	   bf16 as f32. */
	const char *(*takes)(const plan *p, node_id n);
	clv_status (*lower)(lowering *l, node_id n);
	uint32_t what; /* the family's own */
	bool checks;   /* sizes of results that depend on data are compared with the plan's in every run */
	bool widens;   /* it has `takes`, and is given f16 and bf16 as f32; without this it looks at them itself */
	uint8_t keeps; /* where it widens: the argument that it gets as it is if that is a constant; 0: none */
} native_op;

/* The lists, each in op_<family>.c. */
/* clang-format off */
#define NATIVE_FAMILIES(X) \
	X(attention) X(conv) X(distance) X(elementwise) X(fill) X(heads) X(host) X(index) X(move) X(norm) X(order) X(pad) X(pool) \
	X(product) X(recurrent) X(reduce) X(resize) X(sample) X(view)
/* clang-format on */

/* widen.c. The type that an operator which widens sees: f32 for halves. */
uint8_t native_dtype(const plan *p, value_id v);
bool is_half(uint8_t dtype);
/* The tensors among the first `most` arguments are all f32, as they are seen, or all f64. */
bool native_floats(const plan *p, node_id n, uint32_t most);

/* program.c. NULL: the engine runs this node; else why not. */
const char *native_takes(const plan *p, node_id n);
bool native_skips(const plan *p, node_id n); /* it draws random numbers that nobody reads: no step is made of it */
const native_op *native_op_of(uint16_t id);  /* ops.c; NULL: none */
/* Of a node being lowered: the row's `what`. */
uint32_t low_what(const lowering *l, node_id n);

#endif
