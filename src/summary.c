/* All about a plan on one page, or as one JSON object: what is in it (src/plan), what it costs and where it cannot be cut
 * (src/split). */
#include <math.h>
#include <string.h>

#include "file/json.h"
#include "base/human.h"
#include "plan/inspect.h"
#include "plan/intern.h"
#include "split/frontier.h"

/* ---- for people -------------------------------------------------------------------------------------------------- */

/* " at B=1, S=2" */
static void print_sizes(const clv_frontiers *f, strbuf *b)
{
	const plan *p = f->p;
	for (uint32_t i = 0; i < p->symbols.n; i++)
		strbuf_printf(b, "%s%s=%lld", i ? ", " : " at ", plan_s(p, p->symbols.at[i].name), (long long)f->syms[i]);
}

/* 598, 1.2 k, 3.6 G: tenths by hand, as printf's point depends on the locale. */
static void print_scaled(strbuf *b, double v)
{
	static const char *const units[] = {"", " k", " M", " G", " T", " P"};
	unsigned unit = 0;
	for (; v >= 1000 && unit < 5; unit++)
		v /= 1000;
	double tenths = floor(v * 10 + 0.5);
	if (unit == 0 || tenths > 1e15)
		strbuf_printf(b, "%.0f%s", v, units[unit]);
	else
		strbuf_printf(b, "%lld.%lld%s", (long long)tenths / 10, (long long)tenths % 10, units[unit]);
}

static void print_cost(const clv_frontiers *f, strbuf *b)
{
	inspect_heading(b, "work");
	print_scaled(b, f->flops);
	strbuf_puts(b, " operations");
	print_sizes(f, b);
	strbuf_putc(b, '\n');
	inspect_heading(b, "memory");
	strbuf_bytes(b, f->memory);
	print_sizes(f, b);
	strbuf_putc(b, '\n');
}

static void print_unsafe(const clv_frontiers *f, strbuf *b)
{
	uint32_t count = 0;
	for (node_id k = 0; k < f->n; k++) {
		if (!f->at[k].unsafe)
			continue;
		if (count++ == 0)
			strbuf_puts(b, "\ncannot be cut after\n");
		if (count <= INSPECT_LINES)
			strbuf_printf(b, "  %s: %s\n", node_name(f->names, k), f->at[k].unsafe);
	}
	inspect_more(b, count);
}

static clv_status print_page(const clv_frontiers *f, strbuf *b)
{
	TRY(inspect_facts(f->p, b));
	print_cost(f, b);
	TRY(inspect_lists(f->p, b));
	print_unsafe(f, b);
	return CLV_OK;
}

/* ---- as JSON ----------------------------------------------------------------------------------------------------- */

/* Names in plans may hold any bytes, and JSON may not: such a name is written as in the plan text, "\\xff". */
static clv_status put_name(json_t *object, const char *key, const char *s, size_t n)
{
	if (utf8_valid(s, n) && !memchr(s, 0, n))
		return json_put_text(object, key, s, n);
	strbuf b = STRBUF_INIT;
	strbuf_quoted_ascii(&b, s, n);
	clv_status st = b.failed ? fail_nomem() : json_put_text(object, key, b.at, b.n);
	strbuf_free(&b);
	return st;
}

static clv_status put_str(json_t *object, const char *key, const char *s)
{
	return put_name(object, key, s, strlen(s));
}

static clv_status put_id(const plan *p, json_t *object, const char *key, str_id id)
{
	if (id == NONE)
		return json_put(object, key, json_null());
	return put_name(object, key, str_at(p, id)->s, str_at(p, id)->n);
}

static clv_status put_int(json_t *object, const char *key, int64_t n)
{
	return json_put(object, key, n == INT64_MAX ? json_null() : json_integer(n));
}

static clv_status put_buf(json_t *object, const char *key, strbuf *b)
{
	clv_status st = b->failed ? fail_nomem() : put_name(object, key, b->at ? b->at : "", b->n);
	strbuf_free(b);
	return st;
}

