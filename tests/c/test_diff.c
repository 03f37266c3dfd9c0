/* What differs between two plans and between two files: nothing is missed, nothing is made up, and the answer is short
 * where the change is small. */
#include "random_plan.h"

#include <jansson.h>
#include <time.h>
#include <unistd.h>

#include "file/artifact.h"
#include "plan/align.h"
#include "plan/diff.h"

/* ---- helpers ------------------------------------------------------------------------------------------------------- */

static char *page(const plan *a, const plan *b, bool *differ)
{
	char *text = NULL;
	OK(clv_plan_diff(a, b, NULL, &text, differ));
	assert_int_equal(*differ, text[0] != '\0');
	return text;
}

static char *json_page(const plan *a, const plan *b)
{
	clv_diff_options o = CLV_DIFF_OPTIONS_INIT;
	char *text = NULL;
	bool differ;
	o.json = true;
	OK(clv_plan_diff(a, b, &o, &text, &differ));
	return text;
}

static char *page_of(const char *before, const char *after)
{
	plan *a = load_ok(before), *b = load_ok(after);
	bool differ;
	char *text = page(a, b, &differ);
	plan_free(a);
	plan_free(b);
	return text;
}

static void check_page(const char *before, const char *after, const char *want)
{
	char *text = page_of(before, after);
	if (strcmp(text, want) != 0)
		fail_msg("the page is\n%s\ninstead of\n%s", text, want);
	mem_free(text);
}

/* ---- sequences ----------------------------------------------------------------------------------------------------- */

/* The longest common subsequence, the slow way. */
static uint32_t common(const uint32_t *a, uint32_t n, const uint32_t *b, uint32_t m)
{
	uint32_t best[65][65] = {{0}};
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t k = 0; k < m; k++) {
			uint32_t across = best[i][k + 1] > best[i + 1][k] ? best[i][k + 1] : best[i + 1][k];
			best[i + 1][k + 1] = a[i] == b[k] ? best[i][k] + 1 : across;
		}
	return best[n][m];
}

/* Places rise and tokens agree; how many are matched. */
static uint32_t check_match(const uint32_t *a, uint32_t n, const uint32_t *b, uint32_t m, const uint32_t *match)
{
	uint32_t count = 0, next = 0;
	for (uint32_t i = 0; i < n; i++) {
		if (match[i] == NONE)
			continue;
		assert_true(match[i] >= next && match[i] < m && a[i] == b[match[i]]);
		next = match[i] + 1;
		count++;
	}
	return count;
}

static void short_sequences_are_aligned_as_far_as_can_be(void **state)
{
	(void)state;
	uint64_t seed = 1;
	aligner *w = NULL;
	OK(aligner_new(9, &w));
	for (int round = 0; round < 20000; round++) {
		uint32_t a[64], b[64], match[64], tokens = 1 + random_below(&seed, 9);
		uint32_t n = random_below(&seed, 64), m = random_below(&seed, 64);
		for (uint32_t i = 0; i < n; i++)
			a[i] = random_below(&seed, tokens);
		for (uint32_t i = 0; i < m; i++)
			b[i] = random_below(&seed, tokens);
		OK(align(w, a, n, b, m, match));
		assert_int_equal(check_match(a, n, b, m, match), common(a, n, b, m));
	}
	FAILS(align(w, (uint32_t[]){9}, 1, (uint32_t[]){9}, 1, (uint32_t[]){0}), CLV_E_INVALID, "beyond the 9");
	aligner_free(w);
}

enum { LONG = 100000 };

static void align_long(const char *what, const uint32_t *a, const uint32_t *b, uint32_t at_least)
{
	uint32_t *match = mem_ids(LONG);
	aligner *w = NULL;
	OK(aligner_new(LONG, &w));
	clock_t before = clock();
	OK(align(w, a, LONG, b, LONG, match));
	uint32_t found = check_match(a, LONG, b, LONG, match);
	print_message("%-10s %6.0f ms, %u of %u kept\n", what, (double)(clock() - before) * 1e3 / CLOCKS_PER_SEC, found,
	              LONG);
	assert_true(found >= at_least);
	aligner_free(w);
	mem_free(match);
}

static void shuffle(uint32_t *at, uint32_t n, uint64_t *seed)
{
	for (uint32_t i = n - 1; i > 0; i--) {
		uint32_t k = random_below(seed, i + 1), t = at[i];
		at[i] = at[k];
		at[k] = t;
	}
}

/* All tokens are on both sides, in orders that have little in common: the dearest cases there are. */
static void long_sequences_with_little_in_common_are_bounded(void **state)
{
	(void)state;
	uint64_t seed = 7;
	uint32_t *a = mem_ids(LONG), *b = mem_ids(LONG);
	for (uint32_t i = 0; i < LONG; i++)
		a[i] = b[i] = i;
	shuffle(b, LONG, &seed);
	align_long("shuffled", a, b, 100);
	for (uint32_t i = LONG / 2; i < LONG; i++) {
		a[i] = random_below(&seed, 2);
		b[i] = random_below(&seed, 2);
	}
	for (uint32_t i = 0; i < LONG / 2; i++)
		a[i] = b[i] = i;
	shuffle(b, LONG / 2, &seed);
	align_long("half", a, b, LONG / 4);
	for (uint32_t i = 0; i < LONG; i++) {
		a[i] = random_below(&seed, 2);
		b[i] = random_below(&seed, 2);
	}
	align_long("two words", a, b, LONG / 2);
	mem_free(a);
	mem_free(b);
}

/* ---- plans --------------------------------------------------------------------------------------------------------- */

