/* Attention with its projections, and whole layers of a transformer's encoder: the operators that torch's fast path of inference
 * calls. Each is products, attention and norms as steps of one node. */
#include <math.h>
#include <string.h>

#include "native/attending.h"
#include "native/elementwise.h"
#include "native/multiply.h"
#include "native/norm.h"
#include "native/rules.h"

typedef struct heads {
	slot x[3]; /* queries, keys, values: [batch, rows, dim] */
	slot weight, bias, out_weight, out_bias, mask;
	int64_t dim, count, size, batch, queries, keys, mask_kind; /* size: of a head */
} heads;

/* ---- arguments ----------------------------------------------------------------------------------------------------------- */

static clv_status floats_at(lowering *l, node_id n, uint32_t i, slot *out)
{
	TRY(low_tensor(l, n, i, out));
	return *out != NONE && low_at(l, *out)->dtype == DT_F32 ? CLV_OK
	                                                        : fail(CLV_E_UNSUPPORTED, "argument %u is not f32", i);
}

static bool is_sized(const nt *t, uint8_t ndim, int64_t first, int64_t second)
{
	return t->ndim == ndim && t->size[0] == first && (ndim < 2 || t->size[1] == second);
}

/* Arguments from `at` on: dim, heads, and four weights. */
static clv_status read_heads(lowering *l, node_id n, uint32_t at, heads *h)
{
	const nt *x[3];
	int64_t three;
	TRY(low_int(l, n, at, 0, &h->dim));
	TRY(low_int(l, n, at + 1, 0, &h->count));
	TRY(floats_at(l, n, at + 2, &h->weight));
	TRY(floats_at(l, n, at + 3, &h->bias));
	TRY(floats_at(l, n, at + 4, &h->out_weight));
	TRY(floats_at(l, n, at + 5, &h->out_bias));
	for (int i = 0; i < 3; i++) {
		x[i] = low_at(l, h->x[i]);
		if (x[i]->ndim != 3 || x[i]->size[2] != h->dim || x[i]->size[0] != x[0]->size[0])
			return fail(CLV_E_VERIFY, "queries, keys and values of attention do not fit its heads");
	}
	h->batch = x[0]->size[0];
	h->queries = x[0]->size[1];
	h->keys = x[1]->size[1];
	if (h->dim < 1 || h->count < 1 || h->dim % h->count != 0 || __builtin_mul_overflow(h->dim, 3, &three) ||
	    h->keys != x[2]->size[1] || !is_sized(low_at(l, h->weight), 2, three, h->dim) ||
	    !is_sized(low_at(l, h->bias), 1, three, 0) || !is_sized(low_at(l, h->out_weight), 2, h->dim, h->dim) ||
	    !is_sized(low_at(l, h->out_bias), 1, h->dim, 0))
		return fail(CLV_E_VERIFY, "weights of attention do not fit its heads");
	h->size = h->dim / h->count;
	return CLV_OK;
}

/* Hidden is what is not 0. Kinds: 0 is for queries and keys, 1 for the keys of each sequence, 2 for everything. */
static clv_status spread_mask(lowering *l, const heads *h, slot *out)
{
	const nt *t = low_at(l, *out);
	nt form = {.dtype = t->dtype, .ndim = 4, .size = {1, 1, h->queries, h->keys}};
	if (h->mask_kind == 2 && t->ndim == 4)
		return CLV_OK;
	if (h->mask_kind == 0 && is_sized(t, 2, h->queries, h->keys)) {
		form.stride[2] = t->stride[0];
		form.stride[3] = t->stride[1];
	} else if (h->mask_kind == 1 && is_sized(t, 2, h->batch, h->keys)) {
		form.size[0] = h->batch;
		form.size[2] = 1;
		form.stride[0] = t->stride[0];
		form.stride[3] = t->stride[1];
	} else {
		return fail(CLV_E_UNSUPPORTED, "a mask of attention of this kind and shape");
	}
	return low_part(l, *out, 0, &form, out);
}

