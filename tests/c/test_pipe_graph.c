/* Graphs as JSON: what is read, how nodes are put in order, and what is said about each kind of bad text. */
#include "pipes.h"

static void refuses(const char *text, clv_status st, const char *part)
{
	pipe_graph g;
	FAILS(graph_read(text, strlen(text), &g), st, part);
	assert_null(g.nodes.at);
}

#define NODES                                                                                                          \
	"{\"nodes\":[{\"id\":1,\"name\":\"a\",\"fwd_us\":1},{\"id\":2,\"name\":\"b\",\"fwd_us\":1},{\"id\":3,\"fwd_us\":"  \
	"1}]"

static void a_graph_is_read(void **state)
{
	(void)state;
	pipe_graph g =
		read_graph("{\"more\":[],\"nodes\":[{\"id\":7,\"name\":\"x\",\"fwd_us\":1.5,\"bwd_us\":2,\"param_bytes\":3,"
	               "\"out_bytes\":4,\"else\":null},{\"id\":-1,\"fwd_us\":0,\"out_bytes\":8.0,\"held_bytes\":1,"
	               "\"work_bytes\":2,\"name\":null}],\"edges\":[[7,-1],[7,-1]]}");
	assert_int_equal(g.nodes.n, 2);
	const pipe_node *x = &g.nodes.at[0], *y = &g.nodes.at[1];
	assert_true(x->id == 7 && x->fwd_us == 1.5 && x->bwd_us == 2 && x->param_bytes == 3 && x->held_bytes == 4);
	assert_string_equal(x->name, "x");
	assert_true(y->id == -1 && y->bwd_us == 0 && y->held_bytes == 1 && y->work_bytes == 2);
	assert_string_equal(y->name, "");
	assert_true(g.values.at[0].bytes == 4 && g.values.at[0].nuses == 1 && g.values.at[1].bytes == 8);
	assert_int_equal(g.succ_first[2], 1);
	assert_true(g.total_us == 3.5 && g.heaviest_us == 3.5);
	graph_free(&g);
}

static void nodes_are_put_in_order_and_keep_theirs_where_they_can(void **state)
{
	(void)state;
	pipe_graph g = read_graph("{\"nodes\":[{\"id\":0,\"fwd_us\":1},{\"id\":1,\"fwd_us\":1},{\"id\":2,\"fwd_us\":1},"
	                          "{\"id\":3,\"fwd_us\":1}],\"edges\":[[3,0],[0,2]]}");
	const int64_t want[] = {1, 3, 0, 2};
	for (uint32_t n = 0; n < 4; n++) {
		assert_int_equal(g.nodes.at[n].id, want[n]);
		for (uint32_t i = g.succ_first[n]; i < g.succ_first[n + 1]; i++)
			assert_true(g.succ[i] > n);
	}
	assert_int_equal(g.succ[g.succ_first[1]], 2);
	assert_int_equal(g.pred[g.pred_first[3]], 2);
	graph_free(&g);
}

static void a_cycle_is_refused_by_the_names_on_it(void **state)
{
	(void)state;
	refuses(NODES ",\"edges\":[[1,2],[2,3],[3,1]]}", CLV_E_INVALID, "cycle of 3 nodes");
	refuses(NODES ",\"edges\":[[1,2],[2,1]]}", CLV_E_INVALID, "a (id 1) -> b (id 2) -> a (id 1)");
	refuses(NODES ",\"edges\":[[1,2],[3,2],[2,3]]}", CLV_E_INVALID, "cycle of 2 nodes: b (id 2) -> node 3 -> b (id 2)");
}

static void a_long_cycle_is_named_in_short(void **state)
{
	(void)state;
	pipe_graph g = {0};
	for (uint32_t i = 0; i < 1000; i++) {
		OK(vec_push(&g.nodes, ((pipe_node){.id = i, .name = "", .fwd_us = 1})));
		OK(vec_push(&g.order, ((pipe_edge){i, (i + 1) % 1000})));
	}
	FAILS(graph_finish(&g), CLV_E_INVALID, "cycle of 1000 nodes: node ");
	assert_true(strlen(status_message()) < 500);
	graph_free(&g);
}

static void edges_to_nowhere_are_refused(void **state)
{
	(void)state;
	refuses(NODES ",\"edges\":[[1,2],[1,9]]}", CLV_E_INVALID, "edges[1] names a node with id 9, and there is none");
	refuses(NODES ",\"edges\":[[1,1]]}", CLV_E_INVALID, "edges[0] goes from a (id 1) to itself");
	refuses(NODES ",\"edges\":[[1]]}", CLV_E_PARSE, "edges[0] is not [source id, target id]");
	refuses(NODES ",\"edges\":[[1,2,3]]}", CLV_E_PARSE, "edges[0] is not");
	refuses(NODES ",\"edges\":[{}]}", CLV_E_PARSE, "edges[0] is not");
	refuses(NODES ",\"edges\":[[1,\"2\"]]}", CLV_E_PARSE, "edges[0][1] is no id");
	refuses(NODES ",\"edges\":[[1,1.5]]}", CLV_E_PARSE, "edges[0][1] is no id");
}

