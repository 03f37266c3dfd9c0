/* `cleave inspect`: a page about a plan. */
#include "cli.h"

static int run_inspect(const char *path)
{
	char *text;
	clv_plan *p = load_plan(path);
	if (!p)
		return EXIT_FAILED;
	clv_status st = clv_plan_inspect(p, &text);
	clv_plan_free(p);
	if (st != CLV_OK) {
		complain("%s", clv_last_error());
		return EXIT_FAILED;
	}
	return put_text(text) ? EXIT_OK : EXIT_FAILED;
}

const command command_inspect = {
	"inspect",
	"show what is in a plan",
	"usage: cleave inspect FILE.plan\n\n"
	"Shows a page about a plan: model, inputs and outputs, parameters and their bytes, operators by\n"
	"count, in-place writes, random nodes, modes, and the guards with the place they come from.\n",
	run_inspect,
	NULL,
};
