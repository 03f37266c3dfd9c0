/* Linears that oneDNN does with what follows them, on weights that it has laid out. A call costs more than one of the
 * operators it stands for, so small ones stay. */
#include "optimize/fuse.h"

#include <string.h>

/* Multiplications from which on the call is worth it; where the number of rows is not known, elements of the weight. */
enum { ENOUGH_WORK = 1 << 20, ENOUGH_WEIGHT = 1 << 18 };

/* ---- reading ------------------------------------------------------------------------------------------------------- */

/* x @ weight with what is added to it, where weight has its inputs first. */
static bool read_product(const edit *e, node_id n, weighted *out)
{
	bool sum = edit_is(e, n, "aten::addmm");
	double alpha, beta;
	if (!sum && !edit_is(e, n, "aten::mm") && !edit_is(e, n, "aten::matmul"))
		return false;
	if (sum && (!arg_number(e, edit_arg(e, n, 3), &beta) || !arg_number(e, edit_arg(e, n, 4), &alpha) || alpha != 1 ||
	            beta != 1))
		return false;
	*out = (weighted){.node = n, .x = edit_value(e, n, sum), .weight = edit_value(e, n, sum + 1u)};
	out->bias = sum ? edit_value(e, n, 0) : NONE;
	out->result = edit_result(e, n);
	return out->x != NONE && out->weight != NONE && out->result != NONE && (!sum || out->bias != NONE) &&
	       e->p->values.at[out->result].alias == NONE;
}

typedef struct linear {
	weighted w;
	bool transposed; /* the weight has its inputs first */
	int64_t ins, outs, rows;
	bool has_rows;
} linear;

static bool read_linear(const edit *e, node_id n, linear *l)
{
	*l = (linear){0};
	if (edit_is(e, n, "aten::linear"))
		return read_weighted(e, n, &l->w);
	l->transposed = true;
	return read_product(e, n, &l->w);
}

static bool is_usable(const fuser *f, linear *l)
{
	const edit *e = f->e;
	const weighted *w = &l->w;
	if (!is_f32_cpu(e, w->x) || !is_f32_cpu(e, w->weight) || !is_f32_cpu(e, w->result) || !f->constant[w->weight])
		return false;
	if (e->p->values.at[w->weight].ndim != 2 || e->p->values.at[w->x].ndim < 2)
		return false;
	if (!fixed_dim(e, w->weight, l->transposed, &l->outs) || !fixed_dim(e, w->weight, !l->transposed, &l->ins))
		return false;
	uint32_t last = e->p->values.at[w->x].ndim - 1;
	bool bias = w->bias == NONE || (is_f32_cpu(e, w->bias) && f->constant[w->bias] &&
	                                e->p->values.at[w->bias].ndim == 1 && dim_is(e, w->bias, 0, l->outs));
	return bias && dim_is(e, w->x, last, l->ins) && e->p->values.at[w->result].ndim == last + 1;
}

static clv_status find_rows(const fuser *f, linear *l)
{
	uint32_t ndim = f->e->p->values.at[l->w.x].ndim;
	l->rows = 1;
	l->has_rows = true;
	for (uint32_t d = 0; d + 1 < ndim && l->has_rows; d++) {
		int64_t k;
		TRY(expected_dim(f, l->w.x, d, &k, &l->has_rows));
		l->has_rows = l->has_rows && k > 0 && k <= INT32_MAX / l->rows;
		l->rows *= l->has_rows ? k : 1;
	}
	return CLV_OK;
}

static bool is_worth_it(const linear *l)
{
	double weight = (double)l->ins * (double)l->outs;
	return l->has_rows ? weight * (double)l->rows >= ENOUGH_WORK : weight >= ENOUGH_WEIGHT;
}

/* ---- writing ------------------------------------------------------------------------------------------------------- */

/* The weight with its outputs first. */
static clv_status turn(const spot *at, const linear *l, value_id *out)
{
	int64_t shape[] = {l->outs, l->ins};
	arg args[] = {arg_of(l->w.weight)};
	edit *e = at->e;
	TRY(new_tensor(e, l->w.weight, DT_F32, shape, 2, out));
	e->p->values.at[*out].alias = alias_root(e->p, l->w.weight);
	return put_node(at, "aten::t", args, 1, *out);
}

static clv_status pack(fuser *f, const linear *l, value_id *out)
{
	edit *e = f->e;
	spot at = {e, l->w.node, l->w.node};
	int64_t shape[] = {l->outs, l->ins};
	value_id weight = l->w.weight;
	if (l->transposed)
		TRY(turn(&at, l, &weight));
	arg args[2] = {arg_of(weight), arg_of(NONE)};
	if (l->has_rows)
		TRY(arg_int(e, l->rows, &args[1]));
	TRY(new_tensor(e, weight, DT_F32, shape, 2, out));
	e->p->values.at[*out].flags |= VALUE_ODD;
	return put_node(&at, "mkldnn::_reorder_linear_weight", args, 2, *out);
}

static clv_status join_linear(fuser *f, const linear *l, value_id weight, const tail *t)
{
	const weighted *w = &l->w;
	if (t->binary) {
		arg args[5] = {arg_of(w->x), arg_of(t->other), arg_of(weight), arg_of(w->bias)};
		TRY(arg_text(f->e, t->binary, &args[4]));
		return join(f, w, t, "mkldnn::_linear_pointwise.binary", args, 5);
	}
	arg args[6] = {arg_of(w->x), arg_of(weight), arg_of(w->bias)};
	TRY(activation_args(f, &t->act, "none", &args[3]));
	return join(f, w, t, "mkldnn::_linear_pointwise", args, 6);
}

clv_status fuse_linear(fuser *f, node_id n)
{
	linear l;
	tail t;
	bool (*has)(const char *) = f->s->has_op;
	if (!read_linear(f->e, n, &l) || !is_usable(f, &l))
		return CLV_OK;
	if (!has("mkldnn::_reorder_linear_weight") || !has("mkldnn::_linear_pointwise"))
		return CLV_OK;
	TRY(find_rows(f, &l));
	if (!is_worth_it(&l))
		return CLV_OK;
	value_id weight;
	find_tail(f, &l.w, TAIL_UNARY | (has("mkldnn::_linear_pointwise.binary") ? TAIL_BINARY : 0), &t);
	TRY(pack(f, &l, &weight));
	return join_linear(f, &l, weight, &t);
}
