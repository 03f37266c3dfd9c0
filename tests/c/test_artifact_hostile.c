/* Artifacts that were damaged or crafted. Damage is found by the check of the header and the digests of the data; who
 * crafts a file signs it, so everything else is tried on files that are signed again. */
#include "artifacts.h"

#include <sys/resource.h>
#include <time.h>

/* ---- damage ----------------------------------------------------------------------------------------------------- */

static void a_file_that_ends_early_is_refused_wherever_it_ends(void **state)
{
	(void)state;
	image i = written(sample());
	for (size_t n = 0; n < i.n; n++) {
		image part = image_of(i.at, n);
		if (try_image(part) == CLV_OK)
			fail_msg("%zu of %zu bytes were accepted", n, i.n);
		assert_true(status_message()[0] != '\0');
		image_free(&part);
	}
	image_free(&i);
}

static size_t header_size(image i)
{
	uint64_t n;
	memcpy(&n, i.at, sizeof n);
	return (size_t)n + 8;
}

static void every_changed_bit_of_the_header_is_noticed(void **state)
{
	(void)state;
	image i = written(sample());
	for (size_t at = 0; at < header_size(i); at++)
		for (int bit = 0; bit < 8; bit++) {
			i.at[at] ^= (uint8_t)(1 << bit);
			clv_status st = try_image(i);
			i.at[at] ^= (uint8_t)(1 << bit);
			if (st == CLV_OK)
				fail_msg("bit %d of byte %zu", bit, at);
		}
	OK(try_image(i));
	image_free(&i);
}

static void changed_data_is_found_when_it_is_asked_for_and_named(void **state)
{
	(void)state;
	image i = written(sample());
	size_t head = header_size(i);
	clv_open_options o = CLV_OPEN_OPTIONS_INIT;
	artifact *a;
	o.check_data = true;
	for (size_t at = head; at < i.n; at++) {
		i.at[at] ^= 4;
		OK(try_image(i));
		FAILS(clv_artifact_parse(i.at, i.n, &o, &a), CLV_E_PARSE, "was changed or damaged");
		i.at[at] ^= 4;
	}
	i.at[head] ^= 1; /* the widest comes first */
	a = opened(i);
	FAILS(artifact_check_data(a), CLV_E_PARSE, "the data of tensor \"a.weight\"");
	artifact_free(a);
	image_free(&i);
}

/* ---- crafted ---------------------------------------------------------------------------------------------------- */

static image small; /* a file of the sample */

/* A place in a file: a chain of keys and indices, ended by NULL; digits are an index. */
typedef enum text { DESCRIPTION, TENSORS, HEADER } text;

static json_t *root_of(opened_up *o, text which)
{
	return which == DESCRIPTION ? o->description : which == TENSORS ? o->tensors : o->header;
}

/* Splits "plans.0.nodes" at its last point: the object that has it, and the last key. Points in names are written as '/'. */
static json_t *holder_of(json_t *at, const char *path, char *last)
{
	char key[64];
	for (;;) {
		size_t n = strcspn(path, ".");
		assert_true(n < sizeof key);
		memcpy(key, path, n);
		key[n] = '\0';
		for (char *c = key; *c; c++)
			*c = *c == '/' ? '.' : *c;
		if (!path[n]) {
			strcpy(last, key);
			return at;
		}
		at = json_is_array(at) ? json_array_get(at, (size_t)atoi(key)) : json_object_get(at, key);
		assert_non_null(at);
		path += n + 1;
	}
}

/* Replaces what is at the path; NULL takes it away. */
static void edit(json_t *root, const char *path, const char *value)
{
	char last[64];
	json_t *holder = holder_of(root, path, last);
	json_t *new = value ? json_loads(value, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL) : NULL;
	assert_true(new || !value);
	int failed;
	if (json_is_array(holder))
		failed =
			new ? json_array_set_new(holder, (size_t)atoi(last), new) : json_array_remove(holder, (size_t)atoi(last));
	else
		failed = new ? json_object_set_new(holder, last, new) : json_object_del(holder, last);
	assert_int_equal(failed, 0);
}

static clv_status try_edit(text which, const char *path, const char *value)
{
	opened_up o = open_up(small);
	edit(root_of(&o, which), path, value);
	image i = closed_again(&o);
	clv_status st = try_image(i);
	image_free(&i);
	return st;
}

