/* The native engine as a way to run a plan: see native_way.h. Segments are ranges of the plan as it is, so they have no cycles. */
#include "exec/native_way.h"

#include <string.h>

#include "base/clock.h"
#include "exec/native_part.h"
#include "exec/segment_check.h"
#include "exec/tolerance.h"

enum { LEAST_NODES = 4, TRIMMED = 8, ROUNDS = 3 };

typedef struct native_segment {
	code *c; /* counted */
	double code_ms, tape_ms;
} native_segment;

struct native_way {
	native_part *whole; /* NULL: segments */
	VEC(native_segment) segments;
	clv_program *with;  /* the plan with the segments */
	variant *rest;      /* of that */
	node_id first, end; /* as in program_spec, as are the next ones */
	br_object *const *objects;
	uint32_t nobjects;
	bool untrusted;
	optimize_spec s;       /* for the rest */
	VEC(const char *) off; /* s.off */
	VEC(uint32_t) order;   /* per output its dimensions, from the slowest to the fastest; none: as it comes */
};

/* ---- which nodes --------------------------------------------------------------------------------------------------- */

typedef struct float_walk {
	const plan *p;
	bool f32;
} float_walk;

static void look_at_float(void *ctx, value_id v)
{
	float_walk *w = ctx;
	const value *x = &w->p->values.at[v];
	if (x->type == TYPE_TENSOR && x->dtype != DT_F32 && is_float(x))
		w->f32 = false;
}

static bool only_f32(const plan *p, node_id first, node_id end)
{
	float_walk w = {p, true};
	for (node_id n = first; n < end && w.f32; n++) {
		node_each_arg(p, n, look_at_float, &w);
		node_each_result(p, n, look_at_float, &w);
	}
	return w.f32;
}

static node_id first_refused(const plan *p, node_id first, node_id end)
{
	while (first < end && !native_refuses(&engine_native, p, first))
		first++;
	return first;
}

static clv_status check_range(const plan *p, const liveness *l, node_span s)
{
	view v;
	TRY(view_segment(p, l, s.first, s.end, &v));
	clv_status st = segment_check(p, &v, 1);
	view_free(&v);
	return st;
}

/* Memory that is written in place may tie its first or last nodes to others. */
static bool trim(const plan *p, const liveness *l, node_span *s)
{
	for (uint32_t k = 0; k <= TRIMMED && s->end - s->first >= LEAST_NODES + k; k++) {
		node_span ways[] = {{s->first + k, s->end}, {s->first, s->end - k}};
		for (uint32_t i = 0; i < 2; i++)
			if (check_range(p, l, ways[i]) == CLV_OK) {
				*s = ways[i];
				return true;
			}
	}
	return false;
}

static clv_status add_segment(native_way *x, const plan *p, const liveness *l, node_span s)
{
	code *c;
	if (s.end - s.first < LEAST_NODES || !trim(p, l, &s))
		return CLV_OK;
	clv_status st = native_code(&engine_native, p, l, s.first, s.end, &c);
	if (st != CLV_OK)
		return st == CLV_E_NOMEM ? st : CLV_OK;
	st = vec_push(&x->segments, ((native_segment){.c = c, .code_ms = -1, .tape_ms = -1}));
	if (st != CLV_OK)
		code_unref(c);
	return st;
}

static clv_status find_segments(native_way *x, const plan *p)
{
	arena a = {0};
	liveness l = {0};
	const char **no = arena_array(&a, (size_t)p->nodes.n + 1, sizeof *no);
	clv_status st = no ? liveness_new(p, &l) : fail_nomem();
	if (st == CLV_OK)
		st = support_of("native", p, &(support_spec){.dynamic = p->symbols.n > 0}, no, &a);
	for (node_id n = x->first; st == CLV_OK && n < x->end; n++) {
		node_id from = n;
		while (n < x->end && !no[n])
			n++;
		st = add_segment(x, p, &l, (node_span){from, n});
	}
	liveness_free(&l);
	arena_free(&a);
	return st;
}

/* ---- making one ---------------------------------------------------------------------------------------------------- */

