/* Compares the native engine with the tape, and finds the node where they part: each node is run natively on the inputs that it has on
 * the tape. */
#include "exec/native_check.h"

#include <string.h>

#include "exec/optimized.h"
#include "exec/segment_check.h"
#include "exec/tolerance.h"

enum { MOST_TIED = 16 }; /* nodes that are tried together, where one alone cannot be run apart from the others */

clv_status native_compare(br_tensor *const *got, br_tensor *const *want, uint32_t n, uint32_t *output, double *error,
                          double *allowed)
{
	*output = NONE;
	for (uint32_t i = 0; i < n && *output == NONE; i++) {
		double scale;
		br_meta m;
		if (!want[i] && !got[i])
			continue;
		if (!want[i] || !got[i])
			return fail(CLV_E_VERIFY, "the native engine leaves output %u undefined, or the tape does", i);
		TRY(br_meta_get(want[i], &m));
		TRY(br_difference(got[i], want[i], error, &scale));
		*allowed = tolerance_for(&m, scale, -1, -1);
		if (!(*error <= *allowed))
			*output = i;
	}
	return CLV_OK;
}

/* ---- where they part ------------------------------------------------------------------------------------------------ */

typedef struct search {
	const engine *e;
	const clv_program *g;
	liveness l;
	VEC(code *) codes; /* ascending and apart */
	const code *found; /* the first that gives other numbers; NULL: none does */
	double error, allowed;
} search;

static bool stands_alone(const search *x, node_id first, node_id end)
{
	view v;
	if (view_segment(x->g->p, &x->l, first, end, &v) != CLV_OK)
		return false;
	clv_status st = segment_check(x->g->p, &v, 1);
	view_free(&v);
	return st == CLV_OK;
}

/* Code that has the node, and as few as possible before it: memory that is written ties nodes together. NULL: there is none. */
static clv_status add_code(search *x, node_id n, node_id least)
{
	node_id first = n;
	code *c;
	while (first > least && n - first < MOST_TIED && !stands_alone(x, first, n + 1))
		first--;
	if (!stands_alone(x, first, n + 1))
		return CLV_OK;
	clv_status st = native_code(x->e, x->g->p, &x->l, first, n + 1, &c);
	if (st != CLV_OK)
		return st == CLV_E_NOMEM ? st : CLV_OK;
	while (x->codes.n && x->codes.at[x->codes.n - 1]->first >= first)
		code_unref(x->codes.at[--x->codes.n]);
	if (x->codes.n && x->codes.at[x->codes.n - 1]->end > first) {
		code_unref(c); /* it would share nodes with code that has earlier ones */
		return CLV_OK;
	}
	st = vec_push(&x->codes, c);
	if (st != CLV_OK)
		code_unref(c);
	return st;
}

static clv_status compare_node(void *ctx, const segment_call *c)
{
	search *x = ctx;
	uint32_t output = NONE, n = c->v->outputs.n;
	if (x->found)
		return CLV_OK;
	br_tensor **out = mem_alloc((n + 1) * sizeof *out);
	TRY_MEM(out);
	clv_status st = code_run_view(c->code, c, out);
	if (st == CLV_OK)
		st = native_compare(out, c->outputs, n, &output, &x->error, &x->allowed);
	if (st == CLV_OK && output != NONE)
		x->found = c->code;
	release_all(out, n);
	mem_free(out);
	return fault_of_code(st) ? CLV_OK : st; /* a node that cannot be run alone */
}

static clv_status run_watched(search *x, const run_spec *r)
{
	node_id first = x->g->v.nodes.n ? x->g->v.nodes.at[0] : 0, end = first + x->g->v.nodes.n;
	program_spec spec = {.first = first,
	                     .end = end,
	                     .inference = true,
	                     .codes = x->codes.at,
	                     .ncodes = x->codes.n,
	                     .untrusted = x->g->untrusted};
	clv_program *w;
	run_spec mine = *r;
	TRY(program_new(x->g->p, &spec, &w));
	mine.watch = compare_node;
	mine.watch_ctx = x;
	mine.numbers = NULL;
	mine.outputs = mem_alloc((w->outputs.n + 1) * sizeof *mine.outputs);
	clv_status st = mine.outputs ? program_run(w, &mine) : fail_nomem();
	if (mine.outputs)
		release_all(mine.outputs, w->outputs.n);
	mem_free(mine.outputs);
	program_free(w);
	return st;
}

static clv_status search_nodes(search *x, const run_spec *r)
{
	const view *v = &x->g->v;
	TRY(liveness_new(x->g->p, &x->l));
	for (uint32_t i = 0; i < v->nodes.n; i++)
		TRY(add_code(x, v->nodes.at[i], v->nodes.at[0]));
	return run_watched(x, r);
}

static void describe_found(const search *x, strbuf *b)
{
	const plan *p = x->g->p;
	if (!x->found) {
		strbuf_puts(
			b, "; each node by itself is right, so it is groups of nodes or passes: optimize=\"none\" goes without");
		return;
	}
	node_id n = x->found->end - 1;
	run_place at = {0};
	call_tell_place(p, x->g->names, n, &at);
	strbuf_printf(b, "; the first node that differs on the same inputs is %s, %s", at.name, at.op);
	if (at.module[0])
		strbuf_printf(b, " of %s", at.module);
	if (p->nodes.at[n].at != NONE)
		strbuf_printf(b, " (%s)", plan_s(p, p->nodes.at[n].at));
	strbuf_printf(b, ": off by %.3g, %.3g is allowed", x->error, x->allowed);
}

clv_status native_blame(const engine *e, const clv_program *g, const run_spec *r, uint32_t output, double error,
                        double allowed)
{
	search x = {.e = e, .g = g};
	strbuf b = STRBUF_INIT;
	clv_status st = search_nodes(&x, r);
	strbuf_printf(&b, "the native engine gives other numbers than the tape: output %u is off by %.3g, %.3g is allowed",
	              output, error, allowed);
	if (st == CLV_OK)
		describe_found(&x, &b);
	for (uint32_t i = 0; i < x.codes.n; i++)
		code_unref(x.codes.at[i]);
	vec_free(&x.codes);
	liveness_free(&x.l);
	return strbuf_fail(CLV_E_VERIFY, &b);
}

/* ---- a run on both -------------------------------------------------------------------------------------------------- */

/* `want` is what the tape gave. */
static clv_status run_and_compare(const engine *e, native_part *x, const clv_program *g, const run_spec *r,
                                  br_tensor *const *want)
{
	uint32_t output;
	double error, allowed;
	TRY(native_part_run(x, r));
	clv_status st = native_compare(r->outputs, want, g->outputs.n, &output, &error, &allowed);
	if (st == CLV_OK && output != NONE)
		st = native_blame(e, g, r, output, error, allowed);
	if (st != CLV_OK)
		release_all(r->outputs, g->outputs.n);
	return st;
}

clv_status native_check(const engine *e, native_part *x, const clv_program *g, const run_spec *r)
{
	run_spec tape = *r;
	tape.outputs = mem_alloc((g->outputs.n + 1) * sizeof *tape.outputs);
	TRY_MEM(tape.outputs);
	clv_status st = program_run_plain(g, &tape);
	if (st == CLV_OK)
		st = run_and_compare(e, x, g, r, tape.outputs);
	release_all(tape.outputs, g->outputs.n);
	mem_free(tape.outputs);
	return st;
}
