/* Threads of the native engine: every item once, shared teams, busy ones, nested calls, many callers, forks. */
#include "support.h"

#include <fenv.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "native/team.h"

enum { ITEMS = 1000 };

typedef struct job {
	team *team;
	atomic_int done[ITEMS];
	atomic_int inside[8]; /* per thread: two at once would share scratch memory */
	atomic_int wrong, calls, threads;
	int64_t items, grain;
} job;

static void count_items(void *ctx, int64_t first, int64_t end, int thread)
{
	job *j = ctx;
	if (thread < 0 || thread >= team_threads(j->team) || atomic_fetch_add(&j->inside[thread], 1) != 0)
		atomic_fetch_add(&j->wrong, 1);
	if (end - first < j->grain && end - first < j->items)
		atomic_fetch_add(&j->wrong, 1);
	atomic_fetch_add(&j->calls, 1);
	atomic_fetch_or(&j->threads, 1 << thread);
	for (int64_t i = first; i < end; i++)
		atomic_fetch_add(&j->done[i], 1);
	atomic_fetch_sub(&j->inside[thread], 1);
}

static bool each_once(const job *j, int64_t items)
{
	for (int64_t i = 0; i < ITEMS; i++)
		if (j->done[i] != (i < items))
			return false;
	return j->wrong == 0;
}

static void every_item_is_done_once(void **state)
{
	(void)state;
	for (int threads = 1; threads <= 5; threads++) {
		team *t;
		OK(team_get(threads, &t));
		assert_int_equal(team_threads(t), threads);
		for (int64_t items = 0; items <= ITEMS; items += 1 + items / 3)
			for (int64_t grain = 0; grain <= 70; grain += 1 + grain / 2) {
				job j = {.team = t, .items = items, .grain = grain};
				team_run(t, items, grain, count_items, &j);
				assert_true(each_once(&j, items));
			}
		team_put(t);
	}
}

static void *lent_worker(void *ctx)
{
	void **x = ctx;
	((void (*)(void *, int))x[0])(x[1], *(int *)x[2]);
	return NULL;
}

/* Two threads of its own, whatever is asked for: the caller does what they do not. */
static void lend(int n, void (*work)(void *ctx, int i), void *ctx)
{
	pthread_t thread;
	int first = 0;
	void *x[] = {(void *)work, ctx, &first};
	assert_int_equal(pthread_create(&thread, NULL, lent_worker, x), 0);
	for (int i = 1; i < n; i++)
		work(ctx, i);
	pthread_join(thread, NULL);
}

static void a_team_may_be_on_lent_threads(void **state)
{
	(void)state;
	team *t, *own;
	OK(team_get_lent(3, lend, &t));
	OK(team_get(3, &own));
	assert_ptr_not_equal(t, own);
	for (int64_t items = 0; items <= ITEMS; items += 1 + items / 3) {
		job j = {.team = t, .items = items, .grain = 1};
		team_run(t, items, 1, count_items, &j);
		assert_true(each_once(&j, items));
	}
	team_put(own);
	team_put(t);
}

static void too_little_work_stays_on_the_caller(void **state)
{
	team *t;
	(void)state;
	OK(team_get(3, &t));
	job j = {.team = t, .items = ITEMS, .grain = 600};
	team_run(t, ITEMS, 600, count_items, &j);
	assert_int_equal(j.calls, 1);
	assert_int_equal(j.threads, 1);
	team_put(t);
}

/* Waits until a second thread is in the same job: ends only if there is one. */
static void meet(void *ctx, int64_t first, int64_t end, int thread)
{
	atomic_int *there = ctx;
	(void)first, (void)end, (void)thread;
	atomic_fetch_add(there, 1);
	while (atomic_load(there) < 2)
		usleep(100);
}

static void threads_work_at_the_same_time(void **state)
{
	team *t;
	(void)state;
	OK(team_get(2, &t));
	for (int i = 0; i < 20; i++) {
		atomic_int there = 0;
		team_run(t, 2, 1, meet, &there);
		assert_int_equal(there, 2);
		if (i % 5 == 0)
			usleep(20000); /* the worker sleeps by now */
	}
	team_put(t);
}

static void one_count_has_one_team(void **state)
{
	team *a, *b, *c, *one;
	(void)state;
	OK(team_get(2, &a));
	OK(team_get(2, &b));
	OK(team_get(3, &c));
	OK(team_get(1, &one));
	assert_ptr_equal(a, b);
	assert_ptr_not_equal(a, c);
	assert_null(one);
	assert_int_equal(team_threads(one), 1);
	team_put(a);
	job j = {.team = b};
	team_run(b, ITEMS, 1, count_items, &j);
	assert_true(each_once(&j, ITEMS));
	team_put(b);
	team_put(c);
	team_put(one);
	FAILS(team_get(-1, &a), CLV_E_INVALID, "threads: -1");
	FAILS(team_get(TEAM_MOST + 1, &a), CLV_E_INVALID, "threads");
	OK(team_get(0, &a));
	assert_int_equal(team_threads(a), team_processors());
	team_put(a);
}

static void nest(void *ctx, int64_t first, int64_t end, int thread)
{
	job *outer = ctx;
	count_items(ctx, first, end, thread);
	job *j = calloc(1, sizeof *j);
	j->team = outer->team;
	team_run(outer->team, ITEMS, 1, count_items, j);
	if (!each_once(j, ITEMS) || j->threads != 1)
		atomic_fetch_add(&outer->wrong, 1);
	free(j);
}

