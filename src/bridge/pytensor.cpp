// Wraps and unwraps Python tensors.
#include <torch/csrc/autograd/python_variable.h>

#include "bridge/impl.hpp"
#include "bridge/pytensor.h"

bool py_is_tensor(PyObject *o)
{
	return THPVariable_Check(o);
}

br_tensor *py_borrow(PyObject *tensor)
{
	if (!THPVariable_Check(tensor))
		return nullptr;
	const at::Tensor &t = THPVariable_Unpack(tensor);
	return t.defined() ? reinterpret_cast<br_tensor *>(t.unsafeGetTensorImpl()) : nullptr;
}

PyObject *py_wrap(br_tensor *t)
{
	if (!t)
		Py_RETURN_NONE;
	try {
		return THPVariable_Wrap(bridge::take(t));
	} catch (const std::exception &e) {
		if (!PyErr_Occurred())
			PyErr_SetString(PyExc_RuntimeError, e.what());
		return nullptr;
	}
}
