/* Groups: which nodes the pass puts together, that the native engine gives the same with and without them, bit for bit, and that
 * a row has the same bits whatever is around it. */
#include "artifacts.h"

#include <math.h>

#include "native/lowering.h"
#include "optimize/optimize.h"

#define HEAD "cleave-plan 1\nmodel \"M\" training=no grad=no\n"

/* ---- the pass ----------------------------------------------------------------------------------------------------- */

static const char *nodes_of(const char *text)
{
	const char *first = strstr(text, "\n%"), *group = strstr(text, "\ngroup");
	return (group && (!first || group < first) ? group : first) + 1;
}

static optimized_plan grouped(const plan *p)
{
	static const char *const off[] = {"functions", "norms", "attention", "channels_last", "fuse", "in_place", NULL};
	optimize_spec s = {.level = OPTIMIZE_FAST, .off = off, .groups = native_group_role};
	optimized_plan o;
	OK(optimize(p, 0, p->nodes.n, &s, &o));
	return o;
}

static void becomes(const char *before, const char *after)
{
	plan *p = load_ok(before), *again;
	optimized_plan o = grouped(p);
	char *text = print_ok(o.p);
	assert_string_equal(nodes_of(text), after);
	again = load_ok(text);
	assert_true(plan_equal(o.p, again));
	plan_free(again);
	mem_free(text);
	optimized_plan_free(&o);
	plan_free(p);
}

#define X "input %0 f32[B,8] name=\"x\"\nparam @w f32[8,8]\nparam @v f32[8]\n"
#define SIZES HEAD "symbol B 1..9\n"

static void what_follows_a_product_is_its_group(void **state)
{
	(void)state;
	becomes(SIZES X "%1 = aten::linear(%0, @w, @v) -> f32[B,8]\n%2 = aten::sigmoid(%1) -> f32[B,8]\n"
	                "%3 = aten::mul.Tensor(%1, %2) -> f32[B,8]\n%4 = aten::add.Tensor(%3, %0, 1) -> f32[B,8]\n"
	                "output %4\n",
	        "group\n  %1 = aten::linear(%0, @w, @v) -> f32[B,8]\n  %2 = aten::sigmoid(%1) -> f32[B,8]\n"
	        "  %3 = aten::mul.Tensor(%1, %2) -> f32[B,8]\n  %4 = aten::add.Tensor(%3, %0, 1) -> f32[B,8]\nend\n"
	        "output %4\n");
}

static void what_others_read_ends_the_group_of_a_product(void **state)
{
	(void)state;
	becomes(SIZES X "%1 = aten::linear(%0, @w, @v) -> f32[B,8]\n%2 = aten::relu(%1) -> f32[B,8]\n"
	                "%3 = aten::tanh(%2) -> f32[B,8]\noutput (%2, %3)\n",
	        "group\n  %1 = aten::linear(%0, @w, @v) -> f32[B,8]\n  %2 = aten::relu(%1) -> f32[B,8]\nend\n"
	        "%3 = aten::tanh(%2) -> f32[B,8]\noutput (%2, %3)\n");
}

static void what_is_made_after_the_product_does_not_join_it(void **state)
{
	(void)state;
	becomes(SIZES X "%1 = aten::linear(%0, @w, none) -> f32[B,8]\n%2 = aten::linear(%0, @w, @v) -> f32[B,8]\n"
	                "%3 = aten::mul.Tensor(%1, %2) -> f32[B,8]\noutput %3\n",
	        "%1 = aten::linear(%0, @w, none) -> f32[B,8]\n"
	        "group\n  %2 = aten::linear(%0, @w, @v) -> f32[B,8]\n  %3 = aten::mul.Tensor(%1, %2) -> f32[B,8]\nend\n"
	        "output %3\n");
}

