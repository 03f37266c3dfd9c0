/* Recognizes functions that are spelled out, such as gelu, and calls their operators.
 * Functions of one number that are spelt out: gelu as eight operators, x * sigmoid(x), x * relu6(x + 3) / 6. Where
 * PyTorch has an operator for the function, that takes their place.
 *
 * There are many spellings. So the nodes that make one value of another, with numbers alone, are brought into a normal form
 * (algebra.h) and compared with that of each function: the same form is the same function everywhere, but for numbers that
 * one of the two rounds. How much that changes is seen at points all over the number line. */
#include "optimize/algebra.h"
#include "optimize/match.h"

#include <math.h>

/* ---- steps --------------------------------------------------------------------------------------------------------- */

/* A step computes one number of its arguments: up to three, which are numbers of other steps or of the node; or the form of
   its result of their forms. */
typedef double (*step_fn)(const double *a);
/* numbers: those of the arguments that are numbers, NAN for others */
typedef bool (*step_form_fn)(piece *p, const form *a, const double *numbers, form *out);

static double sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}

static double hardsigmoid(double x)
{
	return fmin(fmax(x + 3, 0), 6) / 6;
}

static bool scaled(const form *a, double factor, form *out)
{
	form k = form_number(factor);
	return form_mul(a, &k, out);
}

static bool shifted(const form *a, double by, form *out)
{
	form k = form_number(by);
	return form_add(a, &k, 1, out);
}

/* A step: its value at the numbers a, and its form. */
#define STEP(name, value, result)                                                                                      \
	static double step_##name(const double *a)                                                                         \
	{                                                                                                                  \
		return value;                                                                                                  \
	}                                                                                                                  \
	static bool name##_form(piece *p, const form *a, const double *k, form *out)                                       \
	{                                                                                                                  \
		(void)p;                                                                                                       \
		(void)k;                                                                                                       \
		return result;                                                                                                 \
	}

STEP(add, a[0] + a[2] * a[1], form_add(&a[0], &a[1], k[2], out))
STEP(sub, a[0] - a[2] * a[1], form_add(&a[0], &a[1], -k[2], out))
STEP(rsub, a[1] - a[2] * a[0], form_add(&a[1], &a[0], -k[2], out))
STEP(mul, a[0] * a[1], form_mul(&a[0], &a[1], out))
STEP(div, a[0] / a[1], form_div(&a[0], &a[1], out))
STEP(pow, pow(a[0], a[1]), form_pow(&a[0], k[1], out))
STEP(square, a[0] * a[0], form_mul(&a[0], &a[0], out))
STEP(neg, -a[0], scaled(&a[0], -1, out))
STEP(exp, exp(a[0]), form_exp(p, &a[0], out))
STEP(expm1, expm1(a[0]), form_exp(p, &a[0], out) && shifted(out, -1, out))
STEP(log, log(a[0]), form_log(p, &a[0], out))
STEP(log1p, log1p(a[0]), shifted(&a[0], 1, out) && form_log(p, out, out))
STEP(tanh, tanh(a[0]),
     scaled(&a[0], 2, out) && form_sigmoid(p, out, out) && scaled(out, 2, out) && shifted(out, -1, out))
STEP(erf, erf(a[0]), form_erf(p, &a[0], out))
STEP(erfc, erfc(a[0]), form_erf(p, &a[0], out) && scaled(out, -1, out) && shifted(out, 1, out))
STEP(sigmoid, sigmoid(a[0]), form_sigmoid(p, &a[0], out))
STEP(reciprocal, 1 / a[0], form_pow(&a[0], 0, out) && form_div(out, &a[0], out))
STEP(clamp, fmin(fmax(a[0], a[1]), a[2]), form_clamp(p, &a[0], k[1], k[2], out))
STEP(at_least, fmax(a[0], a[1]), form_clamp(p, &a[0], k[1], INFINITY, out))
STEP(at_most, fmin(a[0], a[1]), form_clamp(p, &a[0], -INFINITY, k[1], out))
STEP(relu, fmax(a[0], 0), form_clamp(p, &a[0], 0, INFINITY, out))
STEP(relu6, fmin(fmax(a[0], 0), 6), form_clamp(p, &a[0], 0, 6, out))
STEP(hardsigmoid, hardsigmoid(a[0]),
     shifted(&a[0], 3, out) && form_clamp(p, out, 0, 6, out) && scaled(out, 1.0 / 6, out))
