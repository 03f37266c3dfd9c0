/* Packed weights of an artifact: kept, written and read as text, looked up. */
#include "file/artifact_packed.h"

#include <string.h>

#include "file/json.h"

enum { ISA_NAME = 32 };

/* ---- as data ------------------------------------------------------------------------------------------------------ */

const artifact_packed *packed_for(const artifact *a, const char *isa)
{
	for (uint32_t i = 0; i < a->packed.n; i++)
		if (strcmp(a->packed.at[i].isa, isa) == 0)
			return &a->packed.at[i];
	return NULL;
}

clv_status artifact_add_packed(artifact *a, const char *isa, const packed_piece *pieces, uint32_t n, const void *data,
                               size_t size)
{
	artifact_packed x = {.data = data, .n = size};
	TRY(artifact_text(a, isa, &x.isa));
	clv_status st = CLV_OK;
	for (uint32_t i = 0; i < n && st == CLV_OK; i++)
		st = vec_push(&x.pieces, pieces[i]);
	if (st == CLV_OK)
		st = vec_push(&a->packed, x);
	if (st != CLV_OK)
		vec_free(&x.pieces);
	return st;
}

void packed_list_free(artifact *a)
{
	for (uint32_t i = 0; i < a->packed.n; i++)
		vec_free(&a->packed.at[i].pieces);
	vec_free(&a->packed);
}

clv_status packed_entry(const char *isa, arena *a, const char **out)
{
	strbuf b = STRBUF_INIT;
	strbuf_printf(&b, "%s%s", PAYLOAD_PACKED, isa);
	return arena_take(a, &b, out);
}

/* ---- looked up ------------------------------------------------------------------------------------------------------ */

static int compare_keys(digest a, digest b)
{
	if (a.high != b.high)
		return a.high < b.high ? -1 : 1;
	return a.low == b.low ? 0 : a.low < b.low ? -1 : 1;
}

static int by_key(const void *key, const void *element)
{
	return compare_keys(*(const digest *)key, ((const packed_piece *)element)->key);
}

packed_found packed_find(const artifact_packed *x, digest key, size_t n, const void **out)
{
	packed_piece *p = x->pieces.n ? bsearch(&key, x->pieces.at, x->pieces.n, sizeof *p, by_key) : NULL;
	if (!p)
		return PACKED_ABSENT;
	uint8_t state = __atomic_load_n(&p->state, __ATOMIC_RELAXED);
	if (state == PIECE_UNCHECKED) {
		state = p->n == n && digest_equal(digest_of(x->data + p->at, p->n), p->check) ? PIECE_GOOD : PIECE_DAMAGED;
		__atomic_store_n(&p->state, state, __ATOMIC_RELAXED);
	}
	if (state != PIECE_GOOD || p->n != n)
		return PACKED_DAMAGED;
	*out = x->data + p->at;
	return PACKED_FOUND;
}

/* ---- as text -------------------------------------------------------------------------------------------------------- */

static clv_status put_piece(json_t *list, const packed_piece *p)
{
	char key[DIGEST_TEXT], check[DIGEST_TEXT];
	json_t *piece = json_array();
	digest_print(p->key, key);
	digest_print(p->check, check);
	TRY(json_push(list, piece));
	TRY(json_push(piece, json_string(key)));
	TRY(json_push(piece, json_integer((json_int_t)p->at)));
	TRY(json_push(piece, json_integer((json_int_t)p->n)));
	return json_push(piece, json_string(check));
}

static clv_status put_packed(const void *ctx, json_t *root)
{
	const artifact *a = ctx;
	for (uint32_t i = 0; i < a->packed.n; i++) {
		const artifact_packed *x = &a->packed.at[i];
		json_t *list;
		TRY(json_put_list(root, x->isa, &list));
		for (uint32_t k = 0; k < x->pieces.n; k++)
			TRY(put_piece(list, &x->pieces.at[k]));
	}
	return CLV_OK;
}

clv_status packed_print(const artifact *a, strbuf *out)
{
	return json_write(put_packed, a, out);
}

/* ---- read ----------------------------------------------------------------------------------------------------------- */

/* Letters and digits: it is a part of the name of an entry. */
static bool is_isa(const char *s)
{
	size_t n = strlen(s);
	return n > 0 && n <= ISA_NAME && strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_") == n;
}

static bool read_size(const json_t *from, size_t *out)
{
	json_int_t n = json_integer_value(from);
	*out = (size_t)n;
	return json_is_integer(from) && n >= 0;
}

