/* `cleave inspect`: a page about a plan. */
#include "cli.h"

typedef struct request {
	const char *path;
	bool json;
	sizes sizes;
} request;

static int show_page(const request *r, const clv_plan *p)
{
	clv_frontiers_options o = sizes_options(&r->sizes);
	clv_frontiers *f = NULL;
	char *text = NULL;
	clv_status st = clv_frontiers_create(p, &o, &f);
	if (st == CLV_OK)
		st = clv_frontiers_inspect(f, r->json, &text);
	clv_frontiers_free(f);
	if (st != CLV_OK)
		return fail_with(r->path);
	return put_text(text) ? EXIT_OK : EXIT_FAILED;
}

static int run_inspect(void *given)
{
	request *r = given;
	clv_plan *p = load_plan(r->path);
	if (!p)
		return EXIT_FAILED;
	int code = sizes_resolve(&r->sizes, p) ? show_page(r, p) : EXIT_FAILED;
	clv_plan_free(p);
	return code;
}

static const option arguments[] = {
	ARG_FILE("FILE", path, "the plan; - is standard input"),
	OPTION_END,
};

static const option options[] = {
	OPT_FLAG("json", 0, json, "a JSON object instead of a page"),
	SIZE_OPTIONS(sizes),
	OPTION_END,
};

const command command_inspect = {
	.name = "inspect",
	.summary = "show what is in a plan",
	.description =
		"Shows a page about a plan: model, symbols, inputs and outputs, parameters and their bytes, work and "
		"memory, operators by count, in-place writes, random nodes, modes, the guards with the place they "
		"come from, and the nodes after which the plan cannot be cut, with the reasons.\n\n"
		"Work counts operations from shapes, a multiplication and an addition as two. Memory is the model's "
		"own tensors and the most that inputs and results take at one time.",
	.examples = "cleave inspect model.plan\ncleave inspect model.plan --batch 8 --json\n",
	.arguments = arguments,
	.options = options,
	REQUEST(request),
	.run = run_inspect,
};
