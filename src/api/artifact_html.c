/* The page of a plan of a file. What was traced brings its segments: those that are compiled, then a group of nodes for each
 * reason why others are not. */
#include <string.h>

#include "base/options.h"
#include "base/table.h"
#include "emit/html.h"
#include "file/artifact.h"

typedef struct groups {
	const artifact_plan *e;
	uint32_t *of_node;
	VEC(bool) compiled;
	VEC(const char *) reasons; /* borrowed */
	table by_reason;
	const char *wanted; /* while it is looked for */
} groups;

static clv_status add_group(groups *g, bool compiled, const char *reason)
{
	TRY(vec_push(&g->compiled, compiled));
	return vec_push(&g->reasons, reason);
}

static clv_status add_segments(groups *g, const char *const *on_tape)
{
	for (uint32_t i = 0; i < g->e->segments.n; i++) {
		const artifact_segment *s = &g->e->segments.at[i];
		const char *why = on_tape ? on_tape[i] : NULL;
		TRY(add_group(g, !why, why));
		for (node_id n = s->first; n < s->end; n++)
			g->of_node[n] = i;
	}
	return CLV_OK;
}

static bool same_reason(const void *ctx, uint32_t i)
{
	const groups *g = ctx;
	return strcmp(g->reasons.at[i], g->wanted) == 0;
}

static clv_status find_reason(groups *g, const char *reason, uint32_t *out)
{
	uint32_t hash = hash_bytes(reason, strlen(reason), (uint64_t)(uintptr_t)g);
	g->wanted = reason;
	*out = table_find(&g->by_reason, hash, same_reason, g);
	if (*out != TABLE_NONE)
		return CLV_OK;
	*out = g->reasons.n;
	TRY(table_add(&g->by_reason, hash, *out));
	return add_group(g, false, reason);
}

static clv_status add_fallbacks(groups *g)
{
	for (uint32_t i = 0; i < g->e->fallbacks.n; i++) {
		const artifact_fallback *f = &g->e->fallbacks.at[i];
		TRY(find_reason(g, f->reason, &g->of_node[f->node]));
	}
	for (node_id n = 0; n < g->e->p->nodes.n; n++) /* a file need not say why */
		if (g->of_node[n] == NONE)
			TRY(find_reason(g, "", &g->of_node[n]));
	return CLV_OK;
}

static clv_status fill(groups *g, const char *const *on_tape, html_spec *page)
{
	g->of_node = mem_ids(g->e->p->nodes.n + 1);
	TRY_MEM(g->of_node);
	TRY(add_segments(g, on_tape));
	TRY(add_fallbacks(g));
	page->nsegments = g->reasons.n;
	page->segment_of_node = g->of_node;
	page->segment_compiled = g->compiled.at;
	page->segment_reason = g->reasons.at;
	return CLV_OK;
}

clv_status clv_artifact_html(const clv_artifact *a, const clv_report_options *report, const clv_html_options *page,
                             char **out)
{
	clv_report_options r = CLV_REPORT_OPTIONS_INIT;
	html_spec o;
	if (!a || !out)
		return fail(CLV_E_INVALID, "clv_artifact_html needs an artifact and a place for the page");
	TRY(options_read(&r, sizeof r, report, "clv_report_options"));
	if (r.plan >= a->plans.n)
		return fail(CLV_E_INVALID, "there is no plan %u", r.plan);
	groups g = {.e = &a->plans.at[r.plan]};
	TRY(html_spec_read(g.e->p, page, &o));
	clv_status st = CLV_OK;
	if (g.e->segments.n + g.e->fallbacks.n)
		st = fill(&g, r.on_tape, &o);
	if (st == CLV_OK)
		st = plan_html(g.e->p, &o, out);
	mem_free(g.of_node);
	vec_free(&g.compiled);
	vec_free(&g.reasons);
	table_free(&g.by_reason);
	return st;
}
