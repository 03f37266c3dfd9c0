/* Files of profiles: what was written is read again, and nothing else is. */
#include "support.h"

#include <math.h>
#include <unistd.h>

#include "pipe/profile.h"

#define TIMES(name)                                                                                                    \
	"\"" name "_time\":2,\"" name "_low\":1.5,\"" name "_high\":2.5,\"" name "_least\":1,\"" name "_most\":3"
#define SIZES                                                                                                          \
	"\"cuda_memory_forward\":1,\"cuda_memory_backward\":2,\"held\":3,\"size\":4,\"input_size\":5,\"output_size\":6"
#define NUMBERS TIMES("forward") "," TIMES("backward") "," SIZES
#define ROW(end) "{\"name\":\"b\",\"module\":\"m\",\"end\":" end "," NUMBERS "}"
#define FILE_OF(key, whole, rows)                                                                                      \
	"{\"format\":\"cleave-profile\",\"version\":1,\"key\":" key whole ",\"blocks\":[" rows "]}"
#define GOOD FILE_OF("{\"plan\":\"abc\"}", ",\"whole\":{" NUMBERS "}", ROW("2") "," ROW("7"))

static void refused(const char *text, const char *part)
{
	profile f;
	clv_status st = profile_parse(text, strlen(text), &f);
	if (st != CLV_E_PARSE || !strstr(status_message(), part))
		fail_msg("status %d \"%s\" instead of \"%s\" for\n%s", st, st ? status_message() : "", part, text);
}

static void a_profile_is_read_and_written_the_same(void **state)
{
	(void)state;
	profile f;
	OK(profile_parse(GOOD, strlen(GOOD), &f));
	assert_int_equal(f.key.n, 1);
	assert_string_equal(f.key.at[0].name, "plan");
	assert_string_equal(f.key.at[0].text, "abc");
	assert_true(f.has_whole);
	assert_int_equal(f.rows.n, 2);
	assert_int_equal(f.rows.at[1].end, 7);
	assert_string_equal(f.rows.at[1].module, "m");
	assert_true(f.rows.at[0].at.forward.most == 3 && f.rows.at[0].at.output_size == 6 && f.whole.held == 3);
	strbuf b = STRBUF_INIT;
	OK(profile_print(&f, &b));
	char *text = taken(&b);
	profile again;
	OK(profile_parse(text, strlen(text), &again));
	OK(profile_print(&again, &b));
	char *second = taken(&b);
	assert_string_equal(text, second);
	mem_free(text);
	mem_free(second);
	profile_free(&f);
	profile_free(&again);
}

static void files_are_replaced_as_a_whole(void **state)
{
	(void)state;
	char path[] = "/tmp/cleave-profile-XXXXXX";
	int fd = mkstemp(path);
	assert_true(fd >= 0);
	close(fd);
	profile f, again;
	FAILS(profile_read(path, &again), CLV_E_PARSE, path);
	OK(profile_parse(GOOD, strlen(GOOD), &f));
	OK(profile_write(&f, path));
	OK(profile_read(path, &again));
	assert_int_equal(again.rows.n, 2);
	profile_free(&f);
	profile_free(&again);
	unlink(path);
	FAILS(profile_read(path, &again), CLV_E_IO, path);
}

