/* The bytes of one socket: TLS, which protocol is spoken, what waits to be sent, and how long anybody may take. */
#include "serve/serve.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "serve/grpc.h"

enum { IN_MOST = HTTP_HEAD_MOST + 16 * 1024, SLOWEST = 16 * 1024 /* bytes per second that a peer has to move */ };

/* A peer that is faster than it has to be gains no time to stand still later: what it waits for begins anew. */
void time_moved(int64_t *since, uint64_t *moved, size_t n)
{
	int64_t now = clock_nanoseconds();
	*moved += n;
	if ((double)*moved / SLOWEST * 1e9 >= (double)(now - *since)) {
		*since = now;
		*moved = 0;
	}
}

/* ---- making and ending ------------------------------------------------------------------------------------------------- */

connection *connection_new(server *s, int fd, port_role role)
{
	connection *c = mem_alloc(sizeof *c);
	if (!c)
		return NULL;
	c->s = s;
	c->role = role;
	c->fd = fd;
	c->in = mem_realloc(NULL, IN_MOST, 1);
	c->since = clock_nanoseconds();
	struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
	c->events = EPOLLIN;
	if (!c->in || (s->tls && tls_accept(s->tls, fd, &c->tls) != CLV_OK) ||
	    epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &e) != 0) {
		tls_close(c->tls);
		mem_free(c->in);
		mem_free(c);
		return NULL;
	}
	c->after = s->connections;
	if (c->after)
		c->after->before = c;
	s->connections = c;
	s->nconnections++;
	return c;
}

/* What a worker has comes back later, and is released then. */
static void abandon(connection *c)
{
	for (exchange *x = c->x, *next; x; x = next) {
		next = x->sibling;
		x->c = NULL;
		x->sibling = NULL;
		grpc_stream_end(x);
		if (queue_take_back(x))
			exchange_free(x);
	}
	c->x = NULL;
}

void connection_free(connection *c)
{
	server *s = c->s;
	http2_close(c);
	abandon(c);
	tls_close(c->tls);
	/* A process that is being started has a copy of the socket for a moment: to close ours would neither end the connection
	   nor take it from epoll, which would then name memory that is gone. */
	epoll_ctl(s->epoll, EPOLL_CTL_DEL, c->fd, NULL);
	shutdown(c->fd, SHUT_RDWR);
	close(c->fd);
	for (uint32_t i = c->sent; i < c->out.n; i++) {
		server_release(s, c->out.at[i].n);
		if (c->out.at[i].drop)
			c->out.at[i].drop(c->out.at[i].ctx);
	}
	vec_free(&c->out);
	if (c->before)
		c->before->after = c->after;
	else
		s->connections = c->after;
	if (c->after)
		c->after->before = c->before;
	s->nconnections--;
	mem_free(c->in);
	mem_free(c);
}

/* ---- sending ------------------------------------------------------------------------------------------------------------- */

clv_status connection_send(connection *c, const void *at, size_t n, void (*drop)(void *), void *ctx)
{
	clv_status st = n ? vec_push(&c->out, ((piece){at, n, drop, ctx})) : CLV_OK;
	if (st == CLV_OK)
		server_owe(c->s, n);
	if (st == CLV_OK && !n && drop)
		drop(ctx);
	if (st != CLV_OK) {
		c->dead = true;
		if (drop)
			drop(ctx);
	}
	return st;
}

static long send_piece(connection *c, const piece *p)
{
	const char *at = (const char *)p->at + c->sent_bytes;
	size_t n = p->n - c->sent_bytes;
	if (c->tls)
		return tls_write(c->tls, at, n, &c->wants_write);
	int more = c->sent + 1 < c->out.n ? MSG_MORE : 0;
	return send(c->fd, at, n, MSG_NOSIGNAL | MSG_DONTWAIT | more);
}

static void count_sent(connection *c, size_t n)
{
	piece *p = &c->out.at[c->sent];
	time_moved(&c->since, &c->moved, n);
	c->sent_bytes += n;
	if (c->sent_bytes < p->n)
		return;
	if (p->drop)
		p->drop(p->ctx);
	server_release(c->s, p->n);
	c->sent++;
	c->sent_bytes = 0;
	if (c->sent == c->out.n)
		c->out.n = c->sent = 0;
}

