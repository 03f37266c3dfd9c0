/* Compiled segments in artifacts: what is saved comes back; crafted ones are refused; nodes as artifacts of their own; the
 * order of nodes changed. */
#include "artifacts.h"

#include <time.h>

#include "file/artifact_segments.h"
#include "plan/view.h"

/* ---- samples ------------------------------------------------------------------------------------------------------ */

static const uint8_t code_bytes[100] = {0x7f, 'E', 'L', 'F'}, more_bytes[64] = {1, 2, 3};

/* Of two_layers: linear and relu. One input and one output of two dimensions each. */
static void fill_segment(artifact_segment *s, node_id first, node_id end)
{
	static const uint32_t rows[] = {0, 1}, columns[] = {1, 0};
	s->first = first;
	s->end = end;
	s->backend = "inductor";
	OK(vec_push(&s->sizes, ((artifact_sizes){1, 64})));
	for (int i = 0; i < 2; i++) {
		OK(vec_push(&s->in_order, rows[i]));
		OK(vec_push(&s->out_order, columns[i]));
	}
	OK(vec_push(&s->needs, ((artifact_note){"torch", "2.13.0"})));
	OK(vec_push(&s->needs, ((artifact_note){"cpu", "avx2 avx512f"})));
	OK(vec_push(&s->facts, ((artifact_note){"error", "1.2e-7"})));
	OK(vec_push(&s->members, ((artifact_member){"model.so", code_bytes, sizeof code_bytes})));
	OK(vec_push(&s->members, ((artifact_member){"model.bin", more_bytes, sizeof more_bytes})));
	OK(vec_push(&s->members, ((artifact_member){"empty", NULL, 0})));
}

static void add_sample_segment(artifact *a, node_id first, node_id end)
{
	artifact_segment s = {0};
	fill_segment(&s, first, end);
	OK(artifact_add_segment(a, 0, &s));
	segment_free(&s);
}

static artifact *compiled_sample(void)
{
	artifact *a = sample_of_two_plans();
	add_sample_segment(a, 0, 2);
	add_sample_segment(a, 3, 5);
	OK(artifact_add_fallback(a, 0, 2, "it is not taken"));
	OK(artifact_add_fallback(a, 1, 0, "nothing is compiled here"));
	artifact_segment slow = {.first = 2, .end = 3, .backend = "openvino"};
	OK(vec_push(&slow.facts, ((artifact_note){"code_ms", "0.25"})));
	OK(artifact_add_dropped(a, 0, &slow));
	vec_free(&slow.facts);
	return a;
}

static image crafted; /* a file of the sample */

/* ---- what comes back ---------------------------------------------------------------------------------------------- */

static void check_note(const artifact_note *n, const char *key, const char *text)
{
	assert_string_equal(n->key, key);
	assert_string_equal(n->text, text);
}

static void check_segment(const artifact_segment *s, node_id first, node_id end)
{
	assert_int_equal(s->first, first);
	assert_int_equal(s->end, end);
	assert_string_equal(s->backend, "inductor");
	assert_int_equal(s->sizes.n, 1);
	assert_int_equal(s->sizes.at[0].high, 64);
	assert_int_equal(s->in_order.n, 2);
	assert_int_equal(s->out_order.at[0], 1);
	check_note(&s->needs.at[0], "torch", "2.13.0");
	check_note(&s->needs.at[1], "cpu", "avx2 avx512f");
	check_note(&s->facts.at[0], "error", "1.2e-7");
	assert_int_equal(s->members.n, 3);
	assert_string_equal(s->members.at[1].name, "model.bin");
	assert_int_equal(s->members.at[0].n, sizeof code_bytes);
	assert_memory_equal(s->members.at[0].data, code_bytes, sizeof code_bytes);
	assert_memory_equal(s->members.at[1].data, more_bytes, sizeof more_bytes);
	assert_int_equal(s->members.at[2].n, 0);
}

static void segments_come_back_and_are_no_tensors(void **state)
{
	(void)state;
	image i = written(compiled_sample());
	artifact *a = opened(i);
	const artifact_plan *e = &a->plans.at[0];
	assert_int_equal(e->segments.n, 2);
	check_segment(&e->segments.at[0], 0, 2);
	check_segment(&e->segments.at[1], 3, 5);
	for (uint32_t k = 0; k < 6; k++)
		assert_int_equal((uintptr_t)e->segments.at[k / 3].members.at[k % 3].data % 64, 0);
	assert_int_equal(e->fallbacks.n, 1);
	assert_string_equal(e->fallbacks.at[0].reason, "it is not taken");
	assert_int_equal(e->dropped.n, 1);
	assert_int_equal(e->dropped.at[0].first, 2);
	assert_int_equal(e->dropped.at[0].end, 3);
	assert_string_equal(e->dropped.at[0].backend, "openvino");
	check_note(&e->dropped.at[0].facts.at[0], "code_ms", "0.25");
	assert_int_equal(a->plans.at[1].segments.n, 0);
	assert_int_equal(a->plans.at[1].fallbacks.at[0].node, 0);
	assert_int_equal(clv_artifact_tensor_count(a), 5);
	assert_true(clv_artifact_entry_count(a) >= 5 + 6);
	OK(artifact_check_data(a));
	artifact_free(a);
	image_free(&i);
}

