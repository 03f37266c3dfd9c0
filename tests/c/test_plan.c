/* The builder, the tables, node names, equality, and the verifier: one test per rule, which breaks it. */
#include "support.h"

/* ---- the builder --------------------------------------------------------------------------------------------------- */

static void interned_strings_are_found_again(void **state)
{
	(void)state;
	plan *p;
	str_id a, b, c;
	OK(plan_new(&p));
	OK(plan_str(p, "x\0y", 3, &a));
	OK(plan_str(p, "x\0y", 3, &b));
	OK(plan_str(p, "x", 1, &c));
	assert_int_equal(a, b);
	assert_int_not_equal(a, c);
	assert_string_equal(plan_s(p, c), "x");
	assert_string_equal(plan_s(p, NONE), "");
	plan_free(p);
}

static void strings_stay_where_they_are(void **state)
{
	(void)state;
	plan *p;
	str_id first, other;
	OK(plan_new(&p));
	OK(plan_cstr(p, "first", &first));
	const char *at = plan_s(p, first);
	for (int i = 0; i < 20000; i++) {
		char text[32];
		snprintf(text, sizeof text, "string %d", i);
		OK(plan_cstr(p, text, &other));
	}
	assert_ptr_equal(plan_s(p, first), at);
	plan_free(p);
}

static void the_default_context_is_number_0(void **state)
{
	(void)state;
	plan *p;
	context_id id;
	OK(plan_new(&p));
	OK(plan_context(p, &(context){0}, NULL, &id));
	assert_int_equal(id, 0);
	plan_free(p);
}

static void equal_contexts_are_one(void **state)
{
	(void)state;
	plan *p;
	context_id a, b, c;
	autocast ac = {.dtype = DT_BF16, .cache = true};
	OK(plan_new(&p));
	OK(plan_cstr(p, "cpu", &ac.device));
	context x = {.nograd = true, .nautocast = 1, .flags_mask = 3, .flags = 1}, y = x;
	y.flags = 5; /* the third bit is not in the mask */
	OK(plan_context(p, &x, &ac, &a));
	OK(plan_context(p, &y, &ac, &b));
	assert_int_equal(a, b);
	ac.cache = false;
	OK(plan_context(p, &x, &ac, &c));
	assert_int_not_equal(a, c);
	OK(plan_context(p, &x, &p->autocasts.at[p->contexts.at[a].autocast], &b)); /* the plan's own array */
	assert_int_equal(a, b);
	plan_free(p);
}

static void a_scope_is_made_once_and_finds_its_parent(void **state)
{
	(void)state;
	plan *p;
	scope_id root, a, b, again;
	OK(plan_new(&p));
	FAILS(plan_scope(p, NONE, "x", "C", &a), CLV_E_INVALID, "declare the root scope");
	OK(plan_scope(p, NONE, "", "Net", &root));
	OK(plan_scope(p, root, "layers.0", "Block", &a)); /* layers itself has no forward */
	OK(plan_scope(p, NONE, "layers.0.conv", "Conv2d", &b));
	OK(plan_scope(p, NONE, "layers.0", "Block", &again));
	assert_int_equal(a, again);
	assert_int_equal(p->scopes.at[a].parent, root);
	assert_int_equal(p->scopes.at[b].parent, a);
	FAILS(plan_scope(p, root, "layers.0.bn", "BatchNorm2d", &b), CLV_E_INVALID, "the path decides");
	plan_free(p);
}

static plan *small_plan(value_id *input)
{
	plan *p;
	tensor_spec t = {.dtype = DT_F32, .ndim = 0, .shape = NULL, .device = "cpu"};
	OK(plan_new(&p));
	OK(plan_tensor(p, VALUE_INPUT, "x", &t, input));
	return p;
}

static void ids_that_do_not_exist_are_refused(void **state)
{
	(void)state;
	value_id x, out;
	plan *p = small_plan(&x);
	node_id n;
	arg a = {.kind = ARG_VALUE, .u.v = 99}, list = {.kind = ARG_LIST, .u.list = {0, 1}};
	tensor_spec t = {.dtype = DT_F32, .ndim = 1, .shape = &(expr_id){99}};
	FAILS(plan_tensor(p, VALUE_INPUT, NULL, &t, &out), CLV_E_INVALID, "no expression 99");
	FAILS(plan_tensor(p, VALUE_OBJECT, NULL, &t, &out), CLV_E_INVALID, "kind");
	FAILS(plan_node(p, &(node_spec){.op = "a::b", .args = &a, .nargs = 1}, &n), CLV_E_INVALID, "no scope 0");
	FAILS(plan_node(p, &(node_spec){.op = "a::b", .args = &a, .nargs = 1, .scope = NONE}, &n), CLV_E_INVALID,
	      "argument 1 of 1");
	FAILS(plan_node(p, &(node_spec){.op = "a::b", .scope = NONE, .context = 5}, &n), CLV_E_INVALID, "no context 5");
	FAILS(plan_node(p, &(node_spec){.op = "a::b", .scope = NONE, .writes = &(value_id){9}, .nwrites = 1}, &n),
	      CLV_E_INVALID, "no value 9");
	FAILS(plan_list(p, &list, 1, &a), CLV_E_INVALID, "argument 1 of 1");
	FAILS(plan_expect(p, x, &(arg){.kind = ARG_NONE}), CLV_E_INVALID, "no host value");
	FAILS(plan_host(p, TYPE_TENSOR, &out), CLV_E_INVALID, "type");
	FAILS(plan_context(p, &(context){.flags_mask = 1u << 20}, NULL, &n), CLV_E_INVALID, "flag");
	assert_int_equal(p->nodes.n, 0);
	plan_free(p);
}

