/* Runs a program: check the inputs, walk the steps, give out the outputs.
 *
 * The loop only fills what changes; a value is released after the last step that reads it. Whatever happens, the modes
 * of the calling thread are put back and the frame is left empty. */
#include "base/clock.h"
#include "base/limits.h"
#include "exec/apart.h"
#include "exec/code.h"
#include "exec/native_check.h"
#include "exec/optimized.h"
#include "exec/program.h"
#include "exec/resume.h"

#include <stdio.h>
#include <pthread.h>
#include <string.h>

enum { FEW = 8 }; /* inputs that need no memory of their own */

/* ---- frames ----------------------------------------------------------------------------------------------------- */

void frame_free(frame *f)
{
	if (!f)
		return;
	mem_free(f->slots);
	mem_free(f->numbers);
	mem_free(f->symbols);
	mem_free(f->exprs);
	mem_free(f->defined);
	mem_free(f->hosts);
	mem_free(f);
}

static frame *frame_new(const clv_program *g)
{
	frame *f = mem_alloc(sizeof *f);
	if (!f)
		return NULL;
	f->slots = mem_alloc((g->nslots + 1) * sizeof(br_tensor *));
	f->numbers = mem_alloc((g->numbers.n + 1) * sizeof *f->numbers);
	f->symbols = mem_alloc((g->p->symbols.n + 1) * sizeof *f->symbols);
	f->exprs = mem_alloc((g->p->exprs.n + 1) * sizeof *f->exprs);
	f->defined = mem_alloc((g->p->exprs.n + 1) * sizeof *f->defined);
	f->hosts = mem_alloc((g->nhosts + 1) * sizeof *f->hosts);
	if (!f->slots || !f->numbers || !f->symbols || !f->exprs || !f->defined || !f->hosts) {
		frame_free(f);
		return NULL;
	}
	return f;
}

static frame *frame_take(const clv_program *g)
{
	frame *f = atomic_exchange(&((clv_program *)g)->spare, NULL);
	return f ? f : frame_new(g);
}

void frame_give(const clv_program *g, frame *f)
{
	frame_free(atomic_exchange(&((clv_program *)g)->spare, f));
}

/* ---- inputs ----------------------------------------------------------------------------------------------------- */

static clv_status check_input(const clv_program *g, const frame *f, value_id v, const br_tensor *t)
{
	tensor_meta m;
	br_look(t, &m);
	return input_check(g->p, v, &m, f->exprs);
}

/* Parameters may be exchanged between runs, but not change type or shape. */
static clv_status check_external(const clv_program *g, const frame *f, value_id v, const br_tensor *t)
{
	const plan *p = g->p;
	const value *x = &p->values.at[v];
	char *label;
	br_meta m;
	clv_status st = CLV_OK;
	if (t && (x->flags & VALUE_ODD))
		return CLV_OK;
	if (t && br_fits(t, x->dtype, plan_s(p, x->device), x->ndim, &p->dims.at[x->shape], f->exprs))
		return CLV_OK;
	if (t)
		TRY(br_meta_get(t, &m));
	TRY(value_label_text(p, v, &label));
	if (!t)
		st = fail(CLV_E_INPUT, "%s is not bound", label);
	else
		st = fail(CLV_E_INPUT, "%s is now %s%s on %s, the plan was captured with %s on %s: capture the model again",
		          label, m.dtype < DT_COUNT ? dtype_name((dtype)m.dtype) : "?",
		          m.dtype == x->dtype ? " of another shape" : "", m.device, dtype_name((dtype)x->dtype),
		          plan_s(p, x->device));
	mem_free(label);
	return st;
}

clv_status program_symbols(const clv_program *g, const run_spec *r, int64_t *syms)
{
	tensor_meta few[FEW] = {0}, *inputs = few;
	if (g->v.inputs.n > FEW && !(inputs = mem_alloc(g->v.inputs.n * sizeof *inputs)))
		return fail_nomem();
	for (uint32_t i = 0; i < g->v.inputs.n; i++)
		br_look(r->inputs[i], &inputs[i]);
	clv_status st = inputs_symbols(&g->v, inputs, r->symbols, syms);
	if (inputs != few)
		mem_free(inputs);
	return st;
}

static bool eval_number(const plan *p, const live_number *n, const frame *f, br_arg *out)
{
	if (n->kind == NUMBER_INT) {
		*out = (br_arg){.kind = BR_INT, .u.i = f->exprs[n->id]};
		return f->defined[n->id];
	}
	*out = (br_arg){.kind = BR_FLOAT};
	return real_eval(p, n->id, f->exprs, f->defined, &out->u.f);
}

/* Numbers that are not known yet are BR_NONE, which no call takes. `later`: only those that wait for data. */
static clv_status eval_numbers(const clv_program *g, frame *f, bool later)
{
	TRY(expr_eval_all(g->p, f->symbols, f->exprs, f->defined));
	for (uint32_t i = 0; i < g->numbers.n; i++) {
		const live_number *n = &g->numbers.at[i];
		if (later && (!n->later || n->kind == NUMBER_HOST))
			continue;
		if (n->kind != NUMBER_HOST && eval_number(g->p, n, f, &f->numbers[i]))
			continue;
		if (!n->later)
			return fail(CLV_E_OVERFLOW, "a number of the plan is not defined for these sizes");
		f->numbers[i] = (br_arg){.kind = BR_NONE};
	}
	return CLV_OK;
}

