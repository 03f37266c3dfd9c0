/* The fault sweep over the native engine: lowering and running, for every family of operators and for the seeds of its fuzz target.
 * Each allocation fails once; the answer is CLV_E_NOMEM and nothing is left behind (run it under the leak sanitizer). */
#define _GNU_SOURCE /* memmem */
#include "families.h"

#undef fail /* cmocka's */
#define fail fails_with
#include "../../fuzz/run_plan.h"
#undef fail
#define fail() _fail(__FILE__, __LINE__)

#include "native/native.h"

static void check_file(const strbuf *file)
{
	(void)file; /* this test has the file itself */
}

/* ---- families ------------------------------------------------------------------------------------------------------------ */

static clv_status attempt_family(const void *ctx)
{
	const family_case *c = ctx;
	clv_runtime *r = NULL;
	family_results out = {.n = 0};
	clv_status st = family_runtime(c, 1, &r);
	if (st == CLV_OK)
		st = family_run(c, r, 0, 1, &out);
	if (st == CLV_OK)
		family_release(&out);
	clv_runtime_free(r);
	return st;
}

static void every_allocation_of_every_family_may_fail(void **state)
{
	(void)state;
	for (int i = 0; i < some_of(FAMILIES); i++) {
		family_case c = family_open(&families[i]);
		if (sweep_each(attempt_family, &c, CLV_OK, true) < 50)
			fail_msg("%s: too few allocations", families[i].name);
		family_close(&c);
	}
}

/* ---- seeds of the fuzz target ---------------------------------------------------------------------------------------------- */

static clv_status attempt_file(const void *ctx)
{
	const strbuf *file = ctx;
	results out;
	clv_status st = open_and_run(file->at, file->n, "native", 1, &out);
	drop_results(&out);
	return st;
}

/* Whether it has an operator that no plan before had; they are noted. */
static bool is_new(const char *text, size_t n, bool *seen)
{
	plan *p = NULL;
	bool any = false;
	if (plan_parse(text, n, &p) != CLV_OK)
		return false;
	for (node_id i = 0; i < p->nodes.n; i++) {
		uint16_t op = p->nodes.at[i].op_id;
		any |= !seen[op];
		seen[op] = true;
	}
	plan_free(p);
	return any;
}

static void sweep_seed(const char *path, bool *seen, uint32_t *swept)
{
	image i = read_image(path);
	strbuf file = STRBUF_INIT;
	if (is_new((const char *)i.at, i.n, seen) && file_of(i.at, i.n, &file) && attempt_file(&file) == CLV_OK) {
		sweep_each(attempt_file, &file, CLV_OK, true);
		++*swept;
	}
	strbuf_free(&file);
	image_free(&i);
}

static void every_allocation_of_the_seeds_may_fail(void **state)
{
	static const char folder[] = "fuzz/corpus/native";
	bool *seen = calloc(OP_COUNT + 1, sizeof *seen);
	uint32_t swept = 0;
	struct dirent **all;
	(void)state;
	int n = scandir(folder, &all, NULL, alphasort);
	assert_true(n > 0);
	for (int i = 0; i < n; i++) {
		char path[320];
		snprintf(path, sizeof path, "%s/%s", folder, all[i]->d_name);
		if (all[i]->d_name[0] != '.' && i < some_of(n))
			sweep_seed(path, seen, &swept);
		free(all[i]);
	}
	free(all);
	free(seen);
	assert_true(swept > some_of(n) / 8);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_allocation_of_every_family_may_fail),
		cmocka_unit_test(every_allocation_of_the_seeds_may_fail),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
