/* Matches trees of nodes against patterns: see match.h. */
#include "optimize/match.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

/* But for rounding. */
static bool same_number(double a, double b)
{
	return fabs(a - b) <= 1e-6 * fmax(fabs(a), fabs(b));
}

/* ---- trees --------------------------------------------------------------------------------------------------------- */

static bool has_node(const found_tree *t, node_id n)
{
	for (uint32_t i = 0; i < t->n; i++)
		if (t->nodes[i] == n)
			return true;
	return false;
}

bool add_once(uint32_t *at, uint32_t *n, uint32_t most, uint32_t id)
{
	for (uint32_t i = 0; i < *n; i++)
		if (at[i] == id)
			return true;
	if (*n == most)
		return false;
	at[(*n)++] = id;
	return true;
}

bool tree_add_node(found_tree *t, node_id n)
{
	return add_once(t->nodes, &t->n, TREE_NODES, n);
}

bool tree_add_leaf(found_tree *t, value_id v)
{
	return add_once(t->leaves, &t->nleaves, TREE_LEAVES, v);
}

void tree_new(node_id top, found_tree *out)
{
	*out = (found_tree){.top = top, .n = 1};
	out->nodes[0] = top;
	for (uint32_t i = 0; i < LETTERS; i++)
		out->tensors[i] = NONE;
}

/* Pure, or nothing but an operator that writes its first argument and gives it back. */
static bool is_plain(const edit *e, node_id n)
{
	const node *x = &e->p->nodes.at[n];
	value_id r = edit_result(e, n), first = edit_value(e, n, 0);
	if (!x->nwrites)
		return node_pure(e, n) && r != NONE;
	if (x->nwrites != 1 || (x->flags & (NODE_HOST | NODE_IMPURE | NODE_RANDOM)) || r == NONE || first == NONE)
		return false;
	value_id root = alias_root(e->p, first);
	return alias_root(e->p, e->p->ids.at[x->writes]) == root && alias_root(e->p, r) == root &&
	       same_shape(e->p, r, first) && !value_guarded(e->p, r);
}

bool may_join(const edit *e, node_id top, node_id n)
{
	return n >= e->first && n <= top && !e->gone.at[n] && is_plain(e, n) && runs_plainly(e, n) &&
	       e->p->nodes.at[n].context == e->p->nodes.at[top].context;
}

typedef struct uses {
	value_id of;
	uint32_t n;
} uses;

static void count_tree_use(void *ctx, value_id v)
{
	uses *u = ctx;
	u->n += v == u->of;
}

static bool used_inside_only(const edit *e, const found_tree *t, value_id v)
{
	uses u = {v, 0};
	for (uint32_t i = 0; i < t->n; i++)
		node_each_arg(e->p, t->nodes[i], count_tree_use, &u);
	return v < e->facts.n && u.n == e->facts.uses[v] && !e->facts.kept[v] && !value_guarded(e->p, v);
}

/* All that is on the memory that `root` owns is made by nodes below the top. */
static bool owns_memory(const edit *e, const found_tree *t, value_id root)
{
	uint32_t on_it = 0;
	for (uint32_t i = 1; i < t->n; i++)
		on_it += alias_root(e->p, edit_result(e, t->nodes[i])) == root;
	return on_it == e->facts.views[root] + 1;
}

static bool can_go(const edit *e, const found_tree *t, node_id n)
{
	value_id r = edit_result(e, n), root = alias_root(e->p, r);
	if (!used_inside_only(e, t, r))
		return false;
	bool mine = e->p->values.at[root].def != NONE && has_node(t, e->p->values.at[root].def);
	if (!mine)
		return !e->p->nodes.at[n].nwrites;
	/* What is written is read once: a second reader would have to be told from before or after. */
	return owns_memory(e, t, root) && (!e->facts.written[root] || e->facts.uses[r] == 1);
}

static bool is_leaf_memory(const edit *e, const found_tree *t, value_id written)
{
	value_id root = alias_root(e->p, written);
	for (uint32_t i = 0; i < t->nleaves; i++)
		if (alias_root(e->p, t->leaves[i]) == root)
			return true;
	return false;
}

