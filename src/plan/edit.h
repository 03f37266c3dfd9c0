/* Edits a plan: passes remove, insert and replace nodes.
 * An edit holds a copy of it and a range of nodes; a pass says what goes, what comes and what is read instead of what,
 * and edit_apply puts it all in place at once. Until then ids of nodes stay what they were; ids of values stay for good,
 * new ones follow them, so that data kept by value id fits the edited plan too.
 *
 * What leaves the range (the output tree, rebinds, arguments of other nodes) keeps its values: those cannot be read
 * instead of, only be made by another node. So do pinned nodes, which other code refers to: they stay as they are
 * and together, and for the others they are outside. */
#pragma once

#include "base/arena.h"
#include "plan/ops.h"

/* Per value of the plan, as of the last edit_apply. Values that were made since have no facts. */
typedef struct edit_facts {
	uint32_t *uses;  /* arguments of nodes of the range that it is */
	node_id *user;   /* the last of these nodes; NONE */
	bool *kept;      /* needed after or outside the range */
	bool *written;   /* a node of the range writes its memory */
	uint32_t *views; /* of a value that owns its memory: how many others are on it */
	bool *shown;     /* of a value that owns its memory: one of those on it is kept, is no result of the range, or is
	                    given to an operator that may keep it */
	uint32_t n;      /* values that have facts */
} edit_facts;

typedef struct edit {
	plan *p;
	node_id first, end;
	edit_facts facts;
	uint32_t nodes;        /* of the plan, without those that were added */
	VEC(node_id) places;   /* per added node: the node that it comes before */
	VEC(bool) gone;        /* per node */
	VEC(value_id) instead; /* per value: what is read instead; itself */
	VEC(uint32_t) pins;    /* per node: the pinned span that it is of; NONE */
	bool changed;          /* since the last edit_apply */
	arena scratch;         /* see edit_array */
} edit;

clv_status edit_new(const plan *p, node_id first, node_id end, edit *out); /* caller calls edit_free, also on failure */
void edit_free(edit *e);
/* Right after edit_new: spans of the range, ascending and apart, whose nodes no pass may touch. What they read is kept. */
clv_status edit_pin(edit *e, const node_span *spans, uint32_t n);
bool edit_pinned(const edit *e, node_id n);
void edit_spans(const edit *e, node_span *out); /* where those that were pinned are now; as many */

/* Arrays that a pass needs until it ends: n zeros, n times NONE; NULL: out of memory. edit_release frees them all. */
void *edit_array(edit *e, size_t n, size_t element);
uint32_t *edit_ids(edit *e, size_t n);
void edit_release(edit *e);

clv_status edit_remove(edit *e, node_id n);
/* A new node before node `before`, or before the pinned ones around it; after all others that were put there. Results that other nodes had may be its own
   once these nodes are removed. */
clv_status edit_insert(edit *e, node_id before, const node_spec *s, node_id *out);
/* Nodes of the range, also those that were added, read `other` instead of v, which is not kept. */
clv_status edit_read_instead(edit *e, value_id v, value_id other);
/* v becomes the first on the memory that the value had which it is a view of: that one goes. Nodes that wrote it write v. */
void edit_take_memory(edit *e, value_id v);
/* The same at once for all values below n that have an heir; the others have NONE. */
void edit_take_memories(edit *e, const value_id *heirs, uint32_t n);
/* Values below n that have a new owner (the others have NONE) are on its memory, with all that was on theirs. */
void edit_give_memories(edit *e, const value_id *owners, uint32_t n);
/* Puts changes in place: order, uses, definitions. Then the plan must verify, and facts are new. */
clv_status edit_apply(edit *e);

/* Node i becomes node order[i] now, when nothing waits for edit_apply. Facts keep the old ids of nodes. */
clv_status edit_reorder(edit *e, const node_id *order);

/* The value that argument i is; NONE: it is something else, or there is none. */
value_id edit_value(const edit *e, node_id n, uint32_t i);
const arg *edit_arg(const edit *e, node_id n, uint32_t i); /* an ARG_NONE where there is none */
bool edit_is(const edit *e, node_id n, uint16_t op); /* false for pinned nodes: they are not what a pass looks for */
/* One result, a tensor: which; else NONE, and for pinned nodes. */
value_id edit_result(const edit *e, node_id n);
/* A new tensor like another: its type and shape, on memory of its own. */
clv_status edit_like(edit *e, value_id v, value_id *out);