clv_status frame_read_data(const clv_program *g, frame *f)
{
	return eval_numbers(g, f, true);
}

static clv_status eval_sizes(const clv_program *g, const run_spec *r, frame *f)
{
	if (g->p->symbols.n)
		TRY(program_symbols(g, r, f->symbols));
	return eval_numbers(g, f, false);
}

/* With plans that write their inputs, two inputs on the same memory would see each other's writes. */
static clv_status check_aliasing(const clv_program *g, const run_spec *r)
{
	for (uint32_t i = 0; i < g->v.inputs.n; i++)
		for (uint32_t k = 0; k < i; k++) {
			br_meta a, b;
			TRY(br_meta_get(r->inputs[i], &a));
			TRY(br_meta_get(r->inputs[k], &b));
			if (a.storage && a.storage == b.storage)
				return fail(CLV_E_INPUT,
				            "two inputs share memory and the plan writes to its inputs in place; pass copies");
		}
	return CLV_OK;
}

/* With grad enabled a forward may go another way when nothing, or something else, requires grad. */
static clv_status check_requires_grad(const clv_program *g, const run_spec *r)
{
	const plan *p = g->p;
	if (g->inference || !(p->grad_modes & 2))
		return CLV_OK;
	for (uint32_t i = 0; i < g->v.inputs.n; i++) {
		const value *x = &p->values.at[g->v.inputs.at[i]];
		if (x->kind == VALUE_INPUT && br_requires_grad(r->inputs[i]) != ((x->flags & VALUE_GRAD) != 0))
			return fail(CLV_E_LAYOUT, "input %s %s grad, at capture it %s", plan_s(p, x->name),
			            x->flags & VALUE_GRAD ? "does not require" : "requires",
			            x->flags & VALUE_GRAD ? "did" : "did not");
	}
	for (uint32_t i = 0; i < g->v.externals.n; i++) {
		const value *x = &p->values.at[g->v.externals.at[i]];
		if (x->kind == VALUE_PARAM && r->externals[i] &&
		    br_requires_grad(r->externals[i]) != ((x->flags & VALUE_TRAINABLE) != 0))
			return fail(CLV_E_LAYOUT, "parameter %s was %s when the plan was captured", plan_s(p, x->name),
			            x->flags & VALUE_TRAINABLE ? "trainable" : "frozen");
	}
	return CLV_OK;
}

static clv_status load_inputs(const clv_program *g, const run_spec *r, frame *f)
{
	for (uint32_t i = 0; i < g->v.inputs.n; i++) {
		TRY(check_input(g, f, g->v.inputs.at[i], r->inputs[i]));
		f->slots[g->slot[g->v.inputs.at[i]]] = r->inputs[i];
	}
	for (uint32_t i = 0; i < g->v.externals.n; i++) {
		value_id v = g->v.externals.at[i];
		if (g->p->values.at[v].kind == VALUE_OBJECT)
			continue;
		TRY(check_external(g, f, v, r->externals[i]));
		f->slots[g->slot[v]] = r->externals[i];
	}
	if (g->writes_inputs && g->v.nodes.at[0] == 0)
		TRY(check_aliasing(g, r));
	if (r->grad)
		TRY(check_requires_grad(g, r));
	return CLV_OK;
}

static clv_status clone_written(const clv_program *g, const run_spec *r, frame *f)
{
	for (uint32_t i = 0; i < g->cloned.n; i++) {
		uint32_t s = g->slot[g->cloned.at[i]];
		br_tensor *copy = NULL;
		clv_status st = br_clone(f->slots[s], r->grad && !g->inference, &copy);
		f->slots[s] = copy;
		if (st != CLV_OK) {
			while (++i < g->cloned.n) /* still borrowed: the frame must not release them */
				f->slots[g->slot[g->cloned.at[i]]] = NULL;
			return st;
		}
	}
	return CLV_OK;
}

/* ---- steps ------------------------------------------------------------------------------------------------------ */

static void print_host(strbuf *b, const br_arg *a)
{
	switch ((br_kind)a->kind) {
	case BR_INT: strbuf_int(b, a->u.i); return;
	case BR_FLOAT: strbuf_double(b, a->u.f); return;
	case BR_BOOL: strbuf_puts(b, a->u.b ? "true" : "false"); return;
	case BR_COMPLEX:
		strbuf_double(b, a->u.c.re);
		strbuf_puts(b, " + ");
		strbuf_double(b, a->u.c.im);
		strbuf_putc(b, 'j');
		return;
	default: strbuf_puts(b, "something else"); return;
	}
}

static clv_status host_text(const br_arg *a, char **out)
{
	strbuf b = STRBUF_INIT;
	print_host(&b, a);
	return strbuf_take(&b, out);
}