static clv_status negate(lowering *l, slot from, slot to)
{
	ew *e;
	term x;
	TRY(ew_new(l, low_at(l, to), &e));
	clv_status st = ew_input(e, from, &x);
	if (st == CLV_OK)
		st = ew_apply(e, EW(TEST, CHAIN_NOT), &x, 1, &x);
	if (st == CLV_OK)
		st = ew_output(e, &x, to);
	if (st == CLV_OK)
		st = ew_finish(e);
	mem_free(e);
	return st;
}

/* As flags of what is seen. */
static clv_status read_mask(lowering *l, node_id n, uint32_t at, uint32_t kind, heads *h)
{
	slot given;
	TRY(low_tensor_or_none(l, n, at, &given));
	TRY(low_int(l, n, kind, 2, &h->mask_kind));
	h->mask = NONE;
	if (given == NONE)
		return CLV_OK;
	nt form = *low_at(l, given);
	form.dtype = DT_BOOL;
	nt_rows(&form);
	TRY(low_temp(l, &form, &h->mask));
	TRY(negate(l, given, h->mask));
	return spread_mask(l, h, &h->mask);
}

/* ---- steps ------------------------------------------------------------------------------------------------------------------- */

static clv_status rows_of(lowering *l, int64_t batch, int64_t rows, int64_t cols, slot *out)
{
	nt form = {.dtype = DT_F32, .ndim = 3, .size = {batch, rows, cols}};
	int64_t all;
	if (__builtin_mul_overflow(rows, cols, &all))
		return fail(CLV_E_OVERFLOW, "attention is too large");
	nt_rows(&form);
	return low_temp(l, &form, out);
}

/* out = x·Wᵀ + bias, then the epilogue. */
static clv_status project(lowering *l, slot x, slot weight, slot bias, const epilogue *e, slot out)
{
	multiply m = {.a = x, .c = out, .d = bias, .alpha = 1, .beta = 1};
	if (e)
		m.e = *e;
	TRY(mul_turned(l, weight, &m.b));
	return mul_lower(l, &m);
}

/* Columns of rows, as [batch, heads, rows, size]. */
static clv_status heads_in(lowering *l, const heads *h, slot rows, int64_t first, slot *out)
{
	const nt *t = low_at(l, rows);
	nt form = {.dtype = DT_F32,
	           .ndim = 4,
	           .size = {h->batch, h->count, t->size[1], h->size},
	           .stride = {t->stride[0], h->size, t->stride[1], 1}};
	return low_part(l, rows, nt_numel(&form) ? first : 0, &form, out);
}

static clv_status split_one(lowering *l, const heads *h, slot *out)
{
	slot rows;
	TRY(rows_of(l, h->batch, h->queries, 3 * h->dim, &rows));
	TRY(project(l, h->x[0], h->weight, h->bias, NULL, rows));
	for (int i = 0; i < 3; i++)
		TRY(heads_in(l, h, rows, i * h->dim, &out[i]));
	return CLV_OK;
}

static clv_status split_each(lowering *l, const heads *h, slot *out)
{
	nt weight = *low_at(l, h->weight), bias = *low_at(l, h->bias);
	weight.size[0] = bias.size[0] = h->dim;
	for (int i = 0; i < 3; i++) {
		slot rows, w, b;
		TRY(low_part(l, h->weight, i * h->dim * weight.stride[0], &weight, &w));
		TRY(low_part(l, h->bias, i * h->dim * bias.stride[0], &bias, &b));
		TRY(rows_of(l, h->batch, i ? h->keys : h->queries, h->dim, &rows));
		TRY(project(l, h->x[i], w, b, NULL, rows));
		TRY(heads_in(l, h, rows, 0, &out[i]));
	}
	return CLV_OK;
}

