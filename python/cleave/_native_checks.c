/* Checks of a model before each run of a plan: it must be as at capture.
 *
 * A Want is what a value looked like at capture: its type, and its parts with what each of them looked like, to any
 * depth. What cannot change inside (numbers, texts, tuples of these, classes) stands for itself. A root is a place in
 * the model with what is wanted there. Nearly always the very same objects are found: then a check is a few comparisons
 * of pointers. Places in dicts are remembered (`hint`), and where Python counts the changes of a dict, what cannot change
 * by itself is not looked at again while the dict does not (`version`).
 *
 * _module_checks.py builds both. All of it runs with the GIL, and lets Python run only where a value was replaced, and
 * for attributes that a class computes. */
#include "_native_file.h"

#include <structmember.h>

#include "base/strbuf.h"

enum { DEEPEST = 400 };                     /* wants in each other; _module_checks.py stops far earlier */
enum { HINT_UNKNOWN = -1, HINT_NONE = -2 }; /* no place is known; the key is there as an equal object, not this one */

typedef enum want_kind {
	WANT_ANY,    /* whatever is there */
	WANT_ABSENT, /* nothing is there */
	WANT_IS,     /* the very object */
	WANT_TENSOR, /* any tensor: runs read it */
	WANT_LIKE,   /* of the same class, with these parts */
	WANT_LIST,   /* likewise; these items in this order, and no others: a list, tuple, deque */
	WANT_PREFIX, /* likewise; more may follow */
	WANT_DICT,   /* likewise; these keys in this order, and no others */
	WANT_VALUES, /* likewise; whatever the keys are */
	WANT_SET,    /* likewise; these members in this order, and no others */
	WANT_BYTES,  /* likewise; these bytes, of an array */
	WANT_KINDS
} want_kind;

/* Where a part is found in the object it is a part of. */
typedef enum part_place {
	PART_ITEM,     /* key: of a list, dict, set, in the order in which they are checked */
	PART_KEY,      /* key: of a dict, looked up */
	PART_OWN,      /* key: in the object's __dict__ */
	PART_FIELD,    /* key: an attribute as object.__getattribute__ finds it */
	PART_FOUND,    /* key: an attribute as the class finds it, which may run Python */
	PART_CALL,     /* key: what a method without arguments gives */
	PART_CELL,     /* key: (number, name) of a variable that a function closes over */
	PART_FUNCTION, /* key: __code__, __globals__, __defaults__, __kwdefaults__ of a function */
	PART_CLASS,    /* key: of a class, as its instances find it */
	PART_SELF,     /* the object itself */
	PART_TYPE,     /* its class */
	PART_PLACES
} part_place;

typedef struct Part {
	part_place place;
	PyObject *key;
	PyObject *want;  /* a Want, or the value itself */
	Py_ssize_t hint; /* where the key of a dict was found last, for PyDict_Next; or one of: */
} Part;

typedef VEC(Part) parts;

typedef struct Want {
	PyObject_HEAD
	want_kind kind;
	bool exact;      /* no other that is equal will do: runs read tensors out of this one */
	PyObject *value; /* as it was; what it holds may have changed since */
	PyTypeObject *type;
	PyObject *bytes; /* of WANT_BYTES: contents, format and shape */
	parts items;     /* of containers */
	parts own;       /* in the object's __dict__: fixed ones, then others */
	parts found;     /* attributes that the class finds in its own way */
	parts others;
	uint32_t fixed_own;            /* how many of `own` are fixed */
	bool fixed_items;              /* all are */
	bool empty;                    /* a dict without items is wanted, whichever it is */
	PyObject *guard;               /* NULL, or what __dict__ holds: as long as it does, `found` are as they were */
	unsigned class_version;        /* for which that is so */
	uint64_t version, own_version; /* of `value`, and its __dict__, when all that is fixed was right; 0: not known */
	uint64_t pass;                 /* the last in which `value` was found to be right */
} Want;

static PyTypeObject WantType;

/* A place in the model. */
typedef struct Root {
	PyObject *base;
	Part part;
	uint32_t text;  /* index in texts */
	PyObject *last; /* of a group: found at its version; borrowed from the dict */
} Root;

/* Roots that are items of one dict: fixed ones, then others. */
typedef struct Group {
	PyObject *dict; /* borrowed from the roots */
	uint32_t first, others, end;
	uint64_t version; /* of the dict when the fixed ones were right; 0: not known */
} Group;

typedef struct ClassRoot {
	Root r;
	unsigned version; /* of the class at the last lookup, 0: none */
	PyObject *found;  /* what it gave; borrowed from the class, for as long as that has the version */
} ClassRoot;

typedef struct InstalledRoot {
	Root r;
	PyObject *before; /* what is there as long as the forward has installed nothing: at all of these, or at none */
} InstalledRoot;

typedef struct Text {
	PyObject *owner, *label; /* whose a root is, and what it is */
} Text;

/* A tensor of the modules: those that were one must stay one, and where the forward may ask, others must stay others. */
typedef struct Tied {
	PyObject *name, *holder, *key;
	Py_ssize_t hint;
	uint32_t first; /* the first place with the same tensor */
	PyObject *last; /* found there by the last check; only compared */
} Tied;

typedef VEC(int64_t) Numbers;

typedef struct ChecksObject {
	PyObject_HEAD
	VEC(Root) roots; /* items of dicts, by group, and others after them */
	VEC(Group) groups;
	uint32_t grouped; /* how many roots are in groups */
	VEC(ClassRoot) classes;
	VEC(InstalledRoot) installed;
	VEC(Text) texts;
	VEC(Tied) tied;
	Numbers inputs;    /* of each input the first that is the same tensor */
	Numbers flags;     /* of each input whether it requires grad; -1: the forward does not ask */
	PyObject *made_of; /* (roots, tensors, inputs, flags), as they were given; all else is borrowed from it */
	bool strict;       /* the forward may ask which tensors are the same: also of inputs, and different ones */
	bool apart;        /* different tensors of the modules were so when `last` was noted */
} ChecksObject;

