/* Elementwise operators: one chain each. */
#include "native/elementwise.h"

#include <string.h>

#include "native/rules.h"

/* One that writes in place casts to the type of what it writes. */
static clv_status finish(ew *e, node_id n, const term *result)
{
	number_type type;
	nt form = e->form;
	slot s;
	if (!ew_type(form.dtype, &type) || (type != result->type && !low_plan(e->l)->nodes.at[n].nwrites))
		return fail(CLV_E_UNSUPPORTED, "the plan has another dtype than the operator gives");
	ew_layout(e, &form);
	TRY(low_result(e->l, n, 0, &form, false, &s));
	TRY(ew_output(e, result, s));
	return ew_finish(e);
}

static clv_status lower_with(lowering *l, node_id n, clv_status (*make)(ew *e, node_id n, term *out))
{
	nt form;
	ew *e;
	term result;
	TRY(low_form(l, n, 0, &form));
	TRY(ew_new(l, &form, &e));
	clv_status st = make(e, n, &result);
	if (st == CLV_OK)
		st = finish(e, n, &result);
	mem_free(e);
	return st;
}

static clv_status lower_elementwise(lowering *l, node_id n)
{
	return lower_with(l, n, ew_node);
}

/* The slope is a number per channel: dimension 1. */
static clv_status make_prelu(ew *e, node_id n, term *out)
{
	slot x, slopes;
	term args[2];
	TRY(low_tensor(e->l, n, 0, &x));
	TRY(low_tensor(e->l, n, 1, &slopes));
	const nt *w = low_at(e->l, slopes);
	nt spread = e->form;
	for (unsigned d = 0; d < spread.ndim; d++)
		spread.stride[d] = 0;
	if (nt_numel(w) != 1) {
		if (w->ndim != 1 || spread.ndim < 2 || w->size[0] != spread.size[1])
			return fail(CLV_E_INVALID, "there is not one slope per channel");
		spread.stride[1] = w->stride[0];
	}
	TRY(ew_input(e, x, &args[0]));
	TRY(ew_input_as(e, slopes, &spread, true, &args[1]));
	return ew_apply(e, EW(LEAKY, CHAIN_LEAKY), args, 2, out);
}

static clv_status lower_prelu(lowering *l, node_id n)
{
	return lower_with(l, n, make_prelu);
}

/* The first half times the sigmoid of the second. */
static clv_status make_glu(ew *e, node_id n, term *out)
{
	slot x, half[2];
	uint32_t dim;
	term args[2];
	TRY(low_tensor(e->l, n, 0, &x));
	nt part = *low_at(e->l, x);
	TRY(low_dim(e->l, n, 1, -1, part.ndim, &dim));
	if (part.ndim == 0 || part.size[dim] % 2 != 0)
		return fail(CLV_E_INVALID, "the dimension cannot be halved");
	part.size[dim] /= 2;
	for (int i = 0; i < 2; i++) {
		TRY(low_part(e->l, x, i * part.size[dim] * part.stride[dim], &part, &half[i]));
		TRY(ew_input(e, half[i], &args[i]));
	}
	TRY(ew_apply(e, EW(MAP, MAP_SIGMOID), &args[1], 1, &args[1]));
	return ew_apply(e, EW(BINARY, CHAIN_MUL), args, 2, out);
}

static clv_status lower_glu(lowering *l, node_id n)
{
	return lower_with(l, n, make_glu);
}

/* To the dtype of the plan's result. Halves go through the copy that knows them. */
static clv_status make_cast(ew *e, node_id n, term *out)
{
	slot x;
	TRY(low_tensor(e->l, n, 0, &x));
	TRY(ew_input(e, x, out));
	number_type to;
	return ew_type(e->form.dtype, &to) ? ew_cast(e, out, to, out)
	                                   : fail(CLV_E_UNSUPPORTED, "there is no kernel for the dtype");
}

static clv_status lower_cast(lowering *l, node_id n)
{
	slot x, y;
	nt form;
	TRY(low_tensor(l, n, 0, &x));
	TRY(low_form(l, n, 0, &form));
	uint8_t from = low_at(l, x)->dtype;
	if (from == form.dtype)
		return low_same(l, n, 0, x);
	if (!is_half(from) && !is_half(form.dtype))
		return lower_with(l, n, make_cast);
	TRY(low_result(l, n, 0, &form, false, &y));
	return low_copy(l, x, y);
}

