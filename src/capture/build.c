/* Builds a plan from a recorded stream.
 *
 * Values get their order: inputs, then everything that comes from outside, then results. On the way four things that a
 * record holds implicitly become explicit nodes or errors: leftovers of torch.tensor are dropped, literals that are
 * written or returned are cloned for each run, tensors that alias recorded memory (.data) become data nodes, and
 * memory that is read before any operator wrote it is refused. */
#include "capture/builder.h"

#include <string.h>

/* ---- values ----------------------------------------------------------------------------------------------------- */

static clv_status keep_data(builder *b, value_id v, br_tensor *t, br_object *o, uint32_t python)
{
	plan_data *d = b->data;
	if (v >= d->n) {
		uint32_t n = v + 1 > d->n * 2 ? v + 1 : d->n * 2;
		br_tensor **tensors = mem_realloc(d->tensors, n, sizeof *tensors);
		TRY_MEM(tensors);
		d->tensors = tensors;
		br_object **objects = mem_realloc(d->objects, n, sizeof *objects);
		TRY_MEM(objects);
		d->objects = objects;
		uint32_t *numbers = mem_realloc(d->python, n, sizeof *numbers);
		TRY_MEM(numbers);
		d->python = numbers;
		for (uint32_t i = d->n; i < n; i++) {
			tensors[i] = NULL;
			objects[i] = NULL;
			numbers[i] = NONE;
		}
		d->n = n;
	}
	d->tensors[v] = t ? br_ref(t) : NULL;
	d->objects[v] = o ? br_object_ref(o) : NULL;
	d->python[v] = python;
	return CLV_OK;
}

void plan_data_free(plan_data *d)
{
	for (uint32_t i = 0; i < d->n; i++) {
		br_unref(d->tensors[i]);
		br_object_unref(d->objects[i]);
	}
	mem_free(d->tensors);
	mem_free(d->objects);
	mem_free(d->python);
	*d = (plan_data){0};
}

clv_status plan_data_move(const plan_data *d, const plan *to, plan_data *out)
{
	out->tensors = mem_alloc((d->n + 1) * sizeof *out->tensors);
	out->objects = mem_alloc((d->n + 1) * sizeof *out->objects);
	out->python = mem_ids(d->n);
	TRY_MEM(out->tensors && out->objects && out->python);
	out->n = d->n;
	for (uint32_t i = 0; i < d->n; i++) {
		out->python[i] = d->python[i];
		out->objects[i] = d->objects[i] ? br_object_ref(d->objects[i]) : NULL;
		if (d->tensors[i])
			TRY(br_to_device(d->tensors[i], plan_s(to, to->values.at[i].device), &out->tensors[i]));
	}
	return CLV_OK;
}

static clv_status no_formula(uint32_t n, const double *floats, const int64_t *ints)
{
	strbuf text = STRBUF_INIT;
	char *list = NULL;
	for (uint32_t i = 0; i < n; i++) {
		strbuf_puts(&text, i ? ", " : "");
		if (floats)
			strbuf_double(&text, floats[i]);
		else
			strbuf_int(&text, ints[i]);
	}
	TRY(strbuf_take(&text, &list));
	clv_status st = fail(CLV_E_UNSUPPORTED, "no formula explains how a number follows the sizes (it was %s)", list);
	mem_free(list);
	return st;
}

/* The formula of the number in b->seen: first of the stream that is built, then of the streams at other sizes. */
clv_status number_formula(builder *b, expr_id *out)
{
	const size_probes *z = b->sizes;
	if (!z)
		return expr_const(b->p, b->seen.at[0], out);
	fit_points points = {z->points, z->n + 1, z->nsymbols};
	TRY(fit_int(b->p, &points, b->seen.at, out));
	return *out != NONE ? CLV_OK : no_formula(b->seen.n, NULL, b->seen.at);
}

/* As number_formula, of the floats in b->floats; a plain float when all are the same. */
clv_status float_formula(builder *b, fit_rounding rounding, arg *out)
{
	const size_probes *z = b->sizes;
	fit_doubt doubt = {.at = z ? z->doubt : NULL};
	bool same = true;
	for (uint32_t i = 1; i < b->floats.n; i++)
		same &= same_bits(b->floats.at[i], b->floats.at[0]);
	if (same) {
		out->kind = ARG_FLOAT;
		out->u.f = b->floats.at[0];
		return CLV_OK;
	}
	out->kind = ARG_REAL;
	TRY(fit_real(b->p, &(fit_points){z->points, z->n + 1, z->nsymbols}, b->floats.at, rounding, &doubt, &out->u.r));
	if (out->u.r == NONE && !doubt.is && z->nsymbols)
		z->doubt[0] = -1; /* it was scratch */
	return out->u.r != NONE ? CLV_OK : no_formula(b->floats.n, b->floats.at, NULL);
}

