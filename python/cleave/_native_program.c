/* Program: runs a part of a plan on the live tensors of a model, after a check that the model is as it was. */
#include "_native_segment.h"
#include "exec/optimized.h"
#include "runtime/handover.h"

/* A compiled segment that was given. */
typedef struct Coded {
	node_id first, end;
	code *c;            /* counted; NULL: it does not run */
	const char *reason; /* why */
	const char *backend;
} Coded;

typedef struct ProgramObject {
	PyObject_HEAD
	PlanObject *plan;
	clv_program *g;
	PyObject *pairs;     /* a list: keeps those of the next two */
	PyObject **bindings; /* per external: (holder, key), where holder[key] is the tensor; NULL: data of the plan */
	PyObject **counters; /* per external: run_spec.counters, likewise; NULL: none has any */
	PyObject *modules;   /* what must still hold of the model: Checks; NULL: nothing */
	bool from_inputs;    /* it begins where the plan does, and takes the model's inputs */
	Coded *coded;        /* compiled segments */
	uint32_t ncoded;
	arena arena;
} ProgramObject;

static int program_py_traverse(ProgramObject *o, visitproc visit, void *ctx)
{
	int r = visit_one(o->modules, visit, ctx);
	if (!r)
		r = visit_one((PyObject *)o->plan, visit, ctx);
	return r ? r : visit_one(o->pairs, visit, ctx);
}

/* The plan stays until dealloc: the program reads it. */
static int program_py_clear(ProgramObject *o)
{
	for (uint32_t i = 0; o->bindings && i < o->g->v.externals.n; i++)
		o->bindings[i] = NULL;
	PyMem_Free(o->counters);
	o->counters = NULL;
	Py_CLEAR(o->pairs);
	Py_CLEAR(o->modules);
	return 0;
}

static void program_py_dealloc(ProgramObject *o)
{
	PyObject_GC_UnTrack(o);
	program_py_clear(o);
	PyMem_Free(o->bindings);
	program_free(o->g);
	for (uint32_t i = 0; o->coded && i < o->ncoded; i++)
		code_unref(o->coded[i].c);
	PyMem_Free(o->coded);
	arena_free(&o->arena);
	Py_XDECREF(o->plan);
	Py_TYPE(o)->tp_free((PyObject *)o);
}

static bool bind_one(ProgramObject *o, PyObject *pair, PyObject **out)
{
	PyObject *holder, *key;
	if (!take(NULL, pair, "OO", &holder, &key) || PyList_Append(o->pairs, pair) < 0)
		return false;
	*out = pair;
	return true;
}

/* Where the module that has this buffer would count its forwards. */
static PyObject *counter_name(const char *name)
{
	const char *dot = strrchr(name, '.');
	PyObject *path = PyUnicode_DecodeUTF8(name, dot ? dot + 1 - name : 0, NULL);
	PyObject *out = path ? PyUnicode_FromFormat("%U" STATISTICS_COUNTER, path) : NULL;
	Py_XDECREF(path);
	return out;
}

/* A BatchNorm counts its forwards in train mode; no version does that for the statistics that they write. Every other buffer of
   the counter's module may be one of them, whichever operator reads it here: a model may normalise with its own. */
static bool bind_counter(ProgramObject *o, uint32_t i, const char *name, PyObject *state)
{
	PyObject *other = counter_name(name);
	PyObject *pair = other ? PyDict_GetItemWithError(state, other) : NULL;
	if (pair && PyUnicode_CompareWithASCIIString(other, name) == 0)
		pair = NULL; /* the counter itself */
	if (pair && !o->counters && !(o->counters = PyMem_Calloc(o->g->v.externals.n + 1, sizeof *o->counters)))
		PyErr_NoMemory();
	bool ok = !PyErr_Occurred() && (!pair || bind_one(o, pair, &o->counters[i]));
	Py_XDECREF(other);
	return ok;
}

