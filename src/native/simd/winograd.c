/* Convolutions by tiles of 4×4 outputs (see native/conv.h): inputs to 36 planes, 36 matrix products, sums to outputs.
 *
 * Values are those of polynomials at 0, ±a, ±b and infinity, a² = 1/2 and b² = 2, which keeps all factors near 1. A tile whose
 * outputs are not all finite is computed again by the plain sum: there an infinite number reaches the outputs that read it
 * alone. */
#include "native/conv.h"
#include "native/simd/kernels_isa.h"
#include "native/simd/math.h"

#define UNROLL _Pragma("GCC unroll 8")
#define INLINE static inline __attribute__((always_inline))

enum { PANEL = 2 * VF };
static const float A = 0.707106781f, B = 1.41421356f;

typedef struct item {
	int64_t image, group, tile, tiles, panel, panels;
} item;

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static item item_at(const conv *c, int64_t i)
{
	item it;
	it.panel = i % c->npanels * c->panels, i /= c->npanels;
	it.tile = i % c->nrows * c->rows, i /= c->nrows;
	it.group = i % c->groups, it.image = i / c->groups;
	it.tiles = least(c->rows, tiles_of(c) - it.tile);
	it.panels = least(c->panels, (c->oc + PANEL - 1) / PANEL - it.panel);
	return it;
}

/* The first output of a tile. */
typedef struct spot {
	int64_t y, x;
} spot;

static spot spot_of(const conv *c, int64_t tile)
{
	const conv_axis *h = &c->axis[1], *w = &c->axis[2];
	int64_t high = tiles_along(h), wide = tiles_along(w), phase = tile / (high * wide);
	return (spot){phase / tiles_phases(w) + tile / wide % high * TILE_OUT * h->tap_step,
	              phase % tiles_phases(w) + tile % wide * TILE_OUT * w->tap_step};
}

/* ---- inputs ------------------------------------------------------------------------------------------------------------ */

/* Six inputs to six values. */
INLINE void six_inputs(vf d[TILE_IN], vf *to, const int step)
{
	vf near = vf_fma(d[2], vf_set1(-2.0f), d[4]), odd = vf_fma(d[1], vf_set1(-2.0f), d[3]) * A;
	vf far = vf_fma(d[2], vf_set1(-0.5f), d[4]), wide = vf_fma(d[1], vf_set1(-0.5f), d[3]) * B;
	to[0] = vf_fma(d[2], vf_set1(-2.5f), d[0] + d[4]);
	to[step] = near + odd;
	to[2 * step] = near - odd;
	to[3 * step] = far + wide;
	to[4 * step] = far - wide;
	to[5 * step] = vf_fma(d[3], vf_set1(-2.5f), d[1] + d[5]);
}

typedef struct corner {
	const float *at[TILE_IN]; /* rows of inputs, NULL: outside */
	int64_t col[TILE_IN];     /* -1: outside */
} corner;

static corner corner_of(const conv *c, const float *image, spot at)
{
	const conv_axis *h = &c->axis[1], *w = &c->axis[2];
	corner k;
	for (int i = 0; i < TILE_IN; i++) {
		int64_t y = at.y + i * h->tap_step + h->tap0, x = at.x + i * w->tap_step + w->tap0;
		k.at[i] = y >= 0 && y < h->in ? image + y * c->in_stride[CONV_H] : NULL;
		k.col[i] = x >= 0 && x < w->in ? x * c->in_stride[CONV_W] : -1;
	}
	return k;
}

/* `lanes` channels from channel ch on. */
INLINE void input_tile(const corner *k, int64_t ch, float *to, int64_t plane, const bool partial, int64_t lanes)
{
	vf part[TILE_PLACES];
	UNROLL for (int y = 0; y < TILE_IN; y++)
	{
		vf d[TILE_IN];
		UNROLL for (int x = 0; x < TILE_IN; x++)
		{
			const float *p = k->at[y] && k->col[x] >= 0 ? k->at[y] + k->col[x] + ch : NULL;
			d[x] = !p ? vf_zero() : partial ? vf_load_n(p, lanes) : vf_load(p);
		}
		six_inputs(d, part + y * TILE_IN, 1);
	}
	UNROLL for (int x = 0; x < TILE_IN; x++)
	{
		vf d[TILE_IN], out[TILE_IN];
		UNROLL for (int y = 0; y < TILE_IN; y++) d[y] = part[y * TILE_IN + x];
		six_inputs(d, out, 1);
		UNROLL for (int y = 0; y < TILE_IN; y++) vf_store(to + (y * TILE_IN + x) * plane, out[y]);
	}
}

static const float *image_of(const conv_call *j, const item *it)
{
	return j->in + it->image * j->c->in_stride[CONV_N] + it->group * j->c->ic;
}

