/* What is made of a traced file: its report, its page; and artifacts that were made, saved. */
#include "artifacts.h"

#include <unistd.h>

#include "file/artifact_segments.h"

static const uint8_t code_bytes[8] = {1};

static void add_segment(artifact *a, node_id first, node_id end)
{
	artifact_segment s = {.first = first, .end = end, .backend = "inductor"};
	OK(vec_push(&s.sizes, ((artifact_sizes){1, 64})));
	for (uint32_t i = 0; i < 2; i++) {
		OK(vec_push(&s.in_order, i));
		OK(vec_push(&s.out_order, i));
	}
	OK(vec_push(&s.facts, ((artifact_note){"compile_s", "1.5"})));
	OK(vec_push(&s.members, ((artifact_member){"model.so", code_bytes, sizeof code_bytes})));
	OK(artifact_add_segment(a, 0, &s));
	segment_free(&s);
}

/* Nodes 0 and 1, 3 and 4 of the first plan are compiled; of the second one nothing is, and only of its first node it says why. */
static artifact *traced_sample(void)
{
	artifact *a = sample_of_two_plans();
	add_segment(a, 0, 2);
	add_segment(a, 3, 5);
	OK(artifact_add_fallback(a, 0, 2, "it is \"not\" </script> taken"));
	OK(artifact_add_fallback(a, 1, 0, "nothing is compiled here"));
	OK(artifact_note_add(a, "backend", "inductor"));
	return a;
}

static void check_has(const char *text, const char *part)
{
	if (!strstr(text, part))
		fail_msg("\"%s\" is not in\n%s", part, text);
}

/* ---- the page ------------------------------------------------------------------------------------------------------- */

static char *page_of(const artifact *a, const clv_report_options *r, const clv_html_options *o)
{
	char *page = NULL;
	OK(clv_artifact_html(a, r, o, &page));
	return page;
}

static void segments_come_before_the_reasons(void **state)
{
	(void)state;
	artifact *a = traced_sample();
	char *page = page_of(a, NULL, NULL);
	check_has(page, "\"segments\":[[1,null],[1,null],[0,\"it is ");
	check_has(page, "\"segmentOf\":[0,0,2,1,1");
	assert_null(strstr(page, "</script> taken"));
	clv_free(page);
	artifact_free(a);
}

static void a_segment_that_does_not_run_here_says_why(void **state)
{
	(void)state;
	const char *why[] = {NULL, "another CPU"};
	clv_report_options r = CLV_REPORT_OPTIONS_INIT;
	artifact *a = traced_sample();
	r.on_tape = why;
	char *page = page_of(a, &r, NULL);
	check_has(page, "\"segments\":[[1,null],[0,\"another CPU\"],");
	clv_free(page);
	artifact_free(a);
}

static void callers_of_an_older_header_get_segments_too(void **state)
{
	(void)state;
	artifact *a = traced_sample();
	clv_html_options o = CLV_HTML_OPTIONS_INIT;
	o.title = "Old";
	o.size = offsetof(clv_html_options, bandwidth_bytes_per_s);
	char *page = page_of(a, NULL, &o);
	check_has(page, "\"segments\":[[1,null],[1,null],");
	check_has(page, "\"title\":\"Old\"");
	clv_free(page);
	artifact_free(a);
}

static void a_file_that_was_not_traced_has_the_page_of_its_plan(void **state)
{
	(void)state;
	artifact *a = sample();
	char *page = page_of(a, NULL, NULL), *same = NULL;
	OK(clv_plan_html(a->plans.at[0].p, NULL, &same));
	assert_string_equal(page, same);
	clv_free(page);
	clv_free(same);
	artifact_free(a);
}

static void wrong_questions_are_refused(void **state)
{
	(void)state;
	artifact *a = traced_sample();
	clv_report_options r = CLV_REPORT_OPTIONS_INIT;
	char *text = NULL;
	FAILS(clv_artifact_html(NULL, NULL, NULL, &text), CLV_E_INVALID, "needs an artifact");
	FAILS(clv_artifact_html(a, NULL, NULL, NULL), CLV_E_INVALID, "needs an artifact");
	r.plan = 2;
	FAILS(clv_artifact_html(a, &r, NULL, &text), CLV_E_INVALID, "there is no plan 2");
	FAILS(clv_artifact_report(a, &r, NULL, &text), CLV_E_INVALID, "there is no plan 2");
	r.size = sizeof r + 1;
	FAILS(clv_artifact_html(a, &r, NULL, &text), CLV_E_INVALID, "clv_report_options.size");
	artifact_free(a);
	a = sample();
	FAILS(clv_artifact_report(a, NULL, NULL, &text), CLV_E_NOT_FOUND, "nothing of this file was compiled");
	artifact_free(a);
}

