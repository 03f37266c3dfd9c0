/* Runtimes: made from an artifact, run, released. */
#include "runtime/runtime.h"

#include <string.h>

#include "base/limits.h"
#include "base/options.h"
#include "plan/data.h"
#include "plan/intern.h"
#include "runtime/handover.h"
#include "sandbox/sandbox.h"

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

static void range_of(const runtime *r, const artifact_plan *e, node_id *first, node_id *end)
{
	*first = r->part == PART_SUFFIX ? e->cut : e->first;
	*end = r->part == PART_PREFIX ? e->cut : e->end;
}

/* Inputs of a part that are no inputs of the plan belong to whoever made them: a run works on copies of those that it
   writes. */
static clv_status find_written_inputs(runtime_plan *e, const bool *written)
{
	const view *v = &e->of.v;
	e->writes = mem_alloc((v->inputs.n + 1) * sizeof *e->writes);
	TRY_MEM(e->writes);
	for (uint32_t i = 0; i < v->inputs.n; i++)
		e->writes[i] = written[v->inputs.at[i]] && v->p->values.at[v->inputs.at[i]].kind == VALUE_INPUT;
	return CLV_OK;
}

static clv_status find_written(runtime *r, runtime_plan *e)
{
	const view *v = &e->of.v;
	bool *written, inputs = false;
	TRY(view_written(v, &written));
	for (value_id i = 0; i < v->p->values.n; i++) {
		uint8_t kind = v->p->values.at[i].kind;
		bool outside = kind == VALUE_PARAM || kind == VALUE_BUFFER || kind == VALUE_ATTR || kind == VALUE_CONST;
		r->stateful |= written[i] && outside;
		inputs |= written[i] && kind == VALUE_INPUT;
	}
	clv_status st = inputs ? find_written_inputs(e, written) : CLV_OK;
	mem_free(written);
	return st;
}

static bool guards_from(const plan *p, node_id first)
{
	while (first < p->nodes.n && !node_guards(p, first))
		first++;
	return first < p->nodes.n;
}

static clv_status lower(runtime *r, runtime_plan *e, const clv_runtime_options *o)
{
	engine_order order = {.a = r->a, .number = r->plans.n - 1, .of = &e->of, .device = r->device, .o = o};
	range_of(r, e->e, &order.first, &order.end);
	TRY(plan_part_new(e->moved ? e->moved : e->e->p, order.first, order.end, &e->of));
	e->asks = order.first == 0 && (e->e->same.n || e->e->grads.n);
	e->noutputs = e->of.outputs.n - e->of.v.rebinds.n - (e->of.whole ? e->e->nstores : 0);
	r->in_order |= r->part == PART_PREFIX && guards_from(e->e->p, order.end);
	TRY(find_written(r, e));
	return r->apart ? CLV_OK : r->engine->lower(&order, &e->program);
}

static clv_status add_plan(runtime *r, const artifact_plan *from, const clv_runtime_options *o)
{
	TRY(vec_push(&r->plans, (runtime_plan){.e = from}));
	runtime_plan *e = &r->plans.at[r->plans.n - 1];
	if (r->device[0])
		TRY(plan_retarget(from->p, r->device, &e->moved));
	return lower(r, e, o);
}

