/* Nodes and values of a plan, and views of it, as callers of cleave.h see them. */
#include "support.h"

#include "plan/view.h"

static const char *const text = "cleave-plan 1\n"
								"model \"Net\"\n"
								"symbol B 1..8\n"
								"scope \"\" \"Net\"\n"
								"scope a \"Linear\"\n"
								"input %0 f32[B,4] name=\"x\"\n"
								"input %1 f32[B,4]\n"
								"param @a.weight f32[4,4] trainable tied=@b.weight tied=@c.weight\n"
								"buffer @h f32[B,4] device=cuda:0\n"
								"const #0 i64[]\n"
								"%2 = aten::linear(%0, @a.weight, none) -> f32[B,4] in a at \"model.py:7\"\n"
								"%3 = aten::relu_(%2) -> f32[B,4] view-of %2 writes %2\n"
								"%4 = aten::dropout(%3, 0.5, true) -> f32[B,4] {nograd, autocast=cpu:bf16, random}\n"
								"%5 = aten::item(#0) -> int = 3 {host}\n"
								"%6 = aten::relu(%3) -> f32[B,4]\n"
								"%7, %8 = aten::split.Tensor([%6, [%4, %6]], 2) -> f32[B,2], f32[B,2]\n"
								"rebind @h = %4\n"
								"output (%7, %1)\n";

enum { X0, X1, W, H, C0, R2, R3, R4, R5, R6, R7, R8, VALUES };

typedef struct rig {
	plan *p;
	clv_graph *g;
} rig;

static int set_up(void **state)
{
	static rig r;
	r.p = load_ok(text);
	OK(clv_graph_create(r.p, &r.g));
	*state = &r;
	return 0;
}

static int tear_down(void **state)
{
	rig *r = *state;
	clv_graph_free(r->g);
	plan_free(r->p);
	return 0;
}

static clv_node node_at(void **state, uint32_t i)
{
	clv_node n = {.size = sizeof n};
	OK(clv_graph_node(((rig *)*state)->g, i, &n));
	return n;
}

static clv_value value_at(void **state, uint32_t i)
{
	clv_value v = {.size = sizeof v};
	OK(clv_graph_value(((rig *)*state)->g, i, &v));
	return v;
}

#define CHECK_IDS(n, at, ...)                                                                                          \
	do {                                                                                                               \
		const uint32_t want_[] = {__VA_ARGS__};                                                                        \
		assert_int_equal((n), sizeof want_ / sizeof *want_);                                                           \
		assert_memory_equal((at), want_, sizeof want_);                                                                \
	} while (0)

static void a_node_says_what_it_does_and_where_it_comes_from(void **state)
{
	clv_node n = node_at(state, 0);
	assert_int_equal(n.size, sizeof n);
	assert_string_equal(n.name, "linear");
	assert_string_equal(n.op, "aten::linear");
	assert_string_equal(n.module, "a");
	assert_string_equal(n.source, "model.py:7");
	CHECK_IDS(n.ninputs, n.inputs, X0, W);
	CHECK_IDS(n.nresults, n.results, R2);
	assert_int_equal(n.nwrites, 0);
}

static void a_node_without_module_and_source_has_empty_texts(void **state)
{
	clv_node n = node_at(state, 4);
	assert_string_equal(n.module, "");
	assert_string_equal(n.source, "");
}

static void writes_are_told(void **state)
{
	clv_node written = node_at(state, 1);
	CHECK_IDS(written.nwrites, written.writes, R2);
}

static void values_in_nested_lists_are_listed_as_often_as_they_are_taken(void **state)
{
	clv_node n = node_at(state, 5);
	CHECK_IDS(n.ninputs, n.inputs, R6, R4, R6);
	CHECK_IDS(n.nresults, n.results, R7, R8);
}

static void a_value_says_what_it_is(void **state)
{
	clv_value x = value_at(state, X0), h = value_at(state, H), c = value_at(state, C0), n = value_at(state, R5);
	assert_string_equal(x.label, "%0");
	assert_string_equal(x.name, "x");
	assert_string_equal(x.type, "tensor");
	assert_string_equal(x.dtype, "f32");
	assert_string_equal(x.device, "cpu");
	assert_int_equal(x.kind, CLV_VALUE_INPUT);
	assert_int_equal(x.ndim, 2);
	assert_string_equal(x.dims[0], "B");
	assert_string_equal(x.dims[1], "4");
	assert_string_equal(h.device, "cuda:0");
	assert_int_equal(h.kind, CLV_VALUE_BUFFER);
	assert_string_equal(c.label, "#0");
	assert_string_equal(c.name, "");
	assert_int_equal(c.ndim, 0);
	assert_string_equal(n.type, "int");
	assert_string_equal(n.dtype, "");
	assert_string_equal(n.device, "");
}

