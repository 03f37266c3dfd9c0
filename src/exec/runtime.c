/* Runtimes: made from an artifact, run, released. */
#include "exec/optimized.h"
#include "exec/sandbox.h"

#include <string.h>

#include "base/limits.h"
#include "base/options.h"
#include "plan/intern.h"

/* ---- making one ------------------------------------------------------------------------------------------------- */

static const char *const part_names[] = {"all", "prefix", "suffix"};

/* Each half is a runtime of its own, as it would be a file of its own. */
static clv_status check_cuts(const artifact *a, const char *part)
{
	for (uint32_t i = 0; i < a->plans.n; i++)
		if (a->plans.at[i].cut == NONE)
			return fail(CLV_E_INVALID, "the model in this file is not cut: it has no %s", part);
	return artifact_check_apart(a, NULL);
}

static clv_status choose_part(const artifact *a, const char *wanted, runtime_part *out)
{
	const char *part = wanted ? wanted : a->part;
	bool whole = strcmp(a->part, "all") == 0;
	if (strcmp(part, a->part) != 0 && !whole)
		return fail(CLV_E_INVALID, "this file holds the %s of a model, not the %.32s", a->part, part);
	*out = PART_STAGE;
	for (unsigned i = 0; i < 3; i++)
		if (strcmp(part, part_names[i]) == 0)
			*out = (runtime_part)i;
	if (*out == PART_STAGE && whole)
		return fail(CLV_E_INVALID, "there is no part \"%.32s\"; all, prefix and suffix are", part);
	return whole && *out != PART_ALL ? check_cuts(a, part) : CLV_OK;
}

static program_spec range_of(const runtime *r, const artifact_plan *e)
{
	program_spec spec = {.first = e->first, .end = e->end, .inference = true, .untrusted = r->a->file};
	if (r->part == PART_PREFIX)
		spec.end = e->cut;
	if (r->part == PART_SUFFIX)
		spec.first = e->cut;
	return spec;
}

static clv_status find_written_inputs(runtime_plan *e, const bool *written)
{
	const clv_program *g = e->g;
	if (!g->writes_inputs)
		return CLV_OK;
	e->writes = mem_alloc((g->v.inputs.n + 1) * sizeof *e->writes);
	if (!e->writes)
		return fail_nomem();
	for (uint32_t i = 0; i < g->v.inputs.n; i++)
		e->writes[i] = written[g->v.inputs.at[i]];
	for (uint32_t i = 0; i < g->v.inputs.n; i++)
		for (uint32_t k = 0; k < g->cloned.n; k++)
			e->writes[i] &= g->cloned.at[k] != g->v.inputs.at[i];
	return CLV_OK;
}

static clv_status find_written(runtime *r, runtime_plan *e)
{
	const view *v = &e->g->v;
	bool *written;
	TRY(view_written(v, &written));
	for (value_id i = 0; i < v->p->values.n; i++) {
		uint8_t kind = v->p->values.at[i].kind;
		bool outside = kind == VALUE_PARAM || kind == VALUE_BUFFER || kind == VALUE_ATTR || kind == VALUE_CONST;
		r->stateful |= written[i] && outside;
	}
	clv_status st = find_written_inputs(e, written);
	mem_free(written);
	return st;
}

static clv_status add_plan(runtime *r, const artifact_plan *from, const clv_runtime_options *o)
{
	runtime_plan e = {.e = from};
	plan *p = from->p;
	program_spec spec = range_of(r, from);
	optimize_level level;
	TRY(optimize_level_read(o->optimize, &level));
	spec.debug = o->debug;
	spec.optimize = (uint8_t)level;
	spec.threads = o->threads;
	if (r->device[0])
		TRY(plan_retarget(from->p, r->device, &e.moved));
	p = e.moved ? e.moved : p;
	code_list codes = {0};
	clv_status st = runtime_load_codes(r, r->plans.n, &spec, o, &codes);
	spec.codes = codes.at;
	spec.ncodes = codes.n;
	if (st == CLV_OK)
		st = program_new(p, &spec, &e.g);
	vec_free(&codes);
	if (st == CLV_OK) {
		e.noutputs = program_given(e.g) - (e.g->whole ? from->nstores : 0);
		st = vec_push(&r->plans, e);
	}
	if (st != CLV_OK) {
		program_free(e.g);
		plan_free(e.moved);
		return st;
	}
	return find_written(r, &r->plans.at[r->plans.n - 1]);
}