static clv_status say_refused(const plan *p, node_id n, char **why)
{
	strbuf b = STRBUF_INIT;
	strbuf_printf(&b, "it does not take %s: %s", plan_s(p, p->nodes.at[n].op), native_refuses(&engine_native, p, n));
	return strbuf_take(&b, why);
}

static clv_status say(const char *text, char **why)
{
	*why = mem_strdup(text, strlen(text));
	return *why ? CLV_OK : fail_nomem();
}

clv_status native_way_tell(const native_way *x, char **out)
{
	strbuf b = STRBUF_INIT;
	uint32_t nodes = 0;
	for (uint32_t i = 0; i < x->segments.n; i++)
		nodes += x->segments.at[i].c->end - x->segments.at[i].c->first;
	if (x->whole)
		strbuf_puts(&b, "all nodes");
	else
		strbuf_printf(&b, "%u of %u nodes in %u segments", nodes, x->end - x->first, x->segments.n);
	return strbuf_take(&b, out);
}

static void drop_rest(native_way *x)
{
	variant_free(x->rest);
	program_free(x->with);
	x->rest = NULL;
	x->with = NULL;
}

/* The plan with its segments, and passes for what is between them. */
static clv_status make_rest(native_way *x, const plan *p)
{
	drop_rest(x);
	code **codes = mem_alloc((x->segments.n + 1) * sizeof *codes);
	TRY_MEM(codes);
	for (uint32_t i = 0; i < x->segments.n; i++)
		codes[i] = x->segments.at[i].c;
	program_spec spec = {.first = x->first,
	                     .end = x->end,
	                     .inference = true,
	                     .objects = x->objects,
	                     .nobjects = x->nobjects,
	                     .codes = codes,
	                     .ncodes = x->segments.n,
	                     .untrusted = x->untrusted};
	clv_status st = program_new(p, &spec, &x->with);
	if (st == CLV_OK)
		st = variant_new(x->with, &spec, &x->s, &x->rest);
	mem_free(codes);
	return st;
}

/* Names of passes live longer than what was given. */
static clv_status copy_spec(native_way *x, const program_spec *spec, const optimize_spec *s)
{
	x->first = spec->first;
	x->end = spec->end;
	x->objects = spec->objects;
	x->nobjects = spec->nobjects;
	x->untrusted = spec->untrusted;
	x->s = *s;
	for (const pass *k = passes; k->name; k++)
		if (pass_is_off(s->off, k->name))
			TRY(vec_push(&x->off, k->name));
	TRY(vec_push(&x->off, NULL));
	x->s.off = x->off.at;
	return CLV_OK;
}

static clv_status fill(native_way *x, const clv_program *g, char **why)
{
	const plan *p = g->p;
	node_id refused = first_refused(p, x->first, x->end);
	if (!only_f32(p, x->first, x->end))
		return say("not all floats are f32", why);
	if (refused == x->end)
		return native_part_new(&engine_native, p, x->first, x->end, "fast", &x->whole);
	TRY(find_segments(x, p));
	return x->segments.n ? make_rest(x, p) : say_refused(p, refused, why);
}

clv_status native_way_new(const clv_program *g, const program_spec *spec, const optimize_spec *s, native_way **out,
                          char **why)
{
	native_way *x = mem_alloc(sizeof *x);
	TRY_MEM(x);
	*out = NULL;
	*why = NULL;
	clv_status st = copy_spec(x, spec, s);
	if (st == CLV_OK)
		st = fill(x, g, why);
	if (st == CLV_OK && !*why)
		*out = x;
	else
		native_way_free(x);
	return st;
}

void native_way_free(native_way *x)
{
	if (!x)
		return;
	native_part_free(x->whole);
	drop_rest(x);
	for (uint32_t i = 0; i < x->segments.n; i++)
		code_unref(x->segments.at[i].c);
	vec_free(&x->segments);
	vec_free(&x->off);
	vec_free(&x->order);
	mem_free(x);
}

/* ---- which segments are worth it ----------------------------------------------------------------------------------- */

