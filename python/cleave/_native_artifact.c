/* Artifacts: plans with their data, and the tensors of a model, out as a file. What a file may be is decided in src/file. */
#include "_native_file.h"
#include "_native_segment.h"

#include "file/training.h"

/* ---- writing ---------------------------------------------------------------------------------------------------- */

typedef struct saver {
	artifact *a;
	PyObject *plans;   /* borrowed: list of (Plan, signature, cut, stores, points, fixed, segments, Checks) */
	PyObject *state;   /* borrowed: dict of name to tensor */
	PyObject *tensors; /* list of what goes in */
	PyObject *labels;  /* list of their names */
	PyObject *named;   /* set of the names of state that are in */
} saver;

static bool saver_need(saver *s, PyObject *label, PyObject *tensor)
{
	return label && tensor && PyList_Append(s->labels, label) == 0 && PyList_Append(s->tensors, tensor) == 0;
}

static bool need_state(saver *s, const char *name)
{
	PyObject *key = PyUnicode_FromString(name), *tensor = key ? PyDict_GetItemWithError(s->state, key) : NULL;
	int seen = key ? PySet_Contains(s->named, key) : -1;
	bool ok = seen == 1 || (seen == 0 && tensor && PySet_Add(s->named, key) == 0 && saver_need(s, key, tensor));
	if (!ok && !PyErr_Occurred())
		PyErr_Format(PyExc_KeyError, "no module tensor %s", name);
	Py_XDECREF(key);
	return ok;
}

static const char *const CONST_NAME = "cleave.const.%u";

/* The number of a tensor that is the same as this constant, to the last bit and in its layout; NONE: there is none. */
static uint32_t find_const(const saver *s, const br_tensor *t)
{
	br_meta want, m;
	if (br_meta_get(t, &want) != CLV_OK)
		return NONE;
	for (Py_ssize_t i = 0; i < PyList_GET_SIZE(s->tensors); i++) {
		const br_tensor *other = py_borrow(PyList_GET_ITEM(s->tensors, i));
		const char *label = PyUnicode_AsUTF8(PyList_GET_ITEM(s->labels, i));
		bool same = false;
		if (!label || strncmp(label, "cleave.const.", 13) != 0 || br_meta_get(other, &m) != CLV_OK ||
		    m.ndim != want.ndim || memcmp(m.strides, want.strides, m.ndim * sizeof *m.strides) != 0 ||
		    strcmp(m.device, want.device) != 0)
			continue;
		if (br_bits_equal(other, t, &same) == CLV_OK && same)
			return (uint32_t)i;
	}
	return NONE;
}

static bool need_const(saver *s, artifact_plan *e, PlanObject *o, value_id v)
{
	const br_tensor *t = v < o->data.n ? o->data.tensors[v] : NULL;
	if (!t) {
		PyErr_SetString(PyExc_ValueError, "the plan has a constant without data: it was read from text");
		return false;
	}
	artifact_const c = {v, find_const(s, t)};
	if (c.tensor == NONE) {
		c.tensor = (uint32_t)PyList_GET_SIZE(s->tensors);
		PyObject *label = PyUnicode_FromFormat(CONST_NAME, c.tensor), *wrapped = py_wrap(br_ref(t));
		bool ok = saver_need(s, label, wrapped);
		Py_XDECREF(label);
		Py_XDECREF(wrapped);
		if (!ok)
			return false;
	}
	return ok_or_raise(vec_push(&e->consts, c));
}

/* What the nodes of plan i read from outside. An object is left to artifact_check, which says whose it is. */
static bool need_externals(saver *s, uint32_t i, PlanObject *o)
{
	artifact_plan *e = &s->a->plans.at[i];
	view v;
	if (!ok_or_raise(view_range(e->p, e->first, e->end, &v)))
		return false;
	bool ok = true;
	for (uint32_t k = 0; ok && k < v.externals.n; k++) {
		const value *x = &e->p->values.at[v.externals.at[k]];
		if (x->kind == VALUE_CONST)
			ok = need_const(s, e, o, v.externals.at[k]);
		else if (x->kind != VALUE_OBJECT && s->a->weights)
			ok = need_state(s, plan_s(e->p, x->name));
	}
	view_free(&v);
	return ok;
}

