/* One program under a guard, a process that has no other task than to end all that the program started (child.c); and what
 * the program left behind as the result of a job (result.c). */
#ifndef SEGMENT_CHILD_H
#define SEGMENT_CHILD_H

#include <sys/types.h>

#include "base/clock.h"
#include "segment/compile.h"

typedef struct child_spec {
	const char *const *argv; /* NULL ends; argv[0] is looked for in $PATH */
	const char *const *env;  /* beside ours; NULL: nothing */
	const char *dir;         /* where it runs; absolute */
	const char *log;         /* file in dir for what it prints */
} child_spec;

typedef struct child {
	pid_t guard;
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
const char *child_broken(const child *c); /* the step that failed: "enter the folder"; NULL: none */

/* result.c: what a program that ended left in the job's folder: j->made, or j->message and what goes with it. */
clv_status job_read_result(job *j, const child *c, double timeout /* > 0: it ran that long and was killed */);

#endif
