/* Back ends by name, without a plan around them: what they take, whether they are here, one piece of code and its runs. */
#include "_native.h"

#include "exec/backend.h"
#include "exec/openvino_api.h"

/* ---- what they say ---------------------------------------------------------------------------------------------------- */

/* backend_version(name) -> str */
PyObject *backend_version_py(PyObject *self, PyObject *args)
{
	const backend *b;
	const char *name;
	strbuf out = STRBUF_INIT;
	if (!take(NULL, args, "s", &name))
		return NULL;
	clv_status st = backend_find(name, &b);
	if (st == CLV_OK && b->version)
		st = b->version(b->ctx, &out);
	return take_text(st, &out);
}

/* backend_check_args(name, arguments): raises what it does not take */
PyObject *backend_check_args_py(PyObject *self, PyObject *args)
{
	call c = {0};
	const backend *b;
	const char *name, **texts;
	uint32_t n;
	bool ok = take(&c, args, "sS", &name, &texts, &n) && ok_or_raise(backend_find(name, &b));
	return call_end(&c, ok ? none_or_raise(b->check_args ? b->check_args(b->ctx, texts, n) : CLV_OK) : NULL);
}

/* backend_support(plan, back end, dynamic) -> per node None, or why it is not taken */
PyObject *backend_support_py(PyObject *self, PyObject *args)
{
	call c = {0};
	PlanObject *o;
	const char *name;
	support_spec s;
	arena a = {0};
	PyObject *out = NULL;
	if (!take(NULL, args, "!sp", &PlanType, &o, &name, &s.dynamic))
		return NULL;
	const char **no = call_room(&c, o->p->nodes.n, sizeof *no);
	if (no && ok_or_raise(support_of(name, o->p, &s, no, &a))) {
		LIST(reasons, o->p->nodes.n, text_or_none(no[i]));
		out = reasons;
	}
	arena_free(&a);
	return call_end(&c, out);
}

/* openvino_set_folder(folder or None) */
PyObject *openvino_set_folder_py(PyObject *self, PyObject *args)
{
	const char *folder;
	return take(NULL, args, "z", &folder) ? none_or_raise(openvino_set_folder(folder)) : NULL;
}

/* ---- one piece of code -------------------------------------------------------------------------------------------------- */

typedef struct CodeObject {
	PyObject_HEAD
	const backend *b;
	void *loaded;
	uint32_t ninputs, noutputs;
} CodeObject;

static void code_py_dealloc(CodeObject *o)
{
	if (o->loaded)
		o->b->unload(o->b->ctx, o->loaded);
	Py_TYPE(o)->tp_free((PyObject *)o);
}

/* {name: bytes} and {key: text}; the bytes are borrowed from the dict. */
static clv_status read_compiled(PyObject *members, PyObject *needs, compiled *out)
{
	Py_ssize_t at = 0;
	const char *name, *text;
	PyObject *item;
	while (next_text(members, &at, &name, &item)) {
		if (!PyBytes_Check(item))
			return fail(CLV_E_INVALID, "members are names and bytes");
		TRY(vec_push(&out->members,
		             ((compiled_member){name, PyBytes_AS_STRING(item), (size_t)PyBytes_GET_SIZE(item)})));
	}
	for (at = 0; next_text(needs, &at, &name, &item);) {
		if (!(text = PyUnicode_AsUTF8(item)))
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

/* Code(back end, members, needs, device, inputs, outputs) */
static PyObject *code_py_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	const char *name;
	PyObject *members, *needs;
	code_spec s = {0};
	compiled c = {0};
	if (!take(NULL, args, "s{{sII", &name, &members, &needs, &s.device, &s.ninputs, &s.noutputs))
		return NULL;
	CodeObject *o = (CodeObject *)type->tp_alloc(type, 0);
	if (!o)
		return NULL;
	o->ninputs = s.ninputs;
	o->noutputs = s.noutputs;
	clv_status st = backend_find(name, &o->b);
	if (st == CLV_OK)
		st = read_compiled(members, needs, &c);
	if (st == CLV_OK)
		st = code_load(o, &c, &s);
	compiled_free(&c);
	if (!ok_or_raise(st))
		Py_CLEAR(o);
	return (PyObject *)o;
}

/* Tensors like the outputs say what is wanted. */
static clv_status run_like(CodeObject *o, br_tensor *const *in, br_tensor *const *like, tensor_form *wanted,
                           br_tensor **out)
{
	for (uint32_t i = 0; i < o->noutputs; i++) {
		br_meta m;
		TRY(br_meta_get(like[i], &m));
		wanted[i] = (tensor_form){.dtype = m.dtype, .ndim = m.ndim, .sizes = m.sizes};
	}
	const code_run r = {.inputs = in, .ninputs = o->ninputs, .noutputs = o->noutputs, .wanted = wanted, .outputs = out};
	return o->b->run(o->b->ctx, o->loaded, &r);
}

/* run(inputs, tensors like the outputs) -> outputs */
static PyObject *code_py_run(CodeObject *o, PyObject *args)
{
	call c = {0};
	br_tensor **in, **like;
	uint32_t n, k;
	if (!take(&c, args, "TT", &in, &n, &like, &k))
		return call_end(&c, NULL);
	if (n != o->ninputs || k != o->noutputs)
		return call_end(&c, PyErr_Format(PyExc_ValueError, "it has %u inputs and %u outputs", o->ninputs, o->noutputs));
	tensor_form *wanted = call_room(&c, k, sizeof *wanted);
	br_tensor **out = wanted ? call_room(&c, k, sizeof *out) : NULL;
	if (!out || !ok_or_raise(UNLOCKED(run_like(o, in, like, wanted, out))))
		return call_end(&c, NULL);
	LIST(list, k, py_wrap(out[i]));
	return call_end(&c, list);
}

METHODS(code_py, TAKES(code_py, run));
TYPE(Code, CodeObject, code_py, 0, .tp_new = code_py_new);