static void a_norm_that_is_spelt_out_is_one_group(void **state)
{
	(void)state;
	becomes(
		SIZES X "%1 = aten::pow.Tensor_Scalar(%0, 2) -> f32[B,8]\n%2 = aten::mean.dim(%1, [-1], true) -> f32[B,1]\n"
				"%3 = aten::linear(%0, @w, none) -> f32[B,8]\n%4 = aten::rsqrt(%2) -> f32[B,1]\n"
				"%5 = aten::mul.Tensor(%0, %4) -> f32[B,8]\noutput (%3, %5)\n",
		"%1 = aten::linear(%0, @w, none) -> f32[B,8]\n"
		"group\n  %2 = aten::pow.Tensor_Scalar(%0, 2) -> f32[B,8]\n  %3 = aten::mean.dim(%2, [-1], true) -> f32[B,1]\n"
		"  %4 = aten::rsqrt(%3) -> f32[B,1]\n  %5 = aten::mul.Tensor(%0, %4) -> f32[B,8]\nend\noutput (%1, %5)\n");
}

/* A reader that does not join stands between: what it reads cannot move past it. */
static void a_reader_between_closes_a_group(void **state)
{
	(void)state;
	becomes(
		SIZES X "%1 = aten::exp(%0) -> f32[B,8]\n%2 = aten::cumsum(%1, 1) -> f32[B,8]\n"
				"%3 = aten::add.Tensor(%1, %2, 1) -> f32[B,8]\n%4 = aten::relu(%3) -> f32[B,8]\noutput %4\n",
		"%1 = aten::exp(%0) -> f32[B,8]\n%2 = aten::cumsum(%1, 1) -> f32[B,8]\n"
		"group\n  %3 = aten::add.Tensor(%1, %2, 1) -> f32[B,8]\n  %4 = aten::relu(%3) -> f32[B,8]\nend\noutput %4\n");
}

static void other_sizes_are_another_group(void **state)
{
	(void)state;
	becomes(SIZES X "%1 = aten::relu(%0) -> f32[B,8]\n%2 = aten::sum.dim_IntList(%1, [0], true) -> f32[1,8]\n"
	                "%3 = aten::mean.dim(%1, [-1]) -> f32[B]\n%4 = aten::neg(%3) -> f32[B]\noutput (%2, %4)\n",
	        "%1 = aten::relu(%0) -> f32[B,8]\n%2 = aten::sum.dim_IntList(%1, [0], true) -> f32[1,8]\n"
	        "%3 = aten::mean.dim(%1, [-1]) -> f32[B]\n%4 = aten::neg(%3) -> f32[B]\noutput (%2, %4)\n");
}

static void a_write_that_nobody_needs_is_undone(void **state)
{
	(void)state;
	becomes(SIZES X "%1 = aten::linear(%0, @w, none) -> f32[B,8]\n"
	                "%2 = aten::relu_(%1) -> f32[B,8] view-of %1 writes %1\n"
	                "%3 = aten::add_.Tensor(%2, %0, 1) -> f32[B,8] view-of %1 writes %2\n"
	                "%4 = aten::view(%3, [-1]) -> f32[8*B] view-of %1\noutput %4\n",
	        "group\n  %1 = aten::linear(%0, @w, none) -> f32[B,8]\n  %2 = aten::relu(%1) -> f32[B,8]\n"
	        "  %3 = aten::add.Tensor(%2, %0, 1) -> f32[B,8]\nend\n"
	        "%4 = aten::view(%3, [-1]) -> f32[8*B] view-of %3\noutput %4\n");
}

/* Writes of one memory, and views of it that are read much later. */
static void optimize_writes(uint32_t n)
{
	strbuf b = STRBUF_INIT;
	strbuf_puts(&b, SIZES X "%1 = aten::linear(%0, @w, none) -> f32[B,8]\n");
	for (uint32_t i = 2; i < n; i++)
		strbuf_printf(&b, "%%%u = aten::relu_(%%%u) -> f32[B,8] view-of %%1 writes %%1\n", i, i - 1);
	strbuf_printf(&b, "output %%%u\n", n - 1);
	char *text = taken(&b);
	plan *p = load_ok(text);
	optimized_plan o = grouped(p);
	for (node_id k = 0; k < o.p->nodes.n; k++)
		assert_int_equal(o.p->nodes.at[k].nwrites, 0);
	optimized_plan_free(&o);
	plan_free(p);
	mem_free(text);
}