static void transform_inputs(const conv_call *j, const item *it, const tiles_room *r, float *to)
{
	const conv *c = j->c;
	for (int64_t t = 0; t < it->tiles; t++, to += r->pixel) {
		corner k = corner_of(c, image_of(j, it), spot_of(c, it->tile + t));
		int64_t ch = 0;
		for (; ch + VF <= c->ic; ch += VF)
			input_tile(&k, ch, to + ch, r->plane, false, 0);
		if (ch < c->ic)
			input_tile(&k, ch, to + ch, r->plane, true, c->ic - ch);
	}
}

/* ---- outputs ----------------------------------------------------------------------------------------------------------- */

/* Six sums to four outputs. */
INLINE void four_outputs(const vf m[TILE_IN], vf to[TILE_OUT])
{
	vf near = m[1] + m[2], odd = m[1] - m[2], far = m[3] + m[4], wide = m[3] - m[4];
	to[0] = m[0] + near + far;
	to[1] = vf_fma(odd, vf_set1(A), wide * B);
	to[2] = vf_fma(near, vf_set1(0.5f), far * 2.0f);
	to[3] = vf_fma(odd, vf_set1(A / 2), vf_fma(wide, vf_set1(B * 2), m[5]));
}

typedef struct target {
	float *at;
	int64_t row, col;   /* steps between outputs */
	int64_t high, wide; /* how many of them there are, up to 4 each */
} target;

/* false: some output is not finite. */
INLINE bool output_tile(const float *sums, int64_t plane, vf bias, const target *t, const bool partial, int64_t lanes)
{
	vf part[TILE_OUT][TILE_IN], bad = vf_zero();
	UNROLL for (int x = 0; x < TILE_IN; x++)
	{
		vf m[TILE_IN], out[TILE_OUT];
		UNROLL for (int y = 0; y < TILE_IN; y++) m[y] = vf_load(sums + (y * TILE_IN + x) * plane);
		four_outputs(m, out);
		UNROLL for (int y = 0; y < TILE_OUT; y++) part[y][x] = out[y];
	}
	UNROLL for (int y = 0; y < TILE_OUT; y++)
	{
		vf out[TILE_OUT];
		four_outputs(part[y], out);
		UNROLL for (int x = 0; x < TILE_OUT; x++)
		{
			out[x] += bias;
			bad = vf_fma(out[x], vf_zero(), bad);
			if (y >= t->high || x >= t->wide)
				continue;
			if (partial)
				vf_store_n(t->at + y * t->row + x * t->col, out[x], lanes);
			else
				vf_store(t->at + y * t->row + x * t->col, out[x]);
		}
	}
	return !vi_any(vf_isnan(bad));
}

/* The plain sum, for one tile and channels o … o+lanes-1 of the group. */
static void plain_tile(const conv_call *j, const corner *k, int64_t group, int64_t o, int64_t lanes, const target *t)
{
	const conv *c = j->c;
	const int64_t *ws = j->plain->stride;
	for (int64_t e = 0; e < t->high * t->wide * lanes; e++) {
		int64_t y = e / lanes / t->wide, x = e / lanes % t->wide, channel = group * c->oc + o + e % lanes;
		float sum = j->bias ? j->bias[channel] : 0;
		for (int64_t tap = 0; tap < 9; tap++) {
			const float *row = k->at[y + tap / 3];
			int64_t col = k->col[x + tap % 3], at = channel * ws[0] + tap / 3 * ws[3] + tap % 3 * ws[4];
			for (int64_t i = 0; row && col >= 0 && i < c->ic; i++)
				sum += row[col + i] * conv_weight(j->plain, at + i * ws[1]);
		}
		t->at[y * t->row + x * t->col + e % lanes] = sum;
	}
}

static target target_of(const conv_call *j, const item *it, spot at)
{
	const conv *c = j->c;
	const conv_axis *h = &c->axis[1], *w = &c->axis[2];
	target t = {.row = h->tap_step * c->out_stride[CONV_H], .col = w->tap_step * c->out_stride[CONV_W]};
	t.at = j->out + it->image * c->out_stride[CONV_N] + at.y * c->out_stride[CONV_H] + at.x * c->out_stride[CONV_W] +
	       it->group * c->oc;
	t.high = least(TILE_OUT, (h->count - at.y + h->tap_step - 1) / h->tap_step);
	t.wide = least(TILE_OUT, (w->count - at.x + w->tap_step - 1) / w->tap_step);
	return t;
}

/* Channels o … end-1 of one tile. */
static void outputs_of_tile(const conv_call *j, const item *it, spot at, int64_t o, int64_t end, const float *sums,
                            int64_t plane)
{
	const conv *c = j->c;
	target t = target_of(j, it, at);
	t.at += o;
	for (; o < end && t.high > 0 && t.wide > 0; o += VF, sums += VF, t.at += VF) {
		int64_t lanes = least(VF, end - o);
		const float *bias = j->bias ? j->bias + it->group * c->oc + o : NULL;
		vf add = !bias ? vf_zero() : lanes < VF ? vf_load_n(bias, lanes) : vf_load(bias);
		if (lanes < VF ? output_tile(sums, plane, add, &t, true, lanes) : output_tile(sums, plane, add, &t, false, 0))
			continue;
		corner k = corner_of(c, image_of(j, it), at);
		plain_tile(j, &k, it->group, o, lanes, &t);
	}
}