/* What the heads give, before the last projection. */
static clv_status attend(lowering *l, const heads *h, slot *qkv, slot *out)
{
	slot to;
	bool one = h->x[0] == h->x[1] && h->x[1] == h->x[2];
	TRY(one ? split_one(l, h, qkv) : split_each(l, h, qkv));
	TRY(rows_of(l, h->batch, h->queries, h->dim, out));
	TRY(heads_in(l, h, *out, 0, &to));
	attending a = {.q = qkv[0], .k = qkv[1], .v = qkv[2], .mask = h->mask};
	a.scale = 1 / sqrt((double)h->size);
	a.nothing = NAN;
	return low_attention(l, &a, to);
}

/* ---- weights of attention --------------------------------------------------------------------------------------------------- */

typedef struct weighing {
	slot scores, mask, out;
	int64_t queries, keys, heads;
	int64_t mask_at[4]; /* strides */
	float scale;
	bool average;
} weighing;

typedef struct weighing_run {
	const weighing *w;
	frame *f;
} weighing_run;

static float weigh_row(const weighing_run *r, int64_t batch, int64_t head, int64_t query, float *row)
{
	const weighing *w = r->w;
	attention_rows x = {
		.rows = 1, .n = w->keys, .sees = w->keys, .scale = w->scale, .kind = w->mask == NONE ? MASK_NONE : MASK_FLAGS};
	x.mask_col = w->mask_at[3];
	if (w->mask != NONE)
		x.mask = r->f->t[w->mask].data + batch * w->mask_at[0] + head * w->mask_at[1] + query * w->mask_at[2];
	float scale;
	r->f->k->attention_rows(row, &x, &scale);
	return scale == 0 ? NAN : scale;
}

/* Items are queries. The average adds heads in their order. */
static void weigh_rows(void *ctx, int64_t first, int64_t end, int thread)
{
	const weighing_run *r = ctx;
	const weighing *w = r->w;
	const nt *scores = &r->f->t[w->scores], *out = &r->f->t[w->out];
	(void)thread;
	for (int64_t i = first; i < end; i++) {
		int64_t batch = i / w->queries, query = i % w->queries;
		for (int64_t head = 0; head < w->heads; head++) {
			float *row = (float *)scores->data + batch * scores->stride[0] + head * scores->stride[1] +
			             query * scores->stride[2];
			float scale = weigh_row(r, batch, head, query, row);
			int64_t at = w->average ? i : (batch * w->heads + head) * w->queries + query;
			float *to = (float *)out->data + at * w->keys;
			for (int64_t k = 0; k < w->keys; k++)
				to[k] = (w->average && head ? to[k] : 0) + row[k] * scale;
		}
		float *to = (float *)out->data + i * w->keys;
		for (int64_t k = 0; w->average && k < w->keys; k++)
			to[k] /= (float)w->heads;
	}
}

static clv_status run_weighing(const void *params, frame *f)
{
	weighing_run r = {params, f};
	const weighing *w = params;
	if (w->keys)
		team_run(f->team, f->t[w->scores].size[0] * w->queries, 1, weigh_rows, &r);
	return CLV_OK;
}

/* Result 1: of each head, or their average. Rows of scores have room for whole vectors. */
static clv_status give_weights(lowering *l, node_id n, const heads *h, const slot *qkv, bool average)
{
	weighing *w = low_alloc(l, sizeof *w);
	nt form = {.dtype = DT_F32, .ndim = 4, .size = {h->batch, h->count, h->queries, (h->keys + 15) / 16 * 16}}, mask;
	multiply m = {.a = qkv[0], .d = NONE, .alpha = 1};
	int64_t all;
	if (__builtin_mul_overflow(form.size[2], form.size[3], &all) || __builtin_mul_overflow(all, h->count, &all))
		return fail(CLV_E_OVERFLOW, "attention is too large");
	TRY_MEM(w);
	*w = (weighing){.mask = h->mask, .queries = h->queries, .keys = h->keys, .heads = h->count, .average = average};
	w->scale = (float)(1 / sqrt((double)h->size));
	nt_rows(&form);
	TRY(low_temp(l, &form, &w->scores));
	form.size[3] = h->keys;
	TRY(low_part(l, w->scores, 0, &form, &m.c));
	TRY(mul_view(l, qkv[1], 4, (uint8_t[]){0, 1, 3, 2}, &m.b));
	TRY(mul_lower(l, &m));
	if (h->mask != NONE && !nt_expand(low_at(l, h->mask), 4, form.size, &mask))
		return fail(CLV_E_VERIFY, "the mask does not fit the scores");
	if (h->mask != NONE)
		memcpy(w->mask_at, mask.stride, sizeof w->mask_at);
	nt_rows(&form);
	if (average) {
		form.ndim = 3;
		form.size[1] = form.size[2];
		form.size[2] = form.size[3];
		nt_rows(&form);
	}
	TRY(low_result(l, n, 1, &form, true, &w->out));
	return low_step(l, run_weighing, w);
}