typedef struct Pass {
	uint64_t number;
	const Part *path[DEEPEST];
	uint32_t depth;
	Py_ssize_t had, has; /* of a container: how many items; equal: that is not the reason */
} Pass;

/* Only its place counts: nothing in it is looked at. */
static bool is_fixed(PyObject *want)
{
	return !Py_IS_TYPE(want, &WantType) || ((Want *)want)->kind <= WANT_TENSOR;
}

/* A number that is another one after every change of a dict; 0: Python does not count them. */
static uint64_t dict_version(PyObject *dict)
{
#if PY_VERSION_HEX < 0x030D0000
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
	return ((PyDictObject *)dict)->ma_version_tag;
#pragma GCC diagnostic pop
#else
	return 0;
#endif
}

/* ---- looking up ---------------------------------------------------------------------------------------------------- */

/* Where a key of a dict is, for PyDict_Next. */
static Py_ssize_t hint_for(PyObject *dict, PyObject *key)
{
	PyObject *k, *item;
	Py_ssize_t here = 0, at = 0;
	for (; PyDict_Next(dict, &at, &k, &item); here = at)
		if (k == key)
			return here;
	return HINT_NONE;
}

/* Borrowed; NULL: it is not there. */
static PyObject *dict_item(PyObject *dict, PyObject *key, Py_ssize_t *hint)
{
	PyObject *k, *item;
	Py_ssize_t at = *hint;
	if (at >= 0 && PyDict_Next(dict, &at, &k, &item) && k == key)
		return item;
	item = PyDict_GetItemWithError(dict, key);
	if (!item)
		PyErr_Clear();
	else if (*hint != HINT_NONE)
		*hint = hint_for(dict, key);
	return item;
}

static PyObject *no_error(PyObject *found)
{
	if (!found)
		PyErr_Clear();
	return found;
}

static PyObject *cell_contents(PyObject *function, PyObject *key)
{
	PyObject *cells = PyFunction_Check(function) ? PyFunction_GET_CLOSURE(function) : NULL;
	Py_ssize_t i = PyTuple_Check(key) ? PyLong_AsSsize_t(PyTuple_GetItem(key, 0)) : -1;
	return cells && i >= 0 && i < PyTuple_GET_SIZE(cells) ? PyCell_Get(PyTuple_GET_ITEM(cells, i)) : NULL;
}

/* Borrowed. hint: which field it is, once that is known. */
static PyObject *function_field(PyObject *function, PyObject *key, Py_ssize_t *hint)
{
	static const char *const names[] = {"__code__", "__globals__", "__defaults__", "__kwdefaults__"};
	for (Py_ssize_t i = 0; *hint < 0 && i < 4; i++)
		if (PyUnicode_CompareWithASCIIString(key, names[i]) == 0)
			*hint = i;
	switch (PyFunction_Check(function) ? *hint : -1) {
	case 0: return PyFunction_GET_CODE(function);
	case 1: return PyFunction_GET_GLOBALS(function);
	case 2: return PyFunction_GET_DEFAULTS(function);
	case 3: return PyFunction_GET_KW_DEFAULTS(function);
	default: return NULL;
	}
}

/* A new reference; NULL: it is not there. */
static PyObject *find_part(PyObject *base, Part *p)
{
	switch (p->place) {
	case PART_KEY:
		if (PyDict_Check(base))
			return Py_XNewRef(dict_item(base, p->key, &p->hint));
		return no_error(PyObject_GetItem(base, p->key));
	case PART_FIELD: return no_error(PyObject_GenericGetAttr(base, p->key));
	case PART_FOUND: return no_error(PyObject_GetAttr(base, p->key));
	case PART_CALL: return no_error(PyObject_CallMethodNoArgs(base, p->key));
	case PART_CELL: return no_error(cell_contents(base, p->key));
	case PART_FUNCTION: return Py_XNewRef(function_field(base, p->key, &p->hint));
	case PART_CLASS: return Py_XNewRef(_PyType_Lookup((PyTypeObject *)base, p->key));
	case PART_SELF: return Py_NewRef(base);
	case PART_TYPE: return Py_NewRef((PyObject *)Py_TYPE(base));
	default: return NULL;
	}
}

/* ---- comparing ----------------------------------------------------------------------------------------------------- */

static bool same_value(Pass *x, PyObject *want, PyObject *now);

static bool same_double(double a, double b)
{
	return memcmp(&a, &b, sizeof a) == 0;
}

static bool same_fixed(PyObject *want, PyObject *now);

static bool same_tuple(PyObject *a, PyObject *b)
{
	if (PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b))
		return false;
	for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); i++)
		if (!same_fixed(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i)))
			return false;
	return true;
}

static bool same_slice(PyObject *a, PyObject *b)
{
	PySliceObject *x = (PySliceObject *)a, *y = (PySliceObject *)b;
	return same_fixed(x->start, y->start) && same_fixed(x->stop, y->stop) && same_fixed(x->step, y->step);
}

/* What nothing can change inside: the object itself, or one that is equal, of the same class, floats by their bits. */
static bool same_fixed(PyObject *want, PyObject *now)
{
	if (now == want)
		return true;
	if (!now || Py_TYPE(now) != Py_TYPE(want))
		return false;
	if (PyFloat_Check(want))
		return same_double(PyFloat_AS_DOUBLE(want), PyFloat_AS_DOUBLE(now));
	if (PyComplex_Check(want)) {
		Py_complex a = PyComplex_AsCComplex(want), b = PyComplex_AsCComplex(now);
		return same_double(a.real, b.real) && same_double(a.imag, b.imag);
	}
	if (PyTuple_Check(want))
		return same_tuple(want, now);
	if (PySlice_Check(want))
		return same_slice(want, now);
	bool equal = PyObject_RichCompareBool(now, want, Py_EQ) == 1;
	PyErr_Clear();
	return equal;
}

