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
static void raise_doubt(clv_status st, const size_probes *z)
{
	PyObject *type, *error, *trace;
	raise_status(st);
	if (!z || !z->nsymbols || z->doubt[0] < 0)
		return;
	PyErr_Fetch(&type, &error, &trace);
	PyErr_NormalizeException(&type, &error, &trace);
	PyObject *sizes = int_list(z->doubt, z->nsymbols);
	if (!sizes || PyObject_SetAttrString(error, "doubt", sizes) < 0)
		PyErr_Clear();
	Py_XDECREF(sizes);
	PyErr_Restore(type, error, trace);
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
	if (st != CLV_OK)
		raise_doubt(st, z);
	return st == CLV_OK;
}

/* Appends tokens (kind, n, payload) in prefix order as a tree; TREE_VALUE payloads index `values`; a number that follows
   the sizes has the list of its values as payload. */
static bool add_token(plan *p, PyObject *token, const value_id *values, uint32_t nvalues, const size_probes *z,
                      tree *out)
{
	int kind;
	unsigned int n;
	PyObject *payload;
	const char *s;
	Py_ssize_t size;
	clv_status st = CLV_OK;
	if (!PyArg_ParseTuple(token, "iIO", &kind, &n, &payload))
		return false;
	*out = (tree){.kind = (uint8_t)kind, .n = n};
	if (PyList_Check(payload))
		return add_moving(p, payload, z, out);
	switch ((tree_kind)kind) {
	case TREE_BOOL: out->u.b = payload == Py_True; break;
	case TREE_INT: {
		int overflow;
		long long k = PyLong_AsLongLongAndOverflow(payload, &overflow);
		if (overflow) {
			PyErr_SetString(PyExc_OverflowError, "an integer of over 64 bits among inputs or outputs");
			return false;
		}
		st = expr_const(p, k, &out->u.e);
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
	case TREE_VALUE: {
		unsigned long k = PyLong_AsUnsignedLong(payload);
		if (!PyErr_Occurred() && k >= nvalues)
			PyErr_SetString(PyExc_IndexError, "leaf number out of range");
		if (!PyErr_Occurred())
			out->u.v = values[k];
		break;
	}
	default: break;
	}
	if (st != CLV_OK)
		raise_status(st);
	return !PyErr_Occurred();
}

static bool add_tree(plan *p, PyObject *tokens, const value_id *values, uint32_t nvalues, const size_probes *z,
                     bool output)
{
	PyObject *fast = PySequence_Fast(tokens, "a sequence of tokens is needed");
	if (!fast)
		return false;
	for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast); i++) {
		tree t;
		clv_status st;
		if (!add_token(p, PySequence_Fast_GET_ITEM(fast, i), values, nvalues, z, &t))
			break;
		st = output ? vec_push(&p->out_tree, t) : vec_push(&p->in_tree, t);
		if (st != CLV_OK) {
			raise_status(st);
			break;
		}
	}
	Py_DECREF(fast);
	return !PyErr_Occurred();
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

/* The streams at other sizes, as C wants them; everything in one block that PyMem_Free releases. */
typedef struct SizeArrays {
	const stream **streams;
	int64_t *points, *lo, *hi, *doubt;
	const char **names;
} SizeArrays;

static void sizes_free(SizeArrays *a)
{
	PyMem_Free(a->streams);
	PyMem_Free(a->points);
	PyMem_Free(a->lo);
	PyMem_Free(a->hi);
	PyMem_Free(a->doubt);
	PyMem_Free(a->names);
}

int64_t *int_array(PyObject *list, Py_ssize_t *n)
{
	*n = PyList_GET_SIZE(list);
	int64_t *out = PyMem_Calloc((size_t)*n + 1, sizeof *out);
	for (Py_ssize_t i = 0; out && i < *n; i++)
		out[i] = PyLong_AsLongLong(PyList_GET_ITEM(list, i));
	return out;
}

/* sizes: (streams, points, names, lo, hi, ndata), lists but for the last: how many symbols are read from data, or -1 when
   the records are not on other data */
