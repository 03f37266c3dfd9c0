/* A variant of a program: see optimized.h. */
#include "exec/optimized.h"

#include <pthread.h>
#include <string.h>

#include "exec/beside.h"

/* Results of the prelude, and marks of what they were made of. */
typedef struct kept {
	atomic_uint refs;
	uint64_t *marks;      /* per external of the prelude */
	clv_tensor **from;    /* the same: on its memory, which nobody else gets while it is compared with */
	clv_tensor **tensors; /* per output of the prelude */
	uint32_t nfrom, n;
	uint64_t generation; /* how many were made before it */
} kept;

/* Where an input of the main part comes from. */
typedef struct source {
	bool prelude;
	uint32_t at; /* among the outputs of the prelude, or the inputs of the program */
} source;

struct variant {
	optimized_plan made;
	liveness live;
	clv_program *prelude, *main; /* prelude: NULL where nothing is the same in every run */
	uint32_t *prelude_externals; /* per external of it: which of the program's */
	uint32_t *main_externals;
	source *inputs; /* per input of main */
	bool checks;    /* main does not check all that the program does */
	pthread_mutex_t lock;
	bool has_lock;
	kept *now;           /* under the lock, as the next */
	uint64_t generation; /* how often the prelude ran */
};

/* ---- what is kept ------------------------------------------------------------------------------------------------- */

static void kept_unref(kept *k)
{
	if (!k || atomic_fetch_sub(&k->refs, 1) != 1)
		return;
	for (uint32_t i = 0; k->tensors && i < k->n; i++)
		br_unref(k->tensors[i]);
	for (uint32_t i = 0; k->from && i < k->nfrom; i++)
		br_unref(k->from[i]);
	mem_free(k->tensors);
	mem_free(k->from);
	mem_free(k->marks);
	mem_free(k);
}

static kept *kept_new(uint32_t nfrom, uint32_t ntensors)
{
	kept *k = mem_alloc(sizeof *k);
	if (!k)
		return NULL;
	atomic_init(&k->refs, 1);
	k->n = ntensors;
	k->nfrom = nfrom;
	k->marks = mem_alloc((nfrom + 1) * sizeof *k->marks);
	k->from = mem_alloc((nfrom + 1) * sizeof *k->from);
	k->tensors = mem_alloc((ntensors + 1) * sizeof *k->tensors);
	if (!k->marks || !k->from || !k->tensors) {
		kept_unref(k);
		return NULL;
	}
	return k;
}

/* Constants may be tensors that their maker still writes; all of a small one is looked at. False: nothing tells. */
static bool mark_of(const variant *x, uint32_t i, const clv_tensor *t, uint64_t *out)
{
	const view *v = &x->prelude->v;
	bool constant = v->p->values.at[v->externals.at[i]].kind == VALUE_CONST;
	*out = 0;
	return t && br_mark(t, constant ? SMALL_CONSTANT : 0, out);
}

static bool still_holds(const variant *x, const kept *k, const run_spec *r)
{
	for (uint32_t i = 0; i < x->prelude->v.externals.n; i++) {
		uint64_t mark;
		if (!mark_of(x, i, r->externals[x->prelude_externals[i]], &mark) || mark != k->marks[i])
			return false;
	}
	return true;
}

/* Nothing in the prelude depends on a size, so any will do. */
static int64_t *any_symbols(const plan *p)
{
	int64_t *out = mem_alloc((p->symbols.n + 1) * sizeof *out);
	for (symbol_id s = 0; out && s < p->symbols.n; s++)
		out[s] = p->symbols.at[s].data ? -1 : p->symbols.at[s].lo;
	return out;
}

static clv_status run_prelude(const variant *x, const run_spec *r, kept *k)
{
	const view *v = &x->prelude->v;
	clv_tensor **externals = mem_alloc((v->externals.n + 1) * sizeof *externals);
	int64_t *symbols = any_symbols(x->made.p);
	clv_status st = externals && symbols ? CLV_OK : fail_nomem();
	for (uint32_t i = 0; st == CLV_OK && i < v->externals.n; i++) {
		externals[i] = r->externals[x->prelude_externals[i]];
		(void)mark_of(x, i, externals[i], &k->marks[i]);
		if (externals[i])
			st = br_leaf(externals[i], false, &k->from[i]);
	}
	run_spec inner = {.externals = externals, .outputs = k->tensors, .symbols = symbols};
	if (st == CLV_OK)
		st = program_run(x->prelude, &inner);
	mem_free(externals);
	mem_free(symbols);
	return st;
}

