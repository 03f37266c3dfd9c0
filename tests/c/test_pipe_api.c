/* Partitions through the public functions: what they say, sizes of structs, bad arguments, memory that ends. */
#include "pipes.h"

#include "pipe/partition_object.h"

static const char *const chain =
	"{\"nodes\":[{\"id\":10,\"name\":\"a\",\"fwd_us\":1,\"bwd_us\":2,\"param_bytes\":100,\"out_bytes\":1000},"
	"{\"id\":20,\"name\":\"b\",\"fwd_us\":2,\"bwd_us\":4,\"param_bytes\":100,\"out_bytes\":1000},"
	"{\"id\":30,\"name\":\"c\",\"fwd_us\":3,\"bwd_us\":6,\"param_bytes\":100,\"out_bytes\":1000},"
	"{\"id\":40,\"name\":\"d\",\"fwd_us\":2,\"bwd_us\":4,\"param_bytes\":100,\"out_bytes\":1000}],"
	"\"edges\":[[10,20],[20,30],[30,40],[10,40]]}";

static clv_partition_options options_of(uint32_t k)
{
	clv_partition_options o = CLV_PARTITION_OPTIONS_INIT;
	o.method = "pipedream";
	o.k = k;
	return o;
}

static void a_partition_says_what_it_is(void **state)
{
	(void)state;
	clv_partition_options o = options_of(2);
	clv_partition *p;
	OK(clv_partition_graph(chain, strlen(chain), &o, &p));
	assert_int_equal(clv_partition_stage_count(p), 2);
	assert_int_equal(clv_partition_device_count(p), 2);
	assert_int_equal(p->g.nodes.n, 4);
	assert_int_equal(clv_partition_stage_device(p, 0), 0);
	assert_int_equal(clv_partition_stage_device(p, 1), 1);
	assert_int_equal(clv_partition_stage_device(p, 2), CLV_NONE);

	const stage_score *stage = &p->score.stages[1];
	assert_true(stage->device == 1 && stage->nodes == 2 && stage->fwd_us == 5 && stage->bwd_us == 10);
	assert_true(stage->in_bytes == 2000 && stage->out_bytes == 0 && stage->param_bytes == 200 && stage->in_flight == 1);
	assert_true(p->p.stage_of[1] == 0 && p->p.stage_of[2] == 1);
	assert_string_equal(p->g.nodes.at[2].name, "c");
	assert_true(p->score.bottleneck_us == 15 && p->score.lower_bound_us == 12);
	assert_true(p->score.cut_bytes == 2000 && p->score.relay_bytes == 0 && p->score.device_us[0] == 9);
	assert_true(p->timeline.makespan_us > 0 && p->timeline.fits && !p->p.optimal);
	assert_int_equal(p->timeline.first[1] - p->timeline.first[0], 16);
	const pipe_action *action = &p->timeline.actions[p->timeline.first[1] + 1];
	assert_true(action->kind == ACTION_BACKWARD && action->stage == 1 && action->microbatch == 0);
	assert_true(action->end_us > action->start_us);
	assert_string_equal(p->p.method, "pipedream");
	clv_partition_free(p);
}

static void methods_have_names(void **state)
{
	(void)state;
	uint32_t n = 0, pipedream = 0;
	for (; method_name(n); n++)
		pipedream += !strcmp(method_name(n), "pipedream");
	assert_int_equal(pipedream, 1);
}

static void devices_differ(void **state)
{
	(void)state;
	const double links[4] = {0, 1e9, 2e8, 0};
	pipe_graph g = read_graph(chain);
	pipe_device devices[2] = {{1, 0}, {3, 0}};
	pipe_problem pr = problem_of(&g, devices, 2);
	pipe_partition p;
	pipe_score score;
	pr.bandwidth = links;
	pr.latency_us = 0.5;
	OK(pipe_partition_run(&pr, "pipedream", &p, &score));
	/* a | b c d: 3 us against 7, 14 in all on the second; forward 1000 bytes in 1.5 us, back in 5.5 */
	assert_true(score.stages[0].nodes == 1);
	assert_float_equal(score.stages[0].comm_us, 0.5 + 3.5, 1e-9);
	assert_float_equal(score.stages[1].fwd_us, 7.0 / 3, 1e-9);
	assert_float_equal(score.stages[1].bwd_us, 14.0 / 3, 1e-9);
	assert_float_equal(score.stages[1].comm_us, 5.5 - 14.0 / 3, 1e-9);
	partition_free(&p);
	score_free(&score);
	graph_free(&g);
}

