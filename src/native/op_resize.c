/* Resizing of images: nearest, linear and cubic, with the source coordinates that torch computes (in f32); against aliasing, too,
 * where an output is the mean of all inputs that it covers. */
#include <math.h>
#include <string.h>

#include "native/image.h"
#include "native/lowering.h"
#include "native/place.h"

enum {
	NEAREST,
	EXACT,
	LINEAR,
	CUBIC,
	SMOOTH = 4,
	VEC = 8
}; /* what: one of the first four; VEC: the factors are a list */

typedef struct resize_args {
	uint32_t spatial, kind;
	bool corners, smooth; /* smooth: against aliasing */
	double scale[3];      /* 0: from the sizes */
} resize_args;

/* What torch makes of a scale that gives other sizes depends on the kernel that it chooses. */
static bool fits(int64_t in, int64_t out, double scale)
{
	return scale == 0 || floor((double)in * scale) == (double)out;
}

static const char no_fit[] = "a resize to other sizes than its scale gives";

/* As far as sizes and scale are known here; the lowering knows them all. */
static bool known_to_fit(const plan *p, const value *x, const value *y, const arg *scale, uint32_t d)
{
	int64_t in, out;
	return x->ndim <= d || y->ndim <= d || scale->kind != ARG_FLOAT ||
	       !expr_is_const(p, p->dims.at[x->shape + d], &in) || !expr_is_const(p, p->dims.at[y->shape + d], &out) ||
	       fits(in, out, scale->u.f);
}

static const char *takes_resize(const plan *p, node_id n)
{
	const node *x = &p->nodes.at[n];
	uint32_t what = native_op_of(x->op_id)->what, at = (what & 3) >= LINEAR ? 3 : 2;
	value_id in = x->nargs ? arg_value(&p->args.at[x->args]) : NONE, out = node_result(p, n, 0);
	if (in == NONE || out == NONE || what & VEC)
		return NULL;
	for (uint32_t d = 0; d < what >> 4 && at + d < x->nargs; d++)
		if (!known_to_fit(p, &p->values.at[in], &p->values.at[out], &p->args.at[x->args + at + d], 2 + d))
			return no_fit;
	return NULL;
}

static const char *takes_weighted(const plan *p, node_id n)
{
	const arg *a = &p->args.at[p->nodes.at[n].args];
	bool f32 = p->nodes.at[n].nargs && a->kind == ARG_VALUE && native_dtype(p, a->u.v) == DT_F32;
	return f32 ? takes_resize(p, n) : "resizing of a type other than f32";
}

/* ---- coordinates ------------------------------------------------------------------------------------------------------- */

static float ratio_of(const resize_args *a, int d, int64_t in, int64_t out)
{
	if (a->corners)
		return out > 1 ? (float)(in - 1) / (float)(out - 1) : 0;
	return a->scale[d] > 0 ? (float)(1.0 / a->scale[d]) : (float)in / (float)out;
}

/* The largest integer that is not larger, at most `most`; -1 stands for all negative ones and nan. */
static int64_t floor_within(float x, int64_t most)
{
	if (!(x >= 0))
		return -1;
	return x < (float)most ? (int64_t)x : most;
}

static int64_t nearest(const resize_args *a, int d, int64_t in, int64_t out, int64_t o)
{
	if (in == out)
		return o;
	if (out == 2 * in)
		return o >> 1;
	float at = a->kind == EXACT ? ((float)o + 0.5f) * ratio_of(a, d, in, out) : (float)o * ratio_of(a, d, in, out);
	return floor_within(at, in - 1);
}

static int64_t clamp(int64_t i, int64_t n)
{
	return i < 0 ? 0 : i < n ? i : n - 1;
}

