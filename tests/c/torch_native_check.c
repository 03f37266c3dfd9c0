/* The native engine on tensors of torch: parts of plans and segments, compared with the tape; a kernel that is wrong is found. */
#include "torch.h"

#include <string.h>

#include "exec/native_check.h"
#include "exec/optimized.h"

static const char text[] = "cleave-plan 1\nmodel \"M\" training=no grad=any\n"
						   "scope \"\" \"M\"\nscope body \"Seq\"\nscope body.0 \"Block\"\nscope body.1 \"Block\"\n"
						   "input %0 f32[4] name=\"x\"\n"
						   "param @w f32[4]\n"
						   "%1 = aten::mul.Tensor(%0, @w) -> f32[4]\n"
						   "%2 = aten::exp(%1) -> f32[4] in body.0 at \"model.py:12\"\n"
						   "%3 = aten::sin(%2) -> f32[4] in body.1 at \"model.py:13\"\n"
						   "%4 = aten::relu_(%3) -> f32[4] view-of %3 writes %3\n"
						   "%5 = aten::cos(%4) -> f32[4]\n"
						   "output %5\n";

/* ---- an engine that is wrong ---------------------------------------------------------------------------------------- */

/* A program of the native engine, and whether it adds 1 to what it gives. */
typedef struct program {
	void *native;
	bool wrong;
} program;

static uint32_t lowered, bound, changes; /* calls of the engine */
static const char *wrong_op;             /* programs that have it are wrong */
static uint32_t wrong_from;              /* and so many nodes at least */

static clv_status lower(const engine_order *o, void **out)
{
	program *g = mem_alloc(sizeof *g);
	if (!g)
		return CLV_E_NOMEM;
	clv_status st = engine_native.lower(o, &g->native);
	lowered++;
	for (node_id n = o->first; n < o->end; n++)
		g->wrong |= !strcmp(plan_s(o->of->p, o->of->p->nodes.at[n].op), wrong_op) && o->end - o->first >= wrong_from;
	if (st == CLV_OK)
		*out = g;
	else
		mem_free(g);
	return st;
}

static clv_status bind(void *given, clv_tensor *const *externals)
{
	bound++;
	return engine_native.bind(((program *)given)->native, externals);
}

static clv_status run(void *given, const run_call *c, clv_tensor **outputs)
{
	program *g = given;
	TRY(engine_native.run(g->native, c, outputs));
	float *data = outputs[0]->data;
	for (int i = 0; g->wrong && i < 4; i++)
		data[i] += 1;
	return CLV_OK;
}

static void release(void *given)
{
	program *g = given;
	if (g)
		engine_native.release(g->native);
	mem_free(g);
}

static void changed(void *given, value_id external, const char *why)
{
	changes++;
	engine_native.changed(((program *)given)->native, external, why);
}

static engine bad_engine(void)
{
	engine e = engine_native;
	e.lower = lower;
	e.bind = bind;
	e.run = run;
	e.release = release;
	e.changed = changed;
	return e;
}

/* ---- both engines ---------------------------------------------------------------------------------------------------- */

typedef struct bench {
	plan *p;
	clv_program *g;
	clv_tensor *x, *w;
} bench;

static bench begin(void)
{
	static const int64_t four[] = {4};
	static const float data[] = {0.1F, 0.2F, 0.3F, 0.4F}, weights[] = {1, 2, 3, 4};
	bench b = {.p = load_ok(text)};
	OK(program_new(b.p, &(program_spec){.end = b.p->nodes.n, .inference = true}, &b.g));
	OK(clv_tensor_from_data(data, "f32", 1, four, &b.x));
	OK(clv_tensor_from_data(weights, "f32", 1, four, &b.w));
	return b;
}

static void end(bench *b)
{
	clv_tensor_free(b->x);
	clv_tensor_free(b->w);
	program_free(b->g);
	plan_free(b->p);
}

static clv_status compare_engines(const bench *b, const engine *e)
{
	native_part *x = NULL;
	br_tensor *in[] = {torch_of(b->x)}, *weights[] = {torch_of(b->w)}, *out[1] = {NULL};
	TRY(native_part_new(e, b->p, 0, b->p->nodes.n, "fast", &x));
	clv_status st = native_check(e, x, b->g, &(run_spec){.inputs = in, .externals = weights, .outputs = out});
	if (st == CLV_OK)
		br_unref(out[0]);
	native_part_free(x);
	return st;
}

static void engines_that_agree_pass(void **state)
{
	(void)state;
	bench b = begin();
	OK(compare_engines(&b, &engine_native));
	end(&b);
}