/* state: dict name -> (dict, key) for every module tensor the program reads */
static bool bind_externals(ProgramObject *o, PyObject *state)
{
	const view *v = &o->g->v;
	const plan *p = o->plan->p;
	o->pairs = PyList_New(0);
	o->bindings = PyMem_Calloc(v->externals.n + 1, sizeof *o->bindings);
	if (!o->pairs || !o->bindings)
		return PyErr_NoMemory() != NULL;
	for (uint32_t i = 0; i < v->externals.n; i++) {
		const value *x = &p->values.at[v->externals.at[i]];
		if (x->kind != VALUE_PARAM && x->kind != VALUE_BUFFER && x->kind != VALUE_ATTR)
			continue;
		PyObject *pair = PyDict_GetItemString(state, plan_s(p, x->name));
		if (!pair && !PyErr_Occurred())
			PyErr_Format(PyExc_KeyError, "no module tensor %s", plan_s(p, x->name));
		if (!pair || !bind_one(o, pair, &o->bindings[i]))
			return false;
		if (x->kind == VALUE_BUFFER && !bind_counter(o, i, plan_s(p, x->name), state))
			return false;
	}
	return true;
}

static bool load_code(ProgramObject *o, const liveness *live, PyObject *item, int threads, Coded *out)
{
	artifact_segment s = {0};
	bool ok = segment_read(item, &s);
	code_source source = {&s, o->plan->p, live, true, threads};
	clv_status st = CLV_OK;
	if (ok) {
		st = UNLOCKED(code_new(&source, &o->arena, &out->c, &out->reason));
	}
	if (ok && st == CLV_OK) {
		out->first = s.first;
		out->end = s.end;
		out->backend = arena_str(&o->arena, s.backend);
		st = out->backend ? CLV_OK : fail_nomem();
	}
	segment_clear(&s);
	return ok && (st == CLV_OK || raise_status(st));
}

/* codes: list of segments as segment_read takes them. */
static bool load_codes(ProgramObject *o, PyObject *codes, int threads)
{
	liveness live;
	Py_ssize_t n = PyList_GET_SIZE(codes);
	o->coded = PyMem_Calloc((size_t)n + 1, sizeof *o->coded);
	if (!o->coded)
		return PyErr_NoMemory() != NULL;
	clv_status st = liveness_new(o->plan->p, &live);
	if (st != CLV_OK)
		return raise_status(st) != NULL;
	bool ok = true;
	for (Py_ssize_t i = 0; ok && i < n; i++, o->ncoded += ok)
		ok = load_code(o, &live, PyList_GET_ITEM(codes, i), threads, &o->coded[i]);
	liveness_free(&live);
	return ok;
}

static PyObject *coded_to(const Coded *x)
{
	return Py_BuildValue("(IIszKK)", x->first, x->end, x->backend, x->c ? atomic_load(&x->c->reason) : x->reason,
	                     x->c ? (unsigned long long)x->c->runs : 0ULL,
	                     x->c ? (unsigned long long)x->c->tape_runs : 0ULL);
}

/* segments() -> list of (first, end, back end, reason or None, runs, runs on the tape); those that were given as codes */
static PyObject *program_py_segments(ProgramObject *o, PyObject *unused)
{
	LIST(out, o->ncoded, coded_to(&o->coded[i]));
	return out;
}

static clv_status make_program(ProgramObject *o, program_spec *spec)
{
	VEC(code *) codes = {0};
	clv_status st = CLV_OK;
	for (uint32_t i = 0; i < o->ncoded && st == CLV_OK; i++)
		if (o->coded[i].c)
			st = vec_push(&codes, o->coded[i].c);
	spec->codes = codes.at;
	spec->ncodes = codes.n;
	if (st == CLV_OK)
		st = program_new(o->plan->p, spec, &o->g);
	vec_free(&codes);
	return st;
}

/* Program(plan, first, end, debug, inference, state, modules[, codes[, level of optimization, passes to leave out[, guards
   first[, threads[, untrusted[, native]]]]]]) */
