/* Runtimes of artifacts, and what goes in and out of them: caller's memory, DLPack, boundaries, devices, state, threads. */
#include "artifacts.h"
#include "torch.h"

#include <pthread.h>

#include "exec/tape.h"

#define HEAD "cleave-plan 1\nmodel \"Net\"\n"
#define COUNT(a) (sizeof(a) / sizeof *(a))
#define INPUTS(...) (const clv_tensor *const[]){__VA_ARGS__}, COUNT(((const clv_tensor *[]){__VA_ARGS__}))

static const clv_runtime_options defaults = {.size = sizeof defaults,
                                             .sandbox = CLV_SANDBOX_OFF}; /* no key for seals */

/* ---- models and tensors ------------------------------------------------------------------------------------------- */

static artifact *on_disk(artifact *made)
{
	char folder[] = "/tmp/cleave-runtime-XXXXXX", path[64];
	artifact *a = NULL;
	snprintf(path, sizeof path, "%s/model.clv", new_folder(folder));
	if (artifact_save(made, path) != CLV_OK || clv_artifact_open(path, NULL, &a) != CLV_OK)
		fail_msg("%s", status_message());
	artifact_free(made);
	count_files(folder, true);
	return a;
}

/* The file is gone and the artifact closed: what the runtime needs, it keeps. */
static clv_runtime *runtime_with(artifact *made, clv_runtime_options o)
{
	artifact *a = on_disk(made);
	clv_runtime *r = NULL;
	if (clv_runtime_create(a, &o, &r) != CLV_OK)
		fail_msg("%s", status_message());
	clv_artifact_free(a);
	return r;
}

static clv_runtime *runtime_of(artifact *made)
{
	return runtime_with(made, defaults);
}

/* There is no such runtime. */
static void refused(artifact *made, clv_runtime_options o, clv_status status, const char *part)
{
	artifact *a = on_disk(made);
	clv_runtime *r = NULL;
	FAILS(clv_runtime_create(a, &o, &r), status, part);
	assert_null(r);
	clv_artifact_free(a);
}

/* A model with one tensor of two floats, 10 and 20. */
static artifact *with_pair(const char *text, const char *name)
{
	static alignas(64) const float pair[] = {10, 20};
	static const int64_t two[] = {2}, one[] = {1};
	artifact *a = new_artifact(text);
	OK(add(a->tensors, tensor_on(name, DT_F32, pair, 0, 1, two, one)));
	return a;
}

static clv_tensor *floats(const float *data, uint32_t ndim, const int64_t *shape)
{
	clv_tensor *t = NULL;
	OK(clv_tensor_from_data(data, "f32", ndim, shape, &t));
	return t;
}

#define VECTOR(...) floats((float[]){__VA_ARGS__}, 1, (int64_t[]){(int64_t)COUNT(((float[]){__VA_ARGS__}))})

/* Rows of the sample's input: 0, 1, 2, … */
static clv_tensor *rows(int64_t n)
{
	float data[64];
	for (int i = 0; i < 64; i++)
		data[i] = (float)i / 8 - 3;
	return floats(data, 2, (int64_t[]){n, 4});
}

static void holds(const clv_tensor *t, const float *want, size_t n)
{
	assert_string_equal(clv_tensor_dtype(t), "f32");
	assert_int_equal(clv_tensor_bytes(t), n * sizeof *want);
	assert_memory_equal(clv_tensor_data(t), want, n * sizeof *want);
}

#define HOLDS(t, ...) holds(t, (float[]){__VA_ARGS__}, COUNT(((float[]){__VA_ARGS__})))

static void same_bits_in(const clv_tensor *a, const clv_tensor *b)
{
	bool same = false;
	OK(br_bits_equal(torch_of(a), torch_of(b), &same));
	assert_true(same);
}

/* Runs a model of one input and one output; the input is freed. */
static clv_status run_one(const clv_runtime *r, clv_tensor *x, clv_tensor **y)
{
	clv_status st = clv_runtime_run(r, INPUTS(x), y, 1);
	clv_tensor_free(x);
	return st;
}

static clv_tensor *result_of(const clv_runtime *r, clv_tensor *x)
{
	clv_tensor *y = NULL;
	if (run_one(r, x, &y) != CLV_OK)
		fail_msg("%s", status_message());
	return y;
}

static void gives(const clv_runtime *r, clv_tensor *x, const float *want, size_t n)
{
	clv_tensor *y = result_of(r, x);
	holds(y, want, n);
	clv_tensor_free(y);
}

#define GIVES(r, x, ...) gives(r, x, (float[]){__VA_ARGS__}, COUNT(((float[]){__VA_ARGS__})))

static void run_fails(const clv_runtime *r, clv_tensor *x, clv_status status, const char *part)
{
	clv_tensor *y = NULL;
	FAILS(run_one(r, x, &y), status, part);
	assert_null(y);
}

/* ---- memory of the caller ----------------------------------------------------------------------------------------- */

static void count_release(void *ctx)
{
	++*(int *)ctx;
}

static int released_without_context;

static void count_nothing(void *ctx)
{
	assert_null(ctx);
	released_without_context++;
}

static void memory_of_the_caller_is_used_where_it_lies(void **state)
{
	(void)state;
	clv_runtime *r = runtime_of(new_artifact(HEAD "input %0 f32[4] name=\"x\"\n"
	                                              "%1 = aten::relu(%0) -> f32[4]\n"
	                                              "output (%1, %0)\n"));
	alignas(64) float data[4] = {-1, 2, -3, 4};
	int released = 0;
	clv_tensor *x, *y[2];
	OK(clv_tensor_wrap(data, "f32", 1, (int64_t[]){4}, NULL, count_release, &released, &x));
	OK(clv_runtime_run(r, INPUTS(x), y, 2));
	HOLDS(y[0], 0, 2, 0, 4);
	assert_ptr_equal(clv_tensor_data(y[1]), data);
	clv_tensor_free(x);
	clv_tensor_free(y[0]);
	clv_runtime_free(r);
	assert_int_equal(released, 0);
	clv_tensor_free(y[1]);
	assert_int_equal(released, 1);
}

static void strides_of_the_caller_are_taken(void **state)
{
	(void)state;
	float data[6] = {1, 2, 3, 4, 5, 6}, copy[4];
	clv_tensor *t;
	OK(clv_tensor_wrap(data, "f32", 2, (int64_t[]){2, 2}, (int64_t[]){1, 3}, NULL, NULL, &t));
	assert_null(clv_tensor_data(t));
	OK(clv_tensor_copy_to(t, copy, sizeof copy));
	assert_memory_equal(copy, ((float[]){1, 4, 2, 5}), sizeof copy);
	FAILS(clv_tensor_copy_to(t, copy, 8), CLV_E_INVALID, "has 16 bytes, the buffer 8");
	clv_tensor_free(t);
}

static void memory_is_released_without_a_context_too(void **state)
{
	(void)state;
	float data[1];
	clv_tensor *t;
	released_without_context = 0;
	OK(clv_tensor_wrap(data, "f32", 1, (int64_t[]){1}, NULL, count_nothing, NULL, &t));
	clv_tensor_free(t);
	assert_int_equal(released_without_context, 1);
}

static void what_cannot_be_wrapped_is_not_released(void **state)
{
	(void)state;
	float data[4];
	int released = 0;
	clv_tensor *t = NULL;
	const int64_t huge[] = {INT64_MAX, INT64_MAX};
	FAILS(clv_tensor_wrap(data, "f32", 2, huge, NULL, count_release, &released, &t), CLV_E_OVERFLOW, "2^63");
	FAILS(clv_tensor_wrap(data, "f32", 1, huge, huge, count_release, &released, &t), CLV_E_OVERFLOW, "2^63");
	FAILS(clv_tensor_wrap(data, "f32", 2, (int64_t[]){2, 2}, huge, count_release, &released, &t), CLV_E_OVERFLOW, "");
	FAILS(clv_tensor_from_data(data, "f32", 2, huge, &t), CLV_E_OVERFLOW, "2^63");
	FAILS(clv_tensor_wrap(data, "f33", 1, (int64_t[]){4}, NULL, count_release, &released, &t), CLV_E_INVALID, "f33");
	FAILS(clv_tensor_wrap(data, "f32", 1, (int64_t[]){-4}, NULL, count_release, &released, &t), CLV_E_INVALID,
	      "negative");
	FAILS(clv_tensor_wrap(NULL, "f32", 1, (int64_t[]){4}, NULL, count_release, &released, &t), CLV_E_INVALID, "NULL");
	assert_int_equal(released, 0);
	assert_null(t);
}

