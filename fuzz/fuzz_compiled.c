/* Fuzz target: any bytes as the file of a compiled segment. They must be refused with a message, or be one whose members can
 * be read, and that is the same when it is written and read again.
 *
 * The description has a check of itself, which no mutation would get past. Bytes that start with 'M' are a description
 * instead: they are signed and get a file with two members around them; "@" in it is the digest of either. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "segment/compile.h"
#include "must.h"

static bool parse(const void *data, size_t n, compiled *out)
{
	uint8_t *copy = mem_realloc(NULL, n, 1); /* exactly: a read past the end is seen */
	MUST(copy);
	if (n)
		memcpy(copy, data, n);
	bool good = compiled_parse(copy, n, "", out) == CLV_OK;
	MUST(good || status_message()[0] != '\0');
	return good;
}

static void check_same(const compiled *a, const compiled *b)
{
	MUST(a->members.n == b->members.n && a->needs.n == b->needs.n && a->notes.n == b->notes.n);
	for (uint32_t i = 0; i < a->members.n; i++) {
		const compiled_member *m = &a->members.at[i], *same = compiled_find(b, m->name);
		MUST(plain_file_name(m->name) && same && same->n == m->n && memcmp(same->data, m->data, m->n) == 0);
	}
	for (uint32_t i = 0; i < a->needs.n; i++)
		MUST(strcmp(compiled_need_of(b, a->needs.at[i].key), a->needs.at[i].text) == 0);
}

static void look(const void *data, size_t n)
{
	char path[64];
	compiled a, b;
	if (!parse(data, n, &a))
		return;
	snprintf(path, sizeof path, "%s/cleave-fuzz-%ld.compiled", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp",
	         (long)getpid());
	MUST(compiled_save(&a, path) == CLV_OK);
	MUST(compiled_load(path, &b) == CLV_OK);
	unlink(path);
	check_same(&a, &b);
	compiled_free(&a);
	compiled_free(&b);
}

static void look_at_description(const char *s, size_t n)
{
	static const int64_t size[] = {2};
	static const st_entry entries[] = {{"a", DT_U8, 1, size, "ab", 2}, {"b.so", DT_U8, 1, size, "ab", 2}};
	char of_data[DIGEST_TEXT], sum[DIGEST_TEXT];
	strbuf text = STRBUF_INIT, file = STRBUF_INIT;
	st_image image;
	digest_print(digest_of("ab", 2), of_data);
	for (size_t i = 0; i < n; i++)
		s[i] == '@' ? strbuf_puts(&text, of_data) : strbuf_putc(&text, s[i]);
	MUST(!text.failed);
	digest_print(digest_of(text.at, text.n), sum);
	st_text texts[] = {{"cleave.compiled", text.n ? text.at : "", text.n}, {"cleave.compiled.check", sum, strlen(sum)}};
	if (st_layout(entries, 2, texts, 2, &image) == CLV_OK) { /* or it is no UTF-8 */
		MUST(st_append(&image, &file) == CLV_OK);
		look(file.at, file.n);
		st_image_free(&image);
	}
	strbuf_free(&text);
	strbuf_free(&file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size && data[0] == 'M')
		look_at_description((const char *)data + 1, size - 1);
	else
		look(data, size);
	return 0;
}
