/* Removes nodes that return their argument: same memory, type, sizes and strides.
 * What reads their result reads what they were given, and they go.
 *
 * Some operators give back the tensor itself (dropout that drops nothing, `to` the type that it has): whatever is
 * done to one is done to the other. Others make a second tensor on the same memory (views that change nothing); an
 * operator that works in place may change sizes of one of the two, so these go only where nothing writes that memory.
 * A copy goes where neither it nor its source is written, and it is not visible outside.
 *
 * No gradients are asked for where passes run, so `detach` is a view like others. */
#include "optimize/optimize.h"

typedef enum kinship {
	ITSELF,   /* the tensor that was given */
	VIEW,     /* another on its memory */
	IN_PLACE, /* the tensor that was given, which the plan takes for written */
	COPY      /* on memory of its own */
} kinship;

typedef struct looker {
	edit *e;
	uint8_t *layout; /* per value: known_layout */
} looker;

/* What the arguments must say for node n to give back x; types are the same already. */
typedef bool (*rule_fn)(const looker *l, node_id n, value_id x);

typedef struct rule {
	kinship kin;
	rule_fn holds;
} rule;

/* ---- arguments --------------------------------------------------------------------------------------------------- */

enum { MEMORY_CONTIGUOUS, MEMORY_PRESERVE };

static bool is_none_or_false(const arg *a)
{
	return a->kind == ARG_NONE || arg_is_bool(a, false);
}

static bool keeps_format(const arg *a)
{
	return a->kind == ARG_NONE || (a->kind == ARG_MEMFMT && a->u.code == MEMORY_PRESERVE);
}

static bool has_dtype(const looker *l, const arg *a, value_id x)
{
	return a->kind == ARG_NONE || (a->kind == ARG_DTYPE && a->u.code == l->e->p->values.at[x].dtype);
}

static bool has_device(const looker *l, const arg *a, value_id x)
{
	return a->kind == ARG_NONE || (a->kind == ARG_DEVICE && a->u.s == l->e->p->values.at[x].device);
}

static bool is_strided(const arg *a)
{
	return a->kind == ARG_NONE || (a->kind == ARG_LAYOUT && a->u.code == 0);
}

/* Dimension `a` of x, which may be counted from the end; NONE. */
static uint32_t dim_of(const looker *l, const arg *a, value_id x)
{
	int64_t k, ndim = l->e->p->values.at[x].ndim;
	if (a->kind != ARG_INT || !expr_is_const(l->e->p, a->u.e, &k))
		return NONE;
	k += k < 0 ? ndim : 0;
	return k >= 0 && k < ndim ? (uint32_t)k : NONE;
}

/* ---- rules ------------------------------------------------------------------------------------------------------- */

static bool always(const looker *l, node_id n, value_id x)
{
	(void)l;
	(void)n;
	(void)x;
	return true;
}

/* (self, p, train) */
static bool drops_nothing(const looker *l, node_id n, value_id x)
{
	const arg *rate = edit_arg(l->e, n, 1), *train = edit_arg(l->e, n, 2);
	(void)x;
	return arg_is_bool(train, false) || (rate->kind == ARG_FLOAT && rate->u.f == 0);
}

static bool is_contiguous(const looker *l, node_id n, value_id x)
{
	const arg *format = edit_arg(l->e, n, 1);
	bool rows = format->kind == ARG_NONE || (format->kind == ARG_MEMFMT && format->u.code == MEMORY_CONTIGUOUS);
	return rows && l->layout[x] >= LAYOUT_CONTIGUOUS;
}

/* From argument `at`: non_blocking, copy, memory_format */
static bool copies_nothing(const looker *l, node_id n, uint32_t at)
{
	return is_none_or_false(edit_arg(l->e, n, at + 1)) && keeps_format(edit_arg(l->e, n, at + 2));
}

static bool to_dtype(const looker *l, node_id n, value_id x)
{
	return has_dtype(l, edit_arg(l->e, n, 1), x) && copies_nothing(l, n, 2);
}

