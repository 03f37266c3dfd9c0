/* The report: what is in the page, that nothing in a plan can get out of its data, and what is refused. What the page does
 * with it is tested in a browser (tests/browser/). */
#include "support.h"

#include <jansson.h>

#include "emit/html.h"
#include "random_plan.h"

static const char *const text =
	"cleave-plan 1\n"
	"model \"Net\"\n"
	"symbol B 1..8\n"
	"scope \"\" \"Net\"\n"
	"scope body \"Sequential\"\n"
	"scope body.0 \"Linear\"\n"
	"input %x f32[B,2] name=\"x\"\n"
	"param @body.0.weight f32[4,2] trainable\n"
	"param @body.0.bias f32[4]\n"
	"buffer @mean f32[4]\n"
	"%a = aten::linear(%x, @body.0.weight, @body.0.bias) -> f32[B,4] in body.0 at \"linear.py:134\"\n"
	"%b = aten::sub_.Tensor(%a, @mean, 1) -> f32[B,4] view-of %a writes %a in body\n"
	"%c = aten::reshape(%b, [4*B]) -> f32[4*B] view-of %a\n"
	"%d = aten::is_nonzero(%c) -> bool = true {host}\n"
	"%e = aten::add.Tensor(%c, %c, 1) -> f32[4*B] {nograd}\n"
	"output (%e, %x)\n";

/* ---- reading a page ------------------------------------------------------------------------------------------------- */

static char *page_of(const plan *p, const html_spec *o)
{
	const html_spec none = {.frontier = NONE};
	char *page = NULL;
	if (plan_html(p, o ? o : &none, &page) != CLV_OK)
		fail_msg("%s", status_message());
	return page;
}

static size_t count(const char *s, const char *part)
{
	size_t n = 0;
	for (; (s = strstr(s, part)); s += strlen(part))
		n++;
	return n;
}

/* The data of a page. It ends at the first end of a script, as a browser sees it. Caller frees. */
static json_t *data_of(const char *page)
{
	static const char open[] = "<script type=\"application/json\" id=\"data\">";
	json_error_t error;
	const char *start = strstr(page, open), *end;
	assert_non_null(start);
	assert_non_null(end = strstr(start, "</script"));
	start += sizeof open - 1;
	json_t *data = json_loadb(start, (size_t)(end - start), JSON_ALLOW_NUL, &error);
	if (!data)
		fail_msg("%d:%d: %s", error.line, error.column, error.text);
	return data;
}

static json_t *make_data(const char *plan_text, const html_spec *o)
{
	plan *p = load_ok(plan_text);
	char *page = page_of(p, o);
	json_t *data = data_of(page);
	clv_free(page);
	plan_free(p);
	return data;
}

static json_int_t int_at(const json_t *data, const char *column, size_t i)
{
	const json_t *x = json_array_get(json_object_get(data, column), i);
	if (!json_is_integer(x))
		fail_msg("%s[%zu] is no integer", column, i);
	return json_integer_value(x);
}

static const char *string_at(const json_t *data, const char *column, size_t i)
{
	json_int_t id = int_at(data, column, i);
	return id < 0 ? NULL : json_string_value(json_array_get(json_object_get(data, "strings"), (size_t)id));
}

static void dumps_as(const json_t *data, const char *key, const char *want)
{
	char *got = json_dumps(json_object_get(data, key), JSON_COMPACT | JSON_ENCODE_ANY);
	if (!got || strcmp(got, want) != 0)
		fail_msg("%s is %s, not %s", key, got, want);
	free(got);
}

/* ---- tests ---------------------------------------------------------------------------------------------------------- */

