/* Threads that share the work of a call.
 *
 * A call opens a job; workers that are awake join it, and everybody takes pieces from one counter until none is left. The
 * caller then closes the job and waits only for workers that did join: one that wakes up late is never waited for. Workers
 * spin for a moment between jobs, then sleep. Threads start with the first job that has work for them, and anew in a forked
 * child, which has none of them. A team on lent threads has no workers: its owner calls everybody who takes part. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "native/team.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/mem.h"

enum {
	SPINS = 4000,      /* looks at the state before a thread sleeps: some tens of microseconds */
	PIECES = 4,        /* of a job, per thread: the last to finish is late by one of them at most */
	PART_NS = 4000000, /* a part of a job that takes as long is not made larger: the time is looked at after it */
	OPEN = 1,          /* state: workers may join */
	INSIDE = 2,        /* state: one worker inside; a count up to the bits of the job's number */
	NUMBER = 1 << 16   /* state: number of the job, which a worker joins once */
};

typedef struct worker {
	team *team;
	pthread_t thread;
	int index;
} worker;

struct team {
	team *next; /* in the list of teams */
	int threads, users, spins;
	int started;      /* workers whose thread runs; changed by whoever holds `busy` */
	team_lender lend; /* NULL: workers of our own */
	atomic_flag busy;
	/* The job; written while nobody is inside. */
	team_fn fn;
	void *ctx;
	int64_t items, pieces, grain;
	const limits *limits; /* of the caller */
	uint64_t modes;
	char apart[64];        /* of what follows, which everybody writes */
	_Atomic int64_t taken; /* pieces that somebody took */
	char apart_too[64];
	_Atomic uint64_t state;
	atomic_bool stop;
	atomic_int asleep; /* workers; the caller counts too */
	pthread_mutex_t lock;
	pthread_cond_t wake;
	worker workers[];
};

/* All teams of the process, which the handlers of fork() need. */
static pthread_mutex_t teams_lock = PTHREAD_MUTEX_INITIALIZER;
static team *teams;

/* ---- processor -------------------------------------------------------------------------------------------------------- */

static void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* Rounding and the treatment of denormals: those of the caller hold for the whole job, so that its result does not depend on
   the number of threads. */
static uint64_t modes_here(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_stmxcsr();
#elif defined(__aarch64__)
	uint64_t modes;
	__asm__ volatile("mrs %0, fpcr" : "=r"(modes));
	return modes;
#else
	return 0;
#endif
}

static void modes_set(uint64_t modes)
{
#if defined(__x86_64__)
	__builtin_ia32_ldmxcsr((unsigned)modes);
#elif defined(__aarch64__)
	__asm__ volatile("msr fpcr, %0" : : "r"(modes));
#else
	(void)modes;
#endif
}

int team_processors(void)
{
	cpu_set_t set;
	if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
		return CPU_COUNT(&set);
	long n = sysconf(_SC_NPROCESSORS_ONLN);
	return n > 0 && n < TEAM_MOST ? (int)n : 1;
}

/* ---- jobs ------------------------------------------------------------------------------------------------------------- */

/* Items first … end-1, in parts that take some milliseconds, as long as the run may go on. What is left undone is never seen:
   the run ends. */
static void work_within(const limits *l, team_fn fn, void *ctx, int64_t first, int64_t end, int64_t grain, int thread)
{
	int64_t part = l ? grain : end - first;
	while (first < end) {
		int64_t some = end - first < part ? end - first : part;
		int64_t start = some < end - first ? clock_nanoseconds() : 0;
		fn(ctx, first, first + some, thread);
		first += some;
		if (first == end || limits_spent(l))
			return;
		part = clock_nanoseconds() - start < PART_NS && part < INT64_MAX / 2 ? 2 * part : part;
	}
}

static void work(team *t, int thread)
{
	int64_t each = t->items / t->pieces, more = t->items % t->pieces;
	for (;;) {
		int64_t i = atomic_fetch_add_explicit(&t->taken, 1, memory_order_relaxed);
		if (i >= t->pieces)
			return;
		int64_t first = i * each + (i < more ? i : more);
		if (!limits_spent(t->limits))
			work_within(t->limits, t->fn, t->ctx, first, first + each + (i < more), t->grain, thread);
	}
}

static void wake_all(team *t)
{
	if (atomic_load(&t->asleep) == 0)
		return;
	pthread_mutex_lock(&t->lock);
	pthread_cond_broadcast(&t->wake);
	pthread_mutex_unlock(&t->lock);
}

static void leave(team *t)
{
	uint64_t was = atomic_fetch_sub(&t->state, INSIDE);
	if (!(was & OPEN) && (was & (NUMBER - 1)) == INSIDE)
		wake_all(t); /* the caller may sleep until the last one leaves */
}

/* A job that worker did not join yet is open, or the team stops. */
static bool has_job(team *t, uint64_t seen, uint64_t *state)
{
	*state = atomic_load(&t->state);
	return atomic_load_explicit(&t->stop, memory_order_relaxed) || ((*state & OPEN) && *state / NUMBER != seen);
}

static bool nobody_inside(team *t, uint64_t seen, uint64_t *state)
{
	(void)seen;
	*state = atomic_load(&t->state);
	return (*state & (NUMBER - 1)) == 0;
}

/* Spins, then sleeps, until `ready`; gives the state that it saw. */
static uint64_t await(team *t, bool (*ready)(team *, uint64_t, uint64_t *), uint64_t seen)
{
	uint64_t state;
	for (int i = 0; i < t->spins; i++) {
		if (ready(t, seen, &state))
			return state;
		relax();
	}
	pthread_mutex_lock(&t->lock);
	atomic_fetch_add(&t->asleep, 1); /* before the last look: who changes the state after it sees a sleeper */
	while (!ready(t, seen, &state))
		pthread_cond_wait(&t->wake, &t->lock);
	atomic_fetch_sub(&t->asleep, 1);
	pthread_mutex_unlock(&t->lock);
	return state;
}

