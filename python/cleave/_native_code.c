/* Back ends by name, without a plan around them: what they take, whether they are here, one piece of code and its runs. */
#include "_native.h"

#include "exec/backend.h"
#include "exec/openvino_api.h"

/* ---- what they say ---------------------------------------------------------------------------------------------------- */

/* backend_version(name) -> str */
PyObject *backend_version_py(PyObject *self, PyObject *name)
{
	const backend *b;
	strbuf out = STRBUF_INIT;
	const char *s = PyUnicode_AsUTF8(name);
	if (!s)
		return NULL;
	clv_status st = backend_find(s, &b);
	if (st == CLV_OK && b->version)
		st = b->version(b->ctx, &out);
	return take_text(st, &out);
}

PyObject *backend_check_args_py(PyObject *self, PyObject *args)
{
	const backend *b;
	const char *name;
	PyObject *list;
	uint32_t n;
	if (!PyArg_ParseTuple(args, "sO!", &name, &PyList_Type, &list))
		return NULL;
	const char **texts = string_array(list, &n);
	if (!texts)
		return NULL;
	clv_status st = backend_find(name, &b);
	if (st == CLV_OK && b->check_args)
		st = b->check_args(b->ctx, texts, n);
	PyMem_Free(texts);
	return none_or_raise(st);
}

static PyObject *reasons(const char *const *no, uint32_t n)
{
	PyObject *list = PyList_New(0);
	for (uint32_t i = 0; list && i < n; i++)
		list_push(&list, no[i] ? PyUnicode_FromString(no[i]) : Py_NewRef(Py_None));
	return list;
}

/* (plan, back end, dynamic) */
PyObject *backend_support_py(PyObject *self, PyObject *args)
{
	PlanObject *o;
	const char *name;
	support_spec s;
	int dynamic;
	arena a = {0};
	if (!PyArg_ParseTuple(args, "O!sp", &PlanType, &o, &name, &dynamic))
		return NULL;
	const char **no = PyMem_Calloc((size_t)o->p->nodes.n + 1, sizeof *no);
	if (!no)
		return PyErr_NoMemory();
	s.dynamic = dynamic;
	clv_status st = support_of(name, o->p, &s, no, &a);
	PyObject *list = st == CLV_OK ? reasons(no, o->p->nodes.n) : raise_status(st);
	PyMem_Free(no);
	arena_free(&a);
	return list;
}

PyObject *openvino_set_folder_py(PyObject *self, PyObject *folder)
{
	const char *s = folder == Py_None ? NULL : PyUnicode_AsUTF8(folder);
	if (PyErr_Occurred())
		return NULL;
	return none_or_raise(openvino_set_folder(s));
}

/* ---- one piece of code -------------------------------------------------------------------------------------------------- */

typedef struct CodeObject {
	PyObject_HEAD
	const backend *b;
	void *loaded;
	uint32_t ninputs, noutputs;
} CodeObject;

static void code_dealloc(CodeObject *o)
{
	if (o->loaded)
		o->b->unload(o->b->ctx, o->loaded);
	Py_TYPE(o)->tp_free((PyObject *)o);
}

/* {name: bytes} and {key: text}; the bytes are borrowed from the dict. */
static clv_status read_compiled(PyObject *members, PyObject *needs, compiled *out)
{
	Py_ssize_t at = 0;
	PyObject *key, *item;
	while (PyDict_Next(members, &at, &key, &item)) {
		const char *name = PyUnicode_AsUTF8(key);
		if (!name || !PyBytes_Check(item))
			return fail(CLV_E_INVALID, "members are names and bytes");
		TRY(vec_push(&out->members,
		             ((compiled_member){name, PyBytes_AS_STRING(item), (size_t)PyBytes_GET_SIZE(item)})));
	}
	for (at = 0; PyDict_Next(needs, &at, &key, &item);) {
		const char *name = PyUnicode_AsUTF8(key), *text = PyUnicode_AsUTF8(item);
		if (!name || !text)
			return fail(CLV_E_INVALID, "needs are texts");
		TRY(compiled_need(out, name, text));
	}
	return CLV_OK;
}

