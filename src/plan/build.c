/* Building a plan: every array of a plan grows here.
 *
 * Strings, expressions and contexts are interned, so that equal ones have equal ids; scopes are found by path.
 * Whatever a caller passes is checked for being in range, so that no sequence of calls is undefined; whether the
 * plan makes sense is the verifier's question. */
#include <string.h>

#include "plan/intern.h"
#include "plan/ops.h"
#include "plan/words.h"

/* ---- the plan and its strings ----------------------------------------------------------------------------------- */

static clv_status plan_init(plan *p)
{
	p->model = NONE;
	p->intern = mem_alloc(sizeof *p->intern);
	TRY_MEM(p->intern);
	p->intern->seed = (uintptr_t)p ^ (uintptr_t)p->intern << 16;
	context_id default_context;
	return plan_context(p, &(context){0}, NULL, &default_context);
}

clv_status plan_new(plan **out)
{
	plan *p = mem_alloc(sizeof *p);
	TRY_MEM(p);
	clv_status st = plan_init(p);
	if (st == CLV_OK)
		*out = p;
	else
		plan_free(p);
	return st;
}

static void intern_free(struct plan_intern *in)
{
	if (!in)
		return;
	arena_free(&in->bytes);
	table_free(&in->strs);
	table_free(&in->exprs);
	table_free(&in->reals);
	table_free(&in->contexts);
	vec_free(&in->named);
	vec_free(&in->expr_terms);
	vec_free(&in->real_terms);
	vec_free(&in->ordinal);
	mem_free(in);
}

void plan_free(plan *p)
{
	if (!p)
		return;
	intern_free(p->intern);
	vec_free(&p->strs);
	vec_free(&p->symbols);
	vec_free(&p->exprs);
	vec_free(&p->reals);
	vec_free(&p->scopes);
	vec_free(&p->contexts);
	vec_free(&p->autocasts);
	vec_free(&p->values);
	vec_free(&p->nodes);
	vec_free(&p->args);
	vec_free(&p->dims);
	vec_free(&p->ids);
	vec_free(&p->inputs);
	vec_free(&p->in_tree);
	vec_free(&p->out_tree);
	vec_free(&p->rebinds);
	vec_free(&p->ties);
	vec_free(&p->groups);
	mem_free(p);
}

typedef struct str_key {
	const plan *p;
	const char *s;
	size_t n;
} str_key;

static bool str_same(const void *ctx, uint32_t id)
{
	const str_key *k = ctx;
	const str *s = &k->p->strs.at[id];
	return s->n == k->n && (k->n == 0 || memcmp(s->s, k->s, k->n) == 0);
}

str_id str_find(const plan *p, const char *s, size_t n)
{
	return table_find(&p->intern->strs, hash_bytes(s, n, p->intern->seed), str_same, &(str_key){p, s, n});
}

clv_status plan_str(plan *p, const char *s, size_t n, str_id *out)
{
	uint32_t hash = hash_bytes(s, n, p->intern->seed);
	uint32_t found = table_find(&p->intern->strs, hash, str_same, &(str_key){p, s, n});
	if (found != TABLE_NONE) {
		*out = found;
		return CLV_OK;
	}
	if (n >= UINT32_MAX)
		return fail(CLV_E_OVERFLOW, "a string has more than 2^32 bytes");
	TRY(vec_reserve(&p->strs, 1));
	TRY(vec_reserve(&p->intern->named, 1));
	char *copy = arena_alloc(&p->intern->bytes, n + 1);
	TRY_MEM(copy);
	if (n)
		memcpy(copy, s, n);
	copy[n] = '\0';
	TRY(table_add(&p->intern->strs, hash, p->strs.n));
	TRY(vec_push(&p->intern->named, ((named){NONE, NONE, NONE})));
	*out = p->strs.n;
	return vec_push(&p->strs, ((str){copy, (uint32_t)n}));
}

clv_status plan_cstr(plan *p, const char *s, str_id *out)
{
	return plan_str(p, s, strlen(s), out);
}

const char *plan_s(const plan *p, str_id s)
{
	return str_at(p, s)->s;
}

scope_id scope_find(const plan *p, str_id path)
{
	return path < p->intern->named.n ? p->intern->named.at[path].scope : NONE;
}

