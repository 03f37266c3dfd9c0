/* src/exec/profile.c, runtime_ports.c: runs that are timed node by node; shapes of inputs at given sizes. The model is the
 * one of the golden transcripts. */
#include "support.h"

static clv_runtime *open_net(void)
{
	clv_artifact *a;
	clv_runtime *r;
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	o.sandbox = CLV_SANDBOX_OFF; /* a profile is of runs in this process */
	OK(clv_artifact_open("tests/plan/models/net.clv", NULL, &a));
	OK(clv_runtime_create(a, &o, &r));
	clv_artifact_free(a);
	return r;
}

static clv_status run_net(const clv_runtime *r, int64_t batch)
{
	const float zeros[64] = {0};
	clv_tensor *x, *y = NULL;
	OK(clv_tensor_from_data(zeros, "f32", 2, (const int64_t[]){batch, 4}, &x));
	clv_status st = clv_runtime_run(r, (const clv_tensor *const[]){x}, 1, &y, 1);
	clv_tensor_free(x);
	clv_tensor_free(y);
	return st;
}

static void each_node_is_timed_in_each_run(void **state)
{
	(void)state;
	static const char *const ops[] = {"aten::linear", "aten::relu", "aten::linear"};
	static const char *const modules[] = {"0", "1", "2"};
	clv_runtime *r = open_net();
	OK(run_net(r, 2));
	assert_int_equal(clv_runtime_profile_count(r), 0);
	OK(clv_runtime_profile(r, true));
	for (int64_t batch = 1; batch <= 5; batch++)
		OK(run_net(r, batch));
	OK(clv_runtime_profile(r, false));
	OK(run_net(r, 2)); /* not timed */
	assert_int_equal(clv_runtime_profile_count(r), 3);
	for (uint32_t i = 0; i < 3; i++) {
		clv_profile_node n = {.size = sizeof n};
		OK(clv_runtime_profile_get(r, i, &n));
		assert_string_equal(n.op, ops[i]);
		assert_string_equal(n.module, modules[i]);
		assert_int_equal(n.node, i);
		assert_int_equal(n.runs, 5);
		assert_true(n.min_ns > 0 && n.min_ns <= n.median_ns && n.median_ns * 3 <= n.total_ns);
	}
	assert_int_equal(clv_runtime_profile_get(r, 3, &(clv_profile_node){.size = sizeof(clv_profile_node)}),
	                 CLV_E_INVALID);
	clv_runtime_free(r);
}

static void runs_that_fail_leave_no_times(void **state)
{
	(void)state;
	clv_runtime *r = open_net();
	OK(clv_runtime_profile(r, true));
	assert_int_equal(run_net(r, 9), CLV_E_INPUT);
	assert_int_equal(clv_runtime_profile_count(r), 0);
	OK(run_net(r, 1));
	OK(clv_runtime_profile(r, true)); /* starts anew */
	assert_int_equal(clv_runtime_profile_count(r), 0);
	clv_runtime_free(r);
}

static void shapes_follow_sizes(void **state)
{
	(void)state;
	clv_runtime *r = open_net();
	int64_t shape[2], strides[2];
	clv_sizes o = {(const char *const[]){"B", "other"}, (const int64_t[]){5, 7}, 2};
	OK(clv_runtime_input_shape(r, 0, 0, &o, shape, strides));
	assert_int_equal(shape[0], 5);
	assert_int_equal(shape[1], 4);
	assert_int_equal(strides[0], 4);
	assert_int_equal(strides[1], 1);
	OK(clv_runtime_input_shape(r, 0, 0, NULL, shape, NULL));
	assert_int_equal(shape[0], 1);
	assert_int_equal(clv_runtime_input_shape(r, 1, 0, NULL, shape, NULL), CLV_E_INVALID);
	assert_int_equal(clv_runtime_input_shape(r, 0, 1, NULL, shape, NULL), CLV_E_INVALID);
	clv_sizes nameless = {.n = 1};
	assert_int_equal(clv_runtime_input_shape(r, 0, 0, &nameless, shape, NULL), CLV_E_INVALID);
	clv_runtime_free(r);
}

static void the_cpu_needs_no_waiting(void **state)
{
	(void)state;
	OK(clv_synchronize("cpu"));
	assert_int_equal(clv_synchronize(NULL), CLV_E_INVALID);
	assert_int_not_equal(clv_synchronize("nowhere"), CLV_OK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_node_is_timed_in_each_run),
		cmocka_unit_test(runs_that_fail_leave_no_times),
		cmocka_unit_test(shapes_follow_sizes),
		cmocka_unit_test(the_cpu_needs_no_waiting),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