static void many_writes_are_undone_in_time_that_grows_with_them(void **state)
{
	(void)state;
	check_growth(optimize_writes, 50000);
}

static void a_product_may_read_what_is_written(void **state)
{
	(void)state;
	becomes(
		SIZES X "%1 = aten::relu_(%0) -> f32[B,8] view-of %0 writes %0\n"
				"%2 = aten::linear(%1, @w, none) -> f32[B,8]\n%3 = aten::relu(%2) -> f32[B,8]\noutput %3\n",
		"%1 = aten::relu_(%0) -> f32[B,8] view-of %0 writes %0\n"
		"group\n  %2 = aten::linear(%1, @w, none) -> f32[B,8]\n  %3 = aten::relu(%2) -> f32[B,8]\nend\noutput %3\n");
}

static void a_write_that_others_see_stays(void **state)
{
	static const char seen[] =
		SIZES X "%1 = aten::relu(%0) -> f32[B,8]\n%2 = aten::view(%1, [-1]) -> f32[8*B] view-of %1\n"
				"%3 = aten::sigmoid_(%1) -> f32[B,8] view-of %1 writes %1\n"
				"%4 = aten::neg(%3) -> f32[B,8]\noutput (%2, %4)\n";
	static const char input[] = SIZES X "%1 = aten::exp(%0) -> f32[B,8]\n"
										"%2 = aten::relu_(%0) -> f32[B,8] view-of %0 writes %0\n"
										"%3 = aten::add.Tensor(%1, %2, 1) -> f32[B,8]\noutput %3\n";
	(void)state;
	becomes(seen, nodes_of(seen));
	becomes(input, nodes_of(input));
}

/* ---- the same numbers ---------------------------------------------------------------------------------------------- */

/* A random plan over rows of [B,R,N]: results of all shapes that rows have, read by later nodes. */
typedef struct writer {
	strbuf text;
	uint64_t seed;
	uint32_t values;
	char kind
		[64]; /* per value: 'w' whole, 'n' number per row, 'v' vector as long as a row, 'd' number without dimension */
	int n;
} writer;

static uint32_t draw(writer *w, uint32_t n)
{
	return random_below(&w->seed, n);
}

/* A value of one of the kinds; there is one of each among the first. */
static uint32_t any_of(writer *w, const char *kinds)
{
	for (;;) {
		uint32_t v = draw(w, 3) ? w->values - 1 - draw(w, w->values < 5 ? w->values : 5) : draw(w, w->values);
		if (strchr(kinds, w->kind[v]))
			return v;
	}
}

static const char *type_of(const writer *w, char kind)
{
	static char text[3][32];
	snprintf(text[0], 32, "f32[B,3,%d]", w->n);
	return kind == 'w' ? text[0] : kind == 'n' ? "f32[B,3,1]" : "f32[B,3]";
}

static void put_value(writer *w, char kind, const char *line)
{
	strbuf_printf(&w->text, "%%%u = aten::%s -> %s\n", w->values, line, type_of(w, kind));
	w->kind[w->values++] = kind;
}