static clv_status make_kept(const variant *x, const run_spec *r, kept **out)
{
	kept *k = kept_new(x->prelude->v.externals.n, x->prelude->outputs.n);
	if (!k)
		return fail_nomem();
	clv_status st = run_prelude(x, r, k);
	if (st == CLV_OK)
		st = wait_for_all(k->tensors, k->n); /* later runs may be on other streams: what they find must be there */
	if (st != CLV_OK) {
		kept_unref(k);
		return st;
	}
	*out = k;
	return CLV_OK;
}

/* A reference to what the prelude gives for these externals. */
static clv_status take_kept(variant *x, const run_spec *r, kept **out)
{
	clv_status st = CLV_OK;
	pthread_mutex_lock(&x->lock);
	if (!x->now || !still_holds(x, x->now, r)) {
		kept_unref(x->now);
		x->now = NULL;
		st = make_kept(x, r, &x->now);
		if (st == CLV_OK)
			x->now->generation = ++x->generation;
	}
	if (st == CLV_OK) {
		atomic_fetch_add(&x->now->refs, 1);
		*out = x->now;
	}
	pthread_mutex_unlock(&x->lock);
	return st;
}

clv_status variant_renew(variant *x, const run_spec *r, uint64_t *generation)
{
	kept *k;
	*generation = 0;
	if (!x->prelude)
		return CLV_OK;
	TRY(take_kept(x, r, &k));
	*generation = k->generation;
	kept_unref(k);
	return CLV_OK;
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
	if (!*out)
		return fail_nomem();
	for (uint32_t i = 0; i < inner->externals.n; i++) {
		(*out)[i] = find_id(outer->externals.at, outer->externals.n, inner->externals.at[i]);
		if ((*out)[i] == NONE)
			return lost("external tensors");
	}
	return CLV_OK;
}

static clv_status map_inputs(variant *x, const clv_program *g)
{
	const view *v = &x->main->v;
	x->inputs = mem_alloc((v->inputs.n + 1) * sizeof *x->inputs);
	if (!x->inputs)
		return fail_nomem();
	for (uint32_t i = 0; i < v->inputs.n; i++) {
		value_id id = v->inputs.at[i];
		uint32_t at = find_id(g->v.inputs.at, g->v.inputs.n, id);
		x->inputs[i] = (source){at == NONE, at};
		if (at == NONE && x->prelude)
			x->inputs[i].at = find_id(x->prelude->outputs.at, x->prelude->outputs.n, id);
		if (x->inputs[i].at == NONE)
			return lost("inputs");
	}
	return CLV_OK;
}

static clv_status check_outputs(const variant *x, const clv_program *g)
{
	bool same = x->main->outputs.n == g->outputs.n && x->main->out_numbers.n == g->out_numbers.n;
	for (uint32_t i = 0; same && i < g->outputs.n; i++)
		same = x->main->outputs.at[i] == g->outputs.at[i];
	return same ? CLV_OK : lost("outputs");
}

/* What no node reads any more is checked all the same: a forward may have gone its way for that. A range that begins later
   does not compare the memory of its inputs. */
static clv_status find_checks(variant *x, const clv_program *g)
{
	bool *checked = mem_alloc((g->v.externals.n + 1) * sizeof *checked);
	uint32_t inputs = 0;
	if (!checked)
		return fail_nomem();
	for (uint32_t i = 0; i < x->main->v.inputs.n; i++)
		inputs += !x->inputs[i].prelude;
	for (uint32_t i = 0; i < x->main->v.externals.n; i++)
		checked[x->main_externals[i]] = true;
	for (uint32_t i = 0; x->prelude && i < x->prelude->v.externals.n; i++)
		checked[x->prelude_externals[i]] = true; /* when it changes */
	x->checks = inputs < g->v.inputs.n || (g->writes_inputs && x->prelude);
	for (uint32_t i = 0; i < g->v.externals.n; i++)
		x->checks |= !checked[i];
	mem_free(checked);
	return CLV_OK;
}