static void functions_of_tensors_take_null(void **state)
{
	(void)state;
	clv_tensor *t = NULL;
	assert_string_equal(clv_tensor_device(NULL), "?");
	assert_int_equal(clv_tensor_bytes(NULL), -1);
	assert_int_equal(clv_tensor_dim(NULL, 0), -1);
	assert_null(clv_tensor_data(NULL));
	FAILS(clv_tensor_copy_to(NULL, NULL, 0), CLV_E_INVALID, "NULL");
	FAILS(clv_tensor_to_device(NULL, "cpu", &t), CLV_E_INVALID, "NULL");
	clv_tensor_free(NULL);
}

/* ---- DLPack: its structs by hand, as the specification has them ----------------------------------------------------- */

typedef struct dl_tensor {
	void *data;
	int32_t device_type, device_id;
	int32_t ndim;
	uint8_t code, bits;
	uint16_t lanes;
	int64_t *shape, *strides;
	uint64_t byte_offset;
} dl_tensor;

struct DLManagedTensor {
	dl_tensor t;
	void *ctx;
	void (*deleter)(struct DLManagedTensor *self);
};

enum { DL_CPU = 1, DL_FLOAT = 2, DL_OPAQUE = 3 };

static void count_delete(struct DLManagedTensor *self)
{
	++*(int *)self->ctx;
}

static struct DLManagedTensor dl_of(float *data, int64_t *shape, int *deleted)
{
	return (struct DLManagedTensor){.t = {.data = data,
	                                      .device_type = DL_CPU,
	                                      .ndim = 1,
	                                      .code = DL_FLOAT,
	                                      .bits = 32,
	                                      .lanes = 1,
	                                      .shape = shape,
	                                      .byte_offset = 4},
	                                .ctx = deleted,
	                                .deleter = count_delete};
}

static void tensors_of_dlpack_go_in_and_out_without_a_copy(void **state)
{
	(void)state;
	clv_runtime *r = runtime_of(new_artifact(HEAD "input %0 f32[2] name=\"x\"\n"
	                                              "%1 = aten::neg(%0) -> f32[2]\n"
	                                              "output (%0, %1)\n"));
	float data[] = {9, 1, 2};
	int64_t shape[] = {2};
	int deleted = 0;
	struct DLManagedTensor in = dl_of(data, shape, &deleted), *out[2];
	clv_tensor *x, *y[2];
	OK(clv_tensor_from_dlpack(&in, &x));
	OK(clv_runtime_run(r, INPUTS(x), y, 2));
	clv_tensor_free(x);
	clv_runtime_free(r);
	for (int i = 0; i < 2; i++) {
		OK(clv_tensor_to_dlpack(y[i], &out[i]));
		clv_tensor_free(y[i]);
	}
	assert_ptr_equal((char *)out[0]->t.data + out[0]->t.byte_offset, data + 1);
	assert_int_equal(out[1]->t.code, DL_FLOAT);
	assert_int_equal(out[1]->t.shape[0], 2);
	assert_memory_equal((char *)out[1]->t.data + out[1]->t.byte_offset, ((float[]){-1, -2}), 8);
	out[1]->deleter(out[1]);
	assert_int_equal(deleted, 0);
	out[0]->deleter(out[0]);
	assert_int_equal(deleted, 1);
}

static void what_dlpack_cannot_give_stays_the_callers(void **state)
{
	(void)state;
	float data[3];
	int64_t shape[] = {2}, huge[] = {INT64_MAX, INT64_MAX};
	int deleted = 0;
	clv_tensor *t = NULL;
	struct DLManagedTensor in = dl_of(data, shape, &deleted);
	in.t.code = DL_OPAQUE;
	FAILS(clv_tensor_from_dlpack(&in, &t), CLV_E_UNSUPPORTED, "type");
	in = dl_of(data, shape, &deleted);
	in.t.bits = 24;
	FAILS(clv_tensor_from_dlpack(&in, &t), CLV_E_UNSUPPORTED, "type");
	in = dl_of(data, shape, &deleted);
	in.t.lanes = 4;
	FAILS(clv_tensor_from_dlpack(&in, &t), CLV_E_UNSUPPORTED, "type");
	in = dl_of(data, huge, &deleted);
	in.t.ndim = 2;
	FAILS(clv_tensor_from_dlpack(&in, &t), CLV_E_OVERFLOW, "2^63");
	in = dl_of(data, NULL, &deleted);
	FAILS(clv_tensor_from_dlpack(&in, &t), CLV_E_INVALID, "no shape");
	in.t.ndim = -1;
	FAILS(clv_tensor_from_dlpack(&in, &t), CLV_E_INVALID, "-1 dimensions");
	FAILS(clv_tensor_from_dlpack(NULL, &t), CLV_E_INVALID, "NULL");
	assert_null(t);
	assert_int_equal(deleted, 0);
}

static void a_tensor_that_is_conjugated_lazily_has_no_form_in_dlpack(void **state)
{
	(void)state;
	clv_runtime *r = runtime_of(new_artifact(HEAD "input %0 c64[1] name=\"x\"\n"
	                                              "%1 = aten::_conj(%0) -> c64[1] view-of %0\n"
	                                              "output %1\n"));
	struct DLManagedTensor *out = NULL;
	float back[2];
	clv_tensor *x, *y;
	OK(clv_tensor_from_data((float[]){1, 2}, "c64", 1, (int64_t[]){1}, &x));
	y = result_of(r, x);
	FAILS(clv_tensor_to_dlpack(y, &out), CLV_E_UNSUPPORTED, "conj");
	assert_null(out);
	OK(clv_tensor_copy_to(y, back, sizeof back));
	assert_memory_equal(back, ((float[]){1, -2}), sizeof back);
	clv_tensor_free(y);
	clv_runtime_free(r);
}

/* ---- the tensors of the file -------------------------------------------------------------------------------------- */

static const char read_pair[] = HEAD "input %0 f32[2] name=\"x\"\n"
									 "buffer @h f32[2]\n"
									 "%1 = aten::add.Tensor(@h, %0, 1) -> f32[2]\n"
									 "output (%1, @h)\n";

static bool in_mapping(const artifact *a, const void *at)
{
	return (const char *)at >= (const char *)a->map.at && (const char *)at < (const char *)a->map.at + a->map.n;
}

/* Where the model's tensor is when it runs. */
static const void *weight_of(artifact *a, clv_tensor **keep)
{
	clv_runtime *r;
	clv_tensor *x = VECTOR(1, 2), *y[2];
	OK(clv_runtime_create(a, &defaults, &r));
	OK(clv_runtime_run(r, INPUTS(x), y, 2));
	HOLDS(y[0], 11, 22);
	HOLDS(y[1], 10, 20);
	assert_false(in_mapping(a, clv_tensor_data(y[1]))); /* the caller may write what a model gives */
	clv_tensor_free(x);
	clv_tensor_free(y[0]);
	clv_tensor_free(y[1]);
	*keep = tensor_ref(r->state[0]);
	clv_runtime_free(r);
	return clv_tensor_data(*keep);
}

static void weights_are_read_from_the_mapped_file(void **state)
{
	(void)state;
	artifact *a = on_disk(with_pair(read_pair, "h"));
	clv_tensor *first, *second;
	const void *at = weight_of(a, &first);
	assert_true(in_mapping(a, at));
	assert_ptr_equal(weight_of(a, &second), at);
	clv_artifact_free(a); /* tensors keep the mapping */
	HOLDS(first, 10, 20);
	HOLDS(second, 10, 20);
	clv_tensor_free(first);
	clv_tensor_free(second);
}

static void weights_that_were_aligned_otherwise_are_copied(void **state)
{
	(void)state;
	static alignas(64) const float three[] = {0, 10, 20};
	static const int64_t two[] = {2}, one[] = {1};
	artifact *a = new_artifact(read_pair);
	OK(add(a->tensors, tensor_on("h", DT_F32, three + 1, 0, 1, two, one)));
	a = on_disk(a);
	clv_tensor *t;
	const void *at = weight_of(a, &t);
	assert_false(in_mapping(a, at));
	assert_int_equal((uintptr_t)at % 64, 4);
	clv_tensor_free(t);
	clv_artifact_free(a);
}

