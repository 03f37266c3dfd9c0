/* Trainer: suffixes that train from a file, as Python has them. Boundaries and gradients cross as bytes, as over a network. */
#include "_native_file.h"

HANDLE(Trainer, TrainerObject, clv_trainer, trainer, clv_trainer_free)

/* A number to start random draws from, or None. */
bool read_seed(PyObject *given, bool *has, uint64_t *seed)
{
	*has = given != Py_None;
	if (*has)
		*seed = PyLong_AsUnsignedLongLong(given);
	return !PyErr_Occurred();
}

/* Trainer(artifact, seed or None, threads, sandbox, unproven, timeout) */
static PyObject *trainer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	clv_artifact *a;
	PyObject *seed;
	clv_trainer_options o = CLV_TRAINER_OPTIONS_INIT;
	clv_trainer *t = NULL;
	if (!take(NULL, args, "@Oibpd", &ArtifactType, &a, &seed, &o.threads, &o.sandbox, &o.unproven, &o.timeout) ||
	    !read_seed(seed, &o.has_seed, &o.seed))
		return NULL;
	clv_status st = UNLOCKED(clv_trainer_create(a, &o, &t));
	return st == CLV_OK ? trainer_wrap(t) : raise_status(st);
}

/* A step from bytes to bytes. */
static clv_status run_step(clv_trainer *t, const void *data, size_t n, clv_tensor *const *targets, uint32_t ntargets,
                           bool apply, clv_tensor **loss, void **bytes, size_t *size)
{
	clv_boundary *b, *gradients = NULL;
	TRY(clv_boundary_unpack(data, n, &b));
	const clv_tensor *const *at = (const clv_tensor *const *)targets;
	clv_status st = apply ? clv_trainer_step(t, b, at, ntargets, loss, &gradients)
	                      : clv_trainer_accumulate(t, b, at, ntargets, loss, &gradients);
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
	call c = {0};
	const void *boundary;
	size_t length, size = 0;
	clv_tensor **targets, *loss = NULL;
	uint32_t n;
	bool apply;
	void *bytes = NULL;
	if (!take(&c, args, "BCp", &boundary, &length, &targets, &n, &apply))
		return call_end(&c, NULL);
	clv_status st = UNLOCKED(run_step(o->of, boundary, length, targets, n, apply, &loss, &bytes, &size));
	PyObject *gradients = take_bytes(st, bytes, size);
	if (!gradients && st == CLV_OK)
		clv_tensor_free(loss);
	return call_end(&c, gradients ? Py_BuildValue("(NN)", core_wrap(loss), gradients) : NULL);
}

static PyObject *trainer_apply(TrainerObject *o, PyObject *unused)
{
	return none_or_raise(UNLOCKED(clv_trainer_apply(o->of)));
}

/* apply_tied(names, tensors) */
static PyObject *trainer_apply_tied(TrainerObject *o, PyObject *args)
{
	call c = {0};
	const char **names;
	clv_tensor **gradients;
	uint32_t count, n;
	if (!take(&c, args, "SC", &names, &count, &gradients, &n))
		return call_end(&c, NULL);
	const clv_tensor *const *at = (const clv_tensor *const *)gradients;
	clv_status st = n == count ? UNLOCKED(clv_trainer_apply_tied(o->of, names, at, count))
	                           : fail(CLV_E_INVALID, "%u names have %u gradients", count, n);
	return call_end(&c, none_or_raise(st));
}

static PyObject *trainer_state(TrainerObject *o, PyObject *unused)
{
	void *data = NULL;
	size_t n = 0;
	clv_status st = UNLOCKED(clv_trainer_state(o->of, &data, &n));
	return take_bytes(st, data, n);
}

static PyObject *trainer_restore(TrainerObject *o, PyObject *args)
{
	call c = {0};
	const void *data;
	size_t n;
	if (!take(&c, args, "B", &data, &n))
		return call_end(&c, NULL);
	return call_end(&c, none_or_raise(UNLOCKED(clv_trainer_restore(o->of, data, n))));
}

/* weights(artifact, path) */
static PyObject *trainer_weights(TrainerObject *o, PyObject *args)
{
	clv_artifact *suffix;
	const char *path;
	if (!take(NULL, args, "@y", &ArtifactType, &suffix, &path))
		return NULL;
	return none_or_raise(UNLOCKED(clv_trainer_weights(o->of, suffix, path)));
}

static PyObject *trainer_steps(TrainerObject *o, PyObject *unused)
{
	return PyLong_FromUnsignedLongLong(clv_trainer_steps(o->of));
}

METHODS(trainer, TAKES(trainer, step), GIVES(trainer, apply), TAKES(trainer, apply_tied), GIVES(trainer, state),
        TAKES(trainer, restore), TAKES(trainer, weights), GIVES(trainer, steps));
TYPE(Trainer, TrainerObject, trainer, 0, .tp_new = trainer_new);
