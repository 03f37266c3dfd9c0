/* The methods that search: exact against all partitions there are, and what holds for every result of every
   method. */
#include "pipes.h"
#include "pipe/chain.h"

#define MOST_K 4

/* ---- all chains ---------------------------------------------------------------------------------------------- */

typedef struct all_chains {
	const pipe_problem *pr;
	pipe_partition p;
	double best; /* of those that fit; INFINITY: none does */
} all_chains;

static void score_chain(all_chains *a)
{
	pipe_score score;
	OK(score_new(a->pr, &a->p, &score));
	if (score.over_bytes == 0)
		a->best = fmin(a->best, score.bottleneck_us);
	score_free(&score);
}

/* Node n and those behind it into every stage that they can be in; `used` has a bit for each stage that has a
   node. */
static void put_from(all_chains *a, uint32_t n, uint32_t used)
{
	const pipe_graph *g = a->pr->g;
	uint32_t low = 0;
	if (n == g->nodes.n) {
		if (used + 1 == 1u << a->pr->k)
			score_chain(a);
		return;
	}
	for (uint32_t e = g->pred_first[n]; e < g->pred_first[n + 1]; e++)
		low = a->p.stage_of[g->pred[e]] > low ? a->p.stage_of[g->pred[e]] : low;
	for (uint32_t s = low; s < a->pr->k; s++) {
		a->p.stage_of[n] = s;
		put_from(a, n + 1, used | 1u << s);
	}
}

/* Over every order of the devices from place `from` on. */
static void permute(all_chains *a, uint32_t from, bool orders)
{
	if (from == a->pr->k || !orders) {
		put_from(a, 0, 0);
		return;
	}
	for (uint32_t i = from; i < a->pr->k; i++) {
		uint32_t *d = a->p.device_of, was = d[from];
		d[from] = d[i];
		d[i] = was;
		permute(a, from + 1, orders);
		d[i] = d[from];
		d[from] = was;
	}
}

static double best_chain(const pipe_problem *pr, bool orders)
{
	all_chains a = {.pr = pr, .best = INFINITY};
	OK(partition_new(pr->g, &a.p));
	a.p.nstages = pr->k;
	for (uint32_t d = 0; d < pr->k; d++)
		a.p.device_of[d] = d;
	permute(&a, 0, orders);
	partition_free(&a.p);
	return a.best;
}

/* ---- problems ------------------------------------------------------------------------------------------------ */

typedef struct setting {
	pipe_graph g;
	pipe_device devices[MOST_K];
	double bandwidth[MOST_K * MOST_K];
	pipe_problem pr;
} setting;

static void make_setting(setting *x, pipe_random *r, uint32_t k, uint32_t n)
{
	x->g = random_graph(r, n, 1 + pipe_random_below(r, 3), 1 + pipe_random_below(r, 5));
	for (uint32_t i = 0; i < n; i++) /* some that take no time, some that leave */
		if (pipe_random_below(r, 4) == 0)
			x->g.nodes.at[i].fwd_us = x->g.nodes.at[i].bwd_us = 0;
	for (uint32_t v = 0; v < x->g.values.n; v++)
		x->g.values.at[v].leaves = pipe_random_below(r, 5) == 0;
	for (uint32_t d = 0; d < MOST_K; d++)
		x->devices[d] = (pipe_device){1, 0};
	for (uint32_t i = 0; i < MOST_K * MOST_K; i++)
		x->bandwidth[i] = 2e6;
	x->pr = problem_of(&x->g, x->devices, k);
	x->pr.max_stages = k;
	x->pr.seed = random_next(r);
	x->pr.schedule = (pipe_schedule)pipe_random_below(r, SCHEDULE_COUNT);
	x->pr.training = pipe_random_below(r, 4) > 0;
	x->pr.recompute = pipe_random_below(r, 4) == 0;
}

static double bottleneck_of(const pipe_problem *pr, pipe_method method, pipe_partition *p)
{
	pipe_score score;
	OK(method(pr, p));
	OK(partition_tidy(pr, p));
	assert_partition(pr, p);
	OK(score_new(pr, p, &score));
	double us = score.over_bytes > 0 ? INFINITY : score.bottleneck_us;
	score_free(&score);
	return us;
}

static void assert_close(double a, double b)
{
	if (!(fabs(a - b) <= 2e-9 * fabs(b)))
		fail_msg("%.17g is not %.17g", a, b);
}

static void exact_is_the_best_of_all_chains_by_time(void **state)
{
	(void)state;
	pipe_random r = {21};
	for (int round = 0; round < 400; round++) {
		uint32_t k = 1 + pipe_random_below(&r, 3), n = k + pipe_random_below(&r, 6);
		setting x;
		make_setting(&x, &r, k, n);
		for (uint32_t d = 0; d < k && round % 2; d++)
			x.devices[d].speed = 1 + pipe_random_below(&r, 3);
		pipe_partition p;
		double us = bottleneck_of(&x.pr, pipe_exact, &p), best = best_chain(&x.pr, true);
		assert_close(us, best);
		assert_true(p.optimal);
		assert_close(p.bound_us, best);
		assert_int_equal(p.nstages, k);
		partition_free(&p);
		graph_free(&x.g);
	}
}

