/* src/file: payloads. Round trips of tensors with their memory, of every kind of value, of compression; refusals; and
 * every allocation failing once. */
#include "tensors.h"

#include <float.h>
#include <jansson.h>
#include <math.h>

/* ---- building --------------------------------------------------------------------------------------------------- */

static payload *new_payload(payload_kind kind)
{
	payload *p;
	OK(payload_new(kind, &p));
	return p;
}

/* Writes p into *file, and reads it again. Frees p; the caller frees both. */
static payload *read_back(payload *p, strbuf *file)
{
	st_image image;
	payload *q = NULL;
	payload_kind kind = p->kind;
	OK(payload_image(p, &image));
	OK(st_append(&image, file));
	st_image_free(&image);
	payload_free(p);
	clv_status st = payload_read(file->at, file->n, kind, &q);
	if (st != CLV_OK)
		fail_msg("%s", status_message());
	return q;
}

static void *filled(const payload *p, uint32_t memory)
{
	void *to = mem_alloc(p->memories.at[memory].nbytes);
	OK(payload_fill(p, memory, to));
	return to;
}

/* ---- tensors ---------------------------------------------------------------------------------------------------- */

static float numbers[24];

static void set_numbers(void)
{
	for (int i = 0; i < 24; i++)
		numbers[i] = (float)i;
}

static void a_dense_tensor_keeps_its_shape_in_the_file(void **state)
{
	(void)state;
	strbuf file = STRBUF_INIT;
	st_file *f;
	payload *p = new_payload(PAYLOAD_VALUES);
	OK(add(p, tensor_on("x", DT_F32, numbers, 0, 2, (const int64_t[]){4, 6}, (const int64_t[]){6, 1})));
	payload *q = read_back(p, &file);
	OK(st_parse(file.at, file.n, &f));
	assert_int_equal(st_at(f, st_find(f, "x"))->ndim, 2);
	float *data = filled(q, 0);
	assert_memory_equal(data, numbers, sizeof numbers);
	mem_free(data);
	st_free(f);
	payload_free(q);
	strbuf_free(&file);
}

static void strides_come_back_and_the_file_has_the_elements_alone(void **state)
{
	(void)state;
	strbuf file = STRBUF_INIT;
	payload *p = new_payload(PAYLOAD_VALUES);
	OK(add(p, tensor_on("x", DT_F32, numbers, 4, 2, (const int64_t[]){3, 2}, (const int64_t[]){1, 8})));
	payload *q = read_back(p, &file);
	const payload_tensor *t = &q->tensors.at[0];
	assert_int_equal(t->strides[0], 1);
	assert_int_equal(t->strides[1], 8);
	assert_int_equal(q->memories.at[0].data_n, 24);
	assert_int_equal(q->memories.at[0].nbytes, 4 * 11);
	float *data = filled(q, 0);
	for (int i = 0; i < 3; i++)
		for (int j = 0; j < 2; j++)
			assert_true(data[i + 8 * j] == numbers[1 + i + 8 * j]);
	mem_free(data);
	payload_free(q);
	strbuf_free(&file);
}

static void tensors_on_one_memory_are_written_once(void **state)
{
	(void)state;
	strbuf file = STRBUF_INIT;
	payload *p = new_payload(PAYLOAD_VALUES);
	OK(add(p, tensor_on("x", DT_F32, numbers, 8, 1, (const int64_t[]){2}, (const int64_t[]){3})));
	OK(add(p, tensor_on("y", DT_F32, numbers, 20, 1, (const int64_t[]){2}, (const int64_t[]){1})));
	OK(add(p, tensor_on("z", DT_F32, numbers + 1, 0, 0, NULL, NULL))); /* another storage, as the caller says */
	payload *q = read_back(p, &file);
	assert_int_equal(q->memories.n, 2);
	assert_int_equal(q->tensors.at[0].memory, q->tensors.at[1].memory);
	assert_int_equal(q->tensors.at[0].offset, 0);
	assert_int_equal(q->tensors.at[1].offset, 12);
	float *data = filled(q, 0);
	const float want[5] = {2, 0, 0, 5, 6}; /* 3 and 4 belong to none of them */
	assert_int_equal(q->memories.at[0].nbytes, sizeof want);
	assert_memory_equal(data, want, sizeof want);
	mem_free(data);
	payload_free(q);
	strbuf_free(&file);
}

static void tensors_of_several_types_may_share_memory(void **state)
{
	(void)state;
	strbuf file = STRBUF_INIT;
	payload *p = new_payload(PAYLOAD_VALUES);
	OK(add(p, tensor_on("x", DT_U8, numbers, 21, 1, (const int64_t[]){2}, (const int64_t[]){1})));
	OK(add(p, tensor_on("y", DT_C128, numbers, 32, 1, (const int64_t[]){1}, (const int64_t[]){1})));
	payload *q = read_back(p, &file);
	assert_int_equal(q->memories.n, 1);
	assert_int_equal(q->tensors.at[0].offset, 5);
	assert_int_equal(q->tensors.at[1].offset, 16);
	uint8_t *data = filled(q, 0);
	assert_memory_equal(data + 5, (const uint8_t *)numbers + 21, 2);
	assert_memory_equal(data + 16, numbers + 8, 16);
	mem_free(data);
	payload_free(q);
	strbuf_free(&file);
}

static void an_expanded_tensor_is_written_as_small_as_it_is(void **state)
{
	(void)state;
	strbuf file = STRBUF_INIT;
	payload *p = new_payload(PAYLOAD_VALUES);
	const int64_t sizes[] = {INT64_C(1) << 40, 3}, strides[] = {0, 1};
	OK(add(p, tensor_on("x", DT_F32, numbers, 0, 2, sizes, strides)));
	payload *q = read_back(p, &file);
	assert_int_equal(q->memories.at[0].nbytes, 12);
	float *data = filled(q, 0);
	assert_memory_equal(data, numbers, 12);
	mem_free(data);
	payload_free(q);
	strbuf_free(&file);
}

static void places_of_many_elements_are_copied_once(void **state)
{
	(void)state;
	enum { DIMS = 4, SIZE = 100000, ALL = DIMS * (SIZE - 1) + 1 };
	strbuf file = STRBUF_INIT;
	uint8_t *storage = mem_alloc(ALL);
	for (size_t i = 0; i < ALL; i++)
		storage[i] = (uint8_t)(i * 7);
	payload *p = new_payload(PAYLOAD_VALUES);
	const int64_t sizes[DIMS] = {3, SIZE, 1000, 2}, strides[DIMS] = {0, 1, 100, 2}; /* 6 * 10^8 elements */
	OK(add(p, tensor_on("x", DT_U8, storage, 0, DIMS, sizes, strides)));
	payload *q = read_back(p, &file);
	assert_int_equal(q->memories.at[0].nbytes, SIZE + 99900 + 2);
	assert_memory_equal(q->memories.at[0].data, storage, SIZE + 99900 + 2);
	payload_free(q);
	strbuf_free(&file);
	mem_free(storage);
}

static void elements_that_lie_on_each_other_too_often_are_refused(void **state)
{
	(void)state;
	size_t extent;
	const int64_t sizes[] = {500, 500, 500}, window[] = {1, 1, 1}, odd[] = {2, 3, 5};
	OK(strided_extent(3, sizes, window, &extent));
	assert_false(strided_overlaps(3, sizes, window, extent)); /* one run */
	OK(strided_extent(3, sizes, odd, &extent));
	assert_true(strided_overlaps(3, sizes, odd, extent));
}

