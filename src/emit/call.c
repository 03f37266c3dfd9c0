/* Writes one operator call as Python: the way people write it if that reaches the very same operator with the same
 * arguments, else through torch.ops.
 *
 * The column CALL of plan/ops.def says how. A signature lists the arguments in the order of the Python call:
 *
 *   name         by position              name=      by keyword, always
 *   name=text    by keyword, left out when the argument reads `text`
 *   !text        the Python call passes this itself: the form is for calls where the argument reads `text`
 *   !.dtype      likewise for the dtype of the first argument
 *   *name        a list, as several arguments
 *   3:…          it is argument 3 of the operator (else: the next one)
 *
 * A head that starts with a dot is a method of the first argument, one with blanks an operator between two. */
#include <ctype.h>
#include <math.h>
#include <string.h>

#include "emit/emit.h"

/* ---- arguments -------------------------------------------------------------------------------------------------- */

void write_float(double v, strbuf *b)
{
	if (isnan(v))
		strbuf_puts(b, "float(\"nan\")");
	else if (isinf(v))
		strbuf_puts(b, v < 0 ? "float(\"-inf\")" : "float(\"inf\")");
	else {
		size_t start = b->n;
		strbuf_double(b, v);
		char *plus = b->failed ? NULL : memchr(b->at + start, '+', b->n - start); /* 1e+38 reads 1e38 */
		if (plus)
			memmove(plus, plus + 1, (size_t)(b->at + b->n-- - plus - 1));
	}
}

void write_complex(double re, double im, strbuf *b)
{
	strbuf_puts(b, "complex(");
	write_float(re, b);
	strbuf_puts(b, ", ");
	write_float(im, b);
	strbuf_putc(b, ')');
}

symbol_id symbol_named(const plan *p, const char *s, size_t n)
{
	for (symbol_id i = 0; i < p->symbols.n; i++) {
		const char *name = plan_s(p, p->symbols.at[i].name);
		if (strlen(name) == n && memcmp(name, s, n) == 0)
			return i;
	}
	return NONE;
}

static bool is_name_char(char c)
{
	return isalnum((unsigned char)c) || c == '_';
}

/* The text of an expression is Python already; its symbols may need another name, and operators get their blanks. */
void put_expr(const plan *p, expr_id e, symbol_fn name, void *ctx, strbuf *b)
{
	strbuf plain = STRBUF_INIT;
	char *text = NULL;
	expr_print(p, e, &plain);
	if (strbuf_take(&plain, &text) != CLV_OK) {
		b->failed = true;
		return;
	}
	for (const char *s = text; *s;) {
		size_t n = 0;
		while (is_name_char(s[n]))
			n++;
		symbol_id sym = n && !isdigit((unsigned char)*s) ? symbol_named(p, s, n) : NONE;
		size_t sign = n ? 0 : strspn(s, "+-*/%");
		bool between = sign && s > text && (is_name_char(s[-1]) || s[-1] == ')');
		sign = sign > 1 && s[0] == '/' ? 2 : sign > 0; /* "*-3" are two */
		if (sym != NONE)
			name(ctx, sym, b);
		else if (between)
			strbuf_printf(b, " %.*s ", (int)sign, s);
		else
			strbuf_add(b, s, n ? n : 1);
		s += n ? n : between ? sign : 1;
	}
	mem_free(text);
}

static void name_symbol(void *ctx, symbol_id s, strbuf *b)
{
	writer *w = ctx;
	w->symbol_used[s] = true;
	strbuf_puts(b, ident_symbol(&w->ids, s));
}

void write_int(writer *w, expr_id e, strbuf *b)
{
	put_expr(w->p, e, name_symbol, w, b);
}

void write_dims(writer *w, uint32_t first, uint32_t n, strbuf *b)
{
	for (uint32_t i = 0; i < n; i++) {
		strbuf_puts(b, i ? ", " : "");
		write_int(w, w->p->dims.at[first + i], b);
	}
}

