/* Estimates of blocks: times from work and bytes, memory that is held and worked in, and plans that are no help. */
#include "support.h"

#include <float.h>
#include <math.h>

#include "pipe/estimate.h"

#define HEAD "cleave-plan 1\nmodel \"Net\"\n"

/* Bytes: x 64, weights 512 and 256, %1 and %2 128 each, %3 32, %5 32. */
static const char *const net = HEAD "input %x f32[2,8] name=\"x\"\n"
									"input %late f32[2,4] name=\"late\"\n"
									"param @a f32[16,8] trainable\n"
									"param @b f32[4,16] trainable\n"
									"buffer @c f32[4]\n"
									"%1 = aten::linear(%x, @a, none) -> f32[2,16] grad\n"
									"%2 = aten::relu(%1) -> f32[2,16] grad\n"
									"%3 = aten::linear(%2, @b, none) -> f32[2,4] grad\n"
									"%4 = aten::view(%3, [2, 4]) -> f32[2,4] grad view-of %3\n"
									"%5 = aten::add.Tensor(%late, @c, 1) -> f32[2,4]\n"
									"%6 = aten::add.Tensor(%4, %5, 1) -> f32[2,4] grad\n"
									"output %6\n";

static const estimate_spec slow = {1e6, 1e30, 0, true}; /* an operation is a microsecond, bytes are free */

static void estimated(const char *text, const node_id *ends, uint32_t n, const int64_t *syms, const estimate_spec *s,
                      block_cost *out)
{
	plan *p = load_ok(text);
	OK(estimate_blocks(p, ends, n, syms, s, out));
	plan_free(p);
}

static void close_to(double a, double b)
{
	if (!(fabs(a - b) <= 1e-6 * fabs(b)))
		fail_msg("%g instead of %g", a, b);
}

static void time_is_work_where_work_is_slow(void **state)
{
	(void)state;
	block_cost c[3];
	estimated(net, (node_id[]){1, 3, 6}, 3, NULL, &slow, c);
	close_to(c[0].fwd_us, 2 * 8 * 32);
	close_to(c[1].fwd_us, 32 + 2 * 16 * 8);
	close_to(c[2].fwd_us, 8 + 8); /* a view takes nothing */
	close_to(c[0].bwd_us, 2 * c[0].fwd_us);
	close_to(c[1].bwd_us, 2 * c[1].fwd_us);
	close_to(c[2].bwd_us, 2 * 8); /* no gradients flow through the sum of an input and a buffer */
}

static void time_is_bytes_where_memory_is_slow(void **state)
{
	(void)state;
	block_cost c[2];
	estimate_spec s = {1e30, 1e6, 10, true};
	estimated(net, (node_id[]){2, 6}, 2, NULL, &s, c);
	close_to(c[0].fwd_us, 10 + (64 + 512 + 128) + 10 + (128 + 128));
	close_to(c[1].fwd_us, 10 + (128 + 256 + 32) + 10 + (32 + 16 + 32) + 10 + 3 * 32);
}

static void sizes_are_those_of_what_goes_in_and_out(void **state)
{
	(void)state;
	block_cost c[3];
	estimated(net, (node_id[]){1, 3, 6}, 3, NULL, &slow, c);
	assert_int_equal(c[0].param_bytes, 512);
	assert_int_equal(c[0].in_bytes, 64);
	assert_int_equal(c[0].out_bytes, 128);
	assert_int_equal(c[1].param_bytes, 256);
	assert_int_equal(c[1].in_bytes, 128);
	assert_int_equal(c[1].out_bytes, 32);
	assert_int_equal(c[2].param_bytes, 16);
	assert_int_equal(c[2].in_bytes, 32 + 32);
	assert_int_equal(c[2].out_bytes, 32);
}

static void a_training_step_holds_what_its_backward_reads(void **state)
{
	(void)state;
	block_cost c;
	estimate_spec s = slow;
	estimated(net, (node_id[]){6}, 1, NULL, &s, &c);
	assert_int_equal(c.held_bytes, 128 + 128 + 32 + 32 + 32); /* the view has no memory of its own */
	assert_int_equal(c.fwd_work_bytes, 0);
	assert_int_equal(c.bwd_work_bytes, 512 + 128); /* gradients of the first weight and of what it makes */
	assert_int_equal(c.work_bytes, c.bwd_work_bytes);
	s.training = false;
	estimated(net, (node_id[]){6}, 1, NULL, &s, &c);
	assert_int_equal(c.held_bytes, 32);
	assert_int_equal(c.fwd_work_bytes, 128 + 128 - 32); /* the input and the result of relu at once */
	close_to(c.bwd_us + 1, 1);
}

