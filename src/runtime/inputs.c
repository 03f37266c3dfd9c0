/* Inputs of a call against the plan: their sizes, and whether they are as at capture. */
#include <string.h>

#include "base/mem.h"
#include "runtime/call.h"

const char *input_name(const plan *p, value_id v, char *scratch, size_t n)
{
	if (p->values.at[v].name != NONE)
		return plan_s(p, p->values.at[v].name);
	strbuf b = STRBUF_INIT;
	value_label(p, v, &b);
	size_t k = b.n < n - 1 ? b.n : n - 1;
	if (b.at)
		memcpy(scratch, b.at, k);
	scratch[k] = '\0';
	strbuf_free(&b);
	return scratch;
}

static clv_status bad_dim(const plan *p, value_id v, const tensor_meta *m, uint32_t d, int64_t want)
{
	char scratch[32];
	strbuf type = STRBUF_INIT;
	value_print_type(p, v, &type);
	char *text = NULL;
	(void)strbuf_take(&type, &text);
	clv_status st =
		fail(CLV_E_INPUT, "input %s: dimension %u is %lld, the plan was captured with %lld (%s)",
	         input_name(p, v, scratch, sizeof scratch), d, (long long)m->sizes[d], (long long)want, text ? text : "");
	mem_free(text);
	status_details()->dimension = (int32_t)d;
	detail(expected, "%lld", (long long)want);
	detail(seen, "%lld", (long long)m->sizes[d]);
	return st;
}

static bool strides_fit(const plan *p, const value *x, const tensor_meta *t, const int64_t *sizes)
{
	if (x->strides == NONE)
		return tensor_is_contiguous(t);
	for (uint32_t d = 0; d < t->ndim; d++)
		if (t->sizes[d] != 1 && t->strides[d] != sizes[p->dims.at[x->strides + d]])
			return false;
	return true;
}

/* The way of every run: no message is made. */
static bool fits(const plan *p, const value *x, const tensor_meta *t, const int64_t *sizes)
{
	if (!t->strided || (x->flags & VALUE_ODD) || t->dtype != x->dtype || t->ndim != x->ndim ||
	    strcmp(t->device, plan_s(p, x->device)) != 0)
		return false;
	for (uint32_t d = 0; d < t->ndim; d++)
		if (t->sizes[d] != sizes[p->dims.at[x->shape + d]])
			return false;
	return x->kind != VALUE_INPUT || strides_fit(p, x, t, sizes);
}

static clv_status refuse(const plan *p, value_id v, const char *name, const tensor_meta *t, const int64_t *sizes)
{
	const value *x = &p->values.at[v];
	if (!t->there)
		return fail(CLV_E_INPUT, "input %s is missing", name);
	if (t->dtype != x->dtype)
		return fail(CLV_E_INPUT, "input %s: dtype is %s, the plan was captured with %s", name,
		            t->dtype < DT_COUNT ? dtype_name((dtype)t->dtype) : "?", dtype_name((dtype)x->dtype));
	if (strcmp(t->device, plan_s(p, x->device)) != 0)
		return fail(CLV_E_INPUT, "input %s is on %s, the plan was captured with %s", name, t->device,
		            plan_s(p, x->device));
	if (t->strided != !(x->flags & VALUE_ODD))
		return fail(CLV_E_INPUT, "input %s is %s, the plan was captured with %s", name,
		            t->strided ? "an ordinary tensor" : "sparse or nested",
		            t->strided ? "a sparse or nested one" : "an ordinary one");
	if (!t->strided)
		return CLV_OK;
	if (t->ndim != x->ndim)
		return fail(CLV_E_INPUT, "input %s has %u dimensions, the plan was captured with %u", name, t->ndim, x->ndim);
	for (uint32_t d = 0; d < t->ndim; d++)
		if (t->sizes[d] != sizes[p->dims.at[x->shape + d]])
			return bad_dim(p, v, t, d, sizes[p->dims.at[x->shape + d]]);
	if (x->kind == VALUE_INPUT && !strides_fit(p, x, t, sizes))
		return fail(CLV_E_LAYOUT,
		            "input %s: its strides differ from those at capture, and a forward may depend on them; pass "
		            "%s.contiguous(), or capture with an input laid out like this one",
		            name, name);
	return CLV_OK;
}

clv_status input_check(const plan *p, value_id v, const tensor_meta *t, const int64_t *sizes)
{
	char scratch[32];
	if (fits(p, &p->values.at[v], t, sizes))
		return CLV_OK;
	const char *name = input_name(p, v, scratch, sizeof scratch);
	clv_status st = refuse(p, v, name, t, sizes);
	if (st != CLV_OK)
		detail(input, "%s", name);
	return st;
}

/* Why a symbol has no value. */
static clv_status no_symbol(const view *v, const tensor_meta *inputs, const char *name)
{
	for (uint32_t i = 0; i < v->inputs.n; i++)
		if (inputs[i].there && !inputs[i].strided)
			return fail(CLV_E_INPUT, "input %s is no plain tensor (sparse, nested, …): %s cannot be read off it",
			            plan_s(v->p, v->p->values.at[v->inputs.at[i]].name), name);
	return fail(CLV_E_INPUT, "%s cannot be read off the inputs of this part of the plan; give its value", name);
}