#define HEAD                                                                                                           \
	"cleave-plan 1\nmodel \"M\"\nsymbol B 1..8\nscope \"\" \"M\"\nscope a \"A\"\nscope b \"B\"\n"                      \
	"input %x f32[B,4] name=\"x\"\nparam @a.w f32[4,4] trainable\n"

static const char *const plain = HEAD "%1 = aten::linear(%x, @a.w, none) -> f32[B,4] in a\n"
									  "%2 = aten::relu(%1) -> f32[B,4] in b\n"
									  "%3 = aten::relu(%2) -> f32[B,4] in b\n"
									  "output %3\n";

static void what_a_new_node_moves_along_is_not_reported(void **state)
{
	(void)state;
	check_page(plain,
	           HEAD "%0 = aten::neg(%x) -> f32[B,4]\n"
	                "%1 = aten::linear(%0, @a.w, none) -> f32[B,4] in a\n"
	                "%2 = aten::relu(%1) -> f32[B,4] in b\n"
	                "%3 = aten::relu(%2) -> f32[B,4] in b\n"
	                "output %3\n",
	           "  nodes         1 added, 1 changed, 2 the same\n"
	           "\n"
	           "nodes\n"
	           "  + neg: aten::neg(input x) -> f32[B,4]\n"
	           "  ~ linear in a\n"
	           "      argument 0: input x -> neg\n");
}

static void a_removed_node_is_named_as_it_was(void **state)
{
	(void)state;
	check_page(plain,
	           HEAD "%1 = aten::linear(%x, @a.w, none) -> f32[B,4] in a\n"
	                "%2 = aten::relu(%1) -> f32[B,4] in b\n"
	                "output %2\n",
	           "  outputs       1 changed\n"
	           "  nodes         1 removed, 2 the same\n"
	           "\n"
	           "outputs\n"
	           "  ~ output\n"
	           "      is: relu_1 (removed) f32[B,4] -> relu f32[B,4]\n"
	           "\n"
	           "nodes\n"
	           "  - relu_1 in b: aten::relu(relu) -> f32[B,4]\n");
}

static void an_operator_in_the_place_of_another_is_one_change(void **state)
{
	(void)state;
	check_page(plain,
	           HEAD "%1 = aten::linear(%x, @a.w, none) -> f32[B,4] in a\n"
	                "%2 = aten::gelu(%1, \"none\") -> f32[B,4] in b\n"
	                "%3 = aten::relu(%2) -> f32[B,4] in b\n"
	                "output %3\n",
	           "  nodes         1 changed, 2 the same\n"
	           "\n"
	           "nodes\n"
	           "  ~ gelu in b (was relu)\n"
	           "      operator: aten::relu -> aten::gelu\n"
	           "      argument 1: added \"none\"\n");
}

static void a_renamed_module_keeps_its_nodes(void **state)
{
	(void)state;
	check_page("cleave-plan 1\nmodel \"M\"\nscope \"\" \"M\"\nscope a \"A\"\ninput %x f32[4]\nparam @a.w f32[4]\n"
	           "%1 = aten::mul.Tensor(%x, @a.w) -> f32[4] in a\noutput %1\n",
	           "cleave-plan 1\nmodel \"M\"\nscope \"\" \"M\"\nscope m.a \"A\"\ninput %x f32[4]\nparam @m.a.w f32[4]\n"
	           "%1 = aten::mul.Tensor(%x, @m.a.w) -> f32[4] in m.a\noutput %1\n",
	           "  modules       1 added, 1 removed, 1 the same\n"
	           "  parameters    1 added, 1 removed\n"
	           "  nodes         1 changed\n"
	           "\n"
	           "modules\n"
	           "  - a: \"A\"\n"
	           "  + m.a: \"A\"\n"
	           "\n"
	           "parameters\n"
	           "  - @a.w: f32[4]\n"
	           "  + @m.a.w: f32[4]\n"
	           "\n"
	           "nodes\n"
	           "  ~ mul in m.a\n"
	           "      module: a -> m.a\n"
	           "      argument 1: @a.w (removed) -> @m.a.w\n");
}

static void a_node_that_moved_is_one_change(void **state)
{
	(void)state;
	check_page(
		"cleave-plan 1\nmodel \"M\"\ninput %x f32[4]\n"
		"%1 = aten::neg(%x) -> f32[4]\n%2 = aten::abs(%x) -> f32[4]\n%3 = aten::exp(%2) -> f32[4]\noutput (%1, %3)\n",
		"cleave-plan 1\nmodel \"M\"\ninput %x f32[4]\n"
		"%2 = aten::abs(%x) -> f32[4]\n%3 = aten::exp(%2) -> f32[4]\n%1 = aten::neg(%x) -> f32[4]\noutput (%1, %3)\n",
		"  nodes         1 changed, 2 the same\n"
		"\n"
		"nodes\n"
		"  ~ neg\n"
		"      position: 0, first -> 2, after exp\n");
}

#define FULL(symbol, cls, input, param, node, guard, rebind, output)                                                   \
	"cleave-plan 1\nmodel \"M\"\nsymbol B " symbol "\nscope \"\" \"M\"\nscope a \"" cls "\"\n"                         \
	"input %x f32[" input "] name=\"x\"\nparam @a.w f32[4] " param "\nbuffer @h f32[4]\nconst #c f32[4]\n"             \
	"%1 = aten::add.Tensor(%x, @a.w, 1) -> f32[B,4] " node "\n"                                                        \
	"%2 = aten::mul.Tensor(%1, #c) -> f32[B,4]\n"                                                                      \
	"%n = aten::item(%1) -> int = " guard " {host}\n" rebind "output " output "\n"

