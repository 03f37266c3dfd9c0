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

/* ---- stores -------------------------------------------------------------------------------------------------------- */

static void a_memory_that_was_given_back_is_taken_again(void **state)
{
	memory_store *s;
	tensor_memory *a, *b, *c;
	(void)state;
	if (ADDRESS_SANITIZER) /* nothing is kept */
		skip();
	OK(memory_store_new(&s));
	memory_store_keep(s, memory_store_cost(64) + memory_store_cost(128));
	OK(memory_store_take(s, 64, &a));
	OK(memory_store_take(s, 64, &b));
	OK(memory_store_take(s, 128, &c));
	const char *there = b->base, *large = c->base;
	tensor_memory_unref(a);
	tensor_memory_unref(b);
	tensor_memory_unref(c); /* the first one goes: they are too many */
	OK(memory_store_take(s, 128, &c));
	assert_ptr_equal(c->base, large);
	OK(memory_store_take(s, 64, &b));
	assert_ptr_equal(b->base, there);
	tensor_memory_unref(b);
	OK(memory_store_take(s, 64, &a));
	assert_ptr_equal(a->base, there);
	memory_store_close(s);
	tensor_memory_unref(c);
	tensor_memory_unref(a);
}

/* Memories of two sizes, as many of each, given back and taken in another order. */
static void give_and_take(uint32_t n)
{
	memory_store *s;
	tensor_memory **all = mem_alloc(n * sizeof *all);
	OK(memory_store_new(&s));
	memory_store_keep(s, n * memory_store_cost(n / 2));
	for (int round = 0; round < 2; round++) {
		for (uint32_t i = 0; i < n; i++)
			OK(memory_store_take(s, i < n / 2 ? 64 : i % 97, &all[i]));
		for (uint32_t i = 0; i < n; i++)
			tensor_memory_unref(all[(i + n / 2) % n]);
	}
	memory_store_close(s);
	mem_free(all);
}

static void a_store_of_many_memories_takes_time_that_grows_with_them(void **state)
{
	(void)state;
	check_growth(give_and_take, 40000);
}

static void memories_of_a_store_come_and_go_in_any_order(void **state)
{
	memory_store *s;
	tensor_memory *out[32] = {0};
	uint64_t random = 1;
	(void)state;
	OK(memory_store_new(&s));
	memory_store_keep(s, 5 * memory_store_cost(300));
	for (int i = 0; i < 20000; i++) {
		random = random * 6364136223846793005u + 1442695040888963407u;
		uint32_t k = random >> 33 & 31;
		if (!out[k]) {
			size_t n = (random >> 40) % 9 * 37;
			OK(memory_store_take(s, n, &out[k]));
			assert_int_equal(out[k]->bytes, n);
			memset(out[k]->base, (int)k, n);
			continue;
		}
		for (size_t at = 0; at < out[k]->bytes; at++)
			assert_int_equal(out[k]->base[at], k);
		tensor_memory_unref(out[k]);
		out[k] = NULL;
	}
	memory_store_close(s);
	for (int k = 0; k < 32; k++)
		tensor_memory_unref(out[k]);
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
		cmocka_unit_test(a_memory_that_was_given_back_is_taken_again),
		cmocka_unit_test(memories_of_a_store_come_and_go_in_any_order),
		cmocka_unit_test(a_store_of_many_memories_takes_time_that_grows_with_them),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
