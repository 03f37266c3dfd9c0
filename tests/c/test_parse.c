/* The parser: what it accepts besides the canonical text, and for each malformed construct where the error is. */
#include "support.h"

#define HEAD "cleave-plan 1\nmodel \"m\"\n" /* the case starts in line 3 */
#define TAIL "\noutput none\n"
#define LINE(text) HEAD text TAIL
#define X_LINE(text) HEAD "input %0 f32[2]\n" text TAIL /* the case is line 4 */

typedef struct bad {
	const char *name; /* what is wrong, as a sentence */
	const char *text;
	const char *error;
} bad;

static const bad cases[] = {
	/* the frame */
	{"an empty text is no plan", "", "1:1: expected \"cleave-plan 1\", found the end of the text"},
	{"blank lines alone are no plan", "\n ; x\n", "3:1: expected \"cleave-plan 1\""},
	{"another first line is no plan", "hello world\n", "1:1: expected \"cleave-plan 1\", found \"hello\""},
	{"the version must be known", "cleave-plan 2\n", "1:13: this is version 2 of the format"},
	{"the version must be a number", "cleave-plan x\n", "1:13: expected an integer, found \"x\""},
	{"the first line has nothing else", "cleave-plan 1 1\n", "1:15: expected the end of the line, found \"1\""},
	{"the model line is needed", "cleave-plan 1\noutput none\n", "3:1: the plan has no model line"},
	{"the model is given once", HEAD "model \"n\"\n", "3:1: there is a second model line"},
	{"the output line is needed", HEAD, "3:1: the plan has no output line; is the text complete?"},
	{"the output is given once", LINE("output none"), "4:1: there is a second output line"},
	{"the inputs are given once", LINE("inputs ((), {})\ninputs ((), {})"), "4:1: there is a second inputs line"},
	{"an unknown statement", LINE("frobnicate 1"), "3:1: expected a statement (model, symbol, scope,"},
	{"text after a statement", LINE("symbol B 1..2 3"), "3:15: expected the end of the line, found \"3\""},
	{"a control byte is no blank", LINE("symbol\x01 B 1..2"), "3:7: expected the name of the symbol, found \"\\x01\""},
	/* model, symbols, scopes */
	{"the model needs a string", "cleave-plan 1\nmodel m\n", "2:7: expected a string, found \"m\""},
	{"training is yes or no", "cleave-plan 1\nmodel \"m\" training=1\n", "2:20: expected yes or no, found \"1\""},
	{"grad has four words", "cleave-plan 1\nmodel \"m\" grad=on\n", "2:16: expected no, yes, any or unproven"},
	{"a symbol needs a name", LINE("symbol 5..6"), "3:9: expected an integer"},
	{"a symbol's name is no keyword", LINE("symbol none 1..2"), "3:8: \"none\" cannot name a symbol"},
	{"a symbol has two ends", LINE("symbol B 1.5"), "3:12: expected '.', found \"5\""},
	{"a symbol's range is not empty", LINE("symbol B 5..4"), "3:8: symbol B has no valid range: 5..4"},
	{"a symbol's range is not negative", LINE("symbol B -1..4"), "3:10: expected an integer, found \"-1..4\""},
	{"a symbol is declared once", LINE("symbol B 1..2\nsymbol B 1..2"), "4:8: there is already a symbol B"},
	{"a scope needs a path", LINE("scope (x) \"C\""), "3:7: expected a module path, found \"(x)\""},
	{"a scope needs a class", LINE("scope \"\" C"), "3:10: expected a string, found \"C\""},
	{"a scope needs a parent", LINE("scope a.b \"C\""),
     "3:7: scope \"a.b\" has no parent: declare the root scope \"\" first"},
	{"a scope is declared once", LINE("scope \"\" \"C\"\nscope \"\" \"C\""), "4:7: scope \"\" is declared twice"},
	{"a path has no NUL byte", LINE("scope \"\\x00\" \"C\""), "3:7: a module path cannot hold a NUL byte"},
	/* declarations */
	{"an input needs a label", LINE("input x f32[2]"), "3:7: expected a label like %0, found \"x\""},
	{"a label needs a name", LINE("input % f32[2]"), "3:9: expected a name for the label, found \"f32[2]\""},
	{"an input needs a type", LINE("input %0"), "3:9: expected a tensor type like f32[2,3], found the end of the line"},
	{"an input is a tensor", LINE("input %0 int"), "3:10: expected a tensor type like f32[2,3], found \"int\""},
	{"a type needs brackets", LINE("input %0 f32"), "3:13: expected '[', found the end of the line"},
	{"a shape is closed", LINE("input %0 f32[2,3"), "3:17: expected ',' or ']', found the end of the line"},
	{"a shape has no empty size", LINE("input %0 f32[2,]"), "3:16: expected an integer expression, found \"]\""},
	{"a size is no float", LINE("input %0 f32[2.5]"), "3:15: expected ',' or ']', found \".5]\""},
	{"a size names a known symbol", LINE("input %0 f32[N]"), "3:14: there is no symbol N"},
	{"a label is defined once", X_LINE("input %0 f32[2]"), "4:7: %0 is defined twice"},
	{"strides match the sizes", LINE("input %0 f32[2,3] strides(1)"), "3:26: 1 strides for 2 sizes"},
	{"strides are given once", LINE("input %0 f32[2] strides(1) strides(1)"), "3:35: the strides are given twice"},
	{"a device is a word", LINE("input %0 f32[2] device=*"), "3:24: expected a device, found \"*\""},
	{"a name is a string", LINE("input %0 f32[2] name=x"), "3:22: expected a string, found \"x\""},
	{"a name has no NUL byte", LINE("input %0 f32[2] name=\"\\x00\""), "3:22: this string cannot hold a NUL byte"},
	{"only parameters are trainable", LINE("buffer @b f32[2] trainable"),
     "3:18: expected the end of the line, found \"trainable\""},
	{"only constants are persistent", LINE("param @b f32[2] persistent"), "3:17: expected the end of the line"},
	{"only results have guards", LINE("input %0 f32[2] guard"), "3:17: expected the end of the line"},
	{"a parameter needs @", LINE("param w f32[2]"), "3:7: expected '@', found \"w\""},
	{"a parameter needs a name", LINE("param @ f32[2]"), "3:9: expected a name, found \"f32[2]\""},
	{"a parameter is declared once", LINE("param @w f32[2]\nbuffer @w f32[2]"),
     "4:8: there is already a module tensor @w"},
	{"a tie needs @", LINE("param @w f32[2] tied=v"), "3:22: expected '@', found \"v\""},
	{"a view names a known value", LINE("param @w f32[2] view-of @v"), "3:25: @v is not declared before this line"},
	{"a constant needs #", LINE("const %0 f32[2]"), "3:7: expected a label like #0, found \"%0\""},
	{"an object needs a type name", LINE("object #0 x"), "3:11: expected a string, found \"x\""},
	{"a rebind needs =", LINE("param @w f32[2]\nrebind @w @w"), "4:11: expected '=', found \"@w\""},
	/* nodes */
	{"an operator has a namespace", X_LINE("%1 = relu(%0) -> f32[2]"),
     "4:6: expected an operator like aten::relu, found \"relu(%0)\""},
	{"an operator has a name", X_LINE("aten::(%0)"), "4:1: expected a statement"},
	{"an operator has arguments", X_LINE("%1 = aten::relu -> f32[2]"), "4:17: expected '(', found \"->\""},
	{"arguments are closed", X_LINE("%1 = aten::relu(%0 -> f32[2]"), "4:20: expected ',' or ')', found \"->\""},
	{"arguments are separated", X_LINE("aten::relu(%0 %0)"), "4:15: expected ',' or ')', found \"%0)\""},
	{"arguments have no last comma", X_LINE("aten::relu(%0,)"), "4:15: expected a value or a literal, found \")\""},
	{"a value is defined before its use", X_LINE("aten::relu(%7)"), "4:12: %7 is not defined before its use"},
	{"a result is not its own argument", X_LINE("%1 = aten::relu(%1) -> f32[2]"),
     "4:17: %1 is not defined before its use"},
	{"a value has a name", X_LINE("aten::relu(%)"), "4:12: expected a name after '%'"},
	{"a module tensor is declared before", X_LINE("aten::relu(@w)"), "4:12: @w is not declared before this line"},
	{"a list is closed", X_LINE("aten::f([1, 2)"), "4:14: expected ',' or ']', found \")\""},
	{"results need an arrow", X_LINE("%1 = aten::relu(%0)"), "4:20: expected '->' and the types of the results"},
	{"each result has a type", X_LINE("%1, %2 = aten::f(%0) -> f32[2]"),
     "4:31: expected ',' and one type for each result"},
	{"each type has a result", X_LINE("%1 = aten::f(%0) -> f32[2], f32[2]"),
     "4:27: expected writes, in, at, {…} or the end of the line, found \",\""},
	{"a list of results has a list of types", X_LINE("[%1] = aten::f(%0) -> f32[2]"),
     "4:23: expected '[', found \"f32[2]\""},
	{"a list of results has all types", X_LINE("[%1, %2] = aten::f(%0) -> [f32[2]]"),
     "4:34: expected ',' and one type for each result, found \"]\""},
	{"lists of results are one deep", X_LINE("[[%1]] = aten::f(%0) -> [[f32[2]]]"),
     "4:2: expected a label like %0, found \"[%1]]\""},
	{"results are separated from the operator", X_LINE("%1 aten::f(%0)"),
     "4:4: expected ',' or '=', found \"aten::f(%0)\""},
	{"no result has type none", X_LINE("_ = aten::f(%0) -> f32[2]"), "4:20: expected none, as the result is _"},
	{"a named result has a type", X_LINE("%1 = aten::f(%0) -> none"),
     "4:21: expected a tensor type like f32[2,3], found \"none\""},
	{"a result is defined once", X_LINE("%0 = aten::f() -> f32[2]"), "4:1: %0 is defined twice"},
	{"an expected value has the type", X_LINE("%1 = aten::f(%0) -> bool = 1"), "4:28: this is no literal of type bool"},
	{"an expected value is a literal", X_LINE("%1 = aten::f(%0) -> int = %0"), "4:27: this is no literal of type int"},
	{"an object has no expected value", X_LINE("%1 = aten::f(%0) -> object = none"),
     "4:30: this is no literal of type object"},
	{"writes names values", X_LINE("aten::f(%0) writes"),
     "4:19: expected a value (%x, @name or #x), found the end of the line"},
	{"in names a known scope", X_LINE("aten::f(%0) in a.b"), "4:16: scope \"a.b\" is not declared before this line"},
	{"at names a place", X_LINE("aten::f(%0) at f.py"), "4:16: expected a string, found \"f.py\""},
	{"a clause is given once", X_LINE("aten::f(%0) at \"a\" at \"b\""), "4:20: this is given twice"},
	{"an unknown attribute", X_LINE("aten::f(%0) {fast}"),
     "4:14: expected nograd, inference, autocast=, flags=, random, host or impure"},
	{"attributes are closed", X_LINE("aten::f(%0) {random"), "4:20: expected ',' or '}', found the end of the line"},
	{"autocast has a dtype", X_LINE("aten::f(%0) {autocast=cpu:x}"), "4:27: expected a dtype, found \"x}\""},
	{"autocast has cache or nothing", X_LINE("aten::f(%0) {autocast=cpu:f32:x}"), "4:31: expected cache, found \"x}\""},
	{"a flag is known", X_LINE("aten::f(%0) {flags=x:on}"), "4:20: expected a flag like sdp_math, found \"x:on}\""},
	{"a flag is on or off", X_LINE("aten::f(%0) {flags=cudnn:1}"), "4:26: expected on or off, found \"1}\""},
	/* literals */
	{"a string is closed in its line", LINE("a::f(\"abc"), "3:6: the string is not closed in its line"},
	{"a string ends before the text does", HEAD "a::f(\"abc", "3:6: the string is not closed in its line"},
	{"an escape is known", LINE("a::f(\"\\q\")"), "3:7: unknown escape"},
	{"a hex escape has two digits", LINE("a::f(\"\\x1\")"), "3:7: unknown escape"},
	{"an integer fits into 64 bits", LINE("a::f(9223372036854775808)"), "3:6: the integer does not fit into 64 bits"},
	{"a negative integer fits into 64 bits", LINE("a::f(-9223372036854775809)"),
     "3:7: the integer does not fit into 64 bits"},
	{"a float fits into a double", LINE("a::f(1e999)"), "3:6: the number is too large for a double"},
	{"a dtype is known", LINE("a::f(dtype:f33)"), "3:12: expected a dtype, found \"f33)\""},
	{"a layout is known", LINE("a::f(layout:x)"), "3:13: expected a layout, found \"x)\""},
	{"a memory format is known", LINE("a::f(memory:x)"), "3:13: expected a memory format, found \"x)\""},
	{"num holds a number", LINE("a::f(num(\"x\"))"), "3:10: num(…) holds a number or a bool"},
	{"num is not nested", LINE("a::f(num(num(1)))"), "3:10: num(…) holds a number or a bool"},
	{"complex holds floats", LINE("a::f(complex(1, 2))"),
     "3:14: expected a number with a point, inf or nan, found \"1,\""},
	{"a literal is known", LINE("a::f(!)"), "3:6: expected a value or a literal, found \"!)\""},
	/* expressions */
	{"an expression needs an operand", LINE("symbol B 1..2\na::f(B+)"),
     "4:8: expected an integer expression, found \")\""},
	{"a parenthesis is closed", LINE("symbol B 1..2\na::f((B+1)"),
     "4:11: expected ',' or ')', found the end of the line"},
	{"min takes two", LINE("symbol B 1..2\na::f(min(B))"), "4:11: expected ',', found \"))\""},
	{"there is no true division", LINE("symbol B 1..2\na::f(B/2)"), "4:7: expected ',' or ')', found \"/2)\""},
	{"a float cannot be added", LINE("symbol B 1..2\na::f(B+1.5)"), "4:9: expected ',' or ')', found \".5)\""},
	/* trees */
	{"a tuple is closed", HEAD "output (1, 2\n", "3:13: expected ',' or ')', found the end of the line"},
	{"a list in a tree is closed", HEAD "output [1)\n", "3:10: expected ',' or ']', found \")\""},
	{"a dict has pairs", HEAD "output {1}\n", "3:10: expected ':', found \"}\""},
	{"a dict is closed", HEAD "output {1: 2\n", "3:13: expected ',' or '}', found the end of the line"},
	{"an object's fields are strings", HEAD "output object \"m:C\" {1: 2}\n", "3:22: expected a string, found \"1:\""},
	{"an object has a class", HEAD "output object {}\n", "3:15: expected a string, found \"{}\""},
	{"an opaque leaf has a text", HEAD "output opaque 1\n", "3:15: expected a string, found \"1\""},
	{"bytes are a string", HEAD "output bytes:1\n", "3:14: expected a string, found \"1\""},
	{"int( is closed", HEAD "output int(1\n", "3:13: expected ')', found the end of the line"},
	{"a dtype is no part of a tree", HEAD "output dtype:f32\n",
     "3:8: this cannot stand in a tree of inputs or outputs"},
	{"a wrapped number is no part of a tree", HEAD "output num(1)\n",
     "3:8: this cannot stand in a tree of inputs or outputs"},
	{"an output is needed", HEAD "output\n", "3:7: expected a value or a literal, found the end of the line"},
};

