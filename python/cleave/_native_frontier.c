/* Frontiers of a Plan: listed, chosen by a boundary and an objective, and the exact cut. */
#include "_native.h"

#include <stddef.h>

#include "split/early.h"
#include "split/frontier.h"

/* ---- what Python gives ----------------------------------------------------------------------------------------------- */

bool size_list_read(PyObject *dict, size_list *out)
{
	Py_ssize_t n = dict == Py_None ? 0 : PyDict_Check(dict) ? PyDict_Size(dict) : -1, at = 0;
	PyObject *key, *item;
	*out = (size_list){0};
	if (n < 0) {
		PyErr_SetString(PyExc_TypeError, "sizes is a dict of symbols or None");
		return false;
	}
	out->names = PyMem_Calloc((size_t)n + 1, sizeof *out->names);
	out->values = PyMem_Calloc((size_t)n + 1, sizeof *out->values);
	if (!out->names || !out->values)
		PyErr_NoMemory();
	for (uint32_t i = 0; !PyErr_Occurred() && i < n && PyDict_Next(dict, &at, &key, &item); i++) {
		out->names[i] = PyUnicode_AsUTF8(key);
		out->values[i] = PyErr_Occurred() ? 0 : PyLong_AsLongLong(item);
	}
	out->n = (uint32_t)n;
	return !PyErr_Occurred();
}

void size_list_free(size_list *s)
{
	PyMem_Free(s->names);
	PyMem_Free(s->values);
}

static clv_frontiers *frontiers_at(PlanObject *o, PyObject *sizes)
{
	clv_frontiers *f = NULL;
	size_list s;
	if (size_list_read(sizes, &s)) {
		clv_sizes at = {s.names, s.values, s.n};
		clv_status st = clv_frontiers_create(o->p, &at, &f);
		if (st != CLV_OK)
			raise_status(st);
	}
	size_list_free(&s);
	return f;
}

enum field_type { FIELD_BOOL, FIELD_INT, FIELD_FLOAT, FIELD_TEXT };

#define FIELD(type, name)                                                                                              \
	{                                                                                                                  \
#name, type, offsetof(clv_objective, name)                                                                     \
	}

static const struct field {
	const char *name;
	enum field_type type;
	size_t offset;
} fields[] = {
	FIELD(FIELD_TEXT, minimize),
	FIELD(FIELD_BOOL, trainable_suffix),
	FIELD(FIELD_INT, max_boundary_bytes),
	FIELD(FIELD_INT, max_prefix_memory),
	FIELD(FIELD_INT, max_suffix_memory),
	FIELD(FIELD_INT, max_prefix_params),
	FIELD(FIELD_INT, max_suffix_params),
	FIELD(FIELD_FLOAT, min_prefix_flops_fraction),
	FIELD(FIELD_FLOAT, max_prefix_flops_fraction),
	FIELD(FIELD_FLOAT, max_latency_s),
	FIELD(FIELD_FLOAT, bandwidth_bytes_per_s),
	FIELD(FIELD_FLOAT, prefix_flops_per_s),
	FIELD(FIELD_FLOAT, suffix_flops_per_s),
	FIELD(FIELD_TEXT, compress),
	FIELD(FIELD_FLOAT, compress_bytes_per_s),
};

static void set_field(clv_objective *o, const struct field *f, PyObject *item)
{
	void *at = (char *)o + f->offset;
	switch (f->type) {
	case FIELD_BOOL: *(bool *)at = PyObject_IsTrue(item) == 1; break;
	case FIELD_INT: *(int64_t *)at = PyLong_AsLongLong(item); break;
	case FIELD_FLOAT: *(double *)at = PyFloat_AsDouble(item); break;
	case FIELD_TEXT: *(const char **)at = PyUnicode_AsUTF8(item); break;
	}
}

/* dict: names of the fields of clv_objective; texts are borrowed from it */
static bool read_objective(PyObject *dict, clv_objective *out)
{
	PyObject *key, *item;
	Py_ssize_t at = 0;
	*out = (clv_objective)CLV_OBJECTIVE_INIT;
	while (PyDict_Next(dict, &at, &key, &item)) {
		const struct field *found = NULL;
		for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
			if (PyUnicode_Check(key) && PyUnicode_CompareWithASCIIString(key, fields[i].name) == 0)
				found = &fields[i];
		if (!found)
			PyErr_Format(PyExc_KeyError, "an objective has no field %R", key);
		else
			set_field(out, found, item);
		if (PyErr_Occurred())
			return false;
	}
	return true;
}

