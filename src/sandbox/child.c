/* The process of a sandbox.
 *
 * Its program has the engine. It receives its order and the files over the socket, lets the engine's libraries inspect the
 * machine, gives up every right it will not need, and only then reads the file. A file that takes over this process gains
 * nothing: it can compute, and answer. */
#define _GNU_SOURCE /* MSG_CMSG_CLOEXEC, syscall */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sandbox/sandbox.h"

/* A memory file that is mapped as far as it was needed. */
typedef struct area {
	int fd, prot;
	off_t from;
	uint8_t *at; /* NULL: not mapped */
	size_t n;
} area;

typedef struct server {
	wire w;
	sandbox_order order;
	char *texts; /* order.texts bytes, the last is NUL; the engine's name is the first */
	const engine *engine;
	const void *file;
	run_place *place;
	area calls, answers; /* the latter from PLACE_ROOM on */
	clv_artifact *a;
	clv_runtime *r;
} server;

/* ---- the order -------------------------------------------------------------------------------------------------------- */

enum { FD_FILE = 3, FD_CALLS = 4, FD_ANSWERS = 5, FD_BEYOND = 16 };

/* At least n bytes of it. */
static clv_status area_map(area *x, size_t n)
{
	if (n <= x->n)
		return CLV_OK;
	if (x->at)
		munmap(x->at, x->n);
	void *at = mmap(NULL, n, x->prot, MAP_SHARED, x->fd, x->from);
	x->at = at == MAP_FAILED ? NULL : at;
	x->n = x->at ? n : 0;
	return x->at ? CLV_OK : fail_nomem();
}

/* From here on an error can be told. */
static clv_status map_answers(server *s)
{
	void *page = mmap(NULL, PLACE_ROOM, PROT_READ | PROT_WRITE, MAP_SHARED, FD_ANSWERS, 0);
	if (page == MAP_FAILED)
		return fail(CLV_E_IO, "the files of a sandbox cannot be mapped: %s", strerror(errno));
	s->place = page;
	s->answers = (area){.fd = FD_ANSWERS, .prot = PROT_READ | PROT_WRITE, .from = PLACE_ROOM};
	return CLV_OK;
}

/* The version comes first in an order, whatever else another version has in it. */
static clv_status take_rest(server *s, size_t got)
{
	const char *theirs = s->order.version;
	size_t head = sizeof s->order.version;
	if (got < head)
		TRY(wire_read(&s->w, (char *)&s->order + got, head - got));
	if (theirs[head - 1] || strcmp(theirs, clv_version()) != 0)
		return fail(CLV_E_UNSUPPORTED,
		            "the program for sandboxes is of version %s, the library of %.*s: install both together",
		            clv_version(), (int)head - 1, theirs);
	got = got < head ? head : got;
	return wire_read(&s->w, (char *)&s->order + got, sizeof s->order - got);
}

/* The order with its files; they get numbers of their own, and everything else is closed. */
static clv_status take_order(server *s)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(SANDBOX_FILES * sizeof(int))];
	struct iovec part = {&s->order, sizeof s->order};
	struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	int fds[SANDBOX_FILES];
	ssize_t got = recvmsg(s->w.fd, &m, MSG_CMSG_CLOEXEC);
	struct cmsghdr *c = got > 0 ? CMSG_FIRSTHDR(&m) : NULL;
	if (!c || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof fds))
		return fail(CLV_E_IO, "the order of a sandbox came without its files");
	memcpy(fds, CMSG_DATA(c), sizeof fds);
	for (int i = 0; i < SANDBOX_FILES; i++) /* out of the way first */
		fds[i] = fcntl(fds[i], F_DUPFD, FD_BEYOND);
	for (int i = 0; i < SANDBOX_FILES; i++)
		if (fds[i] < 0 || dup2(fds[i], FD_FILE + i) < 0)
			return fail(CLV_E_IO, "the files of a sandbox cannot be used: %s", strerror(errno));
	if (syscall(SYS_close_range, FD_ANSWERS + 1, ~0U, 0) != 0)
		for (int fd = FD_ANSWERS + 1; fd < sysconf(_SC_OPEN_MAX); fd++)
			close(fd);
	TRY(map_answers(s));
	return take_rest(s, (size_t)got);
}

