/* Convolutions of f32 over channels-last pixels, with weights of f32, f16 or bf16: tiles of pixels × output channels in registers (see native/conv.h).
 *
 * A tile has one or two rows of up to HALF pixels, and one panel of channels. For every tap and input channel it broadcasts one
 * float per pixel against the vectors of the panel. An item (a block of rows and columns, and some panels) copies the input it
 * reads, with its padding, if there is any or if channels are not next to each other; other inputs are read in place. */
#include "native/conv.h"
#include "native/simd/kernels_isa.h"

#if defined(NATIVE_AVX512) || defined(NATIVE_NEON)
enum { HALF = 7 }; /* 28 of 32 registers hold sums */
#else
enum { HALF = 3 }; /* 12 of 16 */
#endif
enum { PANEL = 2 * VF, RUNS = 64, LINE = 16 / VF };

#define UNROLL _Pragma("GCC unroll 16")
#define INLINE static inline __attribute__((always_inline))

typedef struct offset {
	int64_t in, weight; /* of the first element of a run; that of the weight in rows of a panel */
} offset;

typedef struct tile {
	const float *a;              /* the first pixel at tap offset 0 */
	int64_t lda;                 /* from one pixel to the next */
	int64_t a_row;               /* to the second row */
	const struct offset *offset; /* of the runs: inputs that follow each other in memory, and in the weights */
	int64_t runs, run;
	const char *b;
	const float *bias;
	panel_type type; /* of b */
	int64_t b_panel; /* from one panel to the next, where a tile has several */
	float *c;
	int64_t ldc, c_row;
	int64_t lanes; /* output channels that are there */
} tile;

/* w pixels in `rows` rows, nv vectors of channels: constants in every call, so that sums are registers. */
INLINE void tile_run(const panel_kind kind, const tile *t, const int w, const int rows, const int nv)
{
	const int64_t each = kind_bytes(kind);
	vf sum[2 * HALF][8];
	if (w * rows > 2) /* what is stored at the end comes into the cache meanwhile */
		UNROLL for (int i = 0; i < w * rows; i++) UNROLL for (int v = 0; v < nv; v += LINE)
			__builtin_prefetch(t->c + i / w * t->c_row + i % w * t->ldc + v * VF, 1);
	UNROLL for (int v = 0; v < nv; v++)
	{
		vf init = t->bias ? vf_load_n(t->bias + v * VF, t->lanes - v * VF < VF ? t->lanes - v * VF : VF) : vf_zero();
		UNROLL for (int i = 0; i < w * rows; i++) sum[i][v] = init;
	}
	const int64_t lda = t->lda, b_panel = t->b_panel;
	for (int64_t r = 0; r < t->runs; r++) {
		const float *a0 = t->a + t->offset[r].in, *a1 = a0 + t->a_row;
		const char *b = t->b + t->offset[r].weight * (nv == 1 ? VF : PANEL) * each;
		const float *a[2][3] = {{a0, a0 + 3 * lda, a0 + 6 * lda}, {a1, a1 + 3 * lda, a1 + 6 * lda}};
		for (int64_t k = 0; k < t->run; k++) {
			vf x[8];
			UNROLL for (int v = 0; v < nv; v++) x[v] = panel_read(kind, t->type, b, (v / 2) * b_panel + v % 2 * VF);
			UNROLL for (int i = 0; i < w * rows; i++)
			{
				vf pixel = vf_set1(a[i / w][i % w / 3][i % w % 3 * lda]);
				UNROLL for (int v = 0; v < nv; v++) sum[i][v] = vf_fma(pixel, x[v], sum[i][v]);
			}
			UNROLL for (int i = 0; i < rows; i++) UNROLL for (int j = 0; j < (w + 2) / 3; j++) a[i][j]++;
			b += (nv == 1 ? VF : PANEL) * each;
		}
	}
	if (t->lanes >= nv * VF) {
		UNROLL for (int i = 0; i < w * rows; i++) UNROLL for (int v = 0; v < nv; v++)
			vf_store(t->c + i / w * t->c_row + i % w * t->ldc + v * VF, sum[i][v]);
		return;
	}
	UNROLL for (int i = 0; i < w * rows; i++) UNROLL for (int v = 0; v < nv; v++) vf_store_n(
		t->c + i / w * t->c_row + i % w * t->ldc + v * VF, sum[i][v], t->lanes - v * VF < VF ? t->lanes - v * VF : VF);
}

