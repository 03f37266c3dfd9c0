/* Packed weights: found in the file, or made of a constant when it is lowered.
 *
 * A piece of the file is named by a key: what was made, for which instruction set, of which elements. Elements are named by the
 * digest of a tensor of the file, or by the operators that made them of such tensors once. So a piece serves whatever plan
 * comes to the same constant, and none is used for other weights, by other kernels or at another layout. */
#include "native/packed.h"

#include <string.h>

#include "base/limits.h"
#include "memory/room.h"
#include "native/lowering.h"

/* To be changed when the same operator, or the same packing, gives something else than before. */
#define PACKED_VERSION "cleave native 1"
#define KIND_VALUE "value/1" /* the elements of a constant as they lie in memory */

static void add_bytes(strbuf *b, const void *at, size_t n)
{
	strbuf_add(b, at, n);
}

static clv_status digest_text(strbuf *b, digest *out)
{
	bool failed = b->failed;
	if (!failed)
		*out = digest_of(b->at, b->n);
	strbuf_free(b);
	return failed ? fail_nomem() : CLV_OK;
}

static void add_form(strbuf *b, const nt *t)
{
	add_bytes(b, &t->dtype, 1);
	add_bytes(b, &t->ndim, 1);
	add_bytes(b, t->size, t->ndim * sizeof *t->size);
	add_bytes(b, t->stride, t->ndim * sizeof *t->stride);
}

/* ---- sources: what a constant is made of ----------------------------------------------------------------------------------- */

enum { SOURCE_NONE, SOURCE_KNOWN };

/* The digest of the file where the tensor is what lies there, else one of its bytes: the same number. */
static digest digest_of_tensor(const native_program *g, value_id v, const clv_tensor *t)
{
	const artifact *a = g->of;
	uint32_t i = a->file ? artifact_tensor_of(a, g->number, v) : NONE;
	if (i != NONE) {
		const payload_memory *m = &a->tensors->memories.at[a->tensors->tensors.at[i].memory];
		if (m->data == t->data && m->data_n == t->extent)
			return a->digests.at[st_find(a->file, m->entry)];
	}
	return digest_of(t->data, t->extent);
}

static clv_status find_external(native_program *g, uint32_t i)
{
	const clv_tensor *t = g->externals[i];
	value_id v = g->v.externals.at[i];
	strbuf b = STRBUF_INIT;
	if (g->changing[i] || !t || !tensor_is_plain(t) || !t->data || t->m.ndim > NT_DIMS)
		return CLV_OK;
	digest d = digest_of_tensor(g, v, t);
	nt form = {.dtype = t->m.dtype, .ndim = (uint8_t)t->m.ndim};
	memcpy(form.size, t->m.sizes, form.ndim * sizeof *form.size);
	memcpy(form.stride, t->m.strides, form.ndim * sizeof *form.stride);
	add_bytes(&b, &d, sizeof d);
	add_form(&b, &form);
	TRY(digest_text(&b, &g->sources[v].is));
	g->sources[v].known = SOURCE_KNOWN;
	return CLV_OK;
}

/* False: it is made of something that has no name. */
static bool add_arg(const native_program *g, const arg *a, strbuf *b)
{
	bool ok = true;
	if (a->kind == ARG_VALUE) {
		const source *s = &g->sources[a->u.v];
		add_bytes(b, &s->is, sizeof s->is);
		return s->known == SOURCE_KNOWN;
	}
	if (a->kind != ARG_LIST) {
		arg_print(g->p, a, b);
		strbuf_putc(b, ',');
		return true;
	}
	strbuf_printf(b, "[%u:", a->u.list.n);
	for (uint32_t i = 0; i < a->u.list.n; i++)
		ok &= add_arg(g, &g->p->args.at[a->u.list.first + i], b);
	return ok;
}

static clv_status name_results(native_program *g, node_id n, digest d)
{
	value_id v;
	for (uint32_t i = 0; (v = node_result(g->p, n, i)) != NONE; i++) {
		const digest parts[] = {d, {0, i}};
		g->sources[v] = (source){digest_of(parts, sizeof parts), SOURCE_KNOWN};
	}
	return CLV_OK;
}

