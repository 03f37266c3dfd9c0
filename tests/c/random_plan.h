/* Random plans that verify, with everything a plan can hold: made with the builder, in orders that no text has
 * (values of all kinds mixed, ties unsorted), so that the text form has to put them in order. */
#ifndef TESTS_RANDOM_PLAN_H
#define TESTS_RANDOM_PLAN_H

#include "support.h"

#include <math.h>

typedef struct maker {
	plan *p;
	uint64_t seed;
	uint32_t names; /* given so far */
} maker;

static inline uint32_t below(maker *m, uint32_t n)
{
	return random_below(&m->seed, n);
}

static inline bool chance(maker *m, uint32_t percent)
{
	return below(m, 100) < percent;
}

/* ---- leaves -------------------------------------------------------------------------------------------------------- */

static inline str_id any_string(maker *m)
{
	static const char pieces[][5] = {
		"a", "Z", "0", "_", ".",  " ",    "\"",   "\\",   "\n",   "\t",       "\r",           ";",
		"%", "#", "@", "(", "->", "\x01", "\x7f", "\xc3", "\xff", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
	char text[64];
	size_t n = 0;
	for (uint32_t i = below(m, 8); i > 0; i--) {
		const char *piece = pieces[below(m, sizeof pieces / sizeof *pieces)];
		memcpy(text + n, piece, strlen(piece));
		n += strlen(piece);
		if (chance(m, 5))
			text[n++] = '\0';
	}
	str_id s;
	OK(plan_str(m->p, text, n, &s));
	return s;
}

/* A new name each time, odd ones among them, none with a NUL byte. */
static inline void new_name(maker *m, char out[64])
{
	static const char *const forms[] = {"layer%u.weight", "w%u",    "odd name %u", "\"%u\"",
	                                    "h\xc3\xa9%u",    "<%u>-x", ".%u",         "\n%u"};
	snprintf(out, 64, forms[below(m, 8)], m->names++);
}

static inline double any_double(maker *m)
{
	static const double odd[] = {0.0,      -0.0,      1.0, -1.0, 0.1, 1e300, 5e-324, 2.2250738585072014e-308,
	                             INFINITY, -INFINITY, NAN};
	if (chance(m, 50))
		return odd[below(m, sizeof odd / sizeof *odd)];
	uint64_t bits = random64(&m->seed);
	double v;
	memcpy(&v, &bits, sizeof v);
	return v;
}

static inline int64_t any_int(maker *m)
{
	static const int64_t odd[] = {INT64_MIN, INT64_MIN + 1, INT64_MAX, 0, 1, -1, 2, 3, 64};
	return chance(m, 60) ? odd[below(m, sizeof odd / sizeof *odd)] : (int64_t)below(m, 1000) - 200;
}

static inline expr_id any_expr(maker *m, unsigned depth)
{
	expr_id e, a, b;
	if (depth == 0 || chance(m, 40)) {
		if (m->p->symbols.n && chance(m, 60))
			OK(expr_sym(m->p, below(m, m->p->symbols.n), &e));
		else
			OK(expr_const(m->p, any_int(m), &e));
		return e;
	}
	a = any_expr(m, depth - 1);
	b = any_expr(m, depth - 1);
	OK(expr_make(m->p, (expr_op)(EXPR_ADD + below(m, 7)), a, b, &e));
	return e;
}

static inline real_id any_real(maker *m, unsigned depth)
{
	real_id r, a, b = NONE;
	if (depth == 0 || chance(m, 30)) {
		if (chance(m, 50))
			OK(real_const(m->p, any_double(m), &r));
		else
			OK(real_int(m->p, any_expr(m, 2), &r));
		return r;
	}
	real_op op = (real_op)(REAL_NEG + below(m, REAL_POW - REAL_NEG + 1));
	a = any_real(m, depth - 1);
	if (op >= REAL_ADD)
		b = any_real(m, depth - 1);
	OK(real_make(m->p, op, a, b, &r));
	return r;
}

static inline expr_id any_size(maker *m)
{
	expr_id e = any_expr(m, below(m, 3));
	int64_t k;
	if (expr_is_const(m->p, e, &k) && k < 0)
		OK(expr_const(m->p, (int64_t)below(m, 100), &e));
	return e;
}

/* ---- declarations -------------------------------------------------------------------------------------------------- */

static inline const char *any_device(maker *m)
{
	static const char *const devices[] = {"cpu", "cpu", "cpu", "cuda:0", "meta", "odd one", ""};
	return devices[below(m, 7)];
}

static inline value_id any_tensor(maker *m, value_kind kind, const char *name)
{
	expr_id shape[4], strides[4];
	tensor_spec t = {.dtype = (dtype)below(m, DT_COUNT), .ndim = below(m, 5), .shape = shape, .device = any_device(m)};
	for (uint32_t i = 0; i < t.ndim; i++) {
		shape[i] = any_size(m);
		strides[i] = any_expr(m, 1);
	}
	t.strides = chance(m, 20) ? strides : NULL;
	value_id v;
	OK(plan_tensor(m->p, kind, name, &t, &v));
	if (chance(m, 20))
		m->p->values.at[v].flags |= VALUE_GRAD;
	return v;
}

static inline bool is_root(const plan *p, value_id v)
{
	return p->values.at[v].type == TYPE_TENSOR && p->values.at[v].alias == NONE;
}

static inline bool external(uint8_t kind)
{
	return kind != VALUE_INPUT && kind != VALUE_RESULT;
}

/* A storage that the text defines before v: results may view anything, external values only external ones before. */
static inline void any_alias(maker *m, value_id v)
{
	if (v == 0 || !chance(m, 25))
		return;
	value_id root = below(m, v);
	uint8_t kind = m->p->values.at[v].kind, of = m->p->values.at[root].kind;
	bool before = kind == VALUE_RESULT || of == VALUE_INPUT || (external(kind) && external(of));
	bool later = of == VALUE_RESULT && m->p->values.at[root].def == NONE;
	if (is_root(m->p, root) && before && !later)
		m->p->values.at[v].alias = root;
}

static inline void any_input(maker *m)
{
	char name[64];
	new_name(m, name);
	value_id v = any_tensor(m, VALUE_INPUT, chance(m, 60) ? name : NULL);
	any_alias(m, v);
}

static inline void any_tie(maker *m, value_id v)
{
	char name[64];
	tie t = {.value = v};
	new_name(m, name);
	OK(plan_cstr(m->p, name, &t.name));
	OK(vec_push(&m->p->ties, t));
}

static inline void any_external(maker *m)
{
	char name[64];
	value_id v;
	new_name(m, name);
	uint32_t kind = VALUE_PARAM + below(m, 5);
	if (kind == VALUE_OBJECT) {
		OK(plan_object(m->p, name, &v));
		return;
	}
	v = any_tensor(m, (value_kind)kind, kind == VALUE_CONST ? NULL : name);
	any_alias(m, v);
	if (kind == VALUE_PARAM && chance(m, 60))
		m->p->values.at[v].flags |= VALUE_TRAINABLE;
	if (kind == VALUE_CONST && chance(m, 50))
		m->p->values.at[v].flags |= VALUE_PERSISTENT;
	if (kind != VALUE_CONST && chance(m, 20))
		any_tie(m, v);
	if (kind != VALUE_CONST && m->p->ties.n && chance(m, 10))
		any_tie(m, m->p->ties.at[0].value); /* out of order */
}

static inline void any_scope(maker *m)
{
	static const char *const parts[] = {"layer1", "0", "conv", "odd part", "<x>", "h\xc3\xa9"};
	char path[256];
	scope_id s;
	if (m->p->scopes.n == 0) {
		OK(plan_scope(m->p, NONE, "", "Model", &s));
		return;
	}
	const char *up = plan_s(m->p, m->p->scopes.at[below(m, m->p->scopes.n)].path);
	if (strlen(up) > 100)
		return;
	bool skip = chance(m, 20); /* a module in between that is not declared */
	snprintf(path, sizeof path, "%s%s%s%s", up, *up ? "." : "", skip ? "list." : "", parts[below(m, 6)]);
	OK(plan_scope(m->p, NONE, path, plan_s(m->p, m->p->strs.at ? 0 : NONE), &s));
}

static inline context_id any_context(maker *m)
{
	autocast ac[3];
	context c = {.nograd = chance(m, 30), .inference = chance(m, 20), .nautocast = chance(m, 70) ? 0 : 1 + below(m, 3)};
	context_id id;
	for (uint32_t i = 0; i < c.nautocast; i++) {
		ac[i].device = any_string(m);
		ac[i].dtype = (uint8_t)below(m, DT_COUNT);
		ac[i].cache = chance(m, 50);
	}
	if (chance(m, 30)) {
		c.flags_mask = below(m, 1u << CTX_FLAG_COUNT);
		c.flags = below(m, 1u << CTX_FLAG_COUNT);
	}
	OK(plan_context(m->p, &c, ac, &id));
	return id;
}

/* ---- nodes --------------------------------------------------------------------------------------------------------- */

static inline arg any_number(maker *m)
{
	arg a = {.kind = ARG_NONE};
	switch (below(m, 5)) {
	case 4:
		a.kind = ARG_REAL;
		a.u.r = any_real(m, 4);
		break;
	case 0:
		a.kind = ARG_INT;
		a.u.e = any_expr(m, 3);
		break;
	case 1:
		a.kind = ARG_FLOAT;
		a.u.f = any_double(m);
		break;
	case 2:
		a.kind = ARG_BOOL;
		a.u.b = chance(m, 50);
		break;
	default:
		a.kind = ARG_COMPLEX;
		a.u.c.re = any_double(m);
		a.u.c.im = any_double(m);
	}
	a.wrapped = chance(m, 20);
	return a;
}

static inline value_id any_defined(maker *m)
{
	for (int tries = 0; tries < 20 && m->p->values.n; tries++) {
		value_id v = below(m, m->p->values.n);
		if (m->p->values.at[v].kind != VALUE_RESULT || m->p->values.at[v].def != NONE)
			return v;
	}
	return NONE;
}

static inline arg any_arg(maker *m, unsigned depth)
{
	arg a = {.kind = ARG_NONE}, elems[4];
	uint32_t n = below(m, 4);
	switch (below(m, depth ? 10 : 8)) {
	case 0:
	case 1:
	case 2:
		a.u.v = any_defined(m);
		a.kind = a.u.v == NONE ? ARG_NONE : ARG_VALUE;
		return a;
	case 3:
		a.kind = ARG_STR;
		a.u.s = any_string(m);
		return a;
	case 4:
		a.kind = ARG_DTYPE;
		a.u.code = below(m, DT_COUNT);
		return a;
	case 5:
		a.kind = chance(m, 50) ? ARG_LAYOUT : ARG_MEMFMT;
		a.u.code = below(m, a.kind == ARG_LAYOUT ? 8 : 4);
		return a;
	case 6:
		a.kind = ARG_DEVICE;
		OK(plan_cstr(m->p, any_device(m), &a.u.s));
		return a;
	case 7: return any_number(m);
	default:
		for (uint32_t i = 0; i < n; i++)
			elems[i] = any_arg(m, depth - 1);
		OK(plan_list(m->p, elems, n, &a));
		return a;
	}
}

static inline value_id any_host(maker *m)
{
	value_id v;
	value_type type = (value_type)(TYPE_BOOL + below(m, 6));
	OK(plan_host(m->p, type, &v));
	if (type == TYPE_OBJECT || chance(m, 30))
		return v;
	static const uint8_t kinds[] = {[TYPE_BOOL] = ARG_BOOL,
	                                [TYPE_INT] = ARG_INT,
	                                [TYPE_FLOAT] = ARG_FLOAT,
	                                [TYPE_COMPLEX] = ARG_COMPLEX,
	                                [TYPE_STR] = ARG_STR};
	arg a;
	if (type == TYPE_STR) {
		a = (arg){.kind = ARG_STR};
		a.u.s = any_string(m);
	} else {
		do {
			a = any_number(m);
		} while (a.kind != kinds[type] && !(type == TYPE_FLOAT && a.kind == ARG_REAL));
	}
	a.wrapped = 0;
	OK(plan_expect(m->p, v, &a));
	return v;
}

static inline arg any_result(maker *m, bool inner)
{
	arg a = {.kind = ARG_NONE}, elems[3];
	if (!inner && chance(m, 15)) {
		uint32_t n = below(m, 4);
		for (uint32_t i = 0; i < n; i++)
			elems[i] = any_result(m, true);
		OK(plan_list(m->p, elems, n, &a));
		return a;
	}
	if (chance(m, 10))
		return a;
	a.kind = ARG_VALUE;
	a.u.v = chance(m, 15) ? any_host(m) : any_tensor(m, VALUE_RESULT, NULL);
	if (m->p->values.at[a.u.v].type != TYPE_TENSOR)
		return a;
	if (chance(m, 10))
		m->p->values.at[a.u.v].flags |= VALUE_GUARD;
	any_alias(m, a.u.v);
	return a;
}

/* In place: on tensors among the plain arguments. */
static inline uint32_t any_writes(maker *m, const arg *args, uint32_t n, value_id *out)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < n; i++)
		if (args[i].kind == ARG_VALUE && m->p->values.at[args[i].u.v].type == TYPE_TENSOR && chance(m, 25))
			out[count++] = args[i].u.v;
	return count;
}

