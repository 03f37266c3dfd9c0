/* Attention: scaled_dot_product_attention with masks, causal, with heads that share keys and values. */
#include <math.h>
#include <string.h>

#include "native/attending.h"
#include "native/attention.h"
#include "native/doubles.h"
#include "native/multiply.h"

static const char *takes_attention(const plan *p, node_id n)
{
	const node *x = &p->nodes.at[n];
	const arg *mask = x->nargs > 3 ? &p->args.at[x->args + 3] : NULL;
	bool flags = mask && mask->kind == ARG_VALUE && native_dtype(p, mask->u.v) == DT_BOOL;
	return native_floats(p, n, flags ? 3 : 4) ? NULL : "attention is of f32 or f64, its mask of the same type or flags";
}

typedef struct step {
	attention a;
	bool wide; /* doubles */
	double scale;
	slot q, k, v, mask, out, scratch;
} step;

static clv_status run_step(const void *params, frame *f)
{
	const step *s = params;
	attention_run r = {.kernels = f->k,
	                   .team = f->team,
	                   .q = (const float *)f->t[s->q].data,
	                   .k = (const float *)f->t[s->k].data,
	                   .v = (const float *)f->t[s->v].data,
	                   .mask = s->mask == NONE ? NULL : f->t[s->mask].data,
	                   .out = (float *)f->t[s->out].data,
	                   .scratch = f->t[s->scratch].data};
	if (s->wide)
		doubles_attend(&s->a, s->scale, &r);
	else
		attention_do(&s->a, &r);
	return CLV_OK;
}

/* A batch dimension with its strides in all operands. */
typedef struct dim {
	int64_t size, q, k, v, mask, out;
} dim;

static void add_dim(attention *a, dim d)
{
	uint8_t i = a->nbatch++;
	a->batch[i] = d.size;
	a->q.batch[i] = d.q, a->k.batch[i] = d.k, a->v.batch[i] = d.v, a->mask.batch[i] = d.mask, a->out.batch[i] = d.out;
}

/* Groups of `many` query heads share keys and values. */
static void add_heads(attention *a, dim d, int64_t many)
{
	add_dim(a, (dim){d.size / many, d.q * many, d.k, d.v, d.mask * many, d.out * many});
	add_dim(a, (dim){many, d.q, 0, 0, d.mask, d.out});
}

/* How many query heads share one of keys and values. The dimension of heads is the third from the end. */
static clv_status shared_by(const nt *c, const nt *k, const nt *v, bool grouped, int64_t *out)
{
	int64_t heads = c->ndim > 2 ? c->size[c->ndim - 3] : 1, own = k->ndim > 2 ? k->size[k->ndim - 3] : 1;
	*out = 1;
	if (!grouped || own == heads)
		return CLV_OK;
	if (c->ndim == NT_DIMS || v->ndim < 3 || v->size[v->ndim - 3] != own || own < 1 || heads < 1 || heads % own != 0)
		return fail(CLV_E_UNSUPPORTED, "heads of keys and values do not divide those of queries");
	*out = heads / own;
	return CLV_OK;
}

static clv_status set_sizes(attention *a, const nt *q, const nt *k, const nt *v, const nt *c)
{
	uint8_t n = c->ndim;
	a->queries = q->size[n - 2], a->size = q->size[n - 1], a->keys = k->size[n - 2], a->values = v->size[n - 1];
	a->q.row = q->stride[n - 2], a->q.col = q->stride[n - 1];
	a->k.row = k->stride[n - 2], a->k.col = k->stride[n - 1];
	a->v.row = v->stride[n - 2], a->v.col = v->stride[n - 1];
	a->out.row = c->stride[n - 2];
	if (k->size[n - 1] != a->size || v->size[n - 2] != a->keys || c->size[n - 2] != a->queries ||
	    c->size[n - 1] != a->values)
		return fail(CLV_E_VERIFY, "queries, keys and values do not fit");
	return CLV_OK;
}

static clv_status set_mask(lowering *l, step *s, const nt *c, nt *mask)
{
	int64_t size[NT_DIMS];
	*mask = (nt){0};
	if (s->mask == NONE)
		return CLV_OK;
	memcpy(size, c->size, sizeof size);
	size[c->ndim - 1] = s->a.keys;
	if (!nt_expand(low_at(l, s->mask), c->ndim, size, mask))
		return fail(CLV_E_VERIFY, "the mask does not fit the scores");
	s->a.kind = mask->dtype == DT_BOOL ? MASK_FLAGS : MASK_FLOATS;
	s->a.mask.row = mask->stride[c->ndim - 2], s->a.mask.col = mask->stride[c->ndim - 1];
	return CLV_OK;
}

