/* Methods with mixed placements: metis, mpipe, auto, and the refinement that they share. */
#include "pipes.h"

#include <pthread.h>
#include <unistd.h>

#include "pipe/polish.h"

enum { MOST_K = 6 };

typedef struct example {
	pipe_graph g;
	pipe_device devices[MOST_K];
	double bandwidth[MOST_K * MOST_K];
	pipe_problem pr;
} example;

/* A random problem with everything that a problem can have. */
static void example_make(pipe_random *r, uint32_t nodes, example *e)
{
	uint32_t k = 1 + pipe_random_below(r, MOST_K), n = k + pipe_random_below(r, nodes);
	e->g = random_graph(r, n, 1 + pipe_random_below(r, 3), 2 + pipe_random_below(r, 8));
	for (uint32_t d = 0; d < k; d++)
		e->devices[d] = (pipe_device){pipe_random_below(r, 3) ? 1 : 1 + pipe_random_below(r, 3), 0};
	for (uint32_t i = 0; i < k * k; i++)
		e->bandwidth[i] = 1e6 * (1 + pipe_random_below(r, 20));
	e->pr = problem_of(&e->g, e->devices, k);
	e->pr.bandwidth = pipe_random_below(r, 2) ? e->bandwidth : NULL;
	e->pr.latency_us = pipe_random_below(r, 10);
	e->pr.schedule = (pipe_schedule)pipe_random_below(r, SCHEDULE_COUNT);
	e->pr.recompute = pipe_random_below(r, 4) == 0;
	e->pr.training = pipe_random_below(r, 4) > 0;
	e->pr.max_stages = pipe_random_below(r, 2) ? 0 : k + pipe_random_below(r, 3);
	e->pr.seed = pipe_random_below(r, 100);
	e->pr.seconds = 1e-9; /* one attempt of each kind: tests are many */
}

static bool without_metis(void)
{
	pipe_graph g = read_graph("{\"nodes\":[{\"id\":1,\"fwd_us\":1}],\"edges\":[]}");
	pipe_device device = {1, 0};
	pipe_problem pr = problem_of(&g, &device, 1);
	pipe_partition p = {0};
	clv_status st = pipe_metis(&pr, &p);
	if (st != CLV_OK)
		check_error(st, CLV_E_UNSUPPORTED, "libmetis-dev");
	partition_free(&p);
	graph_free(&g);
	return st != CLV_OK;
}

static void assert_whole(const pipe_problem *pr, const pipe_partition *p)
{
	bool used[MOST_K] = {0};
	assert_partition(pr, p);
	for (uint32_t s = 0; s < p->nstages; s++)
		used[p->device_of[s]] = true;
	for (uint32_t d = 0; d < pr->k; d++)
		assert_true(used[d]);
	assert_true(pr->max_stages == 0 || p->nstages <= pr->max_stages);
}

static void every_node_gets_a_stage_and_every_device_too(void **state)
{
	(void)state;
	static const char *const names[] = {"metis", "mpipe", "auto"};
	pipe_random r = {1};
	for (int round = 0; round < 40; round++)
		for (size_t i = without_metis(); i < 3; i++) {
			example e;
			pipe_partition p;
			pipe_score score;
			example_make(&r, 20, &e);
			OK(pipe_partition_run(&e.pr, names[i], &p, &score));
			assert_whole(&e.pr, &p);
			assert_true(score.bottleneck_us >= score.lower_bound_us * (1 - 1e-9));
			partition_free(&p);
			score_free(&score);
			graph_free(&e.g);
		}
}

static void auto_is_never_worse_than_the_chain(void **state)
{
	(void)state;
	pipe_random r = {2};
	for (int round = 0; round < 300; round++) {
		example e;
		pipe_partition chain, best;
		pipe_score chain_score, best_score;
		example_make(&r, 10, &e);
		if (round % 30 == 0)
			e.pr.seconds = 0; /* all that it can do */
		for (uint32_t d = 0; round % 3 == 0 && d < e.pr.k; d++)
			e.devices[d].memory_bytes = 40000;
		clv_status st = pipe_partition_run(&e.pr, "pipedream", &chain, &chain_score);
		if (st == CLV_OK) {
			OK(pipe_partition_run(&e.pr, "auto", &best, &best_score));
			assert_false(score_better(&chain_score, chain.nstages, &best_score, best.nstages));
			assert_non_null(best.method);
			assert_string_not_equal(best.method, "auto");
			partition_free(&chain);
			partition_free(&best);
			score_free(&chain_score);
			score_free(&best_score);
		}
		graph_free(&e.g);
	}
}

