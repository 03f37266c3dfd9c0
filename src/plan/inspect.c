/* The inspect page: what a person wants to know about a plan before reading its text. */
#include "base/human.h"
#include "plan/inspect.h"
#include "plan/intern.h"
#include "plan/ops.h"

#define TOP_OPERATORS 12 /* lines; the rest is summed up */

/* ---- pieces ----------------------------------------------------------------------------------------------------- */

void inspect_heading(strbuf *b, const char *text)
{
	strbuf_printf(b, "  %-11s ", text);
}

static void print_count(strbuf *b, uint64_t n, const char *one)
{
	strbuf_printf(b, "%llu %s%s", (unsigned long long)n, one, n == 1 ? "" : "s");
}

void print_plain(const plan *p, str_id id, strbuf *b)
{
	const str *s = str_at(p, id);
	bool plain = s->n > 0;
	for (uint32_t i = 0; i < s->n; i++)
		plain = plain && (unsigned char)s->s[i] >= 0x20 && s->s[i] != 0x7F;
	if (plain)
		strbuf_add(b, s->s, s->n);
	else
		strbuf_quoted(b, s->s, s->n);
}

void inspect_more(strbuf *b, uint32_t n)
{
	if (n > INSPECT_LINES)
		strbuf_printf(b, "    and %u more\n", n - INSPECT_LINES);
}

static void print_value_line(const plan *p, value_id v, strbuf *b)
{
	strbuf_puts(b, "    ");
	value_label(p, v, b);
	strbuf_putc(b, ' ');
	value_print_type(p, v, b);
	const value *x = &p->values.at[v];
	if (x->kind == VALUE_INPUT && x->name != NONE) {
		strbuf_putc(b, ' ');
		print_plain(p, x->name, b);
	}
	strbuf_putc(b, '\n');
}

/* ---- model, inputs, outputs ------------------------------------------------------------------------------------- */

void print_mode(const plan *p, strbuf *b)
{
	static const char *const proven[] = {"not compared with eager", "equal to eager without grad",
	                                     "equal to eager with grad", "equal to eager with and without grad"};
	strbuf_printf(b, "%s, %s", p->training ? "train" : "eval", proven[p->grad_modes & 3]);
}

static void inspect_head(const plan *p, strbuf *b)
{
	print_plain(p, p->model, b);
	strbuf_putc(b, '\n');
	inspect_heading(b, "mode");
	print_mode(p, b);
	strbuf_putc(b, '\n');
	for (uint32_t i = 0; i < p->symbols.n; i++) {
		const symbol *s = &p->symbols.at[i];
		inspect_heading(b, i ? "" : "symbols");
		strbuf_printf(b, "%s %lld..%lld\n", plan_s(p, s->name), (long long)s->lo, (long long)s->hi);
	}
}

static void inspect_inputs(const plan *p, strbuf *b)
{
	inspect_heading(b, "inputs");
	strbuf_printf(b, "%u\n", p->inputs.n);
	for (uint32_t i = 0; i < p->inputs.n && i < INSPECT_LINES; i++)
		print_value_line(p, p->inputs.at[i], b);
	inspect_more(b, p->inputs.n);
}

static void inspect_outputs(const plan *p, strbuf *b)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < p->out_tree.n; i++)
		n += p->out_tree.at[i].kind == TREE_VALUE;
	inspect_heading(b, "outputs");
	strbuf_printf(b, "%u", n);
	if (p->out_tree.n && p->out_tree.at[0].kind == TREE_OBJECT) {
		strbuf_puts(b, " in ");
		print_plain(p, p->out_tree.at[0].u.s, b);
	}
	strbuf_putc(b, '\n');
	uint32_t shown = 0;
	for (uint32_t i = 0; i < p->out_tree.n && shown < INSPECT_LINES; i++) {
		if (p->out_tree.at[i].kind != TREE_VALUE)
			continue;
		print_value_line(p, p->out_tree.at[i].u.v, b);
		shown++;
	}
	inspect_more(b, n);
}

/* ---- external values -------------------------------------------------------------------------------------------- */

clv_status tally_kind(const plan *p, value_kind kind, const int64_t *syms, tally *t)
{
	*t = (tally){0};
	for (value_id v = 0; v < p->values.n; v++) {
		const value *x = &p->values.at[v];
		if (x->kind != kind)
			continue;
		int64_t bytes = 0;
		clv_status st = value_bytes(p, v, syms, &bytes);
		if (st == CLV_E_NOMEM)
			return st;
		t->count++;
		t->trainable += (x->flags & VALUE_TRAINABLE) != 0;
		t->too_large |= st != CLV_OK || __builtin_add_overflow(t->bytes, bytes, &t->bytes);
	}
	return CLV_OK;
}

