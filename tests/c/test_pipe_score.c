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
		uint32_t k = 1 + random_below(&r, 4), n = k + random_below(&r, 8), order[16];
		pipe_graph g = random_graph(&r, n, 2, 4);
		pipe_device devices[4];
		double bandwidth[16];
		for (uint32_t d = 0; d < k; d++)
			devices[d] =
				(pipe_device){1 + random_below(&r, 3), random_below(&r, 2) ? 0 : 4000 + random_below(&r, 20000)};
		for (uint32_t i = 0; i < k * k; i++)
			bandwidth[i] = 1e6 * (1 + random_below(&r, 20));
		pipe_problem pr = problem_of(&g, devices, k);
		pr.bandwidth = random_below(&r, 2) ? bandwidth : NULL;
		pr.latency_us = random_below(&r, 10);
		pr.schedule = (pipe_schedule)random_below(&r, SCHEDULE_COUNT);
		pr.training = random_below(&r, 4) > 0;
		pipe_partition p, all;
		pipe_score score;
		OK(order_new(&g, ORDER_GIVEN, order));
		OK(chain_cut(&pr, order, &p));
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

static void every_method_gives_stages_in_order_on_all_devices(void **state)
{
	(void)state;
	pipe_random r = {11};
	for (int round = 0; round < 200; round++) {
		uint32_t k = 1 + random_below(&r, 5), n = k + random_below(&r, 60);
		pipe_graph g = random_graph(&r, n, 1 + random_below(&r, 3), 1 + random_below(&r, 12));
		pipe_device devices[5] = {{1, 0}, {1, 0}, {1, 0}, {1, 0}, {1, 0}};
		pipe_problem pr = problem_of(&g, devices, k);
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
		uint32_t k = 1 + random_below(&r, 4), n = k + random_below(&r, 40), of[64];
		pipe_graph g = random_graph(&r, n, 2, 6);
		pipe_device devices[4] = {{1, 0}, {1, 0}, {1, 0}, {1, 0}};
		pipe_problem pr = problem_of(&g, devices, k);
		for (uint32_t i = 0; i < n; i++)
			of[i] = random_below(&r, k);
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
	                                   cmocka_unit_test(every_method_gives_stages_in_order_on_all_devices),
	                                   cmocka_unit_test(any_choice_of_devices_becomes_stages_in_order)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
