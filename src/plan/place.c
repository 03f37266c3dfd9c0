/* Places of nodes: the module a node ran in, and the line. */
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
