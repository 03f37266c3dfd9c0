/* `cleave completion`: shell scripts that complete commands, options, words and files. */
#include <string.h>

#include "cli.h"

typedef struct request {
	const char *shell;
} request;

/* What comes after an option or stands for an argument. */
typedef enum offer { OFFER_NOTHING, OFFER_WORDS, OFFER_FILES, OFFER_COLUMNS, OFFER_COMMANDS } offer;

static offer offer_of(const option *o)
{
	switch (o->type) {
	case TYPE_WORD: return OFFER_WORDS;
	case TYPE_FILE:
	case TYPE_FILES: return OFFER_FILES;
	case TYPE_SORT:
	case TYPE_FILTER: return OFFER_COLUMNS;
	default:
		return o->type == TYPE_TEXT && o->metavar && !strcmp(o->metavar, "COMMAND") ? OFFER_COMMANDS : OFFER_NOTHING;
	}
}

static bool takes_value(const option *o)
{
	return o->type != TYPE_FLAG && o->type != TYPE_GROUP;
}

/* The words of an offer with a space after each. */
static void put_words(const command *c, const option *o)
{
	const char *at;
	uint32_t n;
	offer kind = offer_of(o);
	for (uint32_t i = 0; kind == OFFER_WORDS && (n = option_words(o, i, &at)); i++)
		printf("%.*s ", (int)n, at);
	for (const column *k = kind == OFFER_COLUMNS ? c->columns : NULL; k && k->name; k++)
		printf("%s ", k->name);
	for (const command *const *k = kind == OFFER_COMMANDS ? commands : NULL; k && *k; k++)
		if (!(*k)->hidden)
			printf("%s ", (*k)->name);
}

/* Calls f for the options of a command, then for those of every command. */
static void each_option(const command *c, void (*f)(const command *c, const option *o))
{
	for (const option *o = c ? c->options : NULL; o && o->type; o++)
		if (o->type != TYPE_GROUP)
			f(c, o);
	for (const option *o = common_options; o->type; o++)
		f(c, o);
}

static void each_command(void (*f)(const command *c))
{
	for (const command *const *c = commands; *c; c++)
		if (!(*c)->hidden)
			f(*c);
}

static void put_completion_name(const command *c)
{
	printf("%s ", c->name);
}

/* ---- bash -------------------------------------------------------------------------------------------------------- */

static void bash_name(const command *c, const option *o)
{
	(void)c;
	if (o->letter)
		printf("-%c ", o->letter);
	printf("--%s ", o->name);
}

static void bash_offer(const command *c, const option *o)
{
	if (offer_of(o) == OFFER_FILES) {
		fputs("files=1", stdout);
		return;
	}
	fputs("words='", stdout);
	put_words(c, o);
	putchar('\'');
}

static void bash_value(const command *c, const option *o)
{
	if (!takes_value(o))
		return;
	if (o->letter)
		printf("\t\t-%c|--%s) ", o->letter, o->name);
	else
		printf("\t\t--%s) ", o->name);
	bash_offer(c, o);
	fputs("; return ;;\n", stdout);
}

static void bash_command(const command *c)
{
	printf("\t%s%s%s)\n\t\tcase $prev in\n", c->name, c->alias ? "|" : "", c->alias ? c->alias : "");
	each_option(c, bash_value);
	fputs("\t\tesac\n\t\toptions='", stdout);
	each_option(c, bash_name);
	puts("'");
	for (const option *o = c->arguments; o && o->type; o++) {
		fputs("\t\t", stdout);
		bash_offer(c, o);
		putchar('\n');
	}
	puts("\t\t;;");
}

