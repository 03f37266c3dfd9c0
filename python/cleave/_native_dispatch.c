/* Dispatcher: which plan serves a call (src/runtime/dispatch.h), for plans that are Python objects. Regimes are any
 * hashable objects, numbered here; points are tuples of sizes. One thread records at a time. */
#include "_native.h"

#include "runtime/dispatch.h"

typedef struct DispatcherObject {
	PyObject_HEAD
	dispatch *d;
	PyObject *regimes; /* dict: regime -> its number */
	uint32_t nregimes; /* that ever were */
	bool goes_on;      /* payloads run one program, where runs go on (runtime/handover.h) */
	PyObject *evicted; /* called with a payload that had to give way */
	PyObject *gone;    /* list: payloads that `evicted` is still to be called with */
	PyThread_type_lock recording;
	unsigned long recorder; /* the thread that has it */
} DispatcherObject;

static void release(void *payload)
{
	Py_DECREF((PyObject *)payload);
}

static void note_evicted(void *owner, void *payload)
{
	if (PyList_Append(((DispatcherObject *)owner)->gone, payload) < 0)
		PyErr_Clear(); /* it is gone all the same */
}

/* Dispatcher(limit, evicted, goes_on=False) */
static PyObject *dispatcher_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	uint32_t limit;
	PyObject *evicted;
	bool goes_on = false;
	if (!take(NULL, args, "IO|p", &limit, &evicted, &goes_on))
		return NULL;
	DispatcherObject *o = (DispatcherObject *)type->tp_alloc(type, 0);
	if (!o)
		return NULL;
	o->evicted = Py_NewRef(evicted);
	o->goes_on = goes_on;
	o->regimes = PyDict_New();
	o->gone = PyList_New(0);
	o->recording = PyThread_allocate_lock();
	dispatch_hooks hooks = {release, note_evicted, o};
	clv_status st = o->recording ? dispatch_new(limit, &hooks, &o->d) : fail_nomem();
	if (st == CLV_OK && o->regimes && o->gone)
		return (PyObject *)o;
	Py_DECREF(o);
	return st == CLV_OK ? NULL : raise_status(st);
}

typedef struct Visit {
	visitproc visit;
	void *with;
	int found;
} Visit;

static clv_status visit_payload(void *ctx, const dispatch_entry *e)
{
	Visit *v = ctx;
	v->found = v->visit(e->payload, v->with);
	return v->found ? CLV_E_INVALID : CLV_OK;
}

static const dispatch_query EVERY = {DISPATCH_ANY, NULL, DISPATCH_ANY, NULL};

static int dispatcher_traverse(DispatcherObject *o, visitproc visit, void *with)
{
	Visit v = {visit, with, 0};
	PyObject *mine[] = {o->regimes, o->evicted, o->gone};
	for (size_t i = 0; i < 3 && !v.found; i++)
		v.found = visit_one(mine[i], visit, with);
	if (o->d && !v.found)
		dispatch_each(o->d, &EVERY, visit_payload, &v);
	return v.found;
}

static int dispatcher_clear(DispatcherObject *o)
{
	Py_CLEAR(o->regimes);
	Py_CLEAR(o->evicted);
	if (o->d)
		dispatch_clear(o->d);
	Py_CLEAR(o->gone);
	return 0;
}

static void dispatcher_dealloc(DispatcherObject *o)
{
	PyObject_GC_UnTrack(o);
	dispatcher_clear(o);
	dispatch_free(o->d);
	if (o->recording)
		PyThread_free_lock(o->recording);
	Py_TYPE(o)->tp_free((PyObject *)o);
}

/* ---- regimes and points ------------------------------------------------------------------------------------------ */

/* The number of a regime; one that was never added gets none (DISPATCH_ANY - 1). False: a Python error is set. */
static bool regime_number(const DispatcherObject *o, PyObject *key, uint32_t *out)
{
	PyObject *number = o->regimes ? PyDict_GetItemWithError(o->regimes, key) : NULL;
	*out = number ? (uint32_t)PyLong_AsUnsignedLong(number) : DISPATCH_ANY - 1;
	return !PyErr_Occurred();
}

