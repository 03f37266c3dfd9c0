/* Parses plan text, one statement per line (grammar: docs/plan-format.md).
 *
 * Names are resolved while reading, so everything is defined before it is used; ids follow the order of definition.
 * Every element of an array costs at least one character, so the text bounds the memory. plan_parse checks form and
 * names; whether the plan keeps its rules is plan_verify's question. */
#include "plan/parse.h"

#include <string.h>

/* ---- labels ----------------------------------------------------------------------------------------------------- */

typedef struct label_key {
	const parser *ps;
	slice name;
} label_key;

static bool label_same(const void *ctx, uint32_t id)
{
	const label_key *k = ctx;
	slice s = k->ps->labels.at[id].name;
	return s.n == k->name.n && memcmp(s.s, k->name.s, s.n) == 0;
}

static uint32_t label_hash(const parser *ps, slice name)
{
	return hash_bytes(name.s, name.n, ps->p->intern->seed);
}

value_id label_find(const parser *ps, slice name)
{
	uint32_t i = table_find(&ps->by_label, label_hash(ps, name), label_same, &(label_key){ps, name});
	return i == TABLE_NONE ? NONE : ps->labels.at[i].v;
}

static clv_status label_define(parser *ps, slice name, value_id v)
{
	if (label_find(ps, name) != NONE)
		return lex_fail(&ps->l, name.s, "%.*s is defined twice", (int)(name.n < 200 ? name.n : 200), name.s);
	TRY(table_add(&ps->by_label, label_hash(ps, name), ps->labels.n));
	return vec_push(&ps->labels, ((label){name, v}));
}

/* %x or #x, not looked up. */
static clv_status parse_label(parser *ps, char sign, slice *out)
{
	if (lex_peek(&ps->l) != sign)
		return lex_expected(&ps->l, sign == '%' ? "a label like %0" : "a label like #0");
	out->s = ps->l.at++;
	out->n = 1 + lex_run(&ps->l, char_in_label).n;
	return out->n > 1 ? CLV_OK : lex_expected(&ps->l, "a name for the label");
}

/* A string that becomes a C string. */
static clv_status parse_text(parser *ps, slice *out)
{
	lex_skip(&ps->l);
	const char *start = ps->l.at;
	TRY(lex_string(&ps->l, out));
	if (memchr(out->s, '\0', out->n))
		return lex_fail(&ps->l, start, "this string cannot hold a NUL byte");
	return CLV_OK;
}

static clv_status parse_text_id(parser *ps, str_id *out)
{
	slice s;
	TRY(parse_text(ps, &s));
	return plan_str(ps->p, s.s, s.n, out);
}

static clv_status want_end(parser *ps)
{
	return lex_at_end(&ps->l) ? CLV_OK : lex_expected(&ps->l, "the end of the line");
}

/* ---- types and their marks -------------------------------------------------------------------------------------- */

/* Which marks may follow a type. */
enum {
	MARK_TENSOR = 1, /* strides device grad view-of */
	MARK_GUARD = 2,
	MARK_TRAINABLE = 4,
	MARK_PERSISTENT = 8,
	MARK_NAME = 16,
	MARK_TIED = 32
};

typedef struct typed {
	value_type type;
	dtype dtype;
	uint32_t dims, ndim; /* on ps->dims: shape, then strides */
	bool strides, expects;
	uint8_t flags;
	str_id device, name; /* or NONE */
	value_id alias;
	arg expect;
} typed;

/* expr, expr close */
static clv_status parse_dims(parser *ps, char close, uint32_t *n)
{
	uint32_t base = ps->dims.n;
	*n = 0;
	if (lex_take(&ps->l, close))
		return CLV_OK;
	do {
		expr_id e;
		TRY(parse_expr(ps, &e));
		TRY(vec_push(&ps->dims, e));
	} while (lex_take(&ps->l, ','));
	*n = ps->dims.n - base;
	if (lex_take(&ps->l, close))
		return CLV_OK;
	return lex_expected(&ps->l, close == ']' ? "',' or ']'" : "',' or ')'");
}

