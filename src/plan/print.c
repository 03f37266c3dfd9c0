/* The canonical text of a plan (docs/plan-format.md).
 *
 * Order: model, symbols, scopes, inputs, external values, nodes, rebinds, input tree, output tree. Works on any
 * plan, also on one that does not verify: what is out of range prints as "?", so that errors can show the line. */
#include <string.h>

#include "plan/intern.h"
#include "plan/words.h"

/* ---- names and labels ------------------------------------------------------------------------------------------- */

void word_print(strbuf *b, const str *s, bool (*bare)(char))
{
	bool plain = s->n > 0;
	for (uint32_t i = 0; i < s->n && plain; i++)
		plain = bare(s->s[i]);
	if (plain)
		strbuf_add(b, s->s, s->n);
	else
		strbuf_quoted(b, s->s, s->n);
}

static void print_quoted(const plan *p, str_id id, strbuf *b)
{
	const str *s = str_at(p, id);
	strbuf_quoted(b, s->s, s->n);
}

static void print_number(strbuf *b, char sign, uint32_t number, value_id v)
{
	strbuf_putc(b, sign);
	if (number == NONE) {
		strbuf_putc(b, '?'); /* never defined: only in a plan that does not verify */
		number = v;
	}
	strbuf_int(b, number);
}

static void print_at_name(const plan *p, str_id name, strbuf *b)
{
	strbuf_putc(b, '@');
	word_print(b, str_at(p, name), char_in_path);
}

void value_label(const plan *p, value_id v, strbuf *b)
{
	uint8_t kind = v < p->values.n ? p->values.at[v].kind : VALUE_RESULT;
	if (is_module_tensor(kind))
		print_at_name(p, p->values.at[v].name, b);
	else
		print_number(b, kind == VALUE_CONST || kind == VALUE_OBJECT ? '#' : '%', value_number(p, v), v);
}

clv_status value_label_text(const plan *p, value_id v, char **out)
{
	strbuf b = STRBUF_INIT;
	value_label(p, v, &b);
	return strbuf_take(&b, out);
}

/* ---- types ------------------------------------------------------------------------------------------------------ */

static void print_dims(const plan *p, uint32_t first, uint32_t n, strbuf *b)
{
	if (!in_range(first, n, p->dims.n)) {
		strbuf_putc(b, '?');
		return;
	}
	for (uint32_t i = 0; i < n; i++) {
		strbuf_puts(b, i ? "," : "");
		expr_print(p, p->dims.at[first + i], b);
	}
}

void value_print_type(const plan *p, value_id v, strbuf *b)
{
	if (v >= p->values.n) {
		strbuf_putc(b, '?');
		return;
	}
	const value *x = &p->values.at[v];
	if (x->type != TYPE_TENSOR) {
		strbuf_puts(b, x->type <= TYPE_OBJECT ? host_type_names[x->type] : "?");
		return;
	}
	strbuf_puts(b, dtype_name(x->dtype));
	strbuf_putc(b, '[');
	print_dims(p, x->shape, x->ndim, b);
	strbuf_putc(b, ']');
}

static void print_arg(const plan *p, uint32_t at, unsigned depth, strbuf *b);

/* What follows a type: strides, device, flags, alias, expected value. */
static void print_marks(const plan *p, value_id v, strbuf *b)
{
	if (v >= p->values.n)
		return;
	const value *x = &p->values.at[v];
	if (x->type == TYPE_TENSOR && x->strides != NONE) {
		strbuf_puts(b, " strides(");
		print_dims(p, x->strides, x->ndim, b);
		strbuf_putc(b, ')');
	}
	if (x->type == TYPE_TENSOR && strcmp(plan_s(p, x->device), "cpu") != 0) {
		strbuf_puts(b, " device=");
		word_print(b, str_at(p, x->device), char_in_device);
	}
	if (x->flags & VALUE_GRAD)
		strbuf_puts(b, " grad");
	if (x->flags & VALUE_ODD)
		strbuf_puts(b, " odd");
	if (x->flags & VALUE_GUARD && x->type == TYPE_TENSOR)
		strbuf_puts(b, " guard");
	if (x->flags & VALUE_TRAINABLE)
		strbuf_puts(b, " trainable");
	if (x->flags & VALUE_PERSISTENT)
		strbuf_puts(b, " persistent");
	if (x->alias != NONE) {
		strbuf_puts(b, " view-of ");
		value_label(p, x->alias, b);
	}
	if (x->expect != NONE) {
		strbuf_puts(b, " = ");
		print_arg(p, x->expect, 0, b);
	}
}

