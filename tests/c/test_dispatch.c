/* Which plan serves a call: entries by regime and sizes, guards, misses, the limit, many threads. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "runtime/dispatch.h"
#include "runtime/handover.h"
#include "support.h"

/* A plan that holds for one value. */
typedef struct fake {
	int value;
	_Atomic int released;
	bool leaves_trace;
} fake;

typedef struct calls {
	dispatch *d;
	int value;     /* of the call's data */
	fake *ran[16]; /* all that were run, in order */
	unsigned nran;
	fake *to_record; /* what a miss adds; NULL: it cannot */
	uint32_t regime;
	int64_t point;
	unsigned misses;
	dispatch_why why;
} calls;

static void release(void *payload)
{
	((fake *)payload)->released++;
}

static void count_eviction(void *owner, void *payload)
{
	*(fake **)owner = payload;
}

static void put(dispatch *d, uint32_t regime, int64_t point, dispatch_rank rank, fake *f)
{
	bool taken;
	dispatch_entry e = {regime, rank, "name", &point, 1, f};
	assert_int_equal(dispatch_add(d, &e, &taken), CLV_OK);
}

static clv_status run(void *ctx, void *payload)
{
	calls *c = ctx;
	fake *f = payload;
	c->ran[c->nran++] = f;
	if (f->value == c->value)
		return CLV_OK;
	clv_status st = status_fail(CLV_E_GUARD, __FILE__, __LINE__, "a guard of plan %d", f->value);
	status_details()->undone = !f->leaves_trace;
	return st;
}

static clv_status miss(void *ctx, dispatch_why why, dispatch_answer *out)
{
	calls *c = ctx;
	c->misses++;
	c->why = why;
	if (c->to_record) {
		put(c->d, c->regime, c->point, RANK_ONE_SIZE, c->to_record);
		out->payload = c->to_record;
	}
	return CLV_OK;
}

static clv_status serve(calls *c, uint32_t regime, int64_t point, int value)
{
	c->regime = regime;
	c->point = point;
	c->value = value;
	c->nran = c->misses = 0;
	dispatch_call call = {.query = {regime, &c->point, 1, NULL}, .run = run, .miss = miss, .ctx = c};
	return dispatch_serve(c->d, &call);
}

static dispatch *made(uint32_t limit, fake **evicted)
{
	dispatch *d;
	dispatch_hooks hooks = {release, evicted ? count_eviction : NULL, evicted};
	assert_int_equal(dispatch_new(limit, &hooks, &d), CLV_OK);
	return d;
}

static void the_entry_for_regime_and_sizes_serves(void **state)
{
	(void)state;
	fake a = {.value = 1}, b = {.value = 1}, other = {.value = 1};
	calls c = {.d = made(0, NULL)};
	put(c.d, 1, 8, RANK_MAIN, &a);
	put(c.d, 1, 4, RANK_ONE_SIZE, &b);
	put(c.d, 2, 4, RANK_ONE_SIZE, &other);
	for (int64_t point = 16; point > 8; point--)
		put(c.d, 1, point, RANK_MAIN, &a);
	assert_int_equal(dispatch_count(c.d), 3);
	for (int64_t point = 8; point <= 16; point++) {
		assert_int_equal(serve(&c, 1, point, 1), CLV_OK);
		assert_ptr_equal(c.ran[0], &a);
	}
	assert_int_equal(serve(&c, 1, 4, 1), CLV_OK);
	assert_ptr_equal(c.ran[0], &b);
	assert_int_equal(serve(&c, 2, 4, 1), CLV_OK);
	assert_ptr_equal(c.ran[0], &other);
	assert_int_equal(c.misses, 0);
	assert_int_equal(serve(&c, 2, 8, 1), CLV_E_NOT_FOUND);
	assert_int_equal(c.why, MISS_SIZES);
	assert_int_equal(serve(&c, 3, 8, 1), CLV_E_NOT_FOUND);
	assert_int_equal(c.why, MISS_REGIME);
	dispatch_drop(c.d, &b);
	assert_int_equal(b.released, 1);
	assert_int_equal(serve(&c, 1, 4, 1), CLV_E_NOT_FOUND);
	dispatch_free(c.d);
	assert_int_equal(a.released, 1);
}

