/* Sizes by which weights are packed, per instruction set: any machine can pack for any other. A kernel that packs in another way
 * has its numbers here and in native_kernels. */
#ifndef NATIVE_SIMD_LAYOUTS_H
#define NATIVE_SIMD_LAYOUTS_H

/* VECTOR: floats of one. A tile of sums, an element of A and a row of a panel of B fill the registers: 32 of them, or 16. */
enum {
	BASE_VECTOR = 4,
	BASE_GEMM_ROWS = 6,
	BASE_GEMM_COLS = 2 * BASE_VECTOR,
	AVX2_VECTOR = 8,
	AVX2_GEMM_ROWS = 6,
	AVX2_GEMM_COLS = 2 * AVX2_VECTOR,
	AVX512_VECTOR = 16,
	AVX512_GEMM_ROWS = 12,
	AVX512_GEMM_COLS = 2 * AVX512_VECTOR,
	NEON_VECTOR = 4,
	NEON_GEMM_ROWS = 12,
	NEON_GEMM_COLS = 2 * NEON_VECTOR
};

#endif
