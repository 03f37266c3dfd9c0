/* src/file/safetensors.c, disk.c: what is written is read back; what is malformed is refused by reason. */
#include "support.h"

#include <sys/stat.h>
#include <unistd.h>

#include "file/safetensors.h"

/* A file with this header and this many bytes of data; caller frees. */
static uint8_t *make_file(const char *header, size_t data_n, size_t *n)
{
	size_t header_n = strlen(header);
	uint8_t *file = mem_alloc(8 + header_n + data_n);
	for (int i = 0; i < 8; i++)
		file[i] = (uint8_t)(header_n >> 8 * i);
	memcpy(file + 8, header, header_n);
	*n = 8 + header_n + data_n;
	return file;
}

static clv_status parse(const char *header, size_t data_n)
{
	size_t n;
	st_file *f = NULL;
	uint8_t *file = make_file(header, data_n, &n);
	clv_status st = st_parse(file, n, &f);
	st_free(f);
	mem_free(file);
	return st;
}

static void bad(const char *header, size_t data_n, const char *part)
{
	clv_status st = parse(header, data_n);
	if (st == CLV_OK || !strstr(status_message(), part))
		fail_msg("%s: status %d \"%s\" instead of \"%s\"", header, st, st ? status_message() : "", part);
}

static void a_plain_file_is_read(void **state)
{
	(void)state;
	size_t n, text_n;
	uint8_t *file =
		make_file("{\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[8,11]},\"__metadata__\":{\"k\":\"v\"},"
	              "\"a\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]}}   ",
	              11, &n);
	st_file *f;
	OK(st_parse(file, n, &f));
	assert_int_equal(st_count(f), 2);
	uint32_t a = st_find(f, "a");
	assert_int_equal(a, 0); /* in the order of the data */
	assert_int_equal(st_at(f, a)->dtype, DT_F32);
	assert_int_equal(st_at(f, a)->ndim, 2);
	assert_int_equal(st_at(f, a)->shape[0], 2);
	assert_ptr_equal(st_at(f, 1)->data, file + n - 3);
	assert_int_equal(st_find(f, "c"), NONE);
	assert_string_equal(st_metadata(f, "k", &text_n), "v");
	assert_null(st_metadata(f, "x", &text_n));
	st_free(f);
	mem_free(file);
}

