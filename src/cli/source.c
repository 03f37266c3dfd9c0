/* `cleave source`: a plan, or a part of it, as Python. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

typedef struct source_args {
	const char *path;
	clv_source_options o;
} source_args;

static bool parse_count(const char *name, const char *text, uint32_t *out)
{
	char *end;
	errno = 0;
	unsigned long n = text && text[0] >= '0' && text[0] <= '9' ? strtoul(text, &end, 10) : 0;
	if (!text || text[0] < '0' || text[0] > '9' || *end || errno || n > UINT32_MAX) {
		complain("source: %s takes a number of nodes", name);
		return false;
	}
	*out = (uint32_t)n;
	return true;
}

/* One argument; *used is 2 when it took the next one along. */
static bool parse_one(source_args *a, const char *arg, const char *next, int *used)
{
	*used = 2;
	if (!strcmp(arg, "--first"))
		return parse_count(arg, next, &a->o.first);
	if (!strcmp(arg, "--end"))
		return parse_count(arg, next, &a->o.end);
	if (!strcmp(arg, "--class")) {
		a->o.class_name = next;
		if (!next)
			complain("source: --class takes a name");
		return next != NULL;
	}
	*used = 1;
	if (!strcmp(arg, "--del")) {
		a->o.del = true;
		return true;
	}
	if (arg[0] == '-' && arg[1]) {
		complain("source has no option %s", arg);
		return false;
	}
	if (a->path)
		complain("source takes one file");
	bool first = !a->path;
	a->path = arg;
	return first;
}

static int run_source(int argc, char **argv)
{
	source_args a = {.o = CLV_SOURCE_OPTIONS_INIT};
	for (int i = 0, used; i < argc; i += used)
		if (!parse_one(&a, argv[i], i + 1 < argc ? argv[i + 1] : NULL, &used))
			return EXIT_USAGE;
	if (!a.path) {
		complain("source takes one file, not 0");
		return EXIT_USAGE;
	}
	char *text;
	clv_plan *p = load_plan(a.path);
	if (!p)
		return EXIT_FAILED;
	clv_status st = clv_plan_source(p, &a.o, &text);
	clv_plan_free(p);
	if (st != CLV_OK) {
		complain("%s", clv_last_error());
		return EXIT_FAILED;
	}
	return put_text(text) ? EXIT_OK : EXIT_FAILED;
}

const command command_source = {
	.name = "source",
	.summary = "write a plan as Python",
	.help = "usage: cleave source FILE.plan [--first M] [--end N] [--class NAME] [--del]\n\n"
			"Writes a plan, or its nodes M to N-1, as the source of an nn.Module that needs nothing but torch.\n"
			"Parameters have the model's names: load_state_dict of the model's own state fills it. Constants are\n"
			"buffers const_0, const_1, … to be loaded. --del deletes values after their last use.\n",
	.run_options = run_source,
};
