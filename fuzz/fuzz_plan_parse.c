/* Fuzz target: any text as a plan. It must be refused with a message, or be a plan that prints, parses again to an
 * equal one, and can be looked at from all sides. */
#include <stdlib.h>
#include <string.h>

#include "plan/view.h"
#include "must.h"

static void check_round_trip(const plan *p)
{
	strbuf b = STRBUF_INIT, c = STRBUF_INIT;
	plan *q;
	plan_print(p, &b);
	MUST(!b.failed && plan_parse(b.at, b.n, &q) == CLV_OK);
	MUST(plan_verify(q) == CLV_OK && plan_equal(p, q));
	plan_print(q, &c);
	MUST(b.n == c.n && memcmp(b.at, c.at, b.n) == 0);
	strbuf_free(&b);
	strbuf_free(&c);
	plan_free(q);
}

static void check_views(const plan *p)
{
	uint32_t cut = p->nodes.n / 2;
	view left, right;
	MUST(view_range(p, 0, cut, &left) == CLV_OK && view_range(p, cut, p->nodes.n, &right) == CLV_OK);
	if (cut > 0) {
		MUST(left.outputs.n == right.inputs.n);
		for (uint32_t i = 0; i < left.outputs.n; i++)
			MUST(left.outputs.at[i] == right.inputs.at[i]);
	}
	view_free(&left);
	view_free(&right);
}

static void check_inspect(const plan *p)
{
	strbuf b = STRBUF_INIT;
	MUST(plan_inspect(p, &b) == CLV_OK);
	strbuf_free(&b);
}

/* Each frontier can be looked at; the exact cut is a plan like any other, or is refused. */
static void check_frontiers(const plan *p)
{
	clv_frontiers *f;
	clv_plan *cut = NULL;
	uint32_t at;
	MUST(clv_frontiers_create(p, NULL, &f) == CLV_OK);
	for (int json = 0; json < 2; json++) {
		char *text;
		MUST(clv_frontiers_inspect(f, json, &text) == CLV_OK);
		clv_free(text);
	}
	for (uint32_t i = 0; i < clv_frontiers_count(f); i++) {
		clv_frontier c = {.size = sizeof c};
		char *text = NULL;
		MUST(clv_frontiers_get(f, i, &c) == CLV_OK);
		clv_status st = clv_frontiers_bytes_text(f, i, &text);
		MUST(st == CLV_OK || st == CLV_E_OVERFLOW);
		clv_free(text);
	}
	if (clv_frontiers_choose(f, "auto", NULL, &at) == CLV_OK)
		MUST(clv_frontiers_check(f, at, NULL) == CLV_OK);
	if (clv_frontiers_exact(f, NULL, &cut, &at) == CLV_OK)
		check_round_trip(cut);
	clv_plan_free(cut);
	clv_frontiers_free(f);
}

/* Every plan can be drawn, cut or not. */
static void check_pictures(const plan *p)
{
	clv_dot_options o = {sizeof o, CLV_NONE, "operation", CLV_DOT_ALL_MODULES, "LR", true, true, true};
	char *text;
	MUST(clv_plan_dot(p, &o, &text) == CLV_OK && utf8_valid(text, strlen(text)));
	clv_free(text);
	o = (clv_dot_options)CLV_DOT_OPTIONS_INIT;
	o.frontier = p->nodes.n > 1 ? p->nodes.n / 2 - 1 : CLV_NONE;
	MUST(clv_plan_dot(p, &o, &text) == CLV_OK && utf8_valid(text, strlen(text)));
	clv_free(text);
}

/* Some nodes cannot be written as Python; then there is a reason. */
static void check_source(const plan *p)
{
	clv_source_options o = CLV_SOURCE_OPTIONS_INIT;
	char *text;
	o.first = p->nodes.n / 2;
	o.del = p->nodes.n % 2;
	if (clv_plan_source(p, &o, &text) == CLV_OK)
		clv_free(text);
	else
		MUST(status_message()[0] != '\0');
	clv_stages_options stages = CLV_STAGES_OPTIONS_INIT;
	uint32_t ends[] = {p->nodes.n / 3, p->nodes.n / 2, p->nodes.n};
	stages.ends = ends;
	stages.nstages = 3;
	stages.del = p->nodes.n % 2;
	if (clv_plan_stages_source(p, &stages, &text) == CLV_OK)
		clv_free(text);
	else
		MUST(status_message()[0] != '\0');
}

/* Stages of any plan are a plan too, with a table and a graph; or there is a reason. */
static void check_stages(const plan *p)
{
	clv_partition_options parts = CLV_PARTITION_OPTIONS_INIT;
	clv_plan_partition_options o = CLV_PLAN_PARTITION_OPTIONS_INIT;
	clv_partition *part;
	char *text;
	parts.method = "pipedream";
	parts.k = 1 + p->nodes.n % 3;
	o.partition = &parts;
	o.depth = 1 + p->nodes.n % 2;
	o.keep_order = p->values.n % 2;
	if (clv_plan_partition(p, &o, &part) != CLV_OK) {
		MUST(status_message()[0] != '\0');
		return;
	}
	check_round_trip(clv_partition_plan(part, NULL));
	MUST(clv_partition_table(part, &text) == CLV_OK);
	clv_free(text);
	MUST(clv_partition_graph_json(part, &text) == CLV_OK);
	clv_free(text);
	clv_partition_free(part);
}

/* Without rules kept there are no promises but one: printing works, as error messages do it. */
static void print_only(const plan *p)
{
	strbuf b = STRBUF_INIT;
	plan_print(p, &b);
	strbuf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	plan *p;
	if (plan_parse((const char *)data, size, &p) != CLV_OK) {
		MUST(status_message()[0] != '\0');
		return 0;
	}
	if (plan_verify(p) == CLV_OK) {
		check_round_trip(p);
		check_views(p);
		check_inspect(p);
		check_frontiers(p);
		check_pictures(p);
		check_source(p);
		check_stages(p);
	} else {
		print_only(p);
	}
	plan_free(p);
	return 0;
}
