/* Two modes of one model: which nodes and values they have in common, what stands for the rest, where they part; and the
 * source of stages in both modes. */
#include "plan/twins.h"

#include "emit/emit.h"
#include "support.h"

#define HEAD(mode)                                                                                                     \
	"cleave-plan 1\nmodel \"Net\" training=" mode "\nsymbol B 1..8\nscope \"\" \"Net\"\nscope bn "                     \
	"\"BatchNorm1d\"\nscope drop \"Dropout\"\ninput %x f32[B,4] name=\"x\"\nbuffer @bn.mean f32[4]\nparam @w "         \
	"f32[4,4] "                                                                                                        \
	"trainable\n"

/* It counts, drops, and adds noise; it scales by another number. */
static const char *const training = HEAD("yes") //
	"%a = aten::linear(%x, @w, none) -> f32[B,4] in \"\"\n"
	"%n = aten::add_.Tensor(@bn.mean, num(1), 1) -> f32[4] view-of @bn.mean writes @bn.mean in bn\n"
	"%b = aten::dropout(%a, 0.5, true) -> f32[B,4] {random} in drop\n"
	"%c = aten::randn_like(%b, none, none, none, false, none) -> f32[B,4] {random} in \"\"\n"
	"%d = aten::add.Tensor(%b, %c, 1) -> f32[B,4] in \"\"\n"
	"%e = aten::mul.Tensor(%d, num(0.5)) -> f32[B,4] in \"\" at \"m.py:9\"\n"
	"%f = aten::view(%e, [4*B]) -> f32[4*B] view-of %e in \"\"\n"
	"output (%f, %d)\n";

static const char *const eval = HEAD("no") //
	"%a = aten::linear(%x, @w, none) -> f32[B,4] in \"\"\n"
	"%b = aten::dropout(%a, 0.5, false) -> f32[B,4] in drop\n"
	"%e = aten::mul.Tensor(%b, num(2.0)) -> f32[B,4] in \"\" at \"m.py:9\"\n"
	"%f = aten::view(%e, [4*B]) -> f32[4*B] view-of %e in \"\"\n"
	"output (%f, %b)\n";

static value_id result_of(const plan *p, node_id n)
{
	return p->args.at[p->nodes.at[n].results].u.v;
}

static void nodes_are_paired_in_order_and_values_stand_for_others(void **state)
{
	(void)state;
	static const node_id want[] = {0, NONE, 1, NONE, NONE, 2, 3};
	plan *p = load_ok(training), *q = load_ok(eval);
	twins t;
	OK(twins_find(p, q, NULL, NULL, &t));
	for (node_id n = 0; n < p->nodes.n; n++) {
		assert_int_equal(t.node[n], want[n]);
		assert_int_equal(twins_alone(&t, n), want[n] == NONE);
	}
	assert_int_equal(t.stand[result_of(p, 4)], result_of(p, 2)); /* the sum is what was to be added to */
	assert_int_equal(t.stand[result_of(p, 3)], NONE);            /* nobody takes the noise */
	assert_true(twins_arg(&t, 2, 2) && !twins_arg(&t, 2, 2)->u.b);
	assert_true(twins_arg(&t, 5, 1) && twins_arg(&t, 5, 1)->u.f == 2.0);
	assert_null(twins_arg(&t, 2, 1));
	assert_null(twins_arg(&t, 3, 0));
	assert_null(twins_arg(NULL, 0, 0));
	bool *written = mem_alloc(p->values.n);
	written[result_of(p, 4)] = true;
	twins_spread(&t, written);
	assert_true(written[result_of(p, 2)]);
	mem_free(written);
	twins_free(&t);
	FAILS(twins_find(q, p, NULL, NULL, &t), CLV_E_UNSUPPORTED, "aten::add_.Tensor in bn has no counterpart");
	assert_null(t.node);
	plan_free(p);
	plan_free(q);
}

static void parts_at(const char *one, const char *other, const char *why)
{
	plan *p = load_ok(one), *q = load_ok(other);
	twins t;
	FAILS(twins_find(p, q, NULL, NULL, &t), CLV_E_UNSUPPORTED, why);
	plan_free(p);
	plan_free(q);
}

#define ONE(mode, node, rest) HEAD(mode) "%a = " node " -> f32[B,4] in \"\" at \"m.py:3\"\n" rest

static void modes_part_where_a_node_does_something_else(void **state)
{
	(void)state;
	static const char *const relu = ONE("yes", "aten::relu(%x)", "output %a\n");
	parts_at(relu, ONE("no", "aten::tanh(%x)", "output %a\n"), "aten::tanh at m.py:3 has no counterpart");
	parts_at(relu, ONE("no", "aten::relu(%x)", "output (%a,)\n"), "another output");
	parts_at(relu, ONE("no", "aten::relu(%x)", "output %x\n"), "another output");
	parts_at(relu, "cleave-plan 1\nmodel \"Net\"\nsymbol N 1..8\ninput %x f32[N,4]\noutput %x\n",
	         "other inputs or sizes");
	/* a formula is no constant, a tensor of the model is itself alone, a view of it is not known to be one */
	parts_at(ONE("yes", "aten::expand(%x, [B, 4])", "output %a\n"),
	         ONE("no", "aten::expand(%x, [4, B])", "output %a\n"), "aten::expand at m.py:3");
	parts_at(ONE("yes", "aten::add(%x, @w)", "output %a\n"), ONE("no", "aten::add(%x, @bn.mean)", "output %a\n"),
	         "aten::add at m.py:3");
	/* one value cannot be stood for by two */
	parts_at(ONE("yes", "aten::relu(%x)", "%b = aten::add(%a, %a) -> f32[B,4] in \"\"\noutput %b\n"),
	         HEAD("no") "%b = aten::add(%x, @w) -> f32[B,4] in \"\"\noutput %b\n", "aten::add has no counterpart");
}

