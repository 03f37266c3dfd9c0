/* Pictures: the labels of units. The first line names the unit, the second its result; then come its parameters and the
 * details that were asked for. Names may contain anything, so every one is escaped. */
#include <string.h>

#include "emit/dot.h"
#include "plan/ops.h"

#define GREY "#64748B"
#define NAME_MAX_CHARS 80 /* of one name in a picture */
#define PARAMS_MAX 4      /* parameters that are told one by one */
#define TARGETS_MAX 3     /* operators of a unit, likewise */
#define SIZES_MAX 4       /* symbols in the title */

/* ---- text ----------------------------------------------------------------------------------------------------------- */

/* As entities, which mean the same in both kinds of DOT text. A backslash alone would start an escape. */
static const char *entity(char c)
{
	switch (c) {
	case '&': return "&amp;";
	case '<': return "&lt;";
	case '>': return "&gt;";
	case '"': return "&quot;";
	case '\'': return "&#39;";
	case '\\': return "&#92;";
	case '\n': return "&#92;n";
	case '\t': return "&#92;t";
	default: return NULL;
	}
}

/* Not in XML: control characters, U+FFFE and U+FFFF. */
static bool is_drawable(const char *s, size_t n)
{
	if (n == 1)
		return (unsigned char)*s >= 0x20 && *s != 0x7F;
	bool c1 = n == 2 && (unsigned char)s[0] == 0xC2 && (unsigned char)s[1] < 0xA0;
	bool end = n == 3 && !memcmp(s, "\xEF\xBF", 2) && (unsigned char)s[2] >= 0xBE;
	return n > 0 && !c1 && !end;
}

static void put_escaped(strbuf *b, const char *s, size_t n)
{
	unsigned chars = 0;
	for (size_t i = 0; i < n; chars++) {
		size_t take = utf8_length(s + i, n - i);
		if (chars == NAME_MAX_CHARS) {
			strbuf_puts(b, "…");
			return;
		}
		if (take == 1 && entity(s[i]))
			strbuf_puts(b, entity(s[i]));
		else if (is_drawable(s + i, take))
			strbuf_add(b, s + i, take);
		else
			strbuf_printf(b, "&#92;x%02x", (unsigned char)s[i]);
		i += take && is_drawable(s + i, take) ? take : 1;
	}
}

void label_text(strbuf *b, const char *s)
{
	put_escaped(b, s, strlen(s));
}

static void put_grey(strbuf *b, const char *s)
{
	strbuf_puts(b, " <font color=\"" GREY "\">");
	label_text(b, s);
	strbuf_puts(b, "</font>");
}

static void put_bold_name(strbuf *b, const char *s)
{
	strbuf_puts(b, "<b>");
	label_text(b, s[0] ? s : "(no name)"); /* an empty tag is an error of Graphviz */
	strbuf_puts(b, "</b>");
}

static void start_line(strbuf *b)
{
	strbuf_puts(b, "<br/><font point-size=\"10\">");
}

static void end_line(strbuf *b)
{
	strbuf_puts(b, "</font>");
}

/* Path of a module or tensor as seen from a module: without the module's own path, where it is inside. */
static const char *seen_from(const plan *p, scope_id s, const char *path)
{
	const char *base = s == NONE ? "" : plan_s(p, p->scopes.at[s].path);
	size_t n = strlen(base);
	return n && is_inside(path, base) && path[n] == '.' ? path + n + 1 : path;
}

/* ---- numbers -------------------------------------------------------------------------------------------------------- */

static void put_decimal(strbuf *b, double v, unsigned decimals)
{
	uint64_t scale = decimals == 2 ? 100 : decimals == 1 ? 10 : 1;
	uint64_t all = (uint64_t)(v * (double)scale + 0.5); /* by hand, as printf's point depends on the locale */
	strbuf_printf(b, "%llu", (unsigned long long)(all / scale));
	if (decimals)
		strbuf_printf(b, ".%0*llu", (int)decimals, (unsigned long long)(all % scale));
}

