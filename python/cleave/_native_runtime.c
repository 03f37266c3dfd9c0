/* Artifact and Runtime: .clv files, opened and run by the C library. */
#include "_native_file.h"

#include "emit/emit.h"
#include "runtime/runtime.h"

typedef struct ArtifactObject {
	PyObject_HEAD
	artifact *a;
} ArtifactObject;

typedef struct RuntimeObject {
	PyObject_HEAD
	runtime *r;
} RuntimeObject;

/* ---- artifacts -------------------------------------------------------------------------------------------------- */

static void artifact_py_dealloc(ArtifactObject *o)
{
	artifact_free(o->a);
	Py_TYPE(o)->tp_free((PyObject *)o);
}

artifact *artifact_of(PyObject *o)
{
	return ((ArtifactObject *)o)->a;
}

PyObject *artifact_object(artifact *a)
{
	ArtifactObject *o = (ArtifactObject *)ArtifactType.tp_alloc(&ArtifactType, 0);
	if (o)
		o->a = a;
	else
		artifact_free(a);
	return (PyObject *)o;
}

/* What the file itself is wrong about has a class of its own. */
static PyObject *raise_artifact(clv_status st)
{
	if (st != CLV_E_PARSE && st != CLV_E_VERIFY)
		return raise_status(st);
	PyErr_SetString(error_class(E_ARTIFACT), clv_last_error());
	return NULL;
}

typedef struct opening {
	const char **names, **keys;
	clv_open_options options;
} opening;

static bool opening_read(PyObject *allow, PyObject *keys, opening *out)
{
	*out = (opening){.options = CLV_OPEN_OPTIONS_INIT};
	out->names = string_array(allow, &out->options.nallow_operators);
	out->keys = out->names && keys ? string_array(keys, &out->options.ntrusted_keys) : NULL;
	out->options.allow_operators = out->names;
	out->options.trusted_keys = out->options.ntrusted_keys ? out->keys : NULL;
	return !PyErr_Occurred();
}

static void opening_free(opening *o)
{
	PyMem_Free(o->names);
	PyMem_Free(o->keys);
}

/* Artifact(path, allow_operators, check_data, copy=False, trusted_keys=[]) */
static PyObject *artifact_py_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	const char *path;
	PyObject *allow, *keys = NULL;
	int check_data, copy = 0;
	opening how;
	artifact *a = NULL;
	clv_status st = CLV_OK;
	if (!PyArg_ParseTuple(args, "yO!p|pO!", &path, &PyList_Type, &allow, &check_data, &copy, &PyList_Type, &keys))
		return NULL;
	bool read = opening_read(allow, keys, &how);
	how.options.check_data = check_data != 0;
	how.options.copy = copy != 0;
	if (read) {
		Py_BEGIN_ALLOW_THREADS
		st = clv_artifact_open(path, &how.options, &a);
		Py_END_ALLOW_THREADS
	}
	opening_free(&how);
	if (!read)
		return NULL;
	return st == CLV_OK ? artifact_object(a) : raise_artifact(st);
}

static PyObject *fingerprint_of(const char *key)
{
	char *fingerprint = NULL;
	clv_status st = clv_key_fingerprint(key, &fingerprint);
	return take_string(st, fingerprint);
}

/* new_key(path) -> fingerprint */
PyObject *new_key_py(PyObject *self, PyObject *path)
{
	char *name;
	if (PyBytes_AsStringAndSize(path, &name, NULL) < 0)
		return NULL;
	clv_status st = clv_key_new(name);
	return st == CLV_OK ? fingerprint_of(name) : raise_status(st);
}

/* sign(path, key, allow_operators, output) -> fingerprint of the key */
PyObject *sign_py(PyObject *self, PyObject *args)
{
	const char *path, *key, *output;
	PyObject *allow;
	opening how;
	clv_status st = CLV_OK;
	if (!PyArg_ParseTuple(args, "yyO!y", &path, &key, &PyList_Type, &allow, &output))
		return NULL;
	bool read = opening_read(allow, NULL, &how);
	if (read) {
		Py_BEGIN_ALLOW_THREADS
		st = clv_artifact_sign(path, key, &how.options, output);
		Py_END_ALLOW_THREADS
	}
	opening_free(&how);
	if (!read || st != CLV_OK)
		return read ? raise_artifact(st) : NULL;
	return fingerprint_of(key);
}