/* ---- operators ---------------------------------------------------------------------------------------------------------------- */

static const char *takes_heads(const plan *p, node_id n)
{
	const node *x = &p->nodes.at[n];
	const arg *a = x->nargs ? &p->args.at[x->args] : NULL;
	return a && a->kind == ARG_VALUE && native_dtype(p, a->u.v) == DT_F32 ? NULL : "it is of f32";
}

static clv_status lower_heads(lowering *l, node_id n)
{
	heads h = {0};
	slot qkv[3], rows, out;
	bool need, average;
	epilogue e;
	nt form;
	for (uint32_t i = 0; i < 3; i++)
		TRY(floats_at(l, n, i, &h.x[i]));
	TRY(read_heads(l, n, 3, &h));
	TRY(read_mask(l, n, 9, 12, &h));
	TRY(low_bool(l, n, 10, true, &need));
	TRY(low_bool(l, n, 11, true, &average));
	TRY(attend(l, &h, qkv, &rows));
	TRY(low_form(l, n, 0, &form));
	TRY(low_epilogue(l, n, &form, form.ndim - 1u, &e));
	TRY(low_result(l, n, 0, &form, false, &out));
	TRY(project(l, rows, h.out_weight, h.out_bias, &e, out));
	return need && low_results(l, n) > 1 && low_wants(l, n, 1) ? give_weights(l, n, &h, qkv, average) : CLV_OK;
}

/* block += rows of a row-major tensor. */
typedef struct residual {
	slot x;
	epilogue next;
} residual;

static void run_residual(const void *ctx, frame *f, float *block, int64_t ldc, int64_t row, int64_t rows, int64_t col,
                         int64_t cols)
{
	const residual *r = ctx;
	const nt *t = &f->t[r->x];
	int64_t wide = t->size[t->ndim - 1];
	for (int64_t i = 0; i < rows; i++) {
		const float *x = (const float *)t->data + (row + i) * wide + col;
		for (int64_t j = 0; j < cols; j++)
			block[i * ldc + j] += x[j];
	}
	if (r->next.run)
		r->next.run(r->next.ctx, f, block, ldc, row, rows, col, cols);
}

static clv_status add_rows(lowering *l, slot x, const epilogue *next, epilogue *out)
{
	residual *r = low_alloc(l, sizeof *r);
	TRY_MEM(r);
	*r = (residual){.x = x};
	if (next)
		r->next = *next;
	*out = (epilogue){run_residual, r};
	return CLV_OK;
}

typedef struct encoder {
	heads h;
	bool gelu, norm_first;
	double eps;
	slot norm[2][2], wide[2], narrow[2]; /* weight and bias */
	int64_t inner;
} encoder;

