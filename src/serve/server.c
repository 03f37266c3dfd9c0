/* The public functions of a server, and its loop: epoll over all sockets, limits of time, stopping. */
#define _GNU_SOURCE /* accept4 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/options.h"
#include "net/address.h"
#include "serve/grpc.h"
#include "serve/serve.h"
#include "serve/session.h"

enum { TICK_MS = 250, EVENTS = 256 };

int64_t wall_milliseconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

bool server_is_ready(server *s)
{
	return !s->leaving && models_ready(s);
}

/* ---- options -------------------------------------------------------------------------------------------------------------- */

static clv_status check_numbers(const clv_server_options *o)
{
	const double most = 1e9; /* seconds: thirty years */
	const struct {
		const char *name;
		bool good;
	} numbers[] = {
		{"workers", o->workers && o->workers <= 1024},
		{"max_connections", o->max_connections},
		{"max_queue", o->max_queue},
		{"max_batch", o->max_batch},
		{"max_body", o->max_body > 0},
		{"max_json", o->max_json > 0},
		{"max_memory", o->max_memory > 0},
		{"header_timeout", o->header_timeout > 0},
		{"idle_timeout", o->idle_timeout > 0},
		{"drain_timeout", o->drain_timeout >= 0 && o->drain_timeout <= most},
		{"drain_delay", o->drain_delay >= 0 && o->drain_delay <= most},
		{"poll", o->poll >= 0},
		{"max_sessions", o->max_sessions},
		{"max_session", o->max_session > 0},
		{"session_memory", o->session_memory >= 0},
		{"session_idle", o->session_idle >= 0},
	};
	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
		if (!numbers[i].good)
			return fail(CLV_E_INVALID, "clv_server_options.%s is out of range", numbers[i].name);
	return CLV_OK;
}

static clv_status check_options(const clv_server_options *o)
{
	bool local = true;
	if (!o->nmodels && !o->repository)
		return fail(CLV_E_INVALID, "a server needs a model, or a repository");
	if (!o->tls_cert != !o->tls_key)
		return fail(CLV_E_INVALID, "a certificate and its private key go together");
	if (o->tls_client_ca && !o->tls_cert)
		return fail(CLV_E_INVALID, "certificates of clients need TLS: a certificate and a key of the server");
	TRY(check_numbers(o));
	if (o->http_port < -1 || o->grpc_port < -1 || o->metrics_port < -1 || o->http_port > UINT16_MAX ||
	    o->grpc_port > UINT16_MAX || o->metrics_port > UINT16_MAX)
		return fail(CLV_E_INVALID, "a port is 0 to 65535");
	if (o->max_head < 1024 || o->max_head > HTTP_HEAD_MOST || !o->max_streams)
		return fail(CLV_E_INVALID,
		            "the head of a request may have 1024 to %d bytes, and a connection a stream at least",
		            HTTP_HEAD_MOST);
	if (!o->log || (strcmp(o->log, "text") && strcmp(o->log, "json") && strcmp(o->log, "off")))
		return fail(CLV_E_INVALID, "a log is \"text\", \"json\" or \"off\"");
	if (!o->batching || (strcmp(o->batching, "exact") && strcmp(o->batching, "fast") && strcmp(o->batching, "off")))
		return fail(CLV_E_INVALID, "batching is \"exact\", \"fast\" or \"off\"");
	if (!o->insecure && !(o->tls_cert && (o->tokens || o->tls_client_ca)))
		TRY(address_is_local(o->host, &local));
	if (!local)
		return fail(CLV_E_INVALID,
		            "%s can be reached from other machines: that needs TLS and tokens (or certificates of clients), "
		            "or your word that it is meant to be insecure",
		            o->host);
	return CLV_OK;
}

static clv_status keep_texts(server *s, const char *const **at, uint32_t n)
{
	const char **kept = arena_array(&s->arena, n, sizeof *kept);
	for (uint32_t i = 0; kept && *at && i < n; i++)
		kept[i] = arena_str(&s->arena, (*at)[i]);
	*at = *at ? kept : NULL;
	return arena_status(&s->arena);
}