static void segments_are_listed(void **state)
{
	(void)state;
	artifact *a = opened(crafted);
	clv_segment_info info = {.size = sizeof info};
	const char *key, *text;
	uint32_t n;
	assert_int_equal(clv_artifact_segment_count(a, 0), 2);
	assert_int_equal(clv_artifact_segment_count(a, 1), 0);
	assert_int_equal(clv_artifact_segment_count(a, 2), 0);
	assert_int_equal(clv_artifact_segment_count(NULL, 0), 0);
	OK(clv_artifact_segment(a, 0, 1, &info));
	assert_string_equal(info.backend, "inductor");
	assert_int_equal(info.first, 3);
	assert_int_equal(info.end, 5);
	assert_int_equal(info.bytes, sizeof code_bytes + sizeof more_bytes);
	assert_int_equal(info.nsymbols, 1);
	assert_int_equal(info.sizes[0], 1);
	assert_int_equal(info.sizes[1], 64);
	assert_true(clv_artifact_segment_need(a, 0, 1, 1, &key, &text));
	assert_string_equal(key, "cpu");
	assert_false(clv_artifact_segment_need(a, 0, 1, 2, &key, &text));
	assert_true(clv_artifact_segment_fact(a, 0, 0, 0, &key, &text));
	assert_string_equal(text, "1.2e-7");
	assert_false(clv_artifact_segment_fact(a, 0, 2, 0, &key, &text));
	assert_true(clv_artifact_fallback(a, 0, 0, &n, &text));
	assert_int_equal(n, 2);
	assert_string_equal(text, "it is not taken");
	assert_false(clv_artifact_fallback(a, 0, 1, &n, &text));
	assert_false(clv_artifact_fallback(a, 2, 0, &n, &text));
	assert_false(clv_artifact_fallback(NULL, 0, 0, &n, &text));
	FAILS(clv_artifact_segment(a, 0, 2, &info), CLV_E_INVALID, "no such segment");
	FAILS(clv_artifact_segment(NULL, 0, 0, &info), CLV_E_INVALID, "no such segment");
	FAILS(clv_artifact_segment(a, 0, 0, NULL), CLV_E_INVALID, "no place");
	artifact_free(a);
}

static char *difference(const artifact *a, const artifact *b)
{
	char *text;
	bool differ;
	OK(clv_artifact_diff(a, b, NULL, &text, &differ));
	assert_int_equal(differ, a != b);
	return text;
}

static void other_code_is_a_difference(void **state)
{
	(void)state;
	image plain = written(sample_of_two_plans());
	artifact *a = opened(crafted), *b = opened(plain), *other, *c;
	plan *none[2] = {NULL, NULL};
	OK(artifact_reordered(a, none, &other));
	other->plans.at[0].segments.at[1].members.at[0].data = plain.at; /* other bytes */
	other->plans.at[0].fallbacks.at[0].reason = "for another reason";
	image changed = written(other);
	c = opened(changed);
	char *same = difference(a, a), *less = difference(a, b), *bytes = difference(a, c);
	assert_null(strstr(same, "compiled segments"));
	assert_non_null(strstr(less, "compiled segments"));
	assert_non_null(strstr(less, "nodes not compiled"));
	assert_non_null(strstr(bytes, "compiled segments"));
	assert_non_null(strstr(bytes, "for another reason"));
	clv_free(same);
	clv_free(less);
	clv_free(bytes);
	artifact_free(a);
	artifact_free(b);
	artifact_free(c);
	image_free(&plain);
	image_free(&changed);
}

static void changed_code_is_found_and_named(void **state)
{
	(void)state;
	image i = written(compiled_sample());
	artifact *a = opened(i);
	((uint8_t *)a->plans.at[0].segments.at[1].members.at[0].data)[7] ^= 1;
	FAILS(artifact_check_data(a), CLV_E_PARSE, "cleave.segment.0.1.model.so");
	artifact_free(a);
	image_free(&i);
}

