/* A variant of a program that passes made, and what it keeps between runs: see optimized.h. */
#include "exec/optimized.h"

#include <pthread.h>
#include <string.h>

#include "base/arena.h"
#include "exec/tolerance.h"
#include "exec/code.h"
#include "exec/native_way.h"
#include "runtime/handover.h"

/* Results of the part that is made once, or for sizes, and marks of what they were made of. */
typedef struct kept {
	atomic_uint refs;
	arena arena;         /* of the arrays below */
	struct kept *base;   /* sized: of what is made once; counted */
	int64_t *sizes;      /* sized: values of the plan's symbols */
	uint64_t *marks;     /* per external of the part */
	br_tensor **from;    /* the same: on its memory, which nobody else gets while it is compared with */
	br_tensor **tensors; /* per output of the part */
	uint32_t nfrom, n;
	size_t bytes;        /* of the tensors */
	uint64_t generation; /* how many were made before it */
	char device[16];     /* a GPU that they are on; "" : there is none */
	bool several;        /* there is more than one */
	int64_t stream;      /* that they were made on, there */
} kept;

/* Where an input of a part comes from. */
typedef struct source {
	part_id from; /* PARTS: the inputs of the program */
	uint32_t at;  /* among these, or the outputs of that part */
} source;

typedef struct part {
	clv_program *program; /* NULL: it has no nodes */
	uint32_t *externals;  /* per external of it: which of the program's */
	source *inputs;       /* per input of it */
} part;

enum { SIZES = 8 };                               /* that results are kept for: as many as there are graphs */
static const size_t MOST_BYTES = (size_t)1 << 28; /* of all but those of the last sizes */

struct variant {
	native_way *native; /* runs instead of all that follows; NULL: none */
	optimized_plan made;
	liveness live;
	part parts[PARTS];
	bool checks; /* the parts do not check all that the program does */
	bool *alone; /* per output: captured as a tensor of its own, which passes made a view */
	bool graphs; /* that read what is kept where it lies: each for its sizes */
	pthread_mutex_t lock;
	bool has_lock;
	kept *once;          /* under the lock, as the next ones */
	kept *sized[SIZES];  /* the last used first; NULL ends */
	uint64_t generation; /* how often something was made to keep */
};

/* One run: what it was called with, and what parts gave so far. */
typedef struct turn {
	const clv_program *g;
	const run_spec *r;
	int64_t few[8], *symbols; /* values of the plan's symbols; few: room for them */
	kept *kept[PART_GUARDS];  /* by part; NULL: it has no nodes */
	br_tensor *const *guards; /* outputs of the guards; NULL: not yet */
} turn;

/* ---- what is kept ------------------------------------------------------------------------------------------------- */

static void kept_unref(kept *k)
{
	if (!k || atomic_fetch_sub(&k->refs, 1) != 1)
		return;
	for (uint32_t i = 0; k->tensors && i < k->n; i++)
		br_unref(k->tensors[i]);
	for (uint32_t i = 0; k->from && i < k->nfrom; i++)
		br_unref(k->from[i]);
	kept_unref(k->base);
	arena_free(&k->arena);
	mem_free(k);
}

static kept *kept_ref(kept *k)
{
	if (k)
		atomic_fetch_add(&k->refs, 1);
	return k;
}

static kept *kept_new(uint32_t nfrom, uint32_t ntensors)
{
	kept *k = mem_alloc(sizeof *k);
	if (!k)
		return NULL;
	atomic_init(&k->refs, 1);
	k->n = ntensors;
	k->nfrom = nfrom;
	k->marks = arena_array(&k->arena, nfrom, sizeof *k->marks);
	k->from = arena_array(&k->arena, nfrom, sizeof *k->from);
	k->tensors = arena_array(&k->arena, ntensors, sizeof *k->tensors);
	if (k->arena.failed) {
		kept_unref(k);
		return NULL;
	}
	return k;
}

/* Constants may be tensors that their maker still writes; no version counts what a BatchNorm in train mode writes into its
   buffers: all of a small one is looked at. */
