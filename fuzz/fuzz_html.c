/* Fuzz target: the data of the report. The first line is a title, the second a reason that a compiler gave, or the name of a
 * device; a plan's text follows. Whatever they are, the page has them as JSON that a browser reads, in which nothing ends the
 * element that holds it. */
#define _GNU_SOURCE /* memmem */
#include "emit/html.h"
#include "file/json.h"
#include "texts.h"

enum { GROUPS = 3 };

static void check_text(const char *at, size_t n)
{
	MUST(utf8_valid(at, n));
	for (size_t i = 0; i < n; i++)
		MUST(at[i] != '<' && at[i] != '>' && (unsigned char)at[i] >= 0x20);
}

/* As long as the plan, or the page would read beyond it. */
static void check_data(const plan *p, const char *at, size_t n)
{
	MUST(utf8_valid(at, n));
	MUST(!memchr(at, '<', n) && !memchr(at, '>', n) && !memchr(at, '&', n));
	MUST(!memmem(at, n, "\xe2\x80\xa8", 3) && !memmem(at, n, "\xe2\x80\xa9", 3));
	json_t *root;
	MUST(json_read(at, n, "the data", &root) == CLV_OK && json_is_object(root));
	MUST(json_array_size(json_object_get(root, "inputs")) == p->inputs.n);
	json_decref(root);
}

static void check_page(const plan *p, const char *page)
{
	size_t n = strlen(page);
	MUST(n > report_head_size + report_middle_size + report_tail_size);
	MUST(memcmp(page, report_head, report_head_size) == 0);
	const char *title = page + report_head_size;
	const char *middle = memmem(title, n - report_head_size, report_middle, report_middle_size);
	MUST(middle);
	check_text(title, (size_t)(middle - title));
	const char *data = middle + report_middle_size, *end = page + n - report_tail_size;
	MUST(data < end && memcmp(end, report_tail, report_tail_size) == 0);
	check_data(p, data, (size_t)(end - data));
}

static void look(const plan *p, const char *title, const char *name)
{
	const bool compiled[GROUPS] = {true, false, false};
	const char *names[GROUPS] = {name, title, NULL};
	stage_score stages[GROUPS] = {{0}};
	uint32_t *group = mem_ids(p->nodes.n + 1);
	html_spec o = {.frontier = NONE};
	char *page = NULL;
	MUST(group);
	for (node_id n = 0; n < p->nodes.n; n++)
		group[n] = n % GROUPS;
	for (uint32_t i = 0; i < GROUPS; i++)
		stages[i].device = i % 2;
	o.title = title;
	if (*title) {
		o.nsegments = o.nstages = GROUPS;
		o.segment_of_node = o.stage_of_node = group;
		o.segment_compiled = compiled;
		o.segment_reason = names;
		o.stages = stages;
		o.ndevices = 2;
		o.device_names = names;
	}
	clv_status st = plan_html(p, &o, &page);
	MUST(st == CLV_OK || status_message()[0] != '\0');
	if (st == CLV_OK)
		check_page(p, page);
	clv_free(page);
	mem_free(group);
}

/* The line that starts here, as a text of its own; *s is the next. Caller frees. */
static char *line_of(const char **s, const char *end)
{
	const char *stop = memchr(*s, '\n', (size_t)(end - *s));
	char *line = mem_strdup(*s, (size_t)((stop ? stop : end) - *s));
	MUST(line);
	*s = stop ? stop + 1 : end;
	return line;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *at = (const char *)data, *end = at + size;
	if (size == 0)
		return 0;
	char *title = line_of(&at, end), *name = line_of(&at, end);
	clv_plan *p = NULL;
	if (clv_plan_parse(at, (size_t)(end - at), &p) == CLV_OK) {
		look(p, title, name);
		clv_plan_free(p);
	}
	mem_free(title);
	mem_free(name);
	return 0;
}