static void bad_arguments_are_refused(void **state)
{
	(void)state;
	clv_partition *p;
	clv_partition_options o = options_of(2);
	FAILS(clv_partition_graph(NULL, 0, &o, &p), CLV_E_INVALID, "needs a text");
	FAILS(clv_partition_graph(chain, strlen(chain), &o, NULL), CLV_E_INVALID, "a place");
	o.k = 0;
	FAILS(clv_partition_graph(chain, strlen(chain), &o, &p), CLV_E_INVALID, "the number of devices is 0");
	o.k = UINT32_MAX;
	FAILS(clv_partition_graph(chain, strlen(chain), &o, &p), CLV_E_INVALID, "the number of devices");
	o.k = 5;
	FAILS(clv_partition_graph(chain, strlen(chain), &o, &p), CLV_E_INVALID, "5 devices for a graph of 4 nodes");
	o.k = 2;
	o.schedule = "never";
	FAILS(clv_partition_graph(chain, strlen(chain), &o, &p), CLV_E_NOT_FOUND, "there is no schedule \"never\"");
	o.schedule = NULL;
	o.bandwidth = -1;
	FAILS(clv_partition_graph(chain, strlen(chain), &o, &p), CLV_E_INVALID, "bandwidth");
	o.bandwidth = 0;
	o.size = sizeof o + 8;
	FAILS(clv_partition_graph(chain, strlen(chain), &o, &p), CLV_E_INVALID, "clv_partition_options.size");
	char *text;
	FAILS(clv_partition_table(NULL, &text), CLV_E_INVALID, "a partition");
	clv_partition_free(NULL);
	assert_int_equal(clv_partition_stage_count(NULL), 0);
}

static void many_actions_are_not_laid_out(void **state)
{
	(void)state;
	char big[4000] = "{\"nodes\":[", *at = big + strlen(big);
	for (int i = 0; i < 130; i++)
		at += sprintf(at, "%s{\"id\":%d,\"fwd_us\":1}", i ? "," : "", i);
	strcpy(at, "],\"edges\":[]}");
	clv_partition_options o = options_of(130);
	clv_partition *p;
	char *text;
	o.microbatches = 65536;
	OK(clv_partition_graph(big, strlen(big), &o, &p));
	assert_null(p->timeline.first);
	FAILS(clv_partition_timeline(p, &text), CLV_E_OVERFLOW, "too many to lay out");
	OK(clv_partition_table(p, &text));
	clv_free(text);
	OK(clv_partition_json(p, &text));
	clv_free(text);
	clv_partition_free(p);
}

/* ---- memory that ends --------------------------------------------------------------------------------------------------- */

static clv_status try_texts(const clv_partition *p)
{
	char *text;
	TRY(clv_partition_table(p, &text));
	clv_free(text);
	TRY(clv_partition_json(p, &text));
	clv_free(text);
	TRY(clv_partition_timeline(p, &text));
	clv_free(text);
	return CLV_OK;
}

static clv_status try_all(const char *method)
{
	const int64_t limits[3] = {1 << 20, 1 << 20, 1 << 20};
	clv_partition_options o = options_of(3);
	clv_partition *p;
	o.method = method;
	o.memory_limits = limits;
	o.bandwidth = 1e9;
	TRY(clv_partition_graph(chain, strlen(chain), &o, &p));
	clv_status st = try_texts(p);
	clv_partition_free(p);
	return st;
}

static void every_allocation_may_fail(void **state)
{
	(void)state;
	for (uint32_t method = 0; method_name(method); method++) {
		bool waits = false;
		for (uint64_t n = 1; !waits; n++) {
			mem_fail_after(n);
			clv_status st = try_all(method_name(method));
			waits = mem_fail_waits();
			mem_fail_after(0);
			if (st != (waits ? CLV_OK : CLV_E_NOMEM))
				fail_msg("%s, allocation %d: status %d, %s", method_name(method), (int)n, st, status_message());
		}
	}
}

/* A partition that leaves a device empty is filled, and that may fail too. */
static clv_status try_fill(const pipe_problem *pr)
{
	pipe_partition p;
	TRY(partition_new(pr->g, &p));
	clv_status st = partition_fill(pr, &p);
	if (st == CLV_OK)
		assert_int_equal(p.nstages, 3);
	partition_free(&p);
	return st;
}

static void filling_may_fail_too(void **state)
{
	(void)state;
	pipe_graph g = read_graph(chain);
	pipe_device devices[3] = {{1, 0}, {1, 0}, {1, 0}};
	pipe_problem pr = problem_of(&g, devices, 3);
	bool waits = false;
	for (uint64_t n = 1; !waits; n++) {
		mem_fail_after(n);
		clv_status st = try_fill(&pr);
		waits = mem_fail_waits();
		mem_fail_after(0);
		assert_int_equal(st, waits ? CLV_OK : CLV_E_NOMEM);
	}
	graph_free(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_partition_says_what_it_is),
		cmocka_unit_test(methods_have_names),
		cmocka_unit_test(devices_differ),
		cmocka_unit_test(bad_arguments_are_refused),
		cmocka_unit_test(many_actions_are_not_laid_out),
		cmocka_unit_test(every_allocation_may_fail),
		cmocka_unit_test(filling_may_fail_too),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