/* ---- small cases that are known ---------------------------------------------------------------------------------- */

static pipe_graph chain_of(const double *us, uint32_t n)
{
	pipe_graph g = {0};
	for (uint32_t i = 0; i < n; i++) {
		uint32_t next = i + 1;
		pipe_value v = {.from = i, .uses = g.uses.n, .nuses = next < n, .bytes = 8};
		OK(vec_push(&g.nodes, ((pipe_node){.id = i, .name = "", .fwd_us = us[i]})));
		if (next < n)
			OK(vec_push(&g.uses, next));
		OK(vec_push(&g.values, v));
	}
	OK(graph_finish(&g));
	return g;
}

static double bottleneck(const pipe_problem *pr, const char *method, uint32_t *stages)
{
	pipe_partition p;
	pipe_score score;
	OK(pipe_partition_run(pr, method, &p, &score));
	assert_whole(pr, &p);
	double us = score.bottleneck_us;
	*stages = p.nstages;
	partition_free(&p);
	score_free(&score);
	return us;
}

static void a_device_gets_two_stages_where_that_is_better(void **state)
{
	(void)state;
	const double us[] = {3, 5, 2};
	pipe_graph g = chain_of(us, 3);
	pipe_device devices[2] = {{1, 0}, {1, 0}};
	pipe_problem pr = problem_of(&g, devices, 2);
	uint32_t stages;
	assert_true(bottleneck(&pr, "mpipe", &stages) == 5);
	assert_int_equal(stages, 3);
	assert_true(bottleneck(&pr, "auto", &stages) == 5);
	assert_int_equal(stages, 3);
	pr.max_stages = 2;
	assert_true(bottleneck(&pr, "mpipe", &stages) == 7);
	assert_true(bottleneck(&pr, "auto", &stages) == 7);
	graph_free(&g);
}

static void few_stages_stay_few_where_they_are_as_good(void **state)
{
	(void)state;
	const double us[] = {1, 2, 1, 4, 3, 1, 2, 2};
	pipe_graph g = chain_of(us, 8);
	pipe_device devices[4] = {{1, 0}, {1, 0}, {1, 0}, {1, 0}};
	pipe_problem pr = problem_of(&g, devices, 4);
	uint32_t stages;
	assert_true(bottleneck(&pr, "mpipe", &stages) == 4);
	assert_int_equal(stages, 4);
	assert_true(bottleneck(&pr, "auto", &stages) == 4);
	assert_int_equal(stages, 4);
	graph_free(&g);
}

