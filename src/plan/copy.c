/* A copy of a plan, and a copy with its nodes in another order.
 *
 * All ids stay what they are, so that data kept by id fits the copy too; only which number a result has
 * in text follows the order of the nodes. */
#include <string.h>

#include "plan/intern.h"

/* Copies the elements of a VEC into one that is empty. */
#define COPY_VEC(to, from)                                                                                             \
	do {                                                                                                               \
		TRY(vec_reserve(to, (from)->n));                                                                               \
		if ((from)->n)                                                                                                 \
			memcpy((to)->at, (from)->at, (from)->n * sizeof *(from)->at);                                              \
		(to)->n = (from)->n;                                                                                           \
	} while (0)

static clv_status copy_table(table *to, const table *from)
{
	if (!from->cap)
		return CLV_OK;
	to->at = mem_realloc(NULL, from->cap, sizeof *to->at);
	TRY_MEM(to->at);
	memcpy(to->at, from->at, from->cap * sizeof *to->at);
	to->cap = from->cap;
	to->n = from->n;
	return CLV_OK;
}

/* The seed goes along: the hashes in the tables hold for the copy. */
static clv_status copy_intern(struct plan_intern *to, const struct plan_intern *from)
{
	table_free(&to->contexts); /* of the default context */
	to->seed = from->seed;
	to->nresults = from->nresults;
	to->nconsts = from->nconsts;
	TRY(copy_table(&to->strs, &from->strs));
	TRY(copy_table(&to->exprs, &from->exprs));
	TRY(copy_table(&to->reals, &from->reals));
	TRY(copy_table(&to->contexts, &from->contexts));
	COPY_VEC(&to->named, &from->named);
	COPY_VEC(&to->expr_terms, &from->expr_terms);
	COPY_VEC(&to->real_terms, &from->real_terms);
	COPY_VEC(&to->ordinal, &from->ordinal);
	return CLV_OK;
}

static clv_status copy_strs(plan *to, const plan *from)
{
	COPY_VEC(&to->strs, &from->strs);
	for (str_id i = 0; i < to->strs.n; i++) {
		to->strs.at[i].s = arena_copy(&to->intern->bytes, from->strs.at[i].s, (size_t)from->strs.at[i].n + 1);
		TRY_MEM(to->strs.at[i].s);
	}
	return CLV_OK;
}

static clv_status copy_parts(plan *to, const plan *from)
{
	to->model = from->model;
	to->training = from->training;
	to->grad_modes = from->grad_modes;
	to->moved = from->moved;
	to->contexts.n = 0;
	TRY(copy_intern(to->intern, from->intern));
	TRY(copy_strs(to, from));
	COPY_VEC(&to->symbols, &from->symbols);
	COPY_VEC(&to->exprs, &from->exprs);
	COPY_VEC(&to->reals, &from->reals);
	COPY_VEC(&to->scopes, &from->scopes);
	COPY_VEC(&to->contexts, &from->contexts);
	COPY_VEC(&to->autocasts, &from->autocasts);
	COPY_VEC(&to->values, &from->values);
	COPY_VEC(&to->nodes, &from->nodes);
	COPY_VEC(&to->args, &from->args);
	COPY_VEC(&to->dims, &from->dims);
	COPY_VEC(&to->ids, &from->ids);
	COPY_VEC(&to->inputs, &from->inputs);
	COPY_VEC(&to->in_tree, &from->in_tree);
	COPY_VEC(&to->out_tree, &from->out_tree);
	COPY_VEC(&to->rebinds, &from->rebinds);
	COPY_VEC(&to->ties, &from->ties);
	COPY_VEC(&to->groups, &from->groups);
	return CLV_OK;
}

clv_status plan_copy(const plan *p, plan **out)
{
	plan *copy;
	TRY(plan_new(&copy));
	clv_status st = copy_parts(copy, p);
	if (st == CLV_OK)
		*out = copy;
	else
		plan_free(copy);
	return st;
}

/* Whether each node is there once. */
static bool is_order(const node_id *order, uint32_t n, bool *seen)
{
	for (uint32_t i = 0; i < n; i++) {
		if (order[i] >= n || seen[order[i]])
			return false;
		seen[order[i]] = true;
	}
	return true;
}

static clv_status check_node_order(const plan *p, const node_id *order)
{
	bool *seen = mem_alloc((p->nodes.n + 1) * sizeof *seen);
	TRY_MEM(seen);
	bool ok = is_order(order, p->nodes.n, seen);
	mem_free(seen);
	return ok ? CLV_OK : fail(CLV_E_INVALID, "an order of nodes must name each node once");
}

typedef struct outside_walk {
	const plan *p;
	bool used;
} outside_walk;

static bool is_outside(const plan *p, value_id v)
{
	uint8_t kind = p->values.at[alias_root(p, v)].kind;
	return kind != VALUE_RESULT && kind != VALUE_OBJECT;
}

static void see_outside(void *ctx, value_id v)
{
	outside_walk *w = ctx;
	w->used |= is_outside(w->p, v);
}

/* Per node that uses a tensor from outside: how many nodes before it write one. order: NULL for the plan's own. */
static void count_writers(const plan *p, const node_id *order, uint32_t *before)
{
	uint32_t writers = 0;
	for (node_id i = 0; i < p->nodes.n; i++) {
		node_id n = order ? order[i] : i;
		const node *x = &p->nodes.at[n];
		outside_walk w = {p, false};
		bool writes = false;
		node_each_arg(p, n, see_outside, &w);
		for (uint32_t k = 0; k < x->nwrites; k++)
			writes |= is_outside(p, p->ids.at[x->writes + k]);
		before[n] = w.used || writes ? writers : 0;
		writers += writes;
	}
}

/* Whether every use of a tensor from outside finds the same writes before it as it did. */
static clv_status check_moved(plan *p, const plan *from, const node_id *order)
{
	uint32_t *before = mem_alloc((2 * (size_t)from->nodes.n + 1) * sizeof *before), *now = before + from->nodes.n;
	TRY_MEM(before);
	count_writers(from, NULL, before);
	count_writers(from, order, now);
	p->moved |= memcmp(before, now, from->nodes.n * sizeof *before) != 0;
	mem_free(before);
	return CLV_OK;
}

clv_status plan_reorder(const plan *p, const node_id *order, plan **out)
{
	plan *copy;
	TRY(check_node_order(p, order));
	TRY(plan_copy(p, &copy));
	for (node_id n = 0; n < p->nodes.n; n++)
		copy->nodes.at[n] = p->nodes.at[order[n]];
	copy->groups.n = 0;
	number_results(copy);
	clv_status st = check_moved(copy, p, order);
	if (st == CLV_OK)
		st = plan_verify(copy); /* an order that uses a value before it is made */
	if (st == CLV_OK)
		*out = copy;
	else
		plan_free(copy);
	return st;
}
