/* Shared by the files of the extension: errors, arguments, results, objects of the library. */
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

#include "bridge/pytensor.h"
#include "capture/capture.h"
#include "exec/program.h"
#include "pipe/pipe.h"

#define FUNCTION(name, how) PyObject *name##_py(PyObject *self, PyObject *args);
#include "_native_functions.def"
#undef FUNCTION

/* _native.c */
PyObject *raise_status(clv_status st);  /* sets the exception of a status; always NULL */
PyObject *none_or_raise(clv_status st); /* None for CLV_OK */
bool ok_or_raise(clv_status st);        /* true for CLV_OK, false with an exception */
/* As status numbers: classes of errors about payloads, .clv files and servers. */
enum { E_PAYLOAD = -1, E_ARTIFACT = -2, E_REMOTE = -3 };
PyObject *error_class(long code); /* borrowed; RuntimeError before the classes are set */
PyObject *raise_as(long code);    /* as raise_status, with a class of its own */
PyObject *raise_told(const char *name,
                     PyObject *value); /* the error that is raised gets an attribute; takes the value */
void where(char *out, size_t n);       /* the user's source line */

/* A status from a call that is made without the GIL. */
#define UNLOCKED(call) ((void)PyEval_SaveThread(), locked_again(call))
static inline clv_status locked_again(clv_status st)
{
	PyEval_RestoreThread(PyGILState_GetThisThreadState());
	return st;
}

/* ---- arguments, _native_call.c ---------------------------------------------------------------------------------------- */

/* What was made of the arguments of a call. */
typedef struct call {
	struct made {
		void (*drop)(void *at, uint32_t n);
		void *at;
		uint32_t n;
	} few[8], *many; /* NULL: the few are enough */
	uint32_t n, room;
} call;

/* The same as `call c = {0}`, without a zero for each that may come: of runs, which are many. */
static inline void call_begin(call *c)
{
	c->n = 0;
	c->many = NULL;
}

/* Reads a tuple. One letter stands for each item; those after `|` may be missing, and then change nothing.

     O  an object            !  of a type: PyTypeObject *, PyObject **
     @  what a HANDLE has: PyTypeObject *, T **
     [  a list               {  a dict               (  a tuple
     s  a text               z  a text or None       y  the bytes of a path
     p  bool    b  uint8_t   i  int    I  uint32_t   L  int64_t    K  uint64_t    d  double
     t  a tensor: br_tensor **, borrowed

   Arrays have their length after them (uint32_t *), and live until call_end; None is no array:

     S  texts     N  texts or None    X  int64_t    U  uint32_t    F  double
     T  tensors: br_tensor ***        C  the same as tensors of the core, which runtimes take: clv_tensor ***
     B  bytes: const void **, size_t *
     Z  a dict of sizes, or None: clv_sizes *, without a length

   False with an exception. c: NULL where none of these is asked for. */
bool take(call *c, PyObject *args, const char *letters, ...);
/* Where arguments may have names: one for each letter, and NULL after them. */
enum { MOST_NAMES = 16 };
bool take_named(call *c, PyObject *args, PyObject *named, const char *const *names, const char *letters, ...);
bool take_array(call *c, char letter, PyObject *x, void *to, uint32_t *n); /* one of those arrays, but for B and Z */
bool take_bytes_of(call *c, PyObject *x, const void **to, size_t *n);      /* B */
PyObject *call_end(call *c, PyObject *out);                                /* frees them; gives out */
bool call_keep(call *c, void (*drop)(void *, uint32_t), void *at, uint32_t n); /* false, and dropped, without memory */
void call_drop_tensors(void *at, uint32_t n);                                  /* as tensors_free */
void *call_room(call *c, size_t n, size_t each); /* zeroed, until call_end; NULL with an exception */
clv_tensor **call_tensors(call *c, uint32_t n);  /* the same for references to tensors */
/* A number of one of n things; false with an exception. */
bool index_of(PyObject *number, uint32_t n, const char *what, uint32_t *out);
br_tensor *need_tensor(PyObject *o); /* borrowed; NULL with TypeError */
const char *text_of(PyObject *o);    /* of a str, or the bytes of a bytes, without NULs; borrowed from it */
void tensors_free(br_tensor **t, uint32_t n);
/* New references to the tensors of a sequence; None gives NULL. The caller frees with tensors_free. */
br_tensor **tensor_array(PyObject *seq, uint32_t *n);
clv_status core_of(br_tensor *tensor, clv_tensor **out); /* a new reference to it as one of the core */
/* The next item of a dict of texts; false: there is none, or an exception is set. */
bool next_text(PyObject *dict, Py_ssize_t *at, const char **key, PyObject **item);

/* ---- results, _native_call.c ------------------------------------------------------------------------------------------ */

