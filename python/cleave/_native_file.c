/* Payloads: Python values to a payload's tree and tensors, and back. What a payload may be is decided in src/file. */
#include "_native.h"

#include "file/payload.h"

/* Everything that is wrong with a payload is one class of error; no memory and no file are others. */
static PyObject *raise_payload(clv_status st)
{
	if (st == CLV_E_NOMEM || st == CLV_E_IO)
		return raise_status(st);
	if (!PyErr_Occurred())
		PyErr_SetString(error_class(E_PAYLOAD), clv_last_error());
	return NULL;
}

/* What Python itself refused (a surrogate in a text, a range of step 0) becomes an error about the payload. */
static void blame_payload(void)
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
static const char *path_of(PyObject *path)
{
	return PyBytes_Check(path) ? PyBytes_AS_STRING(path) : NULL;
}

/* ---- from Python ------------------------------------------------------------------------------------------------ */

/* Where a value is, for errors: values[2]['a']. */
typedef struct place {
	const struct place *up;
	PyObject *key; /* borrowed; NULL: index */
	Py_ssize_t index;
} place;

typedef struct writer {
	payload *p;
	PyObject *leaves;  /* list of tensors, by number */
	PyObject *labels;  /* list of their labels */
	PyObject *numbers; /* dict: id of tensor -> number */
	PyObject *named;   /* borrowed: dict of the tensors that have labels */
	uint32_t extra;    /* tensors that got a label here */
} writer;

static PyObject *place_text(const place *at)
{
	if (!at)
		return PyUnicode_FromString("the value");
	PyObject *head = at->up ? place_text(at->up) : PyUnicode_FromString("values"), *text;
	text = at->key ? PyUnicode_FromFormat("%U[%R]", head, at->key) : PyUnicode_FromFormat("%U[%zd]", head, at->index);
	Py_XDECREF(head);
	return text;
}

static bool refuse(const place *at, const char *fmt, const char *what)
{
	PyObject *where_text = place_text(at), *why = PyUnicode_FromFormat(fmt, what);
	if (where_text && why)
		PyErr_Format(error_class(E_PAYLOAD), "%U %U", where_text, why);
	Py_XDECREF(where_text);
	Py_XDECREF(why);
	return false;
}

static bool ok_or_raise(clv_status st)
{
	if (st != CLV_OK)
		raise_payload(st);
	return st == CLV_OK;
}

static bool push(writer *w, tree t)
{
	enum { MOST = 1 << 24 }; /* lists that hold a list twice, which holds a list twice, … */
	if (w->p->values.n >= MOST)
		return refuse(NULL, "has %s parts", "over 2^24");
	return ok_or_raise(vec_push(&w->p->values, t));
}

static bool push_str(writer *w, tree_kind kind, const char *s, Py_ssize_t n)
{
	tree t = {.kind = (uint8_t)kind};
	return ok_or_raise(payload_str(w->p, s, (size_t)n, &t.u.s)) && push(w, t);
}

static bool walk(writer *w, PyObject *o, const place *at, unsigned depth);

static bool walk_int(writer *w, PyObject *o)
{
	int overflow;
	Py_ssize_t n;
	PyLong_AsLongLongAndOverflow(o, &overflow);
	PyObject *text = PyNumber_ToBase(o, overflow ? 16 : 10);
	const char *s = text ? PyUnicode_AsUTF8AndSize(text, &n) : NULL;
	bool ok = s && push_str(w, TREE_INT, s, n);
	Py_XDECREF(text);
	return ok;
}

static bool walk_str(writer *w, PyObject *o, const place *at)
{
	Py_ssize_t n;
	const char *s = PyUnicode_AsUTF8AndSize(o, &n);
	if (s)
		return push_str(w, TREE_STR, s, n);
	if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError))
		return false;
	PyErr_Clear();
	return refuse(at, "is a text with %s, which has no place in UTF-8", "half of a surrogate pair");
}