static void bad_nodes_are_refused_by_place(void **state)
{
	(void)state;
	static const struct {
		const char *node;
		clv_status st;
		const char *part;
	} bad[] = {
		{"{\"id\":1,\"fwd_us\":-1}", CLV_E_INVALID, "nodes[0].fwd_us is negative: -1"},
		{"{\"id\":1,\"fwd_us\":1,\"bwd_us\":-2}", CLV_E_INVALID, "nodes[0].bwd_us is negative"},
		{"{\"id\":1,\"fwd_us\":1,\"param_bytes\":-2}", CLV_E_INVALID, "nodes[0].param_bytes is negative: -2"},
		{"{\"id\":1,\"fwd_us\":1,\"out_bytes\":-2}", CLV_E_INVALID, "nodes[0].out_bytes is negative"},
		{"{\"id\":1,\"fwd_us\":NaN}", CLV_E_PARSE, "a number is not finite"},
		{"{\"id\":1,\"fwd_us\":Infinity}", CLV_E_PARSE, "a number is not finite"},
		{"{\"id\":1,\"fwd_us\":-Infinity}", CLV_E_PARSE, "a number is not finite"},
		{"{\"id\":1,\"fwd_us\":1e999}", CLV_E_PARSE, "a number is not finite"},
		{"{\"id\":1,\"fwd_us\":1e300}", CLV_E_OVERFLOW, "times of all nodes"},
		{"{\"id\":1,\"fwd_us\":\"1\"}", CLV_E_PARSE, "nodes[0].fwd_us is no number"},
		{"{\"id\":1,\"fwd_us\":null}", CLV_E_PARSE, "nodes[0].fwd_us is no number"},
		{"{\"id\":1,\"fwd_us\":true}", CLV_E_PARSE, "nodes[0].fwd_us is no number"},
		{"{\"id\":1}", CLV_E_PARSE, "nodes[0] has no \"fwd_us\""},
		{"{\"fwd_us\":1}", CLV_E_PARSE, "nodes[0] has no \"id\""},
		{"{\"id\":\"a\",\"fwd_us\":1}", CLV_E_PARSE, "nodes[0].id is no whole number"},
		{"{\"id\":1.5,\"fwd_us\":1}", CLV_E_PARSE, "nodes[0].id is no whole number"},
		{"{\"id\":1e17,\"fwd_us\":1}", CLV_E_PARSE, "nodes[0].id is no whole number"},
		{"{\"id\":1,\"fwd_us\":1,\"out_bytes\":0.5}", CLV_E_PARSE, "nodes[0].out_bytes is no whole number"},
		{"{\"id\":1,\"fwd_us\":1,\"out_bytes\":99999999999999999999}", CLV_E_PARSE, "too big integer"},
		{"{\"id\":1,\"fwd_us\":1,\"out_bytes\":9223372036854775807}", CLV_E_OVERFLOW, "node 1"},
		{"{\"id\":1,\"fwd_us\":1,\"name\":3}", CLV_E_PARSE, "nodes[0].name is no plain string"},
		{"{\"id\":1,\"fwd_us\":1,\"name\":\"a\\u0000b\"}", CLV_E_PARSE, "nodes[0].name is no plain string"},
		{"{\"id\":1,\"fwd_us\":1},{\"id\":1,\"fwd_us\":1}", CLV_E_INVALID, "nodes[1].id is 1, as nodes[0].id is"},
		{"{\"id\":1,\"id\":1,\"fwd_us\":1}", CLV_E_PARSE, "duplicate"},
		{"[]", CLV_E_PARSE, "nodes[0] is no object"},
		{"", CLV_E_INVALID, "the graph has no nodes"},
	};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		char text[256];
		snprintf(text, sizeof text, "{\"nodes\":[%s],\"edges\":[]}", bad[i].node);
		refuses(text, bad[i].st, bad[i].part);
	}
}

static void texts_that_are_no_graph_are_refused(void **state)
{
	(void)state;
	refuses("", CLV_E_PARSE, "no valid JSON");
	refuses("{", CLV_E_PARSE, "no valid JSON");
	refuses("[]", CLV_E_PARSE, "a graph is an object");
	refuses("{}", CLV_E_PARSE, "\"nodes\" is missing");
	refuses("{\"nodes\":{},\"edges\":[]}", CLV_E_PARSE, "\"nodes\" is missing or is not an array");
	refuses("{\"nodes\":[]}", CLV_E_PARSE, "\"edges\" is missing");
	refuses("{\"nodes\":[],\"edges\":[]} more", CLV_E_PARSE, "no valid JSON");
}

/* ---- problems ---------------------------------------------------------------------------------------------------------- */

