/* Places of nodes: the module a node ran in, and the line. */
#include <string.h>

#include "plan/intern.h"

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
	const node *x = &p->nodes.at[n];
	if (module_path(p, n)[0]) {
		strbuf_puts(b, " in ");
		print_plain(p, p->scopes.at[x->scope].path, b);
	}
	if (x->at != NONE) {
		strbuf_puts(b, " at ");
		print_plain(p, x->at, b);
	}
}
