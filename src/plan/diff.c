/* Compares two plans and lists what differs.
 * Two plans compared: what a person would call the same thing on both sides is paired, then everything that is said
 * about it is written as text, once for each side, and texts that differ are the facts.
 *
 * Values have other numbers on either side. In these texts a value of the first plan goes by the name of its partner in the
 * second, so that equal texts mean the same value; one without a partner is marked. */
#include "plan/diff.h"

#include <stdio.h>
#include <string.h>

#include "plan/intern.h"
#include "plan/same.h"
#include "plan/words.h"

typedef struct side {
	const plan *p;
	node_names *names;
	value_id *to;   /* per value: its partner on the other side; NONE: it has none */
	uint32_t *slot; /* per value: which result of its node it is */
	uint32_t *tie;  /* per value: the first of its ties; NONE: there is none */
	uint32_t *next; /* per tie: the next one of the same value */
} side;

typedef struct comparison {
	diff *d;
	side a, b;
	node_pairs nodes;
	const diff_hooks *hooks;
} comparison;

/* Whose values a text is about. */
typedef struct speaker {
	const comparison *c;
	bool second;
	bool own; /* those of the first plan keep their names: nothing is compared with the text */
} speaker;

/* ---- names ------------------------------------------------------------------------------------------------------ */

static uint32_t result_count(const plan *p, node_id n)
{
	const node *x = &p->nodes.at[n];
	uint32_t count = 0;
	for (uint32_t i = 0; i < x->nresults; i++) {
		const arg *r = &p->args.at[x->results + i];
		count += r->kind == ARG_LIST ? r->u.list.n : 1;
	}
	return count;
}

/* "relu_3", "chunk[1]", "@conv.weight", "#2", "input x" */
static void place_text(const side *s, value_id v, strbuf *b)
{
	const plan *p = s->p;
	const value *x = &p->values.at[v];
	if (x->kind == VALUE_RESULT) {
		strbuf_puts(b, node_name(s->names, x->def));
		if (result_count(p, x->def) > 1)
			strbuf_printf(b, "[%u]", s->slot[v]);
	} else if (x->kind == VALUE_INPUT) {
		strbuf_puts(b, "input ");
		if (x->name == NONE)
			strbuf_int(b, value_number(p, v));
		else
			word_print(b, str_at(p, x->name), char_in_path);
	} else {
		value_label(p, v, b);
	}
}

static void value_place(const void *ctx, value_id v, strbuf *b)
{
	const speaker *s = ctx;
	const side *a = &s->c->a;
	if (s->second) {
		place_text(&s->c->b, v, b);
	} else if (!s->own && a->to[v] != NONE) {
		place_text(&s->c->b, a->to[v], b);
	} else {
		place_text(a, v, b);
		strbuf_puts(b, s->own ? "" : " (removed)");
	}
}

static void module_text(const plan *p, scope_id s, strbuf *b)
{
	if (s != NONE)
		word_print(b, str_at(p, p->scopes.at[s].path), char_in_path);
	else
		strbuf_puts(b, "no module");
}

static void node_title(const side *s, node_id n, strbuf *b)
{
	strbuf_puts(b, node_name(s->names, n));
	if (module_path(s->p, n)[0]) {
		strbuf_puts(b, " in ");
		module_text(s->p, s->p->nodes.at[n].scope, b);
	}
}

static void pair_title(const comparison *c, node_id a, node_id b, strbuf *out)
{
	const char *before = node_name(c->a.names, a), *after = node_name(c->b.names, b);
	node_title(&c->b, b, out);
	if (strcmp(before, after) != 0)
		strbuf_printf(out, " (was %s)", before);
}

/* ---- both sides of a text --------------------------------------------------------------------------------------- */

typedef void (*text_of)(const plan *p, uint32_t id, strbuf *b);

static clv_status compare_texts(comparison *c, const char *prefix, const char *what, text_of f, uint32_t a, uint32_t b)
{
	f(c->a.p, a, &c->d->before);
	f(c->b.p, b, &c->d->after);
	return diff_compare(c->d, prefix, what);
}

/* The same of texts with values in them. */
typedef void (*spoken)(const speaker *s, const plan *p, uint32_t id, strbuf *b);

static clv_status compare_spoken(comparison *c, const char *prefix, const char *what, spoken f, uint32_t a, uint32_t b)
{
	f(&(speaker){.c = c}, c->a.p, a, &c->d->before);
	f(&(speaker){.c = c, .second = true}, c->b.p, b, &c->d->after);
	return diff_compare(c->d, prefix, what);
}

static void quoted_str(const plan *p, str_id s, strbuf *b)
{
	strbuf_quoted(b, str_at(p, s)->s, str_at(p, s)->n);
}

/* ---- facts about values ----------------------------------------------------------------------------------------- */

static void dims_text(const plan *p, uint32_t first, uint32_t n, strbuf *b)
{
	strbuf_putc(b, '[');
	for (uint32_t i = 0; i < n; i++) {
		strbuf_puts(b, i ? "," : "");
		expr_print(p, p->dims.at[first + i], b);
	}
	strbuf_putc(b, ']');
}