static void a_tensor_too_sparse_for_its_reader_is_written_with_its_gaps(void **state)
{
	(void)state;
	strbuf file = STRBUF_INIT;
	enum { FAR = 70 << 20 };
	uint8_t *storage = mem_alloc(FAR + 1);
	storage[FAR] = 9;
	payload *p = new_payload(PAYLOAD_VALUES);
	OK(add(p, tensor_on("x", DT_U8, storage, 0, 1, (const int64_t[]){2}, (const int64_t[]){FAR})));
	payload *q = read_back(p, &file);
	assert_false(q->memories.at[0].dense);
	assert_int_equal(q->memories.at[0].data_n, FAR + 1);
	assert_int_equal(((const uint8_t *)q->memories.at[0].data)[FAR], 9);
	payload_free(q);
	strbuf_free(&file);
	mem_free(storage);
}

static void every_dtype_comes_back_or_is_refused_by_name(void **state)
{
	(void)state;
	for (int d = 0; d < DT_COUNT; d++) {
		strbuf file = STRBUF_INIT;
		payload *p = new_payload(PAYLOAD_VALUES);
		uint8_t data[32] = {1, 0, 1, 1};
		clv_status st = add(p, tensor_on("x", (dtype)d, data, 0, 1, (const int64_t[]){2}, (const int64_t[]){1}));
		dtype wire;
		uint32_t parts;
		if (!wire_dtype((dtype)d, &wire, &parts)) {
			check_error(st, CLV_E_UNSUPPORTED, dtype_name((dtype)d));
			payload_free(p);
			continue;
		}
		OK(st);
		payload *q = read_back(p, &file);
		assert_int_equal(q->tensors.at[0].dtype, d);
		assert_int_equal(q->tensors.at[0].quantiser != NULL, dtype_quantised((dtype)d));
		assert_true(!q->tensors.at[0].quantiser || q->tensors.at[0].quantiser->scales[0] == 0.1);
		assert_true(!q->tensors.at[0].quantiser || q->tensors.at[0].quantiser->zero_points[0] == 3);
		void *back = filled(q, 0);
		assert_memory_equal(back, data, dtype_bits((dtype)d) / 8 * 2);
		mem_free(back);
		payload_free(q);
		strbuf_free(&file);
	}
}

static void tensors_that_cannot_be_are_refused(void **state)
{
	(void)state;
	payload *p = new_payload(PAYLOAD_VALUES);
	const int64_t one[] = {1}, minus[] = {-1}, huge[] = {INT64_MAX}, many[PAYLOAD_NDIM + 1] = {0};
	OK(add(p, tensor_on("x", DT_F32, numbers, 0, 1, one, one)));
	FAILS(add(p, tensor_on("x", DT_F32, numbers, 0, 1, one, one)), CLV_E_INVALID, "two of this name");
	FAILS(add(p, tensor_on("__metadata__", DT_F32, numbers, 0, 1, one, one)), CLV_E_INVALID, "for itself");
	FAILS(add(p, tensor_on("y", DT_F32, numbers, 0, 1, minus, one)), CLV_E_INVALID, "dimension 0 is -1");
	FAILS(add(p, tensor_on("y", DT_F32, numbers, 0, 1, one, minus)), CLV_E_INVALID, "stride 0 is -1");
	FAILS(add(p, tensor_on("y", DT_F32, numbers, 0, 1, huge, one)), CLV_E_OVERFLOW, "2^63");
	FAILS(add(p, tensor_on("y", DT_F32, numbers, 0, 1, (const int64_t[]){3}, huge)), CLV_E_OVERFLOW, "2^63");
	FAILS(add(p, tensor_on("y", DT_F32, numbers, 0, PAYLOAD_NDIM + 1, many, many)), CLV_E_UNSUPPORTED, "65 dimensions");
	payload_tensor t = tensor_on("y", DT_I64, numbers, 0, 1, one, one);
	t.requires_grad = true;
	FAILS(add(p, t), CLV_E_INVALID, "cannot require grad");
	payload_free(p);
}

/* ---- values ----------------------------------------------------------------------------------------------------- */

static void push(payload *p, tree t)
{
	OK(vec_push(&p->values, t));
}

static void push_str(payload *p, tree_kind kind, const char *s, size_t n, uint32_t children)
{
	tree t = {.kind = (uint8_t)kind, .n = children};
	OK(payload_str(p, s, n, &t.u.s));
	push(p, t);
}

static void push_int(payload *p, const char *s)
{
	push_str(p, TREE_INT, s, strlen(s), 0);
}

/* Every kind of value once. */
static void push_everything(payload *p)
{
	uint64_t bits = UINT64_C(0xfff8000000000123);
	double odd_nan;
	memcpy(&odd_nan, &bits, sizeof odd_nan);
	push(p, (tree){.kind = TREE_LIST, .n = 11});
	push(p, (tree){.kind = TREE_NONE});
	push(p, (tree){.kind = TREE_BOOL, .u.b = true});
	push_int(p, "-9223372036854775808");
	push_int(p, "-0x8000000000000001");
	push(p, (tree){.kind = TREE_FLOAT, .u.f = odd_nan});
	push(p, (tree){.kind = TREE_COMPLEX, .u.c = {-0.0, -INFINITY}});
	push_str(p, TREE_STR, "a\0\"\xc3\xa9", 5, 0);
	push_str(p, TREE_BYTES, "\xff\0", 2, 0);
	push(p, (tree){.kind = TREE_VALUE, .u.v = 0});
	push(p, (tree){.kind = TREE_DICT, .n = 4});
	push(p, (tree){.kind = TREE_TUPLE, .n = 1});
	push(p, (tree){.kind = TREE_FLOAT, .u.f = 0.1});
	push(p, (tree){.kind = TREE_LIST, .n = 0});
	push_str(p, TREE_OBJECT, "torch:Size", 10, 2);
	push_str(p, TREE_STR, "0", 1, 0);
	push_int(p, "4");
	push(p, (tree){.kind = TREE_NONE});
	push_str(p, TREE_OBJECT, "builtins:slice", 14, 6);
	push_str(p, TREE_STR, "start", 5, 0);
	push(p, (tree){.kind = TREE_NONE});
	push_str(p, TREE_STR, "stop", 4, 0);
	push_int(p, "0x10000000000000000");
	push_str(p, TREE_STR, "step", 4, 0);
	push_int(p, "-2");
}

static void check_same_token(const payload *p, const tree *a, const payload *q, const tree *b)
{
	assert_int_equal(a->kind, b->kind);
	assert_int_equal(a->n, b->n);
	switch (a->kind) {
	case TREE_INT:
	case TREE_STR:
	case TREE_BYTES:
	case TREE_OBJECT:
		assert_int_equal(p->strs.at[a->u.s].n, q->strs.at[b->u.s].n);
		assert_memory_equal(p->strs.at[a->u.s].s, q->strs.at[b->u.s].s, p->strs.at[a->u.s].n);
		break;
	case TREE_FLOAT: assert_memory_equal(&a->u.f, &b->u.f, sizeof a->u.f); break;
	case TREE_COMPLEX: assert_memory_equal(&a->u.c, &b->u.c, sizeof a->u.c); break;
	case TREE_BOOL: assert_int_equal(a->u.b, b->u.b); break;
	case TREE_VALUE: assert_int_equal(a->u.v, b->u.v); break;
	default: break;
	}
}

static void every_kind_of_value_comes_back_bit_for_bit(void **state)
{
	(void)state;
	strbuf file = STRBUF_INIT;
	payload *want = new_payload(PAYLOAD_VALUES), *p = new_payload(PAYLOAD_VALUES);
	push_everything(want);
	push_everything(p);
	OK(add(p, tensor_on("x", DT_F32, numbers, 0, 0, NULL, NULL)));
	payload *q = read_back(p, &file);
	assert_int_equal(q->values.n, want->values.n);
	for (uint32_t i = 0; i < q->values.n; i++)
		check_same_token(want, &want->values.at[i], q, &q->values.at[i]);
	payload_free(q);
	payload_free(want);
	strbuf_free(&file);
}

