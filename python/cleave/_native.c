/* cleave._native: the C library as Python objects. No logic of its own beyond turning Python into C and back.
 * This file has the module itself, and what its three types share (_native.h). */
#include "optimize/optimize.h"
#include "_native.h"

#include "file/narrow.h"

/* ---- errors ----------------------------------------------------------------------------------------------------- */

static PyObject *error_classes; /* dict: status number -> exception class; owned by the module for its whole life */

PyObject *error_class(long number)
{
	PyObject *code = PyLong_FromLong(number), *cls = NULL;
	if (code && error_classes)
		cls = PyDict_GetItemWithError(error_classes, code);
	Py_XDECREF(code);
	return cls ? cls : PyExc_RuntimeError;
}

static bool put_detail(PyObject *error, const char *name, PyObject *x)
{
	bool ok = x && PyObject_SetAttrString(error, name, x) == 0;
	Py_XDECREF(x);
	return ok;
}

/* What the error that is raised is about, as its attributes. */
static void add_details(void)
{
	const clv_error_details *d = clv_last_error_details();
	const struct {
		const char *name, *text;
	} texts[] = {{"node", d->node},   {"op", d->op},     {"module", d->module},    {"source", d->source},
	             {"input", d->input}, {"seen", d->seen}, {"expected", d->expected}};
	PyObject *type, *error, *trace;
	bool ok = true;
	PyErr_Fetch(&type, &error, &trace);
	PyErr_NormalizeException(&type, &error, &trace);
	for (size_t i = 0; error && ok && i < sizeof texts / sizeof *texts; i++)
		if (texts[i].text[0])
			ok = put_detail(error, texts[i].name,
			                PyUnicode_DecodeUTF8(texts[i].text, (Py_ssize_t)strlen(texts[i].text), "replace"));
	if (error && ok && d->dimension >= 0)
		ok = put_detail(error, "dimension", PyLong_FromLong(d->dimension));
	if (error && ok && d->undone)
		ok = put_detail(error, "undone", PyBool_FromLong(1));
	if (!ok)
		PyErr_Clear(); /* the words are enough */
	PyErr_Restore(type, error, trace);
}

PyObject *raise_status(clv_status st)
{
	if (PyErr_Occurred()) /* Python code that we called raised: that is the better story */
		return NULL;
	PyErr_SetString(error_class(st), clv_last_error());
	add_details();
	return NULL;
}

PyObject *none_or_raise(clv_status st)
{
	if (st != CLV_OK)
		return raise_status(st);
	Py_RETURN_NONE;
}

bool ok_or_raise(clv_status st)
{
	return st == CLV_OK || raise_status(st) != NULL;
}

void list_push(PyObject **list, PyObject *item)
{
	if (!item || PyList_Append(*list, item) < 0)
		Py_CLEAR(*list);
	Py_XDECREF(item);
}

void dict_put(PyObject **dict, const char *key, PyObject *item)
{
	if (!item || PyDict_SetItemString(*dict, key, item) < 0)
		Py_CLEAR(*dict);
	Py_XDECREF(item);
}

PyObject *int_list(const int64_t *at, Py_ssize_t n)
{
	PyObject *out = PyList_New(0);
	for (Py_ssize_t i = 0; out && i < n; i++)
		list_push(&out, PyLong_FromLongLong(at[i]));
	return out;
}

PyObject *int_tuple(const int64_t *at, Py_ssize_t n)
{
	PyObject *list = int_list(at, n), *out = list ? PyList_AsTuple(list) : NULL;
	Py_XDECREF(list);
	return out;
}

const char *text_of(PyObject *o)
{
	char *bytes;
	Py_ssize_t n;
	if (PyBytes_Check(o))
		return PyBytes_AsStringAndSize(o, &bytes, NULL) == 0 ? bytes : NULL;
	const char *text = PyUnicode_AsUTF8AndSize(o, &n);
	if (text && strlen(text) != (size_t)n)
		raise_status(fail(CLV_E_INPUT, "%.64s… has a NUL, and no name has one", text));
	return text && !PyErr_Occurred() ? text : NULL;
}

