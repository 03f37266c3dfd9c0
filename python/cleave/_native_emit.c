/* Generated source for Python: what src/emit asks of torch (schemas, the data of constants), and where the tensors of
 * the generated module come from. Pictures as DOT text, the report. */
#include "_native_file.h"

#include <math.h>

#include "emit/emit.h"
#include "emit/html.h"

enum { LITERAL_MAX = 16 }; /* elements of a constant that is written into the source */

static double half_value(uint16_t bits)
{
	int exponent = bits >> 10 & 31, mantissa = bits & 1023;
	double v = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
	if (exponent == 31)
		v = mantissa ? NAN : INFINITY;
	return bits >> 15 ? -v : v;
}

static float bits_float(uint32_t bits)
{
	float f;
	memcpy(&f, &bits, sizeof f);
	return f;
}

/* The element as a Python number of the same value; false for what has none (nan has many bit patterns). */
static bool put_element(const void *data, uint8_t d, int64_t i, strbuf *b)
{
	double v;
	switch ((dtype)d) {
	case DT_BOOL: strbuf_puts(b, ((const uint8_t *)data)[i] ? "True" : "False"); return true;
	case DT_U8: strbuf_int(b, ((const uint8_t *)data)[i]); return true;
	case DT_I8: strbuf_int(b, ((const int8_t *)data)[i]); return true;
	case DT_I16: strbuf_int(b, ((const int16_t *)data)[i]); return true;
	case DT_I32: strbuf_int(b, ((const int32_t *)data)[i]); return true;
	case DT_I64: strbuf_int(b, ((const int64_t *)data)[i]); return true;
	case DT_F64: v = ((const double *)data)[i]; break;
	case DT_F32: v = (double)((const float *)data)[i]; break;
	case DT_F16: v = half_value(((const uint16_t *)data)[i]); break;
	case DT_BF16: v = (double)bits_float((uint32_t)((const uint16_t *)data)[i] << 16); break;
	default: return false;
	}
	if (isnan(v))
		return false;
	write_float(v, b);
	return true;
}

/* Nested lists; *at counts elements. */
static bool put_elements(const void *data, const br_meta *m, uint32_t dim, int64_t *at, strbuf *b)
{
	bool ok = true;
	if (dim == m->ndim)
		return put_element(data, m->dtype, (*at)++, b);
	strbuf_putc(b, '[');
	for (int64_t i = 0; ok && i < m->sizes[dim]; i++) {
		strbuf_puts(b, i ? ", " : "");
		ok = put_elements(data, m, dim + 1, at, b);
	}
	strbuf_putc(b, ']');
	return ok;
}

static clv_status literal(void *ctx, value_id v, strbuf *b, bool *done)
{
	const PlanObject *o = ctx;
	const br_tensor *t = v < o->data.n ? o->data.tensors[v] : NULL;
	br_meta m;
	int64_t count = 1, at = 0;
	*done = false;
	if (!t)
		return CLV_OK;
	TRY(br_meta_get(t, &m));
	for (uint32_t d = 0; m.strided && d < m.ndim && count <= LITERAL_MAX; d++)
		count = m.sizes[d] > LITERAL_MAX ? LITERAL_MAX + 1 : count * m.sizes[d]; /* an expanded one may be huge */
	br_memory memory;
	bool few = m.strided && br_is_contiguous(&m) && count > 0 && count <= LITERAL_MAX;
	*done = few && br_memory_get(t, &memory) == CLV_OK && put_elements(memory.data, &m, 0, &at, b);
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

PyObject *plan_py_source(PlanObject *o, PyObject *args, PyObject *kwargs)
{
	static char *words[] = {"first", "end", "class_name", "delete", "return_rebinds", "solve", "checks", NULL};
	unsigned int first, end;
	const char *class_name;
	int del = 0, return_rebinds = 0, solve = 0;
	PyObject *checks = Py_None;
	artifact_plan keep = {0};
	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "IIs|pppO", words, &first, &end, &class_name, &del, &return_rebinds,
	                                 &solve, &checks))
		return NULL;
	source_spec s = {.first = first,
	                 .end = end,
	                 .class_name = class_name,
	                 .del = del != 0,
	                 .return_rebinds = return_rebinds != 0,
	                 .solve = solve != 0,
	                 .ctx = o,
	                 .literal = literal,
	                 .formal = formal_of_op};
	strbuf b = STRBUF_INIT;
	clv_status st = asked_read(checks, &keep, &s.asked);
	if (st == CLV_OK)
		st = plan_source(o->p, &s, &b);
	asked_free(&keep);
	return take_text(st, &b);
}

