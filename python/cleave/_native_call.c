/* What all wrappers do: arguments of Python become those of C, results of C become those of Python. */
#include "_native.h"

/* ---- what a call owns ------------------------------------------------------------------------------------------------- */

bool call_keep(call *c, void (*drop)(void *, uint32_t), void *at, uint32_t n)
{
	uint32_t room = c->many ? c->room : sizeof c->few / sizeof *c->few;
	if (c->n == room) {
		struct made *more = PyMem_Calloc(2 * room, sizeof *more);
		if (!more) {
			drop(at, n);
			return PyErr_NoMemory() != NULL;
		}
		memcpy(more, c->many ? c->many : c->few, room * sizeof *more);
		PyMem_Free(c->many);
		c->many = more;
		c->room = 2 * room;
	}
	(c->many ? c->many : c->few)[c->n++] = (struct made){drop, at, n};
	return true;
}

PyObject *call_end(call *c, PyObject *out)
{
	while (c->n) {
		const struct made *m = &(c->many ? c->many : c->few)[--c->n];
		m->drop(m->at, m->n);
	}
	PyMem_Free(c->many);
	c->many = NULL;
	return out;
}

static void drop_memory(void *at, uint32_t n)
{
	PyMem_Free(at);
}

void call_drop_tensors(void *at, uint32_t n)
{
	tensors_free(at, n);
}

static void drop_core(void *at, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		clv_tensor_free(((clv_tensor **)at)[i]);
	PyMem_Free(at);
}

static void drop_object(void *at, uint32_t n)
{
	Py_DECREF((PyObject *)at);
}

static void drop_buffer(void *at, uint32_t n)
{
	PyBuffer_Release(at);
	PyMem_Free(at);
}

void *call_room(call *c, size_t n, size_t each)
{
	void *at = PyMem_Calloc(n + 1, each);
	if (!at)
		return PyErr_NoMemory();
	return call_keep(c, drop_memory, at, 0) ? at : NULL;
}

clv_tensor **call_tensors(call *c, uint32_t n)
{
	clv_tensor **at = PyMem_Calloc((size_t)n + 1, sizeof *at);
	if (!at)
		return (clv_tensor **)PyErr_NoMemory();
	return call_keep(c, drop_core, at, n) ? at : NULL;
}

/* ---- arrays ------------------------------------------------------------------------------------------------------------- */

const char *text_of(PyObject *o)
{
	char *bytes;
	Py_ssize_t n;
	if (PyBytes_Check(o))
		return PyBytes_AsStringAndSize(o, &bytes, NULL) == 0 ? bytes : NULL;
	const char *text = PyUnicode_AsUTF8AndSize(o, &n);
	if (text && strlen(text) != (size_t)n)
		raise_status(fail(CLV_E_INPUT, "%.64s… has a NUL, and no name has one", text));
	return text && !PyErr_Occurred() ? text : NULL;
}

br_tensor *need_tensor(PyObject *o)
{
	br_tensor *t = py_borrow(o);
	if (!t)
		PyErr_Format(PyExc_TypeError, "a tensor is needed, not %s", Py_TYPE(o)->tp_name);
	return t;
}

void tensors_free(br_tensor **t, uint32_t n)
{
	for (uint32_t i = 0; t && i < n; i++)
		br_unref(t[i]);
	PyMem_Free(t);
}

br_tensor **tensor_array(PyObject *seq, uint32_t *n)
{
	PyObject *fast = PySequence_Fast(seq, "a sequence of tensors is needed");
	if (!fast)
		return NULL;
	*n = (uint32_t)PySequence_Fast_GET_SIZE(fast);
	br_tensor **out = PyMem_Calloc((size_t)*n + 1, sizeof *out);
	for (uint32_t i = 0; out && i < *n; i++) {
		PyObject *o = PySequence_Fast_GET_ITEM(fast, i);
		if (o == Py_None)
			continue;
		if (!need_tensor(o)) {
			tensors_free(out, *n);
			out = NULL;
		} else {
			out[i] = br_ref(py_borrow(o));
		}
	}
	Py_DECREF(fast);
	if (!out && !PyErr_Occurred())
		PyErr_NoMemory();
	return out;
}

clv_status core_of(br_tensor *tensor, clv_tensor **out)
{
	return br_give(br_ref(tensor), out);
}