static clv_status inspect_kind(const plan *p, value_kind kind, const char *title, const int64_t *syms, strbuf *b)
{
	tally t;
	TRY(tally_kind(p, kind, syms, &t));
	if (t.count == 0)
		return CLV_OK;
	inspect_heading(b, title);
	strbuf_printf(b, "%llu", (unsigned long long)t.count);
	if (kind == VALUE_PARAM)
		strbuf_printf(b, ", %llu trainable", (unsigned long long)t.trainable);
	if (kind != VALUE_OBJECT) {
		strbuf_puts(b, ", ");
		if (t.too_large)
			strbuf_puts(b, "of unknown size");
		else
			strbuf_bytes(b, t.bytes);
	}
	if (kind == VALUE_PARAM && p->ties.n) {
		strbuf_puts(b, ", ");
		print_count(b, p->ties.n, "tied name");
	}
	strbuf_putc(b, '\n');
	return CLV_OK;
}

static clv_status inspect_externals(const plan *p, strbuf *b)
{
	int64_t *syms = mem_alloc(p->symbols.n * sizeof *syms);
	TRY_MEM(syms);
	for (uint32_t i = 0; i < p->symbols.n; i++)
		syms[i] = p->symbols.at[i].lo;
	clv_status st;
	TRY_OUT(inspect_kind(p, VALUE_PARAM, "parameters", syms, b));
	TRY_OUT(inspect_kind(p, VALUE_BUFFER, "buffers", syms, b));
	TRY_OUT(inspect_kind(p, VALUE_ATTR, "attributes", syms, b));
	TRY_OUT(inspect_kind(p, VALUE_CONST, "constants", syms, b));
	TRY_OUT(inspect_kind(p, VALUE_OBJECT, "objects", syms, b));
out:
	mem_free(syms);
	return st;
}

/* ---- nodes ------------------------------------------------------------------------------------------------------ */

static int by_count(const void *x, const void *y)
{
	const op_count *a = x, *b = y;
	if (a->n != b->n)
		return a->n < b->n ? 1 : -1;
	return a->op < b->op ? -1 : a->op > b->op;
}

clv_status count_ops(const plan *p, op_count **out, uint32_t *n_out)
{
	op_count *c = mem_alloc(p->strs.n * sizeof *c);
	TRY_MEM(c);
	for (str_id s = 0; s < p->strs.n; s++)
		c[s].op = s;
	for (node_id n = 0; n < p->nodes.n; n++)
		c[p->nodes.at[n].op].n++;
	uint32_t kept = 0;
	for (str_id s = 0; s < p->strs.n; s++)
		if (c[s].n)
			c[kept++] = c[s];
	qsort(c, kept, sizeof *c, by_count);
	*out = c;
	*n_out = kept;
	return CLV_OK;
}

static clv_status inspect_operators(const plan *p, strbuf *b)
{
	op_count *c;
	uint32_t n;
	TRY(count_ops(p, &c, &n));
	strbuf_puts(b, n ? "\noperators\n" : "");
	for (uint32_t i = 0; i < n && i < TOP_OPERATORS; i++)
		strbuf_printf(b, "  %6u  %s\n", c[i].n, plan_s(p, c[i].op));
	uint64_t rest = 0;
	for (uint32_t i = TOP_OPERATORS; i < n; i++)
		rest += c[i].n;
	if (rest)
		strbuf_printf(b, "  %6llu  in %u others\n", (unsigned long long)rest, n - TOP_OPERATORS);
	mem_free(c);
	return CLV_OK;
}

uint32_t count_nodes(const plan *p, uint32_t flag)
{
	uint32_t n = 0;
	for (node_id i = 0; i < p->nodes.n; i++)
		n += (p->nodes.at[i].flags & flag) != 0;
	return n;
}

static void inspect_count(strbuf *b, const char *title, uint64_t n, const char *one)
{
	if (n == 0)
		return;
	inspect_heading(b, title);
	print_count(b, n, one);
	strbuf_putc(b, '\n');
}

static void inspect_effects(const plan *p, strbuf *b)
{
	uint32_t writes = 0;
	for (node_id i = 0; i < p->nodes.n; i++)
		writes += p->nodes.at[i].nwrites > 0;
	inspect_count(b, "in place", writes, "node");
	inspect_count(b, "random", count_nodes(p, NODE_RANDOM), "node");
	inspect_count(b, "host reads", count_nodes(p, NODE_HOST), "node");
	inspect_count(b, "impure", count_nodes(p, NODE_IMPURE), "node");
	inspect_count(b, "re-bound", p->rebinds.n, "module tensor");
}

static void print_modes(const plan *p, const context *c, strbuf *b)
{
	const char *sep = "";
	if (c->nograd) {
		strbuf_puts(b, "no_grad");
		sep = ", ";
	}
	if (c->inference) {
		strbuf_printf(b, "%sinference_mode", sep);
		sep = ", ";
	}
	for (uint32_t i = 0; i < c->nautocast; i++) {
		const autocast *a = &p->autocasts.at[c->autocast + i];
		strbuf_printf(b, "%sautocast ", sep);
		print_plain(p, a->device, b);
		strbuf_printf(b, " to %s", dtype_name(a->dtype));
		sep = ", ";
	}
	for (unsigned i = 0; i < CTX_FLAG_COUNT; i++) {
		if (!(c->flags_mask >> i & 1))
			continue;
		strbuf_printf(b, "%s%s %s", sep, ctx_flag_names[i], c->flags >> i & 1 ? "on" : "off");
		sep = ", ";
	}
}