static void a_result_is_defined_once(void **state)
{
	(void)state;
	value_id x, y;
	plan *p = small_plan(&x);
	node_id n;
	tensor_spec t = {.dtype = DT_F32};
	OK(plan_tensor(p, VALUE_RESULT, NULL, &t, &y));
	arg r = {.kind = ARG_VALUE, .u.v = y}, input = {.kind = ARG_VALUE, .u.v = x};
	node_spec s = {.op = "a::b", .results = &r, .nresults = 1, .scope = NONE};
	OK(plan_node(p, &s, &n));
	assert_int_equal(p->values.at[y].def, n);
	FAILS(plan_node(p, &s, &n), CLV_E_INVALID, "already defined elsewhere");
	s.results = &input;
	FAILS(plan_node(p, &s, &n), CLV_E_INVALID, "is no result");
	assert_int_equal(p->nodes.n, 1);
	plan_free(p);
}

static void a_node_may_be_made_from_the_plans_own_arguments(void **state)
{
	(void)state;
	value_id x;
	plan *p = small_plan(&x);
	node_id n;
	arg args[2] = {{.kind = ARG_VALUE, .u.v = x}, {.kind = ARG_BOOL, .u.b = true}};
	OK(plan_node(p, &(node_spec){.op = "a::b", .args = args, .nargs = 2, .scope = NONE}, &n));
	for (int i = 0; i < 100; i++) {
		const node *last = &p->nodes.at[n];
		node_spec s = {.op = "a::b", .args = &p->args.at[last->args], .nargs = 2, .scope = NONE};
		OK(plan_node(p, &s, &n));
		assert_int_equal(p->args.at[p->nodes.at[n].args].u.v, x);
		assert_true(p->args.at[p->nodes.at[n].args + 1].u.b);
	}
	plan_free(p);
}

/* ---- tables and names ---------------------------------------------------------------------------------------------- */

static void every_dtype_has_a_name_that_reads_back(void **state)
{
	(void)state;
	for (int d = 0; d < DT_COUNT; d++) {
		dtype back;
		const char *name = dtype_name((dtype)d);
		assert_true(dtype_parse(name, strlen(name), &back));
		assert_int_equal(back, d);
		assert_int_equal(dtype_bits((dtype)d) % 8, 0);
	}
	dtype none;
	assert_false(dtype_parse("f3", 2, &none));
	assert_false(dtype_parse("", 0, &none));
}

static void floats_and_complex_numbers_may_have_gradients(void **state)
{
	(void)state;
	for (int d = 0; d < DT_COUNT; d++) {
		const char *name = dtype_name((dtype)d);
		bool real = name[0] == 'f' || name[0] == 'c' || strncmp(name, "bf", 2) == 0;
		assert_int_equal(dtype_has_grad((dtype)d), real);
	}
}

static void bytes_of_a_value_follow_its_shape(void **state)
{
	(void)state;
	plan *p = load_ok("cleave-plan 1\nmodel \"m\"\nsymbol B 0..9\ninput %0 f32[B,3,2]\ninput %1 c128[]\n"
	                  "input %2 f32[4000000000,4000000000]\ninput %3 f32[4000000000,4000000000,B]\ninput %4 i8[B-3]\n"
	                  "%5 = a::f() -> int\noutput none\n");
	int64_t n;
	OK(value_bytes(p, 0, (int64_t[]){5}, &n));
	assert_int_equal(n, 120);
	OK(value_bytes(p, 1, (int64_t[]){5}, &n));
	assert_int_equal(n, 16);
	FAILS(value_bytes(p, 2, (int64_t[]){5}, &n), CLV_E_OVERFLOW, "2^63");
	OK(value_bytes(p, 3, (int64_t[]){0}, &n));
	assert_int_equal(n, 0);
	FAILS(value_bytes(p, 4, (int64_t[]){1}, &n), CLV_E_INPUT, "a size is -2");
	OK(value_bytes(p, 5, (int64_t[]){1}, &n));
	assert_int_equal(n, 0);
	FAILS(value_bytes(p, 99, NULL, &n), CLV_E_INVALID, "no value");
	plan_free(p);
}

static void nodes_are_named_by_operator_and_occurrence(void **state)
{
	(void)state;
	plan *p = load_ok("cleave-plan 1\nmodel \"m\"\n"
	                  "aten::relu()\naten::add.Tensor()\naten::relu_()\naten::add.Scalar()\nother::relu()\n"
	                  "aten::relu_2()\naten::relu()\naten::relu()\noutput none\n");
	static const char *const want[] = {"relu", "add", "relu_", "add_1", "relu_1", "relu_2", "relu_3", "relu_4"};
	node_names *names;
	OK(node_names_new(p, &names));
	for (node_id n = 0; n < 8; n++) {
		assert_string_equal(node_name(names, n), want[n]);
		assert_int_equal(node_find(names, want[n]), n);
	}
	assert_int_equal(node_find(names, "relu_9"), NONE);
	assert_string_equal(node_name(names, 8), "?");
	node_names_free(names);
	plan_free(p);
}

/* ---- equality ------------------------------------------------------------------------------------------------------ */

#define EQ_TEXT(model, symbol, input, param, node, tail)                                                               \
	"cleave-plan 1\nmodel " model "\nsymbol B " symbol "\nscope \"\" \"N\"\nscope a \"C\"\ninput %0 " input            \
	"\nparam @w " param "\nbuffer @h f32[]\n" node "\n" tail "\n"

