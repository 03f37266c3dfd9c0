/* Plans partitioned through the public functions: stages, the plan in their order, the graph as text, bad arguments, random
   plans, memory that ends. */
#include "random_plan.h"

#include "pipe/partition_object.h"

/* Three layers; the first one's result is also read by the last node. */
static const char *const layers =
	"cleave-plan 1\nmodel \"Net\"\nsymbol B 1..64\n"
	"scope \"\" \"Net\"\nscope a \"Linear\"\nscope b \"Block\"\nscope b.c \"Linear\"\nscope b.d \"ReLU\"\nscope e "
	"\"Linear\"\n"
	"input %0 f32[B,8] name=\"x\"\n"
	"param @a.weight f32[8,8] trainable\nparam @b.c.weight f32[8,8] trainable\nparam @e.weight f32[8,8] trainable\n"
	"%1 = aten::linear(%0, @a.weight, none) -> f32[B,8] grad in a\n"
	"%2 = aten::linear(%1, @b.c.weight, none) -> f32[B,8] grad in b.c\n"
	"%3 = aten::relu(%2) -> f32[B,8] grad in b.d\n"
	"%4 = aten::linear(%3, @e.weight, none) -> f32[B,8] grad in e\n"
	"%5 = aten::add.Tensor(%4, %1, 1) -> f32[B,8] grad\n"
	"output %5\n";

#define TIMES(name, t)                                                                                                 \
	"\"" name "_time\":" t ",\"" name "_low\":" t ",\"" name "_high\":" t ",\"" name "_least\":" t ",\"" name          \
	"_most\":" t
#define ROW(name, end, t)                                                                                              \
	"{\"name\":\"" name "\",\"module\":\"\",\"end\":" end                                                              \
	"," TIMES("forward", t) "," TIMES("backward", "0") ","                                                             \
													   "\"cuda_memory_forward\":1,\"cuda_memory_backward\":2,"         \
													   "\"held\":3,\"size\":4,\"input_size\":5,\"output_size\":6}"
#define PROFILE(key, rows) "{\"format\":\"cleave-profile\",\"version\":1,\"key\":{" key "},\"blocks\":[" rows "]}"
#define ROWS                                                                                                           \
	ROW("a", "1", "1")                                                                                                 \
	"," ROW("b.c", "2", "1") "," ROW("b.d", "3", "1") "," ROW("e", "4", "1") "," ROW("add", "5", "3")

static clv_partition_options devices(uint32_t k)
{
	clv_partition_options o = CLV_PARTITION_OPTIONS_INIT;
	o.method = "pipedream";
	o.k = k;
	return o;
}

static clv_plan_partition_options options_of(const clv_partition_options *parts)
{
	clv_plan_partition_options o = CLV_PLAN_PARTITION_OPTIONS_INIT;
	o.partition = parts;
	return o;
}

static const char *name_of(const clv_partition *p, uint32_t position)
{
	return p->g.nodes.at[position].name;
}

/* ---- what comes out ---------------------------------------------------------------------------------------------------- */

static void a_plan_comes_back_stage_by_stage(void **state)
{
	(void)state;
	plan *p = load_ok(layers);
	clv_partition_options parts = devices(2);
	clv_plan_partition_options o = options_of(&parts);
	clv_partition *part;
	const uint32_t *ends = NULL;
	OK(clv_plan_partition(p, &o, &part));
	assert_int_equal(clv_partition_stage_count(part), 2);
	assert_int_equal(part->g.nodes.n, 5);
	assert_string_equal(name_of(part, 1), "b.c");

	const clv_plan *staged = clv_partition_plan(part, &ends);
	const uint32_t *stage_of = part->node_stage;
	OK(plan_verify(staged));
	assert_int_equal(ends[1], 5);
	for (uint32_t i = 0; i < 5; i++)
		assert_int_equal(stage_of[i], i >= ends[0]);
	plan_free(p); /* the partition has its own */
	clv_stages_options s = CLV_STAGES_OPTIONS_INIT;
	char *text;
	s.ends = ends;
	s.nstages = 2;
	OK(clv_plan_stages_source(staged, &s, &text));
	assert_non_null(strstr(text, "class Stage1"));
	clv_free(text);
	OK(clv_partition_table(part, &text));
	assert_non_null(strstr(text, "\nstage 0        a"));
	clv_free(text);
	OK(clv_partition_json(part, &text));
	assert_non_null(strstr(text, "\"names\":[\"a\""));
	clv_free(text);
	clv_partition_free(part);
}

