/* Who runs what, and when.
 *
 * A request arrives, is read (its model is found, its tensors are made), and waits in a line: one for each model and shape that
 * runs in batches (batch.c), one for everything that runs alone. A worker reads what arrives as long as there is any and nobody waits
 * long for that, then takes the line whose first request is the oldest, and of it what is best run together. While all workers run,
 * a thread of its own reads, so that time limits are known and the next batch is ready. One more thread, the desk, loads, unloads
 * and cuts models, which may take long.
 *
 * Requests of which nobody wants the answer any more, or whose time is over, are taken out where they wait. */
#define _GNU_SOURCE /* pthread_clockjoin_np */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "serve/batch.h"
#include "serve/session.h"

enum {
	TOGETHER_MOST = 256,
	READ_MOST = 1024, /* requests that were read and wait; more are left as they came */
	ERRANDS_MOST = 64 /* requests that wait for the desk, where each may take seconds */
};

struct queue {
	pthread_mutex_t lock;
	pthread_cond_t work, read, errand; /* workers, the reader and the desk wait for them */
	queue_line arrivals, alone, desk;
	queue_line *lines; /* with somebody in them, of those that run in batches */
	uint32_t waiting, have_read, idle;
	exchange *done;
	int64_t soonest; /* deadline of those that wait; some may have gone */
	bool stop;
	uint32_t nthreads;
	pthread_t *threads; /* the desk, the reader, workers */
	served **running;   /* per worker; NULL: none */
	uint32_t nrunning;
};

/* ---- lines ------------------------------------------------------------------------------------------------------------------------ */

static void list_line(queue *q, queue_line *l)
{
	l->after = q->lines;
	q->lines = l;
}

static void unlist_line(queue *q, queue_line *l)
{
	queue_line **at = &q->lines;
	while (*at && *at != l)
		at = &(*at)->after;
	if (*at)
		*at = l->after;
	l->after = NULL;
}

static void line_add(queue *q, queue_line *l, exchange *x)
{
	if (l->serves && !l->first)
		list_line(q, l);
	x->next = NULL;
	if (l->last)
		l->last->next = x;
	else
		l->first = x;
	l->last = x;
	l->n++;
	l->rows += x->rows;
	x->in = l;
	q->waiting++;
	q->have_read += x->prepared;
	if (x->deadline && x->deadline < q->soonest)
		q->soonest = x->deadline;
}

/* `before`: the one before x; NULL: x is the first. */
static void line_remove(queue *q, queue_line *l, exchange *x, exchange *before)
{
	if (before)
		before->next = x->next;
	else
		l->first = x->next;
	if (l->last == x)
		l->last = before;
	l->n--;
	l->rows -= x->rows;
	x->in = NULL;
	x->next = NULL;
	q->waiting--;
	q->have_read -= x->prepared;
	if (l->serves && !l->first)
		unlist_line(q, l);
}

static exchange *line_take(queue *q, queue_line *l)
{
	exchange *x = l->first;
	if (x)
		line_remove(q, l, x, NULL);
	return x;
}

/* How many rows come per nanosecond: what came long ago counts less. */
static double rate_now(const queue_line *l, int64_t now)
{
	double memory = 4 * (double)l->serves->times[l->serves->n - 1];
	return l->seen ? l->rate * exp(-(double)(now - l->seen) / memory) : 0;
}

static void note_arrival(queue_line *l, const exchange *x, int64_t now)
{
	double memory = 4 * (double)l->serves->times[l->serves->n - 1];
	l->rate = rate_now(l, now) + (double)x->rows / memory;
	l->seen = now;
}

/* ---- answers ---------------------------------------------------------------------------------------------------------------------- */

static void finish(server *s, exchange *x)
{
	queue *q = s->queue;
	if (!x->out.status && !x->then)
		answer_error(x, 500, "the request has no answer");
	pthread_mutex_lock(&q->lock);
	x->next = q->done;
	q->done = x;
	bool first = !x->next;
	pthread_mutex_unlock(&q->lock);
	if (first)
		server_wake(s);
}

