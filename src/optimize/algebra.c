/* Functions of one number in a normal form: see algebra.h. */
#include "optimize/algebra.h"

#include <math.h>
#include <string.h>

/* Of one spelling: numbers that differ by what computing them in doubles costs. More would not do: the difference of two
   that are nearly the same, times a large number, is a function of its own. */
static const double EXACT = 1e-12;
/* Of two spellings: a number may have been rounded in one. How far off the function is then, its values tell. */
static const double ROUNDED = 1e-5;

static bool is_about(double a, double b, double tolerance)
{
	return fabs(a - b) <= tolerance * fmax(fabs(a), fabs(b));
}

/* ---- sums ---------------------------------------------------------------------------------------------------------- */

static bool same_kind(const term *a, const term *b, double tolerance)
{
	bool same = a->x == b->x && a->erf == b->erf && a->log == b->log;
	for (uint32_t d = 0; same && d < MOST_DEGREE; d++)
		same = is_about(a->exponent[d], b->exponent[d], tolerance);
	return same;
}

/* A number so small or large that its last digits are lost is not added: it may be that of a term which is large where it
   counts. */
static bool sum_add(sum *s, const term *t)
{
	uint32_t i = 0;
	if (!(fabs(t->factor) > 1e-250 && fabs(t->factor) < 1e250))
		return false;
	while (i < s->n && !same_kind(&s->at[i], t, EXACT))
		i++;
	if (i == MOST_TERMS)
		return false;
	if (i == s->n) {
		s->at[s->n++] = *t;
		return true;
	}
	double both = s->at[i].factor + t->factor;
	if (fabs(both) <= EXACT * fabs(t->factor))
		s->at[i] = s->at[--s->n];
	else
		s->at[i].factor = both;
	return true;
}

static double add_exponents(double a, double b)
{
	return fabs(a + b) <= EXACT * fabs(a) ? 0 : a + b;
}

static term times(const term *a, const term *b, double factor)
{
	term t = {a->factor * b->factor * factor, a->x + b->x, a->erf + b->erf, a->log + b->log, {0}};
	for (uint32_t d = 0; d < MOST_DEGREE; d++)
		t.exponent[d] = add_exponents(a->exponent[d], b->exponent[d]);
	return t;
}

/* Adds factor * a * b. */
static bool sum_add_product(sum *s, const sum *a, const sum *b, double factor)
{
	for (uint32_t i = 0; i < a->n && factor != 0; i++)
		for (uint32_t k = 0; k < b->n; k++) {
			term t = times(&a->at[i], &b->at[k], factor);
			if (!sum_add(s, &t))
				return false;
		}
	return true;
}

/* Term by term. */
static bool sum_same(const sum *a, const sum *b, double tolerance)
{
	uint32_t taken = 0; /* bits of terms of b */
	if (a->n != b->n)
		return false;
	for (uint32_t i = 0; i < a->n; i++) {
		uint32_t k = 0;
		while (k < b->n && (taken >> k & 1 || !same_kind(&a->at[i], &b->at[k], tolerance)))
			k++;
		if (k == b->n || !is_about(a->at[i].factor, b->at[k].factor, tolerance))
			return false;
		taken |= 1u << k;
	}
	return true;
}

static sum sum_number(double k)
{
	sum s = {.n = k != 0};
	s.at[0].factor = k;
	return s;
}

/* Above 0 (below, where sign is -1) whatever x is: no term is on the other side, and one is never 0. */
static bool sum_is_above(const sum *s, double sign)
{
	bool never_zero = false;
	for (uint32_t i = 0; i < s->n; i++) {
		const term *t = &s->at[i];
		if (t->factor * sign <= 0 || t->x % 2 || t->erf || t->log)
			return false;
		never_zero |= !t->x;
	}
	return never_zero;
}

