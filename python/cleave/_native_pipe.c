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
	clv_sizes at;
	if (!PyArg_ParseTuple(args, "O!IO!ppO", &PlanType, &plan_o, &spec.depth, &PyList_Type, &whole, &ties, &keep,
	                      &sizes))
		return NULL;
	const char **names = string_array(whole, &spec.nwhole);
	BlocksObject *o = names && size_list_read(sizes, &list) ? (BlocksObject *)type->tp_alloc(type, 0) : NULL;
	if (o) {
		spec.whole = names;
		spec.ties_together = ties != 0;
		spec.keep_order = keep != 0;
		at = (clv_sizes){list.names, list.values, list.n};
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
	PyObject *out = PyList_New(0);
	for (uint32_t i = 0; out && i < o->b.at.n; i++) {
		const block *x = &o->b.at.at[i];
		const scope *sc = x->scope == NONE ? NULL : &p->scopes.at[x->scope];
		list_push(&out, Py_BuildValue("(sssOI)", x->name, sc ? plan_s(p, sc->path) : "", sc ? plan_s(p, sc->cls) : "",
		                              x->layers ? Py_True : Py_False, x->n));
	}
	return out;
}

PyObject *id_list_new(const uint32_t *ids, uint32_t n)
{
	PyObject *out = PyList_New(0);
	for (uint32_t i = 0; out && i < n; i++)
		list_push(&out, PyLong_FromUnsignedLong(ids[i]));
	return out;
}

static PyObject *blocks_py_of_node(BlocksObject *o, PyObject *unused)
{
	return id_list_new(o->b.of_node, o->b.p->nodes.n);
}

/* (plan in another order, ends of its parts) */
static PyObject *reordered(PlanObject *like, clv_status st, plan *p, node_id *ends, uint32_t n)
{
	PyObject *out = NULL;
	if (st != CLV_OK) {
		raise_status(st);
	} else {
		PyObject *o = plan_object_like(like, p), *list = id_list_new(ends, n);
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
	if (!ends)
		return PyErr_NoMemory();
	clv_status st = blocks_plan(&o->b, &p, ends);
	return reordered(o->plan, st, p, ends, o->b.at.n);
}

uint32_t *id_array(PyObject *list, uint32_t n, const char *what)
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
		out = st == CLV_OK ? id_list_new(found, n) : raise_status(st);
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

/* ---- partitions ---------------------------------------------------------------------------------------------------- */

typedef struct PartitionObject {
	PyObject_HEAD
	pipe_graph g;
	pipe_device *devices;
	double *bandwidth;
	pipe_problem pr;
	pipe_partition p;
	pipe_score score;
} PartitionObject;

static void partition_py_dealloc(PartitionObject *o)
{
	score_free(&o->score);
	partition_free(&o->p);
	graph_free(&o->g);
	PyMem_Free(o->devices);
	PyMem_Free(o->bandwidth);
	Py_TYPE(o)->tp_free((PyObject *)o);
}

/* costs: [(fwd_us, bwd_us, held, work, param)] */
static block_cost *cost_array(PyObject *list, uint32_t n)
{
	if (!PyList_Check(list) || PyList_GET_SIZE(list) != (Py_ssize_t)n) {
		PyErr_Format(PyExc_ValueError, "a list with the cost of each of %u blocks is needed", n);
		return NULL;
	}
	block_cost *out = PyMem_Calloc(n + 1, sizeof *out);
	for (uint32_t i = 0; out && i < n; i++) {
		long long held, work, param;
		if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "ddLLL", &out[i].fwd_us, &out[i].bwd_us, &held, &work,
		                      &param)) {
			PyMem_Free(out);
			return NULL;
		}
		out[i].held_bytes = held;
		out[i].work_bytes = work;
		out[i].param_bytes = param;
	}
	return out ? out : (block_cost *)PyErr_NoMemory();
}

static bool set_bytes(pipe_graph *g, PyObject *list)
{
	if (list == Py_None)
		return true;
	if (!PyList_Check(list) || PyList_GET_SIZE(list) != (Py_ssize_t)g->values.n) {
		PyErr_SetString(PyExc_ValueError, "a list with the bytes of each value is needed");
		return false;
	}
	for (uint32_t i = 0; i < g->values.n; i++)
		g->values.at[i].bytes = PyLong_AsLongLong(PyList_GET_ITEM(list, i));
	return !PyErr_Occurred();
}

