/* The process of a sandbox. Torch is loaded when it starts; it gets its order and two files over the socket, has the libraries
 * look at the machine, gives up all that it will not need, and only then reads the file. From there on a file that takes this
 * process over has gained nothing: it can compute, and answer. */
#define _GNU_SOURCE /* MSG_CMSG_CLOEXEC, syscall */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "exec/sandbox.h"

typedef struct server {
	wire w;
	sandbox_order order;
	char *texts; /* order.texts bytes, the last is NUL */
	run_place *place;
	const void *file;
	clv_artifact *a;
	clv_runtime *r;
} server;

/* ---- the order -------------------------------------------------------------------------------------------------------- */

enum { FD_FILE = 3, FD_PAGE = 4 };

/* The order with the two files; they get numbers of their own, and everything else is closed. */
static clv_status take_order(server *s)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))];
	struct iovec part = {&s->order, sizeof s->order};
	struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	int fds[2];
	ssize_t got = recvmsg(s->w.fd, &m, MSG_CMSG_CLOEXEC);
	struct cmsghdr *c = got > 0 ? CMSG_FIRSTHDR(&m) : NULL;
	if (!c || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof fds))
		return fail(CLV_E_IO, "the order of a sandbox came without its files");
	memcpy(fds, CMSG_DATA(c), sizeof fds);
	TRY(wire_read(&s->w, (char *)&s->order + got, sizeof s->order - (size_t)got));
	int file = fcntl(fds[0], F_DUPFD, 16), page = fcntl(fds[1], F_DUPFD, 16); /* out of the way */
	if (file < 0 || page < 0 || dup2(file, FD_FILE) < 0 || dup2(page, FD_PAGE) < 0)
		return fail(CLV_E_IO, "the files of a sandbox cannot be used: %s", strerror(errno));
	if (syscall(SYS_close_range, FD_PAGE + 1, ~0U, 0) != 0)
		for (int fd = FD_PAGE + 1; fd < sysconf(_SC_OPEN_MAX); fd++)
			close(fd);
	return CLV_OK;
}

static clv_status take_texts(server *s)
{
	if (s->order.version[sizeof s->order.version - 1] || strcmp(s->order.version, clv_version()) != 0)
		return fail(CLV_E_UNSUPPORTED, "the program for sandboxes is of version %s, not of the library's",
		            clv_version());
	if (s->order.texts == 0)
		return CLV_OK;
	s->texts = mem_alloc(s->order.texts);
	return s->texts ? wire_read(&s->w, s->texts, s->order.texts) : fail_nomem();
}

static clv_status map_files(server *s)
{
	void *page = mmap(NULL, sizeof *s->place, PROT_READ | PROT_WRITE, MAP_SHARED, FD_PAGE, 0);
	void *file = mmap(NULL, s->order.file_bytes, PROT_READ, MAP_PRIVATE, FD_FILE, 0);
	if (page == MAP_FAILED || file == MAP_FAILED)
		return fail(CLV_E_IO, "the files of a sandbox cannot be mapped: %s", strerror(errno));
	s->place = page;
	s->file = file;
	close(FD_PAGE);
	close(FD_FILE);
	return CLV_OK;
}

static clv_status prepare(server *s)
{
	TRY(take_order(s));
	TRY(take_texts(s));
	TRY(map_files(s));
	br_warm();
	return sandbox_confine(s->order.room);
}

/* ---- the model -------------------------------------------------------------------------------------------------------- */

static const char *next_text(const char **at)
{
	const char *text = *at;
	*at += strlen(text) + 1;
	return text;
}