static clv_status find_made(native_program *g, node_id n)
{
	const node *x = &g->p->nodes.at[n];
	strbuf b = STRBUF_INIT;
	bool named = true;
	digest d;
	strbuf_puts(&b, plan_s(g->p, x->op));
	strbuf_putc(&b, '(');
	for (uint32_t i = 0; i < x->nargs; i++)
		named &= add_arg(g, &g->p->args.at[x->args + i], &b);
	TRY(digest_text(&b, &d));
	return named ? name_results(g, n, d) : CLV_OK;
}

static clv_status find_sources(native_program *g)
{
	bool writes = false;
	if (g->sources)
		return CLV_OK;
	g->sources = mem_alloc((g->p->values.n + 1) * sizeof *g->sources);
	TRY_MEM(g->sources);
	for (uint32_t i = 0; i < g->v.externals.n; i++)
		TRY(find_external(g, i));
	for (node_id n = g->part[PART_ONCE]; n < g->part[PART_ONCE + 1]; n++)
		writes |= g->p->nodes.at[n].nwrites > 0;
	for (node_id n = g->part[PART_ONCE]; !writes && n < g->part[PART_ONCE + 1]; n++)
		TRY(find_made(g, n));
	return CLV_OK;
}

/* ---- keys ------------------------------------------------------------------------------------------------------------------- */

/* Of what is made of a constant; *named is false where that has no name. */
static clv_status find_key(lowering *l, const slot_info *x, const packing *k, digest *key, bool *named)
{
	native_program *g = l->g;
	strbuf b = STRBUF_INIT;
	*named = false;
	if (x->from == NONE || !(l->dry || g->store || g->origin))
		return CLV_OK;
	TRY(find_sources(g));
	const source *s = &g->sources[x->from];
	if (s->known != SOURCE_KNOWN)
		return CLV_OK;
	*named = true;
	strbuf_printf(&b, PACKED_VERSION " %s %s %zu", g->isa, k->kind, k->nspec);
	add_bytes(&b, k->spec, k->nspec);
	add_bytes(&b, &s->is, sizeof s->is);
	add_form(&b, &l->s->slots.at[l->s->slot_of[x->from]].t);
	add_bytes(&b, &x->offset, sizeof x->offset);
	add_form(&b, &x->t);
	return digest_text(&b, key);
}

/* ---- pieces ------------------------------------------------------------------------------------------------------------------ */

static bool same_form(const nt *a, const nt *b)
{
	return a->dtype == b->dtype && a->ndim == b->ndim && memcmp(a->size, b->size, a->ndim * sizeof *a->size) == 0 &&
	       memcmp(a->stride, b->stride, a->ndim * sizeof *a->stride) == 0;
}

static bool same_packing(const packed *x, const slot_info *of, const packing *k)
{
	bool same = of->from == NONE ? x->of.data == of->t.data : x->offset == of->offset;
	return same && x->from == of->from && same_form(&x->of, &of->t) && strcmp(x->k.kind, k->kind) == 0 &&
	       x->k.nspec == k->nspec && memcmp(x->k.spec, k->spec, k->nspec) == 0;
}

void packed_free(packed *x)
{
	if (!x)
		return;
	mem_free((void *)x->k.kind);
	mem_free((void *)x->k.spec);
	made_give(x->made);
	room_give(x->room);
	mem_free(x);
}

static clv_status packed_new(const slot_info *of, const packing *k, packed **out)
{
	packed *x = mem_alloc(sizeof *x);
	if (!x)
		return fail_nomem();
	*x = (packed){.of = of->t, .from = of->from, .offset = of->offset, .k = *k};
	x->k.kind = mem_strdup(k->kind, strlen(k->kind));
	x->k.spec = mem_strdup(k->nspec ? k->spec : "", k->nspec);
	x->n = k->bytes(&of->t, k->spec);
	if (!x->k.kind || !x->k.spec || x->n > SIZE_MAX / 4) {
		packed_free(x);
		return fail(CLV_E_NOMEM, "there is no memory for packed weights");
	}
	*out = x;
	return CLV_OK;
}

