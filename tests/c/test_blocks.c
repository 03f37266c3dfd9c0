/* Blocks: what a pipeline may be cut between. One test for each rule of src/pipe/blocks.c. */
#include "pipes.h"

#include "pipe/blocks.h"
#include "split/order.h"

#define HEAD "cleave-plan 1\nmodel \"Net\"\n"

/* Blocks as text: their names in order, with a space between. */
static void folds_with(const char *text, const blocks_spec *s, const char *want)
{
	plan *p = load_ok(text);
	blocks b = {0};
	OK(blocks_new(p, s, &b));
	strbuf out = STRBUF_INIT;
	for (uint32_t i = 0; i < b.at.n; i++)
		strbuf_printf(&out, "%s%s", i ? " " : "", b.at.at[i].name);
	char *names = taken(&out);
	if (strcmp(names, want) != 0)
		fail_msg("\"%s\" instead of \"%s\" of\n%s", names, want, text);
	mem_free(names);
	blocks_free(&b);
	plan_free(p);
}

static void folds(const char *text, const char *want)
{
	folds_with(text, &(blocks_spec){.depth = 1000}, want);
}

/* ---- layers and operators ---------------------------------------------------------------------------------------------- */

static const char *const deep = HEAD "scope \"\" \"Net\"\n"
									 "scope body \"Body\"\n"
									 "scope body.a \"Linear\"\n"
									 "scope body.b \"Linear\"\n"
									 "scope head \"Linear\"\n"
									 "input %x f32[2,2]\n"
									 "%1 = aten::mm(%x, %x) -> f32[2,2] in body.a\n"
									 "%2 = aten::relu(%1) -> f32[2,2] in body.a\n"
									 "%3 = aten::sin(%2) -> f32[2,2] in body\n"
									 "%4 = aten::cos(%3) -> f32[2,2] in body.b\n"
									 "%5 = aten::mm(%4, %4) -> f32[2,2] in head\n"
									 "%6 = aten::tan(%5) -> f32[2,2] in \"\"\n"
									 "%7 = aten::mm(%6, %6) -> f32[2,2] in body.a\n"
									 "output %7\n";

static void a_layer_is_a_block_and_so_is_an_operator_between_layers(void **state)
{
	(void)state;
	folds(deep, "body.a sin body.b head tan body.a:2");
}

static void modules_are_not_opened_below_the_depth(void **state)
{
	(void)state;
	folds_with(deep, &(blocks_spec){.depth = 1}, "body head tan body:2");
	folds_with(deep, &(blocks_spec){.depth = 2}, "body.a sin body.b head tan body.a:2");
}

static void modules_that_are_wanted_whole_are_not_opened(void **state)
{
	(void)state;
	static const char *const by_class[] = {"Body"}, *const by_path[] = {"body"}, *const none[] = {"other"};
	folds_with(deep, &(blocks_spec){.depth = 1000, .whole = by_class, .nwhole = 1}, "body head tan body:2");
	folds_with(deep, &(blocks_spec){.depth = 1000, .whole = by_path, .nwhole = 1}, "body head tan body:2");
	folds_with(deep, &(blocks_spec){.depth = 1000, .whole = none, .nwhole = 1}, "body.a sin body.b head tan body.a:2");
}

static void a_plan_without_modules_is_cut_between_operators(void **state)
{
	(void)state;
	folds(HEAD "input %x f32[1]\n%1 = a::b(%x) -> f32[1]\n%2 = a::c(%1) -> f32[1]\noutput %2\n", "b c");
	folds(HEAD "input %x f32[1]\noutput %x\n", "");
}

/* ---- what stays together ---------------------------------------------------------------------------------------------- */

static void what_cannot_cross_stays_with_who_needs_it(void **state)
{
	(void)state;
	folds(HEAD "input %x f32[2]\n"
	           "%1 = aten::a(%x) -> f32[2]\n"
	           "%2 = aten::item(%1) -> float {host}\n"
	           "%3 = aten::b(%1) -> f32[2]\n"
	           "%4 = aten::mul(%3, %2) -> f32[2]\n"
	           "%5 = aten::c(%4) -> f32[2]\n"
	           "output %5\n",
	      "a item+b+mul c");
}