/* Memory for the n things that are read from a sequence, which stays in *fast; NULL with an exception. */
static void *sequence_open(PyObject *seq, const char *what, size_t each, PyObject **fast, uint32_t *n)
{
	*fast = PySequence_Fast(seq, what);
	*n = *fast ? (uint32_t)PySequence_Fast_GET_SIZE(*fast) : 0;
	void *at = *fast ? PyMem_Calloc((size_t)*n + 1, each) : NULL;
	if (*fast && !at)
		PyErr_NoMemory();
	return at;
}

typedef struct text_list {
	PyObject *fast; /* keeps the texts */
	const char **at;
	uint32_t n;
} text_list;

/* A sequence of str or None; where `none` holds an element may be None too. False with an exception. */
static bool text_list_read(PyObject *seq, bool none, text_list *out)
{
	*out = (text_list){0};
	if (seq == Py_None)
		return true;
	out->at = sequence_open(seq, "a sequence of str is needed", sizeof *out->at, &out->fast, &out->n);
	for (uint32_t i = 0; !PyErr_Occurred() && i < out->n; i++) {
		PyObject *item = PySequence_Fast_GET_ITEM(out->fast, (Py_ssize_t)i);
		if (!none || item != Py_None)
			out->at[i] = PyUnicode_AsUTF8(item);
	}
	return !PyErr_Occurred();
}

static void text_list_free(text_list *t)
{
	PyMem_Free(t->at);
	Py_XDECREF(t->fast);
}

static bool ends_read(PyObject *seq, uint32_t **ends, uint32_t *n)
{
	PyObject *fast;
	*ends = sequence_open(seq, "a sequence of node positions is needed", sizeof **ends, &fast, n);
	for (uint32_t i = 0; !PyErr_Occurred() && i < *n; i++) {
		unsigned long k = PyLong_AsUnsignedLong(PySequence_Fast_GET_ITEM(fast, (Py_ssize_t)i));
		(*ends)[i] = k < UINT32_MAX ? (uint32_t)k : UINT32_MAX;
	}
	Py_XDECREF(fast);
	return !PyErr_Occurred();
}

typedef struct block_calls {
	PyObject *fast; /* keeps the texts */
	block_call *at;
	uint32_t n;
} block_calls;

/* (count, arguments, results or None), or a str that says why the call has no text. False with an exception. */
static bool call_read(PyObject *item, block_call *out)
{
	if (!PyTuple_Check(item))
		return (out->reason = PyUnicode_AsUTF8(item)) != NULL;
	return PyArg_ParseTuple(item, "Isz", &out->count, &out->arguments, &out->results) != 0;
}

static bool block_calls_read(PyObject *seq, block_calls *out)
{
	if (seq == Py_None)
		return true;
	out->at = sequence_open(seq, "a sequence of calls is needed", sizeof *out->at, &out->fast, &out->n);
	for (uint32_t i = 0; !PyErr_Occurred() && i < out->n; i++)
		call_read(PySequence_Fast_GET_ITEM(out->fast, (Py_ssize_t)i), &out->at[i]);
	return !PyErr_Occurred();
}