static void bad(text which, const char *path, const char *value, const char *why)
{
	clv_status st = try_edit(which, path, value);
	if (st == CLV_OK || st == CLV_E_NOMEM || !strstr(status_message(), why))
		fail_msg("%s = %s: status %d \"%s\" instead of \"%s\"", path, value ? value : "(none)", st,
		         st ? status_message() : "", why);
}

static void the_edits_themselves_do_no_harm(void **state)
{
	(void)state;
	OK(try_edit(DESCRIPTION, "producer", "\"another\""));
	OK(try_edit(DESCRIPTION, "weight_digests", "{\"other\":3}"));
	OK(try_edit(DESCRIPTION, "weight_digests", NULL)); /* as files of before */
	OK(try_edit(DESCRIPTION, "plans.0.cut", "4"));
	OK(try_edit(DESCRIPTION, "plans.0.points", "[]"));
	OK(try_edit(DESCRIPTION, "plans.0.sizes", "{\"B\":1}"));
}

static void a_version_of_the_weights_that_is_not_their_sum_is_refused(void **state)
{
	(void)state;
	bad(DESCRIPTION, "weight_version", "4", "do not add up");
	bad(DESCRIPTION, "weight_digests", "{}", "do not add up");
	bad(DESCRIPTION, "weight_digests", "[]", "\"weight_digests\" is no object");
	bad(DESCRIPTION, "weight_digests", "{\"a\":\"3\"}", "\"a\" of \"weight_digests\" is no digest");
	bad(DESCRIPTION, "weight_digests", "{\"a\":-3}", "is no digest");
	bad(DESCRIPTION, "weight_digests", "{\"a\":9223372036854775807,\"b\":5}", "do not add up");
	OK(try_edit(DESCRIPTION, "weight_digests", "{\"a\":9223372036854775807,\"b\":4}"));
}

/* Each of these is there, and of its type. */
static void fields_that_are_missing_or_of_another_type_are_refused(void **state)
{
	(void)state;
	static const struct {
		text which;
		const char *path, *good; /* types that are right, by their first letters: string, number, list, object, … */
	} fields[] = {
		{DESCRIPTION, "version", "l"},
		{DESCRIPTION, "part", "s"},
		{DESCRIPTION, "split_id", "s"},
		{DESCRIPTION, "boundary", "s"},
		{DESCRIPTION, "batch", "s"},
		{DESCRIPTION, "weight_version", "n"},
		{DESCRIPTION, "weights", "b"},
		{DESCRIPTION, "plans", "l"},
		{DESCRIPTION, "about", "o"},
		{DESCRIPTION, "digests", "o"},
		{DESCRIPTION, "digests.a/weight", "s"},
		{DESCRIPTION, "plans.0.signature", "s"},
		{DESCRIPTION, "plans.0.nodes", "l"},
		{DESCRIPTION, "plans.0.stores", "n"},
		{DESCRIPTION, "plans.0.points", "l"},
		{DESCRIPTION, "plans.0.consts", "o"},
		{TENSORS, "version", "n"},
		{TENSORS, "kind", "s"},
		{TENSORS, "memory", "l"},
		{TENSORS, "tensors", "l"},
		{TENSORS, "memory.0.entry", "s"},
		{TENSORS, "memory.0.form", "s"},
		{TENSORS, "memory.0.encoding", "s"},
		{TENSORS, "tensors.0.label", "s"},
		{TENSORS, "tensors.0.dtype", "s"},
		{TENSORS, "tensors.0.shape", "l"},
		{TENSORS, "tensors.0.strides", "l"},
		{TENSORS, "tensors.0.memory", "n"},
		{TENSORS, "tensors.0.offset", "n"},
		{TENSORS, "tensors.0.device", "s"},
		{TENSORS, "tensors.0.requires_grad", "b"},
		{TENSORS, "tensors.0.boundary", "b"},
		{HEADER, "a/weight.dtype", "s"},
		{HEADER, "a/weight.shape", "l"},
		{HEADER, "a/weight.data_offsets", "l"},
		{HEADER, "__metadata__.cleave/plan/0", "s"},
	};
	static const struct {
		char kind;
		const char *value;
	} values[] = {{'s', "\"\\u0000x\""}, {'n', "7"},   {'l', "[[]]"}, {'o', "{\"x\":3}"},
	              {'b', "true"},         {'f', "1.5"}, {'z', "null"}};
	for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
		bad(fields[i].which, fields[i].path, NULL, "");
		for (size_t k = 0; k < sizeof values / sizeof *values; k++)
			if (values[k].kind != fields[i].good[0])
				bad(fields[i].which, fields[i].path, values[k].value, "");
	}
	bad(DESCRIPTION, "plans.0.cut", "\"x\"", "no place in the plan");
	bad(DESCRIPTION, "plans.0.cut", NULL, "no place in the plan");
}

