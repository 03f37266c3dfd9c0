/* Symbolic integers: made in a normal form, evaluated with checked arithmetic, printed with few parentheses.
 *
 * expr_make folds what it can see from the operands alone (never from ids or ranges), so that parsing the printed
 * form makes the same expression again: constants stand right of + and left of *, x-3 is x+(-3). */
#include "plan/intern.h"

#include <string.h>

/* ---- making ----------------------------------------------------------------------------------------------------- */

typedef struct expr_key {
	const plan *p;
	expr e;
} expr_key;

static bool expr_same(const void *ctx, uint32_t id)
{
	const expr_key *k = ctx;
	const expr *x = &k->p->exprs.at[id];
	return x->op == k->e.op && x->a == k->e.a && x->b == k->e.b && x->k == k->e.k;
}

static uint32_t terms(const plan *p, expr_id e)
{
	return e < p->intern->expr_terms.n ? p->intern->expr_terms.at[e] : 0;
}

static clv_status intern_expr(plan *p, expr e, expr_id *out)
{
	struct plan_intern *in = p->intern;
	uint32_t hash = hash_bytes((uint64_t[]){(uint64_t)e.op, e.a, e.b, (uint64_t)e.k}, 32, in->seed);
	uint32_t found = table_find(&in->exprs, hash, expr_same, &(expr_key){p, e});
	if (found != TABLE_NONE) {
		*out = found;
		return CLV_OK;
	}
	uint32_t size = 1 + terms(p, e.a) + terms(p, e.b);
	if (size > EXPR_LIMIT)
		return fail(CLV_E_UNSUPPORTED, "an expression has more than %d terms", EXPR_LIMIT);
	TRY(vec_reserve(&p->exprs, 1));
	TRY(vec_reserve(&in->expr_terms, 1));
	TRY(table_add(&in->exprs, hash, p->exprs.n));
	TRY(vec_push(&in->expr_terms, size));
	*out = p->exprs.n;
	return vec_push(&p->exprs, e);
}

clv_status expr_const(plan *p, int64_t k, expr_id *out)
{
	return intern_expr(p, (expr){EXPR_CONST, NONE, NONE, k}, out);
}

clv_status expr_sym(plan *p, symbol_id s, expr_id *out)
{
	if (s >= p->symbols.n)
		return fail(CLV_E_INVALID, "there is no symbol %u", s);
	return intern_expr(p, (expr){EXPR_SYM, NONE, NONE, s}, out);
}

bool expr_is_const(const plan *p, expr_id e, int64_t *k)
{
	if (e >= p->exprs.n || p->exprs.at[e].op != EXPR_CONST)
		return false;
	*k = p->exprs.at[e].k;
	return true;
}

typedef enum arith { ARITH_OK, ARITH_OVERFLOW, ARITH_DIV0 } arith;

static arith floordiv(int64_t a, int64_t b, int64_t *out)
{
	if (b == 0)
		return ARITH_DIV0;
	if (a == INT64_MIN && b == -1)
		return ARITH_OVERFLOW;
	*out = a / b - (a % b != 0 && (a < 0) != (b < 0));
	return ARITH_OK;
}

static arith floormod(int64_t a, int64_t b, int64_t *out)
{
	if (b == 0)
		return ARITH_DIV0;
	int64_t r = b == -1 ? 0 : a % b;
	*out = r != 0 && (r < 0) != (b < 0) ? r + b : r;
	return ARITH_OK;
}

static arith apply(expr_op op, int64_t a, int64_t b, int64_t *out)
{
	bool overflow = false;
	switch (op) {
	case EXPR_ADD: overflow = __builtin_add_overflow(a, b, out); break;
	case EXPR_SUB: overflow = __builtin_sub_overflow(a, b, out); break;
	case EXPR_MUL: overflow = __builtin_mul_overflow(a, b, out); break;
	case EXPR_FLOORDIV: return floordiv(a, b, out);
	case EXPR_MOD: return floormod(a, b, out);
	case EXPR_MIN: *out = a < b ? a : b; break;
	case EXPR_MAX: *out = a > b ? a : b; break;
	case EXPR_CONST:
	case EXPR_SYM: return ARITH_DIV0; /* leaves are not applied */
	}
	return overflow ? ARITH_OVERFLOW : ARITH_OK;
}

/* e is `op(x, k)` (constant right) or `op(k, x)`, as the normal form of op has it. */
static bool has_const(const plan *p, expr_id e, expr_op op, expr_id *x, int64_t *k)
{
	const expr *n = &p->exprs.at[e];
	if (n->op != op)
		return false;
	*x = op == EXPR_MUL ? n->b : n->a;
	return expr_is_const(p, op == EXPR_MUL ? n->a : n->b, k);
}

