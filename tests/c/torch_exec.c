/* Programs that run: results, errors, guards, lifetimes, threads and modes, all from plan text and without Python. */
#include "torch.h"

#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "exec/program.h"

#define HEAD "cleave-plan 1\nmodel \"Net\"\n"
#define COUNT(a) (sizeof(a) / sizeof *(a))

/* ---- plans, programs, tensors ---------------------------------------------------------------------------------------- */

typedef struct rig {
	plan *p;
	clv_program *g;
} rig;

static rig rig_of(const char *text, clv_program_options o)
{
	rig r = {load_ok(text), NULL};
	if (clv_program_create(r.p, &o, &r.g) != CLV_OK)
		fail_msg("%s\nin\n%s", status_message(), text);
	return r;
}

static rig rig_new(const char *text)
{
	return rig_of(text, (clv_program_options)CLV_PROGRAM_OPTIONS_INIT);
}

static rig rig_range(const char *text, uint32_t first, uint32_t end)
{
	clv_program_options o = CLV_PROGRAM_OPTIONS_INIT;
	o.first = first;
	o.end = end;
	return rig_of(text, o);
}

static void rig_free(rig *r)
{
	clv_program_free(r->g);
	plan_free(r->p);
}

/* A plan that cannot be made into a program. */
static void refused(const char *text, clv_status status, const char *part)
{
	plan *p = load_ok(text);
	clv_program *g = NULL;
	FAILS(clv_program_create(p, NULL, &g), status, part);
	assert_null(g);
	plan_free(p);
}

static clv_tensor *tensor(const char *dtype, const void *data, uint32_t ndim, const int64_t *shape)
{
	clv_tensor *t = NULL;
	OK(clv_tensor_from_data(data, dtype, ndim, shape, &t));
	return t;
}

#define SHAPE(...)                                                                                                     \
	COUNT(((int64_t[]){__VA_ARGS__})), (int64_t[])                                                                     \
	{                                                                                                                  \
		__VA_ARGS__                                                                                                    \
	}
#define VECTOR(...) tensor("f32", (float[]){__VA_ARGS__}, SHAPE(COUNT(((float[]){__VA_ARGS__}))))

static void holds(const clv_tensor *t, const char *dtype, const void *want, size_t bytes)
{
	assert_string_equal(clv_tensor_dtype(t), dtype);
	assert_non_null(clv_tensor_data(t));
	assert_memory_equal(clv_tensor_data(t), want, bytes);
}

#define HOLDS(t, ...) holds(t, "f32", (float[]){__VA_ARGS__}, sizeof((float[]){__VA_ARGS__}))
#define HOLDS_I64(t, ...) holds(t, "i64", (int64_t[]){__VA_ARGS__}, sizeof((int64_t[]){__VA_ARGS__}))

static clv_status run(const rig *r, clv_tensor *const *in, uint32_t n, clv_tensor **out)
{
	return clv_program_run(r->g, (const clv_tensor *const *)in, n, out, clv_program_output_count(r->g));
}

#define INPUTS(...) (clv_tensor *[]){__VA_ARGS__}, COUNT(((clv_tensor *[]){__VA_ARGS__}))

static void free_all(clv_tensor **t, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		clv_tensor_free(t[i]);
}

/* Runs a plan of one output once. */
static clv_tensor *result_of(const char *text, clv_tensor *const *in, uint32_t n)
{
	rig r = rig_new(text);
	clv_tensor *out = NULL;
	clv_status st = run(&r, in, n, &out);
	if (st != CLV_OK)
		fail_msg("%s", status_message());
	rig_free(&r);
	return out;
}

/* Runs a plan of one output once; it fails. */
static void run_fails(const char *text, clv_tensor *const *in, uint32_t n, clv_status status, const char *part)
{
	rig r = rig_new(text);
	clv_tensor *out = NULL;
	FAILS(run(&r, in, n, &out), status, part);
	assert_null(out);
	rig_free(&r);
}

