/* Pooling and resizing of f32 pixels: the lanes of a vector are channels (see native/window.h). */
#include "native/window.h"

#include "native/simd/kernels_isa.h"

#define UNROLL _Pragma("GCC unroll 8")
#define INLINE static inline __attribute__((always_inline))

enum { BLOCK = 4 * VF }; /* channels of one item */

typedef struct place {
	int64_t image, at[3], channel, channels;
} place;

static int64_t blocks(int64_t channels)
{
	return (channels + BLOCK - 1) / BLOCK;
}

/* Items are rows of output pixels × blocks of channels. */
static place place_of(int64_t item, const int64_t out[3], int64_t channels)
{
	int64_t all = blocks(channels), row = item / all;
	place p = {.image = row / out[1] / out[0], .at = {row / out[1] % out[0], row % out[1], 0}};
	p.channel = item % all * BLOCK;
	p.channels = channels - p.channel < BLOCK ? channels - p.channel : BLOCK;
	return p;
}

static int64_t items_of(int64_t images, const int64_t out[3], int64_t channels)
{
	return out[2] ? images * out[0] * out[1] * blocks(channels) : 0;
}

static int64_t offset_of(const int64_t stride[5], const place *p)
{
	return p->image * stride[0] + p->channel + p->at[0] * stride[2] + p->at[1] * stride[3];
}

INLINE vf load_part(const float *p, bool partial, int64_t lanes)
{
	return partial ? vf_load_n(p, lanes) : vf_load(p);
}

INLINE void store_part(float *p, vf v, bool partial, int64_t lanes)
{
	if (partial)
		vf_store_n(p, v, lanes);
	else
		vf_store(p, v);
}

/* ---- pooling -------------------------------------------------------------------------------------------------------------- */

typedef struct pooling {
	const pool *p;
	const float *in;
	float *out;
} pooling;

/* nv vectors of one output pixel. A mean sums rows first, so that large windows lose little. */
INLINE void pool_pixel(const pool *p, const float *in, const pool_window *const w[3], float *out, const bool mean,
                       const int nv, const bool partial, int64_t lanes)
{
	vf sum[4];
	UNROLL for (int v = 0; v < nv; v++) sum[v] = mean ? vf_zero() : vf_set1(-__builtin_inff());
	for (int64_t z = 0; z < w[0]->count; z++)
		for (int64_t y = 0; y < w[1]->count; y++) {
			const float *row = in + (w[0]->first + z * p->step[0]) * p->in_stride[2] +
			                   (w[1]->first + y * p->step[1]) * p->in_stride[3] + w[2]->first * p->in_stride[4];
			vf part[4];
			UNROLL for (int v = 0; v < nv; v++) part[v] = mean ? vf_zero() : sum[v];
			for (int64_t x = 0; x < w[2]->count; x++, row += p->step[2] * p->in_stride[4])
				UNROLL for (int v = 0; v < nv; v++)
				{
					vf one = load_part(row + v * VF, partial, lanes);
					part[v] = mean ? (vf)(part[v] + one) : vf_max(part[v], one);
				}
			UNROLL for (int v = 0; v < nv; v++) sum[v] = mean ? (vf)(sum[v] + part[v]) : part[v];
		}
	int64_t by =
		p->divisor ? p->divisor : (int64_t)((uint64_t)w[0]->size * (uint64_t)w[1]->size * (uint64_t)w[2]->size);
	UNROLL for (int v = 0; v < nv; v++)
		store_part(out + v * VF, mean ? (vf)(sum[v] / vf_set1((float)(by ? by : 1))) : sum[v], partial, lanes);
}

INLINE void pool_row(const pooling *j, place at, const bool mean)
{
	const pool *p = j->p;
	const float *in = j->in + at.image * p->in_stride[0] + at.channel;
	float *out = j->out + offset_of(p->out_stride, &at);
	for (int64_t x = 0; x < p->out[2]; x++, out += p->out_stride[4]) {
		const pool_window *const w[3] = {&p->at[0][at.at[0]], &p->at[1][at.at[1]], &p->at[2][x]};
		int64_t c = 0;
		if (at.channels == BLOCK) {
			pool_pixel(p, in, w, out, mean, 4, false, 0);
			continue;
		}
		for (; c + VF <= at.channels; c += VF)
			pool_pixel(p, in + c, w, out + c, mean, 1, false, 0);
		if (c < at.channels)
			pool_pixel(p, in + c, w, out + c, mean, 1, true, at.channels - c);
	}
}