static clv_tensor **core_array(PyObject *seq, uint32_t *n)
{
	br_tensor **from = tensor_array(seq, n);
	clv_tensor **out = from ? PyMem_Calloc((size_t)*n + 1, sizeof *out) : NULL;
	if (!from)
		return NULL;
	clv_status st = out ? br_give_all(from, *n, out) : fail_nomem();
	if (!out)
		tensors_free(from, *n);
	else
		PyMem_Free(from);
	if (st == CLV_OK)
		return out;
	PyMem_Free(out);
	raise_status(st);
	return NULL;
}

/* One element of an array of numbers or texts. */
static bool read_element(char letter, PyObject *x, void *to)
{
	if (letter == 'X')
		*(int64_t *)to = PyLong_AsLongLong(x);
	else if (letter == 'F')
		*(double *)to = PyFloat_AsDouble(x);
	else if (letter == 'U') {
		long long k = PyLong_AsLongLong(x);
		*(uint32_t *)to = k < 0 || k > NONE ? NONE : (uint32_t)k;
	} else if (letter == 'S' || x != Py_None)
		*(const char **)to = text_of(x);
	return !PyErr_Occurred();
}

/* The items stay as they are: reading one may run Python, which may change a list. */
static void *read_elements(call *c, char letter, PyObject *from, uint32_t *n)
{
	size_t each = letter == 'U' ? sizeof(uint32_t) : sizeof(int64_t);
	bool texts = letter == 'S' || letter == 'N';
	if (texts && !PyList_Check(from) && !PyTuple_Check(from)) {
		PyErr_Format(PyExc_TypeError, "a list of texts is needed, not %s", Py_TYPE(from)->tp_name);
		return NULL;
	}
	PyObject *items = PySequence_Tuple(from);
	if (!items || !call_keep(c, drop_object, items, 0))
		return NULL;
	*n = (uint32_t)PyTuple_GET_SIZE(items);
	char *at = call_room(c, *n, each);
	for (uint32_t i = 0; at && i < *n; i++)
		if (!read_element(letter, PyTuple_GET_ITEM(items, i), at + i * each))
			return NULL;
	return at;
}

bool take_array(call *c, char letter, PyObject *x, void *to, uint32_t *n)
{
	bool tensors = letter == 'T' || letter == 'C';
	if (x == Py_None && !tensors) {
		*(void **)to = NULL;
		*n = 0;
		return true;
	}
	void *at = letter == 'T'   ? (void *)tensor_array(x, n)
	           : letter == 'C' ? (void *)core_array(x, n)
	                           : read_elements(c, letter, x, n);
	*(void **)to = at;
	return at && (!tensors || call_keep(c, letter == 'T' ? call_drop_tensors : drop_core, at, *n));
}

bool take_bytes_of(call *c, PyObject *x, const void **to, size_t *n)
{
	Py_buffer *b = PyMem_Calloc(1, sizeof *b);
	if (!b || PyObject_GetBuffer(x, b, PyBUF_SIMPLE) < 0) {
		PyMem_Free(b);
		return b ? false : PyErr_NoMemory() != NULL;
	}
	*to = b->buf;
	*n = (size_t)b->len;
	return call_keep(c, drop_buffer, b, 0);
}

static bool read_sizes(call *c, PyObject *dict, clv_sizes *out)
{
	Py_ssize_t n = dict == Py_None ? 0 : PyDict_Check(dict) ? PyDict_Size(dict) : -1, at = 0;
	PyObject *key, *item;
	if (n < 0) {
		PyErr_SetString(PyExc_TypeError, "sizes is a dict of symbols or None");
		return false;
	}
	const char **names = call_room(c, (size_t)n, sizeof *names);
	int64_t *values = names ? call_room(c, (size_t)n, sizeof *values) : NULL;
	for (uint32_t i = 0; values && i < n && PyDict_Next(dict, &at, &key, &item); i++) {
		names[i] = PyUnicode_AsUTF8(key);
		values[i] = names[i] ? PyLong_AsLongLong(item) : 0;
		if (PyErr_Occurred())
			return false;
	}
	*out = (clv_sizes){names, values, (uint32_t)n};
	return values != NULL;
}