static void print_type(const plan *p, value_id v, strbuf *b)
{
	value_print_type(p, v, b);
	print_marks(p, v, b);
}

/* ---- arguments -------------------------------------------------------------------------------------------------- */

static void print_complex(double re, double im, strbuf *b)
{
	strbuf_puts(b, "complex(");
	strbuf_double(b, re);
	strbuf_puts(b, ", ");
	strbuf_double(b, im);
	strbuf_putc(b, ')');
}

/* A list lies before `end`, the argument that names it; otherwise it might contain itself. */
static void print_list(const plan *p, uint32_t first, uint32_t n, uint32_t end, unsigned depth, strbuf *b)
{
	if (!in_range(first, n, end) || depth > NEST_LIMIT) {
		strbuf_putc(b, '?');
		return;
	}
	for (uint32_t i = 0; i < n; i++) {
		strbuf_puts(b, i ? ", " : "");
		print_arg(p, first + i, depth, b);
	}
}

static void print_coded(const char *prefix, const char *const *names, uint32_t count, uint32_t code, strbuf *b)
{
	strbuf_puts(b, prefix);
	strbuf_puts(b, code < count ? names[code] : "?");
}

static void print_real(const plan *p, real_id r, strbuf *b)
{
	strbuf_puts(b, "float(");
	real_print(p, r, b);
	strbuf_putc(b, ')');
}

static void print_literal(const plan *p, const arg *a, uint32_t end, unsigned depth, strbuf *b)
{
	switch ((arg_kind)a->kind) {
	case ARG_NONE: strbuf_puts(b, "none"); break;
	case ARG_VALUE: value_label(p, a->u.v, b); break;
	case ARG_INT: expr_print(p, a->u.e, b); break;
	case ARG_FLOAT: strbuf_double(b, a->u.f); break;
	case ARG_REAL: print_real(p, a->u.r, b); break;
	case ARG_BOOL: strbuf_puts(b, a->u.b ? "true" : "false"); break;
	case ARG_COMPLEX: print_complex(a->u.c.re, a->u.c.im, b); break;
	case ARG_STR: print_quoted(p, a->u.s, b); break;
	case ARG_DTYPE:
		strbuf_puts(b, "dtype:");
		strbuf_puts(b, dtype_name((dtype)a->u.code));
		break;
	case ARG_LAYOUT: print_coded("layout:", layout_names, LAYOUT_COUNT, a->u.code, b); break;
	case ARG_MEMFMT: print_coded("memory:", memfmt_names, MEMFMT_COUNT, a->u.code, b); break;
	case ARG_DEVICE:
		strbuf_puts(b, "device:");
		word_print(b, str_at(p, a->u.s), char_in_device);
		break;
	case ARG_LIST:
		strbuf_putc(b, '[');
		print_list(p, a->u.list.first, a->u.list.n, end, depth + 1, b);
		strbuf_putc(b, ']');
		break;
	}
}

static void print_any(const plan *p, const arg *a, uint32_t end, unsigned depth, strbuf *b)
{
	strbuf_puts(b, a->wrapped ? "num(" : "");
	print_literal(p, a, end, depth, b);
	strbuf_puts(b, a->wrapped ? ")" : "");
}

static void print_arg(const plan *p, uint32_t at, unsigned depth, strbuf *b)
{
	if (at < p->args.n)
		print_any(p, &p->args.at[at], at, depth, b);
	else
		strbuf_putc(b, '?');
}

void arg_print(const plan *p, const arg *a, strbuf *b)
{
	print_any(p, a, p->args.n, 0, b);
}

/* ---- nodes ------------------------------------------------------------------------------------------------------ */

typedef void (*result_fn)(const plan *p, const arg *a, strbuf *b);