static void is_refused_at_its_place(void **state)
{
	const bad *b = *state;
	plan *p = NULL;
	clv_status st = plan_parse(b->text, strlen(b->text), &p);
	if (st != CLV_E_PARSE || strncmp(status_message(), b->error, strlen(b->error)) != 0)
		fail_msg("status %d\n  got  %s\n  want %s", st, st ? status_message() : "", b->error);
	assert_null(p);
}

static void check_canonical(const char *text, const char *want)
{
	plan *p = load_ok(text);
	char *printed = print_ok(p);
	assert_string_equal(printed, want);
	mem_free(printed);
	plan_free(p);
}

static void the_example_of_the_header_is_a_plan(void **state)
{
	(void)state;
	check_canonical("cleave-plan 1\nmodel \"twice\"\ninput %0 f32[2,3] name=\"x\"\n"
	                "%1 = aten::add.Tensor(%0, %0, 1) -> f32[2,3]\noutput %1\n",
	                "cleave-plan 1\nmodel \"twice\" training=no grad=any\ninput %0 f32[2,3] name=\"x\"\n"
	                "%1 = aten::add.Tensor(%0, %0, 1) -> f32[2,3]\noutput %1\n");
}

static void blanks_comments_and_order_are_free(void **state)
{
	(void)state;
	check_canonical("\n; before\n  cleave-plan 1 ; here\r\n\tmodel\"m\"grad=no training = yes\n\n"
	                "input %x f32 [ 2 , 3 ]device = cuda:0 name = \"a;b\" ; c\n"
	                "%y=a::f( %x ,[ 1,2 ] )->f32[]at\"f\"{host , random}\n"
	                "param @w f32[1]\n"
	                "output(%y,@w)",
	                "cleave-plan 1\nmodel \"m\" training=yes grad=no\ninput %0 f32[2,3] device=cuda:0 name=\"a;b\"\n"
	                "param @w f32[1]\n%1 = a::f(%0, [1, 2]) -> f32[] {random, host} at \"f\"\noutput (%1, @w)\n");
}

