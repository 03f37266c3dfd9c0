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
	clv_free(out);
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
	clv_free(out);
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
	clv_free(out);
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
	clv_free(out);
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

/* ---- stages ------------------------------------------------------------------------------------------------------ */

static const char *const net =
	"cleave-plan 1\n"
	"model \"Net\" training=yes\n"
	"symbol B 1..8\n"
	"scope \"\" \"Net\"\n"
	"scope fc \"Linear\"\n"
	"scope bn \"BatchNorm1d\"\n"
	"scope head \"Linear\"\n"
	"input %x f32[B,3] name=\"x\"\n"
	"param @fc.weight f32[4,3] trainable tied=@head.weight\n"
	"param @fc.bias f32[4]\n"
	"param @bn.weight f32[4] trainable\n"
	"param @bn.bias f32[4] trainable\n"
	"buffer @bn.running_mean f32[4]\n"
	"buffer @bn.running_var f32[4]\n"
	"buffer @bn.num_batches_tracked i64[]\n"
	"const #0 f32[4]\n"
	"%a = aten::linear(%x, @fc.weight, @fc.bias) -> f32[B,4] grad in fc\n"
	"%n = aten::add_.Tensor(@bn.num_batches_tracked, num(1), 1) -> i64[] "
	"view-of @bn.num_batches_tracked writes @bn.num_batches_tracked in bn\n"
	"%b = aten::batch_norm(%a, @bn.weight, @bn.bias, @bn.running_mean, @bn.running_var, true, "
	"0.1, 1e-05, true) -> f32[B,4] grad in bn\n"
	"%c = aten::reshape(%b, [4*B]) -> f32[4*B] grad view-of %b in \"\"\n"
	"%d = aten::view(%c, [B, 4]) -> f32[B,4] grad view-of %b in \"\"\n"
	"%e = aten::mul.Tensor(%d, #0) -> f32[B,4] grad in \"\"\n"
	"%f = aten::linear(%x, @fc.weight, none) -> f32[B,4] grad in head\n"
	"output ({\"a\": %e, \"n\": int(B+1), \"of\": object \"m:C\" {\"f\": %f}}, none, %e)\n";

static char *stages_of(const plan *p, const uint32_t *ends, uint32_t n)
{
	clv_stages_options o = CLV_STAGES_OPTIONS_INIT;
	char *out = NULL;
	o.ends = ends;
	o.nstages = n;
	o.batch_symbol = "B";
	OK(clv_plan_stages_source(p, &o, &out));
	return out;
}

static void stages_call_whole_layers_and_keep_their_names(void **state)
{
	(void)state;
	plan *p = load_ok(net);
	char *out = stages_of(p, (const uint32_t[]){4, 7}, 2);
	holds(out, "self.fc = nn.Linear(3, 4)\n");
	holds(out, "self.fc.bias.requires_grad_(False)\n");
	holds(out, "self.bn = nn.BatchNorm1d(4)\n");
	holds(out, "batch_norm = self.bn(linear)\n");
	assert_null(strstr(out, "num_batches_tracked.add_"));
	holds(out, "self.head = nn.Linear(3, 4, bias=False)\n");
	holds(out, "\"shared\": {\"fc.weight\": {0: \"fc.weight\", 1: \"head.weight\"}}");
	holds(out, "GIVEN = (\"const_0\",)\n");
	holds(out, "\"shape\": (4 * batch_size,)");
	holds(out, "def pack_outputs(values, B):\n");
	clv_free(out);
	out = stages_of(p, (const uint32_t[]){7}, 1);
	holds(out, "self.head.weight = self.fc.weight\n");
	clv_free(out);
	plan_free(p);
}

static void a_size_that_no_input_shows_is_computed_from_one(void **state)
{
	(void)state;
	plan *p = load_ok("cleave-plan 1\nmodel \"m\"\nsymbol B 1..8\ninput %x f32[B,3] name=\"x\"\n"
	                  "%c = aten::reshape(%x, [3*B]) -> f32[3*B] view-of %x\n"
	                  "%d = aten::view(%c, [B, 3]) -> f32[B,3] view-of %x\noutput %d\n");
	char *out = stages_of(p, (const uint32_t[]){1, 2}, 2);
	holds(out, "B = reshape.shape[0] // 3\n");
	clv_free(out);
	plan_free(p);
}

