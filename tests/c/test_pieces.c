/* src/segment/pieces.c: members without the tensors that the file has anyway, and the whole again. */
#include "artifacts.h"

#include "segment/compile.h"

enum { WIDTH = 256 };
static float first[WIDTH], second[WIDTH], zeros[WIDTH];

static int set_numbers(void **state)
{
	(void)state;
	for (int i = 0; i < WIDTH; i++) {
		first[i] = (float)i * 0.5f;
		second[i] = 1.0f / (float)(i + 3);
	}
	return 0;
}

static artifact *with_weights(void)
{
	static const int64_t sizes[] = {WIDTH}, strides[] = {1};
	artifact *a;
	OK(artifact_new("all", &a));
	const float *data[] = {first, second, zeros};
	static const char *const labels[] = {"a.weight", "b.weight", "c.zeros"};
	for (uint32_t i = 0; i < 3; i++) {
		payload_tensor t = {.label = labels[i],
		                    .dtype = DT_F32,
		                    .device = "cpu",
		                    .ndim = 1,
		                    .sizes = sizes,
		                    .strides = strides,
		                    .data = data[i]};
		uint32_t at;
		OK(payload_add_tensor(a->tensors, &t, &at));
	}
	return a;
}

typedef struct blob {
	uint8_t at[8192];
	size_t n;
} blob;

static void put(blob *b, const void *data, size_t n)
{
	memcpy(b->at + b->n, data, n);
	b->n += n;
}

static void put_word(blob *b, const char *s)
{
	put(b, s, strlen(s));
}

static artifact_segment segment_of(const blob *b)
{
	artifact_segment s = {0};
	OK(vec_push(&s.members, ((artifact_member){"model.bin", b->at, b->n})));
	return s;
}

static const uint32_t all_tensors[] = {0, 1, 2};

/* Split and put together again; how many bytes are left beside the pieces. */
static size_t round_trip(const blob *b, uint32_t members)
{
	artifact *a = with_weights();
	artifact_segment s = segment_of(b);
	compiled c = {0};
	OK(pieces_split(a, all_tensors, 3, &s));
	assert_int_equal(s.members.n, members);
	size_t left = s.members.at[0].n;
	OK(pieces_join(a, &s, &c));
	assert_int_equal(c.members.n, 1);
	assert_string_equal(c.members.at[0].name, "model.bin");
	assert_int_equal(c.members.at[0].n, b->n);
	assert_memory_equal(c.members.at[0].data, b->at, b->n);
	compiled_free(&c);
	vec_free(&s.members);
	artifact_free(a);
	return left;
}

static void test_tensors_in_a_member_are_not_stored_again(void **state)
{
	(void)state;
	blob b = {.n = 0};
	put_word(&b, "head");
	put(&b, second, sizeof second);
	put_word(&b, "x"); /* the next one is not aligned */
	put(&b, first, sizeof first);
	put_word(&b, "tail");
	assert_int_equal(round_trip(&b, 2), 9);
}

static void test_what_has_none_stays_as_it_is(void **state)
{
	(void)state;
	blob b = {.n = 0};
	put_word(&b, "no weights, and short");
	assert_int_equal(round_trip(&b, 1), b.n);
	b.n = 0;
	put(&b, first, sizeof first - 4); /* most of one */
	assert_int_equal(round_trip(&b, 1), b.n);
	b.n = 0;
	assert_int_equal(round_trip(&b, 1), 0);
}

static void test_a_tensor_is_taken_once(void **state)
{
	(void)state;
	blob b = {.n = 0};
	put(&b, first, sizeof first);
	put(&b, first, sizeof first);
	put(&b, zeros, sizeof zeros);
	put(&b, zeros, 100);
	assert_int_equal(round_trip(&b, 2), sizeof first + 100);
}

static clv_status join_with(const char *text, const char *rest)
{
	artifact *a = with_weights();
	artifact_segment s = {0};
	compiled c = {0};
	OK(vec_push(&s.members, ((artifact_member){"m.rest", rest, strlen(rest)})));
	OK(vec_push(&s.members, ((artifact_member){"m.pieces", text, strlen(text)})));
	clv_status st = pieces_join(a, &s, &c);
	compiled_free(&c);
	vec_free(&s.members);
	artifact_free(a);
	return st;
}

static void test_hostile_pieces_are_refused(void **state)
{
	(void)state;
	static const char *const texts[] = {
		"",
		"[]",
		"{\"pieces\": [], \"digest\": \"0\"}",
		"{\"pieces\": [[null, 5]], \"digest\": \"0\"}",
		"{\"pieces\": [[null, -1]], \"digest\": \"0\"}",
		"{\"pieces\": [[null, 9223372036854775807]], \"digest\": \"0\"}",
		"{\"pieces\": [[\"no.such\", 1024]], \"digest\": \"0\"}",
		"{\"pieces\": [[\"a.weight\", 1020]], \"digest\": \"0\"}",
		"{\"pieces\": [[\"a.weight\", 1024]], \"digest\": \"0\"}",
		"{\"pieces\": [[\"a.weight\"]], \"digest\": \"0\"}",
		"{\"pieces\": [7], \"digest\": \"0\"}",
		"{\"pieces\": {}, \"digest\": \"0\"}",
		"{\"pieces\": [[null, 4]]}",
		"{\"pieces\": [[\"a.weight\", 1024], [\"a.weight\", 1024], [\"a.weight\", 1024], [\"a.weight\", 1024]], "
		"\"digest\": \"0\"}",
	};
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		assert_int_not_equal(join_with(texts[i], "four"), CLV_OK);
}

static void test_tensors_that_were_written_since_are_noticed(void **state)
{
	(void)state;
	artifact *a = with_weights();
	blob b = {.n = 0};
	compiled c = {0};
	put(&b, first, sizeof first);
	artifact_segment s = segment_of(&b);
	OK(pieces_split(a, all_tensors, 3, &s));
	first[3] = 42;
	assert_int_equal(pieces_join(a, &s, &c), CLV_E_UNSUPPORTED);
	compiled_free(&c);
	vec_free(&s.members);
	artifact_free(a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_tensors_in_a_member_are_not_stored_again, set_numbers),
		cmocka_unit_test_setup(test_what_has_none_stays_as_it_is, set_numbers),
		cmocka_unit_test_setup(test_a_tensor_is_taken_once, set_numbers),
		cmocka_unit_test_setup(test_hostile_pieces_are_refused, set_numbers),
		cmocka_unit_test_setup(test_tensors_that_were_written_since_are_noticed, set_numbers),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
