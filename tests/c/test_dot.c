/* Pictures: what is folded, what labels say, what is marked at a cut, that no name breaks the text. The look itself is in
 * tests/plan/ (x.dot), and tests/python/test_visualization.py gives pictures to Graphviz. */
#include "random_plan.h"

static const char *const block =
	"cleave-plan 1\n"
	"model \"Net\"\n"
	"symbol B 1..64\n"
	"scope \"\" \"Net\"\n"
	"scope stem \"Conv2d\"\n"
	"scope body \"Sequential\"\n"
	"scope body.0 \"Block\"\n"
	"scope body.0.conv \"Conv2d\"\n"
	"scope body.0.act \"ReLU\"\n"
	"input %x f32[B,3,8,8] name=\"x\"\n"
	"input %m f32[B,8,8,8] name=\"mask\"\n"
	"param @stem.weight f32[8,3,3,3] trainable\n"
	"param @stem.bias f32[8]\n"
	"param @body.0.conv.weight f32[8,8,3,3] trainable\n"
	"param @body.0.scale f32[] trainable\n"
	"buffer @body.0.steps i64[1]\n"
	"%a = aten::conv2d(%x, @stem.weight, @stem.bias, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,8,8] in stem at "
	"\"net.py:7\"\n"
	"%b = aten::relu(%a) -> f32[B,8,8,8] in body.0.act\n"
	"%c = aten::conv2d(%b, @body.0.conv.weight, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,8,8,8] in body.0.conv\n"
	"%d = aten::relu_(%c) -> f32[B,8,8,8] view-of %c writes %c in body.0.act\n"
	"%e = aten::add.Tensor(%d, %a, 1) -> f32[B,8,8,8] in body.0\n"
	"%f = aten::mul.Tensor(%e, @body.0.scale) -> f32[B,8,8,8] in body.0\n"
	"%g = aten::mul.Tensor(%f, %m) -> f32[B,8,8,8] in \"\"\n"
	"output %g\n";

static char *draw(const plan *p, const clv_dot_options *o)
{
	char *out = NULL;
	clv_status st = clv_plan_dot(p, o, &out);
	if (st != CLV_OK)
		fail_msg("%s", status_message());
	return out;
}

static char *draw_text(const char *text, const clv_dot_options *o)
{
	plan *p = load_ok(text);
	char *out = draw(p, o);
	plan_free(p);
	return out;
}

static void holds(const char *dot, const char *part)
{
	if (!strstr(dot, part))
		fail_msg("no \"%s\" in\n%s", part, dot);
}

static void lacks(const char *dot, const char *part)
{
	if (strstr(dot, part))
		fail_msg("\"%s\" in\n%s", part, dot);
}

/* The line of a node, which starts with its name. */
static void line_holds(const char *dot, const char *name, const char *part)
{
	char start[32];
	snprintf(start, sizeof start, " %s [label=<", name);
	const char *line = strstr(dot, start);
	const char *end = line ? strchr(line, '\n') : NULL;
	if (!line || !end)
		fail_msg("no node %s in\n%s", name, dot);
	const char *found = strstr(line, part);
	if (!found || found > end)
		fail_msg("no \"%s\" in %.*s", part, (int)(end - line), line);
}

#define DRAW(...) draw_text(block, &(clv_dot_options){.size = sizeof(clv_dot_options), __VA_ARGS__})
#define DEFAULTS .frontier = CLV_NONE, .detail = "module", .max_module_depth = 4, .direction = "TB"

/* ---- options -------------------------------------------------------------------------------------------------------- */

