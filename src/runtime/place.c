/* Where a run is, and where it failed: the node in words. */
#include <string.h>

#include "plan/data.h"
#include "runtime/call.h"

static void put_text(char *to, size_t n, const char *from)
{
	size_t k = strnlen(from, n - 1);
	memcpy(to, from, k);
	to[k] = '\0';
}

void call_tell_place(const plan *p, const node_names *names, node_id id, run_place *to)
{
	const node *n = &p->nodes.at[id];
	put_text(to->name, sizeof to->name, node_name(names, id));
	put_text(to->op, sizeof to->op, plan_s(p, n->op));
	put_text(to->module, sizeof to->module, n->scope != NONE ? plan_s(p, p->scopes.at[n->scope].path) : "");
}

typedef struct input_types {
	const plan *p;
	strbuf b;
} input_types;

static void add_type(void *ctx, value_id v)
{
	input_types *t = ctx;
	if (t->p->values.at[v].type != TYPE_TENSOR)
		return;
	strbuf_puts(&t->b, t->b.n ? ", " : ", inputs ");
	value_label(t->p, v, &t->b);
	strbuf_putc(&t->b, ' ');
	value_print_type(t->p, v, &t->b);
}

clv_status call_failed_at(const plan *p, const node_names *names, node_id id, clv_status st)
{
	const node *n = &p->nodes.at[id];
	input_types types = {p, STRBUF_INIT};
	char *text = NULL;
	node_each_arg(p, id, add_type, &types);
	(void)strbuf_take(&types.b, &text);
	const char *path = n->scope != NONE ? plan_s(p, p->scopes.at[n->scope].path) : "";
	fail_more(st, "node %s (%s)%s%s%s%s%s: ", node_name(names, id), plan_s(p, n->op), path[0] ? " in " : "", path,
	          n->at != NONE ? " at " : "", n->at != NONE ? plan_s(p, n->at) : "", text ? text : "");
	mem_free(text);
	status_details()->undone = st == CLV_E_GUARD && node_guards(p, id);
	detail(node, "%s", node_name(names, id));
	detail(op, "%s", plan_s(p, n->op));
	detail(module, "%s", path);
	detail(source, "%s", n->at != NONE ? plan_s(p, n->at) : "");
	return st;
}

clv_status call_number_differs(const char *expected, const char *seen)
{
	fail(CLV_E_GUARD,
	     "the forward read %s from the data when it was captured, now it is %s; the plan holds only for the captured "
	     "value",
	     expected, seen);
	detail(expected, "%s", expected);
	detail(seen, "%s", seen);
	return CLV_E_GUARD;
}
