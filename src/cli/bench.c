/* `cleave bench`: measures how long a model file takes, and which parts of it take the time. */
#include "feed.h"

typedef struct request {
	const char *path, *boundary, *profile;
	text_list batches;
	int64_t iterations, warmup, depth;
	feeding feeding;
	loading loading;
	sizes sizes;
	opening opening;
	listing_view view;
} request;

static const column columns[] = {
	{"sizes", "sizes", COLUMN_TEXT},      {"what", "what", COLUMN_TEXT},
	{"nodes", "nodes", COLUMN_INT},       {"runs", "runs", COLUMN_INT},
	{"median", "median", COLUMN_SECONDS}, {"p95", "p95", COLUMN_SECONDS},
	{"min", "min", COLUMN_SECONDS},       {"mean", "mean", COLUMN_SECONDS},
	{"share", "share", COLUMN_SHARE},     {"per_second", "per second", COLUMN_NUMBER},
	{"flops_per_s", NULL, COLUMN_NUMBER}, COLUMNS_END,
};

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One run of what is measured: the whole or a prefix on inputs, a suffix on a boundary. */
typedef struct subject {
	const char *path;
	clv_runtime *rt;
	bool prefix;
	feed in;
	clv_boundary *boundary;
	clv_tensor **outputs;
	uint32_t noutputs, nodes;
	double flops; /* of one run */
	const char *device;
} subject;

static clv_status run_outputs(subject *s)
{
	clv_status st = s->boundary
	                    ? clv_runtime_run_suffix(s->rt, s->boundary, s->outputs, s->noutputs)
	                    : clv_runtime_run(s->rt, (const clv_tensor *const *)s->in.at, s->in.n, s->outputs, s->noutputs);
	for (uint32_t i = 0; i < s->noutputs; i++) {
		clv_tensor_free(s->outputs[i]);
		s->outputs[i] = NULL;
	}
	return st;
}

static clv_status run_boundary(subject *s)
{
	clv_boundary *b = NULL;
	clv_status st = clv_runtime_run_prefix(s->rt, (const clv_tensor *const *)s->in.at, s->in.n, &b);
	clv_boundary_free(b);
	return st;
}

static clv_status run_once(subject *s, double *took)
{
	double start = now();
	clv_status st = s->prefix ? run_boundary(s) : run_outputs(s);
	if (st == CLV_OK)
		st = wait_for(s->device);
	*took = now() - start;
	return st;
}

static clv_status run_times(subject *s, int64_t warmup, int64_t n, double *times, const char *what)
{
	progress bar = progress_start(what);
	clv_status st = CLV_OK;
	double ignored;
	for (int64_t i = 0; st == CLV_OK && i < warmup + n; i++) {
		st = run_once(s, i < warmup ? &ignored : &times[i - warmup]);
		progress_step(&bar, (uint64_t)i + 1, (uint64_t)(warmup + n));
	}
	progress_end(&bar);
	return st;
}

/* ---- rows -------------------------------------------------------------------------------------------------------------- */