static clv_status make_add(plan *p, expr_id a, expr_id b, expr_id *out)
{
	int64_t k, inner, sum;
	expr_id x;
	if (expr_is_const(p, a, &k) && !expr_is_const(p, b, &inner)) {
		expr_id t = a;
		a = b;
		b = t;
	}
	if (expr_is_const(p, b, &k)) {
		if (k == 0) {
			*out = a;
			return CLV_OK;
		}
		if (has_const(p, a, EXPR_ADD, &x, &inner) && !__builtin_add_overflow(inner, k, &sum)) {
			TRY(expr_const(p, sum, &b));
			return expr_make(p, EXPR_ADD, x, b, out);
		}
	}
	return intern_expr(p, (expr){EXPR_ADD, a, b, 0}, out);
}

static clv_status make_sub(plan *p, expr_id a, expr_id b, expr_id *out)
{
	int64_t k;
	if (a == b)
		return expr_const(p, 0, out);
	if (expr_is_const(p, b, &k) && k != INT64_MIN) {
		TRY(expr_const(p, -k, &b));
		return make_add(p, a, b, out);
	}
	return intern_expr(p, (expr){EXPR_SUB, a, b, 0}, out);
}

static clv_status make_mul(plan *p, expr_id a, expr_id b, expr_id *out)
{
	int64_t k, inner, product;
	expr_id x;
	if (expr_is_const(p, b, &k) && !expr_is_const(p, a, &inner)) {
		expr_id t = a;
		a = b;
		b = t;
	}
	if (expr_is_const(p, a, &k)) {
		if (k == 0 || k == 1) {
			*out = k ? b : a;
			return CLV_OK;
		}
		if (has_const(p, b, EXPR_MUL, &x, &inner) && !__builtin_mul_overflow(inner, k, &product)) {
			TRY(expr_const(p, product, &a));
			return expr_make(p, EXPR_MUL, a, x, out);
		}
	}
	return intern_expr(p, (expr){EXPR_MUL, a, b, 0}, out);
}

clv_status expr_make(plan *p, expr_op op, expr_id a, expr_id b, expr_id *out)
{
	if (a >= p->exprs.n || b >= p->exprs.n || op < EXPR_ADD || op > EXPR_MAX)
		return fail(CLV_E_INVALID, "there is no such operand or operator of an expression");
	int64_t ka = 0, kb = 0, k;
	bool right = expr_is_const(p, b, &kb);
	if (right && expr_is_const(p, a, &ka) && apply(op, ka, kb, &k) == ARITH_OK)
		return expr_const(p, k, out);
	if (op == EXPR_ADD)
		return make_add(p, a, b, out);
	if (op == EXPR_SUB)
		return make_sub(p, a, b, out);
	if (op == EXPR_MUL)
		return make_mul(p, a, b, out);
	if (op == EXPR_MOD && right && (kb == 1 || kb == -1))
		return expr_const(p, 0, out);
	bool same = (op == EXPR_MIN || op == EXPR_MAX) && a == b;
	if (same || (op == EXPR_FLOORDIV && right && kb == 1)) {
		*out = a;
		return CLV_OK;
	}
	return intern_expr(p, (expr){op, a, b, 0}, out);
}

/* ---- evaluating ------------------------------------------------------------------------------------------------- */

static clv_status eval_fail(const plan *p, expr_id e, arith a)
{
	strbuf b = STRBUF_INIT;
	char *text;
	expr_print(p, e, &b);
	TRY(strbuf_take(&b, &text));
	clv_status st = a == ARITH_DIV0 ? fail(CLV_E_INPUT, "%s divides by 0 at these sizes", text)
	                                : fail(CLV_E_OVERFLOW, "%s is too large at these sizes", text);
	mem_free(text);
	return st;
}

/* Operands have smaller ids, so this ends. */
clv_status expr_eval(const plan *p, expr_id e, const int64_t *syms, int64_t *out)
{
	if (e >= p->exprs.n)
		return fail(CLV_E_INVALID, "there is no expression %u", e);
	const expr *x = &p->exprs.at[e];
	if (x->op == EXPR_CONST || x->op == EXPR_SYM) {
		*out = x->op == EXPR_CONST ? x->k : syms[x->k];
		return CLV_OK;
	}
	int64_t a, b;
	TRY(expr_eval(p, x->a, syms, &a));
	TRY(expr_eval(p, x->b, syms, &b));
	arith r = apply(x->op, a, b, out);
	return r == ARITH_OK ? CLV_OK : eval_fail(p, e, r);
}