/* A number that later calls take: branches on it (zero, a sign, a threshold) are not in the plan. */
static clv_status check_between(const plan *p, const arg *ends, const br_arg *got)
{
	double lo = p->args.at[ends->u.list.first].u.f, hi = p->args.at[ends->u.list.first + 1].u.f;
	if (got->kind == BR_FLOAT && got->u.f >= lo && got->u.f <= hi)
		return CLV_OK;
	return fail(CLV_E_GUARD,
	            "the forward reads %g from the data; the plan was proven for %g to %g, beyond that it may branch",
	            got->kind == BR_FLOAT ? got->u.f : 0.0, lo, hi);
}

static clv_status check_host(const clv_program *g, const frame *f, value_id v, const br_arg *got)
{
	const plan *p = g->p;
	const arg *want = &p->args.at[p->values.at[v].expect];
	br_arg w = {.kind = BR_INT};
	if (want->kind == ARG_INT)
		w.u.i = f->exprs[want->u.e];
	else if (want->kind == ARG_REAL)
		(void)eval_number(p, &(live_number){NUMBER_REAL, want->u.r, false}, f, &w);
	else if (want->kind == ARG_LIST)
		return check_between(p, want, got);
	else
		(void)br_from_plain(p, want, &w); /* the verifier lets only literals be expected */
	if (br_arg_same(&w, got))
		return CLV_OK;
	char *expected, *seen = NULL;
	TRY(host_text(&w, &expected));
	clv_status st = host_text(got, &seen);
	if (st == CLV_OK)
		st = call_number_differs(expected, seen);
	mem_free(expected);
	mem_free(seen);
	return st;
}

/* Shapes that follow the data leave no trace in operators: every result is checked, which costs little. */
static clv_status check_tensor(const clv_program *g, const frame *f, value_id v)
{
	const plan *p = g->p;
	const value *x = &p->values.at[v];
	const br_tensor *t = f->slots[g->slot[v]];
	br_meta m;
	if (!t)
		return fail(CLV_E_GUARD, "the result is undefined, the plan has a tensor");
	if (br_fits(t, x->dtype, plan_s(p, x->device), x->ndim, &p->dims.at[x->shape], f->exprs))
		return CLV_OK;
	TRY(br_meta_get(t, &m));
	if (!m.strided && !m.sizes)
		return CLV_OK; /* nested: has no shape to compare */
	bool same = m.dtype == x->dtype && m.ndim == x->ndim && !strcmp(m.device, plan_s(p, x->device));
	for (uint32_t d = 0; same && d < m.ndim; d++)
		same = m.sizes[d] == f->exprs[p->dims.at[x->shape + d]];
	if (same)
		return CLV_OK;
	strbuf b = STRBUF_INIT;
	strbuf_printf(&b, "the result is %s[", m.dtype < DT_COUNT ? dtype_name((dtype)m.dtype) : "?");
	for (uint32_t d = 0; d < m.ndim; d++)
		strbuf_printf(&b, "%s%lld", d ? "," : "", (long long)m.sizes[d]);
	strbuf_puts(&b, "], the plan holds only for ");
	value_print_type(p, v, &b);
	char *text = NULL;
	TRY(strbuf_take(&b, &text));
	clv_status st = fail(CLV_E_GUARD, "%s", text);
	mem_free(text);
	return st;
}

static clv_status run_checks(const clv_program *g, const step *s, const frame *f)
{
	for (uint32_t i = 0; i < s->nchecks; i++) {
		const check *c = &g->checks.at[s->checks + i];
		TRY(c->host != NONE ? check_host(g, f, c->value, &f->hosts[c->host]) : check_tensor(g, f, c->value));
	}
	return CLV_OK;
}

static clv_status run_guard_equal(const clv_program *g, const step *s, const frame *f)
{
	bool same;
	TRY(br_bits_equal(f->slots[g->slots_of.at[s->args]], f->slots[g->slots_of.at[s->args + 1]], &same));
	if (!same)
		return fail(CLV_E_GUARD,
		            "the forward read this tensor by %s when it was captured, and its data is different now; the "
		            "plan holds only for the captured data",
		            plan_s(g->p, g->p->args.at[g->p->nodes.at[s->node].args + 2].u.s));
	return CLV_OK;
}

static clv_status run_python(const clv_program *g, const step *s, frame *f, const run_spec *r)
{
	if (!r->python)
		return fail(CLV_E_UNSUPPORTED, "it calls Python code (%s), which only runs in the process that captured it",
		            plan_s(g->p, g->p->values.at[s->object].name));
	br_tensor **args = mem_alloc((s->nargs + s->nresults + 1) * sizeof *args), **results = args + s->nargs;
	TRY_MEM(args);
	for (uint32_t i = 0; i < s->nargs; i++) {
		uint32_t slot = g->slots_of.at[s->args + i];
		args[i] = slot == NONE ? NULL : f->slots[slot];
	}
	pool_run *memory = pool_suspend(); /* Python keeps what it likes */
	clv_status st = r->python(r->python_ctx, s->object, args, s->nargs, results, s->nresults);
	pool_resume(memory);
	for (uint32_t i = 0; st == CLV_OK && i < s->nresults; i++) {
		uint32_t slot = g->slots_of.at[s->results + i];
		if (slot == NONE)
			br_unref(results[i]);
		else
			f->slots[slot] = results[i];
	}
	mem_free(args);
	return st;
}