static clv_status read_limits(runtime *r, const clv_runtime_options *o)
{
	if (!(o->timeout >= 0) || o->max_memory < 0)
		return fail(CLV_E_INVALID, "a run may take %g s and %lld bytes: limits are not negative", o->timeout,
		            (long long)o->max_memory);
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

/* ---- sandboxes --------------------------------------------------------------------------------------------------- */

/* In another process: as asked for, and by default what nobody vouches for. Who allows machine code of a file trusts it. */
static clv_status choose_sandbox(runtime *r, const clv_runtime_options *o)
{
	if (o->sandbox > CLV_SANDBOX_OFF)
		return fail(CLV_E_INVALID, "clv_runtime_options.sandbox is %u; it is CLV_SANDBOX_AUTO, _ON or _OFF",
		            o->sandbox);
	r->unasked = o->sandbox == CLV_SANDBOX_AUTO && artifact_unvouched(r->a) && !o->allow_compiled;
	r->apart = r->unasked || o->sandbox == CLV_SANDBOX_ON;
	return r->apart ? artifact_settle(r->a) : CLV_OK;
}

/* Nothing is computed here. */
static clv_runtime_options options_here(const clv_runtime_options *o)
{
	clv_runtime_options mine = *o;
	mine.optimize = "none";
	mine.tape_only = true;
	mine.allow_compiled = mine.allow_signed = false;
	mine.max_memory = 0;
	return mine;
}

static clv_status open_sandbox(runtime *r, const clv_runtime_options *given)
{
	clv_runtime_options o = *given;
	clv_status st;
	if (r->unasked)
		o.allow_signed = false; /* it is not signed */
	if (r->engine->sandbox)
		st = sandbox_new(r, &o, &r->sandbox);
	else
		st = fail(CLV_E_UNSUPPORTED, "the engine %s runs nothing in a sandbox", r->engine->name);
	bool impossible = st == CLV_E_UNSUPPORTED || st == CLV_E_NOT_FOUND || st == CLV_E_IO || st == CLV_E_INVALID;
	return r->unasked && impossible
	           ? fail_unvouched(r->a, fail_more(st, "so it runs in a sandbox, and there can be none"))
	           : st;
}

bool runtime_draws(const runtime *r)
{
	for (uint32_t i = 0; i < r->plans.n; i++)
		if (view_draws(&r->plans.at[i].of.v))
			return true;
	return false;
}

clv_status runtime_needs_here(const runtime *r, const char *what)
{
	if (!r->apart)
		return CLV_OK;
	if (!r->unasked)
		return fail(CLV_E_UNSUPPORTED, "the model runs in a sandbox, another process: there is no %s of it here", what);
	return fail_unvouched(r->a,
	                      fail(CLV_E_UNSUPPORTED, "so it runs in a sandbox, and there is no %s of it here", what));
}

/* ---- making one, continued --------------------------------------------------------------------------------------- */

static clv_status read_device(const engine *e, const char *text, char *out)
{
	if (e->tensors)
		return e->tensors->device(text, out);
	if (strcmp(text, "cpu") != 0)
		return fail(CLV_E_INVALID, "the engine %s runs on cpu, not on \"%.32s\"", e->name, text);
	memcpy(out, text, strlen(text) + 1);
	return CLV_OK;
}

static clv_status fill(runtime *r, const clv_runtime_options *given)
{
	clv_runtime_options here = *given, *o = &here;
	char device[DEVICE_TEXT] = "";
	if (!r->engine)
		TRY(engine_choose(o->engine, r->a, &r->engine));
	TRY(read_limits(r, o));
	TRY(choose_sandbox(r, o));
	if (r->apart)
		here = options_here(given);
	TRY(choose_part(r->a, o->part, &r->part));
	if (r->engine->accepts)
		TRY(r->engine->accepts(o));
	if (o->device)
		TRY(read_device(r->engine, o->device, device));
	r->device = arena_str(&r->arena, device);
	r->unproven = o->unproven || r->a->any_size;
	r->any_weights = o->any_weights;
	TRY_MEM(r->device);
	for (uint32_t i = 0; i < r->a->plans.n; i++) {
		clv_status st = add_plan(r, &r->a->plans.at[i], o);
		if (st != CLV_OK)
			return i ? fail_more(st, "plan %u", i) : st;
	}
	TRY(offer_plans(r));
	TRY(runtime_load_state(r));
	TRY(runtime_load_weights(r));
	TRY(runtime_describe(r));
	return r->apart ? open_sandbox(r, given) : CLV_OK;
}

/* Writers of weights are not starved by running threads. */
static void init_lock(pthread_rwlock_t *lock)
{
	pthread_rwlockattr_t attr;
	pthread_rwlockattr_init(&attr);
	pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(lock, &attr);
	pthread_rwlockattr_destroy(&attr);
}

clv_status runtime_create_on(const artifact *a, const clv_runtime_options *o, const engine *e, runtime **out)
{
	runtime *r = mem_alloc(sizeof *r);
	TRY_MEM(r);
	r->a = artifact_ref(a);
	r->engine = e;
	init_lock(&r->lock);
	clv_status st = fill(r, o);
	if (st == CLV_OK)
		*out = r;
	else
		clv_runtime_free(r);
	return st;
}

clv_status runtime_options_keep(arena *a, const clv_runtime_options *given, clv_runtime_options *out)
{
	*out = (clv_runtime_options)CLV_RUNTIME_OPTIONS_INIT;
	TRY(options_read(out, sizeof *out, given, "clv_runtime_options"));
	TRY(arena_keep(a, out->device, &out->device));
	TRY(arena_keep(a, out->part, &out->part));
	TRY(arena_keep(a, out->optimize, &out->optimize));
	return arena_keep(a, out->engine, &out->engine);
}

clv_status clv_runtime_create(const clv_artifact *a, const clv_runtime_options *options, clv_runtime **out)
{
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	if (!a || !out)
		return fail(CLV_E_INVALID, "clv_runtime_create needs an artifact and a place for the runtime");
	TRY(options_read(&o, sizeof o, options, "clv_runtime_options"));
	if (!a->file && !a->ready)
		return fail(CLV_E_INVALID, "the artifact was made and is not ready: artifact_ready finishes it");
	if (a->training)
		return fail(CLV_E_INVALID, "the file is for training: clv_trainer_create() runs it, and one written by "
		                           "SplitRuntime.save is for inference");
	return runtime_create_on(a, &o, NULL, out);
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
		r->engine->release(e->program);
		plan_part_free(&e->of);
		node_names_free(e->names);
		plan_free(e->moved);
		mem_free(e->slot);
		mem_free(e->externals);
		mem_free(e->writes);
		vec_free(&e->rebinds);
		vec_free(&e->times);
		vec_free(&e->outputs);
	}
	dispatch_free(r->dispatch);
	vec_free(&r->plans);
	vec_free(&r->unbound);
	vec_free(&r->inputs);
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
	return r ? r->plans.at[0].outputs.n : 0;
}

