/* Groups of the plan (plan/group.c) become one chain: a step of its own, or the epilogue of the product in front.
 *
 * Which nodes can be in a group is said here, to the pass that forms groups. It looks at a plan whose sizes may be formulas; if
 * a group cannot be evaluated at the sizes of a call (rows too long for a buffer, a kernel that is missing), its nodes are
 * lowered one by one, which gives the same. */
#include "native/elementwise.h"
#include "native/lowering.h"
#include "native/rows.h"

#include <float.h>

/* ---- what can be in a group ---------------------------------------------------------------------------------------------- */

enum { NOT_THERE = 15 };

typedef struct row_op {
	uint16_t id;
	uint8_t op;
	uint8_t dims, own; /* arguments: dimensions, and the number */
	uint8_t dtype;     /* argument that must be none */
} row_op;

static const row_op row_list[] = {
	{OP__log_softmax, ROW_LOG_SOFTMAX, 1, NOT_THERE, NOT_THERE},
	{OP__softmax, ROW_SOFTMAX, 1, NOT_THERE, NOT_THERE},
	{OP_amax, ROW_MAX, 1, NOT_THERE, NOT_THERE},
	{OP_amin, ROW_MIN, 1, NOT_THERE, NOT_THERE},
	{OP_argmax, ROW_ARGMAX, 1, NOT_THERE, NOT_THERE},
	{OP_argmin, ROW_ARGMIN, 1, NOT_THERE, NOT_THERE},
	{OP_layer_norm, ROW_LAYER_NORM, 1, 4, NOT_THERE},
	{OP_log_softmax_int, ROW_LOG_SOFTMAX, 1, NOT_THERE, 2},
	{OP_mean_dim, ROW_MEAN, 1, NOT_THERE, 3},
	{OP_rms_norm, ROW_RMS_NORM, 1, 3, NOT_THERE},
	{OP_softmax_int, ROW_SOFTMAX, 1, NOT_THERE, 2},
	{OP_std_correction, ROW_STD, 1, 2, NOT_THERE},
	{OP_std_dim, ROW_STD, 1, 2, NOT_THERE},
	{OP_sum_dim_IntList, ROW_SUM, 1, NOT_THERE, 3},
	{OP_var_correction, ROW_VAR, 1, 2, NOT_THERE},
	{OP_var_dim, ROW_VAR, 1, 2, NOT_THERE},
};

static const row_op *row_op_of(uint16_t id)
{
	for (size_t i = 0; i < sizeof row_list / sizeof *row_list; i++)
		if (row_list[i].id == id)
			return &row_list[i];
	return NULL;
}

static bool is_norm(const row_op *r)
{
	return r->op == ROW_LAYER_NORM || r->op == ROW_RMS_NORM;
}

static const arg *arg_at(const plan *p, node_id n, uint32_t i)
{
	static const arg none = {.kind = ARG_NONE};
	const node *x = &p->nodes.at[n];
	return i < x->nargs ? &p->args.at[x->args + i] : &none;
}

static bool is_f32(const plan *p, value_id v)
{
	return v != NONE && p->values.at[v].type == TYPE_TENSOR && p->values.at[v].dtype == DT_F32;
}

/* Along the last dimension alone: by its number, or for norms by one size. */
static bool works_along_rows(const plan *p, node_id n, const row_op *r)
{
	const arg *dims = arg_at(p, n, r->dims), *x = arg_at(p, n, 0);
	value_id v = arg_value(x);
	int64_t k;
	if (!is_f32(p, v) || p->values.at[v].ndim == 0 || arg_at(p, n, r->dtype)->kind != ARG_NONE)
		return false;
	if (is_norm(r))
		return dims->kind == ARG_LIST && dims->u.list.n == 1;
	if (dims->kind == ARG_LIST && dims->u.list.n == 1)
		dims = &p->args.at[dims->u.list.first];
	if (dims->kind != ARG_INT || !expr_is_const(p, dims->u.e, &k))
		return false;
	return k == -1 || k == (int64_t)p->values.at[v].ndim - 1;
}