static bool regime_intern(DispatcherObject *o, PyObject *key, uint32_t *out)
{
	if (!regime_number(o, key, out) || *out != DISPATCH_ANY - 1)
		return !PyErr_Occurred();
	*out = o->nregimes;
	PyObject *number = PyLong_FromUnsignedLong(*out);
	bool ok = number && PyDict_SetItem(o->regimes, key, number) == 0;
	Py_XDECREF(number);
	o->nregimes += ok;
	return ok;
}

static clv_status stop_at_first(void *ctx, const dispatch_entry *e)
{
	return CLV_E_INVALID;
}

/* Regimes whose last entry had to give way are forgotten too. */
static bool forget_regimes(const DispatcherObject *o)
{
	PyObject *known = PyDict_Items(o->regimes);
	bool ok = known != NULL;
	for (Py_ssize_t i = 0; ok && i < PyList_GET_SIZE(known); i++) {
		PyObject *item = PyList_GET_ITEM(known, i);
		dispatch_query q = EVERY;
		q.regime = (uint32_t)PyLong_AsUnsignedLong(PyTuple_GET_ITEM(item, 1));
		if (dispatch_each(o->d, &q, stop_at_first, NULL) == CLV_OK)
			ok = PyDict_DelItem(o->regimes, PyTuple_GET_ITEM(item, 0)) == 0;
	}
	Py_XDECREF(known);
	return ok;
}

enum { MOST_SIZES = 64 };

typedef struct point {
	int64_t at[MOST_SIZES];
	uint32_t n;
} point;

/* A tuple of sizes, or None for every size. */
static bool point_read(PyObject *given, point *out)
{
	out->n = DISPATCH_ANY;
	if (given == Py_None)
		return true;
	if (!PyTuple_Check(given) || PyTuple_GET_SIZE(given) > MOST_SIZES) {
		PyErr_SetString(PyExc_TypeError, "a point is a tuple of sizes, or None");
		return false;
	}
	out->n = (uint32_t)PyTuple_GET_SIZE(given);
	for (uint32_t i = 0; i < out->n; i++)
		out->at[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(given, i));
	return !PyErr_Occurred();
}

/* ---- entries ---------------------------------------------------------------------------------------------------- */

static PyObject *tell_evicted(DispatcherObject *o)
{
	PyObject *gone = o->gone;
	if (PyList_GET_SIZE(gone) == 0)
		Py_RETURN_NONE;
	if (!forget_regimes(o) || !(o->gone = PyList_New(0))) {
		o->gone = gone;
		return NULL;
	}
	PyObject *done = Py_NewRef(Py_None);
	for (Py_ssize_t i = 0; done && i < PyList_GET_SIZE(gone); i++)
		Py_SETREF(done, PyObject_CallOneArg(o->evicted, PyList_GET_ITEM(gone, i)));
	Py_DECREF(gone);
	return done;
}

/* add(regime, points or None, payload, rank, name) */
static PyObject *dispatcher_add(DispatcherObject *o, PyObject *args)
{
	PyObject *regime, *points, *payload;
	int rank;
	const char *name;
	dispatch_entry e;
	point p = {.n = DISPATCH_ANY};
	if (!take(NULL, args, "OOOis", &regime, &points, &payload, &rank, &name) || !regime_intern(o, regime, &e.regime))
		return NULL;
	PyObject *list = points == Py_None ? PyTuple_Pack(1, Py_None) : PySequence_Fast(points, "points are a list");
	bool ok = list != NULL;
	e.rank = (dispatch_rank)rank;
	e.name = name;
	e.payload = payload;
	for (Py_ssize_t i = 0; ok && i < PySequence_Fast_GET_SIZE(list); i++) {
		bool taken = false;
		ok = point_read(PySequence_Fast_GET_ITEM(list, i), &p);
		e.point = p.at;
		e.npoint = p.n;
		ok = ok && ok_or_raise(dispatch_add(o->d, &e, &taken));
		if (taken)
			Py_INCREF(payload);
	}
	Py_XDECREF(list);
	return ok ? tell_evicted(o) : NULL;
}

static PyObject *dispatcher_drop(DispatcherObject *o, PyObject *payload)
{
	dispatch_drop(o->d, payload);
	Py_RETURN_NONE;
}