/* A reader of version 1 has to refuse it, one without segments not. */
static void only_files_with_segments_have_the_newer_version(void **state)
{
	(void)state;
	artifact *a = sample();
	OK(artifact_add_fallback(a, 0, 2, "nobody takes it"));
	image one = written(a), two = written(compiled_sample()), plain = written(sample());
	opened_up o[] = {open_up(one), open_up(two), open_up(plain)};
	static const int versions[] = {1, 2, 1};
	for (int i = 0; i < 3; i++) {
		const json_t *version = json_object_get(o[i].description, "version");
		assert_int_equal(json_integer_value(json_array_get(version, 0)), versions[i]);
		assert_int_equal(json_object_get(metadata_of(&o[i]), ARTIFACT_SEGMENTS_KEY) != NULL, i != 2);
		image again = closed_again(&o[i]);
		OK(try_image(again));
		image_free(&again);
	}
	image_free(&one);
	image_free(&two);
	image_free(&plain);
}

static void a_part_has_no_segments(void **state)
{
	(void)state;
	image i = written(compiled_sample());
	artifact *a = opened(i);
	image part = written(taken_from(a, "prefix", (const artifact_range[]){{0, 2, 2}, {0, 3, 3}}));
	artifact *b = opened(part);
	assert_false(segments_any(b) || fallbacks_any(b));
	artifact_free(b);
	artifact_free(a);
	image_free(&part);
	image_free(&i);
}

static void reasons_of_any_length_and_bytes_can_be_saved(void **state)
{
	(void)state;
	char *text = malloc(20001);
	memset(text, 'x', 20000);
	text[20000] = '\0';
	text[3] = (char)0xff;
	artifact *a = sample();
	OK(artifact_add_fallback(a, 0, 0, text));
	image i = written(a);
	a = opened(i);
	const char *reason = a->plans.at[0].fallbacks.at[0].reason;
	assert_true(strlen(reason) <= SEGMENT_TEXT);
	assert_memory_equal(reason, "xxx?xx", 6);
	assert_string_equal(reason + strlen(reason) - strlen(" …"), " …");
	artifact_free(a);
	image_free(&i);
	free(text);
}

/* ---- what is not written ------------------------------------------------------------------------------------------ */

typedef void (*spoil_fn)(artifact *a, artifact_segment *s);

static void spoil_range(artifact *a, artifact_segment *s)
{
	(void)a;
	s->end = 6;
}

static void spoil_empty(artifact *a, artifact_segment *s)
{
	(void)a;
	s->end = s->first;
}

static void spoil_order(artifact *a, artifact_segment *s)
{
	(void)a;
	s->in_order.at[0] = 1;
}

static void spoil_missing_order(artifact *a, artifact_segment *s)
{
	(void)a;
	s->out_order.n = 1;
}

static void spoil_name(artifact *a, artifact_segment *s)
{
	(void)a;
	s->members.at[0].name = "../model.so";
}

static void spoil_twice(artifact *a, artifact_segment *s)
{
	(void)a;
	s->members.at[0].name = "model.bin";
}

static void spoil_need(artifact *a, artifact_segment *s)
{
	(void)a;
	s->needs.at[1].key = "torch";
}

static void spoil_text(artifact *a, artifact_segment *s)
{
	(void)a;
	s->facts.at[0].text = "\xff";
}

static void spoil_values(artifact *a, artifact_segment *s)
{
	static const node_id order[] = {0, 1, 3, 2, 4};
	plan *p = load_ok("cleave-plan 1\n"
	                  "model \"m\"\n"
	                  "symbol B 1..64\n"
	                  "input %0 f32[B,4]\n"
	                  "%1 = aten::relu(%0) -> f32[B,4]\n"
	                  "%2 = aten::neg(%1) -> f32[B,4]\n"
	                  "%3 = aten::neg(%0) -> f32[B,4]\n"
	                  "%4 = aten::abs(%0) -> f32[B,4]\n"
	                  "%5 = aten::abs(%2) -> f32[B,4]\n"
	                  "output (%2, %3, %4, %5)\n");
	(void)s;
	plan_free(a->plans.at[0].p);
	OK(plan_reorder(p, order, &a->plans.at[0].p));
	plan_free(p);
}

static void spoil_label(artifact *a, artifact_segment *s)
{
	static const int64_t size[] = {1};
	(void)s;
	OK(add(a->tensors, tensor_on("cleave.segment.0.0.model.so", DT_F32, weights, 0, 1, size, size)));
}