/* Size or stride d of tensor t. */
static clv_status tensor_number(builder *b, uint32_t t, bool stride, uint32_t d, expr_id *out)
{
	b->seen.n = 0;
	for (uint32_t i = 0; i <= (b->sizes ? b->sizes->n : 0); i++) {
		const stream_tensor *x = &(i ? b->sizes->streams[i - 1] : b->s)->tensors.at[t];
		TRY(vec_push(&b->seen, stride ? x->strides[d] : x->sizes[d]));
	}
	return number_formula(b, out);
}

static clv_status push_dims(builder *b, uint32_t t, bool strides)
{
	for (uint32_t d = 0; d < b->s->tensors.at[t].ndim; d++) {
		expr_id e;
		TRY(tensor_number(b, t, strides, d, &e));
		TRY(vec_push(&b->dims, e));
	}
	return CLV_OK;
}

static bool is_contiguous(const stream_tensor *t)
{
	br_meta m = {.strided = t->strided, .ndim = t->ndim, .sizes = t->sizes, .strides = t->strides};
	return br_is_contiguous(&m);
}

/* A new value with the type of tensor t; it becomes t's newest value and may root its storage. */
static clv_status new_value(builder *b, value_kind kind, const char *name, uint32_t t, value_id *out)
{
	const stream_tensor *x = &b->s->tensors.at[t];
	bool strides = kind != VALUE_RESULT && x->strided && !is_contiguous(x);
	b->dims.n = 0;
	TRY(push_dims(b, t, false));
	if (strides)
		TRY(push_dims(b, t, true));
	tensor_spec spec = {.dtype = (dtype)x->dtype,
	                    .ndim = x->ndim,
	                    .shape = b->dims.at,
	                    .strides = strides ? b->dims.at + x->ndim : NULL,
	                    .device = x->device};
	TRY(plan_tensor(b->p, kind, name, &spec, out));
	value *v = &b->p->values.at[*out];
	if (x->storage != NONE && b->root[x->storage] != NONE)
		v->alias = b->root[x->storage];
	else if (x->storage != NONE)
		b->root[x->storage] = *out;
	if (!x->strided)
		v->flags |= VALUE_ODD;
	const stream *g = b->with_grad;
	if (kind == VALUE_INPUT && x->requires_grad)
		v->flags |= VALUE_GRAD;
	if (kind == VALUE_RESULT && g && t < g->tensors.n && g->tensors.at[t].requires_grad)
		v->flags |= VALUE_GRAD;
	b->value[t] = *out;
	return CLV_OK;
}

static external_class class_of(const builder *b, uint32_t t)
{
	if (b->s->tensors.at[t].origin == ORIGIN_FRESH)
		return EXTERNAL_FRESH;
	if (b->classes && b->classes[t] != EXTERNAL_UNKNOWN)
		return (external_class)b->classes[t];
	/* Without a second look: memory of a recorded tensor is an alias, the rest is taken as it is. */
	uint32_t st = b->s->tensors.at[t].storage;
	for (uint32_t i = 0; st != NONE && i < t; i++)
		if (b->s->tensors.at[i].storage == st && b->s->tensors.at[i].origin != ORIGIN_EXTERNAL)
			return EXTERNAL_ALIAS;
	return EXTERNAL_PERSISTENT;
}

static void define_external(builder *b, uint32_t t, void *ctx)
{
	clv_status *st = ctx;
	const stream_tensor *x = &b->s->tensors.at[t];
	value_id v;
	if (*st != CLV_OK || b->value[t] != NONE)
		return;
	if (x->origin == ORIGIN_STATE) {
		const stream_state *state = &b->s->states.at[x->index];
		*st = new_value(b, state->kind, state->name, t, &v);
		b->state_value[x->index] = v;
		if (*st == CLV_OK && state->trainable)
			b->p->values.at[v].flags |= VALUE_TRAINABLE;
	} else if (x->origin == ORIGIN_EXTERNAL || x->origin == ORIGIN_FRESH) {
		external_class c = class_of(b, t);
		if (c == EXTERNAL_ALIAS)
			return; /* becomes a data node where it is used */
		*st = table_moves(b, t, &b->moving[t]);
		if (*st == CLV_OK && b->moving[t] && c == EXTERNAL_PERSISTENT)
			*st = fail(CLV_E_UNSUPPORTED, "a tensor that lives outside of the forward is another one at another size");
		if (*st != CLV_OK || b->moving[t])
			return; /* nodes make it where it is used */
		*st = new_value(b, VALUE_CONST, NULL, t, &v);
		if (*st == CLV_OK && c == EXTERNAL_PERSISTENT)
			b->p->values.at[v].flags |= VALUE_PERSISTENT;
		if (*st == CLV_OK)
			*st = keep_data(b, v, x->data, NULL, NONE);
	}
}