/* One part. */
static bool same_at(Pass *x, const Part *p, PyObject *now)
{
	if (now == p->want)
		return true;
	if (x->depth == DEEPEST)
		return false;
	x->path[x->depth++] = p;
	Py_XINCREF(now);
	bool holds = same_value(x, p->want, now);
	Py_XDECREF(now);
	x->depth -= holds; /* else it is the way to what changed */
	return holds;
}

static bool same_size(Pass *x, Py_ssize_t had, Py_ssize_t has)
{
	if (had != has) {
		x->had = had;
		x->has = has;
	}
	return had == has;
}

static bool same_items(Pass *x, const Want *w, PyObject *now)
{
	Py_ssize_t n = PySequence_Size(now), want = (Py_ssize_t)w->items.n;
	if (!(w->kind == WANT_PREFIX && n > want) && !same_size(x, want, n))
		return false;
	bool fast = PyList_Check(now) || PyTuple_Check(now);
	for (Py_ssize_t i = 0; i < want; i++) {
		/* What is compared may let Python run, which may shorten the list. */
		if (fast && i >= PySequence_Fast_GET_SIZE(now))
			return false;
		PyObject *item = fast ? Py_NewRef(PySequence_Fast_GET_ITEM(now, i)) : no_error(PySequence_GetItem(now, i));
		bool holds = item && same_at(x, &w->items.at[i], item);
		Py_XDECREF(item);
		if (!holds)
			return false;
	}
	return true;
}

static bool same_entry(Pass *x, const Want *w, uint32_t i, PyObject *key, PyObject *item)
{
	const Part *p = &w->items.at[i];
	return (w->kind == WANT_VALUES || key == p->key || same_fixed(p->key, key)) && same_at(x, p, item);
}

/* An OrderedDict has an order of its own. */
static bool same_ordered(Pass *x, const Want *w, PyObject *now)
{
	PyObject *keys = no_error(PyODict_Type.tp_iter(now)), *key = NULL;
	bool holds = keys != NULL;
	for (uint32_t i = 0; holds && i < w->items.n; i++) {
		key = PyIter_Next(keys);
		PyObject *item = key ? Py_XNewRef(PyDict_GetItemWithError(now, key)) : NULL;
		holds = item && same_entry(x, w, i, key, item);
		Py_XDECREF(item);
		Py_XDECREF(key);
	}
	Py_XDECREF(keys);
	PyErr_Clear();
	return holds;
}

static bool same_dict(Pass *x, Want *w, PyObject *now)
{
	PyObject *key, *item;
	Py_ssize_t at = 0;
	uint32_t i = 0;
	uint64_t version = now == w->value ? dict_version(now) : 0;
	if (!same_size(x, (Py_ssize_t)w->items.n, PyDict_GET_SIZE(now)))
		return false;
	if (!w->items.n || (w->fixed_items && version && version == w->version))
		return true;
	if (PyODict_Check(now))
		return same_ordered(x, w, now); /* which has an order that no version counts */
	bool holds = true;
	for (; holds && i < w->items.n && PyDict_Next(now, &at, &key, &item); i++) {
		Py_INCREF(key);
		holds = same_entry(x, w, i, key, item);
		Py_DECREF(key);
	}
	holds = holds && i == w->items.n;
	w->version = holds ? version : 0;
	return holds;
}

static bool same_set(Pass *x, const Want *w, PyObject *now)
{
	if (!same_size(x, (Py_ssize_t)w->items.n, PyObject_Size(now)))
		return false;
	PyObject *members = no_error(PySequence_List(now));
	bool holds = members && PyList_GET_SIZE(members) == (Py_ssize_t)w->items.n;
	for (uint32_t i = 0; holds && i < w->items.n; i++)
		holds = same_at(x, &w->items.at[i], PyList_GET_ITEM(members, i));
	Py_XDECREF(members);
	return holds;
}

/* Contents, format and shape of an array, as one value; NULL with an exception. */
static PyObject *bytes_of(PyObject *array)
{
	Py_buffer b;
	if (PyObject_GetBuffer(array, &b, PyBUF_FULL_RO) < 0)
		return NULL;
	size_t shape = (size_t)b.ndim * sizeof *b.shape, format = b.format ? strlen(b.format) : 0;
	PyObject *out = PyBytes_FromStringAndSize(NULL, b.len + (Py_ssize_t)(shape + format));
	char *to = out ? PyBytes_AS_STRING(out) : NULL;
	if (out && b.len && PyBuffer_ToContiguous(to, &b, b.len, 'C') < 0)
		Py_CLEAR(out);
	if (out) {
		memcpy(to + b.len, b.shape, shape);
		memcpy(to + b.len + shape, b.format, format);
	}
	PyBuffer_Release(&b);
	return out;
}

static bool same_bytes(const Want *w, PyObject *now)
{
	PyObject *bytes = no_error(bytes_of(now));
	bool equal = bytes && PyBytes_GET_SIZE(bytes) == PyBytes_GET_SIZE(w->bytes) &&
	             memcmp(PyBytes_AS_STRING(bytes), PyBytes_AS_STRING(w->bytes), (size_t)PyBytes_GET_SIZE(bytes)) == 0;
	Py_XDECREF(bytes);
	return equal;
}

static bool same_contents(Pass *x, Want *w, PyObject *now)
{
	switch (w->kind) {
	case WANT_LIST:
	case WANT_PREFIX: return same_items(x, w, now);
	case WANT_DICT:
	case WANT_VALUES: return same_dict(x, w, now);
	case WANT_SET: return same_set(x, w, now);
	case WANT_BYTES: return same_bytes(w, now);
	default: return true;
	}
}

