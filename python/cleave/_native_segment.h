/* Compiled segments between Python and C. */
#pragma once

#include "_native.h"

#include "exec/code.h"

/* A segment of (first, end, back end, [(low, high) per symbol], order of inputs, of outputs, {member: bytes}[, {need: text}]);
   everything is borrowed from it. False with an exception; segment_clear in any case. */
bool segment_read(PyObject *item, artifact_segment *out);
void segment_clear(artifact_segment *s);
