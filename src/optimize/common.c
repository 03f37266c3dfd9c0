/* Removes nodes that repeat an earlier one (common subexpressions).
 * Common subexpressions: a pure node that does what an earlier one did goes, and that one's results are read instead.
 *
 * The same: operator, arguments, modes, types of the results. Memory that the range writes is left alone, as what is
 * read there depends on when. Results that both leave the range, or of which views do, stay two: the caller may write
 * them. */
#include <string.h>

#include "base/table.h"
#include "optimize/optimize.h"
#include "plan/same.h"

typedef struct merger {
	edit *e;
	value_id *same; /* per value: the earlier one that is read instead; itself */
	bool *shown;    /* per value that owns its memory, as in the facts, with what was merged into it */
	table seen;
	uint64_t seed;
	node_id now;
	uint32_t hash;
	bool yes;
} merger;

/* ---- which nodes ------------------------------------------------------------------------------------------------- */

static void is_unwritten(void *ctx, value_id v)
{
	merger *m = ctx;
	m->yes &= !m->e->facts.written[v] && !(m->e->p->values.at[v].flags & VALUE_ODD);
}

static bool may_merge(merger *m, node_id n)
{
	const plan *p = m->e->p;
	if (!node_pure(m->e, n) || node_op(p, n)->memory == MEMORY_EMPTY /* two of them do not hold the same */)
		return false;
	m->yes = true;
	node_each_arg(p, n, is_unwritten, m);
	node_each_result(p, n, is_unwritten, m);
	return m->yes;
}

/* ---- equal nodes ------------------------------------------------------------------------------------------------- */

/* What tells arguments of one kind apart, but for floats and lists. */
static uint32_t arg_word(const merger *m, const arg *a)
{
	switch ((arg_kind)a->kind) {
	case ARG_VALUE: return m->same[a->u.v];
	case ARG_INT: return a->u.e;
	case ARG_REAL: return a->u.r;
	case ARG_BOOL: return a->u.b;
	case ARG_STR:
	case ARG_DEVICE: return a->u.s;
	case ARG_DTYPE:
	case ARG_LAYOUT:
	case ARG_MEMFMT: return a->u.code;
	case ARG_LIST: return a->u.list.n;
	default: return 0;
	}
}

/* Any nan is like any other. */
static uint32_t hash_float(double f, uint32_t h)
{
	return f == f ? hash_bytes(&f, sizeof f, h) : h;
}

static uint32_t hash_args(const merger *m, uint32_t first, uint32_t n, uint32_t h)
{
	for (uint32_t i = 0; i < n; i++) {
		const arg *a = &m->e->p->args.at[first + i];
		uint32_t head[] = {a->kind, a->wrapped, arg_word(m, a)};
		h = hash_bytes(head, sizeof head, h);
		if (a->kind == ARG_LIST)
			h = hash_args(m, a->u.list.first, a->u.list.n, h);
		else if (a->kind == ARG_FLOAT)
			h = hash_float(a->u.f, h);
		else if (a->kind == ARG_COMPLEX)
			h = hash_float(a->u.c.re, hash_float(a->u.c.im, h));
	}
	return h;
}

static void hash_result(void *ctx, value_id v)
{
	merger *m = ctx;
	const plan *p = m->e->p;
	const value *x = &p->values.at[v];
	uint32_t head[] = {x->dtype, x->device, x->ndim};
	m->hash = hash_bytes(head, sizeof head, m->hash);
	if (x->ndim)
		m->hash = hash_bytes(&p->dims.at[x->shape], x->ndim * sizeof *p->dims.at, m->hash);
}

static uint32_t hash_node(merger *m, node_id n)
{
	const node *x = &m->e->p->nodes.at[n];
	uint32_t head[] = {x->op, x->context, x->nargs, x->nresults};
	m->hash = hash_args(m, x->args, x->nargs, hash_bytes(head, sizeof head, m->seed));
	node_each_result(m->e->p, n, hash_result, m);
	return m->hash;
}

static bool read_same(void *ctx, value_id a, value_id b)
{
	const merger *m = ctx;
	return m->same[a] == m->same[b];
}

static bool args_same(merger *m, const node *x, const node *y)
{
	const plan *p = m->e->p;
	const pair q = {.a = p, .b = p, .same = read_same, .ctx = m};
	for (uint32_t i = 0; i < x->nargs; i++)
		if (!pair_arg(&q, &p->args.at[x->args + i], &p->args.at[y->args + i], 0))
			return false;
	return true;
}

/* Both on memory of their own, or both on the same. */
static bool memory_same(const merger *m, const value *x, const value *y)
{
	if (x->alias == NONE || y->alias == NONE)
		return x->alias == y->alias;
	return m->same[x->alias] == m->same[y->alias];
}