static void random_node(writer *w)
{
	static const char *const one[] = {"relu", "exp", "neg", "tanh", "abs", "sigmoid", "square", "silu"};
	static const char *const two[] = {"mul.Tensor(%%%u, %%%u)", "add.Tensor(%%%u, %%%u, 1)",
	                                  "sub.Tensor(%%%u, %%%u, 2)", "maximum(%%%u, %%%u)", "div.Tensor(%%%u, %%%u)"};
	static const char *const along[] = {"mean.dim(%%%u, [-1], true)", "sum.dim_IntList(%%%u, [2], true)",
	                                    "amax(%%%u, [-1], true)", "amin(%%%u, [-1], true)",
	                                    "var.correction(%%%u, [-1], 1, true)"};
	char line[128];
	uint32_t what = draw(w, 12), a = any_of(w, "wn"), b = any_of(w, "wnv");
	bool narrow = w->kind[a] == 'n';
	if (what < 3) {
		snprintf(line, sizeof line, "%s(%%%u)", one[draw(w, 8)], a);
		put_value(w, w->kind[a], line);
	} else if (what < 7) {
		snprintf(line, sizeof line, two[draw(w, 5)], a, b);
		put_value(w, narrow && w->kind[b] == 'n' ? 'n' : 'w', line);
	} else if (what < 9) {
		snprintf(line, sizeof line, along[draw(w, 5)], any_of(w, "w"));
		put_value(w, 'n', line);
	} else if (what == 9) {
		snprintf(line, sizeof line, draw(w, 2) ? "softmax.int(%%%u, -1)" : "log_softmax.int(%%%u, 2)", any_of(w, "w"));
		put_value(w, 'w', line);
	} else if (what == 10) {
		snprintf(line, sizeof line, "layer_norm(%%%u, [%d], %%%d, %s, 1e-05, false)", any_of(w, "w"), w->n, 2,
		         draw(w, 2) ? "%2" : "none");
		put_value(w, 'w', line);
	} else {
		snprintf(line, sizeof line, draw(w, 2) ? "linear(%%%u, @w, none)" : "cumsum(%%%u, 2)", any_of(w, "w"));
		put_value(w, 'w', line);
	}
}

static char *random_text(uint64_t seed, int *n)
{
	writer w = {.text = STRBUF_INIT, .seed = seed, .values = 3, .kind = "wnv"};
	w.n = *n = (int[]){1, 3, 8, 17, 600, 1100}[draw(&w, 6)];
	strbuf_printf(&w.text, SIZES "input %%0 f32[B,3,%d]", *n);
	if (draw(&w, 3) == 0) /* rows that do not lie in one piece */
		strbuf_printf(&w.text, " strides(%d,1,3)", 3 * *n);
	strbuf_printf(&w.text, "\ninput %%1 f32[B,3,1]\ninput %%2 f32[%d]\nparam @w f32[%d,%d]\n", *n, *n, *n);
	while (w.values < 30)
		random_node(&w);
	strbuf_puts(&w.text, "output (");
	for (uint32_t i = 0; i < 4; i++)
		strbuf_printf(&w.text, "%%%u, ", i ? 3 + draw(&w, w.values - 3) : w.values - 1);
	strbuf_puts(&w.text, ")\n");
	return taken(&w.text);
}

static float *random_floats(uint64_t *seed, size_t n)
{
	float *x = mem_alloc((n + 1) * sizeof *x);
	for (size_t i = 0; i < n; i++)
		x[i] = (float)random_below(seed, 2001) / 1000 - 1;
	return x;
}

static clv_runtime *runtime_of(const char *text, const char *optimize, const float *weight, int n)
{
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	clv_runtime *r = NULL;
	artifact *a = new_artifact(text);
	OK(add(a->tensors, tensor_on("w", DT_F32, weight, 0, 2, (int64_t[]){n, n}, (int64_t[]){n, 1})));
	OK(artifact_ready(a));
	o.engine = "native";
	o.unproven = true;
	o.optimize = optimize;
	OK(clv_runtime_create(a, &o, &r));
	artifact_free(a);
	return r;
}

typedef struct outputs {
	clv_tensor *at[4];
} outputs;

/* Rows first … first+batch-1 of the inputs. turned: rows of n elements do not lie in one piece. */
typedef struct rows {
	float *const *x;
	int64_t first, batch;
	int n;
	bool turned;
} rows;

static clv_tensor *first_input(const rows *q)
{
	int64_t n = q->n;
	tensor_form form = {.dtype = DT_F32, .ndim = 3};
	clv_tensor *t, *view;
	form.sizes = (int64_t[]){q->batch, 3, n};
	form.strides = q->turned ? (int64_t[]){3 * n, 1, 3} : (int64_t[]){3 * n, n, 1};
	OK(clv_tensor_from_data(q->x[0] + q->first * 3 * n, "f32", 1, (int64_t[]){q->batch * 3 * n}, &t));
	OK(tensor_view(t, 0, &form, &view));
	clv_tensor_free(t);
	return view;
}

