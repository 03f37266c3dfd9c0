/* Profiles: blocks measured and estimated, files of them. A row is (name, module, end, numbers) with the numbers in the
 * order of profile_numbers. */
#include "_native.h"

#include "exec/profile_blocks.h"
#include "pipe/estimate.h"
#include "pipe/profile_keys.h"

static PyObject *wrap_numbers(const block_profile *at)
{
	PyObject *out = PyTuple_New(PROFILE_NUMBER_COUNT);
	for (Py_ssize_t i = 0; out && i < PROFILE_NUMBER_COUNT; i++) {
		double x;
		memcpy(&x, (const char *)at + profile_numbers[i].at, sizeof x);
		PyObject *number = PyFloat_FromDouble(x);
		if (number)
			PyTuple_SET_ITEM(out, i, number);
		else
			Py_CLEAR(out);
	}
	return out;
}

static bool profile_read_numbers(PyObject *tuple, block_profile *out)
{
	if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != PROFILE_NUMBER_COUNT) {
		PyErr_SetString(PyExc_TypeError, "the numbers of a block are a tuple of 16");
		return false;
	}
	for (Py_ssize_t i = 0; i < PROFILE_NUMBER_COUNT; i++) {
		double x = PyFloat_AsDouble(PyTuple_GET_ITEM(tuple, i));
		if (PyErr_Occurred())
			return false;
		memcpy((char *)out + profile_numbers[i].at, &x, sizeof x);
	}
	return true;
}

/* spread(samples: sequence of float) -> (median, low, high, least, most) */
PyObject *spread_py(PyObject *self, PyObject *list)
{
	PyObject *fixed = PySequence_Tuple(list); /* reading a number may run Python, which may change a list */
	if (!fixed)
		return NULL;
	Py_ssize_t n = PyTuple_GET_SIZE(fixed);
	double *samples = PyMem_Malloc((size_t)(n + 1) * sizeof *samples);
	PyObject *out = NULL;
	for (Py_ssize_t i = 0; samples && i < n && !PyErr_Occurred(); i++)
		samples[i] = PyFloat_AsDouble(PyTuple_GET_ITEM(fixed, i));
	if (!samples)
		PyErr_NoMemory();
	else if (n < 1 || n > UINT32_MAX)
		PyErr_SetString(PyExc_ValueError, "a spread is of at least one number");
	else if (!PyErr_Occurred()) {
		spread s = spread_of(samples, (uint32_t)n);
		out = Py_BuildValue("(ddddd)", s.median, s.low, s.high, s.least, s.most);
	}
	PyMem_Free(samples);
	Py_DECREF(fixed);
	return out;
}

/* What the set-up makes is metered as well, so that its release is known; NULL with an exception. */
static PyObject *call_metered(PyObject *setup, PyObject *call, br_meter *m, int64_t *peak)
{
	PyObject *given = PyObject_CallNoArgs(setup);
	if (!given)
		return NULL;
	int64_t before = br_meter_live(m);
	(void)br_meter_peak(m);
	PyObject *result = PyObject_CallOneArg(call, given);
	*peak = br_meter_peak(m) - before;
	Py_DECREF(given);
	return result;
}

/* peak_memory(setup, call) -> most bytes of the CPU that call(setup()) had allocated at once, by torch's allocator on this
   thread and those of autograd, above what was there after the set-up */
PyObject *peak_memory_py(PyObject *self, PyObject *args)
{
	PyObject *setup, *call;
	br_meter *m = NULL;
	int64_t peak = 0;
	if (!PyArg_ParseTuple(args, "OO", &setup, &call))
		return NULL;
	clv_status st = br_meter_start(false, &m);
	if (st != CLV_OK)
		return raise_status(st);
	PyObject *result = call_metered(setup, call, m, &peak);
	br_meter_stop(m);
	if (!result)
		return NULL;
	Py_DECREF(result);
	return PyLong_FromLongLong(peak);
}

static node_id *read_ends(PyObject *list, uint32_t *n)
{
	Py_ssize_t count;
	int64_t *all = int_array(list, &count);
	node_id *out = PyMem_Calloc((size_t)count + 1, sizeof *out);
	for (Py_ssize_t i = 0; all && out && i < count; i++)
		out[i] = all[i] < 0 || all[i] > UINT32_MAX ? UINT32_MAX : (node_id)all[i];
	bool ok = all && out && !PyErr_Occurred();
	if (!ok && !PyErr_Occurred())
		PyErr_NoMemory();
	PyMem_Free(all);
	*n = (uint32_t)count;
	if (ok)
		return out;
	PyMem_Free(out);
	return NULL;
}

static PyObject *wrap_row(const plan *p, node_id first, node_id end, const block_profile *at)
{
	strbuf b = STRBUF_INIT;
	block_module(p, first, end, &b);
	PyObject *module = take_text(CLV_OK, &b);
	return module ? Py_BuildValue("(NIN)", module, end, wrap_numbers(at)) : NULL;
}