static void each_kind_of_change_is_in_its_section(void **state)
{
	(void)state;
	check_page(FULL("1..8", "A", "B,4", "trainable tied=@b.w", "in a at \"m.py:3\"", "3", "rebind @h = @a.w\n",
	                "{\"y\": %1, \"z\": (%2, 1)}"),
	           FULL("1..9", "C", "B,5", "", "{nograd} in a at \"m.py:4\"", "4", "rebind @h = #c\n",
	                "{\"y\": %2, \"w\": (%2, 2)}"),
	           "  symbols       1 changed\n"
	           "  inputs        1 changed\n"
	           "  outputs       3 changed, 1 the same\n"
	           "  modules       1 changed, 1 the same\n"
	           "  parameters    1 changed\n"
	           "  nodes         1 changed, 2 the same\n"
	           "  guards        1 changed\n"
	           "  rebinds       1 changed\n"
	           "  source lines  1 changed, 2 the same\n"
	           "\n"
	           "symbols\n"
	           "  ~ B\n"
	           "      range: 1..8 -> 1..9\n"
	           "\n"
	           "inputs\n"
	           "  ~ input x\n"
	           "      shape: [B,4] -> [B,5]\n"
	           "\n"
	           "outputs\n"
	           "  ~ output[\"y\"]\n"
	           "      is: add f32[B,4] -> mul f32[B,4]\n"
	           "  ~ output[key 1]\n"
	           "      is: \"z\" -> \"w\"\n"
	           "  ~ output[\"w\"][1]\n"
	           "      is: 1 -> 2\n"
	           "\n"
	           "modules\n"
	           "  ~ a\n"
	           "      class: \"A\" -> \"C\"\n"
	           "\n"
	           "parameters\n"
	           "  ~ @a.w\n"
	           "      trainable: yes -> no\n"
	           "      tied: removed b.w\n"
	           "\n"
	           "nodes\n"
	           "  ~ add in a\n"
	           "      modes: added {nograd}\n"
	           "\n"
	           "guards\n"
	           "  ~ item\n"
	           "      guard: 3 -> 4\n"
	           "\n"
	           "rebinds\n"
	           "  ~ @h\n"
	           "      value: @a.w -> #0\n"
	           "\n"
	           "source lines\n"
	           "  ~ add in a\n"
	           "      line: \"m.py:3\" -> \"m.py:4\"\n");
}

static void names_cannot_steer_the_terminal_or_break_the_json(void **state)
{
	(void)state;
	plan *a = load_ok("cleave-plan 1\nmodel \"\\x1b[2J\"\nparam @\"\\x1b]0;x\\x07\" f32[1]\noutput none\n");
	plan *b = load_ok("cleave-plan 1\nmodel \"\\xff\\n\\\"\"\ninput %x f32[1] name=\"a\\x01\\x9b\"\n"
	                  "%1 = a::b(%x, \"\\x1b\\xc3\") -> f32[1] at \"\\x7f\"\noutput {\"\\xfe\": opaque \"\\x1b\"}\n");
	bool differ;
	char *text = page(a, b, &differ);
	for (const char *s = text; *s; s++)
		assert_true(*s == '\n' || ((unsigned char)*s >= 0x20 && *s != 0x7F));
	assert_true(utf8_valid(text, strlen(text)));
	mem_free(text);
	text = json_page(a, b);
	json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
	assert_non_null(root);
	json_decref(root);
	mem_free(text);
	plan_free(a);
	plan_free(b);
}

static void the_json_has_the_same_facts(void **state)
{
	(void)state;
	plan *a = load_ok(plain), *b = load_ok(HEAD "%1 = aten::linear(%x, @a.w, none) -> f32[B,5] in a\noutput %1\n");
	char *text = json_page(a, b);
	assert_string_equal(
		text, "{\"differ\":true,\"parts\":[\n"
			  "  {\"part\":\"\",\"sections\":[\n"
			  "    {\"section\":\"model\",\"added\":0,\"removed\":0,\"changed\":0,\"same\":1,\"items\":[],"
			  "\"left_out\":0},\n"
			  "    {\"section\":\"symbols\",\"added\":0,\"removed\":0,\"changed\":0,\"same\":1,\"items\":[],"
			  "\"left_out\":0},\n"
			  "    {\"section\":\"inputs\",\"added\":0,\"removed\":0,\"changed\":0,\"same\":1,\"items\":[],"
			  "\"left_out\":0},\n"
			  "    {\"section\":\"outputs\",\"added\":0,\"removed\":0,\"changed\":1,\"same\":0,\"items\":[\n"
			  "      {\"change\":\"changed\",\"name\":\"output\",\"facts\":[{\"what\":\"is\",\"before\":\"relu_1 "
			  "(removed) "
			  "f32[B,4]\",\"after\":\"linear f32[B,5]\"}]}],\"left_out\":0},\n"
			  "    {\"section\":\"modules\",\"added\":0,\"removed\":0,\"changed\":0,\"same\":3,\"items\":[],"
			  "\"left_out\":0},\n"
			  "    {\"section\":\"parameters\",\"added\":0,\"removed\":0,\"changed\":0,\"same\":1,\"items\":[],"
			  "\"left_out\":0},\n"
			  "    {\"section\":\"nodes\",\"added\":0,\"removed\":2,\"changed\":1,\"same\":0,\"items\":[\n"
			  "      {\"change\":\"changed\",\"name\":\"linear in a\",\"facts\":[{\"what\":\"shape\",\"before\":"
			  "\"[B,4]\","
			  "\"after\":\"[B,5]\"}]},\n"
			  "      {\"change\":\"removed\",\"name\":\"relu in b\",\"facts\":[{\"what\":\"is\",\"before\":"
			  "\"aten::relu(linear) -\\u003e f32[B,4]\",\"after\":null}]},\n"
			  "      {\"change\":\"removed\",\"name\":\"relu_1 in b\",\"facts\":[{\"what\":\"is\",\"before\":"
			  "\"aten::relu(relu) -\\u003e f32[B,4]\",\"after\":null}]}],\"left_out\":0},\n"
			  "    {\"section\":\"source lines\",\"added\":0,\"removed\":0,\"changed\":0,\"same\":1,\"items\":[],"
			  "\"left_out\":0}]}]}\n");
	mem_free(text);
	plan_free(a);
	plan_free(b);
}