/* 512, 74.0K, 11.7M */
static void put_count(strbuf *b, int64_t n)
{
	static const char units[] = "KMBT";
	double v = (double)n / 1e3;
	unsigned power = 0;
	if (n < 1000) {
		strbuf_int(b, n);
		return;
	}
	for (; v >= 999.95 && power < 3; power++)
		v /= 1e3;
	put_decimal(b, v, 1);
	strbuf_putc(b, units[power]);
}

static void put_megabytes(strbuf *b, int64_t bytes)
{
	if (bytes == INT64_MAX)
		strbuf_puts(b, "? MB");
	else if (bytes > 0 && bytes < 5000)
		strbuf_puts(b, "&lt;0.01 MB");
	else {
		put_decimal(b, (double)bytes / 1e6, bytes < 100000000 ? 2 : 1);
		strbuf_puts(b, " MB");
	}
}

/* ---- values --------------------------------------------------------------------------------------------------------- */

static void put_dims(const plan *p, value_id v, const char *between, strbuf *b)
{
	const value *x = &p->values.at[v];
	for (uint32_t i = 0; i < x->ndim; i++) {
		strbuf_puts(b, i ? between : "");
		expr_print(p, p->dims.at[x->shape + i], b);
	}
}

/* (B, 64, 56, 56) · 0.80 MB */
static void put_value(const drawing *d, value_id v, strbuf *b)
{
	const value *x = &d->p->values.at[v];
	if (x->type != TYPE_TENSOR) {
		value_print_type(d->p, v, b);
		return;
	}
	if (d->o.show_debug_markers)
		strbuf_printf(b, "%s ", dtype_name((dtype)x->dtype));
	strbuf_putc(b, '(');
	put_dims(d->p, v, ", ", b);
	strbuf_puts(b, x->ndim == 1 ? ",) · " : ") · ");
	int64_t bytes = value_bytes_at(d->f, v);
	put_megabytes(b, bytes);
	if (d->o.show_debug_markers && bytes != INT64_MAX)
		strbuf_printf(b, " (%lld bytes)", (long long)bytes);
}

static void put_value_line(const drawing *d, value_id v, uint32_t more, strbuf *b)
{
	if (v == NONE)
		return;
	start_line(b);
	put_value(d, v, b);
	if (more)
		strbuf_printf(b, ", %u more", more);
	end_line(b);
}

/* What a unit gives to others; if none takes anything, its last result. */
typedef struct outcome {
	const drawing *d;
	node_id end;
	value_id first, last;
	uint32_t count;
} outcome;

static void note_unit_result(void *ctx, value_id v)
{
	outcome *o = ctx;
	node_id last = o->d->f->live.last[v];
	o->last = v;
	if (last == NONE || last < o->end)
		return;
	if (o->count++ == 0)
		o->first = v;
}

static void put_outcome(const drawing *d, const unit *u, strbuf *b)
{
	outcome o = {d, u->end, NONE, NONE, 0};
	for (node_id k = u->first; k < u->end; k++)
		node_each_result(d->p, k, note_unit_result, &o);
	put_value_line(d, o.count ? o.first : o.last, o.count > 1 ? o.count - 1 : 0, b);
}

/* ---- parameters ----------------------------------------------------------------------------------------------------- */

typedef struct holdings {
	drawing *d;
	uint32_t unit;
	value_kind kind;
	value_id some[PARAMS_MAX]; /* the first ones */
	uint32_t count;
	int64_t elements[2]; /* frozen, trainable; INT64_MAX: not known */
} holdings;

static int64_t elements_of(const drawing *d, value_id v)
{
	int64_t bytes = value_bytes_at(d->f, v), size = dtype_bits((dtype)d->p->values.at[v].dtype) / 8;
	return bytes == INT64_MAX || size == 0 ? INT64_MAX : bytes / size;
}

static void add_elements(int64_t *sum, int64_t n)
{
	if (__builtin_add_overflow(*sum, n, sum))
		*sum = INT64_MAX;
}