static bool new_leaf(writer *w, PyObject *tensor, PyObject *label)
{
	PyObject *id = PyLong_FromVoidPtr(tensor), *number = PyLong_FromSsize_t(PyList_GET_SIZE(w->leaves));
	bool ok = id && number && label && PyDict_SetItem(w->numbers, id, number) == 0 &&
	          PyList_Append(w->leaves, tensor) == 0 && PyList_Append(w->labels, label) == 0;
	Py_XDECREF(id);
	Py_XDECREF(number);
	return ok;
}

/* A label for a tensor that has none: its number, or values.<number> where labels are the user's. */
static PyObject *make_label(writer *w)
{
	for (;;) {
		const char *fmt = w->p->kind == PAYLOAD_BOUNDARY ? "values.%u" : "%u";
		PyObject *label = PyUnicode_FromFormat(fmt, w->extra++);
		int taken = label ? PyDict_Contains(w->named, label) : 0;
		if (taken == 0)
			return label;
		Py_DECREF(label);
		if (taken < 0)
			return NULL;
	}
}

static bool walk_tensor(writer *w, PyObject *o)
{
	PyObject *id = PyLong_FromVoidPtr(o), *number = id ? PyDict_GetItemWithError(w->numbers, id) : NULL;
	tree t = {.kind = TREE_VALUE};
	Py_XDECREF(id);
	if (PyErr_Occurred())
		return false;
	if (number) {
		t.u.v = (uint32_t)PyLong_AsUnsignedLong(number);
		return push(w, t);
	}
	t.u.v = (uint32_t)PyList_GET_SIZE(w->leaves);
	PyObject *label = make_label(w);
	bool ok = label && new_leaf(w, o, label) && push(w, t);
	Py_XDECREF(label);
	return ok;
}

static bool walk_sequence(writer *w, PyObject *o, tree_kind kind, const place *at, unsigned depth)
{
	PyObject *items = PySequence_Tuple(o); /* a list may change while we look at it */
	bool ok = items && push(w, (tree){.kind = (uint8_t)kind, .n = (uint32_t)PyTuple_GET_SIZE(items)});
	for (Py_ssize_t i = 0; ok && i < PyTuple_GET_SIZE(items); i++)
		ok = walk(w, PyTuple_GET_ITEM(items, i), &(place){at, NULL, i}, depth + 1);
	Py_XDECREF(items);
	return ok;
}

static bool walk_dict(writer *w, PyObject *o, const place *at, unsigned depth)
{
	PyObject *items = PyDict_Items(o);
	bool ok = items && push(w, (tree){.kind = TREE_DICT, .n = (uint32_t)(2 * PyList_GET_SIZE(items))});
	for (Py_ssize_t i = 0; ok && i < PyList_GET_SIZE(items); i++) {
		PyObject *pair = PyList_GET_ITEM(items, i), *key = PyTuple_GET_ITEM(pair, 0);
		place here = {at, key, 0};
		if (py_is_tensor(key))
			ok = refuse(at, "has a key that is %s", "a tensor");
		ok = ok && walk(w, key, &here, depth + 1) && walk(w, PyTuple_GET_ITEM(pair, 1), &here, depth + 1);
	}
	Py_XDECREF(items);
	return ok;
}

static bool walk_field(writer *w, const char *name, PyObject *owned, const place *at, unsigned depth)
{
	bool ok = owned && push_str(w, TREE_STR, name, (Py_ssize_t)strlen(name)) && walk(w, owned, at, depth + 1);
	Py_XDECREF(owned);
	return ok;
}

static bool push_object(writer *w, const char *cls, uint32_t fields)
{
	return push_str(w, TREE_OBJECT, cls, (Py_ssize_t)strlen(cls)) &&
	       (w->p->values.at[w->p->values.n - 1].n = 2 * fields, true);
}