static void pack_made(const void *ctx, void *out)
{
	const packed *x = ctx;
	x->k.pack(&x->of, x->k.spec, out);
}

/* All that a program keeps is within the limits of the run that makes it. */
static clv_status room_for(const native_program *g, const packed *x)
{
	TRY(limits_check());
	return limits_room((int64_t)(g->kept_bytes + x->n));
}

static clv_status make_shared(const native_program *g, packed *x)
{
	TRY(room_for(g, x));
	TRY(made_take(g->origin, x->key, x->n, pack_made, x, &x->made));
	x->data = made_data(x->made);
	return CLV_OK;
}

static clv_status make(native_program *g, packed *x)
{
	TRY(room_for(g, x));
	void *data = room_take(&g->room, x->n, &x->room);
	if (!data)
		return fail(CLV_E_NOMEM, "there is no memory for %zu bytes of packed weights", x->n);
	x->k.pack(&x->of, x->k.spec, data);
	x->data = data;
	return CLV_OK;
}

/* One from the file, or that another program made of it; or NULL data. */
static clv_status look_up(lowering *l, const slot_info *of, packed *x)
{
	native_program *g = l->g;
	TRY(find_key(l, of, &x->k, &x->key, &x->named));
	if (!x->named || g->packs)
		return CLV_OK;
	if (g->store) {
		packed_found found = packed_find(g->store, x->key, x->n, &x->data);
		g->found += found == PACKED_FOUND;
		g->damaged += found == PACKED_DAMAGED;
	}
	if (x->data || !g->origin)
		return CLV_OK;
	TRY(made_take(g->origin, x->key, x->n, NULL, NULL, &x->made));
	x->data = x->made ? made_data(x->made) : NULL;
	return CLV_OK;
}

static clv_status needs_once(native_program *g)
{
	g->once_wanted = true;
	return fail(CLV_E_NOT_FOUND, "a constant has to be computed");
}

/* Where nothing will run, what is asked for is only noted: it is made when all of it is known. */
static const char later;

static clv_status fill(lowering *l, const slot_info *of, packed *x)
{
	TRY(look_up(l, of, x));
	if (l->dry)
		x->data = &later;
	if (x->data)
		return CLV_OK;
	if (!of->t.data)
		return needs_once(l->g);
	l->g->repacked++;
	return x->named && l->g->origin ? make_shared(l->g, x) : make(l->g, x);
}

static packed *find_packed(const native_program *g, const slot_info *of, const packing *k)
{
	packed *x = g->packed;
	while (x && !same_packing(x, of, k))
		x = x->next;
	return x;
}

static void keep(native_program *g, packed *x)
{
	x->next = g->packed;
	g->packed = x;
	g->kept_bytes += x->room || x->made ? x->n : 0;
}

/* Halves are packed before the operator is given them: that is a use, too. */
static clv_status note_packed(lowering *l, const slot_info *of)
{
	if (of->use)
		l->uses.at[of->use - 1].packed = true;
	return of->use || of->from == NONE ? CLV_OK : vec_push(&l->uses, ((constant_use){of->from, true}));
}

clv_status low_packed(lowering *l, slot constant, const packing *k, const void **out)
{
	const slot_info *of = &l->s->slots.at[constant];
	if (!of->constant)
		return fail(CLV_E_INVALID, "only constants are packed");
	*out = &later;
	if (l->dry && !l->main)
		return CLV_OK;
	packed *x = find_packed(l->g, of, k);
	if (!x) {
		TRY(packed_new(of, k, &x));
		clv_status st = fill(l, of, x);
		if (st != CLV_OK) {
			packed_free(x);
			return st;
		}
		keep(l->g, x);
	}
	*out = x->data;
	return note_packed(l, of);
}

