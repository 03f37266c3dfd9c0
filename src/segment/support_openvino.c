/* Which nodes OpenVINO takes: operators of the table, on types that it computes as torch does.
 *
 * On the CPU it computes i64 in 32 bits, f64 in f32, and small integers without wrapping around. So i64 is taken only for
 * indices, which are smaller than a size, or for results of operators that make such; integers other than i32 and bool
 * only where they are converted. */
#include "segment/support.h"

#include <string.h>

#include "plan/intern.h"
#include "plan/ops.h"

static const char *refuse_name(op_name o)
{
	if (!op_in(&o, "aten"))
		return "is no operator of PyTorch itself";
	const char *why = op_listed(OPENVINO_REFUSE, &o);
	return why || op_listed(OPENVINO_TAKE, &o) ? why : "has no conversion to OpenVINO";
}

/* ---- types ------------------------------------------------------------------------------------------------------------ */

typedef struct walk {
	const plan *p;
	const bool *small; /* per value: i64 whose numbers fit in 32 bits */
	op_name op;
	const char *found;
	uint32_t at;       /* which argument */
	bool small_so_far; /* all i64 arguments are small */
} walk;

static void refuse_if(walk *w, bool there, const char *what)
{
	if (there && !w->found)
		w->found = what;
}

static bool takes_index(op_name o, uint32_t at)
{
	const char *where = op_listed(OPENVINO_INDEX, &o);
	return where && (uint32_t)(where[0] - '0') == at;
}

static bool is_wrapping(uint8_t d)
{
	return d == DT_U8 || d == DT_I8 || d == DT_I16 || d == DT_U16 || d == DT_U32 || d == DT_U64;
}

static void check_tensor_type(walk *w, const value *x)
{
	uint8_t d = x->dtype;
	bool plain =
		d == DT_F32 || d == DT_F16 || d == DT_BF16 || d == DT_I32 || d == DT_I64 || d == DT_BOOL || is_wrapping(d);
	refuse_if(w, d == DT_F64, "is in f64, which OpenVINO computes in f32");
	refuse_if(w, !plain, "has a tensor of a type that OpenVINO does not compute in");
	refuse_if(w, strcmp(plan_s(w->p, x->device), "cpu") != 0, "is not on the CPU");
	refuse_if(w, x->ndim > 8, "has a tensor of more than 8 dimensions");
	refuse_if(w, (d == DT_I32 || d == DT_I64) && op_listed(OPENVINO_FLOAT, &w->op), "is done otherwise for integers");
}

static void check_arg_type(void *ctx, value_id v)
{
	walk *w = ctx;
	const value *x = &w->p->values.at[v];
	if (x->type != TYPE_TENSOR || x->kind == VALUE_OBJECT)
		return;
	check_tensor_type(w, x);
	refuse_if(w, is_wrapping(x->dtype) && !op_listed(OPENVINO_CAST, &w->op),
	          "is in small integers, which OpenVINO does not wrap around");
	bool large = x->dtype == DT_I64 && !w->small[v];
	refuse_if(w, large && !takes_index(w->op, w->at), "is in i64, which OpenVINO computes in 32 bits");
	bool given =
		x->kind == VALUE_INPUT || x->kind == VALUE_RESULT; /* else it was in range at the trace, and stays so */
	refuse_if(w, takes_index(w->op, w->at) && given && !w->small[v],
	          "has indices, and OpenVINO does not see those out of range");
	w->small_so_far &= !large;
	refuse_if(w, x->ndim == 0 && op_listed(OPENVINO_DIMS, &w->op), "takes a tensor without dimensions");
}

/* Whether i64 results fit in 32 bits. */
static bool makes_small(const walk *w)
{
	return w->small_so_far && (op_listed(OPENVINO_COUNT, &w->op) || op_listed(OPENVINO_MOVE, &w->op));
}

static void check_result_type(void *ctx, value_id v)
{
	walk *w = ctx;
	const value *x = &w->p->values.at[v];
	if (x->type != TYPE_TENSOR)
		return;
	check_tensor_type(w, x);
	refuse_if(w, is_wrapping(x->dtype), "gives small integers, which OpenVINO does not wrap around");
	refuse_if(w, x->dtype == DT_I64 && !makes_small(w), "gives i64, which OpenVINO computes in 32 bits");
}

/* ---- nodes ------------------------------------------------------------------------------------------------------------ */

