/* Runs a program so that everything it starts can be ended with it.
 *
 * Between us and the program is a guard: a copy of this process that runs only the code of this file. It adopts orphans of
 * the program (PR_SET_CHILD_SUBREAPER, a setting of the guard and not of the host), so every process that the program
 * started becomes the guard's child sooner or later, even after setsid(), and killing children until there are none kills
 * all of it. The guard does so when the program ends, when `control` is closed (by us, or because this process died), and
 * on SIGTERM, which it gets when the thread that started it ends. Then it sends the program's status through `report`.
 *
 * The guard is made by clone() without a signal at its end, so the host's SIGCHLD handlers and wait() calls do not see
 * it. It has one thread of a process that may have had many: no locks, no memory, only calls that are safe in signal
 * handlers. Should the guard be killed itself, its program dies with it, and the rest is found by a mark in the
 * environment.
 *
 * A warm compiler (warm.c) splits jobs off itself: there the program is a copy of the compiler, and the guard a child of it. */
#define _GNU_SOURCE /* what Linux has beyond POSIX */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "segment/child.h"

#define MARK "CLEAVE_JOB="
extern char **environ;

enum { REPORT_BROKEN, REPORT_ENDED, REPORT_BEGUN };

/* One message; shorter than what a pipe splits. */
typedef struct report {
	int kind, step, number; /* BROKEN: step and errno; ENDED: status of waitpid */
} report;

static const char *const steps[] = {"make a process", "enter the folder", "open /dev/null", "write the log", "start"};
enum { STEP_PROCESS, STEP_FOLDER, STEP_NULL, STEP_LOG, STEP_EXEC };

/* What the guard needs, made before it is. */
typedef struct orders {
	const char *path, *dir, *log;
	char **argv, **env;  /* NULL: the program is a copy of this process */
	int control, report; /* its ends */
	int input;           /* 0: none */
	bool lasts;
} orders;

/* ---- in the guard, and in the program before it is one ------------------------------------------------------------ */

static pid_t split_process(unsigned long end_signal)
{
	return (pid_t)syscall(SYS_clone, end_signal, NULL, NULL, NULL, NULL);
}

static void send_report(int fd, int kind, int step, int number)
{
	report r = {kind, step, number};
	while (write(fd, &r, sizeof r) < 0 && errno == EINTR)
		;
}

static void default_signals(void)
{
	struct sigaction standard = {.sa_handler = SIG_DFL};
	for (int s = 1; s < NSIG; s++)
		sigaction(s, &standard, NULL);
}

static void close_range_slow(unsigned first, unsigned last)
{
	long most = sysconf(_SC_OPEN_MAX);
	for (unsigned fd = first; fd <= last && (long)fd < most; fd++)
		close((int)fd);
}

static void close_between(int first, int last)
{
	if (first > last)
		return;
#ifdef SYS_close_range
	if (syscall(SYS_close_range, (unsigned)first, (unsigned)last, 0) == 0)
		return;
#endif
	close_range_slow((unsigned)first, (unsigned)last);
}

/* Files of the host must not stay open because of us. The three are in ascending order. */
static void close_all_but(const int keep[3])
{
	close_between(0, keep[0] - 1);
	close_between(keep[0] + 1, keep[1] - 1);
	close_between(keep[1] + 1, keep[2] - 1);
	close_between(keep[2] + 1, INT32_MAX);
}

static void close_others(const orders *o)
{
	int keep[3] = {o->control, o->report, o->input ? o->input : o->report};
	for (int i = 0; i < 2; i++)
		for (int k = 0; k < 2; k++)
			if (keep[k] > keep[k + 1]) {
				int other = keep[k];
				keep[k] = keep[k + 1];
				keep[k + 1] = other;
			}
	close_all_but(keep);
}

static void broken(const orders *o, int step)
{
	send_report(o->report, REPORT_BROKEN, step, errno);
	_exit(127);
}

static int open_input(const orders *o)
{
	return o->input ? dup2(o->input, 0) : open("/dev/null", O_RDONLY); /* the lowest that is free */
}

/* Returns where the program is a copy of this process. */
static void become_program(const orders *o, pid_t guard)
{
	sigset_t none;
	sigemptyset(&none);
	setsid();
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != guard)
		_exit(127);
	if (chdir(o->dir) != 0)
		broken(o, STEP_FOLDER);
	if (open_input(o) != 0)
		broken(o, STEP_NULL);
	if (open(o->log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_NOFOLLOW | O_NONBLOCK, 0600) != 1 || dup(1) != 2)
		broken(o, STEP_LOG);
	sigprocmask(SIG_SETMASK, &none, NULL);
	if (!o->argv) {
		close(o->control);
		close(o->report);
		return;
	}
	execve(o->path, o->argv, o->env);
	broken(o, STEP_EXEC);
}