static clv_status image_of(payload *p)
{
	st_image image;
	clv_status st = payload_image(p, &image);
	if (st == CLV_OK)
		st_image_free(&image);
	payload_free(p);
	return st;
}

static payload *with_key(tree key)
{
	payload *p = new_payload(PAYLOAD_VALUES);
	push(p, (tree){.kind = TREE_DICT, .n = 2});
	push(p, key);
	push(p, (tree){.kind = TREE_NONE});
	return p;
}

static void values_that_cannot_be_are_not_written(void **state)
{
	(void)state;
	FAILS(image_of(with_key((tree){.kind = TREE_LIST})), CLV_E_UNSUPPORTED, "key of a dict is a list");
	payload *p = with_key((tree){.kind = TREE_VALUE, .u.v = 0});
	OK(add(p, tensor_on("x", DT_F32, numbers, 0, 0, NULL, NULL)));
	FAILS(image_of(p), CLV_E_UNSUPPORTED, "key of a dict is a tensor");
	p = new_payload(PAYLOAD_VALUES);
	push_str(p, TREE_OPAQUE, "o", 1, 0);
	FAILS(image_of(p), CLV_E_UNSUPPORTED, "only Python knows");
	p = new_payload(PAYLOAD_VALUES);
	push_str(p, TREE_OBJECT, "os:system", 9, 0);
	FAILS(image_of(p), CLV_E_UNSUPPORTED, "os:system");
	p = new_payload(PAYLOAD_VALUES);
	for (int i = 0; i <= PAYLOAD_DEPTH; i++)
		push(p, (tree){.kind = TREE_LIST, .n = i < PAYLOAD_DEPTH});
	FAILS(image_of(p), CLV_E_UNSUPPORTED, "levels deep");
	p = new_payload(PAYLOAD_VALUES);
	push_str(p, TREE_STR, "\xff", 1, 0);
	FAILS(image_of(p), CLV_E_INVALID, "UTF-8");
}

/* ---- compression ------------------------------------------------------------------------------------------------ */

static uint16_t narrowed(encoding e, double v)
{
	uint16_t out;
	narrow_loss loss;
	narrow(e, DT_F64, &v, 1, NULL, &out, &loss);
	return out;
}

static void half_floats_are_rounded_once_and_to_even(void **state)
{
	(void)state;
	assert_int_equal(narrowed(ENC_FP16, 1), 0x3c00);
	assert_int_equal(narrowed(ENC_FP16, -0.0), 0x8000);
	assert_int_equal(narrowed(ENC_FP16, 65504), 0x7bff);
	assert_int_equal(narrowed(ENC_FP16, 65519.99), 0x7bff);
	assert_int_equal(narrowed(ENC_FP16, 65520), 0x7c00);
	assert_int_equal(narrowed(ENC_FP16, 1e300), 0x7c00);
	assert_int_equal(narrowed(ENC_FP16, -INFINITY), 0xfc00);
	assert_int_equal(narrowed(ENC_FP16, 0x1p-24), 1);
	assert_int_equal(narrowed(ENC_FP16, 0x1p-25), 0);
	assert_int_equal(narrowed(ENC_FP16, 0x1.8p-24), 2);
	assert_int_equal(narrowed(ENC_FP16, 0x1.000001p-25), 1);
	assert_int_equal(narrowed(ENC_FP16, 1e-300), 0);
	assert_int_equal(narrowed(ENC_FP16, 1 + 0x1p-11), 0x3c00);           /* a tie */
	assert_int_equal(narrowed(ENC_FP16, 1 + 0x1p-11 + 0x1p-40), 0x3c01); /* none, though f32 would make it one */
	assert_int_equal(narrowed(ENC_FP16, 1 + 0x3p-11), 0x3c02);
	assert_int_equal(narrowed(ENC_BF16, 1 + 0x1p-8), 0x3f80);
	assert_int_equal(narrowed(ENC_BF16, 1 + 0x1p-8 + 0x1p-50), 0x3f81);
	assert_int_equal(narrowed(ENC_BF16, DBL_MAX), 0x7f80);
	assert_int_equal(narrowed(ENC_BF16, NAN) & 0x7fff, 0x7fc0);
	assert_int_equal(narrowed(ENC_FP16, NAN) & 0x7fff, 0x7e00);
}

static void every_half_float_survives_being_widened(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 65536; i++) {
		uint16_t h = (uint16_t)i, back;
		double v;
		narrow_loss loss;
		for (int e = ENC_FP16; e <= ENC_BF16; e++) {
			widen((encoding)e, DT_F64, &h, 1, NULL, &v);
			narrow((encoding)e, DT_F64, &v, 1, NULL, &back, &loss);
			if (!isnan(v))
				assert_int_equal(back, h);
			assert_true(loss.absolute == 0);
		}
	}
}

static payload *one_tensor(dtype d, const void *data, int64_t n, encoding e)
{
	payload *p = new_payload(PAYLOAD_VALUES);
	payload_tensor t = tensor_on("x", d, data, 0, 1, &n, (const int64_t[]){1});
	t.wish = e;
	t.must = true;
	OK(add(p, t));
	return p;
}

static void int8_keeps_what_it_promises(void **state)
{
	(void)state;
	strbuf file = STRBUF_INIT;
	float data[100], most = 0;
	uint64_t seed = 5;
	for (int i = 0; i < 100; i++) {
		data[i] = (float)((double)random_below(&seed, 20001) - 10000) / 777;
		most = fmaxf(most, fabsf(data[i]));
	}
	payload *q = read_back(one_tensor(DT_F32, data, 100, ENC_INT8), &file);
	const payload_memory *m = &q->memories.at[0];
	float *back = filled(q, 0);
	double worst = 0, shares = 0, counted = 0, lost = 0, all = 0;
	for (int i = 0; i < 100; i++) {
		double x = (double)data[i], off = fabs(x - (double)back[i]);
		worst = fmax(worst, off);
		shares += x == 0 ? 0 : off / fabs(x);
		counted += x != 0;
		lost += off * off;
		all += x * x;
	}
	assert_int_equal(m->data_n, 100);
	assert_int_equal(m->scales.n, 1); /* more are not worth their bytes */
	assert_true(worst == m->loss.absolute);
	assert_true(worst <= m->scales.one / 2 * (1 + 1e-6) && m->scales.one <= (double)most / 127 * (1 + 1e-12));
	assert_true(fabs(m->loss.relative - shares / counted) < 1e-12);
	assert_true(fabs(m->loss.l2 - sqrt(lost / all)) < 1e-12);
	mem_free(back);
	payload_free(q);
	strbuf_free(&file);
}

/* One tensor of rows and columns, written as e and read again; loss of the elements other than `but`. */
static double lost_but(dtype d, const void *data, int64_t rows, int64_t columns, encoding e, size_t but,
                       size_t *nscales)
{
	strbuf file = STRBUF_INIT;
	payload *p = new_payload(PAYLOAD_VALUES);
	payload_tensor t = tensor_on("x", d, data, 0, 2, (const int64_t[]){rows, columns}, (const int64_t[]){columns, 1});
	size_t n = (size_t)(rows * columns);
	double lost = 0, all = 0, *before = mem_alloc(n * sizeof *before), *after = mem_alloc(n * sizeof *after);
	t.wish = e;
	OK(add(p, t));
	payload *q = read_back(p, &file);
	void *back = filled(q, 0);
	elements_load(d, data, n, before);
	elements_load(d, back, n, after);
	for (size_t i = 0; i < n; i++) {
		lost += i == but ? 0 : (before[i] - after[i]) * (before[i] - after[i]);
		all += i == but ? 0 : before[i] * before[i];
	}
	*nscales = q->memories.at[0].scales.n;
	mem_free(before);
	mem_free(after);
	mem_free(back);
	payload_free(q);
	strbuf_free(&file);
	return sqrt(lost / all);
}

enum { ROWS = 64, COLUMNS = 96 };

