/* Our side of a sandbox: starts the process, sends it calls, checks its answers, ends it.
 *
 * The process is a program of its own, started under a guard (segment/child.h): a copy of a host would have all that the host
 * has in memory, and the host's SIGCHLD handlers and wait() calls see nothing of it. It ends with the runtime, with the host, and
 * when a call takes too long. After a crash the next call starts another one, unless the model had changed its own tensors:
 * those are gone. */
#define _GNU_SOURCE /* memfd, dladdr */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "plan/data.h"
#include "sandbox/sandbox.h"
#include "segment/child.h"

enum {
	START_S = 120,     /* for loading torch and the file */
	TICK_MS = 20,      /* how soon a call notices that it was cancelled */
	HEADERS = 1 << 20, /* of answers, without tensors */
	SLACK = 1 << 30,   /* for everything but tensors: code, stacks, memory of libraries */
	STACKS = 160 << 20 /* and for each thread */
};

static const int64_t DEFAULT_ANSWER = (int64_t)4 << 30; /* bytes of tensors, where the caller says nothing */

typedef struct assigned {
	char *name;
	clv_tensor *t;
	bool sent; /* to the process that runs now */
} assigned;

struct sandbox {
	pthread_mutex_t lock; /* one call at a time */
	_Atomic pid_t
		owner; /* a copy of the host has a process and files of its own; negative: that copy is getting them */
	child process;
	wire w;
	bool runs;                /* there is a process */
	double seconds;           /* that it has for what it does now */
	bool changed;             /* it has run a model that changes its own tensors */
	int files[SANDBOX_FILES]; /* memory files */
	sandbox_order order;
	strbuf texts;
	VEC(assigned) tensors;
	VEC(char *) env;
	char *program; /* owned */
	int64_t most;  /* bytes that there is room for in an answer */
	int64_t given; /* bytes that an answer may have beyond those of its call: tensors of the run, and of the file */
	bool *draws;   /* per plan: it draws random numbers, of the engine's generator */
	const engine *engine;
	/* Further ones, which run the same model where this one is busy. They have no more of their own. */
	pthread_mutex_t growing;
	VEC(sandbox *) more;
	uint32_t most_more;
};

/* ---- the program ------------------------------------------------------------------------------------------------------ */

static bool is_program(const char *path)
{
	struct stat st;
	return access(path, X_OK) == 0 && stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/* Where the library, or the program, is that this file is in; "" if it cannot be found. */
static void own_folder(char *to, size_t n)
{
	Dl_info here;
	char *self = dladdr((void *)own_folder, &here) ? realpath(here.dli_fname, NULL) : NULL;
	char *slash = self ? strrchr(self, '/') : NULL;
	bool fits = slash && (size_t)(slash - self) < n;
	snprintf(to, n, "%.*s", fits ? (int)(slash - self) : 0, fits ? self : "");
	free(self);
}

/* Next to the library, or where the installation has it from there: of a build and a wheel, of a prefix, of a test, of a
   package in build/, of an environment. */
static clv_status look_around(const char *folder, const char *name, char **out)
{
	static const char *const places[] = {
		"",           "../libexec/cleave/",          "../bin/",         "../", "../../libexec/cleave/",
		"../../bin/", "../../../../libexec/cleave/", "../../../../bin/"};
	for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
		strbuf b = STRBUF_INIT;
		strbuf_printf(&b, "%s/%s%s", folder, places[i], name);
		TRY(strbuf_take(&b, out));
		if (is_program(*out))
			return CLV_OK;
		mem_free(*out);
	}
	*out = NULL;
	return CLV_OK;
}

/* `folder`: of this library; "": nobody knows. */
static clv_status find_sandbox_program(const engine_sandbox *e, const char *folder, char **out)
{
	const char *given = getenv(e->variable);
	if (given && *given) {
		if (!is_program(given))
			return fail(CLV_E_NOT_FOUND, "%s names %.500s, which is no program", e->variable, given);
		*out = mem_strdup(given, strlen(given));
		return *out ? CLV_OK : fail_nomem();
	}
	if (folder[0])
		TRY(look_around(folder, e->program, out));
	return *out ? CLV_OK
	            : fail(CLV_E_NOT_FOUND,
	                   "a sandbox needs the program %s, which is not installed next to the library; %s names it",
	                   e->program, e->variable);
}

