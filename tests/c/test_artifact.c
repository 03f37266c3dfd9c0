/* Artifacts: what is saved comes back; tensors of every kind, with their memory and alignment; parts and cuts; versions;
 * the same bytes each time. With a folder as argument it writes the samples that fuzz/corpus/artifact starts from. */
#include "artifacts.h"

/* ---- what comes back -------------------------------------------------------------------------------------------- */

static void check_about(const artifact *a)
{
	const char *key, *text;
	assert_true(clv_artifact_about(a, 0, &key, &text));
	assert_string_equal(key, "torch");
	assert_string_equal(text, "2.13.0");
	assert_true(clv_artifact_about(a, 1, &key, &text));
	assert_string_equal(text, "Net \"of\" tests");
	assert_false(clv_artifact_about(a, 2, &key, &text));
}

static void check_plan(const artifact *a, uint32_t i, const char *text, const char *signature, uint32_t npoints)
{
	clv_plan_info info = {.size = sizeof info};
	plan *want = load_ok(text);
	assert_true(plan_equal(clv_artifact_plan(a, i), want));
	OK(clv_artifact_plan_info(a, i, &info));
	assert_string_equal(info.signature, signature);
	assert_int_equal(info.first, 0);
	assert_int_equal(info.end, want->nodes.n);
	assert_true(info.cut == -1);
	assert_int_equal(info.npoints, npoints);
	for (uint32_t k = 0; k < npoints; k++)
		assert_int_equal(info.points[k], 1 << k);
	plan_free(want);
}

static void everything_comes_back(void **state)
{
	(void)state;
	image i = written(sample_of_two_plans());
	artifact *a = opened(i);
	assert_string_equal(clv_artifact_part(a), "all");
	assert_string_equal(clv_artifact_split_id(a), "");
	assert_string_equal(clv_artifact_boundary(a), "");
	assert_string_equal(clv_artifact_batch(a), "B");
	assert_true(clv_artifact_has_weights(a));
	assert_int_equal(a->weight_version, 3);
	assert_int_equal(clv_artifact_plan_count(a), 2);
	check_about(a);
	check_plan(a, 0, two_layers, "sig-0", 3);
	check_plan(a, 1, two_layers_alone, "sig-1", 0);
	OK(artifact_check_data(a));
	assert_null(clv_artifact_plan(a, 2));
	assert_true(clv_is_artifact(i.at, 9));
	assert_false(clv_is_artifact("cleave-plan 1\n", 14));
	clv_artifact_free(a);
	image_free(&i);
}

static void data_is_checked_piece_by_piece(void **state)
{
	(void)state;
	image i = written(sample());
	artifact *a = opened(i);
	int64_t bytes = 0, sum = 0;
	assert_int_equal(clv_artifact_entry_count(a), 4);
	for (uint32_t k = 0; k < 4; k++) {
		OK(clv_artifact_check_entry(a, k, &bytes));
		sum += bytes;
	}
	assert_int_equal(sum, (16 + 4 + 1 + 4) * 4);
	assert_int_equal(clv_artifact_check_entry(a, 4, &bytes), CLV_E_INVALID);
	((uint8_t *)i.at)[i.n - 1] ^= 1; /* of the last one */
	OK(clv_artifact_check_entry(a, 0, NULL));
	assert_int_equal(clv_artifact_check_entry(a, 3, NULL), CLV_E_PARSE);
	clv_artifact_free(a);
	image_free(&i);
	assert_int_equal(clv_artifact_entry_count(NULL), 0);
}

static void tensors_are_listed_with_their_types_and_digests(void **state)
{
	(void)state;
	static const char *const names[] = {"a.weight", "a.bias", "b.scale", "const.0.0"};
	static const size_t offsets[] = {0, 16, 32, 48}, counts[] = {16, 4, 1, 4};
	image i = written(sample());
	artifact *a = opened(i);
	assert_int_equal(clv_artifact_tensor_count(a), 4);
	for (uint32_t k = 0; k < 4; k++) {
		clv_tensor_info t = {.size = sizeof t};
		char digest[DIGEST_TEXT];
		OK(clv_artifact_tensor(a, k, &t));
		assert_string_equal(t.name, names[k]);
		assert_string_equal(t.entry, names[k]);
		assert_string_equal(t.dtype, "f32");
		assert_int_equal(t.bytes, counts[k] * 4);
		assert_int_equal(t.trainable, k < 2);
		digest_print(digest_of(weights + offsets[k], counts[k] * 4), digest);
		assert_string_equal(t.digest, digest);
	}
	clv_tensor_info t = {.size = sizeof t};
	FAILS(clv_artifact_tensor(a, 4, &t), CLV_E_INVALID, "no such tensor");
	t.size = 3;
	FAILS(clv_artifact_tensor(a, 0, &t), CLV_E_INVALID, "clv_tensor_info.size is 3");
	clv_artifact_free(a);
	image_free(&i);
}

