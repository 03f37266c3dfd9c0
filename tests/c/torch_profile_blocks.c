/* Blocks that are measured without Python: what comes out, what is left as it was, and every allocation that may fail. */
#include "torch.h"

#include "exec/profile_blocks.h"

#define HEAD "cleave-plan 1\nmodel \"Net\" training=yes grad=any\n"

static const char *const net =
	HEAD "scope \"\" \"Net\"\n"
		 "scope a \"Linear\"\n"
		 "scope a.deep \"ReLU\"\n"
		 "scope ab \"Other\"\n"
		 "input %x f32[2,3] name=\"x\"\n"
		 "param @w f32[4,3] trainable\n"
		 "buffer @count f32[]\n"
		 "%1 = aten::linear(%x, @w, none) -> f32[2,4] grad in a\n"
		 "%2 = aten::relu_(%1) -> f32[2,4] grad view-of %1 writes %1 in a.deep\n"
		 "%3 = aten::add_.Tensor(@count, num(1), 1) -> f32[] view-of @count writes @count in ab\n"
		 "%4 = aten::mul.Tensor(%2, %3) -> f32[2,4] grad in ab\n"
		 "output %4\n";

typedef struct rig {
	plan *p;
	br_tensor *input;
	br_tensor **externals;
	uint32_t ticks, stop_at;
} rig;

static br_tensor *filled(uint32_t ndim, const int64_t *shape, bool grad)
{
	float data[16];
	clv_tensor *t = NULL;
	br_tensor *leaf = NULL;
	for (int i = 0; i < 16; i++)
		data[i] = (float)i - 4;
	OK(clv_tensor_from_data(data, "f32", ndim, shape, &t));
	OK(br_leaf(torch_of(t), grad, &leaf));
	clv_tensor_free(t);
	return leaf;
}

static rig rig_new(void)
{
	rig r = {.p = load_ok(net), .input = filled(2, (int64_t[]){2, 3}, false)};
	r.externals = mem_alloc(r.p->values.n * sizeof *r.externals);
	for (value_id v = 0; v < r.p->values.n; v++) {
		if (r.p->values.at[v].kind == VALUE_PARAM)
			r.externals[v] = filled(2, (int64_t[]){4, 3}, true);
		if (r.p->values.at[v].kind == VALUE_BUFFER)
			r.externals[v] = filled(0, NULL, false);
	}
	return r;
}

static void rig_free(rig *r)
{
	for (value_id v = 0; v < r->p->values.n; v++)
		br_unref(r->externals[v]);
	mem_free(r->externals);
	br_unref(r->input);
	plan_free(r->p);
}

static clv_status tick(void *ctx, uint32_t block)
{
	rig *r = ctx;
	(void)block;
	return ++r->ticks == r->stop_at ? fails_with(CLV_E_INVALID, "enough") : CLV_OK;
}

static const node_id ends[] = {1, 3, 4};

static clv_status profile_it(rig *r, bool training, block_profile *out, block_profile *whole)
{
	bool ran = false;
	profile_spec s = {.ends = ends,
	                  .n = 3,
	                  .warmup = 1,
	                  .iterations = 2,
	                  .training = training,
	                  .inputs = &r->input,
	                  .externals = r->externals,
	                  .tick = tick,
	                  .ctx = r};
	br_modes was, on;
	br_modes_get(&was);
	on = was;
	on.grad = training;
	br_modes_set(&on, 0);
	clv_status st = profile_blocks(r->p, &s, out, whole, &ran);
	br_modes now;
	br_modes_get(&now);
	assert_true(br_modes_equal(&now, &on, true));
	br_modes_set(&was, 0);
	if (st == CLV_OK)
		assert_int_equal(ran, whole != NULL);
	return st;
}

static void blocks_are_measured_one_by_one(void **state)
{
	(void)state;
	rig r = rig_new();
	block_profile b[3], whole;
	OK(profile_it(&r, true, b, &whole));
	assert_int_equal(r.ticks, 4 * (1 + 2 + 1));
	for (int i = 0; i < 3; i++) {
		assert_true(b[i].forward.median > 0 && b[i].forward.least <= b[i].forward.most);
		assert_true(b[i].backward.median > 0);
	}
	assert_true(b[0].size == 48e-6 && b[0].input_size == 24e-6 && b[0].output_size == 32e-6 && b[0].held == 32e-6);
	assert_true(b[1].size == 4e-6 && b[1].input_size == 32e-6 && b[1].output_size == 36e-6);
	assert_true(b[0].backward_memory == 48e-6); /* the gradient of the weight */
	assert_true(whole.size == 52e-6 && whole.output_size == 32e-6 && whole.forward.median > 0);
	OK(profile_it(&r, false, b, NULL));
	assert_true(b[0].backward.most == 0 && b[0].forward.median > 0 && b[0].backward_memory == 0);
	rig_free(&r);
}

