/* Fits a float formula to a number that was seen at several sizes.
 * A formula is a chain of operations on one integer expression E:
 *
 *     E,  1/E,  E/3,  sqrt(E),  1/sqrt(E),  E**-0.5,  log(E),  1-1/E, …         all numbers known
 *     a*g(E),  a/g(E),  g(E)/a,  a+g(E),  a-g(E),  a**E,  E**a                  one number a, found from a point
 *     E1/E2                                                                     two integers
 *
 * Without a free number the chain is undone at every point, which gives integers for fit_int; with one, E is a size
 * that the plan already has. Every candidate must give the same bits at every point. Where two do, they must also
 * agree over the ranges of the symbols: a last bit that differs at a size that was not seen would be a wrong number. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/number.h"
#include "plan/data.h"
#include "plan/fit.h"
#include "plan/intern.h"

enum { STEPS_MAX = 2, FOUND_MAX = 32, SIZES_MAX = 48, RANGE_MAX = 4096, ULPS = 4 };

/* One operation on x; the number k stands left or right of it, or nowhere. */
typedef enum side { ALONE, LEFT, RIGHT } side;

typedef struct link {
	real_op op;
	side side;
	double k;
} link;

typedef struct chain {
	uint32_t n;
	link at[STEPS_MAX];
} chain;

typedef struct real_fit {
	plan *p;
	const fit_points *points;
	const double *y;
	fit_rounding rounding;
	expr_id sizes[SIZES_MAX]; /* integers that a formula may be about */
	uint32_t nsizes;
	real_id found[FOUND_MAX];
	uint32_t nfound;
	int64_t *ints; /* scratch: one per point */
	double *in;    /* scratch: one per point */
} real_fit;

static const chain KNOWN[] = {
	{0, {{0}}},
	{1, {{REAL_DIV, LEFT, 1.0}}},
	{1, {{REAL_SQRT, ALONE, 0}}},
	{2, {{REAL_SQRT, ALONE, 0}, {REAL_DIV, LEFT, 1.0}}},
	{1, {{REAL_POW, RIGHT, -0.5}}},
	{1, {{REAL_POW, RIGHT, 0.5}}},
	{2, {{REAL_DIV, LEFT, 1.0}, {REAL_SQRT, ALONE, 0}}},
	{1, {{REAL_POW, RIGHT, -1.0}}},
	{1, {{REAL_POW, RIGHT, -2.0}}},
	{1, {{REAL_POW, RIGHT, 1.5}}},
	{1, {{REAL_POW, RIGHT, -1.5}}},
	{1, {{REAL_POW, RIGHT, 0.25}}},
	{1, {{REAL_POW, RIGHT, -0.25}}},
	{1, {{REAL_POW, RIGHT, 1.0 / 3.0}}},
	{1, {{REAL_POW, RIGHT, -1.0 / 3.0}}},
	{1, {{REAL_LOG, ALONE, 0}}},
	{1, {{REAL_LOG2, ALONE, 0}}},
	{1, {{REAL_LOG10, ALONE, 0}}},
	{2, {{REAL_LOG, ALONE, 0}, {REAL_DIV, LEFT, 1.0}}},
	{2, {{REAL_LOG2, ALONE, 0}, {REAL_DIV, LEFT, 1.0}}},
	{1, {{REAL_EXP, ALONE, 0}}},
	{2, {{REAL_DIV, LEFT, 1.0}, {REAL_SUB, LEFT, 1.0}}},
	{2, {{REAL_DIV, LEFT, 1.0}, {REAL_ADD, LEFT, 1.0}}},
	{2, {{REAL_LOG, ALONE, 0}, {REAL_ADD, LEFT, 1.0}}},
	{2, {{REAL_SQRT, ALONE, 0}, {REAL_ADD, LEFT, 1.0}}},
};

