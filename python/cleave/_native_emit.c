/* Generated source for Python: what src/emit asks of torch (schemas, the data of constants), and where the tensors of
 * the generated module come from. Pictures as DOT text, the report. */
#include "_native_file.h"

#include <math.h>

#include "emit/emit.h"
#include "emit/html.h"

enum { LITERAL_MAX = 16 }; /* elements of a constant that is written into the source */

/* Nested lists of numbers as Python writes them; false for what has no exact text (nan has many bit patterns). */
static bool put_numbers(PyObject *x, strbuf *b)
{
	bool ok = true;
	if (PyBool_Check(x))
		strbuf_puts(b, x == Py_True ? "True" : "False");
	else if (PyLong_Check(x))
		strbuf_int(b, PyLong_AsLongLong(x));
	else if (PyFloat_Check(x) && !isnan(PyFloat_AS_DOUBLE(x)))
		write_float(PyFloat_AS_DOUBLE(x), b);
	else if (!PyList_Check(x))
		return false;
	else {
		strbuf_putc(b, '[');
		for (Py_ssize_t i = 0; ok && i < PyList_GET_SIZE(x); i++) {
			strbuf_puts(b, i ? ", " : "");
			ok = put_numbers(PyList_GET_ITEM(x, i), b);
		}
		strbuf_putc(b, ']');
	}
	return ok && !PyErr_Occurred();
}

static bool is_plain(uint8_t d)
{
	return d <= DT_F64 || d == DT_BOOL || d == DT_BF16;
}

static clv_status literal(void *ctx, value_id v, strbuf *b, bool *done)
{
	const PlanObject *o = ctx;
	const br_tensor *t = v < o->data.n ? o->data.tensors[v] : NULL;
	br_meta m;
	int64_t count = 1;
	*done = false;
	if (!t)
		return CLV_OK;
	TRY(br_meta_get(t, &m));
	for (uint32_t d = 0; m.strided && d < m.ndim && count <= LITERAL_MAX; d++)
		count = m.sizes[d] > LITERAL_MAX ? LITERAL_MAX + 1 : count * m.sizes[d]; /* an expanded one may be huge */
	if (!m.strided || !br_is_contiguous(&m) || count <= 0 || count > LITERAL_MAX || !is_plain(m.dtype) ||
	    strcmp(m.device, "cpu") != 0)
		return CLV_OK;
	PyObject *tensor = py_wrap(br_ref((br_tensor *)t)),
			 *list = tensor ? PyObject_CallMethod(tensor, "tolist", NULL) : NULL;
	*done = list && put_numbers(list, b);
	Py_XDECREF(tensor);
	Py_XDECREF(list);
	PyErr_Clear();
	return CLV_OK;
}

static bool formal_of_op(void *ctx, const char *op, uint32_t i, source_formal *out)
{
	return br_formal(op, i, &out->name, &out->named, &out->none);
}

/* checks: of the model, or None: nothing is asked. keep: for asked_free. */
static clv_status asked_read(PyObject *checks, artifact_plan *keep, source_asked *out)
{
	TRY(checks_asked(checks, keep));
	*out = (source_asked){keep->same.at, keep->grads.at, keep->same.n, keep->grads.n};
	return CLV_OK;
}

static void asked_free(artifact_plan *keep)
{
	vec_free(&keep->same);
	vec_free(&keep->grads);
}

/* source(first, end, class_name, delete=False, return_rebinds=False, solve=False, checks=None) -> Python source of these nodes */
PyObject *plan_py_source(PlanObject *o, PyObject *args, PyObject *kwargs)
{
	static const char *const names[] = {"first",          "end",   "class_name", "delete",
	                                    "return_rebinds", "solve", "checks",     NULL};
	PyObject *checks = Py_None;
	source_spec s = {.ctx = o, .literal = literal, .formal = formal_of_op};
	artifact_plan keep = {0};
	if (!take_named(NULL, args, kwargs, names, "IIs|pppO", &s.first, &s.end, &s.class_name, &s.del, &s.return_rebinds,
	                &s.solve, &checks))
		return NULL;
	strbuf b = STRBUF_INIT;
	clv_status st = asked_read(checks, &keep, &s.asked);
	if (st == CLV_OK)
		st = plan_source(o->p, &s, &b);
	asked_free(&keep);
	return take_text(st, &b);
}

