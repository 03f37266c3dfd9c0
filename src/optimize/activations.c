/* Reads activations that oneDNN can apply to a result. */
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
	const char *name;
	form form;
	uint32_t numbers;
} rows[OP_COUNT] = {
#define BOTH(op, ...) [OP_##op] = {__VA_ARGS__}, [OP_##op##_] = {__VA_ARGS__} /* also in place */
	BOTH(relu, "relu", PLAIN, 0),
	BOTH(clamp_min, "relu", POSITIVE, 0),
	BOTH(sigmoid, "sigmoid", PLAIN, 0),
	BOTH(tanh, "tanh", PLAIN, 0),
	BOTH(silu, "swish", PLAIN, 0),
	BOTH(hardswish, "hardswish", PLAIN, 0),
	BOTH(hardsigmoid, "hardsigmoid", PLAIN, 0),
	BOTH(gelu, "gelu", GELU, 0),
	BOTH(leaky_relu, "leaky_relu", NUMBERS, 1),
	BOTH(hardtanh, "hardtanh", CLAMP, 2),
	BOTH(clamp, "hardtanh", CLAMP, 2),
	BOTH(relu6, "hardtanh", BOUNDED, 2),
};

static bool read_scalars(const edit *e, node_id n, activation *out)
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
	case NUMBERS: return read_scalars(e, n, out);
	case GELU: return read_gelu(e, n, out);
	case CLAMP: return read_scalars(e, n, out) && out->scalars[0] <= out->scalars[1];
	case BOUNDED: out->scalars[1] = 6; return true;
	case POSITIVE: return arg_number(e, edit_arg(e, n, 1), &zero) && zero == 0;
	}
	return false;
}

bool read_activation(const edit *e, node_id n, activation *out)
{
	const struct row *r = &rows[e->p->nodes.at[n].op_id];
	return r->name && !edit_pinned(e, n) && read_row(e, n, r, out);
}
