/* Fuses linears with the operators after them, on weights that oneDNN has laid out.
 * A call costs more than one of the operators it stands for, so small ones stay. */
#include "optimize/fuse.h"

/* Multiplications from which on the call is worth it; where the number of rows is not known, elements of the weight. */
enum { ENOUGH_WORK = 1 << 20, ENOUGH_WEIGHT = 1 << 18 };

/* A linear with how many rows it has; NONE: nothing is known. */
typedef struct sized {
	linear l;
	expr_id rows;
} sized;

static bool can_fuse_linear(const edit *e, const weighted *w)
{
	return is_f32_cpu(e, w->x) && is_f32_cpu(e, w->weight) && is_f32_cpu(e, w->result) &&
	       (w->bias == NONE || is_f32_cpu(e, w->bias));
}

static clv_status find_rows(const fuser *f, sized *x)
{
	bool known;
	x->rows = NONE;
	TRY(has_hints(f, x->l.w.x, &known));
	return known ? row_count(f->e, x->l.w.x, &x->rows) : CLV_OK;
}

static bool is_worth_it(const plan *p, const sized *x)
{
	double weight = (double)x->l.ins * (double)x->l.outs;
	int64_t rows;
	if (x->rows != NONE && expr_is_const(p, x->rows, &rows))
		return weight * (double)rows >= ENOUGH_WORK;
	return weight >= ENOUGH_WEIGHT;
}

static clv_status pack(fuser *f, const sized *x, value_id *out)
{
	edit *e = f->e;
	const linear *l = &x->l;
	spot at = {e, l->w.node, l->w.node};
	int64_t shape[] = {l->outs, l->ins};
	value_id weight = l->w.weight;
	if (l->transposed)
		TRY(turn_weight(&at, l, &weight));
	arg args[2] = {arg_of(weight), arg_of(NONE)};
	if (x->rows != NONE)
		args[1] = (arg){.kind = ARG_INT, .u.e = x->rows};
	TRY(new_tensor(e, weight, DT_F32, shape, 2, out));
	e->p->values.at[*out].flags |= VALUE_ODD;
	return put_node(&at, OP_mkldnn__reorder_linear_weight, args, 2, *out);
}

static clv_status join_linear(fuser *f, const weighted *w, value_id weight, const tail *t)
{
	if (t->binary) {
		arg args[5] = {arg_of(w->x), arg_of(t->other), arg_of(weight), arg_of(w->bias)};
		TRY(arg_text(f->e, t->binary, &args[4]));
		return join(f, w, t, OP_mkldnn__linear_pointwise_binary, args, 5);
	}
	arg args[6] = {arg_of(w->x), arg_of(weight), arg_of(w->bias)};
	TRY(activation_args(f, &t->act, "none", &args[3]));
	return join(f, w, t, OP_mkldnn__linear_pointwise, args, 6);
}

clv_status fuse_linear(fuser *f, node_id n)
{
	sized x;
	tail t;
	if (!read_linear(f->e, f->constant, n, &x.l) || !can_fuse_linear(f->e, &x.l.w))
		return CLV_OK;
	if (!has_operator(f->s, OP_mkldnn__reorder_linear_weight) || !has_operator(f->s, OP_mkldnn__linear_pointwise))
		return CLV_OK;
	TRY(find_rows(f, &x));
	if (!is_worth_it(f->e->p, &x))
		return CLV_OK;
	value_id weight;
	find_tail(f, &x.l.w, TAIL_UNARY | (has_operator(f->s, OP_mkldnn__linear_pointwise_binary) ? TAIL_BINARY : 0), &t);
	TRY(pack(f, &x, &weight));
	return join_linear(f, &x.l.w, weight, &t);
}
