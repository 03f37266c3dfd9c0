/* Norms and softmax. Batch norm in evaluation is a chain: x * scale + shift per channel. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "native/doubles.h"
#include "native/elementwise.h"
#include "native/grid.h"
#include "native/norm.h"
#include "native/rules.h"

/* ---- softmax ------------------------------------------------------------------------------------------------------------------ */

typedef struct softmax_params {
	grid g;
	bool log, wide; /* doubles */
	slot out;
} softmax_params;

typedef struct norm_job {
	const void *p;
	const native_kernels *k;
	frame *f;
} norm_job;

static void softmax_doubles(const softmax_params *p, const double *x, double *y, int64_t step)
{
	double top = x[0], sum = 0;
	for (int64_t i = 1; i < p->g.n; i++)
		top = x[i * step] > top || x[i * step] != x[i * step] ? x[i * step] : top;
	for (int64_t i = 0; i < p->g.n; i++)
		sum += exp(x[i * step] - top);
	for (int64_t i = 0; i < p->g.n; i++)
		y[i * step] = p->log ? x[i * step] - top - log(sum) : exp(x[i * step] - top) / sum;
}

static void softmax_part(void *ctx, int64_t first, int64_t end, int thread)
{
	const norm_job *j = ctx;
	const softmax_params *p = j->p;
	int64_t n = p->g.n, inner = p->g.inner;
	char *x = j->f->t[p->g.x].data, *y = j->f->t[p->out].data;
	(void)thread;
	if (p->wide) {
		for (int64_t o = first; o < end; o++)
			for (int64_t c = 0; c < inner; c++)
				softmax_doubles(p, (double *)x + o * n * inner + c, (double *)y + o * n * inner + c, inner);
	} else if (inner == 1) {
		j->k->softmax_rows((float *)x + first * n, (float *)y + first * n, end - first, n, p->log);
	} else {
		for (int64_t o = first; o < end; o++)
			j->k->softmax_columns((float *)x + o * n * inner, (float *)y + o * n * inner, n, inner, inner, p->log);
	}
}

static clv_status run_softmax(const void *params, frame *f)
{
	const softmax_params *p = params;
	norm_job j = {.p = params, .k = f->k, .f = f};
	if (p->g.n * p->g.inner > 0)
		team_run(f->team, p->g.outer, 8192 / (p->g.n * p->g.inner) + 1, softmax_part, &j);
	return CLV_OK;
}

/* A tensor of the dtype that the result has. */
static clv_status as_dtype(lowering *l, slot x, uint8_t to, slot *out)
{
	nt form = *low_at(l, x);
	*out = x;
	if (form.dtype == to)
		return CLV_OK;
	form.dtype = to;
	nt_rows(&form);
	TRY(low_temp(l, &form, out));
	return low_copy(l, x, *out);
}

static clv_status lower_softmax(lowering *l, node_id n)
{
	softmax_params *p = low_alloc(l, sizeof *p);
	slot x;
	nt form;
	uint32_t dim;
	TRY_MEM(p);
	TRY(low_tensor(l, n, 0, &x));
	TRY(low_form(l, n, 0, &form));
	if (form.dtype != DT_F32 && form.dtype != DT_F64)
		return fail(CLV_E_UNSUPPORTED, "softmax is f32 or f64");
	if (nt_numel(&form) == 0)
		return low_result(l, n, 0, &form, false, &p->out);
	TRY(as_dtype(l, x, form.dtype, &x));
	TRY(low_dim(l, n, 1, -1, form.ndim, &dim));
	TRY(low_grid(l, x, form.ndim ? 1u << dim : 0, false, &p->g));
	if (form.ndim != low_at(l, x)->ndim || memcmp(form.size, low_at(l, x)->size, form.ndim * sizeof *form.size) != 0)
		return fail(CLV_E_VERIFY, "the result has another shape than the argument");
	memcpy(form.stride, p->g.lie.stride, form.ndim * sizeof *form.stride);
	p->log = low_what(l, n);
	p->wide = form.dtype == DT_F64;
	TRY(low_result(l, n, 0, &form, true, &p->out));
	return low_step(l, run_softmax, p);
}

/* ---- norms of rows -------------------------------------------------------------------------------------------------------------- */

enum { WITH_MEAN, ROOT_MEAN_SQUARE };