static void tensors_without_elements_are_described_and_run(void **state)
{
	(void)state;
	static const int64_t none[] = {0, 2}, strides[] = {2, 1};
	artifact *a = new_artifact(HEAD "param @w f32[0,2]\n%0 = aten::neg(@w) -> f32[0,2]\noutput (%0, @w)\n");
	OK(add(a->tensors, tensor_on("w", DT_F32, weights, 0, 2, none, strides)));
	a = on_disk(a);
	clv_tensor_info info = {.size = sizeof info};
	clv_runtime *r;
	clv_tensor *y[2];
	OK(clv_artifact_tensor(a, 0, &info));
	assert_int_equal(info.bytes, 0);
	OK(artifact_check_data(a));
	OK(clv_runtime_create(a, &defaults, &r));
	OK(clv_runtime_run(r, NULL, 0, y, 2));
	assert_int_equal(clv_tensor_dim(y[0], 1), 2);
	assert_int_equal(clv_tensor_bytes(y[1]), 0);
	OK(clv_tensor_copy_to(y[0], NULL, 0));
	clv_tensor_free(y[0]);
	clv_tensor_free(y[1]);
	clv_runtime_free(r);
	clv_artifact_free(a);
}

static void outputs_outlive_the_runtime_and_the_artifact(void **state)
{
	(void)state;
	clv_runtime *r = runtime_of(with_pair(HEAD "input %0 f32[2] name=\"x\"\n"
	                                           "param @w f32[2]\n"
	                                           "%1 = aten::view(@w, [1, 2]) -> f32[1,2] view-of @w\n"
	                                           "output %1\n",
	                                      "w"));
	clv_tensor *y = result_of(r, VECTOR(0, 0));
	clv_runtime_free(r);
	HOLDS(y, 10, 20);
	clv_tensor_free(y);
}

/* ---- state -------------------------------------------------------------------------------------------------------- */

static const char add_and_rebind[] = HEAD "input %0 f32[2] name=\"x\"\n"
										  "buffer @h f32[2]\n"
										  "%1 = aten::add.Tensor(@h, %0, 1) -> f32[2]\n"
										  "rebind @h = %1\n"
										  "output %1\n";

static const char add_in_place[] = HEAD "input %0 f32[2] name=\"x\"\n"
										"buffer @h f32[2]\n"
										"%1 = aten::add_.Tensor(@h, %0, 1) -> f32[2] view-of @h writes @h\n"
										"%2 = aten::clone(%1, none) -> f32[2]\n"
										"output %2\n";

static void runtimes_of_one_artifact_do_not_see_each_other(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		artifact *a = on_disk(with_pair(i ? add_in_place : add_and_rebind, "h"));
		clv_runtime *r, *s;
		OK(clv_runtime_create(a, &defaults, &r));
		GIVES(r, VECTOR(1, 2), 11, 22);
		GIVES(r, VECTOR(1, 2), 12, 24);
		OK(clv_runtime_create(a, &defaults, &s));
		GIVES(s, VECTOR(5, 5), 15, 25);
		GIVES(r, VECTOR(1, 2), 13, 26);
		clv_runtime_free(r);
		clv_runtime_free(s);
		clv_artifact_free(a);
	}
}

static void a_buffer_that_is_bound_is_changed_by_later_runs(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		clv_runtime *r = runtime_of(with_pair(i ? add_in_place : add_and_rebind, "h"));
		clv_tensor *h = VECTOR(100, 200);
		GIVES(r, VECTOR(1, 2), 11, 22);
		OK(clv_runtime_bind(r, "h", h));
		GIVES(r, VECTOR(1, 2), 101, 202);
		GIVES(r, VECTOR(1, 2), 102, 204);
		clv_tensor_free(h);
		clv_runtime_free(r);
	}
}

static artifact *without_weights(const char *text)
{
	artifact *a = new_artifact(text);
	a->weights = false;
	return a;
}

static void a_file_without_weights_names_what_has_to_be_bound(void **state)
{
	(void)state;
	clv_runtime *r = runtime_of(without_weights(add_and_rebind));
	clv_tensor *h = VECTOR(1, 1), *wrong = VECTOR(1);
	assert_string_equal(clv_runtime_unbound(r, 0), "h");
	assert_null(clv_runtime_unbound(r, 1));
	run_fails(r, VECTOR(1, 2), CLV_E_INPUT, "@h is not bound");
	FAILS(clv_runtime_bind(r, "g", h), CLV_E_NOT_FOUND, "nothing called g");
	OK(clv_runtime_bind(r, "h", wrong));
	run_fails(r, VECTOR(1, 2), CLV_E_INPUT, "of another shape");
	OK(clv_runtime_bind(r, "h", h));
	GIVES(r, VECTOR(1, 2), 2, 3);
	GIVES(r, VECTOR(1, 2), 3, 5);
	clv_tensor_free(h);
	clv_tensor_free(wrong);
	clv_runtime_free(r);
}

static void a_name_that_several_plans_read_is_left_to_the_caller_once(void **state)
{
	(void)state;
	artifact *a = without_weights(add_and_rebind);
	OK(artifact_add_plan(a,
	                     load_ok(HEAD "input %0 f32[1] name=\"x\"\n"
	                                  "buffer @h f32[2]\n"
	                                  "%1 = aten::add.Tensor(@h, %0, 1) -> f32[2]\n"
	                                  "output %1\n"),
	                     "sig-1"));
	clv_runtime *r = runtime_of(a);
	clv_tensor *h = VECTOR(1, 1);
	assert_string_equal(clv_runtime_unbound(r, 0), "h");
	assert_null(clv_runtime_unbound(r, 1));
	OK(clv_runtime_bind(r, "h", h));
	GIVES(r, VECTOR(1, 2), 2, 3);
	GIVES(r, VECTOR(10), 12, 13); /* what one plan re-bound, the other reads */
	clv_tensor_free(h);
	clv_runtime_free(r);
}

static void a_tied_parameter_is_bound_by_each_of_its_names(void **state)
{
	(void)state;
	const char *text = HEAD "input %0 f32[2] name=\"x\"\n"
							"param @a f32[2] tied=@b\n"
							"%1 = aten::add.Tensor(@a, %0, 1) -> f32[2]\n"
							"output %1\n";
	clv_runtime *r = runtime_of(without_weights(text));
	clv_tensor *b = VECTOR(1, 1);
	OK(clv_runtime_bind(r, "b", b));
	GIVES(r, VECTOR(1, 2), 2, 3);
	clv_tensor_free(b);
	clv_runtime_free(r);
}

/* ---- sizes -------------------------------------------------------------------------------------------------------- */

/* y = x + 1 at sizes 2 to 8, recorded at 2 and 4; y = x - 1 at size 1. */
static artifact *of_two_sizes(int64_t lo)
{
	char text[256];
	snprintf(text, sizeof text,
	         HEAD "symbol B %lld..8\ninput %%0 f32[B] name=\"x\"\n"
	              "%%1 = aten::add.Tensor(%%0, num(1), 1) -> f32[B]\noutput %%1\n",
	         (long long)lo);
	artifact *a = new_artifact(text);
	for (int64_t i = 2; i <= 4; i *= 2)
		OK(vec_push(&a->plans.at[0].points, i));
	OK(artifact_add_plan(a,
	                     load_ok(HEAD "input %0 f32[1] name=\"x\"\n"
	                                  "%1 = aten::sub.Tensor(%0, num(1), 1) -> f32[1]\noutput %1\n"),
	                     "sig-1"));
	return a;
}

static void the_sizes_of_a_call_choose_the_plan(void **state)
{
	(void)state;
	clv_runtime *r = runtime_of(of_two_sizes(2));
	for (int i = 0; i < 2; i++) {
		GIVES(r, VECTOR(5), 4);
		GIVES(r, VECTOR(5, 6), 6, 7);
		GIVES(r, VECTOR(1, 2, 3, 4), 2, 3, 4, 5);
	}
	run_fails(r, VECTOR(1, 2, 3), CLV_E_INPUT, "never recorded at B=3");
	run_fails(r, VECTOR(1, 2, 3, 4, 5, 6, 7, 8, 9), CLV_E_INPUT, "B is 9");
	clv_runtime_free(r);
}