static bool same_others(Pass *x, parts *p, PyObject *now)
{
	for (uint32_t i = 0; i < p->n; i++) {
		PyObject *part = find_part(now, &p->at[i]);
		bool holds = same_at(x, &p->at[i], part);
		Py_XDECREF(part);
		if (!holds)
			return false;
	}
	return true;
}

/* Attributes in the object's __dict__, and those that its class makes of them. */
static bool same_attributes(Pass *x, Want *w, PyObject *now)
{
	PyObject *own = no_error(PyObject_GenericGetDict(now, NULL));
	if (!own || !PyDict_Check(own)) {
		Py_XDECREF(own);
		return false;
	}
	uint64_t version = now == w->value ? dict_version(own) : 0;
	bool holds = true;
	for (uint32_t i = version && version == w->own_version ? w->fixed_own : 0; holds && i < w->own.n; i++) {
		Part *p = &w->own.at[i];
		holds = same_at(x, p, dict_item(own, p->key, &p->hint));
	}
	w->own_version = holds ? version : 0;
	if (holds && w->found.n) {
		unsigned class_version = Py_TYPE(now)->tp_version_tag;
		uint32_t depth = x->depth;
		if (!w->guard || !class_version || class_version != w->class_version || !same_value(x, w->guard, own)) {
			x->depth = depth;
			x->had = x->has = 0;
			holds = same_others(x, &w->found, now);
			w->class_version = holds ? Py_TYPE(now)->tp_version_tag : 0;
		}
	}
	Py_DECREF(own);
	return holds;
}

static bool same_parts(Pass *x, Want *w, PyObject *now)
{
	return ((!w->own.n && !w->found.n) || same_attributes(x, w, now)) && same_others(x, &w->others, now);
}

/* now: held by the caller; NULL: nothing is there. */
static bool same_value(Pass *x, PyObject *want, PyObject *now)
{
	if (!Py_IS_TYPE(want, &WantType))
		return same_fixed(want, now);
	Want *w = (Want *)want;
	if (w->kind == WANT_ANY)
		return true;
	if (w->kind == WANT_ABSENT || !now)
		return w->kind == WANT_ABSENT && !now;
	if (w->kind == WANT_TENSOR)
		return py_borrow(now) != NULL;
	if (w->kind == WANT_IS || (w->exact && now != w->value))
		return now == w->value;
	if (Py_TYPE(now) != w->type)
		return false;
	if (now == w->value) {
		if (w->pass == x->number)
			return true; /* it was looked at, or is being looked at further up */
		w->pass = x->number;
		return same_contents(x, w, now) && same_parts(x, w, now);
	}
	uint32_t depth = x->depth;
	if (same_contents(x, w, now) && same_parts(x, w, now))
		return true;
	x->depth = depth; /* something else is here: what is in it need not be named */
	x->had = x->has = 0;
	return false;
}

/* ---- Want ---------------------------------------------------------------------------------------------------------- */

static void parts_clear(parts *p)
{
	for (uint32_t i = 0; i < p->n; i++) {
		Py_CLEAR(p->at[i].key);
		Py_CLEAR(p->at[i].want);
	}
	p->n = 0;
}

static int parts_traverse(const parts *p, visitproc visit, void *ctx)
{
	int r = 0;
	for (uint32_t i = 0; !r && i < p->n; i++) {
		r = visit_one(p->at[i].key, visit, ctx);
		if (!r)
			r = visit_one(p->at[i].want, visit, ctx);
	}
	return r;
}

static int want_traverse(Want *w, visitproc visit, void *ctx)
{
	int r = visit_one(w->value, visit, ctx);
	if (!r)
		r = visit_one((PyObject *)w->type, visit, ctx);
	if (!r)
		r = visit_one(w->guard, visit, ctx);
	const parts *all[] = {&w->items, &w->own, &w->found, &w->others};
	for (size_t i = 0; !r && i < sizeof all / sizeof *all; i++)
		r = parts_traverse(all[i], visit, ctx);
	return r;
}

static int want_clear(Want *w)
{
	Py_CLEAR(w->value);
	Py_CLEAR(w->guard);
	parts_clear(&w->items);
	parts_clear(&w->own);
	parts_clear(&w->found);
	parts_clear(&w->others);
	return 0;
}

static void want_dealloc(Want *w)
{
	PyObject_GC_UnTrack(w);
	Py_TRASHCAN_BEGIN(w, want_dealloc);
	want_clear(w);
	Py_CLEAR(w->type);
	Py_CLEAR(w->bytes);
	vec_free(&w->items);
	vec_free(&w->own);
	vec_free(&w->found);
	vec_free(&w->others);
	Py_TYPE(w)->tp_free((PyObject *)w);
	Py_TRASHCAN_END;
}

/* Want(kind, value, exact=False) */
static PyObject *want_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	int kind;
	bool exact = false;
	PyObject *given;
	if (!take(NULL, args, "iO|p", &kind, &given, &exact))
		return NULL;
	if (kind < 0 || kind >= WANT_KINDS)
		return PyErr_Format(PyExc_ValueError, "no kind of Want: %d", kind);
	Want *w = (Want *)type->tp_alloc(type, 0);
	if (!w)
		return NULL;
	w->kind = (want_kind)kind;
	w->exact = exact;
	w->fixed_items = true;
	w->empty = (kind == WANT_DICT || kind == WANT_VALUES) && !exact;
	w->value = Py_NewRef(given);
	w->type = (PyTypeObject *)Py_NewRef((PyObject *)Py_TYPE(given));
	w->bytes = kind == WANT_BYTES ? bytes_of(given) : NULL;
	if (kind == WANT_BYTES && !w->bytes)
		Py_CLEAR(w);
	return (PyObject *)w;
}

static bool read_part(PyObject *tuple, Part *out)
{
	int place;
	if (!take(NULL, tuple, "iOO", &place, &out->key, &out->want))
		return false;
	if (place < 0 || place >= PART_PLACES)
		return PyErr_Format(PyExc_ValueError, "no place of a part: %d", place) != NULL;
	out->place = (part_place)place;
	out->hint = HINT_UNKNOWN;
	return true;
}

