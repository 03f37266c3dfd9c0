/* What AOTInductor takes: nearly all of PyTorch's own operators (support_inductor.def has the others), on tensors of plain
 * types. It says no here rather than when it compiles, where that is known: a segment that does not compile is cut apart
 * until the culprit is found, which takes its time. */
#include "segment/support.h"

#include <string.h>

static const struct {
	const char *reason;
	const char *const *names; /* NULL ends */
} refusals[] = {
#define REFUSE(reason, ...) {reason, (const char *const[]){__VA_ARGS__, NULL}},
#include "segment/support_inductor.def"
};

/* "linalg_qr" for "linalg_qr", "linalg_qr.out" and, in place, "linalg_qr_"; "nanmedian.dim" for itself; "x.default" for x. */
static bool is_named(const char *op, const char *name)
{
	size_t base = strcspn(name, "."), n = strcspn(op, ".");
	if (n == base + 1 && op[base] == '_')
		n = base;
	if (n != base || strncmp(op, name, base) != 0)
		return false;
	const char *overload = strchr(op, '.');
	return !name[base] || strcmp(overload ? overload + 1 : "default", name + base + 1) == 0;
}

static const char *refused_op(const char *op)
{
	if (strncmp(op, "aten::", 6) != 0)
		return "is no operator of PyTorch itself";
	for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++)
		for (const char *const *name = refusals[i].names; *name; name++)
			if (is_named(op + 6, *name))
				return refusals[i].reason;
	return NULL;
}

/* ---- types ------------------------------------------------------------------------------------------------------------- */

static const char *refused_type(dtype d)
{
	switch (d) {
	case DT_BOOL:
	case DT_U8:
	case DT_I8:
	case DT_I16:
	case DT_I32:
	case DT_I64:
	case DT_F16:
	case DT_BF16:
	case DT_F32:
	case DT_F64: return NULL;
	case DT_C32:
	case DT_C64:
	case DT_C128: return "has complex numbers";
	default: return "has a tensor of a type that inductor does not compute with";
	}
}

typedef struct node_walk {
	const plan *p;
	const char *no;
} node_walk;

static void look_at_value(void *ctx, value_id v)
{
	node_walk *w = ctx;
	const value *x = &w->p->values.at[v];
	if (!w->no && x->type == TYPE_TENSOR && x->kind != VALUE_OBJECT)
		w->no = refused_type((dtype)x->dtype);
}

/* ---- sizes ------------------------------------------------------------------------------------------------------------- */

static const value *tensor_arg(const plan *p, const node *x, uint32_t i)
{
	const arg *a = i < x->nargs ? &p->args.at[x->args + i] : NULL;
	return a && a->kind == ARG_VALUE && p->values.at[a->u.v].type == TYPE_TENSOR ? &p->values.at[a->u.v] : NULL;
}

static bool is_constant(const plan *p, const value *v, uint32_t dim)
{
	return dim >= v->ndim || p->exprs.at[p->dims.at[v->shape + dim]].op == EXPR_CONST;
}

static bool is_recurrent(const char *op)
{
	return is_named(op, "lstm.input") || is_named(op, "gru.input") || is_named(op, "rnn_tanh.input") ||
	       is_named(op, "rnn_relu.input");
}

/* What depends on the sizes of one node. */
static const char *refused_sizes(const plan *p, const node *x, const support_spec *s)
{
	const char *op = plan_s(p, x->op) + 6;
	const value *in = tensor_arg(p, x, 0);
	if (!in)
		return NULL;
	if (is_named(op, "grid_sampler") && in->ndim == 5)
		return "has neither code in inductor nor a C function that its code could call";
	if (s->dynamic && is_recurrent(op)) {
		const arg *last = &p->args.at[x->args + x->nargs - 1];
		bool batch_first = last->kind == ARG_BOOL && last->u.b;
		if (!is_constant(p, in, in->ndim == 3 && batch_first ? 1 : 0))
			return "walks along a size that can change";
	}
	return NULL;
}

/* ---- the plan ---------------------------------------------------------------------------------------------------------- */

static const char *refused_node(const plan *p, node_id n, const support_spec *s)
{
	node_walk w = {p, NULL};
	node_each_arg(p, n, look_at_value, &w);
	node_each_result(p, n, look_at_value, &w);
	return w.no ? w.no : refused_sizes(p, &p->nodes.at[n], s);
}

clv_status support_inductor(const plan *p, const support_spec *s, const char **no, arena *a)
{
	static const char unseen[] = "";
	(void)a;
	const char **by_op = mem_alloc(((size_t)p->strs.n + 1) * sizeof *by_op); /* an operator is looked up once */
	if (!by_op)
		return fail_nomem();
	for (uint32_t i = 0; i < p->strs.n; i++)
		by_op[i] = unseen;
	for (node_id n = 0; n < p->nodes.n; n++) {
		const char **known = &by_op[p->nodes.at[n].op];
		if (*known == unseen)
			*known = refused_op(plan_s(p, p->nodes.at[n].op));
		no[n] = *known ? *known : refused_node(p, n, s);
	}
	mem_free(by_op);
	return CLV_OK;
}
