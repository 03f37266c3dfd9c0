/* Tracing: a file in, the same file with compiled segments out; what callers say which nodes are chosen by. */
#include "_native_file.h"

#include "file/artifact.h"
#include "segment/child.h"

/* ---- nodes as a caller chooses by them ----------------------------------------------------------------------------- */

static PyObject *scope_names(const plan *p, scope_id s)
{
	PyObject *out = s == NONE ? PyList_New(0) : scope_names(p, p->scopes.at[s].parent);
	if (!out || s == NONE)
		return out;
	const char *path = plan_s(p, p->scopes.at[s].path), *dot = strrchr(path, '.');
	const char *texts[] = {dot ? dot + 1 : path, plan_s(p, p->scopes.at[s].cls)};
	for (int i = 0; i < 2 && out; i++) {
		if (texts[i][0])
			list_push(&out, PyUnicode_FromString(texts[i]));
	}
	return out;
}

typedef struct tensor_list {
	const plan *p;
	PyObject *list; /* NULL: an exception is set */
} tensor_list;

/* A number, or the text of a formula. */
static PyObject *dim_of(const plan *p, expr_id e)
{
	int64_t k;
	strbuf b = STRBUF_INIT;
	if (expr_is_const(p, e, &k))
		return PyLong_FromLongLong(k);
	expr_print(p, e, &b);
	return take_text(CLV_OK, &b);
}

static PyObject *dims_of(const plan *p, const value *v)
{
	LIST(list, v->ndim, dim_of(p, p->dims.at[v->shape + i]));
	return as_tuple(list);
}

/* (label, dtype, shape) of a tensor. */
static void describe_tensor(void *ctx, value_id id)
{
	tensor_list *t = ctx;
	const value *v = &t->p->values.at[id];
	char *label = NULL;
	if (!t->list || v->type != TYPE_TENSOR)
		return;
	clv_status st = value_label_text(t->p, id, &label);
	list_push(&t->list, Py_BuildValue("(NsN)", take_string(st, label), dtype_name((dtype)v->dtype), dims_of(t->p, v)));
}

/* (names on the path, [inputs], [outputs]) */
static PyObject *describe_node(const plan *p, node_id n)
{
	tensor_list in = {p, PyList_New(0)}, out = {p, PyList_New(0)};
	node_each_arg(p, n, describe_tensor, &in);
	node_each_result(p, n, describe_tensor, &out);
	return Py_BuildValue("(NNN)", scope_names(p, p->nodes.at[n].scope), in.list, out.list);
}

/* descriptions() -> per node: names on its path, inputs, outputs */
PLAN_METHOD(descriptions)
{
	LIST(out, o->p->nodes.n, describe_node(o->p, i));
	return out;
}

/* ---- tracing -------------------------------------------------------------------------------------------------------- */

typedef struct tracing {
	const artifact *a;
	PyObject *no;                /* per plan: None, or per node None or a reason; borrowed */
	PyObject *progress, *log;    /* callables; borrowed */
	bool raised;                 /* an exception waits */
	PyObject *type, *value, *tb; /* it */
} tracing;

static void keep_exception(tracing *t)
{
	if (t->raised)
		PyErr_Clear();
	else
		PyErr_Fetch(&t->type, &t->value, &t->tb);
	t->raised = true;
}

static bool say_progress(void *ctx, const char *what, uint32_t done, uint32_t total)
{
	tracing *t = ctx;
	PyGILState_STATE gil = PyGILState_Ensure();
	PyObject *out = PyErr_CheckSignals() == 0 ? PyObject_CallFunction(t->progress, "sII", what, done, total) : NULL;
	if (!out)
		keep_exception(t);
	Py_XDECREF(out);
	bool go_on = !t->raised;
	PyGILState_Release(gil);
	return go_on;
}

static void say_line(void *ctx, const char *line)
{
	tracing *t = ctx;
	PyGILState_STATE gil = PyGILState_Ensure();
	PyObject *out = PyObject_CallFunction(t->log, "s", line);
	if (!out)
		keep_exception(t);
	Py_XDECREF(out);
	PyGILState_Release(gil);
}

/* The texts were checked before, and stay: this only reads them. */
static const char *why_not(void *ctx, const clv_plan *p, uint32_t n)
{
	const tracing *t = ctx;
	const char *why = NULL;
	PyGILState_STATE gil = PyGILState_Ensure();
	for (uint32_t i = 0; i < t->a->plans.n; i++) {
		PyObject *list = PyList_GET_ITEM(t->no, i);
		if (t->a->plans.at[i].p == p && list != Py_None && PyList_GET_ITEM(list, n) != Py_None)
			why = PyUnicode_AsUTF8(PyList_GET_ITEM(list, n));
	}
	PyGILState_Release(gil);
	return why;
}

