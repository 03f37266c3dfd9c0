/* HTTP/1.1 over a connection: one request at a time, its answer, then the next. */
#include "serve/serve.h"

#include <string.h>

#include "base/clock.h"

static void consume(connection *c, size_t n)
{
	c->in_n -= n;
	memmove(c->in, c->in + n, c->in_n);
}

/* The bytes that follow mean nothing any more. */
static void end_reading(connection *c)
{
	c->x->out.close = true;
	c->in_n = 0;
}

static void refuse(connection *c, unsigned status, const char *message)
{
	answer_error(c->x, status, "%s", message);
	end_reading(c);
}

/* ---- heads --------------------------------------------------------------------------------------------------------------- */

static void begin_body(connection *c)
{
	exchange *x = c->x;
	const http_head *h = &x->head;
	bool has = h->chunked || h->length > 0;
	c->reading_body = true;
	c->chunks = (http_chunks){0};
	c->since = clock_nanoseconds();
	c->moved = 0;
	if (h->length > x->s->o.max_body)
		refuse(c, 413, "the body is larger than the server takes");
	else if (has && h->expects && !c->in_n)
		connection_send(c, "HTTP/1.1 100 Continue\r\n\r\n", 25, NULL, NULL);
}

static void read_head(connection *c)
{
	enum { BLANK_MOST = 8 }; /* some clients send a line too many */
	size_t blank = 0;
	while (c->blank < BLANK_MOST && c->in_n - blank >= 2 && !memcmp(c->in + blank, "\r\n", 2)) {
		blank += 2;
		c->blank++;
	}
	consume(c, blank);
	size_t n = http_head_end(c->in, c->in_n);
	if (!n && c->in_n < c->s->o.max_head)
		return;
	if (exchange_new(c->s, &c->x) != CLV_OK) {
		c->dead = true;
		return;
	}
	exchange *x = c->x;
	x->c = c;
	c->requests++;
	c->blank = 0;
	clv_status st = n && n <= c->s->o.max_head ? http_head_read(c->in, n, &x->arena, &x->head)
	                                           : fail(CLV_E_LIMIT, "the head of the request is too long");
	if (st != CLV_OK) {
		refuse(c, st == CLV_E_LIMIT ? 431 : st == CLV_E_UNSUPPORTED ? 501 : 400, status_message());
		return;
	}
	consume(c, n);
	begin_body(c);
}

/* ---- bodies -------------------------------------------------------------------------------------------------------------- */

static clv_status take_plain(connection *c, bool *whole)
{
	exchange *x = c->x;
	size_t left = x->head.length > 0 ? (size_t)x->head.length - x->body.n : 0;
	size_t n = c->in_n < left ? c->in_n : left;
	if (n)
		TRY(body_add(x, c->in, n));
	consume(c, n);
	*whole = n == left;
	return CLV_OK;
}

static clv_status take_chunks(connection *c, bool *whole)
{
	size_t at = 0, used, data;
	clv_status st = CLV_OK;
	while (st == CLV_OK && at < c->in_n && !*whole) {
		st = http_chunks_read(&c->chunks, c->in + at, c->in_n - at, &used, &data, whole);
		if (st != CLV_OK)
			break;
		at += used;
		st = body_add(c->x, c->in + at - data, data);
	}
	consume(c, at);
	return st;
}

static void take_body(connection *c)
{
	bool whole = false;
	clv_status st = c->x->head.chunked ? take_chunks(c, &whole) : take_plain(c, &whole);
	if (st != CLV_OK) {
		body_refuse(c->x, st);
		end_reading(c);
		return;
	}
	if (!whole)
		return;
	c->reading_body = false;
	route(c->x);
}

void http1_read(connection *c)
{
	while (!c->dead && !c->ending && c->sent == c->out.n) {
		if (!c->x)
			read_head(c);
		if (c->x && c->reading_body && !c->x->out.status)
			take_body(c);
		if (!c->x || c->x->working || !c->x->out.status)
			return;
		http1_answer(c, c->x);
	}
}

/* ---- answers ------------------------------------------------------------------------------------------------------------- */

static void put_head(const exchange *x, bool close, strbuf *b)
{
	const answer *a = &x->out;
	char timing[TIMING_MOST];
	strbuf_printf(b, "HTTP/1.1 %u %s\r\nContent-Length: %zu\r\n", a->status, http_reason(a->status), a->n);
	if (a->type)
		strbuf_printf(b, "Content-Type: %s\r\n", a->type);
	if (a->json >= 0)
		strbuf_printf(b, "Inference-Header-Content-Length: %lld\r\n", (long long)a->json);
	if (a->coding)
		strbuf_printf(b, "Content-Encoding: %s\r\n", coding_name(a->coding));
	if (answer_timing(x, timing))
		strbuf_printf(b, "Server-Timing: %s\r\n", timing);
	if (a->retry)
		strbuf_printf(b, "Retry-After: %u\r\n", a->retry);
	if (a->allow)
		strbuf_printf(b, "Allow: %s\r\n", a->allow);
	if (a->status == 401)
		strbuf_puts(b, "WWW-Authenticate: Bearer\r\n");
	if (a->status == 415)
		strbuf_puts(b, "Accept-Encoding: gzip, deflate\r\n");
	if (close)
		strbuf_puts(b, "Connection: close\r\n");
	else if (x->head.old)
		strbuf_puts(b, "Connection: keep-alive\r\n");
	strbuf_printf(b, "X-Request-Id: %s\r\n\r\n", x->id);
}

static void send_body(connection *c, answer *a)
{
	for (uint32_t i = 0; i < a->body.n; i++) {
		piece p = a->body.at[i];
		a->body.at[i].drop = NULL; /* the connection has it now */
		connection_send(c, p.at, p.n, p.drop, p.ctx);
	}
}

void http1_answer(connection *c, exchange *x)
{
	strbuf b = STRBUF_INIT;
	char *head;
	bool none = x->head.method && strcmp(x->head.method, "HEAD") == 0;
	bool close = x->out.close || !x->head.keep_alive || c->s->leaving || c->reading_body;
	put_head(x, close, &b);
	size_t n = b.n;
	x->at.answered = clock_nanoseconds();
	server_log(c->s, x);
	if (x->out.status >= 400)
		exchange_refused(x);
	if (strbuf_take(&b, &head) != CLV_OK)
		c->dead = true;
	else if (connection_send(c, head, n, mem_free, head) == CLV_OK && !none)
		send_body(c, &x->out);
	c->ending |= close;
	c->reading_body = false;
	c->x = NULL;
	c->since = x->at.answered;
	c->moved = 0;
	exchange_free(x);
}
