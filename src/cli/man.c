/* `cleave man`: manual pages in roff, from the tables. The build writes them all with --directory. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli.h"

typedef struct request {
	const char *command, *directory;
} request;

static void put_roff(FILE *to, const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (s[i] == '\\')
			fputs("\\e", to);
		else if (s[i] == '-')
			fputs("\\-", to);
		else if (s[i] == '\'')
			fputs("\\(aq", to);
		else if (s[i] == '.' && (i == 0 || s[i - 1] == '\n'))
			fputs("\\&.", to);
		else if (!strncmp(s + i, "\n\n", 2)) {
			fputs("\n.PP\n", to);
			i++;
		} else if (!strncmp(s + i, "…", strlen("…"))) {
			fputs("...", to);
			i += strlen("…") - 1;
		} else {
			fputc(s[i], to);
		}
	}
}

static void roff(FILE *to, const char *s)
{
	put_roff(to, s, strlen(s));
}

static void section(FILE *to, const char *title)
{
	fprintf(to, ".SH %s\n", title);
}

static void title(FILE *to, const char *name, const char *summary)
{
	/* No date: the same sources give the same page. */
	fprintf(to, ".TH \"%s\" \"1\" \"\" \"Cleave %s\" \"Cleave\"\n", name, clv_version());
	section(to, "NAME");
	roff(to, name);
	fputs(" \\- ", to);
	roff(to, summary);
	fputc('\n', to);
}

static void write_option(FILE *to, const option *o)
{
	fputs(".TP\n\\fB", to);
	if (o->letter)
		fprintf(to, "\\-%c\\fR, \\fB", o->letter);
	fputs("\\-\\-", to);
	roff(to, o->name);
	fputs("\\fR", to);
	for (uint32_t i = 0; o->metavar && i < (o->takes ? o->takes : 1); i++) {
		fputs(" \\fI", to);
		roff(to, o->metavar);
		fputs("\\fR", to);
	}
	fputc('\n', to);
	roff(to, o->help);
	const char *at;
	uint32_t n;
	for (uint32_t i = 0; (n = option_words(o, i, &at)); i++) {
		fputs(i ? ", \\fB" : "; one of \\fB", to);
		put_roff(to, at, n);
		fputs("\\fR", to);
	}
	if (o->preset) {
		fputs(" (default: ", to);
		roff(to, o->preset);
		fputc(')', to);
	}
	fputc('\n', to);
}

static void write_options(FILE *to, const option *o)
{
	for (; o && o->type; o++) {
		if (o->type != TYPE_GROUP) {
			write_option(to, o);
			continue;
		}
		fputs(".SS ", to);
		fprintf(to, "%c%s\n", o->name[0] >= 'a' && o->name[0] <= 'z' ? o->name[0] - 'a' + 'A' : o->name[0],
		        o->name + 1);
	}
}

static void write_synopsis(FILE *to, const command *c)
{
	section(to, "SYNOPSIS");
	fprintf(to, "\\fBcleave %s\\fR", c->name);
	if (c->options && c->options->type)
		fputs(" [\\fIOPTIONS\\fR]", to);
	for (const option *o = c->arguments; o && o->type; o++) {
		bool many = o->type == TYPE_FILES || o->type == TYPE_TEXTS;
		fprintf(to, o->optional ? " [\\fI%s\\fR%s]" : " \\fI%s\\fR%s", o->name, many ? "..." : "");
	}
	fputc('\n', to);
}

static void write_arguments(FILE *to, const command *c)
{
	if (!c->arguments || !c->arguments->type)
		return;
	section(to, "ARGUMENTS");
	for (const option *o = c->arguments; o->type; o++) {
		fprintf(to, ".TP\n\\fI%s\\fR\n", o->name);
		roff(to, o->help);
		fputc('\n', to);
	}
}

static void write_columns(FILE *to, const command *c)
{
	if (!c->columns)
		return;
	section(to, "COLUMNS");
	for (const column *k = c->columns; k->name; k++)
		fprintf(to, "%s%s\n", k->name, k[1].name ? "," : "");
}

static void write_examples(FILE *to, const command *c)
{
	if (!c->examples)
		return;
	section(to, "EXAMPLES");
	fputs(".EX\n", to);
	roff(to, c->examples);
	fputs(".EE\n", to);
}

static void write_exits(FILE *to, const char *text)
{
	section(to, "EXIT STATUS");
	roff(to, text ? text : "0: done. 1: it failed, and the reason is on standard error. 2: wrong usage.");
	fputc('\n', to);
}

