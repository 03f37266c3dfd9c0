/* Packed weights: found in a file where they fit, made again where they do not, and never believed. */
#include "artifacts.h"

#include <sys/wait.h>

#include "file/artifact_packed.h"
#include "native/kernels.h"

/* A convolution into which a norm is folded, so that there are constants that are computed once, and a product. */
static const char network[] =
	"cleave-plan 1\nmodel \"Net\" training=no grad=no\nsymbol B 1..8\n"
	"input %0 f32[B,3,6,6] name=\"x\"\n"
	"param @c.weight f32[5,3,3,3]\nparam @g f32[5]\nparam @b f32[5]\nbuffer @m f32[5]\nbuffer @v f32[5]\n"
	"param @l.weight f32[7,5]\nparam @l.bias f32[7]\n"
	"%1 = aten::conv2d(%0, @c.weight, none, [1, 1], [1, 1], [1, 1], 1) -> f32[B,5,6,6]\n"
	"%2 = aten::batch_norm(%1, @g, @b, @m, @v, false, 0.1, 1e-05, true) -> f32[B,5,6,6]\n"
	"%3 = aten::relu(%2) -> f32[B,5,6,6]\n"
	"%4 = aten::mean.dim(%3, [2, 3], false, none) -> f32[B,5]\n"
	"%5 = aten::linear(%4, @l.weight, @l.bias) -> f32[B,7]\n"
	"output %5\n";

enum { BATCH = 2, RESULTS = BATCH * 7 };
typedef float results[RESULTS];

static const struct given {
	const char *name;
	uint32_t ndim;
	int64_t sizes[4];
} given[] = {{"c.weight", 4, {5, 3, 3, 3}}, {"g", 1, {5}},     {"b", 1, {5}}, {"m", 1, {5}}, {"v", 1, {5}},
             {"l.weight", 2, {7, 5}},       {"l.bias", 1, {7}}};
enum { GIVEN = sizeof given / sizeof *given, MOST = 5 * 27 };
static alignas(64) float given_data[GIVEN][(MOST + 15) / 16 * 16];

static artifact *model(float scale)
{
	artifact *a = new_artifact(network);
	for (unsigned i = 0; i < GIVEN; i++) {
		int64_t strides[4], n = 1;
		for (int d = (int)given[i].ndim - 1; d >= 0; d--, n *= given[i].sizes[d + 1])
			strides[d] = n;
		for (int k = 0; k < MOST; k++)
			given_data[i][k] = scale * (float)(0.5 + (k * 37 + (int)i * 11) % 29 / 29.0);
		OK(add(a->tensors, tensor_on(given[i].name, DT_F32, given_data[i], 0, given[i].ndim, given[i].sizes, strides)));
	}
	OK(artifact_text(a, "B", &a->batch));
	for (int64_t i = 1; i <= 4; i *= 2)
		OK(vec_push(&a->plans.at[0].points, i));
	return a;
}

static image packed_for_sets(const artifact *a, const char *const *sets, uint32_t n)
{
	char folder[] = "/tmp/cleave-pack-XXXXXX", path[64];
	clv_packing_options o = CLV_PACKING_OPTIONS_INIT;
	o.sandbox = CLV_SANDBOX_OFF;
	o.isas = sets;
	o.nisas = n;
	snprintf(path, sizeof path, "%s/m.clv", new_folder(folder));
	OK(clv_artifact_pack(a, &o, path));
	image i = read_image(path);
	count_files(folder, true);
	return i;
}

/* A file that is packed for this machine, or for the sets. */
static image packed_file(const char *const *sets, uint32_t n)
{
	image plain = written(model(1));
	artifact *a = opened(plain);
	image i = packed_for_sets(a, sets, n);
	artifact_free(a);
	image_free(&plain);
	return i;
}

static clv_runtime *runtime_of(const artifact *a)
{
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	o.sandbox = CLV_SANDBOX_OFF;
	clv_runtime *r = NULL;
	o.engine = "native";
	o.threads = 1;
	OK(clv_runtime_create(a, &o, &r));
	return r;
}