static void memory_stays_together_up_to_its_last_write(void **state)
{
	(void)state;
	folds(HEAD "input %x f32[2]\n"
	           "%1 = aten::a(%x) -> f32[2]\n"
	           "%2 = aten::b(%1) -> f32[2]\n"
	           "%3 = aten::relu_(%1) -> f32[2] view-of %1 writes %1\n"
	           "%4 = aten::c(%3) -> f32[2]\n"
	           "%5 = aten::d(%4, %2) -> f32[2]\n"
	           "output %5\n",
	      "a+b+relu_ c d");
}

static void the_models_tensor_that_is_written_has_one_place(void **state)
{
	(void)state;
	folds(HEAD "input %x f32[2]\n"
	           "buffer @n f32[2]\n"
	           "%1 = aten::a(%x) -> f32[2]\n"
	           "%2 = aten::b_(@n, %1) -> f32[2] view-of @n writes @n\n"
	           "%3 = aten::c(%1) -> f32[2]\n"
	           "%4 = aten::d(%3, @n) -> f32[2]\n"
	           "%5 = aten::e(%4) -> f32[2]\n"
	           "output %5\n",
	      "a c b_+d e");
}

static void a_tensor_that_is_re_bound_has_one_place(void **state)
{
	(void)state;
	folds(HEAD "input %x f32[2]\n"
	           "buffer @n f32[2]\n"
	           "%1 = aten::a(%x) -> f32[2]\n"
	           "%2 = aten::b(%1, @n) -> f32[2]\n"
	           "%3 = aten::c(%1) -> f32[2]\n"
	           "%4 = aten::d(%2) -> f32[2]\n"
	           "%5 = aten::e(%3, %4) -> f32[2]\n"
	           "rebind @n = %4\n"
	           "output %5\n",
	      "a b+d c e");
}

static void who_writes_an_input_is_in_the_first_stage(void **state)
{
	(void)state;
	folds(HEAD "input %x f32[2]\n"
	           "input %y f32[2]\n"
	           "%1 = aten::a(%y) -> f32[2]\n"
	           "%2 = aten::b(%1) -> f32[2]\n"
	           "%3 = aten::relu_(%x) -> f32[2] view-of %x writes %x\n"
	           "%4 = aten::c(%2) -> f32[2]\n"
	           "%5 = aten::d(%4, %3) -> f32[2]\n"
	           "output %5\n",
	      "a+b+relu_ c d");
}

static const char *const tied = HEAD "input %x f32[2]\n"
									 "param @w f32[2] trainable\n"
									 "%1 = aten::a(%x, @w) -> f32[2] grad\n"
									 "%2 = aten::b(%1) -> f32[2] grad\n"
									 "%3 = aten::c(%2, @w) -> f32[2] grad\n"
									 "%4 = aten::d(%3) -> f32[2] grad\n"
									 "output %4\n";

static void a_shared_parameter_keeps_its_users_together_if_that_is_wanted(void **state)
{
	(void)state;
	folds(tied, "a b c d");
	folds_with(tied, &(blocks_spec){.depth = 1000, .ties_together = true}, "a+b+c d");
}

/* ---- order ------------------------------------------------------------------------------------------------------------ */

static bool has_edge(const blocks *b, uint32_t from, uint32_t to)
{
	for (uint32_t e = 0; e < b->edges.n; e++)
		if (b->edges.at[e].from == from && b->edges.at[e].to == to)
			return true;
	return false;
}

