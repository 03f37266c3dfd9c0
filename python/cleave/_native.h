/* What the files of the extension share: errors, tensors of sequences, the three types. */
#ifndef CLEAVE_NATIVE_H
#define CLEAVE_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

#include "bridge/pytensor.h"
#include "capture/capture.h"
#include "exec/program.h"
#include "pipe/pipe.h"

/* _native.c */
PyObject *raise_status(clv_status st);    /* sets the exception of a status; always NULL */
PyObject *none_or_raise(clv_status st);   /* None for CLV_OK */
bool ok_or_raise(clv_status st);          /* true for CLV_OK, false with an exception */
enum { E_PAYLOAD = -1, E_ARTIFACT = -2 }; /* as status numbers: classes of errors about payloads and .clv files */
PyObject *error_class(long code);         /* borrowed; RuntimeError before the classes are set */
void where(char *out, size_t n);          /* the user's source line */
/* Appends an item, which is taken. NULL, or no memory: an exception is set, and *list is released and NULL. */
void list_push(PyObject **list, PyObject *item);
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
PyObject *stream_compare_py(PyObject *self, PyObject *args);
PyObject *stream_align_py(PyObject *self, PyObject *args);
PyObject *stream_data_points_py(PyObject *self, PyObject *args);

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
PyObject *plan_build_py(PyObject *self, PyObject *args);
PyObject *plan_parse_py(PyObject *self, PyObject *text);
/* A plan that has the inputs and external values of another under the same ids, and so its data. Takes p. */
PyObject *plan_object_like(PlanObject *o, plan *p);
int visit_one(PyObject *x, visitproc visit, void *ctx);         /* for tp_traverse; NULL is allowed */
PyObject *take_string(clv_status st, char *s);                  /* frees s; NULL with an exception */
PyObject *take_text(clv_status st, strbuf *b);                  /* what was written to b, likewise; b is empty then */
PyObject *labels(const plan *p, const value_id *v, uint32_t n); /* list of value labels */
int64_t *int_array(PyObject *list, Py_ssize_t *n);              /* PyMem_Free; check PyErr_Occurred */

/* _native_file.c: payloads */
PyObject *payload_write_py(PyObject *self, PyObject *args);
PyObject *payload_read_py(PyObject *self, PyObject *args);
PyObject *arrays_load_py(PyObject *self, PyObject *path);
PyObject *payload_check_py(PyObject *self, PyObject *args);
PyObject *boundary_check_py(PyObject *self, PyObject *args);
/* _native_checks.c: whether the model still is as it was captured */
extern PyTypeObject ChecksType;
bool checks_add_names(PyObject *m); /* types and constants of the module; false with an exception */
clv_status checks_inputs(PyObject *checks, PyObject *tensors); /* which inputs are the same tensor */
clv_status checks_hold(PyObject *checks);                      /* NULL: nothing is checked */
PyObject *same_items_py(PyObject *self, PyObject *args);
/* _native_program.c: likewise, and the modes around the call */
PyObject *check_model_py(PyObject *self, PyObject *args);
/* _native_calls.c: what code runs */
PyObject *calls_begin_py(PyObject *self, PyObject *unused);
PyObject *calls_end_py(PyObject *self, PyObject *unused);
/* _native_backend.c: back ends in Python */
PyObject *register_backend_py(PyObject *self, PyObject *args);
/* _native_artifact.c: .clv files */
PyObject *artifact_save_py(PyObject *self, PyObject *args);
PyObject *weight_digest_py(PyObject *self, PyObject *args);
/* _native_frontier.c: methods of Plan. sizes is a dict of symbol to int; an objective has the fields of clv_objective */
PyObject *plan_py_frontiers(PlanObject *o, PyObject *args); /* ([sizes]) */
PyObject *plan_py_work(PlanObject *o, PyObject *args);      /* ([sizes]): operations of a run */
PyObject *plan_py_choose(PlanObject *o, PyObject *args);    /* (boundary, objective[, sizes]) */
PyObject *plan_py_check(PlanObject *o, PyObject *args);     /* (which, objective[, sizes]) */
PyObject *plan_py_latency(PlanObject *o, PyObject *args);   /* (which, objective[, sizes]) */
PyObject *speed_load(PyObject *module, PyObject *path);
PyObject *plan_py_exact(PlanObject *o, PyObject *args); /* (must_prefix, must_suffix[, sizes]) */
PyObject *plan_py_exact_like(PlanObject *o, PyObject *args);
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