static clv_status read_symbol(const clv_program *g, const data_read *d, frame *f)
{
	const symbol *s = &g->p->symbols.at[d->symbol];
	int64_t v = -1;
	br_meta m;
	if (d->host != NONE) {
		v = f->hosts[d->host].kind == BR_INT ? f->hosts[d->host].u.i : -1;
	} else {
		const br_tensor *t = f->slots[g->slot[d->value]];
		if (t)
			TRY(br_meta_get(t, &m));
		if (t && m.sizes && d->dim < m.ndim)
			v = m.sizes[d->dim];
	}
	if (v < s->lo || v > s->hi)
		return fail(
			CLV_E_GUARD,
			"the forward reads %lld from the data (%s of the plan); the plan was proven for %lld to %lld, beyond "
			"that it may branch",
			(long long)v, plan_s(g->p, s->name), (long long)s->lo, (long long)s->hi);
	f->symbols[d->symbol] = v;
	return CLV_OK;
}

/* What a step read from data becomes numbers of later steps. */
static clv_status keep_data(const clv_program *g, const step *s, frame *f)
{
	static const uint8_t kinds[] = {[TYPE_BOOL] = BR_BOOL, [TYPE_INT] = BR_INT, [TYPE_FLOAT] = BR_FLOAT};
	for (uint32_t i = 0; i < s->nkeeps; i++) {
		const host_keep *k = &g->keeps.at[s->keeps + i];
		if (f->hosts[k->host].kind != kinds[g->p->values.at[g->numbers.at[k->number].id].type])
			return fail(CLV_E_GUARD, "the result is a number of another type than the plan has");
		f->numbers[k->number] = f->hosts[k->host];
	}
	for (uint32_t i = 0; i < s->nreads; i++)
		TRY(read_symbol(g, &g->reads.at[s->reads + i], f));
	return s->nreads ? eval_numbers(g, f, true) : CLV_OK;
}

clv_status step_checks(const clv_program *g, const step *s, frame *f)
{
	clv_status st = s->kind == STEP_GUARD_EQUAL ? run_guard_equal(g, s, f) : CLV_OK;
	if (st == CLV_OK && (s->nreads || s->nkeeps))
		st = keep_data(g, s, f);
	return st == CLV_OK && s->nchecks ? run_checks(g, s, f) : st;
}

/* The tensors of the model that a segment reads, and what counts writes of them, in room for both; NULL: nobody asks for them. */
static clv_status find_externals(const clv_program *g, const step *s, const frame *f, const run_spec *r,
                                 br_tensor ***out)
{
	const view *v = &s->tape->v;
	*out = mem_alloc((2 * v->externals.n + 1) * sizeof **out);
	TRY_MEM(*out);
	for (uint32_t i = 0; i < v->externals.n; i++) {
		uint32_t slot = g->slot[v->externals.at[i]];
		(*out)[i] = f->slots[slot];
		(*out)[v->externals.n + i] = r->counters ? r->counters[slot - g->v.inputs.n] : NULL;
	}
	return CLV_OK;
}

/* What a segment gets, its inputs and externals borrowed. */
static segment_call call_of(const step *s, const frame *f, br_tensor *const *inputs, br_tensor *const *externals)
{
	return (segment_call){.code = s->compiled,
	                      .v = &s->tape->v,
	                      .sizes = f->exprs,
	                      .symbols = f->symbols,
	                      .inputs = inputs,
	                      .externals = externals,
	                      .counters = externals ? externals + s->tape->v.externals.n : NULL};
}

static clv_status run_on(const step *s, const segment_call *c, br_tensor **outputs)
{
	br_modes ambient;
	br_modes_get(&ambient);
	br_modes plain = ambient;
	plain.grad = false;
	memset(plain.autocast, 0, sizeof plain.autocast);
	br_modes_set(&plain, 0);
	clv_status st = code_run_view(s->compiled, c, outputs);
	br_modes_set(&ambient, 0);
	if (st == CLV_OK)
		atomic_fetch_add_explicit(&s->compiled->runs, 1, memory_order_relaxed);
	return st;
}

/* Compiled code has its own casts and no gradients, whatever is on around it. */
static clv_status run_code(const clv_program *g, const step *s, const frame *f, const run_spec *r,
                           br_tensor *const *inputs, br_tensor **outputs)
{
	br_tensor **externals = NULL;
	if (s->compiled->b->live)
		TRY(find_externals(g, s, f, r, &externals));
	segment_call c = call_of(s, f, inputs, externals);
	clv_status st = run_on(s, &c, outputs);
	mem_free(externals);
	return st;
}

static clv_status run_tape(const clv_program *g, const step *s, const frame *f, const run_spec *outer,
                           br_tensor *const *inputs, br_tensor **outputs)
{
	const view *v = &s->tape->v;
	br_tensor **externals = mem_alloc((v->externals.n + 1) * sizeof *externals);
	TRY_MEM(externals);
	for (uint32_t i = 0; i < v->externals.n; i++)
		externals[i] = f->slots[g->slot[v->externals.at[i]]];
	run_spec r = {.inputs = inputs,
	              .externals = externals,
	              .outputs = outputs,
	              .symbols = f->symbols,
	              .grad = outer->grad,
	              .python = outer->python,
	              .python_ctx = outer->python_ctx};
	clv_status st = program_run(s->tape, &r);
	mem_free(externals);
	atomic_fetch_add_explicit(&s->compiled->tape_runs, 1, memory_order_relaxed);
	return st;
}