static void each_part_counts_for_equality(void **state)
{
	(void)state;
	static const char *const texts[] = {
		EQ_TEXT("\"m\"", "1..2", "f32[B]", "f32[1]", "%1 = a::f(%0, 1) -> f32[]", "output %1"),
		EQ_TEXT("\"n\"", "1..2", "f32[B]", "f32[1]", "%1 = a::f(%0, 1) -> f32[]", "output %1"),
		EQ_TEXT("\"m\" training=yes", "1..2", "f32[B]", "f32[1]", "%1 = a::f(%0, 1) -> f32[]", "output %1"),
		EQ_TEXT("\"m\" grad=no", "1..2", "f32[B]", "f32[1]", "%1 = a::f(%0, 1) -> f32[]", "output %1"),
		EQ_TEXT("\"m\"", "1..3", "f32[B]", "f32[1]", "%1 = a::f(%0, 1) -> f32[]", "output %1"),
		EQ_TEXT("\"m\"", "1..2", "f32[B+1]", "f32[1]", "%1 = a::f(%0, 1) -> f32[]", "output %1"),
		EQ_TEXT("\"m\"", "1..2", "f32[B] name=\"\"", "f32[1]", "%1 = a::f(%0, 1) -> f32[]", "output %1"),
		EQ_TEXT("\"m\"", "1..2", "f32[B] strides(1)", "f32[1]", "%1 = a::f(%0, 1) -> f32[]", "output %1"),
		EQ_TEXT("\"m\"", "1..2", "f32[B]", "f32[1] trainable", "%1 = a::f(%0, 1) -> f32[]", "output %1"),
		EQ_TEXT("\"m\"", "1..2", "f32[B]", "f32[1] tied=@v", "%1 = a::f(%0, 1) -> f32[]", "output %1"),
		EQ_TEXT("\"m\"", "1..2", "f32[B]", "f32[1]", "%1 = a::g(%0, 1) -> f32[]", "output %1"),
		EQ_TEXT("\"m\"", "1..2", "f32[B]", "f32[1]", "%1 = a::f(%0, 1.0) -> f32[]", "output %1"),
		EQ_TEXT("\"m\"", "1..2", "f32[B]", "f32[1]", "%1 = a::f(%0, num(1)) -> f32[]", "output %1"),
		EQ_TEXT("\"m\"", "1..2", "f32[B]", "f32[1]", "%1 = a::f(%0, [1]) -> f32[]", "output %1"),
		EQ_TEXT("\"m\"", "1..2", "f32[B]", "f32[1]", "%1 = a::f(%0, 0.0) -> f32[]", "output %1"),
		EQ_TEXT("\"m\"", "1..2", "f32[B]", "f32[1]", "%1 = a::f(%0, -0.0) -> f32[]", "output %1"),
		EQ_TEXT("\"m\"", "1..2", "f32[B]", "f32[1]", "%1 = a::f(%0, nan) -> f32[]", "output %1"),
		EQ_TEXT("\"m\"", "1..2", "f32[B]", "f32[1]", "%1 = a::f(%0, 1) -> f64[]", "output %1"),
		EQ_TEXT("\"m\"", "1..2", "f32[B]", "f32[1]", "%1 = a::f(%0, 1) -> f32[] view-of %0", "output %1"),
		EQ_TEXT("\"m\"", "1..2", "f32[B]", "f32[1]", "%1 = a::f(%0, 1) -> f32[] writes %0", "output %1"),
		EQ_TEXT("\"m\"", "1..2", "f32[B]", "f32[1]", "%1 = a::f(%0, 1) -> f32[] {random}", "output %1"),
		EQ_TEXT("\"m\"", "1..2", "f32[B]", "f32[1]", "%1 = a::f(%0, 1) -> f32[] {nograd}", "output %1"),
		EQ_TEXT("\"m\"", "1..2", "f32[B]", "f32[1]", "%1 = a::f(%0, 1) -> f32[] {autocast=cpu:f16}", "output %1"),
		EQ_TEXT("\"m\"", "1..2", "f32[B]", "f32[1]", "%1 = a::f(%0, 1) -> f32[] in a", "output %1"),
		EQ_TEXT("\"m\"", "1..2", "f32[B]", "f32[1]", "%1 = a::f(%0, 1) -> f32[] at \"\"", "output %1"),
		EQ_TEXT("\"m\"", "1..2", "f32[B]", "f32[1]", "%1 = a::f(%0, 1) -> int", "output %1"),
		EQ_TEXT("\"m\"", "1..2", "f32[B]", "f32[1]", "%1 = a::f(%0, 1) -> int = 1", "output %1"),
		EQ_TEXT("\"m\"", "1..2", "f32[B]", "f32[1]", "%1 = a::f(%0, 1) -> f32[]", "output %0"),
		EQ_TEXT("\"m\"", "1..2", "f32[B]", "f32[1]", "%1 = a::f(%0, 1) -> f32[]", "output (%1,)"),
		EQ_TEXT("\"m\"", "1..2", "f32[B]", "f32[1]", "%1 = a::f(%0, 1) -> f32[]", "rebind @h = %1\noutput %1"),
		EQ_TEXT("\"m\"", "1..2", "f32[B]", "f32[1]", "%1 = a::f(%0, 1) -> f32[]", "rebind @h = %0\noutput %1"),
		EQ_TEXT("\"m\"", "1..2", "f32[B]", "f32[1]", "%1 = a::f(%0, 1) -> f32[]", "inputs ((), {})\noutput %1"),
		EQ_TEXT("\"m\"", "1..2", "f32[B]", "f32[1]", "%1 = a::f(%0) -> f32[]\n%2 = a::f(%0) -> f32[]", "output %1"),
		EQ_TEXT("\"m\"", "1..2", "f32[B]", "f32[1]", "group\n%1 = a::f(%0) -> f32[]\n%2 = a::f(%0) -> f32[]\nend",
	            "output %1"),
	};
	enum { N = sizeof texts / sizeof *texts };
	plan *p[N];
	for (size_t i = 0; i < N; i++)
		p[i] = load_ok(texts[i]);
	for (size_t i = 0; i < N; i++)
		for (size_t k = 0; k < N; k++)
			if (plan_equal(p[i], p[k]) != (i == k))
				fail_msg("%s%s%s", texts[i], i == k ? "differs from " : "equals ", texts[k]);
	for (size_t i = 0; i < N; i++)
		plan_free(p[i]);
}

static void ties_may_stand_in_any_order(void **state)
{
	(void)state;
	const char *text =
		"cleave-plan 1\nmodel \"m\"\nparam @a f32[] tied=@a1 tied=@a2\nparam @b f32[] tied=@b1\noutput none\n";
	plan *p = load_ok(text), *q = load_ok(text);
	tie t = q->ties.at[0];
	q->ties.at[0] = q->ties.at[2];
	q->ties.at[2] = q->ties.at[1];
	q->ties.at[1] = t; /* b1 a1 a2 */
	OK(plan_verify(q));
	assert_true(plan_equal(p, q));
	assert_true(plan_equal(q, p));
	char *a = print_ok(p), *b = print_ok(q);
	assert_string_equal(a, b);
	q->ties.at[1] = q->ties.at[2];
	q->ties.at[2] = t; /* b1 a2 a1 */
	assert_false(plan_equal(p, q));
	mem_free(a);
	mem_free(b);
	plan_free(p);
	plan_free(q);
}

