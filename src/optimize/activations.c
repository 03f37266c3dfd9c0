/* Functions of one number that oneDNN computes on what it has just made. */
#include "optimize/fuse.h"

#include <string.h>

typedef enum form {
	PLAIN,
	NUMBERS,  /* `numbers` arguments from the second on */
	GELU,     /* the second says which */
	CLAMP,    /* both bounds are given */
	BOUNDED,  /* 0 to 6 */
	POSITIVE, /* the second argument is 0 */
} form;

static const struct row {
	const char *op, *name;
	form form;
	uint32_t numbers;
} rows[] = {
	{"aten::relu", "relu", PLAIN, 0},
	{"aten::relu_", "relu", PLAIN, 0},
	{"aten::clamp_min", "relu", POSITIVE, 0},
	{"aten::clamp_min_", "relu", POSITIVE, 0},
	{"aten::sigmoid", "sigmoid", PLAIN, 0},
	{"aten::sigmoid_", "sigmoid", PLAIN, 0},
	{"aten::tanh", "tanh", PLAIN, 0},
	{"aten::tanh_", "tanh", PLAIN, 0},
	{"aten::silu", "swish", PLAIN, 0},
	{"aten::silu_", "swish", PLAIN, 0},
	{"aten::hardswish", "hardswish", PLAIN, 0},
	{"aten::hardswish_", "hardswish", PLAIN, 0},
	{"aten::hardsigmoid", "hardsigmoid", PLAIN, 0},
	{"aten::hardsigmoid_", "hardsigmoid", PLAIN, 0},
	{"aten::gelu", "gelu", GELU, 0},
	{"aten::gelu_", "gelu", GELU, 0},
	{"aten::leaky_relu", "leaky_relu", NUMBERS, 1},
	{"aten::leaky_relu_", "leaky_relu", NUMBERS, 1},
	{"aten::hardtanh", "hardtanh", CLAMP, 2},
	{"aten::hardtanh_", "hardtanh", CLAMP, 2},
	{"aten::clamp", "hardtanh", CLAMP, 2},
	{"aten::clamp_", "hardtanh", CLAMP, 2},
	{"aten::relu6", "hardtanh", BOUNDED, 2},
	{"aten::relu6_", "hardtanh", BOUNDED, 2},
};

static bool read_numbers(const edit *e, node_id n, activation *out)
{
	for (uint32_t i = 0; i < out->nscalars; i++)
		if (!arg_number(e, edit_arg(e, n, i + 1), &out->scalars[i]))
			return false;
	return true;
}

static bool read_gelu(const edit *e, node_id n, activation *out)
{
	const arg *a = edit_arg(e, n, 1);
	const char *how = a->kind == ARG_STR ? plan_s(e->p, a->u.s) : "none";
	bool tanh = !strcmp(how, "tanh");
	out->algorithm = tanh ? "tanh" : "none";
	return (a->kind == ARG_STR || a->kind == ARG_NONE) && (tanh || !strcmp(how, "none"));
}

static bool read_row(const edit *e, node_id n, const struct row *r, activation *out)
{
	double zero;
	*out = (activation){.name = r->name, .algorithm = "", .nscalars = r->numbers};
	switch (r->form) {
	case PLAIN: return true;
	case NUMBERS: return read_numbers(e, n, out);
	case GELU: return read_gelu(e, n, out);
	case CLAMP: return read_numbers(e, n, out) && out->scalars[0] <= out->scalars[1];
	case BOUNDED: out->scalars[1] = 6; return true;
	case POSITIVE: return arg_number(e, edit_arg(e, n, 1), &zero) && zero == 0;
	}
	return false;
}

bool read_activation(const edit *e, node_id n, activation *out)
{
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		if (edit_is(e, n, rows[i].op))
			return read_row(e, n, &rows[i], out);
	return false;
}