static outputs run(clv_runtime *r, rows q)
{
	clv_tensor *in[3] = {first_input(&q)};
	outputs out = {{0}};
	float *const *x = q.x;
	int64_t first = q.first, batch = q.batch, n = q.n;
	OK(clv_tensor_from_data(x[1] + first * 3, "f32", 3, (int64_t[]){batch, 3, 1}, &in[1]));
	OK(clv_tensor_from_data(x[2], "f32", 1, (int64_t[]){n}, &in[2]));
	if (clv_runtime_run(r, (const clv_tensor *const *)in, 3, out.at, 4) != CLV_OK)
		fail_msg("%s", status_message());
	for (int i = 0; i < 3; i++)
		clv_tensor_free(in[i]);
	return out;
}

static void release(outputs *o)
{
	for (int i = 0; i < 4; i++)
		clv_tensor_free(o->at[i]);
}

/* Rows of a that begin at `first` are those of b. */
static void check_rows(const outputs *a, const outputs *b, int64_t first, int64_t batch, const char *text)
{
	for (int i = 0; i < 4; i++) {
		size_t row = clv_tensor_bytes(b->at[i]) / (size_t)batch;
		if (memcmp((const char *)clv_tensor_data(a->at[i]) + (size_t)first * row, clv_tensor_data(b->at[i]),
		           (size_t)batch * row) != 0)
			fail_msg("output %d differs in\n%s", i, text);
	}
}

static uint32_t count_groups(const char *text)
{
	plan *p = load_ok(text);
	optimized_plan o = grouped(p);
	uint32_t n = o.p->groups.n;
	optimized_plan_free(&o);
	plan_free(p);
	return n;
}

static void random_plans_give_the_same_with_and_without_groups(void **state)
{
	uint32_t groups = 0;
	(void)state;
	for (uint64_t seed = 1; seed <= (uint64_t)some_of(150); seed++) {
		int n;
		char *text = random_text(seed, &n);
		uint64_t data = seed;
		float *x[] = {random_floats(&data, 15 * (size_t)n), random_floats(&data, 15), random_floats(&data, (size_t)n)};
		float *weight = random_floats(&data, (size_t)n * (size_t)n);
		clv_runtime *with = runtime_of(text, NULL, weight, n), *without = runtime_of(text, "none", weight, n);
		bool turned = strstr(text, "strides(");
		rows all = {x, 0, 5, n, turned}, some = {x, 2, 2, n, turned};
		outputs a = run(with, all), b = run(without, all), part = run(with, some);
		groups += count_groups(text);
		check_rows(&a, &b, 0, 5, text);
		check_rows(&a, &part, 2, 2, text);
		release(&a);
		release(&b);
		release(&part);
		clv_runtime_free(with);
		clv_runtime_free(without);
		for (int i = 0; i < 3; i++)
			mem_free(x[i]);
		mem_free(weight);
		mem_free(text);
	}
	assert_true(groups > some_of(150));
}

/* What a file says about groups is not what the engine evaluates by. */
static void groups_of_a_file_change_nothing(void **state)
{
#define NODES(open, close)                                                                                             \
	SIZES "input %0 f32[B,3,8]\ninput %1 f32[B,3,1]\ninput %2 f32[8]\nparam @w f32[8,8]\n" open                        \
		  "%3 = aten::linear(%0, @w, none) -> f32[B,3,8]\n%4 = aten::mul.Tensor(%3, %2) -> f32[B,3,8]\n"               \
		  "%5 = aten::amax(%4, [-1], true) -> f32[B,3,1]\n%6 = aten::sub.Tensor(%4, %5, 1) -> f32[B,3,8]\n" close      \
		  "%7 = aten::add.Tensor(%6, %1, 1) -> f32[B,3,8]\noutput (%7, %5, %4, %3)\n"
	static const char *const texts[] = {NODES("", ""), NODES("group\n", "end\n")};
	uint64_t seed = 5;
	float *x[] = {random_floats(&seed, 120), random_floats(&seed, 15), random_floats(&seed, 8)};
	float *weight = random_floats(&seed, 64);
	outputs want = {{0}};
	(void)state;
	for (int i = 0; i < 4; i++) {
		clv_runtime *r = runtime_of(texts[i % 2], i < 2 ? "none" : NULL, weight, 8);
		outputs got = run(r, (rows){x, 0, 5, 8, false});
		if (i)
			check_rows(&got, &want, 0, 5, texts[i % 2]);
		else
			want = got;
		if (i)
			release(&got);
		clv_runtime_free(r);
	}
	release(&want);
	for (int i = 0; i < 3; i++)
		mem_free(x[i]);
	mem_free(weight);
}