static clv_status parse_tensor_type(parser *ps, typed *t)
{
	lex_skip(&ps->l);
	slice word = lex_peek_run(&ps->l, char_in_word);
	if (!dtype_parse(word.s, word.n, &t->dtype))
		return lex_expected(&ps->l, "a tensor type like f32[2,3]");
	ps->l.at += word.n;
	t->type = TYPE_TENSOR;
	ps->dims.n = 0;
	TRY(lex_want(&ps->l, '['));
	return parse_dims(ps, ']', &t->ndim);
}

static bool host_type(slice word, value_type *out)
{
	for (unsigned i = TYPE_BOOL; i <= TYPE_OBJECT; i++) {
		if (slice_is(word, host_type_names[i])) {
			*out = (value_type)i;
			return true;
		}
	}
	return false;
}

static clv_status parse_strides(parser *ps, typed *t)
{
	lex_skip(&ps->l);
	const char *start = ps->l.at;
	uint32_t n;
	if (t->strides)
		return lex_fail(&ps->l, start, "the strides are given twice");
	TRY(lex_want(&ps->l, '('));
	TRY(parse_dims(ps, ')', &n));
	if (n != t->ndim)
		return lex_fail(&ps->l, start, "%u strides for %u sizes", n, t->ndim);
	t->strides = true;
	return CLV_OK;
}

static clv_status parse_device(parser *ps, typed *t)
{
	slice s;
	TRY(lex_want(&ps->l, '='));
	lex_skip(&ps->l);
	if (ps->l.at < ps->l.end && *ps->l.at == '"')
		return parse_text_id(ps, &t->device);
	TRY(lex_bare_or_string(&ps->l, char_in_device, "a device", &s));
	return plan_str(ps->p, s.s, s.n, &t->device);
}

/* `tied=@name` waits in plan->ties for the value that is still to be made. */
static clv_status parse_tied(parser *ps)
{
	tie t = {.value = ps->p->values.n};
	TRY(lex_want(&ps->l, '='));
	TRY(lex_want(&ps->l, '@'));
	TRY(parse_module_name(ps, &t.name));
	return vec_push(&ps->p->ties, t);
}

static clv_status parse_name(parser *ps, typed *t)
{
	TRY(lex_want(&ps->l, '='));
	return parse_text_id(ps, &t->name);
}

typedef enum mark {
	M_STRIDES,
	M_DEVICE,
	M_GRAD,
	M_ODD,
	M_ALIAS,
	M_GUARD,
	M_TRAINABLE,
	M_PERSISTENT,
	M_NAME,
	M_TIED,
	M_COUNT
} mark;

static const struct {
	const char *word;
	unsigned group;
	uint8_t flag;
} marks[M_COUNT] = {
	[M_STRIDES] = {"strides", MARK_TENSOR, 0},
	[M_DEVICE] = {"device", MARK_TENSOR, 0},
	[M_GRAD] = {"grad", MARK_TENSOR, VALUE_GRAD},
	[M_ODD] = {"odd", MARK_TENSOR, VALUE_ODD},
	[M_ALIAS] = {"view-of", MARK_TENSOR, 0},
	[M_GUARD] = {"guard", MARK_GUARD, VALUE_GUARD},
	[M_TRAINABLE] = {"trainable", MARK_TRAINABLE, VALUE_TRAINABLE},
	[M_PERSISTENT] = {"persistent", MARK_PERSISTENT, VALUE_PERSISTENT},
	[M_NAME] = {"name", MARK_NAME, 0},
	[M_TIED] = {"tied", MARK_TIED, 0},
};

static clv_status parse_mark(parser *ps, mark m, typed *t)
{
	t->flags |= marks[m].flag;
	switch (m) {
	case M_STRIDES: return parse_strides(ps, t);
	case M_DEVICE: return parse_device(ps, t);
	case M_ALIAS: return parse_value(ps, &t->alias);
	case M_NAME: return parse_name(ps, t);
	case M_TIED: return parse_tied(ps);
	default: return CLV_OK;
	}
}