/* ---- items ------------------------------------------------------------------------------------------------------------- */

static void multiply(const conv *c, const item *it, int64_t p, const tiles_room *r, const float *weights,
                     const float *inputs, float *sums, int64_t lanes)
{
	int64_t last = conv_panel_width(c, VF, (c->oc - 1) / PANEL), place = c->ic * PANEL;
	int64_t half = last == VF && p == (c->oc - 1) / PANEL ? VF : PANEL;
	for (int64_t i = 0; i < TILE_PLACES; i++) {
		gemm_block g = {.m = it->tiles, .n = (lanes + VF - 1) / VF * VF, .k = c->ic};
		g.a = inputs + i * r->plane, g.a_row = r->pixel, g.a_k = 1;
		g.b = weights + i * (half == VF ? c->ic * VF : place);
		g.b_k = PANEL, g.b_k_half = VF, g.b_panel = TILE_PLACES * place;
		g.c = sums + i * r->sum_plane, g.c_row = r->lanes;
		ISA(gemm)(&g);
	}
}

/* The panels of an item, some at a time; one by one at the end, where the last is narrower. */
static void run_panels(const conv_call *j, const item *it, const tiles_room *r, const float *inputs, float *sums)
{
	const conv *c = j->c;
	const float *group = (const float *)j->weights + it->group * (tiles_size(c, VF) / c->groups);
	for (int64_t p = it->panel, n; p < it->panel + it->panels; p += n) {
		n = least(r->panels, it->panel + it->panels - p);
		if (n > 1 && (p + n) * PANEL > c->oc)
			n--;
		int64_t o = p * PANEL, end = least(c->oc, (p + n) * PANEL);
		multiply(c, it, p, r, group + p * TILE_PLACES * c->ic * PANEL, inputs, sums, end - o);
		for (int64_t t = 0; t < it->tiles; t++)
			outputs_of_tile(j, it, spot_of(c, it->tile + t), o, end, sums + t * r->lanes, r->sum_plane);
	}
}

/* Hands on `rows` × `wide` outputs that begin at a spot. */
static void hand_on(const conv_call *j, const item *it, spot at, int64_t rows, int64_t wide)
{
	const conv *c = j->c;
	int64_t ldc = c->out_stride[CONV_W], col = it->group * c->oc + it->panel * PANEL;
	int64_t cols = least(it->panels * PANEL, c->oc - it->panel * PANEL);
	for (int64_t y = at.y; y < at.y + rows; y++) {
		float *block = j->out + it->image * c->out_stride[CONV_N] + y * c->out_stride[CONV_H] + at.x * ldc + col;
		j->done(j->ctx, block, ldc, (it->image * c->axis[1].count + y) * c->axis[2].count + at.x, wide, col, cols);
	}
}

/* Whole rows of tiles as rows of pixels; where a phase has every other pixel, these one by one. */
static void finish_item(const conv_call *j, const item *it)
{
	const conv *c = j->c;
	const conv_axis *h = &c->axis[1], *w = &c->axis[2];
	int64_t row = tiles_along(w), step = h->tap_step == 1 && w->tap_step == 1 ? row : 1;
	for (int64_t t = 0; t < it->tiles; t += it->tile % row == 0 && t + step <= it->tiles ? step : 1) {
		bool whole = step > 1 && it->tile % row == 0 && t + step <= it->tiles;
		spot at = spot_of(c, it->tile + t);
		target k = target_of(j, it, at);
		if (whole || (h->tap_step == 1 && w->tap_step == 1)) {
			hand_on(j, it, at, k.high, whole ? w->count : k.wide);
			continue;
		}
		for (int64_t y = 0; y < k.high; y++)
			for (int64_t x = 0; x < k.wide; x++)
				hand_on(j, it, (spot){at.y + y * h->tap_step, at.x + x * w->tap_step}, 1, 1);
	}
}

static void run_items(void *ctx, int64_t first, int64_t end, int thread)
{
	const conv_call *j = ctx;
	const conv *c = j->c;
	tiles_room r = tiles_room_of(c, VF);
	float *inputs = j->scratch + thread * c->scratch, *sums = inputs + TILE_PLACES * r.plane;
	for (int64_t i = first; i < end; i++) {
		item it = item_at(c, i);
		if (i == first || it.panel == 0) /* else those of the item before */
			transform_inputs(j, &it, &r, inputs);
		run_panels(j, &it, &r, inputs, sums);
		if (j->done)
			finish_item(j, &it);
	}
}

void ISA(conv_tiles)(team *t, const conv_call *call)
{
	team_run(t, call->c->items, 1, run_items, (void *)call);
}
