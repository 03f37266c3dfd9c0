/* Follower: a model whose calls run here, on a server or in part on both, whichever is fastest over the link now. */
#include "_native.h"

typedef struct FollowerObject {
	PyObject_HEAD
	clv_follower *f;
} FollowerObject;

/* Names that live as long as the list does. */
static bool read_methods(PyObject *list, clv_follow_options *o)
{
	if (list == Py_None)
		return true;
	if (!PyList_Check(list)) {
		PyErr_SetString(PyExc_TypeError, "ways to compress are a list");
		return false;
	}
	Py_ssize_t n = PyList_GET_SIZE(list);
	const char **at = PyMem_Calloc((size_t)n + 1, sizeof *at);
	if (!at) {
		PyErr_NoMemory();
		return false;
	}
	o->compress = at;
	o->ncompress = (uint32_t)n;
	for (Py_ssize_t i = 0; i < n; i++)
		if (!(at[i] = PyUnicode_AsUTF8(PyList_GET_ITEM(list, i))))
			return false;
	return true;
}

/* Follower(arguments of Runtime, arguments of Remote, [ways to compress] or None, max_error, max_cuts, check,
            gain, away, look) */
static PyObject *follower_py_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	PyObject *runtime, *remote, *methods;
	clv_artifact *a;
	const char *url;
	clv_runtime_options here = CLV_RUNTIME_OPTIONS_INIT;
	clv_remote_options there = CLV_REMOTE_OPTIONS_INIT;
	clv_link_options link = CLV_LINK_OPTIONS_INIT;
	clv_follow_options o = CLV_FOLLOW_OPTIONS_INIT;
	clv_follower *f = NULL;
	clv_status st;
	if (!PyArg_ParseTuple(args, "O!O!Odidddd", &PyTuple_Type, &runtime, &PyTuple_Type, &remote, &methods, &o.max_error,
	                      &o.max_cuts, &o.check, &link.gain, &link.away, &link.look) ||
	    !runtime_arguments(runtime, &a, &here) || !remote_arguments(remote, &url, &there))
		return NULL;
	if (!read_methods(methods, &o)) {
		PyMem_Free((void *)o.compress);
		return NULL;
	}
	o.remote = &there;
	o.runtime = &here;
	o.link = &link;
	Py_BEGIN_ALLOW_THREADS
	st = clv_follower_new(a, url, &o, &f);
	Py_END_ALLOW_THREADS
	PyMem_Free((void *)o.compress);
	if (st != CLV_OK)
		return raise_remote(st);
	FollowerObject *self = (FollowerObject *)type->tp_alloc(type, 0);
	if (self)
		self->f = f;
	else
		clv_follower_free(f);
	return (PyObject *)self;
}

static void follower_py_dealloc(FollowerObject *o)
{
	Py_BEGIN_ALLOW_THREADS
	clv_follower_free(o->f);
	Py_END_ALLOW_THREADS
	Py_TYPE(o)->tp_free((PyObject *)o);
}

static PyObject *followed_to(clv_tensor **outputs, uint32_t n, const clv_followed *how)
{
	PyObject *result = result_to(outputs, n, &how->times);
	return result ? Py_BuildValue("(NIOdd)", result, how->way, how->remote ? Py_True : Py_False, how->here, how->total)
	              : NULL;
}

/* run(tensors) -> ((outputs, times), way, whether the server had a part in it, seconds here, seconds) */
static PyObject *follower_py_run(FollowerObject *o, PyObject *tensors)
{
	Py_ssize_t n;
	clv_followed how = {.size = sizeof how};
	uint32_t noutputs = clv_runtime_output_count(clv_follower_runtime(o->f));
	clv_status st;
	clv_tensor **inputs = core_array(tensors, &n);
	if (!inputs)
		return NULL;
	clv_tensor **outputs = PyMem_Calloc((size_t)noutputs + 1, sizeof *outputs);
	if (!outputs) {
		core_free(inputs, n);
		return PyErr_NoMemory();
	}
	Py_BEGIN_ALLOW_THREADS
	st = clv_follower_run(o->f, (const clv_tensor *const *)inputs, (uint32_t)n, outputs, noutputs, &how);
	Py_END_ALLOW_THREADS
	PyObject *out = st == CLV_OK ? followed_to(outputs, noutputs, &how) : raise_remote(st);
	PyMem_Free(outputs);
	core_free(inputs, n);
	return out;
}

static PyObject *follower_py_ways(FollowerObject *o, PyObject *unused)
{
	PyObject *out = PyList_New(0);
	for (uint32_t i = 0; out && i < clv_follower_count(o->f); i++) {
		clv_follow_state s = {.size = sizeof s};
		if (clv_follower_way(o->f, i, &s) != CLV_OK) {
			Py_DECREF(out);
			return raise_status(CLV_E_INVALID);
		}
		list_push(&out, Py_BuildValue("(szzOddddLLdK)", s.name, s.cut, s.compress, s.remote ? Py_True : Py_False,
		                              s.seconds, s.here, s.there, s.codec, (long long)s.sent, (long long)s.received,
		                              s.error, (unsigned long long)s.calls));
	}
	return out;
}

static PyObject *follower_py_reason(FollowerObject *o, PyObject *unused)
{
	char *text = NULL;
	clv_status st = clv_follower_reason(o->f, &text);
	if (st != CLV_OK)
		return raise_status(st);
	PyObject *out = text ? PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace") : Py_NewRef(Py_None);
	clv_free(text);
	return out;
}

static PyObject *follower_py_link(FollowerObject *o, PyObject *unused)
{
	double rtt, rate;
	clv_follower_link(o->f, &rtt, &rate);
	return Py_BuildValue("(dd)", rtt, rate);
}

static PyMethodDef follower_methods[] = {
	{"run", (PyCFunction)follower_py_run, METH_O, "run(tensors): outputs and times, way, remote, here, total"},
	{"ways", (PyCFunction)follower_py_ways, METH_NOARGS, "the ways, and what is known of each"},
	{"reason", (PyCFunction)follower_py_reason, METH_NOARGS, "why the last call to the server failed"},
	{"link", (PyCFunction)follower_py_link, METH_NOARGS, "(round trip, bytes per second)"},
	{NULL, NULL, 0, NULL}};

PyTypeObject FollowerType = {PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cleave._native.Follower",
                             .tp_basicsize = sizeof(FollowerObject),
                             .tp_flags = Py_TPFLAGS_DEFAULT,
                             .tp_new = follower_py_new,
                             .tp_dealloc = (destructor)follower_py_dealloc,
                             .tp_methods = follower_methods};
