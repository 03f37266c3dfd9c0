/* Shared by the files of the extension: errors, tensors of sequences, the three types. */
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
void where(char *out, size_t n);  /* the user's source line */
/* Appends an item, which is taken. NULL, or no memory: an exception is set, and *list is released and NULL. */
void list_push(PyObject **list, PyObject *item);
void dict_put(PyObject **dict, const char *key, PyObject *item); /* likewise */
PyObject *int_list(const int64_t *at, Py_ssize_t n);
PyObject *int_tuple(const int64_t *at, Py_ssize_t n);
/* The texts of a list of str or bytes, and a NULL after them; borrowed from it; PyMem_Free; NULL with an exception. */
const char *text_of(PyObject *o); /* of a str, or the bytes of a bytes, without NULs; borrowed from it */
const char **string_array(PyObject *list, uint32_t *n);
br_tensor *need_tensor(PyObject *o); /* borrowed; NULL with TypeError */
void tensors_free(br_tensor **t, Py_ssize_t n);
/* New references to the tensors of a sequence; None gives NULL. The caller frees with tensors_free. */
br_tensor **tensor_array(PyObject *seq, Py_ssize_t *n);
/* The same as tensors of the core, which runtimes take: the caller frees with core_free. */
clv_tensor **core_array(PyObject *seq, Py_ssize_t *n);
void core_free(clv_tensor **t, Py_ssize_t n);
clv_status core_of(PyObject *tensor, clv_tensor **out); /* of one that need_tensor took */
PyObject *core_wrap(clv_tensor *t);                     /* takes the reference; None for NULL */

/* _native_stream.c: one recorded forward */
typedef struct StreamObject {
	PyObject_HEAD
	stream *s;
} StreamObject;

extern PyTypeObject StreamType;

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

extern PyTypeObject PlanType;
PlanObject *plan_object_new(plan *p); /* takes p, also on failure */
/* A plan that has the inputs and external values of another under the same ids, and so its data. Takes p. */
PyObject *plan_object_like(PlanObject *o, plan *p);
int visit_one(PyObject *x, visitproc visit, void *ctx);         /* for tp_traverse; NULL is allowed */
PyObject *take_string(clv_status st, char *s);                  /* frees s; NULL with an exception */
PyObject *take_text(clv_status st, strbuf *b);                  /* what was written to b, likewise; b is empty then */
PyObject *labels(const plan *p, const value_id *v, uint32_t n); /* list of value labels */
int64_t *int_array(PyObject *list, Py_ssize_t *n);              /* PyMem_Free; check PyErr_Occurred */

/* _native_checks.c: whether the model still is as it was captured */
extern PyTypeObject ChecksType;
bool checks_add_names(PyObject *m); /* types and constants of the module; false with an exception */
clv_status checks_inputs(PyObject *checks, PyObject *tensors); /* which inputs are the same tensor */
clv_status checks_hold(PyObject *checks);                      /* NULL: nothing is checked */

/* _native_frontier.c: methods of Plan. sizes is a dict of symbol to int; an objective has the fields of clv_objective */
PyObject *plan_py_frontiers(PlanObject *o, PyObject *args); /* ([sizes]) */
PyObject *plan_py_work(PlanObject *o, PyObject *args);      /* ([sizes]): operations of a run */
PyObject *plan_py_choose(PlanObject *o, PyObject *args);    /* (boundary, objective[, sizes]) */
PyObject *plan_py_check(PlanObject *o, PyObject *args);     /* (which, objective[, sizes]) */
PyObject *plan_py_latency(PlanObject *o, PyObject *args);   /* (which, objective[, sizes]) */
PyObject *plan_py_exact(PlanObject *o, PyObject *args);     /* (must_prefix, must_suffix[, sizes]) */
PyObject *plan_py_exact_like(PlanObject *o, PyObject *args);
PyObject *plan_py_guards_early(PlanObject *o, PyObject *args); /* (position, most) */
PyObject *plan_py_guards_first(PlanObject *o, PyObject *end);
PyObject *plan_py_match(PlanObject *o, PyObject *args);
PyObject *plan_py_same_until(PlanObject *o, PyObject *args);
PyObject *plan_py_module_sides(PlanObject *o, PyObject *args);