static void the_public_function_checks_its_arguments(void **state)
{
	(void)state;
	plan *p = load_ok(block);
	char *out = NULL;
	clv_dot_options o = CLV_DOT_OPTIONS_INIT;
	FAILS(clv_plan_dot(NULL, NULL, &out), CLV_E_INVALID, "needs a plan");
	FAILS(clv_plan_dot(p, NULL, NULL), CLV_E_INVALID, "a place");
	o.size = sizeof o + 1;
	FAILS(clv_plan_dot(p, &o, &out), CLV_E_INVALID, "clv_dot_options.size is");
	o = (clv_dot_options)CLV_DOT_OPTIONS_INIT;
	o.detail = "modules";
	FAILS(clv_plan_dot(p, &o, &out), CLV_E_INVALID, "\"module\" or \"operation\", not \"modules\"");
	o.detail = NULL;
	FAILS(clv_plan_dot(p, &o, &out), CLV_E_INVALID, "\"module\" or \"operation\"");
	o = (clv_dot_options)CLV_DOT_OPTIONS_INIT;
	o.direction = "up";
	FAILS(clv_plan_dot(p, &o, &out), CLV_E_INVALID, "TB, BT, LR or RL, not \"up\"");
	o = (clv_dot_options)CLV_DOT_OPTIONS_INIT;
	o.frontier = 6;
	FAILS(clv_plan_dot(p, &o, &out), CLV_E_INVALID, "no frontier 6, the plan has 6");
	o = (clv_dot_options)CLV_DOT_OPTIONS_INIT;
	o.sizes = (clv_sizes){(const char *const[]){"S"}, (const int64_t[]){2}, 1};
	FAILS(clv_plan_dot(p, &o, &out), CLV_E_NOT_FOUND, "no symbol \"S\"");
	assert_null(out);
	plan_free(p);
}

static void no_options_are_the_default_options(void **state)
{
	(void)state;
	clv_dot_options o = CLV_DOT_OPTIONS_INIT, shorter = {.size = offsetof(clv_dot_options, detail), .frontier = 2};
	char *a = draw_text(block, NULL), *b = draw_text(block, &o), *c = draw_text(block, &shorter);
	assert_string_equal(a, b);
	holds(a, "rankdir=TB");
	holds(c, "cut after");
	holds(c, "rankdir=TB");
	mem_free(a);
	mem_free(b);
	mem_free(c);
}

static void the_direction_is_that_of_the_options(void **state)
{
	(void)state;
	static const char *const all[] = {"TB", "BT", "LR", "RL"};
	for (int i = 0; i < 4; i++) {
		char want[16],
			*dot = DRAW(.frontier = CLV_NONE, .detail = "module", .max_module_depth = 4, .direction = all[i]);
		snprintf(want, sizeof want, "rankdir=%s,", all[i]);
		holds(dot, want);
		mem_free(dot);
	}
}

static void megabytes_are_counted_at_the_sizes_of_the_options(void **state)
{
	(void)state;
	char *least = DRAW(DEFAULTS);
	char *most = DRAW(DEFAULTS, .sizes = {(const char *const[]){"B"}, (const int64_t[]){64}, 1});
	holds(least, "MB at B=1");
	line_holds(least, "in0", "(B, 3, 8, 8) · &lt;0.01 MB");
	holds(most, "MB at B=64");
	line_holds(most, "in0", "(B, 3, 8, 8) · 0.05 MB");
	line_holds(most, "n0", "(B, 8, 8, 8) · 0.13 MB");
	mem_free(least);
	mem_free(most);
}

/* ---- what is drawn -------------------------------------------------------------------------------------------------- */

static void modules_are_folded_and_what_joins_them_is_visible(void **state)
{
	(void)state;
	char *dot = DRAW(DEFAULTS);
	line_holds(dot, "n0", "<b>stem</b> <font color=\"#64748B\">Conv2d</font>");
	line_holds(dot, "n4", "<b>add</b><br/>");
	holds(dot, "label=<<b>body</b><br align=\"left\"/>");
	holds(dot, "label=<<b>body.0</b><br align=\"left\"/><font point-size=\"10\" color=\"#64748B\">Block </font>");
	line_holds(dot, "n1", "<b>act</b>");
	line_holds(dot, "n3", "<b>act</b>"); /* another call of the same module */
	holds(dot, "  n0 -> n1;\n");
	holds(dot, "  n0 -> n4;\n"); /* the residual */
	holds(dot, "  in1 -> n6;\n");
	holds(dot, "  n6 -> out;\n");
	lacks(dot, "aten::");
	lacks(dot, "f32");
	lacks(dot, "steps");
	lacks(dot, "in place");
	lacks(dot, "cut after");
	mem_free(dot);
}

static void parameters_show_shape_and_whether_they_are_frozen(void **state)
{
	(void)state;
	char *dot = DRAW(DEFAULTS);
	line_holds(dot, "n0", "params: weight(8x3x3x3), bias[x8]<");
	line_holds(dot, "n2", "params: weight(8x8x3x3)<");
	line_holds(dot, "n5", "params: scale(x1)<");
	holds(dot, "params: 793 [8]"); /* of the whole plan */
	mem_free(dot);
}