static clv_status define_objects(builder *b, const stream_op *o, const br_arg *args, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		if (args[i].kind == BR_LIST)
			TRY(define_objects(b, o, args[i].u.list.at, args[i].u.list.n));
		if (args[i].kind != BR_OBJECT || o->op_id == OP_cleave_python || b->object[args[i].u.id] != NONE)
			continue;
		br_object *object = br_recorder_object(b->s->recorder, args[i].u.id);
		TRY(plan_object(b->p, br_object_type(object), &b->object[args[i].u.id]));
		TRY(keep_data(b, b->object[args[i].u.id], NULL, object, NONE));
	}
	return CLV_OK;
}

static clv_status define_values(builder *b)
{
	const stream *s = b->s;
	clv_status st = CLV_OK;
	value_id v;
	for (uint32_t i = 0; i < s->inputs.n; i++)
		TRY(new_value(b, VALUE_INPUT, s->input_names.at[i], s->inputs.at[i], &v));
	for (uint32_t i = 0; i < s->ops.n; i++) {
		const stream_op *o = &s->ops.at[i];
		if (b->drop[i])
			continue;
		each_tensor(b, o->args, o->nargs, define_external, &st);
		TRY(st);
		TRY(define_objects(b, o, o->args, o->nargs));
		if (o->label) {
			TRY(plan_object(b->p, o->label, &b->python[i]));
			TRY(keep_data(b, b->python[i], NULL, NULL, o->args[0].u.id));
		}
	}
	for (uint32_t i = 0; i < s->outputs.n; i++)
		define_external(b, s->outputs.at[i], &st);
	for (uint32_t i = 0; i < s->rebinds.n; i++) {
		define_external(b, s->rebinds.at[i].tensor, &st);
		define_external(b, s->states.at[s->rebinds.at[i].state].tensor, &st);
	}
	TRY(st);
	for (uint32_t i = 0; i < s->ties.n; i++) {
		tie t = {b->value[s->ties.at[i].tensor], NONE};
		if (t.value == NONE || b->p->values.at[t.value].kind == VALUE_INPUT || s->ties.at[i].kind == VALUE_ATTR)
			continue; /* an attribute as well as a parameter (flat weights of an RNN) is no name that users know it by */
		TRY(plan_cstr(b->p, s->ties.at[i].name, &t.name));
		TRY(vec_push(&b->p->ties, t));
	}
	return CLV_OK;
}

/* ---- nodes ------------------------------------------------------------------------------------------------------ */

static clv_status make_scope(builder *b, const char *path, const char *cls, scope_id *out)
{
	const char *dot = strrchr(path, '.');
	scope_id parent = NONE;
	if (path[0]) {
		char *up = mem_strdup(path, dot ? (size_t)(dot - path) : 0);
		TRY_MEM(up);
		const char *up_cls = b->s->scopes.at[0].cls;
		for (uint32_t i = 1; up[0] && i < b->s->scopes.n; i++)
			if (!strcmp(b->s->scopes.at[i].path, up))
				up_cls = b->s->scopes.at[i].cls;
		clv_status st = make_scope(b, up, up_cls, &parent);
		mem_free(up);
		TRY(st);
	}
	return plan_scope(b->p, parent, path, cls, out);
}

static clv_status scope_of(builder *b, uint32_t i, scope_id *out)
{
	if (b->scope[i] == NONE)
		TRY(make_scope(b, b->s->scopes.at[i].path, b->s->scopes.at[i].cls, &b->scope[i]));
	*out = b->scope[i];
	return CLV_OK;
}

static clv_status context_of(builder *b, uint32_t op, context_id *out)
{
	const br_modes *m = &b->s->ops.at[op].modes;
	autocast ac[BR_AUTOCAST_DEVICES];
	context c = {.nograd = b->with_grad && !b->with_grad->ops.at[op].modes.grad,
	             .inference = m->inference && !b->s->ambient.inference,
	             .flags_mask = m->flags ^ b->s->ambient.flags};
	c.flags = m->flags & c.flags_mask;
	for (uint32_t i = 0; i < BR_AUTOCAST_DEVICES; i++) {
		if (!m->autocast[i])
			continue;
		autocast *a = &ac[c.nautocast++];
		*a = (autocast){.dtype = m->autocast_dtype[i], .cache = m->autocast_cache};
		TRY(plan_cstr(b->p, br_autocast_device_names[i], &a->device));
	}
	return plan_context(b->p, &c, ac, out);
}