static void pool_items(void *ctx, int64_t first, int64_t end, int thread)
{
	const pooling *j = ctx;
	(void)thread;
	for (int64_t i = first; i < end; i++) {
		place at = place_of(i, j->p->out, j->p->channels);
		if (j->p->mean)
			pool_row(j, at, true);
		else
			pool_row(j, at, false);
	}
}

void ISA(pool)(team *t, const pool *p, const float *in, float *out)
{
	pooling j = {p, in, out};
	team_run(t, items_of(p->images, p->out, p->channels), 1, pool_items, &j);
}

/* ---- resizing --------------------------------------------------------------------------------------------------------------- */

typedef struct resizing {
	const resize *r;
	const float *in;
	float *out;
} resizing;

/* Where the inputs of one output pixel are. */
typedef struct taps {
	int64_t count[3];
	const int64_t *at[3];
	const float *weight[3];
} taps;

INLINE void set_taps(const resize *r, int d, int64_t o, taps *t)
{
	t->count[d] = r->count[d][o];
	t->at[d] = r->at[d] + o * r->taps[d];
	t->weight[d] = r->weight[d] + o * r->taps[d];
}

INLINE void resize_pixel(const resize *r, const float *in, const taps *w, float *out, const int nv, const bool partial,
                         int64_t lanes)
{
	vf sum[4];
	UNROLL for (int v = 0; v < nv; v++) sum[v] = vf_zero();
	for (int64_t z = 0; z < w->count[0]; z++)
		for (int64_t y = 0; y < w->count[1]; y++) {
			const float *row = in + w->at[0][z] * r->in_stride[2] + w->at[1][y] * r->in_stride[3];
			vf part[4], weight = vf_set1(w->weight[0][z] * w->weight[1][y]);
			UNROLL for (int v = 0; v < nv; v++) part[v] = vf_zero();
			for (int64_t x = 0; x < w->count[2]; x++)
				UNROLL for (int v = 0; v < nv; v++)
				{
					vf one = load_part(row + w->at[2][x] * r->in_stride[4] + v * VF, partial, lanes);
					part[v] = vf_fma(one, vf_set1(w->weight[2][x]), part[v]);
				}
			UNROLL for (int v = 0; v < nv; v++) sum[v] = vf_fma(part[v], weight, sum[v]);
		}
	UNROLL for (int v = 0; v < nv; v++) store_part(out + v * VF, sum[v], partial, lanes);
}

static void resize_items(void *ctx, int64_t first, int64_t end, int thread)
{
	const resizing *j = ctx;
	const resize *r = j->r;
	(void)thread;
	for (int64_t i = first; i < end; i++) {
		place at = place_of(i, r->out, r->channels);
		const float *in = j->in + at.image * r->in_stride[0] + at.channel;
		float *out = j->out + offset_of(r->out_stride, &at);
		taps w;
		set_taps(r, 0, at.at[0], &w);
		set_taps(r, 1, at.at[1], &w);
		for (int64_t x = 0; x < r->out[2]; x++, out += r->out_stride[4]) {
			int64_t c = 0;
			set_taps(r, 2, x, &w);
			if (at.channels == BLOCK) {
				resize_pixel(r, in, &w, out, 4, false, 0);
				continue;
			}
			for (; c + VF <= at.channels; c += VF)
				resize_pixel(r, in + c, &w, out + c, 1, false, 0);
			if (c < at.channels)
				resize_pixel(r, in + c, &w, out + c, 1, true, at.channels - c);
		}
	}
}

void ISA(resize)(team *t, const resize *r, const float *in, float *out)
{
	resizing j = {r, in, out};
	team_run(t, items_of(r->images, r->out, r->channels), 1, resize_items, &j);
}