static void result_name(const plan *p, const arg *a, strbuf *b)
{
	if (a->kind == ARG_VALUE)
		value_label(p, a->u.v, b);
	else
		strbuf_putc(b, '_');
}

static void result_type(const plan *p, const arg *a, strbuf *b)
{
	if (a->kind == ARG_VALUE)
		print_type(p, a->u.v, b);
	else
		strbuf_puts(b, "none");
}

/* The results as names or as types; a list result is one level deep. */
static void print_results(const plan *p, uint32_t first, uint32_t n, bool inner, result_fn f, strbuf *b)
{
	if (!in_range(first, n, p->args.n)) {
		strbuf_putc(b, '?');
		return;
	}
	for (uint32_t i = 0; i < n; i++) {
		const arg *a = &p->args.at[first + i];
		strbuf_puts(b, i ? ", " : "");
		if (a->kind != ARG_LIST || inner) {
			f(p, a, b);
			continue;
		}
		strbuf_putc(b, '[');
		print_results(p, a->u.list.first, a->u.list.n, true, f, b);
		strbuf_putc(b, ']');
	}
}

static void print_writes(const plan *p, const node *n, strbuf *b)
{
	if (!n->nwrites)
		return;
	strbuf_puts(b, " writes ");
	for (uint32_t i = 0; i < n->nwrites && in_range(n->writes, n->nwrites, p->ids.n); i++) {
		strbuf_puts(b, i ? ", " : "");
		value_label(p, p->ids.at[n->writes + i], b);
	}
}

static void print_autocasts(const plan *p, const context *c, strbuf *b)
{
	strbuf_puts(b, "autocast=");
	for (uint32_t i = 0; i < c->nautocast && in_range(c->autocast, c->nautocast, p->autocasts.n); i++) {
		const autocast *a = &p->autocasts.at[c->autocast + i];
		strbuf_puts(b, i ? "+" : "");
		word_print(b, str_at(p, a->device), char_in_word);
		strbuf_putc(b, ':');
		strbuf_puts(b, dtype_name(a->dtype));
		strbuf_puts(b, a->cache ? ":cache" : "");
	}
}

static void print_ctx_flags(const context *c, strbuf *b)
{
	const char *sep = "flags=";
	for (unsigned i = 0; i < CTX_FLAG_COUNT; i++) {
		if (!(c->flags_mask >> i & 1))
			continue;
		strbuf_printf(b, "%s%s:%s", sep, ctx_flag_names[i], c->flags >> i & 1 ? "on" : "off");
		sep = "+";
	}
}

/* The next item of "a, b", which starts at `start`. */
static void next_item(strbuf *b, size_t start)
{
	if (b->n > start)
		strbuf_puts(b, ", ");
}

static void print_flag(strbuf *b, size_t start, bool set, const char *word)
{
	if (!set)
		return;
	next_item(b, start);
	strbuf_puts(b, word);
}

static const context *context_of(const plan *p, const node *n)
{
	static const context none = {0};
	return n->context < p->contexts.n ? &p->contexts.at[n->context] : &none;
}

static void print_context(const plan *p, const context *c, strbuf *b)
{
	size_t start = b->n;
	print_flag(b, start, c->nograd, "nograd");
	print_flag(b, start, c->inference, "inference");
	if (c->nautocast) {
		next_item(b, start);
		print_autocasts(p, c, b);
	}
	if (c->flags_mask) {
		next_item(b, start);
		print_ctx_flags(c, b);
	}
}

void node_print_modes(const plan *p, const node *n, strbuf *b)
{
	const context *c = context_of(p, n);
	if (!c->nograd && !c->inference && !c->nautocast && !c->flags_mask &&
	    !(n->flags & (NODE_RANDOM | NODE_HOST | NODE_IMPURE)))
		return;
	strbuf_puts(b, " {");
	size_t start = b->n;
	print_context(p, c, b);
	print_flag(b, start, n->flags & NODE_RANDOM, "random");
	print_flag(b, start, n->flags & NODE_HOST, "host");
	print_flag(b, start, n->flags & NODE_IMPURE, "impure");
	strbuf_putc(b, '}');
}