double *float_array(PyObject *list)
{
	Py_ssize_t n = PyList_GET_SIZE(list);
	double *out = PyMem_Calloc((size_t)n + 1, sizeof *out);
	if (!out)
		PyErr_NoMemory();
	for (Py_ssize_t i = 0; out && i < n; i++)
		out[i] = PyFloat_AsDouble(PyList_GET_ITEM(list, i));
	return out;
}

static bool read_devices(PartitionObject *o, PyObject *speeds, PyObject *memory, PyObject *bandwidth)
{
	Py_ssize_t k = PyList_GET_SIZE(speeds);
	if (PyList_GET_SIZE(memory) != k ||
	    (bandwidth != Py_None && (!PyList_Check(bandwidth) || PyList_GET_SIZE(bandwidth) != k * k))) {
		PyErr_SetString(PyExc_ValueError, "speeds, memory and bandwidth do not fit together");
		return false;
	}
	o->devices = PyMem_Calloc((size_t)k + 1, sizeof *o->devices);
	if (!o->devices)
		return PyErr_NoMemory() != NULL;
	for (Py_ssize_t i = 0; i < k; i++)
		o->devices[i] =
			(pipe_device){PyFloat_AsDouble(PyList_GET_ITEM(speeds, i)), PyLong_AsLongLong(PyList_GET_ITEM(memory, i))};
	o->bandwidth = bandwidth == Py_None ? NULL : float_array(bandwidth);
	o->pr.devices = o->devices;
	o->pr.bandwidth = o->bandwidth;
	o->pr.k = (uint32_t)k;
	return !PyErr_Occurred();
}

static bool read_schedule(const char *name, pipe_schedule *out)
{
	for (int i = 0; i < SCHEDULE_COUNT; i++)
		if (!strcmp(name, pipe_schedule_names[i])) {
			*out = (pipe_schedule)i;
			return true;
		}
	PyErr_Format(PyExc_ValueError, "there is no schedule %s", name);
	return false;
}

static bool read_problem(PartitionObject *o, PyObject *options)
{
	static char *names[] = {"speeds",    "memory",   "bandwidth",    "latency_us", "schedule", "microbatches",
	                        "recompute", "training", "param_copies", "max_stages", "seed",     "seconds",
	                        "objective", NULL};
	PyObject *speeds, *memory, *bandwidth, *empty = PyTuple_New(0);
	const char *schedule, *objective;
	unsigned int microbatches, max_stages;
	unsigned long long seed;
	int recompute, training;
	pipe_problem *pr = &o->pr;
	bool read = empty && PyArg_ParseTupleAndKeywords(empty, options, "O!O!OdsIppdIKds", names, &PyList_Type, &speeds,
	                                                 &PyList_Type, &memory, &bandwidth, &pr->latency_us, &schedule,
	                                                 &microbatches, &recompute, &training, &pr->param_copies,
	                                                 &max_stages, &seed, &pr->seconds, &objective);
	Py_XDECREF(empty);
	pr->g = &o->g;
	pr->microbatches = read ? microbatches : 0;
	pr->max_stages = read ? max_stages : 0;
	pr->seed = read ? seed : 0;
	pr->recompute = read && recompute;
	pr->training = read && training;
	clv_status st = read ? pipe_goal_read(objective, &pr->goal) : CLV_OK;
	if (st != CLV_OK)
		raise_status(st);
	return read && st == CLV_OK && read_schedule(schedule, &pr->schedule) && read_devices(o, speeds, memory, bandwidth);
}

static PyObject *blocks_py_partition(BlocksObject *o, PyObject *args)
{
	const char *method;
	PyObject *costs, *weights, *options;
	if (!PyArg_ParseTuple(args, "sOOO!", &method, &costs, &weights, &PyDict_Type, &options))
		return NULL;
	block_cost *cost = cost_array(costs, o->b.at.n);
	PartitionObject *out = cost ? (PartitionObject *)PartitionType.tp_alloc(&PartitionType, 0) : NULL;
	clv_status st = out ? blocks_graph(&o->b, cost, &out->g) : CLV_OK;
	PyMem_Free(cost);
	if (out && st == CLV_OK && set_bytes(&out->g, weights) && read_problem(out, options)) {
		Py_BEGIN_ALLOW_THREADS;
		st = pipe_partition_run(&out->pr, method, &out->p, &out->score);
		Py_END_ALLOW_THREADS;
	}
	if (out && st != CLV_OK)
		raise_status(st);
	if (PyErr_Occurred())
		Py_CLEAR(out);
	return (PyObject *)out;
}