static volatile sig_atomic_t told_to_end;

static void on_signal(int s)
{
	if (s == SIGTERM)
		told_to_end = 1;
}

/* Parent of process `pid`, from the text of /proc/pid/stat: "12 (name) S 11 …", where the name may hold anything. */
static long parent_in(const char *text, ssize_t n)
{
	long parent = 0;
	ssize_t at = n;
	while (at > 0 && text[at - 1] != ')')
		at--;
	if (at == 0)
		return -1;
	for (at += 3; at < n && text[at] >= '0' && text[at] <= '9'; at++)
		parent = parent * 10 + (text[at] - '0');
	return parent;
}

static long parent_of(int proc, const char *pid)
{
	char path[32], text[512];
	size_t n = strlen(pid);
	if (n + sizeof "/stat" > sizeof path)
		return -1;
	memcpy(path, pid, n);
	memcpy(path + n, "/stat", sizeof "/stat");
	int fd = openat(proc, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	ssize_t got = read(fd, text, sizeof text);
	close(fd);
	return got > 0 ? parent_in(text, got) : -1;
}

static long pid_of(const char *s)
{
	long n = 0;
	for (; *s >= '0' && *s <= '9'; s++)
		n = n * 10 + (*s - '0');
	return *s ? -1 : n;
}

/* As the kernel gives it; readdir() would need memory. */
typedef struct kernel_dirent {
	uint64_t ino;
	int64_t off;
	uint16_t size;
	uint8_t type;
	char name[];
} kernel_dirent;

/* False: there is no /proc here. */
static bool kill_children(pid_t of)
{
	_Alignas(kernel_dirent) char list[4096];
	int proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (proc < 0)
		return false;
	for (long n; (n = syscall(SYS_getdents64, proc, list, sizeof list)) > 0;) {
		for (long at = 0; at < n;) {
			const kernel_dirent *e = (const kernel_dirent *)(list + at);
			long pid = pid_of(e->name);
			if (pid > 1 && parent_of(proc, e->name) == of)
				kill((pid_t)pid, SIGKILL);
			at += e->size;
		}
	}
	close(proc);
	return true;
}

static void pause_ms(long ms)
{
	struct timespec t = {0, ms * 1000000};
	nanosleep(&t, NULL);
}

/* Takes the status of every child that ended; of `program` it is kept. False: there are no children. */
static bool reap(pid_t program, int *status, bool *ended)
{
	for (;;) {
		int st;
		pid_t pid = waitpid(-1, &st, WNOHANG | __WALL);
		if (pid == program) {
			*status = st;
			*ended = true;
		}
		if (pid == 0)
			return true;
		if (pid < 0 && errno != EINTR)
			return false;
	}
}

/* Ten seconds at most: a process may be another user's by now, or hang in the kernel. */
static void kill_everything(pid_t program, int *status, bool *ended)
{
	pid_t self = getpid();
	for (int round = 0; round < 2000; round++) {
		if (!*ended)
			kill(-program, SIGKILL); /* most of it at once */
		bool listed = kill_children(self);
		if (!reap(program, status, ended) || (!listed && *ended))
			return;
		pause_ms(5);
	}
}

/* A line of /proc/self/maps: "7f00-7f10 rw-p 00000000 00:00 0  [heap]". Gives where the mapping is, if it is memory of nobody's
   file that could be written. */
static bool private_memory(const char *line, uintptr_t range[2])
{
	for (int i = 0; i < 2; i++, line++) {
		range[i] = 0;
		for (; *line != '-' && *line != ' '; line++) {
			if (!*line)
				return false;
			range[i] = range[i] * 16 + (uintptr_t)(*line <= '9' ? *line - '0' : *line - 'a' + 10);
		}
	}
	return strncmp(line, "rw-p ", 5) == 0 && strstr(line, " 00:00 0") != NULL;
}

static bool holds(const uintptr_t range[2], const void *at)
{
	return (uintptr_t)at >= range[0] && (uintptr_t)at < range[1];
}

/* Only what is large: data of libraries is in small pieces. */
static void drop_line(const char *line)
{
	enum { LARGE = 4 << 20 };
	uintptr_t range[2];
	if (!private_memory(line, range) || range[1] - range[0] < LARGE)
		return;
	if (holds(range, &range) || holds(range, &errno))
		return; /* the stack, and what the C library has for this thread */
	madvise((void *)range[0], range[1] - range[0], MADV_DONTNEED);
}

/* A guard that lasts would keep alive all that the host had in memory when it was made, as it was then. The notes of
   AddressSanitizer are part of that, and it needs them. */
static void drop_memory(void)
{
	if (ADDRESS_SANITIZER)
		return;
	char line[256], piece[4096];
	size_t n = 0;
	int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	for (ssize_t got; fd >= 0 && (got = read(fd, piece, sizeof piece)) > 0;)
		for (ssize_t i = 0; i < got; i++) {
			if (piece[i] != '\n') {
				line[n] = piece[i];
				n += n < sizeof line - 1;
				continue;
			}
			line[n] = '\0';
			drop_line(line);
			n = 0;
		}
	if (fd >= 0)
		close(fd);
}

static void wait_for_end(const orders *o, pid_t program, int *status, bool *ended)
{
	sigset_t none;
	sigemptyset(&none);
	while (!told_to_end) {
		struct pollfd control = {.fd = o->control, .events = POLLIN};
		reap(program, status, ended);
		if (*ended)
			return;
		int got = ppoll(&control, 1, NULL, &none); /* signals come in here alone */
		if (got > 0)
			return;
	}
}

static void set_up_guard(const orders *o)
{
	struct sigaction wake = {.sa_handler = on_signal};
	default_signals();
	close_others(o);
	setsid();
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	if (!o->lasts)
		prctl(PR_SET_PDEATHSIG, SIGTERM);
	sigaction(SIGCHLD, &wake, NULL);
	sigaction(SIGTERM, &wake, NULL);
}

/* All signals are blocked when it begins. Returns in a program that is a copy of this process. */
static void be_guard(const orders *o)
{
	int status = 0;
	bool ended = false;
	set_up_guard(o);
	if (!o->argv)
		send_report(o->report, REPORT_BEGUN, 0, 0);
	pid_t self = getpid(), program = o->argv ? split_process(SIGCHLD) : fork();
	if (program < 0)
		broken(o, STEP_PROCESS);
	if (program == 0) {
		become_program(o, self);
		return;
	}
	if (o->input)
		close(o->input);
	if (o->lasts)
		drop_memory();
	wait_for_end(o, program, &status, &ended);
	kill_everything(program, &status, &ended);
	if (ended)
		send_report(o->report, REPORT_ENDED, 0, status);
	_exit(0);
}

/* ---- on our side -------------------------------------------------------------------------------------------------- */

static clv_status find_program(const char *name, char **out)
{
	const char *path = getenv("PATH");
	if (strchr(name, '/'))
		return path_absolute(name, out);
	for (const char *at = path ? path : "/usr/local/bin:/usr/bin:/bin"; *at;) {
		size_t n = strcspn(at, ":");
		strbuf b = STRBUF_INIT;
		char *found;
		strbuf_printf(&b, "%.*s/%s", (int)n, n ? at : ".", name);
		TRY(strbuf_take(&b, &found));
		if (access(found, X_OK) == 0) {
			clv_status st = path_absolute(found, out);
			mem_free(found);
			return st;
		}
		mem_free(found);
		at += n + (at[n] == ':');
	}
	return fail(CLV_E_NOT_FOUND, "there is no program \"%s\" in $PATH", name);
}

typedef VEC(char *) texts;

static uint32_t count_texts(const char *const *list)
{
	uint32_t n = 0;
	while (list && list[n])
		n++;
	return n;
}

static bool names_same(const char *a, const char *b)
{
	size_t n = strcspn(a, "=");
	return strncmp(a, b, n) == 0 && b[n] == '=';
}

/* Later ones win. */
static clv_status put_variable(texts *env, const char *text)
{
	for (uint32_t i = 0; i < env->n; i++) {
		if (names_same(text, env->at[i])) {
			env->at[i] = (char *)text;
			return CLV_OK;
		}
	}
	return vec_push(env, (char *)text);
}

static clv_status make_environment(const child_spec *s, const char *mark, texts *out)
{
	TRY(vec_reserve(out, count_texts((const char *const *)environ)));
	for (char **e = environ; !s->bare && e && *e; e++)
		TRY(vec_push(out, *e));
	for (uint32_t i = 0; i < count_texts(s->env); i++)
		TRY(put_variable(out, s->env[i]));
	TRY(put_variable(out, mark));
	return vec_push(out, NULL);
}

static clv_status make_argv(const child_spec *s, texts *out)
{
	for (uint32_t i = 0; i < count_texts(s->argv); i++)
		TRY(vec_push(out, (char *)s->argv[i]));
	if (s->last)
		TRY(vec_push(out, (char *)s->last));
	return vec_push(out, NULL);
}

/* Two ends above the standard files: those are set up anew in the program. */
static clv_status make_pipe(int ends[2])
{
	int made[2];
	if (pipe2(made, O_CLOEXEC) != 0)
		return fail(CLV_E_IO, "cannot make a pipe: %s", strerror(errno));
	for (int i = 0; i < 2; i++) {
		ends[i] = fcntl(made[i], F_DUPFD_CLOEXEC, 3);
		close(made[i]);
	}
	if (ends[0] >= 0 && ends[1] >= 0)
		return CLV_OK;
	int why = errno;
	for (int i = 0; i < 2; i++)
		if (ends[i] >= 0)
			close(ends[i]);
	return fail(CLV_E_IO, "cannot make a pipe: %s", strerror(why));
}

/* No handler of the host may run in the guard, so no signal comes while there are two of us. *out is 0 in a program that is a
   copy of this process. */
static clv_status make_guard(const orders *o, pid_t *out)
{
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	*out = o->argv ? split_process(0) : fork(); /* libraries have to know of copies that go on as programs */
	if (*out == 0) {
		be_guard(o);
		return CLV_OK;
	}
	int why = errno;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return *out < 0 ? fail(CLV_E_IO, "cannot make a process: %s", strerror(why)) : CLV_OK;
}

static clv_status start_guard(orders *o, child *c)
{
	int control[2], news[2];
	TRY(make_pipe(control));
	clv_status st = make_pipe(news);
	if (st != CLV_OK) {
		close(control[0]);
		close(control[1]);
		return st;
	}
	o->control = control[0];
	o->report = news[1];
	st = make_guard(o, &c->guard);
	close(control[0]);
	close(news[1]);
	if (st != CLV_OK) {
		close(control[1]);
		close(news[0]);
		return st;
	}
	c->control = control[1];
	c->report = news[0];
	fcntl(c->report, F_SETFL, O_NONBLOCK);
	return CLV_OK;
}

static void make_mark(char *out, size_t n)
{
	struct timespec now;
	uint64_t chance = 0;
	clock_gettime(CLOCK_MONOTONIC, &now);
	(void)!syscall(SYS_getrandom, &chance, sizeof chance, 1 /* do not wait */);
	snprintf(out, n, MARK "%ld-%llx%09lx-%llx", (long)getpid(), (unsigned long long)now.tv_sec, now.tv_nsec,
	         (unsigned long long)chance);
}

clv_status child_start(const child_spec *s, child *out)
{
	clv_status st;
	char *path = NULL;
	texts argv = {0}, env = {0};
	*out = (child){.guard = -1, .control = -1, .report = -1, .over = true};
	make_mark(out->mark, sizeof out->mark);
	if (!s->argv || !s->argv[0])
		return fail(CLV_E_INVALID, "there is no program to start");
	TRY_OUT(find_program(s->argv[0], &path));
	TRY_OUT(make_argv(s, &argv));
	TRY_OUT(make_environment(s, out->mark, &env));
	orders o = {.path = path,
	            .dir = s->dir,
	            .log = s->log,
	            .argv = argv.at,
	            .env = env.at,
	            .input = s->input,
	            .lasts = s->lasts};
	TRY_OUT(start_guard(&o, out));
	out->over = false;
out:
	mem_free(path);
	vec_free(&argv);
	vec_free(&env);
	return st;
}

clv_status child_order(child *out, int ends[2])
{
	int control[2], news[2];
	*out = (child){.control = -1, .report = -1, .over = true};
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control) != 0)
		return fail(CLV_E_IO, "cannot make a pair of sockets: %s", strerror(errno));
	clv_status st = make_pipe(news);
	if (st != CLV_OK) {
		close(control[0]);
		close(control[1]);
		return st;
	}
	out->control = control[1];
	out->report = news[0];
	out->over = false;
	fcntl(out->report, F_SETFL, O_NONBLOCK);
	ends[0] = control[0];
	ends[1] = news[1];
	return CLV_OK;
}

