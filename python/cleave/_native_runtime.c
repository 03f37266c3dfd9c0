/* Artifact and Runtime: .clv files, opened and run by the C library. */
#include "_native_file.h"

#include "emit/emit.h"
#include "runtime/runtime.h"

/* ---- artifacts -------------------------------------------------------------------------------------------------- */

HANDLE(Artifact, ArtifactObject, artifact, artifact_py, artifact_free)

PyObject *artifact_object(artifact *a)
{
	return artifact_py_wrap(a);
}

/* What the file itself is wrong about has a class of its own. */
static PyObject *raise_artifact(clv_status st)
{
	return raise_as(st == CLV_E_PARSE || st == CLV_E_VERIFY ? E_ARTIFACT : (long)st);
}

/* Artifact(path, allow_operators, check_data, copy=False, trusted_keys=None) */
static PyObject *artifact_py_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	call c = {0};
	const char *path;
	clv_open_options o = CLV_OPEN_OPTIONS_INIT;
	artifact *a = NULL;
	if (!take(&c, args, "ySp|pS", &path, &o.allow_operators, &o.nallow_operators, &o.check_data, &o.copy,
	          &o.trusted_keys, &o.ntrusted_keys))
		return call_end(&c, NULL);
	if (!o.ntrusted_keys)
		o.trusted_keys = NULL;
	clv_status st = UNLOCKED(clv_artifact_open(path, &o, &a));
	return call_end(&c, st == CLV_OK ? artifact_object(a) : raise_artifact(st));
}

static PyObject *fingerprint_of(const char *key)
{
	char *fingerprint = NULL;
	clv_status st = clv_key_fingerprint(key, &fingerprint);
	return take_string(st, fingerprint);
}

/* new_key(path) -> fingerprint */
PyObject *new_key_py(PyObject *self, PyObject *args)
{
	const char *path;
	return take(NULL, args, "y", &path) && ok_or_raise(clv_key_new(path)) ? fingerprint_of(path) : NULL;
}

/* sign(path, key, allow_operators, output) -> fingerprint of the key */
PyObject *sign_py(PyObject *self, PyObject *args)
{
	call c = {0};
	const char *path, *key, *output;
	clv_open_options o = CLV_OPEN_OPTIONS_INIT;
	if (!take(&c, args, "yySy", &path, &key, &o.allow_operators, &o.nallow_operators, &output))
		return call_end(&c, NULL);
	clv_status st = UNLOCKED(clv_artifact_sign(path, key, &o, output));
	return call_end(&c, st == CLV_OK ? fingerprint_of(key) : raise_artifact(st));
}

/* pack_weights(artifact, isas, output, sandbox) */
PyObject *pack_weights_py(PyObject *self, PyObject *args)
{
	call c = {0};
	artifact *a;
	const char *output;
	clv_packing_options o = CLV_PACKING_OPTIONS_INIT;
	if (!take(&c, args, "@Syb", &ArtifactType, &a, &o.isas, &o.nisas, &output, &o.sandbox))
		return call_end(&c, NULL);
	clv_status st = UNLOCKED(clv_artifact_pack(a, &o, output));
	return call_end(&c, st == CLV_OK ? Py_NewRef(Py_None) : raise_artifact(st));
}

/* compare_engines(artifact, part, sandbox) -> the largest difference between the native engine and the tape */
PyObject *compare_engines_py(PyObject *self, PyObject *args)
{
	artifact *a;
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	double worst = 0;
	if (!take(NULL, args, "@zb", &ArtifactType, &a, &o.part, &o.sandbox))
		return NULL;
	clv_status st = UNLOCKED(clv_artifact_compare(a, &o, &worst));
	return st == CLV_OK ? PyFloat_FromDouble(worst) : raise_status(st);
}