/* ---- constants as they are ---------------------------------------------------------------------------------------------------- */

static size_t value_bytes_of(const nt *t, const void *spec)
{
	uint64_t n;
	(void)spec;
	return nt_bytes(t, &n) ? (size_t)n : SIZE_MAX;
}

static void pack_value(const nt *t, const void *spec, void *out)
{
	memcpy(out, t->data, value_bytes_of(t, spec));
}

static const packing whole = {.kind = KIND_VALUE, .spec = "", .bytes = value_bytes_of, .pack = pack_value};

/* Whether a node that is lowered from now on, or an output, reads a value that was made once. */
static bool is_read(const lowering *l, value_id v)
{
	return l->g->kept[v] || (l->g->last[v] != NONE && l->g->last[v] >= l->first);
}

/* *out is NULL where nobody made it. */
static clv_status find_whole(lowering *l, const slot_info *of, packed **out)
{
	TRY(packed_new(of, &whole, out));
	clv_status st = look_up(l, of, *out);
	if (st == CLV_OK && (*out)->data) {
		keep(l->g, *out);
		return CLV_OK;
	}
	packed_free(*out);
	*out = NULL;
	return st;
}

clv_status packed_value(lowering *l, value_id v)
{
	slot_info *x = &l->s->slots.at[l->s->slot_of[v]];
	if (x->t.data || !(l->g->store || l->g->origin) || !is_read(l, v) || !nt_is_dense(&x->t))
		return CLV_OK;
	packed *p = find_packed(l->g, x, &whole);
	if (!p)
		TRY(find_whole(l, x, &p));
	if (p)
		x->t.data = (char *)p->data; /* a constant: nobody writes it */
	return CLV_OK;
}

/* A value that was computed: for other programs on the same tensors, which need not do it again. */
static clv_status share_value(lowering *l, const slot_info *of)
{
	packed *x;
	if (!l->g->origin || find_packed(l->g, of, &whole))
		return CLV_OK;
	TRY(packed_new(of, &whole, &x));
	clv_status st = look_up(l, of, x);
	if (st == CLV_OK && x->named && !x->data)
		st = make_shared(l->g, x);
	if (st == CLV_OK && x->data)
		keep(l->g, x);
	else
		packed_free(x);
	return st;
}

/* The node was given it, and has packed it each time. */
static bool is_only_packed(const lowering *l, value_id v)
{
	bool any = false;
	for (uint32_t i = l->node_uses; i < l->uses.n; i++) {
		if (l->uses.at[i].v == v && !l->uses.at[i].packed)
			return false;
		any |= l->uses.at[i].v == v;
	}
	return any;
}

/* A value made once that a step reads as it is: it has to be there, and goes into packed files. */
static clv_status use_value(lowering *l, value_id v)
{
	const shaped *once = l->once;
	const void *data;
	if (!once || once->slot_of[v] == NONE || once->slots.at[once->slot_of[v]].root != ROOT_BLOCK)
		return CLV_OK;
	slot s = l->s->slot_of[v];
	if (s == NONE || l->s->slots.at[s].root != ROOT_FIXED)
		return CLV_OK;
	if (!l->s->slots.at[s].t.data)
		return needs_once(l->g);
	if (!nt_is_dense(low_at(l, s)))
		return CLV_OK;
	return l->g->packs ? low_packed(l, s, &whole, &data) : share_value(l, &l->s->slots.at[s]);
}

clv_status low_reads(lowering *l, slot constant)
{
	value_id v = l->s->slots.at[constant].from;
	return v == NONE ? CLV_OK : use_value(l, v);
}

clv_status packed_use(lowering *l, slot *s)
{
	slot_info x = l->s->slots.at[*s];
	if (!l->once || !x.constant || x.from == NONE)
		return CLV_OK;
	TRY(vec_push(&l->uses, ((constant_use){x.from, false})));
	x.use = l->uses.n;
	return low_slot(l, &x, s);
}

