/* Properties of the text form over thousands of random plans: what is printed parses to an equal plan, printing is
 * canonical, and plans are equal exactly if their texts are. A failure names the seed. */
#include "random_plan.h"

enum { PLANS = 3000, MUTANTS = 8 };

static void fail_seed(uint64_t seed, const char *what, const char *text)
{
	fail_msg("seed %llu: %s (%s)\n%s", (unsigned long long)seed, what, status_message(), text);
}

static plan *reread(uint64_t seed, const char *text)
{
	plan *p = NULL;
	if (plan_parse(text, strlen(text), &p) != CLV_OK)
		fail_seed(seed, "the printed plan does not parse", text);
	if (plan_verify(p) != CLV_OK)
		fail_seed(seed, "the parsed plan does not verify", text);
	return p;
}

static void parsing_what_was_printed_gives_an_equal_plan(void **state)
{
	(void)state;
	for (uint64_t seed = 0; seed < PLANS; seed++) {
		plan *p = random_plan(seed);
		if (plan_verify(p) != CLV_OK)
			fail_seed(seed, "the random plan does not verify", "");
		char *text = print_ok(p);
		plan *q = reread(seed, text);
		if (!plan_equal(p, q) || !plan_equal(q, p))
			fail_seed(seed, "the parsed plan differs", text);
		char *again = print_ok(q);
		if (strcmp(text, again) != 0)
			fail_seed(seed, "printing twice gives two texts", again);
		mem_free(text);
		mem_free(again);
		plan_free(p);
		plan_free(q);
	}
}

static void two_random_plans_are_not_equal(void **state)
{
	(void)state;
	plan *before = random_plan(0);
	for (uint64_t seed = 1; seed < 300; seed++) {
		plan *p = random_plan(seed);
		char *a = print_ok(before), *b = print_ok(p);
		assert_int_equal(plan_equal(before, p), strcmp(a, b) == 0);
		mem_free(a);
		mem_free(b);
		plan_free(before);
		before = p;
	}
	plan_free(before);
}

/* One byte of the text changed to one that occurs elsewhere in it. */
static void mutate(char *text, uint64_t *seed)
{
	size_t n = strlen(text);
	text[random64(seed) % n] = text[random64(seed) % n];
}

static void check_mutant(uint64_t seed, const plan *p, const char *canonical, const char *mutant)
{
	plan *q = NULL;
	if (plan_parse(mutant, strlen(mutant), &q) != CLV_OK)
		return;
	if (plan_verify(q) == CLV_OK) {
		char *text = print_ok(q);
		if (plan_equal(p, q) != (strcmp(canonical, text) == 0))
			fail_seed(seed, "equality of plans and of texts disagree", mutant);
		plan_free(reread(seed, text));
		mem_free(text);
	}
	plan_free(q);
}

static void plans_are_equal_exactly_if_their_texts_are(void **state)
{
	(void)state;
	for (uint64_t seed = 0; seed < PLANS / 3; seed++) {
		plan *p = random_plan(seed);
		char *text = print_ok(p);
		uint64_t random = seed;
		for (int i = 0; i < MUTANTS; i++) {
			char *mutant = mem_strdup(text, strlen(text));
			mutate(mutant, &random);
			check_mutant(seed, p, text, mutant);
			mem_free(mutant);
		}
		mem_free(text);
		plan_free(p);
	}
}

static void a_text_that_lost_its_end_is_refused(void **state)
{
	(void)state;
	for (uint64_t seed = 0; seed < 30; seed++) {
		plan *p = random_plan(seed);
		char *text = print_ok(p);
		const char *last = strstr(text, "\noutput ");
		assert_non_null(last);
		for (size_t n = 0; n <= (size_t)(last - text) + 8; n++) {
			plan *q = NULL;
			assert_int_equal(plan_parse(text, n, &q), CLV_E_PARSE);
		}
		mem_free(text);
		plan_free(p);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(parsing_what_was_printed_gives_an_equal_plan),
		cmocka_unit_test(two_random_plans_are_not_equal),
		cmocka_unit_test(plans_are_equal_exactly_if_their_texts_are),
		cmocka_unit_test(a_text_that_lost_its_end_is_refused),
	};
	return cmocka_run_group_tests_name("property", tests, NULL, NULL);
}