/* packed(i) -> pieces of an artifact for its i-th instruction set: (name, pieces, bytes); None: there are no more */
static PyObject *artifact_py_packed(ArtifactObject *o, PyObject *number)
{
	const char *isa;
	uint32_t pieces, i;
	int64_t bytes;
	if (!index_of(number, UINT32_MAX, "instruction set", &i))
		return NULL;
	if (!clv_artifact_packed(o->of, i, &isa, &pieces, &bytes))
		Py_RETURN_NONE;
	return Py_BuildValue("(sIL)", isa, pieces, (long long)bytes);
}

/* signer() -> fingerprint of the trusted key that signed the file, or None */
static PyObject *artifact_py_signer(ArtifactObject *o, PyObject *unused)
{
	return text_or_none(artifact_signature_verified(o->of) ? o->of->signer : NULL);
}

/* check_data(): compares the data with its digests */
static PyObject *artifact_py_check_data(ArtifactObject *o, PyObject *unused)
{
	return none_or_raise(UNLOCKED(artifact_check_data(o->of)));
}

/* to_bytes() -> those of the file that one in memory would be */
static PyObject *artifact_py_to_bytes(ArtifactObject *o, PyObject *unused)
{
	strbuf b = STRBUF_INIT;
	clv_status st = artifact_append(o->of, &b);
	PyObject *out = st == CLV_OK ? PyBytes_FromStringAndSize(b.at, (Py_ssize_t)b.n) : raise_status(st);
	strbuf_free(&b);
	return out;
}

/* copy() -> what opening the file that it would be gives, in memory of its own */
static PyObject *artifact_py_copy(ArtifactObject *o, PyObject *unused)
{
	artifact *made;
	clv_status st = UNLOCKED(artifact_snapshot(o->of, &made));
	return st == CLV_OK ? artifact_object(made) : raise_status(st);
}

/* about() -> where it comes from */
static PyObject *artifact_py_about(ArtifactObject *o, PyObject *unused)
{
	DICT(out, o->of->notes.n, o->of->notes.at[i].key, PyUnicode_FromString(o->of->notes.at[i].text));
	return out;
}

static PyObject *points_to(const artifact_plan *e)
{
	uint32_t n = artifact_point_size(e->p);
	LIST(out, n ? e->points.n / n : 0, as_tuple(int_list(&e->points.at[i * n], n)));
	return out;
}

static PyObject *fixed_to(const artifact_plan *e)
{
	DICT(out, e->fixed.n, e->fixed.at[i].name, PyLong_FromLongLong(e->fixed.at[i].value));
	return out;
}

/* plan(i) -> (Plan, signature, first, end, cut or -1, stores, points, fixed sizes) */
static PyObject *artifact_py_plan(ArtifactObject *o, PyObject *number)
{
	uint32_t i;
	plan *copy;
	if (!index_of(number, o->of->plans.n, "plan", &i) || !ok_or_raise(plan_copy(o->of->plans.at[i].p, &copy)))
		return NULL;
	const artifact_plan *e = &o->of->plans.at[i];
	return Py_BuildValue("(NsIIlINN)", plan_object_new(copy), e->signature, e->first, e->end,
	                     e->cut == NONE ? -1L : (long)e->cut, e->nstores, points_to(e), fixed_to(e));
}

/* head() -> (part, split_id, boundary, batch, weight_version, weights, plans) */
static PyObject *artifact_py_head(ArtifactObject *o, PyObject *unused)
{
	const artifact *a = o->of;
	return Py_BuildValue("(ssssLOI)", a->part, a->split_id, a->boundary, a->batch, (long long)a->weight_version,
	                     truth(a->weights), a->plans.n);
}

/* split(boundary or None, prefix path, suffix path) */
static PyObject *artifact_py_split(ArtifactObject *o, PyObject *args)
{
	clv_split_options options = CLV_SPLIT_OPTIONS_INIT;
	const char *prefix, *suffix;
	if (!take(NULL, args, "zyy", &options.boundary, &prefix, &suffix))
		return NULL;
	return none_or_raise(UNLOCKED(clv_artifact_split(o->of, &options, prefix, suffix)));
}

/* unvouched() -> why nobody vouches for it, or None */
static PyObject *artifact_py_unvouched(ArtifactObject *o, PyObject *unused)
{
	return text_or_none(artifact_unvouched(o->of));
}