static void what_breaks_a_rule_is_not_written(void **state)
{
	(void)state;
	static const struct {
		spoil_fn spoil;
		const char *why;
	} cases[] = {
		{spoil_range, "plan 0: segment 0: nodes 0 to 6 are not in the part, which is 0 to 5"},
		{spoil_empty, "nodes 0 to 0 are not in the part"},
		{spoil_order, "the order of the dimensions of input 0 is none"},
		{spoil_missing_order, "the order of the dimensions of output 0 is none"},
		{spoil_name, "\"../model.so\" cannot be the name of a member"},
		{spoil_twice, "two members \"model.bin\""},
		{spoil_need, "\"torch\" is twice among its needs"},
		{spoil_text, "\"error\" of its facts is too long, or no text"},
		{spoil_values, "not numbered as in its text"},
		{spoil_label, "a tensor has the name \"cleave.segment.0.0.model.so\""},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		artifact *a = sample();
		artifact_segment s = {0};
		strbuf b = STRBUF_INIT;
		fill_segment(&s, 0, 2);
		cases[i].spoil(a, &s);
		OK(artifact_add_segment(a, 0, &s));
		clv_status st = artifact_append(a, &b);
		if (st == CLV_OK || !strstr(status_message(), cases[i].why))
			fail_msg("%zu: status %d \"%s\" instead of \"%s\"", i, st, st ? status_message() : "", cases[i].why);
		segment_free(&s);
		artifact_free(a);
	}
	artifact *a = sample();
	artifact_segment s = {0};
	FAILS(artifact_add_segment(a, 1, &s), CLV_E_INVALID, "no plan 1");
	FAILS(artifact_add_fallback(a, 1, 0, ""), CLV_E_INVALID, "no plan 1");
	artifact_free(a);
}

/* ---- crafted ------------------------------------------------------------------------------------------------------ */

/* The file with the text about segments changed by `edit`, which gets it as text. */
static void bad_text(const char *from, const char *to, const char *why)
{
	opened_up o = open_up(crafted);
	const char *text = json_string_value(json_object_get(metadata_of(&o), ARTIFACT_SEGMENTS_KEY));
	const char *at = strstr(text, from);
	assert_non_null(at);
	strbuf b = STRBUF_INIT;
	strbuf_add(&b, text, (size_t)(at - text));
	strbuf_puts(&b, to);
	strbuf_puts(&b, at + strlen(from));
	char *made = taken(&b);
	json_object_set_new(metadata_of(&o), ARTIFACT_SEGMENTS_KEY, json_string(made));
	image i = closed_again(&o);
	clv_status st = try_image(i);
	if (st != CLV_E_PARSE || !strstr(status_message(), why))
		fail_msg("%s -> %s: status %d \"%s\" instead of \"%s\"", from, to, st, st ? status_message() : "", why);
	mem_free(made);
	image_free(&i);
}

