/* Records a stream: keeps the tensors and operators that the bridge's recorder reports. */
#include "capture/capture.h"

#include <string.h>

static clv_status copy_stream_args(stream *s, const br_arg *from, uint32_t n, br_arg **out)
{
	br_arg *to = arena_copy(&s->a, from, n * sizeof *from);
	TRY_MEM(to);
	for (uint32_t i = 0; i < n; i++) {
		if (to[i].kind == BR_LIST)
			TRY(copy_stream_args(s, from[i].u.list.at, from[i].u.list.n, &to[i].u.list.at));
		if ((to[i].kind == BR_STR || to[i].kind == BR_DEVICE) && !(to[i].u.s = arena_str(&s->a, from[i].u.s)))
			return fail_nomem();
	}
	*out = to;
	return CLV_OK;
}

static clv_status on_seen(void *ctx, const br_seen *t)
{
	stream *s = ctx;
	stream_tensor n = {.origin = t->origin == BR_DEFINED    ? s->defining
	                             : t->origin == BR_EXTERNAL ? ORIGIN_EXTERNAL
	                             : t->origin == BR_FRESH    ? ORIGIN_FRESH
	                                                        : ORIGIN_RESULT,
	                   .index = NONE,
	                   .storage = t->storage,
	                   .strided = t->meta.strided,
	                   .requires_grad = t->meta.requires_grad,
	                   .conj = t->meta.conj,
	                   .neg = t->meta.neg,
	                   .dtype = t->meta.dtype,
	                   .ndim = t->meta.sizes ? t->meta.ndim : 0,
	                   .offset = t->meta.offset};
	n.sizes = arena_copy(&s->a, t->meta.sizes, n.ndim * sizeof *t->meta.sizes);
	n.device = arena_str(&s->a, t->meta.device);
	if (t->meta.strided)
		n.strides = arena_copy(&s->a, t->meta.strides, n.ndim * sizeof *t->meta.strides);
	if (!n.sizes || !n.device || (t->meta.strided && !n.strides))
		return fail_nomem();
	if (n.origin == ORIGIN_EXTERNAL || n.origin == ORIGIN_FRESH)
		n.data = br_ref(t->data);
	if (t->meta.dtype == DT_COUNT) {
		br_unref(n.data);
		return fail(CLV_E_UNSUPPORTED, "a tensor has a dtype that plans have no name for");
	}
	clv_status st = vec_push(&s->tensors, n);
	if (st != CLV_OK)
		br_unref(n.data);
	return st;
}

static clv_status on_event(void *ctx, const br_event *e)
{
	stream *s = ctx;
	stream_op o = {.op = arena_str(&s->a, e->op),
	               .op_id = op_find(e->op),
	               .nargs = e->nargs,
	               .nresults = e->nresults,
	               .nwrites = e->nwrites,
	               .flags = e->flags,
	               .modes = e->modes,
	               .scope = s->open_scopes.n ? s->open_scopes.at[s->open_scopes.n - 1] : 0};
	TRY(copy_stream_args(s, e->args, e->nargs, &o.args));
	TRY(copy_stream_args(s, e->results, e->nresults, &o.results));
	o.writes = arena_copy(&s->a, e->writes, e->nwrites * sizeof *e->writes);
	TRY_MEM(o.op && o.writes);
	if (e->at && !(o.at = arena_str(&s->a, e->at)))
		return fail_nomem();
	return vec_push(&s->ops, o);
}

static void on_where(void *ctx, char *out, size_t n)
{
	stream *s = ctx;
	if (s->where)
		s->where(out, n);
}

clv_status stream_new(const char *root_class, stream **out)
{
	static const br_record_fns fns = {on_seen, on_event, on_where};
	stream *s = mem_alloc(sizeof *s);
	TRY_MEM(s);
	clv_status st = br_recorder_new(&fns, s, &s->recorder);
	stream_scope root = {arena_str(&s->a, ""), arena_str(&s->a, root_class)};
	if (st == CLV_OK)
		st = root.path && root.cls ? vec_push(&s->scopes, root) : fail_nomem();
	if (st == CLV_OK)
		*out = s;
	else
		stream_free(s);
	return st;
}

void stream_free(stream *s)
{
	if (!s)
		return;
	br_recorder_free(s->recorder);
	for (uint32_t i = 0; i < s->tensors.n; i++)
		br_unref(s->tensors.at[i].data);
	vec_free(&s->tensors);
	vec_free(&s->ops);
	vec_free(&s->states);
	vec_free(&s->ties);
	vec_free(&s->inputs);
	vec_free(&s->input_names);
	vec_free(&s->outputs);
	vec_free(&s->scopes);
	vec_free(&s->open_scopes);
	vec_free(&s->rebinds);
	vec_free(&s->regions);
	arena_free(&s->a);
	mem_free(s);
}