static void exact_is_the_best_of_all_chains_with_links_and_memory(void **state)
{
	(void)state;
	pipe_random r = {22};
	for (int round = 0; round < 400; round++) {
		uint32_t k = 1 + pipe_random_below(&r, 3), n = k + pipe_random_below(&r, 6);
		bool differ = round % 3 == 0;
		setting x;
		make_setting(&x, &r, k, n);
		x.pr.bandwidth = round % 4 ? x.bandwidth : NULL;
		x.pr.latency_us = pipe_random_below(&r, 20);
		for (uint32_t i = 0; i < k * k; i++)
			x.bandwidth[i] = (differ ? 1 + pipe_random_below(&r, 20) : 4) * 1e6;
		for (uint32_t d = 0; d < k; d++)
			x.devices[d] = (pipe_device){differ ? 1 + pipe_random_below(&r, 2) : 1, round % 4 == 0 ? 9000 : 0};
		if (round % 4 == 0)
			x.pr.recompute = false; /* what such a stage holds is only bounded by the search */
		pipe_partition p;
		double us = bottleneck_of(&x.pr, pipe_exact, &p), best = best_chain(&x.pr, false);
		if (isinf(best))
			assert_true(isinf(us) || differ);
		else if (!differ)
			assert_close(us, best);
		assert_true(isinf(best) || us <= best * (1 + 2e-9));
		if (p.optimal)
			assert_close(p.bound_us, us);
		assert_true(isinf(us) || p.bound_us <= us * (1 + 1e-12));
		if (!isinf(best) && !differ)
			assert_true(p.optimal);
		if (differ && !isinf(us)) /* k is small: all orders are looked at */
			assert_true(p.optimal && p.bound_us <= best_chain(&x.pr, true) * (1 + 2e-9));
		partition_free(&p);
		graph_free(&x.g);
	}
}

/* ---- every result -------------------------------------------------------------------------------------------- */

static const pipe_method searches[] = {pipe_acyclic, pipe_multilevel, pipe_exact};
#define SEARCHES (sizeof searches / sizeof *searches)

static void assert_all_devices_used(const pipe_problem *pr, const pipe_partition *p)
{
	for (uint32_t d = 0; d < pr->k; d++) {
		bool used = false;
		for (uint32_t s = 0; s < p->nstages; s++)
			used = used || p->device_of[s] == d;
		assert_true(used);
	}
}

static void a_seed_gives_one_result_that_uses_all_devices(void **state)
{
	(void)state;
	pipe_random r = {23};
	for (int round = 0; round < 6; round++) {
		uint32_t k = 1 + pipe_random_below(&r, MOST_K), n = k + pipe_random_below(&r, 20);
		setting x;
		make_setting(&x, &r, k, n);
		x.pr.bandwidth = round % 3 == 0 ? x.bandwidth : NULL;
		x.devices[0].memory_bytes = round % 5 == 0 ? 20000 : 0;
		x.pr.max_stages = round % 2 ? k : 0;
		for (size_t i = 0; i < SEARCHES; i++) {
			pipe_partition p, again;
			double us = bottleneck_of(&x.pr, searches[i], &p);
			assert_true(bottleneck_of(&x.pr, searches[i], &again) == us);
			assert_int_equal(p.nstages, again.nstages);
			assert_memory_equal(p.stage_of, again.stage_of, n * sizeof *p.stage_of);
			assert_memory_equal(p.device_of, again.device_of, p.nstages * sizeof *p.device_of);
			assert_all_devices_used(&x.pr, &p);
			assert_true(!x.pr.max_stages || p.nstages <= x.pr.max_stages);
			assert_true(i == SEARCHES - 1 || p.nstages == k);
			partition_free(&p);
			partition_free(&again);
		}
		graph_free(&x.g);
	}
}

static void exact_is_never_worse_than_the_others(void **state)
{
	(void)state;
	pipe_random r = {24};
	for (int round = 0; round < 6; round++) {
		uint32_t k = 2 + pipe_random_below(&r, MOST_K - 1), n = k + pipe_random_below(&r, 90);
		setting x;
		make_setting(&x, &r, k, n);
		x.pr.bandwidth = round % 2 ? x.bandwidth : NULL;
		pipe_partition p, other;
		double us = bottleneck_of(&x.pr, pipe_exact, &p);
		static const pipe_method others[] = {pipe_pipedream, pipe_acyclic, pipe_multilevel};
		for (size_t i = 0; i < 3; i++) {
			assert_true(us <= bottleneck_of(&x.pr, others[i], &other) * (1 + 2e-9));
			partition_free(&other);
		}
		partition_free(&p);
		graph_free(&x.g);
	}
}