/* From the threshold on it is x, which is nearly the same where the threshold is high. */
STEP(softplus, a[0] * a[1] > a[2] ? a[0] : log1p(exp(a[0] * a[1])) / a[1],
     k[1] > 0 && k[2] >= 14 && scaled(&a[0], k[1], out) && form_exp(p, out, out) && shifted(out, 1, out) &&
         form_log(p, out, out) && scaled(out, 1 / k[1], out))

/* Numbers that are not given are as these say: alpha, bounds, beta and threshold. */
static const struct step {
	step_fn run;
	step_form_fn form;
	uint32_t args; /* 1 to 3 */
	double second, third;
} steps[OP_COUNT] = {
#define ROW(name) step_##name, name##_form
	[OP_add_Tensor] = {ROW(add), 3, NAN, 1},
	[OP_add_Scalar] = {ROW(add), 3, NAN, 1},
	[OP_add__Tensor] = {ROW(add), 3, NAN, 1},
	[OP_sub_Tensor] = {ROW(sub), 3, NAN, 1},
	[OP_sub_Scalar] = {ROW(sub), 3, NAN, 1},
	[OP_sub__Tensor] = {ROW(sub), 3, NAN, 1},
	[OP_rsub_Tensor] = {ROW(rsub), 3, NAN, 1},
	[OP_rsub_Scalar] = {ROW(rsub), 3, NAN, 1},
	[OP_mul_Tensor] = {ROW(mul), 2, NAN, NAN},
	[OP_mul_Scalar] = {ROW(mul), 2, NAN, NAN},
	[OP_mul__Tensor] = {ROW(mul), 2, NAN, NAN},
	[OP_div_Tensor] = {ROW(div), 2, NAN, NAN},
	[OP_div_Scalar] = {ROW(div), 2, NAN, NAN},
	[OP_div__Tensor] = {ROW(div), 2, NAN, NAN},
	[OP_pow_Tensor_Scalar] = {ROW(pow), 2, NAN, NAN},
	[OP_square] = {ROW(square), 1, NAN, NAN},
	[OP_neg] = {ROW(neg), 1, NAN, NAN},
	[OP_exp] = {ROW(exp), 1, NAN, NAN},
	[OP_expm1] = {ROW(expm1), 1, NAN, NAN},
	[OP_log] = {ROW(log), 1, NAN, NAN},
	[OP_log1p] = {ROW(log1p), 1, NAN, NAN},
	[OP_tanh] = {ROW(tanh), 1, NAN, NAN},
	[OP_erf] = {ROW(erf), 1, NAN, NAN},
	[OP_special_erf] = {ROW(erf), 1, NAN, NAN},
	[OP_erfc] = {ROW(erfc), 1, NAN, NAN},
	[OP_sigmoid] = {ROW(sigmoid), 1, NAN, NAN},
	[OP_sigmoid_] = {ROW(sigmoid), 1, NAN, NAN},
	[OP_tanh_] = {ROW(tanh), 1, NAN, NAN},
	[OP_reciprocal] = {ROW(reciprocal), 1, NAN, NAN},
	[OP_clamp] = {ROW(clamp), 3, -INFINITY, INFINITY},
	[OP_clamp_] = {ROW(clamp), 3, -INFINITY, INFINITY},
	[OP_clamp_min] = {ROW(at_least), 2, NAN, NAN},
	[OP_clamp_max] = {ROW(at_most), 2, NAN, NAN},
	[OP_hardtanh] = {ROW(clamp), 3, -1, 1},
	[OP_hardtanh_] = {ROW(clamp), 3, -1, 1},
	[OP_relu] = {ROW(relu), 1, NAN, NAN},
	[OP_relu_] = {ROW(relu), 1, NAN, NAN},
	[OP_relu6] = {ROW(relu6), 1, NAN, NAN},
	[OP_relu6_] = {ROW(relu6), 1, NAN, NAN},
	[OP_hardsigmoid] = {ROW(hardsigmoid), 1, NAN, NAN},
	[OP_softplus] = {ROW(softplus), 3, 1, 20},
};

static const struct step *step_of(const edit *e, node_id n)
{
	const struct step *s = &steps[e->p->nodes.at[n].op_id];
	return s->run ? s : NULL;
}

/* ---- functions ----------------------------------------------------------------------------------------------------- */

/* A function of x: its value, and its form, which is made of the forms of steps: of x alone, or of x and the last
   result. */
#define FUNCTION(name, value, result)                                                                                  \
	static double name(double x)                                                                                       \
	{                                                                                                                  \
		return value;                                                                                                  \
	}                                                                                                                  \
	static bool name##_of_x(piece *p, const form *x, form *out)                                                        \
	{                                                                                                                  \
		return result;                                                                                                 \
	}

