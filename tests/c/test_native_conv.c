/* Convolutions of the native engine: every instruction set against plain loops in double, on random shapes; an image has the
 * same bits alone and in a batch, and however many threads share the work. */
#include "native/conv.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "native/team.h"
#include "file/narrow.h"
#include "support.h"

static uint64_t seed;

static uint64_t next(void)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return seed >> 33;
}

static int64_t between(int64_t low, int64_t high)
{
	return low + (int64_t)(next() % (uint64_t)(high - low + 1));
}

static float *floats(int64_t n)
{
	float *x = aligned_alloc(64, ((size_t)n * sizeof *x + 64) / 64 * 64);
	for (int64_t i = 0; i < n; i++)
		x[i] = (float)((int64_t)next() - (1ll << 30)) / (1ll << 30);
	return x;
}

/* ---- the reference ----------------------------------------------------------------------------------------------------- */

typedef struct tensors {
	conv_shape s;
	int64_t in_stride[CONV_DIMS], out_stride[CONV_DIMS], weight_stride[5];
	float *in, *weights, *bias, *out;
	panel_type type; /* of what `weights` points to */
	int64_t n_in, n_out;
} tensors;

static int64_t out_size(const conv_shape *s, int i, int64_t pad_after, int64_t output_padding)
{
	int64_t reach = s->dilation[i] * (s->kernel[i] - 1) + 1;
	if (s->transposed)
		return (s->in[i] - 1) * s->stride[i] - s->pad[i] - pad_after + reach + output_padding;
	int64_t room = s->in[i] + s->pad[i] + pad_after - reach;
	return room < 0 ? 0 : room / s->stride[i] + 1;
}

static void channels_last(int64_t stride[CONV_DIMS], int64_t channels, const int64_t size[3], int64_t gap)
{
	stride[CONV_C] = 1;
	stride[CONV_W] = channels + gap;
	stride[CONV_H] = stride[CONV_W] * size[2];
	stride[CONV_D] = stride[CONV_H] * size[1];
	stride[CONV_N] = stride[CONV_D] * size[0];
}

static void row_major(int64_t stride[CONV_DIMS], int64_t channels, const int64_t size[3])
{
	stride[CONV_W] = 1;
	stride[CONV_H] = size[2];
	stride[CONV_D] = size[2] * size[1];
	stride[CONV_C] = stride[CONV_D] * size[0];
	stride[CONV_N] = stride[CONV_C] * channels;
}

static void make(tensors *t, bool rows, int64_t gap)
{
	const conv_shape *s = &t->s;
	if (rows)
		row_major(t->in_stride, s->groups * s->ic, s->in);
	else
		channels_last(t->in_stride, s->groups * s->ic, s->in, gap);
	channels_last(t->out_stride, s->groups * s->oc, s->out, gap);
	t->n_in = s->images * t->in_stride[CONV_N];
	t->n_out = s->images * t->out_stride[CONV_N];
	t->in = floats(t->n_in);
	t->out = floats(t->n_out);
	t->bias = next() % 4 ? floats(s->groups * s->oc) : NULL;
	int64_t inner = s->transposed ? s->oc : s->ic, taps = s->kernel[0] * s->kernel[1] * s->kernel[2];
	t->weight_stride[0] = inner * taps;
	t->weight_stride[1] = taps;
	t->weight_stride[2] = s->kernel[1] * s->kernel[2];
	t->weight_stride[3] = s->kernel[2];
	t->weight_stride[4] = 1;
	t->weights = floats(s->groups * (s->transposed ? s->ic : s->oc) * t->weight_stride[0]);
}

static void drop(tensors *t)
{
	free(t->in);
	free(t->out);
	free(t->bias);
	free(t->weights);
}

/* The input that output o reads with weight k; -1: none. */
static int64_t read_at(const conv_shape *s, int i, int64_t o, int64_t k)
{
	int64_t at = o * s->stride[i] - s->pad[i] + k * s->dilation[i];
	if (s->transposed) {
		at = o + s->pad[i] - k * s->dilation[i];
		if (at < 0 || at % s->stride[i])
			return -1;
		at /= s->stride[i];
	}
	return at < 0 || at >= s->in[i] ? -1 : at;
}