static clv_status write_list(writer *w, const arg *a, strbuf *b)
{
	strbuf_putc(b, '[');
	for (uint32_t i = 0; i < a->u.list.n; i++) {
		strbuf_puts(b, i ? ", " : "");
		TRY(write_arg(w, &w->p->args.at[a->u.list.first + i], b));
	}
	strbuf_putc(b, ']');
	return CLV_OK;
}

static clv_status write_value(writer *w, value_id v, strbuf *b)
{
	const value *x = &w->p->values.at[v];
	if (x->kind == VALUE_OBJECT)
		return fail(CLV_E_UNSUPPORTED, "it takes an object (%s), which has no source text", plan_s(w->p, x->name));
	if (x->kind == VALUE_RESULT || x->kind == VALUE_INPUT)
		strbuf_puts(b, ident_value(&w->ids, v));
	else
		write_place(w, v, b);
	return CLV_OK;
}

static void write_memory_format(uint32_t code, strbuf *b)
{
	strbuf_printf(b, "torch.%s%s", memfmt_names[code], code < 2 ? "_format" : "");
}

static void write_layout(uint32_t code, strbuf *b)
{
	const char *name = layout_names[code];
	strbuf_printf(b, "torch.%s%s", !strcmp(name, "mkldnn") ? "_" : "", name);
}

/* Formatters take the quotes that need fewer backslashes. */
void write_string(const char *s, size_t n, strbuf *b)
{
	bool single = memchr(s, '"', n) && !memchr(s, '\'', n);
	size_t start = b->n, to = start;
	strbuf_quoted(b, s, n);
	if (!single || b->failed)
		return;
	for (size_t i = start; i < b->n; i++) {
		bool quote = i == start || i + 1 == b->n;
		if (b->at[i] == '\\' && b->at[i + 1] == '"')
			i++;
		else if (b->at[i] == '\\')
			b->at[to++] = b->at[i++];
		b->at[to++] = quote ? '\'' : b->at[i];
	}
	b->n = to;
}

void write_string_of(strbuf *text, strbuf *b)
{
	b->failed |= text->failed;
	if (!text->failed)
		write_string(text->at ? text->at : "", text->n, b);
	strbuf_free(text);
}

static void write_quoted(const plan *p, str_id s, strbuf *b)
{
	write_string(plan_s(p, s), p->strs.at[s].n, b);
}

/* A stage may stand on another device than the model did. */
static void write_device(writer *w, str_id s, strbuf *b)
{
	if (w->stage && s == w->stage->device) {
		strbuf_printf(b, "self.%s", w->stage->device_name);
		return;
	}
	strbuf_puts(b, "torch.device(");
	write_quoted(w->p, s, b);
	strbuf_putc(b, ')');
}

/* A float over the sizes, computed as the forward did. */
void write_real(writer *w, real_id r, strbuf *b)
{
	static const char *const calls[] = {[REAL_SQRT] = "sqrt", [REAL_EXP] = "exp",     [REAL_LOG] = "log",
	                                    [REAL_LOG2] = "log2", [REAL_LOG10] = "log10", [REAL_POW] = "pow"};
	static const char *const signs[] = {[REAL_ADD] = " + ", [REAL_SUB] = " - ", [REAL_MUL] = " * ", [REAL_DIV] = " / "};
	const real *x = &w->p->reals.at[r];
	bool infix = x->op >= REAL_ADD && x->op <= REAL_DIV;
	if (x->op == REAL_CONST) {
		write_float(x->k, b);
		return;
	}
	if (x->op == REAL_INT) {
		strbuf_puts(b, "float(");
		write_int(w, x->e, b);
		strbuf_putc(b, ')');
		return;
	}
	w->math |= !infix && x->op != REAL_NEG;
	if (!infix && x->op != REAL_NEG)
		strbuf_printf(b, "math.%s", calls[x->op]);
	strbuf_puts(b, x->op == REAL_NEG ? "(-" : "(");
	write_real(w, x->a, b);
	if (x->b != NONE) {
		strbuf_puts(b, infix ? signs[x->op] : ", ");
		write_real(w, x->b, b);
	}
	strbuf_putc(b, ')');
}

