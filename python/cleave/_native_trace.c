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
	PyObject *list = PyList_New(0), *out;
	for (uint32_t d = 0; list && d < v->ndim; d++)
		list_push(&list, dim_of(p, p->dims.at[v->shape + d]));
	out = list ? PyList_AsTuple(list) : NULL;
	Py_XDECREF(list);
	return out;
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
	PyObject *name = take_string(st, label);
	list_push(&t->list, name ? Py_BuildValue("(NsN)", name, dtype_name((dtype)v->dtype), dims_of(t->p, v)) : NULL);
}

/* (names on the path, [inputs], [outputs]) */
static PyObject *describe_node(const plan *p, node_id n)
{
	tensor_list in = {p, PyList_New(0)}, out = {p, PyList_New(0)};
	node_each_arg(p, n, describe_tensor, &in);
	node_each_result(p, n, describe_tensor, &out);
	PyObject *names = in.list && out.list ? scope_names(p, p->nodes.at[n].scope) : NULL;
	if (names)
		return Py_BuildValue("(NNN)", names, in.list, out.list);
	Py_XDECREF(in.list);
	Py_XDECREF(out.list);
	return NULL;
}

PyObject *plan_py_descriptions(PlanObject *o, PyObject *unused)
{
	PyObject *out = PyList_New(0);
	for (node_id n = 0; out && n < o->p->nodes.n; n++)
		list_push(&out, describe_node(o->p, n));
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

typedef struct trace_calls {
	clv_trace_call *at;
	clv_tensor ***tensors;
	Py_ssize_t n;
} trace_calls;

static void trace_calls_free(trace_calls *c)
{
	for (Py_ssize_t i = 0; i < c->n; i++)
		core_free(c->tensors[i], c->at[i].ninputs);
	PyMem_Free(c->at);
	PyMem_Free(c->tensors);
}

static bool trace_calls_read(PyObject *list, trace_calls *c)
{
	Py_ssize_t count = PyList_GET_SIZE(list);
	c->at = PyMem_Calloc((size_t)count + 1, sizeof *c->at);
	c->tensors = PyMem_Calloc((size_t)count + 1, sizeof *c->tensors);
	if (!c->at || !c->tensors) {
		PyErr_NoMemory();
		return false;
	}
	for (; c->n < count; c->n++) {
		Py_ssize_t n;
		clv_tensor **tensors = core_array(PyList_GET_ITEM(list, c->n), &n);
		if (!tensors)
			return false;
		c->tensors[c->n] = tensors;
		c->at[c->n] = (clv_trace_call){(const clv_tensor *const *)tensors, (uint32_t)n};
	}
	return true;
}

/* The texts of the options; borrowed from Python. */
typedef struct option_lists {
	const char **args, **env, **ops, **modules;
} option_lists;

static bool read_options(PyObject *given, clv_trace_options *o, option_lists *l)
{
	PyObject *args, *env, *ops, *modules;
	int fallback, dynamic, dryrun, keep_slower;
	uint32_t n;
	if (!PyArg_ParseTuple(given, "sO!sO!dzzIIIpdppO!O!ddps", &o->python, &PyList_Type, &env, &o->backend, &PyList_Type,
	                      &args, &o->timeout, &o->workdir, &o->cache, &o->parallel, &o->minimum_segment_size,
	                      &o->max_subgraph_count, &fallback, &o->support_threshold, &dynamic, &dryrun, &PyList_Type,
	                      &ops, &PyList_Type, &modules, &o->rtol, &o->atol, &keep_slower, &o->optimize))
		return false;
	o->fallback = fallback != 0;
	o->dynamic = dynamic != 0;
	o->dryrun = dryrun != 0;
	o->keep_slower = keep_slower != 0;
	o->sandbox = CLV_SANDBOX_OFF; /* this process wrote the file itself */
	l->args = string_array(args, &o->nargs);
	l->env = string_array(env, &n); /* it ends with NULL */
	l->ops = string_array(ops, &o->nops);
	l->modules = string_array(modules, &o->nmodules);
	o->args = l->args;
	o->env = l->env;
	o->ops = l->ops;
	o->modules = l->modules;
	return l->args && l->env && l->ops && l->modules;
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
	PyObject *file, *calls, *given;
	artifact *made = NULL;
	tracing t = {0};
	clv_trace_options o = CLV_TRACE_OPTIONS_INIT;
	option_lists lists = {0};
	trace_calls c = {0};
	PyObject *out = NULL;
	if (!PyArg_ParseTuple(args, "O!O!OO!OO", &ArtifactType, &file, &PyList_Type, &calls, &t.no, &PyTuple_Type, &given,
	                      &t.progress, &t.log))
		return NULL;
	t.a = artifact_of(file);
	if (check_reasons(t.a, t.no) && read_options(given, &o, &lists) && trace_calls_read(calls, &c)) {
		clv_status st;
		o.calls = c.at;
		o.ncalls = (uint32_t)c.n;
		o.select = why_not;
		o.progress = say_progress;
		o.log = say_line;
		o.ctx = &t;
		Py_BEGIN_ALLOW_THREADS
		st = trace_made(t.a, &o, &made);
		Py_END_ALLOW_THREADS
		out = finish_tracing(&t, st, made);
	}
	trace_calls_free(&c);
	PyMem_Free(lists.args);
	PyMem_Free(lists.env);
	PyMem_Free(lists.ops);
	PyMem_Free(lists.modules);
	return out;
}

/* ---- traced files ----------------------------------------------------------------------------------------------------- */

static clv_status set_points(artifact_plan *e, const int64_t *at, Py_ssize_t n)
{
	e->points.n = 0;
	for (Py_ssize_t i = 0; i < n; i++)
		TRY(vec_push(&e->points, at[i]));
	return CLV_OK;
}

static bool take_points(artifact *a, PyObject *points)
{
	if (PyList_GET_SIZE(points) != (Py_ssize_t)a->plans.n) {
		PyErr_SetString(PyExc_ValueError, "there is a list of points for each plan");
		return false;
	}
	for (uint32_t i = 0; i < a->plans.n; i++) {
		Py_ssize_t n = 0;
		int64_t *at = int_array(PyList_GET_ITEM(points, i), &n);
		clv_status st = PyErr_Occurred() ? CLV_OK : set_points(&a->plans.at[i], at, n);
		PyMem_Free(at);
		if (st != CLV_OK)
			raise_status(st);
		if (PyErr_Occurred())
			return false;
	}
	return true;
}

static bool take_notes(artifact *a, PyObject *notes)
{
	PyObject *key, *text;
	Py_ssize_t at = 0;
	while (PyDict_Next(notes, &at, &key, &text)) {
		const char *k = PyUnicode_AsUTF8(key), *t = PyUnicode_AsUTF8(text);
		clv_status st = k && t ? artifact_note_add(a, k, t) : CLV_OK;
		if (st != CLV_OK)
			raise_status(st);
		if (PyErr_Occurred())
			return false;
	}
	return true;
}

/* artifact_resave(artifact, path, points of each plan, notes, any_size): the same file again, with more sizes and notes */
PyObject *artifact_resave_py(PyObject *self, PyObject *args)
{
	PyObject *file, *points, *notes;
	const char *path;
	artifact *copy = NULL;
	clv_status st;
	int any_size;
	if (!PyArg_ParseTuple(args, "O!yO!O!p", &ArtifactType, &file, &path, &PyList_Type, &points, &PyDict_Type, &notes,
	                      &any_size))
		return NULL;
	const artifact *from = artifact_of(file);
	plan **none = PyMem_Calloc(from->plans.n + 1, sizeof *none);
	if (!none)
		return PyErr_NoMemory();
	st = artifact_reordered(from, none, &copy);
	PyMem_Free(none);
	if (st != CLV_OK)
		return raise_status(st);
	PyObject *out = NULL;
	copy->any_size = any_size;
	if (take_points(copy, points) && take_notes(copy, notes)) {
		Py_BEGIN_ALLOW_THREADS
		st = artifact_save(copy, path);
		Py_END_ALLOW_THREADS
		out = none_or_raise(st);
	}
	artifact_free(copy);
	return out;
}

/* difference(got, want) -> (the largest difference, the largest number of `want`) */
PyObject *difference_py(PyObject *self, PyObject *args)
{
	PyObject *got, *want;
	double error, scale;
	if (!PyArg_ParseTuple(args, "OO", &got, &want) || !need_tensor(got) || !need_tensor(want))
		return NULL;
	clv_status st = br_difference(py_borrow(got), py_borrow(want), &error, &scale);
	return st == CLV_OK ? Py_BuildValue("(dd)", error, scale) : raise_status(st);
}

/* segments(plan) -> list of (first, end, backend, bytes, facts) */
static PyObject *segment_facts(const artifact_segment *s)
{
	PyObject *out = PyDict_New();
	for (uint32_t i = 0; out && i < s->facts.n; i++)
		dict_put(&out, s->facts.at[i].key, PyUnicode_FromString(s->facts.at[i].text));
	return out;
}

static PyObject *segment_to(const artifact_segment *s)
{
	unsigned long long size = 0;
	for (uint32_t i = 0; i < s->members.n; i++)
		size += s->members.at[i].n;
	return Py_BuildValue("(IIsKN)", s->first, s->end, s->backend, size, segment_facts(s));
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

static uint64_t mark_of(PyObject *list, Py_ssize_t i, int contents)
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
	int contents;
	if (!PyArg_ParseTuple(args, "O!p", &PyList_Type, &list, &contents) || !check_entries(list))
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
	PyObject *list;
	int contents;
	const char *marks;
	Py_ssize_t size;
	if (!PyArg_ParseTuple(args, "O!py#", &PyList_Type, &list, &contents, &marks, &size) || !check_entries(list))
		return NULL;
	Py_ssize_t n = PyList_GET_SIZE(list);
	if (size != n * (Py_ssize_t)sizeof(uint64_t))
		return PyErr_Format(PyExc_ValueError, "there are %zd tensors, and marks for others", n);
	for (Py_ssize_t i = 0; i < n; i++) {
		uint64_t mark = mark_of(list, i, contents);
		if (memcmp(marks + (size_t)i * sizeof mark, &mark, sizeof mark) != 0 || !is_held(PyList_GET_ITEM(list, i)))
			return PyLong_FromSsize_t(i);
	}
	Py_RETURN_NONE;
}

/* trace_segments(artifact, plan) -> (segments, fallbacks) */
PyObject *trace_segments_py(PyObject *self, PyObject *args)
{
	PyObject *file;
	unsigned number;
	if (!PyArg_ParseTuple(args, "O!I", &ArtifactType, &file, &number))
		return NULL;
	const artifact *a = artifact_of(file);
	if (number >= a->plans.n)
		return PyErr_Format(PyExc_IndexError, "there is no plan %u", number);
	const artifact_plan *e = &a->plans.at[number];
	PyObject *out = PyList_New(0), *rest = PyList_New(0);
	for (uint32_t i = 0; out && rest && i < e->segments.n; i++)
		list_push(&out, segment_to(&e->segments.at[i]));
	for (uint32_t i = 0; out && rest && i < e->fallbacks.n; i++)
		list_push(&rest, Py_BuildValue("(Is)", e->fallbacks.at[i].node, e->fallbacks.at[i].reason));
	if (out && rest)
		return Py_BuildValue("(NN)", out, rest);
	Py_XDECREF(out);
	Py_XDECREF(rest);
	return NULL;
}

/* Why segments of a plan do not run here; NULL: an exception is set. PyMem_Free. */
static const char **tape_reasons(const artifact *a, unsigned number, PyObject *list)
{
	uint32_t n = clv_artifact_segment_count(a, number);
	const char **out = PyMem_Calloc((size_t)n + 1, sizeof *out);
	if (!out)
		return (const char **)PyErr_NoMemory();
	for (uint32_t i = 0; i < n && i < PyList_GET_SIZE(list); i++) {
		PyObject *text = PyList_GET_ITEM(list, i);
		if (text != Py_None && !(out[i] = PyUnicode_AsUTF8(text))) {
			PyMem_Free(out);
			return NULL;
		}
	}
	return out;
}

/* trace_report(artifact, plan, json, why segments do not run, eager ms, tape ms, traced ms) -> (text, share) */
PyObject *trace_report_py(PyObject *self, PyObject *args)
{
	PyObject *file, *tape;
	clv_report_options o = CLV_REPORT_OPTIONS_INIT;
	int json;
	double covered;
	char *text = NULL;
	if (!PyArg_ParseTuple(args, "O!IpO!ddd", &ArtifactType, &file, &o.plan, &json, &PyList_Type, &tape, &o.eager_ms,
	                      &o.tape_ms, &o.traced_ms))
		return NULL;
	o.json = json != 0;
	const char **reasons = tape_reasons(artifact_of(file), o.plan, tape);
	if (!reasons)
		return NULL;
	o.on_tape = reasons;
	clv_status st = clv_artifact_report(artifact_of(file), &o, &covered, &text);
	PyMem_Free(reasons);
	return st == CLV_OK ? Py_BuildValue("(Nd)", take_string(st, text), covered) : raise_status(st);
}

/* trace_html(artifact, plan, why segments do not run, title, frontier) -> the page */
PyObject *trace_html_py(PyObject *self, PyObject *args)
{
	PyObject *file, *tape;
	clv_report_options r = CLV_REPORT_OPTIONS_INIT;
	clv_html_options h = CLV_HTML_OPTIONS_INIT;
	long long frontier;
	char *page = NULL;
	if (!PyArg_ParseTuple(args, "O!IO!zL", &ArtifactType, &file, &r.plan, &PyList_Type, &tape, &h.title, &frontier))
		return NULL;
	const char **reasons = tape_reasons(artifact_of(file), r.plan, tape);
	if (!reasons)
		return NULL;
	r.on_tape = reasons;
	h.frontier = frontier < 0 ? CLV_NONE : (uint32_t)frontier;
	clv_status st = clv_artifact_html(artifact_of(file), &r, &h, &page);
	PyMem_Free(reasons);
	return take_string(st, page);
}

/* ---- warm compilers ---------------------------------------------------------------------------------------------- */

/* split_job(folder, log, control, report) -> whether this is the new process; of a compiler that serves (_job.py) */
PyObject *split_job_py(PyObject *self, PyObject *args)
{
	const char *dir, *log;
	int ends[2];
	bool inside = false;
	if (!PyArg_ParseTuple(args, "yyii", &dir, &log, &ends[0], &ends[1]))
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
	PyObject *list = PyList_New(0);
	for (uint32_t i = 0; list && i < n && i < 16; i++)
		list_push(&list, PyLong_FromLong(pids[i]));
	return list;
}