static void the_file_is_a_safetensors_file_with_each_weight_under_its_name_once(void **state)
{
	(void)state;
	image i = written(sample());
	st_file *f;
	OK(st_parse(i.at, i.n, &f));
	assert_int_equal(st_count(f), 4);
	const st_entry *e = st_at(f, st_find(f, "a.weight"));
	assert_int_equal(e->dtype, DT_F32);
	assert_int_equal(e->ndim, 2);
	assert_memory_equal(e->data, weights, 64);
	assert_int_equal(st_find(f, "b.weight"), NONE); /* tied: the plan knows it */
	assert_int_equal(st_at(f, st_find(f, "b.scale"))->ndim, 0);
	st_free(f);
	image_free(&i);
}

static void the_same_artifact_is_the_same_bytes_also_after_reading(void **state)
{
	(void)state;
	image one = written(sample_of_two_plans()), two = written(sample_of_two_plans());
	assert_true(same_image(one, two));
	artifact *a = opened(one);
	image again = whole_again(a);
	assert_true(same_image(one, again));
	artifact_free(a);
	image_free(&one);
	image_free(&two);
	image_free(&again);
}

static artifact *no_weights_sample(void)
{
	static const int64_t four[] = {4}, step[] = {1};
	artifact *a = new_artifact(two_layers);
	set_weights();
	a->weights = false;
	add_const(a, "#0", tensor_on("const.0.0", DT_F32, weights, 0, 1, four, step));
	return a;
}

static void what_no_engine_takes_does_not_run(void **state)
{
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	clv_runtime *r = NULL;
	(void)state;
	artifact *a = new_artifact("cleave-plan 1\nmodel \"Net\"\ninput %0 f32[2] name=\"x\"\n"
	                           "%1 = aten::strange(%0) -> f32[2]\noutput %1\n");
	OK(artifact_ready(a));
	FAILS(clv_runtime_create(a, NULL, &r), CLV_E_UNSUPPORTED, "no engine here runs this file; native does not take");
	o.engine = "tape";
	FAILS(clv_runtime_create(a, &o, &r), CLV_E_NOT_FOUND, "there is no engine \"tape\" here; there are auto, native");
	assert_null(r);
	artifact_free(a);
}

static void a_file_without_weights_has_its_constants(void **state)
{
	(void)state;
	image i = written(no_weights_sample());
	artifact *a = opened(i);
	assert_false(clv_artifact_has_weights(a));
	assert_int_equal(clv_artifact_tensor_count(a), 1);
	image again = whole_again(a);
	assert_true(same_image(i, again));
	artifact_free(a);
	image_free(&i);
	image_free(&again);
	a = new_artifact(two_layers);
	a->weights = false;
	strbuf b = STRBUF_INIT;
	FAILS(artifact_append(a, &b), CLV_E_PARSE, "plan 0: #0 is not in the file");
	artifact_free(a);
}

/* ---- tensors of every kind -------------------------------------------------------------------------------------- */

/* A plan with one node for each of these parameters. */
typedef struct zoo {
	strbuf head, body;
	unsigned n;
	VEC(payload_tensor) tensors;
} zoo;

static void put_type(strbuf *b, const payload_tensor *t)
{
	strbuf_printf(b, "%s[", dtype_name(t->dtype));
	for (uint32_t i = 0; i < t->ndim; i++)
		strbuf_printf(b, "%s%lld", i ? "," : "", (long long)t->sizes[i]);
	strbuf_puts(b, "]");
}

static void keep_animal(zoo *z, payload_tensor t)
{
	strbuf_printf(&z->head, "param @%s ", t.label);
	put_type(&z->head, &t);
	strbuf_printf(&z->body, "%%%u = aten::relu(@%s) -> ", z->n++, t.label);
	put_type(&z->body, &t);
	strbuf_puts(&z->head, "\n");
	strbuf_puts(&z->body, "\n");
	OK(vec_push(&z->tensors, t));
}

static artifact *zoo_artifact(zoo *z)
{
	strbuf b = STRBUF_INIT;
	char *head = taken(&z->head), *body = taken(&z->body);
	strbuf_printf(&b, "cleave-plan 1\nmodel \"Zoo\"\n%s%soutput none\n", head, body);
	char *text = taken(&b);
	artifact *a = new_artifact(text);
	for (uint32_t i = 0; i < z->tensors.n; i++)
		OK(add(a->tensors, z->tensors.at[i]));
	vec_free(&z->tensors);
	mem_free(head);
	mem_free(body);
	mem_free(text);
	return a;
}

/* Every element of a tensor in an open artifact is the one that was given. */
static void check_elements(const artifact *a, const payload_tensor *want)
{
	const payload_tensor *t = &a->tensors->tensors.at[payload_find(a->tensors, want->label)];
	const payload_memory *m = &a->tensors->memories.at[t->memory];
	size_t item = dtype_bits(t->dtype) / 8, n = 1;
	uint8_t *memory = mem_alloc(m->nbytes);
	OK(payload_fill(a->tensors, t->memory, memory));
	assert_int_equal(t->dtype, want->dtype);
	for (uint32_t k = 0; k < t->ndim; k++) {
		n *= (size_t)want->sizes[k];
		assert_int_equal(t->sizes[k], want->sizes[k]);
		assert_int_equal(t->strides[k], want->strides[k]);
	}
	for (size_t i = 0; i < n; i++) {
		size_t left = i, at = 0;
		for (uint32_t k = t->ndim; k-- > 0; left /= (size_t)t->sizes[k])
			at += left % (size_t)t->sizes[k] * (size_t)t->strides[k];
		assert_memory_equal(memory + t->offset + at * item, (const uint8_t *)want->data + at * item, item);
	}
	mem_free(memory);
}