clv_status write_arg(writer *w, const arg *a, strbuf *b)
{
	switch ((arg_kind)a->kind) {
	case ARG_NONE: strbuf_puts(b, "None"); break;
	case ARG_VALUE: return write_value(w, a->u.v, b);
	case ARG_INT: write_int(w, a->u.e, b); break;
	case ARG_FLOAT: write_float(a->u.f, b); break;
	case ARG_BOOL: strbuf_puts(b, a->u.b ? "True" : "False"); break;
	case ARG_COMPLEX: write_complex(a->u.c.re, a->u.c.im, b); break;
	case ARG_STR: write_quoted(w->p, a->u.s, b); break;
	case ARG_DTYPE: strbuf_printf(b, "torch.%s", torch_dtype((uint8_t)a->u.code)); break;
	case ARG_LAYOUT: write_layout(a->u.code, b); break;
	case ARG_MEMFMT: write_memory_format(a->u.code, b); break;
	case ARG_DEVICE: write_device(w, a->u.s, b); break;
	case ARG_LIST: return write_list(w, a, b);
	case ARG_REAL: write_real(w, a->u.r, b); break;
	}
	return CLV_OK;
}

/* ---- calls ------------------------------------------------------------------------------------------------------ */

/* A call being put together; its parts are texts of their own, so that a long call can be broken into lines. */
typedef struct call {
	writer *w;
	const node *n;
	node_id id;
	strbuf head;
	VEC(const char *) parts;
	arena arena; /* of the parts */
} call;

static const arg *call_arg(const call *c, uint32_t i)
{
	return &c->w->p->args.at[c->n->args + i];
}

/* The argument as it is in the model's other mode; NULL: it is the same there. */
static const arg *other_arg(const call *c, const arg *a)
{
	const arg *first = call_arg(c, 0);
	if (!c->w->stage || a < first || a >= first + c->n->nargs)
		return NULL;
	return twins_arg(c->w->stage->twins, c->id, (uint32_t)(a - first));
}

static bool any_other(const call *c)
{
	for (uint32_t i = 0; i < c->n->nargs; i++)
		if (other_arg(c, call_arg(c, i)))
			return true;
	return false;
}

/* self.training, or 0.1 if self.training else 0.0 */
static clv_status put_either(const call *c, const arg *a, const arg *other, strbuf *b)
{
	writer there = *c->w; /* for texts of the other plan, which has no names here */
	there.p = c->w->stage->twins->other;
	bool trains = c->w->p->training;
	if (a->kind == ARG_BOOL && other->kind == ARG_BOOL) {
		strbuf_puts(b, a->u.b == trains ? "self.training" : "not self.training");
		return CLV_OK;
	}
	TRY(trains ? write_arg(c->w, a, b) : write_arg(&there, other, b));
	strbuf_puts(b, " if self.training else ");
	return trains ? write_arg(&there, other, b) : write_arg(c->w, a, b);
}

/* In the arena of the call. */
static clv_status arg_text(call *c, const arg *a, const char *name, size_t n, const char **out)
{
	strbuf b = STRBUF_INIT;
	const arg *other = other_arg(c, a);
	strbuf_add(&b, name, n);
	strbuf_puts(&b, n ? "=" : "");
	clv_status st = other ? put_either(c, a, other, &b) : write_arg(c->w, a, &b);
	if (st == CLV_OK)
		return arena_take(&c->arena, &b, out);
	strbuf_free(&b);
	return st;
}

static clv_status push_part(call *c, const arg *a, const char *name, size_t n)
{
	const char *text = NULL;
	TRY(arg_text(c, a, name, n, &text));
	return vec_push(&c->parts, text);
}

/* Lists in a signature have ";" between their elements, since "," ends an item. */
static bool reads(const char *text, const char *want, size_t n)
{
	for (; n; text++, want++, n--)
		if (*text != (*want == ';' ? ',' : *want))
			return false;
	return *text == '\0';
}

