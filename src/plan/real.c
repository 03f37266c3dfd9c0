/* Floats that follow the sizes: small formulas in double over integer expressions.
 *
 * Each operation is the one that Python would do, so that a value has the same last bit: true division of integers up to
 * 2^53 is division of doubles, math.sqrt is sqrt, ** is pow. Nothing is folded or reordered: a float's text is how it is
 * computed. Where Python would raise, a real has no value. */
#include <math.h>
#include <string.h>

#include "plan/intern.h"

/* ---- making ----------------------------------------------------------------------------------------------------- */

const char *real_function(real_op op)
{
	static const char *const names[] = {[REAL_SQRT] = "sqrt", [REAL_EXP] = "exp",     [REAL_LOG] = "log",
	                                    [REAL_LOG2] = "log2", [REAL_LOG10] = "log10", [REAL_POW] = "pow"};
	return op <= REAL_POW ? names[op] : NULL;
}

unsigned real_operands(real_op op)
{
	return op >= REAL_ADD ? 2 : op >= REAL_NEG ? 1 : 0;
}

bool same_bits(double a, double b)
{
	return (a != a && b != b) || memcmp(&a, &b, sizeof a) == 0;
}

typedef struct real_key {
	const plan *p;
	real r;
} real_key;

static bool real_same(const void *ctx, uint32_t id)
{
	const real_key *k = ctx;
	const real *x = &k->p->reals.at[id];
	return x->op == k->r.op && x->a == k->r.a && x->b == k->r.b && x->e == k->r.e && same_bits(x->k, k->r.k);
}

static uint32_t real_hash(const plan *p, const real *r)
{
	uint64_t parts[] = {(uint64_t)r->op, r->a, r->b, r->e, 0};
	memcpy(&parts[4], &r->k, sizeof r->k);
	return hash_bytes(parts, sizeof parts, p->intern->seed);
}

static uint32_t terms(const plan *p, const real *r)
{
	const struct plan_intern *in = p->intern;
	uint32_t n = 1;
	n += r->a < in->real_terms.n ? in->real_terms.at[r->a] : 0;
	n += r->b < in->real_terms.n ? in->real_terms.at[r->b] : 0;
	return n + (r->e < in->expr_terms.n ? in->expr_terms.at[r->e] : 0);
}

static clv_status intern_real(plan *p, real r, real_id *out)
{
	struct plan_intern *in = p->intern;
	uint32_t hash = real_hash(p, &r), size = terms(p, &r);
	uint32_t found = table_find(&in->reals, hash, real_same, &(real_key){p, r});
	if (found != TABLE_NONE) {
		*out = found;
		return CLV_OK;
	}
	if (size > EXPR_LIMIT)
		return fail(CLV_E_UNSUPPORTED, "a formula has more than %d terms", EXPR_LIMIT);
	TRY(vec_reserve(&p->reals, 1));
	TRY(vec_reserve(&in->real_terms, 1));
	TRY(table_add(&in->reals, hash, p->reals.n));
	TRY(vec_push(&in->real_terms, size));
	*out = p->reals.n;
	return vec_push(&p->reals, r);
}

clv_status real_const(plan *p, double k, real_id *out)
{
	return intern_real(p, (real){REAL_CONST, NONE, NONE, NONE, k != k ? (double)NAN : k}, out);
}

clv_status real_int(plan *p, expr_id e, real_id *out)
{
	if (e >= p->exprs.n)
		return fail(CLV_E_INVALID, "there is no expression %u", e);
	return intern_real(p, (real){REAL_INT, NONE, NONE, e, 0.0}, out);
}

clv_status real_make(plan *p, real_op op, real_id a, real_id b, real_id *out)
{
	unsigned n = op <= REAL_POW ? real_operands(op) : 0;
	if (n == 0 || a >= p->reals.n || (n == 2 ? b >= p->reals.n : b != NONE))
		return fail(CLV_E_INVALID, "operation %d on floats has no valid operands", (int)op);
	return intern_real(p, (real){op, a, b, NONE, 0.0}, out);
}

/* ---- evaluating ------------------------------------------------------------------------------------------------- */

static bool divide(double x, double y, double *out)
{
	*out = y == 0 ? 0 : x / y;
	return y != 0;
}

bool real_apply(real_op op, double x, double y, double *out)
{
	bool finite = isfinite(x) && isfinite(y), whole = op == REAL_POW || op == REAL_EXP;
	switch (op) {
	case REAL_NEG: *out = -x; return true;
	case REAL_SQRT: *out = sqrt(x); return !(x < 0);
	case REAL_EXP: *out = exp(x); break;
	case REAL_LOG: *out = log(x); return !(x <= 0);
	case REAL_LOG2: *out = log2(x); return !(x <= 0);
	case REAL_LOG10: *out = log10(x); return !(x <= 0);
	case REAL_ADD: *out = x + y; return true;
	case REAL_SUB: *out = x - y; return true;
	case REAL_MUL: *out = x * y; return true;
	case REAL_DIV: return divide(x, y, out);
	case REAL_POW:
		*out = pow(x, y);
		if ((x == 0 && y < 0) || (x < 0 && finite && y != floor(y)))
			return false; /* Python raises, or gives a complex number */
		break;
	default: return false;
	}
	return !(whole && finite && isinf(*out));
}

