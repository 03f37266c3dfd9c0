/* `cleave partition`: a graph of work cut into stages, stages put on devices. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

typedef struct request {
	const char *path, *output, *method, *schedule, *speeds, *memory;
	int64_t parts, seed, microbatches, max_stages;
	double seconds, bandwidth, latency, param_copies;
	bool recompute, inference, json, timeline;
} request;

/* ---- lists ---------------------------------------------------------------------------------------------------------- */

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

/* ---- options --------------------------------------------------------------------------------------------------------- */

enum { MOST = 1 << 20 }; /* devices, stages, micro-batches: the library says what it takes of these */

static bool check_count(const char *name, int64_t n)
{
	if (n <= MOST)
		return true;
	complain("--%s cannot be %lld; it is at most %d", name, (long long)n, MOST);
	return false;
}

/* Arrays of the options are the caller's to free. */
static bool read_options(const request *r, clv_partition_options *o, double **speeds, int64_t **limits)
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

/* ---- the command ------------------------------------------------------------------------------------------------------ */

static bool looks_like_json(const char *text, size_t n)
{
	size_t i = 0;
	while (i < n && strchr(" \t\r\n", text[i]))
		i++;
	return i < n && (text[i] == '{' || text[i] == '[');
}

/* Of a graph's text. */
static clv_partition *partition_file(const char *path, const clv_partition_options *o)
{
	size_t n;
	clv_partition *p = NULL;
	char *text = load_text(path, &n);
	if (!text)
		return NULL;
	if (clv_partition_graph(text, n, o, &p) != CLV_OK) {
		fail_with(path);
		if (!looks_like_json(text, n))
			hint("a graph is JSON: {\"nodes\":[{\"id\":0,\"fwd_us\":1}],\"edges\":[]}");
	}
	free(text);
	return p;
}

static int show(const request *r, const clv_partition *p)
{
	char *text;
	clv_status st = r->json       ? clv_partition_json(p, &text)
	                : r->timeline ? clv_partition_timeline(p, &text)
	                              : clv_partition_table(p, &text);
	if (st != CLV_OK)
		return fail_with(r->path);
	return save_text(r->output, text) ? EXIT_OK : EXIT_FAILED;
}

static int run_partition(void *given)
{
	const request *r = given;
	clv_partition_options o = CLV_PARTITION_OPTIONS_INIT;
	double *speeds = NULL;
	int64_t *limits = NULL;
	int code = EXIT_USAGE;
	if (r->json && r->timeline)
		complain("--timeline is text, and --json is not: give one of them");
	else if (check_output(r->output, r->path) && read_options(r, &o, &speeds, &limits)) {
		clv_partition *p = partition_file(r->path, &o);
		code = p ? show(r, p) : EXIT_FAILED;
		clv_partition_free(p);
	}
	free(speeds);
	free(limits);
	return code;
}

static const option arguments[] = {
	ARG_FILE("FILE", path, "a graph as JSON; - is standard input"),
	OPTION_END,
};

static const option options[] = {
	OPT_COUNT("parts", 'k', "N", parts, "how many devices; each gets a stage at least", .preset = "2"),
	OPT_WORD("method", 'm', "NAME", method, "auto|exact|mpipe|multilevel|acyclic|metis|pipedream",
             "how to partition; auto keeps the best of those that fit", .preset = "auto"),
	OPT_INT("seed", 0, "N", seed, "the same seed gives the same partition", .preset = "0"),
	OPT_FLOAT("seconds", 0, "S", seconds, "begin nothing new after S seconds (default: no limit)"),
	OPT_INT("max-stages", 0, "N", max_stages, "at most N stages (default: as many as the method likes)"),
	OPT_GROUP("devices"),
	OPT_TEXT("speeds", 0, "LIST", speeds, "speeds of the devices, such as 1,1,2: the last is twice as fast"),
	OPT_TEXT("memory", 0, "LIST", memory, "memory of every device, 8G, or of each, 8G,8G,16G"),
	OPT_RATE("bandwidth", 0, "RATE", bandwidth, "bytes per second of a link, 12G or 100Gbit (default: free links)"),
	OPT_FLOAT("latency", 0, "US", latency, "microseconds that a transfer takes beside"),
	OPT_GROUP("schedule"),
	OPT_WORD("schedule", 0, "NAME", schedule, "1f1b|gpipe|interleaved", "what is predicted, and what is held meanwhile",
             .preset = "1f1b"),
	OPT_COUNT("microbatches", 'M', "N", microbatches, "micro-batches of a batch", .preset = "8"),
	OPT_FLAG("recompute", 0, recompute, "the backward runs the forward again; stages keep their inputs alone"),
	OPT_FLAG("inference", 0, inference, "there is no backward"),
	OPT_FLOAT("param-copies", 0, "X", param_copies,
              "memory per byte of parameters: 4 for Adam (default: 2, of --inference 1)"),
	OPT_GROUP("output"),
	OPT_FLAG("json", 0, json, "one line of JSON instead of a table"),
	OPT_FLAG("timeline", 0, timeline, "what each device does, in order, instead of a table"),
	OPT_FILE("output", 'o', "FILE", output, "write it here; - is standard output", .preset = "-"),
	OPTION_END,
};

const command command_partition = {
	.name = "partition",
	.summary = "cut a graph into stages for several devices",
	.description =
		"Puts every node of a graph into a stage and every stage on a device, so that the slowest device has as "
		"little to do as possible. Stages are in an order that is topological; a device may have several.\n\n"
		"The graph is JSON: {\"nodes\": [{\"id\": 0, \"name\": \"conv\", \"fwd_us\": 10, \"bwd_us\": 20, "
		"\"param_bytes\": 400, \"out_bytes\": 64}], \"edges\": [[0, 1]]}. The table shows each stage with its "
		"time, memory and bytes, how far the slowest device is from a bound that no partition can beat, and what a "
		"schedule makes of it.",
	.examples = "cleave partition graph.json -k 4\n"
				"cleave partition graph.json -k 8 --method mpipe --json\n"
				"cleave partition graph.json -k 2 --speeds 1,2 --memory 8G --bandwidth 12G --timeline\n",
	.arguments = arguments,
	.options = options,
	REQUEST(request),
	.run = run_partition,
};
