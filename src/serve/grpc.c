/* gRPC: frames, codes, and which function answers which method. What a method says is in oip_grpc.c. */
#include "serve/grpc.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "net/protobuf.h"
#include "serve/oip.h"

enum { FRAME_HEAD = 5 };

bool grpc_is(const http_head *h)
{
	const char *type = http_field_of(h, "content-type");
	return type && strncmp(type, "application/grpc", 16) == 0 && (!type[16] || strchr("+; ", type[16]));
}

grpc_code grpc_code_of(unsigned status)
{
	switch (status) {
	case 200: return GRPC_OK;
	case 400: return GRPC_INVALID;
	case 401: return GRPC_UNAUTHENTICATED;
	case 403: return GRPC_FORBIDDEN;
	case 404: return GRPC_NOT_FOUND;
	case 405:
	case 415:
	case 501: return GRPC_UNIMPLEMENTED;
	case 409: return GRPC_PRECONDITION;
	case 413:
	case 429: return GRPC_EXHAUSTED;
	case 503: return GRPC_UNAVAILABLE;
	case 504: return GRPC_DEADLINE;
	default: return GRPC_INTERNAL;
	}
}

const char *grpc_message_of(exchange *x)
{
	const char *from = x->out.error ? x->out.error : "";
	char *out = arena_alloc(&x->arena, 3 * strlen(from) + 1), *to = out;
	if (!out)
		return "";
	for (; *from; from++) {
		unsigned char c = (unsigned char)*from;
		if (c >= ' ' && c < 0x7f && c != '%')
			*to++ = (char)c;
		else
			to += sprintf(to, "%%%02X", c);
	}
	return out;
}

/* 20m, 5S: a number of at most 8 digits and a unit. */
static void read_timeout(exchange *x)
{
	static const struct {
		char unit;
		double microseconds;
	} units[] = {{'H', 3600e6}, {'M', 60e6}, {'S', 1e6}, {'m', 1e3}, {'u', 1}, {'n', 1e-3}};
	const char *text = http_field_of(&x->head, "grpc-timeout");
	char digits[9];
	int64_t n;
	size_t k = text ? strlen(text) : 0;
	if (k < 2 || k > 9)
		return;
	memcpy(digits, text, k - 1);
	digits[k - 1] = '\0';
	for (size_t i = 0; http_number(digits, &n) && i < sizeof units / sizeof *units; i++)
		if (units[i].unit == text[k - 1]) {
			double us = (double)n * units[i].microseconds;
			infer_deadline(x, us < 1 ? 1 : us > 1e15 ? (int64_t)1e15 : (int64_t)us);
		}
}

void grpc_begin(exchange *x)
{
	read_timeout(x);
	if (!x->head.method || strcmp(x->head.method, "POST") != 0)
		answer_error(x, 405, "calls of gRPC are POST");
	else if (x->c->role != ROLE_ALL && x->c->role != ROLE_GRPC)
		answer_error(x, 501, "this port answers no gRPC, another one does");
	else if (!coding_of(http_field_of(&x->head, "grpc-encoding"), &x->reply))
		answer_error(x, 501, "messages are taken plain, as gzip or as deflate");
	else if (grpc_method_streams(x->head.path) && tokens_know(x))
		x->streaming = true;
}

/* The only message of a request. */
static clv_status read_message(exchange *x)
{
	const uint8_t *at = body_at(&x->body);
	if (x->body.n < FRAME_HEAD)
		return fail(CLV_E_PARSE, "the call has no message");
	uint64_t n = (uint64_t)at[1] << 24 | (uint64_t)at[2] << 16 | (uint64_t)at[3] << 8 | at[4];
	if (at[0] > 1 || (at[0] && !x->reply))
		return fail(CLV_E_PARSE, "the message is compressed, and grpc-encoding does not say how");
	if (n != x->body.n - FRAME_HEAD)
		return fail(CLV_E_PARSE, "the call has not exactly one message, or lies about its length");
	x->message = at + FRAME_HEAD;
	x->nmessage = (size_t)n;
	x->coding = at[0] ? x->reply : CODING_NONE;
	return CLV_OK;
}

/* Whoever is not known has nothing inflated. */
static void call_plain(exchange *x)
{
	if (!x->coding)
		grpc_call(x);
	else if (x->in_stream || tokens_know(x))
		body_inflate(x, grpc_call);
}

void grpc_route(exchange *x)
{
	if (x->streaming) {
		x->half_closed = true;
		grpc_stream_more(x);
		return;
	}
	if (answer_status(x, read_message(x)))
		call_plain(x);
}

/* An answer of one message in its frame. */
clv_status grpc_deflate(exchange *x)
{
	TRY(answer_deflate(x, FRAME_HEAD));
	if (!x->out.coding)
		return CLV_OK;
	uint8_t *at = (uint8_t *)(uintptr_t)x->out.body.at[0].at;
	size_t n = x->out.n - FRAME_HEAD;
	at[0] = 1;
	for (unsigned i = 1; i < FRAME_HEAD; i++)
		at[i] = (uint8_t)(n >> 8 * (FRAME_HEAD - 1 - i));
	return CLV_OK;
}