static void kind_text(const plan *p, value_id v, strbuf *b)
{
	const char *word = external_words[p->values.at[v].kind];
	strbuf_puts(b, word ? word : "");
}

static void dtype_text(const plan *p, value_id v, strbuf *b)
{
	const value *x = &p->values.at[v];
	strbuf_puts(b, x->type == TYPE_TENSOR ? dtype_name(x->dtype) : host_type_names[x->type]);
}

static void value_shape_text(const plan *p, value_id v, strbuf *b)
{
	const value *x = &p->values.at[v];
	if (x->type == TYPE_TENSOR)
		dims_text(p, x->shape, x->ndim, b);
}

static void strides_text(const plan *p, value_id v, strbuf *b)
{
	const value *x = &p->values.at[v];
	if (x->type == TYPE_TENSOR && x->strides != NONE)
		dims_text(p, x->strides, x->ndim, b);
}

static void device_text(const plan *p, value_id v, strbuf *b)
{
	const value *x = &p->values.at[v];
	if (x->type == TYPE_TENSOR)
		word_print(b, str_at(p, x->device), char_in_device);
}

static void class_text(const plan *p, value_id v, strbuf *b)
{
	if (p->values.at[v].kind == VALUE_OBJECT)
		quoted_str(p, p->values.at[v].name, b);
}

/* Facts that are yes or no. */
static const struct {
	uint8_t bit;
	const char *what;
} value_flags[] = {{VALUE_TRAINABLE, "trainable"},
                   {VALUE_GRAD, "requires grad"},
                   {VALUE_ODD, "odd"},
                   {VALUE_PERSISTENT, "persistent"},
                   {VALUE_GUARD, "guard"}};

static clv_status compare_flags(comparison *c, const char *prefix, value_id a, value_id b)
{
	bool result = c->a.p->values.at[a].kind == VALUE_RESULT; /* guards of results have a section of their own */
	for (size_t i = 0; i < sizeof value_flags / sizeof *value_flags - result; i++) {
		strbuf_puts(&c->d->before, c->a.p->values.at[a].flags & value_flags[i].bit ? "yes" : "no");
		strbuf_puts(&c->d->after, c->b.p->values.at[b].flags & value_flags[i].bit ? "yes" : "no");
		TRY(diff_compare(c->d, prefix, value_flags[i].what));
	}
	return CLV_OK;
}

static void alias_text(const speaker *s, const plan *p, value_id v, strbuf *b)
{
	if (p->values.at[v].alias != NONE)
		value_place(s, p->values.at[v].alias, b);
}

static clv_status value_facts(comparison *c, const char *prefix, value_id a, value_id b)
{
	TRY(compare_texts(c, prefix, "kind", kind_text, a, b));
	TRY(compare_texts(c, prefix, "dtype", dtype_text, a, b));
	TRY(compare_texts(c, prefix, "shape", value_shape_text, a, b));
	TRY(compare_texts(c, prefix, "strides", strides_text, a, b));
	TRY(compare_texts(c, prefix, "device", device_text, a, b));
	TRY(compare_texts(c, prefix, "class", class_text, a, b));
	TRY(compare_flags(c, prefix, a, b));
	return compare_spoken(c, prefix, "view of", alias_text, a, b);
}

/* ---- model, symbols, modules ------------------------------------------------------------------------------------ */

static clv_status diff_model(comparison *c)
{
	const plan *a = c->a.p, *b = c->b.p;
	diff_open(c->d, DIFF_MODEL);
	TRY(compare_texts(c, "", "class", quoted_str, a->model, b->model));
	strbuf_puts(&c->d->before, a->training ? "train" : "eval");
	strbuf_puts(&c->d->after, b->training ? "train" : "eval");
	TRY(diff_compare(c->d, "", "mode"));
	strbuf_puts(&c->d->before, grad_mode_names[a->grad_modes & 3]);
	strbuf_puts(&c->d->after, grad_mode_names[b->grad_modes & 3]);
	TRY(diff_compare(c->d, "", "proven with grad"));
	strbuf_puts(&c->d->name, "model");
	return diff_close(c->d);
}

/* The string of the other plan with the same bytes. */
static str_id same_str(const plan *from, str_id s, const plan *to)
{
	const str *x = str_at(from, s);
	return str_find(to, x->s, x->n);
}

static void symbol_text(const plan *p, symbol_id s, strbuf *b)
{
	const symbol *x = &p->symbols.at[s];
	strbuf_printf(b, "%lld..%lld%s", (long long)x->lo, (long long)x->hi, x->data ? " data" : "");
}

static void symbol_name(const plan *p, symbol_id s, strbuf *b)
{
	strbuf_puts(b, plan_s(p, p->symbols.at[s].name));
}

static symbol_id symbol_in(const plan *from, symbol_id s, const plan *to)
{
	str_id name = same_str(from, from->symbols.at[s].name, to);
	return name == NONE ? NONE : symbol_find(to, name);
}

static void scope_text(const plan *p, scope_id s, strbuf *b)
{
	quoted_str(p, p->scopes.at[s].cls, b);
}

static scope_id scope_in(const plan *from, scope_id s, const plan *to)
{
	str_id path = same_str(from, from->scopes.at[s].path, to);
	return path == NONE ? NONE : scope_find(to, path);
}