/* After code that failed. It is not used again where the tape has no trouble with the same inputs. */
static clv_status run_instead(const clv_program *g, const step *s, const frame *f, const run_spec *r,
                              clv_status failure, br_tensor *const *inputs, br_tensor **outputs)
{
	char why[512];
	snprintf(why, sizeof why, "%s", status_message());
	TRY(run_tape(g, s, f, r, inputs, outputs));
	if (fault_of_code(failure))
		code_stop(s->compiled, why);
	return CLV_OK;
}

/* On the tape, and shown to the watcher. */
static clv_status run_watched(const clv_program *g, const step *s, const frame *f, const run_spec *r,
                              br_tensor *const *inputs, br_tensor **outputs)
{
	const view *v = &s->tape->v;
	const char *device = code_device(v);
	int64_t start = clock_nanoseconds();
	TRY(run_tape(g, s, f, r, inputs, outputs));
	clv_status st = br_synchronize(device ? device : "");
	double ms = (double)(clock_nanoseconds() - start) / 1e6;
	br_tensor **externals = NULL;
	if (st == CLV_OK)
		st = find_externals(g, s, f, r, &externals);
	segment_call c = call_of(s, f, inputs, externals);
	c.outputs = outputs;
	c.tape_ms = ms;
	if (st == CLV_OK)
		st = r->watch(r->watch_ctx, &c);
	mem_free(externals);
	for (uint32_t i = 0; st != CLV_OK && i < s->nresults; i++)
		br_unref(outputs[i]);
	return st;
}

/* The tape runs where the code does not serve, where gradients are wanted, and where the code failed. */
static clv_status run_segment(const clv_program *g, const step *s, frame *f, const run_spec *r)
{
	br_tensor *few[16], **inputs = few;
	if (s->nargs + s->nresults > 16 && !(inputs = mem_alloc((s->nargs + s->nresults) * sizeof *inputs)))
		return fail_nomem();
	br_tensor **outputs = inputs + s->nargs;
	for (uint32_t i = 0; i < s->nargs; i++)
		inputs[i] = f->slots[g->slots_of.at[s->args + i]];
	bool plain = (g->inference || !r->grad) && !r->watch && !r->tapes && code_serves(s->compiled, f->symbols);
	clv_status st = plain      ? run_code(g, s, f, r, inputs, outputs)
	                : r->watch ? run_watched(g, s, f, r, inputs, outputs)
	                           : run_tape(g, s, f, r, inputs, outputs);
	if (plain && st != CLV_OK && st != CLV_E_CANCELLED)
		st = run_instead(g, s, f, r, st, inputs, outputs);
	for (uint32_t i = 0; st == CLV_OK && i < s->nresults; i++)
		f->slots[g->slots_of.at[s->results + i]] = outputs[i];
	if (inputs != few)
		mem_free(inputs);
	return st;
}

static void release_after(const clv_program *g, const step *s, frame *f)
{
	for (uint32_t i = 0; i < s->nfrees; i++) {
		uint32_t slot = g->frees.at[s->frees + i];
		br_unref(f->slots[slot]);
		f->slots[slot] = NULL;
	}
}

static clv_status run_step(const clv_program *g, const step *s, frame *f, const run_spec *r)
{
	clv_status st = s->kind == STEP_CALL      ? br_call(s->site, f->slots, f->numbers, f->hosts)
	                : s->kind == STEP_PYTHON  ? run_python(g, s, f, r)
	                : s->kind == STEP_SEGMENT ? run_segment(g, s, f, r)
	                                          : CLV_OK;
	if (st == CLV_OK) {
		st = step_checks(g, s, f);
		f->refused = st == CLV_E_GUARD;
	}
	if (st != CLV_OK)
		return s->kind == STEP_SEGMENT ? st : call_failed_at(g->p, g->names, s->node, st); /* its tape said where */
	release_after(g, s, f);
	return CLV_OK;
}

/* Enters the modes of a context; global flags that the last one set and this one does not go back to the ambient. */
static void enter_context(const clv_program *g, context_id from, context_id to, const br_modes *ambient)
{
	uint32_t left = from == NONE ? 0 : g->p->contexts.at[from].flags_mask;
	if (to == NONE) {
		br_modes_set(ambient, left);
		return;
	}
	const context *c = &g->p->contexts.at[to];
	br_modes m = g->modes[to];
	m.grad = m.grad && ambient->grad && !g->inference;
	m.flags = (ambient->flags & ~c->flags_mask) | (c->flags & c->flags_mask);
	br_modes_set(&m, left | c->flags_mask);
}

/* The device that a node's results are on; "" for none. */
static const char *device_of(const clv_program *g, node_id n)
{
	const node *x = &g->p->nodes.at[n];
	for (uint32_t i = 0; i < x->nresults; i++) {
		const arg *a = &g->p->args.at[x->results + i];
		if (a->kind == ARG_VALUE && g->p->values.at[a->u.v].type == TYPE_TENSOR)
			return plan_s(g->p, g->p->values.at[a->u.v].device);
	}
	return "";
}

