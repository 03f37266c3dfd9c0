/* One symbol at a time: along each symbol the points that differ in it alone must follow
 *
 *     constant,  a*B+b,  a*((B+b)//d)+c,  a*((B+b)%d)+c,  a*B*B+b*B+c,  min or max of a*B+b and c
 *
 * Formulas in several symbols are sums or products of such; every candidate is checked at every point before it counts. */
#include "plan/fit.h"

#include <string.h>

enum { DIVISOR_MAX = 64 };

/* The points along one symbol: x rising, all other symbols as at the base point. */
typedef struct line {
	symbol_id s;
	uint32_t n;
	int64_t *x, *y;
} line;

typedef struct fitting {
	plan *p;
	const fit_points *points;
	const int64_t *y;
	expr_id found;
} fitting;

/* ---- checked arithmetic: an overflow means the candidate does not fit ------------------------------------------ */

static bool affine_at(int64_t a, int64_t b, int64_t x, int64_t *out)
{
	return !__builtin_mul_overflow(a, x, out) && !__builtin_add_overflow(*out, b, out);
}

/* y = a*x+b through two points, a and b whole */
static bool affine_through(int64_t x0, int64_t y0, int64_t x1, int64_t y1, int64_t *a, int64_t *b)
{
	int64_t dy, dx, ax;
	if (__builtin_sub_overflow(x1, x0, &dx) || __builtin_sub_overflow(y1, y0, &dy) || !dx ||
	    (dx == -1 && dy == INT64_MIN) || dy % dx)
		return false;
	*a = dy / dx;
	return !__builtin_mul_overflow(*a, x0, &ax) && !__builtin_sub_overflow(y0, ax, b);
}

/* ---- building expressions ---------------------------------------------------------------------------------------- */

static clv_status make_affine(plan *p, expr_id x, int64_t a, int64_t b, expr_id *out)
{
	expr_id ka, kb, ax;
	TRY(expr_const(p, a, &ka));
	TRY(expr_const(p, b, &kb));
	TRY(expr_make(p, EXPR_MUL, ka, x, &ax));
	return expr_make(p, EXPR_ADD, ax, kb, out);
}

static clv_status make_with_const(plan *p, expr_op op, expr_id x, int64_t k, expr_id *out)
{
	expr_id ke;
	TRY(expr_const(p, k, &ke));
	return expr_make(p, op, x, ke, out);
}

/* ---- families along one symbol; each sets *out only when it explains every point of the line -------------------- */

/* The line's points explained by y = a*t+b, where t[i] is what an inner formula gives. At least two different t. */
static bool affine_in(const line *l, const int64_t *t, int64_t *a, int64_t *b)
{
	uint32_t k = 1;
	while (k < l->n && t[k] == t[0])
		k++;
	if (k == l->n || !affine_through(t[0], l->y[0], t[k], l->y[k], a, b))
		return false;
	for (uint32_t i = 0; i < l->n; i++) {
		int64_t y;
		if (!affine_at(*a, *b, t[i], &y) || y != l->y[i])
			return false;
	}
	return true;
}

static bool is_constant(const line *l)
{
	for (uint32_t i = 1; i < l->n; i++)
		if (l->y[i] != l->y[0])
			return false;
	return true;
}

static clv_status fit_affine(plan *p, const line *l, expr_id x, expr_id *out)
{
	int64_t a, b;
	if (l->n < 4 || !affine_in(l, l->x, &a, &b))
		return CLV_OK;
	return make_affine(p, x, a, b, out);
}

static int64_t floor_div(int64_t x, int64_t d)
{
	return x / d - (x % d < 0);
}

/* x rises, so a quotient of it rises too. */
static bool three_values(const int64_t *t, uint32_t n)
{
	uint32_t k = 0;
	while (k < n && t[k] == t[0])
		k++;
	return k < n && t[k] != t[n - 1];
}

/* a*((x+s) op d)+b with op // or %, 0 <= s < d */
static clv_status fit_division(plan *p, const line *l, expr_id x, expr_op op, expr_id *out)
{
	clv_status st = CLV_OK;
	int64_t a, b, *t = l->n < 5 ? NULL : mem_alloc(l->n * sizeof *t);
	if (l->n < 5)
		return CLV_OK;
	if (!t)
		return fail_nomem();
	for (int64_t d = 2; d <= DIVISOR_MAX && *out == NONE && st == CLV_OK; d++)
		for (int64_t s = 0; s < d && *out == NONE && st == CLV_OK; s++) {
			for (uint32_t i = 0; i < l->n; i++) {
				int64_t q = floor_div(l->x[i] + s, d);
				t[i] = op == EXPR_FLOORDIV ? q : l->x[i] + s - q * d;
			}
			/* A quotient that took fewer than three values could be many things. */
			if (op == EXPR_FLOORDIV && !three_values(t, l->n))
				continue;
			if (!affine_in(l, t, &a, &b))
				continue;
			expr_id e;
			st = make_affine(p, x, 1, s, &e);
			if (st == CLV_OK)
				st = make_with_const(p, op, e, d, &e);
			if (st == CLV_OK)
				st = make_affine(p, e, a, b, out);
		}
	mem_free(t);
	return st;
}