static const char *takes_wide(const plan *p, node_id n)
{
	const node *x = &p->nodes.at[n];
	for (uint32_t i = 0; i < x->nargs; i++) {
		const arg *a = &p->args.at[x->args + i];
		uint8_t d = a->kind == ARG_VALUE ? p->values.at[a->u.v].dtype : DT_COUNT;
		if (d == DT_F16 || d == DT_BF16)
			return "it is not of 16 bits, where PyTorch rounds its numbers first";
	}
	return NULL;
}

static const char *takes_cast(const plan *p, node_id n)
{
	(void)p, (void)n;
	return NULL; /* all dtypes that the engine has */
}

#define ROW(name, rule, op)                                                                                            \
	{                                                                                                                  \
		.id = OP_##name, .lower = lower_elementwise, .what = EW(rule, op)                                              \
	}
/* In 16 bits some operators round the numbers that they take first, or have other limits. */
#define ROUNDED(name, rule, op)                                                                                        \
	{                                                                                                                  \
		.id = OP_##name, .takes = takes_wide, .lower = lower_elementwise, .what = EW(rule, op)                         \
	}
#define CAST(name, rule)                                                                                               \
	{                                                                                                                  \
		.id = OP_##name, .takes = takes_cast, .lower = lower_cast, .what = EW(rule, 0)                                 \
	}

