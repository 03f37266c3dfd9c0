/* What elementwise operators are made of: types as torch promotes them, and steps of a chain. */
#include "native/rules.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "native/elementwise.h"

/* ---- types -------------------------------------------------------------------------------------------------------------------- */

static bool is_float(number_type t)
{
	return t == NUM_F32 || t == NUM_F64;
}

static number_type promote(number_type a, number_type b)
{
	if (a == b || b == NUM_BOOL)
		return a;
	if (a == NUM_BOOL)
		return b;
	if (is_float(a) || is_float(b))
		return a == NUM_F64 || b == NUM_F64 ? NUM_F64 : NUM_F32;
	if ((a == NUM_U8 && b == NUM_I8) || (a == NUM_I8 && b == NUM_U8))
		return NUM_I16;
	if (a == NUM_U8 || b == NUM_U8)
		return a == NUM_U8 ? b : a;
	return number_bytes(a) > number_bytes(b) ? a : b;
}

/* Tensors with dimensions, without, and numbers; NUM_COUNT: there is none. */
static number_type join(number_type higher, number_type lower)
{
	if (higher == NUM_COUNT || lower == NUM_COUNT)
		return higher == NUM_COUNT ? lower : higher;
	if (is_float(higher))
		return higher;
	return higher == NUM_BOOL || is_float(lower) ? promote(higher, lower) : higher;
}

static number_type common_type(const term *x, unsigned n)
{
	number_type of[3] = {NUM_COUNT, NUM_COUNT, NUM_COUNT};
	for (unsigned i = 0; i < n; i++) {
		if (x[i].kind != TERM_TENSOR && x[i].kind != TERM_NUMBER)
			continue;
		number_type type = (number_type)x[i].type;
		number_type *t = &of[x[i].kind == TERM_NUMBER ? 2 : x[i].flat ? 0 : 1];
		if (x[i].kind == TERM_NUMBER && type == NUM_F64)
			type = NUM_F32; /* what torch makes of Python's floats */
		*t = *t == NUM_COUNT ? type : promote(*t, type);
	}
	number_type t = join(of[0], join(of[1], of[2]));
	return t == NUM_COUNT ? NUM_F32 : t;
}

uint8_t ew_common_dtype(const term *x, unsigned n)
{
	static const uint8_t types[NUM_COUNT] = {
		[NUM_F32] = DT_F32, [NUM_F64] = DT_F64, [NUM_I64] = DT_I64, [NUM_I32] = DT_I32,
		[NUM_I16] = DT_I16, [NUM_I8] = DT_I8,   [NUM_U8] = DT_U8,   [NUM_BOOL] = DT_BOOL};
	return types[common_type(x, n)];
}

static number_type float_type(number_type t)
{
	return is_float(t) ? t : NUM_F32;
}

/* ---- steps -------------------------------------------------------------------------------------------------------------------- */

/* A step of terms that are cast to `type`; its result is of type `to`. */
static clv_status step(ew *e, unsigned op, number_type type, number_type to, const term *x, unsigned n, term *out)
{
	uint8_t regs[3];
	bool flat = false;
	for (unsigned i = 0; i < n; i++) {
		TRY(ew_reg(e, &x[i], op == CHAIN_WHERE && i == 0 ? NUM_BOOL : type, &regs[i]));
		flat |= x[i].kind == TERM_TENSOR && x[i].flat;
	}
	TRY(ew_step(e, op, type, to, regs, n, out));
	out->flat = flat;
	return CLV_OK;
}

static clv_status one(ew *e, unsigned op, number_type type, term a, term *out)
{
	return step(e, op, type, type, &a, 1, out);
}

static clv_status two(ew *e, unsigned op, number_type type, term a, term b, term *out)
{
	return step(e, op, type, type, (term[]){a, b}, 2, out);
}

static clv_status three(ew *e, unsigned op, number_type type, term a, term b, term c, term *out)
{
	return step(e, op, type, type, (term[]){a, b, c}, 3, out);
}