typedef struct rows_params {
	slot x, out, weight, bias, mean, scale; /* NONE: there is none */
	int64_t rows, n;
	int64_t channels, each; /* group norm: channels of a row, and elements of each; 0: weights are as long as rows */
	int64_t groups;
	bool rms, wide; /* wide: doubles */
	double eps;
} rows_params;

static float *floats(const frame *f, slot s)
{
	return s == NONE ? NULL : (float *)f->t[s].data;
}

static void normalize_groups(const norm_job *j, const rows_params *p, int64_t r, float mean, float scale)
{
	const float *w = floats(j->f, p->weight), *b = floats(j->f, p->bias);
	for (int64_t c = 0; c < p->channels; c++) {
		int64_t at = r * p->n + c * p->each, channel = r % p->groups * p->channels + c;
		j->k->scale_shift(floats(j->f, p->x) + at, floats(j->f, p->out) + at, p->each, mean,
		                  w ? scale * w[channel] : scale, b ? b[channel] : 0);
	}
}

static double *doubles(const frame *f, slot s)
{
	return s == NONE ? NULL : (double *)f->t[s].data;
}

static void row_of_doubles(const norm_job *j, const rows_params *p, int64_t r)
{
	const double *x = doubles(j->f, p->x) + r * p->n, *w = doubles(j->f, p->weight), *b = doubles(j->f, p->bias);
	double *y = doubles(j->f, p->out) + r * p->n, mean, scale;
	doubles_statistics(x, p->n, p->rms, p->eps, &mean, &scale);
	if (p->mean != NONE)
		doubles(j->f, p->mean)[r] = mean;
	if (p->scale != NONE)
		doubles(j->f, p->scale)[r] = scale;
	if (!p->channels)
		doubles_normalize(x, y, p->n, mean, scale, w, b);
	for (int64_t i = 0; p->channels && i < p->n; i++) {
		int64_t channel = r % p->groups * p->channels + i / p->each;
		y[i] = (x[i] - mean) * (w ? scale * w[channel] : scale) + (b ? b[channel] : 0);
	}
}

static void rows_part(void *ctx, int64_t first, int64_t end, int thread)
{
	const norm_job *j = ctx;
	const rows_params *p = j->p;
	float *means = floats(j->f, p->mean), *scales = floats(j->f, p->scale);
	(void)thread;
	for (int64_t r = first; r < end; r++) {
		if (p->wide) {
			row_of_doubles(j, p, r);
			continue;
		}
		const float *x = floats(j->f, p->x) + r * p->n;
		float mean, scale;
		j->k->row_statistics(x, p->n, p->rms, (float)p->eps, &mean, &scale);
		if (means)
			means[r] = mean;
		if (scales)
			scales[r] = scale;
		if (p->channels)
			normalize_groups(j, p, r, mean, scale);
		else
			j->k->normalize(x, floats(j->f, p->out) + r * p->n, p->n, mean, scale, floats(j->f, p->weight),
			                floats(j->f, p->bias));
	}
}

static clv_status run_rows(const void *params, frame *f)
{
	const rows_params *p = params;
	norm_job j = {.p = params, .k = f->k, .f = f};
	team_run(f->team, p->rows, 16384 / (p->n + 1) + 1, rows_part, &j);
	return CLV_OK;
}

static clv_status vector_of(lowering *l, slot s, uint8_t type, int64_t count, slot *out)
{
	*out = NONE;
	if (s == NONE)
		return CLV_OK;
	if (low_at(l, s)->dtype != type || nt_numel(low_at(l, s)) != count)
		return fail(CLV_E_UNSUPPORTED, "a weight of a norm is no %s tensor of %lld elements", dtype_name(type),
		            (long long)count);
	return low_as_rows(l, s, out);
}

/* A vector of weights, row-major; NONE if it is none. */
static clv_status vector(lowering *l, node_id n, uint32_t i, uint8_t type, int64_t count, slot *out)
{
	slot s;
	TRY(low_tensor_or_none(l, n, i, &s));
	return vector_of(l, s, type, count, out);
}

clv_status low_layer_norm(lowering *l, slot x, slot weight, slot bias, double eps, slot out)
{
	rows_params *p = low_alloc(l, sizeof *p);
	const nt *t = low_at(l, x), *y = low_at(l, out);
	TRY_MEM(p);
	if (t->dtype != DT_F32 || y->dtype != DT_F32 || !t->ndim || !nt_is_rows(t) || !nt_is_rows(y) ||
	    nt_numel(t) != nt_numel(y))
		return fail(CLV_E_VERIFY, "a norm is of rows of f32, and gives as many");
	*p = (rows_params){.x = x, .out = out, .mean = NONE, .scale = NONE, .n = t->size[t->ndim - 1], .eps = eps};
	p->rows = p->n ? nt_numel(t) / p->n : 0;
	TRY(vector_of(l, weight, DT_F32, p->n, &p->weight));
	TRY(vector_of(l, bias, DT_F32, p->n, &p->bias));
	return low_step(l, run_rows, p);
}

