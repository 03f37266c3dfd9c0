/* Compiled segments: loaded through their back end, and run on tensors that are laid out as it expects. */
#include "exec/code.h"

#include "exec/program.h"

#include <string.h>

/* ---- what an artifact says ---------------------------------------------------------------------------------------- */

const char *code_device(const view *v)
{
	const plan *p = v->p;
	const char *found = NULL;
	for (uint32_t i = 0; i < v->inputs.n + v->outputs.n; i++) {
		value_id id = i < v->inputs.n ? v->inputs.at[i] : v->outputs.at[i - v->inputs.n];
		const char *device = plan_s(p, p->values.at[id].device);
		if (found && strcmp(found, device) != 0)
			return NULL;
		found = device;
	}
	return found;
}

/* Each a permutation of the dimensions of its value. */
static clv_status check_layout_order(const plan *p, const uint32_t *order, uint32_t n, const value_id *at,
                                     uint32_t count, const char *what)
{
	uint32_t k = 0;
	for (uint32_t i = 0; i < count; i++) {
		uint32_t ndim = p->values.at[at[i]].ndim;
		if (ndim > n - k)
			return fail(CLV_E_INVALID, "there are too few dimensions in the layout of its %s", what);
		for (uint32_t d = 0; d < ndim; d++)
			for (uint32_t e = 0; e <= d; e++)
				if (order[k + d] >= ndim || (e < d && order[k + e] == order[k + d]))
					return fail(CLV_E_INVALID, "the layout of %s %u is no order of its %u dimensions", what, i, ndim);
		k += ndim;
	}
	return k == n ? CLV_OK : fail(CLV_E_INVALID, "there are too many dimensions in the layout of its %s", what);
}

static clv_status check_segment(const artifact_segment *from, const view *v)
{
	const plan *p = v->p;
	if (from->sizes.n != p->symbols.n)
		return fail(CLV_E_INVALID, "it has sizes for %u symbols, the plan has %u", from->sizes.n, p->symbols.n);
	TRY(check_layout_order(p, from->in_order.at, from->in_order.n, v->inputs.at, v->inputs.n, "input"));
	return check_layout_order(p, from->out_order.at, from->out_order.n, v->outputs.at, v->outputs.n, "output");
}

static clv_status take_segment(code *c, const artifact_segment *from)
{
	c->first = from->first;
	c->end = from->end;
	for (uint32_t i = 0; i < from->sizes.n; i++) {
		TRY(vec_push(&c->low, from->sizes.at[i].low));
		TRY(vec_push(&c->high, from->sizes.at[i].high));
	}
	for (uint32_t i = 0; i < from->in_order.n; i++)
		TRY(vec_push(&c->in_order, from->in_order.at[i]));
	for (uint32_t i = 0; i < from->out_order.n; i++)
		TRY(vec_push(&c->out_order, from->out_order.at[i]));
	return CLV_OK;
}

/* ---- loading -------------------------------------------------------------------------------------------------------- */

static clv_status set_reason(arena *a, const char *text, const char **reason)
{
	*reason = arena_str(a, text);
	return *reason ? CLV_OK : fail_nomem();
}

/* The last failure as a reason, if it is one. */
static clv_status say_failure(arena *a, clv_status st, const char **reason)
{
	return fault_of_code(st) ? set_reason(a, status_message(), reason) : st;
}

const char code_barred[] = "it is code of whoever made the file, which runs only where that is allowed";

/* What a compiler made, where code of whoever made it may run, or this user made it. Sealed code is copied first: whoever can
   write the file would have time to, between the check and the use. */
static clv_status join_members(const code_source *source, compiled *made, bool *may_run)
{
	*may_run = source->allowed;
	if (!source->allowed && !source->from->seal)
		return CLV_OK;
	TRY(pieces_join(source->file, source->from, made));
	if (source->allowed)
		return CLV_OK;
	TRY(compiled_own(made));
	return seal_check(source->p, source->from, made, may_run);
}

static clv_status load_made(code *c, const code_source *source, compiled *made, const code_spec *s, arena *a,
                            const char **reason)
{
	bool may_run;
	TRY(join_members(source, made, &may_run));
	if (!may_run) {
		*reason = code_barred;
		return CLV_OK;
	}
	for (uint32_t i = 0; i < source->from->needs.n; i++)
		TRY(vec_push(&made->needs, source->from->needs.at[i]));
	TRY(c->b->fits(c->b->ctx, made, s, a, reason));
	return *reason ? CLV_OK : c->b->load(c->b->ctx, made, s, &c->loaded);
}

