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
		artifact_sizes s;
		if (!take(NULL, PyList_GET_ITEM(list, i), "LL", &s.low, &s.high) || !ok_or_raise(vec_push(&out->sizes, s)))
			return false;
	}
	return true;
}

/* Names and bytes are borrowed from the dict. */
static bool read_members(PyObject *dict, artifact_segment *out)
{
	Py_ssize_t at = 0, n;
	const char *name;
	char *bytes;
	PyObject *data;
	while (next_text(dict, &at, &name, &data))
		if (PyBytes_AsStringAndSize(data, &bytes, &n) < 0 ||
		    !ok_or_raise(vec_push(&out->members, ((artifact_member){.name = name, .data = bytes, .n = (size_t)n}))))
			return false;
	return !PyErr_Occurred();
}

static bool read_needs(PyObject *dict, artifact_segment *out)
{
	Py_ssize_t at = 0;
	artifact_note note;
	PyObject *text;
	while (next_text(dict, &at, &note.key, &text))
		if (!(note.text = PyUnicode_AsUTF8(text)) || !ok_or_raise(vec_push(&out->needs, note)))
			return false;
	return !PyErr_Occurred();
}

bool segment_read(PyObject *item, artifact_segment *out)
{
	call c = {0};
	PyObject *sizes, *members, *needs = NULL;
	uint32_t *in, *to, nin, nto;
	bool ok = take(&c, item, "IIs[UU{|{", &out->first, &out->end, &out->backend, &sizes, &in, &nin, &to, &nto, &members,
	               &needs) &&
	          read_sizes(sizes, out) && read_members(members, out) && (!needs || read_needs(needs, out));
	for (uint32_t i = 0; ok && i < nin; i++)
		ok = ok_or_raise(vec_push(&out->in_order, in[i]));
	for (uint32_t i = 0; ok && i < nto; i++)
		ok = ok_or_raise(vec_push(&out->out_order, to[i]));
	call_end(&c, NULL);
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
	call c = {0};
	const char **texts;
	uint32_t n;
	clv_status st = take_array(&c, 'N', list, &texts, &n) ? CLV_OK : python_failed("supports");
	if (st == CLV_OK && n != p->nodes.n)
		st = fail(CLV_E_INVALID, "supports gave something else than a list with an entry per node");
	for (node_id i = 0; st == CLV_OK && i < n; i++) {
		no[i] = texts[i] ? arena_str(a, texts[i]) : NULL;
		st = texts[i] && !no[i] ? fail_nomem() : CLV_OK;
	}
	call_end(&c, NULL);
	return st;
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

static clv_status take_member(const char *name, PyObject *data, compiled *out)
{
	char *bytes;
	Py_ssize_t n;
	if (PyBytes_AsStringAndSize(data, &bytes, &n) < 0)
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
	PyObject *dict = PyObject_CallFunction(b->compile, "s", dir), *data;
	Py_ssize_t at = 0;
	const char *name;
	clv_status st = dict ? CLV_OK : python_failed("compile");
	if (dict && !PyDict_Check(dict))
		st = fail(CLV_E_INVALID, "compile gave something else than a dict of bytes");
	while (st == CLV_OK && next_text(dict, &at, &name, &data))
		st = take_member(name, data, out);
	if (st == CLV_OK && PyErr_Occurred())
		st = python_failed("compile");
	Py_XDECREF(dict);
	PyGILState_Release(gil);
	return st;
}

static PyObject *members_to(const compiled *c)
{
	const compiled_member *m = c->members.at;
	DICT(dict, c->members.n, m[i].name, PyBytes_FromStringAndSize(m[i].data, (Py_ssize_t)m[i].n));
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
	LIST(list, r->ninputs, py_wrap(br_ref(r->inputs[i])));
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
	if (!take(NULL, args, "sOOOOO", &b.name, &given.support, &given.compile, &given.load, &given.run, &given.version) ||
	    !PyUnicode_AsUTF8(given.version))
		return NULL;
	PythonBackend *kept = PyMem_Malloc(sizeof *kept);
	if (!kept)
		return PyErr_NoMemory();
	*kept = given;
	b.ctx = kept;
	if (!ok_or_raise(backend_add(&b))) {
		PyMem_Free(kept);
		return NULL;
	}
	Py_INCREF(kept->support);
	Py_INCREF(kept->compile);
	Py_INCREF(kept->load);
	Py_INCREF(kept->run);
	Py_INCREF(kept->version);
	Py_RETURN_NONE;
}