static mark find_mark(slice word, unsigned allowed)
{
	unsigned m = 0;
	while (m < M_COUNT && !(slice_is(word, marks[m].word) && marks[m].group & allowed))
		m++;
	return (mark)m;
}

/* Marks up to the first word that is none (of those allowed here). */
static clv_status parse_marks(parser *ps, unsigned allowed, typed *t)
{
	for (;;) {
		lex_skip(&ps->l);
		slice word = lex_peek_run(&ps->l, char_in_path);
		mark m = find_mark(word, allowed);
		if (m == M_COUNT)
			return CLV_OK;
		ps->l.at += word.n;
		TRY(parse_mark(ps, m, t));
	}
}

static clv_status declare_tensor(parser *ps, value_kind kind, const typed *t, value_id *out)
{
	const plan *p = ps->p;
	tensor_spec spec = {.dtype = t->dtype, .ndim = t->ndim, .shape = ps->dims.at};
	spec.strides = t->strides ? vec_from(&ps->dims, t->ndim) : NULL;
	expr_id none = 0;
	if (t->ndim == 0) { /* no array may have been made yet, but NULL strides mean "not given" */
		spec.shape = &none;
		spec.strides = t->strides ? &none : NULL;
	}
	spec.device = t->device == NONE ? NULL : plan_s(p, t->device);
	TRY(plan_tensor(ps->p, kind, t->name == NONE ? NULL : plan_s(p, t->name), &spec, out));
	value *v = &ps->p->values.at[*out];
	v->flags = t->flags;
	v->alias = t->alias;
	return CLV_OK;
}

static typed no_type(void)
{
	return (typed){.device = NONE, .name = NONE, .alias = NONE};
}

/* ---- declarations ----------------------------------------------------------------------------------------------- */

static clv_status parse_yes_no(parser *ps, bool *out)
{
	TRY(lex_want(&ps->l, '='));
	*out = lex_take_word(&ps->l, "yes");
	return *out || lex_take_word(&ps->l, "no") ? CLV_OK : lex_expected(&ps->l, "yes or no");
}

static clv_status parse_grad_modes(parser *ps, uint8_t *out)
{
	TRY(lex_want(&ps->l, '='));
	for (*out = 0; *out < 4; ++*out)
		if (lex_take_word(&ps->l, grad_mode_names[*out]))
			return CLV_OK;
	return lex_expected(&ps->l, "no, yes, any or unproven");
}

static clv_status parse_model(parser *ps)
{
	slice s;
	if (ps->p->model != NONE)
		return lex_fail(&ps->l, ps->l.line_start, "there is a second model line");
	TRY(lex_string(&ps->l, &s));
	TRY(plan_str(ps->p, s.s, s.n, &ps->p->model));
	ps->p->grad_modes = 3;
	for (;;) {
		if (lex_take_word(&ps->l, "training"))
			TRY(parse_yes_no(ps, &ps->p->training));
		else if (lex_take_word(&ps->l, "grad"))
			TRY(parse_grad_modes(ps, &ps->p->grad_modes));
		else if (lex_take_word(&ps->l, "moved"))
			TRY(parse_yes_no(ps, &ps->p->moved));
		else
			return CLV_OK;
	}
}

static clv_status parse_symbol_line(parser *ps)
{
	lex_skip(&ps->l);
	const char *start = ps->l.at;
	int64_t lo, hi;
	slice word = lex_run(&ps->l, char_in_word);
	if (word.n == 0)
		return lex_expected(&ps->l, "the name of the symbol");
	str_id name;
	TRY(plan_str(ps->p, word.s, word.n, &name));
	TRY(lex_uint(&ps->l, &lo));
	TRY(lex_want(&ps->l, '.'));
	TRY(lex_want(&ps->l, '.'));
	TRY(lex_uint(&ps->l, &hi));
	symbol_id s;
	TRY(lex_blame(&ps->l, start, plan_symbol(ps->p, plan_s(ps->p, name), lo, hi, &s)));
	ps->p->symbols.at[s].data = lex_take_word(&ps->l, "data");
	return CLV_OK;
}