/* ---- arguments -------------------------------------------------------------------------------------------------------- */

static bool is_of(PyObject *x, bool yes, const char *what)
{
	if (!yes)
		PyErr_Format(PyExc_TypeError, "%s is needed, not %s", what, Py_TYPE(x)->tp_name);
	return yes;
}

static bool read_object(char letter, PyObject *x, PyObject **to)
{
	*to = x;
	return letter == 'O'   ? true
	       : letter == '[' ? is_of(x, PyList_Check(x), "a list")
	       : letter == '{' ? is_of(x, PyDict_Check(x), "a dict")
	                       : is_of(x, PyTuple_Check(x), "a tuple");
}

static bool in_range(long long x, long long least, long long most)
{
	if (!PyErr_Occurred() && (x < least || x > most))
		PyErr_Format(PyExc_OverflowError, "%lld is not between %lld and %lld", x, least, most);
	return !PyErr_Occurred();
}

static bool read_number(char letter, PyObject *x, void *to)
{
	long long k = letter == 'd' || letter == 'K' || letter == 'p' ? 0 : PyLong_AsLongLong(x);
	switch (letter) {
	case 'p': *(bool *)to = PyObject_IsTrue(x) == 1; return !PyErr_Occurred();
	case 'b': *(uint8_t *)to = (uint8_t)k; return in_range(k, 0, UINT8_MAX);
	case 'i': *(int *)to = (int)k; return in_range(k, INT_MIN, INT_MAX);
	case 'I': *(uint32_t *)to = (uint32_t)k; return in_range(k, 0, UINT32_MAX);
	case 'L': *(int64_t *)to = k; return !PyErr_Occurred();
	case 'K': *(uint64_t *)to = PyLong_AsUnsignedLongLong(x); return !PyErr_Occurred();
	default: *(double *)to = PyFloat_AsDouble(x); return !PyErr_Occurred();
	}
}

static bool read_text(char letter, PyObject *x, const char **to)
{
	*to = NULL;
	if (letter == 'z' && x == Py_None)
		return true;
	if (letter == 'y' && !is_of(x, PyBytes_Check(x), "a path as bytes"))
		return false;
	return (*to = text_of(x)) != NULL;
}

/* x: NULL where it is missing. */
static bool take_one(call *c, char letter, PyObject *x, va_list *to)
{
	void *at = va_arg(*to, void *), *more = strchr("!@XUFSNTCB", letter) ? va_arg(*to, void *) : NULL;
	if (!x)
		return true;
	if (strchr("O[{(", letter))
		return read_object(letter, x, at);
	if (strchr("szy", letter))
		return read_text(letter, x, at);
	if (letter == '!' || letter == '@') {
		PyTypeObject *type = at;
		bool good = is_of(x, PyObject_TypeCheck(x, type), type->tp_name);
		if (good)
			*(void **)more = letter == '!' ? (void *)x : ((handle *)x)->of;
		return good;
	}
	if (letter == 't')
		return (*(br_tensor **)at = need_tensor(x)) != NULL;
	if (letter == 'B')
		return take_bytes_of(c, x, at, more);
	if (letter == 'Z')
		return read_sizes(c, x, at);
	return more ? take_array(c, letter, x, at, more) : read_number(letter, x, at);
}

static bool take_items(call *c, PyObject *const *items, Py_ssize_t n, const char *letters, va_list *to)
{
	Py_ssize_t i = 0;
	bool optional = false;
	for (; *letters; letters++) {
		if (*letters == '|') {
			optional = true;
			continue;
		}
		PyObject *x = i < n ? items[i] : NULL;
		i++;
		if (!x && !optional) {
			PyErr_Format(PyExc_TypeError, "argument %zd is missing", i);
			return false;
		}
		if (!take_one(c, *letters, x, to))
			return false;
	}
	if (n > i)
		PyErr_Format(PyExc_TypeError, "%zd arguments are taken, %zd were given", i, n);
	return n <= i;
}

bool take(call *c, PyObject *args, const char *letters, ...)
{
	va_list to;
	if (!is_of(args, PyTuple_Check(args), "a tuple"))
		return false;
	va_start(to, letters);
	bool ok = take_items(c, ((PyTupleObject *)args)->ob_item, PyTuple_GET_SIZE(args), letters, &to);
	va_end(to);
	return ok;
}