bool external_mark(const plan *p, value_id v, const br_tensor *t, const br_tensor *counter, uint64_t *out)
{
	value_kind kind = p->values.at[v].kind;
	uint64_t more = 0;
	*out = 0;
	bool told = t && ((kind == VALUE_BUFFER && br_mark(t, SMALL_BUFFER, out)) ||
	                  br_mark(t, kind == VALUE_CONST ? SMALL_CONSTANT : 0, out));
	if (counter)
		told = br_mark(counter, SMALL_BUFFER, &more) && told;
	*out += more;
	return told;
}

static bool mark_of(const part *x, uint32_t i, const run_spec *r, uint64_t *out)
{
	const view *v = &x->program->v;
	uint32_t k = x->externals[i];
	return external_mark(v->p, v->externals.at[i], r->externals[k], r->counters ? r->counters[k] : NULL, out);
}

static bool still_holds(const part *x, const kept *k, const turn *now)
{
	uint32_t nsymbols = k->sizes ? now->g->p->symbols.n : 0;
	if (k->base != (k->sizes ? now->kept[PART_ONCE] : NULL))
		return false;
	if (nsymbols && memcmp(k->sizes, now->symbols, nsymbols * sizeof *k->sizes) != 0)
		return false;
	for (uint32_t i = 0; i < k->nfrom; i++) {
		uint64_t mark;
		if (!mark_of(x, i, now->r, &mark) || mark != k->marks[i])
			return false;
	}
	return true;
}

/* counters: NULL where there are none. */
static void gather(const part *x, const turn *now, br_tensor **inputs, br_tensor **externals, br_tensor **counters)
{
	const view *v = &x->program->v;
	for (uint32_t i = 0; i < v->inputs.n; i++) {
		source s = x->inputs[i];
		inputs[i] = s.from == PARTS         ? now->r->inputs[s.at]
		            : s.from == PART_GUARDS ? now->guards[s.at]
		                                    : now->kept[s.from]->tensors[s.at];
	}
	for (uint32_t i = 0; i < v->externals.n; i++)
		externals[i] = now->r->externals[x->externals[i]];
	for (uint32_t i = 0; counters && i < v->externals.n; i++)
		counters[i] = now->r->counters[x->externals[i]];
}

enum { FEW = 64 };

/* The nodes of a part; symbols are those of the plan. */
static clv_status run_part(const part *x, const turn *now, const int64_t *symbols, br_tensor **outputs)
{
	const view *v = &x->program->v;
	br_tensor *few[FEW], **given = few;
	uint32_t n = v->inputs.n + v->externals.n, ncounters = now->r->counters ? v->externals.n : 0;
	if (n + ncounters > FEW && !(given = mem_alloc((n + ncounters) * sizeof *given)))
		return fail_nomem();
	br_tensor **counters = ncounters ? given + n : NULL;
	gather(x, now, given, given + v->inputs.n, counters);
	run_spec inner = *now->r;
	inner.inputs = given;
	inner.externals = given + v->inputs.n;
	inner.counters = counters;
	inner.outputs = outputs;
	inner.grad = false;
	inner.symbols = now->g->p->symbols.n ? symbols : NULL;
	clv_status st = program_run(x->program, &inner);
	if (given != few)
		mem_free(given);
	return st;
}

/* At most: views are counted as if they had memory of their own. */
static void count_kept_bytes(const clv_program *g, const int64_t *sizes, kept *k)
{
	int64_t bytes;
	for (uint32_t i = 0; i < k->n; i++)
		if (value_bytes(g->p, g->outputs.at[i], sizes, &bytes) == CLV_OK)
			k->bytes += (size_t)bytes;
}

static clv_status fill_kept(const part *x, const turn *now, kept *k)
{
	clv_status st = CLV_OK;
	for (uint32_t i = 0; st == CLV_OK && i < k->nfrom; i++) {
		br_tensor *t = now->r->externals[x->externals[i]];
		(void)mark_of(x, i, now->r, &k->marks[i]);
		if (t)
			st = br_leaf(t, false, &k->from[i]);
	}
	run_spec plain = {.externals = now->r->externals};
	turn alone = {.g = now->g, .r = &plain, .kept = {now->kept[PART_ONCE]}};
	if (st == CLV_OK)
		st = run_part(x, &alone, now->symbols, k->tensors);
	return st;
}

