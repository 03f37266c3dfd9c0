/* Runs of a plan with some ranges watched: how their tensors are laid out, and whether compiled code gives what the tape
 * gives. The program runs its tape; what stands in for a range is called beside it, on the same inputs. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "exec/beside.h"
#include "exec/trace.h"

typedef struct watch {
	trace_plan *p;
	attempt *at;
	uint32_t n;
	uint32_t call;
	bool first;   /* the call that layouts are of, and that is timed */
	bool layouts; /* else: compare */
} watch;

/* ---- layouts ------------------------------------------------------------------------------------------------------ */

/* Dimensions from the slowest to the fastest; row by row where elements do not lie side by side. */
static void find_order(const br_meta *m, uint32_t *order)
{
	for (uint32_t d = 0; d < m->ndim; d++) {
		uint32_t at = d;
		for (; m->strides && at > 0 && m->strides[order[at - 1]] < m->strides[d]; at--)
			order[at] = order[at - 1];
		order[at] = d;
	}
	int64_t next = 1;
	bool dense = m->strides != NULL;
	for (uint32_t i = m->ndim; i-- > 0 && dense;) {
		if (m->sizes[order[i]] == 1)
			continue;
		dense = m->strides[order[i]] == next;
		next *= m->sizes[order[i]];
	}
	for (uint32_t d = 0; d < m->ndim && !dense; d++)
		order[d] = d;
}

