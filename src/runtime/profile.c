/* Profiles of a runtime: the time of each node, run by run. */
#include <string.h>

#include "base/options.h"
#include "runtime/runtime.h"

static uint32_t steps_of(const runtime *r, const runtime_plan *e)
{
	return r->engine->steps ? r->engine->steps(e->program) : 0;
}

clv_status profile_begin(const runtime *r, runtime_plan *e, int64_t **times)
{
	uint32_t n = steps_of(r, e);
	TRY(vec_reserve(&e->times, n));
	*times = vec_from(&e->times, e->times.n);
	for (uint32_t i = 0; i < n; i++)
		e->times.at[e->times.n++] = 0;
	return CLV_OK;
}

void profile_drop(const runtime *r, runtime_plan *e)
{
	e->times.n -= steps_of(r, e);
}

clv_status clv_runtime_profile(clv_runtime *r, bool on)
{
	if (!r)
		return fail(CLV_E_INVALID, "clv_runtime_profile needs a runtime");
	TRY(runtime_needs_here(r, "profile"));
	for (uint32_t i = 0; on && i < r->plans.n; i++) {
		runtime_plan *e = &r->plans.at[i];
		e->times.n = 0;
		if (!e->names)
			TRY(node_names_new(e->of.p, &e->names));
	}
	r->profiling = on;
	return CLV_OK;
}

/* Nodes of plans that no timed run used are not listed. */
static uint32_t listed(const runtime *r, const runtime_plan *e)
{
	return e->times.n ? steps_of(r, e) : 0;
}

uint32_t clv_runtime_profile_count(const clv_runtime *r)
{
	uint32_t n = 0;
	for (uint32_t i = 0; r && i < r->plans.n; i++)
		n += listed(r, &r->plans.at[i]);
	return n;
}

static int by_size(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
	return (x > y) - (x < y);
}

static clv_status add_times(const runtime_plan *e, uint32_t steps, uint32_t s, clv_profile_node *out)
{
	uint32_t runs = e->times.n / steps;
	int64_t *sorted = mem_realloc(NULL, runs, sizeof *sorted);
	TRY_MEM(sorted);
	for (uint32_t k = 0; k < runs; k++) {
		sorted[k] = e->times.at[k * steps + s];
		out->total_ns += sorted[k];
	}
	qsort(sorted, runs, sizeof *sorted, by_size);
	out->runs = runs;
	out->min_ns = sorted[0];
	out->median_ns = sorted[runs / 2];
	mem_free(sorted);
	return CLV_OK;
}

static clv_status describe_node_profile(const runtime *r, uint32_t plan_number, uint32_t s, clv_profile_node *out)
{
	runtime_plan *e = &((runtime *)r)->plans.at[plan_number];
	const plan *p = e->of.p;
	node_id id = r->engine->step(e->program, s);
	const node *n = &p->nodes.at[id];
	out->plan = plan_number;
	out->node = id;
	out->name = node_name(e->names, id);
	out->op = plan_s(p, n->op);
	out->module = n->scope != NONE ? plan_s(p, p->scopes.at[n->scope].path) : "";
	out->at = n->at != NONE ? plan_s(p, n->at) : "";
	return add_times(e, steps_of(r, e), s, out);
}

clv_status clv_runtime_profile_get(const clv_runtime *r, uint32_t i, clv_profile_node *out)
{
	clv_profile_node x = {0};
	if (!r || !out || i >= clv_runtime_profile_count(r))
		return fail(CLV_E_INVALID, "clv_runtime_profile_get: there is no node %u, or no place for it", i);
	uint32_t k = 0;
	for (; i >= listed(r, &r->plans.at[k]); k++)
		i -= listed(r, &r->plans.at[k]);
	TRY(describe_node_profile(r, k, i, &x));
	return options_write(out, &x, sizeof x, "clv_profile_node");
}