static void answer_busy(exchange *x, uint32_t waiting)
{
	answer_error(x, 429, "%u requests wait already; try again later", waiting);
}

static void answer_late(exchange *x)
{
	answer_error(x, 504, "the time of the request was over before it was its turn");
}

/* False: it has its answer. */
static bool is_wanted(exchange *x)
{
	if (!x->at.taken)
		x->at.taken = clock_nanoseconds();
	if (atomic_load(&x->gone))
		answer_empty(x, 503);
	else if (x->deadline && clock_nanoseconds() > x->deadline)
		answer_late(x);
	return !x->out.status;
}

static uint32_t desk_most(const server *s)
{
	return s->o.max_queue < ERRANDS_MOST ? s->o.max_queue : ERRANDS_MOST;
}

/* ---- reading ---------------------------------------------------------------------------------------------------------------------- */

/* A model that has to be cut first is the desk's: others are read meanwhile. */
static bool is_errand(exchange *x, bool at_desk)
{
	if (at_desk || x->work != infer_work || x->served || models_is_quick(x->model))
		return false;
	x->served = models_quick(x->s, x->model, x->version);
	return !x->served;
}

static void place(server *s, exchange *x)
{
	queue *q = s->queue;
	int64_t now = clock_nanoseconds();
	queue_line *l = x->point ? &x->point->line : &q->alone;
	pthread_mutex_lock(&q->lock);
	bool sooner = x->deadline && x->deadline < q->soonest;
	line_add(q, l, x);
	if (x->point)
		note_arrival(l, x, now);
	if (q->idle)
		pthread_cond_signal(&q->work);
	pthread_mutex_unlock(&q->lock);
	if (sooner)
		server_wake(s);
}

static void read_one(server *s, exchange *x, bool at_desk)
{
	queue *q = s->queue;
	bool wanted = is_wanted(x);
	if (wanted && is_errand(x, at_desk)) {
		pthread_mutex_lock(&q->lock);
		bool full = q->desk.n >= desk_most(s);
		if (!full) {
			line_add(q, &q->desk, x);
			pthread_cond_signal(&q->errand);
		}
		pthread_mutex_unlock(&q->lock);
		if (!full)
			return;
		answer_busy(x, desk_most(s));
		wanted = false;
	}
	if (wanted && x->work == infer_work) {
		infer_prepare(x);
		if (!x->out.status)
			batch_place(x);
	}
	if (x->out.status)
		finish(s, x);
	else
		place(s, x);
}

/* ---- batches ---------------------------------------------------------------------------------------------------------------------- */

typedef struct together {
	exchange *at[TOGETHER_MOST];
	uint32_t n;
} together;

/* Clients that ask again once they have their answer cannot come while it waits: where nobody joined, waiting is left alone but
   for a trial now and then. */
static bool may_wait(const queue_line *l)
{
	enum { PATIENT = 2, AGAIN = 32 };
	return l->vain < PATIENT || l->vain % AGAIN == 0;
}

/* When a line is to be run: at once, or when more rows may have come, if waiting for them pays and nobody's time runs out. */
static int64_t due_at(const server *s, const queue *q, const queue_line *l, int64_t now)
{
	const batch_point *p = l->serves;
	if (q->stop || l->rows >= batch_most(p) || l->n >= TOGETHER_MOST || (l->n == 1 && !may_wait(l)))
		return now;
	int64_t until = l->first->at.ready + batch_patience(p, l->rows, rate_now(l, now) / s->o.workers);
	int64_t takes = 2 * batch_time(p, l->rows);
	for (const exchange *x = l->first; x; x = x->next)
		if (x->deadline && x->deadline - takes < until)
			until = x->deadline - takes;
	return until;
}

