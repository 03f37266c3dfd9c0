/* src/file/npy.c, arrays.c: .npy and safetensors files as plain tensors; what is malformed is refused by reason. */
#include "support.h"

#include <unistd.h>

#include "file/npy.h"

/* A .npy file of a version with this header and data; caller frees. */
static uint8_t *make_npy(unsigned version, const char *header, const void *data, size_t data_n, size_t *n)
{
	size_t header_n = strlen(header), wide = version == 1 ? 2 : 4;
	uint8_t *file = mem_alloc(8 + wide + header_n + data_n + 1);
	memcpy(file, "\x93NUMPY", 6);
	file[6] = (uint8_t)version;
	for (size_t i = 0; i < wide; i++)
		file[8 + i] = (uint8_t)(header_n >> 8 * i);
	memcpy(file + 8 + wide, header, header_n);
	if (data_n)
		memcpy(file + 8 + wide + header_n, data, data_n);
	*n = 8 + wide + header_n + data_n;
	return file;
}

static clv_status parse(unsigned version, const char *header, const void *data, size_t data_n)
{
	size_t n;
	clv_arrays *a = NULL;
	uint8_t *file = make_npy(version, header, data, data_n, &n);
	clv_status st = arrays_parse(file, n, &a);
	clv_arrays_free(a);
	mem_free(file);
	return st;
}

static void bad(const char *header, size_t data_n, clv_status want, const char *part)
{
	static const uint8_t zeros[256];
	clv_status st = parse(1, header, zeros, data_n);
	if (st != want || !strstr(status_message(), part))
		fail_msg("%s: status %d \"%s\" instead of \"%s\"", header, st, st ? status_message() : "", part);
}

static void all_versions_are_read(void **state)
{
	(void)state;
	const float data[] = {1, 2, 3, 4, 5, 6};
	for (unsigned version = 1; version <= 3; version++) {
		size_t n;
		clv_arrays *a;
		clv_array x = {.size = sizeof x};
		uint8_t *file = make_npy(version, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }   \n", data,
		                         sizeof data, &n);
		OK(arrays_parse(file, n, &a));
		assert_int_equal(clv_arrays_count(a), 1);
		OK(clv_arrays_get(a, 0, &x));
		assert_string_equal(x.name, "");
		assert_string_equal(x.dtype, "f32");
		assert_int_equal(x.ndim, 2);
		assert_int_equal(x.shape[1], 3);
		assert_int_equal(x.bytes, sizeof data);
		assert_memory_equal(x.data, data, sizeof data);
		clv_arrays_free(a);
		mem_free(file);
	}
}

static void columns_become_rows(void **state)
{
	(void)state;
	const int16_t columns[] = {0, 10, 1, 11, 2, 12}, rows[] = {0, 1, 2, 10, 11, 12};
	size_t n;
	clv_arrays *a;
	clv_array x = {.size = sizeof x};
	uint8_t *file =
		make_npy(1, "{'fortran_order': True, 'shape': (2, 3), 'descr': '<i2'}", columns, sizeof columns, &n);
	OK(arrays_parse(file, n, &a));
	OK(clv_arrays_get(a, 0, &x));
	assert_memory_equal(x.data, rows, sizeof rows);
	clv_arrays_free(a);
	mem_free(file);
}

static void shapes_of_all_kinds(void **state)
{
	(void)state;
	const double one[2] = {1, 2};
	OK(parse(1, "{'descr': '<f8', 'fortran_order': False, 'shape': ()}", one, 8));
	OK(parse(1, "{'descr': '<f8', 'fortran_order': False, 'shape': (2,)}", one, 16));
	OK(parse(1, "{'descr': '<f8', 'fortran_order': True, 'shape': (0, 4)}", NULL, 0));
	OK(parse(1, "{\"descr\": \"|b1\", \"fortran_order\": False, \"shape\": (1,)}", "\1", 1));
	OK(parse(1, "{'descr': '<c16', 'fortran_order': False, 'shape': (1,)}", one, 16));
}

static void malformed_files_are_refused(void **state)
{
	(void)state;
#define REST ", 'fortran_order': False, 'shape': (2,)}"
	bad("{'descr': '>f4'" REST, 8, CLV_E_UNSUPPORTED, "big-endian");
	bad("{'descr': '|O'" REST, 8, CLV_E_UNSUPPORTED, "Python objects");
	bad("{'descr': [('a', '<f4')]" REST, 8, CLV_E_UNSUPPORTED, "records");
	bad("{'descr': '<U4'" REST, 8, CLV_E_UNSUPPORTED, "<U4");
	bad("{'descr': '<f4'" REST, 7, CLV_E_PARSE, "needs 8 bytes, its data has 7");
	bad("{'descr': '<f4'" REST, 9, CLV_E_PARSE, "its data has 9");
	bad("{'descr': '<f4'" REST " x", 8, CLV_E_PARSE, "goes on after the dict");
	bad("{'descr': '<f4', 'shape': (2,)}", 8, CLV_E_PARSE, "lacks one of");
	bad("{'descr': '<f4', 'descr': '<f4'" REST, 8, CLV_E_PARSE, "twice");
	bad("{'descr': '<f4', 'more': 1" REST, 8, CLV_E_PARSE, "\"more\"");
	bad("{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}", 8, CLV_E_PARSE, "neither True nor False");
	bad("{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}", 8, CLV_E_PARSE, "no size");
	bad("{'descr': '<f4', 'fortran_order': False, 'shape': 2}", 8, CLV_E_PARSE, "no tuple");
	bad("{'descr': '<f4', 'fortran_order': False, 'shape': (2", 8, CLV_E_PARSE, "does not end");
	bad("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", 8, CLV_E_PARSE, "no size");
	bad("{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999, 9999999999)}", 8, CLV_E_OVERFLOW, "2^63");
	bad("{'descr': 'a text that is far too long'" REST, 8, CLV_E_PARSE, "no short text");
	bad("", 0, CLV_E_PARSE, "no dict");
#undef REST
	assert_int_equal(parse(4, "{}", NULL, 0), CLV_E_UNSUPPORTED);
	assert_int_equal(parse(1, "{'descr': '|b1', 'fortran_order': False, 'shape': (2,)}", "\0\2", 2), CLV_E_PARSE);
	assert_non_null(strstr(status_message(), "element 1 is 2"));
}