static clv_status arg_reads(call *c, const arg *a, const char *want, size_t n, bool *out)
{
	const char *text = NULL;
	TRY(arg_text(c, a, "", 0, &text));
	*out = reads(text, want, n);
	return CLV_OK;
}

static clv_status push_star(call *c, const arg *a)
{
	if (a->kind != ARG_LIST || a->u.list.n == 0 || other_arg(c, a))
		return push_part(c, a, "", 0);
	for (uint32_t i = 0; i < a->u.list.n; i++)
		TRY(push_part(c, &c->w->p->args.at[a->u.list.first + i], "", 0));
	return CLV_OK;
}

static bool is_tensor(const call *c, uint32_t i)
{
	const arg *a = i < c->n->nargs ? call_arg(c, i) : NULL;
	return a && a->kind == ARG_VALUE && c->w->p->values.at[a->u.v].type == TYPE_TENSOR;
}

static bool is_own_dtype(const call *c, const arg *a)
{
	return is_tensor(c, 0) && a->kind == ARG_DTYPE && a->u.code == c->w->p->values.at[call_arg(c, 0)->u.v].dtype;
}

/* One item of a signature: s … s+n-1. *fits: the form may be used. */
static clv_status push_item(call *c, const char *s, size_t n, uint32_t *next, bool *fits)
{
	uint32_t at = *next;
	if (n > 1 && isdigit((unsigned char)s[0]) && s[1] == ':') {
		at = (uint32_t)(s[0] - '0');
		s += 2;
		n -= 2;
	}
	*next = at + 1;
	const char *sign = memchr(s, '=', n);
	if (at >= c->n->nargs) {
		*fits = sign || s[0] == '!';
		return CLV_OK;
	}
	const arg *a = call_arg(c, at);
	if (s[0] == '!' && s[1] == '.') {
		*fits = is_own_dtype(c, a) && !other_arg(c, a);
		return CLV_OK;
	}
	if (s[0] == '!')
		return arg_reads(c, a, s + 1, n - 1, fits);
	if (s[0] == '*')
		return push_star(c, a);
	if (!sign)
		return push_part(c, a, "", 0);
	size_t name = (size_t)(sign - s), rest = n - name - 1;
	bool left_out = false;
	if (rest)
		TRY(arg_reads(c, a, sign + 1, rest, &left_out));
	return left_out ? CLV_OK : push_part(c, a, s, name);
}

static uint32_t count_items(const char *s)
{
	uint32_t n = *s != '\0';
	for (; *s; s++)
		n += *s == ',';
	return n;
}

/* Fills the parts from a form; *fits is false when this call cannot be written so. */
static clv_status try_form(call *c, const op_row *f, bool *fits)
{
	bool method = f->head[0] == '.';
	uint32_t next = method ? 1 : 0, skip = next;
	*fits = c->n->nargs <= count_items(f->signature) + skip;
	if (method || f->head[0] == ' ')
		*fits = *fits && is_tensor(c, 0);
	if (method && *fits)
		TRY(write_arg(c->w, call_arg(c, 0), &c->head));
	strbuf_puts(&c->head, f->head);
	for (const char *s = f->signature; *s && *fits;) {
		size_t n = strcspn(s, ",");
		TRY(push_item(c, s, n, &next, fits));
		s += n + strspn(s + n, ", ");
	}
	return CLV_OK;
}

static void call_reset(call *c)
{
	c->parts.n = 0;
	c->head.n = 0;
}

/* Python's operators are registered under the names of their methods. */
static bool is_method_name(const char *s, size_t n)
{
	static const char *const known[] = {"__and__",  "__or__",  "__xor__",  "__lshift__",  "__rshift__",
	                                    "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__"};
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (strlen(known[i]) == n && !memcmp(known[i], s, n))
			return true;
	return false;
}

/* space::name or space::name.overload of plain names; one that reaches into Python's own attributes is no operator. */
static bool op_is_plain(const char *op, const char *colons, const char *dot)
{
	const char *name = colons + 2;
	size_t n = dot ? (size_t)(dot - name) : strlen(name);
	return ident_ok(op, (size_t)(colons - op)) && (ident_ok(name, n) || is_method_name(name, n)) &&
	       (!dot || ident_ok(dot + 1, strlen(dot + 1)));
}