static term constant(double x)
{
	return (term){.kind = TERM_NUMBER, .type = NUM_F64, .f = x, .i = x > -9e18 && x < 9e18 ? (int64_t)x : INT64_MIN};
}

static term or_number(const term *x, double absent)
{
	return x->kind == TERM_NONE ? constant(absent) : *x;
}

static clv_status add(ew *e, unsigned op, const term *x, term *out)
{
	number_type t = common_type(x, 2);
	term b = x[1];
	if (x[2].kind == TERM_NUMBER && x[2].f != 1)
		TRY(two(e, CHAIN_MUL, t, b, x[2], &b));
	return two(e, op, t, x[0], b, out);
}

static clv_status divide(ew *e, const term *x, term *out)
{
	number_type t = common_type(x, 2);
	const char *mode = x[2].kind == TERM_TEXT ? x[2].text : "";
	if (strcmp(mode, "floor") == 0)
		return two(e, CHAIN_DIV_FLOOR, t, x[0], x[1], out);
	if (strcmp(mode, "trunc") == 0)
		return two(e, CHAIN_DIV_TRUNC, t, x[0], x[1], out);
	return two(e, CHAIN_DIV, float_type(t), x[0], x[1], out);
}

static clv_status power(ew *e, const term *x, term *out)
{
	number_type t = common_type(x, 2);
	double k = x[1].f;
	if (x[1].kind != TERM_NUMBER || !is_float(t))
		return two(e, CHAIN_POW, t, x[0], x[1], out);
	if (k == 0.5)
		return one(e, MAP_SQRT, t, x[0], out);
	if (k == -0.5)
		return one(e, MAP_RSQRT, t, x[0], out);
	if (k == -1)
		return one(e, MAP_RECIPROCAL, t, x[0], out);
	if (k != 2 && k != 3 && k != -2)
		return two(e, CHAIN_POW, t, x[0], x[1], out);
	term square;
	TRY(two(e, CHAIN_MUL, t, x[0], x[0], &square));
	if (k == 3)
		return two(e, CHAIN_MUL, t, square, x[0], out);
	*out = square;
	return k == -2 ? one(e, MAP_RECIPROCAL, t, square, out) : CLV_OK;
}

static clv_status clamp(ew *e, const term *x, number_type t, term *out)
{
	if (x[1].kind == TERM_NONE)
		return two(e, CHAIN_MIN, t, x[0], x[2], out);
	if (x[2].kind == TERM_NONE)
		return two(e, CHAIN_MAX, t, x[0], x[1], out);
	return three(e, CHAIN_CLAMP, t, x[0], x[1], x[2], out);
}

static clv_status elu(ew *e, term x, term alpha, double scale, double input_scale, term *out)
{
	number_type t = (number_type)x.type;
	TRY(three(e, CHAIN_ELU, t, x, alpha, constant(input_scale), out));
	return scale != 1 ? two(e, CHAIN_MUL, t, *out, constant(scale), out) : CLV_OK;
}

/* x + value a b, x + value a / b */
static clv_status add_combined(ew *e, unsigned op, const term *x, term *out)
{
	number_type t = common_type(x, 3);
	term y;
	TRY(two(e, op, t, x[1], x[2], &y));
	if (x[3].kind == TERM_NUMBER && x[3].f != 1)
		TRY(two(e, CHAIN_MUL, t, y, x[3], &y));
	return two(e, CHAIN_ADD, t, x[0], y, out);
}

static clv_status round_to(ew *e, const term *x, term *out)
{
	number_type t = (number_type)x->type;
	double digits = or_number(&x[1], 0).f;
	term ten = constant(pow(10, fabs(digits))), y = *x;
	if (digits == 0 || !is_float(t))
		return one(e, CHAIN_ROUND, t, *x, out);
	TRY(two(e, digits > 0 ? CHAIN_MUL : CHAIN_DIV, t, y, ten, &y));
	TRY(one(e, CHAIN_ROUND, t, y, &y));
	return two(e, digits > 0 ? CHAIN_DIV : CHAIN_MUL, t, y, ten, out);
}

