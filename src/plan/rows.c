/* Proves that rows of a batch stay apart.
 *
 * Every value is *shared* (it has nothing of the batch in it) or *rows*: its first dimension is the batch, no other size depends on
 * the batch, and row i is made of row i of the inputs and of what is shared. Each node has to keep that; the first that does not, or
 * of which nothing is known, is the reason. What operators do to rows is column BATCH of ops.def; which of their arguments could
 * select dimension 0 is the table below. */
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

/* What has to hold of the arguments, besides that argument 0 is rows and other tensors are shared. */
typedef enum care {
	CARE_NONE,
	CARE_DIM,       /* dimensions at `at`, a number or a list, without 0; not left out */
	CARE_DIM2,      /* at `at` and behind it */
	CARE_PERMUTE,   /* the list at `at` starts with 0 */
	CARE_SHAPE,     /* the list at `at` has fewer dimensions than argument 0 */
	CARE_OFF,       /* `at` is false */
	CARE_PRODUCT,   /* argument 1 is a matrix that all share, or rows like argument 0 */
	CARE_ALL,       /* all tensors are rows */
	CARE_ATTENTION, /* likewise, and a mask */
	CARE_EMBEDDING, /* argument 1 is rows, argument 0 is shared */
	CARE_LIST,      /* argument 0 is a list of rows; dimension at `at` */
	CARE_MASK,      /* argument 1 is a mask over argument 0 */
	CARE_GATHER,    /* argument 2 is rows too; dimension at `at` */
	CARE_RESHAPE,   /* keeps the order of elements: rows stay rows where the first size stays */
	CARE_EXPAND,
	CARE_ADDMM
} care;

