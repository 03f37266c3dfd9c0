/* Scores of partitions against examples that were reckoned by hand. */
#include "pipes.h"

static void times_of_devices_are_sums_of_their_nodes(void **state)
{
	(void)state;
	pipe_graph g = read_graph("{\"nodes\":[{\"id\":1,\"fwd_us\":1,\"bwd_us\":2,\"out_bytes\":10},"
	                          "{\"id\":2,\"fwd_us\":3,\"bwd_us\":4,\"out_bytes\":20},"
	                          "{\"id\":3,\"fwd_us\":5,\"bwd_us\":6}],\"edges\":[[1,2],[2,3],[1,3]]}");
	pipe_device devices[2] = {{1, 0}, {1, 0}};
	pipe_problem pr = problem_of(&g, devices, 2);
	pipe_partition p;
	pipe_score score;
	OK(pipe_partition_run(&pr, "pipedream", &p, &score));
	assert_true(score.bottleneck_us == 11);
	assert_true(score.lower_bound_us == 11);
	assert_true(score.cut_bytes == 30);
	assert_true(score.relay_bytes == 0);
	assert_true(score.stages[0].out_bytes == 30 && score.stages[1].in_bytes == 30);
	score_free(&score);
	partition_free(&p);
	graph_free(&g);
}

/* ---- examples reckoned by hand ---------------------------------------------------------------------------------------- */

/* Five nodes 0 → 1 → 2 → 3 → 4, one each in stages on devices 0 1 2 1 0; 0 is also read by 3, 1 leaves the model, and an
   input of 7 bytes is read by 0 and by 2. */
static pipe_graph relayed_graph(void)
{
	pipe_graph g = {0};
	for (uint32_t i = 0; i < 5; i++)
		OK(vec_push(&g.nodes, ((pipe_node){.id = i,
		                                   .name = "",
		                                   .fwd_us = 10 * (i + 1),
		                                   .bwd_us = 1,
		                                   .param_bytes = 100,
		                                   .held_bytes = 10,
		                                   .work_bytes = i})));
	const uint32_t uses[] = {1, 3, 2, 3, 4, 0, 2};
	for (size_t i = 0; i < sizeof uses / sizeof *uses; i++)
		OK(vec_push(&g.uses, uses[i]));
	OK(vec_push(&g.values, ((pipe_value){.from = 0, .uses = 0, .nuses = 2, .bytes = 1000, .grad = true})));
	OK(vec_push(&g.values,
	            ((pipe_value){.from = 1, .uses = 2, .nuses = 1, .bytes = 200, .grad = true, .leaves = true})));
	OK(vec_push(&g.values, ((pipe_value){.from = 2, .uses = 3, .nuses = 1, .bytes = 30})));
	OK(vec_push(&g.values, ((pipe_value){.from = 3, .uses = 4, .nuses = 1, .bytes = 4, .grad = true})));
	OK(vec_push(&g.values, ((pipe_value){.from = PIPE_NONE, .uses = 5, .nuses = 2, .bytes = 7})));
	OK(graph_finish(&g));
	return g;
}

static void bytes_are_counted_where_they_go(void **state)
{
	(void)state;
	pipe_graph g = relayed_graph();
	pipe_device devices[3] = {{1, 0}, {1, 0}, {1, 0}};
	pipe_problem pr = problem_of(&g, devices, 3);
	pipe_partition p;
	pipe_score score;
	OK(partition_new(&g, &p));
	p.nstages = 5;
	for (uint32_t n = 0; n < 5; n++) {
		p.stage_of[n] = n;
		p.device_of[n] = n < 3 ? n : 4 - n;
	}
	OK(score_new(&pr, &p, &score));
	/* over the borders: 1000+7, 1000+200+7, 1000+200+30, 200+4; gradients: without 7 and 30 */
	const int64_t in[] = {0, 1007, 1207, 1230, 204}, relayed[] = {0, 7, 1000, 200, 0},
				  grad[] = {1000, 1200, 1200, 204, 0};
	for (uint32_t s = 0; s < 5; s++) {
		assert_int_equal(score.stages[s].in_bytes, in[s]);
		assert_int_equal(score.stages[s].out_bytes, s < 4 ? in[s + 1] : 0);
		assert_int_equal(score.stages[s].relayed_bytes, relayed[s]);
		assert_int_equal(score.stages[s].grad_bytes, grad[s]);
		assert_int_equal(score.stages[s].in_flight, s == 0 ? 4 : 5 - s);
		assert_int_equal(score.stages[s].memory_bytes, 200 + 10 * score.stages[s].in_flight + s);
	}
	assert_true(score.cut_bytes == 2000 + 200 + 30 + 4 + 7);
	assert_true(score.relay_bytes == 1000 + 2 * 200 + 7);
	assert_true(score.device_us[0] == 62 && score.device_us[1] == 62 && score.device_us[2] == 31);
	assert_int_equal(score.device_bytes[0], 400 + 40 + 10 + 4);
	assert_true(score.lower_bound_us == 155.0 / 3);
	score_free(&score);
	partition_free(&p);
	graph_free(&g);
}