static clv_status load_code(code *c, const code_source *source, const code_spec *s, arena *a, const char **reason)
{
	compiled made = {0};
	clv_status st = load_made(c, source, &made, s, a, reason);
	if (st != CLV_OK)
		st = say_failure(a, st, reason);
	compiled_free(&made);
	return st;
}

static clv_status load_segment(code *c, const code_source *source, const view *v, arena *a, const char **reason)
{
	const artifact_segment *from = source->from;
	code_spec s = {code_device(v), v->inputs.n, v->outputs.n, source->threads};
	TRY(check_segment(from, v));
	if (!s.device)
		return set_reason(a, "its tensors are not on one device", reason);
	clv_status st = backend_find(from->backend, &c->b);
	if (st != CLV_OK)
		return say_failure(a, st, reason);
	st = take_segment(c, from);
	return st == CLV_OK ? load_code(c, source, &s, a, reason) : st;
}

clv_status code_empty(node_id first, node_id end, code **out)
{
	code *c = mem_alloc(sizeof *c);
	TRY_MEM(c);
	atomic_init(&c->users, 1);
	c->first = first;
	c->end = end;
	*out = c;
	return CLV_OK;
}

clv_status code_new(const code_source *s, arena *a, code **out, const char **reason)
{
	const artifact_segment *from = s->from;
	view v;
	*out = NULL;
	*reason = NULL;
	TRY(view_segment(s->p, s->live, from->first, from->end, &v));
	code *c = mem_alloc(sizeof *c);
	clv_status st = c ? CLV_OK : fail_nomem();
	if (c) {
		atomic_init(&c->users, 1);
		st = load_segment(c, s, &v, a, reason);
	}
	view_free(&v);
	if (st == CLV_OK && !*reason)
		*out = c;
	else
		code_unref(c);
	return st == CLV_OK ? CLV_OK : fail_more(st, "the compiled segment of nodes %u to %u", from->first, from->end);
}

static const char no_memory[] = "it failed, and there was no memory to say how";

code *code_ref(code *c)
{
	atomic_fetch_add_explicit(&c->users, 1, memory_order_relaxed);
	return c;
}

void code_unref(code *c)
{
	if (!c || atomic_fetch_sub_explicit(&c->users, 1, memory_order_acq_rel) != 1)
		return;
	if (c->loaded)
		c->b->unload(c->b->ctx, c->loaded);
	vec_free(&c->low);
	vec_free(&c->high);
	vec_free(&c->in_order);
	vec_free(&c->out_order);
	const char *reason = atomic_load(&c->reason);
	if (reason != no_memory)
		mem_free((char *)reason);
	mem_free(c);
}

/* ---- when it is used ------------------------------------------------------------------------------------------------ */

bool code_serves(const code *c, const int64_t *symbols)
{
	if (atomic_load_explicit(&c->reason, memory_order_acquire))
		return false;
	for (uint32_t i = 0; i < c->low.n; i++)
		if (symbols[i] >= 0 && (symbols[i] < c->low.at[i] || symbols[i] > c->high.at[i]))
			return false; /* one that is not known yet is read from data, and no segment depends on such */
	return true;
}

void code_stop(code *c, const char *reason)
{
	size_t n = strlen(reason) + 1;
	const char *none = NULL;
	char *text = mem_alloc(n);
	if (text)
		memcpy(text, reason, n);
	if (!atomic_compare_exchange_strong(&c->reason, &none, text ? text : no_memory))
		mem_free(text);
}

/* ---- running -------------------------------------------------------------------------------------------------------- */

/* What one run holds: the inputs as the code wants them, and what is wanted of it. */
typedef struct call {
	br_tensor **inputs; /* owned */
	tensor_form *wanted;
	int64_t *sizes;
} call;

static clv_status code_call_new(const view *v, call *out)
{
	uint32_t dims = 0;
	for (uint32_t i = 0; i < v->outputs.n; i++)
		dims += v->p->values.at[v->outputs.at[i]].ndim;
	size_t tensors = (v->inputs.n + 1) * sizeof(br_tensor *), blobs = v->outputs.n * sizeof(tensor_form);
	char *block = mem_alloc(tensors + blobs + dims * sizeof(int64_t));
	TRY_MEM(block);
	out->inputs = (br_tensor **)block;
	out->wanted = (tensor_form *)(block + tensors);
	out->sizes = (int64_t *)(block + tensors + blobs);
	return CLV_OK;
}