/* The line to run now; NULL: there is none before *until. */
static queue_line *choose_line(const server *s, queue *q, int64_t *until)
{
	int64_t now = clock_nanoseconds();
	queue_line *best = q->alone.first ? &q->alone : NULL;
	*until = INT64_MAX;
	for (queue_line *l = q->lines; l; l = l->after) {
		int64_t due = due_at(s, q, l, now);
		if (due > now)
			*until = due < *until ? due : *until;
		else if (!best || l->first->at.queued < best->first->at.queued)
			best = l;
	}
	return best;
}

static void take_together(queue *q, queue_line *l, together *t)
{
	int64_t rows[TOGETHER_MOST];
	uint32_t n = 0, take = 1;
	for (const exchange *x = l->first; x && l->serves && n < TOGETHER_MOST; x = x->next)
		rows[n++] = x->rows;
	if (n)
		take = batch_choose(l->serves, rows, n);
	for (t->n = 0; t->n < take; t->n++)
		t->at[t->n] = line_take(q, l);
	l->vain = take > 1 ? 0 : l->vain + 1;
}

static void run_together(server *s, together *t)
{
	uint32_t n = 0;
	for (uint32_t k = 0; k < t->n; k++) {
		exchange *x = t->at[k];
		x->at.taken = clock_nanoseconds() - x->read_ns; /* the time in line is time in the queue */
		if (is_wanted(x))
			t->at[n++] = x;
		else
			finish(s, x);
	}
	bool joined = n > 1 && batch_run(t->at, n) == CLV_OK;
	for (uint32_t k = 0; k < n; k++) {
		exchange *x = t->at[k];
		if (joined)
			infer_finish(x, CLV_OK, k ? 0 : n);
		else
			x->work(x);
		finish(s, x);
	}
}

/* ---- threads ---------------------------------------------------------------------------------------------------------------------- */

