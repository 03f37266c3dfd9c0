/* Payloads: errors and the fields of a boundary, which reading and writing share, and the check against a schema. What a
 * payload may be is decided in src/file. */
#include "_native_file.h"

/* Everything that is wrong with a payload is one class of error; no memory and no file are others. */
PyObject *raise_payload(clv_status st)
{
	if (st == CLV_E_NOMEM || st == CLV_E_IO)
		return raise_status(st);
	if (!PyErr_Occurred())
		PyErr_SetString(error_class(E_PAYLOAD), clv_last_error());
	return NULL;
}

/* What Python itself refused (a surrogate in a text, a range of step 0) becomes an error about the payload. */
void blame_payload(void)
{
	PyObject *type, *error, *trace;
	if (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_MemoryError) || PyErr_ExceptionMatches(PyExc_OSError) ||
	    PyErr_ExceptionMatches(error_class(E_PAYLOAD)) || !PyErr_ExceptionMatches(PyExc_Exception))
		return;
	PyErr_Fetch(&type, &error, &trace);
	PyErr_Format(error_class(E_PAYLOAD), "a payload cannot hold this: %S", error ? error : type);
	Py_XDECREF(type);
	Py_XDECREF(error);
	Py_XDECREF(trace);
}

/* A path comes as the bytes that the system has for it; NULL for None. */
const char *path_of(PyObject *path)
{
	return PyBytes_Check(path) ? PyBytes_AS_STRING(path) : NULL;
}

bool payload_ok_or_raise(clv_status st)
{
	if (st != CLV_OK)
		raise_payload(st);
	return st == CLV_OK;
}

PyObject *payload_losses(const payload *p)
{
	PyObject *out = PyDict_New();
	for (uint32_t i = 0; out && i < p->tensors.n; i++) {
		const payload_tensor *t = &p->tensors.at[i];
		const payload_memory *m = &p->memories.at[t->memory];
		if (m->encoding == ENC_PLAIN)
			continue;
		dict_put(&out, t->label,
		         Py_BuildValue("(sddd)", encoding_names[m->encoding], m->loss.absolute, m->loss.relative, m->loss.l2));
	}
	return out;
}

/* ---- fields ----------------------------------------------------------------------------------------------------- */

const char *keep_text(payload *p, PyObject *o)
{
	Py_ssize_t n;
	const char *s, *kept = NULL;
	if (!PyUnicode_Check(o)) {
		PyErr_Format(PyExc_TypeError, "%R is no text", o);
		return NULL;
	}
	s = PyUnicode_AsUTF8AndSize(o, &n);
	return s && payload_ok_or_raise(payload_text(p, s, (size_t)n, &kept)) ? kept : NULL;
}

static bool number_from(payload *p, PyObject *key, PyObject *o, payload_number *out)
{
	out->name = keep_text(p, key);
	out->value = out->name ? PyLong_AsLongLong(o) : 0;
	return out->name && !PyErr_Occurred();
}

static bool numbers_from(payload *p, PyObject *dict, bool flags)
{
	Py_ssize_t at = 0;
	PyObject *key, *o;
	while (PyDict_Next(dict, &at, &key, &o)) {
		payload_number n;
		if (!number_from(p, key, o, &n))
			return false;
		if (!flags && n.value < 0) {
			PyErr_Format(PyExc_ValueError, "size %U is %lld", key, (long long)n.value);
			return false;
		}
		if (!payload_ok_or_raise(flags ? vec_push(&p->requires_grad, n) : vec_push(&p->sizes, n)))
			return false;
	}
	return true;
}

static bool dims_from(payload *p, PyObject *dims, payload_schema *s)
{
	s->ndim = (uint32_t)PyTuple_GET_SIZE(dims);
	const char **texts = s->ndim <= PAYLOAD_NDIM ? arena_alloc(&p->arena, s->ndim * sizeof *texts) : NULL;
	for (uint32_t i = 0; texts && i < s->ndim; i++)
		if (!(texts[i] = keep_text(p, PyTuple_GET_ITEM(dims, i))))
			return false;
	s->dims = texts;
	return texts || payload_ok_or_raise(fail(CLV_E_INVALID, "a schema has %u dimensions", s->ndim));
}