/* A number, if it is one. */
static bool sum_is_number(const sum *s, double *k)
{
	static const term one;
	*k = s->n ? s->at[0].factor : 0;
	return !s->n || (s->n == 1 && same_kind(&s->at[0], &one, 0));
}

/* ---- forms --------------------------------------------------------------------------------------------------------- */

form form_number(double k)
{
	return (form){sum_number(k), sum_number(1)};
}

form form_x(void)
{
	form f = form_number(1);
	f.top.at[0].x = 1;
	return f;
}

bool form_add(const form *a, const form *b, double factor, form *out)
{
	static const sum one = {.at = {{.factor = 1}}, .n = 1};
	form f = {{.n = 0}, {.n = 0}};
	bool shared = sum_same(&a->bottom, &b->bottom, 0);
	if (shared)
		f.bottom = a->bottom;
	bool ok = sum_add_product(&f.top, &a->top, shared ? &one : &b->bottom, 1) &&
	          sum_add_product(&f.top, &b->top, shared ? &one : &a->bottom, factor) &&
	          (shared || sum_add_product(&f.bottom, &a->bottom, &b->bottom, 1));
	*out = f;
	return ok;
}

bool form_mul(const form *a, const form *b, form *out)
{
	form f = {{.n = 0}, {.n = 0}};
	bool ok = sum_add_product(&f.top, &a->top, &b->top, 1) && sum_add_product(&f.bottom, &a->bottom, &b->bottom, 1);
	*out = f;
	return ok;
}

bool form_div(const form *a, const form *b, form *out)
{
	double sign = b->top.n && b->top.at[0].factor < 0 ? -1 : 1;
	form turned = {{.n = 0}, {.n = 0}};
	sum unit = sum_number(sign);
	return sum_is_above(&b->top, sign) && sum_add_product(&turned.top, &b->bottom, &unit, 1) &&
	       sum_add_product(&turned.bottom, &b->top, &unit, 1) && form_mul(a, &turned, out);
}

bool form_pow(const form *a, double power, form *out)
{
	form f = form_number(1);
	if (power != floor(power) || power < 0 || power > 8)
		return false;
	for (int i = 0; i < (int)power; i++)
		if (!form_mul(&f, a, &f))
			return false;
	*out = f;
	return true;
}

/* ---- functions ----------------------------------------------------------------------------------------------------- */

/* e to a term of a polynomial, or to a multiple of the logarithm. */
static bool multiply_exp(const piece *p, const term *t, double over, form *f)
{
	static const double none[MOST_DEGREE];
	double factor = t->factor / over;
	form one = form_number(1);
	if (memcmp(t->exponent, none, sizeof none) != 0 || t->erf || t->x < 0 || t->x > MOST_DEGREE || t->log > 1)
		return false;
	if (t->log) {
		form inside = {p->inside, sum_number(1)}, power;
		bool whole = !t->x && form_pow(&inside, fabs(factor), &power);
		return whole && (factor < 0 ? form_div(f, &power, f) : form_mul(f, &power, f));
	}
	if (t->x)
		one.top.at[0].exponent[t->x - 1] = factor;
	else
		one.top.at[0].factor = exp(factor);
	return form_mul(f, &one, f);
}

bool form_exp(const piece *p, const form *a, form *out)
{
	form f = form_number(1);
	double over;
	if (!sum_is_number(&a->bottom, &over))
		return false;
	for (uint32_t i = 0; i < a->top.n; i++)
		if (!multiply_exp(p, &a->top.at[i], over, &f))
			return false;
	*out = f;
	return true;
}

