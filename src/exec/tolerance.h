/* Comparing a run with the tape: how far its numbers may be off, by dtype, and helpers for lists of outputs. */
#pragma once

#include "bridge/bridge.h"

/* For a tensor whose largest number is `scale`. Negative rtol or atol: that of the dtype, and of f32 on CUDA where TF32 is
   allowed. What is no float is equal. */
double tolerance_for(const br_meta *m, double scale, double rtol, double atol);

clv_status wait_for_all(br_tensor *const *tensors, uint32_t n); /* until the devices that they are on are done */
void release_all(br_tensor **tensors, uint32_t n);              /* and leaves none there */
void keep_shortest(double ms, double *shortest);                /* negative: there is none yet */
/* Dimensions from the slowest to the fastest in memory; row by row, and false, where elements do not lie side by side. */
bool memory_order_of(const br_meta *m, uint32_t *order);