clv_status clv_runtime_input(const clv_runtime *r, uint32_t i, clv_port *out)
{
	return r && out && i < r->inputs.n ? give_port(&r->inputs.at[i], out)
	                                   : fail(CLV_E_INVALID, "clv_runtime_input: there is no input %u", i);
}

clv_status clv_runtime_output(const clv_runtime *r, uint32_t i, clv_port *out)
{
	return r && out && i < clv_runtime_output_count(r)
	           ? give_port(&r->plans.at[0].outputs.at[i], out)
	           : fail(CLV_E_INVALID, "clv_runtime_output: there is no output %u", i);
}

uint32_t clv_runtime_plan_output_count(const clv_runtime *r, uint32_t which)
{
	return r && which < r->plans.n ? r->plans.at[which].outputs.n : 0;
}

clv_status clv_runtime_plan_output(const clv_runtime *r, uint32_t which, uint32_t i, clv_port *out)
{
	return out && i < clv_runtime_plan_output_count(r, which)
	           ? give_port(&r->plans.at[which].outputs.at[i], out)
	           : fail(CLV_E_INVALID, "clv_runtime_plan_output: there is no output %u of plan %u", i, which);
}

uint32_t clv_runtime_most_outputs(const clv_runtime *r)
{
	uint32_t most = 0;
	for (uint32_t i = 0; r && i < r->plans.n; i++)
		most = r->plans.at[i].outputs.n > most ? r->plans.at[i].outputs.n : most;
	return most;
}

/* The tensor that has this name, or is tied to it; NONE: there is none. */
static value_id tensor_named(const plan *p, const char *name)
{
	for (value_id v = 0; v < p->values.n; v++)
		if (is_module_tensor(p->values.at[v].kind) && strcmp(plan_s(p, p->values.at[v].name), name) == 0)
			return v;
	for (uint32_t i = 0; i < p->ties.n; i++)
		if (strcmp(plan_s(p, p->ties.at[i].name), name) == 0)
			return p->ties.at[i].value;
	return NONE;
}

void runtime_changed(runtime *r, uint32_t i, value_id external, const char *why)
{
	if (r->engine->changed && r->plans.at[i].program)
		r->engine->changed(r->plans.at[i].program, external, why);
}

static clv_status leaf(const runtime *r, const clv_tensor *t, bool requires_grad, clv_tensor **out)
{
	if (r->engine->tensors)
		return r->engine->tensors->leaf(t, requires_grad, out);
	*out = tensor_ref(t);
	return CLV_OK;
}

/* Into the state itself, which later runs may change again. Some operators take another way for what requires grad,
   whether gradients are wanted or not. */