static clv_status add_own(Want *w, Part p)
{
	TRY(vec_push(&w->own, p));
	if (!is_fixed(p.want))
		return CLV_OK;
	Part *at = w->own.at;
	at[w->own.n - 1] = at[w->fixed_own];
	at[w->fixed_own++] = p;
	return CLV_OK;
}

/* add(place, key, want) */
static PyObject *want_add(Want *w, PyObject *args)
{
	Part p;
	if (!read_part(args, &p))
		return NULL;
	clv_status st = p.place == PART_ITEM    ? vec_push(&w->items, p)
	                : p.place == PART_OWN   ? add_own(w, p)
	                : p.place == PART_FOUND ? vec_push(&w->found, p)
	                                        : vec_push(&w->others, p);
	if (st != CLV_OK)
		return raise_status(st);
	w->fixed_items &= p.place != PART_ITEM || is_fixed(p.want);
	w->empty = false;
	Py_INCREF(p.key);
	Py_INCREF(p.want);
	Py_RETURN_NONE;
}

static PyObject *want_set_guard(Want *w, PyObject *guard)
{
	Py_XSETREF(w->guard, Py_NewRef(guard));
	Py_RETURN_NONE;
}

METHODS(want, TAKES(want, add), TAKES_ONE(want, set_guard));

static PyObject *want_structured(Want *w, void *unused)
{
	return PyBool_FromLong(!is_fixed((PyObject *)w));
}

static PyGetSetDef want_getset[] = {
	{"structured", (getter)want_structured, NULL, "it says more than which object is in a place", NULL},
	{NULL, NULL, NULL, NULL, NULL}};

static TYPE(Want, Want, want, Py_TPFLAGS_HAVE_GC, .tp_new = want_new, .tp_getset = want_getset, COLLECTED(want));

/* ---- what changed, in words ---------------------------------------------------------------------------------------- */

static bool is_attribute(const Part *p)
{
	return p->place == PART_OWN || p->place == PART_FIELD || p->place == PART_FOUND || p->place == PART_FUNCTION;
}

static void print_part(const Part *p, strbuf *out)
{
	PyObject *key = p->place == PART_CELL && PyTuple_Check(p->key) ? PyTuple_GetItem(p->key, 1) : p->key;
	bool plain = is_attribute(p) || p->place == PART_CALL;
	PyObject *text = plain ? PyObject_Str(key) : PyObject_Repr(key);
	const char *s = text ? PyUnicode_AsUTF8(text) : NULL;
	if (!s)
		PyErr_Clear();
	if (is_attribute(p))
		strbuf_printf(out, ".%s", s ? s : "?");
	else if (p->place == PART_CELL)
		strbuf_printf(out, ".__closure__[%s]", s ? s : "?");
	else if (p->place == PART_CALL)
		strbuf_printf(out, ".%s()", s ? s : "?");
	else
		strbuf_printf(out, "[%.60s]", s ? s : "?");
	Py_XDECREF(text);
}

/* "config.sizes" and, for what is in it, ", at [2]". */
static void print_change(const char *label, const Pass *x, strbuf *what, strbuf *where)
{
	uint32_t i = 0;
	if (x->had != x->has && !x->depth)
		strbuf_printf(what, "the number of ");
	strbuf_printf(what, "%s", label ? label : "something");
	for (; i < x->depth && is_attribute(x->path[i]); i++)
		print_part(x->path[i], what);
	for (uint32_t first = i; i < x->depth; i++) {
		strbuf_printf(where, "%s", i == first ? ", at " : "");
		print_part(x->path[i], where);
	}
	if (x->had != x->has && x->has >= 0)
		strbuf_printf(where, ", from %zd to %zd items", x->had, x->has);
}

static clv_status changed(const ChecksObject *o, const Root *r, const Pass *x)
{
	const char *owner = PyUnicode_AsUTF8(o->texts.at[r->text].owner);
	const char *label = PyUnicode_AsUTF8(o->texts.at[r->text].label);
	PyErr_Clear();
	if (label && !strcmp(label, "training"))
		return fail(CLV_E_INPUT,
		            "%s was switched between train and eval mode after the plan was captured: capture the model again, "
		            "or switch it back",
		            owner ? owner : "a module");
	if (label && !strcmp(label, "requires_grad"))
		return fail(CLV_E_LAYOUT,
		            "%s was frozen or made trainable after the plan was captured, and the forward looks at its "
		            "requires_grad: capture the model again, or set it back",
		            owner ? owner : "a tensor");
	if (Py_IS_TYPE(r->part.want, &WantType) && ((Want *)r->part.want)->kind == WANT_TENSOR)
		return fail(CLV_E_INPUT, "the model's %s is no tensor any more: capture the model again", label ? label : "?");
	strbuf what = STRBUF_INIT, where = STRBUF_INIT;
	print_change(label, x, &what, &where);
	clv_status st = what.failed || where.failed
	                    ? fail_nomem()
	                    : fail(CLV_E_INPUT, "%s of %s changed after the plan was captured%s: capture the model again",
	                           what.at ? what.at : "something", owner ? owner : "the model", where.at ? where.at : "");
	strbuf_free(&what);
	strbuf_free(&where);
	return st;
}

/* ---- Checks -------------------------------------------------------------------------------------------------------- */

static uint64_t passes;

static bool root_holds(Pass *x, Root *r)
{
	PyObject *now = find_part(r->base, &r->part);
	bool holds = now == r->part.want || same_value(x, r->part.want, now);
	Py_XDECREF(now);
	return holds;
}

