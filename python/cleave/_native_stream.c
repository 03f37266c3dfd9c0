/* Stream: the calls with which Python records a forward (src/capture/stream.c), compares and aligns records. */
#include "_native.h"

HANDLE(Stream, StreamObject, stream, stream_py, stream_free)

/* Stream(class of the root) */
static PyObject *stream_py_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	const char *cls;
	stream *s;
	if (!take(NULL, args, "s", &cls) || !ok_or_raise(stream_new(cls, &s)))
		return NULL;
	s->where = where;
	return stream_py_wrap(s);
}

static PyObject *stream_py_input(StreamObject *o, PyObject *args)
{
	const char *name;
	br_tensor *t;
	return take(NULL, args, "st", &name, &t) ? none_or_raise(stream_input(o->of, name, t)) : NULL;
}

static PyObject *stream_py_state(StreamObject *o, PyObject *args)
{
	const char *kind, *name;
	bool trainable;
	br_tensor *t;
	if (!take(NULL, args, "sspt", &kind, &name, &trainable, &t))
		return NULL;
	value_kind k = !strcmp(kind, "param") ? VALUE_PARAM : !strcmp(kind, "buffer") ? VALUE_BUFFER : VALUE_ATTR;
	return none_or_raise(stream_define_state(o->of, k, name, trainable, t));
}

static PyObject *stream_py_scope(StreamObject *o, PyObject *args)
{
	const char *path, *cls;
	uint32_t id;
	if (!take(NULL, args, "ss", &path, &cls) || !ok_or_raise(stream_scope_add(o->of, path, cls, &id)))
		return NULL;
	return PyLong_FromUnsignedLong(id);
}

static PyObject *stream_py_enter(StreamObject *o, PyObject *id)
{
	uint32_t k;
	return index_of(id, UINT32_MAX, "scope", &k) ? none_or_raise(stream_enter(o->of, k)) : NULL;
}

static PyObject *stream_py_leave(StreamObject *o, PyObject *unused)
{
	stream_leave(o->of);
	Py_RETURN_NONE;
}

static PyObject *stream_py_start(StreamObject *o, PyObject *alone)
{
	return none_or_raise(stream_start(o->of, alone == Py_True));
}

static PyObject *stream_py_stop(StreamObject *o, PyObject *unused)
{
	return none_or_raise(stream_stop(o->of));
}

static PyObject *stream_py_restore(StreamObject *o, PyObject *unused)
{
	return none_or_raise(br_recorder_restore(o->of->recorder));
}

static PyObject *stream_py_output(StreamObject *o, PyObject *t)
{
	return need_tensor(t) ? none_or_raise(stream_output(o->of, py_borrow(t))) : NULL;
}

static PyObject *stream_py_rebound(StreamObject *o, PyObject *args)
{
	const char *name;
	br_tensor *t;
	return take(NULL, args, "st", &name, &t) ? none_or_raise(stream_rebound(o->of, name, t)) : NULL;
}

static PyObject *stream_py_host_read(StreamObject *o, PyObject *args)
{
	const char *how;
	br_tensor *t;
	return take(NULL, args, "ts", &t, &how) ? none_or_raise(stream_host_read(o->of, t, how)) : NULL;
}

/* python_begin(label, tensors) */
static PyObject *stream_py_python_begin(StreamObject *o, PyObject *args)
{
	call c = {0};
	const char *label;
	br_tensor **tensors;
	uint32_t n;
	bool ok = take(&c, args, "sT", &label, &tensors, &n);
	return call_end(&c, ok ? none_or_raise(stream_python_begin(o->of, label, tensors, n)) : NULL);
}

/* python_end(number, results, which of the arguments it wrote) */
static PyObject *stream_py_python_end(StreamObject *o, PyObject *args)
{
	call c = {0};
	python_call made = {0};
	bool ok = take(&c, args, "ITX", &made.object, &made.results, &made.nresults, &made.written, &made.nwritten);
	return call_end(&c, ok ? none_or_raise(stream_python_end(o->of, &made)) : NULL);
}

static PyObject *stream_py_python_abort(StreamObject *o, PyObject *unused)
{
	stream_python_abort(o->of);
	Py_RETURN_NONE;
}

static PyObject *stream_py_fail(StreamObject *o, PyObject *message)
{
	const char *text = PyUnicode_AsUTF8(message);
	if (!text)
		return NULL;
	br_recorder_fail(o->of->recorder, CLV_E_UNSUPPORTED, text);
	Py_RETURN_NONE;
}

