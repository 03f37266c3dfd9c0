/* Convolutions: plain and transposed, one to three dimensions (see conv.h for how they are computed). */
#include <string.h>

#include "native/doubles.h"
#include "native/image.h"

enum { PLAIN, TRANSPOSED, EITHER }; /* what: which arguments follow the bias; EITHER: argument 6 says */

typedef struct conv_args {
	uint32_t spatial;
	slot in, weight, bias;
	int64_t output_padding[3];
	int64_t pad_after[3];
	conv_shape s;
} conv_args;

static const char *takes_conv(const plan *p, node_id n)
{
	return native_floats(p, n, 3) ? NULL : "a convolution of other types than f32 or f64";
}

/* ---- arguments ------------------------------------------------------------------------------------------------------- */

/* "same": what is left over of an odd padding goes behind. */
static clv_status read_padding(lowering *l, node_id n, uint32_t i, conv_args *a)
{
	const char *word = low_str(l, n, i);
	if (!*word) {
		TRY(image_numbers(l, n, i, a->spatial, 0, 0, 0, a->s.pad));
		memcpy(a->pad_after, a->s.pad, sizeof a->pad_after);
		return CLV_OK;
	}
	for (int d = 0; d < 3; d++) {
		int64_t all = strcmp(word, "same") == 0 ? a->s.dilation[d] * (a->s.kernel[d] - 1) : 0;
		a->s.pad[d] = all / 2;
		a->pad_after[d] = all - all / 2;
		if (all && a->s.stride[d] != 1)
			return fail(CLV_E_UNSUPPORTED, "padding \"same\" with a stride");
	}
	return strcmp(word, "same") == 0 || strcmp(word, "valid") == 0
	           ? CLV_OK
	           : fail(CLV_E_UNSUPPORTED, "padding \"%s\" is neither \"same\" nor \"valid\"", word);
}

static clv_status read_options(lowering *l, node_id n, conv_args *a)
{
	uint32_t what = low_what(l, n), spatial = a->spatial;
	uint32_t dilation = what == TRANSPOSED ? 7 : 5, groups = what == EITHER ? 8 : 6;
	uint32_t output_padding = what == TRANSPOSED ? 5 : 7;
	a->s.transposed = what == TRANSPOSED;
	if (what == EITHER)
		TRY(low_bool(l, n, 6, false, &a->s.transposed));
	TRY(image_numbers(l, n, 3, spatial, 1, 1, 1, a->s.stride));
	TRY(image_numbers(l, n, dilation, spatial, 1, 1, 1, a->s.dilation));
	TRY(read_padding(l, n, 4, a));
	if (a->s.transposed)
		TRY(image_numbers(l, n, output_padding, spatial, 0, 0, 0, a->output_padding));
	return low_int(l, n, groups, 1, &a->s.groups);
}

static clv_status no_fit(void)
{
	return fail(CLV_E_UNSUPPORTED, "the sizes of the input, the weight and the bias do not fit together");
}

static clv_status read_channels(lowering *l, conv_args *a, const image *x, const nt *w)
{
	conv_shape *s = &a->s;
	int64_t inner = w->size[1], outer = w->size[0];
	if (s->groups < 1 || outer % s->groups || x->size[1] % s->groups)
		return no_fit();
	s->ic = x->size[1] / s->groups;
	s->oc = s->transposed ? inner : outer / s->groups;
	if (s->ic != (s->transposed ? outer / s->groups : inner))
		return no_fit();
	if (a->bias == NONE)
		return CLV_OK;
	const nt *b = low_at(l, a->bias);
	return b->ndim == 1 && b->size[0] == s->oc * s->groups ? CLV_OK : no_fit();
}

static clv_status read_sizes(conv_args *a)
{
	conv_shape *s = &a->s;
	int64_t room = s->ic + s->oc + 1;
	for (int d = 0; d < 3; d++) {
		if (s->in[d] > IMAGE_AT_MOST || s->kernel[d] < 1 || s->kernel[d] > IMAGE_AT_MOST)
			return no_fit();
		int64_t reach = s->dilation[d] * (s->kernel[d] - 1) + 1, pads = s->pad[d] + a->pad_after[d];
		if (s->transposed)
			s->out[d] = (s->in[d] - 1) * s->stride[d] - pads + reach + a->output_padding[d];
		else
			s->out[d] = s->in[d] + pads < reach ? -1 : (s->in[d] + pads - reach) / s->stride[d] + 1;
		if (s->out[d] < 0)
			return no_fit();
		if (__builtin_mul_overflow(room, s->in[d] + pads + reach, &room) || room > (int64_t)1 << 48)
			return fail(CLV_E_OVERFLOW, "a convolution over more than 2^48 numbers");
	}
	return CLV_OK;
}

