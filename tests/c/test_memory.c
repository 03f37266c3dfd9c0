/* Memory of runs: places against bounds and against all orders, layouts, and pools served as an allocator would, by
 * threads and with memory that ends. */
#include "support.h"

#include <pthread.h>

#include "memory/chunk.h"
#include "memory/layout.h"
#include "memory/pool.h"
#include "memory/room.h"

/* ---- places ---------------------------------------------------------------------------------------------------- */

static void check_places(const place_block *at, uint32_t n, uint64_t bytes, uint64_t bound)
{
	uint64_t end = 0;
	for (uint32_t i = 0; i < n; i++) {
		assert_true(at[i].offset != PLACE_NONE);
		end = at[i].offset + at[i].size > end ? at[i].offset + at[i].size : end;
		for (uint32_t k = 0; k < i; k++) {
			bool once = at[i].born < at[k].died && at[k].born < at[i].died;
			bool apart = at[i].offset + at[i].size <= at[k].offset || at[k].offset + at[k].size <= at[i].offset;
			assert_true(!once || apart);
		}
	}
	assert_true(end <= bytes && bytes >= bound);
}

static uint64_t largest_live(const place_block *at, uint32_t n)
{
	uint64_t most = 0;
	for (uint32_t i = 0; i < n; i++) {
		uint64_t live = 0;
		for (uint32_t k = 0; k < n; k++)
			live += at[k].born <= at[i].born && at[i].born < at[k].died ? at[k].size : 0;
		most = live > most ? live : most;
	}
	return most;
}

static void blocks_that_live_at_once_lie_apart(void **state)
{
	(void)state;
	uint64_t seed = 1;
	for (int round = 0; round < 2000; round++) {
		place_block at[40];
		uint32_t n = random_below(&seed, 41);
		uint64_t bytes, bound;
		for (uint32_t i = 0; i < n; i++) {
			at[i] = (place_block){.size = 1 + random_below(&seed, 20), .born = random_below(&seed, 30)};
			at[i].died = at[i].born + 1 + random_below(&seed, 12);
		}
		OK(place_blocks(at, n, &bytes, &bound));
		assert_int_equal(bound, largest_live(at, n));
		check_places(at, n, bytes, bound);
	}
}

/* The least that any order of first fit gives. */
static uint64_t least_of_all(place_block *at, uint32_t n, uint32_t done, uint64_t bytes, uint64_t best)
{
	if (bytes >= best)
		return best;
	if (done == n)
		return bytes;
	for (uint32_t i = 0; i < n; i++) {
		if (at[i].offset != PLACE_NONE)
			continue;
		uint64_t from = 0;
		bool moved = true;
		while (moved) {
			moved = false;
			for (uint32_t k = 0; k < n; k++)
				if (at[k].offset != PLACE_NONE && at[i].born < at[k].died && at[k].born < at[i].died &&
				    from < at[k].offset + at[k].size && at[k].offset < from + at[i].size) {
					from = at[k].offset + at[k].size;
					moved = true;
				}
		}
		at[i].offset = from;
		uint64_t end = from + at[i].size;
		best = least_of_all(at, n, done + 1, end > bytes ? end : bytes, best);
		at[i].offset = PLACE_NONE;
	}
	return best;
}

static void few_blocks_are_placed_nearly_as_well_as_can_be(void **state)
{
	(void)state;
	uint64_t seed = 2, ours = 0, least = 0;
	for (int round = 0; round < 300; round++) {
		place_block at[6], copy[6];
		uint64_t bytes, bound;
		for (uint32_t i = 0; i < 6; i++) {
			at[i] = (place_block){.size = 1 + random_below(&seed, 9), .born = random_below(&seed, 8)};
			at[i].died = at[i].born + 1 + random_below(&seed, 4);
			copy[i] = at[i];
			copy[i].offset = PLACE_NONE;
		}
		OK(place_blocks(at, 6, &bytes, &bound));
		uint64_t best = least_of_all(copy, 6, 0, 0, UINT64_MAX);
		assert_true(bytes >= best && best >= bound);
		ours += bytes;
		least += best;
	}
	assert_true(ours * 100 <= least * 102);
}

