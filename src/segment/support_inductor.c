/* Which nodes AOTInductor takes: nearly all of PyTorch's own operators (ops.def has the exceptions), on tensors of plain types.
 *
 * Known problems are refused here rather than when a segment compiles: a segment that does not compile is bisected until
 * the bad node is found, which takes long. */
#include "segment/support.h"

#include "plan/ops.h"

static const char *refused_op(const char *text)
{
	op_name o = op_split(text);
	return op_in(&o, "aten") ? op_listed(INDUCTOR_REFUSE, &o) : "is no operator of PyTorch itself";
}

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

static void check_type(void *ctx, value_id v)
{
	node_walk *w = ctx;
	const value *x = &w->p->values.at[v];
	if (!w->no && x->type == TYPE_TENSOR && x->kind != VALUE_OBJECT)
		w->no = refused_type((dtype)x->dtype);
}

static const value *tensor_arg(const plan *p, const node *x, uint32_t i)
{
	const arg *a = i < x->nargs ? &p->args.at[x->args + i] : NULL;
	return a && a->kind == ARG_VALUE && p->values.at[a->u.v].type == TYPE_TENSOR ? &p->values.at[a->u.v] : NULL;
}

static bool size_is_constant(const plan *p, const value *v, uint32_t dim)
{
	return dim >= v->ndim || p->exprs.at[p->dims.at[v->shape + dim]].op == EXPR_CONST;
}

static bool is_recurrent(uint16_t op)
{
	return op == OP_lstm_input || op == OP_gru_input || op == OP_rnn_tanh_input || op == OP_rnn_relu_input;
}

/* What depends on the sizes of one node. */
static const char *refused_sizes(const plan *p, const node *x, const support_spec *s)
{
	const value *in = tensor_arg(p, x, 0);
	if (!in)
		return NULL;
	if (x->op_id == OP_grid_sampler && in->ndim == 5)
		return "has neither code in inductor nor a C function that its code could call";
	if (s->dynamic && is_recurrent(x->op_id)) {
		const arg *last = &p->args.at[x->args + x->nargs - 1];
		bool batch_first = last->kind == ARG_BOOL && last->u.b;
		if (!size_is_constant(p, in, in->ndim == 3 && batch_first ? 1 : 0))
			return "walks along a size that can change";
	}
	return NULL;
}

static const char *refused_node(const plan *p, node_id n, const support_spec *s)
{
	node_walk w = {p, NULL};
	node_each_arg(p, n, check_type, &w);
	node_each_result(p, n, check_type, &w);
	return w.no ? w.no : refused_sizes(p, &p->nodes.at[n], s);
}

clv_status support_inductor(const plan *p, const support_spec *s, const char **no, arena *a)
{
	static const char unseen[] = "";
	(void)a;
	const char **by_op = mem_alloc(((size_t)p->strs.n + 1) * sizeof *by_op); /* an operator is looked up once */
	TRY_MEM(by_op);
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