/* Weights of the input that is so far away. Smoothing has another cubic than interpolation. */
static float cubic(float x, float a)
{
	x = fabsf(x);
	if (x <= 1)
		return ((a + 2) * x - (a + 3)) * x * x + 1;
	return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

static float linear(float x)
{
	x = fabsf(x);
	return x < 1 ? 1 - x : 0;
}

/* Inputs and weights of one output; gives how many. */
static int64_t interpolate(const resize_args *a, int d, int64_t in, int64_t out, int64_t o, int64_t *at, float *weight)
{
	if (a->kind == LINEAR && in == out) { /* a copy: 0 times an infinite neighbour is no number */
		at[0] = o;
		weight[0] = 1;
		return 1;
	}
	float ratio = ratio_of(a, d, in, out);
	float x = a->corners ? ratio * (float)o : ((float)o + 0.5f) * ratio - 0.5f;
	if (a->kind == LINEAR && x < 0)
		x = 0;
	int64_t i = floor_within(x, in - 1);
	float t = x - (float)i;
	t = t < 0 ? 0 : t > 1 ? 1 : t;
	for (int64_t k = 0; k < (a->kind == LINEAR ? 2 : 4); k++) {
		at[k] = clamp(a->kind == LINEAR ? i + k : i + k - 1, in);
		weight[k] = a->kind == LINEAR ? (k ? t : 1 - t) : cubic((float)(k - 1) - t, -0.75f);
	}
	return a->kind == LINEAR ? 2 : 4;
}

/* How far the inputs of an output are from its middle. */
static double reach_of(const resize_args *a, double ratio)
{
	return (a->kind == LINEAR ? 1 : 2) * (ratio > 1 ? ratio : 1);
}

static int64_t smooth(const resize_args *a, int d, int64_t in, int64_t out, int64_t o, int64_t taps, int64_t *at,
                      float *weight)
{
	float ratio = ratio_of(a, d, in, out), shrink = ratio >= 1 ? 1 / ratio : 1, all = 0;
	float middle = ratio * ((float)o + 0.5f), reach = (float)reach_of(a, ratio);
	int64_t first = (int64_t)(middle - reach + 0.5f), end = (int64_t)(middle + reach + 0.5f);
	first = first > 0 ? first : 0;
	end = end < in ? end : in;
	int64_t count = end - first < taps ? end - first : taps;
	for (int64_t k = 0; k < count; k++) {
		float away = ((float)(first + k) - middle + 0.5f) * shrink;
		at[k] = first + k;
		weight[k] = a->kind == LINEAR ? linear(away) : cubic(away, -0.5f);
		all += weight[k];
	}
	for (int64_t k = 0; k < count; k++)
		weight[k] = all != 0 ? weight[k] / all : weight[k];
	return count;
}

/* ---- lowering ------------------------------------------------------------------------------------------------------------ */

typedef struct resize_step {
	resize r;
	slot in, out;
} resize_step;

static clv_status run_resize(const void *params, frame *f)
{
	const resize_step *s = params;
	f->k->resize(f->team, &s->r, (const float *)f->t[s->in].data, (float *)f->t[s->out].data);
	return CLV_OK;
}

static clv_status read_scales(lowering *l, node_id n, resize_args *a)
{
	bool weighted = a->kind >= LINEAR;
	uint32_t at = weighted ? 3 : 2, count = 0;
	double given[3] = {0};
	if (weighted)
		TRY(low_bool(l, n, 2, false, &a->corners));
	if (low_what(l, n) & VEC)
		TRY(low_reals(l, n, at, a->spatial, given, &count));
	else
		for (uint32_t d = 0; d < a->spatial; d++)
			TRY(low_real(l, n, at + d, 0, &given[d]));
	for (uint32_t d = 0; d < a->spatial; d++)
		a->scale[3 - a->spatial + d] = given[d];
	return CLV_OK;
}

static clv_status lower_nearest(lowering *l, node_id n, const resize_args *a, slot in, const image *x, const image *y)
{
	const int64_t *map[5] = {0};
	for (uint32_t d = 0; d < a->spatial; d++) {
		uint32_t axis = 3 - a->spatial + d;
		int64_t from = x->size[2 + axis], to = y->size[2 + axis], *m = low_array(l, to, sizeof *m);
		if (!m)
			return fail_nomem();
		for (int64_t o = 0; o < to; o++)
			m[o] = clamp(nearest(a, (int)axis, from, to, o), from);
		map[2 + d] = m;
	}
	return low_place(l, n, in, map, 0);
}

/* Axis d; not resized: each output is the input at its place. */
static clv_status set_axis(lowering *l, const resize_args *a, resize *r, int d, int64_t in, int64_t out, bool resized)
{
	double taps = !resized            ? 1
	              : a->smooth         ? 2 * ceil(reach_of(a, ratio_of(a, d, in, out))) + 1
	              : a->kind == LINEAR ? 2
	                                  : 4;
	if (!(taps * (double)out < (double)IMAGE_AT_MOST))
		return fail(CLV_E_UNSUPPORTED, "an image that is resized from so many pixels to so many");
	if (resized && a->smooth && taps > (double)in)
		taps = (double)in;
	int64_t n = (int64_t)taps, *at = low_alloc(l, (size_t)(out * n + 1) * sizeof *at);
	int64_t *count = low_alloc(l, (size_t)(out + 1) * sizeof *count);
	float *weight = low_alloc(l, (size_t)(out * n + 1) * sizeof *weight);
	if (!at || !count || !weight)
		return fail_nomem();
	for (int64_t o = 0; o < out; o++) {
		at[o * n] = o;
		weight[o * n] = 1;
		count[o] = 1;
		if (resized && a->smooth)
			count[o] = smooth(a, d, in, out, o, n, at + o * n, weight + o * n);
		else if (resized)
			count[o] = interpolate(a, d, in, out, o, at + o * n, weight + o * n);
	}
	r->out[d] = out;
	r->taps[d] = n;
	r->at[d] = at;
	r->count[d] = count;
	r->weight[d] = weight;
	return CLV_OK;
}

/* Axes of the mask; the others have the same size before and after. */
static clv_status resize_axes(lowering *l, const resize_args *a, slot in, slot out, unsigned axes)
{
	resize_step *s = low_alloc(l, sizeof *s);
	image x, y;
	if (!s)
		return fail_nomem();
	s->in = in;
	s->out = out;
	image_of(low_at(l, in), a->spatial, &x);
	image_of(low_at(l, out), a->spatial, &y);
	s->r.images = x.size[0];
	s->r.channels = x.size[1];
	for (int d = 0; d < 3; d++)
		TRY(set_axis(l, a, &s->r, d, x.size[2 + d], y.size[2 + d], axes >> d & 1));
	memcpy(s->r.in_stride, x.stride, sizeof x.stride);
	memcpy(s->r.out_stride, y.stride, sizeof y.stride);
	return low_step(l, run_resize, s);
}

static clv_status lower_weighted(lowering *l, node_id n, const resize_args *a, slot in, nt *form)
{
	slot result, out, between;
	TRY(low_form_of_type(l, n, 0, DT_F32, form));
	TRY(image_input(l, in, a->spatial, &in));
	TRY(image_output(l, n, 0, form, a->spatial, &result, &out));
	if (a->smooth) { /* columns, then rows: both may have many inputs */
		nt wide = *low_at(l, in);
		wide.size[wide.ndim - 1] = form->size[form->ndim - 1];
		wide.data = NULL;
		image_channels_last(&wide, a->spatial);
		TRY(low_temp(l, &wide, &between));
		TRY(resize_axes(l, a, in, between, 4));
		TRY(resize_axes(l, a, between, out, 2));
	} else {
		TRY(resize_axes(l, a, in, out, a->spatial == 1 ? 4 : a->spatial == 2 ? 6 : 7));
	}
	return low_copy(l, out, result);
}

static clv_status lower_resize(lowering *l, node_id n)
{
	uint32_t what = low_what(l, n);
	resize_args a = {.kind = what & 3, .smooth = what & SMOOTH, .spatial = what >> 4};
	image x, y;
	nt form;
	slot in;
	TRY(low_tensor(l, n, 0, &in));
	TRY(low_form(l, n, 0, &form));
	if (low_at(l, in)->ndim != a.spatial + 2 || !image_of(low_at(l, in), a.spatial, &x) ||
	    !image_of(&form, a.spatial, &y) || x.size[0] != y.size[0] || x.size[1] != y.size[1])
		return fail(CLV_E_UNSUPPORTED, "the result of resizing has other images or channels than its argument");
	for (int d = 2; d < 5; d++)
		if (x.size[d] < 1 || x.size[d] > IMAGE_AT_MOST || y.size[d] > IMAGE_AT_MOST)
			return fail(CLV_E_UNSUPPORTED, "an image to resize has no pixels, or more than 2^31 in a row");
	TRY(read_scales(l, n, &a));
	for (int d = 0; d < 3; d++)
		if (!fits(x.size[2 + d], y.size[2 + d], a.scale[d]))
			return fail(CLV_E_UNSUPPORTED, no_fit);
	return a.kind < LINEAR ? lower_nearest(l, n, &a, in, &x, &y) : lower_weighted(l, n, &a, in, &form);
}

#define RESIZE(op, spatial, kind)                                                                                      \
	{                                                                                                                  \
		.id = OP_##op, .takes = takes_resize, .widens = true, .lower = lower_resize, .what = (spatial) << 4 | (kind)   \
	}
#define WEIGHTED(op, spatial, kind)                                                                                    \
	{                                                                                                                  \
		.id = OP_##op, .takes = takes_weighted, .widens = true, .lower = lower_resize, .what = (spatial) << 4 | (kind) \
	}
const native_op native_ops_resize[] = {
	WEIGHTED(_upsample_bicubic2d_aa, 2, CUBIC | SMOOTH),
	WEIGHTED(_upsample_bicubic2d_aa_vec, 2, CUBIC | SMOOTH | VEC),
	WEIGHTED(_upsample_bilinear2d_aa, 2, LINEAR | SMOOTH),
	WEIGHTED(_upsample_bilinear2d_aa_vec, 2, LINEAR | SMOOTH | VEC),
	RESIZE(_upsample_nearest_exact1d, 1, EXACT),
	RESIZE(_upsample_nearest_exact1d_vec, 1, EXACT | VEC),
	RESIZE(_upsample_nearest_exact2d, 2, EXACT),
	RESIZE(_upsample_nearest_exact2d_vec, 2, EXACT | VEC),
	RESIZE(_upsample_nearest_exact3d, 3, EXACT),
	RESIZE(_upsample_nearest_exact3d_vec, 3, EXACT | VEC),
	RESIZE(upsample_nearest1d, 1, NEAREST),
	RESIZE(upsample_nearest1d_vec, 1, NEAREST | VEC),
	RESIZE(upsample_nearest2d, 2, NEAREST),
	RESIZE(upsample_nearest2d_vec, 2, NEAREST | VEC),
	RESIZE(upsample_nearest3d, 3, NEAREST),
	RESIZE(upsample_nearest3d_vec, 3, NEAREST | VEC),
	WEIGHTED(upsample_bicubic2d, 2, CUBIC),
	WEIGHTED(upsample_bicubic2d_vec, 2, CUBIC | VEC),
	WEIGHTED(upsample_bilinear2d, 2, LINEAR),
	WEIGHTED(upsample_bilinear2d_vec, 2, LINEAR | VEC),
	WEIGHTED(upsample_linear1d, 1, LINEAR),
	WEIGHTED(upsample_linear1d_vec, 1, LINEAR | VEC),
	WEIGHTED(upsample_trilinear3d, 3, LINEAR),
	WEIGHTED(upsample_trilinear3d_vec, 3, LINEAR | VEC),
	{.id = OP_UNKNOWN},
};