/* Things with a name of their own: the partner is the one with the same name. */
typedef struct named_things {
	diff_section section;
	const char *what; /* the fact */
	uint32_t (*partner)(const plan *from, uint32_t id, const plan *to);
	text_of name, text;
} named_things;

static clv_status one_side(comparison *c, const named_things *t, const plan *p, uint32_t id, diff_change change)
{
	diff_open(c->d, t->section);
	t->name(p, id, &c->d->name);
	t->text(p, id, &c->d->after);
	return diff_one(c->d, t->section, change);
}

static clv_status diff_named(comparison *c, const named_things *t, uint32_t na, uint32_t nb)
{
	const plan *a = c->a.p, *b = c->b.p;
	for (uint32_t i = 0; i < na; i++) {
		uint32_t to = t->partner(a, i, b);
		if (to == NONE) {
			TRY(one_side(c, t, a, i, DIFF_REMOVED));
			continue;
		}
		diff_open(c->d, t->section);
		TRY(compare_texts(c, "", t->what, t->text, i, to));
		if (diff_pending(c->d))
			t->name(b, to, &c->d->name);
		TRY(diff_close(c->d));
	}
	for (uint32_t i = 0; i < nb; i++)
		if (t->partner(b, i, a) == NONE)
			TRY(one_side(c, t, b, i, DIFF_ADDED));
	return CLV_OK;
}

static clv_status diff_symbols(comparison *c)
{
	static const named_things symbols = {DIFF_SYMBOLS, "range", symbol_in, symbol_name, symbol_text};
	return diff_named(c, &symbols, c->a.p->symbols.n, c->b.p->symbols.n);
}

static clv_status diff_modules(comparison *c)
{
	static const named_things scopes = {DIFF_MODULES, "class", scope_in, module_text, scope_text};
	return diff_named(c, &scopes, c->a.p->scopes.n, c->b.p->scopes.n);
}

/* ---- partners of values ----------------------------------------------------------------------------------------- */

static void partner(void *ctx, value_id a, value_id b)
{
	comparison *c = ctx;
	c->a.to[a] = b;
	c->b.to[b] = a;
}

static bool free_pair(const comparison *c, value_id a, value_id b)
{
	return c->a.to[a] == NONE && c->b.to[b] == NONE;
}

/* Inputs go by their names, those without one by their place. */
static clv_status partner_inputs(comparison *c)
{
	const plan *a = c->a.p, *b = c->b.p;
	value_id *by_name = mem_ids((size_t)b->strs.n + 1);
	TRY_MEM(by_name);
	for (uint32_t i = b->inputs.n; i-- > 0;)
		if (b->values.at[b->inputs.at[i]].name != NONE)
			by_name[b->values.at[b->inputs.at[i]].name] = b->inputs.at[i];
	for (uint32_t i = 0; i < a->inputs.n; i++) {
		value_id v = a->inputs.at[i];
		str_id name = a->values.at[v].name == NONE ? NONE : same_str(a, a->values.at[v].name, b);
		value_id to = name == NONE ? NONE : by_name[name];
		if (to != NONE && c->b.to[to] == NONE)
			partner(c, v, to);
	}
	mem_free(by_name);
	for (uint32_t i = 0; i < a->inputs.n && i < b->inputs.n; i++)
		if (free_pair(c, a->inputs.at[i], b->inputs.at[i]))
			partner(c, a->inputs.at[i], b->inputs.at[i]);
	return CLV_OK;
}

static void partner_tensors(comparison *c)
{
	for (value_id v = 0; v < c->a.p->values.n; v++) {
		if (!is_module_tensor(c->a.p->values.at[v].kind))
			continue;
		str_id name = same_str(c->a.p, c->a.p->values.at[v].name, c->b.p);
		value_id to = name == NONE ? NONE : external_find(c->b.p, name);
		if (to != NONE)
			partner(c, v, to);
	}
}

/* Constants have no names: they go with what is read in the same place by the same node. */
static void partner_constant(void *ctx, value_id a, value_id b)
{
	comparison *c = ctx;
	uint8_t kind = c->a.p->values.at[a].kind;
	bool nameless = kind == VALUE_CONST || kind == VALUE_OBJECT;
	if (nameless && kind == c->b.p->values.at[b].kind && free_pair(c, a, b))
		partner(c, a, b);
}

static value_id next_alone(const side *s, uint8_t kind, value_id v)
{
	while (v < s->p->values.n && (s->p->values.at[v].kind != kind || s->to[v] != NONE))
		v++;
	return v;
}

static clv_status same_type(comparison *c, value_id a, value_id b, bool *out)
{
	strbuf *x = &c->d->before, *y = &c->d->after;
	diff_start(c->d);
	value_print_type(c->a.p, a, x);
	value_print_type(c->b.p, b, y);
	TRY_MEM(!x->failed && !y->failed);
	*out = x->n == y->n && memcmp(x->at, y->at, x->n) == 0;
	diff_start(c->d);
	return CLV_OK;
}