static clv_status parse_path(parser *ps, str_id *out)
{
	lex_skip(&ps->l);
	const char *start = ps->l.at;
	slice s;
	TRY(lex_bare_or_string(&ps->l, char_in_path, "a module path", &s));
	if (memchr(s.s, '\0', s.n))
		return lex_fail(&ps->l, start, "a module path cannot hold a NUL byte");
	return plan_str(ps->p, s.s, s.n, out);
}

static clv_status parse_scope_line(parser *ps)
{
	lex_skip(&ps->l);
	const char *start = ps->l.at;
	str_id path, cls;
	scope_id s;
	TRY(parse_path(ps, &path));
	if (scope_find(ps->p, path) != NONE)
		return lex_fail(&ps->l, start, "scope \"%.200s\" is declared twice", plan_s(ps->p, path));
	TRY(parse_text_id(ps, &cls));
	return lex_blame(&ps->l, start, plan_scope(ps->p, NONE, plan_s(ps->p, path), plan_s(ps->p, cls), &s));
}

/* A tensor from outside the nodes: input %x …, param @name …, const #x … */
static clv_status parse_declared(parser *ps, value_kind kind)
{
	static const unsigned own_marks[] = {[VALUE_INPUT] = MARK_NAME,
	                                     [VALUE_PARAM] = MARK_TIED | MARK_TRAINABLE,
	                                     [VALUE_BUFFER] = MARK_TIED,
	                                     [VALUE_ATTR] = MARK_TIED,
	                                     [VALUE_CONST] = MARK_PERSISTENT};
	bool module = is_module_tensor((uint8_t)kind);
	slice declared;
	str_id name = NONE;
	typed t = no_type();
	value_id v;
	lex_skip(&ps->l);
	const char *start = ps->l.at;
	if (module) {
		TRY(lex_want(&ps->l, '@'));
		TRY(parse_module_name(ps, &name));
	} else {
		TRY(parse_label(ps, kind == VALUE_INPUT ? '%' : '#', &declared));
	}
	TRY(parse_tensor_type(ps, &t));
	TRY(parse_marks(ps, MARK_TENSOR | own_marks[kind], &t));
	if (module)
		t.name = name;
	TRY(lex_blame(&ps->l, start, declare_tensor(ps, kind, &t, &v)));
	return module ? CLV_OK : label_define(ps, declared, v);
}

static clv_status parse_object_line(parser *ps)
{
	slice name, type;
	value_id v;
	TRY(parse_label(ps, '#', &name));
	TRY(parse_text(ps, &type));
	TRY(plan_object(ps->p, type.s, &v));
	return label_define(ps, name, v);
}

static clv_status parse_rebind(parser *ps)
{
	rebind r;
	TRY(parse_value(ps, &r.target));
	TRY(lex_want(&ps->l, '='));
	TRY(parse_value(ps, &r.value));
	return vec_push(&ps->p->rebinds, r);
}

static clv_status parse_tree_line(parser *ps, trees *out, const char *which)
{
	if (out->n)
		return lex_fail(&ps->l, ps->l.line_start, "there is a second %s line", which);
	return parse_tree(ps, 0, out);
}

static clv_status parse_inputs(parser *ps)
{
	return parse_tree_line(ps, &ps->p->in_tree, "inputs");
}

static clv_status parse_output(parser *ps)
{
	return parse_tree_line(ps, &ps->p->out_tree, "output");
}

/* ---- nodes ------------------------------------------------------------------------------------------------------ */

/* The left side of a node as it stands there; the right side must have the same shape. */
static clv_status parse_result_name(parser *ps)
{
	slice name = {ps->l.at, 1};
	if (lex_peek(&ps->l) == '_')
		name.s = ps->l.at++;
	else
		TRY(parse_label(ps, '%', &name));
	return vec_push(&ps->results, ((result){RESULT_NAME, name}));
}