/* No items are wanted, and there are none: most tables of hooks. */
static bool is_empty(PyObject *want, PyObject *now)
{
	const Want *w = (Want *)want;
	return Py_IS_TYPE(want, &WantType) && w->empty && now && Py_TYPE(now) == w->type && PyDict_GET_SIZE(now) == 0;
}

/* The first that does not hold; NULL: all do. */
static const Root *group_broken(Pass *x, ChecksObject *o, Group *g)
{
	uint64_t version = dict_version(g->dict);
	bool unchanged = version && version == g->version;
	for (uint32_t i = unchanged ? g->others : g->first; i < g->end; i++) {
		Root *r = &o->roots.at[i];
		/* What is compared may let Python run, which may change the dict. */
		bool known = unchanged && dict_version(g->dict) == version;
		PyObject *now = known ? r->last : dict_item(g->dict, r->part.key, &r->part.hint);
		r->last = now;
		if (now == r->part.want || is_empty(r->part.want, now))
			continue;
		Py_XINCREF(now);
		bool holds = same_value(x, r->part.want, now);
		Py_XDECREF(now);
		if (!holds) {
			g->version = 0;
			return r;
		}
	}
	g->version = version;
	return NULL;
}

/* Attributes of a class: nothing is looked up again while the class and its bases stay as they are. */
static bool class_holds(Pass *x, ClassRoot *c)
{
	PyTypeObject *cls = (PyTypeObject *)c->r.base;
	if (!c->version || cls->tp_version_tag != c->version) {
		c->found = _PyType_Lookup(cls, c->r.part.key);
		c->version = cls->tp_version_tag;
	} else if (!Py_IS_TYPE(c->r.part.want, &WantType)) {
		return true;
	}
	PyObject *found = Py_XNewRef(c->found);
	bool holds = same_value(x, c->r.part.want, found);
	Py_XDECREF(found);
	if (!holds)
		c->version = 0;
	return holds;
}

/* installed: 1 or 0, -1 as long as no place has told. */
static bool installed_holds(Pass *x, InstalledRoot *i, int *installed)
{
	PyObject *now = find_part(i->r.base, &i->r.part);
	bool after = same_value(x, i->r.part.want, now);
	if (!after) {
		x->number = ++passes; /* what was looked at on the way is not known to be right */
		x->depth = 0;
		x->had = x->has = 0;
	}
	bool before = !after && same_value(x, i->before, now);
	Py_XDECREF(now);
	if ((!after && !before) || (*installed >= 0 && *installed != after))
		return false;
	*installed = after;
	return true;
}

static clv_status tied_changed(const Tied *a, const Tied *b, const char *then, const char *now)
{
	const char *x = PyUnicode_AsUTF8(a->name), *y = PyUnicode_AsUTF8(b->name);
	PyErr_Clear();
	return fail(CLV_E_INPUT,
	            "the model's %s and %s were %s when the plan was captured, and %s: capture the model again",
	            x ? x : "?", y ? y : "?", then, now);
}

static int by_last(const void *a, const void *b)
{
	uintptr_t x = (uintptr_t)(*(Tied *const *)a)->last, y = (uintptr_t)(*(Tied *const *)b)->last;
	return (x > y) - (x < y);
}

/* No tensor is at two places that had different ones. */
static clv_status check_apart(ChecksObject *o)
{
	Tied **order = PyMem_Malloc((o->tied.n + 1) * sizeof(Tied *));
	clv_status st = order ? CLV_OK : fail_nomem();
	uint32_t n = 0;
	for (uint32_t i = 0; order && i < o->tied.n; i++)
		if (o->tied.at[i].first == i)
			order[n++] = &o->tied.at[i];
	if (order)
		qsort(order, n, sizeof *order, by_last);
	for (uint32_t i = 1; st == CLV_OK && i < n; i++)
		if (order[i]->last && order[i]->last == order[i - 1]->last)
			st = tied_changed(order[i], order[i - 1], "two tensors", "are one now");
	PyMem_Free(order);
	return st;
}

static PyObject *live_tensor(Tied *t)
{
	if (PyDict_Check(t->holder))
		return dict_item(t->holder, t->key, &t->hint);
	PyObject *found = no_error(PyObject_GetItem(t->holder, t->key));
	Py_XDECREF(found); /* the holder has it */
	return found;
}

static clv_status check_tied(ChecksObject *o)
{
	bool moved = false;
	for (uint32_t i = 0; i < o->tied.n; i++) {
		Tied *t = &o->tied.at[i];
		PyObject *now = live_tensor(t);
		moved |= now != t->last;
		t->last = now;
		if (t->first != i && now != o->tied.at[t->first].last)
			return tied_changed(t, &o->tied.at[t->first], "one tensor", "no longer are");
	}
	if (!o->strict || (o->apart && !moved))
		return CLV_OK;
	o->apart = false;
	TRY(check_apart(o));
	o->apart = true;
	return CLV_OK;
}

clv_status checks_hold(PyObject *checks)
{
	if (!checks)
		return CLV_OK;
	ChecksObject *o = (ChecksObject *)checks;
	Pass x;
	int installed = -1;
	x.number = ++passes;
	x.depth = 0;
	x.had = x.has = 0;
	for (uint32_t i = 0; i < o->groups.n; i++) {
		const Root *broken = group_broken(&x, o, &o->groups.at[i]);
		if (broken)
			return changed(o, broken, &x);
	}
	for (uint32_t i = o->grouped; i < o->roots.n; i++)
		if (!root_holds(&x, &o->roots.at[i]))
			return changed(o, &o->roots.at[i], &x);
	for (uint32_t i = 0; i < o->classes.n; i++)
		if (!class_holds(&x, &o->classes.at[i]))
			return changed(o, &o->classes.at[i].r, &x);
	for (uint32_t i = 0; i < o->installed.n; i++)
		if (!installed_holds(&x, &o->installed.at[i], &installed))
			return changed(o, &o->installed.at[i].r, &x);
	return check_tied(o);
}