static void an_outlier_costs_its_neighbours_alone(void **state)
{
	(void)state;
	uint64_t seed = 7;
	float x[ROWS * COLUMNS];
	double y[ROWS * COLUMNS];
	size_t n, but = 17 * COLUMNS + 5;
	for (size_t i = 0; i < ROWS * COLUMNS; i++)
		y[i] = (double)(x[i] = (float)((double)random_below(&seed, 2001) - 1000) / 1000);
	assert_true(lost_but(DT_F32, x, ROWS, COLUMNS, ENC_INT8, but, &n) < 0.01);
	assert_int_equal(n, 1); /* numbers that are alike need one scale */
	y[but] = (double)(x[but] = 1e5f);
	assert_true(lost_but(DT_F32, x, ROWS, COLUMNS, ENC_INT8, but, &n) < 0.2);
	assert_true(n > 1);
	assert_true(lost_but(DT_F64, y, ROWS, COLUMNS, ENC_INT8, but, &n) < 0.2);
	assert_true(lost_but(DT_F32, x, 1, ROWS * COLUMNS, ENC_INT8, but, &n) < 0.2);
	assert_int_equal(n, ROWS * COLUMNS / 64);
}

static void columns_of_their_own_size_have_scales_of_their_own(void **state)
{
	(void)state;
	uint64_t seed = 8;
	float x[ROWS * COLUMNS], transposed[ROWS * COLUMNS];
	size_t n;
	for (size_t i = 0; i < ROWS * COLUMNS; i++) {
		x[i] = (float)((double)random_below(&seed, 2001) - 1000) * powf(10, (float)(i % COLUMNS % 9));
		transposed[i % COLUMNS * ROWS + i / COLUMNS] = x[i];
	}
	assert_true(lost_but(DT_F32, x, ROWS, COLUMNS, ENC_INT8, SIZE_MAX, &n) < 0.01);
	assert_int_equal(n, COLUMNS);
	lost_but(DT_F32, transposed, COLUMNS, ROWS, ENC_INT8, SIZE_MAX, &n);
	assert_int_equal(n, COLUMNS); /* rows of 64 */
}

static bool without_zstd(void)
{
	void *out = NULL;
	size_t n;
	bool without = shuffle_pack("aaaa", 4, 1, &out, &n) == CLV_E_UNSUPPORTED;
	mem_free(out);
	return without;
}

static void zstd_gives_every_bit_back(void **state)
{
	(void)state;
	strbuf file = STRBUF_INIT;
	uint16_t x[4096], *back;
	if (without_zstd())
		skip();
	for (int i = 0; i < 4096; i++)
		x[i] = (uint16_t)(0x3c00 + i * 7 % 50);
	payload *p = new_payload(PAYLOAD_VALUES);
	payload_tensor a = tensor_on("a", DT_BF16, x, 2, 2, (const int64_t[]){9, 100}, (const int64_t[]){1, 10});
	payload_tensor b = tensor_on("b", DT_U8, x, 1001, 1, (const int64_t[]){3001}, (const int64_t[]){1});
	a.wish = b.wish = ENC_ZSTD;
	OK(add(p, a));
	OK(add(p, b));
	payload *q = read_back(p, &file);
	const payload_memory *m = &q->memories.at[0];
	assert_true(q->memories.n == 1 && m->encoding == ENC_ZSTD && m->mixed && m->data_n < m->nbytes / 2);
	back = filled(q, 0);
	for (int i = 0; i < 9; i++)
		for (int j = 0; j < 100; j++)
			assert_int_equal(back[q->tensors.at[0].offset / 2 + (size_t)(i + 10 * j)], x[1 + i + 10 * j]);
	assert_memory_equal((uint8_t *)back + q->tensors.at[1].offset, (uint8_t *)x + 1001, 3001);
	mem_free(back);
	payload_free(q);
	strbuf_free(&file);
}

static void bools_in_zstd_are_looked_at_too(void **state)
{
	(void)state;
	strbuf file = STRBUF_INIT;
	uint8_t x[512] = {0}, room[512];
	if (without_zstd())
		skip();
	x[300] = 2;
	payload *p = one_tensor(DT_BOOL, x, 512, ENC_ZSTD);
	payload *q = read_back(p, &file);
	FAILS(payload_fill(q, 0, room), CLV_E_PARSE, "byte 300 is no bool");
	payload_free(q);
	strbuf_free(&file);
}

/* What is read of n floats in channels, written as e; *bytes: in the file. Caller frees. */
static float *quantised(const float *data, int64_t rows, int64_t columns, encoding e, size_t *bytes, size_t *channels)
{
	strbuf file = STRBUF_INIT;
	payload *p = new_payload(PAYLOAD_VALUES);
	payload_tensor t =
		tensor_on("x", DT_F32, data, 0, 2, (const int64_t[]){rows, columns}, (const int64_t[]){columns, 1});
	t.wish = e;
	OK(add(p, t));
	payload *q = read_back(p, &file);
	float *back = filled(q, 0);
	assert_int_equal(q->memories.at[0].encoding, e);
	*bytes = q->memories.at[0].data_n;
	*channels = q->memories.at[0].quant.channels;
	payload_free(q);
	strbuf_free(&file);
	return back;
}

static double loss_between(const float *a, const float *b, size_t n)
{
	double lost = 0, all = 0;
	for (size_t i = 0; i < n; i++) {
		lost += (double)(a[i] - b[i]) * (double)(a[i] - b[i]);
		all += (double)a[i] * (double)a[i];
	}
	return sqrt(lost / all);
}

/* About normal. */
static float bell(uint64_t *seed)
{
	double sum = -6;
	for (int k = 0; k < 12; k++)
		sum += (double)random_below(seed, 1 << 20) / (1 << 20);
	return (float)sum;
}

static void each_bit_about_halves_what_is_lost(void **state)
{
	(void)state;
	uint64_t seed = 9;
	static float x[ROWS * COLUMNS];
	double before = 1, most[] = {0.62, 0.4, 0.22, 0.13, 0.08, 0.045, 0.025, 0.014};
	for (size_t i = 0; i < ROWS * COLUMNS; i++)
		x[i] = bell(&seed);
	for (int e = ENC_Q1; e <= ENC_Q8; e++) {
		size_t bytes, channels;
		float *back = quantised(x, ROWS, COLUMNS, (encoding)e, &bytes, &channels);
		double lost = loss_between(x, back, ROWS * COLUMNS);
		assert_true(lost < most[e - ENC_Q1] && lost < before);
		assert_true(bytes <= ROWS * COLUMNS / (8 / encoding_bits((encoding)e)) + 2 * sizeof(float) * channels);
		before = lost;
		mem_free(back);
	}
}

static void zeros_stay_zeros_and_many_of_them_take_less_than_a_bit(void **state)
{
	(void)state;
	uint64_t seed = 10;
	static float x[ROWS * COLUMNS];
	for (size_t i = 0; i < ROWS * COLUMNS; i++)
		x[i] = random_below(&seed, 10) ? 0 : fabsf(bell(&seed));
	for (int e = ENC_Q1; e <= ENC_Q8; e++) {
		size_t bytes, channels;
		float *back = quantised(x, ROWS, COLUMNS, (encoding)e, &bytes, &channels);
		for (size_t i = 0; i < ROWS * COLUMNS; i++)
			assert_true(x[i] != 0 || back[i] == 0);
		assert_true(loss_between(x, back, ROWS * COLUMNS) < (e == ENC_Q1 ? 0.65 : 0.3));
		if (e == ENC_Q2 && !without_zstd())
			assert_true(bytes * 8 < ROWS * COLUMNS);
		mem_free(back);
	}
}

