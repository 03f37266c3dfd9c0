/* `cleave dot`: a picture of a plan, as text for Graphviz. */
#include <string.h>

#include "cli.h"

typedef struct request {
	const char *path, *boundary, *detail, *depth, *direction, *output;
	bool targets, markers, indices;
	sizes sizes;
	opening opening;
} request;

static bool read_depth(const char *text, uint32_t *out)
{
	double n;
	if (strcmp(text, "all") == 0) {
		*out = CLV_DOT_ALL_MODULES;
		return true;
	}
	if (!read_number(text, &n) || n < 0 || n >= UINT32_MAX || n != (double)(uint32_t)n) {
		complain("--depth cannot be \"%s\"; it is a number or all", text);
		hint("`cleave dot --help` lists the options");
		return false;
	}
	*out = (uint32_t)n;
	return true;
}

static clv_status draw(const request *r, const clv_plan *p, uint32_t depth, char **out)
{
	clv_dot_options o = CLV_DOT_OPTIONS_INIT;
	clv_frontiers *f = NULL;
	clv_status st = CLV_OK;
	o.sizes = sizes_given(&r->sizes);
	if (r->boundary) {
		st = clv_frontiers_create(p, &o.sizes, &f);
		if (st == CLV_OK)
			st = clv_frontiers_choose(f, r->boundary, NULL, &o.frontier);
		clv_frontiers_free(f);
	}
	o.detail = r->detail;
	o.max_module_depth = depth;
	o.direction = r->direction;
	o.show_operation_targets = r->targets;
	o.show_debug_markers = r->markers;
	o.show_node_indices = r->indices;
	return st == CLV_OK ? clv_plan_dot(p, &o, out) : st;
}

static int check_dot(void *given)
{
	const request *r = given;
	uint32_t depth;
	return read_depth(r->depth, &depth) && check_output(r->output, r->path) ? EXIT_OK : EXIT_USAGE;
}

static int draw_dot(void *given, const model *m)
{
	const request *r = given;
	char *text = NULL;
	uint32_t depth = 0;
	read_depth(r->depth, &depth);
	clv_status st = draw(r, m->plan, depth, &text);
	return save_result(st, text, r->output, r->path);
}

static const option arguments[] = {MODEL_ARGUMENT, OPTION_END};

static const option options[] = {
	OPT_TEXT("boundary", 'b', "WHERE", boundary, "mark a cut: auto, after:NAME of a node or module, 50%"),
	OPT_WORD("detail", 0, "WHAT", detail, "module|operation", "what a node of the picture shows", .preset = "module"),
	OPT_TEXT("depth", 0, "N", depth, "fold modules at depth N; all opens every one", .preset = "4"),
	OPT_WORD("direction", 0, "WHERE", direction, "TB|BT|LR|RL", "direction of the picture", .preset = "TB"),
	OPT_FLAG("targets", 0, targets, "show operators"),
	OPT_FLAG("markers", 0, markers, "mark in-place, view and random operators; show dtypes, bytes and buffers"),
	OPT_FLAG("indices", 0, indices, "show numbers and names of nodes"),
	OPT_FILE("output", 'o', "FILE", output, "write it here; - is standard output", .preset = "-"),
	SIZE_OPTIONS(sizes),
	OPENING_OPTIONS(opening),
	OPTION_END,
};

const command command_dot = {
	.name = "dot",
	.summary = "draw a plan, for Graphviz",
	.description = "Writes a picture of a plan in the DOT language, which Graphviz turns into SVG, PDF or PNG.\n\n"
				   "Operations are folded into modules; modules that contain others are frames around them. -b marks "
				   "the two sides of a cut, what crosses and what it costs.",
	.examples = "cleave dot model.plan | dot -Tsvg -o model.svg\n"
				"cleave dot model.plan -b 50% --depth 2 -o split.dot\n"
				"cleave dot model.plan --detail operation --targets --indices | dot -Tpdf -o operations.pdf\n",
	.arguments = arguments,
	.options = options,
	REQUEST(request),
	.check = check_dot,
	ON_SIZED_MODEL(draw_dot),
};