static double expected(const tensors *t, int64_t n, int64_t o, const int64_t at[3], double *size)
{
	const conv_shape *s = &t->s;
	int64_t g = o / s->oc;
	double sum = t->bias ? t->bias[o] : 0;
	*size = fabs(sum);
	for (int64_t z = 0; z < s->kernel[0]; z++)
		for (int64_t y = 0; y < s->kernel[1]; y++)
			for (int64_t x = 0; x < s->kernel[2]; x++) {
				int64_t d = read_at(s, 0, at[0], z), h = read_at(s, 1, at[1], y), w = read_at(s, 2, at[2], x);
				if (d < 0 || h < 0 || w < 0)
					continue;
				for (int64_t i = 0; i < s->ic; i++) {
					const int64_t *is = t->in_stride, *ws = t->weight_stride;
					int64_t from = n * is[CONV_N] + (g * s->ic + i) * is[CONV_C] + d * is[CONV_D] + h * is[CONV_H] +
					               w * is[CONV_W];
					int64_t k = s->transposed ? (g * s->ic + i) * ws[0] + o % s->oc * ws[1] : o * ws[0] + i * ws[1];
					double product = (double)t->in[from] * t->weights[k + z * ws[2] + y * ws[3] + x * ws[4]];
					sum += product;
					*size += fabs(product);
				}
			}
	return sum;
}

/* By tiles an output may be off by what is little beside the outputs around it. */
static void compare(const tensors *t, conv_way way, const char *isa)
{
	const conv_shape *s = &t->s;
	double around = way == CONV_TILES ? 3e-7 * 9 * (double)s->ic : 1e-9;
	for (int64_t n = 0; n < s->images; n++)
		for (int64_t o = 0; o < s->groups * s->oc; o++)
			for (int64_t p = 0; p < s->out[0] * s->out[1] * s->out[2]; p++) {
				int64_t at[3] = {p / s->out[2] / s->out[1], p / s->out[2] % s->out[1], p % s->out[2]};
				const int64_t *os = t->out_stride;
				double size, want = expected(t, n, o, at, &size);
				float got = t->out[n * os[CONV_N] + o + at[0] * os[CONV_D] + at[1] * os[CONV_H] + at[2] * os[CONV_W]];
				bool same = isnan(want)   ? isnan(got)
				            : isinf(want) ? got == want
				                          : fabs(got - want) <= 2e-6 * size + around;
				if (!same)
					fail_msg(
						"%s: image %lld channel %lld pixel %lld is %g, expected %g; %lld images, %lld groups of "
						"%lld->%lld, in %lldx%lldx%lld, kernel %lldx%lldx%lld, stride %lld, dilation %lld, pad %lld%s",
						isa, (long long)n, (long long)o, (long long)p, got, want, (long long)s->images,
						(long long)s->groups, (long long)s->ic, (long long)s->oc, (long long)s->in[0],
						(long long)s->in[1], (long long)s->in[2], (long long)s->kernel[0], (long long)s->kernel[1],
						(long long)s->kernel[2], (long long)s->stride[2], (long long)s->dilation[2],
						(long long)s->pad[2], s->transposed ? ", transposed" : "");
			}
}

/* ---- running ------------------------------------------------------------------------------------------------------------- */

typedef struct seen {
	_Atomic int64_t elements;
	const tensors *t;
} seen;

/* Counts what is handed on, and doubles it. */
static void finished(void *ctx, float *block, int64_t ldc, int64_t row, int64_t rows, int64_t col, int64_t cols)
{
	seen *s = ctx;
	if (block != s->t->out + row * s->t->out_stride[CONV_W] + col)
		return; /* the count shows it: cmocka cannot fail on another thread */
	for (int64_t r = 0; r < rows; r++)
		for (int64_t i = 0; i < cols; i++)
			block[r * ldc + i] *= 2;
	s->elements += rows * cols;
}