static void write_command(FILE *to, const command *c)
{
	char name[64];
	snprintf(name, sizeof name, "cleave-%s", c->name);
	title(to, name, c->summary);
	write_synopsis(to, c);
	section(to, "DESCRIPTION");
	roff(to, c->description);
	fputc('\n', to);
	write_arguments(to, c);
	section(to, "OPTIONS");
	write_options(to, c->options);
	fputs(".SS Every command\n", to);
	write_options(to, common_options);
	write_columns(to, c);
	write_examples(to, c);
	write_exits(to, c->exits);
	section(to, "SEE ALSO");
	fputs("\\fBcleave\\fR(1)\n", to);
}

static void write_main(FILE *to)
{
	title(to, "cleave", "look at, cut and run PyTorch models held as plans");
	section(to, "SYNOPSIS");
	fputs("\\fBcleave\\fR [\\fIOPTIONS\\fR] \\fICOMMAND\\fR [\\fIARGUMENTS\\fR]\n", to);
	section(to, "DESCRIPTION");
	roff(to, "Cleave holds a PyTorch model as a plan: the operators of one forward pass, in order, with the shapes of "
	         "all values. This program looks at plans, and cuts and runs them. A FILE that is - is standard input.\n");
	section(to, "COMMANDS");
	for (const command *const *c = commands; *c; c++) {
		if ((*c)->hidden)
			continue;
		fprintf(to, ".TP\n\\fBcleave\\-%s\\fR(1)\n", (*c)->name);
		roff(to, (*c)->summary);
		fputc('\n', to);
	}
	section(to, "OPTIONS");
	write_options(to, common_options);
	section(to, "ENVIRONMENT");
	fputs(".TP\nNO_COLOR\nWhere it is set and not empty, there are no colours unless they are asked for.\n"
	      ".TP\nCLEAVE_TORCH_PROGRAM\nThe program for commands that run plans, in place of the one that is installed "
	      "next to \\fBcleave\\fR.\n"
	      ".TP\nCLEAVE_PROGRAM\nThe program that runtimes of the native engine start as a sandbox, in place of "
	      "\\fBcleave\\fR itself.\n",
	      to);
	write_exits(to, NULL);
}

static bool write_man_page(const char *directory, const command *c)
{
	size_t size = strlen(directory) + 80;
	char *path = grab(size);
	snprintf(path, size, "%s/cleave%s%s.1", directory, c ? "-" : "", c ? c->name : "");
	FILE *to = fopen(path, "w");
	if (to && c)
		write_command(to, c);
	else if (to)
		write_main(to);
	bool ok = to && !ferror(to);
	if (to && fclose(to) != 0)
		ok = false;
	if (!ok)
		complain("%s: cannot be written: %s", path, strerror(errno));
	free(path);
	return ok;
}

static bool write_pages(const char *directory)
{
	if (mkdir(directory, 0777) != 0 && errno != EEXIST) {
		complain("%s: cannot be made: %s", directory, strerror(errno));
		return false;
	}
	bool ok = write_man_page(directory, NULL);
	for (const command *const *c = commands; ok && *c; c++)
		if (!(*c)->hidden)
			ok = write_man_page(directory, *c);
	return ok;
}

static int run_man(void *given)
{
	const request *r = given;
	if (r->directory)
		return write_pages(r->directory) ? EXIT_OK : EXIT_FAILED;
	const command *c = r->command ? find_command(r->command) : NULL;
	if (r->command && !c) {
		complain("there is no command \"%s\"", r->command);
		return EXIT_USAGE;
	}
	if (c)
		write_command(stdout, c);
	else
		write_main(stdout);
	return written() ? EXIT_OK : EXIT_FAILED;
}

static const option arguments[] = {
	ARG_TEXT("COMMAND", command, "the command that the page is about; cleave itself if not given", .optional = true),
	OPTION_END,
};

static const option options[] = {
	OPT_FILE("directory", 0, "FOLDER", directory, "write the pages of all commands into a folder"),
	OPTION_END,
};

const command command_man = {
	.name = "man",
	.summary = "write a manual page",
	.description = "Writes the manual page of a command, or of cleave itself, for man(1).",
	.examples = "cleave man candidates | man -l -\n",
	.arguments = arguments,
	.options = options,
	REQUEST(request),
	.run = run_man,
	.hidden = true,
};
