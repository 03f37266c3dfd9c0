/* Compiled segments of a file in a program of the tape: which of them run, why the others do not, and how often. */
#include <string.h>

#include "base/options.h"
#include "exec/tape.h"

typedef struct loader {
	taped *t;
	const engine_order *o;
	const plan *p; /* the file's own */
	liveness live;
} loader;

/* The segment was compiled for the device that it was captured on. */
static clv_status is_moved(const loader *l, const artifact_segment *s, bool *out)
{
	view v;
	*out = false;
	if (!l->o->device[0])
		return CLV_OK;
	TRY(view_segment(l->p, &l->live, s->first, s->end, &v));
	const char *device = code_device(&v);
	*out = device && strcmp(device, l->o->device) != 0;
	view_free(&v);
	return CLV_OK;
}

/* What stands against a segment before it is looked at; NULL: nothing. */
static clv_status obstacle(const loader *l, const artifact_segment *s, const char **out)
{
	bool moved;
	TRY(is_moved(l, s, &moved));
	*out = NULL;
	if (l->o->o->tape_only)
		*out = "the runtime was made without compiled parts";
	else if (l->o->o->debug)
		*out = "with debug, every operator runs by itself";
	else if (moved)
		*out = "it was compiled for another device";
	else if (s->first < l->o->first || s->end > l->o->end)
		*out = "the cut goes through it";
	return CLV_OK;
}

static clv_status load_one(loader *l, tape_segment *s)
{
	TRY(obstacle(l, s->from, &s->reason));
	if (s->reason)
		return CLV_OK;
	bool allowed = l->o->o->allow_compiled || (l->o->o->allow_signed && artifact_signature_verified(l->o->a));
	code_source source = {s->from, l->p, &l->live, allowed, l->o->o->threads, l->o->a};
	return code_new(&source, &l->t->arena, &s->c, &s->reason);
}

static clv_status load_all(loader *l, code_list *out)
{
	taped *t = l->t;
	const artifact_plan *e = &l->o->a->plans.at[l->o->number];
	for (uint32_t i = 0; i < e->segments.n; i++) {
		tape_segment s = {.from = &e->segments.at[i]};
		if (s.from->end <= l->o->first || s.from->first >= l->o->end)
			continue; /* of the part that does not run here */
		TRY(vec_reserve(&t->segments, 1));
		TRY(load_one(l, &s));
		t->segments.at[t->segments.n++] = s;
		if (s.c)
			TRY(vec_push(out, s.c));
	}
	return CLV_OK;
}

clv_status tape_load_codes(taped *t, const engine_order *o, code_list *out)
{
	loader l = {.t = t, .o = o, .p = o->a->plans.at[o->number].p};
	if (!o->a->plans.at[o->number].segments.n)
		return CLV_OK;
	TRY(liveness_new(l.p, &l.live));
	clv_status st = load_all(&l, out);
	liveness_free(&l.live);
	return st;
}

void tape_free_codes(taped *t)
{
	for (uint32_t i = 0; i < t->segments.n; i++)
		code_unref(t->segments.at[i].c);
	vec_free(&t->segments);
}

static bool reads(const view *v, value_id external)
{
	for (uint32_t i = 0; i < v->externals.n; i++)
		if (external == NONE || v->externals.at[i] == external)
			return true;
	return false;
}

void tape_changed(void *program, value_id external, const char *why)
{
	const taped *t = program;
	for (uint32_t i = 0; t->segments.n && i < t->g->steps.n; i++) {
		const step *s = &t->g->steps.at[i];
		if (s->kind == STEP_SEGMENT && reads(&s->tape->v, external))
			code_stop(s->compiled, why);
	}
}

uint32_t tape_segments(const void *program)
{
	return ((const taped *)program)->segments.n;
}

void tape_segment_state(const void *program, uint32_t i, clv_segment_state *out)
{
	const taped *t = program;
	const tape_segment *s = &t->segments.at[i];
	out->first = s->from->first;
	out->end = s->from->end;
	out->backend = s->from->backend;
	out->reason = s->c ? atomic_load(&s->c->reason) : s->reason;
	out->barred = out->reason == code_barred;
	out->compiled = !out->reason;
	out->runs = s->c ? atomic_load(&s->c->runs) : 0;
	out->tape_runs = s->c ? atomic_load(&s->c->tape_runs) : atomic_load(&t->runs);
}