static clv_status code_load(CodeObject *o, const compiled *c, const code_spec *s)
{
	arena a = {0};
	const char *reason = NULL;
	clv_status st = o->b->fits(o->b->ctx, c, s, &a, &reason);
	if (st == CLV_OK && reason)
		st = fail(CLV_E_UNSUPPORTED, "%s", reason);
	arena_free(&a);
	return st == CLV_OK ? o->b->load(o->b->ctx, c, s, &o->loaded) : st;
}

/* (back end, members, needs, device, inputs, outputs) */
static PyObject *code_new_py(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	const char *name;
	PyObject *members, *needs;
	code_spec s = {0};
	if (!PyArg_ParseTuple(args, "sO!O!sII", &name, &PyDict_Type, &members, &PyDict_Type, &needs, &s.device, &s.ninputs,
	                      &s.noutputs))
		return NULL;
	CodeObject *o = (CodeObject *)type->tp_alloc(type, 0);
	if (!o)
		return NULL;
	compiled c = {0};
	o->ninputs = s.ninputs;
	o->noutputs = s.noutputs;
	clv_status st = backend_find(name, &o->b);
	if (st == CLV_OK)
		st = read_compiled(members, needs, &c);
	if (st == CLV_OK)
		st = code_load(o, &c, &s);
	compiled_free(&c);
	if (st == CLV_OK)
		return (PyObject *)o;
	Py_DECREF(o);
	return raise_status(st);
}

/* Tensors like the outputs say what is wanted. */
static clv_status wanted_like(br_tensor *const *like, uint32_t n, tensor_form *out)
{
	for (uint32_t i = 0; i < n; i++) {
		br_meta m;
		TRY(br_meta_get(like[i], &m));
		out[i] = (tensor_form){.dtype = m.dtype, .ndim = m.ndim, .sizes = m.sizes};
	}
	return CLV_OK;
}

static PyObject *run_code(CodeObject *o, br_tensor **in, br_tensor **like)
{
	tensor_form *wanted = PyMem_Calloc(o->noutputs + 1, sizeof *wanted);
	br_tensor **out = PyMem_Calloc(o->noutputs + 1, sizeof *out);
	PyObject *list = NULL;
	if (wanted && out) {
		clv_status st = wanted_like(like, o->noutputs, wanted);
		Py_BEGIN_ALLOW_THREADS;
		if (st == CLV_OK)
			st = o->b->run(
				o->b->ctx, o->loaded,
				&(code_run){
					.inputs = in, .ninputs = o->ninputs, .noutputs = o->noutputs, .wanted = wanted, .outputs = out});
		Py_END_ALLOW_THREADS;
		list = st == CLV_OK ? PyList_New(o->noutputs) : raise_status(st);
	} else {
		PyErr_NoMemory();
	}
	for (uint32_t i = 0; list && i < o->noutputs; i++)
		PyList_SET_ITEM(list, i, py_wrap(br_ref(out[i])));
	for (uint32_t i = 0; out && i < o->noutputs; i++)
		br_unref(out[i]);
	PyMem_Free(wanted);
	PyMem_Free(out);
	return list;
}

static PyObject *code_py_run(CodeObject *o, PyObject *args)
{
	PyObject *inputs, *like, *out = NULL;
	Py_ssize_t n = 0, k = 0;
	if (!PyArg_ParseTuple(args, "OO", &inputs, &like))
		return NULL;
	br_tensor **in = tensor_array(inputs, &n), **want = in ? tensor_array(like, &k) : NULL;
	if (want && (n != o->ninputs || k != o->noutputs))
		PyErr_Format(PyExc_ValueError, "it has %u inputs and %u outputs", o->ninputs, o->noutputs);
	else if (want)
		out = run_code(o, in, want);
	if (in)
		tensors_free(in, n);
	if (want)
		tensors_free(want, k);
	return out;
}

static PyMethodDef code_methods[] = {
	{"run", (PyCFunction)code_py_run, METH_VARARGS, "(inputs, tensors like the outputs) -> outputs"},
	{NULL, NULL, 0, NULL}};

PyTypeObject CodeType = {
	PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cleave._native.Code",
	.tp_basicsize = sizeof(CodeObject),
	.tp_flags = Py_TPFLAGS_DEFAULT,
	.tp_new = code_new_py,
	.tp_dealloc = (destructor)code_dealloc,
	.tp_methods = code_methods,
};
