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

static PyObject *set_error_classes(PyObject *self, PyObject *dict)
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

static PyObject *set_skipped_prefixes(PyObject *self, PyObject *tuple)
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
static PyObject *bits_equal(PyObject *self, PyObject *args)
{
	PyObject *a, *b;
	bool same = false;
	if (!PyArg_ParseTuple(args, "OO", &a, &b) || !need_tensor(a) || !need_tensor(b))
		return NULL;
	clv_status st = br_bits_equal(py_borrow(a), py_borrow(b), &same);
	return st == CLV_OK ? PyBool_FromLong(same) : raise_status(st);
}

static PyObject *pass_names(PyObject *self, PyObject *unused)
{
	PyObject *out = PyList_New(0);
	for (const pass *x = passes; out && x->name; x++)
		list_push(&out, PyUnicode_FromString(x->name));
	return out;
}

/* threads_enter(n) -> what threads_leave takes; both on one thread */
static PyObject *threads_enter(PyObject *self, PyObject *args)
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

static PyObject *threads_leave(PyObject *self, PyObject *args)
{
	br_team had;
	if (!PyArg_ParseTuple(args, "ii", &had.operators, &had.mkl))
		return NULL;
	br_team_leave(&had);
	Py_RETURN_NONE;
}

static PyObject *threads_check(PyObject *self, PyObject *args)
{
	int n;
	if (!PyArg_ParseTuple(args, "i", &n))
		return NULL;
	return none_or_raise(br_team_check(n));
}

/* recycle(on): memory that is let go of is handed out again, on this thread, until as many recycle(False) */
static PyObject *recycle(PyObject *self, PyObject *on)
{
	int yes = PyObject_IsTrue(on);
	if (yes < 0)
		return NULL;
	br_recycle(yes);
	Py_RETURN_NONE;
}

/* recording() -> a capture runs on this thread */
static PyObject *recording(PyObject *self, PyObject *unused)
{
	return PyBool_FromLong(br_recording_here());
}

/* copy_data(dst, src): without moving dst's version counter */
static PyObject *copy_data(PyObject *self, PyObject *args)
{
	PyObject *a, *b;
	if (!PyArg_ParseTuple(args, "OO", &a, &b) || !need_tensor(a) || !need_tensor(b))
		return NULL;
	return none_or_raise(br_tensor_copy_(py_borrow(a), py_borrow(b)));
}