static void a_chain_takes_no_more_than_two_neighbours(void **state)
{
	(void)state;
	enum { N = 1000 };
	static place_block at[N];
	uint64_t seed = 3, bytes, bound;
	for (uint32_t i = 0; i < N; i++)
		at[i] = (place_block){.size = 1 + random_below(&seed, 1000), .born = i, .died = i + 2};
	OK(place_blocks(at, N, &bytes, &bound));
	check_places(at, N, bytes, bound);
	assert_int_equal(bytes, bound);
}

static void very_many_blocks_are_placed_in_the_order_of_time_or_not_at_all(void **state)
{
	(void)state;
	enum { N = 40000 };
	uint64_t bytes, bound;
	place_block *at = mem_alloc(N * sizeof *at);
	assert_non_null(at);
	for (uint32_t i = 0; i < N; i++)
		at[i] = (place_block){.size = 64, .born = i, .died = i + 3};
	OK(place_blocks(at, N, &bytes, &bound));
	assert_int_equal(bytes, 3 * 64);
	for (uint32_t i = 0; i < N; i++)
		at[i].died = N;
	OK(place_blocks(at, N, &bytes, &bound));
	assert_int_equal(bytes, 0);
	assert_true(at[0].offset == PLACE_NONE && at[N - 1].offset == PLACE_NONE);
	mem_free(at);
}

static void blocks_that_make_no_sense_are_refused(void **state)
{
	(void)state;
	uint64_t bytes, bound;
	place_block dead = {.size = 1, .born = 2, .died = 2};
	place_block large[2] = {{.size = INT64_MAX, .born = 0, .died = 1}, {.size = 1, .born = 1, .died = 2}};
	FAILS(place_blocks(&dead, 1, &bytes, &bound), CLV_E_INVALID, "block 0 dies at 2");
	FAILS(place_blocks(large, 2, &bytes, &bound), CLV_E_OVERFLOW, "2^63");
	OK(place_blocks(NULL, 0, &bytes, &bound));
	assert_int_equal(bytes, 0);
}

/* ---- layouts --------------------------------------------------------------------------------------------------- */

static void a_layout_knows_who_had_the_bytes_before(void **state)
{
	(void)state;
	traced_block at[] = {{0, 100, 0, 2}, {1, 100, 1, 4}, {2, 100, 3, 6}, {2, 10, 5, UINT32_MAX}};
	layout *l;
	OK(layout_new(at, 4, 4, &l));
	assert_int_equal(l->placed, 3);
	assert_int_equal(l->bytes, 2 * (128 + 64));
	assert_true(l->blocks[3].offset == PLACE_NONE);
	assert_int_equal(l->blocks[2].offset, l->blocks[0].offset);
	assert_int_equal(l->blocks[2].nbefore, 1);
	assert_int_equal(l->before.at[l->blocks[2].before], 0);
	assert_int_equal(l->blocks[0].nbefore, 0);
	assert_int_equal(l->first[2], 2);
	assert_int_equal(l->first[3], 4);
	assert_int_equal(l->first[4], 4);
	layout_free(l);
	at[1].step = 5;
	FAILS(layout_new(at, 4, 4, &l), CLV_E_INVALID, "block 1 of a trace");
}

/* ---- pools, as an allocator uses them -------------------------------------------------------------------------- */

static void *get(size_t size)
{
	void *at = pool_serve(size);
	if (at)
		return at;
	at = malloc(size);
	(void)pool_note(at, size);
	return at;
}

static void put(void *at)
{
	if (!pool_release(at))
		free(at);
}

static bool in_pool(void *at)
{
	bool ours = pool_release(at);
	if (!ours)
		free(at);
	return ours;
}

static pool *new_pool(uint32_t nsteps, uint32_t nkey)
{
	pool *p;
	OK(pool_new(nsteps, nkey, &p));
	return p;
}

/* A run of three steps: 0 makes a, 1 makes b with scratch, 2 makes the output and drops a and b. */
static void *run_small(pool *p, size_t size, bool complete)
{
	pool_run *r = pool_enter(p, NULL);
	unsigned char *a = get(size), *scratch, *b, *out;
	memset(a, 1, size);
	if (r)
		pool_step(r, 1);
	scratch = get(size * 2);
	memset(scratch, 2, size * 2);
	b = get(size);
	memset(b, 3, size);
	put(scratch);
	if (r)
		pool_step(r, 2);
	out = get(size);
	memset(out, 4, size);
	assert_int_equal(a[0] + a[size - 1], 2);
	assert_int_equal(b[0] + b[size - 1], 6);
	put(a);
	put(b);
	pool_leave(r, complete);
	return out;
}