static void the_data_has_the_plan_and_its_frontiers(void **state)
{
	(void)state;
	html_spec o = {.frontier = NONE};
	o.sizes = (clv_sizes){(const char *[]){"B"}, (const int64_t[]){3}, 1};
	o.frontier = 2;
	json_t *d = make_data(text, &o);
	assert_string_equal(json_string_value(json_object_get(d, "title")), "Net");
	dumps_as(d, "chosen", "2");
	dumps_as(d, "nodeName", "[\"linear\",\"sub_\",\"reshape\",\"is_nonzero\",\"add\"]");
	assert_string_equal(string_at(d, "nodeOp", 1), "aten::sub_.Tensor");
	assert_string_equal(string_at(d, "nodeAt", 0), "linear.py:134");
	assert_string_equal(string_at(d, "scopePath", (size_t)int_at(d, "nodeScope", 0)), "body.0");
	dumps_as(d, "nodeArgs", "[[0,1,2],[4,3],[5],[6],[6,6]]");
	dumps_as(d, "nodeResults", "[[4],[5],[6],[7],[8]]");
	dumps_as(d, "nodeWrites", "[0,[4],0,0,0]");
	dumps_as(d, "nodeFlags", "[0,0,0,2,8]");
	dumps_as(d, "outputs", "[8,0]");
	dumps_as(d, "bytes", "[72,72,72,72]"); /* 3*4*4 and the input, 3*2*4 */
	dumps_as(d, "formulas", "[0,\"24*B\"]");
	dumps_as(d, "prefixFlops", "[48,60,72,72]");
	assert_string_equal(json_string_value(json_array_get(json_object_get(d, "nodeLine"), 2)),
	                    "%3 = aten::reshape(%2, [4*B]) -> f32[4*B] view-of %1");
	json_decref(d);
}

/* What C counts as INT64_MAX is not known, or too large. */
static void amount_is(const json_t *data, const char *column, size_t i, int64_t want)
{
	if (want == INT64_MAX)
		assert_true(json_is_null(json_array_get(json_object_get(data, column), i)));
	else
		assert_int_equal(int_at(data, column, i), want);
}

static void the_frontiers_of_random_plans_are_those_of_the_public_functions(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 150; seed++) {
		plan *p = random_plan(seed);
		clv_frontiers *f = NULL;
		char *page = page_of(p, NULL);
		json_t *d = data_of(page);
		OK(clv_frontiers_create(p, NULL, &f));
		assert_int_equal(json_array_size(json_object_get(d, "bytes")), clv_frontiers_count(f));
		for (uint32_t i = 0; i < clv_frontiers_count(f); i++) {
			clv_frontier c = {sizeof c};
			OK(clv_frontiers_get(f, i, &c));
			amount_is(d, "bytes", i, c.boundary_bytes);
			amount_is(d, "tensors", i, c.boundary_tensors);
			amount_is(d, "prefixParams", i, c.prefix_params);
			amount_is(d, "suffixMemory", i, c.suffix_memory);
		}
		clv_frontiers_free(f);
		json_decref(d);
		clv_free(page);
		plan_free(p);
	}
}

/* The text is that of the public function, or NULL where there is none or it is long. */
static clv_status check_formula(void *ctx, uint32_t i, const char *formula)
{
	char *want = NULL;
	clv_status st = clv_frontiers_bytes_text(ctx, i, &want);
	if (st == CLV_OK && formula)
		assert_string_equal(formula, want);
	else
		assert_true(!formula && (st == CLV_E_OVERFLOW || count(want, "+") + count(want, "-") >= FORMULA_TERMS));
	clv_free(want);
	return CLV_OK;
}

static void formulas_in_one_walk_are_those_one_by_one(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 400; seed++) {
		plan *p = random_plan(seed);
		clv_frontiers *f = NULL;
		OK(clv_frontiers_create(p, NULL, &f));
		OK(frontiers_formulas(f, check_formula, f));
		clv_frontiers_free(f);
		plan_free(p);
	}
}

