/* Speed of the native engine's matrix products: GFLOP/s, and GB/s of weights, at M rows for the linears of BERT-base (72 with
 * weights of their own, so that one row streams them from memory) with 1 and 2 threads.
 *
 *   build/bench/native_kernels [rounds]        CLEAVE_ISA=avx2 for another instruction set
 *
 * bench/native_kernels.py runs torch in between. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "native/product.h"
#include "native/team.h"

typedef struct layer {
	int64_t k, n;
	float *panels, *bias;
} layer;

enum { LAYERS = 72, MOST_ROWS = 512, WIDEST = 3072 };

static float *floats(int64_t n)
{
	float *at = aligned_alloc(64, (size_t)(n * 4 + 63) / 64 * 64);
	if (!at)
		exit(1);
	for (int64_t i = 0; i < n; i++)
		at[i] = (float)(i * 7919 % 1000) / 1000 - 0.5f;
	return at;
}

/* Times that a busy machine spoils little: the best of the rounds for each layer, summed. */
static double run_all(layer *layers, const native_kernels *k, team *t, int64_t m, const float *a, float *c, int rounds)
{
	double best[LAYERS], sum = 0;
	for (int r = 0; r < rounds; r++)
		for (int i = 0; i < LAYERS; i++) {
			layer *l = &layers[i];
			product p = {.dtype = DT_F32, .m = m, .n = l->n, .k = l->k, .alpha = 1, .beta = 1, .packed = true};
			p.a.row = l->k, p.a.col = 1, p.c.row = l->n, p.c.col = 1, p.d.col = 1;
			if (product_plan(&p, k, team_threads(t)) != CLV_OK)
				exit(1);
			double begin = clock_seconds();
			product_do(&p, &(product_run){.kernels = k, .team = t, .a = a, .b = l->panels, .d = l->bias, .c = c});
			double took = clock_seconds() - begin;
			best[i] = r == 0 || took < best[i] ? took : best[i];
		}
	for (int i = 0; i < LAYERS; i++)
		sum += best[i];
	return sum;
}

int main(int argc, char **argv)
{
	static const int64_t shapes[6][2] = {{768, 768}, {768, 768}, {768, 768}, {768, 768}, {768, 3072}, {3072, 768}};
	static const int64_t rows[] = {1, 2, 4, 8, 16, 64, 128, 512};
	static layer layers[LAYERS];
	const native_kernels *k = native_kernels_here();
	float *a = floats(MOST_ROWS * WIDEST), *c = floats(MOST_ROWS * WIDEST), *w = floats(768 * WIDEST);
	int rounds = argc > 1 ? atoi(argv[1]) : 10;
	double weights = 0;
	for (int i = 0; i < LAYERS; i++) {
		layer *l = &layers[i];
		l->k = shapes[i % 6][0], l->n = shapes[i % 6][1];
		l->panels = floats(product_packed(k->gemm_cols, l->k, l->n));
		l->bias = floats(l->n);
		k->gemm_pack(k->gemm_cols, l->k, l->n, w, 1, l->k, l->panels);
		weights += (double)l->k * (double)l->n;
	}
	printf("%s\n%8s %8s %10s %10s %10s\n", native_isa_name(k), "rows", "threads", "ms", "GFLOP/s", "GB/s");
	for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
		for (int threads = 1; threads <= 2; threads++) {
			team *t;
			if (team_get(threads, &t) != CLV_OK)
				return 1;
			double best = run_all(layers, k, t, rows[r], a, c, rounds);
			printf("%8lld %8d %10.2f %10.1f %10.1f\n", (long long)rows[r], threads, best * 1e3,
			       2e-9 * (double)rows[r] * weights / best, 4e-9 * weights / best);
			team_put(t);
		}
	return 0;
}