static void write_bash(void)
{
	fputs("# Completion of cleave for bash:  eval \"$(cleave completion bash)\"\n"
	      "# Sets words, options and files to what may stand here.\n"
	      "_cleave_offer() {\n"
	      "\tcase $command in\n",
	      stdout);
	each_command(bash_command);
	fputs("\thelp) words='", stdout);
	each_command(put_completion_name);
	fputs("' ;;\n\t'')\n\t\tcase $prev in\n", stdout);
	each_option(NULL, bash_value);
	fputs("\t\tesac\n\t\twords='", stdout);
	each_command(put_completion_name);
	fputs("help '\n\t\toptions='", stdout);
	each_option(NULL, bash_name);
	fputs("'\n\t\t;;\n\tesac\n}\n\n"
	      "_cleave() {\n"
	      "\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
	      "\tlocal command='' words='' options='' files='' i\n"
	      "\t# bash makes words of --name, = and value\n"
	      "\tif [[ $cur == = ]]; then\n"
	      "\t\tcur=''\n"
	      "\telif [[ $prev == = ]] && ((COMP_CWORD > 1)); then\n"
	      "\t\tprev=${COMP_WORDS[COMP_CWORD-2]}\n"
	      "\tfi\n"
	      "\tfor ((i = 1; i < COMP_CWORD; i++)); do\n"
	      "\t\tcase ${COMP_WORDS[i]} in\n"
	      "\t\t--color) [[ ${COMP_WORDS[i+1]} == = ]] && ((i++)); ((i++)) ;;\n"
	      "\t\t-*) ;;\n"
	      "\t\t*) command=${COMP_WORDS[i]}; break ;;\n"
	      "\t\tesac\n"
	      "\tdone\n"
	      "\t_cleave_offer\n"
	      "\tCOMPREPLY=()\n"
	      "\tif [[ $cur == -* ]]; then\n"
	      "\t\tmapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$cur\")\n"
	      "\t\treturn\n"
	      "\tfi\n"
	      "\tmapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
	      "\tif [[ $files ]]; then\n"
	      "\t\tcompopt -o filenames 2>/dev/null\n"
	      "\t\tlocal found\n"
	      "\t\tmapfile -t found < <(compgen -f -- \"$cur\")\n"
	      "\t\tCOMPREPLY+=(\"${found[@]}\")\n"
	      "\tfi\n"
	      "}\n"
	      "complete -F _cleave cleave\n",
	      stdout);
}

/* ---- zsh --------------------------------------------------------------------------------------------------------- */

/* Inside '…[…]': quotes, brackets and colons have a meaning. */
static void zsh_text(const char *s)
{
	for (; *s; s++) {
		if (*s == '\'')
			fputs("'\\''", stdout);
		else if (strchr("[]:\\", *s))
			printf("\\%c", *s);
		else
			putchar(*s);
	}
}

static void zsh_action(const command *c, const option *o)
{
	if (offer_of(o) == OFFER_FILES) {
		fputs("_files", stdout);
	} else if (offer_of(o) != OFFER_NOTHING) {
		putchar('(');
		put_words(c, o);
		putchar(')');
	} else {
		putchar(' ');
	}
}

static bool is_repeatable(const option *o)
{
	return o->type == TYPE_TEXTS || o->type == TYPE_FILES || o->type == TYPE_SYMBOL || o->type == TYPE_FILTER;
}

static void zsh_spec(const command *c, const option *o, bool as_letter)
{
	printf("\t\t\t'%s", is_repeatable(o) ? "*" : "");
	if (o->letter && !is_repeatable(o))
		printf("(-%c --%s)", o->letter, o->name);
	if (as_letter)
		printf("-%c[", o->letter);
	else
		printf("--%s%s[", o->name, takes_value(o) ? "=" : "");
	zsh_text(o->help);
	putchar(']');
	for (uint32_t i = 0; takes_value(o) && i < (o->takes ? o->takes : 1); i++) {
		printf(":%s:", o->metavar);
		zsh_action(c, o);
	}
	fputs("' \\\n", stdout);
}

static void zsh_option(const command *c, const option *o)
{
	if (o->letter)
		zsh_spec(c, o, true);
	zsh_spec(c, o, false);
}

static void zsh_arguments(const command *c)
{
	for (const option *o = c->arguments; o && o->type; o++) {
		printf("\t\t\t'%s:%s:", is_repeatable(o) ? "*" : "", o->name);
		zsh_action(c, o);
		fputs("' \\\n", stdout);
	}
}

static void zsh_command(const command *c)
{
	printf("\t\t%s%s%s)\n\t\t\t_arguments -s \\\n", c->name, c->alias ? "|" : "", c->alias ? c->alias : "");
	each_option(c, zsh_option);
	zsh_arguments(c);
	puts("\t\t\t&& return 0\n\t\t\t;;");
}

static void zsh_describe(const command *c)
{
	printf("\t\t'%s:", c->name);
	zsh_text(c->summary);
	puts("'");
}

