/* Remembers in the cache which way to run a program was the fastest: see choice.h. */
#include "exec/choice.h"

#include <string.h>

#include "segment/compile.h"

#define NOTE "fastest"

static bool on_cpu(const plan *p)
{
	for (value_id v = 0; v < p->values.n; v++)
		if (p->values.at[v].type == TYPE_TENSOR && strcmp(plan_s(p, p->values.at[v].device), "cpu") != 0)
			return false;
	return true;
}

/* Everything that the times depend on. */
static bool describe_choice(const clv_program *g, const run_spec *r, const char *ways, strbuf *b)
{
	const plan *p = g->p;
	int64_t *symbols = mem_alloc((p->symbols.n + 1) * sizeof *symbols);
	bool ok = symbols && program_symbols(g, r, symbols) == CLV_OK && machine_features(b) == CLV_OK;
	const uint32_t n = g->v.nodes.n;
	strbuf_printf(b, "\ntorch %s, threads %d, nodes %u to %u", br_torch_version(), br_threads(),
	              n ? g->v.nodes.at[0] : 0, n ? g->v.nodes.at[n - 1] : 0);
	for (symbol_id s = 0; ok && s < p->symbols.n; s++)
		strbuf_printf(b, "\n%s %lld", plan_s(p, p->symbols.at[s].name), (long long)symbols[s]);
	strbuf_printf(b, "\n%s\n", ways);
	plan_print(p, b);
	mem_free(symbols);
	return ok && !b->failed;
}

bool choice_key(const clv_program *g, const run_spec *r, const char *ways, digest *out)
{
	strbuf b = STRBUF_INIT;
	bool ok = on_cpu(g->p) && describe_choice(g, r, ways, &b);
	if (ok)
		*out = digest_of(b.at, b.n);
	strbuf_free(&b);
	return ok;
}

clv_status choice_find(digest key, char **name)
{
	cache c;
	compiled found;
	bool any = false;
	*name = NULL;
	clv_status st = cache_open(NULL, 0, &c);
	if (st != CLV_OK)
		return st == CLV_E_NOMEM ? st : CLV_OK;
	st = cache_get(&c, key, &found, &any);
	for (uint32_t i = 0; st == CLV_OK && any && i < found.notes.n && !*name; i++)
		if (!strcmp(found.notes.at[i].key, NOTE)) {
			*name = mem_strdup(found.notes.at[i].text, strlen(found.notes.at[i].text));
			st = *name ? CLV_OK : fail_nomem();
		}
	compiled_free(&found);
	cache_close(&c);
	return st == CLV_E_NOMEM ? st : CLV_OK;
}

clv_status choice_keep(digest key, const char *name)
{
	cache c;
	compiled made = {0};
	clv_status st = cache_open(NULL, 0, &c);
	if (st != CLV_OK)
		return st == CLV_E_NOMEM ? st : CLV_OK;
	st = compiled_note(&made, NOTE, name);
	if (st == CLV_OK)
		st = cache_put(&c, key, &made);
	compiled_free(&made);
	cache_close(&c);
	return st == CLV_E_NOMEM ? st : CLV_OK;
}
