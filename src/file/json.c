/* Reads and builds JSON with jansson, with our errors. */
#include "file/json.h"

#include <string.h>

/* jansson (2.14) does not notice when it cannot grow the buffer of a string, and then writes past its end. There must be
   room for the longest string that the text could hold, twice over for growing, and for the copy of it. */
static bool room_for_strings(size_t n)
{
	void *room = mem_realloc(NULL, n, 4);
	mem_free(room);
	return room != NULL;
}

static bool has_word(const char *text, size_t n, size_t at, const char *word)
{
	size_t m = strlen(word);
	return at <= n && n - at >= m && memcmp(text + at, word, m) == 0;
}

/* Python writes NaN, Infinity and -Infinity, which are not JSON. The reader has stopped behind such a word, or its sign. */
static bool is_not_finite(const char *text, size_t n, const json_error_t *error)
{
	size_t at = error->position > 0 ? (size_t)error->position : 0;
	return json_error_code(error) == json_error_numeric_overflow || (at >= 3 && has_word(text, n, at - 3, "NaN")) ||
	       (at >= 8 && has_word(text, n, at - 8, "Infinity")) ||
	       (at >= 1 && text[at - 1] == '-' && has_word(text, n, at, "Infinity"));
}

/* What jansson makes of a text takes a hundred times its length if it is nothing but empty objects. Lists of pairs of digits, the
   densest that anybody means, take 40 times theirs. */
enum { OBJECT_BYTES = 256, ARRAY_BYTES = 128, MEMBER_BYTES = 56, MOST_PER_BYTE = 48, FREE_BYTES = 1 << 20 };
static const size_t MOST_BYTES = (size_t)1 << 30;

size_t json_memory(const char *text, size_t n)
{
	size_t bytes = 0;
	bool in_string = false;
	for (size_t i = 0; i < n; i++) {
		char c = text[i];
		if (in_string && c == '\\')
			i++;
		else if (c == '"')
			in_string = !in_string;
		else if (!in_string)
			bytes += c == '{' ? OBJECT_BYTES : c == '[' ? ARRAY_BYTES : c == ',' || c == ':' ? MEMBER_BYTES : 0;
	}
	return bytes;
}

size_t json_memory_most(size_t n)
{
	return n < MOST_BYTES / MOST_PER_BYTE ? MOST_PER_BYTE * n : MOST_BYTES;
}

clv_status json_read(const char *text, size_t n, const char *what, json_t **out)
{
	json_error_t error = {0};
	size_t memory = json_memory(text, n);
	if (memory > FREE_BYTES && memory > json_memory_most(n))
		return fail(CLV_E_PARSE, "%s has more objects, lists and members than its length allows", what);
	if (!room_for_strings(n))
		return fail_nomem();
	json_t *read = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
	if (!read && json_error_code(&error) == json_error_out_of_memory)
		return fail_nomem();
	if (!read)
		return fail(CLV_E_PARSE, "%s%s is no valid JSON: %s (byte %d)",
		            is_not_finite(text, n, &error) ? "a number is not finite; all must be: " : "", what, error.text,
		            error.position);
	*out = read;
	return CLV_OK;
}

/* Measured, then written: jansson's own growing buffer leaves out what it has no memory for. */
clv_status json_print(const json_t *root, size_t align, strbuf *out)
{
	size_t n = json_dumpb(root, NULL, 0, JSON_COMPACT), padded = align ? (n + align - 1) / align * align : n;
	char *text = n ? mem_realloc(NULL, padded, 1) : NULL;
	TRY_MEM(text);
	memset(text, ' ', padded);
	bool whole = json_dumpb(root, text, n, JSON_COMPACT) == n;
	strbuf_add(out, text, padded);
	mem_free(text);
	return whole && !out->failed ? CLV_OK : fail_nomem();
}

