/* Frontiers: what crosses, what makes a cut unsafe, and which cut a boundary text means. */
#include "file/payload.h"
#include "plan/data.h"
#include "random_plan.h"

#include <time.h>
#include <unistd.h>

#include "plan/view.h"

#define HEAD "cleave-plan 1\nmodel \"Net\"\n"

/* Work: 512, 32, 256 and 8 of 808. */
static const char *const net = HEAD "scope \"\" \"Net\"\n"
									"scope body \"Sequential\"\n"
									"scope body.0 \"Linear\"\n"
									"scope body.1 \"ReLU\"\n"
									"scope head \"Linear\"\n"
									"input %x f32[2,8] name=\"x\"\n"
									"input %late f32[2,4] name=\"late\"\n"
									"param @body.0.weight f32[16,8]\n"
									"param @head.weight f32[4,16] trainable\n"
									"%1 = aten::linear(%x, @body.0.weight, none) -> f32[2,16] in body.0\n"
									"%2 = aten::relu(%1) -> f32[2,16] in body.1\n"
									"%3 = aten::linear(%2, @head.weight, none) -> f32[2,4] in head\n"
									"%4 = aten::add.Tensor(%3, %late, 1) -> f32[2,4] in head\n"
									"output %4\n";

static clv_frontiers *frontiers_of(const plan *p)
{
	clv_frontiers *f = NULL;
	OK(clv_frontiers_create(p, NULL, &f));
	return f;
}

static clv_frontier frontier_at(const clv_frontiers *f, uint32_t i)
{
	clv_frontier c = {.size = sizeof c};
	OK(clv_frontiers_get(f, i, &c));
	return c;
}

static clv_objective objective(void)
{
	return (clv_objective)CLV_OBJECTIVE_INIT;
}

/* trainable_suffix, and nothing else */
static clv_objective trains = {.size = offsetof(clv_objective, max_boundary_bytes), .trainable_suffix = true};

static uint32_t chosen(const clv_frontiers *f, const char *boundary, bool trainable)
{
	uint32_t at = NONE;
	if (clv_frontiers_choose(f, boundary, trainable ? &trains : NULL, &at) != CLV_OK)
		fail_msg("\"%s\": %s", boundary, status_message());
	return at;
}

/* ---- what crosses -------------------------------------------------------------------------------------------------- */

static void a_frontier_tells_what_crosses_there(void **state)
{
	(void)state;
	plan *p = load_ok(net);
	clv_frontiers *f = frontiers_of(p);
	assert_int_equal(clv_frontiers_count(f), 3);
	clv_frontier c = frontier_at(f, 0);
	assert_int_equal(c.position, 0);
	assert_string_equal(c.name, "linear");
	assert_string_equal(c.module, "body.0");
	assert_int_equal(c.boundary_tensors, 2);
	assert_int_equal(c.passthrough_inputs, 1);
	assert_int_equal(c.boundary_bytes, 4 * (2 * 16 + 2 * 4));
	assert_true(c.prefix_cost == 512.0 / 808);
	assert_true(c.trainable_suffix);
	assert_null(c.unsafe);
	c = frontier_at(f, 2);
	assert_string_equal(c.name, "linear_1");
	assert_int_equal(c.boundary_bytes, 4 * (2 * 4 + 2 * 4));
	assert_true(c.prefix_cost == 800.0 / 808);
	assert_false(c.trainable_suffix);
	clv_frontiers_free(f);
	plan_free(p);
}

static void inputs_that_the_suffix_or_the_output_needs_pass_through(void **state)
{
	(void)state;
	plan *p = load_ok(HEAD "input %a f32[1]\ninput %b f32[1]\ninput %out f32[1]\ninput %unused f32[1]\n"
	                       "%1 = aten::relu(%a) -> f32[1]\n"
	                       "%2 = aten::add(%1, %b) -> f32[1]\n"
	                       "%3 = aten::add(%2, %a) -> f32[1]\n"
	                       "output (%3, %out)\n");
	clv_frontiers *f = frontiers_of(p);
	assert_int_equal(frontier_at(f, 0).passthrough_inputs, 3); /* %a, though the prefix reads it too */
	assert_int_equal(frontier_at(f, 0).boundary_tensors, 4);
	assert_int_equal(frontier_at(f, 1).passthrough_inputs, 2);
	assert_int_equal(frontier_at(f, 1).boundary_tensors, 3);
	clv_frontiers_free(f);
	plan_free(p);
}

static void bytes_are_those_of_the_lowest_sizes(void **state)
{
	(void)state;
	plan *p = load_ok(HEAD "symbol B 2..64\nsymbol S 0..8\n"
	                       "input %x f64[B,3]\n"
	                       "%1 = aten::a(%x) -> bool[B,5]\n"
	                       "%2 = aten::b(%1) -> f16[B*B]\n"
	                       "%3 = aten::c(%2) -> c128[S]\n"
	                       "%4 = aten::d(%3) -> f32[B-3]\n"
	                       "%5 = aten::e(%4) -> f32[1]\n"
	                       "output %5\n");
	static const int64_t want[] = {10, 8, 16, 0}; /* a symbol that may be 0 counts as 1, a negative size as 0 */
	clv_frontiers *f = frontiers_of(p);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(frontier_at(f, i).boundary_bytes, want[i]);
	clv_frontiers_free(f);
	plan_free(p);
}

static void more_than_2_to_the_63_bytes_stay_the_largest_number(void **state)
{
	(void)state;
	plan *p = load_ok(HEAD "symbol B 1..4\n"
	                       "input %x f32[1]\n"
	                       "%1 = a::b(%x) -> u8[9000000000000000000]\n"
	                       "%2 = a::b(%1) -> u8[9000000000000000000]\n"
	                       "%3 = a::c(%1) -> f32[9000000000000000000]\n"
	                       "%4 = a::d(%2, %3) -> f32[1]\n"
	                       "%5 = a::d(%4) -> f32[B//(B-1)]\n" /* not defined for B = 1 */
	                       "%6 = a::d(%5) -> f32[1]\n"
	                       "output %6\n");
	clv_frontiers *f = frontiers_of(p);
	assert_int_equal(frontier_at(f, 0).boundary_bytes, INT64_C(9000000000000000000));
	assert_int_equal(frontier_at(f, 1).boundary_bytes, INT64_MAX);
	assert_int_equal(frontier_at(f, 2).boundary_bytes, INT64_MAX);
	assert_int_equal(frontier_at(f, 3).boundary_bytes, 4); /* and the sum comes down again */
	assert_int_equal(frontier_at(f, 4).boundary_bytes, INT64_MAX);
	clv_frontiers_free(f);
	plan_free(p);
}

static void values_on_the_host_do_not_cross(void **state)
{
	(void)state;
	plan *p = load_ok(HEAD "input %x f32[2]\n"
	                       "%1 = aten::item(%x) -> float = 2.5\n"
	                       "%2 = aten::relu(%x) -> f32[2]\n"
	                       "output (%2, %1)\n");
	clv_frontiers *f = frontiers_of(p);
	assert_int_equal(frontier_at(f, 0).boundary_tensors, 1);
	assert_string_equal(frontier_at(f, 0).unsafe,
	                    "%1, a float made by item, is needed after the cut, and only ordinary tensors can cross");
	clv_frontiers_free(f);
	plan_free(p);
}

static void work_without_numbers_is_counted_in_nodes(void **state)
{
	(void)state;
	plan *p = load_ok(HEAD "input %x f32[0]\n%1 = a::b(%x) -> f32[0]\n%2 = a::b(%1) -> f32[0]\n"
	                       "%3 = a::b(%2) -> f32[0]\n%4 = a::b(%3) -> f32[0]\noutput %4\n");
	clv_frontiers *f = frontiers_of(p);
	for (uint32_t i = 0; i < 3; i++)
		assert_true(frontier_at(f, i).prefix_cost == (i + 1) / 4.0);
	clv_frontiers_free(f);
	plan_free(p);
}

static void a_caller_with_an_older_header_gets_what_it_knows(void **state)
{
	(void)state;
	plan *p = load_ok(net);
	clv_frontiers *f = frontiers_of(p);
	clv_frontier c = {.size = offsetof(clv_frontier, module), .module = "not touched"};
	OK(clv_frontiers_get(f, 1, &c));
	assert_int_equal(c.position, 1);
	assert_string_equal(c.name, "relu");
	assert_string_equal(c.module, "not touched");
	clv_frontiers_free(f);
	plan_free(p);
}

static void a_frontier_that_does_not_exist_is_refused(void **state)
{
	(void)state;
	plan *p = load_ok(net);
	clv_frontiers *f = frontiers_of(p), *none = NULL;
	clv_frontier c = {.size = sizeof c}, none_of_it = {.size = 4}, newer = {.size = sizeof c + 8};
	uint32_t at;
	FAILS(clv_frontiers_get(f, 3, &c), CLV_E_INVALID, "no frontier 3");
	FAILS(clv_frontiers_get(f, 0, &none_of_it), CLV_E_INVALID, "clv_frontier.size is 4, this library knows up to");
	FAILS(clv_frontiers_get(f, 0, &newer), CLV_E_INVALID, "this library knows up to");
	FAILS(clv_frontiers_get(NULL, 0, &c), CLV_E_INVALID, "no frontier 0");
	FAILS(clv_frontiers_create(NULL, NULL, &none), CLV_E_INVALID, "NULL");
	FAILS(clv_frontiers_choose(f, NULL, NULL, &at), CLV_E_INVALID, "NULL");
	assert_int_equal(clv_frontiers_count(NULL), 0);
	clv_frontiers_free(NULL);
	clv_frontiers_free(f);
	plan_free(p);
}

/* ---- the record ----------------------------------------------------------------------------------------------------- */

static void a_frontier_tells_what_each_side_costs(void **state)
{
	(void)state;
	plan *p = load_ok(net);
	clv_frontiers *f = frontiers_of(p);
	clv_frontier c = frontier_at(f, 1);
	assert_int_equal(c.prefix_nodes, 2);
	assert_int_equal(c.suffix_nodes, 2);
	assert_true(c.prefix_flops == 544 && c.suffix_flops == 264);
	assert_int_equal(c.prefix_params, 16 * 8);
	assert_int_equal(c.suffix_params, 4 * 16);
	assert_int_equal(c.prefix_param_bytes, 4 * 16 * 8);
	assert_int_equal(c.suffix_param_bytes, 4 * 4 * 16);
	/* at relu: %1, %2 and %late; at linear: %x, %1, %late */
	assert_int_equal(c.prefix_memory, 4 * 16 * 8 + 4 * (32 + 32 + 8));
	/* at linear_1: %2, %3 and %late */
	assert_int_equal(c.suffix_memory, 4 * 4 * 16 + 4 * (32 + 8 + 8));
	clv_frontiers_free(f);
	plan_free(p);
}

