/* `cleave diff`: the changes between two models. Exit codes are those of diff(1). */
#include <string.h>

#include "cli.h"

enum { PAGE_LIMIT = 20 }; /* items of a section that people are shown */

typedef struct request {
	const char *before, *after, *weights;
	int64_t limit; /* negative: not given */
	bool json;
	opening opening;
} request;

static clv_status compare_models(const model *a, const model *b, const clv_diff_options *o, char **text, bool *differ)
{
	if (a->artifact && b->artifact)
		return clv_artifact_diff(a->artifact, b->artifact, o, text, differ);
	if (a->artifact || b->artifact)
		note("only the first plan of %s is compared: the other file is a plan alone", (a->artifact ? a : b)->path);
	return clv_plan_diff(a->plan, b->plan, o, text, differ);
}

/* A line of the page, in the colour of its sign. */
static void put_line(const char *line, size_t n)
{
	style s = STYLE_NONE;
	if (n > 3 && line[0] == ' ' && line[1] == ' ' && line[3] == ' ')
		s = line[2] == '+' ? STYLE_GREEN : line[2] == '-' ? STYLE_RED : line[2] == '~' ? STYLE_YELLOW : STYLE_NONE;
	if (s)
		fputs(paint(stdout, s), stdout);
	fwrite(line, 1, n, stdout);
	if (s)
		fputs(paint(stdout, STYLE_NONE), stdout);
	putchar('\n');
}

static void put_page(const char *text)
{
	for (const char *end; (end = strchr(text, '\n')); text = end + 1)
		put_line(text, (size_t)(end - text));
}

static int answer(const request *r, char *text, bool differ)
{
	if (r->json && !global.quiet)
		fputs(text, stdout);
	else if (!global.quiet)
		put_page(text);
	clv_free(text);
	if (!written())
		return EXIT_TROUBLE;
	return differ ? EXIT_DIFFER : EXIT_OK;
}

static clv_diff_options diff_options(const request *r)
{
	clv_diff_options o = CLV_DIFF_OPTIONS_INIT;
	int64_t limit = r->limit >= 0 ? r->limit : r->json ? 0 : PAGE_LIMIT;
	o.json = r->json;
	o.limit = limit < UINT32_MAX ? (uint32_t)limit : 0;
	o.weights = !strcmp(r->weights, "exact")    ? CLV_DIFF_EXACT
	            : !strcmp(r->weights, "digest") ? CLV_DIFF_DIGEST
	                                            : CLV_DIFF_NONE;
	return o;
}

static int run_diff(void *given)
{
	const request *r = given;
	clv_diff_options o = diff_options(r);
	model a = {0}, b = {0};
	char *text = NULL;
	bool differ = false;
	int code = EXIT_TROUBLE;
	if (model_open(r->before, &r->opening, &a) && model_open(r->after, &r->opening, &b)) {
		if (compare_models(&a, &b, &o, &text, &differ) == CLV_OK)
			code = answer(r, text, differ);
		else
			complain("%s", clv_last_error());
	}
	model_close(&a);
	model_close(&b);
	return code;
}

static const request initial = {.limit = -1};

static const option arguments[] = {
	ARG_FILE("BEFORE", before, "a .clv file or a plan's text; - is standard input"),
	ARG_FILE("AFTER", after, "the file to compare it with"),
	OPTION_END,
};

static const option options[] = {
	OPT_FLAG("json", 0, json, "a JSON object instead of a page"),
	OPT_INT("limit", 0, "N", limit, "at most N items per section, 0 for all (default: 20; all with --json)"),
	OPT_WORD("weights", 0, "HOW", weights, "exact|digest|none",
             "exact reads tensors whose digests differ, digest reads no data, none ignores weights", .preset = "exact"),
	OPT_GROUP("model files"),
	TRUST_OPTIONS(opening),
	OPTION_END,
};

const command command_diff = {
	.name = "diff",
	.summary = "show what changed between two models",
	.description =
		"Compares two models: descriptions, plans (symbols, inputs, outputs, modules, parameters, nodes, guards) and "
		"weights. Nodes are matched by what they do, not by number, so one new node is one difference.\n\n"
		"A summary comes first, then what was added (+), removed (-) and changed (~), with each fact before and after. "
		"Nothing is printed if nothing differs, or with --quiet. Tensors with equal digests count as equal.",
	.examples = "cleave diff before.clv after.clv\ncleave diff --weights none --json before.clv after.clv\n"
				"cleave diff model.plan model.clv\n",
	.exits = "0 no difference, 1 a difference, 2 wrong usage or a file that cannot be read.",
	.arguments = arguments,
	.options = options,
	REQUEST(request),
	.initial = &initial,
	.run = run_diff,
};
