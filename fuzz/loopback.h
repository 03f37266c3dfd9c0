/* A server for fuzz targets that has no sockets, no models and takes no work: whatever asks for a worker is answered with 429. Bytes
 * of a client go in, bytes of the server come out. */
#pragma once

#include <string.h>

#include "must.h"
#include "serve/serve.h"

static inline server *loopback_server(void)
{
	static server s;
	if (!s.queue) {
		s.o = (clv_server_options)CLV_SERVER_OPTIONS_INIT;
		s.o.max_body = s.o.max_json = 1 << 20;
		s.epoll = s.wake = -1;
		s.started = 1;
		MUST(models_open(&s) == CLV_OK && queue_open(&s) == CLV_OK);
		s.o.max_queue = 0;
	}
	return &s;
}

static inline connection *loopback_open(server *s)
{
	connection *c = mem_alloc(sizeof *c);
	MUST(c && (c->in = mem_realloc(NULL, HTTP_HEAD_MOST, 1)));
	c->s = s;
	c->fd = -1;
	c->protocol = PROTOCOL_HTTP2;
	s->connections = c;
	s->nconnections++;
	MUST(http2_open(c) == CLV_OK);
	return c;
}

/* What the server has to send goes to `to`, if there is anybody. */
static inline void loopback_take(connection *c, void (*to)(void *ctx, const void *at, size_t n), void *ctx)
{
	http2_fill(c);
	for (; c->sent < c->out.n; c->sent++) {
		piece p = c->out.at[c->sent];
		if (to)
			to(ctx, p.at, p.n);
		if (p.drop)
			p.drop(p.ctx);
		server_release(c->s, p.n);
	}
	c->out.n = c->sent = 0;
}

static inline void loopback_give(connection *c, const void *at, size_t n)
{
	while (n && !c->dead) {
		size_t some = n < HTTP_HEAD_MOST ? n : HTTP_HEAD_MOST;
		memcpy(c->in, at, some);
		c->in_n = some;
		http2_read(c);
		at = (const char *)at + some;
		n -= some;
	}
}

/* Nothing of the connection is left. */
static inline void loopback_close(connection *c)
{
	server *s = c->s;
	connection_free(c);
	MUST(!s->nconnections && !s->nexchanges && !atomic_load(&s->bytes_held));
}
