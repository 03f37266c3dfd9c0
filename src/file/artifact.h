/* Artifacts: plans and the tensors they read as one file, `.clv` (docs/artifact.md).
 *
 * The file is a safetensors file. Its metadata has the plans' text, what goes with each, and a check of the header itself;
 * its tensors are the weights, by state_dict name, and the plans' constants. It is mapped: weights are read from disk when
 * they are used. An artifact is made by adding plans and tensors and then saved, or opened and looked at; an open one does
 * not change. */
#ifndef FILE_ARTIFACT_H
#define FILE_ARTIFACT_H

#include <stdatomic.h>

#include "base/digest.h"
#include "file/payload.h"

/* Files without compiled segments are written as PLAIN, which readers of before know. */
enum { ARTIFACT_PLAIN_MAJOR = 1, ARTIFACT_MAJOR = 2, ARTIFACT_MINOR = 0 };

typedef struct artifact_const {
	value_id value;
	uint32_t tensor; /* in the payload */
} artifact_const;

typedef struct artifact_note {
	const char *key, *text;
} artifact_note;

/* Bytes that are a member of a compiled segment: "model.so". */
typedef struct artifact_member {
	const char *name;
	const void *data; /* written: borrowed from the caller; read: in the file */
	size_t n;
} artifact_member;

/* Sizes of one symbol that a segment was compiled for. */
typedef struct artifact_sizes {
	int64_t low, high;
} artifact_sizes;

typedef VEC(uint32_t) order_list;
typedef VEC(artifact_note) note_list;

#define SEAL_TEXT 65 /* hexadecimal digits and a NUL */

/* Nodes first … end-1 of a plan as compiled code. */
typedef struct artifact_segment {
	node_id first, end;
	const char *backend;            /* "inductor" */
	VEC(artifact_sizes) sizes;      /* per symbol of the plan */
	order_list in_order, out_order; /* per input and output of its view (view_segment), one after another: its
	                                      dimensions from the slowest to the fastest in memory */
	note_list needs;                /* what must be here for it to run */
	note_list facts;                /* numbers for the report: "error" "1.2e-7", "compile_s", "tape_ms", "code_ms" */
	VEC(artifact_member) members;
	const char *seal; /* by which its compiler recognizes it (segment/seal.c); NULL: it has none */
} artifact_segment;

typedef VEC(artifact_segment) segment_list;

/* Why a node runs on the tape though others were compiled. */
typedef struct artifact_fallback {
	node_id node;
	const char *reason;
} artifact_fallback;

/* One plan and the nodes of it that are this file's part. */
typedef struct artifact_plan {
	plan *p;                    /* owned */
	const char *signature;      /* names it in boundaries */
	node_id first, end;         /* nodes first … end-1 are here */
	node_id cut;                /* first node of the suffix where the model is cut; NONE: it is not */
	uint32_t nstores;           /* tensors at the end of the outputs that Python kept somewhere; not used here */
	VEC(artifact_const) consts; /* by value, ascending */
	VEC(payload_number) fixed;  /* sizes that may change elsewhere and not here, by symbol: a plan for B=1 alone */
	VEC(int64_t) points; /* sizes it was recorded at: one number per symbol that is no data symbol, point after point */
	segment_list segments;            /* compiled, ascending and apart */
	VEC(artifact_fallback) fallbacks; /* by node; empty: nothing was asked to be compiled */
	segment_list dropped;             /* were compiled, and are slower than the tape: nodes, back end and facts alone */
} artifact_plan;

typedef struct clv_artifact artifact;

struct clv_artifact {
	const char *part;     /* "all", "prefix", "suffix", "stage:2" */
	const char *split_id; /* "": not cut */
	const char *boundary; /* as it was asked for; "" */
	const char *batch;    /* the symbol that is the batch; "" */
	int64_t weight_version;
	VEC(payload_number) weight_digests; /* of every tensor of the model by name, also of those that only another part
	                                       reads; the version is their sum. Empty: not known */
	bool weights;                       /* parameters and buffers are here; constants are always */
	VEC(artifact_plan) plans;
	VEC(artifact_note) notes; /* where it comes from: "torch", "model", what the user adds */
	payload *tensors;
	arena arena;

	_Atomic uint32_t users; /* the caller, runtimes, tensors on the mapped memory, artifacts that borrow from it */
	artifact *base;         /* whose memory it borrows; NULL: none */

	bool ready; /* of one that was made: its tensors have memories */

	/* of one that was opened */
	const void *data; /* all of it: mapped, or the caller's */
	size_t data_n;
	bool changes;              /* it is mapped, and the file may be written or truncated meanwhile */
	VEC(const char *) allowed; /* operators beyond the list */
	mapping map;
	st_file *file;
	VEC(digest) digests; /* per entry of the file */
	const char *signer;  /* fingerprint of the key that the file names; NULL: it is not signed */
	bool trusted;        /* that is a trusted key, and its signature was verified */
};