static void modules_may_stay_whole(void **state)
{
	(void)state;
	plan *p = load_ok(layers);
	clv_partition_options parts = devices(1);
	clv_plan_partition_options o = options_of(&parts);
	clv_partition *part;
	o.depth = 1;
	OK(clv_plan_partition(p, &o, &part));
	assert_int_equal(part->g.nodes.n, 4);
	assert_string_equal(name_of(part, 1), "b");
	clv_partition_free(part);
	o = options_of(&parts);
	const char *const whole[] = {"Block", "e"};
	o.whole = whole;
	o.nwhole = 2;
	OK(clv_plan_partition(p, &o, &part));
	assert_int_equal(part->g.nodes.n, 4);
	clv_partition_free(part);
	const char *const none[] = {"Blok"};
	o.whole = none;
	o.nwhole = 1;
	FAILS(clv_plan_partition(p, &o, &part), CLV_E_NOT_FOUND, "the class or the path \"Blok\"");
	plan_free(p);
}

static void sizes_and_speeds_make_the_estimate(void **state)
{
	(void)state;
	plan *p = load_ok(layers);
	clv_plan_partition_options o = CLV_PLAN_PARTITION_OPTIONS_INIT;
	clv_partition *part;
	o.node_us = 0;
	OK(clv_plan_partition(p, &o, &part));
	double small = part->g.nodes.at[0].fwd_us;
	clv_partition_free(part);
	const char *const symbols[] = {"B"};
	const int64_t values[] = {64};
	o.sizes = (clv_sizes){symbols, values, 1};
	OK(clv_plan_partition(p, &o, &part));
	double large = part->g.nodes.at[0].fwd_us;
	clv_partition_free(part);
	assert_true(large > 2 * small && small > 0);
	o.flops_per_s = 0;
	FAILS(clv_plan_partition(p, &o, &part), CLV_E_INVALID, "above 0");
	o.flops_per_s = 1;
	const char *const other[] = {"Q"};
	o.sizes.symbols = other;
	FAILS(clv_plan_partition(p, &o, &part), CLV_E_NOT_FOUND, "no symbol \"Q\"");
	plan_free(p);
}

static void a_profile_says_what_blocks_take(void **state)
{
	(void)state;
	plan *p = load_ok(layers);
	clv_partition_options parts = devices(2);
	clv_plan_partition_options o = options_of(&parts);
	clv_partition *part;
	o.profile = PROFILE("\"training\":\"True\"", ROWS);
	o.profile_size = strlen(o.profile);
	OK(clv_plan_partition(p, &o, &part));
	assert_true(part->score.bottleneck_us == 4000); /* four layers of 1 ms, then 3 ms */
	clv_partition_free(part);
	static const struct {
		const char *text, *part;
		clv_status st;
	} bad[] = {
		{"{}", "the profile cannot be used", CLV_E_PARSE},
		{"[", "no valid JSON", CLV_E_PARSE},
		{PROFILE("", ROW("a", "1", "1")), "has 1 blocks, and the plan has 5", CLV_E_INVALID},
		{PROFILE("", ROW("a", "1", "1") "," ROW("x", "2", "1") "," ROW("b.d", "3", "1") "," ROW("e", "4", "1") "," ROW(
						 "add", "5", "1")),
	     "block 1 is x up to node 2, in the plan b.c up to 2", CLV_E_INVALID},
		{PROFILE("\"training\":\"False\"", ROWS), "without a backward", CLV_E_INVALID},
	};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		o.profile = bad[i].text;
		o.profile_size = strlen(bad[i].text);
		FAILS(clv_plan_partition(p, &o, &part), bad[i].st, bad[i].part);
	}
	parts.inference = true;
	OK(clv_plan_partition(p, &o, &part));
	clv_partition_free(part);
	plan_free(p);
}