/* ---- random plans -------------------------------------------------------------------------------------------------- */

static void check_answer(uint64_t seed, const plan *a, const plan *b)
{
	bool differ, again;
	char *text = page(a, b, &differ), *twice = page(a, b, &again), *json = json_page(a, b);
	if (differ == plan_equal(a, b))
		fail_msg("seed %llu: the answer is not that of plan_equal\n%s", (unsigned long long)seed, text);
	assert_string_equal(text, twice);
	json_t *root = json_loads(json, JSON_REJECT_DUPLICATES, NULL);
	if (!root)
		fail_msg("seed %llu: no JSON\n%s", (unsigned long long)seed, json);
	assert_int_equal(json_is_true(json_object_get(root, "differ")), differ);
	json_decref(root);
	mem_free(text);
	mem_free(twice);
	mem_free(json);
}

static void a_plan_does_not_differ_from_itself(void **state)
{
	(void)state;
	for (uint64_t seed = 0; seed < 400; seed++) {
		plan *p = random_plan(seed);
		char *text = print_ok(p);
		plan *q = load_ok(text); /* the same plan, in other arrays */
		check_answer(seed, p, p);
		check_answer(seed, p, q);
		check_answer(seed, q, p);
		mem_free(text);
		plan_free(p);
		plan_free(q);
	}
}

static void two_random_plans_differ(void **state)
{
	(void)state;
	plan *before = random_plan(0);
	for (uint64_t seed = 1; seed < 400; seed++) {
		plan *p = random_plan(seed);
		check_answer(seed, before, p);
		plan_free(before);
		before = p;
	}
	plan_free(before);
}

/* One byte of the text changed: whatever verifies is reported, and as more than an order. */
static void every_small_change_of_a_random_plan_is_reported(void **state)
{
	(void)state;
	uint32_t changed = 0, orders = 0;
	for (uint64_t seed = 0; seed < 150; seed++) {
		plan *p = random_plan(seed);
		char *text = print_ok(p);
		uint64_t random = seed;
		size_t n = strlen(text);
		for (int i = 0; i < 60; i++) {
			char *mutant = mem_strdup(text, n);
			mutant[random64(&random) % n] = text[random64(&random) % n];
			plan *q = NULL;
			if (plan_parse(mutant, n, &q) == CLV_OK && plan_verify(q) == CLV_OK) {
				bool differ;
				check_answer(seed, p, q);
				char *found = page(p, q, &differ);
				changed += differ;
				orders += strstr(found, "declarations") != NULL;
				mem_free(found);
			}
			plan_free(q);
			mem_free(mutant);
		}
		mem_free(text);
		plan_free(p);
	}
	assert_true(changed > 1000);
	assert_int_equal(orders, 0);
}

/* Where the nodes of a plan's text begin, line by line. */
static const char *first_node(const char *text)
{
	static const char *const heads[] = {"cleave-plan ", "model ",  "symbol ", "scope ", "input ",
	                                    "param ",       "buffer ", "attr ",   "const ", "object "};
	for (bool head = true; head; text = head ? strchr(text, '\n') + 1 : text) {
		head = false;
		for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
			head = head || strncmp(text, heads[i], strlen(heads[i])) == 0;
	}
	return text;
}

static bool is_tail(const char *line)
{
	return !strncmp(line, "rebind ", 7) || !strncmp(line, "inputs ", 7) || !strncmp(line, "output ", 7);
}

/* Puts nodes of a new operator between those of a plan's text; how many. */
static uint32_t insert_nodes(const char *text, uint64_t *seed, strbuf *b)
{
	uint32_t n = 0;
	const char *at = first_node(text);
	strbuf_add(b, text, (size_t)(at - text));
	for (; !is_tail(at); at = strchr(at, '\n') + 1) {
		for (; random_below(seed, 3) == 0; n++)
			strbuf_printf(b, "%%new%u = test::edit(%u) -> f32[7]\n", n, n % 3);
		strbuf_add(b, at, (size_t)(strchr(at, '\n') - at) + 1);
	}
	strbuf_puts(b, at);
	return n;
}

static void check_count(const plan *a, const plan *b, uint32_t n, const char *what)
{
	char want[64] = "", *text;
	bool differ;
	if (n)
		snprintf(want, sizeof want, "  nodes         %u %s", n, what);
	text = page(a, b, &differ);
	assert_int_equal(differ, n > 0);
	if (strncmp(text, want, strlen(want)) != 0 || strstr(text, "changed"))
		fail_msg("not only \"%s\":\n%s", want, text);
	mem_free(text);
}

static void nodes_put_into_random_plans_are_all_that_is_reported(void **state)
{
	(void)state;
	for (uint64_t seed = 0; seed < 300; seed++) {
		plan *p = random_plan(seed);
		p->groups.n = 0; /* nodes are put between any two */
		char *text = print_ok(p);
		strbuf b = STRBUF_INIT;
		uint64_t random = seed;
		uint32_t n = insert_nodes(text, &random, &b);
		char *edited = taken(&b);
		plan *q = load_ok(edited);
		check_count(p, q, n, "added");
		check_count(q, p, n, "removed");
		mem_free(text);
		mem_free(edited);
		plan_free(p);
		plan_free(q);
	}
}