/* Texts of a list, borrowed; the array is the caller's. NULL: no memory, or one is no text. */
static const char **texts_of(PyObject *list)
{
	Py_ssize_t n = PyList_GET_SIZE(list);
	const char **at = PyMem_Calloc((size_t)n + 1, sizeof *at);
	if (!at)
		return (const char **)PyErr_NoMemory();
	for (Py_ssize_t i = 0; i < n; i++) {
		at[i] = PyUnicode_AsUTF8(PyList_GET_ITEM(list, i));
		if (!at[i]) {
			PyMem_Free(at);
			return NULL;
		}
	}
	return at;
}

/* pack_weights(artifact, isas, output, sandbox) */
PyObject *pack_weights_py(PyObject *self, PyObject *args)
{
	ArtifactObject *o;
	PyObject *list;
	const char *output;
	clv_packing_options options = CLV_PACKING_OPTIONS_INIT;
	clv_status st;
	if (!PyArg_ParseTuple(args, "O!O!yb", &ArtifactType, &o, &PyList_Type, &list, &output, &options.sandbox))
		return NULL;
	const char **isas = texts_of(list);
	if (!isas)
		return NULL;
	options.isas = isas;
	options.nisas = (uint32_t)PyList_GET_SIZE(list);
	Py_BEGIN_ALLOW_THREADS
	st = clv_artifact_pack(o->a, &options, output);
	Py_END_ALLOW_THREADS
	PyMem_Free(isas);
	return st == CLV_OK ? Py_NewRef(Py_None) : raise_artifact(st);
}

/* compare_engines(artifact, part, sandbox) -> the largest difference between the native engine and the tape */
PyObject *compare_engines_py(PyObject *self, PyObject *args)
{
	ArtifactObject *o;
	clv_runtime_options options = CLV_RUNTIME_OPTIONS_INIT;
	double worst = 0;
	clv_status st;
	if (!PyArg_ParseTuple(args, "O!zb", &ArtifactType, &o, &options.part, &options.sandbox))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	st = clv_artifact_compare(o->a, &options, &worst);
	Py_END_ALLOW_THREADS
	return st == CLV_OK ? PyFloat_FromDouble(worst) : raise_status(st);
}

/* packed(i) -> pieces of an artifact for its i-th instruction set: (name, pieces, bytes); None: there are no more */
static PyObject *artifact_py_packed(ArtifactObject *o, PyObject *number)
{
	const char *isa;
	uint32_t pieces;
	int64_t bytes;
	unsigned long i = PyLong_AsUnsignedLong(number);
	if (PyErr_Occurred())
		return NULL;
	if (!clv_artifact_packed(o->a, (uint32_t)i, &isa, &pieces, &bytes))
		Py_RETURN_NONE;
	return Py_BuildValue("(sIL)", isa, pieces, (long long)bytes);
}

/* signer() -> fingerprint of the trusted key that signed the file, or None */
static PyObject *artifact_py_signer(ArtifactObject *o, PyObject *unused)
{
	if (!artifact_signature_verified(o->a))
		Py_RETURN_NONE;
	return PyUnicode_FromString(o->a->signer);
}

static PyObject *artifact_py_check_data(ArtifactObject *o, PyObject *unused)
{
	clv_status st;
	Py_BEGIN_ALLOW_THREADS
	st = artifact_check_data(o->a);
	Py_END_ALLOW_THREADS
	return none_or_raise(st);
}

/* to_bytes() -> those of the file that one in memory would be */
static PyObject *artifact_py_to_bytes(ArtifactObject *o, PyObject *unused)
{
	strbuf b = STRBUF_INIT;
	clv_status st = artifact_append(o->a, &b);
	PyObject *out = st == CLV_OK ? PyBytes_FromStringAndSize(b.at, (Py_ssize_t)b.n) : raise_status(st);
	strbuf_free(&b);
	return out;
}