METHODS(artifact_py, GIVES(artifact_py, head), GIVES(artifact_py, about), TAKES_ONE(artifact_py, plan),
        TAKES_ONE(artifact_py, packed), GIVES(artifact_py, unvouched), GIVES(artifact_py, signer),
        GIVES(artifact_py, to_bytes), GIVES(artifact_py, copy), GIVES(artifact_py, check_data),
        TAKES(artifact_py, split));
TYPE(Artifact, ArtifactObject, artifact_py, 0, .tp_new = artifact_py_new);

/* ---- runtimes --------------------------------------------------------------------------------------------------- */

HANDLE(Runtime, RuntimeObject, runtime, runtime_py, clv_runtime_free)

/* Runtime(artifact, device, part, unproven, debug, allow_compiled=False, tape_only=False, optimize=None, threads=0,
   any_weights=False, timeout=0, max_memory=0, allow_signed=False, sandbox=0 (auto, on, off), engine=None) */
bool runtime_arguments(PyObject *args, clv_artifact **a, clv_runtime_options *o)
{
	return take(NULL, args, "@zzpp|ppzipdLpbz", &ArtifactType, a, &o->device, &o->part, &o->unproven, &o->debug,
	            &o->allow_compiled, &o->tape_only, &o->optimize, &o->threads, &o->any_weights, &o->timeout,
	            &o->max_memory, &o->allow_signed, &o->sandbox, &o->engine);
}

static PyObject *runtime_py_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	clv_artifact *a;
	clv_runtime_options options = CLV_RUNTIME_OPTIONS_INIT;
	runtime *r = NULL;
	if (!runtime_arguments(args, &a, &options))
		return NULL;
	clv_status st = UNLOCKED(clv_runtime_create(a, &options, &r));
	return st == CLV_OK ? runtime_py_wrap(r) : raise_status(st);
}

/* packing() -> (found, repacked, damaged) pieces of packed weights */
static PyObject *runtime_py_packing(RuntimeObject *o, PyObject *unused)
{
	clv_packing_state x = {.size = sizeof x};
	clv_status st = clv_runtime_packing(o->of, &x);
	return st == CLV_OK ? Py_BuildValue("(III)", x.found, x.repacked, x.damaged) : raise_status(st);
}

static PyObject *runtime_py_sandboxed(RuntimeObject *o, PyObject *unused)
{
	return PyBool_FromLong(clv_runtime_sandboxed(o->of));
}

PyObject *ports_to(const clv_port *at, uint32_t n)
{
	LIST(out, n, Py_BuildValue("(ssNs)", at[i].name, at[i].dtype, text_tuple(at[i].dims, at[i].ndim), at[i].device));
	return out;
}

static PyObject *runtime_py_inputs(RuntimeObject *o, PyObject *unused)
{
	return ports_to(o->of->inputs.at, o->of->inputs.n);
}

static PyObject *runtime_py_outputs(RuntimeObject *o, PyObject *unused)
{
	return ports_to(o->of->plans.at[0].outputs.at, o->of->plans.at[0].outputs.n);
}

/* A run by one plan, or by whichever serves. */
typedef struct RuntimeCall {
	const runtime *r;
	run_call call;
	const boundary_facts *got; /* of a suffix: what the boundary says, and its tensors in the order of its labels */
	clv_tensor *const *given;
	uint32_t plan; /* that ran */
	PyObject *out; /* what it gave; NULL: an exception is set */
} RuntimeCall;

/* Tensors of torch in the place of those of the core, which go. */
static PyObject *wrap_run(const runtime_plan *e, clv_tensor **outputs, const run_number *numbers)
{
	br_tensor **own = PyMem_Calloc(e->noutputs + 1, sizeof *own);
	clv_status st = own ? br_of_all((const clv_tensor *const *)outputs, e->noutputs, own) : fail_nomem();
	for (uint32_t i = 0; i < e->noutputs; i++) {
		if (st == CLV_OK)
			own[i] = br_ref(own[i]);
		clv_tensor_free(outputs[i]);
	}
	PyObject *out =
		st == CLV_OK ? wrap_outputs(own, e->noutputs, numbers, e->of.numbers.at, e->of.numbers.n) : raise_status(st);
	PyMem_Free(own);
	return out;
}

