/* Convolutions by tiles of 4×4 outputs: which ones, the division of the work, and the packing of weights. See conv.h; the
 * transformations of inputs and sums are in simd/winograd.c. */
#include <math.h>

#include "native/conv.h"

enum { SCRATCH_FLOATS = 192 << 10, FEWEST_TILES = 12, MOST_TILES = 32, LANES_AT_A_TIME = 64 };

static int64_t min64(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int64_t blocks_of(int64_t n, int64_t size)
{
	return (n + size - 1) / size;
}

static int64_t rounded(int64_t n, int64_t to)
{
	return blocks_of(n, to) * to;
}

int64_t tiles_phases(const conv_axis *a)
{
	return min64(a->tap_step, a->count);
}

int64_t tiles_along(const conv_axis *a)
{
	return a->count ? blocks_of(blocks_of(a->count, tiles_phases(a)), TILE_OUT) : 0;
}

int64_t tiles_of(const conv *c)
{
	const conv_axis *h = &c->axis[1], *w = &c->axis[2];
	return tiles_phases(h) * tiles_phases(w) * tiles_along(h) * tiles_along(w);
}

static bool axis_fits(const conv_axis *a)
{
	return a->taps == 3 && a->step == 1 && a->jump == 1 && a->start == 0 && a->tap_step > 0 && a->k0 == 0 &&
	       a->k_step == 1;
}

/* Enough tiles for the products to be worth their larger weights, and few of their outputs beyond the image. */
bool tiles_fit(const conv *c, int vector)
{
	const conv_axis *d = &c->axis[0], *h = &c->axis[1], *w = &c->axis[2];
	if (d->taps != 1 || d->in != 1 || d->count != 1 || d->tap0 != 0 || !axis_fits(h) || !axis_fits(w))
		return false;
	if (c->ic < 16 || c->oc < 16 || c->oc < vector || c->in_stride[CONV_C] != 1)
		return false;
	int64_t tiles = tiles_of(c);
	return tiles >= FEWEST_TILES && tiles * TILE_PLACES <= h->count * w->count * 9 * 6 / 10;
}

tiles_room tiles_room_of(const conv *c, int vector)
{
	int64_t panel = 2 * vector;
	tiles_room r = {.pixel = rounded(c->ic, 16), .panels = LANES_AT_A_TIME / panel};
	r.pixel += r.pixel % 512 == 0 ? 16 : 0; /* other places in the cache for each tile, and each of the 36 */
	r.panels = min64(r.panels > 0 ? r.panels : 1, c->panels);
	r.lanes = r.panels * panel;
	r.plane = c->rows * r.pixel + 16;
	r.sum_plane = c->rows * r.lanes + 16;
	return r;
}

static int64_t count_items(conv *c, int64_t panels)
{
	c->nrows = blocks_of(tiles_of(c), c->rows);
	c->npanels = blocks_of(panels, c->panels);
	return c->images * c->groups * c->nrows * c->npanels;
}

/* Blocks of channels where weights are the larger part of what is read, else of tiles. */
static void spread(conv *c, int64_t panels, int64_t wanted)
{
	bool by_panels = TILE_PLACES * c->oc > c->axis[1].count * c->axis[2].count;
	while (count_items(c, panels) < wanted) {
		if (by_panels && c->panels > 1)
			c->panels = blocks_of(c->panels, 2);
		else if (c->rows > FEWEST_TILES)
			c->rows = blocks_of(c->rows, 2);
		else if (c->panels > 1)
			c->panels = blocks_of(c->panels, 2);
		else
			break;
	}
}

/* Whole rows of tiles where several fit: their outputs are handed on together. */
static int64_t tiles_at_a_time(const conv *c)
{
	int64_t all = tiles_of(c), wide = tiles_along(&c->axis[2]);
	int64_t most = SCRATCH_FLOATS / TILE_PLACES / (rounded(c->ic, 16) + LANES_AT_A_TIME);
	most = most < MOST_TILES ? MOST_TILES : most;
	int64_t each = all ? blocks_of(all, blocks_of(all, most)) : 0;
	return each > wide && rounded(each, wide) <= most ? rounded(each, wide) : each;
}

void tiles_divide(conv *c, int vector, int threads)
{
	int64_t panels = conv_panels(c, vector);
	c->rows = tiles_at_a_time(c);
	c->panels = panels;
	c->items = 0;
	if (c->rows && panels && c->images) {
		if (threads > 1)
			spread(c, panels, 4 * threads);
		c->items = count_items(c, panels);
	}
	tiles_room r = tiles_room_of(c, vector);
	c->scratch = c->copy = TILE_PLACES * (r.plane + r.sum_plane);
}

/* ---- weights ----------------------------------------------------------------------------------------------------------- */

int64_t tiles_size(const conv *c, int vector)
{
	return c->groups * (conv_panel_at(c, vector, INT64_MAX) / conv_taps(c)) * TILE_PLACES;
}

/* Three numbers become six: values of the polynomial that they are the coefficients of at 0, ±a, ±b and at infinity, over the
   product of the distances of the place to the others; a² = 1/2, b² = 2. Exact enough in floats, as a and b are near 1. */
static void six_of(const double g[3], double out[6])
{
	double even = g[0] + g[2] / 2, odd = g[1] * M_SQRT1_2, wide = g[0] + g[2] * 2, far = g[1] * M_SQRT2;
	out[0] = g[0];
	out[1] = (even + odd) / -1.5;
	out[2] = (even - odd) / -1.5;
	out[3] = (wide + far) / 6;
	out[4] = (wide - far) / 6;
	out[5] = g[2];
}

static void weight_tile(const float g[9], float *out, int64_t plane)
{
	double part[3][TILE_IN], line[TILE_IN];
	for (int y = 0; y < 3; y++)
		six_of((double[3]){g[3 * y], g[3 * y + 1], g[3 * y + 2]}, part[y]);
	for (int x = 0; x < TILE_IN; x++) {
		six_of((double[3]){part[0][x], part[1][x], part[2][x]}, line);
		for (int y = 0; y < TILE_IN; y++)
			out[(y * TILE_IN + x) * plane] = (float)line[y];
	}
}

void tiles_pack(const conv *c, int vector, const conv_weights *w, float *out)
{
	const int64_t *stride = w->stride;
	for (int64_t g = 0; g < c->groups; g++)
		for (int64_t p = 0; p < conv_panels(c, vector); p++) {
			int64_t width = conv_panel_width(c, vector, p), first = g * c->oc + p * 2 * vector;
			int64_t there = min64(width, (g + 1) * c->oc - first), plane = c->ic * width;
			for (int64_t i = 0; i < c->ic; i++)
				for (int64_t o = 0; o < width; o++) {
					int64_t at = (first + o) * stride[0] + i * stride[1];
					float tile[9] = {0};
					for (int k = 0; o < there && k < 9; k++)
						tile[k] = conv_weight(w, at + k / 3 * stride[3] + k % 3 * stride[4]);
					weight_tile(tile, out + i * width + o, plane);
				}
			out += plane * TILE_PLACES;
		}
}