static clv_status log_add_exp(ew *e, const term *x, term *out)
{
	number_type t = float_type(common_type(x, 2));
	term top, y, same, endless;
	TRY(two(e, CHAIN_MAX, t, x[0], x[1], &top));
	TRY(two(e, CHAIN_SUB, t, x[0], x[1], &y));
	TRY(one(e, CHAIN_ABS, t, y, &y));
	TRY(one(e, CHAIN_NEG, t, y, &y));
	TRY(one(e, MAP_EXP, t, y, &y));
	TRY(one(e, MAP_LOG1P, t, y, &y));
	TRY(two(e, CHAIN_ADD, t, top, y, &y));
	TRY(step(e, CHAIN_EQ, t, NUM_BOOL, x, 2, &same)); /* inf - inf */
	TRY(step(e, CHAIN_ISINF, t, NUM_BOOL, x, 1, &endless));
	TRY(two(e, CHAIN_AND, NUM_BOOL, same, endless, &same));
	return three(e, CHAIN_WHERE, t, same, x[0], y, out);
}

static clv_status nan_to_num(ew *e, const term *x, term *out)
{
	number_type t = (number_type)x->type;
	double most = t == NUM_F32 ? FLT_MAX : DBL_MAX;
	term flag, y = *x;
	if (!is_float(t))
		return one(e, CHAIN_COPY, t, *x, out);
	TRY(step(e, CHAIN_EQ, t, NUM_BOOL, (term[]){*x, constant(INFINITY)}, 2, &flag));
	TRY(three(e, CHAIN_WHERE, t, flag, or_number(&x[2], most), y, &y));
	TRY(step(e, CHAIN_EQ, t, NUM_BOOL, (term[]){*x, constant(-INFINITY)}, 2, &flag));
	TRY(three(e, CHAIN_WHERE, t, flag, or_number(&x[3], -most), y, &y));
	TRY(step(e, CHAIN_ISNAN, t, NUM_BOOL, x, 1, &flag));
	return three(e, CHAIN_WHERE, t, flag, or_number(&x[1], 0), y, out);
}

static clv_status logit(ew *e, const term *x, term *out)
{
	number_type t = float_type((number_type)x->type);
	term y = *x, rest;
	if (x[1].kind == TERM_NUMBER)
		TRY(three(e, CHAIN_CLAMP, t, y, x[1], constant(1 - x[1].f), &y));
	TRY(two(e, CHAIN_SUB, t, constant(1), y, &rest));
	TRY(two(e, CHAIN_DIV, t, y, rest, &y));
	return one(e, MAP_LOG, t, y, out);
}

static clv_status fraction(ew *e, const term *x, term *out)
{
	term whole;
	TRY(one(e, CHAIN_TRUNC, (number_type)x->type, *x, &whole));
	return two(e, CHAIN_SUB, (number_type)x->type, *x, whole, out);
}