static clv_status use_tensor(builder *b, uint32_t op, uint32_t t, value_id *out);

/* The argument in hand, in the stream at other sizes number i. */
static const br_arg *there(const builder *b, uint32_t op, uint32_t i)
{
	const stream_op *o = &b->sizes->streams[i]->ops.at[op];
	const br_arg *a = &(b->in_results ? o->results : o->args)[b->path.at[0]];
	for (uint32_t k = 1; k < b->path.n; k++)
		a = &a->u.list.at[b->path.at[k]];
	return a;
}

static uint32_t distinct(const double *v, uint32_t n)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < n; i++) {
		bool seen = false;
		for (uint32_t k = 0; k < i; k++)
			seen |= same_bits(v[k], v[i]);
		count += !seen;
	}
	return count;
}

/* b->floats is a number that was read from data, in every record: the argument is that value. Each read is of one use, so
   one that has none yet is taken first: what is left over was read for something else, and is a guard. */
static bool take_host(builder *b, value_type type, arg *to)
{
	host_number *found = NULL;
	if (distinct(b->floats.at, b->floats.n) < 3)
		return false;
	for (uint32_t i = 0; i < b->hosts.n && (!found || found->used); i++) {
		const double *read = b->read.at + b->hosts.at[i].first;
		bool same = b->p->values.at[b->hosts.at[i].v].type == type;
		for (uint32_t k = 0; same && k < b->floats.n; k++)
			same = same_bits(read[k], b->floats.at[k]);
		if (same && (!found || !b->hosts.at[i].used))
			found = &b->hosts.at[i];
	}
	if (!found)
		return false;
	found->used = true;
	to->kind = ARG_VALUE;
	to->u.v = found->v;
	return true;
}

static double as_double(const br_arg *a)
{
	return a->kind == BR_INT ? (double)a->u.i : a->u.f;
}

/* The number in hand, in every record. */
static clv_status take_numbers(builder *b, uint32_t op, const br_arg *from)
{
	b->floats.n = 0;
	TRY(vec_push(&b->floats, as_double(from)));
	for (uint32_t i = 0; b->sizes && i < b->sizes->n; i++)
		TRY(vec_push(&b->floats, as_double(there(b, op, i))));
	return CLV_OK;
}

static clv_status float_arg(builder *b, uint32_t op, const br_arg *from, arg *to)
{
	TRY(take_numbers(b, op, from));
	return take_host(b, TYPE_FLOAT, to) ? CLV_OK : float_formula(b, FIT_DOUBLE, to);
}

static clv_status int_arg(builder *b, uint32_t op, const br_arg *from, arg *to)
{
	if (b->hosts.n) {
		TRY(take_numbers(b, op, from));
		if (take_host(b, TYPE_INT, to))
			return CLV_OK;
	}
	to->kind = ARG_INT;
	b->seen.n = 0;
	TRY(vec_push(&b->seen, from->u.i));
	for (uint32_t i = 0; b->sizes && i < b->sizes->n; i++)
		TRY(vec_push(&b->seen, there(b, op, i)->u.i));
	return number_formula(b, &to->u.e);
}

/* What is neither tensor nor number must be the same at all sizes. */
static clv_status check_fixed(builder *b, uint32_t op, const br_arg *from)
{
	for (uint32_t i = 0; b->sizes && i < b->sizes->n; i++)
		if (!br_arg_same(from, there(b, op, i)))
			return fail(CLV_E_UNSUPPORTED, "an argument that is no int or float follows the sizes");
	return CLV_OK;
}

typedef clv_status (*convert_fn)(builder *b, uint32_t op, const br_arg *from, arg *to);

static clv_status convert_list(builder *b, uint32_t op, const br_arg *from, convert_fn convert, arg *to)
{
	uint32_t mark = b->args.n;
	for (uint32_t i = 0; i < from->u.list.n; i++) {
		arg e;
		TRY(vec_push(&b->path, i));
		TRY(convert(b, op, &from->u.list.at[i], &e));
		TRY(vec_push(&b->args, e));
		b->path.n--;
	}
	TRY(plan_list(b->p, b->args.at + mark, b->args.n - mark, to));
	b->args.n = mark;
	return CLV_OK;
}

