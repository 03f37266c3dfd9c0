/* Parses the inside of statements: values, expressions, arguments, trees.
 * Recursion is bounded by NEST_LIMIT and EXPR_LIMIT, the same bounds that the builder and the verifier keep. */
#include "plan/parse.h"

/* ---- values ----------------------------------------------------------------------------------------------------- */

clv_status parse_module_name(parser *ps, str_id *out)
{
	const char *start = ps->l.at;
	if (start < ps->l.end && *start != '"' && !char_in_path(*start))
		return lex_expected(&ps->l, "a name");
	slice s;
	TRY(lex_bare_or_string(&ps->l, char_in_path, "a name", &s));
	for (size_t i = 0; i < s.n; i++)
		if (s.s[i] == '\0')
			return lex_fail(&ps->l, start, "a name cannot hold a NUL byte");
	return plan_str(ps->p, s.s, s.n, out);
}

static clv_status parse_module_value(parser *ps, const char *start, value_id *out)
{
	str_id name;
	TRY(parse_module_name(ps, &name));
	*out = external_find(ps->p, name);
	if (*out == NONE)
		return lex_fail(&ps->l, start, "@%.200s is not declared before this line", plan_s(ps->p, name));
	return CLV_OK;
}

clv_status parse_value(parser *ps, value_id *out)
{
	char c = lex_peek(&ps->l);
	const char *start = ps->l.at;
	if (c != '%' && c != '@' && c != '#')
		return lex_expected(&ps->l, "a value (%x, @name or #x)");
	ps->l.at++;
	if (c == '@')
		return parse_module_value(ps, start, out);
	slice name = {start, 1 + lex_run(&ps->l, char_in_label).n};
	if (name.n == 1)
		return lex_fail(&ps->l, start, "expected a name after '%c'", c);
	*out = label_find(ps, name);
	if (*out == NONE)
		return lex_fail(&ps->l, start, "%.*s is not defined before its use", (int)(name.n < 200 ? name.n : 200),
		                name.s);
	return CLV_OK;
}

/* ---- expressions ------------------------------------------------------------------------------------------------ */

static clv_status parse_sum(parser *ps, unsigned depth, expr_id *out);

static clv_status make(parser *ps, const char *start, expr_op op, expr_id a, expr_id b, expr_id *out)
{
	return lex_blame(&ps->l, start, expr_make(ps->p, op, a, b, out));
}

static clv_status parse_min_max(parser *ps, const char *start, expr_op op, unsigned depth, expr_id *out)
{
	expr_id a, b;
	TRY(lex_want(&ps->l, '('));
	TRY(parse_sum(ps, depth + 1, &a));
	TRY(lex_want(&ps->l, ','));
	TRY(parse_sum(ps, depth + 1, &b));
	TRY(lex_want(&ps->l, ')'));
	return make(ps, start, op, a, b, out);
}

static clv_status parse_symbol(parser *ps, unsigned depth, expr_id *out)
{
	const char *start = ps->l.at;
	slice word = lex_run(&ps->l, char_in_word);
	if (slice_is(word, "min") || slice_is(word, "max"))
		return parse_min_max(ps, start, slice_is(word, "min") ? EXPR_MIN : EXPR_MAX, depth, out);
	symbol_id s = symbol_find(ps->p, str_find(ps->p, word.s, word.n));
	if (s == NONE)
		return lex_fail(&ps->l, start, "there is no symbol %.*s", (int)(word.n < 200 ? word.n : 200), word.s);
	return expr_sym(ps->p, s, out);
}

/* A minus sign belongs to the number after it, so that the smallest integer can be written. */
static clv_status parse_negative(parser *ps, unsigned depth, expr_id *out);

static clv_status parse_primary(parser *ps, unsigned depth, expr_id *out)
{
	char c = lex_peek(&ps->l);
	if (depth > EXPR_LIMIT)
		return lex_fail(&ps->l, ps->l.at, "the expression is nested too deeply");
	if (c == '-')
		return parse_negative(ps, depth, out);
	if (c == '(') {
		ps->l.at++;
		TRY(parse_sum(ps, depth + 1, out));
		return lex_want(&ps->l, ')');
	}
	if (c >= '0' && c <= '9') {
		int64_t k;
		TRY(lex_uint(&ps->l, &k));
		return expr_const(ps->p, k, out);
	}
	if (char_in_word(c))
		return parse_symbol(ps, depth, out);
	return lex_expected(&ps->l, "an integer expression");
}

