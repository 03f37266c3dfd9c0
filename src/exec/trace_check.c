/* Runs a plan with some ranges watched: records how their tensors are laid out, compares compiled code with the tape, and
 * times both. The program runs its tape; the compiled code of a range runs in addition, on the same inputs. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/number.h"
#include "exec/tolerance.h"
#include "exec/trace.h"

typedef struct times {
	double tape[MOST_ROUNDS], code[MOST_ROUNDS];
	uint32_t n;
} times;

typedef struct watch {
	trace_plan *p;
	attempt *at;
	uint32_t n;
	uint32_t call;
	enum { LAYOUTS, COMPARE, TIME } what;
	times *times; /* TIME: per attempt */
} watch;

/* ---- layouts ------------------------------------------------------------------------------------------------------ */

static clv_status take_orders(br_tensor *const *tensors, uint32_t n, uint32_t *orders, uint32_t norders, int64_t *bytes)
{
	uint32_t at = 0;
	for (uint32_t i = 0; i < n; i++) {
		br_meta m;
		if (!tensors[i])
			return fail(CLV_E_UNSUPPORTED, "a tensor that is undefined goes in or out");
		TRY(br_meta_get(tensors[i], &m));
		if (at + m.ndim > norders)
			return fail(CLV_E_INPUT, "a tensor has other dimensions than the plan says");
		(void)memory_order_of(&m, orders + at);
		at += m.ndim;
		*bytes += m.strided ? br_numel(tensors[i]) * br_itemsize(tensors[i]) : 0;
	}
	return CLV_OK;
}

/* ---- comparison --------------------------------------------------------------------------------------------------- */

static clv_status disagree(attempt *a, const watch *w, uint32_t output, double error, double allowed)
{
	strbuf b = STRBUF_INIT;
	strbuf_printf(&b, "it gives other numbers than PyTorch: output %u is off by %.3g, %.3g is allowed", output, error,
	              allowed);
	if (w->p->t->o->ncalls > 1)
		strbuf_printf(&b, " (comparison %u)", w->call);
	return strbuf_take(&b, &a->why);
}

static clv_status compare_outputs(attempt *a, const watch *w, br_tensor *const *got, br_tensor *const *want, uint32_t n)
{
	for (uint32_t i = 0; i < n && !a->why; i++) {
		double error, scale;
		br_meta m;
		TRY(br_meta_get(want[i], &m));
		TRY(br_difference(got[i], want[i], &error, &scale));
		double allowed = tolerance_for(&m, scale, w->p->t->o->rtol, w->p->t->o->atol);
		if (error > a->error || (error == a->error && allowed > a->allowed)) {
			a->error = error;
			a->allowed = allowed;
		}
		if (!(error <= allowed))
			TRY(disagree(a, w, i, error, allowed));
	}
	return CLV_OK;
}

static clv_status run_compiled(attempt *a, const segment_call *c, br_tensor *const *inputs, br_tensor **out, double *ms)
{
	segment_call mine = *c;
	mine.inputs = inputs;
	double start = clock_seconds();
	clv_status st = code_run_view(a->code, &mine, out);
	if (st == CLV_OK)
		st = br_synchronize(code_device(c->v));
	*ms = (clock_seconds() - start) * 1e3;
	if (!fault_of_code(st))
		return st;
	a->why = mem_strdup(status_message(), strlen(status_message()));
	return a->why ? CLV_OK : fail_nomem();
}

/* Code gets copies: if it writes into them, the tape still has its own. */
static clv_status clone_all(br_tensor *const *from, uint32_t n, br_tensor **to)
{
	for (uint32_t i = 0; i < n; i++)
		TRY(br_clone(from[i], false, &to[i]));
	return CLV_OK;
}

static clv_status compare_inputs(attempt *a, br_tensor *const *given, br_tensor *const *before, uint32_t n)
{
	for (uint32_t i = 0; i < n && !a->why; i++) {
		bool same;
		TRY(br_bits_equal(given[i], before[i], &same));
		if (same)
			continue;
		strbuf b = STRBUF_INIT;
		strbuf_printf(&b, "its code writes into input %u", i);
		TRY(strbuf_take(&b, &a->why));
	}
	return CLV_OK;
}

