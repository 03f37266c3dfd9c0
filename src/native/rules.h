/* Rules of elementwise operators: which arguments an operator has, and the types it computes in. */
#ifndef NATIVE_RULES_H
#define NATIVE_RULES_H

#define RULE_LIST(X)                                                                                                   \
	X(MAP)      /* a function of floats; integers become f32 */                                                        \
	X(SAME)     /* of one type */                                                                                      \
	X(TEST)     /* a flag */                                                                                           \
	X(BINARY)   /* of the common type */                                                                               \
	X(FLOATS)   /* of the common type, integers as f32 */                                                              \
	X(COMPARE)  /* a flag of the common type */                                                                        \
	X(LOGIC)    /* of flags */                                                                                         \
	X(ADD)      /* a, b, alpha */                                                                                      \
	X(RSUB)     /* b - alpha a */                                                                                      \
	X(DIV_MODE) /* a, b, rounding mode */                                                                              \
	X(POW)                                                                                                             \
	X(WHERE) /* flags, a, b */                                                                                         \
	X(FILL)  /* x, flags, value */                                                                                     \
	X(CLAMP) /* x, lowest, highest, of the common type */                                                              \
	X(CLAMP_MIN)                                                                                                       \
	X(CLAMP_MAX)                                                                                                       \
	X(HARDTANH) /* x, lowest, highest, of the type of x */                                                             \
	X(RELU6)                                                                                                           \
	X(LEAKY) /* x, slope */                                                                                            \
	X(ELU)   /* x, alpha, scale, input scale */                                                                        \
	X(CELU)  /* x, alpha */                                                                                            \
	X(SELU)                                                                                                            \
	X(SOFTPLUS)  /* x, beta, threshold */                                                                              \
	X(SHRINK)    /* x, lambda */                                                                                       \
	X(THRESHOLD) /* x, threshold, value */                                                                             \
	X(GELU)      /* x, "tanh" */                                                                                       \
	X(ADDCMUL)   /* x, a, b, value */                                                                                  \
	X(ADDCDIV)                                                                                                         \
	X(LERP) /* a, b, weight */                                                                                         \
	X(SQUARE)                                                                                                          \
	X(FRAC)                                                                                                            \
	X(ROUND)   /* x, decimals */                                                                                       \
	X(DEGREES) /* deg2rad; param 1: rad2deg */                                                                         \
	X(LOGADDEXP)                                                                                                       \
	X(NAN_TO_NUM) /* x, nan, inf, -inf */                                                                              \
	X(LOGIT)      /* x, eps */                                                                                         \
	X(CAST)       /* x, dtype */                                                                                       \
	X(CAST_LIKE)  /* x, tensor of that type */

enum ew_rule {
#define X(name) RULE_##name,
	RULE_LIST(X)
#undef X
		RULE_COUNT
};

/* `what` of a row. */
#define EW(rule, op) ((uint32_t)RULE_##rule << 8 | (uint32_t)(op))

#endif
