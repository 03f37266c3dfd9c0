/* Copies by index: each dimension of the result has, for every index, that of the input, or none where the result is a given
 * number. Nearest-neighbour resizing and all kinds of padding are this. */
#ifndef NATIVE_PLACE_H
#define NATIVE_PLACE_H

#include "native/native.h"

/* map[d]: the input's index for each index of dimension d of the result, -1: none; NULL: the same index. They live as long as
   the shaped program. The result has the order of strides of the input. */
clv_status low_place(lowering *l, node_id n, slot in, const int64_t *const *map, double fill);

#endif