static void the_whole_plan_costs_what_all_its_nodes_cost(void **state)
{
	(void)state;
	plan *p = load_ok(net);
	clv_frontiers *f = frontiers_of(p);
	clv_frontier c = frontier_at(f, 0);
	clv_total t = {.size = sizeof t};
	OK(clv_frontiers_total(f, &t));
	assert_true(t.flops == c.prefix_flops + c.suffix_flops);
	assert_int_equal(t.params, 16 * 8 + 4 * 16);
	assert_int_equal(t.param_bytes, 4 * t.params);
	assert_true(t.memory >= c.prefix_memory && t.memory >= c.suffix_memory);
	t.size = 1;
	FAILS(clv_frontiers_total(f, &t), CLV_E_INVALID, "clv_total.size");
	clv_frontiers_free(f);
	plan_free(p);
}

static void a_parameter_that_both_sides_read_counts_on_both(void **state)
{
	(void)state;
	plan *p = load_ok(HEAD "input %x f32[4]\nparam @w f32[4] tied=@v\nparam @unused f32[100]\nbuffer @b f32[10]\n"
	                       "%1 = aten::mul(%x, @w) -> f32[4]\n"
	                       "%2 = aten::relu(%1) -> f32[4]\n"
	                       "%3 = aten::mul(%2, @w) -> f32[4]\n"
	                       "%4 = aten::mul(%3, @b) -> f32[4]\n"
	                       "output %4\n");
	static const int64_t params[][2] = {{4, 4}, {4, 4}, {4, 0}};
	clv_frontiers *f = frontiers_of(p);
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(frontier_at(f, i).prefix_params, params[i][0]);
		assert_int_equal(frontier_at(f, i).suffix_params, params[i][1]);
		assert_int_equal(frontier_at(f, i).prefix_memory, 16 + 32);
		assert_int_equal(frontier_at(f, i).suffix_memory, params[i][1] * 4 + 40 + 32);
	}
	clv_frontiers_free(f);
	plan_free(p);
}

static void views_take_no_memory_and_memory_lives_as_long_as_its_views(void **state)
{
	(void)state;
	plan *p = load_ok(HEAD "input %x f32[1]\n"
	                       "%1 = aten::a(%x) -> f32[100]\n"
	                       "%2 = aten::slice(%1) -> f32[1] view-of %1\n"
	                       "%3 = aten::b(%x) -> f32[50]\n"
	                       "%4 = aten::c(%3, %2) -> f32[1]\n"
	                       "%5 = aten::d(%4) -> f32[1]\n"
	                       "output %5\n");
	static const int64_t want[] = {101, 101, 151, 151}, rest[] = {151, 151, 151, 2};
	clv_frontiers *f = frontiers_of(p);
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(frontier_at(f, i).prefix_memory, 4 * want[i]);
		assert_int_equal(frontier_at(f, i).suffix_memory, 4 * rest[i]);
	}
	clv_frontiers_free(f);
	plan_free(p);
}

/* Bytes that cross as text at all frontiers of a plan. */
static void check_bytes_text(const char *text, const char *const *want, uint32_t n)
{
	plan *p = load_ok(text);
	clv_frontiers *f = frontiers_of(p);
	assert_int_equal(clv_frontiers_count(f), n);
	for (uint32_t i = 0; i < n; i++) {
		char *got = NULL, *first = NULL;
		clv_frontiers *fresh = frontiers_of(p); /* the first answer is worked out alone, later ones with all others */
		OK(clv_frontiers_bytes_text(f, i, &got));
		OK(clv_frontiers_bytes_text(fresh, i, &first));
		assert_string_equal(got, want[i]);
		assert_string_equal(first, want[i]);
		clv_free(got);
		clv_free(first);
		clv_frontiers_free(fresh);
	}
	clv_frontiers_free(f);
	plan_free(p);
}

static void bytes_are_a_short_formula_in_the_symbols(void **state)
{
	(void)state;
	static const char *const want[] = {
		"401408*B+16", "401408*B+16", "4*B*B+8*B+16", "4*B*B*S-4*S+16", "8*(B//2)*(S%3)+16", "B*min(B, S)+16", "16",
	};
	check_bytes_text(HEAD "symbol B 1..64\nsymbol S 1..8\n"
	                      "input %x f32[B]\ninput %late f32[4]\n"
	                      "%1 = aten::a(%x) -> f32[B,256,14*28]\n"
	                      "%1b = aten::a(%late) -> f32[4]\n"
	                      "%2 = aten::b(%1) -> f32[B+2,B]\n"
	                      "%3 = aten::c(%2) -> f32[B-1,S,B+1]\n"
	                      "%4 = aten::d(%3) -> f64[B//2,S%3]\n"
	                      "%5 = aten::e(%4) -> bool[B,min(B, S)]\n"
	                      "%6 = aten::f(%5) -> f32[0,B]\n"
	                      "%7 = aten::g(%6, %1b) -> f32[1]\n"
	                      "output %7\n",
	                 want, 7);
}

static void a_boundary_has_the_labels_of_the_plan(void **state)
{
	(void)state;
	plan *p = load_ok(net);
	clv_frontiers *f = frontiers_of(p);
	static const char *const want[] = {"%1 %2", "%1 %3", "%1 %4"};
	for (uint32_t i = 0; i < 3; i++) {
		char *got = NULL;
		OK(clv_frontiers_labels(f, i, &got));
		assert_string_equal(got, want[i]);
		clv_free(got);
	}
	char *none = NULL;
	FAILS(clv_frontiers_labels(f, 3, &none), CLV_E_INVALID, "no frontier 3");
	FAILS(clv_frontiers_bytes_text(NULL, 0, &none), CLV_E_INVALID, "no frontier 0");
	clv_frontiers_free(f);
	plan_free(p);
}

static double work_of(const char *text)
{
	plan *p = load_ok(text);
	clv_frontiers *f = NULL;
	OK(clv_frontiers_create(p, NULL, &f));
	double work = frontier_at(f, 0).prefix_flops;
	clv_frontiers_free(f);
	plan_free(p);
	return work;
}

#define LSTM_HEAD                                                                                                      \
	"input %x f32[100,1,64]\n"                                                                                         \
	"input %h f32[1,1,64]\n"                                                                                           \
	"input %c f32[1,1,64]\n"                                                                                           \
	"param @ih f32[256,64]\nparam @hh f32[256,64]\nparam @bih f32[256]\nparam @bhh f32[256]\n"

static void operators_that_hold_layers_count_every_weight_for_every_token(void **state)
{
	(void)state;
	const char *lstm = HEAD LSTM_HEAD
		"%1, %2, %3 = aten::lstm.input(%x, [%h, %c], [@ih, @hh, @bih, @bhh], true, 1, 0.0, false, false, false)"
		" -> f32[100,1,64], f32[1,1,64], f32[1,1,64]\n"
		"%4 = aten::relu(%1) -> f32[100,1,64]\n"
		"output %4\n";
	const char *encoder =
		HEAD "input %x f32[2,5,16]\n"
			 "param @qkv f32[48,16]\nparam @qkvb f32[48]\nparam @out f32[16,16]\nparam @b f32[16]\n"
			 "param @up f32[32,16]\nparam @upb f32[32]\nparam @down f32[16,32]\n"
			 "%1 = aten::_transformer_encoder_layer_fwd(%x, 16, 2, @qkv, @qkvb, @out, @b, false, false, 1e-05, @b, @b, "
			 "@b, @b, @up, @upb, @down, @b, none, none) -> f32[2,5,16]\n"
			 "%2 = aten::relu(%1) -> f32[2,5,16]\n"
			 "output %2\n";
	assert_true(work_of(lstm) == 2.0 * 2 * 256 * 64 * 100);
	assert_true(work_of(encoder) == 2.0 * (48 * 16 + 16 * 16 + 2 * 32 * 16) * 10);
}

static void sizes_are_the_callers(void **state)
{
	(void)state;
	plan *p = load_ok(HEAD "symbol B 2..64\nsymbol S 1..8\n"
	                       "input %x f32[B,S]\n"
	                       "%1 = aten::relu(%x) -> f32[B,S]\n"
	                       "%2 = aten::relu(%1) -> f32[B,S]\n"
	                       "output %2\n");
	const char *const names[] = {"S", "B"}, *const unknown[] = {"T"};
	const int64_t sizes[] = {3, 10}, large[] = {9, 10};
	clv_sizes o = {names, sizes, 2};
	clv_frontiers *f = NULL;
	OK(clv_frontiers_create(p, &o, &f));
	assert_int_equal(frontier_at(f, 0).boundary_bytes, 120);
	assert_true(frontier_at(f, 0).prefix_flops == 30);
	clv_frontiers_free(f);
	o.n = 1;
	OK(clv_frontiers_create(p, &o, &f));
	assert_int_equal(frontier_at(f, 0).boundary_bytes, 4 * 2 * 3);
	clv_frontiers_free(f);
	o.values = large;
	FAILS(clv_frontiers_create(p, &o, &f), CLV_E_INVALID, "S is 9, the plan is for 1 to 8");
	o.symbols = unknown;
	FAILS(clv_frontiers_create(p, &o, &f), CLV_E_NOT_FOUND, "no symbol \"T\"; it has: B, S");
	o.symbols = NULL;
	FAILS(clv_frontiers_create(p, &o, &f), CLV_E_INVALID, "clv_sizes: 1 symbols without names or sizes");
	plan_free(p);
}

/* ---- what makes a cut unsafe --------------------------------------------------------------------------------------- */

/* Reasons of all frontiers of a plan; NULL where the cut is safe. */
static void check_unsafe(const char *text, const char *const *want, uint32_t n)
{
	plan *p = load_ok(text);
	clv_frontiers *f = frontiers_of(p);
	assert_int_equal(clv_frontiers_count(f), n);
	for (uint32_t i = 0; i < n; i++) {
		const char *got = frontier_at(f, i).unsafe;
		if (!got != !want[i] || (got && strcmp(got, want[i]) != 0))
			fail_msg("frontier %u: %s instead of %s", i, got ? got : "safe", want[i] ? want[i] : "safe");
	}
	clv_frontiers_free(f);
	plan_free(p);
}

#define CHECK_UNSAFE(text, ...)                                                                                        \
	check_unsafe(text, (const char *const[]){__VA_ARGS__},                                                             \
	             sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *))

static void an_input_that_is_written_after_the_cut_is_unsafe(void **state)
{
	(void)state;
	const char *why = "add_ writes %0 (x) in place after the cut, and it is an input that belongs to the caller";
	CHECK_UNSAFE(HEAD "input %x f32[4] name=\"x\"\n"
	                  "%1 = aten::relu(%x) -> f32[4]\n"
	                  "%2 = aten::view(%x, [4]) -> f32[4] view-of %x\n"
	                  "%3 = aten::add_(%2, %1) -> f32[4] view-of %x writes %2\n"
	                  "%4 = aten::relu(%x) -> f32[4]\n"
	                  "output (%4, %3)\n",
	             why, why, NULL);
}