static clv_status parse_negative(parser *ps, unsigned depth, expr_id *out)
{
	const char *start = ps->l.at;
	lexer after = ps->l;
	after.at++;
	char c = lex_peek(&after);
	if (c >= '0' && c <= '9') {
		int64_t k;
		TRY(lex_int(&ps->l, &k));
		return expr_const(ps->p, k, out);
	}
	expr_id zero, x;
	ps->l.at++;
	TRY(parse_primary(ps, depth + 1, &x));
	TRY(expr_const(ps->p, 0, &zero));
	return make(ps, start, EXPR_SUB, zero, x, out);
}

/* The operator of a product that stands here; false if there is none. */
static bool take_product_op(lexer *l, expr_op *op)
{
	char c = lex_peek(l);
	if (c == '*' || c == '%') {
		*op = c == '*' ? EXPR_MUL : EXPR_MOD;
		l->at++;
		return true;
	}
	if (c != '/' || l->end - l->at < 2 || l->at[1] != '/')
		return false;
	*op = EXPR_FLOORDIV;
	l->at += 2;
	return true;
}

static clv_status parse_product(parser *ps, unsigned depth, expr_id *out)
{
	expr_op op;
	TRY(parse_primary(ps, depth, out));
	const char *start = ps->l.at;
	while (take_product_op(&ps->l, &op)) {
		expr_id b;
		TRY(parse_primary(ps, depth, &b));
		TRY(make(ps, start, op, *out, b, out));
	}
	return CLV_OK;
}

static clv_status parse_sum(parser *ps, unsigned depth, expr_id *out)
{
	TRY(parse_product(ps, depth, out));
	const char *start = ps->l.at;
	for (char c = lex_peek(&ps->l); c == '+' || c == '-'; c = lex_peek(&ps->l)) {
		expr_id b;
		ps->l.at++;
		TRY(parse_product(ps, depth, &b));
		TRY(make(ps, start, c == '+' ? EXPR_ADD : EXPR_SUB, *out, b, out));
	}
	return CLV_OK;
}

clv_status parse_expr(parser *ps, expr_id *out)
{
	return parse_sum(ps, 0, out);
}

clv_status expr_parse(plan *p, const char *text, size_t n, expr_id *out)
{
	parser ps = {.p = p};
	lex_init(&ps.l, text, n);
	clv_status st = parse_expr(&ps, out);
	if (st == CLV_OK && !lex_at_end(&ps.l))
		st = lex_expected(&ps.l, "the end");
	lex_free(&ps.l);
	return st;
}

/* ---- reals: what stands in float(…) ------------------------------------------------------------------------------ */

static clv_status parse_real_sum(parser *ps, unsigned depth, real_id *out);

static clv_status make_real(parser *ps, const char *start, real_op op, real_id a, real_id b, real_id *out)
{
	return lex_blame(&ps->l, start, real_make(ps->p, op, a, b, out));
}

static clv_status parse_real_int(parser *ps, real_id *out)
{
	expr_id e;
	TRY(lex_want(&ps->l, '('));
	TRY(parse_expr(ps, &e));
	TRY(lex_want(&ps->l, ')'));
	return real_int(ps->p, e, out);
}

/* sqrt(x), pow(x, y) */
static clv_status parse_real_call(parser *ps, unsigned depth, real_id *out)
{
	const char *start = ps->l.at;
	slice word = lex_run(&ps->l, char_in_word);
	if (slice_is(word, "int"))
		return parse_real_int(ps, out);
	real_op op = REAL_NEG;
	while (op <= REAL_POW && !(real_function(op) && slice_is(word, real_function(op))))
		op++;
	if (op > REAL_POW) {
		ps->l.at = start;
		return lex_expected(&ps->l, "a float, int(…), sqrt(…), exp(…), log(…), log2(…), log10(…) or pow(…)");
	}
	real_id a, b = NONE;
	TRY(lex_want(&ps->l, '('));
	TRY(parse_real_sum(ps, depth + 1, &a));
	if (real_operands(op) == 2) {
		TRY(lex_want(&ps->l, ','));
		TRY(parse_real_sum(ps, depth + 1, &b));
	}
	TRY(lex_want(&ps->l, ')'));
	return make_real(ps, start, op, a, b, out);
}