static void descriptions_that_do_not_fit_are_refused(void **state)
{
	(void)state;
	bad(DESCRIPTION, "version", "[1]", "no pair");
	bad(DESCRIPTION, "version", "[1,0,0]", "no pair");
	bad(DESCRIPTION, "version", "[1.0,0]", "no pair");
	bad(DESCRIPTION, "version", "[9223372036854775807,1]", "version 9223372036854775807.1");
	bad(DESCRIPTION, "part", "\"half\"", "no part \"half\"");
	bad(DESCRIPTION, "part", "\"prefix\"", "are no part \"prefix\"");
	bad(DESCRIPTION, "part", "\"suffix\"", "are no part \"suffix\"");
	bad(DESCRIPTION, "plans", "[]", "no plan");
	bad(DESCRIPTION, "plans.0.nodes", "[0]", "no pair");
	bad(DESCRIPTION, "plans.0.nodes", "[-1,5]", "no place");
	bad(DESCRIPTION, "plans.0.nodes", "[0,6]", "has 5 nodes");
	bad(DESCRIPTION, "plans.0.nodes", "[0,4]", "are no part \"all\"");
	bad(DESCRIPTION, "plans.0.nodes", "[3,2]", "has 5 nodes");
	bad(DESCRIPTION, "plans.0.nodes", "[0,4294967295]", "no place");
	bad(DESCRIPTION, "plans.0.nodes", "[0,4294967301]", "no place"); /* 5, and one bit too many */
	bad(DESCRIPTION, "plans.0.cut", "0", "has 5 nodes");             /* one half would be empty */
	bad(DESCRIPTION, "plans.0.cut", "5", "has 5 nodes");
	bad(DESCRIPTION, "plans.0.cut", "-1", "no place");
	bad(DESCRIPTION, "plans.0.cut", "4294967295", "no place");
	bad(DESCRIPTION, "plans.0.stores", "2", "no list of 2 stored tensors");
	bad(DESCRIPTION, "plans.0.stores", "-1", "no place");
	bad(DESCRIPTION, "plans.0.sizes", "3", "\"sizes\" is no object");
	bad(DESCRIPTION, "plans.0.sizes", "{\"B\":-1}", "\"B\" of its sizes is none");
	bad(DESCRIPTION, "plans.0.sizes", "{\"B\":\"1\"}", "\"B\" of its sizes is none");
	bad(DESCRIPTION, "plans.0.points", "[[0]]", "B=0");
	bad(DESCRIPTION, "plans.0.points", "[[1],[65]]", "B=65");
	bad(DESCRIPTION, "plans.0.points", "[[-9223372036854775808]]", "the plan is for 1 to 64");
	bad(DESCRIPTION, "plans.0.points", "[[1,2]]", "does not have 1 number");
	bad(DESCRIPTION, "plans.0.points", "[[]]", "does not have 1 number");
	bad(DESCRIPTION, "plans.0.points", "[[1.5]]", "no size");
	bad(DESCRIPTION, "plans.0.consts", "{}", "#0 is not in the file");
	bad(DESCRIPTION, "plans.0.consts.#0", "\"nowhere\"", "no tensor \"nowhere\"");
	bad(DESCRIPTION, "plans.0.consts.#0", "\"a.weight\"", "\"a.weight\" is not of the type");
	bad(DESCRIPTION, "plans.0.consts.#0", "7", "#0 is not in the file");
	bad(DESCRIPTION, "digests.a/weight", "\"00\"", "\"a.weight\" has no digest");
	bad(DESCRIPTION, "digests.a/weight", "\"0123456789ABCDEF0123456789ABCDEF\"", "no digest");
	bad(DESCRIPTION, "digests.a/weight", NULL, "no digest");
	bad(DESCRIPTION, "about", "{\"torch\":1}", "\"torch\"");
	bad(DESCRIPTION, "about", "{\"torch\":\"a\\u0000b\"}", "\"torch\"");
}