/* stage_of() -> the stage of each block */
static PyObject *partition_py_stage_of(PartitionObject *o, PyObject *unused)
{
	PyObject *out = PyList_New(o->g.nodes.n);
	for (uint32_t i = 0; out && i < o->g.nodes.n; i++)
		PyList_SET_ITEM(out, (Py_ssize_t)o->g.nodes.at[i].id, PyLong_FromUnsignedLong(o->p.stage_of[i]));
	return out;
}

static PyObject *partition_py_device_of(PartitionObject *o, PyObject *unused)
{
	return id_list_new(o->p.device_of, o->p.nstages);
}

static PyObject *partition_py_method(PartitionObject *o, PyObject *unused)
{
	return PyUnicode_FromString(o->p.method ? o->p.method : "");
}

static PyObject *partition_py_table(PartitionObject *o, PyObject *unused)
{
	strbuf b = STRBUF_INIT;
	clv_status st = partition_table(&o->pr, &o->p, &o->score, &b);
	return take_text(st, &b);
}

static PyObject *partition_py_graph(PartitionObject *o, PyObject *unused)
{
	strbuf b = STRBUF_INIT;
	clv_status st = graph_write(&o->g, &b);
	return take_text(st, &b);
}

/* json(seconds) -> as `cleave partition --json` */
static PyObject *partition_py_json(PartitionObject *o, PyObject *seconds)
{
	strbuf b = STRBUF_INIT;
	double s = PyFloat_AsDouble(seconds);
	if (PyErr_Occurred())
		return NULL;
	clv_status st = partition_json(&o->pr, &o->p, &o->score, s, &b);
	return take_text(st, &b);
}

bool partition_facts(PyObject *partition, clv_pipe_stage **out, uint32_t *n, double *lower_bound_us)
{
	const PartitionObject *o = (PartitionObject *)partition;
	clv_pipe_stage *facts = PyMem_Calloc(o->p.nstages, sizeof *facts);
	*out = facts;
	if (!facts)
		return PyErr_NoMemory() != NULL;
	for (uint32_t i = 0; i < o->p.nstages; i++) {
		const stage_score *s = &o->score.stages[i];
		facts[i] = (clv_pipe_stage){sizeof *facts,    s->device,      s->nodes,        s->fwd_us,
		                            s->bwd_us,        s->comm_us,     s->in_bytes,     s->out_bytes,
		                            s->relayed_bytes, s->param_bytes, s->memory_bytes, s->in_flight};
	}
	*n = o->p.nstages;
	*lower_bound_us = o->score.lower_bound_us;
	return true;
}

/* stages() -> [{…}] */
static PyObject *partition_py_stages(PartitionObject *o, PyObject *unused)
{
	PyObject *out = PyList_New(0);
	for (uint32_t i = 0; out && i < o->p.nstages; i++) {
		const stage_score *s = &o->score.stages[i];
		list_push(&out, Py_BuildValue("{sI sI sd sd sd sL sL sL sL sL sI}", "device", s->device, "blocks", s->nodes,
		                              "fwd_us", s->fwd_us, "bwd_us", s->bwd_us, "comm_us", s->comm_us, "in_bytes",
		                              (long long)s->in_bytes, "out_bytes", (long long)s->out_bytes, "relayed_bytes",
		                              (long long)s->relayed_bytes, "param_bytes", (long long)s->param_bytes,
		                              "memory_bytes", (long long)s->memory_bytes, "in_flight", s->in_flight));
	}
	return out;
}

static PyObject *action_list(const pipe_timeline *t, uint32_t device)
{
	uint32_t first = t->first[device], n = t->first[device + 1] - first;
	PyObject *out = PyList_New(0);
	for (uint32_t i = 0; out && i < n; i++) {
		const pipe_action *a = &t->actions[first + i];
		list_push(&out, Py_BuildValue("(IsIdd)", a->stage, a->kind == ACTION_FORWARD ? "F" : "B", a->microbatch,
		                              a->start_us, a->end_us));
	}
	return out;
}

/* timeline(schedule, microbatches, training) -> (per device [(stage, "F" or "B", micro-batch, start, end)], bubble, per
   second, the placement fits the schedule) */
