/* The state of a lowering: shared by lower.c, which walks the nodes, and args.c, which reads arguments. */
#ifndef NATIVE_LOWERING_H
#define NATIVE_LOWERING_H

#include "native/program.h"

/* An argument that the operator sees as f32, and where it is. */
typedef struct widened {
	value_id v;
	slot narrow;
} widened;

/* An argument that is constant, as a node was given it: a node that has a value twice has two. */
typedef struct constant_use {
	value_id v;
	bool packed; /* no step reads its elements, but for those that ask with low_reads */
} constant_use;

struct lowering {
	native_program *g;
	const plan *p;
	shaped *s;
	const native_kernels *k;     /* whose layouts steps are made for */
	bool main, dry;              /* the part that calls run; no run will follow */
	const shaped *once;          /* made before, and its tensors; NULL: none */
	node_id first, end;          /* that are lowered */
	uint32_t at;                 /* the node that is being lowered: blocks are born here */
	bool *done;                  /* per node: it runs with an earlier one */
	node_id *until;              /* per node: the last node that its epilogue has; itself */
	node_span group;             /* whose first node is being lowered; first NONE: none */
	uint32_t next_group;         /* of the plan */
	struct concat_place *places; /* per value: the concatenation that it is made into; NULL: none is looked for */
	VEC(constant_use) uses;      /* of all nodes so far */
	uint32_t node_uses;          /* the first of the node */
	uint32_t *output_of;         /* per value: the first output that is it; NONE */
	uint64_t taken;              /* bytes of the arena */
	VEC(slot) copies;            /* pairs, from and to: steps at the end of the node, the last pair first */
	bool widens;                 /* the operator sees halves as f32: widen.h */
	VEC(widened) widened;
};

clv_status low_slot(lowering *l, const slot_info *info, slot *out);
clv_status low_block(lowering *l, uint64_t bytes, uint32_t *out);
value_id arg_value(const arg *a); /* NONE: it is none */
value_id node_result(const plan *p, node_id n, uint32_t i);
clv_status low_form_of(const lowering *l, value_id v, nt *out);                        /* of the plan, row-major */
clv_status low_new(lowering *l, const nt *form, value_id owner, slot *out);            /* on a block of its own */
clv_status low_slice(lowering *l, slot of, int64_t offset, const nt *form, slot *out); /* on the memory of another */
void low_put(lowering *l, value_id v, slot s);                                         /* the value is in that slot */

clv_status low_node(lowering *l, node_id n);

/* op_group.c. Nodes that this takes care of are done. */
clv_status low_group(lowering *l, node_span s);
/* What the pass that forms groups is told. */
group_role native_group_role(const plan *p, node_id n);

/* concat.c. Values that can be made where a concatenation wants them; the place of one of them, *out stays NONE if it has none. */
typedef struct concat_place {
	value_id whole; /* NONE: none */
	uint32_t dim;
	int64_t at; /* along it */
} concat_place;
clv_status concat_find(lowering *l);
clv_status concat_place_of(lowering *l, value_id v, const nt *form, bool fixed, slot *out);

#endif