static inline void any_node(maker *m)
{
	static const char *const ops[] = {"aten::relu", "aten::add.Tensor", "aten::_foo_.out", "cleave::python",
	                                  "_x::y",      "n2::a.b.c"};
	arg args[5], results[3];
	value_id writes[5];
	char at[64];
	node_spec s = {.op = ops[below(m, 6)], .args = args, .results = results, .writes = writes};
	s.nargs = below(m, 6);
	s.nresults = below(m, 4);
	for (uint32_t i = 0; i < s.nargs; i++)
		args[i] = any_arg(m, 3);
	s.nwrites = any_writes(m, args, s.nargs, writes);
	for (uint32_t i = 0; i < s.nresults; i++)
		results[i] = any_result(m, false);
	s.scope = m->p->scopes.n && chance(m, 80) ? below(m, m->p->scopes.n) : NONE;
	s.context = chance(m, 30) ? any_context(m) : 0;
	new_name(m, at);
	s.at = chance(m, 50) ? at : NULL;
	s.flags = chance(m, 30) ? below(m, 8) : 0;
	node_id id;
	OK(plan_node(m->p, &s, &id));
}

/* ---- trees --------------------------------------------------------------------------------------------------------- */

typedef VEC(tree) grove;

static inline void push_tree(grove *g, tree t)
{
	OK(vec_push(g, t));
}

