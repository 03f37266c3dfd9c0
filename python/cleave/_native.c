/* cleave._native: the C library as Python objects. No logic of its own beyond turning Python into C and back.
 * This file has the module itself, errors, and functions without an object. */
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

PyObject *raise_told(const char *name, PyObject *given)
{
	PyObject *type, *error, *trace;
	PyErr_Fetch(&type, &error, &trace);
	PyErr_NormalizeException(&type, &error, &trace);
	if (!error || !given || PyObject_SetAttrString(error, name, given) < 0)
		PyErr_Clear(); /* the words are enough */
	Py_XDECREF(given);
	PyErr_Restore(type, error, trace);
	return NULL;
}

PyObject *raise_as(long code)
{
	if (PyErr_Occurred()) /* Python code that we called raised: that is the better story */
		return NULL;
	const clv_error_details *d = clv_last_error_details();
	const struct {
		const char *name, *text;
	} texts[] = {{"node", d->node},   {"op", d->op},     {"module", d->module},    {"source", d->source},
	             {"input", d->input}, {"seen", d->seen}, {"expected", d->expected}};
	PyErr_SetString(error_class(code), clv_last_error());
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		if (texts[i].text[0])
			raise_told(texts[i].name,
			           PyUnicode_DecodeUTF8(texts[i].text, (Py_ssize_t)strlen(texts[i].text), "replace"));
	if (d->dimension >= 0)
		raise_told("dimension", PyLong_FromLong(d->dimension));
	return d->undone ? raise_told("undone", PyBool_FromLong(1)) : NULL;
}

PyObject *raise_status(clv_status st)
{
	return raise_as(st);
}

PyObject *none_or_raise(clv_status st)
{
	return st == CLV_OK ? Py_NewRef(Py_None) : raise_status(st);
}

bool ok_or_raise(clv_status st)
{
	return st == CLV_OK || raise_status(st) != NULL;
}

static PyObject *keep_for_ever(PyObject **at, PyObject *given, bool good)
{
	if (!good)
		return PyErr_Format(PyExc_TypeError, "this is not kept: %R", given);
	Py_XSETREF(*at, Py_NewRef(given));
	Py_RETURN_NONE;
}

/* set_error_classes({status number: class}) */
PyObject *set_error_classes_py(PyObject *self, PyObject *dict)
{
	return keep_for_ever(&error_classes, dict, PyDict_Check(dict));
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
	return keep_for_ever(&skipped_prefixes, tuple, PyTuple_Check(tuple));
}

/* ---- functions without an object -------------------------------------------------------------------------------- */

/* bits_equal(a, b) -> bool */
PyObject *bits_equal_py(PyObject *self, PyObject *args)
{
	br_tensor *a, *b;
	bool same = false;
	if (!take(NULL, args, "tt", &a, &b))
		return NULL;
	clv_status st = br_bits_equal(a, b, &same);
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
	if (!take(NULL, args, "i", &n) || !ok_or_raise(br_team_check(n)))
		return NULL;
	br_team_enter(n, &had);
	return Py_BuildValue("(ii)", had.operators, had.mkl);
}

PyObject *threads_leave_py(PyObject *self, PyObject *args)
{
	br_team had;
	if (!take(NULL, args, "ii", &had.operators, &had.mkl))
		return NULL;
	br_team_leave(&had);
	Py_RETURN_NONE;
}

/* threads_check(n): raises where a run cannot have so many */
PyObject *threads_check_py(PyObject *self, PyObject *args)
{
	int n;
	return take(NULL, args, "i", &n) ? none_or_raise(br_team_check(n)) : NULL;
}

/* recycle(on): memory that is let go of is handed out again, on this thread, until as many recycle(False) */
PyObject *recycle_py(PyObject *self, PyObject *args)
{
	bool on;
	if (!take(NULL, args, "p", &on))
		return NULL;
	br_recycle(on);
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
	br_tensor *a, *b;
	return take(NULL, args, "tt", &a, &b) ? none_or_raise(br_tensor_copy_(a, b)) : NULL;
}

/* ---- the module ------------------------------------------------------------------------------------------------------ */

static PyMethodDef functions[] = {
#define FUNCTION(name, how) {#name, name##_py, how, NULL},
#include "_native_functions.def"
#undef FUNCTION
	{NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {
	PyModuleDef_HEAD_INIT, "_native", "Cleave's C library", -1, functions, NULL, NULL, NULL, NULL};

static bool add_numbers(PyObject *m)
{
	static const struct {
		const char *name;
		long number;
	} numbers[] = {
#define X(id, text) {#id, CLV_##id},
		CLV_STATUS_LIST(X)
#undef X
			{"E_PAYLOAD", E_PAYLOAD},
		{"E_ARTIFACT", E_ARTIFACT},
		{"E_REMOTE", E_REMOTE},
		{"MOST_THREADS", MOST_THREADS},
		{"SANDBOX_AUTO", CLV_SANDBOX_AUTO},
		{"SANDBOX_ON", CLV_SANDBOX_ON},
		{"SANDBOX_OFF", CLV_SANDBOX_OFF}};
	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
		if (PyModule_AddIntConstant(m, numbers[i].name, numbers[i].number) < 0)
			return false;
	return true;
}

static bool add_types(PyObject *m)
{
	static PyTypeObject *const types[] = {
		&ArtifactType, &BlocksType,  &ChecksType, &CodeType,          &DispatcherType, &FollowerType, &PartitionType,
		&PlanType,     &ProgramType, &RemoteType, &RemoteSessionType, &RuntimeType,    &StreamType,   &TrainerType};
	for (size_t i = 0; i < sizeof types / sizeof *types; i++)
		if (PyModule_AddType(m, types[i]) < 0)
			return false;
	return true;
}

PyMODINIT_FUNC PyInit__native(void)
{
	PyObject *m = PyModule_Create(&module);
	if (m && (!add_types(m) || !add_numbers(m) || !checks_add_names(m) ||
	          PyModule_AddStringConstant(m, "version", clv_version()) < 0 ||
	          PyModule_AddStringConstant(m, "encodings", ENCODINGS) < 0))
		Py_CLEAR(m);
	return m;
}