static void run(const clv_runtime *r, results out)
{
	static float x[BATCH * 3 * 36];
	clv_tensor *in, *y = NULL;
	for (int i = 0; i < BATCH * 3 * 36; i++)
		x[i] = (float)(i % 17) / 17 - 0.4f;
	OK(clv_tensor_from_data(x, "f32", 4, (int64_t[]){BATCH, 3, 6, 6}, &in));
	OK(clv_runtime_run(r, (const clv_tensor *const[]){in}, 1, &y, 1));
	memcpy(out, clv_tensor_data(y), sizeof(results));
	clv_tensor_free(in);
	clv_tensor_free(y);
}

static clv_packing_state run_artifact(const artifact *a, results out)
{
	clv_packing_state s = {.size = sizeof s};
	clv_runtime *r = runtime_of(a);
	run(r, out);
	OK(clv_runtime_packing(r, &s));
	clv_runtime_free(r);
	return s;
}

static clv_packing_state run_image(image i, results out)
{
	artifact *a = opened(i);
	clv_packing_state s = run_artifact(a, out);
	artifact_free(a);
	return s;
}

static void expected(results out)
{
	image i = written(model(1));
	clv_packing_state s = run_image(i, out);
	assert_int_equal(s.found, 0);
	image_free(&i);
}

static void assert_same(const results a, const results b)
{
	assert_memory_equal(a, b, sizeof(results));
}

static const char *own_set(void)
{
	return native_isa_name(native_kernels_here());
}

static const char *other_set(void)
{
	return strcmp(own_set(), "neon") == 0 ? "avx2" : "neon";
}

/* ---- used ----------------------------------------------------------------------------------------------------------- */

static void a_packed_file_gives_the_same_bits_and_packs_nothing(void **state)
{
	results want, got;
	image i = packed_file(NULL, 0);
	(void)state;
	expected(want);
	clv_packing_state s = run_image(i, got);
	assert_same(want, got);
	assert_true(s.found >= 3); /* the weights of both layers, and the bias of the norm */
	assert_int_equal(s.repacked, 0);
	image_free(&i);
}

static void a_file_may_be_packed_for_several_machines(void **state)
{
	const char *const sets[] = {"neon", "avx2", "avx512", "base", "avx2"};
	results want, got;
	image i = packed_file(sets, 5);
	artifact *a = opened(i);
	const char *isa;
	uint32_t pieces, first = 0;
	int64_t bytes;
	(void)state;
	for (uint32_t k = 0; k < 4; k++) {
		assert_true(clv_artifact_packed(a, k, &isa, &pieces, &bytes));
		assert_non_null(packed_for(a, sets[k]));
		first = k ? first : pieces;
		assert_int_equal(pieces, first);
		assert_true(bytes > 0);
	}
	assert_false(clv_artifact_packed(a, 4, &isa, &pieces, &bytes));
	artifact_free(a);
	expected(want);
	assert_int_equal(run_image(i, got).repacked, 0);
	assert_same(want, got);
	image_free(&i);
}

static void what_is_packed_for_another_machine_is_packed_again(void **state)
{
	results want, got;
	image i = packed_file((const char *const[]){other_set()}, 1);
	(void)state;
	expected(want);
	clv_packing_state s = run_image(i, got);
	assert_same(want, got);
	assert_int_equal(s.found, 0);
	assert_true(s.repacked > 0);
	image_free(&i);
}

static void other_weights_are_packed_again(void **state)
{
	results want, got;
	image i = packed_file(NULL, 0), plain = written(model(1));
	artifact *files[] = {opened(plain), opened(i)};
	(void)state;
	for (unsigned k = 0; k < 2; k++) {
		clv_runtime *r = runtime_of(files[k]);
		clv_tensor *t;
		float w[35];
		for (int e = 0; e < 35; e++)
			w[e] = (float)e - 10;
		run(r, got);
		OK(clv_tensor_from_data(w, "f32", 2, (int64_t[]){7, 5}, &t));
		OK(clv_runtime_bind(r, "l.weight", t));
		run(r, k ? got : want);
		clv_tensor_free(t);
		clv_runtime_free(r);
		artifact_free(files[k]);
	}
	assert_same(want, got);
	image_free(&i);
	image_free(&plain);
}

