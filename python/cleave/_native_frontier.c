/* Frontiers of a Plan: listed, chosen by a boundary and an objective, and the exact cut. Sizes are a dict of symbol to int; an
 * objective has the fields of clv_objective. */
#include "_native.h"

#include "split/early.h"
#include "split/frontier.h"

/* What the methods take: texts are borrowed from Python. */
typedef struct question {
	call c;
	clv_frontiers *f;
	clv_objective goal;
} question;

static bool read_objective(PyObject *dict, clv_objective *o)
{
	static const char *const names[] = {"minimize",
	                                    "trainable_suffix",
	                                    "max_boundary_bytes",
	                                    "max_prefix_memory",
	                                    "max_suffix_memory",
	                                    "max_prefix_params",
	                                    "max_suffix_params",
	                                    "min_prefix_flops_fraction",
	                                    "max_prefix_flops_fraction",
	                                    "max_latency_s",
	                                    "bandwidth_bytes_per_s",
	                                    "prefix_flops_per_s",
	                                    "suffix_flops_per_s",
	                                    "compress",
	                                    "compress_bytes_per_s",
	                                    NULL};
	*o = (clv_objective)CLV_OBJECTIVE_INIT;
	return take_named(NULL, NULL, dict, names, "|zpLLLLLddddddzd", &o->minimize, &o->trainable_suffix,
	                  &o->max_boundary_bytes, &o->max_prefix_memory, &o->max_suffix_memory, &o->max_prefix_params,
	                  &o->max_suffix_params, &o->min_prefix_flops_fraction, &o->max_prefix_flops_fraction,
	                  &o->max_latency_s, &o->bandwidth_bytes_per_s, &o->prefix_flops_per_s, &o->suffix_flops_per_s,
	                  &o->compress, &o->compress_bytes_per_s);
}

/* objective: NULL where none is asked for; sizes may be NULL */
static bool ask(question *q, PlanObject *o, PyObject *objective, const clv_sizes *sizes)
{
	return (!objective || read_objective(objective, &q->goal)) && ok_or_raise(clv_frontiers_create(o->p, sizes, &q->f));
}

static PyObject *answer(question *q, PyObject *out)
{
	clv_frontiers_free(q->f);
	return call_end(&q->c, out);
}

static PyObject *bytes_text(const clv_frontiers *f, uint32_t i)
{
	char *text = NULL;
	clv_status st = clv_frontiers_bytes_text(f, i, &text);
	return take_string(st, text);
}

static PyObject *label_tuple(const clv_frontiers *f, uint32_t i)
{
	char *text = NULL;
	clv_status st = clv_frontiers_labels(f, i, &text);
	PyObject *all = take_string(st, text), *list = all ? PyUnicode_Split(all, NULL, -1) : NULL;
	Py_XDECREF(all);
	return as_tuple(list);
}

static PyObject *frontier_tuple(const clv_frontiers *f, uint32_t i)
{
	clv_frontier c = {.size = sizeof c};
	clv_status st = clv_frontiers_get(f, i, &c);
	if (st != CLV_OK)
		return raise_status(st);
	return Py_BuildValue("(IssIILdOzNNIIddLLLLLL)", c.position, c.name, c.module, c.boundary_tensors,
	                     c.passthrough_inputs, (long long)c.boundary_bytes, c.prefix_cost, truth(c.trainable_suffix),
	                     c.unsafe, bytes_text(f, i), label_tuple(f, i), c.prefix_nodes, c.suffix_nodes, c.prefix_flops,
	                     c.suffix_flops, (long long)c.prefix_params, (long long)c.suffix_params,
	                     (long long)c.prefix_param_bytes, (long long)c.suffix_param_bytes, (long long)c.prefix_memory,
	                     (long long)c.suffix_memory);
}

/* frontiers(sizes=None) -> list of the fields of SplitCandidate */
PLAN_METHOD(frontiers)
{
	question q = {0};
	clv_sizes sizes = {0};
	if (!take(&q.c, args, "|Z", &sizes) || !ask(&q, o, NULL, &sizes))
		return answer(&q, NULL);
	LIST(out, clv_frontiers_count(q.f), frontier_tuple(q.f, i));
	return answer(&q, out);
}

