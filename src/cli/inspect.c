/* `cleave inspect`: a page about a plan, and about the file that holds it. */
#include "cli.h"

typedef struct request {
	const char *path;
	bool json;
	sizes sizes;
	opening opening;
} request;

/* ---- the file ------------------------------------------------------------------------------------------------------ */

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
	putchar('\n');
}

static void print_notes(const char *title, const clv_artifact *a, uint32_t plan_number, uint32_t i, bool needs)
{
	const char *key, *text;
	for (uint32_t k = 0; needs ? clv_artifact_segment_need(a, plan_number, i, k, &key, &text)
	                           : clv_artifact_segment_fact(a, plan_number, i, k, &key, &text);
	     k++) {
		fputs(k ? ", " : title, stdout);
		put_plain(stdout, key);
		putchar(' ');
		put_plain(stdout, text);
	}
}

/* What is compiled, and what is not though it was to be. */
static void print_segments(const clv_artifact *a, uint32_t plan_number)
{
	char bytes[HUMAN_TEXT];
	uint32_t node, n = 0;
	const char *reason;
	for (uint32_t i = 0; i < clv_artifact_segment_count(a, plan_number); i++) {
		clv_segment_info info = {.size = sizeof info};
		if (clv_artifact_segment(a, plan_number, i, &info) != CLV_OK)
			return;
		printf("    segment %-4u ", i);
		put_plain(stdout, info.backend);
		printf(", nodes %u to %u, %s", info.first, info.end - 1, human_bytes(info.bytes, bytes));
		print_notes("; needs ", a, plan_number, i, true);
		print_notes("; ", a, plan_number, i, false);
		putchar('\n');
	}
	while (clv_artifact_fallback(a, plan_number, n, &node, &reason))
		n++;
	if (n)
		printf("    %u node%s not compiled\n", n, n == 1 ? "" : "s");
}

static void print_field(const char *name, const char *text)
{
	if (!*text)
		return;
	printf("  %-11s ", name);
	put_plain(stdout, text);
	putchar('\n');
}

static void print_file(const model *m)
{
	char bytes[HUMAN_TEXT], all[HUMAN_TEXT];
	const clv_artifact *a = m->artifact;
	const char *key, *text;
	printf("%s, %s\n", name_of(m->path), human_bytes(m->size, all));
	print_field("part", clv_artifact_part(a));
	print_field("boundary", clv_artifact_boundary(a));
	print_field("split", clv_artifact_split_id(a));
	printf("  tensors     %u, %s%s\n", clv_artifact_tensor_count(a), human_bytes(tensor_bytes(a), bytes),
	       clv_artifact_has_weights(a) ? "" : "; the weights are not in the file");
	for (uint32_t i = 0; clv_artifact_about(a, i, &key, &text); i++)
		print_field(key, text);
	for (uint32_t i = 0; i < clv_artifact_plan_count(a); i++) {
		print_plan_line(a, i);
		print_segments(a, i);
	}
	putchar('\n');
}

static void put_notes(const char *title, const clv_artifact *a, uint32_t plan_number, uint32_t i, bool needs)
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
		put_notes("needs", a, plan_number, i, true);
		put_notes("facts", a, plan_number, i, false);
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

static bool has_segments(const clv_artifact *a, uint32_t plan_number)
{
	uint32_t node;
	const char *reason;
	return clv_artifact_segment_count(a, plan_number) || clv_artifact_fallback(a, plan_number, 0, &node, &reason);
}

static void put_plan(const clv_artifact *a, uint32_t i)
{
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
	if (has_segments(a, i))
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
	put_json_bool("weights", clv_artifact_has_weights(a));
	put_json_int("tensors", clv_artifact_tensor_count(a));
	put_json_int("tensor_bytes", tensor_bytes(a));
	put_json_open_line("about", '{');
	for (uint32_t i = 0; clv_artifact_about(a, i, &key, &text); i++)
		put_json_text(key, text);
	put_json_close();
	put_json_open("plans", '[');
	for (uint32_t i = 0; i < clv_artifact_plan_count(a); i++)
		put_plan(a, i);
	put_json_close();
	put_json_close();
}

/* ---- the page ------------------------------------------------------------------------------------------------------ */

static int show_json(const model *m, char *text)
{
	put_json_open(NULL, '{');
	put_file(m);
	put_json_members(text);
	put_json_close();
	clv_string_free(text);
	return written() ? EXIT_OK : EXIT_FAILED;
}

static int show_page(const request *r, const model *m)
{
	clv_frontiers_options o = sizes_options(&r->sizes);
	clv_frontiers *f = NULL;
	char *text = NULL;
	clv_status st = clv_frontiers_create(m->plan, &o, &f);
	if (st == CLV_OK)
		st = clv_frontiers_inspect(f, r->json, &text);
	clv_frontiers_free(f);
	if (st != CLV_OK)
		return fail_with(r->path);
	if (m->artifact && r->json)
		return show_json(m, text);
	if (m->artifact)
		print_file(m);
	return put_text(text) ? EXIT_OK : EXIT_FAILED;
}

static int run_inspect(void *given)
{
	request *r = given;
	model m;
	if (!model_open(r->path, &r->opening, &m))
		return EXIT_FAILED;
	int code = sizes_resolve(&r->sizes, &m) ? show_page(r, &m) : EXIT_FAILED;
	model_close(&m);
	return code;
}

static const option arguments[] = {
	ARG_FILE("FILE", path, "a plan's text or a .clv file; - is standard input"),
	OPTION_END,
};

static const option options[] = {
	OPT_FLAG("json", 0, json, "a JSON object instead of a page"),
	SIZE_OPTIONS(sizes),
	OPENING_OPTIONS(opening),
	OPTION_END,
};

const command command_inspect = {
	.name = "inspect",
	.summary = "show what is in a plan or a model file",
	.description =
		"Shows a page about a plan: model, symbols, inputs and outputs, parameters and their bytes, work and "
		"memory, operators by count, in-place writes, random nodes, modes, the guards with the place they "
		"come from, and the nodes after which the plan cannot be cut, with the reasons.\n\n"
		"Of a .clv file it first says what the file has: which part of the model, where it is cut, tensors and "
		"their bytes, where it comes from, and for each plan the sizes at which the model was recorded, for which "
		"it is proven, and its compiled segments.\n\n"
		"Work counts operations from shapes, a multiplication and an addition as two. Memory is the model's "
		"own tensors and the most that inputs and results take at one time.",
	.examples = "cleave inspect model.clv\ncleave inspect model.plan --batch 8 --json\n",
	.arguments = arguments,
	.options = options,
	REQUEST(request),
	.run = run_inspect,
};
