/* Every method on random problems with every option, and what it says of its result against a second judge, which is
   slow and as plain as the definitions are. */
#include "pipes.h"

#define MOST_K 5

typedef struct setting {
	pipe_graph g;
	pipe_device devices[MOST_K];
	double bandwidth[MOST_K * MOST_K];
	pipe_problem pr;
} setting;

static void make_graph(setting *x, pipe_random *r, uint32_t n)
{
	x->g = random_graph(r, n, pipe_random_below(r, 4), 1 + pipe_random_below(r, 8));
	for (uint32_t i = 0; i < n; i++)
		if (pipe_random_below(r, 5) == 0)
			x->g.nodes.at[i].fwd_us = pipe_random_below(r, 2) ? 0 : 1e6;
	for (uint32_t v = 0; v < x->g.values.n; v++)
		x->g.values.at[v].leaves = pipe_random_below(r, 6) == 0;
}

static void make_setting(setting *x, pipe_random *r)
{
	uint32_t k = 1 + pipe_random_below(r, MOST_K), n = k + pipe_random_below(r, 8);
	bool differ = pipe_random_below(r, 3) == 0, limited = pipe_random_below(r, 4) == 0;
	double link = pow(10, 2 + pipe_random_below(r, 8));
	make_graph(x, r, n);
	for (uint32_t d = 0; d < k; d++)
		x->devices[d] = (pipe_device){differ ? 0.5 + pipe_random_below(r, 4) : 1, limited ? 3000 * n : 0};
	for (uint32_t i = 0; i < k * k; i++)
		x->bandwidth[i] = link * (differ ? 1 + pipe_random_below(r, 9) : 1);
	x->pr = problem_of(&x->g, x->devices, k);
	x->pr.bandwidth = pipe_random_below(r, 2) ? x->bandwidth : NULL;
	x->pr.latency_us = pipe_random_below(r, 3) * 10;
	x->pr.schedule = (pipe_schedule)pipe_random_below(r, SCHEDULE_COUNT);
	x->pr.microbatches = 1 + pipe_random_below(r, 8);
	x->pr.recompute = pipe_random_below(r, 4) == 0;
	x->pr.training = pipe_random_below(r, 4) > 0;
	x->pr.max_stages = pipe_random_below(r, 3) ? 0 : k + pipe_random_below(r, 3);
	x->pr.goal = pipe_random_below(r, 4) ? GOAL_BOTTLENECK : pipe_random_below(r, 2) ? GOAL_THROUGHPUT : GOAL_SIMPLE;
	x->pr.seed = random_next(r);
}

/* ---- the second judge ---------------------------------------------------------------------------------------------- */

/* Whether the value is needed behind the border after stage s, and made before it. */
static bool crosses(const pipe_graph *g, const pipe_partition *p, const pipe_value *x, uint32_t s)
{
	if (x->from != PIPE_NONE && p->stage_of[x->from] > s)
		return false;
	bool needed = x->leaves;
	for (uint32_t i = 0; i < x->nuses; i++)
		needed = needed || p->stage_of[g->uses.at[x->uses + i]] > s;
	return needed;
}

static double border_us(const pipe_problem *pr, const pipe_partition *p, uint32_t s, bool back)
{
	if (s >= p->nstages - 1 || !pr->bandwidth) /* before the first stage s is the largest number there is */
		return 0;
	uint32_t from = p->device_of[back ? s + 1 : s], to = p->device_of[back ? s : s + 1];
	double bytes = 0;
	for (uint32_t v = 0; v < pr->g->values.n; v++) {
		const pipe_value *x = &pr->g->values.at[v];
		if ((x->grad || !back) && crosses(pr->g, p, x, s))
			bytes += (double)x->bytes;
	}
	return bytes > 0 ? bytes / pr->bandwidth[from * pr->k + to] * 1e6 + pr->latency_us : 0;
}

static double stage_us(const pipe_problem *pr, const pipe_partition *p, uint32_t s)
{
	double fwd = 0, bwd = 0, speed = pr->devices[p->device_of[s]].speed;
	for (uint32_t n = 0; n < pr->g->nodes.n; n++)
		if (p->stage_of[n] == s) {
			fwd += pr->g->nodes.at[n].fwd_us;
			bwd += pr->g->nodes.at[n].bwd_us + (pr->recompute ? pr->g->nodes.at[n].fwd_us : 0);
		}
	fwd = fmax(fwd / speed, fmax(border_us(pr, p, s - 1, false), border_us(pr, p, s, false)));
	bwd = fmax(bwd / speed, fmax(border_us(pr, p, s - 1, true), border_us(pr, p, s, true)));
	return pr->training ? fwd + bwd : fwd;
}

static double bottleneck(const pipe_problem *pr, const pipe_partition *p)
{
	double us[MOST_K] = {0}, most = 0;
	for (uint32_t s = 0; s < p->nstages; s++)
		us[p->device_of[s]] += stage_us(pr, p, s);
	for (uint32_t d = 0; d < pr->k; d++)
		most = fmax(most, us[d]);
	return most;
}

static double cut_bytes(const pipe_problem *pr, const pipe_partition *p)
{
	double sum = 0;
	for (uint32_t v = 0; v < pr->g->values.n; v++) {
		const pipe_value *x = &pr->g->values.at[v];
		for (uint32_t s = 0; s < p->nstages; s++) {
			bool reads = false;
			for (uint32_t i = 0; i < x->nuses; i++)
				reads = reads || p->stage_of[pr->g->uses.at[x->uses + i]] == s;
			sum += reads && s != p->stage_of[x->from] ? (double)x->bytes : 0;
		}
	}
	return sum;
}