/* work(sizes=None) -> operations of a run, estimated */
PLAN_METHOD(work)
{
	question q = {0};
	clv_sizes sizes = {0};
	clv_total total = {.size = sizeof total};
	bool ok =
		take(&q.c, args, "|Z", &sizes) && ask(&q, o, NULL, &sizes) && ok_or_raise(clv_frontiers_total(q.f, &total));
	return answer(&q, ok ? PyFloat_FromDouble(total.flops) : NULL);
}

/* choose(boundary, objective, sizes=None) -> which frontier */
PLAN_METHOD(choose)
{
	question q = {0};
	const char *boundary;
	PyObject *goal;
	clv_sizes sizes = {0};
	uint32_t i = 0;
	bool ok = take(&q.c, args, "s{|Z", &boundary, &goal, &sizes) && ask(&q, o, goal, &sizes) &&
	          ok_or_raise(clv_frontiers_choose(q.f, boundary, &q.goal, &i));
	return answer(&q, ok ? PyLong_FromUnsignedLong(i) : NULL);
}

/* check(which, objective, sizes=None): raises what it misses */
PLAN_METHOD(check)
{
	question q = {0};
	uint32_t i;
	PyObject *goal;
	clv_sizes sizes = {0};
	bool ok = take(&q.c, args, "I{|Z", &i, &goal, &sizes) && ask(&q, o, goal, &sizes);
	return answer(&q, ok ? none_or_raise(clv_frontiers_check(q.f, i, &q.goal)) : NULL);
}

/* latency(which, objective, sizes=None) -> (cut, here, there, sent bytes, input bytes, advice or None) */
PLAN_METHOD(latency)
{
	question q = {0};
	uint32_t i;
	PyObject *goal;
	clv_sizes sizes = {0};
	clv_latency l = {.size = sizeof l};
	clv_total all = {.size = sizeof all};
	char *advice = NULL;
	bool ok = take(&q.c, args, "I{|Z", &i, &goal, &sizes) && ask(&q, o, goal, &sizes) &&
	          ok_or_raise(clv_frontiers_latency(q.f, i, &q.goal, &l)) && ok_or_raise(clv_frontiers_total(q.f, &all)) &&
	          ok_or_raise(clv_frontiers_advice(q.f, i, &q.goal, &advice));
	PyObject *out = ok ? Py_BuildValue("(dddLLz)", l.cut_s, l.here_s, l.there_s, (long long)l.sent_bytes,
	                                   (long long)all.input_bytes, advice)
	                   : NULL;
	clv_free(advice);
	return answer(&q, out);
}

/* speed_load(path) -> operations per second, as `cleave bench --json` measured */
PyObject *speed_load_py(PyObject *module, PyObject *path)
{
	double speed = 0;
	PyObject *bytes = NULL;
	if (!PyUnicode_FSConverter(path, &bytes))
		return NULL;
	clv_status st = clv_speed_load(PyBytes_AS_STRING(bytes), &speed);
	Py_DECREF(bytes);
	return st == CLV_OK ? PyFloat_FromDouble(speed) : raise_status(st);
}

static PyObject *exact_result(PlanObject *o, clv_status st, plan *p, uint32_t at)
{
	return st == CLV_OK ? Py_BuildValue("(NI)", plan_object_like(o, p), at) : raise_status(st);
}

/* exact_like(other, position, sizes=None) -> as exact, where `other` is cut after node `position` */
PLAN_METHOD(exact_like)
{
	question q = {0};
	plan *p = NULL;
	uint32_t position, at = 0;
	PlanObject *other;
	clv_sizes sizes = {0};
	if (!take(&q.c, args, "!I|Z", &PlanType, &other, &position, &sizes) || !ask(&q, o, NULL, &sizes))
		return answer(&q, NULL);
	clv_status st = frontiers_exact_like(q.f, other->p, position, &p, &at);
	return answer(&q, exact_result(o, st, p, at));
}