static void memory_that_crosses_more_than_once_and_is_written_later_is_unsafe(void **state)
{
	(void)state;
	const char *why = "mul_ writes %1 in place after the cut, and several tensors on that memory cross";
	CHECK_UNSAFE(HEAD "input %x f32[4]\n"
	                  "%1 = aten::relu(%x) -> f32[4]\n"                          /* %1 alone */
	                  "%2 = aten::slice(%1, 0, 0, 2) -> f32[2] view-of %1\n"     /* %1 and %2 */
	                  "%3 = aten::sum(%1) -> f32[]\n"                            /* %2 alone: %1 is done */
	                  "%4 = aten::slice(%2, 0, 0, 1) -> f32[1] view-of %1\n"     /* %2 and %4 */
	                  "%5 = aten::mul_(%4, %3) -> f32[1] view-of %1 writes %4\n" /* written */
	                  "%6 = aten::add(%2, %4) -> f32[2]\n"
	                  "output (%6, %5)\n",
	             NULL, why, NULL, why, NULL);
}

static void memory_that_crosses_once_may_be_written_later(void **state)
{
	(void)state;
	CHECK_UNSAFE(HEAD "input %x f32[4]\n"
	                  "%1 = aten::linear(%x) -> f32[4]\n"
	                  "%2 = aten::relu_(%1) -> f32[4] view-of %1 writes %1\n"
	                  "%3 = aten::add_(%2, %x) -> f32[4] view-of %1 writes %2\n"
	                  "output %3\n",
	             NULL, NULL);
}

#define STATE(name, node)                                                                                              \
	name " is used on both sides of the cut, and " node                                                                \
		 " changes it for the next call: halves that run apart would not see the same"

static void a_view_of_the_models_memory_that_is_written_after_the_cut_is_unsafe(void **state)
{
	(void)state;
	const char *why = STATE("@w", "add_");
	CHECK_UNSAFE(HEAD "input %x f32[4]\nparam @w f32[4]\n"
	                  "%1 = aten::slice(@w, 0, 0, 2) -> f32[2] view-of @w\n"
	                  "%2 = aten::relu(%x) -> f32[4]\n"
	                  "%3 = aten::add_(%1, num(1)) -> f32[2] view-of @w writes %1\n"
	                  "%4 = aten::add(%2, @w) -> f32[4]\n"
	                  "output %4\n",
	             why, why, why);
}

static void the_models_memory_may_be_written_on_one_side(void **state)
{
	(void)state;
	const char *why = STATE("@mean", "norm_1 in body at m.py:3");
	CHECK_UNSAFE(HEAD "scope \"\" \"Net\"\nscope body \"Body\"\ninput %x f32[4]\nbuffer @mean f32[4]\n"
	                  "%1 = aten::relu(%x) -> f32[4]\n"
	                  "%2 = aten::norm(%1, @mean) -> f32[4] writes @mean\n"
	                  "%3 = aten::relu(%2) -> f32[4]\n"
	                  "%4 = aten::norm(%3, @mean) -> f32[4] writes @mean in body at \"m.py:3\"\n"
	                  "%5 = aten::relu(%4) -> f32[4]\n"
	                  "output %5\n",
	             NULL, why, why, NULL);
	why = STATE("@mean", "norm"); /* the output has it */
	CHECK_UNSAFE(HEAD "input %x f32[4]\nbuffer @mean f32[4]\n"
	                  "%1 = aten::norm(%x, @mean) -> f32[4] writes @mean\n"
	                  "%2 = aten::relu(%1) -> f32[4]\n"
	                  "output (%2, @mean)\n",
	             why);
}

static void a_tensor_that_is_re_bound_is_used_on_one_side(void **state)
{
	(void)state;
	const char *why = STATE("@h", "add");
	/* read, and made anew: then others may have the new one */
	CHECK_UNSAFE(HEAD "input %x f32[4]\nbuffer @h f32[4]\n"
	                  "%1 = aten::mul(@h, %x) -> f32[4]\n"
	                  "%2 = aten::add(%1, %x) -> f32[4]\n"
	                  "%3 = aten::relu(%2) -> f32[4]\n"
	                  "%4 = aten::mul(%3, %2) -> f32[4]\n"
	                  "rebind @h = %2\n"
	                  "output %4\n",
	             why, NULL, NULL);
	/* made, and read later: it crosses */
	CHECK_UNSAFE(HEAD "input %x f32[4]\nbuffer @h f32[4]\n"
	                  "%1 = aten::relu(%x) -> f32[4]\n"
	                  "%2 = aten::neg(%x) -> f32[4]\n"
	                  "%3 = aten::mul(%2, @h) -> f32[4]\n"
	                  "rebind @h = %1\n"
	                  "output %3\n",
	             NULL, NULL);
	why = STATE("@h", "relu");
	CHECK_UNSAFE(HEAD "input %x f32[4]\nbuffer @h f32[4]\n"
	                  "%1 = aten::mul(%x, @h) -> f32[4]\n"
	                  "%2 = aten::relu(%1) -> f32[4]\n"
	                  "%3 = aten::mul(%2, @h) -> f32[4]\n"
	                  "rebind @h = %2\n"
	                  "output %3\n",
	             why, why);
	CHECK_UNSAFE(
		HEAD "input %x f32[4]\nbuffer @h f32[4]\nbuffer @g f32[4]\n"
			 "%1 = aten::mul(%x, @h) -> f32[4]\n"
			 "%2 = aten::relu(%1) -> f32[4]\n"
			 "rebind @h = @g\n"
			 "output %2\n",
		"@h is used before the cut and becomes another tensor after it for the next call: halves that run apart "
		"would not see the same");
	/* the next run writes into what was bound */
	why = STATE("@h", "mul_");
	CHECK_UNSAFE(HEAD "input %x f32[4]\nbuffer @h f32[4]\n"
	                  "%1 = aten::mul_(@h, num(2)) -> f32[4] view-of @h writes @h\n"
	                  "%2 = aten::add(%1, %x) -> f32[4]\n"
	                  "%3 = aten::relu(%x) -> f32[4]\n"
	                  "%4 = aten::mul(%3, %2) -> f32[4]\n"
	                  "rebind @h = %2\n"
	                  "output %4\n",
	             why, why, why);
}

/* What crosses are elements: the memory around them stays behind. */
static void memory_that_is_read_beyond_its_elements_after_the_cut_is_unsafe(void **state)
{
	(void)state;
	const char *of2 =
		"as_strided in body at m.py:3 may read the memory of %2 beyond its elements after the cut, and only "
		"elements cross";
	CHECK_UNSAFE(HEAD "scope \"\" \"Net\"\nscope body \"Body\"\ninput %0 f32[8]\n"
	                  "%1 = aten::relu(%0) -> f32[8]\n"
	                  "%2 = aten::narrow(%1, 0, 2, 2) -> f32[2] view-of %1\n"
	                  "%3 = aten::as_strided(%2, [2], [1], 0) -> f32[2] view-of %1 in body at \"m.py:3\"\n"
	                  "%4 = aten::relu(%3) -> f32[2]\n"
	                  "output %4\n",
	             of2, of2, NULL); /* %1 crosses at the first, %2 at the second */
#define SET_READS(v) "set_ may read the memory of " v " beyond its elements after the cut, and only elements cross"
	CHECK_UNSAFE(HEAD "input %x f32[8] name=\"x\"\nparam @w f32[4]\n"
	                  "%1 = aten::t(@w) -> f32[4] view-of @w\n"
	                  "%2 = aten::relu(%x) -> f32[8]\n"
	                  "%3 = aten::set_.source_Tensor(%2, %1) -> f32[4] view-of %2\n"
	                  "%4 = aten::relu(%3) -> f32[4]\n"
	                  "output %4\n",
	             SET_READS("%1"), SET_READS("%2"), NULL); /* both come over the second, one reason is enough */
	CHECK_UNSAFE(HEAD "input %x f32[8] name=\"x\"\n"
	                  "%1 = aten::relu(%x) -> f32[8]\n"
	                  "%2 = aten::as_strided_copy.out(%x, [2], [1], 0) -> f32[2]\n"
	                  "%3 = aten::add(%1, %2) -> f32[8]\n"
	                  "output %3\n",
	             "as_strided_copy may read the memory of %0 (x) beyond its elements after the cut, and only elements "
	             "cross",
	             NULL);
}

static void the_models_memory_may_be_read_beyond_its_elements(void **state)
{
	(void)state;
	CHECK_UNSAFE(HEAD "input %x f32[8]\nparam @w f32[4]\n"
	                  "%1 = aten::relu(%x) -> f32[8]\n"
	                  "%2 = aten::as_strided(@w, [2], [1], 0) -> f32[2] view-of @w\n"
	                  "%3 = aten::as_strided_of_mine(%1, %2) -> f32[8]\n"
	                  "output %3\n",
	             NULL, NULL);
}

static void a_cut_that_nothing_crosses_is_unsafe(void **state)
{
	(void)state;
	CHECK_UNSAFE(HEAD "input %x f32[4]\n"
	                  "%1 = aten::relu(%x) -> f32[4]\n"
	                  "%2 = aten::ones([4]) -> f32[4]\n"
	                  "%3 = aten::relu(%2) -> f32[4]\n"
	                  "output %3\n",
	             "nothing crosses here", NULL);
}

static void only_ordinary_tensors_can_cross(void **state)
{
	(void)state;
	CHECK_UNSAFE(
		HEAD "scope \"\" \"Net\"\nscope enc \"Encoder\"\ninput %x f32[4]\n"
			 "%1 = aten::to_sparse(%x) -> f32[4] odd in enc at \"net.py:7\"\n"
			 "%2 = aten::relu(%x) -> f32[4]\n"
			 "%3 = aten::mul(%1, %2) -> f32[4]\n"
			 "%4 = prim::make(%3) -> object in enc\n"
			 "%5 = prim::use(%3, %4) -> f32[4]\n"
			 "%6 = aten::relu(%5) -> f32[4]\n"
			 "output %6\n",
		"%1, a sparse or nested tensor made by to_sparse in enc at net.py:7, is needed after the cut, and only "
		"ordinary tensors can cross",
		"%1, a sparse or nested tensor made by to_sparse in enc at net.py:7, is needed after the cut, and only "
		"ordinary tensors can cross",
		NULL, "%4, an object made by make in enc, is needed after the cut, and only ordinary tensors can cross", NULL);
}

static void a_write_is_named_with_its_module_and_source_line(void **state)
{
	(void)state;
	CHECK_UNSAFE(HEAD "scope \"\" \"Net\"\nscope act \"ReLU\"\ninput %x f32[4] name=\"x\"\n"
	                  "%1 = aten::relu(%x) -> f32[4]\n"
	                  "%2 = aten::add_(%x, %1) -> f32[4] view-of %x writes %x in act at \"net.py:3\"\n"
	                  "output %2\n",
	             "add_ in act at net.py:3 writes %0 (x) in place after the cut, and it is an input that belongs to the "
	             "caller");
}

/* ---- choosing ------------------------------------------------------------------------------------------------------ */

