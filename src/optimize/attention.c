/* Replaces attention that is spelled out by scaled_dot_product_attention.
 * Attention in one call: what is spelt out as matmul, softmax and matmul becomes scaled_dot_product_attention, and on
 * CUDA in f32 groups of queries that share keys and values get copies of them: no fast kernel takes such groups in f32,
 * and the slow way writes all scores to memory.
 *
 * The operator gives 0 for a query that may look at nothing (its scores are all -inf), where softmax gives nan. So a
 * mask must be finite. What is the same in every run is tried before it is used (exec/optimizer.c), and a mask of
 * that kind with such rows would be seen; one that follows from data must be made of finite numbers. */
#include "optimize/match.h"

#include <float.h>
#include <math.h>

typedef struct finder {
	edit *e;
	const optimize_spec *s;
	bool *constant;
	uint32_t *changes;
} finder;

/* Kernels may be chosen. */
static bool is_free_to_choose(const edit *e, node_id n)
{
	const context *c = &e->p->contexts.at[e->p->nodes.at[n].context];
	unsigned choices = 1u << CTX_BIT_SDP_FLASH | 1u << CTX_BIT_SDP_MEM_EFFICIENT | 1u << CTX_BIT_SDP_MATH |
	                   1u << CTX_BIT_SDP_CUDNN | 1u << CTX_BIT_DETERMINISTIC;
	return runs_plainly(e, n) && !(c->flags_mask & choices);
}

static expr_id dim_of(const edit *e, value_id v, uint32_t d)
{
	return e->p->dims.at[e->p->values.at[v].shape + d];
}

/* Fast kernels on CUDA take heads whose rows are whole pieces of 16 bytes. */
static bool is_aligned(const edit *e, value_id heads)
{
	int64_t size;
	return fixed_dim(e, heads, 3, &size) && size % 8 == 0;
}

/* transpose(1, 2) or permute(0, 2, 1, 3) */
static bool puts_heads_second(const edit *e, node_id n)
{
	const arg *a = edit_arg(e, n, 1), *b = edit_arg(e, n, 2);
	if (edit_is(e, n, OP_transpose_int))
		return (arg_is_int(e, a, 1) && arg_is_int(e, b, 2)) || (arg_is_int(e, a, 2) && arg_is_int(e, b, 1));
	if (!edit_is(e, n, OP_permute) || a->kind != ARG_LIST || a->u.list.n != 4)
		return false;
	const arg *d = &e->p->args.at[a->u.list.first];
	return arg_is_int(e, &d[0], 0) && arg_is_int(e, &d[1], 2) && arg_is_int(e, &d[2], 1) && arg_is_int(e, &d[3], 3);
}

/* The operator leaves its result laid out with its heads side by side. That is not visible where the heads
   are laid out so anyway, into memory that is new or may be that of the result. */
static bool hides_layout(const edit *e, node_id n)
{
	value_id result = edit_result(e, n);
	node_id turn = only_reader(e, result, n);
	value_id turned = turn == NONE || !puts_heads_second(e, turn) ? NONE : edit_result(e, turn);
	node_id copy = turned == NONE ? NONE : only_reader(e, turned, turn);
	if (copy == NONE || e->p->nodes.at[copy].nwrites || edit_value(e, copy, 0) != turned)
		return false;
	bool plain = edit_is(e, copy, OP_contiguous) && e->p->nodes.at[copy].nargs == 1;
	bool row_major = edit_arg(e, copy, 1)->kind == ARG_MEMFMT && edit_arg(e, copy, 1)->u.code == 0;
	return plain || edit_is(e, copy, OP_reshape) ||
	       ((edit_is(e, copy, OP_contiguous) || edit_is(e, copy, OP_clone)) && row_major);
}

enum { QUERY, KEY, VALUE, MASK, DROPOUT, CAUSAL, SCALE, GROUPS, SDPA_ARGS };

static bool is_f32_cuda(const edit *e, value_id v)
{
	if (v == NONE)
		return false;
	const value *x = &e->p->values.at[v];
	return x->type == TYPE_TENSOR && x->dtype == DT_F32 && x->ndim == 4 && !(x->flags & VALUE_ODD) && is_cuda(e, v);
}

/* How many queries share a key; 0: none, or nothing to be done about it. */
static int64_t group_size(const edit *e, node_id n)
{
	int64_t queries, keys, values;
	double dropout;
	if (!edit_is(e, n, OP_scaled_dot_product_attention) || !arg_is_bool(edit_arg(e, n, GROUPS), true) ||
	    !arg_number(e, edit_arg(e, n, DROPOUT), &dropout) || dropout != 0)
		return 0;
	for (uint32_t i = QUERY; i <= VALUE; i++)
		if (!is_f32_cuda(e, edit_value(e, n, i)))
			return 0;
	if (!fixed_dim(e, edit_value(e, n, QUERY), 1, &queries) || !fixed_dim(e, edit_value(e, n, KEY), 1, &keys) ||
	    !fixed_dim(e, edit_value(e, n, VALUE), 1, &values))
		return 0;
	bool groups = keys == values && keys > 0 && queries > keys && queries % keys == 0;
	return groups && is_aligned(e, edit_value(e, n, QUERY)) ? queries / keys : 0;
}

