/* Names of nodes for people: "relu", "relu_1", "relu_2", … by the operator's name, counted in plan order.
 *
 * An operator may itself be called "relu_1"; a number that would give a name twice is skipped, so names are unique. */
#include <string.h>

#include "plan/intern.h"
#include "plan/ops.h"

typedef struct base {
	const char *s; /* borrowed from the plan */
	size_t n;
	uint32_t next; /* number to try for the next node with this base */
} base;

struct node_names {
	strbuf text;       /* all names, NUL between them */
	VEC(size_t) start; /* per node */
	table by_name;     /* ids are nodes */
	VEC(base) bases;   /* while building */
	table by_base;     /* ids are bases */
};

typedef struct name_key {
	const node_names *t;
	const char *s;
	size_t n;
} name_key;

static bool name_same(const void *ctx, uint32_t id)
{
	const name_key *k = ctx;
	const char *s = k->t->text.at + k->t->start.at[id];
	return strlen(s) == k->n && memcmp(s, k->s, k->n) == 0;
}

static bool base_same(const void *ctx, uint32_t id)
{
	const name_key *k = ctx;
	const base *b = &k->t->bases.at[id];
	return b->n == k->n && memcmp(b->s, k->s, k->n) == 0;
}

static name_key op_base(const node_names *t, const char *op)
{
	op_name o = op_split(op);
	return (name_key){t, o.base, o.n};
}

static clv_status find_base(node_names *t, name_key k, uint32_t *out)
{
	uint32_t hash = hash_bytes(k.s, k.n, (uintptr_t)t);
	*out = table_find(&t->by_base, hash, base_same, &k);
	if (*out != TABLE_NONE)
		return CLV_OK;
	*out = t->bases.n;
	TRY(vec_push(&t->bases, ((base){k.s, k.n, 0})));
	return table_add(&t->by_base, hash, *out);
}

/* Appends the candidate to the text; takes it back if some node has that name. */
static clv_status try_name(node_names *t, base *b, node_id n, bool *taken)
{
	size_t start = t->text.n;
	strbuf_add(&t->text, b->s, b->n);
	if (b->next)
		strbuf_printf(&t->text, "_%u", b->next);
	b->next++;
	size_t len = t->text.n - start;
	strbuf_putc(&t->text, '\0');
	TRY_MEM(!t->text.failed);
	const char *s = t->text.at + start;
	uint32_t hash = hash_bytes(s, len, (uintptr_t)t);
	*taken = table_find(&t->by_name, hash, name_same, &(name_key){t, s, len}) != TABLE_NONE;
	if (*taken) {
		t->text.n = start;
		return CLV_OK;
	}
	TRY(vec_push(&t->start, start));
	return table_add(&t->by_name, hash, n);
}

static clv_status name_all(node_names *t, const plan *p)
{
	for (node_id n = 0; n < p->nodes.n; n++) {
		uint32_t b;
		TRY(find_base(t, op_base(t, plan_s(p, p->nodes.at[n].op)), &b));
		for (bool taken = true; taken;)
			TRY(try_name(t, &t->bases.at[b], n, &taken));
	}
	return CLV_OK;
}

clv_status node_names_new(const plan *p, node_names **out)
{
	node_names *t = mem_alloc(sizeof *t);
	TRY_MEM(t);
	clv_status st = name_all(t, p);
	vec_free(&t->bases);
	table_free(&t->by_base);
	if (st != CLV_OK) {
		node_names_free(t);
		return st;
	}
	*out = t;
	return CLV_OK;
}

void node_names_free(node_names *t)
{
	if (!t)
		return;
	strbuf_free(&t->text);
	vec_free(&t->start);
	vec_free(&t->bases);
	table_free(&t->by_name);
	table_free(&t->by_base);
	mem_free(t);
}

const char *node_name(const node_names *t, node_id n)
{
	return n < t->start.n ? t->text.at + t->start.at[n] : "?";
}

node_id node_find(const node_names *t, const char *name)
{
	size_t n = strlen(name);
	uint32_t found = table_find(&t->by_name, hash_bytes(name, n, (uintptr_t)t), name_same, &(name_key){t, name, n});
	return found == TABLE_NONE ? NONE : found;
}