static bool check_reasons(const artifact *a, PyObject *no)
{
	bool ok = PyList_Check(no) && PyList_GET_SIZE(no) == (Py_ssize_t)a->plans.n;
	for (uint32_t i = 0; ok && i < a->plans.n; i++) {
		PyObject *list = PyList_GET_ITEM(no, i);
		if (list == Py_None)
			continue;
		ok = PyList_Check(list) && PyList_GET_SIZE(list) == (Py_ssize_t)a->plans.at[i].p->nodes.n;
		for (Py_ssize_t k = 0; ok && k < PyList_GET_SIZE(list); k++)
			ok = PyList_GET_ITEM(list, k) == Py_None || PyUnicode_AsUTF8(PyList_GET_ITEM(list, k));
	}
	if (!ok && !PyErr_Occurred())
		PyErr_SetString(PyExc_TypeError, "reasons are a list per plan, with None or a text per node");
	return ok;
}

/* Lists of tensors as the calls that compiled parts are compared on. */
static bool read_calls(call *c, PyObject *list, clv_trace_options *o)
{
	Py_ssize_t count = PyList_GET_SIZE(list);
	clv_trace_call *at = call_room(c, (size_t)count, sizeof *at);
	o->calls = at;
	for (; at && o->ncalls < (uint32_t)count; o->ncalls++)
		if (!take_array(c, 'C', PyList_GET_ITEM(list, o->ncalls), &at[o->ncalls].inputs, &at[o->ncalls].ninputs))
			return false;
	return at != NULL;
}

static bool read_options(call *c, PyObject *given, clv_trace_options *o)
{
	uint32_t n;                   /* of the environment, which ends with NULL */
	o->sandbox = CLV_SANDBOX_OFF; /* this process wrote the file itself */
	return take(c, given, "sSsSdzzIIIpdppSSddps", &o->python, &o->env, &n, &o->backend, &o->args, &o->nargs,
	            &o->timeout, &o->workdir, &o->cache, &o->parallel, &o->minimum_segment_size, &o->max_subgraph_count,
	            &o->fallback, &o->support_threshold, &o->dynamic, &o->dryrun, &o->ops, &o->nops, &o->modules,
	            &o->nmodules, &o->rtol, &o->atol, &o->keep_slower, &o->optimize);
}

static PyObject *finish_tracing(tracing *t, clv_status st, artifact *made)
{
	if (!t->raised)
		return st == CLV_OK ? artifact_object(made) : raise_status(st);
	if (st == CLV_OK)
		artifact_free(made);
	PyErr_Restore(t->type, t->value, t->tb);
	return NULL;
}

static clv_status trace_made(const artifact *a, const clv_trace_options *o, artifact **out)
{
	TRY(clv_trace(a, o, out));
	clv_status st = artifact_ready(*out);
	if (st != CLV_OK)
		artifact_free(*out);
	return st;
}

/* trace(artifact, calls, reasons, options, progress, log) -> the traced one, in memory */
PyObject *trace_py(PyObject *self, PyObject *args)
{
	call c = {0};
	PyObject *calls, *given;
	artifact *a, *made = NULL;
	tracing t = {0};
	clv_trace_options o = CLV_TRACE_OPTIONS_INIT;
	if (!take(NULL, args, "@[O(OO", &ArtifactType, &a, &calls, &t.no, &given, &t.progress, &t.log))
		return NULL;
	t.a = a;
	if (!check_reasons(a, t.no) || !read_options(&c, given, &o) || !read_calls(&c, calls, &o))
		return call_end(&c, NULL);
	o.select = why_not;
	o.progress = say_progress;
	o.log = say_line;
	o.ctx = &t;
	clv_status st = UNLOCKED(trace_made(a, &o, &made));
	return call_end(&c, finish_tracing(&t, st, made));
}

/* ---- traced files ----------------------------------------------------------------------------------------------------- */

static bool take_points(artifact *a, PyObject *points)
{
	if (PyList_GET_SIZE(points) != (Py_ssize_t)a->plans.n) {
		PyErr_SetString(PyExc_ValueError, "there is a list of points for each plan");
		return false;
	}
	for (uint32_t i = 0; i < a->plans.n; i++) {
		a->plans.at[i].points.n = 0;
		if (!add_points(&a->plans.at[i], PyList_GET_ITEM(points, i)))
			return false;
	}
	return true;
}