static void run(const native_kernels *k, const tensors *t, conv_way way, int threads, conv_done *done, void *ctx)
{
	team *workers;
	assert_int_equal(team_get(threads, &workers), CLV_OK);
	for (int64_t p = 0; p < conv_phases(&t->s); p++) {
		conv c = conv_phase(&t->s, p);
		memcpy(c.in_stride, t->in_stride, sizeof c.in_stride);
		memcpy(c.out_stride, t->out_stride, sizeof c.out_stride);
		float *packed, *scratch;
		bool tiles = way == CONV_TILES && c.axis[1].taps == 3 && c.axis[2].taps == 3;
		c.way = way == CONV_TILES && !tiles ? CONV_PANELS : way;
		conv_weights plain = {.data = t->weights, .type = t->type, .transposed = t->s.transposed};
		memcpy(plain.stride, t->weight_stride, sizeof plain.stride);
		packed = floats(conv_size(&c, k->vector));
		conv_pack(&c, k->vector, &plain, packed);
		conv_divide(&c, k->vector, threads);
		scratch = floats(c.scratch * threads);
		k->conv(workers, &(conv_call){&c, t->in, t->bias, packed, t->out, scratch, done, ctx, &plain});
		free(packed);
		free(scratch);
	}
	team_put(workers);
}

static conv_shape random_shape(int dims, bool transposed)
{
	conv_shape s = {.images = between(1, 3), .transposed = transposed};
	static const int64_t channels[] = {1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 31, 33, 40, 48, 70};
	s.groups = next() % 3 ? 1 : between(1, 4);
	s.ic = channels[next() % 16];
	s.oc = channels[next() % 16];
	for (int i = 0; i < 3; i++) {
		bool used = i >= 3 - dims;
		s.kernel[i] = used ? between(1, dims == 3 ? 3 : 5) : 1;
		s.stride[i] = used ? between(1, 3) : 1;
		s.dilation[i] = used && next() % 3 == 0 ? between(1, 3) : 1;
		s.pad[i] = used ? between(0, s.kernel[i] / 2) : 0;
		s.in[i] = used ? between(1, dims == 3 ? 7 : dims == 1 ? 60 : 17) : 1;
		int64_t extra = transposed && used ? between(0, s.stride[i] - 1) : 0;
		s.out[i] = out_size(&s, i, used ? between(0, s.kernel[i] / 2) : 0, extra);
		s.out[i] = s.out[i] < 0 ? 0 : s.out[i];
	}
	return s;
}

static void check_exact(const native_kernels *k, const conv_shape *s, conv_way way);

static const char *const sets[] = {"base", "avx2", "avx512", "neon"};

static void check_shape(const conv_shape *s, conv_way way)
{
	tensors t = {.s = *s};
	make(&t, way != CONV_TILES && next() % 4 == 0, next() % 3 ? 0 : 3);
	for (size_t i = 0; i < 4; i++) {
		const native_kernels *k = native_kernels_named(sets[i]);
		if (!k)
			continue;
		memset(t.out, 0xff, (size_t)t.n_out * sizeof *t.out);
		run(k, &t, way, (int)between(1, 3), NULL, NULL);
		compare(&t, way, sets[i]);
	}
	drop(&t);
}

static void random_shapes_agree_with_plain_loops(void **state)
{
	(void)state;
	for (seed = 1; seed <= 1 + (uint64_t)some_of(299);) {
		uint64_t start = seed;
		conv_shape s = random_shape((int)between(1, 3), false);
		check_shape(&s, CONV_PANELS);
		seed = start + 1;
	}
}

static void transposed_shapes_agree_with_plain_loops(void **state)
{
	(void)state;
	for (seed = 1000; seed <= 1000 + (uint64_t)some_of(150);) {
		uint64_t start = seed;
		conv_shape s = random_shape((int)between(1, 3), true);
		check_shape(&s, CONV_PANELS);
		seed = start + 1;
	}
}

static void pointwise_shapes_agree_with_plain_loops(void **state)
{
	(void)state;
	for (seed = 2000; seed <= 2000 + (uint64_t)some_of(80);) {
		uint64_t start = seed;
		conv_shape s = random_shape(2, false);
		for (int i = 0; i < 3; i++)
			s.kernel[i] = 1, s.pad[i] = 0, s.stride[i] = 1, s.out[i] = s.in[i];
		s.oc = between(1, 300);
		if (next() % 8 == 0) { /* pixels that are copied apart */
			s.groups = 1, s.ic = 1024 / (s.stride[2] = between(1, 2));
			s.out[2] = out_size(&s, 2, 0, 0);
		}
		check_shape(&s, CONV_PANELS);
		seed = start + 1;
	}
}