static void a_guard_leads_to_the_next_from_the_one_that_served_last(void **state)
{
	(void)state;
	fake a = {.value = 1}, b = {.value = 2}, wide = {.value = 3};
	calls c = {.d = made(0, NULL)};
	bool taken;
	put(c.d, 0, 8, RANK_MAIN, &a);
	put(c.d, 0, 8, RANK_ONE_SIZE, &b);
	dispatch_entry any = {0, RANK_SIZES, "", NULL, DISPATCH_ANY, &wide};
	assert_int_equal(dispatch_add(c.d, &any, &taken), CLV_OK);
	assert_true(taken);
	assert_int_equal(serve(&c, 0, 8, 2), CLV_OK);
	assert_int_equal(c.nran, 2);
	assert_int_equal(serve(&c, 0, 8, 2), CLV_OK);
	assert_int_equal(c.nran, 1);
	assert_int_equal(serve(&c, 0, 9, 3), CLV_OK);
	assert_int_equal(c.nran, 1);
	assert_int_equal(serve(&c, 0, 8, 7), CLV_E_GUARD);
	assert_int_equal(c.nran, 3);
	assert_int_equal(c.why, MISS_GUARD);
	assert_memory_equal(status_message(), "a guard of plan 3", 17); /* the first that refused */
	assert_true(status_details()->undone);
	dispatch_free(c.d);
}

/* Plans that leave runs: one is left by the first that runs; `takes` goes on with it, `passes` cannot. */
typedef struct leaving {
	int order[8], n; /* values of the plans that ran; negative: they passed */
	int undone, dropped;
	int takes; /* value of the plan that goes on; 0: none */
	bool whole;
} leaving;

static leaving *leaves;

static clv_status undo_left(handover *h, bool *whole)
{
	(void)h;
	leaves->undone++;
	*whole = leaves->whole;
	return CLV_OK;
}

static void drop_left(handover *h)
{
	h->left = NULL;
	leaves->dropped++;
}

static clv_status refuse(void)
{
	clv_status st = status_fail(CLV_E_GUARD, __FILE__, __LINE__, "a guard does not hold");
	status_details()->undone = true;
	return st;
}

static clv_status run_leaving(void *ctx, void *payload)
{
	static const handover_kind kind = {undo_left, drop_left};
	leaving *l = ctx;
	const fake *f = payload;
	handover *h = handover_enter();
	clv_status st = CLV_OK;
	assert_non_null(h);
	if (h->left && f->value != l->takes) {
		l->order[l->n++] = -f->value;
		st = handover_pass(h);
	} else {
		l->order[l->n++] = f->value;
		if (h->left)
			drop_left(h);
		if (l->n == 1) {
			h->kind = &kind;
			h->left = l;
			st = refuse();
		}
	}
	handover_leave(h);
	return st;
}

static void plans_that_go_on_are_asked_before_one_begins_again(void **state)
{
	(void)state;
	fake a = {.value = 1}, b = {.value = 2}, c = {.value = 3};
	dispatch *d = made(0, NULL);
	put(d, 0, 8, RANK_MAIN, &a);
	put(d, 0, 8, RANK_ONE_SIZE, &b);
	put(d, 0, 8, RANK_ONE_SIZE, &c);
	int64_t point = 8;
	leaving l = {.takes = 3, .whole = true};
	dispatch_call call = {
		.query = {0, &point, 1, NULL}, .in_order = true, .hands_over = true, .run = run_leaving, .ctx = &l};
	leaves = &l;
	assert_int_equal(dispatch_serve(d, &call), CLV_OK);
	assert_memory_equal(l.order, ((int[]){1, -2, 3}), 3 * sizeof(int));
	assert_int_equal(l.undone, 0);
	l = (leaving){.whole = true}; /* nobody goes on: it is undone, and the first that passed begins */
	assert_int_equal(dispatch_serve(d, &call), CLV_OK);
	assert_memory_equal(l.order, ((int[]){1, -2, -3, 2}), 4 * sizeof(int));
	assert_int_equal(l.undone, 1);
	l = (leaving){.whole = false}; /* not all of it could be: no other plan may begin */
	assert_int_equal(dispatch_serve(d, &call), CLV_E_GUARD);
	assert_false(status_details()->undone);
	assert_int_equal(l.n, 3);
	dispatch_free(d);
}

