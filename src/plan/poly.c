/* Polynomials: products are multiplied out, like terms joined; printed with the highest degree first. */
#include "plan/poly.h"

enum { TERMS_MAX = 16, WORK_MAX = 1024 }; /* terms of a product, and of one on the way; what is larger stays a factor */

/* By structure, not by id, so that equal plans print equal polynomials. */
static int compare_exprs(const plan *p, expr_id a, expr_id b)
{
	const expr *x = &p->exprs.at[a], *y = &p->exprs.at[b];
	if (a == b)
		return 0;
	if (x->op != y->op)
		return (x->op > y->op) - (x->op < y->op);
	if (x->op == EXPR_CONST || x->op == EXPR_SYM)
		return (x->k > y->k) - (x->k < y->k);
	int first = compare_exprs(p, x->a, y->a);
	return first ? first : compare_exprs(p, x->b, y->b);
}

static int compare_terms(const plan *p, const poly_term *a, const poly_term *b)
{
	if (a->degree != b->degree)
		return a->degree < b->degree ? 1 : -1;
	int order = 0;
	for (uint32_t i = 0; i < a->degree && !order; i++)
		order = compare_exprs(p, a->factors[i], b->factors[i]);
	return order;
}

static void sift(const plan *p, poly_term *at, uint32_t i, uint32_t n)
{
	for (uint32_t child; (child = 2 * i + 1) < n; i = child) {
		if (child + 1 < n && compare_terms(p, &at[child], &at[child + 1]) < 0)
			child++;
		if (compare_terms(p, &at[i], &at[child]) >= 0)
			return;
		poly_term t = at[i];
		at[i] = at[child];
		at[child] = t;
	}
}

/* Heap sort: the order needs the plan, which qsort cannot pass on. */
static void sort_terms(const plan *p, poly *x)
{
	for (uint32_t i = x->n / 2; i-- > 0;)
		sift(p, x->at, i, x->n);
	for (uint32_t n = x->n; n-- > 1;) {
		poly_term t = x->at[0];
		x->at[0] = x->at[n];
		x->at[n] = t;
		sift(p, x->at, 0, n);
	}
}

static clv_status too_large(void)
{
	return fail(CLV_E_OVERFLOW, "a product of sizes is too large to be written down");
}

/* Joins like terms and drops those that are 0. */
static clv_status normalise(const plan *p, poly *x)
{
	uint32_t n = 0;
	sort_terms(p, x);
	for (uint32_t i = 0; i < x->n; i++) {
		if (n && compare_terms(p, &x->at[n - 1], &x->at[i]) == 0) {
			if (__builtin_add_overflow(x->at[n - 1].k, x->at[i].k, &x->at[n - 1].k))
				return too_large();
		} else {
			x->at[n++] = x->at[i];
		}
		if (x->at[n - 1].k == 0)
			n--;
	}
	x->n = n;
	return CLV_OK;
}

clv_status poly_const(poly *out, int64_t k)
{
	poly_term t = {.k = k};
	return k ? vec_push(out, t) : CLV_OK;
}

clv_status poly_add(poly *sum, const poly *more)
{
	for (uint32_t i = 0; i < more->n; i++)
		TRY(vec_push(sum, more->at[i]));
	return CLV_OK;
}

static clv_status multiply_terms(const plan *p, const poly_term *a, const poly_term *b, poly_term *out)
{
	uint32_t i = 0, j = 0;
	*out = (poly_term){.degree = a->degree + b->degree};
	if (out->degree > POLY_DEGREE || __builtin_mul_overflow(a->k, b->k, &out->k))
		return too_large();
	for (uint32_t n = 0; n < out->degree; n++) {
		bool left = j == b->degree || (i < a->degree && compare_exprs(p, a->factors[i], b->factors[j]) <= 0);
		out->factors[n] = left ? a->factors[i++] : b->factors[j++];
	}
	return CLV_OK;
}