static bool walk_slice(writer *w, PyObject *o, const char *cls, const place *at, unsigned depth)
{
	static const char *const names[] = {"start", "stop", "step"};
	bool ok = push_object(w, cls, 3);
	for (int i = 0; ok && i < 3; i++)
		ok = walk_field(w, names[i], PyObject_GetAttrString(o, names[i]), at, depth);
	return ok;
}

static bool walk_size(writer *w, PyObject *o, const place *at, unsigned depth)
{
	bool ok = push_object(w, "torch:Size", (uint32_t)PyTuple_GET_SIZE(o));
	for (Py_ssize_t i = 0; ok && i < PyTuple_GET_SIZE(o); i++) {
		char name[24];
		snprintf(name, sizeof name, "%zd", i);
		ok = walk_field(w, name, Py_NewRef(PyTuple_GET_ITEM(o, i)), at, depth);
	}
	return ok;
}

static bool walk_container(writer *w, PyObject *o, const place *at, unsigned depth)
{
	if (depth >= PAYLOAD_DEPTH)
		return refuse(NULL, "is nested in itself, or %s", "too deep");
	if (PyList_CheckExact(o))
		return walk_sequence(w, o, TREE_LIST, at, depth);
	if (PyTuple_CheckExact(o))
		return walk_sequence(w, o, TREE_TUPLE, at, depth);
	if (PyDict_CheckExact(o))
		return walk_dict(w, o, at, depth);
	if (PySlice_Check(o))
		return walk_slice(w, o, "builtins:slice", at, depth);
	if (PyRange_Check(o))
		return walk_slice(w, o, "builtins:range", at, depth);
	if (PyTuple_Check(o) && strcmp(Py_TYPE(o)->tp_name, "torch.Size") == 0)
		return walk_size(w, o, at, depth);
	return refuse(at, "is a %s, which a payload cannot hold", Py_TYPE(o)->tp_name);
}

/* Values of these very types: a subclass would come back as another type. */
static bool walk(writer *w, PyObject *o, const place *at, unsigned depth)
{
	if (o == Py_None)
		return push(w, (tree){.kind = TREE_NONE});
	if (PyBool_Check(o))
		return push(w, (tree){.kind = TREE_BOOL, .u.b = o == Py_True});
	if (PyLong_CheckExact(o))
		return walk_int(w, o);
	if (PyFloat_CheckExact(o))
		return push(w, (tree){.kind = TREE_FLOAT, .u.f = PyFloat_AS_DOUBLE(o)});
	if (PyComplex_CheckExact(o)) {
		Py_complex c = PyComplex_AsCComplex(o);
		return push(w, (tree){.kind = TREE_COMPLEX, .u.c = {c.real, c.imag}});
	}
	if (PyUnicode_CheckExact(o))
		return walk_str(w, o, at);
	if (PyBytes_CheckExact(o))
		return push_str(w, TREE_BYTES, PyBytes_AS_STRING(o), PyBytes_GET_SIZE(o));
	if (py_is_tensor(o))
		return walk_tensor(w, o);
	return walk_container(w, o, at, depth);
}

/* ---- tensors ---------------------------------------------------------------------------------------------------- */

static bool set_wish(payload_tensor *t, PyObject *compress, PyObject *label)
{
	PyObject *wish = compress;
	if (PyDict_Check(compress)) {
		wish = PyDict_GetItemWithError(compress, label);
		t->must = wish != NULL;
	}
	if (!wish || wish == Py_None)
		return !PyErr_Occurred();
	const char *name = PyUnicode_Check(wish) ? PyUnicode_AsUTF8(wish) : NULL;
	if (name && encoding_parse(name, &t->wish) && t->wish != ENC_PLAIN)
		return true;
	PyErr_Format(error_class(E_PAYLOAD), "compression is one of fp16, bf16, int8, not %R", wish);
	return false;
}