static void tensors_that_do_not_fit_are_refused(void **state)
{
	(void)state;
	bad(TENSORS, "version", "2", "version 2");
	bad(TENSORS, "kind", "\"values\"", "another kind of file");
	bad(TENSORS, "kind", "\"boundary\"", "another kind of file");
	bad(TENSORS, "tensors.0.label", "\"a.wait\"", "@a.weight is not in the file");
	bad(TENSORS, "tensors.0.label", "\"a.bias\"", "two of this name");
	bad(TENSORS, "tensors.0.dtype", "\"f64\"", "another dtype or shape");
	bad(TENSORS, "tensors.0.shape", "[2,8]", "another dtype or shape");
	bad(TENSORS, "tensors.0.shape", "[4,-4]", "no size");
	bad(TENSORS, "tensors.0.shape", "[9223372036854775807,9223372036854775807]", "2^63");
	bad(TENSORS, "tensors.0.strides", "[4]", "2 sizes and 1 strides");
	bad(TENSORS, "tensors.0.strides", "[0,1]", "do not fit its shape");
	bad(TENSORS, "tensors.0.strides", "[9223372036854775807,1]", "2^63");
	bad(TENSORS, "tensors.0.strides", "[70000000,1]", "too much memory");
	bad(TENSORS, "tensors.0.offset", "4", "do not fit its shape");
	bad(TENSORS, "tensors.0.offset", "-4", "not on an element");
	bad(TENSORS, "tensors.0.offset", "9223372036854775804", "do not fit its shape");
	bad(TENSORS, "tensors.0.memory", "4", "no memory 4");
	bad(TENSORS, "tensors.0.memory", "-1", "no memory -1");
	bad(TENSORS, "tensors.0.memory", "1", "");
	bad(TENSORS, "tensors.0.memory", "4294967296", "no memory");
	bad(TENSORS, "tensors.0.boundary", "true", "no boundary");
	bad(TENSORS, "tensors.0", NULL, "no tensor is in entry \"a.weight\"");
	bad(TENSORS, "memory.0", NULL, "");
	bad(TENSORS, "memory.0.entry", "\"a.bias\"", "used twice");
	bad(TENSORS, "memory.0.entry", "\"nowhere\"", "not in the file");
	bad(TENSORS, "memory.0.form", "\"round\"", "no form");
	bad(TENSORS, "memory.0.encoding", "\"zip\"", "no encoding");
	bad(TENSORS, "memory.0.lead", "64", "lead");
	bad(TENSORS, "memory.0.lead", "2", "between two elements");
	bad(TENSORS, "memory.0.lead", "-4", "lead");
}

/* Weights are used where they lie: they are never compressed. */
static void compressed_weights_are_refused(void **state)
{
	(void)state;
	opened_up o = open_up(small);
	json_t *m = json_array_get(json_object_get(o.tensors, "memory"), 0);
	json_object_set_new(m, "encoding", json_string("fp16"));
	json_object_set_new(m, "error", json_string("0.0"));
	json_object_set_new(m, "relative_error", json_string("0.0"));
	image i = closed_again(&o);
	FAILS(try_image(i), CLV_E_PARSE, "compressed");
	image_free(&i);
}

static void entries_that_do_not_cover_the_data_are_refused(void **state)
{
	(void)state;
	bad(HEADER, "a/weight.data_offsets", "[4,68]", "");
	bad(HEADER, "a/weight.data_offsets", "[16,80]", "");
	bad(HEADER, "a/weight.data_offsets", "[0,80]", "needs 64 bytes");
	bad(HEADER, "a/weight.data_offsets", "[64,0]", "is bytes 64 to 0");
	bad(HEADER, "a/weight.data_offsets", "[0,9223372036854775807]", "bytes 0 to 9223372036854775807");
	bad(HEADER, "a/weight.shape", "[4,4,4611686018427387904,4]", "2^63");
	bad(HEADER, "a/weight.dtype", "\"F4\"", "not supported");
	bad(HEADER, "a/weight", NULL, "");
	bad(HEADER, "more", "{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}", "\"more\" has no digest");
	bad(HEADER, "__metadata__", NULL, "did not write it");
	bad(HEADER, "__metadata__.cleave/check", NULL, "no check");
	bad(HEADER, "__metadata__.cleave/check", "\"\"", "");
	bad(HEADER, "__metadata__.cleave/check", "\"zz\"", "");
}

