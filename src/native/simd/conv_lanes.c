/* Convolutions with few channels a group: the lanes of a vector are output channels (see native/conv.h).
 *
 * Depthwise over channels-last pixels reads the input in place; taps that fall outside are left out. For other groups an item
 * spreads its input first: for every pixel and input channel of a group one vector, whose lane holds what that lane's output
 * reads; padding is zeros there. */
#include "native/conv.h"
#include "native/simd/kernels_isa.h"

#if defined(NATIVE_AVX512) || defined(NATIVE_NEON)
enum { WIDE = 7 };
#else
enum { WIDE = 3 };
#endif

#define UNROLL _Pragma("GCC unroll 16")
#define INLINE static inline __attribute__((always_inline))

typedef struct entry {
	int64_t in, weight; /* offsets of one tap and input channel */
} entry;

typedef struct strip {
	const float *a, *weights, *bias;
	float *c;
	int64_t lda, ldc;
	const entry *at;
	int64_t n;
} strip;

/* w pixels × nv vectors; the last `lanes` are there, of the last vector only if nv is 1. */
INLINE void strip_run(const strip *s, const int w, const int nv, const int64_t lanes, const bool partial)
{
	vf sum[WIDE][4];
	UNROLL for (int v = 0; v < nv; v++)
	{
		vf init = !s->bias ? vf_zero() : partial ? vf_load_n(s->bias, lanes) : vf_load(s->bias + v * VF);
		UNROLL for (int i = 0; i < w; i++) sum[i][v] = init;
	}
	for (int64_t e = 0; e < s->n; e++) {
		const float *a = s->a + s->at[e].in, *b = s->weights + s->at[e].weight;
		UNROLL for (int v = 0; v < nv; v++)
		{
			vf x = vf_load(b + v * VF);
			UNROLL for (int i = 0; i < w; i++)
			{
				const float *p = a + i * s->lda + v * VF;
				sum[i][v] = vf_fma(partial ? vf_load_n(p, lanes) : vf_load(p), x, sum[i][v]);
			}
		}
	}
	UNROLL for (int i = 0; i < w; i++) UNROLL for (int v = 0; v < nv; v++)
	{
		if (partial)
			vf_store_n(s->c + i * s->ldc, sum[i][v], lanes);
		else
			vf_store(s->c + i * s->ldc + v * VF, sum[i][v]);
	}
}

#define STRIP(w)                                                                                                       \
	static void strip_##w(const strip *s, int64_t lanes)                                                               \
	{                                                                                                                  \
		if (lanes >= 2 * VF)                                                                                           \
			strip_run(s, w, 2, 0, false);                                                                              \
		else if (lanes >= VF)                                                                                          \
			strip_run(s, w, 1, 0, false);                                                                              \
		else                                                                                                           \
			strip_run(s, w, 1, lanes, true);                                                                           \
	}
STRIP(2)
STRIP(3)
static void strip_1(const strip *s, int64_t lanes)
{
	if (lanes >= 4 * VF)
		strip_run(s, 1, 4, 0, false);
	else if (lanes >= VF)
		strip_run(s, 1, 1, 0, false);
	else
		strip_run(s, 1, 1, lanes, true);
}
#if defined(NATIVE_AVX512) || defined(NATIVE_NEON)
STRIP(4)
STRIP(5)
STRIP(6)
STRIP(7)
static void (*const strips[WIDE])(const strip *, int64_t) = {strip_1, strip_2, strip_3, strip_4,
                                                             strip_5, strip_6, strip_7};
#else
static void (*const strips[WIDE])(const strip *, int64_t) = {strip_1, strip_2, strip_3};
#endif

/* How many channels one call does, of `lanes` that are left. */
static int64_t taken(int64_t w, int64_t lanes)
{
	if (w == 1 && lanes >= 4 * VF)
		return 4 * VF;
	return w > 1 && lanes >= 2 * VF ? 2 * VF : lanes < VF ? lanes : VF;
}

/* Pixels x … x+count-1 of an output row, channels that follow each other in the input. */
static void run_pixels(strip s, int64_t count, int64_t channels)
{
	for (int64_t left = (count + WIDE - 1) / WIDE; left > 0; left--) {
		int64_t w = (count + left - 1) / left;
		strip t = s;
		for (int64_t ch = 0, n; ch < channels; ch += n) {
			n = taken(w, channels - ch);
			strips[w - 1](&t, channels - ch);
			t.a += n, t.weights += n, t.c += n, t.bias = t.bias ? t.bias + n : NULL;
		}
		s.a += w * s.lda;
		s.c += w * s.ldc;
		count -= w;
	}
}

/* ---- items ------------------------------------------------------------------------------------------------------------- */

typedef struct item {
	int64_t image, depth, row, rows, channel, channels;
} item;

