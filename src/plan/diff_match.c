/* Pairs the nodes of two plans that do the same work.
 * Which node of one plan is which of another, by what a node is: its operator, its module, what it reads and gives.
 *
 * Nodes that agree in all of that are aligned first, over the whole plans (two plans of one model are aligned by what reads
 * its tensors before); those that are the same but stand elsewhere are found next. In the gaps that remain, nodes are aligned that have less and less in common. A pair is only a guess at what
 * a person would call the same node: everything about it is compared afterwards. */
#include <string.h>

#include "plan/align.h"
#include "plan/diff.h"
#include "plan/intern.h"

typedef enum likeness {
	LIKE_STATE,  /* operator, module, tensors of the model; it reads some */
	LIKE_ALL,    /* operator, module, arguments, types of results         */
	LIKE_ARGS,   /* operator, module, arguments: at another size          */
	LIKE_MODULE, /* operator and module                                   */
	LIKE_LEAF,   /* operator and the last part of the module's path       */
	LIKE_OP,     /* operator                                              */
	LIKE_PLACE,  /* module: another operator does the work there          */
	LIKE_END
} likeness;

static const likeness levels[][6] = {
	[PAIRS_SURE] = {LIKE_STATE, LIKE_ALL, LIKE_ARGS, LIKE_MODULE, LIKE_END},
	[PAIRS_NEAR] = {LIKE_ALL, LIKE_MODULE, LIKE_LEAF, LIKE_OP, LIKE_PLACE, LIKE_END},
};

typedef struct matcher {
	const plan *p[2];
	node_pairs *m;
	uint32_t *tokens[2];  /* per node */
	table by_hash;        /* ids are tokens */
	VEC(uint64_t) hashes; /* per token; two texts with one hash would only be compared in vain */
	strbuf text;
	aligner *w;
	VEC(uint32_t) a, b, ta, tb, match; /* of a gap: nodes, their tokens, what goes with what */
} matcher;

/* ---- what a node is, as text ------------------------------------------------------------------------------------ */

void args_text(const plan *p, uint32_t first, uint32_t n, value_text f, const void *ctx, strbuf *b)
{
	for (uint32_t i = 0; i < n; i++) {
		const arg *a = &p->args.at[first + i];
		strbuf_puts(b, i ? ", " : "");
		if (a->kind == ARG_VALUE) {
			f(ctx, a->u.v, b);
		} else if (a->kind == ARG_LIST) {
			strbuf_putc(b, '[');
			args_text(p, a->u.list.first, a->u.list.n, f, ctx, b);
			strbuf_putc(b, ']');
		} else {
			arg_print(p, a, b);
		}
	}
}

static const str *path_of(const plan *p, const node *n)
{
	return str_at(p, n->scope == NONE ? NONE : p->scopes.at[n->scope].path);
}

static void add_str(strbuf *b, const str *s)
{
	strbuf_add(b, s->s, s->n);
	strbuf_putc(b, '\0');
}

/* A value by where it comes from, without any number that other nodes change. */
static void origin_text(const void *ctx, value_id v, strbuf *b)
{
	const plan *p = ctx;
	const value *x = &p->values.at[v];
	if (x->kind == VALUE_RESULT) {
		add_str(b, str_at(p, p->nodes.at[x->def].op));
		add_str(b, path_of(p, &p->nodes.at[x->def]));
	} else if (x->name != NONE) {
		strbuf_putc(b, '@');
		add_str(b, str_at(p, x->name));
	} else if (x->kind == VALUE_INPUT) {
		strbuf_printf(b, "%%%u", value_number(p, v));
	} else {
		strbuf_putc(b, '#');
		value_print_type(p, v, b);
	}
}

static void type_text(const void *ctx, value_id v, strbuf *b)
{
	value_print_type(ctx, v, b);
}

typedef struct state_walk {
	const plan *p;
	strbuf *b;
	bool found;
} state_walk;

