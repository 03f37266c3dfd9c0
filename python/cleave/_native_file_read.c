/* Payloads: bytes or a file to tensors and Python values. */
#include "_native_file.h"

#include "file/tensors.h"

/* ---- to Python -------------------------------------------------------------------------------------------------- */

typedef struct builder {
	const payload *p;
	PyObject *leaves; /* list of tensors, by number; borrowed */
	uint32_t at;      /* next token */
} builder;

static PyObject *build_value(builder *b);

static PyObject *build_list(builder *b, uint32_t n)
{
	PyObject *list = PyList_New(0); /* grows: n is the file's word */
	for (uint32_t i = 0; list && i < n; i++)
		list_push(&list, build_value(b));
	return list;
}

static PyObject *build_dict(builder *b, uint32_t n)
{
	PyObject *dict = PyDict_New();
	for (uint32_t i = 0; dict && i < n; i += 2) {
		PyObject *key = build_value(b), *item = key ? build_value(b) : NULL;
		if (!item || PyDict_SetItem(dict, key, item) < 0)
			Py_CLEAR(dict);
		Py_XDECREF(key);
		Py_XDECREF(item);
	}
	if (dict && PyDict_GET_SIZE(dict) != n / 2) {
		PyErr_SetString(error_class(E_PAYLOAD), "a dict among the values has the same key twice");
		Py_CLEAR(dict);
	}
	return dict;
}

/* The fields without their names. */
static PyObject *build_fields(builder *b, uint32_t n)
{
	PyObject *list = PyList_New(0);
	for (uint32_t i = 0; list && i < n; i += 2) {
		b->at++;
		list_push(&list, build_value(b));
	}
	PyObject *tuple = list ? PyList_AsTuple(list) : NULL;
	Py_XDECREF(list);
	return tuple;
}

static PyObject *size_of(PyObject *fields)
{
	PyObject *torch = PyImport_ImportModule("torch"), *cls = torch ? PyObject_GetAttrString(torch, "Size") : NULL;
	PyObject *out = cls ? PyObject_CallOneArg(cls, fields) : NULL;
	Py_XDECREF(torch);
	Py_XDECREF(cls);
	return out;
}

static PyObject *build_object(builder *b, const tree *t)
{
	const char *cls = b->p->strs.at[t->u.s].s;
	PyObject *fields = build_fields(b, t->n), *out = NULL;
	if (!fields)
		return NULL;
	if (strcmp(cls, "torch:Size") == 0)
		out = size_of(fields);
	else if (strcmp(cls, "builtins:range") == 0)
		out = PyObject_Call((PyObject *)&PyRange_Type, fields, NULL);
	else
		out = PyObject_Call((PyObject *)&PySlice_Type, fields, NULL);
	Py_DECREF(fields);
	return out;
}

static PyObject *build_tuple(builder *b, uint32_t n)
{
	PyObject *list = build_list(b, n), *tuple = list ? PyList_AsTuple(list) : NULL;
	Py_XDECREF(list);
	return tuple;
}

static PyObject *build_value(builder *b)
{
	const tree *t = &b->p->values.at[b->at++];
	const str *s = t->kind == TREE_INT || t->kind == TREE_STR || t->kind == TREE_BYTES ? &b->p->strs.at[t->u.s] : NULL;
	switch ((tree_kind)t->kind) {
	case TREE_BOOL: return PyBool_FromLong(t->u.b);
	case TREE_INT: return PyLong_FromString(s->s, NULL, 0);
	case TREE_FLOAT: return PyFloat_FromDouble(t->u.f);
	case TREE_COMPLEX: return PyComplex_FromDoubles(t->u.c.re, t->u.c.im);
	case TREE_STR: return PyUnicode_DecodeUTF8(s->s, s->n, NULL);
	case TREE_BYTES: return PyBytes_FromStringAndSize(s->s, s->n);
	case TREE_VALUE: return Py_NewRef(PyList_GET_ITEM(b->leaves, t->u.v));
	case TREE_LIST: return build_list(b, t->n);
	case TREE_TUPLE: return build_tuple(b, t->n);
	case TREE_DICT: return build_dict(b, t->n);
	case TREE_OBJECT: return build_object(b, t);
	default: Py_RETURN_NONE;
	}
}

