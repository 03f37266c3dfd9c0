/* cleave._native: the C library as Python objects. No logic of its own beyond turning Python into C and back.
 *
 *   Stream    one recorded forward (capture/capture.h)
 *   Plan      a plan and the data that goes with it
 *   Program   a part of a plan, ready to run, bound to the live tensors of a model */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

#include "bridge/pytensor.h"
#include "capture/capture.h"
#include "exec/program.h"

/* ---- errors ----------------------------------------------------------------------------------------------------- */

static PyObject *error_classes; /* dict: status number -> exception class; owned by the module for its whole life */

static PyObject *raise_status(clv_status st)
{
	if (PyErr_Occurred()) /* Python code that we called raised: that is the better story */
		return NULL;
	PyObject *code = PyLong_FromLong(st), *cls = NULL;
	if (code && error_classes)
		cls = PyDict_GetItemWithError(error_classes, code);
	Py_XDECREF(code);
	PyErr_SetString(cls ? cls : PyExc_RuntimeError, clv_last_error());
	return NULL;
}

static PyObject *none_or_raise(clv_status st)
{
	if (st != CLV_OK)
		return raise_status(st);
	Py_RETURN_NONE;
}

static PyObject *set_error_classes(PyObject *self, PyObject *dict)
{
	(void)self;
	if (!PyDict_Check(dict))
		return PyErr_Format(PyExc_TypeError, "a dict is needed");
	Py_INCREF(dict);
	Py_XSETREF(error_classes, dict);
	Py_RETURN_NONE;
}

/* ---- where the user's program is -------------------------------------------------------------------------------- */

static PyObject *skipped_prefixes; /* tuple of str: files below these are not the user's */

static bool is_skipped(PyObject *file)
{
	for (Py_ssize_t i = 0; skipped_prefixes && i < PyTuple_GET_SIZE(skipped_prefixes); i++) {
		Py_ssize_t at = PyUnicode_Tailmatch(file, PyTuple_GET_ITEM(skipped_prefixes, i), 0, PY_SSIZE_T_MAX, -1);
		if (at > 0)
			return true;
		if (at < 0)
			PyErr_Clear();
	}
	return PyUnicode_GET_LENGTH(file) && PyUnicode_READ_CHAR(file, 0) == '<';
}

static bool frame_place(PyFrameObject *f, PyObject *file, char *out, size_t n)
{
	const char *path = PyUnicode_AsUTF8(file);
	if (!path) {
		PyErr_Clear();
		return false;
	}
	const char *slash = strrchr(path, '/');
	snprintf(out, n, "%s:%d", slash ? slash + 1 : path, PyFrame_GetLineNumber(f));
	return true;
}

static void where(char *out, size_t n)
{
	if (!PyGILState_GetThisThreadState()) /* a thread that Python does not know */
		return;
	PyGILState_STATE gil = PyGILState_Ensure(); /* operators run without it */
	PyFrameObject *f = PyEval_GetFrame();
	bool found = false;
	Py_XINCREF(f);
	while (f) {
		PyCodeObject *code = PyFrame_GetCode(f);
		if (!is_skipped(code->co_filename))
			found = frame_place(f, code->co_filename, out, n);
		Py_DECREF(code);
		PyFrameObject *back = found ? NULL : PyFrame_GetBack(f);
		Py_DECREF(f);
		f = back;
	}
	PyGILState_Release(gil);
}

static PyObject *set_skipped_prefixes(PyObject *self, PyObject *tuple)
{
	(void)self;
	if (!PyTuple_Check(tuple))
		return PyErr_Format(PyExc_TypeError, "a tuple is needed");
	Py_INCREF(tuple);
	Py_XSETREF(skipped_prefixes, tuple);
	Py_RETURN_NONE;
}

/* ---- sequences of tensors --------------------------------------------------------------------------------------- */

static clv_tensor *need_tensor(PyObject *o)
{
	clv_tensor *t = py_borrow(o);
	if (!t)
		PyErr_Format(PyExc_TypeError, "a tensor is needed, not %s", Py_TYPE(o)->tp_name);
	return t;
}

static void tensors_free(clv_tensor **t, Py_ssize_t n)
{
	for (Py_ssize_t i = 0; t && i < n; i++)
		br_unref(t[i]);
	PyMem_Free(t);
}

/* New references to the tensors of a sequence; None gives NULL. The caller frees with tensors_free. */
static clv_tensor **tensor_array(PyObject *seq, Py_ssize_t *n)
{
	PyObject *fast = PySequence_Fast(seq, "a sequence of tensors is needed");
	if (!fast)
		return NULL;
	*n = PySequence_Fast_GET_SIZE(fast);
	clv_tensor **out = PyMem_Calloc((size_t)*n + 1, sizeof *out);
	for (Py_ssize_t i = 0; out && i < *n; i++) {
		PyObject *o = PySequence_Fast_GET_ITEM(fast, i);
		if (o == Py_None)
			continue;
		if (!need_tensor(o)) {
			tensors_free(out, *n);
			out = NULL;
		} else {
			out[i] = br_ref(py_borrow(o));
		}
	}
	Py_DECREF(fast);
	if (!out && !PyErr_Occurred())
		PyErr_NoMemory();
	return out;
}

/* ---- Stream ----------------------------------------------------------------------------------------------------- */

typedef struct StreamObject {
	PyObject_HEAD
	stream *s;
} StreamObject;

static PyTypeObject StreamType;

