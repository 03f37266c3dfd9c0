/* `cleave inspect`: a page about a plan, and about the file that holds it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

typedef struct request {
	const char *path, *fail_under, *engine;
	bool json;
	sizes sizes;
	opening opening;
} request;

/* ---- the file ------------------------------------------------------------------------------------------------------ */

static void print_fixed(const clv_artifact *a, uint32_t i)
{
	const char *name, *before = ", for ";
	int64_t value;
	for (uint32_t k = 0; clv_artifact_fixed_size(a, i, k, &name, &value); k++, before = " ") {
		fputs(before, stdout);
		put_plain(stdout, name);
		printf("=%lld", (long long)value);
	}
	if (*before == ' ')
		fputs(" alone", stdout);
}

static void print_plan_line(const clv_artifact *a, uint32_t i)
{
	clv_plan_info info = {.size = sizeof info};
	if (clv_artifact_plan_info(a, i, &info) != CLV_OK)
		return;
	printf("  plan %-6u ", i);
	put_plain(stdout, info.signature);
	if (info.cut >= 0)
		printf(", nodes %u to %u of %u, cut after %lld", info.first, info.end ? info.end - 1 : 0,
		       clv_plan_node_count(clv_artifact_plan(a, i)), (long long)info.cut - 1);
	if (info.npoints)
		fputs(", proven for ", stdout);
	print_points(stdout, a, i);
	print_fixed(a, i);
	uint32_t n = clv_artifact_segment_count(a, i);
	if (n)
		printf(", %u compiled segment%s", n, n == 1 ? "" : "s");
	putchar('\n');
}

static void print_field(const char *name, const char *text)
{
	if (!*text)
		return;
	fputs("  ", stdout);
	put_plain(stdout, name);
	printf("%*s ", strlen(name) < 11 ? (int)(11 - strlen(name)) : 0, "");
	put_plain(stdout, text);
	putchar('\n');
}

static bool segment_has_need(const clv_artifact *a, uint32_t plan_number, uint32_t i, const char *key, const char *text)
{
	const char *k, *t;
	for (uint32_t n = 0; clv_artifact_segment_need(a, plan_number, i, n, &k, &t); n++)
		if (!strcmp(k, key) && !strcmp(t, text))
			return true;
	return false;
}

/* What has to be here for compiled segments to run; what several of them need, once. */
static void print_needs(const clv_artifact *a, uint32_t plan_number)
{
	const char *key, *text, *before = "  needs       ";
	for (uint32_t i = 0; i < clv_artifact_segment_count(a, plan_number); i++)
		for (uint32_t k = 0; clv_artifact_segment_need(a, plan_number, i, k, &key, &text); k++) {
			if (i && segment_has_need(a, plan_number, i - 1, key, text))
				continue;
			fputs(before, stdout);
			put_plain(stdout, key);
			putchar(' ');
			put_plain(stdout, text);
			before = ", ";
		}
	if (*before == ',')
		putchar('\n');
}

/* What the report of a traced file says in its own words. */
static bool is_in_report(const clv_artifact *a, uint32_t plan_number, const char *key)
{
	static const char *const keys[] = {"backend", "minimum_segment_size", "eager_ms", "tape_ms", "traced_ms"};
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
		if (!strcmp(key, keys[i]))
			return is_traced(a, plan_number);
	return false;
}

static void print_packed(const clv_artifact *a)
{
	char text[HUMAN_TEXT];
	const char *isa;
	uint32_t pieces;
	int64_t bytes;
	for (uint32_t i = 0; clv_artifact_packed(a, i, &isa, &pieces, &bytes); i++)
		printf("  packed      for %s: %u pieces, %s\n", isa, pieces, human_bytes(bytes, text));
}

static void put_packed(const clv_artifact *a)
{
	const char *isa;
	uint32_t pieces;
	int64_t bytes;
	put_json_open("packed", '[');
	for (uint32_t i = 0; clv_artifact_packed(a, i, &isa, &pieces, &bytes); i++) {
		put_json_open_line(NULL, '{');
		put_json_text("isa", isa);
		put_json_int("pieces", pieces);
		put_json_int("bytes", bytes);
		put_json_close();
	}
	put_json_close();
}

