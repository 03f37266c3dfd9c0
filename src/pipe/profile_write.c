/* Profiles as files: {"format","version","key":{…},"whole":{…},"blocks":[{"name","module","end","forward_time",…}]}. */
#include <string.h>

#include "file/json.h"
#include "file/safetensors.h"
#include "pipe/profile_keys.h"

#define NUMBER(key, field)                                                                                             \
	{                                                                                                                  \
		key, offsetof(block_profile, field)                                                                            \
	}
const profile_number profile_numbers[PROFILE_NUMBER_COUNT] = {
	NUMBER("forward_time", forward.median),
	NUMBER("forward_low", forward.low),
	NUMBER("forward_high", forward.high),
	NUMBER("forward_least", forward.least),
	NUMBER("forward_most", forward.most),
	NUMBER("backward_time", backward.median),
	NUMBER("backward_low", backward.low),
	NUMBER("backward_high", backward.high),
	NUMBER("backward_least", backward.least),
	NUMBER("backward_most", backward.most),
	NUMBER("cuda_memory_forward", forward_memory),
	NUMBER("cuda_memory_backward", backward_memory),
	NUMBER("held", held),
	NUMBER("size", size),
	NUMBER("input_size", input_size),
	NUMBER("output_size", output_size),
};

static clv_status put_numbers(json_t *object, const block_profile *at)
{
	for (size_t i = 0; i < PROFILE_NUMBER_COUNT; i++) {
		double x;
		memcpy(&x, (const char *)at + profile_numbers[i].at, sizeof x);
		TRY(json_put(object, profile_numbers[i].key, json_real(x)));
	}
	return CLV_OK;
}

static clv_status fill_row(json_t *object, const profile_row *r)
{
	TRY(json_put_string(object, "name", r->name));
	TRY(json_put_string(object, "module", r->module));
	TRY(json_put(object, "end", json_integer(r->end)));
	return put_numbers(object, &r->at);
}

static clv_status fill_profile(const void *ctx, json_t *root)
{
	const profile *f = ctx;
	json_t *key, *whole, *rows, *row;
	TRY(json_put_string(root, "format", PROFILE_FORMAT));
	TRY(json_put(root, "version", json_integer(PROFILE_VERSION)));
	TRY(json_put_object(root, "key", &key));
	for (uint32_t i = 0; i < f->key.n; i++) {
		if (!utf8_valid(f->key.at[i].name, strlen(f->key.at[i].name)))
			return fail(CLV_E_INVALID, "a text is not valid UTF-8");
		TRY(json_put_string(key, f->key.at[i].name, f->key.at[i].text));
	}
	if (f->has_whole) {
		TRY(json_put_object(root, "whole", &whole));
		TRY(put_numbers(whole, &f->whole));
	}
	TRY(json_put_list(root, "blocks", &rows));
	for (uint32_t i = 0; i < f->rows.n; i++) {
		TRY(json_push_object(rows, &row));
		TRY(fill_row(row, &f->rows.at[i]));
	}
	return CLV_OK;
}

clv_status profile_print(const profile *f, strbuf *b)
{
	return json_write(fill_profile, f, b);
}

clv_status profile_write(const profile *f, const char *path)
{
	strbuf b = STRBUF_INIT;
	clv_status st = profile_print(f, &b);
	strbuf_putc(&b, '\n');
	if (st == CLV_OK && b.failed)
		st = fail_nomem();
	if (st == CLV_OK)
		st = st_save(&(st_image){.head = b.at, .head_n = b.n, .total = b.n}, path);
	strbuf_free(&b);
	return st;
}
