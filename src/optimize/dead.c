/* Removes pure nodes whose results are not used (dead code).
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

static void see_needed_result(void *ctx, value_id v)
{
	needs *d = ctx;
	d->any |= d->of[v] || d->e->facts.kept[v];
}

static bool is_needed(needs *d, node_id n)
{
	if (!node_pure(d->e, n))
		return true;
	d->any = false;
	node_each_result(d->e->p, n, see_needed_result, d);
	return d->any;
}

clv_status pass_dead(edit *e, const optimize_spec *s, uint32_t *changes)
{
	needs d = {e, edit_array(e, e->p->values.n, sizeof *d.of), false};
	(void)s;
	TRY_MEM(d.of);
	for (node_id n = e->p->nodes.n; n-- > e->first;) {
		if (n >= e->end || is_needed(&d, n)) {
			node_each_use(e->p, n, need, &d);
			node_each_result(e->p, n, need_memory, &d);
			continue;
		}
		TRY(edit_remove(e, n));
		++*changes;
	}
	return CLV_OK;
}