/* A device works on its own: it is waited for, so that the time is the step's. */
static clv_status run_timed(const clv_program *g, uint32_t i, frame *f, const run_spec *r)
{
	const step *s = &g->steps.at[i];
	int64_t start = clock_nanoseconds();
	TRY(run_step(g, s, f, r));
	TRY(br_synchronize(device_of(g, s->node)));
	r->times[i] += clock_nanoseconds() - start;
	return CLV_OK;
}

typedef struct size_walk {
	const clv_program *g;
	const frame *f;
	clv_status st;
} size_walk;

static void check_result_size(void *ctx, value_id v)
{
	size_walk *w = ctx;
	const br_tensor *t = w->g->slot[v] == NONE ? NULL : w->f->slots[w->g->slot[v]];
	if (w->st == CLV_OK && w->g->p->values.at[v].type == TYPE_TENSOR && t)
		w->st = limits_check_tensor(br_numel(t), br_itemsize(t));
}

/* A view can have more elements than there is memory: what would go through all of them is not begun. */
static clv_status check_result_sizes(const clv_program *g, const step *s, const frame *f)
{
	size_walk w = {g, f, CLV_OK};
	if (s->kind != STEP_SEGMENT)
		node_each_result(g->p, s->node, check_result_size, &w);
	return w.st == CLV_OK ? CLV_OK : fail_more(w.st, "node %s", node_name(g->names, s->node));
}

/* Global flags belong to the whole process: runs that set some take turns, or one would put back what another has set. A run
   inside of a run has the turn already. */
static pthread_mutex_t flags_turn;
static pthread_once_t flags_once = PTHREAD_ONCE_INIT;
static struct {
	pthread_t thread;
	uint32_t depth, flags; /* of the process, before its first run */
} flags_owner;             /* of flags_turn */

static void flags_new(void)
{
	pthread_mutexattr_t attr;
	pthread_mutexattr_init(&attr);
	pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
	pthread_mutex_init(&flags_turn, &attr);
	pthread_mutexattr_destroy(&attr);
}

/* The thread whose turn it was is not in the child of a fork, unless it made the child. */
static void flags_in_child(void)
{
	bool mine = flags_owner.depth && pthread_equal(flags_owner.thread, pthread_self());
	flags_new();
	for (uint32_t i = 0; mine && i < flags_owner.depth; i++)
		pthread_mutex_lock(&flags_turn);
	if (mine || !flags_owner.depth)
		return;
	br_modes now;
	br_modes_get(&now);
	now.flags = flags_owner.flags;
	br_modes_set(&now, (1u << CTX_FLAG_COUNT) - 1);
	flags_owner.depth = 0;
}

static void flags_init(void)
{
	flags_new();
	(void)pthread_atfork(NULL, NULL, flags_in_child);
}

static void flags_enter(const clv_program *g, br_modes *ambient)
{
	if (g->flags) {
		pthread_once(&flags_once, flags_init);
		pthread_mutex_lock(&flags_turn);
	}
	br_modes_get(ambient);
	if (g->flags && flags_owner.depth++ == 0) {
		flags_owner.thread = pthread_self();
		flags_owner.flags = ambient->flags;
	}
}

static void flags_leave(const clv_program *g)
{
	if (!g->flags)
		return;
	flags_owner.depth--;
	pthread_mutex_unlock(&flags_turn);
}

/* A run on its way through the steps. */
typedef struct walk {
	const clv_program *g;
	frame *f;
	const run_spec *r;
	pool_run *memory;
	bool limited, sized;
	context_id now;
	br_modes ambient;
} walk;

static inline clv_status walk_step(walk *w, uint32_t i)
{
	const clv_program *g = w->g;
	const step *s = &g->steps.at[i];
	if (s->context != w->now) {
		enter_context(g, w->now, s->context, &w->ambient);
		w->now = s->context;
	}
	if (w->memory)
		pool_step(w->memory, i + 1);
	if (w->r->place)
		call_tell_place(g->p, g->names, s->node, w->r->place);
	if (w->limited)
		TRY(limits_check());
	TRY(w->r->times ? run_timed(g, i, w->f, w->r) : run_step(g, s, w->f, w->r));
	return w->sized ? check_result_sizes(g, s, w->f) : CLV_OK;
}

/* from: what another program has done of it; NULL: nothing. *at: the last step that was begun. */
static clv_status run_steps(const clv_program *g, frame *f, const run_spec *r, pool_run *memory, const beginning *from,
                            uint32_t *at)
{
	clv_status st = CLV_OK;
	walk w = {g, f, r, memory, limits_here(), limits_bytes(), NONE, {0}};
	br_kept before;
	if (g->resizes)
		br_keep_sizes(r->inputs, g->v.inputs.n, &before);
	br_autocast saved;
	flags_enter(g, &w.ambient);
	if (g->autocast)
		br_autocast_enter(&saved);
	for (uint32_t i = 0; from && i < from->again.n && st == CLV_OK; i++)
		st = walk_step(&w, from->again.at[i]);
	if (from && st == CLV_OK)
		release_after(g, &g->steps.at[from->joined], f);
	for (uint32_t i = from ? from->joined + 1 : 0; i < g->steps.n && st == CLV_OK; i++) {
		*at = i;
		st = walk_step(&w, i);
	}
	br_modes_set(&w.ambient, w.now == NONE ? 0 : g->p->contexts.at[w.now].flags_mask);
	flags_leave(g);
	if (g->autocast)
		br_autocast_exit(&saved);
	if (g->resizes)
		br_keep_end(&before);
	return st;
}

