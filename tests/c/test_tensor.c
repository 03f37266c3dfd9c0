/* Tensors of the core: made, shared, copied, handed to DLPack, kept by engines; all without torch. */
#include "support.h"

#include "tensor/dlpack.h"
#include "tensor/tensor.h"

static void count(void *ctx)
{
	++*(int *)ctx;
}

static void data_is_copied_and_aligned(void **state)
{
	float data[] = {1, 2, 3, 4, 5, 6};
	clv_tensor *t = NULL;
	(void)state;
	OK(clv_tensor_from_data(data, "f32", 2, (int64_t[]){2, 3}, &t));
	data[0] = 9;
	assert_int_equal((uintptr_t)clv_tensor_data(t) % 64, 0);
	assert_memory_equal(clv_tensor_data(t), ((float[]){1, 2, 3, 4, 5, 6}), 24);
	assert_int_equal(clv_tensor_ndim(t), 2);
	assert_int_equal(clv_tensor_dim(t, 1), 3);
	assert_int_equal(clv_tensor_dim(t, 2), -1);
	assert_int_equal(clv_tensor_bytes(t), 24);
	assert_string_equal(clv_tensor_dtype(t), "f32");
	assert_string_equal(clv_tensor_device(t), "cpu");
	clv_tensor_free(t);
	FAILS(clv_tensor_from_data(data, "qu8", 1, (int64_t[]){2}, &t), CLV_E_UNSUPPORTED, "scales");
	FAILS(clv_tensor_from_data(data, "f32", 2, (int64_t[]){INT64_MAX, 2}, &t), CLV_E_OVERFLOW, "2^63");
	FAILS(clv_tensor_from_data(data, "f32", 1, (int64_t[]){-1}, &t), CLV_E_INVALID, "negative");
}

static void callers_memory_is_released_with_its_last_tensor(void **state)
{
	float data[] = {1, 2, 3, 4, 5, 6}, rows[6];
	clv_tensor *t = NULL, *view = NULL;
	int released = 0;
	(void)state;
	OK(clv_tensor_wrap(data, "f32", 2, (int64_t[]){3, 2}, (int64_t[]){1, 3}, count, &released, &t));
	assert_null(clv_tensor_data(t)); /* it is transposed */
	OK(clv_tensor_copy_to(t, rows, sizeof rows));
	assert_memory_equal(rows, ((float[]){1, 4, 2, 5, 3, 6}), sizeof rows);
	FAILS(clv_tensor_copy_to(t, rows, 8), CLV_E_INVALID, "24 bytes");
	OK(tensor_view(t, 4, &(tensor_form){.dtype = DT_F32, .ndim = 1, .sizes = (int64_t[]){2}}, &view));
	clv_tensor_free(t);
	assert_int_equal(released, 0);
	assert_ptr_equal(clv_tensor_data(view), data + 1);
	clv_tensor_free(view);
	assert_int_equal(released, 1);
}

static void a_clone_has_the_strides_unless_elements_overlap(void **state)
{
	float data[] = {1, 2, 3, 4};
	clv_tensor *t = NULL, *own = NULL;
	(void)state;
	OK(clv_tensor_wrap(data, "f32", 2, (int64_t[]){2, 2}, (int64_t[]){1, 2}, NULL, NULL, &t));
	OK(tensor_clone(t, &own));
	assert_int_equal(own->m.strides[0], 1);
	assert_memory_equal(own->data, data, sizeof data);
	clv_tensor_free(t);
	clv_tensor_free(own);
	OK(clv_tensor_wrap(data, "f32", 2, (int64_t[]){2, 2}, (int64_t[]){0, 1}, NULL, NULL, &t));
	OK(tensor_clone(t, &own));
	assert_memory_equal(own->data, ((float[]){1, 2, 1, 2}), 16);
	clv_tensor_free(t);
	clv_tensor_free(own);
}