/* (count, arguments, results or None), or a str that says why the call has no text. */
static bool call_read(PyObject *item, block_call *out)
{
	if (!PyTuple_Check(item))
		return (out->reason = text_of(item)) != NULL;
	return take(NULL, item, "Isz", &out->count, &out->arguments, &out->results);
}

typedef struct both {
	PlanObject *plan, *other; /* other: NULL */
} both;

static clv_status literal_of_both(void *ctx, value_id v, strbuf *b, bool *done)
{
	return literal(((both *)ctx)->plan, v, b, done);
}

/* The same constant, or the same call of a module. */
static bool same_data_of_both(void *ctx, value_id a, value_id b)
{
	const both *o = ctx;
	const plan_data *x = &o->plan->data, *y = &o->other->data;
	bool same = false;
	if (a >= x->n || b >= y->n)
		return false;
	if (x->tensors[a] && y->tensors[b])
		return br_bits_equal(x->tensors[a], y->tensors[b], &same) == CLV_OK && same;
	if (x->python[a] == NONE || y->python[b] == NONE)
		return false;
	PyObject *one = PyList_GetItem(o->plan->calls, (Py_ssize_t)x->python[a]);
	PyObject *two = one ? PyList_GetItem(o->other->calls, (Py_ssize_t)y->python[b]) : NULL;
	PyObject *difference = two ? PyObject_CallMethod(one, "difference", "O", two) : NULL;
	same = difference == Py_None;
	Py_XDECREF(difference);
	PyErr_Clear();
	return same;
}

/* stages_source(ends, devices=None, sizes=None, batch_symbol=None, batch_dim=0, depth=0, basic_blocks=None, not_saved=None,
   delete=False, calls=None, other=None, only=None, captured=None, checks=None) -> Python source of a pipeline */
PyObject *plan_py_stages_source(PlanObject *o, PyObject *args, PyObject *kwargs)
{
	static const char *const names[] = {"ends",  "devices",      "sizes",     "batch_symbol", "batch_dim",
	                                    "depth", "basic_blocks", "not_saved", "delete",       "calls",
	                                    "other", "only",         "captured",  "checks",       NULL};
	call c = {0};
	PyObject *calls = Py_None, *other = Py_None, *checks = Py_None, *out = NULL;
	both plans = {o, NULL};
	stages_spec s = {.ctx = &plans, .literal = literal_of_both, .formal = formal_of_op, .same = same_data_of_both};
	uint32_t ndevices = 0, nother = 0;
	artifact_plan keep = {0};
	if (!take_named(&c, args, kwargs, names, "U|NZzIISSpOOzUO", &s.ends, &s.nstages, &s.devices, &ndevices, &s.sizes,
	                &s.batch_symbol, &s.batch_dim, &s.depth, &s.basic_blocks, &s.nbasic_blocks, &s.not_saved,
	                &s.nnot_saved, &s.del, &calls, &other, &s.only, &s.captured, &nother, &checks))
		return call_end(&c, NULL);
	if (other != Py_None && !PyObject_TypeCheck(other, &PlanType))
		return call_end(&c, PyErr_Format(PyExc_TypeError, "other is a Plan or None"));
	plans.other = other == Py_None ? NULL : (PlanObject *)other;
	s.other = plans.other ? plans.other->p : NULL;
	s.ncalls = calls == Py_None ? 0 : (uint32_t)PyList_GET_SIZE(calls);
	block_call *texts = call_room(&c, s.ncalls, sizeof *texts);
	for (uint32_t i = 0; texts && i < s.ncalls && call_read(PyList_GET_ITEM(calls, i), &texts[i]); i++)
		;
	s.calls = texts;
	if (!ndevices)
		s.devices = NULL;
	else if (ndevices != s.nstages)
		PyErr_Format(PyExc_ValueError, "%u devices for %u stages", ndevices, s.nstages);
	if (s.captured && (!s.other || nother != s.nstages))
		PyErr_Format(PyExc_ValueError, "captured has the ends of the stages of other");
	if (!PyErr_Occurred()) {
		strbuf b = STRBUF_INIT;
		clv_status st = asked_read(checks, &keep, &s.asked);
		if (st == CLV_OK)
			st = plan_stages_source(o->p, &s, &b);
		asked_free(&keep);
		out = take_text(st, &b);
	}
	return call_end(&c, out);
}

/* html(title=None, sizes=None, bandwidth=0.0, prefix_speed=0.0, suffix_speed=0.0, frontier=none, stages=(stage of each node,
   Partition, names of its devices)) -> a page */