static clv_status read_args(lowering *l, node_id n, conv_args *a)
{
	image x;
	TRY(low_tensor(l, n, 0, &a->in));
	TRY(low_tensor(l, n, 1, &a->weight));
	TRY(low_tensor_or_none(l, n, 2, &a->bias));
	const nt *w = low_at(l, a->weight);
	a->spatial = w->ndim - 2u;
	if (w->ndim < 3 || w->ndim > 5 || !image_of(low_at(l, a->in), a->spatial, &x))
		return no_fit();
	for (uint32_t d = 0; d < 3; d++) {
		a->s.in[d] = x.size[2 + d];
		a->s.kernel[d] = d < 3 - a->spatial ? 1 : w->size[2 + d - (3 - a->spatial)];
	}
	a->s.images = x.size[0];
	TRY(read_options(l, n, a));
	TRY(read_channels(l, a, &x, w));
	return read_sizes(a);
}

/* ---- weights ------------------------------------------------------------------------------------------------------------ */

/* Only 64-bit numbers: it is compared as bytes. */
typedef struct pack_spec {
	int64_t vector, way, type, transposed, groups, ic, oc, taps[3], k0[3], k_step[3];
} pack_spec;

static panel_type type_of(const nt *t)
{
	return t->dtype == DT_F16 ? PANEL_F16 : t->dtype == DT_BF16 ? PANEL_BF16 : PANEL_F32;
}

static pack_spec spec_of(const conv *c, int vector, const conv_weights *w)
{
	pack_spec s = {.vector = vector,
	               .way = c->way,
	               .type = c->way == CONV_PANELS ? w->type : PANEL_F32,
	               .transposed = w->transposed,
	               .groups = c->groups,
	               .ic = c->ic,
	               .oc = c->oc};
	for (int d = 0; d < 3; d++) {
		s.taps[d] = c->axis[d].taps;
		s.k0[d] = c->axis[d].k0;
		s.k_step[d] = c->axis[d].k_step;
	}
	return s;
}

static conv conv_of(const pack_spec *s)
{
	conv c = {.way = (conv_way)s->way, .groups = s->groups, .ic = s->ic, .oc = s->oc};
	for (int d = 0; d < 3; d++)
		c.axis[d] = (conv_axis){.taps = s->taps[d], .k0 = s->k0[d], .k_step = s->k_step[d]};
	return c;
}

static size_t packed_bytes(const nt *t, const void *spec)
{
	const pack_spec *s = spec;
	conv c = conv_of(s);
	(void)t;
	int64_t n = conv_size(&c, (int)s->vector);
	return (size_t)(n ? n : 1) * (s->type == PANEL_F32 ? sizeof(float) : sizeof(uint16_t));
}

static conv_weights plain_weights(const nt *t, bool transposed)
{
	conv_weights w = {.data = t->data, .type = type_of(t), .transposed = transposed};
	w.stride[0] = t->stride[0];
	w.stride[1] = t->stride[1];
	for (uint32_t d = 2; d < t->ndim; d++)
		w.stride[d + 5 - t->ndim] = t->stride[d];
	return w;
}

static void pack_weights(const nt *t, const void *spec, void *out)
{
	const pack_spec *s = spec;
	conv c = conv_of(s);
	conv_weights w = plain_weights(t, s->transposed);
	conv_pack(&c, (int)s->vector, &w, out);
}

/* ---- steps ---------------------------------------------------------------------------------------------------------------- */

typedef struct conv_step {
	conv c;
	slot in, out, bias, scratch, weight, packed;
	const void *weights; /* NULL: packed in the run */
	conv_weights plain;  /* without its data */
	pack_spec spec;
	epilogue after;
} conv_step;

typedef struct conv_run {
	const conv_step *s;
	frame *f;
} conv_run;

static void finish(void *ctx, float *block, int64_t ldc, int64_t row, int64_t rows, int64_t col, int64_t cols)
{
	const conv_run *r = ctx;
	r->s->after.run(r->s->after.ctx, r->f, block, ldc, row, rows, col, cols);
}

static clv_status run_pack(const void *params, frame *f)
{
	const conv_step *s = params;
	pack_weights(&f->t[s->weight], &s->spec, f->t[s->packed].data);
	return CLV_OK;
}

static clv_status run_conv(const void *params, frame *f)
{
	const conv_step *s = params;
	conv_run r = {s, f};
	conv_weights plain = s->plain;
	plain.data = f->t[s->weight].data;
	conv_call call = {
		.c = &s->c,
		.in = (const float *)f->t[s->in].data,
		.weights = s->weights ? s->weights : f->t[s->packed].data,
		.bias = s->bias == NONE ? NULL : (const float *)f->t[s->bias].data,
		.out = (float *)f->t[s->out].data,
		.scratch = (float *)f->t[s->scratch].data,
		.done = s->after.run ? finish : NULL,
		.ctx = &r,
		.plain = &plain,
	};
	f->k->conv(f->team, &call);
	return CLV_OK;
}

static clv_status run_doubles(const void *params, frame *f)
{
	const conv_step *s = params;
	doubles_conv x = {.c = &s->c,
	                  .in = (const double *)f->t[s->in].data,
	                  .weight = (const double *)f->t[s->weight].data,
	                  .bias = s->bias == NONE ? NULL : (const double *)f->t[s->bias].data,
	                  .out = (double *)f->t[s->out].data,
	                  .weight_stride = s->plain.stride,
	                  .transposed = s->plain.transposed};
	doubles_convolve(f->team, &x);
	return CLV_OK;
}