value_id external_find(const plan *p, str_id name)
{
	return name < p->intern->named.n ? p->intern->named.at[name].value : NONE;
}

symbol_id symbol_find(const plan *p, str_id name)
{
	return name < p->intern->named.n ? p->intern->named.at[name].symbol : NONE;
}

/* ---- symbols, scopes, contexts ---------------------------------------------------------------------------------- */

static bool is_symbol_word(const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		bool letter = (s[i] >= 'a' && s[i] <= 'z') || (s[i] >= 'A' && s[i] <= 'Z') || s[i] == '_';
		bool digit = s[i] >= '0' && s[i] <= '9';
		if (!letter && !(digit && i))
			return false;
	}
	return n > 0;
}

bool symbol_name_ok(const char *s, size_t n)
{
	static const char *const words[] = {"none",   "true",    "false", "inf",    "nan",    "num",
	                                    "int",    "complex", "min",   "max",    "dtype",  "layout",
	                                    "memory", "device",  "bytes", "object", "opaque", "float"};
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (strlen(words[i]) == n && memcmp(words[i], s, n) == 0)
			return false;
	return is_symbol_word(s, n);
}

clv_status plan_symbol(plan *p, const char *name, int64_t lo, int64_t hi, symbol_id *out)
{
	if (!symbol_name_ok(name, strlen(name)))
		return fail(CLV_E_INVALID, "\"%s\" cannot name a symbol", name);
	if (lo < 0 || lo > hi)
		return fail(CLV_E_INVALID, "symbol %s has no valid range: %lld..%lld", name, (long long)lo, (long long)hi);
	str_id s;
	TRY(plan_cstr(p, name, &s));
	if (symbol_find(p, s) != NONE)
		return fail(CLV_E_INVALID, "there is already a symbol %s", name);
	TRY(vec_push(&p->symbols, ((symbol){s, lo, hi, 0})));
	*out = p->intern->named.at[s].symbol = p->symbols.n - 1;
	return CLV_OK;
}

symbol_id plan_find_symbol(const plan *p, const plan *other, symbol_id s)
{
	const char *name = plan_s(other, other->symbols.at[s].name);
	for (symbol_id i = 0; i < p->symbols.n; i++)
		if (strcmp(plan_s(p, p->symbols.at[i].name), name) == 0)
			return i;
	return NONE;
}

bool path_too_deep(const char *path, size_t n)
{
	size_t dots = 0;
	for (size_t i = 0; i < n; i++)
		dots += path[i] == '.';
	return dots >= NEST_LIMIT;
}

/* Modules without a forward of their own (ModuleList) need not be declared, so look further up than the parent. */
scope_id scope_ancestor(const plan *p, const char *path, size_t n, scope_id before)
{
	if (path_too_deep(path, n))
		return NONE;
	while (n > 0) {
		do {
			n--;
		} while (n > 0 && path[n] != '.');
		scope_id up = scope_find(p, str_find(p, path, n));
		if (up < before)
			return up;
	}
	return NONE;
}

clv_status plan_scope(plan *p, scope_id parent, const char *path, const char *cls, scope_id *out)
{
	size_t n = strlen(path);
	str_id path_s, cls_s;
	TRY(plan_str(p, path, n, &path_s));
	if (scope_find(p, path_s) != NONE) {
		*out = scope_find(p, path_s);
		return CLV_OK;
	}
	if (path_too_deep(path, n))
		return fail(CLV_E_INVALID, "the module path \"%s\" has more than %d parts", path, NEST_LIMIT);
	scope_id up = scope_ancestor(p, path, n, p->scopes.n);
	if (n > 0 && up == NONE)
		return fail(CLV_E_INVALID, "scope \"%s\" has no parent: declare the root scope \"\" first", path);
	if (parent != NONE && parent != up)
		return fail(CLV_E_INVALID, "the parent of scope \"%s\" is not scope %u: pass NONE, the path decides", path,
		            parent);
	TRY(plan_cstr(p, cls, &cls_s));
	TRY(vec_push(&p->scopes, ((scope){up, path_s, cls_s})));
	*out = p->intern->named.at[path_s].scope = p->scopes.n - 1;
	return CLV_OK;
}

typedef struct context_key {
	const plan *p;
	const context *c;
	const autocast *ac;
} context_key;

