/* What passes for GPUs make computes the same: they take the CPU for one, and both plans run there. */
#include "torch.h"

#include <math.h>

#include "exec/program.h"
#include "optimize/optimize.h"

static bool has_op(const char *name)
{
	return strncmp(name, "mkldnn::", 8) && !strstr(name, "cudnn") && br_has_operator(name);
}

static const optimize_spec spec = {.level = OPTIMIZE_FAST,
                                   .channels_last = true,
                                   .conv_as_linear = true,
                                   .bias = BIAS_APART,
                                   .has_op = has_op,
                                   .gpu = "cpu"};

/* Numbers of -1 to 1 that differ from tensor to tensor. */
static clv_tensor *numbers(const plan *p, value_id v, int64_t b)
{
	const value *x = &p->values.at[v];
	int64_t shape[8], n = 1, symbols[] = {b};
	for (uint32_t d = 0; d < x->ndim; d++) {
		OK(expr_eval(p, p->dims.at[x->shape + d], symbols, &shape[d]));
		n *= shape[d];
	}
	float *data = mem_alloc((size_t)n * sizeof *data);
	assert_non_null(data);
	for (int64_t i = 0; i < n; i++)
		data[i] = (float)sin((double)(i * (int64_t)(v + 3) + v));
	clv_tensor *t = NULL;
	OK(clv_tensor_from_data(data, "f32", x->ndim, shape, &t));
	mem_free(data);
	return t;
}

static void bind_all(clv_program *g, const plan *p)
{
	for (value_id v = 0; v < p->values.n; v++) {
		if (p->values.at[v].kind != VALUE_PARAM)
			continue;
		clv_tensor *t = numbers(p, v, 1);
		clv_status st = clv_program_bind(g, plan_s(p, p->values.at[v].name), t);
		assert_true(st == CLV_OK || st == CLV_E_NOT_FOUND); /* nobody reads it */
		clv_tensor_free(t);
	}
}

enum { OUTPUTS = 3 };

static uint32_t run_plan(const plan *p, int64_t b, clv_tensor **out)
{
	clv_program *g = NULL;
	clv_tensor *in = numbers(p, p->inputs.at[0], b);
	clv_program_options options = CLV_PROGRAM_OPTIONS_INIT;
	options.optimize = "none";
	OK(clv_program_create(p, &options, &g));
	bind_all(g, p);
	uint32_t n = clv_program_output_count(g);
	assert_true(n <= OUTPUTS);
	if (clv_program_run(g, (const clv_tensor *const[]){in}, 1, out, n) != CLV_OK)
		fail_msg("%s", status_message());
	clv_program_free(g);
	clv_tensor_free(in);
	return n;
}

static bool same_results(const plan *before, const plan *after, int64_t b)
{
	clv_tensor *want[OUTPUTS], *got[OUTPUTS];
	uint32_t n = run_plan(before, b, want);
	bool same = run_plan(after, b, got) == n;
	for (uint32_t i = 0; i < n; i++) {
		double error, scale;
		OK(br_difference(torch_of(got[i]), torch_of(want[i]), &error, &scale));
		same &= error <= 1e-4 * scale;
		clv_tensor_free(want[i]);
		clv_tensor_free(got[i]);
	}
	return same;
}

static void compare(const plan *before, const plan *after, int64_t b)
{
	if (same_results(before, after, b))
		return;
	strbuf text = STRBUF_INIT;
	plan_print(before, &text);
	plan_print(after, &text);
	fail_msg("other numbers:\n%s", text.at);
}

static uint32_t count_of(const optimized_plan *o, const char *pass)
{
	uint32_t found = 0;
	for (uint32_t i = 0; i < o->counts.n; i++)
		found += !strcmp(o->counts.at[i].pass, pass) ? o->counts.at[i].changes : 0;
	return found;
}

/* `done`: passes with what they are to count, NULL ends. */
static void same_numbers(const char *text, const optimize_count *done)
{
	plan *p = load_ok(text);
	optimized_plan o;
	OK(optimize(p, 0, p->nodes.n, &spec, &o));
	for (; done->pass; done++)
		assert_int_equal(count_of(&o, done->pass), done->changes);
	for (int64_t b = 1; b <= 3; b++)
		compare(p, o.p, b);
	optimized_plan_free(&o);
	plan_free(p);
}

#define HEAD "cleave-plan 1\nmodel \"M\" training=no grad=any\nsymbol B 1..64\n"

