/* `cleave`: finds the command, reads its arguments, runs it. Exit codes: 0 done, 1 it failed, 2 wrong usage. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

const command *const commands[] = {
#define X(name) &command_##name,
	COMMAND_LIST(X)
#undef X
		NULL,
};

typedef settings request; /* for the macros */

const option common_options[] = {
	OPT_FLAG("help", 'h', help, "show this help"),
	OPT_FLAG("quiet", 'q', quiet, "print errors only: no hints, notes or progress"),
	OPT_WORD("color", 0, "WHEN", color, "auto|always|never",
             "colours (default: on a terminal, unless NO_COLOR is set)"),
	OPT_FLAG("version", 'V', version, "show the version of Cleave"),
	OPTION_END,
};

const command *find_command(const char *name)
{
	for (const command *const *c = commands; *c; c++)
		if (!strcmp((*c)->name, name) || ((*c)->alias && !strcmp((*c)->alias, name)))
			return *c;
	return NULL;
}

static int no_command(const char *name)
{
	const char *names[sizeof commands / sizeof *commands];
	uint32_t n = 0;
	for (const command *const *c = commands; *c; c++)
		if (!(*c)->hidden)
			names[n++] = (*c)->name;
	const char *near = nearest(name, names, n);
	complain("there is no command \"%s\"", name);
	if (near)
		hint("did you mean %s?", near);
	else
		hint("`cleave --help` lists the commands");
	return EXIT_USAGE;
}

static int show_version(void)
{
	printf("cleave %s\n", clv_version());
	return written() ? EXIT_OK : EXIT_FAILED;
}

static int show_help(const command *c)
{
	if (c)
		print_command_help(c);
	else
		print_help(stdout);
	return written() ? EXIT_OK : EXIT_FAILED;
}

static int run_on_model(const command *c, void *given)
{
	char *at = given;
	model m;
	int code = c->check ? c->check(given) : EXIT_OK;
	if (code != EXIT_OK)
		return code;
	if (!(c->artifact ? model_open_artifact : model_open)(*(const char **)(at + c->path_at),
	                                                      (const opening *)(at + c->opening_at), &m))
		return EXIT_FAILED;
	bool sized = !c->sizes_at || sizes_resolve((sizes *)(at + c->sizes_at), &m);
	code = sized ? c->on_model(given, &m) : EXIT_FAILED;
	model_close(&m);
	return code;
}

static int run_request(const command *c, void *given, char **program_argv)
{
	if (global.help)
		return show_help(c);
	if (global.version)
		return show_version();
	if (c->python)
		return run_with_python(program_argv);
	if (!runs_here(c, given))
		return run_with_torch(c, program_argv);
	return c->on_model ? run_on_model(c, given) : c->run(given);
}

static int run_command(const command *c, int argc, char **argv, char **program_argv)
{
	void *given = grab(c->request_size);
	if (c->initial)
		memcpy(given, c->initial, c->request_size);
	int code = parse_request(c, argc, argv, given);
	if (code == EXIT_OK)
		code = run_request(c, given, program_argv);
	request_free(c, given);
	return code;
}

/* help [COMMAND] */
static int run_help(int argc, char **argv)
{
	const command *c = argc > 0 ? find_command(argv[0]) : NULL;
	return argc > 0 && !c ? no_command(argv[0]) : show_help(c);
}

/* Runtimes of the native engine start their sandboxes as this program. cleave-torch would load torch for it. */
static void name_program(void)
{
#ifndef CLEAVE_CLI_TORCH
	char self[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
	if (n <= 0)
		return;
	self[n] = '\0';
	setenv("CLEAVE_PROGRAM", self, 0);
#endif
}

int main(int argc, char **argv)
{
	name_program();
	int used = parse_global(argc - 1, argv + 1);
	if (used < 0) {
		hint("`cleave --help` lists the commands");
		return EXIT_USAGE;
	}
	char **rest = argv + 1 + used;
	int n = argc - 1 - used;
	if (global.version)
		return show_version();
	if (n == 0 && !global.help) {
		print_help(stderr);
		return EXIT_USAGE;
	}
	if (n == 0 || !strcmp(rest[0], "help"))
		return run_help(n - 1, rest + 1);
	const command *c = find_command(rest[0]);
	return c ? run_command(c, n - 1, rest + 1, argv) : no_command(rest[0]);
}