/* ---- the verifier -------------------------------------------------------------------------------------------------- */

static const char *const sample =
	"cleave-plan 1\n"
	"model \"m\"\n"
	"symbol B 1..9\n"
	"symbol S 1..9\n"
	"scope \"\" \"Net\"\n"
	"scope a \"A\"\n"
	"scope a.b \"B\"\n"
	"input %0 f32[B,2] strides(2,1) name=\"x\"\n"
	"input %1 f32[3]\n"
	"param @w f32[2] trainable tied=@v\n"
	"buffer @h f32[2]\n"
	"const #0 f32[2] persistent\n"
	"object #1 \"torch.Generator\"\n"
	"%2 = aten::relu(%0) -> f32[B,2] in a\n"
	"[%3, _], %4 = aten::f([%2, [@w]], #0, #1, \"s\", dtype:f32, layout:strided, B+1) -> [f32[2] view-of %2, none], "
	"bool = true\n"
	"%5 = aten::relu_(%3) -> f32[2] view-of %2 writes %3, %2 {nograd, autocast=cpu:bf16}\n"
	"rebind @h = %5\n"
	"inputs ((%0), {\"y\": %1})\n"
	"output object \"m:C\" {\"a\": [%5, B], \"b\": {1: \"s\"}}\n";

enum { V0, V1, VW, VH, C0, O1, V2, V3, V4, V5, VALUES };

static value *val(plan *p, value_id v)
{
	return &p->values.at[v];
}

static node *nod(plan *p, node_id n)
{
	return &p->nodes.at[n];
}

static arg *arg_of(plan *p, node_id n, uint32_t i)
{
	return &p->args.at[p->nodes.at[n].args + i];
}

/* A test that changes the sample by `...` and expects the verifier to say `part`. */
#define RULE(name, part, ...)                                                                                          \
	static void name(void **state)                                                                                     \
	{                                                                                                                  \
		(void)state;                                                                                                   \
		plan *p = load_ok(sample);                                                                                     \
		__VA_ARGS__;                                                                                                   \
		FAILS(plan_verify(p), CLV_E_VERIFY, part);                                                                     \
		plan_free(p);                                                                                                  \
	}

RULE(the_model_name_exists, "no valid model name", p->model = 9999)
RULE(the_grad_mode_exists, "grad mode", p->grad_modes = 4)
RULE(symbols_have_names, "symbol 0 has no valid name", p->symbols.at[0].name = NONE)
RULE(symbols_are_distinct, "there are two symbols B", p->symbols.at[1].name = p->symbols.at[0].name)
RULE(symbols_are_of_a_known_kind, "symbol B is of no known kind", p->symbols.at[0].data = 2)

/* Some work is their number times that of inputs or nodes. */
static void there_are_not_more_sizes_than_a_model_can_have(void **state)
{
	(void)state;
	for (int n = 256; n < 258; n++) {
		char text[16384];
		int at = snprintf(text, sizeof text, "cleave-plan 1\nmodel \"m\"\n");
		for (int i = 0; i < n; i++)
			at += snprintf(text + at, sizeof text - (size_t)at, "symbol S%d 1..9\n", i);
		snprintf(text + at, sizeof text - (size_t)at, "input %%0 f32[S0]\ninputs ((%%0), {})\noutput %%0\n");
		clv_plan *p = NULL;
		assert_int_equal(clv_plan_parse(text, strlen(text), &p), n > 256 ? CLV_E_VERIFY : CLV_OK);
		clv_plan_free(p);
	}
}

RULE(symbols_have_ranges, "symbol B has no valid range: 5..4", p->symbols.at[0].lo = 5; p->symbols.at[0].hi = 4)
RULE(expressions_have_operators, "has no operator", p->exprs.at[2].op = (expr_op)77)
RULE(expressions_follow_their_operands, "does not come after its operands",
     p->exprs.at[p->exprs.n - 1] = (expr){EXPR_ADD, p->exprs.n - 1, 0, 0})
RULE(expressions_name_symbols_that_exist, "a symbol that does not exist",
     p->exprs.at[0] = (expr){EXPR_SYM, NONE, NONE, 2})
RULE(sizes_name_expressions_that_exist, "an expression that does not exist", p->dims.at[0] = 9999)
RULE(scopes_have_paths, "scope 1 has no path or class", p->scopes.at[1].path = 9999)
RULE(scopes_are_distinct, "there are two scopes", p->scopes.at[2].path = p->scopes.at[1].path)
RULE(scopes_follow_their_parents, "does not come after its parent", p->scopes.at[1].parent = 2)
RULE(only_the_root_has_no_parent, "does not come after its parent", p->scopes.at[2].parent = NONE)
RULE(context_0_is_the_default, "context 0 is not the default", p->contexts.at[0].nograd = true)
RULE(contexts_set_flags_that_exist, "sets flags that do not exist", p->contexts.at[1].flags_mask = 1u << 30)
RULE(contexts_set_flags_of_their_mask, "sets flags that do not exist", p->contexts.at[1].flags = 1)
RULE(contexts_have_autocasts_that_exist, "autocasts that do not exist", p->contexts.at[1].nautocast = 2)
RULE(autocasts_have_dtypes, "no valid device or dtype", p->autocasts.at[0].dtype = DT_COUNT)
RULE(arguments_name_values_that_exist, "names something that does not exist", arg_of(p, 0, 0)->u.v = VALUES)
RULE(arguments_name_strings_that_exist, "names something that does not exist", arg_of(p, 1, 3)->u.s = 9999)
RULE(arguments_name_dtypes_that_exist, "names something that does not exist", arg_of(p, 1, 4)->u.code = DT_COUNT)
RULE(arguments_name_layouts_that_exist, "names something that does not exist", arg_of(p, 1, 5)->u.code = 8)
RULE(arguments_name_expressions_that_exist, "names something that does not exist", arg_of(p, 1, 6)->u.e = 9999)
RULE(arguments_have_a_kind, "names something that does not exist", arg_of(p, 1, 6)->kind = 99)
RULE(only_numbers_are_wrapped, "is wrapped, but no number", arg_of(p, 1, 3)->wrapped = 1)
RULE(lists_lie_before_their_use, "a list does not lie before its use", arg_of(p, 1, 0)->u.list.first = p->args.n - 1)
RULE(lists_do_not_contain_themselves, "a list does not lie before its use",
     arg_of(p, 1, 0)->u.list.first = nod(p, 1)->args)