static void a_layer_of_a_transformer(void **state)
{
	(void)state;
	same_numbers(HEAD "input %x f32[B,6,8] name=\"x\"\nparam @q f32[8,8]\nparam @k f32[4,8]\nparam @v f32[4,8]\n"
	                  "param @o f32[8,8]\nparam @u f32[16,8]\nparam @d f32[8,16]\nparam @bq f32[8]\nparam @bk f32[4]\n"
	                  "param @bv f32[4]\nparam @bo f32[8]\nparam @bu f32[16]\n"
	                  "%q = aten::linear(%x, @q, @bq) -> f32[B,6,8]\n"
	                  "%qs = aten::view(%q, [B, 6, 2, 4]) -> f32[B,6,2,4] view-of %q\n"
	                  "%qt = aten::transpose.int(%qs, 1, 2) -> f32[B,2,6,4] view-of %q\n"
	                  "%k = aten::linear(%x, @k, @bk) -> f32[B,6,4]\n"
	                  "%ks = aten::view(%k, [B, 6, 1, 4]) -> f32[B,6,1,4] view-of %k\n"
	                  "%kt = aten::transpose.int(%ks, 1, 2) -> f32[B,1,6,4] view-of %k\n"
	                  "%ke = aten::expand(%kt, [B, 2, 6, 4], false) -> f32[B,2,6,4] view-of %k\n"
	                  "%v = aten::linear(%x, @v, @bv) -> f32[B,6,4]\n"
	                  "%vs = aten::view(%v, [B, 6, 1, 4]) -> f32[B,6,1,4] view-of %v\n"
	                  "%vt = aten::transpose.int(%vs, 1, 2) -> f32[B,1,6,4] view-of %v\n"
	                  "%ve = aten::expand(%vt, [B, 2, 6, 4], false) -> f32[B,2,6,4] view-of %v\n"
	                  "%a = aten::scaled_dot_product_attention(%qt, %ke, %ve, none, 0.0, false, none, false) -> "
	                  "f32[B,2,6,4]\n"
	                  "%at = aten::transpose.int(%a, 1, 2) -> f32[B,6,2,4] view-of %a\n"
	                  "%ac = aten::clone(%at, memory:contiguous) -> f32[B,6,2,4]\n"
	                  "%am = aten::view(%ac, [6*B, 8]) -> f32[6*B,8] view-of %ac\n"
	                  "%ot = aten::t(@o) -> f32[8,8] view-of @o\n"
	                  "%o = aten::addmm(@bo, %am, %ot, 1, 1) -> f32[6*B,8]\n"
	                  "%os = aten::view(%o, [B, 6, 8]) -> f32[B,6,8] view-of %o\n"
	                  "%r = aten::add.Tensor(%os, %x, 1) -> f32[B,6,8]\n"
	                  "%g = aten::linear(%r, @u, @bu) -> f32[B,6,16]\n"
	                  "%gs = aten::silu(%g) -> f32[B,6,16]\n"
	                  "%u = aten::linear(%r, @u, @bu) -> f32[B,6,16]\n"
	                  "%m = aten::mul.Tensor(%gs, %u) -> f32[B,6,16]\n"
	                  "%d = aten::linear(%m, @d, @bo) -> f32[B,6,8]\n"
	                  "%y = aten::add_.Tensor(%d, %r, 1) -> f32[B,6,8] view-of %d writes %d\n"
	                  "output %y\n",
	             (optimize_count[]){{"merge_linears", 3}, {"bias_apart", 6}, {NULL, 0}});
}

static void two_linears_that_differ(void **state)
{
	(void)state;
	same_numbers(HEAD "input %x f32[B,6,8] name=\"x\"\nparam @g f32[16,8]\nparam @u f32[16,8]\n"
	                  "%g = aten::linear(%x, @g, none) -> f32[B,6,16]\n%s = aten::silu(%g) -> f32[B,6,16]\n"
	                  "%u = aten::linear(%x, @u, none) -> f32[B,6,16]\n"
	                  "%y = aten::mul.Tensor(%s, %u) -> f32[B,6,16]\noutput %y\n",
	             (optimize_count[]){{"merge_linears", 2}, {NULL, 0}});
}