/* How files are opened and run, also those that come later. */
static clv_status keep_loading(server *s)
{
	clv_open_options *o = &s->open;
	*o = (clv_open_options)CLV_OPEN_OPTIONS_INIT;
	TRY(options_read(o, sizeof *o, s->o.open, "clv_open_options"));
	TRY(keep_texts(s, &o->allow_operators, o->nallow_operators));
	TRY(keep_texts(s, &o->trusted_keys, o->ntrusted_keys));
	o->copy = true;
	s->o.open = o;
	TRY(runtime_options_keep(&s->arena, s->o.runtime, &s->runtime));
	s->o.runtime = &s->runtime;
	return CLV_OK;
}

static clv_status copy_options(server *s, const clv_server_options *given)
{
	s->o = (clv_server_options)CLV_SERVER_OPTIONS_INIT;
	TRY(options_read(&s->o, sizeof s->o, given, "clv_server_options"));
	if (!s->o.host)
		s->o.host = "127.0.0.1";
	const char **texts[] = {&s->o.repository, &s->o.host, &s->o.tls_cert, &s->o.tls_key, &s->o.tls_client_ca,
	                        &s->o.tokens,     &s->o.log,  &s->o.batching, &s->o.state};
	TRY(check_options(&s->o));
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		TRY(arena_keep(&s->arena, *texts[i], texts[i]));
	return keep_loading(s);
}

/* ---- making one ------------------------------------------------------------------------------------------------------------ */

static clv_status watch(server *s, int fd, void *what)
{
	struct epoll_event e = {.events = EPOLLIN, .data.ptr = what};
	return epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &e) == 0 ? CLV_OK : fail(CLV_E_IO, "epoll: %s", strerror(errno));
}

static clv_status add_listener(server *s, port_role role, int64_t port)
{
	listener *l = &s->listeners[s->nlisteners];
	*l = (listener){.fd = -1, .role = role, .port = (uint16_t)port};
	if (port < 0)
		return CLV_OK;
	TRY(address_bind(s->o.host, &l->port, &l->fd));
	s->nlisteners++;
	return CLV_OK;
}

/* Whether ports can be had is known before models are loaded, which takes its time. */
static clv_status bind_listeners(server *s)
{
	const clv_server_options *o = &s->o;
	if (o->check)
		return CLV_OK;
	if (o->http_port < 0 && o->grpc_port < 0 && o->metrics_port < 0)
		return add_listener(s, ROLE_ALL, o->port);
	TRY(add_listener(s, ROLE_REST, o->http_port));
	TRY(add_listener(s, ROLE_GRPC, o->grpc_port));
	return add_listener(s, ROLE_METRICS, o->metrics_port);
}

static clv_status open_listeners(server *s)
{
	for (uint32_t i = 0; i < s->nlisteners; i++) {
		listener *l = &s->listeners[i];
		if (listen(l->fd, 1024) != 0)
			return fail(CLV_E_IO, "cannot listen at %s port %u: %s", s->o.host, l->port, strerror(errno));
		TRY(watch(s, l->fd, l));
	}
	return CLV_OK;
}

static clv_status open_server(server *s, const clv_server_options *o)
{
	TRY(copy_options(s, o));
	s->started = clock_nanoseconds();
	if (s->o.tls_cert)
		TRY(tls_server(s->o.tls_cert, s->o.tls_key, s->o.tls_client_ca, &s->tls));
	if (s->o.tokens)
		TRY(tokens_load(s->o.tokens, &s->tokens));
	TRY(bind_listeners(s));
	TRY(sessions_open(s));
	TRY(models_open(s));
	s->epoll = epoll_create1(EPOLL_CLOEXEC);
	s->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (s->epoll < 0 || s->wake < 0)
		return fail(CLV_E_IO, "epoll: %s", strerror(errno));
	TRY(open_listeners(s));
	return watch(s, s->wake, &s->wake);
}