static void crafted_segments_are_refused(void **state)
{
	(void)state;
	bad_text("\"nodes\":[0,2]", "\"nodes\":[0]", "no pair");
	bad_text("\"nodes\":[0,2]", "\"nodes\":[0,-2]", "no number of a node");
	bad_text("\"nodes\":[0,2]", "\"nodes\":[0,4294967298]", "no number of a node");
	bad_text("\"nodes\":[0,2]", "\"nodes\":[2,0]", "nodes 2 to 0 are not in the part");
	bad_text("\"nodes\":[0,2]", "\"nodes\":[0,4]", "segment 1: it begins at node 3, before node 4");
	bad_text("\"nodes\":[0,2]", "\"nodes\":[0,3]", "node 2 is a fallback and in segment 0");
	bad_text("\"nodes\":[3,5]", "\"nodes\":[3,6]", "nodes 3 to 6 are not in the part");
	bad_text("\"nodes\"", "\"knots\"", "\"nodes\" is missing");
	bad_text("\"inductor\"", "\"\"", "cannot be the name of a back end");
	bad_text("\"inductor\"", "\"a/b\"", "cannot be the name of a back end");
	bad_text("\"inductor\"", "\"a\\u0000b\"", "\"backend\"");
	bad_text("\"inductor\"", "7", "\"backend\"");
	bad_text("[[1,64]]", "[]", "sizes for 0 symbols, the plan has 1");
	bad_text("[[1,64]]", "[[1,64],[1,2]]", "sizes for 2 symbols");
	bad_text("[[1,64]]", "[[64,1]]", "64 to 1 are no sizes of B");
	bad_text("[[1,64]]", "[[-1,64]]", "-1 to 64 are no sizes of B");
	bad_text("[[1,64]]", "[[1,64,3]]", "no pair of sizes");
	bad_text("[[1,64]]", "[[1,\"x\"]]", "no pair of sizes");
	bad_text("[[1,64]]", "7", "\"sizes\"");
	bad_text("\"in_order\":[0,1]", "\"in_order\":[0,2]", "dimensions of input 0");
	bad_text("\"in_order\":[0,1]", "\"in_order\":[0,0]", "dimensions of input 0");
	bad_text("\"in_order\":[0,1]", "\"in_order\":[0]", "dimensions of input 0");
	bad_text("\"in_order\":[0,1]", "\"in_order\":[]", "dimensions of input 0");
	bad_text("\"in_order\":[0,1]", "\"in_order\":[0,1,0]", "more than its 1 inputs");
	bad_text("\"in_order\":[0,1]", "\"in_order\":[0,4294967295]", "no number of a node or dimension");
	bad_text("\"out_order\":[1,0]", "\"out_order\":[1.0,0]", "no number of a node or dimension");
	bad_text("\"out_order\":[1,0]", "\"out_order\":[1,1]", "dimensions of output 0");
	bad_text("\"needs\":{", "\"needs\":{\"\":\"x\",", "cannot be a name among its needs");
	bad_text("\"needs\":{", "\"needs\":{\"a b\":\"x\",", "cannot be a name among its needs");
	bad_text("\"needs\":{", "\"needs\":{\"a\":3,", "\"a\"");
	bad_text("\"needs\":{\"torch\":\"2.13.0\",\"cpu\":\"avx2 avx512f\"}", "\"needs\":[]", "\"needs\"");
	bad_text("\"facts\"", "\"fakts\"", "\"facts\" is missing");
	bad_text("\"model.so\"", "\"model.xml\"", "entry \"cleave.segment.0.0.model.xml\" is not in the file");
	bad_text("\"model.so\"", "\"model.bin\"", "used twice");
	bad_text("\"model.so\",", "", "entry \"cleave.segment.0.0.model.so\" is of no segment");
	bad_text("\"model.so\"", "\".so\"", "not in the file");
	bad_text("\"model.so\"", "3", "no plain string");
	bad_text("\"model.so\"", "\"model.so\\u0000\"", "no plain string");
	bad_text("[[2,", "[[2,1,", "no node with a reason");
	bad_text("[[2,", "[[5,", "node 5, is not in the part");
	bad_text("[[2,", "[[-1,", "no number of a node");
	bad_text("[[2,", "[[2,\"x\"],[2,", "not after the one before");
	bad_text("[[2,", "[[1,", "node 1 is a fallback and in segment 0");
	bad_text("\"it is not taken\"", "\"\"", "reason of fallback 0 is empty");
	bad_text("\"it is not taken\"", "\"a\\u0000\"", "no node with a reason");
	bad_text("\"dropped\":[{", "\"dropped\":{\"x\":[{}],\"y\":{", "");
	bad_text("\"nodes\":[2,3]", "\"nodes\":[2,9]", "dropped segment 0: nodes 2 to 9 are not in the part");
	bad_text("\"nodes\":[2,3]", "\"nodes\":[3,3]", "dropped segment 0: nodes 3 to 3 are not in the part");
	bad_text("\"openvino\"", "\"a/b\"", "dropped segment 0: \"a/b\" cannot be the name of a back end");
	bad_text("\"code_ms\"", "\"a b\"", "cannot be a name among its facts");
	bad_text("[{", "[{},{", "one part for each of 2 plans");
	bad_text("[{", "{\"x\":[{", "");
}

static void entries_that_are_no_code_are_refused(void **state)
{
	(void)state;
	static const struct {
		const char *dtype, *why;
	} cases[] = {{"I8", "no list of bytes"}, {"F32", "no list of bytes"}};
	for (size_t k = 0; k < 2; k++) {
		opened_up o = open_up(crafted);
		json_t *e = json_object_get(o.header, "cleave.segment.0.0.model.so");
		json_object_set_new(e, "dtype", json_string(cases[k].dtype));
		json_object_set_new(e, "shape", json_pack("[i]", k ? 25 : 100));
		image i = closed_again(&o);
		FAILS(try_image(i), CLV_E_PARSE, cases[k].why);
		image_free(&i);
	}
	opened_up o = open_up(crafted); /* all of them without the text */
	json_object_del(metadata_of(&o), ARTIFACT_SEGMENTS_KEY);
	image i = closed_again(&o);
	FAILS(try_image(i), CLV_E_PARSE, "is of no segment");
	image_free(&i);
}

static void every_changed_bit_of_the_text_is_noticed_or_harmless(void **state)
{
	(void)state;
	opened_up o = open_up(crafted);
	char *text = strdup(json_string_value(json_object_get(metadata_of(&o), ARTIFACT_SEGMENTS_KEY)));
	size_t n = strlen(text);
	json_decref(o.description);
	json_decref(o.tensors);
	json_decref(o.header);
	for (size_t at = 0; at < n; at++)
		for (int bit = 0; bit < 7; bit++) {
			o = open_up(crafted);
			text[at] ^= (char)(1 << bit);
			json_t *changed = text[at] ? json_string(text) : NULL;
			if (changed)
				json_object_set_new(metadata_of(&o), ARTIFACT_SEGMENTS_KEY, changed);
			text[at] ^= (char)(1 << bit);
			image i = closed_again(&o);
			(void)try_image(i);
			image_free(&i);
		}
	free(text);
}