PyObject *plan_py_html(PlanObject *o, PyObject *args, PyObject *kwargs)
{
	static const char *const names[] = {"title",        "sizes",    "bandwidth", "prefix_speed",
	                                    "suffix_speed", "frontier", "stages",    NULL};
	call c = {0};
	html_spec h = {.frontier = NONE};
	PyObject *stages = NULL, *partition;
	uint32_t n;
	char *page = NULL;
	bool ok = take_named(&c, args, kwargs, names, "|zZdddI(", &h.title, &h.sizes, &h.bandwidth_bytes_per_s,
	                     &h.prefix_flops_per_s, &h.suffix_flops_per_s, &h.frontier, &stages);
	if (ok && stages) {
		ok = take(&c, stages, "U!S", &h.stage_of_node, &n, &PartitionType, &partition, &h.device_names, &h.ndevices);
		if (ok && n != o->p->nodes.n)
			return call_end(&c, PyErr_Format(PyExc_ValueError, "there is a stage for each of %u nodes", o->p->nodes.n));
		const pipe_score *score = ok ? partition_score(partition, &h.nstages) : NULL;
		h.stages = ok ? score->stages : NULL;
		h.lower_bound_us = ok ? score->lower_bound_us : 0;
	}
	clv_status st = ok ? plan_html(o->p, &h, &page) : CLV_OK;
	return call_end(&c, ok ? take_string(st, page) : NULL);
}

/* (place in the generated module, state name or None, data of a constant or None) */
static PyObject *place_of(PlanObject *o, uint32_t marks, value_id v)
{
	const value *x = &o->p->values.at[v];
	strbuf b = STRBUF_INIT;
	source_place(o->p, marks, v, &b);
	br_tensor *data = x->kind == VALUE_CONST && v < o->data.n ? o->data.tensors[v] : NULL;
	return Py_BuildValue("(NzN)", take_text(CLV_OK, &b), x->kind == VALUE_CONST ? NULL : plan_s(o->p, x->name),
	                     data ? py_wrap(br_ref(data)) : Py_NewRef(Py_None));
}

static PyObject *places_of(PlanObject *o, const view *v)
{
	uint32_t marks = source_marks(o->p);
	PyObject *out = PyList_New(0);
	for (uint32_t i = 0; out && i < v->externals.n; i++) {
		if (o->p->values.at[v->externals.at[i]].kind == VALUE_OBJECT)
			continue;
		list_push(&out, place_of(o, marks, v->externals.at[i]));
	}
	return out;
}

/* The keywords among the symbols, as (name in the source, number of the symbol). */
static PyObject *keywords_of(const char **names, uint32_t n)
{
	PyObject *out = PyList_New(0);
	for (uint32_t i = 0; out && i < n; i++) {
		if (names[i])
			list_push(&out, Py_BuildValue("(sI)", names[i], i));
	}
	return out;
}

/* places(first, end) -> ([(place, name, tensor)], [symbols given as keywords]) */
PLAN_METHOD(places)
{
	uint32_t first, end;
	view v = {0};
	source_keywords k = {0};
	PyObject *out = NULL;
	if (!take(NULL, args, "II", &first, &end))
		return NULL;
	if (ok_or_raise(view_range(o->p, first, end, &v)) && ok_or_raise(source_keywords_new(o->p, first, end, &k)))
		out = Py_BuildValue("(NN)", places_of(o, &v), keywords_of(k.names, o->p->symbols.n));
	source_keywords_free(&k);
	view_free(&v);
	return out;
}

static bool note_effect(PyObject *out, const node_names *names, node_id n, bool has, const char *effect)
{
	if (!has || PyDict_GetItemString(out, effect))
		return true;
	PyObject *name = PyUnicode_FromString(node_name(names, n));
	bool ok = name && PyDict_SetItemString(out, effect, name) == 0;
	Py_XDECREF(name);
	return ok;
}

typedef struct Seen {
	const plan *p;
	bool found;
} Seen;

static void see_object(void *ctx, value_id v)
{
	Seen *g = ctx;
	g->found |= g->p->values.at[v].kind == VALUE_OBJECT;
}

static void see_guard(void *ctx, value_id v)
{
	Seen *g = ctx;
	g->found |= (g->p->values.at[v].flags & VALUE_GUARD) != 0;
}

bool is_guard(const plan *p, node_id n)
{
	Seen g = {p, p->nodes.at[n].op_id == OP_cleave_guard_equal};
	node_each_result(p, n, see_guard, &g);
	return g.found;
}