static PyObject *memory_bytes(const payload *p, uint32_t memory)
{
	tensor_memory *m;
	clv_tensor *bytes;
	clv_status st = memory_load(p, memory, &m);
	if (st != CLV_OK)
		return raise_payload(st);
	int64_t size = (int64_t)m->bytes;
	st = tensor_over(m, m->base, &(tensor_form){.dtype = DT_U8, .ndim = 1, .sizes = &size}, &bytes);
	tensor_memory_unref(m);
	return st == CLV_OK ? core_wrap(bytes) : raise_payload(st);
}

/* All memories, where they are wanted; a list. */
static PyObject *make_memories(const payload *p, PyObject *place_fn)
{
	PyObject *list = PyList_New(0), *placed = NULL;
	for (uint32_t i = 0; list && i < p->memories.n; i++)
		list_push(&list, memory_bytes(p, i));
	if (list)
		placed = PyObject_CallOneArg(place_fn, list);
	Py_XDECREF(list);
	if (placed && (!PyList_Check(placed) || PyList_GET_SIZE(placed) != p->memories.n)) {
		PyErr_SetString(PyExc_TypeError, "place must give a list of as many tensors");
		Py_CLEAR(placed);
	}
	return placed;
}

static PyObject *make_view(const payload *p, uint32_t i, PyObject *memories)
{
	const payload_tensor *t = &p->tensors.at[i];
	br_tensor *made, *bytes = need_tensor(PyList_GET_ITEM(memories, t->memory));
	if (!bytes)
		return NULL;
	tensor_form form = stored_form(t, t->requires_grad);
	clv_status st = br_view_bytes(bytes, (int64_t)(t->offset + p->memories.at[t->memory].lead), &form, &made);
	return st == CLV_OK ? py_wrap(made) : raise_payload(st);
}

/* All tensors; a list. */
static PyObject *make_tensors(const payload *p, PyObject *place_fn)
{
	PyObject *memories = make_memories(p, place_fn), *list = memories ? PyList_New(0) : NULL;
	for (uint32_t i = 0; list && i < p->tensors.n; i++)
		list_push(&list, make_view(p, i, memories));
	Py_XDECREF(memories);
	return list;
}

static PyObject *numbers_to(const payload_number *at, uint32_t n, bool flags)
{
	PyObject *out = PyDict_New();
	for (uint32_t i = 0; out && i < n; i++)
		dict_put(&out, at[i].name, flags ? PyBool_FromLong(at[i].value != 0) : PyLong_FromLongLong(at[i].value));
	return out;
}

static PyObject *texts_to(const char *const *at, uint32_t n)
{
	PyObject *out = PyTuple_New(n);
	for (uint32_t i = 0; out && i < n; i++) {
		PyObject *s = PyUnicode_FromString(at[i]);
		if (s)
			PyTuple_SET_ITEM(out, i, s);
		else
			Py_CLEAR(out);
	}
	return out;
}

static PyObject *schema_to(const payload *p)
{
	PyObject *out = PyList_New(0);
	for (uint32_t i = 0; out && i < p->schema.n; i++) {
		const payload_schema *s = &p->schema.at[i];
		list_push(&out, Py_BuildValue("(ssNsO)", s->label, dtype_name(s->dtype), texts_to(s->dims, s->ndim), s->device,
		                              s->requires_grad ? Py_True : Py_False));
	}
	return out;
}

static PyObject *fields_to(const payload *p)
{
	if (p->kind != PAYLOAD_BOUNDARY)
		Py_RETURN_NONE;
	PyObject *batch = p->has_batch_size ? PyLong_FromLongLong(p->batch_size) : Py_NewRef(Py_None);
	return Py_BuildValue(
		"(ssNNNNLNO)", p->split_id, p->graph_signature, batch, numbers_to(p->sizes.at, p->sizes.n, false), schema_to(p),
		numbers_to(p->requires_grad.at, p->requires_grad.n, true), (long long)p->weight_version,
		texts_to(p->passthrough.at, p->passthrough.n), p->supports_prefix_backward ? Py_True : Py_False);
}

