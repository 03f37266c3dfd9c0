/* Pools: trace the memory requests of a first run, and serve later runs from a planned chunk. */
#include "memory/pool.h"

#include <stdatomic.h>
#include <string.h>

#include "base/human.h"
#include "memory/chunk.h"
#include "memory/layout.h"
#include "memory/recycle.h"

enum { MOST_SIZES = 8, MOST_TRACES = 3, MOST_HELD = 8, MOST_LIVE = 1 << 14, MOST_BLOCKS = 1 << 20, DEPTH = 64 };

/* What is known of one key. */
typedef struct sizes {
	int64_t *key; /* NULL: the entry is free */
	layout *l;    /* counted; NULL: not traced yet */
	uint64_t used;
	uint32_t traces;
	bool tracing; /* a run is */
	bool stale;   /* a run went otherwise than the traced one */
	bool off;     /* there is nothing to gain */
	bool again;   /* others had to go for it: it is worth a trace when it comes again */
} sizes;

struct pool {
	uint32_t nsteps, nkey;
	sizes at[MOST_SIZES];
	uint64_t clock;
	uint32_t held; /* runs that ended with blocks in use */
	pool_counts last;
};

/* States of blocks in a run; a block is asked for once. */
enum { UNSEEN, BUSY, FREE };

typedef struct live_block {
	const void *at;
	uint32_t i;
} live_block;

struct pool_run {
	pool *p;
	sizes *z;              /* it traces these; NULL: it has a chunk */
	pool_run *outer;       /* of this thread */
	pool_run *next, *prev; /* of all runs */
	uint32_t step;
	/* a run with a chunk */
	layout *l; /* counted */
	chunk *c;
	atomic_uchar *state; /* per block */
	uint32_t now, end;   /* the next request of this step; where the step ends */
	uint64_t asked, placed, outside, outside_bytes, missed;
	/* a run that is traced: under the lock, for others may release */
	VEC(traced_block) blocks;
	VEC(live_block) live;
	uint32_t event;
	bool failed;
};

static _Thread_local pool_run *current;
static pool_run *runs;       /* under the lock */
static atomic_uint watching; /* runs and abandoned chunks: something may be to release */

/* ---- pools ----------------------------------------------------------------------------------------------------- */

clv_status pool_new(uint32_t nsteps, uint32_t nkey, pool **out)
{
	pool *p = mem_alloc(sizeof *p);
	TRY_MEM(p);
	p->nsteps = nsteps;
	p->nkey = nkey;
	*out = p;
	return CLV_OK;
}

static void unref_layout(layout *l)
{
	if (l && --l->refs == 0)
		layout_free(l);
}

static void forget(sizes *z)
{
	unref_layout(z->l);
	mem_free(z->key);
	*z = (sizes){0};
}

void pool_free(pool *p)
{
	if (!p)
		return;
	memory_lock();
	for (uint32_t i = 0; i < MOST_SIZES; i++)
		forget(&p->at[i]);
	chunk_drop_spare(); /* the next run takes what it needs, if there is one */
	memory_unlock();
	mem_free(p);
}

static sizes *find_known_sizes(pool *p, const int64_t *key)
{
	for (uint32_t i = 0; i < MOST_SIZES; i++)
		if (p->at[i].key && (!p->nkey || !memcmp(p->at[i].key, key, p->nkey * sizeof *key)))
			return &p->at[i];
	return NULL;
}

/* Instead of those that were not used for the longest time. */
static sizes *add_sizes(pool *p, const int64_t *key)
{
	sizes *z = NULL;
	for (uint32_t i = 0; i < MOST_SIZES; i++)
		if (!p->at[i].tracing && (!z || p->at[i].used < z->used))
			z = &p->at[i];
	int64_t *copy = z ? mem_alloc((p->nkey + 1) * sizeof *copy) : NULL;
	if (!copy)
		return NULL;
	bool full = z->key != NULL;
	forget(z);
	if (p->nkey)
		memcpy(copy, key, p->nkey * sizeof *copy);
	z->key = copy;
	z->again = full;
	z->used = ++p->clock;
	return z;
}

/* ---- runs ------------------------------------------------------------------------------------------------------ */

static void run_free(pool_run *r)
{
	mem_free(r->state);
	vec_free(&r->blocks);
	vec_free(&r->live);
	mem_free(r);
}

static void register_run(pool_run *r)
{
	r->next = runs;
	if (runs)
		runs->prev = r;
	runs = r;
	atomic_fetch_add(&watching, 1);
}

static void unregister_run(pool_run *r)
{
	if (r->next)
		r->next->prev = r->prev;
	if (r->prev)
		r->prev->next = r->next;
	else
		runs = r->next;
	atomic_fetch_sub(&watching, 1);
}

static bool take_chunk(pool_run *r, layout *l)
{
	r->state = mem_alloc((l->n + 1) * sizeof *r->state);
	r->c = r->state ? chunk_take(l->bytes) : NULL;
	if (!r->c)
		return false;
	r->l = l;
	l->refs++;
	r->end = l->first[1];
	return true;
}