/* artifact_resave(artifact, path, points of each plan, notes, any_size): the same file again, with more sizes and notes */
PyObject *artifact_resave_py(PyObject *self, PyObject *args)
{
	call c = {0};
	PyObject *points, *notes;
	const char *path;
	artifact *from, *copy = NULL;
	bool any_size;
	if (!take(NULL, args, "@y[{p", &ArtifactType, &from, &path, &points, &notes, &any_size))
		return NULL;
	plan **none = call_room(&c, from->plans.n, sizeof *none);
	bool ok = none && ok_or_raise(artifact_reordered(from, none, &copy));
	if (ok)
		copy->any_size = any_size;
	ok = ok && take_points(copy, points) && add_notes(copy, notes);
	PyObject *out = ok ? none_or_raise(UNLOCKED(artifact_save(copy, path))) : NULL;
	artifact_free(copy);
	return call_end(&c, out);
}

/* difference(got, want) -> (the largest difference, the largest number of `want`) */
PyObject *difference_py(PyObject *self, PyObject *args)
{
	br_tensor *got, *want;
	double error, scale;
	if (!take(NULL, args, "tt", &got, &want) || !ok_or_raise(br_difference(got, want, &error, &scale)))
		return NULL;
	return Py_BuildValue("(dd)", error, scale);
}

static PyObject *segment_facts(const artifact_segment *s)
{
	DICT(out, s->facts.n, s->facts.at[i].key, PyUnicode_FromString(s->facts.at[i].text));
	return out;
}

static PyObject *segment_to(const artifact_segment *s)
{
	unsigned long long size = 0;
	for (uint32_t i = 0; i < s->members.n; i++)
		size += s->members.at[i].n;
	return Py_BuildValue("(IIsKN)", s->first, s->end, s->backend, size, segment_facts(s));
}

/* trace_segments(artifact, plan) -> ([(first, end, back end, bytes, facts)], [(node, why it is not compiled)]) */
PyObject *trace_segments_py(PyObject *self, PyObject *args)
{
	artifact *a;
	PyObject *number;
	uint32_t k;
	if (!take(NULL, args, "@O", &ArtifactType, &a, &number) || !index_of(number, a->plans.n, "plan", &k))
		return NULL;
	const artifact_plan *e = &a->plans.at[k];
	LIST(out, e->segments.n, segment_to(&e->segments.at[i]));
	LIST(rest, e->fallbacks.n, Py_BuildValue("(Is)", e->fallbacks.at[i].node, e->fallbacks.at[i].reason));
	return Py_BuildValue("(NN)", out, rest);
}

/* Why segments of a plan do not run here, as far as it is said. */
static bool read_tape(call *c, PyObject *list, const artifact *a, clv_report_options *o)
{
	const char **given;
	uint32_t n = clv_artifact_segment_count(a, o->plan), k;
	const char **all = take_array(c, 'N', list, &given, &k) ? call_room(c, n, sizeof *all) : NULL;
	for (uint32_t i = 0; all && i < n && i < k; i++)
		all[i] = given[i];
	o->on_tape = all;
	return all != NULL;
}

/* trace_report(artifact, plan, json, why segments do not run, eager ms, tape ms, traced ms) -> (text, share) */
PyObject *trace_report_py(PyObject *self, PyObject *args)
{
	call c = {0};
	artifact *a;
	PyObject *tape;
	clv_report_options o = CLV_REPORT_OPTIONS_INIT;
	double covered;
	char *text = NULL;
	bool ok =
		take(&c, args, "@IpOddd", &ArtifactType, &a, &o.plan, &o.json, &tape, &o.eager_ms, &o.tape_ms, &o.traced_ms) &&
		read_tape(&c, tape, a, &o) && ok_or_raise(clv_artifact_report(a, &o, &covered, &text));
	return call_end(&c, ok ? Py_BuildValue("(Nd)", take_string(CLV_OK, text), covered) : NULL);
}

/* trace_html(artifact, plan, why segments do not run, title, frontier) -> the page */
PyObject *trace_html_py(PyObject *self, PyObject *args)
{
	call c = {0};
	artifact *a;
	PyObject *tape;
	clv_report_options r = CLV_REPORT_OPTIONS_INIT;
	clv_html_options h = CLV_HTML_OPTIONS_INIT;
	int64_t frontier;
	char *page = NULL;
	if (!take(&c, args, "@IOzL", &ArtifactType, &a, &r.plan, &tape, &h.title, &frontier) || !read_tape(&c, tape, a, &r))
		return call_end(&c, NULL);
	h.frontier = frontier < 0 ? CLV_NONE : (uint32_t)frontier;
	clv_status st = clv_artifact_html(a, &r, &h, &page);
	return call_end(&c, take_string(st, page));
}