static void give_outputs(const clv_program *g, const frame *f, br_tensor **outputs, run_number *numbers)
{
	for (uint32_t i = 0; numbers && i < g->out_numbers.n; i++) {
		const br_arg *from = &f->numbers[g->out_numbers.at[i]];
		numbers[i] = from->kind == BR_FLOAT ? (run_number){.real = true, .f = from->u.f} : (run_number){.i = from->u.i};
	}
	for (uint32_t i = 0; i < g->outputs.n; i++)
		outputs[i] = br_ref(f->slots[g->slot[g->outputs.at[i]]]);
}

/* Inputs and externals are borrowed; everything else the frame owns. */
void clear_frame(const clv_program *g, frame *f)
{
	uint32_t borrowed = g->v.inputs.n + g->v.externals.n;
	for (uint32_t i = 0; i < g->cloned.n; i++) {
		uint32_t s = g->slot[g->cloned.at[i]];
		br_unref(f->slots[s]);
		f->slots[s] = NULL;
	}
	for (uint32_t i = borrowed; i < g->nslots; i++)
		if (f->slots[i])
			br_unref(f->slots[i]);
	memset(f->slots, 0, g->nslots * sizeof *f->slots);
}

clv_status program_check_inputs(const clv_program *g, br_tensor *const *inputs)
{
	run_spec r = {.inputs = inputs};
	frame *f = frame_take(g);
	TRY_MEM(f);
	clv_status st = eval_sizes(g, &r, f);
	for (uint32_t i = 0; st == CLV_OK && i < g->v.inputs.n; i++)
		st = check_input(g, f, g->v.inputs.at[i], inputs[i]);
	frame_give(g, f);
	return st;
}

/* What is borrowed goes out of the frame, and the frame back. */
static void frame_unload(const clv_program *g, frame *f)
{
	memset(f->slots, 0, g->nslots * sizeof *f->slots);
	frame_give(g, f);
}

/* A frame with sizes and inputs, all borrowed: everything that can be wrong before the first step has been checked. */
static clv_status frame_load(const clv_program *g, const run_spec *r, frame **out)
{
	frame *f = frame_take(g);
	TRY_MEM(f);
	clv_status st = eval_sizes(g, r, f);
	if (st == CLV_OK)
		st = load_inputs(g, r, f);
	if (st != CLV_OK)
		frame_unload(g, f);
	else
		*out = f;
	return st;
}

clv_status program_check_run(const clv_program *g, const run_spec *r)
{
	frame *f;
	TRY(frame_load(g, r, &f));
	frame_unload(g, f);
	return CLV_OK;
}

/* What gradients need lives on after the run, and what is inside of a transform may. */
static pool_run *enter_pool(const clv_program *g, const run_spec *r, const frame *f)
{
	bool wanted = g->memory && (g->inference || !r->grad) && !r->watch && !br_transforms() && !limits_bytes();
	return wanted ? br_pool_enter(g->memory, f->symbols) : NULL;
}

clv_status program_run_plain(const clv_program *g, const run_spec *r)
{
	frame *f;
	const beginning *from = NULL;
	uint32_t at = 0;
	clv_status st = CLV_OK;
	TRY(frame_load(g, r, &f));
	bool goes_on = r->over && r->over->left;
	if (goes_on)
		st = resume_take(r->over, g, r, f, &from);
	pool_run *memory = st == CLV_OK ? enter_pool(g, r, f) : NULL;
	if (!goes_on)
		st = clone_written(g, r, f);
	f->refused = false;
	if (st == CLV_OK)
		st = run_steps(g, f, r, memory, from, &at);
	if (st == CLV_OK)
		give_outputs(g, f, r->outputs, r->numbers);
	else if (f->refused && r->over && resume_leave(r->over, g, r, f, at, memory))
		return st;
	clear_frame(g, f);
	br_pool_leave(memory, st == CLV_OK && !goes_on);
	frame_give(g, f);
	return st;
}

bool program_is_apart(const clv_program *g, const run_spec *r)
{
	clash found;
	return !g->apart || apart_holds(g->apart, g, r, &found);
}

/* Nothing is moved, merged or compiled, so what shares memory is read and written in the order of the model: unless the plan
   itself is in another order. A copy that is written instead of what came in is seen by nobody else. */
static clv_status run_as_captured(const clv_program *g, const run_spec *r, const clash *found)
{
	char scratch[2][32];
	run_spec mine = *r;
	mine.tapes = true;
	if (g->optimizer)
		optimizer_forget(g->optimizer);
	if (!found->copied && !g->p->moved)
		return program_run_plain(g, &mine);
	if (found->written == NONE)
		return fail_nomem();
	return fail(CLV_E_INPUT,
	            "%s, which this part of the plan writes, and %s share memory and did not at capture; pass copies",
	            input_name(g->p, found->written, scratch[0], sizeof scratch[0]),
	            input_name(g->p, found->other, scratch[1], sizeof scratch[1]));
}

