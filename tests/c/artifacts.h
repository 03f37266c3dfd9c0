/* Artifacts that the tests build, write, edit and sign again. */
#ifndef TESTS_ARTIFACTS_H
#define TESTS_ARTIFACTS_H

#include "tensors.h"

#include <dirent.h>
#include <jansson.h>
#include <stdalign.h>
#include <unistd.h>

#include "file/artifact.h"
#include "file/artifact_keys.h"

/* ---- files ------------------------------------------------------------------------------------------------------ */

/* Bytes of a file, in a block of exactly that size which starts where a mapped one would. */
typedef struct image {
	uint8_t *at;
	size_t n;
} image;

static inline image image_of(const void *from, size_t n)
{
	void *at = NULL;
	assert_int_equal(posix_memalign(&at, ST_MAPPED_ALIGN, n ? n : 1), 0);
	if (n)
		memcpy(at, from, n);
	return (image){at, n};
}

static inline void image_free(image *i)
{
	free(i->at);
	*i = (image){0};
}

static inline bool same_image(image a, image b)
{
	return a.n == b.n && memcmp(a.at, b.at, a.n) == 0;
}

/* The bytes of an artifact, which is freed. */
static inline image written(artifact *a)
{
	strbuf b = STRBUF_INIT;
	if (artifact_append(a, &b) != CLV_OK)
		fail_msg("%s", status_message());
	artifact_free(a);
	image i = image_of(b.at, b.n);
	strbuf_free(&b);
	return i;
}

static inline clv_status open_image(image i, artifact **out)
{
	return clv_artifact_parse(i.at, i.n, NULL, out);
}

static inline artifact *opened(image i)
{
	artifact *a = NULL;
	if (open_image(i, &a) != CLV_OK)
		fail_msg("%s", status_message());
	return a;
}

/* Whatever is accepted is released again. */
static inline clv_status try_image(image i)
{
	artifact *a = NULL;
	clv_status st = open_image(i, &a);
	artifact_free(a);
	return st;
}

static inline image read_image(const char *path)
{
	uint8_t *data;
	size_t n;
	OK(file_read(path, &data, &n));
	image i = image_of(data, n);
	mem_free(data);
	return i;
}

/* ---- folders ---------------------------------------------------------------------------------------------------- */

static inline char *new_folder(char *at /* "/tmp/…-XXXXXX" */)
{
	assert_non_null(mkdtemp(at));
	return at;
}

/* How many files are in it; with `remove` they are gone after, and the folder too. */
static inline unsigned count_files(const char *folder, bool remove)
{
	char path[512];
	unsigned n = 0;
	DIR *d = opendir(folder);
	assert_non_null(d);
	for (struct dirent *e = readdir(d); e; e = readdir(d)) {
		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		n++;
		snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
		if (remove)
			unlink(path);
	}
	closedir(d);
	if (remove)
		rmdir(folder);
	return n;
}

/* ---- models ----------------------------------------------------------------------------------------------------- */

/* One weight under two names, a scalar, a constant; a cut after the relu leaves a.bias to the prefix alone. */
static const char two_layers[] = "cleave-plan 1\n"
								 "model \"Net\" training=no grad=any\n"
								 "symbol B 1..64\n"
								 "scope \"\" \"Net\"\n"
								 "scope a \"Linear\"\n"
								 "scope b \"Linear\"\n"
								 "input %0 f32[B,4] name=\"x\"\n"
								 "param @a.weight f32[4,4] trainable tied=@b.weight\n"
								 "param @a.bias f32[4] trainable\n"
								 "buffer @b.scale f32[]\n"
								 "const #0 f32[4]\n"
								 "%1 = aten::linear(%0, @a.weight, @a.bias) -> f32[B,4] in a\n"
								 "%2 = aten::relu(%1) -> f32[B,4] in \"\"\n"
								 "%3 = aten::linear(%2, @a.weight, none) -> f32[B,4] in b\n"
								 "%4 = aten::mul.Tensor(%3, @b.scale) -> f32[B,4] in b\n"
								 "%5 = aten::add.Tensor(%4, #0, 1) -> f32[B,4] in \"\"\n"
								 "output %5\n";

/* The same model where it does something else: one operator more before the cut, none after the second layer. */
static const char two_layers_alone[] = "cleave-plan 1\n"
									   "model \"Net\" training=no grad=any\n"
									   "scope \"\" \"Net\"\n"
									   "scope a \"Linear\"\n"
									   "scope b \"Linear\"\n"
									   "input %0 f32[1,4] name=\"x\"\n"
									   "param @a.weight f32[4,4] trainable tied=@b.weight\n"
									   "param @a.bias f32[4] trainable\n"
									   "const #0 f32[1]\n"
									   "%1 = aten::linear(%0, @a.weight, @a.bias) -> f32[1,4] in a\n"
									   "%2 = aten::mul.Tensor(%1, #0) -> f32[1,4] in a\n"
									   "%3 = aten::relu(%2) -> f32[1,4] in \"\"\n"
									   "%4 = aten::linear(%3, @a.weight, none) -> f32[1,4] in b\n"
									   "output %4\n";

static alignas(64) float weights[64];

static inline void set_weights(void)
{
	for (int i = 0; i < 64; i++)
		weights[i] = (float)i + 0.5f;
}

static inline artifact *new_artifact(const char *text)
{
	artifact *a;
	OK(artifact_new("all", &a));
	OK(artifact_add_plan(a, load_ok(text), "sig-0"));
	return a;
}