static bool autocast_same(const autocast *a, const autocast *b)
{
	return a->device == b->device && a->dtype == b->dtype && a->cache == b->cache;
}

static bool context_same(const void *ctx, uint32_t id)
{
	const context_key *k = ctx;
	const context *c = &k->p->contexts.at[id];
	if (c->nograd != k->c->nograd || c->inference != k->c->inference || c->flags_mask != k->c->flags_mask ||
	    c->flags != k->c->flags || c->nautocast != k->c->nautocast)
		return false;
	for (uint32_t i = 0; i < c->nautocast; i++)
		if (!autocast_same(&k->p->autocasts.at[c->autocast + i], &k->ac[i]))
			return false;
	return true;
}

static uint32_t context_hash(const plan *p, const context *c, const autocast *ac)
{
	uint32_t h = hash_bytes((uint32_t[]){c->nograd, c->inference, c->flags_mask, c->flags}, 16, p->intern->seed);
	for (uint32_t i = 0; i < c->nautocast; i++)
		h = hash_bytes((uint32_t[]){ac[i].device, ac[i].dtype, ac[i].cache}, 12, h);
	return h;
}

static clv_status context_check(const plan *p, const context *c, const autocast *ac)
{
	if (c->flags_mask >> CTX_FLAG_COUNT)
		return fail(CLV_E_INVALID, "a context sets a flag that does not exist");
	for (uint32_t i = 0; i < c->nautocast; i++)
		if (ac[i].device >= p->strs.n || ac[i].dtype >= DT_COUNT)
			return fail(CLV_E_INVALID, "an autocast has no valid device or dtype");
	return CLV_OK;
}

/* Callers may pass a part of the plan's own array, which moves when it grows. */
#define own_offset(v, src)                                                                                             \
	((v)->at && (uintptr_t)(src) - (uintptr_t)(v)->at < (v)->n * sizeof *(v)->at ? (size_t)((src) - (v)->at) : SIZE_MAX)

/* Appends src[0 … n-1] to a VEC of the plan; leaves the index of the first in *first. */
#define APPEND_SLICE(v, src, count, first)                                                                             \
	do {                                                                                                               \
		size_t own_ = own_offset(v, src);                                                                              \
		TRY(vec_reserve(v, count));                                                                                    \
		if ((count) > 0)                                                                                               \
			memcpy((v)->at + (v)->n, own_ == SIZE_MAX ? (src) : (v)->at + own_, (count) * sizeof *(v)->at);            \
		*(first) = (v)->n;                                                                                             \
		(v)->n += (count);                                                                                             \
	} while (0)

clv_status plan_context(plan *p, const context *c, const autocast *ac, context_id *out)
{
	TRY(context_check(p, c, ac));
	context k = *c;
	k.flags &= k.flags_mask;
	uint32_t hash = context_hash(p, &k, ac);
	uint32_t found = table_find(&p->intern->contexts, hash, context_same, &(context_key){p, &k, ac});
	if (found != TABLE_NONE) {
		*out = found;
		return CLV_OK;
	}
	APPEND_SLICE(&p->autocasts, ac, k.nautocast, &k.autocast);
	TRY(vec_reserve(&p->contexts, 1));
	TRY(table_add(&p->intern->contexts, hash, p->contexts.n));
	*out = p->contexts.n;
	return vec_push(&p->contexts, k);
}

/* ---- values ----------------------------------------------------------------------------------------------------- */

static clv_status add_plan_value(plan *p, const value *v, value_id *out)
{
	struct plan_intern *in = p->intern;
	TRY(vec_reserve(&p->values, 1));
	TRY(vec_reserve(&p->inputs, 1));
	uint32_t ordinal = NONE;
	if (v->kind == VALUE_INPUT)
		ordinal = p->inputs.n;
	else if (v->kind == VALUE_CONST || v->kind == VALUE_OBJECT)
		ordinal = in->nconsts;
	TRY(vec_push(&in->ordinal, ordinal));
	value_id id = p->values.n;
	p->values.at[p->values.n++] = *v;
	if (v->kind == VALUE_INPUT)
		p->inputs.at[p->inputs.n++] = id;
	else if (ordinal != NONE)
		in->nconsts++;
	else if (is_module_tensor(v->kind))
		in->named.at[v->name].value = id;
	*out = id;
	return CLV_OK;
}