/* ---- tensors that are watched ------------------------------------------------------------------------------------------ */

/* An entry (holder or None, key, tensor): whether the holder still has this tensor. */
static bool is_held(PyObject *entry)
{
	PyObject *holder = PyTuple_GET_ITEM(entry, 0), *key = PyTuple_GET_ITEM(entry, 1);
	if (holder == Py_None)
		return true;
	PyObject *now = PyObject_GetItem(holder, key);
	bool held = now == PyTuple_GET_ITEM(entry, 2);
	Py_XDECREF(now);
	PyErr_Clear(); /* it is gone */
	return held;
}

static bool check_entries(PyObject *list)
{
	bool ok = true;
	for (Py_ssize_t i = 0; ok && i < PyList_GET_SIZE(list); i++) {
		PyObject *entry = PyList_GET_ITEM(list, i);
		ok = PyTuple_Check(entry) && PyTuple_GET_SIZE(entry) == 3 && py_borrow(PyTuple_GET_ITEM(entry, 2));
	}
	if (!ok)
		PyErr_SetString(PyExc_TypeError, "what is watched is a list of (holder or None, key, tensor)");
	return ok;
}

static uint64_t mark_of(PyObject *list, Py_ssize_t i, bool contents)
{
	const br_tensor *t = py_borrow(PyTuple_GET_ITEM(PyList_GET_ITEM(list, i), 2));
	uint64_t mark;
	if (!contents)
		return br_place(t);
	(void)br_mark(t, 0, &mark); /* as well as it can be told */
	return mark;
}

/* marks(list, contents) -> bytes: what the tensors look like now */
PyObject *marks_py(PyObject *self, PyObject *args)
{
	PyObject *list;
	bool contents;
	if (!take(NULL, args, "[p", &list, &contents) || !check_entries(list))
		return NULL;
	Py_ssize_t n = PyList_GET_SIZE(list);
	PyObject *out = PyBytes_FromStringAndSize(NULL, n * (Py_ssize_t)sizeof(uint64_t));
	for (Py_ssize_t i = 0; out && i < n; i++) {
		uint64_t mark = mark_of(list, i, contents);
		memcpy(PyBytes_AS_STRING(out) + (size_t)i * sizeof mark, &mark, sizeof mark);
	}
	return out;
}

/* marks_changed(list, contents, marks) -> the first entry that is not what it was; None: all are */
PyObject *marks_changed_py(PyObject *self, PyObject *args)
{
	PyObject *list, *before;
	bool contents;
	if (!take(NULL, args, "[pO", &list, &contents, &before) || !check_entries(list))
		return NULL;
	Py_ssize_t n = PyList_GET_SIZE(list);
	if (!PyBytes_Check(before) || PyBytes_GET_SIZE(before) != n * (Py_ssize_t)sizeof(uint64_t))
		return PyErr_Format(PyExc_ValueError, "there are %zd tensors, and marks for others", n);
	const char *marks = PyBytes_AS_STRING(before);
	for (Py_ssize_t i = 0; i < n; i++) {
		uint64_t mark = mark_of(list, i, contents);
		if (memcmp(marks + (size_t)i * sizeof mark, &mark, sizeof mark) != 0 || !is_held(PyList_GET_ITEM(list, i)))
			return PyLong_FromSsize_t(i);
	}
	Py_RETURN_NONE;
}

/* ---- warm compilers ---------------------------------------------------------------------------------------------- */

/* split_job(folder, log, control, report) -> whether this is the new process; of a compiler that serves (_job.py) */
PyObject *split_job_py(PyObject *self, PyObject *args)
{
	const char *dir, *log;
	int ends[2];
	bool inside = false;
	if (!take(NULL, args, "yyii", &dir, &log, &ends[0], &ends[1]))
		return NULL;
	PyOS_BeforeFork();
	clv_status st = child_split(dir, log, ends, &inside);
	if (inside)
		PyOS_AfterFork_Child();
	else
		PyOS_AfterFork_Parent();
	return st == CLV_OK ? PyBool_FromLong(inside) : raise_status(st);
}

/* warm_compilers() -> the processes that watch over compilers which wait for jobs */
PyObject *warm_compilers_py(PyObject *self, PyObject *none)
{
	pid_t pids[16];
	uint32_t n = warm_count(pids, 16);
	LIST(list, n < 16 ? n : 16, PyLong_FromLong(pids[i]));
	return list;
}