static clv_status read_piece(const json_t *from, artifact_packed *x)
{
	packed_piece p = {0};
	const char *key = json_string_value(json_array_get(from, 0)), *check = json_string_value(json_array_get(from, 3));
	uint32_t n = x->pieces.n;
	if (json_array_size(from) != 4 || !key || !check || !digest_parse(key, &p.key) || !digest_parse(check, &p.check) ||
	    !read_size(json_array_get(from, 1), &p.at) || !read_size(json_array_get(from, 2), &p.n))
		return fail(CLV_E_PARSE, "piece %u is no key with a place, a size and a digest", n);
	if (p.at % ST_MAPPED_ALIGN || p.at > x->n || p.n > x->n - p.at)
		return fail(CLV_E_PARSE, "piece %u lies beyond the packed weights, or at no multiple of %d", n,
		            ST_MAPPED_ALIGN);
	if (n && compare_keys(x->pieces.at[n - 1].key, p.key) >= 0)
		return fail(CLV_E_PARSE, "pieces %u and %u are not in the order of their keys", n - 1, n);
	return vec_push(&x->pieces, p);
}

static clv_status find_entry(artifact *a, artifact_packed *x, bool *claimed)
{
	const char *name;
	TRY(packed_entry(x->isa, &a->arena, &name));
	uint32_t i = st_find(a->file, name);
	if (i == NONE)
		return fail(CLV_E_PARSE, "entry \"%s\" is not in the file", name);
	const st_entry *e = st_at(a->file, i);
	if (e->dtype != DT_U8 || e->ndim != 1)
		return fail(CLV_E_PARSE, "entry \"%s\" is no list of bytes", name);
	if ((uintptr_t)e->data % ST_MAPPED_ALIGN)
		return fail(CLV_E_PARSE, "entry \"%s\" does not start at a multiple of %d", name, ST_MAPPED_ALIGN);
	claimed[i] = true;
	x->data = e->data;
	x->n = e->nbytes;
	return CLV_OK;
}

static clv_status read_pieces(artifact *a, const char *isa, const json_t *list, artifact_packed *x, bool *claimed)
{
	if (!is_isa(isa) || !json_is_array(list))
		return fail(CLV_E_PARSE, "that is no instruction set with a list of pieces");
	TRY(artifact_text(a, isa, &x->isa));
	TRY(find_entry(a, x, claimed));
	for (size_t i = 0; i < json_array_size(list); i++)
		TRY(read_piece(json_array_get(list, i), x));
	return CLV_OK;
}

static clv_status read_sets(artifact *a, json_t *root, bool *claimed)
{
	const char *isa;
	json_t *list;
	if (!json_is_object(root))
		return fail(CLV_E_PARSE, "\"%s\" is no object", ARTIFACT_PACKED_KEY);
	json_object_foreach(root, isa, list)
	{
		artifact_packed x = {0};
		clv_status st = read_pieces(a, isa, list, &x, claimed);
		if (st == CLV_OK)
			st = vec_push(&a->packed, x);
		else if (st != CLV_E_NOMEM)
			fail_more(st, "packed weights for \"%.32s\"", isa);
		if (st != CLV_OK) {
			vec_free(&x.pieces);
			return st;
		}
	}
	return CLV_OK;
}

static clv_status check_claimed(const artifact *a, const bool *claimed)
{
	for (uint32_t i = 0; i < st_count(a->file); i++) {
		const char *name = st_at(a->file, i)->name;
		if (!claimed[i] && strncmp(name, PAYLOAD_PACKED, sizeof PAYLOAD_PACKED - 1) == 0)
			return fail(CLV_E_PARSE, "entry \"%.64s\" is in no list of packed weights", name);
	}
	return CLV_OK;
}

clv_status packed_read(artifact *a)
{
	size_t n;
	json_t *root = NULL;
	const char *text = st_metadata(a->file, ARTIFACT_PACKED_KEY, &n);
	bool *claimed = mem_alloc((size_t)st_count(a->file) + 1);
	clv_status st = claimed ? CLV_OK : fail_nomem();
	const payload *p = a->tensors;
	for (uint32_t i = 0; st == CLV_OK && i < p->memories.n; i++) /* a tensor may have any name */
		claimed[st_find(a->file, p->memories.at[i].entry)] = true;
	if (st == CLV_OK && text)
		st = json_read(text, n, "the text about packed weights", &root);
	if (st == CLV_OK && text)
		st = read_sets(a, root, claimed);
	if (st == CLV_OK)
		st = check_claimed(a, claimed);
	json_decref(root);
	mem_free(claimed);
	return st;
}