static void print_file(const model *m, uint32_t plan_number)
{
	char bytes[HUMAN_TEXT], all[HUMAN_TEXT];
	const clv_artifact *a = m->artifact;
	const char *key, *text;
	printf("%s, %s\n", name_of(m->path), human_bytes(m->size, all));
	print_field("part", clv_artifact_part(a));
	print_field("boundary", clv_artifact_boundary(a));
	print_field("split", clv_artifact_split_id(a));
	if (clv_artifact_signer(a))
		printf("  signed by   key %s%s\n", clv_artifact_signer(a),
		       clv_artifact_signature_verified(a) ? "" : ", not verified: --trusted-key FILE does");
	printf("  tensors     %u, %s%s\n", clv_artifact_tensor_count(a), human_bytes(tensor_bytes(a), bytes),
	       clv_artifact_has_weights(a) ? "" : "; the weights are not in the file");
	print_packed(a);
	if (clv_artifact_training(a))
		print_field("trains", "with cleave.load_trainer, clv_trainer_create");
	for (uint32_t i = 0; clv_artifact_about(a, i, &key, &text); i++)
		if (!is_in_report(a, plan_number, key))
			print_field(key, text);
	if (clv_artifact_any_size(a))
		print_field("sizes", "any");
	for (uint32_t i = 0; i < clv_artifact_plan_count(a); i++)
		print_plan_line(a, i);
	print_needs(a, plan_number);
	putchar('\n');
}

static void json_notes(const char *title, const clv_artifact *a, uint32_t plan_number, uint32_t i, bool needs)
{
	const char *key, *text;
	put_json_open(title, '{');
	for (uint32_t k = 0; needs ? clv_artifact_segment_need(a, plan_number, i, k, &key, &text)
	                           : clv_artifact_segment_fact(a, plan_number, i, k, &key, &text);
	     k++)
		put_json_text(key, text);
	put_json_close();
}

static void put_segments(const clv_artifact *a, uint32_t plan_number)
{
	uint32_t node;
	const char *reason;
	put_json_open("segments", '[');
	for (uint32_t i = 0; i < clv_artifact_segment_count(a, plan_number); i++) {
		clv_segment_info info = {.size = sizeof info};
		if (clv_artifact_segment(a, plan_number, i, &info) != CLV_OK)
			break;
		put_json_open_line(NULL, '{');
		put_json_text("backend", info.backend);
		put_json_int("first", info.first);
		put_json_int("end", info.end);
		put_json_int("bytes", info.bytes);
		json_notes("needs", a, plan_number, i, true);
		json_notes("facts", a, plan_number, i, false);
		put_json_close();
	}
	put_json_close();
	put_json_open("fallbacks", '[');
	for (uint32_t i = 0; clv_artifact_fallback(a, plan_number, i, &node, &reason); i++) {
		put_json_open_line(NULL, '{');
		put_json_int("node", node);
		put_json_text("reason", reason);
		put_json_close();
	}
	put_json_close();
}

static void json_plan(const clv_artifact *a, uint32_t i)
{
	const char *name;
	int64_t value;
	clv_plan_info info = {.size = sizeof info};
	if (clv_artifact_plan_info(a, i, &info) != CLV_OK)
		return;
	put_json_open_line(NULL, '{');
	put_json_text("signature", info.signature);
	put_json_int("first", info.first);
	put_json_int("end", info.end);
	put_json_int("cut", info.cut);
	put_json_open("proven", '[');
	for (uint32_t k = 0; k < info.npoints; k++) {
		put_json_open(NULL, '[');
		for (uint32_t j = 0; j < info.point_size; j++)
			put_json_int(NULL, info.points[k * info.point_size + j]);
		put_json_close();
	}
	put_json_close();
	put_json_open("fixed", '{');
	for (uint32_t k = 0; clv_artifact_fixed_size(a, i, k, &name, &value); k++)
		put_json_int(name, value);
	put_json_close();
	if (is_traced(a, i))
		put_segments(a, i);
	put_json_close();
}