static void users_of_what_takes_gradients_stay_in_order(void **state)
{
	(void)state;
	static const char *const text = HEAD "input %x f32[2]\n"
										 "param @w f32[2] trainable\n"
										 "%1 = aten::a(@w) -> f32[2] grad\n"
										 "%2 = aten::b(%1) -> f32[2] grad\n"
										 "%3 = aten::c(%1) -> f32[2] grad\n"
										 "%4 = aten::d(%x) -> f32[2]\n"
										 "%5 = aten::e(%x) -> f32[2]\n"
										 "output (%2, %3, %4, %5)\n";
	plan *p = load_ok(text);
	blocks b;
	OK(blocks_new(p, &(blocks_spec){.depth = 1000}, &b));
	assert_int_equal(b.at.n, 5);
	assert_true(has_edge(&b, 1, 2));
	assert_false(has_edge(&b, 3, 4));
	assert_false(has_edge(&b, 2, 3));
	blocks_free(&b);
	OK(blocks_new(p, &(blocks_spec){.depth = 1000, .keep_order = true}, &b));
	for (uint32_t i = 1; i < b.at.n; i++)
		assert_true(has_edge(&b, i - 1, i));
	blocks_free(&b);
	plan_free(p);
}

static void random_numbers_stay_in_order(void **state)
{
	(void)state;
	plan *p = load_ok(HEAD "input %x f32[2]\n"
	                       "%1 = aten::rand(%x) -> f32[2] {random}\n"
	                       "%2 = aten::b(%x) -> f32[2]\n"
	                       "%3 = aten::rand(%2) -> f32[2] {random}\n"
	                       "output (%1, %3)\n");
	blocks b;
	OK(blocks_new(p, &(blocks_spec){.depth = 1000}, &b));
	assert_int_equal(b.at.n, 3);
	assert_true(has_edge(&b, 0, 2));
	assert_false(has_edge(&b, 0, 1));
	blocks_free(&b);
	plan_free(p);
}

/* ---- plans of stages -------------------------------------------------------------------------------------------------- */

static const char *const branches = HEAD "input %x f32[2]\n"
										 "%1 = aten::a(%x) -> f32[2]\n"
										 "%2 = aten::b(%x) -> f32[2]\n"
										 "%3 = aten::c(%1) -> f32[2]\n"
										 "%4 = aten::d(%2) -> f32[2]\n"
										 "%5 = aten::e(%3, %4) -> f32[2]\n"
										 "output %5\n";

static void a_plan_is_brought_into_the_order_of_its_stages(void **state)
{
	(void)state;
	plan *p = load_ok(branches), *q = NULL;
	node_id ends[3];
	OK(stages_plan(p, (uint32_t[]){0, 1, 0, 1, 2}, 3, &q, ends));
	assert_int_equal(ends[0], 2);
	assert_int_equal(ends[1], 4);
	assert_int_equal(ends[2], 5);
	char *text = print_ok(q);
	const char *last = text;
	static const char *const order[] = {"aten::a", "aten::c", "aten::b", "aten::d", "aten::e"};
	for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
		const char *at = strstr(text, order[i]);
		assert_true(at && at > last);
		last = at;
	}
	mem_free(text);
	plan_free(q);
	plan_free(p);
}

/* Uses of an input, and writes of buffers that it may share memory with, in runs of `run` nodes each. */
static plan *uses_and_writes(uint32_t runs, uint32_t run)
{
	strbuf b = STRBUF_INIT;
	uint32_t n = 0;
	strbuf_puts(&b, "cleave-plan 1\nmodel \"m\"\ninput %0 f32[2]\n");
	for (uint32_t i = 0; i < run; i++)
		strbuf_printf(&b, "buffer @b%u f32[2]\n", i);
	for (uint32_t r = 0; r < runs; r++)
		for (uint32_t i = 0; i < run; i++, n++)
			strbuf_printf(&b,
			              r % 2 ? "%%n%u = aten::relu_(@b%u) -> f32[2] view-of @b%u writes @b%u\n"
			                    : "%%n%u = aten::relu(%%0) -> f32[2]\n",
			              n, i, i, i);
	strbuf_puts(&b, "output %0\n");
	char *text = taken(&b);
	plan *p = load_ok(text);
	mem_free(text);
	return p;
}