static clv_status read_limits(runtime *r, const clv_runtime_options *o)
{
	if (!(o->timeout >= 0) || o->max_memory < 0)
		return fail(CLV_E_INVALID, "a run may take %g s and %lld bytes: limits are not negative", o->timeout,
		            (long long)o->max_memory);
	if (o->max_memory && !o->sandbox && !br_pool_install())
		return fail(CLV_E_UNSUPPORTED,
		            "memory of runs cannot be limited: another allocator has taken the place of torch's");
	r->timeout = o->timeout;
	r->max_memory = o->max_memory;
	return CLV_OK;
}

/* All that a file will ever have: a call that none of them serves is refused. */
static clv_status offer_plans(runtime *r)
{
	bool taken;
	TRY(dispatch_new(0, &(dispatch_hooks){0}, &r->dispatch));
	for (uint32_t i = 0; i < r->plans.n; i++)
		TRY(dispatch_add(
			r->dispatch,
			&(dispatch_entry){.rank = RANK_MAIN, .name = "", .npoint = DISPATCH_ANY, .payload = &r->plans.at[i]},
			&taken));
	return CLV_OK;
}

/* Of one whose runs are made by another process: nothing is computed here. */
static clv_runtime_options options_here(const clv_runtime_options *o)
{
	clv_runtime_options mine = *o;
	if (o->sandbox) {
		mine.optimize = "none";
		mine.tape_only = true;
		mine.allow_compiled = mine.allow_signed = false;
	}
	return mine;
}

static clv_status fill(runtime *r, const clv_runtime_options *given)
{
	clv_runtime_options here = options_here(given), *o = &here;
	char device[16] = "";
	TRY(choose_part(r->a, o->part, &r->part));
	if (o->device)
		TRY(br_device(o->device, device, sizeof device));
	r->device = arena_str(&r->arena, device);
	r->unproven = o->unproven || r->a->any_size;
	r->any_weights = o->any_weights;
	TRY(read_limits(r, o));
	if (!r->device)
		return fail_nomem();
	for (uint32_t i = 0; i < r->a->plans.n; i++) {
		clv_status st = add_plan(r, &r->a->plans.at[i], o);
		if (st != CLV_OK)
			return i ? fail_more(st, "plan %u", i) : st;
	}
	TRY(offer_plans(r));
	TRY(runtime_load_state(r));
	TRY(runtime_load_weights(r));
	TRY(runtime_describe(r));
	return o->sandbox ? sandbox_new(r, given, &r->sandbox) : CLV_OK;
}

/* Whoever changes weights gets its turn, however many threads run. */
static void init_lock(pthread_rwlock_t *lock)
{
	pthread_rwlockattr_t attr;
	pthread_rwlockattr_init(&attr);
	pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(lock, &attr);
	pthread_rwlockattr_destroy(&attr);
}

clv_status clv_runtime_create(const clv_artifact *a, const clv_runtime_options *options, clv_runtime **out)
{
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	if (!a || !out)
		return fail(CLV_E_INVALID, "clv_runtime_create needs an artifact and a place for the runtime");
	TRY(options_read(&o, sizeof o, options, "clv_runtime_options"));
	TRY(br_team_check(o.threads));
	if (!a->file && !a->ready)
		return fail(CLV_E_INVALID, "the artifact was made and is not ready: artifact_ready finishes it");
	runtime *r = mem_alloc(sizeof *r);
	if (!r)
		return fail_nomem();
	r->a = artifact_ref(a);
	init_lock(&r->lock);
	clv_status st = fill(r, &o);
	if (st == CLV_OK)
		*out = r;
	else
		clv_runtime_free(r);
	return st;
}

void clv_runtime_cancel(clv_runtime *r)
{
	if (r)
		atomic_fetch_add(&r->stops, 1);
}