static void weights_of_another_file_are_not_taken_for_its_own(void **state)
{
	results want, got;
	image theirs = packed_file(NULL, 0), mine = written(model(2));
	artifact *a = opened(theirs), *b = model(2);
	const artifact_packed *x = packed_for(a, own_set());
	(void)state;
	run_image(mine, want);
	OK(artifact_add_packed(b, x->isa, x->pieces.at, x->pieces.n, x->data, x->n));
	image both = written(b);
	clv_packing_state s = run_image(both, got);
	assert_same(want, got);
	assert_int_equal(s.found, 0);
	artifact_free(a);
	image_free(&theirs);
	image_free(&mine);
	image_free(&both);
}

static void a_packed_file_is_packed_anew(void **state)
{
	image once = packed_file(NULL, 0);
	artifact *a = opened(once);
	image twice = packed_for_sets(a, NULL, 0);
	(void)state;
	assert_true(same_image(once, twice));
	artifact_free(a);
	image_free(&once);
	image_free(&twice);
}

static void an_unknown_instruction_set_is_refused(void **state)
{
	clv_packing_options o = CLV_PACKING_OPTIONS_INIT;
	o.sandbox = CLV_SANDBOX_OFF;
	image plain = written(model(1));
	artifact *a = opened(plain);
	(void)state;
	o.isas = (const char *const[]){"sse9"};
	o.nisas = 1;
	FAILS(clv_artifact_pack(a, &o, "/tmp/never.clv"), CLV_E_INVALID, "no instruction set \"sse9\"");
	artifact_free(a);
	image_free(&plain);
}

static void forked_processes_share_what_is_packed(void **state)
{
	char folder[] = "/tmp/cleave-pack-XXXXXX", path[64];
	results want, got;
	artifact *a;
	image i = packed_file(NULL, 0);
	(void)state;
	expected(want);
	snprintf(path, sizeof path, "%s/m.clv", new_folder(folder));
	OK(file_create(path, i.at, i.n, false));
	OK(clv_artifact_open(path, NULL, &a));
	const artifact_packed *x = packed_for(a, own_set());
	assert_true(x->data >= a->map.at && x->data + x->n <= a->map.at + a->map.n);
	pid_t child = fork();
	if (child == 0) {
		run_artifact(a, got);
		_exit(memcmp(want, got, sizeof(results)) != 0);
	}
	int status;
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	run_artifact(a, got);
	assert_same(want, got);
	artifact_free(a);
	count_files(folder, true);
	image_free(&i);
}

/* ---- damaged and hostile files --------------------------------------------------------------------------------------- */

/* The file with an edited list of pieces; `edit` may also change the bytes of the packed weights. */
typedef void (*edit_fn)(json_t *root, opened_up *o, uint8_t *packed, uint32_t which);

static image edited(image from, edit_fn edit, uint32_t which)
{
	image copy = image_of(from.at, from.n);
	artifact *a = opened(copy);
	uint8_t *packed = (uint8_t *)(uintptr_t)packed_for(a, own_set())->data;
	opened_up o = open_up(copy);
	json_t *root = load_text(&o, ARTIFACT_PACKED_KEY);
	edit(root, &o, packed, which);
	put_text(metadata_of(&o), ARTIFACT_PACKED_KEY, root);
	image i = closed_again(&o);
	artifact_free(a);
	image_free(&copy);
	return i;
}

static json_t *own_list(json_t *root)
{
	return json_object_get(root, own_set());
}

static void drop_piece(json_t *root, opened_up *o, uint8_t *packed, uint32_t which)
{
	(void)o, (void)packed;
	json_array_remove(own_list(root), which);
}