void node_print(const plan *p, node_id id, strbuf *b)
{
	if (id >= p->nodes.n) {
		strbuf_putc(b, '?');
		return;
	}
	const node *n = &p->nodes.at[id];
	if (n->nresults) {
		print_results(p, n->results, n->nresults, false, result_name, b);
		strbuf_puts(b, " = ");
	}
	strbuf_add(b, plan_s(p, n->op), str_at(p, n->op)->n);
	strbuf_putc(b, '(');
	print_list(p, n->args, n->nargs, p->args.n, 0, b);
	strbuf_putc(b, ')');
	if (n->nresults) {
		strbuf_puts(b, " -> ");
		print_results(p, n->results, n->nresults, false, result_type, b);
	}
	print_writes(p, n, b);
	node_print_modes(p, n, b);
	if (n->scope != NONE) {
		strbuf_puts(b, " in ");
		word_print(b, str_at(p, n->scope < p->scopes.n ? p->scopes.at[n->scope].path : NONE), char_in_path);
	}
	if (n->at != NONE) {
		strbuf_puts(b, " at ");
		print_quoted(p, n->at, b);
	}
}

/* ---- trees ------------------------------------------------------------------------------------------------------ */

/* In a tree "(" opens a tuple, so an expression that starts with one is wrapped: int((B+1)//2). */
static void print_tree_int(const plan *p, expr_id e, strbuf *b)
{
	bool wrap = expr_starts_with_paren(p, e);
	strbuf_puts(b, wrap ? "int(" : "");
	expr_print(p, e, b);
	strbuf_puts(b, wrap ? ")" : "");
}

static void print_leaf(const plan *p, const tree *t, strbuf *b)
{
	arg a = {.kind = ARG_NONE};
	if (t->kind == TREE_INT) {
		print_tree_int(p, t->u.e, b);
	} else if (t->kind == TREE_BYTES) {
		strbuf_puts(b, "bytes:");
		strbuf_quoted_ascii(b, str_at(p, t->u.s)->s, str_at(p, t->u.s)->n);
	} else if (t->kind == TREE_OPAQUE) {
		strbuf_puts(b, "opaque ");
		print_quoted(p, t->u.s, b);
	} else {
		leaf_as_arg(t, &a);
		arg_print(p, &a, b);
	}
}

/* Prints the subtree at i and gives the index after it. */
static uint32_t print_tree(const plan *p, const trees *t, uint32_t i, unsigned depth, strbuf *b)
{
	if (i >= t->n || depth > NEST_LIMIT) {
		strbuf_putc(b, '?');
		return t->n;
	}
	const tree *top = &t->at[i++];
	if (!tree_has_children(top->kind)) {
		print_leaf(p, top, b);
		return i;
	}
	bool pairs = top->kind == TREE_DICT || top->kind == TREE_OBJECT;
	if (top->kind == TREE_OBJECT) {
		strbuf_puts(b, "object ");
		print_quoted(p, top->u.s, b);
		strbuf_putc(b, ' ');
	}
	strbuf_putc(b, pairs ? '{' : top->kind == TREE_LIST ? '[' : '(');
	for (uint32_t k = 0; k < top->n && i < t->n; k++) {
		strbuf_puts(b, !k ? "" : pairs && k % 2 ? ": " : ", ");
		i = print_tree(p, t, i, depth + 1, b);
	}
	if (top->kind == TREE_TUPLE && top->n == 1)
		strbuf_putc(b, ',');
	strbuf_putc(b, pairs ? '}' : top->kind == TREE_LIST ? ']' : ')');
	return i;
}

static void print_tree_line(const plan *p, const char *word, const trees *t, strbuf *b)
{
	if (t->n == 0)
		return;
	strbuf_puts(b, word);
	print_tree(p, t, 0, 0, b);
	strbuf_putc(b, '\n');
}

/* ---- the whole plan --------------------------------------------------------------------------------------------- */