static alignas(64) uint8_t bytes[16384];

static void set_bytes(void)
{
	for (size_t i = 0; i < sizeof bytes; i++)
		bytes[i] = (uint8_t)(i * 37 >> 3);
}

/* Written, read, compared, taken whole and written again. */
static artifact *check_zoo(zoo *z, image *i)
{
	VEC(payload_tensor) want = {0};
	for (uint32_t k = 0; k < z->tensors.n; k++)
		OK(vec_push(&want, z->tensors.at[k]));
	*i = written(zoo_artifact(z));
	artifact *a = opened(*i);
	OK(artifact_check_data(a));
	for (uint32_t k = 0; k < want.n; k++)
		check_elements(a, &want.at[k]);
	image again = whole_again(a);
	assert_true(same_image(*i, again));
	image_free(&again);
	vec_free(&want);
	return a;
}

static artifact *check_zoo_alone(zoo *z)
{
	image i;
	artifact *a = check_zoo(z, &i);
	artifact_free(a);
	image_free(&i);
	return NULL;
}

static void every_dtype_comes_back_bit_for_bit(void **state)
{
	(void)state;
	static const int64_t sizes[] = {3, 2}, strides[] = {2, 1};
	static char names[DT_COUNT][32];
	zoo z = {.head = STRBUF_INIT, .body = STRBUF_INIT};
	set_bytes();
	for (int d = 0; d < DT_COUNT; d++) {
		dtype wire;
		uint32_t parts;
		if (!wire_dtype((dtype)d, &wire, &parts))
			continue;
		snprintf(names[d], sizeof names[d], "of_%s", dtype_name((dtype)d));
		keep_animal(&z, tensor_on(names[d], (dtype)d, bytes, 0, 2, sizes, strides));
		z.tensors.at[z.n - 1].storage = NULL; /* each has its own */
	}
	assert_in_range(z.n, 15, DT_COUNT);
	check_zoo_alone(&z);
}

static void strided_empty_scalar_and_misaligned_tensors_come_back(void **state)
{
	(void)state;
	static const int64_t none[] = {4, 0, 3}, dense[] = {0, 3, 1}, two[] = {3, 5}, turned[] = {1, 7}, far[] = {64, 3},
						 spread[] = {0, 2}, one[] = {1}, large[] = {1100};
	zoo z = {.head = STRBUF_INIT, .body = STRBUF_INIT};
	image i;
	set_bytes();
	keep_animal(&z, tensor_on("empty", DT_F32, bytes, 0, 3, none, dense));
	z.tensors.at[0].data = NULL;
	keep_animal(&z, tensor_on("scalar", DT_F64, bytes + 64, 0, 0, NULL, NULL));
	keep_animal(&z, tensor_on("turned", DT_F32, bytes + 128, 4, 2, two, turned));
	keep_animal(&z, tensor_on("gaps", DT_BF16, bytes + 512, 0, 2, two, far));
	keep_animal(&z, tensor_on("spread", DT_I64, bytes + 1024, 0, 2, two, spread));
	keep_animal(&z, tensor_on("askew", DT_F32, bytes + 2048 + 20, 0, 1, large, one));
	keep_animal(&z, tensor_on("flag", DT_BOOL, (const uint8_t[]){1, 0, 1}, 0, 1, two, one));
	artifact *a = check_zoo(&z, &i);
	const payload_tensor *t = &a->tensors->tensors.at[payload_find(a->tensors, "askew")];
	assert_int_equal(a->tensors->memories.at[t->memory].lead, 20);
	artifact_free(a);
	image_free(&i);
}

static void tensors_on_one_memory_share_it_again(void **state)
{
	(void)state;
	static const int64_t eight[] = {8}, one[] = {1}, three[] = {3}, two[] = {2};
	zoo z = {.head = STRBUF_INIT, .body = STRBUF_INIT};
	image i;
	set_bytes();
	keep_animal(&z, tensor_on("all", DT_F32, bytes, 0, 1, eight, one));
	keep_animal(&z, tensor_on("odd", DT_F32, bytes, 4, 1, three, two));
	keep_animal(&z, tensor_on("as_int", DT_I64, bytes, 8, 1, two, one));
	artifact *a = check_zoo(&z, &i);
	assert_int_equal(a->tensors->memories.n, 1);
	for (uint32_t k = 0; k < 3; k++) {
		clv_tensor_info t = {.size = sizeof t};
		OK(clv_artifact_tensor(a, k, &t));
		assert_string_equal(t.entry, "all");
	}
	artifact_free(a);
	image_free(&i);
}