/* exact(must_prefix, must_suffix, sizes=None) -> the plan reordered around its cut with the fewest bytes, position */
PLAN_METHOD(exact)
{
	question q = {0};
	plan *p = NULL;
	uint32_t at = 0;
	clv_exact_options e = CLV_EXACT_OPTIONS_INIT;
	clv_sizes sizes = {0};
	if (!take(&q.c, args, "SS|Z", &e.must_prefix, &e.nmust_prefix, &e.must_suffix, &e.nmust_suffix, &sizes) ||
	    !ask(&q, o, NULL, &sizes))
		return answer(&q, NULL);
	clv_status st = clv_frontiers_exact(q.f, &e, &p, &at);
	return answer(&q, exact_result(o, st, p, at));
}

/* guards_early(position, most) -> (the plan with the first `most` guards of the suffix in the prefix, as far as it can decide
   them, and the position of the cut in it), how many moved, 2**32 - 1 if none is left */
PLAN_METHOD(guards_early)
{
	PyObject *number;
	uint32_t at, most;
	plan *p = NULL;
	if (!take(NULL, args, "OI", &number, &most) || !index_of(number, o->p->nodes.n, "node", &at))
		return NULL;
	node_id cut = at + 1;
	clv_status st = guards_early(o->p, &cut, &most, &p);
	PyObject *moved = st == CLV_OK && !p ? Py_BuildValue("(OI)", o, at) : exact_result(o, st, p, cut - 1);
	return moved ? Py_BuildValue("(NI)", moved, most) : NULL;
}

/* guards_first(end) -> (the plan with guards in front that its first `end` nodes can decide, or None, how many nodes these are,
   how many guards are left) */
PLAN_METHOD(guards_first)
{
	uint32_t at, late = 0;
	plan *p = NULL;
	node_id n = 0;
	if (!index_of(args, o->p->nodes.n + 1, "node", &at) || !ok_or_raise(guards_first(o->p, at, &p, &n, &late)))
		return NULL;
	return Py_BuildValue("(NII)", p ? plan_object_like(o, p) : Py_NewRef(Py_None), n, late);
}

/* match(position, other) -> where `other` is cut if this one is cut there, or None */
PLAN_METHOD(match)
{
	uint32_t position;
	PlanObject *other;
	node_id found;
	if (!take(NULL, args, "I!", &position, &PlanType, &other) ||
	    !ok_or_raise(place_match(o->p, position, other->p, &found)))
		return NULL;
	return found == NONE ? Py_NewRef(Py_None) : PyLong_FromUnsignedLong(found);
}

typedef struct TwoPlans {
	const PlanObject *a, *b;
} TwoPlans;

static bool same_const(void *ctx, value_id a, value_id b)
{
	const TwoPlans *p = ctx;
	const br_tensor *x = a < p->a->data.n ? p->a->data.tensors[a] : NULL;
	const br_tensor *y = b < p->b->data.n ? p->b->data.tensors[b] : NULL;
	bool same = x && x == y;
	return same || (x && y && br_bits_equal(x, y, &same) == CLV_OK && same);
}

/* same_until(other, end, sizes) -> the nodes before `end` do the same in both, in a call with these sizes */
PLAN_METHOD(same_until)
{
	call c = {0};
	uint32_t end;
	PlanObject *other;
	clv_sizes sizes;
	bool same = false;
	if (!take(&c, args, "!IZ", &PlanType, &other, &end, &sizes))
		return call_end(&c, NULL);
	int64_t *mine = symbols_at(&c, o->p, &sizes), *theirs = mine ? symbols_at(&c, other->p, &sizes) : NULL;
	bool ok = theirs &&
	          ok_or_raise(plan_same_at(o->p, mine, other->p, theirs, end, same_const, &(TwoPlans){o, other}, &same));
	return call_end(&c, ok ? PyBool_FromLong(same) : NULL);
}

/* module_sides(end) -> [(module path, sides of a cut before node `end` that it runs on: 1 the prefix, 2 the suffix)] */
PLAN_METHOD(module_sides)
{
	uint32_t end;
	uint8_t *bits = NULL;
	const plan *p = o->p;
	if (!take(NULL, args, "I", &end) || !ok_or_raise(scope_sides(p, end, &bits)))
		return NULL;
	LIST(out, p->scopes.n, Py_BuildValue("(si)", plan_s(p, p->scopes.at[i].path), bits[i]));
	mem_free(bits);
	return out;
}