static PyObject *program_py_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	call c = {0};
	PlanObject *of;
	PyObject *state, *modules, *codes = NULL;
	uint32_t npasses;
	program_spec spec = {.choose_later = true};
	if (!take(&c, args, "!IIpp{O|[bSpipp", &PlanType, &of, &spec.first, &spec.end, &spec.debug, &spec.inference, &state,
	          &modules, &codes, &spec.optimize, &spec.passes_off, &npasses, &spec.guards_first, &spec.threads,
	          &spec.untrusted, &spec.native))
		return call_end(&c, NULL);
	if (modules != Py_None && !Py_IS_TYPE(modules, &ChecksType))
		return call_end(&c, PyErr_Format(PyExc_TypeError, "what must hold of the model is a Checks or None"));
	ProgramObject *o = (ProgramObject *)type->tp_alloc(type, 0);
	if (!o)
		return call_end(&c, NULL);
	o->plan = (PlanObject *)Py_NewRef((PyObject *)of);
	o->modules = modules == Py_None ? NULL : Py_NewRef(modules);
	o->from_inputs = spec.first == 0;
	spec.objects = of->data.objects;
	spec.nobjects = of->data.n;
	if ((codes && !load_codes(o, codes, spec.threads)) || !ok_or_raise(make_program(o, &spec)) ||
	    !bind_externals(o, state))
		Py_CLEAR(o);
	return call_end(&c, (PyObject *)o);
}

/* A new reference to holder[key], of a pair of both; NULL if there is none. */
static PyObject *live_item(PyObject *pair)
{
	PyObject *holder = PyTuple_GET_ITEM(pair, 0), *key = PyTuple_GET_ITEM(pair, 1);
	if (PyDict_CheckExact(holder) || PyDict_Check(holder))
		return Py_XNewRef(PyDict_GetItemWithError(holder, key));
	PyObject *item = PyObject_GetItem(holder, key);
	if (!item && (PyErr_ExceptionMatches(PyExc_LookupError)))
		PyErr_Clear();
	return item;
}

/* A fresh reference to each external, so that another thread may re-bind the module meanwhile. */
static bool gather_externals(ProgramObject *o, br_tensor **out)
{
	const view *v = &o->g->v;
	for (uint32_t i = 0; i < v->externals.n; i++) {
		value_id id = v->externals.at[i];
		if (!o->bindings[i]) {
			out[i] = id < o->plan->data.n ? br_ref(o->plan->data.tensors[id]) : NULL;
			continue;
		}
		PyObject *t = live_item(o->bindings[i]);
		out[i] = t ? br_ref(py_borrow(t)) : NULL;
		Py_XDECREF(t);
		if (!out[i]) {
			raise_status(fail(CLV_E_INPUT, "the model's %s is no tensor any more: capture the model again",
			                  plan_s(o->plan->p, o->plan->p->values.at[id].name)));
			return false;
		}
	}
	return true;
}

/* Likewise, of those that tell that an external was written. */
static void gather_counters(ProgramObject *o, br_tensor **out)
{
	for (uint32_t i = 0; i < o->g->v.externals.n; i++) {
		PyObject *t = o->counters[i] ? live_item(o->counters[i]) : NULL;
		out[i] = t ? br_ref(py_borrow(t)) : NULL;
		Py_XDECREF(t);
		PyErr_Clear();
	}
}

static clv_status check_ambient(const PlanObject *o)
{
	br_modes now;
	if (!o->has_ambient)
		return CLV_OK;
	br_modes_get(&now);
	if (memcmp(now.autocast, o->ambient.autocast, sizeof now.autocast) != 0 ||
	    memcmp(now.autocast_dtype, o->ambient.autocast_dtype, sizeof now.autocast_dtype) != 0)
		return fail(CLV_E_INPUT,
		            "autocast around the call is not what it was around the capture; the operators would run in "
		            "another precision: capture under the same autocast");
	if (now.default_dtype != o->ambient.default_dtype)
		return fail(CLV_E_INPUT, "torch's default dtype is %s, the plan was captured with %s",
		            now.default_dtype < DT_COUNT ? dtype_name((dtype)now.default_dtype) : "?",
		            o->ambient.default_dtype < DT_COUNT ? dtype_name((dtype)o->ambient.default_dtype) : "?");
	return CLV_OK;
}

static clv_status check_model(const PlanObject *o, PyObject *checks)
{
	TRY(checks_hold(checks));
	return check_ambient(o);
}

