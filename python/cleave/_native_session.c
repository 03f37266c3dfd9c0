/* RemoteSession: a session of training on a server. Boundaries and answers cross as bytes. */
#include "_native.h"

#include "remote/remote.h"

typedef struct SessionObject {
	PyObject_HEAD
	PyObject *remote; /* which it asks; owned */
	clv_remote_session *s;
} SessionObject;

/* RemoteSession(remote, id or None, member or None, shared, accumulate, seed or None) */
static PyObject *session_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	clv_remote_session_options o = CLV_REMOTE_SESSION_OPTIONS_INIT;
	PyObject *remote, *seed;
	int shared;
	clv_remote_session *s = NULL;
	clv_status st;
	if (!PyArg_ParseTuple(args, "O!zzpIO", &RemoteType, &remote, &o.id, &o.member, &shared, &o.accumulate, &seed))
		return NULL;
	o.shared = shared != 0;
	o.has_seed = seed != Py_None;
	if (o.has_seed)
		o.seed = PyLong_AsUnsignedLongLong(seed);
	if (PyErr_Occurred())
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	st = clv_remote_session_open(remote_of(remote), &o, &s);
	Py_END_ALLOW_THREADS
	if (st != CLV_OK)
		return raise_remote(st);
	SessionObject *self = (SessionObject *)type->tp_alloc(type, 0);
	if (!self) {
		clv_remote_session_free(s);
		return NULL;
	}
	self->remote = Py_NewRef(remote);
	self->s = s;
	return (PyObject *)self;
}

static void session_dealloc(SessionObject *o)
{
	clv_remote_session_free(o->s);
	Py_XDECREF(o->remote);
	Py_TYPE(o)->tp_free((PyObject *)o);
}

static PyObject *session_id(SessionObject *o, PyObject *unused)
{
	return PyUnicode_FromString(clv_remote_session_id(o->s));
}

static PyObject *session_steps(SessionObject *o, PyObject *unused)
{
	return PyLong_FromUnsignedLongLong(clv_remote_session_steps(o->s));
}

/* train(boundary as bytes, targets) -> (answer as a payload's bytes, times) */
static PyObject *session_train(SessionObject *o, PyObject *args)
{
	Py_buffer boundary;
	PyObject *seq, *out = NULL;
	Py_ssize_t n;
	clv_remote_times t = {.size = sizeof t};
	remote_answer a;
	clv_status st;
	if (!PyArg_ParseTuple(args, "y*O", &boundary, &seq))
		return NULL;
	clv_tensor **targets = core_array(seq, &n);
	if (targets) {
		Py_BEGIN_ALLOW_THREADS
		st = remote_train_bytes(o->s, boundary.buf, (size_t)boundary.len, (const clv_tensor *const *)targets,
		                        (uint32_t)n, &a, &t);
		Py_END_ALLOW_THREADS
		out = st == CLV_OK ? Py_BuildValue("(y#N)", a.body, (Py_ssize_t)a.n, times_to(&t)) : raise_remote(st);
		if (st == CLV_OK)
			remote_answer_free(&a);
		core_free(targets, n);
	}
	PyBuffer_Release(&boundary);
	return out;
}

/* apply_tied([names], tensors) */
static PyObject *session_apply_tied(SessionObject *o, PyObject *args)
{
	PyObject *list, *seq;
	Py_ssize_t n;
	clv_status st = CLV_OK;
	if (!PyArg_ParseTuple(args, "O!O", &PyList_Type, &list, &seq))
		return NULL;
	clv_tensor **gradients = core_array(seq, &n);
	const char **names = gradients ? PyMem_Calloc((size_t)n + 1, sizeof *names) : NULL;
	bool good = names && n == PyList_GET_SIZE(list);
	for (Py_ssize_t i = 0; good && i < n; i++)
		good = (names[i] = PyUnicode_AsUTF8(PyList_GET_ITEM(list, i)));
	if (good) {
		Py_BEGIN_ALLOW_THREADS
		st = clv_remote_apply_tied(o->s, names, (const clv_tensor *const *)gradients, (uint32_t)n);
		Py_END_ALLOW_THREADS
	} else if (!PyErr_Occurred()) {
		PyErr_SetString(PyExc_ValueError, "there is a name for each gradient");
	}
	PyMem_Free(names);
	if (gradients)
		core_free(gradients, n);
	if (!good)
		return NULL;
	if (st != CLV_OK)
		return raise_remote(st);
	Py_RETURN_NONE;
}

static PyObject *session_state(SessionObject *o, PyObject *unused)
{
	void *data = NULL;
	size_t n = 0;
	clv_status st;
	Py_BEGIN_ALLOW_THREADS
	st = clv_remote_session_state(o->s, &data, &n);
	Py_END_ALLOW_THREADS
	if (st != CLV_OK)
		return raise_remote(st);
	PyObject *out = PyBytes_FromStringAndSize(data, (Py_ssize_t)n);
	clv_free(data);
	return out;
}

static PyObject *session_end(SessionObject *o, PyObject *unused)
{
	clv_status st;
	Py_BEGIN_ALLOW_THREADS
	st = clv_remote_session_end(o->s);
	Py_END_ALLOW_THREADS
	if (st != CLV_OK)
		return raise_remote(st);
	Py_RETURN_NONE;
}

static PyMethodDef session_methods[] = {
	{"id", (PyCFunction)session_id, METH_NOARGS, "as the server calls it"},
	{"steps", (PyCFunction)session_steps, METH_NOARGS, "steps whose answers came"},
	{"train", (PyCFunction)session_train, METH_VARARGS, "train(bytes, targets): the answer as bytes, and times"},
	{"apply_tied", (PyCFunction)session_apply_tied, METH_VARARGS, "apply_tied(names, gradients)"},
	{"state", (PyCFunction)session_state, METH_NOARGS, "what it has learned, as bytes"},
	{"end", (PyCFunction)session_end, METH_NOARGS, "ends it on the server"},
	{NULL, NULL, 0, NULL}};

PyTypeObject RemoteSessionType = {PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cleave._native.RemoteSession",
                                  .tp_basicsize = sizeof(SessionObject),
                                  .tp_flags = Py_TPFLAGS_DEFAULT,
                                  .tp_new = session_new,
                                  .tp_dealloc = (destructor)session_dealloc,
                                  .tp_methods = session_methods};