FUNCTION(gelu, 0.5 * x * erfc(-x * 0.70710678118654752440),
         scaled(x, 0.70710678118654752440, out) && form_erf(p, out, out) && shifted(out, 1, out) &&
             form_mul(x, out, out) && scaled(out, 0.5, out))
FUNCTION(gelu_tanh, 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x))),
         form_pow(x, 3, out) && scaled(out, 0.044715, out) && form_add(x, out, 1, out) &&
             scaled(out, 2 * 0.79788456080286535588, out) && form_sigmoid(p, out, out) && form_mul(x, out, out))
FUNCTION(silu, x / (1 + exp(-x)), form_sigmoid(p, x, out) && form_mul(x, out, out))
FUNCTION(softplus, x > 40 ? x : log1p(exp(x)), softplus_form(p, x, (const double[]){NAN, 1, 20}, out))
FUNCTION(mish, x *tanh(softplus(x)), softplus_of_x(p, x, out) && tanh_form(p, out, NULL, out) && form_mul(x, out, out))
FUNCTION(hardswish, x *fmin(fmax(x + 3, 0), 6) / 6, hardsigmoid_form(p, x, NULL, out) && form_mul(x, out, out))

static bool hardsigmoid_of_x(piece *p, const form *x, form *out)
{
	return hardsigmoid_form(p, x, NULL, out);
}

static bool sigmoid_of_x(piece *p, const form *x, form *out)
{
	return form_sigmoid(p, x, out);
}

static const struct function {
	double (*at)(double x);
	bool (*form)(piece *p, const form *x, form *out);
	uint16_t op;
	const char *approximate; /* its second argument, or NULL */
	bool bends;              /* it has bounds */
} functions[] = {
	{gelu, gelu_of_x, OP_gelu, "none", false},
	{gelu_tanh, gelu_tanh_of_x, OP_gelu, "tanh", false},
	{silu, silu_of_x, OP_silu, NULL, false},
	{mish, mish_of_x, OP_mish, NULL, false},
	{hardswish, hardswish_of_x, OP_hardswish, NULL, true},
	{hardsigmoid, hardsigmoid_of_x, OP_hardsigmoid, NULL, true},
	{sigmoid, sigmoid_of_x, OP_sigmoid, NULL, false},
	{softplus, softplus_of_x, OP_softplus, NULL, false},
};

/* ---- trying -------------------------------------------------------------------------------------------------------- */

/* Nodes in their order, what each computes, and of what. */
typedef struct formula {
	found_tree tree;
	value_id x;
	struct line {
		const struct step *step;
		double numbers[3];
		int from[3]; /* the line that makes the argument; LINE_X, LINE_NUMBER */
		double now;
	} lines[TREE_NODES];
} formula;

enum { LINE_X = -1, LINE_NUMBER = -2, MOST_STEPS = 12 };

/* Looked at before all others: few that are something else agree there. */
#define FIRST_POINT 0.7

static double run_formula(formula *f, double x)
{
	for (uint32_t i = 0; i < f->tree.n; i++) {
		struct line *l = &f->lines[i];
		double a[3];
		for (uint32_t k = 0; k < l->step->args; k++)
			a[k] = l->from[k] == LINE_NUMBER ? l->numbers[k] : l->from[k] == LINE_X ? x : f->lines[l->from[k]].now;
		l->now = l->step->run(a);
	}
	return f->lines[f->tree.n - 1].now;
}

/* Steps are computed in double: what they lose is of the size of x, times little. Where the function is almost 0, a factor
   that is rounded in the model counts for more the farther out; a bound or a small number that keeps a logarithm or a
   quotient finite counts for much more. A spelling that has no value far out, where its exponentials are infinite, has one
   in the operator. */
static bool agrees_at(formula *f, const struct function *g, double x, double tolerance)
{
	double got = run_formula(f, x), want = g->at(x);
	double tail = fabs(want) < 1e-3 ? 1 + x * x : 1;
	if (!isfinite(got) && fabs(x) > 80)
		return true;
	return fabs(got - want) <= tolerance * tail * fabs(want) + 1e-15 * (1 + fabs(x));
}

/* Which numbers may be rounded, and how much; the operator of softplus is exact to 2e-9 only. */
static bool may_be(const struct function *g, double *tolerance)
{
	if (g->bends)
		*tolerance = fmin(*tolerance, 5e-8);
	return g->at != softplus || *tolerance > 1e-9;
}