/* Variables that decide how libraries compute. The rest of the environment stays outside. */
static bool goes_along(const char *variable)
{
	static const char *const begin[] = {
		"OMP_",      "GOMP_",           "KMP_",    "MKL_",          "DNNL_",         "ONEDNN_",
		"ATEN_",     "TORCH_",          "C10_",    "FBGEMM",        "XNNPACK",       "CLEAVE_ISA=",
		"OPENBLAS_", "GLIBC_TUNABLES=", "MALLOC_", "ASAN_OPTIONS=", "UBSAN_OPTIONS="};
	for (size_t i = 0; i < sizeof begin / sizeof *begin; i++)
		if (strncmp(variable, begin[i], strlen(begin[i])) == 0)
			return true;
	return false;
}

extern char **environ;

static clv_status keep_variable(sandbox *s, strbuf *b)
{
	char *text;
	TRY(strbuf_take(b, &text));
	clv_status st = vec_push(&s->env, text);
	if (st != CLV_OK)
		mem_free(text);
	return st;
}

/* The program gets the library that lies here, and no other of that name. */
static clv_status keep_environment(sandbox *s, const char *folder)
{
	const char *libraries = getenv("LD_LIBRARY_PATH");
	strbuf path = STRBUF_INIT;
	libraries = libraries ? libraries : "";
	strbuf_printf(&path, "LD_LIBRARY_PATH=%s%s%s", folder, folder[0] && *libraries ? ":" : "", libraries);
	TRY(keep_variable(s, &path));
	for (char **e = environ; e && *e; e++) {
		strbuf b = STRBUF_INIT;
		if (!goes_along(*e))
			continue;
		strbuf_puts(&b, *e);
		TRY(keep_variable(s, &b));
	}
	return vec_push(&s->env, NULL);
}

/* ---- what the process gets -------------------------------------------------------------------------------------------- */

static clv_status make_memfd(const char *name, int *out)
{
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	*out = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 3); /* above the standard files, which may be closed */
	int why = errno;
	if (fd >= 0)
		close(fd);
	errno = why;
	return *out >= 0 ? CLV_OK : fail(CLV_E_IO, "cannot make memory for a sandbox: %s", strerror(errno));
}

enum { MODEL, CALLS, ANSWERS }; /* of the files */

/* A file that is too large for a process sends it a signal. */
static clv_status check_size(uint64_t n)
{
	struct rlimit most;
	if (getrlimit(RLIMIT_FSIZE, &most) == 0 && n > most.rlim_cur)
		return fail(CLV_E_UNSUPPORTED, "a sandbox needs files in memory of %llu bytes, and this process may have %llu",
		            (unsigned long long)n, (unsigned long long)most.rlim_cur);
	return CLV_OK;
}