static item item_at(const conv *c, int64_t i)
{
	item it;
	int64_t all = c->groups * c->oc;
	it.channel = i % c->npanels * c->panels * VF, i /= c->npanels;
	it.row = i % c->nrows * c->rows, i /= c->nrows;
	it.depth = i % c->axis[0].count;
	it.image = i / c->axis[0].count;
	it.rows = c->axis[1].count - it.row < c->rows ? c->axis[1].count - it.row : c->rows;
	it.channels = all - it.channel < c->panels * VF ? all - it.channel : c->panels * VF;
	return it;
}

static int64_t tap_at(const conv_axis *a, int64_t t)
{
	return a->tap0 + t * a->tap_step;
}

static bool inside(const conv_axis *a, int64_t output, int64_t t)
{
	int64_t at = output * a->step + tap_at(a, t);
	return at >= 0 && at < a->in;
}

static int64_t width_of(const conv *c)
{
	return (c->groups * c->oc + VF - 1) / VF * VF;
}

static float *output_at(const conv_call *j, const item *it, int64_t row)
{
	const conv *c = j->c;
	const conv_axis *d = &c->axis[0], *h = &c->axis[1], *w = &c->axis[2];
	return j->out + it->image * c->out_stride[CONV_N] + (d->start + it->depth * d->jump) * c->out_stride[CONV_D] +
	       (h->start + row * h->jump) * c->out_stride[CONV_H] + w->start * c->out_stride[CONV_W] + it->channel;
}

/* ---- read in place ------------------------------------------------------------------------------------------------------- */

/* The taps that output (depth, row, col) reads inside of the input, as offsets from column 0 of the image. */
static int64_t taps_inside(const conv *c, const item *it, int64_t row, int64_t col, entry *at)
{
	const conv_axis *d = &c->axis[0], *h = &c->axis[1], *w = &c->axis[2];
	int64_t n = 0, width = width_of(c);
	for (int64_t z = 0; z < d->taps; z++)
		for (int64_t y = 0; y < h->taps; y++) {
			if (!inside(d, it->depth, z) || !inside(h, row, y))
				continue;
			int64_t from = (it->depth * d->step + tap_at(d, z)) * c->in_stride[CONV_D] +
			               (row * h->step + tap_at(h, y)) * c->in_stride[CONV_H];
			for (int64_t x = 0; x < w->taps; x++)
				if (inside(w, col, x))
					at[n++] =
						(entry){from + tap_at(w, x) * c->in_stride[CONV_W], ((z * h->taps + y) * w->taps + x) * width};
		}
	return n;
}

static bool all_inside(const conv_axis *a, int64_t output)
{
	return a->taps == 0 || (inside(a, output, 0) && inside(a, output, a->taps - 1));
}

static void run_row(const conv_call *j, const item *it, int64_t row, entry *at)
{
	const conv *c = j->c;
	const conv_axis *w = &c->axis[2];
	float *out = output_at(j, it, row);
	strip s = {.weights = (const float *)j->weights + it->channel,
	           .bias = j->bias ? j->bias + it->channel : NULL,
	           .lda = w->step * c->in_stride[CONV_W],
	           .ldc = w->jump * c->out_stride[CONV_W],
	           .at = at};
	for (int64_t x = 0, end; x < w->count; x = end) {
		end = x + 1;
		if (all_inside(w, x))
			while (end < w->count && all_inside(w, end))
				end++;
		s.n = taps_inside(c, it, row, x, at);
		s.a = j->in + it->image * c->in_stride[CONV_N] + it->channel + x * s.lda;
		s.c = out + x * s.ldc;
		run_pixels(s, end - x, it->channels);
	}
}

/* ---- spread ---------------------------------------------------------------------------------------------------------------- */

static int64_t low_tap(const conv_axis *a)
{
	return a->tap_step < 0 ? tap_at(a, a->taps - 1) : a->tap0;
}

static int64_t span_of(const conv_axis *a, int64_t outputs)
{
	int64_t wide = (a->taps - 1) * (a->tap_step < 0 ? -a->tap_step : a->tap_step);
	return a->taps ? (outputs - 1) * a->step + wide + 1 : 0;
}

/* Where the lanes of a vector of output channels read. */
typedef struct sources {
	int64_t first, window; /* input channels that they read, as long as they follow each other */
	int64_t at[VF];        /* of each lane: its group's first channel, behind `first` */
	int lanes;
} sources;

static sources sources_of(const conv *c, int64_t channel)
{
	int64_t all = c->groups * c->oc;
	sources s = {.first = channel / c->oc * c->ic, .lanes = all - channel < VF ? (int)(all - channel) : VF};
	for (int i = 0; i < s.lanes; i++)
		s.at[i] = (channel + i) / c->oc * c->ic - s.first;
	s.window = s.at[s.lanes - 1] + c->ic;
	return s;
}

