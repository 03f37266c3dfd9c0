/* One pass on the text of a plan, and the text of its nodes that comes out. */
#ifndef TESTS_PASSES_H
#define TESTS_PASSES_H

#include "support.h"

#include "optimize/optimize.h"

typedef struct job {
	const char *text;
	pass_fn run;
	optimize_spec spec;
	const char *device; /* the plan is moved there for the pass; NULL: it is where its text says */
	char *out;          /* nodes of the plan that came out */
	uint32_t changes;
} job;

static inline clv_status move_to(const char *device, plan **p)
{
	plan *moved;
	TRY(plan_retarget(*p, device, &moved));
	plan_free(*p);
	*p = moved;
	return CLV_OK;
}

static inline clv_status run_edit(job *j, edit *e)
{
	TRY(j->run(e, &j->spec, &j->changes));
	TRY(edit_apply(e));
	if (j->device)
		TRY(move_to("cpu", &e->p));
	strbuf b = STRBUF_INIT;
	plan_print(e->p, &b);
	return strbuf_take(&b, &j->out);
}

static inline clv_status run_job(job *j)
{
	plan *p = NULL;
	edit e = {0};
	j->out = NULL;
	j->changes = 0;
	clv_status st = plan_parse(j->text, strlen(j->text), &p);
	if (st == CLV_OK && j->device)
		st = move_to(j->device, &p);
	if (st == CLV_OK)
		st = edit_new(p, 0, p->nodes.n, &e);
	if (st == CLV_OK)
		st = run_edit(j, &e);
	edit_free(&e);
	plan_free(p);
	return st;
}

/* From the first node on: what comes before does not change. */
static inline const char *nodes_of(const char *text)
{
	const char *at = strstr(text, "\n%");
	assert_non_null(at);
	return at + 1;
}

static inline void check_job(job j, const char *want)
{
	if (run_job(&j) != CLV_OK)
		fail_msg("%s\nin\n%s", status_message(), j.text);
	assert_string_equal(nodes_of(j.out), want ? want : nodes_of(j.text));
	assert_int_equal(j.changes > 0, want != NULL);
	mem_free(j.out);
}

/* For sweep_faults. */
static inline clv_status attempt_job(const void *ctx)
{
	job j = *(const job *)ctx;
	clv_status st = run_job(&j);
	mem_free(j.out);
	return st;
}

#endif
