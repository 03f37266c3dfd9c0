/* Payloads: Python values to a tree and tensors, and out as bytes or a file. */
#include "_native_file.h"

#include "file/tensors.h"

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

static bool refuse_value(const place *at, const char *fmt, const char *what)
{
	PyObject *where_text = place_text(at), *why = PyUnicode_FromFormat(fmt, what);
	if (where_text && why)
		PyErr_Format(error_class(E_PAYLOAD), "%U %U", where_text, why);
	Py_XDECREF(where_text);
	Py_XDECREF(why);
	return false;
}

static bool writer_push(writer *w, tree t)
{
	enum { MOST = 1 << 24 }; /* lists that hold a list twice, which holds a list twice, … */
	if (w->p->values.n >= MOST)
		return refuse_value(NULL, "has %s parts", "over 2^24");
	return payload_ok_or_raise(vec_push(&w->p->values, t));
}

static bool push_str(writer *w, tree_kind kind, const char *s, Py_ssize_t n)
{
	tree t = {.kind = (uint8_t)kind};
	return payload_ok_or_raise(payload_str(w->p, s, (size_t)n, &t.u.s)) && writer_push(w, t);
}

static bool write_value(writer *w, PyObject *o, const place *at, unsigned depth);

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
	return refuse_value(at, "is a text with %s, which has no place in UTF-8", "half of a surrogate pair");
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
		return writer_push(w, t);
	}
	t.u.v = (uint32_t)PyList_GET_SIZE(w->leaves);
	PyObject *label = make_label(w);
	bool ok = label && new_leaf(w, o, label) && writer_push(w, t);
	Py_XDECREF(label);
	return ok;
}

static bool walk_sequence(writer *w, PyObject *o, tree_kind kind, const place *at, unsigned depth)
{
	PyObject *items = PySequence_Tuple(o); /* a list may change while we look at it */
	bool ok = items && writer_push(w, (tree){.kind = (uint8_t)kind, .n = (uint32_t)PyTuple_GET_SIZE(items)});
	for (Py_ssize_t i = 0; ok && i < PyTuple_GET_SIZE(items); i++)
		ok = write_value(w, PyTuple_GET_ITEM(items, i), &(place){at, NULL, i}, depth + 1);
	Py_XDECREF(items);
	return ok;
}

static bool walk_dict(writer *w, PyObject *o, const place *at, unsigned depth)
{
	PyObject *items = PyDict_Items(o);
	bool ok = items && writer_push(w, (tree){.kind = TREE_DICT, .n = (uint32_t)(2 * PyList_GET_SIZE(items))});
	for (Py_ssize_t i = 0; ok && i < PyList_GET_SIZE(items); i++) {
		PyObject *pair = PyList_GET_ITEM(items, i), *key = PyTuple_GET_ITEM(pair, 0);
		place here = {at, key, 0};
		if (py_is_tensor(key))
			ok = refuse_value(at, "has a key that is %s", "a tensor");
		ok = ok && write_value(w, key, &here, depth + 1) && write_value(w, PyTuple_GET_ITEM(pair, 1), &here, depth + 1);
	}
	Py_XDECREF(items);
	return ok;
}

static bool walk_field(writer *w, const char *name, PyObject *owned, const place *at, unsigned depth)
{
	bool ok = owned && push_str(w, TREE_STR, name, (Py_ssize_t)strlen(name)) && write_value(w, owned, at, depth + 1);
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
		return refuse_value(NULL, "is nested in itself, or %s", "too deep");
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
	return refuse_value(at, "is a %s, which a payload cannot hold", Py_TYPE(o)->tp_name);
}