static bool refuse_dtype(const char *label, PyObject *tensor)
{
	PyObject *type = PyObject_GetAttrString(tensor, "dtype");
	if (type)
		PyErr_Format(error_class(E_PAYLOAD), "tensor \"%s\": a payload cannot hold dtype %S", label, type);
	Py_XDECREF(type);
	return false;
}

static bool add_tensor(writer *w, PyObject *original, PyObject *host, PyObject *label, bool boundary,
                       PyObject *compress)
{
	payload_tensor t = {.label = PyUnicode_AsUTF8(label), .boundary = boundary};
	br_meta before, meta;
	br_memory memory;
	uint32_t number;
	if (!t.label || !need_tensor(host) || !set_wish(&t, compress, label))
		return false;
	clv_status st = br_meta_get(py_borrow(original), &before);
	if (st == CLV_OK)
		st = br_meta_get(py_borrow(host), &meta);
	if (st == CLV_OK && meta.dtype == DT_COUNT)
		return refuse_dtype(t.label, host);
	if (st == CLV_OK)
		st = br_memory_get(py_borrow(host), &memory);
	if (st != CLV_OK) {
		fail_more(st, "tensor \"%.64s\"", t.label);
		return ok_or_raise(st);
	}
	t.dtype = (dtype)meta.dtype;
	t.device = before.device;
	t.requires_grad = before.requires_grad;
	t.ndim = meta.ndim;
	t.sizes = meta.sizes;
	t.strides = meta.strides;
	t.data = memory.data;
	t.storage = memory.base;
	return ok_or_raise(payload_add_tensor(w->p, &t, &number));
}

/* Tensors on other devices are read through copies on the CPU; `hosts` keeps those alive. */
static PyObject *add_tensors(writer *w, PyObject *to_host, PyObject *compress)
{
	PyObject *hosts = PyObject_CallOneArg(to_host, w->leaves);
	Py_ssize_t n = PyList_GET_SIZE(w->leaves);
	bool ok = hosts && PyList_Check(hosts) && PyList_GET_SIZE(hosts) == n;
	for (Py_ssize_t i = 0; ok && i < n; i++) {
		PyObject *original = PyList_GET_ITEM(w->leaves, i), *label = PyList_GET_ITEM(w->labels, i);
		ok = add_tensor(w, original, PyList_GET_ITEM(hosts, i), label, i < PyDict_GET_SIZE(w->named), compress);
	}
	if (!ok)
		Py_CLEAR(hosts);
	return hosts;
}

/* ---- fields ----------------------------------------------------------------------------------------------------- */

static const char *keep(payload *p, PyObject *o)
{
	Py_ssize_t n;
	const char *s, *kept = NULL;
	if (!PyUnicode_Check(o)) {
		PyErr_Format(PyExc_TypeError, "%R is no text", o);
		return NULL;
	}
	s = PyUnicode_AsUTF8AndSize(o, &n);
	return s && ok_or_raise(payload_text(p, s, (size_t)n, &kept)) ? kept : NULL;
}

static bool number_from(payload *p, PyObject *key, PyObject *o, payload_number *out)
{
	out->name = keep(p, key);
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
		if (!ok_or_raise(flags ? vec_push(&p->requires_grad, n) : vec_push(&p->sizes, n)))
			return false;
	}
	return true;
}

static bool dims_from(payload *p, PyObject *dims, payload_schema *s)
{
	s->ndim = (uint32_t)PyTuple_GET_SIZE(dims);
	const char **texts = s->ndim <= PAYLOAD_NDIM ? arena_alloc(&p->arena, s->ndim * sizeof *texts) : NULL;
	for (uint32_t i = 0; texts && i < s->ndim; i++)
		if (!(texts[i] = keep(p, PyTuple_GET_ITEM(dims, i))))
			return false;
	s->dims = texts;
	return texts || ok_or_raise(fail(CLV_E_INVALID, "a schema has %u dimensions", s->ndim));
}