/* As many segments as nodes: what that costs grows with the file, not with its square. */
static void many_segments_are_read_soon(void **state)
{
	(void)state;
	enum { NODES = 40000 };
	strbuf b = STRBUF_INIT;
	strbuf_puts(&b, "cleave-plan 1\nmodel \"m\"\ninput %0 f32[4]\n");
	for (int i = 1; i <= NODES; i++)
		strbuf_printf(&b, "%%%d = aten::relu(%%%d) -> f32[4]\n", i, i - 1);
	strbuf_printf(&b, "output %%%d\n", NODES);
	char *text = taken(&b);
	artifact *a = new_artifact(text);
	for (node_id n = 0; n < NODES; n += 2) {
		artifact_segment s = {.first = n, .end = n + 1, .backend = "x"};
		OK(vec_push(&s.in_order, 0));
		OK(vec_push(&s.out_order, 0));
		OK(artifact_add_segment(a, 0, &s));
		OK(artifact_add_fallback(a, 0, n + 1, "no"));
		segment_free(&s);
	}
	struct timespec from, to;
	image i = written(a);
	clock_gettime(CLOCK_MONOTONIC, &from);
	OK(try_image(i));
	clock_gettime(CLOCK_MONOTONIC, &to);
	assert_true(to.tv_sec - from.tv_sec < 20);
	image_free(&i);
	mem_free(text);
}

/* ---- nodes of their own ------------------------------------------------------------------------------------------- */

static image nodes_of(const artifact *a, uint32_t number, node_id first, node_id end)
{
	artifact *part = NULL;
	if (artifact_take_nodes(a, number, first, end, &part) != CLV_OK)
		fail_msg("%s", status_message());
	return written(part);
}

static void nodes_are_the_same_file_from_memory_and_from_a_file(void **state)
{
	(void)state;
	artifact *made = sample_of_two_plans();
	image i = written(sample_of_two_plans());
	artifact *a = opened(i);
	image one = nodes_of(made, 0, 2, 5), two = nodes_of(a, 0, 2, 5);
	assert_true(same_image(one, two));
	artifact *part = opened(one);
	assert_string_equal(part->part, "all");
	assert_string_equal(part->batch, "B");
	assert_int_equal(part->plans.n, 1);
	assert_int_equal(clv_artifact_tensor_count(part), 3); /* not the bias */
	assert_int_equal(payload_find(part->tensors, "a.bias"), NONE);
	assert_int_equal(part->plans.at[0].consts.at[0].tensor, payload_find(part->tensors, "cleave.const.0"));
	const payload_tensor *t = &part->tensors->tensors.at[payload_find(part->tensors, "cleave.const.0")];
	assert_memory_equal(part->tensors->memories.at[t->memory].data, weights + 48, 16);
	artifact_free(part);
	image_free(&two);
	two = nodes_of(a, 1, 1, 2); /* the other plan's constant */
	part = opened(two);
	assert_int_equal(clv_artifact_tensor_count(part), 1);
	assert_string_equal(part->batch, "");
	assert_memory_equal(part->tensors->memories.at[0].data, weights + 52, 4);
	artifact_free(part);
	FAILS(artifact_take_nodes(a, 2, 0, 1, &part), CLV_E_INVALID, "no plan 2");
	FAILS(artifact_take_nodes(a, 0, 0, 6, &part), CLV_E_INVALID, "no nodes 0 to 6");
	artifact_free(a);
	artifact_free(made);
	image_free(&one);
	image_free(&two);
	image_free(&i);
}

static void a_segment_is_a_file_with_its_code(void **state)
{
	(void)state;
	artifact *a = opened(crafted), *part;
	OK(artifact_take_segment(a, 0, 1, &part));
	image i = written(part);
	part = opened(i);
	assert_int_equal(part->plans.n, 1);
	assert_int_equal(part->plans.at[0].p->nodes.n, 2);
	assert_int_equal(part->plans.at[0].segments.n, 1);
	check_segment(&part->plans.at[0].segments.at[0], 0, 2);
	OK(artifact_check_data(part));
	artifact_free(part);
	FAILS(artifact_take_segment(a, 0, 2, &part), CLV_E_INVALID, "no segment 2 of plan 0");
	FAILS(artifact_take_segment(a, 1, 0, &part), CLV_E_INVALID, "no segment 0 of plan 1");
	FAILS(artifact_take_segment(a, 2, 0, &part), CLV_E_INVALID, "no segment 0 of plan 2");
	artifact_free(a);
	image_free(&i);
}

static void what_borrows_keeps_what_it_borrows_from(void **state)
{
	(void)state;
	char folder[] = "/tmp/cleave-segments-XXXXXX", path[64];
	snprintf(path, sizeof path, "%s/a.clv", new_folder(folder));
	artifact *a = sample(), *part;
	OK(artifact_save(a, path));
	artifact_free(a);
	OK(clv_artifact_open(path, NULL, &a));
	OK(artifact_take_nodes(a, 0, 0, 2, &part));
	artifact_free(a);
	image i = written(part); /* reads the mapped weights */
	OK(try_image(i));
	image_free(&i);
	count_files(folder, true);
}