/* A chain of equal nodes with a heavy one among them. */
static void easy_graphs_are_solved_by_all(void **state)
{
	(void)state;
	strbuf b = STRBUF_INIT;
	strbuf_puts(&b, "{\"nodes\":[");
	for (int i = 0; i < 300; i++)
		strbuf_printf(&b, "%s{\"id\":%d,\"fwd_us\":%d,\"out_bytes\":8}", i ? "," : "", i, i == 100 ? 101 : 1);
	strbuf_puts(&b, "],\"edges\":[");
	for (int i = 1; i < 300; i++)
		strbuf_printf(&b, "%s[%d,%d]", i > 1 ? "," : "", i - 1, i);
	strbuf_puts(&b, "]}");
	char *text = taken(&b);
	pipe_graph g = read_graph(text);
	pipe_device devices[MOST_K] = {{1, 0}, {1, 0}, {1, 0}, {1, 0}};
	pipe_problem pr = problem_of(&g, devices, MOST_K);
	for (size_t i = 0; i < SEARCHES; i++) {
		pipe_partition p;
		assert_close(bottleneck_of(&pr, searches[i], &p), 101);
		partition_free(&p);
	}
	graph_free(&g);
	mem_free(text);
}

/* A heavy node between two light ones: in a chain one of these goes with it, in a mixed pipe both go together. */
static void a_mixed_pipe_is_found_where_the_chain_cannot_be_balanced(void **state)
{
	(void)state;
	pipe_graph g =
		read_graph("{\"nodes\":[{\"id\":0,\"fwd_us\":30,\"out_bytes\":1},{\"id\":1,\"fwd_us\":60,\"out_bytes\":1},"
	               "{\"id\":2,\"fwd_us\":30,\"out_bytes\":1}],\"edges\":[[0,1],[1,2]]}");
	pipe_device devices[2] = {{1, 0}, {1, 0}};
	pipe_problem pr = problem_of(&g, devices, 2);
	pipe_partition p;
	assert_close(bottleneck_of(&pr, pipe_exact, &p), 60);
	assert_int_equal(p.nstages, 3);
	assert_true(p.optimal);
	partition_free(&p);
	pr.max_stages = 2;
	assert_close(bottleneck_of(&pr, pipe_exact, &p), 90);
	assert_true(p.optimal && p.nstages == 2);
	partition_free(&p);
	graph_free(&g);
}

static void a_time_limit_ends_the_search_with_a_result(void **state)
{
	(void)state;
	pipe_random r = {25};
	setting x;
	make_setting(&x, &r, 4, 400);
	x.pr.seconds = 1e-6;
	for (size_t i = 0; i < SEARCHES; i++) {
		pipe_partition p;
		bottleneck_of(&x.pr, searches[i], &p);
		assert_true(p.stopped);
		partition_free(&p);
	}
	graph_free(&x.g);
}

/* ---- faults -------------------------------------------------------------------------------------------------- */

typedef struct attempt_of {
	const pipe_problem *pr;
	pipe_method method;
} attempt_of;

static clv_status attempt(const void *ctx)
{
	const attempt_of *a = ctx;
	pipe_partition p;
	TRY(a->method(a->pr, &p));
	partition_free(&p);
	return CLV_OK;
}

static void every_allocation_may_fail(void **state)
{
	(void)state;
	pipe_random r = {26};
	for (int round = 0; round < 2; round++) {
		setting x;
		make_setting(&x, &r, 2, round ? 5 : 52);
		x.pr.max_stages = 0;
		x.pr.bandwidth = round ? x.bandwidth : NULL;
		for (uint32_t n = 0; n < x.g.nodes.n && !round; n++) /* balanced at once */
			x.g.nodes.at[n].fwd_us = x.g.nodes.at[n].bwd_us = 1;
		for (size_t i = round ? 2 : 0; i < (round ? SEARCHES : 2); i++)
			assert_true(sweep_faults(attempt, &(attempt_of){&x.pr, searches[i]}, CLV_OK) > 5);
		graph_free(&x.g);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(exact_is_the_best_of_all_chains_by_time),
		cmocka_unit_test(exact_is_the_best_of_all_chains_with_links_and_memory),
		cmocka_unit_test(a_seed_gives_one_result_that_uses_all_devices),
		cmocka_unit_test(exact_is_never_worse_than_the_others),
		cmocka_unit_test(easy_graphs_are_solved_by_all),
		cmocka_unit_test(a_mixed_pipe_is_found_where_the_chain_cannot_be_balanced),
		cmocka_unit_test(a_time_limit_ends_the_search_with_a_result),
		cmocka_unit_test(every_allocation_may_fail),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
