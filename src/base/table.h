/* A hash table of ids: the keys live with the caller, the table holds (hash, id) and asks `same` on equal hashes. */
#pragma once

#include "base/mem.h"

#define TABLE_NONE UINT32_MAX

typedef struct table_slot {
	uint32_t hash, id; /* id TABLE_NONE: empty */
} table_slot;

typedef struct table {
	table_slot *at;
	uint32_t cap, n; /* cap is 0 or a power of two */
} table;

/* Whether the entry `id` has the key that is looked for; both are reached through ctx. */
typedef bool (*table_same)(const void *ctx, uint32_t id);

uint32_t table_find(const table *t, uint32_t hash, table_same same, const void *ctx); /* TABLE_NONE: not there */
clv_status table_add(table *t, uint32_t hash, uint32_t id);                           /* the key must be new */
void table_free(table *t);

/* Texts of an array of structs that begin with one, or of texts: where each is, the first one where it is there twice. */
typedef struct text_index {
	const void *at; /* borrowed */
	uint32_t n;
	size_t each;
	table t; /* empty where they are few */
} text_index;

clv_status text_index_new(const void *at, uint32_t n, size_t each, text_index *out); /* caller calls text_index_free */
uint32_t text_index_find(const text_index *l, const char *s);                        /* TABLE_NONE: not there */
void text_index_free(text_index *l);

/* Seeded, so that a hostile text cannot be made to collide. */
uint32_t hash_bytes(const void *at, size_t n, uint64_t seed);
uint32_t hash_text(const char *s, const void *owner); /* the seed is where the owner lies */
uint64_t hash_long(const void *at, size_t n, uint64_t seed);