static clv_status run_plan(void *ctx, uint32_t i)
{
	RuntimeCall *c = ctx;
	const runtime_plan *e = &c->r->plans.at[i];
	clv_tensor **outputs = PyMem_Calloc(e->noutputs + 1, sizeof *outputs);
	run_number *numbers = PyMem_Calloc(e->of.numbers.n + 1, sizeof *numbers);
	c->plan = i;
	c->call.numbers = numbers;
	clv_status st = outputs && numbers ? UNLOCKED(runtime_run_plan(c->r, i, &c->call, outputs)) : fail_nomem();
	if (st == CLV_OK)
		c->out = wrap_run(e, outputs, numbers);
	PyMem_Free(outputs);
	PyMem_Free(numbers);
	return st == CLV_E_CANCELLED ? CLV_E_LIMIT : st; /* with its message: nobody pressed a key */
}

static PyObject *call_result(const RuntimeCall *c, clv_status st)
{
	return st == CLV_OK ? c->out : raise_status(st);
}

/* The values of the symbols of a call, by name. */
static PyObject *sizes_to(const plan_part *of, clv_tensor *const *inputs)
{
	const plan *p = of->p;
	PyObject *out = PyDict_New();
	int64_t *symbols = PyMem_Calloc(p->symbols.n + 1, sizeof *symbols);
	clv_status st = symbols ? call_symbols(&of->v, inputs, NULL, symbols) : fail_nomem();
	if (st != CLV_OK) {
		Py_CLEAR(out);
		raise_status(st);
	}
	for (uint32_t i = 0; out && i < p->symbols.n; i++)
		if (!p->symbols.at[i].data)
			dict_put(&out, plan_s(p, p->symbols.at[i].name), PyLong_FromLongLong(symbols[i]));
	PyMem_Free(symbols);
	return out;
}

/* run(tensors, number of the plan, by default of the one that serves) -> (number of the plan, sizes, outputs, version of
   the weights) */
static PyObject *runtime_py_run(RuntimeObject *o, PyObject *args)
{
	call k;
	clv_tensor **inputs;
	uint32_t n, i = NONE;
	int64_t version = 0;
	call_begin(&k);
	if (!take(&k, args, "C|I", &inputs, &n, &i))
		return call_end(&k, NULL);
	if (i != NONE && i >= o->of->plans.n)
		return call_end(&k, PyErr_Format(PyExc_IndexError, "there is no plan %u", i));
	RuntimeCall c = {.r = o->of, .call = {.inputs = inputs, .version = &version}};
	clv_status st;
	if (i == NONE)
		st = runtime_serve(o->of, inputs, n, run_plan, &c);
	else if (n != o->of->plans.at[i].of.v.inputs.n)
		st = fail(CLV_E_INPUT, "the plan takes %u inputs, the call has %u", o->of->plans.at[i].of.v.inputs.n, n);
	else if ((st = runtime_check_asked(o->of, i, inputs)) == CLV_OK)
		st = run_plan(&c, i);
	PyObject *outputs = call_result(&c, st);
	return call_end(&k, outputs ? Py_BuildValue("(INNL)", c.plan, sizes_to(&o->of->plans.at[c.plan].of, inputs),
	                                            outputs, (long long)version)
	                            : NULL);
}

/* What a plan takes of a boundary. */
static clv_status find_labels(const RuntimeCall *c, const plan_part *of, clv_tensor **out)
{
	for (uint32_t i = 0; i < of->v.inputs.n; i++) {
		char *label;
		TRY(value_label_text(of->p, of->v.inputs.at[i], &label));
		for (uint32_t k = 0; k < c->got->nlabels && !out[i]; k++)
			if (strcmp(c->got->labels[k], label) == 0)
				out[i] = c->given[k];
		clv_status st = out[i] ? CLV_OK : fail(CLV_E_INPUT, "the boundary lacks %s", label);
		mem_free(label);
		TRY(st);
	}
	return CLV_OK;
}