/* check_model(plan, checks): raises what does not hold any more of the model and of the modes around the call */
PyObject *check_model_py(PyObject *self, PyObject *args)
{
	PlanObject *of;
	PyObject *checks;
	if (!take(NULL, args, "!!", &PlanType, &of, &ChecksType, &checks))
		return NULL;
	return none_or_raise(check_model(of, checks));
}

PyObject *wrap_outputs(br_tensor **t, uint32_t ntensors, const run_number *numbers, const uint32_t *places, uint32_t n)
{
	uint32_t all = ntensors + n, next = 0;
	PyObject *out = PyTuple_New(all);
	for (uint32_t i = 0; i < all; i++) {
		bool number = next < n && places[next] == i;
		br_tensor *tensor = number ? NULL : t[i - next];
		PyObject *x = NULL;
		if (out && number)
			x = numbers[next].real ? PyFloat_FromDouble(numbers[next].f) : PyLong_FromLongLong(numbers[next].i);
		else if (out)
			x = py_wrap(tensor);
		next += number;
		if (!out)
			br_unref(tensor);
		else if (!x)
			Py_CLEAR(out);
		else
			PyTuple_SET_ITEM(out, i, x);
	}
	return out;
}

clv_status call_python(void *ctx, value_id object, br_tensor *const *args, uint32_t nargs, br_tensor **results,
                       uint32_t nresults)
{
	PlanObject *o = ctx;
	PyGILState_STATE gil = PyGILState_Ensure();
	clv_status st = CLV_OK;
	PyObject *function = o->calls ? PyList_GetItem(o->calls, (Py_ssize_t)o->data.python[object]) : NULL;
	PyObject *list = function ? PyTuple_New(nargs) : NULL, *out = NULL, *fast = NULL;
	for (uint32_t i = 0; list && i < nargs; i++) {
		PyObject *t = py_wrap(br_ref(args[i]));
		if (!t)
			Py_CLEAR(list);
		else
			PyTuple_SET_ITEM(list, i, t);
	}
	if (list)
		out = PyObject_CallFunctionObjArgs(function, list, NULL);
	if (out)
		fast = PySequence_Fast(out, "a tuple of tensors");
	if (!fast || PySequence_Fast_GET_SIZE(fast) != (Py_ssize_t)nresults)
		st = fail(CLV_E_GUARD,
		          "the Python function raised, or returned another number of tensors than when it was captured");
	for (uint32_t i = 0; st == CLV_OK && i < nresults; i++)
		results[i] = br_ref(py_borrow(PySequence_Fast_GET_ITEM(fast, i)));
	Py_XDECREF(fast);
	Py_XDECREF(out);
	Py_XDECREF(list);
	PyGILState_Release(gil);
	return st;
}

/* Symbols that are not read from data; they come first. */
static Py_ssize_t given_symbols(const plan *p)
{
	Py_ssize_t n = 0;
	while (n < (Py_ssize_t)p->symbols.n && !p->symbols.at[n].data)
		n++;
	return n;
}

static int64_t *symbol_array(call *c, const plan *p, PyObject *given)
{
	int64_t *out = call_room(c, p->symbols.n, sizeof *out);
	for (uint32_t i = 0; out && i < p->symbols.n; i++)
		out[i] = i < (uint32_t)PyList_GET_SIZE(given) ? PyLong_AsLongLong(PyList_GET_ITEM(given, i)) : -1;
	return PyErr_Occurred() ? NULL : out;
}

/* What a run needs, gathered: the same for running and for checking alone. */
typedef struct Prepared {
	call c;
	br_tensor **inputs, **externals, **counters, **outputs, **guards;
	run_number *numbers; /* of the output */
	int64_t *symbols;
	run_spec r;
} Prepared;

/* Room for so many tensors, which go with the call. */
static br_tensor **tensor_room(call *c, uint32_t n)
{
	br_tensor **at = PyMem_Calloc((size_t)n + 1, sizeof *at);
	if (!at)
		return (br_tensor **)PyErr_NoMemory();
	return call_keep(c, call_drop_tensors, at, n) ? at : NULL;
}