/* ---- the graph as text --------------------------------------------------------------------------------------------------- */

static void the_graph_is_written_and_read_again(void **state)
{
	(void)state;
	plan *p = load_ok(layers);
	clv_partition_options parts = devices(2);
	clv_plan_partition_options o = options_of(&parts);
	clv_partition *part, *again;
	char *text, *same;
	OK(clv_plan_partition(p, &o, &part));
	OK(clv_partition_graph_json(part, &text));
	assert_non_null(strstr(text, "\"edges\":[[0,1],[0,4],[1,2],[2,3],[3,4]]"));
	assert_non_null(strstr(text, "\"out_bytes\":32,")); /* once, though two read it */
	OK(clv_partition_graph(text, strlen(text), &parts, &again));
	OK(clv_partition_graph_json(again, &same));
	assert_string_equal(text, same);
	for (uint32_t i = 0; i < 5; i++)
		assert_string_equal(name_of(part, i), name_of(again, i));
	assert_null(clv_partition_plan(again, NULL));
	assert_null(again->node_stage);
	clv_free(text);
	clv_free(same);
	clv_partition_free(part);
	clv_partition_free(again);
	plan_free(p);
}

/* ---- what is refused ------------------------------------------------------------------------------------------------------ */

static void bad_arguments_are_refused(void **state)
{
	(void)state;
	plan *p = load_ok(layers), *empty = load_ok("cleave-plan 1\nmodel \"M\"\ninput %0 f32[2]\noutput %0\n");
	clv_partition_options parts = devices(6);
	clv_plan_partition_options o = options_of(&parts);
	clv_partition *part;
	char *text;
	FAILS(clv_plan_partition(NULL, &o, &part), CLV_E_INVALID, "needs a plan");
	FAILS(clv_plan_partition(p, &o, NULL), CLV_E_INVALID, "a place for the partition");
	FAILS(clv_plan_partition(p, &o, &part), CLV_E_INVALID, "5 blocks that can be apart, fewer than 6 devices");
	FAILS(clv_plan_partition(empty, NULL, &part), CLV_E_INVALID, "0 blocks");
	parts.k = 0;
	FAILS(clv_plan_partition(p, &o, &part), CLV_E_INVALID, "the number of devices is 0");
	parts = devices(2);
	parts.size++;
	FAILS(clv_plan_partition(p, &o, &part), CLV_E_INVALID, "clv_partition_options.size");
	parts = devices(2);
	parts.method = "guess";
	FAILS(clv_plan_partition(p, &o, &part), CLV_E_NOT_FOUND, "guess");
	parts = devices(2);
	o.nwhole = 1;
	FAILS(clv_plan_partition(p, &o, &part), CLV_E_INVALID, "is NULL");
	o.nwhole = 0;
	o.sizes.n = 1;
	FAILS(clv_plan_partition(p, &o, &part), CLV_E_INVALID, "1 symbols without names or sizes");
	o.sizes.n = 0;
	o.size += 8;
	FAILS(clv_plan_partition(p, &o, &part), CLV_E_INVALID, "clv_plan_partition_options.size");
	assert_null(clv_partition_plan(NULL, NULL));
	FAILS(clv_partition_graph_json(NULL, &text), CLV_E_INVALID, "a partition");
	plan_free(p);
	plan_free(empty);
}

static void names_do_not_steer_a_terminal(void **state)
{
	(void)state;
	plan *p = load_ok("cleave-plan 1\nmodel \"M\"\nscope \"\" \"M\"\nscope \"a\\x1b[31m\" \"L\"\ninput %0 f32[2]\n"
	                  "%1 = aten::relu(%0) -> f32[2] in \"a\\x1b[31m\"\noutput %1\n");
	clv_partition *part;
	char *text;
	OK(clv_plan_partition(p, NULL, &part));
	OK(clv_partition_table(part, &text));
	assert_null(strchr(text, 0x1b));
	assert_non_null(strstr(text, "a?[31m"));
	clv_free(text);
	OK(clv_partition_json(part, &text));
	assert_null(strchr(text, 0x1b));
	clv_free(text);
	clv_partition_free(part);
	plan_free(p);
}

