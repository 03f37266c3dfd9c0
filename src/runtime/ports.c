/* Inputs and outputs of a runtime: names, types, symbolic shapes. */
#include <string.h>

#include "base/limits.h"
#include "base/options.h"
#include "base/table.h"
#include "runtime/runtime.h"
#include "plan/intern.h"

static clv_status print_dims(runtime *r, const plan *p, const value *x, const char *const **out)
{
	const char **dims = arena_alloc(&r->arena, (x->ndim + 1) * sizeof *dims);
	TRY_MEM(dims);
	for (uint32_t i = 0; i < x->ndim; i++) {
		strbuf b = STRBUF_INIT;
		expr_print(p, p->dims.at[x->shape + i], &b);
		TRY(arena_take(&r->arena, &b, &dims[i]));
	}
	*out = dims;
	return CLV_OK;
}

static clv_status make_port(runtime *r, const plan *p, value_id v, strbuf *name, clv_port *out)
{
	const value *x = &p->values.at[v];
	*out = (clv_port){.dtype = dtype_name((dtype)x->dtype), .device = plan_s(p, x->device), .ndim = x->ndim};
	TRY(arena_take(&r->arena, name, &out->name));
	return print_dims(r, p, x, &out->dims);
}

static clv_status add_input(runtime *r, const plan *p, value_id v)
{
	strbuf name = STRBUF_INIT;
	clv_port x;
	if (p->values.at[v].kind == VALUE_INPUT && p->values.at[v].name != NONE && r->part != PART_SUFFIX)
		strbuf_puts(&name, plan_s(p, p->values.at[v].name));
	else
		value_label(p, v, &name);
	TRY(make_port(r, p, v, &name, &x));
	return vec_push(&r->inputs, x);
}

static clv_status add_label(runtime *r, runtime_plan *e, value_id v)
{
	strbuf name = STRBUF_INIT;
	clv_port x;
	value_label(e->of.p, v, &name);
	TRY(make_port(r, e->of.p, v, &name, &x));
	return vec_push(&e->outputs, x);
}

typedef struct walker {
	runtime *r;
	runtime_plan *e;
	const plan *p;
	uint32_t at;    /* next token */
	uint32_t *port; /* per value: an output that it is; NONE. The text of its sizes is made once */
} walker;

/* Outputs in one long place each have it in their name. NULL: it is too long, and they have numbers instead. */
enum { MOST_PATH = 256 };

static clv_status walk(walker *w, const char *path);

/* number: of the key among those of its dict, for what has no short text of its own: a tuple, None, a float, "" */
static void append_key(strbuf *b, const plan *p, const tree *key, bool field, uint32_t number)
{
	bool has_text = key->kind == TREE_STR && plan_s(p, key->u.s)[0];
	if (has_text && (field || b->n == 0)) {
		if (b->n)
			strbuf_putc(b, '.');
		strbuf_puts(b, plan_s(p, key->u.s));
	} else if (has_text) {
		strbuf_printf(b, "[\"%s\"]", plan_s(p, key->u.s));
	} else if (key->kind == TREE_INT) {
		strbuf_putc(b, '[');
		expr_print(p, key->u.e, b);
		strbuf_putc(b, ']');
	} else {
		strbuf_printf(b, "[key %u]", number);
	}
}

static clv_status walk_child(walker *w, const tree *parent, const char *path, uint32_t i)
{
	strbuf b = STRBUF_INIT;
	char *here;
	bool pairs = parent->kind == TREE_DICT || parent->kind == TREE_OBJECT;
	const tree *key = &w->p->out_tree.at[w->at];
	if (pairs)
		TRY(walk(w, path)); /* over the key: a tuple has tokens of its own */
	if (!path)
		return walk(w, NULL);
	strbuf_puts(&b, path);
	if (pairs)
		append_key(&b, w->p, key, parent->kind == TREE_OBJECT, i / 2);
	else
		strbuf_printf(&b, "[%u]", i);
	size_t n = b.n;
	TRY(strbuf_take(&b, &here));
	clv_status st = walk(w, n > MOST_PATH ? NULL : here);
	mem_free(here);
	return st;
}

static clv_status add_output(walker *w, value_id v, const char *path)
{
	strbuf name = STRBUF_INIT;
	clv_port x;
	strbuf_puts(&name, path && path[0] ? path : "output");
	if (w->port[v] == NONE) {
		w->port[v] = w->e->outputs.n;
		TRY(make_port(w->r, w->p, v, &name, &x));
	} else {
		x = w->e->outputs.at[w->port[v]];
		TRY(arena_take(&w->r->arena, &name, &x.name));
	}
	return vec_push(&w->e->outputs, x);
}

