/* `cleave candidates`: where a plan can be cut, with the frontier that an objective takes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

typedef struct request {
	const char *path, *boundary;
	clv_objective objective;
	bool exact;
	text_list must_prefix, must_suffix;
	sizes sizes;
	opening opening;
	listing_view view;
} request;

static const column columns[] = {
	{"position", "after", COLUMN_INT},
	{"name", "node", COLUMN_TEXT},
	{"module", "module", COLUMN_TEXT},
	{"boundary_tensors", "tensors", COLUMN_INT},
	{"passthrough_inputs", NULL, COLUMN_INT},
	{"boundary_bytes", "bytes", COLUMN_BYTES},
	{"boundary_bytes_formula", "formula", COLUMN_TEXT},
	{"prefix_fraction", "work", COLUMN_SHARE},
	{"prefix_flops", NULL, COLUMN_NUMBER},
	{"suffix_flops", NULL, COLUMN_NUMBER},
	{"prefix_nodes", NULL, COLUMN_INT},
	{"suffix_nodes", NULL, COLUMN_INT},
	{"prefix_params", "params before", COLUMN_COUNT},
	{"suffix_params", "params after", COLUMN_COUNT},
	{"prefix_memory", "memory before", COLUMN_HUMAN},
	{"suffix_memory", "memory after", COLUMN_HUMAN},
	{"latency", "latency", COLUMN_SECONDS},
	{"trainable_suffix", NULL, COLUMN_BOOL},
	{"safe", NULL, COLUMN_BOOL},
	{"chosen", NULL, COLUMN_BOOL},
	{"reason", "why not", COLUMN_TEXT},
	COLUMNS_END,
};

static void add_row(listing *t, const clv_frontier *c, const char *bytes, double latency, bool chosen)
{
	/* clang-format off */
	const cell cells[] = {
		{.n = c->position == CLV_NONE ? -1 : (int64_t)c->position}, {.s = c->name}, {.s = c->module},
		{.n = c->boundary_tensors}, {.n = c->passthrough_inputs}, {.n = c->boundary_bytes}, {.s = bytes},
		{.x = c->prefix_cost}, {.x = c->prefix_flops}, {.x = c->suffix_flops},
		{.n = c->prefix_nodes}, {.n = c->suffix_nodes},
		{.n = c->prefix_params}, {.n = c->suffix_params}, {.n = c->prefix_memory}, {.n = c->suffix_memory},
		{.x = latency},
		{.b = c->trainable_suffix}, {.b = !c->unsafe}, {.b = chosen}, {.s = c->unsafe},
	};
	/* clang-format on */
	listing_add(t, (char)(chosen ? '*' : c->unsafe ? '!' : 0), cells);
}

/* Where nothing is cut: the whole model here, or there, with its inputs sent. */
static bool add_uncut(listing *t, const clv_frontiers *f, const clv_latency *l)
{
	static const char forbidden[] = "a constraint forbids it";
	clv_total all = {.size = sizeof all};
	if (clv_frontiers_total(f, &all) != CLV_OK)
		return false;
	clv_frontier there = {.position = CLV_NONE,
	                      .name = "(all there)",
	                      .module = "",
	                      .boundary_tensors = all.inputs,
	                      .passthrough_inputs = all.inputs,
	                      .boundary_bytes = all.input_bytes,
	                      .suffix_nodes = clv_frontiers_count(f) + 1,
	                      .suffix_flops = all.flops,
	                      .suffix_params = all.params,
	                      .suffix_memory = all.memory};
	clv_frontier here = {.position = clv_frontiers_count(f),
	                     .name = "(all here)",
	                     .module = "",
	                     .prefix_cost = 1,
	                     .prefix_nodes = there.suffix_nodes,
	                     .prefix_flops = all.flops,
	                     .prefix_params = all.params,
	                     .prefix_memory = all.memory};
	there.unsafe = isinf(l->there_s) ? forbidden : NULL;
	here.unsafe = isinf(l->here_s) ? forbidden : NULL;
	add_row(t, &there, NULL, there.unsafe ? NAN : l->there_s, false);
	add_row(t, &here, NULL, here.unsafe ? NAN : l->here_s, false);
	return true;
}

static bool add_rows(listing *t, const request *r, const clv_frontiers *f, uint32_t chosen)
{
	bool timed = r->objective.bandwidth_bytes_per_s > 0;
	clv_latency l = {.size = sizeof l, .cut_s = NAN};
	for (uint32_t i = 0; i < clv_frontiers_count(f); i++) {
		clv_frontier c = {.size = sizeof c};
		char *bytes;
		if (timed && clv_frontiers_latency(f, i, &r->objective, &l) != CLV_OK)
			return false;
		if (clv_frontiers_get(f, i, &c) || clv_frontiers_bytes_text(f, i, &bytes))
			return false;
		add_row(t, &c, bytes, l.cut_s, i == chosen);
		clv_free(bytes);
	}
	return !timed || !clv_frontiers_count(f) || add_uncut(t, f, &l);
}