clv_status stream_input(stream *s, const char *name, const br_tensor *t)
{
	uint32_t before = s->tensors.n, id;
	const char *kept = arena_str(&s->a, name);
	TRY_MEM(kept);
	s->defining = ORIGIN_INPUT;
	TRY(br_recorder_define(s->recorder, t, &id));
	if (id < before)
		return fail(CLV_E_INVALID, "input %s is the same tensor as another; each needs its own copy for the capture",
		            name);
	s->tensors.at[id].index = s->inputs.n;
	TRY(vec_push(&s->input_names, kept));
	return vec_push(&s->inputs, id);
}

clv_status stream_define_state(stream *s, value_kind kind, const char *name, bool trainable, const br_tensor *t)
{
	uint32_t before = s->tensors.n;
	stream_state n = {kind, arena_str(&s->a, name), trainable, NONE};
	TRY_MEM(n.name);
	s->defining = ORIGIN_STATE;
	TRY(br_recorder_define(s->recorder, t, &n.tensor));
	if (n.tensor < before)
		return vec_push(&s->ties, n);
	s->tensors.at[n.tensor].index = s->states.n;
	return vec_push(&s->states, n);
}

clv_status stream_start(stream *s, bool alone)
{
	br_modes_get(&s->ambient);
	return br_recorder_start(s->recorder, alone);
}

clv_status stream_stop(stream *s)
{
	return br_recorder_stop(s->recorder);
}

clv_status stream_scope_add(stream *s, const char *path, const char *cls, uint32_t *out)
{
	stream_scope n = {arena_str(&s->a, path), arena_str(&s->a, cls)};
	TRY_MEM(n.path && n.cls);
	TRY(vec_push(&s->scopes, n));
	*out = s->scopes.n - 1;
	return CLV_OK;
}

clv_status stream_enter(stream *s, uint32_t number)
{
	if (number >= s->scopes.n)
		return fail(CLV_E_INVALID, "no scope %u", number);
	br_recorder_lock(s->recorder);
	clv_status st = vec_push(&s->open_scopes, number);
	br_recorder_unlock(s->recorder);
	return st;
}

void stream_leave(stream *s)
{
	br_recorder_lock(s->recorder);
	if (s->open_scopes.n)
		s->open_scopes.n--;
	br_recorder_unlock(s->recorder);
}

clv_status stream_output(stream *s, const br_tensor *t)
{
	uint32_t id;
	TRY(br_recorder_see(s->recorder, t, &id));
	return vec_push(&s->outputs, id);
}

clv_status stream_number(stream *s, const br_tensor *t)
{
	uint32_t id;
	br_recorder_lock(s->recorder);
	clv_status st = br_recorder_see(s->recorder, t, &id);
	if (st == CLV_OK)
		s->tensors.at[id].number = true;
	br_recorder_unlock(s->recorder);
	return st;
}

clv_status stream_rebound(stream *s, const char *state_name, const br_tensor *t)
{
	stream_rebind r = {NONE, NONE};
	for (uint32_t i = 0; i < s->states.n; i++)
		if (!strcmp(s->states.at[i].name, state_name))
			r.state = i;
	for (uint32_t i = 0; i < s->ties.n; i++) /* a second name of the same tensor */
		if (!strcmp(s->ties.at[i].name, state_name))
			r.state = s->tensors.at[s->ties.at[i].tensor].index;
	if (r.state == NONE)
		return fail(CLV_E_INVALID, "%s is no tensor of the model", state_name);
	TRY(br_recorder_see(s->recorder, t, &r.tensor));
	return vec_push(&s->rebinds, r);
}

static void mark_tensors(const br_arg *args, uint32_t n, bool *seen)
{
	for (uint32_t i = 0; i < n; i++) {
		if (args[i].kind == BR_TENSOR)
			seen[args[i].u.id] = true;
		if (args[i].kind == BR_LIST)
			mark_tensors(args[i].u.list.at, args[i].u.list.n, seen);
	}
}

clv_status stream_operands(const stream *s, bool **out)
{
	*out = mem_alloc((s->tensors.n + 1) * sizeof **out);
	TRY_MEM(*out);
	for (uint32_t k = 0; k < s->ops.n; k++)
		mark_tensors(s->ops.at[k].args, s->ops.at[k].nargs, *out);
	return CLV_OK;
}

/* An operator of our own, at the line where the user's program is. The recorder is locked. */
static clv_status emit(stream *s, const char *op, const char *at, br_arg *args, uint32_t nargs)
{
	br_event e = {.op = op, .args = args, .nargs = nargs, .at = at[0] ? at : NULL};
	br_modes_get(&e.modes);
	return on_event(s, &e);
}