static clv_status run_natively(const clv_program *g, const run_spec *r)
{
	native_turn turn = atomic_load_explicit(&g->turn, memory_order_acquire);
	if (turn == NATIVE_WAITS)
		return program_run_plain(g, r);
	if (r->over && r->over->left)
		return handover_pass(r->over);
	TRY(program_check_run(g, r));
	if (turn == NATIVE_RUNS)
		return native_part_run(g->native, r);
	run_spec mine = *r;
	mine.over = NULL;
	TRY(native_check(&engine_native, g->native, g, &mine));
	atomic_store_explicit(&((clv_program *)g)->turn, NATIVE_RUNS, memory_order_release);
	return CLV_OK;
}

/* What passes made has no gradients, and steps of its own; what it keeps must not come from within a transform. */
static clv_status run_chosen(const clv_program *g, const run_spec *r)
{
	clash found;
	bool alone = (g->inference || !r->grad) && !r->times && !r->watch && !br_transforms();
	if (((alone && g->assumes) || g->p->moved) && g->apart && !apart_holds(g->apart, g, r, &found))
		return run_as_captured(g, r, &found);
	if (alone && g->native)
		return run_natively(g, r);
	return alone && g->optimizer ? optimizer_run(g->optimizer, g, r) : program_run_plain(g, r);
}

static clv_status run_in_team(const clv_program *g, const run_spec *r)
{
	br_team had;
	if (!g->threads)
		return run_chosen(g, r);
	br_team_enter(g->threads, &had);
	clv_status st = run_chosen(g, r);
	br_team_leave(&had);
	return st;
}

/* In a call whose runs go on where others were left. What they changed is taken back when no plan does. */
static clv_status run_in_call(const clv_program *g, const run_spec *r)
{
	handover *h = r->over;
	bool waits = h->left != NULL, notes = g->undo && !r->guards, whole;
	uint32_t taken = h->taken;
	h->passed = waits;
	if (notes) {
		TRY(program_check_run(g, r));
		TRY(resume_note(h, g->undo, r));
	}
	clv_status st = run_in_team(g, r);
	if (waits && h->taken == taken) {
		if (notes)
			resume_forget(h);
	} else if (st == CLV_E_GUARD && !h->left) {
		bool undone = status_details()->undone;
		clv_status put = handover_undo(h, &whole);
		st = put == CLV_OK ? st : put;
		status_details()->undone = undone && put == CLV_OK && whole;
	}
	return st;
}

static clv_status run_undoable(const clv_program *g, const run_spec *r)
{
	undo_log log;
	bool whole = true;
	if (r->over)
		return run_in_call(g, r);
	if (!g->undo || r->guards)
		return run_in_team(g, r);
	TRY(program_check_run(g, r)); /* before copies are made of what may be no tensor of the plan's */
	TRY(undo_begin(g->undo, r, &log));
	clv_status st = run_in_team(g, r);
	if (st == CLV_E_GUARD) {
		clv_status put = undo_run(&log, &whole);
		status_details()->undone &= put == CLV_OK && whole;
		st = put == CLV_OK ? st : put;
	}
	undo_end(&log);
	return st;
}

/* A fence would cut the graph behind an input: who trains puts one before it. */
static bool wants_fence(const run_spec *r, uint32_t i)
{
	const br_tensor *t = r->inputs[i];
	return t && !(r->grad && br_requires_grad(t)) && br_needs_fence(t);
}

/* A stranger's plan must not reach the memory around an input that is part of a larger tensor. */
static clv_status run_fenced(const clv_program *g, const run_spec *r)
{
	uint32_t n = g->v.inputs.n, done = 0;
	br_tensor **inputs = mem_alloc(n * sizeof *inputs);
	clv_status st = inputs ? CLV_OK : fail_nomem();
	for (; done < n && st == CLV_OK; done += st == CLV_OK)
		if (wants_fence(r, done))
			st = br_fence(r->inputs[done], &inputs[done]);
		else
			inputs[done] = br_ref(r->inputs[done]);
	if (st == CLV_OK) {
		run_spec mine = *r;
		mine.inputs = inputs;
		st = run_undoable(g, &mine);
	}
	for (uint32_t i = 0; i < done; i++)
		br_unref(inputs[i]);
	mem_free(inputs);
	return st;
}

clv_status program_run(const clv_program *g, const run_spec *r)
{
	for (uint32_t i = 0; g->untrusted && i < g->v.inputs.n; i++)
		if (wants_fence(r, i))
			return run_fenced(g, r);
	return run_undoable(g, r);
}

/* Packed weights may be laid out for a number of threads. */
clv_status program_prepare(const clv_program *g, const run_spec *r, uint64_t *generation)
{
	br_team had;
	*generation = 0;
	if (!g->optimizer)
		return CLV_OK;
	if (g->threads)
		br_team_enter(g->threads, &had);
	clv_status st = optimizer_prepare(g->optimizer, g, r, generation);
	if (g->threads)
		br_team_leave(&had);
	return st;
}