/* ---- large plans --------------------------------------------------------------------------------------------------- */

static plan *long_plan(uint32_t n, uint32_t without, const char *op)
{
	strbuf b = STRBUF_INIT;
	strbuf_puts(&b, "cleave-plan 1\nmodel \"Long\"\nsymbol B 1..64\nscope \"\" \"Long\"\ninput %0 f32[B,64]\n");
	for (uint32_t i = 0; i < n / 10; i++)
		strbuf_printf(&b, "scope layers.%u \"Linear\"\nparam @layers.%u.weight f32[64,64] trainable\n", i, i);
	uint32_t last = 0;
	for (uint32_t i = 0; i < n; i++) {
		if (i == without)
			continue;
		strbuf_printf(&b, "%%%u = %s%u.x(%%%u, @layers.%u.weight, [1, B*2]) -> f32[B,64] in layers.%u\n", i + 1, op,
		              i % 7, last, i / 10, i / 10);
		last = i + 1;
	}
	strbuf_printf(&b, "output %%%u\n", last);
	char *text = taken(&b);
	plan *p = load_ok(text);
	mem_free(text);
	return p;
}

static void compare_long(const char *what, const plan *a, const plan *b, const char *want)
{
	clv_diff_options o = CLV_DIFF_OPTIONS_INIT;
	char *text = NULL;
	bool differ;
	o.limit = 3;
	clock_t before = clock();
	OK(clv_plan_diff(a, b, &o, &text, &differ));
	print_message("%-10s %6.0f ms\n", what, (double)(clock() - before) * 1e3 / CLOCKS_PER_SEC);
	if (!strstr(text, want))
		fail_msg("no \"%s\" in\n%s", want, text);
	mem_free(text);
}

static void a_hundred_thousand_nodes_are_compared(void **state)
{
	(void)state;
	enum { N = 100000 };
	plan *a = long_plan(N, NONE, "aten::op"), *b = long_plan(N, 54321, "aten::op"),
		 *c = long_plan(N, NONE, "aten::else");
	compare_long("few", a, b, "  nodes         1 removed, 1 changed, 99998 the same\n");
	compare_long("all", a, c, "  nodes         100000 changed\n");
	compare_long("all", a, c, "  and 99997 more\n");
	plan_free(a);
	plan_free(b);
	plan_free(c);
}

/* ---- files --------------------------------------------------------------------------------------------------------- */

static char paths[2][32];

static int open_files(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		strcpy(paths[i], "/tmp/cleave-diff-XXXXXX");
		int fd = mkstemp(paths[i]);
		if (fd < 0)
			return -1;
		close(fd);
	}
	return 0;
}

static int close_files(void **state)
{
	(void)state;
	return unlink(paths[0]) | unlink(paths[1]);
}

typedef struct given {
	const char *label;
	dtype dtype;
	int64_t rows, columns; /* columns 0: one dimension */
	const void *data;
	bool trainable, transposed;
} given;

static uint32_t add_tensor(artifact *a, const given *g)
{
	int64_t sizes[2] = {g->rows, g->columns}, strides[2] = {g->columns ? g->columns : 1, 1};
	payload_tensor t = {
		.label = g->label, .dtype = g->dtype, .requires_grad = g->trainable, .device = "cpu", .has_lead = true};
	uint32_t out;
	if (g->transposed) {
		strides[0] = 1;
		strides[1] = g->rows;
	}
	t.ndim = g->columns ? 2 : 1;
	t.sizes = sizes;
	t.strides = strides;
	t.data = g->data;
	OK(payload_add_tensor(a->tensors, &t, &out));
	return out;
}

static void save(const char *text, const given *tensors, uint32_t n, const char *constant, const char *torch, int which)
{
	artifact *a = NULL;
	OK(artifact_new("all", &a));
	OK(artifact_note_add(a, "torch", torch));
	for (uint32_t i = 0; i < n; i++)
		add_tensor(a, &tensors[i]);
	OK(artifact_add_plan(a, load_ok(text), "signature"));
	plan *p = a->plans.at[0].p;
	for (value_id v = 0; v < p->values.n; v++)
		if (p->values.at[v].kind == VALUE_CONST)
			OK(vec_push(&a->plans.at[0].consts, ((artifact_const){v, payload_find(a->tensors, constant)})));
	OK(artifact_save(a, paths[which]));
	artifact_free(a);
}

static char *diff_files(clv_diff_weights how, bool *differ)
{
	clv_diff_options o = CLV_DIFF_OPTIONS_INIT;
	clv_artifact *a = NULL, *b = NULL;
	char *text = NULL;
	o.weights = how;
	OK(clv_artifact_open(paths[0], NULL, &a));
	OK(clv_artifact_open(paths[1], NULL, &b));
	OK(clv_artifact_diff(a, b, &o, &text, differ));
	clv_artifact_free(a);
	clv_artifact_free(b);
	return text;
}

static void check_files(clv_diff_weights how, const char *want)
{
	bool differ;
	char *text = diff_files(how, &differ);
	if (strcmp(text, want) != 0)
		fail_msg("the page is\n%s\ninstead of\n%s", text, want);
	assert_int_equal(differ, want[0] != '\0');
	mem_free(text);
}

static const float ones[6] = {1, 1, 1, 1, 1, 1}, others[6] = {1, 1.5f, 1, -1, 1, 1}, nans[6] = {1, 1, 1, 1, 1, NAN};