static bool schema_from(payload *p, PyObject *o)
{
	PyObject *label, *type, *dims, *device;
	int grad;
	payload_schema s = {0};
	if (!PyArg_ParseTuple(o, "UUO!Up", &label, &type, &PyTuple_Type, &dims, &device, &grad))
		return false;
	const char *name = PyUnicode_AsUTF8(type);
	if (!name || !dtype_parse(name, strlen(name), &s.dtype)) {
		if (!PyErr_Occurred())
			PyErr_Format(PyExc_ValueError, "%U has dtype %R, which is none; f32, i64 and the like are", label, type);
		return false;
	}
	s.label = keep(p, label);
	s.device = keep(p, device);
	s.requires_grad = grad;
	return s.label && s.device && dims_from(p, dims, &s) && ok_or_raise(vec_push(&p->schema, s));
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
		const char *label = keep(p, PyTuple_GET_ITEM(tuple, i));
		if (!label || !ok_or_raise(vec_push(&p->passthrough, label)))
			return false;
	}
	return true;
}

static bool fields_from(payload *p, PyObject *fields)
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
	const char *id = keep(p, split), *sign = id ? keep(p, signature) : NULL;
	if (!sign)
		return false;
	p->split_id = id;
	p->graph_signature = sign;
	return numbers_from(p, sizes, false) && numbers_from(p, grad, true) && schemas_from(p, schema) &&
	       passthrough_from(p, through);
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

static PyObject *losses(const payload *p)
{
	PyObject *out = PyDict_New();
	for (uint32_t i = 0; out && i < p->tensors.n; i++) {
		const payload_tensor *t = &p->tensors.at[i];
		const payload_memory *m = &p->memories.at[t->memory];
		if (m->encoding == ENC_PLAIN)
			continue;
		PyObject *loss = Py_BuildValue("(sdd)", encoding_names[m->encoding], m->loss.absolute, m->loss.relative);
		if (!loss || PyDict_SetItemString(out, t->label, loss) < 0)
			Py_CLEAR(out);
		Py_XDECREF(loss);
	}
	return out;
}

static PyObject *put_out(const st_image *image, const char *path)
{
	PyObject *out;
	clv_status st = CLV_OK;
	if (!path) {
		out = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)image->total);
		if (!out)
			return NULL;
		char *to = PyBytes_AS_STRING(out);
		Py_BEGIN_ALLOW_THREADS
		st_copy(image, to);
		Py_END_ALLOW_THREADS
		return out;
	}
	Py_BEGIN_ALLOW_THREADS
	st = st_save(image, path);
	Py_END_ALLOW_THREADS
	return st == CLV_OK ? Py_NewRef(Py_None) : raise_payload(st);
}

static PyObject *write_out(payload *p, const char *path)
{
	st_image image;
	clv_status st = payload_image(p, &image);
	if (st != CLV_OK)
		return raise_payload(st);
	PyObject *bytes = put_out(&image, path), *lost = bytes ? losses(p) : NULL;
	st_image_free(&image);
	PyObject *out = lost ? PyTuple_Pack(2, bytes, lost) : NULL;
	Py_XDECREF(bytes);
	Py_XDECREF(lost);
	return out;
}

static bool add_named(writer *w)
{
	Py_ssize_t at = 0;
	PyObject *label, *tensor;
	while (PyDict_Next(w->named, &at, &label, &tensor))
		if (!need_tensor(tensor) || !PyUnicode_Check(label) || !new_leaf(w, tensor, label))
			return false;
	return true;
}

static PyObject *write_with(writer *w, PyObject *fields, PyObject *values, PyObject *compress, const char *path,
                            PyObject *to_host)
{
	if (!w->leaves || !w->labels || !w->numbers || !add_named(w) || !walk(w, values, NULL, 0) ||
	    !fields_from(w->p, fields))
		return NULL;
	PyObject *hosts = add_tensors(w, to_host, compress), *out = hosts ? write_out(w->p, path) : NULL;
	Py_XDECREF(hosts);
	return out;
}