static clv_status note_stream(kept *k)
{
	br_meta m;
	for (uint32_t i = 0; i < k->n; i++) {
		if (!k->tensors[i])
			continue;
		TRY(br_meta_get(k->tensors[i], &m));
		if (!strcmp(m.device, "cpu"))
			continue;
		k->several |= k->device[0] && strcmp(k->device, m.device) != 0;
		memcpy(k->device, m.device, sizeof k->device);
	}
	k->stream = k->device[0] ? br_stream(k->device) : 0;
	return CLV_OK;
}

/* Memory goes back to the stream that it was made on: one that others read must wait for them. */
static void hold_for_stream(const kept *k)
{
	if (!k || !k->device[0] || (!k->several && br_stream(k->device) == k->stream))
		return;
	for (uint32_t i = 0; i < k->n; i++)
		if (k->tensors[i])
			br_used_on_stream(k->tensors[i]);
}

static clv_status make_kept(variant *x, const turn *now, part_id at, kept **out)
{
	const part *from = &x->parts[at];
	uint32_t nsymbols = now->g->p->symbols.n;
	kept *k = kept_new(from->program->v.externals.n, from->program->outputs.n);
	TRY_MEM(k);
	if (at == PART_SIZED) {
		k->base = kept_ref(now->kept[PART_ONCE]);
		k->sizes = arena_copy(&k->arena, now->symbols, nsymbols * sizeof *k->sizes);
	}
	clv_status st = k->arena.failed ? fail_nomem() : fill_kept(from, now, k);
	if (st == CLV_OK)
		st = wait_for_all(k->tensors, k->n); /* later runs may be on other streams: what they find must be there */
	if (st == CLV_OK)
		st = note_stream(k);
	if (st != CLV_OK) {
		kept_unref(k);
		return st;
	}
	count_kept_bytes(from->program, k->sizes, k);
	k->generation = ++x->generation;
	*out = k;
	return CLV_OK;
}

/* What was made of it for sizes is of no use without it, and would hold it. */
static void drop_kept(variant *x)
{
	kept_unref(x->once);
	x->once = NULL;
	for (uint32_t i = 0; i < SIZES; i++) {
		kept_unref(x->sized[i]);
		x->sized[i] = NULL;
	}
}

void variant_forget(variant *x)
{
	if (x->native) {
		native_way_forget(x->native);
		return;
	}
	pthread_mutex_lock(&x->lock);
	drop_kept(x);
	pthread_mutex_unlock(&x->lock);
}

static clv_status find_once(variant *x, turn *now)
{
	if (!x->once || !still_holds(&x->parts[PART_ONCE], x->once, now)) {
		drop_kept(x);
		TRY(make_kept(x, now, PART_ONCE, &x->once));
	}
	now->kept[PART_ONCE] = kept_ref(x->once);
	return CLV_OK;
}

/* What was used last stays; others as long as there is room for them. */
static void put_first(variant *x, kept *k, uint32_t from)
{
	size_t bytes = k->bytes;
	memmove(&x->sized[1], &x->sized[0], from * sizeof *x->sized);
	x->sized[0] = k;
	for (uint32_t i = 1; i < SIZES && x->sized[i]; i++) {
		bytes += x->sized[i]->bytes;
		if (bytes <= MOST_BYTES || x->graphs)
			continue;
		for (uint32_t last = i; last < SIZES; last++) {
			kept_unref(x->sized[last]);
			x->sized[last] = NULL;
		}
	}
}

static clv_status find_sized(variant *x, turn *now)
{
	kept *k = NULL;
	uint32_t i = 0;
	while (i < SIZES && x->sized[i] && !still_holds(&x->parts[PART_SIZED], x->sized[i], now))
		i++;
	if (i < SIZES && x->sized[i]) {
		k = x->sized[i];
	} else {
		TRY(make_kept(x, now, PART_SIZED, &k));
		if (i == SIZES)
			kept_unref(x->sized[--i]);
	}
	put_first(x, k, i);
	now->kept[PART_SIZED] = kept_ref(k);
	return CLV_OK;
}

/* References to what earlier runs left for these externals and sizes. */
static clv_status take_kept(variant *x, turn *now)
{
	clv_status st = CLV_OK;
	if (!x->parts[PART_ONCE].program && !x->parts[PART_SIZED].program)
		return CLV_OK;
	pthread_mutex_lock(&x->lock);
	if (x->parts[PART_ONCE].program)
		st = find_once(x, now);
	if (st == CLV_OK && x->parts[PART_SIZED].program)
		st = find_sized(x, now);
	pthread_mutex_unlock(&x->lock);
	return st;
}

