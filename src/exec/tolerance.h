/* How far numbers may be from those of PyTorch, by dtype. */
#ifndef EXEC_TOLERANCE_H
#define EXEC_TOLERANCE_H

#include "bridge/bridge.h"

/* For a tensor whose largest number is `scale`. Negative rtol or atol: that of the dtype, and of f32 on CUDA where TF32 is
   allowed. What is no float is equal. */
double tolerance_for(const br_meta *m, double scale, double rtol, double atol);

#endif
