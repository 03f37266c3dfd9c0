/* What tests of segments share: plans with operators that are not compiled (no::…), and segments as text. */
#ifndef TESTS_SEGMENTS_H
#define TESTS_SEGMENTS_H

#include "support.h"

#include "segment/segment.h"

#define HEAD "cleave-plan 1\nmodel \"Net\"\n"

/* Operators of the namespace "no" are not supported; nor is what no back end takes. Caller frees. */
static inline const char **no_of(const plan *p)
{
	const char **no = mem_alloc((p->nodes.n + 1) * sizeof *no);
	for (node_id n = 0; n < p->nodes.n; n++)
		no[n] = !strncmp(plan_s(p, p->nodes.at[n].op), "no::", 4) ? "is not known" : support_obstacle(p, n);
	return no;
}

/* "[conv relu] sort [add]": segments and the tape in order of running, by names of nodes. Caller frees. */
static inline char *segments_text(const segments *s)
{
	strbuf b = STRBUF_INIT;
	node_names *names = NULL;
	OK(node_names_new(s->p, &names));
	for (uint32_t i = 0; i < s->order.n; i++) {
		node_id k = s->order.at[i];
		uint32_t seg = s->of_node[k];
		bool first = seg != NONE && s->at.at[seg].first == i;
		bool last = seg != NONE && s->at.at[seg].first + s->at.at[seg].n == i + 1;
		strbuf_printf(&b, "%s%s%s%s", i ? " " : "", first ? "[" : "", node_name(names, k), last ? "]" : "");
	}
	node_names_free(names);
	return taken(&b);
}

#endif
