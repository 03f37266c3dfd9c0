/* Takes back a run that a guard ended: restores the tensors and random generators that it changed. */
#include "exec/undo.h"

#include <string.h>

#include "plan/data.h"

struct undo {
	VEC(uint32_t) inputs; /* that are written: places among the view's inputs, and among its externals */
	VEC(uint32_t) externals;
	VEC(const char *) devices; /* whose generators are drawn from; borrowed from the plan */
	bool lost;                 /* something is changed that cannot be put back */
};

/* ---- what is changed ---------------------------------------------------------------------------------------------- */

/* One behind the last node of the view that may end a run; NONE: no node may. */
static node_id guarded_end(const view *v)
{
	for (uint32_t i = v->nodes.n; i-- > 0;)
		if (node_guards(v->p, v->nodes.at[i]))
			return v->nodes.at[i] + 1;
	return NONE;
}

static bool takes_object(const plan *p, const node *n)
{
	for (uint32_t i = 0; i < n->nargs; i++) {
		const arg *a = &p->args.at[n->args + i];
		if (a->kind == ARG_VALUE && p->values.at[a->u.v].kind == VALUE_OBJECT)
			return true;
	}
	return false;
}

static const char *result_device(const plan *p, const node *n)
{
	for (uint32_t i = 0; i < n->nresults; i++) {
		const arg *a = &p->args.at[n->results + i];
		if (a->kind == ARG_VALUE && p->values.at[a->u.v].type == TYPE_TENSOR)
			return plan_s(p, p->values.at[a->u.v].device);
	}
	return "cpu";
}

static clv_status add_device(undo *u, const char *device)
{
	for (uint32_t i = 0; i < u->devices.n; i++)
		if (!strcmp(u->devices.at[i], device))
			return CLV_OK;
	return vec_push(&u->devices, device);
}

static clv_status find_written_tensors(undo *u, const clv_program *g, const bool *written)
{
	const view *v = &g->v;
	for (uint32_t i = 0; i < v->inputs.n; i++)
		if (g->p->values.at[v->inputs.at[i]].kind == VALUE_INPUT && written[alias_root(g->p, v->inputs.at[i])])
			TRY(vec_push(&u->inputs, i));
	for (uint32_t i = 0; i < v->externals.n; i++)
		if (g->p->values.at[v->externals.at[i]].kind != VALUE_OBJECT && written[alias_root(g->p, v->externals.at[i])])
			TRY(vec_push(&u->externals, i));
	return CLV_OK;
}

static clv_status note_node_changes(undo *u, const plan *p, node_id id, bool *written)
{
	const node *n = &p->nodes.at[id];
	for (uint32_t k = 0; k < n->nwrites; k++)
		written[alias_root(p, p->ids.at[n->writes + k])] = true;
	u->lost |= n->op_id == OP_cleave_python || ((n->flags & NODE_IMPURE) && !op_known(plan_s(p, n->op)));
	if (!node_draws(p, id))
		return CLV_OK;
	u->lost |= takes_object(p, n); /* a generator of its own */
	return add_device(u, result_device(p, n));
}

static clv_status find_changes(undo *u, const clv_program *g, node_id end, bool *written)
{
	const view *v = &g->v;
	for (uint32_t i = 0; i < v->nodes.n && v->nodes.at[i] < end; i++)
		TRY(note_node_changes(u, g->p, v->nodes.at[i], written));
	if (v->nodes.n)
		written_through(g->p, v->nodes.at[0], end, written);
	return find_written_tensors(u, g, written);
}

clv_status undo_new(const clv_program *g, undo **out)
{
	node_id end = guarded_end(&g->v);
	*out = NULL;
	if (end == NONE)
		return CLV_OK;
	undo *u = mem_alloc(sizeof *u);
	bool *written = mem_alloc((g->p->values.n + 1) * sizeof *written);
	clv_status st = u && written ? find_changes(u, g, end, written) : fail_nomem();
	mem_free(written);
	if (st != CLV_OK || !(u->lost || u->inputs.n || u->externals.n || u->devices.n))
		undo_free(u);
	else
		*out = u;
	return st;
}

void undo_free(undo *u)
{
	if (!u)
		return;
	vec_free(&u->inputs);
	vec_free(&u->externals);
	vec_free(&u->devices);
	mem_free(u);
}

/* ---- around a run --------------------------------------------------------------------------------------------------- */

static clv_status copy_one(br_tensor *t, undo_log *log)
{
	TRY(br_clone(t, false, &log->tensors[log->n]));
	log->changed[log->n++] = br_ref(t);
	return CLV_OK;
}

static clv_status copy_changed(const undo *u, const run_spec *r, undo_log *log)
{
	for (uint32_t i = 0; i < u->inputs.n; i++)
		TRY(copy_one(r->inputs[u->inputs.at[i]], log));
	for (uint32_t i = 0; i < u->externals.n; i++)
		TRY(copy_one(r->externals[u->externals.at[i]], log));
	for (uint32_t i = 0; i < u->devices.n; i++, log->n++)
		TRY(br_random_get(u->devices.at[i], &log->tensors[log->n]));
	return CLV_OK;
}

clv_status undo_begin(const undo *u, const run_spec *r, undo_log *log)
{
	uint32_t n = u->inputs.n + u->externals.n + u->devices.n;
	*log = (undo_log){.u = u, .tensors = mem_alloc((2 * n + 1) * sizeof *log->tensors)};
	TRY_MEM(log->tensors);
	log->changed = log->tensors + n;
	clv_status st = copy_changed(u, r, log);
	if (st != CLV_OK)
		undo_end(log);
	return st;
}

/* What got a graph in the run keeps it: what the next run writes would be added to that. */
static clv_status put_back(const br_tensor *was, br_tensor *now, bool *whole)
{
	*whole &= !br_has_graph(now);
	return br_copy(was, now);
}

clv_status undo_run(const undo_log *log, bool *whole)
{
	uint32_t k = 0, tensors = log->n - log->u->devices.n;
	*whole &= !log->u->lost;
	for (; k < tensors; k++)
		TRY(put_back(log->tensors[k], log->changed[k], whole));
	for (uint32_t i = 0; i < log->u->devices.n; i++)
		TRY(br_random_set(log->u->devices.at[i], log->tensors[k++]));
	return CLV_OK;
}

void undo_end(undo_log *log)
{
	for (uint32_t i = 0; i < log->n; i++) {
		br_unref(log->tensors[i]);
		br_unref(log->changed[i]);
	}
	mem_free(log->tensors);
}