static clv_status parse_real_primary(parser *ps, unsigned depth, real_id *out)
{
	if (depth > EXPR_LIMIT)
		return lex_fail(&ps->l, ps->l.at, "the formula is nested too deeply");
	if (lex_float_ahead(&ps->l)) {
		double k;
		TRY(lex_float(&ps->l, &k));
		return real_const(ps->p, k, out);
	}
	const char *start = ps->l.at;
	if (lex_take(&ps->l, '-')) {
		real_id a;
		TRY(parse_real_primary(ps, depth + 1, &a));
		return make_real(ps, start, REAL_NEG, a, NONE, out);
	}
	if (lex_take(&ps->l, '(')) {
		TRY(parse_real_sum(ps, depth + 1, out));
		return lex_want(&ps->l, ')');
	}
	return parse_real_call(ps, depth, out);
}

static clv_status parse_real_product(parser *ps, unsigned depth, real_id *out)
{
	TRY(parse_real_primary(ps, depth, out));
	const char *start = ps->l.at;
	for (char c = lex_peek(&ps->l); c == '*' || c == '/'; c = lex_peek(&ps->l)) {
		real_id b;
		ps->l.at++;
		TRY(parse_real_primary(ps, depth, &b));
		TRY(make_real(ps, start, c == '*' ? REAL_MUL : REAL_DIV, *out, b, out));
	}
	return CLV_OK;
}

static clv_status parse_real_sum(parser *ps, unsigned depth, real_id *out)
{
	TRY(parse_real_product(ps, depth, out));
	const char *start = ps->l.at;
	for (char c = lex_peek(&ps->l); c == '+' || c == '-'; c = lex_peek(&ps->l)) {
		real_id b;
		ps->l.at++;
		TRY(parse_real_product(ps, depth, &b));
		TRY(make_real(ps, start, c == '+' ? REAL_ADD : REAL_SUB, *out, b, out));
	}
	return CLV_OK;
}

static clv_status parse_real(parser *ps, arg *out)
{
	out->kind = ARG_REAL;
	TRY(lex_want(&ps->l, '('));
	TRY(parse_real_sum(ps, 0, &out->u.r));
	return lex_want(&ps->l, ')');
}

/* ---- arguments -------------------------------------------------------------------------------------------------- */

static clv_status parse_complex(parser *ps, arg *out)
{
	out->kind = ARG_COMPLEX;
	TRY(lex_want(&ps->l, '('));
	TRY(lex_float(&ps->l, &out->u.c.re));
	TRY(lex_want(&ps->l, ','));
	TRY(lex_float(&ps->l, &out->u.c.im));
	return lex_want(&ps->l, ')');
}

static clv_status parse_wrapped(parser *ps, unsigned depth, arg *out)
{
	TRY(lex_want(&ps->l, '('));
	lex_skip(&ps->l);
	const char *start = ps->l.at;
	TRY(parse_arg(ps, depth + 1, out));
	bool number = out->kind == ARG_INT || out->kind == ARG_FLOAT || out->kind == ARG_BOOL || out->kind == ARG_COMPLEX ||
	              out->kind == ARG_REAL;
	uint8_t type = out->kind == ARG_VALUE ? ps->p->values.at[out->u.v].type : TYPE_TENSOR;
	number |= type == TYPE_INT || type == TYPE_FLOAT || type == TYPE_BOOL;
	if (!number || out->wrapped)
		return lex_fail(&ps->l, start, "num(…) holds a number or a bool");
	out->wrapped = 1;
	return lex_want(&ps->l, ')');
}

static clv_status parse_code(parser *ps, const char *what, const char *const *names, uint32_t *out)
{
	lex_skip(&ps->l);
	slice word = lex_peek_run(&ps->l, char_in_word);
	for (*out = 0; names[*out]; ++*out) {
		if (slice_is(word, names[*out])) {
			ps->l.at += word.n;
			return CLV_OK;
		}
	}
	return lex_expected(&ps->l, what);
}

clv_status parse_dtype_name(parser *ps, arg *out)
{
	lex_skip(&ps->l);
	slice word = lex_peek_run(&ps->l, char_in_word);
	dtype d;
	if (!dtype_parse(word.s, word.n, &d))
		return lex_expected(&ps->l, "a dtype");
	ps->l.at += word.n;
	out->u.code = d;
	return CLV_OK;
}

static clv_status parse_device_arg(parser *ps, arg *out)
{
	slice s;
	TRY(lex_bare_or_string(&ps->l, char_in_device, "a device", &s));
	return plan_str(ps->p, s.s, s.n, &out->u.s);
}