/* chosen is CLV_NONE for none, and then the last error says why. */
static int show_candidates(const request *r, const clv_frontiers *f, uint32_t chosen)
{
	char *why = grab_text(clv_last_error(), strlen(clv_last_error()));
	listing *t = listing_new(columns);
	bool complete = add_rows(t, r, f, chosen);
	listing_show(t, &r->view);
	if (!complete)
		fail_with(r->path);
	else if (chosen == CLV_NONE)
		complain("%s: %s", name_of(r->path), why);
	else
		note_advice(f, chosen, &r->objective);
	free(why);
	return written() && complete && chosen != CLV_NONE ? EXIT_OK : EXIT_FAILED;
}

/* The frontiers of the reordered plan, where one is the cut. */
static int show_reordered(const request *r, const clv_plan *p, uint32_t position)
{
	clv_sizes o = sizes_given(&r->sizes);
	clv_frontiers *f = NULL;
	if (clv_frontiers_create(p, &o, &f) != CLV_OK)
		return fail_with(r->path);
	bool allowed = clv_frontiers_check(f, position, &r->objective) == CLV_OK;
	int code = show_candidates(r, f, allowed ? position : CLV_NONE);
	clv_frontiers_free(f);
	return code;
}

static int show_exact(const request *r, const clv_frontiers *f)
{
	clv_exact_options o = CLV_EXACT_OPTIONS_INIT;
	clv_plan *reordered;
	uint32_t position;
	o.must_prefix = r->must_prefix.at;
	o.nmust_prefix = r->must_prefix.n;
	o.must_suffix = r->must_suffix.at;
	o.nmust_suffix = r->must_suffix.n;
	if (clv_frontiers_exact(f, &o, &reordered, &position) != CLV_OK)
		return fail_with(r->path);
	int code = show_reordered(r, reordered, position);
	clv_plan_free(reordered);
	return code;
}

static int show_frontiers(const request *r, const clv_frontiers *f)
{
	if (r->exact || r->must_prefix.n || r->must_suffix.n)
		return show_exact(r, f);
	uint32_t chosen = CLV_NONE;
	clv_frontiers_choose(f, r->boundary, &r->objective, &chosen); /* show() says what is wrong, after the listing */
	return show_candidates(r, f, chosen);
}

static int list_candidates(void *given, const model *m)
{
	const request *r = given;
	clv_sizes o = sizes_given(&r->sizes);
	clv_frontiers *f = NULL;
	int code = clv_frontiers_create(m->plan, &o, &f) == CLV_OK ? show_frontiers(r, f) : fail_with(r->path);
	clv_frontiers_free(f);
	return code;
}

static const option arguments[] = {MODEL_ARGUMENT, OPTION_END};

static const option options[] = {
	OPT_TEXT("boundary", 'b', "WHERE", boundary, "auto, after:NAME of a node or module, 50% of the work",
             .preset = "auto"),
	MINIMIZE_OPTION(objective),
	SIZE_OPTIONS(sizes),
	CONSTRAINT_OPTIONS(objective),
	OPT_GROUP("exact cut"),
	OPT_FLAG("exact", 0, exact,
             "find the cut with the fewest bytes over all valid orders of the nodes; the table shows the plan in that "
             "order"),
	OPT_TEXTS("must-prefix", 0, "NAME", must_prefix,
              "node or module that must come before the exact cut; may be repeated"),
	OPT_TEXTS("must-suffix", 0, "NAME", must_suffix, "node or module that must come after it; may be repeated"),
	OPENING_OPTIONS(opening),
	LISTING_OPTIONS(view),
	OPTION_END,
};

static const request initial = {.objective = CLV_OBJECTIVE_INIT};

const command command_candidates = {
	.name = "candidates",
	.alias = "frontiers",
	.summary = "show where a plan can be cut",
	.description = "Lists the places where a plan can be cut: what would cross there, in bytes and as a formula in the "
				   "plan's symbols, and parameters and memory on both sides. * marks the one that would be chosen, ! "
				   "one that cannot be cut, with the reason. Work is estimated from shapes.",
	.examples = "cleave candidates model.plan --batch 8 --sort boundary_bytes --limit 10\n"
				"cleave candidates model.plan --filter 'safe=true' --filter 'prefix_fraction>=25%' --json\n"
				"# the fastest cut for a small device behind a one-gigabit link\n"
				"cleave candidates model.plan --minimize latency --bandwidth 1Gbit --prefix-speed 5e10\n",
	.arguments = arguments,
	.options = options,
	.columns = columns,
	REQUEST(request),
	.initial = &initial,
	ON_SIZED_MODEL(list_candidates),
};