static void flush(connection *c)
{
	while (!c->dead && !c->lingering) {
		if (c->sent == c->out.n && c->h2)
			http2_fill(c);
		if (c->sent == c->out.n)
			break;
		long n = send_piece(c, &c->out.at[c->sent]);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return;
		if (n <= 0)
			c->dead = true;
		else
			count_sent(c, (size_t)n);
	}
}

static bool may_go_on(const connection *c);
static bool may_read(const connection *c);
static void understand(connection *c);
static void read_all(connection *c);

/* ---- waiting --------------------------------------------------------------------------------------------------------------- */

static bool is_working(const connection *c)
{
	return c->protocol == PROTOCOL_HTTP1 && c->x && c->x->working;
}

static uint32_t wanted_events(const connection *c)
{
	bool unsent = c->sent < c->out.n, h2 = c->protocol == PROTOCOL_HTTP2;
	uint32_t want = unsent || c->wants_write ? EPOLLOUT : 0;
	if (c->lingering)
		return EPOLLIN;
	if (is_working(c))
		return want | EPOLLRDHUP; /* a client that leaves does not want the answer */
	return !unsent || h2 ? want | EPOLLIN : want;
}

/* Requests that were read already are no news for epoll: they are looked at once the answer before them is sent. */
static void go_on(connection *c)
{
	bool more = true;
	while (more) {
		size_t was = c->in_n;
		uint32_t requests = c->requests;
		flush(c);
		if (!c->dead && may_go_on(c) && c->in_n)
			understand(c);
		if (may_read(c) && c->tls && tls_pending(c->tls))
			read_all(c);
		more = !c->dead && (c->in_n != was || c->requests != requests);
	}
}

/* The client may still be sending a body that nobody wants. To close now would take the answer from it. */
static void end_sending(connection *c)
{
	if (c->lingering)
		return;
	tls_close(c->tls);
	c->tls = NULL;
	c->lingering = shutdown(c->fd, SHUT_WR) == 0;
	c->dead = !c->lingering;
	c->since = clock_nanoseconds();
}

void connection_settle(connection *c)
{
	server *s = c->s;
	go_on(c);
	if (c->ending && c->sent == c->out.n)
		end_sending(c);
	if (c->dead) {
		connection_free(c);
		return;
	}
	uint32_t want = wanted_events(c);
	if (want != c->events) {
		struct epoll_event e = {.events = want, .data.ptr = c};
		epoll_ctl(s->epoll, EPOLL_CTL_MOD, c->fd, &e);
		c->events = want;
	}
}

/* Seconds that it may take for what it does now. */
static double patience(const connection *c)
{
	const clv_server_options *o = &c->s->o;
	if (c->lingering)
		return 2;
	if (c->sent < c->out.n || c->reading_body)
		return o->header_timeout + (double)c->moved / SLOWEST;
	bool inside =
		c->in_n || c->protocol == PROTOCOL_UNKNOWN || (c->x && !c->x->working && c->protocol == PROTOCOL_HTTP1);
	return inside ? o->header_timeout : o->idle_timeout;
}

/* A stream of HTTP/2 that waits for its client: for the rest of the request, or to send the answer. */
static bool stream_is_late(const exchange *x, int64_t now)
{
	const clv_server_options *o = &x->s->o;
	bool between = x->streaming && (x->waiting || x->body.n == x->taken); /* messages */
	double patient = between ? o->idle_timeout : o->header_timeout + (double)x->moved / SLOWEST;
	return !x->working && !x->inner && !(x->watch && x->streaming) && (double)(now - x->since) > patient * 1e9;
}

bool connection_is_late(const connection *c, int64_t now)
{
	if (c->protocol == PROTOCOL_HTTP2 && c->x && c->sent == c->out.n)
		return false;
	if (is_working(c) && c->sent == c->out.n)
		return false;
	return (double)(now - c->since) > patience(c) * 1e9;
}

/* ---- receiving ------------------------------------------------------------------------------------------------------------- */

static long receive(connection *c, void *to, size_t n)
{
	long got;
	do
		got = c->tls ? tls_read(c->tls, to, n, &c->wants_write) : recv(c->fd, to, n, MSG_DONTWAIT);
	while (got < 0 && errno == EINTR);
	return got;
}