static bool to_device(const looker *l, node_id n, value_id x)
{
	return has_device(l, edit_arg(l->e, n, 1), x) && has_dtype(l, edit_arg(l->e, n, 2), x) && copies_nothing(l, n, 3);
}

static bool to_all(const looker *l, node_id n, value_id x)
{
	return has_dtype(l, edit_arg(l->e, n, 1), x) && is_strided(edit_arg(l->e, n, 2)) &&
	       has_device(l, edit_arg(l->e, n, 3), x) && is_none_or_false(edit_arg(l->e, n, 4)) && copies_nothing(l, n, 5);
}

static bool is_like_other(const looker *l, node_id n, value_id x)
{
	value_id other = edit_value(l->e, n, 1);
	if (other == NONE)
		return false;
	const value *a = &l->e->p->values.at[x], *b = &l->e->p->values.at[other];
	return b->type == TYPE_TENSOR && !(b->flags & VALUE_ODD) && a->dtype == b->dtype && a->device == b->device;
}

static bool to_other(const looker *l, node_id n, value_id x)
{
	return is_like_other(l, n, x) && copies_nothing(l, n, 2);
}

static bool is_complex(uint8_t type)
{
	return type == DT_C32 || type == DT_C64 || type == DT_C128;
}

static bool is_not_complex(const looker *l, node_id n, value_id x)
{
	(void)n;
	return !is_complex(l->e->p->values.at[x].dtype);
}

/* A view of the same sizes has the same strides but where a size is 1: those it makes anew. */
static bool view_changes_nothing(const looker *l, node_id n, value_id x)
{
	(void)n;
	return l->layout[x] == LAYOUT_ROW_MAJOR || !may_have_size_one(l->e->p, x);
}

static bool squeezes_nothing(const looker *l, node_id n, value_id x)
{
	(void)n;
	return !may_have_size_one(l->e->p, x);
}

static bool permutes_nothing(const looker *l, node_id n, value_id x)
{
	const arg *dims = edit_arg(l->e, n, 1);
	if (dims->kind != ARG_LIST || dims->u.list.n != l->e->p->values.at[x].ndim)
		return false;
	for (uint32_t d = 0; d < dims->u.list.n; d++)
		if (dim_of(l, &l->e->p->args.at[dims->u.list.first + d], x) != d)
			return false;
	return true;
}

static bool swaps_nothing(const looker *l, node_id n, value_id x)
{
	uint32_t a = dim_of(l, edit_arg(l->e, n, 1), x), b = dim_of(l, edit_arg(l->e, n, 2), x);
	return a != NONE && a == b;
}

/* (self, dim, start, …); the sizes are the same already */
static bool starts_at_zero(const looker *l, node_id n, value_id x)
{
	const arg *start = edit_arg(l->e, n, 2);
	(void)x;
	return start->kind == ARG_NONE || arg_is_int(l->e, start, 0);
}

static bool takes_whole(const looker *l, node_id n, value_id x)
{
	const arg *step = edit_arg(l->e, n, 4);
	return starts_at_zero(l, n, x) && (step->kind == ARG_NONE || arg_is_int(l->e, step, 1));
}

/* A copy of what is contiguous has its strides; one that is asked to be contiguous has those of new memory. */
static bool copy_is_alike(const looker *l, node_id n, value_id x)
{
	const arg *format = edit_arg(l->e, n, 1);
	if (!is_not_complex(l, n, x) || l->layout[x] < LAYOUT_CONTIGUOUS)
		return false;
	if (keeps_format(format))
		return true;
	bool rows = format->kind == ARG_MEMFMT && format->u.code == MEMORY_CONTIGUOUS;
	return rows && view_changes_nothing(l, n, x);
}

