/* Pooling: largest and mean values of windows, of fixed sizes or adapted to the size of the result. */
#include <string.h>

#include "native/doubles.h"
#include "native/image.h"

enum { LARGEST, MEAN, ADAPTIVE = 2 }; /* what: one of the first two, and how windows are laid */

typedef struct pool_args {
	uint32_t spatial;
	bool mean, adaptive, ceil, include_pad;
	int64_t kernel[3], stride[3], pad[3], dilation[3], out[3];
} pool_args;

static const char *takes_pool(const plan *p, node_id n)
{
	return native_floats(p, n, 1) ? NULL : "pooling of a type other than f32 or f64";
}

/* ---- windows ------------------------------------------------------------------------------------------------------------ */

static int64_t out_of(const pool_args *a, int d, int64_t in)
{
	int64_t room = in + 2 * a->pad[d] - a->dilation[d] * (a->kernel[d] - 1) - 1;
	if (room < 0 && !(a->ceil && room + a->stride[d] > 0))
		return -1;
	int64_t out = (room + (a->ceil ? a->stride[d] - 1 : 0)) / a->stride[d] + 1;
	return a->ceil && (out - 1) * a->stride[d] >= in + a->pad[d] ? out - 1 : out;
}

static pool_window window_of(const pool_args *a, int d, int64_t in, int64_t o)
{
	pool_window w;
	if (a->adaptive) {
		w.first = o * in / a->out[d];
		w.count = w.size = ((o + 1) * in + a->out[d] - 1) / a->out[d] - w.first;
		return w;
	}
	int64_t first = o * a->stride[d] - a->pad[d], step = a->dilation[d];
	int64_t end = first + (a->kernel[d] - 1) * step + 1, whole = end < in + a->pad[d] ? end : in + a->pad[d];
	w.first = first < 0 ? first + (-first + step - 1) / step * step : first;
	end = end < in ? end : in;
	w.count = end > w.first ? (end - w.first + step - 1) / step : 0;
	w.size = a->include_pad ? whole - first : w.count;
	return w;
}

static clv_status windows(lowering *l, const pool_args *a, int d, int64_t in, const pool_window **out)
{
	pool_window *w = low_array(l, a->out[d], sizeof *w);
	if (!w)
		return fail_nomem();
	for (int64_t o = 0; o < a->out[d]; o++)
		w[o] = window_of(a, d, in, o);
	*out = w;
	return CLV_OK;
}

/* ---- steps -------------------------------------------------------------------------------------------------------------------- */

typedef struct pool_step {
	pool p;
	uint32_t spatial;
	bool wide; /* doubles */
	int64_t in_size[3];
	slot in, out;
} pool_step;

static clv_status run_pool(const void *params, frame *f)
{
	const pool_step *s = params;
	if (s->wide)
		doubles_pool(f->team, &s->p, (const double *)f->t[s->in].data, (double *)f->t[s->out].data);
	else
		f->k->pool(f->team, &s->p, (const float *)f->t[s->in].data, (float *)f->t[s->out].data);
	return CLV_OK;
}

/* The largest of a window, as the index of its pixel in the input. The last nan wins, else the first of equals. */
static int64_t index_of(const pool_step *s, const char *in, int64_t at, const pool_window *const w[3])
{
	const pool *p = &s->p;
	double top = -__builtin_inf();
	int64_t best = (w[0]->first * s->in_size[1] + w[1]->first) * s->in_size[2] + w[2]->first;
	for (int64_t z = 0; z < w[0]->count; z++)
		for (int64_t y = 0; y < w[1]->count; y++)
			for (int64_t x = 0; x < w[2]->count; x++) {
				int64_t d = w[0]->first + z * p->step[0], h = w[1]->first + y * p->step[1];
				int64_t c = w[2]->first + x * p->step[2];
				int64_t i = at + d * p->in_stride[2] + h * p->in_stride[3] + c * p->in_stride[4];
				double v = s->wide ? ((const double *)in)[i] : (double)((const float *)in)[i];
				if (v > top || v != v) {
					top = v;
					best = (d * s->in_size[1] + h) * s->in_size[2] + c;
				}
			}
	return best;
}