/* Images of less than one tile and of several, the last ones cut off. */
static conv_shape tiled_shape(void)
{
	conv_shape s = random_shape(2, false);
	int64_t dilation = next() % 3 ? 1 : between(2, 4);
	s.ic = next() % 8 ? s.ic : between(500, 520);
	for (int i = 1; i < 3; i++) {
		s.kernel[i] = 3, s.stride[i] = 1, s.dilation[i] = dilation, s.pad[i] = between(0, dilation + 1);
		s.in[i] = between(1, 30);
		s.out[i] = out_size(&s, i, s.pad[i], 0);
	}
	return s;
}

static void far_taps_agree_with_plain_loops(void **state)
{
	(void)state;
	for (seed = 9000; seed <= 9000 + (uint64_t)some_of(120);) {
		uint64_t start = seed;
		conv_shape s = random_shape(2, false);
		for (int i = 1; i < 3; i++) {
			s.kernel[i] = between(1, 3), s.stride[i] = between(1, 2), s.dilation[i] = between(4, 30);
			s.pad[i] = between(0, 30), s.in[i] = between(1, 40);
			s.out[i] = out_size(&s, i, s.pad[i], 0);
		}
		check_shape(&s, CONV_PANELS);
		seed = start + 1;
	}
}

static void tiles_agree_with_plain_loops(void **state)
{
	(void)state;
	for (seed = 4000; seed <= 4000 + (uint64_t)some_of(120);) {
		uint64_t start = seed;
		conv_shape s = tiled_shape();
		check_shape(&s, CONV_TILES);
		seed = start + 1;
	}
}

static void images_in_tiles_have_the_same_bits_in_every_batch(void **state)
{
	(void)state;
	for (seed = 6000; seed <= 6000 + (uint64_t)some_of(40);) {
		uint64_t start = seed;
		conv_shape s = tiled_shape();
		s.images = between(1, 5);
		for (size_t i = 0; i < 4; i++)
			if (native_kernels_named(sets[i]))
				check_exact(native_kernels_named(sets[i]), &s, CONV_TILES);
		seed = start + 1;
	}
}

static void few_channels_a_group_agree_with_plain_loops(void **state)
{
	(void)state;
	for (seed = 3000; seed <= 3000 + (uint64_t)some_of(300);) {
		uint64_t start = seed;
		conv_shape s = random_shape((int)between(1, 3), next() % 3 == 0);
		bool depthwise = next() % 2;
		s.groups = between(1, 70);
		s.ic = depthwise ? 1 : between(1, 5);
		s.oc = depthwise ? 1 : between(1, 5);
		check_shape(&s, CONV_LANES);
		seed = start + 1;
	}
}

/* What they are when widened is what `wide` gets. */
static uint16_t *narrowed(float *wide, int64_t n, panel_type type)
{
	uint16_t *half = malloc((size_t)n * sizeof *half + 1);
	for (int64_t i = 0; i < n; i++) {
		half[i] = type == PANEL_F16 ? narrow_to_f16(wide[i]) : narrow_to_bf16(wide[i]);
		wide[i] = type == PANEL_F16 ? narrow_from_f16(half[i]) : narrow_from_bf16(half[i]);
	}
	return half;
}

static void check_halves(const native_kernels *k, const conv_shape *s, conv_way way, panel_type type)
{
	tensors t = {.s = *s};
	make(&t, false, 0);
	int64_t n = s->groups * (s->transposed ? s->ic : s->oc) * t.weight_stride[0];
	uint16_t *half = narrowed(t.weights, n, type);
	float *wide = t.weights, *want = floats(t.n_out);
	if (t.n_in > 5)
		t.in[5] = INFINITY; /* tiles are computed again from plain weights */
	memset(want, 0, (size_t)t.n_out * sizeof *want);
	memset(t.out, 0, (size_t)t.n_out * sizeof *want);
	run(k, &t, way, 1, NULL, NULL);
	memcpy(want, t.out, (size_t)t.n_out * sizeof *want);
	t.type = type;
	t.weights = (float *)half;
	memset(t.out, 0, (size_t)t.n_out * sizeof *want);
	run(k, &t, way, 2, NULL, NULL);
	assert_memory_equal(t.out, want, (size_t)t.n_out * sizeof *want);
	t.weights = wide;
	free(half);
	free(want);
	drop(&t);
}