/* dtype: layout: memory: device: */
static clv_status parse_prefixed(parser *ps, arg_kind kind, arg *out)
{
	out->kind = (uint8_t)kind;
	TRY(lex_want(&ps->l, ':'));
	if (kind == ARG_DTYPE)
		return parse_dtype_name(ps, out);
	if (kind == ARG_LAYOUT)
		return parse_code(ps, "a layout", layout_names, &out->u.code);
	if (kind == ARG_MEMFMT)
		return parse_code(ps, "a memory format", memfmt_names, &out->u.code);
	return parse_device_arg(ps, out);
}

static bool prefix_kind(slice word, arg_kind *kind)
{
	static const struct {
		const char *word;
		arg_kind kind;
	} prefixes[] = {{"dtype", ARG_DTYPE}, {"layout", ARG_LAYOUT}, {"memory", ARG_MEMFMT}, {"device", ARG_DEVICE}};
	for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
		if (slice_is(word, prefixes[i].word)) {
			*kind = prefixes[i].kind;
			return true;
		}
	}
	return false;
}

static clv_status parse_int_arg(parser *ps, arg *out)
{
	out->kind = ARG_INT;
	return parse_expr(ps, &out->u.e);
}

static clv_status parse_word_arg(parser *ps, unsigned depth, arg *out)
{
	arg_kind kind;
	slice word = lex_peek_run(&ps->l, char_in_word);
	const char *start = ps->l.at;
	ps->l.at += word.n;
	if (slice_is(word, "none"))
		return CLV_OK;
	if (slice_is(word, "true") || slice_is(word, "false")) {
		out->kind = ARG_BOOL;
		out->u.b = slice_is(word, "true");
		return CLV_OK;
	}
	if (slice_is(word, "num"))
		return parse_wrapped(ps, depth, out);
	if (slice_is(word, "float"))
		return parse_real(ps, out);
	if (slice_is(word, "complex"))
		return parse_complex(ps, out);
	if (prefix_kind(word, &kind))
		return parse_prefixed(ps, kind, out);
	ps->l.at = start;
	return parse_int_arg(ps, out);
}

static clv_status parse_list(parser *ps, unsigned depth, arg *out)
{
	uint32_t base = ps->args.n;
	TRY(parse_args(ps, ']', depth + 1));
	TRY(plan_list(ps->p, vec_from(&ps->args, base), ps->args.n - base, out));
	ps->args.n = base;
	return CLV_OK;
}

clv_status parse_args(parser *ps, char close, unsigned depth)
{
	if (lex_take(&ps->l, close))
		return CLV_OK;
	do {
		arg a;
		TRY(parse_arg(ps, depth, &a));
		TRY(vec_push(&ps->args, a));
	} while (lex_take(&ps->l, ','));
	if (lex_take(&ps->l, close))
		return CLV_OK;
	return lex_expected(&ps->l, close == ')' ? "',' or ')'" : "',' or ']'");
}

static clv_status parse_str_arg(parser *ps, arg *out)
{
	slice s;
	TRY(lex_string(&ps->l, &s));
	out->kind = ARG_STR;
	return plan_str(ps->p, s.s, s.n, &out->u.s);
}

clv_status parse_arg(parser *ps, unsigned depth, arg *out)
{
	char c = lex_peek(&ps->l);
	*out = (arg){.kind = ARG_NONE};
	if (depth > NEST_LIMIT)
		return lex_fail(&ps->l, ps->l.at, "nested deeper than %d", NEST_LIMIT);
	if (c == '%' || c == '@' || c == '#') {
		out->kind = ARG_VALUE;
		return parse_value(ps, &out->u.v);
	}
	if (c == '[') {
		ps->l.at++;
		return parse_list(ps, depth, out);
	}
	if (c == '"')
		return parse_str_arg(ps, out);
	if (lex_float_ahead(&ps->l)) {
		out->kind = ARG_FLOAT;
		return lex_float(&ps->l, &out->u.f);
	}
	if (c == '-' || c == '(' || (c >= '0' && c <= '9'))
		return parse_int_arg(ps, out);
	if (char_in_word(c))
		return parse_word_arg(ps, depth, out);
	return lex_expected(&ps->l, "a value or a literal");
}

/* ---- trees ------------------------------------------------------------------------------------------------------ */

enum { NO_LEAF = UINT8_MAX };