static const struct rule {
	uint16_t op;
	uint8_t care, at;
} rules[] = {
	{OP__convolution, CARE_NONE},
	{OP__softmax, CARE_DIM, 1},
	{OP__unsafe_view, CARE_RESHAPE},
	{OP__upsample_nearest_exact2d, CARE_NONE},
	{OP__upsample_nearest_exact2d_vec, CARE_NONE},
	{OP_adaptive_avg_pool1d, CARE_NONE},
	{OP_adaptive_avg_pool2d, CARE_NONE},
	{OP_adaptive_avg_pool3d, CARE_NONE},
	{OP_adaptive_max_pool1d, CARE_NONE},
	{OP_adaptive_max_pool2d, CARE_NONE},
	{OP_addmm, CARE_ADDMM},
	{OP_alias, CARE_NONE},
	{OP_amax, CARE_DIM, 1},
	{OP_amin, CARE_DIM, 1},
	{OP_avg_pool1d, CARE_NONE},
	{OP_avg_pool2d, CARE_NONE},
	{OP_avg_pool3d, CARE_NONE},
	{OP_batch_norm, CARE_OFF, 5},
	{OP_bmm, CARE_ALL},
	{OP_cat, CARE_LIST, 1},
	{OP_chunk, CARE_DIM, 2},
	{OP_clone, CARE_NONE},
	{OP_contiguous, CARE_NONE},
	{OP_conv1d, CARE_NONE},
	{OP_conv1d_padding, CARE_NONE},
	{OP_conv2d, CARE_NONE},
	{OP_conv2d_padding, CARE_NONE},
	{OP_conv3d, CARE_NONE},
	{OP_conv3d_padding, CARE_NONE},
	{OP_conv_transpose1d, CARE_NONE},
	{OP_conv_transpose2d_input, CARE_NONE},
	{OP_conv_transpose3d_input, CARE_NONE},
	{OP_convolution, CARE_NONE},
	{OP_cumsum, CARE_DIM, 1},
	{OP_detach, CARE_NONE},
	{OP_dropout, CARE_OFF, 2},
	{OP_embedding, CARE_EMBEDDING},
	{OP_expand, CARE_EXPAND},
	{OP_flatten_using_ints, CARE_DIM, 1},
	{OP_flip, CARE_DIM, 1},
	{OP_gather, CARE_GATHER, 1},
	{OP_glu, CARE_DIM, 1},
	{OP_group_norm, CARE_NONE},
	{OP_index_select, CARE_DIM, 1},
	{OP_layer_norm, CARE_SHAPE, 1},
	{OP_linear, CARE_NONE},
	{OP_log_softmax_int, CARE_DIM, 1},
	{OP_masked_fill_Scalar, CARE_MASK},
	{OP_masked_fill_Tensor, CARE_MASK},
	{OP_matmul, CARE_PRODUCT},
	{OP_max_pool1d, CARE_NONE},
	{OP_max_pool2d, CARE_NONE},
	{OP_max_pool3d, CARE_NONE},
	{OP_mean_dim, CARE_DIM, 1},
	{OP_mm, CARE_NONE},
	{OP_narrow, CARE_DIM, 1},
	{OP_permute, CARE_PERMUTE, 1},
	{OP_pixel_shuffle, CARE_NONE},
	{OP_pixel_unshuffle, CARE_NONE},
	{OP_prelu, CARE_NONE},
	{OP_reshape, CARE_RESHAPE},
	{OP_rms_norm, CARE_SHAPE, 1},
	{OP_scaled_dot_product_attention, CARE_ATTENTION},
	{OP_select_int, CARE_DIM, 1},
	{OP_slice_Tensor, CARE_DIM, 1},
	{OP_softmax_int, CARE_DIM, 1},
	{OP_split_Tensor, CARE_DIM, 2},
	{OP_split_with_sizes, CARE_DIM, 2},
	{OP_squeeze_dim, CARE_DIM, 1},
	{OP_stack, CARE_LIST, 1},
	{OP_sum_dim_IntList, CARE_DIM, 1},
	{OP_to_device, CARE_NONE},
	{OP_to_dtype, CARE_NONE},
	{OP_topk, CARE_DIM, 2},
	{OP_transpose_int, CARE_DIM2, 1},
	{OP_unbind_int, CARE_DIM, 1},
	{OP_unflatten_int, CARE_DIM, 1},
	{OP_unsqueeze, CARE_DIM, 1},
	{OP_upsample_bicubic2d, CARE_NONE},
	{OP_upsample_bicubic2d_vec, CARE_NONE},
	{OP_upsample_bilinear2d, CARE_NONE},
	{OP_upsample_bilinear2d_vec, CARE_NONE},
	{OP_upsample_nearest1d_vec, CARE_NONE},
	{OP_upsample_nearest2d, CARE_NONE},
	{OP_upsample_nearest2d_vec, CARE_NONE},
	{OP_upsample_nearest3d_vec, CARE_NONE},
	{OP_var_correction, CARE_DIM, 1},
	{OP_var_dim, CARE_DIM, 1},
	{OP_view, CARE_RESHAPE},
};

static const struct rule *find_rule(uint16_t op)
{
	for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
		if (rules[i].op == op)
			return &rules[i];
	return NULL;
}

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