static clv_status to_arg(builder *b, uint32_t op, const br_arg *from, arg *to)
{
	*to = (arg){.wrapped = from->wrapped};
	switch ((br_kind)from->kind) {
	case BR_TENSOR: to->kind = ARG_VALUE; return use_tensor(b, op, from->u.id, &to->u.v);
	case BR_INT: return int_arg(b, op, from, to);
	case BR_FLOAT: return float_arg(b, op, from, to);
	case BR_OBJECT:
		to->kind = ARG_VALUE;
		to->u.v = b->s->ops.at[op].op_id != OP_cleave_python ? b->object[from->u.id] : b->python[op];
		return CLV_OK;
	case BR_LIST: return convert_list(b, op, from, to_arg, to);
	default: TRY(check_fixed(b, op, from)); return br_to_plain(b->p, from, to);
	}
}

clv_status insert_value(builder *b, uint32_t op, uint16_t id, const arg *args, uint32_t nargs, value_id v)
{
	arg result = {.kind = ARG_VALUE, .u.v = v};
	node_spec n = {
		.op = op_rows[id].text, .args = args, .nargs = nargs, .results = &result, .nresults = 1, .scope = NONE};
	node_id made;
	if (op < b->s->ops.n) {
		TRY(scope_of(b, b->s->ops.at[op].scope, &n.scope));
		TRY(context_of(b, op, &n.context));
		n.at = b->s->ops.at[op].at;
	} else {
		TRY(scope_of(b, 0, &n.scope));
	}
	return plan_node(b->p, &n, &made);
}

clv_status insert_tensor(builder *b, uint32_t op, uint16_t id, const arg *args, uint32_t nargs, uint32_t t)
{
	value_id v;
	TRY(new_value(b, VALUE_RESULT, NULL, t, &v));
	return insert_value(b, op, id, args, nargs, v);
}

static bool same_place(const stream_tensor *x, const stream_tensor *y)
{
	return x->storage == y->storage && x->dtype == y->dtype && x->ndim == y->ndim && x->offset == y->offset &&
	       x->strided && y->strided && x->conj == y->conj && x->neg == y->neg &&
	       (!x->ndim || (!memcmp(x->sizes, y->sizes, x->ndim * sizeof *x->sizes) &&
	                     !memcmp(x->strides, y->strides, x->ndim * sizeof *x->strides)));
}

static clv_status int_list(builder *b, uint32_t t, bool strides, arg *out)
{
	uint32_t mark = b->args.n;
	for (uint32_t i = 0; i < b->s->tensors.at[t].ndim; i++) {
		arg e = {.kind = ARG_INT};
		TRY(tensor_number(b, t, strides, i, &e.u.e));
		TRY(vec_push(&b->args, e));
	}
	TRY(plan_list(b->p, b->args.at + mark, b->args.n - mark, out));
	b->args.n = mark;
	return CLV_OK;
}

clv_status shape_list(builder *b, uint32_t t, arg *out)
{
	return int_list(b, t, false, out);
}

/* Tensor t as a view of a value on the same memory. */
static clv_status insert_view(builder *b, uint32_t op, uint32_t t, value_id base)
{
	const stream_tensor *x = &b->s->tensors.at[t];
	arg a[4] = {{.kind = ARG_VALUE, .u.v = base}};
	if (!x->requires_grad) {
		TRY(insert_tensor(b, op, OP_data, a, 1, t));
		a[0].u.v = b->value[t];
	}
	TRY(int_list(b, t, false, &a[1]));
	TRY(int_list(b, t, true, &a[2]));
	a[3].kind = ARG_INT;
	b->seen.n = 0;
	TRY(vec_push(&b->seen, x->offset));
	for (uint32_t i = 0; b->sizes && i < b->sizes->n; i++)
		TRY(vec_push(&b->seen, b->sizes->streams[i]->tensors.at[t].offset));
	TRY(number_formula(b, &a[3].u.e));
	return insert_tensor(b, op, OP_as_strided, a, 4, t);
}

