/* All about a plan on one page, or as one JSON object: what is in it (src/plan), what it costs and where it cannot be cut
 * (src/split). */
#include <math.h>
#include <string.h>

#include "base/human.h"
#include "base/member.h"
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
static void put_name(strbuf *b, const char *key, const char *s, size_t n)
{
	strbuf quoted = STRBUF_INIT;
	if (!utf8_valid(s, n) || memchr(s, 0, n)) {
		strbuf_quoted_ascii(&quoted, s, n);
		s = quoted.at;
		n = quoted.n;
	}
	member_key(b, key);
	strbuf_json(b, s, n);
	b->failed |= quoted.failed;
	strbuf_free(&quoted);
}

static void put_id(const plan *p, strbuf *b, const char *key, str_id id)
{
	if (id == NONE)
		member_text(b, key, NULL);
	else
		put_name(b, key, str_at(p, id)->s, str_at(p, id)->n);
}

static void put_buf(strbuf *b, const char *key, strbuf *text)
{
	put_name(b, key, text->at ? text->at : "", text->n);
	b->failed |= text->failed;
	strbuf_free(text);
}

static void add_symbols(const clv_frontiers *f, strbuf *b)
{
	const plan *p = f->p;
	member_open(b, "symbols", '[');
	for (uint32_t i = 0; i < p->symbols.n; i++) {
		const symbol *s = &p->symbols.at[i];
		member_open(b, NULL, '{');
		put_id(p, b, "name", s->name);
		member_amount(b, "lo", s->lo);
		member_amount(b, "hi", s->hi);
		member_amount(b, "size", f->syms[i]);
		strbuf_putc(b, '}');
	}
	strbuf_putc(b, ']');
}

static void add_value(const plan *p, value_id v, strbuf *b)
{
	strbuf label = STRBUF_INIT, type = STRBUF_INIT;
	member_open(b, NULL, '{');
	value_label(p, v, &label);
	put_buf(b, "label", &label);
	value_print_type(p, v, &type);
	put_buf(b, "type", &type);
	put_id(p, b, "name", p->values.at[v].kind == VALUE_INPUT ? p->values.at[v].name : NONE);
	strbuf_putc(b, '}');
}

static void add_ends(const plan *p, strbuf *b)
{
	member_open(b, "inputs", '[');
	for (uint32_t i = 0; i < p->inputs.n; i++)
		add_value(p, p->inputs.at[i], b);
	strbuf_putc(b, ']');
	member_open(b, "outputs", '[');
	for (uint32_t i = 0; i < p->out_tree.n; i++)
		if (p->out_tree.at[i].kind == TREE_VALUE)
			add_value(p, p->out_tree.at[i].u.v, b);
	strbuf_putc(b, ']');
}

static clv_status add_externals(const clv_frontiers *f, strbuf *b)
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
		TRY(tally_kind(f->p, kinds[i].kind, f->syms, &t));
		member_open(b, kinds[i].key, '{');
		member_int(b, "count", (int64_t)t.count);
		if (kinds[i].kind != VALUE_OBJECT)
			member_amount(b, "bytes", t.too_large ? INT64_MAX : t.bytes);
		if (kinds[i].kind == VALUE_PARAM) {
			member_amount(b, "elements", f->params);
			member_int(b, "trainable", (int64_t)t.trainable);
			member_int(b, "tied_names", f->p->ties.n);
		}
		strbuf_putc(b, '}');
	}
	return CLV_OK;
}

static void add_effects(const plan *p, strbuf *b)
{
	uint32_t writes = 0;
	for (node_id i = 0; i < p->nodes.n; i++)
		writes += p->nodes.at[i].nwrites > 0;
	member_int(b, "nodes", p->nodes.n);
	member_int(b, "modules", p->scopes.n);
	member_open(b, "effects", '{');
	member_int(b, "in_place", writes);
	member_int(b, "random", count_nodes(p, NODE_RANDOM));
	member_int(b, "host_reads", count_nodes(p, NODE_HOST));
	member_int(b, "impure", count_nodes(p, NODE_IMPURE));
	member_int(b, "rebound", p->rebinds.n);
	strbuf_putc(b, '}');
}

static clv_status add_operators(const plan *p, strbuf *b)
{
	op_count *c;
	uint32_t n;
	TRY(count_ops(p, &c, &n));
	member_open(b, "operators", '[');
	for (uint32_t i = 0; i < n; i++) {
		member_open(b, NULL, '{');
		put_id(p, b, "name", c[i].op);
		member_int(b, "count", c[i].n);
		strbuf_putc(b, '}');
	}
	strbuf_putc(b, ']');
	mem_free(c);
	return CLV_OK;
}

/* Opens an object, which the caller closes. */
static void open_place(const clv_frontiers *f, node_id n, strbuf *b)
{
	const char *name = node_name(f->names, n), *module = module_path(f->p, n);
	member_open(b, NULL, '{');
	member_int(b, "position", n);
	put_name(b, "name", name, strlen(name));
	put_name(b, "module", module, strlen(module));
	put_id(f->p, b, "at", f->p->nodes.at[n].at);
}

typedef struct guard_list {
	const clv_frontiers *f;
	strbuf *b;
} guard_list;

static void add_guard(void *ctx, node_id n, const char *text, size_t length)
{
	const guard_list *g = ctx;
	open_place(g->f, n, g->b);
	put_name(g->b, "expects", text, length);
	strbuf_putc(g->b, '}');
}

static void add_unsafe(const clv_frontiers *f, strbuf *b)
{
	member_open(b, "unsafe", '[');
	for (node_id k = 0; k < f->n; k++) {
		if (!f->at[k].unsafe)
			continue;
		open_place(f, k, b);
		put_name(b, "reason", f->at[k].unsafe, strlen(f->at[k].unsafe));
		strbuf_putc(b, '}');
	}
	strbuf_putc(b, ']');
}

static clv_status print_json(const clv_frontiers *f, strbuf *b)
{
	const plan *p = f->p;
	guard_list g = {f, b};
	strbuf_putc(b, '{');
	put_id(p, b, "model", p->model);
	member_text(b, "mode", p->training ? "train" : "eval");
	member_bool(b, "proven_without_grad", p->grad_modes & 1);
	member_bool(b, "proven_with_grad", p->grad_modes & 2);
	add_symbols(f, b);
	add_ends(p, b);
	TRY(add_externals(f, b));
	add_effects(p, b);
	member_number(b, "flops", f->flops);
	member_amount(b, "memory", f->memory);
	TRY(add_operators(p, b));
	member_open(b, "guards", '[');
	TRY(plan_each_guard(p, add_guard, &g));
	strbuf_putc(b, ']');
	add_unsafe(f, b);
	strbuf_puts(b, "}\n");
	return CLV_OK;
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
