/* Blocks of a plan, and plans cut into stages. */
#include "_native.h"

#include "pipe/blocks.h"

typedef struct BlocksObject {
	PyObject_HEAD
	PlanObject *plan; /* whose blocks they are; it has no references back */
	blocks b;
} BlocksObject;

static void blocks_py_dealloc(BlocksObject *o)
{
	blocks_free(&o->b);
	Py_XDECREF(o->plan);
	Py_TYPE(o)->tp_free((PyObject *)o);
}

/* Blocks(plan, depth, whole, ties_together, keep_order, sizes) */
static PyObject *blocks_py_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	PlanObject *plan_o;
	blocks_spec spec = {0};
	PyObject *whole, *sizes;
	int ties, keep;
	size_list list = {0};
	clv_frontiers_options at = {sizeof at, NULL, NULL, 0};
	(void)kwargs;
	if (!PyArg_ParseTuple(args, "O!IO!ppO", &PlanType, &plan_o, &spec.depth, &PyList_Type, &whole, &ties, &keep,
	                      &sizes))
		return NULL;
	const char **names = string_array(whole, &spec.nwhole);
	BlocksObject *o = names && size_list_read(sizes, &list) ? (BlocksObject *)type->tp_alloc(type, 0) : NULL;
	if (o) {
		spec.whole = names;
		spec.ties_together = ties != 0;
		spec.keep_order = keep != 0;
		at.symbols = list.names;
		at.values = list.values;
		at.nsymbols = list.n;
		spec.sizes = &at;
		o->plan = (PlanObject *)Py_NewRef((PyObject *)plan_o);
		clv_status st = blocks_new(plan_o->p, &spec, &o->b);
		if (st != CLV_OK) {
			Py_CLEAR(o);
			raise_status(st);
		}
	}
	size_list_free(&list);
	PyMem_Free(names);
	return (PyObject *)o;
}

static PyObject *blocks_py_rows(BlocksObject *o, PyObject *unused)
{
	const plan *p = o->b.p;
	(void)unused;
	PyObject *out = PyList_New(o->b.at.n);
	for (uint32_t i = 0; out && i < o->b.at.n; i++) {
		const block *x = &o->b.at.at[i];
		const scope *sc = x->scope == NONE ? NULL : &p->scopes.at[x->scope];
		PyObject *item = Py_BuildValue("(sssOI)", x->name, sc ? plan_s(p, sc->path) : "", sc ? plan_s(p, sc->cls) : "",
		                               x->layer ? Py_True : Py_False, x->n);
		if (!item)
			Py_CLEAR(out);
		else
			PyList_SET_ITEM(out, i, item);
	}
	return out;
}

static PyObject *id_list(const uint32_t *ids, uint32_t n)
{
	PyObject *out = PyList_New(n);
	for (uint32_t i = 0; out && i < n; i++)
		PyList_SET_ITEM(out, i, PyLong_FromUnsignedLong(ids[i]));
	return out;
}

static PyObject *blocks_py_of_node(BlocksObject *o, PyObject *unused)
{
	(void)unused;
	return id_list(o->b.of_node, o->b.p->nodes.n);
}

/* (plan in another order, ends of its parts) */
static PyObject *reordered(PlanObject *like, clv_status st, plan *p, node_id *ends, uint32_t n)
{
	PyObject *out = NULL;
	if (st != CLV_OK) {
		raise_status(st);
	} else {
		PyObject *o = plan_object_like(like, p), *list = id_list(ends, n);
		if (o && list)
			out = PyTuple_Pack(2, o, list);
		Py_XDECREF(o);
		Py_XDECREF(list);
	}
	PyMem_Free(ends);
	return out;
}

static PyObject *blocks_py_plan(BlocksObject *o, PyObject *unused)
{
	plan *p = NULL;
	node_id *ends = PyMem_Calloc(o->b.at.n + 1, sizeof *ends);
	(void)unused;
	if (!ends)
		return PyErr_NoMemory();
	clv_status st = blocks_plan(&o->b, &p, ends);
	return reordered(o->plan, st, p, ends, o->b.at.n);
}

/* A list of n small numbers; NULL with an exception. */
static uint32_t *id_array(PyObject *list, uint32_t n, const char *what)
{
	if (!PyList_Check(list) || PyList_GET_SIZE(list) != (Py_ssize_t)n) {
		PyErr_Format(PyExc_ValueError, "a list of %u numbers is needed, one per %s", n, what);
		return NULL;
	}
	uint32_t *out = PyMem_Calloc(n + 1, sizeof *out);
	if (!out) {
		PyErr_NoMemory();
		return NULL;
	}
	for (uint32_t i = 0; i < n; i++) {
		unsigned long k = PyLong_AsUnsignedLong(PyList_GET_ITEM(list, i));
		out[i] = k < NONE ? (uint32_t)k : NONE;
	}
	if (PyErr_Occurred()) {
		PyMem_Free(out);
		return NULL;
	}
	return out;
}

/* match(plan, stage_of) -> the stage of each node of this plan, from those of another of the same model */
static PyObject *blocks_py_match(BlocksObject *o, PyObject *args)
{
	PlanObject *from;
	PyObject *list, *out = NULL;
	if (!PyArg_ParseTuple(args, "O!O", &PlanType, &from, &list))
		return NULL;
	uint32_t n = o->b.p->nodes.n;
	uint32_t *stage_of = id_array(list, from->p->nodes.n, "node");
	uint32_t *found = stage_of ? PyMem_Calloc(n + 1, sizeof *found) : NULL;
	if (found) {
		clv_status st = stages_match(from->p, stage_of, &o->b, found);
		out = st == CLV_OK ? id_list(found, n) : raise_status(st);
	} else if (stage_of) {
		PyErr_NoMemory();
	}
	PyMem_Free(stage_of);
	PyMem_Free(found);
	return out;
}

PyObject *plan_py_staged(PlanObject *o, PyObject *args)
{
	PyObject *list;
	unsigned int n;
	plan *p = NULL;
	if (!PyArg_ParseTuple(args, "OI", &list, &n))
		return NULL;
	uint32_t *stage_of = id_array(list, o->p->nodes.n, "node");
	if (!stage_of)
		return NULL;
	node_id *ends = PyMem_Calloc((size_t)n + 1, sizeof *ends);
	if (!ends) {
		PyMem_Free(stage_of);
		return PyErr_NoMemory();
	}
	clv_status st = stages_plan(o->p, stage_of, n, &p, ends);
	PyMem_Free(stage_of);
	return reordered(o, st, p, ends, n);
}

static PyMethodDef blocks_methods[] = {
	{"rows", (PyCFunction)blocks_py_rows, METH_NOARGS, "rows() -> [(name, module path, class, is a layer, nodes)]"},
	{"of_node", (PyCFunction)blocks_py_of_node, METH_NOARGS, "of_node() -> the block of each node"},
	{"plan", (PyCFunction)blocks_py_plan, METH_NOARGS, "plan() -> (the plan block by block, ends of the blocks)"},
	{"match", (PyCFunction)blocks_py_match, METH_VARARGS,
     "match(plan, stage_of) -> the stage of each node, from those of another plan of the same model"},
	{NULL, NULL, 0, NULL}};

PyTypeObject BlocksType = {PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cleave._native.Blocks",
                           .tp_basicsize = sizeof(BlocksObject),
                           .tp_flags = Py_TPFLAGS_DEFAULT,
                           .tp_new = blocks_py_new,
                           .tp_dealloc = (destructor)blocks_py_dealloc,
                           .tp_methods = blocks_methods};