/* One pixel: ic vectors. */
static void spread_pixel(const conv *c, const float *pixel, const sources *s, float *to)
{
	const float *from = pixel + s->first * c->in_stride[CONV_C];
	if (s->window <= VF && c->in_stride[CONV_C] == 1) {
		vf all = vf_load_n(from, s->window);
		vi at;
		for (int i = 0; i < VF; i++)
			at[i] = (int32_t)s->at[i];
		for (int64_t i = 0; i < c->ic; i++)
			vf_store(to + i * VF, vf_permute(all, at + (int32_t)i));
		return;
	}
	for (int64_t i = 0; i < c->ic; i++)
		for (int l = 0; l < s->lanes; l++)
			to[i * VF + l] = from[(s->at[l] + i) * c->in_stride[CONV_C]];
}

static void spread_input(const conv_call *j, const item *it, int64_t channel, float *to)
{
	const conv *c = j->c;
	const conv_axis *d = &c->axis[0], *h = &c->axis[1], *w = &c->axis[2];
	int64_t height = span_of(h, it->rows), width = span_of(w, w->count), y0 = it->row * h->step + low_tap(h);
	int64_t x0 = low_tap(w), pixel = c->ic * VF;
	sources s = sources_of(c, channel);
	memset(to, 0, (size_t)(d->taps * height * width * pixel) * sizeof *to);
	for (int64_t t = 0; t < d->taps; t++) {
		int64_t z = it->depth * d->step + tap_at(d, t);
		for (int64_t y = 0; y < height; y++) {
			if (z < 0 || z >= d->in || y0 + y < 0 || y0 + y >= h->in)
				continue;
			const float *row =
				j->in + it->image * c->in_stride[CONV_N] + z * c->in_stride[CONV_D] + (y0 + y) * c->in_stride[CONV_H];
			for (int64_t x = x0 < 0 ? -x0 : 0; x < width && x0 + x < w->in; x++)
				spread_pixel(c, row + (x0 + x) * c->in_stride[CONV_W], &s, to + ((t * height + y) * width + x) * pixel);
		}
	}
}

static int64_t all_taps(const conv *c, int64_t height, int64_t width, entry *at)
{
	const conv_axis *d = &c->axis[0], *h = &c->axis[1], *w = &c->axis[2];
	int64_t n = 0, lanes = width_of(c);
	for (int64_t z = 0; z < d->taps; z++)
		for (int64_t y = 0; y < h->taps; y++)
			for (int64_t x = 0; x < w->taps; x++) {
				int64_t from = ((z * height + tap_at(h, y) - low_tap(h)) * width + tap_at(w, x) - low_tap(w)) * c->ic;
				for (int64_t i = 0; i < c->ic; i++, n++)
					at[n] = (entry){(from + i) * VF, n * lanes};
			}
	return n;
}

static void run_spread(const conv_call *j, const item *it, float *copy, entry *at)
{
	const conv *c = j->c;
	const conv_axis *h = &c->axis[1], *w = &c->axis[2];
	int64_t height = span_of(h, it->rows), width = span_of(w, w->count), pixel = c->ic * VF;
	strip s = {.lda = w->step * pixel, .ldc = w->jump * c->out_stride[CONV_W], .at = at};
	s.n = all_taps(c, height, width, at);
	for (int64_t ch = 0; ch < it->channels; ch += VF) {
		int64_t lanes = it->channels - ch < VF ? it->channels - ch : VF;
		spread_input(j, it, it->channel + ch, copy);
		s.weights = (const float *)j->weights + it->channel + ch;
		s.bias = j->bias ? j->bias + it->channel + ch : NULL;
		for (int64_t y = 0; y < it->rows; y++) {
			s.a = copy + y * h->step * width * pixel;
			s.c = output_at(j, it, it->row + y) + ch;
			run_pixels(s, w->count, lanes);
		}
	}
}

static void run_items(void *ctx, int64_t first, int64_t end, int thread)
{
	const conv_call *j = ctx;
	const conv *c = j->c;
	float *copy = j->scratch + thread * c->scratch;
	entry *at = (entry *)(copy + c->copy);
	for (int64_t i = first; i < end; i++) {
		item it = item_at(c, i);
		if (c->copied)
			run_spread(j, &it, copy, at);
		int64_t width = c->axis[2].count, height = c->axis[1].count;
		for (int64_t y = it.row; y < it.row + it.rows; y++) {
			if (!c->copied)
				run_row(j, &it, y, at);
			if (j->done)
				j->done(j->ctx, output_at(j, &it, y), c->out_stride[CONV_W],
				        ((it.image * c->axis[0].count + it.depth) * height + y) * width, width, it.channel,
				        it.channels);
		}
	}
}

void ISA(conv_lanes)(team *t, const conv_call *call)
{
	team_run(t, call->c->items, 1, run_items, (void *)call);
}