/* Appends an item, which is taken. NULL, or no memory: an exception is set, and *list is released and NULL. */
void list_push(PyObject **list, PyObject *item);
void dict_put(PyObject **dict, const char *key, PyObject *item); /* likewise */
/* Makes `out`, a list of `item` for each i below n; NULL with an exception. */
#define LIST(out, n, item)                                                                                             \
	PyObject *out = PyList_New(0);                                                                                     \
	for (uint32_t i = 0; out && i < (n); i++)                                                                          \
	list_push(&out, item)
/* The same as a dict of `item` by `key`. */
#define DICT(out, n, key, item)                                                                                        \
	PyObject *out = PyDict_New();                                                                                      \
	for (uint32_t i = 0; out && i < (n); i++)                                                                          \
	dict_put(&out, key, item)
PyObject *as_tuple(PyObject *list); /* takes it; NULL is allowed */
PyObject *int_list(const int64_t *at, Py_ssize_t n);
PyObject *id_list(const uint32_t *ids, uint32_t n);
PyObject *text_tuple(const char *const *at, uint32_t n);
PyObject *text_or_none(const char *s);
PyObject *take_string(clv_status st, char *s);             /* frees s; NULL with an exception */
PyObject *take_text(clv_status st, strbuf *b);             /* what was written to b, likewise; b is empty then */
PyObject *take_bytes(clv_status st, void *data, size_t n); /* as take_string */
PyObject *core_wrap(clv_tensor *t);                        /* takes the reference; None for NULL */
PyObject *core_list(clv_tensor *const *t, uint32_t n);     /* of all; takes none */
static inline PyObject *truth(bool yes)                    /* borrowed */
{
	return yes ? Py_True : Py_False;
}

/* ---- types ------------------------------------------------------------------------------------------------------------- */

/* Rows of a table of methods, by how they take their arguments; _native.pyi says what they take and give. */
#define METHOD(how, prefix, name)                                                                                      \
	{                                                                                                                  \
#name, (PyCFunction)(void (*)(void))prefix##_##name, how, NULL                                                 \
	}
#define GIVES(prefix, name) METHOD(METH_NOARGS, prefix, name)
#define TAKES_ONE(prefix, name) METHOD(METH_O, prefix, name)
#define TAKES(prefix, name) METHOD(METH_VARARGS, prefix, name)
#define TAKES_NAMED(prefix, name) METHOD(METH_VARARGS | METH_KEYWORDS, prefix, name)
#define TAKES_FAST(prefix, name) METHOD(METH_FASTCALL, prefix, name)
#define METHODS(prefix, ...) static PyMethodDef prefix##_methods[] = {__VA_ARGS__, {NULL, NULL, 0, NULL}}
#define TYPE(Name, Object, prefix, flags, ...)                                                                         \
	PyTypeObject Name##Type = {PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cleave._native." #Name,                       \
	                           .tp_basicsize = sizeof(Object),                                                         \
	                           .tp_flags = Py_TPFLAGS_DEFAULT | (flags),                                               \
	                           .tp_dealloc = (destructor)prefix##_dealloc,                                             \
	                           .tp_methods = prefix##_methods,                                                         \
	                           __VA_ARGS__}
#define COLLECTED(prefix) .tp_traverse = (traverseproc)prefix##_traverse, .tp_clear = (inquiry)prefix##_clear
typedef struct handle {
	PyObject_HEAD
	void *of;
} handle;
/* The objects of one thing of the library, which goes with them: Object, whose `of` it is, and prefix_wrap, which takes it. */
#define HANDLE(Name, Object, T, prefix, drop)                                                                          \
	typedef struct Object {                                                                                            \
		PyObject_HEAD                                                                                                  \
		T *of;                                                                                                         \
	} Object;                                                                                                          \
	static void prefix##_dealloc(Object *o)                                                                            \
	{                                                                                                                  \
		drop(o->of);                                                                                                   \
		Py_TYPE(o)->tp_free((PyObject *)o);                                                                            \
	}                                                                                                                  \
	static PyObject *prefix##_wrap(T *of)                                                                              \
	{                                                                                                                  \
		Object *o = (Object *)Name##Type.tp_alloc(&Name##Type, 0);                                                     \
		if (o)                                                                                                         \
			o->of = of;                                                                                                \
		else                                                                                                           \
			drop(of);                                                                                                  \
		return (PyObject *)o;                                                                                          \
	}
int visit_one(PyObject *x, visitproc visit, void *ctx); /* for tp_traverse; NULL is allowed */

extern PyTypeObject ArtifactType, BlocksType, ChecksType, CodeType, DispatcherType, FollowerType, PartitionType,
	PlanType, ProgramType, RemoteSessionType, RemoteType, RuntimeType, StreamType, TrainerType;