/* Packed once if the weight is the same in every run, else by a step of each run. */
static clv_status add_weights(lowering *l, conv_step *s)
{
	packing k = {"conv/3", &s->spec, sizeof s->spec, packed_bytes, pack_weights};
	if (low_is_constant(l, s->weight)) {
		TRY(low_packed(l, s->weight, &k, &s->weights));
		/* Tiles that are not finite are computed again from plain weights. */
		return s->c.way == CONV_TILES ? low_reads(l, s->weight) : CLV_OK;
	}
	TRY(low_scratch(l, packed_bytes(low_at(l, s->weight), &s->spec), &s->packed));
	return low_step(l, run_pack, s);
}

/* Expanded weights have sizes that no memory bounds. Channels are padded to two vectors, and tiles have four times the floats. */
static bool can_pack(const conv *c, int vector)
{
	double floats = (double)c->groups * (double)(c->oc + 4 * vector) * (double)c->ic * 4;
	for (int i = 0; i < 3; i++)
		floats *= (double)c->axis[i].taps;
	return floats < 0x1p56;
}

static clv_status add_phase(lowering *l, const conv_args *a, int64_t phase, conv_step like)
{
	int vector = low_kernels(l)->vector, threads = low_threads(l);
	conv_step *s = low_alloc(l, sizeof *s);
	size_t bytes;
	image x, y;
	if (!s)
		return fail_nomem();
	*s = like;
	s->c = conv_phase(&a->s, phase);
	image_of(low_at(l, s->in), a->spatial, &x);
	image_of(low_at(l, s->out), a->spatial, &y);
	memcpy(s->c.in_stride, x.stride, sizeof x.stride);
	memcpy(s->c.out_stride, y.stride, sizeof y.stride);
	s->plain = plain_weights(low_at(l, s->weight), a->s.transposed);
	if (low_at(l, s->in)->dtype == DT_F64)
		return low_step(l, run_doubles, s);
	if (!can_pack(&s->c, vector))
		return fail(CLV_E_OVERFLOW, "weights of a convolution are too large");
	s->c.way = conv_best_way(&s->c, vector);
	s->spec = spec_of(&s->c, vector, &s->plain);
	conv_divide(&s->c, vector, threads);
	TRY(add_weights(l, s));
	if (__builtin_mul_overflow((size_t)s->c.scratch, (size_t)threads * sizeof(float), &bytes))
		return fail(CLV_E_OVERFLOW, "a convolution that needs more than 2^64 bytes beside its tensors");
	TRY(low_scratch(l, bytes, &s->scratch));
	return low_step(l, run_conv, s);
}

static clv_status lower_conv(lowering *l, node_id n)
{
	conv_args a = {0};
	conv_step like = {.packed = NONE};
	image x;
	nt form;
	slot result;
	TRY(read_args(l, n, &a));
	uint8_t type = low_at(l, a.in)->dtype;
	image_of(low_at(l, a.in), a.spatial, &x);
	TRY(image_expect(l, n, 0, type, a.spatial, a.s.oc * a.s.groups, a.s.out, &x, &form));
	like.in = a.in;
	like.weight = a.weight;
	if (x.size[1] > 4) /* a picture is read as it is: copying its few channels costs a kernel nothing */
		TRY(image_input(l, a.in, a.spatial, &like.in));
	like.bias = NONE;
	if (a.bias != NONE)
		TRY(low_as_rows(l, a.bias, &like.bias));
	int64_t phases = conv_phases(&a.s);
	if (phases > 4096)
		return fail(CLV_E_UNSUPPORTED, "a transposed convolution with a stride of more than 4096 elements");
	image_channels_last(&form, a.spatial);
	if (!a.s.transposed && type == DT_F32)
		TRY(low_epilogue(l, n, &form, form.ndim - a.spatial - 1u, &like.after));
	TRY(image_output(l, n, 0, &form, a.spatial, &result, &like.out));
	for (int64_t p = 0; p < phases; p++)
		TRY(add_phase(l, &a, p, like));
	return low_copy(l, like.out, result);
}

#define CONV(op, args)                                                                                                 \
	{                                                                                                                  \
		.id = op, .takes = takes_conv, .widens = true, .keeps = 1, .lower = lower_conv, .what = args                   \
	}
const native_op native_ops_conv[] = {
	CONV(OP__convolution, EITHER),
	CONV(OP_conv1d, PLAIN),
	CONV(OP_conv1d_padding, PLAIN),
	CONV(OP_conv2d, PLAIN),
	CONV(OP_conv2d_padding, PLAIN),
	CONV(OP_conv3d, PLAIN),
	CONV(OP_conv3d_padding, PLAIN),
	CONV(OP_conv_transpose1d, TRANSPOSED),
	CONV(OP_conv_transpose2d_input, TRANSPOSED),
	CONV(OP_conv_transpose3d_input, TRANSPOSED),
	CONV(OP_convolution, EITHER),
	{.id = OP_UNKNOWN},
};
