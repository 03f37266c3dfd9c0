/* Artifacts: plans and the tensors they read as one file, `.clv` (docs/artifact.md).
 *
 * The file is a safetensors file. Its metadata has the plans' text, what goes with each, and a check of the header itself;
 * its tensors are the weights, by state_dict name, and the plans' constants. It is mapped: weights are read from disk when
 * they are used. An artifact is made by adding plans and tensors and then saved, or opened and looked at; an open one does
 * not change. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "base/digest.h"
#include "file/payload.h"
#include "file/seal.h"

/* Files with neither compiled segments nor packed weights are written as PLAIN, those with segments alone as COMPILED, and
   those that do not train as PACKED, which readers of before know. Minor 1 has any_size, minor 2 what a forward asks of its inputs. */
enum {
	ARTIFACT_PLAIN_MAJOR = 1,
	ARTIFACT_COMPILED_MAJOR = 2,
	ARTIFACT_PACKED_MAJOR = 3,
	ARTIFACT_MAJOR = 4,
	ARTIFACT_MINOR = 2
};

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
	/* Facts about inputs that leave no operator, one per input; empty: the forward does not ask. */
	VEC(uint32_t) same;               /* the first input that was the same tensor (`q is k`) */
	VEC(int8_t) grads;                /* whether it required grad; -1: nobody asks */
	segment_list segments;            /* compiled, ascending and apart */
	VEC(artifact_fallback) fallbacks; /* by node; empty: nothing was asked to be compiled */
	segment_list dropped;             /* were compiled, and are slower than the tape: nodes, back end and facts alone */
} artifact_plan;

/* What the native engine made of some tensor: bytes at … at+n-1 of those of its instruction set. */
typedef enum piece_state { PIECE_UNCHECKED, PIECE_GOOD, PIECE_DAMAGED } piece_state;
typedef struct packed_piece {
	digest key, check; /* what it is; of its bytes */
	size_t at, n;
	uint8_t state; /* piece_state; atomic */
} packed_piece;

/* Weights packed for one instruction set (artifact_packed.h). */
typedef struct artifact_packed {
	const char *isa; /* "avx2" */
	const uint8_t *data;
	size_t n;
	VEC(packed_piece) pieces; /* by key */
} artifact_packed;

/* Who vouches for an artifact, or why nobody does. An artifact made of another inherits it. */
typedef enum vouching {
	VOUCHED_MADE,   /* it was made in this process, of a live model */
	VOUCHED_SAVED,  /* this user saved it: it has their seal */
	VOUCHED_SIGNED, /* a trusted key signed it */
	UNVOUCHED_NO_SEAL,
	UNVOUCHED_NO_KEY, /* to check its seal with */
	UNVOUCHED_OTHER,  /* user's seal */
	UNVOUCHED_CHANGED /* since this user saved it */
} vouching;

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
	bool any_size;                      /* its writer vouches for all sizes of its symbols, recorded or not */
	VEC(artifact_plan) plans;
	VEC(artifact_note) notes; /* where it comes from: "torch", "model", what the user adds */
	payload *tensors;
	VEC(artifact_packed) packed; /* one per instruction set */
	arena arena;

	_Atomic uint32_t users; /* the caller, runtimes, tensors on the mapped memory, artifacts that borrow from it */
	artifact *base;         /* whose memory it borrows; NULL: none */

	vouching vouching;

	/* of one that trains (training.h): what is said of it as JSON, and its loss as the bytes of an artifact. NULL: it does not */
	const char *training;
	const void *loss;
	size_t loss_n;

	/* of one that was made */
	bool ready;                  /* its tensors have memories */
	void (*release)(void *lent); /* NULL: nothing is lent */
	void *lent;                  /* what its tensors lie on, until the last user is gone */

	/* of one that was opened */
	const void *data; /* all of it: mapped, or the caller's */
	size_t data_n;
	_Atomic bool changes;      /* it is mapped, and the file may be written or truncated meanwhile */
	VEC(const char *) allowed; /* operators beyond the list */
	mapping map;
	st_file *file;
	VEC(digest) digests;     /* per entry of the file */
	const char *signer;      /* fingerprint of the key that the file names; NULL: it is not signed */
	struct made_piece *made; /* what runtimes packed of its tensors and use now (artifact_packed.h) */
	struct room *room;       /* where the next one goes */
	pthread_mutex_t made_lock;
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
clv_status artifact_snapshot(artifact *a, artifact **out); /* what opening the file would give, in memory of its own */