size_t grpc_body_lead(const exchange *x, const uint8_t *at, size_t n)
{
	size_t head = x->in_stream ? 0 : FRAME_HEAD;
	if (n <= head || x->coding || (head && at[0]))
		return 0;
	pb_reader r = pb_read(at + head, n - head);
	uint64_t key, bytes;
	while (r.at < r.end && pb_varint(&r, &key) == CLV_OK && (key & 7) == PB_BYTES && pb_varint(&r, &bytes) == CLV_OK) {
		if (key >> 3 == 7) /* raw_input_contents */
			return (size_t)(64 - (r.at - at) % 64) % 64;
		if (bytes > (uint64_t)(r.end - r.at))
			break;
		r.at += bytes;
	}
	return 0;
}

void grpc_put_frame(strbuf *b, size_t n)
{
	const unsigned char head[FRAME_HEAD] = {0, (unsigned char)(n >> 24), (unsigned char)(n >> 16),
	                                        (unsigned char)(n >> 8), (unsigned char)n};
	strbuf_add(b, (const char *)head, FRAME_HEAD);
}

/* ---- messages both ways -------------------------------------------------------------------------------------------------------- */

clv_status grpc_stream_data(exchange *x, const uint8_t *at, size_t n)
{
	if (x->body.n == x->taken) { /* a message begins */
		x->since = clock_nanoseconds();
		x->moved = 0;
	}
	return body_add(x, at, n);
}

static clv_status begin_message(exchange *x, const uint8_t *at, size_t n, bool packed)
{
	exchange *y;
	TRY(exchange_new(x->s, &y));
	y->outer = x;
	y->grpc = y->in_stream = true;
	y->coding = packed ? x->reply : CODING_NONE;
	y->reply = x->reply;
	y->head.path = x->head.path;
	y->head.length = (int64_t)n;
	y->token = x->token;
	x->inner = y;
	clv_status st = body_add(y, at, n);
	y->message = body_at(&y->body);
	y->nmessage = n;
	if (answer_status(y, st))
		call_plain(y);
	return CLV_OK;
}

/* Messages are copied when they are taken. What is left is moved no more often than it is long. */
static void drop_taken(exchange *x)
{
	if (x->taken < x->body.n - x->taken)
		return;
	body_drop(x, x->taken);
	x->taken = 0;
}

/* Ends the call with an error: what it has not answered yet stays without an answer. */
static void end_call(exchange *x)
{
	x->streaming = false;
	http2_stream(x->c, x);
}

static void put_answer(exchange *y)
{
	exchange *x = y->outer;
	uint32_t was = x->out.body.n;
	y->outer = NULL;
	x->inner = NULL;
	y->at.answered = clock_nanoseconds();
	server_log(x->s, y);
	clv_status st = grpc_write_stream(y, &x->out.body);
	for (uint32_t i = was; i < x->out.body.n; i++) {
		x->unsent += x->out.body.at[i].n;
		exchange_owe(x, x->out.body.at[i].n);
	}
	answer_clear(&y->out);
	exchange_free(y);
	if (st != CLV_OK)
		end_call(x);
	else
		http2_stream(x->c, x);
}

/* A client that does not read its answers gets no more of them. */
void grpc_stream_more(exchange *x)
{
	enum { UNSENT_MOST = 1 << 20 };
	for (;;) {
		x->waiting = x->streaming && x->unsent >= UNSENT_MOST;
		if (!x->streaming || x->inner || x->waiting)
			return;
		const uint8_t *at = body_at(&x->body) + x->taken;
		size_t left = x->body.n - x->taken, n = 0;
		if (left >= FRAME_HEAD)
			n = (size_t)at[1] << 24 | (size_t)at[2] << 16 | (size_t)at[3] << 8 | at[4];
		bool whole = left >= FRAME_HEAD && left - FRAME_HEAD >= n;
		if (!whole) {
			if (x->half_closed)
				end_call(x);
			return;
		}
		x->taken += FRAME_HEAD + n;
		if (at[0] > 1 || (at[0] && !x->reply) || begin_message(x, at + FRAME_HEAD, n, at[0]) != CLV_OK) {
			end_call(x);
			return;
		}
		drop_taken(x);
		if (!x->inner->working)
			put_answer(x->inner);
	}
}

void grpc_stream_answer(exchange *y)
{
	exchange *x = y->outer;
	put_answer(y);
	grpc_stream_more(x);
}

bool grpc_watch(exchange *x)
{
	uint32_t now = grpc_health(x->s, x->watch);
	strbuf b = STRBUF_INIT;
	char *text;
	if (!x->streaming || (x->told == now + 1 && !x->s->draining))
		return false;
	if (x->told != now + 1) {
		grpc_put_frame(&b, 2);
		strbuf_putc(&b, 1 << 3);
		strbuf_putc(&b, (char)now);
		size_t n = b.n;
		if (strbuf_take(&b, &text) != CLV_OK || answer_piece(&x->out, text, n, mem_free, text) != CLV_OK)
			return false;
		x->told = now + 1;
	}
	if (x->s->draining)
		x->streaming = false;
	http2_stream(x->c, x);
	return true;
}

void grpc_stream_end(exchange *x)
{
	exchange *y = x->inner;
	x->inner = NULL;
	if (!y)
		return;
	y->outer = NULL;
	if (queue_take_back(y))
		exchange_free(y);
}