clv_status expr_eval_all(const plan *p, const int64_t *syms, int64_t *out, bool *ok)
{
	for (expr_id e = 0; e < p->exprs.n; e++) {
		const expr *x = &p->exprs.at[e];
		ok[e] = true;
		out[e] = 0;
		if (x->op == EXPR_CONST)
			out[e] = x->k;
		else if (x->op == EXPR_SYM)
			ok[e] = (out[e] = syms[x->k]) >= 0;
		else
			ok[e] = ok[x->a] && ok[x->b] && apply(x->op, out[x->a], out[x->b], &out[e]) == ARITH_OK;
	}
	return CLV_OK;
}

/* ---- printing --------------------------------------------------------------------------------------------------- */

static int precedence(const expr *x)
{
	switch (x->op) {
	case EXPR_ADD:
	case EXPR_SUB: return 1;
	case EXPR_MUL:
	case EXPR_FLOORDIV:
	case EXPR_MOD: return 2;
	default: return 3;
	}
}

static void print_operand(const plan *p, expr_id e, int least, strbuf *b)
{
	bool wrap = e < p->exprs.n && precedence(&p->exprs.at[e]) < least;
	strbuf_puts(b, wrap ? "(" : "");
	expr_print(p, e, b);
	strbuf_puts(b, wrap ? ")" : "");
}

bool expr_starts_with_paren(const plan *p, expr_id e)
{
	while (e < p->exprs.n && precedence(&p->exprs.at[e]) < 3) {
		const expr *x = &p->exprs.at[e];
		if (x->a >= e)
			return false;
		if (precedence(&p->exprs.at[x->a]) < precedence(x))
			return true;
		e = x->a;
	}
	return false;
}

static void print_infix(const plan *p, const expr *x, strbuf *b)
{
	static const char *const signs[] = {
		[EXPR_ADD] = "+", [EXPR_SUB] = "-", [EXPR_MUL] = "*", [EXPR_FLOORDIV] = "//", [EXPR_MOD] = "%"};
	int level = precedence(x);
	int64_t k;
	print_operand(p, x->a, level, b);
	if (x->op == EXPR_ADD && expr_is_const(p, x->b, &k) && k < 0 && k != INT64_MIN) {
		strbuf_int(b, k); /* x+(-3) reads x-3 */
		return;
	}
	strbuf_puts(b, signs[x->op]);
	print_operand(p, x->b, level + 1, b);
}

static void print_call(const plan *p, const expr *x, strbuf *b)
{
	strbuf_puts(b, x->op == EXPR_MIN ? "min(" : "max(");
	expr_print(p, x->a, b);
	strbuf_puts(b, ", ");
	expr_print(p, x->b, b);
	strbuf_putc(b, ')');
}

void expr_print(const plan *p, expr_id e, strbuf *b)
{
	if (e >= p->exprs.n) {
		strbuf_putc(b, '?');
		return;
	}
	const expr *x = &p->exprs.at[e];
	if (x->op == EXPR_CONST)
		strbuf_int(b, x->k);
	else if (x->op == EXPR_SYM)
		strbuf_puts(b, x->k >= 0 && x->k < p->symbols.n ? plan_s(p, p->symbols.at[x->k].name) : "?");
	else if (x->a >= e || x->b >= e || x->op > EXPR_MAX)
		strbuf_putc(b, '?'); /* only in a plan that does not verify */
	else if (x->op == EXPR_MIN || x->op == EXPR_MAX)
		print_call(p, x, b);
	else
		print_infix(p, x, b);
}

bool expr_solve(const plan *p, expr_id e, int64_t n, symbol_id *s, int64_t *out)
{
	const expr *x = &p->exprs.at[e];
	int64_t k, rest;
	while (x->op != EXPR_SYM) {
		bool left = x->op != EXPR_CONST && expr_is_const(p, x->a, &k); /* the constant is on this side */
		if (x->op == EXPR_CONST || (!left && !expr_is_const(p, x->b, &k)))
			return false;
		if (x->op == EXPR_MUL && k > 0 && n % k == 0)
			n /= k;
		else if (x->op == EXPR_ADD && !__builtin_sub_overflow(n, k, &rest))
			n = rest;
		else if (x->op == EXPR_SUB && !left && !__builtin_add_overflow(n, k, &rest))
			n = rest;
		else
			return false;
		x = &p->exprs.at[left ? x->b : x->a];
	}
	*s = (symbol_id)x->k;
	*out = n;
	return true;
}
