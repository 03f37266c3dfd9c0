/* Fits an integer formula to a number that was seen at several sizes.
 * One symbol at a time: along each symbol the points that differ in it alone must follow
 *
 *     constant,  a*B+b,  a*((B+b)//d)+c,  a*((B+b)%d)+c,  a*B*B+b*B+c,  min or max of a*B+b and c
 *
 * Formulas in several symbols are sums or products of such, or sums of products (H*W+1); every candidate is checked at
 * every point before it counts. Nested divisions are one: (x//a)//b is x//(a*b), also with offsets in between. */
#include "plan/fit.h"

#include <string.h>

enum { DIVISOR_MAX = 64 };

/* The points along one symbol: x rising, all other symbols as at the base point. */
typedef struct line {
	symbol_id s;
	uint32_t n;
	int64_t *x, *y;
	int64_t *t; /* scratch: what an inner formula gives at each point */
} line;

typedef struct fitting {
	plan *p;
	const fit_points *points;
	const int64_t *y;
	uint32_t base;     /* the point that lines go through */
	symbol_id *moving; /* the symbols that the number follows */
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

static bool is_level(const line *l)
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

static int64_t gcd(int64_t a, int64_t b)
{
	while (b) {
		int64_t rest = a % b;
		a = b;
		b = rest;
	}
	return a < 0 ? -a : a;
}

/* a*((x+s) op d)+b with op // or % */
static clv_status fit_quotient(plan *p, const line *l, expr_id x, expr_op op, int64_t d, int64_t s, expr_id *out)
{
	int64_t a, b;
	for (uint32_t i = 0; i < l->n; i++) {
		int64_t q = floor_div(l->x[i] + s, d);
		l->t[i] = op == EXPR_FLOORDIV ? q : l->x[i] + s - q * d;
	}
	/* A quotient that took fewer than three values could be many things. */
	if ((op == EXPR_FLOORDIV && !three_values(l->t, l->n)) || !affine_in(l, l->t, &a, &b))
		return CLV_OK;
	expr_id e;
	TRY(make_affine(p, x, 1, s, &e));
	TRY(make_with_const(p, op, e, d, &e));
	return make_affine(p, e, a, b, out);
}

/* a*((x+s)//g)+b where all x are g apart: a line in steps, of a model that takes multiples alone */
static clv_status fit_steps(plan *p, const line *l, expr_id x, expr_id *out)
{
	int64_t g = 0;
	for (uint32_t i = 1; i < l->n; i++)
		g = gcd(g, l->x[i] - l->x[0]); /* sizes: no overflow */
	if (l->n < 4 || g < 2 || l->x[0] < 0)
		return CLV_OK;
	return fit_quotient(p, l, x, EXPR_FLOORDIV, g, (g - l->x[0] % g) % g, out);
}

/* The same for one d, 0 <= s < d */
static clv_status fit_divisor(plan *p, const line *l, expr_id x, expr_op op, int64_t d, expr_id *out)
{
	for (int64_t s = 0; s < d && *out == NONE; s++)
		TRY(fit_quotient(p, l, x, op, d, s, out));
	return CLV_OK;
}

static clv_status fit_division(plan *p, const line *l, expr_id x, expr_op op, expr_id *out)
{
	if (l->n < 5)
		return CLV_OK;
	/* Strides of convolutions multiply up to powers of two: where few points leave a choice, one of them it is. */
	for (int64_t d = 2; d <= DIVISOR_MAX && *out == NONE; d *= 2)
		TRY(fit_divisor(p, l, x, op, d, out));
	for (int64_t d = 3; d <= DIVISOR_MAX && *out == NONE; d++)
		if (d & (d - 1))
			TRY(fit_divisor(p, l, x, op, d, out));
	return CLV_OK;
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
	if (is_level(l))
		return expr_const(p, l->y[0], out);
	TRY(expr_sym(p, l->s, &x));
	TRY(fit_affine(p, l, x, out));
	if (*out == NONE)
		TRY(fit_steps(p, l, x, out));
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

/* Point i differs from the base point in symbol s alone, or not at all. */
static bool on_line(const fitting *f, uint32_t i, symbol_id s)
{
	for (uint32_t k = 0; k < f->points->nsymbols; k++)
		if (k != s && fit_point(f->points, i)[k] != fit_point(f->points, f->base)[k])
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

/* The points on the line of symbol s; with `all`, every point, seen along s. */
static line line_of(const fitting *f, symbol_id s, bool all, int64_t *scratch)
{
	line l = {.s = s, .x = scratch, .y = scratch + f->points->n, .t = scratch + 2 * (size_t)f->points->n};
	for (uint32_t i = 0; i < f->points->n; i++)
		if (all || on_line(f, i, s))
			line_add(&l, fit_point(f->points, i)[s], f->y[i]);
	return l;
}

/* ---- candidates against all points --------------------------------------------------------------------------------- */

static bool explains(const fitting *f, expr_id e)
{
	for (uint32_t i = 0; i < f->points->n; i++) {
		int64_t y;
		if (expr_eval(f->p, e, fit_point(f->points, i), &y) != CLV_OK || y != f->y[i])
			return false;
	}
	return true;
}

static void offer_int(fitting *f, expr_id e)
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
	if (__builtin_mul_overflow((int64_t)(n - 1), f->y[f->base], &extra))
		return CLV_OK;
	TRY(expr_const(f->p, extra, &k));
	TRY(expr_make(f->p, EXPR_SUB, sum, k, &sum));
	offer_int(f, sum);
	return CLV_OK;
}

/* f(B, S) = g(B) * h(S) // y0, exact when the parts share nothing but the factor y0 */
static clv_status offer_product(fitting *f, const expr_id *parts, uint32_t n)
{
	expr_id product = parts[0], k;
	if (!f->y[f->base])
		return CLV_OK;
	TRY(expr_const(f->p, f->y[f->base], &k));
	for (uint32_t i = 1; i < n; i++) {
		TRY(expr_make(f->p, EXPR_MUL, product, parts[i], &product));
		TRY(expr_make(f->p, EXPR_FLOORDIV, product, k, &product));
	}
	offer_int(f, product);
	return CLV_OK;
}

/* (part - y0) // g: how far the part of one symbol is from the base point, in its smallest steps; g in *step */
static clv_status distance_from_base(const fitting *f, expr_id part, symbol_id s, int64_t *step, expr_id *out)
{
	int64_t g = 0, y;
	for (uint32_t i = 0; i < f->points->n; i++) {
		if (!on_line(f, i, s))
			continue;
		if (__builtin_sub_overflow(f->y[i], f->y[f->base], &y) || y == INT64_MIN)
			return CLV_OK;
		g = gcd(g, y);
	}
	*step = g;
	expr_id k;
	TRY(expr_const(f->p, f->y[f->base], &k));
	TRY(expr_make(f->p, EXPR_SUB, part, k, out));
	return make_with_const(f->p, EXPR_FLOORDIV, *out, g, out);
}

/* Point i moves exactly these of the moving symbols. */
static bool moves(const fitting *f, uint32_t i, uint32_t n, uint32_t mask)
{
	for (uint32_t k = 0; k < n; k++)
		if ((fit_point(f->points, i)[f->moving[k]] != fit_point(f->points, f->base)[f->moving[k]]) != (mask >> k & 1))
			return false;
	return true;
}

/* Points off the lines: each of the free numbers of products takes one, and more must be left to agree. */
static bool enough_off_lines(const fitting *f, uint32_t n)
{
	uint32_t off = 0, products = (1u << n) - 1 - n;
	for (uint32_t i = 0; i < f->points->n; i++) {
		bool on = false;
		for (uint32_t k = 0; k < n; k++)
			on = on || on_line(f, i, f->moving[k]);
		off += !on;
	}
	return off > products;
}

/* Adds c * product to *sum, where c is what the first point that moves these symbols alone asks for. */
static clv_status add_product(const fitting *f, const expr_id *v, uint32_t n, uint32_t mask, expr_id *sum)
{
	expr_id product, c;
	TRY(expr_const(f->p, 1, &product));
	for (uint32_t k = 0; k < n; k++)
		if (mask >> k & 1)
			TRY(expr_make(f->p, EXPR_MUL, product, v[k], &product));
	for (uint32_t i = 0; i < f->points->n; i++) {
		int64_t here, so_far, rest;
		if (!moves(f, i, n, mask) || expr_eval(f->p, product, fit_point(f->points, i), &here) != CLV_OK || !here ||
		    expr_eval(f->p, *sum, fit_point(f->points, i), &so_far) != CLV_OK ||
		    __builtin_sub_overflow(f->y[i], so_far, &rest))
			continue;
		if ((here == -1 && rest == INT64_MIN) || rest % here)
			break;
		TRY(expr_const(f->p, rest / here, &c));
		TRY(expr_make(f->p, EXPR_MUL, c, product, &product));
		return expr_make(f->p, EXPR_ADD, *sum, product, sum);
	}
	*sum = NONE;
	return CLV_OK;
}

/* f(H, W) = y0 + a*u + b*v + c*u*v, with u and v the distances along each symbol: H//16 * W//16 + 1 */
static clv_status offer_products(fitting *f, const expr_id *parts, uint32_t n)
{
	enum { MOST = 3 };
	expr_id v[MOST], sum;
	if (n > MOST || f->found != NONE || !enough_off_lines(f, n))
		return CLV_OK;
	TRY(expr_const(f->p, f->y[f->base], &sum));
	for (uint32_t k = 0; k < n; k++) {
		int64_t step = 0;
		expr_id c, term;
		TRY(distance_from_base(f, parts[k], f->moving[k], &step, &v[k]));
		if (!step)
			return CLV_OK;
		TRY(expr_const(f->p, step, &c));
		TRY(expr_make(f->p, EXPR_MUL, c, v[k], &term));
		TRY(expr_make(f->p, EXPR_ADD, sum, term, &sum));
	}
	for (uint32_t bits = 2; bits <= n; bits++)
		for (uint32_t mask = 0; mask < 1u << n && sum != NONE; mask++)
			if ((uint32_t)__builtin_popcount(mask) == bits)
				TRY(add_product(f, v, n, mask, &sum));
	offer_int(f, sum);
	return CLV_OK;
}

/* Along which symbols the number changes; how many there are. */
static uint32_t find_moving(fitting *f, int64_t *scratch)
{
	uint32_t n = 0;
	for (symbol_id s = 0; s < f->points->nsymbols; s++) {
		line l = line_of(f, s, false, scratch);
		if (!is_level(&l))
			f->moving[n++] = s;
	}
	return n;
}

/* The number is one and the same at points with the same size of symbol s, and there are points that show it. */
static bool follows_alone(const fitting *f, symbol_id s)
{
	for (symbol_id other = 0; other < f->points->nsymbols; other++) {
		bool varies = false, shown = other == s;
		for (uint32_t i = 0; i < f->points->n; i++)
			for (uint32_t k = 0; k < i; k++) {
				bool same = fit_point(f->points, i)[s] == fit_point(f->points, k)[s],
					 moved = fit_point(f->points, i)[other] != fit_point(f->points, k)[other];
				if (same && f->y[i] != f->y[k])
					return false;
				varies = varies || moved;
				shown = shown || (same && moved);
			}
		if (varies && !shown)
			return false;
	}
	return true;
}

/* A number that follows one symbol alone is seen at that symbol's size in every point. */
static clv_status offer_single(fitting *f, int64_t *scratch)
{
	for (symbol_id s = 0; s < f->points->nsymbols && f->found == NONE; s++) {
		expr_id e;
		if (!follows_alone(f, s))
			continue;
		line l = line_of(f, s, true, scratch);
		TRY(fit_line(f->p, &l, &e));
		offer_int(f, e);
	}
	return CLV_OK;
}

static clv_status offer_combined(fitting *f, expr_id *parts, int64_t *scratch)
{
	uint32_t n = find_moving(f, scratch);
	for (uint32_t k = 0; k < n; k++) {
		line l = line_of(f, f->moving[k], false, scratch);
		TRY(fit_line(f->p, &l, &parts[k]));
		if (parts[k] == NONE)
			return CLV_OK; /* nothing explains it along this symbol */
	}
	if (n < 2)
		return CLV_OK;
	TRY(offer_product(f, parts, n));
	TRY(offer_sum(f, parts, n));
	return offer_products(f, parts, n);
}

/* The first of the points with the most others on its lines. */
static uint32_t find_base(fitting *f)
{
	uint32_t best = 0, most = 0;
	for (f->base = 0; f->base < f->points->n; f->base++) {
		uint32_t least = UINT32_MAX;
		for (symbol_id s = 0; s < f->points->nsymbols; s++) {
			uint32_t n = 0;
			for (uint32_t i = 0; i < f->points->n; i++)
				n += on_line(f, i, s);
			least = n < least ? n : least;
		}
		if (f->points->nsymbols && least > most) {
			most = least;
			best = f->base;
		}
	}
	return best;
}

static clv_status fit_all(fitting *f, expr_id *parts, int64_t *scratch)
{
	bool constant = true;
	for (uint32_t i = 1; i < f->points->n; i++)
		constant = constant && f->y[i] == f->y[0];
	if (constant)
		return expr_const(f->p, f->y[0], &f->found);
	TRY(offer_single(f, scratch));
	if (f->found != NONE)
		return CLV_OK;
	f->base = find_base(f);
	return offer_combined(f, parts, scratch);
}

/* A formula in one symbol that is read from data: such symbols hold still at no two points, so nothing shows it alone. */
static clv_status offer_data(fitting *f, int64_t *scratch)
{
	for (symbol_id s = 0; s < f->points->nsymbols && f->found == NONE; s++) {
		line l = line_of(f, s, true, scratch);
		expr_id e;
		if (s >= f->p->symbols.n || !f->p->symbols.at[s].data)
			continue;
		TRY(fit_line(f->p, &l, &e));
		offer_int(f, e);
	}
	return CLV_OK;
}

clv_status fit_int(plan *p, const fit_points *points, const int64_t *y, expr_id *out)
{
	fitting f = {.p = p, .points = points, .y = y, .found = NONE};
	if (!points->n)
		return fail(CLV_E_INVALID, "nothing to fit");
	expr_id *parts = mem_alloc((points->nsymbols + 1) * sizeof *parts);
	f.moving = mem_alloc((points->nsymbols + 1) * sizeof *f.moving);
	int64_t *scratch = mem_alloc(3 * (size_t)points->n * sizeof *scratch);
	clv_status st = parts && scratch && f.moving ? fit_all(&f, parts, scratch) : fail_nomem();
	if (st == CLV_OK && f.found == NONE && points->nsymbols > 1)
		st = offer_data(&f, scratch);
	mem_free(parts);
	mem_free(f.moving);
	mem_free(scratch);
	if (st == CLV_OK)
		*out = f.found;
	return st;
}