static clv_status inspect_contexts(const plan *p, strbuf *b)
{
	uint32_t *used = mem_alloc(p->contexts.n * sizeof *used);
	TRY_MEM(used);
	for (node_id n = 0; n < p->nodes.n; n++)
		used[p->nodes.at[n].context]++;
	const char *title = "contexts";
	for (context_id c = 1; c < p->contexts.n; c++) {
		if (!used[c])
			continue;
		inspect_heading(b, title);
		print_count(b, used[c], "node");
		strbuf_puts(b, ": ");
		print_modes(p, &p->contexts.at[c], b);
		strbuf_putc(b, '\n');
		title = "";
	}
	mem_free(used);
	return CLV_OK;
}

/* ---- guards ----------------------------------------------------------------------------------------------------- */

static void print_guard(const plan *p, value_id v, strbuf *b)
{
	const value *x = &p->values.at[v];
	strbuf_puts(b, x->type == TYPE_TENSOR ? "shape of " : "");
	value_label(p, v, b);
	if (x->type == TYPE_TENSOR) {
		strbuf_putc(b, ' ');
		value_print_type(p, v, b);
	} else {
		strbuf_puts(b, " = ");
		arg_print(p, &p->args.at[x->expect], b);
	}
}

typedef struct guard_walk {
	const plan *p;
	guard_visitor *visit;
	void *ctx;
	node_id node;
	strbuf text; /* of the guard at hand */
} guard_walk;

static void visit_guard(guard_walk *g)
{
	g->visit(g->ctx, g->node, g->text.at ? g->text.at : "", g->text.n);
	g->text.n = 0;
}

static void guard_of_result(void *ctx, value_id v)
{
	guard_walk *g = ctx;
	if (!(g->p->values.at[v].flags & VALUE_GUARD))
		return;
	print_guard(g->p, v, &g->text);
	visit_guard(g);
}

/* cleave::guard_equal(a, b, …) compares two tensors. */
static void guard_of_node(guard_walk *g)
{
	const node *n = &g->p->nodes.at[g->node];
	if (n->nargs < 2 || n->op_id != OP_cleave_guard_equal)
		return;
	arg_print(g->p, &g->p->args.at[n->args], &g->text);
	strbuf_puts(&g->text, " = ");
	arg_print(g->p, &g->p->args.at[n->args + 1], &g->text);
	visit_guard(g);
}

clv_status plan_each_guard(const plan *p, guard_visitor *visit, void *ctx)
{
	guard_walk g = {p, visit, ctx, 0, STRBUF_INIT};
	for (; g.node < p->nodes.n; g.node++) {
		node_each_result(p, g.node, guard_of_result, &g);
		guard_of_node(&g);
	}
	bool failed = g.text.failed;
	strbuf_free(&g.text);
	return failed ? fail_nomem() : CLV_OK;
}

typedef struct guard_lines {
	const plan *p;
	const node_names *names;
	strbuf *b;
	uint32_t count;
} guard_lines;

static void add_guard_line(void *ctx, node_id n, const char *text, size_t length)
{
	guard_lines *g = ctx;
	if (g->count++ == 0)
		strbuf_puts(g->b, "\nguards\n");
	if (g->count > INSPECT_LINES)
		return;
	strbuf_printf(g->b, "  %s: ", node_name(g->names, n));
	strbuf_add(g->b, text, length);
	place_print(g->p, n, g->b);
	strbuf_putc(g->b, '\n');
}

static clv_status inspect_guards(const plan *p, strbuf *b)
{
	node_names *names;
	TRY(node_names_new(p, &names));
	guard_lines g = {p, names, b, 0};
	clv_status st = plan_each_guard(p, add_guard_line, &g);
	inspect_more(b, g.count);
	node_names_free(names);
	return st;
}

clv_status inspect_facts(const plan *p, strbuf *b)
{
	inspect_head(p, b);
	inspect_inputs(p, b);
	inspect_outputs(p, b);
	TRY(inspect_externals(p, b));
	inspect_heading(b, "nodes");
	strbuf_printf(b, "%u in ", p->nodes.n);
	print_count(b, p->scopes.n, "module");
	strbuf_putc(b, '\n');
	inspect_effects(p, b);
	return inspect_contexts(p, b);
}

clv_status inspect_lists(const plan *p, strbuf *b)
{
	TRY(inspect_operators(p, b));
	return inspect_guards(p, b);
}

clv_status plan_inspect(const plan *p, strbuf *b)
{
	TRY(inspect_facts(p, b));
	return inspect_lists(p, b);
}