static void stages_are_refused_where_they_would_not_do_the_same(void **state)
{
	(void)state;
	plan *p = load_ok(net);
	char *out = NULL;
	clv_stages_options o = CLV_STAGES_OPTIONS_INIT;
	FAILS(clv_plan_stages_source(NULL, &o, &out), CLV_E_INVALID, "needs a plan");
	FAILS(clv_plan_stages_source(p, &o, &out), CLV_E_INVALID, "at least one stage");
	o.ends = (const uint32_t[]){5, 4, 7};
	o.nstages = 3;
	FAILS(clv_plan_stages_source(p, &o, &out), CLV_E_INVALID, "stage 1 cannot end at node 4 of 7");
	o.ends = (const uint32_t[]){2, 6};
	o.nstages = 2;
	FAILS(clv_plan_stages_source(p, &o, &out), CLV_E_INVALID, "the last stage ends at node 6, and the plan has 7");
	o.ends = (const uint32_t[]){2, 7};
	o.batch_symbol = "N";
	FAILS(clv_plan_stages_source(p, &o, &out), CLV_E_INVALID, "no symbol N");
	o.batch_symbol = NULL;
	o.sizes = (clv_sizes){(const char *const[]){"B"}, (const int64_t[]){9}, 1};
	FAILS(clv_plan_stages_source(p, &o, &out), CLV_E_INVALID, "B is 9, the plan is for 1 to 8");
	plan_free(p);
	p = load_ok("cleave-plan 1\nmodel \"m\"\ninput %x f32[2]\nbuffer @s f32[2]\n"
	            "%a = aten::add_.Tensor(@s, %x, 1) -> f32[2] view-of @s writes @s\n"
	            "%b = aten::mul.Tensor(%x, @s) -> f32[2]\noutput %b\n");
	o = (clv_stages_options)CLV_STAGES_OPTIONS_INIT;
	o.ends = (const uint32_t[]){1, 2};
	o.nstages = 2;
	FAILS(clv_plan_stages_source(p, &o, &out), CLV_E_UNSUPPORTED, "@s is written by stage 0 and used by stage 1");
	plan_free(p);
}

/* The embedding of the decoder is that of the model, under a second name. */
static const char whole[] =
	"cleave-plan 1\nmodel \"m\"\nscope \"\" \"Net\"\nscope emb \"Embedding\"\nscope body.0 \"Odd\"\nscope fc "
	"\"Linear\"\n"
	"input %x i64[2] name=\"x\"\nparam @emb.weight f32[4,2] trainable tied=@body.0.emb.weight\nparam "
	"@body.0.parts.0.bias f32[2] trainable\n"
	"object #0 \"__main__.Odd\"\n"
	"%e = aten::embedding(@emb.weight, %x, -1, false, false) -> f32[2,2] in emb\n"
	"%a, %b, %c = cleave::python(#0, %e, %x, @emb.weight, @body.0.parts.0.bias) -> f32[2], f32[2], f32[2] {impure} "
	"in body.0\n"
	"%d = aten::add.Tensor(%a, %c, 1) -> f32[2]\n"
	"%f = aten::add.Tensor(%d, @body.0.parts.0.bias, 1) -> f32[2]\noutput %f\n";

static clv_status write_whole(const void *ctx, strbuf *b)
{
	node_id ends[] = {2, 4};
	stages_spec spec = {.ends = ends, .nstages = 2, .calls = ctx, .ncalls = 1, .formal = formal};
	clv_plan *p = NULL;
	TRY(clv_plan_parse(whole, strlen(whole), &p));
	clv_status st = plan_stages_source(p, &spec, b);
	clv_plan_free(p);
	return st;
}

static void a_module_that_is_run_as_a_whole_is_given_to_its_stage(void **state)
{
	(void)state;
	block_call call = {"{0}, sizes=({1}, {{\"a\": 1}})", "{0}, ({1}, {2})", 2, NULL};
	strbuf b = STRBUF_INIT;
	char *out = NULL;
	OK(write_whole(&call, &b));
	OK(strbuf_take(&b, &out));
	holds(out, "def __init__(self, device=\"cpu\", blocks=None):\n");
	holds(out, "self.body.add_module(\"0\", given_block(blocks, \"body.0\"))\n");
	holds(out, "self.emb.weight = self.body[0].get_parameter(\"emb.weight\")\n");
	holds(out, "body_0_out0, (_, body_0_out2) = self.body[0](embedding, sizes=(x, {\"a\": 1}))\n");
	holds(out, "stages = [Stage0(blocks=blocks), Stage1()]\n");
	clv_free(out);
	call.results = NULL;
	OK(write_whole(&call, &b));
	OK(strbuf_take(&b, &out));
	holds(out, "body_0_out0, _, body_0_out2 = tensors_of(\n");
	holds(out, "\ndef tensors_of(tree):\n");
	clv_free(out);
}

static void many_stages_are_a_list_with_a_line_for_each(void **state)
{
	(void)state;
	plan *p = load_ok("cleave-plan 1\nmodel \"m\"\ninput %x f32[2] name=\"x\"\n"
	                  "%a = aten::relu(%x) -> f32[2]\noutput %a\n");
	clv_stages_options o = CLV_STAGES_OPTIONS_INIT;
	char *out = NULL;
	o.ends = (const uint32_t[]){1, 1, 1, 1, 1, 1, 1, 1};
	o.nstages = 8;
	OK(clv_plan_stages_source(p, &o, &out));
	holds(out, "            stages = [\n                Stage0(),\n                Stage1(),\n");
	clv_free(out);
	plan_free(p);
}