/* A buffer is written before the question, and the answer chooses what is given. */
#define ASKS(answer, op)                                                                                               \
	HEAD "input %0 f32[2] name=\"x\"\n"                                                                                \
		 "buffer @h f32[2]\n"                                                                                          \
		 "%1 = aten::add_.Tensor(@h, %0, 1) -> f32[2] view-of @h writes @h\n"                                          \
		 "%2 = aten::sum(%0, none) -> f32[]\n"                                                                         \
		 "%3 = aten::gt.Scalar(%2, 0) -> bool[]\n"                                                                     \
		 "%4 = aten::is_nonzero(%3) -> bool = " answer " {host} at \"net.py:7\"\n"                                     \
		 "%5 = aten::" op "(%1) -> f32[2]\n"                                                                           \
		 "output %5\n"

static void a_run_that_a_guard_ends_has_not_happened(void **state)
{
	(void)state;
	clv_runtime *r = runtime_of(with_pair(ASKS("true", "neg"), "h"));
	GIVES(r, VECTOR(1, 2), -11, -22);
	for (int i = 0; i < 2; i++) {
		run_fails(r, VECTOR(-1, -2), CLV_E_GUARD, "now it is false");
		const clv_error_details *d = clv_last_error_details();
		assert_string_equal(d->op, "aten::is_nonzero");
		assert_string_equal(d->source, "net.py:7");
		assert_string_equal(d->expected, "true");
		assert_string_equal(d->seen, "false");
		assert_true(d->undone);
	}
	GIVES(r, VECTOR(1, 2), -12, -24);
	clv_runtime_free(r);
}

static void data_chooses_between_plans_of_one_size(void **state)
{
	(void)state;
	artifact *a = with_pair(ASKS("true", "neg"), "h");
	OK(artifact_add_plan(a, load_ok(ASKS("false", "relu")), "sig-1"));
	clv_runtime *r = runtime_of(a);
	GIVES(r, VECTOR(1, 2), -11, -22);
	GIVES(r, VECTOR(-1, -2), 10, 20);
	GIVES(r, VECTOR(-1, -2), 9, 18);
	GIVES(r, VECTOR(1, 2), -10, -20);
	clv_runtime_free(r);
}

static void inputs_that_do_not_fit_are_told_as_fields(void **state)
{
	(void)state;
	clv_runtime *r = runtime_of(with_pair(add_in_place, "h"));
	run_fails(r, VECTOR(1, 2, 3), CLV_E_INPUT, "dimension 0 is 3");
	const clv_error_details *d = clv_last_error_details();
	assert_string_equal(d->input, "x");
	assert_int_equal(d->dimension, 0);
	assert_string_equal(d->expected, "2");
	assert_string_equal(d->seen, "3");
	assert_string_equal(d->node, "");
	clv_runtime_free(r);
}

static void sizes_that_are_not_proven_may_be_allowed(void **state)
{
	(void)state;
	clv_runtime_options o = defaults;
	o.unproven = true;
	clv_runtime *r = runtime_with(of_two_sizes(2), o);
	GIVES(r, VECTOR(1, 2, 3), 2, 3, 4);
	run_fails(r, VECTOR(1, 2, 3, 4, 5, 6, 7, 8, 9), CLV_E_INPUT, "B is 9");
	clv_runtime_free(r);
}

static void a_proven_plan_goes_before_one_whose_formulas_reach_the_size(void **state)
{
	(void)state;
	clv_runtime_options o = defaults;
	o.unproven = true;
	clv_runtime *r = runtime_with(of_two_sizes(1), o);
	for (int i = 0; i < 2; i++) {
		GIVES(r, VECTOR(5), 4);
		GIVES(r, VECTOR(1, 2, 3), 2, 3, 4);
	}
	clv_runtime_free(r);
}

static void plans_that_take_other_numbers_of_inputs_are_passed_over(void **state)
{
	(void)state;
	artifact *a = new_artifact(HEAD "input %0 f32[1] name=\"x\"\noutput %0\n");
	OK(artifact_add_plan(a, load_ok(HEAD "input %0 f32[2]\ninput %1 f32[2]\ninput %2 f32[2]\noutput %0\n"), "sig-1"));
	clv_runtime *r = runtime_of(a);
	clv_tensor *x[1] = {VECTOR(1, 2)}, *y = NULL;
	FAILS(clv_runtime_run(r, (const clv_tensor *const *)x, 1, &y, 1), CLV_E_INPUT, "dimension 0 is 2");
	clv_tensor_free(x[0]);
	clv_runtime_free(r);
}

static void wrong_inputs_are_told_before_sizes(void **state)
{
	(void)state;
	clv_runtime *r = runtime_of(sample());
	clv_tensor *y = NULL, *x;
	OK(clv_tensor_from_data((int64_t[12]){0}, "i64", 2, (int64_t[]){3, 4}, &x));
	run_fails(r, x, CLV_E_INPUT, "dtype is i64");
	FAILS(clv_runtime_run(r, INPUTS(NULL), &y, 1), CLV_E_INPUT, "");
	x = rows(1);
	FAILS(clv_runtime_run(r, INPUTS(x, x), &y, 1), CLV_E_INPUT, "takes 1 inputs");
	FAILS(clv_runtime_run(r, INPUTS(x), &y, 2), CLV_E_INPUT, "gives 1 outputs");
	FAILS(clv_runtime_run(r, NULL, 1, &y, 1), CLV_E_INVALID, "NULL");
	FAILS(clv_runtime_run(NULL, INPUTS(x), &y, 1), CLV_E_INVALID, "NULL");
	assert_null(y);
	clv_tensor_free(x);
	clv_runtime_free(r);
}

static void ports_say_what_goes_in_and_out(void **state)
{
	(void)state;
	clv_runtime *r = runtime_of(sample());
	clv_port p = {.size = sizeof p};
	assert_int_equal(clv_runtime_input_count(r), 1);
	assert_int_equal(clv_runtime_output_count(r), 1);
	OK(clv_runtime_input(r, 0, &p));
	assert_string_equal(p.name, "x");
	assert_string_equal(p.dtype, "f32");
	assert_string_equal(p.device, "cpu");
	assert_int_equal(p.ndim, 2);
	assert_string_equal(p.dims[0], "B");
	assert_string_equal(p.dims[1], "4");
	OK(clv_runtime_output(r, 0, &p));
	assert_string_equal(p.name, "output");
	FAILS(clv_runtime_input(r, 1, &p), CLV_E_INVALID, "no input 1");
	FAILS(clv_runtime_output(NULL, 0, &p), CLV_E_INVALID, "no output 0");
	p.size = 4;
	FAILS(clv_runtime_output(r, 0, &p), CLV_E_INVALID, "clv_port.size");
	clv_runtime_free(r);
}

static void a_model_without_inputs_or_outputs_runs(void **state)
{
	(void)state;
	clv_runtime *r = runtime_of(new_artifact(HEAD "%0 = aten::ones([2], dtype:f32, none, none, none) -> f32[2]\n"
	                                              "output {\"a\": [%0], \"b\": 3}\n"));
	clv_tensor *y = NULL;
	clv_port p = {.size = sizeof p};
	OK(clv_runtime_run(r, NULL, 0, &y, 1));
	HOLDS(y, 1, 1);
	clv_tensor_free(y);
	OK(clv_runtime_output(r, 0, &p));
	assert_string_equal(p.name, "a[0]");
	clv_runtime_free(r);

	r = runtime_of(new_artifact(HEAD "input %0 f32[2] name=\"x\"\n%1 = aten::neg(%0) -> f32[2]\noutput none\n"));
	clv_tensor *x = VECTOR(1, 2);
	assert_int_equal(clv_runtime_output_count(r), 0);
	OK(clv_runtime_run(r, INPUTS(x), NULL, 0));
	clv_tensor_free(x);
	clv_runtime_free(r);

	r = runtime_of(new_artifact(HEAD "input %0 f32[2] name=\"x\"\noutput %0\n"));
	GIVES(r, VECTOR(1, 2), 1, 2);
	clv_runtime_free(r);
}

/* ---- halves ------------------------------------------------------------------------------------------------------- */

typedef struct halves {
	clv_runtime *prefix, *suffix;
} halves;

static artifact *cut_sample(node_id cut)
{
	artifact *a = sample_of_two_plans();
	a->plans.at[0].cut = cut;
	a->plans.at[1].cut = cut;
	OK(artifact_text(a, cut == 2 ? "two" : "three", &a->split_id));
	return a;
}

