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
	LIST(list, n, build_value(b)); /* grows: n is the file's word */
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
	return as_tuple(list);
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
	case TREE_TUPLE: return as_tuple(build_list(b, t->n));
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
	LIST(list, p->memories.n, memory_bytes(p, i));
	PyObject *placed = list ? PyObject_CallOneArg(place_fn, list) : NULL;
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
	PyObject *memories = make_memories(p, place_fn);
	LIST(list, memories ? p->tensors.n : 0, make_view(p, i, memories));
	if (!memories)
		Py_CLEAR(list);
	Py_XDECREF(memories);
	return list;
}

static PyObject *numbers_to(const payload_number *at, uint32_t n, bool flags)
{
	DICT(out, n, at[i].name, flags ? PyBool_FromLong(at[i].value != 0) : PyLong_FromLongLong(at[i].value));
	return out;
}

static PyObject *schema_to(const payload *p)
{
	const payload_schema *s = p->schema.at;
	LIST(out, p->schema.n,
	     Py_BuildValue("(ssNsO)", s[i].label, dtype_name(s[i].dtype), text_tuple(s[i].dims, s[i].ndim), s[i].device,
	                   truth(s[i].requires_grad)));
	return out;
}

static PyObject *fields_to(const payload *p)
{
	if (p->kind != PAYLOAD_BOUNDARY)
		Py_RETURN_NONE;
	PyObject *batch = p->has_batch_size ? PyLong_FromLongLong(p->batch_size) : Py_NewRef(Py_None);
	return Py_BuildValue("(ssNNNNLNO)", p->split_id, p->graph_signature, batch,
	                     numbers_to(p->sizes.at, p->sizes.n, false), schema_to(p),
	                     numbers_to(p->requires_grad.at, p->requires_grad.n, true), (long long)p->weight_version,
	                     text_tuple(p->passthrough.at, p->passthrough.n), truth(p->supports_prefix_backward));
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
	PyObject *values = build_value(&b);
	PyObject *out =
		values ? Py_BuildValue("(NNON)", fields_to(p), named_to(p, leaves), values, payload_losses(p)) : NULL;
	Py_XDECREF(values);
	Py_DECREF(leaves);
	return out;
}

/* The payload in these bytes, or in a file. */
static clv_status read_from(const char *path, const void *data, size_t n, payload_kind kind, uint8_t **owned,
                            payload **out)
{
	if (path) {
		TRY(file_read(path, owned, &n));
		data = *owned;
	}
	return payload_read(data, n, kind, out);
}

/* payload_read(boundary, data, path, place) -> (fields, tensors, values, {label: loss}) */
PyObject *payload_read_py(PyObject *self, PyObject *args)
{
	call c = {0};
	PyObject *data, *file, *place_fn, *out = NULL;
	bool boundary;
	const void *bytes = NULL;
	size_t n = 0;
	uint8_t *owned = NULL;
	payload *p;
	if (!take(NULL, args, "pOOO", &boundary, &data, &file, &place_fn) ||
	    (!path_of(file) && !take_bytes_of(&c, data, &bytes, &n)))
		return call_end(&c, NULL);
	payload_kind kind = boundary ? PAYLOAD_BOUNDARY : PAYLOAD_VALUES;
	clv_status st = UNLOCKED(read_from(path_of(file), bytes, n, kind, &owned, &p));
	if (payload_ok_or_raise(st)) {
		out = payload_result(p, place_fn);
		payload_free(p);
		if (!out)
			blame_payload();
	}
	mem_free(owned);
	return call_end(&c, out);
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
PyObject *arrays_load_py(PyObject *self, PyObject *args)
{
	clv_arrays *arrays;
	const char *name;
	if (!take(NULL, args, "y", &name) || !payload_ok_or_raise(UNLOCKED(clv_arrays_load(name, &arrays))))
		return NULL;
	PyObject *out = PyDict_New();
	for (uint32_t i = 0; out && i < clv_arrays_count(arrays); i++)
		if (!add_array(out, arrays, i))
			Py_CLEAR(out);
	clv_arrays_free(arrays);
	return out;
}