/* Constants that no node reads on both sides go by their order, where they are of one type. */
static clv_status partner_rest(comparison *c, uint8_t kind)
{
	value_id x = next_alone(&c->a, kind, 0), y = next_alone(&c->b, kind, 0);
	while (x < c->a.p->values.n && y < c->b.p->values.n) {
		bool same;
		TRY(same_type(c, x, y, &same));
		if (same)
			partner(c, x, y);
		x = next_alone(&c->a, kind, x + 1);
		y = next_alone(&c->b, kind, y + 1);
	}
	return CLV_OK;
}

static clv_status find_partners(comparison *c)
{
	const plan *a = c->a.p, *b = c->b.p;
	TRY(partner_inputs(c));
	partner_tensors(c);
	for (node_id n = 0; n < a->nodes.n; n++) {
		if (c->nodes.to_b[n] == NONE)
			continue;
		const node *x = &a->nodes.at[n], *y = &b->nodes.at[c->nodes.to_b[n]];
		uint32_t nresults = x->nresults < y->nresults ? x->nresults : y->nresults;
		each_value_pair(a, x->results, b, y->results, nresults, partner, c);
		uint32_t nargs = x->nargs < y->nargs ? x->nargs : y->nargs;
		each_value_pair(a, x->args, b, y->args, nargs, partner_constant, c);
	}
	TRY(partner_rest(c, VALUE_CONST));
	return partner_rest(c, VALUE_OBJECT);
}

/* ---- inputs and values from outside ----------------------------------------------------------------------------- */

static void input_number(const plan *p, value_id v, strbuf *b)
{
	strbuf_int(b, value_number(p, v));
}

static void input_name(const plan *p, value_id v, strbuf *b)
{
	if (p->values.at[v].name != NONE)
		quoted_str(p, p->values.at[v].name, b);
}

static void ties_text(const side *s, value_id v, strbuf *b)
{
	for (uint32_t t = s->tie[v]; t != NONE; t = s->next[t]) {
		strbuf_puts(b, t == s->tie[v] ? "" : " ");
		word_print(b, str_at(s->p, s->p->ties.at[t].name), char_in_path);
	}
}

static clv_status extra_facts(comparison *c, value_id a, value_id b)
{
	uint8_t kind = c->a.p->values.at[a].kind;
	if (kind == VALUE_INPUT) {
		TRY(compare_texts(c, "", "position", input_number, a, b));
		return compare_texts(c, "", "name", input_name, a, b);
	}
	if (kind == VALUE_CONST && c->hooks)
		return c->hooks->constant(c->hooks->ctx, c->d, a, b);
	ties_text(&c->a, a, &c->d->before);
	ties_text(&c->b, b, &c->d->after);
	return diff_compare(c->d, "", "tied");
}

static diff_section section_of(uint8_t kind)
{
	static const uint8_t sections[] = {
		[VALUE_INPUT] = DIFF_INPUTS,    [VALUE_PARAM] = DIFF_PARAMETERS, [VALUE_BUFFER] = DIFF_BUFFERS,
		[VALUE_ATTR] = DIFF_ATTRIBUTES, [VALUE_CONST] = DIFF_CONSTANTS,  [VALUE_OBJECT] = DIFF_OBJECTS,
		[VALUE_RESULT] = DIFF_NODES};
	return (diff_section)sections[kind];
}

/* Of an input or a value from outside that is on one side alone. */
static clv_status lone_value(comparison *c, const side *s, value_id v, diff_change change)
{
	const value *x = &s->p->values.at[v];
	diff_open(c->d, section_of(x->kind));
	place_text(s, v, &c->d->name);
	if (x->kind == VALUE_OBJECT)
		class_text(s->p, v, &c->d->after);
	else
		value_print_type(s->p, v, &c->d->after);
	strbuf_puts(&c->d->after, x->flags & VALUE_TRAINABLE ? " trainable" : "");
	return diff_one(c->d, c->d->section, change);
}

static clv_status diff_value(comparison *c, value_id a)
{
	value_id b = c->a.to[a];
	if (b == NONE)
		return lone_value(c, &c->a, a, DIFF_REMOVED);
	diff_open(c->d, section_of(c->a.p->values.at[a].kind));
	TRY(value_facts(c, "", a, b));
	TRY(extra_facts(c, a, b));
	if (diff_pending(c->d))
		place_text(&c->b, b, &c->d->name);
	return diff_close(c->d);
}

static clv_status diff_values(comparison *c, bool inputs)
{
	const plan *a = c->a.p, *b = c->b.p;
	for (value_id v = 0; v < a->values.n; v++)
		if (a->values.at[v].kind != VALUE_RESULT && (a->values.at[v].kind == VALUE_INPUT) == inputs)
			TRY(diff_value(c, v));
	for (value_id v = 0; v < b->values.n; v++)
		if (b->values.at[v].kind != VALUE_RESULT && (b->values.at[v].kind == VALUE_INPUT) == inputs &&
		    c->b.to[v] == NONE)
			TRY(lone_value(c, &c->b, v, DIFF_ADDED));
	return CLV_OK;
}

/* ---- nodes ------------------------------------------------------------------------------------------------------ */

static void type_of(const void *ctx, value_id v, strbuf *b)
{
	const speaker *s = ctx;
	value_print_type(s->second ? s->c->b.p : s->c->a.p, v, b);
}

