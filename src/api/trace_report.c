/* The report of a traced file, from the facts the file holds. */
#include <stdio.h>
#include <string.h>

#include "base/options.h"
#include "file/artifact.h"
#include "plan/view.h"
#include "segment/units.h"

typedef struct reporter {
	const artifact *a;
	const artifact_plan *e;
	const clv_report_options *o;
	segments s;      /* as the file has them */
	const char **no; /* per node: why its back end does not take it */
	int64_t *sizes;  /* per symbol: of the example, where the file says so */
	VEC(segment_row) rows, dropped;
	VEC(artifact_segment) planned; /* of a dry run; else empty */
	amounts m;
	liveness live;
	arena texts;
} reporter;

static double number_of(const char *text)
{
	char *end;
	double x = text ? strtod(text, &end) : NAN;
	return text && end != text && *end == 0 ? x : NAN;
}

static double fact(const artifact_segment *s, const char *key)
{
	for (uint32_t i = 0; i < s->facts.n; i++)
		if (strcmp(s->facts.at[i].key, key) == 0)
			return number_of(s->facts.at[i].text);
	return NAN;
}

/* A file may say anything. */
static int64_t bytes_fact(const artifact_segment *s, const char *key)
{
	double n = fact(s, key);
	return n >= 0 && n < 9e18 ? (int64_t)n : -1;
}

static const char *note(const artifact *a, const char *key)
{
	for (uint32_t i = 0; i < a->notes.n; i++)
		if (strcmp(a->notes.at[i].key, key) == 0)
			return a->notes.at[i].text;
	return NULL;
}

static clv_status find_segments(reporter *r)
{
	const plan *p = r->e->p;
	r->s.p = p;
	r->s.of_node = mem_ids(p->nodes.n + 1);
	r->s.reason = arena_alloc(&r->texts, (p->nodes.n + 1) * sizeof *r->s.reason);
	r->no = arena_alloc(&r->texts, (p->nodes.n + 1) * sizeof *r->no);
	TRY_MEM(r->s.of_node && r->s.reason && r->no);
	for (node_id n = 0; n < p->nodes.n; n++)
		r->s.reason[n] = "";
	for (uint32_t i = 0; i < r->e->segments.n; i++)
		for (node_id n = r->e->segments.at[i].first; n < r->e->segments.at[i].end; n++)
			r->s.of_node[n] = i;
	for (uint32_t i = 0; i < r->e->fallbacks.n; i++) {
		const artifact_fallback *f = &r->e->fallbacks.at[i];
		r->s.reason[f->node] = f->reason;
		r->no[f->node] = reason_is_chooser(f->reason) ? NULL : f->reason;
	}
	return CLV_OK;
}

/* The sizes that work and bytes are counted at: those of the example, as far as they are known and possible. */
static clv_status find_sizes(reporter *r)
{
	const plan *p = r->e->p;
	r->sizes = arena_alloc(&r->texts, (p->symbols.n + 1) * sizeof *r->sizes);
	TRY_MEM(r->sizes);
	for (symbol_id s = 0; s < p->symbols.n; s++) {
		const symbol *x = &p->symbols.at[s];
		strbuf b = STRBUF_INIT;
		const char *key;
		strbuf_printf(&b, EXAMPLE_SIZE "%s", plan_s(p, x->name));
		TRY(arena_take(&r->texts, &b, &key));
		double n = number_of(note(r->a, key));
		r->sizes[s] = n >= (double)x->lo && n <= (double)x->hi ? (int64_t)n : x->lo;
	}
	return CLV_OK;
}

/* Segments that a dry run chose: runs of nodes whose reason says so. */
static clv_status find_planned(reporter *r)
{
	const artifact_plan *e = r->e;
	for (uint32_t i = 0; i < e->fallbacks.n; i++) {
		const artifact_fallback *f = &e->fallbacks.at[i], *last = i ? f - 1 : NULL;
		if (strncmp(f->reason, DRY_RUN, strlen(DRY_RUN)) != 0)
			continue;
		bool same = last && last->node + 1 == f->node && strcmp(last->reason, f->reason) == 0;
		artifact_segment s = {.first = f->node, .backend = note(r->a, "backend")};
		if (!same)
			TRY(vec_push(&r->planned, s));
		r->planned.at[r->planned.n - 1].end = f->node + 1;
		r->s.of_node[f->node] = r->planned.n - 1;
		r->no[f->node] = NULL;
	}
	return CLV_OK;
}

static clv_status count(const reporter *r, const artifact_segment *from, segment *out)
{
	view v;
	*out = (segment){.first = from->first, .n = from->end - from->first};
	TRY(view_segment(r->e->p, &r->live, from->first, from->end, &v));
	for (node_id n = from->first; n < from->end; n++)
		out->work += r->m.work[n];
	for (uint32_t i = 0; i < v.inputs.n; i++)
		out->bytes_in = add_bytes(out->bytes_in, r->m.bytes[v.inputs.at[i]]);
	for (uint32_t i = 0; i < v.outputs.n; i++)
		out->bytes_out = add_bytes(out->bytes_out, r->m.bytes[v.outputs.at[i]]);
	view_free(&v);
	return CLV_OK;
}