/* Edits of texts that are no JSON of their own, or no JSON at all. */
static void bad_text(const char *key, const char *text, const char *why)
{
	opened_up o = open_up(small);
	json_object_set_new(metadata_of(&o), key, text ? json_string(text) : json_null());
	if (!text)
		json_object_del(metadata_of(&o), key);
	json_decref(o.description);
	json_decref(o.tensors);
	o.description = o.tensors = NULL;
	image i = closed_again(&o);
	FAILS(try_image(i), CLV_E_PARSE, why);
	image_free(&i);
}

static void a_text_that_would_take_many_times_its_length_is_refused(void **state)
{
	(void)state;
	enum { EACH = 3, COUNT = 30000 };
	char *text = mem_alloc(EACH * COUNT + 1);
	for (size_t i = 0; i < COUNT; i++)
		memcpy(text + EACH * i, i ? ",{}" : "[{}", EACH);
	text[EACH * COUNT - 1] = ']';
	bad_text("cleave.artifact", text, "more objects, lists and members than its length allows");
	mem_free(text);
}

static void texts_that_are_none_are_refused(void **state)
{
	(void)state;
	bad_text("cleave.artifact", "", "the description is no valid JSON");
	bad_text("cleave.artifact", "[]", "version");
	bad_text("cleave.artifact", "{\"version\":[1,0],\"version\":[1,0]}", "duplicate");
	bad_text("cleave.artifact", NULL, "this is a payload");
	bad_text("cleave.payload", "{", "payload's header is no valid JSON");
	bad_text("cleave.payload", NULL, "no payload");
	bad_text("cleave.plan.0", "", "plan 0");
	bad_text("cleave.plan.0", "cleave-plan 1\nmodel \"m\"\n", "plan 0");
	bad_text("cleave.plan.0", "cleave-plan 2\n", "plan 0");
	bad_text("cleave.plan.0", NULL, "plan 0: its text is missing");
}

/* Edits the plan's text: the relu becomes another operator. */
static image file_with_operator(const char *op)
{
	opened_up o = open_up(small);
	const char *text = json_string_value(json_object_get(metadata_of(&o), "cleave.plan.0"));
	const char *at = strstr(text, "aten::relu");
	strbuf b = STRBUF_INIT;
	strbuf_printf(&b, "%.*s%s%s", (int)(at - text), text, op, at + strlen("aten::relu"));
	char *edited = taken(&b);
	json_object_set_new(metadata_of(&o), "cleave.plan.0", json_string(edited));
	mem_free(edited);
	return closed_again(&o);
}

static void operators_that_reach_outside_are_refused_unless_allowed(void **state)
{
	(void)state;
	static const char *const allowed[] = {"aten::from_file"};
	clv_open_options o = CLV_OPEN_OPTIONS_INIT;
	artifact *a = NULL;
	image i = file_with_operator("aten::from_file");
	clv_status st = open_image(i, &a);
	artifact_free(a);
	if (st == CLV_OK) {
		image_free(&i);
		print_message("skipped: this build has no list of operators\n");
		skip();
	}
	assert_non_null(strstr(status_message(), "aten::from_file"));
	o.allow_operators = allowed;
	o.nallow_operators = 1;
	OK(clv_artifact_parse(i.at, i.n, &o, &a));
	artifact_free(a);
	image_free(&i);
}

/* ---- bounds ----------------------------------------------------------------------------------------------------- */

static double seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static long peak_kilobytes(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return u.ru_maxrss;
}

static char *nested(size_t depth, char open, char close)
{
	char *text = mem_alloc(2 * depth + 1);
	memset(text, open, depth);
	memset(text + depth, close, depth);
	return text;
}

static void deep_texts_are_refused(void **state)
{
	(void)state;
	char *deep = nested(5000, '[', ']');
	bad_text("cleave.artifact", deep, "no valid JSON");
	bad_text("cleave.payload", deep, "no valid JSON");
	bad_text("cleave.plan.0", deep, "plan 0");
	mem_free(deep);
}