static clv_status start_rows(lowering *l, node_id n, rows_params *p)
{
	slot x;
	p->weight = p->bias = p->mean = p->scale = NONE;
	TRY(low_tensor(l, n, 0, &x));
	uint8_t type = low_at(l, x)->dtype;
	if (type != DT_F32 && type != DT_F64)
		return fail(CLV_E_UNSUPPORTED, "there is no kernel for norms of this dtype");
	p->wide = type == DT_F64;
	return low_as_rows(l, x, &p->x);
}

static uint8_t type_of(const rows_params *p)
{
	return p->wide ? DT_F64 : DT_F32;
}

static clv_status finish_rows(lowering *l, node_id n, rows_params *p)
{
	nt form;
	TRY(low_form_of_type(l, n, 0, type_of(p), &form));
	if (nt_numel(&form) != p->rows * p->n)
		return fail(CLV_E_VERIFY, "the result has another size than the argument");
	TRY(low_result(l, n, 0, &form, true, &p->out));
	return low_step(l, run_rows, p);
}

/* Result i, one number per row, if somebody reads it. */
static clv_status statistic(lowering *l, node_id n, uint32_t i, const rows_params *p, slot *out)
{
	nt form;
	if (i >= low_results(l, n) || !low_wants(l, n, i))
		return CLV_OK;
	TRY(low_form_of_type(l, n, i, type_of(p), &form));
	if (nt_numel(&form) != p->rows)
		return fail(CLV_E_VERIFY, "result %u has another size than there are rows", i);
	return low_result(l, n, i, &form, true, out);
}

static clv_status lower_rows(lowering *l, node_id n)
{
	rows_params *p = low_alloc(l, sizeof *p);
	int64_t shape[NT_DIMS];
	uint32_t count;
	TRY_MEM(p);
	p->rms = low_what(l, n) == ROOT_MEAN_SQUARE;
	TRY(start_rows(l, n, p));
	TRY(low_ints(l, n, 1, NT_DIMS, shape, &count));
	const nt *t = low_at(l, p->x);
	if (count > t->ndim || memcmp(shape, t->size + t->ndim - count, count * sizeof *shape) != 0)
		return fail(CLV_E_INVALID, "the last dimensions are not those of the norm");
	p->n = p->rows = 1;
	for (uint32_t d = 0; d < t->ndim; d++)
		*(d + count >= t->ndim ? &p->n : &p->rows) *= t->size[d];
	double absent = !p->rms ? 1e-5 : p->wide ? DBL_EPSILON : FLT_EPSILON;
	TRY(low_real(l, n, p->rms ? 3 : 4, absent, &p->eps));
	TRY(vector(l, n, 2, type_of(p), p->n, &p->weight));
	if (!p->rms)
		TRY(vector(l, n, 3, type_of(p), p->n, &p->bias));
	if (!p->rms)
		TRY(statistic(l, n, 1, p, &p->mean));
	TRY(statistic(l, n, p->rms ? 1 : 2, p, &p->scale));
	return finish_rows(l, n, p);
}

static clv_status lower_groups_of(lowering *l, node_id n, rows_params *p, int64_t groups, double eps, uint32_t weight)
{
	const nt *t = low_at(l, p->x);
	if (t->ndim < 2 || groups <= 0 || t->size[1] % groups != 0)
		return fail(CLV_E_INVALID, "channels cannot be divided into %lld groups", (long long)groups);
	int64_t channels = t->size[1];
	p->each = 1;
	for (uint32_t d = 2; d < t->ndim; d++)
		p->each *= t->size[d];
	p->groups = groups;
	p->channels = channels / groups;
	if (__builtin_mul_overflow(t->size[0], groups, &p->rows))
		return fail(CLV_E_OVERFLOW, "there are more than 2^63 groups");
	p->n = p->channels * p->each;
	p->eps = eps;
	TRY(vector(l, n, weight, type_of(p), channels, &p->weight));
	TRY(vector(l, n, weight + 1, type_of(p), channels, &p->bias));
	return finish_rows(l, n, p);
}