static clv_status parse_result_list(parser *ps)
{
	TRY(vec_push(&ps->results, ((result){RESULT_OPEN, {NULL, 0}})));
	if (!lex_take(&ps->l, ']')) {
		do {
			TRY(parse_result_name(ps));
		} while (lex_take(&ps->l, ','));
		if (!lex_take(&ps->l, ']'))
			return lex_expected(&ps->l, "',' or ']'");
	}
	return vec_push(&ps->results, ((result){RESULT_CLOSE, {NULL, 0}}));
}

static clv_status parse_result_names(parser *ps)
{
	ps->results.n = 0;
	do {
		if (lex_take(&ps->l, '['))
			TRY(parse_result_list(ps));
		else
			TRY(parse_result_name(ps));
	} while (lex_take(&ps->l, ','));
	return lex_take(&ps->l, '=') ? CLV_OK : lex_expected(&ps->l, "',' or '='");
}

static clv_status parse_expect(parser *ps, typed *t)
{
	static const uint8_t kinds[] = {[TYPE_BOOL] = ARG_BOOL,       [TYPE_INT] = ARG_INT, [TYPE_FLOAT] = ARG_FLOAT,
	                                [TYPE_COMPLEX] = ARG_COMPLEX, [TYPE_STR] = ARG_STR, [TYPE_OBJECT] = ARG_NONE};
	lex_skip(&ps->l);
	const char *start = ps->l.at;
	TRY(parse_arg(ps, 0, &t->expect));
	bool fits = t->expect.kind == kinds[t->type] ||
	            (t->type == TYPE_FLOAT && (t->expect.kind == ARG_REAL || t->expect.kind == ARG_LIST));
	if (!fits || t->expect.wrapped || t->type == TYPE_OBJECT)
		return lex_fail(&ps->l, start, "this is no literal of type %s", host_type_names[t->type]);
	t->expects = true;
	return CLV_OK;
}

static clv_status parse_host_result(parser *ps, value_type type, value_id *out)
{
	typed t = no_type();
	t.type = type;
	if (lex_take(&ps->l, '='))
		TRY(parse_expect(ps, &t));
	TRY(plan_host(ps->p, type, out));
	return t.expects ? plan_expect(ps->p, *out, &t.expect) : CLV_OK;
}

static clv_status parse_result_value(parser *ps, value_id *out)
{
	value_type type;
	typed t = no_type();
	lex_skip(&ps->l);
	slice word = lex_peek_run(&ps->l, char_in_word);
	bool brackets = word.s + word.n < ps->l.end && word.s[word.n] == '[';
	if (!brackets && host_type(word, &type)) {
		ps->l.at += word.n;
		return parse_host_result(ps, type, out);
	}
	TRY(parse_tensor_type(ps, &t));
	TRY(parse_marks(ps, MARK_TENSOR | MARK_GUARD, &t));
	return declare_tensor(ps, VALUE_RESULT, &t, out);
}

/* The type of one name; leaves the result on ps->args. */
static clv_status parse_result_type(parser *ps, slice name)
{
	arg a = {.kind = ARG_NONE};
	if (name.s[0] == '_') {
		if (!lex_take_word(&ps->l, "none"))
			return lex_expected(&ps->l, "none, as the result is _");
		return vec_push(&ps->args, a);
	}
	a.kind = ARG_VALUE;
	TRY(parse_result_value(ps, &a.u.v));
	TRY(label_define(ps, name, a.u.v));
	return vec_push(&ps->args, a);
}

static clv_status want_type_sep(parser *ps, bool first)
{
	return first || lex_take(&ps->l, ',') ? CLV_OK : lex_expected(&ps->l, "',' and one type for each result");
}