/* ---- another order ------------------------------------------------------------------------------------------------ */

static const char branches[] = "cleave-plan 1\n"
							   "model \"m\"\n"
							   "symbol B 1..64\n"
							   "input %0 f32[B,4]\n"
							   "const #0 f32[4]\n"
							   "const #1 f32[4]\n"
							   "%1 = aten::add.Tensor(%0, #1, 1) -> f32[B,4]\n"
							   "%2 = aten::sort(%0) -> f32[B,4]\n"
							   "%3 = aten::mul.Tensor(%1, #0) -> f32[B,4]\n"
							   "%4 = aten::sub.Tensor(%3, %2) -> f32[B,4]\n"
							   "output %4\n";

static artifact *branching(void)
{
	static const int64_t size[] = {4}, one[] = {1};
	artifact *a = new_artifact(branches);
	set_weights();
	add_const(a, "#0", tensor_on("c.0", DT_F32, weights, 0, 1, size, one));
	add_const(a, "#1", tensor_on("c.1", DT_F32, weights + 16, 0, 1, size, one));
	OK(vec_push(&a->plans.at[0].points, 3));
	OK(artifact_note_add(a, "model", "m"));
	return a;
}

static artifact *reordered(const artifact *a, const node_id *order)
{
	plan *p = NULL;
	artifact *out = NULL;
	if (order)
		OK(plan_reorder(a->plans.at[0].p, order, &p));
	if (artifact_reordered(a, &p, &out) != CLV_OK)
		fail_msg("%s", status_message());
	return out;
}

/* Which inputs a segment has, and in which order, is the same before the file and after it. */
static void a_reordered_plan_is_numbered_as_its_text(void **state)
{
	(void)state;
	static const node_id order[] = {1, 0, 2, 3};
	artifact *made = branching();
	image whole = written(branching());
	artifact *file = opened(whole);
	const artifact *from[] = {made, file};
	for (int k = 0; k < 2; k++) {
		artifact *a = reordered(from[k], order);
		OK(artifact_ready(a));
		OK(artifact_ready(a));
		assert_true(plan_in_text_order(a->plans.at[0].p));
		char *want = print_ok(a->plans.at[0].p);
		image i = written(a);
		a = opened(i);
		char *got = print_ok(a->plans.at[0].p);
		assert_string_equal(got, want);
		assert_int_equal(a->plans.at[0].points.at[0], 3);
		assert_int_equal(a->notes.n, 1);
		for (uint32_t c = 0; c < 2; c++) { /* constants kept their data */
			const artifact_const *x = &a->plans.at[0].consts.at[c];
			const payload_memory *m = &a->tensors->memories.at[a->tensors->tensors.at[x->tensor].memory];
			assert_memory_equal(m->data, weights + 16 * c, 16);
		}
		mem_free(want);
		mem_free(got);
		artifact_free(a);
		image_free(&i);
	}
	artifact_free(file);
	artifact_free(made);
	image_free(&whole);
}

static void a_copy_has_its_segments_and_is_the_same_file(void **state)
{
	(void)state;
	image i = written(compiled_sample());
	artifact *a = opened(i), *copy;
	plan *none[2] = {NULL, NULL};
	OK(artifact_reordered(a, none, &copy));
	artifact_free(a);
	image again = written(copy);
	assert_true(same_image(i, again));
	image_free(&again);
	image_free(&i);
}

static void an_order_that_is_of_another_model_is_refused(void **state)
{
	(void)state;
	artifact *a = branching(), *out = NULL;
	plan *other = load_ok(two_layers);
	FAILS(artifact_reordered(a, &other, &out), CLV_E_INVALID, "does not have the values and nodes");
	a->part = "prefix";
	other = load_ok(two_layers);
	FAILS(artifact_reordered(a, &other, &out), CLV_E_INVALID, "only a whole one");
	artifact_free(a);
}

/* ---- made, not written -------------------------------------------------------------------------------------------- */