static clv_status set_attention(lowering *l, step *s, bool grouped)
{
	const nt *c = low_at(l, s->out);
	nt q, k, v, mask, fewer = *c;
	int64_t many;
	TRY(shared_by(c, low_at(l, s->k), low_at(l, s->v), grouped, &many));
	if (c->ndim > 2)
		fewer.size[c->ndim - 3] /= many;
	TRY(mul_spread(low_at(l, s->q), c, &q));
	TRY(mul_spread(low_at(l, s->k), &fewer, &k));
	TRY(mul_spread(low_at(l, s->v), &fewer, &v));
	TRY(set_sizes(&s->a, &q, &k, &v, c));
	TRY(set_mask(l, s, c, &mask));
	for (uint8_t d = 0; d + 2 < c->ndim; d++) {
		dim x = {c->size[d], q.stride[d], k.stride[d], v.stride[d], mask.stride[d], c->stride[d]};
		if (d + 3 == c->ndim && many > 1)
			add_heads(&s->a, x, many);
		else
			add_dim(&s->a, x);
	}
	return attention_plan(&s->a, low_kernels(l), low_threads(l));
}

/* Heads beside each other, as what follows joins them. */
static void heads_last(nt *t)
{
	if (t->ndim != 4)
		return;
	t->stride[3] = 1;
	t->stride[1] = t->size[3];
	t->stride[2] = t->size[1] * t->size[3];
	t->stride[0] = t->size[2] * t->stride[2];
}

/* Kernels write values one beside the other. */
static clv_status result_rows(lowering *l, slot result, slot *out)
{
	nt form = *low_at(l, result);
	*out = result;
	if (form.ndim < 2)
		return fail(CLV_E_VERIFY, "attention gives at least two dimensions");
	if (form.stride[form.ndim - 1] == 1 || form.size[form.ndim - 1] == 1)
		return CLV_OK;
	nt_rows(&form);
	return low_temp(l, &form, out);
}

clv_status low_attention(lowering *l, const attending *x, slot out)
{
	step *s = low_alloc(l, sizeof *s);
	TRY_MEM(s);
	*s = (step){.q = x->q, .k = x->k, .v = x->v, .mask = x->mask, .a = {.causal = x->causal, .nothing = x->nothing}};
	s->scale = x->scale;
	s->a.scale = (float)x->scale;
	s->wide = low_at(l, x->q)->dtype == DT_F64;
	TRY(result_rows(l, out, &s->out));
	TRY(set_attention(l, s, x->grouped));
	if (s->wide && !(s->a.scratch = doubles_attention_scratch(&s->a, low_threads(l))))
		return fail(CLV_E_OVERFLOW, "attention over %lld keys is too large", (long long)s->a.keys);
	TRY(low_scratch(l, s->a.scratch, &s->scratch));
	TRY(low_step(l, run_step, s));
	return s->out == out ? CLV_OK : low_copy(l, s->out, out);
}

static clv_status lower_attention(lowering *l, node_id n)
{
	attending x = {0};
	nt form;
	slot result;
	TRY(low_tensor(l, n, 0, &x.q));
	TRY(low_tensor(l, n, 1, &x.k));
	TRY(low_tensor(l, n, 2, &x.v));
	TRY(low_tensor_or_none(l, n, 3, &x.mask));
	TRY(low_bool(l, n, 5, false, &x.causal));
	TRY(low_bool(l, n, 7, false, &x.grouped));
	const nt *q = low_at(l, x.q);
	TRY(low_real(l, n, 6, q->ndim ? 1 / sqrt((double)q->size[q->ndim - 1]) : 1, &x.scale));
	TRY(low_form_of_type(l, n, 0, low_at(l, x.q)->dtype, &form));
	heads_last(&form);
	TRY(low_result(l, n, 0, &form, false, &result));
	return low_attention(l, &x, result);
}

const native_op native_ops_attention[] = {
	{.id = OP_scaled_dot_product_attention, .takes = takes_attention, .widens = true, .lower = lower_attention},
	{.id = OP_UNKNOWN},
};