static void labels_may_be_any_names(void **state)
{
	(void)state;
	check_canonical(
		HEAD
		"input %x.1 f32[]\nconst #the_1 f32[]\n%9 = a::f(%x.1) -> f32[]\n%1 = a::f(%9, #the_1) -> f32[]\noutput %1\n",
		"cleave-plan 1\nmodel \"m\" training=no grad=any\ninput %0 f32[]\nconst #0 f32[]\n%1 = a::f(%0) -> f32[]\n"
		"%2 = a::f(%1, #0) -> f32[]\noutput %2\n");
}

static void expressions_follow_the_usual_precedence(void **state)
{
	(void)state;
	check_canonical(
		HEAD
		"symbol B 1..9\na::f(1+2*B, (1+B)*2, -B, - 3, B - -3, B-1-1, 2*B%3//4, -2*B, (3), max(B,1)-0)\noutput none\n",
		"cleave-plan 1\nmodel \"m\" training=no grad=any\nsymbol B 1..9\n"
		"a::f(2*B+1, 2*(B+1), 0-B, -3, B+3, B-2, 2*B%3//4, -2*B, 3, max(B, 1))\noutput none\n");
}

static void one_element_tuples_may_leave_the_comma_out(void **state)
{
	(void)state;
	check_canonical(HEAD "input %0 f32[]\ninputs ((%0), {})\noutput ((1), (2,), (), [3,], {4: 5,})\n",
	                "cleave-plan 1\nmodel \"m\" training=no grad=any\ninput %0 f32[]\ninputs ((%0,), {})\n"
	                "output ((1,), (2,), (), [3], {4: 5})\n");
}

