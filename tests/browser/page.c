/* page PLAN OUT [B=3 …] [stages=4] [devices=2] [segments=3] [chosen=7]: the report of a plan, for the tests in a browser.
 * Stages and segments are even parts of the nodes. With devices, stage i is on the devices in turn and takes (i+1) * 100 us
 * forward, twice that backward, and waits for 50 us. Every second segment is not compiled. Names and reasons are texts
 * that no page should run. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emit/html.h"

enum { SYMBOLS = 8 };

#define EVIL "</script><img src=x onerror=alert(1)>"

static char *read_all(const char *path, size_t *size)
{
	FILE *f = fopen(path, "rb");
	char *text = NULL;
	long n = -1;
	if (f && !fseek(f, 0, SEEK_END) && (n = ftell(f)) >= 0 && (text = malloc((size_t)n + 1))) {
		rewind(f);
		*size = fread(text, 1, (size_t)n, f);
	}
	if (f)
		fclose(f);
	return text;
}

static uint32_t *even_parts(uint32_t nodes, uint32_t parts)
{
	uint32_t *out = calloc((size_t)nodes + 1, sizeof *out);
	for (uint32_t i = 0; out && i < nodes; i++)
		out[i] = (uint32_t)((uint64_t)i * parts / nodes);
	return out;
}

typedef struct request {
	html_spec o;
	const char *symbols[SYMBOLS];
	int64_t values[SYMBOLS];
} request;

static void read_word(request *r, char *word)
{
	char *equals = strchr(word, '=');
	if (!equals || r->o.sizes.n == SYMBOLS)
		return;
	*equals = '\0';
	long n = strtol(equals + 1, NULL, 10);
	if (!strcmp(word, "stages"))
		r->o.nstages = (uint32_t)n;
	else if (!strcmp(word, "devices"))
		r->o.ndevices = (uint32_t)n;
	else if (!strcmp(word, "segments"))
		r->o.nsegments = (uint32_t)n;
	else if (!strcmp(word, "chosen"))
		r->o.frontier = (uint32_t)n;
	else {
		r->symbols[r->o.sizes.n] = word;
		r->values[r->o.sizes.n++] = n;
	}
}

/* What is known of the stages, on the devices in turn. */
typedef struct facts {
	stage_score *stages;
	const char **names;
} facts;

static facts make_facts(uint32_t n, uint32_t devices)
{
	facts f = {calloc(n + 1, sizeof *f.stages), calloc(devices + 1, sizeof *f.names)};
	for (uint32_t i = 0; devices && i < n; i++)
		f.stages[i] = (stage_score){.device = i % devices,
		                            .fwd_us = 100.0 * (i + 1),
		                            .bwd_us = 200.0 * (i + 1),
		                            .comm_us = 50,
		                            .in_bytes = i ? 4096 : 0,
		                            .out_bytes = i + 1 < n ? 4096 : 0,
		                            .param_bytes = 1000,
		                            .memory_bytes = i ? 8000 : INT64_MAX,
		                            .in_flight = n - i};
	for (uint32_t i = 0; i < devices; i++)
		f.names[i] = i ? "cuda:1" : EVIL;
	return f;
}

static void free_facts(facts *f)
{
	free(f->stages);
	free(f->names);
}

static int write_page(request *r, const clv_plan *p, const char *path)
{
	uint32_t nodes = clv_plan_node_count(p), n = r->o.nsegments;
	uint32_t *stages = even_parts(nodes, r->o.nstages), *segments = even_parts(nodes, n);
	bool *compiled = calloc(n + 1, sizeof *compiled);
	const char **reasons = calloc(n + 1, sizeof *reasons);
	facts known = make_facts(r->o.nstages, r->o.ndevices);
	char *page = NULL;
	for (uint32_t i = 0; i < n; i++) {
		compiled[i] = i % 2 == 0;
		reasons[i] = compiled[i] ? NULL : EVIL " reads data";
	}
	r->o.stage_of_node = stages;
	r->o.stages = r->o.ndevices ? known.stages : NULL;
	r->o.device_names = known.names;
	r->o.lower_bound_us = r->o.ndevices ? 1000 : 0;
	r->o.segment_of_node = segments;
	r->o.segment_compiled = compiled;
	r->o.segment_reason = reasons;
	r->o.sizes.symbols = r->symbols;
	r->o.sizes.values = r->values;
	FILE *f = NULL;
	int code = 1;
	if (plan_html(p, &r->o, &page) == CLV_OK && (f = fopen(path, "wb")))
		code = fwrite(page, 1, strlen(page), f) != strlen(page);
	if (f && fclose(f))
		code = 1;
	clv_free(page);
	free_facts(&known);
	free(stages);
	free(segments);
	free(compiled);
	free(reasons);
	return code;
}

int main(int argc, char **argv)
{
	request r = {.o = {.frontier = CLV_NONE}};
	clv_plan *p = NULL;
	size_t size = 0;
	char *text = argc > 2 ? read_all(argv[1], &size) : NULL;
	for (int i = 3; i < argc; i++)
		read_word(&r, argv[i]);
	int code = text && clv_plan_parse(text, size, &p) == CLV_OK ? write_page(&r, p, argv[2]) : 1;
	if (code)
		fprintf(stderr, "page: %s\n", clv_last_error());
	clv_plan_free(p);
	free(text);
	return code;
}