static bool from_int(int64_t k, double *out)
{
	const int64_t exact = INT64_C(1) << 53;
	*out = (double)k;
	return k >= -exact && k <= exact;
}

typedef struct ints_of {
	const int64_t *syms; /* or NULL: */
	const int64_t *ints;
	const bool *ok;
} ints_of;

static bool int_value(const plan *p, const ints_of *i, expr_id e, int64_t *out)
{
	if (i->syms)
		return expr_eval(p, e, i->syms, out) == CLV_OK;
	*out = i->ints[e];
	return i->ok[e];
}

/* Operands have smaller ids, so this ends. */
static bool eval(const plan *p, real_id id, const ints_of *i, double *out)
{
	double x = 0, y = 0;
	int64_t k;
	if (id >= p->reals.n)
		return false;
	const real *r = &p->reals.at[id];
	if (r->op == REAL_CONST) {
		*out = r->k;
		return true;
	}
	if (r->op == REAL_INT)
		return int_value(p, i, r->e, &k) && from_int(k, out);
	if (!eval(p, r->a, i, &x) || (real_operands(r->op) == 2 && !eval(p, r->b, i, &y)))
		return false;
	return real_apply(r->op, x, y, out);
}

bool real_eval(const plan *p, real_id r, const int64_t *ints, const bool *ok, double *out)
{
	return eval(p, r, &(ints_of){NULL, ints, ok}, out);
}

bool real_at(const plan *p, real_id r, const int64_t *syms, double *out)
{
	return eval(p, r, &(ints_of){syms, NULL, NULL}, out);
}

/* ---- printing --------------------------------------------------------------------------------------------------- */

static int precedence(const plan *p, real_id r)
{
	if (r >= p->reals.n)
		return 3;
	real_op op = p->reals.at[r].op;
	return op == REAL_ADD || op == REAL_SUB ? 1 : op == REAL_MUL || op == REAL_DIV ? 2 : 3;
}

static void print_operand(const plan *p, real_id r, int least, strbuf *b)
{
	bool wrap = precedence(p, r) < least;
	strbuf_puts(b, wrap ? "(" : "");
	real_print(p, r, b);
	strbuf_puts(b, wrap ? ")" : "");
}

static void print_int(const plan *p, expr_id e, strbuf *b)
{
	strbuf_puts(b, "int(");
	expr_print(p, e, b);
	strbuf_putc(b, ')');
}

static void print_call(const plan *p, const real *r, strbuf *b)
{
	strbuf_puts(b, real_function(r->op));
	strbuf_putc(b, '(');
	real_print(p, r->a, b);
	if (real_operands(r->op) == 2) {
		strbuf_puts(b, ", ");
		real_print(p, r->b, b);
	}
	strbuf_putc(b, ')');
}

/* A minus before a number would read as a part of it: -(1.5). */
static void print_neg(const plan *p, real_id a, strbuf *b)
{
	bool number = a < p->reals.n && p->reals.at[a].op == REAL_CONST;
	strbuf_puts(b, number ? "-(" : "-");
	print_operand(p, a, 3, b);
	strbuf_puts(b, number ? ")" : "");
}

static void print_infix(const plan *p, const real *r, strbuf *b)
{
	static const char signs[] = {[REAL_ADD] = '+', [REAL_SUB] = '-', [REAL_MUL] = '*', [REAL_DIV] = '/'};
	int level = r->op == REAL_ADD || r->op == REAL_SUB ? 1 : 2;
	print_operand(p, r->a, level, b);
	strbuf_putc(b, signs[r->op]);
	print_operand(p, r->b, level + 1, b);
}

void real_print(const plan *p, real_id id, strbuf *b)
{
	const real *r = id < p->reals.n ? &p->reals.at[id] : NULL;
	unsigned n = r ? real_operands(r->op) : 0;
	if (!r || r->op > REAL_POW || (n > 0 && r->a >= id) || (n > 1 && r->b >= id))
		strbuf_putc(b, '?'); /* only in a plan that does not verify */
	else if (r->op == REAL_CONST)
		strbuf_double(b, r->k);
	else if (r->op == REAL_INT)
		print_int(p, r->e, b);
	else if (r->op == REAL_NEG)
		print_neg(p, r->a, b);
	else if (real_function(r->op))
		print_call(p, r, b);
	else
		print_infix(p, r, b);
}