/* ---- what Python gets ------------------------------------------------------------------------------------------------ */

static PyObject *bytes_text(const clv_frontiers *f, uint32_t i)
{
	char *text = NULL;
	clv_status st = clv_frontiers_bytes_text(f, i, &text);
	return take_string(st, text);
}

static PyObject *label_tuple(const clv_frontiers *f, uint32_t i)
{
	char *text = NULL;
	clv_status st = clv_frontiers_labels(f, i, &text);
	PyObject *all = take_string(st, text), *list = all ? PyUnicode_Split(all, NULL, -1) : NULL;
	PyObject *out = list ? PyList_AsTuple(list) : NULL;
	Py_XDECREF(all);
	Py_XDECREF(list);
	return out;
}

static PyObject *frontier_tuple(const clv_frontiers *f, uint32_t i)
{
	clv_frontier c = {.size = sizeof c};
	clv_status st = clv_frontiers_get(f, i, &c);
	if (st != CLV_OK)
		return raise_status(st);
	PyObject *bytes = bytes_text(f, i), *names = bytes ? label_tuple(f, i) : NULL;
	if (!names) {
		Py_XDECREF(bytes);
		return NULL;
	}
	return Py_BuildValue("(IssIILdOzNNIIddLLLLLL)", c.position, c.name, c.module, c.boundary_tensors,
	                     c.passthrough_inputs, (long long)c.boundary_bytes, c.prefix_cost,
	                     c.trainable_suffix ? Py_True : Py_False, c.unsafe, bytes, names, c.prefix_nodes,
	                     c.suffix_nodes, c.prefix_flops, c.suffix_flops, (long long)c.prefix_params,
	                     (long long)c.suffix_params, (long long)c.prefix_param_bytes, (long long)c.suffix_param_bytes,
	                     (long long)c.prefix_memory, (long long)c.suffix_memory);
}

PyObject *plan_py_frontiers(PlanObject *o, PyObject *args)
{
	PyObject *sizes = Py_None;
	if (!PyArg_ParseTuple(args, "|O", &sizes))
		return NULL;
	clv_frontiers *f = frontiers_at(o, sizes);
	PyObject *out = f ? PyList_New(0) : NULL;
	for (uint32_t i = 0; out && i < clv_frontiers_count(f); i++)
		list_push(&out, frontier_tuple(f, i));
	clv_frontiers_free(f);
	return out;
}

PyObject *plan_py_work(PlanObject *o, PyObject *args)
{
	PyObject *sizes = Py_None;
	clv_total total = {.size = sizeof total};
	if (!PyArg_ParseTuple(args, "|O", &sizes))
		return NULL;
	clv_frontiers *f = frontiers_at(o, sizes);
	clv_status st = f ? clv_frontiers_total(f, &total) : CLV_OK;
	clv_frontiers_free(f);
	if (!f)
		return NULL;
	return st == CLV_OK ? PyFloat_FromDouble(total.flops) : raise_status(st);
}

PyObject *plan_py_choose(PlanObject *o, PyObject *args)
{
	const char *boundary;
	PyObject *dict, *sizes = Py_None;
	clv_objective objective;
	uint32_t i = 0;
	if (!PyArg_ParseTuple(args, "sO!|O", &boundary, &PyDict_Type, &dict, &sizes) || !read_objective(dict, &objective))
		return NULL;
	clv_frontiers *f = frontiers_at(o, sizes);
	if (!f)
		return NULL;
	clv_status st = clv_frontiers_choose(f, boundary, &objective, &i);
	clv_frontiers_free(f);
	return st == CLV_OK ? PyLong_FromUnsignedLong(i) : raise_status(st);
}

PyObject *plan_py_check(PlanObject *o, PyObject *args)
{
	unsigned int i;
	PyObject *dict, *sizes = Py_None;
	clv_objective objective;
	if (!PyArg_ParseTuple(args, "IO!|O", &i, &PyDict_Type, &dict, &sizes) || !read_objective(dict, &objective))
		return NULL;
	clv_frontiers *f = frontiers_at(o, sizes);
	if (!f)
		return NULL;
	clv_status st = clv_frontiers_check(f, i, &objective);
	clv_frontiers_free(f);
	return none_or_raise(st);
}