void clv_runtime_free(clv_runtime *r)
{
	if (!r)
		return;
	sandbox_free(r->sandbox);
	runtime_free_state(r);
	runtime_free_weights(r);
	for (uint32_t i = 0; i < r->plans.n; i++) {
		runtime_plan *e = &r->plans.at[i];
		program_free(e->g);
		plan_free(e->moved);
		mem_free(e->slot);
		mem_free(e->externals);
		mem_free(e->writes);
		vec_free(&e->rebinds);
		vec_free(&e->times);
	}
	runtime_free_codes(r);
	dispatch_free(r->dispatch);
	vec_free(&r->plans);
	vec_free(&r->unbound);
	vec_free(&r->inputs);
	vec_free(&r->outputs);
	pthread_rwlock_destroy(&r->lock);
	arena_free(&r->arena);
	artifact_free(r->a);
	mem_free(r);
}

/* ---- what it is ------------------------------------------------------------------------------------------------- */

static clv_status give_port(const clv_port *from, clv_port *out)
{
	clv_port p = *from;
	return options_write(out, &p, sizeof p, "clv_port");
}

uint32_t clv_runtime_input_count(const clv_runtime *r)
{
	return r ? r->inputs.n : 0;
}

uint32_t clv_runtime_output_count(const clv_runtime *r)
{
	return r ? r->outputs.n : 0;
}

clv_status clv_runtime_input(const clv_runtime *r, uint32_t i, clv_port *out)
{
	return r && out && i < r->inputs.n ? give_port(&r->inputs.at[i], out)
	                                   : fail(CLV_E_INVALID, "clv_runtime_input: there is no input %u", i);
}

clv_status clv_runtime_output(const clv_runtime *r, uint32_t i, clv_port *out)
{
	return r && out && i < r->outputs.n ? give_port(&r->outputs.at[i], out)
	                                    : fail(CLV_E_INVALID, "clv_runtime_output: there is no output %u", i);
}

static bool has_name(const runtime_plan *e, uint32_t external, const char *name)
{
	const plan *p = e->g->p;
	value_id v = e->g->v.externals.at[external];
	if (p->values.at[v].name == NONE || p->values.at[v].kind == VALUE_OBJECT)
		return false;
	bool same = strcmp(plan_s(p, p->values.at[v].name), name) == 0;
	for (uint32_t i = 0; i < p->ties.n && !same; i++)
		same = p->ties.at[i].value == v && strcmp(plan_s(p, p->ties.at[i].name), name) == 0;
	return same;
}

/* Into the state itself, which later runs may change again. Some operators take another way for what requires grad,
   whether gradients are wanted or not. */
static clv_status bind_in(runtime *r, uint32_t i, const char *name, const clv_tensor *t, bool *found)
{
	const runtime_plan *e = &r->plans.at[i];
	for (uint32_t k = 0; k < e->g->v.externals.n; k++) {
		clv_tensor *leaf;
		if (!has_name(e, k, name))
			continue;
		TRY(br_leaf(t, e->g->p->values.at[e->g->v.externals.at[k]].flags & VALUE_TRAINABLE, &leaf));
		br_unref(r->state[e->slot[k]]);
		r->state[e->slot[k]] = leaf;
		runtime_stop_codes(r, i, e->g->v.externals.at[k], OTHER_WEIGHTS);
		*found = true;
	}
	return CLV_OK;
}

static clv_status bind_all(runtime *r, const char *name, const clv_tensor *t, bool *found)
{
	for (uint32_t i = 0; i < r->plans.n; i++)
		TRY(bind_in(r, i, name, t, found));
	return CLV_OK;
}

/* Weights that only another part reads count too. */
static clv_status note_weight(runtime *r, const char *name, const clv_tensor *t, bool *found)
{
	*found |= runtime_knows(r, name);
	r->bound |= *found;
	return *found ? runtime_note_weight(r, name, t) : CLV_OK;
}

clv_status clv_runtime_bind(clv_runtime *r, const char *name, const clv_tensor *t)
{
	clv_tensor *here;
	bool found = false;
	if (!r || !name || !t)
		return fail(CLV_E_INVALID, "clv_runtime_bind: an argument is NULL");
	TRY(br_to_device(t, r->device[0] ? r->device : clv_tensor_device(t), &here));
	pthread_rwlock_wrlock(&r->lock);
	clv_status st = bind_all(r, name, here, &found);
	if (st == CLV_OK)
		st = note_weight(r, name, t, &found);
	runtime_refresh(r);
	if (st == CLV_OK && found && r->sandbox)
		st = sandbox_assign(r->sandbox, name, t);
	pthread_rwlock_unlock(&r->lock);
	br_unref(here);
	if (st != CLV_OK)
		return st;
	return found ? CLV_OK : fail(CLV_E_NOT_FOUND, "the model reads nothing called %.64s", name);
}