/* ---- making ------------------------------------------------------------------------------------------------------- */

static uint32_t find_id(const value_id *at, uint32_t n, value_id v)
{
	uint32_t low = 0, high = n; /* ascending */
	while (low < high) {
		uint32_t mid = low + (high - low) / 2;
		if (at[mid] < v)
			low = mid + 1;
		else
			high = mid;
	}
	return low < n && at[low] == v ? low : NONE;
}

static clv_status lost(const char *what)
{
	return fail(CLV_E_VERIFY, "a pass made a plan with other %s than it had", what);
}

static clv_status map_externals(const view *outer, const view *inner, uint32_t **out)
{
	*out = mem_alloc((inner->externals.n + 1) * sizeof **out);
	TRY_MEM(*out);
	for (uint32_t i = 0; i < inner->externals.n; i++) {
		(*out)[i] = find_id(outer->externals.at, outer->externals.n, inner->externals.at[i]);
		if ((*out)[i] == NONE)
			return lost("external tensors");
	}
	return CLV_OK;
}

static clv_status map_inputs(variant *x, part *to, const clv_program *g)
{
	const view *v = &to->program->v;
	to->inputs = mem_alloc((v->inputs.n + 1) * sizeof *to->inputs);
	TRY_MEM(to->inputs);
	for (uint32_t i = 0; i < v->inputs.n; i++) {
		source s = {PARTS, find_id(g->v.inputs.at, g->v.inputs.n, v->inputs.at[i])};
		for (const part *y = x->parts; s.at == NONE && y < to; y++)
			if (y->program)
				s = (source){(part_id)(y - x->parts),
				             find_id(y->program->outputs.at, y->program->outputs.n, v->inputs.at[i])};
		if (s.at == NONE)
			return lost("inputs");
		to->inputs[i] = s;
	}
	return CLV_OK;
}

static clv_status check_variant_outputs(const variant *x, const clv_program *g)
{
	const clv_program *last = x->parts[PART_MAIN].program;
	bool same = last->outputs.n == g->outputs.n && last->out_numbers.n == g->out_numbers.n;
	for (uint32_t i = 0; same && i < g->outputs.n; i++)
		same = last->outputs.at[i] == g->outputs.at[i];
	return same ? CLV_OK : lost("outputs");
}

/* In eager they can be written in any grad mode, as no view can that was made without. */
static clv_status find_alone(variant *x, const clv_program *g)
{
	x->alone = mem_alloc((g->outputs.n + 1) * sizeof *x->alone);
	for (uint32_t i = 0; x->alone && i < g->outputs.n; i++) {
		value_id v = g->outputs.at[i];
		x->alone[i] = g->p->values.at[v].alias == NONE && x->made.p->values.at[v].alias != NONE;
	}
	return x->alone ? CLV_OK : fail_nomem();
}

static void mark_checked(const part *x, bool *inputs, bool *externals)
{
	for (uint32_t i = 0; i < x->program->v.inputs.n; i++)
		if (x->inputs[i].from == PARTS)
			inputs[x->inputs[i].at] = true;
	for (uint32_t i = 0; i < x->program->v.externals.n; i++)
		externals[x->externals[i]] = true; /* of what is kept: when it changes */
}

/* What no node reads any more is checked all the same: a forward may have gone its way for that. A range that begins later
   does not compare the memory of its inputs. */
static clv_status find_checks(variant *x, const clv_program *g)
{
	uint32_t n = g->v.inputs.n + g->v.externals.n;
	bool *checked = mem_alloc((n + 1) * sizeof *checked);
	TRY_MEM(checked);
	bool later = false;
	for (unsigned i = 0; i < PARTS; i++) {
		if (x->parts[i].program)
			mark_checked(&x->parts[i], checked, checked + g->v.inputs.n);
		later |= i < PART_MAIN && x->parts[i].program;
	}
	x->checks = g->writes_inputs && later;
	for (uint32_t i = 0; i < n; i++)
		x->checks |= !checked[i];
	mem_free(checked);
	return CLV_OK;
}