static void what_is_written_into_gets_gradients(void **state)
{
	(void)state;
	const char *text = HEAD "input %x f32[8] name=\"x\"\n"
							"param @w f32[8] trainable\n"
							"%1 = aten::zeros_like(%x) -> f32[8]\n"
							"%2 = aten::add_.Tensor(%1, @w, 1) -> f32[8] view-of %1 writes %1\n"
							"%3 = aten::relu(%1) -> f32[8] grad\n"
							"output %3\n";
	plan *p = load_ok(text);
	bool *grad;
	OK(plan_grads(p, &grad));
	for (value_id v = 0; v < p->values.n; v++)
		assert_int_equal(grad[v], p->values.at[v].kind != VALUE_INPUT);
	mem_free(grad);
	plan_free(p);
}

static void sizes_follow_the_symbols(void **state)
{
	(void)state;
	const char *text = HEAD "symbol B 1..1000\n"
							"input %x f32[B,8] name=\"x\"\n"
							"%1 = aten::relu(%x) -> f32[B,8]\n"
							"output %1\n";
	block_cost c;
	estimated(text, (node_id[]){1}, 1, (int64_t[]){100}, &slow, &c);
	assert_int_equal(c.in_bytes, 3200);
	close_to(c.fwd_us, 800);
	estimated(text, (node_id[]){1}, 1, (int64_t[]){-1}, &slow, &c); /* not known: the smallest */
	assert_int_equal(c.in_bytes, 32);
}

static void bad_blocks_and_speeds_are_refused(void **state)
{
	(void)state;
	plan *p = load_ok(net);
	block_cost c[3];
	FAILS(estimate_blocks(p, (node_id[]){3}, 1, NULL, &slow, c), CLV_E_INVALID,
	      "the last block must end with the plan");
	FAILS(estimate_blocks(p, NULL, 0, NULL, &slow, c), CLV_E_INVALID, "the last block must end with the plan");
	FAILS(estimate_blocks(p, (node_id[]){3, 3, 6}, 3, NULL, &slow, c), CLV_E_INVALID, "block 1 has no nodes");
	FAILS(estimate_blocks(p, (node_id[]){0, 6}, 2, NULL, &slow, c), CLV_E_INVALID, "block 0 has no nodes");
	estimate_spec bad[] = {
		{0, 1, 0, true}, {1, -1, 0, true}, {1, 1, -1, true}, {NAN, 1, 0, true}, {1, INFINITY, 0, true}};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		FAILS(estimate_blocks(p, (node_id[]){6}, 1, NULL, &bad[i], c), CLV_E_INVALID, "an estimate needs");
	plan_free(p);
}

static void sums_over_two_to_the_63_are_refused(void **state)
{
	(void)state;
	const char *one = HEAD "input %x f32[4000000000,4000000000] name=\"x\"\n"
						   "%1 = aten::relu(%x) -> f32[4]\n"
						   "output %1\n";
	const char *many = HEAD "input %x f32[2000000000,1000000000] name=\"x\"\n"
							"input %y f32[2000000000,1000000000] name=\"y\"\n"
							"%1 = aten::cat([%x, %y], 0) -> f32[4]\n"
							"output %1\n";
	const char *texts[] = {one, many};
	for (size_t i = 0; i < 2; i++) {
		plan *p = load_ok(texts[i]);
		block_cost c;
		FAILS(estimate_blocks(p, (node_id[]){1}, 1, NULL, &slow, &c), CLV_E_OVERFLOW, "more than 2^63 bytes");
		plan_free(p);
	}
}

static clv_status attempt(const void *p)
{
	block_cost c[2];
	return estimate_blocks(p, (node_id[]){3, 6}, 2, NULL, &slow, c);
}

static void every_allocation_may_fail(void **state)
{
	(void)state;
	plan *p = load_ok(net);
	sweep_faults(attempt, p, CLV_OK);
	plan_free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(time_is_work_where_work_is_slow),
		cmocka_unit_test(time_is_bytes_where_memory_is_slow),
		cmocka_unit_test(sizes_are_those_of_what_goes_in_and_out),
		cmocka_unit_test(a_training_step_holds_what_its_backward_reads),
		cmocka_unit_test(what_is_written_into_gets_gradients),
		cmocka_unit_test(sizes_follow_the_symbols),
		cmocka_unit_test(bad_blocks_and_speeds_are_refused),
		cmocka_unit_test(sums_over_two_to_the_63_are_refused),
		cmocka_unit_test(every_allocation_may_fail),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