static clv_status out_of_range(const char *name, int64_t k, int64_t lo, int64_t hi)
{
	clv_status st =
		fail(CLV_E_INPUT, "%s is %lld, the plan is for %lld to %lld", name, (long long)k, (long long)lo, (long long)hi);
	detail(input, "%s", name);
	detail(expected, "%lld to %lld", (long long)lo, (long long)hi);
	detail(seen, "%lld", (long long)k);
	return st;
}

/* Symbols are read off the inputs whose dimensions they are, or follow from; whether all of them fit is checked later. */
clv_status inputs_symbols(const view *v, const tensor_meta *inputs, const int64_t *given, int64_t *out)
{
	const plan *p = v->p;
	for (uint32_t i = 0; i < p->symbols.n; i++)
		out[i] = given ? given[i] : -1;
	for (uint32_t i = 0; i < v->inputs.n; i++) {
		const value *x = &p->values.at[v->inputs.at[i]];
		const tensor_meta *t = &inputs[i];
		for (uint32_t d = 0; t->strided && d < t->ndim && d < x->ndim; d++) {
			symbol_id k;
			int64_t size;
			if (expr_solve(p, p->dims.at[x->shape + d], t->sizes[d], &k, &size) && out[k] < 0)
				out[k] = size;
		}
	}
	for (uint32_t i = 0; i < p->symbols.n; i++) {
		const symbol *s = &p->symbols.at[i];
		if (out[i] < 0 && s->data)
			continue; /* a step reads it */
		if (out[i] < 0 && s->lo == s->hi)
			out[i] = s->lo; /* no size follows it */
		if (out[i] < 0)
			return no_symbol(v, inputs, plan_s(p, s->name));
		if (out[i] < s->lo || out[i] > s->hi)
			return out_of_range(plan_s(p, s->name), out[i], s->lo, s->hi);
	}
	return CLV_OK;
}

/* Room for a call: what inputs are, symbols, and the value of every expression. */
typedef struct room {
	tensor_meta *inputs;
	int64_t *symbols, *exprs;
	bool *defined;
	char few[1024];
	void *block; /* NULL: `few` is enough */
} room;

static clv_status room_make(const view *v, clv_tensor *const *inputs, room *m)
{
	const plan *p = v->p;
	size_t metas = v->inputs.n * sizeof *m->inputs, symbols = p->symbols.n * sizeof(int64_t),
		   exprs = p->exprs.n * sizeof(int64_t), need = metas + symbols + exprs + p->exprs.n + 16;
	m->block = need > sizeof m->few ? mem_alloc(need) : NULL;
	if (need > sizeof m->few && !m->block)
		return fail_nomem();
	char *at = m->block ? m->block : m->few;
	at += (16 - (uintptr_t)at % 16) % 16;
	m->inputs = (tensor_meta *)at;
	m->symbols = (int64_t *)(at + metas);
	m->exprs = m->symbols + p->symbols.n;
	m->defined = (bool *)(m->exprs + p->exprs.n);
	for (uint32_t i = 0; i < v->inputs.n; i++)
		m->inputs[i] = tensor_meta_of(inputs[i]);
	return CLV_OK;
}

static clv_status check_all(const view *v, const room *m, const int64_t *given)
{
	TRY(inputs_symbols(v, m->inputs, given, m->symbols));
	TRY(expr_eval_all(v->p, m->symbols, m->exprs, m->defined));
	for (uint32_t i = 0; i < v->inputs.n; i++)
		TRY(input_check(v->p, v->inputs.at[i], &m->inputs[i], m->exprs));
	return CLV_OK;
}

clv_status inputs_check(const view *v, clv_tensor *const *inputs, const int64_t *given)
{
	room m;
	TRY(room_make(v, inputs, &m));
	clv_status st = check_all(v, &m, given);
	mem_free(m.block);
	return st;
}

clv_status call_symbols(const view *v, clv_tensor *const *inputs, const int64_t *given, int64_t *out)
{
	enum { FEW = 32 }; /* as many as boundaries have: a steady run allocates nothing */
	tensor_meta few[FEW] = {0}, *metas = few;
	if (v->inputs.n > FEW && !(metas = mem_alloc(v->inputs.n * sizeof *metas)))
		return fail_nomem();
	for (uint32_t i = 0; i < v->inputs.n; i++)
		metas[i] = tensor_meta_of(inputs[i]);
	clv_status st = inputs_symbols(v, metas, given, out);
	if (metas != few)
		mem_free(metas);
	return st;
}

static clv_status check_inputs(const view *v, const run_call *c, const int64_t *sizes)
{
	for (uint32_t i = 0; i < v->inputs.n; i++) {
		tensor_meta m = tensor_meta_of(c->inputs[i]);
		TRY(input_check(v->p, v->inputs.at[i], &m, sizes));
	}
	return CLV_OK;
}

clv_status call_check(const view *v, const run_call *c)
{
	const plan *p = v->p;
	uint32_t n = p->symbols.n + p->exprs.n + 1;
	int64_t *symbols = mem_alloc(n * sizeof *symbols), *sizes = symbols + p->symbols.n;
	bool *known = mem_alloc(n);
	clv_status st = symbols && known ? call_symbols(v, c->inputs, c->symbols, symbols) : fail_nomem();
	if (st == CLV_OK)
		st = expr_eval_all(p, symbols, sizes, known);
	if (st == CLV_OK)
		st = check_inputs(v, c, sizes);
	mem_free(symbols);
	mem_free(known);
	return st;
}