static void a_run_that_left_a_trace_ends_the_call(void **state)
{
	(void)state;
	fake a = {.value = 1, .leaves_trace = true}, b = {.value = 2};
	calls c = {.d = made(0, NULL)};
	put(c.d, 0, 8, RANK_MAIN, &a);
	put(c.d, 0, 8, RANK_ONE_SIZE, &b);
	assert_int_equal(serve(&c, 0, 8, 2), CLV_E_GUARD);
	assert_int_equal(c.nran, 1);
	assert_int_equal(c.misses, 0);
	dispatch_free(c.d);
}

static void what_is_missing_is_recorded_once(void **state)
{
	(void)state;
	fake a = {.value = 1}, b = {.value = 2};
	calls c = {.d = made(0, NULL), .to_record = &a};
	assert_int_equal(serve(&c, 0, 8, 1), CLV_OK);
	assert_int_equal(c.why, MISS_REGIME);
	c.to_record = &b;
	assert_int_equal(serve(&c, 0, 8, 2), CLV_OK);
	assert_int_equal(c.why, MISS_GUARD);
	assert_int_equal(serve(&c, 0, 8, 2), CLV_OK);
	assert_int_equal(c.misses, 0);
	assert_int_equal(c.nran, 1);
	dispatch_free(c.d);
}

static void a_record_that_does_not_hold_either_is_not_tried_for_ever(void **state)
{
	(void)state;
	fake a = {.value = 1};
	calls c = {.d = made(0, NULL), .to_record = &a};
	assert_int_equal(serve(&c, 0, 8, 5), CLV_E_GUARD);
	assert_true(c.misses <= 3);
	dispatch_free(c.d);
}

static void the_one_that_served_longest_ago_gives_way(void **state)
{
	(void)state;
	fake main = {.value = 1}, formulas = {.value = 1}, a = {.value = 1}, b = {.value = 1}, late = {.value = 1};
	fake *evicted = NULL;
	calls c = {.d = made(4, &evicted)};
	put(c.d, 0, 1, RANK_MAIN, &main);
	put(c.d, 1, 1, RANK_SIZES, &formulas);
	put(c.d, 0, 2, RANK_ONE_SIZE, &a);
	put(c.d, 0, 3, RANK_ONE_SIZE, &b);
	assert_int_equal(serve(&c, 0, 2, 1), CLV_OK);
	put(c.d, 0, 4, RANK_ONE_SIZE, &late);
	assert_ptr_equal(evicted, &b);
	assert_int_equal(b.released, 1);
	fake more[3] = {{.value = 1}, {.value = 1}, {.value = 1}};
	for (int i = 0; i < 3; i++)
		put(c.d, 0, 5 + i, RANK_SIZES, &more[i]);
	assert_ptr_equal(evicted, &formulas); /* after those for single sizes */
	assert_int_equal(serve(&c, 0, 1, 1), CLV_OK);
	assert_int_equal(dispatch_count(c.d), 4);
	dispatch_free(c.d);
	assert_int_equal(main.released, 1);
}

static clv_status first_named(void *ctx, const dispatch_entry *e)
{
	*(void **)ctx = e->payload;
	return CLV_E_NOT_FOUND; /* ends the walk */
}

static void entries_are_found_by_name(void **state)
{
	(void)state;
	fake a = {.value = 1}, b = {.value = 1};
	dispatch *d = made(0, NULL);
	bool taken;
	void *found = NULL;
	put(d, 0, 1, RANK_MAIN, &a);
	dispatch_entry e = {3, RANK_SIZES, "other", NULL, DISPATCH_ANY, &b};
	assert_int_equal(dispatch_add(d, &e, &taken), CLV_OK);
	dispatch_query q = {DISPATCH_ANY, NULL, DISPATCH_ANY, "other"};
	assert_int_equal(dispatch_each(d, &q, first_named, &found), CLV_E_NOT_FOUND);
	assert_ptr_equal(found, &b);
	q.name = "none";
	assert_int_equal(dispatch_each(d, &q, first_named, &found), CLV_OK);
	dispatch_free(d);
}

static clv_status run_first(void *ctx, void *payload)
{
	*(void **)ctx = payload;
	return CLV_OK;
}