/* What the free number is put to. */
static const chain INNER[] = {
	{0, {{0}}},
	{1, {{REAL_SQRT, ALONE, 0}}},
	{1, {{REAL_DIV, LEFT, 1.0}}},
	{1, {{REAL_LOG, ALONE, 0}}},
	{1, {{REAL_LOG2, ALONE, 0}}},
	{1, {{REAL_POW, RIGHT, 0.5}}},
	{1, {{REAL_POW, RIGHT, -0.5}}},
};
static const link FREE[] = {
	{REAL_MUL, LEFT, 0}, {REAL_DIV, LEFT, 0}, {REAL_DIV, RIGHT, 0}, {REAL_ADD, LEFT, 0},
	{REAL_SUB, LEFT, 0}, {REAL_POW, LEFT, 0}, {REAL_POW, RIGHT, 0},
};

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* ---- chains in numbers -------------------------------------------------------------------------------------------- */

static bool forth_one(const link *s, double x, double *out)
{
	return s->side == LEFT ? real_apply(s->op, s->k, x, out) : real_apply(s->op, x, s->side == RIGHT ? s->k : 0, out);
}

static bool forth(const chain *c, double x, double *out)
{
	*out = x;
	for (uint32_t i = 0; i < c->n; i++)
		if (!forth_one(&c->at[i], *out, out))
			return false;
	return true;
}

/* About the x that a step makes y of; it is rounded to an integer afterwards, and checked. */
static double back_one(const link *s, double y)
{
	switch (s->op) {
	case REAL_SQRT: return y * y;
	case REAL_EXP: return log(y);
	case REAL_LOG: return exp(y);
	case REAL_LOG2: return exp2(y);
	case REAL_LOG10: return pow(10, y);
	case REAL_POW: return pow(y, 1 / s->k);
	case REAL_ADD: return y - s->k;
	case REAL_SUB: return s->k - y;
	case REAL_MUL: return y / s->k;
	default: return s->side == LEFT ? s->k / y : y * s->k;
	}
}

static double back(const chain *c, double y)
{
	for (uint32_t i = c->n; i-- > 0;)
		y = back_one(&c->at[i], y);
	return y;
}

/* About the number that makes y of x. */
static double solve_number(const link *s, double x, double y)
{
	switch (s->op) {
	case REAL_MUL: return y / x;
	case REAL_DIV: return s->side == LEFT ? y * x : x / y;
	case REAL_ADD: return y - x;
	case REAL_SUB: return y + x;
	case REAL_POW: return s->side == LEFT ? pow(y, 1 / x) : log(y) / log(x);
	default: return (double)NAN;
	}
}

static double rounded(const real_fit *f, double v)
{
	return f->rounding == FIT_SINGLE ? (double)(float)v : v;
}

/* ---- chains as formulas --------------------------------------------------------------------------------------------- */

static clv_status make_link(plan *p, const link *s, real_id x, real_id *out)
{
	real_id k = NONE;
	if (s->side != ALONE)
		TRY(real_const(p, s->k, &k));
	return s->side == LEFT ? real_make(p, s->op, k, x, out) : real_make(p, s->op, x, k, out);
}

static clv_status make_chain(plan *p, const chain *c, expr_id e, real_id *out)
{
	TRY(real_int(p, e, out));
	for (uint32_t i = 0; i < c->n; i++)
		TRY(make_link(p, &c->at[i], *out, out));
	return CLV_OK;
}

static bool explains(const real_fit *f, real_id r)
{
	for (uint32_t i = 0; i < f->points->n; i++) {
		double y;
		if (!real_at(f->p, r, fit_point(f->points, i), &y) || !same_bits(rounded(f, y), f->y[i]))
			return false;
	}
	return true;
}

static void offer_real(real_fit *f, real_id r)
{
	for (uint32_t i = 0; i < f->nfound; i++)
		if (f->found[i] == r)
			return;
	if (f->nfound < FOUND_MAX && explains(f, r))
		f->found[f->nfound++] = r;
}

/* ---- no free number: undo the chain, fit the integers --------------------------------------------------------------- */

static bool as_integer(double v, int64_t *out)
{
	if (!(fabs(v) < 9007199254740992.0))
		return false;
	*out = (int64_t)llround(v);
	return true;
}

/* Integers n with chain(n) = y at every point. */
static bool undo(real_fit *f, const chain *c)
{
	for (uint32_t i = 0; i < f->points->n; i++) {
		double y;
		if (!as_integer(back(c, f->y[i]), &f->ints[i]) || !forth(c, (double)f->ints[i], &y) ||
		    !same_bits(rounded(f, y), f->y[i]))
			return false;
	}
	return true;
}