static void what_is_no_profile_is_refused(void **state)
{
	(void)state;
	refused("", "no valid JSON");
	refused("[]", "it is no profile");
	refused("{\"format\":\"other\",\"version\":1}", "it is no profile");
	refused("{\"format\":\"cleave-profile\",\"version\":2}", "version 2");
	refused("{\"format\":\"cleave-profile\",\"version\":1,\"blocks\":[]}", "\"key\" is missing");
	refused(FILE_OF("[]", "", ROW("2")), "\"key\" is missing or is no object");
	refused(FILE_OF("{\"plan\":1}", "", ROW("2")), "\"plan\" is missing or is not a plain string");
	refused(FILE_OF("{\"plan\":\"a\\u0000b\"}", "", ROW("2")), "\"plan\" is missing or is not a plain string");
	refused(FILE_OF("{\"a\":\"1\",\"a\":\"2\"}", "", ROW("2")), "no valid JSON");
	refused(FILE_OF("{}", "", ""), "0 blocks");
	refused(FILE_OF("{}", "", "7"), "blocks[0]: \"name\" is missing");
	refused(FILE_OF("{}", "", ROW("2") "," ROW("2")), "blocks[1]: end is 2");
	refused(FILE_OF("{}", "", ROW("0")), "blocks[0]: end is 0");
	refused(FILE_OF("{}", "", ROW("-1")), "blocks[0]: end is -1");
	refused(FILE_OF("{}", "", ROW("4294967295")), "blocks[0]: end is 4294967295");
	refused(FILE_OF("{}", "", ROW("2.5")), "blocks[0]: \"end\" is missing or is not an integer");
	refused(FILE_OF("{}", ",\"whole\":{}", ROW("2")), "whole: forward_time is missing");
	refused(FILE_OF("{}", ",\"whole\":null", ROW("2")), "whole: forward_time is missing");
}

#define CHANGED(numbers) FILE_OF("{}", "", "{\"name\":\"b\",\"module\":\"m\",\"end\":2," numbers "}")

static void numbers_that_cannot_be_are_refused(void **state)
{
	(void)state;
	refused(CHANGED(TIMES("forward") "," TIMES("backward")), "blocks[0]: cuda_memory_forward is missing");
	refused(CHANGED(TIMES("forward") "," SIZES), "blocks[0]: backward_time is missing");
	refused(CHANGED("\"forward_time\":\"2\""), "blocks[0]: forward_time is missing or is no number");
	refused(CHANGED("\"forward_time\":-1"), "blocks[0]: forward_time is -1");
	refused(CHANGED("\"forward_time\":1e999"), "no valid JSON");
	refused(CHANGED("\"forward_time\":NaN"), "no valid JSON");
	refused(
		CHANGED(
			"\"forward_time\":9,\"forward_low\":1.5,\"forward_high\":2.5,\"forward_least\":1,\"forward_most\":3," TIMES(
				"backward") "," SIZES),
		"blocks[0]: forward: least, low, time, high, most must ascend");
}

static void every_cut_of_a_file_is_refused(void **state)
{
	(void)state;
	profile f;
	for (size_t n = 0; n < strlen(GOOD); n++)
		assert_int_equal(profile_parse(GOOD, n, &f), CLV_E_PARSE);
}

static void a_spread_is_of_the_sorted_samples(void **state)
{
	(void)state;
	spread s = spread_of((double[]){5, 1, 4, 2, 3}, 5);
	assert_true(s.median == 3 && s.low == 2 && s.high == 4 && s.least == 1 && s.most == 5);
	s = spread_of((double[]){2, 1}, 2);
	assert_true(s.median == 1.5 && s.low == 1.25 && s.high == 1.75);
	s = spread_of((double[]){7}, 1);
	assert_true(s.median == 7 && s.low == 7 && s.most == 7);
}

static clv_status attempt(const void *unused)
{
	profile f;
	(void)unused;
	TRY(profile_parse(GOOD, strlen(GOOD), &f));
	strbuf b = STRBUF_INIT;
	clv_status st = profile_print(&f, &b);
	strbuf_free(&b);
	profile_free(&f);
	return st;
}

static void every_allocation_may_fail(void **state)
{
	(void)state;
	sweep_faults(attempt, NULL, CLV_OK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_profile_is_read_and_written_the_same),
		cmocka_unit_test(files_are_replaced_as_a_whole),
		cmocka_unit_test(what_is_no_profile_is_refused),
		cmocka_unit_test(numbers_that_cannot_be_are_refused),
		cmocka_unit_test(every_cut_of_a_file_is_refused),
		cmocka_unit_test(a_spread_is_of_the_sorted_samples),
		cmocka_unit_test(every_allocation_may_fail),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