/* ---- plans ------------------------------------------------------------------------------------------------------------- */

/* _native_plan.c: a plan and the data that goes with it */
typedef struct PlanObject {
	PyObject_HEAD
	plan *p;
	plan_data data;
	br_modes ambient; /* modes of the capture */
	bool has_ambient;
	PyObject *calls; /* list of Python callables, by number */
	PyObject *owner; /* the plan whose data this is; NULL: it is its own */
	node_names *names;
} PlanObject;

PlanObject *plan_object_new(plan *p); /* takes p, also on failure */
/* A plan that has the inputs and external values of another under the same ids, and so its data. Takes p. */
PyObject *plan_object_like(PlanObject *o, plan *p);
PyObject *labels(const plan *p, const value_id *v, uint32_t n); /* list of value labels */
/* Values of the symbols of a plan; -1: not given. They go with the call; NULL with an exception. */
int64_t *symbols_at(call *c, const plan *p, const clv_sizes *sizes);

/* _native_stream.c: a list of Streams, which goes with the call; NULL with an exception */
const stream **streams_of(call *c, PyObject *list);

/* _native_checks.c: whether the model still is as it was captured */
bool checks_add_names(PyObject *m); /* types and constants of the module; false with an exception */
clv_status checks_inputs(PyObject *checks, PyObject *tensors); /* which inputs are the same tensor */
clv_status checks_hold(PyObject *checks);                      /* NULL: nothing is checked */

/* _native_frontier.c, _native_pipe.c, _native_emit.c, _native_trace.c: methods of Plan */
#define PLAN_METHOD(name) PyObject *plan_py_##name(PlanObject *o, PyObject *args)
PLAN_METHOD(check);
PLAN_METHOD(choose);
PLAN_METHOD(descriptions);
PLAN_METHOD(dot);
PLAN_METHOD(effects);
PLAN_METHOD(exact);
PLAN_METHOD(exact_like);
PLAN_METHOD(frontiers);
PLAN_METHOD(guards_early);
PLAN_METHOD(guards_first);
PLAN_METHOD(latency);
PLAN_METHOD(match);
PLAN_METHOD(module_sides);
PLAN_METHOD(places);
PLAN_METHOD(same_until);
PLAN_METHOD(staged);
PLAN_METHOD(work);
PyObject *plan_py_html(PlanObject *o, PyObject *args, PyObject *kwargs);
PyObject *plan_py_source(PlanObject *o, PyObject *args, PyObject *kwargs);
PyObject *plan_py_stages_source(PlanObject *o, PyObject *args, PyObject *kwargs);

/* _native_pipe.c: what a PartitionObject costs; borrowed */
const pipe_score *partition_score(PyObject *partition, uint32_t *nstages);

/* _native_emit.c: {effect: name of the first node that has it} */
bool is_guard(const plan *p, node_id n); /* a run may end here, for a value that it compares */
PyObject *effects_of(const plan *p, node_id first, node_id end, bool rebinds);

/* _native_program.c: a part of a plan, ready to run, bound to the live tensors of a model */
/* Tensors (taken) and numbers in the order of the output tree, then the rest of the tensors; a tuple. */
PyObject *wrap_outputs(br_tensor **t, uint32_t ntensors, const run_number *numbers, const uint32_t *places, uint32_t n);
/* list of (dtype, shape, device, requires grad) */
PyObject *values_schema(const plan *p, const value_id *v, uint32_t n);
PlanObject *program_plan(PyObject *program); /* borrowed */
/* The module tensors and constants that a program reads, by value id, after a check that the model is as it was. NULL with
   an exception; they go with the call. */
br_tensor **program_externals(call *c, PyObject *program);
/* A python_fn; ctx is the PlanObject. Called without the GIL. */
clv_status call_python(void *ctx, value_id object, br_tensor *const *args, uint32_t nargs, br_tensor **results,
                       uint32_t nresults);

/* ---- files and servers -------------------------------------------------------------------------------------------------- */

/* _native_trainer.c */
bool read_seed(PyObject *given, bool *has, uint64_t *seed); /* a number to start random draws from, or None */

/* _native_runtime.c: .clv files that were opened, and what runs them */
bool runtime_arguments(PyObject *args, clv_artifact **a, clv_runtime_options *o); /* those of Runtime */
PyObject *ports_to(const clv_port *at, uint32_t n); /* list of (name, dtype, dims, device) */

/* _native_remote.c: clients of a server, and what is known of the link to it */
PyObject *raise_remote(clv_status st);
PyObject *none_or_raise_remote(clv_status st);
bool remote_arguments(PyObject *args, const char **url, clv_remote_options *o); /* those of Remote */
PyObject *times_to(const clv_remote_times *t);