static void a_boundary_has_many_forms(void **state)
{
	(void)state;
	plan *p = load_ok(net);
	clv_frontiers *f = frontiers_of(p);
	assert_int_equal(chosen(f, "after:body.0", false), 0);
	assert_int_equal(chosen(f, "after:body", false), 1); /* after the last node inside */
	assert_int_equal(chosen(f, "after:relu", false), 1);
	assert_int_equal(chosen(f, "after:linear_1", false), 2);
	assert_int_equal(chosen(f, "1%", false), 0);
	assert_int_equal(chosen(f, "at:66.7%", false), 1);
	assert_int_equal(chosen(f, "percent:66.7", false), 1);
	assert_int_equal(chosen(f, "percent:66.7%", false), 1);
	assert_int_equal(chosen(f, "0.99e2%", false), 2);
	assert_int_equal(chosen(f, "auto", false), 0);
	clv_frontiers_free(f);
	plan_free(p);
}

static void a_text_that_is_no_boundary_lists_the_forms(void **state)
{
	(void)state;
	static const char *const bad[] = {
		"",     "middle", "50",    "at:50", "percent:", "percent:x", "50 %",
		"50%%", "%",      "Auto",  "after", "at:",      "body.0",    "nan%",
		"+5%",  ".5%",    "0x10%", "50,5%", "1e999%",   "-inf%",     "33.333333333333333333333333333333333333333333%"};
	plan *p = load_ok(net);
	clv_frontiers *f = frontiers_of(p);
	uint32_t at;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		FAILS(clv_frontiers_choose(f, bad[i], NULL, &at), CLV_E_INVALID,
		      "is none of: \"auto\", \"after:<module path>\"");
	clv_frontiers_free(f);
	plan_free(p);
}

static void a_percentage_is_above_0_and_below_100(void **state)
{
	(void)state;
	static const char *const bad[] = {"0%", "100%", "-5%", "percent:0", "percent:100", "at:150%", "1e99%"};
	plan *p = load_ok(net);
	clv_frontiers *f = frontiers_of(p);
	uint32_t at;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		FAILS(clv_frontiers_choose(f, bad[i], NULL, &at), CLV_E_INVALID,
		      "the percentage must be above 0 and below 100");
	clv_frontiers_free(f);
	plan_free(p);
}

static void an_unknown_name_comes_with_the_nearest_ones(void **state)
{
	(void)state;
	plan *p = load_ok(net);
	clv_frontiers *f = frontiers_of(p);
	uint32_t at = 7;
	FAILS(clv_frontiers_choose(f, "after:haed", NULL, &at), CLV_E_NOT_FOUND,
	      "no module or node is called \"haed\"; nearest: head, ");
	FAILS(clv_frontiers_choose(f, "after:body.O", NULL, &at), CLV_E_NOT_FOUND, "nearest: body.0, body.1, body, ");
	FAILS(clv_frontiers_choose(f, "after:lineer_1", NULL, &at), CLV_E_NOT_FOUND, "nearest: linear_1, linear, ");
	FAILS(clv_frontiers_choose(f, "after:", NULL, &at), CLV_E_NOT_FOUND, "no module or node is called \"\"");
	FAILS(clv_frontiers_choose(f, "after:bod", NULL, &at), CLV_E_NOT_FOUND, "\"bod\"; nearest: body, "); /* no prefix */
	unsigned commas = 0;
	for (const char *c = strstr(status_message(), "nearest"); *c; c++)
		commas += *c == ',';
	assert_int_equal(commas, 4);
	assert_int_equal(at, 7);
	clv_frontiers_free(f);
	plan_free(p);
}

static void nothing_is_left_after_the_end(void **state)
{
	(void)state;
	plan *p = load_ok(net), *one = load_ok(HEAD "input %x f32[1]\n%1 = aten::relu(%x) -> f32[1]\noutput %1\n"),
		 *zero = load_ok(HEAD "input %x f32[1]\noutput %x\n");
	clv_frontiers *f = frontiers_of(p), *f1 = frontiers_of(one), *f0 = frontiers_of(zero);
	uint32_t at;
	FAILS(clv_frontiers_choose(f, "after:head", NULL, &at), CLV_E_INVALID, "nothing is left to run after \"head\"");
	FAILS(clv_frontiers_choose(f, "after:add", NULL, &at), CLV_E_INVALID, "nothing is left to run after \"add\"");
	FAILS(clv_frontiers_choose(f1, "after:relu", NULL, &at), CLV_E_INVALID, "nothing is left to run after \"relu\"");
	FAILS(clv_frontiers_choose(f1, "50%", NULL, &at), CLV_E_UNSUPPORTED, "too few operators to be cut");
	FAILS(clv_frontiers_choose(f0, "auto", NULL, &at), CLV_E_UNSUPPORTED, "too few operators to be cut");
	clv_frontiers_free(f);
	clv_frontiers_free(f1);
	clv_frontiers_free(f0);
	plan_free(p);
	plan_free(one);
	plan_free(zero);
}

/* Safe after relu_2 only. */
static const char *const mostly_unsafe = HEAD "scope \"\" \"Net\"\nscope a \"A\"\ninput %x f32[4] name=\"x\"\n"
											  "%1 = aten::relu(%x) -> f32[4] in a\n"
											  "%2 = aten::relu(%1) -> f32[4]\n"
											  "%3 = aten::relu_(%x) -> f32[4] view-of %x writes %x\n"
											  "%4 = aten::relu(%3) -> f32[4]\n"
											  "%5 = aten::add(%2, %4) -> f32[4]\n"
											  "output %5\n";

static void a_named_cut_that_is_unsafe_is_refused_with_its_reason(void **state)
{
	(void)state;
	plan *p = load_ok(mostly_unsafe);
	clv_frontiers *f = frontiers_of(p);
	uint32_t at;
	FAILS(clv_frontiers_choose(f, "after:a", NULL, &at), CLV_E_UNSUPPORTED,
	      "the model cannot be cut after \"a\": relu_ writes %0 (x) in place after the cut, and it is an input that "
	      "belongs to the caller");
	FAILS(clv_frontiers_choose(f, "after:relu_1", NULL, &at), CLV_E_UNSUPPORTED, "cannot be cut after \"relu_1\"");
	clv_frontiers_free(f);
	plan_free(p);
}

static void percentages_and_auto_pass_over_unsafe_cuts(void **state)
{
	(void)state;
	plan *p = load_ok(mostly_unsafe);
	clv_frontiers *f = frontiers_of(p);
	assert_int_equal(chosen(f, "1%", false), 2);
	assert_int_equal(chosen(f, "auto", false), 2);
	clv_frontiers_free(f);
	plan_free(p);
}

static void a_plan_without_a_safe_cut_says_why(void **state)
{
	(void)state;
	plan *p = load_ok(HEAD "input %x f32[4] name=\"x\"\n"
	                       "%1 = aten::relu(%x) -> f32[4]\n"
	                       "%2 = aten::add_(%x, %1) -> f32[4] view-of %x writes %x\n"
	                       "output %2\n");
	clv_frontiers *f = frontiers_of(p);
	uint32_t at;
	FAILS(clv_frontiers_choose(f, "auto", NULL, &at), CLV_E_UNSUPPORTED,
	      "no frontier that can be cut; for example after relu: add_ writes %0 (x) in place");
	FAILS(clv_frontiers_choose(f, "50%", &trains, &at), CLV_E_UNSUPPORTED, "leaves trainable parameters in the suffix");
	clv_frontiers_free(f);
	plan_free(p);
}

static void a_trainable_suffix_reads_a_trainable_parameter(void **state)
{
	(void)state;
	plan *p = load_ok(net), *frozen = load_ok(mostly_unsafe);
	clv_frontiers *f = frontiers_of(p), *g = frontiers_of(frozen);
	uint32_t at;
	assert_int_equal(chosen(f, "99%", false), 2);
	assert_int_equal(chosen(f, "99%", true), 1);
	assert_int_equal(chosen(f, "after:body", true), 1);
	FAILS(clv_frontiers_choose(f, "after:linear_1", &trains, &at), CLV_E_INVALID,
	      "after \"linear_1\" no trainable parameters are left");
	FAILS(clv_frontiers_choose(g, "auto", &trains, &at), CLV_E_UNSUPPORTED,
	      "no frontier leaves trainable parameters in the suffix");
	clv_frontiers_free(f);
	clv_frontiers_free(g);
	plan_free(p);
	plan_free(frozen);
}

static void auto_takes_the_fewest_bytes_with_a_fifth_of_the_work_on_each_side(void **state)
{
	(void)state;
	plan *p = load_ok(HEAD "input %x f32[10,10]\n"
	                       "%1 = aten::a(%x) -> f32[10]\n"  /*   1 %, 40 bytes: too early */
	                       "%2 = aten::b(%1) -> f32[290]\n" /*  30 % */
	                       "%3 = aten::c(%2) -> f32[100]\n" /*  40 %, 400 bytes: the one */
	                       "%4 = aten::d(%3) -> f32[200]\n" /*  60 % */
	                       "%5 = aten::e(%4) -> f32[100]\n" /*  70 %, as many, but later */
	                       "%6 = aten::f(%5) -> f32[290]\n" /*  99 % */
	                       "%7 = aten::g(%6) -> f32[9]\n"   /*  99.9 %, 36 bytes: too late */
	                       "%8 = aten::h(%7) -> f32[1]\n"
	                       "output %8\n");
	clv_frontiers *f = frontiers_of(p);
	assert_int_equal(chosen(f, "auto", false), 2);
	clv_frontiers_free(f);
	plan_free(p);
}

static void auto_takes_any_cut_when_the_middle_has_none(void **state)
{
	(void)state;
	plan *p = load_ok(HEAD "input %x f32[1]\n"
	                       "%1 = aten::a(%x) -> f32[4]\n"
	                       "%2 = aten::b(%1) -> f32[2]\n"
	                       "%3 = aten::c(%2) -> f32[1000]\n"
	                       "output %3\n");
	clv_frontiers *f = frontiers_of(p);
	assert_int_equal(chosen(f, "auto", false), 1);
	clv_frontiers_free(f);
	plan_free(p);
}

static void of_two_cuts_at_the_same_distance_the_smaller_is_taken(void **state)
{
	(void)state;
	plan *p = load_ok(HEAD "input %x f32[1]\n"
	                       "%1 = aten::a(%x) -> f32[4]\n"
	                       "%2, %3 = aten::b(%1) -> f32[1], f32[0]\n"
	                       "%4 = aten::c(%2) -> f32[0]\n"
	                       "%5 = aten::d(%4, %1) -> f32[3]\n"
	                       "output (%5, %1)\n");
	clv_frontiers *f = frontiers_of(p);
	assert_int_equal(chosen(f, "62.5%", false), 2); /* both at 62.5 %; %2 no longer crosses */
	clv_frontiers_free(f);
	plan_free(p);
}

/* ---- objectives ----------------------------------------------------------------------------------------------------- */