static PyObject *stream_py_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	const char *cls;
	(void)kwargs;
	if (!PyArg_ParseTuple(args, "s", &cls))
		return NULL;
	StreamObject *o = (StreamObject *)type->tp_alloc(type, 0);
	if (!o)
		return NULL;
	clv_status st = stream_new(cls, &o->s);
	if (st != CLV_OK) {
		Py_DECREF(o);
		return raise_status(st);
	}
	o->s->where = where;
	return (PyObject *)o;
}

static void stream_py_dealloc(StreamObject *o)
{
	stream_free(o->s);
	Py_TYPE(o)->tp_free((PyObject *)o);
}

static PyObject *stream_py_input(StreamObject *o, PyObject *args)
{
	const char *name;
	PyObject *t;
	if (!PyArg_ParseTuple(args, "sO", &name, &t) || !need_tensor(t))
		return NULL;
	return none_or_raise(stream_input(o->s, name, py_borrow(t)));
}

static PyObject *stream_py_state(StreamObject *o, PyObject *args)
{
	const char *kind, *name;
	int trainable;
	PyObject *t;
	if (!PyArg_ParseTuple(args, "sspO", &kind, &name, &trainable, &t) || !need_tensor(t))
		return NULL;
	value_kind k = !strcmp(kind, "param") ? VALUE_PARAM : !strcmp(kind, "buffer") ? VALUE_BUFFER : VALUE_ATTR;
	return none_or_raise(stream_define_state(o->s, k, name, trainable != 0, py_borrow(t)));
}

static PyObject *stream_py_scope(StreamObject *o, PyObject *args)
{
	const char *path, *cls;
	uint32_t id;
	if (!PyArg_ParseTuple(args, "ss", &path, &cls))
		return NULL;
	clv_status st = stream_scope_add(o->s, path, cls, &id);
	return st == CLV_OK ? PyLong_FromUnsignedLong(id) : raise_status(st);
}

static PyObject *stream_py_enter(StreamObject *o, PyObject *id)
{
	unsigned long k = PyLong_AsUnsignedLong(id);
	if (PyErr_Occurred())
		return NULL;
	return none_or_raise(stream_enter(o->s, (uint32_t)k));
}

static PyObject *stream_py_leave(StreamObject *o, PyObject *unused)
{
	(void)unused;
	stream_leave(o->s);
	Py_RETURN_NONE;
}

static PyObject *stream_py_start(StreamObject *o, PyObject *alone)
{
	return none_or_raise(stream_start(o->s, alone == Py_True));
}

static PyObject *stream_py_stop(StreamObject *o, PyObject *unused)
{
	(void)unused;
	return none_or_raise(stream_stop(o->s));
}

static PyObject *stream_py_restore(StreamObject *o, PyObject *unused)
{
	(void)unused;
	return none_or_raise(br_recorder_restore(o->s->recorder));
}

static PyObject *stream_py_output(StreamObject *o, PyObject *t)
{
	if (!need_tensor(t))
		return NULL;
	return none_or_raise(stream_output(o->s, py_borrow(t)));
}

static PyObject *stream_py_rebound(StreamObject *o, PyObject *args)
{
	const char *name;
	PyObject *t;
	if (!PyArg_ParseTuple(args, "sO", &name, &t) || !need_tensor(t))
		return NULL;
	return none_or_raise(stream_rebound(o->s, name, py_borrow(t)));
}

static PyObject *stream_py_host_read(StreamObject *o, PyObject *args)
{
	const char *how;
	PyObject *t;
	if (!PyArg_ParseTuple(args, "Os", &t, &how) || !need_tensor(t))
		return NULL;
	return none_or_raise(stream_host_read(o->s, py_borrow(t), how));
}

static PyObject *stream_py_python_begin(StreamObject *o, PyObject *args)
{
	const char *label;
	PyObject *seq;
	Py_ssize_t n;
	if (!PyArg_ParseTuple(args, "sO", &label, &seq))
		return NULL;
	clv_tensor **tensors = tensor_array(seq, &n);
	if (!tensors)
		return NULL;
	clv_status st = stream_python_begin(o->s, label, tensors, (uint32_t)n);
	tensors_free(tensors, n);
	return none_or_raise(st);
}

static PyObject *stream_py_python_end(StreamObject *o, PyObject *args)
{
	unsigned int number;
	PyObject *seq;
	Py_ssize_t n;
	if (!PyArg_ParseTuple(args, "IO", &number, &seq))
		return NULL;
	clv_tensor **tensors = tensor_array(seq, &n);
	if (!tensors)
		return NULL;
	clv_status st = stream_python_end(o->s, number, tensors, (uint32_t)n);
	tensors_free(tensors, n);
	return none_or_raise(st);
}

static PyObject *stream_py_python_abort(StreamObject *o, PyObject *unused)
{
	(void)unused;
	stream_python_abort(o->s);
	Py_RETURN_NONE;
}

static PyObject *stream_py_fail(StreamObject *o, PyObject *message)
{
	const char *text = PyUnicode_AsUTF8(message);
	if (!text)
		return NULL;
	br_recorder_fail(o->s->recorder, CLV_E_UNSUPPORTED, text);
	Py_RETURN_NONE;
}

static PyObject *stream_py_active(StreamObject *o, PyObject *unused)
{
	(void)unused;
	return PyBool_FromLong(br_recorder_active(o->s->recorder));
}

static PyObject *stream_py_reads_state(StreamObject *o, PyObject *name)
{
	const char *text = PyUnicode_AsUTF8(name);
	return text ? PyBool_FromLong(stream_reads(o->s, text)) : NULL;
}

static PyObject *stream_py_restore_generators(StreamObject *o, PyObject *unused)
{
	(void)unused;
	return none_or_raise(br_recorder_restore_generators(o->s->recorder));
}

