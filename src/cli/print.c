/* `cleave print`: the canonical text of a plan. */
#include "cli.h"

static int run_print(const char *path)
{
	char *text;
	clv_plan *p = load_plan(path);
	if (!p)
		return EXIT_FAILED;
	clv_status st = clv_plan_print(p, &text);
	clv_plan_free(p);
	if (st != CLV_OK) {
		complain("%s", clv_last_error());
		return EXIT_FAILED;
	}
	return put_text(text) ? EXIT_OK : EXIT_FAILED;
}

const command command_print = {
	"print",
	"write the canonical text of a plan",
	"usage: cleave print FILE.plan\n\n"
	"Reads and verifies a plan and writes its canonical text to standard output: values numbered in\n"
	"order, one spelling for everything, no comments. Two plans are equal if their canonical texts are.\n",
	run_print,
	NULL,
};
