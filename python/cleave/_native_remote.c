/* Remote: a client of a server. Link: which way to divide a call is fastest over a link. */
#include "_native.h"

#include "remote/remote.h"

typedef struct RemoteObject {
	PyObject_HEAD
	clv_remote *r;
} RemoteObject;

/* A server that is away or talks nonsense has a class of its own; a model that it has not is a wrong argument. */
PyObject *raise_remote(clv_status st)
{
	if (st != CLV_E_IO && st != CLV_E_PARSE && st != CLV_E_NOT_FOUND)
		return raise_status(st);
	PyErr_SetString(error_class(st == CLV_E_NOT_FOUND ? CLV_E_INVALID : E_REMOTE), clv_last_error());
	return NULL;
}

bool remote_arguments(PyObject *args, const char **url, clv_remote_options *o)
{
	int insecure, lazy;
	if (!PyArg_ParseTuple(args, "szzzzddiipp", url, &o->token, &o->ca, &o->cert, &o->key, &o->timeout,
	                      &o->connect_timeout, &o->retries, &o->connections, &insecure, &lazy))
		return false;
	o->insecure = insecure != 0;
	o->lazy = lazy != 0;
	return true;
}

/* Remote(url, token, ca, cert, key, timeout, connect_timeout, retries, connections, insecure, lazy) */
static PyObject *remote_py_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	clv_remote_options o = CLV_REMOTE_OPTIONS_INIT;
	const char *url;
	clv_remote *r = NULL;
	clv_status st;
	if (!remote_arguments(args, &url, &o))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	st = clv_remote_connect(url, &o, &r);
	Py_END_ALLOW_THREADS
	if (st != CLV_OK)
		return raise_remote(st);
	RemoteObject *self = (RemoteObject *)type->tp_alloc(type, 0);
	if (self)
		self->r = r;
	else
		clv_remote_free(r);
	return (PyObject *)self;
}

clv_remote *remote_of(PyObject *o)
{
	return ((RemoteObject *)o)->r;
}

static void remote_py_dealloc(RemoteObject *o)
{
	Py_BEGIN_ALLOW_THREADS
	clv_remote_free(o->r);
	Py_END_ALLOW_THREADS
	Py_TYPE(o)->tp_free((PyObject *)o);
}

static PyObject *remote_py_metadata(RemoteObject *o, PyObject *unused)
{
	const char *text = NULL;
	clv_status st;
	Py_BEGIN_ALLOW_THREADS
	st = clv_remote_metadata(o->r, &text);
	Py_END_ALLOW_THREADS
	return st == CLV_OK ? PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace") : raise_remote(st);
}

static PyObject *remote_py_inputs(RemoteObject *o, PyObject *unused)
{
	return ports_to(o->r->ports[0], o->r->nports[0]);
}

static PyObject *remote_py_outputs(RemoteObject *o, PyObject *unused)
{
	return ports_to(o->r->ports[1], o->r->nports[1]);
}

static PyObject *remote_py_ping(RemoteObject *o, PyObject *unused)
{
	double seconds = 0;
	clv_status st;
	Py_BEGIN_ALLOW_THREADS
	st = clv_remote_ping(o->r, &seconds);
	Py_END_ALLOW_THREADS
	return st == CLV_OK ? PyFloat_FromDouble(seconds) : raise_remote(st);
}

PyObject *times_to(const clv_remote_times *t)
{
	return Py_BuildValue("(dddddddddLLI)", t->encode, t->connect, t->send, t->wait, t->queue, t->compute, t->receive,
	                     t->decode, t->total, (long long)t->sent_bytes, (long long)t->received_bytes, t->tries);
}

PyObject *result_to(clv_tensor **outputs, uint32_t n, const clv_remote_times *t)
{
	PyObject *list = PyList_New(0);
	for (uint32_t i = 0; i < n; i++) {
		if (list)
			list_push(&list, core_wrap(outputs[i]));
		else
			clv_tensor_free(outputs[i]);
	}
	return list ? Py_BuildValue("(NN)", list, times_to(t)) : NULL;
}