static void modules_below_the_depth_are_one_node_with_their_count_of_parameters(void **state)
{
	(void)state;
	char *two = DRAW(.frontier = CLV_NONE, .detail = "module", .max_module_depth = 2, .direction = "TB");
	line_holds(two, "n1", "<b>body.0</b> <font color=\"#64748B\">Block</font>");
	line_holds(two, "n1", "params: 577<");
	lacks(two, "n2 [");
	char *none = DRAW(.frontier = CLV_NONE, .detail = "module", .max_module_depth = 0, .direction = "TB");
	line_holds(none, "n0", "<b>Net</b>");
	lacks(none, "subgraph");
	holds(none, "  in0 -> n0;\n  in1 -> n0;\n  n0 -> out;\n");
	char *all =
		DRAW(.frontier = CLV_NONE, .detail = "module", .max_module_depth = CLV_DOT_ALL_MODULES, .direction = "TB");
	holds(all, "n5 [");
	mem_free(two);
	mem_free(none);
	mem_free(all);
}

static void large_counts_are_shortened(void **state)
{
	(void)state;
	char *dot = draw_text("cleave-plan 1\nmodel \"m\"\nscope \"\" \"M\"\nscope a \"A\"\nscope a.b \"B\"\n"
	                      "param @a.b.w f32[74000] trainable\nparam @a.b.v f32[999950]\n"
	                      "%0 = a::f(@a.b.w) -> f32[1] in a.b\n%1 = a::f(@a.b.v) -> f32[1] in a.b\noutput (%0, %1)\n",
	                      &(clv_dot_options){.size = sizeof(clv_dot_options),
	                                         .frontier = CLV_NONE,
	                                         .detail = "module",
	                                         .max_module_depth = 1,
	                                         .direction = "TB"});
	line_holds(dot, "n0", "params: 74.0K [1.0M]");
	line_holds(dot, "out", "(1,) · &lt;0.01 MB, 1 more");
	mem_free(dot);
}

static void the_operation_view_draws_every_operation(void **state)
{
	(void)state;
	char *dot = DRAW(.frontier = CLV_NONE, .detail = "operation", .max_module_depth = 4, .direction = "TB",
	                 .show_operation_targets = true, .show_debug_markers = true, .show_node_indices = true);
	line_holds(dot, "n0", "<b>conv2d</b> <font color=\"#64748B\">stem</font> <font color=\"#64748B\">#0 conv2d</font>");
	line_holds(dot, "n0", "aten::conv2d");
	line_holds(dot, "n0", "f32 (B, 8, 8, 8) · &lt;0.01 MB (2048 bytes)");
	line_holds(dot, "n3", "<b>relu</b>");
	line_holds(dot, "n3", "in place");
	line_holds(dot, "n3", "#3 relu_");
	line_holds(dot, "n6", "aten::mul.Tensor");
	mem_free(dot);
}

static void a_module_that_others_share_is_drawn_where_it_is_called(void **state)
{
	(void)state;
	static const char *const details[] = {"module", "operation"};
	for (int i = 0; i < 2; i++) {
		char *dot = draw_text("cleave-plan 1\nmodel \"m\"\nscope \"\" \"M\"\nscope a \"A\"\nscope a.fc \"F\"\n"
		                      "scope a.act \"S\"\nscope b \"A\"\nscope b.fc \"F\"\nscope b.out \"F\"\ninput %0 f32[1]\n"
		                      "%1 = x::f(%0) -> f32[1] in a.fc\n%2 = x::s(%1) -> f32[1] in a.act\n"
		                      "%3 = x::f(%2) -> f32[1] in b.fc\n%4 = x::s(%3) -> f32[1] in a.act\n"
		                      "%5 = x::f(%4) -> f32[1] in b.out\n%6 = x::s(%5) -> f32[1] in a.act\noutput %6\n",
		                      &(clv_dot_options){.size = sizeof(clv_dot_options),
		                                         .frontier = CLV_NONE,
		                                         .detail = details[i],
		                                         .max_module_depth = 4,
		                                         .direction = "TB"});
		const char *a = strstr(dot, "<b>a</b>"), *b = strstr(dot, "<b>b</b>");
		assert_true(strstr(dot, " n5 [") < a); /* behind all of b: in no frame */
		assert_true(a < strstr(dot, " n1 [") && strstr(dot, " n1 [") < b);
		assert_true(b < strstr(dot, " n3 ["));
		line_holds(dot, "n3", "a.act");
		mem_free(dot);
	}
}