RULE(values_have_a_kind, "value 0 has no kind or type", val(p, V0)->kind = 99)
RULE(values_have_a_type, "value 4 has no kind or type", val(p, C0)->type = 99)
RULE(values_have_known_flags, "%0 has an unknown flag", val(p, V0)->flags = 64)
RULE(tensors_have_a_dtype, "%0 has no dtype", val(p, V0)->dtype = DT_COUNT)
RULE(tensors_have_a_device, "%0 has no device", val(p, V0)->device = NONE)
RULE(tensors_have_sizes_that_exist, "%0 has sizes that do not exist", val(p, V0)->ndim = 9999)
RULE(tensors_have_strides_that_exist, "%0 has sizes that do not exist", val(p, V0)->strides = p->dims.n)
static void give_dims(plan *p, value *x, uint32_t n)
{
	x->ndim = n;
	x->shape = p->dims.n;
	while (n--)
		OK(vec_push(&p->dims, 0));
}

RULE(tensors_have_64_dimensions_at_most, "%0 has more than 64 dimensions", give_dims(p, val(p, V0), 65))
RULE(tensors_have_no_expected_value, "cannot be compared with a literal", val(p, V2)->expect = 0)
RULE(constant_sizes_are_not_negative, "%1 has a negative size", OK(expr_const(p, -1, &p->dims.at[val(p, V1)->shape])))
RULE(only_results_have_guards, "@w has a guard, but is no result", val(p, VW)->flags |= VALUE_GUARD)
RULE(only_parameters_are_trainable, "@h is trainable, but no parameter", val(p, VH)->flags |= VALUE_TRAINABLE)
RULE(only_constants_are_persistent, "@h is persistent, but no constant", val(p, VH)->flags |= VALUE_PERSISTENT)
RULE(host_values_are_results, "is no tensor; only results and objects can be", val(p, V1)->type = TYPE_INT)
RULE(objects_have_object_type, "is an object of another type", val(p, O1)->type = TYPE_INT)
RULE(host_values_have_no_tensor_marks, "has marks that only tensors have", val(p, V4)->flags |= VALUE_GRAD)
RULE(host_guards_have_an_expected_value, "has a guard that does not fit its type", val(p, V4)->expect = NONE)
RULE(expected_values_are_guards, "has a guard that does not fit its type", val(p, V4)->flags = 0)
RULE(expected_values_have_the_type, "has a guard that does not fit its type", val(p, V4)->type = TYPE_INT)
RULE(objects_have_no_guards, "has a guard that does not fit its type", val(p, V4)->type = TYPE_OBJECT)
RULE(expected_values_exist, "has a guard that does not fit its type", val(p, V4)->expect = 9999)
RULE(names_have_an_end, "has a name of more than 1000 bytes", OK(plan_str(p, (char[1001]){0}, 1001, &val(p, VW)->name)))
RULE(module_tensors_have_names, "has no name", val(p, VW)->name = NONE)
RULE(module_tensors_have_names_of_their_own, "has a name that another one has", val(p, VH)->name = val(p, VW)->name)
RULE(ties_have_names_of_their_own, "has a name that another one has", p->ties.at[0].name = val(p, VH)->name)
RULE(ties_belong_to_module_tensors, "tie 0 belongs to no module tensor", p->ties.at[0].value = C0)
RULE(input_names_exist, "%0 has a name that does not exist", val(p, V0)->name = 9999)
RULE(object_types_exist, "#1 has a name that does not exist", val(p, O1)->name = NONE)
RULE(results_have_no_name, "which have no name", val(p, V2)->name = 0)
RULE(inputs_have_no_node, "is no result, but has a node", val(p, V0)->def = 0)
RULE(inputs_are_input_values, "input 0 of the plan is no input value", p->inputs.at[0] = VW)
RULE(inputs_are_listed_once, "%0 is listed twice among the inputs", p->inputs.at[1] = V0)
RULE(inputs_are_all_listed, "value 1 is an input, but not listed", p->inputs.n = 1)
RULE(views_are_of_values_that_exist, "is a view of a value that does not exist", val(p, V5)->alias = VALUES)
RULE(views_are_not_of_views, "%5 is a view of a view", val(p, V5)->alias = V3)
RULE(views_are_of_tensors, "is a view of something that is no tensor", val(p, V5)->alias = O1)
RULE(views_are_of_earlier_values, "@w is a view of a value that is defined later", val(p, VW)->alias = VH)
RULE(views_are_of_earlier_results, "%2 is a view of a value that is defined later", val(p, V3)->alias = NONE;
     val(p, V2)->alias = V3; val(p, V5)->alias = V3)
RULE(inputs_are_no_views_of_parameters, "%1 is a view of a value that is defined later", val(p, V1)->alias = VH)
RULE(operators_have_names, "the operator has no name like space::name", nod(p, 0)->op = NONE)
RULE(operators_have_a_namespace, "the operator has no name like space::name", OK(plan_cstr(p, "relu", &nod(p, 0)->op)))
RULE(node_arguments_exist, "arguments, results or writes do not exist", nod(p, 0)->nargs = 9999)
RULE(node_results_exist, "arguments, results or writes do not exist", nod(p, 0)->results = 9999)
RULE(node_writes_exist, "arguments, results or writes do not exist", nod(p, 2)->writes = 9999)
RULE(node_scopes_exist, "the scope does not exist", nod(p, 0)->scope = 3)
RULE(node_contexts_exist, "the context does not exist", nod(p, 0)->context = 2)
RULE(node_places_exist, "the place in the source does not exist", nod(p, 0)->at = 9999)
RULE(node_flags_are_known, "unknown flags", nod(p, 0)->flags = 8)
RULE(results_are_values, "a result is neither a value, nor none", p->args.at[nod(p, 0)->results].kind = ARG_BOOL)
RULE(lists_of_results_are_one_deep, "a result is neither a value, nor none",
     p->args.at[p->args.at[nod(p, 1)->results].u.list.first + 1] = (arg){.kind = ARG_LIST})