static void block_calls_free(block_calls *c)
{
	PyMem_Free(c->at);
	Py_XDECREF(c->fast);
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

PyObject *plan_py_stages_source(PlanObject *o, PyObject *args, PyObject *kwargs)
{
	static char *words[] = {"ends",  "devices",      "sizes",     "batch_symbol", "batch_dim",
	                        "depth", "basic_blocks", "not_saved", "delete",       "calls",
	                        "other", "only",         "captured",  "checks",       NULL};
	PyObject *given, *devices = Py_None, *sizes = Py_None, *blocks = Py_None, *not_saved = Py_None, *calls = Py_None,
					 *other = Py_None, *captured = Py_None, *checks = Py_None, *out = NULL;
	both plans = {o, NULL};
	stages_spec s = {.ctx = &plans, .literal = literal_of_both, .formal = formal_of_op, .same = same_data_of_both};
	text_list device = {0}, block = {0}, loose = {0};
	block_calls call = {0};
	size_list size = {0};
	uint32_t *ends = NULL;
	uint32_t *other_ends = NULL, nother = 0;
	int del = 0;
	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OOzIIOOpOOzOO", words, &given, &devices, &sizes, &s.batch_symbol,
	                                 &s.batch_dim, &s.depth, &blocks, &not_saved, &del, &calls, &other, &s.only,
	                                 &captured, &checks))
		return NULL;
	if (other != Py_None && !PyObject_TypeCheck(other, &PlanType))
		return PyErr_Format(PyExc_TypeError, "other is a Plan or None");
	plans.other = other == Py_None ? NULL : (PlanObject *)other;
	s.other = plans.other ? plans.other->p : NULL;
	bool ok = ends_read(given, &ends, &s.nstages) && text_list_read(devices, true, &device) &&
	          text_list_read(blocks, false, &block) && text_list_read(not_saved, false, &loose) &&
	          size_list_read(sizes, &size) && block_calls_read(calls, &call) &&
	          (captured == Py_None || ends_read(captured, &other_ends, &nother));
	if (ok && device.n && device.n != s.nstages)
		PyErr_Format(PyExc_ValueError, "%u devices for %u stages", device.n, s.nstages);
	if (ok && other_ends && (!plans.other || nother != s.nstages))
		PyErr_Format(PyExc_ValueError, "captured has the ends of the stages of other");
	if (!PyErr_Occurred()) {
		strbuf b = STRBUF_INIT;
		s.ends = ends;
		s.devices = device.n ? device.at : NULL;
		s.sizes = (clv_sizes){size.names, size.values, size.n};
		s.basic_blocks = block.at;
		s.nbasic_blocks = block.n;
		s.not_saved = loose.at;
		s.nnot_saved = loose.n;
		s.calls = call.at;
		s.ncalls = call.n;
		s.del = del != 0;
		s.captured = other_ends;
		artifact_plan keep = {0};
		clv_status st = asked_read(checks, &keep, &s.asked);
		if (st == CLV_OK)
			st = plan_stages_source(o->p, &s, &b);
		asked_free(&keep);
		out = take_text(st, &b);
	}
	PyMem_Free(ends);
	PyMem_Free(other_ends);
	text_list_free(&device);
	text_list_free(&block);
	text_list_free(&loose);
	block_calls_free(&call);
	size_list_free(&size);
	return out;
}

typedef struct stage_args {
	uint32_t *of_node;
	text_list devices;
} stage_args;

static void stage_args_free(stage_args *s)
{
	PyMem_Free(s->of_node);
	text_list_free(&s->devices);
}

/* stages: the stage of each node, the partition, names of its devices. */
static bool stage_args_read(const PlanObject *o, PyObject *of_node, PyObject *partition, PyObject *names, stage_args *s,
                            html_spec *h)
{
	if (!of_node)
		return true;
	s->of_node = id_array(of_node, o->p->nodes.n, "node");
	if (!s->of_node || !text_list_read(names, false, &s->devices))
		return false;
	const pipe_score *score = partition_score(partition, &h->nstages);
	h->stages = score->stages;
	h->lower_bound_us = score->lower_bound_us;
	h->stage_of_node = s->of_node;
	h->ndevices = s->devices.n;
	h->device_names = s->devices.at;
	return true;
}

PyObject *plan_py_html(PlanObject *o, PyObject *args, PyObject *kwargs)
{
	static char *words[] = {"title", "sizes", "bandwidth", "prefix_speed", "suffix_speed", "frontier", "stages", NULL};
	html_spec h = {.frontier = NONE};
	PyObject *sizes = Py_None, *of_node = NULL, *partition = NULL, *names = NULL;
	size_list a = {0};
	stage_args s = {0};
	char *page = NULL;
	clv_status st = CLV_OK;
	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|zOdddI(OO!O)", words, &h.title, &sizes, &h.bandwidth_bytes_per_s,
	                                 &h.prefix_flops_per_s, &h.suffix_flops_per_s, &h.frontier, &of_node,
	                                 &PartitionType, &partition, &names))
		return NULL;
	if (stage_args_read(o, of_node, partition, names, &s, &h) && size_list_read(sizes, &a)) {
		h.sizes = (clv_sizes){a.names, a.values, a.n};
		st = plan_html(o->p, &h, &page);
	}
	size_list_free(&a);
	stage_args_free(&s);
	return PyErr_Occurred() ? NULL : take_string(st, page);
}

