/* src/base: messages, allocation, growable arrays and strings, numbers as text, the hash table. */
#include "support.h"

#include <locale.h>
#include <math.h>
#include <pthread.h>

#include "base/arena.h"
#include "base/human.h"
#include "base/number.h"
#include "base/table.h"

/* ---- status -------------------------------------------------------------------------------------------------------- */

static void a_failure_leaves_its_message(void **state)
{
	(void)state;
	assert_int_equal(fails_with(CLV_E_INPUT, "%s is %d", "x", 3), CLV_E_INPUT);
	assert_non_null(strstr(clv_last_error(), "x is 3"));
}

static void a_message_can_be_as_long_as_it_needs(void **state)
{
	(void)state;
	char *text = mem_alloc(100001);
	memset(text, 'y', 100000);
	fails_with(CLV_E_INPUT, "%s!", text);
	assert_true(strlen(clv_last_error()) >= 100001);
	mem_free(text);
}

static void fail_more_puts_text_in_front(void **state)
{
	(void)state;
	fails_with(CLV_E_INPUT, "end");
	assert_int_equal(fail_more(CLV_E_INPUT, "node %d", 7), CLV_E_INPUT);
	assert_memory_equal(clv_last_error(), "node 7: end", 11);
	fail_more(CLV_E_INPUT, "file: ");
	assert_memory_equal(clv_last_error(), "file: node 7: end", 17);
}

static void a_message_may_quote_the_message_before_it(void **state)
{
	(void)state;
	fails_with(CLV_E_INPUT, "first");
	fails_with(CLV_E_INVALID, "second after %s", clv_last_error());
	assert_memory_equal(clv_last_error(), "second after first", 18);
}

static void without_memory_the_meaning_of_the_code_stands_in(void **state)
{
	(void)state;
	mem_fail_after(1);
	fails_with(CLV_E_GUARD, "a message that cannot be kept");
	assert_string_equal(clv_last_error(), "a value differs from the one the plan was captured with");
}

static void *message_of_new_thread(void *out)
{
	*(size_t *)out = strlen(clv_last_error());
	fails_with(CLV_E_IO, "only here");
	return NULL;
}

static void each_thread_has_its_own_message(void **state)
{
	(void)state;
	size_t length = 1;
	pthread_t thread;
	fails_with(CLV_E_INPUT, "main");
	assert_int_equal(pthread_create(&thread, NULL, message_of_new_thread, &length), 0);
	pthread_join(thread, NULL);
	assert_int_equal(length, 0);
	assert_memory_equal(clv_last_error(), "main", 4);
}

static void every_status_has_a_name(void **state)
{
	(void)state;
	assert_string_equal(clv_status_name(CLV_OK), "OK");
	assert_string_equal(clv_status_name(CLV_E_PARSE), "E_PARSE");
	assert_string_equal(clv_status_name(CLV_STATUS_COUNT), "?");
	assert_string_equal(clv_version(), CLV_VERSION);
	for (int s = 0; s < CLV_STATUS_COUNT; s++)
		assert_true(strlen(status_meaning((clv_status)s)) > 0);
}

static void the_numbers_of_the_version_are_those_of_its_text(void **state)
{
	(void)state;
	char text[64];
	snprintf(text, sizeof text, "%d.%d.%d", CLV_VERSION_MAJOR, CLV_VERSION_MINOR, CLV_VERSION_PATCH);
	assert_string_equal(CLV_VERSION, text);
}

/* ---- memory -------------------------------------------------------------------------------------------------------- */

static void the_chosen_allocation_fails_and_no_other(void **state)
{
	(void)state;
	mem_fail_after(2);
	void *a = mem_alloc(1), *b = mem_alloc(1), *c = mem_alloc(1);
	assert_non_null(a);
	assert_null(b);
	assert_non_null(c);
	mem_free(a);
	mem_free(c);
}

static void a_product_that_overflows_is_refused(void **state)
{
	(void)state;
	assert_null(mem_realloc(NULL, SIZE_MAX / 2, 3));
	assert_null(mem_strdup("", SIZE_MAX));
}

static void memory_comes_zeroed(void **state)
{
	(void)state;
	unsigned char *at = mem_alloc(1000);
	for (int i = 0; i < 1000; i++)
		assert_int_equal(at[i], 0);
	mem_free(at);
}

static void arrays_keep_their_elements_while_they_grow(void **state)
{
	(void)state;
	VEC(uint32_t) v = {0};
	for (uint32_t i = 0; i < 10000; i++)
		OK(vec_push(&v, i));
	for (uint32_t i = 0; i < 10000; i++)
		assert_int_equal(v.at[i], i);
	vec_free(&v);
	assert_null(v.at);
}

