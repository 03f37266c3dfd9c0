/* Between Python's tensors and ours. The only part of the bridge that knows Python. */
#pragma once

#include <Python.h>

#include "bridge/bridge.h"

#ifdef __cplusplus
extern "C" {
#endif

bool py_is_tensor(PyObject *o);
br_tensor *py_borrow(PyObject *tensor); /* borrowed from the Python object; NULL: not a defined tensor */
PyObject *py_wrap(br_tensor *t);        /* takes the reference; the tensor's Python object, None for NULL */

#ifdef __cplusplus
}
#endif