PyObject *plan_py_latency(PlanObject *o, PyObject *args)
{
	unsigned int i;
	PyObject *dict, *sizes = Py_None;
	clv_objective objective;
	clv_latency l = {.size = sizeof l};
	clv_total all = {.size = sizeof all};
	char *advice = NULL;
	if (!PyArg_ParseTuple(args, "IO!|O", &i, &PyDict_Type, &dict, &sizes) || !read_objective(dict, &objective))
		return NULL;
	clv_frontiers *f = frontiers_at(o, sizes);
	if (!f)
		return NULL;
	clv_status st = clv_frontiers_latency(f, i, &objective, &l);
	if (st == CLV_OK)
		st = clv_frontiers_total(f, &all);
	if (st == CLV_OK)
		st = clv_frontiers_advice(f, i, &objective, &advice);
	clv_frontiers_free(f);
	PyObject *out = st == CLV_OK ? Py_BuildValue("(dddLLz)", l.cut_s, l.here_s, l.there_s, (long long)l.sent_bytes,
	                                             (long long)all.input_bytes, advice)
	                             : raise_status(st);
	clv_free(advice);
	return out;
}

/* speed_load(path) -> operations per second, as `cleave bench --json` measured */
PyObject *speed_load_py(PyObject *module, PyObject *path)
{
	double speed = 0;
	PyObject *bytes = NULL;
	if (!PyUnicode_FSConverter(path, &bytes))
		return NULL;
	clv_status st = clv_speed_load(PyBytes_AS_STRING(bytes), &speed);
	Py_DECREF(bytes);
	return st == CLV_OK ? PyFloat_FromDouble(speed) : raise_status(st);
}

static PyObject *exact_result(PlanObject *o, clv_status st, plan *p, uint32_t at)
{
	if (st != CLV_OK)
		return raise_status(st);
	PyObject *cut = plan_object_like(o, p);
	return cut ? Py_BuildValue("(NI)", cut, at) : NULL;
}

static PyObject *exact_cut(PlanObject *o, const clv_exact_options *options, PyObject *sizes)
{
	plan *p = NULL;
	uint32_t at = 0;
	clv_frontiers *f = frontiers_at(o, sizes);
	if (!f)
		return NULL;
	clv_status st = clv_frontiers_exact(f, options, &p, &at);
	clv_frontiers_free(f);
	return exact_result(o, st, p, at);
}

PyObject *plan_py_exact_like(PlanObject *o, PyObject *args)
{
	plan *p = NULL;
	unsigned int position;
	uint32_t at = 0;
	PlanObject *other;
	PyObject *sizes = Py_None;
	if (!PyArg_ParseTuple(args, "O!I|O", &PlanType, &other, &position, &sizes))
		return NULL;
	clv_frontiers *f = frontiers_at(o, sizes);
	if (!f)
		return NULL;
	clv_status st = frontiers_exact_like(f, other->p, position, &p, &at);
	clv_frontiers_free(f);
	return exact_result(o, st, p, at);
}

PyObject *plan_py_guards_early(PlanObject *o, PyObject *args)
{
	unsigned at, most;
	plan *p = NULL;
	if (!PyArg_ParseTuple(args, "II", &at, &most))
		return NULL;
	if (at >= o->p->nodes.n)
		return PyErr_Format(PyExc_IndexError, "there is no node %u", at);
	node_id cut = at + 1;
	clv_status st = guards_early(o->p, &cut, &most, &p);
	PyObject *moved = st == CLV_OK && !p ? Py_BuildValue("(OI)", o, at) : exact_result(o, st, p, cut - 1);
	return moved ? Py_BuildValue("(NI)", moved, most) : NULL;
}

/* guards_first(end) -> (the plan with guards in front that its first `end` nodes can decide, or None, how many nodes these are,
   how many guards are left) */
