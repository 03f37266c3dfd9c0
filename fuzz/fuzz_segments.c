/* Fuzz target: the compiled segments of a file. The plan and its tensors are always the same; the bytes are texts: "=== segments"
 * is what the header says of segments, "=== 0.model.xml" is member model.xml of the first segment. A file is refused with a
 * message, or its segments can be put together, reported, taken out, and loaded: the reader of OpenVINO's members, run.json
 * among them, is here with a library that only looks at what it is given. */
#define _GNU_SOURCE               /* memmem */
#include "../src/exec/openvino.c" /* NOLINT: its parts that need libtorch are replaced below */

#include "file/artifact_keys.h"
#include "file/artifact_segments.h"
#include "plan/view.h"
#include "texts.h"

/* ---- a library that takes all that it may be given ----------------------------------------------------------------- */

struct ov_tensor {
	size_t n;
	uint8_t data[];
};

static size_t told_inputs, told_outputs;

static int make_tensor(int type, ov_shape shape, ov_tensor **out)
{
	(void)type;
	MUST(shape.rank == 1);
	*out = calloc(1, sizeof **out + (size_t)shape.dims[0]);
	MUST(*out);
	(*out)->n = (size_t)shape.dims[0];
	return 0;
}

static int data_of(const ov_tensor *t, void **out)
{
	*out = (void *)(uintptr_t)t->data;
	return 0;
}

static void drop_tensor(ov_tensor *t)
{
	free(t);
}

static int read_xml(const ov_core *core, const char *xml, size_t n, const ov_tensor *weights, ov_model **out)
{
	(void)core, (void)weights;
	digest_of(xml, n);
	if (n % 7 == 6) /* some are refused */
		return -1;
	*out = (ov_model *)calloc(1, 1);
	return 0;
}

static void drop_model(ov_model *m)
{
	free(m);
}

static int take_properties(const ov_core *core, const ov_model *m, const char *device, size_t n,
                           ov_compiled_model **out, ...)
{
	va_list all;
	(void)core, (void)m;
	MUST(strcmp(device, "CPU") == 0 && n % 2 == 0 && n <= 2 * (PROPERTIES + 1));
	va_start(all, out);
	for (size_t i = 0; i < n; i += 2) {
		const char *key = va_arg(all, const char *), *text = va_arg(all, const char *);
		MUST(property_find(key, strlen(key)) >= 0 && text);
	}
	va_end(all);
	*out = (ov_compiled_model *)calloc(1, 1);
	return 0;
}

static void drop_compiled(ov_compiled_model *m)
{
	free(m);
}

static int count_inputs(const ov_compiled_model *m, size_t *n)
{
	(void)m;
	*n = told_inputs;
	return 0;
}

static int count_outputs(const ov_compiled_model *m, size_t *n)
{
	(void)m;
	*n = told_outputs;
	return 0;
}

clv_status openvino_api(const ov_api **out)
{
	static const ov_api api = {.ov_tensor_create = make_tensor,
	                           .ov_tensor_data = data_of,
	                           .ov_tensor_free = drop_tensor,
	                           .ov_core_read_model_from_memory_buffer = read_xml,
	                           .ov_model_free = drop_model,
	                           .ov_core_compile_model = take_properties,
	                           .ov_compiled_model_free = drop_compiled,
	                           .ov_compiled_model_inputs_size = count_inputs,
	                           .ov_compiled_model_outputs_size = count_outputs,
	                           .version = "2026.1.0"};
	*out = &api;
	return CLV_OK;
}

clv_status openvino_fail(const ov_api *ov, const char *what)
{
	(void)ov;
	return fail(CLV_E_UNSUPPORTED, "OpenVINO cannot %s", what);
}

/* Tensors are never run here. */
int br_threads(void)
{
	return 2;
}

void br_unref(br_tensor *t)
{
	MUST(!t);
}

clv_status br_meta_get(const br_tensor *t, br_meta *out)
{
	(void)t, (void)out;
	abort();
}

clv_status br_memory_get(const br_tensor *t, br_memory *out)
{
	(void)t, (void)out;
	abort();
}

clv_status br_bytes_new(size_t n, br_tensor **out, void **data)
{
	(void)n, (void)out, (void)data;
	abort();
}

