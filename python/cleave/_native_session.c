/* RemoteSession: a session of training on a server. Boundaries and answers cross as bytes. */
#include "_native.h"

#include "remote/remote.h"

typedef struct SessionObject {
	PyObject_HEAD
	clv_remote_session *of;
	PyObject *remote; /* which it asks */
} SessionObject;

/* RemoteSession(remote, id or None, member or None, shared, accumulate, seed or None) */
static PyObject *session_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	clv_remote_session_options o = CLV_REMOTE_SESSION_OPTIONS_INIT;
	PyObject *remote, *seed;
	clv_remote_session *s = NULL;
	if (!take(NULL, args, "!zzpIO", &RemoteType, &remote, &o.id, &o.member, &o.shared, &o.accumulate, &seed) ||
	    !read_seed(seed, &o.has_seed, &o.seed))
		return NULL;
	clv_status st = UNLOCKED(clv_remote_session_open(((handle *)remote)->of, &o, &s));
	if (st != CLV_OK)
		return raise_remote(st);
	SessionObject *self = (SessionObject *)type->tp_alloc(type, 0);
	if (!self) {
		clv_remote_session_free(s);
		return NULL;
	}
	self->remote = Py_NewRef(remote);
	self->of = s;
	return (PyObject *)self;
}

static void session_dealloc(SessionObject *o)
{
	clv_remote_session_free(o->of);
	Py_XDECREF(o->remote);
	Py_TYPE(o)->tp_free((PyObject *)o);
}

static PyObject *session_id(SessionObject *o, PyObject *unused)
{
	return PyUnicode_FromString(clv_remote_session_id(o->of));
}

static PyObject *session_steps(SessionObject *o, PyObject *unused)
{
	return PyLong_FromUnsignedLongLong(clv_remote_session_steps(o->of));
}

/* train(boundary as bytes, targets) -> (answer as a payload's bytes, times) */
static PyObject *session_train(SessionObject *o, PyObject *args)
{
	call c = {0};
	const void *data;
	size_t length;
	clv_tensor **targets;
	uint32_t n;
	clv_remote_times t = {.size = sizeof t};
	remote_answer a;
	if (!take(&c, args, "BC", &data, &length, &targets, &n))
		return call_end(&c, NULL);
	const clv_tensor *const *at = (const clv_tensor *const *)targets;
	clv_status st = UNLOCKED(remote_train_bytes(o->of, data, length, at, n, &a, &t));
	if (st != CLV_OK)
		return call_end(&c, raise_remote(st));
	PyObject *out = Py_BuildValue("(y#N)", a.body, (Py_ssize_t)a.n, times_to(&t));
	remote_answer_free(&a);
	return call_end(&c, out);
}

/* apply_tied([names], tensors) */
static PyObject *session_apply_tied(SessionObject *o, PyObject *args)
{
	call c = {0};
	const char **names;
	clv_tensor **gradients;
	uint32_t count, n;
	if (!take(&c, args, "SC", &names, &count, &gradients, &n))
		return call_end(&c, NULL);
	const clv_tensor *const *at = (const clv_tensor *const *)gradients;
	clv_status st = n == count ? UNLOCKED(clv_remote_apply_tied(o->of, names, at, n))
	                           : fail(CLV_E_INVALID, "%u names have %u gradients", count, n);
	return call_end(&c, none_or_raise_remote(st));
}

static PyObject *session_state(SessionObject *o, PyObject *unused)
{
	void *data = NULL;
	size_t n = 0;
	clv_status st = UNLOCKED(clv_remote_session_state(o->of, &data, &n));
	return st == CLV_OK ? take_bytes(st, data, n) : raise_remote(st);
}

static PyObject *session_end(SessionObject *o, PyObject *unused)
{
	return none_or_raise_remote(UNLOCKED(clv_remote_session_end(o->of)));
}

METHODS(session, GIVES(session, id), GIVES(session, steps), TAKES(session, train), TAKES(session, apply_tied),
        GIVES(session, state), GIVES(session, end));
TYPE(RemoteSession, SessionObject, session, 0, .tp_new = session_new);
