/* `cleave partition`: a graph of work, or a plan, cut into stages, stages put on devices. */
#define _GNU_SOURCE /* memmem */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

typedef struct request {
	const char *path, *output, *method, *objective, *schedule, *speeds, *memory;
	int64_t parts, seed, microbatches, max_stages;
	double seconds, bandwidth, latency, param_copies;
	bool recompute, inference, json, timeline;
	/* of plans alone */
	const char *profile, *html, *source, *device_names;
	int64_t depth;
	text_list whole;
	double flops, traffic, launch; /* NaN: not given */
	bool ties_together, keep_order;
	sizes sizes;
	opening opening;
	/* of both */
	const char *graph;
} request;

/* One number for all devices, or one for each, with commas between; NULL with what is wrong said. Caller frees. */
static double *read_list(const char *name, const char *text, uint32_t k)
{
	double *list = grab(k * sizeof *list);
	char *copy = grab_text(text, strlen(text)), *at = copy;
	uint32_t n = 0;
	bool ok = true;
	for (char *next; at && ok; at = next, n++) {
		next = strchr(at, ',');
		if (next)
			*next++ = '\0';
		double number = 0;
		ok = read_number(at, &number) && !strchr(at, '%');
		if (!ok)
			complain("--%s: \"%s\" is no number", name, at);
		else if (n < k)
			list[n] = number;
	}
	free(copy);
	if (ok && n != 1 && n != k) {
		complain("--%s has %u numbers for %u devices; give one, or one for each", name, n, k);
		ok = false;
	}
	for (uint32_t d = n; d < k && ok; d++)
		list[d] = list[0];
	if (ok)
		return list;
	free(list);
	return NULL;
}

/* Numbers as bytes; frees the list. */
static int64_t *as_bytes(double *list, uint32_t k)
{
	int64_t *bytes = grab(k * sizeof *bytes);
	for (uint32_t d = 0; d < k; d++)
		bytes[d] = list[d] >= 0x1p63 ? INT64_MAX : list[d] < 0 ? -1 : (int64_t)list[d];
	free(list);
	return bytes;
}

enum { MOST = 1 << 20 }; /* devices, stages, micro-batches: the library says what it takes of these */

static bool check_count(const char *name, int64_t n)
{
	if (n <= MOST)
		return true;
	complain("--%s cannot be %lld; it is at most %d", name, (long long)n, MOST);
	return false;
}

/* Arrays of the options are the caller's to free. */
static bool partition_options(const request *r, clv_partition_options *o, double **speeds, int64_t **limits)
{
	if (!check_count("parts", r->parts) || !check_count("microbatches", r->microbatches) ||
	    !check_count("max-stages", r->max_stages))
		return false;
	o->method = r->method;
	o->k = (uint32_t)r->parts;
	o->seed = (uint64_t)r->seed;
	o->bandwidth = r->bandwidth;
	o->latency_us = r->latency;
	o->schedule = r->schedule;
	o->microbatches = (uint32_t)r->microbatches;
	o->inference = r->inference;
	o->recompute = r->recompute;
	o->param_copies = r->param_copies;
	o->max_stages = (uint32_t)r->max_stages;
	o->seconds = r->seconds;
	o->objective = r->objective;
	if (r->speeds && !(*speeds = read_list("speeds", r->speeds, o->k)))
		return false;
	double *memory = r->memory ? read_list("memory", r->memory, o->k) : NULL;
	if (r->memory && !memory)
		return false;
	*limits = memory ? as_bytes(memory, o->k) : NULL;
	o->speeds = *speeds;
	o->memory_limits = *limits;
	return true;
}

static bool looks_like_json(const char *text, size_t n)
{
	size_t i = 0;
	while (i < n && strchr(" \t\r\n", text[i]))
		i++;
	return i < n && (text[i] == '{' || text[i] == '[');
}

static bool looks_like_plan(const char *text, size_t n)
{
	return clv_is_artifact(text, n) ||
	       (!looks_like_json(text, n) && memmem(text, n < 4096 ? n : 4096, "cleave-plan", 11));
}

/* The first option that was given and that only plans take; NULL: none. */
static const char *plan_option(const request *r)
{
	const struct {
		const char *name;
		bool given;
	} all[] = {{"--depth", r->depth},
	           {"--whole", r->whole.n},
	           {"--size", r->sizes.n},
	           {"--batch", r->sizes.batch},
	           {"--profile", r->profile},
	           {"--flops", !isnan(r->flops)},
	           {"--traffic", !isnan(r->traffic)},
	           {"--launch", !isnan(r->launch)},
	           {"--ties-together", r->ties_together},
	           {"--keep-order", r->keep_order},
	           {"--html", r->html},
	           {"--source", r->source},
	           {"--device-names", r->device_names}};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (all[i].given)
			return all[i].name;
	return NULL;
}