static group_role element_role(const plan *p, node_id n)
{
	value_id r = node_result(p, n, 0);
	number_type type;
	for (uint32_t i = 0; i < p->nodes.at[n].nargs; i++) {
		value_id v = arg_value(arg_at(p, n, i));
		if (v != NONE && !ew_type(p->values.at[v].dtype, &type))
			return GROUP_NEVER;
	}
	return ew_type(p->values.at[r].dtype, &type) ? GROUP_ELEMENTS : GROUP_NEVER;
}

extern const native_op native_ops_conv[], native_ops_product[];

static bool is_of(const native_op *family, uint16_t id)
{
	while (family->id != OP_UNKNOWN && family->id != id)
		family++;
	return family->id == id;
}

group_role native_group_role(const plan *p, node_id n)
{
	uint16_t op = p->nodes.at[n].op_id;
	const row_op *r = row_op_of(op);
	value_id result = node_result(p, n, 0);
	if (result == NONE || p->values.at[result].type != TYPE_TENSOR || p->values.at[result].ndim > NT_DIMS ||
	    native_takes(p, n))
		return GROUP_NEVER;
	if (r)
		return works_along_rows(p, n, r) ? GROUP_ROWS : GROUP_NEVER;
	if (ew_row(op))
		return element_role(p, n);
	bool product = is_of(native_ops_conv, op) || is_of(native_ops_product, op);
	return product && is_f32(p, result) ? GROUP_PRODUCT : GROUP_NEVER;
}

/* ---- a node in a chain ------------------------------------------------------------------------------------------------------ */

static clv_status row_number(ew *e, node_id n, const row_op *r, double *out)
{
	bool unbiased;
	if (is_norm(r))
		return low_real(e->l, n, r->own, r->op == ROW_RMS_NORM ? FLT_EPSILON : 1e-5, out);
	if (r->op != ROW_VAR && r->op != ROW_STD)
		return CLV_OK;
	if (arg_at(low_plan(e->l), n, r->own)->kind != ARG_BOOL)
		return low_real(e->l, n, r->own, 1, out);
	TRY(low_bool(e->l, n, r->own, true, &unbiased));
	*out = unbiased;
	return CLV_OK;
}

static clv_status check_norm(ew *e, node_id n)
{
	int64_t size;
	uint32_t count;
	TRY(low_ints(e->l, n, 1, 1, &size, &count));
	return count == 1 && size == e->form.size[e->form.ndim - 1]
	           ? CLV_OK
	           : fail(CLV_E_INVALID, "the last dimension is not that of the norm");
}

/* A vector as long as the row. */
static clv_status norm_vector(ew *e, node_id n, uint32_t i, term *out, const term **given)
{
	slot s;
	TRY(low_tensor_or_none(e->l, n, i, &s));
	*given = NULL;
	if (s == NONE)
		return CLV_OK;
	if (low_at(e->l, s)->ndim != 1 || low_at(e->l, s)->size[0] != e->form.size[e->form.ndim - 1])
		return fail(CLV_E_UNSUPPORTED, "argument %u is no vector as long as a row", i);
	TRY(ew_input(e, s, out));
	*given = out;
	return CLV_OK;
}

static clv_status make_rows(ew *e, node_id n, const row_op *r, bool narrow, term *out)
{
	bool index = r->op == ROW_ARGMAX || r->op == ROW_ARGMIN;
	row_step s = {.op = r->op, .to = index ? NUM_I64 : NUM_F32, .narrow = narrow};
	term x, weight, bias;
	e->narrow = false;
	TRY(ew_arg(e, n, 0, &x));
	s.x = &x;
	TRY(row_number(e, n, r, &s.number));
	if (is_norm(r))
		TRY(check_norm(e, n));
	if (is_norm(r))
		TRY(norm_vector(e, n, 2, &weight, &s.weight));
	if (r->op == ROW_LAYER_NORM)
		TRY(norm_vector(e, n, 3, &bias, &s.bias));
	return ew_row_step(e, &s, out);
}