static const char *const weighted = "cleave-plan 1\nmodel \"M\"\ninput %x f32[2,3]\nparam @w f32[2,3] trainable\n"
									"%1 = aten::add.Tensor(%x, @w, 1) -> f32[2,3]\noutput %1\n";

static void save_weight(dtype d, const void *data, bool transposed, int which)
{
	char text[256];
	snprintf(text, sizeof text,
	         "cleave-plan 1\nmodel \"M\"\ninput %%x f32[2,3]\nparam @w %s[2,3]\n"
	         "%%1 = aten::add.Tensor(%%x, @w, 1) -> f32[2,3]\noutput %%1\n",
	         dtype_name(d));
	save(text, &(given){"w", d, 2, 3, data, false, transposed}, 1, "", "2.13", which);
}

static void a_file_does_not_differ_from_a_copy_of_it(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++)
		save(weighted, &(given){"w", DT_F32, 2, 3, ones, true}, 1, "", "2.13", i);
	check_files(CLV_DIFF_EXACT, "");
	check_files(CLV_DIFF_DIGEST, "");
}

static void changed_weights_are_counted_and_measured(void **state)
{
	(void)state;
	save(weighted, &(given){"w", DT_F32, 2, 3, ones, true}, 1, "", "2.13", 0);
	save(weighted, &(given){"w", DT_F32, 2, 3, others, true}, 1, "", "2.14", 1);
	check_files(CLV_DIFF_EXACT, "file\n"
	                            "  about         1 changed\n"
	                            "  weights       1 changed\n"
	                            "\n"
	                            "file: about\n"
	                            "  ~ \"torch\"\n"
	                            "      text: \"2.13\" -> \"2.14\"\n"
	                            "\n"
	                            "file: weights\n"
	                            "  ~ \"w\"\n"
	                            "      data: 2 of 6 elements differ, by up to 2.0\n");
	save(weighted, &(given){"w", DT_F32, 2, 3, nans, true}, 1, "", "2.13", 1);
	check_files(CLV_DIFF_EXACT, "file\n"
	                            "  weights       1 changed\n"
	                            "\n"
	                            "file: weights\n"
	                            "  ~ \"w\"\n"
	                            "      data: 1 of 6 elements differ, by up to 0.0; 1 are nan on one side\n");
	check_files(CLV_DIFF_DIGEST, "file\n"
	                             "  weights       1 changed\n"
	                             "\n"
	                             "file: weights\n"
	                             "  ~ \"w\"\n"
	                             "      data: differs\n");
	check_files(CLV_DIFF_NONE, "");
}

static void data_fact(dtype d, const void *before, const void *after, const char *want)
{
	bool differ;
	save_weight(d, before, false, 0);
	save_weight(d, after, false, 1);
	char *text = diff_files(CLV_DIFF_EXACT, &differ);
	if (!strstr(text, want))
		fail_msg("%s: no \"%s\" in\n%s", dtype_name(d), want, text);
	mem_free(text);
}

static void differences_of_all_types_are_exact(void **state)
{
	(void)state;
	data_fact(DT_F64, (double[6]){1}, (double[6]){1, 0, 1e300}, "1 of 6 elements differ, by up to 1e+300");
	data_fact(DT_F16, (uint16_t[6]){0x3c00}, (uint16_t[6]){0x3e00}, "1 of 6 elements differ, by up to 0.5");
	data_fact(DT_BF16, (uint16_t[6]){0x3f80}, (uint16_t[6]){0xbf80}, "1 of 6 elements differ, by up to 2.0");
	data_fact(DT_F32, (float[6]){0}, (float[6]){-0.0f}, "1 of 6 elements differ, by up to 0.0");
	data_fact(DT_F32, (float[6]){0}, (float[6]){INFINITY}, "1 of 6 elements differ, by up to inf");
	data_fact(DT_I64, (int64_t[6]){INT64_MIN}, (int64_t[6]){INT64_MAX}, "by up to 1.8446744073709552e+19");
	data_fact(DT_I64, (int64_t[6]){INT64_C(1) << 60}, (int64_t[6]){(INT64_C(1) << 60) + 1}, "by up to 1.0");
	data_fact(DT_I32, (int32_t[6]){-2000000000}, (int32_t[6]){2000000000}, "by up to 4000000000.0");
	data_fact(DT_I16, (int16_t[6]){-3}, (int16_t[6]){4}, "by up to 7.0");
	data_fact(DT_I8, (int8_t[6]){-128}, (int8_t[6]){127}, "by up to 255.0");
	data_fact(DT_U8, (uint8_t[6]){0}, (uint8_t[6]){255}, "by up to 255.0");
	data_fact(DT_BOOL, (uint8_t[6]){0}, (uint8_t[6]){1, 1}, "2 of 6 elements differ\n");
}

static void elements_are_compared_by_their_index_whatever_the_strides(void **state)
{
	(void)state;
	static const float rows[6] = {1, 2, 3, 4, 5, 6}, columns[6] = {1, 4, 2, 5, 3, 6}, off[6] = {1, 4, 2, 5, 3, 7};
	save_weight(DT_F32, rows, false, 0);
	save_weight(DT_F32, columns, true, 1);
	const char *strides =
		"file\n  weights       1 changed\n\nfile: weights\n  ~ \"w\"\n      strides: [3,1] -> [1,2]\n";
	check_files(CLV_DIFF_EXACT, strides);
	save_weight(DT_F32, off, true, 1);
	char want[256];
	snprintf(want, sizeof want, "%s      data: 1 of 6 elements differ, by up to 1.0\n", strides);
	check_files(CLV_DIFF_EXACT, want);
}