static bool parse_sizes(PyObject *sizes, SizeArrays *a, size_probes *out)
{
	PyObject *streams, *points, *names, *lo, *hi;
	Py_ssize_t n, m, k;
	int ndata;
	if (!PyArg_ParseTuple(sizes, "O!O!O!O!O!i", &PyList_Type, &streams, &PyList_Type, &points, &PyList_Type, &names,
	                      &PyList_Type, &lo, &PyList_Type, &hi, &ndata))
		return false;
	out->flow = ndata >= 0;
	out->ndata = ndata > 0 ? (uint32_t)ndata : 0;
	a->points = int_array(points, &n);
	a->lo = int_array(lo, &m);
	a->hi = int_array(hi, &k);
	out->n = (uint32_t)PyList_GET_SIZE(streams);
	out->nsymbols = (uint32_t)PyList_GET_SIZE(names);
	a->streams = PyMem_Calloc(out->n + 1, sizeof *a->streams);
	a->names = PyMem_Calloc(out->nsymbols + 1, sizeof *a->names);
	a->doubt = PyMem_Calloc(out->nsymbols + 1, sizeof *a->doubt);
	if (!a->points || !a->doubt || !a->lo || !a->hi || !a->streams || !a->names)
		return PyErr_NoMemory() != NULL;
	if (m != out->nsymbols || k != m || n != (Py_ssize_t)(out->n + 1) * m) {
		PyErr_SetString(PyExc_ValueError, "points, names and ranges do not fit together");
		return false;
	}
	for (uint32_t i = 0; i < out->n; i++) {
		PyObject *s = PyList_GET_ITEM(streams, i);
		if (!PyObject_TypeCheck(s, &StreamType)) {
			PyErr_SetString(PyExc_TypeError, "streams are needed");
			return false;
		}
		a->streams[i] = ((StreamObject *)s)->s;
	}
	for (uint32_t i = 0; i < out->nsymbols; i++)
		a->names[i] = PyUnicode_AsUTF8(PyList_GET_ITEM(names, i));
	out->streams = a->streams;
	out->points = a->points;
	out->names = a->names;
	out->lo = a->lo;
	out->hi = a->hi;
	out->doubt = a->doubt;
	a->doubt[0] = -1;
	return !PyErr_Occurred();
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

/* build(stream, probe, with_grad, training, grad_modes, in_tokens, out_tokens, calls, sizes) -> Plan; probe, with_grad
   and sizes may be None */
PyObject *build_py(PyObject *self, PyObject *args)
{
	StreamObject *s;
	PyObject *probe, *with_grad, *in_tokens, *out_tokens, *calls, *sizes;
	SizeArrays arrays = {0};
	size_probes probes;
	int training, grad_modes;
	comparison c = {0};
	plan *p;
	plan_data data;
	if (!PyArg_ParseTuple(args, "O!OOpiOOO!O", &StreamType, &s, &probe, &with_grad, &training, &grad_modes, &in_tokens,
	                      &out_tokens, &PyList_Type, &calls, &sizes))
		return NULL;
	if ((probe != Py_None && !PyObject_TypeCheck(probe, &StreamType)) ||
	    (with_grad != Py_None && !PyObject_TypeCheck(with_grad, &StreamType)))
		return PyErr_Format(PyExc_TypeError, "probe and with_grad are streams or None");
	if (sizes != Py_None && !parse_sizes(sizes, &arrays, &probes)) {
		sizes_free(&arrays);
		return NULL;
	}
	value_id *outputs = PyMem_Calloc(s->s->outputs.n + 1, sizeof *outputs);
	if (!outputs) {
		sizes_free(&arrays);
		return PyErr_NoMemory();
	}
	clv_status st = CLV_OK;
	if (probe != Py_None)
		st = stream_compare(s->s, ((StreamObject *)probe)->s, &c);
	if (st == CLV_OK)
		st = stream_build(s->s, c.classes, with_grad == Py_None ? NULL : ((StreamObject *)with_grad)->s,
		                  sizes == Py_None ? NULL : &probes, &p, &data, outputs);
	comparison_free(&c);
	const size_probes *z = sizes == Py_None ? NULL : &probes;
	if (st != CLV_OK) {
		PyMem_Free(outputs);
		raise_doubt(st, z);
		sizes_free(&arrays);
		return NULL;
	}
	p->training = training != 0;
	p->grad_modes = (uint8_t)grad_modes;
	PlanObject *o = plan_object_new(p);
	if (!o)
		plan_data_free(&data);
	if (o) {
		o->data = data;
		o->ambient = s->s->ambient;
		o->has_ambient = true;
		o->calls = Py_NewRef(calls);
		if (!add_tree(p, in_tokens, p->inputs.at, p->inputs.n, NULL, false) ||
		    !add_tree(p, out_tokens, outputs, s->s->outputs.n, z, true))
			Py_CLEAR(o);
		else
			hold_unused(p, z);
	}
	PyMem_Free(outputs);
	sizes_free(&arrays);
	if (o && (st = plan_verify(o->p)) != CLV_OK) {
		Py_DECREF(o);
		return raise_status(st);
	}
	return (PyObject *)o;
}

/* parse(text) -> Plan */
PyObject *parse_py(PyObject *self, PyObject *text)
{
	Py_ssize_t n;
	const char *s = PyUnicode_AsUTF8AndSize(text, &n);
	plan *p;
	if (!s)
		return NULL;
	clv_status st = clv_plan_parse(s, (size_t)n, &p);
	return st == CLV_OK ? (PyObject *)plan_object_new(p) : raise_status(st);
}

PyObject *take_string(clv_status st, char *s)
{
	if (st != CLV_OK)
		return raise_status(st);
	PyObject *o = PyUnicode_DecodeUTF8(s, (Py_ssize_t)strlen(s), "surrogateescape");
	clv_free(s);
	return o;
}

PyObject *take_text(clv_status st, strbuf *b)
{
	char *text = NULL;
	if (st == CLV_OK)
		st = strbuf_take(b, &text);
	strbuf_free(b);
	return take_string(st, text);
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
	char *text = NULL;
	switch ((tree_kind)t->kind) {
	case TREE_BOOL: return Py_BuildValue("(iIO)", t->kind, t->n, t->u.b ? Py_True : Py_False);
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
	clv_status st = strbuf_take(&b, &text);
	if (st != CLV_OK)
		return raise_status(st);
	PyObject *out = Py_BuildValue("(iIs)", t->kind == TREE_INT ? FORMULA_INT : FORMULA_REAL, t->n, text);
	mem_free(text);
	return out;
}

/* tree(output) -> the tokens of the input or output tree, in prefix order */
static PyObject *plan_py_tree(PlanObject *o, PyObject *output)
{
	bool out_tree = PyObject_IsTrue(output) == 1;
	const tree *at = out_tree ? o->p->out_tree.at : o->p->in_tree.at;
	uint32_t n = out_tree ? o->p->out_tree.n : o->p->in_tree.n, tensors = 0;
	PyObject *list = PyList_New(0);
	for (uint32_t i = 0; list && i < n; i++)
		list_push(&list, token_to(o->p, &at[i], &tensors));
	return list;
}

/* ties() -> {another name of a tied tensor: its name in the plan} */
static PyObject *plan_py_ties(PlanObject *o, PyObject *unused)
{
	PyObject *out = PyDict_New();
	for (uint32_t i = 0; out && i < o->p->ties.n; i++) {
		const tie *t = &o->p->ties.at[i];
		dict_put(&out, plan_s(o->p, t->name), PyUnicode_FromString(plan_s(o->p, o->p->values.at[t->value].name)));
	}
	return out;
}

/* input_names() -> names of the tensors that go in */
static PyObject *plan_py_input_names(PlanObject *o, PyObject *unused)
{
	PyObject *list = PyList_New(0);
	for (uint32_t i = 0; list && i < o->p->inputs.n; i++)
		list_push(&list, PyUnicode_FromString(plan_s(o->p, o->p->values.at[o->p->inputs.at[i]].name)));
	return list;
}

static PyObject *plan_py_inspect(PlanObject *o, PyObject *unused)
{
	strbuf b = STRBUF_INIT;
	return take_text(plan_inspect(o->p, &b), &b);
}

static PyObject *plan_py_brief(PlanObject *o, PyObject *unused)
{
	strbuf b = STRBUF_INIT;
	clv_status st = plan_brief(o->p, &b);
	return take_text(st, &b);
}

static const node_names *plan_node_names(PlanObject *o)
{
	if (!o->names) {
		clv_status st = node_names_new(o->p, &o->names);
		if (st != CLV_OK)
			raise_status(st);
	}
	return o->names;
}

static bool is_guarded(const plan *p, const node *n)
{
	for (uint32_t i = 0; i < n->nresults; i++) {
		const arg *a = &p->args.at[n->results + i];
		uint32_t first = a->kind == ARG_LIST ? a->u.list.first : n->results + i,
				 k = a->kind == ARG_LIST ? a->u.list.n : 1;
		for (uint32_t j = first; j < first + k; j++)
			if (p->args.at[j].kind == ARG_VALUE && (p->values.at[p->args.at[j].u.v].flags & VALUE_GUARD))
				return true;
	}
	return !strcmp(plan_s(p, n->op), "cleave::guard_equal");
}

/* nodes() -> list of (name, op, module path, module class, source, guarded, text) */
static PyObject *plan_py_nodes(PlanObject *o, PyObject *unused)
{
	const plan *p = o->p;
	const node_names *names = plan_node_names(o);
	PyObject *out = names ? PyList_New(0) : NULL;
	for (uint32_t i = 0; out && i < p->nodes.n; i++) {
		const node *n = &p->nodes.at[i];
		strbuf b = STRBUF_INIT;
		char *line = NULL;
		node_print(p, i, &b);
		clv_status st = strbuf_take(&b, &line);
		const scope *sc = n->scope == NONE ? NULL : &p->scopes.at[n->scope];
		PyObject *item = st != CLV_OK ? raise_status(st)
		                              : Py_BuildValue("(sssszOs)", node_name(names, i), plan_s(p, n->op),
		                                              sc ? plan_s(p, sc->path) : "", sc ? plan_s(p, sc->cls) : "",
		                                              n->at == NONE ? NULL : plan_s(p, n->at),
		                                              is_guarded(p, n) ? Py_True : Py_False, line);
		mem_free(line);
		list_push(&out, item);
	}
	return out;
}

PyObject *labels(const plan *p, const value_id *v, uint32_t n)
{
	PyObject *out = PyList_New(0);
	for (uint32_t i = 0; out && i < n; i++) {
		strbuf b = STRBUF_INIT;
		value_label(p, v[i], &b);
		list_push(&out, take_text(CLV_OK, &b));
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
	PyObject *out = PyList_New(0);
	for (uint32_t i = 0; out && i < o->p->rebinds.n; i++)
		list_push(&out, PyUnicode_FromString(plan_s(o->p, o->p->values.at[o->p->rebinds.at[i].target].name)));
	return out;
}

/* calls(first, end) -> the Python callables of these nodes */
static PyObject *plan_py_calls(PlanObject *o, PyObject *args)
{
	unsigned int first, end;
	const plan *p = o->p;
	if (!PyArg_ParseTuple(args, "II", &first, &end))
		return NULL;
	PyObject *out = PyList_New(0);
	for (node_id n = first; out && n < end && n < p->nodes.n; n++) {
		const arg *a = &p->args.at[p->nodes.at[n].args];
		if (strcmp(plan_s(p, p->nodes.at[n].op), "cleave::python") != 0 || a->kind != ARG_VALUE || a->u.v >= o->data.n)
			continue;
		PyObject *call = o->calls ? PyList_GetItem(o->calls, (Py_ssize_t)o->data.python[a->u.v]) : NULL;
		if (!call || PyList_Append(out, call) < 0)
			Py_CLEAR(out);
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
	PyObject *out = PyList_New(0);
	for (uint32_t i = 0; out && i < o->p->symbols.n; i++)
		list_push(&out, PyUnicode_FromString(plan_s(o->p, o->p->symbols.at[i].name)));
	return out;
}

static PyMethodDef plan_methods[] = {
	{"text", (PyCFunction)plan_py_text, METH_NOARGS, "text() -> the plan's text form"},
	{"identity", (PyCFunction)plan_py_identity, METH_NOARGS, "identity() -> text() without source lines"},
	{"input_names", (PyCFunction)plan_py_input_names, METH_NOARGS, "input_names() -> names of the tensors that go in"},
	{"tree", (PyCFunction)plan_py_tree, METH_O, "tree(output) -> tokens of the input or output tree"},
	{"inspect", (PyCFunction)plan_py_inspect, METH_NOARGS, "inspect() -> a page about the plan"},
	{"brief", (PyCFunction)plan_py_brief, METH_NOARGS, "brief() -> lines of title, tab, text"},
	{"descriptions", (PyCFunction)plan_py_descriptions, METH_NOARGS, "per node: names on its path, inputs, outputs"},
	{"nodes", (PyCFunction)plan_py_nodes, METH_NOARGS, "nodes() -> list of tuples"},
	{"node_count", (PyCFunction)plan_py_node_count, METH_NOARGS, "node_count()"},
	{"frontiers", (PyCFunction)plan_py_frontiers, METH_VARARGS, "frontiers(sizes=None) -> list of tuples"},
	{"work", (PyCFunction)plan_py_work, METH_VARARGS, "work(sizes=None) -> operations of a run, estimated"},
	{"ties", (PyCFunction)plan_py_ties, METH_NOARGS, "ties() -> other names of tied tensors, to the name in the plan"},
	{"choose", (PyCFunction)plan_py_choose, METH_VARARGS, "choose(boundary, objective, sizes=None) -> which frontier"},
	{"check", (PyCFunction)plan_py_check, METH_VARARGS, "check(which, objective, sizes=None): raises what it misses"},
	{"latency", (PyCFunction)plan_py_latency, METH_VARARGS,
     "latency(which, objective, sizes=None) -> (cut, here, there, sent bytes, input bytes, advice or None)"},
	{"exact", (PyCFunction)plan_py_exact, METH_VARARGS,
     "exact(must_prefix, must_suffix, sizes=None) -> the plan reordered around its cut with the fewest bytes, "
     "position"},
	{"exact_like", (PyCFunction)plan_py_exact_like, METH_VARARGS,
     "exact_like(other, position, sizes=None) -> as exact, where `other` is cut after node `position`"},
	{"guards_early", (PyCFunction)plan_py_guards_early, METH_VARARGS,
     "guards_early(position, most) -> (the plan with the first `most` guards of the suffix in the prefix, as far as it "
     "can "
     "decide them, and the position of the cut in it), how many moved, 2**32 - 1 if none is left"},
	{"guards_first", (PyCFunction)plan_py_guards_first, METH_O,
     "guards_first(end) -> the plan with guards in front that its first `end` nodes can decide, or None; how many "
     "nodes; guards left"},
	{"staged", (PyCFunction)plan_py_staged, METH_VARARGS,
     "staged(stage_of, nstages) -> (the plan stage by stage, ends of the stages)"},
	{"has_constants", (PyCFunction)plan_py_has_constants, METH_NOARGS,
     "has_constants() -> it reads tensors not the model's"},
	{"divides", (PyCFunction)plan_py_divides, METH_NOARGS, "divides() -> some size of it is a quotient of sizes"},
	{"flows", (PyCFunction)plan_py_flows, METH_NOARGS, "flows() -> some number is read from data by each run"},
	{"rebinds", (PyCFunction)plan_py_rebinds, METH_NOARGS, "rebinds() -> names"},
	{"match", (PyCFunction)plan_py_match, METH_VARARGS,
     "match(position, other) -> where `other` is cut if this one is cut there, or None"},
	{"same_until", (PyCFunction)plan_py_same_until, METH_VARARGS,
     "same_until(other, end, sizes) -> the nodes before `end` do the same in both, in a call with these sizes"},
	{"module_sides", (PyCFunction)plan_py_module_sides, METH_VARARGS,
     "module_sides(end) -> [(module path, sides of a cut before node `end` that it runs on: 1 the prefix, 2 the "
     "suffix)]"},
	{"calls", (PyCFunction)plan_py_calls, METH_VARARGS, "calls(first, end) -> the Python callables of these nodes"},
	{"retarget", (PyCFunction)plan_py_retarget, METH_O, "retarget(device) -> the plan for another device"},
	{"symbols", (PyCFunction)plan_py_symbols, METH_NOARGS, "symbols() -> names"},
	{"source", (PyCFunction)(void (*)(void))plan_py_source, METH_VARARGS | METH_KEYWORDS,
     "source(first, end, class_name, delete=False, return_rebinds=False, solve=False) -> Python source of these nodes"},
	{"stages_source", (PyCFunction)(void (*)(void))plan_py_stages_source, METH_VARARGS | METH_KEYWORDS,
     "stages_source(ends, devices=None, sizes=None, batch_symbol=None, batch_dim=0, depth=0, basic_blocks=None, "
     "not_saved=None, delete=False, calls=None, other=None, only=None, captured=None) -> Python source of a pipeline"},
	{"html", (PyCFunction)(void (*)(void))plan_py_html, METH_VARARGS | METH_KEYWORDS,
     "html(title=None, sizes=None, bandwidth=0.0, prefix_speed=0.0, suffix_speed=0.0, frontier=none, stages=none) -> a "
     "page"},
	{"dot", (PyCFunction)(void (*)(void))plan_py_dot, METH_VARARGS | METH_KEYWORDS,
     "dot(cut, detail, max_module_depth, direction, targets, markers, indices, sizes) -> DOT text"},
	{"places", (PyCFunction)plan_py_places, METH_VARARGS,
     "places(first, end) -> ([(place, name, tensor)], [symbols given as keywords])"},
	{"effects", (PyCFunction)plan_py_effects, METH_VARARGS,
     "effects(first, end) -> {effect: name of the first node that has it}"},
	{NULL, NULL, 0, NULL}};

PyTypeObject PlanType = {PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cleave._native.Plan",
                         .tp_basicsize = sizeof(PlanObject),
                         .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                         .tp_traverse = (traverseproc)plan_py_traverse,
                         .tp_clear = (inquiry)plan_py_clear,
                         .tp_dealloc = (destructor)plan_py_dealloc,
                         .tp_methods = plan_methods};