static void each_tensor(const plan *p, const arg *a, walk *w)
{
	if (a->kind == ARG_VALUE)
		check_arg_type(w, a->u.v);
	for (uint32_t i = 0; a->kind == ARG_LIST && i < a->u.list.n; i++)
		each_tensor(p, &p->args.at[a->u.list.first + i], w);
}

static void check_writes(walk *w, const node *x)
{
	for (uint32_t i = 0; i < x->nwrites; i++) {
		value_id root = alias_root(w->p, w->p->ids.at[x->writes + i]);
		refuse_if(w, w->p->values.at[root].kind != VALUE_RESULT, "writes into a tensor of the model or of the caller");
	}
}

static bool takes_dtype(const plan *p, const node *x)
{
	for (uint32_t i = 0; i < x->nargs; i++)
		if (p->args.at[x->args + i].kind == ARG_DTYPE)
			return true;
	return false;
}

/* (x, kernel, stride, padding, ceil_mode, count_include_pad, divisor) */
static void check_pool(walk *w, const node *x)
{
	const arg *at = w->p->args.at + x->args;
	if (strncmp(w->op.base, "avg_pool", 8) != 0)
		return;
	refuse_if(w, x->nargs > 4 && at[4].kind == ARG_BOOL && at[4].u.b,
	          "rounds sizes up, where OpenVINO averages otherwise");
	refuse_if(w, x->nargs > 6 && at[6].kind != ARG_NONE, "divides by a number of its own, which OpenVINO does not");
}

/* std, var and their like, as (x, dim, correction, keepdim) */
static void check_correction(walk *w, const node *x, const char *op)
{
	const arg *at = w->p->args.at + x->args;
	int64_t k = 1;
	const char *overload = strchr(op, '.');
	if (!overload || strcmp(overload, ".correction") != 0 || x->nargs < 3 || at[2].kind == ARG_NONE)
		return;
	bool known = at[2].kind == ARG_INT && expr_is_const(w->p, at[2].u.e, &k) && (k == 0 || k == 1);
	refuse_if(w, !known, "has a correction other than 0 and 1, which OpenVINO leaves out");
}

/* (query, key, value, mask, …): a row that may see nothing is 0 in torch. */
static void check_mask(walk *w, const node *x)
{
	refuse_if(
		w, x->op_id == OP_scaled_dot_product_attention && x->nargs > 3 && w->p->args.at[x->args + 3].kind != ARG_NONE,
		"has a mask, and OpenVINO gives nan for rows that are masked wholly");
}

static void check_node_support(walk *w, node_id n)
{
	const node *x = &w->p->nodes.at[n];
	const char *op = plan_s(w->p, x->op);
	refuse_if(w, w->p->contexts.at[x->context].nautocast > 0, "runs under autocast");
	refuse_if(w, x->op_id == OP_view_dtype, "reads the bits of its elements as another type");
	refuse_if(w, takes_dtype(w->p, x) && op_listed(OPENVINO_FLOAT, &w->op), "is done otherwise in another type");
	check_writes(w, x);
	refuse_if(w, strstr(op, "_mode") && (!strncmp(op, "aten::div", 9)),
	          "rounds quotients, which OpenVINO does otherwise");
	check_pool(w, x);
	check_mask(w, x);
	check_correction(w, x, op);
	for (w->at = 0; w->at < x->nargs; w->at++)
		each_tensor(w->p, &w->p->args.at[x->args + w->at], w);
	node_each_result(w->p, n, check_result_type, w);
}

typedef struct mark {
	const plan *p;
	bool *small;
	bool yes;
} mark;

static void mark_small(void *ctx, value_id v)
{
	mark *m = ctx;
	m->small[v] = m->yes && m->p->values.at[v].type == TYPE_TENSOR && m->p->values.at[v].dtype == DT_I64;
}

clv_status support_openvino(const plan *p, const support_spec *s, const char **no, arena *a)
{
	(void)s;
	(void)a;
	bool *small = mem_alloc((size_t)p->values.n + 1);
	TRY_MEM(small);
	for (node_id n = 0; n < p->nodes.n; n++) {
		walk w = {.p = p, .small = small, .op = op_split(plan_s(p, p->nodes.at[n].op)), .small_so_far = true};
		w.found = refuse_name(w.op);
		check_node_support(&w, n);
		no[n] = no[n] ? no[n] : w.found;
		mark m = {p, small, op_in(&w.op, "aten") && makes_small(&w)};
		node_each_result(p, n, mark_small, &m);
	}
	mem_free(small);
	return CLV_OK;
}
