/* Proves that rows of a batch stay apart.
 *
 * Every value is *shared* (it has nothing of the batch in it) or *rows*: its first dimension is the batch, no other size depends on
 * the batch, and row i is made of row i of the inputs and of what is shared. Each node has to keep that; the first that does not, or
 * of which nothing is known, is the reason. What operators do to rows is column BATCH of ops.def. */
#include "plan/rows.h"

#include <string.h>

#include "plan/ops.h"

enum { UNSEEN, SHARED, ROWS };

typedef struct proof {
	const view *v;
	const plan *p;
	expr_id batch;
	bool *mentions, *real_mentions; /* per expression, per real: the batch is in it */
	uint8_t *state;                 /* per value */
} proof;

/* ---- arguments --------------------------------------------------------------------------------------------------------------------- */

static const arg *arg_of(const proof *f, const node *n, uint32_t i)
{
	static const arg none = {.kind = ARG_NONE};
	return i < n->nargs ? &f->p->args.at[n->args + i] : &none;
}

static bool is_tensor(const proof *f, const arg *a)
{
	return a->kind == ARG_VALUE && f->p->values.at[a->u.v].type == TYPE_TENSOR;
}

static uint32_t ndim_of(const proof *f, const arg *a)
{
	return is_tensor(f, a) ? f->p->values.at[a->u.v].ndim : 0;
}

static expr_id dim_of(const proof *f, value_id v, uint32_t d)
{
	return f->p->dims.at[f->p->values.at[v].shape + d];
}

static bool is_row_shaped(const proof *f, value_id v)
{
	const value *x = &f->p->values.at[v];
	if (x->type != TYPE_TENSOR || x->flags & (VALUE_ODD | VALUE_GUARD) || !x->ndim || dim_of(f, v, 0) != f->batch)
		return false;
	for (uint32_t d = 1; d < x->ndim; d++)
		if (f->mentions[dim_of(f, v, d)])
			return false;
	return true;
}

static bool is_shared_shaped(const proof *f, value_id v)
{
	const value *x = &f->p->values.at[v];
	for (uint32_t d = 0; x->type == TYPE_TENSOR && d < x->ndim; d++)
		if (f->mentions[dim_of(f, v, d)])
			return false;
	return true;
}

typedef bool (*arg_fn)(const proof *f, const arg *a);

/* Whether an argument, or an element of one that is a list, is so. */
static bool any_arg(const proof *f, const arg *a, arg_fn fn)
{
	for (uint32_t i = 0; a->kind == ARG_LIST && i < a->u.list.n; i++)
		if (any_arg(f, &f->p->args.at[a->u.list.first + i], fn))
			return true;
	return a->kind != ARG_LIST && fn(f, a);
}

static bool has_rows(const proof *f, const arg *a)
{
	return is_tensor(f, a) && f->state[a->u.v] == ROWS;
}

static bool has_unseen(const proof *f, const arg *a)
{
	return a->kind == ARG_VALUE && f->state[a->u.v] == UNSEEN;
}

static bool has_batch(const proof *f, const arg *a)
{
	return (a->kind == ARG_INT && f->mentions[a->u.e]) || (a->kind == ARG_REAL && f->real_mentions[a->u.r]);
}

static bool any_of(const proof *f, const node *n, arg_fn fn)
{
	for (uint32_t i = 0; i < n->nargs; i++)
		if (any_arg(f, arg_of(f, n, i), fn))
			return true;
	return false;
}

/* Tensors from argument `from` on are shared. */
static bool rest_is_shared(const proof *f, const node *n, uint32_t from)
{
	for (uint32_t i = from; i < n->nargs; i++)
		if (any_arg(f, arg_of(f, n, i), has_rows))
			return false;
	return true;
}

/* A number that says a dimension of a tensor with ndim of them, and it is not 0. */
static bool is_other_dim(const proof *f, const arg *a, uint32_t ndim)
{
	int64_t d;
	if (a->kind != ARG_INT || !expr_is_const(f->p, a->u.e, &d))
		return false;
	d += d < 0 ? (int64_t)ndim : 0;
	return d > 0 && d < (int64_t)ndim;
}

static bool are_other_dims(const proof *f, const arg *a, uint32_t ndim)
{
	if (a->kind != ARG_LIST)
		return is_other_dim(f, a, ndim);
	for (uint32_t i = 0; i < a->u.list.n; i++)
		if (!is_other_dim(f, &f->p->args.at[a->u.list.first + i], ndim))
			return false;
	return a->u.list.n > 0;
}

/* Spread over something with ndim dimensions it says the same to every row, or each its own. */
static bool broadcasts(const proof *f, const arg *a, uint32_t ndim)
{
	int64_t k;
	if (!is_tensor(f, a))
		return true;
	if (f->state[a->u.v] == ROWS)
		return ndim_of(f, a) == ndim;
	return ndim_of(f, a) < ndim || (ndim_of(f, a) == ndim && expr_is_const(f->p, dim_of(f, a->u.v, 0), &k) && k == 1);
}

/* ---- rules ---------------------------------------------------------------------------------------------------------------------------- */