clv_status packed_check(const lowering *l, const slot_info *x)
{
	bool there = x->t.data || x->root != ROOT_FIXED || l->dry || nt_numel(&x->t) == 0;
	return there || !x->use || l->uses.at[x->use - 1].packed
	           ? CLV_OK
	           : fail(CLV_E_INVALID, "a step reads a constant that was not computed");
}

typedef struct users {
	lowering *l;
	clv_status st;
} users;

static void see_arg(void *ctx, value_id v)
{
	users *u = ctx;
	if (u->st == CLV_OK && !is_only_packed(u->l, v))
		u->st = use_value(u->l, v);
}

clv_status packed_node(lowering *l, node_id n)
{
	users u = {l, CLV_OK};
	node_each_arg(l->p, n, see_arg, &u);
	l->node_uses = l->uses.n;
	return u.st;
}

clv_status packed_output(lowering *l, value_id v)
{
	return use_value(l, v);
}

/* ---- into a file -------------------------------------------------------------------------------------------------------------- */

static int by_key(const void *a, const void *b)
{
	const packed *x = *(packed *const *)a, *y = *(packed *const *)b;
	if (x->key.high != y->key.high)
		return x->key.high < y->key.high ? -1 : 1;
	return x->key.low == y->key.low ? 0 : x->key.low < y->key.low ? -1 : 1;
}

clv_status packed_collect(const native_program *g, packed_list *out)
{
	for (packed *x = g->packed; x; x = x->next)
		if (x->named)
			TRY(vec_push(out, x));
	return CLV_OK;
}

static uint32_t drop_twins(packed **at, uint32_t n)
{
	uint32_t kept = 0;
	for (uint32_t i = 0; i < n; i++)
		if (!kept || by_key(&at[kept - 1], &at[i]) != 0)
			at[kept++] = at[i];
	return kept;
}

typedef struct writer {
	packed *const *from;
	packed_piece *to;
	char *data;
} writer;

static void write_pieces(void *ctx, int64_t first, int64_t end, int thread)
{
	const writer *w = ctx;
	(void)thread;
	for (int64_t i = first; i < end; i++) {
		const packed *x = w->from[i];
		x->k.pack(&x->of, x->k.spec, w->data + w->to[i].at);
		w->to[i].check = digest_of(w->data + w->to[i].at, w->to[i].n);
	}
}

/* Pieces start at multiples of MEMORY_ALIGN; what lies between them is 0. */
static clv_status lay_out(packed *const *from, uint32_t n, packed_piece *to, size_t *size)
{
	*size = 0;
	for (uint32_t i = 0; i < n; i++) {
		to[i] = (packed_piece){.key = from[i]->key, .at = *size, .n = from[i]->n};
		if (__builtin_add_overflow(*size, from[i]->n + MEMORY_ALIGN - 1, size))
			return fail(CLV_E_OVERFLOW, "the packed weights are too large");
		*size &= ~(size_t)(MEMORY_ALIGN - 1);
	}
	return CLV_OK;
}

static clv_status write_all(packed *const *from, uint32_t n, packed_piece *to, team *t, const char *isa, artifact *into)
{
	size_t size;
	TRY(lay_out(from, n, to, &size));
	char *memory = mem_alloc(size + MEMORY_ALIGN);
	TRY(payload_own(into->tensors, memory));
	writer w = {from, to, memory + (MEMORY_ALIGN - (uintptr_t)memory % MEMORY_ALIGN) % MEMORY_ALIGN};
	team_run(t, n, 1, write_pieces, &w);
	return artifact_add_packed(into, isa, to, n, w.data, size);
}

clv_status packed_write(packed_list *all, team *t, const char *isa, artifact *into)
{
	if (all->n)
		qsort(all->at, all->n, sizeof *all->at, by_key);
	all->n = drop_twins(all->at, all->n);
	packed_piece *to = mem_alloc((all->n + 1) * sizeof *to);
	clv_status st = to ? write_all(all->at, all->n, to, t, isa, into) : fail_nomem();
	mem_free(to);
	return st;
}
