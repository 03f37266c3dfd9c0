/* Which plan serves a call.
 *
 * Entries are counted, so that one may be evicted while another thread runs it; a lock guards the list, and is held while
 * an entry is looked for and never while one runs. */
#include "runtime/dispatch.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"
#include "runtime/handover.h"

enum { MOST_MISSES = 3 }; /* of one call: its regime, its sizes, a guard */

typedef struct entry {
	_Atomic uint32_t refs;
	uint32_t regime, npoint;
	dispatch_rank rank;
	char *name;
	VEC(int64_t) points;   /* npoint numbers each, sorted */
	_Atomic uint64_t used; /* when it served last, by the clock */
	void *payload;
} entry;

struct dispatch {
	pthread_rwlock_t lock; /* around `entries` and the points of each */
	VEC(entry *) entries;
	uint32_t limit;
	_Atomic uint32_t last; /* the entry that served last; it may be gone */
	_Atomic uint64_t clock, version;
	dispatch_hooks hooks;
};

static void entry_unref(const dispatch *d, entry *e)
{
	if (!e || atomic_fetch_sub(&e->refs, 1) != 1)
		return;
	if (d->hooks.release && e->payload)
		d->hooks.release(e->payload);
	vec_free(&e->points);
	mem_free(e->name);
	mem_free(e);
}

clv_status dispatch_new(uint32_t limit, const dispatch_hooks *hooks, dispatch **out)
{
	dispatch *d = mem_alloc(sizeof *d);
	TRY_MEM(d);
	pthread_rwlock_init(&d->lock, NULL);
	d->limit = limit;
	d->hooks = *hooks;
	*out = d;
	return CLV_OK;
}

void dispatch_clear(dispatch *d)
{
	pthread_rwlock_wrlock(&d->lock);
	entry **gone = d->entries.at;
	uint32_t n = d->entries.n;
	d->entries.at = NULL;
	d->entries.n = d->entries.cap = 0;
	atomic_fetch_add(&d->version, 1);
	pthread_rwlock_unlock(&d->lock);
	for (uint32_t i = 0; i < n; i++)
		entry_unref(d, gone[i]);
	mem_free(gone);
}

void dispatch_free(dispatch *d)
{
	if (!d)
		return;
	dispatch_clear(d);
	pthread_rwlock_destroy(&d->lock);
	mem_free(d);
}

/* ---- points ----------------------------------------------------------------------------------------------------- */

static int point_order(const int64_t *a, const int64_t *b, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (a[i] != b[i])
			return a[i] < b[i] ? -1 : 1;
	return 0;
}

/* Where a point is among those of an entry, or belongs. */
static uint32_t point_place(const entry *e, const int64_t *point, bool *found)
{
	uint32_t n = e->npoint, low = 0, high = n ? e->points.n / n : 0;
	*found = n == 0;
	while (low < high && !*found) {
		uint32_t mid = low + (high - low) / 2;
		int order = point_order(e->points.at + (size_t)mid * n, point, n);
		*found = order == 0;
		low = order < 0 ? mid + 1 : low;
		high = order < 0 ? high : mid;
	}
	return *found && n ? high : low;
}

static bool has_point(const entry *e, const int64_t *point, uint32_t npoint)
{
	bool found = true;
	if (e->npoint != DISPATCH_ANY && npoint != DISPATCH_ANY) {
		found = e->npoint == npoint;
		if (found)
			point_place(e, point, &found);
	}
	return found;
}

static clv_status add_point(entry *e, const int64_t *point)
{
	bool found;
	if (e->npoint == DISPATCH_ANY)
		return CLV_OK;
	uint32_t n = e->npoint, at = point_place(e, point, &found) * n;
	if (found)
		return CLV_OK;
	TRY(vec_reserve(&e->points, n));
	memmove(e->points.at + at + n, e->points.at + at, (e->points.n - at) * sizeof *e->points.at);
	memcpy(e->points.at + at, point, n * sizeof *point);
	e->points.n += n;
	return CLV_OK;
}

/* ---- entries ---------------------------------------------------------------------------------------------------- */