/* A change before the first tensors would mean that they change from run to run: nothing would be packed once. */
static void weights_are_packed_once_and_again_when_they_were_written(void **state)
{
	(void)state;
	bench b = begin();
	engine e = bad_engine();
	native_part *x;
	br_tensor *in[] = {torch_of(b.x)}, *weights[] = {torch_of(b.w)}, *out[1] = {NULL};
	wrong_op = "";
	lowered = bound = changes = 0;
	OK(native_part_new(&e, b.p, 0, b.p->nodes.n, "fast", &x));
	for (int i = 0; i < 6; i++) {
		OK(native_part_run(x, &(run_spec){.inputs = in, .externals = weights, .outputs = out}));
		br_unref(out[0]);
		if (i == 2)
			OK(br_copy(in[0], weights[0]));
		assert_int_equal(lowered, 1);
		assert_int_equal(bound, i < 3 ? 1 : 2);
		assert_int_equal(changes, i < 3 ? 0 : 1);
	}
	native_part_free(x);
	end(&b);
}

static void a_wrong_kernel_is_named_with_its_module_and_line(void **state)
{
	(void)state;
	bench b = begin();
	engine e = bad_engine();
	wrong_op = "aten::exp";
	wrong_from = 1;
	assert_int_equal(compare_engines(&b, &e), CLV_E_VERIFY);
	assert_non_null(strstr(status_message(), "gives other numbers than the tape: output 0 is off by"));
	assert_non_null(strstr(status_message(), "is exp, aten::exp of body.0 (model.py:12): off by 1"));
	end(&b);
}

/* sin gives memory that the next node writes: it is run together with that. */
static void a_wrong_kernel_before_a_write_in_place_is_found_with_it(void **state)
{
	(void)state;
	bench b = begin();
	engine e = bad_engine();
	wrong_op = "aten::sin";
	wrong_from = 1;
	assert_int_equal(compare_engines(&b, &e), CLV_E_VERIFY);
	assert_non_null(strstr(status_message(), "aten::relu_"));
	end(&b);
}

static void a_difference_that_no_node_makes_alone_is_said_to_be_of_many(void **state)
{
	(void)state;
	bench b = begin();
	engine e = bad_engine();
	wrong_op = "aten::exp";
	wrong_from = 3;
	assert_int_equal(compare_engines(&b, &e), CLV_E_VERIFY);
	assert_non_null(strstr(status_message(), "each node by itself is right"));
	end(&b);
}

/* ---- memory that runs out --------------------------------------------------------------------------------------------- */

static clv_status live_and_die(const void *ctx)
{
	return compare_engines(ctx, &engine_native);
}

static void every_allocation_of_a_part_may_fail(void **state)
{
	(void)state;
	bench b = begin();
	assert_true(sweep_each(live_and_die, &b, CLV_OK, false) > 50);
	end(&b);
}

static clv_status search_and_die(const void *ctx)
{
	engine e = bad_engine();
	clv_status st = compare_engines(ctx, &e);
	return st == CLV_E_VERIFY ? CLV_OK : st;
}

static void every_allocation_of_a_search_may_fail(void **state)
{
	(void)state;
	bench b = begin();
	wrong_op = "aten::exp";
	wrong_from = 1;
	assert_true(sweep_each(search_and_die, &b, CLV_OK, true) > 100); /* what it finds may lack its place */
	end(&b);
}

static clv_status choose_and_die(const void *ctx)
{
	const bench *b = ctx;
	clv_program *g = NULL;
	br_tensor *in[] = {torch_of(b->x)}, *weights[] = {torch_of(b->w)}, *out[1] = {NULL};
	program_spec spec = {.end = b->p->nodes.n, .inference = true, .optimize = OPTIMIZE_FAST};
	clv_status st = program_new(b->p, &spec, &g);
	if (st == CLV_OK)
		st = program_run(g, &(run_spec){.inputs = in, .externals = weights, .outputs = out});
	if (st == CLV_OK)
		br_unref(out[0]);
	program_free(g);
	return st;
}

static void every_allocation_of_a_choice_may_fail(void **state)
{
	(void)state;
	bench b = begin();
	assert_true(sweep_each(choose_and_die, &b, CLV_OK, true) > 100); /* it can do without some ways */
	end(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(engines_that_agree_pass),
		cmocka_unit_test(weights_are_packed_once_and_again_when_they_were_written),
		cmocka_unit_test(a_wrong_kernel_is_named_with_its_module_and_line),
		cmocka_unit_test(a_wrong_kernel_before_a_write_in_place_is_found_with_it),
		cmocka_unit_test(a_difference_that_no_node_makes_alone_is_said_to_be_of_many),
		cmocka_unit_test(every_allocation_of_a_part_may_fail),
		cmocka_unit_test(every_allocation_of_a_search_may_fail),
		cmocka_unit_test(every_allocation_of_a_choice_may_fail),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