static void channels_of_their_own_size_keep_their_digits_at_4_bits(void **state)
{
	(void)state;
	uint64_t seed = 11;
	static float x[ROWS * COLUMNS];
	size_t bytes, channels;
	for (size_t i = 0; i < ROWS * COLUMNS; i++) {
		x[i] = (1 + bell(&seed)) * powf(10, (float)(i % COLUMNS % 9));
	}
	float *back = quantised(x, ROWS, COLUMNS, ENC_Q4, &bytes, &channels);
	assert_int_equal(channels, COLUMNS);
	for (size_t c = 0; c < COLUMNS; c++) {
		double lost = 0, all = 0;
		for (size_t i = c; i < ROWS * COLUMNS; i += COLUMNS) {
			lost += (double)((x[i] - back[i]) * (x[i] - back[i]));
			all += (double)(x[i] * x[i]);
		}
		assert_true(sqrt(lost / all) < 0.15);
	}
	mem_free(back);
}

static void numbers_that_are_all_the_same_come_back_as_they_were(void **state)
{
	(void)state;
	static float x[ROWS * COLUMNS];
	size_t bytes, channels;
	for (size_t i = 0; i < ROWS * COLUMNS; i++)
		x[i] = 0.3f;
	float *back = quantised(x, ROWS, COLUMNS, ENC_Q1, &bytes, &channels);
	assert_memory_equal(back, x, sizeof x);
	mem_free(back);
}

static void compression_that_cannot_be_is_refused(void **state)
{
	(void)state;
	const float odd[] = {1, INFINITY};
	const int32_t ints[] = {1, 2};
	FAILS(image_of(one_tensor(DT_F32, odd, 2, ENC_INT8)), CLV_E_INVALID, "element 1 is infinite");
	FAILS(image_of(one_tensor(DT_F32, odd, 2, ENC_Q3)), CLV_E_INVALID, "element 1 is infinite; q3 holds finite values");
	FAILS(image_of(one_tensor(DT_F64, (const double[]){1e300, 0}, 2, ENC_Q8)), CLV_E_INVALID, "element 0 is 1e+300");
	FAILS(image_of(one_tensor(DT_I32, ints, 2, ENC_Q4)), CLV_E_INVALID, "is i32, which cannot be written as q4");
	FAILS(image_of(one_tensor(DT_I32, ints, 2, ENC_FP16)), CLV_E_INVALID, "is i32, which cannot be written as fp16");
	FAILS(image_of(one_tensor(DT_BF16, ints, 2, ENC_FP16)), CLV_E_INVALID, "is bf16");
	payload *p = one_tensor(DT_F32, odd, 2, ENC_FP16);
	OK(add(p, tensor_on("y", DT_F32, odd, 4, 0, NULL, NULL)));
	FAILS(image_of(p), CLV_E_INVALID, "\"x\" and \"y\" share memory");
	p = new_payload(PAYLOAD_VALUES);
	payload_tensor t = tensor_on("x", DT_I32, ints, 0, 0, NULL, NULL);
	t.wish = ENC_INT8; /* a wish for all, which passes over what it is not for */
	OK(add(p, t));
	OK(image_of(p));
}

/* ---- boundaries ------------------------------------------------------------------------------------------------- */

static payload *boundary(void)
{
	static const char *const dims[] = {"B", "2*B+1"};
	payload *p = new_payload(PAYLOAD_BOUNDARY);
	payload_tensor t = tensor_on("%1", DT_F32, numbers, 0, 2, (const int64_t[]){2, 5}, (const int64_t[]){5, 1});
	t.boundary = t.requires_grad = true;
	OK(add(p, t));
	p->split_id = "s";
	p->graph_signature = "g";
	p->has_batch_size = p->supports_prefix_backward = true;
	p->batch_size = 2;
	p->weight_version = -3;
	OK(vec_push(&p->sizes, ((payload_number){"B", 2})));
	OK(vec_push(&p->requires_grad, ((payload_number){"%1", 1})));
	OK(vec_push(&p->schema, ((payload_schema){"%1", DT_F32, 2, dims, "cuda:1", true})));
	OK(vec_push(&p->passthrough, "%0"));
	return p;
}

static void the_fields_of_a_boundary_come_back(void **state)
{
	(void)state;
	strbuf file = STRBUF_INIT;
	payload *q = read_back(boundary(), &file), *other;
	assert_string_equal(q->split_id, "s");
	assert_string_equal(q->graph_signature, "g");
	assert_true(q->has_batch_size && q->batch_size == 2 && q->weight_version == -3 && q->supports_prefix_backward);
	assert_true(q->sizes.n == 1 && q->sizes.at[0].value == 2);
	assert_true(q->requires_grad.n == 1 && q->requires_grad.at[0].value == 1);
	assert_true(q->passthrough.n == 1 && strcmp(q->passthrough.at[0], "%0") == 0);
	assert_true(q->schema.n == 1 && q->schema.at[0].ndim == 2 && strcmp(q->schema.at[0].dims[1], "2*B+1") == 0);
	assert_true(q->tensors.at[0].boundary && q->tensors.at[0].requires_grad);
	FAILS(payload_read(file.at, file.n, PAYLOAD_VALUES, &other), CLV_E_INVALID, "boundary of a split");
	payload_free(q);
	strbuf_free(&file);
}

static void a_boundary_is_checked_against_what_a_suffix_expects(void **state)
{
	(void)state;
	const char *plans[] = {"p", "q"}, *labels[] = {"%1", "%2"}, *others[] = {"%1", "%2", "%3"};
	payload_number sizes[] = {{"B", 3}, {"S", 7}};
	boundary_range ranges[] = {{"B", 1, 8, true}, {"S", 7, 7, false}};
	const boundary_want whole = {"two", plans, 2, labels, 2, ranges, 2};
	const boundary_facts good = {"two", "q", true, 3, sizes, 2, labels, 2};
	boundary_want want = whole;
	boundary_facts got = good;
	OK(boundary_check(&want, &got));
	got.split_id = "three";
	FAILS(boundary_check(&want, &got), CLV_E_INPUT, "belongs to split three, not to two");
	want.split_id = NULL;
	OK(boundary_check(&want, &got));
	want = whole;
	got = good;
	got.signature = "r";
	FAILS(boundary_check(&want, &got), CLV_E_INPUT, "made by plan r, not by p, q");
	want.signatures = NULL;
	OK(boundary_check(&want, &got));
	want = whole;
	got = good;
	got.nsizes = 1;
	FAILS(boundary_check(&want, &got), CLV_E_INPUT, "lacks the size S");
	got = good;
	sizes[1].value = 8;
	FAILS(boundary_check(&want, &got), CLV_E_INPUT, "has S=8, expected 7");
	sizes[1].value = 7;
	sizes[0].value = 9;
	FAILS(boundary_check(&want, &got), CLV_E_INPUT, "has B=9, expected 1 to 8");
	sizes[0].value = 3;
	got.batch_size = 4;
	FAILS(boundary_check(&want, &got), CLV_E_INPUT, "has batch 4, but B=3");
	ranges[0].is_batch = false;
	FAILS(boundary_check(&want, &got), CLV_E_INPUT, "has batch 4, which none of its sizes is");
	got.has_batch_size = false;
	OK(boundary_check(&want, &got));
	ranges[0].is_batch = true;
	FAILS(boundary_check(&want, &got), CLV_E_INPUT, "has no batch size, but B=3");
	got = good;
	got.nlabels = 0;
	FAILS(boundary_check(&want, &got), CLV_E_INPUT, "lacks %1, %2");
	got.labels = others;
	got.nlabels = 3;
	FAILS(boundary_check(&want, &got), CLV_E_INPUT, "has %3, which the split does not know");
	want.labels = NULL;
	OK(boundary_check(&want, &got));
}