/* Values of these very types: a subclass would come back as another type. */
static bool write_value(writer *w, PyObject *o, const place *at, unsigned depth)
{
	if (o == Py_None)
		return writer_push(w, (tree){.kind = TREE_NONE});
	if (PyBool_Check(o))
		return writer_push(w, (tree){.kind = TREE_BOOL, .u.b = o == Py_True});
	if (PyLong_CheckExact(o))
		return walk_int(w, o);
	if (PyFloat_CheckExact(o))
		return writer_push(w, (tree){.kind = TREE_FLOAT, .u.f = PyFloat_AS_DOUBLE(o)});
	if (PyComplex_CheckExact(o)) {
		Py_complex c = PyComplex_AsCComplex(o);
		return writer_push(w, (tree){.kind = TREE_COMPLEX, .u.c = {c.real, c.imag}});
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
	PyErr_Format(error_class(E_PAYLOAD), "compression is one of " ENCODINGS ", not %R", wish);
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

bool tensor_of(payload *p, payload_tensor *t, PyObject *original, PyObject *host)
{
	clv_tensor *of = NULL, *here = NULL;
	if (!need_tensor(host))
		return false;
	clv_status st = core_of(py_borrow(original), &of);
	if (st == CLV_OK)
		st = core_of(py_borrow(host), &here);
	if (st == CLV_OK)
		st = tensor_describe(p, of, here, t);
	clv_tensor_free(of);
	clv_tensor_free(here);
	if (st == CLV_OK && t->dtype == DT_COUNT)
		return refuse_dtype(t->label, original);
	if (st != CLV_OK)
		fail_more(st, "tensor \"%.64s\"", t->label);
	return payload_ok_or_raise(st);
}

static bool writer_add_tensor(writer *w, PyObject *original, PyObject *host, PyObject *label, bool boundary,
                              PyObject *compress)
{
	payload_tensor t = {.label = keep_text(w->p, label), .boundary = boundary};
	uint32_t number;
	return t.label && (!boundary || set_wish(&t, compress, label)) && tensor_of(w->p, &t, original, host) &&
	       payload_ok_or_raise(payload_add_tensor(w->p, &t, &number));
}

/* Tensors on other devices are read through copies on the CPU; `hosts` keeps those alive. */
static PyObject *writer_add_tensors(writer *w, PyObject *to_host, PyObject *compress)
{
	PyObject *hosts = PyObject_CallOneArg(to_host, w->leaves);
	Py_ssize_t n = PyList_GET_SIZE(w->leaves);
	bool ok = hosts && PyList_Check(hosts) && PyList_GET_SIZE(hosts) == n;
	if (hosts && !ok)
		PyErr_SetString(PyExc_TypeError, "to_host must give a list of as many tensors");
	for (Py_ssize_t i = 0; ok && i < n; i++) {
		PyObject *original = PyList_GET_ITEM(w->leaves, i), *label = PyList_GET_ITEM(w->labels, i);
		ok = writer_add_tensor(w, original, PyList_GET_ITEM(hosts, i), label, i < PyDict_GET_SIZE(w->named), compress);
	}
	if (!ok)
		Py_CLEAR(hosts);
	return hosts;
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

static clv_status copy_out(const st_image *image, char *to)
{
	st_copy(image, to);
	return CLV_OK;
}

static PyObject *put_out(const st_image *image, const char *path)
{
	if (path)
		return payload_ok_or_raise(UNLOCKED(st_save(image, path))) ? Py_NewRef(Py_None) : NULL;
	PyObject *out = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)image->total);
	if (out)
		(void)UNLOCKED(copy_out(image, PyBytes_AS_STRING(out)));
	return out;
}

static PyObject *write_out(payload *p, const char *path)
{
	st_image image;
	if (!payload_ok_or_raise(UNLOCKED(payload_image(p, &image))))
		return NULL;
	PyObject *bytes = put_out(&image, path);
	st_image_free(&image);
	return bytes ? Py_BuildValue("(NN)", bytes, payload_losses(p)) : NULL;
}

static bool add_named(writer *w)
{
	Py_ssize_t at = 0;
	PyObject *label, *tensor;
	while (PyDict_Next(w->named, &at, &label, &tensor)) {
		if (!PyUnicode_Check(label)) {
			PyErr_Format(PyExc_TypeError, "label %R is no text", label);
			return false;
		}
		if (!need_tensor(tensor) || !new_leaf(w, tensor, label))
			return false;
	}
	return true;
}

static PyObject *write_with(writer *w, PyObject *fields, PyObject *values, PyObject *compress, const char *path,
                            PyObject *to_host)
{
	if (!w->leaves || !w->labels || !w->numbers || !add_named(w) || !write_value(w, values, NULL, 0) ||
	    !fields_from(w->p, fields))
		return NULL;
	PyObject *hosts = writer_add_tensors(w, to_host, compress), *out = hosts ? write_out(w->p, path) : NULL;
	Py_XDECREF(hosts);
	return out;
}

/* payload_write(fields, tensors, values, compress, checksum, path, to_host) -> (bytes, {label: loss}) */
PyObject *payload_write_py(PyObject *self, PyObject *args)
{
	PyObject *fields, *values, *compress, *path, *to_host;
	bool checksum;
	writer w = {0};
	if (!take(NULL, args, "O{OOpOO", &fields, &w.named, &values, &compress, &checksum, &path, &to_host) ||
	    !payload_ok_or_raise(payload_new(fields == Py_None ? PAYLOAD_VALUES : PAYLOAD_BOUNDARY, &w.p)))
		return NULL;
	w.p->unchecked = !checksum;
	w.leaves = PyList_New(0);
	w.labels = PyList_New(0);
	w.numbers = PyDict_New();
	PyObject *out = write_with(&w, fields, values, compress, path_of(path), to_host);
	payload_free(w.p);
	Py_XDECREF(w.leaves);
	Py_XDECREF(w.labels);
	Py_XDECREF(w.numbers);
	if (!out)
		blame_payload();
	return out;
}
