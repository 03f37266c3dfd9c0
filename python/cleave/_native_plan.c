/* Plan: built from streams or parsed from text, looked at, asked for frontiers. */
#include "_native.h"

#include "plan/data.h"
#include "plan/fit.h"

int visit_one(PyObject *x, visitproc visit, void *ctx)
{
	return x ? visit(x, ctx) : 0;
}

static int plan_py_traverse(PlanObject *o, visitproc visit, void *ctx)
{
	int r = visit_one(o->calls, visit, ctx);
	return r ? r : visit_one(o->owner, visit, ctx);
}

static int plan_py_clear(PlanObject *o)
{
	Py_CLEAR(o->calls); /* the owner stays until dealloc: its data is in use */
	return 0;
}

static void plan_py_dealloc(PlanObject *o)
{
	PyObject_GC_UnTrack(o);
	node_names_free(o->names);
	if (!o->owner)
		plan_data_free(&o->data);
	plan_free(o->p);
	Py_XDECREF(o->calls);
	Py_XDECREF(o->owner);
	Py_TYPE(o)->tp_free((PyObject *)o);
}

/* Raises; the error tells by its attribute `doubt` which sizes would settle what could not be. */
static PyObject *raise_doubt(clv_status st, const size_probes *z)
{
	raise_status(st);
	return z && z->nsymbols && z->doubt[0] >= 0 ? raise_told("doubt", int_list(z->doubt, z->nsymbols)) : NULL;
}

static clv_status no_formula(PyObject *seen)
{
	PyObject *text = PyObject_Repr(seen);
	const char *s = text ? PyUnicode_AsUTF8(text) : NULL;
	clv_status st =
		s ? fail(CLV_E_UNSUPPORTED, "no formula explains how a number of the output follows the sizes (it was %s)", s)
		  : fail_nomem();
	Py_XDECREF(text);
	return st;
}

/* A number of the output that was another one at each size. */
static clv_status fit_moving(plan *p, PyObject *seen, const size_probes *z, tree *out)
{
	uint32_t n = z->n + 1;
	fit_points points = {z->points, n, z->nsymbols};
	int64_t *ints = mem_alloc(n * sizeof *ints);
	double *floats = mem_alloc(n * sizeof *floats);
	fit_doubt doubt = {.at = z->doubt};
	bool found = false;
	clv_status st = ints && floats ? CLV_OK : fail_nomem();
	for (uint32_t i = 0; st == CLV_OK && i < n; i++) {
		PyObject *x = PyList_GET_ITEM(seen, i);
		if (out->kind == TREE_INT)
			ints[i] = PyLong_AsLongLong(x);
		else
			floats[i] = PyFloat_AsDouble(x);
	}
	if (PyErr_Occurred()) {
		PyErr_Clear(); /* too large for 64 bits: no formula */
	} else if (st == CLV_OK && out->kind == TREE_INT) {
		st = fit_int(p, &points, ints, &out->u.e);
		found = out->u.e != NONE;
	} else if (st == CLV_OK) {
		st = fit_real(p, &points, floats, FIT_DOUBLE, &doubt, &out->u.r);
		out->kind = TREE_REAL;
		found = out->u.r != NONE;
	}
	if (z->nsymbols && !doubt.is)
		z->doubt[0] = -1;
	mem_free(ints);
	mem_free(floats);
	return st != CLV_OK || found ? st : no_formula(seen);
}

static bool add_moving(plan *p, PyObject *seen, const size_probes *z, tree *out)
{
	if (!z || PyList_GET_SIZE(seen) != (Py_ssize_t)z->n + 1 || (out->kind != TREE_INT && out->kind != TREE_FLOAT)) {
		PyErr_SetString(PyExc_ValueError, "one number for each stream is needed");
		return false;
	}
	clv_status st = fit_moving(p, seen, z, out);
	return st == CLV_OK || raise_doubt(st, z) != NULL;
}

