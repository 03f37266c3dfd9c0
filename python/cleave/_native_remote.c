/* Remote: a client of a server. Follower: a model whose calls run here,
 * on a server or in part on both, whichever is fastest over the link now. */
#include "_native.h"

#include "remote/remote.h"

/* A server that is away or talks nonsense has a class of its own; a model that it has not is a wrong argument. */
PyObject *raise_remote(clv_status st)
{
	return raise_as(st == CLV_E_NOT_FOUND ? CLV_E_INVALID : st == CLV_E_IO || st == CLV_E_PARSE ? E_REMOTE : (long)st);
}

PyObject *none_or_raise_remote(clv_status st)
{
	return st == CLV_OK ? Py_NewRef(Py_None) : raise_remote(st);
}

/* Its threads may wait for Python. */
static void free_remote(clv_remote *r)
{
	(void)UNLOCKED((clv_remote_free(r), CLV_OK));
}

HANDLE(Remote, RemoteObject, clv_remote, remote_py, free_remote)

bool remote_arguments(PyObject *args, const char **url, clv_remote_options *o)
{
	return take(NULL, args, "szzzzddiipp", url, &o->token, &o->ca, &o->cert, &o->key, &o->timeout, &o->connect_timeout,
	            &o->retries, &o->connections, &o->insecure, &o->lazy);
}

/* Remote(url, token, ca, cert, key, timeout, connect_timeout, retries, connections, insecure, lazy) */
static PyObject *remote_py_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	clv_remote_options o = CLV_REMOTE_OPTIONS_INIT;
	const char *url;
	clv_remote *r = NULL;
	if (!remote_arguments(args, &url, &o))
		return NULL;
	clv_status st = UNLOCKED(clv_remote_connect(url, &o, &r));
	return st == CLV_OK ? remote_py_wrap(r) : raise_remote(st);
}

static PyObject *remote_py_metadata(RemoteObject *o, PyObject *unused)
{
	const char *text = NULL;
	clv_status st = UNLOCKED(clv_remote_metadata(o->of, &text));
	return st == CLV_OK ? PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace") : raise_remote(st);
}

static PyObject *remote_py_inputs(RemoteObject *o, PyObject *unused)
{
	return ports_to(o->of->ports[0], o->of->nports[0]);
}

static PyObject *remote_py_outputs(RemoteObject *o, PyObject *unused)
{
	return ports_to(o->of->ports[1], o->of->nports[1]);
}

/* ping() -> seconds of a round trip */
static PyObject *remote_py_ping(RemoteObject *o, PyObject *unused)
{
	double seconds = 0;
	clv_status st = UNLOCKED(clv_remote_ping(o->of, &seconds));
	return st == CLV_OK ? PyFloat_FromDouble(seconds) : raise_remote(st);
}

PyObject *times_to(const clv_remote_times *t)
{
	return Py_BuildValue("(dddddddddLLI)", t->encode, t->connect, t->send, t->wait, t->queue, t->compute, t->receive,
	                     t->decode, t->total, (long long)t->sent_bytes, (long long)t->received_bytes, t->tries);
}

static PyObject *ask_server(RemoteObject *o, const remote_call *asked)
{
	call c = {0};
	const char *metadata;
	clv_remote_times t = {.size = sizeof t};
	clv_status st = UNLOCKED(clv_remote_metadata(o->of, &metadata)); /* says how many outputs there are */
	uint32_t n = clv_remote_output_count(o->of);
	clv_tensor **outputs = call_tensors(&c, n);
	if (!outputs)
		return NULL;
	if (st == CLV_OK)
		st = UNLOCKED(remote_run(o->of, asked, outputs, n, &t));
	return call_end(&c, st == CLV_OK ? Py_BuildValue("(NN)", core_list(outputs, n), times_to(&t)) : raise_remote(st));
}

/* run_boundary(bytes) -> (outputs, times) */
static PyObject *remote_py_run_boundary(RemoteObject *o, PyObject *args)
{
	call c = {0};
	remote_call asked = {0};
	return call_end(&c, take(&c, args, "B", &asked.data, &asked.n) ? ask_server(o, &asked) : NULL);
}

/* run(tensors) -> (outputs, times) */
static PyObject *remote_py_run(RemoteObject *o, PyObject *args)
{
	call c = {0};
	remote_call asked = {0};
	return call_end(&c, take(&c, args, "C", &asked.inputs, &asked.ninputs) ? ask_server(o, &asked) : NULL);
}

METHODS(remote_py, GIVES(remote_py, metadata), GIVES(remote_py, inputs), GIVES(remote_py, outputs),
        GIVES(remote_py, ping), TAKES(remote_py, run_boundary), TAKES(remote_py, run));
TYPE(Remote, RemoteObject, remote_py, 0, .tp_new = remote_py_new);

/* ---- links ------------------------------------------------------------------------------------------------------ */