/* Products of more symbols than are written down: those frontiers go without a formula, the others keep theirs. */
static void what_cannot_be_written_down_has_no_formula(void **state)
{
	(void)state;
	json_t *d =
		make_data("cleave-plan 1\nmodel \"m\"\nsymbol B 1..2\ninput %x f32[B]\n"
	              "%a = a::b(%x) -> f32[B,B,B,B,B,B,B,B,B,B,B,B,B]\n%b = a::c(%a) -> f32[B]\n%c = a::d(%b) -> f32[B]\n"
	              "output %c\n",
	              NULL);
	dumps_as(d, "formulas", "[0,null,1,\"4*B\"]");
	json_decref(d);
}

/* Names that would close the script, open a tag or a comment, or break a line, everywhere a plan has names. */
static void hostile_names_stay_inside_the_data(void **state)
{
	(void)state;
	static const char hostile[] = "</script><script>alert(1)</script><!--&\\\"'\xe2\x80\xa8\xe2\x80\xa9\xff";
	strbuf q = STRBUF_INIT, b = STRBUF_INIT;
	for (size_t i = 0; i < sizeof hostile - 1; i++)
		strbuf_printf(&q, "\\x%02x", (unsigned char)hostile[i]);
	char *n = taken(&q);
	strbuf_printf(&b, "cleave-plan 1\nmodel \"%s\"\nscope \"\" \"%s\"\nscope \"%s\" \"%s\"\n", n, n, n, n);
	strbuf_printf(&b, "input %%x f32[2] name=\"%s\" device=\"%s\"\nparam @\"%s\" f32[2]\nobject #o \"%s\"\n", n, n, n,
	              n);
	strbuf_printf(&b, "%%a = aten::f(%%x, @\"%s\", #o, \"%s\") -> f32[2] in \"%s\" at \"%s\"\n", n, n, n, n);
	strbuf_puts(&b, "%b = aten::g(%a) -> f32[2]\noutput %b\n");
	char *source = taken(&b);
	html_spec o = {.frontier = NONE};
	o.title = hostile;
	o.nsegments = 1;
	o.segment_of_node = (const uint32_t[]){0, 0};
	o.segment_compiled = (const bool[]){false};
	o.segment_reason = (const char *[]){hostile};
	plan *p = load_ok(source), *plain = load_ok(text);
	char *page = page_of(p, &o), *other = page_of(plain, NULL);
	assert_null(strstr(page, "alert(1)</script"));
	assert_null(strstr(page, "<script>alert"));
	assert_null(strstr(page, "<!--"));
	assert_int_equal(count(page, "<script"), count(other, "<script"));
	assert_int_equal(count(page, "</script"), count(other, "</script"));
	assert_null(strstr(strstr(page, "id=\"data\""), "\xe2\x80\xa8"));
	assert_true(utf8_valid(page, strlen(page)));
	json_t *d = data_of(page);
	assert_string_equal(string_at(d, "nodeAt", 0),
	                    "</script><script>alert(1)</script><!--&\\\"'\xe2\x80\xa8\xe2\x80\xa9\xef\xbf\xbd");
	json_decref(d);
	clv_free(page);
	clv_free(other);
	mem_free(n);
	mem_free(source);
	plan_free(p);
	plan_free(plain);
}

static void strings_of_json_hold_any_bytes(void **state)
{
	(void)state;
	strbuf b = STRBUF_INIT;
	strbuf_json(&b, "a\0\"\\\n<>&\x7f\xc3\xa9\xc3\xe2\x80\xa7\xe2\x80\xa8\xc2\x9b\xf0\x9f\x98\x80", 24);
	char *got = taken(&b);
	assert_string_equal(
		got, "\"a\\u0000\\u0022\\u005c\\u000a\\u003c\\u003e\\u0026\\u007f\xc3\xa9\\ufffd\xe2\x80\xa7\\u2028\\u009b"
			 "\xf0\x9f\x98\x80\"");
	mem_free(got);
}