static clv_status walk(walker *w, const char *path)
{
	const tree *t = &w->p->out_tree.at[w->at++];
	if (t->kind == TREE_VALUE && w->e->outputs.n < w->e->noutputs)
		return add_output(w, t->u.v, path);
	bool pairs = t->kind == TREE_DICT || t->kind == TREE_OBJECT;
	for (uint32_t i = 0; tree_has_children(t->kind) && i < t->n; i += pairs ? 2 : 1)
		TRY(walk_child(w, t, path, i));
	return CLV_OK;
}

typedef struct naming {
	runtime *r;
	runtime_plan *e;
	uint64_t seed;
	table by_name;
	uint32_t next; /* number for what has the name of another: that of the output, or the first after it that is free */
} naming;

typedef struct name_key {
	const naming *g;
	const char *name;
} name_key;

static bool name_same(const void *ctx, uint32_t id)
{
	const name_key *k = ctx;
	return strcmp(k->g->e->outputs.at[id].name, k->name) == 0;
}

static uint32_t name_hash(const naming *g, const char *name)
{
	return hash_bytes(name, strlen(name), g->seed);
}

static bool name_taken(const naming *g, const char *name)
{
	return table_find(&g->by_name, name_hash(g, name), name_same, &(name_key){g, name}) != TABLE_NONE;
}

static clv_status name_output(naming *g, uint32_t i)
{
	clv_port *x = &g->e->outputs.at[i];
	const char *name = x->name;
	if (g->next < i)
		g->next = i;
	while (name_taken(g, name)) {
		strbuf b = STRBUF_INIT;
		strbuf_printf(&b, "%s_%u", x->name, g->next++);
		TRY(arena_take(&g->r->arena, &b, &name));
	}
	x->name = name;
	return table_add(&g->by_name, name_hash(g, name), i);
}

/* Keys may look like paths: {"x[0]": …, "x": […]}. */
static clv_status name_outputs(runtime *r, runtime_plan *e)
{
	naming g = {.r = r, .e = e, .seed = e->of.p->intern->seed};
	clv_status st = CLV_OK;
	for (uint32_t i = 0; st == CLV_OK && i < e->outputs.n; i++)
		st = name_output(&g, i);
	table_free(&g.by_name);
	return st;
}

static clv_status describe_outputs(runtime *r, runtime_plan *e)
{
	walker w = {.r = r, .e = e, .p = e->of.p};
	for (uint32_t i = 0; !e->of.whole && i < e->noutputs; i++)
		TRY(add_label(r, e, e->of.outputs.at[i]));
	if (!e->of.whole)
		return CLV_OK;
	if (e->e->nstores) /* (output, stored tensors): the paths are those of the first */
		w.at = 1;
	uint32_t n = w.p->values.n;
	w.port = mem_realloc(NULL, n + 1, sizeof *w.port);
	TRY_MEM(w.port);
	memset(w.port, 0xff, n * sizeof *w.port);
	clv_status st = w.p->out_tree.n ? walk(&w, "") : CLV_OK;
	mem_free(w.port);
	return st == CLV_OK ? name_outputs(r, e) : st;
}

static bool same_names(const runtime_plan *a, const runtime_plan *b)
{
	bool same = a->outputs.n == b->outputs.n;
	for (uint32_t i = 0; same && i < a->outputs.n; i++)
		same = strcmp(a->outputs.at[i].name, b->outputs.at[i].name) == 0;
	return same;
}

/* A boundary names its values by the labels of its own plan: only what the model returns is the caller's to know. */
clv_status runtime_describe(runtime *r)
{
	runtime_plan *first = &r->plans.at[0];
	for (uint32_t i = 0; i < first->of.v.inputs.n; i++)
		TRY(add_input(r, first->of.p, first->of.v.inputs.at[i]));
	for (uint32_t i = 0; i < r->plans.n; i++) {
		runtime_plan *e = &r->plans.at[i];
		TRY(describe_outputs(r, e));
		e->other_outputs = e->of.whole && !same_names(first, e);
	}
	return CLV_OK;
}

static void list_names(const runtime_plan *e, strbuf *b)
{
	for (uint32_t i = 0; i < e->outputs.n; i++)
		strbuf_printf(b, "%s%.64s", i ? ", " : "", e->outputs.at[i].name);
	if (!e->outputs.n)
		strbuf_puts(b, "no tensor");
}

clv_status runtime_fail_outputs(const runtime *r, uint32_t i)
{
	strbuf b = STRBUF_INIT;
	strbuf_puts(&b, "on this data the model returns ");
	list_names(&r->plans.at[i], &b);
	strbuf_puts(&b, ", not ");
	list_names(&r->plans.at[0], &b);
	strbuf_puts(
		&b, " as on its example: clv_runtime_run_any() gives both; or have the forward return the same names on all "
			"data");
	return strbuf_fail(CLV_E_UNSUPPORTED, &b);
}