const native_op native_ops_elementwise[] = {
	ROW(__and___Scalar, BINARY, CHAIN_AND),
	ROW(__and___Tensor, BINARY, CHAIN_AND),
	ROW(__iand___Scalar, BINARY, CHAIN_AND),
	ROW(__iand___Tensor, BINARY, CHAIN_AND),
	ROW(__ilshift___Scalar, BINARY, CHAIN_SHL),
	ROW(__ilshift___Tensor, BINARY, CHAIN_SHL),
	ROW(__ior___Scalar, BINARY, CHAIN_OR),
	ROW(__ior___Tensor, BINARY, CHAIN_OR),
	ROW(__irshift___Scalar, BINARY, CHAIN_SHR),
	ROW(__irshift___Tensor, BINARY, CHAIN_SHR),
	ROW(__ixor___Scalar, BINARY, CHAIN_XOR),
	ROW(__ixor___Tensor, BINARY, CHAIN_XOR),
	ROW(__lshift___Scalar, BINARY, CHAIN_SHL),
	ROW(__lshift___Tensor, BINARY, CHAIN_SHL),
	ROW(__or___Scalar, BINARY, CHAIN_OR),
	ROW(__or___Tensor, BINARY, CHAIN_OR),
	ROW(__rshift___Scalar, BINARY, CHAIN_SHR),
	ROW(__rshift___Tensor, BINARY, CHAIN_SHR),
	ROW(__xor___Scalar, BINARY, CHAIN_XOR),
	ROW(__xor___Tensor, BINARY, CHAIN_XOR),
	ROW(abs, SAME, CHAIN_ABS),
	ROW(abs_, SAME, CHAIN_ABS),
	ROW(absolute, SAME, CHAIN_ABS),
	ROW(absolute_, SAME, CHAIN_ABS),
	ROW(acos, MAP, MAP_ACOS),
	ROW(acos_, MAP, MAP_ACOS),
	ROW(acosh, MAP, MAP_ACOSH),
	ROW(acosh_, MAP, MAP_ACOSH),
	ROW(add_Scalar, ADD, CHAIN_ADD),
	ROW(add_Tensor, ADD, CHAIN_ADD),
	ROW(add__Scalar, ADD, CHAIN_ADD),
	ROW(add__Tensor, ADD, CHAIN_ADD),
	ROW(addcdiv, ADDCDIV, 0),
	ROW(addcdiv_, ADDCDIV, 0),
	ROW(addcmul, ADDCMUL, 0),
	ROW(addcmul_, ADDCMUL, 0),
	ROW(arccos, MAP, MAP_ACOS),
	ROW(arccos_, MAP, MAP_ACOS),
	ROW(arcsin, MAP, MAP_ASIN),
	ROW(arcsin_, MAP, MAP_ASIN),
	ROW(arctan, MAP, MAP_ATAN),
	ROW(arctan2, FLOATS, CHAIN_ATAN2),
	ROW(arctan2_, FLOATS, CHAIN_ATAN2),
	ROW(arctan_, MAP, MAP_ATAN),
	ROW(asin, MAP, MAP_ASIN),
	ROW(asin_, MAP, MAP_ASIN),
	ROW(asinh, MAP, MAP_ASINH),
	ROW(asinh_, MAP, MAP_ASINH),
	ROW(atan, MAP, MAP_ATAN),
	ROW(atan2, FLOATS, CHAIN_ATAN2),
	ROW(atan2_, FLOATS, CHAIN_ATAN2),
	ROW(atan_, MAP, MAP_ATAN),
	ROW(atanh, MAP, MAP_ATANH),
	ROW(atanh_, MAP, MAP_ATANH),
	ROW(bitwise_and_Scalar, BINARY, CHAIN_AND),
	ROW(bitwise_and_Tensor, BINARY, CHAIN_AND),
	ROW(bitwise_and__Scalar, BINARY, CHAIN_AND),
	ROW(bitwise_and__Tensor, BINARY, CHAIN_AND),
	ROW(bitwise_left_shift_Tensor, BINARY, CHAIN_SHL),
	ROW(bitwise_left_shift_Tensor_Scalar, BINARY, CHAIN_SHL),
	ROW(bitwise_left_shift__Tensor, BINARY, CHAIN_SHL),
	ROW(bitwise_left_shift__Tensor_Scalar, BINARY, CHAIN_SHL),
	ROW(bitwise_not, SAME, CHAIN_BITNOT),
	ROW(bitwise_not_, SAME, CHAIN_BITNOT),
	ROW(bitwise_or_Scalar, BINARY, CHAIN_OR),
	ROW(bitwise_or_Tensor, BINARY, CHAIN_OR),
	ROW(bitwise_or__Scalar, BINARY, CHAIN_OR),
	ROW(bitwise_or__Tensor, BINARY, CHAIN_OR),
	ROW(bitwise_right_shift_Tensor, BINARY, CHAIN_SHR),
	ROW(bitwise_right_shift_Tensor_Scalar, BINARY, CHAIN_SHR),
	ROW(bitwise_right_shift__Tensor, BINARY, CHAIN_SHR),
	ROW(bitwise_right_shift__Tensor_Scalar, BINARY, CHAIN_SHR),
	ROW(bitwise_xor_Scalar, BINARY, CHAIN_XOR),
	ROW(bitwise_xor_Tensor, BINARY, CHAIN_XOR),
	ROW(bitwise_xor__Scalar, BINARY, CHAIN_XOR),
	ROW(bitwise_xor__Tensor, BINARY, CHAIN_XOR),
	ROW(ceil, SAME, CHAIN_CEIL),
	ROW(ceil_, SAME, CHAIN_CEIL),
	ROW(celu, CELU, 0),
	ROW(celu_, CELU, 0),
	ROW(clamp, CLAMP, 0),
	ROW(clamp_Tensor, CLAMP, 0),
	ROW(clamp_, CLAMP, 0),
	ROW(clamp__Tensor, CLAMP, 0),
	ROW(clamp_max, CLAMP_MAX, 0),
	ROW(clamp_max_Tensor, CLAMP_MAX, 0),
	ROW(clamp_max_, CLAMP_MAX, 0),
	ROW(clamp_max__Tensor, CLAMP_MAX, 0),
	ROW(clamp_min, CLAMP_MIN, 0),
	ROW(clamp_min_Tensor, CLAMP_MIN, 0),
	ROW(clamp_min_, CLAMP_MIN, 0),
	ROW(clamp_min__Tensor, CLAMP_MIN, 0),
	ROW(clip, CLAMP, 0),
	ROW(clip_Tensor, CLAMP, 0),
	ROW(clip_, CLAMP, 0),
	ROW(clip__Tensor, CLAMP, 0),
	ROW(copysign_Scalar, FLOATS, CHAIN_COPYSIGN),
	ROW(copysign_Tensor, FLOATS, CHAIN_COPYSIGN),
	ROW(copysign__Scalar, FLOATS, CHAIN_COPYSIGN),
	ROW(copysign__Tensor, FLOATS, CHAIN_COPYSIGN),
	ROW(cos, MAP, MAP_COS),
	ROW(cos_, MAP, MAP_COS),
	ROW(cosh, MAP, MAP_COSH),
	ROW(cosh_, MAP, MAP_COSH),
	ROW(deg2rad, DEGREES, 0),
	ROW(deg2rad_, DEGREES, 0),
	ROW(div_Scalar, FLOATS, CHAIN_DIV),
	ROW(div_Scalar_mode, DIV_MODE, 0),
	ROW(div_Tensor, FLOATS, CHAIN_DIV),
	ROW(div_Tensor_mode, DIV_MODE, 0),
	ROW(div__Scalar, FLOATS, CHAIN_DIV),
	ROW(div__Scalar_mode, DIV_MODE, 0),
	ROW(div__Tensor, FLOATS, CHAIN_DIV),
	ROW(div__Tensor_mode, DIV_MODE, 0),
	ROW(divide_Scalar, FLOATS, CHAIN_DIV),
	ROW(divide_Scalar_mode, DIV_MODE, 0),
	ROW(divide_Tensor, FLOATS, CHAIN_DIV),
	ROW(divide_Tensor_mode, DIV_MODE, 0),
	ROW(divide__Scalar, FLOATS, CHAIN_DIV),
	ROW(divide__Scalar_mode, DIV_MODE, 0),
	ROW(divide__Tensor, FLOATS, CHAIN_DIV),
	ROW(divide__Tensor_mode, DIV_MODE, 0),
	ROW(elu, ELU, 0),
	ROW(elu_, ELU, 0),
	ROW(eq_Scalar, COMPARE, CHAIN_EQ),
	ROW(eq_Tensor, COMPARE, CHAIN_EQ),
	ROW(eq__Scalar, COMPARE, CHAIN_EQ),
	ROW(eq__Tensor, COMPARE, CHAIN_EQ),
	ROW(erf, MAP, MAP_ERF),
	ROW(erf_, MAP, MAP_ERF),
	ROW(erfc, MAP, MAP_ERFC),
	ROW(erfc_, MAP, MAP_ERFC),
	ROW(exp, MAP, MAP_EXP),
	ROW(exp2, MAP, MAP_EXP2),
	ROW(exp2_, MAP, MAP_EXP2),
	ROW(exp_, MAP, MAP_EXP),
	ROW(expm1, MAP, MAP_EXPM1),
	ROW(expm1_, MAP, MAP_EXPM1),
	ROW(fix, SAME, CHAIN_TRUNC),
	ROW(fix_, SAME, CHAIN_TRUNC),
	ROW(floor, SAME, CHAIN_FLOOR),
	ROW(floor_, SAME, CHAIN_FLOOR),
	ROW(floor_divide, BINARY, CHAIN_DIV_FLOOR),
	ROW(floor_divide_Scalar, BINARY, CHAIN_DIV_FLOOR),
	ROW(floor_divide__Scalar, BINARY, CHAIN_DIV_FLOOR),
	ROW(floor_divide__Tensor, BINARY, CHAIN_DIV_FLOOR),
	ROW(fmax, BINARY, CHAIN_FMAX),
	ROW(fmin, BINARY, CHAIN_FMIN),
	ROUNDED(fmod_Scalar, BINARY, CHAIN_FMOD),
	ROUNDED(fmod_Tensor, BINARY, CHAIN_FMOD),
	ROUNDED(fmod__Scalar, BINARY, CHAIN_FMOD),
	ROUNDED(fmod__Tensor, BINARY, CHAIN_FMOD),
	ROW(frac, FRAC, 0),
	ROW(frac_, FRAC, 0),
	ROW(ge_Scalar, COMPARE, CHAIN_GE),
	ROW(ge_Tensor, COMPARE, CHAIN_GE),
	ROW(ge__Scalar, COMPARE, CHAIN_GE),
	ROW(ge__Tensor, COMPARE, CHAIN_GE),
	ROW(gelu, GELU, 0),
	ROW(gelu_, GELU, 0),
	ROW(greater_Scalar, COMPARE, CHAIN_GT),
	ROW(greater_Tensor, COMPARE, CHAIN_GT),
	ROW(greater__Scalar, COMPARE, CHAIN_GT),
	ROW(greater__Tensor, COMPARE, CHAIN_GT),
	ROW(greater_equal_Scalar, COMPARE, CHAIN_GE),
	ROW(greater_equal_Tensor, COMPARE, CHAIN_GE),
	ROW(greater_equal__Scalar, COMPARE, CHAIN_GE),
	ROW(greater_equal__Tensor, COMPARE, CHAIN_GE),
	ROW(gt_Scalar, COMPARE, CHAIN_GT),
	ROW(gt_Tensor, COMPARE, CHAIN_GT),
	ROW(gt__Scalar, COMPARE, CHAIN_GT),
	ROW(gt__Tensor, COMPARE, CHAIN_GT),
	ROUNDED(hardshrink, SHRINK, CHAIN_HARDSHRINK),
	ROW(hardsigmoid, MAP, MAP_HARDSIGMOID),
	ROW(hardsigmoid_, MAP, MAP_HARDSIGMOID),
	ROW(hardswish, MAP, MAP_HARDSWISH),
	ROW(hardswish_, MAP, MAP_HARDSWISH),
	ROW(hardtanh, HARDTANH, 0),
	ROW(hardtanh_, HARDTANH, 0),
	ROW(hypot, FLOATS, CHAIN_HYPOT),
	ROW(hypot_, FLOATS, CHAIN_HYPOT),
	ROW(isfinite, TEST, CHAIN_ISFINITE),
	ROW(isinf, TEST, CHAIN_ISINF),
	ROW(isnan, TEST, CHAIN_ISNAN),
	ROW(le_Scalar, COMPARE, CHAIN_LE),
	ROW(le_Tensor, COMPARE, CHAIN_LE),
	ROW(le__Scalar, COMPARE, CHAIN_LE),
	ROW(le__Tensor, COMPARE, CHAIN_LE),
	ROW(leaky_relu, LEAKY, 0),
	ROW(leaky_relu_, LEAKY, 0),
	ROW(lerp_Scalar, LERP, 0),
	ROW(lerp_Tensor, LERP, 0),
	ROW(lerp__Scalar, LERP, 0),
	ROW(lerp__Tensor, LERP, 0),
	ROW(less_Scalar, COMPARE, CHAIN_LT),
	ROW(less_Tensor, COMPARE, CHAIN_LT),
	ROW(less__Scalar, COMPARE, CHAIN_LT),
	ROW(less__Tensor, COMPARE, CHAIN_LT),
	ROW(less_equal_Scalar, COMPARE, CHAIN_LE),
	ROW(less_equal_Tensor, COMPARE, CHAIN_LE),
	ROW(less_equal__Scalar, COMPARE, CHAIN_LE),
	ROW(less_equal__Tensor, COMPARE, CHAIN_LE),
	ROW(lgamma, MAP, MAP_LGAMMA),
	ROW(lgamma_, MAP, MAP_LGAMMA),
	ROW(log, MAP, MAP_LOG),
	ROW(log10, MAP, MAP_LOG10),
	ROW(log10_, MAP, MAP_LOG10),
	ROW(log1p, MAP, MAP_LOG1P),
	ROW(log1p_, MAP, MAP_LOG1P),
	ROW(log2, MAP, MAP_LOG2),
	ROW(log2_, MAP, MAP_LOG2),
	ROW(log_, MAP, MAP_LOG),
	ROW(log_sigmoid, MAP, MAP_LOGSIGMOID),
	ROW(logaddexp, LOGADDEXP, 0),
	ROW(logical_and, LOGIC, CHAIN_AND),
	ROW(logical_and_, LOGIC, CHAIN_AND),
	ROW(logical_not, TEST, CHAIN_NOT),
	ROW(logical_not_, TEST, CHAIN_NOT),
	ROW(logical_or, LOGIC, CHAIN_OR),
	ROW(logical_or_, LOGIC, CHAIN_OR),
	ROW(logical_xor, LOGIC, CHAIN_XOR),
	ROW(logical_xor_, LOGIC, CHAIN_XOR),
	ROW(logit, LOGIT, 0),
	ROW(logit_, LOGIT, 0),
	ROW(lt_Scalar, COMPARE, CHAIN_LT),
	ROW(lt_Tensor, COMPARE, CHAIN_LT),
	ROW(lt__Scalar, COMPARE, CHAIN_LT),
	ROW(lt__Tensor, COMPARE, CHAIN_LT),
	ROW(masked_fill_Scalar, FILL, 0),
	ROW(masked_fill_Tensor, FILL, 0),
	ROW(masked_fill__Scalar, FILL, 0),
	ROW(masked_fill__Tensor, FILL, 0),
	ROW(max_other, BINARY, CHAIN_MAX),
	ROW(maximum, BINARY, CHAIN_MAX),
	ROW(min_other, BINARY, CHAIN_MIN),
	ROW(minimum, BINARY, CHAIN_MIN),
	ROW(mish, MAP, MAP_MISH),
	ROW(mish_, MAP, MAP_MISH),
	ROW(mul_Scalar, BINARY, CHAIN_MUL),
	ROW(mul_Tensor, BINARY, CHAIN_MUL),
	ROW(mul__Scalar, BINARY, CHAIN_MUL),
	ROW(mul__Tensor, BINARY, CHAIN_MUL),
	ROW(multiply_Scalar, BINARY, CHAIN_MUL),
	ROW(multiply_Tensor, BINARY, CHAIN_MUL),
	ROW(multiply__Scalar, BINARY, CHAIN_MUL),
	ROW(multiply__Tensor, BINARY, CHAIN_MUL),
	ROUNDED(nan_to_num, NAN_TO_NUM, 0),
	ROUNDED(nan_to_num_, NAN_TO_NUM, 0),
	ROW(ne_Scalar, COMPARE, CHAIN_NE),
	ROW(ne_Tensor, COMPARE, CHAIN_NE),
	ROW(ne__Scalar, COMPARE, CHAIN_NE),
	ROW(ne__Tensor, COMPARE, CHAIN_NE),
	ROW(neg, SAME, CHAIN_NEG),
	ROW(neg_, SAME, CHAIN_NEG),
	ROW(negative, SAME, CHAIN_NEG),
	ROW(negative_, SAME, CHAIN_NEG),
	ROW(not_equal_Scalar, COMPARE, CHAIN_NE),
	ROW(not_equal_Tensor, COMPARE, CHAIN_NE),
	ROW(not_equal__Scalar, COMPARE, CHAIN_NE),
	ROW(not_equal__Tensor, COMPARE, CHAIN_NE),
	ROW(pow_Scalar, POW, 0),
	ROW(pow_Tensor_Scalar, POW, 0),
	ROW(pow_Tensor_Tensor, POW, 0),
	ROW(pow__Scalar, POW, 0),
	ROW(pow__Tensor, POW, 0),
	ROW(rad2deg, DEGREES, 1),
	ROW(rad2deg_, DEGREES, 1),
	ROW(reciprocal, MAP, MAP_RECIPROCAL),
	ROW(reciprocal_, MAP, MAP_RECIPROCAL),
	ROW(relu, SAME, CHAIN_RELU),
	ROW(relu6, RELU6, 0),
	ROW(relu6_, RELU6, 0),
	ROW(relu_, SAME, CHAIN_RELU),
	ROUNDED(remainder_Scalar, BINARY, CHAIN_REMAINDER),
	ROUNDED(remainder_Scalar_Tensor, BINARY, CHAIN_REMAINDER),
	ROUNDED(remainder_Tensor, BINARY, CHAIN_REMAINDER),
	ROUNDED(remainder__Scalar, BINARY, CHAIN_REMAINDER),
	ROUNDED(remainder__Tensor, BINARY, CHAIN_REMAINDER),
	ROW(round, ROUND, 0),
	ROW(round_decimals, ROUND, 0),
	ROW(round_, ROUND, 0),
	ROW(round__decimals, ROUND, 0),
	ROW(rsqrt, MAP, MAP_RSQRT),
	ROW(rsqrt_, MAP, MAP_RSQRT),
	ROW(rsub_Scalar, RSUB, 0),
	ROW(rsub_Tensor, RSUB, 0),
	ROW(selu, SELU, 0),
	ROW(selu_, SELU, 0),
	ROW(sgn, SAME, CHAIN_SIGN),
	ROW(sgn_, SAME, CHAIN_SIGN),
	ROW(sigmoid, MAP, MAP_SIGMOID),
	ROW(sigmoid_, MAP, MAP_SIGMOID),
	ROW(sign, SAME, CHAIN_SIGN),
	ROW(sign_, SAME, CHAIN_SIGN),
	ROW(signbit, TEST, CHAIN_SIGNBIT),
	ROW(silu, MAP, MAP_SILU),
	ROW(silu_, MAP, MAP_SILU),
	ROW(sin, MAP, MAP_SIN),
	ROW(sin_, MAP, MAP_SIN),
	ROW(sinh, MAP, MAP_SINH),
	ROW(sinh_, MAP, MAP_SINH),
	ROW(softplus, SOFTPLUS, 0),
	ROUNDED(softshrink, SHRINK, CHAIN_SOFTSHRINK),
	ROW(special_erf, MAP, MAP_ERF),
	ROW(special_erfc, MAP, MAP_ERFC),
	ROW(special_exp2, MAP, MAP_EXP2),
	ROW(special_expit, MAP, MAP_SIGMOID),
	ROW(special_expm1, MAP, MAP_EXPM1),
	ROW(special_gammaln, MAP, MAP_LGAMMA),
	ROW(special_log1p, MAP, MAP_LOG1P),
	ROW(special_logit, LOGIT, 0),
	ROW(special_round, ROUND, 0),
	ROW(sqrt, MAP, MAP_SQRT),
	ROW(sqrt_, MAP, MAP_SQRT),
	ROW(square, SQUARE, 0),
	ROW(square_, SQUARE, 0),
	ROW(sub_Scalar, ADD, CHAIN_SUB),
	ROW(sub_Tensor, ADD, CHAIN_SUB),
	ROW(sub__Scalar, ADD, CHAIN_SUB),
	ROW(sub__Tensor, ADD, CHAIN_SUB),
	ROW(subtract_Scalar, ADD, CHAIN_SUB),
	ROW(subtract_Tensor, ADD, CHAIN_SUB),
	ROW(subtract__Scalar, ADD, CHAIN_SUB),
	ROW(subtract__Tensor, ADD, CHAIN_SUB),
	ROW(tan, MAP, MAP_TAN),
	ROW(tan_, MAP, MAP_TAN),
	ROW(tanh, MAP, MAP_TANH),
	ROW(tanh_, MAP, MAP_TANH),
	ROW(threshold, THRESHOLD, 0),
	ROW(threshold_, THRESHOLD, 0),
	ROW(true_divide_Scalar, FLOATS, CHAIN_DIV),
	ROW(true_divide_Tensor, FLOATS, CHAIN_DIV),
	ROW(true_divide__Scalar, FLOATS, CHAIN_DIV),
	ROW(true_divide__Tensor, FLOATS, CHAIN_DIV),
	ROW(trunc, SAME, CHAIN_TRUNC),
	ROW(trunc_, SAME, CHAIN_TRUNC),
	ROW(where_Scalar, WHERE, 0),
	ROW(where_ScalarOther, WHERE, 0),
	ROW(where_ScalarSelf, WHERE, 0),
	ROW(where_self, WHERE, 0),
	ROW(xlogy_Scalar_Other, FLOATS, CHAIN_XLOGY),
	ROW(xlogy_Scalar_Self, FLOATS, CHAIN_XLOGY),
	ROW(xlogy_Tensor, FLOATS, CHAIN_XLOGY),
	ROW(xlogy__Scalar_Other, FLOATS, CHAIN_XLOGY),
	ROW(xlogy__Tensor, FLOATS, CHAIN_XLOGY),
	{.id = OP_glu, .lower = lower_glu},
	{.id = OP_prelu, .lower = lower_prelu},
	CAST(_to_copy, CAST),
	CAST(to_device, CAST),
	CAST(to_dtype, CAST),
	CAST(to_dtype_layout, CAST),
	CAST(to_other, CAST_LIKE),
	CAST(type_as, CAST_LIKE),
	{.id = OP_UNKNOWN},
};

const native_op *ew_row(uint16_t id)
{
	const native_op *o = native_op_of(id);
	return o && (o->lower == lower_elementwise || o->lower == lower_cast) ? o : NULL;
}

bool ew_is_cast(const native_op *o)
{
	return o->lower == lower_cast;
}
