/* Runs compile jobs, several at a time: starts and watches them, stops late ones, and reads their results. */
#define _GNU_SOURCE /* what Linux has beyond POSIX */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "segment/child.h"

#define TICK 0.2

/* A place where a job runs. */
typedef struct lane {
	uint32_t job; /* NONE: none does */
	child child;
	double started;
	bool late; /* it ran too long, and is being killed */
} lane;

typedef struct runner {
	job *jobs;
	uint32_t n, next; /* next: the first that was not started */
	const jobs_spec *s;
	lane *lanes;
	struct pollfd *polls;
	uint32_t nlanes, busy;
	double ticked;
	bool stopped;
} runner;

static uint32_t cores(void)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
	return n > 0 ? (uint32_t)n : 1;
}

static void report_progress(runner *r)
{
	double now = clock_seconds();
	for (uint32_t i = 0; i < r->nlanes; i++)
		if (r->lanes[i].job != NONE)
			r->jobs[r->lanes[i].job].seconds = now - r->lanes[i].started;
	r->ticked = now;
	if (r->s->tick && !r->s->tick(r->s->ctx, r->jobs, r->n))
		r->stopped = true;
}

/* ---- starting ----------------------------------------------------------------------------------------------------- */

/* Results of an earlier run must not be taken for those of this one. */
static void remove_old_results(const char *dir)
{
	static const char *const names[] = {"result.json", "error.json", "compile.log"};
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return; /* the compiler will not be able to enter it either */
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		unlinkat(fd, names[i], 0);
	close(fd);
}

static clv_status start_cold(const jobs_spec *s, const char *dir, child *out)
{
	child_spec spec = {.argv = s->argv, .last = dir, .env = s->env, .dir = dir, .log = "compile.log"};
	return child_start(&spec, out);
}

static clv_status start_job(const jobs_spec *s, const job *j, bool cold, child *out)
{
	char *path;
	TRY(path_absolute(j->dir, &path));
	remove_old_results(path);
	clv_status st = cold || !j->warm ? CLV_E_NOT_FOUND : folder_write(path, "compile.log", "", 0);
	if (st == CLV_OK)
		st = warm_job(s->argv, s->env, path, out);
	if (st != CLV_OK && st != CLV_E_NOMEM)
		st = start_cold(s, path, out);
	mem_free(path);
	return st;
}

static clv_status not_started(job *j)
{
	const char *why = status_message();
	j->state = JOB_FAILED;
	j->message = mem_strdup(why, strlen(why));
	return j->message ? CLV_OK : fail_nomem();
}

static clv_status start_next(runner *r, lane *l)
{
	job *j = &r->jobs[r->next];
	clv_status st = start_job(r->s, j, false, &l->child);
	if (st == CLV_E_NOMEM)
		return st;
	l->job = r->next++;
	if (st != CLV_OK) {
		l->job = NONE;
		TRY(not_started(j));
	} else {
		l->started = clock_seconds();
		l->late = false;
		j->state = JOB_RUNS;
		r->busy++;
	}
	report_progress(r);
	return CLV_OK;
}

static clv_status fill_lanes(runner *r)
{
	for (uint32_t i = 0; i < r->nlanes; i++)
		while (!r->stopped && r->lanes[i].job == NONE && r->next < r->n)
			TRY(start_next(r, &r->lanes[i]));
	return CLV_OK;
}

/* ---- watching ----------------------------------------------------------------------------------------------------- */

/* Until there is news, a job is late, or it is time to tick. */
static void wait_for_news(runner *r)
{
	double now = clock_seconds(), until = r->ticked + TICK;
	nfds_t n = 0;
	for (uint32_t i = 0; i < r->nlanes; i++) {
		const lane *l = &r->lanes[i];
		if (l->job == NONE)
			continue;
		r->polls[n++] = (struct pollfd){.fd = l->child.report, .events = POLLIN};
		if (r->s->timeout > 0 && !l->late && l->started + r->s->timeout < until)
			until = l->started + r->s->timeout;
	}
	poll(r->polls, n, until > now ? (int)((until - now) * 1000) + 1 : 0);
}