static clv_status run_and_compare(const watch *w, attempt *a, const segment_call *c, br_tensor **in, br_tensor **out)
{
	double ms;
	TRY(clone_all(c->inputs, c->v->inputs.n, in));
	TRY(run_compiled(a, c, in, out, &ms));
	if (!a->why)
		TRY(compare_inputs(a, in, c->inputs, c->v->inputs.n));
	return a->why ? CLV_OK : compare_outputs(a, w, out, c->outputs, c->v->outputs.n);
}

/* It has left its inputs alone before. */
static clv_status run_and_time(const watch *w, attempt *a, const segment_call *c, br_tensor **out)
{
	times *t = &w->times[a - w->at];
	double ms;
	TRY(run_compiled(a, c, c->inputs, out, &ms));
	if (a->why || t->n == MOST_ROUNDS)
		return CLV_OK;
	t->code[t->n] = ms;
	t->tape[t->n++] = c->tape_ms;
	return CLV_OK;
}

static clv_status watch_segment(void *ctx, const segment_call *c)
{
	watch *w = ctx;
	attempt *a = w->at;
	while (a->code != c->code)
		a++;
	if (w->what == LAYOUTS) {
		a->bytes_in = a->bytes_out = 0;
		TRY(take_orders(c->inputs, c->v->inputs.n, a->segment.in_order.at, a->segment.in_order.n, &a->bytes_in));
		return take_orders(c->outputs, c->v->outputs.n, a->segment.out_order.at, a->segment.out_order.n, &a->bytes_out);
	}
	if (a->why || !a->code->b || !code_serves(a->code, c->symbols))
		return CLV_OK;
	uint32_t n = c->v->inputs.n + c->v->outputs.n;
	br_tensor **all = mem_alloc((n + 1) * sizeof *all);
	TRY_MEM(all);
	br_tensor **out = all + c->v->inputs.n;
	clv_status st = w->what == TIME ? run_and_time(w, a, c, out) : run_and_compare(w, a, c, all, out);
	release_all(all, n);
	mem_free(all);
	return st;
}

/* ---- runs --------------------------------------------------------------------------------------------------------- */

static clv_status watched_program(watch *w, clv_program **out)
{
	code **codes = mem_alloc((w->n + 1) * sizeof *codes);
	TRY_MEM(codes);
	for (uint32_t i = 0; i < w->n; i++)
		codes[i] = w->at[i].code;
	program_spec spec = {.end = w->p->p->nodes.n, .inference = true, .codes = codes, .ncodes = w->n};
	clv_status st = program_new(w->p->p, &spec, out);
	mem_free(codes);
	return st;
}

/* A plan that writes its inputs gets copies: the next run wants the same ones. */
static clv_status copy_inputs(const clv_program *g, const clv_trace_call *c, br_tensor **inputs)
{
	for (uint32_t i = 0; i < c->ninputs; i++) {
		br_tensor *given;
		TRY(br_of(c->inputs[i], &given));
		if (g->writes_inputs)
			TRY(br_clone(given, false, &inputs[i]));
		else
			inputs[i] = br_ref(given);
	}
	return CLV_OK;
}

static clv_status timed_run(const clv_program *g, const run_spec *spec, double *ms)
{
	double start = clock_seconds();
	TRY(program_run(g, spec));
	TRY(wait_for_all(spec->outputs, g->outputs.n));
	*ms = (clock_seconds() - start) * 1e3;
	return CLV_OK;
}

clv_status trace_run(const clv_program *g, br_tensor *const *externals, const clv_trace_call *c, segment_fn seen,
                     void *ctx, double *ms)
{
	if (c->ninputs != g->v.inputs.n)
		return fail(CLV_E_INPUT, "the model takes %u inputs, the call has %u", g->v.inputs.n, c->ninputs);
	br_tensor **inputs = mem_alloc((g->v.inputs.n + g->outputs.n + 1) * sizeof *inputs);
	TRY_MEM(inputs);
	br_tensor **outputs = inputs + g->v.inputs.n;
	run_spec spec = {.inputs = inputs, .externals = externals, .outputs = outputs, .watch = seen, .watch_ctx = ctx};
	clv_status st = copy_inputs(g, c, inputs);
	if (st == CLV_OK)
		st = timed_run(g, &spec, ms);
	release_all(inputs, g->v.inputs.n + g->outputs.n);
	mem_free(inputs);
	return st;
}