static void every_beginning_of_a_file_is_refused(void **state)
{
	(void)state;
	size_t n;
	uint8_t *file = make_npy(2, "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", "12345678", 8, &n);
	for (size_t k = 0; k < n; k++) {
		clv_arrays *a = NULL;
		uint8_t *part = mem_alloc(k + 1); /* exactly: a read past the end is seen */
		memcpy(part, file, k);
		assert_int_not_equal(arrays_parse(part, k, &a), CLV_OK);
		mem_free(part);
	}
	mem_free(file);
}

static void what_is_saved_is_loaded(void **state)
{
	(void)state;
	char path[] = "/tmp/test_arrays_XXXXXX";
	int fd = mkstemp(path);
	const float f[] = {1, 2};
	const int64_t i[] = {3}, shape[] = {2}, one[] = {1};
	const clv_array given[] = {{sizeof *given, "a", "f32", 1, shape, f, sizeof f},
	                           {sizeof *given, "b", "i64", 1, one, i, sizeof i},
	                           {sizeof *given, "c", "bool", 0, NULL, "\1", 1}};
	clv_arrays *a;
	clv_array x = {.size = sizeof x};
	close(fd);
	OK(clv_arrays_save(given, 3, path));
	OK(clv_arrays_load(path, &a));
	assert_int_equal(clv_arrays_count(a), 3);
	assert_int_equal(clv_arrays_find(a, "d"), CLV_NONE);
	OK(clv_arrays_get(a, clv_arrays_find(a, "b"), &x));
	assert_string_equal(x.dtype, "i64");
	assert_memory_equal(x.data, i, sizeof i);
	OK(clv_arrays_get(a, clv_arrays_find(a, "c"), &x));
	assert_int_equal(x.ndim, 0);
	clv_arrays_free(a);
	unlink(path);
}

static void what_cannot_be_saved_is_refused(void **state)
{
	(void)state;
	const int64_t shape[] = {2};
	const clv_array twice[] = {{sizeof *twice, "a", "u8", 1, shape, "ab", 2},
	                           {sizeof *twice, "a", "u8", 1, shape, "ab", 2}};
	const clv_array odd = {sizeof odd, "a", "f33", 1, shape, "ab", 2};
	const clv_array few = {sizeof few, "a", "f32", 1, shape, "ab", 2};
	assert_int_equal(clv_arrays_save(twice, 2, "/nowhere/x"), CLV_E_INVALID);
	assert_int_equal(clv_arrays_save(&odd, 1, "/nowhere/x"), CLV_E_INVALID);
	assert_int_equal(clv_arrays_save(&few, 1, "/nowhere/x"), CLV_E_INVALID);
	assert_int_equal(clv_arrays_save(twice, 1, "/nowhere/x"), CLV_E_IO);
	assert_int_equal(clv_arrays_load("/nowhere/x", &(clv_arrays *){NULL}), CLV_E_IO);
	assert_int_equal(clv_arrays_count(NULL), 0);
}

/* Each allocation fails once; run it under the leak sanitizer. */
static void running_out_of_memory_leaves_nothing_behind(void **state)
{
	(void)state;
	size_t n;
	clv_status st = CLV_E_NOMEM;
	uint8_t *file = make_npy(1, "{'descr': '|u1', 'fortran_order': True, 'shape': (2, 2)}", "1234", 4, &n);
	for (uint64_t at = 1; st == CLV_E_NOMEM; at++) {
		clv_arrays *a = NULL;
		mem_fail_after(at);
		st = arrays_parse(file, n, &a);
		mem_fail_after(0);
		clv_arrays_free(a);
	}
	assert_int_equal(st, CLV_OK);
	mem_free(file);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_versions_are_read),
		cmocka_unit_test(columns_become_rows),
		cmocka_unit_test(shapes_of_all_kinds),
		cmocka_unit_test(malformed_files_are_refused),
		cmocka_unit_test(every_beginning_of_a_file_is_refused),
		cmocka_unit_test(what_is_saved_is_loaded),
		cmocka_unit_test(what_cannot_be_saved_is_refused),
		cmocka_unit_test(running_out_of_memory_leaves_nothing_behind),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
