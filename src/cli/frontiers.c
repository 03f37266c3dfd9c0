/* `cleave frontiers`: where a plan can be cut, as a table or as JSON, with the frontier that an objective takes. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

typedef struct request {
	const char *path, *boundary;
	clv_objective objective;
	const char **symbols; /* names, cut off at their "=" */
	int64_t *sizes;
	uint32_t nsizes;
	bool json;
} request;

/* ---- options --------------------------------------------------------------------------------------------------------- */

enum option_type { OPTION_TEXT, OPTION_INT, OPTION_FLOAT };

#define OPTION(name, type, field)                                                                                      \
	{                                                                                                                  \
		name, type, offsetof(request, field)                                                                           \
	}

static const struct option {
	const char *name;
	enum option_type type;
	size_t offset;
} options[] = {
	OPTION("--boundary", OPTION_TEXT, boundary),
	OPTION("--minimize", OPTION_TEXT, objective.minimize),
	OPTION("--max-bytes", OPTION_INT, objective.max_boundary_bytes),
	OPTION("--max-prefix-memory", OPTION_INT, objective.max_prefix_memory),
	OPTION("--max-suffix-memory", OPTION_INT, objective.max_suffix_memory),
	OPTION("--max-prefix-params", OPTION_INT, objective.max_prefix_params),
	OPTION("--max-suffix-params", OPTION_INT, objective.max_suffix_params),
	OPTION("--min-fraction", OPTION_FLOAT, objective.min_prefix_flops_fraction),
	OPTION("--max-fraction", OPTION_FLOAT, objective.max_prefix_flops_fraction),
	OPTION("--bandwidth", OPTION_FLOAT, objective.bandwidth_bytes_per_s),
	OPTION("--prefix-speed", OPTION_FLOAT, objective.prefix_flops_per_s),
	OPTION("--suffix-speed", OPTION_FLOAT, objective.suffix_flops_per_s),
};

static const struct option *find_option(const char *name)
{
	for (size_t i = 0; i < sizeof options / sizeof *options; i++)
		if (!strcmp(options[i].name, name))
			return &options[i];
	return NULL;
}

static bool read_int(const char *text, int64_t *out)
{
	char *end;
	errno = 0;
	long long n = strtoll(text, &end, 10);
	if (errno || end == text || *end || n < 0)
		return false;
	*out = n;
	return true;
}

static bool read_option(request *r, const struct option *o, const char *text)
{
	void *at = (char *)r + o->offset;
	char *end;
	if (o->type == OPTION_TEXT) {
		*(const char **)at = text;
		return true;
	}
	if (o->type == OPTION_INT)
		return read_int(text, at);
	*(double *)at = strtod(text, &end);
	return end != text && !*end;
}

/* "B=8" */
static bool read_size(request *r, char *text)
{
	char *equals = strchr(text, '=');
	if (!equals || equals == text || !read_int(equals + 1, &r->sizes[r->nsizes]))
		return false;
	*equals = '\0';
	r->symbols[r->nsizes++] = text;
	return true;
}

static int bad_usage(const char *what, const char *arg)
{
	complain("%s%s", what, arg);
	return EXIT_USAGE;
}

/* EXIT_OK, or EXIT_USAGE with what is wrong said. */
static int read_request(request *r, int argc, char **argv)
{
	for (int i = 0; i < argc; i++) {
		const struct option *o = find_option(argv[i]);
		bool size = !strcmp(argv[i], "--size");
		if (!strcmp(argv[i], "--json")) {
			r->json = true;
		} else if (!strcmp(argv[i], "--trainable")) {
			r->objective.trainable_suffix = true;
		} else if (o || size) {
			if (i + 1 == argc)
				return bad_usage("there is no value for ", argv[i]);
			if (size ? !read_size(r, argv[i + 1]) : !read_option(r, o, argv[i + 1]))
				return bad_usage("this is no value for the option before it: ", argv[i + 1]);
			i++;
		} else if (argv[i][0] == '-' && argv[i][1]) {
			return bad_usage("frontiers has no option ", argv[i]);
		} else if (r->path) {
			return bad_usage("frontiers takes one file; a second is ", argv[i]);
		} else {
			r->path = argv[i];
		}
	}
	return r->path ? EXIT_OK : bad_usage("frontiers takes a file", "");
}

/* ---- printing -------------------------------------------------------------------------------------------------------- */