static struct timespec clock_time(int64_t ns)
{
	return (struct timespec){.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
}

static bool may_read(const queue *q)
{
	return q->arrivals.first && (q->have_read < READ_MOST || q->stop);
}

/* With the lock, which it gives up meanwhile. */
static void read_next(server *s, queue *q)
{
	exchange *x = line_take(q, &q->arrivals);
	pthread_mutex_unlock(&q->lock);
	read_one(s, x, false);
	pthread_mutex_lock(&q->lock);
}

static void run_line(server *s, queue *q, queue_line *l, served **running)
{
	together t;
	take_together(q, l, &t);
	*running = served_ref(t.at[0]->served);
	if (q->idle && (q->alone.first || q->lines))
		pthread_cond_signal(&q->work);
	if (q->arrivals.first && !q->idle)
		pthread_cond_signal(&q->read);
	pthread_mutex_unlock(&q->lock);
	run_together(s, &t);
	pthread_mutex_lock(&q->lock);
	served *done = *running;
	*running = NULL;
	pthread_mutex_unlock(&q->lock);
	served_free(done);
	pthread_mutex_lock(&q->lock);
}

static void wait_for_work(queue *q, int64_t until)
{
	struct timespec time = clock_time(until);
	q->idle++;
	if (until == INT64_MAX)
		pthread_cond_wait(&q->work, &q->lock);
	else
		pthread_cond_timedwait(&q->work, &q->lock, &time);
	q->idle--;
}

/* Requests that are slow to read, and perhaps refused, do not keep others from running. */
static bool waits_long(const queue_line *l)
{
	enum { LONG = 5000000 };
	return clock_nanoseconds() - l->first->at.ready > LONG;
}

static void *run_worker(void *ctx)
{
	server *s = ctx;
	queue *q = s->queue;
	pthread_mutex_lock(&q->lock);
	served **running = &q->running[q->nrunning++];
	for (;;) {
		int64_t until;
		queue_line *l = choose_line(s, q, &until);
		if (may_read(q) && !(l && waits_long(l)))
			read_next(s, q);
		else if (l)
			run_line(s, q, l, running);
		else if (q->stop)
			break;
		else
			wait_for_work(q, until);
	}
	pthread_mutex_unlock(&q->lock);
	return NULL;
}

static void *run_reader(void *ctx)
{
	server *s = ctx;
	queue *q = s->queue;
	pthread_mutex_lock(&q->lock);
	while (!q->stop) {
		if (may_read(q) && !q->idle)
			read_next(s, q);
		else
			pthread_cond_wait(&q->read, &q->lock);
	}
	pthread_mutex_unlock(&q->lock);
	return NULL;
}

static void errand(server *s, exchange *x)
{
	if (x->work == infer_work) {
		read_one(s, x, true);
		return;
	}
	if (is_wanted(x))
		x->work(x);
	finish(s, x);
}

static void *run_desk(void *ctx)
{
	server *s = ctx;
	queue *q = s->queue;
	pthread_mutex_lock(&q->lock);
	while (!q->stop || q->desk.first) {
		exchange *x = line_take(q, &q->desk);
		if (!x) {
			pthread_cond_wait(&q->errand, &q->lock);
			continue;
		}
		pthread_mutex_unlock(&q->lock);
		errand(s, x);
		pthread_mutex_lock(&q->lock);
	}
	pthread_mutex_unlock(&q->lock);
	return NULL;
}

static void make_conditions(queue *q)
{
	pthread_condattr_t a;
	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	pthread_cond_init(&q->work, &a);
	pthread_cond_init(&q->read, &a);
	pthread_cond_init(&q->errand, &a);
	pthread_condattr_destroy(&a);
}

clv_status queue_open(server *s)
{
	uint32_t n = s->o.workers + 2;
	queue *q = mem_alloc(sizeof *q);
	TRY_MEM(q);
	s->queue = q;
	q->soonest = INT64_MAX;
	pthread_mutex_init(&q->lock, NULL);
	make_conditions(q);
	q->threads = mem_alloc(n * sizeof *q->threads);
	q->running = mem_alloc(n * sizeof *q->running);
	TRY_MEM(q->threads && q->running);
	for (uint32_t i = 0; i < n; i++) {
		void *(*const run)(void *) = i == 0 ? run_desk : i == 1 ? run_reader : run_worker;
		if (pthread_create(&q->threads[i], NULL, run, s) != 0)
			return fail(CLV_E_IO, "a thread cannot be started");
		q->nthreads++;
	}
	return CLV_OK;
}

static void free_line(queue *q, queue_line *l)
{
	for (uint32_t n = l->n; n; n--) /* the line goes with the last user of its model */
		exchange_free(line_take(q, l));
}

/* Runs that nobody waits for are stopped at their next operator. */
static void stop_runs(server *s, queue *q)
{
	pthread_mutex_lock(&q->lock);
	for (uint32_t i = 0; i < q->nrunning; i++)
		if (q->running[i]) {
			server_say(s, "a run of model %s is cut short", q->running[i]->name);
			clv_runtime_cancel(q->running[i]->runtime);
		}
	pthread_mutex_unlock(&q->lock);
	sessions_stop(s);
}

static clv_status join_threads(queue *q)
{
	enum { PATIENT_S = 10 };
	struct timespec until;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += PATIENT_S;
	while (q->nthreads && pthread_clockjoin_np(q->threads[q->nthreads - 1], NULL, CLOCK_MONOTONIC, &until) == 0)
		q->nthreads--;
	return q->nthreads ? fail(CLV_E_CANCELLED,
	                          "a run, or the loading of a model, did not end in %d s; its thread goes on", PATIENT_S)
	                   : CLV_OK;
}

clv_status queue_close(server *s)
{
	queue *q = s->queue;
	if (!q)
		return CLV_OK;
	pthread_mutex_lock(&q->lock);
	q->stop = true;
	pthread_cond_broadcast(&q->work);
	pthread_cond_broadcast(&q->read);
	pthread_cond_broadcast(&q->errand);
	pthread_mutex_unlock(&q->lock);
	stop_runs(s, q);
	TRY(join_threads(q));
	free_line(q, &q->arrivals);
	free_line(q, &q->alone);
	free_line(q, &q->desk);
	while (q->lines)
		free_line(q, q->lines);
	for (exchange *x = queue_done(s), *next; x; x = next) {
		next = x->next;
		exchange_free(x);
	}
	mem_free(q->threads);
	mem_free(q->running);
	pthread_cond_destroy(&q->work);
	pthread_cond_destroy(&q->read);
	pthread_cond_destroy(&q->errand);
	pthread_mutex_destroy(&q->lock);
	mem_free(q);
	s->queue = NULL;
	return CLV_OK;
}

/* ---- for the loop ----------------------------------------------------------------------------------------------------------------- */

static void add(exchange *x, bool desk)
{
	queue *q = x->s->queue;
	x->at.queued = clock_nanoseconds();
	pthread_mutex_lock(&q->lock);
	bool own = !x->c && !x->outer; /* the server looks for changed files */
	uint32_t most = desk ? desk_most(x->s) : x->s->o.max_queue;
	bool full = desk ? !own && q->desk.n >= most : q->waiting >= most;
	if (!full) {
		x->working = true;
		line_add(q, desk ? &q->desk : &q->arrivals, x);
		pthread_cond_signal(desk ? &q->errand : q->idle ? &q->work : &q->read);
	}
	pthread_mutex_unlock(&q->lock);
	if (full)
		answer_busy(x, most);
}

void queue_add(exchange *x)
{
	add(x, false);
}

void queue_add_desk(exchange *x)
{
	add(x, true);
}

exchange *queue_done(server *s)
{
	queue *q = s->queue;
	pthread_mutex_lock(&q->lock);
	exchange *done = q->done;
	q->done = NULL;
	pthread_mutex_unlock(&q->lock);
	return done;
}

bool queue_take_back(exchange *x)
{
	queue *q = x->s->queue;
	atomic_store(&x->gone, true);
	if (!x->at.answered && (x->working || x->served))
		atomic_fetch_add(&x->s->refused[REFUSED_CANCELLED], 1);
	if (!q || !x->working)
		return !x->working;
	pthread_mutex_lock(&q->lock);
	queue_line *l = x->in;
	exchange *before = NULL;
	for (exchange *at = l ? l->first : NULL; at && at != x; at = at->next)
		before = at;
	if (l)
		line_remove(q, l, x, before);
	pthread_mutex_unlock(&q->lock);
	x->working = !l;
	return l != NULL;
}

int64_t queue_next_deadline(server *s)
{
	queue *q = s->queue;
	pthread_mutex_lock(&q->lock);
	int64_t soonest = q->soonest;
	pthread_mutex_unlock(&q->lock);
	return soonest;
}

/* Moves those whose time is over to *late. */
static void sweep_line(queue *q, queue_line *l, int64_t now, exchange **late)
{
	exchange *before = NULL;
	for (exchange *x = l->first, *next; x; x = next) {
		next = x->next;
		if (!x->deadline || x->deadline > now) {
			if (x->deadline && x->deadline < q->soonest)
				q->soonest = x->deadline;
			before = x;
			continue;
		}
		line_remove(q, l, x, before);
		x->next = *late;
		*late = x;
	}
}

void queue_sweep(server *s)
{
	queue *q = s->queue;
	exchange *late = NULL;
	int64_t now = clock_nanoseconds();
	pthread_mutex_lock(&q->lock);
	q->soonest = INT64_MAX;
	sweep_line(q, &q->arrivals, now, &late);
	sweep_line(q, &q->alone, now, &late);
	sweep_line(q, &q->desk, now, &late);
	for (queue_line *l = q->lines, *after; l; l = after) {
		after = l->after; /* it leaves the list where it becomes empty */
		sweep_line(q, l, now, &late);
	}
	pthread_mutex_unlock(&q->lock);
	for (exchange *x = late, *next; x; x = next) {
		next = x->next;
		x->at.taken = now;
		answer_late(x);
		finish(s, x);
	}
}