static void the_second_run_has_its_memory_from_a_pool(void **state)
{
	(void)state;
	pool *p = new_pool(3, 0);
	pool_counts c;
	for (int i = 0; i < 5; i++) {
		void *out = run_small(p, 1000, true);
		pool_count(p, &c);
		assert_int_equal(c.served, i);
		assert_false(in_pool(out));
	}
	assert_int_equal(c.placed, 3);
	assert_int_equal(c.outside, 1);
	assert_int_equal(c.outside_bytes, 1000);
	assert_int_equal(c.missed, 0);
	assert_int_equal(c.bytes, c.bound);
	strbuf b = STRBUF_INIT;
	pool_report(p, &b);
	char *text = taken(&b);
	assert_string_equal(text, "memory: 3 results in 4.3 kB, 1 elsewhere\n");
	mem_free(text);
	pool_free(p);
	memory_lock();
	assert_int_equal(chunk_bytes(), 0);
	memory_unlock();
}

static void a_run_that_asks_for_more_is_served_from_elsewhere_and_traced_again(void **state)
{
	(void)state;
	pool *p = new_pool(3, 0);
	pool_counts c;
	for (int i = 0; i < 3; i++)
		free(run_small(p, 1000, true));
	free(run_small(p, 5000, true)); /* missed */
	pool_count(p, &c);
	assert_int_equal(c.missed, 3);
	free(run_small(p, 5000, true)); /* traced */
	free(run_small(p, 5000, true));
	pool_count(p, &c);
	assert_int_equal(c.missed, 0);
	assert_int_equal(c.placed, 3);
	free(run_small(p, 900, true)); /* less is all right */
	pool_count(p, &c);
	assert_int_equal(c.missed, 0);
	pool_free(p);
}

static void a_run_that_fails_leaves_things_as_they_are(void **state)
{
	(void)state;
	pool *p = new_pool(3, 0);
	pool_counts c;
	free(run_small(p, 1000, false)); /* its trace says nothing */
	free(run_small(p, 1000, true));
	pool_count(p, &c);
	assert_int_equal(c.served, 0);
	free(run_small(p, 1000, true));
	pool_count(p, &c);
	assert_int_equal(c.served, 1);
	free(run_small(p, 1, false));
	pool_count(p, &c);
	assert_int_equal(c.served, 1);
	pool_free(p);
}

/* One block in step 0; `keep` is not released by the run. */
static void *run_one(pool *p, size_t size, bool keep)
{
	pool_run *r = pool_enter(p, NULL);
	void *a = get(size), *b = get(size);
	memset(a, 7, size);
	memset(b, 8, size);
	put(b);
	if (!keep)
		put(a);
	pool_leave(r, true);
	return keep ? a : NULL;
}

static void what_is_held_beyond_a_run_keeps_its_bytes(void **state)
{
	(void)state;
	enum { N = 40, SIZE = 3000 };
	pool *p = new_pool(1, 0);
	unsigned char *held[N];
	uint32_t in_chunks = 0;
	for (int i = 0; i < 3; i++)
		run_one(p, SIZE, false);
	for (int i = 0; i < N; i++) {
		held[i] = run_one(p, SIZE, true);
		run_one(p, SIZE, false);
	}
	for (int i = 0; i < N; i++) {
		for (int k = 0; k < SIZE; k++)
			assert_int_equal(held[i][k], 7);
		in_chunks += in_pool(held[i]);
	}
	assert_true(in_chunks > 0 && in_chunks <= 8); /* it gives up before it keeps a chunk for each */
	pool_free(p);
}

static void a_place_in_use_is_not_given_twice(void **state)
{
	(void)state;
	pool *p = new_pool(2, 0);
	unsigned char *first = NULL;
	for (int i = 0; i < 4; i++) {
		pool_run *r = pool_enter(p, NULL);
		unsigned char *a = get(100);
		bool late = i == 3; /* it holds the first block for longer than the traced run did */
		memset(a, 1, 100);
		if (!late)
			put(a);
		if (r)
			pool_step(r, 1);
		unsigned char *b = get(100);
		memset(b, 2, 100);
		if (i == 2)
			first = b;
		if (late) {
			assert_ptr_equal(a, first);
			assert_ptr_not_equal(b, first);
			assert_int_equal(a[99], 1);
			put(a);
		}
		put(b);
		pool_leave(r, true);
	}
	pool_free(p);
}