/* Adds factor * log(s). All is divided by the term with the smallest exponent, so that log(1 + e^-x) is log(1 + e^x) - x. */
static bool add_log(piece *p, const sum *s, double factor, sum *out)
{
	term least = s->at[0];
	sum inside = {.n = 0};
	for (uint32_t i = 0; i < s->n; i++) {
		if (s->at[i].x)
			return false;
		if (s->at[i].exponent[0] < least.exponent[0])
			least = s->at[i];
	}
	term under = {.factor = 1 / least.factor}, number = {.factor = factor * log(least.factor)};
	if (least.factor != 1 && !sum_add(out, &number))
		return false;
	for (int d = 0; d < MOST_DEGREE; d++) {
		term power = {.factor = factor * least.exponent[d], .x = d + 1};
		under.exponent[d] = -least.exponent[d];
		if (least.exponent[d] != 0 && !sum_add(out, &power))
			return false;
	}
	for (uint32_t i = 0; i < s->n; i++) {
		term t = times(&s->at[i], &under, 1);
		if (!sum_add(&inside, &t))
			return false;
	}
	if (inside.n == 1) /* the log of 1 */
		return true;
	if (p->has_inside && !sum_same(&p->inside, &inside, EXACT))
		return false;
	p->inside = inside;
	p->has_inside = true;
	return sum_add(out, &(term){.factor = factor, .log = 1});
}

bool form_log(piece *p, const form *a, form *out)
{
	form f = form_number(0);
	bool ok = sum_is_above(&a->top, 1) && add_log(p, &a->top, 1, &f.top) && add_log(p, &a->bottom, -1, &f.top);
	*out = f;
	return ok;
}

/* a x + b */
static bool read_line(const form *f, double *a, double *b)
{
	double over;
	*a = *b = 0;
	if (!sum_is_number(&f->bottom, &over))
		return false;
	for (uint32_t i = 0; i < f->top.n; i++) {
		const term *t = &f->top.at[i];
		term plain = {.x = t->x};
		if (!same_kind(t, &plain, 0) || t->x < 0 || t->x > 1)
			return false;
		*(t->x ? a : b) += t->factor / over;
	}
	return true;
}

bool form_erf(piece *p, const form *f, form *out)
{
	double a, b;
	if (!read_line(f, &a, &b) || b != 0 || (!isnan(p->root) && !is_about(p->root, fabs(a), EXACT)))
		return false;
	p->root = fabs(a);
	*out = form_number(a < 0 ? -1 : 1);
	out->top.at[0].erf = 1;
	return true;
}

bool form_sigmoid(const piece *p, const form *a, form *out)
{
	form e, one = form_number(1), under;
	return form_exp(p, a, &e) && form_add(&e, &one, 1, &under) && form_div(&e, &under, out);
}

/* Where in the middle of the piece the line a x + b comes to the bound; NAN: nowhere. */
static double crossing(const piece *p, double a, double b, double bound)
{
	double at = (bound - b) / a, little = 1e-12 * fmax(1, fabs(at));
	return isfinite(at) && at - little > p->low && at + little < p->high ? at : NAN;
}

static double middle(const piece *p)
{
	if (isinf(p->low))
		return isinf(p->high) ? 0 : p->high - 1;
	return isinf(p->high) ? p->low + 1 : p->low + (p->high - p->low) / 2;
}

bool form_clamp(piece *p, const form *f, double low, double high, form *out)
{
	double a, b;
	if (!read_line(f, &a, &b) || !(low <= high))
		return false;
	if (isnan(p->split))
		p->split = crossing(p, a, b, low);
	if (isnan(p->split))
		p->split = crossing(p, a, b, high);
	double here = a * middle(p) + b;
	*out = here < low ? form_number(low) : here > high ? form_number(high) : *f;
	return true;
}

bool form_same(const piece *p, const form *a, const piece *q, const form *b)
{
	sum left = {.n = 0}, right = {.n = 0};
	if (!isnan(p->root) && !isnan(q->root) && !is_about(p->root, q->root, ROUNDED))
		return false;
	if (p->has_inside && q->has_inside && !sum_same(&p->inside, &q->inside, ROUNDED))
		return false;
	return sum_add_product(&left, &a->top, &b->bottom, 1) && sum_add_product(&right, &b->top, &a->bottom, 1) &&
	       sum_same(&left, &right, ROUNDED);
}