/* What the run is to do; false: nothing. */
static bool start_run(pool_run *r, const int64_t *key)
{
	sizes *known = find_known_sizes(r->p, key), *z = known ? known : add_sizes(r->p, key);
	if (!z)
		return false;
	z->used = ++r->p->clock;
	if (z->off || (!known && z->again) || r->p->held >= MOST_HELD)
		return false;
	bool wanted = !z->l || (z->stale && z->traces < MOST_TRACES);
	if (wanted && !z->tracing) {
		z->tracing = true;
		r->z = z;
		return true;
	}
	return z->l && take_chunk(r, z->l);
}

pool_run *pool_enter(pool *p, const int64_t *key)
{
	pool_run *r = mem_alloc(sizeof *r);
	if (!r)
		return NULL;
	r->p = p;
	memory_lock();
	bool started = start_run(r, key);
	if (started)
		register_run(r);
	memory_unlock();
	if (!started) {
		run_free(r);
		return NULL;
	}
	r->outer = current;
	current = r;
	return r;
}

void pool_step(pool_run *r, uint32_t step)
{
	r->step = step;
	if (!r->l)
		return;
	r->now = r->l->first[step];
	r->end = r->l->first[step + 1];
}

uint64_t pool_run_bytes(const pool_run *r)
{
	return r->l ? r->l->bytes : 0;
}

pool_run *pool_suspend(void)
{
	pool_run *r = current;
	current = NULL;
	return r;
}

void pool_resume(pool_run *r)
{
	current = r;
}

/* ---- the end of a run ------------------------------------------------------------------------------------------ */

static void note_counts(const pool_run *r)
{
	pool_counts *c = &r->p->last;
	*c = (pool_counts){.served = c->served + 1,
	                   .placed = r->placed,
	                   .outside = r->outside,
	                   .outside_bytes = r->outside_bytes,
	                   .missed = r->missed,
	                   .bytes = r->l->bytes,
	                   .bound = r->l->bound};
}

/* A run that differs from its trace is traced again, up to a limit. A run that keeps blocks would keep chunks. */
static void note_differences(pool_run *r, bool held)
{
	for (uint32_t i = 0; i < MOST_SIZES; i++) {
		sizes *z = &r->p->at[i];
		if (z->l != r->l)
			continue;
		z->stale |= held || r->missed || r->asked != r->l->n;
		z->off |= held && z->traces >= MOST_TRACES;
	}
}

static void end_served(pool_run *r, bool complete)
{
	memory_lock();
	bool held = atomic_load(&r->c->live) != 0;
	if (held)
		atomic_fetch_add(&watching, 1); /* first: a thread that releases a held block meanwhile must see it */
	unregister_run(r);
	if (held) {
		r->p->held++;
		chunk_abandon(r->c);
	} else {
		chunk_give(r->c);
	}
	if (complete) {
		note_differences(r, held);
		note_counts(r);
	}
	unref_layout(r->l);
	memory_unlock();
}

/* What a traced run had lies free in the heap, and runs with a chunk do not use it: together they would be twice what a
   run needs. */
static void trim_heap(const layout *l)
{
	if (l->bytes >= 1 << 20)
		memory_trim();
}

static void end_traced(pool_run *r, bool complete)
{
	layout *l = NULL;
	memory_lock();
	unregister_run(r);
	memory_unlock();
	if (complete && !r->failed)
		(void)layout_new(r->blocks.at, r->blocks.n, r->p->nsteps, &l);
	if (l)
		trim_heap(l);
	memory_lock();
	sizes *z = r->z;
	z->tracing = false;
	z->traces += complete;
	if (l) {
		unref_layout(z->l);
		z->l = l;
		z->stale = false;
	}
	z->off |= l ? !l->bytes : z->traces >= MOST_TRACES && !z->l;
	memory_unlock();
}

void pool_leave(pool_run *r, bool complete)
{
	if (!r)
		return;
	current = r->outer;
	if (r->z)
		end_traced(r, complete);
	else
		end_served(r, complete);
	run_free(r);
}

/* ---- requests -------------------------------------------------------------------------------------------------- */

bool pool_entered(void)
{
	return current != NULL;
}

/* All earlier owners of block i's bytes have released them. One that was never given out says nothing about those
   that were there before it. */
static bool is_free(pool_run *r, uint32_t i, uint32_t depth)
{
	const planned_block *b = &r->l->blocks[i];
	for (uint32_t k = 0; k < b->nbefore; k++) {
		uint32_t other = r->l->before.at[b->before + k];
		unsigned char state = atomic_load_explicit(&r->state[other], memory_order_acquire);
		if (state == BUSY || (state == UNSEEN && (depth == DEPTH || !is_free(r, other, depth + 1))))
			return false;
		if (state == UNSEEN) /* it is past: nobody asks for it any more */
			atomic_store_explicit(&r->state[other], FREE, memory_order_relaxed);
	}
	return true;
}