static void put_file(const model *m)
{
	const clv_artifact *a = m->artifact;
	const char *key, *text;
	put_json_open("artifact", '{');
	put_json_text("file", m->path);
	put_json_int("bytes", m->size);
	put_json_text("part", clv_artifact_part(a));
	put_json_text("boundary", clv_artifact_boundary(a));
	put_json_text("split_id", clv_artifact_split_id(a));
	put_json_text("batch", clv_artifact_batch(a));
	put_json_text("signer", clv_artifact_signer(a));
	put_json_bool("signature_verified", clv_artifact_signature_verified(a));
	put_json_bool("weights", clv_artifact_has_weights(a));
	put_json_bool("any_size", clv_artifact_any_size(a));
	put_json_int("tensors", clv_artifact_tensor_count(a));
	put_json_int("tensor_bytes", tensor_bytes(a));
	put_packed(a);
	put_json_bool("trains", clv_artifact_training(a) != NULL);
	put_json_open_line("about", '{');
	for (uint32_t i = 0; clv_artifact_about(a, i, &key, &text); i++)
		put_json_text(key, text);
	put_json_close();
	put_json_open("plans", '[');
	for (uint32_t i = 0; i < clv_artifact_plan_count(a); i++)
		json_plan(a, i);
	put_json_close();
	put_json_close();
}

/* ---- the page ------------------------------------------------------------------------------------------------------ */

/* NULL text: nothing of the plan was to be compiled. */
static bool make_report(const request *r, const model *m, char **text, double *covered)
{
	clv_report_options o = CLV_REPORT_OPTIONS_INIT;
	o.plan = (uint32_t)r->opening.plan;
	o.json = r->json;
	*text = NULL;
	*covered = 0;
	if (!m->artifact || !is_traced(m->artifact, o.plan))
		return true;
	bool ok = clv_artifact_report(m->artifact, &o, covered, text) == CLV_OK;
	if (!clv_artifact_segment_count(m->artifact, o.plan)) /* of a dry run it says what would be */
		*covered = 0;
	return ok || fail_with(r->path) == EXIT_OK;
}

static int show_json(const model *m, char *report, char *text)
{
	put_json_open(NULL, '{');
	put_file(m);
	if (report) {
		put_json_open("report", '{');
		put_json_members(report);
		put_json_close();
	}
	put_json_members(text);
	put_json_close();
	clv_free(report);
	clv_free(text);
	return written() ? EXIT_OK : EXIT_FAILED;
}

static int show_inspection(const request *r, const model *m, char *report, char *text)
{
	if (m->artifact && r->json)
		return show_json(m, report, text);
	if (m->artifact)
		print_file(m, (uint32_t)r->opening.plan);
	if (report) {
		fputs(report, stdout);
		putchar('\n');
	}
	clv_free(report);
	return put_text(text) ? EXIT_OK : EXIT_FAILED;
}

static int show_page(const request *r, const model *m, double *covered)
{
	clv_sizes o = sizes_given(&r->sizes);
	clv_frontiers *f = NULL;
	char *text = NULL, *report;
	clv_status st = clv_frontiers_create(m->plan, &o, &f);
	if (st == CLV_OK)
		st = clv_frontiers_inspect(f, r->json, &text);
	clv_frontiers_free(f);
	if (st != CLV_OK)
		return fail_with(r->path);
	if (!make_report(r, m, &report, covered)) {
		clv_free(text);
		return EXIT_FAILED;
	}
	return show_inspection(r, m, report, text);
}

/* ---- an engine ------------------------------------------------------------------------------------------------------ */

static const column refused_columns[] = {
	{"node", "node", COLUMN_TEXT},     {"op", "operator", COLUMN_TEXT},   {"module", "module", COLUMN_TEXT},
	{"source", "source", COLUMN_TEXT}, {"reason", "reason", COLUMN_TEXT}, COLUMNS_END,
};

static clv_status add_refused(const char *engine, const model *m, const clv_graph *g, listing *t, uint32_t *n)
{
	for (uint32_t i = 0; i < clv_plan_node_count(m->plan); i++) {
		clv_node x = {.size = sizeof x};
		const char *why;
		clv_status st = clv_plan_takes(m->plan, engine, i, &why);
		if (st == CLV_OK && why)
			st = clv_graph_node(g, i, &x);
		if (st != CLV_OK)
			return st;
		if (!why)
			continue;
		listing_add(t, 0, (const cell[]){{.s = x.name}, {.s = x.op}, {.s = x.module}, {.s = x.source}, {.s = why}});
		++*n;
	}
	return CLV_OK;
}