/* A product of a size with itself. */
static bool has_square(const plan *p, expr_id e)
{
	const expr *x = &p->exprs.at[e];
	if (x->op <= EXPR_SYM)
		return false;
	for (symbol_id s = 0; x->op == EXPR_MUL && s < p->symbols.n; s++)
		if (expr_depends(p, x->a, s) && expr_depends(p, x->b, s))
			return true;
	return has_square(p, x->a) || has_square(p, x->b);
}

/* sqrt(1/(B*B)) is 1/B but for a last bit here and there; it is not written, and it would put 1/B in doubt. */
static bool far_fetched(const plan *p, const chain *c, expr_id e)
{
	bool root = false;
	for (uint32_t i = 0; i < c->n; i++)
		root |= c->at[i].op == REAL_SQRT || c->at[i].op == REAL_POW;
	return root && has_square(p, e);
}

static clv_status try_known(real_fit *f, const chain *c)
{
	expr_id e;
	real_id r;
	int64_t k;
	if (!undo(f, c))
		return CLV_OK;
	TRY(fit_int(f->p, f->points, f->ints, &e));
	if (e == NONE || expr_is_const(f->p, e, &k) || far_fetched(f->p, c, e))
		return CLV_OK;
	TRY(make_chain(f->p, c, e, &r));
	offer_real(f, r);
	return CLV_OK;
}

/* 2*B/8 is B/4, which was tried before. */
static bool in_lowest_terms(const real_fit *f, int64_t d)
{
	for (uint32_t i = 0; i < f->points->n && d > 1; i++)
		for (int64_t n = f->ints[i], t; n; n = t) {
			t = d % n;
			d = n < 0 ? -n : n;
		}
	return d == 1;
}

static clv_status try_all_known(real_fit *f)
{
	for (size_t i = 0; i < COUNT(KNOWN); i++)
		TRY(try_known(f, &KNOWN[i]));
	for (int d = 2; d <= 64; d++) {
		chain c = {1, {{REAL_DIV, RIGHT, d}}};
		if (undo(f, &c) && in_lowest_terms(f, d))
			TRY(try_known(f, &c));
	}
	return CLV_OK;
}

/* ---- sizes of the plan ---------------------------------------------------------------------------------------------- */

static bool ints_at(const real_fit *f, expr_id e, int64_t *out)
{
	for (uint32_t i = 0; i < f->points->n; i++)
		if (expr_eval(f->p, e, fit_point(f->points, i), &out[i]) != CLV_OK)
			return false;
	return true;
}

/* Enough to tell a formula with one free number from chance: at least four different values. */
static bool moves(const int64_t *v, uint32_t n)
{
	uint32_t different = 0;
	for (uint32_t i = 0; i < n; i++) {
		bool seen = false;
		for (uint32_t k = 0; k < i; k++)
			seen |= v[k] == v[i];
		different += !seen;
	}
	return different >= 4;
}

static void add_size(real_fit *f, expr_id e)
{
	for (uint32_t i = 0; i < f->nsizes; i++)
		if (f->sizes[i] == e)
			return;
	if (f->nsizes < SIZES_MAX && ints_at(f, e, f->ints) && moves(f->ints, f->points->n))
		f->sizes[f->nsizes++] = e;
}

static clv_status add_sum(real_fit *f, expr_id e, int64_t k)
{
	expr_id c, sum;
	TRY(expr_const(f->p, k, &c));
	TRY(expr_make(f->p, EXPR_ADD, e, c, &sum));
	add_size(f, sum);
	return CLV_OK;
}

static clv_status add_symbol_sizes(real_fit *f)
{
	for (symbol_id s = 0; s < f->points->nsymbols; s++) {
		expr_id e, other, product;
		TRY(expr_sym(f->p, s, &e));
		add_size(f, e);
		TRY(add_sum(f, e, -1));
		TRY(add_sum(f, e, 1));
		for (symbol_id t = 0; t <= s; t++) {
			TRY(expr_sym(f->p, t, &other));
			TRY(expr_make(f->p, EXPR_MUL, other, e, &product));
			add_size(f, product);
		}
	}
	return CLV_OK;
}

