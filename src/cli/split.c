/* `cleave split`: a model file cut into two, each with its own weights. */
#include "cli.h"

typedef struct request {
	const char *path, *boundary;
	text_list outputs;
	clv_objective objective;
	sizes sizes;
	opening opening;
	bool json;
} request;

typedef struct half {
	const char *path;
	model m;
	clv_plan_info info; /* of the first plan */
	int64_t bytes;      /* of its tensors */
} half;

static bool half_open(half *h, const char *path, const opening *o)
{
	*h = (half){.path = path, .info.size = sizeof h->info};
	if (!model_open(path, o, &h->m))
		return false;
	if (clv_artifact_plan_info(h->m.artifact, 0, &h->info) != CLV_OK) {
		fail_with(path);
		model_close(&h->m);
		return false;
	}
	h->bytes = tensor_bytes(h->m.artifact);
	return true;
}

static void show_half(const half *h, bool json, const char *part)
{
	char bytes[HUMAN_TEXT];
	uint32_t tensors = clv_artifact_tensor_count(h->m.artifact), nodes = h->info.end - h->info.first;
	if (json) {
		put_json_open_line(part, '{');
		put_json_text("file", h->path);
		put_json_int("nodes", nodes);
		put_json_int("tensors", tensors);
		put_json_int("tensor_bytes", h->bytes);
		put_json_int("file_bytes", h->m.size);
		put_json_close();
		return;
	}
	printf("%s  %u node%s, %u tensor%s, %s: ", part, nodes, nodes == 1 ? "" : "s", tensors, tensors == 1 ? "" : "s",
	       human_bytes(h->bytes, bytes));
	put_plain(stdout, h->path);
	putchar('\n');
}

/* place: where it was cut; guards that moved in front of it may stand behind that. */
static void show_frontier(const clv_frontier *c, const clv_frontier *place, const char *formula, const char *labels,
                          bool json)
{
	char bytes[HUMAN_TEXT];
	if (json) {
		put_json_int("position", c->position);
		put_json_text("name", place->name);
		put_json_text("module", place->module);
		put_json_int("boundary_tensors", c->boundary_tensors);
		put_json_int("boundary_bytes", c->boundary_bytes);
		put_json_text("boundary_bytes_formula", formula);
		put_json_text("labels", labels);
		put_json_number("prefix_fraction", c->prefix_cost);
		return;
	}
	fputs("cut     after ", stdout);
	put_plain(stdout, place->name);
	printf(" (node %u%s", place->position, *place->module ? " in " : "");
	put_plain(stdout, place->module);
	printf("), %.1f %% of the work before it\n", c->prefix_cost * 100);
	printf("crosses %s, %s (%s)\n", labels, human_bytes(c->boundary_bytes, bytes), formula);
}

static bool show_cut(const request *r, const clv_plan *p, uint32_t position)
{
	clv_sizes o = sizes_given(&r->sizes);
	clv_frontiers *f = NULL;
	clv_frontier c = {.size = sizeof c}, place = c;
	char *formula = NULL, *labels = NULL;
	clv_status st = clv_frontiers_create(p, &o, &f);
	if (st == CLV_OK)
		st = clv_frontiers_get(f, position, &c);
	if (st == CLV_OK)
		st = clv_frontiers_get(f, c.behind, &place);
	if (st == CLV_OK)
		st = clv_frontiers_bytes_text(f, position, &formula);
	if (st == CLV_OK)
		st = clv_frontiers_labels(f, position, &labels);
	if (st == CLV_OK) {
		show_frontier(&c, &place, formula, labels, r->json);
		note_advice(f, position, &r->objective);
	}
	clv_free(formula);
	clv_free(labels);
	clv_frontiers_free(f);
	return st == CLV_OK || fail_with(r->path) == EXIT_OK;
}

static int show_written(const request *r)
{
	half prefix = {0}, suffix = {0};
	bool ok = half_open(&prefix, r->outputs.at[0], &r->opening) && half_open(&suffix, r->outputs.at[1], &r->opening);
	if (ok && r->json)
		put_json_open(NULL, '{');
	if (ok) {
		/* Of the file's plan and not of the model's: a question that the prefix decides was moved before the cut. */
		ok = show_cut(r, prefix.m.plan, (uint32_t)prefix.info.cut - 1);
		show_half(&prefix, r->json, "prefix");
		show_half(&suffix, r->json, "suffix");
	}
	if (ok && r->json)
		put_json_close();
	model_close(&prefix.m);
	model_close(&suffix.m);
	return written() && ok ? EXIT_OK : EXIT_FAILED;
}

static int split_model(void *given, const model *m)
{
	const request *r = given;
	clv_split_options o = CLV_SPLIT_OPTIONS_INIT;
	o.boundary = r->boundary;
	o.objective = &r->objective;
	o.sizes = sizes_given(&r->sizes);
	if (clv_artifact_split(m->artifact, &o, r->outputs.at[0], r->outputs.at[1]) == CLV_OK)
		return show_written(r);
	fail_with(r->path);
	if (!r->boundary)
		hint("-b says where: `cleave candidates` shows the places, -b auto takes a good one");
	return EXIT_FAILED;
}

static int check_split(void *given)
{
	const request *r = given;
	if (r->outputs.n != 2) {
		complain(r->outputs.n ? "split writes two files: -o is given more than once" : "split needs -o PREFIX SUFFIX");
		hint("cleave split model.clv -b 50%% -o prefix.clv suffix.clv");
		return EXIT_USAGE;
	}
	bool apart = check_output(r->outputs.at[0], r->path) && check_output(r->outputs.at[1], r->path);
	return apart ? EXIT_OK : EXIT_USAGE;
}

static const option arguments[] = {
	ARG_FILE("FILE", path, "a .clv file with a whole model"),
	OPTION_END,
};

static const option options[] = {
	OPT_TEXT("boundary", 'b', "WHERE", boundary,
             "auto, after:NAME of a node or module, 50% of the work (default: where the file is already cut)"),
	OPT_FILES("output", 'o', "FILE", outputs, "the files to write: prefix, then suffix", .takes = 2),
	MINIMIZE_OPTION(objective),
	SIZE_OPTIONS(sizes),
	OPT_FLAG("json", 0, json, "print the files written as a JSON object"),
	CONSTRAINT_OPTIONS(objective),
	OPT_GROUP("model files"),
	TRUST_OPTIONS(opening),
	OPTION_END,
};

static const request initial = {.objective = CLV_OBJECTIVE_INIT};

const command command_split = {
	.name = "split",
	.summary = "cut a model file into two",
	.description = "Cuts a model into a prefix and a suffix. Each is a .clv file with only the weights that it needs; "
				   "shared parameters are in both. `cleave run prefix.clv` writes what crosses, and `cleave run "
				   "suffix.clv --boundary` reads it. All plans of the file are cut at the same place.\n\n"
				   "Naming a place that cannot be cut is an error that gives the reason; auto and percentages skip "
				   "such places. Each file is written completely or not at all.",
	.examples = "cleave split model.clv -b 50% -o prefix.clv suffix.clv\n"
				"cleave split model.clv -b after:layer2 --batch 8 -o prefix.clv suffix.clv\n"
				"# the fastest cut for a one-gigabit link\n"
				"cleave split model.clv -b auto --minimize latency --bandwidth 1Gbit -o prefix.clv suffix.clv\n",
	.arguments = arguments,
	.options = options,
	REQUEST(request),
	.initial = &initial,
	.check = check_split,
	ON_SIZED_MODEL(split_model),
	.artifact = true,
};