static clv_status check_call(ProgramObject *o, uint32_t n)
{
	if (n != o->g->v.inputs.n)
		return fail(CLV_E_INPUT, "%u tensors are needed, %u were given", o->g->v.inputs.n, n);
	return check_model(o->plan, o->modules);
}

/* args: (tensors, symbols=None, guards=None). False with an exception; call_end in either case. */
static bool prepare(ProgramObject *o, PyObject *args, Prepared *x)
{
	PyObject *seq, *symbols = Py_None, *guards = Py_None;
	const plan *p = o->plan->p;
	br_modes ambient;
	uint32_t n, nguards = 0, nexternals = o->g->v.externals.n;
	x->guards = NULL;
	x->symbols = NULL;
	if (!take(NULL, args, "O|OO", &seq, &symbols, &guards) || !take_array(&x->c, 'T', seq, &x->inputs, &n) ||
	    (guards != Py_None && !take_array(&x->c, 'T', guards, &x->guards, &nguards)))
		return false;
	if (symbols != Py_None) {
		if (!PyList_Check(symbols) || PyList_GET_SIZE(symbols) != given_symbols(p)) {
			PyErr_Format(PyExc_TypeError, "a list with the value of every symbol is needed");
			return false;
		}
		if (!(x->symbols = symbol_array(&x->c, p, symbols)))
			return false;
	}
	x->externals = tensor_room(&x->c, nexternals);
	x->counters = o->counters ? tensor_room(&x->c, nexternals) : NULL;
	x->outputs = call_room(&x->c, o->g->outputs.n, sizeof *x->outputs);
	x->numbers = call_room(&x->c, o->g->out_numbers.n, sizeof *x->numbers);
	if (PyErr_Occurred() || !ok_or_raise(check_call(o, n)) ||
	    (o->from_inputs && !ok_or_raise(checks_inputs(o->modules, seq))) || !gather_externals(o, x->externals))
		return false;
	if (x->counters)
		gather_counters(o, x->counters);
	br_modes_get(&ambient);
	x->r = (run_spec){.inputs = x->inputs,
	                  .externals = x->externals,
	                  .counters = x->counters,
	                  .outputs = x->outputs,
	                  .numbers = x->numbers,
	                  .symbols = x->symbols,
	                  .guards = x->guards,
	                  .nguards = nguards,
	                  .grad = ambient.grad,
	                  .python = o->plan->calls ? call_python : NULL,
	                  .python_ctx = o->plan};
	return true;
}

PlanObject *program_plan(PyObject *program)
{
	return ((ProgramObject *)program)->plan;
}

br_tensor **program_externals(call *c, PyObject *program)
{
	ProgramObject *o = (ProgramObject *)program;
	const view *v = &o->g->v;
	if (!ok_or_raise(check_model(o->plan, o->modules)))
		return NULL;
	br_tensor **found = tensor_room(c, v->externals.n), **out = found ? tensor_room(c, o->plan->p->values.n) : NULL;
	if (!out || !gather_externals(o, found))
		return NULL;
	for (uint32_t i = 0; i < v->externals.n; i++)
		out[v->externals.at[i]] = found[i] ? br_ref(found[i]) : NULL;
	return out;
}

static clv_status run_program(ProgramObject *o, run_spec *r)
{
	r->over = handover_enter();
	clv_status st = program_run(o->g, r);
	handover_leave(r->over);
	return st;
}

/* run(tensors, symbols=None, guards=None) -> tuple of tensors, and of the numbers of the output that follow the sizes;
   symbols: list of ints, else read off the tensors */
static PyObject *program_py_run(ProgramObject *o, PyObject *args)
{
	Prepared x;
	call_begin(&x.c); /* the rest is set where it is gathered */
	PyObject *out = NULL;
	if (prepare(o, args, &x) && ok_or_raise(UNLOCKED(run_program(o, &x.r))))
		out = wrap_outputs(x.outputs, o->g->outputs.n, x.numbers, o->g->out_places.at, o->g->out_places.n);
	return call_end(&x.c, out);
}

/* check_run(tensors, symbols=None) -> tensors from outside share no memory that they did not share at capture, as far as
   that matters; raises what run would before its first operator */
