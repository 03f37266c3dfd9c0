/* Pooling and resizing as kernels see them: for each axis (depth, height, width) and each output along it, the inputs it reads.
 * Pixels are channels last: the channels of a pixel follow each other. */
#ifndef NATIVE_WINDOW_H
#define NATIVE_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

typedef struct pool_window {
	int64_t first, count; /* inputs first, first + step, … */
	int64_t size;         /* what the axis adds to the divisor of a mean, as a factor */
} pool_window;

typedef struct pool {
	bool mean;       /* else the largest, nan if there is one */
	int64_t divisor; /* of a mean; 0: the product of the sizes of the windows */
	int64_t images, channels, out[3], step[3];
	const pool_window *at[3];
	int64_t in_stride[5], out_stride[5]; /* N, C, D, H, W; that of C is 1 */
} pool;

/* Each output is the sum of `count` inputs of every axis, weighted; along an axis there is room for `taps` of each. Others are
   not read: 0 times nan or infinity is nan. */
typedef struct resize {
	int64_t images, channels, out[3], taps[3];
	const int64_t *at[3], *count[3];
	const float *weight[3];
	int64_t in_stride[5], out_stride[5];
} resize;

#endif