static void weights_of_16_bits_give_the_bits_of_wide_ones(void **state)
{
	(void)state;
	for (seed = 11000; seed <= 11000 + (uint64_t)some_of(150);) {
		uint64_t start = seed;
		conv_way way = (conv_way)(start % 3);
		conv_shape s = way == CONV_TILES ? tiled_shape() : random_shape((int)between(1, 3), next() % 3 == 0);
		panel_type type = next() % 2 ? PANEL_F16 : PANEL_BF16;
		if (way == CONV_LANES)
			s.groups = between(1, 40), s.ic = between(1, 4), s.oc = between(1, 4);
		for (size_t i = 0; i < 4; i++)
			if (native_kernels_named(sets[i]))
				check_halves(native_kernels_named(sets[i]), &s, way, type);
		seed = start + 1;
	}
}

static bool same_taps(const conv_axis *a, int64_t one, int64_t other)
{
	bool same = true;
	for (int64_t t = 0; t < a->taps; t++)
		same = same && conv_inside(a, one, t) == conv_inside(a, other, t);
	return same;
}

static void pieces_end_where_a_tap_enters_or_leaves(void **state)
{
	(void)state;
	seed = 3;
	for (int round = 0; round < 20000; round++) {
		conv_axis a = {.in = between(0, 9), .count = between(1, 40), .step = between(1, 5), .taps = between(1, 5)};
		a.tap0 = between(-20, 20), a.tap_step = between(-9, 9);
		int64_t blocks = 0, first, count;
		for (int64_t o = 0; o < a.count; o++)
			blocks += o == 0 || !same_taps(&a, o - 1, o);
		assert_int_equal(conv_blocks(&a, true, a.count), blocks);
		for (int64_t i = 0, at = 0; i < blocks; i++, at += count) {
			conv_block_at(&a, true, a.count, i, &first, &count);
			assert_int_equal(first, at);
			assert_true(count > 0 && at + count <= a.count);
			assert_true(at == 0 || !same_taps(&a, at - 1, at));
		}
	}
}

static void nothing_to_do_is_no_work(void **state)
{
	(void)state;
	seed = 1;
	for (int which = 0; which < 4; which++) {
		conv_shape s = {.images = 1,
		                .groups = 1,
		                .ic = 4,
		                .oc = 4,
		                .in = {1, 5, 5},
		                .kernel = {1, 3, 3},
		                .stride = {1, 1, 1},
		                .dilation = {1, 1, 1},
		                .out = {1, 3, 3}};
		if (which == 0)
			s.images = 0;
		if (which == 1)
			s.oc = 0;
		if (which == 2)
			s.out[1] = 0;
		if (which == 3)
			s.ic = 0; /* the result is the bias */
		check_shape(&s, CONV_PANELS);
		check_shape(&s, CONV_LANES);
	}
}

/* Also in tiles, where one number of the input would reach outputs that do not read it. */
static void nan_and_inf_spread_as_in_plain_loops(void **state)
{
	(void)state;
	seed = 77;
	conv_shape s = {.images = 1,
	                .groups = 8,
	                .ic = 4,
	                .oc = 3,
	                .in = {1, 9, 9},
	                .kernel = {1, 3, 3},
	                .stride = {1, 1, 1},
	                .pad = {0, 1, 1},
	                .dilation = {1, 1, 1},
	                .out = {1, 9, 9}};
	tensors t = {.s = s};
	make(&t, false, 0);
	t.in[5] = NAN;
	t.in[200] = INFINITY;
	t.in[901] = -INFINITY;
	for (size_t i = 0; i < 12; i++) {
		const native_kernels *k = native_kernels_named(sets[i / 3]);
		if (!k)
			continue;
		run(k, &t, (conv_way)(i % 3), 1, NULL, NULL);
		compare(&t, (conv_way)(i % 3), sets[i / 3]);
	}
	drop(&t);
}

/* Of all images but one, nothing may show in the bits of that one; nor may the division of the work. */
static void check_exact(const native_kernels *k, const conv_shape *s, conv_way way)
{
	tensors t = {.s = *s};
	make(&t, false, 0);
	run(k, &t, way, 1, NULL, NULL);
	float *whole = floats(t.n_out);
	memcpy(whole, t.out, (size_t)t.n_out * sizeof *whole);
	for (int threads = 2; threads <= 3; threads++) {
		run(k, &t, way, threads, NULL, NULL);
		assert_memory_equal(whole, t.out, (size_t)t.n_out * sizeof *whole);
	}
	for (int64_t n = 0; n < s->images; n++) {
		tensors one = t;
		one.s.images = 1;
		one.in += n * t.in_stride[CONV_N];
		run(k, &one, way, 1 + (int)(n % 3), NULL, NULL);
		assert_memory_equal(whole + n * t.out_stride[CONV_N], t.out, (size_t)t.out_stride[CONV_N] * sizeof *whole);
	}
	free(whole);
	drop(&t);
}