static void note_held(void *ctx, value_id v)
{
	holdings *h = ctx;
	const value *x = &h->d->p->values.at[v];
	if (x->kind != h->kind || h->d->noted[v] == h->unit)
		return;
	h->d->noted[v] = h->unit;
	if (h->count < PARAMS_MAX)
		h->some[h->count] = v;
	h->count++;
	add_elements(&h->elements[(x->flags & VALUE_TRAINABLE) != 0], elements_of(h->d, v));
}

static holdings held_by(drawing *d, uint32_t u, value_kind kind)
{
	holdings h = {.d = d, .unit = u, .kind = kind};
	for (node_id k = d->units.at[u].first; k < d->units.at[u].end; k++)
		node_each_arg(d->p, k, note_held, &h);
	return h;
}

/* weight(64x3x7x7), bias(x64): trainable; weight[64x3x7x7]: frozen */
static void put_tensors(const holdings *h, scope_id from, strbuf *b)
{
	const plan *p = h->d->p;
	for (uint32_t i = 0; i < h->count; i++) {
		const value *x = &p->values.at[h->some[i]];
		bool frozen = h->kind == VALUE_PARAM && !(x->flags & VALUE_TRAINABLE);
		strbuf_puts(b, i ? ", " : "");
		label_text(b, seen_from(p, from, plan_s(p, x->name)));
		strbuf_puts(b, frozen ? "[" : "(");
		strbuf_puts(b, x->ndim == 0 ? "x1" : x->ndim == 1 ? "x" : "");
		put_dims(p, h->some[i], "x", b);
		strbuf_puts(b, frozen ? "]" : ")");
	}
}

/* 74.0K; [74.0K] when all are frozen; 70.0K [4.0K] when some are */
static void put_total(const holdings *h, strbuf *b)
{
	if (h->elements[1] || !h->elements[0])
		put_count(b, h->elements[1]);
	if (h->elements[0]) {
		strbuf_puts(b, h->elements[1] ? " [" : "[");
		put_count(b, h->elements[0]);
		strbuf_putc(b, ']');
	}
}

static void put_held(drawing *d, uint32_t u, value_kind kind, const char *title, strbuf *b)
{
	const unit *x = &d->units.at[u];
	holdings h = held_by(d, u, kind);
	bool folded = x->module != NONE && d->inside[x->module];
	if (!h.count)
		return;
	start_line(b);
	strbuf_printf(b, "%s: ", title);
	if (folded || h.count > PARAMS_MAX)
		put_total(&h, b);
	else
		put_tensors(&h, x->module != NONE ? x->module : d->p->nodes.at[x->first].scope, b);
	end_line(b);
}

/* ---- what is shown on request --------------------------------------------------------------------------------------- */

static void put_targets(const drawing *d, const unit *u, strbuf *b)
{
	start_line(b);
	for (node_id k = u->first; k < u->end && k - u->first < TARGETS_MAX; k++) {
		strbuf_puts(b, k > u->first ? ", " : "");
		label_text(b, plan_s(d->p, d->p->nodes.at[k].op));
	}
	if (u->end - u->first > TARGETS_MAX)
		strbuf_printf(b, ", %u more", u->end - u->first - TARGETS_MAX);
	end_line(b);
}

#define MARKS(X)                                                                                                       \
	X(IN_PLACE, "in place")                                                                                            \
	X(VIEW, "view")                                                                                                    \
	X(RANDOM, "random")                                                                                                \
	X(HOST, "host read")                                                                                               \
	X(IMPURE, "impure")                                                                                                \
	X(GUARD, "guard")                                                                                                  \
	X(NOGRAD, "no grad")                                                                                               \
	X(AUTOCAST, "autocast")

enum mark {
#define X(id, text) MARK_##id,
	MARKS(X)
#undef X
		MARK_COUNT
};

typedef struct marker {
	const plan *p;
	unsigned marks; /* bits */
} marker;

static void mark_result(void *ctx, value_id v)
{
	marker *m = ctx;
	const value *x = &m->p->values.at[v];
	m->marks |= (x->alias != NONE ? 1u << MARK_VIEW : 0) | (x->flags & VALUE_GUARD ? 1u << MARK_GUARD : 0);
}