clv_status clv_server_create(const clv_server_options *options, clv_server **out)
{
	if (!options || !out)
		return fail(CLV_E_INVALID, "clv_server_create: an argument is NULL");
	server *s = mem_alloc(sizeof *s);
	TRY_MEM(s);
	s->epoll = s->wake = -1;
	clv_status st = open_server(s, options);
	if (st == CLV_OK)
		*out = s;
	else
		clv_server_free(s);
	return st;
}

static void close_fd(int fd)
{
	if (fd >= 0)
		close(fd);
}

static void close_listeners(server *s)
{
	for (uint32_t i = 0; i < s->nlisteners; i++) {
		close_fd(s->listeners[i].fd); /* which takes it out of epoll */
		s->listeners[i].fd = -1;
	}
}

void clv_server_free(clv_server *s)
{
	if (!s || queue_close(s) != CLV_OK) /* what a thread still uses stays */
		return;
	sessions_close(s);
	models_close(s);
	tls_free(s->tls);
	tokens_free(s->tokens);
	close_listeners(s);
	close_fd(s->epoll);
	close_fd(s->wake);
	arena_free(&s->arena);
	mem_free(s);
}

static uint16_t port_for(const server *s, port_role role)
{
	for (uint32_t i = 0; s && i < s->nlisteners; i++)
		if (s->listeners[i].role == role || s->listeners[i].role == ROLE_ALL)
			return s->listeners[i].port;
	return 0;
}

uint16_t clv_server_port(const clv_server *s)
{
	return port_for(s, ROLE_REST);
}

uint16_t clv_server_grpc_port(const clv_server *s)
{
	return port_for(s, ROLE_GRPC);
}

uint16_t clv_server_metrics_port(const clv_server *s)
{
	return port_for(s, ROLE_METRICS);
}

/* Nothing here may be unsafe in a signal handler. */
void server_wake(server *s)
{
	int e = errno;
	uint64_t one = 1;
	(void)!write(s->wake, &one, sizeof one);
	errno = e;
}

void clv_server_stop(clv_server *s)
{
	if (!s)
		return;
	atomic_fetch_add(&s->stopping, 1);
	server_wake(s);
}

void clv_server_reload(clv_server *s)
{
	if (!s)
		return;
	atomic_store(&s->reloading, true);
	server_wake(s);
}

/* ---- the loop -------------------------------------------------------------------------------------------------------------- */

/* Descriptors that files of models, logs and sandboxes may need: connections leave them. */
enum { DESCRIPTORS_KEPT = 64 };

static bool has_room(const server *s)
{
	struct rlimit most;
	if (s->nconnections >= s->o.max_connections)
		return false;
	bool known = getrlimit(RLIMIT_NOFILE, &most) == 0 && most.rlim_cur != RLIM_INFINITY;
	return !known || (rlim_t)s->nconnections + DESCRIPTORS_KEPT < most.rlim_cur;
}

/* Without a descriptor nobody can be accepted, and the listener would stay ready: it is left alone for a while. */
static void listen_later(server *s, bool later)
{
	for (uint32_t i = 0; i < s->nlisteners && later != s->paused; i++) {
		struct epoll_event e = {.events = later ? 0 : EPOLLIN, .data.ptr = &s->listeners[i]};
		if (s->listeners[i].fd >= 0)
			epoll_ctl(s->epoll, EPOLL_CTL_MOD, s->listeners[i].fd, &e);
	}
	s->paused = later;
}

/* What stands for a client: its address, of IPv6 the network that one customer has. */
static uint64_t client_of(const struct sockaddr_storage *from)
{
	uint64_t client = 0;
	const struct sockaddr_in6 *six = (const void *)from;
	if (from->ss_family == AF_INET)
		client = ((const struct sockaddr_in *)from)->sin_addr.s_addr;
	else if (from->ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&six->sin6_addr))
		memcpy(&client, (const uint8_t *)&six->sin6_addr + 12, 4);
	else if (from->ss_family == AF_INET6)
		memcpy(&client, &six->sin6_addr, sizeof client);
	return client;
}