typedef struct size_list {
	const char **names; /* borrowed from the dict */
	int64_t *values;
	uint32_t n;
} size_list;

bool size_list_read(PyObject *dict, size_list *out); /* or None; false with an exception; size_list_free in any case */
void size_list_free(size_list *s);

/* _native_pipe.c: blocks of a plan, plans cut into stages */
extern PyTypeObject BlocksType, PartitionType;
/* What a PartitionObject costs; borrowed. */
const pipe_score *partition_score(PyObject *partition, uint32_t *nstages);
uint32_t *id_array(PyObject *list, uint32_t n, const char *what); /* n small numbers, one per `what`; as int_array */
PyObject *id_list_new(const uint32_t *ids, uint32_t n);
double *float_array(PyObject *list);                     /* likewise */
PyObject *plan_py_staged(PlanObject *o, PyObject *args); /* (stage of each node, how many stages) */

/* _native_emit.c: generated source, pictures, the report */
PyObject *plan_py_dot(PlanObject *o, PyObject *args, PyObject *kwargs);
PyObject *plan_py_source(PlanObject *o, PyObject *args, PyObject *kwargs);
PyObject *plan_py_stages_source(PlanObject *o, PyObject *args, PyObject *kwargs);
PyObject *plan_py_html(PlanObject *o, PyObject *args, PyObject *kwargs);
PyObject *plan_py_places(PlanObject *o, PyObject *args);
PyObject *plan_py_effects(PlanObject *o, PyObject *args);
PyObject *effects_of(const plan *p, node_id first, node_id end, bool rebinds);

/* _native_program.c: a part of a plan, ready to run, bound to the live tensors of a model */
extern PyTypeObject ProgramType;
/* Tensors (taken) and numbers in the order of the output tree, then the rest of the tensors; a tuple. */
PyObject *wrap_outputs(br_tensor **t, uint32_t ntensors, const run_number *numbers, const uint32_t *places, uint32_t n);
PyObject *values_schema(const plan *p, const value_id *v,
                        uint32_t n); /* list of (dtype, shape, device, requires grad) */

PlanObject *program_plan(PyObject *program); /* borrowed */
/* The module tensors and constants that a program reads, by value id, after a check that the model is as it was. NULL with
   an exception; the caller frees with tensors_free. */
br_tensor **program_externals(PyObject *program, Py_ssize_t *n);
/* A python_fn; ctx is the PlanObject. Called without the GIL. */
clv_status call_python(void *ctx, value_id object, br_tensor *const *args, uint32_t nargs, br_tensor **results,
                       uint32_t nresults);

/* _native_trace.c: compiled segments */
PyObject *plan_py_descriptions(PlanObject *o, PyObject *unused); /* per node: names on its path, inputs, outputs */

/* _native_code.c: back ends, and code without a plan around it */
extern PyTypeObject CodeType;

/* _native_dispatch.c: which plan serves a call */
extern PyTypeObject DispatcherType;

/* _native_runtime.c: .clv files that were opened, and what runs them */
extern PyTypeObject ArtifactType, RuntimeType;
bool runtime_arguments(PyObject *args, clv_artifact **a, clv_runtime_options *o); /* those of Runtime */
PyObject *ports_to(const clv_port *at, uint32_t n); /* list of (name, dtype, dims, device) */

/* _native_trainer.c: suffixes that train from a file */
extern PyTypeObject TrainerType;

/* _native_remote.c: clients of a server, and what is known of the link to it */
extern PyTypeObject RemoteType, RemoteSessionType, LinkType;
clv_remote *remote_of(PyObject *o); /* borrowed, of a Remote */
PyObject *times_to(const clv_remote_times *t);
PyObject *raise_remote(clv_status st);
bool remote_arguments(PyObject *args, const char **url, clv_remote_options *o); /* those of Remote */
PyObject *result_to(clv_tensor **outputs, uint32_t n,
                    const clv_remote_times *t); /* (outputs, times); takes the outputs */

/* _native_follow.c: calls that follow the link */
extern PyTypeObject FollowerType;