static clv_status bind_in(runtime *r, uint32_t i, const char *name, const clv_tensor *t, bool *found)
{
	const runtime_plan *e = &r->plans.at[i];
	value_id v = tensor_named(e->of.p, name);
	for (uint32_t k = 0; v != NONE && k < e->of.v.externals.n; k++) {
		clv_tensor *own;
		if (e->of.v.externals.at[k] != v)
			continue;
		TRY(leaf(r, t, e->of.p->values.at[e->of.v.externals.at[k]].flags & VALUE_TRAINABLE, &own));
		clv_tensor_free(r->state[e->slot[k]]);
		r->state[e->slot[k]] = own;
		runtime_changed(r, i, e->of.v.externals.at[k], OTHER_WEIGHTS);
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
	TRY(clv_tensor_to_device(t, r->device[0] ? r->device : t->device, &here));
	pthread_rwlock_wrlock(&r->lock);
	clv_status st = bind_all(r, name, here, &found);
	if (st == CLV_OK)
		st = note_weight(r, name, t, &found);
	if (st == CLV_OK)
		st = runtime_refresh(r);
	if (st == CLV_OK && found && r->sandbox)
		st = sandbox_assign(r->sandbox, name, t);
	pthread_rwlock_unlock(&r->lock);
	clv_tensor_free(here);
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
	TRY(clv_tensor_to_device(x->t, r->device[0] ? r->device : x->t->device, &here));
	clv_status st = engine_clone(r->engine, here, &own);
	if (st == CLV_OK)
		st = bind_all(r, x->name, own, found);
	clv_tensor_free(here);
	clv_tensor_free(own);
	return st;
}

static clv_status assign_one(runtime *r, const named_tensor *x)
{
	clv_tensor *state = state_named(r, x->name);
	bool found = state;
	TRY(state ? engine_write(r->engine, x->t, state) : bind_copy(r, x, &found));
	return note_weight(r, x->name, x->t, &found);
}

static clv_status assign_all(runtime *r, const named_tensor *set, uint32_t n)
{
	bool any = false;
	for (uint32_t i = 0; i < n; i++) {
		const clv_tensor *state = state_named(r, set[i].name);
		if (state)
			TRY(tensor_check_like(state, set[i].t, set[i].name));
		any |= state != NULL;
	}
	TRY(runtime_own_state(r));
	for (uint32_t i = 0; any && i < r->plans.n; i++)
		runtime_changed(r, i, NONE, OTHER_WEIGHTS);
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
	clv_status bound = runtime_refresh(r);
	pthread_rwlock_unlock(&r->lock);
	return st == CLV_OK ? bound : st;
}

const char *clv_runtime_unbound(const clv_runtime *r, uint32_t i)
{
	return r && i < r->unbound.n ? r->unbound.at[i] : NULL;
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

/* Whether the plan was recorded at these values of its symbols. */
static bool is_proven(const runtime_plan *e, const int64_t *symbols)
{
	const plan *p = e->of.p;
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
	const plan *p = e->of.p;
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
	detail(seen, "%s", text);
	mem_free(text);
	return st;
}

static clv_status check_proven(const runtime_plan *e, const run_call *call)
{
	if (artifact_point_size(e->of.p) == 0)
		return CLV_OK;
	int64_t few[16], *symbols = few;
	if (e->of.p->symbols.n > 16 && !(symbols = mem_alloc(e->of.p->symbols.n * sizeof *symbols)))
		return fail_nomem();
	clv_status st = call_symbols(&e->of.v, call->inputs, call->symbols, symbols);
	if (st == CLV_OK && !is_proven(e, symbols))
		st = not_proven(e, symbols);
	if (symbols != few)
		mem_free(symbols);
	return st;
}

clv_status runtime_check_sizes(const runtime *r, uint32_t i, const run_call *call)
{
	return r->unproven ? CLV_OK : check_proven(&r->plans.at[i], call);
}

/* The first of these inputs that is the same tensor as number i. */
static uint32_t first_same(clv_tensor *const *inputs, uint32_t i)
{
	uint32_t first = 0;
	while (!tensor_is_same(inputs[first], inputs[i]))
		first++;
	return first;
}

static clv_status check_same(const runtime_plan *e, clv_tensor *const *inputs, uint32_t i)
{
	char scratch[2][32];
	const plan *p = e->of.p;
	uint32_t first = first_same(inputs, i), was = e->e->same.at[i];
	if (first == was)
		return CLV_OK;
	uint32_t other = first == i ? was : first;
	return fail(CLV_E_LAYOUT,
	            "inputs %s and %s %s, and were not when this plan was recorded, whose forward may ask whether they are",
	            input_name(p, p->inputs.at[other], scratch[0], sizeof scratch[0]),
	            input_name(p, p->inputs.at[i], scratch[1], sizeof scratch[1]),
	            first == i ? "are two tensors" : "are one and the same tensor");
}

static clv_status check_asked(const runtime_plan *e, clv_tensor *const *inputs)
{
	char scratch[32];
	const artifact_plan *a = e->e;
	for (uint32_t i = 0; i < a->same.n; i++)
		TRY(check_same(e, inputs, i));
	for (uint32_t i = 0; i < a->grads.n; i++)
		if (a->grads.at[i] >= 0 && inputs[i] && inputs[i]->requires_grad != a->grads.at[i])
			return fail(CLV_E_LAYOUT,
			            "input %s %s grad, for which the forward asks, and %s when this plan was recorded",
			            input_name(e->of.p, e->of.p->inputs.at[i], scratch, sizeof scratch),
			            a->grads.at[i] ? "does not require" : "requires", a->grads.at[i] ? "did" : "did not");
	return CLV_OK;
}

/* A part that begins later gets no inputs of the model: the part before it has looked. */
clv_status runtime_check_asked(const runtime *r, uint32_t i, clv_tensor *const *inputs)
{
	const runtime_plan *e = &r->plans.at[i];
	return e->asks ? check_asked(e, inputs) : CLV_OK;
}

static uint32_t number_of(const runtime *r, const void *which)
{
	return (uint32_t)((const runtime_plan *)which - r->plans.at);
}

/* A call that looks for its plan. */
typedef struct picking {
	const runtime *r;
	clv_tensor *const *inputs;
	const runtime_plan *made; /* of a suffix: the plan that made the boundary, and what that says of itself */
	const boundary_facts *got;
	bool proven; /* only plans that are proven for the sizes */
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
	run_call call = {.inputs = c->inputs};
	if (e->of.v.inputs.n != c->r->inputs.n)
		return CLV_E_INPUT;
	TRY(inputs_check(&e->of.v, c->inputs, NULL));
	if (e->asks)
		TRY(check_asked(e, c->inputs));
	return c->proven ? check_proven(e, &call) : CLV_OK;
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

/* Whether input i of a suffix crosses the cut of the plan that made the boundary. */
static bool crosses(const runtime_plan *made, const runtime_plan *e, uint32_t i)
{
	uint32_t number = value_number(e->of.p, e->of.v.inputs.at[i]), n = made->of.v.inputs.n;
	for (uint32_t k = 0; k < n; k++) /* most are at the same place */
		if (value_number(made->of.p, made->of.v.inputs.at[(i + k) % n]) == number)
			return true;
	return false;
}

static int64_t size_named(const boundary_facts *got, const char *name)
{
	for (uint32_t i = 0; i < got->nsizes; i++)
		if (strcmp(got->sizes[i].name, name) == 0)
			return got->sizes[i].value;
	return -1;
}

bool runtime_sizes(const runtime *r, uint32_t i, const boundary_facts *got, int64_t *out)
{
	const plan *p = r->plans.at[i].of.p;
	bool fit = true;
	for (uint32_t k = 0; k < p->symbols.n; k++) {
		const symbol *s = &p->symbols.at[k];
		out[k] = s->data ? -1 : size_named(got, plan_s(p, s->name));
		if (out[k] < 0 && s->lo == s->hi && !s->data)
			out[k] = s->lo;
		fit &= s->data || (out[k] >= s->lo && out[k] <= s->hi);
	}
	return fit;
}

/* Whether both plans are for inputs that are the same to each other. */
static bool asks_same(const artifact_plan *a, const artifact_plan *b)
{
	return a->same.n == b->same.n && a->grads.n == b->grads.n &&
	       (a->same.n == 0 || !memcmp(a->same.at, b->same.at, a->same.n * sizeof *a->same.at)) &&
	       (a->grads.n == 0 || !memcmp(a->grads.at, b->grads.at, a->grads.n * sizeof *a->grads.at));
}

typedef struct two_plans {
	const runtime *r;
	uint32_t a, b;
} two_plans;

/* A file has equal constants once, and those of its own part alone. */
static bool same_const(void *ctx, value_id a, value_id b)
{
	const two_plans *p = ctx;
	uint32_t tensor = artifact_tensor_of(p->r->a, p->a, a);
	return tensor != NONE && tensor == artifact_tensor_of(p->r->a, p->b, b);
}

/* At the sizes of the boundary, the plan does up to the cut what the one that made it has done. */
static clv_status takes_sizes(const picking *c, const runtime_plan *e, int64_t *mine, int64_t *theirs)
{
	two_plans both = {c->r, number_of(c->r, c->made), number_of(c->r, e)};
	bool same = false;
	(void)runtime_sizes(c->r, both.a, c->got, theirs);
	if (runtime_sizes(c->r, both.b, c->got, mine) && (!c->proven || is_proven(e, mine)))
		TRY(plan_same_at(c->made->e->p, theirs, e->e->p, mine, c->made->e->cut, same_const, &both, &same));
	return same ? CLV_OK : CLV_E_INPUT;
}

/* What crosses the cut for one plan has all that crosses it for the other, which may be less. */
static clv_status takes_boundary(void *ctx, void *which)
{
	const picking *c = ctx;
	const runtime_plan *made = c->made, *e = which;
	if (made->e->cut == NONE || made->e->cut != e->e->cut || !asks_same(made->e, e->e))
		return CLV_E_INPUT;
	for (uint32_t i = 0; i < e->of.v.inputs.n; i++)
		if (!crosses(made, e, i))
			return CLV_E_INPUT;
	uint32_t n = e->of.p->symbols.n;
	int64_t *sizes = mem_alloc((n + made->of.p->symbols.n + 1) * sizeof *sizes);
	clv_status st = sizes ? takes_sizes(c, e, sizes, sizes + n) : fail_nomem();
	mem_free(sizes);
	return st;
}

/* The first plan's objection is the one to show: to the inputs as such, before their sizes. */
static clv_status refuse_inputs(const runtime *r, clv_tensor *const *inputs)
{
	const runtime_plan *e = &r->plans.at[0];
	run_call call = {.inputs = inputs};
	TRY(inputs_check(&e->of.v, inputs, NULL));
	TRY(runtime_check_asked(r, 0, inputs));
	return runtime_check_sizes(r, 0, &call);
}

static clv_status run_picked(void *ctx, void *which)
{
	picking *c = ctx;
	if (c->runs++)
		TRY(limits_over(&c->most));
	return c->run(c->ctx, number_of(c->r, which));
}

/* Runs of a model with state are each alone with it, and others may come between two of them. */
static bool goes_on(const runtime *r)
{
	bool all = r->engine->goes_on && !r->apart && !r->stateful;
	for (uint32_t i = 0; all && i < r->plans.n; i++)
		all = r->engine->goes_on(r->plans.at[i].program);
	return all;
}

static dispatch_call call_of(picking *c)
{
	return (dispatch_call){.query = {.regime = 0, .npoint = DISPATCH_ANY},
	                       .in_order = c->r->in_order,
	                       .hands_over = goes_on(c->r),
	                       .fits = serves,
	                       .run = run_picked,
	                       .ctx = c};
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
	run_call call = {.inputs = inputs};
	bool fits = runtime_check_sizes(r, 0, &call) == CLV_OK && runtime_check_asked(r, 0, inputs) == CLV_OK;
	return fits ? CLV_OK : refuse_inputs(r, inputs);
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

/* Of the plan that made the boundary. */
static clv_status check_sizes(const picking *c)
{
	const plan *p = c->made->of.p;
	int64_t *sizes = mem_alloc((p->symbols.n + 1) * sizeof *sizes);
	TRY_MEM(sizes);
	(void)runtime_sizes(c->r, number_of(c->r, c->made), c->got, sizes);
	clv_status st = !c->proven || is_proven(c->made, sizes) ? CLV_OK : not_proven(c->made, sizes);
	mem_free(sizes);
	return st;
}

clv_status runtime_serve_suffix(const runtime *r, const boundary_facts *got, int64_t weight_version, serve_fn run,
                                void *ctx)
{
	uint32_t i;
	TRY(runtime_find_boundary(r, got, weight_version, &i));
	picking c = {.r = r, .made = &r->plans.at[i], .got = got, .proven = !r->unproven, .run = run, .ctx = ctx};
	dispatch_call call = call_of(&c);
	clv_status st = check_sizes(&c);
	if (r->plans.n == 1)
		return st == CLV_OK ? run(ctx, i) : st;
	call.first = st == CLV_OK ? c.made : NULL;
	call.fits = takes_boundary;
	st = st == CLV_E_NOMEM ? st : serve(&c, &call);
	return st == CLV_E_NOT_FOUND && !c.runs ? check_sizes(&c) : st;
}

/* Takes what is re-bound out of the outputs of a run and into the state. */
static clv_status apply_rebinds(runtime *r, const runtime_plan *e, clv_tensor **outputs)
{
	for (uint32_t i = 0; i < e->rebinds.n; i++) {
		const runtime_rebind *b = &e->rebinds.at[i];
		clv_tensor_free(r->state[b->slot]);
		r->state[b->slot] = tensor_ref(outputs[b->output]);
	}
	return e->rebinds.n ? runtime_refresh(r) : CLV_OK;
}

static clv_status run_program(const runtime *r, const runtime_plan *e, run_call *call, clv_tensor **outputs)
{
	if (!r->profiling)
		return r->engine->run(e->program, call, outputs);
	TRY(profile_begin(r, (runtime_plan *)e, &call->times));
	clv_status st = r->engine->run(e->program, call, outputs);
	if (st != CLV_OK)
		profile_drop(r, (runtime_plan *)e);
	return st;
}

/* Other runs may come between this one and the next: it is not left, and goes on with none. */
static clv_status run_stateful(const runtime *r, const runtime_plan *e, run_call *call, clv_tensor **outputs)
{
	handover *h = handover_enter();
	clv_status st = h && h->left ? handover_pass(h) : run_program(r, e, call, outputs);
	handover_leave(h);
	return st;
}

static clv_status run_locked(const runtime *r, const runtime_plan *e, run_call *call, clv_tensor **outputs)
{
	pthread_rwlock_t *lock = &((runtime *)r)->lock;
	if (r->stateful || r->profiling)
		pthread_rwlock_wrlock(lock);
	else
		pthread_rwlock_rdlock(lock);
	clv_status st = call->wants_version ? runtime_check_weights(r, *call->wants_version) : CLV_OK;
	if (call->version)
		*call->version = r->weight_version;
	if (st == CLV_OK)
		st = r->stateful ? run_stateful(r, e, call, outputs) : run_program(r, e, call, outputs);
	if (st == CLV_OK && r->stateful) {
		st = apply_rebinds((runtime *)r, e, outputs);
		for (uint32_t i = 0; i < e->of.outputs.n && st != CLV_OK; i++)
			clv_tensor_free(outputs[i]);
	}
	pthread_rwlock_unlock(lock);
	return st;
}

int64_t runtime_made(const runtime_plan *e, const run_call *c)
{
	int64_t n = c->made;
	for (uint32_t i = 0; i < e->of.v.inputs.n; i++)
		n += c->inputs[i] && c->inputs[i]->made ? (int64_t)c->inputs[i]->extent : 0;
	return n;
}

clv_status runtime_run_plan(const runtime *r, uint32_t i, const run_call *given, clv_tensor **outputs)
{
	if (r->sandbox)
		return sandbox_run(r, i, given, outputs);
	const runtime_plan *e = &r->plans.at[i];
	uint32_t n = e->of.outputs.n;
	run_call call = *given;
	clv_tensor **all = outputs;
	if (n != e->noutputs && !(all = mem_alloc((n + 1) * sizeof *all)))
		return fail_nomem();
	limits most = {.seconds = r->timeout, .bytes = r->max_memory, .stops = &r->stops};
	limits_enter(&most);
	if (most.bytes)
		limits_count(runtime_made(e, given));
	clv_status st = run_locked(r, e, &call, all);
	limits_leave(&most);
	if (all == outputs)
		return st;
	if (st == CLV_OK) {
		memcpy(outputs, all, e->noutputs * sizeof *outputs);
		for (uint32_t k = e->noutputs; k < n; k++)
			clv_tensor_free(all[k]);
	}
	mem_free(all);
	return st;
}

/* Whether the data leads to this plan shows in its guards: only a run can tell. */
static clv_status refuse_outputs(const runtime *r, uint32_t i, const run_call *call)
{
	uint32_t n = r->plans.at[i].noutputs;
	if (r->stateful) /* what a run changes could not be taken back */
		return runtime_fail_outputs(r, i);
	clv_tensor **made = mem_alloc((n + 1) * sizeof *made);
	TRY_MEM(made);
	clv_status st = runtime_run_plan(r, i, call, made);
	for (uint32_t k = 0; st == CLV_OK && k < n; k++)
		clv_tensor_free(made[k]);
	mem_free(made);
	return st == CLV_OK ? runtime_fail_outputs(r, i) : st;
}

/* The caller learns from *plan what the outputs are called. */
static clv_status run_any(const runtime *r, uint32_t i, const run_call *call, clv_tensor **outputs, uint32_t noutputs,
                          uint32_t *which)
{
	uint32_t n = r->plans.at[i].noutputs;
	if (n > noutputs)
		return fail(CLV_E_INPUT, "the model gives %u outputs on this data, the call has room for %u", n, noutputs);
	for (uint32_t k = n; k < noutputs; k++)
		outputs[k] = NULL;
	*which = i;
	return runtime_run_plan(r, i, call, outputs);
}

clv_status runtime_run_named(const runtime *r, uint32_t i, const run_call *call, clv_tensor **outputs,
                             uint32_t noutputs, uint32_t *which)
{
	const runtime_plan *e = &r->plans.at[i];
	if (which)
		return run_any(r, i, call, outputs, noutputs, which);
	if (e->other_outputs)
		return refuse_outputs(r, i, call);
	if (e->noutputs != noutputs)
		return fail(CLV_E_INPUT, "the model gives %u outputs, the call has room for %u", e->noutputs, noutputs);
	return runtime_run_plan(r, i, call, outputs);
}

typedef struct whole_call {
	const runtime *r;
	clv_tensor *const *inputs;
	clv_tensor **outputs;
	uint32_t noutputs;
	uint32_t *plan;
} whole_call;

static clv_status run_whole(void *ctx, uint32_t i)
{
	const whole_call *c = ctx;
	return runtime_run_named(c->r, i, &(run_call){.inputs = c->inputs}, c->outputs, c->noutputs, c->plan);
}

static clv_status run_checked(const whole_call *c, uint32_t ninputs)
{
	if (!c->r || (ninputs && !c->inputs) || (c->noutputs && !c->outputs))
		return fail(CLV_E_INVALID, "clv_runtime_run: an argument is NULL");
	if (c->r->part == PART_SUFFIX)
		return fail(CLV_E_INVALID, "this is a suffix: clv_runtime_run_suffix runs it, on the boundary of a prefix");
	return runtime_serve(c->r, c->inputs, ninputs, run_whole, (void *)c);
}

clv_status clv_runtime_run(const clv_runtime *r, const clv_tensor *const *inputs, uint32_t ninputs,
                           clv_tensor **outputs, uint32_t noutputs)
{
	whole_call c = {r, (clv_tensor *const *)inputs, outputs, noutputs, NULL};
	return run_checked(&c, ninputs);
}

clv_status clv_runtime_run_any(const clv_runtime *r, const clv_tensor *const *inputs, uint32_t ninputs,
                               clv_tensor **outputs, uint32_t noutputs, uint32_t *which)
{
	whole_call c = {r, (clv_tensor *const *)inputs, outputs, noutputs, which};
	return which ? run_checked(&c, ninputs) : fail(CLV_E_INVALID, "clv_runtime_run_any needs a place for the plan");
}

static clv_status report_plan(const runtime *r, uint32_t i, strbuf *b)
{
	if (r->plans.n > 1)
		strbuf_printf(b, "plan %u\n", i);
	return r->engine->report(r->plans.at[i].program, b);
}

clv_status clv_runtime_optimizations(const clv_runtime *r, char **out)
{
	strbuf b = STRBUF_INIT;
	clv_status st = CLV_OK;
	if (!r || !out)
		return fail(CLV_E_INVALID, "clv_runtime_optimizations: an argument is NULL");
	TRY(runtime_needs_here(r, "report on optimizations"));
	for (uint32_t i = 0; r->engine->report && i < r->plans.n && st == CLV_OK; i++)
		st = report_plan(r, i, &b);
	if (st != CLV_OK) {
		strbuf_free(&b);
		return st;
	}
	return strbuf_take(&b, out);
}

clv_status clv_runtime_packing(const clv_runtime *r, clv_packing_state *out)
{
	clv_packing_state x = {0};
	if (!r || !out)
		return fail(CLV_E_INVALID, "clv_runtime_packing: an argument is NULL");
	for (uint32_t i = 0; r->engine->packing && !r->apart && i < r->plans.n; i++)
		r->engine->packing(r->plans.at[i].program, &x);
	return options_write(out, &x, sizeof x, "clv_packing_state");
}

const char *clv_runtime_engine(const clv_runtime *r)
{
	return r ? r->engine->name : "?";
}

bool clv_runtime_sandboxed(const clv_runtime *r)
{
	return r && r->sandbox;
}

uint32_t clv_runtime_segment_count(const clv_runtime *r)
{
	uint32_t n = 0;
	for (uint32_t i = 0; r && r->engine->segments && i < r->plans.n; i++)
		n += r->engine->segments(r->plans.at[i].program);
	return n;
}

clv_status clv_runtime_segment(const clv_runtime *r, uint32_t i, clv_segment_state *out)
{
	if (!r || !out || i >= clv_runtime_segment_count(r))
		return fail(CLV_E_INVALID, "clv_runtime_segment: there is no segment %u, or no place for it", i);
	clv_segment_state x = {0};
	for (; i >= r->engine->segments(r->plans.at[x.plan].program); x.plan++)
		i -= r->engine->segments(r->plans.at[x.plan].program);
	r->engine->segment(r->plans.at[x.plan].program, i, &x);
	return options_write(out, &x, sizeof x, "clv_segment_state");
}