bool add_points(artifact_plan *e, PyObject *points)
{
	call c = {0};
	int64_t *at;
	uint32_t n;
	bool ok = take_array(&c, 'X', points, &at, &n);
	for (uint32_t i = 0; ok && i < n; i++)
		ok = ok_or_raise(vec_push(&e->points, at[i]));
	call_end(&c, NULL);
	return ok;
}

static bool add_fixed(artifact *a, artifact_plan *e, PyObject *fixed)
{
	Py_ssize_t at = 0;
	const char *name;
	PyObject *size;
	while (next_text(fixed, &at, &name, &size)) {
		payload_number n = {.value = PyLong_AsLongLong(size)};
		if (PyErr_Occurred() || !ok_or_raise(artifact_text(a, name, &n.name)) || !ok_or_raise(vec_push(&e->fixed, n)))
			return false;
	}
	return !PyErr_Occurred();
}

static bool add_segment(saver *s, PyObject *item)
{
	artifact_segment x = {0};
	bool ok = segment_read(item, &x) && ok_or_raise(artifact_add_segment(s->a, s->a->plans.n - 1, &x));
	segment_clear(&x);
	return ok;
}

static bool add_segments(saver *s, PyObject *list)
{
	for (Py_ssize_t i = 0; list && i < PyList_GET_SIZE(list); i++)
		if (!add_segment(s, PyList_GET_ITEM(list, i)))
			return false;
	return true;
}

static bool add_plan(saver *s, PyObject *item)
{
	PlanObject *o;
	const char *signature;
	uint32_t stores;
	int64_t cut;
	PyObject *points, *fixed, *compiled_parts = NULL, *checks = NULL;
	plan *copy;
	if (!take(NULL, item, "!sLI[{|[O", &PlanType, &o, &signature, &cut, &stores, &points, &fixed, &compiled_parts,
	          &checks) ||
	    !ok_or_raise(plan_copy(o->p, &copy)) || !ok_or_raise(artifact_add_plan(s->a, copy, signature)))
		return false;
	artifact_plan *e = &s->a->plans.at[s->a->plans.n - 1];
	e->cut = cut < 0 ? NONE : (node_id)cut;
	e->nstores = stores;
	return add_points(e, points) && add_fixed(s->a, e, fixed) && (!checks || ok_or_raise(checks_asked(checks, e))) &&
	       add_segments(s, compiled_parts);
}

static bool add_plans(saver *s, const char *part, const char *boundary)
{
	Py_ssize_t n = PyList_GET_SIZE(s->plans);
	for (Py_ssize_t i = 0; i < n; i++)
		if (!add_plan(s, PyList_GET_ITEM(s->plans, i)))
			return false;
	clv_split_options o = CLV_SPLIT_OPTIONS_INIT;
	o.boundary = boundary;
	if ((boundary && !ok_or_raise(artifact_cut(s->a, &o))) || !ok_or_raise(artifact_restrict(s->a, part)))
		return false;
	for (Py_ssize_t i = 0; i < n; i++)
		if (!need_externals(s, (uint32_t)i, (PlanObject *)PyTuple_GET_ITEM(PyList_GET_ITEM(s->plans, i), 0)))
			return false;
	return true;
}

static bool saver_add_tensor(saver *s, PyObject *label, PyObject *original, PyObject *host)
{
	payload_tensor t = {.label = keep_text(s->a->tensors, label)};
	uint32_t number;
	return t.label && tensor_of(s->a->tensors, &t, original, host) &&
	       ok_or_raise(payload_add_tensor(s->a->tensors, &t, &number));
}

static PyObject *saver_add_tensors(saver *s, PyObject *to_host)
{
	PyObject *hosts = PyObject_CallOneArg(to_host, s->tensors);
	Py_ssize_t n = PyList_GET_SIZE(s->tensors);
	bool ok = hosts && PyList_Check(hosts) && PyList_GET_SIZE(hosts) == n;
	for (Py_ssize_t i = 0; ok && i < n; i++)
		ok = saver_add_tensor(s, PyList_GET_ITEM(s->labels, i), PyList_GET_ITEM(s->tensors, i),
		                      PyList_GET_ITEM(hosts, i));
	if (!ok)
		Py_CLEAR(hosts);
	return hosts;
}