/* The nodes that an engine does not take, and why. */
static int show_refused(const request *r, const model *m)
{
	listing *t = listing_new(refused_columns);
	clv_graph *g = NULL;
	uint32_t n = 0;
	clv_status st = clv_graph_create(m->plan, &g);
	if (st == CLV_OK)
		st = add_refused(r->engine, m, g, t, &n);
	int code = st == CLV_OK ? EXIT_OK : fail_with(r->path);
	uint32_t all = clv_plan_node_count(m->plan);
	if (st == CLV_OK && !r->json)
		printf("%s takes %u of %u nodes\n", r->engine, all - n, all);
	if (st == CLV_OK && (n || r->json))
		listing_show(t, &(listing_view){.json = r->json});
	else
		listing_free(t);
	clv_graph_free(g);
	return code;
}

static int inspect(request *r, double *covered)
{
	model m;
	if (!model_open(r->path, &r->opening, &m))
		return EXIT_FAILED;
	int code = EXIT_FAILED;
	if (r->engine)
		code = show_refused(r, &m);
	else if (sizes_resolve(&r->sizes, &m))
		code = show_page(r, &m, covered);
	model_close(&m);
	return code;
}

/* 95 and 95% are the same. */
static bool read_percent(const char *text, double *out)
{
	char *end;
	*out = strtod(text, &end);
	end += end != text && *end == '%';
	return end != text && !*end && *out >= 0 && *out <= 100;
}

static int check_covered(const request *r, double least, double covered)
{
	if (covered * 100 >= least)
		return EXIT_OK;
	complain("%s: %.1f %% of the FLOPs are compiled, less than --fail-under %s", name_of(r->path),
	         floor(covered * 1000) / 10, r->fail_under);
	return EXIT_DIFFER;
}

static int run_inspect(void *given)
{
	request *r = given;
	double least = 0, covered = 0;
	if (r->fail_under && !read_percent(r->fail_under, &least)) {
		complain("--fail-under takes a percentage, from 0 to 100, not \"%s\"", r->fail_under);
		return EXIT_USAGE;
	}
	int code = inspect(r, &covered);
	if (!r->fail_under)
		return code;
	return code == EXIT_OK ? check_covered(r, least, covered) : EXIT_TROUBLE;
}

static const option arguments[] = {MODEL_ARGUMENT, OPTION_END};

static const option options[] = {
	OPT_FLAG("json", 0, json, "a JSON object instead of a page"),
	OPT_TEXT("fail-under", 0, "PERCENT", fail_under,
             "exit with status 1 if less than this share of the FLOPs is compiled: 95"),
	OPT_TEXT("engine", 0, "NAME", engine, "instead, list the nodes that this engine cannot run, and why: native"),
	SIZE_OPTIONS(sizes),
	OPENING_OPTIONS(opening),
	OPTION_END,
};

const command command_inspect = {
	.name = "inspect",
	.summary = "show the contents of a plan or a model file",
	.description = "Shows a page about a plan: model, symbols, inputs and outputs, parameters and their bytes, work "
				   "and memory, operators by count, in-place writes, random nodes, modes, the guards with the place "
				   "they come from, and the nodes after which the plan cannot be cut, with the reasons.\n\n"
				   "For a .clv file it first shows what the file holds: which part of the model, where it is cut, "
				   "tensors and their bytes, where it came from, and for each plan the sizes for which it is proven. "
				   "For a traced file it also shows what is compiled, what is not and why, and what was measured.\n\n"
				   "Work is counted from shapes; a multiplication and an addition count as two. Memory is that of the "
				   "model's own tensors, and the peak of inputs and results.",
	.examples = "cleave inspect model.clv\ncleave inspect model.plan --batch 8 --json\n"
				"# why it could not run without libtorch\n"
				"cleave inspect model.clv --engine native\n"
				"# in a test: most of the work is still compiled\n"
				"cleave inspect traced.clv --fail-under 95\n",
	.exits =
		"0 done, 1 it failed, 2 wrong usage. With --fail-under: 0 enough is compiled, 1 too little is, 2 it failed.",
	.arguments = arguments,
	.options = options,
	REQUEST(request),
	.run = run_inspect,
};