/* The first of these inputs that is the same object as number i. */
static uint32_t first_like(PyObject *const *inputs, uint32_t i)
{
	uint32_t first = 0;
	while (inputs[first] != inputs[i])
		first++;
	return first;
}

static clv_status check_not_own(ChecksObject *o, PyObject *const *inputs, uint32_t n)
{
	for (uint32_t i = 0; i < o->tied.n; i++) {
		PyObject *tensor = live_tensor(&o->tied.at[i]);
		for (uint32_t k = 0; k < n; k++)
			if (inputs[k] == tensor)
				return fail(CLV_E_INPUT,
				            "input %u is the model's own %s, and the forward may ask whether two tensors are the same: "
				            "give it a copy",
				            k, PyUnicode_AsUTF8(o->tied.at[i].name));
	}
	return CLV_OK;
}

static clv_status check_flag(PyObject *input, uint32_t i, bool wanted)
{
	PyObject *flag = no_error(PyObject_GetAttrString(input, "requires_grad"));
	bool same_flag = flag == (wanted ? Py_True : Py_False);
	Py_XDECREF(flag);
	return same_flag ? CLV_OK
	                 : fail(CLV_E_LAYOUT, "input %u %s grad, for which the forward asks, at capture it %s", i,
	                        wanted ? "does not require" : "requires", wanted ? "did" : "did not");
}

clv_status checks_inputs(PyObject *checks, PyObject *sequence)
{
	ChecksObject *o = (ChecksObject *)checks;
	if (!checks || (!o->strict && !o->flags.n))
		return CLV_OK;
	PyObject *fast = PySequence_Fast(sequence, "tensors");
	if (!fast)
		return fail(CLV_E_INPUT, "a sequence of tensors is needed");
	PyObject **inputs = PySequence_Fast_ITEMS(fast);
	uint32_t n = (uint32_t)PySequence_Fast_GET_SIZE(fast);
	clv_status st = CLV_OK;
	for (uint32_t i = 0; st == CLV_OK && i < n && i < o->inputs.n; i++)
		if (first_like(inputs, i) != o->inputs.at[i])
			st = fail(CLV_E_LAYOUT, "input %u %s input %u, which the forward may ask for, and was not so at capture", i,
			          first_like(inputs, i) == i ? "is another tensor than" : "is the same tensor as",
			          first_like(inputs, i) == i ? (uint32_t)o->inputs.at[i] : first_like(inputs, i));
	for (uint32_t i = 0; st == CLV_OK && i < n && i < o->flags.n; i++)
		if (o->flags.at[i] >= 0)
			st = check_flag(inputs[i], i, o->flags.at[i]);
	if (st == CLV_OK && o->strict)
		st = check_not_own(o, inputs, n);
	Py_DECREF(fast);
	return st;
}

clv_status checks_asked(PyObject *checks, artifact_plan *to)
{
	const ChecksObject *o = (const ChecksObject *)checks;
	if (!Py_IS_TYPE(checks, &ChecksType))
		return CLV_OK;
	for (uint32_t i = 0; i < o->inputs.n; i++)
		TRY(vec_push(&to->same, (uint32_t)o->inputs.at[i]));
	for (uint32_t i = 0; i < o->flags.n; i++)
		TRY(vec_push(&to->grads, (int8_t)o->flags.at[i]));
	return CLV_OK;
}

static int checks_traverse(ChecksObject *o, visitproc visit, void *ctx)
{
	return visit_one(o->made_of, visit, ctx);
}

static int checks_clear(ChecksObject *o)
{
	o->roots.n = o->groups.n = o->grouped = o->classes.n = o->installed.n = o->texts.n = o->tied.n = 0;
	Py_CLEAR(o->made_of);
	return 0;
}

static void checks_dealloc(ChecksObject *o)
{
	PyObject_GC_UnTrack(o);
	checks_clear(o);
	vec_free(&o->roots);
	vec_free(&o->groups);
	vec_free(&o->classes);
	vec_free(&o->installed);
	vec_free(&o->texts);
	vec_free(&o->tied);
	vec_free(&o->inputs);
	vec_free(&o->flags);
	Py_TYPE(o)->tp_free((PyObject *)o);
}

/* (owner, label, base, place, key, want[, before the forward installs something]) */
static bool add_root(ChecksObject *o, PyObject *tuple)
{
	int place;
	Text t;
	Root r = {.part.hint = HINT_UNKNOWN, .text = o->texts.n};
	PyObject *before = NULL;
	if (!take(NULL, tuple, "OOOiOO|O", &t.owner, &t.label, &r.base, &place, &r.part.key, &r.part.want, &before))
		return false;
	if (place <= PART_ITEM || place >= PART_PLACES || (place == PART_CLASS && !PyType_Check(r.base)))
		return PyErr_Format(PyExc_ValueError, "no place of a root: %d", place) != NULL;
	r.part.place = (part_place)place;
	if (!ok_or_raise(vec_push(&o->texts, t)))
		return false;
	return ok_or_raise(before                ? vec_push(&o->installed, ((InstalledRoot){r, before}))
	                   : place == PART_CLASS ? vec_push(&o->classes, ((ClassRoot){r, 0, NULL}))
	                                         : vec_push(&o->roots, r));
}

/* (name, holder, key, index of the first place with the same tensor) */
static bool add_tied(ChecksObject *o, PyObject *tuple)
{
	Tied t = {.hint = HINT_UNKNOWN};
	if (!take(NULL, tuple, "OOOI", &t.name, &t.holder, &t.key, &t.first))
		return false;
	if (t.first > o->tied.n)
		return PyErr_Format(PyExc_ValueError, "no earlier place") != NULL;
	return ok_or_raise(vec_push(&o->tied, t));
}

static bool is_item(const Root *r)
{
	return r->part.place == PART_KEY && PyDict_Check(r->base);
}