static clv_status run_indices(const void *params, frame *f)
{
	const pool_step *s = params;
	const pool *p = &s->p;
	const char *in = f->t[s->in].data;
	image y;
	image_of(&f->t[s->out], s->spatial, &y);
	for (int64_t n = 0; n < p->images; n++)
		for (int64_t c = 0; c < p->channels; c++)
			for (int64_t i = 0; i < p->out[0] * p->out[1] * p->out[2]; i++) {
				int64_t d = i / p->out[2] / p->out[1], h = i / p->out[2] % p->out[1], x = i % p->out[2];
				const pool_window *const w[3] = {&p->at[0][d], &p->at[1][h], &p->at[2][x]};
				((int64_t *)
				     y.data)[n * y.stride[0] + c * y.stride[1] + d * y.stride[2] + h * y.stride[3] + x * y.stride[4]] =
					index_of(s, in, n * p->in_stride[0] + c * p->in_stride[1], w);
			}
	return CLV_OK;
}

/* ---- lowering ------------------------------------------------------------------------------------------------------------------ */

static clv_status read_fixed(lowering *l, node_id n, pool_args *a, int64_t *divisor)
{
	uint32_t next = 4;
	TRY(image_numbers(l, n, 1, a->spatial, 1, 1, 1, a->kernel));
	int64_t strides[3];
	uint32_t count;
	TRY(low_ints(l, n, 2, 3, strides, &count));
	if (count)
		TRY(image_numbers(l, n, 2, a->spatial, 1, 1, 1, a->stride));
	else
		memcpy(a->stride, a->kernel, sizeof a->stride);
	TRY(image_numbers(l, n, 3, a->spatial, 0, 0, 0, a->pad));
	if (!a->mean)
		TRY(image_numbers(l, n, next++, a->spatial, 1, 1, 1, a->dilation));
	TRY(low_bool(l, n, next++, false, &a->ceil));
	if (!a->mean)
		return CLV_OK;
	TRY(low_bool(l, n, next++, true, &a->include_pad));
	TRY(low_int(l, n, next, 0, divisor));
	return low_has(l, n, next) && *divisor == 0 ? fail(CLV_E_UNSUPPORTED, "a mean divided by 0") : CLV_OK;
}

/* The sizes of an adaptive result are in the plan's shape: an argument may say "as the input". */
static clv_status read_pool(lowering *l, node_id n, const image *x, pool_args *a, int64_t *divisor)
{
	image y;
	nt form;
	TRY(low_form(l, n, 0, &form));
	if (!image_of(&form, a->spatial, &y))
		return fail(CLV_E_UNSUPPORTED, "the result of pooling has another number of dimensions than its argument");
	for (int d = 0; d < 3; d++) {
		a->kernel[d] = a->stride[d] = a->dilation[d] = 1;
		a->out[d] = y.size[2 + d];
		if (x->size[2 + d] > IMAGE_AT_MOST || a->out[d] > IMAGE_AT_MOST)
			return fail(CLV_E_OVERFLOW, "pooling of more than 2^31 pixels in a row");
	}
	if (a->adaptive)
		return CLV_OK;
	TRY(read_fixed(l, n, a, divisor));
	for (int d = 0; d < 3; d++)
		a->out[d] = out_of(a, d, x->size[2 + d]);
	return CLV_OK;
}

static clv_status add_indices(lowering *l, node_id n, pool_step like)
{
	pool_step *s = low_alloc(l, sizeof *s);
	nt form;
	if (!s)
		return fail_nomem();
	TRY(low_form_of_type(l, n, 1, DT_I64, &form));
	image y;
	if (!image_of(&form, like.spatial, &y) || y.size[0] != like.p.images || y.size[1] != like.p.channels ||
	    memcmp(y.size + 2, like.p.out, sizeof like.p.out) != 0)
		return fail(CLV_E_VERIFY, "the indices of pooling have other sizes than its values");
	*s = like;
	TRY(low_result(l, n, 1, &form, false, &s->out));
	return low_step(l, run_indices, s);
}