static clv_status read_encoder(lowering *l, node_id n, encoder *e)
{
	TRY(floats_at(l, n, 0, &e->h.x[0]));
	TRY(low_as_rows(l, e->h.x[0], &e->h.x[0]));
	e->h.x[1] = e->h.x[2] = e->h.x[0];
	TRY(read_heads(l, n, 1, &e->h));
	TRY(read_mask(l, n, 18, 19, &e->h));
	TRY(low_bool(l, n, 7, false, &e->gelu));
	TRY(low_bool(l, n, 8, false, &e->norm_first));
	TRY(low_real(l, n, 9, 1e-5, &e->eps));
	for (uint32_t i = 0; i < 2; i++) {
		TRY(floats_at(l, n, 10 + i, &e->norm[0][i]));
		TRY(floats_at(l, n, 12 + i, &e->norm[1][i]));
		TRY(floats_at(l, n, 14 + i, &e->wide[i]));
		TRY(floats_at(l, n, 16 + i, &e->narrow[i]));
	}
	e->inner = low_at(l, e->wide[0])->ndim == 2 ? low_at(l, e->wide[0])->size[0] : 0;
	return is_sized(low_at(l, e->narrow[0]), 2, e->h.dim, e->inner)
	           ? CLV_OK
	           : fail(CLV_E_VERIFY, "weights of the layer do not fit");
}

static clv_status normalized(lowering *l, const encoder *e, int which, slot x, slot *out)
{
	TRY(rows_of(l, e->h.batch, e->h.queries, e->h.dim, out));
	return low_layer_norm(l, x, e->norm[which][0], e->norm[which][1], e->eps, *out);
}

/* x plus attention of it. */
static clv_status attention_half(lowering *l, encoder *e, slot *out)
{
	slot x = e->h.x[0], qkv[3], rows;
	epilogue sum;
	if (e->norm_first)
		TRY(normalized(l, e, 0, x, &e->h.x[0]));
	e->h.x[1] = e->h.x[2] = e->h.x[0];
	TRY(attend(l, &e->h, qkv, &rows));
	TRY(add_rows(l, x, NULL, &sum));
	TRY(rows_of(l, e->h.batch, e->h.queries, e->h.dim, out));
	TRY(project(l, rows, e->h.out_weight, e->h.out_bias, &sum, *out));
	return e->norm_first ? CLV_OK : normalized(l, e, 0, *out, out);
}

static clv_status forward_half(lowering *l, const encoder *e, slot x, slot out, const epilogue *after)
{
	slot in = x, inner;
	epilogue activate, sum, none = {0};
	if (e->norm_first)
		TRY(normalized(l, e, 1, x, &in));
	TRY(rows_of(l, e->h.batch, e->h.queries, e->inner, &inner));
	TRY(mul_activation(l, e->gelu, &none, &activate));
	TRY(project(l, in, e->wide[0], e->wide[1], &activate, inner));
	TRY(add_rows(l, x, after, &sum));
	return project(l, inner, e->narrow[0], e->narrow[1], &sum, out);
}

static clv_status lower_encoder(lowering *l, node_id n)
{
	encoder e = {0};
	epilogue after = {0};
	slot x, out, last;
	nt form;
	TRY(read_encoder(l, n, &e));
	TRY(low_form(l, n, 0, &form));
	if (form.ndim != 3 || form.size[0] != e.h.batch || form.size[1] != e.h.queries || form.size[2] != e.h.dim)
		return fail(CLV_E_VERIFY, "the result has another shape than the argument");
	TRY(attention_half(l, &e, &x));
	if (e.norm_first)
		TRY(low_epilogue(l, n, &form, form.ndim - 1u, &after));
	TRY(low_result(l, n, 0, &form, true, &out));
	if (e.norm_first)
		return forward_half(l, &e, x, out, &after);
	TRY(rows_of(l, e.h.batch, e.h.queries, e.h.dim, &last));
	TRY(forward_half(l, &e, x, last, NULL));
	return low_layer_norm(l, last, e.norm[1][0], e.norm[1][1], e.eps, out);
}

const native_op native_ops_heads[] = {
	{.id = OP__native_multi_head_attention, .takes = takes_heads, .widens = true, .lower = lower_heads},
	{.id = OP__transformer_encoder_layer_fwd, .takes = takes_heads, .widens = true, .lower = lower_encoder},
	{.id = OP_UNKNOWN},
};