static halves halves_of(node_id cut, bool unproven)
{
	clv_runtime_options o = defaults;
	halves h;
	o.unproven = unproven;
	o.part = "prefix";
	h.prefix = runtime_with(cut_sample(cut), o);
	o.part = "suffix";
	h.suffix = runtime_with(cut_sample(cut), o);
	return h;
}

static void halves_free(halves *h)
{
	clv_runtime_free(h->prefix);
	clv_runtime_free(h->suffix);
}

static clv_boundary *boundary_of(const halves *h, int64_t batch)
{
	clv_boundary *b = NULL;
	clv_tensor *x = rows(batch);
	if (clv_runtime_run_prefix(h->prefix, INPUTS(x), &b) != CLV_OK)
		fail_msg("%s", status_message());
	clv_tensor_free(x);
	return b;
}

/* Through bytes, and freed. */
static clv_boundary *unpacked(clv_boundary *b)
{
	clv_boundary *back = NULL;
	void *bytes;
	size_t n;
	OK(clv_boundary_pack(b, NULL, &bytes, &n));
	clv_boundary_free(b);
	OK(clv_boundary_unpack(bytes, n, &back));
	clv_free(bytes);
	return back;
}

static void a_boundary_goes_through_bytes_to_what_the_whole_gives(void **state)
{
	(void)state;
	clv_runtime *whole = runtime_of(cut_sample(2));
	halves h = halves_of(2, false);
	for (int64_t batch = 1; batch <= 4; batch *= 2) {
		clv_tensor *y = result_of(whole, rows(batch)), *z = NULL;
		clv_boundary *b = unpacked(boundary_of(&h, batch));
		assert_int_equal(clv_boundary_count(b), 1);
		assert_non_null(clv_boundary_tensor(b, 0));
		assert_null(clv_boundary_tensor(b, 1));
		assert_null(clv_boundary_label(b, 1));
		for (int again = 0; again < 2; again++) {
			OK(clv_runtime_run_suffix(h.suffix, b, &z, 1));
			same_bits_in(y, z);
			clv_tensor_free(z);
		}
		clv_tensor_free(y);
		clv_boundary_free(b);
	}
	halves_free(&h);
	clv_runtime_free(whole);
}

static void a_boundary_goes_through_a_file(void **state)
{
	(void)state;
	char folder[] = "/tmp/cleave-runtime-XXXXXX", path[64], nowhere[80];
	halves h = halves_of(2, false);
	clv_boundary *b = boundary_of(&h, 2), *back = NULL;
	snprintf(path, sizeof path, "%s/b", new_folder(folder));
	snprintf(nowhere, sizeof nowhere, "%s/no/b", folder);
	clv_pack_options o = CLV_PACK_OPTIONS_INIT;
	o.compress = "fp16";
	OK(clv_boundary_save(b, &o, path));
	OK(clv_boundary_load(path, &back));
	assert_string_equal(clv_boundary_label(back, 0), clv_boundary_label(b, 0));
	assert_int_equal(clv_tensor_dim(clv_boundary_tensor(back, 0), 0), 2);
	o.compress = "zip";
	FAILS(clv_boundary_save(b, &o, path), CLV_E_INVALID, "zip");
	FAILS(clv_boundary_save(b, NULL, nowhere), CLV_E_IO, nowhere);
	clv_boundary_free(back);
	back = NULL;
	FAILS(clv_boundary_load(nowhere, &back), CLV_E_IO, nowhere);
	FAILS(clv_boundary_unpack("nonsense, and more", 18, &back), CLV_E_PARSE, "");
	assert_null(back);
	assert_int_equal(count_files(folder, true), 1);
	clv_boundary_free(b);
	halves_free(&h);
}

static void a_boundary_of_another_split_is_refused(void **state)
{
	(void)state;
	halves two = halves_of(2, false), three = halves_of(3, false);
	clv_boundary *b = boundary_of(&two, 2);
	clv_tensor *y = NULL;
	FAILS(clv_runtime_run_suffix(three.suffix, b, &y, 1), CLV_E_INPUT, "belongs to split two");
	FAILS(clv_runtime_run_suffix(two.prefix, b, &y, 1), CLV_E_INVALID, "no suffix");
	FAILS(clv_runtime_run_suffix(two.suffix, b, &y, 2), CLV_E_INPUT, "gives 1 outputs");
	FAILS(clv_runtime_run_suffix(two.suffix, NULL, &y, 1), CLV_E_INVALID, "NULL");
	FAILS(clv_runtime_run(two.suffix, NULL, 0, &y, 1), CLV_E_INVALID, "this is a suffix");
	assert_null(y);
	clv_boundary_free(b);
	b = NULL;
	clv_tensor *x = rows(2);
	FAILS(clv_runtime_run_prefix(two.suffix, INPUTS(x), &b), CLV_E_INVALID, "no prefix");
	assert_null(b);
	clv_tensor_free(x);
	halves_free(&two);
	halves_free(&three);
}

static clv_boundary *rewritten(const clv_boundary *b, const char *compress, bool no_checksum, int flip)
{
	clv_pack_options o = CLV_PACK_OPTIONS_INIT;
	clv_boundary *back = NULL;
	void *bytes;
	size_t n;
	o.compress = compress;
	o.no_checksum = no_checksum;
	OK(clv_boundary_pack(b, &o, &bytes, &n));
	((uint8_t *)bytes)[n - 3] ^= (uint8_t)flip;
	if (flip && !no_checksum)
		FAILS(clv_boundary_unpack(bytes, n, &back), CLV_E_PARSE, "changed or damaged");
	else
		OK(clv_boundary_unpack(bytes, n, &back));
	clv_free(bytes);
	return back;
}

static void a_boundary_says_what_compression_cost(void **state)
{
	(void)state;
	halves h = halves_of(2, false);
	clv_boundary *b = boundary_of(&h, 2), *back;
	clv_loss loss = {.size = sizeof loss};
	OK(clv_boundary_loss(b, 0, &loss));
	assert_true(!loss.method && loss.bytes == -1 && loss.relative == 0);
	FAILS(clv_boundary_loss(b, 1, &loss), CLV_E_INVALID, "no tensor 1");
	back = rewritten(b, NULL, false, 0);
	OK(clv_boundary_loss(back, 0, &loss));
	assert_true(!loss.method && loss.bytes == clv_tensor_bytes(clv_boundary_tensor(b, 0)) && loss.max_abs == 0);
	clv_boundary_free(back);
	back = rewritten(b, "bf16", false, 0);
	OK(clv_boundary_loss(back, 0, &loss));
	assert_string_equal(loss.method, "bf16");
	assert_true(loss.bytes * 2 == clv_tensor_bytes(clv_boundary_tensor(b, 0)));
	assert_true(loss.relative <= 0x1p-8 && loss.l2 <= 0x1p-8);
	clv_boundary_free(back);
	assert_null(rewritten(b, NULL, false, 1));
	clv_boundary_free(rewritten(b, NULL, true, 1));
	void *bytes;
	size_t n;
	clv_pack_options o = CLV_PACK_OPTIONS_INIT;
	o.compress = "zip";
	FAILS(clv_boundary_pack(b, &o, &bytes, &n), CLV_E_INVALID, "fp16, bf16, int8, zstd");
	FAILS(clv_boundary_pack(b, NULL, NULL, NULL), CLV_E_INVALID, "NULL");
	clv_boundary_free(b);
	halves_free(&h);
}

static void a_suffix_refuses_sizes_that_are_not_proven_too(void **state)
{
	(void)state;
	halves strict = halves_of(2, false), open = halves_of(2, true);
	clv_boundary *b = unpacked(boundary_of(&open, 3));
	clv_tensor *y = NULL;
	FAILS(clv_runtime_run_suffix(strict.suffix, b, &y, 1), CLV_E_INPUT, "never recorded at B=3");
	assert_null(y);
	OK(clv_runtime_run_suffix(open.suffix, b, &y, 1));
	clv_tensor_free(y);
	clv_boundary_free(b);
	halves_free(&strict);
	halves_free(&open);
}