RULE(values_are_used_after_their_definition,
     "node relu (%2 = aten::relu(%5) -> f32[B,2] in a): %5 is used before it is defined", arg_of(p, 0, 0)->u.v = V5)
RULE(results_belong_to_their_node, "is not a result of this node", val(p, V2)->def = 1)
RULE(results_are_defined_once, "is defined twice", p->args.at[nod(p, 1)->results + 1].u.v = V3)
RULE(all_results_have_a_node, "value 9 is a result of no node", p->nodes.n = 2; p->rebinds.n = 0; p->out_tree.n = 0)
RULE(written_values_exist, "it writes a value that does not exist", p->ids.at[0] = VALUES)
RULE(written_values_are_tensors, "is written, but no tensor", p->ids.at[0] = V4)
RULE(written_values_are_defined, "is written before it is defined", nod(p, 0)->writes = nod(p, 2)->writes;
     nod(p, 0)->nwrites = 1)
RULE(written_values_belong_to_the_node,
     "node relu_ (%5 = aten::relu_(%3) -> f32[2] view-of %2 writes @h, %2 {nograd, autocast=cpu:bf16}): "
     "@h is written, but is no argument",
     p->ids.at[0] = VH)
RULE(groups_have_two_nodes, "group 0 has less than two nodes", OK(vec_push(&p->groups, ((node_span){1, 2}))))
RULE(groups_are_of_nodes_that_exist, "group 0 has less than two", OK(vec_push(&p->groups, ((node_span){0, 99}))))
RULE(groups_make_tensors, "it is in a group, but a result is no dense tensor",
     OK(vec_push(&p->groups, ((node_span){0, 2}))))
RULE(trees_have_kinds, "the output tree has a part of no kind", p->out_tree.at[0].kind = 99)
RULE(leaves_have_no_children, "a leaf with children", p->out_tree.at[1].n = 1)
RULE(trees_have_all_their_parts, "the output tree ends before all its parts", p->out_tree.at[0].n = 6)
RULE(trees_end, "the output tree has parts after its end", p->out_tree.at[0].n = 2)
RULE(dicts_have_pairs, "the output tree has a key without a value", p->out_tree.at[6].n = 1)
RULE(objects_have_field_names, "field name is no string", p->out_tree.at[1].kind = TREE_NONE)
RULE(trees_name_values_that_exist, "names a value that does not exist", p->out_tree.at[3].u.v = VALUES)
RULE(trees_name_expressions_that_exist, "names an expression that does not exist", p->out_tree.at[4].u.e = 9999)
RULE(trees_name_strings_that_exist, "names a string that does not exist", p->out_tree.at[0].u.s = 9999)
RULE(a_plan_has_an_output, "the plan has no output", p->out_tree.n = 0)
RULE(the_input_tree_is_a_pair, "is not (a tuple of arguments, a dict", p->in_tree.at[0].kind = TREE_LIST)
RULE(the_input_tree_has_arguments, "is not (a tuple of arguments, a dict", p->in_tree.at[1].kind = TREE_LIST)
RULE(the_input_tree_has_keywords, "is not (a tuple of arguments, a dict", p->in_tree.at[3].kind = TREE_LIST)
RULE(the_input_tree_holds_inputs, "@w is in the input tree, but no input", p->in_tree.at[2].u.v = VW)
RULE(rebinds_name_values_that_exist, "rebind 0 names a value that does not exist", p->rebinds.at[0].value = VALUES)
RULE(rebinds_are_of_module_tensors, "#0 is re-bound, but no tensor of a module", p->rebinds.at[0].target = C0)
RULE(rebinds_bind_tensors, "#1 is bound to a module, but no tensor", p->rebinds.at[0].value = O1)
RULE(rebinds_are_once_per_tensor, "@h is re-bound twice", OK(vec_push(&p->rebinds, p->rebinds.at[0])))

static void the_sample_itself_verifies(void **state)
{
	(void)state;
	plan *p = load_ok(sample);
	assert_int_equal(p->values.n, VALUES);
	assert_int_equal(clv_plan_node_count(p), 3);
	assert_int_equal(clv_plan_input_count(p), 2);
	assert_int_equal(clv_plan_output_count(p), 1);
	plan_free(p);
}

static void check_brief(const char *text, const char *want)
{
	plan *p = NULL;
	strbuf b = STRBUF_INIT;
	char *found = NULL;
	OK(plan_parse(text, strlen(text), &p));
	OK(plan_brief(p, &b));
	OK(strbuf_take(&b, &found));
	assert_string_equal(found, want);
	mem_free(found);
	plan_free(p);
}

static void a_brief_has_a_line_for_each_fact(void **state)
{
	(void)state;
	check_brief("cleave-plan 1\nmodel \"m\" grad=no\nsymbol B 1..64\nsymbol S 2..9\n"
	            "input %x f32[B,S] name=\"x\"\ninput %y i64[] name=\"a\\tb\"\ninput %a i64[]\ninput %b i64[]\n"
	            "param @w f32[100,30] trainable\nparam @v f16[10]\nparam @u f32[]\noutput (%x, %y)\n",
	            "parameters\t3.0K, 12.0 kB, 3 tensors, 1 trainable\n"
	            "inputs\tx f32[B,S], \"a\\tb\" i64[], i64[] and 1 more\n"
	            "outputs\tf32[B,S], i64[]\nsymbols\tB 1..64, S 2..9\nmode\teval, equal to eager without grad\n");
	check_brief("cleave-plan 1\nmodel \"m\"\noutput none\n",
	            "inputs\tnone\noutputs\tnone\nmode\teval, equal to eager with and without grad\n");
}

