/* Program: runs a part of a plan on the live tensors of a model, after a check that the model is as it was. */
#include "_native_segment.h"
#include "exec/optimized.h"
#include "runtime/handover.h"

typedef struct Binding {
	PyObject *holder, *key; /* live: holder[key] is the tensor, holder a dict or list; NULL: data of the plan */
} Binding;

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
	Binding *bindings; /* per external */
	Binding *counters; /* per external: run_spec.counters; NULL: none has any */
	PyObject *modules; /* what must still hold of the model: Checks; NULL: nothing */
	bool from_inputs;  /* it begins where the plan does, and takes the model's inputs */
	Coded *coded;      /* compiled segments */
	uint32_t ncoded;
	arena arena;
} ProgramObject;

static int program_py_traverse(ProgramObject *o, visitproc visit, void *ctx)
{
	int r = visit_one(o->modules, visit, ctx);
	if (!r)
		r = visit_one((PyObject *)o->plan, visit, ctx);
	for (uint32_t i = 0; !r && o->bindings && o->g && i < o->g->v.externals.n; i++) {
		r = visit_one(o->bindings[i].holder, visit, ctx);
		if (!r)
			r = visit_one(o->bindings[i].key, visit, ctx);
		if (!r && o->counters)
			r = visit_one(o->counters[i].holder, visit, ctx);
	}
	return r;
}

/* The plan stays until dealloc: the program reads it. */
static int program_py_clear(ProgramObject *o)
{
	for (uint32_t i = 0; o->bindings && o->g && i < o->g->v.externals.n; i++) {
		Py_CLEAR(o->bindings[i].holder);
		Py_CLEAR(o->bindings[i].key);
		if (!o->counters)
			continue;
		Py_CLEAR(o->counters[i].holder);
		Py_CLEAR(o->counters[i].key);
	}
	Py_CLEAR(o->modules);
	return 0;
}

static void program_py_dealloc(ProgramObject *o)
{
	PyObject_GC_UnTrack(o);
	program_py_clear(o);
	PyMem_Free(o->bindings);
	PyMem_Free(o->counters);
	program_free(o->g);
	for (uint32_t i = 0; o->coded && i < o->ncoded; i++)
		code_unref(o->coded[i].c);
	PyMem_Free(o->coded);
	arena_free(&o->arena);
	Py_XDECREF(o->plan);
	Py_TYPE(o)->tp_free((PyObject *)o);
}

static bool bind_one(PyObject *pair, Binding *out)
{
	if (!PyArg_ParseTuple(pair, "OO", &out->holder, &out->key)) {
		*out = (Binding){NULL, NULL};
		return false;
	}
	Py_INCREF(out->holder);
	Py_INCREF(out->key);
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
	bool ok = !PyErr_Occurred() && (!pair || bind_one(pair, &o->counters[i]));
	Py_XDECREF(other);
	return ok;
}