static void nothing_is_written(void **state)
{
	(void)state;
	rig r = rig_new(), fresh = rig_new();
	block_profile b[3], whole;
	OK(profile_it(&r, true, b, &whole));
	for (value_id v = 0; v < r.p->values.n; v++) {
		bool same;
		OK(br_bits_equal(r.externals[v], fresh.externals[v], &same));
		assert_true(same);
	}
	rig_free(&r);
	rig_free(&fresh);
}

static void whoever_watches_may_stop_it(void **state)
{
	(void)state;
	for (uint32_t at = 1; at <= 16; at++) {
		rig r = rig_new();
		block_profile b[3], whole;
		r.stop_at = at;
		FAILS(profile_it(&r, true, b, &whole), CLV_E_INVALID, "enough");
		rig_free(&r);
	}
}

static void what_cannot_be_measured_is_refused(void **state)
{
	(void)state;
	rig r = rig_new();
	block_profile b[3];
	bool ran;
	profile_spec s = {.ends = ends, .n = 2, .iterations = 1, .inputs = &r.input, .externals = r.externals};
	FAILS(profile_blocks(r.p, &s, b, NULL, &ran), CLV_E_INVALID, "the last block must end with the plan");
	s.n = 3;
	s.iterations = 0;
	FAILS(profile_blocks(r.p, &s, b, NULL, &ran), CLV_E_INVALID, "1 to 1000000 measured runs");
	s.iterations = 1;
	br_tensor *wrong = filled(2, (int64_t[]){3, 3}, false);
	s.inputs = &wrong;
	FAILS(profile_blocks(r.p, &s, b, NULL, &ran), CLV_E_INPUT, "block 0, nodes 0 to 0: input x: dimension 0 is 3");
	br_unref(wrong);
	rig_free(&r);
}

static void profile_fails(const char *sizes, clv_status st)
{
	char text[256];
	snprintf(text, sizeof text, "%s%%1 = aten::zeros([%s], none, none, none, none) -> f32[1]\noutput %%1\n", HEAD,
	         sizes);
	plan *p = load_ok(text);
	br_tensor *externals[1] = {NULL};
	block_profile b;
	bool ran;
	profile_spec s = {.ends = (node_id[]){1}, .n = 1, .iterations = 1, .externals = externals};
	assert_int_equal(profile_blocks(p, &s, &b, NULL, &ran), st);
	plan_free(p);
}

/* A whole run may lack memory that block after block has, which is no error: so this one is told apart from all others. */
static void an_allocator_without_memory_is_told_apart(void **state)
{
	(void)state;
	profile_fails("1125899906842624", CLV_E_MACHINE);
	assert_true(br_exhausted());
	profile_fails("-5", CLV_E_TORCH);
	assert_false(br_exhausted());
}

static clv_status attempt(const void *ctx)
{
	rig *r = (rig *)ctx;
	block_profile b[3], whole;
	return profile_it(r, true, b, &whole);
}

static void every_allocation_may_fail(void **state)
{
	(void)state;
	rig r = rig_new();
	sweep_faults(attempt, &r, CLV_OK);
	rig_free(&r);
}

static void a_block_is_in_the_module_that_holds_all_of_it(void **state)
{
	(void)state;
	plan *p = load_ok(net);
	static const struct {
		node_id first, end;
		const char *path;
	} cases[] = {{0, 1, "a"}, {1, 2, "a.deep"}, {0, 2, "a"}, {0, 3, ""}, {1, 3, ""}, {2, 4, "ab"}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		strbuf b = STRBUF_INIT;
		block_module(p, cases[i].first, cases[i].end, &b);
		char *path = taken(&b);
		assert_string_equal(path, cases[i].path);
		mem_free(path);
	}
	plan_free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(blocks_are_measured_one_by_one),
		cmocka_unit_test(nothing_is_written),
		cmocka_unit_test(whoever_watches_may_stop_it),
		cmocka_unit_test(what_cannot_be_measured_is_refused),
		cmocka_unit_test(an_allocator_without_memory_is_told_apart),
		cmocka_unit_test(every_allocation_may_fail),
		cmocka_unit_test(a_block_is_in_the_module_that_holds_all_of_it),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