static clv_status lower_parts(variant *x, const program_spec *spec)
{
	program_spec part = *spec;
	part.optimize = OPTIMIZE_NONE;
	part.inference = true;
	if (x->made.main > x->made.first) {
		part.first = x->made.first;
		part.end = x->made.main;
		part.live = &x->live;
		TRY(program_new(x->made.p, &part, &x->prelude));
	}
	part.live = NULL;
	part.pooled = true; /* the prelude runs once, and what it makes is kept */
	part.first = x->made.main;
	part.end = x->made.end;
	return program_new(x->made.p, &part, &x->main);
}

static clv_status variant_init(variant *x, const clv_program *g, const program_spec *spec, const optimize_spec *s)
{
	if (pthread_mutex_init(&x->lock, NULL) != 0)
		return fail_nomem();
	x->has_lock = true;
	TRY(optimize(g->p, spec->first, spec->end, s, &x->made));
	TRY(liveness_new(x->made.p, &x->live));
	TRY(lower_parts(x, spec));
	if (x->prelude)
		TRY(map_externals(&g->v, &x->prelude->v, &x->prelude_externals));
	TRY(map_externals(&g->v, &x->main->v, &x->main_externals));
	TRY(map_inputs(x, g));
	TRY(find_checks(x, g));
	return check_outputs(x, g);
}

clv_status variant_new(const clv_program *g, const program_spec *spec, const optimize_spec *s, variant **out)
{
	variant *x = mem_alloc(sizeof *x);
	if (!x)
		return fail_nomem();
	clv_status st = variant_init(x, g, spec, s);
	if (st != CLV_OK) {
		variant_free(x);
		return st;
	}
	*out = x;
	return CLV_OK;
}

void variant_free(variant *x)
{
	if (!x)
		return;
	kept_unref(x->now);
	program_free(x->prelude);
	program_free(x->main);
	mem_free(x->prelude_externals);
	mem_free(x->main_externals);
	mem_free(x->inputs);
	liveness_free(&x->live);
	optimized_plan_free(&x->made);
	if (x->has_lock)
		pthread_mutex_destroy(&x->lock);
	mem_free(x);
}

const optimized_plan *variant_plan(const variant *x)
{
	return &x->made;
}

pool *variant_memory(const variant *x)
{
	return x->main->memory;
}

/* ---- running ------------------------------------------------------------------------------------------------------ */

static clv_status run_main(const variant *x, const clv_program *g, const run_spec *r, const kept *k, clv_tensor **given,
                           int64_t *symbols)
{
	const view *v = &x->main->v;
	run_spec inner = *r;
	clv_tensor **externals = given + v->inputs.n;
	for (uint32_t i = 0; i < v->inputs.n; i++)
		given[i] = x->inputs[i].prelude ? k->tensors[x->inputs[i].at] : r->inputs[x->inputs[i].at];
	for (uint32_t i = 0; i < v->externals.n; i++)
		externals[i] = r->externals[x->main_externals[i]];
	inner.inputs = given;
	inner.externals = externals;
	inner.grad = false;
	if (g->p->symbols.n) {
		TRY(program_symbols(g, r, symbols));
		inner.symbols = symbols;
	}
	return program_run(x->main, &inner);
}

enum { FEW = 64 };

clv_status variant_run(variant *x, const clv_program *g, const run_spec *r)
{
	clv_tensor *few[FEW], **given = few;
	int64_t some[8], *symbols = some;
	uint32_t n = x->main->v.inputs.n + x->main->v.externals.n;
	kept *k = NULL;
	if (x->checks)
		TRY(program_check_run(g, r));
	if (x->prelude)
		TRY(take_kept(x, r, &k));
	if (n > FEW)
		given = mem_alloc(n * sizeof *given);
	if (g->p->symbols.n > 8)
		symbols = mem_alloc(g->p->symbols.n * sizeof *symbols);
	clv_status st = given && symbols ? run_main(x, g, r, k, given, symbols) : fail_nomem();
	if (given != few)
		mem_free(given);
	if (symbols != some)
		mem_free(symbols);
	kept_unref(k);
	return st;
}