/* By arg_kind: the leaf of a tree that holds the same. */
static const uint8_t leaf_kinds[] = {
	[ARG_NONE] = TREE_NONE, [ARG_VALUE] = TREE_VALUE,     [ARG_INT] = TREE_INT,   [ARG_FLOAT] = TREE_FLOAT,
	[ARG_BOOL] = TREE_BOOL, [ARG_COMPLEX] = TREE_COMPLEX, [ARG_STR] = TREE_STR,   [ARG_REAL] = TREE_REAL,
	[ARG_DTYPE] = NO_LEAF,  [ARG_LAYOUT] = NO_LEAF,       [ARG_MEMFMT] = NO_LEAF, [ARG_DEVICE] = NO_LEAF,
	[ARG_LIST] = NO_LEAF};

bool leaf_as_arg(const tree *t, arg *out)
{
	for (uint8_t kind = ARG_NONE; kind <= ARG_REAL; kind++) {
		if (leaf_kinds[kind] == t->kind) {
			*out = (arg){.kind = kind, .u = t->u};
			return true;
		}
	}
	return false;
}

static clv_status parse_tree_string(parser *ps, tree_kind kind, trees *out)
{
	slice s;
	tree t = {.kind = (uint8_t)kind};
	TRY(lex_string(&ps->l, &s));
	TRY(plan_str(ps->p, s.s, s.n, &t.u.s));
	return vec_push(out, t);
}

static clv_status parse_tree_int(parser *ps, trees *out)
{
	tree t = {.kind = TREE_INT};
	TRY(lex_want(&ps->l, '('));
	TRY(parse_expr(ps, &t.u.e));
	TRY(lex_want(&ps->l, ')'));
	return vec_push(out, t);
}

static clv_status parse_pair(parser *ps, bool fields, unsigned depth, trees *out)
{
	TRY(fields ? parse_tree_string(ps, TREE_STR, out) : parse_tree(ps, depth, out));
	TRY(lex_want(&ps->l, ':'));
	return parse_tree(ps, depth, out);
}

/* The children of out->at[top] up to the closing bracket; a comma may stand before it. */
static clv_status parse_children(parser *ps, uint32_t top, unsigned depth, trees *out)
{
	uint8_t kind = out->at[top].kind;
	bool pairs = kind == TREE_DICT || kind == TREE_OBJECT;
	char close = pairs ? '}' : kind == TREE_LIST ? ']' : ')';
	uint32_t n = 0;
	while (!lex_take(&ps->l, close)) {
		TRY(pairs ? parse_pair(ps, kind == TREE_OBJECT, depth, out) : parse_tree(ps, depth, out));
		n += pairs ? 2 : 1;
		if (lex_take(&ps->l, ','))
			continue;
		if (lex_peek(&ps->l) != close)
			return lex_expected(&ps->l, pairs ? "',' or '}'" : kind == TREE_LIST ? "',' or ']'" : "',' or ')'");
	}
	out->at[top].n = n;
	return CLV_OK;
}

static clv_status parse_object(parser *ps, unsigned depth, trees *out)
{
	uint32_t top = out->n;
	TRY(parse_tree_string(ps, TREE_OBJECT, out));
	TRY(lex_want(&ps->l, '{'));
	return parse_children(ps, top, depth + 1, out);
}

clv_status parse_tree(parser *ps, unsigned depth, trees *out)
{
	char c = lex_peek(&ps->l);
	const char *start = ps->l.at;
	if (depth > NEST_LIMIT)
		return lex_fail(&ps->l, start, "nested deeper than %d", NEST_LIMIT);
	if (c == '(' || c == '[' || c == '{') {
		uint32_t top = out->n;
		ps->l.at++;
		uint8_t kind = c == '(' ? TREE_TUPLE : c == '[' ? TREE_LIST : TREE_DICT;
		TRY(vec_push(out, ((tree){.kind = kind})));
		return parse_children(ps, top, depth + 1, out);
	}
	if (lex_take_word(&ps->l, "object"))
		return parse_object(ps, depth, out);
	if (lex_take_word(&ps->l, "opaque"))
		return parse_tree_string(ps, TREE_OPAQUE, out);
	if (lex_take_word(&ps->l, "int"))
		return parse_tree_int(ps, out);
	if (lex_take_word(&ps->l, "bytes")) {
		TRY(lex_want(&ps->l, ':'));
		return parse_tree_string(ps, TREE_BYTES, out);
	}
	arg a;
	TRY(parse_arg(ps, depth, &a));
	if (leaf_kinds[a.kind] == NO_LEAF || a.wrapped)
		return lex_fail(&ps->l, start, "this cannot stand in a tree of inputs or outputs");
	return vec_push(out, ((tree){.kind = leaf_kinds[a.kind], .u = a.u}));
}