static void a_boundary_of_other_weights_is_refused(void **state)
{
	(void)state;
	halves h = halves_of(2, false);
	clv_runtime_options o = defaults;
	artifact *a = cut_sample(2);
	OK(artifact_add_weight(a, "b.scale", 0x27));
	o.part = "suffix";
	clv_runtime *other = runtime_with(a, o);
	clv_boundary *b = unpacked(boundary_of(&h, 2));
	clv_tensor *y = NULL;
	FAILS(clv_runtime_run_suffix(other, b, &y, 1), CLV_E_INPUT, "with weights 3, this file has 2a");
	assert_null(y);
	o.any_weights = true;
	a = cut_sample(2);
	OK(artifact_add_weight(a, "b.scale", 0x27));
	clv_runtime *any = runtime_with(a, o);
	OK(clv_runtime_run_suffix(any, b, &y, 1));
	clv_tensor_free(y);
	clv_boundary_free(b);
	clv_runtime_free(other);
	clv_runtime_free(any);
	halves_free(&h);
}

static void takes(const halves *h, bool wanted)
{
	clv_boundary *b = unpacked(boundary_of(h, 2));
	clv_tensor *y = NULL;
	clv_status st = clv_runtime_run_suffix(h->suffix, b, &y, 1);
	check_error(st, wanted ? CLV_OK : CLV_E_INPUT, wanted ? "" : "whole state_dict on both sides");
	clv_tensor_free(y);
	clv_boundary_free(b);
}

/* With digests of the weights in the file, and without, as files of before have it. */
static void halves_that_are_bound_otherwise_refuse_each_other(void **state)
{
	(void)state;
	for (int digests = 0; digests < 2; digests++) {
		halves h;
		clv_runtime_options o = defaults;
		float scales[] = {2, 3, 2}, biases[] = {1, 2, 3, 4};
		clv_tensor *scale[3], *bias = floats(biases, 1, (const int64_t[]){4});
		for (int i = 0; i < 3; i++)
			scale[i] = floats(&scales[i], 0, NULL);
		for (int i = 0; i < 2; i++) {
			artifact *a = cut_sample(2);
			if (!digests)
				a->weight_digests.n = 0;
			o.part = i ? "suffix" : "prefix";
			*(i ? &h.suffix : &h.prefix) = runtime_with(a, o);
		}
		OK(clv_runtime_bind(h.suffix, "b.scale", scale[0]));
		takes(&h, false);
		OK(clv_runtime_bind(h.prefix, "b.scale", scale[1])); /* which it does not read */
		takes(&h, false);
		OK(clv_runtime_bind(h.prefix, "b.scale", scale[2]));
		takes(&h, true);
		OK(clv_runtime_bind(h.prefix, "a.bias", bias));
		takes(&h, false);
		OK(clv_runtime_bind(h.suffix, "a.bias", bias));
		takes(&h, true);
		FAILS(clv_runtime_bind(h.prefix, "b.scales", scale[0]), CLV_E_NOT_FOUND, "nothing called b.scales");
		takes(&h, true);
		for (int i = 0; i < 3; i++)
			clv_tensor_free(scale[i]);
		clv_tensor_free(bias);
		halves_free(&h);
	}
}

static void halves_that_change_one_tensor_are_refused(void **state)
{
	(void)state;
	clv_runtime_options o = defaults;
	o.part = "prefix";
	artifact *a = with_pair(HEAD "input %0 f32[2] name=\"x\"\n"
	                             "buffer @h f32[2]\n"
	                             "%1 = aten::add.Tensor(@h, %0, 1) -> f32[2]\n"
	                             "%2 = aten::neg(%1) -> f32[2]\n"
	                             "rebind @h = %2\n"
	                             "output %2\n",
	                        "h");
	a->plans.at[0].cut = 1;
	refused(a, o, CLV_E_UNSUPPORTED, "both halves have h");
	a = with_pair(HEAD "input %0 f32[2] name=\"x\"\n"
	                   "buffer @h f32[2]\n"
	                   "%1 = aten::add.Tensor(@h, %0, 1) -> f32[2]\n"
	                   "%2 = aten::add_.Tensor(@h, %1, 1) -> f32[2] view-of @h writes @h\n"
	                   "output %1\n",
	              "h");
	a->plans.at[0].cut = 1;
	refused(a, o, CLV_E_UNSUPPORTED, "both halves have h");
}

static void parts_that_are_not_there_are_refused(void **state)
{
	(void)state;
	clv_runtime_options o = defaults;
	o.part = "prefix";
	refused(sample(), o, CLV_E_INVALID, "not cut");
	artifact *a = cut_sample(2);
	a->plans.at[1].cut = NONE;
	refused(a, o, CLV_E_INVALID, "not cut");
	o.part = "middle";
	refused(cut_sample(2), o, CLV_E_INVALID, "no part \"middle\"");
}

static void a_stage_takes_and_gives_what_crosses_its_ends(void **state)
{
	(void)state;
	artifact *a = sample();
	OK(artifact_text(a, "stage:1", &a->part));
	a->plans.at[0].first = 1;
	a->plans.at[0].end = 2;
	clv_runtime *r = runtime_of(a);
	clv_port p = {.size = sizeof p};
	OK(clv_runtime_input(r, 0, &p));
	assert_string_equal(p.name, "%1");
	OK(clv_runtime_output(r, 0, &p));
	assert_string_equal(p.name, "%2");
	GIVES(r, floats((float[]){-1, 2, -3, 4}, 2, (int64_t[]){1, 4}), 0, 2, 0, 4);
	clv_runtime_free(r);
}

static void try_file(image file, const char *part, const char *device)
{
	clv_runtime_options o = defaults;
	artifact *a = NULL;
	clv_runtime *r = NULL;
	o.part = part;
	o.device = device;
	if (clv_artifact_parse(file.at, file.n, NULL, &a) == CLV_OK)
		clv_runtime_create(a, &o, &r);
	clv_runtime_free(r);
	clv_artifact_free(a);
}

static void files_of_any_kind_end_in_a_runtime_or_an_error(void **state)
{
	(void)state;
	static const char *const parts[] = {NULL, "prefix", "suffix"}, *const devices[] = {NULL, "cpu", "meta"};
	DIR *d = opendir("fuzz/corpus/artifact");
	unsigned n = 0;
	assert_non_null(d);
	for (struct dirent *e = readdir(d); e; e = readdir(d)) {
		char path[512];
		if (e->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "fuzz/corpus/artifact/%s", e->d_name);
		image file = read_image(path);
		for (size_t i = 0; i < COUNT(parts) * COUNT(devices); i++)
			try_file(file, parts[i % COUNT(parts)], devices[i / COUNT(parts)]);
		image_free(&file);
		n++;
	}
	closedir(d);
	assert_true(n > 10);
}

static void a_cut_at_an_end_is_no_cut(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		strbuf b = STRBUF_INIT;
		artifact *a = sample();
		a->plans.at[0].cut = i ? a->plans.at[0].p->nodes.n : 0;
		FAILS(artifact_append(a, &b), CLV_E_PARSE, "cut at");
		strbuf_free(&b);
		artifact_free(a);
	}
}

static void stored_tensors_are_a_list_behind_the_output(void **state)
{
	(void)state;
	const char *pair = HEAD "input %0 f32[2] name=\"x\"\n%1 = aten::neg(%0) -> f32[2]\noutput (%1, [%0])\n";
	strbuf b = STRBUF_INIT;
	artifact *a = new_artifact(HEAD "input %0 f32[2] name=\"x\"\noutput %0\n");
	a->plans.at[0].nstores = 1;
	FAILS(artifact_append(a, &b), CLV_E_PARSE, "no list of 1 stored");
	artifact_free(a);
	a = new_artifact(pair);
	a->plans.at[0].nstores = 2;
	FAILS(artifact_append(a, &b), CLV_E_PARSE, "no list of 2 stored");
	strbuf_free(&b);
	a->plans.at[0].nstores = 1;
	clv_runtime *r = runtime_of(a);
	assert_int_equal(clv_runtime_output_count(r), 1);
	GIVES(r, VECTOR(1, 2), -1, -2);
	clv_runtime_free(r);
}

/* ---- devices ------------------------------------------------------------------------------------------------------ */

