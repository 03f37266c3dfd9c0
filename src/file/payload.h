/* Payloads: what travels between processes, as a safetensors file (docs/payload.md).
 *
 * Two kinds: the boundary of a split, and values alone. Both hold tensors by label and one tree of plain values whose
 * leaves may be tensors. Tensors on the same memory are written once and come back on the same memory; strides come back
 * as they were. A payload is filled by payload_add_* and written, or read and looked at. */
#pragma once

#include "base/arena.h"
#include "base/digest.h"
#include "base/table.h"
#include "file/narrow.h"
#include "file/safetensors.h"

#define PAYLOAD_VERSION 1
#define PAYLOAD_KEY "cleave.payload"
#define PAYLOAD_CHECK_KEY "cleave.payload.check" /* the digest of the text under PAYLOAD_KEY */
enum { PAYLOAD_DEPTH = 256, PAYLOAD_NDIM = MOST_DIMS, MEMORY_ALIGN = 64 };

/* WEIGHTS: the tensors of an artifact (artifact.h), mapped; they are not looked at when it is read. */
typedef enum payload_kind { PAYLOAD_BOUNDARY, PAYLOAD_VALUES, PAYLOAD_WEIGHTS } payload_kind;
extern const char *const payload_kinds[]; /* as they are called in files */

typedef struct payload_tensor {
	const char *label; /* unique in the payload */
	dtype dtype;
	bool boundary; /* one of the split's tensors; otherwise it is in the tree alone */
	bool requires_grad;
	const char *device; /* where it was */
	uint32_t ndim;
	const int64_t *sizes, *strides; /* strides in elements */
	const quantiser *quantiser;     /* of a quantised dtype; NULL for others */

	/* written: both borrowed from the caller */
	const void *data;       /* the first element; NULL when there is none */
	const uint8_t *storage; /* first byte of the memory it is on; tensors with the same one share it. NULL: its own */
	encoding wish;
	bool must;     /* the wish was for this tensor; otherwise it is dropped when it does not apply */
	bool has_lead; /* the storage once was `lead` bytes beyond a multiple of MEMORY_ALIGN, wherever it is now */
	uint8_t lead;

	/* set when it was written or read */
	uint32_t memory;
	size_t offset; /* in bytes, of the first element in the memory */
} payload_tensor;

typedef struct payload_memory {
	const char *entry;
	bool dense; /* the entry is one tensor, row by row; otherwise the entry is the memory itself */
	dtype dtype;
	encoding encoding;
	narrow_scales scales;     /* of int8 */
	quant_layout quant;       /* of q1 … q8 */
	const char *scales_entry; /* where they are in the file, if there are several */
	dtype scales_dtype;
	const void *scales_data;
	size_t scales_n; /* bytes */
	narrow_loss loss;
	size_t nbytes;    /* as its tensors need it */
	uint8_t lead;     /* how far its first byte was beyond a multiple of MEMORY_ALIGN: sums depend on it */
	const void *data; /* the entry's data; read: borrowed from the bytes given, written: from tensors or buffers */
	size_t data_n;
	digest digest;         /* of data and scales, unless the payload is unchecked */
	uint32_t first, users; /* tensors */
	bool mixed;            /* of more than one dtype */
	size_t low, high;      /* written: the part of the storage that is used */
} payload_memory;

typedef struct payload_schema {
	const char *label;
	dtype dtype;
	uint32_t ndim;
	const char *const *dims; /* "64", "B", "4*B": expressions of plan text */
	const char *device;
	bool requires_grad;
} payload_schema;

typedef struct payload_number {
	const char *name;
	int64_t value;
} payload_number;

typedef struct payload {
	payload_kind kind;
	bool unchecked; /* written, or to be written, without digests; weights always are: the artifact has its own */

	/* BOUNDARY */
	const char *split_id, *graph_signature; /* "" if not set */
	bool has_batch_size, supports_prefix_backward;
	int64_t batch_size, weight_version;
	VEC(payload_number) sizes;
	VEC(payload_number) requires_grad; /* 0 or 1, by label */
	VEC(payload_schema) schema;
	VEC(const char *) passthrough;

	VEC(payload_tensor) tensors;
	VEC(payload_memory) memories;

	/* One tree in prefix order, as plans have them, but for: u.v is a number of a tensor, u.s of a string in strs; INT
	   has u.s, decimal or [-]0x…; OBJECT is one of builtins:slice, builtins:range, torch:Size. Empty: none. */
	VEC(tree) values;
	VEC(str) strs;

	size_t room_bytes, room_memory; /* of all memories that take_room counted: bytes of elements, what they become */

	arena arena;    /* all text, shapes and strides */
	table by_label; /* ids are tensors */
	VEC(st_entry) entries;
	VEC(void *) buffers; /* data that is not as it was in memory */
} payload;