static PyObject *named_to(const payload *p, PyObject *leaves)
{
	PyObject *out = PyDict_New();
	for (uint32_t i = 0; out && i < p->tensors.n; i++)
		if (p->tensors.at[i].boundary &&
		    PyDict_SetItemString(out, p->tensors.at[i].label, PyList_GET_ITEM(leaves, i)) < 0)
			Py_CLEAR(out);
	return out;
}

static PyObject *payload_result(const payload *p, PyObject *place_fn)
{
	PyObject *leaves = make_tensors(p, place_fn);
	if (!leaves)
		return NULL;
	builder b = {p, leaves, 0};
	PyObject *values = build_value(&b), *named = values ? named_to(p, leaves) : NULL,
			 *fields = named ? fields_to(p) : NULL;
	PyObject *lost = fields ? payload_losses(p) : NULL,
			 *out = lost ? PyTuple_Pack(4, fields, named, values, lost) : NULL;
	Py_XDECREF(lost);
	Py_XDECREF(values);
	Py_XDECREF(named);
	Py_XDECREF(fields);
	Py_DECREF(leaves);
	return out;
}

static PyObject *read_bytes(const void *data, size_t n, bool boundary, PyObject *place_fn)
{
	payload *p;
	clv_status st;
	Py_BEGIN_ALLOW_THREADS
	st = payload_read(data, n, boundary ? PAYLOAD_BOUNDARY : PAYLOAD_VALUES, &p);
	Py_END_ALLOW_THREADS
	if (st != CLV_OK)
		return raise_payload(st);
	PyObject *out = payload_result(p, place_fn);
	payload_free(p);
	if (!out)
		blame_payload();
	return out;
}

static PyObject *read_path(const char *path, bool boundary, PyObject *place_fn)
{
	uint8_t *data;
	size_t n;
	clv_status st;
	Py_BEGIN_ALLOW_THREADS
	st = file_read(path, &data, &n);
	Py_END_ALLOW_THREADS
	if (st != CLV_OK)
		return raise_payload(st);
	PyObject *out = read_bytes(data, n, boundary, place_fn);
	mem_free(data);
	return out;
}

/* payload_read(boundary, data, path, place) -> (fields, tensors, values, {label: loss}) */
PyObject *payload_read_py(PyObject *self, PyObject *args)
{
	PyObject *data, *path, *place_fn;
	int boundary;
	Py_buffer bytes;
	if (!PyArg_ParseTuple(args, "pOOO", &boundary, &data, &path, &place_fn))
		return NULL;
	if (path_of(path))
		return read_path(path_of(path), boundary, place_fn);
	if (PyObject_GetBuffer(data, &bytes, PyBUF_SIMPLE) < 0)
		return NULL;
	PyObject *out = read_bytes(bytes.buf, (size_t)bytes.len, boundary, place_fn);
	PyBuffer_Release(&bytes);
	return out;
}

/* ---- files of plain tensors ------------------------------------------------------------------------------------- */

static bool add_array(PyObject *dict, const clv_arrays *from, uint32_t i)
{
	clv_array a = {.size = sizeof a};
	clv_tensor *t;
	clv_status st = clv_arrays_get(from, i, &a);
	if (st == CLV_OK)
		st = clv_tensor_from_data(a.data, a.dtype, a.ndim, a.shape, &t);
	PyObject *tensor = st == CLV_OK ? core_wrap(t) : raise_payload(st);
	bool ok = tensor && PyDict_SetItemString(dict, a.name, tensor) == 0;
	Py_XDECREF(tensor);
	return ok;
}

/* arrays_load(path) -> {name: tensor} of a safetensors or .npy file */
PyObject *arrays_load_py(PyObject *self, PyObject *path)
{
	clv_arrays *arrays;
	clv_status st;
	const char *name = path_of(path);
	if (!name)
		return PyErr_Format(PyExc_TypeError, "a path as bytes is needed");
	Py_BEGIN_ALLOW_THREADS
	st = clv_arrays_load(name, &arrays);
	Py_END_ALLOW_THREADS
	if (st != CLV_OK)
		return raise_payload(st);
	PyObject *out = PyDict_New();
	for (uint32_t i = 0; out && i < clv_arrays_count(arrays); i++)
		if (!add_array(out, arrays, i))
			Py_CLEAR(out);
	clv_arrays_free(arrays);
	return out;
}
