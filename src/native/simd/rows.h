/* Sums and maxima of one row of floats. Their order follows from the length of the row alone. */
#ifndef NATIVE_SIMD_ROWS_H
#define NATIVE_SIMD_ROWS_H

#include "native/simd/math.h"

enum { ROW_CHUNK = 64 * VF }; /* elements that are summed in floats before the sum goes to a double */

/* The sum of `expression` of x. */
#define ROW_SUM(name, expression)                                                                                      \
	static inline double row_##name(const float *p, int64_t n, float by)                                               \
	{                                                                                                                  \
		double sum = 0;                                                                                                \
		(void)by;                                                                                                      \
		for (int64_t at = 0; at < n; at += ROW_CHUNK) {                                                                \
			int64_t end = n - at < ROW_CHUNK ? n : at + ROW_CHUNK, i = at;                                             \
			vf acc[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};                                                  \
			for (; i + 4 * VF <= end; i += 4 * VF)                                                                     \
				for (int k = 0; k < 4; k++) {                                                                          \
					vf x = vf_load(p + i + k * VF);                                                                    \
					acc[k] += (expression);                                                                            \
				}                                                                                                      \
			for (; i < end; i += VF) {                                                                                 \
				int64_t m = end - i < VF ? end - i : VF;                                                               \
				vf x = vf_load_n(p + i, m);                                                                            \
				acc[0] += vf_first((expression), m);                                                                   \
			}                                                                                                          \
			sum += (double)vf_sum((acc[0] + acc[1]) + (acc[2] + acc[3]));                                              \
		}                                                                                                              \
		return sum;                                                                                                    \
	}
ROW_SUM(sum, x)
ROW_SUM(squares, x *x)
ROW_SUM(magnitudes, vf_abs(x))
ROW_SUM(deviations, (x - by) * (x - by))

/* nan if there is one. n > 0. */
static inline float row_max(const float *p, int64_t n)
{
	vf top = vf_set1(p[0]);
	int64_t i = 0;
	for (; i + VF <= n; i += VF)
		top = vf_max(vf_load(p + i), top);
	if (i < n)
		top = vf_max(vf_load_or(p + i, n - i, p[0]), top);
	return vf_top(top);
}

#endif