/* copy() -> what opening that file would give */
static PyObject *artifact_py_copy(ArtifactObject *o, PyObject *unused)
{
	artifact *made;
	clv_status st;
	Py_BEGIN_ALLOW_THREADS
	st = artifact_snapshot(o->a, &made);
	Py_END_ALLOW_THREADS
	return st == CLV_OK ? artifact_object(made) : raise_status(st);
}

static PyObject *artifact_py_about(ArtifactObject *o, PyObject *unused)
{
	PyObject *out = PyDict_New();
	for (uint32_t i = 0; out && i < o->a->notes.n; i++)
		dict_put(&out, o->a->notes.at[i].key, PyUnicode_FromString(o->a->notes.at[i].text));
	return out;
}

static PyObject *points_to(const artifact_plan *e)
{
	uint32_t n = artifact_point_size(e->p);
	PyObject *out = PyList_New(0);
	for (uint32_t i = 0; out && n && i + n <= e->points.n; i += n)
		list_push(&out, int_tuple(&e->points.at[i], n));
	return out;
}

static PyObject *fixed_to(const artifact_plan *e)
{
	PyObject *out = PyDict_New();
	for (uint32_t i = 0; out && i < e->fixed.n; i++)
		dict_put(&out, e->fixed.at[i].name, PyLong_FromLongLong(e->fixed.at[i].value));
	return out;
}

/* plan(i) -> (Plan, signature, first, end, cut or -1, stores, points, fixed sizes) */
static PyObject *artifact_py_plan(ArtifactObject *o, PyObject *number)
{
	size_t i = PyLong_AsSize_t(number);
	plan *copy;
	if (PyErr_Occurred())
		return NULL;
	if (i >= o->a->plans.n)
		return PyErr_Format(PyExc_IndexError, "there is no plan %zu", i);
	const artifact_plan *e = &o->a->plans.at[i];
	clv_status st = plan_copy(e->p, &copy);
	if (st != CLV_OK)
		return raise_status(st);
	return Py_BuildValue("(NsIIlINN)", plan_object_new(copy), e->signature, e->first, e->end,
	                     e->cut == NONE ? -1L : (long)e->cut, e->nstores, points_to(e), fixed_to(e));
}

/* tensors() -> list of (name, dtype, shape, bytes, trainable, digest) */
static PyObject *artifact_py_tensors(ArtifactObject *o, PyObject *unused)
{
	PyObject *out = PyList_New(0);
	for (uint32_t i = 0; out && i < clv_artifact_tensor_count(o->a); i++) {
		clv_tensor_info t = {.size = sizeof t};
		clv_status st = clv_artifact_tensor(o->a, i, &t);
		list_push(&out, st == CLV_OK ? Py_BuildValue("(ssNLOs)", t.name, t.dtype, int_tuple(t.shape, t.ndim),
		                                             (long long)t.bytes, t.trainable ? Py_True : Py_False, t.digest)
		                             : raise_status(st));
	}
	return out;
}

/* head() -> (part, split_id, boundary, batch, weight_version, weights, plans) */
static PyObject *artifact_py_head(ArtifactObject *o, PyObject *unused)
{
	const artifact *a = o->a;
	return Py_BuildValue("(ssssLOI)", a->part, a->split_id, a->boundary, a->batch, (long long)a->weight_version,
	                     a->weights ? Py_True : Py_False, a->plans.n);
}

/* split(boundary or None, prefix path, suffix path) */
static PyObject *artifact_py_split(ArtifactObject *o, PyObject *args)
{
	clv_split_options options = CLV_SPLIT_OPTIONS_INIT;
	const char *prefix, *suffix;
	clv_status st;
	if (!PyArg_ParseTuple(args, "zyy", &options.boundary, &prefix, &suffix))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	st = clv_artifact_split(o->a, &options, prefix, suffix);
	Py_END_ALLOW_THREADS
	return none_or_raise(st);
}

static PyObject *artifact_py_unvouched(ArtifactObject *o, PyObject *none)
{
	(void)none;
	const char *why = artifact_unvouched(o->a);
	return why ? PyUnicode_FromString(why) : Py_NewRef(Py_None);
}