static clv_status take_texts(server *s)
{
	s->texts = mem_alloc(s->order.texts);
	TRY_MEM(s->texts);
	TRY(wire_read(&s->w, s->texts, s->order.texts));
	return engine_named(s->texts, &s->engine);
}

static clv_status map_model(server *s)
{
	void *file = mmap(NULL, s->order.file_bytes, PROT_READ, MAP_PRIVATE, FD_FILE, 0);
	if (file == MAP_FAILED)
		return fail(CLV_E_IO, "the files of a sandbox cannot be mapped: %s", strerror(errno));
	s->file = file;
	s->calls = (area){.fd = FD_CALLS, .prot = PROT_READ};
	close(FD_FILE);
	return CLV_OK;
}

static clv_status prepare_server(server *s)
{
	TRY(take_order(s));
	TRY(take_texts(s));
	TRY(map_model(s));
	if (s->engine->sandbox->warm)
		s->engine->sandbox->warm();
	return sandbox_confine(s->order.room);
}

/* ---- the model -------------------------------------------------------------------------------------------------------- */

static const char *next_text(const char **at)
{
	const char *text = *at;
	*at += strlen(text) + 1;
	return text;
}

static clv_status load_model(server *s)
{
	const sandbox_order *o = &s->order;
	clv_runtime_options how = CLV_RUNTIME_OPTIONS_INIT;
	clv_open_options opening = CLV_OPEN_OPTIONS_INIT;
	const char *at = s->texts + strlen(s->texts) + 1, **allow = mem_alloc((o->nallow + 1) * sizeof *allow);
	TRY_MEM(allow);
	how.part = o->has_part ? next_text(&at) : NULL;
	how.device = o->has_device ? next_text(&at) : NULL;
	how.optimize = o->has_optimize ? next_text(&at) : NULL;
	how.unproven = o->unproven;
	how.debug = o->debug;
	how.threads = o->threads;
	how.timeout = o->timeout;
	how.max_memory = o->max_memory;
	how.tape_only = true;
	how.sandbox = CLV_SANDBOX_OFF; /* this is one */
	how.engine = s->engine->name;
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
	const int64_t *symbols; /* in the area of calls, as the name */
	const char *name;
	clv_tensor **tensors; /* c.ntensors */
	clv_tensor **results; /* outputs, written inputs, the generator's state */
	uint32_t nresults;
	run_number *numbers;
	uint32_t nnumbers;
} call;

static void server_call_free(call *x)
{
	for (uint32_t i = 0; x->tensors && i < x->c.ntensors; i++)
		clv_tensor_free(x->tensors[i]);
	for (uint32_t i = 0; x->results && i < x->nresults; i++)
		clv_tensor_free(x->results[i]);
	mem_free(x->tensors);
	mem_free(x->results);
	mem_free(x->numbers);
}

static clv_status take_call(server *s, call *x)
{
	TRY(wire_read(&s->w, &x->c, sizeof x->c));
	TRY(area_map(&s->calls, call_head(&x->c) + x->c.tensors));
	x->symbols = (const int64_t *)s->calls.at;
	x->name = (const char *)(x->symbols + x->c.nsymbols);
	x->tensors = mem_alloc((x->c.ntensors + 1) * sizeof *x->tensors);
	TRY_MEM(x->tensors);
	return parcel_open(s->calls.at + call_head(&x->c), x->c.tensors, INT64_MAX, x->tensors, x->c.ntensors);
}

/* As the caller's thread is. */
static clv_status be_like_caller(const server *s, const call *x)
{
	const engine_sandbox *e = s->engine->sandbox;
	fesetenv(&x->c.arithmetic);
	if (e->set_settings)
		TRY(e->set_settings(&x->c.settings));
	if (x->c.draws)
		TRY(e->set_random(x->tensors[x->c.ntensors - 1]));
	if (e->threads && !s->order.threads && x->c.threads != e->threads())
		e->set_threads(x->c.threads);
	return CLV_OK;
}

static clv_status run_called_plan(server *s, call *x)
{
	const runtime_plan *e = &s->r->plans.at[x->c.plan];
	run_call how = {.inputs = x->tensors,
	                .symbols = x->c.has_symbols ? x->symbols : NULL,
	                .numbers = x->numbers,
	                .made = x->c.made,
	                .place = s->place};
	TRY(be_like_caller(s, x));
	clv_status st = runtime_run_plan(s->r, x->c.plan, &how, x->results);
	x->nresults = st == CLV_OK ? e->noutputs : 0;
	return st;
}