static PyObject *program_py_check_run(ProgramObject *o, PyObject *args)
{
	Prepared x;
	call_begin(&x.c); /* the rest is set where it is gathered */
	bool ok = prepare(o, args, &x) && ok_or_raise(program_check_run(o->g, &x.r));
	return call_end(&x.c, ok ? PyBool_FromLong(program_is_apart(o->g, &x.r)) : NULL);
}

/* The tensors that go into the part, as many as it takes. */
static bool take_inputs(ProgramObject *o, call *c, PyObject *args, br_tensor ***inputs)
{
	uint32_t n, want = o->g->v.inputs.n;
	return take(c, args, "T", inputs, &n) &&
	       (n == want || ok_or_raise(fail(CLV_E_INPUT, "%u tensors are needed, %u were given", want, n)));
}

/* check(tensors): raises what run would raise about its inputs */
static PyObject *program_py_check(ProgramObject *o, PyObject *args)
{
	call c = {0};
	br_tensor **inputs;
	return call_end(&c, take_inputs(o, &c, args, &inputs) ? none_or_raise(program_check_inputs(o->g, inputs)) : NULL);
}

/* check_model(): raises what run would about the model and the modes around the call */
static PyObject *program_py_check_model(ProgramObject *o, PyObject *unused)
{
	return none_or_raise(check_model(o->plan, o->modules));
}

static PyObject *program_py_inputs(ProgramObject *o, PyObject *unused)
{
	return labels(o->plan->p, o->g->v.inputs.at, o->g->v.inputs.n);
}

static PyObject *program_py_outputs(ProgramObject *o, PyObject *unused)
{
	return labels(o->plan->p, o->g->outputs.at, program_given(o->g));
}

/* state() -> list of (name, kind, trainable, written): the module tensors that the part reads or writes */
static PyObject *program_py_state(ProgramObject *o, PyObject *unused)
{
	const view *v = &o->g->v;
	const plan *p = v->p;
	bool *written;
	clv_status st = view_written(v, &written);
	if (st != CLV_OK)
		return raise_status(st);
	PyObject *out = PyList_New(0);
	for (uint32_t i = 0; out && i < v->externals.n; i++) {
		value_id id = v->externals.at[i];
		const value *x = &p->values.at[id];
		if (!o->bindings[i])
			continue;
		const char *kind = x->kind == VALUE_PARAM ? "param" : x->kind == VALUE_BUFFER ? "buffer" : "attr";
		list_push(&out, Py_BuildValue("(ssOO)", plan_s(p, x->name), kind, truth((x->flags & VALUE_TRAINABLE) != 0),
		                              truth(written[alias_root(p, id)])));
	}
	mem_free(written);
	return out;
}

static PyObject *program_py_counters(ProgramObject *o, PyObject *unused)
{
	const view *v = &o->g->v;
	PyObject *out = PyDict_New();
	for (uint32_t i = 0; out && o->counters && i < v->externals.n; i++) {
		PyObject *pair = o->counters[i];
		const char *name = plan_s(v->p, v->p->values.at[v->externals.at[i]].name);
		if (pair)
			dict_put(&out, name,
			         Py_BuildValue("(NOO)", counter_name(name), PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1)));
	}
	return out;
}

/* rebinds() -> names of the module tensors that become the last tensors of a run */
static PyObject *program_py_rebinds(ProgramObject *o, PyObject *unused)
{
	const view *v = &o->g->v;
	const plan *p = v->p;
	LIST(out, v->rebinds.n, PyUnicode_FromString(plan_s(p, p->values.at[p->rebinds.at[v->rebinds.at[i]].target].name)));
	return out;
}

static PyObject *dim_text(const plan *p, expr_id e)
{
	strbuf b = STRBUF_INIT;
	expr_print(p, e, &b);
	return take_text(CLV_OK, &b);
}

/* (dtype, shape as texts: ("B", "64"), device, requires grad) */
static PyObject *schema_of(const plan *p, const value *x)
{
	LIST(shape, x->ndim, dim_text(p, p->dims.at[x->shape + i]));
	return Py_BuildValue("(sNsO)", dtype_name((dtype)x->dtype), as_tuple(shape), plan_s(p, x->device),
	                     truth((x->flags & VALUE_GRAD) != 0));
}

