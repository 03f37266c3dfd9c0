/* Effects that a node of its kind has, and this one has not, as its arguments say: dropout that drops nothing draws
 * nothing, and what is indexed with numbers, not with a mask, has a size that does not depend on data. And those that it
 * may have in one run and not in another: what was a copy at capture is a view where a tensor lies otherwise. */
#include <string.h>

#include "plan/intern.h"

/* An operator and the argument without which it draws nothing: a flag that is false, or a rate that is 0. */
typedef struct switch_row {
	const char *op;
	uint32_t at;
} switch_row;

static const switch_row switches[] = {
	{"aten::_scaled_dot_product_efficient_attention", 5},
	{"aten::_scaled_dot_product_flash_attention", 3},
	{"aten::_scaled_dot_product_flash_attention_for_cpu", 3},
	{"aten::alpha_dropout", 1},
	{"aten::alpha_dropout", 2},
	{"aten::alpha_dropout_", 1},
	{"aten::alpha_dropout_", 2},
	{"aten::dropout", 1},
	{"aten::dropout", 2},
	{"aten::dropout_", 1},
	{"aten::dropout_", 2},
	{"aten::feature_alpha_dropout", 1},
	{"aten::feature_alpha_dropout", 2},
	{"aten::feature_alpha_dropout_", 1},
	{"aten::feature_alpha_dropout_", 2},
	{"aten::feature_dropout", 1},
	{"aten::feature_dropout", 2},
	{"aten::feature_dropout_", 1},
	{"aten::feature_dropout_", 2},
	{"aten::gru.data", 6},
	{"aten::gru.data", 7},
	{"aten::gru.input", 5},
	{"aten::gru.input", 6},
	{"aten::lstm.data", 6},
	{"aten::lstm.data", 7},
	{"aten::lstm.input", 5},
	{"aten::lstm.input", 6},
	{"aten::native_dropout", 2},
	{"aten::rnn_relu.data", 6},
	{"aten::rnn_relu.data", 7},
	{"aten::rnn_relu.input", 5},
	{"aten::rnn_relu.input", 6},
	{"aten::rnn_tanh.data", 6},
	{"aten::rnn_tanh.data", 7},
	{"aten::rnn_tanh.input", 5},
	{"aten::rnn_tanh.input", 6},
	{"aten::rrelu", 3},
	{"aten::rrelu_", 3},
	{"aten::rrelu_with_noise", 4},
	{"aten::scaled_dot_product_attention", 4},
};

static bool is_off(const arg *a)
{
	return (a->kind == ARG_BOOL && !a->u.b) || (a->kind == ARG_FLOAT && a->u.f == 0);
}

bool node_draws(const plan *p, node_id n)
{
	const node *x = &p->nodes.at[n];
	const char *op = plan_s(p, x->op);
	if (!(x->flags & NODE_RANDOM))
		return false;
	for (size_t i = 0; i < sizeof switches / sizeof *switches; i++)
		if (!strcmp(switches[i].op, op) && switches[i].at < x->nargs && is_off(&p->args.at[x->args + switches[i].at]))
			return false;
	return true;
}

/* none, or a tensor of numbers: a mask is of booleans, or of bytes as it was once. */
static bool is_number_index(const plan *p, const arg *a)
{
	if (a->kind != ARG_VALUE)
		return a->kind == ARG_NONE;
	const value *x = &p->values.at[a->u.v];
	return x->type == TYPE_TENSOR && x->kind != VALUE_OBJECT &&
	       (x->dtype == DT_I64 || x->dtype == DT_I32 || x->dtype == DT_I16 || x->dtype == DT_I8);
}

static bool indexes_with_numbers(const plan *p, const node *x)
{
	if (x->nargs < 2 || strcmp(plan_s(p, x->op), "aten::index.Tensor") != 0)
		return false;
	const arg *list = &p->args.at[x->args + 1];
	for (uint32_t i = 0; list->kind == ARG_LIST && i < list->u.list.n; i++)
		if (!is_number_index(p, &p->args.at[list->u.list.first + i]))
			return false;
	return list->kind == ARG_LIST;
}

bool value_guarded(const plan *p, value_id v)
{
	const value *x = &p->values.at[v];
	return (x->flags & VALUE_GUARD) && !(x->def != NONE && indexes_with_numbers(p, &p->nodes.at[x->def]));
}

/* The tensor itself where it lies as asked for, else a copy. */
static bool copies_if_needed(const char *op)
{
	static const char *const names[] = {
		"aten::contiguous",      "aten::flatten.using_ints", "aten::ravel",       "aten::reshape",   "aten::reshape_as",
		"aten::resolve_conj",    "aten::resolve_neg",        "aten::sum_to_size", "aten::to.device", "aten::to.dtype",
		"aten::to.dtype_layout", "aten::to.other",           "aten::type_as"};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (op[0] == 'a' && !strcmp(op, names[i]))
			return true;
	return false;
}

bool node_may_view(const plan *p, node_id n, value_id *from, value_id *to)
{
	const node *x = &p->nodes.at[n];
	if (!copies_if_needed(plan_s(p, x->op)) || !x->nargs || x->nresults != 1)
		return false;
	const arg *a = &p->args.at[x->args], *r = &p->args.at[x->results];
	if (a->kind != ARG_VALUE || r->kind != ARG_VALUE)
		return false;
	const value *given = &p->values.at[a->u.v], *made = &p->values.at[r->u.v];
	*from = alias_root(p, a->u.v);
	*to = r->u.v;
	return made->alias == NONE && given->dtype == made->dtype && given->device == made->device;
}

void written_through(const plan *p, node_id first, node_id end, bool *written)
{
	value_id from, to;
	for (bool again = true; again;) {
		again = false;
		for (node_id n = first; n < end; n++)
			if (node_may_view(p, n, &from, &to) && written[from] != written[to])
				again = written[from] = written[to] = true;
	}
}
