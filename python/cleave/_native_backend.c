/* Back ends in Python, and compiled segments as Python gives them. */
#include "_native_segment.h"

/* ---- segments ------------------------------------------------------------------------------------------------------- */

void segment_clear(artifact_segment *s)
{
	vec_free(&s->sizes);
	vec_free(&s->in_order);
	vec_free(&s->out_order);
	vec_free(&s->needs);
	vec_free(&s->members);
}

static bool read_sizes(PyObject *list, artifact_segment *out)
{
	for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
		long long low, high;
		if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "LL", &low, &high) ||
		    !ok_or_raise(vec_push(&out->sizes, ((artifact_sizes){low, high}))))
			return false;
	}
	return true;
}

typedef VEC(uint32_t) id_list;

static bool read_order(PyObject *list, id_list *out)
{
	for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
		unsigned long d = PyLong_AsUnsignedLong(PyList_GET_ITEM(list, i));
		if (PyErr_Occurred() || !ok_or_raise(vec_push(out, (uint32_t)d)))
			return false;
	}
	return true;
}

/* Names and bytes are borrowed from the dict. */
static bool read_members(PyObject *dict, artifact_segment *out)
{
	Py_ssize_t at = 0;
	PyObject *key, *data;
	while (PyDict_Next(dict, &at, &key, &data)) {
		artifact_member m = {.name = PyUnicode_AsUTF8(key)};
		char *bytes;
		Py_ssize_t n;
		if (!m.name || PyBytes_AsStringAndSize(data, &bytes, &n) < 0)
			return false;
		m.data = bytes;
		m.n = (size_t)n;
		if (!ok_or_raise(vec_push(&out->members, m)))
			return false;
	}
	return true;
}

static bool read_needs(PyObject *dict, artifact_segment *out)
{
	Py_ssize_t at = 0;
	PyObject *key, *text;
	while (PyDict_Next(dict, &at, &key, &text)) {
		artifact_note note = {PyUnicode_AsUTF8(key), PyUnicode_AsUTF8(text)};
		if (!note.key || !note.text || !ok_or_raise(vec_push(&out->needs, note)))
			return false;
	}
	return true;
}

bool segment_read(PyObject *item, artifact_segment *out)
{
	PyObject *sizes, *in, *to, *members, *needs = NULL;
	id_list in_order = {0}, out_order = {0};
	if (!PyArg_ParseTuple(item, "IIsO!O!O!O!|O!", &out->first, &out->end, &out->backend, &PyList_Type, &sizes,
	                      &PyList_Type, &in, &PyList_Type, &to, &PyDict_Type, &members, &PyDict_Type, &needs))
		return false;
	bool ok = read_sizes(sizes, out) && read_order(in, &in_order) && read_order(to, &out_order) &&
	          read_members(members, out) && (!needs || read_needs(needs, out));
	memcpy(&out->in_order, &in_order, sizeof in_order);
	memcpy(&out->out_order, &out_order, sizeof out_order);
	return ok;
}

/* ---- back ends ------------------------------------------------------------------------------------------------------ */

/* What was given to register_backend; there for ever. Each may be None but run. */
typedef struct PythonBackend {
	PyObject *support, *compile, *load, *run;
	PyObject *version; /* text; "": what it makes is not kept in the cache */
} PythonBackend;

/* The exception as a failure; `what` raised it. */
static clv_status python_failed(const char *what)
{
	PyObject *type, *error, *trace;
	PyErr_Fetch(&type, &error, &trace);
	PyErr_NormalizeException(&type, &error, &trace);
	PyObject *text = error ? PyObject_Str(error) : NULL;
	const char *s = text ? PyUnicode_AsUTF8(text) : NULL;
	bool fault = !type || PyErr_GivenExceptionMatches(type, PyExc_Exception); /* else someone wants to stop */
	clv_status st = fail(fault ? CLV_E_UNSUPPORTED : CLV_E_CANCELLED, "%s raised %s: %s", what,
	                     type ? ((PyTypeObject *)type)->tp_name : "an exception", s ? s : "?");
	PyErr_Clear();
	Py_XDECREF(text);
	Py_XDECREF(type);
	Py_XDECREF(error);
	Py_XDECREF(trace);
	return st;
}