static void add_state(void *ctx, value_id v)
{
	state_walk *w = ctx;
	const value *x = &w->p->values.at[v];
	if (x->kind != VALUE_PARAM && x->kind != VALUE_BUFFER && x->kind != VALUE_ATTR)
		return;
	w->found = true;
	add_str(w->b, str_at(w->p, x->name));
}

static void node_key_text(const plan *p, node_id k, likeness like, strbuf *b)
{
	const node *n = &p->nodes.at[k];
	const str *path = path_of(p, n);
	if (like != LIKE_PLACE || path->n == 0) /* the root module does too much for that */
		add_str(b, str_at(p, n->op));
	if (like == LIKE_LEAF) {
		const char *dot = strrchr(path->s, '.');
		strbuf_puts(b, dot ? dot + 1 : path->s);
	} else if (like != LIKE_OP) {
		add_str(b, path);
	}
	if (like == LIKE_STATE) {
		state_walk w = {p, b, false};
		node_each_arg(p, k, add_state, &w);
		if (!w.found)
			strbuf_printf(b, "%p %u", (const void *)p, k); /* like no other */
	}
	if (like != LIKE_ALL && like != LIKE_ARGS)
		return;
	args_text(p, n->args, n->nargs, origin_text, p, b);
	if (like != LIKE_ALL)
		return;
	strbuf_putc(b, '\0');
	args_text(p, n->results, n->nresults, type_text, p, b);
}

/* ---- tokens ----------------------------------------------------------------------------------------------------- */

typedef struct hash_key {
	const matcher *x;
	uint64_t hash;
} hash_key;

static bool hash_same(const void *ctx, uint32_t id)
{
	const hash_key *k = ctx;
	return k->x->hashes.at[id] == k->hash;
}

static clv_status token_of(matcher *x, uint64_t hash, uint32_t *out)
{
	uint32_t low = (uint32_t)(hash ^ hash >> 32);
	*out = table_find(&x->by_hash, low, hash_same, &(hash_key){x, hash});
	if (*out != TABLE_NONE)
		return CLV_OK;
	*out = x->hashes.n;
	TRY(vec_push(&x->hashes, hash));
	return table_add(&x->by_hash, low, *out);
}

static bool is_paired(const matcher *x, int side, node_id n)
{
	return (side ? x->m->to_a : x->m->to_b)[n] != NONE;
}

static clv_status make_tokens(matcher *x, likeness like)
{
	x->hashes.n = 0;
	table_free(&x->by_hash);
	for (int side = 0; side < 2; side++) {
		const plan *p = x->p[side];
		for (node_id n = 0; n < p->nodes.n; n++) {
			if (is_paired(x, side, n))
				continue;
			x->text.n = 0;
			node_key_text(p, n, like, &x->text);
			TRY_MEM(!x->text.failed);
			TRY(token_of(x, hash_long(x->text.at, x->text.n, like), &x->tokens[side][n]));
		}
	}
	aligner_free(x->w);
	x->w = NULL;
	return aligner_new(x->hashes.n, &x->w);
}

/* ---- pairs ------------------------------------------------------------------------------------------------------ */

static clv_status align_gap(matcher *x)
{
	x->match.n = 0;
	TRY(vec_reserve(&x->match, (size_t)x->a.n + 1));
	TRY(align(x->w, x->ta.at, x->ta.n, x->tb.at, x->tb.n, x->match.at));
	for (uint32_t i = 0; i < x->a.n; i++) {
		if (x->match.at[i] == NONE)
			continue;
		node_id a = x->a.at[i], b = x->b.at[x->match.at[i]];
		x->m->to_b[a] = b;
		x->m->to_a[b] = a;
	}
	return CLV_OK;
}