static clv_status lower_group_norm(lowering *l, node_id n)
{
	rows_params *p = low_alloc(l, sizeof *p);
	int64_t groups;
	double eps;
	TRY_MEM(p);
	TRY(start_rows(l, n, p));
	TRY(low_int(l, n, 1, 1, &groups));
	TRY(low_real(l, n, 4, 1e-5, &eps));
	return lower_groups_of(l, n, p, groups, eps, 2);
}

/* ---- batch norm ------------------------------------------------------------------------------------------------------------------ */

/* A vector as a tensor over channels, dimension 1. */
static clv_status channel_term(ew *e, slot s, term *out)
{
	nt spread = e->form;
	const nt *t = low_at(e->l, s);
	memset(spread.stride, 0, sizeof spread.stride);
	if (t->ndim != 1 || spread.ndim < 2 || t->size[0] != spread.size[1])
		return fail(CLV_E_INVALID, "there is not one number per channel");
	spread.stride[1] = t->stride[0];
	return ew_input_as(e, s, &spread, true, out);
}

static term number(double x)
{
	return (term){.kind = TERM_NUMBER, .type = NUM_F64, .f = x};
}

/* scale = weight / sqrt(var + eps), shift = bias - mean * scale */
static clv_status make_scales(ew *e, const slot *given, double eps, slot scale, slot shift)
{
	term t[4], y, z;
	for (int i = 0; i < 4; i++) {
		t[i] = number(i == 0);
		if (given[i] != NONE)
			TRY(ew_input(e, given[i], &t[i]));
	}
	TRY(ew_apply(e, EW(ADD, CHAIN_ADD), (term[]){t[3], number(eps)}, 2, &y));
	TRY(ew_apply(e, EW(MAP, MAP_RSQRT), &y, 1, &y));
	TRY(ew_apply(e, EW(BINARY, CHAIN_MUL), (term[]){y, t[0]}, 2, &y));
	TRY(ew_apply(e, EW(BINARY, CHAIN_MUL), (term[]){t[2], y}, 2, &z));
	TRY(ew_apply(e, EW(ADD, CHAIN_SUB), (term[]){t[1], z}, 2, &z));
	TRY(ew_output(e, &y, scale));
	return ew_output(e, &z, shift);
}

static clv_status with_chain(lowering *l, const nt *form, clv_status (*make)(ew *e, void *ctx), void *ctx)
{
	ew *e;
	TRY(ew_new(l, form, &e));
	clv_status st = make(e, ctx);
	if (st == CLV_OK)
		st = ew_finish(e);
	mem_free(e);
	return st;
}

typedef struct batch_norm {
	node_id n;
	slot x, given[4], scale, shift; /* given: weight, bias, mean, variance */
	double eps;
} batch_norm;

static clv_status scales_chain(ew *e, void *ctx)
{
	const batch_norm *b = ctx;
	return make_scales(e, b->given, b->eps, b->scale, b->shift);
}

static clv_status apply_chain(ew *e, void *ctx)
{
	const batch_norm *b = ctx;
	term x, scale, shift, y;
	nt form = e->form;
	slot out;
	TRY(ew_input(e, b->x, &x));
	TRY(channel_term(e, b->scale, &scale));
	TRY(channel_term(e, b->shift, &shift));
	TRY(ew_apply(e, EW(BINARY, CHAIN_MUL), (term[]){x, scale}, 2, &y));
	TRY(ew_apply(e, EW(ADD, CHAIN_ADD), (term[]){y, shift}, 2, &y));
	if (nt_is_dense(low_at(e->l, b->x)))
		nt_strides_like(&form, low_at(e->l, b->x));
	TRY(low_result(e->l, b->n, 0, &form, false, &out));
	return ew_output(e, &y, out);
}

static clv_status lower_with_statistics(lowering *l, node_id n, double eps)
{
	batch_norm b = {.n = n, .eps = eps};
	nt form, channels = {.ndim = 1, .stride = {1}};
	TRY(low_tensor(l, n, 0, &b.x));
	TRY(low_form(l, n, 0, &form));
	if ((form.dtype != DT_F32 && form.dtype != DT_F64) || form.ndim < 2)
		return fail(CLV_E_UNSUPPORTED, "there is no kernel for batch norm of this dtype or without channels");
	channels.dtype = form.dtype;
	channels.size[0] = form.size[1];
	for (uint32_t i = 0; i < 4; i++)
		TRY(vector(l, n, i + 1, form.dtype, form.size[1], &b.given[i]));
	if (b.given[2] == NONE || b.given[3] == NONE)
		return fail(CLV_E_UNSUPPORTED, "there is no mean or no variance");
	TRY(low_temp(l, &channels, &b.scale));
	TRY(low_temp(l, &channels, &b.shift));
	TRY(with_chain(l, &channels, scales_chain, &b));
	return with_chain(l, &form, apply_chain, &b);
}