static clv_status load(server *s)
{
	const sandbox_order *o = &s->order;
	clv_runtime_options how = CLV_RUNTIME_OPTIONS_INIT;
	clv_open_options opening = CLV_OPEN_OPTIONS_INIT;
	const char *at = s->texts, **allow = mem_alloc((o->nallow + 1) * sizeof *allow);
	if (!allow)
		return fail_nomem();
	how.part = o->has_part ? next_text(&at) : NULL;
	how.device = o->has_device ? next_text(&at) : NULL;
	how.optimize = o->has_optimize ? next_text(&at) : NULL;
	how.unproven = o->unproven;
	how.debug = o->debug;
	how.threads = o->threads;
	how.timeout = o->timeout;
	how.max_memory = o->max_memory;
	how.tape_only = true;
	for (uint32_t i = 0; i < o->nallow; i++)
		allow[i] = next_text(&at);
	opening.allow_operators = allow;
	opening.nallow_operators = o->nallow;
	clv_status st = clv_artifact_parse(s->file, o->file_bytes, &opening, &s->a);
	mem_free(allow);
	return st == CLV_OK ? clv_runtime_create(s->a, &how, &s->r) : st;
}

/* ---- calls ------------------------------------------------------------------------------------------------------------ */

typedef struct call {
	sandbox_call c;
	int64_t *symbols;
	char *name;
	clv_tensor **tensors; /* c.ntensors */
	clv_tensor **results; /* outputs, written inputs, the generator's state */
	uint32_t nresults;
	br_arg *numbers;
	uint32_t nnumbers;
} call;

static void call_free(call *x)
{
	for (uint32_t i = 0; x->tensors && i < x->c.ntensors; i++)
		br_unref(x->tensors[i]);
	for (uint32_t i = 0; x->results && i < x->nresults; i++)
		br_unref(x->results[i]);
	mem_free(x->symbols);
	mem_free(x->name);
	mem_free(x->tensors);
	mem_free(x->results);
	mem_free(x->numbers);
}

static clv_status take_tensors(server *s, call *x)
{
	void *bytes = mem_realloc(NULL, x->c.tensors, 1);
	x->tensors = mem_alloc((x->c.ntensors + 1) * sizeof *x->tensors);
	clv_status st = bytes && x->tensors ? wire_read(&s->w, bytes, x->c.tensors) : fail_nomem();
	if (st == CLV_OK)
		st = parcel_open(bytes, x->c.tensors, x->tensors, x->c.ntensors);
	mem_free(bytes);
	return st;
}

static clv_status take_call(server *s, call *x)
{
	TRY(wire_read(&s->w, &x->c, sizeof x->c));
	x->symbols = mem_alloc((x->c.nsymbols + 1) * sizeof *x->symbols);
	x->name = mem_alloc(x->c.name + 1);
	if (!x->symbols || !x->name)
		return fail_nomem();
	TRY(wire_read(&s->w, x->symbols, x->c.nsymbols * sizeof *x->symbols));
	TRY(wire_read(&s->w, x->name, x->c.name));
	return take_tensors(s, x);
}

static clv_status run_plan(server *s, call *x)
{
	const runtime_plan *e = &s->r->plans.at[x->c.plan];
	run_spec spec = {.inputs = x->tensors,
	                 .symbols = x->c.has_symbols ? x->symbols : NULL,
	                 .numbers = x->numbers,
	                 .place = s->place};
	br_team had;
	bool other = !s->order.threads && x->c.threads != br_threads();
	br_modes_set(&x->c.modes, UINT32_MAX >> (32 - CTX_FLAG_COUNT));
	fesetenv(&x->c.arithmetic);
	if (x->c.draws)
		TRY(br_random_set(x->tensors[x->c.ntensors - 1]));
	if (other)
		br_team_enter(x->c.threads, &had);
	clv_status st = runtime_run_plan(s->r, x->c.plan, &spec, x->results);
	if (other)
		br_team_leave(&had);
	x->nresults = st == CLV_OK ? e->noutputs : 0;
	return st;
}