static PyObject *stream_py_failed(StreamObject *o, PyObject *unused)
{
	return PyBool_FromLong(br_recorder_failed(o->of->recorder));
}

static PyObject *stream_py_active(StreamObject *o, PyObject *unused)
{
	return PyBool_FromLong(br_recorder_active(o->of->recorder));
}

/* states_read() -> names of the module tensors that operators took */
static PyObject *stream_py_states_read(StreamObject *o, PyObject *unused)
{
	bool *taken;
	clv_status st = stream_operands(o->of, &taken);
	if (st != CLV_OK)
		return raise_status(st);
	PyObject *out = PySet_New(NULL);
	for (uint32_t i = 0; out && i < o->of->states.n; i++) {
		PyObject *name = taken[o->of->states.at[i].tensor] ? PyUnicode_FromString(o->of->states.at[i].name) : NULL;
		if ((name && PySet_Add(out, name) < 0) || PyErr_Occurred())
			Py_CLEAR(out);
		Py_XDECREF(name);
	}
	mem_free(taken);
	return out;
}

static PyObject *stream_py_reads_data(StreamObject *o, PyObject *unused)
{
	bool found = false;
	clv_status st = stream_reads_data(o->of, &found);
	return st == CLV_OK ? PyBool_FromLong(found) : raise_status(st);
}

/* counters() -> names of module tensors that the forward changes, where it also reads numbers that follow them */
static PyObject *stream_py_counters(StreamObject *o, PyObject *unused)
{
	const stream *s = o->of;
	bool *found = mem_alloc((s->states.n + 1) * sizeof *found);
	clv_status st = found ? stream_counters(s, found) : fail_nomem();
	PyObject *out = st == CLV_OK ? PyList_New(0) : raise_status(st);
	for (uint32_t i = 0; out && i < s->states.n; i++)
		if (found[i])
			list_push(&out, PyUnicode_FromString(s->states.at[i].name));
	mem_free(found);
	return out;
}

static PyObject *stream_py_number(StreamObject *o, PyObject *t)
{
	return need_tensor(t) ? none_or_raise(stream_number(o->of, py_borrow(t))) : NULL;
}

/* same_calls(other) -> they differ in what numbers need alone */
static PyObject *stream_py_same_calls(StreamObject *o, PyObject *args)
{
	stream *other;
	return take(NULL, args, "@", &StreamType, &other) ? PyBool_FromLong(stream_same_calls(o->of, other)) : NULL;
}

static PyObject *stream_py_fold(StreamObject *o, PyObject *unused)
{
	bool changed = false;
	clv_status st = stream_fold(o->of, &changed);
	return st == CLV_OK ? PyBool_FromLong(changed) : raise_status(st);
}

static PyObject *stream_py_restore_generators(StreamObject *o, PyObject *unused)
{
	return none_or_raise(br_recorder_restore_generators(o->of->recorder));
}

/* region_begin(keeps_random, reentrant): eager will run what follows again in the backward */
static PyObject *stream_py_region_begin(StreamObject *o, PyObject *args)
{
	bool random, reentrant;
	return take(NULL, args, "pp", &random, &reentrant) ? none_or_raise(stream_region_begin(o->of, random, reentrant))
	                                                   : NULL;
}

/* region_end(): of the last that is open */
static PyObject *stream_py_region_end(StreamObject *o, PyObject *unused)
{
	stream_region_end(o->of);
	Py_RETURN_NONE;
}

/* check_regions(number of stored outputs): raises where running a region again makes a difference */
static PyObject *stream_py_check_regions(StreamObject *o, PyObject *nstores)
{
	uint32_t n;
	return index_of(nstores, UINT32_MAX, "output", &n) ? none_or_raise(stream_check_regions(o->of, n)) : NULL;
}

/* check_hooks(tensors): raises where the forward put a gradient hook behind what it gave */
static PyObject *stream_py_check_hooks(StreamObject *o, PyObject *args)
{
	call c = {0};
	br_tensor **t;
	uint32_t n;
	return call_end(&c, take(&c, args, "T", &t, &n) ? none_or_raise(stream_check_hooks(o->of, t, n)) : NULL);
}