/* Compiled segments are in the main part. */
static clv_status lower_part(variant *x, const clv_program *g, const program_spec *spec, part_id at)
{
	program_spec mine = *spec;
	part *to = &x->parts[at];
	mine.optimize = OPTIMIZE_NONE;
	mine.inference = true;
	mine.threads = 0; /* the caller has set them */
	mine.first = x->made.part[at];
	mine.end = x->made.part[at + 1];
	mine.live = at == PART_MAIN ? NULL : &x->live;
	mine.ncodes = at == PART_MAIN ? spec->ncodes : 0;
	mine.of = g;
	mine.places = x->made.pinned;
	mine.pooled = at == PART_MAIN; /* what the others make is kept */
	if (at != PART_MAIN && mine.first == mine.end)
		return CLV_OK;
	TRY(program_new(x->made.p, &mine, &to->program));
	TRY(map_externals(&g->v, &to->program->v, &to->externals));
	return map_inputs(x, to, g);
}

/* Passes leave the nodes of compiled segments alone. */
static clv_status optimize_around(const clv_program *g, const program_spec *spec, optimize_spec s, optimized_plan *out)
{
	node_span *pinned = mem_alloc((spec->ncodes + 1) * sizeof *pinned);
	TRY_MEM(pinned);
	for (uint32_t i = 0; i < spec->ncodes; i++)
		pinned[i] = (node_span){spec->codes[i]->first, spec->codes[i]->end};
	s.pinned = pinned;
	s.npinned = spec->ncodes;
	clv_status st = optimize(g->p, spec->first, spec->end, &s, out);
	mem_free(pinned);
	return st;
}

static clv_status variant_init(variant *x, const clv_program *g, const program_spec *spec, const optimize_spec *s)
{
	if (pthread_mutex_init(&x->lock, NULL) != 0)
		return fail_nomem();
	x->has_lock = true;
	TRY(optimize_around(g, spec, *s, &x->made));
	TRY(liveness_new(x->made.p, &x->live));
	for (unsigned i = 0; i < PARTS; i++)
		TRY(lower_part(x, g, spec, (part_id)i));
	TRY(find_checks(x, g));
	TRY(check_variant_outputs(x, g));
	return find_alone(x, g);
}

clv_status variant_new(const clv_program *g, const program_spec *spec, const optimize_spec *s, variant **out)
{
	variant *x = mem_alloc(sizeof *x);
	TRY_MEM(x);
	clv_status st = variant_init(x, g, spec, s);
	if (st != CLV_OK) {
		variant_free(x);
		return st;
	}
	*out = x;
	return CLV_OK;
}

clv_status variant_of_native(native_way *native, variant **out)
{
	variant *x = mem_alloc(sizeof *x);
	if (!x) {
		native_way_free(native);
		return fail_nomem();
	}
	x->native = native;
	*out = x;
	return CLV_OK;
}

native_way *variant_native(const variant *x)
{
	return x->native;
}

static void part_free(part *x)
{
	program_free(x->program);
	mem_free(x->externals);
	mem_free(x->inputs);
}

void variant_free(variant *x)
{
	if (!x)
		return;
	native_way_free(x->native);
	drop_kept(x);
	for (unsigned i = 0; i < PARTS; i++)
		part_free(&x->parts[i]);
	mem_free(x->alone);
	liveness_free(&x->live);
	optimized_plan_free(&x->made);
	if (x->has_lock)
		pthread_mutex_destroy(&x->lock);
	mem_free(x);
}

const optimized_plan *variant_plan(const variant *x)
{
	return x->made.p ? &x->made : NULL;
}

clv_status variant_keeps(const variant *x, int64_t *bytes)
{
	const clv_program *once = x->parts[PART_ONCE].program;
	const plan *p = x->made.p;
	*bytes = 0;
	if (!once)
		return CLV_OK;
	bool *seen = mem_alloc(((size_t)p->values.n + 1) * sizeof *seen);
	TRY_MEM(seen);
	for (uint32_t i = 0; i < once->outputs.n; i++) {
		value_id root = alias_root(p, once->outputs.at[i]);
		int64_t more = 0;
		if (!seen[root] && p->values.at[root].kind == VALUE_RESULT && value_bytes(p, root, NULL, &more) == CLV_OK &&
		    __builtin_add_overflow(*bytes, more, bytes))
			*bytes = INT64_MAX;
		seen[root] = true;
	}
	mem_free(seen);
	return CLV_OK;
}

pool *variant_memory(const variant *x)
{
	return x->native ? NULL : x->parts[PART_MAIN].program->memory;
}