static void a_place_nobody_asked_for_does_not_hide_who_is_there(void **state)
{
	(void)state;
	pool *p = new_pool(3, 0);
	for (int i = 0; i < 4; i++) {
		pool_run *r = pool_enter(p, NULL);
		bool odd = i == 3;
		unsigned char *a = get(100);
		memset(a, 1, 100);
		if (!odd)
			put(a);
		if (r)
			pool_step(r, 1);
		if (!odd)
			put(get(100)); /* on the bytes of a; the odd run leaves it out */
		if (r)
			pool_step(r, 2);
		unsigned char *c = get(100);
		memset(c, 3, 100);
		if (odd) {
			assert_int_equal(a[0], 1);
			assert_int_equal(a[99], 1);
			put(a);
		}
		put(c);
		pool_leave(r, true);
	}
	pool_free(p);
}

static void sizes_have_plans_of_their_own_and_old_ones_go(void **state)
{
	(void)state;
	pool *p = new_pool(1, 2);
	pool_counts c;
	for (int64_t round = 0; round < 4; round++)
		for (int64_t k = 1; k < 7; k++) {
			pool_run *r = pool_enter(p, (int64_t[]){k, -1});
			void *a = get((size_t)k * 100);
			memset(a, 0, (size_t)k * 100);
			put(a);
			pool_leave(r, true);
		}
	pool_count(p, &c);
	assert_int_equal(c.served, 18);
	strbuf b = STRBUF_INIT;
	pool_report(p, &b);
	char *text = taken(&b);
	assert_non_null(strstr(text, "memory for 6, any: 1 results in 704 bytes, 0 elsewhere\n"));
	mem_free(text);
	for (int64_t k = 100; k < 200; k++) { /* those that come once there is no room are traced when they come again */
		pool_run *r = pool_enter(p, (int64_t[]){k, 0});
		assert_int_equal(r != NULL, k < 102);
		pool_leave(r, true);
	}
	b = (strbuf)STRBUF_INIT;
	pool_report(p, &b);
	assert_int_equal(b.n, 0);
	strbuf_free(&b);
	pool_free(p);
}

static void runs_within_runs_have_their_own(void **state)
{
	(void)state;
	pool *outer = new_pool(1, 0), *inner = new_pool(3, 0);
	pool_counts c;
	for (int i = 0; i < 4; i++) {
		pool_run *r = pool_enter(outer, NULL);
		void *a = get(500);
		memset(a, 9, 500);
		free(run_small(inner, 100, true));
		pool_run *away = pool_suspend();
		assert_false(pool_entered());
		assert_false(in_pool(get(10)));
		pool_resume(away);
		assert_int_equal(((unsigned char *)a)[499], 9);
		put(a);
		pool_leave(r, true);
	}
	pool_count(outer, &c);
	assert_int_equal(c.served, 3);
	assert_int_equal(c.placed, 1);
	assert_int_equal(c.outside, 0);
	pool_count(inner, &c);
	assert_int_equal(c.placed, 3);
	pool_free(outer);
	pool_free(inner);
}

/* ---- random runs against what they wrote ----------------------------------------------------------------------- */

typedef struct mine {
	unsigned char *at;
	size_t size;
	unsigned char mark;
} mine;

static void check_marks(const mine *m)
{
	assert_int_equal(m->at[0], m->mark);
	assert_int_equal(m->at[m->size / 2], m->mark);
	assert_int_equal(m->at[m->size - 1], m->mark);
}