#define TILE(type, w, rows, nv)                                                                                        \
	static void tile_##type##_##w##_##rows##_##nv(const tile *t)                                                       \
	{                                                                                                                  \
		tile_run(PANEL_##type, t, w, rows, nv);                                                                        \
	}
#define TILES(type, w) TILE(type, w, 1, 1) TILE(type, w, 1, 2) TILE(type, w, 2, 1) TILE(type, w, 2, 2)
#define TILE_ROW(type, w)                                                                                              \
	{                                                                                                                  \
		{tile_##type##_##w##_1_1, tile_##type##_##w##_1_2},                                                            \
		{                                                                                                              \
			tile_##type##_##w##_2_1, tile_##type##_##w##_2_2                                                           \
		}                                                                                                              \
	}
typedef void tile_fn(const tile *t);
#if defined(NATIVE_AVX512) || defined(NATIVE_NEON)
#define WITH_WIDTHS(X, type) X(type, 1) X(type, 2) X(type, 3) X(type, 4) X(type, 5) X(type, 6) X(type, 7)
#define TILE_ROWS(type)                                                                                                \
	{                                                                                                                  \
		TILE_ROW(type, 1), TILE_ROW(type, 2), TILE_ROW(type, 3), TILE_ROW(type, 4), TILE_ROW(type, 5),                 \
			TILE_ROW(type, 6), TILE_ROW(type, 7)                                                                       \
	}
#else
#define WITH_WIDTHS(X, type) X(type, 1) X(type, 2) X(type, 3)
#define TILE_ROWS(type)                                                                                                \
	{                                                                                                                  \
		TILE_ROW(type, 1), TILE_ROW(type, 2), TILE_ROW(type, 3)                                                        \
	}
#endif
#define ALL_TILES(type) WITH_WIDTHS(TILES, type) TILE(type, 1, 1, 8) TILE(type, 2, 1, 4)
ALL_TILES(WIDE)
ALL_TILES(NARROW)
static tile_fn *const tiles[2][HALF][2][2] = {TILE_ROWS(WIDE), TILE_ROWS(NARROW)};
static tile_fn *const one_pixel[] = {tile_WIDE_1_1_8, tile_NARROW_1_1_8};
static tile_fn *const two_pixels[] = {tile_WIDE_2_1_4, tile_NARROW_2_1_4};

/* All tiles of a block of rows × width pixels, for the panel of t. */
static void block_run(tile t, int64_t rows, int64_t width, int nv)
{
	if (rows == 1 && width >= 2 * HALF) { /* one long row: as rows of HALF pixels */
		tile u = t;
		u.a_row = HALF * t.lda;
		u.c_row = HALF * t.ldc;
		block_run(u, width / HALF, HALF, nv);
		t.a += width / HALF * u.a_row;
		t.c += width / HALF * u.c_row;
		width %= HALF;
	}
	for (int64_t left = (width + HALF - 1) / HALF; left > 0; left--) {
		int64_t w = (width + left - 1) / left, r = 0;
		tile u = t;
		for (; r + 2 <= rows; r += 2, u.a += 2 * t.a_row, u.c += 2 * t.c_row)
			tiles[t.type != PANEL_F32][w - 1][1][nv - 1](&u);
		if (r < rows)
			tiles[t.type != PANEL_F32][w - 1][0][nv - 1](&u);
		t.a += w * t.lda;
		t.c += w * t.ldc;
		width -= w;
	}
}

/* One or two pixels alone: several panels at once, because two sums cannot keep the multipliers busy. Returns how many panels. */
static int64_t few_pixels(const tile *t, int64_t rows, int64_t width, int64_t lanes)
{
	if (rows != 1 || width > 2)
		return 0;
	int64_t panels = width == 1 ? 4 : 2;
	if (lanes < panels * PANEL)
		return 0;
	tile u = *t;
	u.lanes = panels * PANEL;
	(width == 1 ? one_pixel : two_pixels)[t->type != PANEL_F32](&u);
	return panels;
}

/* ---- items ------------------------------------------------------------------------------------------------------------- */

static int64_t low_tap(const conv_axis *a)
{
	return a->tap_step < 0 ? a->tap0 + (a->taps - 1) * a->tap_step : a->tap0;
}

static int64_t span_of(const conv_axis *a, int64_t outputs)
{
	int64_t wide = (a->taps - 1) * (a->tap_step < 0 ? -a->tap_step : a->tap_step);
	return a->taps ? (outputs - 1) * a->step + wide + 1 : 0;
}

/* A place in the output: where an item begins, and how much of it there is. */
typedef struct item {
	int64_t image, group, depth, row, rows, col, cols, panel, panels;
} item;

static item item_at(const conv *c, int64_t i)
{
	item it;
	conv_block_at(&c->axis[2], c->cut, c->cols, i % c->ncols, &it.col, &it.cols), i /= c->ncols;
	conv_block_at(&c->axis[1], c->cut, c->rows, i % c->nrows, &it.row, &it.rows), i /= c->nrows;
	it.depth = i % c->axis[0].count, i /= c->axis[0].count;
	it.image = i % c->images, i /= c->images;
	it.group = i % c->groups, i /= c->groups;
	it.panel = i * c->panels;
	int64_t all = (c->oc + PANEL - 1) / PANEL;
	it.panels = all - it.panel < c->panels ? all - it.panel : c->panels;
	return it;
}

static void copy_pixels(const float *from, int64_t pixel, int64_t channel, int64_t pixels, int64_t channels, float *to)
{
	if (channel == 1 && pixel == channels) {
		memcpy(to, from, (size_t)(pixels * channels) * sizeof *to);
	} else if (channel == 1) {
		for (int64_t x = 0; x < pixels; x++)
			memcpy(to + x * channels, from + x * pixel, (size_t)channels * sizeof *to);
	} else {
		for (int64_t x = 0; x < pixels; x += 16) /* a few lines of the result at a time */
			for (int64_t i = 0; i < channels; i++)
				for (int64_t j = x; j < x + 16 && j < pixels; j++)
					to[j * channels + i] = from[j * pixel + i * channel];
	}
}

/* One row of the copy: `width` pixels from input pixel `x`, zeros outside of the input. */
static void copy_row(const conv *c, const float *row, int64_t x, int64_t width, float *to)
{
	int64_t n = c->axis[2].in, left = x < 0 ? (-x < width ? -x : width) : 0;
	int64_t inside = n - x < width ? n - x : width;
	inside = inside > left ? inside : left;
	memset(to, 0, (size_t)(left * c->ic) * sizeof *to);
	if (inside > left)
		copy_pixels(row + (x + left) * c->in_stride[CONV_W], c->in_stride[CONV_W], c->in_stride[CONV_C], inside - left,
		            c->ic, to + left * c->ic);
	memset(to + inside * c->ic, 0, (size_t)((width - inside) * c->ic) * sizeof *to);
}

/* The input of the item: [depth tap][row][column][channel]. */
static void copy_input(const conv *c, const float *group, const item *it, float *to)
{
	int64_t height = span_of(&c->axis[1], it->rows), width = span_of(&c->axis[2], it->cols);
	int64_t y0 = it->row * c->axis[1].step + low_tap(&c->axis[1]);
	int64_t x0 = it->col * c->axis[2].step + low_tap(&c->axis[2]);
	for (int64_t t = 0; t < c->axis[0].taps; t++) {
		int64_t z = it->depth * c->axis[0].step + c->axis[0].tap0 + t * c->axis[0].tap_step;
		for (int64_t y = y0; y < y0 + height; y++, to += width * c->ic) {
			if (z < 0 || z >= c->axis[0].in || y < 0 || y >= c->axis[1].in)
				memset(to, 0, (size_t)(width * c->ic) * sizeof *to);
			else
				copy_row(c, group + z * c->in_stride[CONV_D] + y * c->in_stride[CONV_H], x0, width, to);
		}
	}
}

/* The pixels that the outputs of the item read, c->pitch apart. */
static void copy_apart(const conv *c, const float *group, const item *it, float *to)
{
	const conv_axis *d = &c->axis[0], *h = &c->axis[1], *w = &c->axis[2];
	group += it->depth * d->step * c->in_stride[CONV_D];
	for (int64_t y = it->row; y < it->row + it->rows; y++)
		for (int64_t x = it->col; x < it->col + it->cols; x++, to += c->pitch)
			memcpy(to, group + y * h->step * c->in_stride[CONV_H] + x * w->step * c->in_stride[CONV_W],
			       (size_t)c->ic * sizeof *to);
}

/* What all tiles of an item share. Offsets of taps are made run by run, RUNS at a time at most: `first` is the tap to begin
   with. */
typedef struct reading {
	const float *base;
	int64_t pixel, row, plane; /* steps between inputs */
	int64_t across, down;      /* between those of neighbouring outputs */
	bool joined;               /* taps along the width follow each other */
} reading;

static reading reading_of(const conv_call *j, const item *it, float *copy)
{
	const conv *c = j->c;
	const conv_axis *d = &c->axis[0], *h = &c->axis[1], *w = &c->axis[2];
	reading r = {.pixel = c->in_stride[CONV_W], .row = c->in_stride[CONV_H], .plane = c->in_stride[CONV_D]};
	if (c->pitch) {
		r.base = copy, r.pixel = c->pitch, r.row = it->cols * c->pitch, r.plane = 0;
	} else if (c->copied) {
		r.pixel = c->ic;
		r.row = span_of(w, it->cols) * r.pixel;
		r.plane = span_of(h, it->rows) * r.row;
		r.base = copy - low_tap(h) * r.row - low_tap(w) * r.pixel;
	} else {
		r.base = j->in + it->image * c->in_stride[CONV_N] + it->group * c->ic * c->in_stride[CONV_C] +
		         (it->depth * d->step + d->tap0) * r.plane + it->row * h->step * r.row + it->col * w->step * r.pixel;
		r.plane *= d->tap_step;
	}
	r.across = c->pitch ? r.pixel : w->step * r.pixel;
	r.down = c->pitch ? r.row : h->step * r.row;
	r.joined = w->taps == 1 || (w->tap_step == 1 && r.pixel == c->ic && !c->cut);
	return r;
}

/* Of a cut item, taps that it reads nowhere inside of the input are left out. */
static int64_t offsets_of(const conv *c, const item *it, const reading *r, offset *to)
{
	const conv_axis *d = &c->axis[0], *h = &c->axis[1], *w = &c->axis[2];
	int64_t n = 0, across = r->joined ? (w->taps > 0) : w->taps;
	for (int64_t z = 0; z < d->taps; z++)
		for (int64_t y = 0; y < h->taps; y++)
			for (int64_t x = 0; x < across; x++) {
				if (c->cut && !(conv_inside(h, it->row, y) && conv_inside(w, it->col, x)))
					continue;
				to[n++] = (offset){z * r->plane + (h->tap0 + y * h->tap_step) * r->row +
				                       (w->tap0 + x * w->tap_step) * r->pixel,
				                   ((z * h->taps + y) * w->taps + x) * c->ic};
			}
	return n;
}

static void run_item(const conv_call *j, const item *it, const offset *offsets, int64_t runs, const reading *r)
{
	const conv *c = j->c;
	const conv_axis *d = &c->axis[0], *h = &c->axis[1], *w = &c->axis[2];
	int64_t per_lane = conv_taps(c) * c->ic;
	int64_t channel = it->group * c->oc;
	float *out = j->out + it->image * c->out_stride[CONV_N] + (d->start + it->depth * d->jump) * c->out_stride[CONV_D] +
	             (h->start + it->row * h->jump) * c->out_stride[CONV_H] +
	             (w->start + it->col * w->jump) * c->out_stride[CONV_W] + channel;
	tile t = {.a = r->base,
	          .lda = r->across,
	          .a_row = r->down,
	          .offset = offsets,
	          .runs = runs,
	          .run = r->joined ? w->taps * c->ic : c->ic,
	          .type = j->plain->type,
	          .b_panel = PANEL * per_lane,
	          .ldc = w->jump * c->out_stride[CONV_W],
	          .c_row = h->jump * c->out_stride[CONV_H]};
	int64_t bytes = panel_bytes(t.type);
	const char *weights = (const char *)j->weights + it->group * conv_panel_at(c, VF, INT64_MAX) * bytes;
	int64_t end = it->panel + it->panels;
	for (int64_t p = it->panel, n; p < end; p += n) {
		t.lanes = c->oc - p * PANEL;
		t.b = weights + p * PANEL * per_lane * bytes;
		t.bias = j->bias ? j->bias + channel + p * PANEL : NULL;
		t.c = out + p * PANEL;
		n = few_pixels(&t, it->rows, it->cols, (end - p) * PANEL < t.lanes ? (end - p) * PANEL : t.lanes);
		if (n)
			continue;
		n = 1;
		t.lanes = t.lanes < PANEL ? t.lanes : PANEL;
		block_run(t, it->rows, it->cols, t.lanes <= VF ? 1 : 2);
	}
}

/* Hands the finished outputs of an item on. Whole rows of pixels that follow each other go as one block. */
static void finish_item(const conv_call *j, const item *it)
{
	const conv *c = j->c;
	int64_t ldc = c->out_stride[CONV_W], height = c->axis[1].count, width = c->axis[2].count;
	int64_t col = it->group * c->oc + it->panel * PANEL, cols = it->panels * PANEL;
	cols = c->oc - it->panel * PANEL < cols ? c->oc - it->panel * PANEL : cols;
	int64_t row = ((it->image * c->axis[0].count + it->depth) * height + it->row) * width + it->col;
	float *block = j->out + it->image * c->out_stride[CONV_N] + it->depth * c->out_stride[CONV_D] +
	               it->row * c->out_stride[CONV_H] + it->col * ldc + col;
	if (it->rows == 1 || (it->cols == width && c->out_stride[CONV_H] == width * ldc)) {
		j->done(j->ctx, block, ldc, row, it->rows * it->cols, col, cols);
		return;
	}
	for (int64_t y = 0; y < it->rows; y++)
		j->done(j->ctx, block + y * c->out_stride[CONV_H], ldc, row + y * width, it->cols, col, cols);
}

static void run_items(void *ctx, int64_t first, int64_t end, int thread)
{
	const conv_call *j = ctx;
	const conv *c = j->c;
	float *copy = j->scratch + thread * c->scratch;
	offset *offsets = (offset *)(copy + c->copy);
	item held = {.image = -1};
	for (int64_t i = first; i < end; i++) {
		item it = item_at(c, i);
		bool same = held.image == it.image && held.group == it.group && held.depth == it.depth && held.row == it.row &&
		            held.col == it.col;
		if (c->copied && !same)
			(c->pitch ? copy_apart : copy_input)(
				c, j->in + it.image * c->in_stride[CONV_N] + it.group * c->ic * c->in_stride[CONV_C], &it, copy);
		held = it;
		reading r = reading_of(j, &it, copy);
		run_item(j, &it, offsets, offsets_of(c, &it, &r, offsets), &r);
		if (j->done)
			finish_item(j, &it);
	}
}

void ISA(conv)(team *t, const conv_call *call)
{
	switch (call->c->way) {
	case CONV_PANELS: team_run(t, call->c->items, 1, run_items, (void *)call); return;
	case CONV_LANES: ISA(conv_lanes)(t, call); return;
	case CONV_TILES: ISA(conv_tiles)(t, call); return;
	}
}