/* A new object at the end of an array; borrowed. */
static clv_status push_object(json_t *array, json_t **out)
{
	json_t *o = json_object();
	TRY(json_push(array, o));
	*out = o;
	return CLV_OK;
}

/* A new member, which is borrowed. */
static clv_status put_new(json_t *root, const char *key, json_t *fresh, json_t **out)
{
	TRY(json_put(root, key, fresh));
	*out = fresh;
	return CLV_OK;
}

static clv_status add_symbols(const clv_frontiers *f, json_t *root)
{
	const plan *p = f->p;
	json_t *list, *o;
	TRY(put_new(root, "symbols", json_array(), &list));
	for (uint32_t i = 0; i < p->symbols.n; i++) {
		const symbol *s = &p->symbols.at[i];
		TRY(push_object(list, &o));
		TRY(put_id(p, o, "name", s->name));
		TRY(put_int(o, "lo", s->lo));
		TRY(put_int(o, "hi", s->hi));
		TRY(put_int(o, "size", f->syms[i]));
	}
	return CLV_OK;
}

static clv_status add_value(const plan *p, value_id v, json_t *list)
{
	json_t *o;
	strbuf label = STRBUF_INIT, type = STRBUF_INIT;
	TRY(push_object(list, &o));
	value_label(p, v, &label);
	TRY(put_buf(o, "label", &label));
	value_print_type(p, v, &type);
	TRY(put_buf(o, "type", &type));
	return put_id(p, o, "name", p->values.at[v].kind == VALUE_INPUT ? p->values.at[v].name : NONE);
}

static clv_status add_ends(const plan *p, json_t *root)
{
	json_t *list;
	TRY(put_new(root, "inputs", json_array(), &list));
	for (uint32_t i = 0; i < p->inputs.n; i++)
		TRY(add_value(p, p->inputs.at[i], list));
	TRY(put_new(root, "outputs", json_array(), &list));
	for (uint32_t i = 0; i < p->out_tree.n; i++)
		if (p->out_tree.at[i].kind == TREE_VALUE)
			TRY(add_value(p, p->out_tree.at[i].u.v, list));
	return CLV_OK;
}

static clv_status add_externals(const clv_frontiers *f, json_t *root)
{
	static const struct {
		value_kind kind;
		const char *key;
	} kinds[] = {{VALUE_PARAM, "parameters"},
	             {VALUE_BUFFER, "buffers"},
	             {VALUE_ATTR, "attributes"},
	             {VALUE_CONST, "constants"},
	             {VALUE_OBJECT, "objects"}};
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		tally t;
		json_t *o;
		TRY(tally_kind(f->p, kinds[i].kind, f->syms, &t));
		TRY(put_new(root, kinds[i].key, json_object(), &o));
		TRY(put_int(o, "count", (int64_t)t.count));
		if (kinds[i].kind != VALUE_OBJECT)
			TRY(put_int(o, "bytes", t.too_large ? INT64_MAX : t.bytes));
		if (kinds[i].kind != VALUE_PARAM)
			continue;
		TRY(put_int(o, "elements", f->params));
		TRY(put_int(o, "trainable", (int64_t)t.trainable));
		TRY(put_int(o, "tied_names", f->p->ties.n));
	}
	return CLV_OK;
}

static clv_status add_effects(const plan *p, json_t *root)
{
	json_t *o;
	uint32_t writes = 0;
	for (node_id i = 0; i < p->nodes.n; i++)
		writes += p->nodes.at[i].nwrites > 0;
	TRY(put_int(root, "nodes", p->nodes.n));
	TRY(put_int(root, "modules", p->scopes.n));
	TRY(put_new(root, "effects", json_object(), &o));
	TRY(put_int(o, "in_place", writes));
	TRY(put_int(o, "random", count_nodes(p, NODE_RANDOM)));
	TRY(put_int(o, "host_reads", count_nodes(p, NODE_HOST)));
	TRY(put_int(o, "impure", count_nodes(p, NODE_IMPURE)));
	return put_int(o, "rebound", p->rebinds.n);
}