/* How many elements the inputs have, and every size of them. */
static clv_status add_inputs(real_fit *f)
{
	for (uint32_t i = 0; i < f->p->inputs.n; i++) {
		const value x = f->p->values.at[f->p->inputs.at[i]];
		expr_id n;
		TRY(expr_const(f->p, 1, &n));
		for (uint32_t d = 0; d < x.ndim; d++) {
			expr_id e = f->p->dims.at[x.shape + d];
			add_size(f, e);
			TRY(expr_make(f->p, EXPR_MUL, n, e, &n));
		}
		add_size(f, n);
	}
	return CLV_OK;
}

/* ---- one free number ------------------------------------------------------------------------------------------------ */

static clv_status try_number(real_fit *f, expr_id e, const chain *inner, link s)
{
	real_id r;
	for (uint32_t i = 0; i < f->points->n; i++) {
		double y;
		if (!forth_one(&s, f->in[i], &y) || !same_bits(rounded(f, y), f->y[i]))
			return CLV_OK;
	}
	TRY(make_chain(f->p, inner, e, &r));
	TRY(make_link(f->p, &s, r, &r));
	offer_real(f, r);
	return CLV_OK;
}

/* Numbers near `a`: as people write them, with few digits; factors and divisors, which may be computed, also by their
   neighbours. */
static clv_status try_near(real_fit *f, expr_id e, const chain *inner, link s, double a)
{
	char text[NUMBER_TEXT];
	if (!isfinite(a) || a == 0)
		return CLV_OK;
	for (int digits = 1; digits <= (s.op == REAL_POW ? 6 : 16); digits++) {
		snprintf(text, sizeof text, "%.*e", digits - 1, a);
		if (number_parse(text, &s.k))
			TRY(try_number(f, e, inner, s));
	}
	if (s.op != REAL_MUL && s.op != REAL_DIV)
		return CLV_OK;
	s.k = a;
	for (int i = 0; i < ULPS; i++)
		s.k = nextafter(s.k, -(double)INFINITY);
	for (int i = 0; i < 2 * ULPS + 1; i++, s.k = nextafter(s.k, (double)INFINITY))
		TRY(try_number(f, e, inner, s));
	return CLV_OK;
}

static clv_status try_free(real_fit *f, expr_id e, const chain *inner)
{
	for (uint32_t i = 0; i < f->points->n; i++)
		if (!forth(inner, (double)f->ints[i], &f->in[i]))
			return CLV_OK;
	bool power = inner->n == 0 && !has_square(f->p, e); /* of a size itself, else it is far-fetched too */
	for (size_t i = 0; i < COUNT(FREE); i++) {
		bool twice = FREE[i].op == REAL_DIV && FREE[i].side == LEFT && inner->n && inner->at[0].op == REAL_DIV;
		if ((FREE[i].op == REAL_POW && !power) || twice)
			continue;
		uint32_t k = 0; /* a point whose y can be divided by */
		while (k + 1 < f->points->n && (f->in[k] == 0 || f->in[k] == 1 || f->y[k] == 0))
			k++;
		TRY(try_near(f, e, inner, FREE[i], solve_number(&FREE[i], f->in[k], f->y[k])));
	}
	return CLV_OK;
}

/* E1/E2 for a size E2: y*E2 are integers that follow the sizes. */
static clv_status try_quotient(real_fit *f, expr_id below)
{
	expr_id above;
	real_id x, y, r;
	for (uint32_t i = 0; i < f->points->n; i++) {
		int64_t d = f->ints[i];
		double q;
		if (!d || !as_integer(f->y[i] * (double)d, &f->ints[i]) ||
		    !real_apply(REAL_DIV, (double)f->ints[i], (double)d, &q) || !same_bits(rounded(f, q), f->y[i]))
			return CLV_OK;
	}
	TRY(fit_int(f->p, f->points, f->ints, &above));
	if (above == NONE)
		return CLV_OK;
	TRY(real_int(f->p, above, &x));
	TRY(real_int(f->p, below, &y));
	TRY(real_make(f->p, REAL_DIV, x, y, &r));
	offer_real(f, r);
	return CLV_OK;
}