static void strings_read_all_their_escapes(void **state)
{
	(void)state;
	plan *p = parse_ok(HEAD "output \"\\\"\\\\\\n\\t\\x00\\xfF;\xc3\xa9\"\n");
	const str *s = &p->strs.at[p->out_tree.at[0].u.s];
	assert_int_equal(s->n, 9);
	assert_memory_equal(s->s, "\"\\\n\t\0\xff;\xc3\xa9", 9);
	plan_free(p);
}

static void nesting_is_bounded(void **state)
{
	(void)state;
	static const struct {
		const char *before, *open, *error;
	} deep[] = {
		{HEAD "a::f(", "[", "nested deeper than 100"},
		{HEAD "output ", "(", "nested deeper than 100"},
		{HEAD "output ", "{1: ", "nested deeper than 100"},
		{HEAD "output ", "object \"c\" {\"f\": ", "nested deeper than 100"},
		{HEAD "a::f(", "(", "the expression is nested too deeply"},
		{HEAD "a::f(", "-", "the expression is nested too deeply"},
		{HEAD "a::f(", "min(1, ", "the expression is nested too deeply"},
		{HEAD "a::f(", "num(", "nested deeper than 100"},
	};
	for (size_t i = 0; i < sizeof deep / sizeof *deep; i++) {
		strbuf b = STRBUF_INIT;
		strbuf_puts(&b, deep[i].before);
		for (int k = 0; k < 100000; k++)
			strbuf_puts(&b, deep[i].open);
		char *text = taken(&b);
		plan *p = NULL;
		FAILS(plan_parse(text, strlen(text), &p), CLV_E_PARSE, deep[i].error);
		mem_free(text);
	}
}

