/* Floating-point data in fewer bits: f16, bf16, or int8 with one scale for the whole array. */
#ifndef FILE_NARROW_H
#define FILE_NARROW_H

#include "plan/plan.h"

typedef enum encoding {
	ENC_PLAIN, /* as it is                                                                                    */
	ENC_FP16,  /* nearest, ties to even; beyond the range: infinity                                           */
	ENC_BF16,  /* likewise                                                                                    */
	ENC_INT8,  /* nearest of k*scale, k from -127 to 127, scale = largest magnitude / 127; finite values only */
	ENC_COUNT
} encoding;

extern const char *const encoding_names[ENC_COUNT]; /* plain fp16 bf16 int8 */
bool encoding_parse(const char *s, encoding *out);

dtype encoding_dtype(encoding e, dtype from);  /* of the elements as written */
bool encoding_applies(encoding e, dtype from); /* `from` is floating point and wider than what is written */

/* What was lost: the largest |before - after|, and that by the largest finite |before| (0 when nothing was). */
typedef struct narrow_loss {
	double absolute, relative;
} narrow_loss;

clv_status narrow(encoding e, dtype from, const void *src, size_t count, void *dst, double *scale, narrow_loss *loss);
void widen(encoding e, dtype to, const void *src, size_t count, double scale, void *dst);

/* Floating-point numbers and integers as doubles; integers beyond 2^53 are rounded. The data need not be aligned. */
bool elements_loadable(dtype d);
void elements_load(dtype d, const void *at, size_t n, double *out);

#endif