static void the_page_is_whole_and_asks_for_nothing(void **state)
{
	(void)state;
	plan *p = load_ok(text);
	char *page = page_of(p, NULL);
	assert_int_equal(strncmp(page, "<!DOCTYPE html>", 15), 0);
	assert_string_equal(page + strlen(page) - 8, "</html>\n");
	assert_non_null(strstr(page, "<title>Net</title>"));
	assert_non_null(strstr(page, "content=\"default-src 'none'; script-src 'sha256-"));
	assert_null(strstr(page, "{{"));
	assert_null(strstr(page, " src="));
	assert_null(strstr(page, "https:"));
	assert_null(strstr(page, "@import"));
	assert_int_equal(count(page, "http:"), count(page, "http://www.w3.org/2000/svg"));
	clv_free(page);
	plan_free(p);
}

static void the_same_plan_gives_the_same_bytes(void **state)
{
	(void)state;
	plan *p = load_ok(text), *q = load_ok(text);
	char *a = page_of(p, NULL), *b = page_of(q, NULL);
	assert_string_equal(a, b);
	clv_free(a);
	clv_free(b);
	plan_free(p);
	plan_free(q);
}

static void what_is_known_of_stages_is_in_the_data(void **state)
{
	(void)state;
	html_spec o = {.frontier = NONE};
	const stage_score stages[] = {
		{.device = 1,
	     .nodes = 3,
	     .fwd_us = 2,
	     .bwd_us = 4,
	     .comm_us = 0.5,
	     .out_bytes = 64,
	     .param_bytes = 256,
	     .memory_bytes = INT64_MAX,
	     .in_flight = 2},
		{.nodes = 2, .fwd_us = 3, .in_bytes = 64, .relayed_bytes = 16, .memory_bytes = 128, .in_flight = 1}};
	o.nstages = 2;
	o.stage_of_node = (const uint32_t[]){0, 0, 1, 1, 1};
	o.stages = stages;
	o.ndevices = 2;
	o.device_names = (const char *const[]){"cpu", "</script>"};
	o.lower_bound_us = 4.75;
	json_t *d = make_data(text, &o);
	dumps_as(d, "stageCost", "[6.5,3]");
	dumps_as(d, "stageFacts", "[[1,2,4,0.5,0,64,0,256,null,2],[0,3,0,0,64,0,16,0,128,1]]");
	dumps_as(d, "devices", "[\"cpu\",\"</script>\"]");
	dumps_as(d, "lowerBound", "4.75");
	json_decref(d);
}

static void stages_and_segments_are_in_the_data(void **state)
{
	(void)state;
	html_spec o = {.frontier = NONE};
	o.nstages = 2;
	o.stage_of_node = (const uint32_t[]){0, 0, 1, 1, 1};
	o.nsegments = 2;
	o.segment_of_node = (const uint32_t[]){0, 1, 1, 0, 0};
	o.segment_compiled = (const bool[]){true, false};
	o.segment_reason = (const char *[]){NULL, "it writes in place"};
	json_t *d = make_data(text, &o);
	dumps_as(d, "stages", "2");
	dumps_as(d, "stageOf", "[0,0,1,1,1]");
	dumps_as(d, "segments", "[[1,null],[0,\"it writes in place\"]]");
	dumps_as(d, "segmentOf", "[0,1,1,0,0]");
	json_decref(d);
	o = (html_spec){.frontier = NONE};
	o.nsegments = 1;
	o.segment_of_node = (const uint32_t[]){0, 0, 0, 0, 0};
	d = make_data(text, &o);
	dumps_as(d, "segments", "[[1,null]]");
	json_decref(d);
}

static void a_plan_with_nothing_to_cut_has_a_page(void **state)
{
	(void)state;
	json_t *d = make_data("cleave-plan 1\nmodel \"m\"\noutput none\n", NULL);
	dumps_as(d, "nodeOp", "[]");
	dumps_as(d, "bytes", "[]");
	json_decref(d);
	d = make_data("cleave-plan 1\nmodel \"m\"\ninput %x f32[1]\n%a = a::b(%x) -> f32[1]\noutput %a\n", NULL);
	dumps_as(d, "bytes", "[]");
	json_decref(d);
}