static long resident_kb(void)
{
	long pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");
	assert_non_null(f);
	assert_int_equal(fscanf(f, "%*d %ld", &pages), 1);
	fclose(f);
	return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* ---- memory (first: the peak of the process must not have been elsewhere) ---------------------------------------------- */

enum { BIG = 4 << 20 }; /* floats: 16 MB */

static clv_tensor *big_tensor(void)
{
	float *data = calloc(BIG, sizeof *data);
	assert_non_null(data);
	for (int i = 0; i < BIG; i++)
		data[i] = 1;
	clv_tensor *t = tensor("f32", data, SHAPE(BIG));
	free(data);
	return t;
}

/* `adds` additions of the input in a row, then `last`, which reads the last sum as %sum. */
static char *chain(int adds, const char *last)
{
	strbuf b = STRBUF_INIT;
	strbuf_printf(&b, HEAD "input %%0 f32[%d]\n", BIG);
	for (int i = 1; i < adds; i++)
		strbuf_printf(&b, "%%%d = aten::add.Tensor(%%%d, %%0, 1) -> f32[%d]\n", i, i - 1, BIG);
	strbuf_printf(&b, "%%sum = aten::add.Tensor(%%%d, %%0, 1) -> f32[%d]\n%s\n", adds - 1, BIG, last);
	return taken(&b);
}

static void values_die_at_their_last_use(void **state)
{
	(void)state;
	char *text = chain(60, "output %sum");
	rig r = rig_new(text);
	clv_tensor *x = big_tensor(), *out = NULL;
	long before = resident_kb();
	OK(run(&r, INPUTS(x), &out));
	struct rusage peak;
	assert_int_equal(getrusage(RUSAGE_SELF, &peak), 0);
	print_message("60 sums of 16 MB: %ld MB more at the peak\n", (peak.ru_maxrss - before) / 1024);
	assert_true(ADDRESS_SANITIZER || peak.ru_maxrss - before < 100 * 1024);
	assert_true(((const float *)clv_tensor_data(out))[BIG - 1] == 61);
	free_all((clv_tensor *[]){x, out}, 2);
	rig_free(&r);
	mem_free(text);
}

static void an_error_in_the_middle_leaves_no_tensors(void **state)
{
	(void)state;
	char *text = chain(3, "%bad = aten::reshape(%sum, [7]) -> f32[7]\n%end = aten::add.Tensor(%bad, %1, 1) -> f32[7]\n"
	                      "output (%end, %2)");
	rig r = rig_new(text);
	clv_tensor *x = big_tensor(), *out[2] = {NULL, NULL};
	FAILS(run(&r, INPUTS(x), out), CLV_E_TORCH, "node reshape");
	long before = resident_kb();
	for (int i = 0; i < 20; i++)
		FAILS(run(&r, INPUTS(x), out), CLV_E_TORCH, "node reshape");
	assert_true(ADDRESS_SANITIZER || resident_kb() - before < 16 * 1024);
	assert_true(!out[0] && !out[1]);
	clv_tensor_free(x);
	rig_free(&r);
	mem_free(text);
}

/* ---- results ------------------------------------------------------------------------------------------------------------ */

/* %1 is read by all later nodes, the input again by the last, the parameter by the second and in the output. */
static const char *const branches = HEAD "input %0 f32[3] name=\"x\"\ninput %y f32[3] name=\"y\"\nparam @w f32[3]\n"
										 "%1 = aten::relu(%0) -> f32[3]\n"
										 "%2 = aten::mul.Tensor(%1, @w) -> f32[3]\n"
										 "%3 = aten::add.Tensor(%2, %1, 2) -> f32[3]\n"
										 "%4 = aten::sub.Tensor(%3, %0, 1) -> f32[3]\n"
										 "output (%4, [%y, %4], {\"w\": @w, \"early\": %1})\n";

static void branches_hold(clv_tensor *const *out)
{
	HOLDS(out[0], 1, 22, 0);
	HOLDS(out[1], 7, 8, 9);
	HOLDS(out[2], 1, 22, 0);
	HOLDS(out[3], 10, 10, 0);
	HOLDS(out[4], 0, 2, 0);
}

static void a_plan_runs(void **state)
{
	(void)state;
	rig r = rig_new(branches);
	clv_tensor *x = VECTOR(-1, 2, 0), *y = VECTOR(7, 8, 9), *w = VECTOR(10, 10, 0), *out[5] = {NULL};
	OK(clv_program_bind(r.g, "w", w));
	assert_int_equal(clv_program_input_count(r.g), 2);
	assert_int_equal(clv_program_output_count(r.g), 5);
	for (int i = 0; i < 3; i++) {
		OK(run(&r, INPUTS(x, y), out));
		branches_hold(out);
		assert_ptr_equal(torch_of(out[0]), torch_of(out[2]));
		assert_ptr_equal(torch_of(out[1]), torch_of(y));
		assert_ptr_equal(torch_of(out[3]), torch_of(w));
		free_all(out, 5);
	}
	free_all((clv_tensor *[]){x, y, w}, 3);
	rig_free(&r);
}

static void prefix_and_suffix_together_are_the_plan_at_every_cut(void **state)
{
	(void)state;
	for (uint32_t cut = 1; cut < 4; cut++) {
		rig a = rig_range(branches, 0, cut), b = rig_range(branches, cut, 0);
		clv_tensor *x = VECTOR(-1, 2, 0), *y = VECTOR(7, 8, 9), *w = VECTOR(10, 10, 0), *between[4] = {NULL},
				   *out[5] = {NULL};
		uint32_t n = clv_program_output_count(a.g);
		assert_int_equal(n, clv_program_input_count(b.g));
		assert_int_equal(clv_program_bind(a.g, "w", w), cut > 1 ? CLV_OK : CLV_E_NOT_FOUND);
		OK(clv_program_bind(b.g, "w", w));
		OK(run(&a, INPUTS(x, y), between));
		free_all((clv_tensor *[]){x, y}, 2);
		OK(run(&b, between, n, out));
		branches_hold(out);
		free_all(between, n);
		free_all(out, 5);
		clv_tensor_free(w);
		rig_free(&a);
		rig_free(&b);
	}
}

static void a_range_in_the_middle_runs(void **state)
{
	(void)state;
	rig r = rig_range(branches, 1, 3); /* %0, %y and %1 come in; %0, %y, %1 and %3 go out */
	clv_tensor *x = VECTOR(1, 1, 1), *y = VECTOR(7, 8, 9), *one = VECTOR(1, 2, 3), *w = VECTOR(1, 0, 0),
			   *out[4] = {NULL};
	OK(clv_program_bind(r.g, "@w", w));
	assert_int_equal(clv_program_output_count(r.g), 4);
	OK(run(&r, INPUTS(x, y, one), out));
	HOLDS(out[3], 3, 4, 6);
	assert_ptr_equal(torch_of(out[0]), torch_of(x));
	free_all(out, 4);
	free_all((clv_tensor *[]){x, y, one, w}, 4);
	rig_free(&r);
}

static void a_range_that_is_none_is_refused(void **state)
{
	(void)state;
	plan *p = load_ok(branches);
	clv_program *g = NULL;
	clv_program_options o = CLV_PROGRAM_OPTIONS_INIT;
	o.first = 3;
	o.end = 2;
	FAILS(clv_program_create(p, &o, &g), CLV_E_INVALID, "nodes 3 to 2 are not a part of a plan of 4 nodes");
	o = (clv_program_options){sizeof o, 0, 5, false, true};
	FAILS(clv_program_create(p, &o, &g), CLV_E_INVALID, "nodes 0 to 5 are not a part");
	o = (clv_program_options){sizeof o + 8, 0, 0, false, true};
	FAILS(clv_program_create(p, &o, &g), CLV_E_INVALID, "this library knows up to");
	o.size = 0;
	FAILS(clv_program_create(p, &o, &g), CLV_E_INVALID, "clv_program_options.size is 0");
	FAILS(clv_program_create(NULL, NULL, &g), CLV_E_INVALID, "NULL");
	plan_free(p);
}

static void operators_with_several_results_run(void **state)
{
	(void)state;
	rig r = rig_new(HEAD "input %0 f32[2,4]\n"
	                     "[%a, %b] = aten::chunk(%0, 2, 1) -> [f32[2,2] view-of %0, f32[2,2] view-of %0]\n"
	                     "[_, %c, _] = aten::split.Tensor(%b, 1, 1) -> [none, f32[2,1] view-of %0, none]\n"
	                     "%v, %i = aten::topk(%a, 1, 1, true, true) -> f32[2,1], i64[2,1]\n"
	                     "_, %least = aten::min.dim(%a, 1, false) -> none, i64[2]\n"
	                     "%s = aten::add.Tensor(%c, %v, 1) -> f32[2,1]\n"
	                     "output (%s, %i, %least)\n");
	clv_tensor *x = tensor("f32", (float[]){1, 2, 3, 4, 8, 7, 6, 5}, SHAPE(2, 4)), *out[3] = {NULL};
	/* A list that has another length now is a guard, not a crash: split gives two here, the plan has three. */
	FAILS(run(&r, INPUTS(x), out), CLV_E_GUARD, "aten::split.Tensor returned 2 tensors, the plan has 3");
	rig_free(&r);
	r = rig_new(HEAD "input %0 f32[2,4]\n"
	                 "[%a, %b] = aten::chunk(%0, 2, 1) -> [f32[2,2] view-of %0, f32[2,2] view-of %0]\n"
	                 "[_, %c] = aten::split.Tensor(%b, 1, 1) -> [none, f32[2,1] view-of %0]\n"
	                 "%v, %i = aten::topk(%a, 1, 1, true, true) -> f32[2,1], i64[2,1]\n"
	                 "_, %least = aten::min.dim(%a, 1, false) -> none, i64[2]\n"
	                 "%s = aten::add.Tensor(%c, %v, 1) -> f32[2,1]\n"
	                 "output (%s, %i, %least)\n");
	OK(run(&r, INPUTS(x), out));
	HOLDS(out[0], 6, 13);
	HOLDS_I64(out[1], 1, 0);
	HOLDS_I64(out[2], 0, 1);
	free_all(out, 3);
	clv_tensor_free(x);
	rig_free(&r);
}

static void operators_that_write_their_input_write_the_callers_tensor(void **state)
{
	(void)state;
	clv_tensor *x = VECTOR(1, 2, 3, 4);
	clv_tensor *out = result_of(HEAD "input %0 f32[4]\n"
	                                 "%1 = aten::slice.Tensor(%0, 0, 1, 3, 1) -> f32[2] view-of %0\n"
	                                 "%2 = aten::mul_.Tensor(%1, num(10)) -> f32[2] view-of %0 writes %1\n"
	                                 "%3 = aten::add_.Tensor(%0, %0, 1) -> f32[4] view-of %0 writes %0\n"
	                                 "output %2\n",
	                            INPUTS(x));
	HOLDS(x, 2, 40, 60, 8);
	HOLDS(out, 40, 60);
	free_all((clv_tensor *[]){x, out}, 2);
}

static void two_inputs_on_one_memory_are_refused_where_inputs_are_written(void **state)
{
	(void)state;
	clv_tensor *x = VECTOR(1), *y = VECTOR(2);
	const char *const writes = HEAD "input %0 f32[1]\ninput %1 f32[1]\n"
									"%2 = aten::add_.Tensor(%0, %1, 1) -> f32[1] view-of %0 writes %0\noutput %2\n";
	run_fails(writes, INPUTS(x, x), CLV_E_INPUT, "two inputs share memory");
	clv_tensor *out = result_of(writes, INPUTS(x, y));
	HOLDS(out, 3);
	clv_tensor *both = result_of(HEAD "input %0 f32[1]\ninput %1 f32[1]\n"
	                                  "%2 = aten::add.Tensor(%0, %1, 1) -> f32[1]\noutput %2\n",
	                             INPUTS(x, x));
	HOLDS(both, 6);
	free_all((clv_tensor *[]){x, y, out, both}, 4);
}

static void a_suffix_that_writes_its_boundary_works_on_a_copy(void **state)
{
	(void)state;
	rig r = rig_range(HEAD "input %0 f32[2]\n"
	                       "%1 = aten::relu(%0) -> f32[2]\n"
	                       "%2 = aten::mul_.Tensor(%1, num(3)) -> f32[2] view-of %1 writes %1\n"
	                       "%3 = aten::add_.Tensor(%2, %1, 1) -> f32[2] view-of %1 writes %2\n"
	                       "output (%1, %3)\n",
	                  1, 0);
	clv_tensor *boundary = VECTOR(1, 2), *out[2] = {NULL};
	for (int i = 0; i < 2; i++) {
		OK(run(&r, INPUTS(boundary), out));
		HOLDS(boundary, 1, 2);
		HOLDS(out[0], 6, 12);
		assert_ptr_equal(clv_tensor_data(out[0]), clv_tensor_data(out[1]));
		free_all(out, 2);
	}
	clv_tensor_free(boundary);
	rig_free(&r);
}

/* contiguous() copies a tensor with gaps, so the model writes to a copy; of a dense copy of it, it would be the same. */
static void the_copy_of_a_boundary_has_its_strides(void **state)
{
	(void)state;
	const char *const text = HEAD "input %0 f32[4]\n"
								  "%1 = aten::relu(%0) -> f32[4]\n"
								  "%2 = aten::slice.Tensor(%1, 0, 0, 4, 2) -> f32[2] view-of %1\n"
								  "%3 = aten::neg_(%2) -> f32[2] view-of %1 writes %2\n"
								  "%4 = aten::contiguous(%2) -> f32[2]\n"
								  "%5 = aten::mul_.Tensor(%4, num(10)) -> f32[2] view-of %4 writes %4\n"
								  "%6 = aten::add.Tensor(%2, num(0), 1) -> f32[2]\n"
								  "output (%6, %5)\n";
	rig a = rig_range(text, 0, 2), b = rig_range(text, 2, 0);
	clv_tensor *x = VECTOR(1, 2, 3, 4), *boundary = NULL, *out[2] = {NULL};
	OK(run(&a, INPUTS(x), &boundary));
	OK(run(&b, INPUTS(boundary), out));
	HOLDS(out[0], -1, -3);
	HOLDS(out[1], -10, -30);
	free_all((clv_tensor *[]){x, boundary, out[0], out[1]}, 4);
	rig_free(&a);
	rig_free(&b);
}

static void lists_may_hold_none(void **state)
{
	(void)state;
	clv_tensor *x = tensor("f32", (float[]){1, 2, 3, 4, 5, 6}, SHAPE(2, 3)),
			   *i = tensor("i64", (int64_t[]){2, 0}, SHAPE(2));
	clv_tensor *out = result_of(HEAD "input %0 f32[2,3]\ninput %1 i64[2]\n"
	                                 "%2 = aten::index.Tensor(%0, [none, %1]) -> f32[2,2]\n"
	                                 "output %2\n",
	                            INPUTS(x, i));
	HOLDS(out, 3, 1, 6, 4);
	free_all((clv_tensor *[]){x, i, out}, 3);
}

static void a_tensor_may_stand_twice_in_a_call(void **state)
{
	(void)state;
	clv_tensor *x = VECTOR(1, 2);
	clv_tensor *out = result_of(HEAD "input %0 f32[2]\n"
	                                 "%1 = aten::relu(%0) -> f32[2]\n"
	                                 "%2 = aten::cat([%1, %0, %1], 0) -> f32[6]\n"
	                                 "output %2\n",
	                            INPUTS(x));
	HOLDS(out, 1, 2, 1, 2, 1, 2);
	free_all((clv_tensor *[]){x, out}, 2);
}

static void wrapped_numbers_do_not_promote(void **state)
{
	(void)state;
	clv_tensor *f = VECTOR(1, 2), *i = tensor("i64", (int64_t[]){1, 2}, SHAPE(2));
	clv_tensor *half =
		result_of(HEAD "input %0 f32[2]\n%1 = aten::mul.Tensor(%0, num(0.5)) -> f32[2]\noutput %1\n", INPUTS(f));
	HOLDS(half, 0.5f, 1);
	clv_tensor *more =
		result_of(HEAD "input %0 i64[2]\n%1 = aten::add.Tensor(%0, num(0.5), 1) -> f32[2]\noutput %1\n", INPUTS(i));
	HOLDS(more, 1.5f, 2.5f);
	clv_tensor *whole =
		result_of(HEAD "input %0 i64[2]\n%1 = aten::add.Tensor(%0, num(true), 2) -> i64[2]\noutput %1\n", INPUTS(i));
	HOLDS_I64(whole, 3, 4);
	free_all((clv_tensor *[]){f, i, half, more, whole}, 5);
}

static void arguments_that_the_plan_leaves_out_have_their_defaults(void **state)
{
	(void)state;
	clv_tensor *x = tensor("f32", (float[]){1, 2, 3, 4}, SHAPE(2, 2));
	clv_tensor *out =
		result_of(HEAD "input %0 f32[2,2]\n%1 = aten::sum.dim_IntList(%0, [1]) -> f32[2]\noutput %1\n", INPUTS(x));
	HOLDS(out, 3, 7);
	free_all((clv_tensor *[]){x, out}, 2);
}

static void sizes_follow_the_symbols(void **state)
{
	(void)state;
	const char *const text = HEAD "symbol B 1..4\ninput %0 f32[B,2] name=\"x\"\n"
								  "%1 = aten::reshape(%0, [2*B]) -> f32[2*B]\n"
								  "%2 = aten::mul.Tensor(%1, num(B)) -> f32[2*B]\n"
								  "%3 = aten::slice.Tensor(%2, 0, B-1, 9, 1) -> f32[B+1]\n"
								  "output %3\n";
	clv_tensor *x1 = tensor("f32", (float[]){1, 2}, SHAPE(1, 2)),
			   *x3 = tensor("f32", (float[]){1, 2, 3, 4, 5, 6}, SHAPE(3, 2)),
			   *x5 = tensor("f32", (float[10]){0}, SHAPE(5, 2));
	clv_tensor *y1 = result_of(text, INPUTS(x1)), *y3 = result_of(text, INPUTS(x3));
	HOLDS(y1, 1, 2);
	HOLDS(y3, 9, 12, 15, 18);
	run_fails(text, INPUTS(x5), CLV_E_INPUT, "B is 5, the plan is for 1 to 4");
	free_all((clv_tensor *[]){x1, x3, x5, y1, y3}, 5);
}

/* ---- guards ------------------------------------------------------------------------------------------------------------- */

static void floats_follow_the_symbols(void **state)
{
	(void)state;
	const float ones[] = {1, 1, 1};
	const float thirds[] = {1.0f / 3, 1.0f / 3, 1.0f / 3};
	clv_tensor *x = tensor("f32", ones, 1, (int64_t[]){3});
	clv_tensor *y = result_of(HEAD "symbol B 1..9\ninput %0 f32[B]\n"
	                               "%1 = aten::mul.Tensor(%0, num(float(1.0/int(B)))) -> f32[B]\noutput %1\n",
	                          &x, 1);
	holds(y, "f32", thirds, sizeof thirds);
	clv_tensor_free(y);
	run_fails(HEAD "symbol B 1..9\ninput %0 f32[B]\n"
	               "%1 = aten::mul.Tensor(%0, num(float(1.0/int(B-3)))) -> f32[B]\noutput %1\n",
	          &x, 1, CLV_E_OVERFLOW, "not defined for these sizes");
	clv_tensor_free(x);
}

#define COUNTED                                                                                                        \
	HEAD "symbol n 1..2 data\ninput %0 i64[3]\n%1 = aten::sum(%0, none) -> i64[]\n"                                    \
		 "%2 = aten::item(%1) -> int = n {host}\n"                                                                     \
		 "%3 = aten::slice.Tensor(%0, 0, 0, n, 1) -> i64[n] view-of %0\n"                                              \
		 "%4 = aten::mul.Tensor(%3, num(10*n)) -> i64[n]\noutput %4\n"

static void numbers_read_from_data_are_taken_by_later_calls(void **state)
{
	(void)state;
	const int64_t two[] = {1, 0, 1}, none[] = {0, 0, 0}, want[] = {20, 0};
	clv_tensor *x = tensor("i64", two, 1, (int64_t[]){3}), *z = tensor("i64", none, 1, (int64_t[]){3});
	clv_tensor *y = result_of(COUNTED, &x, 1);
	holds(y, "i64", want, sizeof want);
	clv_tensor_free(y);
	run_fails(COUNTED, &z, 1, CLV_E_GUARD, "proven for 1 to 2");
	clv_tensor_free(x);
	clv_tensor_free(z);
}

static void sizes_read_from_data_are_taken_by_later_calls(void **state)
{
	(void)state;
	const int64_t two[] = {5, 0, 7}, want[] = {0, 4};
	clv_tensor *x = tensor("i64", two, 1, (int64_t[]){3});
	clv_tensor *y = result_of(HEAD "symbol n 0..3 data\ninput %0 i64[3]\n%1 = aten::nonzero(%0) -> i64[n,1] guard\n"
	                               "%2 = aten::view(%1, [n]) -> i64[n] view-of %1\n"
	                               "%3 = aten::mul.Tensor(%2, num(n)) -> i64[n]\noutput %3\n",
	                          &x, 1);
	holds(y, "i64", want, sizeof want);
	clv_tensor_free(y);
	clv_tensor_free(x);
}

#define SCALED                                                                                                         \
	HEAD "input %0 f32[2]\n%1 = aten::max(%0) -> f32[]\n%2 = aten::item(%1) -> float = [0.5, 4.0] {host}\n"            \
		 "%3 = aten::mul.Tensor(%0, num(%2)) -> f32[2]\noutput %3\n"

static void a_float_read_from_data_is_taken_within_its_range(void **state)
{
	(void)state;
	const float in[] = {1, 2}, out[] = {2, 4}, large[] = {1, 8};
	clv_tensor *x = tensor("f32", in, 1, (int64_t[]){2}), *z = tensor("f32", large, 1, (int64_t[]){2});
	clv_tensor *y = result_of(SCALED, &x, 1);
	holds(y, "f32", out, sizeof out);
	clv_tensor_free(y);
	run_fails(SCALED, &z, 1, CLV_E_GUARD, "reads 8 from the data");
	run_fails(HEAD "input %0 f32[2]\n%1 = aten::max(%0) -> f32[]\n%2 = aten::item(%1) -> int {host}\n"
	               "%3 = aten::mul.Tensor(%0, num(%2)) -> f32[2]\noutput %3\n",
	          &x, 1, CLV_E_GUARD, "another type");
	clv_tensor_free(x);
	clv_tensor_free(z);
}

static void a_number_that_differs_stops_the_run(void **state)
{
	(void)state;
	const char *const text = HEAD "scope \"\" \"Net\"\nscope gate \"Gate\"\ninput %0 f32[1]\n"
								  "%1 = aten::item(%0) -> float = 2.5 {host} in gate at \"net.py:7\"\n"
								  "%2 = aten::relu(%0) -> f32[1]\n"
								  "output %2\n";
	clv_tensor *same = VECTOR(2.5f), *other = VECTOR(3.5f);
	clv_tensor *out = result_of(text, INPUTS(same));
	HOLDS(out, 2.5f);
	run_fails(
		text, INPUTS(other), CLV_E_GUARD,
		"node item (aten::item) in gate at net.py:7, inputs %0 f32[1]: the forward read 2.5 from the data when it "
		"was captured, now it is 3.5");
	free_all((clv_tensor *[]){same, other, out}, 3);
}

static void guards_compare_all_kinds_of_numbers(void **state)
{
	(void)state;
	static const struct {
		const char *text, *dtype, *part;
		union {
			uint8_t b;
			int64_t i;
			double f, c[2];
		} same, other;
	} cases[] = {
		{"input %0 bool[]\n%1 = aten::is_nonzero(%0) -> bool = true\n",
	     "bool",
	     "node is_nonzero (aten::is_nonzero), inputs %0 bool[]: the forward read true from the data when it was "
	     "captured, "
	     "now it is false",
	     {.b = 1},
	     {.b = 0}},
		{"input %0 i64[]\n%1 = aten::item(%0) -> int = -3\n",
	     "i64",
	     "read -3 from the data when it was captured, now it is 4",
	     {.i = -3},
	     {.i = 4}},
		{"input %0 f64[]\n%1 = aten::item(%0) -> float = 0.0\n",
	     "f64",
	     "read 0.0 from the data when it was captured, now it is -0.0",
	     {.f = 0.0},
	     {.f = -0.0}},
		{"input %0 c128[]\n%1 = aten::item(%0) -> complex = complex(1.0, 2.0)\n",
	     "c128",
	     "read 1.0 + 2.0j from the data when it was captured, now it is 1.0 + 3.0j",
	     {.c = {1, 2}},
	     {.c = {1, 3}}},
	};
	for (size_t i = 0; i < COUNT(cases); i++) {
		strbuf b = STRBUF_INIT;
		strbuf_printf(&b, HEAD "%soutput %%0\n", cases[i].text);
		char *text = taken(&b);
		clv_tensor *same = tensor(cases[i].dtype, &cases[i].same, 0, NULL),
				   *other = tensor(cases[i].dtype, &cases[i].other, 0, NULL), *out = result_of(text, INPUTS(same));
		run_fails(text, INPUTS(other), CLV_E_GUARD, cases[i].part);
		free_all((clv_tensor *[]){same, other, out}, 3);
		mem_free(text);
	}
}

static void a_guarded_number_may_be_an_expression(void **state)
{
	(void)state;
	const char *const text = HEAD "symbol B 1..8\ninput %0 f32[B]\n"
								  "%1 = aten::sum(%0) -> f32[]\n%2 = aten::to.dtype(%1, dtype:i64) -> i64[]\n"
								  "%3 = aten::item(%2) -> int = 2*B\noutput %0\n";
	clv_tensor *three = VECTOR(1, 2, 3), *two = VECTOR(2, 3), *out = result_of(text, INPUTS(three));
	run_fails(text, INPUTS(two), CLV_E_GUARD, "read 4 from the data when it was captured, now it is 5");
	free_all((clv_tensor *[]){three, two, out}, 3);
}

static void a_shape_that_depends_on_data_is_a_guard(void **state)
{
	(void)state;
	const char *const text = HEAD "input %0 f32[3]\n%1 = aten::nonzero(%0) -> i64[2,1] guard\noutput %1\n";
	clv_tensor *two = VECTOR(0, 5, 5), *one = VECTOR(0, 5, 0), *out = result_of(text, INPUTS(two));
	HOLDS_I64(out, 1, 2);
	run_fails(
		text, INPUTS(one), CLV_E_GUARD,
		"node nonzero (aten::nonzero), inputs %0 f32[3]: the result is i64[1,1], the plan holds only for i64[2,1]");
	free_all((clv_tensor *[]){two, one, out}, 3);
}

static void guard_equal_compares_bits(void **state)
{
	(void)state;
	rig r = rig_new(HEAD "input %0 f32[2]\nconst #0 f32[2]\ncleave::guard_equal(%0, #0, \"tolist()\")\noutput %0\n");
	clv_tensor *x = VECTOR(1, 0), *same = VECTOR(1, 0), *other = VECTOR(1, -0.0f), *out = NULL;
	OK(clv_program_bind(r.g, "#0", same));
	OK(run(&r, INPUTS(x), &out));
	OK(clv_program_bind(r.g, "#0", other));
	clv_tensor *none = NULL;
	FAILS(run(&r, INPUTS(x), &none), CLV_E_GUARD,
	      "node guard_equal (cleave::guard_equal), inputs %0 f32[2], #0 f32[2]: the forward read this tensor by "
	      "tolist()");
	free_all((clv_tensor *[]){x, same, other, out}, 4);
	rig_free(&r);
}

static void debug_mode_names_the_first_result_that_is_not_as_planned(void **state)
{
	(void)state;
	const char *const text = HEAD "input %0 f32[2]\n"
								  "%1 = aten::relu(%0) -> f32[2]\n"
								  "%2 = aten::neg(%1) -> f32[3]\n"
								  "%3 = aten::abs(%2) -> f64[2]\n"
								  "output %3\n";
	clv_program_options o = CLV_PROGRAM_OPTIONS_INIT;
	clv_tensor *x = VECTOR(1, 2), *out = NULL;
	o.debug = true;
	rig r = rig_of(text, o);
	FAILS(run(&r, INPUTS(x), &out), CLV_E_GUARD,
	      "node neg (aten::neg), inputs %1 f32[2]: the result is f32[2], the plan holds only for f32[3]");
	rig_free(&r);
	clv_tensor_free(x);
}

/* ---- errors ------------------------------------------------------------------------------------------------------------- */

static void writes_that_the_plan_does_not_declare_are_refused(void **state)
{
	static const char *const nodes[] = {
		"%1 = aten::relu_(%0) -> f32[4] view-of %0",
		"%1 = aten::add.out(%0, %0, 1, %0) -> f32[4] view-of %0",
		"%1 = aten::copy_(@w, %0, false) -> f32[4] view-of @w",
		"aten::_foreach_zero_([@w, %0]) writes %0",
		"%1 = aten::native_batch_norm(%2, none, none, @w, @v, true, 0.1, 1e-05) -> f32[1,4] writes @w",
		"%1 = aten::batch_norm(%2, none, none, @w, @v, true, 0.1, 1e-05, true) -> f32[1,4]",
	};
	(void)state;
	for (size_t i = 0; i < COUNT(nodes); i++) {
		char text[600];
		snprintf(text, sizeof text,
		         HEAD "input %%0 f32[4]\ninput %%2 f32[1,4]\nparam @w f32[4]\nparam @v f32[4]\n%s\noutput %%0\n",
		         nodes[i]);
		refused(text, CLV_E_INVALID, "the plan does not say so");
	}
}

static void numbers_that_stand_for_no_dtype_are_refused(void **state)
{
	static const char *const nodes[] = {
		"aten::empty.memory_format([2], 200)",
		"aten::empty.memory_format([2], -1)",
		"aten::empty.memory_format([2], none, 99)",
		"aten::empty.memory_format([2], none, none, none, none, 77)",
		"aten::to.dtype(%0, 1000)",
		"aten::to.dtype(%0, B)",
		"aten::contiguous(%0, 9)",
	};
	(void)state;
	for (size_t i = 0; i < COUNT(nodes); i++) {
		char text[400];
		snprintf(text, sizeof text, HEAD "symbol B 1..9\ninput %%0 f32[B]\n%%1 = %s -> f32[2]\noutput %%1\n", nodes[i]);
		refused(text, CLV_E_INVALID, "and the plan has another number");
	}
}

static void calls_that_fit_no_operator_are_refused(void **state)
{
	(void)state;
	static const struct {
		const char *node, *part;
		clv_status status;
	} cases[] = {
		{"%1 = aten::frobnicate(%0) -> f32[2]", "PyTorch has no operator aten::frobnicate", CLV_E_UNSUPPORTED},
		{"%1 = cleave::unheard_of(%0) -> f32[2]", "PyTorch has no operator cleave::unheard_of", CLV_E_UNSUPPORTED},
		{"%1 = aten::relu.overload(%0) -> f32[2]", "PyTorch has no operator aten::relu.overload", CLV_E_UNSUPPORTED},
		{"%1 = aten::relu(%0, 1) -> f32[2]", "aten::relu takes 1 arguments here, the plan has 2", CLV_E_INVALID},
		{"%1 = aten::add.Tensor(%0) -> f32[2]", "aten::add.Tensor needs argument 1 (other), the plan has 1 arguments",
	     CLV_E_INVALID},
		{"%1, %2 = aten::relu(%0) -> f32[2], f32[2]", "aten::relu returns 1 results here, the plan has 2",
	     CLV_E_INVALID},
		{"%1 = aten::cat([%0, 3], 0) -> f32[2]", "argument 0 (tensors) of aten::cat takes Tensor[]", CLV_E_INVALID},
		{"%1 = aten::relu([%0]) -> f32[2]", "argument 0 (self) of aten::relu takes Tensor", CLV_E_INVALID},
		{"%1 = aten::reshape(%0, [1, \"a\"]) -> f32[2]", "argument 1 (shape) of aten::reshape takes", CLV_E_INVALID},
		{"%1 = aten::bernoulli(%0, #g) -> f32[2]", "argument 1 is an object (torch.Generator)", CLV_E_UNSUPPORTED},
		{"%1 = aten::item(%0) -> complex\n%2 = aten::add.Scalar(%0, %1, 1) -> f32[2]",
	     "a host value that is no number as an argument", CLV_E_UNSUPPORTED},
		{"%1 = aten::mul.Scalar(%0, n) -> f32[2]\n%2 = aten::item(%0) -> int = n", "n is read from data",
	     CLV_E_UNSUPPORTED},
		{"%1 = aten::to.device(%0, device:nowhere, dtype:f32) -> f32[2]", "nowhere", CLV_E_TORCH},
	};
	for (size_t i = 0; i < COUNT(cases); i++) {
		strbuf b = STRBUF_INIT;
		strbuf_printf(&b, HEAD "symbol n 0..9 data\ninput %%0 f32[2]\nobject #g \"torch.Generator\"\n%s\noutput %%0\n",
		              cases[i].node);
		char *text = taken(&b);
		refused(text, cases[i].status, cases[i].part);
		assert_non_null(strstr(status_message(), " cannot be prepared: %")); /* with the node's line */
		mem_free(text);
	}
}

static void arguments_of_a_wrong_kind_fail_when_they_are_called(void **state)
{
	(void)state;
	static const char *const calls[] = {"aten::relu(3)",
	                                    "aten::relu(\"a\")",
	                                    "aten::sum.dim_IntList(%0, [0], 7)",
	                                    "aten::dropout(%0, true, false)",
	                                    "aten::to.dtype(%0, \"f32\")",
	                                    "aten::softmax.int(%0, %0)",
	                                    "aten::relu(none)",
	                                    "aten::leaky_relu(%0, [])"};
	clv_tensor *x = VECTOR(1, 2);
	for (size_t i = 0; i < COUNT(calls); i++) {
		strbuf b = STRBUF_INIT;
		strbuf_printf(&b, HEAD "input %%0 f32[2]\n%%1 = %s -> f32[2]\noutput %%1\n", calls[i]);
		char *text = taken(&b);
		plan *p = load_ok(text);
		clv_program *g = NULL;
		clv_tensor *out = NULL;
		clv_status st = clv_program_create(p, NULL, &g);
		if (st == CLV_OK)
			st = clv_program_run(g, (const clv_tensor *const *)INPUTS(x), &out, 1);
		if (st != CLV_E_TORCH && st != CLV_E_MACHINE && st != CLV_E_INVALID)
			fail_msg("%s: status %d %s", calls[i], st, status_message());
		clv_program_free(g);
		plan_free(p);
		mem_free(text);
	}
	clv_tensor_free(x);
}

static void inputs_that_do_not_fit_are_named(void **state)
{
	(void)state;
	rig r =
		rig_new(HEAD "input %0 f32[2,3] name=\"image\"\ninput %1 i64[]\n%2 = aten::relu(%0) -> f32[2,3]\noutput %2\n");
	float data[12] = {0};
	clv_tensor *good = tensor("f32", data, SHAPE(2, 3)), *n = tensor("i64", data, 0, NULL), *out = NULL;
	clv_tensor *f64 = tensor("f64", data, SHAPE(2, 3)), *rank = tensor("f32", data, SHAPE(6)),
			   *size = tensor("f32", data, SHAPE(2, 4)), *wide = tensor("f32", data, SHAPE(3, 2));
	clv_tensor *turned =
		result_of(HEAD "input %0 f32[3,2]\n%1 = aten::t(%0) -> f32[2,3] view-of %0\noutput %1\n", INPUTS(wide));
	OK(run(&r, INPUTS(good, n), &out));
	clv_tensor_free(out);
	FAILS(run(&r, INPUTS(good), &out), CLV_E_INPUT, "takes 2 inputs and gives 1 outputs; the call has 1 and 1");
	FAILS(run(&r, INPUTS(good, NULL), &out), CLV_E_INPUT, "input %1 is missing");
	FAILS(run(&r, INPUTS(f64, n), &out), CLV_E_INPUT, "input image: dtype is f64, the plan was captured with f32");
	FAILS(run(&r, INPUTS(rank, n), &out), CLV_E_INPUT, "input image has 1 dimensions, the plan was captured with 2");
	FAILS(run(&r, INPUTS(size, n), &out), CLV_E_INPUT,
	      "input image: dimension 1 is 4, the plan was captured with 3 (f32[2,3])");
	FAILS(run(&r, INPUTS(good, good), &out), CLV_E_INPUT, "input %1: dtype is f32, the plan was captured with i64");
	FAILS(run(&r, INPUTS(turned, n), &out), CLV_E_LAYOUT, "input image: its strides differ from those at capture");
	FAILS(clv_program_run(r.g, NULL, 2, &out, 1), CLV_E_INVALID, "NULL");
	assert_null(clv_tensor_data(turned));
	free_all((clv_tensor *[]){good, n, f64, rank, size, wide, turned}, 7);
	rig_free(&r);
}

static void strides_are_part_of_an_input(void **state)
{
	(void)state;
	const char *const text =
		HEAD "input %0 f32[2,3] strides(1,2)\n%1 = aten::t(%0) -> f32[3,2] view-of %0\noutput %1\n";
	clv_tensor *x = tensor("f32", (float[]){1, 2, 3, 4, 5, 6}, SHAPE(3, 2)),
			   *flat = tensor("f32", (float[6]){0}, SHAPE(2, 3));
	clv_tensor *turned =
		result_of(HEAD "input %0 f32[3,2]\n%1 = aten::t(%0) -> f32[2,3] view-of %0\noutput %1\n", INPUTS(x));
	clv_tensor *back = result_of(text, INPUTS(turned));
	HOLDS(back, 1, 2, 3, 4, 5, 6);
	run_fails(text, INPUTS(flat), CLV_E_LAYOUT, "input %0: its strides differ");
	free_all((clv_tensor *[]){x, flat, turned, back}, 4);
}

static void parameters_must_be_bound_and_fit(void **state)
{
	(void)state;
	rig r = rig_new(HEAD "input %0 f32[2]\nparam @w f32[2]\n%1 = aten::add.Tensor(%0, @w, 1) -> f32[2]\noutput %1\n");
	clv_tensor *x = VECTOR(1, 2), *w = VECTOR(1, 1), *short_w = VECTOR(1),
			   *int_w = tensor("i64", (int64_t[]){1, 1}, SHAPE(2)), *out = NULL;
	FAILS(run(&r, INPUTS(x), &out), CLV_E_INPUT, "@w is not bound");
	FAILS(clv_program_bind(r.g, "weight", w), CLV_E_NOT_FOUND, "the program reads nothing called weight");
	FAILS(clv_program_bind(r.g, "w", NULL), CLV_E_INVALID, "NULL");
	OK(clv_program_bind(r.g, "w", short_w));
	FAILS(run(&r, INPUTS(x), &out), CLV_E_INPUT,
	      "@w is now f32 of another shape on cpu, the plan was captured with f32");
	OK(clv_program_bind(r.g, "w", int_w));
	FAILS(run(&r, INPUTS(x), &out), CLV_E_INPUT, "@w is now i64 on cpu, the plan was captured with f32");
	OK(clv_program_bind(r.g, "w", w));
	free_all((clv_tensor *[]){w, short_w, int_w}, 3); /* the program has its own reference */
	OK(run(&r, INPUTS(x), &out));
	HOLDS(out, 2, 3);
	free_all((clv_tensor *[]){x, out}, 2);
	rig_free(&r);
}

static void what_pytorch_says_arrives_whole_with_the_place(void **state)
{
	(void)state;
	clv_tensor *a = tensor("f32", (float[6]){0}, SHAPE(2, 3)), *b = tensor("f32", (float[20]){0}, SHAPE(4, 5));
	run_fails(
		HEAD "scope \"\" \"Net\"\nscope head \"Head\"\nscope head.fc \"Linear\"\n"
			 "input %0 f32[2,3]\ninput %1 f32[4,5]\n"
			 "%2 = aten::relu(%0) -> f32[2,3]\n"
			 "%3 = aten::mm(%2, %1) -> f32[2,5] in head.fc at \"net.py:12\"\n"
			 "output %3\n",
		INPUTS(a, b), CLV_E_TORCH,
		"node mm (aten::mm) in head.fc at net.py:12, inputs %2 f32[2,3], %1 f32[4,5]: mat1 and mat2 shapes cannot be "
		"multiplied (2x3 and 4x5)");
	run_fails(
		HEAD "input %0 f32[2,3]\ninput %1 f32[4,5]\n%3 = aten::cat([%0, %1], 0) -> f32[6,5]\noutput %3\n", INPUTS(a, b),
		CLV_E_TORCH,
		"node cat (aten::cat), inputs %0 f32[2,3], %1 f32[4,5]: Sizes of tensors must match except in dimension 0");
	run_fails(HEAD "input %0 f32[2,3]\ninput %1 f32[4,5]\n%3 = aten::ones([-1]) -> f32[1]\noutput %3\n", INPUTS(a, b),
	          CLV_E_TORCH, "node ones (aten::ones): Trying to create tensor with negative dimension -1");
	free_all((clv_tensor *[]){a, b}, 2);
}

static void python_calls_are_refused_without_python(void **state)
{
	(void)state;
	clv_tensor *x = VECTOR(1);
	run_fails(
		HEAD "input %0 f32[1]\nobject #f \"net.Square\"\n%1 = cleave::python(#f, %0) -> f32[1]\noutput %1\n", INPUTS(x),
		CLV_E_UNSUPPORTED,
		"node python (cleave::python), inputs %0 f32[1]: it calls Python code (net.Square), which only runs in the "
		"process that captured it");
	clv_tensor_free(x);
}

static void an_output_that_is_no_tensor_is_refused(void **state)
{
	(void)state;
	refused(HEAD "input %0 f32[1]\n%1 = aten::item(%0) -> float\noutput (%0, %1)\n", CLV_E_UNSUPPORTED,
	        "output 1 of the program is no tensor");
	refused(HEAD "object #g \"torch.Generator\"\noutput #g\n", CLV_E_UNSUPPORTED,
	        "output 0 of the program is no tensor");
}

/* Makes a program, binds it and runs it, with allocation number n failing. */
static clv_status attempt(const plan *p, clv_tensor *x, uint64_t n)
{
	clv_program *g = NULL;
	clv_tensor *out = NULL;
	mem_fail_after(n);
	clv_status st = clv_program_create(p, NULL, &g);
	if (st == CLV_OK)
		st = clv_program_bind(g, "w", x);
	if (st == CLV_OK)
		st = clv_program_run(g, (const clv_tensor *const *)INPUTS(x), &out, 1);
	mem_fail_after(0);
	clv_tensor_free(out);
	clv_program_free(g);
	return st;
}

static void every_allocation_may_fail(void **state)
{
	(void)state;
	static const struct {
		const char *node;
		clv_status status;
	} cases[] = {
		{"%3 = aten::add.Tensor(%2, @w, 1) -> f32[B]", CLV_OK},
		{"%3 = aten::reshape(%2, [7]) -> f32[7] in \"\" at \"net.py:1\"", CLV_E_TORCH},
		{"%n = aten::item(%2) -> float = 1.0\n%3 = aten::relu(%0) -> f32[B]", CLV_E_GUARD},
		{"%3 = aten::nonzero(%2) -> i64[7,B] guard", CLV_E_GUARD},
		{"cleave::guard_equal(%2, @w, \"numpy()\")\n%3 = aten::relu(%0) -> f32[B]", CLV_E_GUARD},
		{"%3 = aten::frobnicate(%2) -> f32[B]", CLV_E_UNSUPPORTED},
		{"%3 = cleave::python(#f, %2) -> f32[B]", CLV_E_UNSUPPORTED},
	};
	clv_tensor *x = VECTOR(2);
	for (size_t i = 0; i < COUNT(cases); i++) {
		strbuf b = STRBUF_INIT;
		strbuf_printf(&b,
		              HEAD "symbol B 1..4\nscope \"\" \"Net\"\ninput %%0 f32[B]\nparam @w f32[B]\nobject #f \"net.F\"\n"
		                   "[%%1] = aten::split.Tensor(%%0, B, 0) -> [f32[B] view-of %%0]\n"
		                   "%%2 = aten::add.Tensor(%%1, @w, B) -> f32[B] {nograd}\n%s\noutput %%3\n",
		              cases[i].node);
		char *text = taken(&b);
		plan *p = load_ok(text);
		uint64_t n = 1;
		clv_status st;
		while ((st = attempt(p, x, n)) == CLV_E_NOMEM || (st == cases[i].status && n < 100))
			n++;
		if (st != cases[i].status)
			fail_msg("%s: allocation %llu: status %d \"%s\"", cases[i].node, (unsigned long long)n, st,
			         status_message());
		plan_free(p);
		mem_free(text);
	}
	clv_tensor_free(x);
}

/* ---- threads and modes ----------------------------------------------------------------------------------------------------- */

enum { THREADS = 2, RUNS = 200 };

typedef struct worker {
	const rig *r;
	float start;
	int wrong;
} worker;

static void *work(void *at)
{
	worker *w = at;
	for (int i = 0; i < RUNS; i++) {
		float x = w->start + (float)i;
		clv_tensor *in = NULL, *out = NULL;
		clv_status st = clv_tensor_from_data(&x, "f32", 1, (int64_t[]){1}, &in);
		if (st == CLV_OK)
			st = run(w->r, &in, 1, &out);
		/* Negative data fails the guard of the plan, in between runs that succeed. */
		if (x < 0 ? st != CLV_E_GUARD : st != CLV_OK || *(const float *)clv_tensor_data(out) != x + 40)
			w->wrong++;
		clv_tensor_free(in);
		clv_tensor_free(out);
	}
	return NULL;
}

static void threads_run_one_program_at_once(void **state)
{
	(void)state;
	strbuf b = STRBUF_INIT;
	strbuf_puts(&b, HEAD "input %0 f32[1]\n%pos = aten::ge.Scalar(%0, 0) -> bool[1]\n"
	                     "%g = aten::is_nonzero(%pos) -> bool = true\n");
	for (int i = 0; i < 40; i++)
		strbuf_printf(&b, "%%%d = aten::add.Tensor(%%%d, num(1), 1) -> f32[1]\n", i + 1, i);
	strbuf_puts(&b, "output %40\n");
	char *text = taken(&b);
	rig r = rig_new(text);
	pthread_t threads[THREADS];
	worker workers[THREADS] = {{&r, -100, 0}, {&r, 1000, 0}};
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(workers[i].wrong, 0);
	rig_free(&r);
	mem_free(text);
}

/* mse_loss of bf16 is f32 under autocast and bf16 without; the last node fails, as %x has two elements. */
static const char *const modal =
	HEAD "input %0 bf16[2]\ninput %x f32[2]\n"
		 "%1 = aten::mse_loss(%0, %0, 1) -> f32[] {autocast=cpu:bf16}\n"
		 "%2 = aten::mse_loss(%0, %0, 1) -> bf16[] {nograd}\n"
		 "%3 = aten::mse_loss(%0, %0, 1) -> f32[] {autocast=cpu:f16:cache, flags=sdp_math:off}\n"
		 "%4 = aten::item(%x) -> float {nograd, flags=mkldnn:off, autocast=cpu:bf16}\n"
		 "output (%1, %2, %3)\n";

static void check_modes(const br_modes *want)
{
	br_modes now;
	br_modes_get(&now);
	assert_memory_equal(&now, want, sizeof now);
}

static void modes_are_those_of_the_plan_inside_and_the_callers_after(void **state)
{
	(void)state;
	clv_program_options o = CLV_PROGRAM_OPTIONS_INIT;
	o.debug = true; /* checks the dtypes of the results, and so the modes */
	clv_tensor *x = tensor("bf16", (uint16_t[2]){0}, SHAPE(2)), *two = VECTOR(1, 2);
	br_modes before;
	br_modes_get(&before);
	for (int grad = 0; grad < 2; grad++)
		for (int autocast = 0; autocast < 2; autocast++)
			for (int inference = 0; inference < 2; inference++) {
				br_modes caller = before;
				caller.grad = grad;
				caller.autocast[0] = caller.autocast_cache = autocast;
				caller.autocast_dtype[0] = autocast ? DT_F16 : 0;
				br_modes_set(&caller, 0);
				check_modes(&caller);
				o.inference = inference;
				rig r = rig_of(modal, o);
				clv_tensor *out[8] = {NULL};
				FAILS(run(&r, INPUTS(x, two), out), CLV_E_TORCH, "node item");
				check_modes(&caller);
				rig_free(&r);
				o.end = 3; /* without the node that fails */
				r = rig_of(modal, o);
				o.end = 0;
				OK(run(&r, INPUTS(x, two), out));
				check_modes(&caller);
				free_all(out, clv_program_output_count(r.g));
				rig_free(&r);
			}
	br_modes_set(&before, 0);
	free_all((clv_tensor *[]){x, two}, 2);
}

static void grad_is_on_where_plan_caller_and_options_let_it(void **state)
{
	(void)state;
	clv_program_options o = CLV_PROGRAM_OPTIONS_INIT;
	br_modes before;
	br_modes_get(&before);
	for (int grad = 0; grad < 2; grad++)
		for (int inference = 0; inference < 2; inference++) {
			o.inference = inference;
			rig r = rig_of(HEAD "input %0 f32[1]\n"
			                    "%1 = aten::requires_grad_(%0, true) -> f32[1] view-of %0 writes %0\n"
			                    "%2 = aten::relu(%1) -> f32[1]\n"
			                    "%3 = aten::relu(%1) -> f32[1] {nograd}\n"
			                    "output (%2, %3)\n",
			               o);
			br_modes caller = before;
			caller.grad = grad;
			br_modes_set(&caller, 0);
			clv_tensor *x = VECTOR(1), *out[2] = {NULL};
			br_meta two, three;
			OK(run(&r, INPUTS(x), out));
			check_modes(&caller);
			OK(br_meta_get(torch_of(out[0]), &two));
			OK(br_meta_get(torch_of(out[1]), &three));
			assert_int_equal(two.requires_grad, grad && !inference);
			assert_false(three.requires_grad);
			free_all(out, 2);
			clv_tensor_free(x);
			rig_free(&r);
		}
	br_modes_set(&before, 0);
}

static void no_python_is_in_the_process(void **state)
{
	(void)state;
	char line[4096];
	bool torch = false;
	FILE *f = fopen("/proc/self/maps", "r");
	assert_non_null(f);
	while (fgets(line, sizeof line, f)) {
		torch |= strstr(line, "/libtorch_cpu.so") != NULL;
		if (strstr(line, "/libpython") || strstr(line, "/libtorch_python"))
			fail_msg("%s", line);
	}
	fclose(f);
	assert_true(torch);
}

static void a_tensor_tells_its_shape(void **state)
{
	(void)state;
	clv_tensor *t = tensor("i64", (int64_t[]){1, 2, 3, 4, 5, 6}, SHAPE(3, 2));
	assert_int_equal(clv_tensor_ndim(t), 2);
	assert_int_equal(clv_tensor_dim(t, 0), 3);
	assert_int_equal(clv_tensor_dim(t, 1), 2);
	assert_int_equal(clv_tensor_dim(t, 2), -1);
	assert_string_equal(clv_tensor_dtype(t), "i64");
	clv_tensor_free(t);
	clv_tensor_free(NULL);
}

static void a_dtype_may_be_named_as_torch_does(void **state)
{
	(void)state;
	static const char *const names[][2] = {
		{"float32", "f32"}, {"int64", "i64"}, {"bfloat16", "bf16"}, {"bool", "bool"}, {"float8_e4m3fn", "f8e4m3fn"}};
	char data[8] = {0};
	for (size_t i = 0; i < COUNT(names); i++) {
		clv_tensor *t = tensor(names[i][0], data, 1, (int64_t[]){1});
		assert_string_equal(clv_tensor_dtype(t), names[i][1]);
		clv_tensor_free(t);
	}
}

static void a_tensor_of_nonsense_is_refused(void **state)
{
	(void)state;
	float x = 1;
	clv_tensor *t = NULL;
	FAILS(clv_tensor_from_data(NULL, "f32", 1, (int64_t[]){1}, &t), CLV_E_INVALID, "");
	FAILS(clv_tensor_from_data(&x, NULL, 1, (int64_t[]){1}, &t), CLV_E_INVALID, "");
	FAILS(clv_tensor_from_data(&x, "f33", 1, (int64_t[]){1}, &t), CLV_E_INVALID,
	      "clv_tensor_from_data: no dtype \"f33\"; there are u8, i8, ");
	FAILS(clv_tensor_wrap(&x, "float", 1, (int64_t[]){1}, NULL, NULL, NULL, &t), CLV_E_INVALID, "f64, c32, ");
	FAILS(clv_tensor_from_data(&x, "qi8", 1, (int64_t[]){1}, &t), CLV_E_UNSUPPORTED, "needs scales and zero points");
	FAILS(clv_tensor_from_data(&x, "f32", 1, NULL, &t), CLV_E_INVALID, "");
	FAILS(clv_tensor_from_data(&x, "f32", 1, (int64_t[]){-1}, &t), CLV_E_INVALID, "");
	FAILS(clv_tensor_from_data(&x, "f32", 1, (int64_t[]){1}, NULL), CLV_E_INVALID, "");
	assert_null(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_tensor_tells_its_shape),
		cmocka_unit_test(a_dtype_may_be_named_as_torch_does),
		cmocka_unit_test(a_tensor_of_nonsense_is_refused),
		cmocka_unit_test(values_die_at_their_last_use),
		cmocka_unit_test(an_error_in_the_middle_leaves_no_tensors),
		cmocka_unit_test(a_plan_runs),
		cmocka_unit_test(prefix_and_suffix_together_are_the_plan_at_every_cut),
		cmocka_unit_test(a_range_in_the_middle_runs),
		cmocka_unit_test(a_range_that_is_none_is_refused),
		cmocka_unit_test(operators_with_several_results_run),
		cmocka_unit_test(operators_that_write_their_input_write_the_callers_tensor),
		cmocka_unit_test(two_inputs_on_one_memory_are_refused_where_inputs_are_written),
		cmocka_unit_test(a_suffix_that_writes_its_boundary_works_on_a_copy),
		cmocka_unit_test(the_copy_of_a_boundary_has_its_strides),
		cmocka_unit_test(lists_may_hold_none),
		cmocka_unit_test(a_tensor_may_stand_twice_in_a_call),
		cmocka_unit_test(wrapped_numbers_do_not_promote),
		cmocka_unit_test(arguments_that_the_plan_leaves_out_have_their_defaults),
		cmocka_unit_test(sizes_follow_the_symbols),
		cmocka_unit_test(a_number_that_differs_stops_the_run),
		cmocka_unit_test(guards_compare_all_kinds_of_numbers),
		cmocka_unit_test(a_guarded_number_may_be_an_expression),
		cmocka_unit_test(a_shape_that_depends_on_data_is_a_guard),
		cmocka_unit_test(guard_equal_compares_bits),
		cmocka_unit_test(debug_mode_names_the_first_result_that_is_not_as_planned),
		cmocka_unit_test(writes_that_the_plan_does_not_declare_are_refused),
		cmocka_unit_test(numbers_that_stand_for_no_dtype_are_refused),
		cmocka_unit_test(calls_that_fit_no_operator_are_refused),
		cmocka_unit_test(arguments_of_a_wrong_kind_fail_when_they_are_called),
		cmocka_unit_test(inputs_that_do_not_fit_are_named),
		cmocka_unit_test(strides_are_part_of_an_input),
		cmocka_unit_test(parameters_must_be_bound_and_fit),
		cmocka_unit_test(what_pytorch_says_arrives_whole_with_the_place),
		cmocka_unit_test(python_calls_are_refused_without_python),
		cmocka_unit_test(an_output_that_is_no_tensor_is_refused),
		cmocka_unit_test(floats_follow_the_symbols),
		cmocka_unit_test(numbers_read_from_data_are_taken_by_later_calls),
		cmocka_unit_test(sizes_read_from_data_are_taken_by_later_calls),
		cmocka_unit_test(a_float_read_from_data_is_taken_within_its_range),
		cmocka_unit_test(every_allocation_may_fail),
		cmocka_unit_test(threads_run_one_program_at_once),
		cmocka_unit_test(modes_are_those_of_the_plan_inside_and_the_callers_after),
		cmocka_unit_test(grad_is_on_where_plan_caller_and_options_let_it),
		cmocka_unit_test(no_python_is_in_the_process),
	};
	mallopt(M_MMAP_THRESHOLD, 1 << 20); /* a tensor that is released leaves the process, so that its size tells */
	return cmocka_run_group_tests_name("exec", tests, NULL, NULL);
}