static clv_status lower_pool(lowering *l, node_id n)
{
	uint32_t what = low_what(l, n);
	pool_args a = {.mean = what & MEAN, .adaptive = (what & ADAPTIVE) != 0, .spatial = what >> 4};
	pool_step *s = low_alloc(l, sizeof *s);
	image x, y;
	nt form;
	slot in, result;
	if (!s)
		return fail_nomem();
	TRY(low_tensor(l, n, 0, &in));
	uint8_t type = low_at(l, in)->dtype;
	s->wide = type == DT_F64;
	if (!image_of(low_at(l, in), a.spatial, &x))
		return fail(CLV_E_UNSUPPORTED, "the argument of pooling has neither %u nor %u dimensions", a.spatial + 1,
		            a.spatial + 2);
	s->p.mean = a.mean;
	TRY(read_pool(l, n, &x, &a, &s->p.divisor));
	TRY(image_expect(l, n, 0, type, a.spatial, x.size[1], a.out, &x, &form));
	if (a.adaptive && a.mean && nt_numel(&form) && !nt_numel(low_at(l, in)))
		return fail(CLV_E_UNSUPPORTED, "means of images without pixels");
	TRY(image_input(l, in, a.spatial, &s->in));
	TRY(image_output(l, n, 0, &form, a.spatial, &result, &s->out));
	image_of(low_at(l, s->in), a.spatial, &x);
	image_of(low_at(l, s->out), a.spatial, &y);
	s->spatial = a.spatial;
	s->p.images = x.size[0];
	s->p.channels = x.size[1];
	for (int d = 0; d < 3; d++) {
		s->in_size[d] = x.size[2 + d];
		s->p.out[d] = a.out[d];
		s->p.step[d] = a.dilation[d];
		TRY(windows(l, &a, d, x.size[2 + d], &s->p.at[d]));
	}
	memcpy(s->p.in_stride, x.stride, sizeof x.stride);
	memcpy(s->p.out_stride, y.stride, sizeof y.stride);
	TRY(low_step(l, run_pool, s));
	if (low_results(l, n) == 2 && low_wants(l, n, 1))
		TRY(add_indices(l, n, *s));
	return low_copy(l, s->out, result);
}

#define POOL(op, spatial, kind)                                                                                        \
	{                                                                                                                  \
		.id = OP_##op, .takes = takes_pool, .widens = true, .lower = lower_pool, .what = (spatial) << 4 | (kind)       \
	}
const native_op native_ops_pool[] = {
	POOL(_adaptive_avg_pool2d, 2, MEAN | ADAPTIVE),
	POOL(_adaptive_avg_pool3d, 3, MEAN | ADAPTIVE),
	POOL(adaptive_avg_pool1d, 1, MEAN | ADAPTIVE),
	POOL(adaptive_avg_pool2d, 2, MEAN | ADAPTIVE),
	POOL(adaptive_avg_pool3d, 3, MEAN | ADAPTIVE),
	POOL(adaptive_max_pool1d, 1, LARGEST | ADAPTIVE),
	POOL(adaptive_max_pool2d, 2, LARGEST | ADAPTIVE),
	POOL(adaptive_max_pool3d, 3, LARGEST | ADAPTIVE),
	POOL(avg_pool1d, 1, MEAN),
	POOL(avg_pool2d, 2, MEAN),
	POOL(avg_pool3d, 3, MEAN),
	POOL(max_pool1d, 1, LARGEST),
	POOL(max_pool1d_with_indices, 1, LARGEST),
	POOL(max_pool2d, 2, LARGEST),
	POOL(max_pool2d_with_indices, 2, LARGEST),
	POOL(max_pool3d, 3, LARGEST),
	POOL(max_pool3d_with_indices, 3, LARGEST),
	{.id = OP_UNKNOWN},
};