static unsigned marks_of(const plan *p, node_id k)
{
	const node *n = &p->nodes.at[k];
	const context *c = &p->contexts.at[n->context];
	marker m = {p, 0};
	node_each_result(p, k, mark_result, &m);
	if (n->nwrites)
		m.marks = (m.marks & ~(1u << MARK_VIEW)) | 1u << MARK_IN_PLACE;
	m.marks |= n->flags & NODE_RANDOM ? 1u << MARK_RANDOM : 0;
	m.marks |= n->flags & NODE_HOST ? 1u << MARK_HOST : 0;
	m.marks |= n->flags & NODE_IMPURE ? 1u << MARK_IMPURE : 0;
	m.marks |= c->nograd || c->inference ? 1u << MARK_NOGRAD : 0;
	m.marks |= c->nautocast ? 1u << MARK_AUTOCAST : 0;
	return m.marks;
}

static void put_marks(const drawing *d, const unit *u, strbuf *b)
{
	static const char *const texts[] = {
#define X(id, text) text,
		MARKS(X)
#undef X
	};
	unsigned marks = 0;
	const char *between = "";
	for (node_id k = u->first; k < u->end; k++)
		marks |= marks_of(d->p, k);
	if (!marks)
		return;
	start_line(b);
	for (unsigned i = 0; i < MARK_COUNT; i++) {
		if (!(marks >> i & 1))
			continue;
		strbuf_printf(b, "%s%s", between, texts[i]);
		between = ", ";
	}
	end_line(b);
}

static void put_indices(const drawing *d, const unit *u, strbuf *b)
{
	strbuf_printf(b, " <font color=\"" GREY "\">#%u", u->first);
	if (u->end - u->first > 1)
		strbuf_printf(b, "–%u", u->end - 1);
	else {
		strbuf_putc(b, ' ');
		label_text(b, node_name(d->f->names, u->first));
	}
	strbuf_puts(b, "</font>");
}

/* ---- whole labels --------------------------------------------------------------------------------------------------- */

/* "aten::add_.Tensor" is an add; "__and__" keeps its underscores. */
static void put_operation(const plan *p, node_id k, strbuf *b)
{
	op_name o = op_split(plan_s(p, p->nodes.at[k].op));
	strbuf_puts(b, "<b>");
	put_escaped(b, o.base, o.plain);
	strbuf_puts(b, "</b>");
}

/* A module as seen from the cluster around it. A number alone says little: "layer1.0" rather than "0". */
static const char *module_name(const drawing *d, scope_id module, scope_id home)
{
	const char *path = plan_s(d->p, d->p->scopes.at[module].path), *s = seen_from(d->p, home, path);
	if (!path[0])
		return plan_s(d->p, d->p->model);
	while (s > path && *s >= '0' && *s <= '9')
		for (s--; s > path && s[-1] != '.'; s--)
			continue;
	return s;
}

/* The cut goes through this call of a module: 1 before, 2 behind it, else 0. */
static int part_of(const drawing *d, const unit *u)
{
	const unit *v = u->end == d->o.frontier + 1 ? u + 1 : u - 1;
	if (!is_cut(d) || u->module == NONE || (u->end != d->o.frontier + 1 && u->first != d->o.frontier + 1))
		return 0;
	return v->module != u->module ? 0 : v > u ? 1 : 2;
}

static void put_unit_title(const drawing *d, const unit *u, strbuf *b)
{
	const plan *p = d->p;
	scope_id home = u->home, s = p->nodes.at[u->first].scope;
	if (u->module != NONE) {
		put_bold_name(b, module_name(d, u->module, home));
		put_grey(b, plan_s(p, p->scopes.at[u->module].cls));
		if (part_of(d, u))
			strbuf_printf(b, " <font color=\"" GREY "\">(part %d of 2)</font>", part_of(d, u));
	} else {
		put_operation(p, u->first, b);
		if (s != home && s != NONE && plan_s(p, p->scopes.at[s].path)[0])
			put_grey(b, module_name(d, s, home));
	}
	if (d->o.show_node_indices)
		put_indices(d, u, b);
}

static void put_role(strbuf *b, const char *role, const char *colour)
{
	strbuf_printf(b, "<br/><font point-size=\"10\" color=\"%s\"><b>%s</b></font>", colour, role);
}

