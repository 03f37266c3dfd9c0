/* A program under a guard, a process whose only task is to end everything that the program started (child.c), and reading
 * the result of a job that a program left in its folder (result.c). */
#pragma once

#include <sys/types.h>

#include "base/clock.h"
#include "segment/compile.h"

typedef struct child_spec {
	const char *const *argv; /* NULL ends; argv[0] is searched in $PATH */
	const char *last;        /* one more argument; NULL: none */
	const char *const *env;  /* added to ours; NULL: nothing */
	bool bare;               /* it gets none of our environment */
	const char *dir;         /* where it runs; absolute */
	const char *log;         /* file in dir for what it prints */
	int input;               /* what it reads as its standard input; 0: nothing */
	bool lasts;              /* it does not end with the thread that starts it */
} child_spec;

typedef struct child {
	pid_t guard;   /* 0: it is no child of ours, but of a warm compiler */
	bool begun;    /* guard 0: the warm compiler has taken it */
	int control;   /* held open as long as it may run */
	int report;    /* readable when there is news; for poll() */
	char mark[64]; /* CLEAVE_JOB in the environment of all its processes */
	bool over;
	int broken_step, broken_errno; /* it could not be started */
	bool has_status;
	int status; /* of waitpid; without it the guard was killed */
} child;

clv_status child_start(const child_spec *s, child *out); /* CLV_E_IO, CLV_E_NOT_FOUND */
void child_stop(child *c);                               /* tells the guard to kill everything; returns at once */
void child_poll(child *c);                /* looks for news; sets `over` when all its processes are gone */
void child_end(child *c);                 /* kills what is left, waits, releases */
void child_forget(child *c);              /* after a fork: it is the child of another process, and stays so */
const char *child_broken(const child *c); /* the step that failed: "enter the folder"; NULL: none */

/* The same for a process that a warm compiler splits off itself. Ours makes the ends and sends them; the compiler, which has
   one thread, splits: true in the new process, which then has folder and log, false in the old one. */
clv_status child_order(child *out, int ends[2]); /* the caller closes the ends once they are sent */
clv_status child_split(const char *dir, const char *log, const int ends[2], bool *inside);

/* warm.c: a job for the warm compiler of argv, which is started as `argv --serve` if there is none. CLV_E_NOT_FOUND: there is
   none, and cannot be one; the job is for child_start. */
clv_status warm_job(const char *const *argv, const char *const *env, const char *dir, child *out);
void warm_give_up(void); /* ends those that are not ready: a job waited for one of them for longer than it may */
uint32_t warm_count(pid_t *pids, uint32_t most); /* their guards: how many there are, at most `most` of them */

/* result.c: what a program that ended left in the job's folder: j->made, or j->message and what goes with it. */
clv_status job_read_result(job *j, const child *c, double timeout /* > 0: it ran that long and was killed */);