static int partition_graph(const request *r, const char *text, size_t n, const clv_partition_options *o,
                           clv_partition **out)
{
	const char *given = plan_option(r);
	bool json = looks_like_json(text, n);
	if (given && json) {
		complain("%s is for plans, and %s is a graph", given, name_of(r->path));
		return EXIT_USAGE;
	}
	if (clv_partition_graph(text, n, o, out) != CLV_OK) {
		fail_with(r->path);
		if (!json)
			hint("a graph is JSON: {\"nodes\":[{\"id\":0,\"fwd_us\":1}],\"edges\":[]}; or give a plan or a .clv file");
		return EXIT_FAILED;
	}
	return EXIT_OK;
}

static int partition_plan(request *r, const model *m, const clv_partition_options *parts, clv_partition **out)
{
	clv_plan_partition_options o = CLV_PLAN_PARTITION_OPTIONS_INIT;
	char *profile = NULL;
	if (!sizes_resolve(&r->sizes, m) || (r->profile && !(profile = load_text(r->profile, &o.profile_size))))
		return EXIT_FAILED;
	o.partition = parts;
	o.depth = r->depth ? (uint32_t)r->depth : o.depth;
	o.whole = r->whole.at;
	o.nwhole = r->whole.n;
	o.sizes = sizes_given(&r->sizes);
	o.ties_together = r->ties_together;
	o.keep_order = r->keep_order;
	o.profile = profile;
	o.flops_per_s = !isnan(r->flops) ? r->flops : o.flops_per_s;
	o.bytes_per_s = !isnan(r->traffic) ? r->traffic : o.bytes_per_s;
	o.node_us = !isnan(r->launch) ? r->launch : o.node_us;
	clv_status st = clv_plan_partition(m->plan, &o, out);
	free(profile);
	return st == CLV_OK ? EXIT_OK : fail_with(r->path);
}

static int save_html(const request *r, const clv_plan *plan, const clv_partition *p)
{
	clv_html_options o = CLV_HTML_OPTIONS_INIT;
	char *page = NULL;
	o.sizes = sizes_given(&r->sizes);
	o.partition = p;
	clv_status st = clv_plan_html(plan, &o, &page);
	return save_result(st, page, r->html, r->path);
}

/* Names of devices, which the list has with commas between; false with what is wrong said. */
static bool split_names(char *list, const char **names, uint32_t k)
{
	uint32_t n = 0;
	for (char *at = list, *next; at; at = next, n++) {
		next = strchr(at, ',');
		if (next)
			*next++ = '\0';
		if (n < k)
			names[n] = at;
	}
	if (n != k)
		complain("--device-names has %u names for %u devices", n, k);
	return n == k;
}

static int write_source(const request *r, const model *m, const clv_partition *p, const char *const *devices)
{
	clv_stages_options o = CLV_STAGES_OPTIONS_INIT;
	char *text = NULL;
	const clv_plan *plan = clv_partition_plan(p, &o.ends);
	o.nstages = clv_partition_stage_count(p);
	o.devices = devices;
	o.sizes = sizes_given(&r->sizes);
	o.batch_symbol = batch_of(m);
	o.basic_blocks = r->whole.at;
	o.nbasic_blocks = r->whole.n;
	o.depth = (uint32_t)r->depth;
	clv_status st = clv_plan_stages_source(plan, &o, &text);
	return save_result(st, text, r->source, r->path);
}

static int save_source(const request *r, const model *m, const clv_partition *p)
{
	uint32_t k = clv_partition_device_count(p), n = clv_partition_stage_count(p);
	const char **names = grab(k * sizeof *names), **of_stage = grab(n * sizeof *of_stage);
	char *list = r->device_names ? grab_text(r->device_names, strlen(r->device_names)) : NULL;
	int code = list && !split_names(list, names, k) ? EXIT_USAGE : EXIT_OK;
	for (uint32_t i = 0; i < n; i++)
		of_stage[i] = names[clv_partition_stage_device(p, i)];
	if (code == EXIT_OK)
		code = write_source(r, m, p, list ? of_stage : NULL);
	free(list);
	free(names);
	free(of_stage);
	return code;
}

static int save_graph(const request *r, const clv_partition *p)
{
	char *text = NULL;
	clv_status st = clv_partition_graph_json(p, &text);
	return save_result(st, text, r->graph, r->path);
}