bool add_notes(artifact *a, PyObject *notes)
{
	Py_ssize_t at = 0;
	const char *key, *text;
	PyObject *item;
	while (next_text(notes, &at, &key, &item))
		if (!(text = PyUnicode_AsUTF8(item)) || !ok_or_raise(artifact_note_add(a, key, text)))
			return false;
	return !PyErr_Occurred();
}

static bool add_digests(saver *s, PyObject *digests)
{
	Py_ssize_t at = 0;
	const char *name;
	PyObject *item;
	while (next_text(digests, &at, &name, &item)) {
		long long number = PyLong_AsLongLong(item);
		if (PyErr_Occurred() || !ok_or_raise(artifact_add_weight(s->a, name, number)))
			return false;
	}
	return !PyErr_Occurred();
}

static bool set_head(saver *s, PyObject *head)
{
	const char *split_id, *boundary, *batch;
	PyObject *digests;
	bool weights;
	if (!take(NULL, head, "sss{p", &split_id, &boundary, &batch, &digests, &weights) ||
	    !ok_or_raise(artifact_new("all", &s->a)))
		return false;
	s->a->weights = weights;
	return add_digests(s, digests) && ok_or_raise(artifact_text(s->a, split_id, &s->a->split_id)) &&
	       ok_or_raise(artifact_text(s->a, boundary, &s->a->boundary)) &&
	       ok_or_raise(artifact_text(s->a, batch, &s->a->batch));
}

/* trains: None, or (description as JSON, its loss as the bytes of a file) */
static bool add_training(saver *s, PyObject *trains)
{
	call c = {0};
	const char *text;
	const void *loss;
	size_t n;
	bool ok = trains == Py_None ||
	          (take(&c, trains, "sB", &text, &loss, &n) && ok_or_raise(artifact_add_training(s->a, text, loss, n)));
	call_end(&c, NULL);
	return ok;
}

/* Without the GIL, if need be. */
static void lent_free(void *lent)
{
	for (clv_tensor **t = lent; *t; t++)
		clv_tensor_free(*t);
	mem_free(lent);
}

/* An artifact in memory lies on these tensors. */
static PyObject *keep_in_memory(saver *s, PyObject *hosts)
{
	call c = {0};
	clv_tensor **tensors;
	uint32_t n;
	if (!take_array(&c, 'C', hosts, &tensors, &n))
		return call_end(&c, NULL);
	clv_tensor **lent = mem_alloc((n + 1) * sizeof *lent);
	for (uint32_t i = 0; lent && i < n; i++)
		lent[i] = tensor_ref(tensors[i]);
	call_end(&c, NULL);
	if (!lent)
		return PyErr_NoMemory();
	s->a->lent = lent;
	s->a->release = lent_free;
	return ok_or_raise(artifact_ready(s->a)) ? artifact_object(artifact_ref(s->a)) : NULL;
}

/* artifact_save(path or None: it is given, part, boundary or None, head, notes, plans, state, to_host, training=None); see
   _native.pyi */
PyObject *artifact_save_py(PyObject *self, PyObject *args)
{
	PyObject *file, *head, *notes, *to_host, *trains = Py_None, *hosts = NULL, *out = NULL;
	const char *part, *boundary;
	saver s = {0};
	if (!take(NULL, args, "Osz({[{O|O", &file, &part, &boundary, &head, &notes, &s.plans, &s.state, &to_host, &trains))
		return NULL;
	const char *path = path_of(file);
	s.tensors = PyList_New(0);
	s.labels = PyList_New(0);
	s.named = PySet_New(NULL);
	if (s.tensors && s.labels && s.named && set_head(&s, head) && add_notes(s.a, notes) &&
	    add_plans(&s, part, boundary) && add_training(&s, trains))
		hosts = saver_add_tensors(&s, to_host);
	if (hosts)
		out = path ? none_or_raise(UNLOCKED(artifact_save(s.a, path))) : keep_in_memory(&s, hosts);
	Py_XDECREF(hosts);
	artifact_free(s.a);
	Py_XDECREF(s.tensors);
	Py_XDECREF(s.labels);
	Py_XDECREF(s.named);
	return out;
}