const char **string_array(PyObject *list, uint32_t *n)
{
	*n = (uint32_t)PyList_GET_SIZE(list);
	const char **out = PyMem_Calloc((size_t)*n + 1, sizeof *out);
	for (uint32_t i = 0; out && i < *n; i++)
		if (!(out[i] = text_of(PyList_GET_ITEM(list, i)))) {
			PyMem_Free(out);
			return NULL;
		}
	return out ? out : (const char **)PyErr_NoMemory();
}

/* set_error_classes({status number: class}) */
PyObject *set_error_classes_py(PyObject *self, PyObject *dict)
{
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

void where(char *out, size_t n)
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

PyObject *set_skipped_prefixes_py(PyObject *self, PyObject *tuple)
{
	if (!PyTuple_Check(tuple))
		return PyErr_Format(PyExc_TypeError, "a tuple is needed");
	Py_INCREF(tuple);
	Py_XSETREF(skipped_prefixes, tuple);
	Py_RETURN_NONE;
}

/* ---- sequences of tensors --------------------------------------------------------------------------------------- */

br_tensor *need_tensor(PyObject *o)
{
	br_tensor *t = py_borrow(o);
	if (!t)
		PyErr_Format(PyExc_TypeError, "a tensor is needed, not %s", Py_TYPE(o)->tp_name);
	return t;
}

void tensors_free(br_tensor **t, Py_ssize_t n)
{
	for (Py_ssize_t i = 0; t && i < n; i++)
		br_unref(t[i]);
	PyMem_Free(t);
}

/* New references to the tensors of a sequence; None gives NULL. The caller frees with tensors_free. */
br_tensor **tensor_array(PyObject *seq, Py_ssize_t *n)
{
	PyObject *fast = PySequence_Fast(seq, "a sequence of tensors is needed");
	if (!fast)
		return NULL;
	*n = PySequence_Fast_GET_SIZE(fast);
	br_tensor **out = PyMem_Calloc((size_t)*n + 1, sizeof *out);
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

void core_free(clv_tensor **t, Py_ssize_t n)
{
	for (Py_ssize_t i = 0; i < n; i++)
		clv_tensor_free(t[i]);
	PyMem_Free(t);
}

clv_status core_of(PyObject *tensor, clv_tensor **out)
{
	return br_give(br_ref(py_borrow(tensor)), out);
}

clv_tensor **core_array(PyObject *seq, Py_ssize_t *n)
{
	br_tensor **from = tensor_array(seq, n);
	clv_tensor **out = from ? PyMem_Calloc((size_t)*n + 1, sizeof *out) : NULL;
	if (!from)
		return NULL;
	clv_status st = out ? br_give_all(from, (uint32_t)*n, out) : fail_nomem();
	if (!out)
		tensors_free(from, *n);
	else
		PyMem_Free(from);
	if (st == CLV_OK)
		return out;
	PyMem_Free(out);
	raise_status(st);
	return NULL;
}

PyObject *core_wrap(clv_tensor *t)
{
	br_tensor *own;
	clv_status st = br_of(t, &own);
	PyObject *out = st == CLV_OK ? py_wrap(own ? br_ref(own) : NULL) : raise_status(st);
	clv_tensor_free(t);
	return out;
}

/* ---- the module ------------------------------------------------------------------------------------------------- */

/* bits_equal(a, b) -> bool */
PyObject *bits_equal_py(PyObject *self, PyObject *args)
{
	PyObject *a, *b;
	bool same = false;
	if (!PyArg_ParseTuple(args, "OO", &a, &b) || !need_tensor(a) || !need_tensor(b))
		return NULL;
	clv_status st = br_bits_equal(py_borrow(a), py_borrow(b), &same);
	return st == CLV_OK ? PyBool_FromLong(same) : raise_status(st);
}

/* passes() -> names of passes, in their order */
PyObject *passes_py(PyObject *self, PyObject *unused)
{
	PyObject *out = PyList_New(0);
	for (const pass *x = passes; out && x->name; x++)
		list_push(&out, PyUnicode_FromString(x->name));
	return out;
}

/* threads_enter(n) -> what threads_leave takes; both on one thread */
PyObject *threads_enter_py(PyObject *self, PyObject *args)
{
	br_team had;
	int n;
	if (!PyArg_ParseTuple(args, "i", &n))
		return NULL;
	clv_status st = br_team_check(n);
	if (st != CLV_OK)
		return raise_status(st);
	br_team_enter(n, &had);
	return Py_BuildValue("(ii)", had.operators, had.mkl);
}

PyObject *threads_leave_py(PyObject *self, PyObject *args)
{
	br_team had;
	if (!PyArg_ParseTuple(args, "ii", &had.operators, &had.mkl))
		return NULL;
	br_team_leave(&had);
	Py_RETURN_NONE;
}

/* threads_check(n): raises where a run cannot have so many */
PyObject *threads_check_py(PyObject *self, PyObject *args)
{
	int n;
	if (!PyArg_ParseTuple(args, "i", &n))
		return NULL;
	return none_or_raise(br_team_check(n));
}

/* recycle(on): memory that is let go of is handed out again, on this thread, until as many recycle(False) */
PyObject *recycle_py(PyObject *self, PyObject *on)
{
	int yes = PyObject_IsTrue(on);
	if (yes < 0)
		return NULL;
	br_recycle(yes);
	Py_RETURN_NONE;
}

/* recording() -> a capture runs on this thread */
PyObject *recording_py(PyObject *self, PyObject *unused)
{
	return PyBool_FromLong(br_recording_here());
}

/* copy_data(dst, src): without moving dst's version counter */
PyObject *copy_data_py(PyObject *self, PyObject *args)
{
	PyObject *a, *b;
	if (!PyArg_ParseTuple(args, "OO", &a, &b) || !need_tensor(a) || !need_tensor(b))
		return NULL;
	return none_or_raise(br_tensor_copy_(py_borrow(a), py_borrow(b)));
}

static PyMethodDef functions[] = {
#define FUNCTION(name, how) {#name, name##_py, how, NULL},
#include "_native_functions.def"
#undef FUNCTION
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

static bool add_types(PyObject *m)
{
	static const struct {
		const char *name;
		PyTypeObject *type;
	} types[] = {{"Stream", &StreamType},       {"Plan", &PlanType},
	             {"Program", &ProgramType},     {"Blocks", &BlocksType},
	             {"Partition", &PartitionType}, {"Artifact", &ArtifactType},
	             {"Runtime", &RuntimeType},     {"Trainer", &TrainerType},
	             {"Code", &CodeType},           {"Dispatcher", &DispatcherType},
	             {"Remote", &RemoteType},       {"RemoteSession", &RemoteSessionType},
	             {"Link", &LinkType},           {"Follower", &FollowerType}};
	for (size_t i = 0; i < sizeof types / sizeof *types; i++)
		if (PyType_Ready(types[i].type) < 0 || PyModule_AddObjectRef(m, types[i].name, (PyObject *)types[i].type) < 0)
			return false;
	return true;
}

PyMODINIT_FUNC PyInit__native(void)
{
	PyObject *m = PyModule_Create(&module);
	if (m && (!add_types(m) || !add_statuses(m) || !checks_add_names(m) ||
	          PyModule_AddIntConstant(m, "E_PAYLOAD", E_PAYLOAD) < 0 ||
	          PyModule_AddIntConstant(m, "E_ARTIFACT", E_ARTIFACT) < 0 ||
	          PyModule_AddIntConstant(m, "E_REMOTE", E_REMOTE) < 0 ||
	          PyModule_AddIntConstant(m, "MOST_THREADS", MOST_THREADS) < 0 ||
	          PyModule_AddIntConstant(m, "SANDBOX_AUTO", CLV_SANDBOX_AUTO) < 0 ||
	          PyModule_AddIntConstant(m, "SANDBOX_ON", CLV_SANDBOX_ON) < 0 ||
	          PyModule_AddIntConstant(m, "SANDBOX_OFF", CLV_SANDBOX_OFF) < 0 ||
	          PyModule_AddStringConstant(m, "version", clv_version()) < 0 ||
	          PyModule_AddStringConstant(m, "encodings", ENCODINGS) < 0))
		Py_CLEAR(m);
	return m;
}