static int show_partition(const request *r, const clv_partition *p)
{
	char *text = NULL;
	clv_status st = r->json       ? clv_partition_json(p, &text)
	                : r->timeline ? clv_partition_timeline(p, &text)
	                              : clv_partition_table(p, &text);
	return save_result(st, text, r->output, r->path);
}

/* The table comes last: where something else fails there is no result. */
static int write_results(const request *r, const model *m /* NULL: of a graph */, const clv_partition *p)
{
	int code = r->graph ? save_graph(r, p) : EXIT_OK;
	if (m && r->html && code == EXIT_OK)
		code = save_html(r, m->plan, p);
	if (m && r->source && code == EXIT_OK)
		code = save_source(r, m, p);
	return code == EXIT_OK ? show_partition(r, p) : code;
}

static int run_on_plan(request *r, const model *m, const clv_partition_options *o)
{
	clv_partition *p = NULL;
	int code = partition_plan(r, m, o, &p);
	if (code == EXIT_OK)
		code = write_results(r, m, p);
	clv_partition_free(p);
	return code;
}

static int run_on_graph(const request *r, const char *text, size_t n, const clv_partition_options *o)
{
	clv_partition *p = NULL;
	int code = partition_graph(r, text, n, o, &p);
	if (code == EXIT_OK)
		code = write_results(r, NULL, p);
	clv_partition_free(p);
	return code;
}

static int run_on_file(request *r, const clv_partition_options *o)
{
	model m = {0};
	size_t n;
	int code = EXIT_FAILED;
	if (starts_as_artifact(r->path)) {
		if (model_open(r->path, &r->opening, &m))
			code = run_on_plan(r, &m, o);
		model_close(&m);
		return code;
	}
	char *text = load_text(r->path, &n);
	if (text && !looks_like_plan(text, n))
		code = run_on_graph(r, text, n, o);
	else if (text && model_open_read(r->path, &r->opening, text, n, &m))
		code = run_on_plan(r, &m, o);
	free(text);
	model_close(&m);
	return code;
}

/* No output is the input, or another output. */
static bool check_output_files(const request *r)
{
	const struct {
		const char *name, *path;
	} all[] = {{"-o", r->output}, {"--write-graph", r->graph}, {"--html", r->html}, {"--source", r->source}};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		if (!check_output_as(all[i].name, all[i].path, r->path) ||
		    !check_output_as(all[i].name, all[i].path, r->profile))
			return false;
		for (size_t j = 0; j < i && all[i].path; j++)
			if (all[j].path && !strcmp(all[i].path, all[j].path)) {
				complain("%s and %s both write to %s: give one of them another file", all[j].name, all[i].name,
				         strcmp(all[i].path, "-") ? all[i].path : "standard output");
				return false;
			}
	}
	return true;
}

static bool check_partition(const request *r)
{
	if (r->json && r->timeline)
		complain("--timeline is text, and --json is not: give one of them");
	else if (r->device_names && !r->source)
		complain("--device-names needs --source");
	else if (r->profile && !(isnan(r->flops) && isnan(r->traffic) && isnan(r->launch)))
		complain("--profile has measured times of blocks; --flops, --traffic and --launch estimate them: give one or "
		         "the other");
	else
		return check_count("depth", r->depth) && check_output_files(r);
	return false;
}

static int run_partition(void *given)
{
	request *r = given;
	clv_partition_options o = CLV_PARTITION_OPTIONS_INIT;
	double *speeds = NULL;
	int64_t *limits = NULL;
	int code = EXIT_USAGE;
	if (check_partition(r) && partition_options(r, &o, &speeds, &limits))
		code = run_on_file(r, &o);
	free(speeds);
	free(limits);
	return code;
}

static const option arguments[] = {
	ARG_FILE("FILE", path, "a .clv file, a plan's text, or a graph as JSON; - is standard input"),
	OPTION_END,
};