/* The state that the file has under this name; NULL: none. */
static clv_tensor *state_named(const runtime *r, const char *name)
{
	uint32_t i = payload_find(r->a->tensors, name);
	return i == NONE ? NULL : r->state[i];
}

static clv_status bind_copy(runtime *r, const named_tensor *x, bool *found)
{
	clv_tensor *here, *own = NULL;
	TRY(br_to_device(x->t, r->device[0] ? r->device : clv_tensor_device(x->t), &here));
	clv_status st = br_clone(here, false, &own);
	if (st == CLV_OK)
		st = bind_all(r, x->name, own, found);
	br_unref(here);
	br_unref(own);
	return st;
}

static clv_status assign_one(runtime *r, const named_tensor *x)
{
	clv_tensor *state = state_named(r, x->name);
	bool found = state;
	TRY(state ? br_copy(x->t, state) : bind_copy(r, x, &found));
	return note_weight(r, x->name, x->t, &found);
}

static clv_status assign_all(runtime *r, const named_tensor *set, uint32_t n)
{
	bool any = false;
	for (uint32_t i = 0; i < n; i++) {
		const clv_tensor *state = state_named(r, set[i].name);
		if (state)
			TRY(br_check_like(state, set[i].t, set[i].name));
		any |= state != NULL;
	}
	TRY(runtime_own_state(r));
	for (uint32_t i = 0; any && i < r->plans.n; i++)
		runtime_stop_codes(r, i, NONE, OTHER_WEIGHTS);
	for (uint32_t i = 0; i < n; i++) {
		TRY(assign_one(r, &set[i]));
		if (r->sandbox)
			TRY(sandbox_assign(r->sandbox, set[i].name, set[i].t));
	}
	return CLV_OK;
}

clv_status runtime_assign(runtime *r, const named_tensor *set, uint32_t n)
{
	pthread_rwlock_wrlock(&r->lock);
	clv_status st = assign_all(r, set, n);
	runtime_refresh(r);
	pthread_rwlock_unlock(&r->lock);
	return st;
}