static void only_numbers_are_said_not_to_be_finite(void **state)
{
	(void)state;
	pipe_graph g;
	const char *text = "{\"NaN\":[],\"Infinity\":nul}";
	assert_int_equal(graph_read(text, strlen(text), &g), CLV_E_PARSE);
	assert_null(strstr(clv_last_error(), "finite"));
}

static void bad_problems_are_refused(void **state)
{
	(void)state;
	pipe_graph g = read_graph("{\"nodes\":[{\"id\":1,\"fwd_us\":1,\"param_bytes\":100},{\"id\":2,\"fwd_us\":1,"
	                          "\"param_bytes\":300}],\"edges\":[[1,2]]}");
	pipe_device devices[3] = {{1, 0}, {1, 0}, {1, 0}};
	double bandwidth[4] = {0, 1e9, 1e9, 0};
	pipe_problem good = problem_of(&g, devices, 2), pr;
	good.bandwidth = bandwidth;
	OK(problem_check(&good));
#define REFUSES(change, st, part)                                                                                      \
	do {                                                                                                               \
		pr = good;                                                                                                     \
		change;                                                                                                        \
		FAILS(problem_check(&pr), st, part);                                                                           \
	} while (0)
	REFUSES(pr.k = 0, CLV_E_INVALID, "the number of devices is 0");
	REFUSES(pr.k = 3, CLV_E_INVALID, "3 devices for a graph of 2 nodes");
	REFUSES(devices[0].speed = 0, CLV_E_INVALID, "the speed of device 0");
	REFUSES(devices[0].speed = NAN, CLV_E_INVALID, "the speed of device 0");
	REFUSES(devices[0].speed = INFINITY, CLV_E_INVALID, "the speed of device 0");
	devices[0].speed = 1;
	REFUSES(devices[1].memory_bytes = -1, CLV_E_INVALID, "the memory limit of device 1");
	devices[1].memory_bytes = 0;
	REFUSES(bandwidth[1] = 0, CLV_E_INVALID, "the bandwidth from device 0 to 1");
	REFUSES(bandwidth[1] = NAN, CLV_E_INVALID, "the bandwidth from device 0 to 1");
	bandwidth[1] = 1e9;
	REFUSES(pr.latency_us = -1, CLV_E_INVALID, "the latency");
	REFUSES(pr.microbatches = 0, CLV_E_INVALID, "0 micro-batches");
	REFUSES(pr.microbatches = UINT32_MAX, CLV_E_INVALID, "micro-batches");
	REFUSES(pr.param_copies = NAN, CLV_E_INVALID, "copies of parameters");
	REFUSES(pr.max_stages = 1, CLV_E_INVALID, "max_stages is 1, but there are 2 devices");
	REFUSES(pr.seconds = -1, CLV_E_INVALID, "seconds");
	graph_free(&g);
}

static void memory_that_nothing_fits_is_refused(void **state)
{
	(void)state;
	pipe_graph g = read_graph("{\"nodes\":[{\"id\":1,\"fwd_us\":1,\"param_bytes\":100},{\"id\":2,\"fwd_us\":1,"
	                          "\"param_bytes\":300,\"held_bytes\":1000}],\"edges\":[[1,2]]}");
	pipe_device devices[2] = {{1, 350}, {1, 350}};
	pipe_problem pr = problem_of(&g, devices, 2);
	pipe_partition p;
	pipe_score score;
	FAILS(pipe_partition_run(&pr, "pipedream", &p, &score), CLV_E_UNSUPPORTED,
	      "all parameters with their copies need 800 bytes, and all devices together have 700 bytes");
	devices[0].memory_bytes = devices[1].memory_bytes = 450;
	FAILS(pipe_partition_run(&pr, "pipedream", &p, &score), CLV_E_UNSUPPORTED,
	      "parameters and work of one node need 600 bytes, and the largest device has 450 bytes");
	devices[0].memory_bytes = devices[1].memory_bytes = 1000;
	FAILS(pipe_partition_run(&pr, "pipedream", &p, &score), CLV_E_UNSUPPORTED,
	      "device 1 would need 1.6 kB, 600 bytes over its limit of 1.0 kB");
	FAILS(pipe_partition_run(&pr, "none", &p, &score), CLV_E_NOT_FOUND, "there is no method \"none\"");
	graph_free(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_graph_is_read),
		cmocka_unit_test(nodes_are_put_in_order_and_keep_theirs_where_they_can),
		cmocka_unit_test(a_cycle_is_refused_by_the_names_on_it),
		cmocka_unit_test(a_long_cycle_is_named_in_short),
		cmocka_unit_test(edges_to_nowhere_are_refused),
		cmocka_unit_test(bad_nodes_are_refused_by_place),
		cmocka_unit_test(texts_that_are_no_graph_are_refused),
		cmocka_unit_test(only_numbers_are_said_not_to_be_finite),
		cmocka_unit_test(bad_problems_are_refused),
		cmocka_unit_test(memory_that_nothing_fits_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
