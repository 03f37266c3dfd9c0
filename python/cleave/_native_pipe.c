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
	call c = {0};
	PyObject *of;
	clv_sizes at;
	blocks_spec spec = {.sizes = &at};
	if (!take(&c, args, "!ISppZ", &PlanType, &of, &spec.depth, &spec.whole, &spec.nwhole, &spec.ties_together,
	          &spec.keep_order, &at))
		return call_end(&c, NULL);
	BlocksObject *o = (BlocksObject *)type->tp_alloc(type, 0);
	if (o) {
		o->plan = (PlanObject *)Py_NewRef(of);
		if (!ok_or_raise(blocks_new(o->plan->p, &spec, &o->b)))
			Py_CLEAR(o);
	}
	return call_end(&c, (PyObject *)o);
}

static PyObject *block_to(const plan *p, const block *x)
{
	const scope *sc = x->scope == NONE ? NULL : &p->scopes.at[x->scope];
	return Py_BuildValue("(sssOI)", x->name, sc ? plan_s(p, sc->path) : "", sc ? plan_s(p, sc->cls) : "",
	                     truth(x->layers), x->n);
}

/* rows() -> [(name, module path, class, has layers, nodes)] */
static PyObject *blocks_py_rows(BlocksObject *o, PyObject *unused)
{
	LIST(out, o->b.at.n, block_to(o->b.p, &o->b.at.at[i]));
	return out;
}

/* of_node() -> the block of each node */
static PyObject *blocks_py_of_node(BlocksObject *o, PyObject *unused)
{
	return id_list(o->b.of_node, o->b.p->nodes.n);
}

/* (plan in another order, ends of its parts) */
static PyObject *reordered(PlanObject *like, plan *p, const node_id *ends, uint32_t n)
{
	return Py_BuildValue("(NN)", plan_object_like(like, p), id_list(ends, n));
}

/* plan() -> (the plan block by block, ends of the blocks) */
static PyObject *blocks_py_plan(BlocksObject *o, PyObject *unused)
{
	call c = {0};
	plan *p = NULL;
	node_id *ends = call_room(&c, o->b.at.n, sizeof *ends);
	bool ok = ends && ok_or_raise(blocks_plan(&o->b, &p, ends));
	return call_end(&c, ok ? reordered(o->plan, p, ends, o->b.at.n) : NULL);
}

static bool one_each(uint32_t n, uint32_t want, const char *what)
{
	if (n != want)
		PyErr_Format(PyExc_ValueError, "a list of %u numbers is needed, one per %s", want, what);
	return n == want;
}

/* match(plan, stage_of) -> the stage of each node of this plan, from those of another of the same model */
static PyObject *blocks_py_match(BlocksObject *o, PyObject *args)
{
	call c = {0};
	PlanObject *from;
	uint32_t *stage_of, given, n = o->b.p->nodes.n;
	if (!take(&c, args, "!U", &PlanType, &from, &stage_of, &given) || !one_each(given, from->p->nodes.n, "node"))
		return call_end(&c, NULL);
	uint32_t *found = call_room(&c, n, sizeof *found);
	bool ok = found && ok_or_raise(stages_match(from->p, stage_of, &o->b, found));
	return call_end(&c, ok ? id_list(found, n) : NULL);
}

/* staged(stage_of, nstages) -> (the plan stage by stage, ends of the stages) */
PLAN_METHOD(staged)
{
	call c = {0};
	uint32_t *stage_of, given, n;
	plan *p = NULL;
	if (!take(&c, args, "UI", &stage_of, &given, &n) || !one_each(given, o->p->nodes.n, "node"))
		return call_end(&c, NULL);
	node_id *ends = call_room(&c, n, sizeof *ends);
	bool ok = ends && ok_or_raise(stages_plan(o->p, stage_of, n, &p, ends));
	return call_end(&c, ok ? reordered(o, p, ends, n) : NULL);
}

/* ---- partitions ---------------------------------------------------------------------------------------------------- */

typedef struct PartitionObject {
	PyObject_HEAD
	pipe_graph g;
	call made; /* arrays that the problem has */
	pipe_problem pr;
	pipe_partition p;
	pipe_score score;
} PartitionObject;