/* ---- running ------------------------------------------------------------------------------------------------------ */

/* Everything up to the guards. Caller calls turn_end, also on failure. */
static clv_status turn_begin(variant *x, const clv_program *g, const run_spec *r, turn *now)
{
	uint32_t n = g->p->symbols.n;
	*now = (turn){.g = g, .r = r};
	now->symbols = n > sizeof now->few / sizeof *now->few ? mem_alloc(n * sizeof *now->symbols) : now->few;
	TRY_MEM(now->symbols);
	if (n)
		TRY(program_symbols(g, r, now->symbols));
	TRY(take_kept(x, now));
	hold_for_stream(now->kept[PART_ONCE]);
	hold_for_stream(now->kept[PART_SIZED]);
	return CLV_OK;
}

static void turn_end(turn *now)
{
	kept_unref(now->kept[PART_ONCE]);
	kept_unref(now->kept[PART_SIZED]);
	if (now->symbols != now->few)
		mem_free(now->symbols);
}

static clv_status part_from_base(const variant *x, br_tensor **outputs, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		br_tensor *alone;
		if (!x->alone[i] || !outputs[i])
			continue;
		TRY(br_leaf(outputs[i], false, &alone));
		br_unref(outputs[i]);
		outputs[i] = alone;
	}
	return CLV_OK;
}

static clv_status run_main(const variant *x, turn *now, br_tensor *const *guards)
{
	uint32_t n = now->g->outputs.n;
	now->guards = guards;
	TRY(run_part(&x->parts[PART_MAIN], now, now->symbols, now->r->outputs));
	clv_status st = part_from_base(x, now->r->outputs, n);
	if (st != CLV_OK)
		release_all(now->r->outputs, n);
	return st;
}

static clv_status run_guards_and_main(const variant *x, turn *now)
{
	const part *before = &x->parts[PART_GUARDS];
	br_tensor *few[FEW] = {0}, **made = few;
	uint32_t n = before->program->outputs.n;
	if (n > FEW && !(made = mem_alloc(n * sizeof *made)))
		return fail_nomem();
	run_spec alone = *now->r;
	alone.over = NULL;
	turn first = *now;
	first.r = &alone;
	clv_status st = run_part(before, &first, now->symbols, made);
	if (st == CLV_OK)
		st = run_main(x, now, made);
	release_all(made, n);
	if (made != few)
		mem_free(made);
	return st;
}

uint32_t variant_guards(const variant *x)
{
	const clv_program *g = x->parts[PART_GUARDS].program;
	return g ? g->outputs.n : 0;
}

/* Another way was chosen between the guards and the rest, or before them. */
static clv_status check_guards(const variant *x, const run_spec *r)
{
	uint32_t want = variant_guards(x);
	return r->nguards == want ? CLV_OK
	                          : fail(CLV_E_INVALID, "guards give %u tensors to the rest, not %u", want, r->nguards);
}

clv_status variant_run(variant *x, const clv_program *g, const run_spec *r)
{
	turn now;
	bool ready = r->guards || !x->parts[PART_GUARDS].program;
	if (x->native && r->over && r->over->left)
		return handover_pass(r->over);
	if (x->native) {
		run_spec mine = *r;
		mine.over = NULL;
		return native_way_run(x->native, g, &mine);
	}
	if (r->guards)
		TRY(check_guards(x, r));
	if (x->checks)
		TRY(program_check_run(g, r));
	clv_status st = turn_begin(x, g, r, &now);
	if (st == CLV_OK)
		st = ready ? run_main(x, &now, r->guards) : run_guards_and_main(x, &now);
	turn_end(&now);
	return st;
}

clv_status variant_prepare(variant *x, const clv_program *g, const run_spec *r, uint64_t *generation)
{
	turn now;
	const part *before = &x->parts[PART_GUARDS];
	TRY(check_guards(x, r));
	*generation = 0;
	if (x->native)
		return CLV_OK;
	clv_status st = turn_begin(x, g, r, &now);
	const kept *k = now.kept[PART_SIZED] ? now.kept[PART_SIZED] : now.kept[PART_ONCE];
	*generation = k ? k->generation : 0;
	if (st == CLV_OK && before->program)
		st = run_part(before, &now, now.symbols, r->outputs);
	turn_end(&now);
	return st;
}