clv_status br_view_bytes(const br_tensor *bytes, int64_t offset, const tensor_form *f, br_tensor **out)
{
	(void)bytes, (void)offset, (void)f, (void)out;
	abort();
}

/* ---- what segments of an open file must be able to do ---------------------------------------------------------------- */

/* Whatever orders were read, an input's sizes are found by them or refused. */
static void order_inputs(const model *m)
{
	int64_t sizes[64], made[64], steps[64];
	for (uint32_t i = 0; i < m->ninputs; i++)
		for (uint32_t n = 0; n <= 8; n++) {
			br_meta t = {.ndim = n, .sizes = made, .strides = steps};
			for (uint32_t d = 0; d < n; d++) {
				made[d] = 1;
				steps[d] = 1;
			}
			MUST((sizes_in_memory(m, i, &t, sizes) == CLV_OK) == (m->orders[i].n == 0 || m->orders[i].n == n));
		}
}

static void load_openvino(const artifact_segment *s, const view *v, compiled *made)
{
	code_spec spec = {"cpu", v->inputs.n, v->outputs.n, 0};
	const char *reason;
	arena a = {0};
	void *code = NULL;
	told_inputs = v->inputs.n;
	told_outputs = v->outputs.n;
	for (uint32_t i = 0; i < s->needs.n; i++)
		MUST(vec_push(&made->needs, s->needs.at[i]) == CLV_OK);
	MUST(backend_openvino.fits(NULL, made, &spec, &a, &reason) == CLV_OK);
	if (backend_openvino.load(NULL, made, &spec, &code) == CLV_OK) {
		order_inputs(code);
		backend_openvino.unload(NULL, code);
	} else {
		MUST(status_message()[0] != '\0');
	}
	arena_free(&a);
}

static void look_at_segment(const artifact *a, const artifact_segment *s)
{
	const plan *p = a->plans.at[0].p;
	compiled made = {0};
	liveness live;
	view v;
	MUST(liveness_new(p, &live) == CLV_OK && view_segment(p, &live, s->first, s->end, &v) == CLV_OK);
	if (pieces_join(a, s, &made) == CLV_OK) {
		for (uint32_t i = 0; i < made.members.n; i++)
			digest_of(made.members.at[i].data, made.members.at[i].n);
		load_openvino(s, &v, &made);
	} else {
		MUST(status_message()[0] != '\0');
	}
	compiled_free(&made);
	view_free(&v);
	liveness_free(&live);
}

static void report(const artifact *a)
{
	for (int json = 0; json < 2; json++) {
		clv_report_options o = CLV_REPORT_OPTIONS_INIT;
		double covered;
		char *text = NULL;
		o.json = json;
		if (clv_artifact_report(a, &o, &covered, &text) != CLV_OK)
			continue;
		MUST(covered >= 0 && covered <= 1);
		json_t *root = json ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : NULL;
		MUST(!json || root);
		json_decref(root);
		clv_free(text);
	}
}

static void look(const void *data, size_t n)
{
	const clv_open_options o = CLV_OPEN_OPTIONS_INIT;
	uint8_t *copy = aligned_copy(data, n);
	artifact *a, *part;
	clv_status st = clv_artifact_parse(copy, n, &o, &a);
	MUST(st == CLV_OK || status_message()[0] != '\0');
	for (uint32_t i = 0; st == CLV_OK && i < a->plans.at[0].segments.n; i++) {
		look_at_segment(a, &a->plans.at[0].segments.at[i]);
		MUST(artifact_take_segment(a, 0, i, &part) == CLV_OK);
		artifact_free(part);
	}
	if (st == CLV_OK) {
		report(a);
		artifact_free(a);
	}
	free(copy);
}

/* ---- the file -------------------------------------------------------------------------------------------------------- */

static const char plan_text[] = "cleave-plan 1\n"
								"model \"m\" training=no grad=any\n"
								"symbol B 1..64\n"
								"input %0 f32[B,8]\n"
								"param @a f32[8,8]\n"
								"param @b f32[8]\n"
								"%1 = aten::linear(%0, @a, @b) -> f32[B,8]\n"
								"%2 = aten::relu(%1) -> f32[B,8]\n"
								"%3 = aten::neg(%2) -> f32[B,8]\n"
								"%4 = aten::add.Tensor(%3, %1, 1) -> f32[B,8]\n"
								"output (%4, %3)\n";