static PyMethodDef artifact_methods[] = {
	{"head", (PyCFunction)artifact_py_head, METH_NOARGS, "part, split, batch symbol, number of plans"},
	{"about", (PyCFunction)artifact_py_about, METH_NOARGS, "where it comes from"},
	{"plan", (PyCFunction)artifact_py_plan, METH_O, "plan(i): a plan and what goes with it"},
	{"tensors", (PyCFunction)artifact_py_tensors, METH_NOARGS, "names, types and digests of the tensors"},
	{"packed", (PyCFunction)artifact_py_packed, METH_O, "(instruction set, pieces, bytes) of packed weights, or None"},
	{"unvouched", (PyCFunction)artifact_py_unvouched, METH_NOARGS, "why nobody vouches for it, or None"},
	{"signer", (PyCFunction)artifact_py_signer, METH_NOARGS, "the trusted key that signed it, or None"},
	{"to_bytes", (PyCFunction)artifact_py_to_bytes, METH_NOARGS, "those of the file that one in memory would be"},
	{"copy", (PyCFunction)artifact_py_copy, METH_NOARGS, "what opening that file would give, in memory of its own"},
	{"check_data", (PyCFunction)artifact_py_check_data, METH_NOARGS, "compares the data with its digests"},
	{"split", (PyCFunction)artifact_py_split, METH_VARARGS, "split(boundary, prefix path, suffix path)"},
	{NULL, NULL, 0, NULL}};

PyTypeObject ArtifactType = {PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cleave._native.Artifact",
                             .tp_basicsize = sizeof(ArtifactObject),
                             .tp_flags = Py_TPFLAGS_DEFAULT,
                             .tp_new = artifact_py_new,
                             .tp_dealloc = (destructor)artifact_py_dealloc,
                             .tp_methods = artifact_methods};

/* ---- runtimes --------------------------------------------------------------------------------------------------- */

static void runtime_py_dealloc(RuntimeObject *o)
{
	clv_runtime_free(o->r);
	Py_TYPE(o)->tp_free((PyObject *)o);
}

/* Runtime(artifact, device, part, unproven, debug, allow_compiled=False, tape_only=False, optimize=None, threads=0,
   any_weights=False, timeout=0, max_memory=0, allow_signed=False, sandbox=0 (auto, on, off), engine=None) */
bool runtime_arguments(PyObject *args, clv_artifact **a, clv_runtime_options *o)
{
	ArtifactObject *from;
	int unproven, debug, allow_compiled = 0, tape_only = 0, any_weights = 0, allow_signed = 0;
	long long max_memory = 0;
	if (!PyArg_ParseTuple(args, "O!zzpp|ppzipdLpbz", &ArtifactType, &from, &o->device, &o->part, &unproven, &debug,
	                      &allow_compiled, &tape_only, &o->optimize, &o->threads, &any_weights, &o->timeout,
	                      &max_memory, &allow_signed, &o->sandbox, &o->engine))
		return false;
	*a = from->a;
	o->max_memory = max_memory;
	o->any_weights = any_weights != 0;
	o->unproven = unproven != 0;
	o->debug = debug != 0;
	o->allow_compiled = allow_compiled != 0;
	o->allow_signed = allow_signed != 0;
	o->tape_only = tape_only != 0;
	return true;
}

static PyObject *runtime_py_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	clv_artifact *a;
	clv_runtime_options options = CLV_RUNTIME_OPTIONS_INIT;
	runtime *r = NULL;
	clv_status st;
	if (!runtime_arguments(args, &a, &options))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	st = clv_runtime_create(a, &options, &r);
	Py_END_ALLOW_THREADS
	if (st != CLV_OK)
		return raise_status(st);
	RuntimeObject *o = (RuntimeObject *)type->tp_alloc(type, 0);
	if (o)
		o->r = r;
	else
		clv_runtime_free(r);
	return (PyObject *)o;
}

static PyObject *runtime_py_packing(RuntimeObject *o, PyObject *none)
{
	clv_packing_state x = {.size = sizeof x};
	(void)none;
	clv_status st = clv_runtime_packing(o->r, &x);
	return st == CLV_OK ? Py_BuildValue("(III)", x.found, x.repacked, x.damaged) : raise_status(st);
}

static PyObject *runtime_py_sandboxed(RuntimeObject *o, PyObject *none)
{
	(void)none;
	return PyBool_FromLong(clv_runtime_sandboxed(o->r));
}