static void recomputing_keeps_inputs_and_runs_the_forward_twice(void **state)
{
	(void)state;
	pipe_graph g = relayed_graph();
	pipe_device devices[2] = {{1, 0}, {2, 0}};
	pipe_problem pr = problem_of(&g, devices, 2);
	pipe_partition p;
	pipe_score score;
	pr.recompute = true;
	pr.schedule = SCHEDULE_GPIPE;
	OK(partition_new(&g, &p));
	p.nstages = 2;
	for (uint32_t n = 0; n < 5; n++)
		p.stage_of[n] = n >= 2;
	p.device_of[1] = 1;
	OK(score_new(&pr, &p, &score));
	assert_true(score.stages[0].fwd_us == 30 && score.stages[0].bwd_us == 32);
	assert_true(score.stages[1].fwd_us == 60 && score.stages[1].bwd_us == 61.5);
	/* the first keeps the input, the second that and what it reads of the first; one stage's own is there while it runs */
	assert_int_equal(score.stages[0].memory_bytes, 2 * 200 + 4 * 7 + 20 + 1);
	assert_int_equal(score.stages[1].memory_bytes, 2 * 300 + 4 * (1000 + 200 + 7) + 30 + 4);
	assert_true(score.lower_bound_us == fmax((300 + 5) / 3.0, 101 / 2.0));
	score_free(&score);
	pr.training = false;
	OK(score_new(&pr, &p, &score));
	assert_true(score.bottleneck_us == 60 && score.stages[1].bwd_us == 0);
	assert_int_equal(score.stages[0].memory_bytes, 2 * 200 + 10 + 1);
	score_free(&score);
	partition_free(&p);
	graph_free(&g);
}

/* ---- cuts of a chain --------------------------------------------------------------------------------------------------- */

/* The best of all cuts of the chain as it is numbered, by trying each, with the score as the judge. */
static double best_cut(const pipe_problem *pr, pipe_partition *p, uint32_t stage, uint32_t from)
{
	uint32_t n = pr->g->nodes.n;
	double best = INFINITY;
	if (stage + 1 == pr->k) {
		pipe_score score;
		for (uint32_t i = from; i < n; i++)
			p->stage_of[i] = stage;
		OK(score_new(pr, p, &score));
		best = score.over_bytes > 0 ? INFINITY : score.bottleneck_us;
		score_free(&score);
		return best;
	}
	for (uint32_t end = from + 1; end + (pr->k - stage - 1) <= n; end++) {
		p->stage_of[end - 1] = stage;
		best = fmin(best, best_cut(pr, p, stage + 1, end));
	}
	return best;
}

static void the_cut_of_a_chain_is_the_best_one(void **state)
{
	(void)state;
	pipe_random r = {7};
	for (int round = 0; round < 300; round++) {
		uint32_t k = 1 + pipe_random_below(&r, 4), n = k + pipe_random_below(&r, 8), order[16];
		pipe_graph g = random_graph(&r, n, 2, 4);
		pipe_device devices[4];
		double bandwidth[16];
		for (uint32_t d = 0; d < k; d++)
			devices[d] = (pipe_device){1 + pipe_random_below(&r, 3),
			                           pipe_random_below(&r, 2) ? 0 : 4000 + pipe_random_below(&r, 20000)};
		for (uint32_t i = 0; i < k * k; i++)
			bandwidth[i] = 1e6 * (1 + pipe_random_below(&r, 20));
		pipe_problem pr = problem_of(&g, devices, k);
		pr.bandwidth = pipe_random_below(&r, 2) ? bandwidth : NULL;
		pr.latency_us = pipe_random_below(&r, 10);
		pr.schedule = (pipe_schedule)pipe_random_below(&r, SCHEDULE_COUNT);
		pr.training = pipe_random_below(&r, 4) > 0;
		pipe_partition p, all;
		pipe_score score;
		OK(order_new(&g, ORDER_GIVEN, order));
		OK(order_cut(&pr, order, &p));
		assert_partition(&pr, &p);
		OK(score_new(&pr, &p, &score));
		OK(partition_new(&g, &all));
		all.nstages = k;
		for (uint32_t d = 0; d < k; d++)
			all.device_of[d] = d;
		double best = best_cut(&pr, &all, 0, 0);
		if (isinf(best))
			assert_true(score.over_bytes > 0);
		else
			assert_float_equal(score.bottleneck_us, best, 1e-6);
		score_free(&score);
		partition_free(&p);
		partition_free(&all);
		graph_free(&g);
	}
}

