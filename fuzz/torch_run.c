/* Fuzz target: plans of strangers on the tape, in this process. */
#define _GNU_SOURCE /* memmem */
#include "run_plan.h"

static void check_file(const strbuf *file)
{
	results r;
	open_and_run(file->at, file->n, "tape", 1, &r);
	drop_results(&r);
}