PyObject *ports_to(const clv_port *at, uint32_t n)
{
	PyObject *out = PyList_New(0);
	for (uint32_t i = 0; out && i < n; i++) {
		PyObject *dims = PyTuple_New(at[i].ndim);
		for (uint32_t k = 0; dims && k < at[i].ndim; k++)
			PyTuple_SET_ITEM(dims, k, PyUnicode_FromString(at[i].dims[k]));
		list_push(&out, Py_BuildValue("(ssNs)", at[i].name, at[i].dtype, dims, at[i].device));
	}
	return out;
}

static PyObject *runtime_py_inputs(RuntimeObject *o, PyObject *unused)
{
	return ports_to(o->r->inputs.at, o->r->inputs.n);
}

static PyObject *runtime_py_outputs(RuntimeObject *o, PyObject *unused)
{
	return ports_to(o->r->plans.at[0].outputs.at, o->r->plans.at[0].outputs.n);
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
	clv_status st = outputs && numbers ? CLV_OK : fail_nomem();
	c->plan = i;
	c->call.numbers = numbers;
	if (st == CLV_OK) {
		Py_BEGIN_ALLOW_THREADS
		st = runtime_run_plan(c->r, i, &c->call, outputs);
		Py_END_ALLOW_THREADS
	}
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
	PyObject *seq;
	Py_ssize_t n;
	int64_t version = 0;
	unsigned i = NONE;
	if (!PyArg_ParseTuple(args, "O|I", &seq, &i))
		return NULL;
	if (i != NONE && i >= o->r->plans.n)
		return PyErr_Format(PyExc_IndexError, "there is no plan %u", i);
	clv_tensor **inputs = core_array(seq, &n);
	if (!inputs)
		return NULL;
	RuntimeCall c = {.r = o->r, .call = {.inputs = inputs, .version = &version}};
	clv_status st;
	if (i == NONE)
		st = runtime_serve(o->r, inputs, (uint32_t)n, run_plan, &c);
	else if ((uint32_t)n != o->r->plans.at[i].of.v.inputs.n)
		st = fail(CLV_E_INPUT, "the plan takes %u inputs, the call has %zd", o->r->plans.at[i].of.v.inputs.n, n);
	else if ((st = runtime_check_asked(o->r, i, inputs)) == CLV_OK)
		st = run_plan(&c, i);
	PyObject *outputs = call_result(&c, st);
	PyObject *out = outputs ? Py_BuildValue("(INNL)", c.plan, sizes_to(&o->r->plans.at[c.plan].of, inputs), outputs,
	                                        (long long)version)
	                        : NULL;
	core_free(inputs, n);
	return out;
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
	PyObject *fields, *seq, *out = NULL;
	Py_ssize_t n;
	long long version;
	boundary_facts got;
	if (!PyArg_ParseTuple(args, "O!OL", &PyTuple_Type, &fields, &seq, &version))
		return NULL;
	const int64_t wanted = version;
	clv_tensor **given = facts_from(fields, &got) ? core_array(seq, &n) : NULL;
	if (given && (uint32_t)n != got.nlabels)
		raise_status(fail(CLV_E_INPUT, "the boundary has %zd tensors and %u labels", n, got.nlabels));
	else if (given) {
		RuntimeCall c = {.r = o->r, .call = {.wants_version = &wanted}, .got = &got, .given = given};
		PyObject *outputs = call_result(&c, runtime_serve_suffix(o->r, &got, version, run_boundary, &c));
		out = outputs ? Py_BuildValue("(IN)", c.plan, outputs) : NULL;
	}
	if (given)
		core_free(given, n);
	facts_free(&got);
	return out;
}

/* plan(i) -> (input labels, output labels, schema of the outputs) */
static PyObject *runtime_py_plan(RuntimeObject *o, PyObject *number)
{
	size_t i = PyLong_AsSize_t(number);
	if (PyErr_Occurred() || i >= o->r->plans.n)
		return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_IndexError, "there is no plan %zu", i);
	const plan_part *g = &o->r->plans.at[i].of;
	uint32_t given = g->outputs.n - g->v.rebinds.n;
	return Py_BuildValue("(NNN)", labels(g->p, g->v.inputs.at, g->v.inputs.n), labels(g->p, g->outputs.at, given),
	                     values_schema(g->p, g->outputs.at, given));
}