static void a_piece_that_is_missing_is_made(void **state)
{
	results want, got;
	image i = packed_file(NULL, 0);
	artifact *a = opened(i);
	uint32_t n = packed_for(a, own_set())->pieces.n;
	(void)state;
	artifact_free(a);
	expected(want);
	for (uint32_t k = 0; k < n; k++) {
		image less = edited(i, drop_piece, k);
		clv_packing_state s = run_image(less, got);
		assert_same(want, got);
		assert_true(s.found <= n - 1);
		image_free(&less);
	}
	image_free(&i);
}

static void flip(json_t *root, opened_up *o, uint8_t *packed, uint32_t which)
{
	(void)o;
	json_t *piece = json_array_get(own_list(root), which);
	packed[json_integer_value(json_array_get(piece, 1))] ^= 1;
}

static void a_damaged_piece_is_made_again_and_noticed(void **state)
{
	results want, got;
	image i = packed_file(NULL, 0);
	(void)state;
	expected(want);
	for (uint32_t k = 0; k < 3; k++) {
		image damaged = edited(i, flip, k);
		clv_packing_state s = run_image(damaged, got);
		assert_same(want, got);
		assert_true(s.damaged >= 1);
		artifact *a = opened(damaged);
		FAILS(artifact_check_data(a), CLV_E_PARSE, "damaged");
		artifact_free(a);
		image_free(&damaged);
	}
	image_free(&i);
}

static void shorten(json_t *root, opened_up *o, uint8_t *packed, uint32_t which)
{
	char text[DIGEST_TEXT];
	json_t *piece = json_array_get(own_list(root), which);
	json_int_t at = json_integer_value(json_array_get(piece, 1)), n = json_integer_value(json_array_get(piece, 2)) - 4;
	(void)o;
	digest_print(digest_of(packed + at, (size_t)n), text);
	json_array_set_new(piece, 2, json_integer(n));
	json_array_set_new(piece, 3, json_string(text));
}

static void a_piece_of_another_size_is_not_used(void **state)
{
	results want, got;
	image i = packed_file(NULL, 0);
	(void)state;
	expected(want);
	for (uint32_t k = 0; k < 3; k++) {
		image shorter = edited(i, shorten, k);
		assert_true(run_image(shorter, got).damaged >= 1);
		assert_same(want, got);
		image_free(&shorter);
	}
	image_free(&i);
}

static void forge(json_t *root, opened_up *o, uint8_t *packed, uint32_t which)
{
	char text[DIGEST_TEXT];
	json_t *piece = json_array_get(own_list(root), which);
	json_int_t at = json_integer_value(json_array_get(piece, 1)), n = json_integer_value(json_array_get(piece, 2));
	(void)o;
	memset(packed + at, 0xff, (size_t)n);
	digest_print(digest_of(packed + at, (size_t)n), text);
	json_array_set_new(piece, 3, json_string(text));
}

static void forged_pieces_give_other_numbers_and_nothing_worse(void **state)
{
	results want, got;
	image i = packed_file(NULL, 0);
	bool other = false;
	(void)state;
	expected(want);
	for (uint32_t k = 0; k < 3; k++) {
		image forged = edited(i, forge, k);
		run_image(forged, got);
		other |= memcmp(want, got, sizeof want) != 0;
		image_free(&forged);
	}
	assert_true(other);
	image_free(&i);
}

enum { FIRST = 0 };
static void bad_list(json_t *root, opened_up *o, uint8_t *packed, uint32_t which)
{
	json_t *list = own_list(root), *piece = json_array_get(list, FIRST);
	json_int_t n = json_integer_value(json_array_get(piece, 2));
	(void)o, (void)packed;
	switch (which) {
	case 0: json_array_set_new(piece, 1, json_integer(4)); break;
	case 1: json_array_set_new(piece, 1, json_integer(INT64_MAX / 64 * 64)); break;
	case 2: json_array_set_new(piece, 1, json_integer(-64)); break;
	case 3: json_array_set_new(piece, 2, json_integer(n + (1 << 20))); break;
	case 4: json_array_set_new(piece, 2, json_integer(-1)); break;
	case 5: json_array_set_new(piece, 2, json_string("1")); break;
	case 6: json_array_set_new(piece, 0, json_string("00")); break;
	case 7: json_array_set_new(piece, 3, json_null()); break;
	case 8: json_array_append(list, piece); break;
	case 9: json_array_append_new(piece, json_integer(0)); break;
	case 10: json_object_set_new(root, "avx9", json_array()); break;
	case 11: json_object_set_new(root, "a b", json_array()); break;
	case 12: json_object_set_new(root, "", json_array()); break;
	case 13: json_object_set_new(root, "neon", json_integer(1)); break;
	case 14: json_object_del(root, own_set()); break;
	default: break;
	}
}