static const option options[] = {
	OPT_COUNT("parts", 'k', "N", parts, "number of devices; each gets at least one stage", .preset = "2"),
	OPT_WORD("method", 'm', "NAME", method, "auto|exact|mpipe|multilevel|acyclic|metis|pipedream",
             "how to partition; auto keeps the best of those that fit", .preset = "auto"),
	OPT_WORD("objective", 0, "NAME", objective, "bottleneck|throughput|simple",
             "what auto optimises: the time of the slowest device, micro-batches per second, or one stage per device "
             "unless more stages give at least 5 %",
             .preset = "bottleneck"),
	OPT_INT("seed", 0, "N", seed, "the same seed gives the same partition", .preset = "0"),
	OPT_FLOAT("seconds", 0, "S", seconds, "try nothing new after S seconds (default: no limit)"),
	OPT_INT("max-stages", 0, "N", max_stages, "at most N stages (default: up to the method)"),
	OPT_GROUP("devices"),
	OPT_TEXT("speeds", 0, "LIST", speeds, "relative speeds of the devices: with 1,1,2 the last is twice as fast"),
	OPT_TEXT("memory", 0, "LIST", memory, "memory per device: 8G for all, or 8G,8G,16G"),
	OPT_RATE("bandwidth", 0, "RATE", bandwidth, "bytes per second of a link, 12G or 100Gbit (default: free links)"),
	OPT_FLOAT("latency", 0, "US", latency, "fixed cost of a transfer in microseconds"),
	OPT_GROUP("schedule"),
	OPT_WORD("schedule", 0, "NAME", schedule, "1f1b|gpipe|interleaved", "the schedule to predict time and memory for",
             .preset = "1f1b"),
	OPT_COUNT("microbatches", 'M', "N", microbatches, "micro-batches per batch", .preset = "8"),
	OPT_FLAG("recompute", 0, recompute, "recompute the forward in the backward; stages only keep their inputs"),
	OPT_FLAG("inference", 0, inference, "inference only, without a backward"),
	OPT_FLOAT("param-copies", 0, "X", param_copies,
              "bytes of memory per byte of parameters: 4 for Adam (default: 2, with --inference 1)"),
	OPT_GROUP("plans"),
	OPT_COUNT("depth", 0, "N", depth, "keep modules at depth N whole; a.b is at depth 2 (default: open all)"),
	OPT_TEXTS("whole", 0, "NAME", whole, "keep modules of this class or path whole; may be repeated"),
	SIZE_OPTIONS(sizes),
	OPT_FILE("profile", 0, "FILE", profile, "measured times of blocks, written by Profile.save (default: estimated)"),
	OPT_FLOAT("flops", 0, "X", flops, "for the estimate: operations per second (default: 100e12)"),
	OPT_RATE("traffic", 0, "RATE", traffic, "for the estimate: memory bandwidth in bytes per second (default: 1T)"),
	OPT_FLOAT("launch", 0, "US", launch, "for the estimate: microseconds to start an operator (default: 5)"),
	OPT_FLAG("ties-together", 0, ties_together, "keep all users of a parameter in one stage"),
	OPT_FLAG("keep-order", 0, keep_order, "only cut the plan in its own order"),
	OPENING_OPTIONS(opening),
	OPT_GROUP("output"),
	OPT_FLAG("json", 0, json, "one line of JSON instead of a table"),
	OPT_FLAG("timeline", 0, timeline, "list the actions of each device in order instead of a table"),
	OPT_FILE("output", 'o', "FILE", output, "write it here; - is standard output", .preset = "-"),
	OPT_FILE("write-graph", 0, "FILE", graph, "also write the graph as JSON, for other tools"),
	OPT_FILE("html", 0, "FILE", html, "also write a page that shows the stages (plans only)"),
	OPT_FILE("source", 0, "FILE", source, "also write the stages as Python (plans only)"),
	OPT_TEXT("device-names", 0, "LIST", device_names, "devices in that source: cuda:0,cuda:1 (default: cpu)"),
	OPTION_END,
};

static const request initial = {.flops = NAN, .traffic = NAN, .launch = NAN};

const command command_partition = {
	.name = "partition",
	.summary = "cut a model into stages for several devices",
	.description = "Assigns every node of a graph to a stage and every stage to a device, so that the slowest device "
				   "has as little to do as possible. Stages are in topological order; a device may have several.\n\n"
				   "A plan is first folded into blocks: layers, modules kept whole by --depth and --whole, operators "
				   "between them, and larger ones where a cut would be wrong. The cost of each block comes from a "
				   "profile or is estimated from shapes.\n\n"
				   "A graph is JSON: {\"nodes\": [{\"id\": 0, \"name\": \"conv\", \"fwd_us\": 10, \"bwd_us\": 20, "
				   "\"param_bytes\": 400, \"out_bytes\": 64}], \"edges\": [[0, 1]]}. The table shows each stage with "
				   "its time, memory and bytes, how far the slowest device is from a lower bound, and the predicted "
				   "time and memory under a schedule.",
	.examples = "cleave partition model.clv -k 4 --batch 8\n"
				"cleave partition model.clv -k 4 --html report.html --source stages.py\n"
				"cleave partition graph.json -k 8 --method mpipe --json\n"
				"cleave partition graph.json -k 2 --speeds 1,2 --memory 8G --bandwidth 12G --timeline\n",
	.arguments = arguments,
	.options = options,
	REQUEST(request),
	.initial = &initial,
	.run = run_partition,
};