static void one_that_is_ready_has_memories_and_can_still_be_written(void **state)
{
	(void)state;
	artifact *a = sample();
	OK(artifact_ready(a));
	assert_int_equal(a->tensors->memories.n, 4);
	for (uint32_t i = 0; i < a->tensors->tensors.n; i++) {
		const payload_tensor *t = &a->tensors->tensors.at[i];
		const payload_memory *m = &a->tensors->memories.at[t->memory];
		assert_ptr_equal((const uint8_t *)m->data + t->offset, t->data); /* where the model has it */
		assert_true(m->nbytes > 0 && payload_as_is(a->tensors, t->memory));
	}
	add_sample_segment(a, 0, 2);
	strbuf one = STRBUF_INIT, two = STRBUF_INIT;
	OK(artifact_append(a, &one));
	OK(artifact_append(a, &two));
	assert_int_equal(one.n, two.n);
	assert_memory_equal(one.at, two.at, one.n);
	image i = image_of(one.at, one.n);
	artifact *b = opened(i);
	FAILS(artifact_append(b, &two), CLV_E_INVALID, "was opened");
	OK(artifact_ready(b));
	artifact_free(b);
	image_free(&i);
	strbuf_free(&one);
	strbuf_free(&two);
	artifact_free(a);
}

/* ---- faults ------------------------------------------------------------------------------------------------------- */

static clv_status open_it(const void *ctx)
{
	return try_image(*(const image *)ctx);
}

static clv_status copy_and_write(const void *ctx)
{
	const artifact *a = ctx;
	static const node_id order[] = {1, 0, 2, 3};
	plan *plans[1];
	artifact *copy, *nodes = NULL;
	strbuf b = STRBUF_INIT;
	TRY(plan_reorder(a->plans.at[0].p, order, &plans[0]));
	TRY(artifact_reordered(a, plans, &copy));
	clv_status st = artifact_append(copy, &b);
	if (st == CLV_OK)
		st = artifact_take_nodes(copy, 0, 1, 3, &nodes);
	strbuf_free(&b);
	artifact_free(nodes);
	artifact_free(copy);
	return st;
}

static clv_status copy_as_it_is(const void *ctx)
{
	plan *none[2] = {NULL, NULL};
	artifact *copy;
	strbuf b = STRBUF_INIT;
	TRY(artifact_reordered(ctx, none, &copy));
	clv_status st = artifact_append(copy, &b);
	strbuf_free(&b);
	artifact_free(copy);
	return st;
}

static clv_status take_segment(const void *ctx)
{
	artifact *part;
	TRY(artifact_take_segment(ctx, 0, 0, &part));
	artifact_free(part);
	return CLV_OK;
}

static void every_allocation_may_fail(void **state)
{
	(void)state;
	image whole = written(branching());
	artifact *a = opened(whole), *b = opened(crafted);
	assert_in_range(sweep_faults(open_it, &crafted, CLV_OK), 50, 5000);
	json_set_alloc_funcs(mem_alloc, mem_free);
	assert_in_range(sweep_faults(copy_and_write, a, CLV_OK), 100, 5000);
	assert_in_range(sweep_faults(copy_as_it_is, b, CLV_OK), 100, 5000);
	assert_in_range(sweep_faults(take_segment, b, CLV_OK), 20, 5000);
	json_set_alloc_funcs(malloc, free);
	artifact_free(a);
	artifact_free(b);
	image_free(&whole);
}

static int setup(void **state)
{
	(void)state;
	crafted = written(compiled_sample());
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	image_free(&crafted);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(segments_come_back_and_are_no_tensors),
		cmocka_unit_test(segments_are_listed),
		cmocka_unit_test(other_code_is_a_difference),
		cmocka_unit_test(many_segments_are_read_soon),
		cmocka_unit_test(changed_code_is_found_and_named),
		cmocka_unit_test(only_files_with_segments_have_the_newer_version),
		cmocka_unit_test(a_part_has_no_segments),
		cmocka_unit_test(reasons_of_any_length_and_bytes_can_be_saved),
		cmocka_unit_test(what_breaks_a_rule_is_not_written),
		cmocka_unit_test(crafted_segments_are_refused),
		cmocka_unit_test(entries_that_are_no_code_are_refused),
		cmocka_unit_test(every_changed_bit_of_the_text_is_noticed_or_harmless),
		cmocka_unit_test(nodes_are_the_same_file_from_memory_and_from_a_file),
		cmocka_unit_test(a_segment_is_a_file_with_its_code),
		cmocka_unit_test(what_borrows_keeps_what_it_borrows_from),
		cmocka_unit_test(a_reordered_plan_is_numbered_as_its_text),
		cmocka_unit_test(a_copy_has_its_segments_and_is_the_same_file),
		cmocka_unit_test(an_order_that_is_of_another_model_is_refused),
		cmocka_unit_test(one_that_is_ready_has_memories_and_can_still_be_written),
		cmocka_unit_test(every_allocation_may_fail),
	};
	if (argc > 1) { /* a sample for fuzz/corpus/artifact */
		image i = written(compiled_sample());
		FILE *f = fopen(argv[1], "wb");
		bool ok = f && fwrite(i.at, 1, i.n, f) == i.n && fclose(f) == 0;
		image_free(&i);
		return ok ? 0 : 1;
	}
	return cmocka_run_group_tests_name("artifact_segments", tests, setup, teardown);
}