static PyMethodDef stream_methods[] = {
	{"input", (PyCFunction)stream_py_input, METH_VARARGS, "input(name, tensor): declares an input"},
	{"state", (PyCFunction)stream_py_state, METH_VARARGS,
     "state(kind, name, trainable, tensor): declares a module tensor"},
	{"scope", (PyCFunction)stream_py_scope, METH_VARARGS, "scope(path, cls) -> id: declares a module"},
	{"enter", (PyCFunction)stream_py_enter, METH_O, "enter(id): a module's forward begins"},
	{"leave", (PyCFunction)stream_py_leave, METH_NOARGS, "leave(): it ends"},
	{"start", (PyCFunction)stream_py_start, METH_O, "start(alone): records this thread from now on"},
	{"stop", (PyCFunction)stream_py_stop, METH_NOARGS, "stop(): ends the recording; raises what went wrong in it"},
	{"restore", (PyCFunction)stream_py_restore, METH_NOARGS, "restore(): undoes writes to tensors from outside"},
	{"output", (PyCFunction)stream_py_output, METH_O, "output(tensor): declares an output"},
	{"rebound", (PyCFunction)stream_py_rebound, METH_VARARGS, "rebound(name, tensor): a module tensor was re-bound"},
	{"host_read", (PyCFunction)stream_py_host_read, METH_VARARGS, "host_read(tensor, how): its data was read"},
	{"python_begin", (PyCFunction)stream_py_python_begin, METH_VARARGS, "python_begin(label, tensors)"},
	{"python_end", (PyCFunction)stream_py_python_end, METH_VARARGS, "python_end(number, results)"},
	{"python_abort", (PyCFunction)stream_py_python_abort, METH_NOARGS, "python_abort()"},
	{"fail", (PyCFunction)stream_py_fail, METH_O, "fail(message): refuses the forward"},
	{"active", (PyCFunction)stream_py_active, METH_NOARGS, "active() -> recording, on this thread, at top level"},
	{"reads_state", (PyCFunction)stream_py_reads_state, METH_O, "reads_state(name) -> an operator read it"},
	{"restore_generators", (PyCFunction)stream_py_restore_generators, METH_NOARGS, "restore_generators()"},
	{NULL, NULL, 0, NULL}};

static PyTypeObject StreamType = {PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cleave._native.Stream",
                                  .tp_basicsize = sizeof(StreamObject),
                                  .tp_flags = Py_TPFLAGS_DEFAULT,
                                  .tp_new = stream_py_new,
                                  .tp_dealloc = (destructor)stream_py_dealloc,
                                  .tp_methods = stream_methods};

/* compare(a, b) -> (verdict, reason, operator where they part) */
static PyObject *compare(PyObject *self, PyObject *args)
{
	StreamObject *a, *b;
	comparison c;
	(void)self;
	if (!PyArg_ParseTuple(args, "O!O!", &StreamType, &a, &StreamType, &b))
		return NULL;
	clv_status st = stream_compare(a->s, b->s, &c);
	if (st != CLV_OK)
		return raise_status(st);
	const char *op = c.verdict != STREAMS_EQUAL && c.op < a->s->ops.n ? a->s->ops.at[c.op].op : NULL;
	PyObject *out = Py_BuildValue("(izz)", (int)c.verdict, c.reason, op);
	comparison_free(&c);
	return out;
}

/* ---- Plan ------------------------------------------------------------------------------------------------------- */

typedef struct PlanObject {
	PyObject_HEAD
	plan *p;
	plan_data data;
	br_modes ambient; /* modes of the capture */
	bool has_ambient;
	PyObject *calls; /* list of Python callables, by number */
	node_names *names;
	clv_frontiers *frontiers;
} PlanObject;

static PyTypeObject PlanType;

static int visit_one(PyObject *x, visitproc visit, void *ctx)
{
	return x ? visit(x, ctx) : 0;
}

static int plan_py_traverse(PlanObject *o, visitproc visit, void *ctx)
{
	return visit_one(o->calls, visit, ctx);
}

static int plan_py_clear(PlanObject *o)
{
	Py_CLEAR(o->calls);
	return 0;
}

static void plan_py_dealloc(PlanObject *o)
{
	PyObject_GC_UnTrack(o);
	clv_frontiers_free(o->frontiers);
	node_names_free(o->names);
	plan_data_free(&o->data);
	plan_free(o->p);
	Py_XDECREF(o->calls);
	Py_TYPE(o)->tp_free((PyObject *)o);
}

/* Appends tokens (kind, n, payload) in prefix order as a tree; TREE_VALUE payloads index `values`. */
static bool add_token(plan *p, PyObject *token, const value_id *values, uint32_t nvalues, tree *out)
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