typedef struct row {
	clv_frontier c;
	char *bytes; /* as a formula */
} row;

/* Names come from files that anybody may have written: nothing in them may steer the terminal. */
static void put_plain(const char *s)
{
	for (; *s; s++)
		putchar((unsigned char)*s < 0x20 || *s == 0x7F ? '?' : *s);
}

static void put_padded(const char *s, size_t width)
{
	put_plain(s);
	for (size_t n = strlen(s); n < width; n++)
		putchar(' ');
	fputs("  ", stdout);
}

typedef struct widths {
	size_t name, module, bytes;
} widths;

static void widen(size_t *width, const char *text)
{
	size_t n = strlen(text);
	*width = n > *width ? n : *width;
}

static void print_row(const row *x, const widths *w, bool chosen)
{
	const clv_frontier *c = &x->c;
	printf("%c%6u  ", chosen ? '*' : c->unsafe ? '!' : ' ', c->position);
	put_padded(c->name, w->name);
	put_padded(c->module, w->module);
	printf("%7u  %12lld  ", c->boundary_tensors, (long long)c->boundary_bytes);
	put_padded(x->bytes, w->bytes);
	printf("%5.1f %%  %13lld  %13lld  %13lld  %13lld", c->prefix_cost * 100, (long long)c->prefix_params,
	       (long long)c->suffix_params, (long long)c->prefix_memory, (long long)c->suffix_memory);
	if (c->unsafe) {
		fputs("  ", stdout);
		put_plain(c->unsafe);
	}
	putchar('\n');
}

static void print_table(const row *rows, uint32_t n, uint32_t chosen)
{
	widths w = {4, 6, 7};
	for (uint32_t i = 0; i < n; i++) {
		widen(&w.name, rows[i].c.name);
		widen(&w.module, rows[i].c.module);
		widen(&w.bytes, rows[i].bytes);
	}
	fputs("  after  ", stdout);
	put_padded("node", w.name);
	put_padded("module", w.module);
	fputs("tensors         bytes  ", stdout);
	put_padded("formula", w.bytes);
	puts("   work  params before   params after  memory before   memory after");
	for (uint32_t i = 0; i < n; i++)
		print_row(&rows[i], &w, i == chosen);
}

static void put_json_text(const char *s)
{
	putchar('"');
	for (; *s; s++) {
		if ((unsigned char)*s < 0x20 || *s == 0x7F)
			printf("\\u%04x", (unsigned char)*s);
		else if (*s == '"' || *s == '\\')
			printf("\\%c", *s);
		else
			putchar(*s);
	}
	putchar('"');
}

static void put_json_field(const char *name, const char *text)
{
	printf("\"%s\": ", name);
	if (text)
		put_json_text(text);
	else
		fputs("null", stdout);
	fputs(", ", stdout);
}

static void put_json_number(const char *name, double v)
{
	if (isfinite(v))
		printf("\"%s\": %.17g, ", name, v);
	else
		printf("\"%s\": null, ", name);
}

static void print_json_row(const row *x, bool chosen)
{
	const clv_frontier *c = &x->c;
	printf("  {\"position\": %u, ", c->position);
	put_json_field("name", c->name);
	put_json_field("module", c->module);
	put_json_field("boundary_bytes_formula", x->bytes);
	put_json_field("reason", c->unsafe);
	put_json_number("prefix_fraction", c->prefix_cost);
	put_json_number("prefix_flops", c->prefix_flops);
	put_json_number("suffix_flops", c->suffix_flops);
	printf("\"boundary_tensors\": %u, \"passthrough_inputs\": %u, \"boundary_bytes\": %lld, ", c->boundary_tensors,
	       c->passthrough_inputs, (long long)c->boundary_bytes);
	printf("\"prefix_nodes\": %u, \"suffix_nodes\": %u, \"prefix_params\": %lld, \"suffix_params\": %lld, ",
	       c->prefix_nodes, c->suffix_nodes, (long long)c->prefix_params, (long long)c->suffix_params);
	printf("\"prefix_memory\": %lld, \"suffix_memory\": %lld, ", (long long)c->prefix_memory,
	       (long long)c->suffix_memory);
	printf("\"trainable_suffix\": %s, \"safe\": %s, \"chosen\": %s}", c->trainable_suffix ? "true" : "false",
	       c->unsafe ? "false" : "true", chosen ? "true" : "false");
}

