/* Convolutions: axes, the division into items for threads, and the packing of weights. See conv.h. */
#include "native/conv.h"

#include <string.h>

#include "file/narrow.h"

static int64_t min64(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int64_t blocks_of(int64_t n, int64_t size)
{
	return (n + size - 1) / size;
}

/* ---- axes ------------------------------------------------------------------------------------------------------------ */

/* Taps that no output reads inside of the input are dropped, but for one. */
static void drop_taps(conv_axis *a)
{
	int64_t reach = (a->count - 1) * a->step;
	for (; a->taps > 1 && a->tap0 + reach < 0; a->taps--) {
		a->tap0 += a->tap_step;
		a->k0 += a->k_step;
	}
	while (a->taps > 1 && a->tap0 + (a->taps - 1) * a->tap_step >= a->in)
		a->taps--;
}

static conv_axis plain_axis(const conv_shape *s, int i)
{
	conv_axis a = {.in = s->in[i],
	               .count = s->out[i],
	               .jump = 1,
	               .step = s->stride[i],
	               .taps = s->kernel[i],
	               .tap0 = -s->pad[i],
	               .tap_step = s->dilation[i],
	               .k_step = 1};
	drop_taps(&a);
	return a;
}

/* The smallest k >= 0 with k * dilation = sum modulo stride, -1: there is none; the others follow one `period` apart. */
static int64_t first_tap(int64_t sum, int64_t dilation, int64_t stride, int64_t *period)
{
	int64_t a = dilation % stride, b = stride, x = 1, y = 0; /* a = x * dilation, b = y * dilation, modulo stride */
	while (a) {
		int64_t q = b / a, r = b % a, z = y - q * x;
		b = a;
		a = r;
		y = x;
		x = z;
	}
	*period = stride / b;
	if (sum % b)
		return -1;
	int64_t k = (int64_t)((__int128)(sum / b % *period) * y % *period);
	return k < 0 ? k + *period : k;
}

/* Output o reads input i with weight k where o = i * stride - pad + k * dilation. */
static conv_axis transposed_axis(const conv_shape *s, int i, int64_t p)
{
	int64_t kernel = s->kernel[i], stride = s->stride[i], pad = s->pad[i], dilation = s->dilation[i];
	conv_axis a = {.in = s->in[i], .start = p, .jump = stride, .step = 1, .k_step = 1};
	a.count = p < s->out[i] ? blocks_of(s->out[i] - p, stride) : 0;
	int64_t period, first = first_tap(p + pad, dilation, stride, &period);
	if (first < 0 || first >= kernel)
		return a;
	bool single = period >= kernel - first;
	a.k0 = first;
	a.k_step = single ? kernel : period;
	a.taps = blocks_of(kernel - first, a.k_step);
	a.tap0 = (p + pad - first * dilation) / stride;
	a.tap_step = single ? 0 : -(a.k_step * dilation / stride);
	return a;
}

static int64_t phases_of(const conv_shape *s, int i)
{
	return s->transposed ? min64(s->stride[i], s->out[i]) : 1;
}

int64_t conv_phases(const conv_shape *s)
{
	return phases_of(s, 0) * phases_of(s, 1) * phases_of(s, 2);
}

conv conv_phase(const conv_shape *s, int64_t p)
{
	conv c = {.images = s->images, .groups = s->groups, .ic = s->ic, .oc = s->oc};
	for (int i = 2; i >= 0; i--) {
		c.axis[i] = s->transposed ? transposed_axis(s, i, p % phases_of(s, i)) : plain_axis(s, i);
		p /= phases_of(s, i);
	}
	return c;
}

static int64_t lowest(const conv_axis *a)
{
	return a->tap_step < 0 ? a->tap0 + (a->taps - 1) * a->tap_step : a->tap0;
}

static int64_t highest(const conv_axis *a)
{
	return a->tap_step < 0 ? a->tap0 : a->tap0 + (a->taps - 1) * a->tap_step;
}

/* Some output reads outside of the input. */
static bool overhangs(const conv_axis *a)
{
	return a->taps > 0 && (lowest(a) < 0 || (a->count - 1) * a->step + highest(a) >= a->in);
}

bool conv_inside(const conv_axis *a, int64_t output, int64_t tap)
{
	int64_t at = output * a->step + a->tap0 + tap * a->tap_step;
	return at >= 0 && at < a->in;
}

/* The smallest output whose place is not before `place`. */
static int64_t output_at(const conv_axis *a, int64_t place)
{
	return place > 0 ? blocks_of(place, a->step) : -(-place / a->step);
}

/* The first output behind `from` with another tap inside. */
static int64_t piece_end(const conv_axis *a, bool cut, int64_t from)
{
	int64_t end = a->count;
	for (int64_t t = 0; cut && t < a->taps; t++) {
		int64_t place = a->tap0 + t * a->tap_step, in = output_at(a, -place), out = output_at(a, a->in - place);
		if (in < out && in > from)
			end = min64(end, in);
		else if (in < out && out > from)
			end = min64(end, out);
	}
	return end;
}

int64_t conv_blocks(const conv_axis *a, bool cut, int64_t size)
{
	int64_t n = 0;
	for (int64_t at = 0, end; at < a->count; at = end) {
		end = piece_end(a, cut, at);
		n += blocks_of(end - at, size);
	}
	return n;
}

void conv_block_at(const conv_axis *a, bool cut, int64_t size, int64_t i, int64_t *first, int64_t *count)
{
	for (int64_t at = 0, end; at < a->count; at = end) {
		end = piece_end(a, cut, at);
		int64_t n = blocks_of(end - at, size);
		*first = at + i * size;
		*count = min64(size, end - *first);
		if (i < n)
			return;
		i -= n;
	}
}

int64_t conv_taps(const conv *c)
{
	return c->axis[0].taps * c->axis[1].taps * c->axis[2].taps;
}

/* ---- dividing the work ----------------------------------------------------------------------------------------------- */

enum { BLOCK_FLOATS = 48 << 10 }; /* input and output of an item, so that they stay in the second cache */

static bool is_pointwise(const conv_axis *a)
{
	return a->taps == 1 && a->step == 1 && a->tap0 == 0 && a->jump == 1 && a->start == 0 && a->count == a->in;
}

/* Joins an axis with the one outside of it where pixels follow each other in both tensors. */
static bool join(conv *c, int outer, int inner, int64_t *n_outer, int64_t n_inner)
{
	if (c->in_stride[outer] != n_inner * c->in_stride[inner] || c->out_stride[outer] != n_inner * c->out_stride[inner])
		return *n_outer == 1;
	conv_axis *a = &c->axis[inner - CONV_D];
	a->in = a->count = n_inner * *n_outer;
	*n_outer = 1;
	return true;
}

/* 1x1 convolutions are products over pixels: one long row. */
static void flatten(conv *c)
{
	for (int i = 0; i < 3; i++)
		if (!is_pointwise(&c->axis[i]))
			return;
	int64_t *h = &c->axis[1].count, *d = &c->axis[0].count;
	if (!join(c, CONV_H, CONV_W, h, c->axis[2].count))
		return;
	c->axis[1].in = *h;
	if (!join(c, CONV_D, CONV_W, d, c->axis[2].count))
		return;
	c->axis[0].in = *d;
	join(c, CONV_N, CONV_W, &c->images, c->axis[2].count);
}

static int64_t span(const conv_axis *a, int64_t outputs)
{
	return a->taps ? (outputs - 1) * a->step + highest(a) - lowest(a) + 1 : 0;
}

static int64_t block_input(const conv *c)
{
	if (c->pitch)
		return c->rows * c->cols * c->pitch;
	if (c->cut) /* rows of taps lie far apart */
		return c->axis[0].taps * c->axis[1].taps * c->rows * span(&c->axis[2], c->cols) * c->ic;
	return c->axis[0].taps * span(&c->axis[1], c->rows) * span(&c->axis[2], c->cols) * c->ic;
}

static int64_t halved(int64_t n, int64_t multiple)
{
	return min64(n, blocks_of((n + 1) / 2, multiple) * multiple);
}

static int64_t count_items(conv *c, int64_t panels)
{
	c->nrows = conv_blocks(&c->axis[1], c->cut, c->rows);
	c->ncols = conv_blocks(&c->axis[2], c->cut, c->cols);
	c->npanels = blocks_of(panels, c->panels);
	return c->images * c->groups * c->axis[0].count * c->nrows * c->ncols * c->npanels;
}

/* Enough items for the threads: blocks of channels where weights are the larger part of what is read, else of pixels. */
static void spread(conv *c, int64_t panels, int64_t weights, int64_t wanted)
{
	int64_t pixels = c->axis[0].in * c->axis[1].in * c->axis[2].in;
	bool by_panels = weights > pixels * c->ic;
	while (count_items(c, panels) < wanted) {
		if (by_panels && c->panels > 1)
			c->panels = halved(c->panels, 1);
		else if (c->rows > 2)
			c->rows = halved(c->rows, 2);
		else if (c->cols > 14)
			c->cols = halved(c->cols, 14);
		else if (c->panels > 1)
			c->panels = halved(c->panels, 1);
		else if (c->rows > 1)
			c->rows = 1;
		else
			break;
	}
}

/* Pixels of a 1x1 convolution that lie a large power of two apart would fight for the same places in the cache. */
static int64_t pitch_of(const conv *c)
{
	for (int i = 0; i < 3; i++)
		if (c->axis[i].taps != 1 || c->axis[i].tap0 != 0 || overhangs(&c->axis[i]))
			return 0;
	bool far = c->axis[2].step * c->in_stride[CONV_W] % 1024 == 0 && c->in_stride[CONV_C] == 1;
	return far && c->ic >= 256 && c->axis[1].count * c->axis[2].count > 4 ? c->ic + 16 : 0;
}

enum { MOST_CUTS = 256 }; /* taps: each item looks at all of them to find its piece */

/* Taps so far apart that the pieces between the outputs where one enters or leaves are worth an item. */
static bool is_wide(const conv_axis *a)
{
	return a->taps == 1 || (a->taps <= MOST_CUTS && (a->tap_step >= 4 || a->tap_step <= -4));
}

static void panels_divide(conv *c, int vector, int threads)
{
	flatten(c);
	int64_t panels = conv_panels(c, vector);
	c->copied = c->in_stride[CONV_C] != 1 && c->ic > 1;
	c->pitch = pitch_of(c);
	bool edges = overhangs(&c->axis[1]) || overhangs(&c->axis[2]);
	c->cut = !c->copied && edges && is_wide(&c->axis[1]) && is_wide(&c->axis[2]) && !overhangs(&c->axis[0]);
	for (int i = 0; i < 3; i++)
		c->copied = c->copied || c->pitch || (!c->cut && overhangs(&c->axis[i]));
	c->rows = c->axis[1].count;
	c->cols = c->axis[2].count;
	c->panels = panels;
	while (block_input(c) > BLOCK_FLOATS || c->rows * c->cols * c->oc > 2 * BLOCK_FLOATS) {
		if (c->rows > 2)
			c->rows = halved(c->rows, 2);
		else if (c->cols > 28)
			c->cols = halved(c->cols, 14);
		else
			break;
	}
	int64_t weights = conv_panel_at(c, vector, panels);
	int64_t work = weights * c->axis[0].count * c->axis[1].count * c->axis[2].count * c->images;
	if (c->rows && c->cols && panels)
		spread(c, panels, weights, work < 1 << 20 ? 2 * threads : 4 * threads);
	c->items = c->rows && c->cols && panels ? count_items(c, panels) : 0;
	c->copy = c->copied ? (block_input(c) + 15) & ~(int64_t)15 : 0;
	c->scratch = c->copy + (4 * conv_taps(c) + 15) / 16 * 16; /* and two offsets for each tap, 8 bytes each */
}

static bool lanes_fit(const conv *c, int vector)
{
	return c->groups > 1 && c->oc < vector && c->ic <= 16;
}

static void lanes_divide(conv *c, int vector, int threads)
{
	int64_t vectors = blocks_of(c->groups * c->oc, vector);
	c->copied = c->ic != 1 || c->oc != 1 || c->in_stride[CONV_C] != 1;
	c->cols = c->axis[2].count;
	c->panels = vectors;
	c->rows = 1;
	if (c->copied) /* rows share what is spread for them */
		for (c->rows = c->axis[1].count; c->rows > 1 && block_input(c) * vector > BLOCK_FLOATS / 2;)
			c->rows = halved(c->rows, 1);
	bool any = c->rows && c->cols && vectors;
	while (any && count_items(c, vectors) / c->groups < 4 * threads) {
		if (c->panels > 4)
			c->panels = halved(c->panels, 4);
		else if (c->rows > 1)
			c->rows = halved(c->rows, 1);
		else
			break;
	}
	c->items = any ? count_items(c, vectors) / c->groups : 0;
	c->copy = c->copied ? block_input(c) * vector : 0;
	c->scratch = c->copy + (4 * conv_taps(c) * c->ic + 15) / 16 * 16; /* and two offsets for each tap, 8 bytes each */
}

conv_way conv_best_way(const conv *c, int vector)
{
	if (lanes_fit(c, vector))
		return CONV_LANES;
	return tiles_fit(c, vector) ? CONV_TILES : CONV_PANELS;
}

void conv_divide(conv *c, int vector, int threads)
{
	switch (c->way) {
	case CONV_PANELS: panels_divide(c, vector, threads); break;
	case CONV_LANES: lanes_divide(c, vector, threads); break;
	case CONV_TILES: tiles_divide(c, vector, threads); break;
	}
	if (!c->items) /* an empty result has blocks of negative size */
		c->scratch = c->copy = 0;
}

/* ---- packing ----------------------------------------------------------------------------------------------------------- */

int64_t conv_panels(const conv *c, int vector)
{
	return blocks_of(c->oc, 2 * vector);
}

int64_t conv_panel_width(const conv *c, int vector, int64_t p)
{
	return c->oc - p * 2 * vector <= vector ? vector : 2 * vector;
}

int64_t conv_panel_at(const conv *c, int vector, int64_t p)
{
	int64_t full = min64(p, conv_panels(c, vector));
	int64_t lanes = full * 2 * vector;
	if (full && p >= conv_panels(c, vector))
		lanes += conv_panel_width(c, vector, full - 1) - 2 * vector;
	return lanes * conv_taps(c) * c->ic;
}

/* The offset of the weight of tap t, counted over all axes. */
static int64_t weight_at(const conv *c, int64_t t, const int64_t stride[5])
{
	int64_t at = 0;
	for (int i = 2; i >= 0; i--) {
		const conv_axis *a = &c->axis[i];
		at += (a->k0 + t % a->taps * a->k_step) * stride[2 + i];
		t /= a->taps;
	}
	return at;
}

float conv_weight(const conv_weights *w, int64_t at)
{
	switch (w->type) {
	case PANEL_F16: return narrow_from_f16(((const uint16_t *)w->data)[at]);
	case PANEL_BF16: return narrow_from_bf16(((const uint16_t *)w->data)[at]);
	default: return ((const float *)w->data)[at];
	}
}

/* n elements from `at` on, `step` apart, then zeros. */
static void pack_row(const conv_weights *w, int64_t at, int64_t step, int64_t n, int64_t width, char *out)
{
	const float *wide = w->data;
	const uint16_t *half = w->data;
	size_t bytes = w->type == PANEL_F32 ? sizeof *wide : sizeof *half;
	for (int64_t i = 0; i < n; i++) {
		if (w->type == PANEL_F32)
			((float *)out)[i] = wide[at + i * step];
		else
			((uint16_t *)out)[i] = half[at + i * step];
	}
	memset(out + (size_t)n * bytes, 0, (size_t)(width - n) * bytes);
}

static void panels_pack(const conv *c, int vector, const conv_weights *w, char *out)
{
	int64_t taps = conv_taps(c), so = w->stride[w->transposed], si = w->stride[!w->transposed];
	int64_t bytes = w->type == PANEL_F32 ? 4 : 2;
	for (int64_t g = 0; g < c->groups; g++) {
		int64_t group = g * (w->transposed ? c->ic * si : c->oc * so);
		for (int64_t p = 0; p < conv_panels(c, vector); p++) {
			int64_t width = conv_panel_width(c, vector, p), first = p * 2 * vector, n = min64(width, c->oc - first);
			for (int64_t t = 0; t < taps; t++) {
				int64_t from = group + weight_at(c, t, w->stride) + first * so;
				for (int64_t i = 0; i < c->ic; i++, out += width * bytes)
					pack_row(w, from + i * si, so, n, width, out);
			}
		}
	}
}

static int64_t lanes_size(const conv *c, int vector)
{
	return conv_taps(c) * c->ic * blocks_of(c->groups * c->oc, vector) * vector;
}

static void lanes_pack(const conv *c, int vector, const conv_weights *w, float *out)
{
	int64_t taps = conv_taps(c), channels = c->groups * c->oc, width = blocks_of(channels, vector) * vector;
	const int64_t *stride = w->stride;
	for (int64_t t = 0; t < taps; t++)
		for (int64_t i = 0; i < c->ic; i++, out += width)
			for (int64_t o = 0; o < width; o++) {
				int64_t g = o / c->oc;
				int64_t at =
					w->transposed ? (g * c->ic + i) * stride[0] + o % c->oc * stride[1] : o * stride[0] + i * stride[1];
				out[o] = o < channels ? conv_weight(w, at + weight_at(c, t, stride)) : 0;
			}
}

int64_t conv_size(const conv *c, int vector)
{
	switch (c->way) {
	case CONV_LANES: return lanes_size(c, vector);
	case CONV_TILES: return tiles_size(c, vector);
	default: return c->groups * conv_panel_at(c, vector, INT64_MAX);
	}
}

void conv_pack(const conv *c, int vector, const conv_weights *w, void *out)
{
	switch (c->way) {
	case CONV_PANELS: panels_pack(c, vector, w, out); return;
	case CONV_LANES: lanes_pack(c, vector, w, out); return;
	case CONV_TILES: tiles_pack(c, vector, w, out); return;
	}
}