static void an_array_that_cannot_grow_stays_as_it_is(void **state)
{
	(void)state;
	VEC(uint32_t) v = {0};
	OK(vec_push(&v, 5u));
	assert_int_equal(vec_reserve(&v, UINT32_MAX), CLV_E_NOMEM);
	mem_fail_after(1);
	assert_int_equal(vec_reserve(&v, 100), CLV_E_NOMEM);
	assert_int_equal(v.n, 1);
	assert_int_equal(v.at[0], 5);
	vec_free(&v);
}

/* ---- strings ------------------------------------------------------------------------------------------------------- */

static void an_empty_buffer_gives_an_empty_string(void **state)
{
	(void)state;
	strbuf b = STRBUF_INIT;
	char *text = taken(&b);
	assert_string_equal(text, "");
	mem_free(text);
}

static void a_failed_append_is_reported_at_the_end(void **state)
{
	(void)state;
	strbuf b = STRBUF_INIT;
	char *text = NULL;
	mem_fail_after(1);
	strbuf_puts(&b, "lost");
	strbuf_puts(&b, "also lost");
	strbuf_printf(&b, "%d", 1);
	assert_int_equal(strbuf_take(&b, &text), CLV_E_NOMEM);
	assert_null(text);
}

static void integers_print_at_their_limits(void **state)
{
	(void)state;
	strbuf b = STRBUF_INIT;
	strbuf_int(&b, INT64_MIN);
	strbuf_putc(&b, ' ');
	strbuf_int(&b, INT64_MAX);
	strbuf_putc(&b, ' ');
	strbuf_int(&b, 0);
	char *text = taken(&b);
	assert_string_equal(text, "-9223372036854775808 9223372036854775807 0");
	mem_free(text);
}

static void check_amount(void (*print)(strbuf *, int64_t), int64_t n, const char *want)
{
	strbuf b = STRBUF_INIT;
	print(&b, n);
	char *text = taken(&b);
	assert_string_equal(text, want);
	mem_free(text);
}

static void amounts_have_units_and_one_decimal(void **state)
{
	(void)state;
	check_amount(strbuf_bytes, 0, "0 bytes");
	check_amount(strbuf_bytes, 1, "1 byte");
	check_amount(strbuf_bytes, 999, "999 bytes");
	check_amount(strbuf_bytes, 1000, "1.0 kB");
	check_amount(strbuf_bytes, 46757920, "46.8 MB");
	check_amount(strbuf_bytes, 999949, "999.9 kB");
	check_amount(strbuf_bytes, 999950, "1.0 MB"); /* never 1000.0 kB */
	check_amount(strbuf_bytes, INT64_MAX, "9.2 EB");
	check_amount(strbuf_bytes, INT64_MIN, "-9.2 EB");
	check_amount(strbuf_count, 812, "812");
	check_amount(strbuf_count, -812, "-812");
	check_amount(strbuf_count, 74000, "74.0K");
	check_amount(strbuf_count, 11689512, "11.7M");
}

static void columns_are_as_wide_as_their_widest_cell(void **state)
{
	(void)state;
	static const char *const cells[] = {"name", "n", "why", "\xc3\xa9", "10", "", "a\x1b", "7", "x\xc2\x9b"};
	static const bool right[] = {false, true, false};
	strbuf b = STRBUF_INIT;
	strbuf_columns(&b, cells, 3, 3, right);
	strbuf_columns(&b, NULL, 0, 0, NULL);
	char *text = taken(&b);
	assert_string_equal(text, "name   n  why\n\xc3\xa9     10\na?     7  x?\n");
	mem_free(text);
}

static void columns_without_memory_fail_as_a_whole(void **state)
{
	(void)state;
	static const char *const cells[] = {"a"};
	static const bool right[] = {false};
	strbuf b = STRBUF_INIT;
	char *text = NULL;
	mem_fail_after(1);
	strbuf_columns(&b, cells, 1, 1, right);
	assert_int_equal(strbuf_take(&b, &text), CLV_E_NOMEM);
}

static void check_quoted(const char *s, size_t n, const char *want)
{
	strbuf b = STRBUF_INIT;
	strbuf_quoted(&b, s, n);
	char *text = taken(&b);
	assert_string_equal(text, want);
	mem_free(text);
}

static void quoted_strings_escape_what_cannot_stand_in_a_line(void **state)
{
	(void)state;
	check_quoted("a\"b\\c\nd\te\r\0f", 12, "\"a\\\"b\\\\c\\nd\\te\\x0d\\x00f\"");
	check_quoted("\x7f", 1, "\"\\x7f\"");
	check_quoted("\xc2\x9b\xc2\xa0", 4, "\"\\xc2\\x9b\xc2\xa0\""); /* terminals obey the first */
	check_quoted("", 0, "\"\"");
}