static void a_block_of_a_convolutional_network(void **state)
{
	(void)state;
	same_numbers(HEAD
	             "input %x f32[B,8,5,7] name=\"x\"\nparam @w f32[16,8,1,1]\nparam @b f32[16]\nparam @d f32[16,1,3,3]\n"
	             "param @s f32[4,16,1,1]\nparam @sb f32[4]\nparam @t f32[16,4,1,1]\nparam @p f32[8,16,1,1]\n"
	             "%1 = aten::conv2d(%x, @w, @b, [1, 1], [0, 0], [1, 1], 1) -> f32[B,16,5,7]\n"
	             "%2 = aten::hardswish_(%1) -> f32[B,16,5,7] view-of %1 writes %1\n"
	             "%3 = aten::conv2d(%2, @d, @b, [1, 1], [1, 1], [1, 1], 16) -> f32[B,16,5,7]\n"
	             "%4 = aten::adaptive_avg_pool2d(%3, [1, 1]) -> f32[B,16,1,1]\n"
	             "%5 = aten::conv2d(%4, @s, @sb, [1, 1], [0, 0], [1, 1], 1) -> f32[B,4,1,1]\n"
	             "%6 = aten::relu(%5) -> f32[B,4,1,1]\n"
	             "%7 = aten::conv2d(%6, @t, @b, [1, 1], [0, 0], [1, 1], 1) -> f32[B,16,1,1]\n"
	             "%8 = aten::hardsigmoid(%7) -> f32[B,16,1,1]\n"
	             "%9 = aten::mul.Tensor(%8, %3) -> f32[B,16,5,7]\n"
	             "%10 = aten::conv2d(%9, @p, none, [1, 1], [0, 0], [1, 1], 1) -> f32[B,8,5,7]\n"
	             "%11 = aten::add_.Tensor(%10, %x, 1) -> f32[B,8,5,7] view-of %10 writes %10\n"
	             "%12 = aten::conv2d(%11, @w, @b, [1, 1], [0, 0], [1, 1], 1) -> f32[B,16,5,7]\n"
	             "%13 = aten::relu_(%12) -> f32[B,16,5,7] view-of %12 writes %12\n"
	             "output %13\n",
	             (optimize_count[]){{"conv_as_linear", 7}, {NULL, 0}});
}

/* ---- random plans -------------------------------------------------------------------------------------------------- */

enum { STEPS = 14, WEIGHTS = 3 };

/* A tensor of the plan that is written: [B,6,8], or [6*B,8] where it is flat. */
typedef struct item {
	uint32_t name, root;
	bool flat, given;
} item;

typedef struct writer {
	strbuf text;
	item items[STEPS + 1];
	uint32_t n, names;
	uint64_t state;
} writer;

static uint32_t roll(writer *w, uint32_t below)
{
	return (uint32_t)(random64(&w->state) % below);
}

static const char *type_of(bool flat)
{
	return flat ? "f32[6*B,8]" : "f32[B,6,8]";
}

/* One that is flat or not as wanted; the input is not, and there is always that. */
static item pick(writer *w, bool flat)
{
	for (uint32_t tries = 0; tries < 20; tries++) {
		item x = w->items[roll(w, w->n)];
		if (x.flat == flat)
			return x;
	}
	return w->items[0];
}

static item fresh(writer *w, bool flat)
{
	uint32_t name = w->names++;
	return (item){.name = name, .root = name, .flat = flat};
}

static item put_linear(writer *w)
{
	uint32_t k = roll(w, WEIGHTS);
	item x = pick(w, roll(w, 2)), y = fresh(w, x.flat);
	if (x.flat && roll(w, 2))
		strbuf_printf(&w->text, "%%v%u = aten::addmm(@b%u, %%v%u, @w%u, 1, 1) -> %s\n", y.name, k, x.name, k,
		              type_of(true));
	else
		strbuf_printf(&w->text, "%%v%u = aten::linear(%%v%u, @w%u, @b%u) -> %s\n", y.name, x.name, k, k,
		              type_of(x.flat));
	return y;
}

static item put_view(writer *w)
{
	item x = pick(w, roll(w, 2)), y = fresh(w, !x.flat);
	y.root = x.root;
	y.given = x.given;
	strbuf_printf(&w->text, "%%v%u = aten::view(%%v%u, %s) -> %s view-of %%v%u\n", y.name, x.name,
	              y.flat ? "[6*B, 8]" : "[B, 6, 8]", type_of(y.flat), x.root);
	return y;
}

static item put_sum(writer *w)
{
	item a = pick(w, roll(w, 2)), b = pick(w, a.flat), y = fresh(w, a.flat);
	if (a.flat != b.flat)
		b = a;
	bool in_place = !a.given && roll(w, 2);
	strbuf_printf(&w->text, "%%v%u = aten::add%s.Tensor(%%v%u, %%v%u, 1) -> %s", y.name, in_place ? "_" : "", a.name,
	              b.name, type_of(a.flat));
	if (in_place)
		strbuf_printf(&w->text, " view-of %%v%u writes %%v%u", y.root = a.root, a.name);
	strbuf_puts(&w->text, "\n");
	return y;
}