static bool same_constants(void *ctx, value_id a, value_id b)
{
	(void)a;
	(void)b;
	return *(const bool *)ctx;
}

static void constants_are_compared_by_whoever_has_them(void **state)
{
	(void)state;
	static const char *const text = "cleave-plan 1\nmodel \"m\"\ninput %x f32[4]\nconst #0 f32[4]\n"
									"%a = aten::add(%x, #0) -> f32[4]\noutput %a\n";
	plan *p = load_ok(text);
	twins t;
	for (int same = 0; same < 2; same++) {
		bool told = same != 0;
		assert_int_equal(twins_find(p, p, same_constants, &told, &t), told ? CLV_OK : CLV_E_UNSUPPORTED);
		twins_free(&t);
	}
	FAILS(twins_find(p, p, NULL, NULL, &t), CLV_E_UNSUPPORTED, "aten::add has no counterpart");
	plan_free(p);
}

static bool formal(void *ctx, const char *op, uint32_t i, source_formal *out)
{
	(void)ctx;
	(void)op;
	(void)i;
	*out = (source_formal){"x", false, false};
	return true;
}

/* ctx: in which order the two are given */
static clv_status write_modes(const char *one, const char *other, const node_id *ends, const node_id *captured,
                              const char *only, strbuf *b)
{
	clv_plan *p = NULL, *q = NULL;
	stages_spec spec = {.ends = ends, .nstages = 2, .captured = captured, .only = only, .del = true, .formal = formal};
	clv_status st = clv_plan_parse(one, strlen(one), &p);
	if (st == CLV_OK)
		st = clv_plan_parse(other, strlen(other), &q);
	spec.other = only ? NULL : q;
	if (st == CLV_OK)
		st = plan_stages_source(p, &spec, b);
	clv_plan_free(p);
	clv_plan_free(q);
	return st;
}

static void stages_do_in_each_mode_what_the_model_does(void **state)
{
	(void)state;
	static const node_id ends[] = {4, 7}, captured[] = {2, 4}, elsewhere[] = {1, 4};
	strbuf b = STRBUF_INIT;
	char *out = NULL;
	OK(write_modes(training, eval, ends, NULL, NULL, &b));
	OK(strbuf_take(&b, &out));
	assert_null(strstr(out, "self.eval()"));
	assert_non_null(strstr(out, "dropout = self.drop(linear)"));
	assert_non_null(strstr(out, "        if self.training:\n            self.bn.mean.add_(1)\n"));
	assert_non_null(strstr(out, "        else:\n            randn_like = None\n")); /* it goes to the next stage */
	assert_non_null(strstr(out, "        if self.training:\n            add_7 = dropout + randn_like\n"));
	assert_non_null(strstr(out, "        else:\n            add_7 = dropout\n"));
	assert_non_null(strstr(out, "mul = add_7 * (0.5 if self.training else 2.0)\n"));
	clv_free(out);
	OK(write_modes(training, eval, ends, captured, NULL, &b));
	OK(strbuf_take(&b, &out));
	assert_non_null(strstr(out, "self.eval()"));
	clv_free(out);
	FAILS(write_modes(training, eval, ends, elsewhere, NULL, &b), CLV_E_UNSUPPORTED, "stage 1 would not have");
	strbuf_free(&b);
	OK(write_modes(training, eval, ends, NULL, "it \"sleeps\"\n", &b));
	OK(strbuf_take(&b, &out));
	assert_non_null(strstr(out, "        if not mode:\n            raise RuntimeError("));
	assert_non_null(strstr(out, "in evaluation mode it \"sleeps\"?"));
	clv_free(out);
}

static clv_status write_both(const void *ctx)
{
	static const node_id ends[] = {4, 7};
	strbuf b = STRBUF_INIT;
	clv_status st = write_modes(training, eval, ends, NULL, ctx, &b);
	strbuf_free(&b);
	return st;
}

static void every_allocation_may_fail_while_modes_are_written(void **state)
{
	(void)state;
	assert_in_range(sweep_faults(write_both, NULL, CLV_OK), 200, 20000);
	assert_in_range(sweep_faults(write_both, "it sleeps", CLV_OK), 200, 20000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nodes_are_paired_in_order_and_values_stand_for_others),
		cmocka_unit_test(modes_part_where_a_node_does_something_else),
		cmocka_unit_test(constants_are_compared_by_whoever_has_them),
		cmocka_unit_test(stages_do_in_each_mode_what_the_model_does),
		cmocka_unit_test(every_allocation_may_fail_while_modes_are_written),
	};
	return cmocka_run_group_tests_name("twins", tests, NULL, NULL);
}