static void code_call_free(const view *v, call *c)
{
	for (uint32_t i = 0; i < v->inputs.n; i++)
		br_unref(c->inputs[i]);
	mem_free(c->inputs);
}

static void want_outputs(const view *v, const int64_t *sizes, call *c)
{
	const plan *p = v->p;
	int64_t *to = c->sizes;
	for (uint32_t i = 0; i < v->outputs.n; i++) {
		const value *x = &p->values.at[v->outputs.at[i]];
		c->wanted[i] = (tensor_form){.dtype = x->dtype, .ndim = x->ndim, .sizes = to};
		for (uint32_t d = 0; d < x->ndim; d++)
			*to++ = sizes[p->dims.at[x->shape + d]];
	}
}

static clv_status lay_out_inputs(const code *c, const view *v, br_tensor *const *inputs, call *to)
{
	const uint32_t *order = c->in_order.at;
	for (uint32_t i = 0; i < v->inputs.n; i++) {
		if (c->b->live)
			to->inputs[i] = br_ref(inputs[i]);
		else
			TRY(br_dense(inputs[i], order, &to->inputs[i]));
		order += c->b->live ? 0 : v->p->values.at[v->inputs.at[i]].ndim;
	}
	return CLV_OK;
}

/* A result may lie on the memory of an input, or of another result, only where the plan has it so: it may be written. */
static bool is_shared(const view *v, br_tensor *const *inputs, br_tensor *const *outputs, uint32_t i)
{
	value_id root = alias_root(v->p, v->outputs.at[i]);
	for (uint32_t k = 0; k < v->inputs.n; k++)
		if (br_shares_memory(outputs[i], inputs[k]) && alias_root(v->p, v->inputs.at[k]) != root)
			return true;
	for (uint32_t k = 0; k < i; k++)
		if (br_shares_memory(outputs[i], outputs[k]) && alias_root(v->p, v->outputs.at[k]) != root)
			return true;
	return false;
}

/* order NULL: any layout will do. */
static clv_status lay_out_output(br_tensor **t, const uint32_t *order, bool shared)
{
	br_tensor *own = NULL, *dense;
	if (shared) {
		TRY(br_clone(*t, false, &own));
		br_unref(*t);
		*t = own;
	}
	if (!order)
		return CLV_OK;
	TRY(br_dense(*t, order, &dense));
	br_unref(*t);
	*t = dense;
	return CLV_OK;
}

static clv_status take_outputs(const code *c, const view *v, const int64_t *sizes, br_tensor *const *inputs,
                               br_tensor **outputs)
{
	const plan *p = v->p;
	const uint32_t *order = c->out_order.at;
	for (uint32_t i = 0; i < v->outputs.n; i++) {
		const value *x = &p->values.at[v->outputs.at[i]];
		if (!outputs[i] || !br_fits(outputs[i], x->dtype, plan_s(p, x->device), x->ndim, &p->dims.at[x->shape], sizes))
			return fail(CLV_E_GUARD, "output %u is not of the type and shape that the plan has", i);
		TRY(lay_out_output(&outputs[i], c->b->live ? NULL : order, is_shared(v, inputs, outputs, i)));
		order += c->b->live ? 0 : x->ndim;
	}
	return CLV_OK;
}

static clv_status run_and_check(const code *c, const segment_call *s, const call *x, br_tensor **outputs)
{
	const view *v = s->v;
	code_run r = {.inputs = x->inputs,
	              .ninputs = v->inputs.n,
	              .noutputs = v->outputs.n,
	              .of = s,
	              .wanted = x->wanted,
	              .outputs = outputs};
	TRY(c->b->run(c->b->ctx, c->loaded, &r));
	clv_status st = take_outputs(c, v, s->sizes, s->inputs, outputs);
	for (uint32_t i = 0; st != CLV_OK && i < v->outputs.n; i++)
		br_unref(outputs[i]);
	return st;
}

clv_status code_run_view(const code *c, const segment_call *s, br_tensor **outputs)
{
	const view *v = s->v;
	call x;
	size_t room = v->outputs.n * sizeof *outputs;
	memset(outputs, 0, room);
	TRY(code_call_new(v, &x));
	want_outputs(v, s->sizes, &x);
	clv_status st = lay_out_inputs(c, v, s->inputs, &x);
	if (st == CLV_OK)
		st = run_and_check(c, s, &x, outputs);
	if (st != CLV_OK)
		memset(outputs, 0, room); /* what is left there is nobody's */
	code_call_free(v, &x);
	return st;
}