static bool add_tree(plan *p, PyObject *tokens, const value_id *values, uint32_t nvalues, bool output)
{
	PyObject *fast = PySequence_Fast(tokens, "a sequence of tokens is needed");
	if (!fast)
		return false;
	for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast); i++) {
		tree t;
		clv_status st;
		if (!add_token(p, PySequence_Fast_GET_ITEM(fast, i), values, nvalues, &t))
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

static PlanObject *plan_object_new(plan *p)
{
	PlanObject *o = (PlanObject *)PlanType.tp_alloc(&PlanType, 0);
	if (!o) {
		plan_free(p);
		return NULL;
	}
	o->p = p;
	return o;
}

/* align(a, b) -> None, or why streams at two sizes do not align */
static PyObject *align(PyObject *self, PyObject *args)
{
	StreamObject *a, *b;
	char *reason;
	(void)self;
	if (!PyArg_ParseTuple(args, "O!O!", &StreamType, &a, &StreamType, &b))
		return NULL;
	clv_status st = stream_align(a->s, b->s, &reason);
	if (st != CLV_OK)
		return raise_status(st);
	PyObject *out = Py_BuildValue("z", reason);
	mem_free(reason);
	return out;
}

/* The streams at other sizes, as C wants them; everything in one block that PyMem_Free releases. */
typedef struct SizeArrays {
	const stream **streams;
	int64_t *points, *lo, *hi;
	const char **names;
} SizeArrays;

static void sizes_free(SizeArrays *a)
{
	PyMem_Free(a->streams);
	PyMem_Free(a->points);
	PyMem_Free(a->lo);
	PyMem_Free(a->hi);
	PyMem_Free(a->names);
}

static int64_t *int_array(PyObject *list, Py_ssize_t *n)
{
	*n = PyList_GET_SIZE(list);
	int64_t *out = PyMem_Calloc((size_t)*n + 1, sizeof *out);
	for (Py_ssize_t i = 0; out && i < *n; i++)
		out[i] = PyLong_AsLongLong(PyList_GET_ITEM(list, i));
	return out;
}

/* sizes: (streams, points, names, lo, hi), all lists */
static bool parse_sizes(PyObject *sizes, SizeArrays *a, size_probes *out)
{
	PyObject *streams, *points, *names, *lo, *hi;
	Py_ssize_t n, m, k;
	if (!PyArg_ParseTuple(sizes, "O!O!O!O!O!", &PyList_Type, &streams, &PyList_Type, &points, &PyList_Type, &names,
	                      &PyList_Type, &lo, &PyList_Type, &hi))
		return false;
	a->points = int_array(points, &n);
	a->lo = int_array(lo, &m);
	a->hi = int_array(hi, &k);
	out->n = (uint32_t)PyList_GET_SIZE(streams);
	out->nsymbols = (uint32_t)PyList_GET_SIZE(names);
	a->streams = PyMem_Calloc(out->n + 1, sizeof *a->streams);
	a->names = PyMem_Calloc(out->nsymbols + 1, sizeof *a->names);
	if (!a->points || !a->lo || !a->hi || !a->streams || !a->names)
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
	return !PyErr_Occurred();
}

/* build(stream, probe, with_grad, training, grad_modes, in_tokens, out_tokens, calls, sizes) -> Plan; probe, with_grad
   and sizes may be None */
static PyObject *build(PyObject *self, PyObject *args)
{
	StreamObject *s;
	PyObject *probe, *with_grad, *in_tokens, *out_tokens, *calls, *sizes;
	SizeArrays arrays = {0};
	size_probes probes;
	int training, grad_modes;
	comparison c = {0};
	plan *p;
	plan_data data;
	(void)self;
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
	sizes_free(&arrays);
	if (st != CLV_OK) {
		PyMem_Free(outputs);
		return raise_status(st);
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
		if (!add_tree(p, in_tokens, p->inputs.at, p->inputs.n, false) ||
		    !add_tree(p, out_tokens, outputs, s->s->outputs.n, true))
			Py_CLEAR(o);
	}
	PyMem_Free(outputs);
	if (o && (st = plan_verify(o->p)) != CLV_OK) {
		Py_DECREF(o);
		return raise_status(st);
	}
	return (PyObject *)o;
}

static PyObject *parse(PyObject *self, PyObject *text)
{
	Py_ssize_t n;
	const char *s = PyUnicode_AsUTF8AndSize(text, &n);
	plan *p;
	(void)self;
	if (!s)
		return NULL;
	clv_status st = clv_plan_parse(s, (size_t)n, &p);
	return st == CLV_OK ? (PyObject *)plan_object_new(p) : raise_status(st);
}

static PyObject *take_string(clv_status st, char *s)
{
	if (st != CLV_OK)
		return raise_status(st);
	PyObject *o = PyUnicode_DecodeUTF8(s, (Py_ssize_t)strlen(s), "surrogateescape");
	clv_string_free(s);
	return o;
}

static PyObject *plan_py_text(PlanObject *o, PyObject *unused)
{
	char *s = NULL;
	(void)unused;
	clv_status st = clv_plan_print(o->p, &s);
	return take_string(st, s);
}

static PyObject *plan_py_inspect(PlanObject *o, PyObject *unused)
{
	char *s = NULL;
	(void)unused;
	clv_status st = clv_plan_inspect(o->p, &s);
	return take_string(st, s);
}

static const node_names *names_of(PlanObject *o)
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
	const node_names *names = names_of(o);
	(void)unused;
	PyObject *out = names ? PyList_New(p->nodes.n) : NULL;
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
		if (!item)
			Py_CLEAR(out);
		else
			PyList_SET_ITEM(out, i, item);
	}
	return out;
}

static const clv_frontiers *frontiers_of(PlanObject *o)
{
	if (!o->frontiers) {
		clv_status st = clv_frontiers_create(o->p, &o->frontiers);
		if (st != CLV_OK)
			raise_status(st);
	}
	return o->frontiers;
}