/* Bytes that cross after each node, and its work; parameters are 800, 2000 and 800 elements. */
static const char *const tower = HEAD "input %x f32[4,8]\n"
									  "param @a f32[100,8]\nparam @b f32[20,100] trainable\nparam @c f32[40,20]\n"
									  "%1 = aten::linear(%x, @a, none) -> f32[4,100]\n" /* 1600 bytes,  6400 */
									  "%2 = aten::linear(%1, @b, none) -> f32[4,20]\n"  /*  320 bytes, 16000 */
									  "%3 = aten::linear(%2, @c, none) -> f32[4,40]\n"  /*  640 bytes,  6400 */
									  "%4 = aten::sum(%3, [0]) -> f32[40]\n"            /*  160 bytes,    40 */
									  "%5 = aten::relu(%4) -> f32[40]\n"
									  "output %5\n";

static void check_objective(const clv_objective *o, uint32_t want)
{
	plan *p = load_ok(tower);
	clv_frontiers *f = frontiers_of(p);
	uint32_t at = NONE;
	if (clv_frontiers_choose(f, "auto", o, &at) != CLV_OK)
		fail_msg("%s", status_message());
	assert_int_equal(at, want);
	OK(clv_frontiers_check(f, at, o));
	clv_frontiers_free(f);
	plan_free(p);
}

static void check_minimized(const char *what, uint32_t want)
{
	clv_objective o = objective();
	o.minimize = what;
	o.bandwidth_bytes_per_s = 1e9;
	check_objective(&o, want);
}

static void each_goal_has_its_best_frontier(void **state)
{
	(void)state;
	check_objective(NULL, 1); /* the one in the middle */
	check_minimized("boundary_bytes", 3);
	check_minimized("prefix_flops", 0);
	check_minimized("suffix_flops", 3);
	check_minimized("prefix_memory", 0);
	check_minimized("suffix_memory", 3);
	check_minimized("balance", 1); /* 22400 and 6480 against 6400 and 22480 */
}

static void latency_weighs_work_against_bytes(void **state)
{
	(void)state;
	clv_objective o = objective();
	o.minimize = "latency";
	o.bandwidth_bytes_per_s = 1e3; /* bytes decide */
	check_objective(&o, 3);
	o.bandwidth_bytes_per_s = 1e15;
	o.suffix_flops_per_s = 1e15; /* the other side is faster */
	check_objective(&o, 0);
	o.prefix_flops_per_s = 1e17;
	check_objective(&o, 3);
}

static void each_constraint_keeps_frontiers_out(void **state)
{
	(void)state;
	clv_objective o = objective();
	o.minimize = "suffix_flops";
	o.trainable_suffix = true;
	check_objective(&o, 0);
	o = objective();
	o.minimize = "prefix_flops";
	o.max_boundary_bytes = 319;
	check_objective(&o, 3);
	o.max_boundary_bytes = 320;
	check_objective(&o, 1);
	o = objective();
	o.minimize = "suffix_flops";
	o.max_prefix_params = 2800;
	check_objective(&o, 1);
	o = objective();
	o.minimize = "prefix_flops";
	o.max_suffix_params = 800;
	check_objective(&o, 1);
	o = objective();
	o.minimize = "suffix_flops";
	o.max_prefix_memory = 3200 + 128 + 1600;
	check_objective(&o, 0);
	o = objective();
	o.minimize = "prefix_flops";
	o.max_suffix_memory = 3200 + 320 + 640;
	check_objective(&o, 1);
	o = objective();
	o.minimize = "boundary_bytes";
	o.min_prefix_flops_fraction = 0.5;
	o.max_prefix_flops_fraction = 0.9;
	check_objective(&o, 1);
	o = objective();
	o.minimize = "prefix_flops";
	o.bandwidth_bytes_per_s = 1;
	o.max_latency_s = 320.1;
	check_objective(&o, 1);
}

static void constraints_hold_for_every_kind_of_boundary(void **state)
{
	(void)state;
	plan *p = load_ok(tower);
	clv_frontiers *f = frontiers_of(p);
	clv_objective o = objective();
	uint32_t at;
	o.max_boundary_bytes = 400;
	OK(clv_frontiers_choose(f, "1%", &o, &at));
	assert_int_equal(at, 1);
	OK(clv_frontiers_choose(f, "after:linear_1", &o, &at));
	FAILS(clv_frontiers_choose(f, "after:linear", &o, &at), CLV_E_INVALID,
	      "after \"linear\" boundary_bytes is 1600, and max_boundary_bytes is 400");
	FAILS(clv_frontiers_check(f, 2, &o), CLV_E_INVALID, "boundary_bytes is 640, and max_boundary_bytes is 400");
	FAILS(clv_frontiers_check(f, 4, &o), CLV_E_INVALID, "no frontier 4");
	clv_frontiers_free(f);
	plan_free(p);
}

static void what_cannot_be_met_is_named_with_the_best_in_reach(void **state)
{
	(void)state;
	plan *p = load_ok(tower);
	clv_frontiers *f = frontiers_of(p);
	clv_objective o = objective();
	uint32_t at;
	o.max_boundary_bytes = 100;
	o.max_prefix_flops_fraction = 0.9;
	FAILS(clv_frontiers_choose(f, "auto", &o, &at), CLV_E_UNSUPPORTED,
	      "no frontier meets all constraints: max_boundary_bytes = 100 excludes 4 of the 4 that can be cut; the lowest "
	      "boundary_bytes in reach is 320, after linear_1");
	o = objective();
	o.min_prefix_flops_fraction = 0.9999;
	FAILS(clv_frontiers_choose(f, "50%", &o, &at), CLV_E_UNSUPPORTED,
	      "min_prefix_flops_fraction = 0.9999 excludes 4 of the 4 that can be cut; the highest prefix_flops_fraction");
	clv_frontiers_free(f);
	plan_free(p);
}

static void an_objective_without_sense_is_refused(void **state)
{
	(void)state;
	plan *p = load_ok(tower);
	clv_frontiers *f = frontiers_of(p);
	clv_objective o = objective();
	uint32_t at;
	o.minimize = "regret";
	FAILS(clv_frontiers_choose(f, "auto", &o, &at), CLV_E_INVALID,
	      "\"regret\" cannot be minimised; choose one of boundary_bytes, latency, prefix_memory, suffix_memory, "
	      "prefix_flops, "
	      "suffix_flops, balance");
	o.minimize = "latency";
	FAILS(clv_frontiers_choose(f, "auto", &o, &at), CLV_E_INVALID,
	      "latency needs the constraint bandwidth_bytes_per_s");
	o.bandwidth_bytes_per_s = -1;
	FAILS(clv_frontiers_choose(f, "auto", &o, &at), CLV_E_INVALID, "bandwidth_bytes_per_s must be a number above 0");
	o.bandwidth_bytes_per_s = NAN;
	FAILS(clv_frontiers_choose(f, "auto", &o, &at), CLV_E_INVALID, "bandwidth_bytes_per_s must be a number above 0");
	o = objective();
	o.min_prefix_flops_fraction = 0.7;
	o.max_prefix_flops_fraction = 0.6;
	FAILS(clv_frontiers_choose(f, "auto", &o, &at), CLV_E_INVALID, "0 <= least <= most <= 1, not 0.7 and 0.6");
	o.size = sizeof o + 1;
	FAILS(clv_frontiers_choose(f, "auto", &o, &at), CLV_E_INVALID, "clv_objective.size is");
	clv_frontiers_free(f);
	plan_free(p);
}

static clv_latency latency_at(const clv_frontiers *f, uint32_t i, const clv_objective *o)
{
	clv_latency l = {.size = sizeof l};
	OK(clv_frontiers_latency(f, i, o, &l));
	return l;
}

static void not_cutting_is_compared_with_every_cut(void **state)
{
	(void)state;
	plan *p = load_ok(tower);
	clv_frontiers *f = frontiers_of(p);
	clv_objective o = objective();
	char *advice;
	o.minimize = "latency";
	o.bandwidth_bytes_per_s = 128;
	o.prefix_flops_per_s = 28880;
	o.suffix_flops_per_s = 28880e6;
	clv_latency l = latency_at(f, 1, &o);
	assert_float_equal(l.cut_s, 22400 / 28880. + 320 / 128., 1e-3);
	assert_float_equal(l.here_s, 1, 1e-9);  /* nothing is sent */
	assert_float_equal(l.there_s, 1, 1e-3); /* 4*8 floats are */
	OK(clv_frontiers_advice(f, 1, &o, &advice));
	assert_string_equal(advice, "not cutting is faster: 1 s with everything before the link, 3.28 s with the best cut");
	clv_free(advice);
	o.bandwidth_bytes_per_s = 256;
	OK(clv_frontiers_advice(f, 1, &o, &advice));
	assert_string_equal(advice,
	                    "not cutting is faster: 500 ms with everything after the link (128 bytes of input are sent), "
	                    "2.03 s with the best cut");
	clv_free(advice);
	o.max_prefix_params = 800;  /* not all fits here, */
	o.max_boundary_bytes = 100; /* and the input is too large to be sent */
	l = latency_at(f, 1, &o);
	assert_true(isinf(l.here_s) && isinf(l.there_s));
	OK(clv_frontiers_advice(f, 1, &o, &advice));
	assert_null(advice);
	o = objective();
	FAILS(clv_frontiers_latency(f, 1, &o, &l), CLV_E_INVALID, "latency needs bandwidth_bytes_per_s");
	clv_frontiers_free(f);
	plan_free(p);
}

static void compression_counts_in_bytes_and_in_time(void **state)
{
	(void)state;
	plan *p = load_ok(tower);
	clv_frontiers *f = frontiers_of(p);
	clv_objective o = objective();
	uint32_t at;
	o.max_boundary_bytes = 100;
	FAILS(clv_frontiers_check(f, 1, &o), CLV_E_INVALID, "boundary_bytes is 320, and max_boundary_bytes is 100");
	o.compress = "int8";
	OK(clv_frontiers_check(f, 1, &o));
	o = objective();
	o.minimize = "latency";
	o.bandwidth_bytes_per_s = 100;
	o.prefix_flops_per_s = o.suffix_flops_per_s = 1e30;
	o.compress = "fp16";
	o.compress_bytes_per_s = 1000;
	clv_latency l = latency_at(f, 1, &o);
	assert_int_equal(l.sent_bytes, 160);
	assert_float_equal(l.cut_s, 320 / 1000. + 160 / 100., 1e-9);
	assert_float_equal(l.there_s, 128 / 100., 1e-9); /* inputs are sent as they are */
	o.compress = "plain";
	FAILS(clv_frontiers_choose(f, "auto", &o, &at), CLV_E_INVALID, "compress is \"fp16\", \"bf16\", \"int8\" or");
	o.compress = "int8";
	o.compress_bytes_per_s = -1;
	FAILS(clv_frontiers_choose(f, "auto", &o, &at), CLV_E_INVALID, "compress_bytes_per_s must be a number above 0");
	clv_frontiers_free(f);
	plan_free(p);
}