/* choose_way([(name, remote, here, there, codec, sent, received)], gain, rtt, rate) -> the way that is taken over such a link */
PyObject *choose_way_py(PyObject *self, PyObject *args)
{
	call c = {0};
	PyObject *list;
	clv_link_options o = CLV_LINK_OPTIONS_INIT;
	clv_link *l = NULL;
	if (!take(NULL, args, "[ddd", &list, &o.gain, &o.rtt, &o.rate))
		return NULL;
	uint32_t n = (uint32_t)PyList_GET_SIZE(list);
	clv_way *ways = call_room(&c, n, sizeof *ways);
	bool good = ways != NULL;
	for (uint32_t i = 0; good && i < n; i++) {
		clv_way *w = &ways[i];
		w->size = sizeof *w;
		good = take(NULL, PyList_GET_ITEM(list, i), "spdddLL", &w->name, &w->remote, &w->here, &w->there, &w->codec,
		            &w->sent, &w->received);
	}
	PyObject *out =
		good && ok_or_raise(clv_link_new(ways, n, &o, &l)) ? PyLong_FromUnsignedLong(clv_link_choose(l)) : NULL;
	clv_link_free(l);
	return call_end(&c, out);
}

/* ---- followers ------------------------------------------------------------------------------------------------------ */

static void free_follower(clv_follower *f)
{
	(void)UNLOCKED((clv_follower_free(f), CLV_OK));
}

HANDLE(Follower, FollowerObject, clv_follower, follower_py, free_follower)

/* Follower(arguments of Runtime, arguments of Remote, ways to compress or None, max_error, max_cuts, check, gain, away, look) */
static PyObject *follower_py_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	call c = {0};
	PyObject *runtime, *remote;
	const char *url;
	clv_artifact *a;
	clv_runtime_options here = CLV_RUNTIME_OPTIONS_INIT;
	clv_remote_options there = CLV_REMOTE_OPTIONS_INIT;
	clv_link_options link = CLV_LINK_OPTIONS_INIT;
	clv_follow_options o = CLV_FOLLOW_OPTIONS_INIT;
	clv_follower *f = NULL;
	if (!take(&c, args, "((Sdidddd", &runtime, &remote, &o.compress, &o.ncompress, &o.max_error, &o.max_cuts, &o.check,
	          &link.gain, &link.away, &link.look) ||
	    !runtime_arguments(runtime, &a, &here) || !remote_arguments(remote, &url, &there))
		return call_end(&c, NULL);
	o.remote = &there;
	o.runtime = &here;
	o.link = &link;
	clv_status st = UNLOCKED(clv_follower_new(a, url, &o, &f));
	return call_end(&c, st == CLV_OK ? follower_py_wrap(f) : raise_remote(st));
}

/* run(tensors) -> ((outputs, times), way, whether the server had a part in it, seconds here, seconds) */
static PyObject *follower_py_run(FollowerObject *o, PyObject *args)
{
	call c = {0};
	clv_tensor **inputs;
	uint32_t n, noutputs = clv_runtime_output_count(clv_follower_runtime(o->of));
	clv_followed how = {.size = sizeof how};
	clv_tensor **outputs = call_tensors(&c, noutputs);
	if (!outputs || !take(&c, args, "C", &inputs, &n))
		return call_end(&c, NULL);
	const clv_tensor *const *at = (const clv_tensor *const *)inputs;
	clv_status st = UNLOCKED(clv_follower_run(o->of, at, n, outputs, noutputs, &how));
	PyObject *out = st != CLV_OK ? raise_remote(st)
	                             : Py_BuildValue("((NN)IOdd)", core_list(outputs, noutputs), times_to(&how.times),
	                                             how.way, truth(how.remote), how.here, how.total);
	return call_end(&c, out);
}

static PyObject *way_to(clv_follower *f, uint32_t i)
{
	clv_follow_state s = {.size = sizeof s};
	clv_status st = clv_follower_way(f, i, &s);
	return st == CLV_OK
	           ? Py_BuildValue("(szzOddddLLdK)", s.name, s.cut, s.compress, truth(s.remote), s.seconds, s.here, s.there,
	                           s.codec, (long long)s.sent, (long long)s.received, s.error, (unsigned long long)s.calls)
	           : raise_status(st);
}

static PyObject *follower_py_ways(FollowerObject *o, PyObject *unused)
{
	LIST(out, clv_follower_count(o->of), way_to(o->of, i));
	return out;
}

/* reason() -> why the last call to the server failed, or None */
static PyObject *follower_py_reason(FollowerObject *o, PyObject *unused)
{
	char *text = NULL;
	clv_status st = clv_follower_reason(o->of, &text);
	return take_string(st, text);
}

/* link() -> (round trip, bytes per second) */
static PyObject *follower_py_link(FollowerObject *o, PyObject *unused)
{
	double rtt, rate;
	clv_follower_link(o->of, &rtt, &rate);
	return Py_BuildValue("(dd)", rtt, rate);
}

METHODS(follower_py, TAKES(follower_py, run), GIVES(follower_py, ways), GIVES(follower_py, reason),
        GIVES(follower_py, link));
TYPE(Follower, FollowerObject, follower_py, 0, .tp_new = follower_py_new);