/* Dense where functions bend, then farther and farther out. */
static bool agrees_at_points(formula *f, const struct function *g, double tolerance)
{
	for (int i = 0; i <= 400; i++)
		if (!agrees_at(f, g, (i * 83 % 401 - 200) / 16.0, tolerance))
			return false;
	for (double x = 12; x < 1e30; x *= 1.7)
		if (!agrees_at(f, g, x, tolerance) || !agrees_at(f, g, -x, tolerance))
			return false;
	return true;
}

static bool form_of(const formula *f, piece *p, form *out)
{
	form lines[MOST_STEPS], a[3], x = form_x();
	for (uint32_t i = 0; i < f->tree.n; i++) {
		const struct line *l = &f->lines[i];
		double numbers[3] = {NAN, NAN, NAN};
		for (uint32_t k = 0; k < l->step->args; k++) {
			if (l->from[k] == LINE_NUMBER)
				numbers[k] = l->numbers[k];
			a[k] = l->from[k] == LINE_NUMBER ? form_number(numbers[k]) : l->from[k] == LINE_X ? x : lines[l->from[k]];
		}
		if (!l->step->form(p, a, numbers, &lines[i]))
			return false;
	}
	*out = lines[f->tree.n - 1];
	return true;
}

/* At points of a piece of its own, which may be too short for others to be in it. */
static bool agrees_inside(formula *f, const struct function *g, double low, double high, double tolerance)
{
	for (int i = 0; i <= 8 && isfinite(high - low); i++)
		if (!agrees_at(f, g, low + (high - low) * i / 8, tolerance))
			return false;
	return true;
}

/* Both have the same form between these points. A piece that is there because one of the two rounds where it changes is so
   short that points tell all of it: what has bounds is a polynomial. */
static bool same_between(formula *f, const struct function *g, double low, double high, double tolerance, int depth)
{
	piece mine = {.low = low, .high = high, .split = NAN, .root = NAN}, its = mine;
	form got, want, x = form_x();
	if (!form_of(f, &mine, &got) || !g->form(&its, &x, &want))
		return false;
	double split = isnan(mine.split) ? its.split : mine.split;
	if (!isnan(split))
		return depth && same_between(f, g, low, split, tolerance, depth - 1) &&
		       same_between(f, g, split, high, tolerance, depth - 1);
	bool is_short = isfinite(high - low) && high - low <= 1e-6 * fmax(1, fabs(low));
	return (is_short || form_same(&mine, &got, &its, &want)) && agrees_inside(f, g, low, high, tolerance);
}

static bool agrees(formula *f, const struct function *g, double tolerance)
{
	return may_be(g, &tolerance) && agrees_at_points(f, g, tolerance) &&
	       same_between(f, g, -INFINITY, INFINITY, tolerance, 4 * MOST_STEPS);
}

static int line_of(const edit *e, const formula *f, value_id v)
{
	for (uint32_t i = 0; i < f->tree.n; i++)
		if (edit_result(e, f->tree.nodes[i]) == v)
			return (int)i;
	return LINE_X;
}

static bool read_line(const edit *e, const formula *f, node_id n, struct line *l)
{
	l->step = step_of(e, n);
	for (uint32_t k = 0; k < l->step->args; k++) {
		const arg *a = edit_arg(e, n, k);
		l->from[k] = a->kind == ARG_VALUE ? line_of(e, f, a->u.v) : LINE_NUMBER;
		l->numbers[k] = k == 1 ? l->step->second : k == 2 ? l->step->third : NAN;
		if (a->kind != ARG_VALUE && a->kind != ARG_NONE && !arg_number(e, a, &l->numbers[k]))
			return false;
		if (l->from[k] == LINE_NUMBER && isnan(l->numbers[k]))
			return false;
		if (l->from[k] == LINE_X && a->u.v != f->x)
			return false;
	}
	return true;
}

/* The nodes of the tree in order, the top last. */
static void sort_nodes(found_tree *t)
{
	for (uint32_t i = 1; i < t->n; i++)
		for (uint32_t k = i; k && t->nodes[k - 1] > t->nodes[k]; k--) {
			node_id other = t->nodes[k];
			t->nodes[k] = t->nodes[k - 1];
			t->nodes[k - 1] = other;
		}
}

