/* `cleave verify`: whether a plan keeps the rules. */
#include "cli.h"

typedef struct request {
	const char *path;
	bool json;
} request;

static void print_verdict(const clv_plan *p)
{
	uint32_t nodes = clv_plan_node_count(p), in = clv_plan_input_count(p), out = clv_plan_output_count(p);
	printf("ok: %u node%s, %u in, %u out\n", nodes, nodes == 1 ? "" : "s", in, out);
}

/* p NULL: it is refused, and that was said. */
static void print_json(const clv_plan *p, const char *path)
{
	put_json_open(NULL, '{');
	put_json_text("file", path);
	put_json_bool("ok", p != NULL);
	put_json_text("error", p ? NULL : last_complaint());
	if (p) {
		put_json_int("nodes", clv_plan_node_count(p));
		put_json_int("inputs", clv_plan_input_count(p));
		put_json_int("outputs", clv_plan_output_count(p));
	}
	put_json_close();
}

static int run_verify(void *given)
{
	const request *r = given;
	clv_plan *p = load_plan(r->path); /* loading verifies */
	if (r->json)
		print_json(p, r->path);
	else if (p)
		print_verdict(p);
	bool ok = p != NULL;
	clv_plan_free(p);
	return written() && ok ? EXIT_OK : EXIT_FAILED;
}

static const option arguments[] = {
	ARG_FILE("FILE", path, "the plan; - is standard input"),
	OPTION_END,
};

static const option options[] = {
	OPT_FLAG("json", 0, json, "the verdict as a JSON object"),
	OPTION_END,
};

const command command_verify = {
	.name = "verify",
	.summary = "check that a plan is well-formed",
	.description = "Reads a plan and checks its rules: everything defined before its use, results, views, in-place "
				   "writes, guards, trees. Says \"ok\", or what is wrong and in which line or node (exit status 1).",
	.examples = "cleave verify model.plan\ncleave verify --json model.plan\n",
	.arguments = arguments,
	.options = options,
	REQUEST(request),
	.run = run_verify,
};