/* Entries that are no multiple of 64 long would leave the next one askew. */
static void large_tensors_can_be_used_where_they_are(void **state)
{
	(void)state;
	static const int64_t sizes[][1] = {{1025}, {4096}, {5000}, {3}, {16}, {4097}, {1}, {7000}}, one[] = {1};
	static const dtype types[] = {DT_F32, DT_U8, DT_U8, DT_F32, DT_F32, DT_BOOL, DT_F64, DT_I8};
	static char names[8][8];
	zoo z = {.head = STRBUF_INIT, .body = STRBUF_INIT};
	image i;
	set_bytes();
	for (unsigned k = 0; k < 8; k++) {
		snprintf(names[k], sizeof names[k], "t%u", k);
		keep_animal(&z, tensor_on(names[k], types[k], bytes, 0, 1, sizes[k], one));
		z.tensors.at[k].storage = NULL;
	}
	artifact *a = check_zoo(&z, &i);
	unsigned large = 0;
	for (uint32_t k = 0; k < a->tensors->memories.n; k++) {
		const payload_memory *m = &a->tensors->memories.at[k];
		assert_true(payload_as_is(a->tensors, k));
		assert_int_equal((uintptr_t)m->data % (dtype_bits(m->dtype) / 8), 0);
		if (m->nbytes < 4096)
			continue;
		large++;
		assert_int_equal((uintptr_t)m->data % 64, m->lead);
	}
	assert_int_equal(large, 5);
	artifact_free(a);
	image_free(&i);
}

static void a_weight_with_the_name_of_a_filler_is_not_lost(void **state)
{
	(void)state;
	static const int64_t size[] = {5000}, one[] = {1};
	zoo z = {.head = STRBUF_INIT, .body = STRBUF_INIT};
	set_bytes();
	keep_animal(&z, tensor_on("cleave.pad.0", DT_U8, bytes, 0, 1, size, one));
	keep_animal(&z, tensor_on("cleave.pad.1", DT_U8, bytes + 8192, 0, 1, size, one));
	check_zoo_alone(&z);
}

/* ---- parts ------------------------------------------------------------------------------------------------------ */

static void check_names(const artifact *a, const char *const *names, uint32_t n)
{
	assert_int_equal(clv_artifact_tensor_count(a), n);
	for (uint32_t i = 0; i < n; i++)
		assert_int_not_equal(payload_find(a->tensors, names[i]), NONE);
}

static void a_part_has_the_tensors_that_its_nodes_read_and_no_others(void **state)
{
	(void)state;
	image i = written(sample_of_two_plans());
	artifact *a = opened(i);
	image prefix = written(taken_from(a, "prefix", (const artifact_range[]){{0, 2, 2}, {0, 3, 3}}));
	image suffix = written(taken_from(a, "suffix", (const artifact_range[]){{2, 5, 2}, {3, 4, 3}}));
	image stage = written(taken_from(a, "stage:1", (const artifact_range[]){{1, 3, 2}, {2, 3, 3}}));
	artifact_free(a);
	image_free(&i);
	a = opened(prefix);
	check_names(a, (const char *const[]){"a.weight", "a.bias", "const.1.0"}, 3);
	assert_int_equal(a->plans.at[0].cut, 2);
	artifact_free(a);
	a = opened(suffix);
	check_names(a, (const char *const[]){"a.weight", "b.scale", "const.0.0"}, 3);
	assert_int_equal(a->plans.at[1].first, 3);
	artifact_free(a);
	a = opened(stage);
	check_names(a, (const char *const[]){"a.weight"}, 1);
	assert_string_equal(clv_artifact_part(a), "stage:1");
	artifact_free(a);
	image_free(&prefix);
	image_free(&suffix);
	image_free(&stage);
}

static void parts_that_cannot_be_are_not_written(void **state)
{
	(void)state;
	static const struct {
		const char *part;
		artifact_range range;
		const char *why;
	} cases[] = {
		{"half", {0, 5, 2}, "no part \"half\""},
		{"", {0, 5, 2}, "no part \"\""},
		{"stage:", {0, 5, 2}, "no part"},
		{"stage:1x", {0, 5, 2}, "no part"},
		{"stage:123456789", {0, 5, 2}, "no part"},
		{"all", {0, 4, NONE}, "nodes 0 to 4 of 5 are no part \"all\""},
		{"prefix", {0, 2, 3}, "are no part \"prefix\""},
		{"prefix", {1, 2, 2}, "are no part \"prefix\""},
		{"suffix", {2, 4, 2}, "are no part \"suffix\""},
		{"suffix", {2, 5, NONE}, "are no part \"suffix\""},
		{"stage:0", {0, 2, 6}, "the plan has 5 nodes"},
	};
	image i = written(sample());
	artifact *a = opened(i);
	for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
		strbuf b = STRBUF_INIT;
		artifact *part = taken_from(a, cases[k].part, &cases[k].range);
		FAILS(artifact_append(part, &b), CLV_E_PARSE, cases[k].why);
		artifact_free(part);
		strbuf_free(&b);
	}
	artifact *part;
	FAILS(artifact_take(a, "stage:0", &(artifact_range){3, 2, 0}, &part), CLV_E_INVALID, "no nodes 3 to 2");
	FAILS(artifact_take(a, "stage:0", &(artifact_range){0, 6, 0}, &part), CLV_E_INVALID, "no nodes 0 to 6");
	artifact_free(a);
	image_free(&i);
}