static clv_status add_dims(plan *p, const expr_id *e, uint32_t n, uint32_t *first)
{
	for (uint32_t i = 0; i < n; i++)
		if (e[i] >= p->exprs.n)
			return fail(CLV_E_INVALID, "there is no expression %u", e[i]);
	APPEND_SLICE(&p->dims, e, n, first);
	return CLV_OK;
}

static clv_status name_value(plan *p, value_kind kind, const char *name, str_id *out)
{
	bool wants = is_module_tensor((uint8_t)kind);
	*out = NONE;
	if (wants != (name != NULL) && kind != VALUE_INPUT)
		return fail(CLV_E_INVALID, wants ? "a module tensor needs a name" : "results and constants have no name");
	if (!name)
		return CLV_OK;
	TRY(plan_cstr(p, name, out));
	if (wants && external_find(p, *out) != NONE)
		return fail(CLV_E_INVALID, "there is already a module tensor @%s", name);
	return CLV_OK;
}

clv_status plan_tensor(plan *p, value_kind kind, const char *name, const tensor_spec *t, value_id *out)
{
	if ((unsigned)kind > VALUE_RESULT || kind == VALUE_OBJECT)
		return fail(CLV_E_INVALID, "a tensor cannot be a value of kind %d", (int)kind);
	if ((unsigned)t->dtype >= DT_COUNT)
		return fail(CLV_E_INVALID, "there is no dtype %d", (int)t->dtype);
	value v = {.kind = (uint8_t)kind, .type = TYPE_TENSOR, .dtype = (uint8_t)t->dtype, .ndim = t->ndim};
	v.strides = v.alias = v.def = v.expect = NONE;
	TRY(name_value(p, kind, name, &v.name));
	TRY(plan_cstr(p, t->device ? t->device : "cpu", &v.device));
	TRY(add_dims(p, t->shape, t->ndim, &v.shape));
	if (t->strides)
		TRY(add_dims(p, t->strides, t->ndim, &v.strides));
	return add_plan_value(p, &v, out);
}

static value host_value(value_kind kind, value_type type)
{
	value v = {.kind = (uint8_t)kind, .type = (uint8_t)type};
	v.strides = v.device = v.name = v.alias = v.def = v.expect = NONE;
	return v;
}

clv_status plan_object(plan *p, const char *type_name, value_id *out)
{
	value v = host_value(VALUE_OBJECT, TYPE_OBJECT);
	TRY(plan_cstr(p, type_name, &v.name));
	return add_plan_value(p, &v, out);
}

clv_status plan_host(plan *p, value_type type, value_id *out)
{
	if ((unsigned)type > TYPE_OBJECT || type == TYPE_TENSOR)
		return fail(CLV_E_INVALID, "a host value cannot have type %d", (int)type);
	value v = host_value(VALUE_RESULT, type);
	return add_plan_value(p, &v, out);
}

value_id alias_root(const plan *p, value_id v)
{
	value_id up = v < p->values.n ? p->values.at[v].alias : NONE;
	return up == NONE ? v : up;
}

uint32_t value_number(const plan *p, value_id v)
{
	if (v >= p->values.n || v >= p->intern->ordinal.n)
		return NONE;
	uint32_t k = p->intern->ordinal.at[v];
	uint8_t kind = p->values.at[v].kind;
	if (kind == VALUE_RESULT)
		return k == NONE ? NONE : p->inputs.n + k;
	if (kind != VALUE_INPUT || (k < p->inputs.n && p->inputs.at[k] == v))
		return k;
	for (k = 0; k < p->inputs.n; k++) /* plan->inputs was reordered */
		if (p->inputs.at[k] == v)
			return k;
	return NONE;
}

/* ---- arguments and nodes ---------------------------------------------------------------------------------------- */

static bool arg_in_range(const plan *p, const arg *a)
{
	switch ((arg_kind)a->kind) {
	case ARG_VALUE: return a->u.v < p->values.n;
	case ARG_INT: return a->u.e < p->exprs.n;
	case ARG_REAL: return a->u.r < p->reals.n;
	case ARG_STR:
	case ARG_DEVICE: return a->u.s < p->strs.n;
	case ARG_DTYPE: return a->u.code < DT_COUNT;
	case ARG_LAYOUT: return a->u.code < LAYOUT_COUNT;
	case ARG_MEMFMT: return a->u.code < MEMFMT_COUNT;
	case ARG_LIST: return in_range(a->u.list.first, a->u.list.n, p->args.n);
	default: return a->kind <= ARG_REAL;
	}
}