static PyObject *plan_py_frontiers(PlanObject *o, PyObject *unused)
{
	const clv_frontiers *f = frontiers_of(o);
	(void)unused;
	PyObject *out = f ? PyList_New(clv_frontiers_count(f)) : NULL;
	for (uint32_t i = 0; out && i < clv_frontiers_count(f); i++) {
		clv_frontier c = {.size = sizeof c};
		clv_status st = clv_frontiers_get(f, i, &c);
		PyObject *item = st != CLV_OK ? raise_status(st)
		                              : Py_BuildValue("(IssIILdOz)", c.position, c.name, c.module, c.boundary_tensors,
		                                              c.passthrough_inputs, (long long)c.boundary_bytes, c.prefix_cost,
		                                              c.trainable_suffix ? Py_True : Py_False, c.unsafe);
		if (!item)
			Py_CLEAR(out);
		else
			PyList_SET_ITEM(out, i, item);
	}
	return out;
}

static PyObject *plan_py_choose(PlanObject *o, PyObject *args)
{
	const char *boundary;
	int trainable;
	uint32_t i;
	const clv_frontiers *f = frontiers_of(o);
	if (!f || !PyArg_ParseTuple(args, "sp", &boundary, &trainable))
		return NULL;
	clv_status st = clv_frontiers_choose(f, boundary, trainable != 0, &i);
	return st == CLV_OK ? PyLong_FromUnsignedLong(i) : raise_status(st);
}

static PyObject *labels(const plan *p, const value_id *v, uint32_t n)
{
	PyObject *out = PyList_New(n);
	for (uint32_t i = 0; out && i < n; i++) {
		strbuf b = STRBUF_INIT;
		char *s = NULL;
		value_label(p, v[i], &b);
		clv_status st = strbuf_take(&b, &s);
		PyObject *item = take_string(st, s);
		if (!item)
			Py_CLEAR(out);
		else
			PyList_SET_ITEM(out, i, item);
	}
	return out;
}

static PyObject *plan_py_node_count(PlanObject *o, PyObject *unused)
{
	(void)unused;
	return PyLong_FromUnsignedLong(o->p->nodes.n);
}

/* rebinds() -> list of module tensor names that a run re-binds */
static PyObject *plan_py_rebinds(PlanObject *o, PyObject *unused)
{
	(void)unused;
	PyObject *out = PyList_New(o->p->rebinds.n);
	for (uint32_t i = 0; out && i < o->p->rebinds.n; i++) {
		PyObject *s = PyUnicode_FromString(plan_s(o->p, o->p->values.at[o->p->rebinds.at[i].target].name));
		if (!s)
			Py_CLEAR(out);
		else
			PyList_SET_ITEM(out, i, s);
	}
	return out;
}

static PyMethodDef plan_methods[] = {
	{"text", (PyCFunction)plan_py_text, METH_NOARGS, "text() -> the plan's text form"},
	{"inspect", (PyCFunction)plan_py_inspect, METH_NOARGS, "inspect() -> a page about the plan"},
	{"nodes", (PyCFunction)plan_py_nodes, METH_NOARGS, "nodes() -> list of tuples"},
	{"node_count", (PyCFunction)plan_py_node_count, METH_NOARGS, "node_count()"},
	{"frontiers", (PyCFunction)plan_py_frontiers, METH_NOARGS, "frontiers() -> list of tuples"},
	{"choose", (PyCFunction)plan_py_choose, METH_VARARGS, "choose(boundary, trainable) -> index of a frontier"},
	{"rebinds", (PyCFunction)plan_py_rebinds, METH_NOARGS, "rebinds() -> names"},
	{NULL, NULL, 0, NULL}};

static PyTypeObject PlanType = {PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cleave._native.Plan",
                                .tp_basicsize = sizeof(PlanObject),
                                .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                .tp_traverse = (traverseproc)plan_py_traverse,
                                .tp_clear = (inquiry)plan_py_clear,
                                .tp_dealloc = (destructor)plan_py_dealloc,
                                .tp_methods = plan_methods};

/* ---- Program ---------------------------------------------------------------------------------------------------- */

typedef struct Binding {
	PyObject *holder, *key; /* live: holder[key] is the tensor, holder a dict or list; NULL: data of the plan */
} Binding;

typedef struct ProgramObject {
	PyObject_HEAD
	PlanObject *plan;
	clv_program *g;
	Binding *bindings; /* per external */
	PyObject *modules; /* what must still hold of the model, see check_modules */
} ProgramObject;

static PyTypeObject ProgramType;

static int program_py_traverse(ProgramObject *o, visitproc visit, void *ctx)
{
	int r = visit_one(o->modules, visit, ctx);
	if (!r)
		r = visit_one((PyObject *)o->plan, visit, ctx);
	for (uint32_t i = 0; !r && o->bindings && o->g && i < o->g->v.externals.n; i++) {
		r = visit_one(o->bindings[i].holder, visit, ctx);
		if (!r)
			r = visit_one(o->bindings[i].key, visit, ctx);
	}
	return r;
}

/* The plan stays until dealloc: the program reads it. */
static int program_py_clear(ProgramObject *o)
{
	for (uint32_t i = 0; o->bindings && o->g && i < o->g->v.externals.n; i++) {
		Py_CLEAR(o->bindings[i].holder);
		Py_CLEAR(o->bindings[i].key);
	}
	Py_CLEAR(o->modules);
	return 0;
}

static void program_py_dealloc(ProgramObject *o)
{
	PyObject_GC_UnTrack(o);
	program_py_clear(o);
	PyMem_Free(o->bindings);
	program_free(o->g);
	Py_XDECREF(o->plan);
	Py_TYPE(o)->tp_free((PyObject *)o);
}

