/* Dead code: pure nodes whose results nobody needs, and then those that were needed by these alone.
 *
 * A value is needed where it leaves the range, where a node that stays reads or writes it, and where it is the first on
 * memory that such a node makes another value on. Needs come after what is needed, so one way back finds them all. */
#include "optimize/optimize.h"

typedef struct needs {
	const edit *e;
	bool *of; /* per value */
	bool any; /* of the results in hand */
} needs;

static void need(void *ctx, value_id v)
{
	needs *d = ctx;
	d->of[v] = true;
}

static void need_memory(void *ctx, value_id v)
{
	needs *d = ctx;
	d->of[alias_root(d->e->p, v)] = true;
}

static void see_result(void *ctx, value_id v)
{
	needs *d = ctx;
	d->any |= d->of[v] || d->e->facts.kept[v];
}

static bool stays(needs *d, node_id n)
{
	if (!node_pure(d->e, n))
		return true;
	d->any = false;
	node_each_result(d->e->p, n, see_result, d);
	return d->any;
}

static void need_for(needs *d, node_id n)
{
	const plan *p = d->e->p;
	const node *x = &p->nodes.at[n];
	node_each_arg(p, n, need, d);
	for (uint32_t i = 0; i < x->nwrites; i++)
		need(d, p->ids.at[x->writes + i]);
	node_each_result(p, n, need_memory, d);
}

static clv_status remove_dead(edit *e, needs *d, uint32_t *changes)
{
	for (node_id n = e->p->nodes.n; n-- > e->first;) {
		if (n >= e->end || stays(d, n)) {
			need_for(d, n);
			continue;
		}
		TRY(edit_remove(e, n));
		++*changes;
	}
	return CLV_OK;
}

clv_status pass_dead(edit *e, const optimize_spec *s, uint32_t *changes)
{
	needs d = {e, mem_alloc((e->p->values.n + 1) * sizeof *d.of), false};
	(void)s;
	clv_status st = d.of ? remove_dead(e, &d, changes) : fail_nomem();
	mem_free(d.of);
	return st;
}
