/* The rules of an artifact, held when it is written and when it is read. */
#include <string.h>

#include "file/artifact_segments.h"
#include "file/training.h"
#include "plan/view.h"

static bool is_stage(const char *part)
{
	size_t digits = strncmp(part, "stage:", 6) == 0 ? strspn(part + 6, "0123456789") : 0;
	return digits > 0 && digits < 9 && part[6 + digits] == '\0';
}

/* Where there are stored tensors, the output is a pair: (the output, a list of them). */
static clv_status check_stores(const artifact_plan *e)
{
	const plan *p = e->p;
	uint32_t n = p->out_tree.n;
	if (e->nstores == 0)
		return CLV_OK;
	bool fits = e->nstores < n && p->out_tree.at[0].kind == TREE_TUPLE && p->out_tree.at[0].n == 2;
	for (uint32_t i = 1; fits && i <= e->nstores; i++)
		fits = p->out_tree.at[n - i].kind == TREE_VALUE;
	fits = fits && p->out_tree.at[n - e->nstores - 1].kind == TREE_LIST &&
	       p->out_tree.at[n - e->nstores - 1].n == e->nstores;
	return fits ? CLV_OK : fail(CLV_E_PARSE, "the output has no list of %u stored tensors", e->nstores);
}

static clv_status check_range(const artifact *a, const artifact_plan *e)
{
	node_id n = e->p->nodes.n;
	if (e->first > e->end || e->end > n || (e->cut != NONE && (e->cut == 0 || e->cut >= n)))
		return fail(CLV_E_PARSE, "nodes %u to %u, cut at %u: the plan has %u nodes", e->first, e->end, e->cut, n);
	bool fits = is_stage(a->part);
	if (strcmp(a->part, "all") == 0)
		fits = e->first == 0 && e->end == n;
	else if (strcmp(a->part, "prefix") == 0)
		fits = e->first == 0 && e->end == e->cut;
	else if (strcmp(a->part, "suffix") == 0)
		fits = e->first == e->cut && e->end == n;
	if (!fits)
		return fail(CLV_E_PARSE, "nodes %u to %u of %u are no part \"%.32s\"", e->first, e->end, n, a->part);
	return check_stores(e);
}

/* Inputs are numbered in the order of their values, as views have them. */
static clv_status check_asked(const artifact_plan *e)
{
	const plan *p = e->p;
	bool fits = (e->same.n == 0 || e->same.n == p->inputs.n) && (e->grads.n == 0 || e->grads.n == p->inputs.n);
	for (uint32_t i = 0; fits && i < e->same.n; i++)
		fits = e->same.at[i] <= i && e->same.at[e->same.at[i]] == e->same.at[i];
	for (uint32_t i = 1; fits && (e->same.n || e->grads.n) && i < p->inputs.n; i++)
		fits = p->inputs.at[i - 1] < p->inputs.at[i];
	return fits ? CLV_OK : fail(CLV_E_PARSE, "its list of inputs does not match the plan's %u inputs", p->inputs.n);
}

static clv_status check_points(const artifact_plan *e)
{
	uint32_t n = artifact_point_size(e->p), k = 0;
	if (n == 0 ? e->points.n : e->points.n % n)
		return fail(CLV_E_PARSE, "its points do not have one number for each symbol");
	for (uint32_t i = 0; i < e->points.n; i++) {
		for (k = i % n ? k + 1 : 0; e->p->symbols.at[k].data; k++)
			;
		const symbol *s = &e->p->symbols.at[k];
		if (e->points.at[i] < s->lo || e->points.at[i] > s->hi)
			return fail(CLV_E_PARSE, "a point has %s=%lld, the plan is for %lld to %lld", plan_s(e->p, s->name),
			            (long long)e->points.at[i], (long long)s->lo, (long long)s->hi);
	}
	return CLV_OK;
}

static clv_status no_object(const plan *p, value_id v)
{
	for (node_id n = 0; n < p->nodes.n; n++) {
		const node *x = &p->nodes.at[n];
		for (uint32_t i = 0; i < x->nargs; i++) {
			if (p->args.at[x->args + i].kind != ARG_VALUE || p->args.at[x->args + i].u.v != v)
				continue;
			strbuf b = STRBUF_INIT;
			char *place;
			place_print(p, n, &b);
			TRY(strbuf_take(&b, &place));
			clv_status st = fail(CLV_E_UNSUPPORTED, "%s%s needs a %s, which only Python has; no file can hold it",
			                     plan_s(p, x->op), place, plan_s(p, p->values.at[v].name));
			mem_free(place);
			return st;
		}
	}
	return fail(CLV_E_UNSUPPORTED, "the plan needs a %s, which only Python has; no file can hold it",
	            plan_s(p, p->values.at[v].name));
}

/* Its dtype and shape; shapes of what comes from outside may follow symbols only through constants. */
static clv_status check_fit(const plan *p, value_id v, const payload_tensor *t)
{
	const value *x = &p->values.at[v];
	bool same = x->dtype == t->dtype && x->ndim == t->ndim && !(x->flags & VALUE_ODD);
	for (uint32_t i = 0; same && i < x->ndim; i++) {
		int64_t n;
		same = expr_is_const(p, p->dims.at[x->shape + i], &n) && n == t->sizes[i];
	}
	return same ? CLV_OK : fail(CLV_E_PARSE, "tensor \"%.64s\" is not of the type that the plan has", t->label);
}

static clv_status check_external(const artifact *a, uint32_t i, value_id v)
{
	const plan *p = a->plans.at[i].p;
	const value *x = &p->values.at[v];
	if (x->kind == VALUE_OBJECT)
		return no_object(p, v);
	if (x->kind != VALUE_CONST && !a->weights)
		return CLV_OK;
	uint32_t t = artifact_tensor_of(a, i, v);
	if (t != NONE)
		return check_fit(p, v, &a->tensors->tensors.at[t]);
	char *label;
	TRY(value_label_text(p, v, &label));
	clv_status st = fail(CLV_E_PARSE, "%s is not in the file", label);
	mem_free(label);
	return st;
}

/* They are looked up by halving. */
static clv_status check_const_order(const artifact_plan *e)
{
	for (uint32_t i = 1; i < e->consts.n; i++)
		if (e->consts.at[i - 1].value >= e->consts.at[i].value)
			return fail(CLV_E_INVALID, "its constants are not in the order of the plan");
	return CLV_OK;
}

static clv_status check_plan(const artifact *a, uint32_t i)
{
	const artifact_plan *e = &a->plans.at[i];
	view v;
	TRY(check_range(a, e));
	TRY(check_points(e));
	TRY(check_asked(e));
	TRY(check_const_order(e));
	TRY(view_range(e->p, e->first, e->end, &v));
	clv_status st = CLV_OK;
	for (uint32_t k = 0; k < v.externals.n && st == CLV_OK; k++)
		st = check_external(a, i, v.externals.at[k]);
	view_free(&v);
	return st == CLV_OK ? segments_check(a, i) : st;
}

clv_status artifact_check(const artifact *a)
{
	if (strcmp(a->part, "all") != 0 && strcmp(a->part, "prefix") != 0 && strcmp(a->part, "suffix") != 0 &&
	    !is_stage(a->part))
		return fail(CLV_E_PARSE, "there is no part \"%.32s\"", a->part);
	if (a->plans.n == 0)
		return fail(CLV_E_PARSE, "there is no plan in it");
	for (uint32_t i = 0; i < a->plans.n; i++) {
		TRY_MORE(check_plan(a, i), "plan %u", i);
	}
	return training_check(a);
}