static void partition_py_dealloc(PartitionObject *o)
{
	score_free(&o->score);
	partition_free(&o->p);
	graph_free(&o->g);
	call_end(&o->made, NULL);
	Py_TYPE(o)->tp_free((PyObject *)o);
}

/* costs: [(fwd_us, bwd_us, held, work, param)] */
static block_cost *read_costs(call *c, PyObject *list, uint32_t n)
{
	block_cost *out = one_each((uint32_t)PyList_GET_SIZE(list), n, "block") ? call_room(c, n, sizeof *out) : NULL;
	for (uint32_t i = 0; out && i < n; i++)
		if (!take(NULL, PyList_GET_ITEM(list, i), "ddLLL", &out[i].fwd_us, &out[i].bwd_us, &out[i].held_bytes,
		          &out[i].work_bytes, &out[i].param_bytes))
			return NULL;
	return out;
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
	static const char *const names[] = {
		"speeds",   "memory",       "bandwidth",  "latency_us", "schedule", "microbatches", "recompute",
		"training", "param_copies", "max_stages", "seed",       "seconds",  "objective",    NULL};
	double *speeds, *bandwidth;
	int64_t *memory;
	uint32_t k, m, nbandwidth;
	const char *schedule, *objective;
	pipe_problem *pr = &o->pr;
	if (!take_named(&o->made, NULL, options, names, "FXFdsIppdIKds", &speeds, &k, &memory, &m, &bandwidth, &nbandwidth,
	                &pr->latency_us, &schedule, &pr->microbatches, &pr->recompute, &pr->training, &pr->param_copies,
	                &pr->max_stages, &pr->seed, &pr->seconds, &objective))
		return false;
	pipe_device *devices = call_room(&o->made, k, sizeof *devices);
	if (m != k || (bandwidth && nbandwidth != k * k)) {
		PyErr_SetString(PyExc_ValueError, "speeds, memory and bandwidth do not fit together");
		return false;
	}
	for (uint32_t i = 0; devices && i < k; i++)
		devices[i] = (pipe_device){speeds[i], memory[i]};
	pr->g = &o->g;
	pr->devices = devices;
	pr->bandwidth = bandwidth;
	pr->k = k;
	return devices && ok_or_raise(pipe_goal_read(objective, &pr->goal)) && read_schedule(schedule, &pr->schedule);
}

/* partition(method, costs, bytes of each value or None, options) -> Partition */
static PyObject *blocks_py_partition(BlocksObject *o, PyObject *args)
{
	call c = {0};
	const char *method;
	PyObject *costs, *options;
	int64_t *weights;
	uint32_t n;
	if (!take(&c, args, "s[X{", &method, &costs, &weights, &n, &options))
		return call_end(&c, NULL);
	block_cost *cost = read_costs(&c, costs, o->b.at.n);
	PartitionObject *out = cost ? (PartitionObject *)PartitionType.tp_alloc(&PartitionType, 0) : NULL;
	bool ok = out && ok_or_raise(blocks_graph(&o->b, cost, &out->g)) &&
	          (!weights || one_each(n, out->g.values.n, "value")) && read_problem(out, options);
	for (uint32_t i = 0; ok && weights && i < n; i++)
		out->g.values.at[i].bytes = weights[i];
	if (!ok || !ok_or_raise(UNLOCKED(pipe_partition_run(&out->pr, method, &out->p, &out->score))))
		Py_CLEAR(out);
	return call_end(&c, (PyObject *)out);
}

/* stage_of() -> the stage of each block */
static PyObject *partition_py_stage_of(PartitionObject *o, PyObject *unused)
{
	PyObject *out = PyList_New(o->g.nodes.n);
	for (uint32_t i = 0; out && i < o->g.nodes.n; i++)
		PyList_SET_ITEM(out, (Py_ssize_t)o->g.nodes.at[i].id, PyLong_FromUnsignedLong(o->p.stage_of[i]));
	return out;
}

/* device_of() -> the device of each stage */
static PyObject *partition_py_device_of(PartitionObject *o, PyObject *unused)
{
	return id_list(o->p.device_of, o->p.nstages);
}

/* method() -> which method found it */
static PyObject *partition_py_method(PartitionObject *o, PyObject *unused)
{
	return PyUnicode_FromString(o->p.method ? o->p.method : "");
}