static void a_long_expression_is_refused(void **state)
{
	(void)state;
	strbuf b = STRBUF_INIT;
	strbuf_puts(&b, HEAD "symbol B 1..2\na::f(B");
	for (int k = 0; k < 1000; k++)
		strbuf_puts(&b, "*B");
	strbuf_puts(&b, ")" TAIL);
	char *text = taken(&b);
	plan *p = NULL;
	FAILS(plan_parse(text, strlen(text), &p), CLV_E_PARSE, "4:7: an expression has more than 256 terms");
	mem_free(text);
}

static void the_public_function_also_verifies(void **state)
{
	(void)state;
	const char *text = HEAD "input %0 f32[0-1]\noutput %0\n";
	clv_plan *p = NULL;
	FAILS(clv_plan_parse(text, strlen(text), &p), CLV_E_VERIFY, "%0 has a negative size");
	FAILS(clv_plan_parse(NULL, 0, &p), CLV_E_INVALID, "needs a text");
	assert_null(p);
}

int main(void)
{
	const struct CMUnitTest good[] = {
		cmocka_unit_test(the_example_of_the_header_is_a_plan),
		cmocka_unit_test(blanks_comments_and_order_are_free),
		cmocka_unit_test(labels_may_be_any_names),
		cmocka_unit_test(expressions_follow_the_usual_precedence),
		cmocka_unit_test(one_element_tuples_may_leave_the_comma_out),
		cmocka_unit_test(strings_read_all_their_escapes),
		cmocka_unit_test(nesting_is_bounded),
		cmocka_unit_test(a_long_expression_is_refused),
		cmocka_unit_test(the_public_function_also_verifies),
	};
	enum { CASES = sizeof cases / sizeof *cases };
	struct CMUnitTest tests[CASES];
	for (size_t i = 0; i < CASES; i++)
		tests[i] = (struct CMUnitTest){cases[i].name, is_refused_at_its_place, NULL, NULL, (void *)&cases[i]};
	int failed = cmocka_run_group_tests_name("parse", good, NULL, NULL);
	return failed + cmocka_run_group_tests_name("malformed text", tests, NULL, NULL);
}