/* A tensor on another device than the part's own; a constant of one element goes to a kernel by value. */
typedef struct Elsewhere {
	const plan *p;
	str_id device;
	bool found;
} Elsewhere;

static void see_device(void *ctx, value_id v)
{
	Elsewhere *e = ctx;
	const value *x = &e->p->values.at[v];
	if (x->type != TYPE_TENSOR || (x->kind == VALUE_CONST && x->ndim == 0))
		return;
	if (e->device == NONE)
		e->device = x->device;
	e->found |= x->device != e->device;
}

static bool note_devices(PyObject *out, const plan *p, const node_names *names, node_id first, node_id end)
{
	Elsewhere e = {p, NONE, false};
	for (node_id n = first; n < end; n++) {
		node_each_arg(p, n, see_device, &e);
		node_each_result(p, n, see_device, &e);
		if (e.found)
			return note_effect(out, names, n, true, "other device");
	}
	return true;
}

static bool note_writes(PyObject *out, const plan *p, const node_names *names, node_id n, node_id first)
{
	const node *x = &p->nodes.at[n];
	bool ok = true;
	for (uint32_t i = 0; ok && i < x->nwrites; i++) {
		const value *root = &p->values.at[alias_root(p, p->ids.at[x->writes + i])];
		bool result = root->kind == VALUE_RESULT;
		ok = note_effect(out, names, n, root->kind == VALUE_INPUT, "writes inputs") &&
		     note_effect(out, names, n, !result && root->kind != VALUE_INPUT, "writes state") &&
		     note_effect(out, names, n, result && root->def < first, "writes boundary");
	}
	return ok;
}

static bool note_node(PyObject *out, const plan *p, const node_names *names, node_id n, node_id first)
{
	const node *x = &p->nodes.at[n];
	Seen o = {p, false};
	node_each_arg(p, n, see_object, &o);
	return note_effect(out, names, n, (x->flags & NODE_RANDOM) != 0, "random") &&
	       note_effect(out, names, n, (x->flags & NODE_HOST) != 0, "host") &&
	       note_effect(out, names, n, (x->flags & NODE_IMPURE) != 0, "impure") &&
	       note_effect(out, names, n, is_guard(p, n), "guard") && note_effect(out, names, n, o.found, "object") &&
	       note_effect(out, names, n, x->op_id == OP_cleave_python, "python") && note_writes(out, p, names, n, first);
}

PyObject *effects_of(const plan *p, node_id first, node_id end, bool rebinds)
{
	node_names *names = NULL;
	clv_status st = node_names_new(p, &names);
	if (st != CLV_OK)
		return raise_status(st);
	PyObject *out = PyDict_New();
	for (node_id n = first; out && n < end; n++)
		if (!note_node(out, p, names, n, first))
			Py_CLEAR(out);
	if (out && !note_devices(out, p, names, first, end))
		Py_CLEAR(out);
	if (out && !note_effect(out, names, end ? end - 1 : 0, rebinds, "rebinds"))
		Py_CLEAR(out);
	node_names_free(names);
	return out;
}

/* effects(first, end) -> {effect: name of the first node that has it} */
PLAN_METHOD(effects)
{
	uint32_t first, end;
	if (!take(NULL, args, "II", &first, &end))
		return NULL;
	if (first > end || end > o->p->nodes.n)
		return PyErr_Format(PyExc_IndexError, "there are no nodes %u to %u", first, end);
	return effects_of(o->p, first, end, false);
}

/* None: `none` */
static bool count_or(PyObject *number, uint32_t none, uint32_t *out)
{
	*out = none;
	return number == Py_None || index_of(number, none, "frontier or depth", out);
}

/* dot(cut, detail, max_module_depth, direction, targets, markers, indices, sizes) -> DOT text */
PLAN_METHOD(dot)
{
	call c = {0};
	clv_dot_options d = CLV_DOT_OPTIONS_INIT;
	PyObject *cut, *depth;
	char *text = NULL;
	if (!take(&c, args, "OsOspppZ", &cut, &d.detail, &depth, &d.direction, &d.show_operation_targets,
	          &d.show_debug_markers, &d.show_node_indices, &d.sizes) ||
	    !count_or(cut, CLV_NONE, &d.frontier) || !count_or(depth, CLV_DOT_ALL_MODULES, &d.max_module_depth))
		return call_end(&c, NULL);
	clv_status st = clv_plan_dot(o->p, &d, &text);
	return call_end(&c, take_string(st, text));
}