bool take_named(call *c, PyObject *args, PyObject *named, const char *const *names, const char *letters, ...)
{
	PyObject *items[MOST_NAMES] = {NULL}, *key, *item;
	Py_ssize_t n = args ? PyTuple_GET_SIZE(args) : 0, at = 0;
	va_list to;
	for (Py_ssize_t i = 0; i < n && i < MOST_NAMES; i++)
		items[i] = PyTuple_GET_ITEM(args, i);
	while (named && PyDict_Next(named, &at, &key, &item)) {
		Py_ssize_t i = 0;
		while (names[i] && PyUnicode_CompareWithASCIIString(key, names[i]) != 0)
			i++;
		if (!names[i] || items[i]) {
			PyErr_Format(PyExc_TypeError, "%R is %s", key, names[i] ? "given twice" : "no argument");
			return false;
		}
		items[i] = item;
		n = n > i + 1 ? n : i + 1;
	}
	va_start(to, letters);
	bool ok = take_items(c, items, n, letters, &to);
	va_end(to);
	return ok;
}

bool index_of(PyObject *number, uint32_t n, const char *what, uint32_t *out)
{
	unsigned long i = PyLong_AsUnsignedLong(number);
	if (!PyErr_Occurred() && i >= n)
		PyErr_Format(PyExc_IndexError, "there is no %s %lu", what, i);
	*out = (uint32_t)i;
	return !PyErr_Occurred();
}

bool next_text(PyObject *dict, Py_ssize_t *at, const char **key, PyObject **item)
{
	PyObject *name;
	return PyDict_Next(dict, at, &name, item) && (*key = PyUnicode_AsUTF8(name));
}

/* ---- results ------------------------------------------------------------------------------------------------------------ */

void list_push(PyObject **list, PyObject *item)
{
	if (!item || PyList_Append(*list, item) < 0)
		Py_CLEAR(*list);
	Py_XDECREF(item);
}

void dict_put(PyObject **dict, const char *key, PyObject *item)
{
	if (!item || PyDict_SetItemString(*dict, key, item) < 0)
		Py_CLEAR(*dict);
	Py_XDECREF(item);
}

PyObject *as_tuple(PyObject *list)
{
	PyObject *out = list ? PyList_AsTuple(list) : NULL;
	Py_XDECREF(list);
	return out;
}

PyObject *int_list(const int64_t *at, Py_ssize_t n)
{
	LIST(out, n, PyLong_FromLongLong(at[i]));
	return out;
}

PyObject *id_list(const uint32_t *ids, uint32_t n)
{
	LIST(out, n, PyLong_FromUnsignedLong(ids[i]));
	return out;
}

PyObject *text_tuple(const char *const *at, uint32_t n)
{
	LIST(out, n, PyUnicode_FromString(at[i]));
	return as_tuple(out);
}

PyObject *text_or_none(const char *s)
{
	return s ? PyUnicode_DecodeUTF8(s, (Py_ssize_t)strlen(s), "surrogateescape") : Py_NewRef(Py_None);
}

PyObject *take_string(clv_status st, char *s)
{
	if (st != CLV_OK)
		return raise_status(st);
	PyObject *o = text_or_none(s);
	clv_free(s);
	return o;
}

PyObject *take_text(clv_status st, strbuf *b)
{
	char *text = NULL;
	if (st == CLV_OK)
		st = strbuf_take(b, &text);
	strbuf_free(b);
	return take_string(st, text);
}

PyObject *take_bytes(clv_status st, void *data, size_t n)
{
	PyObject *out = st == CLV_OK ? PyBytes_FromStringAndSize(data, (Py_ssize_t)n) : raise_status(st);
	if (st == CLV_OK)
		clv_free(data);
	return out;
}

PyObject *core_wrap(clv_tensor *t)
{
	br_tensor *own;
	clv_status st = br_of(t, &own);
	PyObject *out = st == CLV_OK ? py_wrap(own ? br_ref(own) : NULL) : raise_status(st);
	clv_tensor_free(t);
	return out;
}

PyObject *core_list(clv_tensor *const *t, uint32_t n)
{
	LIST(out, n, core_wrap(tensor_ref(t[i])));
	return out;
}