/* ---- every result -------------------------------------------------------------------------------------------------- */

static void assert_result(const pipe_problem *pr, const pipe_partition *p, const pipe_score *score)
{
	uint32_t stages[MOST_K] = {0};
	double us = bottleneck(pr, p);
	assert_partition(pr, p);
	for (uint32_t s = 0; s < p->nstages; s++)
		stages[p->device_of[s]]++;
	for (uint32_t d = 0; d < pr->k; d++) {
		int64_t limit = pr->devices[d].memory_bytes;
		assert_true(stages[d] > 0);
		assert_true(limit == 0 || score->device_bytes[d] <= limit);
	}
	assert_true(!pr->max_stages || p->nstages <= pr->max_stages);
	assert_true(fabs(score->bottleneck_us - us) <= 1e-9 * us);
	assert_true(score->cut_bytes == cut_bytes(pr, p));
	assert_true(score->lower_bound_us <= score->bottleneck_us);
	assert_true(p->bound_us <= score->bottleneck_us * (1 + 1e-12));
	assert_true(!p->optimal || score->bottleneck_us <= fmax(p->bound_us, score->lower_bound_us) * (1 + 2e-9));
}

static void assert_same(const pipe_problem *pr, const char *method, const pipe_partition *p)
{
	pipe_partition again;
	pipe_score score;
	OK(pipe_partition_run(pr, method, &again, &score));
	assert_int_equal(again.nstages, p->nstages);
	assert_memory_equal(again.stage_of, p->stage_of, pr->g->nodes.n * sizeof *p->stage_of);
	assert_memory_equal(again.device_of, p->device_of, p->nstages * sizeof *p->device_of);
	partition_free(&again);
	score_free(&score);
}

/* Of one method; infinite where memory is too small, the only reason to refuse. */
static double run_method(const pipe_problem *pr, const char *method, bool twice)
{
	pipe_partition p;
	pipe_score score;
	clv_status st = pipe_partition_run(pr, method, &p, &score);
	if (st != CLV_OK) {
		if (!pr->devices[0].memory_bytes)
			fail_msg("%s: %s", method, status_message());
		assert_int_equal(st, CLV_E_UNSUPPORTED);
		return INFINITY;
	}
	assert_result(pr, &p, &score);
	if (twice)
		assert_same(pr, method, &p);
	double us = score.bottleneck_us;
	partition_free(&p);
	score_free(&score);
	return us;
}

static void every_method_says_what_is_so(void **state)
{
	(void)state;
	pipe_random r = {31};
	for (int round = 0; round < 20; round++) {
		setting x;
		double chain = 0;
		make_setting(&x, &r);
		for (size_t i = 0; method_name(i); i++) {
			const char *method = method_name(i);
			double us = run_method(&x.pr, method, round % 10 == 0);
			if (strcmp(method, "pipedream") == 0)
				chain = us;
			if (strcmp(method, "auto") == 0 && x.pr.goal == GOAL_BOTTLENECK)
				assert_true(us <= chain);
		}
		graph_free(&x.g);
	}
}

/* Times, bytes and links at the ends of what is taken: no sum is infinite or less than nothing. */
static void extreme_numbers_stay_numbers(void **state)
{
	(void)state;
	static const double links[] = {1e-100, 1, 1e300};
	const pipe_device devices[] = {{1e-100, 0}, {1e100, 0}};
	for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
		pipe_graph g = read_graph("{\"nodes\":[{\"id\":1,\"fwd_us\":1e199,\"out_bytes\":1000000000000000000},"
		                          "{\"id\":2,\"fwd_us\":0,\"bwd_us\":1e-300,\"param_bytes\":1000000000000000000},"
		                          "{\"id\":3,\"fwd_us\":1e199}],\"edges\":[[1,2],[2,3]]}");
		double bandwidth[4] = {links[i], links[i], links[i], links[i]};
		pipe_problem pr = problem_of(&g, devices, 2);
		pr.bandwidth = bandwidth;
		for (size_t m = 0; method_name(m); m++) {
			pipe_partition p;
			pipe_score score;
			OK(pipe_partition_run(&pr, method_name(m), &p, &score));
			assert_true(isfinite(score.bottleneck_us) && score.bottleneck_us >= score.lower_bound_us);
			assert_true(score.lower_bound_us >= 0);
			partition_free(&p);
			score_free(&score);
		}
		graph_free(&g);
	}
}

static void links_too_slow_to_reckon_with_are_refused(void **state)
{
	(void)state;
	const pipe_device devices[] = {{1, 0}, {1, 0}};
	const double bandwidth[4] = {1e-300, 1e-300, 1e-300, 1e-300};
	pipe_graph g = read_graph("{\"nodes\":[{\"id\":1,\"fwd_us\":1},{\"id\":2,\"fwd_us\":1}],\"edges\":[[1,2]]}");
	pipe_problem pr = problem_of(&g, devices, 2);
	pr.bandwidth = bandwidth;
	assert_int_equal(problem_check(&pr), CLV_E_INVALID);
	graph_free(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_method_says_what_is_so),
		cmocka_unit_test(extreme_numbers_stay_numbers),
		cmocka_unit_test(links_too_slow_to_reckon_with_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