/* a*x*x+b*x+c through the first three points by divided differences; checked at the others. Numbers too large for plain
   arithmetic are left to the other families. */
static bool quadratic_through(const line *l, int64_t *a, int64_t *b, int64_t *c)
{
	const int64_t big = INT64_C(1) << 40, far = 1 << 20;
	for (uint32_t i = 0; i < l->n; i++)
		if (l->y[i] > big || l->y[i] < -big || l->x[i] > far || l->x[i] < -far)
			return false;
	int64_t dx1 = l->x[1] - l->x[0], dx2 = l->x[2] - l->x[1], dx3 = l->x[2] - l->x[0];
	if ((l->y[1] - l->y[0]) % dx1 || (l->y[2] - l->y[1]) % dx2)
		return false;
	int64_t s1 = (l->y[1] - l->y[0]) / dx1, s2 = (l->y[2] - l->y[1]) / dx2;
	if ((s2 - s1) % dx3)
		return false;
	*a = (s2 - s1) / dx3;
	*b = s1 - *a * (l->x[0] + l->x[1]);
	return !__builtin_mul_overflow(*a, l->x[0] * l->x[0], c) && !__builtin_add_overflow(*c, *b * l->x[0], c) &&
	       !__builtin_sub_overflow(l->y[0], *c, c);
}

static bool quadratic_at(int64_t a, int64_t b, int64_t c, int64_t x, int64_t *out)
{
	int64_t bx;
	return !__builtin_mul_overflow(a, x * x, out) && !__builtin_mul_overflow(b, x, &bx) &&
	       !__builtin_add_overflow(*out, bx, out) && !__builtin_add_overflow(*out, c, out);
}

static clv_status fit_quadratic(plan *p, const line *l, expr_id x, expr_id *out)
{
	int64_t a, b, c, y;
	if (l->n < 5 || !quadratic_through(l, &a, &b, &c))
		return CLV_OK;
	for (uint32_t i = 0; i < l->n; i++)
		if (!quadratic_at(a, b, c, l->x[i], &y) || y != l->y[i])
			return CLV_OK;
	expr_id inner, k;
	TRY(make_affine(p, x, a, b, &inner));
	TRY(expr_make(p, EXPR_MUL, inner, x, &inner));
	TRY(expr_const(p, c, &k));
	return expr_make(p, EXPR_ADD, inner, k, out);
}

/* min(a*x+b, c) or max: a line on one side, at least three points of it, and a level of at least two on the other */
static clv_status fit_bound(plan *p, const line *l, expr_id x, expr_id *out)
{
	if (l->n < FIT_ENOUGH)
		return CLV_OK;
	for (int side = 0; side < 2; side++) {
		uint32_t first = side ? l->n - 3 : 0;
		int64_t level = side ? l->y[0] : l->y[l->n - 1], a, b;
		uint32_t at_level = 0;
		if (!affine_through(l->x[first], l->y[first], l->x[first + 2], l->y[first + 2], &a, &b) || !a)
			continue;
		for (int op = EXPR_MIN; op <= EXPR_MAX; op++) {
			bool fits = true;
			at_level = 0;
			for (uint32_t i = 0; i < l->n && fits; i++) {
				int64_t y;
				fits = affine_at(a, b, l->x[i], &y);
				bool bounded = op == EXPR_MIN ? y > level : y < level;
				at_level += bounded;
				fits = fits && l->y[i] == (bounded ? level : y);
			}
			if (!fits || at_level < 2)
				continue;
			expr_id e;
			TRY(make_affine(p, x, a, b, &e));
			return make_with_const(p, (expr_op)op, e, level, out);
		}
	}
	return CLV_OK;
}

static clv_status fit_line(plan *p, const line *l, expr_id *out)
{
	expr_id x;
	*out = NONE;
	if (is_constant(l))
		return expr_const(p, l->y[0], out);
	TRY(expr_sym(p, l->s, &x));
	TRY(fit_affine(p, l, x, out));
	if (*out == NONE)
		TRY(fit_quadratic(p, l, x, out));
	if (*out == NONE)
		TRY(fit_division(p, l, x, EXPR_FLOORDIV, out));
	if (*out == NONE)
		TRY(fit_division(p, l, x, EXPR_MOD, out));
	if (*out == NONE)
		TRY(fit_bound(p, l, x, out));
	return CLV_OK;
}

/* ---- lines through the base point --------------------------------------------------------------------------------- */

static const int64_t *row(const fitting *f, uint32_t i)
{
	return f->points->at + (size_t)i * f->points->nsymbols;
}

/* Point i differs from the base point (point 0) in symbol s alone, or not at all. */
static bool on_line(const fitting *f, uint32_t i, symbol_id s)
{
	for (uint32_t k = 0; k < f->points->nsymbols; k++)
		if (k != s && row(f, i)[k] != row(f, 0)[k])
			return false;
	return true;
}