/* state: dict name -> (dict, key) for every module tensor the program reads */
static bool bind_externals(ProgramObject *o, PyObject *state)
{
	const view *v = &o->g->v;
	const plan *p = o->plan->p;
	o->bindings = PyMem_Calloc(v->externals.n + 1, sizeof *o->bindings);
	if (!o->bindings)
		return PyErr_NoMemory() != NULL;
	for (uint32_t i = 0; i < v->externals.n; i++) {
		const value *x = &p->values.at[v->externals.at[i]];
		if (x->kind != VALUE_PARAM && x->kind != VALUE_BUFFER && x->kind != VALUE_ATTR)
			continue;
		PyObject *pair = PyDict_GetItemString(state, plan_s(p, x->name));
		if (!pair || !PyArg_ParseTuple(pair, "OO", &o->bindings[i].holder, &o->bindings[i].key)) {
			o->bindings[i].holder = o->bindings[i].key = NULL;
			if (!PyErr_Occurred())
				PyErr_Format(PyExc_KeyError, "no module tensor %s", plan_s(p, x->name));
			return false;
		}
		Py_INCREF(o->bindings[i].holder);
		Py_INCREF(o->bindings[i].key);
	}
	return true;
}

/* Program(plan, first, end, debug, inference, state, modules) */
static PyObject *program_py_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	PlanObject *plan_o;
	unsigned int first, end;
	int debug, inference;
	PyObject *state, *modules;
	(void)kwargs;
	if (!PyArg_ParseTuple(args, "O!IIppO!O!", &PlanType, &plan_o, &first, &end, &debug, &inference, &PyDict_Type,
	                      &state, &PyList_Type, &modules))
		return NULL;
	ProgramObject *o = (ProgramObject *)type->tp_alloc(type, 0);
	if (!o)
		return NULL;
	o->plan = (PlanObject *)Py_NewRef((PyObject *)plan_o);
	o->modules = Py_NewRef(modules);
	program_spec spec = {.first = first,
	                     .end = end,
	                     .debug = debug != 0,
	                     .inference = inference != 0,
	                     .objects = plan_o->data.objects,
	                     .nobjects = plan_o->data.n};
	clv_status st = program_new(plan_o->p, &spec, &o->g);
	if (st != CLV_OK) {
		Py_DECREF(o);
		return raise_status(st);
	}
	if (!bind_externals(o, state)) {
		Py_DECREF(o);
		return NULL;
	}
	return (PyObject *)o;
}

/* A new reference to holder[key], NULL if there is none. */
static PyObject *live_item(PyObject *holder, PyObject *key)
{
	if (PyDict_CheckExact(holder) || PyDict_Check(holder))
		return Py_XNewRef(PyDict_GetItemWithError(holder, key));
	PyObject *item = PyObject_GetItem(holder, key);
	if (!item && (PyErr_ExceptionMatches(PyExc_LookupError)))
		PyErr_Clear();
	return item;
}

/* A fresh reference to each external, so that another thread may re-bind the module meanwhile. */
static bool gather_externals(ProgramObject *o, clv_tensor **out)
{
	const view *v = &o->g->v;
	for (uint32_t i = 0; i < v->externals.n; i++) {
		value_id id = v->externals.at[i];
		if (!o->bindings[i].holder) {
			out[i] = id < o->plan->data.n ? br_ref(o->plan->data.tensors[id]) : NULL;
			continue;
		}
		PyObject *t = live_item(o->bindings[i].holder, o->bindings[i].key);
		out[i] = t ? br_ref(py_borrow(t)) : NULL;
		Py_XDECREF(t);
		if (!out[i]) {
			raise_status(fail(CLV_E_INPUT, "the model's %s is no tensor any more: capture the model again",
			                  plan_s(o->plan->p, o->plan->p->values.at[id].name)));
			return false;
		}
	}
	return true;
}

static clv_status module_changed(PyObject *path, PyObject *what)
{
	const char *p = PyUnicode_AsUTF8(path), *w = PyUnicode_AsUTF8(what);
	if (w && !strcmp(w, "training"))
		return fail(CLV_E_INPUT,
		            "module %s was switched between train and eval mode after the plan was captured: capture the "
		            "model again, or switch it back",
		            p && p[0] ? p : "(the root)");
	return fail(CLV_E_INPUT, "%s of module %s changed after the plan was captured: capture the model again",
	            w ? w : "something", p && p[0] ? p : "(the root)");
}

/* modules: list of (path, what, dict, key, value), value NotImplemented for a key that must be absent, and of
   (path, what, container, None, size): what must still hold of the model. */
static clv_status check_modules(ProgramObject *o)
{
	for (Py_ssize_t i = 0; o->modules && i < PyList_GET_SIZE(o->modules); i++) {
		PyObject *item = PyList_GET_ITEM(o->modules, i), *key = PyTuple_GET_ITEM(item, 3),
				 *want = PyTuple_GET_ITEM(item, 4);
		PyObject *holder = PyTuple_GET_ITEM(item, 2);
		bool same;
		if (key == Py_None) {
			same = PyObject_Size(holder) == PyLong_AsSsize_t(want);
		} else {
			PyObject *now = PyDict_GetItemWithError(holder, key);
			same = now == want || (!now && want == Py_NotImplemented) ||
			       (now && Py_TYPE(now) == Py_TYPE(want) && PyObject_RichCompareBool(now, want, Py_EQ) == 1);
		}
		PyErr_Clear();
		if (!same)
			return module_changed(PyTuple_GET_ITEM(item, 0), PyTuple_GET_ITEM(item, 1));
	}
	return CLV_OK;
}

