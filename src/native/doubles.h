/* Plain loops over f64, for layers that models rarely have in it: convolutions, pooling, norms, attention. Kernels of vectors are
 * for f32 alone. Sums have the order of one row, as everywhere. */
#ifndef NATIVE_DOUBLES_H
#define NATIVE_DOUBLES_H

#include "native/attention.h"
#include "native/conv.h"
#include "native/kernels.h"

/* Weights as they are, with their strides; transposed: its channels of the input come first. bias NULL: none. */
typedef struct doubles_conv {
	const conv *c;
	const double *in, *weight, *bias;
	double *out;
	const int64_t *weight_stride;
	bool transposed;
} doubles_conv;
void doubles_convolve(team *t, const doubles_conv *x);

void doubles_pool(team *t, const pool *p, const double *in, double *out);

/* Of a row of n; the same as row_statistics, normalize and scale_shift of kernels. */
void doubles_statistics(const double *x, int64_t n, bool rms, double eps, double *mean, double *scale);
void doubles_normalize(const double *x, double *y, int64_t n, double mean, double scale, const double *weight,
                       const double *bias);

/* a: as attention_plan left it, but for the scratch memory; operands are doubles, and a mask of floats is. */
size_t doubles_attention_scratch(const attention *a, int threads); /* bytes; 0: too many */
void doubles_attend(const attention *a, double scale, const attention_run *r);

#endif