static clv_status entry_new(dispatch *d, const dispatch_entry *from, entry **out)
{
	entry *e = mem_alloc(sizeof *e);
	TRY_MEM(e);
	e->refs = 1;
	e->regime = from->regime;
	e->npoint = from->npoint;
	e->rank = from->rank;
	e->used = atomic_fetch_add(&d->clock, 1);
	e->name = mem_strdup(from->name, strlen(from->name));
	clv_status st = e->name ? add_point(e, from->point) : fail_nomem();
	if (st == CLV_OK)
		st = vec_reserve(&d->entries, 1);
	if (st != CLV_OK) {
		entry_unref(d, e);
		return st;
	}
	e->payload = from->payload;
	*out = e;
	return CLV_OK;
}

static void take_out(dispatch *d, uint32_t i)
{
	memmove(d->entries.at + i, d->entries.at + i + 1, (d->entries.n - i - 1) * sizeof *d->entries.at);
	d->entries.n--;
}

/* The entry to give up; NONE where there is room, or all stay. */
static uint32_t to_evict(const dispatch *d)
{
	uint32_t found = DISPATCH_ANY;
	if (!d->limit || d->entries.n < d->limit)
		return DISPATCH_ANY;
	for (uint32_t i = 0; i < d->entries.n; i++) {
		const entry *e = d->entries.at[i], *best = found == DISPATCH_ANY ? NULL : d->entries.at[found];
		if (e->rank != RANK_MAIN && (!best || e->rank < best->rank || (e->rank == best->rank && e->used < best->used)))
			found = i;
	}
	return found;
}

static clv_status add_locked(dispatch *d, const dispatch_entry *from, bool *taken, entry **gone)
{
	*taken = false;
	for (uint32_t i = 0; i < d->entries.n; i++) {
		entry *e = d->entries.at[i];
		if (e->payload == from->payload && e->regime == from->regime && e->npoint == from->npoint)
			return add_point(e, from->point);
	}
	entry *made;
	TRY(entry_new(d, from, &made));
	uint32_t old = to_evict(d);
	if (old != DISPATCH_ANY) {
		*gone = d->entries.at[old];
		take_out(d, old);
	}
	d->entries.at[d->entries.n++] = made;
	*taken = true;
	return CLV_OK;
}

clv_status dispatch_add(dispatch *d, const dispatch_entry *e, bool *taken)
{
	entry *gone = NULL;
	pthread_rwlock_wrlock(&d->lock);
	clv_status st = add_locked(d, e, taken, &gone);
	atomic_fetch_add(&d->version, 1);
	pthread_rwlock_unlock(&d->lock);
	if (gone && d->hooks.evicted)
		d->hooks.evicted(d->hooks.owner, gone->payload);
	entry_unref(d, gone);
	return st;
}

void dispatch_drop(dispatch *d, const void *payload)
{
	for (bool found = true; found;) {
		entry *gone = NULL;
		pthread_rwlock_wrlock(&d->lock);
		for (uint32_t i = 0; i < d->entries.n && !gone; i++)
			if (d->entries.at[i]->payload == payload) {
				gone = d->entries.at[i];
				take_out(d, i);
			}
		pthread_rwlock_unlock(&d->lock);
		found = gone != NULL;
		entry_unref(d, gone);
	}
}

uint32_t dispatch_count(dispatch *d)
{
	pthread_rwlock_rdlock(&d->lock);
	uint32_t n = d->entries.n;
	pthread_rwlock_unlock(&d->lock);
	return n;
}

uint64_t dispatch_version(dispatch *d)
{
	return atomic_load(&d->version);
}

static bool answers(const entry *e, const dispatch_query *q)
{
	return (q->regime == DISPATCH_ANY || q->regime == e->regime) && has_point(e, q->point, q->npoint) &&
	       (!q->name || strcmp(q->name, e->name) == 0);
}

clv_status dispatch_each(dispatch *d, const dispatch_query *q, clv_status (*visit)(void *ctx, const dispatch_entry *e),
                         void *ctx)
{
	clv_status st = CLV_OK;
	pthread_rwlock_rdlock(&d->lock);
	for (uint32_t i = 0; i < d->entries.n && st == CLV_OK; i++) {
		const entry *e = d->entries.at[i];
		dispatch_entry shown = {e->regime, e->rank, e->name, e->points.at, e->npoint, e->payload};
		if (answers(e, q))
			st = visit(ctx, &shown);
	}
	pthread_rwlock_unlock(&d->lock);
	return st;
}

