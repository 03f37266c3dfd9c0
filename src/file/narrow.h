/* Data in fewer bytes: f16, bf16, or int8 with scales, which lose something and say how much; and zstd, which loses
 * nothing. */
#ifndef FILE_NARROW_H
#define FILE_NARROW_H

#include "plan/plan.h"

typedef enum encoding {
	ENC_PLAIN, /* as it is                                                                   */
	ENC_FP16,  /* nearest, ties to even; beyond the range: infinity                          */
	ENC_BF16,  /* likewise                                                                   */
	ENC_INT8,  /* nearest of k*scale, k from -127 to 127; finite values only                 */
	ENC_ZSTD,  /* all bytes of the same place in their elements side by side, then zstd      */
	ENC_COUNT
} encoding;

#define ENCODINGS "fp16, bf16, int8, zstd"          /* those that one can wish for, as errors name them */
extern const char *const encoding_names[ENC_COUNT]; /* plain fp16 bf16 int8 zstd */
bool encoding_parse(const char *s, encoding *out);

dtype encoding_dtype(encoding e, dtype from); /* of the elements as written; of zstd they are bytes */
/* int8 and half floats: `from` is floating point and wider than what is written. zstd: always. */
bool encoding_applies(encoding e, dtype from);

/* ---- with a loss ------------------------------------------------------------------------------------------------ */

/* Scales of int8: that of element i is at[i / run % n]. */
typedef struct narrow_scales {
	size_t n, run;
	double one;       /* n 1: the scale of all */
	const double *at; /* n > 1 */
	bool of_floats;   /* each of them is a float */
} narrow_scales;

/* What was lost: 0 where nothing was, infinite where a number became infinite. */
typedef struct narrow_loss {
	double absolute; /* the largest |before - after|                                                               */
	double relative; /* the mean of |before - after| / |before| over elements other than 0: small ones count as much
	                    as large ones, so that an outlier hides nothing                                            */
	double l2;       /* sqrt(sum of (before - after)^2 / sum of before^2)                                          */
} narrow_loss;

/* Scales for int8, chosen by what they cost on this data: one, or one for each channel (the second or the last dimension of
   a tensor of these sizes; ndim 0: not known), or one for each 64 or 16 elements. The largest numbers are cut off where that
   makes the sum of squares smaller. *at: what the scales are in; caller frees. CLV_E_INVALID: a number that is not finite. */
clv_status int8_scales(dtype from, const void *src, size_t count, uint32_t ndim, const int64_t *sizes,
                       narrow_scales *out, double **at);
void narrow(encoding e, dtype from, const void *src, size_t count, const narrow_scales *s, void *dst,
            narrow_loss *loss);
void widen(encoding e, dtype to, const void *src, size_t count, const narrow_scales *s, void *dst);

/* ---- without (shuffle.c) ------------------------------------------------------------------------------------------ */

/* `count` elements of `item` bytes each; *n is 0 where it would not be smaller. Caller frees *out. A build without zstd
   gives CLV_E_UNSUPPORTED. */
clv_status shuffle_pack(const void *src, size_t count, size_t item, void **out, size_t *n);
/* These bytes say that they are one frame of `want` bytes. */
clv_status shuffle_check(const void *data, size_t n, size_t want);
clv_status shuffle_unpack(const void *data, size_t n, size_t count, size_t item, void *dst);

/* ---- elements ------------------------------------------------------------------------------------------------------ */

/* Floating-point numbers and integers as doubles; integers beyond 2^53 are rounded. The data need not be aligned. */
bool elements_loadable(dtype d);
void elements_load(dtype d, const void *at, size_t n, double *out);
void elements_store(dtype d, void *at, size_t n, const double *from); /* f64, f32, f16, bf16, i8 */

#endif