static void many_dimensions_are_kept(void **state)
{
	int64_t sizes[9] = {1, 1, 1, 1, 1, 1, 1, 2, 2};
	float data[] = {1, 2, 3, 4};
	clv_tensor *t = NULL;
	(void)state;
	OK(clv_tensor_from_data(data, "f32", 9, sizes, &t));
	assert_int_equal(clv_tensor_dim(t, 8), 2);
	assert_memory_equal(clv_tensor_data(t), data, sizeof data);
	clv_tensor_free(t);
}

static void tensors_of_another_shape_are_told_apart(void **state)
{
	float data[4] = {0};
	clv_tensor *a = NULL, *b = NULL;
	(void)state;
	OK(clv_tensor_from_data(data, "f32", 1, (int64_t[]){4}, &a));
	OK(clv_tensor_from_data(data, "f32", 2, (int64_t[]){2, 2}, &b));
	OK(tensor_check_like(a, a, "w"));
	FAILS(tensor_check_like(a, b, "w"), CLV_E_INPUT, "w is f32[2,2], the model has f32[4]");
	clv_tensor_free(a);
	clv_tensor_free(b);
}

static void dlpack_shares_the_memory(void **state)
{
	float data[] = {1, 2};
	clv_tensor *t = NULL, *again = NULL;
	struct DLManagedTensor *out;
	int released = 0;
	(void)state;
	OK(clv_tensor_wrap(data, "f32", 1, (int64_t[]){2}, NULL, count, &released, &t));
	OK(clv_tensor_to_dlpack(t, &out));
	clv_tensor_free(t);
	OK(clv_tensor_from_dlpack(out, &again));
	assert_ptr_equal(clv_tensor_data(again), data);
	assert_int_equal(released, 0);
	clv_tensor_free(again);
	assert_int_equal(released, 1);
}

static void other_devices_need_an_engine(void **state)
{
	float data = 1;
	clv_tensor *t = NULL, *there = NULL;
	(void)state;
	OK(clv_tensor_from_data(&data, "f32", 0, NULL, &t));
	FAILS(clv_tensor_to_device(t, "cuda:0", &there), CLV_E_UNSUPPORTED, "no engine here");
	OK(clv_tensor_to_device(t, "cpu", &there));
	assert_ptr_equal(there, t);
	clv_tensor_free(there);
	clv_tensor_free(t);
}

static int dropped[2];

static void drop_first(void *ref)
{
	dropped[0] += ref != NULL;
}

static void drop_second(void *ref)
{
	dropped[1] += ref != NULL;
}

static void the_first_engine_has_the_slot(void **state)
{
	float data = 1;
	int a, b;
	clv_tensor *t = NULL;
	(void)state;
	OK(clv_tensor_from_data(&data, "f32", 0, NULL, &t));
	assert_null(slot_get(&t->slot, drop_first));
	assert_ptr_equal(slot_keep(&t->slot, drop_first, &a), &a);
	assert_ptr_equal(slot_keep(&t->slot, drop_first, &b), &a); /* who comes later gets what is there */
	assert_int_equal(dropped[0], 1);
	assert_null(slot_keep(&t->slot, drop_second, &b));
	assert_ptr_equal(slot_get(&t->slot, drop_first), &a);
	assert_null(slot_get(&t->slot, drop_second));
	clv_tensor_free(t);
	assert_int_equal(dropped[0], 2);
	assert_int_equal(dropped[1], 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(data_is_copied_and_aligned),
		cmocka_unit_test(callers_memory_is_released_with_its_last_tensor),
		cmocka_unit_test(a_clone_has_the_strides_unless_elements_overlap),
		cmocka_unit_test(many_dimensions_are_kept),
		cmocka_unit_test(tensors_of_another_shape_are_told_apart),
		cmocka_unit_test(dlpack_shares_the_memory),
		cmocka_unit_test(other_devices_need_an_engine),
		cmocka_unit_test(the_first_engine_has_the_slot),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
