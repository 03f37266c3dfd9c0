/* Drops compiled segments that are not worth it.
 *
 * First those that take longer than the tape of their nodes. Then the traced model is timed against the tape, and segments
 * are dropped as long as it is slower: costs around a segment, and effects on its neighbours, show only there. Other
 * numbers than the tape's are accepted only for less time. */
#include <stdio.h>

#include "exec/trace.h"
#include "optimize/optimize.h"

static const double GAIN = 0.97; /* of the tape's time; a smaller difference may be noise */

typedef struct weighing {
	trace_plan *p;
	attempt *at;
	uint32_t n;
	clv_program *whole;    /* with the segments that are left */
	br_tensor **externals; /* of it */
} weighing;

/* ---- the whole ---------------------------------------------------------------------------------------------------- */

static const taped *tape_of(const trace_plan *p)
{
	return p->t->r->plans.at[p->number].program;
}

/* The program as a runtime would make it of the file. */
static clv_status make_whole(weighing *w)
{
	const trace_plan *p = w->p;
	code **codes = mem_alloc((w->n + 1) * sizeof *codes);
	uint32_t n = 0;
	optimize_level level;
	TRY_MEM(codes);
	for (uint32_t i = 0; i < w->n; i++)
		if (!w->at[i].dropped)
			codes[n++] = w->at[i].code;
	clv_status st = optimize_level_read(p->t->o->optimize, &level);
	if (st == CLV_OK) {
		program_spec spec = {
			.end = p->p->nodes.n, .inference = true, .codes = codes, .ncodes = n, .optimize = (uint8_t)level};
		st = program_new(p->p, &spec, &w->whole);
	}
	mem_free(codes);
	TRY(st);
	w->externals = mem_alloc((w->whole->v.externals.n + 1) * sizeof *w->externals);
	for (uint32_t i = 0; w->externals && i < w->whole->v.externals.n; i++)
		w->externals[i] = p->externals[w->whole->v.externals.at[i]];
	return w->externals ? CLV_OK : fail_nomem();
}

static void drop_whole(weighing *w)
{
	program_free(w->whole);
	mem_free(w->externals);
	w->whole = NULL;
	w->externals = NULL;
}

/* Both once, in turn. */
static clv_status run_both(const weighing *w, const clv_trace_call *c, double *tape, double *traced)
{
	const taped *t = tape_of(w->p);
	TRY(trace_run(t->g, t->externals, c, NULL, NULL, tape));
	return trace_run(w->whole, w->externals, c, NULL, NULL, traced);
}

/* The first run of each makes what later ones find, and is not counted. */
static clv_status time_both(const weighing *w, uint32_t i, double *tape, double *traced)
{
	const clv_trace_call *c = &w->p->t->o->calls[w->p->calls.at[i]];
	double tapes[MOST_ROUNDS], wholes[MOST_ROUNDS];
	uint32_t n = 0;
	clv_status st = run_both(w, c, &tapes[0], &wholes[0]);
	for (rounds r = {0}; st == CLV_OK && rounds_go_on(&r, i == 0); n += st == CLV_OK)
		st = run_both(w, c, &tapes[n], &wholes[n]);
	*tape = undisturbed(tapes, n);
	*traced = undisturbed(wholes, n);
	return st == CLV_E_GUARD ? CLV_OK : st; /* a state that changed, or data that leads elsewhere: as far as it went */
}

static clv_status is_slower(const weighing *w, bool *slower)
{
	double all_tape = 0, all_traced = 0;
	*slower = false;
	for (uint32_t i = 0; i < w->p->calls.n && !*slower; i++) {
		double tape, traced;
		TRY(time_both(w, i, &tape, &traced));
		*slower = i == 0 && traced > tape;
		all_tape += tape;
		all_traced += traced;
	}
	*slower |= all_traced > all_tape;
	return CLV_OK;
}

static clv_status weigh_whole(weighing *w, bool *slower)
{
	clv_status st = make_whole(w);
	if (st == CLV_OK)
		st = is_slower(w, slower);
	drop_whole(w);
	return st;
}

/* ---- segments ----------------------------------------------------------------------------------------------------- */

static void log_dropped(const weighing *w, const attempt *a, const char *why)
{
	const clv_trace_options *o = w->p->t->o;
	char line[160];
	snprintf(line, sizeof line, "nodes %u to %u go to the tape: %s (%.4f ms compiled, %.4f ms on the tape)",
	         a->segment.first, a->segment.end, why, a->code_ms, a->tape_ms);
	if (o->log)
		o->log(o->ctx, line);
}

static bool loses(const attempt *a)
{
	return a->code_ms > GAIN * a->tape_ms || a->all_code_ms > GAIN * a->all_tape_ms;
}

static attempt *least_gain(const weighing *w)
{
	attempt *found = NULL;
	for (uint32_t i = 0; i < w->n; i++) {
		attempt *a = &w->at[i];
		if (!a->dropped && (!found || a->tape_ms - a->code_ms < found->tape_ms - found->code_ms))
			found = a;
	}
	return found;
}

static uint32_t count_kept(const weighing *w)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < w->n; i++)
		n += !w->at[i].dropped;
	return n;
}

/* Of many, several at a time: each step costs runs of the whole. */
static void drop_some(weighing *w)
{
	for (uint32_t i = (count_kept(w) + 3) / 4; i > 0; i--) {
		attempt *a = least_gain(w);
		a->dropped = SLOW_IN_WHOLE;
		log_dropped(w, a, "with it the whole is slower");
	}
}

clv_status attempts_weigh(trace_plan *p, attempt *at, uint32_t n)
{
	weighing w = {.p = p, .at = at, .n = n};
	for (uint32_t i = 0; i < n; i++) {
		at[i].dropped = loses(&at[i]) ? SLOW : KEPT;
		if (at[i].dropped)
			log_dropped(&w, &at[i], "it is slower");
	}
	while (count_kept(&w)) {
		bool slower;
		TRY(weigh_whole(&w, &slower));
		if (!slower)
			break;
		drop_some(&w);
	}
	return CLV_OK;
}