/* For calls, which grows with them, and answers, which has room for the largest. */
static clv_status make_areas(sandbox *s)
{
	TRY(check_size((uint64_t)s->most + PLACE_ROOM));
	TRY(make_memfd("cleave-calls", &s->files[CALLS]));
	TRY(make_memfd("cleave-answers", &s->files[ANSWERS]));
	if (ftruncate(s->files[ANSWERS], s->most + PLACE_ROOM) != 0 ||
	    fcntl(s->files[ANSWERS], F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
		return fail(CLV_E_IO, "cannot prepare memory for a sandbox: %s", strerror(errno));
	return CLV_OK;
}

/* The model: nobody changes it any more, neither side. */
static clv_status make_files(sandbox *s, const artifact *a)
{
	TRY(check_size(a->data_n));
	TRY(make_memfd("cleave-model", &s->files[MODEL]));
	TRY(memory_write(s->files[MODEL], 0, a->data, a->data_n));
	if (fcntl(s->files[MODEL], F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) != 0)
		return fail(CLV_E_IO, "cannot seal the file of a sandbox: %s", strerror(errno));
	return make_areas(s);
}

/* Memory of a large call goes back. */
static void release(int file, off_t from, uint64_t n)
{
	enum { LARGE = 256 << 20 };
	if (n > LARGE)
		(void)!fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, from, (off_t)n);
}

static void put_words(strbuf *b, const char *text, bool *has)
{
	*has = text != NULL;
	if (text) {
		strbuf_puts(b, text);
		strbuf_putc(b, '\0');
	}
}

/* What an answer may be: the host takes that much memory for it, on the word of the process. */
static int64_t answer_memory(int64_t max_memory, int64_t memory)
{
	return !max_memory && memory > DEFAULT_ANSWER ? DEFAULT_ANSWER : memory;
}

static int default_threads(const sandbox *s)
{
	long n = s->engine->sandbox->threads ? s->engine->sandbox->threads() : sysconf(_SC_NPROCESSORS_ONLN);
	return n > 0 ? (int)n : 1;
}

static clv_status make_order(sandbox *s, const runtime *r, const clv_runtime_options *o)
{
	sandbox_order *to = &s->order;
	int64_t memory = o->max_memory ? o->max_memory : limits_of_stranger();
	snprintf(to->version, sizeof to->version, "%s", clv_version());
	to->file_bytes = r->a->data_n;
	to->timeout = r->timeout;
	to->max_memory = o->max_memory;
	to->threads = o->threads;
	to->unproven = o->unproven;
	to->debug = o->debug;
	bool always;
	put_words(&s->texts, r->engine->name, &always);
	put_words(&s->texts, o->part, &to->has_part);
	put_words(&s->texts, o->device, &to->has_device);
	put_words(&s->texts, o->optimize, &to->has_optimize);
	for (uint32_t i = 0; i < r->a->allowed.n; i++) {
		bool has;
		put_words(&s->texts, r->a->allowed.at[i], &has);
	}
	to->nallow = r->a->allowed.n;
	to->texts = s->texts.n;
	TRY_MEM(!s->texts.failed);
	/* Weights are there twice where the model changes them, tensors where they go in and out. */
	uint64_t threads = (uint64_t)(o->threads ? o->threads : default_threads(s));
	to->room = 2 * (uint64_t)memory + 2 * r->a->data_n + SLACK + threads * (uint64_t)STACKS;
	if (memory > INT64_MAX / 4 || r->a->data_n > INT64_MAX / 4)
		return fail(CLV_E_INVALID, "a run may have %lld bytes: that is more than a sandbox can be told",
		            (long long)memory);
	s->given = answer_memory(o->max_memory, memory) + (int64_t)r->a->data_n + HEADERS;
	s->most = s->given + SLACK;
	to->answer = (uint64_t)s->most;
	return CLV_OK;
}

/* ---- its life --------------------------------------------------------------------------------------------------------- */

/* Until there is something to read, or room to write; ends with what limits_check says. */
static clv_status wait_for_it(void *ctx, short events)
{
	sandbox *s = ctx;
	for (;;) {
		struct pollfd one = {.fd = s->w.fd, .events = events};
		int got = poll(&one, 1, TICK_MS);
		if (got > 0)
			return CLV_OK;
		if (got < 0 && errno != EINTR)
			return fail(CLV_E_IO, "cannot wait for a sandbox: %s", strerror(errno));
		TRY(limits_check());
	}
}

static void close_process(sandbox *s)
{
	if (s->w.fd >= 0)
		close(s->w.fd);
	s->w.fd = -1;
	s->runs = false;
	for (uint32_t i = 0; i < s->tensors.n; i++)
		s->tensors.at[i].sent = false;
}

static void end_process(sandbox *s)
{
	if (!s->runs)
		return;
	if (s->owner == getpid())
		child_end(&s->process);
	else
		child_forget(&s->process); /* it is that of the process we are a copy of */
	close_process(s);
}

/* In a copy of the host. The lock may be held by a thread that there is no more. */
static clv_status adopt(sandbox *s)
{
	end_process(s);
	pthread_mutex_init(&s->lock, NULL);
	pthread_mutex_init(&s->growing, NULL);
	for (int i = CALLS; i <= ANSWERS; i++) {
		int file = s->files[i];
		s->files[i] = -1; /* first: a copy made in between would close what has this number by then */
		if (file >= 0)
			close(file);
	}
	return make_areas(s);
}

/* The first thread to come does it. A copy that is made meanwhile has none that would finish it, and begins anew. */
static clv_status be_owner(sandbox *s)
{
	pid_t self = getpid(), was = s->owner;
	while (was != self) {
		if (was != -self && atomic_compare_exchange_strong(&s->owner, &was, -self)) {
			clv_status st = adopt(s);
			s->owner = self;
			return st;
		}
		sched_yield();
		was = s->owner;
	}
	return CLV_OK;
}

/* Where it was, as errors of runs say it. */
static void say_place(const sandbox *s, char *to, size_t n)
{
	run_place raw = {{0}}, x;
	(void)memory_read(s->files[ANSWERS], 0, &raw, sizeof raw);
	sandbox_clean(x.name, raw.name, sizeof x.name);
	sandbox_clean(x.op, raw.op, sizeof x.op);
	sandbox_clean(x.module, raw.module, sizeof x.module);
	if (x.name[0])
		snprintf(to, n, "node %s (%s)%s%s", x.name, x.op, x.module[0] ? " in " : "", x.module);
	else
		snprintf(to, n, "the sandbox");
}

static const char *signal_name(int sig)
{
	switch (sig) {
	case SIGSEGV: return "SIGSEGV";
	case SIGBUS: return "SIGBUS";
	case SIGFPE: return "SIGFPE";
	case SIGILL: return "SIGILL";
	case SIGABRT: return "SIGABRT";
	case SIGTRAP: return "SIGTRAP";
	default: return strsignal(sig);
	}
}

/* After a process that ended by itself. */
static clv_status say_end(const sandbox *s)
{
	char place[600];
	int status = s->process.status, sig = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
	say_place(s, place, sizeof place);
	const char *failed = child_broken(&s->process);
	if (failed)
		return fail(CLV_E_IO, "a sandbox cannot be started: cannot %s: %s", failed, strerror(s->process.broken_errno));
	if (!s->process.has_status)
		return fail(CLV_E_CRASHED, "%s: the process of the sandbox was ended from outside", place);
	if (sig == SIGSYS)
		return fail(
			CLV_E_CRASHED,
			"%s asked the system for something that a sandbox does not allow, and its process was ended (SIGSYS)",
			place);
	if (sig == SIGKILL)
		return fail(CLV_E_CRASHED,
		            "%s: the process of the sandbox was killed (SIGKILL): the machine may be out of memory", place);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
		return fail(CLV_E_IO, "a sandbox cannot be started: %s ends as programs do whose libraries are not found",
		            s->program);
	if (sig)
		return fail(CLV_E_CRASHED, "%s ended the process of the sandbox with %s", place, signal_name(sig));
	return fail(CLV_E_CRASHED, "%s: the process of the sandbox ended with status %d", place,
	            WIFEXITED(status) ? WEXITSTATUS(status) : status);
}

/* After any error on the wire the process is not used again. */
static clv_status broken_wire(sandbox *s, clv_status st)
{
	char place[600];
	say_place(s, place, sizeof place);
	child_end(&s->process);
	close_process(s);
	if (st == CLV_E_IO)
		return say_end(s);
	if (st == CLV_E_LIMIT)
		return fail(st, "%s: it takes longer than the %g s that it may, and its process was ended", place, s->seconds);
	if (st == CLV_E_CANCELLED)
		return fail(st, "the run was stopped by another thread at %s", place);
	return st == CLV_E_NOMEM ? st : fail(CLV_E_CRASHED, "the sandbox answers nonsense: %.2000s", status_message());
}

static clv_status send_order(sandbox *s)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof s->files)] = {0};
	struct iovec part = {&s->order, sizeof s->order};
	struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	*c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof s->files)};
	memcpy(CMSG_DATA(c), s->files, sizeof s->files);
	if (sendmsg(s->w.fd, &m, MSG_NOSIGNAL) != (ssize_t)sizeof s->order)
		return fail(CLV_E_IO, "the order of a sandbox cannot be sent");
	return wire_write(&s->w, s->texts.at, s->texts.n);
}