static int by_time(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* "B=8 S=16"; caller frees. */
static char *sizes_text(const sizes *s)
{
	size_t n = 1;
	for (uint32_t i = 0; i < s->n; i++)
		n += strlen(s->symbols[i]) + 24;
	char *text = grab(n), *to = text;
	for (uint32_t i = 0; i < s->n; i++)
		to += sprintf(to, "%s%s=%lld", i ? " " : "", s->symbols[i], (long long)s->values[i]);
	return text;
}

/* times are sorted. per: things that one run does, the batch. */
static void add_total(listing *t, const char *where, const subject *s, const double *times, int64_t n, int64_t per)
{
	double sum = 0;
	for (int64_t i = 0; i < n; i++)
		sum += times[i];
	const cell cells[] = {{.s = where},
	                      {.s = "all"},
	                      {.n = s->nodes},
	                      {.n = n},
	                      {.x = times[n / 2]},
	                      {.x = times[(n * 95 + 99) / 100 - 1]},
	                      {.x = times[0]},
	                      {.x = sum / (double)n},
	                      {.x = NAN},
	                      {.x = (double)per / times[n / 2]},
	                      {.x = s->flops / times[n / 2]}};
	listing_add(t, '*', cells);
}

typedef struct group {
	char *name;
	int64_t nodes, runs;
	double median, min, total; /* seconds */
} group;

typedef struct groups {
	group *at;
	uint32_t n;
} groups;

/* The compiled segment that was timed as its first node; false: it is a node. *number: among those of its plan. */
static bool find_segment(const clv_runtime *rt, const clv_profile_node *x, clv_segment_state *out, uint32_t *number)
{
	*number = 0;
	for (uint32_t i = 0; i < clv_runtime_segment_count(rt); i++) {
		*out = (clv_segment_state){.size = sizeof *out};
		if (clv_runtime_segment(rt, i, out) != CLV_OK || out->plan != x->plan)
			continue;
		if (out->first == x->node)
			return out->compiled;
		++*number;
	}
	return false;
}

/* A module's path, of which as many parts count as the user says. Caller frees. */
static char *group_name(const request *r, const clv_profile_node *x)
{
	if (!strcmp(r->profile, "op"))
		return grab_text(x->op, strlen(x->op));
	if (!strcmp(r->profile, "node"))
		return grab_text(x->name, strlen(x->name));
	const char *end = x->module;
	for (int64_t left = r->depth ? r->depth : INT64_MAX; *end && (*end != '.' || --left > 0);)
		end++;
	return *x->module ? grab_text(x->module, (size_t)(end - x->module)) : grab_text("(model)", 7);
}

static char *segment_name(const clv_segment_state *s, uint32_t number)
{
	size_t n = strlen(s->backend) + 32;
	char *name = grab(n);
	snprintf(name, n, "segment %u (%s)", number, s->backend);
	return name;
}

static group *group_of(groups *g, char *name)
{
	for (uint32_t i = 0; i < g->n; i++)
		if (!strcmp(g->at[i].name, name)) {
			free(name);
			return &g->at[i];
		}
	g->at = regrab(g->at, (g->n + 1) * sizeof *g->at);
	g->at[g->n] = (group){.name = name};
	return &g->at[g->n++];
}

static clv_status collect(const request *r, const subject *s, groups *g)
{
	for (uint32_t i = 0; i < clv_runtime_profile_count(s->rt); i++) {
		clv_profile_node x = {.size = sizeof x};
		clv_status st = clv_runtime_profile_get(s->rt, i, &x);
		if (st != CLV_OK)
			return st;
		clv_segment_state segment;
		uint32_t number;
		bool compiled = find_segment(s->rt, &x, &segment, &number);
		group *to = group_of(g, compiled ? segment_name(&segment, number) : group_name(r, &x));
		to->nodes += compiled ? segment.end - segment.first : 1;
		to->runs = x.runs;
		to->median += (double)x.median_ns * 1e-9;
		to->min += (double)x.min_ns * 1e-9;
		to->total += (double)x.total_ns * 1e-9;
	}
	return CLV_OK;
}

static int by_total(const void *a, const void *b)
{
	const group *x = a, *y = b;
	return (x->total < y->total) - (x->total > y->total);
}

static void add_groups(listing *t, const char *where, groups *g)
{
	double all = 0;
	for (uint32_t i = 0; i < g->n; i++)
		all += g->at[i].total;
	if (g->n)
		qsort(g->at, g->n, sizeof *g->at, by_total);
	for (uint32_t i = 0; i < g->n; i++) {
		const group *x = &g->at[i];
		const cell cells[] = {{.s = where},
		                      {.s = x->name},
		                      {.n = x->nodes},
		                      {.n = x->runs},
		                      {.x = x->median},
		                      {.x = NAN},
		                      {.x = x->min},
		                      {.x = x->total / (double)x->runs},
		                      {.x = all > 0 ? x->total / all : 0},
		                      {.x = NAN},
		                      {.x = NAN}};
		listing_add(t, 0, cells);
	}
}

/* ---- measuring --------------------------------------------------------------------------------------------------------- */

static clv_status add_profile(const request *r, subject *s, listing *t, const char *where, double *times)
{
	groups g = {0};
	clv_status st = clv_runtime_profile(s->rt, true);
	if (st == CLV_OK)
		st = run_times(s, 0, r->iterations, times, "profiling");
	if (st == CLV_OK)
		st = clv_runtime_profile(s->rt, false);
	if (st == CLV_OK)
		st = collect(r, s, &g);
	if (st == CLV_OK)
		add_groups(t, where, &g);
	for (uint32_t i = 0; i < g.n; i++)
		free(g.at[i].name);
	free(g.at);
	return st;
}

static bool measure_sizes(const request *r, subject *s, listing *t, int64_t per)
{
	double *times = grab((size_t)r->iterations * sizeof *times);
	char *where = sizes_text(&s->in.sizes);
	clv_status st = run_times(s, r->warmup, r->iterations, times, "measuring");
	if (st == CLV_OK) {
		qsort(times, (size_t)r->iterations, sizeof *times, by_time);
		add_total(t, where, s, times, r->iterations, per);
	}
	if (st == CLV_OK && r->profile)
		st = add_profile(r, s, t, where, times);
	free(times);
	free(where);
	if (st != CLV_OK)
		fail_run(r->path, st);
	return st == CLV_OK;
}

/* The sizes at which a boundary was made. */
static void add_boundary_sizes(const clv_plan *p, const clv_boundary *b, sizes *out)
{
	clv_symbol s = {.size = sizeof s};
	for (uint32_t i = 0; b && i < clv_plan_symbol_count(p); i++)
		if (clv_plan_symbol(p, i, &s) == CLV_OK && clv_boundary_size(b, s.name) >= 0)
			sizes_add(out, s.name, clv_boundary_size(b, s.name));
}

/* The work of the part that runs, at the sizes of its inputs, so that machines can be compared by it. */
static bool count_flops(const request *r, const model *m, subject *s)
{
	add_boundary_sizes(m->plan, s->boundary, &s->in.sizes);
	clv_sizes o = sizes_given(&s->in.sizes);
	clv_plan_info info = {.size = sizeof info};
	clv_total all = {.size = sizeof all};
	clv_frontier c = {.size = sizeof c};
	clv_frontiers *f = NULL;
	bool prefix = is_part(m, &r->loading, "prefix"), suffix = is_part(m, &r->loading, "suffix");
	clv_status st = clv_frontiers_create(m->plan, &o, &f);
	if (st == CLV_OK)
		st = clv_frontiers_total(f, &all);
	if (st == CLV_OK)
		st = clv_artifact_plan_info(m->artifact, 0, &info);
	if (st == CLV_OK && (prefix || suffix) && info.cut > 0)
		st = clv_frontiers_get(f, (uint32_t)info.cut - 1, &c);
	clv_frontiers_free(f);
	if (st != CLV_OK)
		return fail_with(r->path) == EXIT_OK;
	s->flops = prefix ? c.prefix_flops : suffix ? c.suffix_flops : all.flops;
	return true;
}

/* batch 0: as the other options say. */
static bool measure_at(const request *r, const model *m, subject *s, listing *t, int64_t batch)
{
	const char *symbol = clv_artifact_batch(m->artifact);
	sizes given = {.batch = batch};
	for (uint32_t i = 0; i < r->sizes.n; i++)
		sizes_add(&given, r->sizes.symbols[i], r->sizes.values[i]);
	bool ok = resolve_batch(m, &given);
	if (ok && !s->boundary)
		ok = feed_make(m, s->rt, &r->feeding, &given, &s->in);
	ok = ok && count_flops(r, m, s);
	int64_t per = *symbol ? sizes_find(&s->in.sizes, symbol) : 1;
	ok = ok && measure_sizes(r, s, t, per > 0 ? per : 1);
	feed_free(&s->in);
	sizes_free(&given);
	return ok;
}

static bool measure_all(const request *r, const model *m, subject *s, listing *t)
{
	bool ok = true;
	if (r->batches.n == 0)
		return measure_at(r, m, s, t, 0);
	for (uint32_t i = 0; ok && i < r->batches.n; i++)
		ok = measure_at(r, m, s, t, strtoll(r->batches.at[i], NULL, 10));
	return ok;
}

/* What --optimize fast chose for the sizes that were measured; the other levels choose nothing. */
static bool show_optimizations(const request *r, const clv_runtime *rt)
{
	char *text = NULL;
	if (!r->loading.optimize || strcmp(r->loading.optimize, "fast") || clv_runtime_sandboxed(rt))
		return true;
	if (clv_runtime_optimizations(rt, &text) != CLV_OK)
		return fail_with(r->path) == EXIT_OK;
	printf("\n%s", text);
	clv_free(text);
	return true;
}

static int bench(request *r, const model *m, subject *s)
{
	bool suffix = is_part(m, &r->loading, "suffix");
	if (suffix && !r->boundary)
		return fail_boundary(r->path);
	if (suffix && clv_boundary_load(r->boundary, &s->boundary) != CLV_OK)
		return fail_with(NULL);
	listing *t = listing_new(columns);
	bool ok = measure_all(r, m, s, t);
	if (ok)
		listing_show(t, &r->view);
	if (ok && !r->view.json)
		ok = show_optimizations(r, s->rt);
	clv_boundary_free(s->boundary);
	return ok && written() ? EXIT_OK : EXIT_FAILED;
}

static const char *device_of_runtime(const clv_runtime *rt)
{
	clv_port p = {.size = sizeof p};
	bool found = clv_runtime_output_count(rt) && clv_runtime_output(rt, 0, &p) == CLV_OK;
	return found ? p.device : "cpu";
}

/* Nodes of the first plan that are in the part that runs. */
static uint32_t count_runtime_nodes(const model *m, const loading *o)
{
	clv_plan_info info = {.size = sizeof info};
	if (clv_artifact_plan_info(m->artifact, 0, &info) != CLV_OK)
		return 0;
	bool prefix = is_part(m, o, "prefix"), suffix = is_part(m, o, "suffix");
	uint32_t cut = info.cut < 0 ? info.end : (uint32_t)info.cut;
	return (prefix ? cut : info.end) - (suffix ? cut : info.first);
}

static int check_bench(void *given)
{
	const request *r = given;
	for (uint32_t i = 0; i < r->batches.n; i++) {
		char *end;
		if (strtoll(r->batches.at[i], &end, 10) < 1 || *end) {
			complain("--batch takes a whole number from 1 on, not \"%s\"", r->batches.at[i]);
			return EXIT_USAGE;
		}
	}
	int code = loading_check(&r->loading);
	if (r->iterations && r->iterations < 1000000)
		return code == EXIT_OK ? feeding_check(&r->feeding) : code;
	complain("--iterations is from 1 to a million");
	return EXIT_USAGE;
}

static int bench_model(void *given, const model *m)
{
	request *r = given;
	subject s = {.path = r->path, .rt = load_runtime(m, &r->loading)};
	if (!s.rt)
		return EXIT_FAILED;
	r->feeding.timeout = r->loading.timeout;
	s.prefix = is_part(m, &r->loading, "prefix");
	s.noutputs = clv_runtime_output_count(s.rt);
	s.outputs = grab((s.noutputs + 1) * sizeof *s.outputs);
	s.device = device_of_runtime(s.rt);
	s.nodes = count_runtime_nodes(m, &r->loading);
	int code = bench(r, m, &s);
	free(s.outputs);
	clv_runtime_free(s.rt);
	return code;
}

static const option arguments[] = {
	ARG_FILE("FILE", path, "a .clv file; - is standard input"),
	OPTION_END,
};

static const option options[] = {
	OPT_TEXTS("batch", 0, "N", batches, "size of the batch; may be repeated to measure several"),
	OPT("size", 0, "SYMBOL=N", TYPE_SYMBOL, sizes, sizes, "size of another symbol; may be repeated"),
	OPT_INT("iterations", 0, "N", iterations, "measured runs", .preset = "30"),
	OPT_INT("warmup", 0, "N", warmup, "runs before that", .preset = "3"),
	OPT_WORD("profile", 0, "BY", profile, "op|module|node",
             "break the time down by operator, module or node, in further runs"),
	OPT_INT("depth", 0, "N", depth, "join modules whose paths agree in the first N parts (default: all parts)"),
	OPT_FILE("boundary", 0, "FILE", boundary, "of a suffix: the boundary written by the prefix"),
	FEEDING_OPTIONS(feeding),
	LOADING_OPTIONS(loading),
	RUN_FILE_OPTIONS,
	OPTION_END,
};

static const request initial = {.feeding = {.fill = "random"}};

const command command_bench = {
	.name = "bench",
	.summary = "measure how long a model file takes",
	.description = "Runs a model repeatedly and shows the median, the 95th percentile, the fastest run, the mean, and "
				   "rows of the batch per second by the median. Inputs that are not given are random.\n\n"
				   "With --profile, further runs are measured node by node, and each operator, module or node gets a "
				   "row with its total. A compiled segment is one row. On a GPU these rows add up to more than the "
				   "whole run, because the device is waited for after each node.",
	.examples = "cleave bench model.clv --batch 1 --batch 8 --threads 4\n"
				"cleave bench model.clv --batch 8 --profile op --limit 10\n"
				"cleave bench model.clv --profile module --depth 2 --sort share:desc --json\n",
	.arguments = arguments,
	.options = options,
	.columns = columns,
	REQUEST(request),
	.initial = &initial,
	.check = check_bench,
	ON_MODEL(bench_model),
	.artifact = true,
	.torch = true,
	.engine_at = offsetof(request, loading.engine),
};