static clv_status append(void *ctx, const dispatch_entry *e)
{
	return PyList_Append(ctx, e->payload) == 0 ? CLV_OK : CLV_E_NOMEM;
}

/* The payloads of the entries that answer, in the order in which they were added. */
static PyObject *list_answers(const DispatcherObject *o, const dispatch_query *q)
{
	PyObject *out = PyList_New(0);
	if (out && dispatch_each(o->d, q, append, out) != CLV_OK)
		Py_CLEAR(out);
	return out;
}

static PyObject *dispatcher_list(DispatcherObject *o, PyObject *args)
{
	PyObject *regime = NULL, *sizes = Py_None;
	dispatch_query q = EVERY;
	point p;
	if (!take(NULL, args, "|OO", &regime, &sizes) || (regime && !regime_number(o, regime, &q.regime)) ||
	    !point_read(sizes, &p))
		return NULL;
	q.point = p.at;
	q.npoint = p.n;
	return list_answers(o, &q);
}

/* Every suffix asks: it takes one argument, which need not be parsed. */
static PyObject *dispatcher_named(DispatcherObject *o, PyObject *name)
{
	dispatch_query q = EVERY;
	Py_ssize_t n;
	if (!(q.name = PyUnicode_AsUTF8AndSize(name, &n)))
		return NULL;
	return strlen(q.name) == (size_t)n ? list_answers(o, &q) : PyList_New(0);
}

/* ---- serving ---------------------------------------------------------------------------------------------------- */

typedef struct Serving {
	DispatcherObject *o;
	PyObject *const *args; /* as serve() got them */
	Py_ssize_t nargs;
	PyObject *error, *made, *out; /* the first refusal; what misses recorded; the result */
	uint64_t version;             /* of the entries that were looked at */
} Serving;

enum { REGIME, POINT, FIRST, IN_ORDER, RUN, MISS, INPUTS, NARGS, MOST_ARGS = 4 }; /* then what `run` gets */

/* Takes the exception that is set, if it is a refusal by a guard that left no trace. */
static bool take_refusal(Serving *s)
{
	PyObject *type, *error, *trace;
	if (!PyErr_ExceptionMatches(error_class(CLV_E_GUARD)))
		return false;
	PyErr_Fetch(&type, &error, &trace);
	PyErr_NormalizeException(&type, &error, &trace);
	PyObject *undone = PyObject_GetAttrString(error, "undone");
	if (undone != Py_True) {
		Py_XDECREF(undone);
		PyErr_Restore(type, error, trace);
		return false;
	}
	Py_DECREF(undone);
	if (trace)
		PyException_SetTraceback(error, trace);
	Py_XDECREF(type);
	Py_XDECREF(trace);
	if (s->error)
		Py_DECREF(error);
	else
		s->error = error;
	return true;
}

static clv_status run_payload(void *ctx, void *payload)
{
	Serving *s = ctx;
	PyObject *given[1 + MOST_ARGS] = {Py_NewRef((PyObject *)payload)};
	memcpy(given + 1, s->args + NARGS, (size_t)(s->nargs - NARGS) * sizeof *given);
	s->out = PyObject_Vectorcall(s->args[RUN], given, (size_t)(1 + s->nargs - NARGS), NULL);
	Py_DECREF(given[0]);
	if (s->out)
		return CLV_OK;
	if (!take_refusal(s))
		return CLV_E_INVALID;
	clv_status st = fail(CLV_E_GUARD, "a guard refused the data");
	status_details()->undone = true;
	return st;
}

static clv_status record(Serving *s, dispatch_why why, dispatch_answer *out)
{
	PyObject *made = PyObject_CallFunction(s->args[MISS], "iOOOO", (int)why, s->error ? s->error : Py_None,
	                                       s->args[REGIME], s->args[POINT], s->args[INPUTS]);
	if (!made)
		return CLV_E_INVALID;
	int kept = made == Py_None ? 0 : PyList_Append(s->made, made);
	out->payload = made == Py_None ? NULL : made;
	Py_DECREF(made);
	return kept == 0 ? CLV_OK : CLV_E_NOMEM;
}