/* ---- starting --------------------------------------------------------------------------------------------------------- */

/* An answer without numbers and tensors. */
static clv_status read_plain(sandbox *s)
{
	reply x = {0};
	clv_status st = reply_read(&s->w, s->files[ANSWERS], s->most, 0, 0, &x);
	reply_free(&x);
	return st == CLV_OK ? x.status : broken_wire(s, st);
}

static clv_status open_socket(sandbox *s, int *theirs)
{
	int ends[2];
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
		return fail(CLV_E_IO, "cannot make a pair of sockets: %s", strerror(errno));
	for (int i = 0; i < 2; i++) { /* above the standard files */
		int high = fcntl(ends[i], F_DUPFD_CLOEXEC, 3);
		close(ends[i]);
		ends[i] = high;
	}
	if (ends[0] < 0 || ends[1] < 0 || fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0) {
		for (int i = 0; i < 2; i++)
			if (ends[i] >= 0)
				close(ends[i]);
		return fail(CLV_E_IO, "cannot make a pair of sockets: %s", strerror(errno));
	}
	s->w = (wire){.fd = ends[0], .wait = wait_for_it, .ctx = s};
	*theirs = ends[1];
	return CLV_OK;
}

static clv_status start_process(sandbox *s)
{
	int theirs;
	const char *argv[] = {s->program, "sandbox", NULL};
	TRY(memory_write(s->files[ANSWERS], 0, &(run_place){{0}}, sizeof(run_place)));
	TRY(open_socket(s, &theirs));
	child_spec spec = {.argv = argv,
	                   .env = (const char *const *)s->env.at,
	                   .bare = true,
	                   .dir = "/",
	                   .log = "/dev/null",
	                   .input = theirs,
	                   .lasts = true};
	clv_status st = child_start(&spec, &s->process);
	close(theirs);
	if (st != CLV_OK) {
		close(s->w.fd);
		s->w.fd = -1;
		return st;
	}
	s->runs = true;
	return CLV_OK;
}

/* The process is confined when it has answered once, and has the model when it has answered twice. */
static clv_status start_model(sandbox *s)
{
	clv_status st = send_order(s);
	if (st != CLV_OK)
		return broken_wire(s, st);
	st = read_plain(s);
	if (st == CLV_OK)
		st = read_plain(s);
	if (st != CLV_OK)
		end_process(s);
	return st;
}