/* The warm compiler did not get to the job. */
static bool was_not_taken(const child *c)
{
	return c->guard == 0 && !c->begun;
}

static clv_status end_job(runner *r, lane *l)
{
	job *j = &r->jobs[l->job];
	l->job = NONE;
	r->busy--;
	j->seconds = clock_seconds() - l->started;
	if (l->late && was_not_taken(&l->child))
		warm_give_up();
	child_end(&l->child);
	TRY(job_read_result(j, &l->child, l->late ? r->s->timeout : 0));
	report_progress(r);
	return CLV_OK;
}

/* The warm compiler is gone. */
static clv_status start_again(runner *r, lane *l)
{
	child_end(&l->child);
	clv_status st = start_job(r->s, &r->jobs[l->job], true, &l->child);
	if (st == CLV_OK || st == CLV_E_NOMEM)
		return st;
	job *j = &r->jobs[l->job];
	l->job = NONE;
	r->busy--;
	return not_started(j);
}

/* A job that is stopped gets this long to die before it is ended by force. */
#define PATIENCE 12

static clv_status look_at(runner *r, lane *l)
{
	double ran = clock_seconds() - l->started, limit = r->s->timeout;
	child_poll(&l->child);
	if (l->child.over && !l->late && was_not_taken(&l->child))
		return start_again(r, l);
	if (l->child.over || (l->late && ran > limit + PATIENCE))
		return end_job(r, l);
	if (limit > 0 && ran >= limit && !l->late) {
		l->late = true;
		child_stop(&l->child);
	}
	return CLV_OK;
}

static clv_status watch_lanes(runner *r)
{
	wait_for_news(r);
	for (uint32_t i = 0; i < r->nlanes && !r->stopped; i++)
		if (r->lanes[i].job != NONE)
			TRY(look_at(r, &r->lanes[i]));
	if (clock_seconds() - r->ticked >= TICK)
		report_progress(r);
	return CLV_OK;
}

static clv_status run_all(runner *r)
{
	while (!r->stopped && (r->busy || r->next < r->n)) {
		TRY(fill_lanes(r));
		if (r->busy && !r->stopped)
			TRY(watch_lanes(r));
	}
	return CLV_OK;
}

/* All are told before the first is waited for. */
static void stop_all(runner *r)
{
	for (uint32_t i = 0; i < r->nlanes; i++)
		if (r->lanes[i].job != NONE)
			child_stop(&r->lanes[i].child);
	for (uint32_t i = 0; i < r->nlanes; i++)
		if (r->lanes[i].job != NONE)
			child_end(&r->lanes[i].child);
	for (uint32_t i = 0; i < r->n; i++)
		if (r->jobs[i].state == JOB_WAITS || r->jobs[i].state == JOB_RUNS)
			r->jobs[i].state = JOB_CANCELLED;
}

clv_status jobs_run(job *jobs, uint32_t n, const jobs_spec *s)
{
	uint32_t wanted = s->parallel ? s->parallel : cores(), nlanes = wanted < n ? wanted : n;
	runner r = {.jobs = jobs, .n = n, .s = s, .nlanes = nlanes, .ticked = clock_seconds()};
	if (!s->argv || !s->argv[0])
		return fail(CLV_E_INVALID, "there is no compiler to start");
	for (uint32_t i = 0; i < n; i++) {
		jobs[i].state = JOB_WAITS;
		jobs[i].seconds = 0;
	}
	r.lanes = mem_alloc(nlanes * sizeof *r.lanes);
	r.polls = mem_alloc(nlanes * sizeof *r.polls);
	clv_status st = r.lanes && r.polls ? CLV_OK : fail_nomem();
	if (st == CLV_OK) {
		for (uint32_t i = 0; i < nlanes; i++)
			r.lanes[i].job = NONE;
		st = run_all(&r);
		stop_all(&r);
	}
	mem_free(r.lanes);
	mem_free(r.polls);
	return st;
}