static clv_status try_sizes(real_fit *f)
{
	TRY(add_symbol_sizes(f));
	TRY(add_inputs(f));
	for (uint32_t i = 0; i < f->nsizes; i++) {
		(void)ints_at(f, f->sizes[i], f->ints);
		for (size_t k = 0; k < COUNT(INNER); k++)
			if (!far_fetched(f->p, &INNER[k], f->sizes[i]))
				TRY(try_free(f, f->sizes[i], &INNER[k]));
		TRY(try_quotient(f, f->sizes[i]));
	}
	return CLV_OK;
}

/* ---- the ranges ------------------------------------------------------------------------------------------------------ */

static bool agree_at(const real_fit *f, real_id a, real_id b, const int64_t *at)
{
	double x = 0, y = 0;
	bool dx = real_at(f->p, a, at, &x), dy = real_at(f->p, b, at, &y);
	return dx == dy && (!dx || same_bits(rounded(f, x), rounded(f, y)));
}

/* Number i of the sizes that are looked at: all of the range, or as many as there is time for, the ends included. */
static int64_t nth_size(const symbol *s, uint32_t i, uint32_t n)
{
	uint64_t span = (uint64_t)s->hi - (uint64_t)s->lo;
	if (span < n)
		return s->lo + (int64_t)i;
	return i < n / 2 ? s->lo + (int64_t)i : s->lo + (int64_t)((double)span * ((double)i / (double)(n - 1)));
}

static uint32_t sizes_looked_at(const symbol *s, uint32_t most)
{
	uint64_t span = (uint64_t)s->hi - (uint64_t)s->lo;
	return span < most ? (uint32_t)span + 1 : most;
}

/* All combinations of sizes, symbol after symbol. */
static bool agree_from(const real_fit *f, real_id a, real_id b, symbol_id s, uint32_t most, int64_t *at)
{
	if (s == f->points->nsymbols)
		return agree_at(f, a, b, at);
	uint32_t n = sizes_looked_at(&f->p->symbols.at[s], most);
	for (uint32_t i = 0; i < n; i++) {
		at[s] = nth_size(&f->p->symbols.at[s], i, n);
		if (!agree_from(f, a, b, s + 1, most, at))
			return false;
	}
	return true;
}

/* The first formula that was found, if all others are the same in every size; else NONE. */
static void decide(const real_fit *f, fit_doubt *doubt, real_id *out)
{
	uint32_t nsymbols = f->points->nsymbols, most = RANGE_MAX;
	if (nsymbols > 1)
		most = (uint32_t)pow(RANGE_MAX, 1.0 / nsymbols);
	*out = f->nfound ? f->found[0] : NONE;
	for (uint32_t i = 1; i < f->nfound && !doubt->is; i++)
		doubt->is = !agree_from(f, f->found[0], f->found[i], 0, most, doubt->at);
	if (doubt->is)
		*out = NONE;
}

static bool all_same_bits(const real_fit *f)
{
	for (uint32_t i = 1; i < f->points->n; i++)
		if (!same_bits(f->y[i], f->y[0]))
			return false;
	return true;
}

static clv_status fit_moving(real_fit *f, fit_doubt *doubt, real_id *out)
{
	for (uint32_t i = 0; i < f->points->n; i++)
		if (!isfinite(f->y[i]))
			return CLV_OK;
	TRY(try_all_known(f));
	TRY(try_sizes(f));
	decide(f, doubt, out);
	return CLV_OK;
}

clv_status fit_real(plan *p, const fit_points *points, const double *y, fit_rounding rounding, fit_doubt *doubt,
                    real_id *out)
{
	real_fit f = {.p = p, .points = points, .y = y, .rounding = rounding};
	*out = NONE;
	doubt->is = false;
	if (!points->n || points->nsymbols > p->symbols.n)
		return fail(CLV_E_INVALID, "nothing to fit");
	if (all_same_bits(&f))
		return real_const(p, y[0], out);
	f.ints = mem_alloc(points->n * sizeof *f.ints);
	f.in = mem_alloc(points->n * sizeof *f.in);
	clv_status st = f.ints && f.in ? fit_moving(&f, doubt, out) : fail_nomem();
	mem_free(f.ints);
	mem_free(f.in);
	return st;
}