const char **string_array(PyObject *list, uint32_t *n); /* borrowed from the list; PyMem_Free; NULL with an exception */

/* _native_pipe.c: blocks of a plan, plans cut into stages */
extern PyTypeObject BlocksType, PartitionType;
/* What a PartitionObject costs; borrowed. */
const pipe_score *partition_score(PyObject *partition, uint32_t *nstages);
uint32_t *id_array(PyObject *list, uint32_t n, const char *what); /* n small numbers, one per `what`; as int_array */
PyObject *id_list_new(const uint32_t *ids, uint32_t n);
double *float_array(PyObject *list);                     /* likewise */
PyObject *plan_py_staged(PlanObject *o, PyObject *args); /* (stage of each node, how many stages) */

/* _native_text.c: text for people */
PyObject *text_bytes_py(PyObject *self, PyObject *number);
PyObject *text_count_py(PyObject *self, PyObject *number);
PyObject *text_columns_py(PyObject *self, PyObject *args); /* (rows of str, right) */
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
PyObject *trace_py(PyObject *self, PyObject *args);
PyObject *split_job_py(PyObject *self, PyObject *args);
PyObject *warm_compilers_py(PyObject *self, PyObject *none);
PyObject *artifact_resave_py(PyObject *self, PyObject *args);
PyObject *difference_py(PyObject *self, PyObject *args);
PyObject *trace_segments_py(PyObject *self, PyObject *args);
PyObject *trace_html_py(PyObject *self, PyObject *args);
PyObject *marks_py(PyObject *self, PyObject *args);
PyObject *marks_changed_py(PyObject *self, PyObject *args);
PyObject *trace_report_py(PyObject *self, PyObject *args);

/* _native_script.c: parts of a traced file, for TorchScript */
PyObject *segment_save_py(PyObject *self, PyObject *args);
PyObject *nodes_save_py(PyObject *self, PyObject *args);
PyObject *nodes_values_py(PyObject *self, PyObject *args);
PyObject *plan_values_py(PyObject *self, PyObject *args);
PyObject *segment_trust_py(PyObject *self, PyObject *code);

/* _native_profile.c: what blocks take, measured, estimated, and in files; spreads and memory of any callable */
PyObject *profile_blocks_py(PyObject *self, PyObject *args);
PyObject *profile_read_py(PyObject *self, PyObject *path);
PyObject *sign_py(PyObject *self, PyObject *args);
PyObject *new_key_py(PyObject *self, PyObject *path);
PyObject *profile_write_py(PyObject *self, PyObject *args);
PyObject *spread_py(PyObject *self, PyObject *list);
PyObject *peak_memory_py(PyObject *self, PyObject *args);
PyObject *estimate_blocks_py(PyObject *self, PyObject *args);

/* _native_code.c: back ends, and code without a plan around it */
extern PyTypeObject CodeType;
PyObject *backend_version_py(PyObject *self, PyObject *name);
PyObject *backend_check_args_py(PyObject *self, PyObject *args);
PyObject *backend_support_py(PyObject *self, PyObject *args);
PyObject *openvino_set_folder_py(PyObject *self, PyObject *folder);

/* _native_dispatch.c: which plan serves a call */
extern PyTypeObject DispatcherType;

/* _native_runtime.c: .clv files that were opened, and what runs them */
extern PyTypeObject ArtifactType, RuntimeType;

#endif