static void uses_and_writes_of_what_may_be_one_keep_their_order(void **state)
{
	(void)state;
	for (uint32_t run = 1; run < 100; run += 33) {
		order_pairs pairs = {0};
		plan *p = uses_and_writes(6, run);
		uint32_t n = p->nodes.n;
		bool *before = mem_alloc((size_t)n * n);
		OK(order_of_effects(p, &pairs));
		assert_true(pairs.n < 40 * n);
		for (node_id k = 0; k < n; k++) /* pairs are ascending in what comes after */
			for (uint32_t i = 0; i < pairs.n; i++)
				for (node_id a = 0; pairs.at[i].after == k && a < k; a++)
					before[k * n + a] |= a == pairs.at[i].before || before[pairs.at[i].before * n + a];
		for (node_id k = 0; k < n; k++)
			for (node_id a = 0; a < k; a++)
				assert_true(before[k * n + a] || (a / run) % 2 == (k / run) % 2);
		mem_free(before);
		vec_free(&pairs);
		plan_free(p);
	}
}

static void stages_that_read_what_comes_later_are_refused(void **state)
{
	(void)state;
	plan *p = load_ok(branches), *q = NULL;
	node_id ends[2];
	assert_int_not_equal(stages_plan(p, (uint32_t[]){1, 0, 0, 0, 1}, 2, &q, ends), CLV_OK);
	FAILS(stages_plan(p, (uint32_t[]){0, 0, 0, 0, 7}, 2, &q, ends), CLV_E_INVALID, "stage 7 of 2");
	assert_null(q);
	plan_free(p);
}

static void a_boundary_that_is_not_safe_is_named(void **state)
{
	(void)state;
	plan *p = load_ok(HEAD "input %x f32[2]\n"
	                       "%1 = aten::a(%x) -> f32[2]\n"
	                       "%2 = aten::item(%1) -> float {host}\n"
	                       "%3 = aten::mul(%1, %2) -> f32[2]\n"
	                       "output %3\n");
	plan *q = NULL;
	node_id ends[2];
	FAILS(stages_plan(p, (uint32_t[]){0, 0, 1}, 2, &q, ends), CLV_E_UNSUPPORTED, "between stages 0 and 1, after item");
	OK(stages_plan(p, (uint32_t[]){0, 1, 1}, 2, &q, ends));
	plan_free(q);
	plan_free(p);
}

static void empty_stages_are_nothing(void **state)
{
	(void)state;
	plan *p = load_ok(branches), *q = NULL;
	node_id ends[4];
	OK(stages_plan(p, (uint32_t[]){1, 1, 1, 1, 1}, 4, &q, ends));
	assert_int_equal(ends[0], 0);
	assert_int_equal(ends[1], 5);
	assert_int_equal(ends[3], 5);
	plan_free(q);
	plan_free(p);
}

static void another_plan_of_the_model_gets_the_same_stages(void **state)
{
	(void)state;
	plan *from = load_ok(branches);
	plan *to = load_ok(HEAD "input %x f32[2]\n"
	                        "%1 = aten::a(%x) -> f32[2]\n"
	                        "%2 = aten::b(%x) -> f32[2]\n"
	                        "%3 = aten::c(%1) -> f32[2]\n"
	                        "%4 = aten::d(%2) -> f32[2]\n"
	                        "%5 = aten::new(%4) -> f32[2]\n"
	                        "%6 = aten::e(%3, %5) -> f32[2]\n"
	                        "output %6\n");
	blocks b;
	uint32_t out[6];
	OK(blocks_new(to, &(blocks_spec){.depth = 1000}, &b));
	OK(stages_match(from, (uint32_t[]){0, 0, 0, 1, 2}, &b, out));
	static const uint32_t want[] = {0, 0, 0, 1, 1, 2}; /* what is new goes where what it reads is */
	for (uint32_t i = 0; i < 6; i++)
		assert_int_equal(out[i], want[i]);
	blocks_free(&b);
	plan_free(from);
	plan_free(to);
}