static void a_shared_module_is_not_drawn_as_the_folded_one_it_is_named_after(void **state)
{
	(void)state;
	char *dot = draw_text("cleave-plan 1\nmodel \"m\"\nscope \"\" \"M\"\nscope a \"A\"\nscope a.fc \"F\"\n"
	                      "scope a.act \"S\"\nscope b \"A\"\nscope b.fc \"F\"\nscope b.out \"F\"\ninput %0 f32[1]\n"
	                      "%1 = x::f(%0) -> f32[1] in a.fc\n%2 = x::s(%1) -> f32[1] in a.act\n"
	                      "%3 = x::f(%2) -> f32[1] in b.fc\n%4 = x::s(%3) -> f32[1] in a.act\n"
	                      "%5 = x::f(%4) -> f32[1] in b.out\n%6 = x::s(%5) -> f32[1] in a.act\noutput %6\n",
	                      &(clv_dot_options){.size = sizeof(clv_dot_options),
	                                         .frontier = CLV_NONE,
	                                         .detail = "module",
	                                         .max_module_depth = 1,
	                                         .direction = "TB"});
	line_holds(dot, "n0", "<b>a</b>");
	line_holds(dot, "n2", "<b>b</b>"); /* with the call in its middle */
	line_holds(dot, "n5", "<b>a.act</b>");
	holds(dot, "  in0 -> n0;\n  n0 -> n2;\n  n2 -> n5;\n  n5 -> out;\n");
	lacks(dot, "subgraph");
	mem_free(dot);
}

static void what_writes_memory_comes_before_what_reads_it_later(void **state)
{
	(void)state;
	char *dot = draw_text("cleave-plan 1\nmodel \"m\"\ninput %x f32[4]\n"
	                      "%a = aten::clone(%x) -> f32[4]\n"
	                      "%v = aten::view(%a) -> f32[4] view-of %a\n"
	                      "%b = aten::zero_(%a) -> f32[4] view-of %a writes %a\n"
	                      "%c = aten::neg(%a) -> f32[4]\n"
	                      "%d = aten::neg(%v) -> f32[4]\n"
	                      "output (%c, %d)\n",
	                      NULL);
	holds(dot, "  n2 -> n3;\n");
	lacks(dot, "  n0 -> n3;\n"); /* what it reads is what was written */
	holds(dot, "  n1 -> n4;\n  n2 -> n4;\n");
	mem_free(dot);
}

/* ---- cuts ----------------------------------------------------------------------------------------------------------- */

static void a_cut_marks_both_sides_what_crosses_and_what_it_costs(void **state)
{
	(void)state;
	char *dot = DRAW(.frontier = 2, .detail = "module", .max_module_depth = 4, .direction = "TB");
	line_holds(dot, "n0", "class=\"prefix boundary\"");
	line_holds(dot, "n0", "<b>boundary</b>");
	line_holds(dot, "n1", "class=\"prefix\"");
	line_holds(dot, "n2", "class=\"prefix boundary\"");
	line_holds(dot, "n3", "class=\"suffix\"");
	line_holds(dot, "in0", "class=\"input\"");
	line_holds(dot, "in1", "class=\"input passthrough\"");
	line_holds(dot, "in1", "<b>passthrough</b>");
	holds(dot, "n2 -> n3 [class=\"boundary\"");
	holds(dot, "n0 -> n4 [class=\"boundary\"");
	holds(dot, "in1 -> n6 [class=\"passthrough\"");
	holds(dot, "cut after <b>conv2d_1</b> in <b>body.0.conv</b>");
	holds(dot,
	      "boundary_bytes: 6144*B (0.01 MB, 3 tensors) · prefix: 3 nodes · suffix: 4 nodes · trainable suffix: yes");
	holds(dot, "passthrough   ");
	mem_free(dot);
}

static void a_module_that_is_cut_is_drawn_in_two_parts(void **state)
{
	(void)state;
	char *dot = DRAW(.frontier = 2, .detail = "module", .max_module_depth = 2, .direction = "TB");
	line_holds(dot, "n1", "(part 1 of 2)");
	line_holds(dot, "n1", "class=\"prefix boundary\"");
	line_holds(dot, "n3", "(part 2 of 2)");
	line_holds(dot, "n3", "class=\"suffix\"");
	char *beside = DRAW(.frontier = 0, .detail = "module", .max_module_depth = 2, .direction = "TB");
	lacks(beside, "part 1");
	mem_free(dot);
	mem_free(beside);
}