static void writes_text(const speaker *s, const plan *p, node_id n, strbuf *b)
{
	const node *x = &p->nodes.at[n];
	for (uint32_t i = 0; i < x->nwrites; i++) {
		strbuf_puts(b, i ? ", " : "");
		value_place(s, p->ids.at[x->writes + i], b);
	}
}

/* The node as a line without numbers. */
static void node_text(const speaker *s, const plan *p, node_id n, strbuf *b)
{
	const node *x = &p->nodes.at[n];
	strbuf_puts(b, plan_s(p, x->op));
	strbuf_putc(b, '(');
	args_text(p, x->args, x->nargs, value_place, s, b);
	strbuf_putc(b, ')');
	if (x->nresults) {
		strbuf_puts(b, " -> ");
		args_text(p, x->results, x->nresults, type_of, s, b);
	}
	if (x->nwrites) {
		strbuf_puts(b, " writes ");
		writes_text(s, p, n, b);
	}
	node_print_modes(p, x, b);
}

static void op_text(const plan *p, node_id n, strbuf *b)
{
	strbuf_puts(b, plan_s(p, p->nodes.at[n].op));
}

static void node_module(const plan *p, node_id n, strbuf *b)
{
	module_text(p, p->nodes.at[n].scope, b);
}

static void modes_text(const plan *p, node_id n, strbuf *b)
{
	node_print_modes(p, &p->nodes.at[n], b);
	if (b->n && b->at[0] == ' ')
		memmove(b->at, b->at + 1, --b->n);
}

static void line_text(const plan *p, node_id n, strbuf *b)
{
	if (p->nodes.at[n].at != NONE)
		quoted_str(p, p->nodes.at[n].at, b);
}

static clv_status compare_args(comparison *c, node_id a, node_id b)
{
	const node *x = &c->a.p->nodes.at[a], *y = &c->b.p->nodes.at[b];
	for (uint32_t i = 0; i < x->nargs || i < y->nargs; i++) {
		char what[32];
		if (i < x->nargs)
			args_text(c->a.p, x->args + i, 1, value_place, &(speaker){.c = c}, &c->d->before);
		if (i < y->nargs)
			args_text(c->b.p, y->args + i, 1, value_place, &(speaker){.c = c, .second = true}, &c->d->after);
		snprintf(what, sizeof what, "argument %u", i);
		TRY(diff_compare(c->d, "", what));
	}
	return CLV_OK;
}

/* Which results there are, without what they are. */
static void form_of(const void *ctx, value_id v, strbuf *b)
{
	(void)ctx;
	(void)v;
	strbuf_puts(b, "value");
}

static void form_text(const plan *p, node_id n, strbuf *b)
{
	args_text(p, p->nodes.at[n].results, p->nodes.at[n].nresults, form_of, NULL, b);
}

typedef clv_status (*result_fn)(comparison *c, const char *prefix, value_id a, value_id b);

/* Calls f for each pair of results, with its name in front of facts. */
static clv_status each_result(comparison *c, node_id a, node_id b, result_fn f)
{
	const plan *p = c->a.p;
	const node *x = &p->nodes.at[a];
	bool several = result_count(p, a) > 1 || result_count(c->b.p, b) > 1;
	for (uint32_t i = 0; i < x->nresults; i++) {
		const arg *r = &p->args.at[x->results + i];
		bool list = r->kind == ARG_LIST;
		for (uint32_t k = 0; k < (list ? r->u.list.n : 1); k++) {
			const arg *e = list ? &p->args.at[r->u.list.first + k] : r;
			char prefix[32] = "";
			if (e->kind != ARG_VALUE || c->a.to[e->u.v] == NONE)
				continue;
			if (several)
				snprintf(prefix, sizeof prefix, "result %u ", c->a.slot[e->u.v]);
			TRY(f(c, prefix, e->u.v, c->a.to[e->u.v]));
		}
	}
	return CLV_OK;
}

/* "after relu_2", or that it is the first. */
static void position_text(const side *s, node_id n, strbuf *b)
{
	strbuf_printf(b, "%u, ", n);
	if (n)
		strbuf_printf(b, "after %s", node_name(s->names, n - 1));
	else
		strbuf_puts(b, "first");
}

static clv_status node_facts(comparison *c, node_id a, node_id b)
{
	TRY(compare_texts(c, "", "operator", op_text, a, b));
	TRY(compare_texts(c, "", "module", node_module, a, b));
	TRY(compare_args(c, a, b));
	TRY(compare_texts(c, "", "results", form_text, a, b));
	TRY(each_result(c, a, b, value_facts));
	TRY(compare_spoken(c, "", "writes", writes_text, a, b));
	TRY(compare_texts(c, "", "modes", modes_text, a, b));
	if (!c->nodes.moved[a])
		return CLV_OK;
	position_text(&c->a, a, &c->d->before);
	position_text(&c->b, b, &c->d->after);
	return diff_compare(c->d, "", "position");
}

static clv_status diff_pair(comparison *c, diff_section s, node_id a,
                            clv_status (*facts)(comparison *, node_id, node_id))
{
	node_id b = c->nodes.to_b[a];
	diff_open(c->d, s);
	TRY(facts(c, a, b));
	if (diff_pending(c->d))
		pair_title(c, a, b, &c->d->name);
	return diff_close(c->d);
}