static clv_status check_ambient(const PlanObject *o)
{
	br_modes now;
	if (!o->has_ambient)
		return CLV_OK;
	br_modes_get(&now);
	if (memcmp(now.autocast, o->ambient.autocast, sizeof now.autocast) != 0 ||
	    memcmp(now.autocast_dtype, o->ambient.autocast_dtype, sizeof now.autocast_dtype) != 0)
		return fail(CLV_E_INPUT,
		            "autocast around the call is not what it was around the capture; the operators would run in "
		            "another precision: capture under the same autocast");
	if (now.default_dtype != o->ambient.default_dtype)
		return fail(CLV_E_INPUT, "torch's default dtype is %s, the plan was captured with %s",
		            now.default_dtype < DT_COUNT ? dtype_name((dtype)now.default_dtype) : "?",
		            o->ambient.default_dtype < DT_COUNT ? dtype_name((dtype)o->ambient.default_dtype) : "?");
	return CLV_OK;
}

static PyObject *wrap_all(clv_tensor **t, uint32_t n)
{
	PyObject *out = PyTuple_New(n);
	for (uint32_t i = 0; i < n; i++) {
		PyObject *x = out ? py_wrap(t[i]) : NULL;
		if (!out)
			br_unref(t[i]);
		else if (!x)
			Py_CLEAR(out);
		else
			PyTuple_SET_ITEM(out, i, x);
	}
	return out;
}

/* The executor calls this for cleave::python nodes, without the GIL. */
static clv_status call_python(void *ctx, value_id object, clv_tensor *const *args, uint32_t nargs, clv_tensor **results,
                              uint32_t nresults)
{
	PlanObject *o = ctx;
	PyGILState_STATE gil = PyGILState_Ensure();
	clv_status st = CLV_OK;
	PyObject *call = o->calls ? PyList_GetItem(o->calls, (Py_ssize_t)o->data.python[object]) : NULL;
	PyObject *list = call ? PyTuple_New(nargs) : NULL, *out = NULL, *fast = NULL;
	for (uint32_t i = 0; list && i < nargs; i++) {
		PyObject *t = py_wrap(br_ref(args[i]));
		if (!t)
			Py_CLEAR(list);
		else
			PyTuple_SET_ITEM(list, i, t);
	}
	if (list)
		out = PyObject_CallFunctionObjArgs(call, list, NULL);
	if (out)
		fast = PySequence_Fast(out, "a tuple of tensors");
	if (!fast || PySequence_Fast_GET_SIZE(fast) != (Py_ssize_t)nresults)
		st = fail(CLV_E_GUARD,
		          "the Python function raised, or returned another number of tensors than when it was captured");
	for (uint32_t i = 0; st == CLV_OK && i < nresults; i++)
		results[i] = br_ref(py_borrow(PySequence_Fast_GET_ITEM(fast, i)));
	Py_XDECREF(fast);
	Py_XDECREF(out);
	Py_XDECREF(list);
	PyGILState_Release(gil);
	return st;
}

/* run(tensors, symbols=None) -> tuple of tensors; symbols: list of ints, else read off the tensors */
static PyObject *program_py_run(ProgramObject *o, PyObject *args)
{
	PyObject *seq, *symbols = Py_None;
	Py_ssize_t n, nsymbols = 0;
	if (!PyArg_ParseTuple(args, "O|O", &seq, &symbols))
		return NULL;
	if (symbols != Py_None && (!PyList_Check(symbols) || PyList_GET_SIZE(symbols) != (Py_ssize_t)o->plan->p->symbols.n))
		return PyErr_Format(PyExc_TypeError, "a list with the value of every symbol is needed");
	const view *v = &o->g->v;
	PyObject *result = NULL;
	clv_tensor **inputs = tensor_array(seq, &n);
	if (!inputs)
		return NULL;
	int64_t *values = symbols == Py_None ? NULL : int_array(symbols, &nsymbols);
	clv_tensor **externals = PyMem_Calloc(v->externals.n + 1, sizeof *externals);
	clv_tensor **outputs = PyMem_Calloc(o->g->outputs.n + 1, sizeof *outputs);
	clv_status st = CLV_OK;
	if (!externals || !outputs) {
		PyErr_NoMemory();
		goto out;
	}
	if ((uint32_t)n != v->inputs.n)
		st = fail(CLV_E_INPUT, "%u tensors are needed, %zd were given", v->inputs.n, n);
	if (st == CLV_OK)
		st = check_modules(o);
	if (st == CLV_OK)
		st = check_ambient(o->plan);
	if (st != CLV_OK) {
		raise_status(st);
		goto out;
	}
	if (!gather_externals(o, externals))
		goto out;
	br_modes ambient;
	br_modes_get(&ambient);
	run_spec r = {.inputs = inputs,
	              .externals = externals,
	              .outputs = outputs,
	              .symbols = values,
	              .grad = ambient.grad,
	              .python = o->plan->calls ? call_python : NULL,
	              .python_ctx = o->plan};
	Py_BEGIN_ALLOW_THREADS;
	st = program_run(o->g, &r);
	Py_END_ALLOW_THREADS;
	result = st == CLV_OK ? wrap_all(outputs, o->g->outputs.n) : raise_status(st);
out:
	for (uint32_t i = 0; externals && i < v->externals.n; i++)
		br_unref(externals[i]);
	tensors_free(inputs, n);
	PyMem_Free(values);
	PyMem_Free(externals);
	PyMem_Free(outputs);
	return result;
}

/* check(tensors): raises what run would raise about its inputs */
static PyObject *program_py_check(ProgramObject *o, PyObject *seq)
{
	Py_ssize_t n;
	clv_tensor **inputs = tensor_array(seq, &n);
	if (!inputs)
		return NULL;
	clv_status st = (uint32_t)n == o->g->v.inputs.n
	                    ? program_check_inputs(o->g, inputs)
	                    : fail(CLV_E_INPUT, "%u tensors are needed, %zd were given", o->g->v.inputs.n, n);
	tensors_free(inputs, n);
	return none_or_raise(st);
}