/* v with each of its heads `times` times, one copy. */
static clv_status repeat_heads(const spot *at, value_id v, expr_id heads, int64_t times, value_id *out)
{
	edit *e = at->e;
	arg args[4] = {arg_of(v)};
	TRY(arg_int(e, times, &args[1]));
	TRY(arg_int(e, 1, &args[2]));
	TRY(edit_like(e, v, out));
	e->p->dims.at[e->p->values.at[*out].shape + 1] = heads;
	return put_node(at, OP_repeat_interleave_self_int, args, 4, *out);
}

static clv_status spread_groups(finder *f, node_id n)
{
	edit *e = f->e;
	int64_t times = node_pure(e, n) && is_free_to_choose(e, n) ? group_size(e, n) : 0;
	value_id result = edit_result(e, n);
	/* Kernels lay out their results in different ways, which nobody may take for a view of it that was one, or was
	   none. */
	if (!times || !makes_new(e, n) || (e->facts.views[result] && !hides_layout(e, n)))
		return CLV_OK;
	spot at = {e, n, n};
	value_id key = edit_value(e, n, KEY), values = edit_value(e, n, VALUE);
	expr_id heads = dim_of(e, edit_value(e, n, QUERY), 1);
	arg args[SDPA_ARGS];
	for (uint32_t i = 0; i < SDPA_ARGS; i++)
		args[i] = *edit_arg(e, n, i);
	value_id all_keys, all_values;
	TRY(repeat_heads(&at, key, heads, times, &all_keys));
	TRY(repeat_heads(&at, values, heads, times, &all_values));
	args[KEY] = arg_of(all_keys);
	args[VALUE] = arg_of(all_values);
	args[GROUPS] = arg_bool(false);
	TRY(edit_remove(e, n));
	*f->changes += 1;
	return put_node(&at, OP_scaled_dot_product_attention, args, SDPA_ARGS, result);
}

/* Steps of making a mask whose numbers are no larger than those of their arguments, `n` from `first` on. */
static const struct mask_step {
	uint32_t first, n;
	bool picks; /* which numbers of its arguments come through depends on data */
} mask_steps[OP_COUNT] = {
	[OP_where_self] = {1, 2, true},       [OP_where_ScalarOther] = {1, 2, true},
	[OP_where_ScalarSelf] = {1, 2, true}, [OP_where_Scalar] = {1, 2, true},
	[OP_expand] = {0, 1, false},          [OP_unsqueeze] = {0, 1, false},
	[OP_squeeze_dim] = {0, 1, false},     [OP_view] = {0, 1, false},
	[OP_reshape] = {0, 1, false},         [OP_permute] = {0, 1, false},
	[OP_transpose_int] = {0, 1, false},   [OP_slice_Tensor] = {0, 1, false},
	[OP_select_int] = {0, 1, false},      [OP_contiguous] = {0, 1, false},
	[OP_clone] = {0, 1, false},           [OP_to_dtype] = {0, 1, false},
	[OP_to_dtype_layout] = {0, 1, false}, [OP_to_device] = {0, 1, false},
	[OP_embedding] = {0, 1, true},        [OP_masked_fill_Scalar] = {0, 3, true}, /* the condition counts as 1 */
};

/* On the way to a value. */
typedef struct way {
	uint32_t depth; /* how many steps may still come */
	bool picked;    /* data picked from it */
} way;

static double bound_of(const finder *f, const arg *a, way w);

static double bound_of_made(const finder *f, node_id n, way w)
{
	const edit *e = f->e;
	double most = 0;
	const struct mask_step *s = &mask_steps[e->p->nodes.at[n].op_id];
	if (s->n && !edit_pinned(e, n)) {
		w.picked |= s->picks;
		for (uint32_t k = 0; k < s->n; k++)
			most = fmax(most, bound_of(f, edit_arg(e, n, s->first + k), w));
		return most;
	}
	bool product = edit_is(e, n, OP_mul_Tensor);
	w.picked |= product;
	double a = bound_of(f, edit_arg(e, n, 0), w), b = bound_of(f, edit_arg(e, n, 1), w);
	if (product)
		return a * b;
	if (edit_is(e, n, OP_add_Tensor) || edit_is(e, n, OP_sub_Tensor) || edit_is(e, n, OP_rsub_Scalar))
		return (a + b) * fmax(1, bound_of(f, edit_arg(e, n, 2), w));
	return INFINITY;
}

