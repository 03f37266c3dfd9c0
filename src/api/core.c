/* The public functions that need no torch (frontiers are in src/split): thin covers over src/base and src/plan. */
#include "cleave.h"

#include "base/mem.h"
#include "base/options.h"
#include "emit/emit.h"
#include "file/artifact.h"
#include "plan/plan.h"

const char *clv_status_name(clv_status s)
{
	static const char *const names[] = {
#define X(id, text) #id,
		CLV_STATUS_LIST(X)
#undef X
	};
	return (unsigned)s < CLV_STATUS_COUNT ? names[s] : "?";
}

const clv_error_details *clv_last_error_details(void)
{
	return status_details();
}

const char *clv_last_error(void)
{
	return status_message();
}

const char *clv_version(void)
{
	return CLV_VERSION;
}

void clv_free(void *p)
{
	mem_free(p);
}

clv_status clv_plan_parse(const char *text, size_t size, clv_plan **out)
{
	plan *p;
	if (!text || !out)
		return fail(CLV_E_INVALID, "clv_plan_parse needs a text and a place for the plan");
	TRY(plan_parse(text, size, &p));
	clv_status st = plan_verify(p);
	if (st == CLV_OK)
		*out = p;
	else
		plan_free(p);
	return st;
}

void clv_plan_free(clv_plan *p)
{
	plan_free(p);
}

clv_status clv_plan_print(const clv_plan *p, char **out)
{
	if (!p || !out)
		return fail(CLV_E_INVALID, "clv_plan_print needs a plan and a place for the text");
	strbuf b = STRBUF_INIT;
	plan_print(p, &b);
	return strbuf_take(&b, out);
}

/* What the forward of a plan asked of its inputs: its file knows. */
static source_asked asked_by(const artifact *a, const plan *p)
{
	for (uint32_t i = 0; a && i < a->plans.n; i++) {
		const artifact_plan *e = &a->plans.at[i];
		if (e->p == p)
			return (source_asked){e->same.at, e->grads.at, e->same.n, e->grads.n};
	}
	return (source_asked){0};
}

clv_status clv_plan_source(const clv_plan *p, const clv_source_options *options, char **out)
{
	clv_source_options o = CLV_SOURCE_OPTIONS_INIT;
	if (!p || !out)
		return fail(CLV_E_INVALID, "clv_plan_source needs a plan and a place for the text");
	TRY(options_read(&o, sizeof o, options, "clv_source_options"));
	source_spec s = {.first = o.first,
	                 .end = o.end ? o.end : p->nodes.n,
	                 .class_name = o.class_name,
	                 .del = o.del,
	                 .asked = asked_by(o.file, p)};
	strbuf b = STRBUF_INIT;
	clv_status st = plan_source(p, &s, &b);
	if (st == CLV_OK)
		return strbuf_take(&b, out);
	strbuf_free(&b);
	return st;
}

clv_status clv_plan_stages_source(const clv_plan *p, const clv_stages_options *options, char **out)
{
	clv_stages_options o = CLV_STAGES_OPTIONS_INIT;
	if (!p || !out)
		return fail(CLV_E_INVALID, "clv_plan_stages_source needs a plan and a place for the text");
	TRY(options_read(&o, sizeof o, options, "clv_stages_options"));
	stages_spec s = {.ends = o.ends,
	                 .nstages = o.nstages,
	                 .devices = o.devices,
	                 .sizes = o.sizes,
	                 .batch_symbol = o.batch_symbol,
	                 .depth = o.depth,
	                 .basic_blocks = o.basic_blocks,
	                 .nbasic_blocks = o.nbasic_blocks,
	                 .del = o.del,
	                 .asked = asked_by(o.file, p)};
	strbuf b = STRBUF_INIT;
	clv_status st = plan_stages_source(p, &s, &b);
	if (st == CLV_OK)
		return strbuf_take(&b, out);
	strbuf_free(&b);
	return st;
}

uint32_t clv_plan_symbol_count(const clv_plan *p)
{
	return p ? p->symbols.n : 0;
}

clv_status clv_plan_symbol(const clv_plan *p, uint32_t i, clv_symbol *out)
{
	if (!p || !out || i >= p->symbols.n)
		return fail(CLV_E_INVALID, "clv_plan_symbol: there is no symbol %u", i);
	const symbol *s = &p->symbols.at[i];
	clv_symbol all = {.name = plan_s(p, s->name), .lo = s->lo, .hi = s->hi, .data = s->data != 0};
	return options_write(out, &all, sizeof all, "clv_symbol");
}

uint32_t clv_plan_node_count(const clv_plan *p)
{
	return p ? p->nodes.n : 0;
}

uint32_t clv_plan_input_count(const clv_plan *p)
{
	return p ? p->inputs.n : 0;
}

uint32_t clv_plan_output_count(const clv_plan *p)
{
	uint32_t count = 0;
	for (uint32_t i = 0; p && i < p->out_tree.n; i++)
		count += p->out_tree.at[i].kind == TREE_VALUE;
	return count;
}