/* .data and the like: a detached tensor on the memory of a recorded one. */
static clv_status insert_alias(builder *b, uint32_t op, uint32_t t)
{
	const stream_tensor *x = &b->s->tensors.at[t];
	const stream_tensor *y;
	for (uint32_t i = t; i-- > 0;) {
		y = &b->s->tensors.at[i];
		if (b->value[i] == NONE || !same_place(x, y))
			continue;
		if (x->requires_grad && y->requires_grad) { /* the same variable, unpacked by autograd */
			b->value[t] = b->value[i];
			return CLV_OK;
		}
		arg source = {.kind = ARG_VALUE, .u.v = b->value[i]};
		return insert_tensor(b, op, OP_data, &source, 1, t);
	}
	for (uint32_t i = t; i-- > 0;) { /* a view that only an operator's inside made, found again in its backward */
		y = &b->s->tensors.at[i];
		if (b->value[i] != NONE && y->storage == x->storage && y->dtype == x->dtype && y->strided && x->strided &&
		    y->conj == x->conj && y->neg == x->neg && x->requires_grad <= y->requires_grad)
			return insert_view(b, op, t, b->value[i]);
	}
	const char *what = "an argument lies on the memory of a recorded tensor, but no operator made the view "
					   "(set_, as_strided on storage)";
	if (op < b->s->ops.n)
		return fail_at(b->s, &b->s->ops.at[op], what);
	return fail(CLV_E_UNSUPPORTED, "an output: %s", what);
}

/* The value to use for tensor t in operator `op` (ops.n: in the outputs). */
static clv_status use_tensor(builder *b, uint32_t op, uint32_t t, value_id *out)
{
	const stream_tensor *x = &b->s->tensors.at[t];
	if (b->value[t] == NONE && b->moving[t])
		TRY(insert_table(b, op, t));
	if (b->value[t] == NONE && x->origin == ORIGIN_EXTERNAL)
		TRY(insert_alias(b, op, t));
	if (b->value[t] == NONE)
		return fail(CLV_E_UNSUPPORTED, "a result is used before the operator that made it was recorded");
	const value *v = &b->p->values.at[b->value[t]];
	if (v->kind == VALUE_CONST && !(v->flags & VALUE_PERSISTENT) && x->storage != NONE && b->touched[x->storage] &&
	    (op >= b->s->ops.n || b->s->ops.at[op].op_id != OP_cleave_guard_equal)) {
		arg clone[2] = {{.kind = ARG_VALUE, .u.v = b->value[t]}, {.kind = ARG_NONE}};
		b->root[x->storage] = NONE; /* each run has its own copy */
		TRY(insert_tensor(b, op, OP_clone, clone, 2, t));
	}
	*out = b->value[t];
	return CLV_OK;
}

/* A number that is not the same in all records: whether it is an argument later, or a guard, is seen at the end. */
static clv_status read_host_number(builder *b, const br_arg *r, uint32_t op, arg *out, bool *done)
{
	host_number h = {.first = b->read.n, .open = stream_reads_number(b->s, &b->s->ops.at[op])};
	TRY(take_numbers(b, op, r));
	*done = distinct(b->floats.at, b->floats.n) > 1 && (h.open || r->kind == BR_FLOAT);
	if (!*done)
		return CLV_OK;
	for (uint32_t i = 0; i < b->floats.n; i++)
		TRY(vec_push(&b->read, b->floats.at[i]));
	TRY(plan_host(b->p, r->kind == BR_INT ? TYPE_INT : TYPE_FLOAT, &h.v));
	out->u.v = h.v;
	return vec_push(&b->hosts, h);
}

/* Bounds for a float that calls take: a forward may branch at zero, at a change of sign, or far from all that was seen. */
static void float_bounds(const double *v, uint32_t n, double *lo, double *hi)
{
	*lo = *hi = v[0];
	for (uint32_t i = 1; i < n; i++) {
		*lo = v[i] < *lo ? v[i] : *lo;
		*hi = v[i] > *hi ? v[i] : *hi;
	}
	*lo = *lo > 0 ? *lo / 8 : *lo * 8;
	*hi = *hi > 0 ? *hi * 8 : *hi / 8;
}

static clv_status expect_between(builder *b, const double *v, arg *out)
{
	arg ends[2] = {{.kind = ARG_FLOAT}, {.kind = ARG_FLOAT}};
	float_bounds(v, b->sizes->n + 1, &ends[0].u.f, &ends[1].u.f);
	if (!(ends[0].u.f <= ends[1].u.f))
		return fail(CLV_E_UNSUPPORTED, "a float that is read from data is no number");
	return plan_list(b->p, ends, 2, out);
}

static clv_status settle_numbers(builder *b)
{
	for (uint32_t i = 0; i < b->hosts.n; i++) {
		const host_number *h = &b->hosts.at[i];
		const double *v = b->read.at + h->first;
		arg literal = {.kind = ARG_FLOAT, .u.f = v[0]};
		if (h->used && h->open)
			continue;
		if (h->used)
			TRY(expect_between(b, v, &literal));
		else if (b->p->values.at[h->v].type == TYPE_INT) {
			literal.kind = ARG_INT;
			TRY(expr_const(b->p, (int64_t)v[0], &literal.u.e));
		}
		TRY(plan_expect(b->p, h->v, &literal));
	}
	return CLV_OK;
}