/* Between the first node of the tree and its top. */
static bool leaves_stay(const edit *e, const found_tree *t)
{
	node_id first = t->top;
	for (uint32_t i = 0; i < t->n; i++)
		first = t->nodes[i] < first ? t->nodes[i] : first;
	for (node_id n = first; n < t->top; n++) {
		const node *x = &e->p->nodes.at[n];
		for (uint32_t i = 0; i < x->nwrites; i++)
			if (is_leaf_memory(e, t, e->p->ids.at[x->writes + i]))
				return false;
	}
	return true;
}

bool makes_new(const edit *e, node_id n)
{
	value_id r = edit_result(e, n);
	return r != NONE && e->p->values.at[r].alias == NONE && !e->p->nodes.at[n].nwrites;
}

bool tree_is_closed(const edit *e, const found_tree *t)
{
	for (uint32_t i = 1; i < t->n; i++)
		if (!can_go(e, t, t->nodes[i]))
			return false;
	return leaves_stay(e, t);
}

clv_status tree_remove(edit *e, const found_tree *t)
{
	for (uint32_t i = 0; i < t->n; i++)
		TRY(edit_remove(e, t->nodes[i]));
	return CLV_OK;
}

/* ---- words --------------------------------------------------------------------------------------------------------- */

/* What else its arguments must be. */
static bool takes_all(const edit *e, node_id n)
{
	(void)e;
	(void)n;
	return true;
}

static bool is_two(const edit *e, node_id n)
{
	double k;
	return arg_number(e, edit_arg(e, n, 1), &k) && k == 2;
}

static bool is_twice_the_same(const edit *e, node_id n)
{
	return edit_value(e, n, 0) != NONE && edit_value(e, n, 0) == edit_value(e, n, 1);
}

/* Dimension k of a tensor, counted from either end. */
static bool is_dim(const edit *e, const arg *a, value_id v, uint32_t k)
{
	int64_t d, ndim = e->p->values.at[v].ndim;
	return a->kind == ARG_INT && expr_is_const(e->p, a->u.e, &d) && (d < 0 ? d + ndim : d) == (int64_t)k;
}

static bool is_last_dim(const edit *e, node_id n, const arg *a)
{
	value_id v = edit_value(e, n, 0);
	if (v == NONE || !e->p->values.at[v].ndim)
		return false;
	if (a->kind == ARG_LIST)
		a = a->u.list.n == 1 ? &e->p->args.at[a->u.list.first] : edit_arg(e, n, UINT32_MAX);
	return is_dim(e, a, v, e->p->values.at[v].ndim - 1);
}

static bool keeps_dtype(const edit *e, node_id n)
{
	return e->p->values.at[edit_result(e, n)].dtype == e->p->values.at[edit_value(e, n, 0)].dtype;
}

/* mean.dim(x, dim, keepdim, dtype) */
static bool is_mean_of_rows(const edit *e, node_id n)
{
	return is_last_dim(e, n, edit_arg(e, n, 1)) && arg_is_bool(edit_arg(e, n, 2), true) && keeps_dtype(e, n);
}

/* var.dim(x, dim, unbiased, keepdim) */
static bool is_var_of_rows(const edit *e, node_id n)
{
	return is_last_dim(e, n, edit_arg(e, n, 1)) && arg_is_bool(edit_arg(e, n, 2), false) &&
	       arg_is_bool(edit_arg(e, n, 3), true);
}

/* var.correction(x, dim, correction, keepdim) */
static bool is_corrected_var(const edit *e, node_id n)
{
	double k;
	return is_last_dim(e, n, edit_arg(e, n, 1)) && arg_number(e, edit_arg(e, n, 2), &k) && k == 0 &&
	       arg_is_bool(edit_arg(e, n, 3), true);
}

static bool turns_last_two(const edit *e, node_id n)
{
	value_id v = edit_value(e, n, 0);
	uint32_t ndim = v == NONE ? 0 : e->p->values.at[v].ndim;
	if (ndim < 2)
		return false;
	const arg *a = edit_arg(e, n, 1), *b = edit_arg(e, n, 2);
	return (is_dim(e, a, v, ndim - 1) && is_dim(e, b, v, ndim - 2)) ||
	       (is_dim(e, a, v, ndim - 2) && is_dim(e, b, v, ndim - 1));
}