clv_status child_split(const char *dir, const char *log, const int ends[2], bool *inside)
{
	pid_t guard;
	orders o = {.dir = dir, .log = log, .control = ends[0], .report = ends[1]};
	while (waitpid(-1, NULL, WNOHANG | __WALL) > 0) /* guards that are done */
		;
	TRY(make_guard(&o, &guard));
	*inside = guard == 0;
	return CLV_OK;
}

void child_stop(child *c)
{
	if (c->control >= 0) {
		shutdown(c->control, SHUT_RDWR); /* a socket tells it also where a copy of this process has it open */
		close(c->control);
	}
	c->control = -1;
	if (c->guard == 0 && !c->begun)
		c->over = true; /* a later taker finds that nobody waits for it */
	if (!c->over && c->guard > 0)
		kill(c->guard, SIGTERM); /* the host may have forked, and then the other one still holds it open */
}

const char *child_broken(const child *c)
{
	return c->broken_errno ? steps[c->broken_step] : NULL;
}

/* Returns whether the other end is closed, so that no more news can come. */
static bool take_news(child *c)
{
	report r;
	ssize_t n;
	while ((n = read(c->report, &r, sizeof r)) == (ssize_t)sizeof r) {
		if (r.kind == REPORT_BEGUN)
			c->begun = true;
		if (r.kind == REPORT_BROKEN && !c->broken_errno) {
			c->broken_step = r.step;
			c->broken_errno = r.number;
		}
		if (r.kind == REPORT_ENDED) {
			c->has_status = true;
			c->status = r.number;
		}
	}
	return n == 0;
}