static bool is_off(const arg *a)
{
	return a->kind == ARG_BOOL && !a->u.b;
}

/* *ndim: of the first. */
static bool is_list_of_rows(const proof *f, const arg *a, uint32_t *ndim)
{
	if (a->kind != ARG_LIST || !a->u.list.n)
		return false;
	const arg *one = &f->p->args.at[a->u.list.first];
	*ndim = ndim_of(f, one);
	for (uint32_t i = 0; i < a->u.list.n; i++)
		if (!has_rows(f, &one[i]))
			return false;
	return true;
}

static bool product_keeps(const proof *f, const arg *a, const arg *b)
{
	if (!has_rows(f, a))
		return false;
	if (has_rows(f, b))
		return ndim_of(f, a) >= 3 && ndim_of(f, a) == ndim_of(f, b);
	return ndim_of(f, a) >= 2 && ndim_of(f, b) >= 1 && ndim_of(f, b) <= 2;
}

/* The tensors among the first `count` arguments are rows, with as many dimensions. */
static bool are_rows(const proof *f, const node *n, uint32_t count, uint32_t ndim)
{
	for (uint32_t i = 0; i < count; i++) {
		const arg *a = arg_of(f, n, i);
		if (is_tensor(f, a) && (!has_rows(f, a) || ndim_of(f, a) != ndim))
			return false;
	}
	return true;
}

/* New dimensions count for the places of stack and unsqueeze. */
static uint32_t places(uint16_t op, uint32_t ndim)
{
	return op == OP_stack || op == OP_unsqueeze ? ndim + 1 : ndim;
}

static bool rule_holds(const proof *f, const node *n, uint32_t result_ndim)
{
	const op_row *row = &op_rows[n->op_id];
	uint8_t i = row->batch.at;
	const arg *a = arg_of(f, n, 0), *at = arg_of(f, n, i);
	uint32_t ndim = ndim_of(f, a);
	bool first = has_rows(f, a) && ndim >= row->batch.least, alone = first && rest_is_shared(f, n, 1);
	switch ((batch_rule)row->batch.rule) {
	case BATCH_ALONE:
	case BATCH_RESHAPE: return alone;
	case BATCH_DIMS: return alone && are_other_dims(f, at, places(n->op_id, ndim));
	case BATCH_TWO_DIMS: return alone && is_other_dim(f, at, ndim) && is_other_dim(f, arg_of(f, n, i + 1u), ndim);
	case BATCH_SHAPE: return alone && at->kind == ARG_LIST && at->u.list.n < ndim;
	case BATCH_OFF: return alone && is_off(at);
	case BATCH_EXPAND: return is_tensor(f, a) && broadcasts(f, a, result_ndim);
	case BATCH_PRODUCT: return product_keeps(f, a, at);
	case BATCH_EVERY: return first && are_rows(f, n, n->nargs, ndim);
	case BATCH_ATTENTION:
		return first && are_rows(f, n, i, ndim) && broadcasts(f, at, ndim) && rest_is_shared(f, n, i + 1u);
	case BATCH_MASK: return first && broadcasts(f, at, ndim) && rest_is_shared(f, n, i + 1u);
	case BATCH_GATHER: return first && is_other_dim(f, at, ndim) && has_rows(f, arg_of(f, n, i + 1u));
	case BATCH_LIST: return is_list_of_rows(f, a, &ndim) && is_other_dim(f, at, places(n->op_id, ndim));
	case BATCH_INDICES: return !has_rows(f, a) && has_rows(f, at) && rest_is_shared(f, n, i + 1u);
	case BATCH_SECOND: return broadcasts(f, a, 2) && has_rows(f, at) && rest_is_shared(f, n, i + 1u);
	}
	return false;
}

static bool elementwise_keeps(const proof *f, const node *n, uint32_t result_ndim)
{
	for (uint32_t i = 0; i < n->nargs; i++) {
		const arg *a = arg_of(f, n, i);
		if (a->kind == ARG_LIST || !broadcasts(f, a, result_ndim))
			return false;
	}
	return true;
}

/* ---- nodes ---------------------------------------------------------------------------------------------------------------------------- */

typedef struct results {
	proof *f;
	uint32_t ndim; /* of the first */
	bool rows, shared, tensors;
} results;

static void see_result(void *ctx, value_id v)
{
	results *r = ctx;
	if (r->tensors)
		r->ndim = r->ndim ? r->ndim : r->f->p->values.at[v].ndim;
	r->tensors &= r->f->p->values.at[v].type == TYPE_TENSOR;
	r->rows &= is_row_shaped(r->f, v);
	r->shared &= is_shared_shaped(r->f, v);
}

static void set_rows(void *ctx, value_id v)
{
	((results *)ctx)->f->state[v] = ROWS;
}

static void set_shared(void *ctx, value_id v)
{
	((results *)ctx)->f->state[v] = SHARED;
}

/* Only rows are written, on memory that has only rows. */
static bool writes_rows(const proof *f, const node *n)
{
	for (uint32_t i = 0; i < n->nwrites; i++) {
		value_id v = f->p->ids.at[n->writes + i];
		if (f->state[v] != ROWS || f->state[alias_root(f->p, v)] != ROWS)
			return false;
	}
	return true;
}