/* find(regime): of its payloads the one that served last */
static PyObject *dispatcher_find(DispatcherObject *o, PyObject *regime)
{
	dispatch_call c = {.query = EVERY};
	void *found = NULL;
	if (!regime_number(o, regime, &c.query.regime))
		return NULL;
	return ok_or_raise(dispatch_find(o->d, &c, &found)) ? Py_NewRef(found ? found : Py_None) : NULL;
}

/* Whether the caller has to give it back. */
static bool recording_begin(DispatcherObject *o)
{
	if (o->recorder == PyThread_get_thread_ident())
		return false;
	Py_BEGIN_ALLOW_THREADS
	PyThread_acquire_lock(o->recording, WAIT_LOCK);
	Py_END_ALLOW_THREADS
	o->recorder = PyThread_get_thread_ident();
	return true;
}

static void recording_end(DispatcherObject *o)
{
	o->recorder = 0;
	PyThread_release_lock(o->recording);
}

static PyObject *dispatcher___enter__(DispatcherObject *o, PyObject *unused)
{
	if (!recording_begin(o))
		return PyErr_Format(PyExc_RuntimeError, "this thread records already");
	return Py_NewRef(o);
}

static PyObject *dispatcher___exit__(DispatcherObject *o, PyObject *unused)
{
	recording_end(o);
	Py_RETURN_NONE;
}

/* One thread at a time; what another one recorded meanwhile is tried first. */
static clv_status miss(void *ctx, dispatch_why why, dispatch_answer *out)
{
	Serving *s = ctx;
	DispatcherObject *o = s->o;
	if (s->args[MISS] == Py_None)
		return CLV_OK;
	bool begun = recording_begin(o);
	uint64_t now = dispatch_version(o->d);
	clv_status st = CLV_OK;
	out->again = now != s->version;
	if (!out->again)
		st = s->made || (s->made = PyList_New(0)) ? record(s, why, out) : CLV_E_NOMEM;
	s->version = out->again ? now : dispatch_version(o->d);
	if (begun)
		recording_end(o);
	return st;
}

/* serve(regime, point, first or None, in_order, run, miss, inputs, *args) -> run(payload, *args) of the payload that
   serves; miss(why, error or None, regime, point, inputs) -> a payload that it recorded, or None */
static PyObject *dispatcher_serve(DispatcherObject *o, PyObject *const *args, Py_ssize_t nargs)
{
	Serving s = {.o = o, .args = args, .nargs = nargs, .version = dispatch_version(o->d)};
	dispatch_call c = {.run = run_payload, .miss = miss, .ctx = &s};
	point p;
	if (nargs < NARGS || nargs > NARGS + MOST_ARGS)
		return PyErr_Format(PyExc_TypeError, "serve takes %d to %d arguments", NARGS, NARGS + MOST_ARGS);
	if (!regime_number(o, args[REGIME], &c.query.regime) || !point_read(args[POINT], &p))
		return NULL;
	c.query.point = p.at;
	c.query.npoint = p.n;
	c.first = args[FIRST] == Py_None ? NULL : args[FIRST];
	c.in_order = args[IN_ORDER] == Py_True;
	c.hands_over = o->goes_on;
	clv_status st = dispatch_serve(o->d, &c);
	Py_XDECREF(s.made);
	if (st == CLV_OK || PyErr_Occurred()) {
		Py_XDECREF(s.error);
		return st == CLV_OK ? s.out : NULL;
	}
	if (st != CLV_E_GUARD || !s.error) {
		Py_XDECREF(s.error);
		return raise_status(st == CLV_E_NOT_FOUND ? CLV_E_INPUT : st);
	}
	if (status_details()->undone || PyObject_SetAttrString(s.error, "undone", Py_False) == 0)
		PyErr_SetObject((PyObject *)Py_TYPE(s.error), s.error);
	Py_DECREF(s.error);
	return NULL;
}

METHODS(dispatcher, TAKES(dispatcher, add), TAKES_ONE(dispatcher, drop), TAKES_ONE(dispatcher, find),
        GIVES(dispatcher, __enter__), TAKES(dispatcher, __exit__), TAKES(dispatcher, list),
        TAKES_ONE(dispatcher, named), TAKES_FAST(dispatcher, serve));
TYPE(Dispatcher, DispatcherObject, dispatcher, Py_TPFLAGS_HAVE_GC, .tp_new = dispatcher_new, COLLECTED(dispatcher));