static void another_type_of_the_same_values_has_no_other_data(void **state)
{
	(void)state;
	static const float values[6] = {1, 2, 3, 4, 5, 6};
	static const uint16_t same[6] = {0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0};
	bool differ;
	save_weight(DT_F32, values, false, 0);
	save_weight(DT_BF16, same, false, 1);
	char *text = diff_files(CLV_DIFF_EXACT, &differ);
	assert_non_null(strstr(text, "dtype: f32 -> bf16"));
	assert_null(strstr(text, "data:"));
	mem_free(text);
}

#define CONSTANT(more, number)                                                                                         \
	"cleave-plan 1\nmodel \"M\"\ninput %x f32[6]\n" more "%1 = aten::add.Tensor(%x, #" number                          \
	", 1) -> f32[6]\noutput %1\n"

/* A constant goes with the node that reads it, whatever its number and its name in the file. */
static void constants_are_compared_with_their_plan(void **state)
{
	(void)state;
	save(CONSTANT("const #0 f32[6]\n", "0"), &(given){"k0", DT_F32, 6, 0, ones}, 1, "k0", "2.13", 0);
	save(CONSTANT("const #0 f32[6]\n", "0"), &(given){"k7", DT_F32, 6, 0, others}, 1, "k7", "2.13", 1);
	check_files(CLV_DIFF_EXACT, "plan\n"
	                            "  constants     1 changed\n"
	                            "\n"
	                            "plan: constants\n"
	                            "  ~ #0\n"
	                            "      data: 2 of 6 elements differ, by up to 2.0\n");
}

static void tensors_that_come_and_go_are_listed(void **state)
{
	(void)state;
	static const given before[] = {{"w", DT_F32, 2, 3, ones, true}, {"old", DT_F32, 6, 0, ones}},
					   after[] = {{"w", DT_F32, 2, 3, ones, false}, {"new", DT_I64, 0, 0, NULL}};
	save(weighted, before, 2, "", "2.13", 0);
	save(weighted, after, 2, "", "2.13", 1);
	check_files(CLV_DIFF_EXACT, "file\n"
	                            "  weights       1 added, 1 removed, 1 changed\n"
	                            "\n"
	                            "file: weights\n"
	                            "  ~ \"w\"\n"
	                            "      trainable: yes -> no\n"
	                            "  - \"old\": f32[6]\n"
	                            "  + \"new\": i64[0]\n");
}

/* Over the end of a block, in rows and in columns. */
static void large_tensors_are_compared_to_their_end(void **state)
{
	(void)state;
	enum { N = 1500 };
	float *x = mem_alloc(2 * N * sizeof *x);
	const char *text =
		"cleave-plan 1\nmodel \"M\"\nparam @w f32[2,1500]\n%1 = aten::neg(@w) -> f32[2,1500]\noutput %1\n";
	bool differ;
	for (int transposed = 0; transposed < 2; transposed++) {
		x[2 * N - 1] = 0;
		save(text, &(given){"w", DT_F32, 2, N, x, false, transposed}, 1, "", "", 0);
		x[2 * N - 1] = 3;
		save(text, &(given){"w", DT_F32, 2, N, x, false, transposed}, 1, "", "", 1);
		char *found = diff_files(CLV_DIFF_EXACT, &differ);
		assert_non_null(strstr(found, "1 of 3000 elements differ, by up to 3.0"));
		mem_free(found);
	}
	mem_free(x);
}

/* ---- faults -------------------------------------------------------------------------------------------------------- */

typedef struct two {
	const clv_plan *a, *b;
	const clv_artifact *fa, *fb;
	bool json;
} two;

static clv_status attempt(const void *ctx)
{
	const two *t = ctx;
	clv_diff_options o = CLV_DIFF_OPTIONS_INIT;
	char *text = NULL;
	bool differ;
	o.json = t->json;
	TRY(t->fa ? clv_artifact_diff(t->fa, t->fb, &o, &text, &differ) : clv_plan_diff(t->a, t->b, &o, &text, &differ));
	clv_free(text);
	return CLV_OK;
}

static void every_allocation_may_fail(void **state)
{
	(void)state;
	two t = {.a = random_plan(11), .b = random_plan(12)};
	assert_in_range(sweep_faults(attempt, &t, CLV_OK), 50, 20000);
	t.json = true;
	sweep_faults(attempt, &t, CLV_OK);
	plan_free((plan *)t.a);
	plan_free((plan *)t.b);
}

static void every_allocation_may_fail_while_files_are_compared(void **state)
{
	(void)state;
	two t = {0};
	clv_artifact *a = NULL, *b = NULL;
	save(CONSTANT("const #0 f32[6]\n", "0"), &(given){"k0", DT_F32, 6, 0, ones}, 1, "k0", "2.13", 0);
	save(weighted, &(given){"w", DT_F32, 2, 3, others, true}, 1, "", "2.14", 1);
	OK(clv_artifact_open(paths[0], NULL, &a));
	OK(clv_artifact_open(paths[1], NULL, &b));
	t.fa = a;
	t.fb = b;
	assert_in_range(sweep_faults(attempt, &t, CLV_OK), 50, 20000);
	clv_artifact_free(a);
	clv_artifact_free(b);
}