static clv_status multiply(const plan *p, poly *a, const poly *b)
{
	poly product = {0};
	clv_status st = (uint64_t)a->n * b->n > WORK_MAX ? too_large() : CLV_OK;
	for (uint32_t i = 0; i < a->n && st == CLV_OK; i++)
		for (uint32_t j = 0; j < b->n && st == CLV_OK; j++) {
			poly_term t;
			st = multiply_terms(p, &a->at[i], &b->at[j], &t);
			if (st == CLV_OK)
				st = vec_push(&product, t);
		}
	if (st == CLV_OK)
		st = normalise(p, &product);
	if (st != CLV_OK) {
		vec_free(&product);
		return st;
	}
	vec_free(a);
	*a = product;
	return CLV_OK;
}

static clv_status from_expr(const plan *p, expr_id e, poly *out);

static clv_status from_operands(const plan *p, const expr *x, poly *a, poly *b)
{
	TRY(from_expr(p, x->a, a));
	TRY(from_expr(p, x->b, b));
	if (x->op == EXPR_MUL)
		return multiply(p, a, b);
	for (uint32_t i = 0; x->op == EXPR_SUB && i < b->n; i++)
		if (__builtin_sub_overflow((__int128)0, b->at[i].k, &b->at[i].k))
			return too_large();
	TRY(poly_add(a, b));
	return normalise(p, a);
}

/* The expression as one factor. */
static clv_status from_whole(expr_id e, poly *out)
{
	out->n = 0;
	return vec_push(out, ((poly_term){.k = 1, .degree = 1, .factors = {e}}));
}

static clv_status from_expr(const plan *p, expr_id e, poly *out)
{
	const expr *x = &p->exprs.at[e];
	poly b = {0};
	if (x->op == EXPR_CONST)
		return poly_const(out, x->k);
	if (x->op != EXPR_ADD && x->op != EXPR_SUB && x->op != EXPR_MUL)
		return from_whole(e, out);
	clv_status st = from_operands(p, x, out, &b);
	vec_free(&b);
	return st == CLV_E_OVERFLOW ? from_whole(e, out) : st;
}

clv_status poly_times(const plan *p, poly *product, expr_id by)
{
	poly factor = {0};
	clv_status st = from_expr(p, by, &factor);
	if (st == CLV_OK && factor.n > 1 && (uint64_t)factor.n * product->n > TERMS_MAX)
		st = from_whole(by, &factor);
	if (st == CLV_OK)
		st = multiply(p, product, &factor);
	vec_free(&factor);
	return st;
}

/* ---- printing --------------------------------------------------------------------------------------------------- */

static void print_number(strbuf *b, __int128 k)
{
	char digits[48];
	size_t n = sizeof digits;
	bool minus = k < 0;
	unsigned __int128 rest = minus ? -(unsigned __int128)k : (unsigned __int128)k;
	do {
		digits[--n] = (char)('0' + (int)(rest % 10));
		rest /= 10;
	} while (rest);
	if (minus)
		digits[--n] = '-';
	strbuf_add(b, digits + n, sizeof digits - n);
}

static void print_factor(const plan *p, expr_id e, strbuf *b)
{
	expr_op op = p->exprs.at[e].op;
	bool whole = op == EXPR_SYM || op == EXPR_MIN || op == EXPR_MAX;
	strbuf_puts(b, whole ? "" : "(");
	expr_print(p, e, b);
	strbuf_puts(b, whole ? "" : ")");
}

static void print_term(const plan *p, const poly_term *t, bool first, strbuf *b)
{
	bool number = t->k != 1 || !t->degree;
	if (!first && t->k > 0)
		strbuf_putc(b, '+');
	if (number)
		print_number(b, t->k);
	for (uint32_t i = 0; i < t->degree; i++) {
		strbuf_puts(b, i || number ? "*" : "");
		print_factor(p, t->factors[i], b);
	}
}

clv_status poly_print(const plan *p, poly *x, strbuf *b)
{
	TRY(normalise(p, x));
	if (!x->n)
		strbuf_putc(b, '0');
	for (uint32_t i = 0; i < x->n; i++)
		print_term(p, &x->at[i], i == 0, b);
	return CLV_OK;
}