/* (place in the generated module, state name or None, data of a constant or None) */
static PyObject *place_of(PlanObject *o, uint32_t marks, value_id v)
{
	const value *x = &o->p->values.at[v];
	strbuf b = STRBUF_INIT;
	source_place(o->p, marks, v, &b);
	PyObject *place = take_text(CLV_OK, &b);
	if (!place)
		return NULL;
	br_tensor *data = x->kind == VALUE_CONST && v < o->data.n ? o->data.tensors[v] : NULL;
	PyObject *tensor = data ? py_wrap(br_ref(data)) : Py_NewRef(Py_None);
	if (!tensor) {
		Py_DECREF(place);
		return NULL;
	}
	return Py_BuildValue("(NzN)", place, x->kind == VALUE_CONST ? NULL : plan_s(o->p, x->name), tensor);
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

PyObject *plan_py_places(PlanObject *o, PyObject *args)
{
	unsigned int first, end;
	view v = {0};
	source_keywords k = {0};
	if (!PyArg_ParseTuple(args, "II", &first, &end))
		return NULL;
	clv_status st = view_range(o->p, first, end, &v);
	if (st == CLV_OK)
		st = source_keywords_new(o->p, first, end, &k);
	PyObject *places = NULL, *symbols = NULL, *out = NULL;
	if (st != CLV_OK)
		raise_status(st);
	else if ((places = places_of(o, &v)) && (symbols = keywords_of(k.names, o->p->symbols.n)))
		out = PyTuple_Pack(2, places, symbols);
	Py_XDECREF(places);
	Py_XDECREF(symbols);
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
	const char *op = plan_s(p, x->op);
	Seen g = {p, false}, o = {p, false};
	node_each_result(p, n, see_guard, &g);
	node_each_arg(p, n, see_object, &o);
	bool equal = !strcmp(op, "cleave::guard_equal");
	return note_effect(out, names, n, (x->flags & NODE_RANDOM) != 0, "random") &&
	       note_effect(out, names, n, (x->flags & NODE_HOST) != 0, "host") &&
	       note_effect(out, names, n, (x->flags & NODE_IMPURE) != 0, "impure") &&
	       note_effect(out, names, n, g.found || equal, "guard") && note_effect(out, names, n, o.found, "object") &&
	       note_effect(out, names, n, !strcmp(op, "cleave::python"), "python") && note_writes(out, p, names, n, first);
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

PyObject *plan_py_effects(PlanObject *o, PyObject *args)
{
	unsigned int first, end;
	if (!PyArg_ParseTuple(args, "II", &first, &end))
		return NULL;
	if (first > end || end > o->p->nodes.n)
		return PyErr_Format(PyExc_IndexError, "there are no nodes %u to %u", first, end);
	return effects_of(o->p, first, end, false);
}

/* None: `none` */
static uint32_t count_or(PyObject *number, uint32_t none)
{
	unsigned long n = number == Py_None ? none : PyLong_AsUnsignedLong(number);
	return n < none ? (uint32_t)n : none;
}

PyObject *plan_py_dot(PlanObject *o, PyObject *args, PyObject *kwargs)
{
	static char *words[] = {"cut",   "detail", "max_module_depth", "direction", "targets", "markers", "indices",
	                        "sizes", NULL};
	clv_dot_options options = CLV_DOT_OPTIONS_INIT;
	PyObject *cut, *depth, *sizes;
	int targets, markers, indices;
	size_list s;
	char *text = NULL;
	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OsOspppO", words, &cut, &options.detail, &depth, &options.direction,
	                                 &targets, &markers, &indices, &sizes))
		return NULL;
	options.frontier = count_or(cut, CLV_NONE);
	options.max_module_depth = count_or(depth, CLV_DOT_ALL_MODULES);
	options.show_operation_targets = targets != 0;
	options.show_debug_markers = markers != 0;
	options.show_node_indices = indices != 0;
	if (PyErr_Occurred())
		return NULL;
	clv_status st = CLV_OK;
	bool read = size_list_read(sizes, &s);
	if (read) {
		options.sizes = (clv_sizes){s.names, s.values, s.n};
		st = clv_plan_dot(o->p, &options, &text);
	}
	size_list_free(&s);
	return read ? take_string(st, text) : NULL;
}