static clv_status symbols_of(const plan *p, const clv_sizes *sizes, int64_t *out)
{
	text_index given;
	TRY(text_index_new(sizes ? sizes->symbols : NULL, sizes ? sizes->n : 0, sizeof *sizes->symbols, &given));
	for (uint32_t i = 0; i < p->symbols.n; i++) {
		uint32_t k = text_index_find(&given, plan_s(p, p->symbols.at[i].name));
		out[i] = k == TABLE_NONE ? p->symbols.at[i].lo : sizes->values[k];
	}
	text_index_free(&given);
	return CLV_OK;
}

static clv_status layout_of(const plan *p, const value *x, const int64_t *symbols, int64_t *shape, int64_t *strides)
{
	int64_t dense = 1;
	for (uint32_t d = x->ndim; d-- > 0;) {
		TRY(expr_eval(p, p->dims.at[x->shape + d], symbols, &shape[d]));
		if (!strides)
			continue;
		strides[d] = dense;
		if (x->strides != NONE)
			TRY(expr_eval(p, p->dims.at[x->strides + d], symbols, &strides[d]));
		if (__builtin_mul_overflow(dense, shape[d], &dense))
			return fail(CLV_E_OVERFLOW, "the input has more than 2^63 elements");
	}
	return CLV_OK;
}

clv_status runtime_make(const runtime *r, const plan *p, value_id v, const tensor_form *s, int64_t *made,
                        clv_tensor **out)
{
	char scratch[32];
	const char *name = input_name(p, v, scratch, sizeof scratch);
	/* The process of a sandbox has them once more. */
	int64_t most = r->max_memory ? r->max_memory : limits_of_stranger() / (r->apart ? 2 : 1);
	tensor_form rows = *s;
	size_t n, want;
	rows.strides = NULL;
	TRY(tensor_extent(name, s, &n));
	TRY(tensor_extent(name, &rows, &want)); /* where elements share memory: each of them is written */
	want = n > want ? n : want;
	if (want > (uint64_t)most || *made > most - (int64_t)want)
		return fail(CLV_E_LIMIT, "input %s takes %zu bytes, and inputs that are made up may take %lld together%s", name,
		            want, (long long)most, r->max_memory ? "" : ", as there is no limit that says more (max_memory)");
	TRY(tensor_new(s, out));
	if (n)
		memset((*out)->data, 0, n);
	(*out)->made = true;
	*made += (int64_t)n;
	return CLV_OK;
}

clv_status clv_runtime_input_shape(const clv_runtime *r, uint32_t which, uint32_t i, const clv_sizes *sizes,
                                   int64_t *shape, int64_t *strides)
{
	if (!r || which >= r->plans.n || i >= r->plans.at[which].of.v.inputs.n || !shape)
		return fail(CLV_E_INVALID, "clv_runtime_input_shape: there is no input %u of a plan %u, or no place for it", i,
		            which);
	TRY(sizes_check(sizes));
	const plan_part *g = &r->plans.at[which].of;
	int64_t *symbols = mem_alloc((g->p->symbols.n + 1) * sizeof *symbols);
	TRY_MEM(symbols);
	clv_status st = symbols_of(g->p, sizes, symbols);
	if (st == CLV_OK)
		st = layout_of(g->p, &g->p->values.at[g->v.inputs.at[i]], symbols, shape, strides);
	mem_free(symbols);
	return st;
}

clv_status clv_runtime_make_input(const clv_runtime *r, uint32_t which, uint32_t i, const clv_sizes *sizes,
                                  int64_t *made, clv_tensor **out, void **data)
{
	if (!r || which >= r->plans.n || i >= r->plans.at[which].of.v.inputs.n || !made || *made < 0 || !out || !data)
		return fail(CLV_E_INVALID,
		            "clv_runtime_make_input: there is no input %u of a plan %u, or an argument is missing", i, which);
	const plan_part *g = &r->plans.at[which].of;
	value_id v = g->v.inputs.at[i];
	const value *x = &g->p->values.at[v];
	int64_t *sizes_of = mem_alloc((2 * (size_t)x->ndim + 1) * sizeof *sizes_of), *strides = sizes_of + x->ndim;
	TRY_MEM(sizes_of);
	tensor_form s = {.dtype = x->dtype, .ndim = x->ndim, .sizes = sizes_of, .strides = strides};
	clv_status st = clv_runtime_input_shape(r, which, i, sizes, sizes_of, strides);
	if (st == CLV_OK && dtype_quantised(x->dtype))
		st = fail(CLV_E_UNSUPPORTED, "an input of type %s is not made up: it has scales and zero points",
		          dtype_name((dtype)x->dtype));
	if (st == CLV_OK)
		st = runtime_make(r, g->p, v, &s, made, out);
	if (st == CLV_OK)
		*data = (*out)->data;
	mem_free(sizes_of);
	return st;
}