/* Appends tokens (kind, n, payload) in prefix order as a tree; TREE_VALUE payloads index `values`; a number that follows
   the sizes has the list of its values as payload. */
static bool add_token(plan *p, PyObject *token, const value_id *values, uint32_t nvalues, const size_probes *z,
                      tree *out)
{
	int kind;
	uint32_t n, k;
	PyObject *payload;
	const char *s;
	Py_ssize_t size;
	clv_status st = CLV_OK;
	if (!take(NULL, token, "iIO", &kind, &n, &payload))
		return false;
	*out = (tree){.kind = (uint8_t)kind, .n = n};
	if (PyList_Check(payload))
		return add_moving(p, payload, z, out);
	switch ((tree_kind)kind) {
	case TREE_BOOL: out->u.b = payload == Py_True; break;
	case TREE_INT: {
		long long number = PyLong_AsLongLong(payload);
		st = PyErr_Occurred() ? CLV_OK : expr_const(p, number, &out->u.e);
		break;
	}
	case TREE_FLOAT: out->u.f = PyFloat_AsDouble(payload); break;
	case TREE_COMPLEX:
		out->u.c.re = PyComplex_RealAsDouble(payload);
		out->u.c.im = PyComplex_ImagAsDouble(payload);
		break;
	case TREE_STR:
	case TREE_OPAQUE:
	case TREE_OBJECT:
		s = PyUnicode_AsUTF8AndSize(payload, &size);
		if (!s)
			return false;
		st = plan_str(p, s, (size_t)size, &out->u.s);
		break;
	case TREE_BYTES:
		if (!PyBytes_Check(payload)) {
			PyErr_SetString(PyExc_TypeError, "bytes are needed");
			return false;
		}
		st = plan_str(p, PyBytes_AS_STRING(payload), (size_t)PyBytes_GET_SIZE(payload), &out->u.s);
		break;
	case TREE_VALUE:
		if (index_of(payload, nvalues, "leaf", &k))
			out->u.v = values[k];
		break;
	default: break;
	}
	return ok_or_raise(st) && !PyErr_Occurred();
}

static bool add_tree(plan *p, PyObject *tokens, const value_id *values, uint32_t nvalues, const size_probes *z,
                     bool output)
{
	PyObject *fast = PySequence_Fast(tokens, "a sequence of tokens is needed");
	bool ok = fast != NULL;
	for (Py_ssize_t i = 0; ok && i < PySequence_Fast_GET_SIZE(fast); i++) {
		tree t;
		ok = add_token(p, PySequence_Fast_GET_ITEM(fast, i), values, nvalues, z, &t) &&
		     ok_or_raise(output ? vec_push(&p->out_tree, t) : vec_push(&p->in_tree, t));
	}
	Py_XDECREF(fast);
	return ok;
}

PlanObject *plan_object_new(plan *p)
{
	PlanObject *o = (PlanObject *)PlanType.tp_alloc(&PlanType, 0);
	if (!o) {
		plan_free(p);
		return NULL;
	}
	o->p = p;
	return o;
}

PyObject *plan_object_like(PlanObject *o, plan *p)
{
	PlanObject *copy = plan_object_new(p);
	if (!copy)
		return NULL;
	copy->data = o->data;
	copy->ambient = o->ambient;
	copy->has_ambient = o->has_ambient;
	copy->calls = Py_XNewRef(o->calls);
	copy->owner = Py_NewRef((PyObject *)o);
	return (PyObject *)copy;
}

/* sizes: (streams, points, names, lo, hi, ndata), lists but for the last: how many symbols are read from data, or -1 when
   the records are not on other data */