static clv_status run_boundary(void *ctx, uint32_t i)
{
	RuntimeCall *c = ctx;
	const plan_part *of = &c->r->plans.at[i].of;
	clv_tensor **inputs = PyMem_Calloc(of->v.inputs.n + 1, sizeof *inputs);
	int64_t *symbols = PyMem_Calloc(of->p->symbols.n + 1, sizeof *symbols);
	clv_status st = inputs && symbols ? find_labels(c, of, inputs) : fail_nomem();
	if (st == CLV_OK) {
		(void)runtime_sizes(c->r, i, c->got, symbols);
		c->call.inputs = inputs;
		c->call.symbols = of->p->symbols.n ? symbols : NULL;
		st = run_plan(c, i);
	}
	PyMem_Free(inputs);
	PyMem_Free(symbols);
	return st;
}

/* run_suffix(what a boundary says, tensors in the order of its labels, version of the weights that made them) ->
   (number of the plan that ran, outputs) */
static PyObject *runtime_py_run_suffix(RuntimeObject *o, PyObject *args)
{
	call k = {0};
	PyObject *fields;
	int64_t version;
	clv_tensor **given;
	boundary_facts got;
	uint32_t n;
	if (!take(&k, args, "(CL", &fields, &given, &n, &version) || !facts_from(&k, fields, &got))
		return call_end(&k, NULL);
	if (n != got.nlabels)
		return call_end(&k,
		                raise_status(fail(CLV_E_INPUT, "the boundary has %u tensors and %u labels", n, got.nlabels)));
	RuntimeCall c = {.r = o->of, .call = {.wants_version = &version}, .got = &got, .given = given};
	PyObject *outputs = call_result(&c, runtime_serve_suffix(o->of, &got, version, run_boundary, &c));
	return call_end(&k, outputs ? Py_BuildValue("(IN)", c.plan, outputs) : NULL);
}

/* plan(i) -> (input labels, output labels, schema of the outputs) */
static PyObject *runtime_py_plan(RuntimeObject *o, PyObject *number)
{
	uint32_t k;
	if (!index_of(number, o->of->plans.n, "plan", &k))
		return NULL;
	const plan_part *g = &o->of->plans.at[k].of;
	uint32_t given = g->outputs.n - g->v.rebinds.n;
	return Py_BuildValue("(NNN)", labels(g->p, g->v.inputs.at, g->v.inputs.n), labels(g->p, g->outputs.at, given),
	                     values_schema(g->p, g->outputs.at, given));
}

static clv_status take_state(runtime *r, clv_tensor **now)
{
	pthread_rwlock_rdlock(&r->lock);
	for (uint32_t i = 0; i < r->a->tensors->tensors.n; i++)
		now[i] = tensor_ref(r->state[i]);
	pthread_rwlock_unlock(&r->lock);
	return CLV_OK;
}

/* state() -> dict of name to tensor, on the memory that runs read */
static PyObject *runtime_py_state(RuntimeObject *o, PyObject *unused)
{
	call c = {0};
	const payload *p = o->of->a->tensors;
	clv_tensor **now = call_tensors(&c, p->tensors.n);
	PyObject *out = now ? PyDict_New() : NULL;
	if (out) /* a run that holds the runtime may wait for Python, and may put others in their place */
		(void)UNLOCKED(take_state(o->of, now));
	for (uint32_t i = 0; out && i < p->tensors.n; i++)
		if (now[i])
			dict_put(&out, p->tensors.at[i].label, core_wrap(tensor_ref(now[i])));
	return call_end(&c, out);
}

static PyObject *runtime_py_cancel(RuntimeObject *o, PyObject *unused)
{
	clv_runtime_cancel(o->of);
	Py_RETURN_NONE;
}