static clv_status answer_run(server *s, call *x)
{
	if (x->c.plan >= s->r->plans.n)
		return fail(CLV_E_INVALID, "there is no plan %u", x->c.plan);
	const runtime_plan *e = &s->r->plans.at[x->c.plan];
	if (x->c.ntensors != e->of.v.inputs.n + x->c.draws)
		return fail(CLV_E_INPUT, "the plan takes %u inputs, the call has %u", e->of.v.inputs.n, x->c.ntensors);
	x->results = mem_alloc((e->of.outputs.n + x->c.ntensors + 1) * sizeof *x->results);
	x->numbers = mem_alloc((e->of.numbers.n + 1) * sizeof *x->numbers);
	TRY_MEM(x->results && x->numbers);
	TRY(run_called_plan(s, x));
	x->nnumbers = e->of.numbers.n;
	for (uint32_t i = 0; i < e->of.v.inputs.n; i++)
		if (sandbox_writes(e, i))
			x->results[x->nresults++] = tensor_ref(x->tensors[i]);
	if (!x->c.draws)
		return CLV_OK;
	return s->engine->sandbox->random(&x->results[x->nresults++]);
}

static clv_status assign(server *s, const call *x)
{
	if (x->c.ntensors != 1)
		return fail(CLV_E_INVALID, "%u tensors have one name", x->c.ntensors);
	named_tensor one = {x->name, x->tensors[0]};
	return runtime_assign(s->r, &one, 1);
}

static clv_status put_answer(server *s, const call *x, const parcel *tensors, sandbox_answer *a)
{
	size_t numbers = x->nnumbers * sizeof(run_number);
	if (tensors->image.total > s->order.answer - numbers)
		return fail(CLV_E_LIMIT, "the outputs are %zu bytes, more than the %llu that a sandbox may give",
		            tensors->image.total, (unsigned long long)s->order.answer);
	TRY(area_map(&s->answers, numbers + tensors->image.total));
	if (numbers)
		memcpy(s->answers.at, x->numbers, numbers);
	st_copy(&tensors->image, s->answers.at + numbers);
	*a = (sandbox_answer){.nnumbers = x->nnumbers, .ntensors = x->nresults, .tensors = tensors->image.total};
	return CLV_OK;
}

static clv_status put_error(server *s, clv_status st, sandbox_answer *a)
{
	const char *message = clv_last_error();
	*a = (sandbox_answer){.status = (int32_t)st,
	                      .undone = status_details()->undone,
	                      .message = (uint32_t)strnlen(message, SANDBOX_MESSAGE - 1)};
	TRY(area_map(&s->answers, SANDBOX_MESSAGE));
	memcpy(s->answers.at, message, a->message);
	return CLV_OK;
}

static clv_status answer(server *s, const call *x, const parcel *tensors, clv_status st)
{
	sandbox_answer a;
	if (st == CLV_OK)
		st = put_answer(s, x, tensors, &a);
	if (st != CLV_OK)
		TRY(put_error(s, st, &a));
	s->place->name[0] = '\0';
	return wire_write(&s->w, &a, sizeof a);
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
		st = x.c.kind == SANDBOX_RUN ? answer_run(s, &x) : assign(s, &x);
	if (st == CLV_OK)
		st = parcel_make(x.results, x.nresults, &tensors);
	there = there && answer(s, &x, &tensors, st) == CLV_OK;
	parcel_free(&tensors);
	server_call_free(&x);
	return there;
}

/* About the start. Success leaves the answers' file alone: the next answer may be written before the first is read. */
static clv_status answer_plain(server *s, clv_status st)
{
	sandbox_answer a = {.status = CLV_OK};
	if (!s->place)
		return st; /* there is no place for a message */
	if (st != CLV_OK)
		TRY(put_error(s, st, &a));
	s->place->name[0] = '\0';
	return wire_write(&s->w, &a, sizeof a);
}

int clv_sandbox_serve(int socket)
{
	server s = {.w = {.fd = socket}};
	clv_status st = prepare_server(&s);
	if (answer_plain(&s, st) != CLV_OK || st != CLV_OK)
		return 1;
	st = load_model(&s);
	if (answer_plain(&s, st) != CLV_OK || st != CLV_OK)
		_exit(1); /* what libraries do at their end may need what is gone */
	while (serve_call(&s))
		;
	_exit(0);
}
