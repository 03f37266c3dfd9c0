/* A compiled segment and its file.
 *
 * The file is a safetensors file with a tensor of bytes per member. Its metadata has a description with the needs, the
 * cache key and a digest per member, and a digest of the description. */
#include <string.h>

#include "file/json.h"
#include "segment/compile.h"

#define COMPILED_KEY "cleave.compiled"
#define COMPILED_CHECK "cleave.compiled.check"
enum { COMPILED_VERSION = 1 };

void compiled_free(compiled *c)
{
	for (uint32_t i = 0; i < c->owned.n; i++)
		mem_free(c->owned.at[i]);
	vec_free(&c->owned);
	vec_free(&c->members);
	vec_free(&c->needs);
	vec_free(&c->notes);
	arena_free(&c->arena);
	*c = (compiled){0};
}

static clv_status own_data(compiled *c, void *data)
{
	clv_status st = data ? vec_push(&c->owned, data) : fail_nomem();
	if (st != CLV_OK)
		mem_free(data);
	return st;
}

/* Of data that is owned already. */
static clv_status add_compiled_member(compiled *c, const char *name, const void *data, size_t n)
{
	compiled_member m = {.data = data, .n = n};
	if (!plain_file_name(name) || strcmp(name, "__metadata__") == 0)
		return fail(CLV_E_INVALID, "\"%.64s\" is no plain name for a file", plain_file_name(name) ? name : "?");
	if (compiled_find(c, name))
		return fail(CLV_E_INVALID, "there are two files with the name \"%s\"", name);
	TRY(arena_keep(&c->arena, name, &m.name));
	return vec_push(&c->members, m);
}

clv_status compiled_add(compiled *c, const char *name, void *data, size_t n)
{
	TRY(own_data(c, data));
	return add_compiled_member(c, name, data, n);
}

static clv_status add_note(compiled *c, const char *key, const char *text, artifact_note *out)
{
	TRY(arena_keep(&c->arena, key, &out->key));
	return arena_keep(&c->arena, text, &out->text);
}

static bool is_owned(const compiled *c, const void *data)
{
	for (uint32_t i = 0; i < c->owned.n; i++)
		if (c->owned.at[i] == data)
			return true;
	return false;
}

clv_status compiled_own(compiled *c)
{
	for (uint32_t i = 0; i < c->members.n; i++) {
		compiled_member *m = &c->members.at[i];
		if (is_owned(c, m->data))
			continue;
		void *copy = mem_realloc(NULL, m->n + 1, 1);
		TRY(own_data(c, copy));
		memcpy(copy, m->data, m->n);
		m->data = copy;
	}
	return CLV_OK;
}

clv_status compiled_need(compiled *c, const char *key, const char *text)
{
	artifact_note n;
	TRY(add_note(c, key, text, &n));
	return vec_push(&c->needs, n);
}

clv_status compiled_note(compiled *c, const char *key, const char *text)
{
	artifact_note n;
	TRY(add_note(c, key, text, &n));
	return vec_push(&c->notes, n);
}

const char *compiled_need_of(const compiled *c, const char *key)
{
	for (uint32_t i = 0; i < c->needs.n; i++)
		if (strcmp(c->needs.at[i].key, key) == 0)
			return c->needs.at[i].text;
	return NULL;
}

const compiled_member *compiled_find(const compiled *c, const char *name)
{
	for (uint32_t i = 0; i < c->members.n; i++)
		if (strcmp(c->members.at[i].name, name) == 0)
			return &c->members.at[i];
	return NULL;
}

/* ---- writing ------------------------------------------------------------------------------------------------------ */

static clv_status put_compiled_notes(json_t *root, const char *key, const artifact_note *notes, uint32_t n)
{
	json_t *object = json_object();
	TRY(json_put(root, key, object));
	for (uint32_t i = 0; i < n; i++) {
		if (!utf8_valid(notes[i].key, strlen(notes[i].key)))
			return fail(CLV_E_INVALID, "a key of \"%s\" is not valid UTF-8", key);
		TRY(json_put_string(object, notes[i].key, notes[i].text));
	}
	return CLV_OK;
}

static clv_status put_digests(json_t *root, const compiled *c)
{
	char text[DIGEST_TEXT];
	json_t *object = json_object();
	TRY(json_put(root, "digests", object));
	for (uint32_t i = 0; i < c->members.n; i++) {
		digest_print(digest_of(c->members.at[i].data, c->members.at[i].n), text);
		TRY(json_put_string(object, c->members.at[i].name, text));
	}
	return CLV_OK;
}

static clv_status describe_compiled(const compiled *c, const char *key, json_t *root)
{
	TRY(json_put(root, "version", json_integer(COMPILED_VERSION)));
	TRY(json_put_string(root, "key", key));
	TRY(put_compiled_notes(root, "needs", c->needs.at, c->needs.n));
	TRY(put_compiled_notes(root, "notes", c->notes.at, c->notes.n));
	return put_digests(root, c);
}

static clv_status description(const compiled *c, const char *key, strbuf *out)
{
	json_t *root = json_object();
	TRY_MEM(root);
	clv_status st = describe_compiled(c, key, root);
	if (st == CLV_OK)
		st = json_print(root, 0, out);
	json_decref(root);
	return st;
}