/* artifact_read.c. The bytes are hostile and stay in use. */
clv_status artifact_parse(const void *data, size_t n, const clv_open_options *o, artifact **out);
/* The same of bytes that are in a file: they are none that train, so that files are not in files in files. */
clv_status artifact_parse_inner(const void *data, size_t n, const clv_open_options *o, artifact **out);
clv_status artifact_open(const char *path, const clv_open_options *o, artifact **out);
/* Every entry against its digest; CLV_E_PARSE names the first that differs. */
clv_status artifact_check_data(const artifact *a);
clv_status artifact_check_entry(const artifact *a, uint32_t i);
/* The file is signed with a key that the opener trusts. One that was made of others is not signed. */
static inline bool artifact_signature_verified(const artifact *a)
{
	return a->file && a->vouching == VOUCHED_SIGNED;
}
bool artifact_looks_like(const void *data, size_t n); /* the beginning of a safetensors file */

/* The data of a mapped file is from now on a copy, in the same place. CLV_E_IO: the file became shorter. */
clv_status artifact_settle(artifact *a);
/* The open file whose memory it is on: itself, or the one that it was made from; then its plans are hostile. NULL: there is none. */
static inline const artifact *artifact_origin(const artifact *a)
{
	for (; a && !a->file; a = a->base)
		;
	return a;
}

/* artifact_seal.c. Puts this user's seal into the place for it, where there can be one. */
void artifact_put_seal(char *head, size_t n);
vouching artifact_check_seal(const char *head, size_t n);
const char *artifact_unvouched(const artifact *a); /* why nobody vouches for it; NULL: somebody does */
/* Puts that before the error that has just been made, and what to do behind it. */
clv_status fail_unvouched(const artifact *a, clv_status st);

/* artifact_sign.c. Checks a file and writes it again with a signature: whole or not at all. */
clv_status artifact_sign(const char *path, const char *key, const clv_open_options *o, const char *output);

/* artifact_part.c. What is made has the tensors it needs, borrowed from the other artifact, which it keeps. That one was
   opened, or made; then the data of its tensors has to stay where it is.

   A part of an artifact: some nodes of each plan, and the tensors they read. Segments and fallbacks are left out. */
typedef struct artifact_range {
	node_id first, end, cut;
} artifact_range;
clv_status artifact_take(const artifact *from, const char *part, const artifact_range *ranges, artifact **out);
/* All of it, with its segments; without its packed weights. */
clv_status artifact_copy(const artifact *from, artifact **out);
/* Nodes first … end-1 of one plan as a whole artifact with one plan (plan_extract), which says nothing about the rest: equal
   segments of different models are equal. No sizes are proven for it. */
clv_status artifact_take_nodes(const artifact *from, uint32_t plan_number, node_id first, node_id end, artifact **out);
/* A segment the same way, with its code: one segment covers the whole plan. */
clv_status artifact_take_segment(const artifact *from, uint32_t plan_number, uint32_t segment, artifact **out);
/* The same whole model with the nodes of its plans in another order: plans[i] is plan i reordered (plan_reorder; taken, also
   on failure), or NULL: as it is, with its segments and fallbacks. Values are numbered anew, as in the text: views of
   segments are to be made of the plans in *out. Cuts are left out. */
clv_status artifact_reordered(const artifact *from, plan *const *plans, artifact **out);

/* src/api/artifact.c, of one that is being made. Cuts every plan where o->boundary says; then leaves of each only its part. */
clv_status artifact_cut(artifact *a, const clv_split_options *o);
clv_status artifact_restrict(artifact *a, const char *part);
/* A half of a whole model, on its tensors, as clv_artifact_split() would write it. */
clv_status artifact_half(const artifact *a, const clv_split_options *o, bool prefix, artifact **out);
/* What one half changes and the other has too, in whichever plan, cannot be in two files, or two runtimes: the other would
   not see it. cuts: per plan; NULL: as the plans are cut, every one. */
clv_status artifact_check_apart(const artifact *a, const node_id *cuts);