static clv_status start_sandbox(sandbox *s)
{
	limits most = {.seconds = START_S};
	s->seconds = START_S;
	TRY(start_process(s));
	limits_enter(&most);
	clv_status st = start_model(s);
	limits_leave(&most);
	return st;
}

/* ---- making one ------------------------------------------------------------------------------------------------------- */

/* A sandbox has no device files. */
static clv_status check_devices(const runtime *r)
{
	for (uint32_t i = 0; i < r->plans.n; i++) {
		const plan *p = r->plans.at[i].of.p;
		for (value_id v = 0; v < p->values.n; v++) {
			const char *device = p->values.at[v].type == TYPE_TENSOR ? plan_s(p, p->values.at[v].device) : "cpu";
			if (strcmp(device, "cpu") != 0)
				return fail(CLV_E_UNSUPPORTED,
				            "a sandbox computes on the CPU, and plan %u on %s; device \"cpu\" moves it", i, device);
		}
	}
	return CLV_OK;
}

static clv_status check_sandbox_options(const runtime *r, const clv_runtime_options *o)
{
	if (o->allow_compiled || o->allow_signed)
		return fail(CLV_E_INVALID, "a sandbox runs no machine code of files: it is one or the other, allow_compiled or "
		                           "sandbox");
	if (!r->a->file)
		return fail(CLV_E_UNSUPPORTED, "a sandbox is for files, and this model was made in this process");
	return check_devices(r);
}

/* An engine without a generator has no node that draws. */
static clv_status find_draws(sandbox *s, const runtime *r)
{
	s->draws = mem_alloc((r->plans.n + 1) * sizeof *s->draws);
	TRY_MEM(s->draws);
	for (uint32_t i = 0; i < r->plans.n; i++)
		s->draws[i] = s->engine->sandbox->random && view_draws(&r->plans.at[i].of.v);
	return CLV_OK;
}

static clv_status sandbox_set_up(sandbox *s, const runtime *r, const clv_runtime_options *o)
{
	char folder[PATH_MAX];
	own_folder(folder, sizeof folder);
	TRY(find_sandbox_program(s->engine->sandbox, folder, &s->program));
	TRY(keep_environment(s, folder));
	TRY(make_order(s, r, o));
	TRY(make_files(s, r->a));
	TRY(find_draws(s, r));
	return start_sandbox(s);
}

void sandbox_free(sandbox *s)
{
	if (!s)
		return;
	end_process(s);
	for (uint32_t i = 0; i < s->more.n; i++)
		sandbox_free(s->more.at[i]);
	vec_free(&s->more);
	for (uint32_t i = 0; i < s->tensors.n; i++) {
		mem_free(s->tensors.at[i].name);
		clv_tensor_free(s->tensors.at[i].t);
	}
	for (uint32_t i = 0; i < s->env.n; i++)
		mem_free(s->env.at[i]);
	for (int i = 0; i < SANDBOX_FILES; i++)
		if (s->files[i] >= 0)
			close(s->files[i]);
	vec_free(&s->tensors);
	vec_free(&s->env);
	strbuf_free(&s->texts);
	mem_free(s->program);
	mem_free(s->draws);
	pthread_mutex_destroy(&s->lock);
	pthread_mutex_destroy(&s->growing);
	mem_free(s);
}

/* Without a process, and nothing for one; NULL: no memory. */
static sandbox *make_empty(const engine *e)
{
	sandbox *s = mem_alloc(sizeof *s);
	if (!s)
		return NULL;
	*s = (sandbox){.files = {-1, -1, -1}, .w.fd = -1, .texts = STRBUF_INIT, .owner = getpid(), .engine = e};
	pthread_mutex_init(&s->lock, NULL);
	pthread_mutex_init(&s->growing, NULL);
	return s;
}

clv_status sandbox_new(runtime *r, const clv_runtime_options *o, sandbox **out)
{
	TRY(check_sandbox_options(r, o));
	if (r->timeout == 0)
		r->timeout = STRANGER_SECONDS;
	sandbox *s = make_empty(r->engine);
	TRY_MEM(s);
	clv_status st = sandbox_set_up(s, r, o);
	if (st == CLV_OK)
		*out = s;
	else
		sandbox_free(s);
	return st;
}

/* ---- calls ------------------------------------------------------------------------------------------------------------ */

static clv_status send_call(sandbox *s, const sandbox_call *c, const int64_t *symbols, const char *name,
                            const parcel *tensors)
{
	int file = s->files[CALLS];
	TRY(memory_write(file, 0, symbols, c->nsymbols * sizeof *symbols));
	TRY(memory_write(file, c->nsymbols * sizeof *symbols, name, c->name));
	TRY(parcel_write(tensors, file, call_head(c)));
	return wire_write(&s->w, c, sizeof *c);
}