/* As many tensors as names of those that had a gradient, and labels as a suffix wants them. */
static void load_boundary(uint32_t n)
{
	strbuf file = STRBUF_INIT, names = STRBUF_INIT;
	payload *p = boundary();
	clv_boundary *b;
	const char **labels = mem_alloc(n * sizeof *labels), **others = mem_alloc(n * sizeof *others);
	for (uint32_t i = 0; i < n; i++)
		strbuf_printf(&names, "t%08u%c", i, 0);
	for (uint32_t i = 0; i < n; i++) {
		labels[i] = others[n - 1 - i] = names.at + 10 * (size_t)i;
		payload_tensor t = tensor_on(labels[i], DT_F32, numbers, 0, 0, NULL, NULL);
		t.boundary = true;
		OK(add(p, t));
		OK(vec_push(&p->requires_grad, ((payload_number){labels[i], i % 2})));
	}
	payload_free(read_back(p, &file));
	OK(clv_boundary_unpack(file.at, file.n, &b));
	assert_int_equal(clv_boundary_count(b), n + 1);
	assert_int_equal(clv_boundary_size(b, "B"), 2);
	clv_boundary_free(b);
	OK(boundary_check(&(boundary_want){.labels = labels, .nlabels = n},
	                  &(boundary_facts){.labels = others, .nlabels = n}));
	mem_free(labels);
	mem_free(others);
	strbuf_free(&names);
	strbuf_free(&file);
}

static void a_boundary_of_many_tensors_is_read_in_time_that_grows_with_them(void **state)
{
	(void)state;
	check_growth(load_boundary, 20000);
}

static void tensors_are_checked_against_the_schema(void **state)
{
	(void)state;
	payload *p = boundary();
	payload_tensor t = p->tensors.at[0];
	payload_schema *s = &p->schema.at[0];
	payload_number b = {"B", 2};
	t.device = "cuda:0"; /* the class counts, not the number */
	OK(schema_check(s, &t, 1, &b, 1));
	b.value = 3;
	FAILS(schema_check(s, &t, 1, &b, 1), CLV_E_INPUT, "%1: dimension 0 is 2, expected B = 3");
	b.value = 2;
	t.sizes = (const int64_t[]){2, 4};
	FAILS(schema_check(s, &t, 1, &b, 1), CLV_E_INPUT, "%1: dimension 1 is 4, expected 2*B+1 = 5");
	t.sizes = p->tensors.at[0].sizes;
	FAILS(schema_check(s, &t, 1, NULL, 0), CLV_E_PARSE, "dimension 0");
	t.device = "cpu";
	FAILS(schema_check(s, &t, 1, &b, 1), CLV_E_INPUT, "on cpu, expected cuda:1");
	t.device = "cuda";
	t.requires_grad = false;
	FAILS(schema_check(s, &t, 1, &b, 1), CLV_E_INPUT, "does not require grad");
	t.dtype = DT_F16;
	FAILS(schema_check(s, &t, 1, &b, 1), CLV_E_INPUT, "%1: dtype is f16, expected f32");
	t.dtype = DT_F32;
	t.ndim = 1;
	FAILS(schema_check(s, &t, 1, &b, 1), CLV_E_INPUT, "1 dimensions, expected 2");
	payload_free(p);
}

/* ---- hostile headers -------------------------------------------------------------------------------------------- */

#define HEAD "{\"version\":1,\"kind\":\"values\",\"memory\":["
#define MEMORY "{\"entry\":\"a\",\"form\":\"dense\",\"encoding\":\"plain\"}"
#define TENSOR(shape, strides, place)                                                                                  \
	"{\"label\":\"x\",\"dtype\":\"f32\",\"shape\":[" shape "],\"strides\":[" strides "],\"device\":\"cpu\","           \
	"\"requires_grad\":false,\"boundary\":false," place "}"
#define AT0 "\"memory\":0,\"offset\":0"
#define GOOD TENSOR("2,2", "2,1", AT0)

static clv_status read_header(const char *text)
{
	st_entry entry = {"a", DT_F32, 2, (const int64_t[]){2, 2}, numbers, 16};
	st_text header = {PAYLOAD_KEY, text, strlen(text)};
	st_image image;
	strbuf file = STRBUF_INIT;
	payload *p = NULL;
	OK(st_layout(&entry, 1, &header, 1, &image));
	OK(st_append(&image, &file));
	clv_status st = payload_read(file.at, file.n, PAYLOAD_VALUES, &p);
	payload_free(p);
	st_image_free(&image);
	strbuf_free(&file);
	return st;
}

static void bad(const char *text, const char *part)
{
	clv_status st = read_header(text);
	if (st == CLV_OK || !strstr(status_message(), part))
		fail_msg("%s: status %d \"%s\" instead of \"%s\"", text, st, st ? status_message() : "", part);
}

static void headers_that_do_not_fit_their_file_are_refused(void **state)
{
	(void)state;
	OK(read_header(HEAD MEMORY "],\"tensors\":[" GOOD "],\"values\":{\"tensor\":\"x\"}}"));
	bad("[", "no valid JSON");
	bad("[]", "\"version\" is missing");
	bad("{\"version\":2}", "version 2, this reader knows version 1");
	bad("{\"version\":1,\"kind\":\"x\"}", "no kind of payload");
	bad(HEAD "],\"tensors\":[],\"values\":null}", "no tensor is in entry \"a\"");
	bad(HEAD MEMORY "," MEMORY "],\"tensors\":[],\"values\":null}", "used twice");
	bad(HEAD "{\"entry\":\"b\"}],\"tensors\":[],\"values\":null}", "not in the file");
	bad(HEAD MEMORY "],\"tensors\":[],\"values\":null}", "no tensor is in entry");
	bad(HEAD MEMORY "],\"tensors\":[" GOOD "," GOOD "],\"values\":null}", "two of this name");
	bad(HEAD MEMORY "],\"tensors\":[" GOOD "]}", "\"values\" is missing");
}

static void tensors_that_do_not_fit_their_entry_are_refused(void **state)
{
	(void)state;
	bad(HEAD MEMORY "],\"tensors\":[" TENSOR("4", "1", AT0) "],\"values\":null}", "another dtype or shape");
	bad(HEAD MEMORY "],\"tensors\":[" TENSOR("2,2", "2", AT0) "],\"values\":null}", "2 sizes and 1 strides");
	bad(HEAD MEMORY "],\"tensors\":[" TENSOR("2,2", "0,1", AT0) "],\"values\":null}", "strides do not fit");
	bad(HEAD MEMORY "],\"tensors\":[" TENSOR("2,2", "2,-1", AT0) "],\"values\":null}", "is no size");
	bad(HEAD MEMORY "],\"tensors\":[" TENSOR("2,2", "99999999,1", AT0) "],\"values\":null}", "too much memory");
	bad(HEAD MEMORY "],\"tensors\":[" TENSOR("2,2", "9223372036854775807,1", AT0) "],\"values\":null}", "2^63");
	bad(HEAD MEMORY "],\"tensors\":[" TENSOR("2,2", "2,1", "\"memory\":1,\"offset\":0") "],\"values\":null}",
	    "no memory 1");
	bad(HEAD MEMORY "],\"tensors\":[" TENSOR("2,2", "2,1", "\"memory\":0,\"offset\":2") "],\"values\":null}",
	    "not on an element");
	bad(HEAD "{\"entry\":\"a\",\"form\":\"span\",\"encoding\":\"plain\"}],\"tensors\":[" TENSOR(
			"2,2", "2,1", "\"memory\":0,\"offset\":4") "],\"values\":null}",
	    "beyond its entry");
	bad(HEAD "{\"entry\":\"a\",\"form\":\"span\",\"encoding\":\"int8\",\"error\":\"0.0\",\"relative_error\":\"0.0\","
	         "\"scale\":\"1.0\"}],\"tensors\":[" GOOD "],\"values\":null}",
	    "another dtype");
	bad(HEAD "{\"entry\":\"a\",\"form\":\"span\",\"encoding\":\"int8\",\"error\":\"0.0\",\"relative_error\":\"0.0\","
	         "\"scale\":\"-1.0\"}],\"tensors\":[" GOOD "],\"values\":null}",
	    "scale");
}

