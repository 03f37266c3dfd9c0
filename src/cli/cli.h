/* The `cleave` command: what its commands share. Only cleave.h is used, as any other program would. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include "cleave.h"

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

typedef struct command {
	const char *name;
	const char *summary;                       /* one line for `cleave --help` */
	const char *help;                          /* `cleave <name> --help` */
	int (*run)(const char *path);              /* of a command that takes one file and no options */
	int (*run_options)(int argc, char **argv); /* of any other; EXIT_USAGE after it complained */
} command;

extern const command command_print, command_verify, command_inspect, command_frontiers, command_source;

/* file.c. Reads a plan from a file, or from standard input for "-"; says what went wrong and gives NULL. */
clv_plan *load_plan(const char *path);

/* Whether all that was printed went out; says so if it did not. put_text prints and frees, then asks. */
bool written(void);
bool put_text(char *text);

/* "cleave: …" on standard error. */
void complain(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