static clv_status host_result(builder *b, const br_arg *r, uint32_t op, arg *out)
{
	static const value_type types[] = {[BR_INT] = TYPE_INT,
	                                   [BR_FLOAT] = TYPE_FLOAT,
	                                   [BR_BOOL] = TYPE_BOOL,
	                                   [BR_COMPLEX] = TYPE_COMPLEX,
	                                   [BR_STR] = TYPE_STR};
	arg literal;
	*out = (arg){.kind = ARG_VALUE};
	if ((r->kind == BR_FLOAT || r->kind == BR_INT) && b->sizes && b->sizes->flow) {
		bool done;
		TRY(read_host_number(b, r, op, out, &done));
		if (done)
			return CLV_OK;
	}
	TRY(to_arg(b, op, r, &literal));
	TRY(plan_host(b->p, types[r->kind], &out->u.v));
	return plan_expect(b->p, out->u.v, &literal);
}

static clv_status to_result(builder *b, uint32_t op, const br_arg *r, arg *out)
{
	*out = (arg){.kind = ARG_NONE};
	switch ((br_kind)r->kind) {
	case BR_NONE: return CLV_OK;
	case BR_TENSOR:
		out->kind = ARG_VALUE;
		TRY(new_value(b, VALUE_RESULT, NULL, r->u.id, &out->u.v));
		if (b->s->ops.at[op].flags & BR_DYNAMIC)
			b->p->values.at[out->u.v].flags |= VALUE_GUARD;
		return CLV_OK;
	case BR_INT:
	case BR_FLOAT:
	case BR_BOOL:
	case BR_COMPLEX:
	case BR_STR: return host_result(b, r, op, out);
	case BR_LIST: return convert_list(b, op, r, to_result, out);
	default: return fail_at(b->s, &b->s->ops.at[op], "its result is of a kind that plans cannot hold");
	}
}

static uint32_t node_flags_of(const stream_op *o)
{
	uint32_t f = 0;
	if (o->flags & BR_RANDOM)
		f |= NODE_RANDOM;
	if (o->flags & BR_HOST_READ)
		f |= NODE_HOST;
	if (o->op_id == OP_cleave_guard_equal)
		f |= NODE_HOST | NODE_IMPURE;
	if (o->op_id == OP_cleave_python || (!o->nresults && !o->nwrites))
		f |= NODE_IMPURE;
	return f;
}

/* torch.tensor ends with lift_fresh and detach_, which do nothing to a literal: their result is the literal itself. */
static clv_status add_literal(builder *b, uint32_t op, bool *done)
{
	const stream_op *o = &b->s->ops.at[op];
	value_id v;
	*done = false;
	if ((o->op_id != OP_lift_fresh && o->op_id != OP_detach_) || o->args[0].kind != BR_TENSOR ||
	    o->results[0].kind != BR_TENSOR || !b->literal[o->args[0].u.id])
		return CLV_OK;
	TRY(use_tensor(b, op, o->args[0].u.id, &v));
	b->value[o->results[0].u.id] = v;
	b->literal[o->results[0].u.id] = true;
	*done = true;
	return CLV_OK;
}

/* Argument or result i of the operator; it is left on b->args. */
static clv_status convert_one(builder *b, uint32_t op, const br_arg *from, uint32_t i, convert_fn convert)
{
	arg a;
	b->path.n = 0;
	b->in_results = convert == to_result;
	TRY(vec_push(&b->path, i));
	TRY(convert(b, op, from, &a));
	return vec_push(&b->args, a);
}

static clv_status add_stream_node(builder *b, uint32_t op)
{
	const stream_op *o = &b->s->ops.at[op];
	node_spec n = {.op = o->op, .nargs = o->nargs, .nresults = o->nresults, .at = o->at, .flags = node_flags_of(o)};
	node_id id;
	b->args.n = b->writes.n = 0;
	for (uint32_t i = 0; i < o->nargs; i++)
		TRY(convert_one(b, op, &o->args[i], i, to_arg));
	for (uint32_t i = 0; i < o->nwrites; i++)
		TRY(vec_push(&b->writes, b->value[o->writes[i]]));
	for (uint32_t i = 0; i < o->nresults; i++)
		TRY(convert_one(b, op, &o->results[i], i, to_result));
	TRY(scope_of(b, o->scope, &n.scope));
	TRY(context_of(b, op, &n.context));
	n.args = b->args.at;
	n.results = b->args.at + o->nargs;
	n.writes = b->writes.at;
	n.nwrites = b->writes.n;
	return plan_node(b->p, &n, &id);
}

