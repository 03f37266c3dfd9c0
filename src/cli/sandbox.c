/* `cleave sandbox`: the process that a runtime with a sandbox starts. It is no command for people. */
#include "cli.h"

static int run_sandbox(void *given)
{
	(void)given;
	return clv_sandbox_serve(0) == 0 ? EXIT_OK : EXIT_FAILED;
}

const command command_sandbox = {
	.name = "sandbox",
	.summary = "serve a runtime that has a sandbox",
	.description = "Started by the library, with a socket as standard input. It is of no use by hand.",
	.run = run_sandbox,
	.hidden = true,
};