static bool permutes_last_two(const edit *e, node_id n)
{
	value_id v = edit_value(e, n, 0);
	const arg *a = edit_arg(e, n, 1);
	uint32_t ndim = v == NONE ? 0 : e->p->values.at[v].ndim;
	if (ndim < 2 || a->kind != ARG_LIST || a->u.list.n != ndim)
		return false;
	for (uint32_t i = 0; i < ndim; i++) {
		uint32_t want = i + 2 < ndim ? i : 2 * ndim - 3 - i;
		if (!is_dim(e, &e->p->args.at[a->u.list.first + i], v, want))
			return false;
	}
	return true;
}

static bool has_rows(const edit *e, node_id n)
{
	value_id v = edit_value(e, n, 0);
	return v != NONE && e->p->values.at[v].ndim >= 2;
}

static bool is_over_last(const edit *e, node_id n)
{
	return is_last_dim(e, n, edit_arg(e, n, 1));
}

static bool changes_dtype_only(const edit *e, node_id n)
{
	value_id from = edit_value(e, n, 0), to = edit_result(e, n);
	const node *x = &e->p->nodes.at[n];
	for (uint32_t i = 0; i < x->nargs; i++)
		if (edit_arg(e, n, i)->kind == ARG_MEMFMT && edit_arg(e, n, i)->u.code > 1)
			return false;
	return from != NONE && e->p->values.at[from].type == TYPE_TENSOR &&
	       e->p->values.at[from].device == e->p->values.at[to].device && same_shape(e->p, from, to);
}

static const struct word {
	const char *name;
	uint16_t op;
	uint32_t args; /* that the pattern has */
	bool commutes;
	bool (*fits)(const edit *e, node_id n);
} words[] = {
	{"add", OP_add_Tensor, 2, true, alpha_is_one},
	{"add", OP_add__Tensor, 2, true, alpha_is_one},
	{"add", OP_add_Scalar, 2, true, alpha_is_one},
	{"sub", OP_sub_Tensor, 2, false, alpha_is_one},
	{"sub", OP_sub__Tensor, 2, false, alpha_is_one},
	{"mul", OP_mul_Tensor, 2, true, takes_all},
	{"mul", OP_mul__Tensor, 2, true, takes_all},
	{"mul", OP_mul_Scalar, 2, true, takes_all},
	{"div", OP_div_Tensor, 2, false, takes_all},
	{"div", OP_div__Tensor, 2, false, takes_all},
	{"div", OP_div_Scalar, 2, false, takes_all},
	{"square", OP_pow_Tensor_Scalar, 1, false, is_two},
	{"square", OP_square, 1, false, takes_all},
	{"square", OP_mul_Tensor, 1, false, is_twice_the_same},
	{"sqrt", OP_sqrt, 1, false, takes_all},
	{"rsqrt", OP_rsqrt, 1, false, takes_all},
	{"mean", OP_mean_dim, 1, false, is_mean_of_rows},
	{"var", OP_var_dim, 1, false, is_var_of_rows},
	{"var", OP_var_correction, 1, false, is_corrected_var},
	{"to", OP_to_dtype, 1, false, changes_dtype_only},
	{"to", OP_to_dtype_layout, 1, false, changes_dtype_only},
	{"to", OP_to_device, 1, false, changes_dtype_only},
	{"to", OP_to_other, 1, false, changes_dtype_only},
	{"to", OP_type_as, 1, false, changes_dtype_only},
	{"to", OP__to_copy, 1, false, changes_dtype_only},
	{"matmul", OP_matmul, 2, false, has_rows},
	{"matmul", OP_bmm, 2, false, has_rows},
	{"turn", OP_transpose_int, 1, false, turns_last_two},
	{"turn", OP_permute, 1, false, permutes_last_two},
	{"softmax", OP_softmax_int, 1, false, is_over_last},
	{"softmax", OP__softmax, 1, false, is_over_last},
};

/* ---- patterns ------------------------------------------------------------------------------------------------------ */

