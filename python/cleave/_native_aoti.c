/* Aoti: code of AOTInductor alone, as the back end `inductor` runs it. For tests, and for looking at what was compiled. */
#include "_native.h"

typedef struct AotiObject {
	PyObject_HEAD
	br_aoti *m;
} AotiObject;

static void aoti_py_dealloc(AotiObject *o)
{
	br_aoti_free(o->m);
	Py_TYPE(o)->tp_free((PyObject *)o);
}

/* Aoti(bytes of a shared object, device) */
static PyObject *aoti_py_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	Py_buffer data;
	const char *device;
	br_aoti *m = NULL;
	clv_status st;
	(void)kwargs;
	if (!PyArg_ParseTuple(args, "y*s", &data, &device))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	st = br_aoti_load(data.buf, (size_t)data.len, device, &m);
	Py_END_ALLOW_THREADS
	PyBuffer_Release(&data);
	if (st != CLV_OK)
		return raise_status(st);
	AotiObject *o = (AotiObject *)type->tp_alloc(type, 0);
	if (o)
		o->m = m;
	else
		br_aoti_free(m);
	return (PyObject *)o;
}

static PyObject *tuple_of(clv_tensor **tensors, uint32_t n) /* takes the references */
{
	PyObject *out = PyTuple_New(n);
	for (uint32_t i = 0; i < n; i++) {
		PyObject *t = out ? py_wrap(tensors[i]) : NULL;
		if (!out)
			br_unref(tensors[i]);
		else if (t)
			PyTuple_SET_ITEM(out, i, t);
		else
			Py_CLEAR(out);
	}
	return out;
}

/* run(tensors) -> outputs */
static PyObject *aoti_py_run(AotiObject *o, PyObject *seq)
{
	Py_ssize_t n;
	uint32_t ninputs, noutputs;
	clv_status st;
	clv_tensor **inputs = tensor_array(seq, &n);
	if (!inputs)
		return NULL;
	br_aoti_count(o->m, &ninputs, &noutputs);
	clv_tensor **outputs = PyMem_Calloc(noutputs + 1, sizeof *outputs);
	PyObject *out = NULL;
	if (!outputs || (uint32_t)n != ninputs) {
		st = outputs ? fail(CLV_E_INVALID, "the code takes %u tensors, not %zd", ninputs, n) : fail_nomem();
	} else {
		Py_BEGIN_ALLOW_THREADS
		st = br_aoti_run(o->m, inputs, outputs);
		Py_END_ALLOW_THREADS
	}
	out = st == CLV_OK ? tuple_of(outputs, noutputs) : raise_status(st);
	PyMem_Free(outputs);
	tensors_free(inputs, n);
	return out;
}

static PyMethodDef aoti_methods[] = {{"run", (PyCFunction)aoti_py_run, METH_O, "run(tensors) -> outputs"},
                                     {NULL, NULL, 0, NULL}};

PyTypeObject AotiType = {PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cleave._native.Aoti",
                         .tp_basicsize = sizeof(AotiObject),
                         .tp_flags = Py_TPFLAGS_DEFAULT,
                         .tp_new = aoti_py_new,
                         .tp_dealloc = (destructor)aoti_py_dealloc,
                         .tp_methods = aoti_methods};