void label_unit(drawing *d, uint32_t i, strbuf *b)
{
	const unit *u = &d->units.at[i];
	put_unit_title(d, u, b);
	put_outcome(d, u, b);
	put_held(d, i, VALUE_PARAM, "params", b);
	if (d->o.show_operation_targets)
		put_targets(d, u, b);
	if (d->o.show_debug_markers) {
		put_held(d, i, VALUE_BUFFER, "buffers", b);
		put_marks(d, u, b);
	}
	if (unit_is_boundary(d, u))
		put_role(b, "boundary", boundary_colours.line);
}

void label_input(const drawing *d, uint32_t i, strbuf *b)
{
	value_id v = d->p->inputs.at[i];
	str_id name = d->p->values.at[v].name;
	if (name == NONE)
		strbuf_printf(b, "<b>input %u</b>", i);
	else {
		put_bold_name(b, plan_s(d->p, name));
		put_grey(b, "input");
	}
	put_value_line(d, v, 0, b);
	if (crosses_cut(d, v))
		put_role(b, "passthrough", passthrough_colours.line);
}

void label_output(const drawing *d, strbuf *b)
{
	value_id first = NONE;
	uint32_t count = 0;
	for (uint32_t i = 0; i < d->p->out_tree.n; i++)
		if (d->p->out_tree.at[i].kind == TREE_VALUE && count++ == 0)
			first = d->p->out_tree.at[i].u.v;
	strbuf_puts(b, "<b>output</b>");
	put_value_line(d, first, count > 1 ? count - 1 : 0, b);
}

/* On two lines: edges come in at the middle, and miss a narrow text. */
void label_cluster(const drawing *d, scope_id s, strbuf *b)
{
	scope_id parent = d->p->scopes.at[s].parent;
	put_bold_name(b, module_name(d, s, parent == NONE ? NONE : d->home[parent]));
	strbuf_puts(b, "<br align=\"left\"/><font point-size=\"10\" color=\"" GREY "\">");
	label_text(b, plan_s(d->p, d->p->scopes.at[s].cls));
	strbuf_puts(b, " </font><br align=\"left\"/>"); /* with a space, as an empty tag is an error */
}

void tooltip_unit(const drawing *d, const unit *u, strbuf *b)
{
	const plan *p = d->p;
	const node *last = &p->nodes.at[u->end - 1];
	label_text(b, node_name(d->f->names, u->end - 1));
	if (u->end - u->first > 1)
		strbuf_printf(b, ", the last of %u operations", u->end - u->first);
	if (module_path(p, u->end - 1)[0]) {
		strbuf_puts(b, " in ");
		label_text(b, module_path(p, u->end - 1));
	}
	if (last->at != NONE) {
		strbuf_puts(b, " at ");
		label_text(b, plan_s(p, last->at));
	}
}

/* ---- the title ------------------------------------------------------------------------------------------------------ */

static void start_row(strbuf *b)
{
	strbuf_puts(b, "<tr><td align=\"left\">");
}

static void end_row(strbuf *b)
{
	strbuf_puts(b, "</td></tr>");
}

/* The values of the first symbols, which stand among the expressions. */
static void put_symbol_sizes(const drawing *d, strbuf *b)
{
	int64_t size[SIZES_MAX];
	bool known[SIZES_MAX] = {false};
	const char *between = " · MB at ";
	for (expr_id e = 0; e < d->p->exprs.n; e++)
		if (d->p->exprs.at[e].op == EXPR_SYM && d->p->exprs.at[e].k < SIZES_MAX) {
			size[d->p->exprs.at[e].k] = d->f->sizes[e];
			known[d->p->exprs.at[e].k] = true;
		}
	for (symbol_id i = 0; i < d->p->symbols.n && i < SIZES_MAX; i++) {
		if (!known[i])
			continue;
		strbuf_puts(b, between);
		label_text(b, plan_s(d->p, d->p->symbols.at[i].name));
		strbuf_printf(b, "=%lld", (long long)size[i]);
		between = ", ";
	}
}