/* Two branches cross at 50 % of the work, one tensor a little later. */
static const char *const narrow_later = HEAD "input %x f32[4,100]\n"
											 "param @a f32[100,100]\nparam @b f32[10,100]\nparam @c f32[800,10]\n"
											 "%1 = aten::linear(%x, @a, none) -> f32[4,100]\n"
											 "%2 = aten::relu(%1) -> f32[4,100]\n"
											 "%3 = aten::linear(%2, @b, none) -> f32[4,10]\n"
											 "%4 = aten::linear(%3, @c, none) -> f32[4,800]\n"
											 "output %4\n";

static void a_percentage_takes_the_fewest_bytes_nearby(void **state)
{
	(void)state;
	plan *p = load_ok(narrow_later);
	clv_frontiers *f = frontiers_of(p);
	assert_true(frontier_at(f, 1).prefix_cost > 0.5 && frontier_at(f, 2).prefix_cost < 0.6);
	assert_int_equal(chosen(f, "55%", false), 2);
	assert_int_equal(chosen(f, "percent:55", false), 2);
	assert_int_equal(chosen(f, "nearest:55%", false), 1);
	assert_int_equal(chosen(f, "5%", false), 0); /* nothing is near: the nearest */
	clv_frontiers_free(f);
	plan_free(p);
}

static void write_text(const char *path, const char *text)
{
	FILE *to = fopen(path, "w");
	assert_non_null(to);
	fputs(text, to);
	fclose(to);
}

static void a_measured_speed_is_read_from_a_file(void **state)
{
	(void)state;
	char path[] = "/tmp/cleave-speed-XXXXXX";
	double speed = 0;
	close(mkstemp(path));
	write_text(path, "[{\"flops_per_s\": 1e9}, {\"flops_per_s\": 2.5e10}, {\"flops_per_s\": null}]");
	OK(clv_speed_load(path, &speed));
	assert_float_equal(speed, 2.5e10, 0);
	write_text(path, "[{\"median\": 1}]");
	FAILS(clv_speed_load(path, &speed), CLV_E_PARSE, "no row has flops_per_s");
	write_text(path, "[{\"flops_per_s\": -1}]");
	FAILS(clv_speed_load(path, &speed), CLV_E_PARSE, "flops_per_s is -1; it must be above 0");
	write_text(path, "{\"flops_per_s\": 1}");
	FAILS(clv_speed_load(path, &speed), CLV_E_PARSE, "no row has flops_per_s");
	write_text(path, "[");
	FAILS(clv_speed_load(path, &speed), CLV_E_PARSE, path);
	unlink(path);
	FAILS(clv_speed_load(path, &speed), CLV_E_IO, path);
}

/* ---- all plans ------------------------------------------------------------------------------------------------------ */

typedef struct naive {
	uint32_t tensors, inputs;
	bool unsafe;
} naive;

typedef struct part {
	const plan *p;
	symbol_id s;
	bool defined, used;
} part;

static void defines(void *ctx, symbol_id s, value_id v, uint32_t dim)
{
	(void)v;
	(void)dim;
	((part *)ctx)->defined |= ((part *)ctx)->s == s;
}

static void uses(void *ctx, symbol_id s)
{
	((part *)ctx)->used |= ((part *)ctx)->s == s;
}

static void before_cut(void *ctx, value_id v)
{
	value_each_data(((part *)ctx)->p, v, defines, ctx);
}

static void after_cut(void *ctx, value_id v)
{
	part *c = ctx;
	const value *x = &c->p->values.at[v];
	for (uint32_t d = 0; x->type == TYPE_TENSOR && d < x->ndim; d++)
		c->used |= expr_depends(c->p, c->p->dims.at[x->shape + d], c->s);
	if (x->expect != NONE)
		arg_each_symbol(c->p, &c->p->args.at[x->expect], uses, c);
}

/* A data symbol is read before the cut and needed after it, and no tensor that crosses has it as a size. */
static bool parted(const plan *p, const view *v, symbol_id s, node_id at)
{
	part c = {p, s, false, false};
	for (node_id n = 0; n <= at; n++)
		node_each_result(p, n, before_cut, &c);
	for (node_id n = at + 1; n < p->nodes.n; n++) {
		node_each_symbol(p, n, uses, &c);
		node_each_result(p, n, after_cut, &c);
	}
	for (uint32_t i = 0; i < p->out_tree.n; i++) {
		const tree *t = &p->out_tree.at[i];
		if (t->kind == TREE_INT)
			arg_each_symbol(p, &(arg){.kind = ARG_INT, .u.e = t->u.e}, uses, &c);
		else if (t->kind == TREE_REAL)
			arg_each_symbol(p, &(arg){.kind = ARG_REAL, .u.r = t->u.r}, uses, &c);
	}
	for (uint32_t i = 0; i < v->outputs.n; i++) {
		const value *x = &p->values.at[v->outputs.at[i]];
		symbol_id k;
		for (uint32_t d = 0; x->type == TYPE_TENSOR && x->kind == VALUE_RESULT && d < x->ndim; d++)
			if (expr_is_data(p, p->dims.at[x->shape + d], &k) && k == s)
				return false;
	}
	return c.defined && c.used;
}

typedef struct state_sides {
	const plan *p;
	const bool *memory; /* per root: it is the state's */
	value_id itself;    /* the state, if only this value is; NONE */
	bool touched;
} state_sides;

static void see_state(void *ctx, value_id v)
{
	state_sides *s = ctx;
	s->touched |= s->memory[alias_root(s->p, v)] || v == s->itself;
}

/* Some node of first … end-1 has to do with it, or the output, or a rebind to a tensor that is its own. */
static bool touches_state(state_sides *s, const node_id *places, node_id first, node_id end)
{
	const plan *p = s->p;
	s->touched = false;
	for (node_id n = first; n < end; n++) {
		node_each_arg(p, n, see_state, s);
		node_each_result(p, n, see_state, s);
		for (uint32_t w = 0; w < p->nodes.at[n].nwrites; w++)
			see_state(s, p->ids.at[p->nodes.at[n].writes + w]);
	}
	for (uint32_t i = 0; end == p->nodes.n && i < p->out_tree.n; i++)
		if (p->out_tree.at[i].kind == TREE_VALUE)
			see_state(s, p->out_tree.at[i].u.v);
	for (uint32_t i = 0; i < p->rebinds.n; i++)
		if (places[i] >= first && (places[i] < end || end == p->nodes.n))
			see_state(s, p->rebinds.at[i].value);
	return s->touched;
}

static bool is_written(const plan *p, value_id root)
{
	for (node_id n = 0; n < p->nodes.n; n++)
		for (uint32_t w = 0; w < p->nodes.at[n].nwrites; w++)
			if (alias_root(p, p->ids.at[p->nodes.at[n].writes + w]) == root)
				return true;
	return false;
}

/* Memory that the next runs write where this one writes `root`: what it is re-bound to, and what that is. */
static void grow_memory(const plan *p, bool *memory)
{
	for (bool more = true; more;) {
		more = false;
		for (uint32_t i = 0; i < p->rebinds.n; i++) {
			value_id to = alias_root(p, p->rebinds.at[i].value);
			if (memory[alias_root(p, p->rebinds.at[i].target)] && !memory[to])
				more = memory[to] = true;
		}
	}
}

/* Both sides of a cut have to do with a tensor of the model that the forward changes. */
static bool parts_state(const plan *p, node_id at)
{
	node_id *places = calloc(p->rebinds.n + 1, sizeof *places);
	bool *memory = calloc(p->values.n + 1, sizeof *memory), unsafe = false;
	liveness l;
	OK(liveness_parts(p, &l, places));
	for (value_id v = 0; v < p->values.n; v++) {
		uint8_t kind = p->values.at[v].kind;
		if (alias_root(p, v) != v || !external(kind) || kind == VALUE_OBJECT || !is_written(p, v))
			continue;
		memset(memory, 0, p->values.n * sizeof *memory);
		memory[v] = true;
		grow_memory(p, memory);
		state_sides s = {p, memory, NONE, false};
		unsafe |= touches_state(&s, places, 0, at + 1) && touches_state(&s, places, at + 1, p->nodes.n);
	}
	memset(memory, 0, p->values.n * sizeof *memory);
	for (uint32_t i = 0; i < p->rebinds.n; i++) {
		state_sides s = {p, memory, p->rebinds.at[i].target, false};
		if (!is_written(p, alias_root(p, s.itself)))
			unsafe |= touches_state(&s, places, 0, at + 1) &&
			          (places[i] > at || touches_state(&s, places, at + 1, p->nodes.n));
	}
	free(places);
	free(memory);
	liveness_free(&l);
	return unsafe;
}

/* The rules, written down as they are said, and slow. */
static naive judge_slowly(const plan *p, node_id at)
{
	naive out = {0};
	view v;
	OK(view_range(p, 0, at + 1, &v));
	for (uint32_t i = 0; i < v.outputs.n; i++) {
		const value *x = &p->values.at[v.outputs.at[i]];
		out.tensors += x->type == TYPE_TENSOR;
		out.inputs += x->kind == VALUE_INPUT;
		dtype wire;
		uint32_t parts;
		out.unsafe |= x->type != TYPE_TENSOR || (x->flags & VALUE_ODD) || !wire_dtype((dtype)x->dtype, &wire, &parts);
	}
	for (node_id n = at + 1; n < p->nodes.n; n++)
		for (uint32_t w = 0; w < p->nodes.at[n].nwrites; w++) {
			value_id root = alias_root(p, p->ids.at[p->nodes.at[n].writes + w]);
			uint32_t crossing = 0;
			for (uint32_t i = 0; i < v.outputs.n; i++)
				crossing += alias_root(p, v.outputs.at[i]) == root;
			out.unsafe |= !external(p->values.at[root].kind) && crossing > (p->values.at[root].kind == VALUE_RESULT);
		}
	out.unsafe |= out.tensors == 0;
	for (uint32_t i = 0; i < v.outputs.n; i++) {
		const value *x = &p->values.at[v.outputs.at[i]];
		out.unsafe |= x->type != TYPE_TENSOR && x->type != TYPE_OBJECT;
	}
	for (symbol_id s = 0; s < p->symbols.n; s++)
		out.unsafe |= p->symbols.at[s].data && parted(p, &v, s, at);
	out.unsafe |= parts_state(p, at);
	view_free(&v);
	return out;
}