static bool guard_is_gone(pid_t guard)
{
	pid_t got = waitpid(guard, NULL, WNOHANG | __WALL);
	return got == guard || (got < 0 && errno == ECHILD);
}

/* ---- after a guard that was killed -------------------------------------------------------------------------------- */

static bool has_mark(const char *pid, const char *mark)
{
	char path[64], piece[4096];
	size_t n = strnlen(mark, sizeof((child *)0)->mark), held = 0;
	ssize_t got;
	bool found = false;
	snprintf(path, sizeof path, "/proc/%.20s/environ", pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	/* The end of each piece is kept: the mark may go on in the next one. */
	while (!found && (got = read(fd, piece + held, sizeof piece - held)) > 0) {
		held += (size_t)got;
		found = memmem(piece, held, mark, n) != NULL;
		size_t keep = held < n ? held : n;
		memmove(piece, piece + held - keep, keep);
		held = keep;
	}
	close(fd);
	return found;
}

/* How many processes had the mark; they are killed. */
static unsigned kill_marked(const char *mark)
{
	unsigned n = 0;
	DIR *proc = opendir("/proc");
	if (!proc)
		return 0;
	for (struct dirent *e; (e = readdir(proc));) {
		long pid = pid_of(e->d_name);
		if (pid > 1 && pid != getpid() && has_mark(e->d_name, mark) && kill((pid_t)pid, SIGKILL) == 0)
			n++;
	}
	closedir(proc);
	return n;
}

static void sweep(const child *c)
{
	for (int round = 0; round < 200 && kill_marked(c->mark); round++)
		pause_ms(5);
}

/* ---- the end ------------------------------------------------------------------------------------------------------ */

void child_poll(child *c)
{
	if (c->over)
		return;
	bool gone = c->guard > 0 && guard_is_gone(c->guard); /* first: its last words are in the pipe by then */
	bool silent = take_news(c);
	if (!gone && (c->guard > 0 || !silent))
		return;
	c->over = true;
	if (!c->has_status && !c->broken_errno && c->guard > 0)
		sweep(c);
}

void child_end(child *c)
{
	child_stop(c);
	for (double until = clock_seconds() + 15; !c->over && clock_seconds() < until;) {
		struct pollfd news = {.fd = c->report, .events = POLLIN};
		child_poll(c);
		if (!c->over && (poll(&news, 1, 20) > 0))
			pause_ms(1);
	}
	if (!c->over && c->guard > 0) {
		kill(c->guard, SIGKILL);
		waitpid(c->guard, NULL, __WALL);
		sweep(c);
	}
	if (c->report >= 0)
		close(c->report);
	c->report = -1;
	c->over = true;
}

void child_forget(child *c)
{
	if (c->control >= 0)
		close(c->control);
	if (c->report >= 0)
		close(c->report);
	c->control = c->report = -1;
	c->over = true;
}