static item put_tanh(writer *w)
{
	item x = pick(w, roll(w, 2)), y = fresh(w, x.flat);
	bool in_place = !x.given && roll(w, 2);
	strbuf_printf(&w->text, "%%v%u = aten::tanh%s(%%v%u) -> %s", y.name, in_place ? "_" : "", x.name, type_of(x.flat));
	if (in_place)
		strbuf_printf(&w->text, " view-of %%v%u writes %%v%u", y.root = x.root, x.name);
	strbuf_puts(&w->text, "\n");
	return y;
}

/* Heads first, and back: a copy. */
static item put_heads(writer *w)
{
	item x = pick(w, false), a = fresh(w, false), b = fresh(w, false), c = fresh(w, false), y = fresh(w, false);
	strbuf_printf(&w->text, "%%v%u = aten::view(%%v%u, [B, 6, 2, 4]) -> f32[B,6,2,4] view-of %%v%u\n", a.name, x.name,
	              x.root);
	strbuf_printf(&w->text, "%%v%u = aten::transpose.int(%%v%u, 1, 2) -> f32[B,2,6,4] view-of %%v%u\n", b.name, a.name,
	              x.root);
	strbuf_printf(&w->text, "%%v%u = aten::sin(%%v%u) -> f32[B,2,6,4]\n", c.name, b.name);
	strbuf_printf(&w->text, "%%v%u = aten::reshape(%%v%u, [B, 6, 8]) -> f32[B,6,8]\n", y.name, c.name);
	return y;
}

/* Two linears of one input; one of them may be read later too, by whoever picks it. */
static item put_gate(writer *w)
{
	item x = pick(w, roll(w, 2)), a = fresh(w, x.flat), b = fresh(w, x.flat), y = fresh(w, x.flat);
	uint32_t k = roll(w, WEIGHTS), l = (k + 1) % WEIGHTS;
	const char *type = type_of(x.flat);
	strbuf_printf(&w->text, "%%v%u = aten::linear(%%v%u, @w%u, @b%u) -> %s\n", a.name, x.name, k, k, type);
	strbuf_printf(&w->text, "%%v%u = aten::linear(%%v%u, @w%u, @b%u) -> %s\n", b.name, x.name, l, l, type);
	strbuf_printf(&w->text, "%%v%u = aten::mul.Tensor(%%v%u, %%v%u) -> %s\n", y.name, a.name, b.name, type);
	return roll(w, 3) ? y : a;
}

static item (*const kinds[])(writer *) = {put_linear, put_linear, put_linear, put_view, put_sum,
                                          put_sum,    put_tanh,   put_heads,  put_gate};

static char *random_text(uint64_t seed)
{
	writer w = {.text = STRBUF_INIT, .n = 1, .names = 1, .state = seed};
	w.items[0] = (item){.given = true};
	strbuf_puts(&w.text, HEAD "input %v0 f32[B,6,8] name=\"x\"\n");
	for (uint32_t k = 0; k < WEIGHTS; k++)
		strbuf_printf(&w.text, "param @w%u f32[8,8]\nparam @b%u f32[8]\n", k, k);
	while (w.n <= STEPS) {
		item made = kinds[roll(&w, sizeof kinds / sizeof *kinds)](&w);
		w.items[w.n++] = made;
	}
	strbuf_printf(&w.text, "output (%%v%u, %%v%u, %%v%u)\n", w.items[w.n - 1].name, w.items[w.n - 2].name,
	              w.items[w.n - 1 - roll(&w, STEPS)].name);
	return taken(&w.text);
}

static void random_plans_give_the_same_numbers(void **state)
{
	(void)state;
	uint32_t merged = 0, apart = 0;
	for (uint64_t seed = 0; seed < 200; seed++) {
		char *text = random_text(seed);
		plan *p = load_ok(text);
		optimized_plan o;
		OK(optimize(p, 0, p->nodes.n, &spec, &o));
		merged += count_of(&o, "merge_linears");
		apart += count_of(&o, "bias_apart");
		compare(p, o.p, 1 + (int64_t)(seed % 3));
		optimized_plan_free(&o);
		plan_free(p);
		mem_free(text);
	}
	print_message("%u linears merged, %u nodes changed for biases\n", merged, apart);
	assert_true(merged > 50);
	assert_true(apart > 200);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_layer_of_a_transformer),
		cmocka_unit_test(two_linears_that_differ),
		cmocka_unit_test(a_block_of_a_convolutional_network),
		cmocka_unit_test(random_plans_give_the_same_numbers),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