static const rule rules[OP_COUNT] = {
	[OP__unsafe_view] = {VIEW, view_changes_nothing},
	[OP_alias] = {VIEW, always},
	[OP_alpha_dropout] = {ITSELF, drops_nothing},
	[OP_alpha_dropout_] = {IN_PLACE, drops_nothing},
	[OP_broadcast_to] = {VIEW, always},
	[OP_clone] = {COPY, copy_is_alike},
	[OP_conj] = {ITSELF, is_not_complex},
	[OP_contiguous] = {ITSELF, is_contiguous},
	[OP_detach] = {VIEW, always},
	[OP_detach_] = {IN_PLACE, always},
	[OP_dropout] = {ITSELF, drops_nothing},
	[OP_dropout_] = {IN_PLACE, drops_nothing},
	[OP_expand] = {VIEW, always},
	[OP_expand_as] = {VIEW, always},
	[OP_feature_alpha_dropout] = {ITSELF, drops_nothing},
	[OP_feature_alpha_dropout_] = {IN_PLACE, drops_nothing},
	[OP_feature_dropout] = {ITSELF, drops_nothing},
	[OP_feature_dropout_] = {IN_PLACE, drops_nothing},
	[OP_flatten_using_ints] = {VIEW, always}, /* as many dimensions as before: of one it made one */
	[OP_lift_fresh] = {VIEW, always},
	[OP_narrow] = {VIEW, starts_at_zero},
	[OP_permute] = {VIEW, permutes_nothing},
	[OP_positive] = {VIEW, always},
	[OP_reshape] = {VIEW, view_changes_nothing},
	[OP_reshape_as] = {VIEW, view_changes_nothing},
	[OP_resolve_conj] = {ITSELF, is_not_complex},
	[OP_slice_Tensor] = {VIEW, takes_whole},
	[OP_squeeze] = {VIEW, squeezes_nothing},
	[OP_squeeze_dim] = {VIEW, squeezes_nothing},
	[OP_squeeze_dims] = {VIEW, squeezes_nothing},
	[OP_to_device] = {ITSELF, to_device},
	[OP_to_dtype] = {ITSELF, to_dtype},
	[OP_to_dtype_layout] = {ITSELF, to_all},
	[OP_to_other] = {ITSELF, to_other},
	[OP_transpose_int] = {VIEW, swaps_nothing},
	[OP_type_as] = {ITSELF, is_like_other},
	[OP_view] = {VIEW, view_changes_nothing},
	[OP_view_as] = {VIEW, view_changes_nothing},
};

/* ---- what all of them ask ---------------------------------------------------------------------------------------- */

static bool writes_only(const plan *p, const node *n, value_id x)
{
	for (uint32_t i = 0; i < n->nwrites; i++)
		if (alias_root(p, p->ids.at[n->writes + i]) != alias_root(p, x))
			return false;
	return true;
}

/* The plan says the same as the operator: which memory the result is on, and what is written. */
static bool memory_fits(const edit *e, const node *n, kinship kin, value_id x, value_id r)
{
	const edit_facts *f = &e->facts;
	bool together = alias_root(e->p, x) == alias_root(e->p, r);
	switch (kin) {
	case ITSELF: return together && !n->nwrites;
	case VIEW: return together && !n->nwrites && !f->written[r];
	case IN_PLACE: return together && writes_only(e->p, n, x);
	default: return e->p->values.at[r].alias == NONE && !n->nwrites && !f->written[r] && !f->written[x] && !f->shown[r];
	}
}

static bool gives_back(const looker *l, node_id n, value_id x, value_id r)
{
	const edit *e = l->e;
	const node *made = &e->p->nodes.at[n];
	const rule *found = &rules[made->op_id];
	return found->holds && x != NONE && r != NONE && !e->facts.kept[r] && !(made->flags & (NODE_HOST | NODE_IMPURE)) &&
	       !node_draws(e->p, n) && !(e->p->values.at[r].flags & VALUE_GUARD) && is_alike(e->p, x, r) &&
	       memory_fits(e, made, found->kin, x, r) && found->holds(l, n, x);
}

clv_status pass_identity(edit *e, const optimize_spec *s, uint32_t *changes)
{
	looker l = {e, NULL};
	(void)s;
	TRY(find_layouts(e, &l.layout));
	for (node_id n = e->first; n < e->end; n++) {
		value_id x = edit_value(e, n, 0), r = edit_result(e, n);
		if (!gives_back(&l, n, x, r))
			continue;
		TRY(edit_read_instead(e, r, x));
		TRY(edit_remove(e, n));
		++*changes;
	}
	return CLV_OK;
}