static void an_unsafe_cut_is_drawn_with_its_reason(void **state)
{
	(void)state;
	plan *p = load_ok("cleave-plan 1\nmodel \"m\"\ninput %x f32[4]\n"
	                  "%a = aten::clone(%x) -> f32[4]\n"
	                  "%v = aten::view(%a) -> f32[4] view-of %a\n"
	                  "%i = aten::item(%v) -> float = 1.0 {host}\n"
	                  "%b = aten::zero_(%v) -> f32[4] view-of %a writes %v\n"
	                  "%c = aten::add(%a, %i) -> f32[4]\noutput (%c, %b)\n");
	clv_frontiers *f = NULL;
	clv_dot_options o = CLV_DOT_OPTIONS_INIT;
	bool any = false;
	OK(clv_frontiers_create(p, NULL, &f));
	for (o.frontier = 0; o.frontier < clv_frontiers_count(f); o.frontier++) {
		clv_frontier c = {.size = sizeof c};
		OK(clv_frontiers_get(f, o.frontier, &c));
		char *dot = draw(p, &o);
		assert_int_equal(strstr(dot, "the plan cannot be cut here: ") != NULL, c.unsafe != NULL);
		any = any || c.unsafe;
		mem_free(dot);
	}
	assert_true(any);
	clv_frontiers_free(f);
	plan_free(p);
}

/* ---- names that nobody trusts --------------------------------------------------------------------------------------- */

static void hostile_names_stay_text(void **state)
{
	(void)state;
	char *dot = draw_text(
		"cleave-plan 1\nmodel \"</b>\\\"; } digraph x {\\x00\"\nscope \"\" \"M\"\n"
		"scope \"a\\\" <script> & \\n\\\\N\" \"C\\x01\\xff\\xef\\xbf\\xbf\xc3\xa9\"\n"
		"input %x f32[4] name=\"\"\n"
		"param @\"-->\" f32[4]\n"
		"%a = aten::add(%x, @\"-->\") -> f32[4] in \"a\\\" <script> & \\n\\\\N\" at \"\\\"];\\n\"\noutput %a\n",
		NULL);
	holds(dot, "<b>&lt;/b&gt;&quot;; } digraph x {</b>");
	holds(dot, "<b>a&quot; &lt;script&gt; &amp; &#92;n&#92;N</b>");
	holds(dot, "C&#92;x01&#92;xff&#92;xef&#92;xbf&#92;xbf\xc3\xa9<");
	holds(dot, "params: --&gt;[x4]");
	holds(dot, "at &quot;];&#92;n\"");
	lacks(dot, "<script>");
	mem_free(dot);
}

static void a_very_long_name_is_shortened(void **state)
{
	(void)state;
	strbuf b = STRBUF_INIT;
	strbuf_puts(&b, "cleave-plan 1\nmodel \"");
	for (int i = 0; i < 5000; i++)
		strbuf_puts(&b, "\xc3\xa9");
	strbuf_puts(&b, "\"\ninput %x f32[4]\noutput %x\n");
	char *text = taken(&b), *dot = draw_text(text, NULL);
	assert_in_range(strlen(dot), 100, 3000);
	holds(dot, "\xc3\xa9…</b>");
	holds(dot, "  in0 -> out;\n");
	mem_free(text);
	mem_free(dot);
}

/* ---- any plan ------------------------------------------------------------------------------------------------------- */

/* Behind a string "…" or an HTML-like label <…>, whose tags must close; NULL if it does not end. */
static const char *behind_text(const char *s)
{
	if (*s == '"')
		return (s = strchr(s + 1, '"')) ? s + 1 : NULL; /* quotes inside are entities */
	int depth = 0;
	for (; *s; s++) {
		depth += *s == '<' ? 1 : *s == '>' ? -1 : 0;
		if (depth == 0)
			return s + 1;
		if (*s == '<' && s[1] == '>')
			return NULL;
	}
	return NULL;
}