static PyObject *ask_server(RemoteObject *o, const remote_call *c)
{
	const char *metadata;
	clv_remote_times t = {.size = sizeof t};
	clv_tensor **outputs = NULL;
	clv_status st;
	Py_BEGIN_ALLOW_THREADS
	st = clv_remote_metadata(o->r, &metadata); /* says how many outputs there are */
	Py_END_ALLOW_THREADS
	uint32_t n = clv_remote_output_count(o->r);
	if (st == CLV_OK && !(outputs = PyMem_Calloc((size_t)n + 1, sizeof *outputs)))
		return PyErr_NoMemory();
	if (st == CLV_OK) {
		Py_BEGIN_ALLOW_THREADS
		st = remote_run(o->r, c, outputs, n, &t);
		Py_END_ALLOW_THREADS
	}
	PyObject *out = st == CLV_OK ? result_to(outputs, n, &t) : raise_remote(st);
	PyMem_Free(outputs);
	return out;
}

/* run_boundary(bytes) -> (outputs, times) */
static PyObject *remote_py_run_boundary(RemoteObject *o, PyObject *args)
{
	Py_buffer data;
	if (!PyArg_ParseTuple(args, "y*", &data))
		return NULL;
	PyObject *out = ask_server(o, &(remote_call){.data = data.buf, .n = (size_t)data.len});
	PyBuffer_Release(&data);
	return out;
}

/* run(tensors) -> (outputs, times) */
static PyObject *remote_py_run(RemoteObject *o, PyObject *tensors)
{
	Py_ssize_t n;
	clv_tensor **inputs = core_array(tensors, &n);
	if (!inputs)
		return NULL;
	PyObject *out = ask_server(o, &(remote_call){.inputs = (const clv_tensor *const *)inputs, .ninputs = (uint32_t)n});
	core_free(inputs, n);
	return out;
}

static PyMethodDef remote_methods[] = {
	{"metadata", (PyCFunction)remote_py_metadata, METH_NOARGS, "what the server says of the model, as JSON"},
	{"inputs", (PyCFunction)remote_py_inputs, METH_NOARGS, "(name, dtype, dims, device) of the inputs"},
	{"outputs", (PyCFunction)remote_py_outputs, METH_NOARGS, "the same of the outputs"},
	{"ping", (PyCFunction)remote_py_ping, METH_NOARGS, "seconds of a round trip"},
	{"run_boundary", (PyCFunction)remote_py_run_boundary, METH_VARARGS, "run_boundary(bytes): outputs and times"},
	{"run", (PyCFunction)remote_py_run, METH_O, "run(tensors): outputs and times"},
	{NULL, NULL, 0, NULL}};

PyTypeObject RemoteType = {PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cleave._native.Remote",
                           .tp_basicsize = sizeof(RemoteObject),
                           .tp_flags = Py_TPFLAGS_DEFAULT,
                           .tp_new = remote_py_new,
                           .tp_dealloc = (destructor)remote_py_dealloc,
                           .tp_methods = remote_methods};

/* ---- links ------------------------------------------------------------------------------------------------------ */

typedef struct LinkObject {
	PyObject_HEAD
	clv_link *l;
	uint32_t n;
} LinkObject;

static bool read_way(PyObject *from, clv_way *w)
{
	int remote;
	long long sent, received;
	*w = (clv_way){.size = sizeof *w};
	if (!PyTuple_Check(from) ||
	    !PyArg_ParseTuple(from, "spdddLL", &w->name, &remote, &w->here, &w->there, &w->codec, &sent, &received)) {
		if (!PyErr_Occurred())
			PyErr_SetString(PyExc_TypeError, "a way is a tuple");
		return false;
	}
	w->remote = remote != 0;
	w->sent = sent;
	w->received = received;
	return true;
}