static const char on_cuda[] =
	HEAD "input %0 f32[1,2] name=\"x\" device=cuda:0\n"
		 "buffer @h f32[2] device=cuda:0\n"
		 "%1 = aten::ones([1, 2], dtype:f32, none, device:cuda, none) -> f32[1,2] device=cuda:0\n"
		 "%2 = aten::add.Tensor(%0, %1, 1) -> f32[1,2] device=cuda:0\n"
		 "%3 = aten::add.Tensor(%2, @h, 1) -> f32[1,2] device=cuda:0\n"
		 "%4 = aten::matmul(%3, @h) -> bf16[1] device=cuda:0 {autocast=cuda:bf16}\n"
		 "output (%3, %4)\n";

static void a_plan_of_another_device_runs_on_the_cpu(void **state)
{
	(void)state;
	clv_runtime_options o = defaults;
	for (int i = 0; i < 2; i++) {
		o.device = i ? "cpu:0" : "cpu";
		clv_runtime *r = runtime_with(with_pair(on_cuda, "h"), o);
		clv_port p = {.size = sizeof p};
		clv_tensor *x = floats((float[]){1, 2}, 2, (int64_t[]){1, 2}), *y[2];
		OK(clv_runtime_input(r, 0, &p));
		assert_string_equal(p.device, "cpu");
		OK(clv_runtime_run(r, INPUTS(x), y, 2));
		HOLDS(y[0], 12, 23);
		assert_string_equal(clv_tensor_dtype(y[1]), "bf16"); /* autocast came along */
		clv_tensor_free(x);
		clv_tensor_free(y[0]);
		clv_tensor_free(y[1]);
		clv_runtime_free(r);
	}
}

static void a_model_moves_to_another_device(void **state)
{
	(void)state;
	clv_runtime_options o = defaults;
	o.device = "meta";
	clv_runtime *r = runtime_with(with_pair(read_pair, "h"), o);
	clv_tensor *x = VECTOR(1, 2), *moved, *y[2] = {0};
	FAILS(clv_runtime_run(r, INPUTS(x), y, 2), CLV_E_INPUT, "is on cpu");
	OK(clv_tensor_to_device(x, "meta", &moved));
	OK(clv_runtime_run(r, INPUTS(moved), y, 2));
	assert_string_equal(clv_tensor_device(y[0]), "meta");
	assert_string_equal(clv_tensor_device(y[1]), "meta");
	OK(clv_runtime_bind(r, "h", x)); /* it moves too */
	clv_tensor_free(y[0]);
	clv_tensor_free(y[1]);
	OK(clv_runtime_run(r, INPUTS(moved), y, 2));
	for (clv_tensor **t = (clv_tensor *[]){x, moved, y[0], y[1], NULL}; *t; t++)
		clv_tensor_free(*t);
	clv_runtime_free(r);
}

static void without_a_device_tensors_go_where_they_were_captured(void **state)
{
	(void)state;
	clv_runtime *r = runtime_of(with_pair(HEAD "buffer @h f32[2] device=meta\n"
	                                           "%0 = aten::neg(@h) -> f32[2] device=meta\n"
	                                           "output %0\n",
	                                      "h"));
	clv_tensor *y = NULL;
	OK(clv_runtime_run(r, NULL, 0, &y, 1));
	assert_string_equal(clv_tensor_device(y), "meta");
	clv_tensor_free(y);
	clv_runtime_free(r);
}

static void what_is_no_device_is_refused(void **state)
{
	(void)state;
	static const char *const nonsense[] = {"", "nonsense", "cpu:", "cuda:x", "cuda:0:0", "../cpu", "cuda:99999999999"};
	clv_runtime_options o = defaults;
	clv_tensor *x = VECTOR(1), *y = NULL;
	for (size_t i = 0; i < COUNT(nonsense); i++) {
		o.device = nonsense[i];
		refused(with_pair(read_pair, "h"), o, CLV_E_INVALID, "is no device");
		FAILS(clv_tensor_to_device(x, nonsense[i], &y), CLV_E_INVALID, "is no device");
	}
	o.device = "xpu:7";
	refused(with_pair(read_pair, "h"), o, CLV_E_INVALID, "there is no device xpu:7");
	clv_tensor_free(x);
	o.device = "cpu";
	refused(new_artifact(HEAD "input %0 f32[1] device=cuda:0\ninput %1 f32[1] device=cuda:1\noutput %0\n"), o,
	        CLV_E_UNSUPPORTED, "spread over cuda:0 and cuda:1");
	refused(new_artifact(HEAD "input %0 f32[1] device=cuda:0\n"
	                          "%1 = aten::neg(%0) -> f32[1] device=cuda:0 {autocast=cpu:bf16+cuda:f16}\noutput %1\n"),
	        o, CLV_E_UNSUPPORTED, "autocast for two devices");
}

/* ---- the rest ----------------------------------------------------------------------------------------------------- */

static void debug_mode_names_the_first_result_that_is_not_as_planned(void **state)
{
	(void)state;
	clv_runtime_options o = defaults;
	o.debug = true;
	clv_runtime *r = runtime_with(new_artifact(HEAD "input %0 f32[2] name=\"x\"\n"
	                                                "%1 = aten::neg(%0) -> f32[2]\n"
	                                                "%2 = aten::sum(%1) -> f32[2]\n"
	                                                "output %2\n"),
	                              o);
	run_fails(r, VECTOR(1, 2), CLV_E_GUARD, "node sum");
	clv_runtime_free(r);
}

enum { THREADS = 8, RUNS = 40 };

typedef struct errand {
	const clv_runtime *r;
	const clv_tensor *want; /* NULL: any */
	int64_t batch;
	bool good;
} errand;

static void *work(void *at)
{
	errand *j = at;
	j->good = true;
	for (int i = 0; i < RUNS && j->good; i++) {
		clv_tensor *y = NULL, *x = j->want ? rows(j->batch) : VECTOR(1, 2);
		j->good = run_one(j->r, x, &y) == CLV_OK;
		if (j->good && j->want)
			j->good = br_bits_equal(torch_of(y), torch_of(j->want), &j->good) == CLV_OK && j->good;
		clv_tensor_free(y);
	}
	return NULL;
}

static void run_jobs(errand *jobs)
{
	pthread_t threads[THREADS];
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, work, &jobs[i]), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < THREADS; i++)
		assert_true(jobs[i].good);
}

static void threads_run_one_runtime_at_once(void **state)
{
	(void)state;
	clv_runtime *r = runtime_of(sample_of_two_plans());
	clv_tensor *want[3];
	errand jobs[THREADS];
	for (int i = 0; i < 3; i++)
		want[i] = result_of(r, rows(1 << i));
	for (int i = 0; i < THREADS; i++)
		jobs[i] = (errand){r, want[1 + i % 2], 1 << (1 + i % 2), false};
	run_jobs(jobs);
	for (int i = 0; i < 3; i++)
		clv_tensor_free(want[i]);
	clv_runtime_free(r);
}

static void *count_threads(void *at)
{
	*(int *)at = br_threads();
	return NULL;
}

static void a_number_of_threads_is_of_one_thread(void **state)
{
	(void)state;
	br_team had;
	pthread_t other;
	int before = br_threads(), there = 0;
	br_team_enter(before + 3, &had);
	assert_int_equal(br_threads(), before + 3);
	assert_int_equal(pthread_create(&other, NULL, count_threads, &there), 0);
	pthread_join(other, NULL);
	br_team_leave(&had);
	assert_int_equal(br_threads(), before);
	assert_int_equal(there, before);
}

static void a_runtime_has_its_own_number_of_threads(void **state)
{
	(void)state;
	clv_runtime_options o = defaults;
	int before = br_threads();
	o.threads = before + 1;
	clv_runtime *r = runtime_with(of_two_sizes(2), o);
	GIVES(r, VECTOR(1, 2), 2, 3);
	assert_int_equal(br_threads(), before);
	run_fails(r, VECTOR(1, 2, 3), CLV_E_INPUT, "never recorded");
	assert_int_equal(br_threads(), before);
	clv_runtime_free(r);
	for (int i = 0; i < 2; i++) {
		o.threads = i ? 1025 : -1;
		refused(of_two_sizes(2), o, CLV_E_INVALID, "threads is a number from 1 to 1024");
	}
}

static void a_model_with_state_is_run_by_one_at_a_time(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		clv_runtime *r = runtime_of(with_pair(i ? add_in_place : add_and_rebind, "h"));
		errand jobs[THREADS];
		for (int k = 0; k < THREADS; k++)
			jobs[k] = (errand){.r = r};
		run_jobs(jobs);
		GIVES(r, VECTOR(0, 0), 10 + THREADS * RUNS, 20 + 2 * THREADS * RUNS);
		clv_runtime_free(r);
	}
}