static void a_list_that_cannot_be_is_refused(void **state)
{
	image i = packed_file(NULL, 0);
	(void)state;
	for (uint32_t k = 0; k < 15; k++) {
		image bad = edited(i, bad_list, k);
		if (try_image(bad) != CLV_E_PARSE)
			fail_msg("list %u is accepted", k);
		image_free(&bad);
	}
	image good = edited(i, bad_list, 15);
	OK(try_image(good));
	image_free(&good);
	image_free(&i);
}

/* ---- memory ----------------------------------------------------------------------------------------------------------- */

static clv_status pack_in_vain(const void *ctx)
{
	image i = *(const image *)ctx;
	artifact *a = NULL;
	clv_status st = open_image(i, &a);
	if (st == CLV_OK)
		st = clv_artifact_pack(a,
		                       &(clv_packing_options){.size = sizeof(clv_packing_options), .sandbox = CLV_SANDBOX_OFF},
		                       "/dev/null/never.clv");
	artifact_free(a);
	return st;
}

static void packing_survives_a_lack_of_memory(void **state)
{
	image plain = written(model(1));
	(void)state;
	sweep_faults(pack_in_vain, &plain, CLV_E_IO);
	image_free(&plain);
}

static clv_status start(const void *ctx)
{
	image i = *(const image *)ctx;
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	o.sandbox = CLV_SANDBOX_OFF;
	artifact *a = NULL;
	clv_runtime *r = NULL;
	clv_tensor *in = NULL, *y = NULL;
	static const float x[BATCH * 3 * 36];
	o.engine = "native";
	o.threads = 1;
	clv_status st = open_image(i, &a);
	if (st == CLV_OK)
		st = clv_runtime_create(a, &o, &r);
	if (st == CLV_OK)
		st = clv_tensor_from_data(x, "f32", 4, (int64_t[]){BATCH, 3, 6, 6}, &in);
	if (st == CLV_OK)
		st = clv_runtime_run(r, (const clv_tensor *const[]){in}, 1, &y, 1);
	clv_tensor_free(y);
	clv_tensor_free(in);
	clv_runtime_free(r);
	artifact_free(a);
	return st;
}

static void a_packed_file_survives_a_lack_of_memory(void **state)
{
	image i = packed_file(NULL, 0), less = edited(i, drop_piece, 0);
	(void)state;
	sweep_each(start, &i, CLV_OK, true); /* some passes can be done without */
	sweep_each(start, &less, CLV_OK, true);
	image_free(&i);
	image_free(&less);
}

/* ---- constants that one node packs and reads ---------------------------------------------------------------------- */

/* 40 rows are many enough for distances to be a product. */
static const char *const readers[] = {
	"%2 = aten::addmm(%0, %1, %1) -> f32[40,40]\n",
	"%2 = aten::cdist(%0, %1, 2.0, none) -> f32[40,40]\n",
	"%2 = aten::mm(%1, %1) -> f32[40,40]\n%3 = aten::add.Tensor(%2, %0) -> f32[40,40]\n",
	"%2 = aten::linear(%1, %1, none) -> f32[40,40]\n%3 = aten::add.Tensor(%2, %0) -> f32[40,40]\n",
};
enum { SIDE = 40 };
static float square[SIDE * SIDE];