/* pass_hooks(results): hooks behind what a whole module gave are its own */
static PyObject *stream_py_pass_hooks(StreamObject *o, PyObject *args)
{
	call c = {0};
	br_tensor **t;
	uint32_t n;
	bool ok = take(&c, args, "T", &t, &n);
	return call_end(&c, ok ? none_or_raise(br_recorder_pass_hooks(o->of->recorder, t, n)) : NULL);
}

METHODS(stream_py, TAKES(stream_py, input), TAKES(stream_py, state), TAKES(stream_py, scope),
        TAKES_ONE(stream_py, enter), GIVES(stream_py, leave), TAKES_ONE(stream_py, start), GIVES(stream_py, stop),
        GIVES(stream_py, restore), TAKES_ONE(stream_py, output), TAKES(stream_py, rebound), TAKES(stream_py, host_read),
        TAKES(stream_py, python_begin), TAKES(stream_py, python_end), GIVES(stream_py, python_abort),
        TAKES_ONE(stream_py, fail), GIVES(stream_py, failed), GIVES(stream_py, active), GIVES(stream_py, states_read),
        GIVES(stream_py, reads_data), GIVES(stream_py, counters), TAKES_ONE(stream_py, number),
        TAKES(stream_py, same_calls), TAKES(stream_py, region_begin), GIVES(stream_py, region_end),
        TAKES_ONE(stream_py, check_regions), TAKES(stream_py, check_hooks), TAKES(stream_py, pass_hooks),
        GIVES(stream_py, fold), GIVES(stream_py, restore_generators));
TYPE(Stream, StreamObject, stream_py, 0, .tp_new = stream_py_new);

/* compare(a, b) -> (verdict, reason, operator where they part) */
PyObject *compare_py(PyObject *self, PyObject *args)
{
	stream *a, *b;
	comparison c;
	if (!take(NULL, args, "@@", &StreamType, &a, &StreamType, &b) || !ok_or_raise(stream_compare(a, b, &c)))
		return NULL;
	const char *op = c.verdict != STREAMS_EQUAL && c.op < a->ops.n ? a->ops.at[c.op].op : NULL;
	PyObject *out = Py_BuildValue("(izz)", (int)c.verdict, c.reason, op);
	comparison_free(&c);
	return out;
}

const stream **streams_of(call *c, PyObject *list)
{
	Py_ssize_t n = PyList_GET_SIZE(list);
	const stream **out = call_room(c, (size_t)n, sizeof *out);
	for (Py_ssize_t i = 0; out && i < n; i++) {
		PyObject *s = PyList_GET_ITEM(list, i);
		if (!PyObject_TypeCheck(s, &StreamType)) {
			PyErr_SetString(PyExc_TypeError, "streams are needed");
			return NULL;
		}
		out[i] = ((StreamObject *)s)->of;
	}
	return out;
}

/* data_points(streams, points, nsymbols) -> rows of points with a symbol more for each number that is read from data, and
   how many symbols there are then */
PyObject *data_points_py(PyObject *self, PyObject *args)
{
	call c = {0};
	PyObject *list;
	int64_t *points, *rows = NULL;
	uint32_t npoints, nsymbols, nall = 0;
	if (!take(&c, args, "[XI", &list, &points, &npoints, &nsymbols))
		return call_end(&c, NULL);
	uint32_t n = (uint32_t)PyList_GET_SIZE(list);
	const stream **streams = streams_of(&c, list);
	if (!streams)
		return call_end(&c, NULL);
	clv_status st = n > 0 && npoints == n * nsymbols ? stream_data_points(streams, n, points, nsymbols, &rows, &nall)
	                                                 : fail(CLV_E_INVALID, "streams and points do not fit together");
	PyObject *out = st == CLV_OK ? Py_BuildValue("(NI)", int_list(rows, n * (Py_ssize_t)nall), nall) : raise_status(st);
	mem_free(rows);
	return call_end(&c, out);
}

/* align(a, b) -> None, or why streams at two sizes do not align */
PyObject *align_py(PyObject *self, PyObject *args)
{
	stream *a, *b;
	bool lengths;
	char *reason;
	if (!take(NULL, args, "@@", &StreamType, &a, &StreamType, &b) ||
	    !ok_or_raise(stream_align(a, b, &lengths, &reason)))
		return NULL;
	PyObject *out = reason ? Py_BuildValue("(sO)", reason, truth(lengths)) : Py_NewRef(Py_None);
	mem_free(reason);
	return out;
}