static void line_add(line *l, int64_t x, int64_t y)
{
	uint32_t at = l->n;
	for (uint32_t i = 0; i < l->n; i++)
		if (l->x[i] == x)
			return; /* the same point again; that both agree is checked at the end */
	while (at > 0 && l->x[at - 1] > x)
		at--;
	memmove(l->x + at + 1, l->x + at, (l->n - at) * sizeof *l->x);
	memmove(l->y + at + 1, l->y + at, (l->n - at) * sizeof *l->y);
	l->x[at] = x;
	l->y[at] = y;
	l->n++;
}

static clv_status along(const fitting *f, symbol_id s, int64_t *scratch, expr_id *out)
{
	line l = {.s = s, .x = scratch, .y = scratch + f->points->n};
	for (uint32_t i = 0; i < f->points->n; i++)
		if (on_line(f, i, s))
			line_add(&l, row(f, i)[s], f->y[i]);
	return fit_line(f->p, &l, out);
}

/* ---- candidates against all points --------------------------------------------------------------------------------- */

static bool explains(const fitting *f, expr_id e)
{
	for (uint32_t i = 0; i < f->points->n; i++) {
		int64_t y;
		if (expr_eval(f->p, e, row(f, i), &y) != CLV_OK || y != f->y[i])
			return false;
	}
	return true;
}

static void offer(fitting *f, expr_id e)
{
	if (f->found == NONE && e != NONE && explains(f, e))
		f->found = e;
}

/* f(B, S) = g(B) + h(S) - y0 */
static clv_status offer_sum(fitting *f, const expr_id *parts, uint32_t n)
{
	expr_id sum = parts[0], k;
	for (uint32_t i = 1; i < n; i++)
		TRY(expr_make(f->p, EXPR_ADD, sum, parts[i], &sum));
	int64_t extra;
	if (__builtin_mul_overflow((int64_t)(n - 1), f->y[0], &extra))
		return CLV_OK;
	TRY(expr_const(f->p, extra, &k));
	TRY(expr_make(f->p, EXPR_SUB, sum, k, &sum));
	offer(f, sum);
	return CLV_OK;
}

/* f(B, S) = g(B) * h(S) // y0, exact when the parts share nothing but the factor y0 */
static clv_status offer_product(fitting *f, const expr_id *parts, uint32_t n)
{
	expr_id product = parts[0], k;
	if (!f->y[0])
		return CLV_OK;
	TRY(expr_const(f->p, f->y[0], &k));
	for (uint32_t i = 1; i < n; i++) {
		TRY(expr_make(f->p, EXPR_MUL, product, parts[i], &product));
		TRY(expr_make(f->p, EXPR_FLOORDIV, product, k, &product));
	}
	offer(f, product);
	return CLV_OK;
}

/* A formula in one symbol alone, whatever the others are: symbols that are read from data hold still at no two points. */
static clv_status offer_alone(fitting *f, int64_t *scratch)
{
	for (symbol_id s = 0; s < f->points->nsymbols && f->found == NONE; s++) {
		line l = {.s = s, .x = scratch, .y = scratch + f->points->n};
		expr_id e;
		for (uint32_t i = 0; i < f->points->n; i++)
			line_add(&l, row(f, i)[s], f->y[i]);
		TRY(fit_line(f->p, &l, &e));
		offer(f, e);
	}
	return CLV_OK;
}

static clv_status combine(fitting *f, expr_id *parts, int64_t *scratch)
{
	uint32_t varying = 0;
	for (symbol_id s = 0; s < f->points->nsymbols; s++) {
		int64_t k;
		expr_id e;
		TRY(along(f, s, scratch, &e));
		if (e == NONE)
			return CLV_OK; /* nothing explains it along this symbol */
		if (!expr_is_const(f->p, e, &k))
			parts[varying++] = e;
	}
	if (!varying) {
		expr_id k;
		TRY(expr_const(f->p, f->y[0], &k));
		offer(f, k);
		return CLV_OK;
	}
	if (varying == 1) {
		offer(f, parts[0]);
		return CLV_OK;
	}
	TRY(offer_product(f, parts, varying));
	return offer_sum(f, parts, varying);
}

clv_status fit_int(plan *p, const fit_points *points, const int64_t *y, expr_id *out)
{
	fitting f = {.p = p, .points = points, .y = y, .found = NONE};
	if (!points->n)
		return fail(CLV_E_INVALID, "nothing to fit");
	expr_id *parts = mem_alloc((points->nsymbols + 1) * sizeof *parts);
	int64_t *scratch = mem_alloc(2 * (size_t)points->n * sizeof *scratch);
	clv_status st = parts && scratch ? combine(&f, parts, scratch) : fail_nomem();
	if (st == CLV_OK && f.found == NONE && points->nsymbols > 1)
		st = offer_alone(&f, scratch);
	mem_free(parts);
	mem_free(scratch);
	if (st == CLV_OK)
		*out = f.found;
	return st;
}