static bool schema_from(payload *p, PyObject *o)
{
	PyObject *label, *type, *dims, *device;
	int grad;
	payload_schema s = {0};
	if (!PyArg_ParseTuple(o, "UUO!Up", &label, &type, &PyTuple_Type, &dims, &device, &grad))
		return false;
	Py_ssize_t n;
	const char *name = PyUnicode_AsUTF8AndSize(type, &n);
	if (!name || !dtype_parse(name, (size_t)n, &s.dtype)) {
		if (!PyErr_Occurred())
			PyErr_Format(PyExc_ValueError, "%U has dtype %R, which is none; f32, i64 and the like are", label, type);
		return false;
	}
	s.label = keep_text(p, label);
	s.device = keep_text(p, device);
	s.requires_grad = grad;
	return s.label && s.device && dims_from(p, dims, &s) && payload_ok_or_raise(vec_push(&p->schema, s));
}

static bool schemas_from(payload *p, PyObject *list)
{
	for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++)
		if (!schema_from(p, PyList_GET_ITEM(list, i)))
			return false;
	return true;
}

static bool passthrough_from(payload *p, PyObject *tuple)
{
	for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
		const char *label = keep_text(p, PyTuple_GET_ITEM(tuple, i));
		if (!label || !payload_ok_or_raise(vec_push(&p->passthrough, label)))
			return false;
	}
	return true;
}

bool fields_from(payload *p, PyObject *fields)
{
	PyObject *split, *signature, *batch, *sizes, *schema, *grad, *through;
	long long version;
	int backward;
	if (fields == Py_None)
		return true;
	if (!PyArg_ParseTuple(fields, "UUOO!O!O!LO!p", &split, &signature, &batch, &PyDict_Type, &sizes, &PyList_Type,
	                      &schema, &PyDict_Type, &grad, &version, &PyTuple_Type, &through, &backward))
		return false;
	p->weight_version = version;
	p->supports_prefix_backward = backward;
	p->has_batch_size = batch != Py_None;
	if (p->has_batch_size)
		p->batch_size = PyLong_AsLongLong(batch);
	if (PyErr_Occurred() || (p->has_batch_size && p->batch_size < 0)) {
		if (!PyErr_Occurred())
			PyErr_Format(PyExc_ValueError, "batch_size is %R", batch);
		return false;
	}
	const char *id = keep_text(p, split), *sign = id ? keep_text(p, signature) : NULL;
	if (!sign)
		return false;
	p->split_id = id;
	p->graph_signature = sign;
	return numbers_from(p, sizes, false) && numbers_from(p, grad, true) && schemas_from(p, schema) &&
	       passthrough_from(p, through);
}

/* ---- checking --------------------------------------------------------------------------------------------------- */

/* Numbers alone are sizes; what C has no number for is as large as can be. */
static bool size_from(PyObject *o, int64_t *out)
{
	int over = 0;
	if (!PyLong_CheckExact(o))
		return false;
	*out = PyLong_AsLongLongAndOverflow(o, &over);
	if (over)
		*out = over > 0 ? INT64_MAX : INT64_MIN;
	return true;
}

bool facts_from(PyObject *fields, boundary_facts *out)
{
	PyObject *split_id, *signature, *batch, *dict, *labels, *key, *o;
	Py_ssize_t at = 0;
	*out = (boundary_facts){0};
	if (!PyArg_ParseTuple(fields, "UUOO!O!", &split_id, &signature, &batch, &PyDict_Type, &dict, &PyList_Type,
	                      &labels) ||
	    !(out->split_id = text_of(split_id)) || !(out->signature = text_of(signature)))
		return false;
	out->has_batch_size = size_from(batch, &out->batch_size);
	payload_number *sizes = PyMem_Calloc((size_t)PyDict_GET_SIZE(dict) + 1, sizeof *sizes);
	out->sizes = sizes;
	while (sizes && PyDict_Next(dict, &at, &key, &o))
		if (PyUnicode_Check(key) && size_from(o, &sizes[out->nsizes].value) &&
		    !(sizes[out->nsizes++].name = text_of(key)))
			return false;
	out->labels = sizes ? string_array(labels, &out->nlabels) : (const char **)PyErr_NoMemory();
	return out->labels != NULL;
}

void facts_free(boundary_facts *f)
{
	PyMem_Free((void *)f->sizes);
	PyMem_Free((void *)f->labels);
}