clv_status artifact_new(const char *part, artifact **out);
artifact *artifact_ref(const artifact *a); /* one more user */
void artifact_free(artifact *a);           /* one user less; the last releases it. NULL is allowed */
clv_status artifact_text(artifact *a, const char *s, const char **out); /* a copy that lives with it */
clv_status artifact_note_add(artifact *a, const char *key, const char *text);
/* One more tensor of the model that weight_version is of. */
clv_status artifact_add_weight(artifact *a, const char *name, int64_t one);
int64_t weight_digest(const char *name, const void *data,
                      size_t n); /* of a tensor as rows of elements; never negative */
int64_t weight_sum(int64_t version, int64_t one);
int64_t weight_difference(int64_t version, int64_t one);
/* Takes the plan, also on failure; the new one is the last. */
clv_status artifact_add_plan(artifact *a, plan *p, const char *signature);
uint32_t artifact_point_size(const plan *p); /* symbols that are no data symbols */
/* The tensor of an external value of plan `i`; NONE: it is not in this file. */
uint32_t artifact_tensor_of(const artifact *a, uint32_t i, value_id v);

/* What every artifact keeps to: each plan's range is its part, and what its nodes read from outside is here and fits. */
clv_status artifact_check(const artifact *a);

/* Checks one that was made and finds the memories of its tensors, so that a runtime can use it as it is. No tensor is added
   after; segments and fallbacks may be. Writing does it by itself; one for which it failed is only good for being freed. */
clv_status artifact_ready(artifact *a);

/* artifact_segments.c. Texts are copied, the data of members is borrowed. In order of the nodes; artifact_check has the
   rules. A reason that is too long is cut. */
clv_status artifact_add_segment(artifact *a, uint32_t plan_number, const artifact_segment *from);
clv_status artifact_add_dropped(artifact *a, uint32_t plan_number, const artifact_segment *from);
clv_status artifact_add_fallback(artifact *a, uint32_t plan_number, node_id n, const char *reason);

/* artifact_write.c. Of one that was made. To a path: whole or not at all. */
clv_status artifact_save(artifact *a, const char *path);
clv_status artifact_write(artifact *a, const char *path, st_pending *out); /* to a file next to it, as st_write */
clv_status artifact_append(artifact *a, strbuf *out);                      /* the bytes of the file */

/* artifact_read.c. The bytes are hostile and stay in use. */
clv_status artifact_parse(const void *data, size_t n, const clv_open_options *o, artifact **out);
clv_status artifact_open(const char *path, const clv_open_options *o, artifact **out);
/* Every entry against its digest; CLV_E_PARSE names the first that differs. */
clv_status artifact_check_data(const artifact *a);
clv_status artifact_check_entry(const artifact *a, uint32_t i);
/* The file is signed with a key that the opener trusts. One that was made of others is not signed. */
static inline bool artifact_signature_verified(const artifact *a)
{
	return a->trusted;
}
bool artifact_looks_like(const void *data, size_t n); /* the beginning of a safetensors file */

/* artifact_sign.c. Checks a file and writes it again with a signature: whole or not at all. */
clv_status artifact_sign(const char *path, const char *key, const clv_open_options *o, const char *output);

/* artifact_part.c. What is made has the tensors it needs, borrowed from the other artifact, which it keeps. That one was
   opened, or made; then the data of its tensors has to stay where it is.

   A part of an artifact: some nodes of each plan, and the tensors they read. Segments and fallbacks are left out. */
typedef struct artifact_range {
	node_id first, end, cut;
} artifact_range;
clv_status artifact_take(const artifact *from, const char *part, const artifact_range *ranges, artifact **out);
/* Nodes first … end-1 of one plan as a whole artifact with one plan (plan_extract), which says nothing about the rest: equal
   segments of different models are equal. No sizes are proven for it. */
clv_status artifact_take_nodes(const artifact *from, uint32_t plan_number, node_id first, node_id end, artifact **out);
/* A segment the same way, with its code: one segment covers the whole plan. */
clv_status artifact_take_segment(const artifact *from, uint32_t plan_number, uint32_t segment, artifact **out);
/* The same whole model with the nodes of its plans in another order: plans[i] is plan i reordered (plan_reorder; taken, also
   on failure), or NULL: as it is, with its segments and fallbacks. Values are numbered anew, as in the text: views of
   segments are to be made of the plans in *out. Cuts are left out. */
clv_status artifact_reordered(const artifact *from, plan *const *plans, artifact **out);

/* src/artifact.c, of one that is being made. Cuts every plan where o->boundary says; then leaves of each only its part. */
clv_status artifact_cut(artifact *a, const clv_split_options *o);
clv_status artifact_restrict(artifact *a, const char *part);
/* What one half changes and the other has too, in whichever plan, cannot be in two files, or two runtimes: the other would
   not see it. cuts: per plan; NULL: as the plans are cut, every one. */
clv_status artifact_check_apart(const artifact *a, const node_id *cuts);

#endif
