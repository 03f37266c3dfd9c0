/* Decides which nodes a back end takes: obstacles for every back end, and the table of the one in question.
 *
 * A segment is a function of tensors: it has no state, does not look at data, and its sizes follow from those of its
 * inputs. Everything else runs on the tape. */
#include "segment/support.h"

#include <string.h>

#include "plan/data.h"
#include "plan/ops.h"

static const struct {
	const char *name;
	support_fn fn;
} built_in[] = {
#define ROW(name) {#name, support_##name},
	CLV_BACKEND_LIST(ROW)};

enum { BUILT_IN = sizeof built_in / sizeof *built_in };

/* ---- one node --------------------------------------------------------------------------------------------------------------- */

typedef struct obstacle_walk {
	const plan *p;
	const char *found;
	str_id device; /* of the tensors seen so far; NONE: there was none */
	bool data;     /* the plan may have sizes that are read from data */
} obstacle_walk;

static void note_obstacle(obstacle_walk *w, bool there, const char *what)
{
	if (there && !w->found)
		w->found = what;
}

static void obstacles_of_tensor(obstacle_walk *w, const value *x)
{
	note_obstacle(w, (x->flags & VALUE_ODD) != 0, "has a tensor that is sparse, nested or opaque");
	note_obstacle(w, w->data && shape_takes_data(w->p, x), "has a tensor whose size is read from data");
	note_obstacle(w, w->device != NONE && w->device != x->device, "has tensors on different devices");
	w->device = x->device;
}

static void obstacles_of_arg(void *ctx, value_id v)
{
	obstacle_walk *w = ctx;
	const value *x = &w->p->values.at[v];
	if (x->type == TYPE_TENSOR && x->kind != VALUE_OBJECT)
		obstacles_of_tensor(w, x);
	else
		note_obstacle(w, true,
		              x->kind == VALUE_OBJECT ? "takes an object that is no tensor"
		                                      : "takes a number that is read from data");
}

static void obstacles_of_result(void *ctx, value_id v)
{
	obstacle_walk *w = ctx;
	const value *x = &w->p->values.at[v];
	note_obstacle(w, x->type != TYPE_TENSOR, "gives a number, which is read on the host");
	note_obstacle(w, value_guarded(w->p, v), "gives a tensor whose size depends on data");
	if (x->type == TYPE_TENSOR)
		obstacles_of_tensor(w, x);
}

static void obstacles_of_memory(void *ctx, value_id v)
{
	obstacle_walk *w = ctx;
	note_obstacle(w, w->p->values.at[alias_root(w->p, v)].kind != VALUE_RESULT,
	              "reads memory from outside beyond the elements of a tensor");
}

static void obstacles_of_node(obstacle_walk *w, node_id n)
{
	const node *x = &w->p->nodes.at[n];
	const char *op = plan_s(w->p, x->op);
	op_memory memory = (op_memory)node_op(w->p, n)->memory;
	note_obstacle(w, node_draws(w->p, n), "draws random numbers");
	note_obstacle(w, (x->flags & NODE_HOST) != 0, "reads data on the host");
	note_obstacle(w, (x->flags & NODE_IMPURE) != 0, "has an effect outside of the plan");
	note_obstacle(w, !strncmp(op, "cleave::", 8), "is Python, or a step of the tape itself");
	/* It hands memory on past its tensor, which a segment, whose inputs may be copies, does not have. */
	note_obstacle(w, memory == MEMORY_RESIZED || memory == MEMORY_JOINED || memory == MEMORY_SHARED,
	              "gives a tensor other memory");
	node_each_result(w->p, n, obstacles_of_result, w);
	node_each_arg(w->p, n, obstacles_of_arg, w);
	note_obstacle(w, w->data && node_takes(w->p, n, NONE), "takes a size that is read from data");
	if (memory == MEMORY_BEYOND)
		node_each_arg(w->p, n, obstacles_of_memory, w);
}

const char *support_obstacle(const plan *p, node_id n)
{
	obstacle_walk w = {p, NULL, NONE, true};
	obstacles_of_node(&w, n);
	return w.found;
}