static void a_parameter_has_all_its_names(void **state)
{
	clv_value w = value_at(state, W);
	assert_string_equal(w.label, "@a.weight");
	assert_true(w.trainable);
	assert_int_equal(w.ntied, 2);
	assert_string_equal(w.tied[0], "b.weight");
	assert_string_equal(w.tied[1], "c.weight");
	assert_int_equal(value_at(state, H).ntied, 0);
}

static void what_does_not_exist_is_refused(void **state)
{
	rig *r = *state;
	clv_node n = {.size = sizeof n};
	clv_value v = {.size = sizeof v};
	clv_graph *g = NULL;
	assert_int_equal(clv_plan_node_count(r->p), 6);
	assert_int_equal(clv_graph_value_count(r->g), VALUES);
	FAILS(clv_graph_node(r->g, 6, &n), CLV_E_INVALID, "no node 6");
	FAILS(clv_graph_value(r->g, VALUES, &v), CLV_E_INVALID, "no value");
	FAILS(clv_graph_node(NULL, 0, &n), CLV_E_INVALID, "no node");
	FAILS(clv_graph_value(r->g, 0, NULL), CLV_E_INVALID, "no place");
	FAILS(clv_graph_create(NULL, &g), CLV_E_INVALID, "needs a plan");
	assert_int_equal(clv_graph_value_count(NULL), 0);
	clv_graph_free(NULL);
}

static void a_shorter_struct_of_an_older_header_is_filled_as_far_as_it_goes(void **state)
{
	rig *r = *state;
	clv_node n = {.size = offsetof(clv_node, module), .module = "untouched"};
	OK(clv_graph_node(r->g, 0, &n));
	assert_string_equal(n.op, "aten::linear");
	assert_string_equal(n.module, "untouched");
	n.size = sizeof n + 8;
	FAILS(clv_graph_node(r->g, 0, &n), CLV_E_INVALID, "clv_node.size");
}

static void a_view_has_what_comes_in_goes_out_is_read_and_passes_through(void **state)
{
	rig *r = *state;
	view prefix, suffix;
	OK(view_range(r->p, 0, 3, &prefix));
	OK(view_range(r->p, 3, 6, &suffix));
	CHECK_IDS(prefix.inputs.n, prefix.inputs.at, X0, X1);
	CHECK_IDS(prefix.outputs.n, prefix.outputs.at, X1, R3, R4);
	CHECK_IDS(prefix.externals.n, prefix.externals.at, W);
	CHECK_IDS(prefix.passthrough.n, prefix.passthrough.at, X1);
	CHECK_IDS(suffix.inputs.n, suffix.inputs.at, X1, R3, R4);
	CHECK_IDS(suffix.externals.n, suffix.externals.at, C0);
	view_free(&prefix);
	view_free(&suffix);
}

static void a_view_of_nodes_that_do_not_exist_is_refused(void **state)
{
	rig *r = *state;
	view v;
	FAILS(view_range(r->p, 2, 99, &v), CLV_E_INVALID, "no nodes 2 to 99");
	FAILS(view_range(r->p, 4, 3, &v), CLV_E_INVALID, "no nodes 4 to 3");
}

static void a_plan_without_nodes_has_a_graph_and_a_view(void **state)
{
	(void)state;
	plan *p = load_ok("cleave-plan 1\nmodel \"m\"\ninput %0 f32[2]\noutput %0\n");
	clv_graph *g;
	view v;
	OK(clv_graph_create(p, &g));
	OK(view_range(p, 0, 0, &v));
	assert_int_equal(clv_graph_value_count(g), 1);
	CHECK_IDS(v.passthrough.n, v.passthrough.at, 0);
	clv_graph_free(g);
	view_free(&v);
	plan_free(p);
}

static clv_status make_and_free(const void *p)
{
	clv_graph *g = NULL;
	view v = {0};
	clv_status st = clv_graph_create(p, &g);
	clv_graph_free(g);
	if (st == CLV_OK)
		st = view_range(p, 0, 3, &v);
	if (st == CLV_OK)
		view_free(&v);
	return st;
}

static void every_allocation_may_fail(void **state)
{
	assert_true(sweep_faults(make_and_free, ((rig *)*state)->p, CLV_OK) > 10);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_node_says_what_it_does_and_where_it_comes_from),
		cmocka_unit_test(a_node_without_module_and_source_has_empty_texts),
		cmocka_unit_test(writes_are_told),
		cmocka_unit_test(values_in_nested_lists_are_listed_as_often_as_they_are_taken),
		cmocka_unit_test(a_value_says_what_it_is),
		cmocka_unit_test(a_parameter_has_all_its_names),
		cmocka_unit_test(what_does_not_exist_is_refused),
		cmocka_unit_test(a_shorter_struct_of_an_older_header_is_filled_as_far_as_it_goes),
		cmocka_unit_test(a_view_has_what_comes_in_goes_out_is_read_and_passes_through),
		cmocka_unit_test(a_view_of_nodes_that_do_not_exist_is_refused),
		cmocka_unit_test(a_plan_without_nodes_has_a_graph_and_a_view),
		cmocka_unit_test(every_allocation_may_fail),
	};
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