static inline void any_tree(maker *m, unsigned depth, bool inputs, grove *g);

static inline void any_children(maker *m, tree_kind kind, unsigned depth, bool inputs, grove *g)
{
	bool pairs = kind == TREE_DICT || kind == TREE_OBJECT;
	tree t = {.kind = (uint8_t)kind, .n = below(m, 4) * (pairs ? 2 : 1)};
	if (kind == TREE_OBJECT)
		t.u.s = any_string(m);
	push_tree(g, t);
	for (uint32_t i = 0; i < t.n; i++) {
		if (kind == TREE_OBJECT && i % 2 == 0) {
			tree field = {.kind = TREE_STR};
			field.u.s = any_string(m);
			push_tree(g, field);
		} else {
			any_tree(m, depth - 1, inputs, g);
		}
	}
}

static inline void any_tree(maker *m, unsigned depth, bool inputs, grove *g)
{
	tree t = {.kind = (uint8_t)below(m, depth ? TREE_OBJECT + 1 : TREE_LIST)};
	if (t.kind >= TREE_LIST) {
		any_children(m, (tree_kind)t.kind, depth, inputs, g);
		return;
	}
	if (t.kind == TREE_VALUE)
		t.u.v = inputs ? (m->p->inputs.n ? m->p->inputs.at[below(m, m->p->inputs.n)] : NONE) : any_defined(m);
	if (t.kind == TREE_VALUE && t.u.v == NONE)
		t.kind = TREE_NONE;
	if (t.kind == TREE_BOOL)
		t.u.b = chance(m, 50);
	if (t.kind == TREE_INT)
		t.u.e = any_expr(m, 3);
	if (t.kind == TREE_FLOAT)
		t.u.f = any_double(m);
	if (t.kind == TREE_FLOAT && chance(m, 30)) {
		t.kind = TREE_REAL;
		t.u.r = any_real(m, 4);
	}
	if (t.kind == TREE_COMPLEX) {
		t.u.c.re = any_double(m);
		t.u.c.im = any_double(m);
	}
	if (t.kind == TREE_STR || t.kind == TREE_BYTES || t.kind == TREE_OPAQUE)
		t.u.s = any_string(m);
	push_tree(g, t);
}

