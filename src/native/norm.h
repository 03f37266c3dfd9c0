/* Norms as steps of a node: what operators that have one share. */
#ifndef NATIVE_NORM_H
#define NATIVE_NORM_H

#include "native/native.h"

/* Layer norm of the last dimension: of row-major f32 to row-major f32, which may be the same. */
clv_status low_layer_norm(lowering *l, slot x, slot weight, slot bias, double eps, slot out);

#endif
