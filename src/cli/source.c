/* `cleave source`: a plan, or a part of it, as Python. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

typedef struct request {
	const char *path, *class_name, *stages;
	int64_t first, end;
	bool del;
	opening opening;
} request;

static uint32_t at_most_32(int64_t n)
{
	return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX; /* no plan is as long; the library says so */
}

static void print_input(FILE *to, const clv_value *v, bool first)
{
	fprintf(to, "%s%s %s[", first ? "" : ", ", *v->name ? v->name : v->label, v->dtype);
	for (uint32_t d = 0; d < v->ndim; d++)
		fprintf(to, "%s%s", d ? "," : "", v->dims[d]);
	fputc(']', to);
}

/* A plan without symbols is for the sizes of its inputs. */
static void print_inputs(FILE *to, const clv_plan *p)
{
	clv_graph *g = NULL;
	clv_value v = {.size = sizeof v};
	bool first = true;
	if (clv_graph_create(p, &g) != CLV_OK)
		return;
	for (uint32_t i = 0; i < clv_graph_value_count(g); i++)
		if (clv_graph_value(g, i, &v) == CLV_OK && v.kind == CLV_VALUE_INPUT && *v.dtype) {
			print_input(to, &v, first);
			first = false;
		}
	clv_graph_free(g);
}

/* Of a file with several plans: which one this is. */
static void say_which(const model *m, int64_t plan)
{
	uint32_t n = m->artifact ? clv_artifact_plan_count(m->artifact) : 1;
	char *what = NULL;
	size_t length;
	FILE *text = n > 1 ? open_memstream(&what, &length) : NULL;
	if (!text)
		return;
	if (clv_plan_symbol_count(m->plan))
		print_points(text, m->artifact, (uint32_t)plan);
	else
		print_inputs(text, m->plan);
	if (fclose(text) == 0) {
		note("plan %lld of %u is written: %s", (long long)plan, n, what);
		hint("--plan N writes another one");
	}
	free(what);
}

/* "10,20": how many numbers there are; 0: it is no such list. */
static uint32_t count_ends(const char *s)
{
	uint32_t n = 0;
	for (;; s++, n++) {
		size_t digits = strspn(s, "0123456789");
		s += digits;
		if (!digits || digits > 9)
			return 0;
		if (*s != ',')
			return *s ? 0 : n + 1;
	}
}

/* The batch has this name in plans that were captured for batches of several sizes. */
static const char *batch_symbol(const clv_plan *p)
{
	clv_symbol s = {.size = sizeof s};
	for (uint32_t i = 0; i < clv_plan_symbol_count(p); i++)
		if (clv_plan_symbol(p, i, &s) == CLV_OK && !strcmp(s.name, "B"))
			return "B";
	return NULL;
}

static clv_status stages_source(const request *r, const model *m, char **text)
{
	const clv_plan *p = m->plan;
	clv_stages_options o = CLV_STAGES_OPTIONS_INIT;
	uint32_t n = count_ends(r->stages) + 1;
	uint32_t *ends = malloc(n * sizeof *ends);
	const char *s = r->stages;
	if (!ends)
		return CLV_E_NOMEM;
	for (uint32_t i = 0; i + 1 < n; i++, s += strcspn(s, ",") + 1)
		ends[i] = (uint32_t)strtoul(s, NULL, 10);
	ends[n - 1] = clv_plan_node_count(p);
	o.ends = ends;
	o.nstages = n;
	o.del = r->del;
	o.batch_symbol = batch_symbol(p);
	o.file = m->artifact;
	clv_status st = clv_plan_stages_source(p, &o, text);
	free(ends);
	return st;
}

static clv_status view_source(const request *r, const model *m, char **text)
{
	clv_source_options o = CLV_SOURCE_OPTIONS_INIT;
	o.first = at_most_32(r->first);
	o.end = at_most_32(r->end);
	o.class_name = r->class_name;
	o.del = r->del;
	o.file = m->artifact;
	return clv_plan_source(m->plan, &o, text);
}

static int check_source(void *given)
{
	const request *r = given;
	if (r->stages && !count_ends(r->stages)) {
		complain("--stages takes positions of nodes with commas between, 10,20, and not \"%s\"", r->stages);
		return EXIT_USAGE;
	}
	if (r->stages && (r->first || r->end || r->class_name)) {
		complain("--stages writes all nodes in classes Stage0, Stage1, …, and goes without --first, --end and --class");
		return EXIT_USAGE;
	}
	return EXIT_OK;
}

static int write_source(void *given, const model *m)
{
	const request *r = given;
	char *text = NULL;
	say_which(m, r->opening.plan);
	clv_status st = r->stages ? stages_source(r, m, &text) : view_source(r, m, &text);
	return save_result(st, text, "-", r->path);
}

static const option arguments[] = {MODEL_ARGUMENT, OPTION_END};

static const option options[] = {
	OPT_INT("first", 0, "M", first, "start at node M", .preset = "0"),
	OPT_INT("end", 0, "N", end, "end before node N (default: after the last)"),
	OPT_TEXT("class", 0, "NAME", class_name, "name of the class (default: Segment)"),
	OPT_TEXT("stages", 0, "N,N,…", stages,
             "write a pipeline, one class per stage; stages end before these nodes and at the last"),
	OPT_FLAG("del", 0, del, "delete values after their last use"),
	OPENING_OPTIONS(opening),
	OPTION_END,
};

const command command_source = {
	.name = "source",
	.summary = "write a plan as Python",
	.description =
		"Writes a plan, or some of its nodes, as the source of an nn.Module that needs only torch. Parameters keep the "
		"model's names, so the model's own state_dict loads into it. Constants are the buffers const_0, const_1, …",
	.examples = "cleave source model.plan > model.py\ncleave source model.plan --first 10 --end 20 --class Middle\n"
				"cleave source model.clv --stages 40,80 > pipeline.py\n",
	.arguments = arguments,
	.options = options,
	REQUEST(request),
	.check = check_source,
	ON_MODEL(write_source),
};