/* The same seed asks for the same, but for a few odd things where `noise` is not 0. */
static void run_random(pool *p, uint64_t seed, uint64_t *noise, mine *kept, uint32_t *nkept)
{
	mine live[64];
	uint32_t n = 0, steps = 20;
	pool_run *r = pool_enter(p, NULL);
	for (uint32_t s = 0; s < steps; s++) {
		if (r)
			pool_step(r, s);
		for (uint32_t k = random_below(&seed, 4); k > 0 && n < 64; k--) {
			size_t size = 1 + random_below(&seed, 2000);
			bool odd = *noise && random_below(noise, 40) == 0;
			if (odd && random_below(noise, 2))
				continue;
			size = odd ? size * 2 : size;
			live[n] = (mine){get(size), size, (unsigned char)random_below(&seed, 256)};
			assert_int_equal((uintptr_t)live[n].at % 16, 0);
			memset(live[n].at, live[n].mark, size);
			n++;
		}
		for (uint32_t k = random_below(&seed, 4); k > 0 && n > 0; k--) {
			uint32_t i = random_below(&seed, n);
			check_marks(&live[i]);
			if (*noise && random_below(noise, 50) == 0 && *nkept < 64)
				kept[(*nkept)++] = live[i];
			else
				put(live[i].at);
			live[i] = live[--n];
		}
	}
	for (uint32_t i = 0; i < n; i++) {
		check_marks(&live[i]);
		put(live[i].at);
	}
	pool_leave(r, true);
}

static void random_runs_find_what_they_wrote(void **state)
{
	(void)state;
	uint64_t noise = 77;
	for (uint64_t model = 1; model < 120; model++) {
		pool *p = new_pool(20, 0);
		uint64_t quiet = 0, *how = model % 2 ? &noise : &quiet;
		mine kept[64];
		uint32_t nkept = 0;
		for (int i = 0; i < 12; i++)
			run_random(p, model, how, kept, &nkept);
		pool_counts c;
		pool_count(p, &c);
		if (how == &quiet)
			assert_true(c.missed == 0 && c.outside == 0 && c.served >= 10);
		for (uint32_t i = 0; i < nkept; i++) {
			check_marks(&kept[i]);
			put(kept[i].at);
		}
		pool_free(p);
	}
}

/* ---- threads --------------------------------------------------------------------------------------------------- */

typedef struct baton {
	pool *p;
	pthread_mutex_t lock;
	VEC(mine) passed; /* blocks that another thread releases */
	uint64_t seed;
} baton;

static void pass_on(baton *b, mine m)
{
	mine other = {0};
	pthread_mutex_lock(&b->lock);
	if (b->passed.n > 8)
		other = b->passed.at[--b->passed.n];
	if (vec_push(&b->passed, m) != CLV_OK)
		put(m.at);
	pthread_mutex_unlock(&b->lock);
	if (other.at) {
		check_marks(&other);
		put(other.at);
	}
}

static void *run_many(void *ctx)
{
	baton *b = ctx;
	uint64_t seed = __atomic_add_fetch(&b->seed, 1, __ATOMIC_RELAXED) * 7919;
	for (int i = 0; i < 300; i++) {
		pool_run *r = pool_enter(b->p, NULL);
		mine a = {get(300), 300, (unsigned char)random_below(&seed, 256)};
		memset(a.at, a.mark, a.size);
		if (r)
			pool_step(r, 1);
		mine c = {get(200), 200, (unsigned char)random_below(&seed, 256)};
		memset(c.at, c.mark, c.size);
		check_marks(&a);
		put(a.at);
		if (random_below(&seed, 20) == 0)
			pass_on(b, c);
		else
			put(c.at);
		pool_leave(r, true);
	}
	return NULL;
}

static void threads_run_at_once_and_release_what_others_made(void **state)
{
	(void)state;
	baton b = {.p = new_pool(2, 0), .lock = PTHREAD_MUTEX_INITIALIZER};
	pthread_t threads[4];
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, run_many, &b), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	for (uint32_t i = 0; i < b.passed.n; i++) {
		check_marks(&b.passed.at[i]);
		put(b.passed.at[i].at);
	}
	vec_free(&b.passed);
	pool_free(b.p);
}

/* ---- chunks ---------------------------------------------------------------------------------------------------- */

static void programs_that_run_in_turn_share_a_chunk(void **state)
{
	(void)state;
	memory_lock();
	chunk *small = chunk_take(10000);
	assert_int_equal(chunk_bytes(), 12288);
	chunk_give(small);
	chunk *large = chunk_take(5000000); /* instead of the small one */
	assert_int_equal((uintptr_t)large->at % 64, 0);
	assert_int_equal(chunk_bytes(), 5001216);
	chunk_give(large);
	assert_ptr_equal(chunk_take(10000), large);
	chunk *second = chunk_take(10000); /* both in use */
	assert_ptr_not_equal(second, large);
	chunk_give(large);
	chunk_give(second);
	for (int i = 0; i < 300; i++)
		chunk_give(chunk_take(20000)); /* the small one is too small, the large one much too large: both go */
	assert_int_equal(chunk_bytes(), 20480);
	chunk_drop_spare();
	assert_int_equal(chunk_bytes(), 0);
	memory_unlock();
}

