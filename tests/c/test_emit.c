/* Python source of plans: the public function, what torch tells through the hooks, what is refused. The text itself is
 * in tests/plan/ (x.source), and tests/python/test_source.py runs it. */
#include "support.h"

#include "emit/emit.h"

static const char *const text = "cleave-plan 1\n"
								"model \"m\"\n"
								"symbol B 1..8\n"
								"input %x f32[B,2] name=\"x\"\n"
								"param @body.0.w f32[2] trainable\n"
								"const #0 f32[2]\n"
								"%a = aten::mul.Tensor(%x, @body.0.w) -> f32[B,2]\n"
								"%b = aten::reshape(%a, [2*B]) -> f32[2*B] view-of %a\n"
								"%c = my::op(%b, #0, B, none, 0.5) -> f32[B]\n"
								"output %c\n";

static void holds(const char *source, const char *part)
{
	if (!strstr(source, part))
		fail_msg("no \"%s\" in\n%s", part, source);
}

static void the_public_function_checks_its_arguments(void **state)
{
	(void)state;
	plan *p = load_ok(text);
	char *out = NULL;
	clv_source_options o = CLV_SOURCE_OPTIONS_INIT;
	FAILS(clv_plan_source(NULL, NULL, &out), CLV_E_INVALID, "needs a plan");
	FAILS(clv_plan_source(p, NULL, NULL), CLV_E_INVALID, "a place");
	o.size = sizeof o + 1;
	FAILS(clv_plan_source(p, &o, &out), CLV_E_INVALID, "clv_source_options.size is");
	o = (clv_source_options)CLV_SOURCE_OPTIONS_INIT;
	o.end = 4;
	FAILS(clv_plan_source(p, &o, &out), CLV_E_INVALID, "no nodes 0 to 4");
	o.end = 1;
	o.first = 2;
	FAILS(clv_plan_source(p, &o, &out), CLV_E_INVALID, "no nodes 2 to 1");
	o = (clv_source_options)CLV_SOURCE_OPTIONS_INIT;
	o.class_name = "in";
	FAILS(clv_plan_source(p, &o, &out), CLV_E_INVALID, "name of the class");
	assert_null(out);
	plan_free(p);
}

static void a_shorter_options_struct_keeps_the_other_defaults(void **state)
{
	(void)state;
	plan *p = load_ok(text);
	char *out = NULL;
	clv_source_options o = {offsetof(clv_source_options, class_name), 0, 1, "in", true};
	OK(clv_plan_source(p, &o, &out));
	holds(out, "class Segment(nn.Module):");
	clv_string_free(out);
	plan_free(p);
}

static void without_schemas_a_helper_sorts_the_arguments(void **state)
{
	(void)state;
	plan *p = load_ok(text);
	char *out = NULL;
	OK(clv_plan_source(p, NULL, &out));
	holds(out, "def call(op, *args):");
	holds(out, "op = call(torch.ops.my.op.default, reshape, self.const_0, B, None, 0.5)");
	holds(out, "mul = x * self.body[0].w");
	holds(out, "self.register_buffer(\"const_0\", torch.empty(2, dtype=torch.float32))");
	clv_string_free(out);
	plan_free(p);
}

static bool formal(void *ctx, const char *op, uint32_t i, source_formal *out)
{
	static const source_formal all[] = {
		{"a", false, false}, {"b", false, false}, {"n", false, false}, {"like", true, true}, {"scale", true, false}};
	(void)ctx;
	if (strcmp(op, "my::op") != 0 || i >= sizeof all / sizeof *all)
		return false;
	*out = all[i];
	return true;
}

static clv_status literal(void *ctx, value_id v, strbuf *b, bool *done)
{
	(void)v;
	strbuf_puts(b, ctx);
	*done = true;
	return CLV_OK;
}

static void with_schemas_and_data_the_source_is_plain(void **state)
{
	(void)state;
	plan *p = load_ok(text);
	strbuf b = STRBUF_INIT;
	char *out = NULL;
	source_spec s = {.end = 3, .class_name = "Net", .ctx = "[1.0, 2.0]", .literal = literal, .formal = formal};
	OK(plan_source(p, &s, &b));
	OK(strbuf_take(&b, &out));
	holds(out, "class Net(nn.Module):");
	holds(out, "op = torch.ops.my.op.default(reshape, self.const_0, B, scale=0.5)");
	holds(out, "\"const_0\", torch.tensor([1.0, 2.0], dtype=torch.float32), persistent=False\n");
	assert_null(strstr(out, "def call"));
	clv_string_free(out);
	plan_free(p);
}

static void a_symbol_that_no_input_shows_is_a_keyword(void **state)
{
	(void)state;
	plan *p = load_ok(text);
	source_keywords k;
	OK(source_keywords_new(p, 0, 3, &k));
	assert_null(k.names[0]);
	source_keywords_free(&k);
	OK(source_keywords_new(p, 2, 3, &k));
	assert_string_equal(k.names[0], "B");
	source_keywords_free(&k);
	char *out = NULL;
	clv_source_options o = CLV_SOURCE_OPTIONS_INIT;
	o.first = 2;
	OK(clv_plan_source(p, &o, &out));
	holds(out, "def forward(self, reshape, *, B):");
	clv_string_free(out);
	plan_free(p);
}

static void an_object_is_refused_with_the_node_that_takes_it(void **state)
{
	(void)state;
	plan *p = load_ok("cleave-plan 1\nmodel \"m\"\ninput %0 f32[1]\nobject #0 \"torch.Generator\"\n"
	                  "%1 = aten::f(%0, #0) -> f32[1] at \"a.py:3\"\noutput %1\n");
	char *out = NULL;
	FAILS(clv_plan_source(p, NULL, &out), CLV_E_UNSUPPORTED,
	      "node f (aten::f) at a.py:3 cannot be written as source: it takes an object (torch.Generator)");
	plan_free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_public_function_checks_its_arguments),
		cmocka_unit_test(a_shorter_options_struct_keeps_the_other_defaults),
		cmocka_unit_test(without_schemas_a_helper_sorts_the_arguments),
		cmocka_unit_test(with_schemas_and_data_the_source_is_plain),
		cmocka_unit_test(a_symbol_that_no_input_shows_is_a_keyword),
		cmocka_unit_test(an_object_is_refused_with_the_node_that_takes_it),
	};
	return cmocka_run_group_tests_name("emit", tests, NULL, NULL);
}
