/* `cleave print`: the canonical text of a plan. */
#include "cli.h"

typedef struct request {
	const char *path;
	opening opening;
} request;

static int run_print(void *given)
{
	const request *r = given;
	char *text;
	model m;
	if (!model_open(r->path, &r->opening, &m))
		return EXIT_FAILED;
	clv_status st = clv_plan_print(m.plan, &text);
	model_close(&m);
	if (st != CLV_OK)
		return fail_with(r->path);
	return put_text(text) ? EXIT_OK : EXIT_FAILED;
}

static const option arguments[] = {
	ARG_FILE("FILE", path, "a plan's text or a .clv file; - is standard input"),
	OPTION_END,
};

static const option options[] = {
	OPENING_OPTIONS(opening),
	OPTION_END,
};

const command command_print = {
	.name = "print",
	.summary = "write the canonical text of a plan",
	.description = "Reads and verifies a plan and writes its canonical text to standard output: values numbered in "
				   "order, one spelling for everything, no comments. Two plans are equal if their canonical texts are.",
	.examples = "cleave print model.plan\n",
	.arguments = arguments,
	.options = options,
	REQUEST(request),
	.run = run_print,
};
