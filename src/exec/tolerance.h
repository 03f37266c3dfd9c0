/* How far numbers may be from those of PyTorch, by dtype. */
#ifndef EXEC_TOLERANCE_H
#define EXEC_TOLERANCE_H

#include <stdint.h>

/* For a tensor whose largest number is `scale`. Negative rtol or atol: that of the dtype. What is no float is equal. */
double tolerance_for(uint8_t dtype, double scale, double rtol, double atol);

#endif