static void an_image_has_the_same_bits_in_every_batch(void **state)
{
	(void)state;
	for (seed = 5000; seed <= 5000 + (uint64_t)some_of(200);) {
		uint64_t start = seed;
		conv_shape s = random_shape((int)between(1, 3), next() % 4 == 0);
		bool lanes = next() % 3 == 0;
		s.images = between(1, 5);
		if (next() % 3 == 0)
			for (int i = 0; i < 3 && !s.transposed; i++)
				s.kernel[i] = 1, s.pad[i] = 0, s.stride[i] = 1, s.out[i] = s.in[i];
		if (next() % 4 == 0 && !s.transposed) /* one pixel an image */
			for (int i = 0; i < 3; i++)
				s.kernel[i] = 1, s.pad[i] = 0, s.stride[i] = 1, s.out[i] = s.in[i] = 1;
		if (lanes)
			s.groups = between(1, 50), s.ic = between(1, 3), s.oc = between(1, 3);
		else if (next() % 2)
			s.oc = between(1, 300);
		for (size_t i = 0; i < 4; i++)
			if (native_kernels_named(sets[i]))
				check_exact(native_kernels_named(sets[i]), &s, lanes ? CONV_LANES : CONV_PANELS);
		seed = start + 1;
	}
}

static void every_output_is_handed_on_once(void **state)
{
	(void)state;
	for (seed = 7000; seed <= 7000 + (uint64_t)some_of(80);) {
		uint64_t start = seed;
		conv_shape s = random_shape((int)between(1, 3), false);
		bool lanes = next() % 2;
		conv_way way = lanes ? CONV_LANES : CONV_PANELS;
		if (lanes)
			s.ic = between(1, 3), s.oc = between(1, 3), s.groups = between(1, 50);
		else if (next() % 3 == 0) {
			s = tiled_shape();
			way = CONV_TILES;
		}
		tensors t = {.s = s};
		make(&t, false, next() % 2 * 3);
		for (size_t i = 0; i < 4; i++) {
			const native_kernels *k = native_kernels_named(sets[i]);
			if (!k)
				continue;
			int threads = (int)between(1, 3);
			run(k, &t, way, threads, NULL, NULL);
			float *plain = floats(t.n_out);
			memcpy(plain, t.out, (size_t)t.n_out * sizeof *plain);
			seen all = {0, &t};
			run(k, &t, way, threads, finished, &all);
			assert_int_equal(all.elements, s.images * s.groups * s.oc * s.out[0] * s.out[1] * s.out[2]);
			for (int64_t e = 0; e < t.n_out; e++)
				if (e % t.out_stride[CONV_W] < s.groups * s.oc)
					assert_true(t.out[e] == 2 * plain[e]);
			free(plain);
		}
		drop(&t);
		seed = start + 1;
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_shapes_agree_with_plain_loops),
		cmocka_unit_test(transposed_shapes_agree_with_plain_loops),
		cmocka_unit_test(pointwise_shapes_agree_with_plain_loops),
		cmocka_unit_test(far_taps_agree_with_plain_loops),
		cmocka_unit_test(tiles_agree_with_plain_loops),
		cmocka_unit_test(images_in_tiles_have_the_same_bits_in_every_batch),
		cmocka_unit_test(few_channels_a_group_agree_with_plain_loops),
		cmocka_unit_test(weights_of_16_bits_give_the_bits_of_wide_ones),
		cmocka_unit_test(pieces_end_where_a_tap_enters_or_leaves),
		cmocka_unit_test(nothing_to_do_is_no_work),
		cmocka_unit_test(nan_and_inf_spread_as_in_plain_loops),
		cmocka_unit_test(an_image_has_the_same_bits_in_every_batch),
		cmocka_unit_test(every_output_is_handed_on_once),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
