/* Compiled segments of a runtime: which of them run, why the others do not, and how often. */
#include <string.h>

#include "base/options.h"
#include "exec/runtime.h"

/* ---- loading ------------------------------------------------------------------------------------------------------- */

typedef struct loader {
	runtime *r;
	const plan *p;
	liveness live;
	const program_spec *range;
	const clv_runtime_options *o;
} loader;

/* The segment was compiled for the device that it was captured on. */
static clv_status is_moved(const loader *l, const artifact_segment *s, bool *out)
{
	view v;
	*out = false;
	if (!l->r->device[0])
		return CLV_OK;
	TRY(view_segment(l->p, &l->live, s->first, s->end, &v));
	const char *device = code_device(&v);
	*out = device && strcmp(device, l->r->device) != 0;
	view_free(&v);
	return CLV_OK;
}

/* What stands against a segment before it is looked at; NULL: nothing. */
static clv_status obstacle(const loader *l, const artifact_segment *s, const char **out)
{
	bool moved;
	TRY(is_moved(l, s, &moved));
	*out = NULL;
	if (l->o->tape_only)
		*out = "the runtime was made without compiled parts";
	else if (l->o->debug)
		*out = "with debug, every operator runs by itself";
	else if (moved)
		*out = "it was compiled for another device";
	else if (s->first < l->range->first || s->end > l->range->end)
		*out = "the cut goes through it";
	return CLV_OK;
}

static clv_status load_one(loader *l, runtime_segment *s)
{
	TRY(obstacle(l, s->from, &s->reason));
	if (s->reason)
		return CLV_OK;
	bool allowed = l->o->allow_compiled || (l->o->allow_signed && artifact_signature_verified(l->r->a));
	code_source source = {s->from, l->p, &l->live, allowed, l->o->threads, l->r->a};
	return code_new(&source, &l->r->arena, &s->c, &s->reason);
}

static clv_status load_all(loader *l, uint32_t plan_number, code_list *out)
{
	runtime *r = l->r;
	const artifact_plan *e = &r->a->plans.at[plan_number];
	for (uint32_t i = 0; i < e->segments.n; i++) {
		runtime_segment s = {.plan = plan_number, .from = &e->segments.at[i]};
		if (s.from->end <= l->range->first || s.from->first >= l->range->end)
			continue; /* of the part that does not run here */
		TRY(vec_reserve(&r->segments, 1));
		TRY(load_one(l, &s));
		r->segments.at[r->segments.n++] = s;
		if (s.c)
			TRY(vec_push(out, s.c));
	}
	return CLV_OK;
}

clv_status runtime_load_codes(runtime *r, uint32_t plan_number, const program_spec *range, const clv_runtime_options *o,
                              code_list *out)
{
	loader l = {.r = r, .p = r->a->plans.at[plan_number].p, .range = range, .o = o};
	if (!r->a->plans.at[plan_number].segments.n)
		return CLV_OK;
	TRY(liveness_new(l.p, &l.live));
	clv_status st = load_all(&l, plan_number, out);
	liveness_free(&l.live);
	return st;
}

void runtime_free_codes(runtime *r)
{
	for (uint32_t i = 0; i < r->segments.n; i++)
		code_unref(r->segments.at[i].c);
	vec_free(&r->segments);
}

/* ---- other weights ------------------------------------------------------------------------------------------------- */

static bool reads(const view *v, value_id external)
{
	for (uint32_t i = 0; i < v->externals.n; i++)
		if (external == NONE || v->externals.at[i] == external)
			return true;
	return false;
}

void runtime_stop_codes(runtime *r, uint32_t plan_number, value_id external, const char *why)
{
	const clv_program *g = r->plans.at[plan_number].g;
	for (uint32_t i = 0; r->segments.n && i < g->steps.n; i++) {
		const step *s = &g->steps.at[i];
		if (s->kind == STEP_SEGMENT && reads(&s->tape->v, external))
			code_stop(s->compiled, why);
	}
}

/* ---- what runs ------------------------------------------------------------------------------------------------------ */

uint32_t clv_runtime_segment_count(const clv_runtime *r)
{
	return r ? r->segments.n : 0;
}

clv_status clv_runtime_segment(const clv_runtime *r, uint32_t i, clv_segment_state *out)
{
	if (!r || !out || i >= r->segments.n)
		return fail(CLV_E_INVALID, "clv_runtime_segment: there is no segment %u, or no place for it", i);
	const runtime_segment *s = &r->segments.at[i];
	clv_segment_state x = {.plan = s->plan,
	                       .first = s->from->first,
	                       .end = s->from->end,
	                       .backend = s->from->backend,
	                       .reason = s->c ? atomic_load(&s->c->reason) : s->reason};
	x.barred = x.reason == code_barred;
	x.compiled = !x.reason;
	x.runs = s->c ? atomic_load(&s->c->runs) : 0;
	x.tape_runs = s->c ? atomic_load(&s->c->tape_runs) : atomic_load(&r->plans.at[s->plan].runs);
	return options_write(out, &x, sizeof x, "clv_segment_state");
}