static void refused(const plan *p, html_spec o, const char *why)
{
	char *out = NULL;
	FAILS(plan_html(p, &o, &out), CLV_E_INVALID, why);
	assert_null(out);
}

static void wrong_options_are_refused(void **state)
{
	(void)state;
	plan *p = load_ok(text);
	char *out = NULL;
	const html_spec none = {.frontier = NONE};
	html_spec o = none;
	FAILS(clv_plan_html(NULL, NULL, &out), CLV_E_INVALID, "needs a plan");
	FAILS(clv_plan_html(p, NULL, NULL), CLV_E_INVALID, "a place");
	clv_html_options larger = {.size = sizeof larger + 1};
	FAILS(clv_plan_html(p, &larger, &out), CLV_E_INVALID, "clv_html_options.size is");
	o.bandwidth_bytes_per_s = -1;
	refused(p, o, "bandwidth_bytes_per_s is not a speed");
	o = none;
	o.suffix_flops_per_s = HUGE_VAL;
	refused(p, o, "suffix_flops_per_s is not a speed");
	o = none;
	o.frontier = 4;
	refused(p, o, "frontier 4 is chosen, and there are 4");
	o = none;
	o.nstages = 2;
	refused(p, o, "2 stages, but stage_of_node is NULL");
	o.stage_of_node = (const uint32_t[]){0, 0, 2, 0, 0};
	refused(p, o, "node 2 is in stage 2 of 2");
	o.stage_of_node = (const uint32_t[]){0, 0, 0, 0, 0};
	stage_score stages[2] = {{0}, {.device = 1, .fwd_us = NAN}};
	o.stages = stages;
	refused(p, o, "a time of stage 1 is not a time");
	stages[1].fwd_us = -1;
	refused(p, o, "a time of stage 1 is not a time");
	stages[1].fwd_us = 1;
	o.ndevices = 1;
	refused(p, o, "stage 1 is on device 1 of 1");
	o.ndevices = 2;
	refused(p, o, "device 0 of 2 has no name");
	o.ndevices = 0;
	o.stages = NULL;
	o.lower_bound_us = -1;
	refused(p, o, "lower_bound_us is not a time");
	o.lower_bound_us = 0;
	o = none;
	o.nsegments = 1;
	refused(p, o, "1 segments, but segment_of_node is NULL");
	o = none;
	o.sizes.n = 1;
	refused(p, o, "symbols without names");
	o.sizes = (clv_sizes){(const char *[]){"B"}, (const int64_t[]){9}, 1};
	refused(p, o, "B is 9, the plan is for 1 to 8");
	plan_free(p);
}

static void an_older_shorter_options_struct_keeps_the_other_defaults(void **state)
{
	(void)state;
	clv_html_options o = CLV_HTML_OPTIONS_INIT;
	plan *p = load_ok(text);
	char *page = NULL;
	o.size = offsetof(clv_html_options, bandwidth_bytes_per_s);
	o.title = "other";
	o.bandwidth_bytes_per_s = -1; /* not read */
	OK(clv_plan_html(p, &o, &page));
	assert_non_null(strstr(page, "\"title\":\"other\""));
	clv_free(page);
	plan_free(p);
}

static void a_partition_of_the_plan_is_shown(void **state)
{
	(void)state;
	plan *p = load_ok(text), *small = load_ok("cleave-plan 1\nmodel \"m\"\ninput %x f32[1]\n%a = a::b(%x) -> f32[1]\n"
	                                          "output %a\n");
	clv_html_options o = CLV_HTML_OPTIONS_INIT;
	clv_partition *part;
	char *page = NULL;
	OK(clv_plan_partition(p, NULL, &part));
	o.partition = part;
	OK(clv_plan_html(p, &o, &page));
	json_t *d = data_of(page);
	dumps_as(d, "stages", "1");
	dumps_as(d, "stageOf", "[0,0,0,0,0]");
	json_decref(d);
	clv_free(page);
	page = NULL;
	FAILS(clv_plan_html(small, &o, &page), CLV_E_INVALID, "is not one of this plan");
	assert_null(page);
	clv_partition_free(part);
	plan_free(p);
	plan_free(small);
}