/* ---- the graph, and no memory ----------------------------------------------------------------------------------------- */

static void the_graph_has_a_node_for_each_block_and_the_bytes_between(void **state)
{
	(void)state;
	plan *p = load_ok(branches);
	blocks b;
	OK(blocks_new(p, &(blocks_spec){.depth = 1000}, &b));
	block_cost costs[5] = {{.fwd_us = 1}, {.fwd_us = 2}, {.fwd_us = 3}, {.fwd_us = 4}, {.fwd_us = 5}};
	pipe_graph g;
	OK(blocks_graph(&b, costs, &g));
	assert_int_equal(g.nodes.n, 5);
	for (uint32_t i = 0; i < 5; i++) {
		assert_string_equal(g.nodes.at[i].name, b.at.at[i].name);
		assert_true(g.nodes.at[i].fwd_us == i + 1);
	}
	for (uint32_t i = 0; i < g.values.n; i++)
		assert_int_equal(g.values.at[i].bytes, 8);
	graph_free(&g);
	blocks_free(&b);
	plan_free(p);
}

static clv_status fold_all(const void *ctx)
{
	const plan *p = ctx;
	blocks b = {0};
	pipe_graph g = {0};
	plan *q = NULL, *staged = NULL;
	block_cost costs[16] = {{0}};
	node_id ends[16];
	uint32_t stage_of[16] = {0};
	clv_status st = blocks_new(p, &(blocks_spec){.depth = 1000, .ties_together = true}, &b);
	if (st == CLV_OK)
		st = blocks_graph(&b, costs, &g);
	if (st == CLV_OK)
		st = blocks_plan(&b, &q, ends);
	if (st == CLV_OK)
		st = stages_match(p, stage_of, &b, stage_of);
	if (st == CLV_OK)
		st = stages_plan(p, stage_of, 2, &staged, ends);
	graph_free(&g);
	blocks_free(&b);
	plan_free(q);
	plan_free(staged);
	return st;
}

static void every_failed_allocation_is_an_error(void **state)
{
	(void)state;
	static const char *const texts[] = {deep, tied, branches};
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		plan *p = load_ok(texts[i]);
		assert_true(sweep_faults(fold_all, p, CLV_OK) > 20);
		plan_free(p);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_layer_is_a_block_and_so_is_an_operator_between_layers),
		cmocka_unit_test(modules_are_not_opened_below_the_depth),
		cmocka_unit_test(modules_that_are_wanted_whole_are_not_opened),
		cmocka_unit_test(a_plan_without_modules_is_cut_between_operators),
		cmocka_unit_test(what_cannot_cross_stays_with_who_needs_it),
		cmocka_unit_test(memory_stays_together_up_to_its_last_write),
		cmocka_unit_test(the_models_tensor_that_is_written_has_one_place),
		cmocka_unit_test(a_tensor_that_is_re_bound_has_one_place),
		cmocka_unit_test(who_writes_an_input_is_in_the_first_stage),
		cmocka_unit_test(a_shared_parameter_keeps_its_users_together_if_that_is_wanted),
		cmocka_unit_test(users_of_what_takes_gradients_stay_in_order),
		cmocka_unit_test(random_numbers_stay_in_order),
		cmocka_unit_test(a_plan_is_brought_into_the_order_of_its_stages),
		cmocka_unit_test(uses_and_writes_of_what_may_be_one_keep_their_order),
		cmocka_unit_test(stages_that_read_what_comes_later_are_refused),
		cmocka_unit_test(a_boundary_that_is_not_safe_is_named),
		cmocka_unit_test(empty_stages_are_nothing),
		cmocka_unit_test(another_plan_of_the_model_gets_the_same_stages),
		cmocka_unit_test(the_graph_has_a_node_for_each_block_and_the_bytes_between),
		cmocka_unit_test(every_failed_allocation_is_an_error),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