static clv_status write_entries(const compiled *c, const strbuf *text, st_entry *entries, int64_t *sizes,
                                const char *path, st_pending *out)
{
	char sum[DIGEST_TEXT];
	st_image image;
	for (uint32_t i = 0; i < c->members.n; i++) {
		const compiled_member *m = &c->members.at[i];
		sizes[i] = (int64_t)m->n;
		entries[i] = (st_entry){m->name, DT_U8, 1, &sizes[i], m->data, m->n};
	}
	digest_print(digest_of(text->at, text->n), sum);
	st_text texts[] = {{COMPILED_KEY, text->at, text->n}, {COMPILED_CHECK, sum, DIGEST_TEXT - 1}};
	TRY(st_layout_mapped(entries, c->members.n, texts, 2, &image));
	clv_status st = st_write(&image, path, out);
	st_image_free(&image);
	return st;
}

clv_status compiled_write(const compiled *c, const char *key, const char *path, st_pending *out)
{
	strbuf text = STRBUF_INIT;
	clv_status st = description(c, key, &text);
	st_entry *entries = mem_alloc((size_t)c->members.n * sizeof *entries);
	int64_t *sizes = mem_alloc((size_t)c->members.n * sizeof *sizes);
	if (st == CLV_OK)
		st = entries && sizes ? write_entries(c, &text, entries, sizes, path, out) : fail_nomem();
	mem_free(entries);
	mem_free(sizes);
	strbuf_free(&text);
	return st;
}

clv_status compiled_save(const compiled *c, const char *path)
{
	st_pending f;
	TRY(compiled_write(c, "", path, &f));
	return st_commit(&f);
}

/* ---- reading ------------------------------------------------------------------------------------------------------ */

static clv_status read_compiled_notes(compiled *c, const json_t *root, const char *key,
                                      clv_status (*add)(compiled *, const char *, const char *))
{
	const json_t *object = json_object_get(root, key);
	const char *name;
	json_t *text;
	if (!json_is_object(object))
		return fail(CLV_E_PARSE, "\"%s\" is missing or is not an object", key);
	json_object_foreach((json_t *)object, name, text)
	{
		const char *s;
		TRY(json_get_string(object, name, &s));
		TRY(add(c, name, s));
	}
	return CLV_OK;
}

static clv_status read_compiled_member(compiled *c, const st_entry *e, const json_t *digests)
{
	char text[DIGEST_TEXT];
	const char *want;
	TRY(json_get_string(digests, e->name, &want));
	digest_print(digest_of(e->data, e->nbytes), text);
	if (e->dtype != DT_U8 || strcmp(text, want) != 0)
		return fail(CLV_E_PARSE, "member \"%s\" is damaged", e->name);
	return add_compiled_member(c, e->name, e->data, e->nbytes);
}

static clv_status read_description(const json_t *root, const st_file *file, const char *key, compiled *c)
{
	int64_t version;
	const char *kept;
	const json_t *digests = json_object_get(root, "digests");
	TRY(json_get_int(root, "version", &version));
	if (version != COMPILED_VERSION)
		return fail(CLV_E_UNSUPPORTED, "it is of version %lld, this library reads %d", (long long)version,
		            COMPILED_VERSION);
	TRY(json_get_string(root, "key", &kept));
	if (strcmp(kept, key) != 0)
		return fail(CLV_E_PARSE, "it was kept under another key");
	TRY(read_compiled_notes(c, root, "needs", compiled_need));
	TRY(read_compiled_notes(c, root, "notes", compiled_note));
	if (!json_is_object(digests) || json_object_size(digests) != st_count(file))
		return fail(CLV_E_PARSE, "its digests are not of its members");
	for (uint32_t i = 0; i < st_count(file); i++)
		TRY(read_compiled_member(c, st_at(file, i), digests));
	return CLV_OK;
}

static clv_status read_compiled_file(const st_file *file, const char *key, compiled *c)
{
	size_t n, nsum;
	char want[DIGEST_TEXT];
	json_t *root;
	const char *text = st_metadata(file, COMPILED_KEY, &n), *sum = st_metadata(file, COMPILED_CHECK, &nsum);
	if (!text || !sum)
		return fail(CLV_E_PARSE, "it holds no compiled segment");
	digest_print(digest_of(text, n), want);
	if (nsum != DIGEST_TEXT - 1 || memcmp(sum, want, nsum) != 0)
		return fail(CLV_E_PARSE, "its description is damaged");
	TRY(json_read(text, n, "its description", &root));
	clv_status st = read_description(root, file, key, c);
	json_decref(root);
	return st;
}

clv_status compiled_parse(uint8_t *data, size_t n, const char *key, compiled *out)
{
	st_file *file;
	*out = (compiled){0};
	TRY(own_data(out, data));
	clv_status st = st_parse(data, n, &file);
	if (st == CLV_OK) {
		st = read_compiled_file(file, key, out);
		st_free(file);
	}
	if (st != CLV_OK)
		compiled_free(out);
	return st;
}

clv_status compiled_load(const char *path, compiled *out)
{
	uint8_t *data;
	size_t n;
	*out = (compiled){0};
	TRY(file_read(path, &data, &n));
	clv_status st = compiled_parse(data, n, "", out);
	return st == CLV_OK ? st : fail_more(st, "cannot read %s", path);
}