static void put_node_count(strbuf *b, const char *before, uint32_t n)
{
	strbuf_printf(b, "%s%u node%s", before, n, n == 1 ? "" : "s");
}

static void title_of_plan(const drawing *d, strbuf *b)
{
	holdings all = {.d = (drawing *)d, .kind = VALUE_PARAM};
	for (value_id v = 0; v < d->p->values.n; v++)
		if (d->p->values.at[v].kind == VALUE_PARAM)
			add_elements(&all.elements[(d->p->values.at[v].flags & VALUE_TRAINABLE) != 0], elements_of(d, v));
	start_row(b);
	strbuf_puts(b, "<font point-size=\"20\">");
	put_bold_name(b, plan_s(d->p, d->p->model));
	strbuf_puts(b, "</font>");
	end_row(b);
	start_row(b);
	put_node_count(b, "", d->p->nodes.n);
	if (all.elements[0] || all.elements[1]) {
		strbuf_puts(b, " · params: ");
		put_total(&all, b);
	}
	put_symbol_sizes(d, b);
	end_row(b);
}

static void put_where(const drawing *d, strbuf *b)
{
	const frontier *c = &d->f->at[d->o.frontier];
	start_row(b);
	strbuf_puts(b, "cut after ");
	put_bold_name(b, node_name(d->f->names, d->o.frontier));
	if (module_path(d->p, d->o.frontier)[0]) {
		strbuf_puts(b, " in ");
		put_bold_name(b, module_path(d->p, d->o.frontier));
	}
	end_row(b);
	if (!c->unsafe)
		return;
	start_row(b);
	strbuf_puts(b, "<font color=\"#B42318\">the plan cannot be cut here: ");
	put_escaped(b, c->unsafe, strlen(c->unsafe));
	strbuf_puts(b, "</font>");
	end_row(b);
}

/* As a formula, unless it has numbers that no formula can hold. */
static clv_status put_boundary_formula(const drawing *d, strbuf *b)
{
	char *formula;
	clv_status st = clv_frontiers_bytes_text(d->f, d->o.frontier, &formula);
	if (st == CLV_E_OVERFLOW) {
		strbuf_puts(b, "too many");
		return CLV_OK;
	}
	TRY(st);
	label_text(b, formula);
	clv_free(formula);
	return CLV_OK;
}

static clv_status put_cost(const drawing *d, strbuf *b)
{
	const frontier *c = &d->f->at[d->o.frontier];
	start_row(b);
	strbuf_puts(b, "boundary_bytes: ");
	TRY(put_boundary_formula(d, b));
	strbuf_puts(b, " (");
	put_megabytes(b, c->bytes);
	strbuf_printf(b, ", %u tensor%s) · ", c->tensors, c->tensors == 1 ? "" : "s");
	put_node_count(b, "prefix: ", d->o.frontier + 1);
	put_node_count(b, " · suffix: ", d->p->nodes.n - d->o.frontier - 1);
	strbuf_printf(b, " · trainable suffix: %s", c->trainable ? "yes" : "no");
	end_row(b);
	return CLV_OK;
}

static void put_legend_key(strbuf *b, const char *role, const colours *c)
{
	strbuf_printf(b, "<font color=\"%s\" point-size=\"16\">■</font> %s   ", c->line, role);
}

static void put_legend(const drawing *d, strbuf *b)
{
	start_row(b);
	put_legend_key(b, "prefix", &prefix_colours);
	put_legend_key(b, "boundary", &boundary_colours);
	if (d->f->at[d->o.frontier].passthrough)
		put_legend_key(b, "passthrough", &passthrough_colours);
	put_legend_key(b, "suffix", &suffix_colours);
	end_row(b);
}

clv_status label_title(const drawing *d, strbuf *b)
{
	strbuf_puts(b, "<table border=\"0\" cellspacing=\"0\" cellpadding=\"2\">");
	title_of_plan(d, b);
	if (is_cut(d)) {
		put_where(d, b);
		TRY(put_cost(d, b));
		put_legend(d, b);
	}
	strbuf_puts(b, "</table>");
	return CLV_OK;
}