static clv_status add_args(plan *p, const arg *args, uint32_t n, uint32_t *first)
{
	for (uint32_t i = 0; i < n; i++)
		if (!arg_in_range(p, &args[i]))
			return fail(CLV_E_INVALID, "argument %u of %u names something that is not in the plan", i + 1, n);
	APPEND_SLICE(&p->args, args, n, first);
	return CLV_OK;
}

clv_status plan_list(plan *p, const arg *elems, uint32_t n, arg *out)
{
	uint32_t first;
	TRY(add_args(p, elems, n, &first));
	*out = (arg){.kind = ARG_LIST, .u.list = {first, n}};
	return CLV_OK;
}

typedef struct definer {
	plan *p;
	node_id n;
	bool twice;
} definer;

static void check_definable(void *ctx, value_id v)
{
	definer *d = ctx;
	if (d->p->values.at[v].kind != VALUE_RESULT || d->p->values.at[v].def != NONE)
		d->twice = true;
}

static void define(void *ctx, value_id v)
{
	definer *d = ctx;
	if (d->p->values.at[v].def == NONE)
		d->p->intern->ordinal.at[v] = d->p->intern->nresults++;
	d->p->values.at[v].def = d->n;
}

void number_results(plan *p)
{
	definer d = {.p = p};
	p->intern->nresults = 0;
	for (value_id v = 0; v < p->values.n; v++) {
		p->values.at[v].def = NONE;
		if (p->values.at[v].kind == VALUE_RESULT)
			p->intern->ordinal.at[v] = NONE;
	}
	for (; d.n < p->nodes.n; d.n++)
		node_each_result(p, d.n, define, &d);
}

static clv_status add_writes(plan *p, const value_id *w, uint32_t n, uint32_t *first)
{
	for (uint32_t i = 0; i < n; i++)
		if (w[i] >= p->values.n)
			return fail(CLV_E_INVALID, "there is no value %u", w[i]);
	APPEND_SLICE(&p->ids, w, n, first);
	return CLV_OK;
}

static clv_status node_parts(plan *p, const node_spec *s, node *n)
{
	if (s->scope != NONE && s->scope >= p->scopes.n)
		return fail(CLV_E_INVALID, "there is no scope %u", s->scope);
	if (s->context >= p->contexts.n)
		return fail(CLV_E_INVALID, "there is no context %u", s->context);
	TRY(plan_cstr(p, s->op, &n->op));
	n->op_id = op_find(s->op);
	if (s->at)
		TRY(plan_cstr(p, s->at, &n->at));
	TRY(add_args(p, s->args, s->nargs, &n->args));
	TRY(add_args(p, s->results, s->nresults, &n->results));
	return add_writes(p, s->writes, s->nwrites, &n->writes);
}

clv_status plan_node(plan *p, const node_spec *s, node_id *out)
{
	node n = {.nargs = s->nargs, .nresults = s->nresults, .nwrites = s->nwrites};
	n.scope = s->scope;
	n.context = s->context;
	n.flags = s->flags;
	n.at = NONE;
	TRY(node_parts(p, s, &n));
	TRY(vec_push(&p->nodes, n));
	node_id id = p->nodes.n - 1;
	definer d = {p, id, false};
	node_each_result(p, id, check_definable, &d);
	if (d.twice) {
		p->nodes.n--;
		return fail(CLV_E_INVALID, "a result of %s is already defined elsewhere or is no result", s->op);
	}
	node_each_result(p, id, define, &d);
	*out = id;
	return CLV_OK;
}

clv_status plan_expect(plan *p, value_id host, const arg *literal)
{
	if (host >= p->values.n || p->values.at[host].type == TYPE_TENSOR)
		return fail(CLV_E_INVALID, "value %u is no host value, so it cannot be compared with a literal", host);
	uint32_t first;
	TRY(add_args(p, literal, 1, &first));
	p->values.at[host].expect = first;
	p->values.at[host].flags |= VALUE_GUARD;
	return CLV_OK;
}
