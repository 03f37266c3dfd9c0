/* Nodes with halves (f16, bf16) whose operators see f32 instead. lower.c asks where a result or an argument really is. */
#ifndef NATIVE_WIDEN_H
#define NATIVE_WIDEN_H

#include "native/lowering.h"

/* Before and after the operator lowers the node. */
clv_status widen_start(lowering *l, node_id n, const native_op *o);
void widen_end(lowering *l);

bool widen_result(const lowering *l, value_id v);   /* the operator makes it as f32 */
slot widen_original(const lowering *l, value_id v); /* where an argument is that the operator may see as f32 */

#endif
