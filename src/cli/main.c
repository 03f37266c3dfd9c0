/* `cleave`: picks the command, answers --help and --version. Exit codes: 0 done, 1 it failed, 2 wrong usage. */
#include <stdio.h>
#include <string.h>

#include "cli.h"

static const command *const commands[] = {&command_frontiers, &command_inspect, &command_print, &command_source,
                                          &command_verify};

#define COMMAND_COUNT (sizeof commands / sizeof *commands)

static const command *find_command(const char *name)
{
	for (size_t i = 0; i < COMMAND_COUNT; i++)
		if (strcmp(commands[i]->name, name) == 0)
			return commands[i];
	return NULL;
}

static void print_help(FILE *to)
{
	fputs("usage: cleave COMMAND FILE.plan\n\n"
	      "Looks at plans: PyTorch models captured by Cleave, as text. FILE - is standard input.\n\n"
	      "commands\n",
	      to);
	for (size_t i = 0; i < COMMAND_COUNT; i++)
		fprintf(to, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
	fputs("\n"
	      "  cleave COMMAND --help   more about a command\n"
	      "  cleave --version        the version of Cleave\n\n"
	      "Exit status: 0 done, 1 it failed (the reason is on standard error), 2 wrong usage.\n",
	      to);
}

static bool is_help(const char *arg)
{
	return strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0;
}

static int usage_error(const char *hint_command)
{
	fprintf(stderr, "Try `cleave %s%s--help`.\n", hint_command, hint_command[0] ? " " : "");
	return EXIT_USAGE;
}

static int show_help(const command *c)
{
	if (c)
		fputs(c->help, stdout);
	else
		print_help(stdout);
	return EXIT_OK;
}

static int run_command(const command *c, int argc, char **argv)
{
	for (int i = 0; i < argc; i++)
		if (is_help(argv[i]))
			return show_help(c);
	if (c->run_options) {
		int code = c->run_options(argc, argv);
		return code == EXIT_USAGE ? usage_error(c->name) : code;
	}
	if (argc > 0 && argv[0][0] == '-' && argv[0][1] != '\0') {
		complain("%s has no option %s", c->name, argv[0]);
		return usage_error(c->name);
	}
	if (argc != 1) {
		complain("%s takes one file, not %d", c->name, argc);
		return usage_error(c->name);
	}
	return c->run(argv[0]);
}

static int run_help(int argc, char **argv)
{
	const command *c = argc > 0 ? find_command(argv[0]) : NULL;
	if (argc > 0 && !c) {
		complain("there is no command \"%s\"", argv[0]);
		return usage_error("");
	}
	return show_help(c);
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		print_help(stderr);
		return EXIT_USAGE;
	}
	if (is_help(argv[1]) || strcmp(argv[1], "help") == 0)
		return run_help(argc - 2, argv + 2);
	if (strcmp(argv[1], "--version") == 0) {
		printf("cleave %s\n", clv_version());
		return EXIT_OK;
	}
	const command *c = find_command(argv[1]);
	if (c)
		return run_command(c, argc - 2, argv + 2);
	complain("there is no command \"%s\"", argv[1]);
	return usage_error("");
}
