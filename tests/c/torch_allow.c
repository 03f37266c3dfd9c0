/* CLEAVE_ALLOW_COMPILED: machine code in a TorchScript program, which is an argument of cleave::segment, is loaded where it is
 * allowed and nowhere else. The back end of the file counts how often it is asked; its code does what the tape does. */
#include "support.h"

#include <stdlib.h>

#include "exec/backend.h"

static int loads;

static clv_status fits(void *ctx, const compiled *c, const code_spec *s, arena *a, const char **reason)
{
	(void)ctx, (void)c, (void)s, (void)a;
	*reason = NULL;
	return CLV_OK;
}

static clv_status load(void *ctx, const compiled *c, const code_spec *s, void **out)
{
	(void)ctx, (void)c, (void)s;
	*out = &loads;
	loads++;
	return CLV_OK;
}

/* The tape runs where code fails. */
static clv_status run(void *ctx, void *loaded, const code_run *r)
{
	(void)ctx, (void)loaded, (void)r;
	return status_fail(CLV_E_UNSUPPORTED, __FILE__, __LINE__, "this code only counts");
}

static void unload(void *ctx, void *loaded)
{
	(void)ctx, (void)loaded;
}

static const char text[] = "cleave-plan 1\nmodel \"M\" training=no grad=no\nsymbol N 1..1000000\n"
						   "input %0 u8[N] name=\"code\"\ninput %1 f32[2,4] name=\"x\"\n"
						   "[%2] = cleave::segment(%0, [%1]) -> [f32[2,2]]\noutput %2\n";

/* Calls the operator with a copy of the file that nobody has seen, and counts how many parts were loaded as code. */
static int loaded_by_a_call(void)
{
	static const float zeros[8];
	uint8_t *bytes;
	size_t n;
	OK(file_read("tests/plan/models/traced.clv", &bytes, &n));
	plan *p = load_ok(text);
	clv_program *g = NULL;
	clv_tensor *in[2], *out = NULL;
	OK(clv_program_create(p, NULL, &g));
	OK(clv_tensor_from_data(bytes, "uint8", 1, (const int64_t[]){(int64_t)n}, &in[0]));
	OK(clv_tensor_from_data(zeros, "float32", 2, (const int64_t[]){2, 4}, &in[1]));
	loads = 0;
	OK(clv_program_run(g, (const clv_tensor *const *)in, 2, &out, 1));
	assert_int_equal(clv_tensor_dim(out, 1), 2);
	clv_tensor_free(out);
	clv_tensor_free(in[0]);
	clv_tensor_free(in[1]);
	clv_program_free(g);
	plan_free(p);
	mem_free(bytes);
	return loads;
}

static void compiled_code_is_loaded_only_where_it_is_allowed(void **state)
{
	(void)state;
	const backend counting = {.name = "example", .fits = fits, .load = load, .run = run, .unload = unload};
	OK(backend_add(&counting));
	unsetenv("CLEAVE_ALLOW_COMPILED");
	assert_int_equal(loaded_by_a_call(), 0);
	setenv("CLEAVE_ALLOW_COMPILED", "1", 1);
	assert_int_equal(loaded_by_a_call(), 2);
	setenv("CLEAVE_ALLOW_COMPILED", "0", 1);
	assert_int_equal(loaded_by_a_call(), 0);
}

static void processes_that_are_started_inherit_the_switch(void **state)
{
	(void)state;
	setenv("CLEAVE_ALLOW_COMPILED", "1", 1);
	assert_int_equal(system("test \"$CLEAVE_ALLOW_COMPILED\" = 1"), 0);
	setenv("CLEAVE_ALLOW_COMPILED", "0", 1);
	assert_int_equal(system("test \"$CLEAVE_ALLOW_COMPILED\" = 0"), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(compiled_code_is_loaded_only_where_it_is_allowed),
		cmocka_unit_test(processes_that_are_started_inherit_the_switch),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