static clv_status attempt_pass(const void *text)
{
	optimize_spec s = {.level = OPTIMIZE_FAST, .groups = native_group_role};
	optimized_plan o = {0};
	plan *p = NULL;
	clv_status st = plan_parse(text, strlen(text), &p);
	if (st == CLV_OK)
		st = optimize(p, 0, p->nodes.n, &s, &o);
	optimized_plan_free(&o);
	plan_free(p);
	return st;
}

typedef struct lowering_job {
	artifact *a;
	clv_tensor *x;
} lowering_job;

static clv_status attempt_run(const void *ctx)
{
	const lowering_job *j = ctx;
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	clv_runtime *r = NULL;
	clv_tensor *y = NULL;
	o.engine = "native";
	o.unproven = true;
	clv_status st = clv_runtime_create(j->a, &o, &r);
	if (st == CLV_OK)
		st = clv_runtime_run(r, (const clv_tensor *const[]){j->x}, 1, &y, 1);
	clv_tensor_free(y);
	clv_runtime_free(r);
	return st;
}

static void every_allocation_may_fail(void **state)
{
	static const char text[] = SIZES
		"input %0 f32[B,8] name=\"x\"\nparam @w f32[8,8]\ngroup\n%1 = aten::linear(%0, @w, none) -> f32[B,8]\n"
		"%2 = aten::relu(%1) -> f32[B,8]\nend\n"
		"%3 = aten::clone(%2, none) -> f32[B,8]\n%4 = aten::add_.Tensor(%3, %0, 1) -> f32[B,8] view-of %3 writes %3\n"
		"%5 = aten::softmax.int(%4, 1, none) -> f32[B,8]\n%6 = aten::neg(%5) -> f32[B,8]\noutput %6\n";
	float weight[64] = {1, 2, 3};
	lowering_job j = {.a = new_artifact(text)};
	(void)state;
	assert_true(sweep_faults(attempt_pass, text, CLV_OK) > 100);
	OK(add(j.a->tensors, tensor_on("w", DT_F32, weight, 0, 2, (int64_t[]){8, 8}, (int64_t[]){8, 1})));
	OK(artifact_ready(j.a));
	OK(clv_tensor_from_data(weight, "f32", 2, (int64_t[]){2, 8}, &j.x));
	assert_true(sweep_faults(attempt_run, &j, CLV_OK) > 100);
	clv_tensor_free(j.x);
	artifact_free(j.a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_follows_a_product_is_its_group),
		cmocka_unit_test(what_others_read_ends_the_group_of_a_product),
		cmocka_unit_test(what_is_made_after_the_product_does_not_join_it),
		cmocka_unit_test(a_norm_that_is_spelt_out_is_one_group),
		cmocka_unit_test(a_reader_between_closes_a_group),
		cmocka_unit_test(other_sizes_are_another_group),
		cmocka_unit_test(a_write_that_nobody_needs_is_undone),
		cmocka_unit_test(many_writes_are_undone_in_time_that_grows_with_them),
		cmocka_unit_test(a_product_may_read_what_is_written),
		cmocka_unit_test(a_write_that_others_see_stays),
		cmocka_unit_test(random_plans_give_the_same_with_and_without_groups),
		cmocka_unit_test(groups_of_a_file_change_nothing),
		cmocka_unit_test(every_allocation_may_fail),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