static void a_call_may_say_which_is_first(void **state)
{
	(void)state;
	fake a = {.value = 1}, b = {.value = 1};
	dispatch *d = made(0, NULL);
	void *ran = NULL;
	put(d, 0, 1, RANK_MAIN, &a);
	put(d, 0, 1, RANK_ONE_SIZE, &b);
	int64_t point = 1;
	dispatch_call call = {.query = {0, &point, 1, NULL}, .first = &b, .run = run_first, .ctx = &ran};
	assert_int_equal(dispatch_serve(d, &call), CLV_OK);
	assert_ptr_equal(ran, &b);
	call.first = NULL;
	call.in_order = true;
	assert_int_equal(dispatch_serve(d, &call), CLV_OK);
	assert_ptr_equal(ran, &a);
	call.in_order = false;
	assert_int_equal(dispatch_serve(d, &call), CLV_OK);
	assert_ptr_equal(ran, &b); /* which served last */
	dispatch_free(d);
}

enum { THREADS = 4, ROUNDS = 2000, PLANS = 8 };

typedef struct crowd {
	dispatch *d;
	fake plans[THREADS][ROUNDS / 100];
	fake fixed[PLANS];
	_Atomic int number, wrong;
} crowd;

static clv_status check_alive(void *ctx, void *payload)
{
	(void)ctx;
	fake *f = payload;
	return f->released ? CLV_E_INVALID : CLV_OK;
}

static void *work(void *arg)
{
	crowd *all = arg;
	int me = all->number++;
	for (int i = 0; i < ROUNDS; i++) {
		int64_t point = i % PLANS;
		dispatch_call call = {.query = {0, &point, 1, NULL}, .run = check_alive};
		if (i % 100 == 0)
			put(all->d, 1, i, RANK_ONE_SIZE, &all->plans[me][i / 100]);
		all->wrong += dispatch_serve(all->d, &call) != CLV_OK;
		call.query.regime = 1;
		point = i / 100 * 100;
		clv_status st = dispatch_serve(all->d, &call);
		all->wrong += st != CLV_OK && st != CLV_E_NOT_FOUND; /* it may have had to give way */
	}
	return NULL;
}

static void threads_call_and_add_at_once(void **state)
{
	(void)state;
	static crowd all;
	pthread_t threads[THREADS];
	all.d = made(PLANS + 4, NULL);
	for (int i = 0; i < PLANS; i++)
		put(all.d, 0, i, RANK_MAIN, &all.fixed[i]);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, work, &all), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(all.wrong, 0);
	assert_int_equal(dispatch_count(all.d), PLANS + 4);
	dispatch_free(all.d);
	for (int t = 0; t < THREADS; t++)
		for (int i = 0; i < ROUNDS / 100; i++)
			assert_int_equal(all.plans[t][i].released, 1);
}

static void memory_may_end_anywhere(void **state)
{
	(void)state;
	for (uint64_t n = 1; n < 30; n++) {
		fake a = {.value = 1}, b = {.value = 2};
		calls c = {0};
		bool taken = false;
		int64_t point = 3;
		dispatch_hooks hooks = {release, NULL, NULL};
		dispatch_entry e = {0, RANK_MAIN, "name", &point, 1, &a}, f = {0, RANK_MAIN, "name", &point, 1, &b};
		mem_fail_after(n);
		clv_status st = dispatch_new(0, &hooks, &c.d);
		if (st == CLV_OK)
			st = dispatch_add(c.d, &e, &taken);
		if (st == CLV_OK)
			st = dispatch_add(c.d, &f, &taken);
		if (st == CLV_OK)
			st = serve(&c, 0, 3, 2);
		bool waits = mem_fail_waits();
		mem_fail_after(0);
		assert_true(waits ? st == CLV_OK : st == CLV_E_NOMEM || st == CLV_OK);
		dispatch_free(c.d);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_entry_for_regime_and_sizes_serves),
		cmocka_unit_test(a_guard_leads_to_the_next_from_the_one_that_served_last),
		cmocka_unit_test(plans_that_go_on_are_asked_before_one_begins_again),
		cmocka_unit_test(a_run_that_left_a_trace_ends_the_call),
		cmocka_unit_test(what_is_missing_is_recorded_once),
		cmocka_unit_test(a_record_that_does_not_hold_either_is_not_tried_for_ever),
		cmocka_unit_test(the_one_that_served_longest_ago_gives_way),
		cmocka_unit_test(entries_are_found_by_name),
		cmocka_unit_test(a_call_may_say_which_is_first),
		cmocka_unit_test(threads_call_and_add_at_once),
		cmocka_unit_test(memory_may_end_anywhere),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