static const char *judge_rows(const proof *f, const node *n, const results *r)
{
	const op_row *row = &op_rows[n->op_id];
	bool reshapes = row->batch.rule == BATCH_RESHAPE || row->batch.rule == BATCH_EXPAND;
	bool each = row->strides == STRIDES_EVERY;
	if (!each && (!row->batch.least || n->nwrites))
		return "it is not known to keep rows apart";
	if (any_of(f, n, has_batch) && !reshapes)
		return "it computes with the size of the batch";
	if (!r->rows)
		return "its result is no longer a row for each row of the batch";
	if (each ? !elementwise_keeps(f, n, r->ndim) || !writes_rows(f, n) : !rule_holds(f, n, r->ndim))
		return "with these arguments it mixes rows";
	return NULL;
}

/* Why the node does not keep rows apart; NULL: it does. */
static const char *judge_node(proof *f, node_id id)
{
	const node *n = &f->p->nodes.at[id];
	results r = {.f = f, .rows = true, .shared = true, .tensors = true};
	const char *why = NULL;
	node_each_result(f->p, id, see_result, &r);
	if (node_draws(f->p, id))
		return "it draws random numbers";
	if (n->flags & (NODE_HOST | NODE_IMPURE) || op_rows[n->op_id].host || !r.tensors)
		return "it reads data on the host";
	if (any_of(f, n, has_unseen))
		return "it reads a value that is no tensor";
	bool batch = any_of(f, n, has_rows) || any_of(f, n, has_batch);
	if (!batch && (n->nwrites || !r.shared))
		return "it writes to what all requests share";
	if (batch)
		why = judge_rows(f, n, &r);
	if (!why)
		node_each_result(f->p, id, batch ? set_rows : set_shared, &r);
	return why;
}

static bool begin(proof *f, strbuf *why)
{
	const view *v = f->v;
	for (uint32_t i = 0; i < v->externals.n; i++)
		f->state[v->externals.at[i]] = f->p->values.at[v->externals.at[i]].kind == VALUE_OBJECT ? UNSEEN : SHARED;
	for (uint32_t i = 0; i < v->inputs.n; i++) {
		value_id in = v->inputs.at[i];
		f->state[in] = ROWS;
		if (is_row_shaped(f, in))
			continue;
		strbuf_puts(why, "input ");
		value_label(f->p, in, why);
		strbuf_puts(why, " is not a row for each row of the batch");
		return false;
	}
	return true;
}

static bool judge_all(proof *f, const value_ids *outputs, bool *of_rows, strbuf *why)
{
	if (f->v->rebinds.n) {
		strbuf_puts(why, "the model changes its own tensors");
		return false;
	}
	if (!begin(f, why))
		return false;
	for (uint32_t i = 0; i < f->v->nodes.n; i++) {
		const char *no = judge_node(f, f->v->nodes.at[i]);
		if (no) {
			strbuf_printf(why, "%s: %s", plan_s(f->p, f->p->nodes.at[f->v->nodes.at[i]].op), no);
			return false;
		}
	}
	for (uint32_t i = 0; i < outputs->n; i++) {
		uint8_t state = f->state[outputs->at[i]];
		of_rows[i] = state == ROWS;
		if (state == UNSEEN) {
			strbuf_puts(why, "an output is no tensor of this part");
			return false;
		}
	}
	return true;
}

/* Operands come before what they are in. */
static void find_mentions(proof *f, symbol_id batch)
{
	for (uint32_t i = 0; i < f->p->exprs.n; i++) {
		const expr *e = &f->p->exprs.at[i];
		f->mentions[i] = e->op == EXPR_SYM     ? e->k == batch
		                 : e->op == EXPR_CONST ? false
		                                       : f->mentions[e->a] || f->mentions[e->b];
		if (e->op == EXPR_SYM && e->k == batch)
			f->batch = i;
	}
	for (uint32_t i = 0; i < f->p->reals.n; i++) {
		const real *r = &f->p->reals.at[i];
		f->real_mentions[i] = (r->e != NONE && f->mentions[r->e]) || (r->a != NONE && f->real_mentions[r->a]) ||
		                      (r->b != NONE && f->real_mentions[r->b]);
	}
}

clv_status rows_apart(const view *v, const value_ids *outputs, symbol_id batch, bool *apart, bool *of_rows, strbuf *why)
{
	const plan *p = v->p;
	proof f = {.v = v, .p = p, .batch = NONE};
	f.mentions = mem_alloc(p->exprs.n + 1);
	f.real_mentions = mem_alloc(p->reals.n + 1);
	f.state = mem_alloc(p->values.n + 1);
	clv_status st = f.mentions && f.real_mentions && f.state ? CLV_OK : fail_nomem();
	if (st == CLV_OK) {
		find_mentions(&f, batch);
		*apart = judge_all(&f, outputs, of_rows, why);
	}
	mem_free(f.mentions);
	mem_free(f.real_mentions);
	mem_free(f.state);
	return st == CLV_OK && why->failed ? fail_nomem() : st;
}