const char *clv_runtime_unbound(const clv_runtime *r, uint32_t i)
{
	return r && i < r->unbound.n ? r->unbound.at[i] : NULL;
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

/* Whether the plan was recorded at these values of its symbols. */
static bool is_proven(const runtime_plan *e, const int64_t *symbols)
{
	const plan *p = e->g->p;
	uint32_t n = artifact_point_size(p);
	if (n == 0)
		return true;
	for (uint32_t at = 0; at + n <= e->e->points.n; at += n) {
		uint32_t k = 0;
		bool same = true;
		for (uint32_t s = 0; s < p->symbols.n && same; s++)
			if (!p->symbols.at[s].data)
				same = e->e->points.at[at + k++] == symbols[s];
		if (same)
			return true;
	}
	return false;
}

static clv_status not_proven(const runtime_plan *e, const int64_t *symbols)
{
	const plan *p = e->g->p;
	strbuf b = STRBUF_INIT;
	char *text;
	for (uint32_t s = 0; s < p->symbols.n; s++)
		if (!p->symbols.at[s].data)
			strbuf_printf(&b, "%s%s=%lld", b.n ? ", " : "", plan_s(p, p->symbols.at[s].name), (long long)symbols[s]);
	TRY(strbuf_take(&b, &text));
	clv_status st =
		fail(CLV_E_INPUT,
	         "the model was never recorded at %s, so nothing says that it does the same there; save it with these "
	         "sizes (prove=\"all\", or prepare_sizes before save), or allow sizes that are not proven",
	         text);
	mem_free(text);
	return st;
}

static clv_status check_proven(const runtime_plan *e, const run_spec *spec)
{
	if (artifact_point_size(e->g->p) == 0)
		return CLV_OK;
	int64_t few[16], *symbols = few;
	if (e->g->p->symbols.n > 16 && !(symbols = mem_alloc(e->g->p->symbols.n * sizeof *symbols)))
		return fail_nomem();
	clv_status st = program_symbols(e->g, spec, symbols);
	if (st == CLV_OK && !is_proven(e, symbols))
		st = not_proven(e, symbols);
	if (symbols != few)
		mem_free(symbols);
	return st;
}

clv_status runtime_check_sizes(const runtime *r, uint32_t i, const run_spec *spec)
{
	return r->unproven ? CLV_OK : check_proven(&r->plans.at[i], spec);
}

/* A call that looks for its plan. */
typedef struct picking {
	const runtime *r;
	clv_tensor *const *inputs;
	const runtime_plan *made; /* of a suffix: the plan that made the boundary */
	bool proven;              /* only plans that are proven for the sizes */
	serve_fn run;
	void *ctx;
	unsigned runs;
	limits most; /* of the call: all plans together have the time of one run */
} picking;

/* Plans of one file may take different numbers of inputs: it may be crafted. */
static clv_status serves(void *ctx, void *which)
{
	const picking *c = ctx;
	const runtime_plan *e = which;
	run_spec spec = {.inputs = c->inputs};
	if (e->g->v.inputs.n != c->r->inputs.n)
		return CLV_E_INPUT;
	TRY(program_check_inputs(e->g, c->inputs));
	return c->proven ? check_proven(e, &spec) : CLV_OK;
}

/* A sandbox starts its process and waits for its turn beyond that time: it is looked at between plans alone. */
static void call_enter(picking *c)
{
	c->most = (limits){.seconds = c->r->timeout, .stops = &c->r->stops};
	limits_enter(&c->most);
	if (c->r->sandbox)
		limits_leave(&c->most);
}

static void call_leave(picking *c)
{
	if (!c->r->sandbox)
		limits_leave(&c->most);
}

uint32_t runtime_crossing(const clv_program *made, const clv_program *g, uint32_t i)
{
	uint32_t number = value_number(g->p, g->v.inputs.at[i]), n = made->v.inputs.n;
	for (uint32_t k = 0; k < n; k++) {
		uint32_t at = (i + k) % n; /* most are at the same place */
		if (value_number(made->p, made->v.inputs.at[at]) == number)
			return at;
	}
	return NONE;
}

/* What crosses the cut for one plan has all that crosses it for the other, which may be less. */
static clv_status takes_boundary(void *ctx, void *which)
{
	const runtime_plan *made = ((const picking *)ctx)->made, *e = which;
	if (made->e->cut == NONE || made->e->cut != e->e->cut || !plan_same_until(made->e->p, e->e->p, made->e->cut))
		return CLV_E_INPUT;
	for (uint32_t i = 0; i < e->g->v.inputs.n; i++)
		if (runtime_crossing(made->g, e->g, i) == NONE)
			return CLV_E_INPUT;
	return CLV_OK;
}

/* The first plan's objection is the one to show: to the inputs as such, before their sizes. */
static clv_status refuse_inputs(const runtime *r, clv_tensor *const *inputs)
{
	const runtime_plan *e = &r->plans.at[0];
	run_spec spec = {.inputs = inputs};
	TRY(program_check_inputs(e->g, inputs));
	return runtime_check_sizes(r, 0, &spec);
}

static uint32_t number_of(const runtime *r, const void *which)
{
	return (uint32_t)((const runtime_plan *)which - r->plans.at);
}

static clv_status run_picked(void *ctx, void *which)
{
	picking *c = ctx;
	if (c->runs++)
		TRY(limits_over(&c->most));
	return c->run(c->ctx, number_of(c->r, which));
}

static dispatch_call call_of(picking *c)
{
	return (dispatch_call){.query = {.regime = 0, .npoint = DISPATCH_ANY}, .fits = serves, .run = run_picked, .ctx = c};
}

/* Runs the plan that serves, and others where a guard ends it. */
static clv_status serve(picking *c, const dispatch_call *call)
{
	call_enter(c);
	clv_status st = dispatch_serve(c->r->dispatch, call);
	call_leave(c);
	if (st != CLV_E_GUARD || !status_details()->undone)
		return st;
	clv_error_details details = *status_details();
	st = fail(CLV_E_GUARD, "%s; no other plan of the file for these sizes holds for it", status_message());
	*status_details() = details;
	return st;
}

static clv_status check_count(const runtime *r, uint32_t ninputs)
{
	if (ninputs != r->inputs.n)
		return fail(CLV_E_INPUT, "the model takes %u inputs, the call has %u", r->inputs.n, ninputs);
	return CLV_OK;
}

/* Of a file with one plan: the run itself looks at everything but this. */
static clv_status check_only(const runtime *r, clv_tensor *const *inputs)
{
	run_spec spec = {.inputs = inputs};
	return runtime_check_sizes(r, 0, &spec) == CLV_OK ? CLV_OK : refuse_inputs(r, inputs);
}

clv_status runtime_pick(const runtime *r, clv_tensor *const *inputs, uint32_t ninputs, uint32_t *out)
{
	picking c = {.r = r, .inputs = inputs, .proven = true};
	dispatch_call call = call_of(&c);
	void *found = NULL;
	*out = 0;
	TRY(check_count(r, ninputs));
	if (r->plans.n == 1)
		return check_only(r, inputs);
	for (c.proven = true;; c.proven = false) {
		TRY(dispatch_find(r->dispatch, &call, &found));
		if (found || !c.proven || !r->unproven)
			break;
	}
	*out = found ? number_of(r, found) : NONE;
	return found ? CLV_OK : refuse_inputs(r, inputs);
}

clv_status runtime_serve(const runtime *r, clv_tensor *const *inputs, uint32_t ninputs, serve_fn run, void *ctx)
{
	picking c = {.r = r, .inputs = inputs, .proven = true, .run = run, .ctx = ctx};
	dispatch_call call = call_of(&c);
	TRY(check_count(r, ninputs));
	if (r->plans.n == 1) {
		TRY(check_only(r, inputs));
		return run(ctx, 0);
	}
	clv_status st = serve(&c, &call);
	if (st == CLV_E_NOT_FOUND && !c.runs && r->unproven) { /* a plan whose formulas merely reach these sizes */
		c.proven = false;
		st = serve(&c, &call);
	}
	return st == CLV_E_NOT_FOUND && !c.runs ? refuse_inputs(r, inputs) : st;
}

clv_status runtime_serve_suffix(const runtime *r, uint32_t i, serve_fn run, void *ctx)
{
	picking c = {.r = r, .made = &r->plans.at[i], .run = run, .ctx = ctx};
	dispatch_call call = call_of(&c);
	call.first = c.made;
	call.fits = takes_boundary;
	return r->plans.n == 1 ? run(ctx, i) : serve(&c, &call);
}

/* Takes what is re-bound out of the outputs of a run and into the state. */
static void apply_rebinds(runtime *r, const runtime_plan *e, clv_tensor **outputs)
{
	for (uint32_t i = 0; i < e->rebinds.n; i++) {
		const runtime_rebind *b = &e->rebinds.at[i];
		br_unref(r->state[b->slot]);
		r->state[b->slot] = br_ref(outputs[b->output]);
	}
	if (e->rebinds.n)
		runtime_refresh(r);
}

static clv_status run_program(const runtime *r, const runtime_plan *e, run_spec *spec)
{
	if (!r->profiling)
		return program_run(e->g, spec);
	TRY(profile_begin((runtime_plan *)e, &spec->times));
	clv_status st = program_run(e->g, spec);
	if (st != CLV_OK)
		profile_drop((runtime_plan *)e);
	return st;
}

/* A model may give a tensor of its own: the caller may write it, and nobody may write the file. */
static clv_status own_outputs(const runtime_plan *e, clv_tensor **outputs)
{
	clv_status st = CLV_OK;
	for (uint32_t i = 0; i < e->g->outputs.n && st == CLV_OK; i++) {
		clv_tensor *own;
		if (!outputs[i] || !br_is_fixed(outputs[i]))
			continue;
		st = br_clone(outputs[i], false, &own);
		if (st != CLV_OK)
			break;
		br_unref(outputs[i]);
		outputs[i] = own;
	}
	for (uint32_t i = 0; i < e->g->outputs.n && st != CLV_OK; i++)
		br_unref(outputs[i]);
	return st;
}

static clv_status run_locked(const runtime *r, const runtime_plan *e, run_spec *spec)
{
	pthread_rwlock_t *lock = &((runtime *)r)->lock;
	if (r->stateful || r->profiling)
		pthread_rwlock_wrlock(lock);
	else
		pthread_rwlock_rdlock(lock);
	clv_status st = spec->wants_version ? runtime_check_weights(r, *spec->wants_version) : CLV_OK;
	if (spec->version)
		*spec->version = r->weight_version;
	if (st == CLV_OK)
		st = run_program(r, e, spec);
	if (st == CLV_OK && r->stateful)
		apply_rebinds((runtime *)r, e, spec->outputs);
	pthread_rwlock_unlock(lock);
	return st == CLV_OK ? own_outputs(e, spec->outputs) : st;
}

/* Operators that make tensors without being told a dtype take torch's default: files are for f32. */
static clv_status check_default_dtype(void)
{
	br_modes now;
	br_modes_get(&now);
	if (now.default_dtype == DT_F32)
		return CLV_OK;
	return fail(CLV_E_INPUT, "torch's default dtype is %s, files are for f32",
	            now.default_dtype < DT_COUNT ? dtype_name((dtype)now.default_dtype) : "?");
}

clv_status runtime_run_plan(const runtime *r, uint32_t i, const run_spec *given, clv_tensor **outputs)
{
	TRY(check_default_dtype());
	if (r->sandbox)
		return sandbox_run(r, i, given, outputs);
	runtime_plan *e = &((runtime *)r)->plans.at[i];
	uint32_t n = e->g->outputs.n;
	run_spec spec = *given;
	if (r->segments.n)
		atomic_fetch_add_explicit(&e->runs, 1, memory_order_relaxed);
	spec.externals = e->externals;
	spec.outputs = outputs;
	if (n != e->noutputs && !(spec.outputs = mem_alloc((n + 1) * sizeof *spec.outputs)))
		return fail_nomem();
	limits most = {.seconds = r->timeout, .bytes = r->max_memory, .stops = &r->stops};
	limits_enter(&most);
	clv_status st = run_locked(r, e, &spec);
	limits_leave(&most);
	if (spec.outputs == outputs)
		return st;
	if (st == CLV_OK) {
		memcpy(outputs, spec.outputs, e->noutputs * sizeof *outputs);
		for (uint32_t k = e->noutputs; k < n; k++)
			br_unref(spec.outputs[k]);
	}
	mem_free(spec.outputs);
	return st;
}

typedef struct whole_call {
	const runtime *r;
	clv_tensor *const *inputs;
	clv_tensor **outputs;
	uint32_t noutputs;
} whole_call;

static clv_status run_whole(void *ctx, uint32_t i)
{
	const whole_call *c = ctx;
	uint32_t n = c->r->plans.at[i].noutputs;
	if (c->noutputs != n)
		return fail(CLV_E_INPUT, "the model gives %u outputs, the call has room for %u", n, c->noutputs);
	return runtime_run_plan(c->r, i, &(run_spec){.inputs = c->inputs}, c->outputs);
}

clv_status clv_runtime_run(const clv_runtime *r, const clv_tensor *const *inputs, uint32_t ninputs,
                           clv_tensor **outputs, uint32_t noutputs)
{
	if (!r || (ninputs && !inputs) || (noutputs && !outputs))
		return fail(CLV_E_INVALID, "clv_runtime_run: an argument is NULL");
	if (r->part == PART_SUFFIX)
		return fail(CLV_E_INVALID, "this is a suffix: clv_runtime_run_suffix runs it, on the boundary of a prefix");
	whole_call c = {r, (clv_tensor *const *)inputs, outputs, noutputs};
	return runtime_serve(r, c.inputs, ninputs, run_whole, &c);
}

static clv_status report_plan(const runtime *r, uint32_t i, strbuf *b)
{
	if (r->plans.n > 1)
		strbuf_printf(b, "plan %u\n", i);
	return program_report(r->plans.at[i].g, b);
}

clv_status clv_runtime_optimizations(const clv_runtime *r, char **out)
{
	strbuf b = STRBUF_INIT;
	clv_status st = CLV_OK;
	if (!r || !out)
		return fail(CLV_E_INVALID, "clv_runtime_optimizations: an argument is NULL");
	TRY(sandbox_refuses(r, "report on what was optimized"));
	for (uint32_t i = 0; i < r->plans.n && st == CLV_OK; i++)
		st = report_plan(r, i, &b);
	if (st != CLV_OK) {
		strbuf_free(&b);
		return st;
	}
	return strbuf_take(&b, out);
}