/* state() -> dict of name to tensor, on the memory that runs read */
static PyObject *runtime_py_state(RuntimeObject *o, PyObject *unused)
{
	PyObject *out = PyDict_New();
	const payload *p = o->r->a->tensors;
	clv_tensor **now = PyMem_Calloc(p->tensors.n + 1, sizeof *now);
	if (!now)
		PyErr_NoMemory();
	if (!now)
		Py_CLEAR(out);
	Py_BEGIN_ALLOW_THREADS /* a run that holds the runtime may wait for Python, and may put others in their place */
	pthread_rwlock_rdlock(&o->r->lock);
	for (uint32_t i = 0; now && i < p->tensors.n; i++)
		now[i] = tensor_ref(o->r->state[i]);
	pthread_rwlock_unlock(&o->r->lock);
	Py_END_ALLOW_THREADS
	for (uint32_t i = 0; now && i < p->tensors.n; i++) {
		if (!now[i] || !out) {
			clv_tensor_free(now[i]);
			continue;
		}
		dict_put(&out, p->tensors.at[i].label, core_wrap(now[i]));
	}
	PyMem_Free(now);
	return out;
}

static PyObject *runtime_py_cancel(RuntimeObject *o, PyObject *unused)
{
	clv_runtime_cancel(o->r);
	Py_RETURN_NONE;
}

/* own_state(): copies take the place of tensors on the file, so that they can be written */
static PyObject *runtime_py_own_state(RuntimeObject *o, PyObject *unused)
{
	clv_status st;
	Py_BEGIN_ALLOW_THREADS /* a run that holds the runtime may wait for Python */
	st = runtime_needs_here(o->r, "state_dict");
	if (st == CLV_OK) {
		pthread_rwlock_wrlock(&o->r->lock);
		st = runtime_own_state(o->r);
		pthread_rwlock_unlock(&o->r->lock);
	}
	Py_END_ALLOW_THREADS
	return none_or_raise(st);
}

/* assign(dict): tensors by name, all of them between two runs */
static PyObject *runtime_py_assign(RuntimeObject *o, PyObject *given)
{
	PyObject *key, *tensor;
	Py_ssize_t at = 0;
	uint32_t n = 0;
	if (!PyDict_Check(given))
		return PyErr_Format(PyExc_TypeError, "assign takes a dict");
	named_tensor *set = mem_alloc(((size_t)PyDict_GET_SIZE(given) + 1) * sizeof *set);
	if (!set)
		return PyErr_NoMemory();
	bool ok = true;
	clv_status st = CLV_OK;
	while (ok && st == CLV_OK && PyDict_Next(given, &at, &key, &tensor)) {
		clv_tensor *t = NULL;
		const char *name = PyUnicode_AsUTF8(key);
		ok = name && need_tensor(tensor);
		st = ok ? core_of(tensor, &t) : CLV_OK;
		if (t)
			set[n++] = (named_tensor){name, t};
	}
	if (ok && st == CLV_OK) {
		Py_BEGIN_ALLOW_THREADS
		st = runtime_assign(o->r, set, n);
		Py_END_ALLOW_THREADS
	}
	while (n > 0)
		clv_tensor_free((clv_tensor *)set[--n].t);
	mem_free(set);
	return ok ? none_or_raise(st) : NULL;
}

/* changing() -> names of tensors that runs write, or put others in the place of */
static PyObject *runtime_py_changing(RuntimeObject *o, PyObject *unused)
{
	PyObject *out = PyList_New(0);
	const payload *p = o->r->a->tensors;
	for (uint32_t i = 0; out && i < p->tensors.n; i++)
		if (o->r->changes[i])
			list_push(&out, PyUnicode_FromString(p->tensors.at[i].label));
	return out;
}