/* A list of None and texts, one per node. */
static clv_status read_support(PyObject *list, const plan *p, const char **no, arena *a)
{
	if (!PyList_Check(list) || PyList_GET_SIZE(list) != (Py_ssize_t)p->nodes.n)
		return fail(CLV_E_INVALID, "supports gave something else than a list with an entry per node");
	for (node_id n = 0; n < p->nodes.n; n++) {
		PyObject *x = PyList_GET_ITEM(list, n);
		const char *text = x == Py_None ? NULL : PyUnicode_AsUTF8(x);
		no[n] = text ? arena_str(a, text) : NULL;
		if (x != Py_None && !text)
			return python_failed("supports");
		if (text && !no[n])
			return fail_nomem();
	}
	return CLV_OK;
}

static clv_status py_support(void *ctx, const plan *p, const support_spec *s, const char **no, arena *a)
{
	const PythonBackend *b = ctx;
	plan *copy;
	TRY(plan_copy(p, &copy));
	PyGILState_STATE gil = PyGILState_Ensure();
	PlanObject *o = plan_object_new(copy);
	PyObject *list = o ? PyObject_CallFunction(b->support, "OO", o, s->dynamic ? Py_True : Py_False) : NULL;
	clv_status st = list ? read_support(list, p, no, a) : python_failed("supports");
	Py_XDECREF(list);
	Py_XDECREF((PyObject *)o);
	PyGILState_Release(gil);
	return st;
}

/* How a back end takes its arguments is its own: it sees them in the job. */
static clv_status py_check_args(void *ctx, const char *const *args, uint32_t n)
{
	return CLV_OK;
}

static clv_status py_version(void *ctx, strbuf *out)
{
	PyGILState_STATE gil = PyGILState_Ensure();
	strbuf_puts(out, PyUnicode_AsUTF8(((PythonBackend *)ctx)->version)); /* checked when it was registered */
	PyGILState_Release(gil);
	return CLV_OK;
}

static clv_status py_fits(void *ctx, const compiled *c, const code_spec *s, arena *a, const char **reason)
{
	*reason = NULL;
	return CLV_OK;
}

static clv_status take_member(PyObject *key, PyObject *data, compiled *out)
{
	const char *name = PyUnicode_AsUTF8(key);
	char *bytes;
	Py_ssize_t n;
	if (!name || PyBytes_AsStringAndSize(data, &bytes, &n) < 0)
		return python_failed("compile");
	compiled_member m = {.name = arena_str(&out->arena, name), .n = (size_t)n};
	void *copy = mem_alloc((size_t)n + 1);
	if (!m.name || !copy || vec_push(&out->owned, copy) != CLV_OK) {
		mem_free(copy);
		return fail_nomem();
	}
	m.data = memcpy(copy, bytes, (size_t)n);
	return vec_push(&out->members, m);
}

static clv_status py_compile(void *ctx, const char *dir, compiled *out)
{
	const PythonBackend *b = ctx;
	PyGILState_STATE gil = PyGILState_Ensure();
	PyObject *dict = PyObject_CallFunction(b->compile, "s", dir), *key, *data;
	Py_ssize_t at = 0;
	clv_status st = dict ? CLV_OK : python_failed("compile");
	if (dict && !PyDict_Check(dict))
		st = fail(CLV_E_INVALID, "compile gave something else than a dict of bytes");
	while (st == CLV_OK && PyDict_Next(dict, &at, &key, &data))
		st = take_member(key, data, out);
	Py_XDECREF(dict);
	PyGILState_Release(gil);
	return st;
}