static clv_status add_cost(const clv_frontiers *f, json_t *root)
{
	TRY(json_put(root, "flops", isfinite(f->flops) ? json_real(f->flops) : json_null()));
	return put_int(root, "memory", f->memory);
}

static clv_status fill_operators(const plan *p, const op_count *c, uint32_t n, json_t *list)
{
	json_t *o;
	for (uint32_t i = 0; i < n; i++) {
		TRY(push_object(list, &o));
		TRY(put_id(p, o, "name", c[i].op));
		TRY(put_int(o, "count", c[i].n));
	}
	return CLV_OK;
}

static clv_status add_operators(const plan *p, json_t *root)
{
	json_t *list;
	op_count *c;
	uint32_t n;
	TRY(put_new(root, "operators", json_array(), &list));
	TRY(count_ops(p, &c, &n));
	clv_status st = fill_operators(p, c, n, list);
	mem_free(c);
	return st;
}

static clv_status put_place(const clv_frontiers *f, node_id n, json_t *o)
{
	TRY(put_int(o, "position", n));
	TRY(put_str(o, "name", node_name(f->names, n)));
	TRY(put_str(o, "module", module_path(f->p, n)));
	return put_id(f->p, o, "at", f->p->nodes.at[n].at);
}

typedef struct guard_list {
	const clv_frontiers *f;
	json_t *list;
	clv_status st;
} guard_list;

static clv_status push_guard(const guard_list *g, node_id n, const char *text, size_t length)
{
	json_t *o;
	TRY(push_object(g->list, &o));
	TRY(put_place(g->f, n, o));
	return put_name(o, "expects", text, length);
}

static void add_guard(void *ctx, node_id n, const char *text, size_t length)
{
	guard_list *g = ctx;
	if (g->st == CLV_OK)
		g->st = push_guard(g, n, text, length);
}

static clv_status add_guards(const clv_frontiers *f, json_t *root)
{
	guard_list g = {.f = f};
	TRY(put_new(root, "guards", json_array(), &g.list));
	TRY(plan_each_guard(f->p, add_guard, &g));
	return g.st;
}

static clv_status add_unsafe(const clv_frontiers *f, json_t *root)
{
	json_t *list, *o;
	TRY(put_new(root, "unsafe", json_array(), &list));
	for (node_id k = 0; k < f->n; k++) {
		if (!f->at[k].unsafe)
			continue;
		TRY(push_object(list, &o));
		TRY(put_place(f, k, o));
		TRY(put_str(o, "reason", f->at[k].unsafe));
	}
	return CLV_OK;
}

static clv_status fill_summary(const clv_frontiers *f, json_t *root)
{
	const plan *p = f->p;
	TRY(put_id(p, root, "model", p->model));
	TRY(put_str(root, "mode", p->training ? "train" : "eval"));
	TRY(json_put(root, "proven_without_grad", json_boolean(p->grad_modes & 1)));
	TRY(json_put(root, "proven_with_grad", json_boolean(p->grad_modes & 2)));
	TRY(add_symbols(f, root));
	TRY(add_ends(p, root));
	TRY(add_externals(f, root));
	TRY(add_effects(p, root));
	TRY(add_cost(f, root));
	TRY(add_operators(p, root));
	TRY(add_guards(f, root));
	return add_unsafe(f, root);
}

static clv_status print_json(const clv_frontiers *f, strbuf *b)
{
	json_t *root = json_object();
	clv_status st = root ? fill_summary(f, root) : fail_nomem();
	if (st == CLV_OK)
		st = json_print(root, 0, b);
	json_decref(root);
	strbuf_putc(b, '\n');
	return st;
}

clv_status clv_frontiers_inspect(const clv_frontiers *f, bool json, char **out)
{
	if (!f || !out)
		return fail(CLV_E_INVALID, "clv_frontiers_inspect: an argument is NULL");
	strbuf b = STRBUF_INIT;
	clv_status st = json ? print_json(f, &b) : print_page(f, &b);
	if (st == CLV_OK)
		return strbuf_take(&b, out);
	strbuf_free(&b);
	return st;
}