static void strides_do_not_make_a_small_file_large(void **state)
{
	(void)state;
	long before = peak_kilobytes();
	opened_up o = open_up(small);
	edit(o.tensors, "tensors.0.strides", "[4194304,1]");
	image i = closed_again(&o);
	artifact *a = opened(i);
	image again = whole_again(a); /* unfolds it */
	assert_in_range(peak_kilobytes() - before, 0, 200 << 10);
	artifact_free(a);
	image_free(&i);
	image_free(&again);
}

/* Time that grows with the square of what is in a header of a few megabytes would be minutes. */
static void check_soon(opened_up *o, clv_status want)
{
	image i = closed_again(o);
	double start = seconds();
	clv_status st = try_image(i);
	if (st != want)
		fail_msg("status %d \"%s\"", st, st ? status_message() : "");
	if (seconds() - start > 30)
		fail_msg("%zu bytes took %.1f s", i.n, seconds() - start);
	image_free(&i);
}

enum { MANY = 200000 };

static void many_notes_are_read_soon(void **state)
{
	(void)state;
	opened_up o = open_up(small);
	json_t *about = json_object_get(o.description, "about");
	for (int k = 0; k < MANY; k++) {
		char key[16];
		snprintf(key, sizeof key, "n%d", k);
		json_object_set_new(about, key, json_string(""));
	}
	check_soon(&o, CLV_OK);
}

static void many_points_are_read_soon(void **state)
{
	(void)state;
	opened_up o = open_up(small);
	json_t *points = json_object_get(json_array_get(json_object_get(o.description, "plans"), 0), "points");
	for (int k = 0; k < MANY; k++)
		json_array_append_new(points, json_pack("[i]", k % 64 + 1));
	check_soon(&o, CLV_OK);
}

static void many_plans_are_read_soon(void **state)
{
	(void)state;
	opened_up o = open_up(small);
	json_t *plans = json_object_get(o.description, "plans");
	const char *text = json_string_value(json_object_get(metadata_of(&o), "cleave.plan.0"));
	for (int k = 1; k < 3000; k++) {
		char key[32];
		snprintf(key, sizeof key, "cleave.plan.%d", k);
		json_array_append(plans, json_array_get(plans, 0));
		json_object_set_new(metadata_of(&o), key, json_string(text));
	}
	check_soon(&o, CLV_OK);
	o = open_up(small);
	plans = json_object_get(o.description, "plans");
	for (int k = 1; k < MANY; k++)
		json_array_append(plans, json_array_get(plans, 0));
	check_soon(&o, CLV_E_PARSE); /* the text of the second is missing */
}

/* All of them are the one tensor that there is. */
static void many_constants_are_read_soon(void **state)
{
	(void)state;
	enum { CONSTS = 60000 };
	strbuf head = STRBUF_INIT, body = STRBUF_INIT;
	opened_up o = open_up(small);
	json_t *consts = json_object_get(json_array_get(json_object_get(o.description, "plans"), 0), "consts");
	strbuf_puts(&head, "cleave-plan 1\nmodel \"m\"\nsymbol B 1..64\n");
	for (int k = 0; k < CONSTS; k++) {
		char key[16];
		snprintf(key, sizeof key, "#%d", k);
		json_object_set_new(consts, key, json_string("const.0.0"));
		strbuf_printf(&head, "const #%d f32[4]\n", k);
		strbuf_printf(&body, "%%%d = aten::relu(#%d) -> f32[4]\n", k, k);
	}
	char *tail = taken(&body);
	strbuf_printf(&head, "%soutput none\n", tail);
	char *text = taken(&head);
	json_object_set_new(metadata_of(&o), "cleave.plan.0", json_string(text));
	json_object_set_new(json_array_get(json_object_get(o.description, "plans"), 0), "nodes",
	                    json_pack("[ii]", 0, CONSTS));
	check_soon(&o, CLV_OK);
	mem_free(tail);
	mem_free(text);
}

/* ---- faults ----------------------------------------------------------------------------------------------------- */

/* jansson's allocations are left alone while it reads: see json.c. */
static clv_status open_it(const void *ctx)
{
	(void)ctx;
	artifact *a;
	clv_open_options o = CLV_OPEN_OPTIONS_INIT;
	o.check_data = true;
	TRY(clv_artifact_parse(small.at, small.n, &o, &a));
	artifact_free(a);
	return CLV_OK;
}