static clv_status lone_node(comparison *c, bool second, node_id n)
{
	const side *s = second ? &c->b : &c->a;
	diff_open(c->d, DIFF_NODES);
	node_title(s, n, &c->d->name);
	node_text(&(speaker){.c = c, .second = second, .own = true}, s->p, n, &c->d->after);
	return diff_one(c->d, DIFF_NODES, second ? DIFF_ADDED : DIFF_REMOVED);
}

/* In the order of both plans: what was removed stands before what was added in its place. */
static clv_status diff_nodes(comparison *c)
{
	node_id b = 0;
	for (node_id a = 0; a < c->a.p->nodes.n; a++) {
		node_id to = c->nodes.to_b[a];
		if (to == NONE) {
			TRY(lone_node(c, false, a));
			continue;
		}
		for (; !c->nodes.moved[a] && b < to; b++)
			if (c->nodes.to_a[b] == NONE)
				TRY(lone_node(c, true, b));
		TRY(diff_pair(c, DIFF_NODES, a, node_facts));
	}
	for (; b < c->b.p->nodes.n; b++)
		if (c->nodes.to_a[b] == NONE)
			TRY(lone_node(c, true, b));
	return CLV_OK;
}

/* ---- guards and source lines ------------------------------------------------------------------------------------ */

static bool is_guard(const plan *p, value_id v)
{
	return p->values.at[v].expect != NONE || p->values.at[v].flags & VALUE_GUARD;
}

static void guard_text(const plan *p, value_id v, strbuf *b)
{
	const value *x = &p->values.at[v];
	if (x->expect != NONE)
		arg_print(p, &p->args.at[x->expect], b);
	else if (x->flags & VALUE_GUARD)
		value_print_type(p, v, b);
}

static clv_status guard_facts(comparison *c, const char *prefix, value_id a, value_id b)
{
	return compare_texts(c, prefix, "guard", guard_text, a, b);
}

static clv_status node_guard_facts(comparison *c, node_id a, node_id b)
{
	return each_result(c, a, b, guard_facts);
}

typedef struct guard_seeker {
	const plan *p;
	value_id first; /* guard among the results */
} guard_seeker;

static void seek_guard(void *ctx, value_id v)
{
	guard_seeker *s = ctx;
	if (s->first == NONE && is_guard(s->p, v))
		s->first = v;
}

static value_id first_guard(const plan *p, node_id n)
{
	guard_seeker s = {p, NONE};
	node_each_result(p, n, seek_guard, &s);
	return s.first;
}

static clv_status lone_guard(comparison *c, const side *s, node_id n, diff_change change)
{
	value_id v = first_guard(s->p, n);
	if (v == NONE)
		return CLV_OK;
	diff_open(c->d, DIFF_GUARDS);
	node_title(s, n, &c->d->name);
	guard_text(s->p, v, &c->d->after);
	return diff_one(c->d, DIFF_GUARDS, change);
}

static clv_status diff_guards(comparison *c)
{
	for (node_id a = 0; a < c->a.p->nodes.n; a++) {
		node_id b = c->nodes.to_b[a];
		if (b == NONE)
			TRY(lone_guard(c, &c->a, a, DIFF_REMOVED));
		else if (first_guard(c->a.p, a) != NONE || first_guard(c->b.p, b) != NONE)
			TRY(diff_pair(c, DIFF_GUARDS, a, node_guard_facts));
	}
	for (node_id b = 0; b < c->b.p->nodes.n; b++)
		if (c->nodes.to_a[b] == NONE)
			TRY(lone_guard(c, &c->b, b, DIFF_ADDED));
	return CLV_OK;
}

static clv_status line_facts(comparison *c, node_id a, node_id b)
{
	return compare_texts(c, "", "line", line_text, a, b);
}

static clv_status diff_lines(comparison *c)
{
	for (node_id a = 0; a < c->a.p->nodes.n; a++)
		if (c->nodes.to_b[a] != NONE)
			TRY(diff_pair(c, DIFF_LINES, a, line_facts));
	return CLV_OK;
}

/* ---- rebinds ---------------------------------------------------------------------------------------------------- */

static uint32_t *rebinds_by_target(const plan *p)
{
	uint32_t *of = mem_ids((size_t)p->values.n + 1);
	for (uint32_t i = 0; of && i < p->rebinds.n; i++)
		of[p->rebinds.at[i].target] = i;
	return of;
}

static clv_status lone_rebind(comparison *c, bool second, uint32_t i)
{
	const side *s = second ? &c->b : &c->a;
	diff_open(c->d, DIFF_REBINDS);
	place_text(s, s->p->rebinds.at[i].target, &c->d->name);
	value_place(&(speaker){.c = c, .second = second, .own = true}, s->p->rebinds.at[i].value, &c->d->after);
	return diff_one(c->d, DIFF_REBINDS, second ? DIFF_ADDED : DIFF_REMOVED);
}

static uint32_t other_rebind(const side *s, uint32_t i, const uint32_t *of)
{
	value_id to = s->to[s->p->rebinds.at[i].target];
	return to == NONE ? NONE : of[to];
}

static void rebind_text(const speaker *s, const plan *p, uint32_t i, strbuf *b)
{
	value_place(s, p->rebinds.at[i].value, b);
}