static clv_status host_read(stream *s, const br_tensor *t, const char *how, const char *at)
{
	br_meta m;
	int64_t n = 1;
	br_arg args[3] = {{.kind = BR_TENSOR}, {.kind = BR_TENSOR}, {.kind = BR_STR, .u.s = how}};
	TRY(br_meta_get(t, &m));
	for (uint32_t i = 0; i < m.ndim && n <= STREAM_HOST_READ_MAX; i++)
		n *= m.sizes[i];
	if (!m.strided || n > STREAM_HOST_READ_MAX)
		return fail(CLV_E_UNSUPPORTED,
		            "%s hands a tensor to code that no plan can follow, and it is too large (over %d elements) or of a "
		            "layout that cannot be compared at replay",
		            how, STREAM_HOST_READ_MAX);
	TRY(br_recorder_see(s->recorder, t, &args[0].u.id));
	TRY(br_recorder_fresh(s->recorder, t, &args[1].u.id));
	return emit(s, "cleave::guard_equal", at, args, 3);
}

enum { PLACE_MAX = 256 };

clv_status stream_host_read(stream *s, const br_tensor *t, const char *how)
{
	char at[PLACE_MAX] = "";
	on_where(s, at, sizeof at); /* before the lock: it may wait for Python */
	br_recorder_lock(s->recorder);
	clv_status st = host_read(s, t, how, at);
	br_recorder_unlock(s->recorder);
	return st;
}

static clv_status python_args(stream *s, br_tensor *const *args, uint32_t nargs, br_arg *out)
{
	for (uint32_t i = 0; i < nargs; i++) {
		out[i] = (br_arg){.kind = args[i] ? BR_TENSOR : BR_NONE};
		if (!args[i])
			continue;
		TRY(br_recorder_see(s->recorder, args[i], &out[i].u.id));
		TRY(br_recorder_keep(s->recorder, args[i])); /* the call may write it, unseen */
	}
	return CLV_OK;
}

/* The event is pushed at once, so that tensors are numbered before the call; end fills in its results. */
static clv_status python_begin(stream *s, const char *label, const char *at, br_tensor *const *args, uint32_t nargs)
{
	br_arg *list = arena_alloc(&s->a, (nargs + 1) * sizeof *list);
	TRY_MEM(list);
	list[0].kind = BR_OBJECT;
	TRY(python_args(s, args, nargs, list + 1));
	TRY(emit(s, "cleave::python", at, list, nargs + 1));
	s->python_op = s->ops.n - 1;
	TRY_MEM((s->ops.at[s->python_op].label = arena_str(&s->a, label)));
	br_recorder_suspend(s->recorder);
	return CLV_OK;
}

clv_status stream_python_begin(stream *s, const char *label, br_tensor *const *args, uint32_t nargs)
{
	char at[PLACE_MAX] = "";
	on_where(s, at, sizeof at);
	br_recorder_lock(s->recorder);
	clv_status st = python_begin(s, label, at, args, nargs);
	br_recorder_unlock(s->recorder);
	return st;
}

void stream_python_abort(stream *s)
{
	br_recorder_resume(s->recorder);
	br_recorder_lock(s->recorder);
	if (s->python_op == s->ops.n - 1)
		s->ops.n--;
	else
		br_recorder_fail(s->recorder, CLV_E_UNSUPPORTED,
		                 "an autograd function raised while other threads ran operators");
	br_recorder_unlock(s->recorder);
}

static clv_status python_writes(stream *s, stream_op *o, const python_call *c)
{
	o->writes = arena_alloc(&s->a, (c->nwritten + 1) * sizeof *o->writes);
	TRY_MEM(o->writes);
	for (uint32_t i = 0; i < c->nwritten; i++) {
		int64_t at = c->written[i];
		if (at < 0 || at + 1 >= o->nargs || o->args[at + 1].kind != BR_TENSOR)
			return fail(CLV_E_INVALID, "argument %lld of a call is no tensor that it could write", (long long)at);
		o->writes[o->nwrites++] = o->args[at + 1].u.id;
	}
	return CLV_OK;
}

static clv_status python_end(stream *s, const python_call *c)
{
	stream_op *o = &s->ops.at[s->python_op];
	o->args[0].u.id = c->object;
	o->results = arena_alloc(&s->a, (c->nresults + 1) * sizeof *o->results);
	TRY_MEM(o->results);
	o->nresults = c->nresults;
	for (uint32_t i = 0; i < c->nresults; i++) {
		o->results[i] = (br_arg){.kind = c->results[i] ? BR_TENSOR : BR_NONE};
		if (c->results[i])
			TRY(br_recorder_result(s->recorder, c->results[i], &o->results[i].u.id));
	}
	return python_writes(s, o, c);
}

clv_status stream_python_end(stream *s, const python_call *c)
{
	br_recorder_resume(s->recorder);
	br_recorder_lock(s->recorder);
	clv_status st = python_end(s, c);
	br_recorder_unlock(s->recorder);
	return st;
}