PyObject *payload_write_py(PyObject *self, PyObject *args)
{
	PyObject *fields, *tensors, *values, *compress, *path, *to_host;
	writer w = {0};
	(void)self;
	if (!PyArg_ParseTuple(args, "OO!OOOO", &fields, &PyDict_Type, &tensors, &values, &compress, &path, &to_host))
		return NULL;
	clv_status st = payload_new(fields == Py_None ? PAYLOAD_VALUES : PAYLOAD_BOUNDARY, &w.p);
	if (st != CLV_OK)
		return raise_payload(st);
	w.leaves = PyList_New(0);
	w.labels = PyList_New(0);
	w.numbers = PyDict_New();
	w.named = tensors;
	PyObject *out = write_with(&w, fields, values, compress, path_of(path), to_host);
	payload_free(w.p);
	Py_XDECREF(w.leaves);
	Py_XDECREF(w.labels);
	Py_XDECREF(w.numbers);
	if (!out)
		blame_payload();
	return out;
}

/* ---- to Python -------------------------------------------------------------------------------------------------- */

typedef struct builder {
	const payload *p;
	PyObject *leaves; /* list of tensors, by number; borrowed */
	uint32_t at;      /* next token */
} builder;

static PyObject *build(builder *b);

static PyObject *build_list(builder *b, uint32_t n)
{
	PyObject *list = PyList_New(0); /* grows: n is the file's word */
	for (uint32_t i = 0; list && i < n; i++) {
		PyObject *item = build(b);
		if (!item || PyList_Append(list, item) < 0)
			Py_CLEAR(list);
		Py_XDECREF(item);
	}
	return list;
}

