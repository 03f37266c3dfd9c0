/* The same place in two plans of one model: in train and in eval mode, or at other sizes, other operators may run
 * between, but a module's n-th call of an operator stays what it is. */
#include <string.h>

#include "plan/plan.h"

static const char *path_of(const plan *p, node_id n)
{
	scope_id s = p->nodes.at[n].scope;
	return s == NONE ? "" : plan_s(p, p->scopes.at[s].path);
}

static bool same_call(const plan *p, node_id n, const char *path, const char *op)
{
	return !strcmp(path_of(p, n), path) && !strcmp(plan_s(p, p->nodes.at[n].op), op);
}

static node_id last_in(const plan *p, const char *path)
{
	size_t len = strlen(path);
	node_id last = NONE;
	for (node_id n = 0; n < p->nodes.n; n++) {
		const char *s = path_of(p, n);
		if (!strncmp(s, path, len) && (!s[len] || s[len] == '.'))
			last = n;
	}
	return last;
}

node_id node_match(const plan *from, node_id at, const plan *to)
{
	if (at >= from->nodes.n)
		return NONE;
	const char *path = path_of(from, at), *op = plan_s(from, from->nodes.at[at].op);
	uint32_t before = 0;
	for (node_id n = 0; n < at; n++)
		before += same_call(from, n, path, op);
	for (node_id n = 0; n < to->nodes.n; n++)
		if (same_call(to, n, path, op) && before-- == 0)
			return n;
	return path[0] && last_in(from, path) == at ? last_in(to, path) : NONE; /* another operator ends the module there */
}