static void quoted_strings_keep_utf8_and_escape_stray_bytes(void **state)
{
	(void)state;
	check_quoted("h\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 10, "\"h\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"");
	check_quoted("\xc3", 1, "\"\\xc3\"");
	check_quoted("\xc0\x80", 2, "\"\\xc0\\x80\"");                   /* overlong */
	check_quoted("\xed\xa0\x80", 3, "\"\\xed\\xa0\\x80\"");          /* surrogate */
	check_quoted("\xf4\x90\x80\x80", 4, "\"\\xf4\\x90\\x80\\x80\""); /* beyond the last character */
	strbuf b = STRBUF_INIT;
	strbuf_quoted_ascii(&b, "\xc3\xa9", 2);
	char *text = taken(&b);
	assert_string_equal(text, "\"\\xc3\\xa9\"");
	mem_free(text);
}

static void utf8_is_told_from_other_bytes(void **state)
{
	(void)state;
	assert_true(utf8_valid("", 0));
	assert_true(utf8_valid("a\0\xc3\xa9\xf0\x9f\x98\x80", 8));
	assert_false(utf8_valid("\xc3", 1));
	assert_false(utf8_valid("a\x80", 2));
	assert_false(utf8_valid("\xed\xa0\x80", 3)); /* surrogate */
	assert_false(utf8_valid("\xc0\x80", 2));     /* overlong */
}

/* ---- numbers ------------------------------------------------------------------------------------------------------- */

static void check_double(double v, const char *want)
{
	char text[NUMBER_TEXT];
	number_print(v, text);
	assert_string_equal(text, want);
}

static void doubles_print_short_and_never_as_integers(void **state)
{
	(void)state;
	check_double(0.1, "0.1");
	check_double(1, "1.0");
	check_double(-0.0, "-0.0");
	check_double(1e22, "1e+22");
	check_double(1e-5, "1e-05");
	check_double(100000, "100000.0");
	check_double(5e-324, "5e-324");
	check_double(1.7976931348623157e308, "1.7976931348623157e+308");
	check_double(0.1 + 0.2, "0.30000000000000004");
	check_double(INFINITY, "inf");
	check_double(-INFINITY, "-inf");
	check_double(NAN, "nan");
}

static void check_reads_back(double v)
{
	char text[NUMBER_TEXT];
	double back;
	number_print(v, text);
	assert_true(number_parse(text, &back));
	assert_memory_equal(&v, &back, sizeof v);
	assert_non_null(strpbrk(text, ".e"));
}

static void every_double_reads_back_to_the_same_bits(void **state)
{
	(void)state;
	uint64_t seed = 1;
	for (int i = 0; i < 200000; i++) {
		uint64_t bits = random64(&seed);
		if (i % 4 == 0)
			bits &= UINT64_C(0x800FFFFFFFFFFFFF); /* subnormal */
		double v;
		memcpy(&v, &bits, sizeof v);
		if (isfinite(v))
			check_reads_back(v);
	}
}

static void text_that_is_no_decimal_number_is_refused(void **state)
{
	(void)state;
	static const char *const bad[] = {"",     "-",    ".5",  "1e",  "1e+",   "0x1p3",
	                                  "1.5x", " 1.5", "inf", "nan", "1e999", "+1.5"};
	double v;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		assert_false(number_parse(bad[i], &v));
	assert_true(number_parse("1.", &v));
	assert_true(number_parse("1E5", &v));
}

static void numbers_do_not_depend_on_the_locale(void **state)
{
	(void)state;
	static const char *const locales[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "fr_FR.utf8"};
	for (size_t i = 0; i < sizeof locales / sizeof *locales; i++)
		if (setlocale(LC_NUMERIC, locales[i]))
			break;
	check_double(0.5, "0.5");
	check_reads_back(1234.5678);
	setlocale(LC_NUMERIC, "C");
}

/* ---- the table and the arena --------------------------------------------------------------------------------------- */

typedef struct keys {
	const uint64_t *at;
	uint64_t wanted;
} keys;

static bool key_same(const void *ctx, uint32_t id)
{
	const keys *k = ctx;
	return k->at[id] == k->wanted;
}

static void the_table_finds_what_was_added_and_nothing_else(void **state)
{
	(void)state;
	enum { N = 20000 };
	uint64_t *at = mem_alloc(2 * N * sizeof *at), seed = 7;
	table t = {0};
	for (uint32_t i = 0; i < 2 * N; i++)
		at[i] = random64(&seed);
	for (uint32_t i = 0; i < N; i++)
		OK(table_add(&t, hash_bytes(&at[i], 8, 3), i));
	for (uint32_t i = 0; i < 2 * N; i++)
		assert_int_equal(table_find(&t, hash_bytes(&at[i], 8, 3), key_same, &(keys){at, at[i]}),
		                 i < N ? i : TABLE_NONE);
	table_free(&t);
	mem_free(at);
}

static void keys_with_one_hash_stay_apart(void **state)
{
	(void)state;
	uint64_t at[] = {10, 20, 30};
	table t = {0};
	for (uint32_t i = 0; i < 3; i++)
		OK(table_add(&t, 42, i));
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(table_find(&t, 42, key_same, &(keys){at, at[i]}), i);
	assert_int_equal(table_find(&t, 42, key_same, &(keys){at, 40}), TABLE_NONE);
	table_free(&t);
}

static void hashes_differ_by_length_content_and_seed(void **state)
{
	(void)state;
	assert_int_not_equal(hash_bytes("\0", 1, 0), hash_bytes("\0\0", 2, 0));
	assert_int_not_equal(hash_bytes("abcdefgh", 8, 0), hash_bytes("abcdefgi", 8, 0));
	assert_int_not_equal(hash_bytes("a", 1, 0), hash_bytes("a", 1, 1));
}

static void the_arena_keeps_what_it_gave(void **state)
{
	(void)state;
	arena a = {0};
	char *kept[100];
	for (int i = 0; i < 100; i++) {
		char text[300];
		snprintf(text, sizeof text, "%0*d", 3 * i + 1, i);
		kept[i] = arena_str(&a, text);
		assert_non_null(kept[i]);
	}
	for (int i = 0; i < 100; i++)
		assert_int_equal(atoi(kept[i]), i);
	assert_non_null(arena_alloc(&a, 1 << 20));
	assert_int_equal(arena_ids(&a, 3)[2], UINT32_MAX);
	assert_int_equal(arena_status(&a), CLV_OK);
	assert_null(arena_array(&a, SIZE_MAX / 2, 4));
	assert_null(arena_alloc(&a, SIZE_MAX));
	assert_non_null(arena_alloc(&a, 1));
	assert_int_equal(arena_status(&a), CLV_E_NOMEM);
	arena_free(&a);
}

/* Messages hold names from files, and a traceback prints them. */
static void messages_have_nothing_that_a_terminal_obeys(void **state)
{
	(void)state;
	fails_with(CLV_E_PARSE,
	           "a\x1b[31m\tb\n\xc2\x9b"
	           "5m \xc2\xb5 %s",
	           "\x7f");
	assert_string_equal(clv_last_error(), "a?[31m\tb\n??5m \xc2\xb5 ?");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(messages_have_nothing_that_a_terminal_obeys),
		cmocka_unit_test(a_failure_leaves_its_message),
		cmocka_unit_test(a_message_can_be_as_long_as_it_needs),
		cmocka_unit_test(fail_more_puts_text_in_front),
		cmocka_unit_test(a_message_may_quote_the_message_before_it),
		cmocka_unit_test(without_memory_the_meaning_of_the_code_stands_in),
		cmocka_unit_test(each_thread_has_its_own_message),
		cmocka_unit_test(every_status_has_a_name),
		cmocka_unit_test(the_numbers_of_the_version_are_those_of_its_text),
		cmocka_unit_test(the_chosen_allocation_fails_and_no_other),
		cmocka_unit_test(a_product_that_overflows_is_refused),
		cmocka_unit_test(memory_comes_zeroed),
		cmocka_unit_test(arrays_keep_their_elements_while_they_grow),
		cmocka_unit_test(an_array_that_cannot_grow_stays_as_it_is),
		cmocka_unit_test(an_empty_buffer_gives_an_empty_string),
		cmocka_unit_test(a_failed_append_is_reported_at_the_end),
		cmocka_unit_test(integers_print_at_their_limits),
		cmocka_unit_test(amounts_have_units_and_one_decimal),
		cmocka_unit_test(columns_are_as_wide_as_their_widest_cell),
		cmocka_unit_test(columns_without_memory_fail_as_a_whole),
		cmocka_unit_test(quoted_strings_escape_what_cannot_stand_in_a_line),
		cmocka_unit_test(quoted_strings_keep_utf8_and_escape_stray_bytes),
		cmocka_unit_test(utf8_is_told_from_other_bytes),
		cmocka_unit_test(doubles_print_short_and_never_as_integers),
		cmocka_unit_test(every_double_reads_back_to_the_same_bits),
		cmocka_unit_test(text_that_is_no_decimal_number_is_refused),
		cmocka_unit_test(numbers_do_not_depend_on_the_locale),
		cmocka_unit_test(the_table_finds_what_was_added_and_nothing_else),
		cmocka_unit_test(keys_with_one_hash_stay_apart),
		cmocka_unit_test(hashes_differ_by_length_content_and_seed),
		cmocka_unit_test(the_arena_keeps_what_it_gave),
	};
	return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