static void frontiers_of_random_plans_agree_with_the_rules(void **state)
{
	(void)state;
	unsigned unsafe = 0, safe = 0;
	for (uint64_t seed = 0; seed < 2000; seed++) {
		plan *p = random_plan(seed);
		clv_frontiers *f = frontiers_of(p);
		for (uint32_t i = 0; i < clv_frontiers_count(f); i++) {
			clv_frontier c = frontier_at(f, i);
			naive want = judge_slowly(p, i);
			if (c.boundary_tensors != want.tensors || c.passthrough_inputs != want.inputs || !c.unsafe == want.unsafe)
				fail_msg("seed %llu frontier %u", (unsigned long long)seed, i);
			assert_true(c.boundary_bytes >= 0 && c.prefix_cost >= 0 && c.prefix_cost <= 1);
			want.unsafe ? unsafe++ : safe++;
		}
		clv_frontiers_free(f);
		plan_free(p);
	}
	print_message("%u safe, %u unsafe\n", safe, unsafe);
	assert_true(safe > 1000 && unsafe > 1000);
}

/* Uses of values, one flag per value and position; outputs are at position nodes.n, rebinds at their places. */
typedef struct use_table {
	const plan *p;
	bool *used;
	node_id now;
} use_table;

static void note_use(void *ctx, value_id v)
{
	use_table *t = ctx;
	t->used[(size_t)v * (t->p->nodes.n + 1) + t->now] = true;
}

static use_table uses_of(const plan *p)
{
	use_table t = {p, calloc((size_t)p->values.n * (p->nodes.n + 1) + 1, sizeof *t.used), 0};
	for (; t.now < p->nodes.n; t.now++) {
		node_each_arg(p, t.now, note_use, &t);
		for (uint32_t w = 0; w < p->nodes.at[t.now].nwrites; w++)
			note_use(&t, p->ids.at[p->nodes.at[t.now].writes + w]);
	}
	for (uint32_t i = 0; i < p->out_tree.n; i++)
		if (p->out_tree.at[i].kind == TREE_VALUE)
			note_use(&t, p->out_tree.at[i].u.v);
	node_id *places = calloc(p->rebinds.n + 1, sizeof *places);
	liveness l;
	OK(liveness_parts(p, &l, places));
	for (uint32_t i = 0; i < p->rebinds.n; i++) {
		t.now = places[i];
		note_use(&t, p->rebinds.at[i].value);
	}
	liveness_free(&l);
	free(places);
	return t;
}

/* A use of the value, or of any value on its memory, at first … end-1. */
static bool is_used(const use_table *t, value_id v, bool memory, node_id first, node_id end)
{
	for (value_id u = 0; u < t->p->values.n; u++)
		for (node_id k = first; (u == v || (memory && alias_root(t->p, u) == v)) && k < end; k++)
			if (t->used[(size_t)u * (t->p->nodes.n + 1) + k])
				return true;
	return false;
}

static bool is_made_inside(const plan *p, value_id v)
{
	return p->values.at[v].kind == VALUE_INPUT || p->values.at[v].kind == VALUE_RESULT;
}

typedef struct slow_costs {
	__int128 params, memory;
} slow_costs;

/* Of nodes first … end-1: elements of parameters, and memory. */
static slow_costs costs_slowly(const use_table *t, const int64_t *bytes, const int64_t *elements, node_id first,
                               node_id end)
{
	const plan *p = t->p;
	slow_costs out = {0, 0};
	__int128 peak = 0;
	node_id until = end == p->nodes.n ? end + 1 : end; /* what is after the last node belongs to the suffix */
	for (value_id v = 0; v < p->values.n; v++) {
		bool root = p->values.at[v].type == TYPE_TENSOR && p->values.at[v].alias == NONE;
		if (p->values.at[v].kind == VALUE_PARAM && is_used(t, v, false, first, until))
			out.params += elements[v];
		if (root && !is_made_inside(p, v) && is_used(t, v, true, first, until))
			out.memory += bytes[v];
	}
	for (node_id k = first; k < end; k++) {
		__int128 live = 0;
		for (value_id v = 0; v < p->values.n; v++) {
			const value *x = &p->values.at[v];
			node_id born = x->kind == VALUE_INPUT ? 0 : x->def;
			if (x->type == TYPE_TENSOR && x->alias == NONE && is_made_inside(p, v) && born <= k &&
			    (born == k || is_used(t, v, true, k, p->nodes.n + 1)))
				live += bytes[v];
		}
		peak = live > peak ? live : peak;
	}
	out.memory += peak;
	return out;
}

static int64_t clamped(__int128 n)
{
	return n < INT64_MAX ? (int64_t)n : INT64_MAX;
}

/* All sizes of a plan at the lowest symbols. */
static void measure(const plan *p, int64_t *bytes, int64_t *elements)
{
	int64_t *sizes = calloc(p->exprs.n + 1, sizeof *sizes), syms[16];
	bool *defined = calloc(p->exprs.n + 1, sizeof *defined);
	for (symbol_id i = 0; i < p->symbols.n; i++)
		syms[i] = p->symbols.at[i].lo > 0 ? p->symbols.at[i].lo : 1;
	OK(expr_eval_all(p, syms, sizes, defined));
	for (value_id v = 0; v < p->values.n; v++) {
		const value *x = &p->values.at[v];
		bool fits = true, fits_too = true;
		elements[v] = 1;
		bytes[v] = x->type == TYPE_TENSOR ? dtype_bits((dtype)x->dtype) / 8 : 0;
		for (uint32_t d = 0; d < x->ndim; d++) {
			expr_id e = p->dims.at[x->shape + d];
			int64_t size = sizes[e] > 0 ? sizes[e] : 0;
			fits &= defined[e] && !__builtin_mul_overflow(bytes[v], size, &bytes[v]);
			fits_too &= defined[e] && !__builtin_mul_overflow(elements[v], size, &elements[v]);
		}
		bytes[v] = fits ? bytes[v] : INT64_MAX;
		elements[v] = fits_too ? elements[v] : INT64_MAX;
	}
	free(sizes);
	free(defined);
}

static void costs_of_random_plans_agree_with_the_rules(void **state)
{
	(void)state;
	unsigned compared = 0;
	for (uint64_t seed = 0; seed < 1000; seed++) {
		plan *p = random_plan(seed);
		clv_frontiers *f = frontiers_of(p);
		use_table t = uses_of(p);
		int64_t *bytes = calloc(p->values.n + 1, sizeof *bytes), *elements = calloc(p->values.n + 1, sizeof *elements);
		measure(p, bytes, elements);
		for (uint32_t i = 0; i < clv_frontiers_count(f); i++) {
			clv_frontier c = frontier_at(f, i);
			slow_costs prefix = costs_slowly(&t, bytes, elements, 0, i + 1);
			slow_costs suffix = costs_slowly(&t, bytes, elements, i + 1, p->nodes.n);
			if (c.prefix_params != clamped(prefix.params) || c.suffix_params != clamped(suffix.params) ||
			    c.prefix_memory != clamped(prefix.memory) || c.suffix_memory != clamped(suffix.memory))
				fail_msg("seed %llu frontier %u: memory %lld %lld, not %lld %lld", (unsigned long long)seed, i,
				         (long long)c.prefix_memory, (long long)c.suffix_memory, (long long)clamped(prefix.memory),
				         (long long)clamped(suffix.memory));
			compared += c.prefix_memory < INT64_MAX && c.prefix_memory != c.suffix_memory;
		}
		free(t.used);
		free(bytes);
		free(elements);
		clv_frontiers_free(f);
		plan_free(p);
	}
	print_message("%u costs compared\n", compared);
	assert_true(compared > 1000);
}

/* The value of a formula at the lowest sizes; -1 where it has none. */
static int64_t formula_at_lowest(const plan *p, const char *formula)
{
	strbuf b = STRBUF_INIT;
	plan *q = NULL;
	int64_t got = -1;
	bool defined[1024];
	int64_t sizes[1024], syms[16];
	strbuf_puts(&b, "cleave-plan 1\nmodel \"m\"\n");
	for (symbol_id i = 0; i < p->symbols.n; i++) {
		const symbol *s = &p->symbols.at[i];
		strbuf_printf(&b, "symbol %s %lld..%lld\n", plan_s(p, s->name), (long long)s->lo, (long long)s->hi);
		syms[i] = s->lo > 0 ? s->lo : 1;
	}
	strbuf_printf(&b, "%%1 = a::b(%s) -> f32[1]\noutput none\n", formula);
	char *text = taken(&b);
	if (plan_parse(text, strlen(text), &q) == CLV_OK && q->exprs.n <= 1024) {
		OK(expr_eval_all(q, syms, sizes, defined));
		const arg *a = &q->args.at[q->nodes.at[0].args];
		got = a->kind == ARG_INT && defined[a->u.e] ? sizes[a->u.e] : -1;
	}
	plan_free(q);
	mem_free(text);
	return got;
}

/* Sizes that cross are all there and not negative. */
static bool sizes_are_sound(const plan *p, node_id at)
{
	int64_t *sizes = calloc(p->exprs.n + 1, sizeof *sizes), syms[16];
	bool *defined = calloc(p->exprs.n + 1, sizeof *defined), sound = true;
	view v;
	for (symbol_id i = 0; i < p->symbols.n; i++)
		syms[i] = p->symbols.at[i].lo > 0 ? p->symbols.at[i].lo : 1;
	OK(expr_eval_all(p, syms, sizes, defined));
	OK(view_range(p, 0, at + 1, &v));
	for (uint32_t i = 0; i < v.outputs.n; i++) {
		const value *x = &p->values.at[v.outputs.at[i]];
		for (uint32_t d = 0; d < x->ndim; d++) {
			expr_id e = p->dims.at[x->shape + d];
			sound &= defined[e] && sizes[e] >= 0;
		}
	}
	view_free(&v);
	free(sizes);
	free(defined);
	return sound;
}

static void the_formula_of_a_boundary_gives_its_bytes(void **state)
{
	(void)state;
	unsigned compared = 0;
	for (uint64_t seed = 0; seed < 2000; seed++) {
		plan *p = random_plan(seed);
		clv_frontiers *f = frontiers_of(p);
		for (uint32_t i = 0; i < clv_frontiers_count(f); i++) {
			char *text = NULL;
			clv_status st = clv_frontiers_bytes_text(f, i, &text);
			assert_true(st == CLV_OK || st == CLV_E_OVERFLOW);
			int64_t bytes = frontier_at(f, i).boundary_bytes;
			int64_t got = st == CLV_OK && sizes_are_sound(p, i) ? formula_at_lowest(p, text) : -1;
			if (got >= 0 && bytes < INT64_MAX) {
				if (got != bytes)
					fail_msg("seed %llu frontier %u: %s is %lld, not %lld", (unsigned long long)seed, i, text,
					         (long long)got, (long long)bytes);
				compared += got > 0;
			}
			clv_free(text);
		}
		clv_frontiers_free(f);
		plan_free(p);
	}
	print_message("%u formulas compared\n", compared);
	assert_true(compared > 500);
}