/* Beyond the size at which few places are tried first. */
static void the_cut_of_a_long_chain_is_the_best_one(void **state)
{
	(void)state;
	pipe_random r = {9};
	for (int round = 0; round < 4; round++) {
		uint32_t n = 1100 + pipe_random_below(&r, 200), order[1300];
		pipe_graph g = random_graph(&r, n, 1, 1 + pipe_random_below(&r, 9));
		pipe_device devices[2] = {{1, 0}, {1 + pipe_random_below(&r, 2), 0}};
		double bandwidth[4] = {0, pow(10, 3 + round), pow(10, 2 + round), 0};
		pipe_problem pr = problem_of(&g, devices, 2);
		pr.bandwidth = bandwidth;
		pipe_partition p, all;
		pipe_score score;
		OK(order_new(&g, ORDER_GIVEN, order));
		OK(order_cut(&pr, order, &p));
		assert_partition(&pr, &p);
		OK(score_new(&pr, &p, &score));
		OK(partition_new(&g, &all));
		all.nstages = 2;
		all.device_of[1] = 1;
		assert_float_equal(score.bottleneck_us, best_cut(&pr, &all, 0, 0), 1e-6 * score.bottleneck_us);
		score_free(&score);
		partition_free(&p);
		partition_free(&all);
		graph_free(&g);
	}
}

static void orders_are_topological(void **state)
{
	(void)state;
	pipe_random r = {13};
	for (int round = 0; round < 50; round++) {
		uint32_t n = 1 + pipe_random_below(&r, 60), order[64], place[64];
		pipe_graph g = random_graph(&r, n, 2, 8);
		for (int kind = 0; kind < ORDER_COUNT; kind++) {
			memset(place, 0xFF, sizeof place);
			OK(order_new(&g, (pipe_order)kind, order));
			for (uint32_t i = 0; i < n; i++) {
				assert_true(place[order[i]] == PIPE_NONE);
				place[order[i]] = i;
				for (uint32_t j = g.pred_first[order[i]]; j < g.pred_first[order[i] + 1]; j++)
					assert_true(place[g.pred[j]] != PIPE_NONE);
			}
		}
		graph_free(&g);
	}
}

static void every_method_gives_stages_in_order_on_all_devices(void **state)
{
	(void)state;
	pipe_random r = {11};
	for (int round = 0; round < 8; round++) {
		uint32_t k = 1 + pipe_random_below(&r, 5), n = k + pipe_random_below(&r, 60);
		pipe_graph g = random_graph(&r, n, 1 + pipe_random_below(&r, 3), 1 + pipe_random_below(&r, 12));
		pipe_device devices[5] = {{1, 0}, {1, 0}, {1, 0}, {1, 0}, {1, 0}};
		pipe_problem pr = problem_of(&g, devices, k);
		pr.seconds = 0.05; /* rules hold whenever a search is stopped */
		for (size_t i = 0; method_name(i); i++) {
			pipe_partition p;
			pipe_score score;
			OK(pipe_partition_run(&pr, method_name(i), &p, &score));
			assert_partition(&pr, &p);
			double device_us[5] = {0}, slowest = 0;
			for (uint32_t x = 0; x < n; x++)
				device_us[p.device_of[p.stage_of[x]]] += g.nodes.at[x].fwd_us + g.nodes.at[x].bwd_us;
			for (uint32_t d = 0; d < k; d++)
				slowest = fmax(slowest, device_us[d]);
			assert_true(slowest == score.bottleneck_us);
			assert_true(score.bottleneck_us >= score.lower_bound_us * (1 - 1e-12));
			score_free(&score);
			partition_free(&p);
		}
		graph_free(&g);
	}
}

/* Devices at random: parts that wait for each other, which stages must not. */
static void any_choice_of_devices_becomes_stages_in_order(void **state)
{
	(void)state;
	pipe_random r = {3};
	for (int round = 0; round < 200; round++) {
		uint32_t k = 1 + pipe_random_below(&r, 4), n = k + pipe_random_below(&r, 40), of[64];
		pipe_graph g = random_graph(&r, n, 2, 6);
		pipe_device devices[4] = {{1, 0}, {1, 0}, {1, 0}, {1, 0}};
		pipe_problem pr = problem_of(&g, devices, k);
		for (uint32_t i = 0; i < n; i++)
			of[i] = pipe_random_below(&r, k);
		pipe_partition p;
		OK(partition_from_devices(&g, of, k, &p));
		assert_partition(&pr, &p);
		for (uint32_t i = 0; i < n; i++)
			assert_int_equal(p.device_of[p.stage_of[i]], of[i]);
		OK(partition_tidy(&pr, &p));
		assert_partition(&pr, &p);
		OK(partition_fill(&pr, &p));
		assert_partition(&pr, &p);
		partition_free(&p);
		graph_free(&g);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(times_of_devices_are_sums_of_their_nodes),
	                                   cmocka_unit_test(the_cut_of_a_chain_is_the_best_one),
	                                   cmocka_unit_test(bytes_are_counted_where_they_go),
	                                   cmocka_unit_test(recomputing_keeps_inputs_and_runs_the_forward_twice),
	                                   cmocka_unit_test(the_cut_of_a_long_chain_is_the_best_one),
	                                   cmocka_unit_test(orders_are_topological),
	                                   cmocka_unit_test(every_method_gives_stages_in_order_on_all_devices),
	                                   cmocka_unit_test(any_choice_of_devices_becomes_stages_in_order)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