static bool want_from(PyObject *fields, boundary_want *out)
{
	PyObject *signatures, *ranges, *labels;
	*out = (boundary_want){0};
	if (!PyArg_ParseTuple(fields, "zOO!O", &out->split_id, &signatures, &PyList_Type, &ranges, &labels))
		return false;
	boundary_range *sizes = PyMem_Calloc((size_t)PyList_GET_SIZE(ranges) + 1, sizeof *sizes);
	out->sizes = sizes;
	out->nsizes = (uint32_t)PyList_GET_SIZE(ranges);
	for (uint32_t i = 0; sizes && i < out->nsizes; i++) {
		long long low, high;
		int is_batch;
		if (!PyArg_ParseTuple(PyList_GET_ITEM(ranges, i), "sLLp", &sizes[i].name, &low, &high, &is_batch))
			return false;
		sizes[i].low = low;
		sizes[i].high = high;
		sizes[i].is_batch = is_batch;
	}
	if (!sizes)
		return PyErr_NoMemory() != NULL;
	return (!PyList_Check(signatures) || (out->signatures = string_array(signatures, &out->nsignatures))) &&
	       (!PyList_Check(labels) || (out->labels = string_array(labels, &out->nlabels)));
}

/* boundary_check((split or None, signatures or None, [(size, low, high, whether it is the batch)], labels or None),
   (split, signature, batch, sizes, labels)) */
PyObject *boundary_check_py(PyObject *self, PyObject *args)
{
	PyObject *wanted, *given, *out = NULL;
	boundary_want want = {0};
	boundary_facts got = {0};
	if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &wanted, &PyTuple_Type, &given))
		return NULL;
	if (want_from(wanted, &want) && facts_from(given, &got))
		out = none_or_raise(boundary_check(&want, &got));
	facts_free(&got);
	PyMem_Free((void *)want.sizes);
	PyMem_Free((void *)want.signatures);
	PyMem_Free((void *)want.labels);
	return out;
}

static bool tensor_facts(payload *p, PyObject *tensors, payload_tensor *out)
{
	for (uint32_t i = 0; i < p->schema.n; i++) {
		br_meta m;
		PyObject *t = PyDict_GetItemString(tensors, p->schema.at[i].label);
		if (!t || !need_tensor(t))
			return !PyErr_Occurred() && payload_ok_or_raise(fail(CLV_E_INPUT, "%s is missing", p->schema.at[i].label));
		if (!payload_ok_or_raise(br_meta_get(py_borrow(t), &m)))
			return false;
		if (!m.strided || m.dtype == DT_COUNT)
			return payload_ok_or_raise(fail(CLV_E_INPUT, "%s: it is no plain tensor", p->schema.at[i].label));
		out[i] = (payload_tensor){.label = p->schema.at[i].label, .dtype = (dtype)m.dtype, .ndim = m.ndim};
		out[i].requires_grad = m.requires_grad;
		if (!payload_ok_or_raise(payload_ints(p, m.sizes, m.ndim, &out[i].sizes)) ||
		    !payload_ok_or_raise(payload_ints(p, m.strides, m.ndim, &out[i].strides)) ||
		    !payload_ok_or_raise(payload_text(p, m.device, strlen(m.device), &out[i].device)))
			return false;
	}
	return true;
}

static bool check_with(payload *p, PyObject *schema, PyObject *tensors, PyObject *sizes)
{
	if (!schemas_from(p, schema) || !numbers_from(p, sizes, false))
		return false;
	payload_tensor *got = arena_alloc(&p->arena, p->schema.n * sizeof *got);
	if (!got)
		return payload_ok_or_raise(fail_nomem());
	return tensor_facts(p, tensors, got) &&
	       payload_ok_or_raise(schema_check(p->schema.at, got, p->schema.n, p->sizes.at, p->sizes.n));
}

PyObject *payload_check_py(PyObject *self, PyObject *args)
{
	PyObject *schema, *tensors, *sizes;
	payload *p;
	if (!PyArg_ParseTuple(args, "O!O!O!", &PyList_Type, &schema, &PyDict_Type, &tensors, &PyDict_Type, &sizes))
		return NULL;
	clv_status st = payload_new(PAYLOAD_BOUNDARY, &p);
	if (st != CLV_OK)
		return raise_payload(st);
	bool ok = check_with(p, schema, tensors, sizes);
	payload_free(p);
	if (!ok)
		blame_payload();
	return ok ? Py_NewRef(Py_None) : NULL;
}