static clv_status add_ends(builder *b, value_id *outputs)
{
	const stream *s = b->s;
	for (uint32_t i = 0; i < s->outputs.n; i++)
		TRY(use_tensor(b, s->ops.n, s->outputs.at[i], &outputs[i]));
	for (uint32_t i = 0; i < s->rebinds.n; i++) {
		rebind r;
		r.target = b->state_value[s->rebinds.at[i].state];
		TRY(use_tensor(b, s->ops.n, s->rebinds.at[i].tensor, &r.value));
		TRY(vec_push(&b->p->rebinds, r));
	}
	return CLV_OK;
}

/* ---- the whole -------------------------------------------------------------------------------------------------- */

static clv_status builder_init(builder *b)
{
	const stream *s = b->s;
	uint32_t nobjects = 0;
	b->nstorages = stream_storages(s);
	while (br_recorder_object(s->recorder, nobjects))
		nobjects++;
	b->drop = arena_array(&b->arrays, s->ops.n, sizeof *b->drop);
	b->value = arena_ids(&b->arrays, s->tensors.n);
	b->state_value = arena_ids(&b->arrays, s->states.n);
	b->root = arena_ids(&b->arrays, b->nstorages);
	b->touched = arena_array(&b->arrays, b->nstorages, sizeof *b->touched);
	b->unwritten = arena_array(&b->arrays, b->nstorages, sizeof *b->unwritten);
	b->scope = arena_ids(&b->arrays, s->scopes.n);
	b->object = arena_ids(&b->arrays, nobjects);
	b->python = arena_ids(&b->arrays, s->ops.n);
	b->literal = arena_array(&b->arrays, s->tensors.n, sizeof *b->literal);
	b->moving = arena_array(&b->arrays, s->tensors.n, sizeof *b->moving);
	for (uint32_t i = 0; b->literal && i < s->tensors.n; i++)
		b->literal[i] = s->tensors.at[i].origin == ORIGIN_FRESH;
	TRY_MEM(b->python && b->literal && b->moving && b->state_value && b->drop && b->value && b->root && b->touched &&
	        b->unwritten && b->scope && b->object);
	return CLV_OK;
}

static void builder_free(builder *b)
{
	arena_free(&b->arrays);
	vec_free(&b->args);
	vec_free(&b->writes);
	vec_free(&b->dims);
	vec_free(&b->seen);
	vec_free(&b->floats);
	vec_free(&b->hosts);
	vec_free(&b->read);
	vec_free(&b->path);
}

static clv_status build(builder *b, value_id *outputs)
{
	TRY(builder_init(b));
	for (uint32_t i = 0; b->sizes && i < b->sizes->nsymbols; i++) {
		symbol_id s;
		TRY(plan_symbol(b->p, b->sizes->names[i], b->sizes->lo[i], b->sizes->hi[i], &s));
		b->p->symbols.at[s].data = i + b->sizes->ndata >= b->sizes->nsymbols;
	}
	TRY(plan_cstr(b->p, b->s->scopes.at[0].cls, &b->p->model));
	TRY(drop_residue(b));
	find_touched(b);
	TRY(check_unwritten(b));
	TRY(define_values(b));
	for (uint32_t i = 0; i < b->s->ops.n; i++)
		if (!b->drop[i]) {
			bool done = false;
			clv_status st = add_literal(b, i, &done);
			if (st == CLV_OK && !done)
				st = add_stream_node(b, i);
			if (st != CLV_OK)
				return more_at(b->s, &b->s->ops.at[i], st);
		}
	TRY(settle_numbers(b));
	return add_ends(b, outputs);
}

clv_status stream_build(const stream *s, const uint8_t *classes, const stream *with_grad, const size_probes *sizes,
                        plan **plan_out, plan_data *data_out, value_id *outputs_out)
{
	builder b = {.s = s, .classes = classes, .with_grad = with_grad, .sizes = sizes, .data = data_out};
	*data_out = (plan_data){0};
	TRY(plan_new(&b.p));
	clv_status st = build(&b, outputs_out);
	builder_free(&b);
	if (st != CLV_OK) {
		plan_free(b.p);
		plan_data_free(data_out);
		return st;
	}
	*plan_out = b.p;
	return CLV_OK;
}
