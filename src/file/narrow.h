/* Data in fewer bytes: f16, bf16, int8 with scales, or 1 to 8 bits per element, which lose something and say how much; and
 * zstd, which loses nothing. */
#pragma once

#include "plan/plan.h"

typedef enum encoding {
	ENC_PLAIN, /* as it is                                                                   */
	ENC_FP16,  /* nearest, ties to even; beyond the range: infinity                          */
	ENC_BF16,  /* likewise                                                                   */
	ENC_INT8,  /* nearest of k*scale, k from -127 to 127; finite values only                 */
	ENC_ZSTD,  /* all bytes of the same place in their elements side by side, then zstd      */
	ENC_Q1,    /* low + k*step of the channel, k of 1 bit; finite values only                */
	ENC_Q2,
	ENC_Q3,
	ENC_Q4,
	ENC_Q5,
	ENC_Q6,
	ENC_Q7,
	ENC_Q8,
	ENC_COUNT
} encoding;

/* Those that one can wish for, as errors name them. */
#define ENCODINGS "fp16, bf16, int8, zstd, q1, q2, q3, q4, q5, q6, q7, q8"
extern const char *const encoding_names[ENC_COUNT]; /* plain fp16 bf16 int8 zstd q1 … q8 */
bool encoding_parse(const char *s, encoding *out);

dtype encoding_dtype(encoding e, dtype from); /* of the elements as written; of zstd and q1 … q8 they are bytes */
/* int8, half floats and q1 … q8: `from` is floating point and wider than what is written. zstd: always. */
bool encoding_applies(encoding e, dtype from);
bool encoding_packed(encoding e);   /* zstd and q1 … q8: an entry of bytes, and what they become is in the header */
unsigned encoding_bits(encoding e); /* of q1 … q8; 0 of others */
unsigned encoded_bits(encoding e,
                      dtype from); /* of an element in the file, before zstd: as it is where e does not apply */

/* One number, to nearest, ties to even. */
uint16_t narrow_to_f16(float x);
uint16_t narrow_to_bf16(float x);
float narrow_from_f16(uint16_t x);
float narrow_from_bf16(uint16_t x);

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

/* ---- 1 to 8 bits (quantise.c) ------------------------------------------------------------------------------------- */

/* Element i is of channel i / run % channels. */
typedef struct quant_layout {
	unsigned bits;
	size_t channels, run;
} quant_layout;

/* Elements of a tensor of these sizes (ndim 0: not known) in q->bits each, as they lie in a file; q gets the rest of its layout.
   Caller frees *out. CLV_E_INVALID: a number that is not finite, or beyond f32. */
clv_status quantise(dtype from, const void *src, size_t count, uint32_t ndim, const int64_t *sizes, quant_layout *q,
                    void **out, size_t *n, narrow_loss *loss);
clv_status quant_bytes(const quant_layout *q, size_t count, size_t *out); /* before zstd */
/* These bytes have the size of `count` elements, or say that they become that. */
clv_status quant_check(const quant_layout *q, const void *data, size_t n, size_t count);
clv_status dequantise(dtype to, const void *data, size_t n, const quant_layout *q, size_t count, void *dst);

/* ---- what was lost ---------------------------------------------------------------------------------------------- */

enum { TALLY_LANES = 8 }; /* sums and maxima are kept in this many lanes, so that compilers use vectors for them */

typedef struct narrow_tally {
	double most[TALLY_LANES];    /* the largest finite magnitude */
	double worst[TALLY_LANES];   /* the largest loss */
	double lost[TALLY_LANES];    /* squares */
	double all[TALLY_LANES];     /* squares of what there was */
	double shares[TALLY_LANES];  /* losses by magnitudes */
	double counted[TALLY_LANES]; /* elements other than 0 */
} narrow_tally;

void narrow_tally_add(narrow_tally *t, const double *before, const double *after, size_t n);
narrow_loss narrow_tally_end(const narrow_tally *t);
void narrow_rounded(dtype d, double *v, size_t n); /* as a tensor of d holds them; n at most 512 */

/* ---- elements ------------------------------------------------------------------------------------------------------ */

/* Floating-point numbers and integers as doubles; integers beyond 2^53 are rounded. The data need not be aligned. */
bool elements_loadable(dtype d);
void elements_load(dtype d, const void *at, size_t n, double *out);
void elements_store(dtype d, void *at, size_t n, const double *from); /* f64, f32, f16, bf16, i8 */