/* state: dict name -> (dict, key) for every module tensor the program reads */
static bool bind_externals(ProgramObject *o, PyObject *state)
{
	const view *v = &o->g->v;
	const plan *p = o->plan->p;
	o->bindings = PyMem_Calloc(v->externals.n + 1, sizeof *o->bindings);
	if (!o->bindings)
		return PyErr_NoMemory() != NULL;
	for (uint32_t i = 0; i < v->externals.n; i++) {
		const value *x = &p->values.at[v->externals.at[i]];
		if (x->kind != VALUE_PARAM && x->kind != VALUE_BUFFER && x->kind != VALUE_ATTR)
			continue;
		PyObject *pair = PyDict_GetItemString(state, plan_s(p, x->name));
		if (!pair && !PyErr_Occurred())
			PyErr_Format(PyExc_KeyError, "no module tensor %s", plan_s(p, x->name));
		if (!pair || !bind_one(pair, &o->bindings[i]))
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
		Py_BEGIN_ALLOW_THREADS
		st = code_new(&source, &o->arena, &out->c, &out->reason);
		Py_END_ALLOW_THREADS
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

/* segments() -> list of (first, end, back end, reason or None, runs, runs on the tape); those that were given as codes */
static PyObject *program_py_segments(ProgramObject *o, PyObject *unused)
{
	PyObject *out = PyList_New(0);
	for (uint32_t i = 0; out && i < o->ncoded; i++) {
		const Coded *x = &o->coded[i];
		list_push(&out,
		          Py_BuildValue("(IIszKK)", x->first, x->end, x->backend, x->c ? atomic_load(&x->c->reason) : x->reason,
		                        x->c ? (unsigned long long)x->c->runs : 0ULL,
		                        x->c ? (unsigned long long)x->c->tape_runs : 0ULL));
	}
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
	PlanObject *plan_o;
	unsigned int first, end;
	int debug, inference, guards_first = 0, threads = 0, untrusted = 0, native = 0;
	unsigned char optimize = 0;
	PyObject *state, *modules, *codes = NULL, *off = NULL;
	const char **names = NULL;
	if (!PyArg_ParseTuple(args, "O!IIppO!O|O!bO!pipp", &PlanType, &plan_o, &first, &end, &debug, &inference,
	                      &PyDict_Type, &state, &modules, &PyList_Type, &codes, &optimize, &PyList_Type, &off,
	                      &guards_first, &threads, &untrusted, &native))
		return NULL;
	if (modules != Py_None && !Py_IS_TYPE(modules, &ChecksType))
		return PyErr_Format(PyExc_TypeError, "what must hold of the model is a Checks or None");
	ProgramObject *o = (ProgramObject *)type->tp_alloc(type, 0);
	if (!o)
		return NULL;
	o->plan = (PlanObject *)Py_NewRef((PyObject *)plan_o);
	o->modules = modules == Py_None ? NULL : Py_NewRef(modules);
	o->from_inputs = first == 0;
	program_spec spec = {.first = first,
	                     .end = end,
	                     .debug = debug != 0,
	                     .inference = inference != 0,
	                     .objects = plan_o->data.objects,
	                     .nobjects = plan_o->data.n,
	                     .optimize = optimize,
	                     .choose_later = true,
	                     .guards_first = guards_first != 0,
	                     .threads = threads,
	                     .untrusted = untrusted != 0,
	                     .native = native != 0};
	uint32_t nnames;
	if ((codes && !load_codes(o, codes, threads)) || (off && !(names = string_array(off, &nnames)))) {
		Py_DECREF(o);
		return NULL;
	}
	spec.passes_off = names;
	clv_status st = make_program(o, &spec);
	PyMem_Free(names);
	if (st != CLV_OK) {
		Py_DECREF(o);
		return raise_status(st);
	}
	if (!bind_externals(o, state)) {
		Py_DECREF(o);
		return NULL;
	}
	return (PyObject *)o;
}

/* A new reference to holder[key], NULL if there is none. */
static PyObject *live_item(PyObject *holder, PyObject *key)
{
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
		if (!o->bindings[i].holder) {
			out[i] = id < o->plan->data.n ? br_ref(o->plan->data.tensors[id]) : NULL;
			continue;
		}
		PyObject *t = live_item(o->bindings[i].holder, o->bindings[i].key);
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
		PyObject *t = o->counters[i].holder ? live_item(o->counters[i].holder, o->counters[i].key) : NULL;
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
	PyObject *plan_o, *checks;
	if (!PyArg_ParseTuple(args, "O!O!", &PlanType, &plan_o, &ChecksType, &checks))
		return NULL;
	return none_or_raise(check_model((PlanObject *)plan_o, checks));
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
	PyObject *call = o->calls ? PyList_GetItem(o->calls, (Py_ssize_t)o->data.python[object]) : NULL;
	PyObject *list = call ? PyTuple_New(nargs) : NULL, *out = NULL, *fast = NULL;
	for (uint32_t i = 0; list && i < nargs; i++) {
		PyObject *t = py_wrap(br_ref(args[i]));
		if (!t)
			Py_CLEAR(list);
		else
			PyTuple_SET_ITEM(list, i, t);
	}
	if (list)
		out = PyObject_CallFunctionObjArgs(call, list, NULL);
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

static int64_t *symbol_array(const plan *p, PyObject *given)
{
	int64_t *out = PyMem_Calloc(p->symbols.n + 1, sizeof *out);
	for (uint32_t i = 0; out && i < p->symbols.n; i++)
		out[i] = i < (uint32_t)PyList_GET_SIZE(given) ? PyLong_AsLongLong(PyList_GET_ITEM(given, i)) : -1;
	return out;
}

/* What a run needs, gathered: the same for running and for checking alone. */
typedef struct Prepared {
	br_tensor **inputs, **externals, **counters, **outputs, **guards;
	run_number *numbers; /* of the output */
	Py_ssize_t n, nguards;
	int64_t *symbols;
	run_spec r;
} Prepared;

static void prepared_free(ProgramObject *o, Prepared *x)
{
	for (uint32_t i = 0; x->externals && i < o->g->v.externals.n; i++)
		br_unref(x->externals[i]);
	for (uint32_t i = 0; x->counters && i < o->g->v.externals.n; i++)
		br_unref(x->counters[i]);
	if (x->inputs)
		tensors_free(x->inputs, x->n);
	if (x->guards)
		tensors_free(x->guards, x->nguards);
	PyMem_Free(x->symbols);
	PyMem_Free(x->externals);
	PyMem_Free(x->counters);
	PyMem_Free(x->outputs);
	PyMem_Free(x->numbers);
}

static clv_status check_call(ProgramObject *o, Py_ssize_t n)
{
	if ((uint32_t)n != o->g->v.inputs.n)
		return fail(CLV_E_INPUT, "%u tensors are needed, %zd were given", o->g->v.inputs.n, n);
	return check_model(o->plan, o->modules);
}

/* args: (tensors, symbols=None, guards=None). False with an exception; prepared_free in either case. */
static bool prepare(ProgramObject *o, PyObject *args, Prepared *x)
{
	PyObject *seq, *symbols = Py_None, *guards = Py_None;
	const plan *p = o->plan->p;
	br_modes ambient;
	if (!PyArg_ParseTuple(args, "O|OO", &seq, &symbols, &guards))
		return false;
	if (symbols != Py_None && (!PyList_Check(symbols) || PyList_GET_SIZE(symbols) != given_symbols(p))) {
		PyErr_Format(PyExc_TypeError, "a list with the value of every symbol is needed");
		return false;
	}
	x->inputs = tensor_array(seq, &x->n);
	if (!x->inputs)
		return false;
	if (guards != Py_None && !(x->guards = tensor_array(guards, &x->nguards)))
		return false;
	x->symbols = symbols == Py_None ? NULL : symbol_array(p, symbols);
	if (PyErr_Occurred())
		return false;
	x->externals = PyMem_Calloc(o->g->v.externals.n + 1, sizeof *x->externals);
	x->counters = o->counters ? PyMem_Calloc(o->g->v.externals.n + 1, sizeof *x->counters) : NULL;
	x->outputs = PyMem_Calloc(o->g->outputs.n + 1, sizeof *x->outputs);
	x->numbers = PyMem_Calloc(o->g->out_numbers.n + 1, sizeof *x->numbers);
	if (!x->externals || (o->counters && !x->counters) || !x->outputs || !x->numbers ||
	    (symbols != Py_None && !x->symbols))
		return PyErr_NoMemory() != NULL;
	clv_status st = check_call(o, x->n);
	if (st == CLV_OK && o->from_inputs)
		st = checks_inputs(o->modules, seq);
	if (st != CLV_OK)
		return raise_status(st) != NULL;
	if (!gather_externals(o, x->externals))
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
	                  .nguards = (uint32_t)x->nguards,
	                  .grad = ambient.grad,
	                  .python = o->plan->calls ? call_python : NULL,
	                  .python_ctx = o->plan};
	return true;
}

PlanObject *program_plan(PyObject *program)
{
	return ((ProgramObject *)program)->plan;
}

br_tensor **program_externals(PyObject *program, Py_ssize_t *n)
{
	ProgramObject *o = (ProgramObject *)program;
	const view *v = &o->g->v;
	clv_status st = check_model(o->plan, o->modules);
	if (st != CLV_OK)
		return (br_tensor **)raise_status(st);
	*n = o->plan->p->values.n;
	br_tensor **found = PyMem_Calloc(v->externals.n + 1, sizeof *found),
			  **out = PyMem_Calloc((size_t)*n + 1, sizeof *out);
	bool ok = found && out ? gather_externals(o, found) : PyErr_NoMemory() != NULL;
	for (uint32_t i = 0; found && out && i < v->externals.n; i++)
		out[v->externals.at[i]] = found[i];
	PyMem_Free(found);
	if (ok)
		return out;
	tensors_free(out, *n);
	return NULL;
}

/* run(tensors, symbols=None, guards=None) -> tuple of tensors, and of the numbers of the output that follow the sizes;
   symbols: list of ints, else read off the tensors */
static PyObject *program_py_run(ProgramObject *o, PyObject *args)
{
	Prepared x = {0};
	PyObject *result = NULL;
	if (prepare(o, args, &x)) {
		clv_status st;
		Py_BEGIN_ALLOW_THREADS;
		x.r.over = handover_enter();
		st = program_run(o->g, &x.r);
		handover_leave(x.r.over);
		Py_END_ALLOW_THREADS;
		result = st == CLV_OK
		             ? wrap_outputs(x.outputs, o->g->outputs.n, x.numbers, o->g->out_places.at, o->g->out_places.n)
		             : raise_status(st);
	}
	prepared_free(o, &x);
	return result;
}

/* check_run(tensors, symbols=None) -> tensors from outside share no memory that they did not share at capture, as far as
   that matters; raises what run would before its first operator */
static PyObject *program_py_check_run(ProgramObject *o, PyObject *args)
{
	Prepared x = {0};
	PyObject *result = NULL;
	if (prepare(o, args, &x)) {
		clv_status st = program_check_run(o->g, &x.r);
		result = st == CLV_OK ? PyBool_FromLong(program_is_apart(o->g, &x.r)) : raise_status(st);
	}
	prepared_free(o, &x);
	return result;
}

/* check(tensors): raises what run would raise about its inputs */
static PyObject *program_py_check(ProgramObject *o, PyObject *seq)
{
	Py_ssize_t n;
	br_tensor **inputs = tensor_array(seq, &n);
	if (!inputs)
		return NULL;
	clv_status st = (uint32_t)n == o->g->v.inputs.n
	                    ? program_check_inputs(o->g, inputs)
	                    : fail(CLV_E_INPUT, "%u tensors are needed, %zd were given", o->g->v.inputs.n, n);
	tensors_free(inputs, n);
	return none_or_raise(st);
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
		if (!o->bindings[i].holder)
			continue;
		const char *kind = x->kind == VALUE_PARAM ? "param" : x->kind == VALUE_BUFFER ? "buffer" : "attr";
		list_push(&out,
		          Py_BuildValue("(ssNN)", plan_s(p, x->name), kind, PyBool_FromLong((x->flags & VALUE_TRAINABLE) != 0),
		                        PyBool_FromLong(written[alias_root(p, id)])));
	}
	mem_free(written);
	return out;
}

static PyObject *program_py_counters(ProgramObject *o, PyObject *unused)
{
	const view *v = &o->g->v;
	PyObject *out = PyDict_New();
	for (uint32_t i = 0; out && o->counters && i < v->externals.n; i++) {
		const Binding *b = &o->counters[i];
		if (!b->holder)
			continue;
		const char *name = plan_s(v->p, v->p->values.at[v->externals.at[i]].name);
		dict_put(&out, name, Py_BuildValue("(NOO)", counter_name(name), b->holder, b->key));
	}
	return out;
}

/* rebinds() -> names of the module tensors that become the last tensors of a run */
static PyObject *program_py_rebinds(ProgramObject *o, PyObject *unused)
{
	const view *v = &o->g->v;
	PyObject *out = PyList_New(0);
	for (uint32_t i = 0; out && i < v->rebinds.n; i++) {
		value_id target = v->p->rebinds.at[v->rebinds.at[i]].target;
		list_push(&out, PyUnicode_FromString(plan_s(v->p, v->p->values.at[target].name)));
	}
	return out;
}

/* The shape of a value as a tuple of texts: ("B", "64"). */
static PyObject *shape_texts(const plan *p, const value *x)
{
	PyObject *shape = PyTuple_New(x->ndim);
	for (uint32_t d = 0; shape && d < x->ndim; d++) {
		strbuf b = STRBUF_INIT;
		expr_print(p, p->dims.at[x->shape + d], &b);
		PyObject *text = PyUnicode_FromStringAndSize(b.at, (Py_ssize_t)b.n);
		strbuf_free(&b);
		if (text)
			PyTuple_SET_ITEM(shape, d, text);
		else
			Py_CLEAR(shape);
	}
	return shape;
}

PyObject *values_schema(const plan *p, const value_id *v, uint32_t n)
{
	PyObject *out = PyList_New(n);
	for (uint32_t i = 0; out && i < n; i++) {
		const value *x = &p->values.at[v[i]];
		PyObject *item = Py_BuildValue("(sNsN)", dtype_name((dtype)x->dtype), shape_texts(p, x), plan_s(p, x->device),
		                               PyBool_FromLong((x->flags & VALUE_GRAD) != 0));
		if (!item)
			Py_CLEAR(out);
		else
			PyList_SET_ITEM(out, i, item);
	}
	return out;
}

/* schema(inputs=False) -> list of (dtype, shape, device, requires grad) of the outputs, or of the inputs */
static PyObject *program_py_schema(ProgramObject *o, PyObject *args)
{
	int inputs = 0;
	if (!PyArg_ParseTuple(args, "|p", &inputs))
		return NULL;
	return inputs ? values_schema(o->g->p, o->g->v.inputs.at, o->g->v.inputs.n)
	              : values_schema(o->g->p, o->g->outputs.at, program_given(o->g));
}

/* symbols(tensors) -> the values of the plan's symbols in a call, as run takes them */
static PyObject *program_py_symbols(ProgramObject *o, PyObject *seq)
{
	const plan *p = o->g->p;
	run_spec r = {0};
	Py_ssize_t n = 0;
	br_tensor **inputs = tensor_array(seq, &n);
	int64_t *syms = inputs ? PyMem_Calloc(p->symbols.n + 1, sizeof *syms) : NULL;
	PyObject *out = NULL;
	if (syms) {
		r.inputs = inputs;
		clv_status st = (uint32_t)n == o->g->v.inputs.n
		                    ? program_symbols(o->g, &r, syms)
		                    : fail(CLV_E_INPUT, "%u tensors are needed, %zd were given", o->g->v.inputs.n, n);
		out = st == CLV_OK ? int_list(syms, given_symbols(p)) : raise_status(st);
	}
	if (inputs)
		tensors_free(inputs, n);
	PyMem_Free(syms);
	return out;
}

static PyObject *shape_at(const plan *p, const value *x, const int64_t *syms)
{
	PyObject *shape = PyTuple_New(x->ndim);
	for (uint32_t d = 0; shape && d < x->ndim; d++) {
		int64_t n;
		clv_status st = expr_eval(p, p->dims.at[x->shape + d], syms, &n);
		PyObject *size = st == CLV_OK ? PyLong_FromLongLong(n) : raise_status(st);
		if (size)
			PyTuple_SET_ITEM(shape, d, size);
		else
			Py_CLEAR(shape);
	}
	return shape;
}

/* shapes(inputs, symbols) -> the shapes of inputs or outputs where the symbols have these values */
static PyObject *program_py_shapes(ProgramObject *o, PyObject *args)
{
	int inputs;
	PyObject *given;
	if (!PyArg_ParseTuple(args, "pO!", &inputs, &PyList_Type, &given))
		return NULL;
	const plan *p = o->g->p;
	int64_t *syms = symbol_array(p, given);
	uint32_t n = inputs ? o->g->v.inputs.n : program_given(o->g);
	const value_id *v = inputs ? o->g->v.inputs.at : o->g->outputs.at;
	PyObject *out = syms && !PyErr_Occurred() ? PyList_New(n) : NULL;
	for (uint32_t i = 0; out && i < n; i++) {
		PyObject *shape = shape_at(p, &p->values.at[v[i]], syms);
		if (shape)
			PyList_SET_ITEM(out, i, shape);
		else
			Py_CLEAR(out);
	}
	PyMem_Free(syms);
	return out;
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

/* Takes over the tensors. */
static PyObject *wrap_tensors(br_tensor **t, uint32_t n)
{
	PyObject *out = PyTuple_New(n);
	for (uint32_t i = 0; out && i < n; i++) {
		PyObject *x = py_wrap(t[i]);
		t[i] = NULL;
		if (x)
			PyTuple_SET_ITEM(out, i, x);
		else
			Py_CLEAR(out);
	}
	return out;
}

/* before_graph(tensors, symbols=None) -> (which tensors of the model a run would read, how often what runs reuse was made of
   them, what the guards that ran give to the rest) */
static PyObject *program_py_before_graph(ProgramObject *o, PyObject *args)
{
	Prepared x = {0};
	PyObject *result = NULL;
	uint64_t mark = 0, generation = 0;
	uint32_t n = o->g->optimizer ? optimizer_guards(o->g->optimizer) : 0;
	br_tensor **guards = PyMem_Calloc(n + 1, sizeof *guards);
	if (!guards)
		return PyErr_NoMemory();
	if (prepare(o, args, &x)) {
		clv_status st;
		Py_BEGIN_ALLOW_THREADS;
		st = ready_for_graph(o, &x, guards, n, &mark, &generation);
		Py_END_ALLOW_THREADS;
		PyObject *made = st == CLV_OK ? wrap_tensors(guards, n) : raise_status(st);
		if (made)
			result = Py_BuildValue("(KKN)", (unsigned long long)mark, (unsigned long long)generation, made);
	}
	tensors_free(guards, n);
	prepared_free(o, &x);
	return result;
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
	clv_status st;
	Py_BEGIN_ALLOW_THREADS; /* waits for a run that chooses, which may call Python */
	st = program_report(o->g, &report);
	Py_END_ALLOW_THREADS;
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

static PyMethodDef program_methods[] = {
	{"run", (PyCFunction)program_py_run, METH_VARARGS, "run(tensors, symbols=None, guards=None) -> tuple of tensors"},
	{"check_run", (PyCFunction)program_py_check_run, METH_VARARGS,
     "check_run(tensors, symbols=None) -> they, and the model's tensors, are on memory of their own as at capture. "
     "Raises "
     "what run would before its first operator"},
	{"check", (PyCFunction)program_py_check, METH_O, "check(tensors): raises what run would about its inputs"},
	{"check_model", (PyCFunction)program_py_check_model, METH_NOARGS, "check_model(): as check, about the model"},
	{"inputs", (PyCFunction)program_py_inputs, METH_NOARGS, "inputs() -> labels"},
	{"outputs", (PyCFunction)program_py_outputs, METH_NOARGS, "outputs() -> labels"},
	{"state", (PyCFunction)program_py_state, METH_NOARGS, "state() -> list of (name, kind, trainable, written)"},
	{"counters", (PyCFunction)program_py_counters, METH_NOARGS,
     "counters() -> {name: (counter, dict, key)} of buffers that are written without a new version, and what counts "
     "it"},
	{"rebinds", (PyCFunction)program_py_rebinds, METH_NOARGS,
     "rebinds() -> names of what the last tensors of run become"},
	{"schema", (PyCFunction)program_py_schema, METH_VARARGS,
     "schema(inputs=False) -> list of (dtype, shape, device, requires grad)"},
	{"symbols", (PyCFunction)program_py_symbols, METH_O, "symbols(tensors) -> list of values"},
	{"segments", (PyCFunction)program_py_segments, METH_NOARGS,
     "segments() -> list of (first, end, back end, reason or None, runs, runs on the tape)"},
	{"optimizations", (PyCFunction)program_py_optimizations, METH_NOARGS,
     "optimizations() -> (report, text of the plan that runs, or None), or None"},
	{"memory", (PyCFunction)program_py_memory, METH_NOARGS,
     "memory() -> {count: number} of the last run that had its memory from a pool, or None"},
	{"before_graph", (PyCFunction)program_py_before_graph, METH_VARARGS,
     "before_graph(tensors, symbols=None) -> (two numbers that change when a graph of what every run does would read "
     "other "
     "tensors, tensors that run takes as its third argument). Raises what run would before its first operator"},
	{"effects", (PyCFunction)program_py_effects, METH_NOARGS, "effects() -> {effect: node} of what every run does"},
	{"ask", (PyCFunction)program_py_ask, METH_NOARGS, "ask() -> the next run chooses among optimizations"},
	{"shapes", (PyCFunction)program_py_shapes, METH_VARARGS, "shapes(inputs, symbols) -> list of shapes"},
	{NULL, NULL, 0, NULL}};

PyTypeObject ProgramType = {PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cleave._native.Program",
                            .tp_basicsize = sizeof(ProgramObject),
                            .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                            .tp_traverse = (traverseproc)program_py_traverse,
                            .tp_clear = (inquiry)program_py_clear,
                            .tp_new = program_py_new,
                            .tp_dealloc = (destructor)program_py_dealloc,
                            .tp_methods = program_methods};