static void check_tags(uint64_t seed, const char *dot)
{
	static const char *const tags[] = {"b", "font", "table", "tr", "td"};
	for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
		char open[16], spaced[16], close[16];
		int balance = 0;
		snprintf(open, sizeof open, "<%s>", tags[i]);
		snprintf(spaced, sizeof spaced, "<%s ", tags[i]);
		snprintf(close, sizeof close, "</%s>", tags[i]);
		for (const char *s = dot; (s = strchr(s, '<')); s++)
			balance += !strncmp(s, open, strlen(open)) || !strncmp(s, spaced, strlen(spaced)) ? 1
			           : !strncmp(s, close, strlen(close))                                    ? -1
			                                                                                  : 0;
		if (balance)
			fail_msg("seed %llu: %d tags %s are open in\n%s", (unsigned long long)seed, balance, open, dot);
	}
}

/* Braces match, texts end, every byte is a letter. */
static void check_form(uint64_t seed, const char *dot)
{
	int braces = 0;
	const char *s = dot;
	while (s && *s) {
		braces += *s == '{' ? 1 : *s == '}' ? -1 : 0;
		if (braces < 0)
			break;
		s = *s == '"' || *s == '<' ? behind_text(s) : s[0] == '-' && s[1] == '>' ? s + 2 : s + 1;
	}
	if (!s || braces != 0 || !utf8_valid(dot, strlen(dot)) || strpbrk(dot, "\x01\x7f\\\r\t"))
		fail_msg("seed %llu: malformed\n%s", (unsigned long long)seed, dot);
	check_tags(seed, dot);
}

static uint32_t number(const char *s, const char *word, uint32_t end)
{
	size_t n = strlen(word);
	uint32_t i = 0;
	if (strncmp(s, word, n) != 0 || s[n] < '0' || s[n] > '9')
		return UINT32_MAX;
	for (s += n; *s >= '0' && *s <= '9'; s++)
		i = i * 10 + (uint32_t)(*s - '0');
	return i < end ? i : UINT32_MAX;
}

static uint32_t vertex(const char *s, uint32_t inputs, uint32_t nodes)
{
	uint32_t input = number(s, "in", inputs), node = number(s, "n", nodes);
	if (input != UINT32_MAX)
		return input;
	return node != UINT32_MAX                                         ? inputs + node
	       : strncmp(s, "out ", 4) == 0 || strncmp(s, "out;", 4) == 0 ? inputs + nodes
	                                                                  : UINT32_MAX;
}

/* Both ends of every edge are declared once before it, and edges go forward. */
static void check_edges(uint64_t seed, const plan *p, const char *dot)
{
	uint8_t *declared = mem_alloc(p->inputs.n + p->nodes.n + 1);
	for (const char *s = dot; s; s = strchr(s, '\n'), s = s ? s + 1 : NULL) {
		const char *word = s + strspn(s, " "), *arrow = word + strcspn(word, " \n"), *end = strchr(word, '\n');
		uint32_t from = vertex(word, p->inputs.n, p->nodes.n);
		if (from == UINT32_MAX || !end)
			continue;
		if (strncmp(arrow, " -> ", 4) != 0) {
			declared[from]++;
			continue;
		}
		uint32_t to = vertex(arrow + 4, p->inputs.n, p->nodes.n);
		if (to == UINT32_MAX || declared[from] != 1 || declared[to] != 1 || from >= to)
			fail_msg("seed %llu: edge %.*s in\n%s", (unsigned long long)seed, (int)(end - word), word, dot);
	}
	for (uint32_t i = 0; i < p->inputs.n; i++)
		assert_int_equal(declared[i], 1);
	assert_int_equal(declared[p->inputs.n + p->nodes.n], 1);
	mem_free(declared);
}

static void any_options(maker *m, clv_dot_options *o)
{
	static const uint32_t depths[] = {0, 1, 2, 4, CLV_DOT_ALL_MODULES};
	*o = (clv_dot_options)CLV_DOT_OPTIONS_INIT;
	if (m->p->nodes.n > 1 && chance(m, 60))
		o->frontier = below(m, m->p->nodes.n - 1);
	o->detail = chance(m, 50) ? "operation" : "module";
	o->max_module_depth = depths[below(m, 5)];
	o->show_operation_targets = chance(m, 50);
	o->show_debug_markers = chance(m, 50);
	o->show_node_indices = chance(m, 50);
}

static void pictures_of_random_plans_are_well_formed(void **state)
{
	(void)state;
	for (uint64_t seed = 0; seed < 2000; seed++) {
		maker m = {random_plan(seed), seed, 0};
		clv_dot_options o;
		any_options(&m, &o);
		char *dot = draw(m.p, &o);
		check_form(seed, dot);
		check_edges(seed, m.p, dot);
		mem_free(dot);
		plan_free(m.p);
	}
}