/* Types from results[*i] up to the closing bracket; the list is left on ps->args. */
static clv_status parse_list_types(parser *ps, uint32_t *i)
{
	uint32_t base = ps->args.n;
	arg list;
	TRY(lex_want(&ps->l, '['));
	for (; ps->results.at[*i].kind == RESULT_NAME; ++*i) {
		TRY(want_type_sep(ps, ps->args.n == base));
		TRY(parse_result_type(ps, ps->results.at[*i].name));
	}
	TRY(lex_want(&ps->l, ']'));
	TRY(plan_list(ps->p, vec_from(&ps->args, base), ps->args.n - base, &list));
	ps->args.n = base;
	return vec_push(&ps->args, list);
}

static clv_status parse_result_types(parser *ps)
{
	if (lex_peek(&ps->l) != '-' || ps->l.end - ps->l.at < 2 || ps->l.at[1] != '>')
		return lex_expected(&ps->l, "'->' and the types of the results");
	ps->l.at += 2;
	for (uint32_t i = 0; i < ps->results.n; i++) {
		TRY(want_type_sep(ps, i == 0));
		if (ps->results.at[i].kind == RESULT_NAME) {
			TRY(parse_result_type(ps, ps->results.at[i].name));
		} else {
			i++;
			TRY(parse_list_types(ps, &i));
		}
	}
	return CLV_OK;
}

static clv_status parse_writes(parser *ps)
{
	do {
		value_id v;
		TRY(parse_value(ps, &v));
		TRY(vec_push(&ps->writes, v));
	} while (lex_take(&ps->l, ','));
	return CLV_OK;
}

static clv_status parse_in(parser *ps, scope_id *out)
{
	lex_skip(&ps->l);
	const char *start = ps->l.at;
	str_id path;
	TRY(parse_path(ps, &path));
	*out = scope_find(ps->p, path);
	if (*out == NONE)
		return lex_fail(&ps->l, start, "scope \"%.200s\" is not declared before this line", plan_s(ps->p, path));
	return CLV_OK;
}

static clv_status parse_autocast(parser *ps)
{
	autocast a = {.cache = false};
	slice s;
	arg d;
	TRY(lex_bare_or_string(&ps->l, char_in_word, "a device", &s));
	TRY(plan_str(ps->p, s.s, s.n, &a.device));
	TRY(lex_want(&ps->l, ':'));
	TRY(parse_dtype_name(ps, &d));
	a.dtype = (uint8_t)d.u.code;
	if (lex_take(&ps->l, ':')) {
		if (!lex_take_word(&ps->l, "cache"))
			return lex_expected(&ps->l, "cache");
		a.cache = true;
	}
	return vec_push(&ps->autocasts, a);
}

static clv_status parse_ctx_flag(parser *ps, context *c)
{
	unsigned i = 0;
	while (i < CTX_FLAG_COUNT && !lex_take_word(&ps->l, ctx_flag_names[i]))
		i++;
	if (i == CTX_FLAG_COUNT)
		return lex_expected(&ps->l, "a flag like sdp_math");
	TRY(lex_want(&ps->l, ':'));
	bool on = lex_take_word(&ps->l, "on");
	if (!on && !lex_take_word(&ps->l, "off"))
		return lex_expected(&ps->l, "on or off");
	c->flags_mask |= 1u << i;
	c->flags = on ? c->flags | 1u << i : c->flags & ~(1u << i);
	return CLV_OK;
}

static clv_status parse_attr_item(parser *ps, context *c, uint32_t *flags)
{
	if (lex_take_word(&ps->l, "nograd")) {
		c->nograd = true;
	} else if (lex_take_word(&ps->l, "inference")) {
		c->inference = true;
	} else if (lex_take_word(&ps->l, "random")) {
		*flags |= NODE_RANDOM;
	} else if (lex_take_word(&ps->l, "host")) {
		*flags |= NODE_HOST;
	} else if (lex_take_word(&ps->l, "impure")) {
		*flags |= NODE_IMPURE;
	} else if (lex_take_word(&ps->l, "autocast")) {
		TRY(lex_want(&ps->l, '='));
		do {
			TRY(parse_autocast(ps));
		} while (lex_take(&ps->l, '+'));
	} else if (lex_take_word(&ps->l, "flags")) {
		TRY(lex_want(&ps->l, '='));
		do {
			TRY(parse_ctx_flag(ps, c));
		} while (lex_take(&ps->l, '+'));
	} else {
		return lex_expected(&ps->l, "nograd, inference, autocast=, flags=, random, host or impure");
	}
	return CLV_OK;
}