static const char tensors_text[] = "{\"version\":1,\"kind\":\"weights\",\"memory\":[{\"entry\":\"a\",\"form\":"
								   "\"dense\",\"encoding\":\"plain\"},{\"entry\":\"b\","
								   "\"form\":\"dense\",\"encoding\":\"plain\"}],\"tensors\":[{\"label\":\"a\","
								   "\"dtype\":\"f32\",\"shape\":[8,8],\"strides\":[8,1],"
								   "\"memory\":0,\"offset\":0,\"device\":\"cpu\",\"requires_grad\":false,\"boundary\":"
								   "false},{\"label\":\"b\",\"dtype\":\"f32\","
								   "\"shape\":[8],\"strides\":[1],\"memory\":1,\"offset\":0,\"device\":\"cpu\","
								   "\"requires_grad\":false,\"boundary\":false}],\"values\":null}";

enum { TEXTS = 12 };

static bool is_plain(const char *s)
{
	return *s && strlen(s) < 64 && s[strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789._-")] == '\0';
}

/* Digests of data are not compared here; each entry has to have one. */
static void describe(const st_entry *entries, uint32_t n, strbuf *b)
{
	strbuf_puts(
		b,
		"{\"version\":[2,0],\"producer\":\"fuzz\",\"part\":\"all\",\"split_id\":\"\",\"boundary\":\"\",\"batch\":\"B\","
		"\"weight_version\":3,\"weights\":true,\"plans\":[{\"signature\":\"s\",\"nodes\":[0,4],\"cut\":null,"
		"\"stores\":0,\"points\":[[1],[2]],\"consts\":{}}],\"about\":{\"torch\":\"2.13.0\"},\"digests\":{");
	for (uint32_t i = 0; i < n; i++)
		strbuf_printf(b, "%s\"%s\":\"00112233445566778899aabbccddeeff\"", i ? "," : "", entries[i].name);
	strbuf_puts(b, "}}");
}

static void look_at_texts(const st_text *given, uint32_t n)
{
	static const uint8_t numbers[256] = {1, 0, 1, 1, 0x80, 0x3f, 0, 0xff};
	static const int64_t shapes[][2] = {{8, 8}, {8}};
	char names[TEXTS][96];
	int64_t sizes[TEXTS];
	st_entry entries[TEXTS + 2] = {{"a", DT_F32, 2, shapes[0], numbers, 256}, {"b", DT_F32, 1, shapes[1], numbers, 32}};
	uint32_t count = 2;
	strbuf description = STRBUF_INIT, file = STRBUF_INIT;
	st_text about = {ARTIFACT_SEGMENTS_KEY, "[]", 2};
	st_image image;
	for (uint32_t i = 0; i < n; i++) {
		if (strcmp(given[i].key, "segments") == 0) {
			about = (st_text){ARTIFACT_SEGMENTS_KEY, given[i].text, given[i].n};
		} else if (is_plain(given[i].key)) {
			snprintf(names[i], sizeof names[i], "cleave.segment.0.%s", given[i].key);
			sizes[i] = (int64_t)given[i].n;
			entries[count++] = (st_entry){names[i], DT_U8, 1, &sizes[i], given[i].text, given[i].n};
		}
	}
	describe(entries, count, &description);
	st_text texts[] = {{ARTIFACT_CHECK_KEY, ARTIFACT_NO_CHECK, sizeof ARTIFACT_NO_CHECK - 1},
	                   {ARTIFACT_KEY, description.at, description.n},
	                   {ARTIFACT_PLAN_KEY "0", plan_text, sizeof plan_text - 1},
	                   about,
	                   {PAYLOAD_KEY, tensors_text, sizeof tensors_text - 1}};
	if (st_layout_mapped(entries, count, texts, sizeof texts / sizeof *texts, &image) == CLV_OK) { /* or no UTF-8 */
		MUST(artifact_put_check(image.head, image.head_n) == CLV_OK && st_append(&image, &file) == CLV_OK);
		look(file.at, file.n);
		st_image_free(&image);
	}
	strbuf_free(&description);
	strbuf_free(&file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	st_text texts[TEXTS];
	char *copy = mem_strdup((const char *)data, size);
	MUST(copy);
	look_at_texts(texts, cut_texts(copy, size, texts, TEXTS));
	mem_free(copy);
	return 0;
}