/* torch.ops.aten.add.Tensor */
static clv_status ops_name(writer *w, const char *op, strbuf *b)
{
	const char *colons = strstr(op, "::"), *dot = colons ? strchr(colons, '.') : NULL;
	if (!colons || !op_is_plain(op, colons, dot))
		return fail(CLV_E_UNSUPPORTED, "%s has no name in torch.ops", op);
	if (!strncmp(op, "torchvision::", 13))
		w->torchvision = true;
	strbuf_puts(b, "torch.ops.");
	strbuf_add(b, op, (size_t)(colons - op));
	strbuf_putc(b, '.');
	strbuf_puts(b, colons + 2);
	strbuf_puts(b, dot ? "" : ".default");
	return CLV_OK;
}

/* Without schemas a helper finds out, when the source runs, which arguments go by name. */
static clv_status unknown_call(call *c, const char *op)
{
	strbuf name = STRBUF_INIT;
	const char *text = NULL;
	c->w->call = true;
	strbuf_puts(&c->head, "call");
	TRY(ops_name(c->w, op, &name)); /* writes nothing when it fails */
	TRY(arena_take(&c->arena, &name, &text));
	TRY(vec_push(&c->parts, text));
	for (uint32_t i = 0; i < c->n->nargs; i++)
		TRY(push_part(c, call_arg(c, i), "", 0));
	return CLV_OK;
}

static clv_status ops_call(call *c, const char *op)
{
	const source_spec *s = c->w->s;
	source_formal f;
	if (!s->formal || (c->n->nargs && !s->formal(s->ctx, op, c->n->nargs - 1, &f)))
		return unknown_call(c, op);
	TRY(ops_name(c->w, op, &c->head));
	for (uint32_t i = 0; i < c->n->nargs; i++) {
		const arg *a = call_arg(c, i);
		if (!s->formal(s->ctx, op, i, &f))
			return fail(CLV_E_INVALID, "%s has no argument %u", op, i);
		if (f.named && f.none && a->kind == ARG_NONE && !other_arg(c, a))
			continue;
		TRY(push_part(c, a, f.name, f.named ? strlen(f.name) : 0));
	}
	return CLV_OK;
}

/* 1:3, or B + 1 : with blanks where an end is an expression */
static clv_status put_range(call *c, const arg *from, const arg *to, strbuf *b)
{
	strbuf ends[2] = {STRBUF_INIT, STRBUF_INIT};
	clv_status st = from ? write_arg(c->w, from, &ends[0]) : CLV_OK;
	if (st == CLV_OK && to)
		st = write_arg(c->w, to, &ends[1]);
	bool wide = false, first = ends[0].n > 0, last = ends[1].n > 0;
	for (int i = 0; i < 2; i++)
		wide |= !ends[i].failed && ends[i].n && memchr(ends[i].at, ' ', ends[i].n);
	strbuf_move(b, &ends[0]);
	strbuf_puts(b, wide && first ? " :" : ":");
	strbuf_puts(b, wide && last ? " " : "");
	strbuf_move(b, &ends[1]);
	return st;
}

/* x[:, 1:3]. The whole of a dimension makes no operator in Python, and is left to torch.ops. */
static clv_status slice_text(call *c, bool *done, strbuf *b)
{
	int64_t dim, start = 0, end = INT64_MAX, step;
	const plan *p = c->w->p;
	*done = false;
	if (c->n->nargs != 5 || !is_tensor(c, 0))
		return CLV_OK;
	const arg *d = call_arg(c, 1), *from = call_arg(c, 2), *to = call_arg(c, 3), *by = call_arg(c, 4);
	if (d->kind != ARG_INT || from->kind != ARG_INT || to->kind != ARG_INT || by->kind != ARG_INT)
		return CLV_OK;
	if (!expr_is_const(p, d->u.e, &dim) || !expr_is_const(p, by->u.e, &step) || step != 1 || dim < 0 || dim > 7)
		return CLV_OK;
	bool from_start = expr_is_const(p, from->u.e, &start) && start == 0;
	bool to_end = expr_is_const(p, to->u.e, &end) && end == INT64_MAX;
	if (from_start && to_end)
		return CLV_OK;
	*done = true;
	TRY(write_arg(c->w, call_arg(c, 0), b));
	strbuf_putc(b, '[');
	for (int64_t i = 0; i < dim; i++)
		strbuf_puts(b, ":, ");
	TRY(put_range(c, from_start ? NULL : from, to_end ? NULL : to, b));
	strbuf_putc(b, ']');
	return CLV_OK;
}