static void a_brief_leaves_out_sizes_that_it_cannot_know(void **state)
{
	(void)state;
	check_brief("cleave-plan 1\nmodel \"m\"\nsymbol B 1..64\ninput %x f32[B]\nparam @w f32[B] trainable\noutput %x\n",
	            "parameters\t1 tensor, all trainable\ninputs\tf32[B]\noutputs\tf32[B]\nsymbols\tB 1..64\n"
	            "mode\teval, equal to eager with and without grad\n");
	check_brief("cleave-plan 1\nmodel \"m\"\nparam @w f32[4611686018427387904]\nparam @v f32[4]\noutput none\n",
	            "parameters\t2 tensors, none trainable\ninputs\tnone\noutputs\tnone\n"
	            "mode\teval, equal to eager with and without grad\n");
}

static void the_public_functions_take_a_plan_there_and_back(void **state)
{
	(void)state;
	clv_plan *p = NULL, *again = NULL, *other = NULL;
	char *text = NULL;
	static const char *const small = "cleave-plan 1\nmodel \"m\"\ninput %0 f32[2]\noutput %0\n";
	OK(clv_plan_parse(sample, strlen(sample), &p));
	OK(clv_plan_print(p, &text));
	OK(clv_plan_parse(text, strlen(text), &again));
	OK(clv_plan_parse(small, strlen(small), &other));
	assert_true(plan_equal(p, again));
	assert_false(plan_equal(p, other));
	clv_free(text);
	clv_plan_free(p);
	clv_plan_free(again);
	clv_plan_free(other);
}

static void the_public_functions_refuse_null(void **state)
{
	(void)state;
	clv_plan *p = NULL;
	char *text = NULL;
	FAILS(clv_plan_parse(NULL, 0, &p), CLV_E_INVALID, "clv_plan_parse");
	FAILS(clv_plan_parse(sample, strlen(sample), NULL), CLV_E_INVALID, "clv_plan_parse");
	OK(clv_plan_parse(sample, strlen(sample), &p));
	FAILS(clv_plan_print(NULL, &text), CLV_E_INVALID, "clv_plan_print");
	FAILS(clv_plan_print(p, NULL), CLV_E_INVALID, "clv_plan_print");
	assert_int_equal(clv_plan_node_count(NULL) + clv_plan_input_count(NULL) + clv_plan_output_count(NULL), 0);
	clv_plan_free(p);
	clv_plan_free(NULL);
	clv_free(NULL);
}

static void lists_that_nest_too_deeply_are_refused(void **state)
{
	(void)state;
	value_id x;
	plan *p = small_plan(&x);
	arg a = {.kind = ARG_NONE};
	node_id n;
	for (int i = 0; i < 200; i++)
		OK(plan_list(p, &a, 1, &a));
	OK(plan_node(p, &(node_spec){.op = "a::b", .args = &a, .nargs = 1, .scope = NONE}, &n));
	FAILS(plan_verify(p), CLV_E_VERIFY, "nested deeper than 100");
	strbuf b = STRBUF_INIT;
	plan_print(p, &b); /* a plan that does not verify prints, too */
	strbuf_free(&b);
	plan_free(p);
}

static void a_message_shows_the_start_of_a_long_node(void **state)
{
	(void)state;
	plan *p = load_ok(sample);
	str_id s;
	char *text = mem_alloc(100001);
	memset(text, 'x', 100000);
	OK(plan_str(p, text, 100000, &s));
	arg_of(p, 1, 3)->u.s = s;
	p->args.at[nod(p, 1)->results + 1].u.v = V3;
	FAILS(plan_verify(p), CLV_E_VERIFY, "xxx …): %3 is defined twice");
	assert_true(strlen(clv_last_error()) < 500);
	mem_free(text);
	plan_free(p);
}

/* Overwrites random bytes of the arrays and only asks for no crash: the verifier must look before it reads. */
static void scramble(plan *p, uint64_t *seed)
{
	struct {
		void *at;
		size_t bytes;
	} arrays[] = {
		{p->symbols.at, p->symbols.n * sizeof *p->symbols.at},
		{p->exprs.at, p->exprs.n * sizeof *p->exprs.at},
		{p->scopes.at, p->scopes.n * sizeof *p->scopes.at},
		{p->values.at, p->values.n * sizeof *p->values.at},
		{p->nodes.at, p->nodes.n * sizeof *p->nodes.at},
		{p->args.at, p->args.n * sizeof *p->args.at},
		{p->dims.at, p->dims.n * sizeof *p->dims.at},
		{p->ids.at, p->ids.n * sizeof *p->ids.at},
		{p->inputs.at, p->inputs.n * sizeof *p->inputs.at},
		{p->in_tree.at, p->in_tree.n * sizeof *p->in_tree.at},
		{p->out_tree.at, p->out_tree.n * sizeof *p->out_tree.at},
		{p->rebinds.at, p->rebinds.n * sizeof *p->rebinds.at},
		{p->ties.at, p->ties.n * sizeof *p->ties.at},
	};
	uint32_t which = random_below(seed, sizeof arrays / sizeof *arrays);
	uint32_t word = random_below(seed, (uint32_t)(arrays[which].bytes / 4));
	static const uint32_t odd[] = {0, 1, 2, 3, 5, 10, 100, 0x7FFFFFFF, 0x80000000, UINT32_MAX, UINT32_MAX - 1};
	uint32_t value = odd[random_below(seed, sizeof odd / sizeof *odd)];
	memcpy((char *)arrays[which].at + word * 4, &value, 4);
	for (uint32_t i = 0; i < p->args.n; i++) /* a bool that is neither true nor false is beyond any check in C */
		if (p->args.at[i].kind == ARG_BOOL)
			p->args.at[i].u.b = true;
	for (uint32_t i = 0; i < p->out_tree.n; i++)
		if (p->out_tree.at[i].kind == TREE_BOOL)
			p->out_tree.at[i].u.b = true;
	for (uint32_t i = 0; i < p->in_tree.n; i++)
		if (p->in_tree.at[i].kind == TREE_BOOL)
			p->in_tree.at[i].u.b = true;
}