/* The constant `label` of the last plan is this tensor, which is new. */
static inline void add_const(artifact *a, const char *label, payload_tensor t)
{
	artifact_plan *e = &a->plans.at[a->plans.n - 1];
	uint32_t tensor;
	OK(payload_add_tensor(a->tensors, &t, &tensor));
	for (value_id v = 0; v < e->p->values.n; v++) {
		strbuf b = STRBUF_INIT;
		value_label(e->p, v, &b);
		char *text = taken(&b);
		bool found = strcmp(text, label) == 0;
		mem_free(text);
		if (found)
			OK(vec_push(&e->consts, ((artifact_const){v, tensor})));
	}
}

static inline payload_tensor trainable(payload_tensor t)
{
	t.requires_grad = true;
	return t;
}

static inline artifact *sample(void)
{
	static const int64_t square[] = {4, 4}, rows[] = {4, 1};
	artifact *a = new_artifact(two_layers);
	set_weights();
	OK(add(a->tensors, trainable(tensor_on("a.weight", DT_F32, weights, 0, 2, square, rows))));
	OK(add(a->tensors, trainable(tensor_on("a.bias", DT_F32, weights + 16, 0, 1, square, rows + 1))));
	OK(add(a->tensors, tensor_on("b.scale", DT_F32, weights + 32, 0, 0, NULL, NULL)));
	add_const(a, "#0", tensor_on("const.0.0", DT_F32, weights + 48, 0, 1, square, rows + 1));
	OK(artifact_text(a, "B", &a->batch));
	OK(artifact_note_add(a, "torch", "2.13.0"));
	OK(artifact_note_add(a, "model", "Net \"of\" tests"));
	OK(artifact_add_weight(a, "a.weight", 1));
	OK(artifact_add_weight(a, "elsewhere", 2)); /* of another part */
	for (int64_t i = 1; i <= 4; i *= 2)
		OK(vec_push(&a->plans.at[0].points, i));
	return a;
}

static inline artifact *sample_of_two_plans(void)
{
	static const int64_t one[] = {1};
	artifact *a = sample();
	OK(artifact_add_plan(a, load_ok(two_layers_alone), "sig-1"));
	add_const(a, "#0", tensor_on("const.1.0", DT_F32, weights + 52, 0, 1, one, one));
	return a;
}

/* The nodes from `first` to `end` of every plan's sample; ranges for the whole of it. */
static inline artifact *taken_from(const artifact *a, const char *part, const artifact_range *ranges)
{
	artifact *out = NULL;
	if (artifact_take(a, part, ranges, &out) != CLV_OK)
		fail_msg("%s", status_message());
	return out;
}

static inline image whole_again(const artifact *a)
{
	artifact_range ranges[8];
	for (uint32_t i = 0; i < a->plans.n; i++)
		ranges[i] = (artifact_range){a->plans.at[i].first, a->plans.at[i].end, a->plans.at[i].cut};
	return written(taken_from(a, a->part, ranges));
}

/* ---- forgery ---------------------------------------------------------------------------------------------------- */

/* A file in pieces that can be edited. */
typedef struct opened_up {
	json_t *header;      /* of safetensors */
	json_t *description; /* under ARTIFACT_KEY */
	json_t *tensors;     /* under PAYLOAD_KEY */
	const uint8_t *data;
	size_t data_n;
} opened_up;

static inline json_t *metadata_of(const opened_up *o)
{
	return json_object_get(o->header, "__metadata__");
}

static inline json_t *load_text(const opened_up *o, const char *key)
{
	json_t *root = json_loads(json_string_value(json_object_get(metadata_of(o), key)), JSON_REJECT_DUPLICATES, NULL);
	assert_non_null(root);
	return root;
}

static inline opened_up open_up(image i)
{
	uint64_t n;
	memcpy(&n, i.at, sizeof n);
	opened_up o = {.data = i.at + 8 + n, .data_n = i.n - 8 - n};
	o.header = json_loadb((const char *)i.at + 8, n, 0, NULL);
	assert_non_null(o.header);
	o.description = load_text(&o, ARTIFACT_KEY);
	o.tensors = load_text(&o, PAYLOAD_KEY);
	return o;
}

/* A header text with everything after it, signed. */
static inline image signed_file(const char *header, const void *data, size_t data_n)
{
	strbuf b = STRBUF_INIT;
	uint64_t n = (strlen(header) + 8 + 63) / 64 * 64 - 8;
	strbuf_add(&b, (const char *)&n, sizeof n);
	strbuf_puts(&b, header);
	while (b.n < n + 8)
		strbuf_putc(&b, ' ');
	artifact_put_check(b.at, b.n); /* a header may have no place for it: that is a case too */
	strbuf_add(&b, data, data_n);
	image i = image_of(b.at, b.n);
	strbuf_free(&b);
	return i;
}

static inline void put_text(json_t *object, const char *key, json_t *text /* taken */)
{
	char *s = json_dumps(text, JSON_COMPACT);
	json_object_set_new(object, key, json_string(s));
	free(s);
	json_decref(text);
}

/* The file with what was edited; the pieces are gone. A NULL description or tensors: the text stays as it is. */
static inline image closed_again(opened_up *o)
{
	if (o->description)
		put_text(metadata_of(o), ARTIFACT_KEY, o->description);
	if (o->tensors)
		put_text(metadata_of(o), PAYLOAD_KEY, o->tensors);
	char *text = json_dumps(o->header, JSON_COMPACT);
	image i = signed_file(text, o->data, o->data_n);
	free(text);
	json_decref(o->header);
	return i;
}

#endif