static artifact *reader(const char *nodes)
{
	static alignas(64) float w[SIDE * SIDE];
	char text[512];
	snprintf(text, sizeof text,
	         "cleave-plan 1\nmodel \"Net\" training=no grad=no\ninput %%0 f32[40,40] name=\"x\"\nparam @w f32[40,40]\n"
	         "%%1 = aten::relu(@w) -> f32[40,40]\n%soutput %%%c\n",
	         nodes, strstr(nodes, "%3") ? '3' : '2');
	artifact *a = new_artifact(text);
	for (int i = 0; i < SIDE * SIDE; i++)
		w[i] = (float)(i * 37 % 29) / 29 - 0.25f, square[i] = (float)(i % 17) / 17;
	OK(add(a->tensors, tensor_on("w", DT_F32, w, 0, 2, (int64_t[]){SIDE, SIDE}, (int64_t[]){SIDE, 1})));
	return a;
}

static void run_square(const clv_runtime *r, float *out)
{
	clv_tensor *in, *y = NULL;
	OK(clv_tensor_from_data(square, "f32", 2, (int64_t[]){SIDE, SIDE}, &in));
	OK(clv_runtime_run(r, (const clv_tensor *const[]){in}, 1, &y, 1));
	memcpy(out, clv_tensor_data(y), sizeof square);
	clv_tensor_free(in);
	clv_tensor_free(y);
}

static void run_square_of(const artifact *a, float *out)
{
	clv_runtime *r = runtime_of(a);
	run_square(r, out);
	clv_runtime_free(r);
}

static void what_is_packed_and_read_is_computed(void **state)
{
	static float want[SIDE * SIDE], got[SIDE * SIDE];
	(void)state;
	for (size_t i = 0; i < sizeof readers / sizeof *readers; i++) {
		image plain = written(reader(readers[i]));
		artifact *a = opened(plain);
		run_square_of(a, want);
		image packed = packed_for_sets(a, NULL, 0);
		artifact *b = opened(packed);
		run_square_of(b, got);
		assert_memory_equal(want, got, sizeof want);
		artifact_free(a);
		artifact_free(b);
		image_free(&plain);
		image_free(&packed);
	}
}

/* The second finds what the first packed in memory. */
static void what_another_runtime_packed_and_read_is_computed(void **state)
{
	static float want[SIDE * SIDE], got[SIDE * SIDE];
	(void)state;
	for (size_t i = 0; i < sizeof readers / sizeof *readers; i++) {
		image plain = written(reader(readers[i]));
		artifact *a = opened(plain);
		clv_runtime *first = runtime_of(a);
		run_square(first, want);
		run_square_of(a, got);
		assert_memory_equal(want, got, sizeof want);
		clv_runtime_free(first);
		artifact_free(a);
		image_free(&plain);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_packed_file_gives_the_same_bits_and_packs_nothing),
		cmocka_unit_test(a_file_may_be_packed_for_several_machines),
		cmocka_unit_test(what_is_packed_for_another_machine_is_packed_again),
		cmocka_unit_test(other_weights_are_packed_again),
		cmocka_unit_test(weights_of_another_file_are_not_taken_for_its_own),
		cmocka_unit_test(a_packed_file_is_packed_anew),
		cmocka_unit_test(an_unknown_instruction_set_is_refused),
		cmocka_unit_test(forked_processes_share_what_is_packed),
		cmocka_unit_test(a_piece_that_is_missing_is_made),
		cmocka_unit_test(a_damaged_piece_is_made_again_and_noticed),
		cmocka_unit_test(a_piece_of_another_size_is_not_used),
		cmocka_unit_test(forged_pieces_give_other_numbers_and_nothing_worse),
		cmocka_unit_test(a_list_that_cannot_be_is_refused),
		cmocka_unit_test(what_is_packed_and_read_is_computed),
		cmocka_unit_test(what_another_runtime_packed_and_read_is_computed),
		cmocka_unit_test(packing_survives_a_lack_of_memory),
		cmocka_unit_test(a_packed_file_survives_a_lack_of_memory),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