static void print_head(const plan *p, strbuf *b)
{
	strbuf_puts(b, "cleave-plan 1\nmodel ");
	print_quoted(p, p->model, b);
	strbuf_printf(b, " training=%s grad=%s%s\n", p->training ? "yes" : "no", grad_mode_names[p->grad_modes & 3],
	              p->moved ? " moved=yes" : "");
	for (uint32_t i = 0; i < p->symbols.n; i++) {
		const symbol *s = &p->symbols.at[i];
		strbuf_printf(b, "symbol %s %lld..%lld%s\n", plan_s(p, s->name), (long long)s->lo, (long long)s->hi,
		              s->data ? " data" : "");
	}
	for (uint32_t i = 0; i < p->scopes.n; i++) {
		strbuf_puts(b, "scope ");
		word_print(b, str_at(p, p->scopes.at[i].path), char_in_path);
		strbuf_putc(b, ' ');
		print_quoted(p, p->scopes.at[i].cls, b);
		strbuf_putc(b, '\n');
	}
}

static void print_input(const plan *p, value_id v, strbuf *b)
{
	strbuf_puts(b, "input ");
	value_label(p, v, b);
	strbuf_putc(b, ' ');
	print_type(p, v, b);
	if (v < p->values.n && p->values.at[v].name != NONE) {
		strbuf_puts(b, " name=");
		print_quoted(p, p->values.at[v].name, b);
	}
	strbuf_putc(b, '\n');
}

bool ties_sorted(const plan *p)
{
	for (uint32_t i = 1; i < p->ties.n; i++)
		if (p->ties.at[i].value < p->ties.at[i - 1].value)
			return false;
	return true;
}

/* `from` moves along when the ties are in the order of their values, as they nearly always are. */
static void print_ties(const plan *p, value_id v, bool sorted, uint32_t *from, strbuf *b)
{
	for (uint32_t i = sorted ? *from : 0; i < p->ties.n; i++) {
		if (sorted && p->ties.at[i].value > v)
			break;
		*from = i + 1;
		if (p->ties.at[i].value != v)
			continue;
		strbuf_puts(b, " tied=");
		print_at_name(p, p->ties.at[i].name, b);
	}
}

static void print_external(const plan *p, value_id v, strbuf *b)
{
	const value *x = &p->values.at[v];
	strbuf_puts(b, external_words[x->kind]);
	strbuf_putc(b, ' ');
	value_label(p, v, b);
	strbuf_putc(b, ' ');
	if (x->kind == VALUE_OBJECT) {
		print_quoted(p, x->name, b);
		print_marks(p, v, b);
	} else {
		print_type(p, v, b);
	}
}

static void print_externals(const plan *p, strbuf *b)
{
	bool sorted = ties_sorted(p);
	uint32_t next_tie = 0;
	for (value_id v = 0; v < p->values.n; v++) {
		if (!is_external(p->values.at[v].kind) || p->values.at[v].kind > VALUE_RESULT)
			continue;
		print_external(p, v, b);
		print_ties(p, v, sorted, &next_tie, b);
		strbuf_putc(b, '\n');
	}
}

/* Those of a group stand between `group` and `end`. */
static void print_nodes(const plan *p, strbuf *b)
{
	const node_span *s = p->groups.at, *last = s + p->groups.n;
	for (node_id n = 0; n < p->nodes.n; n++) {
		bool inside = s < last && n >= s->first && n < s->end;
		if (inside && n == s->first)
			strbuf_puts(b, "group\n");
		strbuf_puts(b, inside ? "  " : "");
		node_print(p, n, b);
		strbuf_putc(b, '\n');
		if (inside && n + 1 == s->end) {
			strbuf_puts(b, "end\n");
			s++;
		}
	}
}

void plan_print(const plan *p, strbuf *b)
{
	print_head(p, b);
	for (uint32_t i = 0; i < p->inputs.n; i++)
		print_input(p, p->inputs.at[i], b);
	print_externals(p, b);
	print_nodes(p, b);
	for (uint32_t i = 0; i < p->rebinds.n; i++) {
		strbuf_puts(b, "rebind ");
		value_label(p, p->rebinds.at[i].target, b);
		strbuf_puts(b, " = ");
		value_label(p, p->rebinds.at[i].value, b);
		strbuf_putc(b, '\n');
	}
	print_tree_line(p, "inputs ", &p->in_tree, b);
	print_tree_line(p, "output ", &p->out_tree, b);
}