static bool client_has_room(const server *s, uint64_t client)
{
	uint32_t n = 0;
	for (const connection *c = s->o.max_per_address ? s->connections : NULL; c; c = c->after)
		n += c->client == client;
	return !n || n < s->o.max_per_address;
}

static void accept_all(server *s, const listener *l)
{
	enum { TURNS = 64 };
	int on = 1;
	for (unsigned i = 0; i < TURNS; i++) {
		struct sockaddr_storage from = {0};
		socklen_t n = sizeof from;
		int fd = accept4(l->fd, (struct sockaddr *)&from, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd < 0 && (errno == ECONNABORTED || errno == EINTR))
			continue;
		if (fd < 0) {
			if (errno != EAGAIN && errno != EWOULDBLOCK)
				listen_later(s, true);
			return;
		}
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
		uint64_t client = client_of(&from);
		connection *c = has_room(s) && client_has_room(s, client) ? connection_new(s, fd, l->role) : NULL;
		if (c)
			c->client = client;
		else
			close(fd);
	}
}

static void poll_work(exchange *x);
static void expire_work(exchange *x);

/* After a part of the work: true where a worker has it again. */
static bool goes_on(exchange *x)
{
	work_fn then = x->then;
	x->then = NULL;
	if (!then || x->out.status)
		return false;
	x->at.taken = 0;
	then(x);
	return x->working;
}

static void deliver(server *s)
{
	for (exchange *x = queue_done(s), *next; x; x = next) {
		next = x->next;
		x->working = false;
		s->looking &= x->work != poll_work;
		s->tidying &= x->work != expire_work;
		connection *c = x->outer ? x->outer->c : x->c;
		if (!c) {
			exchange_free(x);
			continue;
		}
		if (goes_on(x))
			continue;
		if (x->outer)
			grpc_stream_answer(x);
		else
			connection_answer(c, x);
		connection_settle(c);
	}
}

static void drain_all(server *s)
{
	for (connection *c = s->connections, *next; c; c = next) {
		next = c->after;
		connection_drain(c);
	}
}

/* Whoever sends requests here learns that it should not, and may go on for a while: answers end their connections. */
static void leave(server *s)
{
	s->leaving = true;
	s->leave_until = clock_nanoseconds() + (int64_t)(s->o.drain_delay * 1e9);
	if (s->o.drain_delay > 0)
		server_say(s, "not ready any more; stopping in %g s", s->o.drain_delay);
	drain_all(s);
}

static void drain(server *s)
{
	for (uint32_t i = 0; i < s->nlisteners; i++)
		accept_all(s, &s->listeners[i]); /* who is in line already */
	s->draining = true;
	s->drain_until = clock_nanoseconds() + (int64_t)(s->o.drain_timeout * 1e9);
	server_say(s, "stopping: %u connections, %u open requests", s->nconnections, s->nexchanges);
	close_listeners(s);
	drain_all(s);
}

/* ---- files that change ------------------------------------------------------------------------------------------------------ */

static void poll_work(exchange *x)
{
	models_poll(x->s, false);
	answer_empty(x, 200);
}

static void expire_work(exchange *x)
{
	sessions_expire(x->s);
	answer_empty(x, 200);
}

/* At the desk, which may take its time. False: it has too much to do. */
static bool at_desk(server *s, work_fn work)
{
	exchange *x;
	if (exchange_new(s, &x) != CLV_OK)
		return false;
	x->work = work;
	queue_add_desk(x);
	bool taken = x->working;
	if (!taken)
		exchange_free(x);
	return taken;
}

static void look_at_models(server *s)
{
	s->polled = clock_nanoseconds();
	s->looking = s->looking || at_desk(s, poll_work);
}