/* What the caller's thread has, and operators ask for. */
static clv_status describe_caller(const engine_sandbox *e, sandbox_call *c)
{
	fegetenv(&c->arithmetic);
	c->threads = e->threads ? e->threads() : 0;
	return e->settings ? e->settings(&c->settings) : CLV_OK;
}

static clv_status send_assigned(sandbox *s, const assigned *x)
{
	parcel tensors;
	TRY(parcel_make(&x->t, 1, &tensors));
	sandbox_call c = {.kind = SANDBOX_ASSIGN, .ntensors = 1, .name = (uint32_t)strlen(x->name) + 1};
	c.tensors = tensors.image.total;
	clv_status st = check_size(call_head(&c) + c.tensors);
	if (st != CLV_OK) {
		parcel_free(&tensors);
		return st;
	}
	st = send_call(s, &c, NULL, x->name, &tensors);
	parcel_free(&tensors);
	return st == CLV_OK ? read_plain(s) : broken_wire(s, st);
}

static clv_status send_all_assigned(sandbox *s)
{
	for (uint32_t i = 0; i < s->tensors.n; i++) {
		if (s->tensors.at[i].sent)
			continue;
		TRY(send_assigned(s, &s->tensors.at[i]));
		s->tensors.at[i].sent = true;
	}
	return CLV_OK;
}

/* A process that can run the model as it is now. */
static clv_status be_ready(sandbox *s)
{
	if (!s->runs && s->changed)
		return fail(
			CLV_E_CRASHED,
			"the model changes its own tensors, and they were lost with the process of its sandbox: load it again");
	if (!s->runs)
		TRY(start_sandbox(s));
	limits most = {.seconds = s->seconds = START_S};
	limits_enter(&most);
	clv_status st = send_all_assigned(s);
	limits_leave(&most);
	return st;
}

/* The lock, unless the run is stopped while it waits for others. */
static clv_status take_turn(sandbox *s)
{
	for (;;) {
		struct timespec until;
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += TICK_MS * 1000000L;
		until.tv_sec += until.tv_nsec / 1000000000;
		until.tv_nsec %= 1000000000;
		if (pthread_mutex_timedlock(&s->lock, &until) == 0)
			return CLV_OK;
		TRY(limits_check());
	}
}

/* Inputs, and the random generator. */
static clv_status pack_inputs(const sandbox *s, const view *v, const run_call *call, bool draws, parcel *out)
{
	clv_tensor *few[16], **all = few;
	uint32_t n = v->inputs.n;
	if (n >= 16 && !(all = mem_alloc((n + 1) * sizeof *all)))
		return fail_nomem();
	memcpy(all, call->inputs, n * sizeof *all);
	all[n] = NULL;
	clv_status st = draws ? s->engine->sandbox->random(&all[n]) : CLV_OK;
	if (st == CLV_OK)
		st = parcel_make(all, n + draws, out);
	if (st == CLV_E_UNSUPPORTED || st == CLV_E_INVALID)
		fail_more(st, "an input cannot go into a sandbox");
	if (draws && st == CLV_OK)
		out->keep = all[n];
	else if (draws)
		clv_tensor_free(all[n]);
	if (all != few)
		mem_free(all);
	return st;
}

static uint32_t count_written(const runtime_plan *e)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < e->of.v.inputs.n; i++)
		n += sandbox_writes(e, i);
	return n;
}

/* Of the type that the plan says; sizes too, where the plan knows them before the run. */
static clv_status check_reply_output(const runtime *r, const plan_part *of, uint32_t i, const int64_t *symbols,
                                     const clv_tensor *t)
{
	const plan *p = of->p;
	const value *x = &p->values.at[of->outputs.at[i]];
	bool fits = t->m.dtype == x->dtype && t->m.ndim == x->ndim;
	for (uint32_t d = 0; fits && symbols && !r->unproven && d < x->ndim; d++) {
		int64_t size;
		fits = expr_eval(p, p->dims.at[x->shape + d], symbols, &size) == CLV_OK && t->m.sizes[d] == size;
	}
	return fits || (x->flags & VALUE_ODD) ? CLV_OK : fail(CLV_E_PARSE, "output %u is not of the type of the plan", i);
}

