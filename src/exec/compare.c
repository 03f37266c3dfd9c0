/* clv_artifact_compare: a model file run by the native engine and on the tape, on inputs that are made up. */
#include <string.h>

#include "base/options.h"
#include "exec/native_check.h"
#include "exec/tape.h"
#include "exec/tolerance.h"
#include "optimize/optimize.h"

/* The same file on both engines. */
typedef struct pair {
	const clv_artifact *a;
	clv_runtime *native, *tape;
	double worst;
} pair;

/* ---- inputs --------------------------------------------------------------------------------------------------------- */

typedef struct made {
	clv_tensor **inputs, **got, **want;
	int64_t *symbols; /* of the plan; -1: read from data */
	uint32_t ninputs, noutputs;
	bool ones;
} made;

static void free_all(clv_tensor **t, uint32_t n)
{
	for (uint32_t i = 0; t && i < n; i++)
		clv_tensor_free(t[i]);
	mem_free(t);
}

static void made_free(made *m)
{
	free_all(m->inputs, m->ninputs);
	free_all(m->got, m->noutputs);
	free_all(m->want, m->noutputs);
	mem_free(m->symbols);
}

/* splitmix64: numbers in 0 … 1, the same everywhere */
static double next_random(uint64_t *state)
{
	uint64_t z = (*state += 0x9e3779b97f4a7c15u);
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
}

/* Inputs are made for this runtime. */
typedef struct maker {
	const runtime *r;
	const plan *p;
	bool ones;
	uint64_t state;
	int64_t *made;
} maker;

/* Floats in 0 … 1; integers 0 or 1, or with `ones` all 1, which most masks are. */
static clv_status fill_input(maker *k, value_id v, const int64_t *sizes, const int64_t *strides, clv_tensor **out)
{
	const value *x = &k->p->values.at[v];
	tensor_form rows = {.dtype = DT_F32, .ndim = x->ndim, .sizes = sizes},
				form = {.dtype = x->dtype, .ndim = x->ndim, .sizes = sizes, .strides = strides};
	clv_tensor *plain = NULL;
	br_tensor *from, *to;
	int64_t before;
	TRY(runtime_make(k->r, k->p, v, &form, k->made, out));
	before = *k->made;
	TRY(runtime_make(k->r, k->p, v, &rows, k->made, &plain));
	*k->made = before;
	float *data = plain->data;
	for (int64_t i = 0, n = tensor_numel(plain); i < n; i++) {
		double r = next_random(&k->state);
		data[i] = (float)(is_float(x) ? r : k->ones || r >= 0.5);
	}
	clv_status st = br_of(plain, &from);
	if (st == CLV_OK)
		st = br_of(*out, &to);
	if (st == CLV_OK)
		st = br_copy(from, to);
	clv_tensor_free(plain);
	return st;
}

static clv_status make_input(maker *k, value_id v, const int64_t *symbols, clv_tensor **out)
{
	const plan *p = k->p;
	const value *x = &p->values.at[v];
	int64_t *sizes = mem_alloc((2 * (size_t)x->ndim + 1) * sizeof *sizes), *strides = sizes ? sizes + x->ndim : NULL;
	TRY_MEM(sizes);
	clv_status st = CLV_OK;
	bool laid = x->kind == VALUE_INPUT && x->strides != NONE;
	for (uint32_t d = 0; laid && d < x->ndim && st == CLV_OK; d++)
		st = expr_eval(p, p->dims.at[x->strides + d], symbols, &strides[d]);
	for (uint32_t d = 0; d < x->ndim && st == CLV_OK; d++)
		st = expr_eval(p, p->dims.at[x->shape + d], symbols, &sizes[d]);
	if (st == CLV_OK)
		st = fill_input(k, v, sizes, laid ? strides : NULL, out);
	mem_free(sizes);
	return st;
}

/* At the first sizes that the plan was recorded at. */
static clv_status make_call(const runtime *r, const runtime_plan *e, bool ones, int64_t *bytes, made *m)
{
	const plan *p = e->of.p;
	maker k = {r, p, ones, 1, bytes};
	uint32_t given = 0;
	m->ones = ones;
	m->ninputs = e->of.v.inputs.n;
	m->noutputs = e->noutputs;
	m->symbols = mem_alloc((p->symbols.n + 1) * sizeof *m->symbols);
	m->inputs = mem_alloc((m->ninputs + 1) * sizeof *m->inputs);
	m->got = mem_alloc((m->noutputs + 1) * sizeof *m->got);
	m->want = mem_alloc((m->noutputs + 1) * sizeof *m->want);
	TRY_MEM(m->symbols && m->inputs && m->got && m->want);
	for (symbol_id s = 0; s < p->symbols.n; s++) {
		m->symbols[s] = p->symbols.at[s].data ? -1 : p->symbols.at[s].lo;
		if (!p->symbols.at[s].data && given < e->e->points.n)
			m->symbols[s] = e->e->points.at[given++];
	}
	for (uint32_t i = 0; i < m->ninputs; i++)
		TRY(make_input(&k, e->of.v.inputs.at[i], m->symbols, &m->inputs[i]));
	return CLV_OK;
}