#define VALUES(text) HEAD MEMORY "],\"tensors\":[" GOOD "],\"values\":" text "}"

/* A file whose entry is n bytes, and whose header is this text. */
static clv_status fill_bytes(const char *text, const void *data, size_t n)
{
	int64_t size = (int64_t)n;
	st_entry entry = {"a", DT_U8, 1, &size, data, n};
	st_text header = {PAYLOAD_KEY, text, strlen(text)};
	st_image image;
	strbuf file = STRBUF_INIT;
	payload *p = NULL;
	OK(st_layout(&entry, 1, &header, 1, &image));
	OK(st_append(&image, &file));
	clv_status st = payload_read(file.at, file.n, PAYLOAD_VALUES, &p);
	void *to = st == CLV_OK ? mem_alloc(p->memories.at[0].nbytes) : NULL;
	if (st == CLV_OK)
		st = payload_fill(p, 0, to);
	mem_free(to);
	payload_free(p);
	st_image_free(&image);
	strbuf_free(&file);
	return st;
}

#define QUANTISED(form, how)                                                                                           \
	HEAD "{\"entry\":\"a\",\"form\":\"" form "\",\"encoding\":\"q4\",\"error\":\"0.0\",\"relative_error\":\"0.0\"" how \
		 "}],\"tensors\":[" GOOD "],\"values\":null}"

static void codes_that_do_not_fit_their_elements_are_refused(void **state)
{
	(void)state;
	uint8_t two[18] = {0}, numbers_of_one[10] = {[3] = 0, [8] = 0x21, [9] = 0x43};
	OK(fill_bytes(QUANTISED("dense", ""), numbers_of_one, 10));
	OK(fill_bytes(QUANTISED("span", ",\"bytes\":16"), numbers_of_one, 10));
	OK(fill_bytes(QUANTISED("dense", ",\"channels\":2,\"run\":1"), two, 18));
	FAILS(fill_bytes(QUANTISED("dense", ""), numbers_of_one, 9), CLV_E_PARSE, "not one frame of 10 bytes");
	FAILS(fill_bytes(QUANTISED("span", ",\"bytes\":-16"), two, 10), CLV_E_PARSE, "negative");
	FAILS(fill_bytes(QUANTISED("span", ",\"bytes\":15"), two, 10), CLV_E_PARSE, "no whole number of elements");
	FAILS(fill_bytes(QUANTISED("span", ",\"bytes\":8"), two, 9), CLV_E_PARSE, "beyond its entry");
	FAILS(fill_bytes(QUANTISED("dense", ",\"channels\":1,\"run\":1"), two, 10), CLV_E_PARSE, "1 channels");
	FAILS(fill_bytes(QUANTISED("dense", ",\"channels\":2,\"run\":0"), two, 18), CLV_E_PARSE, "runs of 0");
	FAILS(fill_bytes(QUANTISED("dense", ",\"channels\":2"), two, 18), CLV_E_PARSE, "\"run\" is missing");
	FAILS(fill_bytes(QUANTISED("dense", ",\"channels\":5,\"run\":1"), two, 18), CLV_E_PARSE,
	      "5 channels for 4 elements");
	FAILS(fill_bytes(QUANTISED("dense", ",\"channels\":4611686018427387904,\"run\":1"), two, 18), CLV_E_OVERFLOW,
	      "channels are too many");
	numbers_of_one[7] = 0x80; /* the step is below 0 */
	numbers_of_one[6] = 0x80;
	FAILS(fill_bytes(QUANTISED("dense", ""), numbers_of_one, 10), CLV_E_PARSE, "which are impossible");
	numbers_of_one[7] = 0x7f; /* infinite */
	FAILS(fill_bytes(QUANTISED("dense", ""), numbers_of_one, 10), CLV_E_PARSE, "which are impossible");
}

/* A frame of zeros is small, whatever it becomes. */
static void codes_of_a_small_frame_do_not_become_a_large_memory(void **state)
{
	(void)state;
	void *frame = NULL;
	size_t n = 0, raw = (1 << 20) + 8;
	uint8_t *zeros = mem_alloc(raw);
	if (without_zstd())
		skip();
	OK(shuffle_pack(zeros, raw, 1, &frame, &n));
	FAILS(fill_bytes(QUANTISED("span", ",\"bytes\":1099511627776"), frame, n), CLV_E_PARSE, "not one frame of");
	OK(fill_bytes(QUANTISED("span", ",\"bytes\":8388608"), frame, n)); /* 2^21 elements in 2^20 bytes */
	mem_free(frame);
	raw = (size_t)(1 << 25) + 8;
	mem_free(zeros);
	zeros = mem_alloc(raw);
	OK(shuffle_pack(zeros, raw, 1, &frame, &n));
	FAILS(fill_bytes(QUANTISED("span", ",\"bytes\":268435456"), frame, n), CLV_E_PARSE, "too much memory for so small");
	mem_free(frame);
	mem_free(zeros);
}

static void values_that_are_none_are_refused(void **state)
{
	(void)state;
	bad(VALUES("1.5"), "with a point");
	bad(VALUES("{}"), "0 members");
	bad(VALUES("{\"x\":1}"), "no kind of value");
	bad(VALUES("{\"tensor\":\"y\"}"), "no tensor \"y\"");
	bad(VALUES("{\"int\":\"12\"}"), "not in hexadecimal");
	bad(VALUES("{\"int\":\"0x0f\"}"), "not in hexadecimal");
	bad(VALUES("{\"float\":\"1,5\"}"), "no number");
	bad(VALUES("{\"float\":\"nan:7ff0000000000000\"}"), "no number");
	bad(VALUES("{\"complex\":[\"1.0\"]}"), "no pair");
	bad(VALUES("{\"bytes\":\"abc\"}"), "not in hexadecimal");
	bad(VALUES("{\"bytes\":\"zz\"}"), "not in hexadecimal");
	bad(VALUES("{\"dict\":[1]}"), "no pairs");
	bad(VALUES("{\"dict\":[[],1]}"), "key of a dict is a list");
	bad(VALUES("{\"dict\":[{\"tuple\":[{\"tensor\":\"x\"}]},1]}"), "key of a dict is a tensor");
	bad(VALUES("{\"dict\":[{\"slice\":[1,2,3]},1]}"), "key of a dict is a slice");
	bad(VALUES("{\"slice\":[1]}"), "has not the elements");
	bad(VALUES("{\"range\":[null,1,1]}"), "hexadecimal");
	char deep[2000] = VALUES("");
	size_t at = strlen(deep) - 1;
	memset(deep + at, '[', 300);
	memset(deep + at + 300, ']', 300);
	deep[at + 600] = '}';
	bad(deep, "levels deep");
}

static void a_file_without_our_text_is_no_payload(void **state)
{
	(void)state;
	payload *p;
	FAILS(payload_read("\x08\0\0\0\0\0\0\0{}      ", 16, PAYLOAD_VALUES, &p), CLV_E_PARSE, "but no payload");
}

/* Looks at a file with each of its bits flipped; those after which it is a payload are counted. */
static size_t flip_every_bit(const strbuf *file, const strbuf *text)
{
	size_t accepted = 0;
	for (size_t i = 0; i < file->n; i++) {
		char was = file->at[i];
		for (int bit = 0; bit < 8; bit++) {
			payload *q = NULL;
			strbuf now = STRBUF_INIT;
			file->at[i] = (char)(was ^ 1 << bit);
			if (payload_read(file->at, file->n, PAYLOAD_BOUNDARY, &q) == CLV_OK) {
				accepted++;
				mem_free(filled(q, 0));
				q->unchecked = true;
				OK(payload_header(q, &now));
				if (text && (now.n != text->n || memcmp(now.at, text->at, now.n) != 0))
					fail_msg("bit %d of byte %zu: the payload is another one", bit, i);
			}
			strbuf_free(&now);
			payload_free(q);
		}
		file->at[i] = was;
	}
	return accepted;
}

