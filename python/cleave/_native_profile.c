/* Profiles: blocks measured and estimated, files of them. A row is (name, module, end, numbers) with the numbers in the
 * order of profile_numbers. */
#include "_native.h"

#include "exec/profile_blocks.h"
#include "pipe/estimate.h"
#include "pipe/profile_keys.h"

static PyObject *wrap_numbers(const block_profile *at)
{
	double x[PROFILE_NUMBER_COUNT];
	for (uint32_t i = 0; i < PROFILE_NUMBER_COUNT; i++)
		memcpy(&x[i], (const char *)at + profile_numbers[i].at, sizeof x[i]);
	LIST(out, PROFILE_NUMBER_COUNT, PyFloat_FromDouble(x[i]));
	return as_tuple(out);
}

static bool read_numbers(PyObject *given, block_profile *out)
{
	call c = {0};
	double *x;
	uint32_t n;
	bool ok = take_array(&c, 'F', given, &x, &n);
	if (ok && n != PROFILE_NUMBER_COUNT) {
		PyErr_SetString(PyExc_TypeError, "the numbers of a block are a tuple of 16");
		ok = false;
	}
	for (uint32_t i = 0; ok && i < n; i++)
		memcpy((char *)out + profile_numbers[i].at, &x[i], sizeof x[i]);
	call_end(&c, NULL);
	return ok;
}

/* spread(samples) -> (median, low, high, least, most) */
PyObject *spread_py(PyObject *self, PyObject *args)
{
	call c = {0};
	double *samples;
	uint32_t n;
	if (!take(&c, args, "F", &samples, &n))
		return call_end(&c, NULL);
	if (n < 1)
		return call_end(&c, PyErr_Format(PyExc_ValueError, "a spread is of at least one number"));
	spread s = spread_of(samples, n);
	return call_end(&c, Py_BuildValue("(ddddd)", s.median, s.low, s.high, s.least, s.most));
}

/* What the set-up makes is metered as well, so that its release is known; NULL with an exception. */
static PyObject *call_metered(PyObject *setup, PyObject *run, br_meter *m, int64_t *peak)
{
	PyObject *given = PyObject_CallNoArgs(setup);
	if (!given)
		return NULL;
	int64_t before = br_meter_live(m);
	(void)br_meter_peak(m);
	PyObject *result = PyObject_CallOneArg(run, given);
	*peak = br_meter_peak(m) - before;
	Py_DECREF(given);
	return result;
}

/* peak_memory(setup, run) -> most bytes of the CPU that run(setup()) had allocated at once, by torch's allocator on this
   thread and those of autograd, above what was there after the set-up */