static PyObject *partition_py_timeline(PartitionObject *o, PyObject *args)
{
	const char *schedule;
	unsigned int microbatches;
	int training;
	pipe_problem pr = o->pr;
	pipe_timeline t = {0};
	if (!PyArg_ParseTuple(args, "sIp", &schedule, &microbatches, &training) || !read_schedule(schedule, &pr.schedule))
		return NULL;
	pr.microbatches = microbatches;
	pr.training = training != 0;
	clv_status st = timeline_new(&pr, &o->p, &o->score, &t);
	if (st != CLV_OK)
		return raise_status(st);
	PyObject *devices = PyList_New(0);
	for (uint32_t d = 0; devices && d < o->pr.k; d++)
		list_push(&devices, action_list(&t, d));
	PyObject *out =
		devices ? Py_BuildValue("(NddO)", devices, t.bubble, t.per_second, t.fits ? Py_True : Py_False) : NULL;
	timeline_free(&t);
	return out;
}

static PyMethodDef partition_methods[] = {
	{"stage_of", (PyCFunction)partition_py_stage_of, METH_NOARGS, "stage_of() -> the stage of each block"},
	{"device_of", (PyCFunction)partition_py_device_of, METH_NOARGS, "device_of() -> the device of each stage"},
	{"method", (PyCFunction)partition_py_method, METH_NOARGS, "method() -> which method found it"},
	{"table", (PyCFunction)partition_py_table, METH_NOARGS, "table() -> text for people"},
	{"graph", (PyCFunction)partition_py_graph, METH_NOARGS, "graph() -> the blocks as cleave partition reads them"},
	{"json", (PyCFunction)partition_py_json, METH_O, "json(seconds) -> as cleave partition --json"},
	{"stages", (PyCFunction)partition_py_stages, METH_NOARGS, "stages() -> what each stage costs"},
	{"timeline", (PyCFunction)partition_py_timeline, METH_VARARGS,
     "timeline(schedule, microbatches, training) -> (actions per device, bubble, per second, fits)"},
	{NULL, NULL, 0, NULL}};

PyTypeObject PartitionType = {PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cleave._native.Partition",
                              .tp_basicsize = sizeof(PartitionObject), .tp_flags = Py_TPFLAGS_DEFAULT,
                              .tp_dealloc = (destructor)partition_py_dealloc, .tp_methods = partition_methods};

/* values() -> [(block that makes it or None, [blocks that read it], bytes)], in the order that partition takes bytes in */
static PyObject *blocks_py_values(BlocksObject *o, PyObject *unused)
{
	pipe_graph g = {0};
	block_cost *none = PyMem_Calloc(o->b.at.n + 1, sizeof *none);
	if (!none)
		return PyErr_NoMemory();
	clv_status st = blocks_graph(&o->b, none, &g);
	PyMem_Free(none);
	if (st != CLV_OK)
		return raise_status(st);
	PyObject *out = PyList_New(0);
	for (uint32_t i = 0; out && i < g.values.n; i++) {
		const pipe_value *v = &g.values.at[i];
		PyObject *uses = PyList_New(v->nuses);
		for (uint32_t k = 0; uses && k < v->nuses; k++)
			PyList_SET_ITEM(uses, k, PyLong_FromLongLong(g.nodes.at[g.uses.at[v->uses + k]].id));
		PyObject *from = v->from == PIPE_NONE ? Py_NewRef(Py_None) : PyLong_FromLongLong(g.nodes.at[v->from].id);
		list_push(&out, uses && from ? Py_BuildValue("(NNL)", from, uses, (long long)v->bytes) : NULL);
	}
	graph_free(&g);
	return out;
}

static PyMethodDef blocks_methods[] = {
	{"rows", (PyCFunction)blocks_py_rows, METH_NOARGS, "rows() -> [(name, module path, class, has layers, nodes)]"},
	{"of_node", (PyCFunction)blocks_py_of_node, METH_NOARGS, "of_node() -> the block of each node"},
	{"plan", (PyCFunction)blocks_py_plan, METH_NOARGS, "plan() -> (the plan block by block, ends of the blocks)"},
	{"values", (PyCFunction)blocks_py_values, METH_NOARGS, "values() -> [(block or None, [blocks], bytes)]"},
	{"partition", (PyCFunction)(void (*)(void))blocks_py_partition, METH_VARARGS,
     "partition(method, costs, bytes or None, options) -> Partition"},
	{"match", (PyCFunction)blocks_py_match, METH_VARARGS,
     "match(plan, stage_of) -> the stage of each node, from those of another plan of the same model"},
	{NULL, NULL, 0, NULL}};

PyTypeObject BlocksType = {PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cleave._native.Blocks",
                           .tp_basicsize = sizeof(BlocksObject),
                           .tp_flags = Py_TPFLAGS_DEFAULT,
                           .tp_new = blocks_py_new,
                           .tp_dealloc = (destructor)blocks_py_dealloc,
                           .tp_methods = blocks_methods};