static void labels_of_random_plans_are_those_of_the_view(void **state)
{
	(void)state;
	for (uint64_t seed = 0; seed < 500; seed++) {
		plan *p = random_plan(seed);
		clv_frontiers *f = frontiers_of(p);
		for (uint32_t i = 0; i < clv_frontiers_count(f); i++) {
			strbuf b = STRBUF_INIT;
			char *got = NULL;
			view v;
			OK(view_range(p, 0, i + 1, &v));
			for (uint32_t k = 0; k < v.outputs.n; k++) {
				if (p->values.at[v.outputs.at[k]].type != TYPE_TENSOR)
					continue;
				strbuf_puts(&b, b.n ? " " : "");
				value_label(p, v.outputs.at[k], &b);
			}
			char *want = taken(&b);
			OK(clv_frontiers_labels(f, i, &got));
			assert_string_equal(got, want);
			clv_free(got);
			mem_free(want);
			view_free(&v);
		}
		clv_frontiers_free(f);
		plan_free(p);
	}
}

static clv_status texts(const clv_frontiers *f)
{
	char *text = NULL;
	TRY(clv_frontiers_bytes_text(f, 2, &text));
	clv_free(text);
	TRY(clv_frontiers_labels(f, 2, &text));
	clv_free(text);
	return CLV_OK;
}

typedef struct choice {
	const plan *p;
	const char *boundary;
	const clv_objective *o;
} choice;

static clv_status make_print_and_choose(const void *ctx)
{
	const choice *c = ctx;
	clv_frontiers *f = NULL;
	uint32_t at;
	TRY(clv_frontiers_create(c->p, NULL, &f));
	clv_status st = texts(f);
	if (st == CLV_OK)
		st = clv_frontiers_choose(f, c->boundary, c->o, &at);
	clv_frontiers_free(f);
	return st;
}

static void sweep(const char *text, const char *boundary, const clv_objective *o, clv_status want)
{
	plan *p = load_ok(text);
	sweep_faults(make_print_and_choose, &(choice){p, boundary, o}, want);
	plan_free(p);
}

static void every_allocation_may_fail(void **state)
{
	(void)state;
	clv_objective fewest = objective(), tight = objective(), senseless = objective();
	fewest.minimize = "boundary_bytes";
	tight.max_boundary_bytes = 0;
	senseless.minimize = "time";
	sweep(mostly_unsafe, "after:nobody", NULL, CLV_E_NOT_FOUND);
	sweep(net, "auto", &fewest, CLV_OK);
	sweep(net, "auto", &tight, CLV_E_UNSUPPORTED);
	sweep(net, "50%", &senseless, CLV_E_INVALID);
	sweep(HEAD "input %x f32[8]\n%1 = t::a(%x) -> f32[8]\n%2 = aten::as_strided(%1, [1], [1]) -> f32[1] view-of %1\n"
	           "%3 = t::b(%2) -> f32[1]\n%4 = t::c(%3) -> f32[1]\noutput %4\n",
	      "auto", NULL, CLV_OK);
}

enum { NODES = 100000 };

static clv_frontiers *timed(const plan *p, const char *what)
{
	struct timespec a, b;
	timespec_get(&a, TIME_UTC);
	clv_frontiers *f = frontiers_of(p);
	timespec_get(&b, TIME_UTC);
	print_message("%-24s %6.0f ms\n", what,
	              (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) * 1e-6);
	return f;
}

static void a_chain_of_100000_nodes_is_judged(void **state)
{
	(void)state;
	strbuf b = STRBUF_INIT;
	strbuf_puts(&b, HEAD "input %0 f32[4]\n");
	for (int i = 0; i < NODES; i++)
		strbuf_printf(&b, "%%%d = aten::relu(%%%d) -> f32[4]\n", i + 1, i);
	strbuf_printf(&b, "output %%%d\n", NODES);
	char *text = taken(&b);
	plan *p = load_ok(text);
	clv_frontiers *f = timed(p, "chain");
	assert_int_equal(clv_frontiers_count(f), NODES - 1);
	assert_int_equal(frontier_at(f, NODES / 2).boundary_bytes, 16);
	assert_int_equal(chosen(f, "50%", false), NODES / 2 - 1);
	clv_frontiers_free(f);
	plan_free(p);
	mem_free(text);
}

/* Half of the nodes make a value, the other half write them in the same order; all go to the output. */
static void values_that_live_long_are_judged_as_quickly(void **state)
{
	(void)state;
	strbuf b = STRBUF_INIT;
	strbuf_puts(&b, HEAD "input %x f32[4]\n");
	for (int i = 0; i < NODES / 2; i++)
		strbuf_printf(&b, "%%%d = aten::relu(%%x) -> f32[4]\n", i);
	for (int i = 0; i < NODES / 2; i++)
		strbuf_printf(&b, "%%w%d = aten::relu_(%%%d) -> f32[4] view-of %%%d writes %%%d\n", i, i, i, i);
	strbuf_puts(&b, "output [");
	for (int i = 0; i < NODES / 2; i++)
		strbuf_printf(&b, "%%%d, ", i);
	strbuf_puts(&b, "%x]\n");
	char *text = taken(&b);
	plan *p = load_ok(text);
	clv_frontiers *f = timed(p, "long lives");
	clv_frontier c = frontier_at(f, NODES - 2);
	assert_int_equal(c.boundary_tensors, NODES / 2 + 1);
	assert_int_equal(c.boundary_bytes, 16 * (NODES / 2 + 1));
	assert_null(c.unsafe);
	clv_frontiers_free(f);
	plan_free(p);
	mem_free(text);
}

/* One storage with 100,000 views on it, written at the end. */
static void many_views_of_one_memory_are_judged_as_quickly(void **state)
{
	(void)state;
	strbuf b = STRBUF_INIT;
	strbuf_puts(&b, HEAD "input %x f32[4]\n%0 = aten::relu(%x) -> f32[4]\n");
	for (int i = 0; i < NODES; i++)
		strbuf_printf(&b, "%%%d = aten::view(%%%d) -> f32[4] view-of %%0\n", i + 1, i);
	strbuf_puts(&b, "%w = aten::relu_(%0) -> f32[4] view-of %0 writes %0\noutput (%w, %x)\n");
	char *text = taken(&b);
	plan *p = load_ok(text);
	clv_frontiers *f = timed(p, "views of one memory");
	assert_null(frontier_at(f, 0).unsafe);
	assert_non_null(frontier_at(f, 1).unsafe);
	assert_non_null(frontier_at(f, NODES - 1).unsafe);
	assert_null(frontier_at(f, NODES).unsafe); /* the last view is never read */
	clv_frontiers_free(f);
	plan_free(p);
	mem_free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_frontier_tells_what_crosses_there),
		cmocka_unit_test(inputs_that_the_suffix_or_the_output_needs_pass_through),
		cmocka_unit_test(bytes_are_those_of_the_lowest_sizes),
		cmocka_unit_test(more_than_2_to_the_63_bytes_stay_the_largest_number),
		cmocka_unit_test(values_on_the_host_do_not_cross),
		cmocka_unit_test(work_without_numbers_is_counted_in_nodes),
		cmocka_unit_test(a_caller_with_an_older_header_gets_what_it_knows),
		cmocka_unit_test(a_frontier_that_does_not_exist_is_refused),
		cmocka_unit_test(an_input_that_is_written_after_the_cut_is_unsafe),
		cmocka_unit_test(memory_that_crosses_more_than_once_and_is_written_later_is_unsafe),
		cmocka_unit_test(memory_that_crosses_once_may_be_written_later),
		cmocka_unit_test(a_view_of_the_models_memory_that_is_written_after_the_cut_is_unsafe),
		cmocka_unit_test(the_models_memory_may_be_written_on_one_side),
		cmocka_unit_test(a_tensor_that_is_re_bound_is_used_on_one_side),
		cmocka_unit_test(memory_that_is_read_beyond_its_elements_after_the_cut_is_unsafe),
		cmocka_unit_test(the_models_memory_may_be_read_beyond_its_elements),
		cmocka_unit_test(a_cut_that_nothing_crosses_is_unsafe),
		cmocka_unit_test(a_boundary_has_many_forms),
		cmocka_unit_test(a_text_that_is_no_boundary_lists_the_forms),
		cmocka_unit_test(a_percentage_is_above_0_and_below_100),
		cmocka_unit_test(an_unknown_name_comes_with_the_nearest_ones),
		cmocka_unit_test(nothing_is_left_after_the_end),
		cmocka_unit_test(a_named_cut_that_is_unsafe_is_refused_with_its_reason),
		cmocka_unit_test(percentages_and_auto_pass_over_unsafe_cuts),
		cmocka_unit_test(a_plan_without_a_safe_cut_says_why),
		cmocka_unit_test(a_trainable_suffix_reads_a_trainable_parameter),
		cmocka_unit_test(auto_takes_the_fewest_bytes_with_a_fifth_of_the_work_on_each_side),
		cmocka_unit_test(auto_takes_any_cut_when_the_middle_has_none),
		cmocka_unit_test(of_two_cuts_at_the_same_distance_the_smaller_is_taken),
		cmocka_unit_test(a_frontier_tells_what_each_side_costs),
		cmocka_unit_test(the_whole_plan_costs_what_all_its_nodes_cost),
		cmocka_unit_test(a_parameter_that_both_sides_read_counts_on_both),
		cmocka_unit_test(views_take_no_memory_and_memory_lives_as_long_as_its_views),
		cmocka_unit_test(bytes_are_a_short_formula_in_the_symbols),
		cmocka_unit_test(a_boundary_has_the_labels_of_the_plan),
		cmocka_unit_test(operators_that_hold_layers_count_every_weight_for_every_token),
		cmocka_unit_test(sizes_are_the_callers),
		cmocka_unit_test(only_ordinary_tensors_can_cross),
		cmocka_unit_test(a_write_is_named_with_its_module_and_source_line),
		cmocka_unit_test(each_goal_has_its_best_frontier),
		cmocka_unit_test(latency_weighs_work_against_bytes),
		cmocka_unit_test(each_constraint_keeps_frontiers_out),
		cmocka_unit_test(constraints_hold_for_every_kind_of_boundary),
		cmocka_unit_test(what_cannot_be_met_is_named_with_the_best_in_reach),
		cmocka_unit_test(an_objective_without_sense_is_refused),
		cmocka_unit_test(not_cutting_is_compared_with_every_cut),
		cmocka_unit_test(compression_counts_in_bytes_and_in_time),
		cmocka_unit_test(a_percentage_takes_the_fewest_bytes_nearby),
		cmocka_unit_test(a_measured_speed_is_read_from_a_file),
		cmocka_unit_test(costs_of_random_plans_agree_with_the_rules),
		cmocka_unit_test(the_formula_of_a_boundary_gives_its_bytes),
		cmocka_unit_test(labels_of_random_plans_are_those_of_the_view),
		cmocka_unit_test(frontiers_of_random_plans_agree_with_the_rules),
		cmocka_unit_test(every_allocation_may_fail),
		cmocka_unit_test(a_chain_of_100000_nodes_is_judged),
		cmocka_unit_test(values_that_live_long_are_judged_as_quickly),
		cmocka_unit_test(many_views_of_one_memory_are_judged_as_quickly),
	};
	return cmocka_run_group_tests_name("frontier", tests, NULL, NULL);
}
