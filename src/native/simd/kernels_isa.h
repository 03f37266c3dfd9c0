/* The kernels of one instruction set, which table.c puts into its table. */
#ifndef NATIVE_SIMD_KERNELS_ISA_H
#define NATIVE_SIMD_KERNELS_ISA_H

#include "native/kernels.h"
#include "native/simd/simd.h"

void ISA(map)(map_fn fn, const float *x, float *y, int64_t n);
chain_loop ISA(loop)(unsigned op);
void ISA(reduce_rows)(reduce_op op, const float *x, int64_t rows, int64_t n, float *out);
void ISA(reduce_columns)(reduce_op op, const float *x, int64_t n, int64_t pitch, int64_t cols, float *out);
void ISA(softmax_rows)(const float *x, float *y, int64_t rows, int64_t n, bool log);
void ISA(softmax_columns)(const float *x, float *y, int64_t n, int64_t pitch, int64_t cols, bool log);
void ISA(row_statistics)(const float *x, int64_t n, bool rms, float eps, float *mean, float *scale);
void ISA(normalize)(const float *x, float *y, int64_t n, float mean, float scale, const float *weight,
                    const float *bias);
void ISA(scale_shift)(const float *x, float *y, int64_t n, float mean, float scale, float shift);
void ISA(conv)(team *t, const conv_call *call);
void ISA(conv_lanes)(team *t, const conv_call *call);
void ISA(conv_tiles)(team *t, const conv_call *call);
void ISA(pool)(team *t, const pool *p, const float *in, float *out);
void ISA(resize)(team *t, const resize *r, const float *in, float *out);

/* A tile of sums, an element of A and a row of a panel of B fill the registers: 32 of them, or 16. */
#if defined(NATIVE_AVX512) || defined(NATIVE_NEON)
enum { GEMM_ROWS = 12 };
#else
enum { GEMM_ROWS = 6 };
#endif
enum { GEMM_WIDE = 2, GEMM_COLS = GEMM_WIDE * VF }; /* vectors and columns of a panel */
/* A vector of packed weights, i elements behind b, and the bytes of one. */
static inline __attribute__((always_inline)) vf panel_load(const panel_type type, const char *b, int64_t i)
{
	return type == PANEL_F32    ? vf_load((const float *)(const void *)b + i)
	       : type == PANEL_BF16 ? vf_load_bf16((const uint16_t *)(const void *)b + i)
	                            : vf_load_f16((const uint16_t *)(const void *)b + i);
}

/* Panels of f16 and bf16 share their tiles: which of the two it is, each load asks, beside many sums. */
typedef enum panel_kind { PANEL_WIDE, PANEL_NARROW } panel_kind;

static inline __attribute__((always_inline)) vf panel_read(const panel_kind kind, panel_type type, const char *b,
                                                           int64_t i)
{
	return kind == PANEL_WIDE   ? panel_load(PANEL_F32, b, i)
	       : type == PANEL_BF16 ? panel_load(PANEL_BF16, b, i)
	                            : panel_load(PANEL_F16, b, i);
}

static inline __attribute__((always_inline)) int64_t kind_bytes(const panel_kind kind)
{
	return kind == PANEL_WIDE ? 4 : 2;
}

static inline __attribute__((always_inline)) int64_t panel_bytes(const panel_type type)
{
	return type == PANEL_F32 ? 4 : 2;
}

void ISA(gemm)(const gemm_block *g);
void ISA(gemm_pack)(int cols, int64_t k, int64_t n, const float *b, int64_t b_k, int64_t b_n, float *out);
void ISA(attention_rows)(float *scores, const attention_rows *r, float *scales);

void ISA(move)(const move *m, const char *from, char *to, int64_t first, int64_t end);

#endif