/* ---- serving ---------------------------------------------------------------------------------------------------- */

typedef struct refused {
	entry *e; /* counted; NULL: it had gone already */
	const void *payload;
} refused;

typedef struct search {
	const dispatch_call *c;
	uint32_t first, tried, at; /* places in the list; `at`: of the last that was found */
	uint64_t version;          /* of the list that they are places in */
	bool begun, met_regime, met_sizes, several;
	VEC(refused) refused;
	VEC(const void *) passed; /* that cannot go on where a run was left */
	handover left;
} search;

static bool was_refused(const search *s, const void *payload)
{
	for (uint32_t i = 0; i < s->refused.n; i++)
		if (s->refused.at[i].payload == payload)
			return true;
	return false;
}

static bool has_passed(const search *s, const void *payload)
{
	for (uint32_t i = 0; i < s->passed.n; i++)
		if (s->passed.at[i] == payload)
			return true;
	return false;
}

static uint32_t place_of(const dispatch *d, const void *payload)
{
	for (uint32_t i = 0; i < d->entries.n; i++)
		if (d->entries.at[i]->payload == payload)
			return i;
	return 0;
}

/* Where the search is, once more from the start if the list is another one. */
static void follow(const dispatch *d, search *s)
{
	uint64_t now = atomic_load_explicit(&d->version, memory_order_relaxed);
	if (s->begun && s->version == now && s->tried <= d->entries.n)
		return;
	s->first = atomic_load_explicit(&d->last, memory_order_relaxed);
	if (s->c->in_order || s->first >= d->entries.n)
		s->first = 0;
	s->version = now;
	s->begun = true;
	s->tried = 0;
}

/* The next entry that answers and was not refused, counted; NULL: there is none. */
static entry *next_locked(dispatch *d, search *s)
{
	const dispatch_query *q = &s->c->query;
	follow(d, s);
	s->several = d->entries.n > 1;
	while (s->tried < d->entries.n) {
		uint32_t at = s->first + s->tried++;
		s->at = at < d->entries.n ? at : at - d->entries.n;
		entry *e = d->entries.at[s->at];
		s->met_regime |= q->regime == DISPATCH_ANY || e->regime == q->regime;
		if (!answers(e, q))
			continue;
		s->met_sizes = true;
		if ((s->refused.n && was_refused(s, e->payload)) || (s->passed.n && has_passed(s, e->payload)))
			continue;
		atomic_fetch_add_explicit(&e->refs, 1, memory_order_relaxed);
		return e;
	}
	return NULL;
}

static clv_status next(dispatch *d, search *s, entry **out)
{
	for (;;) {
		pthread_rwlock_rdlock(&d->lock);
		entry *e = *out = next_locked(d, s);
		pthread_rwlock_unlock(&d->lock);
		if (!e || !s->c->fits)
			return CLV_OK;
		clv_status st = s->c->fits(s->c->ctx, e->payload);
		if (st == CLV_OK)
			return CLV_OK;
		entry_unref(d, e);
		*out = NULL;
		if (st == CLV_E_NOMEM)
			return st; /* says nothing about the entry */
	}
}

/* What was left reads programs of the entries, which stay for it. */
static void search_end(dispatch *d, search *s)
{
	bool whole;
	if (s->left.left) /* something else than a guard ended the call, before a plan went on */
		(void)handover_undo(&s->left, &whole);
	handover_drop(&s->left);
	vec_free(&s->passed);
	for (uint32_t i = 0; i < s->refused.n; i++)
		entry_unref(d, s->refused.at[i].e);
	vec_free(&s->refused);
}

clv_status dispatch_find(dispatch *d, const dispatch_call *c, void **payload)
{
	search s = {.c = c};
	entry *e;
	TRY(next(d, &s, &e));
	*payload = e ? e->payload : NULL;
	entry_unref(d, e);
	return CLV_OK;
}

/* Nothing is written where the same entry serves again. */
static void served(dispatch *d, const search *s, entry *e)
{
	if (e->used + 1 != atomic_load_explicit(&d->clock, memory_order_relaxed))
		e->used = atomic_fetch_add(&d->clock, 1);
	if (!s->c->in_order && s->at != atomic_load_explicit(&d->last, memory_order_relaxed))
		atomic_store_explicit(&d->last, s->at, memory_order_relaxed);
}