static bool read_probes(call *c, PyObject *sizes, size_probes *out)
{
	PyObject *streams;
	uint32_t npoints, nlo, nhi;
	int ndata;
	if (!take(c, sizes, "[XSXXi", &streams, &out->points, &npoints, &out->names, &out->nsymbols, &out->lo, &nlo,
	          &out->hi, &nhi, &ndata))
		return false;
	out->flow = ndata >= 0;
	out->ndata = ndata > 0 ? (uint32_t)ndata : 0;
	out->n = (uint32_t)PyList_GET_SIZE(streams);
	if (nlo != out->nsymbols || nhi != nlo || npoints != (out->n + 1) * nlo) {
		PyErr_SetString(PyExc_ValueError, "points, names and ranges do not fit together");
		return false;
	}
	out->streams = streams_of(c, streams);
	out->doubt = out->streams ? call_room(c, out->nsymbols, sizeof *out->doubt) : NULL;
	if (out->doubt)
		out->doubt[0] = -1;
	return out->doubt != NULL;
}

/* What was read from data and is used nowhere can only have decided something: it stays a guard. */
static void hold_unused(plan *p, const size_probes *z)
{
	for (uint32_t i = 0; i < p->symbols.n; i++) {
		symbol *s = &p->symbols.at[i];
		if (s->data && !data_used(p, i))
			s->lo = s->hi = z->points[i];
	}
}

/* None: NULL. False with an exception. */
static bool stream_or_none(PyObject *given, const stream **out)
{
	bool good = given == Py_None || PyObject_TypeCheck(given, &StreamType);
	if (!good)
		PyErr_SetString(PyExc_TypeError, "probe and with_grad are streams or None");
	*out = good && given != Py_None ? ((handle *)given)->of : NULL;
	return good;
}

/* build(stream, probe, with_grad, training, grad_modes, in_tokens, out_tokens, calls, sizes) -> Plan; probe, with_grad
   and sizes may be None */
PyObject *build_py(PyObject *self, PyObject *args)
{
	call c = {0};
	stream *s;
	const stream *probe, *with_grad;
	PyObject *other, *grads, *in_tokens, *out_tokens, *calls, *sizes;
	size_probes probes;
	bool training;
	int grad_modes;
	comparison same = {0};
	plan *p;
	plan_data data;
	if (!take(NULL, args, "@OOpiOO[O", &StreamType, &s, &other, &grads, &training, &grad_modes, &in_tokens, &out_tokens,
	          &calls, &sizes) ||
	    !stream_or_none(other, &probe) || !stream_or_none(grads, &with_grad))
		return NULL;
	const size_probes *z = sizes == Py_None ? NULL : &probes;
	if (z && !read_probes(&c, sizes, &probes))
		return call_end(&c, NULL);
	value_id *outputs = call_room(&c, s->outputs.n, sizeof *outputs);
	if (!outputs)
		return call_end(&c, NULL);
	clv_status st = probe ? stream_compare(s, probe, &same) : CLV_OK;
	if (st == CLV_OK)
		st = stream_build(s, same.classes, with_grad, z, &p, &data, outputs);
	comparison_free(&same);
	if (st != CLV_OK)
		return call_end(&c, raise_doubt(st, z));
	p->training = training;
	p->grad_modes = (uint8_t)grad_modes;
	PlanObject *o = plan_object_new(p);
	if (!o) {
		plan_data_free(&data);
		return call_end(&c, NULL);
	}
	o->data = data;
	o->ambient = s->ambient;
	o->has_ambient = true;
	o->calls = Py_NewRef(calls);
	bool ok = add_tree(p, in_tokens, p->inputs.at, p->inputs.n, NULL, false) &&
	          add_tree(p, out_tokens, outputs, s->outputs.n, z, true);
	if (ok)
		hold_unused(p, z);
	if (!ok || !ok_or_raise(plan_verify(p)))
		Py_CLEAR(o);
	return call_end(&c, (PyObject *)o);
}

/* parse(text) -> Plan */
PyObject *parse_py(PyObject *self, PyObject *text)
{
	Py_ssize_t n;
	const char *s = PyUnicode_AsUTF8AndSize(text, &n);
	plan *p;
	return s && ok_or_raise(clv_plan_parse(s, (size_t)n, &p)) ? (PyObject *)plan_object_new(p) : NULL;
}