static clv_status parse_node_attrs(parser *ps, node_spec *s)
{
	context c = {0};
	ps->autocasts.n = 0;
	do {
		TRY(parse_attr_item(ps, &c, &s->flags));
	} while (lex_take(&ps->l, ','));
	if (!lex_take(&ps->l, '}'))
		return lex_expected(&ps->l, "',' or '}'");
	c.nautocast = ps->autocasts.n;
	return plan_context(ps->p, &c, ps->autocasts.at, &s->context);
}

typedef enum clause { CLAUSE_ATTRS, CLAUSE_WRITES, CLAUSE_IN, CLAUSE_AT, CLAUSE_NONE } clause;

static clause take_clause(parser *ps)
{
	if (lex_take(&ps->l, '{'))
		return CLAUSE_ATTRS;
	if (lex_take_word(&ps->l, "writes"))
		return CLAUSE_WRITES;
	if (lex_take_word(&ps->l, "in"))
		return CLAUSE_IN;
	return lex_take_word(&ps->l, "at") ? CLAUSE_AT : CLAUSE_NONE;
}

static clv_status parse_clause(parser *ps, clause c, node_spec *s, str_id *at)
{
	switch (c) {
	case CLAUSE_ATTRS: return parse_node_attrs(ps, s);
	case CLAUSE_WRITES: return parse_writes(ps);
	case CLAUSE_IN: return parse_in(ps, &s->scope);
	case CLAUSE_AT: return parse_text_id(ps, at);
	default: return lex_expected(&ps->l, "writes, in, at, {…} or the end of the line");
	}
}

/* In any order, each once. */
static clv_status parse_clauses(parser *ps, node_spec *s, str_id *at)
{
	unsigned seen = 0;
	ps->writes.n = 0;
	while (!lex_at_end(&ps->l)) {
		const char *start = ps->l.at;
		clause c = take_clause(ps);
		if (seen >> c & 1)
			return lex_fail(&ps->l, start, "this is given twice");
		seen |= 1u << c;
		TRY(parse_clause(ps, c, s, at));
	}
	return CLV_OK;
}

static clv_status parse_op(parser *ps, str_id *out)
{
	lex_skip(&ps->l);
	slice op = lex_peek_run(&ps->l, char_in_op);
	if (!op_name_ok(op.s, op.n))
		return lex_expected(&ps->l, "an operator like aten::relu");
	ps->l.at += op.n;
	TRY(plan_str(ps->p, op.s, op.n, out));
	return lex_want(&ps->l, '(');
}

static clv_status parse_node(parser *ps)
{
	node_spec s = {.scope = NONE};
	str_id op, at = NONE;
	node_id id;
	char c = lex_peek(&ps->l);
	bool blank = c == '_' && lex_peek_run(&ps->l, char_in_op).n == 1;
	ps->results.n = ps->args.n = 0;
	if (c == '%' || c == '[' || blank)
		TRY(parse_result_names(ps));
	TRY(parse_op(ps, &op));
	TRY(parse_args(ps, ')', 0));
	s.nargs = ps->args.n;
	if (ps->results.n)
		TRY(parse_result_types(ps));
	TRY(parse_clauses(ps, &s, &at));
	s.op = plan_s(ps->p, op);
	s.at = at == NONE ? NULL : plan_s(ps->p, at);
	s.args = ps->args.at;
	s.results = vec_from(&ps->args, s.nargs);
	s.nresults = ps->args.n - s.nargs;
	s.writes = ps->writes.at;
	s.nwrites = ps->writes.n;
	return plan_node(ps->p, &s, &id);
}