static clv_status take_and_write(const void *ctx)
{
	const artifact *a = ctx;
	artifact *part;
	strbuf b = STRBUF_INIT;
	TRY(artifact_take(a, "prefix", (const artifact_range[]){{0, 2, 2}, {0, 3, 3}}, &part));
	clv_status st = artifact_append(part, &b);
	strbuf_free(&b);
	artifact_free(part);
	return st;
}

static char prefix_path[64], suffix_path[64];

/* In memory if there is such a place: both files are written hundreds of times. */
static void set_paths(void)
{
	const char *folder = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
	snprintf(prefix_path, sizeof prefix_path, "%s/cleave-test-%ld.prefix", folder, (long)getpid());
	snprintf(suffix_path, sizeof suffix_path, "%s/cleave-test-%ld.suffix", folder, (long)getpid());
}

static clv_status split_it(const void *ctx)
{
	clv_split_options o = CLV_SPLIT_OPTIONS_INIT;
	o.boundary = "after:relu";
	return clv_artifact_split(ctx, &o, prefix_path, suffix_path);
}

static void every_allocation_may_fail(void **state)
{
	(void)state;
	image i = written(sample_of_two_plans());
	artifact *a = opened(i);
	set_paths();
	assert_in_range(sweep_faults(open_it, NULL, CLV_OK), 50, 5000);
	json_set_alloc_funcs(mem_alloc, mem_free);
	assert_in_range(sweep_faults(take_and_write, a, CLV_OK), 200, 5000);
	assert_in_range(sweep_faults(split_it, a, CLV_OK), 400, 20000);
	json_set_alloc_funcs(malloc, free);
	assert_int_equal(unlink(prefix_path) | unlink(suffix_path), 0);
	artifact_free(a);
	image_free(&i);
}

/* While a bad file is refused, too: the text of the error is memory as well. */
static clv_status open_image_of(const void *ctx)
{
	return try_image(*(const image *)ctx);
}

static void every_allocation_may_fail_while_a_file_is_refused(void **state)
{
	(void)state;
	static const struct {
		const char *path, *value;
	} cases[] = {{"plans.0.points", "[[65]]"}, {"plans.0.consts", "{}"}, {"part", "\"half\""}};
	for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
		opened_up o = open_up(small);
		edit(o.description, cases[k].path, cases[k].value);
		image i = closed_again(&o);
		sweep_faults(open_image_of, &i, CLV_E_PARSE);
		image_free(&i);
	}
}

static int setup(void **state)
{
	(void)state;
	small = written(sample());
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	image_free(&small);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_file_that_ends_early_is_refused_wherever_it_ends),
		cmocka_unit_test(every_changed_bit_of_the_header_is_noticed),
		cmocka_unit_test(changed_data_is_found_when_it_is_asked_for_and_named),
		cmocka_unit_test(the_edits_themselves_do_no_harm),
		cmocka_unit_test(a_version_of_the_weights_that_is_not_their_sum_is_refused),
		cmocka_unit_test(fields_that_are_missing_or_of_another_type_are_refused),
		cmocka_unit_test(descriptions_that_do_not_fit_are_refused),
		cmocka_unit_test(tensors_that_do_not_fit_are_refused),
		cmocka_unit_test(compressed_weights_are_refused),
		cmocka_unit_test(entries_that_do_not_cover_the_data_are_refused),
		cmocka_unit_test(a_text_that_would_take_many_times_its_length_is_refused),
		cmocka_unit_test(texts_that_are_none_are_refused),
		cmocka_unit_test(operators_that_reach_outside_are_refused_unless_allowed),
		cmocka_unit_test(deep_texts_are_refused),
		cmocka_unit_test(strides_do_not_make_a_small_file_large),
		cmocka_unit_test(many_notes_are_read_soon),
		cmocka_unit_test(many_points_are_read_soon),
		cmocka_unit_test(many_plans_are_read_soon),
		cmocka_unit_test(many_constants_are_read_soon),
		cmocka_unit_test(every_allocation_may_fail),
		cmocka_unit_test(every_allocation_may_fail_while_a_file_is_refused),
	};
	return cmocka_run_group_tests_name("artifact_hostile", tests, setup, teardown);
}
