/* Counts compiled and other nodes, with a row for every operator and reason.
 *
 * To find what an operator costs by running on the tape, segments are chosen again as if it were supported. */
#include <string.h>

#include "segment/units.h"

enum { WHAT_IF_ROWS = 32 };

typedef struct counting {
	const segments *s;
	const segments_spec *spec;
	coverage *out;
	amounts m;
} counting;

/* Nodes on the tape, those of one row together. */
typedef struct tape_node {
	str_id op;
	const char *reason;
	node_id node;
} tape_node;

static int by_row(const void *a, const void *b)
{
	const tape_node *x = a, *y = b;
	if (x->op != y->op)
		return x->op < y->op ? -1 : 1;
	int reason = x->reason == y->reason ? 0 : strcmp(x->reason, y->reason);
	return reason ? reason : (x->node > y->node) - (x->node < y->node);
}

static int by_work(const void *a, const void *b)
{
	const fallback_row *x = a, *y = b;
	if (x->work != y->work)
		return x->work > y->work ? -1 : 1;
	if (x->count != y->count)
		return x->count > y->count ? -1 : 1;
	int op = strcmp(x->op, y->op);
	return op ? op : strcmp(x->reason, y->reason);
}

static clv_status start_row(counting *k, const tape_node *t)
{
	const plan *p = k->s->p;
	coverage *c = k->out;
	fallback_row r = {.op = arena_str(&c->arena, plan_s(p, t->op)), .reason = arena_str(&c->arena, t->reason)};
	strbuf b = STRBUF_INIT;
	place_print(p, t->node, &b);
	TRY(arena_take(&c->arena, &b, &r.place));
	return r.op && r.reason ? vec_push(&c->rows, r) : fail_nomem();
}

static clv_status add_rows(counting *k, tape_node *at, uint32_t n)
{
	coverage *c = k->out;
	if (n)
		qsort(at, n, sizeof *at, by_row);
	for (uint32_t i = 0; i < n; i++) {
		if (!i || at[i].op != at[i - 1].op || strcmp(at[i].reason, at[i - 1].reason) != 0)
			TRY(start_row(k, &at[i]));
		c->rows.at[c->rows.n - 1].count++;
		c->rows.at[c->rows.n - 1].work += k->m.work[at[i].node];
	}
	if (c->rows.n)
		qsort(c->rows.at, c->rows.n, sizeof *c->rows.at, by_work);
	return CLV_OK;
}

static clv_status count_plan_nodes(counting *k)
{
	const plan *p = k->s->p;
	coverage *c = k->out;
	uint32_t n = 0;
	tape_node *at = mem_alloc(((size_t)p->nodes.n + 1) * sizeof *at);
	TRY_MEM(at);
	c->nodes = p->nodes.n;
	for (node_id i = 0; i < p->nodes.n; i++) {
		bool compiled = k->s->of_node[i] != NONE;
		c->work += k->m.work[i];
		c->compiled_work += compiled ? k->m.work[i] : 0;
		c->compiled += compiled;
		if (!compiled)
			at[n++] = (tape_node){p->nodes.at[i].op, k->s->reason[i], i};
	}
	clv_status st = add_rows(k, at, n);
	mem_free(at);
	return st;
}

static void count_crossing_bytes(counting *k)
{
	for (uint32_t i = 0; i < k->s->at.n; i++) {
		const segment *x = &k->s->at.at[i];
		k->out->bytes = add_bytes(k->out->bytes, add_bytes(x->bytes_in, x->bytes_out));
	}
}

/* ---- what if -------------------------------------------------------------------------------------------------------------- */

/* Marks the operator as supported; false: it already is. */
static bool allow(const counting *k, const char *op, const char **no)
{
	const plan *p = k->s->p;
	bool changed = false;
	for (node_id n = 0; n < p->nodes.n; n++) {
		bool same = k->spec->no[n] && !strcmp(plan_s(p, p->nodes.at[n].op), op);
		no[n] = same ? NULL : k->spec->no[n];
		changed |= same;
	}
	return changed;
}

static clv_status count_without(const counting *k, const char *op, const char **no, uint32_t *boundaries)
{
	segments_spec spec = *k->spec;
	segments s = {0};
	spec.no = no;
	if (!allow(k, op, no))
		return CLV_OK;
	TRY(segments_choose(k->s->p, &spec, &s));
	*boundaries = s.at.n < k->s->at.n ? k->s->at.n - s.at.n : 0;
	segments_free(&s);
	return CLV_OK;
}

static clv_status count_boundaries(counting *k)
{
	coverage *c = k->out;
	uint32_t rows = c->rows.n < WHAT_IF_ROWS ? c->rows.n : WHAT_IF_ROWS;
	const char **no = mem_alloc(((size_t)k->s->p->nodes.n + 1) * sizeof *no);
	clv_status st = no ? CLV_OK : fail_nomem();
	for (uint32_t i = 0; i < rows && st == CLV_OK; i++) {
		uint32_t before = 0;
		while (before < i && strcmp(c->rows.at[before].op, c->rows.at[i].op) != 0)
			before++;
		if (before < i)
			c->rows.at[i].boundaries = c->rows.at[before].boundaries;
		else
			st = count_without(k, c->rows.at[i].op, no, &c->rows.at[i].boundaries);
	}
	mem_free(no);
	return st;
}

clv_status coverage_of(const segments *s, const segments_spec *spec, bool what_if, coverage *out)
{
	coverage c = {0};
	counting k = {.s = s, .spec = spec, .out = &c};
	clv_status st = amounts_of(s->p, spec->syms, &k.m);
	if (st == CLV_OK)
		st = count_plan_nodes(&k);
	if (st == CLV_OK)
		count_crossing_bytes(&k);
	if (st == CLV_OK && what_if && spec->no)
		st = count_boundaries(&k);
	amounts_free(&k.m);
	if (st == CLV_OK)
		*out = c;
	else
		coverage_free(&c);
	return st;
}

void coverage_free(coverage *c)
{
	vec_free(&c->rows);
	arena_free(&c->arena);
	*c = (coverage){0};
}