static void work_goes_by_the_speed_of_devices(void **state)
{
	(void)state;
	const double us[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
	pipe_graph g = chain_of(us, 12);
	pipe_device devices[2] = {{1, 0}, {3, 0}};
	pipe_problem pr = problem_of(&g, devices, 2);
	uint32_t stages;
	assert_true(fabs(bottleneck(&pr, "mpipe", &stages) - 3) < 1e-9);
	assert_int_equal(stages, 2);
	if (!without_metis())
		assert_true(fabs(bottleneck(&pr, "metis", &stages) - 3) < 1e-9);
	graph_free(&g);
}

/* Nodes with the same time but all parameters in the first half: by time alone one device has them all. */
static void memory_counts_more_than_time(void **state)
{
	(void)state;
	const double us[] = {1, 1, 1, 1, 1, 1, 1, 1};
	pipe_graph g = chain_of(us, 8);
	for (uint32_t n = 0; n < 8; n++)
		g.nodes.at[n].param_bytes = n < 4 ? 1000 : 10;
	pipe_device devices[2] = {{1, 5000}, {1, 5000}};
	pipe_problem pr = problem_of(&g, devices, 2);
	static const char *const names[] = {"metis", "mpipe", "auto"};
	for (size_t i = without_metis(); i < 3; i++) {
		uint32_t stages;
		bottleneck(&pr, names[i], &stages); /* a run that is over a limit fails */
	}
	pr.devices = (const pipe_device[]){{1, 2000}, {1, 2000}};
	for (size_t i = without_metis(); i < 3; i++) {
		pipe_partition p;
		pipe_score score;
		FAILS(pipe_partition_run(&pr, names[i], &p, &score), CLV_E_UNSUPPORTED, "fit");
	}
	graph_free(&g);
}

static void graphs_without_time_or_edges_are_partitioned(void **state)
{
	(void)state;
	static const char *const names[] = {"metis", "mpipe", "auto"};
	for (uint32_t n = 1; n < 10; n++)
		for (uint32_t k = 1; k <= n && k <= MOST_K; k++)
			for (size_t i = without_metis(); i < 3; i++) {
				pipe_graph g = {0};
				pipe_device devices[MOST_K] = {{1, 0}, {1, 0}, {1, 0}, {1, 0}, {1, 0}, {1, 0}};
				for (uint32_t x = 0; x < n; x++)
					OK(vec_push(&g.nodes, ((pipe_node){.id = x, .name = ""})));
				OK(graph_finish(&g));
				pipe_problem pr = problem_of(&g, devices, k);
				uint32_t stages;
				assert_true(bottleneck(&pr, names[i], &stages) == 0);
				assert_int_equal(stages, k);
				graph_free(&g);
			}
}

/* ---- METIS is a guest -------------------------------------------------------------------------------------------- */

static void metis_prints_nothing_and_leaves_rand_alone(void **state)
{
	(void)state;
	if (without_metis())
		skip();
	pipe_random r = {3};
	fflush(stdout);
	FILE *caught = tmpfile();
	int before = dup(STDOUT_FILENO);
	assert_non_null(caught);
	dup2(fileno(caught), STDOUT_FILENO);
	srand(5);
	int first = rand();
	srand(5);
	for (int round = 0; round < 100; round++) {
		uint32_t k = 2 + pipe_random_below(&r, MOST_K - 1), n = k + pipe_random_below(&r, round % 25 ? 20 : 400);
		pipe_device devices[MOST_K] = {{1, 0}, {1, 0}, {1, 0}, {1, 0}, {1, 0}, {1, 0}};
		pipe_graph g = random_graph(&r, n, 1 + pipe_random_below(&r, 2), 1 + pipe_random_below(&r, 4));
		for (uint32_t i = 0; i < n && round % 2; i++) /* few nodes have all of the time */
			g.nodes.at[i].fwd_us *= pipe_random_below(&r, 10) ? 0 : 1000;
		pipe_problem pr = problem_of(&g, devices, k);
		pipe_partition p = {0};
		pr.seconds = 1e-9;
		pr.seed = random_next(&r);
		assert_int_equal(pipe_metis(&pr, &p), CLV_OK);
		assert_true(p.raw_balance >= 1 - 1e-9);
		partition_free(&p);
		graph_free(&g);
	}
	int after = rand();
	fflush(stdout);
	dup2(before, STDOUT_FILENO);
	close(before);
	fseek(caught, 0, SEEK_END);
	assert_int_equal(ftell(caught), 0);
	fclose(caught);
	assert_int_equal(after, first);
}

/* ---- seeds and threads ------------------------------------------------------------------------------------------- */

typedef struct thread_run {
	const pipe_problem *pr;
	const char *method;
	pipe_partition p;
	clv_status st;
} thread_run;

static void *thread_main(void *arg)
{
	thread_run *t = arg;
	pipe_score score;
	t->st = pipe_partition_run(t->pr, t->method, &t->p, &score);
	if (t->st == CLV_OK)
		score_free(&score);
	return NULL;
}

static void assert_same(const pipe_graph *g, const pipe_partition *a, const pipe_partition *b)
{
	assert_int_equal(a->nstages, b->nstages);
	assert_memory_equal(a->stage_of, b->stage_of, g->nodes.n * sizeof *a->stage_of);
	assert_memory_equal(a->device_of, b->device_of, a->nstages * sizeof *a->device_of);
}

static void a_seed_gives_one_result_also_in_two_threads(void **state)
{
	(void)state;
	static const char *const names[] = {"metis", "mpipe", "auto"};
	pipe_random r = {4};
	pipe_graph g = random_graph(&r, 40, 2, 6);
	pipe_device devices[4] = {{1, 0}, {1, 0}, {2, 0}, {1, 0}};
	pipe_problem pr = problem_of(&g, devices, 4);
	pr.seed = 17;
	pr.seconds = 1e-9; /* one attempt */
	for (size_t i = without_metis(); i < 3; i++) {
		thread_run runs[3] = {{&pr, names[i]}, {&pr, names[i]}, {&pr, names[i]}};
		pthread_t threads[2];
		thread_main(&runs[0]);
		for (int t = 0; t < 2; t++)
			assert_int_equal(pthread_create(&threads[t], NULL, thread_main, &runs[t + 1]), 0);
		for (int t = 0; t < 2; t++)
			pthread_join(threads[t], NULL);
		for (int t = 0; t < 3; t++) {
			OK(runs[t].st);
			assert_same(&g, &runs[0].p, &runs[t].p);
		}
		for (int t = 0; t < 3; t++)
			partition_free(&runs[t].p);
	}
	graph_free(&g);
}

/* ---- what they share --------------------------------------------------------------------------------------------- */

/* Nodes as numbered, in stages of random length on random devices. */
static void random_stages(pipe_random *r, const pipe_problem *pr, uint32_t most, pipe_partition *p)
{
	OK(partition_new(pr->g, p));
	for (uint32_t n = 0; n < pr->g->nodes.n; n++) {
		if (n > 0 && p->nstages < most && pipe_random_below(r, 4) == 0)
			p->nstages++;
		p->stage_of[n] = p->nstages - 1;
	}
	for (uint32_t s = 0; s < p->nstages; s++)
		p->device_of[s] = pipe_random_below(r, pr->k);
}

static void polishing_makes_nothing_worse(void **state)
{
	(void)state;
	pipe_random r = {5};
	for (int round = 0; round < 200; round++) {
		example e;
		pipe_partition p;
		pipe_score before, after;
		polisher *po = NULL;
		example_make(&r, 20, &e);
		for (uint32_t d = 0; round % 2 && d < e.pr.k; d++)
			e.devices[d].memory_bytes = 5000 + pipe_random_below(&r, 40000);
		OK(polisher_new(&e.pr, &po));
		random_stages(&r, &e.pr, 12, &p);
		OK(score_new(&e.pr, &p, &before));
		OK(polish(po, &p, &(polish_effort){2000, 0.5, 7}));
		OK(score_new(&e.pr, &p, &after));
		assert_partition(&e.pr, &p);
		double reached = fmax(before.bottleneck_us, before.lower_bound_us * (1 + POLISH_REACHED));
		assert_true(after.over_bytes <= before.over_bytes);
		assert_true(after.over_bytes < before.over_bytes || after.bottleneck_us <= reached * (1 + 1e-8));
		score_free(&before);
		score_free(&after);
		partition_free(&p);
		polisher_free(po);
		graph_free(&e.g);
	}
}

static void stages_are_joined_down_to_a_limit(void **state)
{
	(void)state;
	pipe_random r = {6};
	for (int round = 0; round < 200; round++) {
		example e;
		pipe_partition p;
		example_make(&r, 20, &e);
		random_stages(&r, &e.pr, 30, &p);
		uint32_t before = p.nstages, limit = 1 + pipe_random_below(&r, 12);
		OK(stages_join(&e.pr, &p, limit));
		assert_int_equal(p.nstages, before < limit ? before : limit);
		OK(stages_place(&e.pr, &p));
		OK(partition_tidy(&e.pr, &p));
		assert_partition(&e.pr, &p);
		partition_free(&p);
		graph_free(&e.g);
	}
}

/* ---- memory that ends -------------------------------------------------------------------------------------------- */

static clv_status run_method(const void *ctx)
{
	const thread_run *t = ctx;
	pipe_partition p;
	pipe_score score;
	TRY(pipe_partition_run(t->pr, t->method, &p, &score));
	partition_free(&p);
	score_free(&score);
	return CLV_OK;
}

static void every_allocation_may_fail(void **state)
{
	(void)state;
	static const char *const names[] = {"metis", "mpipe", "auto"};
	const double even[] = {1, 1, 1, 1}, uneven[] = {3, 5, 2};
	for (int u = 0; u < 2; u++) {
		pipe_graph g = chain_of(u ? uneven : even, u ? 3 : 4);
		pipe_device devices[2] = {{1, 0}, {1, 0}};
		pipe_problem pr = problem_of(&g, devices, 2);
		pr.seconds = u ? 1e-9 : 0;
		/* without METIS auto hears its refusal, and does not mind when there is no memory for the words */
		for (size_t i = without_metis(); i < (without_metis() ? 2 : 3); i++)
			assert_in_range(sweep_faults(run_method, &(thread_run){&pr, names[i]}, CLV_OK), 10, 3000);
		graph_free(&g);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_node_gets_a_stage_and_every_device_too),
		cmocka_unit_test(auto_is_never_worse_than_the_chain),
		cmocka_unit_test(a_device_gets_two_stages_where_that_is_better),
		cmocka_unit_test(few_stages_stay_few_where_they_are_as_good),
		cmocka_unit_test(work_goes_by_the_speed_of_devices),
		cmocka_unit_test(memory_counts_more_than_time),
		cmocka_unit_test(graphs_without_time_or_edges_are_partitioned),
		cmocka_unit_test(metis_prints_nothing_and_leaves_rand_alone),
		cmocka_unit_test(a_seed_gives_one_result_also_in_two_threads),
		cmocka_unit_test(polishing_makes_nothing_worse),
		cmocka_unit_test(stages_are_joined_down_to_a_limit),
		cmocka_unit_test(every_allocation_may_fail),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