static clv_status check_reply_outputs(const runtime *r, const runtime_plan *e, const run_call *call, const reply *x)
{
	const plan *p = e->of.p;
	int64_t *symbols = mem_alloc((p->symbols.n + 1) * sizeof *symbols);
	TRY_MEM(symbols);
	bool known = first_data_symbol(p) == NONE && call_symbols(&e->of.v, call->inputs, call->symbols, symbols) == CLV_OK;
	clv_status st = CLV_OK;
	for (uint32_t i = 0; st == CLV_OK && i < e->noutputs; i++)
		st = check_reply_output(r, &e->of, i, known ? symbols : NULL, x->tensors[i]);
	mem_free(symbols);
	return st;
}

/* The caller's own tensors, which the plan writes; and the generator. All are checked before the first is touched. */
static clv_status write_back(const sandbox *s, const runtime_plan *e, const run_call *call, const reply *x, bool draws)
{
	for (int write = 0; write < 2; write++) {
		uint32_t at = e->noutputs;
		for (uint32_t i = 0; i < e->of.v.inputs.n; i++) {
			if (!sandbox_writes(e, i))
				continue;
			TRY(write ? engine_write(s->engine, x->tensors[at], call->inputs[i])
			          : tensor_check_like(call->inputs[i], x->tensors[at], "input"));
			at++;
		}
		if (draws)
			TRY(write ? s->engine->sandbox->set_random(x->tensors[at])
			          : s->engine->sandbox->check_random(x->tensors[at]));
	}
	return CLV_OK;
}

static void give_outputs(const runtime_plan *e, reply *x, const run_call *call, clv_tensor **outputs)
{
	for (uint32_t i = 0; i < e->noutputs; i++) {
		outputs[i] = x->tensors[i];
		x->tensors[i] = NULL;
	}
	if (call->numbers)
		memcpy(call->numbers, x->numbers, x->nnumbers * sizeof *x->numbers);
}

static int64_t most_of(const sandbox *s, const sandbox_call *c)
{
	return c->tensors > (uint64_t)(s->most - s->given) ? s->most : s->given + (int64_t)c->tensors;
}

static clv_status exchange(sandbox *s, const runtime *r, uint32_t which, const run_call *call, reply *x)
{
	const runtime_plan *e = &r->plans.at[which];
	const view *v = &e->of.v;
	bool draws = s->draws[which];
	parcel tensors = {0};
	TRY(call_check(&e->of.v, call));
	sandbox_call c = {.kind = SANDBOX_RUN, .plan = which, .has_symbols = call->symbols != NULL, .draws = draws};
	c.made = runtime_made(e, call);
	TRY(pack_inputs(s, v, call, draws, &tensors));
	c.nsymbols = call->symbols ? v->p->symbols.n : 0;
	c.ntensors = v->inputs.n + draws;
	c.tensors = tensors.image.total;
	clv_status st = check_size(call_head(&c) + c.tensors);
	if (st == CLV_OK)
		st = describe_caller(s->engine->sandbox, &c);
	if (st != CLV_OK) {
		parcel_free(&tensors);
		return st;
	}
	st = send_call(s, &c, call->symbols, NULL, &tensors);
	parcel_free(&tensors);
	if (st == CLV_OK)
		st = reply_read(&s->w, s->files[ANSWERS], most_of(s, &c), e->of.numbers.n,
		                e->noutputs + count_written(e) + draws, x);
	if (st == CLV_OK && x->status == CLV_OK)
		st = check_reply_outputs(r, e, call, x);
	release(s->files[CALLS], 0, c.tensors);
	release(s->files[ANSWERS], PLACE_ROOM, x->bytes);
	return st == CLV_OK ? x->status : broken_wire(s, st);
}

static clv_status run_here(sandbox *s, const runtime *r, uint32_t which, const run_call *call, clv_tensor **outputs)
{
	const runtime_plan *e = &r->plans.at[which];
	reply x = {0};
	/* The child looks at its clock between nodes; it is ended where it does not. */
	limits most = {.seconds = r->timeout * 1.1 + 0.5};
	s->seconds = r->timeout;
	limits_enter(&most);
	clv_status st = exchange(s, r, which, call, &x);
	limits_leave(&most);
	s->changed |= s->runs && r->stateful; /* also by a run that failed: what it wrote before stays */
	if (st == CLV_OK)
		st = write_back(s, e, call, &x, s->draws[which]);
	if (st == CLV_OK)
		give_outputs(e, &x, call, outputs);
	reply_free(&x);
	return st;
}

/* ---- several of them -------------------------------------------------------------------------------------------------- */