clv_status payload_new(payload_kind kind, payload **out);
void payload_free(payload *p);
/* Copies in the payload's arena. */
clv_status payload_text(payload *p, const char *s, size_t n, const char **out); /* no NUL inside */
clv_status payload_str(payload *p, const char *s, size_t n, uint32_t *out);     /* into strs */
clv_status payload_own(payload *p, void *buffer); /* taken, also on failure; NULL: out of memory */
clv_status payload_ints(payload *p, const int64_t *from, uint32_t n, const int64_t **out);

/* Checks and copies all but the data. A dtype that no payload holds is CLV_E_UNSUPPORTED. */
clv_status payload_add_tensor(payload *p, const payload_tensor *t, uint32_t *out);
uint32_t payload_find(const payload *p, const char *label); /* NONE if there is none */

/* memory.c. Finds the memories of what was added, and an entry for each; they borrow from the tensors' data. Once. */
clv_status payload_entries(payload *p);
/* The same, laid out as a file; the image borrows from the payload. */
clv_status payload_image(payload *p, st_image *out);
/* Whether the bytes of a memory that was read are the memory itself: payload_fill would only copy them. */
bool payload_as_is(const payload *p, uint32_t memory);
/* Bools other than 0 and 1 would make kernels disagree. Those of weights are not looked at before they are used. */
clv_status payload_check_bools(const payload_memory *m);
clv_status payload_damaged(const char *entry); /* the error for data that is not what its digest says */
digest memory_digest(const payload_memory *m);
/* The bytes of a memory that was read, memory.nbytes of them, as its tensors see them. Bytes between the elements of a
   tensor that has the memory for itself are left alone. */
clv_status payload_fill(const payload *p, uint32_t memory, void *to);
/* Elements from the first to the last one, both included; CLV_E_OVERFLOW. */
clv_status strided_extent(uint32_t ndim, const int64_t *sizes, const int64_t *strides, size_t *out);
/* So many elements on the same places that walking them would take far longer than reading the memory. */
bool strided_overlaps(uint32_t ndim, const int64_t *sizes, const int64_t *strides, size_t extent);

/* As schemes are called in files; torch has the same names. */
extern const char *const quant_schemes[];

/* The dtype of the entry for elements of d, and how many of them make one; false: no payload holds d. */
bool wire_dtype(dtype d, dtype *wire, uint32_t *parts);
/* Dense tensors and compressed ones together may need this much more memory than there is in the file, and no more: a small
   file must not ask for a large memory. True, and counted, if there is room for this one too. */
bool take_room(payload *p, const payload_memory *m);

/* schema.c. Each tensor has the dtype, shape, device class and grad flag that its schema says (want[i] is for got[i]);
   dims are evaluated with these sizes. CLV_E_INPUT names label, what was expected and what came. */
clv_status schema_check(const payload_schema *want, const payload_tensor *got, uint32_t n, const payload_number *sizes,
                        uint32_t nsizes);

/* What a boundary says of itself. */
typedef struct boundary_facts {
	const char *split_id, *signature;
	bool has_batch_size;
	int64_t batch_size;
	const payload_number *sizes;
	uint32_t nsizes;
	const char *const *labels; /* of its tensors */
	uint32_t nlabels;
} boundary_facts;

typedef struct boundary_range {
	const char *name;
	int64_t low, high; /* inclusive */
	bool is_batch;
} boundary_range;

/* What a suffix expects. */
typedef struct boundary_want {
	const char *split_id;          /* NULL: split and plan are not looked at */
	const char *const *signatures; /* of plans that may have made it; NULL: any */
	uint32_t nsignatures;
	const char *const *labels; /* of all its tensors; NULL: tensors and sizes are not looked at */
	uint32_t nlabels;
	const boundary_range *sizes;
	uint32_t nsizes;
} boundary_want;

/* schema.c. Whether a boundary belongs to a suffix; CLV_E_INPUT says why not. */
clv_status boundary_check(const boundary_want *want, const boundary_facts *got);
/* The sizes that a plan's symbols have by these; -1: none says it. */
clv_status payload_sizes_of(const plan *p, const payload_number *sizes, uint32_t n, int64_t *symbols);

/* payload_write.c, payload_read.c, payload_tree.c */
clv_status payload_header(const payload *p, strbuf *out); /* the text under PAYLOAD_KEY */
/* Reads a hostile file, whose bytes stay in use; caller frees. */
clv_status payload_read(const void *data, size_t n, payload_kind kind, payload **out);
clv_status payload_from(const st_file *file, payload_kind kind, payload **out); /* of a file that was parsed */
#define PAYLOAD_PAD "cleave.pad."         /* entries of this name are there for alignment alone (WEIGHTS) */
#define PAYLOAD_SEGMENT "cleave.segment." /* of this name hold compiled code, which is the artifact's business */
#define PAYLOAD_PACKED "cleave.packed."   /* and of this name packed weights, likewise */

struct json_t;
clv_status tree_to_json(const payload *p, struct json_t **out);
clv_status tree_from_json(payload *p, const struct json_t *from);
clv_status float_parse(const char *s, double *out); /* what float_print wrote */
void float_print(double v, strbuf *b);              /* number_print, but nan:<its bits in hex> */
