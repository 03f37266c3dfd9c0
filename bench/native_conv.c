/* The convolutions of a network, one after the other as in a run: milliseconds and GFLOP/s of all, and of each with -v.
 *
 *   native_conv resnet50|mobilenetv3|"ic oc size kernel stride groups" [batch] [threads] [-v]      CLEAVE_ISA=avx2 … */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "native/conv.h"
#include "native/team.h"

typedef struct layer {
	conv c;
	conv_shape s;
	float *in, *out, *packed, *bias, *scratch;
	conv_weights plain;
	double flop;
} layer;

static layer layers[128];
static int count;

static clockid_t watch = CLOCK_MONOTONIC; /* of one thread: its own time, which other programs disturb less */

static double now(void)
{
	struct timespec t;
	clock_gettime(watch, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static float *floats(int64_t n)
{
	float *x = aligned_alloc(64, ((size_t)n * sizeof *x + 127) / 64 * 64);
	if (!x)
		exit(1);
	for (int64_t i = 0; i < n; i++)
		x[i] = (float)(i % 17) * 0.01f - 0.07f;
	return x;
}

static void strides(int64_t *stride, int64_t channels, const int64_t size[3], bool rows)
{
	stride[CONV_C] = rows ? size[1] * size[2] : 1;
	stride[CONV_W] = rows ? 1 : channels;
	stride[CONV_H] = stride[CONV_W] * size[2];
	stride[CONV_D] = stride[CONV_H] * size[1];
	stride[CONV_N] = size[1] * size[2] * channels;
}

/* Returns the size of the output. The image itself, 3 channels, is row-major. */
static int64_t add(int64_t batch, int threads, int64_t size, int64_t ic, int64_t oc, int64_t kernel, int64_t stride,
                   int64_t groups)
{
	const native_kernels *k = native_kernels_here();
	layer *l = &layers[count++];
	int64_t pad = kernel / 2, out = (size + 2 * pad - kernel) / stride + 1;
	l->s = (conv_shape){.images = batch,
	                    .groups = groups,
	                    .ic = ic / groups,
	                    .oc = oc / groups,
	                    .in = {1, size, size},
	                    .kernel = {1, kernel, kernel},
	                    .stride = {1, stride, stride},
	                    .pad = {0, pad, pad},
	                    .dilation = {1, 1, 1},
	                    .out = {1, out, out}};
	l->c = conv_phase(&l->s, 0);
	strides(l->c.in_stride, ic, l->s.in, ic == 3);
	strides(l->c.out_stride, oc, l->s.out, false);
	int64_t row = l->s.ic * kernel * kernel;
	float *weights = floats(oc * row);
	l->plain = (conv_weights){.data = weights, .stride = {row, kernel * kernel, kernel * kernel, kernel, 1}};
	l->c.way = conv_best_way(&l->c, k->vector);
	l->packed = floats(conv_size(&l->c, k->vector));
	conv_pack(&l->c, k->vector, &l->plain, l->packed);
	conv_divide(&l->c, k->vector, threads);
	l->in = floats(batch * size * size * ic);
	l->out = floats(batch * out * out * oc);
	l->bias = floats(oc);
	l->scratch = floats(l->c.scratch * threads);
	l->flop = 2.0 * (double)(batch * out * out * oc) * (double)row;
	return out;
}

static void resnet50(int64_t batch, int threads)
{
	static const int64_t blocks[4] = {3, 4, 6, 3}, width[4] = {64, 128, 256, 512};
	int64_t size = 56, in = 64;
	add(batch, threads, 224, 3, 64, 7, 2, 1);
	for (int g = 0; g < 4; g++)
		for (int64_t i = 0; i < blocks[g]; i++, in = width[g] * 4) {
			int64_t stride = g > 0 && i == 0 ? 2 : 1, w = width[g];
			add(batch, threads, size, in, w, 1, 1, 1);
			if (i == 0)
				add(batch, threads, size, in, w * 4, 1, stride, 1);
			size = add(batch, threads, size, w, w, 3, stride, 1);
			add(batch, threads, size, w, w * 4, 1, 1, 1);
		}
}

static void mobilenetv3(int64_t batch, int threads)
{
	/* kernel, expanded, out, squeeze, stride */
	static const int64_t rows[15][5] = {{3, 16, 16, 0, 1},     {3, 64, 24, 0, 2},     {3, 72, 24, 0, 1},
	                                    {5, 72, 40, 24, 2},    {5, 120, 40, 32, 1},   {5, 120, 40, 32, 1},
	                                    {3, 240, 80, 0, 2},    {3, 200, 80, 0, 1},    {3, 184, 80, 0, 1},
	                                    {3, 184, 80, 0, 1},    {3, 480, 112, 120, 1}, {3, 672, 112, 168, 1},
	                                    {5, 672, 160, 168, 2}, {5, 960, 160, 240, 1}, {5, 960, 160, 240, 1}};
	int64_t size = add(batch, threads, 224, 3, 16, 3, 2, 1), in = 16;
	for (int i = 0; i < 15; i++) {
		const int64_t *r = rows[i];
		if (r[1] != in)
			add(batch, threads, size, in, r[1], 1, 1, 1);
		size = add(batch, threads, size, r[1], r[1], r[0], r[4], r[1]);
		if (r[3]) {
			add(batch, threads, 1, r[1], r[3], 1, 1, 1);
			add(batch, threads, 1, r[3], r[1], 1, 1, 1);
		}
		add(batch, threads, size, r[1], r[2], 1, 1, 1);
		in = r[2];
	}
	add(batch, threads, size, 160, 960, 1, 1, 1);
}

static void run(team *workers, layer *l)
{
	const native_kernels *k = native_kernels_here();
	conv_call call = {.c = &l->c,
	                  .in = l->in,
	                  .weights = l->packed,
	                  .bias = l->bias,
	                  .out = l->out,
	                  .scratch = l->scratch,
	                  .plain = &l->plain};
	k->conv(workers, &call);
}

static void show(const layer *l, double best)
{
	const conv_shape *s = &l->s;
	printf("%4lldx%-4lld %4lld->%-4lld groups %-4lld %lldx%lld/%lld  %8.3f ms %7.1f GFLOP/s  %lld items\n",
	       (long long)s->in[1], (long long)s->in[2], (long long)(s->ic * s->groups), (long long)(s->oc * s->groups),
	       (long long)s->groups, (long long)s->kernel[1], (long long)s->kernel[2], (long long)s->stride[1], best * 1e3,
	       l->flop / best * 1e-9, (long long)l->c.items);
}

int main(int n, char **arg)
{
	long long batch = n > 2 ? atoll(arg[2]) : 1, at[6];
	int threads = n > 3 ? atoi(arg[3]) : 1, rounds = 30;
	const char *net = n > 1 ? arg[1] : "resnet50";
	if (strcmp(net, "resnet50") == 0)
		resnet50(batch, threads);
	else if (strcmp(net, "mobilenetv3") == 0)
		mobilenetv3(batch, threads);
	else if (sscanf(net, "%lld %lld %lld %lld %lld %lld", at, at + 1, at + 2, at + 3, at + 4, at + 5) == 6)
		add(batch, threads, at[2], at[0], at[1], at[3], at[4], at[5]);
	else
		return 2;
	team *workers;
	if (threads == 1)
		watch = CLOCK_THREAD_CPUTIME_ID;
	if (team_get(threads, &workers) != CLV_OK)
		return 1;
	double best = 1e9, each[128], flop = 0, sum = 0;
	for (int i = 0; i < count; i++)
		each[i] = 1e9;
	for (int r = 0; r < rounds; r++) {
		double start = now(), last = start;
		for (int i = 0; i < count; i++) {
			run(workers, &layers[i]);
			double t = now();
			each[i] = t - last < each[i] ? t - last : each[i];
			last = t;
		}
		best = last - start < best ? last - start : best;
	}
	for (int i = 0; i < count; i++) {
		flop += layers[i].flop;
		if (n > 4)
			show(&layers[i], each[i]);
	}
	for (int i = 0; i < count; i++)
		sum += each[i];
	printf("%s, batch %lld, %d threads, %s: best run %.2f ms, best of each %.2f ms, %.1f GFLOP/s\n", net, batch,
	       threads, native_isa_name(native_kernels_here()), best * 1e3, sum * 1e3, flop / sum * 1e-9);
	team_put(workers);
	return 0;
}
