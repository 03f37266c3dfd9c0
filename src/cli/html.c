/* `cleave html`: a plan as one page to look at. */
#include <string.h>

#include "cli.h"

typedef struct request {
	const char *path, *output, *title, *boundary;
	double bandwidth, prefix_speed, suffix_speed;
	sizes sizes;
	opening opening;
} request;

/* The frontier that `cleave candidates` marks. A plan that has none to take still has a page; one that was named must be
   there. */
static bool choose_frontier(const request *r, const clv_plan *p, uint32_t *out)
{
	clv_sizes o = sizes_given(&r->sizes);
	clv_frontiers *f = NULL;
	clv_status st = clv_frontiers_create(p, &o, &f);
	if (st == CLV_OK) {
		st = clv_frontiers_choose(f, r->boundary, NULL, out);
		if (st != CLV_OK && st != CLV_E_NOMEM && !strcmp(r->boundary, "auto"))
			st = CLV_OK;
	}
	clv_frontiers_free(f);
	if (st != CLV_OK)
		fail_with(r->path);
	return st == CLV_OK;
}

static int write_report(void *given, const model *m)
{
	const request *r = given;
	clv_html_options o = CLV_HTML_OPTIONS_INIT;
	clv_report_options report = CLV_REPORT_OPTIONS_INIT;
	char *page = NULL;
	o.title = r->title;
	o.sizes = sizes_given(&r->sizes);
	o.bandwidth_bytes_per_s = r->bandwidth;
	o.prefix_flops_per_s = r->prefix_speed;
	o.suffix_flops_per_s = r->suffix_speed;
	report.plan = (uint32_t)r->opening.plan;
	if (!choose_frontier(r, m->plan, &o.frontier))
		return EXIT_FAILED;
	clv_status st =
		m->artifact ? clv_artifact_html(m->artifact, &report, &o, &page) : clv_plan_html(m->plan, &o, &page);
	return save_result(st, page, r->output, r->path);
}

static int check_html(void *given)
{
	const request *r = given;
	return check_output(r->output, r->path) ? EXIT_OK : EXIT_USAGE;
}

static const option arguments[] = {MODEL_ARGUMENT, OPTION_END};

static const option options[] = {
	OPT_FILE("output", 'o', "FILE", output, "write the page here; - is standard output", .preset = "report.html"),
	OPT_TEXT("title", 0, "TEXT", title, "heading of the page (default: the class of the model)"),
	OPT_GROUP("initial state of the page"),
	OPT_TEXT("boundary", 'b', "WHERE", boundary, "the cut that is marked: auto, after:NAME of a node or module, 50%",
             .preset = "auto"),
	SIZE_OPTIONS(sizes),
	OPT_RATE("bandwidth", 0, "RATE", bandwidth, "speed of the link in bytes per second, 100M, or bits, 1Gbit",
             .preset = "1Gbit"),
	PREFIX_SPEED_OPTION(prefix_speed),
	SUFFIX_SPEED_OPTION(suffix_speed),
	OPENING_OPTIONS(opening),
	OPTION_END,
};

const command command_html = {
	.name = "html",
	.summary = "write a page to look at a plan with",
	.description = "Writes one self-contained HTML file that opens in any browser, offline: the modules as a graph to "
				   "fold and unfold, every place to cut with its cost, its latency over a link of your choice, a table "
				   "of candidates, and search. For a traced file it shows what is compiled, and why the rest is not.",
	.examples = "cleave html model.plan -o report.html\n"
				"# for a small device on a slow link\n"
				"cleave html model.plan -o report.html --batch 8 --bandwidth 20Mbit --prefix-speed 5e10\n",
	.arguments = arguments,
	.options = options,
	REQUEST(request),
	.check = check_html,
	ON_SIZED_MODEL(write_report),
};