static void a_scrambled_plan_never_crashes_the_verifier(void **state)
{
	(void)state;
	uint64_t seed = 11;
	for (int i = 0; i < 20000; i++) {
		plan *p = load_ok(sample);
		scramble(p, &seed);
		strbuf b = STRBUF_INIT;
		if (plan_verify(p) == CLV_OK)
			plan_equal(p, p);
		plan_print(p, &b);
		strbuf_free(&b);
		plan_free(p);
	}
}

#define T(f) cmocka_unit_test(f)

int main(void)
{
	const struct CMUnitTest building[] = {
		T(interned_strings_are_found_again),
		T(strings_stay_where_they_are),
		T(the_default_context_is_number_0),
		T(equal_contexts_are_one),
		T(a_scope_is_made_once_and_finds_its_parent),
		T(ids_that_do_not_exist_are_refused),
		T(a_result_is_defined_once),
		T(a_node_may_be_made_from_the_plans_own_arguments),
		T(every_dtype_has_a_name_that_reads_back),
		T(floats_and_complex_numbers_may_have_gradients),
		T(bytes_of_a_value_follow_its_shape),
		T(nodes_are_named_by_operator_and_occurrence),
		T(each_part_counts_for_equality),
		T(ties_may_stand_in_any_order),
	};
	const struct CMUnitTest verifying[] = {
		T(the_model_name_exists),
		T(the_grad_mode_exists),
		T(symbols_have_names),
		T(symbols_are_distinct),
		T(symbols_are_of_a_known_kind),
		T(there_are_not_more_sizes_than_a_model_can_have),
		T(symbols_have_ranges),
		T(expressions_have_operators),
		T(expressions_follow_their_operands),
		T(expressions_name_symbols_that_exist),
		T(sizes_name_expressions_that_exist),
		T(scopes_have_paths),
		T(scopes_are_distinct),
		T(scopes_follow_their_parents),
		T(only_the_root_has_no_parent),
		T(context_0_is_the_default),
		T(contexts_set_flags_that_exist),
		T(contexts_set_flags_of_their_mask),
		T(contexts_have_autocasts_that_exist),
		T(autocasts_have_dtypes),
		T(arguments_name_values_that_exist),
		T(arguments_name_strings_that_exist),
		T(arguments_name_dtypes_that_exist),
		T(arguments_name_layouts_that_exist),
		T(arguments_name_expressions_that_exist),
		T(arguments_have_a_kind),
		T(only_numbers_are_wrapped),
		T(lists_lie_before_their_use),
		T(lists_do_not_contain_themselves),
		T(values_have_a_kind),
		T(values_have_a_type),
		T(values_have_known_flags),
		T(tensors_have_a_dtype),
		T(tensors_have_a_device),
		T(tensors_have_sizes_that_exist),
		T(tensors_have_strides_that_exist),
		T(tensors_have_64_dimensions_at_most),
		T(tensors_have_no_expected_value),
		T(constant_sizes_are_not_negative),
		T(only_results_have_guards),
		T(only_parameters_are_trainable),
		T(only_constants_are_persistent),
		T(host_values_are_results),
		T(objects_have_object_type),
		T(host_values_have_no_tensor_marks),
		T(host_guards_have_an_expected_value),
		T(expected_values_are_guards),
		T(expected_values_have_the_type),
		T(objects_have_no_guards),
		T(expected_values_exist),
		T(names_have_an_end),
		T(module_tensors_have_names),
		T(module_tensors_have_names_of_their_own),
		T(ties_have_names_of_their_own),
		T(ties_belong_to_module_tensors),
		T(input_names_exist),
		T(object_types_exist),
		T(results_have_no_name),
		T(inputs_have_no_node),
		T(inputs_are_input_values),
		T(inputs_are_listed_once),
		T(inputs_are_all_listed),
		T(views_are_of_values_that_exist),
		T(views_are_not_of_views),
		T(views_are_of_tensors),
		T(views_are_of_earlier_values),
		T(views_are_of_earlier_results),
		T(inputs_are_no_views_of_parameters),
		T(operators_have_names),
		T(operators_have_a_namespace),
		T(node_arguments_exist),
		T(node_results_exist),
		T(node_writes_exist),
		T(node_scopes_exist),
		T(node_contexts_exist),
		T(node_places_exist),
		T(node_flags_are_known),
		T(results_are_values),
		T(lists_of_results_are_one_deep),
		T(values_are_used_after_their_definition),
		T(results_belong_to_their_node),
		T(results_are_defined_once),
		T(all_results_have_a_node),
		T(written_values_exist),
		T(written_values_are_tensors),
		T(written_values_are_defined),
		T(written_values_belong_to_the_node),
		T(groups_have_two_nodes),
		T(groups_are_of_nodes_that_exist),
		T(groups_make_tensors),
		T(trees_have_kinds),
		T(leaves_have_no_children),
		T(trees_have_all_their_parts),
		T(trees_end),
		T(dicts_have_pairs),
		T(objects_have_field_names),
		T(trees_name_values_that_exist),
		T(trees_name_expressions_that_exist),
		T(trees_name_strings_that_exist),
		T(a_plan_has_an_output),
		T(the_input_tree_is_a_pair),
		T(the_input_tree_has_arguments),
		T(the_input_tree_has_keywords),
		T(the_input_tree_holds_inputs),
		T(rebinds_name_values_that_exist),
		T(rebinds_are_of_module_tensors),
		T(rebinds_bind_tensors),
		T(rebinds_are_once_per_tensor),
		T(the_sample_itself_verifies),
		T(a_brief_has_a_line_for_each_fact),
		T(a_brief_leaves_out_sizes_that_it_cannot_know),
		T(the_public_functions_take_a_plan_there_and_back),
		T(the_public_functions_refuse_null),
		T(lists_that_nest_too_deeply_are_refused),
		T(a_message_shows_the_start_of_a_long_node),
		T(a_scrambled_plan_never_crashes_the_verifier),
	};
	int failed = cmocka_run_group_tests_name("building", building, NULL, NULL);
	return failed + cmocka_run_group_tests_name("verifying", verifying, NULL, NULL);
}
