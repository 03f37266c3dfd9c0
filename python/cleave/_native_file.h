/* Shared by the files about payloads. */
#pragma once

#include "_native.h"

#include "file/artifact.h"

PyObject *raise_payload(clv_status st);  /* sets the exception; always NULL */
bool payload_ok_or_raise(clv_status st); /* true for CLV_OK */
void blame_payload(void);                /* an exception of Python's own becomes an error about the payload */
const char *path_of(PyObject *path);     /* borrowed */
const char *keep_text(payload *p, PyObject *s);
/* Fills in where a tensor's data is, how it is laid out and where it was; `host` is the tensor, or its copy on the CPU. */
bool tensor_of(payload *p, payload_tensor *t, PyObject *original, PyObject *host);
bool fields_from(payload *p, PyObject *fields); /* None, or the tuple that _native.pyi calls Fields */
PyObject *payload_losses(const payload *p);     /* {label: (method, absolute, relative)} */

clv_status checks_asked(PyObject *checks, artifact_plan *to); /* what the forward asked of its inputs */
PyObject *artifact_object(struct clv_artifact *a);            /* takes it, also on failure */

bool facts_from(call *c, PyObject *fields, boundary_facts *out); /* what a boundary says; goes with the call */

/* _native_artifact.c */
bool add_points(artifact_plan *e, PyObject *points);
bool add_notes(artifact *a, PyObject *notes);