static void *run_worker(void *arg)
{
	worker *w = arg;
	team *t = w->team;
	for (uint64_t seen = 0;;) {
		uint64_t state = await(t, has_job, seen);
		if (atomic_load(&t->stop))
			return NULL;
		if (!atomic_compare_exchange_strong(&t->state, &state, state + INSIDE))
			continue; /* somebody else joined, or the job ended: look again */
		seen = state / NUMBER;
		modes_set(t->modes);
		work(t, w->index);
		leave(t);
	}
}

/* ---- threads ---------------------------------------------------------------------------------------------------------- */

/* Signals stay with the threads of the program. Where no thread can be made, fewer have to do. */
static void start(team *t)
{
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (t->started < t->threads - 1) {
		worker *w = &t->workers[t->started];
		*w = (worker){.team = t, .index = t->started + 1};
		if (pthread_create(&w->thread, NULL, run_worker, w) != 0)
			break;
		t->started++;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void stop(team *t)
{
	pthread_mutex_lock(&t->lock);
	atomic_store(&t->stop, true);
	pthread_cond_broadcast(&t->wake);
	pthread_mutex_unlock(&t->lock);
	for (int i = 0; i < t->started; i++)
		pthread_join(t->workers[i].thread, NULL);
}

static void reset(team *t)
{
	t->started = 0;
	atomic_flag_clear(&t->busy);
	atomic_store(&t->state, NUMBER);
	atomic_store(&t->stop, false);
	atomic_store(&t->asleep, 0);
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->wake, NULL);
}

static void before_fork(void)
{
	pthread_mutex_lock(&teams_lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&teams_lock);
}

static void in_child(void)
{
	for (team *t = teams; t; t = t->next)
		reset(t);
	pthread_mutex_unlock(&teams_lock);
}

static void watch_forks(void)
{
	pthread_atfork(before_fork, after_fork, in_child);
}

/* ---- for users of teams ----------------------------------------------------------------------------------------------- */

static clv_status make(int threads, team_lender lend, team **out)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	size_t size = sizeof(team) + (size_t)(threads - 1) * sizeof(worker);
	pthread_once(&once, watch_forks);
	team *t = mem_alloc(size);
	TRY_MEM(t);
	t->threads = threads;
	t->lend = lend;
	t->spins = threads <= team_processors() ? SPINS : 0;
	reset(t);
	t->next = teams;
	teams = t;
	*out = t;
	return CLV_OK;
}

clv_status team_get(int threads, team **out)
{
	return team_get_lent(threads, NULL, out);
}

clv_status team_get_lent(int threads, team_lender lend, team **out)
{
	clv_status st = CLV_OK;
	*out = NULL;
	if (threads < 0 || threads > TEAM_MOST)
		return fail(CLV_E_INVALID, "threads: %d is outside of 0 (as many as processors) to %d", threads, TEAM_MOST);
	if (threads == 0)
		threads = team_processors();
	if (threads == 1)
		return CLV_OK;
	pthread_mutex_lock(&teams_lock);
	for (team *t = teams; t && !*out; t = t->next)
		if (t->threads == threads && t->lend == lend)
			*out = t;
	if (!*out)
		st = make(threads, lend, out);
	if (*out)
		(*out)->users++;
	pthread_mutex_unlock(&teams_lock);
	return st;
}

void team_put(team *t)
{
	if (!t)
		return;
	pthread_mutex_lock(&teams_lock);
	bool last = --t->users == 0;
	for (team **at = &teams; last && *at; at = &(*at)->next)
		if (*at == t) {
			*at = t->next;
			break;
		}
	pthread_mutex_unlock(&teams_lock);
	if (!last)
		return;
	stop(t);
	pthread_cond_destroy(&t->wake);
	pthread_mutex_destroy(&t->lock);
	mem_free(t);
}

int team_threads(const team *t)
{
	return t ? t->threads : 1;
}

/* A lent thread gets its own modes back. */
static void work_lent(void *ctx, int i)
{
	team *t = ctx;
	uint64_t before = modes_here();
	modes_set(t->modes);
	work(t, i);
	modes_set(before);
}

static void work_together(team *t)
{
	if (t->started < t->threads - 1)
		start(t);
	atomic_fetch_add(&t->state, NUMBER + OPEN);
	wake_all(t);
	work(t, 0);
	atomic_fetch_and(&t->state, ~(uint64_t)OPEN);
	await(t, nobody_inside, 0);
}

void team_run(team *t, int64_t items, int64_t grain, team_fn fn, void *ctx)
{
	int64_t pieces = grain > 1 ? items / grain : items;
	grain = grain > 1 ? grain : 1;
	if (items <= 0)
		return;
	if (!t || pieces < 2 || atomic_flag_test_and_set(&t->busy)) {
		work_within(limits_now(), fn, ctx, 0, items, grain, 0);
		return;
	}
	int64_t most = (int64_t)t->threads * PIECES;
	t->fn = fn, t->ctx = ctx, t->items = items, t->pieces = pieces < most ? pieces : most;
	t->modes = modes_here(), t->grain = grain, t->limits = limits_now();
	atomic_store_explicit(&t->taken, 0, memory_order_relaxed);
	if (t->lend)
		t->lend(t->threads, work_lent, t);
	else
		work_together(t);
	atomic_flag_clear(&t->busy);
}