static void write_zsh(void)
{
	fputs("#compdef cleave\n"
	      "# Completion of cleave for zsh: put it into a folder of $fpath under the name _cleave.\n"
	      "_cleave() {\n"
	      "\tlocal curcontext=\"$curcontext\" state line\n"
	      "\tlocal -a commands\n"
	      "\tcommands=(\n",
	      stdout);
	each_command(zsh_describe);
	fputs("\t\t'help:show help'\n\t)\n"
	      "\t_arguments -C \\\n",
	      stdout);
	each_option(NULL, zsh_option);
	fputs("\t\t\t'1:command:->command' \\\n"
	      "\t\t\t'*::argument:->argument' && return 0\n"
	      "\tcase $state in\n"
	      "\tcommand) _describe command commands ;;\n"
	      "\targument)\n"
	      "\t\tcase $line[1] in\n",
	      stdout);
	each_command(zsh_command);
	fputs("\t\thelp) _describe command commands ;;\n"
	      "\t\tesac\n"
	      "\t\t;;\n"
	      "\tesac\n"
	      "}\n"
	      "if [[ $funcstack[1] == _cleave ]]; then _cleave \"$@\"; else compdef _cleave cleave; fi\n",
	      stdout);
}

/* ---- fish -------------------------------------------------------------------------------------------------------- */

static void fish_text(const char *s)
{
	putchar('\'');
	for (; *s; s++) {
		if (*s == '\'' || *s == '\\')
			putchar('\\');
		putchar(*s);
	}
	putchar('\'');
}

static void fish_condition(const command *c)
{
	if (c)
		printf("complete -c cleave -n '__fish_seen_subcommand_from %s%s%s'", c->name, c->alias ? " " : "",
		       c->alias ? c->alias : "");
	else
		fputs("complete -c cleave", stdout);
}

static void fish_words(const command *c, const option *o)
{
	fputs(" -a '", stdout);
	put_words(c, o);
	putchar('\'');
}

static void fish_option(const command *c, const option *o)
{
	fish_condition(c);
	if (o->letter)
		printf(" -s %c", o->letter);
	printf(" -l %s", o->name);
	if (offer_of(o) == OFFER_FILES)
		fputs(" -r -F", stdout);
	else if (takes_value(o))
		fputs(" -x", stdout);
	if (takes_value(o) && offer_of(o) != OFFER_FILES && offer_of(o) != OFFER_NOTHING)
		fish_words(c, o);
	fputs(" -d ", stdout);
	fish_text(o->help);
	putchar('\n');
}

static void fish_command(const command *c)
{
	fputs("complete -c cleave -n __fish_use_subcommand -a ", stdout);
	printf("%s -d ", c->name);
	fish_text(c->summary);
	putchar('\n');
	for (const option *o = c->options; o && o->type; o++)
		if (o->type != TYPE_GROUP)
			fish_option(c, o);
	for (const option *o = c->arguments; o && o->type; o++) {
		fish_condition(c);
		if (offer_of(o) == OFFER_FILES)
			fputs(" -F", stdout);
		else
			fish_words(c, o);
		putchar('\n');
	}
}

static void write_fish(void)
{
	puts("# Completion of cleave for fish:  cleave completion fish > ~/.config/fish/completions/cleave.fish\n"
	     "complete -c cleave -f");
	for (const option *o = common_options; o->type; o++)
		fish_option(NULL, o);
	each_command(fish_command);
	fputs("complete -c cleave -n __fish_use_subcommand -a help -d 'show help'\n"
	      "complete -c cleave -n '__fish_seen_subcommand_from help' -a '",
	      stdout);
	each_command(put_completion_name);
	puts("'");
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static int run_completion(void *given)
{
	const request *r = given;
	if (!strcmp(r->shell, "bash"))
		write_bash();
	else if (!strcmp(r->shell, "zsh"))
		write_zsh();
	else
		write_fish();
	return written() ? EXIT_OK : EXIT_FAILED;
}

static const option arguments[] = {
	ARG_WORD("SHELL", shell, "bash|zsh|fish", "the shell"),
	OPTION_END,
};

const command command_completion = {
	.name = "completion",
	.summary = "write a completion script for a shell",
	.description = "Prints a script that makes the shell complete commands, options, their values and file names.",
	.examples = "# bash, in ~/.bashrc\n"
				"eval \"$(cleave completion bash)\"\n"
				"# zsh, in a folder of $fpath\n"
				"cleave completion zsh > ~/.zfunc/_cleave\n"
				"# fish\n"
				"cleave completion fish > ~/.config/fish/completions/cleave.fish\n",
	.arguments = arguments,
	REQUEST(request),
	.run = run_completion,
};