clv_status json_put(json_t *object, const char *key, json_t *value)
{
	if (!object || !value) {
		json_decref(value);
		return fail_nomem();
	}
	return json_object_set_new(object, key, value) == 0 ? CLV_OK : fail_nomem();
}

clv_status json_push(json_t *array, json_t *value)
{
	if (!array || !value) {
		json_decref(value);
		return fail_nomem();
	}
	return json_array_append_new(array, value) == 0 ? CLV_OK : fail_nomem();
}

clv_status json_text(const char *s, size_t n, json_t **out)
{
	if (!utf8_valid(s, n))
		return fail(CLV_E_INVALID, "a text is not valid UTF-8");
	*out = json_stringn_nocheck(s, n);
	return *out ? CLV_OK : fail_nomem();
}

clv_status json_put_text(json_t *object, const char *key, const char *s, size_t n)
{
	json_t *text;
	TRY(json_text(s, n, &text));
	return json_put(object, key, text);
}

clv_status json_put_string(json_t *object, const char *key, const char *s)
{
	return json_put_text(object, key, s, strlen(s));
}

clv_status json_write(json_put_fn put, const void *ctx, strbuf *out)
{
	json_t *root = json_object();
	TRY_MEM(root);
	clv_status st = put(ctx, root);
	if (st == CLV_OK)
		st = json_print(root, 0, out);
	json_decref(root);
	return st;
}

clv_status json_put_list(json_t *object, const char *key, json_t **out)
{
	*out = json_array();
	return json_put(object, key, *out);
}

clv_status json_put_object(json_t *object, const char *key, json_t **out)
{
	*out = json_object();
	return json_put(object, key, *out);
}

clv_status json_push_object(json_t *array, json_t **out)
{
	*out = json_object();
	return json_push(array, *out);
}

clv_status json_push_string(json_t *array, const char *s)
{
	json_t *text;
	TRY(json_text(s, strlen(s), &text));
	return json_push(array, text);
}

clv_status json_put_ids(json_t *object, const char *key, const uint32_t *at, uint32_t n)
{
	json_t *list;
	TRY(json_put_list(object, key, &list));
	for (uint32_t i = 0; i < n; i++)
		TRY(json_push(list, json_integer(at[i])));
	return CLV_OK;
}

const char *json_plain_string(const json_t *text)
{
	const char *s = json_string_value(text);
	return s && strlen(s) == json_string_length(text) ? s : NULL;
}

bool json_id(const json_t *number, uint32_t *out)
{
	json_int_t n = json_integer_value(number);
	*out = (uint32_t)n;
	return json_is_integer(number) && n >= 0 && n < UINT32_MAX;
}

static clv_status no_member(const char *key, const char *type)
{
	return fail(CLV_E_PARSE, "\"%s\" is missing or is not %s", key, type);
}

clv_status json_get_array(const json_t *object, const char *key, const json_t **out)
{
	*out = json_object_get(object, key);
	return json_is_array(*out) ? CLV_OK : no_member(key, "an array");
}

clv_status json_get_object(const json_t *object, const char *key, json_t **out)
{
	*out = json_object_get(object, key);
	return json_is_object(*out) ? CLV_OK : no_member(key, "an object");
}

clv_status json_get_string(const json_t *object, const char *key, const char **out)
{
	*out = json_plain_string(json_object_get(object, key));
	return *out ? CLV_OK : no_member(key, "a plain string");
}

clv_status json_get_int(const json_t *object, const char *key, int64_t *out)
{
	const json_t *i = json_object_get(object, key);
	if (!json_is_integer(i))
		return no_member(key, "an integer");
	*out = json_integer_value(i);
	return CLV_OK;
}

clv_status json_get_bool(const json_t *object, const char *key, bool *out)
{
	const json_t *b = json_object_get(object, key);
	if (!json_is_boolean(b))
		return no_member(key, "true or false");
	*out = json_is_true(b);
	return CLV_OK;
}