/* constants(i) -> dict of the place in generated source ("const_3") to the tensor, of plan i */
static PyObject *runtime_py_constants(RuntimeObject *o, PyObject *number)
{
	size_t i = PyLong_AsSize_t(number);
	if (PyErr_Occurred() || i >= o->r->plans.n)
		return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_IndexError, "there is no plan %zu", i);
	const artifact_plan *e = &o->r->a->plans.at[i];
	uint32_t marks = source_marks(e->p);
	PyObject *out = PyDict_New();
	for (uint32_t k = 0; out && k < e->consts.n; k++) {
		clv_tensor *data = o->r->state[e->consts.at[k].tensor];
		strbuf b = STRBUF_INIT;
		char *place = NULL;
		source_place(e->p, marks, e->consts.at[k].value, &b);
		clv_status st = strbuf_take(&b, &place);
		dict_put(&out, place, st == CLV_OK ? core_wrap(tensor_ref(data)) : raise_status(st));
		mem_free(place);
	}
	return out;
}

static PyObject *runtime_py_bind(RuntimeObject *o, PyObject *args)
{
	const char *name;
	PyObject *tensor;
	if (!PyArg_ParseTuple(args, "sO", &name, &tensor) || !need_tensor(tensor))
		return NULL;
	clv_tensor *t = NULL;
	clv_status st = core_of(tensor, &t);
	if (st == CLV_OK) {
		Py_BEGIN_ALLOW_THREADS /* a run that holds the runtime may wait for Python */
		st = clv_runtime_bind(o->r, name, t);
		Py_END_ALLOW_THREADS
	}
	clv_tensor_free(t);
	return none_or_raise(st);
}

/* note(name, tensor) -> whether the model has a tensor of that name, which now has these elements */
static PyObject *runtime_py_note(RuntimeObject *o, PyObject *args)
{
	const char *name;
	PyObject *tensor;
	if (!PyArg_ParseTuple(args, "sO", &name, &tensor) || !need_tensor(tensor))
		return NULL;
	if (!runtime_knows(o->r, name))
		Py_RETURN_FALSE;
	clv_tensor *t = NULL;
	clv_status st = core_of(tensor, &t);
	if (st == CLV_OK) {
		Py_BEGIN_ALLOW_THREADS
		pthread_rwlock_wrlock(&o->r->lock);
		st = runtime_note_weight(o->r, name, t);
		o->r->bound = true;
		pthread_rwlock_unlock(&o->r->lock);
		Py_END_ALLOW_THREADS
	}
	clv_tensor_free(t);
	return st == CLV_OK ? Py_NewRef(Py_True) : raise_status(st);
}

static PyObject *runtime_py_knows(RuntimeObject *o, PyObject *name)
{
	const char *text = PyUnicode_AsUTF8(name);
	return text ? PyBool_FromLong(runtime_knows(o->r, text)) : NULL;
}

static PyObject *runtime_py_weight_version(RuntimeObject *o, PyObject *unused)
{
	return PyLong_FromLongLong(o->r->weight_version);
}

/* segments() -> list of (plan, first, end, back end, barred, compiled, reason or None, runs, runs on the tape) */
static PyObject *runtime_py_optimizations(RuntimeObject *o, PyObject *unused)
{
	char *text = NULL;
	clv_status st;
	Py_BEGIN_ALLOW_THREADS; /* waits for a run that chooses, which may call Python */
	st = clv_runtime_optimizations(o->r, &text);
	Py_END_ALLOW_THREADS;
	return take_string(st, text);
}

static PyObject *runtime_py_segments(RuntimeObject *o, PyObject *unused)
{
	PyObject *out = PyList_New(0);
	for (uint32_t i = 0; out && i < clv_runtime_segment_count(o->r); i++) {
		clv_segment_state s = {.size = sizeof s};
		clv_status st = clv_runtime_segment(o->r, i, &s);
		list_push(&out, st == CLV_OK
		                    ? Py_BuildValue("(IIIsOOzKK)", s.plan, s.first, s.end, s.backend,
		                                    s.barred ? Py_True : Py_False, s.compiled ? Py_True : Py_False, s.reason,
		                                    (unsigned long long)s.runs, (unsigned long long)s.tape_runs)
		                    : raise_status(st));
	}
	return out;
}

/* weights_changed(): tensors of state() were written; compiled segments have the old ones */
static PyObject *runtime_py_weights_changed(RuntimeObject *o, PyObject *unused)
{
	for (uint32_t i = 0; i < o->r->plans.n; i++)
		runtime_changed(o->r, i, NONE, OTHER_WEIGHTS);
	Py_RETURN_NONE;
}