static void what_does_not_fit_is_not_written(void **state)
{
	(void)state;
	static const int64_t four[] = {4}, one[] = {1};
	strbuf b = STRBUF_INIT;
	artifact *a = sample();
	a->plans.at[0].points.at[1] = 65;
	FAILS(artifact_append(a, &b), CLV_E_PARSE, "a point has B=65, the plan is for 1 to 64");
	a->plans.at[0].points.at[1] = 0;
	FAILS(artifact_append(a, &b), CLV_E_PARSE, "a point has B=0");
	a->plans.at[0].points.at[1] = 1;
	a->plans.at[0].nstores = 2;
	FAILS(artifact_append(a, &b), CLV_E_PARSE, "no list of 2 stored tensors");
	a->plans.at[0].nstores = 0;
	OK(artifact_note_add(a, "torch", "2.14"));
	FAILS(artifact_append(a, &b), CLV_E_INVALID, "two notes \"torch\"");
	artifact_free(a);
	a = new_artifact(two_layers);
	OK(add(a->tensors, tensor_on("a.weight", DT_F32, weights, 0, 1, four, one)));
	FAILS(artifact_append(a, &b), CLV_E_PARSE, "tensor \"a.weight\" is not of the type that the plan has");
	artifact_free(a);
	a = new_artifact(two_layers);
	FAILS(artifact_append(a, &b), CLV_E_PARSE, "@a.weight is not in the file");
	artifact_free(a);
	OK(artifact_new("all", &a));
	FAILS(artifact_append(a, &b), CLV_E_PARSE, "no plan");
	artifact_free(a);
	a = new_artifact("cleave-plan 1\nmodel \"m\"\nobject #g \"torch.Generator\"\n"
	                 "%0 = aten::rand.generator([2], #g) -> f32[2] at \"m.py:3\"\noutput %0\n");
	FAILS(artifact_append(a, &b), CLV_E_UNSUPPORTED, "aten::rand.generator");
	artifact_free(a);
	strbuf_free(&b);
}

/* ---- cutting ---------------------------------------------------------------------------------------------------- */

typedef struct halves {
	char folder[32], prefix[64], suffix[64];
} halves;

static halves new_halves(void)
{
	halves h = {.folder = "/tmp/cleave-test-XXXXXX"};
	new_folder(h.folder);
	snprintf(h.prefix, sizeof h.prefix, "%s/prefix.clv", h.folder);
	snprintf(h.suffix, sizeof h.suffix, "%s/suffix.clv", h.folder);
	return h;
}

static artifact *open_path(const char *path)
{
	artifact *a = NULL;
	if (clv_artifact_open(path, NULL, &a) != CLV_OK)
		fail_msg("%s", status_message());
	return a;
}

static void every_plan_of_a_file_is_cut_at_the_same_place(void **state)
{
	(void)state;
	halves h = new_halves();
	image i = written(sample_of_two_plans());
	artifact *a = opened(i);
	clv_split_options o = CLV_SPLIT_OPTIONS_INIT;
	o.boundary = "after:relu";
	clv_status st = clv_artifact_split(a, &o, h.prefix, h.suffix);
	if (st != CLV_OK)
		fail_msg("%s", status_message());
	artifact *p = open_path(h.prefix), *s = open_path(h.suffix);
	assert_string_equal(clv_artifact_part(p), "prefix");
	assert_string_equal(clv_artifact_part(s), "suffix");
	assert_string_equal(clv_artifact_split_id(p), "sig-0-1");
	assert_string_equal(clv_artifact_split_id(s), "sig-0-1");
	assert_string_equal(clv_artifact_boundary(s), "after:relu");
	assert_string_equal(clv_artifact_batch(s), "B");
	check_about(p);
	check_names(p, (const char *const[]){"a.weight", "a.bias", "const.1.0"}, 3);
	check_names(s, (const char *const[]){"a.weight", "b.scale", "const.0.0"}, 3);
	for (uint32_t k = 0; k < 2; k++) {
		assert_int_equal(p->plans.at[k].end, k == 0 ? 2 : 3);
		assert_int_equal(s->plans.at[k].first, p->plans.at[k].end);
	}
	FAILS(clv_artifact_split(p, &o, h.prefix, h.suffix), CLV_E_INVALID, "holds the prefix of a model");
	artifact_free(p);
	artifact_free(s);
	artifact_free(a);
	image_free(&i);
	assert_int_equal(count_files(h.folder, true), 2);
}