static PyObject *wrap_rows(const plan *p, const node_id *ends, uint32_t n, const block_profile *at)
{
	PyObject *rows = PyList_New(0);
	for (uint32_t i = 0; rows && i < n; i++)
		list_push(&rows, wrap_row(p, i ? ends[i - 1] : 0, ends[i], &at[i]));
	return rows;
}

typedef struct Watcher {
	PyObject *progress; /* called with the number of each block that begins, -1 for all at once; may be None */
	uint32_t block;
	bool begun;
} Watcher;

/* The executor calls this without the GIL. */
static clv_status watch_block(void *ctx, uint32_t block)
{
	Watcher *w = ctx;
	PyGILState_STATE gil = PyGILState_Ensure();
	bool ok = PyErr_CheckSignals() == 0;
	if (ok && w->progress != Py_None && (!w->begun || w->block != block)) {
		PyObject *r = PyObject_CallFunction(w->progress, "l", block == PROFILE_WHOLE ? -1L : (long)block);
		ok = r != NULL;
		Py_XDECREF(r);
	}
	w->begun = true;
	w->block = block;
	PyGILState_Release(gil);
	return ok ? CLV_OK : fail(CLV_E_INVALID, "the profile was interrupted");
}

static PyObject *run_profile(PlanObject *o, const profile_spec *s, bool whole)
{
	block_profile *rows = PyMem_Calloc(s->n + 1, sizeof *rows);
	bool whole_ran = false;
	clv_status st;
	if (!rows)
		return PyErr_NoMemory();
	Py_BEGIN_ALLOW_THREADS;
	st = profile_blocks(o->p, s, rows, whole ? &rows[s->n] : NULL, &whole_ran);
	Py_END_ALLOW_THREADS;
	PyObject *out = st == CLV_OK ? Py_BuildValue("(NN)", wrap_rows(o->p, s->ends, s->n, rows),
	                                             whole_ran ? wrap_numbers(&rows[s->n]) : Py_NewRef(Py_None))
	                             : raise_status(st);
	PyMem_Free(rows);
	return out;
}

/* profile_blocks(program, tensors, ends, iterations, warmup, training, whole, progress) -> (rows, numbers or None); the
   program is of the whole plan. Rows are (module, end, numbers). */
PyObject *profile_blocks_py(PyObject *self, PyObject *args)
{
	PyObject *program, *seq, *list, *out = NULL;
	unsigned int iterations, warmup;
	int training, whole;
	Watcher w = {0};
	Py_ssize_t inputs = 0, values = 0;
	if (!PyArg_ParseTuple(args, "O!OO!IIppO", &ProgramType, &program, &seq, &PyList_Type, &list, &iterations, &warmup,
	                      &training, &whole, &w.progress))
		return NULL;
	PlanObject *o = program_plan(program);
	profile_spec s = {.warmup = warmup,
	                  .iterations = iterations,
	                  .training = training != 0,
	                  .objects = o->data.objects,
	                  .nobjects = o->data.objects ? o->data.n : 0,
	                  .python = o->calls ? call_python : NULL,
	                  .python_ctx = o,
	                  .tick = watch_block,
	                  .ctx = &w};
	node_id *ends = read_ends(list, &s.n);
	br_tensor **tensors = ends ? tensor_array(seq, &inputs) : NULL;
	br_tensor **externals = tensors ? program_externals(program, &values) : NULL;
	s.ends = ends;
	s.inputs = tensors;
	s.externals = externals;
	if (externals && inputs != (Py_ssize_t)o->p->inputs.n)
		raise_status(fail(CLV_E_INPUT, "%u tensors are needed, %zd were given", o->p->inputs.n, inputs));
	else if (externals)
		out = run_profile(o, &s, whole != 0);
	tensors_free(externals, values);
	tensors_free(tensors, inputs);
	PyMem_Free(ends);
	return out;
}

static spread exactly(double us)
{
	double ms = us / 1000;
	return (spread){ms, ms, ms, ms, ms};
}

static block_profile as_profile(const block_cost *c)
{
	return (block_profile){.forward = exactly(c->fwd_us),
	                       .backward = exactly(c->bwd_us),
	                       .forward_memory = (double)(c->held_bytes + c->fwd_work_bytes) / 1e6,
	                       .backward_memory = (double)c->bwd_work_bytes / 1e6,
	                       .held = (double)c->held_bytes / 1e6,
	                       .size = (double)c->param_bytes / 1e6,
	                       .input_size = (double)c->in_bytes / 1e6,
	                       .output_size = (double)c->out_bytes / 1e6};
}

/* Sizes by name as values of the plan's symbols; -1: not given. */
static int64_t *symbol_values(const plan *p, const size_list *sizes)
{
	int64_t *out = PyMem_Calloc(p->symbols.n + 1, sizeof *out);
	for (uint32_t i = 0; out && i < p->symbols.n; i++) {
		out[i] = -1;
		for (uint32_t k = 0; k < sizes->n; k++)
			if (!strcmp(plan_s(p, p->symbols.at[i].name), sizes->names[k]))
				out[i] = sizes->values[k];
	}
	return out;
}