static void print_json(const row *rows, uint32_t n, uint32_t chosen)
{
	puts("[");
	for (uint32_t i = 0; i < n; i++) {
		print_json_row(&rows[i], i == chosen);
		puts(i + 1 < n ? "," : "");
	}
	puts("]");
}

/* ---- the command ----------------------------------------------------------------------------------------------------- */

static void free_rows(row *rows, uint32_t n)
{
	for (uint32_t i = 0; rows && i < n; i++)
		clv_string_free(rows[i].bytes);
	free(rows);
}

static row *read_rows(const clv_frontiers *f, uint32_t n)
{
	row *rows = calloc((size_t)n + 1, sizeof *rows);
	for (uint32_t i = 0; rows && i < n; i++) {
		rows[i].c.size = sizeof rows[i].c;
		if (clv_frontiers_get(f, i, &rows[i].c) || clv_frontiers_bytes_text(f, i, &rows[i].bytes)) {
			free_rows(rows, n);
			return NULL;
		}
	}
	return rows;
}

static int show(const request *r, const clv_frontiers *f)
{
	uint32_t n = clv_frontiers_count(f), chosen = UINT32_MAX;
	row *rows = read_rows(f, n);
	if (!rows) {
		complain("%s", clv_last_error());
		return EXIT_FAILED;
	}
	clv_status st = clv_frontiers_choose(f, r->boundary, &r->objective, &chosen);
	(r->json ? print_json : print_table)(rows, n, chosen);
	free_rows(rows, n);
	if (st != CLV_OK)
		complain("%s", clv_last_error());
	return written() && st == CLV_OK ? EXIT_OK : EXIT_FAILED;
}

static int run_request(const request *r)
{
	clv_frontiers_options o = CLV_FRONTIERS_OPTIONS_INIT;
	clv_frontiers *f = NULL;
	clv_plan *p = load_plan(r->path);
	if (!p)
		return EXIT_FAILED;
	o.symbols = r->symbols;
	o.values = r->sizes;
	o.nsymbols = r->nsizes;
	int code = EXIT_FAILED;
	if (clv_frontiers_create(p, &o, &f) == CLV_OK)
		code = show(r, f);
	else
		complain("%s", clv_last_error());
	clv_frontiers_free(f);
	clv_plan_free(p);
	return code;
}

static int run_frontiers(int argc, char **argv)
{
	request r = {.boundary = "auto", .objective = CLV_OBJECTIVE_INIT};
	r.symbols = calloc((size_t)argc + 1, sizeof *r.symbols);
	r.sizes = calloc((size_t)argc + 1, sizeof *r.sizes);
	int code = EXIT_FAILED;
	if (!r.symbols || !r.sizes)
		complain("out of memory");
	else if ((code = read_request(&r, argc, argv)) == EXIT_OK)
		code = run_request(&r);
	free(r.symbols);
	free(r.sizes);
	return code;
}

const command command_frontiers = {
	.name = "frontiers",
	.summary = "show where a plan can be cut",
	.help = "usage: cleave frontiers [OPTIONS] FILE.plan\n\n"
			"Lists the frontiers of a plan: what crosses after each node, in bytes and as a formula in the\n"
			"plan's symbols, and parameters and memory on both sides. * marks the frontier that is taken, ! one\n"
			"that cannot be cut, with the reason. Work is estimated from shapes.\n\n"
			"  --boundary TEXT          auto, after:NAME, 50% (default: auto)\n"
			"  --minimize WHAT          boundary_bytes, latency, prefix_memory, suffix_memory, prefix_flops,\n"
			"                           suffix_flops, balance (default: bytes, with 20 to 80 % of the work before)\n"
			"  --max-bytes N            most bytes that may cross\n"
			"  --max-prefix-memory N, --max-suffix-memory N, --max-prefix-params N, --max-suffix-params N\n"
			"  --min-fraction X, --max-fraction X   share of the work before the cut, 0 to 1\n"
			"  --trainable              parameters that require grad are left after the cut\n"
			"  --bandwidth X            bytes per second; latency needs it\n"
			"  --prefix-speed X, --suffix-speed X   operations per second (default: 1e12)\n"
			"  --size B=8               size of a symbol (default: its lowest)\n"
			"  --json                   an array of objects instead of a table\n",
	.run_options = run_frontiers,
};