static PyObject *plan_py_text(PlanObject *o, PyObject *unused)
{
	char *s = NULL;
	clv_status st = clv_plan_print(o->p, &s);
	return take_string(st, s);
}

/* Where in the source a node came from says nothing about what it does, and differs where the caller differs. */
static PyObject *plan_py_identity(PlanObject *o, PyObject *unused)
{
	char *s = NULL;
	plan *copy = NULL;
	clv_status st = plan_copy(o->p, &copy);
	for (node_id n = 0; st == CLV_OK && n < copy->nodes.n; n++)
		copy->nodes.at[n].at = NONE;
	if (st == CLV_OK)
		st = clv_plan_print(copy, &s);
	plan_free(copy);
	return take_string(st, s);
}

enum { FORMULA_INT = 100, FORMULA_REAL }; /* as kinds of tokens: numbers that each run computes */

/* One token of a tree: (kind, children, what it holds). Tensors are numbered; formulas are their text. */
static PyObject *token_to(const plan *p, const tree *t, uint32_t *tensors)
{
	int64_t k;
	strbuf b = STRBUF_INIT;
	switch ((tree_kind)t->kind) {
	case TREE_BOOL: return Py_BuildValue("(iIO)", t->kind, t->n, truth(t->u.b));
	case TREE_FLOAT: return Py_BuildValue("(iId)", t->kind, t->n, t->u.f);
	case TREE_COMPLEX: return Py_BuildValue("(iIN)", t->kind, t->n, PyComplex_FromDoubles(t->u.c.re, t->u.c.im));
	case TREE_BYTES:
		return Py_BuildValue("(iIy#)", t->kind, t->n, p->strs.at[t->u.s].s, (Py_ssize_t)p->strs.at[t->u.s].n);
	case TREE_STR:
	case TREE_OPAQUE:
	case TREE_OBJECT:
		return Py_BuildValue("(iIs#)", t->kind, t->n, p->strs.at[t->u.s].s, (Py_ssize_t)p->strs.at[t->u.s].n);
	case TREE_VALUE: return Py_BuildValue("(iII)", t->kind, t->n, (*tensors)++);
	case TREE_INT:
		if (expr_is_const(p, t->u.e, &k))
			return Py_BuildValue("(iIL)", t->kind, t->n, (long long)k);
		expr_print(p, t->u.e, &b);
		break;
	case TREE_REAL: real_print(p, t->u.r, &b); break;
	default: return Py_BuildValue("(iIO)", t->kind, t->n, Py_None);
	}
	return Py_BuildValue("(iIN)", t->kind == TREE_INT ? FORMULA_INT : FORMULA_REAL, t->n, take_text(CLV_OK, &b));
}

/* tree(output) -> the tokens of the input or output tree, in prefix order */
static PyObject *plan_py_tree(PlanObject *o, PyObject *output)
{
	bool out_tree = PyObject_IsTrue(output) == 1;
	const tree *at = out_tree ? o->p->out_tree.at : o->p->in_tree.at;
	uint32_t tensors = 0;
	LIST(list, out_tree ? o->p->out_tree.n : o->p->in_tree.n, token_to(o->p, &at[i], &tensors));
	return list;
}

static const char *name_of(const plan *p, value_id v)
{
	return plan_s(p, p->values.at[v].name);
}

/* ties() -> {another name of a tied tensor: its name in the plan} */
static PyObject *plan_py_ties(PlanObject *o, PyObject *unused)
{
	const tie *t = o->p->ties.at;
	DICT(out, o->p->ties.n, plan_s(o->p, t[i].name), PyUnicode_FromString(name_of(o->p, t[i].value)));
	return out;
}

/* input_names() -> names of the tensors that go in */
static PyObject *plan_py_input_names(PlanObject *o, PyObject *unused)
{
	LIST(out, o->p->inputs.n, PyUnicode_FromString(name_of(o->p, o->p->inputs.at[i])));
	return out;
}

