/* Opens a model that was traced, with no Python in the process, and says which parts of it run compiled here.
 *
 *     run_traced traced.clv
 *
 * Machine code in the file may run: it is code of whoever made the file. What needs another CPU, another version of a
 * library or a device that is not here runs operator by operator, with the same results. The parts of OpenVINO find its
 * library by CLEAVE_OPENVINO. Without a file there is nothing to open, and it says how it is used. */
#define CLV_EXPERIMENTAL
#include <cleave.h>

#include <stdio.h>
#include <stdlib.h>

static void print_segment(const clv_segment_state *s)
{
	printf("plan %u, nodes %u to %u, by %s: ", s->plan, s->first, s->end - 1, s->backend);
	if (s->compiled)
		printf("compiled\n");
	else
		printf("operator by operator: %s\n", s->reason);
}

/* Every segment of the file; the reasons of those of the first plan are kept for the report. */
static clv_status print_segments(const clv_runtime *model, const char **reasons)
{
	for (uint32_t i = 0, k = 0; i < clv_runtime_segment_count(model); i++) {
		clv_segment_state s = {.size = sizeof s};
		clv_status st = clv_runtime_segment(model, i, &s);
		if (st != CLV_OK)
			return st;
		print_segment(&s);
		if (s.plan == 0)
			reasons[k++] = s.reason;
	}
	return CLV_OK;
}

static clv_status print_report(const clv_artifact *file, const char **reasons)
{
	clv_report_options o = CLV_REPORT_OPTIONS_INIT;
	double covered;
	char *text;
	o.on_tape = reasons;
	clv_status st = clv_artifact_report(file, &o, &covered, &text);
	if (st == CLV_E_NOT_FOUND) {
		printf("this file was not traced\n");
		return CLV_OK;
	}
	if (st != CLV_OK)
		return st;
	printf("\n%s", text);
	clv_free(text);
	return CLV_OK;
}

static clv_status show(const clv_artifact *file)
{
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	clv_runtime *model = NULL;
	o.allow_compiled = true;
	clv_status st = clv_runtime_create(file, &o, &model);
	const char **reasons = calloc(clv_runtime_segment_count(model) + 1, sizeof *reasons);
	if (!reasons)
		st = CLV_E_NOMEM;
	if (st == CLV_OK)
		st = print_segments(model, reasons);
	if (st == CLV_OK)
		st = print_report(file, reasons);
	free(reasons);
	clv_runtime_free(model);
	return st;
}

int main(int argc, char **argv)
{
	clv_artifact *file = NULL;
	if (argc < 2) {
		printf("usage: %s traced.clv\n", argv[0]);
		return 0;
	}
	clv_status st = clv_artifact_open(argv[1], NULL, &file);
	if (st == CLV_OK)
		st = show(file);
	if (st != CLV_OK) /* "" where it was not the library that failed */
		fprintf(stderr, "%s %s\n", clv_status_name(st), clv_last_error());
	clv_artifact_free(file);
	return st != CLV_OK;
}