static inline void any_trees(maker *m)
{
	grove out = {0}, in = {0};
	any_tree(m, 4, false, &out);
	m->p->out_tree.at = out.at;
	m->p->out_tree.n = out.n;
	m->p->out_tree.cap = out.cap;
	if (chance(m, 40))
		return;
	push_tree(&in, (tree){.kind = TREE_TUPLE, .n = 2});
	any_children(m, TREE_TUPLE, 3, true, &in);
	any_children(m, TREE_DICT, 3, true, &in);
	m->p->in_tree.at = in.at;
	m->p->in_tree.n = in.n;
	m->p->in_tree.cap = in.cap;
}

static inline void any_rebinds(maker *m)
{
	for (value_id v = 0; v < m->p->values.n; v++) {
		uint8_t kind = m->p->values.at[v].kind;
		bool module = kind == VALUE_PARAM || kind == VALUE_BUFFER || kind == VALUE_ATTR;
		rebind r = {v, any_defined(m)};
		if (module && r.value != NONE && m->p->values.at[r.value].type == TYPE_TENSOR && chance(m, 10))
			OK(vec_push(&m->p->rebinds, r));
	}
}

static inline void any_groups(maker *m)
{
	for (node_id n = 0; n + 2 <= m->p->nodes.n; n++) {
		node_span s = {n, n + 2 + (n + 3 <= m->p->nodes.n && chance(m, 50))};
		node_id at;
		value_id space;
		if (chance(m, 30) || group_fault(m->p, s, &at, &space))
			continue;
		OK(vec_push(&m->p->groups, s));
		n = s.end - 1;
	}
}

static inline plan *random_plan(uint64_t seed)
{
	static const char *const symbols[] = {"B", "seq_len", "H2"};
	maker m = {.seed = seed};
	OK(plan_new(&m.p));
	m.p->model = any_string(&m);
	m.p->training = chance(&m, 50);
	m.p->grad_modes = (uint8_t)below(&m, 4);
	for (uint32_t i = 0, n = below(&m, 4); i < n; i++) {
		symbol_id s;
		int64_t lo = below(&m, 5);
		OK(plan_symbol(m.p, symbols[i], lo, chance(&m, 50) ? lo + below(&m, 100) : INT64_MAX, &s));
		m.p->symbols.at[s].data = chance(&m, 20) ? 1 : 0;
	}
	for (uint32_t i = 0, n = 1 + below(&m, 40); i < n; i++) {
		uint32_t what = below(&m, 10);
		if (what < 1)
			any_input(&m);
		else if (what < 3)
			any_external(&m);
		else if (what < 4)
			any_scope(&m);
		else
			any_node(&m);
	}
	any_trees(&m);
	any_rebinds(&m);
	any_groups(&m);
	return m.p;
}

#endif