static void *give_place(pool_run *r, uint32_t i)
{
	unsigned char *at = r->c->at + r->l->blocks[i].offset;
	memcpy(at - MEMORY_ALIGN, &i, sizeof i); /* for the release */
	atomic_store_explicit(&r->state[i], BUSY, memory_order_relaxed);
	atomic_fetch_add_explicit(&r->c->live, 1, memory_order_relaxed);
	r->placed++;
	return at;
}

void *pool_serve(size_t size)
{
	pool_run *r = current;
	if (!r || !r->l)
		return NULL;
	r->asked++;
	if (r->now < r->end) {
		uint32_t i = r->now++;
		const planned_block *b = &r->l->blocks[i];
		if (b->offset != PLACE_NONE && size <= b->size && is_free(r, i, 0))
			return give_place(r, i);
		r->missed += b->offset != PLACE_NONE;
	} else {
		r->missed++;
	}
	r->outside++;
	r->outside_bytes += size;
	return NULL;
}

static clv_status trace_request(pool_run *r, const void *at, size_t size)
{
	traced_block b = {r->step, size, r->event, UINT32_MAX};
	live_block x = {at, r->blocks.n};
	if (r->blocks.n == MOST_BLOCKS || r->live.n == MOST_LIVE)
		return CLV_E_NOMEM;
	TRY(vec_push(&r->blocks, b));
	TRY(vec_push(&r->live, x));
	r->event++;
	return CLV_OK;
}

bool pool_note(const void *at, size_t size)
{
	pool_run *r = current;
	if (!r || !r->z || r->failed)
		return false;
	memory_lock();
	r->failed = trace_request(r, at, size) != CLV_OK;
	memory_unlock();
	return !r->failed;
}

/* ---- releases -------------------------------------------------------------------------------------------------- */

static void take_back(pool_run *r, const void *at)
{
	uint32_t i;
	memcpy(&i, (const unsigned char *)at - MEMORY_ALIGN, sizeof i);
	atomic_store_explicit(&r->state[i], FREE, memory_order_release);
	atomic_fetch_sub_explicit(&r->c->live, 1, memory_order_release);
}

/* The youngest is the likeliest. */
static bool trace_release(pool_run *r, const void *at)
{
	for (uint32_t k = r->live.n; k-- > 0;) {
		if (r->live.at[k].at != at)
			continue;
		r->blocks.at[r->live.at[k].i].died = r->event++;
		r->live.at[k] = r->live.at[--r->live.n];
		return true;
	}
	return false;
}

static bool release_anywhere(const void *at)
{
	for (pool_run *r = runs; r; r = r->next) {
		if (r->z && trace_release(r, at))
			return false; /* it is the allocator's, which asked */
		if (r->c && chunk_has(r->c, at)) {
			take_back(r, at);
			return true;
		}
	}
	bool gone = false, ours = chunk_let_go(at, &gone);
	if (gone)
		atomic_fetch_sub(&watching, 1);
	return ours;
}

bool pool_release(const void *at)
{
	pool_run *r = current;
	if (r && r->c && chunk_has(r->c, at)) {
		take_back(r, at);
		return true;
	}
	if (!atomic_load_explicit(&watching, memory_order_acquire))
		return false;
	memory_lock();
	bool ours = release_anywhere(at);
	memory_unlock();
	return ours;
}

/* ---- counts and report ------------------------------------------------------------------------------------------------ */

void pool_count(pool *p, pool_counts *out)
{
	memory_lock();
	*out = p->last;
	memory_unlock();
}

static void report_key(const pool *p, const sizes *z, strbuf *b)
{
	strbuf_puts(b, "memory");
	for (uint32_t i = 0; i < p->nkey; i++) {
		strbuf_puts(b, i ? ", " : " for ");
		if (z->key[i] < 0)
			strbuf_puts(b, "any"); /* it is read from data */
		else
			strbuf_int(b, z->key[i]);
	}
	strbuf_puts(b, ": ");
}

static void report_sizes(const pool *p, const sizes *z, strbuf *b)
{
	report_key(p, z, b);
	strbuf_printf(b, "%u results in ", z->l->placed);
	strbuf_bytes(b, (int64_t)z->l->bytes);
	if (z->l->bytes > z->l->bound) {
		strbuf_puts(b, " (");
		strbuf_bytes(b, (int64_t)z->l->bound);
		strbuf_puts(b, " live at once)");
	}
	strbuf_printf(b, ", %u elsewhere\n", z->l->n - z->l->placed);
}

void pool_report(pool *p, strbuf *b)
{
	memory_lock();
	for (uint32_t i = 0; i < MOST_SIZES; i++)
		if (p->at[i].l && !p->at[i].off)
			report_sizes(p, &p->at[i], b);
	memory_unlock();
}