/* ---- the report --------------------------------------------------------------------------------------------------------- */

static void the_report_is_made_of_what_the_file_says(void **state)
{
	(void)state;
	artifact *a = traced_sample();
	clv_report_options o = CLV_REPORT_OPTIONS_INIT;
	const char *why[] = {NULL, "another CPU"};
	double covered = -1;
	char *text = NULL;
	o.on_tape = why;
	OK(clv_artifact_report(a, &o, &covered, &text));
	check_has(text, "compiled in 2 segments by inductor; 1 of them runs on the tape here");
	check_has(text, "on the tape: another CPU");
	check_has(text, "it is \"not\" </script> taken");
	assert_true(covered > 0 && covered < 1);
	clv_free(text);
	o.json = true;
	OK(clv_artifact_report(a, &o, NULL, &text));
	check_has(text, "\"backend\":\"inductor\"");
	check_has(text, "\"compile_s\":1.5");
	clv_free(text);
	o.plan = 1;
	o.on_tape = NULL;
	OK(clv_artifact_report(a, &o, &covered, &text));
	assert_true(covered == 0);
	clv_free(text);
	artifact_free(a);
}

/* ---- saving --------------------------------------------------------------------------------------------------------------- */

static void what_was_made_is_saved_and_what_was_opened_is_not(void **state)
{
	(void)state;
	char folder[] = "/tmp/cleave-page-XXXXXX", path[64];
	snprintf(path, sizeof path, "%s/traced.clv", new_folder(folder));
	artifact *a = traced_sample(), *back = NULL;
	OK(clv_artifact_save(a, path));
	OK(clv_artifact_save(a, path)); /* over itself */
	OK(clv_artifact_open(path, NULL, &back));
	assert_int_equal(clv_artifact_segment_count(back, 0), 2);
	FAILS(clv_artifact_save(back, path), CLV_E_INVALID, "was opened");
	FAILS(clv_artifact_save(NULL, path), CLV_E_INVALID, "needs an artifact");
	FAILS(clv_artifact_save(a, NULL), CLV_E_INVALID, "needs an artifact");
	FAILS(clv_artifact_save(a, "/nonexistent/x.clv"), CLV_E_IO, "/nonexistent/x.clv");
	artifact_free(back);
	artifact_free(a);
	assert_int_equal(count_files(folder, true), 1);
}

static clv_status make_page(const void *ctx)
{
	char *page = NULL;
	clv_status st = clv_artifact_html(ctx, NULL, NULL, &page);
	clv_free(page);
	return st;
}

static clv_status make_report(const void *ctx)
{
	char *text = NULL;
	clv_status st = clv_artifact_report(ctx, NULL, NULL, &text);
	clv_free(text);
	return st;
}

static void every_allocation_may_fail(void **state)
{
	(void)state;
	artifact *a = traced_sample();
	assert_true(sweep_faults(make_page, a, CLV_OK) > 10);
	assert_true(sweep_faults(make_report, a, CLV_OK) > 10);
	artifact_free(a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(segments_come_before_the_reasons),
		cmocka_unit_test(a_segment_that_does_not_run_here_says_why),
		cmocka_unit_test(callers_of_an_older_header_get_segments_too),
		cmocka_unit_test(a_file_that_was_not_traced_has_the_page_of_its_plan),
		cmocka_unit_test(wrong_questions_are_refused),
		cmocka_unit_test(the_report_is_made_of_what_the_file_says),
		cmocka_unit_test(what_was_made_is_saved_and_what_was_opened_is_not),
		cmocka_unit_test(every_allocation_may_fail),
	};
	return cmocka_run_group_tests_name("artifact_page", tests, NULL, NULL);
}