static uint8_t state_of(const proof *f, const arg *a)
{
	return is_tensor(f, a) ? f->state[a->u.v] : SHARED;
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

static bool is_off(const proof *f, const arg *a)
{
	(void)f;
	return a->kind == ARG_BOOL && !a->u.b;
}

static bool is_list_of_rows(const proof *f, const arg *a)
{
	if (a->kind != ARG_LIST || !a->u.list.n)
		return false;
	for (uint32_t i = 0; i < a->u.list.n; i++)
		if (!has_rows(f, &f->p->args.at[a->u.list.first + i]))
			return false;
	return true;
}

static bool product_keeps(const proof *f, const node *n)
{
	const arg *a = arg_of(f, n, 0), *b = arg_of(f, n, 1);
	if (state_of(f, b) == ROWS)
		return state_of(f, a) == ROWS && ndim_of(f, a) >= 3 && ndim_of(f, a) == ndim_of(f, b);
	return state_of(f, a) == ROWS && ndim_of(f, a) >= 2 && ndim_of(f, b) >= 1 && ndim_of(f, b) <= 2;
}

static bool attention_keeps(const proof *f, const node *n)
{
	uint32_t ndim = ndim_of(f, arg_of(f, n, 0));
	for (uint32_t i = 0; i < 3; i++)
		if (state_of(f, arg_of(f, n, i)) != ROWS || ndim_of(f, arg_of(f, n, i)) != ndim)
			return false;
	return ndim >= 3 && broadcasts(f, arg_of(f, n, 3), ndim) && rest_is_shared(f, n, 4);
}

static bool expand_keeps(const proof *f, const node *n, uint32_t ndim)
{
	const arg *a = arg_of(f, n, 0);
	return is_tensor(f, a) && broadcasts(f, a, ndim);
}

static bool all_are_rows(const proof *f, const node *n)
{
	for (uint32_t i = 0; i < n->nargs; i++)
		if (is_tensor(f, arg_of(f, n, i)) && state_of(f, arg_of(f, n, i)) != ROWS)
			return false;
	return true;
}

/* New dimensions count for the places of stack and unsqueeze. */
static uint32_t places(uint16_t op, uint32_t ndim)
{
	return op == OP_stack || op == OP_unsqueeze ? ndim + 1 : ndim;
}

static bool care_is_taken(const proof *f, const node *n, const struct rule *r, uint32_t result_ndim)
{
	const arg *a = arg_of(f, n, 0), *at = arg_of(f, n, r->at);
	uint32_t ndim = ndim_of(f, a), least = op_rows[r->op].row_independent;
	bool first = has_rows(f, a) && ndim >= (least ? least : 1), alone = first && rest_is_shared(f, n, 1);
	switch ((care)r->care) {
	case CARE_NONE: return alone;
	case CARE_DIM: return alone && are_other_dims(f, at, places(r->op, ndim));
	case CARE_DIM2: return alone && is_other_dim(f, at, ndim) && is_other_dim(f, arg_of(f, n, r->at + 1u), ndim);
	case CARE_PERMUTE: return alone; /* the first size of the result is the batch, which no other dimension is */
	case CARE_SHAPE: return alone && at->kind == ARG_LIST && at->u.list.n < ndim;
	case CARE_OFF: return alone && is_off(f, at);
	case CARE_PRODUCT: return product_keeps(f, n);
	case CARE_ALL: return first && all_are_rows(f, n);
	case CARE_ATTENTION: return attention_keeps(f, n);
	case CARE_EMBEDDING: return !has_rows(f, a) && has_rows(f, arg_of(f, n, 1)) && rest_is_shared(f, n, 2);
	case CARE_LIST: {
		const arg *one = a->kind == ARG_LIST && a->u.list.n ? &f->p->args.at[a->u.list.first] : a;
		return is_list_of_rows(f, a) && is_other_dim(f, at, places(r->op, ndim_of(f, one)));
	}
	case CARE_MASK: return first && broadcasts(f, arg_of(f, n, 1), ndim) && rest_is_shared(f, n, 2);
	case CARE_GATHER: return first && has_rows(f, arg_of(f, n, 2)) && is_other_dim(f, at, ndim);
	case CARE_RESHAPE: return alone;
	case CARE_EXPAND: return expand_keeps(f, n, result_ndim);
	case CARE_ADDMM:
		return broadcasts(f, a, 2) && has_rows(f, arg_of(f, n, 1)) && !has_rows(f, arg_of(f, n, 2)) &&
		       rest_is_shared(f, n, 3);
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
	const struct rule *rule = find_rule(n->op_id);
	bool reshapes = rule && (rule->care == CARE_RESHAPE || rule->care == CARE_EXPAND);
	bool each = row->strides == STRIDES_EVERY;
	if (!each && (!rule || n->nwrites))
		return "it is not known to keep rows apart";
	if (any_of(f, n, has_batch) && !reshapes)
		return "it computes with the size of the batch";
	if (!r->rows)
		return "its result is no longer a row for each row of the batch";
	if (each ? !elementwise_keeps(f, n, r->ndim) || !writes_rows(f, n) : !care_is_taken(f, n, rule, r->ndim))
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
	if (n->flags & NODE_RANDOM)
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