/* ---- comparing ------------------------------------------------------------------------------------------------------ */

static clv_status blame(const pair *x, const runtime_plan *e, const made *m, uint32_t output, double error,
                        double allowed)
{
	const taped *t = e->program;
	if (!t)
		return fail(CLV_E_VERIFY,
		            "the native engine gives other numbers than the tape: output %u is off by %.3g, %.3g is allowed; "
		            "which node does so is found where the file runs in this process, not in a sandbox",
		            output, error, allowed);
	made again = {0}; /* the run may have written its inputs */
	int64_t bytes = 0;
	br_tensor **inputs = mem_alloc((m->ninputs + 1) * sizeof *inputs);
	clv_status st = inputs ? make_call(x->tape, e, m->ones, &bytes, &again) : fail_nomem();
	if (st == CLV_OK)
		st = br_of_all((const clv_tensor *const *)again.inputs, m->ninputs, inputs);
	run_spec r = {.inputs = inputs, .externals = t->externals, .symbols = m->symbols};
	if (st == CLV_OK)
		st = native_blame(&engine_native, t->g, &r, output, error, allowed);
	mem_free(inputs);
	made_free(&again);
	return st;
}

static clv_status compare_outputs(pair *x, const runtime_plan *e, const made *m)
{
	br_tensor *got, *want;
	for (uint32_t i = 0; i < m->noutputs; i++) {
		uint32_t output;
		double error = 0, allowed = 0;
		TRY(br_of(m->got[i], &got));
		TRY(br_of(m->want[i], &want));
		TRY(native_compare(&got, &want, 1, &output, &error, &allowed));
		if (output != NONE)
			return blame(x, e, m, i, error, allowed);
		x->worst = error > x->worst ? error : x->worst;
	}
	return CLV_OK;
}

static clv_status compare_plan(pair *x, uint32_t i, bool ones)
{
	made first = {0}, m = {0}; /* a plan may write its inputs: each run has its own, of the same numbers */
	const runtime_plan *e = &x->tape->plans.at[i];
	int64_t bytes = 0;
	clv_status st = make_call(x->tape, e, ones, &bytes, &first);
	if (st == CLV_OK)
		st = make_call(x->tape, e, ones, &bytes, &m);
	run_call c = {.inputs = first.inputs, .symbols = first.symbols};
	if (st == CLV_OK)
		st = runtime_run_plan(x->tape, i, &c, m.want);
	if (st != CLV_OK && st != CLV_E_NOMEM && st != CLV_E_LIMIT && st != CLV_E_CANCELLED && st != CLV_E_GUARD)
		st = fail_more(CLV_E_GUARD, "the model does not run on inputs that are made up");
	c.inputs = m.inputs;
	if (st == CLV_OK)
		st = runtime_run_plan(x->native, i, &c, m.got);
	made_free(&first);
	if (st == CLV_OK)
		st = compare_outputs(x, e, &m);
	made_free(&m);
	return st;
}

static clv_status compare_all(pair *x, const clv_runtime_options *given)
{
	clv_runtime_options o = *given;
	o.engine = engine_tape.name;
	o.optimize = "none";
	o.tape_only = true;
	TRY(clv_runtime_create(x->a, &o, &x->tape));
	o = *given;
	o.engine = engine_native.name;
	TRY(clv_runtime_create(x->a, &o, &x->native));
	uint32_t left = NONE;
	for (uint32_t i = 0; i < x->tape->plans.n; i++) {
		clv_status st = compare_plan(x, i, false);
		if (st == CLV_E_GUARD) /* a mask that is not all ones, for instance */
			st = compare_plan(x, i, true);
		if (st != CLV_E_GUARD || x->tape->plans.n == 1)
			TRY(st);
		else
			left = i;
	}
	return left == NONE ? CLV_OK : fail(CLV_E_GUARD, "plan %u cannot be compared on inputs that are made up", left);
}

clv_status clv_artifact_compare(const clv_artifact *a, const clv_runtime_options *options, double *worst)
{
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	pair x = {.a = a};
	if (!a)
		return fail(CLV_E_INVALID, "clv_artifact_compare needs an artifact");
	TRY(options_read(&o, sizeof o, options, "clv_runtime_options"));
	clv_status st = compare_all(&x, &o);
	clv_runtime_free(x.tape);
	clv_runtime_free(x.native);
	if (worst)
		*worst = x.worst;
	return st;
}