static PyMethodDef functions[] = {
	{"set_error_classes", set_error_classes, METH_O, "set_error_classes({status number: class})"},
	{"set_skipped_prefixes", set_skipped_prefixes, METH_O, "set_skipped_prefixes(tuple of folders)"},
	{"compare", stream_compare_py, METH_VARARGS, "compare(a, b) -> (verdict, reason, operator)"},
	{"align", stream_align_py, METH_VARARGS,
     "align(a, b) -> None, or why streams at two sizes do not align, and whether lengths of lists do"},
	{"data_points", stream_data_points_py, METH_VARARGS,
     "data_points(streams, points, nsymbols) -> (points, nsymbols)"},
	{"build", plan_build_py, METH_VARARGS,
     "build(stream, probe, with_grad, training, grad_modes, in, out, calls) -> Plan"},
	{"parse", plan_parse_py, METH_O, "parse(text) -> Plan"},
	{"bits_equal", bits_equal, METH_VARARGS, "bits_equal(a, b) -> bool"},
	{"passes", pass_names, METH_NOARGS, "passes() -> names of passes, in their order"},
	{"threads_check", threads_check, METH_VARARGS, "threads_check(n): raises where a run cannot have so many"},
	{"threads_enter", threads_enter, METH_VARARGS, "threads_enter(n) -> what threads_leave takes"},
	{"threads_leave", threads_leave, METH_VARARGS, "threads_leave(operators, mkl)"},
	{"recording", recording, METH_NOARGS, "recording() -> a capture runs on this thread"},
	{"check_model", check_model_py, METH_VARARGS,
     "check_model(plan, checks): raises what does not hold any more of the model and of the modes around the call"},
	{"same_items", same_items_py, METH_VARARGS, "same_items(a, b) -> dicts or lists of the very same items"},
	{"calls_begin", calls_begin_py, METH_NOARGS,
     "calls_begin() -> a dict that fills with the code objects that run on this thread, by id, or None"},
	{"calls_end", calls_end_py, METH_NOARGS, "calls_end(): no more are added"},
	{"recycle", recycle, METH_O, "recycle(on): memory that is let go of is handed out again, on this thread"},
	{"copy_data", copy_data, METH_VARARGS, "copy_data(dst, src)"},
	{"weight_digest", weight_digest_py, METH_VARARGS, "weight_digest(name, tensor) -> int"},
	{"payload_write", payload_write_py, METH_VARARGS,
     "payload_write(fields, tensors, values, compress, checksum, path, to_host) -> (bytes, {label: loss})"},
	{"payload_read", payload_read_py, METH_VARARGS,
     "payload_read(boundary, data, path, place) -> (fields, tensors, values, {label: loss})"},
	{"backend_version", backend_version_py, METH_O, "backend_version(name) -> str"},
	{"backend_check_args", backend_check_args_py, METH_VARARGS, "backend_check_args(name, args)"},
	{"backend_support", backend_support_py, METH_VARARGS, "backend_support(plan, name, dynamic) -> why not, per node"},
	{"openvino_set_folder", openvino_set_folder_py, METH_O, "openvino_set_folder(folder of the package, or None)"},
	{"arrays_load", arrays_load_py, METH_O, "arrays_load(path) -> {name: tensor} of a safetensors or .npy file"},
	{"artifact_save", artifact_save_py, METH_VARARGS, "writes plans and tensors as a .clv file"},
	{"register_backend", register_backend_py, METH_VARARGS,
     "register_backend(name, native, support, compile, load, run)"},
	{"speed_load", speed_load, METH_O, "speed_load(path) -> operations per second, as `cleave bench --json` measured"},
	{"text_bytes", text_bytes_py, METH_O, "text_bytes(n) -> '46.8 MB'"},
	{"text_count", text_count_py, METH_O, "text_count(n) -> '11.7M'"},
	{"text_columns", text_columns_py, METH_VARARGS, "text_columns(rows, right) -> aligned lines"},
	{"profile_blocks", profile_blocks_py, METH_VARARGS,
     "profile_blocks(program, tensors, ends, iterations, warmup, training, whole, progress) -> (rows, whole)"},
	{"split_job", split_job_py, METH_VARARGS, "split_job(folder, log, control, report)"},
	{"warm_compilers", warm_compilers_py, METH_NOARGS, "warm_compilers()"},
	{"trace", trace_py, METH_VARARGS, "trace(artifact, calls, reasons, options, progress, log, path)"},
	{"artifact_resave", artifact_resave_py, METH_VARARGS, "artifact_resave(artifact, path, points, notes, any_size)"},
	{"difference", difference_py, METH_VARARGS, "difference(got, want) -> (error, scale)"},
	{"trace_segments", trace_segments_py, METH_VARARGS, "trace_segments(artifact, plan) -> (segments, fallbacks)"},
	{"trace_html", trace_html_py, METH_VARARGS, "trace_html(artifact, plan, on_tape, title, frontier) -> a page"},
	{"trace_report", trace_report_py, METH_VARARGS,
     "trace_report(artifact, plan, json, on_tape, ms…) -> (text, share)"},
	{"marks", marks_py, METH_VARARGS, "marks([(holder or None, key, tensor)], contents) -> bytes"},
	{"marks_changed", marks_changed_py, METH_VARARGS, "marks_changed(list, contents, marks) -> index or None"},
	{"segment_save", segment_save_py, METH_VARARGS, "segment_save(artifact, plan, segment, path)"},
	{"nodes_save", nodes_save_py, METH_VARARGS, "nodes_save(artifact, plan, first, end, path)"},
	{"nodes_values", nodes_values_py, METH_VARARGS, "nodes_values(artifact, plan, first, end) -> (inputs, outputs)"},
	{"plan_values", plan_values_py, METH_VARARGS, "plan_values(artifact, plan) -> (inputs, outputs)"},
	{"segment_trust", segment_trust_py, METH_O, "segment_trust(code)"},
	{"new_key", new_key_py, METH_O, "new_key(path) -> fingerprint"},
	{"sign", sign_py, METH_VARARGS, "sign(path, key, allow_operators, output) -> fingerprint"},
	{"profile_read", profile_read_py, METH_O, "profile_read(path) -> (key, rows, whole)"},
	{"profile_write", profile_write_py, METH_VARARGS, "profile_write(path, key, rows, whole)"},
	{"spread", spread_py, METH_O, "spread(samples) -> (median, low, high, least, most)"},
	{"peak_memory", peak_memory_py, METH_VARARGS, "peak_memory(setup, call) -> bytes"},
	{"estimate_blocks", estimate_blocks_py, METH_VARARGS,
     "estimate_blocks(plan, ends, sizes, flops_per_s, bytes_per_s, node_us, training) -> rows"},
	{"payload_check", payload_check_py, METH_VARARGS, "payload_check(schema, tensors, sizes)"},
	{"boundary_check", boundary_check_py, METH_VARARGS, "boundary_check(what is expected, what a boundary says)"},
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
	if (PyType_Ready(&StreamType) < 0 || PyType_Ready(&PlanType) < 0 || PyType_Ready(&ProgramType) < 0 ||
	    PyType_Ready(&ArtifactType) < 0 || PyType_Ready(&BlocksType) < 0 || PyType_Ready(&PartitionType) < 0 ||
	    PyType_Ready(&RuntimeType) < 0 || PyType_Ready(&CodeType) < 0 || PyType_Ready(&DispatcherType) < 0)
		return NULL;
	PyObject *m = PyModule_Create(&module);
	if (!m)
		return NULL;
	if (PyModule_AddObjectRef(m, "Stream", (PyObject *)&StreamType) < 0 ||
	    PyModule_AddObjectRef(m, "Plan", (PyObject *)&PlanType) < 0 ||
	    PyModule_AddObjectRef(m, "Program", (PyObject *)&ProgramType) < 0 ||
	    PyModule_AddObjectRef(m, "Blocks", (PyObject *)&BlocksType) < 0 ||
	    PyModule_AddObjectRef(m, "Artifact", (PyObject *)&ArtifactType) < 0 ||
	    PyModule_AddObjectRef(m, "Dispatcher", (PyObject *)&DispatcherType) < 0 ||
	    PyModule_AddObjectRef(m, "Code", (PyObject *)&CodeType) < 0 ||
	    PyModule_AddObjectRef(m, "Runtime", (PyObject *)&RuntimeType) < 0 || !add_statuses(m) || !checks_add_names(m) ||
	    PyModule_AddIntConstant(m, "E_PAYLOAD", E_PAYLOAD) < 0 ||
	    PyModule_AddIntConstant(m, "E_ARTIFACT", E_ARTIFACT) < 0 ||
	    PyModule_AddIntConstant(m, "MOST_THREADS", MOST_THREADS) < 0 ||
	    PyModule_AddStringConstant(m, "version", clv_version()) < 0 ||
	    PyModule_AddStringConstant(m, "encodings", ENCODINGS) < 0) {
		Py_DECREF(m);
		return NULL;
	}
	return m;
}