/* ---- the plan --------------------------------------------------------------------------------------------------------------- */

typedef struct device_walk {
	const plan *p;
	str_id device;
} device_walk;

static void take_device(void *ctx, value_id v)
{
	device_walk *w = ctx;
	if (w->p->values.at[v].type == TYPE_TENSOR && w->p->values.at[v].kind != VALUE_OBJECT)
		w->device = w->p->values.at[v].device;
}

/* Of one of its tensors; NONE: it has none. */
static str_id node_device(const plan *p, node_id n)
{
	device_walk w = {p, NONE};
	node_each_arg(p, n, take_device, &w);
	node_each_result(p, n, take_device, &w);
	return w.device;
}

/* The device of most of the nodes that could be compiled; NONE: they have no tensors. */
static clv_status common_device(const plan *p, const char *const *no, str_id *out)
{
	uint32_t *count = mem_alloc(((size_t)p->strs.n + 1) * sizeof *count);
	TRY_MEM(count);
	*out = NONE;
	for (node_id n = 0; n < p->nodes.n; n++) {
		str_id d = no[n] ? NONE : node_device(p, n);
		if (d != NONE && (++count[d], *out == NONE || count[d] > count[*out]))
			*out = d;
	}
	mem_free(count);
	return CLV_OK;
}

static clv_status refuse_device(const plan *p, str_id d, str_id most, const char **texts, const char **no, arena *a)
{
	strbuf b = STRBUF_INIT;
	if (!texts[d]) {
		strbuf_printf(&b, "runs on %s, the rest of the plan on %s", plan_s(p, d), plan_s(p, most));
		TRY(arena_take(a, &b, &texts[d]));
	}
	*no = texts[d];
	return CLV_OK;
}

/* A segment is compiled for one device. */
static clv_status refuse_devices(const plan *p, const char **no, arena *a)
{
	str_id most;
	TRY(common_device(p, no, &most));
	const char **texts = mem_alloc(((size_t)p->strs.n + 1) * sizeof *texts); /* per device */
	clv_status st = texts ? CLV_OK : fail_nomem();
	for (node_id n = 0; n < p->nodes.n && st == CLV_OK; n++) {
		str_id d = no[n] ? NONE : node_device(p, n);
		if (d != NONE && d != most)
			st = refuse_device(p, d, most, texts, &no[n], a);
	}
	mem_free(texts);
	return st;
}

/* An operator of PyTorch or of the tape. For others the recorder assumes the worst, so "unknown" says more. */
static bool is_known(const char *op)
{
	return !strncmp(op, "aten::", 6) || !strncmp(op, "cleave::", 8);
}

static void refuse_obstacles(const plan *p, const char **no)
{
	bool data = first_data_symbol(p) != NONE;
	for (node_id n = 0; n < p->nodes.n; n++) {
		obstacle_walk w = {p, NULL, NONE, data};
		obstacles_of_node(&w, n);
		if (!no[n] || is_known(plan_s(p, p->nodes.at[n].op)))
			no[n] = w.found ? w.found : no[n];
	}
}

clv_status support_limit(const plan *p, const char **no, arena *a)
{
	refuse_obstacles(p, no);
	return refuse_devices(p, no, a);
}

static clv_status no_back_end(const char *name)
{
	strbuf b = STRBUF_INIT;
	strbuf_printf(&b, "there is no back end \"%s\"; built in are ", name);
	for (uint32_t i = 0; i < BUILT_IN; i++)
		strbuf_printf(&b, "%s\"%s\"", i ? ", " : "", built_in[i].name);
	return strbuf_fail(CLV_E_NOT_FOUND, &b);
}

clv_status support_of(const char *name, const plan *p, const support_spec *s, const char **no, arena *a)
{
	uint32_t i = 0;
	while (i < BUILT_IN && strcmp(built_in[i].name, name) != 0)
		i++;
	if (i == BUILT_IN)
		return no_back_end(name);
	memset(no, 0, p->nodes.n * sizeof *no);
	TRY(built_in[i].fn(p, s, no, a));
	return support_limit(p, no, a);
}
