/* Prints --help from the tables of the commands. */
#include <string.h>

#include "cli.h"

enum { WIDTH = 100, HELP_AT = 28 };

void fill_text(FILE *to, const char *text, unsigned indent, unsigned used, unsigned width)
{
	unsigned at = used;
	while (*text) {
		size_t n = strcspn(text, " \n"), shown = 0;
		for (size_t i = 0; i < n; i++)
			shown += ((unsigned char)text[i] & 0xC0) != 0x80;
		bool first = at == used;
		if (!first && at + 1 + shown > width) {
			fprintf(to, "\n%*s", (int)indent, "");
			at = indent;
			first = true;
		}
		at += (unsigned)fprintf(to, "%s", at > indent && !first ? " " : "");
		fwrite(text, 1, n, to);
		at += (unsigned)shown;
		text += n;
		if (!strncmp(text, "\n\n", 2)) {
			fprintf(to, "\n\n%*s", (int)indent, "");
			at = used = indent;
		}
		text += strspn(text, " \n");
	}
	fputc('\n', to);
}

uint32_t option_words(const option *o, uint32_t i, const char **at)
{
	const char *s = o->words;
	for (; s && i; i--) {
		s = strchr(s, '|');
		s = s ? s + 1 : NULL;
	}
	*at = s;
	return s ? (uint32_t)strcspn(s, "|") : 0;
}

/* The line of one option or argument, its text from column HELP_AT on. */
static void print_entry(FILE *to, const char *left, const char *help)
{
	unsigned at = (unsigned)fprintf(to, "  %s", left);
	if (at + 1 >= HELP_AT) {
		fputc('\n', to);
		at = 0;
	}
	fprintf(to, "%*s", (int)(HELP_AT - at), "");
	fill_text(to, help, HELP_AT, HELP_AT, WIDTH);
}

static void print_option(FILE *to, const option *o)
{
	char left[128], help[1024];
	int n = o->letter ? snprintf(left, sizeof left, "-%c, --%s", o->letter, o->name)
	                  : snprintf(left, sizeof left, "    --%s", o->name);
	for (uint32_t i = 0; o->metavar && i < (o->takes ? o->takes : 1); i++)
		n += snprintf(left + n, sizeof left - (size_t)n, " %s", o->metavar);
	n = snprintf(help, sizeof help, "%s", o->help);
	const char *at;
	uint32_t length;
	for (uint32_t i = 0; (length = option_words(o, i, &at)); i++)
		n += snprintf(help + n, sizeof help - (size_t)n, "%s%.*s", i ? ", " : "; one of ", (int)length, at);
	if (o->preset)
		snprintf(help + n, sizeof help - (size_t)n, " (default: %s)", o->preset);
	print_entry(to, left, help);
}

static void print_heading(FILE *to, const char *text)
{
	fprintf(to, "\n%s%s%s\n", paint(to, STYLE_BOLD), text, paint(to, STYLE_NONE));
}

static void print_options(FILE *to, const option *o)
{
	if (o && o->type && o->type != TYPE_GROUP)
		print_heading(to, "options");
	for (; o && o->type; o++) {
		if (o->type == TYPE_GROUP)
			print_heading(to, o->name);
		else
			print_option(to, o);
	}
}

static void print_usage(FILE *to, const command *c)
{
	fprintf(to, "usage: cleave %s%s", c->name, c->options && c->options->type ? " [OPTIONS]" : "");
	for (const option *o = c->arguments; o && o->type; o++) {
		bool many = o->type == TYPE_FILES || o->type == TYPE_TEXTS;
		fprintf(to, o->optional ? " [%s%s]" : " %s%s", o->name, many ? "..." : "");
	}
	fputs("\n\n", to);
}

static void print_columns(FILE *to, const command *c)
{
	char list[1024];
	int n = 0;
	list[0] = '\0';
	for (const column *k = c->columns; k->name && n < (int)sizeof list - 64; k++)
		n += snprintf(list + n, sizeof list - (size_t)n, "%s%s", n ? ", " : "", k->name);
	print_heading(to, "columns");
	fputs("  ", to);
	fill_text(to, list, 2, 2, WIDTH);
}

static void print_examples(FILE *to, const char *text)
{
	print_heading(to, "examples");
	for (; *text; text += *text == '\n') {
		size_t n = strcspn(text, "\n");
		fprintf(to, "  %.*s\n", (int)n, text);
		text += n;
	}
}

void print_command_help(const command *c)
{
	FILE *to = stdout;
	print_usage(to, c);
	fill_text(to, c->description, 0, 0, WIDTH);
	if (c->arguments && c->arguments->type)
		print_heading(to, "arguments");
	for (const option *o = c->arguments; o && o->type; o++)
		print_entry(to, o->name, o->help);
	print_options(to, c->options);
	if (c->columns)
		print_columns(to, c);
	print_heading(to, "every command");
	for (const option *o = common_options; o->type; o++)
		print_option(to, o);
	if (c->examples)
		print_examples(to, c->examples);
	if (c->exits) {
		fputs("\nExit status: ", to);
		fill_text(to, c->exits, 0, 13, WIDTH);
	}
}

void print_help(FILE *to)
{
	fputs("usage: cleave [OPTIONS] COMMAND [ARGUMENTS]\n\n"
	      "Looks at plans, PyTorch models captured by Cleave, and cuts and runs them. A FILE that is - is\n"
	      "standard input.\n",
	      to);
	print_heading(to, "commands");
	for (const command *const *c = commands; *c; c++)
		if (!(*c)->hidden)
			fprintf(to, "  %-11s %s\n", (*c)->name, (*c)->summary);
	print_heading(to, "options");
	for (const option *o = common_options; o->type; o++)
		print_option(to, o);
	fputs("\n`cleave COMMAND --help` says more about a command.\n"
	      "Exit status: 0 done, 1 it failed (the reason is on standard error), 2 wrong usage.\n",
	      to);
}