static PyObject *run_estimate(const plan *p, const node_id *ends, uint32_t n, const int64_t *syms,
                              const estimate_spec *s)
{
	block_cost *costs = PyMem_Calloc(n + 1, sizeof *costs);
	block_profile *rows = PyMem_Calloc(n + 1, sizeof *rows);
	PyObject *out = NULL;
	clv_status st = costs && rows ? estimate_blocks(p, ends, n, syms, s, costs) : fail_nomem();
	for (uint32_t i = 0; st == CLV_OK && i < n; i++)
		rows[i] = as_profile(&costs[i]);
	out = st == CLV_OK ? wrap_rows(p, ends, n, rows) : raise_status(st);
	PyMem_Free(costs);
	PyMem_Free(rows);
	return out;
}

/* estimate_blocks(plan, ends, sizes, flops_per_s, bytes_per_s, node_us, training) -> rows as those of profile_blocks */
PyObject *estimate_blocks_py(PyObject *self, PyObject *args)
{
	PlanObject *o;
	PyObject *list, *dict, *out = NULL;
	estimate_spec s = ESTIMATE_SPEC_INIT;
	int training;
	uint32_t n = 0;
	size_list sizes = {0};
	if (!PyArg_ParseTuple(args, "O!O!Odddp", &PlanType, &o, &PyList_Type, &list, &dict, &s.flops_per_s, &s.bytes_per_s,
	                      &s.node_us, &training))
		return NULL;
	s.training = training != 0;
	node_id *ends = read_ends(list, &n);
	int64_t *syms = ends && size_list_read(dict, &sizes) ? symbol_values(o->p, &sizes) : NULL;
	if (syms)
		out = run_estimate(o->p, ends, n, syms, &s);
	else if (!PyErr_Occurred())
		PyErr_NoMemory();
	size_list_free(&sizes);
	PyMem_Free(syms);
	PyMem_Free(ends);
	return out;
}

static PyObject *wrap_file(const profile *f)
{
	PyObject *key = PyList_New(0), *rows = PyList_New(0);
	for (uint32_t i = 0; key && rows && i < f->key.n; i++)
		list_push(&key, Py_BuildValue("(ss)", f->key.at[i].name, f->key.at[i].text));
	for (uint32_t i = 0; key && rows && i < f->rows.n; i++) {
		const profile_row *r = &f->rows.at[i];
		list_push(&rows, Py_BuildValue("(ssIN)", r->name, r->module, r->end, wrap_numbers(&r->at)));
	}
	PyObject *whole = !key || !rows ? NULL : f->has_whole ? wrap_numbers(&f->whole) : Py_NewRef(Py_None);
	if (whole)
		return Py_BuildValue("(NNN)", key, rows, whole);
	Py_XDECREF(key);
	Py_XDECREF(rows);
	return NULL;
}

/* profile_read(path: bytes) -> (list of (name, text), list of rows, numbers or None) */
PyObject *profile_read_py(PyObject *self, PyObject *path)
{
	profile f;
	clv_status st;
	const char *name = PyBytes_AsString(path);
	if (!name)
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	st = profile_read(name, &f);
	Py_END_ALLOW_THREADS;
	if (st != CLV_OK)
		return raise_status(st);
	PyObject *out = wrap_file(&f);
	profile_free(&f);
	return out;
}

static clv_status copy_text(const char *s, char **out)
{
	*out = mem_strdup(s, strlen(s));
	return *out ? CLV_OK : fail_nomem();
}

static bool read_key(PyObject *list, profile *f)
{
	for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
		const char *name, *text;
		if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "ss", &name, &text))
			return false;
		clv_status st = vec_push(&f->key, (profile_text){0});
		if (st == CLV_OK)
			st = copy_text(name, &f->key.at[i].name);
		if (st == CLV_OK)
			st = copy_text(text, &f->key.at[i].text);
		if (st != CLV_OK)
			return raise_status(st) != NULL;
	}
	return true;
}

static bool read_rows(PyObject *list, profile *f)
{
	for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
		const char *name, *module;
		PyObject *numbers;
		profile_row r = {0};
		if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "ssIO", &name, &module, &r.end, &numbers) ||
		    !profile_read_numbers(numbers, &r.at))
			return false;
		clv_status st = vec_push(&f->rows, r);
		if (st == CLV_OK)
			st = copy_text(name, &f->rows.at[i].name);
		if (st == CLV_OK)
			st = copy_text(module, &f->rows.at[i].module);
		if (st != CLV_OK)
			return raise_status(st) != NULL;
	}
	return true;
}

/* profile_write(path: bytes, key, rows, whole): as profile_read gives them */
PyObject *profile_write_py(PyObject *self, PyObject *args)
{
	const char *path;
	PyObject *key, *rows, *whole, *out = NULL;
	profile f = {0};
	if (!PyArg_ParseTuple(args, "yO!O!O", &path, &PyList_Type, &key, &PyList_Type, &rows, &whole))
		return NULL;
	f.has_whole = whole != Py_None;
	if (read_key(key, &f) && read_rows(rows, &f) && (!f.has_whole || profile_read_numbers(whole, &f.whole)))
		out = none_or_raise(profile_write(&f, path));
	profile_free(&f);
	return out;
}