/* inspect() -> a page about the plan */
static PyObject *plan_py_inspect(PlanObject *o, PyObject *unused)
{
	strbuf b = STRBUF_INIT;
	return take_text(plan_inspect(o->p, &b), &b);
}

/* brief() -> lines of title, tab, text */
static PyObject *plan_py_brief(PlanObject *o, PyObject *unused)
{
	strbuf b = STRBUF_INIT;
	clv_status st = plan_brief(o->p, &b);
	return take_text(st, &b);
}

static PyObject *node_to(const plan *p, const char *name, node_id i)
{
	const node *n = &p->nodes.at[i];
	const scope *sc = n->scope == NONE ? NULL : &p->scopes.at[n->scope];
	strbuf b = STRBUF_INIT;
	node_print(p, i, &b);
	return Py_BuildValue("(sssszON)", name, plan_s(p, n->op), sc ? plan_s(p, sc->path) : "",
	                     sc ? plan_s(p, sc->cls) : "", n->at == NONE ? NULL : plan_s(p, n->at), truth(is_guard(p, i)),
	                     take_text(CLV_OK, &b));
}

/* nodes() -> list of (name, op, module path, module class, source, guarded, text) */
static PyObject *plan_py_nodes(PlanObject *o, PyObject *unused)
{
	if (!o->names && !ok_or_raise(node_names_new(o->p, &o->names)))
		return NULL;
	LIST(out, o->p->nodes.n, node_to(o->p, node_name(o->names, i), i));
	return out;
}

static PyObject *label_of(const plan *p, value_id v)
{
	strbuf b = STRBUF_INIT;
	value_label(p, v, &b);
	return take_text(CLV_OK, &b);
}

PyObject *labels(const plan *p, const value_id *v, uint32_t n)
{
	LIST(out, n, label_of(p, v[i]));
	return out;
}

int64_t *symbols_at(call *c, const plan *p, const clv_sizes *sizes)
{
	int64_t *out = call_room(c, p->symbols.n, sizeof *out);
	for (uint32_t i = 0; out && i < p->symbols.n; i++) {
		out[i] = -1;
		for (uint32_t k = 0; k < sizes->n; k++)
			if (!strcmp(plan_s(p, p->symbols.at[i].name), sizes->symbols[k]))
				out[i] = sizes->values[k];
	}
	return out;
}

static PyObject *plan_py_node_count(PlanObject *o, PyObject *unused)
{
	return PyLong_FromUnsignedLong(o->p->nodes.n);
}

/* has_constants() -> it reads tensors that are no part of the model, which no text says */
static PyObject *plan_py_has_constants(PlanObject *o, PyObject *unused)
{
	bool found = false;
	for (value_id v = 0; v < o->p->values.n; v++)
		found |= o->p->values.at[v].kind == VALUE_CONST;
	return PyBool_FromLong(found);
}

/* divides() -> some size of it is a quotient of sizes */
static PyObject *plan_py_divides(PlanObject *o, PyObject *unused)
{
	bool found = false;
	for (expr_id e = 0; e < o->p->exprs.n; e++)
		found |= o->p->exprs.at[e].op == EXPR_FLOORDIV;
	return PyBool_FromLong(found);
}

typedef struct HostArgs {
	const plan *p;
	bool any;
} HostArgs;

static void see_host(void *ctx, value_id v)
{
	HostArgs *h = ctx;
	h->any |= h->p->values.at[v].type == TYPE_INT || h->p->values.at[v].type == TYPE_FLOAT;
}

/* flows() -> some number is read from data by each run */
static PyObject *plan_py_flows(PlanObject *o, PyObject *unused)
{
	const plan *p = o->p;
	for (uint32_t i = 0; i < p->symbols.n; i++)
		if (p->symbols.at[i].data && p->symbols.at[i].lo < p->symbols.at[i].hi)
			Py_RETURN_TRUE;
	HostArgs hosts = {p, false};
	for (node_id n = 0; n < p->nodes.n && !hosts.any; n++)
		node_each_arg(p, n, see_host, &hosts);
	return PyBool_FromLong(hosts.any);
}

