/* `cleave print`: the canonical text of a plan. */
#include "cli.h"

typedef struct request {
	const char *path;
	opening opening;
} request;

static int print_plan(void *given, const model *m)
{
	const request *r = given;
	char *text = NULL;
	clv_status st = clv_plan_print(m->plan, &text);
	return save_result(st, text, "-", r->path);
}

static const option arguments[] = {MODEL_ARGUMENT, OPTION_END};

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
	ON_MODEL(print_plan),
};