static void a_file_that_says_where_it_is_cut_is_cut_there(void **state)
{
	(void)state;
	halves h = new_halves();
	artifact *a = sample_of_two_plans();
	a->plans.at[0].cut = 2;
	a->plans.at[1].cut = 3;
	OK(artifact_text(a, "some-id", &a->split_id));
	image i = written(a);
	a = opened(i);
	OK(clv_artifact_split(a, NULL, NULL, h.suffix));
	artifact *s = open_path(h.suffix);
	assert_string_equal(clv_artifact_split_id(s), "some-id");
	assert_int_equal(s->plans.at[1].first, 3);
	artifact_free(s);
	artifact_free(a);
	image_free(&i);
	assert_int_equal(count_files(h.folder, true), 1);
}

static void cuts_that_cannot_be_are_refused(void **state)
{
	(void)state;
	halves h = new_halves();
	image i = written(sample_of_two_plans());
	artifact *a = opened(i);
	clv_split_options o = CLV_SPLIT_OPTIONS_INIT;
	FAILS(clv_artifact_split(a, &o, h.prefix, h.suffix), CLV_E_INVALID, "plan 0 of the file is not cut yet");
	o.boundary = "after:mul";
	FAILS(clv_artifact_split(a, &o, h.prefix, h.suffix), CLV_E_NOT_FOUND, "plan 1");
	o.boundary = "after:nothing";
	assert_int_not_equal(clv_artifact_split(a, &o, h.prefix, h.suffix), CLV_OK);
	o.boundary = "after:relu";
	FAILS(clv_artifact_split(a, &o, h.prefix, h.prefix), CLV_E_INVALID, "same file");
	FAILS(clv_artifact_split(NULL, &o, h.prefix, h.suffix), CLV_E_INVALID, "needs an artifact");
	artifact_free(a);
	image_free(&i);
	a = sample_of_two_plans();
	a->plans.at[0].cut = 2;
	i = written(a);
	a = opened(i);
	FAILS(clv_artifact_split(a, NULL, h.prefix, h.suffix), CLV_E_INVALID, "plan 1 of the file is not cut");
	artifact_free(a);
	image_free(&i);
	assert_int_equal(count_files(h.folder, true), 0);
}

/* ---- versions and callers --------------------------------------------------------------------------------------- */

static clv_status open_version(image i, int major, int minor)
{
	opened_up o = open_up(i);
	json_object_set_new(o.description, "version", json_pack("[ii]", major, minor));
	image forged = closed_again(&o);
	clv_status st = try_image(forged);
	image_free(&forged);
	return st;
}

static void a_newer_major_version_is_refused_and_a_newer_minor_one_read(void **state)
{
	(void)state;
	image i = written(sample());
	OK(open_version(i, ARTIFACT_PLAIN_MAJOR, ARTIFACT_MINOR));
	OK(open_version(i, ARTIFACT_MAJOR, ARTIFACT_MINOR));
	OK(open_version(i, ARTIFACT_MAJOR, ARTIFACT_MINOR + 7));
	FAILS(open_version(i, ARTIFACT_MAJOR + 1, 3), CLV_E_PARSE,
	      "the file has version 5.3, this library reads versions 1.x to 4.x: open it with the Cleave that wrote it");
	FAILS(open_version(i, 0, 9), CLV_E_PARSE, "version 0.9");
	image_free(&i);
}

/* Opens a file of version 1.`minor` with a note "sizes": "any", and with "any_size" where it is not NULL. */
static clv_status open_any_size(image i, int minor, json_t *any_size, bool *any, uint32_t *notes)
{
	opened_up o = open_up(i);
	json_object_set_new(o.description, "version", json_pack("[ii]", ARTIFACT_PLAIN_MAJOR, minor));
	json_object_set_new(json_object_get(o.description, "about"), "sizes", json_string("any"));
	if (any_size)
		json_object_set_new(o.description, "any_size", any_size);
	image forged = closed_again(&o);
	clv_artifact *a = NULL;
	clv_status st = clv_artifact_parse(forged.at, forged.n, NULL, &a);
	const char *key, *text;
	*any = clv_artifact_any_size(a);
	for (*notes = 0; clv_artifact_about(a, *notes, &key, &text);)
		++*notes;
	clv_artifact_free(a);
	image_free(&forged);
	return st;
}

static void all_sizes_are_a_field_and_were_a_note(void **state)
{
	(void)state;
	image i = written(sample());
	bool any;
	uint32_t old, now;
	OK(open_any_size(i, 0, NULL, &any, &old));
	assert_true(any);
	OK(open_any_size(i, 1, NULL, &any, &now));
	assert_false(any); /* a note is a note */
	assert_int_equal(now, old + 1);
	OK(open_any_size(i, 1, json_true(), &any, &now));
	assert_true(any);
	OK(open_any_size(i, 1, json_false(), &any, &now));
	assert_false(any);
	FAILS(open_any_size(i, 1, json_integer(1), &any, &now), CLV_E_PARSE, "\"any_size\" is neither");
	image_free(&i);
	artifact *a = sample();
	a->any_size = true;
	i = written(a);
	a = opened(i);
	assert_true(clv_artifact_any_size(a));
	artifact_free(a);
	image_free(&i);
}

/* Opens a file whose first plan, with one input, says this of its inputs. */
static clv_status open_asked(image i, const char *key, json_t *said)
{
	opened_up o = open_up(i);
	json_object_set_new(json_array_get(json_object_get(o.description, "plans"), 0), key, said);
	image forged = closed_again(&o);
	clv_status st = try_image(forged);
	image_free(&forged);
	return st;
}

