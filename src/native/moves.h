/* Copies of elements as steps, and geometry of views: what operators that move data share. */
#ifndef NATIVE_MOVES_H
#define NATIVE_MOVES_H

#include "native/native.h"

/* The elements of one tensor to the places of another of the same sizes and type, from their first elements on. */
move move_between(const nt *from, const nt *to);
/* One more dimension of a move; strides in elements. */
void move_add(move *m, int64_t size, int64_t from, int64_t to);
/* A step that does it, between the memories of two slots; none if nothing is to be moved. */
clv_status low_move(lowering *l, slot from, slot to, const move *m);
/* The type of a result comes from the plan, which a stranger may have written: it must be that of what is put there. */
clv_status low_same_type(const lowering *l, slot a, slot b);
void run_move(frame *f, const move *m /* ready */, const char *from, char *to);

/* Steps that write one element (its bytes) all over a part of the memory of a slot, and zeros all over a tensor. */
clv_status low_fill(lowering *l, slot to, const nt *part, int64_t offset, const void *element);
clv_status low_zero(lowering *l, slot s);
/* A number among the arguments as an element of this type: up to 8 bytes. */
clv_status low_element(lowering *l, node_id n, uint32_t i, uint8_t type, void *out);

/* For operators that move elements of whatever type the engine knows. */
const char *takes_any(const plan *p, node_id n);

/* op_view.c: what arguments from i on say of a tensor. */
clv_status slice_of(lowering *l, node_id n, uint32_t i, const nt *t, uint32_t *at, int64_t *first, int64_t *length,
                    int64_t *step);
clv_status select_of(lowering *l, node_id n, uint32_t i, const nt *t, uint32_t *at, int64_t *index);
clv_status diagonal_of(const nt *from, int64_t shift, uint32_t a, uint32_t b, int64_t *offset, nt *out);
clv_status at_least(nt *t, uint32_t dims); /* as torch.atleast_1d, _2d, _3d */

#endif