/* Sanitizers see to the rest. */
static void a_changed_bit_is_noticed_or_without_a_check_does_no_harm(void **state)
{
	(void)state;
	for (int checked = 0; checked < 2; checked++) {
		strbuf file = STRBUF_INIT, text = STRBUF_INIT;
		payload *p = boundary();
		push_everything(p);
		p->unchecked = !checked;
		payload *q = read_back(p, &file);
		assert_int_equal(q->unchecked, !checked);
		q->unchecked = true;
		OK(payload_header(q, &text));
		payload_free(q);
		size_t accepted = flip_every_bit(&file, checked ? &text : NULL);
		assert_true(checked ? accepted < 8 * 60 : accepted > 8 * 40); /* the name of the check; all of the data */
		for (size_t n = 0; n < file.n; n++) {
			payload *cut;
			FAILS(payload_read(file.at, n, PAYLOAD_BOUNDARY, &cut), CLV_E_PARSE, "truncated");
		}
		strbuf_free(&file);
		strbuf_free(&text);
	}
}

static void a_damaged_tensor_is_named(void **state)
{
	(void)state;
	strbuf file = STRBUF_INIT;
	payload *q = read_back(boundary(), &file);
	((char *)(uintptr_t)q->memories.at[0].data)[5] ^= 4;
	payload_free(q);
	FAILS(payload_read(file.at, file.n, PAYLOAD_BOUNDARY, &q), CLV_E_PARSE,
	      "the data of tensor \"%1\" was changed or damaged");
	strbuf_free(&file);
}

/* ---- faults ----------------------------------------------------------------------------------------------------- */

static clv_status write_and_read(payload *p)
{
	st_image image;
	strbuf file = STRBUF_INIT;
	payload *q = NULL;
	TRY(payload_image(p, &image));
	clv_status st = st_append(&image, &file);
	st_image_free(&image);
	json_set_alloc_funcs(malloc, free);
	if (st == CLV_OK)
		st = payload_read(file.at, file.n, p->kind, &q);
	for (uint32_t i = 0; st == CLV_OK && i < q->memories.n; i++) {
		void *to = mem_alloc(q->memories.at[i].nbytes);
		st = to ? payload_fill(q, i, to) : CLV_E_NOMEM;
		mem_free(to);
	}
	if (st == CLV_OK)
		st = schema_check(q->schema.at, q->tensors.at, 1, q->sizes.at, 1);
	strbuf_free(&file);
	payload_free(q);
	return st;
}

static payload *whole(void)
{
	payload *p = boundary();
	push_everything(p);
	p->tensors.at[0].wish = ENC_INT8;
	p->schema.at[0].device = "cpu";
	OK(add(p, tensor_on("y", DT_F64, numbers + 1, 0, 2, (const int64_t[]){2, 2}, (const int64_t[]){1, 3})));
	static float outlier[256] = {1, 2, 3, [99] = 1e6f, [200] = 1};
	payload_tensor t = tensor_on("z", DT_F32, outlier, 0, 1, (const int64_t[]){256}, (const int64_t[]){1});
	t.wish = ENC_INT8; /* with several scales */
	OK(add(p, t));
	static float zeros[300], ramp[256];
	for (int i = 0; i < 256; i++)
		ramp[i] = (float)(i % 16);
	t = tensor_on("quantised", DT_F32, ramp, 0, 2, (const int64_t[]){16, 16}, (const int64_t[]){16, 1});
	t.wish = ENC_Q4;
	OK(add(p, t));
	t = tensor_on("packed", DT_F32, zeros, 0, 2, (const int64_t[]){10, 20}, (const int64_t[]){1, 12});
	t.wish = without_zstd() ? ENC_FP16 : ENC_ZSTD;
	OK(add(p, t));
	return p;
}

/* jansson's too while it builds a header. While it reads one they are left alone: see json.c. */
static void every_allocation_may_fail(void **state)
{
	(void)state;
	clv_status st = CLV_E_NOMEM;
	uint64_t n;
	for (n = 1; st != CLV_OK && n < 10000; n++) {
		payload *p = whole();
		json_set_alloc_funcs(mem_alloc, mem_free);
		mem_fail_after(n);
		st = write_and_read(p);
		bool over = mem_fail_waits();
		mem_fail_after(0);
		json_set_alloc_funcs(malloc, free);
		if (st != (over ? CLV_OK : CLV_E_NOMEM))
			fail_msg("allocation %llu: status %d \"%s\"", (unsigned long long)n, st, status_message());
		payload_free(p);
	}
	assert_int_equal(st, CLV_OK);
	assert_in_range(n, 200, 9000);
}

static int setup(void **state)
{
	(void)state;
	set_numbers();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_dense_tensor_keeps_its_shape_in_the_file),
		cmocka_unit_test(strides_come_back_and_the_file_has_the_elements_alone),
		cmocka_unit_test(tensors_on_one_memory_are_written_once),
		cmocka_unit_test(tensors_of_several_types_may_share_memory),
		cmocka_unit_test(an_expanded_tensor_is_written_as_small_as_it_is),
		cmocka_unit_test(places_of_many_elements_are_copied_once),
		cmocka_unit_test(elements_that_lie_on_each_other_too_often_are_refused),
		cmocka_unit_test(a_tensor_too_sparse_for_its_reader_is_written_with_its_gaps),
		cmocka_unit_test(every_dtype_comes_back_or_is_refused_by_name),
		cmocka_unit_test(tensors_that_cannot_be_are_refused),
		cmocka_unit_test(every_kind_of_value_comes_back_bit_for_bit),
		cmocka_unit_test(values_that_cannot_be_are_not_written),
		cmocka_unit_test(half_floats_are_rounded_once_and_to_even),
		cmocka_unit_test(every_half_float_survives_being_widened),
		cmocka_unit_test(int8_keeps_what_it_promises),
		cmocka_unit_test(an_outlier_costs_its_neighbours_alone),
		cmocka_unit_test(columns_of_their_own_size_have_scales_of_their_own),
		cmocka_unit_test(zstd_gives_every_bit_back),
		cmocka_unit_test(bools_in_zstd_are_looked_at_too),
		cmocka_unit_test(each_bit_about_halves_what_is_lost),
		cmocka_unit_test(zeros_stay_zeros_and_many_of_them_take_less_than_a_bit),
		cmocka_unit_test(channels_of_their_own_size_keep_their_digits_at_4_bits),
		cmocka_unit_test(numbers_that_are_all_the_same_come_back_as_they_were),
		cmocka_unit_test(compression_that_cannot_be_is_refused),
		cmocka_unit_test(the_fields_of_a_boundary_come_back),
		cmocka_unit_test(a_boundary_of_many_tensors_is_read_in_time_that_grows_with_them),
		cmocka_unit_test(tensors_are_checked_against_the_schema),
		cmocka_unit_test(a_boundary_is_checked_against_what_a_suffix_expects),
		cmocka_unit_test(headers_that_do_not_fit_their_file_are_refused),
		cmocka_unit_test(tensors_that_do_not_fit_their_entry_are_refused),
		cmocka_unit_test(codes_that_do_not_fit_their_elements_are_refused),
		cmocka_unit_test(codes_of_a_small_frame_do_not_become_a_large_memory),
		cmocka_unit_test(values_that_are_none_are_refused),
		cmocka_unit_test(a_file_without_our_text_is_no_payload),
		cmocka_unit_test(a_changed_bit_is_noticed_or_without_a_check_does_no_harm),
		cmocka_unit_test(a_damaged_tensor_is_named),
		cmocka_unit_test(every_allocation_may_fail),
	};
	return cmocka_run_group_tests_name("payload", tests, setup, NULL);
}