static void what_a_forward_asks_of_its_inputs_is_a_field(void **state)
{
	(void)state;
	artifact *a = sample();
	OK(vec_push(&a->plans.at[0].same, 0u));
	OK(vec_push(&a->plans.at[0].grads, (int8_t)1));
	image i = written(a);
	a = opened(i);
	assert_int_equal(a->plans.at[0].same.n, 1);
	assert_int_equal(a->plans.at[0].grads.at[0], 1);
	artifact_free(a);
	OK(open_asked(i, "requires_grad", json_pack("[n]")));
	FAILS(open_asked(i, "same_inputs", json_pack("[i]", 1)), CLV_E_PARSE, "does not match the plan's 1 inputs");
	FAILS(open_asked(i, "same_inputs", json_pack("[ii]", 0, 0)), CLV_E_PARSE, "does not match the plan's 1 inputs");
	FAILS(open_asked(i, "same_inputs", json_pack("[i]", -1)), CLV_E_PARSE, "something that is no input");
	FAILS(open_asked(i, "same_inputs", json_pack("{}")), CLV_E_PARSE, "is no list");
	FAILS(open_asked(i, "requires_grad", json_pack("[i]", 1)), CLV_E_PARSE, "neither true, false nor null");
	FAILS(open_asked(i, "requires_grad", json_pack("[nn]")), CLV_E_PARSE, "does not match the plan's 1 inputs");
	image_free(&i);
}

static void what_a_later_minor_version_adds_does_not_disturb(void **state)
{
	(void)state;
	image i = written(sample());
	opened_up o = open_up(i);
	json_object_set_new(o.description, "later", json_pack("{s:[i]}", "x", 1));
	json_object_set_new(json_array_get(json_object_get(o.description, "plans"), 0), "later", json_true());
	json_object_set_new(metadata_of(&o), "cleave.later", json_string("{}"));
	image more = closed_again(&o);
	OK(try_image(more));
	image_free(&more);
	image_free(&i);
}

static void other_files_are_told_apart(void **state)
{
	(void)state;
	char folder[] = "/tmp/cleave-test-XXXXXX", path[64];
	artifact *a;
	strbuf b = STRBUF_INIT;
	st_image image_;
	payload *p;
	OK(payload_new(PAYLOAD_VALUES, &p));
	OK(payload_image(p, &image_));
	new_folder(folder);
	snprintf(path, sizeof path, "%s/values", folder);
	OK(st_save(&image_, path));
	FAILS(clv_artifact_open(path, NULL, &a), CLV_E_PARSE, "this is a payload");
	OK(st_append(&image_, &b));
	st_image_free(&image_);
	payload_free(p);
	strbuf_free(&b);
	OK(st_layout(NULL, 0, NULL, 0, &image_));
	OK(st_save(&image_, path));
	st_image_free(&image_);
	FAILS(clv_artifact_open(path, NULL, &a), CLV_E_PARSE, "Cleave did not write it");
	assert_int_equal(truncate(path, 0), 0);
	FAILS(clv_artifact_open(path, NULL, &a), CLV_E_PARSE, "has 0 bytes");
	FAILS(clv_artifact_open(folder, NULL, &a), CLV_E_IO, "no regular file");
	FAILS(clv_artifact_open("/no/such/file", NULL, &a), CLV_E_IO, "cannot open /no/such/file");
	count_files(folder, true);
}

static void callers_mistakes_are_named(void **state)
{
	(void)state;
	image i = written(sample());
	artifact *a;
	clv_open_options o = CLV_OPEN_OPTIONS_INIT;
	FAILS(clv_artifact_parse(i.at + 1, i.n - 1, NULL, &a), CLV_E_INVALID, "multiple of 64");
	FAILS(clv_artifact_parse(NULL, 0, NULL, &a), CLV_E_INVALID, "needs bytes");
	FAILS(clv_artifact_open(NULL, NULL, &a), CLV_E_INVALID, "needs a path");
	o.nallow_operators = 1;
	FAILS(clv_artifact_parse(i.at, i.n, &o, &a), CLV_E_INVALID, "allow_operators is NULL");
	clv_artifact_free(NULL);
	assert_int_equal(clv_artifact_plan_count(NULL), 0);
	assert_int_equal(clv_artifact_tensor_count(NULL), 0);
	assert_string_equal(clv_artifact_part(NULL), "");
	image_free(&i);
}

static void an_artifact_lives_as_long_as_its_last_user(void **state)
{
	(void)state;
	image i = written(sample());
	artifact *a = opened(i), *b = artifact_ref(a);
	clv_artifact_free(a);
	OK(artifact_check_data(b));
	clv_artifact_free(b);
	image_free(&i);
}

/* Files that were written once and are kept in the repository. */
static void files_of_before_still_open(void **state)
{
	(void)state;
	static const char *const names[] = {"whole", "two_plans", "prefix", "suffix", "no_weights", "shared", "large"};
	for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
		char path[64];
		snprintf(path, sizeof path, "fuzz/corpus/artifact/%s", names[k]);
		artifact *a = open_path(path);
		OK(artifact_check_data(a));
		artifact_free(a);
	}
}