static PyObject *members_to(const compiled *c)
{
	PyObject *dict = PyDict_New();
	for (uint32_t i = 0; dict && i < c->members.n; i++) {
		const compiled_member *m = &c->members.at[i];
		dict_put(&dict, m->name, PyBytes_FromStringAndSize(m->data, (Py_ssize_t)m->n));
	}
	return dict;
}

static clv_status py_load(void *ctx, const compiled *c, const code_spec *s, void **out)
{
	const PythonBackend *b = ctx;
	PyGILState_STATE gil = PyGILState_Ensure();
	PyObject *dict = members_to(c);
	PyObject *loaded = dict ? PyObject_CallOneArg(b->load, dict) : NULL;
	clv_status st = loaded ? CLV_OK : python_failed("load");
	*out = loaded;
	Py_XDECREF(dict);
	PyGILState_Release(gil);
	return st;
}

static PyObject *tensors_to(br_tensor *const *t, uint32_t n)
{
	PyObject *list = PyList_New(0);
	for (uint32_t i = 0; list && i < n; i++)
		list_push(&list, py_wrap(br_ref(t[i])));
	return list;
}

static clv_status take_outputs(PyObject *given, uint32_t n, br_tensor **outputs)
{
	PyObject *fast = PySequence_Fast(given, "run gives a list of tensors");
	if (!fast)
		return python_failed("run");
	clv_status st = CLV_OK;
	if (PySequence_Fast_GET_SIZE(fast) != (Py_ssize_t)n)
		st = fail(CLV_E_UNSUPPORTED, "run gave %zd tensors, %u are needed", PySequence_Fast_GET_SIZE(fast), n);
	for (uint32_t i = 0; st == CLV_OK && i < n; i++)
		if (!py_borrow(PySequence_Fast_GET_ITEM(fast, i)))
			st = fail(CLV_E_UNSUPPORTED, "run gave something that is no tensor");
	for (uint32_t i = 0; st == CLV_OK && i < n; i++)
		outputs[i] = br_ref(py_borrow(PySequence_Fast_GET_ITEM(fast, i)));
	Py_DECREF(fast);
	return st;
}

static clv_status py_run(void *ctx, void *loaded, const code_run *r)
{
	const PythonBackend *b = ctx;
	PyGILState_STATE gil = PyGILState_Ensure();
	PyObject *list = tensors_to(r->inputs, r->ninputs);
	PyObject *out = list ? PyObject_CallFunctionObjArgs(b->run, (PyObject *)loaded, list, NULL) : NULL;
	clv_status st = out ? take_outputs(out, r->noutputs, r->outputs) : python_failed("run");
	Py_XDECREF(out);
	Py_XDECREF(list);
	PyGILState_Release(gil);
	return st;
}

static void py_unload(void *ctx, void *loaded)
{
	if (!Py_IsInitialized())
		return;
	PyGILState_STATE gil = PyGILState_Ensure();
	Py_DECREF((PyObject *)loaded);
	PyGILState_Release(gil);
}

PyObject *register_backend_py(PyObject *self, PyObject *args)
{
	PythonBackend given;
	backend b = {.support = py_support,
	             .check_args = py_check_args,
	             .compile = py_compile,
	             .version = py_version,
	             .fits = py_fits,
	             .load = py_load,
	             .run = py_run,
	             .unload = py_unload};
	if (!PyArg_ParseTuple(args, "sOOOOU", &b.name, &given.support, &given.compile, &given.load, &given.run,
	                      &given.version) ||
	    !PyUnicode_AsUTF8(given.version))
		return NULL;
	PythonBackend *kept = PyMem_Malloc(sizeof *kept);
	if (!kept)
		return PyErr_NoMemory();
	*kept = given;
	b.ctx = kept;
	clv_status st = backend_add(&b);
	if (st != CLV_OK) {
		PyMem_Free(kept);
		return raise_status(st);
	}
	Py_INCREF(kept->support);
	Py_INCREF(kept->compile);
	Py_INCREF(kept->load);
	Py_INCREF(kept->run);
	Py_INCREF(kept->version);
	Py_RETURN_NONE;
}