/* A body of known length goes where it will stay. */
static long receive_body(connection *c)
{
	exchange *x = c->x;
	size_t left = (size_t)x->head.length - x->body.n;
	long n = receive(c, body_at(&x->body) + x->body.n, left);
	if (n > 0) {
		time_moved(&c->since, &c->moved, (size_t)n);
		clv_status st = body_add(x, body_at(&x->body) + x->body.n, (size_t)n);
		if (st != CLV_OK) {
			body_refuse(x, st);
			x->out.close = true;
		}
	}
	return n;
}

static bool reads_into_body(const connection *c)
{
	const exchange *x = c->x;
	return c->reading_body && !c->in_n && x && !x->head.chunked && x->body.memory && !x->out.status &&
	       x->body.n < (size_t)x->head.length;
}

static void choose_protocol(connection *c)
{
	bool h2 = c->tls ? tls_is_h2(c->tls) : http2_is_start(c->in, c->in_n);
	if (!c->tls && h2 && c->in_n < 24)
		return; /* it may still become either */
	c->protocol = h2 ? PROTOCOL_HTTP2 : PROTOCOL_HTTP1;
	if (h2 && http2_open(c) != CLV_OK)
		c->dead = true;
}

static void understand(connection *c)
{
	if (c->protocol == PROTOCOL_UNKNOWN && c->in_n)
		choose_protocol(c);
	if (c->dead)
		return;
	if (c->protocol == PROTOCOL_HTTP1)
		http1_read(c);
	else if (c->protocol == PROTOCOL_HTTP2)
		http2_read(c);
}

static bool may_go_on(const connection *c)
{
	bool busy = c->protocol == PROTOCOL_HTTP1 && (is_working(c) || c->sent < c->out.n);
	return !c->dead && !c->ending && !busy;
}

static bool may_read(const connection *c)
{
	return may_go_on(c) && c->in_n < IN_MOST;
}

static void discard(connection *c)
{
	char room[4096];
	for (unsigned i = 0; i < 64; i++) {
		long n = recv(c->fd, room, sizeof room, MSG_DONTWAIT);
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return;
		if (n <= 0)
			break;
		if (i == 63)
			return;
	}
	c->dead = true;
}

static void read_all(connection *c)
{
	enum { TURNS = 64 }; /* then it is somebody else's turn */
	for (unsigned i = 0; may_read(c) && (i < TURNS || (c->tls && tls_pending(c->tls))); i++) {
		bool body = reads_into_body(c);
		long n = body ? receive_body(c) : receive(c, c->in + c->in_n, IN_MOST - c->in_n);
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return;
		if (n <= 0) {
			c->dead = true;
			return;
		}
		if (!body) {
			if (!c->in_n && !c->reading_body)
				c->since = clock_nanoseconds(), c->moved = 0;
			c->in_n += (size_t)n;
			if (c->reading_body)
				time_moved(&c->since, &c->moved, (size_t)n);
		}
		understand(c);
	}
}

void connection_event(connection *c, uint32_t events)
{
	if (events & (EPOLLERR | EPOLLHUP) || (events & EPOLLRDHUP && is_working(c)))
		c->dead = true;
	if (!c->dead && events & (EPOLLIN | EPOLLOUT) && c->wants_write)
		c->wants_write = false;
	if (!c->dead && events & EPOLLOUT)
		flush(c);
	if (!c->dead && c->lingering)
		discard(c);
	else if (!c->dead && events & (EPOLLIN | EPOLLOUT))
		read_all(c);
	connection_settle(c);
}

void connection_answer(connection *c, exchange *x)
{
	if (c->protocol == PROTOCOL_HTTP2)
		http2_answer(c, x);
	else
		http1_answer(c, x);
}

/* A stream that stands still ends, and leaves the others of its connection alone. */
void connection_watch(connection *c, int64_t now)
{
	bool any = false;
	for (exchange *x = c->protocol == PROTOCOL_HTTP2 ? c->x : NULL; x; x = x->sibling) {
		bool late = stream_is_late(x, now);
		any |= late || (x->watch && grpc_watch(x));
		if (late)
			http2_reset(c, x);
	}
	if (any)
		connection_settle(c);
}

/* A request that has come by now is still answered. */
static void drain_idle(connection *c)
{
	read_all(c);
	c->ending |= !c->dead && !c->x && !c->in_n;
}

void connection_drain(connection *c)
{
	if (c->protocol == PROTOCOL_HTTP2)
		http2_drain(c);
	else if (c->s->draining && !c->x && c->sent == c->out.n && !c->in_n)
		drain_idle(c);
	connection_settle(c);
}
