/* Stream: the calls with which Python records a forward (src/capture/stream.c), compares and aligns records. */
#include "_native.h"

static PyObject *stream_py_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	const char *cls;
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
	stream_leave(o->s);
	Py_RETURN_NONE;
}

static PyObject *stream_py_start(StreamObject *o, PyObject *alone)
{
	return none_or_raise(stream_start(o->s, alone == Py_True));
}

static PyObject *stream_py_stop(StreamObject *o, PyObject *unused)
{
	return none_or_raise(stream_stop(o->s));
}

static PyObject *stream_py_restore(StreamObject *o, PyObject *unused)
{
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
	br_tensor **tensors = tensor_array(seq, &n);
	if (!tensors)
		return NULL;
	clv_status st = stream_python_begin(o->s, label, tensors, (uint32_t)n);
	tensors_free(tensors, n);
	return none_or_raise(st);
}

static PyObject *stream_py_python_end(StreamObject *o, PyObject *args)
{
	python_call call = {0};
	PyObject *seq, *given;
	Py_ssize_t n, nwritten;
	if (!PyArg_ParseTuple(args, "IOO!", &call.object, &seq, &PyList_Type, &given))
		return NULL;
	br_tensor **tensors = tensor_array(seq, &n);
	int64_t *written = tensors ? int_array(given, &nwritten) : NULL;
	clv_status st = CLV_OK;
	if (written) {
		call.results = tensors;
		call.nresults = (uint32_t)n;
		call.written = written;
		call.nwritten = (uint32_t)nwritten;
		st = stream_python_end(o->s, &call);
	}
	PyMem_Free(written);
	if (tensors)
		tensors_free(tensors, n);
	return written ? none_or_raise(st) : NULL;
}