/* ---- faults ---------------------------------------------------------------------------------------------------- */

static void without_memory_runs_have_no_pool(void **state)
{
	(void)state;
	for (uint64_t n = 1;; n++) {
		pool *p = NULL;
		mem_fail_after(n);
		clv_status st = pool_new(3, 0, &p);
		assert_true(st == CLV_OK || st == CLV_E_NOMEM);
		for (int i = 0; p && i < 6; i++)
			free(run_small(p, 1000, true));
		bool waits = mem_fail_waits();
		mem_fail_after(0);
		if (p)
			free(run_small(p, 1000, true));
		pool_free(p);
		if (waits)
			break;
	}
}

/* ---- rooms ------------------------------------------------------------------------------------------------------- */

static void pieces_of_a_room_lie_apart_until_they_go(void **state)
{
	static const size_t sizes[] = {1, 64, 100, 5000, (size_t)300 << 10, (size_t)3 << 20, (size_t)40 << 20};
	enum { N = 70 };
	room *now = NULL, *of[N];
	unsigned char *at[N];
	(void)state;
	for (int i = 0; i < N; i++) {
		size_t n = sizes[i % 7];
		assert_non_null(at[i] = room_take(&now, n, &of[i]));
		assert_int_equal((uintptr_t)at[i] % MEMORY_ALIGN, 0);
		at[i][0] = at[i][n - 1] = (unsigned char)i;
	}
	for (int i = 0; i < N; i += 2)
		room_give(of[i]);
	for (int i = 1; i < N; i += 2) {
		assert_int_equal(at[i][0], i);
		assert_int_equal(at[i][sizes[i % 7] - 1], i);
		room_give(of[i]);
	}
	room *again = now; /* what nobody uses is used again */
	assert_non_null(room_take(&now, 1, &of[0]));
	assert_true(ADDRESS_SANITIZER || now == again);
	room_give(of[0]);
	room_give(now);
	room_give(NULL);
}

static void without_memory_a_room_stays_as_it_is(void **state)
{
	room *now = NULL, *of = NULL;
	(void)state;
	for (uint64_t n = 1; n < 3; n++) {
		mem_fail_after(n);
		assert_null(room_take(&now, 10, &of));
		assert_null(now);
	}
	assert_null(room_take(&now, SIZE_MAX, &of));
	assert_null(room_take(&now, SIZE_MAX / 2, &of));
	assert_non_null(room_take(&now, 10, &of));
	room_give(now);
	room_give(of);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(blocks_that_live_at_once_lie_apart),
		cmocka_unit_test(few_blocks_are_placed_nearly_as_well_as_can_be),
		cmocka_unit_test(a_chain_takes_no_more_than_two_neighbours),
		cmocka_unit_test(very_many_blocks_are_placed_in_the_order_of_time_or_not_at_all),
		cmocka_unit_test(blocks_that_make_no_sense_are_refused),
		cmocka_unit_test(a_layout_knows_who_had_the_bytes_before),
		cmocka_unit_test(the_second_run_has_its_memory_from_a_pool),
		cmocka_unit_test(a_run_that_asks_for_more_is_served_from_elsewhere_and_traced_again),
		cmocka_unit_test(a_run_that_fails_leaves_things_as_they_are),
		cmocka_unit_test(what_is_held_beyond_a_run_keeps_its_bytes),
		cmocka_unit_test(a_place_in_use_is_not_given_twice),
		cmocka_unit_test(a_place_nobody_asked_for_does_not_hide_who_is_there),
		cmocka_unit_test(sizes_have_plans_of_their_own_and_old_ones_go),
		cmocka_unit_test(runs_within_runs_have_their_own),
		cmocka_unit_test(random_runs_find_what_they_wrote),
		cmocka_unit_test(threads_run_at_once_and_release_what_others_made),
		cmocka_unit_test(programs_that_run_in_turn_share_a_chunk),
		cmocka_unit_test(without_memory_runs_have_no_pool),
		cmocka_unit_test(pieces_of_a_room_lie_apart_until_they_go),
		cmocka_unit_test(without_memory_a_room_stays_as_it_is),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