static clv_status make_own(runtime *r)
{
	TRY(runtime_needs_here(r, "state_dict"));
	pthread_rwlock_wrlock(&r->lock);
	clv_status st = runtime_own_state(r);
	pthread_rwlock_unlock(&r->lock);
	return st;
}

/* own_state(): copies take the place of tensors on the file, so that they can be written */
static PyObject *runtime_py_own_state(RuntimeObject *o, PyObject *unused)
{
	return none_or_raise(UNLOCKED(make_own(o->of)));
}

/* assign(dict): tensors by name, all of them between two runs */
static PyObject *runtime_py_assign(RuntimeObject *o, PyObject *args)
{
	call c = {0};
	PyObject *given, *item;
	Py_ssize_t at = 0;
	uint32_t n = 0;
	if (!take(NULL, args, "{", &given))
		return NULL;
	clv_tensor **tensors = call_tensors(&c, (uint32_t)PyDict_GET_SIZE(given));
	named_tensor *set = tensors ? call_room(&c, (size_t)PyDict_GET_SIZE(given), sizeof *set) : NULL;
	for (; set && next_text(given, &at, &set[n].name, &item); n++) {
		br_tensor *t = need_tensor(item);
		if (!t || !ok_or_raise(core_of(t, &tensors[n])))
			break;
		set[n].t = tensors[n];
	}
	return call_end(&c, set && !PyErr_Occurred() ? none_or_raise(UNLOCKED(runtime_assign(o->of, set, n))) : NULL);
}

/* changing() -> names of tensors that runs write, or put others in the place of */
static PyObject *runtime_py_changing(RuntimeObject *o, PyObject *unused)
{
	PyObject *out = PyList_New(0);
	const payload *p = o->of->a->tensors;
	for (uint32_t i = 0; out && i < p->tensors.n; i++)
		if (o->of->changes[i])
			list_push(&out, PyUnicode_FromString(p->tensors.at[i].label));
	return out;
}

/* constants(i) -> dict of the place in generated source ("const_3") to the tensor, of plan i */
static PyObject *runtime_py_constants(RuntimeObject *o, PyObject *number)
{
	uint32_t i;
	if (!index_of(number, o->of->plans.n, "plan", &i))
		return NULL;
	const artifact_plan *e = &o->of->a->plans.at[i];
	uint32_t marks = source_marks(e->p);
	PyObject *out = PyDict_New();
	for (uint32_t k = 0; out && k < e->consts.n; k++) {
		strbuf b = STRBUF_INIT;
		source_place(e->p, marks, e->consts.at[k].value, &b);
		PyObject *place = take_text(CLV_OK, &b);
		PyObject *data = place ? core_wrap(tensor_ref(o->of->state[e->consts.at[k].tensor])) : NULL;
		if (!data || PyDict_SetItem(out, place, data) < 0)
			Py_CLEAR(out);
		Py_XDECREF(place);
		Py_XDECREF(data);
	}
	return out;
}

/* bind(name, tensor) */
static PyObject *runtime_py_bind(RuntimeObject *o, PyObject *args)
{
	const char *name;
	br_tensor *given;
	clv_tensor *t = NULL;
	if (!take(NULL, args, "st", &name, &given) || !ok_or_raise(core_of(given, &t)))
		return NULL;
	clv_status st = UNLOCKED(clv_runtime_bind(o->of, name, t)); /* a run that holds the runtime may wait for Python */
	clv_tensor_free(t);
	return none_or_raise(st);
}

static clv_status note_weight(runtime *r, const char *name, const clv_tensor *t)
{
	pthread_rwlock_wrlock(&r->lock);
	clv_status st = runtime_note_weight(r, name, t);
	r->bound = true;
	pthread_rwlock_unlock(&r->lock);
	return st;
}

/* note(name, tensor) -> whether the model has a tensor of that name, which now has these elements */
static PyObject *runtime_py_note(RuntimeObject *o, PyObject *args)
{
	const char *name;
	br_tensor *given;
	clv_tensor *t = NULL;
	if (!take(NULL, args, "st", &name, &given))
		return NULL;
	if (!runtime_knows(o->of, name))
		Py_RETURN_FALSE;
	if (!ok_or_raise(core_of(given, &t)))
		return NULL;
	clv_status st = UNLOCKED(note_weight(o->of, name, t));
	clv_tensor_free(t);
	return st == CLV_OK ? Py_NewRef(Py_True) : raise_status(st);
}