PyObject *plan_py_guards_first(PlanObject *o, PyObject *end)
{
	unsigned long at = PyLong_AsUnsignedLong(end);
	plan *p = NULL;
	node_id n = 0;
	uint32_t late = 0;
	if (PyErr_Occurred() || at > o->p->nodes.n)
		return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_IndexError, "there is no node %lu", at);
	clv_status st = guards_first(o->p, (node_id)at, &p, &n, &late);
	if (st != CLV_OK)
		return raise_status(st);
	PyObject *first = p ? plan_object_like(o, p) : Py_NewRef(Py_None);
	return first ? Py_BuildValue("(NII)", first, n, late) : NULL;
}

PyObject *plan_py_match(PlanObject *o, PyObject *args)
{
	unsigned int position;
	PlanObject *other;
	node_id found;
	if (!PyArg_ParseTuple(args, "IO!", &position, &PlanType, &other))
		return NULL;
	clv_status st = place_match(o->p, position, other->p, &found);
	if (st != CLV_OK)
		return raise_status(st);
	if (found == NONE)
		Py_RETURN_NONE;
	return PyLong_FromUnsignedLong(found);
}

/* The symbols of a plan by name; -1: it is read from data. NULL with an exception set. */
static int64_t *symbols_from(const plan *p, PyObject *sizes)
{
	int64_t *out = PyMem_Calloc(p->symbols.n + 1, sizeof *out);
	if (!out)
		return (int64_t *)PyErr_NoMemory();
	for (uint32_t i = 0; i < p->symbols.n; i++) {
		PyObject *n = PyDict_GetItemString(sizes, plan_s(p, p->symbols.at[i].name));
		out[i] = n ? PyLong_AsLongLong(n) : -1;
	}
	if (!PyErr_Occurred())
		return out;
	PyMem_Free(out);
	return NULL;
}

typedef struct TwoPlans {
	const PlanObject *a, *b;
} TwoPlans;

static bool same_const(void *ctx, value_id a, value_id b)
{
	const TwoPlans *p = ctx;
	const br_tensor *x = a < p->a->data.n ? p->a->data.tensors[a] : NULL;
	const br_tensor *y = b < p->b->data.n ? p->b->data.tensors[b] : NULL;
	bool same = x && x == y;
	return same || (x && y && br_bits_equal(x, y, &same) == CLV_OK && same);
}

PyObject *plan_py_same_until(PlanObject *o, PyObject *args)
{
	unsigned int end;
	PlanObject *other;
	PyObject *sizes;
	bool same = false;
	if (!PyArg_ParseTuple(args, "O!IO!", &PlanType, &other, &end, &PyDict_Type, &sizes))
		return NULL;
	int64_t *mine = symbols_from(o->p, sizes), *theirs = mine ? symbols_from(other->p, sizes) : NULL;
	clv_status st = CLV_OK;
	if (theirs)
		st = plan_same_at(o->p, mine, other->p, theirs, end, same_const, &(TwoPlans){o, other}, &same);
	PyMem_Free(mine);
	PyMem_Free(theirs);
	if (PyErr_Occurred())
		return NULL;
	return st == CLV_OK ? PyBool_FromLong(same) : raise_status(st);
}

PyObject *plan_py_module_sides(PlanObject *o, PyObject *args)
{
	unsigned int end;
	uint8_t *bits = NULL;
	if (!PyArg_ParseTuple(args, "I", &end))
		return NULL;
	clv_status st = scope_sides(o->p, end, &bits);
	if (st != CLV_OK)
		return raise_status(st);
	PyObject *out = PyList_New(0);
	for (scope_id s = 0; out && s < o->p->scopes.n; s++)
		list_push(&out, Py_BuildValue("(si)", plan_s(o->p, o->p->scopes.at[s].path), bits[s]));
	mem_free(bits);
	return out;
}

PyObject *plan_py_exact(PlanObject *o, PyObject *args)
{
	PyObject *prefix, *suffix, *sizes = Py_None, *out = NULL;
	clv_exact_options options = CLV_EXACT_OPTIONS_INIT;
	if (!PyArg_ParseTuple(args, "O!O!|O", &PyList_Type, &prefix, &PyList_Type, &suffix, &sizes))
		return NULL;
	const char **first = string_array(prefix, &options.nmust_prefix);
	const char **last = first ? string_array(suffix, &options.nmust_suffix) : NULL;
	options.must_prefix = first;
	options.must_suffix = last;
	if (last)
		out = exact_cut(o, &options, sizes);
	PyMem_Free(first);
	PyMem_Free(last);
	return out;
}
