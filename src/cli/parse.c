/* Parses the arguments of a command into its request, by the tables of the command.
 * Every complaint is followed by the hint where to read more, once, in parse_request. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

typedef struct parser {
	const command *c; /* NULL: the options before the command */
	void *request;
	bool *seen;  /* by option of the command, then by common option */
	char **argv; /* what is left */
	int argc;
	uint32_t argument; /* the next one */
	bool literal;      /* after -- */
} parser;

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* What a suffix multiplies by; 0: it is none. k M G T are powers of 1000, with i of 1024; a B after it says bytes. */
static double scale_of(const char *suffix)
{
	static const char letters[] = "kMGT";
	if (!*suffix || !strcmp(suffix, "B"))
		return 1;
	if (!strcmp(suffix, "%"))
		return 0.01;
	const char *at = strchr(letters, *suffix == 'K' ? 'k' : *suffix);
	bool binary = at && suffix[1] == 'i';
	const char *rest = suffix + (binary ? 2 : 1);
	if (!at || (*rest && strcmp(rest, "B") != 0))
		return 0;
	return pow(binary ? 1024 : 1000, (double)(at - letters + 1));
}

bool read_number(const char *text, double *out)
{
	char *end;
	if (!isdigit((unsigned char)*text) && *text != '.' && *text != '-')
		return false;
	double v = strtod(text, &end), scale = scale_of(end);
	if (end == text || scale == 0 || !isfinite(v))
		return false;
	*out = v * scale;
	return true;
}

static bool read_int(const char *text, int64_t *out)
{
	char *end;
	errno = 0;
	long long n = isdigit((unsigned char)*text) ? strtoll(text, &end, 10) : -1;
	if (n < 0 || errno || *end)
		return false;
	*out = n;
	return true;
}

/* Of things of which there is one at least. */
static bool read_count(const char *text, int64_t *out)
{
	return read_int(text, out) && *out > 0;
}

static bool read_bytes(const char *text, int64_t *out)
{
	double v;
	if (read_int(text, out))
		return true;
	if (!read_number(text, &v) || v < 0 || v >= 0x1p63 || strchr(text, '%'))
		return false;
	*out = (int64_t)v;
	return true;
}

/* 100M, 1e8, 1Gbit */
static bool read_rate(const char *text, double *out)
{
	size_t n = strlen(text);
	bool bits = n > 3 && !strcmp(text + n - 3, "bit");
	char *number = grab_text(text, bits ? n - 3 : n);
	bool ok = read_number(number, out) && *out >= 0 && !strchr(text, '%');
	free(number);
	if (ok && bits)
		*out /= 8;
	return ok;
}