static void headers_that_are_no_headers_are_refused(void **state)
{
	(void)state;
	st_file *f;
	FAILS(st_parse("1234567", 7, &f), CLV_E_PARSE, "truncated: it has 7 bytes, a safetensors file at least 8");
	FAILS(st_parse("\x01\0\0\0\0\0\0\0", 8, &f), CLV_E_PARSE,
	      "truncated: it has 8 bytes, its header alone ends at byte 9");
	FAILS(st_parse("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, &f), CLV_E_PARSE,
	      "this is no safetensors file: a header of 18446744073709551615 bytes is over the limit");
	bad("", 0, "no JSON object");
	bad("[]", 0, "no JSON object");
	bad("{", 0, "no valid JSON");
	bad("{} x", 0, "no valid JSON");
	bad("{\"\xff\":{}}", 0, "no valid JSON");
	bad("{\"a\":{},\"a\":{}}", 0, "duplicate");
	bad("{\"__metadata__\":[]}", 0, "__metadata__ is no object");
	bad("{\"__metadata__\":{\"k\":1}}", 0, "is no string");
}

static void entries_that_do_not_fit_are_refused(void **state)
{
	(void)state;
	bad("{\"a\":[]}", 0, "tensor \"a\": its description is no object");
	bad("{\"a\":{}}", 0, "no dtype");
	bad("{\"a\":{\"dtype\":\"F4\",\"shape\":[],\"data_offsets\":[0,0]}}", 0, "\"F4\" is not supported");
	bad("{\"a\":{\"dtype\":\"U8\"}}", 0, "no shape");
	bad("{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,0]}}", 0, "dimension 0");
	bad("{\"a\":{\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,1]}}", 1, "dimension 0");
	bad("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "data_offsets");
	bad("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, "data_offsets");
	bad("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,-1]}}", 1, "data_offsets");
	bad("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]}}", 1, "bytes 1 to 0 of 1");
	bad("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,2]}}", 1, "bytes 0 to 2 of 1");
	bad("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 1,
	    "the file is truncated: it has 62 bytes and should have 63");
	bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "needs 8 bytes, its data has 4");
	bad("{\"a\":{\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,0]}}", 0, "2^63");
	bad("{\"a\":{\"dtype\":\"U8\",\"shape\":[99999999999999999999],\"data_offsets\":[0,0]}}", 0, "no valid JSON");
}

static void data_is_covered_once_and_whole(void **state)
{
	(void)state;
	bad("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", 2, "after a hole");
	bad("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 2, "end at byte 1");
	bad("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
	    "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
	    3, "inside of the one before");
	bad("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
	    "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]}}",
	    3, "after a hole");
	OK(parse("{\"a\":{\"dtype\":\"U8\",\"shape\":[0,4611686018427387904,8],\"data_offsets\":[1,1]},"
	         "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
	         "\"c\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[1,2]}}",
	         2));
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

static const int64_t three[] = {3}, two_two[] = {2, 2};
static const uint8_t bytes[] = {7, 8, 9};
static const float floats[] = {1, 2, 3, 4};
static const st_entry entries[] = {
	{"bytes", DT_U8, 1, three, bytes, 3},
	{"floats", DT_F32, 2, two_two, floats, 16},
	{"nothing \"\\", DT_I64, 1, (const int64_t[]){0}, NULL, 0},
};
static const st_text texts[] = {{"key", "a \"text\"\n", 9}, {"other", "", 0}};

static void check_entries(const void *data, size_t n)
{
	st_file *f;
	size_t text_n;
	OK(st_parse(data, n, &f));
	assert_int_equal(st_count(f), 3);
	for (int i = 0; i < 3; i++) {
		const st_entry *e = st_at(f, st_find(f, entries[i].name));
		assert_int_equal(e->dtype, entries[i].dtype);
		assert_int_equal(e->nbytes, entries[i].nbytes);
		if (e->nbytes)
			assert_memory_equal(e->data, entries[i].data, e->nbytes);
		size_t at = (size_t)((const uint8_t *)e->data - (const uint8_t *)data);
		assert_int_equal(at % (dtype_bits(e->dtype) / 8), 0);
	}
	assert_string_equal(st_metadata(f, "key", &text_n), "a \"text\"\n");
	st_free(f);
}

static void what_is_written_is_read_back_and_aligned(void **state)
{
	(void)state;
	st_image image;
	strbuf b = STRBUF_INIT;
	OK(st_layout(entries, 3, texts, 2, &image));
	assert_int_equal(image.head_n % 8, 0);
	OK(st_append(&image, &b));
	assert_int_equal(b.n, image.total);
	check_entries(b.at, b.n);
	uint8_t *copy = mem_alloc(image.total);
	st_copy(&image, copy);
	assert_memory_equal(copy, b.at, b.n);
	mem_free(copy);
	strbuf_free(&b);
	st_image_free(&image);
}

static void what_no_file_can_hold_is_not_written(void **state)
{
	(void)state;
	st_image image;
	st_entry e = entries[0];
	e.dtype = DT_QI8;
	FAILS(st_layout(&e, 1, NULL, 0, &image), CLV_E_UNSUPPORTED,
	      "tensor \"bytes\": a safetensors file has no dtype qi8");
	e = entries[0];
	e.nbytes = 2;
	FAILS(st_layout(&e, 1, NULL, 0, &image), CLV_E_INVALID, "needs 3 bytes");
	e = entries[0];
	e.name = "__metadata__";
	FAILS(st_layout(&e, 1, NULL, 0, &image), CLV_E_INVALID, "for itself");
	e.name = "\xff";
	FAILS(st_layout(&e, 1, NULL, 0, &image), CLV_E_INVALID, "name is not valid UTF-8");
	FAILS(st_layout((const st_entry[]){entries[0], entries[0]}, 2, NULL, 0, &image), CLV_E_INVALID, "twice");
	FAILS(st_layout(NULL, 0, &(st_text){"k", "\xff", 1}, 1, &image), CLV_E_INVALID, "UTF-8");
}

static void files_are_written_whole_and_read(void **state)
{
	(void)state;
	char folder[] = "/tmp/cleave-test-XXXXXX", path[64], link_path[64];
	st_image image;
	uint8_t *data;
	size_t n;
	struct stat info;
	assert_non_null(mkdtemp(folder));
	snprintf(path, sizeof path, "%s/file", folder);
	snprintf(link_path, sizeof link_path, "%s/link", folder);
	OK(st_layout(entries, 3, texts, 2, &image));
	FAILS(st_save(&image, folder), CLV_E_IO, "no regular file");
	FAILS(st_save(&image, "/no/such/folder/file"), CLV_E_IO, "cannot write /no/such/folder/file");
	FAILS(file_read(path, &data, &n), CLV_E_IO, "cannot open");
	FAILS(file_read(folder, &data, &n), CLV_E_IO, "no regular file");
	OK(st_save(&image, path));
	assert_int_equal(symlink(path, link_path), 0);
	OK(st_save(&image, link_path)); /* over the file that is there, through the link */
	assert_int_equal(lstat(link_path, &info), 0);
	assert_true(S_ISLNK(info.st_mode));
	OK(file_read(link_path, &data, &n));
	check_entries(data, n);
	mem_free(data);
	st_image_free(&image);
	assert_int_equal(unlink(link_path) | unlink(path) | rmdir(folder), 0); /* and nothing else was left there */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_plain_file_is_read),
		cmocka_unit_test(headers_that_are_no_headers_are_refused),
		cmocka_unit_test(entries_that_do_not_fit_are_refused),
		cmocka_unit_test(data_is_covered_once_and_whole),
		cmocka_unit_test(what_is_written_is_read_back_and_aligned),
		cmocka_unit_test(what_no_file_can_hold_is_not_written),
		cmocka_unit_test(files_are_written_whole_and_read),
	};
	return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