static bool gives_rows(const row_op *r)
{
	return r->op < ROW_SOFTMAX;
}

static clv_status make_cast(ew *e, node_id n, number_type to, term *out)
{
	term x;
	TRY(ew_arg(e, n, 0, &x));
	return ew_cast(e, &x, to, out);
}

/* Result 0 of the node; `space`: what all sizes are about. */
static clv_status make_member(ew *e, node_id n, value_id space)
{
	const plan *p = low_plan(e->l);
	const row_op *r = row_op_of(p->nodes.at[n].op_id);
	const native_op *o = ew_row(p->nodes.at[n].op_id);
	value_id v = node_result(p, n, 0);
	group_shape shape = shape_in(p, v, space);
	bool narrow = shape == SHAPE_ROWS || shape == SHAPE_ROWS_DROPPED;
	number_type type;
	term t;
	if (native_takes(p, n) || !ew_type(p->values.at[v].dtype, &type) || (!r && !o) || (r && gives_rows(r) != narrow))
		return fail(CLV_E_UNSUPPORTED, "it cannot be in a group");
	e->narrow = narrow;
	if (r)
		TRY(make_rows(e, n, r, narrow, &t));
	else if (ew_is_cast(o))
		TRY(make_cast(e, n, type, &t));
	else
		TRY(ew_node(e, n, &t));
	e->narrow = false;
	if (t.kind != TERM_TENSOR || t.type != type || e->regs[t.reg].narrow != narrow)
		return fail(CLV_E_UNSUPPORTED, "the plan has another dtype or shape than the operator gives");
	t.flat = p->values.at[v].ndim > 0;
	return ew_make(e, v, &t);
}

/* ---- a group as a step -------------------------------------------------------------------------------------------------------- */

static bool is_needed(const lowering *l, value_id v, node_id end)
{
	return l->g->kept[v] || (l->g->last[v] != NONE && l->g->last[v] >= end);
}

static bool works_whole(const plan *p, node_span s, value_id space)
{
	for (node_id n = s.first; n < s.end; n++)
		if (row_op_of(p->nodes.at[n].op_id) || shape_in(p, node_result(p, n, 0), space) != SHAPE_WHOLE)
			return true;
	return false;
}

static clv_status put_result(ew *e, node_id n, value_id space)
{
	value_id v = node_result(low_plan(e->l), n, 0);
	bool narrow = shape_in(low_plan(e->l), v, space) != SHAPE_WHOLE;
	nt form, expanded;
	slot s;
	term t;
	TRY(low_form(e->l, n, 0, &form));
	if (!e->c.whole)
		ew_layout(e, &form);
	TRY(low_result(e->l, n, 0, &form, false, &s));
	expanded = *low_at(e->l, s);
	if (expanded.ndim < e->form.ndim)
		expanded.stride[expanded.ndim] = 0;
	if (!ew_made(e, v, &t))
		return fail(CLV_E_INVALID, "a result of a group is not made");
	return ew_output_as(e, &t, s, &expanded, narrow);
}

/* Rows that do not lie in memory as such are summed in another order by an operator of its own: those stay with it, so that
   groups change no bits. */
static clv_status check_rows(const ew *e)
{
	unsigned last = e->form.ndim - 1u;
	for (unsigned r = 0; r < e->c.nregs; r++)
		if (e->c.whole && e->regs[r].kind == REG_INPUT && !e->regs[r].narrow && e->form.size[last] > 1 &&
		    e->regs[r].stride[last] > 1)
			return fail(CLV_E_UNSUPPORTED, "a row does not lie in one piece");
	return CLV_OK;
}

