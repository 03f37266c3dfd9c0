/* Places of nodes, and the same place in two plans of one model: in train and in eval mode, or at other sizes, other
 * operators may run between, but a module's n-th call of an operator stays what it is. */
#include <string.h>

#include "plan/plan.h"

const char *module_path(const plan *p, node_id n)
{
	scope_id s = p->nodes.at[n].scope;
	return s == NONE ? "" : plan_s(p, p->scopes.at[s].path);
}

bool is_inside(const char *path, const char *module)
{
	size_t n = strlen(module);
	return !strncmp(path, module, n) && (path[n] == '\0' || path[n] == '.');
}

void place_print(const plan *p, node_id n, strbuf *b)
{
	const char *path = module_path(p, n);
	if (path[0])
		strbuf_printf(b, " in %s", path);
	if (p->nodes.at[n].at != NONE)
		strbuf_printf(b, " at %s", plan_s(p, p->nodes.at[n].at));
}

static bool same_call(const plan *p, node_id n, const char *path, const char *op)
{
	return !strcmp(module_path(p, n), path) && !strcmp(plan_s(p, p->nodes.at[n].op), op);
}

static node_id last_in(const plan *p, const char *path)
{
	node_id last = NONE;
	for (node_id n = 0; n < p->nodes.n; n++)
		if (is_inside(module_path(p, n), path))
			last = n;
	return last;
}

node_id node_match(const plan *from, node_id at, const plan *to)
{
	if (at >= from->nodes.n)
		return NONE;
	const char *path = module_path(from, at), *op = plan_s(from, from->nodes.at[at].op);
	uint32_t before = 0;
	for (node_id n = 0; n < at; n++)
		before += same_call(from, n, path, op);
	for (node_id n = 0; n < to->nodes.n; n++)
		if (same_call(to, n, path, op) && before-- == 0)
			return n;
	return path[0] && last_in(from, path) == at ? last_in(to, path) : NONE; /* another operator ends the module there */
}
