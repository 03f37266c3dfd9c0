/* Lists every Python code object that is entered on this thread, to find out which code a forward runs. */
#include "_native.h"

static int on_event(PyObject *seen, PyFrameObject *called, int what, PyObject *unused)
{
	if (what != PyTrace_CALL)
		return 0;
	PyCodeObject *code = PyFrame_GetCode(called);
	PyObject *number = PyLong_FromVoidPtr(code); /* the hash of a code object goes through all of it */
	int failed = number ? PyDict_SetItem(seen, number, (PyObject *)code) : -1;
	Py_XDECREF(number);
	Py_DECREF(code);
	return failed;
}

/* calls_begin() -> a dict that fills with code objects, by id, until calls_end(); None: somebody else profiles this
   thread */
PyObject *calls_begin_py(PyObject *self, PyObject *unused)
{
	if (PyThreadState_Get()->c_profilefunc)
		Py_RETURN_NONE;
	PyObject *seen = PyDict_New();
	if (seen)
		PyEval_SetProfile(on_event, seen);
	return seen;
}

/* calls_end(): no more are added */
PyObject *calls_end_py(PyObject *self, PyObject *unused)
{
	if (PyThreadState_Get()->c_profilefunc == on_event)
		PyEval_SetProfile(NULL, NULL);
	Py_RETURN_NONE;
}