/* Takes the nodes without a pair up to the next one that has one, which is not moved; *at is after it. */
static clv_status take_gap(matcher *x, node_id *at_a, node_id *at_b)
{
	x->a.n = x->b.n = x->ta.n = x->tb.n = 0;
	node_id a = *at_a, b = *at_b, nb = x->p[1]->nodes.n;
	for (; a < x->p[0]->nodes.n && (x->m->to_b[a] == NONE || x->m->moved[a]); a++) {
		if (x->m->moved[a])
			continue;
		TRY(vec_push(&x->a, a));
		TRY(vec_push(&x->ta, x->tokens[0][a]));
	}
	node_id end = a < x->p[0]->nodes.n ? x->m->to_b[a] : nb;
	for (; b < end; b++) {
		if (x->m->to_a[b] != NONE)
			continue;
		TRY(vec_push(&x->b, b));
		TRY(vec_push(&x->tb, x->tokens[1][b]));
	}
	*at_a = a + 1;
	*at_b = end + 1;
	return CLV_OK;
}

static clv_status align_gaps(matcher *x, likeness like)
{
	TRY(make_tokens(x, like));
	for (node_id a = 0, b = 0; a <= x->p[0]->nodes.n;) {
		TRY(take_gap(x, &a, &b));
		if (x->a.n && x->b.n)
			TRY(align_gap(x));
	}
	return CLV_OK;
}

/* What has a token to itself on its side; MANY where several have it. */
#define MANY (NONE - 1)

static void find_lonely(const matcher *x, int side, node_id *of)
{
	for (node_id n = 0; n < x->p[side]->nodes.n; n++) {
		uint32_t t = x->tokens[side][n];
		if (!is_paired(x, side, n))
			of[t] = of[t] == NONE ? n : MANY;
	}
}

/* Nodes that agree in everything but stand elsewhere, where there is no doubt which is which. */
static clv_status find_moved(matcher *x)
{
	node_id *a = mem_ids((size_t)x->hashes.n + 1), *b = mem_ids((size_t)x->hashes.n + 1);
	if (a && b) {
		find_lonely(x, 0, a);
		find_lonely(x, 1, b);
		for (uint32_t t = 0; t < x->hashes.n; t++) {
			if (a[t] >= MANY || b[t] >= MANY)
				continue;
			x->m->to_b[a[t]] = b[t];
			x->m->to_a[b[t]] = a[t];
			x->m->moved[a[t]] = true;
		}
	}
	bool ok = a && b;
	mem_free(a);
	mem_free(b);
	return ok ? CLV_OK : fail_nomem();
}

static clv_status match_all(matcher *x, pairs_kind kind)
{
	for (const likeness *like = levels[kind]; *like != LIKE_END; like++) {
		TRY(align_gaps(x, *like));
		if (*like <= LIKE_ARGS)
			TRY(find_moved(x));
	}
	return CLV_OK;
}

static void matcher_free(matcher *x)
{
	mem_free(x->tokens[0]);
	mem_free(x->tokens[1]);
	table_free(&x->by_hash);
	vec_free(&x->hashes);
	strbuf_free(&x->text);
	aligner_free(x->w);
	vec_free(&x->a);
	vec_free(&x->b);
	vec_free(&x->ta);
	vec_free(&x->tb);
	vec_free(&x->match);
}

clv_status node_pairs_new(const plan *a, const plan *b, pairs_kind kind, node_pairs *out)
{
	node_pairs m = {mem_ids((size_t)a->nodes.n + 1), mem_ids((size_t)b->nodes.n + 1),
	                mem_alloc((size_t)a->nodes.n + 1)};
	matcher x = {.p = {a, b}, .m = &m};
	x.tokens[0] = mem_ids((size_t)a->nodes.n + 1);
	x.tokens[1] = mem_ids((size_t)b->nodes.n + 1);
	bool room = m.to_b && m.to_a && m.moved && x.tokens[0] && x.tokens[1];
	clv_status st = room ? match_all(&x, kind) : fail_nomem();
	matcher_free(&x);
	if (st == CLV_OK)
		*out = m;
	else
		node_pairs_free(&m);
	return st;
}

void node_pairs_free(node_pairs *m)
{
	mem_free(m->to_b);
	mem_free(m->to_a);
	mem_free(m->moved);
}