static clv_status apply(ew *e, unsigned rule, unsigned op, const term *x, term *out)
{
	number_type own = (number_type)x->type;
	switch ((enum ew_rule)rule) {
	case RULE_MAP: return one(e, op, float_type(own), *x, out);
	case RULE_SAME: return one(e, op, own, *x, out);
	case RULE_TEST: return step(e, op, own, NUM_BOOL, x, 1, out);
	case RULE_BINARY: return two(e, op, common_type(x, 2), x[0], x[1], out);
	case RULE_FLOATS: return two(e, op, float_type(common_type(x, 2)), x[0], x[1], out);
	case RULE_COMPARE: return step(e, op, common_type(x, 2), NUM_BOOL, x, 2, out);
	case RULE_LOGIC: return two(e, op, NUM_BOOL, x[0], x[1], out);
	case RULE_ADD: return add(e, op, x, out);
	case RULE_RSUB: return add(e, CHAIN_SUB, (term[]){x[1], x[0], x[2]}, out);
	case RULE_DIV_MODE: return divide(e, x, out);
	case RULE_POW: return power(e, x, out);
	case RULE_WHERE: return three(e, CHAIN_WHERE, common_type(x + 1, 2), x[0], x[1], x[2], out);
	case RULE_FILL: return three(e, CHAIN_WHERE, own, x[1], x[2], x[0], out);
	case RULE_CLAMP: return clamp(e, x, common_type(x, 3), out);
	case RULE_CLAMP_MIN: return two(e, CHAIN_MAX, common_type(x, 2), x[0], x[1], out);
	case RULE_CLAMP_MAX: return two(e, CHAIN_MIN, common_type(x, 2), x[0], x[1], out);
	case RULE_HARDTANH: return three(e, CHAIN_CLAMP, own, *x, or_number(&x[1], -1), or_number(&x[2], 1), out);
	case RULE_RELU6: return three(e, CHAIN_CLAMP, own, *x, constant(0), constant(6), out);
	case RULE_LEAKY: return two(e, CHAIN_LEAKY, own, *x, or_number(&x[1], 0.01), out);
	case RULE_ELU: return elu(e, *x, or_number(&x[1], 1), or_number(&x[2], 1).f, or_number(&x[3], 1).f, out);
	case RULE_CELU: return elu(e, *x, or_number(&x[1], 1), 1, 1 / or_number(&x[1], 1).f, out);
	case RULE_SELU: return elu(e, *x, constant(1.6732632423543772848), 1.0507009873554804934, 1, out);
	case RULE_SOFTPLUS: return three(e, CHAIN_SOFTPLUS, own, *x, or_number(&x[1], 1), or_number(&x[2], 20), out);
	case RULE_SHRINK: return two(e, op, own, *x, or_number(&x[1], 0.5), out);
	case RULE_THRESHOLD: return three(e, CHAIN_THRESHOLD, own, x[0], x[1], x[2], out);
	case RULE_GELU: {
		bool tanh = x[1].kind == TERM_TEXT && strcmp(x[1].text, "tanh") == 0;
		return one(e, tanh ? MAP_GELU_TANH : MAP_GELU, own, *x, out);
	}
	case RULE_ADDCMUL: return add_combined(e, CHAIN_MUL, x, out);
	case RULE_ADDCDIV: return add_combined(e, CHAIN_DIV, x, out);
	case RULE_LERP: return three(e, CHAIN_LERP, common_type(x, 2), x[0], x[1], x[2], out);
	case RULE_SQUARE: return two(e, CHAIN_MUL, own == NUM_BOOL ? NUM_I64 : own, *x, *x, out);
	case RULE_FRAC: return fraction(e, x, out);
	case RULE_ROUND: return round_to(e, x, out);
	case RULE_DEGREES:
		return two(e, CHAIN_MUL, float_type(own), *x, constant(op ? 57.2957795130823208768 : 0.01745329251994329577),
		           out);
	case RULE_LOGADDEXP: return log_add_exp(e, x, out);
	case RULE_NAN_TO_NUM: return nan_to_num(e, x, out);
	case RULE_LOGIT: return logit(e, x, out);
	case RULE_CAST: return ew_cast(e, x, x[1].kind == TERM_DTYPE ? (number_type)x[1].type : own, out);
	case RULE_CAST_LIKE: return ew_cast(e, x, (number_type)x[1].type, out);
	case RULE_COUNT: break;
	}
	return fail(CLV_E_INVALID, "rule %u is not known", rule);
}

clv_status ew_apply(ew *e, uint32_t what, const term *args, uint32_t n, term *out)
{
	term x[EW_TERMS] = {{0}};
	if (n > EW_TERMS)
		return fail(CLV_E_UNSUPPORTED, "it has more than %d arguments", EW_TERMS);
	memcpy(x, args, n * sizeof *args);
	return apply(e, what >> 8, what & 0xff, x, out);
}