/* What cannot be read changes nothing. */
static void reload(server *s)
{
	tokens *list = NULL;
	tls_context *tls = NULL;
	if (s->o.tokens && tokens_load(s->o.tokens, &list) != CLV_OK) {
		server_say(s, "the tokens stay as they were: %s", status_message());
	} else if (list) {
		tokens_free(s->tokens);
		s->tokens = list;
		for (connection *c = s->connections; c; c = c->after)
			for (exchange *x = c->x; x; x = x->sibling) {
				x->token = tokens_find(x); /* its number in the old list means another one now */
				if (x->inner)
					x->inner->token = x->token;
			}
	}
	if (s->tls && tls_server(s->o.tls_cert, s->o.tls_key, s->o.tls_client_ca, &tls) != CLV_OK) {
		server_say(s, "the certificate stays as it was: %s", status_message());
	} else if (tls) {
		tls_free(s->tls);
		s->tls = tls;
	}
	look_at_models(s);
}

static void wake_up(server *s)
{
	uint64_t n;
	(void)!read(s->wake, &n, sizeof n);
	deliver(s);
	if (atomic_exchange(&s->reloading, false))
		reload(s);
	if (atomic_load(&s->stopping) && !s->leaving)
		leave(s);
	if (s->leaving && !s->draining && (s->o.drain_delay == 0 || atomic_load(&s->stopping) > 1))
		drain(s);
}

static void look_at_times(server *s)
{
	int64_t now = clock_nanoseconds();
	listen_later(s, false);
	if (s->leaving && !s->draining && now >= s->leave_until)
		drain(s);
	if (s->draining)
		drain_all(s);
	if (s->o.poll > 0 && (double)(now - s->polled) > s->o.poll * 1e9)
		look_at_models(s);
	if (!s->tidying && sessions_any_old(s))
		s->tidying = at_desk(s, expire_work);
	for (connection *c = s->connections, *next; c; c = next) {
		next = c->after;
		if (connection_is_late(c, now))
			connection_free(c);
		else
			connection_watch(c, now);
	}
}

static void handle(server *s, const struct epoll_event *e)
{
	for (uint32_t i = 0; i < s->nlisteners; i++)
		if (e->data.ptr == &s->listeners[i]) {
			accept_all(s, &s->listeners[i]);
			return;
		}
	if (e->data.ptr == &s->wake)
		wake_up(s);
	else
		connection_event(e->data.ptr, e->events);
}

static bool is_over(const server *s)
{
	return s->draining && (!s->nconnections || clock_nanoseconds() > s->drain_until);
}

/* Until the next look at times, or until somebody's time in the queue is over. */
static int patience(server *s)
{
	int64_t left = (queue_next_deadline(s) - clock_nanoseconds()) / 1000000 + 1;
	return left < 0 ? 0 : left < TICK_MS ? (int)left : TICK_MS;
}

static clv_status loop(server *s)
{
	struct epoll_event events[EVENTS];
	int64_t looked = 0;
	while (!is_over(s)) {
		int n = epoll_wait(s->epoll, events, EVENTS, patience(s));
		if (n < 0 && errno != EINTR)
			return fail(CLV_E_IO, "epoll: %s", strerror(errno));
		/* A connection that one event ends has no other event in the same list: each socket is there once; what a
		   worker finished is looked at last, as it may end any of them. */
		bool woken = false;
		for (int i = 0; i < n; i++) {
			if (events[i].data.ptr == &s->wake)
				woken = true;
			else
				handle(s, &events[i]);
		}
		if (clock_nanoseconds() >= queue_next_deadline(s))
			queue_sweep(s);
		if (woken)
			wake_up(s);
		if (clock_nanoseconds() - looked > TICK_MS * 1000000LL) {
			looked = clock_nanoseconds();
			look_at_times(s);
		}
	}
	return CLV_OK;
}

clv_status clv_server_run(clv_server *s)
{
	if (!s || s->queue || s->o.check)
		return fail(CLV_E_INVALID, "clv_server_run needs a server that does not run yet, and was not made for a check");
	clv_status st = queue_open(s);
	if (st == CLV_OK)
		st = loop(s);
	while (s->connections)
		connection_free(s->connections);
	clv_status ended = queue_close(s);
	return st == CLV_OK ? ended : st;
}