static clv_status run(server *s, call *x)
{
	if (x->c.plan >= s->r->plans.n)
		return fail(CLV_E_INVALID, "there is no plan %u", x->c.plan);
	const runtime_plan *e = &s->r->plans.at[x->c.plan];
	if (x->c.ntensors != e->g->v.inputs.n + x->c.draws)
		return fail(CLV_E_INPUT, "the plan takes %u inputs, the call has %u", e->g->v.inputs.n, x->c.ntensors);
	x->results = mem_alloc((e->g->outputs.n + x->c.ntensors + 1) * sizeof *x->results);
	x->numbers = mem_alloc((e->g->out_numbers.n + 1) * sizeof *x->numbers);
	if (!x->results || !x->numbers)
		return fail_nomem();
	TRY(run_plan(s, x));
	x->nnumbers = e->g->out_numbers.n;
	for (uint32_t i = 0; i < e->g->v.inputs.n; i++)
		if (sandbox_writes(e, i))
			x->results[x->nresults++] = br_ref(x->tensors[i]);
	return x->c.draws ? br_random_get(&x->results[x->nresults++]) : CLV_OK;
}

static clv_status assign(server *s, const call *x)
{
	if (x->c.ntensors != 1)
		return fail(CLV_E_INVALID, "%u tensors have one name", x->c.ntensors);
	named_tensor one = {x->name, x->tensors[0]};
	return runtime_assign(s->r, &one, 1);
}

static clv_status answer(const server *s, const call *x, const parcel *tensors, clv_status st)
{
	const char *message = st == CLV_OK ? "" : clv_last_error();
	sandbox_answer a = {.status = st,
	                    .message = (uint32_t)strnlen(message, SANDBOX_MESSAGE - 1),
	                    .nnumbers = st == CLV_OK ? x->nnumbers : 0,
	                    .ntensors = st == CLV_OK ? x->nresults : 0,
	                    .tensors = st == CLV_OK ? tensors->image.total : 0};
	s->place->name[0] = '\0';
	TRY(wire_write(&s->w, &a, sizeof a));
	TRY(wire_write(&s->w, message, a.message));
	for (uint32_t i = 0; i < a.nnumbers; i++) {
		const br_arg *from = &x->numbers[i];
		sandbox_number n = {.kind = from->kind};
		if (from->kind == BR_COMPLEX)
			n = (sandbox_number){.kind = from->kind, .re = from->u.c.re, .im = from->u.c.im};
		else if (from->kind == BR_FLOAT)
			n.re = from->u.f;
		else
			n.i = from->kind == BR_BOOL ? from->u.b : from->u.i;
		TRY(wire_write(&s->w, &n, sizeof n));
	}
	return st == CLV_OK ? parcel_send(tensors, &s->w) : CLV_OK;
}

/* False: the other side is gone. */
static bool serve_call(server *s)
{
	call x = {0};
	parcel tensors = {0};
	bool there = true;
	clv_status st = take_call(s, &x);
	if (st == CLV_E_IO)
		there = false;
	if (st == CLV_OK)
		st = x.c.kind == SANDBOX_RUN ? run(s, &x) : assign(s, &x);
	if (st == CLV_OK)
		st = parcel_make(x.results, x.nresults, &tensors);
	there = there && answer(s, &x, &tensors, st) == CLV_OK;
	parcel_free(&tensors);
	call_free(&x);
	return there;
}

/* An answer before the page is there. */
static clv_status answer_plain(const server *s, clv_status st)
{
	run_place none;
	call nothing = {0};
	parcel empty = {0};
	server to = *s;
	if (!to.place)
		to.place = &none;
	TRY(parcel_make(NULL, 0, &empty));
	clv_status sent = answer(&to, &nothing, &empty, st);
	parcel_free(&empty);
	return sent;
}

int clv_sandbox_serve(int socket)
{
	server s = {.w = {.fd = socket}};
	clv_status st = prepare(&s);
	if (answer_plain(&s, st) != CLV_OK || st != CLV_OK)
		return 1;
	st = load(&s);
	if (answer_plain(&s, st) != CLV_OK || st != CLV_OK)
		_exit(1); /* what libraries do at their end may need what is gone */
	while (serve_call(&s))
		;
	_exit(0);
}