PyObject *values_schema(const plan *p, const value_id *v, uint32_t n)
{
	LIST(out, n, schema_of(p, &p->values.at[v[i]]));
	return out;
}

/* schema(inputs=False) -> list of (dtype, shape, device, requires grad) of the outputs, or of the inputs */
static PyObject *program_py_schema(ProgramObject *o, PyObject *args)
{
	bool inputs = false;
	if (!take(NULL, args, "|p", &inputs))
		return NULL;
	return inputs ? values_schema(o->g->p, o->g->v.inputs.at, o->g->v.inputs.n)
	              : values_schema(o->g->p, o->g->outputs.at, program_given(o->g));
}

/* symbols(tensors) -> the values of the plan's symbols in a call, as run takes them */
static PyObject *program_py_symbols(ProgramObject *o, PyObject *args)
{
	call c = {0};
	const plan *p = o->g->p;
	br_tensor **inputs;
	if (!take_inputs(o, &c, args, &inputs))
		return call_end(&c, NULL);
	const run_spec r = {.inputs = inputs};
	int64_t *syms = call_room(&c, p->symbols.n, sizeof *syms);
	bool ok = syms && ok_or_raise(program_symbols(o->g, &r, syms));
	return call_end(&c, ok ? int_list(syms, given_symbols(p)) : NULL);
}

static PyObject *size_at(const plan *p, expr_id e, const int64_t *syms)
{
	int64_t n;
	return ok_or_raise(expr_eval(p, e, syms, &n)) ? PyLong_FromLongLong(n) : NULL;
}

static PyObject *shape_at(const plan *p, const value *x, const int64_t *syms)
{
	LIST(shape, x->ndim, size_at(p, p->dims.at[x->shape + i], syms));
	return as_tuple(shape);
}

/* shapes(inputs, symbols) -> the shapes of inputs or outputs where the symbols have these values */
static PyObject *program_py_shapes(ProgramObject *o, PyObject *args)
{
	call c = {0};
	bool inputs;
	PyObject *given;
	const plan *p = o->g->p;
	if (!take(NULL, args, "p[", &inputs, &given))
		return NULL;
	int64_t *syms = symbol_array(&c, p, given);
	const value_id *v = inputs ? o->g->v.inputs.at : o->g->outputs.at;
	if (!syms)
		return call_end(&c, NULL);
	LIST(out, inputs ? o->g->v.inputs.n : program_given(o->g), shape_at(p, &p->values.at[v[i]], syms));
	return call_end(&c, out);
}

/* Where a tensor lies; and what it is, if it may be a number of the host, which goes into a graph by value. */
static uint64_t mark_one(const br_tensor *t)
{
	br_meta m;
	uint64_t mark;
	if (!t)
		return 0;
	if (br_meta_get(t, &m) != CLV_OK || m.ndim)
		return br_place(t);
	(void)br_mark(t, SIZE_MAX, &mark);
	return mark;
}

static uint64_t mark_all(br_tensor *const *tensors, uint32_t n)
{
	uint64_t h = 0;
	for (uint32_t i = 0; i < n; i++) {
		h = (h ^ mark_one(tensors[i])) * 0x9e3779b97f4a7c15u;
		h ^= h >> 29;
	}
	return h;
}

/* Checks the call, and makes ready what a graph of the main part reads but does not make. */
static clv_status ready_for_graph(ProgramObject *o, const Prepared *x, br_tensor **guards, uint32_t nguards,
                                  uint64_t *mark, uint64_t *generation)
{
	run_spec r = x->r;
	r.outputs = guards;
	r.nguards = nguards;
	*generation = 0;
	TRY(program_check_run(o->g, &r));
	*mark = mark_all(x->externals, o->g->v.externals.n);
	return program_prepare(o->g, &r, generation);
}

/* before_graph(tensors, symbols=None) -> (which tensors of the model a run would read, how often what runs reuse was made of
   them, what the guards that ran give to the rest) */