/* The largest number of a type; INFINITY: it does not matter here. */
static double largest(uint8_t type)
{
	switch (type) {
	case DT_BOOL: return 1;
	case DT_U8: return 255;
	case DT_I32: return 2147483648.0;
	case DT_I64: return 9223372036854775808.0;
	case DT_F16: return 65504;
	case DT_BF16: return 0x1.FEp127;
	case DT_F32: return FLT_MAX;
	default: return INFINITY;
	}
}

/* No number is farther from 0; INFINITY: nothing is known. Parameters are taken for what trained ones are; where data picks
   from other constants, these may be infinite. */
static double bound_of(const finder *f, const arg *a, way w)
{
	const edit *e = f->e;
	double k;
	if (a->kind == ARG_NONE)
		return 1; /* the factor that is not given */
	if (arg_number(e, a, &k))
		return isnan(k) ? INFINITY : fabs(k);
	if (a->kind != ARG_VALUE || !w.depth)
		return INFINITY;
	const value *x = &e->p->values.at[a->u.v];
	if (x->type != TYPE_TENSOR || e->facts.written[a->u.v])
		return INFINITY;
	bool whole = x->dtype == DT_BOOL || x->dtype == DT_U8 || x->dtype == DT_I32 || x->dtype == DT_I64;
	if (whole)
		return largest(x->dtype);
	if (f->constant[a->u.v] && x->kind != VALUE_PARAM && !w.picked)
		return largest(x->dtype) / 4; /* what it really is, is tried */
	if (x->kind == VALUE_PARAM)
		return fmin(1e30, largest(x->dtype) / 16);
	w.depth--;
	return x->kind == VALUE_RESULT && x->def != NONE ? bound_of_made(f, x->def, w) : INFINITY;
}

static bool is_finite(const finder *f, value_id mask)
{
	enum { DEPTH = 8 };
	arg a = arg_of(mask);
	uint8_t type = f->e->p->values.at[mask].dtype;
	double most = largest(type);
	if (is_cuda(f->e, mask) && type != DT_F16)
		most /= 2; /* its kernels compute powers of 2, and multiply in f32 for that: the largest would be infinite */
	return isfinite(most) &&
	       bound_of(f, &a, (way){.depth = DEPTH}) <= most * (1 + 1e-8); /* less than that is lost in rounding */
}

/* q, k, v; t are keys that are turned already, m is what is added, C multiplies and D divides. Those that say more come
   first. */
static const char *const scores[] = {
	"matmul(mul(q, C), turn(k))", "matmul(div(q, D), turn(k))",
	"mul(matmul(q, turn(k)), C)", "div(matmul(q, turn(k)), D)",
	"matmul(q, turn(k))",         "matmul(mul(q, C), t)",
	"matmul(div(q, D), t)",       "mul(matmul(q, t), C)",
	"div(matmul(q, t), D)",       "matmul(q, t)",
};
enum { SCORES = sizeof scores / sizeof *scores, MANY_SCORES = 1 << 15 };

typedef struct spelt {
	found_tree tree;
	value_id q, k, v, mask; /* mask: NONE */
	bool turned;            /* k has its rows last */
	double scale;
} spelt;

static bool read_spelling(const edit *e, node_id n, const char *core, bool masked, spelt *out)
{
	char rows[PATTERN_SIZE], all[PATTERN_SIZE];
	const char *mask = masked ? "add(@, m)" : "@";
	found_tree *t = &out->tree;
	if (!pattern_with(mask, core, rows) || !pattern_with("matmul(~to(softmax(~to(@))), v)", rows, all) ||
	    !match_tree(e, n, all, t))
		return false;
	out->turned = tensor_of(t, 't') != NONE;
	out->q = tensor_of(t, 'q');
	out->k = tensor_of(t, out->turned ? 't' : 'k');
	out->v = tensor_of(t, 'v');
	out->mask = tensor_of(t, 'm');
	out->scale = t->has_number['C' - 'A'] ? number_of(t, 'C') : 1;
	if (t->has_number['D' - 'A'])
		out->scale = 1 / number_of(t, 'D');
	return isfinite(out->scale);
}

static bool is_heads(const edit *e, value_id v, value_id like)
{
	const value *x = &e->p->values.at[v], *y = &e->p->values.at[like];
	bool type = x->dtype == DT_F32 || x->dtype == DT_F16 || x->dtype == DT_BF16;
	return x->type == TYPE_TENSOR && type && x->ndim == 4 && !(x->flags & VALUE_ODD) && x->dtype == y->dtype &&
	       x->device == y->device && dim_of(e, v, 0) == dim_of(e, like, 0) && dim_of(e, v, 1) == dim_of(e, like, 1);
}