/* A number, or what `cleave bench --json` measured; for neither, clv_last_error() says what is wrong with the file. */
static bool read_speed(const char *text, double *out)
{
	return (read_number(text, out) && !strchr(text, '%')) || clv_speed_load(text, out) == CLV_OK;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static bool is_option_word(const option *o, const char *text)
{
	const char *at;
	uint32_t n;
	for (uint32_t i = 0; (n = option_words(o, i, &at)); i++)
		if (strlen(text) == n && !memcmp(at, text, n))
			return true;
	return false;
}

static void list_add(text_list *list, const char *text)
{
	list->at = regrab(list->at, (list->n + 1) * sizeof *list->at);
	list->at[list->n++] = text;
}

static bool read_symbol(const char *text, sizes *s)
{
	int64_t value;
	const char *equals = strchr(text, '=');
	if (!equals || equals == text || !read_int(equals + 1, &value))
		return false;
	char *name = grab_text(text, (size_t)(equals - text));
	sizes_add(s, name, value);
	free(name);
	return true;
}

static bool is_within(const option *o, const int64_t *n)
{
	return !o->most || *n <= o->most;
}

static bool read_value(const command *c, const option *o, const char *text, void *at)
{
	switch (o->type) {
	case TYPE_FLAG: *(bool *)at = true; return true;
	case TYPE_WORD: *(const char **)at = text; return is_option_word(o, text);
	case TYPE_TEXT:
	case TYPE_FILE: *(const char **)at = text; return true;
	case TYPE_TEXTS:
	case TYPE_FILES: list_add(at, text); return true;
	case TYPE_INT: return read_int(text, at) && is_within(o, at);
	case TYPE_COUNT: return read_count(text, at) && is_within(o, at);
	case TYPE_SIZE: return read_bytes(text, at) && is_within(o, at);
	case TYPE_FLOAT: return read_number(text, at);
	case TYPE_SECONDS: return read_number(text, at) && *(double *)at >= 0 && !strchr(text, '%');
	case TYPE_RATE: return read_rate(text, at);
	case TYPE_SPEED: return read_speed(text, at);
	case TYPE_SYMBOL: return read_symbol(text, at);
	case TYPE_SORT: return listing_read_sort(c->columns, text, at);
	case TYPE_FILTER: return listing_read_filter(c->columns, text, at);
	default: return false;
	}
}

/* The form of a value of a type, for error messages. */
static const char *shape_of(const option *o)
{
	switch (o->type) {
	case TYPE_INT: return "a whole number";
	case TYPE_COUNT: return "a whole number from 1 on";
	case TYPE_SIZE: return "bytes, such as 4096, 64M or 1.5Gi";
	case TYPE_FLOAT: return "a number";
	case TYPE_SECONDS: return "seconds, 0 or more";
	case TYPE_RATE: return "bytes per second, such as 100M, or 1Gbit";
	case TYPE_SYMBOL: return "a symbol and its size, such as B=8";
	default: return NULL;
	}
}

static void complain_words(const option *o, const char *name, const char *text)
{
	const char *at;
	char *list = grab(strlen(o->words) * 2 + 1), *to = list;
	uint32_t n;
	for (uint32_t i = 0; (n = option_words(o, i, &at)); i++)
		to += sprintf(to, "%s%.*s", i ? ", " : "", (int)n, at);
	complain("%s cannot be \"%s\"; it is one of: %s", name, text, list);
	free(list);
}

static bool take_value(parser *p, const option *o, const char *name, const char *text, void *base)
{
	if (read_value(p->c, o, text, (char *)base + o->offset))
		return true;
	if (o->type == TYPE_WORD)
		complain_words(o, name, text);
	else if (o->type == TYPE_SPEED)
		complain("%s takes operations per second, or a file that `cleave bench --json` wrote: %s", name,
		         clv_last_error());
	else if (o->most && *(int64_t *)((char *)base + o->offset) > o->most)
		complain("%s is %lld at most, not %s", name, (long long)o->most, text);
	else if (shape_of(o))
		complain("%s takes %s, not \"%s\"", name, shape_of(o), text);
	return false;
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

typedef struct found {
	const option *o;
	uint32_t index; /* in `seen` */
	void *base;     /* struct that it writes to */
} found;

static bool is_named(const option *o, const char *name, size_t n, char letter)
{
	if (o->type == TYPE_GROUP)
		return false;
	return letter ? o->letter == letter : strlen(o->name) == n && !memcmp(o->name, name, n);
}

static found find_option(const parser *p, const char *name, size_t n, char letter)
{
	uint32_t i = 0;
	for (const option *o = p->c ? p->c->options : NULL; o && o->type; o++, i++)
		if (is_named(o, name, n, letter))
			return (found){o, i, p->request};
	for (const option *o = common_options; o->type; o++, i++)
		if (is_named(o, name, n, letter))
			return (found){o, i, &global};
	return (found){NULL, 0, NULL};
}

static uint32_t count_options(const option *o)
{
	uint32_t n = 0;
	for (; o && o->type; o++)
		n++;
	return n;
}

static void add_names(const option *o, const char **names, uint32_t *n)
{
	for (; o && o->type; o++)
		if (o->type != TYPE_GROUP)
			names[(*n)++] = o->name;
}

static void complain_unknown(const parser *p, const char *arg, size_t length)
{
	uint32_t n = 0;
	const option *own = p->c ? p->c->options : NULL;
	const char **names = grab((count_options(own) + count_options(common_options) + 1) * sizeof *names);
	add_names(own, names, &n);
	add_names(common_options, names, &n);
	complain("%s has no option %.*s", p->c ? p->c->name : "cleave", (int)length, arg);
	char *want = grab_text(arg, length);
	const char *near = length > 3 ? nearest(want + 2, names, n) : NULL;
	if (near)
		hint("did you mean --%s?", near);
	free(want);
	free(names);
}

static bool is_list(const option *o)
{
	return o->type == TYPE_TEXTS || o->type == TYPE_FILES || o->type == TYPE_SYMBOL || o->type == TYPE_FILTER;
}

/* The next word as a value; one that looks like an option is a value that was forgotten. */
static const char *next_value(parser *p, const char *name)
{
	if (p->argc == 0 || !strncmp(p->argv[0], "--", 2)) {
		complain("%s needs a value", name);
		return NULL;
	}
	p->argc--;
	return *p->argv++;
}

/* given: the value that came with the option, NULL: it is in the words that follow. */
static bool take_option(parser *p, const found *f, const char *name, const char *given)
{
	const option *o = f->o;
	if (p->seen[f->index] && !is_list(o)) {
		complain("%s is given twice", name);
		return false;
	}
	p->seen[f->index] = true;
	if (o->type == TYPE_FLAG && given) {
		complain("%s takes no value", name);
		return false;
	}
	if (o->type == TYPE_FLAG)
		return take_value(p, o, name, "", f->base);
	for (uint32_t i = 0; i < (o->takes ? o->takes : 1); i++) {
		const char *text = given ? given : next_value(p, name);
		if (!text || !take_value(p, o, name, text, f->base))
			return false;
		given = NULL;
	}
	return true;
}

static bool take_long(parser *p, char *arg)
{
	const char *equals = strchr(arg, '=');
	size_t n = equals ? (size_t)(equals - arg) : strlen(arg);
	found f = find_option(p, arg + 2, n - 2, 0);
	if (!f.o) {
		complain_unknown(p, arg, n);
		return false;
	}
	char *name = grab_text(arg, n);
	bool ok = take_option(p, &f, name, equals ? equals + 1 : NULL);
	free(name);
	return ok;
}

/* -q, -o FILE, -oFILE, -qo FILE */
static bool take_letters(parser *p, const char *arg)
{
	for (const char *at = arg + 1; *at; at++) {
		const char name[3] = {'-', *at, '\0'};
		found f = find_option(p, NULL, 0, *at);
		if (!f.o) {
			complain_unknown(p, name, 2);
			return false;
		}
		bool flag = f.o->type == TYPE_FLAG;
		if (!take_option(p, &f, name, !flag && at[1] ? at + 1 : NULL))
			return false;
		if (!flag)
			return true;
	}
	return true;
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */

static bool take_argument(parser *p, const char *arg)
{
	const option *o = p->c->arguments ? &p->c->arguments[p->argument] : NULL;
	if (!o || !o->type) {
		complain("%s takes no more arguments: \"%s\" is one too many", p->c->name, arg);
		return false;
	}
	if (!is_list(o))
		p->argument++;
	return take_value(p, o, o->name, arg, p->request);
}

static bool has_all_arguments(const parser *p)
{
	const option *o = p->c->arguments ? &p->c->arguments[p->argument] : NULL;
	if (!o || !o->type || o->optional)
		return true;
	if (is_list(o) && ((text_list *)(void *)((char *)p->request + o->offset))->n)
		return true;
	complain("%s needs an argument: %s", p->c->name, o->name);
	return false;
}

static bool take_word(parser *p)
{
	char *arg = *p->argv++;
	p->argc--;
	if (p->literal || arg[0] != '-' || !arg[1])
		return take_argument(p, arg);
	if (!strcmp(arg, "--")) {
		p->literal = true;
		return true;
	}
	return arg[1] == '-' ? take_long(p, arg) : take_letters(p, arg);
}

static void set_presets(parser *p, const option *o)
{
	for (; o && o->type; o++)
		if (o->preset)
			read_value(p->c, o, o->preset, (char *)p->request + o->offset);
}

static bool *new_seen(const command *c)
{
	return grab((count_options(c ? c->options : NULL) + count_options(common_options) + 1) * sizeof(bool));
}

int parse_request(const command *c, int argc, char **argv, void *request)
{
	parser p = {.c = c, .request = request, .seen = new_seen(c), .argv = argv, .argc = argc};
	bool ok = true;
	set_presets(&p, c->arguments);
	set_presets(&p, c->options);
	while (ok && p.argc && !global.help && !global.version)
		ok = take_word(&p);
	ok = ok && (global.help || global.version || has_all_arguments(&p));
	free(p.seen);
	if (!ok)
		hint("`cleave %s --help` lists the options", c->name);
	return ok ? EXIT_OK : EXIT_USAGE;
}

int parse_global(int argc, char **argv)
{
	parser p = {.seen = new_seen(NULL), .argv = argv, .argc = argc};
	bool ok = true;
	while (ok && p.argc && p.argv[0][0] == '-' && p.argv[0][1])
		ok = take_word(&p);
	free(p.seen);
	return ok ? argc - p.argc : -1;
}

static void free_value(const option *o, void *at)
{
	if (o->type == TYPE_TEXTS || o->type == TYPE_FILES)
		free(((text_list *)at)->at);
	if (o->type == TYPE_FILTER)
		free(((listing_view *)at)->filters);
	if (o->type == TYPE_SYMBOL)
		sizes_free(at);
}

void request_free(const command *c, void *request)
{
	for (const option *o = c->arguments; o && o->type; o++)
		free_value(o, (char *)request + o->offset);
	for (const option *o = c->options; o && o->type; o++)
		free_value(o, (char *)request + o->offset);
	free(request);
}

/* ---- names that were meant --------------------------------------------------------------------------------------- */

static unsigned smaller(unsigned a, unsigned b)
{
	return a < b ? a : b;
}

/* Letters to change, add or remove to get from one name to the other. */
static unsigned word_distance(const char *a, const char *b)
{
	size_t n = strlen(b);
	unsigned *row = grab((n + 1) * sizeof *row);
	for (unsigned j = 0; j <= n; j++)
		row[j] = j;
	for (unsigned i = 1; a[i - 1]; i++) {
		unsigned diagonal = row[0];
		row[0] = i;
		for (unsigned j = 1; j <= n; j++) {
			unsigned change = diagonal + (a[i - 1] != b[j - 1]);
			diagonal = row[j];
			row[j] = smaller(change, 1 + smaller(row[j], row[j - 1]));
		}
	}
	unsigned d = row[n];
	free(row);
	return d;
}

const char *nearest(const char *want, const char *const *names, uint32_t n)
{
	const char *best = NULL;
	unsigned least = (unsigned)strlen(want) / 3 + 1; /* farther is no slip of the finger */
	for (uint32_t i = 0; i < n; i++) {
		bool starts = strlen(want) >= 3 && !strncmp(names[i], want, strlen(want));
		unsigned d = starts ? 0 : word_distance(want, names[i]);
		if (d > least || (best && d == least))
			continue;
		best = names[i];
		least = d;
	}
	return best;
}