static clv_status compare_rebinds(comparison *c, const uint32_t *of_a, const uint32_t *of_b)
{
	for (uint32_t i = 0; i < c->a.p->rebinds.n; i++) {
		uint32_t to = other_rebind(&c->a, i, of_b);
		if (to == NONE) {
			TRY(lone_rebind(c, false, i));
			continue;
		}
		diff_open(c->d, DIFF_REBINDS);
		TRY(compare_spoken(c, "", "value", rebind_text, i, to));
		if (diff_pending(c->d))
			place_text(&c->b, c->b.p->rebinds.at[to].target, &c->d->name);
		TRY(diff_close(c->d));
	}
	for (uint32_t i = 0; i < c->b.p->rebinds.n; i++)
		if (other_rebind(&c->b, i, of_a) == NONE)
			TRY(lone_rebind(c, true, i));
	return CLV_OK;
}

static clv_status diff_rebinds(comparison *c)
{
	uint32_t *of_a = rebinds_by_target(c->a.p), *of_b = rebinds_by_target(c->b.p);
	clv_status st = of_a && of_b ? compare_rebinds(c, of_a, of_b) : fail_nomem();
	mem_free(of_a);
	mem_free(of_b);
	return st;
}

/* ---- trees ------------------------------------------------------------------------------------------------------ */

typedef struct tree_pair {
	comparison *c;
	diff_section section;
	const trees *a, *b;
	strbuf path;
} tree_pair;

static uint32_t tree_end(const trees *t, uint32_t i)
{
	for (uint64_t open = 1; i < t->n && open; i++)
		open += (tree_has_children(t->at[i].kind) ? (uint64_t)t->at[i].n : 0) - 1;
	return i;
}

/* A leaf as it is; of a container its kind and size. */
static void tree_text(const speaker *s, const plan *p, const tree *t, bool types, strbuf *b)
{
	static const char *const words[] = {[TREE_BYTES] = "bytes:", [TREE_OPAQUE] = "opaque ", [TREE_LIST] = "list",
	                                    [TREE_TUPLE] = "tuple",  [TREE_DICT] = "dict",      [TREE_OBJECT] = "object "};
	arg a;
	if (t->kind == TREE_VALUE) {
		value_place(s, t->u.v, b);
		strbuf_puts(b, types ? " " : "");
		if (types)
			value_print_type(p, t->u.v, b);
		return;
	}
	if (leaf_as_arg(t, &a)) {
		arg_print(p, &a, b);
		return;
	}
	strbuf_puts(b, words[t->kind]);
	if (t->kind == TREE_BYTES || t->kind == TREE_OPAQUE || t->kind == TREE_OBJECT)
		strbuf_quoted_ascii(b, str_at(p, t->u.s)->s, str_at(p, t->u.s)->n);
	if (tree_has_children(t->kind))
		strbuf_printf(b, " of %u", t->kind >= TREE_DICT ? t->n / 2 : t->n);
}

static clv_status compare_tree(tree_pair *x, uint32_t i, uint32_t k, unsigned depth);

/* What stands here itself; of inputs the types are compared elsewhere. */
static clv_status compare_top(tree_pair *x, uint32_t i, uint32_t k)
{
	diff *d = x->c->d;
	bool types = x->section == DIFF_OUTPUTS;
	diff_open(d, x->section);
	tree_text(&(speaker){.c = x->c}, x->c->a.p, &x->a->at[i], types, &d->before);
	tree_text(&(speaker){.c = x->c, .second = true}, x->c->b.p, &x->b->at[k], types, &d->after);
	TRY(diff_compare(d, "", "is"));
	if (!diff_pending(d) && (!types || x->a->at[i].kind != TREE_VALUE))
		return CLV_OK; /* only tensors are worth counting */
	strbuf_add(&d->name, x->path.at, x->path.n);
	return diff_close(d);
}

/* A pair of children, or of keys (word "key "), or of values by their key. */
static clv_status compare_child(tree_pair *x, uint32_t i, uint32_t k, const char *word, uint32_t number,
                                const tree *key, unsigned depth)
{
	size_t n = x->path.n;
	strbuf_printf(&x->path, "[%s", word);
	if (key)
		tree_text(&(speaker){.c = x->c, .second = true}, x->c->b.p, key, false, &x->path);
	else
		strbuf_int(&x->path, number);
	strbuf_putc(&x->path, ']');
	TRY_MEM(!x->path.failed);
	TRY(compare_tree(x, i, k, depth + 1));
	x->path.n = n;
	return CLV_OK;
}

/* By their place; keys are compared as the values are. */
static clv_status compare_children(tree_pair *x, uint32_t i, uint32_t k, unsigned depth)
{
	bool pairs = x->a->at[i].kind == TREE_DICT || x->a->at[i].kind == TREE_OBJECT;
	uint32_t n = x->a->at[i].n < x->b->at[k].n ? x->a->at[i].n : x->b->at[k].n, key = NONE;
	i++;
	k++;
	for (uint32_t child = 0; child < n; child++) {
		bool is_key = pairs && child % 2 == 0;
		const tree *of = pairs && !is_key ? &x->b->at[key] : NULL;
		TRY(compare_child(x, i, k, is_key ? "key " : "", pairs ? child / 2 : child, of, depth));
		key = k;
		i = tree_end(x->a, i);
		k = tree_end(x->b, k);
	}
	return CLV_OK;
}