/* check_model(): raises what run would about the model and the modes around the call */
static PyObject *program_py_check_model(ProgramObject *o, PyObject *unused)
{
	(void)unused;
	clv_status st = check_modules(o);
	return none_or_raise(st == CLV_OK ? check_ambient(o->plan) : st);
}

static PyObject *program_py_inputs(ProgramObject *o, PyObject *unused)
{
	(void)unused;
	return labels(o->plan->p, o->g->v.inputs.at, o->g->v.inputs.n);
}

static PyObject *program_py_outputs(ProgramObject *o, PyObject *unused)
{
	(void)unused;
	return labels(o->plan->p, o->g->outputs.at, o->g->outputs.n);
}

static PyObject *program_py_passthrough(ProgramObject *o, PyObject *unused)
{
	(void)unused;
	return labels(o->plan->p, o->g->v.passthrough.at, o->g->v.passthrough.n);
}

static PyMethodDef program_methods[] = {
	{"run", (PyCFunction)program_py_run, METH_VARARGS, "run(tensors, symbols=None) -> tuple of tensors"},
	{"check", (PyCFunction)program_py_check, METH_O, "check(tensors): raises what run would about its inputs"},
	{"check_model", (PyCFunction)program_py_check_model, METH_NOARGS, "check_model(): as check, about the model"},
	{"inputs", (PyCFunction)program_py_inputs, METH_NOARGS, "inputs() -> labels"},
	{"outputs", (PyCFunction)program_py_outputs, METH_NOARGS, "outputs() -> labels"},
	{"passthrough", (PyCFunction)program_py_passthrough, METH_NOARGS, "passthrough() -> labels"},
	{NULL, NULL, 0, NULL}};

static PyTypeObject ProgramType = {PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cleave._native.Program",
                                   .tp_basicsize = sizeof(ProgramObject),
                                   .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                   .tp_traverse = (traverseproc)program_py_traverse,
                                   .tp_clear = (inquiry)program_py_clear,
                                   .tp_new = program_py_new,
                                   .tp_dealloc = (destructor)program_py_dealloc,
                                   .tp_methods = program_methods};

/* ---- the module ------------------------------------------------------------------------------------------------- */

/* bits_equal(a, b) -> bool */
static PyObject *bits_equal(PyObject *self, PyObject *args)
{
	PyObject *a, *b;
	bool same = false;
	(void)self;
	if (!PyArg_ParseTuple(args, "OO", &a, &b) || !need_tensor(a) || !need_tensor(b))
		return NULL;
	clv_status st = br_bits_equal(py_borrow(a), py_borrow(b), &same);
	return st == CLV_OK ? PyBool_FromLong(same) : raise_status(st);
}

/* recording() -> a capture runs on this thread */
static PyObject *recording(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	return PyBool_FromLong(br_recording_here());
}

/* copy_data(dst, src): without moving dst's version counter */
static PyObject *copy_data(PyObject *self, PyObject *args)
{
	PyObject *a, *b;
	(void)self;
	if (!PyArg_ParseTuple(args, "OO", &a, &b) || !need_tensor(a) || !need_tensor(b))
		return NULL;
	return none_or_raise(br_tensor_copy_(py_borrow(a), py_borrow(b)));
}

static PyMethodDef functions[] = {
	{"set_error_classes", set_error_classes, METH_O, "set_error_classes({status number: class})"},
	{"set_skipped_prefixes", set_skipped_prefixes, METH_O, "set_skipped_prefixes(tuple of folders)"},
	{"compare", compare, METH_VARARGS, "compare(a, b) -> (verdict, reason, operator)"},
	{"align", align, METH_VARARGS, "align(a, b) -> None, or why streams at two sizes do not align"},
	{"build", build, METH_VARARGS, "build(stream, probe, with_grad, training, grad_modes, in, out, calls) -> Plan"},
	{"parse", parse, METH_O, "parse(text) -> Plan"},
	{"bits_equal", bits_equal, METH_VARARGS, "bits_equal(a, b) -> bool"},
	{"recording", recording, METH_NOARGS, "recording() -> a capture runs on this thread"},
	{"copy_data", copy_data, METH_VARARGS, "copy_data(dst, src)"},
	{NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {
	PyModuleDef_HEAD_INIT, "_native", "Cleave's C library", -1, functions, NULL, NULL, NULL, NULL};

static bool add_statuses(PyObject *m)
{
#define X(id, text)                                                                                                    \
	if (PyModule_AddIntConstant(m, #id, CLV_##id) < 0)                                                                 \
		return false;
	CLV_STATUS_LIST(X)
#undef X
	return true;
}

PyMODINIT_FUNC PyInit__native(void)
{
	if (PyType_Ready(&StreamType) < 0 || PyType_Ready(&PlanType) < 0 || PyType_Ready(&ProgramType) < 0)
		return NULL;
	PyObject *m = PyModule_Create(&module);
	if (!m)
		return NULL;
	if (PyModule_AddObjectRef(m, "Stream", (PyObject *)&StreamType) < 0 ||
	    PyModule_AddObjectRef(m, "Plan", (PyObject *)&PlanType) < 0 ||
	    PyModule_AddObjectRef(m, "Program", (PyObject *)&ProgramType) < 0 || !add_statuses(m) ||
	    PyModule_AddStringConstant(m, "version", clv_version()) < 0) {
		Py_DECREF(m);
		return NULL;
	}
	return m;
}