static clv_status time_segment(void *ctx, const segment_call *c)
{
	native_way *x = ctx;
	native_segment *s = x->segments.at;
	br_tensor **out = mem_alloc((c->v->outputs.n + 1) * sizeof *out);
	TRY_MEM(out);
	while (s->c != c->code)
		s++;
	double start = clock_seconds();
	clv_status st = code_run_view(c->code, c, out);
	keep_shortest((clock_seconds() - start) * 1e3, &s->code_ms);
	keep_shortest(c->tape_ms, &s->tape_ms);
	if (fault_of_code(st)) {
		code_stop(s->c, status_message());
		st = CLV_OK;
	}
	release_all(out, c->v->outputs.n);
	mem_free(out);
	return st;
}

/* The first run makes what later ones reuse. */
static clv_status time_segments(native_way *x, const run_spec *r)
{
	run_spec mine = *r;
	mine.watch = time_segment;
	mine.watch_ctx = x;
	mine.numbers = NULL;
	for (uint32_t i = 0; i <= ROUNDS; i++) {
		for (uint32_t k = 0; k < x->segments.n && i == 1; k++)
			x->segments.at[k].code_ms = x->segments.at[k].tape_ms = -1;
		clv_status st = program_run(x->with, &mine);
		release_all(r->outputs, x->with->outputs.n);
		TRY(st);
	}
	return CLV_OK;
}

/* No run is timed with what only the first does. */
static clv_status pack(native_way *x, const clv_program *g, const run_spec *r)
{
	run_spec mine = *r;
	mine.numbers = NULL;
	clv_status st = native_part_run(x->whole, &mine);
	release_all(r->outputs, g->outputs.n);
	return st;
}

clv_status native_way_weigh(native_way *x, const clv_program *g, const run_spec *r, bool *left)
{
	uint32_t n = 0;
	*left = true;
	if (x->whole)
		return pack(x, g, r);
	TRY(time_segments(x, r));
	for (uint32_t i = 0; i < x->segments.n; i++) {
		native_segment *s = &x->segments.at[i];
		if (s->code_ms < s->tape_ms && !atomic_load(&s->c->reason))
			x->segments.at[n++] = *s;
		else
			code_unref(s->c);
	}
	bool fewer = n < x->segments.n;
	x->segments.n = n;
	*left = n > 0;
	return fewer && n ? make_rest(x, g->p) : CLV_OK;
}

/* ---- running ------------------------------------------------------------------------------------------------------- */

static clv_status run_somehow(native_way *x, const clv_program *g, const run_spec *r)
{
	if (!x->whole)
		return variant_run(x->rest, x->with, r);
	TRY(program_check_run(g, r));
	clv_status st = native_part_run(x->whole, r);
	return fault_of_code(st) ? program_run_plain(g, r) : st;
}

static clv_status lay_out(const native_way *x, const clv_program *g, br_tensor **outputs)
{
	const uint32_t *order = x->order.at;
	for (uint32_t i = 0; x->order.n && i < g->outputs.n; i++) {
		br_tensor *dense;
		TRY(br_dense(outputs[i], order, &dense));
		br_unref(outputs[i]);
		outputs[i] = dense;
		order += g->p->values.at[g->outputs.at[i]].ndim;
	}
	return CLV_OK;
}

clv_status native_way_run(native_way *x, const clv_program *g, const run_spec *r)
{
	TRY(run_somehow(x, g, r));
	clv_status st = lay_out(x, g, r->outputs);
	if (st != CLV_OK)
		release_all(r->outputs, g->outputs.n);
	return st;
}

clv_status native_way_lay_out(native_way *x, br_tensor *const *want, uint32_t n, char **why)
{
	bool dense = true;
	*why = NULL;
	x->order.n = 0;
	for (uint32_t i = 0; i < n && dense; i++) {
		br_meta m = {0};
		if (want[i])
			TRY(br_meta_get(want[i], &m));
		TRY(vec_reserve(&x->order, x->order.n + m.ndim));
		dense = memory_order_of(&m, x->order.at + x->order.n);
		x->order.n += m.ndim;
	}
	return dense ? CLV_OK : say("an output is a part of a larger tensor", why);
}

void native_way_forget(native_way *x)
{
	if (x->whole)
		native_part_forget(x->whole);
	else
		variant_forget(x->rest);
}