static void wrong_arguments_are_refused(void **state)
{
	(void)state;
	plan *p = load_ok(plain);
	char *text = NULL;
	bool differ = true;
	clv_diff_options o = CLV_DIFF_OPTIONS_INIT;
	FAILS(clv_plan_diff(NULL, p, NULL, &text, &differ), CLV_E_INVALID, "needs two plans");
	FAILS(clv_plan_diff(p, p, NULL, NULL, &differ), CLV_E_INVALID, "needs two plans");
	FAILS(clv_artifact_diff(NULL, NULL, NULL, &text, &differ), CLV_E_INVALID, "needs two artifacts");
	o.weights = (clv_diff_weights)7;
	FAILS(clv_plan_diff(p, p, &o, &text, &differ), CLV_E_INVALID, "no way to compare");
	o.size = 3;
	FAILS(clv_plan_diff(p, p, &o, &text, &differ), CLV_E_INVALID, "clv_diff_options");
	assert_null(text);
	plan_free(p);
}

/* ---- files for the tests of the command ---------------------------------------------------------------------------- */

/* A tensor of an external value: the numbers 0, 1, 2, … but for its last element. */
static void add_counted(artifact *a, value_id v, const char *label, float last)
{
	static float data[4096];
	const plan *p = a->plans.at[0].p;
	const value *x = &p->values.at[v];
	int64_t sizes[4], strides[4], n = 1;
	payload_tensor t = {.label = label, .dtype = DT_F32, .device = "cpu", .data = data, .has_lead = true};
	uint32_t out;
	for (uint32_t i = x->ndim; i-- > 0; n *= sizes[i]) {
		assert_true(expr_is_const(p, p->dims.at[x->shape + i], &sizes[i]));
		strides[i] = n;
	}
	for (int64_t i = 0; i < n; i++)
		data[i] = (float)i;
	data[n - 1] += last;
	t.ndim = x->ndim;
	t.sizes = sizes;
	t.strides = strides;
	t.requires_grad = x->flags & VALUE_TRAINABLE;
	t.data = memcpy(mem_alloc((size_t)n * sizeof *data), data, (size_t)n * sizeof *data);
	OK(vec_push(&a->tensors->buffers, (void *)t.data));
	OK(payload_add_tensor(a->tensors, &t, &out));
	if (x->kind == VALUE_CONST)
		OK(vec_push(&a->plans.at[0].consts, ((artifact_const){v, out})));
}

/* name.plan of the folder as name.clv. */
static void write_fixture(const char *folder, const char *name, const char *signature, float last, int64_t point)
{
	char path[512];
	uint8_t *text = NULL;
	size_t n;
	artifact *a = NULL;
	plan *p = NULL;
	snprintf(path, sizeof path, "%s/%s.plan", folder, name);
	OK(file_read(path, &text, &n));
	OK(clv_plan_parse((const char *)text, n, &p));
	OK(artifact_new("all", &a));
	OK(artifact_add_plan(a, p, signature));
	OK(artifact_note_add(a, "model", "small.Small"));
	OK(artifact_note_add(a, "revision", name));
	OK(vec_push(&a->plans.at[0].points, 1));
	OK(vec_push(&a->plans.at[0].points, point));
	for (value_id v = 0; v < p->values.n; v++)
		if (p->values.at[v].kind != VALUE_INPUT && p->values.at[v].kind != VALUE_RESULT)
			add_counted(a, v, p->values.at[v].kind == VALUE_CONST ? "constant" : plan_s(p, p->values.at[v].name), last);
	snprintf(path, sizeof path, "%s/%s.clv", folder, name);
	OK(artifact_save(a, path));
	artifact_free(a);
	mem_free(text);
}

/* With a folder (tests/plan/diff) it writes the files that tests/plan/diff.txt compares. */
int main(int argc, char **argv)
{
	if (argc > 1) {
		write_fixture(argv[1], "before", "one", 0, 4);
		write_fixture(argv[1], "after", "other", 0.5f, 8);
		return 0;
	}
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(short_sequences_are_aligned_as_far_as_can_be),
		cmocka_unit_test(long_sequences_with_little_in_common_are_bounded),
		cmocka_unit_test(what_a_new_node_moves_along_is_not_reported),
		cmocka_unit_test(a_removed_node_is_named_as_it_was),
		cmocka_unit_test(an_operator_in_the_place_of_another_is_one_change),
		cmocka_unit_test(a_renamed_module_keeps_its_nodes),
		cmocka_unit_test(a_node_that_moved_is_one_change),
		cmocka_unit_test(each_kind_of_change_is_in_its_section),
		cmocka_unit_test(names_cannot_steer_the_terminal_or_break_the_json),
		cmocka_unit_test(the_json_has_the_same_facts),
		cmocka_unit_test(a_plan_does_not_differ_from_itself),
		cmocka_unit_test(two_random_plans_differ),
		cmocka_unit_test(every_small_change_of_a_random_plan_is_reported),
		cmocka_unit_test(nodes_put_into_random_plans_are_all_that_is_reported),
		cmocka_unit_test(a_hundred_thousand_nodes_are_compared),
		cmocka_unit_test(a_file_does_not_differ_from_a_copy_of_it),
		cmocka_unit_test(changed_weights_are_counted_and_measured),
		cmocka_unit_test(differences_of_all_types_are_exact),
		cmocka_unit_test(elements_are_compared_by_their_index_whatever_the_strides),
		cmocka_unit_test(another_type_of_the_same_values_has_no_other_data),
		cmocka_unit_test(constants_are_compared_with_their_plan),
		cmocka_unit_test(tensors_that_come_and_go_are_listed),
		cmocka_unit_test(large_tensors_are_compared_to_their_end),
		cmocka_unit_test(every_allocation_may_fail),
		cmocka_unit_test(every_allocation_may_fail_while_files_are_compared),
		cmocka_unit_test(wrong_arguments_are_refused),
	};
	return cmocka_run_group_tests_name("diff", tests, open_files, close_files);
}