/* One of the mask's dimensions is that of the scores, or 1. */
static bool spans(const edit *e, value_id mask, uint32_t d, expr_id size)
{
	return dim_is(e, mask, d, 1) || dim_of(e, mask, d) == size;
}

static bool is_mask(const finder *f, const spelt *a, expr_id rows, expr_id columns)
{
	const edit *e = f->e;
	const value *m = &e->p->values.at[a->mask], *q = &e->p->values.at[a->q];
	if (m->type != TYPE_TENSOR || m->dtype != q->dtype || m->device != q->device || (m->ndim != 4 && m->ndim != 2))
		return false;
	const expr_id sizes[] = {dim_of(e, a->q, 0), dim_of(e, a->q, 1), rows, columns};
	for (uint32_t d = 0; d < m->ndim; d++)
		if (!spans(e, a->mask, d, sizes[d + 4 - m->ndim]))
			return false;
	return is_finite(f, a->mask);
}

static bool is_attention(const finder *f, const spelt *a, value_id result)
{
	const edit *e = f->e;
	if (!is_heads(e, a->q, a->q) || !is_heads(e, a->k, a->q) || !is_heads(e, a->v, a->q) || !is_heads(e, result, a->q))
		return false;
	expr_id size = dim_of(e, a->q, 3), keys = dim_of(e, a->k, a->turned ? 3 : 2);
	bool sizes = dim_of(e, a->k, a->turned ? 2 : 3) == size && dim_of(e, a->v, 3) == size && dim_of(e, a->v, 2) == keys;
	return sizes && (a->mask == NONE || is_mask(f, a, dim_of(e, a->q, 2), keys));
}

/* 0: not the same in every run */
static double known_size(const finder *f, expr_id size)
{
	int64_t k;
	return expr_is_const(f->e->p, size, &k) ? (double)k : 0;
}

/* On the CPU torch's operator goes through scores in blocks, which pays where a head's scores are many; windows of 49
   took longer. An engine of groups has its own. */
static bool is_worth_it(const finder *f, const spelt *a)
{
	if (f->s->groups)
		return true;
	double rows = known_size(f, dim_of(f->e, a->q, 2)), columns = known_size(f, dim_of(f->e, a->k, a->turned ? 3 : 2));
	return is_cuda(f->e, a->q) ? is_aligned(f->e, a->q) : rows * columns >= MANY_SCORES;
}

/* The last two dimensions of v exchanged. */
static clv_status turn_back(const spot *at, value_id *v)
{
	edit *e = at->e;
	value_id out;
	arg args[3] = {arg_of(*v)};
	TRY(arg_int(e, 2, &args[1]));
	TRY(arg_int(e, 3, &args[2]));
	TRY(edit_like(e, *v, &out));
	expr_id *shape = &e->p->dims.at[e->p->values.at[out].shape];
	expr_id rows = shape[2];
	shape[2] = shape[3];
	shape[3] = rows;
	e->p->values.at[out].alias = alias_root(e->p, *v);
	TRY(put_node(at, OP_transpose_int, args, 3, out));
	*v = out;
	return CLV_OK;
}

static clv_status put_attention(finder *f, const spelt *a)
{
	edit *e = f->e;
	spot at = {e, a->tree.top, a->tree.top};
	value_id result = edit_result(e, a->tree.top), k = a->k;
	TRY(tree_remove(e, &a->tree));
	if (a->turned)
		TRY(turn_back(&at, &k));
	arg args[SDPA_ARGS] = {arg_of(a->q), arg_of(k),       arg_of(a->v),        arg_of(a->mask),
	                       arg_float(0), arg_bool(false), arg_float(a->scale), arg_bool(false)};
	*f->changes += a->tree.n;
	return put_node(&at, OP_scaled_dot_product_attention, args, SDPA_ARGS, result);
}

static clv_status join_spelt(finder *f, node_id n)
{
	const edit *e = f->e;
	value_id result = edit_result(e, n);
	if (!edit_is(e, n, OP_matmul) || !makes_new(e, n) || !is_free_to_choose(e, n) || !hides_layout(e, n))
		return CLV_OK;
	for (uint32_t i = 0; i < 2 * SCORES; i++) {
		spelt a;
		if (read_spelling(e, n, scores[i / 2], i % 2, &a) && is_attention(f, &a, result) && is_worth_it(f, &a) &&
		    tree_is_closed(e, &a.tree))
			return put_attention(f, &a);
	}
	return CLV_OK;
}

clv_status pass_attention(edit *e, const optimize_spec *s, uint32_t *changes)
{
	finder f = {.e = e, .s = s, .changes = changes};
	TRY(constant_values(e, s, &f.constant));
	for (node_id n = e->end; n-- > e->first;) {
		if (!e->gone.at[n])
			TRY(spread_groups(&f, n));
		if (!e->gone.at[n])
			TRY(join_spelt(&f, n));
	}
	return CLV_OK;
}