PyObject *peak_memory_py(PyObject *self, PyObject *args)
{
	PyObject *setup, *run;
	br_meter *m = NULL;
	int64_t peak = 0;
	if (!take(NULL, args, "OO", &setup, &run) || !ok_or_raise(br_meter_start(false, &m)))
		return NULL;
	PyObject *result = call_metered(setup, run, m, &peak);
	br_meter_stop(m);
	if (!result)
		return NULL;
	Py_DECREF(result);
	return PyLong_FromLongLong(peak);
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
	LIST(rows, n, wrap_row(p, i ? ends[i - 1] : 0, ends[i], &at[i]));
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

/* profile_blocks(program, tensors, ends, iterations, warmup, training, whole, progress) -> (rows, numbers or None); the
   program is of the whole plan. Rows are (module, end, numbers). */
PyObject *profile_blocks_py(PyObject *self, PyObject *args)
{
	call c = {0};
	PyObject *program;
	bool whole, whole_ran = false;
	Watcher w = {0};
	br_tensor **inputs;
	node_id *ends;
	uint32_t n;
	profile_spec s = {.tick = watch_block, .ctx = &w};
	if (!take(&c, args, "!TUIIppO", &ProgramType, &program, &inputs, &n, &ends, &s.n, &s.iterations, &s.warmup,
	          &s.training, &whole, &w.progress))
		return call_end(&c, NULL);
	PlanObject *o = program_plan(program);
	br_tensor **externals = program_externals(&c, program);
	block_profile *rows = externals ? call_room(&c, s.n + 1, sizeof *rows) : NULL;
	if (!rows)
		return call_end(&c, NULL);
	s.ends = ends;
	s.inputs = inputs;
	s.externals = externals;
	s.objects = o->data.objects;
	s.nobjects = o->data.objects ? o->data.n : 0;
	s.python = o->calls ? call_python : NULL;
	s.python_ctx = o;
	clv_status st = n == o->p->inputs.n
	                    ? UNLOCKED(profile_blocks(o->p, &s, rows, whole ? &rows[s.n] : NULL, &whole_ran))
	                    : fail(CLV_E_INPUT, "%u tensors are needed, %u were given", o->p->inputs.n, n);
	if (st != CLV_OK)
		return call_end(&c, raise_status(st));
	return call_end(&c, Py_BuildValue("(NN)", wrap_rows(o->p, ends, s.n, rows),
	                                  whole_ran ? wrap_numbers(&rows[s.n]) : Py_NewRef(Py_None)));
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

/* estimate_blocks(plan, ends, sizes, flops_per_s, bytes_per_s, node_us, training) -> rows as those of profile_blocks */
PyObject *estimate_blocks_py(PyObject *self, PyObject *args)
{
	call c = {0};
	PlanObject *o;
	node_id *ends;
	uint32_t n;
	clv_sizes sizes;
	estimate_spec s = ESTIMATE_SPEC_INIT;
	if (!take(&c, args, "!UZdddp", &PlanType, &o, &ends, &n, &sizes, &s.flops_per_s, &s.bytes_per_s, &s.node_us,
	          &s.training))
		return call_end(&c, NULL);
	int64_t *syms = symbols_at(&c, o->p, &sizes);
	block_cost *costs = syms ? call_room(&c, n, sizeof *costs) : NULL;
	block_profile *rows = costs ? call_room(&c, n, sizeof *rows) : NULL;
	if (!rows || !ok_or_raise(estimate_blocks(o->p, ends, n, syms, &s, costs)))
		return call_end(&c, NULL);
	for (uint32_t i = 0; i < n; i++)
		rows[i] = as_profile(&costs[i]);
	return call_end(&c, wrap_rows(o->p, ends, n, rows));
}

static PyObject *wrap_file(const profile *f)
{
	const profile_row *r = f->rows.at;
	LIST(key, f->key.n, Py_BuildValue("(ss)", f->key.at[i].name, f->key.at[i].text));
	LIST(rows, f->rows.n, Py_BuildValue("(ssIN)", r[i].name, r[i].module, r[i].end, wrap_numbers(&r[i].at)));
	return Py_BuildValue("(NNN)", key, rows, f->has_whole ? wrap_numbers(&f->whole) : Py_NewRef(Py_None));
}

/* profile_read(path: bytes) -> (list of (name, text), list of rows, numbers or None) */
PyObject *profile_read_py(PyObject *self, PyObject *args)
{
	profile f;
	const char *name;
	if (!take(NULL, args, "y", &name) || !ok_or_raise(UNLOCKED(profile_read(name, &f))))
		return NULL;
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
		if (!take(NULL, PyList_GET_ITEM(list, i), "ss", &name, &text))
			return false;
		clv_status st = vec_push(&f->key, (profile_text){0});
		if (st == CLV_OK)
			st = copy_text(name, &f->key.at[i].name);
		if (st == CLV_OK)
			st = copy_text(text, &f->key.at[i].text);
		if (!ok_or_raise(st))
			return false;
	}
	return true;
}

static bool read_rows(PyObject *list, profile *f)
{
	for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
		const char *name, *module;
		PyObject *numbers;
		profile_row r = {0};
		if (!take(NULL, PyList_GET_ITEM(list, i), "ssIO", &name, &module, &r.end, &numbers) ||
		    !read_numbers(numbers, &r.at))
			return false;
		clv_status st = vec_push(&f->rows, r);
		if (st == CLV_OK)
			st = copy_text(name, &f->rows.at[i].name);
		if (st == CLV_OK)
			st = copy_text(module, &f->rows.at[i].module);
		if (!ok_or_raise(st))
			return false;
	}
	return true;
}

/* profile_write(path: bytes, key, rows, whole): as profile_read gives them */
PyObject *profile_write_py(PyObject *self, PyObject *args)
{
	const char *path;
	PyObject *key, *rows, *whole, *out = NULL;
	profile f = {0};
	if (!take(NULL, args, "y[[O", &path, &key, &rows, &whole))
		return NULL;
	f.has_whole = whole != Py_None;
	if (read_key(key, &f) && read_rows(rows, &f) && (!f.has_whole || read_numbers(whole, &f.whole)))
		out = none_or_raise(profile_write(&f, path));
	profile_free(&f);
	return out;
}
