/* Trainer: suffixes that train from a file, as Python has them. Boundaries and gradients cross as bytes, as over a network. */
#include "_native_file.h"

typedef struct TrainerObject {
	PyObject_HEAD
	clv_trainer *t;
} TrainerObject;

static void trainer_dealloc(TrainerObject *o)
{
	clv_trainer_free(o->t);
	Py_TYPE(o)->tp_free((PyObject *)o);
}

/* Trainer(artifact, seed or None, threads, sandbox, unproven, timeout) */
static PyObject *trainer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	PyObject *a, *seed;
	int unproven;
	clv_trainer_options options = CLV_TRAINER_OPTIONS_INIT;
	clv_trainer *t = NULL;
	clv_status st;
	if (!PyArg_ParseTuple(args, "O!Oibpd", &ArtifactType, &a, &seed, &options.threads, &options.sandbox, &unproven,
	                      &options.timeout))
		return NULL;
	options.unproven = unproven != 0;
	options.has_seed = seed != Py_None;
	if (options.has_seed)
		options.seed = PyLong_AsUnsignedLongLong(seed);
	if (PyErr_Occurred())
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	st = clv_trainer_create(artifact_of(a), &options, &t);
	Py_END_ALLOW_THREADS
	if (st != CLV_OK)
		return raise_status(st);
	TrainerObject *o = (TrainerObject *)type->tp_alloc(type, 0);
	if (o)
		o->t = t;
	else
		clv_trainer_free(t);
	return (PyObject *)o;
}

static PyObject *take_bytes(clv_status st, void *data, size_t n)
{
	PyObject *out = st == CLV_OK ? PyBytes_FromStringAndSize(data, (Py_ssize_t)n) : raise_status(st);
	if (st == CLV_OK)
		clv_free(data);
	return out;
}

/* A step without the GIL, from bytes to bytes. */
static clv_status run_step(clv_trainer *t, const Py_buffer *boundary, clv_tensor *const *targets, uint32_t n,
                           bool apply, clv_tensor **loss, void **bytes, size_t *size)
{
	clv_boundary *b, *gradients = NULL;
	TRY(clv_boundary_unpack(boundary->buf, (size_t)boundary->len, &b));
	const clv_tensor *const *at = (const clv_tensor *const *)targets;
	clv_status st =
		apply ? clv_trainer_step(t, b, at, n, loss, &gradients) : clv_trainer_accumulate(t, b, at, n, loss, &gradients);
	clv_boundary_free(b);
	TRY(st);
	st = clv_boundary_pack(gradients, NULL, bytes, size);
	clv_boundary_free(gradients);
	if (st != CLV_OK)
		clv_tensor_free(*loss);
	return st;
}

/* step(boundary as bytes, targets, apply) -> (loss, gradients as a boundary's bytes) */
static PyObject *trainer_step(TrainerObject *o, PyObject *args)
{
	Py_buffer boundary;
	PyObject *seq, *out = NULL;
	Py_ssize_t n;
	int apply;
	clv_tensor *loss = NULL;
	void *bytes = NULL;
	size_t size = 0;
	clv_status st;
	if (!PyArg_ParseTuple(args, "y*Op", &boundary, &seq, &apply))
		return NULL;
	clv_tensor **targets = core_array(seq, &n);
	if (targets) {
		Py_BEGIN_ALLOW_THREADS
		st = run_step(o->t, &boundary, targets, (uint32_t)n, apply, &loss, &bytes, &size);
		Py_END_ALLOW_THREADS
		PyObject *gradients = take_bytes(st, bytes, size);
		if (gradients)
			out = Py_BuildValue("(NN)", core_wrap(loss), gradients);
		else if (st == CLV_OK)
			clv_tensor_free(loss);
		core_free(targets, n);
	}
	PyBuffer_Release(&boundary);
	return out;
}

static PyObject *trainer_apply(TrainerObject *o, PyObject *unused)
{
	clv_status st;
	Py_BEGIN_ALLOW_THREADS
	st = clv_trainer_apply(o->t);
	Py_END_ALLOW_THREADS
	return none_or_raise(st);
}