/* table() -> text for people */
static PyObject *partition_py_table(PartitionObject *o, PyObject *unused)
{
	strbuf b = STRBUF_INIT;
	clv_status st = partition_table(&o->pr, &o->p, &o->score, &b);
	return take_text(st, &b);
}

/* graph() -> the blocks as `cleave partition` reads them */
static PyObject *partition_py_graph(PartitionObject *o, PyObject *unused)
{
	strbuf b = STRBUF_INIT;
	clv_status st = graph_write(&o->g, &b);
	return take_text(st, &b);
}

/* json(seconds) -> as `cleave partition --json` */
static PyObject *partition_py_json(PartitionObject *o, PyObject *args)
{
	strbuf b = STRBUF_INIT;
	double seconds;
	if (!take(NULL, args, "d", &seconds))
		return NULL;
	clv_status st = partition_json(&o->pr, &o->p, &o->score, seconds, &b);
	return take_text(st, &b);
}

const pipe_score *partition_score(PyObject *partition, uint32_t *nstages)
{
	const PartitionObject *o = (PartitionObject *)partition;
	*nstages = o->p.nstages;
	return &o->score;
}

static PyObject *actions_of(const pipe_timeline *t, uint32_t device)
{
	const pipe_action *a = &t->actions[t->first[device]];
	LIST(out, t->first[device + 1] - t->first[device],
	     Py_BuildValue("(IsIdd)", a[i].stage, a[i].kind == ACTION_FORWARD ? "F" : "B", a[i].microbatch, a[i].start_us,
	                   a[i].end_us));
	return out;
}

/* timeline(schedule, microbatches, training) -> (per device [(stage, "F" or "B", micro-batch, start, end)], bubble, per
   second, the placement fits the schedule) */
static PyObject *partition_py_timeline(PartitionObject *o, PyObject *args)
{
	const char *schedule;
	pipe_problem pr = o->pr;
	pipe_timeline t = {0};
	if (!take(NULL, args, "sIp", &schedule, &pr.microbatches, &pr.training) || !read_schedule(schedule, &pr.schedule) ||
	    !ok_or_raise(timeline_new(&pr, &o->p, &o->score, &t)))
		return NULL;
	LIST(devices, o->pr.k, actions_of(&t, i));
	PyObject *out = Py_BuildValue("(NddO)", devices, t.bubble, t.per_second, truth(t.fits));
	timeline_free(&t);
	return out;
}

METHODS(partition_py, GIVES(partition_py, stage_of), GIVES(partition_py, device_of), GIVES(partition_py, method),
        GIVES(partition_py, table), GIVES(partition_py, graph), TAKES(partition_py, json),
        TAKES(partition_py, timeline));
TYPE(Partition, PartitionObject, partition_py, 0, .tp_doc = NULL);

static PyObject *value_to(const pipe_graph *g, const pipe_value *v)
{
	LIST(uses, v->nuses, PyLong_FromLongLong(g->nodes.at[g->uses.at[v->uses + i]].id));
	PyObject *from = v->from == PIPE_NONE ? Py_NewRef(Py_None) : PyLong_FromLongLong(g->nodes.at[v->from].id);
	return Py_BuildValue("(NNL)", from, uses, (long long)v->bytes);
}

/* values() -> [(block that makes it or None, [blocks that read it], bytes)], in the order that partition takes bytes in */
static PyObject *blocks_py_values(BlocksObject *o, PyObject *unused)
{
	call c = {0};
	pipe_graph g = {0};
	block_cost *none = call_room(&c, o->b.at.n, sizeof *none);
	if (!none || !ok_or_raise(blocks_graph(&o->b, none, &g)))
		return call_end(&c, NULL);
	LIST(out, g.values.n, value_to(&g, &g.values.at[i]));
	graph_free(&g);
	return call_end(&c, out);
}

METHODS(blocks_py, GIVES(blocks_py, rows), GIVES(blocks_py, of_node), GIVES(blocks_py, plan), GIVES(blocks_py, values),
        TAKES(blocks_py, partition), TAKES(blocks_py, match));
TYPE(Blocks, BlocksObject, blocks_py, 0, .tp_new = blocks_py_new);
