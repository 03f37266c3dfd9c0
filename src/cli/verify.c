/* `cleave verify`: whether a plan keeps the rules. */
#include <stdio.h>

#include "cli.h"

static int run_verify(const char *path)
{
	clv_plan *p = load_plan(path); /* loading verifies */
	if (!p)
		return EXIT_FAILED;
	uint32_t nodes = clv_plan_node_count(p), in = clv_plan_input_count(p), out = clv_plan_output_count(p);
	clv_plan_free(p);
	printf("ok: %u node%s, %u in, %u out\n", nodes, nodes == 1 ? "" : "s", in, out);
	return written() ? EXIT_OK : EXIT_FAILED;
}

const command command_verify = {
	"verify",
	"check that a plan is well-formed",
	"usage: cleave verify FILE.plan\n\n"
	"Reads a plan and checks its rules: everything defined before its use, results, views, in-place\n"
	"writes, guards, trees. Says \"ok\", or what is wrong and in which line or node (exit status 1).\n",
	run_verify,
	NULL,
};