/* ---- random plans -------------------------------------------------------------------------------------------------------- */

/* Stages are parts of the plan in order, and the plan of them has the same nodes and obeys the rules. */
static void check_stages(const plan *p, const clv_partition *part)
{
	const uint32_t *ends, *stage_of = part->node_stage;
	const clv_plan *staged = clv_partition_plan(part, &ends);
	uint32_t n = clv_partition_stage_count(part), first = 0;
	OK(plan_verify(staged));
	assert_int_equal(ends[n - 1], p->nodes.n);
	assert_int_equal(clv_plan_node_count(staged), p->nodes.n);
	for (uint32_t s = 0; s < n; first = ends[s++]) {
		uint32_t here = 0;
		for (uint32_t k = 0; k < p->nodes.n; k++)
			here += stage_of[k] == s;
		assert_true(here && ends[s] - first == here);
	}
}

static void random_plans_are_partitioned_or_refused(void **state)
{
	(void)state;
	uint32_t done = 0;
	for (uint64_t seed = 1; seed <= 400; seed++) {
		plan *p = random_plan(seed);
		clv_partition_options parts = devices(1 + (uint32_t)(seed % 3));
		clv_plan_partition_options o = options_of(&parts);
		clv_partition *part;
		o.keep_order = seed % 2;
		o.ties_together = seed % 5 == 0;
		clv_status st = clv_plan_partition(p, &o, &part);
		if (st == CLV_OK) {
			check_stages(p, part);
			clv_partition_free(part);
			done += parts.k > 1;
		} else if (st != CLV_E_INVALID && st != CLV_E_OVERFLOW && st != CLV_E_INPUT && st != CLV_E_UNSUPPORTED) {
			fail_msg("seed %d: status %d, %s", (int)seed, st, status_message());
		}
		plan_free(p);
	}
	assert_true(done > 20);
}

/* ---- memory that ends --------------------------------------------------------------------------------------------------- */

static clv_status try_all(const plan *p, const clv_plan_partition_options *o)
{
	clv_partition *part;
	char *text;
	TRY(clv_plan_partition(p, o, &part));
	clv_status st = clv_partition_graph_json(part, &text);
	if (st == CLV_OK) {
		clv_free(text);
		st = clv_partition_table(part, &text);
	}
	if (st == CLV_OK) {
		clv_free(text);
		st = clv_partition_json(part, &text);
	}
	if (st == CLV_OK)
		clv_free(text);
	clv_partition_free(part);
	return st;
}

static void sweep(const plan *p, const clv_plan_partition_options *o)
{
	bool waits = false;
	for (uint64_t n = 1; !waits; n++) {
		mem_fail_after(n);
		clv_status st = try_all(p, o);
		waits = mem_fail_waits();
		mem_fail_after(0);
		if (st != (waits ? CLV_OK : CLV_E_NOMEM))
			fail_msg("allocation %d: status %d, %s", (int)n, st, status_message());
	}
}

static void every_allocation_may_fail(void **state)
{
	(void)state;
	plan *p = load_ok(layers);
	clv_partition_options parts = devices(2);
	clv_plan_partition_options o = options_of(&parts);
	sweep(p, &o);
	o.profile = PROFILE("", ROWS);
	o.profile_size = strlen(o.profile);
	sweep(p, &o);
	plan_free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_plan_comes_back_stage_by_stage),
		cmocka_unit_test(modules_may_stay_whole),
		cmocka_unit_test(sizes_and_speeds_make_the_estimate),
		cmocka_unit_test(a_profile_says_what_blocks_take),
		cmocka_unit_test(the_graph_is_written_and_read_again),
		cmocka_unit_test(bad_arguments_are_refused),
		cmocka_unit_test(names_do_not_steer_a_terminal),
		cmocka_unit_test(random_plans_are_partitioned_or_refused),
		cmocka_unit_test(every_allocation_may_fail),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