static clv_status make_chain(ew *e, node_span s, value_id space)
{
	e->c.whole = works_whole(low_plan(e->l), s, space);
	for (node_id n = s.first; n < s.end; n++)
		TRY(make_member(e, n, space));
	TRY(check_rows(e));
	for (node_id n = s.first; n < s.end; n++)
		if (is_needed(e->l, node_result(low_plan(e->l), n, 0), s.end))
			TRY(put_result(e, n, space));
	return ew_finish(e);
}

/* Failures to do it in one are none: only out of memory is. */
static clv_status unless_it_cannot(clv_status st, bool *done)
{
	*done = st == CLV_OK;
	return st == CLV_E_NOMEM ? st : CLV_OK;
}

static clv_status group_chain(lowering *l, node_span s, bool *done)
{
	value_id space;
	node_id at;
	nt form;
	ew *e;
	*done = false;
	l->at = s.first;
	if (group_fault(l->p, s, &at, &space) || low_form_of(l, space, &form) != CLV_OK || nt_numel(&form) == 0)
		return CLV_OK;
	TRY(ew_new(l, &form, &e));
	clv_status st = make_chain(e, s, space);
	mem_free(e);
	return unless_it_cannot(st, done);
}

/* ---- a group as an epilogue ------------------------------------------------------------------------------------------------------ */

/* Only the last result is needed later, and all have the sizes of the first. */
static bool is_epilogue(const lowering *l, node_span s)
{
	value_id first = node_result(l->p, s.first, 0);
	for (node_id n = s.first; n < s.end; n++) {
		value_id v = node_result(l->p, n, 0);
		if (v == NONE || l->p->nodes.at[n].nresults != 1 || shape_in(l->p, v, first) != SHAPE_WHOLE ||
		    (n + 1 < s.end && is_needed(l, v, s.end)))
			return false;
	}
	return true;
}

static clv_status make_epilogue(ew *e, node_span s, unsigned columns, epilogue *out)
{
	value_id first = node_result(low_plan(e->l), s.first, 0);
	term block, result;
	TRY(ew_block(e, &block));
	TRY(ew_make(e, first, &block));
	for (node_id n = s.first + 1; n < s.end; n++)
		TRY(make_member(e, n, first));
	if (!ew_made(e, node_result(low_plan(e->l), s.end - 1, 0), &result) || result.type != NUM_F32)
		return fail(CLV_E_UNSUPPORTED, "the last result of an epilogue is f32");
	return ew_finish_block(e, &block, &result, columns, out);
}

clv_status low_epilogue(lowering *l, node_id n, const nt *form, unsigned columns, epilogue *out)
{
	node_span s = l->group;
	bool done;
	ew *e;
	*out = (epilogue){0};
	if (s.first != n || s.end < n + 2 || !is_epilogue(l, s))
		return CLV_OK;
	TRY(ew_new(l, form, &e));
	clv_status st = make_epilogue(e, s, columns, out);
	mem_free(e);
	TRY(unless_it_cannot(st, &done));
	if (!done)
		*out = (epilogue){0};
	if (!out->run)
		return CLV_OK;
	for (node_id k = n + 1; k < s.end; k++)
		l->done[k] = true;
	l->until[n] = s.end - 1;
	return CLV_OK;
}

/* ---- a group ------------------------------------------------------------------------------------------------------------------------ */

/* Whatever is left of it after that runs node by node. */
clv_status low_group(lowering *l, node_span s)
{
	bool done;
	if (native_group_role(l->p, s.first) == GROUP_PRODUCT) {
		l->group = s;
		clv_status st = low_node(l, s.first);
		l->group = (node_span){NONE, NONE};
		l->done[s.first++] = true;
		if (st != CLV_OK || l->done[s.first])
			return st;
	}
	if (s.end - s.first < 2)
		return CLV_OK;
	TRY(group_chain(l, s, &done));
	for (node_id n = s.first; n < s.end && done; n++)
		l->done[n] = true;
	return CLV_OK;
}