/* ---- samples ---------------------------------------------------------------------------------------------------- */

static void keep_file(const char *folder, const char *name, image i)
{
	char path[512];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	FILE *f = fopen(path, "wb");
	assert_true(f && fwrite(i.at, 1, i.n, f) == i.n && fclose(f) == 0);
	image_free(&i);
}

static artifact *shared_sample(void)
{
	static const int64_t eight[] = {8}, one[] = {1}, three[] = {3}, two[] = {2}, square[] = {3, 5}, turned[] = {1, 7},
						 rows[] = {5, 1};
	static const uint8_t flags[] = {1, 0, 1};
	zoo z = {.head = STRBUF_INIT, .body = STRBUF_INIT};
	set_bytes();
	keep_animal(&z, tensor_on("all", DT_F32, bytes, 0, 1, eight, one));
	keep_animal(&z, tensor_on("odd", DT_F32, bytes, 4, 1, three, two));
	keep_animal(&z, tensor_on("as_int", DT_I64, bytes, 8, 1, two, one));
	keep_animal(&z, tensor_on("turned", DT_F32, bytes + 128, 4, 2, square, turned));
	keep_animal(&z, tensor_on("flag", DT_BOOL, flags, 0, 1, three, one));
	keep_animal(&z, tensor_on("half", DT_BF16, bytes + 256, 0, 2, square, rows));
	keep_animal(&z, tensor_on("pair", DT_C128, bytes + 512, 0, 1, three, one));
	return zoo_artifact(&z);
}

static artifact *large_sample(void)
{
	static const int64_t sizes[] = {1025}, one[] = {1}, few[] = {3};
	zoo z = {.head = STRBUF_INIT, .body = STRBUF_INIT};
	set_bytes();
	keep_animal(&z, tensor_on("large", DT_F32, bytes, 0, 1, sizes, one));
	keep_animal(&z, tensor_on("small", DT_F64, bytes + 8192, 0, 1, few, one));
	return zoo_artifact(&z);
}

static int write_samples(const char *folder)
{
	keep_file(folder, "no_weights", written(no_weights_sample()));
	keep_file(folder, "whole", written(sample()));
	keep_file(folder, "shared", written(shared_sample()));
	keep_file(folder, "large", written(large_sample()));
	image i = written(sample_of_two_plans());
	artifact *a = opened(i);
	keep_file(folder, "prefix", written(taken_from(a, "prefix", (const artifact_range[]){{0, 2, 2}, {0, 3, 3}})));
	keep_file(folder, "suffix", written(taken_from(a, "suffix", (const artifact_range[]){{2, 5, 2}, {3, 4, 3}})));
	artifact_free(a);
	keep_file(folder, "two_plans", i);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(everything_comes_back),
		cmocka_unit_test(what_no_engine_takes_does_not_run),
		cmocka_unit_test(data_is_checked_piece_by_piece),
		cmocka_unit_test(tensors_are_listed_with_their_types_and_digests),
		cmocka_unit_test(the_file_is_a_safetensors_file_with_each_weight_under_its_name_once),
		cmocka_unit_test(the_same_artifact_is_the_same_bytes_also_after_reading),
		cmocka_unit_test(a_file_without_weights_has_its_constants),
		cmocka_unit_test(every_dtype_comes_back_bit_for_bit),
		cmocka_unit_test(strided_empty_scalar_and_misaligned_tensors_come_back),
		cmocka_unit_test(tensors_on_one_memory_share_it_again),
		cmocka_unit_test(large_tensors_can_be_used_where_they_are),
		cmocka_unit_test(a_weight_with_the_name_of_a_filler_is_not_lost),
		cmocka_unit_test(a_part_has_the_tensors_that_its_nodes_read_and_no_others),
		cmocka_unit_test(parts_that_cannot_be_are_not_written),
		cmocka_unit_test(what_does_not_fit_is_not_written),
		cmocka_unit_test(every_plan_of_a_file_is_cut_at_the_same_place),
		cmocka_unit_test(a_file_that_says_where_it_is_cut_is_cut_there),
		cmocka_unit_test(cuts_that_cannot_be_are_refused),
		cmocka_unit_test(a_newer_major_version_is_refused_and_a_newer_minor_one_read),
		cmocka_unit_test(what_a_later_minor_version_adds_does_not_disturb),
		cmocka_unit_test(all_sizes_are_a_field_and_were_a_note),
		cmocka_unit_test(what_a_forward_asks_of_its_inputs_is_a_field),
		cmocka_unit_test(other_files_are_told_apart),
		cmocka_unit_test(callers_mistakes_are_named),
		cmocka_unit_test(an_artifact_lives_as_long_as_its_last_user),
		cmocka_unit_test(files_of_before_still_open),
	};
	if (argc > 1)
		return write_samples(argv[1]);
	return cmocka_run_group_tests_name("artifact", tests, NULL, NULL);
}
