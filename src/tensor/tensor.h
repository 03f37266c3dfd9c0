/* Tensors of the core: elements in memory, with a type, sizes and strides. Plain C: no engine is needed to make one, to look
 * at it or to copy it.
 *
 * A memory is counted and shared by the tensors on it. An engine that has tensors of its own keeps its form of a tensor in a
 * slot of it, so that it is wrapped once; what an engine made may have no memory of ours at all, and lives in the slot. */
#pragma once

#include "base/status.h"
#include "plan/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TENSOR_FEW = 6, DEVICE_TEXT = 16 };

/* What an engine keeps. The first one that comes has the slot; `drop` says which engine that is. Counts and slots are read and
   written as atomic by tensor.c alone (C++ has no word for it). */
typedef void (*slot_drop)(void *ref);
typedef struct engine_slot {
	slot_drop drop;
	void *ref;
} engine_slot;

void *slot_get(engine_slot *s, slot_drop mine); /* borrowed; NULL: this engine has nothing there */
/* Keeps `ref`, or drops it where another thread was faster: the one that stays. NULL, and nothing is dropped: another engine
   has the slot. */
void *slot_keep(engine_slot *s, slot_drop mine, void *ref);

typedef struct memory_store memory_store;
typedef struct tensor_memory {
	uint32_t refs;
	char *base;
	size_t bytes;
	bool fixed;       /* nobody may write it */
	bool own;         /* from our heap: an engine may put larger memory in its place */
	engine_slot slot; /* for what tensors on the memory share in an engine */
	void (*release)(void *ctx);
	void *ctx;
	memory_store *store; /* where it goes when nothing uses it any more; NULL: it is freed */
	clv_tensor *room;    /* for one tensor on it, which nobody has taken yet; NULL: there is none */
} tensor_memory;

enum { BLOCK_ALIGN = 64 }; /* of own memory: a line of the cache, and the widest vector */
clv_status memory_block(size_t n, void **block, char **base); /* n bytes at *base, which is aligned; mem_free(*block) */
clv_status tensor_memory_new(size_t n, tensor_memory **out);  /* aligned for kernels; no values yet */
/* Somebody else's bytes; `release(ctx)`, which may be NULL, is called once, when nothing uses them; not on failure. */
clv_status tensor_memory_wrap(void *base, size_t n, bool fixed, void (*release)(void *), void *ctx,
                              tensor_memory **out);
tensor_memory *tensor_memory_ref(tensor_memory *m);
void tensor_memory_unref(tensor_memory *m); /* NULL is allowed */

/* store.c. Memories that are used again, with a tensor beside each: one that nothing uses any more waits for the next call
   that wants as many bytes. Any thread may give one back, also after the store was closed. */
clv_status memory_store_new(memory_store **out);
void memory_store_close(memory_store *s); /* NULL is allowed */
/* So many bytes may wait from now on, if that is more than before; memories that waited longest are freed first. */
void memory_store_keep(memory_store *s, size_t bytes);
size_t memory_store_cost(size_t n); /* what a memory of n bytes counts as */
clv_status memory_store_take(memory_store *s, size_t n, tensor_memory **out);
void memory_store_give(tensor_memory *m); /* by tensor_memory_unref alone */

/* What there is to know of a tensor without its elements; all of it borrowed. */
typedef struct tensor_meta {
	bool there;    /* false: no tensor was given */
	bool strided;  /* false: sparse, nested: sizes may be missing, strides are */
	uint8_t dtype; /* of plan.h; DT_COUNT if we have no name for it */
	uint32_t ndim;
	const int64_t *sizes, *strides;
	const char *device;
} tensor_meta;

struct clv_tensor {
	uint32_t refs;
	tensor_meta m; /* sizes and strides are in `few`, or allocated */
	bool lazy;     /* conj or neg: the elements are not what the bytes say */
	bool requires_grad;
	bool beside; /* it lies beside its memory, and goes with it */
	bool made;   /* up, for runs under a limit: it counts for that (runtime_make) */
	char device[DEVICE_TEXT];
	void *data;                 /* the first element, on the device; NULL: there is none, or no plain memory */
	const void *base;           /* the first byte of the memory that it is in: tensors that share it have the same */
	size_t extent;              /* bytes from there on that elements lie on */
	tensor_memory *memory;      /* counted; NULL: an engine's */
	const quantiser *quantiser; /* owned, with its numbers; NULL unless the dtype is quantised */
	engine_slot slot;
	int64_t few[2 * TENSOR_FEW];
};

typedef struct tensor_form {
	uint8_t dtype;
	uint32_t ndim;
	const int64_t *sizes, *strides; /* strides NULL: row-major */
	const char *device;             /* NULL: the CPU */
	bool requires_grad;
	const quantiser *quantiser; /* copied; NULL unless the dtype is quantised */
} tensor_form;

/* A tensor on a memory, of which it takes a reference of its own; it must lie inside. m NULL: the caller fills in the slot. */
clv_status tensor_over(tensor_memory *m, void *data, const tensor_form *s, clv_tensor **out);
clv_status tensor_new(const tensor_form *s, clv_tensor **out); /* of the CPU, with no values yet */
/* Another tensor on the memory of `t`, `offset` bytes from its first element. */
clv_status tensor_view(clv_tensor *t, size_t offset, const tensor_form *s, clv_tensor **out);
/* Other sizes, of a tensor that an engine changed in place. */
clv_status tensor_resize(clv_tensor *t, uint32_t ndim, const int64_t *sizes, const int64_t *strides);
clv_tensor *tensor_ref(const clv_tensor *t); /* NULL for NULL */

/* Sizes and strides (NULL: row-major) that nobody has looked at yet: none is negative, and their bytes can be counted. */
clv_status tensor_extent(const char *who, const tensor_form *s, size_t *out);
static inline size_t dtype_bytes(uint8_t d)
{
	return d < DT_COUNT ? ((size_t)dtype_bits((dtype)d) + 7) / 8 : 0;
}
bool tensor_is_contiguous(const tensor_meta *m); /* row-major, dimensions of size 1 ignored */
int64_t tensor_numel(const clv_tensor *t);
/* One and the same: also where an engine's tensor was wrapped twice. */
bool tensor_is_same(const clv_tensor *a, const clv_tensor *b);
bool tensor_is_plain(const clv_tensor *t); /* its elements are bytes of the CPU's memory */
static inline bool tensor_is_fixed(const clv_tensor *t)
{
	return t->memory && t->memory->fixed;
}
static inline tensor_meta tensor_meta_of(const clv_tensor *t)
{
	return t ? t->m : (tensor_meta){.dtype = DT_COUNT};
}

/* Of plain tensors. */
clv_status tensor_clone(const clv_tensor *t, clv_tensor **out); /* the same strides, where no elements overlap */
void tensor_copy(const clv_tensor *from, const clv_tensor *to); /* elements; same dtype and shape */
clv_status tensor_read_rows(const clv_tensor *t, void *to);     /* in row-major order */
/* Whether `got` has the dtype and shape of `want`, and data: CLV_E_INPUT names `name`. */
clv_status tensor_check_like(const clv_tensor *want, const clv_tensor *got, const char *name);

#ifdef __cplusplus
}
#endif