static bool type_same(const merger *m, value_id a, value_id b)
{
	const plan *p = m->e->p;
	const value *x = &p->values.at[a], *y = &p->values.at[b];
	return x->dtype == y->dtype && x->device == y->device && x->ndim == y->ndim && memory_same(m, x, y) &&
	       (!x->ndim || !memcmp(&p->dims.at[x->shape], &p->dims.at[y->shape], x->ndim * sizeof *p->dims.at));
}

static bool results_same(const merger *m, uint32_t a, uint32_t b, uint32_t n)
{
	const arg *at = m->e->p->args.at;
	for (uint32_t i = 0; i < n; i++) {
		const arg *x = &at[a + i], *y = &at[b + i];
		if (x->kind != y->kind || (x->kind == ARG_VALUE && !type_same(m, x->u.v, y->u.v)))
			return false;
		if (x->kind == ARG_LIST &&
		    (x->u.list.n != y->u.list.n || !results_same(m, x->u.list.first, y->u.list.first, x->u.list.n)))
			return false;
	}
	return true;
}

static bool node_same(const void *ctx, uint32_t id)
{
	merger *m = (merger *)ctx;
	const node *x = &m->e->p->nodes.at[id], *y = &m->e->p->nodes.at[m->now];
	return x->op == y->op && x->context == y->context && x->nargs == y->nargs && x->nresults == y->nresults &&
	       args_same(m, x, y) && results_same(m, x->results, y->results, x->nresults);
}

/* ---- one instead of two ------------------------------------------------------------------------------------------ */

/* Whether all results of the second can be those of the first. */
static bool can_join(const merger *m, uint32_t a, uint32_t b, uint32_t n)
{
	const plan *p = m->e->p;
	for (uint32_t i = 0; i < n; i++) {
		const arg *x = &p->args.at[a + i], *y = &p->args.at[b + i];
		if (x->kind == ARG_LIST && !can_join(m, x->u.list.first, y->u.list.first, x->u.list.n))
			return false;
		if (x->kind != ARG_VALUE)
			continue;
		bool own = p->values.at[y->u.v].alias == NONE;
		if (m->e->facts.kept[y->u.v] || (own && m->shown[x->u.v] && m->shown[y->u.v]))
			return false;
	}
	return true;
}

static clv_status merge_results(merger *m, uint32_t a, uint32_t b, uint32_t n)
{
	const plan *p = m->e->p;
	for (uint32_t i = 0; i < n; i++) {
		const arg *x = &p->args.at[a + i], *y = &p->args.at[b + i];
		if (x->kind == ARG_LIST)
			TRY(merge_results(m, x->u.list.first, y->u.list.first, x->u.list.n));
		if (x->kind != ARG_VALUE)
			continue;
		m->same[y->u.v] = x->u.v;
		m->shown[x->u.v] |= m->shown[y->u.v];
		TRY(edit_read_instead(m->e, y->u.v, x->u.v));
	}
	return CLV_OK;
}

static clv_status merge_node(merger *m, uint32_t *changes)
{
	const node *nodes = m->e->p->nodes.at;
	if (!may_merge(m, m->now))
		return CLV_OK;
	uint32_t hash = hash_node(m, m->now), first = table_find(&m->seen, hash, node_same, m);
	if (first == TABLE_NONE)
		return table_add(&m->seen, hash, m->now);
	if (!can_join(m, nodes[first].results, nodes[m->now].results, nodes[first].nresults))
		return CLV_OK;
	TRY(merge_results(m, nodes[first].results, nodes[m->now].results, nodes[first].nresults));
	TRY(edit_remove(m->e, m->now));
	++*changes;
	return CLV_OK;
}

/* A caller that sees a result may see what it was made of. */
static void find_shown(merger *m)
{
	value_id from, to;
	memcpy(m->shown, m->e->facts.shown, m->e->facts.n * sizeof *m->shown);
	for (node_id n = m->e->end; n-- > m->e->first;)
		if (node_may_view(m->e->p, n, &from, &to))
			m->shown[from] |= m->shown[to];
}

static clv_status merge_all(merger *m, uint32_t *changes)
{
	TRY_MEM(m->same && m->shown);
	for (value_id v = 0; v < m->e->p->values.n; v++)
		m->same[v] = v;
	find_shown(m);
	for (m->now = m->e->first; m->now < m->e->end; m->now++)
		TRY(merge_node(m, changes));
	return CLV_OK;
}

clv_status pass_common(edit *e, const optimize_spec *s, uint32_t *changes)
{
	merger m = {.e = e, .seed = (uintptr_t)e ^ (uintptr_t)e->p << 16};
	(void)s;
	m.same = edit_array(e, e->p->values.n, sizeof *m.same);
	m.shown = edit_array(e, e->p->values.n, sizeof *m.shown);
	clv_status st = merge_all(&m, changes);
	table_free(&m.seen);
	return st;
}