static clv_status parse_group(parser *ps)
{
	node_id n = ps->p->nodes.n;
	if (ps->grouping)
		return lex_fail(&ps->l, ps->l.line_start, "a group cannot stand in a group");
	ps->grouping = true;
	return vec_push(&ps->p->groups, ((node_span){n, n}));
}

static clv_status parse_end(parser *ps)
{
	if (!ps->grouping)
		return lex_fail(&ps->l, ps->l.line_start, "there is no group that ends here");
	ps->grouping = false;
	ps->p->groups.at[ps->p->groups.n - 1].end = ps->p->nodes.n;
	return CLV_OK;
}

/* ---- the text --------------------------------------------------------------------------------------------------- */

static clv_status parse_version(parser *ps)
{
	int64_t version;
	while (lex_at_end(&ps->l))
		if (!lex_next_line(&ps->l))
			return lex_expected(&ps->l, "\"cleave-plan 1\"");
	slice word = lex_peek_run(&ps->l, char_in_path);
	if (!slice_is(word, "cleave-plan"))
		return lex_expected(&ps->l, "\"cleave-plan 1\"");
	ps->l.at += word.n;
	lex_skip(&ps->l);
	const char *start = ps->l.at;
	TRY(lex_uint(&ps->l, &version));
	if (version != 1)
		return lex_fail(&ps->l, start, "this is version %lld of the format; only version 1 is known",
		                (long long)version);
	return want_end(ps);
}

static const struct {
	const char *word;
	clv_status (*parse)(parser *ps);
} statements[] = {
	{"model", parse_model},        {"symbol", parse_symbol_line}, {"scope", parse_scope_line},
	{"object", parse_object_line}, {"rebind", parse_rebind},      {"inputs", parse_inputs},
	{"output", parse_output},      {"group", parse_group},        {"end", parse_end},
};

static clv_status parse_statement(parser *ps)
{
	slice word = lex_peek_run(&ps->l, char_in_op);
	for (unsigned kind = VALUE_INPUT; kind <= VALUE_CONST; kind++) {
		if (slice_is(word, kind == VALUE_INPUT ? "input" : external_words[kind])) {
			ps->l.at += word.n;
			return parse_declared(ps, (value_kind)kind);
		}
	}
	for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
		if (slice_is(word, statements[i].word)) {
			ps->l.at += word.n;
			return statements[i].parse(ps);
		}
	}
	char c = *ps->l.at;
	if (c != '%' && c != '[' && c != '_' && !op_name_ok(word.s, word.n))
		return lex_expected(&ps->l, "a statement (model, symbol, scope, input, param, buffer, attr, const, object, "
		                            "rebind, inputs, output, group, end or a node)");
	return parse_node(ps);
}

static clv_status parse_all(parser *ps)
{
	TRY(parse_version(ps));
	while (lex_next_line(&ps->l)) {
		if (lex_at_end(&ps->l))
			continue;
		TRY(parse_statement(ps));
		TRY(want_end(ps));
	}
	if (ps->p->model == NONE)
		return lex_fail(&ps->l, ps->l.at, "the plan has no model line");
	if (ps->grouping)
		return lex_fail(&ps->l, ps->l.at, "the last group has no end");
	if (ps->p->out_tree.n == 0)
		return lex_fail(&ps->l, ps->l.at, "the plan has no output line; is the text complete?");
	return CLV_OK;
}

clv_status plan_parse(const char *text, size_t n, plan **out)
{
	parser ps = {.p = NULL};
	lex_init(&ps.l, text, n);
	clv_status st = plan_new(&ps.p);
	if (st == CLV_OK)
		st = parse_all(&ps);
	lex_free(&ps.l);
	vec_free(&ps.labels);
	table_free(&ps.by_label);
	vec_free(&ps.args);
	vec_free(&ps.dims);
	vec_free(&ps.results);
	vec_free(&ps.writes);
	vec_free(&ps.autocasts);
	if (st == CLV_OK)
		*out = ps.p;
	else
		plan_free(ps.p);
	return st;
}