static clv_status take_orders(clv_tensor *const *tensors, uint32_t n, uint32_t *orders, uint32_t norders,
                              int64_t *bytes)
{
	uint32_t at = 0;
	for (uint32_t i = 0; i < n; i++) {
		br_meta m;
		if (!tensors[i])
			return fail(CLV_E_UNSUPPORTED, "a tensor that is undefined goes in or out");
		TRY(br_meta_get(tensors[i], &m));
		if (at + m.ndim > norders)
			return fail(CLV_E_INPUT, "a tensor has other dimensions than the plan says");
		find_order(&m, orders + at);
		at += m.ndim;
		int64_t size = clv_tensor_bytes(tensors[i]);
		*bytes += size > 0 ? size : 0;
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

static clv_status compare(attempt *a, const watch *w, clv_tensor *const *got, clv_tensor *const *want, uint32_t n)
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

static clv_status run_code(attempt *a, const segment_call *c, clv_tensor *const *inputs, clv_tensor **out, double *ms)
{
	double start = clock_seconds();
	clv_status st = code_run_view(a->code, c->v, c->sizes, inputs, out);
	if (st == CLV_OK)
		st = br_synchronize(code_device(c->v));
	*ms = (clock_seconds() - start) * 1e3;
	if (!fault_of_code(st))
		return st;
	a->why = mem_strdup(status_message(), strlen(status_message()));
	return a->why ? CLV_OK : fail_nomem();
}

/* Code gets copies: if it writes into them, the tape that runs beside it goes on with what it had. */
static clv_status copy_all(clv_tensor *const *from, uint32_t n, clv_tensor **to)
{
	for (uint32_t i = 0; i < n; i++)
		TRY(br_clone(from[i], false, &to[i]));
	return CLV_OK;
}

static clv_status compare_inputs(attempt *a, clv_tensor *const *given, clv_tensor *const *before, uint32_t n)
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

enum { TIMED_RUNS = 3 };

static clv_status run_and_compare(const watch *w, attempt *a, const segment_call *c, clv_tensor **in, clv_tensor **out)
{
	double ms;
	TRY(copy_all(c->inputs, c->v->inputs.n, in));
	TRY(run_code(a, c, in, out, &ms));
	if (!a->why)
		TRY(compare_inputs(a, in, c->inputs, c->v->inputs.n));
	if (!a->why)
		TRY(compare(a, w, out, c->outputs, c->v->outputs.n));
	if (w->first && !a->why) {
		keep_shortest(ms, &a->code_ms);
		keep_shortest(c->tape_ms, &a->tape_ms);
	}
	return CLV_OK;
}

static clv_status see(void *ctx, const segment_call *c)
{
	watch *w = ctx;
	attempt *a = w->at;
	while (a->code != c->code)
		a++;
	if (w->layouts) {
		a->bytes_in = a->bytes_out = 0;
		TRY(take_orders(c->inputs, c->v->inputs.n, a->segment.in_order.at, a->segment.in_order.n, &a->bytes_in));
		return take_orders(c->outputs, c->v->outputs.n, a->segment.out_order.at, a->segment.out_order.n, &a->bytes_out);
	}
	if (a->why || !a->code->b || !code_serves(a->code, c->symbols))
		return CLV_OK;
	uint32_t n = c->v->inputs.n + c->v->outputs.n;
	clv_tensor **all = mem_alloc((n + 1) * sizeof *all);
	if (!all)
		return fail_nomem();
	clv_status st = run_and_compare(w, a, c, all, all + c->v->inputs.n);
	release_all(all, n);
	mem_free(all);
	return st;
}

/* ---- runs --------------------------------------------------------------------------------------------------------- */

static clv_status watched_program(watch *w, clv_program **out)
{
	code **codes = mem_alloc((w->n + 1) * sizeof *codes);
	if (!codes)
		return fail_nomem();
	for (uint32_t i = 0; i < w->n; i++)
		codes[i] = w->at[i].code;
	program_spec spec = {.end = w->p->p->nodes.n, .inference = true, .codes = codes, .ncodes = w->n};
	clv_status st = program_new(w->p->p, &spec, out);
	mem_free(codes);
	return st;
}

/* A plan that writes its inputs gets copies: the next run wants the same ones. */
static clv_status copy_inputs(const clv_program *g, const clv_trace_call *c, clv_tensor **inputs)
{
	for (uint32_t i = 0; i < c->ninputs; i++) {
		if (g->writes_inputs)
			TRY(br_clone(c->inputs[i], false, &inputs[i]));
		else
			inputs[i] = br_ref(c->inputs[i]);
	}
	return CLV_OK;
}

typedef struct run_room {
	clv_tensor **inputs, **externals, **outputs;
} run_room;

static bool room_new(const clv_program *g, run_room *r)
{
	r->inputs = mem_alloc((g->v.inputs.n + 1) * sizeof *r->inputs);
	r->externals = mem_alloc((g->v.externals.n + 1) * sizeof *r->externals);
	r->outputs = mem_alloc((g->outputs.n + 1) * sizeof *r->outputs);
	return r->inputs && r->externals && r->outputs;
}

static void room_free(const clv_program *g, run_room *r)
{
	if (r->inputs)
		release_all(r->inputs, g->v.inputs.n);
	if (r->outputs)
		release_all(r->outputs, g->outputs.n);
	mem_free(r->inputs);
	mem_free(r->externals);
	mem_free(r->outputs);
}

static clv_status run_call(watch *w, const clv_program *g, const clv_trace_call *c, run_room *r)
{
	if (c->ninputs != g->v.inputs.n)
		return fail(CLV_E_INPUT, "the model takes %u inputs, the call has %u", g->v.inputs.n, c->ninputs);
	TRY(copy_inputs(g, c, r->inputs));
	for (uint32_t i = 0; i < g->v.externals.n; i++)
		r->externals[i] = w->p->externals[g->v.externals.at[i]];
	run_spec spec = {
		.inputs = r->inputs, .externals = r->externals, .outputs = r->outputs, .watch = see, .watch_ctx = w};
	return program_run(g, &spec);
}

static clv_status run_one(watch *w, const clv_program *g, const clv_trace_call *c)
{
	run_room r = {0};
	clv_status st = room_new(g, &r) ? run_call(w, g, c, &r) : fail_nomem();
	room_free(g, &r);
	return st;
}

static clv_status watch_calls(watch *w, uint32_t ncalls)
{
	const clv_trace_options *o = w->p->t->o;
	clv_program *g;
	TRY(watched_program(w, &g));
	clv_status st = CLV_OK;
	for (uint32_t i = 0, more = w->layouts ? 0 : TIMED_RUNS; i < ncalls && st == CLV_OK; i++) {
		w->call = w->p->calls.at[i];
		w->first = i == 0;
		st = run_one(w, g, &o->calls[w->call]);
		for (; st == CLV_OK && more; more--)
			st = run_one(w, g, &o->calls[w->call]);
		if (st == CLV_E_GUARD && i > 0)
			st = CLV_OK; /* data of another size that leads elsewhere: it says nothing about the code */
	}
	program_free(g);
	return st;
}

clv_status attempts_look(trace_plan *p, attempt *at, uint32_t n)
{
	watch w = {.p = p, .at = at, .n = n, .layouts = true};
	return watch_calls(&w, 1);
}

clv_status attempts_check(trace_plan *p, attempt *at, uint32_t n)
{
	watch w = {.p = p, .at = at, .n = n};
	return watch_calls(&w, p->calls.n);
}
