/* Replaces normalizations that are spelled out by rms_norm and layer_norm.
 * The first has a kernel on CUDA alone; elsewhere PyTorch spells it out too. */
#include "optimize/match.h"

/* x is what is normalized, w the weight, b the bias, E what is added to the variance. */
static const char *const rms_cores[] = {
	"mul(x, rsqrt(add(mean(square(~to(x))), E)))",
	"div(x, sqrt(add(mean(square(~to(x))), E)))",
	NULL,
};
static const char *const rms_outers[] = {"mul(w, ~to(@))", "to(@)", "@", NULL};

static const char *const layer_cores[] = {
	"mul(sub(x, mean(x)), rsqrt(add(var(x), E)))",
	"div(sub(x, mean(x)), sqrt(add(var(x), E)))",
	"mul(sub(x, mean(x)), rsqrt(add(mean(square(sub(x, mean(x)))), E)))",
	"div(sub(x, mean(x)), sqrt(add(mean(square(sub(x, mean(x)))), E)))",
	NULL,
};
static const char *const layer_outers[] = {"add(mul(w, @), b)", "mul(w, @)", "@", NULL};

enum { PATTERNS = 24 };

typedef struct norm_pattern {
	char text[PATTERN_SIZE];
	bool is_rms;
} norm_pattern;

typedef struct finder {
	edit *e;
	uint8_t *layouts;
	norm_pattern patterns[PATTERNS]; /* larger ones first */
	uint32_t n;
} finder;

static bool is_real_value(const value *x)
{
	return is_float(x) && !(x->flags & VALUE_ODD);
}

/* A weight or bias, if there is one: a number for each of a row, of the type of the result. */
static bool is_row(const edit *e, value_id v, value_id like, int64_t length)
{
	if (v == NONE)
		return true;
	const value *x = &e->p->values.at[v], *r = &e->p->values.at[like];
	return is_real_value(x) && x->ndim == 1 && dim_is(e, v, 0, length) && x->dtype == r->dtype &&
	       x->device == r->device;
}

/* Rows that were made wider before: the operator does that itself. */
static void see_through_cast(const edit *e, found_tree *t)
{
	value_id *x = &t->tensors['x' - 'a'];
	const value *v = &e->p->values.at[*x];
	found_tree cast;
	if (v->kind != VALUE_RESULT || v->def == NONE || v->def >= e->nodes || !match_tree(e, v->def, "to(x)", &cast) ||
	    !tree_add_node(t, v->def))
		return;
	for (uint32_t i = 0; i < t->nleaves; i++)
		if (t->leaves[i] == *x)
			t->leaves[i] = cast.tensors['x' - 'a'];
	*x = cast.tensors['x' - 'a'];
}

/* What the tree is read from and makes is what the operator takes and gives. */
static bool is_norm(const finder *f, bool is_rms, found_tree *t, int64_t *length)
{
	const edit *e = f->e;
	value_id y = edit_result(e, t->top);
	if (is_rms && e->p->values.at[tensor_of(t, 'x')].dtype != e->p->values.at[y].dtype)
		see_through_cast(e, t);
	value_id x = tensor_of(t, 'x');
	const value *from = &e->p->values.at[x], *to = &e->p->values.at[y];
	if (!is_real_value(from) || from->dtype != to->dtype || from->device != to->device || !same_shape(e->p, x, y) ||
	    !from->ndim || !fixed_dim(e, x, from->ndim - 1, length) || f->layouts[x] == LAYOUT_ANY)
		return false;
	bool here = !is_rms || is_cuda(e, x);
	return here && is_row(e, tensor_of(t, 'w'), y, *length) && is_row(e, tensor_of(t, 'b'), y, *length);
}

static clv_status put_norm(edit *e, bool is_rms, const found_tree *t, int64_t length)
{
	spot at = {e, t->top, t->top};
	value_id result = edit_result(e, t->top);
	arg args[6] = {arg_of(tensor_of(t, 'x')), {.kind = ARG_NONE}, arg_of(tensor_of(t, 'w'))};
	uint32_t n = 3;
	TRY(arg_ints(e, &length, 1, &args[1]));
	if (!is_rms)
		args[n++] = arg_of(tensor_of(t, 'b'));
	args[n++] = arg_float(number_of(t, 'E'));
	if (!is_rms)
		args[n++] = arg_bool(true); /* as torch.nn.functional has it */
	TRY(tree_remove(e, t));
	return put_node(&at, is_rms ? OP_rms_norm : OP_layer_norm, args, n, result);
}

static void add_patterns(finder *f, const char *const *outers, const char *const *cores, bool is_rms)
{
	for (; *outers; outers++)
		for (const char *const *core = cores; *core; core++) {
			norm_pattern *p = &f->patterns[f->n];
			p->is_rms = is_rms;
			f->n += f->n + 1 < PATTERNS && pattern_with(*outers, *core, p->text);
		}
}

static clv_status try_node(finder *f, node_id n, uint32_t *changes)
{
	for (uint32_t i = 0; i < f->n; i++) {
		const norm_pattern *p = &f->patterns[i];
		found_tree t;
		int64_t length;
		if (!match_tree(f->e, n, p->text, &t) || !is_norm(f, p->is_rms, &t, &length) || !tree_is_closed(f->e, &t))
			continue;
		*changes += t.n;
		return put_norm(f->e, p->is_rms, &t, length);
	}
	return CLV_OK;
}

clv_status pass_norms(edit *e, const optimize_spec *s, uint32_t *changes)
{
	finder f = {.e = e};
	add_patterns(&f, layer_outers, layer_cores, false);
	if (has_operator(s, OP__fused_rms_norm_backward)) /* came with the kernel */
		add_patterns(&f, rms_outers, rms_cores, true);
	TRY(find_layouts(e, &f.layouts));
	for (node_id n = e->end; n-- > e->first;)
		if (!e->gone.at[n] && makes_new(e, n))
			TRY(try_node(&f, n, changes));
	return CLV_OK;
}