/* Everything that a process is made of; the model is one file for all. */
static clv_status copy_parts(const sandbox *s, const runtime *r, sandbox *to)
{
	to->order = s->order;
	to->most = s->most;
	to->given = s->given;
	to->files[MODEL] = fcntl(s->files[MODEL], F_DUPFD_CLOEXEC, 3);
	if (to->files[MODEL] < 0)
		return fail(CLV_E_IO, "cannot share the file of a sandbox: %s", strerror(errno));
	to->program = mem_strdup(s->program, strlen(s->program));
	TRY_MEM(to->program);
	strbuf_add(&to->texts, s->texts.at, s->texts.n);
	TRY_MEM(!to->texts.failed);
	for (uint32_t i = 0; i < s->env.n; i++) {
		const char *text = s->env.at[i];
		char *own = text ? mem_strdup(text, strlen(text)) : NULL;
		clv_status st = own || !text ? vec_push(&to->env, own) : fail_nomem();
		if (st != CLV_OK) {
			mem_free(own);
			return st;
		}
	}
	TRY(find_draws(to, r));
	return make_areas(to);
}

static clv_status another(const sandbox *s, const runtime *r, sandbox **out)
{
	sandbox *to = make_empty(s->engine);
	TRY_MEM(to);
	clv_status st = copy_parts(s, r, to);
	if (st == CLV_OK)
		*out = to;
	else
		sandbox_free(to);
	return st;
}

void sandbox_grow(sandbox *s, uint32_t n)
{
	s->most_more = n ? n - 1 : 0;
}

/* One that is free, with its lock; NULL: none is, and there may be no more. */
static sandbox *find_free(sandbox *s, const runtime *r)
{
	sandbox *found = NULL;
	pthread_mutex_lock(&s->growing);
	for (uint32_t i = 0; i < s->more.n && !found; i++)
		if (be_owner(s->more.at[i]) == CLV_OK && pthread_mutex_trylock(&s->more.at[i]->lock) == 0)
			found = s->more.at[i];
	if (!found && s->more.n < s->most_more && another(s, r, &found) == CLV_OK) {
		if (vec_push(&s->more, found) == CLV_OK) {
			pthread_mutex_lock(&found->lock);
		} else {
			sandbox_free(found);
			found = NULL;
		}
	}
	pthread_mutex_unlock(&s->growing);
	return found;
}

/* A model with changes of its own, or that draws random numbers one after the other, has one process. */
static clv_status take_one(const runtime *r, uint32_t which, sandbox **out)
{
	sandbox *s = r->sandbox;
	bool several = s->most_more && !r->stateful && !s->tensors.n && !s->draws[which];
	*out = s;
	if (pthread_mutex_trylock(&s->lock) == 0)
		return CLV_OK;
	sandbox *other = several ? find_free(s, r) : NULL;
	*out = other ? other : s;
	return other ? CLV_OK : take_turn(s);
}

static clv_status run_in_turn(const runtime *r, uint32_t which, const run_call *call, clv_tensor **outputs)
{
	sandbox *s;
	TRY(take_one(r, which, &s));
	clv_status st = call->wants_version ? runtime_check_weights(r, *call->wants_version) : CLV_OK;
	if (call->version)
		*call->version = r->weight_version;
	if (st == CLV_OK)
		st = be_ready(s);
	if (st == CLV_OK)
		st = run_here(s, r, which, call, outputs);
	pthread_mutex_unlock(&s->lock);
	return st;
}

clv_status sandbox_run(const runtime *r, uint32_t which, const run_call *call, clv_tensor **outputs)
{
	limits stop = {.stops = &r->stops};
	pthread_rwlock_t *lock = &((runtime *)r)->lock;
	TRY(be_owner(r->sandbox));
	limits_enter(&stop);
	pthread_rwlock_rdlock(lock); /* weights are changed between runs, all of them */
	clv_status st = run_in_turn(r, which, call, outputs);
	pthread_rwlock_unlock(lock);
	limits_leave(&stop);
	return st;
}

static clv_status keep_assigned(sandbox *s, const char *name, clv_tensor *t)
{
	for (uint32_t i = 0; i < s->tensors.n; i++)
		if (strcmp(s->tensors.at[i].name, name) == 0) {
			clv_tensor_free(s->tensors.at[i].t);
			s->tensors.at[i].t = t;
			s->tensors.at[i].sent = false;
			return CLV_OK;
		}
	assigned x = {.name = mem_strdup(name, strlen(name)), .t = t};
	clv_status st = x.name ? vec_push(&s->tensors, x) : fail_nomem();
	if (st != CLV_OK) {
		mem_free(x.name);
		clv_tensor_free(t);
	}
	return st;
}

clv_status sandbox_assign(sandbox *s, const char *name, const clv_tensor *t)
{
	clv_tensor *own;
	TRY(be_owner(s));
	TRY(engine_clone(s->engine, t, &own));
	pthread_mutex_lock(&s->lock);
	clv_status st = keep_assigned(s, name, own);
	pthread_mutex_unlock(&s->lock);
	return st;
}