static void a_job_may_ask_for_its_own_team(void **state)
{
	team *t;
	(void)state;
	OK(team_get(3, &t));
	job j = {.team = t};
	team_run(t, 50, 1, nest, &j);
	assert_true(each_once(&j, 50));
	team_put(t);
}

static void *call_often(void *ctx)
{
	team *t = ctx;
	intptr_t wrong = 0;
	for (int i = 0; i < 300; i++) {
		job *j = calloc(1, sizeof *j);
		j->team = t;
		team_run(t, 1 + i * 3, 1, count_items, j);
		wrong += !each_once(j, 1 + i * 3);
		free(j);
	}
	return (void *)wrong;
}

static void many_callers_share_a_team(void **state)
{
	pthread_t callers[6];
	team *t;
	(void)state;
	OK(team_get(3, &t));
	for (int i = 0; i < 6; i++)
		assert_int_equal(pthread_create(&callers[i], NULL, call_often, t), 0);
	for (int i = 0; i < 6; i++) {
		void *wrong;
		pthread_join(callers[i], &wrong);
		assert_null(wrong);
	}
	team_put(t);
}

static void *get_and_put(void *ctx)
{
	intptr_t wrong = 0;
	(void)ctx;
	for (int i = 0; i < 40; i++) {
		team *t;
		job *j = calloc(1, sizeof *j);
		wrong += team_get(2, &t) != CLV_OK;
		j->team = t;
		team_run(t, 100, 1, count_items, j);
		wrong += !each_once(j, 100);
		team_put(t);
		free(j);
	}
	return (void *)wrong;
}

static void teams_come_and_go_under_their_users(void **state)
{
	pthread_t callers[4];
	(void)state;
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&callers[i], NULL, get_and_put, NULL), 0);
	for (int i = 0; i < 4; i++) {
		void *wrong;
		pthread_join(callers[i], &wrong);
		assert_null(wrong);
	}
}

/* In the child: a team of the parent has threads of its own, which work together. */
static int use_in_child(team *t)
{
	atomic_int there = 0;
	team_run(t, 2, 1, meet, &there);
	job j = {.team = t};
	team_run(t, ITEMS, 1, count_items, &j);
	team_put(t);
	return there == 2 && each_once(&j, ITEMS) ? 0 : 1;
}

static void a_forked_child_starts_anew(void **state)
{
	team *t;
	(void)state;
	OK(team_get(2, &t));
	for (int i = 0; i < 3; i++) {
		job j = {.team = t};
		team_run(t, ITEMS, 1, count_items, &j);
		int status;
		pid_t child = fork();
		if (child == 0)
			_exit(use_in_child(t));
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
		atomic_int there = 0;
		team_run(t, 2, 1, meet, &there); /* the parent's threads are as before */
		assert_int_equal(there, 2);
	}
	team_put(t);
}

static atomic_bool stop_callers;

static void *call_until_told(void *ctx)
{
	team *t = ctx;
	while (!stop_callers) {
		job *j = calloc(1, sizeof *j);
		j->team = t;
		team_run(t, 100, 1, count_items, j);
		free(j);
	}
	return NULL;
}

static void a_fork_beside_a_running_job_leaves_no_busy_team(void **state)
{
	pthread_t caller;
	team *t;
	(void)state;
	OK(team_get(2, &t));
	assert_int_equal(pthread_create(&caller, NULL, call_until_told, t), 0);
	for (int i = 0; i < 20; i++) {
		int status;
		pid_t child = fork();
		if (child == 0) {
			atomic_int there = 0;
			team_run(t, 2, 1, meet, &there);
			_exit(there == 2 ? 0 : 1);
		}
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	}
	stop_callers = true;
	pthread_join(caller, NULL);
	team_put(t);
}

static void see_rounding(void *ctx, int64_t first, int64_t end, int thread)
{
	meet(ctx, first, end, thread);
	volatile float one = 1, three = 3;
	if (one / three <= 1.0 / 3)
		atomic_fetch_add((atomic_int *)ctx, 100);
}

static void workers_round_as_the_caller_does(void **state)
{
	team *t;
	(void)state;
	OK(team_get(2, &t));
	job j = {.team = t};
	team_run(t, ITEMS, 1, count_items, &j); /* the threads start with the usual rounding */
	atomic_int there = 0;
	fesetround(FE_UPWARD);
	team_run(t, 2, 1, see_rounding, &there);
	fesetround(FE_TONEAREST);
	assert_int_equal(there, 2);
	team_put(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_item_is_done_once),
		cmocka_unit_test(a_team_may_be_on_lent_threads),
		cmocka_unit_test(too_little_work_stays_on_the_caller),
		cmocka_unit_test(threads_work_at_the_same_time),
		cmocka_unit_test(one_count_has_one_team),
		cmocka_unit_test(a_job_may_ask_for_its_own_team),
		cmocka_unit_test(many_callers_share_a_team),
		cmocka_unit_test(teams_come_and_go_under_their_users),
		cmocka_unit_test(a_forked_child_starts_anew),
		cmocka_unit_test(a_fork_beside_a_running_job_leaves_no_busy_team),
		cmocka_unit_test(workers_round_as_the_caller_does),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