/* The plan with its attempts as segments, and its tensors. */
typedef struct watched {
	clv_program *g;
	br_tensor **externals;
} watched;

static void watched_free(watched *x)
{
	program_free(x->g);
	mem_free(x->externals);
}

static clv_status watched_new(watch *w, watched *x)
{
	*x = (watched){0};
	TRY(watched_program(w, &x->g));
	x->externals = mem_alloc((x->g->v.externals.n + 1) * sizeof *x->externals);
	for (uint32_t i = 0; x->externals && i < x->g->v.externals.n; i++)
		x->externals[i] = w->p->externals[x->g->v.externals.at[i]];
	if (x->externals)
		return CLV_OK;
	watched_free(x);
	return fail_nomem();
}

static clv_status watch_once(watch *w, const watched *x, uint32_t i)
{
	double ms;
	w->call = w->p->calls.at[i];
	return trace_run(x->g, x->externals, &w->p->t->o->calls[w->call], watch_segment, w, &ms);
}

static clv_status watch_calls(watch *w, uint32_t ncalls)
{
	watched x;
	TRY(watched_new(w, &x));
	clv_status st = CLV_OK;
	for (uint32_t i = 0; i < ncalls && st == CLV_OK; i++) {
		st = watch_once(w, &x, i);
		if (st == CLV_E_GUARD && i > 0)
			st = CLV_OK; /* data of another size that leads elsewhere: it says nothing about the code */
	}
	watched_free(&x);
	return st;
}

clv_status attempts_look(trace_plan *p, attempt *at, uint32_t n)
{
	watch w = {.p = p, .at = at, .n = n, .what = LAYOUTS};
	return watch_calls(&w, 1);
}

clv_status attempts_check(trace_plan *p, attempt *at, uint32_t n)
{
	watch w = {.p = p, .at = at, .n = n, .what = COMPARE};
	return watch_calls(&w, p->calls.n);
}

/* ---- times -------------------------------------------------------------------------------------------------------- */

bool rounds_go_on(rounds *r, bool example)
{
	static const double seconds[] = {0.15, 0.5};
	if (r->n == 0)
		r->started = clock_seconds();
	bool late = clock_seconds() - r->started > seconds[example];
	return r->n++ < (late ? LEAST_ROUNDS : MOST_ROUNDS);
}

double undisturbed(double *ms, uint32_t n)
{
	if (n == 0)
		return -1;
	numbers_sort(ms, n);
	return ms[n / 4];
}

static void take_times(watch *w, bool example)
{
	for (uint32_t k = 0; k < w->n; k++) {
		attempt *a = &w->at[k];
		times *t = &w->times[k];
		double on_tape = undisturbed(t->tape, t->n), compiled_ms = undisturbed(t->code, t->n);
		if (example) {
			a->tape_ms = on_tape;
			a->code_ms = compiled_ms;
		}
		a->all_tape_ms += t->n ? on_tape : 0;
		a->all_code_ms += t->n ? compiled_ms : 0;
		t->n = 0;
	}
}

/* A run changes the state of some models: then a guard may stop it, and what was seen has to do. */
static clv_status time_call(watch *w, const watched *x, uint32_t i)
{
	clv_status st = CLV_OK;
	for (rounds r = {0}; st == CLV_OK && rounds_go_on(&r, i == 0);)
		st = watch_once(w, x, i);
	take_times(w, i == 0);
	return st == CLV_E_GUARD ? CLV_OK : st;
}

clv_status attempts_time(trace_plan *p, attempt *at, uint32_t n)
{
	watch w = {.p = p, .at = at, .n = n, .what = TIME, .times = mem_alloc((n + 1) * sizeof *w.times)};
	watched x;
	TRY_MEM(w.times);
	clv_status st = watched_new(&w, &x);
	if (st == CLV_OK) {
		for (uint32_t i = 0; st == CLV_OK && i < p->calls.n; i++)
			st = time_call(&w, &x, i);
		watched_free(&x);
	}
	mem_free(w.times);
	return st;
}
