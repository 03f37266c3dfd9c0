/* Payloads: errors and the fields of a boundary, which reading and writing share, and the check against a schema. What a
 * payload may be is decided in src/file. */
#include "_native_file.h"

/* Everything that is wrong with a payload is one class of error; no memory and no file are others. */
PyObject *raise_payload(clv_status st)
{
	return raise_as(st == CLV_E_NOMEM || st == CLV_E_IO ? (long)st : E_PAYLOAD);
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
	return st == CLV_OK || raise_payload(st) != NULL;
}

PyObject *payload_losses(const payload *p)
{
	PyObject *out = PyDict_New();
	for (uint32_t i = 0; out && i < p->tensors.n; i++) {
		const payload_memory *m = &p->memories.at[p->tensors.at[i].memory];
		if (m->encoding != ENC_PLAIN)
			dict_put(
				&out, p->tensors.at[i].label,
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
	PyObject *label, *dims, *device;
	const char *type;
	payload_schema s = {0};
	if (!take(NULL, o, "Os(Op", &label, &type, &dims, &device, &s.requires_grad))
		return false;
	if (!dtype_parse(type, strlen(type), &s.dtype)) {
		PyErr_Format(PyExc_ValueError, "%S has dtype '%s', which is none; f32, i64 and the like are", label, type);
		return false;
	}
	s.label = keep_text(p, label);
	s.device = keep_text(p, device);
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
	if (fields == Py_None)
		return true;
	if (!take(NULL, fields, "OOO{[{L(p", &split, &signature, &batch, &sizes, &schema, &grad, &p->weight_version,
	          &through, &p->supports_prefix_backward))
		return false;
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

bool facts_from(call *c, PyObject *fields, boundary_facts *out)
{
	PyObject *batch, *dict, *key, *o;
	Py_ssize_t at = 0;
	*out = (boundary_facts){0};
	if (!take(c, fields, "ssO{S", &out->split_id, &out->signature, &batch, &dict, &out->labels, &out->nlabels))
		return false;
	out->has_batch_size = size_from(batch, &out->batch_size);
	payload_number *sizes = call_room(c, (size_t)PyDict_GET_SIZE(dict), sizeof *sizes);
	out->sizes = sizes;
	while (sizes && PyDict_Next(dict, &at, &key, &o))
		if (PyUnicode_Check(key) && size_from(o, &sizes[out->nsizes].value) &&
		    !(sizes[out->nsizes++].name = text_of(key)))
			return false;
	return sizes != NULL;
}

/* (split or None, signatures or None, [(size, low, high, whether it is the batch)], labels or None) */
static bool want_from(call *c, PyObject *fields, boundary_want *out)
{
	PyObject *ranges;
	*out = (boundary_want){0};
	if (!take(c, fields, "zS[S", &out->split_id, &out->signatures, &out->nsignatures, &ranges, &out->labels,
	          &out->nlabels))
		return false;
	out->nsizes = (uint32_t)PyList_GET_SIZE(ranges);
	boundary_range *sizes = call_room(c, out->nsizes, sizeof *sizes);
	out->sizes = sizes;
	for (uint32_t i = 0; sizes && i < out->nsizes; i++)
		if (!take(NULL, PyList_GET_ITEM(ranges, i), "sLLp", &sizes[i].name, &sizes[i].low, &sizes[i].high,
		          &sizes[i].is_batch))
			return false;
	return sizes != NULL;
}

/* boundary_check(what is wanted, what a boundary says): (split, signature, batch, sizes, labels) */
PyObject *boundary_check_py(PyObject *self, PyObject *args)
{
	call c = {0};
	PyObject *wanted, *given;
	boundary_want want;
	boundary_facts got;
	bool ok = take(NULL, args, "((", &wanted, &given) && want_from(&c, wanted, &want) && facts_from(&c, given, &got);
	return call_end(&c, ok ? none_or_raise(boundary_check(&want, &got)) : NULL);
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
	if (!take(NULL, args, "[{{", &schema, &tensors, &sizes) || !payload_ok_or_raise(payload_new(PAYLOAD_BOUNDARY, &p)))
		return NULL;
	bool ok = check_with(p, schema, tensors, sizes);
	payload_free(p);
	if (!ok)
		blame_payload();
	return ok ? Py_NewRef(Py_None) : NULL;
}