static nt channels_first(const nt *t)
{
	nt made = *t;
	made.size[0] = t->size[1], made.stride[0] = t->stride[1];
	made.size[1] = t->size[0], made.stride[1] = t->stride[0];
	made.data = NULL;
	return made;
}

/* Statistics of the batch that nothing keeps (weights are standardised so): rows are channels. */
static clv_status lower_batch_statistics(lowering *l, node_id n, double eps)
{
	rows_params *p = low_alloc(l, sizeof *p);
	nt form, turned;
	slot x, result;
	TRY_MEM(p);
	TRY(low_tensor(l, n, 0, &x));
	TRY(low_form(l, n, 0, &form));
	if ((form.dtype != DT_F32 && form.dtype != DT_F64) || low_at(l, x)->dtype != form.dtype || low_at(l, x)->ndim < 2)
		return fail(CLV_E_UNSUPPORTED, "there is no kernel for batch norm of this dtype or without channels");
	turned = channels_first(low_at(l, x));
	*p = (rows_params){.mean = NONE, .scale = NONE, .rows = turned.size[0], .groups = turned.size[0], .channels = 1};
	p->eps = eps;
	p->wide = form.dtype == DT_F64;
	TRY(vector(l, n, 1, form.dtype, p->rows, &p->weight));
	TRY(vector(l, n, 2, form.dtype, p->rows, &p->bias));
	TRY(low_part(l, x, 0, &turned, &x));
	TRY(low_as_rows(l, x, &p->x));
	p->n = p->each = p->rows ? nt_numel(&turned) / p->rows : 0;
	nt_rows(&turned);
	TRY(low_temp(l, &turned, &p->out));
	TRY(low_step(l, run_rows, p));
	TRY(low_result(l, n, 0, &form, false, &result));
	turned = channels_first(low_at(l, result));
	TRY(low_part(l, result, 0, &turned, &result));
	return low_copy(l, p->out, result);
}

static bool flag_is(const plan *p, node_id n, uint32_t i, bool want)
{
	const node *x = &p->nodes.at[n];
	const arg *a = i < x->nargs ? &p->args.at[x->args + i] : NULL;
	return a && a->kind == ARG_BOOL && a->u.b == want;
}

static clv_status lower_batch_norm(lowering *l, node_id n)
{
	double eps;
	TRY(low_real(l, n, low_what(l, n), 1e-5, &eps));
	return flag_is(low_plan(l), n, 5, true) ? lower_batch_statistics(l, n, eps) : lower_with_statistics(l, n, eps);
}

static const char *takes_floats(const plan *p, node_id n)
{
	return native_floats(p, n, 1) ? NULL : "there are norms of f32 and f64 alone";
}

static const char *takes_batch_norm(const plan *p, node_id n)
{
	const node *x = &p->nodes.at[n];
	bool kept = x->nargs > 4 && (p->args.at[x->args + 3].kind != ARG_NONE || p->args.at[x->args + 4].kind != ARG_NONE);
	if (!flag_is(p, n, 5, false) && (kept || !flag_is(p, n, 5, true)))
		return "it computes statistics of the batch and keeps them";
	return takes_floats(p, n);
}

static clv_status lower_instance_norm(lowering *l, node_id n)
{
	rows_params *p = low_alloc(l, sizeof *p);
	double eps;
	TRY_MEM(p);
	TRY(low_real(l, n, 7, 1e-5, &eps));
	if (flag_is(low_plan(l), n, 5, false))
		return lower_with_statistics(l, n, eps);
	TRY(start_rows(l, n, p));
	return lower_groups_of(l, n, p, low_at(l, p->x)->ndim > 1 ? low_at(l, p->x)->size[1] : 0, eps, 1);
}

/* ---- norms of weights ----------------------------------------------------------------------------------------------------------- */

typedef struct weight_norm {
	slot v, g, out;
	int64_t outer, n, inner; /* a number of g for each of n */
} weight_norm;