/* Brings items of one dict together; _module_checks.py gives them one after the other, fixed ones first. */
static clv_status make_groups(ChecksObject *o)
{
	for (uint32_t i = 0; i < o->roots.n && is_item(&o->roots.at[i]); i++, o->grouped++) {
		const Root *r = &o->roots.at[i];
		Group *last = o->groups.n ? &o->groups.at[o->groups.n - 1] : NULL;
		if (!last || last->dict != r->base) {
			TRY(vec_push(&o->groups, ((Group){r->base, i, i, i, 0})));
			last = &o->groups.at[o->groups.n - 1];
		}
		last->end = i + 1;
		if (last->others == i && is_fixed(r->part.want))
			last->others = i + 1;
	}
	return CLV_OK;
}

static bool read_numbers(Numbers *out, PyObject *list)
{
	call c = {0};
	int64_t *numbers;
	uint32_t n;
	bool ok = take_array(&c, 'X', list, &numbers, &n);
	for (uint32_t i = 0; ok && i < n; i++)
		ok = ok_or_raise(vec_push(out, numbers[i]));
	call_end(&c, NULL);
	return ok;
}

/* Checks(roots, tensors, inputs: of each the first that is the same tensor; None: nobody asks which are, flags: of each
 * input whether it requires grad; -1: nobody asks) */
static PyObject *checks_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	PyObject *roots, *tied, *inputs, *flags;
	if (!take(NULL, args, "((O[", &roots, &tied, &inputs, &flags))
		return NULL;
	ChecksObject *o = (ChecksObject *)type->tp_alloc(type, 0);
	if (!o)
		return NULL;
	o->strict = inputs != Py_None;
	o->made_of = PyTuple_Pack(4, roots, tied, inputs, flags);
	bool ok = o->made_of && read_numbers(&o->inputs, inputs) && read_numbers(&o->flags, flags);
	for (Py_ssize_t i = 0; ok && i < PyTuple_GET_SIZE(roots); i++)
		ok = add_root(o, PyTuple_GET_ITEM(roots, i));
	ok = ok && ok_or_raise(make_groups(o));
	for (Py_ssize_t i = 0; ok && i < PyTuple_GET_SIZE(tied); i++)
		ok = add_tied(o, PyTuple_GET_ITEM(tied, i));
	if (!ok)
		Py_CLEAR(o);
	return (PyObject *)o;
}

static PyMemberDef checks_members[] = {
	{"strict", T_BOOL, offsetof(ChecksObject, strict), READONLY, "the forward may ask which tensors are the same"},
	{"made_of", T_OBJECT, offsetof(ChecksObject, made_of), READONLY, "(roots, tensors, inputs, flags)"},
	{NULL, 0, 0, 0, NULL}};

static PyMethodDef checks_methods[] = {{NULL, NULL, 0, NULL}};
TYPE(Checks, ChecksObject, checks, Py_TPFLAGS_HAVE_GC, .tp_new = checks_new, .tp_members = checks_members,
     COLLECTED(checks));

static bool same_ordered_items(PyObject *a, PyObject *b)
{
	PyObject *keys = no_error(PyODict_Type.tp_iter(a)), *k, *item;
	Py_ssize_t at = 0;
	bool same_ones = keys != NULL;
	while (same_ones && PyDict_Next(b, &at, &k, &item)) {
		PyObject *key = PyIter_Next(keys);
		same_ones = key == k && PyDict_GetItemWithError(a, k) == item;
		Py_XDECREF(key);
	}
	Py_XDECREF(keys);
	PyErr_Clear();
	return same_ones;
}

static bool same_dict_items(PyObject *a, PyObject *b)
{
	PyObject *k, *l, *x, *y;
	Py_ssize_t at = 0, bt = 0;
	if (PyDict_GET_SIZE(a) != PyDict_GET_SIZE(b))
		return false;
	if (PyODict_Check(a))
		return same_ordered_items(a, b);
	while (PyDict_Next(a, &at, &k, &x) && PyDict_Next(b, &bt, &l, &y))
		if (k != l || x != y)
			return false;
	return true;
}

/* same_items(dict or list, dict or list) -> the very same keys and values, in the same order */
PyObject *same_items_py(PyObject *self, PyObject *args)
{
	PyObject *a, *b;
	if (!take(NULL, args, "OO", &a, &b))
		return NULL;
	if (PyDict_Check(a) && PyDict_Check(b))
		return PyBool_FromLong(same_dict_items(a, b));
	if (!PyList_Check(a) || !PyList_Check(b))
		return PyErr_Format(PyExc_TypeError, "two dicts or two lists are needed");
	size_t n = (size_t)PyList_GET_SIZE(a);
	return PyBool_FromLong(
		n == (size_t)PyList_GET_SIZE(b) &&
		(!n || !memcmp(((PyListObject *)a)->ob_item, ((PyListObject *)b)->ob_item, n * sizeof(PyObject *))));
}

bool checks_add_names(PyObject *m)
{
	static const char *const kinds[] = {"WANT_ANY",    "WANT_ABSENT", "WANT_IS",     "WANT_TENSOR",
	                                    "WANT_LIKE",   "WANT_LIST",   "WANT_PREFIX", "WANT_DICT",
	                                    "WANT_VALUES", "WANT_SET",    "WANT_BYTES"};
	static const char *const places[] = {"PART_ITEM",  "PART_KEY",  "PART_OWN",  "PART_FIELD",
	                                     "PART_FOUND", "PART_CALL", "PART_CELL", "PART_FUNCTION",
	                                     "PART_CLASS", "PART_SELF", "PART_TYPE"};
	for (int i = 0; i < WANT_KINDS; i++)
		if (PyModule_AddIntConstant(m, kinds[i], i) < 0)
			return false;
	for (int i = 0; i < PART_PLACES; i++)
		if (PyModule_AddIntConstant(m, places[i], i) < 0)
			return false;
	return PyModule_AddType(m, &WantType) == 0;
}