static PyObject *build_dict(builder *b, uint32_t n)
{
	PyObject *dict = PyDict_New();
	for (uint32_t i = 0; dict && i < n; i += 2) {
		PyObject *key = build(b), *item = key ? build(b) : NULL;
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
		PyObject *item = build(b);
		if (!item || PyList_Append(list, item) < 0)
			Py_CLEAR(list);
		Py_XDECREF(item);
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

static PyObject *build(builder *b)
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

/* The bytes of every memory as a tensor of bytes. */
static clv_status fill_memories(const payload *p, clv_tensor **out)
{
	for (uint32_t i = 0; i < p->memories.n; i++) {
		void *data;
		TRY(br_bytes_new(p->memories.at[i].nbytes, &out[i], &data));
		TRY(payload_fill(p, i, data));
	}
	return CLV_OK;
}

static bool append_view(const payload_tensor *t, clv_tensor *const *memories, PyObject *list, PyObject *flags)
{
	clv_tensor *made;
	br_view v = {(uint8_t)t->dtype, t->ndim, t->sizes, t->strides, (int64_t)t->offset};
	clv_status st = br_view_bytes(memories[t->memory], &v, &made);
	if (st != CLV_OK)
		return ok_or_raise(st);
	PyObject *o = py_wrap(made);
	bool ok = o && PyList_Append(list, o) == 0 && PyList_Append(flags, t->requires_grad ? Py_True : Py_False) == 0;
	Py_XDECREF(o);
	return ok;
}

static bool make_views(const payload *p, PyObject *list, PyObject *flags)
{
	clv_tensor **memories = PyMem_Calloc((size_t)p->memories.n + 1, sizeof *memories);
	bool ok = memories && ok_or_raise(fill_memories(p, memories));
	for (uint32_t i = 0; ok && i < p->tensors.n; i++)
		ok = append_view(&p->tensors.at[i], memories, list, flags);
	tensors_free(memories, p->memories.n);
	return ok;
}

/* All tensors, where they are wanted and with their grad flags; a list. */
static PyObject *make_tensors(const payload *p, PyObject *place_fn)
{
	PyObject *list = PyList_New(0), *flags = PyList_New(0), *placed = NULL;
	if (list && flags && make_views(p, list, flags))
		placed = PyObject_CallFunctionObjArgs(place_fn, list, flags, NULL);
	if (placed && (!PyList_Check(placed) || PyList_GET_SIZE(placed) != p->tensors.n)) {
		PyErr_SetString(PyExc_TypeError, "place must give a list of as many tensors");
		Py_CLEAR(placed);
	}
	Py_XDECREF(list);
	Py_XDECREF(flags);
	return placed;
}

static PyObject *numbers_to(const payload_number *at, uint32_t n, bool flags)
{
	PyObject *out = PyDict_New();
	for (uint32_t i = 0; out && i < n; i++) {
		PyObject *o = flags ? PyBool_FromLong(at[i].value != 0) : PyLong_FromLongLong(at[i].value);
		if (!o || PyDict_SetItemString(out, at[i].name, o) < 0)
			Py_CLEAR(out);
		Py_XDECREF(o);
	}
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
		PyObject *one = Py_BuildValue("(ssNsO)", s->label, dtype_name(s->dtype), texts_to(s->dims, s->ndim), s->device,
		                              s->requires_grad ? Py_True : Py_False);
		if (!one || PyList_Append(out, one) < 0)
			Py_CLEAR(out);
		Py_XDECREF(one);
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

static PyObject *result(const payload *p, PyObject *place_fn)
{
	PyObject *leaves = make_tensors(p, place_fn);
	if (!leaves)
		return NULL;
	builder b = {p, leaves, 0};
	PyObject *values = build(&b), *named = values ? named_to(p, leaves) : NULL, *fields = named ? fields_to(p) : NULL;
	PyObject *lost = fields ? losses(p) : NULL, *out = lost ? PyTuple_Pack(4, fields, named, values, lost) : NULL;
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
	clv_status st = payload_read(data, n, boundary ? PAYLOAD_BOUNDARY : PAYLOAD_VALUES, &p);
	if (st != CLV_OK)
		return raise_payload(st);
	PyObject *out = result(p, place_fn);
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

PyObject *payload_read_py(PyObject *self, PyObject *args)
{
	PyObject *data, *path, *place_fn;
	int boundary;
	Py_buffer bytes;
	(void)self;
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

/* ---- checking --------------------------------------------------------------------------------------------------- */

static bool facts_of(payload *p, PyObject *tensors, payload_tensor *out)
{
	for (uint32_t i = 0; i < p->schema.n; i++) {
		br_meta m;
		PyObject *t = PyDict_GetItemString(tensors, p->schema.at[i].label);
		if (!t || !need_tensor(t))
			return !PyErr_Occurred() && ok_or_raise(fail(CLV_E_INPUT, "%s is missing", p->schema.at[i].label));
		if (!ok_or_raise(br_meta_get(py_borrow(t), &m)))
			return false;
		if (!m.strided || m.dtype == DT_COUNT)
			return ok_or_raise(fail(CLV_E_INPUT, "%s: it is no plain tensor", p->schema.at[i].label));
		out[i] = (payload_tensor){.label = p->schema.at[i].label, .dtype = (dtype)m.dtype, .ndim = m.ndim};
		out[i].requires_grad = m.requires_grad;
		if (!ok_or_raise(payload_ints(p, m.sizes, m.ndim, &out[i].sizes)) ||
		    !ok_or_raise(payload_ints(p, m.strides, m.ndim, &out[i].strides)) ||
		    !ok_or_raise(payload_text(p, m.device, strlen(m.device), &out[i].device)))
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
		return ok_or_raise(fail_nomem());
	return facts_of(p, tensors, got) &&
	       ok_or_raise(schema_check(p->schema.at, got, p->schema.n, p->sizes.at, p->sizes.n));
}

PyObject *payload_check_py(PyObject *self, PyObject *args)
{
	PyObject *schema, *tensors, *sizes;
	payload *p;
	(void)self;
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