static PyObject *runtime_py_unbound(RuntimeObject *o, PyObject *unused)
{
	PyObject *out = PyList_New(0);
	for (uint32_t i = 0; out && i < o->r->unbound.n; i++)
		list_push(&out, PyUnicode_FromString(o->r->unbound.at[i]));
	return out;
}

/* weight_digest(name, tensor) -> int of 63 bits that follows every bit of the tensor */
PyObject *weight_digest_py(PyObject *self, PyObject *args)
{
	PyObject *given;
	const char *name;
	int64_t number;
	clv_tensor *t = NULL;
	if (!PyArg_ParseTuple(args, "sO", &name, &given) || !need_tensor(given))
		return NULL;
	clv_status st = core_of(given, &t);
	if (st == CLV_OK) {
		Py_BEGIN_ALLOW_THREADS
		st = tensor_digest(name, t, &number);
		Py_END_ALLOW_THREADS
	}
	clv_tensor_free(t);
	return st == CLV_OK ? PyLong_FromLongLong(number) : raise_status(st);
}

static PyMethodDef runtime_methods[] = {
	{"inputs", (PyCFunction)runtime_py_inputs, METH_NOARGS, "list of (name, dtype, dims, device)"},
	{"outputs", (PyCFunction)runtime_py_outputs, METH_NOARGS, "list of (name, dtype, dims, device)"},
	{"run", (PyCFunction)runtime_py_run, METH_VARARGS, "run(tensors, plan) -> (plan, sizes, outputs, version)"},
	{"run_suffix", (PyCFunction)runtime_py_run_suffix, METH_VARARGS, "run_suffix(plan, sizes, tensors) -> outputs"},
	{"plan", (PyCFunction)runtime_py_plan, METH_O, "plan(i) -> (inputs, outputs, schema)"},
	{"state", (PyCFunction)runtime_py_state, METH_NOARGS, "the tensors, by name"},
	{"cancel", (PyCFunction)runtime_py_cancel, METH_NOARGS, "ends the runs that have begun"},
	{"own_state", (PyCFunction)runtime_py_own_state, METH_NOARGS, "tensors on the file become copies"},
	{"assign", (PyCFunction)runtime_py_assign, METH_O, "assign(tensors by name), all between two runs"},
	{"changing", (PyCFunction)runtime_py_changing, METH_NOARGS, "names of tensors that runs change"},
	{"constants", (PyCFunction)runtime_py_constants, METH_O, "constants(i): those of a plan, by their place in source"},
	{"bind", (PyCFunction)runtime_py_bind, METH_VARARGS, "bind(name, tensor)"},
	{"knows", (PyCFunction)runtime_py_knows, METH_O, "knows(name): a tensor of the model, whichever part reads it"},
	{"note", (PyCFunction)runtime_py_note, METH_VARARGS, "note(name, tensor): the model has these elements now"},
	{"weight_version", (PyCFunction)runtime_py_weight_version, METH_NOARGS, "which weights it has"},
	{"packing", (PyCFunction)runtime_py_packing, METH_NOARGS, "(found, repacked, damaged) pieces of packed weights"},
	{"sandboxed", (PyCFunction)runtime_py_sandboxed, METH_NOARGS, "whether runs are made in a sandbox"},
	{"optimizations", (PyCFunction)runtime_py_optimizations, METH_NOARGS, "what was done to run it faster, in lines"},
	{"segments", (PyCFunction)runtime_py_segments, METH_NOARGS, "compiled segments, and what became of them"},
	{"weights_changed", (PyCFunction)runtime_py_weights_changed, METH_NOARGS,
     "compiled segments are not used any more"},
	{"unbound", (PyCFunction)runtime_py_unbound, METH_NOARGS, "names that wait for bind"},
	{NULL, NULL, 0, NULL}};

PyTypeObject RuntimeType = {PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cleave._native.Runtime",
                            .tp_basicsize = sizeof(RuntimeObject),
                            .tp_flags = Py_TPFLAGS_DEFAULT,
                            .tp_new = runtime_py_new,
                            .tp_dealloc = (destructor)runtime_py_dealloc,
                            .tp_methods = runtime_methods};