static clv_status compare_tree(tree_pair *x, uint32_t i, uint32_t k, unsigned depth)
{
	if (depth > NEST_LIMIT)
		return fail(CLV_E_VERIFY, "the tree is too deep");
	TRY(compare_top(x, i, k));
	if (tree_has_children(x->a->at[i].kind) && x->a->at[i].kind == x->b->at[k].kind)
		TRY(compare_children(x, i, k, depth));
	return CLV_OK;
}

static clv_status compare_trees(tree_pair *x, const char *root)
{
	if (x->a->n && x->b->n) {
		strbuf_puts(&x->path, root);
		return x->path.failed ? fail_nomem() : compare_tree(x, 0, 0, 0);
	}
	if (!x->a->n && !x->b->n)
		return CLV_OK;
	diff_open(x->c->d, x->section);
	strbuf_puts(&x->c->d->name, root);
	strbuf_puts(&x->c->d->after, "tree");
	return diff_one(x->c->d, x->section, x->a->n ? DIFF_REMOVED : DIFF_ADDED);
}

static clv_status diff_trees(comparison *c, bool inputs)
{
	const plan *a = c->a.p, *b = c->b.p;
	tree_pair x = {.c = c, .section = inputs ? DIFF_INPUTS : DIFF_OUTPUTS};
	x.a = inputs ? &a->in_tree : &a->out_tree;
	x.b = inputs ? &b->in_tree : &b->out_tree;
	clv_status st = compare_trees(&x, inputs ? "inputs" : "output");
	strbuf_free(&x.path);
	return st;
}

/* ---- all -------------------------------------------------------------------------------------------------------- */

static void number_slots(side *s)
{
	for (node_id n = 0; n < s->p->nodes.n; n++) {
		const node *x = &s->p->nodes.at[n];
		uint32_t slot = 0;
		for (uint32_t i = 0; i < x->nresults; i++) {
			const arg *r = &s->p->args.at[x->results + i];
			bool list = r->kind == ARG_LIST;
			for (uint32_t k = 0; k < (list ? r->u.list.n : 1); k++, slot++) {
				const arg *e = list ? &s->p->args.at[r->u.list.first + k] : r;
				if (e->kind == ARG_VALUE)
					s->slot[e->u.v] = slot;
			}
		}
	}
}

static clv_status side_new(const plan *p, side *s)
{
	s->p = p;
	s->to = mem_ids((size_t)p->values.n + 1);
	s->slot = mem_ids((size_t)p->values.n + 1);
	s->tie = mem_ids((size_t)p->values.n + 1);
	s->next = mem_ids((size_t)p->ties.n + 1);
	TRY_MEM(s->to && s->slot && s->tie && s->next);
	for (uint32_t i = p->ties.n; i-- > 0;) {
		s->next[i] = s->tie[p->ties.at[i].value];
		s->tie[p->ties.at[i].value] = i;
	}
	number_slots(s);
	return node_names_new(p, &s->names);
}

static void side_free(side *s)
{
	mem_free(s->to);
	mem_free(s->slot);
	mem_free(s->tie);
	mem_free(s->next);
	node_names_free(s->names);
}

/* Whatever plans say beyond what was compared is the order in which they say it. */
static clv_status diff_order(comparison *c)
{
	const diff_part *part = &c->d->parts.at[c->d->parts.n - 1];
	for (unsigned s = 0; s < DIFF_SECTION_COUNT; s++)
		if (part->count[s][DIFF_ADDED] || part->count[s][DIFF_REMOVED] || part->count[s][DIFF_CHANGED])
			return CLV_OK;
	if (plan_equal(c->a.p, c->b.p))
		return CLV_OK;
	diff_open(c->d, DIFF_ORDER);
	strbuf_puts(&c->d->name, "declarations");
	TRY(diff_fact_add(c->d, "order", "one", "another", NULL));
	return diff_close(c->d);
}

static clv_status compare_all(comparison *c)
{
	TRY(find_partners(c));
	TRY(diff_model(c));
	TRY(diff_symbols(c));
	TRY(diff_values(c, true));
	TRY(diff_trees(c, true));
	TRY(diff_trees(c, false));
	TRY(diff_modules(c));
	TRY(diff_values(c, false));
	TRY(diff_nodes(c));
	TRY(diff_guards(c));
	TRY(diff_rebinds(c));
	TRY(diff_lines(c));
	return diff_order(c);
}

clv_status plan_diff(diff *d, const plan *a, const plan *b, const diff_hooks *hooks)
{
	comparison c = {.d = d, .hooks = hooks};
	clv_status st = side_new(a, &c.a);
	if (st == CLV_OK)
		st = side_new(b, &c.b);
	if (st == CLV_OK)
		st = node_pairs_new(a, b, PAIRS_NEAR, &c.nodes);
	if (st == CLV_OK)
		st = compare_all(&c);
	node_pairs_free(&c.nodes);
	side_free(&c.a);
	side_free(&c.b);
	return st;
}
