/* The hash table of ids: open addressing, linear probing, at most half full. */
#include "base/table.h"

#include <string.h>

static clv_status table_resize(table *t, uint32_t cap)
{
	table_slot *at = mem_realloc(NULL, cap, sizeof *at);
	TRY_MEM(at);
	memset(at, 0xFF, cap * sizeof *at);
	for (uint32_t i = 0; i < t->cap; i++) {
		table_slot s = t->at[i];
		if (s.id == TABLE_NONE)
			continue;
		uint32_t k = s.hash & (cap - 1);
		while (at[k].id != TABLE_NONE)
			k = (k + 1) & (cap - 1);
		at[k] = s;
	}
	mem_free(t->at);
	t->at = at;
	t->cap = cap;
	return CLV_OK;
}

uint32_t table_find(const table *t, uint32_t hash, table_same same, const void *ctx)
{
	if (t->cap == 0)
		return TABLE_NONE;
	for (uint32_t k = hash & (t->cap - 1);; k = (k + 1) & (t->cap - 1)) {
		table_slot s = t->at[k];
		if (s.id == TABLE_NONE)
			return TABLE_NONE;
		if (s.hash == hash && same(ctx, s.id))
			return s.id;
	}
}

clv_status table_add(table *t, uint32_t hash, uint32_t id)
{
	if (t->n >= t->cap / 2) {
		if (t->cap > UINT32_MAX / 2)
			return fail_nomem();
		TRY(table_resize(t, t->cap ? t->cap * 2 : 32));
	}
	uint32_t k = hash & (t->cap - 1);
	while (t->at[k].id != TABLE_NONE)
		k = (k + 1) & (t->cap - 1);
	t->at[k] = (table_slot){hash, id};
	t->n++;
	return CLV_OK;
}

void table_free(table *t)
{
	mem_free(t->at);
	*t = (table){0};
}

static uint64_t mix(uint64_t h)
{
	h *= UINT64_C(0x9E3779B97F4A7C15);
	h ^= h >> 32;
	h *= UINT64_C(0xD6E8FEB86659FD93);
	return h ^ h >> 29;
}

uint64_t hash_long(const void *at, size_t n, uint64_t seed)
{
	const unsigned char *s = at;
	uint64_t h = mix(seed ^ n);
	for (; n >= 8; s += 8, n -= 8) {
		uint64_t word;
		memcpy(&word, s, 8);
		h = mix(h ^ word);
	}
	uint64_t rest = 0;
	if (n)
		memcpy(&rest, s, n);
	return mix(h ^ rest);
}

uint32_t hash_bytes(const void *at, size_t n, uint64_t seed)
{
	uint64_t h = hash_long(at, n, seed);
	return (uint32_t)(h ^ h >> 32);
}

uint32_t hash_text(const char *s, const void *owner)
{
	return hash_bytes(s, strlen(s), (uint64_t)(uintptr_t)owner);
}

/* ---- lists of texts ----------------------------------------------------------------------------------------------------- */

enum { FEW_TEXTS = 16 };

static const char *text_at(const text_index *l, uint32_t i)
{
	const char *s;
	memcpy(&s, (const char *)l->at + i * l->each, sizeof s);
	return s;
}

typedef struct text_key {
	const text_index *l;
	const char *s;
} text_key;

static bool same_text(const void *ctx, uint32_t id)
{
	const text_key *k = ctx;
	return strcmp(text_at(k->l, id), k->s) == 0;
}

uint32_t text_index_find(const text_index *l, const char *s)
{
	text_key k = {l, s};
	if (l->n > FEW_TEXTS)
		return table_find(&l->t, hash_text(s, l->at), same_text, &k);
	for (uint32_t i = 0; i < l->n; i++)
		if (same_text(&k, i))
			return i;
	return TABLE_NONE;
}

clv_status text_index_new(const void *at, uint32_t n, size_t each, text_index *out)
{
	*out = (text_index){.at = at, .n = n, .each = each};
	for (uint32_t i = 0; n > FEW_TEXTS && i < n; i++) {
		const char *s = text_at(out, i);
		clv_status st = text_index_find(out, s) == TABLE_NONE ? table_add(&out->t, hash_text(s, at), i) : CLV_OK;
		if (st != CLV_OK) {
			text_index_free(out);
			return st;
		}
	}
	return CLV_OK;
}

void text_index_free(text_index *l)
{
	table_free(&l->t);
	*l = (text_index){0};
}