/* Every value crosses everywhere: what is written for each frontier must not grow with that. */
static void a_hundred_thousand_nodes_are_written(void **state)
{
	(void)state;
	enum { NODES = 100000 };
	strbuf b = STRBUF_INIT;
	strbuf_puts(&b, "cleave-plan 1\nmodel \"Long\"\nsymbol B 1..64\nscope \"\" \"Long\"\nscope body \"Body\"\ninput %0 "
	                "f32[B,64]\n");
	for (int i = 0; i < NODES; i++)
		strbuf_printf(&b, "%%%d = aten::op%d(%%%d) -> f32[B,%d] in body\n", i + 1, i % 10, i, i % 7 + 1);
	strbuf_puts(&b, "output [%1");
	for (int i = 2; i <= NODES; i++)
		strbuf_printf(&b, ", %%%d", i);
	strbuf_puts(&b, "]\n");
	char *long_text = taken(&b);
	json_t *d = make_data(long_text, NULL);
	assert_int_equal(json_array_size(json_object_get(d, "bytes")), NODES - 1);
	assert_int_equal(int_at(d, "tensors", NODES - 2), NODES - 1);
	assert_int_equal(json_array_size(json_object_get(d, "formulas")), 2 * (NODES - 1));
	json_decref(d);
	mem_free(long_text);
}

/* ---- faults --------------------------------------------------------------------------------------------------------- */

static clv_status write_page(const void *ctx)
{
	html_spec o = {.frontier = NONE};
	clv_plan *p = NULL;
	char *page = NULL;
	TRY(clv_plan_parse(ctx, strlen(ctx), &p));
	o.nstages = 1;
	o.stage_of_node = (const uint32_t[]){0, 0, 0, 0, 0};
	clv_status st = plan_html(p, &o, &page);
	assert_true((st == CLV_OK) == (page != NULL));
	clv_free(page);
	clv_plan_free(p);
	return st;
}

static void every_allocation_may_fail_while_a_page_is_written(void **state)
{
	(void)state;
	assert_in_range(sweep_faults(write_page, text, CLV_OK), 100, 5000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_data_has_the_plan_and_its_frontiers),
		cmocka_unit_test(the_frontiers_of_random_plans_are_those_of_the_public_functions),
		cmocka_unit_test(formulas_in_one_walk_are_those_one_by_one),
		cmocka_unit_test(what_cannot_be_written_down_has_no_formula),
		cmocka_unit_test(hostile_names_stay_inside_the_data),
		cmocka_unit_test(strings_of_json_hold_any_bytes),
		cmocka_unit_test(the_page_is_whole_and_asks_for_nothing),
		cmocka_unit_test(the_same_plan_gives_the_same_bytes),
		cmocka_unit_test(what_is_known_of_stages_is_in_the_data),
		cmocka_unit_test(stages_and_segments_are_in_the_data),
		cmocka_unit_test(a_plan_with_nothing_to_cut_has_a_page),
		cmocka_unit_test(wrong_options_are_refused),
		cmocka_unit_test(an_older_shorter_options_struct_keeps_the_other_defaults),
		cmocka_unit_test(a_partition_of_the_plan_is_shown),
		cmocka_unit_test(a_hundred_thousand_nodes_are_written),
		cmocka_unit_test(every_allocation_may_fail_while_a_page_is_written),
	};
	return cmocka_run_group_tests_name("html", tests, NULL, NULL);
}