#define SCALED(type)                                                                                                   \
	for (int64_t i = 0; i < p->n; i++) {                                                                               \
		const type *v = (const type *)f->t[p->v].data + i * p->inner, *g = (const type *)f->t[p->g].data;              \
		type *out = (type *)f->t[p->out].data + i * p->inner;                                                          \
		double sum = 0;                                                                                                \
		for (int64_t o = 0; o < p->outer; o++)                                                                         \
			for (int64_t k = 0; k < p->inner; k++)                                                                     \
				sum += (double)v[o * step + k] * (double)v[o * step + k];                                              \
		type scale = (type)((double)g[i] / sqrt(sum));                                                                 \
		for (int64_t o = 0; o < p->outer; o++)                                                                         \
			for (int64_t k = 0; k < p->inner; k++)                                                                     \
				out[o * step + k] = v[o * step + k] * scale;                                                           \
	}

static clv_status run_weight_norm(const void *params, frame *f)
{
	const weight_norm *p = params;
	int64_t step = p->n * p->inner;
	if (f->t[p->v].dtype == DT_F32)
		SCALED(float)
	else
		SCALED(double)
	return CLV_OK;
}

static const char *takes_weight_norm(const plan *p, node_id n)
{
	return native_floats(p, n, 2) ? NULL : "weights of other types than f32 or f64";
}

/* v * g / |v|; the norm is over all dimensions but `dim`, or over all with dim -1. */
static clv_status lower_weight_norm(lowering *l, node_id n)
{
	weight_norm *p = low_alloc(l, sizeof *p);
	int64_t dim;
	nt form;
	TRY_MEM(p);
	TRY(low_tensor(l, n, 0, &p->v));
	TRY(low_tensor(l, n, 1, &p->g));
	TRY(low_int(l, n, 2, 0, &dim));
	TRY(low_form(l, n, 0, &form));
	const nt v = *low_at(l, p->v), g = *low_at(l, p->g);
	if (dim < -1 || dim >= v.ndim || v.ndim != form.ndim || v.dtype != form.dtype || g.dtype != v.dtype ||
	    memcmp(v.size, form.size, v.ndim * sizeof *v.size) != 0 || nt_numel(&g) != (dim < 0 ? 1 : v.size[dim]))
		return fail(CLV_E_VERIFY, "a weight and its lengths do not fit together");
	p->outer = p->n = p->inner = 1;
	for (int64_t d = 0; d < v.ndim; d++)
		*(dim < 0 || d > dim ? &p->inner : d < dim ? &p->outer : &p->n) *= v.size[d];
	TRY(low_as_rows(l, p->v, &p->v));
	TRY(low_as_rows(l, p->g, &p->g));
	TRY(low_result(l, n, 0, &form, true, &p->out));
	return nt_numel(&v) ? low_step(l, run_weight_norm, p) : CLV_OK;
}

const native_op native_ops_norm[] = {
	{.id = OP__weight_norm, .takes = takes_weight_norm, .widens = true, .lower = lower_weight_norm},
	{.id = OP__fused_rms_norm, .takes = takes_floats, .widens = true, .lower = lower_rows, .what = ROOT_MEAN_SQUARE},
	{.id = OP__log_softmax, .lower = lower_softmax, .what = 1},
	{.id = OP__softmax, .lower = lower_softmax},
	{.id = OP_batch_norm, .takes = takes_batch_norm, .widens = true, .lower = lower_batch_norm, .what = 7},
	{.id = OP_group_norm, .takes = takes_floats, .widens = true, .lower = lower_group_norm},
	{.id = OP_instance_norm, .takes = takes_floats, .widens = true, .lower = lower_instance_norm},
	{.id = OP_layer_norm, .takes = takes_floats, .widens = true, .lower = lower_rows},
	{.id = OP_log_softmax_int, .lower = lower_softmax, .what = 1},
	{.id = OP_native_layer_norm, .takes = takes_floats, .widens = true, .lower = lower_rows},
	{.id = OP_rms_norm, .takes = takes_floats, .widens = true, .lower = lower_rows, .what = ROOT_MEAN_SQUARE},
	{.id = OP_softmax_int, .lower = lower_softmax},
	{.id = OP_special_log_softmax, .lower = lower_softmax, .what = 1},
	{.id = OP_special_softmax, .lower = lower_softmax},
	{.id = OP_UNKNOWN},
};