static PyObject *stream_py_python_abort(StreamObject *o, PyObject *unused)
{
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

static PyObject *stream_py_failed(StreamObject *o, PyObject *unused)
{
	return PyBool_FromLong(br_recorder_failed(o->s->recorder));
}

static PyObject *stream_py_active(StreamObject *o, PyObject *unused)
{
	return PyBool_FromLong(br_recorder_active(o->s->recorder));
}

/* states_read() -> names of the module tensors that operators took */
static PyObject *stream_py_states_read(StreamObject *o, PyObject *unused)
{
	bool *taken;
	clv_status st = stream_operands(o->s, &taken);
	if (st != CLV_OK)
		return raise_status(st);
	PyObject *out = PySet_New(NULL);
	for (uint32_t i = 0; out && i < o->s->states.n; i++) {
		PyObject *name = taken[o->s->states.at[i].tensor] ? PyUnicode_FromString(o->s->states.at[i].name) : NULL;
		if ((name && PySet_Add(out, name) < 0) || PyErr_Occurred())
			Py_CLEAR(out);
		Py_XDECREF(name);
	}
	mem_free(taken);
	return out;
}

static PyObject *stream_py_reads_data(StreamObject *o, PyObject *unused)
{
	bool found = false;
	clv_status st = stream_reads_data(o->s, &found);
	return st == CLV_OK ? PyBool_FromLong(found) : raise_status(st);
}

/* counters() -> names of module tensors that the forward changes, where it also reads numbers that follow them */
static PyObject *stream_py_counters(StreamObject *o, PyObject *unused)
{
	const stream *s = o->s;
	bool *found = mem_alloc((s->states.n + 1) * sizeof *found);
	clv_status st = found ? stream_counters(s, found) : fail_nomem();
	PyObject *out = st == CLV_OK ? PyList_New(0) : raise_status(st);
	for (uint32_t i = 0; out && i < s->states.n; i++) {
		if (found[i])
			list_push(&out, PyUnicode_FromString(s->states.at[i].name));
	}
	mem_free(found);
	return out;
}

static PyObject *stream_py_number(StreamObject *o, PyObject *t)
{
	if (!need_tensor(t))
		return NULL;
	return none_or_raise(stream_number(o->s, py_borrow(t)));
}

static PyObject *stream_py_same_calls(StreamObject *o, PyObject *other)
{
	if (!PyObject_TypeCheck(other, &StreamType)) {
		PyErr_SetString(PyExc_TypeError, "same_calls takes a Stream");
		return NULL;
	}
	return PyBool_FromLong(stream_same_calls(o->s, ((StreamObject *)other)->s));
}

static PyObject *stream_py_fold(StreamObject *o, PyObject *unused)
{
	bool changed = false;
	clv_status st = stream_fold(o->s, &changed);
	return st == CLV_OK ? PyBool_FromLong(changed) : raise_status(st);
}

static PyObject *stream_py_restore_generators(StreamObject *o, PyObject *unused)
{
	return none_or_raise(br_recorder_restore_generators(o->s->recorder));
}

static PyObject *with_tensors(PyObject *seq, clv_status (*f)(StreamObject *, br_tensor *const *, uint32_t),
                              StreamObject *o)
{
	Py_ssize_t n;
	br_tensor **tensors = tensor_array(seq, &n);
	if (!tensors)
		return NULL;
	clv_status st = f(o, tensors, (uint32_t)n);
	tensors_free(tensors, n);
	return none_or_raise(st);
}

static clv_status check_hooks(StreamObject *o, br_tensor *const *tensors, uint32_t n)
{
	return stream_check_hooks(o->s, tensors, n);
}

static PyObject *stream_py_region_begin(StreamObject *o, PyObject *args)
{
	int keeps_random, reentrant;
	if (!PyArg_ParseTuple(args, "pp", &keeps_random, &reentrant))
		return NULL;
	return none_or_raise(stream_region_begin(o->s, keeps_random != 0, reentrant != 0));
}

static PyObject *stream_py_region_end(StreamObject *o, PyObject *unused)
{
	stream_region_end(o->s);
	Py_RETURN_NONE;
}

static PyObject *stream_py_check_regions(StreamObject *o, PyObject *nstores)
{
	unsigned long n = PyLong_AsUnsignedLong(nstores);
	if (PyErr_Occurred())
		return NULL;
	return none_or_raise(stream_check_regions(o->s, (uint32_t)n));
}

static PyObject *stream_py_check_hooks(StreamObject *o, PyObject *seq)
{
	return with_tensors(seq, check_hooks, o);
}

static clv_status pass_hooks(StreamObject *o, br_tensor *const *tensors, uint32_t n)
{
	return br_recorder_pass_hooks(o->s->recorder, tensors, n);
}

static PyObject *stream_py_pass_hooks(StreamObject *o, PyObject *seq)
{
	return with_tensors(seq, pass_hooks, o);
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
	{"python_end", (PyCFunction)stream_py_python_end, METH_VARARGS,
     "python_end(number, results, which of the arguments it wrote)"},
	{"python_abort", (PyCFunction)stream_py_python_abort, METH_NOARGS, "python_abort()"},
	{"fail", (PyCFunction)stream_py_fail, METH_O, "fail(message): refuses the forward"},
	{"failed", (PyCFunction)stream_py_failed, METH_NOARGS, "failed() -> the forward is refused"},
	{"active", (PyCFunction)stream_py_active, METH_NOARGS, "active() -> recording, on this thread, at top level"},
	{"states_read", (PyCFunction)stream_py_states_read, METH_NOARGS,
     "states_read() -> names of those that operators took"},
	{"reads_data", (PyCFunction)stream_py_reads_data, METH_NOARGS,
     "reads_data() -> a number or shape follows the data"},
	{"counters", (PyCFunction)stream_py_counters, METH_NOARGS,
     "counters() -> names of module tensors that it changes, where it reads numbers that follow them"},
	{"number", (PyCFunction)stream_py_number, METH_O, "number(tensor): it stands for a Python number"},
	{"same_calls", (PyCFunction)stream_py_same_calls, METH_O,
     "same_calls(other) -> they differ in what numbers need alone"},
	{"region_begin", (PyCFunction)stream_py_region_begin, METH_VARARGS,
     "region_begin(keeps_random, reentrant): eager will run what follows again in the backward"},
	{"region_end", (PyCFunction)stream_py_region_end, METH_NOARGS, "region_end(): of the last that is open"},
	{"check_regions", (PyCFunction)stream_py_check_regions, METH_O,
     "check_regions(number of stored outputs): raises where running a region again makes a difference"},
	{"check_hooks", (PyCFunction)stream_py_check_hooks, METH_O,
     "check_hooks(tensors): raises where the forward put a gradient hook behind what it gave"},
	{"pass_hooks", (PyCFunction)stream_py_pass_hooks, METH_O,
     "pass_hooks(results): hooks behind what a whole module gave are its own"},
	{"fold", (PyCFunction)stream_py_fold, METH_NOARGS, "fold() -> sequences were written another way"},
	{"restore_generators", (PyCFunction)stream_py_restore_generators, METH_NOARGS, "restore_generators()"},
	{NULL, NULL, 0, NULL}};

PyTypeObject StreamType = {PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cleave._native.Stream",
                           .tp_basicsize = sizeof(StreamObject),
                           .tp_flags = Py_TPFLAGS_DEFAULT,
                           .tp_new = stream_py_new,
                           .tp_dealloc = (destructor)stream_py_dealloc,
                           .tp_methods = stream_methods};

/* compare(a, b) -> (verdict, reason, operator where they part) */
PyObject *compare_py(PyObject *self, PyObject *args)
{
	StreamObject *a, *b;
	comparison c;
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

/* data_points(streams, points, nsymbols) -> rows of points with a symbol more for each number that is read from data, and
   how many symbols there are then */
PyObject *data_points_py(PyObject *self, PyObject *args)
{
	PyObject *list, *given, *out = NULL;
	unsigned int nsymbols;
	Py_ssize_t npoints;
	uint32_t nall = 0;
	int64_t *rows = NULL;
	if (!PyArg_ParseTuple(args, "O!O!I", &PyList_Type, &list, &PyList_Type, &given, &nsymbols))
		return NULL;
	Py_ssize_t n = PyList_GET_SIZE(list);
	const stream **streams = PyMem_Calloc((size_t)n + 1, sizeof *streams);
	int64_t *points = int_array(given, &npoints);
	bool good = streams && points && n > 0 && npoints == n * (Py_ssize_t)nsymbols;
	for (Py_ssize_t i = 0; good && i < n; i++) {
		PyObject *s = PyList_GET_ITEM(list, i);
		good = PyObject_TypeCheck(s, &StreamType);
		streams[i] = good ? ((StreamObject *)s)->s : NULL;
	}
	clv_status st = good ? stream_data_points(streams, (uint32_t)n, points, nsymbols, &rows, &nall)
	                     : fail(CLV_E_INVALID, "streams and points do not fit together");
	if (st == CLV_OK)
		out = int_list(rows, n * (Py_ssize_t)nall);
	mem_free(rows);
	PyMem_Free(streams);
	PyMem_Free(points);
	if (st != CLV_OK)
		return raise_status(st);
	return out ? Py_BuildValue("(NI)", out, nall) : NULL;
}

/* align(a, b) -> None, or why streams at two sizes do not align */
PyObject *align_py(PyObject *self, PyObject *args)
{
	StreamObject *a, *b;
	bool lengths;
	char *reason;
	if (!PyArg_ParseTuple(args, "O!O!", &StreamType, &a, &StreamType, &b))
		return NULL;
	clv_status st = stream_align(a->s, b->s, &lengths, &reason);
	if (st != CLV_OK)
		return raise_status(st);
	PyObject *out = reason ? Py_BuildValue("(sO)", reason, lengths ? Py_True : Py_False) : Py_NewRef(Py_None);
	mem_free(reason);
	return out;
}
