/* --size and --batch: which symbol of a plan has which size. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

/* The symbol that --batch means: B, or the only one; NULL: it is not plain. */
static const char *batch_symbol(const clv_plan *p)
{
	uint32_t n = clv_plan_symbol_count(p);
	clv_symbol s = {.size = sizeof s};
	for (uint32_t i = 0; i < n; i++)
		if (clv_plan_symbol(p, i, &s) == CLV_OK && !strcmp(s.name, "B"))
			return s.name;
	return n == 1 && clv_plan_symbol(p, 0, &s) == CLV_OK ? s.name : NULL;
}

bool sizes_resolve(sizes *s, const clv_plan *p)
{
	if (!s->batch)
		return true;
	const char *name = batch_symbol(p);
	if (!name && clv_plan_symbol_count(p) == 0) {
		complain("--batch: the sizes of this plan are fixed");
		return false;
	}
	if (!name) {
		complain("--batch: the plan has several symbols, and none is called B");
		hint("--size SYMBOL=N names one");
		return false;
	}
	s->symbols = regrab(s->symbols, (s->n + 1) * sizeof *s->symbols);
	s->values = regrab(s->values, (s->n + 1) * sizeof *s->values);
	s->symbols[s->n] = grab_text(name, strlen(name));
	s->values[s->n++] = s->batch;
	s->batch = 0;
	return true;
}

clv_frontiers_options sizes_options(const sizes *s)
{
	clv_frontiers_options o = CLV_FRONTIERS_OPTIONS_INIT;
	o.symbols = s->symbols;
	o.values = s->values;
	o.nsymbols = s->n;
	return o;
}
