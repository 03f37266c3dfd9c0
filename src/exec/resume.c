/* Leaves a run at a guard, and goes on with it in another program: see resume.h. */
#include "exec/resume.h"

#include <string.h>

#include "base/limits.h"

/* What the runs of a call have changed, and the pools that their tensors are in. */
typedef struct effects {
	VEC(undo_log) logs;
	VEC(pool_run *) pools;
} effects;

/* ---- effects --------------------------------------------------------------------------------------------------------- */

static clv_status undo_all(handover *h, bool *whole);
static void drop_all(handover *h);
static const handover_kind kind = {undo_all, drop_all};

static clv_status effects_of(handover *h, effects **out)
{
	if (!h->effects)
		h->effects = mem_alloc(sizeof(effects));
	h->kind = &kind;
	*out = h->effects;
	return *out ? CLV_OK : fail_nomem();
}

clv_status resume_note(handover *h, const undo *u, const run_spec *r)
{
	effects *e;
	undo_log log;
	TRY(effects_of(h, &e));
	TRY(vec_reserve(&e->logs, 1));
	TRY(undo_begin(u, r, &log));
	e->logs.at[e->logs.n++] = log;
	return CLV_OK;
}

void resume_forget(handover *h)
{
	effects *e = h->effects;
	undo_end(&e->logs.at[--e->logs.n]);
}

/* The last one first: each has what it found, changed by those before it. */
static clv_status undo_all(handover *h, bool *whole)
{
	effects *e = h->effects;
	for (uint32_t i = e ? e->logs.n : 0; i-- > 0;)
		TRY(undo_run(&e->logs.at[i], whole));
	return CLV_OK;
}

/* ---- runs that wait -------------------------------------------------------------------------------------------------- */

static void left_free(left_run *l)
{
	for (uint32_t i = 0; l->given && i < l->g->v.inputs.n + l->g->v.externals.n; i++)
		br_unref(l->given[i]);
	mem_free(l->given);
	mem_free(l);
}

/* The frame goes back to its program; memory stays where it is until all runs of the call have ended. */
static void left_end(handover *h)
{
	left_run *l = h->left;
	h->left = NULL;
	clear_frame(l->g, l->f);
	frame_give(l->g, l->f);
	left_free(l);
}

static void drop_all(handover *h)
{
	effects *e = h->effects;
	if (h->left)
		left_end(h);
	for (uint32_t i = e ? e->logs.n : 0; i-- > 0;)
		undo_end(&e->logs.at[i]);
	for (uint32_t i = e ? e->pools.n : 0; i-- > 0;)
		br_pool_leave(e->pools.at[i], false);
	if (e) {
		vec_free(&e->logs);
		vec_free(&e->pools);
	}
	mem_free(e);
	h->effects = NULL;
}

static clv_status left_new(const clv_program *g, const run_spec *r, uint32_t at, left_run **out)
{
	uint32_t n = g->v.inputs.n;
	left_run *l = mem_alloc(sizeof *l);
	TRY_MEM(l);
	*l = (left_run){.g = g, .step = at, .grad = r->grad && !g->inference};
	l->given = mem_alloc((n + g->v.externals.n + 1) * sizeof *l->given);
	if (!l->given) {
		mem_free(l);
		return fail_nomem();
	}
	for (uint32_t i = 0; i < n; i++)
		l->given[i] = br_ref(r->inputs[i]);
	for (uint32_t i = 0; i < g->v.externals.n; i++)
		if (g->p->values.at[g->v.externals.at[i]].kind != VALUE_OBJECT)
			l->given[n + i] = br_ref(r->externals[i]);
	*out = l;
	return CLV_OK;
}

/* Autocast keeps casts of weights until it ends, steps that resize tensors are looked after by their own run, and limits on
   memory count what each run takes. */
static bool may_leave(const handover *h, const clv_program *g, const run_spec *r, uint32_t at)
{
	step_kind k = g->steps.at[at].kind;
	return !h->left && status_details()->undone && (k == STEP_CALL || k == STEP_GUARD_EQUAL) && !g->resizes &&
	       !g->autocast && !r->times && !r->watch && !limits_bytes() && !br_transforms();
}

bool resume_leave(handover *h, const clv_program *g, const run_spec *r, frame *f, uint32_t at, pool_run *memory)
{
	effects *e;
	left_run *l;
	clv_error_details details = *status_details();
	if (!may_leave(h, g, r, at))
		return false;
	/* A guard's message stays: out of memory is no reason to lose it. */
	if (effects_of(h, &e) != CLV_OK || vec_reserve(&e->pools, 1) != CLV_OK || left_new(g, r, at, &l) != CLV_OK) {
		(void)fail(CLV_E_GUARD, "a guard does not hold, and there is no memory to go on");
		*status_details() = details;
		return false;
	}
	l->f = f;
	if (memory) {
		(void)pool_suspend();
		e->pools.at[e->pools.n++] = memory;
	}
	h->left = l;
	return true;
}

/* ---- going on -------------------------------------------------------------------------------------------------------- */

static clv_status take_numbers(const clv_program *g, frame *f, const left_run *l, const beginning *x)
{
	const plan *a = l->g->p, *b = g->p;
	bool any = false;
	for (symbol_id s = 0; s < a->symbols.n && s < b->symbols.n; s++)
		if (a->symbols.at[s].data && l->f->symbols[s] >= 0) {
			f->symbols[s] = l->f->symbols[s];
			any = true;
		}
	for (uint32_t i = 0; i < x->numbers.n; i++)
		f->numbers[x->numbers.at[i].here] = l->f->numbers[x->numbers.at[i].left];
	memcpy(f->hosts, l->f->hosts, (g->nhosts < l->g->nhosts ? g->nhosts : l->g->nhosts) * sizeof *f->hosts);
	return any ? frame_read_data(g, f) : CLV_OK;
}

/* The guard as this plan has it, on what the other program's call gave. */
static clv_status check_guard(const clv_program *g, frame *f, const left_run *l, const beginning *x)
{
	const step *s = &g->steps.at[x->joined];
	TRY(take_numbers(g, f, l, x));
	for (uint32_t i = 0; i < x->looks.n; i++)
		f->slots[x->looks.at[i].here] = l->f->slots[x->looks.at[i].left];
	clv_status st = step_checks(g, s, f);
	for (uint32_t i = 0; i < x->looks.n; i++)
		f->slots[x->looks.at[i].here] = NULL;
	return st == CLV_OK ? st : call_failed_at(g->p, g->names, s->node, st);
}

clv_status resume_take(handover *h, const clv_program *g, const run_spec *r, frame *f, const beginning **out)
{
	left_run *l = h->left;
	const beginning *x = NULL;
	clv_status st = beginning_find(g, f, r, l, &x);
	if (st == CLV_OK && !x)
		st = handover_pass(h);
	else if (st == CLV_OK) {
		h->passed = false;
		st = check_guard(g, f, l, x);
	}
	if (st != CLV_OK) {
		memset(f->slots, 0, g->nslots * sizeof *f->slots);
		return st;
	}
	for (uint32_t i = 0; i < x->moves.n; i++) {
		f->slots[x->moves.at[i].here] = l->f->slots[x->moves.at[i].left];
		l->f->slots[x->moves.at[i].left] = NULL;
	}
	h->taken++;
	left_end(h);
	*out = x;
	return CLV_OK;
}