/* rebinds() -> list of module tensor names that a run re-binds */
static PyObject *plan_py_rebinds(PlanObject *o, PyObject *unused)
{
	LIST(out, o->p->rebinds.n, PyUnicode_FromString(name_of(o->p, o->p->rebinds.at[i].target)));
	return out;
}

/* calls(first, end) -> the Python callables of these nodes */
static PyObject *plan_py_calls(PlanObject *o, PyObject *args)
{
	uint32_t first, end;
	const plan *p = o->p;
	if (!take(NULL, args, "II", &first, &end))
		return NULL;
	PyObject *out = PyList_New(0);
	for (node_id n = first; out && n < end && n < p->nodes.n; n++) {
		const arg *a = &p->args.at[p->nodes.at[n].args];
		if (strcmp(plan_s(p, p->nodes.at[n].op), "cleave::python") == 0 && a->kind == ARG_VALUE && a->u.v < o->data.n)
			list_push(&out, Py_XNewRef(o->calls ? PyList_GetItem(o->calls, (Py_ssize_t)o->data.python[a->u.v]) : NULL));
	}
	return out;
}

/* retarget(device) -> the plan for another device, with its constants there */
static PyObject *plan_py_retarget(PlanObject *o, PyObject *device)
{
	const char *to = PyUnicode_AsUTF8(device);
	plan *p = NULL;
	plan_data data = {0};
	if (!to)
		return NULL;
	clv_status st = plan_retarget(o->p, to, &p);
	if (st == CLV_OK)
		st = plan_data_move(&o->data, p, &data);
	if (st != CLV_OK) {
		plan_data_free(&data);
		plan_free(p);
		return raise_status(st);
	}
	PlanObject *moved = (PlanObject *)plan_object_like(o, p);
	if (!moved) {
		plan_data_free(&data);
		return NULL;
	}
	Py_CLEAR(moved->owner); /* the data is its own */
	moved->data = data;
	return (PyObject *)moved;
}

/* symbols() -> names */
static PyObject *plan_py_symbols(PlanObject *o, PyObject *unused)
{
	LIST(out, o->p->symbols.n, PyUnicode_FromString(plan_s(o->p, o->p->symbols.at[i].name)));
	return out;
}

METHODS(plan_py, GIVES(plan_py, text), GIVES(plan_py, identity), GIVES(plan_py, input_names), TAKES_ONE(plan_py, tree),
        GIVES(plan_py, inspect), GIVES(plan_py, brief), GIVES(plan_py, descriptions), GIVES(plan_py, nodes),
        GIVES(plan_py, node_count), TAKES(plan_py, frontiers), TAKES(plan_py, work), GIVES(plan_py, ties),
        TAKES(plan_py, choose), TAKES(plan_py, check), TAKES(plan_py, latency), TAKES(plan_py, exact),
        TAKES(plan_py, exact_like), TAKES(plan_py, guards_early), TAKES_ONE(plan_py, guards_first),
        TAKES(plan_py, staged), GIVES(plan_py, has_constants), GIVES(plan_py, divides), GIVES(plan_py, flows),
        GIVES(plan_py, rebinds), TAKES(plan_py, match), TAKES(plan_py, same_until), TAKES(plan_py, module_sides),
        TAKES(plan_py, calls), TAKES_ONE(plan_py, retarget), GIVES(plan_py, symbols), TAKES_NAMED(plan_py, source),
        TAKES_NAMED(plan_py, stages_source), TAKES_NAMED(plan_py, html), TAKES(plan_py, dot), TAKES(plan_py, places),
        TAKES(plan_py, effects));
TYPE(Plan, PlanObject, plan_py, Py_TPFLAGS_HAVE_GC, COLLECTED(plan_py));