static void equal_plans_have_the_same_picture(void **state)
{
	(void)state;
	for (uint64_t seed = 0; seed < 300; seed++) {
		maker m = {random_plan(seed), seed, 0};
		char *printed = print_ok(m.p);
		plan *first = parse_ok(printed), *second = parse_ok(printed);
		clv_dot_options o;
		any_options(&m, &o);
		char *a = draw(first, &o), *b = draw(second, &o);
		assert_string_equal(a, b);
		mem_free(a);
		mem_free(b);
		mem_free(printed);
		plan_free(first);
		plan_free(second);
		plan_free(m.p);
	}
}

static void a_hundred_thousand_nodes_are_drawn(void **state)
{
	(void)state;
	enum { NODES = 100000 };
	strbuf b = STRBUF_INIT;
	strbuf_puts(&b, "cleave-plan 1\nmodel \"Long\"\nscope \"\" \"Long\"\ninput %0 f32[64]\n");
	for (int i = 0; i < NODES / 10; i++)
		strbuf_printf(&b, "scope l%d \"L\"\nparam @l%d.w f32[64]\n", i, i);
	for (int i = 0; i < NODES; i++)
		strbuf_printf(&b, "%%%d = a::b(%%%d, %%0, @l%d.w) -> f32[64] in l%d\n", i + 1, i, i / 10, i / 10);
	strbuf_printf(&b, "output %%%d\n", NODES);
	char *text = taken(&b);
	plan *p = load_ok(text);
	clv_dot_options o = {sizeof o, NODES / 2, "operation", CLV_DOT_ALL_MODULES, "LR"};
	char *dot = draw(p, &o);
	check_edges(0, p, dot);
	holds(dot, "splines=line"); /* Graphviz is told to hurry */
	mem_free(dot);
	mem_free(text);
	plan_free(p);
}

static clv_status all_pictures(const void *ctx)
{
	const char *text = ctx;
	clv_plan *p = NULL;
	TRY(clv_plan_parse(text, strlen(text), &p));
	clv_dot_options o = {sizeof o, 2, "module", 4, "TB", true, true, true};
	char *out = NULL;
	clv_status st = clv_plan_dot(p, &o, &out);
	clv_free(out);
	o.frontier = CLV_NONE;
	o.detail = "operation";
	out = NULL;
	if (st == CLV_OK)
		st = clv_plan_dot(p, &o, &out);
	clv_free(out);
	clv_plan_free(p);
	return st;
}

static void every_allocation_may_fail_while_a_picture_is_drawn(void **state)
{
	(void)state;
	assert_in_range(sweep_faults(all_pictures, block, CLV_OK), 100, 5000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_public_function_checks_its_arguments),
		cmocka_unit_test(no_options_are_the_default_options),
		cmocka_unit_test(the_direction_is_that_of_the_options),
		cmocka_unit_test(megabytes_are_counted_at_the_sizes_of_the_options),
		cmocka_unit_test(modules_are_folded_and_what_joins_them_is_visible),
		cmocka_unit_test(parameters_show_shape_and_whether_they_are_frozen),
		cmocka_unit_test(modules_below_the_depth_are_one_node_with_their_count_of_parameters),
		cmocka_unit_test(large_counts_are_shortened),
		cmocka_unit_test(the_operation_view_draws_every_operation),
		cmocka_unit_test(a_module_that_others_share_is_drawn_where_it_is_called),
		cmocka_unit_test(a_shared_module_is_not_drawn_as_the_folded_one_it_is_named_after),
		cmocka_unit_test(what_writes_memory_comes_before_what_reads_it_later),
		cmocka_unit_test(a_cut_marks_both_sides_what_crosses_and_what_it_costs),
		cmocka_unit_test(a_module_that_is_cut_is_drawn_in_two_parts),
		cmocka_unit_test(an_unsafe_cut_is_drawn_with_its_reason),
		cmocka_unit_test(hostile_names_stay_text),
		cmocka_unit_test(a_very_long_name_is_shortened),
		cmocka_unit_test(pictures_of_random_plans_are_well_formed),
		cmocka_unit_test(equal_plans_have_the_same_picture),
		cmocka_unit_test(a_hundred_thousand_nodes_are_drawn),
		cmocka_unit_test(every_allocation_may_fail_while_a_picture_is_drawn),
	};
	return cmocka_run_group_tests_name("dot", tests, NULL, NULL);
}