/* The entry of a payload, counted; NULL: it is gone. */
static entry *entry_of(dispatch *d, const void *payload, uint32_t *at, bool *several)
{
	pthread_rwlock_rdlock(&d->lock);
	*at = place_of(d, payload);
	entry *e = *at < d->entries.n && d->entries.at[*at]->payload == payload ? d->entries.at[*at] : NULL;
	*several = d->entries.n > 1;
	if (e)
		atomic_fetch_add(&e->refs, 1);
	pthread_rwlock_unlock(&d->lock);
	return e;
}

static bool guard_refused(clv_status st)
{
	return st == CLV_E_GUARD && status_details()->undone;
}

/* What the first refusal said, for a call that nothing serves. */
typedef struct story {
	char *message; /* NULL: there was none */
	clv_error_details details;
} story;

static clv_status story_keep(story *t)
{
	if (t->message)
		return CLV_OK;
	t->details = *status_details();
	t->message = mem_strdup(status_message(), strlen(status_message()));
	return t->message ? CLV_OK : fail_nomem();
}

static clv_status story_tell(const story *t)
{
	if (!t->message)
		return fail(CLV_E_NOT_FOUND, "no plan is for this call");
	clv_status st = fail(CLV_E_GUARD, "%s", t->message);
	*status_details() = t->details;
	return st;
}

static clv_status run_one(search *s, void *payload)
{
	if (!s->c->hands_over || !s->several)
		return s->c->run(s->c->ctx, payload);
	s->left.passed = false;
	handover_open(&s->left);
	clv_status st = s->c->run(s->c->ctx, payload);
	handover_close(&s->left);
	return st;
}

/* From the beginning, those that passed too. */
static void look_again(search *s)
{
	s->passed.n = 0;
	s->begun = false;
}

/* Runs a payload. *over: that was the answer; else a guard refused, and another one may serve. Takes e. */
static clv_status attempt(dispatch *d, search *s, story *t, entry *e, void *payload, bool *over)
{
	uint32_t taken = s->left.taken;
	clv_status st = run_one(s, payload);
	bool keeps = false;
	*over = !guard_refused(st);
	if (*over && st == CLV_OK && e)
		served(d, s, e);
	if (!*over) {
		keeps = !s->left.passed;
		st = story_keep(t);
		if (st == CLV_OK)
			st = keeps ? vec_push(&s->refused, ((refused){e, payload})) : vec_push(&s->passed, payload);
		if (s->left.taken != taken)
			look_again(s);
		*over = st != CLV_OK;
	}
	if (*over || !keeps)
		entry_unref(d, e);
	return st;
}

/* No plan goes on where a run was left: it is taken back, and those that are left begin. */
static clv_status begin_again(search *s, story *t)
{
	bool whole;
	TRY(handover_undo(&s->left, &whole));
	look_again(s);
	t->details.undone &= whole;
	return whole ? CLV_OK : story_tell(t);
}

static clv_status serve(dispatch *d, search *s, story *t)
{
	const dispatch_call *c = s->c;
	bool over = false;
	clv_status st = CLV_OK;
	void *payload = (void *)c->first;
	for (unsigned misses = 0; !over;) {
		entry *e = NULL;
		if (!payload)
			TRY(next(d, s, &e));
		if (!payload && !e && s->left.left) {
			TRY(begin_again(s, t));
			continue;
		}
		if (!payload && !e && c->miss && misses++ < MOST_MISSES) {
			dispatch_answer found = {0};
			TRY(c->miss(c->ctx, s->refused.n ? MISS_GUARD : s->met_regime ? MISS_SIZES : MISS_REGIME, &found));
			misses -= found.again;
			if (found.again)
				continue;
			payload = found.payload;
		}
		if (!payload && !e)
			return story_tell(t);
		if (!e)
			e = entry_of(d, payload, &s->at, &s->several);
		st = attempt(d, s, t, e, e ? e->payload : payload, &over);
		payload = NULL;
	}
	return st;
}

clv_status dispatch_serve(dispatch *d, const dispatch_call *c)
{
	search s = {.c = c};
	story t; /* its details are many bytes, which most calls do not need */
	t.message = NULL;
	clv_status st = serve(d, &s, &t);
	search_end(d, &s);
	mem_free(t.message);
	return st;
}