static PyObject *program_py_before_graph(ProgramObject *o, PyObject *args)
{
	Prepared x;
	call_begin(&x.c); /* the rest is set where it is gathered */
	uint64_t mark = 0, generation = 0;
	uint32_t n = o->g->optimizer ? optimizer_guards(o->g->optimizer) : 0;
	br_tensor **guards = tensor_room(&x.c, n);
	if (!guards || !prepare(o, args, &x) ||
	    !ok_or_raise(UNLOCKED(ready_for_graph(o, &x, guards, n, &mark, &generation))))
		return call_end(&x.c, NULL);
	LIST(made, n, py_wrap(guards[i] ? br_ref(guards[i]) : NULL));
	return call_end(&x.c,
	                Py_BuildValue("(KKN)", (unsigned long long)mark, (unsigned long long)generation, as_tuple(made)));
}

/* effects() -> as Plan.effects, of what every run does */
static PyObject *program_py_effects(ProgramObject *o, PyObject *unused)
{
	const optimized_plan *made = o->g->optimizer ? optimizer_plan(o->g->optimizer) : NULL;
	const view *v = &o->g->v;
	if (made)
		return effects_of(made->p, made->part[PART_MAIN], made->part[PARTS], v->rebinds.n > 0);
	node_id first = v->nodes.n ? v->nodes.at[0] : 0;
	return effects_of(o->plan->p, first, first + v->nodes.n, v->rebinds.n > 0);
}

static PyObject *program_py_ask(ProgramObject *o, PyObject *unused)
{
	return PyBool_FromLong(program_ask(o->g));
}

/* optimizations() -> (what passes did, the plan that runs as text or None); None: they were not asked for */
static PyObject *program_py_optimizations(ProgramObject *o, PyObject *unused)
{
	strbuf report = STRBUF_INIT, text = STRBUF_INIT;
	if (!o->g->optimizer && !o->g->native)
		Py_RETURN_NONE;
	clv_status st = UNLOCKED(program_report(o->g, &report)); /* waits for a run that chooses, which may call Python */
	const optimized_plan *made = o->g->optimizer ? optimizer_plan(o->g->optimizer) : NULL;
	if (made)
		plan_print(made->p, &text);
	PyObject *out = st != CLV_OK || text.failed ? raise_status(st != CLV_OK ? st : fail_nomem())
	                                            : Py_BuildValue("(s#z#)", report.at ? report.at : "",
	                                                            (Py_ssize_t)report.n, text.at, (Py_ssize_t)text.n);
	strbuf_free(&report);
	strbuf_free(&text);
	return out;
}

/* memory() -> counts of the last run that had its memory from a pool; None: there is no pool, or was no such run yet */
static PyObject *program_py_memory(ProgramObject *o, PyObject *unused)
{
	pool *memory = program_memory(o->g);
	pool_counts c = {0};
	if (memory)
		pool_count(memory, &c);
	if (!c.served)
		Py_RETURN_NONE;
	return Py_BuildValue("{sKsKsKsKsKsKsK}", "runs", (unsigned long long)c.served, "placed",
	                     (unsigned long long)c.placed, "outside", (unsigned long long)c.outside, "outside_bytes",
	                     (unsigned long long)c.outside_bytes, "missed", (unsigned long long)c.missed, "bytes",
	                     (unsigned long long)c.bytes, "bound", (unsigned long long)c.bound);
}

METHODS(program_py, TAKES(program_py, run), TAKES(program_py, check_run), TAKES(program_py, check),
        GIVES(program_py, check_model), GIVES(program_py, inputs), GIVES(program_py, outputs), GIVES(program_py, state),
        GIVES(program_py, counters), GIVES(program_py, rebinds), TAKES(program_py, schema), TAKES(program_py, symbols),
        GIVES(program_py, segments), GIVES(program_py, optimizations), GIVES(program_py, memory),
        TAKES(program_py, before_graph), GIVES(program_py, effects), GIVES(program_py, ask), TAKES(program_py, shapes));
TYPE(Program, ProgramObject, program_py, Py_TPFLAGS_HAVE_GC, .tp_new = program_py_new, COLLECTED(program_py));