static const struct function *name_it(const edit *e, const found_tree *t, value_id x)
{
	formula f = {.tree = *t, .x = x};
	double tolerance = e->p->values.at[x].dtype == DT_F64 ? 1e-11 : 1e-6;
	sort_nodes(&f.tree);
	for (uint32_t i = 0; i < f.tree.n; i++)
		if (!read_line(e, &f, f.tree.nodes[i], &f.lines[i]))
			return NULL;
	double first = run_formula(&f, FIRST_POINT);
	for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
		if (fabs(first - functions[i].at(FIRST_POINT)) < 1e-3 && agrees(&f, &functions[i], tolerance))
			return &functions[i];
	return NULL;
}

/* ---- finding ------------------------------------------------------------------------------------------------------- */

/* Values that the nodes so far are made of and that are not looked into. */
typedef struct open_values {
	value_id at[TREE_LEAVES];
	uint32_t n;
} open_values;

/* The node becomes part of the tree, what it reads one of the open values. */
static bool look_into(const edit *e, node_id n, found_tree *t, open_values *f)
{
	const struct step *step = step_of(e, n);
	if (!step || t->n == MOST_STEPS || !may_join(e, t->top, n) || !tree_add_node(t, n))
		return false;
	for (uint32_t k = 0; k < e->p->nodes.at[n].nargs; k++) {
		value_id v = edit_value(e, n, k);
		bool takes = v != NONE && is_float(&e->p->values.at[v]) && is_alike(e->p, v, edit_result(e, t->top));
		if (v != NONE && (k >= step->args || !takes || !add_once(f->at, &f->n, TREE_LEAVES, v)))
			return false;
	}
	return true;
}

static node_id maker_of_value(const edit *e, value_id v)
{
	const value *x = &e->p->values.at[v];
	bool old = x->kind == VALUE_RESULT && x->def != NONE && x->def < e->nodes;
	return old && edit_result(e, x->def) == v ? x->def : NONE;
}

/* Takes out the value that is made last: all its readers have been looked into. NONE: none is made here. */
static node_id pop_last(const edit *e, open_values *f)
{
	uint32_t last = 0;
	node_id at = NONE;
	for (uint32_t i = 0; i < f->n; i++) {
		node_id n = maker_of_value(e, f->at[i]);
		if (n != NONE && (at == NONE || n > at)) {
			at = n;
			last = i;
		}
	}
	if (at != NONE)
		f->at[last] = f->at[--f->n];
	return at;
}

/* x.mul_(x.sigmoid()): the function's own form in place does that too. */
static bool can_write(const edit *e, const found_tree *t, const struct function *g)
{
	return makes_new(e, t->top) ||
	       (e->p->nodes.at[t->top].nwrites && op_rows[g->op].writer && edit_value(e, t->top, 0) == t->leaves[0]);
}

/* The nearest value that all paths from the top lead to, such that the top is a known function of it. */
static const struct function *find_function(const edit *e, node_id top, found_tree *t)
{
	open_values f = {.n = 0};
	tree_new(top, t);
	if (!look_into(e, top, t, &f))
		return NULL;
	for (;;) {
		const struct function *g = f.n == 1 && t->n > 1 ? name_it(e, t, f.at[0]) : NULL;
		t->nleaves = 0;
		if (g && tree_add_leaf(t, f.at[0]) && tree_is_closed(e, t) && can_write(e, t, g))
			return g;
		node_id next = pop_last(e, &f);
		if (next == NONE || !look_into(e, next, t, &f))
			return NULL;
	}
}

static clv_status put_function(edit *e, const found_tree *t, const struct function *g)
{
	spot at = {e, t->top, t->top};
	value_id result = edit_result(e, t->top);
	arg args[3] = {arg_of(t->leaves[0])};
	uint32_t n = 1;
	if (g->approximate)
		TRY(arg_text(e, g->approximate, &args[n++]));
	if (g->at == softplus) {
		args[n++] = arg_float(1);
		args[n++] = arg_float(20);
	}
	bool in_place = e->p->nodes.at[t->top].nwrites;
	value_id written = in_place ? e->p->ids.at[e->p->nodes.at[t->top].writes] : NONE;
	TRY(tree_remove(e, t));
	return put_writer(&at, in_place ? op_rows[g->op].writer : g->op, args, n, result, written);
}

clv_status pass_functions(edit *e, const optimize_spec *s, uint32_t *changes)
{
	(void)s;
	for (node_id n = e->end; n-- > e->first;) { /* from the end: the largest tree first */
		found_tree t;
		if (e->gone.at[n] || !step_of(e, n) || edit_result(e, n) == NONE)
			continue;
		const struct function *g = find_function(e, n, &t);
		if (!g)
			continue;
		TRY(put_function(e, &t, g));
		*changes += t.n;
	}
	return CLV_OK;
}