/* (a + b), and not (a) + (b) */
static bool is_wrapped(const char *s)
{
	int depth = 0;
	for (; s[0]; s++) {
		depth += (*s == '(') - (*s == ')');
		if (depth <= 0)
			return *s == ')' && s[1] == '\0';
	}
	return false;
}

/* A number between two operators: "B*2" needs its parentheses, and so does a sign; 1e-05 does not. */
static void put_operand(const char *s, strbuf *b)
{
	bool number = isdigit((unsigned char)s[0]) && strpbrk(s, ".e") && !strchr(s, ' ');
	bool bare = number || is_wrapped(s) || !strpbrk(s, "+-*/% ");
	strbuf_puts(b, bare ? "" : "(");
	strbuf_puts(b, s);
	strbuf_puts(b, bare ? "" : ")");
}

static void put_call(const call *c, strbuf *b)
{
	strbuf_add(b, c->head.at, c->head.n);
	strbuf_putc(b, '(');
	for (uint32_t i = 0; i < c->parts.n; i++)
		strbuf_printf(b, "%s%s", i ? ", " : "", c->parts.at[i]);
	strbuf_putc(b, ')');
}

static clv_status fill_call(call *c, const char *op, const op_row **used)
{
	bool fits = false;
	*used = node_op(c->w->p, c->id);
	if ((*used)->head)
		TRY(try_form(c, *used, &fits));
	if (fits && !((*used)->head[0] == ' ' && c->parts.n != 2))
		return CLV_OK;
	*used = NULL;
	call_reset(c);
	return ops_call(c, op);
}

/* Formatters write a**2 close together where both are names or numbers. */
static bool is_simple(const char *s)
{
	if (isdigit((unsigned char)s[0]))
		return !strpbrk(s, "+*/% ");
	for (; *s; s++)
		if (!is_name_char(*s) && *s != '.')
			return false;
	return true;
}

static void put_between(const call *c, const char *operator, strbuf * b)
{
	bool close = !strcmp(operator, " ** ") && is_simple(c->parts.at[0]) && is_simple(c->parts.at[1]);
	put_operand(c->parts.at[0], b);
	strbuf_puts(b, close ? "**" : operator);
	put_operand(c->parts.at[1], b);
}

clv_status write_call(writer *w, node_id id, unsigned indent, strbuf *b)
{
	call c = {.w = w, .n = &w->p->nodes.at[id], .id = id};
	const char *op = plan_s(w->p, c.n->op);
	const op_row *used = NULL;
	bool done = false;
	size_t start = b->n;
	clv_status st = CLV_OK;
	if (c.n->op_id == OP_slice_Tensor && !any_other(&c))
		st = slice_text(&c, &done, b);
	if (st == CLV_OK && !done)
		st = fill_call(&c, op, &used);
	if (st == CLV_OK && !done && used && used->head[0] == ' ' && !c.head.failed) {
		put_between(&c, used->head, b);
		done = layout_fits(indent, b);
		if (!done) { /* a call can be broken into lines, whatever its operands are */
			b->n = start;
			call_reset(&c);
			st = ops_call(&c, op);
		}
	}
	if (c.head.failed)
		b->failed = true;
	else if (st == CLV_OK && !done)
		put_call(&c, b);
	vec_free(&c.parts);
	arena_free(&c.arena);
	strbuf_free(&c.head);
	return st;
}
