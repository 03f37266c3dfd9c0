/* HTTP/2 over a connection. nghttp2 knows the protocol; here its streams become exchanges, and answers become streams.
 *
 * Windows are larger than the protocol's own, so that a tensor does not wait for each round trip: 8 MiB are 600 Mbit/s over 100 ms.
 * They promise no memory: what comes is counted when it is there, and refused when there is no room. nghttp2 ends connections that
 * flood it with settings, pings, resets or continued headers; streams that do not move are ended by time (connection.c). */
#include <nghttp2/nghttp2.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "serve/grpc.h"
#include "serve/serve.h"

enum { STREAM_WINDOW = 8 << 20, WINDOW = 32 << 20, FRAME = 64 * 1024, FILL = 256 * 1024, FIELDS = 12 };

bool http2_is_start(const char *at, size_t n)
{
	static const char start[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
	return n && !memcmp(at, start, n < sizeof start - 1 ? n : sizeof start - 1);
}

/* ---- answers ------------------------------------------------------------------------------------------------------------------- */

static nghttp2_nv field(const char *name, const char *text)
{
	return (nghttp2_nv){(uint8_t *)name, (uint8_t *)text, strlen(name), strlen(text), NGHTTP2_NV_FLAG_NO_COPY_NAME};
}

/* What is next of the answer, as much as fits; pieces that are sent are dropped. */
static size_t take(answer *a, uint32_t *at, size_t *inside, uint8_t *to, size_t room)
{
	size_t n = 0;
	while (*at < a->body.n && n < room) {
		piece *p = &a->body.at[*at];
		size_t left = p->n - *inside, some = left < room - n ? left : room - n;
		memcpy(to + n, (const char *)p->at + *inside, some);
		n += some;
		*inside += some;
		if (*inside < p->n)
			break;
		if (p->drop)
			p->drop(p->ctx);
		p->drop = NULL;
		*inside = 0;
		++*at;
	}
	return n;
}

static ssize_t read_answer(nghttp2_session *h2, int32_t stream, uint8_t *to, size_t room, uint32_t *flags,
                           nghttp2_data_source *source, void *user)
{
	exchange *x = source->ptr;
	(void)user;
	size_t n = take(&x->out, &x->sent, &x->sent_bytes, to, room);
	x->unsent -= n < x->unsent ? n : x->unsent;
	exchange_sent(x, n);
	if (n)
		time_moved(&x->since, &x->moved, n);
	if (n && x->streaming)
		x->since = clock_nanoseconds();
	if (x->sent < x->out.body.n)
		return (ssize_t)n;
	if (x->streaming) {
		x->out.body.n = x->sent = 0;
		return n ? (ssize_t)n : NGHTTP2_ERR_DEFERRED;
	}
	*flags |= NGHTTP2_DATA_FLAG_EOF;
	if (x->grpc) {
		char timing[TIMING_MOST];
		nghttp2_nv trailers[2] = {field("grpc-status", "0")};
		bool timed = !x->streaming && answer_timing(x, timing);
		if (timed)
			trailers[1] = field("server-timing", timing);
		*flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
		nghttp2_submit_trailer(h2, stream, trailers, timed ? 2 : 1);
	}
	return (ssize_t)n;
}

static uint32_t answer_fields(const exchange *x, nghttp2_nv *to, char numbers[4][24], char timing[TIMING_MOST])
{
	const answer *a = &x->out;
	uint32_t n = 0;
	snprintf(numbers[0], sizeof numbers[0], "%u", a->status);
	snprintf(numbers[1], sizeof numbers[1], "%zu", a->n);
	snprintf(numbers[2], sizeof numbers[2], "%lld", (long long)a->json);
	snprintf(numbers[3], sizeof numbers[3], "%u", a->retry);
	to[n++] = field(":status", numbers[0]);
	to[n++] = field("content-length", numbers[1]);
	to[n++] = field("x-request-id", x->id);
	if (a->type)
		to[n++] = field("content-type", a->type);
	if (a->json >= 0)
		to[n++] = field("inference-header-content-length", numbers[2]);
	if (a->coding)
		to[n++] = field("content-encoding", coding_name(a->coding));
	if (answer_timing(x, timing))
		to[n++] = field("server-timing", timing);
	if (a->retry)
		to[n++] = field("retry-after", numbers[3]);
	if (a->allow)
		to[n++] = field("allow", a->allow);
	if (a->status == 401)
		to[n++] = field("www-authenticate", "Bearer");
	if (a->status == 415)
		to[n++] = field("accept-encoding", "gzip, deflate");
	return n;
}

static int submit_plain(nghttp2_session *h2, exchange *x)
{
	nghttp2_nv fields[FIELDS];
	char numbers[4][24], timing[TIMING_MOST];
	nghttp2_data_provider body = {.source.ptr = x, .read_callback = read_answer};
	uint32_t n = answer_fields(x, fields, numbers, timing);
	bool none = !x->out.n || (x->head.method && strcmp(x->head.method, "HEAD") == 0);
	return nghttp2_submit_response(h2, x->stream, fields, n, none ? NULL : &body);
}

static uint32_t grpc_fields(const exchange *x, coding c, nghttp2_nv *to)
{
	uint32_t n = 0;
	to[n++] = field(":status", "200");
	to[n++] = field("content-type", "application/grpc");
	to[n++] = field("grpc-accept-encoding", "identity, deflate, gzip");
	to[n++] = field("x-request-id", x->id);
	if (c)
		to[n++] = field("grpc-encoding", coding_name(c));
	return n;
}

static int submit_grpc(nghttp2_session *h2, exchange *x)
{
	char status[16], wait[16];
	nghttp2_data_provider body = {.source.ptr = x, .read_callback = read_answer};
	nghttp2_nv fields[FIELDS];
	uint32_t n = grpc_fields(x, x->out.coding, fields);
	if (x->out.status == 200)
		return nghttp2_submit_response(h2, x->stream, fields, n, &body);
	snprintf(status, sizeof status, "%d", x->out.exhausted ? GRPC_EXHAUSTED : (int)grpc_code_of(x->out.status));
	snprintf(wait, sizeof wait, "%u", x->out.retry * 1000);
	fields[n++] = field("grpc-status", status);
	fields[n++] = field("grpc-message", grpc_message_of(x));
	if (x->out.retry)
		fields[n++] = field("grpc-retry-pushback-ms", wait);
	return nghttp2_submit_response(h2, x->stream, fields, n, NULL);
}

/* Clients of gRPC take an answer that comes before their request has ended for a broken stream. */
static bool waits_for_end(const exchange *x)
{
	return x->grpc && !grpc_method_streams(x->head.path);
}

void http2_answer(connection *c, exchange *x)
{
	nghttp2_session *h2 = c->h2;
	if (x->at.answered || (waits_for_end(x) && !x->whole))
		return;
	x->since = x->at.answered = clock_nanoseconds();
	x->moved = 0;
	server_log(c->s, x);
	if (x->out.status >= 400)
		exchange_refused(x);
	exchange_owe(x, x->out.n);
	if ((x->grpc ? submit_grpc(h2, x) : submit_plain(h2, x)) != 0)
		nghttp2_submit_rst_stream(h2, NGHTTP2_FLAG_NONE, x->stream, NGHTTP2_INTERNAL_ERROR);
}

/* The rest of a request that has its answer is not wanted. To say so before the answer is sent would take it back. */
static int on_sent(nghttp2_session *h2, const nghttp2_frame *f, void *user)
{
	const exchange *x = nghttp2_session_get_stream_user_data(h2, f->hd.stream_id);
	bool body = f->hd.type == NGHTTP2_HEADERS || f->hd.type == NGHTTP2_DATA;
	(void)user;
	if (x && body && f->hd.flags & NGHTTP2_FLAG_END_STREAM && !x->whole)
		nghttp2_submit_rst_stream(h2, NGHTTP2_FLAG_NONE, x->stream, NGHTTP2_NO_ERROR);
	return 0;
}

void http2_stream(connection *c, exchange *x)
{
	nghttp2_data_provider body = {.source.ptr = x, .read_callback = read_answer};
	nghttp2_nv fields[FIELDS];
	uint32_t n = grpc_fields(x, x->reply, fields);
	if (x->at.answered) {
		nghttp2_session_resume_data(c->h2, x->stream);
		return;
	}
	x->at.answered = clock_nanoseconds();
	x->out.status = 200;
	nghttp2_submit_response(c->h2, x->stream, fields, n, &body);
}

/* ---- requests -------------------------------------------------------------------------------------------------------------------- */

static exchange *of_stream(nghttp2_session *h2, int32_t stream)
{
	return nghttp2_session_get_stream_user_data(h2, stream);
}

static int on_begin_headers(nghttp2_session *h2, const nghttp2_frame *f, void *user)
{
	connection *c = user;
	exchange *x;
	if (f->hd.type != NGHTTP2_HEADERS || f->headers.cat != NGHTTP2_HCAT_REQUEST)
		return 0;
	if (exchange_new(c->s, &x) != CLV_OK)
		return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
	if (exchange_hold(x, STREAM_PRICE) != CLV_OK) {
		exchange_free(x);
		return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
	}
	x->stream = f->hd.stream_id;
	x->c = c;
	x->head.method = x->head.path = ""; /* CONNECT has no path */
	x->head.length = -1;
	x->head.keep_alive = true;
	x->sibling = c->x;
	c->x = x;
	c->requests++;
	nghttp2_session_set_stream_user_data(h2, x->stream, x);
	return 0;
}

static clv_status take_field(exchange *x, const char *name, size_t nname, const char *text, size_t ntext)
{
	http_head *h = &x->head;
	char *method;
	x->head_bytes += (uint32_t)(nname + ntext + 32);
	if (x->head_bytes > x->s->o.max_head)
		return fail(CLV_E_LIMIT, "the head of the request is too long");
	TRY(exchange_hold(x, 2 * (nname + ntext) + 64)); /* a byte of HPACK may name a field of any length */
	if (nname == 5 && !memcmp(name, ":path", 5))
		return http_target(h, &x->arena, text, ntext);
	if (nname == 7 && !memcmp(name, ":method", 7)) {
		method = arena_alloc(&x->arena, ntext + 1);
		TRY_MEM(method);
		memcpy(method, text, ntext);
		h->method = method;
		return CLV_OK;
	}
	if (name[0] == ':')
		return CLV_OK;
	return http_field_add(h, &x->arena, name, nname, text, ntext);
}

static int on_header(nghttp2_session *h2, const nghttp2_frame *f, const uint8_t *name, size_t nname,
                     const uint8_t *text, size_t ntext, uint8_t flags, void *user)
{
	exchange *x = of_stream(h2, f->hd.stream_id);
	(void)flags, (void)user;
	if (!x || f->headers.cat != NGHTTP2_HCAT_REQUEST)
		return 0;
	clv_status st = take_field(x, (const char *)name, nname, (const char *)text, ntext);
	return st == CLV_OK ? 0 : NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
}

static void begin_body(exchange *x)
{
	const char *length = http_field_of(&x->head, "content-length");
	if (!*x->head.path || !*x->head.method)
		answer_error(x, 400, "the request has no path or no method");
	else if (length && !http_number(length, &x->head.length))
		answer_error(x, 400, "the length of the body is no number");
	else if (x->head.length > x->s->o.max_body)
		answer_error(x, 413, "the body is larger than the server takes");
	x->grpc = grpc_is(&x->head);
	if (x->grpc && !x->out.status)
		grpc_begin(x);
}

static void answer_now(connection *c, exchange *x)
{
	if (!x->working && x->out.status)
		http2_answer(c, x);
}

static void end_request(connection *c, exchange *x)
{
	x->whole = true;
	if (x->out.status && !x->streaming) {
		answer_now(c, x);
		return;
	}
	if (x->grpc)
		grpc_route(x);
	else
		route(x);
	if (!x->streaming)
		answer_now(c, x);
}

static int on_frame(nghttp2_session *h2, const nghttp2_frame *f, void *user)
{
	connection *c = user;
	exchange *x = of_stream(h2, f->hd.stream_id);
	if (!x || (f->hd.type != NGHTTP2_HEADERS && f->hd.type != NGHTTP2_DATA))
		return 0;
	if (f->hd.type == NGHTTP2_HEADERS && f->headers.cat == NGHTTP2_HCAT_REQUEST) {
		begin_body(x);
		answer_now(c, x);
	}
	if (f->hd.flags & NGHTTP2_FLAG_END_STREAM)
		end_request(c, x);
	else if (x->streaming)
		grpc_stream_more(x);
	return 0;
}

static int on_data(nghttp2_session *h2, uint8_t flags, int32_t stream, const uint8_t *at, size_t n, void *user)
{
	connection *c = user;
	exchange *x = of_stream(h2, stream);
	(void)flags;
	if (!x)
		return 0;
	if (x->out.status && !x->streaming)
		return 0;
	time_moved(&x->since, &x->moved, n);
	clv_status st = x->streaming ? grpc_stream_data(x, at, n) : body_add(x, at, n);
	if (st == CLV_OK)
		return 0;
	if (x->at.answered) { /* a call that was begun */
		nghttp2_submit_rst_stream(h2, NGHTTP2_FLAG_NONE, stream, NGHTTP2_ENHANCE_YOUR_CALM);
		return 0;
	}
	body_refuse(x, st);
	exchange_refused(x);
	x->streaming = false;
	answer_now(c, x);
	return 0;
}

static void forget(connection *c, exchange *x)
{
	exchange **at = &c->x;
	while (*at && *at != x)
		at = &(*at)->sibling;
	if (*at)
		*at = x->sibling;
	x->sibling = NULL;
	x->c = NULL;
}

/* Also where the client took it back: work that was not begun is then not done. */
static int on_close(nghttp2_session *h2, int32_t stream, uint32_t error, void *user)
{
	exchange *x = of_stream(h2, stream);
	(void)error;
	if (!x)
		return 0;
	nghttp2_session_set_stream_user_data(h2, stream, NULL);
	forget(user, x);
	grpc_stream_end(x);
	if (queue_take_back(x))
		exchange_free(x);
	return 0;
}

/* It is released once the client is told. */
void http2_reset(connection *c, exchange *x)
{
	x->since = clock_nanoseconds();
	nghttp2_submit_rst_stream(c->h2, NGHTTP2_FLAG_NONE, x->stream, NGHTTP2_CANCEL);
}

/* ---- sessions ----------------------------------------------------------------------------------------------------------------------- */

static int set_up(connection *c, nghttp2_session_callbacks *calls, nghttp2_option *options)
{
	nghttp2_session *h2 = NULL;
	const nghttp2_settings_entry settings[] = {
		{NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, c->s->o.max_streams},
		{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, STREAM_WINDOW},
		{NGHTTP2_SETTINGS_MAX_FRAME_SIZE, FRAME},
		{NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, c->s->o.max_head},
	};
	nghttp2_session_callbacks_set_on_begin_headers_callback(calls, on_begin_headers);
	nghttp2_session_callbacks_set_on_header_callback(calls, on_header);
	nghttp2_session_callbacks_set_on_frame_recv_callback(calls, on_frame);
	nghttp2_session_callbacks_set_on_data_chunk_recv_callback(calls, on_data);
	nghttp2_session_callbacks_set_on_stream_close_callback(calls, on_close);
	nghttp2_session_callbacks_set_on_frame_send_callback(calls, on_sent);
	nghttp2_option_set_max_settings(options, 32);
	nghttp2_option_set_max_outbound_ack(options, 1000);
	int e = nghttp2_session_server_new2(&h2, calls, c, options);
	if (!e)
		e = nghttp2_submit_settings(h2, NGHTTP2_FLAG_NONE, settings, sizeof settings / sizeof *settings);
	if (!e)
		e = nghttp2_session_set_local_window_size(h2, NGHTTP2_FLAG_NONE, 0, WINDOW);
	c->h2 = h2;
	return e;
}

clv_status http2_open(connection *c)
{
	nghttp2_session_callbacks *calls = NULL;
	nghttp2_option *options = NULL;
	int e = nghttp2_session_callbacks_new(&calls);
	if (!e)
		e = nghttp2_option_new(&options);
	if (!e)
		e = set_up(c, calls, options);
	nghttp2_session_callbacks_del(calls);
	nghttp2_option_del(options);
	return e ? fail_nomem() : CLV_OK;
}

void http2_read(connection *c)
{
	size_t n = c->in_n;
	c->in_n = 0;
	if (c->sent == c->out.n)
		c->since = clock_nanoseconds(), c->moved = 0;
	if (nghttp2_session_mem_recv(c->h2, (const uint8_t *)c->in, n) >= 0)
		return;
	nghttp2_submit_goaway(c->h2, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(c->h2),
	                      NGHTTP2_ENHANCE_YOUR_CALM, NULL, 0);
	c->ending = true;
}

/* nghttp2 keeps what it gives only until the next call. */
void http2_fill(connection *c)
{
	strbuf b = STRBUF_INIT;
	nghttp2_session *h2 = c->h2;
	const uint8_t *at;
	ssize_t n = 0;
	char *text;
	for (exchange *x = c->x; x; x = x->sibling)
		if (x->waiting)
			grpc_stream_more(x);
	while (b.n < FILL && (n = nghttp2_session_mem_send(h2, &at)) > 0)
		strbuf_add(&b, (const char *)at, (size_t)n);
	size_t all = b.n;
	if (n < 0 || b.failed) {
		strbuf_free(&b);
		c->dead = true;
		return;
	}
	if (!all) {
		c->ending |= !nghttp2_session_want_read(h2) && !nghttp2_session_want_write(h2);
		return;
	}
	c->since = clock_nanoseconds();
	c->moved = 0;
	if (strbuf_take(&b, &text) == CLV_OK)
		connection_send(c, text, all, mem_free, text);
	else
		c->dead = true;
}

/* First that there will be an end, then, once requests that were on their way then have come, which was the last. */
void http2_drain(connection *c)
{
	enum { ON_THEIR_WAY = 500000000 };
	int64_t now = clock_nanoseconds();
	if (!c->h2 || c->last_told)
		return;
	if (!c->drained) {
		nghttp2_submit_shutdown_notice(c->h2);
		c->drained = now;
	}
	if (!c->s->draining || now - c->drained < ON_THEIR_WAY)
		return;
	c->last_told = true;
	nghttp2_submit_goaway(c->h2, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(c->h2), NGHTTP2_NO_ERROR,
	                      NULL, 0);
}

void http2_close(connection *c)
{
	nghttp2_session_del(c->h2);
	c->h2 = NULL;
}