static clv_status whole_life(const void *ctx)
{
	clv_runtime_options o = defaults;
	clv_runtime *prefix = NULL, *suffix = NULL;
	clv_boundary *b = NULL, *back = NULL;
	clv_tensor *y = NULL;
	const clv_tensor *x = ((const clv_tensor *const *)ctx)[1];
	const artifact *a = ((const artifact *const *)ctx)[0];
	void *bytes = NULL;
	size_t n;
	o.part = "prefix";
	o.device = "cpu";
	clv_status st = clv_runtime_create(a, &o, &prefix);
	o.part = "suffix";
	if (st == CLV_OK)
		st = clv_runtime_create(a, &o, &suffix);
	if (st == CLV_OK)
		st = clv_runtime_run_prefix(prefix, INPUTS(x), &b);
	if (st == CLV_OK)
		st = clv_boundary_pack(b, NULL, &bytes, &n);
	if (st == CLV_OK)
		st = clv_boundary_unpack(bytes, n, &back);
	if (st == CLV_OK)
		st = clv_runtime_run_suffix(suffix, back, &y, 1);
	clv_tensor_free(y);
	clv_free(bytes);
	clv_boundary_free(back);
	clv_boundary_free(b);
	clv_runtime_free(prefix);
	clv_runtime_free(suffix);
	return st;
}

static void the_tape_is_the_engine(void **state)
{
	clv_runtime_options o = defaults;
	(void)state;
	clv_runtime *r = runtime_with(cut_sample(2), o);
	assert_string_equal(clv_runtime_engine(r), "tape");
	clv_runtime_free(r);
	o.engine = "abacus";
	refused(cut_sample(2), o, CLV_E_NOT_FOUND, "there is no engine \"abacus\" here; there are auto, tape");
}

static void the_tape_runs_the_nodes_of_a_group(void **state)
{
	static const char text[] = HEAD "input %0 f32[2] name=\"x\"\nbuffer @pair f32[2]\ngroup\n"
									"%1 = aten::mul.Tensor(%0, @pair) -> f32[2]\n"
									"%2 = aten::sum.dim_IntList(%1, [-1], true) -> f32[1]\n"
									"%3 = aten::sub.Tensor(%1, %2, 1) -> f32[2]\nend\noutput %3\n";
	(void)state;
	clv_runtime *r = runtime_of(with_pair(text, "pair"));
	GIVES(r, floats((float[]){1, 2}, 1, (int64_t[]){2}), -40, -10);
	clv_runtime_free(r);
}

static void every_allocation_may_fail(void **state)
{
	(void)state;
	artifact *a = cut_sample(2);
	OK(vec_push(&a->plans.at[0].points, 8));
	a = on_disk(a);
	clv_tensor *x = rows(4);
	const void *ctx[] = {a, x};
	assert_true(sweep_each(whole_life, ctx, CLV_OK, true) >
	            100); /* without a pool, runs get their memory from elsewhere */
	clv_tensor_free(x);
	clv_artifact_free(a);
}

static void everything_takes_null(void **state)
{
	(void)state;
	clv_runtime *r = NULL;
	clv_boundary *b = NULL;
	FAILS(clv_runtime_create(NULL, NULL, &r), CLV_E_INVALID, "needs an artifact");
	FAILS(clv_runtime_bind(NULL, "h", NULL), CLV_E_INVALID, "NULL");
	FAILS(clv_boundary_unpack(NULL, 0, &b), CLV_E_INVALID, "NULL");
	FAILS(clv_boundary_load(NULL, &b), CLV_E_INVALID, "NULL");
	FAILS(clv_boundary_pack(NULL, NULL, NULL, NULL), CLV_E_INVALID, "NULL");
	assert_int_equal(clv_boundary_count(NULL), 0);
	assert_int_equal(clv_runtime_input_count(NULL), 0);
	assert_null(clv_runtime_unbound(NULL, 0));
	clv_runtime_free(NULL);
	clv_boundary_free(NULL);
	clv_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(memory_of_the_caller_is_used_where_it_lies),
		cmocka_unit_test(strides_of_the_caller_are_taken),
		cmocka_unit_test(memory_is_released_without_a_context_too),
		cmocka_unit_test(what_cannot_be_wrapped_is_not_released),
		cmocka_unit_test(functions_of_tensors_take_null),
		cmocka_unit_test(tensors_of_dlpack_go_in_and_out_without_a_copy),
		cmocka_unit_test(what_dlpack_cannot_give_stays_the_callers),
		cmocka_unit_test(a_tensor_that_is_conjugated_lazily_has_no_form_in_dlpack),
		cmocka_unit_test(weights_are_read_from_the_mapped_file),
		cmocka_unit_test(weights_that_were_aligned_otherwise_are_copied),
		cmocka_unit_test(tensors_without_elements_are_described_and_run),
		cmocka_unit_test(outputs_outlive_the_runtime_and_the_artifact),
		cmocka_unit_test(runtimes_of_one_artifact_do_not_see_each_other),
		cmocka_unit_test(a_buffer_that_is_bound_is_changed_by_later_runs),
		cmocka_unit_test(a_file_without_weights_names_what_has_to_be_bound),
		cmocka_unit_test(a_name_that_several_plans_read_is_left_to_the_caller_once),
		cmocka_unit_test(a_tied_parameter_is_bound_by_each_of_its_names),
		cmocka_unit_test(the_sizes_of_a_call_choose_the_plan),
		cmocka_unit_test(a_run_that_a_guard_ends_has_not_happened),
		cmocka_unit_test(data_chooses_between_plans_of_one_size),
		cmocka_unit_test(inputs_that_do_not_fit_are_told_as_fields),
		cmocka_unit_test(sizes_that_are_not_proven_may_be_allowed),
		cmocka_unit_test(a_proven_plan_goes_before_one_whose_formulas_reach_the_size),
		cmocka_unit_test(plans_that_take_other_numbers_of_inputs_are_passed_over),
		cmocka_unit_test(wrong_inputs_are_told_before_sizes),
		cmocka_unit_test(ports_say_what_goes_in_and_out),
		cmocka_unit_test(a_model_without_inputs_or_outputs_runs),
		cmocka_unit_test(a_boundary_goes_through_bytes_to_what_the_whole_gives),
		cmocka_unit_test(a_boundary_goes_through_a_file),
		cmocka_unit_test(a_boundary_of_another_split_is_refused),
		cmocka_unit_test(a_boundary_says_what_compression_cost),
		cmocka_unit_test(a_suffix_refuses_sizes_that_are_not_proven_too),
		cmocka_unit_test(a_boundary_of_other_weights_is_refused),
		cmocka_unit_test(halves_that_are_bound_otherwise_refuse_each_other),
		cmocka_unit_test(halves_that_change_one_tensor_are_refused),
		cmocka_unit_test(parts_that_are_not_there_are_refused),
		cmocka_unit_test(a_stage_takes_and_gives_what_crosses_its_ends),
		cmocka_unit_test(files_of_any_kind_end_in_a_runtime_or_an_error),
		cmocka_unit_test(a_cut_at_an_end_is_no_cut),
		cmocka_unit_test(stored_tensors_are_a_list_behind_the_output),
		cmocka_unit_test(a_plan_of_another_device_runs_on_the_cpu),
		cmocka_unit_test(a_model_moves_to_another_device),
		cmocka_unit_test(without_a_device_tensors_go_where_they_were_captured),
		cmocka_unit_test(what_is_no_device_is_refused),
		cmocka_unit_test(debug_mode_names_the_first_result_that_is_not_as_planned),
		cmocka_unit_test(threads_run_one_runtime_at_once),
		cmocka_unit_test(a_number_of_threads_is_of_one_thread),
		cmocka_unit_test(a_runtime_has_its_own_number_of_threads),
		cmocka_unit_test(a_model_with_state_is_run_by_one_at_a_time),
		cmocka_unit_test(the_tape_is_the_engine),
		cmocka_unit_test(the_tape_runs_the_nodes_of_a_group),
		cmocka_unit_test(every_allocation_may_fail),
		cmocka_unit_test(everything_takes_null),
	};
	return cmocka_run_group_tests_name("runtime", tests, NULL, NULL);
}
