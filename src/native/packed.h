/* Packed weights of a program, and those of a file (packed.c). */
#ifndef NATIVE_PACKED_H
#define NATIVE_PACKED_H

#include "file/artifact_packed.h"
#include "native/program.h"

/* What a packing made of a constant, or will. */
typedef struct packed {
	struct packed *next;
	nt of; /* the constant: a view of value `from`, so many bytes behind its first element */
	value_id from;
	int64_t offset;
	packing k; /* kind and spec are owned */
	size_t n;
	const void *data;  /* aligned; in the file, or in memory */
	struct room *room; /* NULL: it is in the file, or shared */
	made_piece *made;  /* shared by all that is made of the file; NULL: it is not */
	bool named;        /* it has a key */
	digest key;
} packed;

typedef VEC(packed *) packed_list;

void packed_free(packed *x);
/* A value that was made once but not computed: from the file if it is there. */
clv_status packed_value(lowering *l, value_id v);
/* An argument is given to a node: a slot of its own, if it is constant, that tells whether just this one is packed. */
clv_status packed_use(lowering *l, slot *s);
/* No step may be left that reads elements which are not there. */
clv_status packed_check(const lowering *l, const slot_info *x);
/* A node was lowered, or an output was: what it reads as it is. Where that is not there, the program has to compute what is
   made once (once_wanted), and to be lowered again. */
clv_status packed_node(lowering *l, node_id n);
clv_status packed_output(lowering *l, value_id v);

/* All that programs were asked to pack becomes packed weights of an artifact. */
clv_status packed_collect(const native_program *g, packed_list *out);
clv_status packed_write(packed_list *all, team *t, const char *isa, artifact *into);

#endif