static void a_call_without_its_text_is_refused(void **state)
{
	(void)state;
	static const struct {
		block_call call;
		clv_status st;
		const char *why;
	} cases[] = {
		{{.reason = "it is odd"},
	     CLV_E_UNSUPPORTED,
	     "stage 0: node python (cleave::python) cannot be written as source: it is odd"},
		{{.arguments = "{0}, {2}", .count = 2}, CLV_E_INVALID, "does not fit"},
		{{.arguments = "{0", .count = 2}, CLV_E_INVALID, "does not fit"},
		{{.arguments = "{0}", .results = "{3}", .count = 2}, CLV_E_INVALID, "does not fit"},
		{{.arguments = "{0}", .count = 9}, CLV_E_INVALID, "5 arguments"},
		{{.arguments = "{0}", .count = 1}, CLV_E_UNSUPPORTED, "no name inside it"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		strbuf b = STRBUF_INIT;
		FAILS(write_whole(&cases[i].call, &b), cases[i].st, cases[i].why);
		strbuf_free(&b);
	}
	plan *p = load_ok(whole);
	clv_stages_options o = CLV_STAGES_OPTIONS_INIT;
	char *out = NULL;
	o.ends = (const uint32_t[]){4};
	o.nstages = 1;
	FAILS(clv_plan_stages_source(p, &o, &out), CLV_E_UNSUPPORTED, "the module body.0 as a whole");
	plan_free(p);
}

static void what_was_not_where_the_model_was_stays_there(void **state)
{
	(void)state;
	char *out = NULL;
	clv_stages_options o = CLV_STAGES_OPTIONS_INIT;
	plan *p = load_ok("cleave-plan 1\nmodel \"m\"\ninput %x f32[2] name=\"x\" device=cuda:0\n"
	                  "input %n i64[2] name=\"n\"\nbuffer @s f32[]\nparam @w f32[2] device=cuda:0\n"
	                  "%a = aten::mul.Tensor(%x, @w) -> f32[2] device=cuda:0\n"
	                  "%b = aten::zeros([2], dtype:f32, none, device:\"cuda:0\", false) -> f32[2] device=cuda:0\n"
	                  "%c = aten::add.Tensor(%a, @s, 1) -> f32[2] device=cuda:0\n"
	                  "%d = aten::relu(%n) -> i64[2]\noutput (%a, %b, %c, %d)\n");
	o.ends = (const uint32_t[]){1, 4};
	o.nstages = 2;
	OK(clv_plan_stages_source(p, &o, &out));
	holds(out, "    STAY = (1,)\n");
	holds(out, "def __init__(self, device=\"cuda:0\"):\n");
	holds(out, "        self.to(device)\n        self.s = self.s.to(\"cpu\")\n");
	holds(out, "and i not in stage.STAY");
	holds(out, "\"devices\": [\"cuda:0\"]");
	clv_free(out);
	plan_free(p);
	p = load_ok("cleave-plan 1\nmodel \"m\"\ninput %x f32[2] name=\"x\" device=cuda:0\nparam @w f32[]\n"
	            "%a = aten::mul.Tensor(%x, @w) -> f32[2] device=cuda:0\noutput %a\n");
	o.ends = (const uint32_t[]){1};
	o.nstages = 1;
	FAILS(clv_plan_stages_source(p, &o, &out), CLV_E_UNSUPPORTED, "w is on cpu and the model on cuda:0");
	plan_free(p);
}

static clv_status write_blocks(const void *ctx)
{
	strbuf b = STRBUF_INIT;
	clv_status st = write_whole(ctx, &b);
	strbuf_free(&b);
	return st;
}

static void every_allocation_may_fail_while_blocks_are_written(void **state)
{
	(void)state;
	static const block_call call = {"{0}, {1}", NULL, 2, NULL};
	assert_in_range(sweep_faults(write_blocks, &call, CLV_OK), 100, 20000);
}

static clv_status write_stages(const void *ctx)
{
	const char *source = ctx;
	node_id ends[] = {3, 4, 7};
	stages_spec spec = {.ends = ends, .nstages = 3, .del = true, .formal = formal};
	clv_plan *p = NULL;
	strbuf b = STRBUF_INIT;
	TRY(clv_plan_parse(source, strlen(source), &p));
	clv_status st = plan_stages_source(p, &spec, &b);
	strbuf_free(&b);
	clv_plan_free(p);
	return st;
}

static void every_allocation_may_fail_while_stages_are_written(void **state)
{
	(void)state;
	assert_in_range(sweep_faults(write_stages, net, CLV_OK), 200, 20000);
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
		cmocka_unit_test(stages_call_whole_layers_and_keep_their_names),
		cmocka_unit_test(a_size_that_no_input_shows_is_computed_from_one),
		cmocka_unit_test(stages_are_refused_where_they_would_not_do_the_same),
		cmocka_unit_test(a_module_that_is_run_as_a_whole_is_given_to_its_stage),
		cmocka_unit_test(many_stages_are_a_list_with_a_line_for_each),
		cmocka_unit_test(a_call_without_its_text_is_refused),
		cmocka_unit_test(what_was_not_where_the_model_was_stays_there),
		cmocka_unit_test(every_allocation_may_fail_while_blocks_are_written),
		cmocka_unit_test(every_allocation_may_fail_while_stages_are_written),
	};
	return cmocka_run_group_tests_name("emit", tests, NULL, NULL);
}