/* knows(name) -> it is a tensor of the model, whichever part reads it */
static PyObject *runtime_py_knows(RuntimeObject *o, PyObject *name)
{
	const char *text = PyUnicode_AsUTF8(name);
	return text ? PyBool_FromLong(runtime_knows(o->of, text)) : NULL;
}

static PyObject *runtime_py_weight_version(RuntimeObject *o, PyObject *unused)
{
	return PyLong_FromLongLong(o->of->weight_version);
}

static PyObject *runtime_py_optimizations(RuntimeObject *o, PyObject *unused)
{
	char *text = NULL;
	clv_status st =
		UNLOCKED(clv_runtime_optimizations(o->of, &text)); /* waits for a run that chooses, which may call Python */
	return take_string(st, text);
}

static PyObject *segment_state(const runtime *r, uint32_t i)
{
	clv_segment_state s = {.size = sizeof s};
	clv_status st = clv_runtime_segment(r, i, &s);
	return st == CLV_OK
	           ? Py_BuildValue("(IIIsOOzKK)", s.plan, s.first, s.end, s.backend, truth(s.barred), truth(s.compiled),
	                           s.reason, (unsigned long long)s.runs, (unsigned long long)s.tape_runs)
	           : raise_status(st);
}

/* segments() -> list of (plan, first, end, back end, barred, compiled, reason or None, runs, runs on the tape) */
static PyObject *runtime_py_segments(RuntimeObject *o, PyObject *unused)
{
	LIST(out, clv_runtime_segment_count(o->of), segment_state(o->of, i));
	return out;
}

/* weights_changed(): tensors of state() were written; compiled segments have the old ones */
static PyObject *runtime_py_weights_changed(RuntimeObject *o, PyObject *unused)
{
	for (uint32_t i = 0; i < o->of->plans.n; i++)
		runtime_changed(o->of, i, NONE, OTHER_WEIGHTS);
	Py_RETURN_NONE;
}

/* unbound() -> names that wait for bind */
static PyObject *runtime_py_unbound(RuntimeObject *o, PyObject *unused)
{
	LIST(out, o->of->unbound.n, PyUnicode_FromString(o->of->unbound.at[i]));
	return out;
}

/* weight_digest(name, tensor) -> int of 63 bits that follows every bit of the tensor */
PyObject *weight_digest_py(PyObject *self, PyObject *args)
{
	br_tensor *given;
	const char *name;
	int64_t number;
	clv_tensor *t = NULL;
	if (!take(NULL, args, "st", &name, &given) || !ok_or_raise(core_of(given, &t)))
		return NULL;
	clv_status st = UNLOCKED(tensor_digest(name, t, &number));
	clv_tensor_free(t);
	return st == CLV_OK ? PyLong_FromLongLong(number) : raise_status(st);
}

METHODS(runtime_py, GIVES(runtime_py, inputs), GIVES(runtime_py, outputs), TAKES(runtime_py, run),
        TAKES(runtime_py, run_suffix), TAKES_ONE(runtime_py, plan), GIVES(runtime_py, state), GIVES(runtime_py, cancel),
        GIVES(runtime_py, own_state), TAKES(runtime_py, assign), GIVES(runtime_py, changing),
        TAKES_ONE(runtime_py, constants), TAKES(runtime_py, bind), TAKES_ONE(runtime_py, knows),
        TAKES(runtime_py, note), GIVES(runtime_py, weight_version), GIVES(runtime_py, packing),
        GIVES(runtime_py, sandboxed), GIVES(runtime_py, optimizations), GIVES(runtime_py, segments),
        GIVES(runtime_py, weights_changed), GIVES(runtime_py, unbound));
TYPE(Runtime, RuntimeObject, runtime_py, 0, .tp_new = runtime_py_new);