/* apply_tied(names, tensors) */
static PyObject *trainer_apply_tied(TrainerObject *o, PyObject *args)
{
	PyObject *list, *seq;
	uint32_t count;
	Py_ssize_t n;
	clv_status st = CLV_OK;
	if (!PyArg_ParseTuple(args, "O!O", &PyList_Type, &list, &seq))
		return NULL;
	const char **names = string_array(list, &count);
	clv_tensor **gradients = names ? core_array(seq, &n) : NULL;
	bool ok = gradients != NULL;
	if (ok) {
		Py_BEGIN_ALLOW_THREADS
		st = (uint32_t)n == count ? clv_trainer_apply_tied(o->t, names, (const clv_tensor *const *)gradients, count)
		                          : fail(CLV_E_INVALID, "%u names have %zd gradients", count, n);
		Py_END_ALLOW_THREADS
		core_free(gradients, n);
	}
	PyMem_Free(names);
	return ok ? none_or_raise(st) : NULL;
}

static PyObject *trainer_state(TrainerObject *o, PyObject *unused)
{
	void *data = NULL;
	size_t n = 0;
	clv_status st;
	Py_BEGIN_ALLOW_THREADS
	st = clv_trainer_state(o->t, &data, &n);
	Py_END_ALLOW_THREADS
	return take_bytes(st, data, n);
}

static PyObject *trainer_restore(TrainerObject *o, PyObject *args)
{
	Py_buffer data;
	clv_status st;
	if (!PyArg_ParseTuple(args, "y*", &data))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	st = clv_trainer_restore(o->t, data.buf, (size_t)data.len);
	Py_END_ALLOW_THREADS
	PyBuffer_Release(&data);
	return none_or_raise(st);
}

/* weights(artifact, path) */
static PyObject *trainer_weights(TrainerObject *o, PyObject *args)
{
	PyObject *suffix;
	const char *path;
	clv_status st;
	if (!PyArg_ParseTuple(args, "O!y", &ArtifactType, &suffix, &path))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	st = clv_trainer_weights(o->t, artifact_of(suffix), path);
	Py_END_ALLOW_THREADS
	return none_or_raise(st);
}

static PyObject *trainer_steps(TrainerObject *o, PyObject *unused)
{
	return PyLong_FromUnsignedLongLong(clv_trainer_steps(o->t));
}

typedef clv_status (*port_fn)(const clv_trainer *t, uint32_t i, clv_port *out);

static PyObject *ports(const clv_trainer *t, uint32_t n, port_fn get)
{
	clv_status st = CLV_OK;
	clv_port *at = PyMem_Calloc(n + 1, sizeof *at);
	for (uint32_t i = 0; at && i < n && st == CLV_OK; i++) {
		at[i].size = sizeof *at;
		st = get(t, i, &at[i]);
	}
	PyObject *out = !at ? PyErr_NoMemory() : st == CLV_OK ? ports_to(at, n) : raise_status(st);
	PyMem_Free(at);
	return out;
}

static PyObject *trainer_inputs(TrainerObject *o, PyObject *unused)
{
	return ports(o->t, clv_trainer_input_count(o->t), clv_trainer_input);
}

static PyObject *trainer_targets(TrainerObject *o, PyObject *unused)
{
	return ports(o->t, clv_trainer_target_count(o->t), clv_trainer_target);
}

static PyMethodDef trainer_methods[] = {
	{"step", (PyCFunction)trainer_step, METH_VARARGS, "step(boundary, targets, apply) -> (loss, gradients)"},
	{"apply", (PyCFunction)trainer_apply, METH_NOARGS, "steps what has gradients"},
	{"apply_tied", (PyCFunction)trainer_apply_tied, METH_VARARGS, "apply_tied(names, whole gradients)"},
	{"state", (PyCFunction)trainer_state, METH_NOARGS, "all that training changes, as bytes"},
	{"restore", (PyCFunction)trainer_restore, METH_VARARGS, "restore(bytes)"},
	{"weights", (PyCFunction)trainer_weights, METH_VARARGS,
     "weights(artifact, path): writes it with the weights of now"},
	{"steps", (PyCFunction)trainer_steps, METH_NOARGS, "how often gradients were applied"},
	{"inputs", (PyCFunction)trainer_inputs, METH_NOARGS, "list of (label, dtype, dims, device)"},
	{"targets", (PyCFunction)trainer_targets, METH_NOARGS, "list of (name, dtype, dims, device)"},
	{NULL, NULL, 0, NULL}};

PyTypeObject TrainerType = {PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cleave._native.Trainer",
                            .tp_basicsize = sizeof(TrainerObject),
                            .tp_flags = Py_TPFLAGS_DEFAULT,
                            .tp_new = trainer_new,
                            .tp_dealloc = (destructor)trainer_dealloc,
                            .tp_methods = trainer_methods};