static bool match_arg(const edit *e, const char *at, const arg *a, found_tree *t);

/* Behind the term that starts here. */
static const char *skip_term(const char *at)
{
	uint32_t depth = 0;
	for (; *at; at++) {
		if (!depth && (*at == ',' || *at == ')'))
			break;
		depth += *at == '(';
		depth -= *at == ')';
	}
	return at;
}

/* The next argument of a word, behind the comma; NULL: there is none. */
static const char *next_term(const char *at)
{
	at = skip_term(at);
	if (*at != ',')
		return NULL;
	for (at++; *at == ' '; at++)
		;
	return at;
}

static bool match_args(const edit *e, node_id n, const char *one, const char *two, uint32_t first, found_tree *t)
{
	return match_arg(e, one, edit_arg(e, n, first), t) && (!two || match_arg(e, two, edit_arg(e, n, 1 - first), t));
}

/* Of a node that has the operator: `at` is behind the parenthesis of the word. What did not match leaves its traces
   in t. */
static bool match_word(const edit *e, const struct word *w, const char *at, node_id n, found_tree *t)
{
	const char *two = next_term(at);
	if (w->args != (two ? 2u : 1u) || !may_join(e, t->top, n) || edit_value(e, n, 0) == NONE || !w->fits(e, n) ||
	    !tree_add_node(t, n))
		return false;
	found_tree before = *t;
	if (match_args(e, n, at, two, 0, t))
		return true;
	*t = before;
	return w->commutes && match_args(e, n, at, two, 1, t);
}

static bool match_node(const edit *e, const char *at, node_id n, found_tree *t)
{
	size_t length = strcspn(at, "(");
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (!strncmp(words[i].name, at, length) && !words[i].name[length] && edit_is(e, n, words[i].op) &&
		    match_word(e, &words[i], at + length + 1, n, t))
			return true;
	return false;
}

static bool match_tensor(char letter, const arg *a, found_tree *t)
{
	value_id *v = &t->tensors[letter - 'a'];
	if (a->kind != ARG_VALUE || (*v != NONE && *v != a->u.v))
		return false;
	*v = a->u.v;
	return tree_add_leaf(t, *v);
}

static bool match_number(const edit *e, char letter, const arg *a, found_tree *t)
{
	double k;
	uint32_t i = (uint32_t)(letter - 'A');
	if (!arg_number(e, a, &k) || (t->has_number[i] && k != t->numbers[i]))
		return false;
	t->numbers[i] = k;
	t->has_number[i] = true;
	return true;
}

static bool match_made(const edit *e, const char *at, const arg *a, found_tree *t)
{
	if (a->kind != ARG_VALUE)
		return false;
	const value *x = &e->p->values.at[a->u.v];
	return x->kind == VALUE_RESULT && x->def != NONE && x->def < e->nodes && edit_result(e, x->def) == a->u.v &&
	       match_node(e, at, x->def, t);
}

static bool match_arg(const edit *e, const char *at, const arg *a, found_tree *t)
{
	double k;
	if (*at == '~') { /* what is optional stands around one argument */
		found_tree before = *t;
		if (match_made(e, at + 1, a, t))
			return true;
		*t = before;
		return match_arg(e, at + strcspn(at, "(") + 1, a, t);
	}
	if (isdigit((unsigned char)*at))
		return arg_number(e, a, &k) && same_number(k, strtod(at, NULL));
	if (skip_term(at) != at + 1)
		return match_made(e, at, a, t);
	return isupper((unsigned char)*at) ? match_number(e, *at, a, t) : match_tensor(*at, a, t);
}

bool match_tree(const edit *e, node_id top, const char *pattern, found_tree *out)
{
	tree_new(top, out);
	return match_node(e, pattern, top, out);
}

bool pattern_with(const char *outer, const char *core, char out[PATTERN_SIZE])
{
	size_t n = 0;
	for (; *outer; outer++) {
		const char *piece = *outer == '@' ? core : outer;
		size_t length = *outer == '@' ? strlen(core) : 1;
		if (n + length >= PATTERN_SIZE)
			return false;
		memcpy(out + n, piece, length);
		n += length;
	}
	out[n] = 0;
	return true;
}