static clv_status fill_row(reporter *r, const artifact_segment *from, const segment *counted, const char *name,
                           segment_row *row)
{
	strbuf b = STRBUF_INIT;
	*row = (segment_row)SEGMENT_ROW_INIT;
	strbuf_puts(&b, name);
	TRY(arena_take(&r->texts, &b, &row->name));
	row->backend = from->backend;
	row->nodes = counted->n;
	row->work = counted->work;
	row->bytes_in = counted->bytes_in;
	row->bytes_out = counted->bytes_out;
	row->measured_in = bytes_fact(from, "bytes_in");
	row->measured_out = bytes_fact(from, "bytes_out");
	row->compile_s = fact(from, "compile_s");
	row->error = fact(from, "error");
	row->tolerance = fact(from, "allowed");
	row->tape_ms = fact(from, "tape_ms");
	row->code_ms = fact(from, "code_ms");
	row->size = from->members.n ? 0 : -1;
	for (uint32_t k = 0; k < from->members.n; k++)
		row->size += (int64_t)from->members.at[k].n;
	return CLV_OK;
}

static clv_status add_row(reporter *r, const artifact_segment *from, const char *on_tape)
{
	segment_row row;
	segment counted;
	char name[24];
	TRY(count(r, from, &counted));
	TRY(vec_push(&r->s.at, counted));
	snprintf(name, sizeof name, "segment %u", r->rows.n);
	TRY(fill_row(r, from, &counted, name, &row));
	row.on_tape = on_tape;
	return vec_push(&r->rows, row);
}

static clv_status add_dropped(reporter *r, const artifact_segment *from)
{
	segment_row row;
	segment counted;
	char name[24];
	TRY(count(r, from, &counted));
	snprintf(name, sizeof name, "dropped %u", r->dropped.n);
	TRY(fill_row(r, from, &counted, name, &row));
	row.on_tape = fact(from, "in_whole") > 0 ? "with it the whole is slower" : "slower";
	return vec_push(&r->dropped, row);
}

static double given_or_noted(double given, const artifact *a, const char *key)
{
	return given >= 0 ? given : number_of(note(a, key));
}

static clv_status write_report(reporter *r, double *covered, strbuf *b)
{
	coverage c;
	double least = number_of(note(r->a, "minimum_segment_size"));
	segments_spec spec = {.no = r->no, .minimum = least >= 1 && least < 1e9 ? (uint32_t)least : 2, .syms = r->sizes};
	TRY(coverage_of(&r->s, &spec, true, &c));
	const char *backend = note(r->a, "backend");
	segment_report report = {.backend = backend ? backend : "?",
	                         .covered = &c,
	                         .planned = r->planned.n > 0,
	                         .rows = r->rows.at,
	                         .nrows = r->rows.n,
	                         .dropped = r->dropped.at,
	                         .ndropped = r->dropped.n,
	                         .eager_ms = given_or_noted(r->o->eager_ms, r->a, "eager_ms"),
	                         .tape_ms = given_or_noted(r->o->tape_ms, r->a, "tape_ms"),
	                         .traced_ms = given_or_noted(r->o->traced_ms, r->a, "traced_ms")};
	if (covered)
		*covered = coverage_share(&c);
	clv_status st = r->o->json ? report_json(&report, b) : report_text(&report, b);
	coverage_free(&c);
	return st;
}

static clv_status make_report(reporter *r, double *covered, char **out)
{
	strbuf b = STRBUF_INIT;
	TRY(find_segments(r));
	TRY(find_sizes(r));
	TRY(amounts_of(r->e->p, r->sizes, &r->m));
	TRY(liveness_new(r->e->p, &r->live));
	TRY(find_planned(r));
	for (uint32_t i = 0; i < r->e->segments.n; i++)
		TRY(add_row(r, &r->e->segments.at[i], r->o->on_tape ? r->o->on_tape[i] : NULL));
	for (uint32_t i = 0; i < r->planned.n; i++)
		TRY(add_row(r, &r->planned.at[i], "dry run"));
	for (uint32_t i = 0; i < r->e->dropped.n; i++)
		TRY(add_dropped(r, &r->e->dropped.at[i]));
	clv_status st = write_report(r, covered, &b);
	if (st == CLV_OK)
		return strbuf_take(&b, out);
	strbuf_free(&b);
	return st;
}

clv_status clv_artifact_report(const clv_artifact *a, const clv_report_options *options, double *covered, char **out)
{
	clv_report_options o = CLV_REPORT_OPTIONS_INIT;
	if (!a || !out)
		return fail(CLV_E_INVALID, "clv_artifact_report needs an artifact and a place for the text");
	TRY(options_read(&o, sizeof o, options, "clv_report_options"));
	if (o.plan >= a->plans.n)
		return fail(CLV_E_INVALID, "there is no plan %u", o.plan);
	reporter r = {.a = a, .e = &a->plans.at[o.plan], .o = &o};
	if (r.e->segments.n + r.e->fallbacks.n == 0 && !note(a, "backend"))
		return fail(CLV_E_NOT_FOUND, "nothing of this file was compiled, or was to be");
	clv_status st = make_report(&r, covered, out);
	mem_free(r.s.of_node);
	amounts_free(&r.m);
	liveness_free(&r.live);
	vec_free(&r.s.at);
	vec_free(&r.rows);
	vec_free(&r.dropped);
	vec_free(&r.planned);
	arena_free(&r.texts);
	return st;
}