/* Link([(name, remote, here, there, codec, sent, received)], gain, rtt, rate, away) */
static PyObject *link_py_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	PyObject *list;
	clv_link_options o = CLV_LINK_OPTIONS_INIT;
	clv_link *l = NULL;
	if (!PyArg_ParseTuple(args, "O!dddd", &PyList_Type, &list, &o.gain, &o.rtt, &o.rate, &o.away))
		return NULL;
	uint32_t n = (uint32_t)PyList_GET_SIZE(list);
	clv_way *ways = PyMem_Calloc((size_t)n + 1, sizeof *ways);
	bool good = ways != NULL;
	for (uint32_t i = 0; good && i < n; i++)
		good = read_way(PyList_GET_ITEM(list, i), &ways[i]);
	clv_status st = good ? clv_link_new(ways, n, &o, &l) : CLV_OK;
	PyMem_Free(ways);
	if (!good)
		return PyErr_Occurred() ? NULL : PyErr_NoMemory();
	if (st != CLV_OK)
		return raise_status(st);
	LinkObject *self = (LinkObject *)type->tp_alloc(type, 0);
	if (!self) {
		clv_link_free(l);
		return NULL;
	}
	self->l = l;
	self->n = n;
	return (PyObject *)self;
}

static void link_py_dealloc(LinkObject *o)
{
	clv_link_free(o->l);
	Py_TYPE(o)->tp_free((PyObject *)o);
}

/* tell(way, seconds of the work here or -1, times or None) */
static PyObject *link_py_tell(LinkObject *o, PyObject *args)
{
	unsigned way;
	double here;
	PyObject *times;
	clv_remote_times t = {.size = sizeof t};
	long long sent = 0, received = 0;
	if (!PyArg_ParseTuple(args, "IdO", &way, &here, &times))
		return NULL;
	bool none = times == Py_None;
	if (!none && !PyArg_ParseTuple(times, "dddddddddLLI", &t.encode, &t.connect, &t.send, &t.wait, &t.queue, &t.compute,
	                               &t.receive, &t.decode, &t.total, &sent, &received, &t.tries))
		return NULL;
	t.sent_bytes = sent;
	t.received_bytes = received;
	return none_or_raise(clv_link_tell(o->l, way, here, none ? NULL : &t));
}

static PyObject *link_py_choose(LinkObject *o, PyObject *unused)
{
	return PyLong_FromUnsignedLong(clv_link_choose(o->l));
}

static PyObject *link_py_expect(LinkObject *o, PyObject *unused)
{
	PyObject *out = PyList_New(0);
	for (uint32_t i = 0; out && i < o->n; i++)
		list_push(&out, PyFloat_FromDouble(clv_link_expect(o->l, i)));
	return out;
}

static PyObject *link_py_state(LinkObject *o, PyObject *unused)
{
	double rtt, rate;
	clv_link_state(o->l, &rtt, &rate);
	return Py_BuildValue("(dd)", rtt, rate);
}

static PyMethodDef link_methods[] = {
	{"tell", (PyCFunction)link_py_tell, METH_VARARGS, "tell(way, seconds here or -1, times or None)"},
	{"choose", (PyCFunction)link_py_choose, METH_NOARGS, "the way for the next call"},
	{"expect", (PyCFunction)link_py_expect, METH_NOARGS, "seconds of a call, for each way"},
	{"state", (PyCFunction)link_py_state, METH_NOARGS, "(round trip, bytes per second)"},
	{NULL, NULL, 0, NULL}};

PyTypeObject LinkType = {PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cleave._native.Link",
                         .tp_basicsize = sizeof(LinkObject),
                         .tp_flags = Py_TPFLAGS_DEFAULT,
                         .tp_new = link_py_new,
                         .tp_dealloc = (destructor)link_py_dealloc,
                         .tp_methods = link_methods};
