/* One request with its body and its answer. */
#include "serve/serve.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "serve/grpc.h"
#include "serve/oip.h"

/* ---- exchanges --------------------------------------------------------------------------------------------------------- */

clv_status exchange_new(server *s, exchange **out)
{
	exchange *x = mem_alloc(sizeof *x);
	TRY_MEM(x);
	x->s = s;
	x->out.json = -1;
	x->token = NONE;
	x->since = x->at.begun = clock_nanoseconds();
	snprintf(x->id, sizeof x->id, "%08llx-%llu", (unsigned long long)s->started & 0xffffffff,
	         (unsigned long long)++s->next_id);
	s->nexchanges++;
	*out = x;
	return CLV_OK;
}

bool server_hold(server *s, size_t n)
{
	uint64_t before = atomic_fetch_add(&s->bytes_held, n), most = (uint64_t)s->o.max_memory;
	if (n <= most && before <= most - n)
		return true;
	atomic_fetch_sub(&s->bytes_held, n);
	return false;
}

void server_owe(server *s, size_t n)
{
	atomic_fetch_add(&s->bytes_held, n);
}

void server_release(server *s, size_t n)
{
	atomic_fetch_sub(&s->bytes_held, n);
}

clv_status exchange_hold(exchange *x, size_t n)
{
	if (n > (uint64_t)x->s->o.max_memory) {
		answer_error(x, 413, "the request needs %zu bytes of memory, the server gives at most %lld to all together", n,
		             (long long)x->s->o.max_memory);
		return CLV_E_LIMIT;
	}
	if (!server_hold(x->s, n))
		return fail(CLV_E_NOMEM, "the server has no room for this request now");
	x->held += n;
	return CLV_OK;
}

static void body_free(exchange *x)
{
	server_release(x->s, x->body.n);
	tensor_memory_unref(x->body.memory);
	x->body = (request_body){0};
}

void infer_free(infer *c)
{
	for (uint32_t i = 0; i < c->inputs.n; i++)
		clv_tensor_free(c->inputs.at[i].tensor);
	for (uint32_t i = 0; c->results && i < c->nresults; i++)
		clv_tensor_free(c->results[i]);
	mem_free(c->results);
	clv_boundary_free(c->boundary);
	clv_boundary_free(c->crossing);
	vec_free(&c->inputs);
	vec_free(&c->outputs);
	*c = (infer){0};
}

void exchange_refused(exchange *x)
{
	infer_free(&x->call);
	body_free(x);
	size_t price = x->stream ? STREAM_PRICE : 0; /* the stream is still there */
	server_release(x->s, x->held - price);
	x->held = price;
}

void exchange_free(exchange *x)
{
	if (!x)
		return;
	x->s->nexchanges--;
	exchange_refused(x);
	server_release(x->s, x->held);
	answer_clear(&x->out);
	served_free(x->served);
	http_head_free(&x->head);
	arena_free(&x->arena);
	mem_free(x);
}

/* ---- bodies ------------------------------------------------------------------------------------------------------------ */

enum { BODY_FIRST = 64 * 1024 };

/* A body of known length has its memory at once: pages that nothing was written to take none. */
clv_status body_reserve(exchange *x, size_t more, int64_t total)
{
	request_body *b = &x->body;
	tensor_memory *m;
	size_t need = b->n + more, cap = b->cap * 2;
	if (b->memory && need <= b->cap)
		return CLV_OK;
	cap = cap < BODY_FIRST ? BODY_FIRST : cap;
	cap = total >= 0 && (size_t)total >= need ? (size_t)total : cap < need ? need : cap;
	TRY(tensor_memory_new(cap + b->lead, &m));
	if (b->n)
		memcpy((char *)m->base + b->lead, body_at(b), b->n);
	tensor_memory_unref(b->memory);
	b->memory = m;
	b->cap = cap;
	return CLV_OK;
}

void exchange_owe(exchange *x, size_t n)
{
	server_owe(x->s, n);
	x->held += n;
}

void exchange_sent(exchange *x, size_t n)
{
	n = n < x->held ? n : x->held;
	server_release(x->s, n);
	x->held -= n;
}

clv_status body_json(const exchange *x, json_t **root)
{
	enum { MOST = 64 * 1024 }; /* what says what to do is short, and is read while others wait */
	if (x->body.n > MOST)
		return fail(CLV_E_INPUT, "the body may have %d bytes here, and has %zu", MOST, x->body.n);
	return json_read((const char *)body_at(&x->body), x->body.n, "the request", root);
}

static clv_status count_bytes(exchange *x, size_t n)
{
	if ((int64_t)(x->body.n + n) > x->s->o.max_body)
		return fail(CLV_E_LIMIT, "the body is larger than the %lld bytes that one may have",
		            (long long)x->s->o.max_body);
	if (!server_hold(x->s, n))
		return fail(CLV_E_NOMEM, "the server has no room for this request now");
	x->body.n += n;
	return CLV_OK;
}

/* Where tensors start in what comes first decides where the body starts. */
static size_t find_lead(const exchange *x, const uint8_t *at, size_t n)
{
	const char *type = http_field_of(&x->head, "content-type");
	uint64_t header;
	if (x->grpc)
		return grpc_body_lead(x, at, n);
	if (!http_has_word(type, ST_MEDIA_TYPE) || n < sizeof header)
		return body_lead_for(&x->head);
	memcpy(&header, at, sizeof header); /* little endian */
	return (size_t)(-(header + sizeof header) % 64);
}

clv_status body_add(exchange *x, const void *at, size_t n)
{
	enum { STRANGER_MOST = 4096 }; /* requests that need no token are short */
	if (x->body.n + n > STRANGER_MOST && x->token == NONE && !x->outer && !tokens_know(x))
		return CLV_E_LIMIT;
	if (!x->body.memory)
		x->body.lead = find_lead(x, at, n);
	TRY(body_reserve(x, n, x->head.length <= x->s->o.max_body ? x->head.length : -1));
	uint8_t *to = body_at(&x->body) + x->body.n;
	TRY(count_bytes(x, n));
	if (n && to != at)
		memcpy(to, at, n);
	return CLV_OK;
}

void body_refuse(exchange *x, clv_status st)
{
	if (st == CLV_E_LIMIT)
		answer_error(x, 413, "%s", status_message());
	else if (st == CLV_E_NOMEM)
		answer_exhausted(x, status_message());
	else
		answer_status(x, st);
}

void body_drop(exchange *x, size_t n)
{
	request_body *b = &x->body;
	tensor_memory *m;
	size_t left = b->n - n, cap = left > BODY_FIRST ? left : BODY_FIRST;
	server_release(x->s, n);
	b->n = left;
	if (!left) {
		body_free(x);
	} else if (b->cap / 4 > cap && tensor_memory_new(cap, &m) == CLV_OK) { /* what was counted is what is there */
		memcpy(m->base, body_at(b) + n, left);
		tensor_memory_unref(b->memory);
		*b = (request_body){.memory = m, .n = left, .cap = cap};
	} else {
		memmove(body_at(b), body_at(b) + n, left);
	}
}

enum { INFLATE_STEP = 256 * 1024 };

static clv_status inflate_more(void *ctx, size_t written, uint8_t **at, size_t *n)
{
	exchange *x = ctx;
	TRY(count_bytes(x, written));
	if (!at)
		return CLV_OK;
	TRY(body_reserve(x, 1, -1));
	*at = body_at(&x->body) + x->body.n;
	*n = x->body.cap - x->body.n;
	*n = *n < INFLATE_STEP ? *n : INFLATE_STEP;
	return CLV_OK;
}

static void inflate_work(exchange *x)
{
	request_body packed = x->body;
	const uint8_t *from = x->grpc ? x->message : body_at(&packed);
	size_t n = x->grpc ? x->nmessage : packed.n;
	x->body = (request_body){.lead = packed.lead};
	clv_status st = inflate_bytes(x->coding, from, n, inflate_more, x);
	server_release(x->s, packed.n);
	tensor_memory_unref(packed.memory);
	x->message = body_at(&x->body);
	x->nmessage = x->body.n;
	if (st != CLV_OK)
		body_refuse(x, st);
}

void body_inflate(exchange *x, work_fn then)
{
	x->work = inflate_work;
	x->then = then;
	queue_add(x);
}

size_t body_lead_for(const http_head *h)
{
	const char *text = http_field_of(h, "inference-header-content-length");
	int64_t n;
	return text && http_number(text, &n) && n < (1 << 30) ? (size_t)((64 - n % 64) % 64) : 0;
}

/* ---- answers ------------------------------------------------------------------------------------------------------------ */

void answer_clear(answer *a)
{
	for (uint32_t i = 0; i < a->body.n; i++)
		if (a->body.at[i].drop)
			a->body.at[i].drop(a->body.at[i].ctx);
	vec_free(&a->body);
	a->n = 0;
}

clv_status answer_piece(answer *a, const void *at, size_t n, void (*drop)(void *), void *ctx)
{
	clv_status st = vec_push(&a->body, ((piece){at, n, drop, ctx}));
	if (st == CLV_OK)
		a->n += n;
	else if (drop)
		drop(ctx);
	return st;
}

void answer_empty(exchange *x, unsigned status)
{
	answer_clear(&x->out);
	x->out.status = status;
	x->out.type = NULL;
}

void answer_text(exchange *x, unsigned status, const char *type, strbuf *text)
{
	char *at;
	size_t n = text->n;
	answer_empty(x, status);
	if (strbuf_take(text, &at) != CLV_OK || answer_piece(&x->out, at, n, mem_free, at) != CLV_OK) {
		answer_empty(x, 503);
		return;
	}
	x->out.type = type;
}

/* The first characters of a message, which may list what the client has sent. */
static const char *shorten(exchange *x, const char *message)
{
	enum { LONGEST = 1000 };
	size_t n = strlen(message);
	bool cut = n > LONGEST;
	for (n = cut ? LONGEST : n; cut && ((unsigned char)message[n] & 0xc0) == 0x80; n--)
		;
	char *s = arena_alloc(&x->arena, n + 4);
	if (s)
		snprintf(s, n + 4, "%.*s%s", (int)n, message, cut ? "..." : "");
	return s ? s : "";
}

static void answer_message(exchange *x, unsigned status, const char *message)
{
	strbuf b = STRBUF_INIT;
	if (x->out.status >= 400)
		return;
	message = shorten(x, message);
	x->out.json = -1;
	x->out.error = message;
	if (status == 429 || status == 503)
		x->out.retry = 1;
	strbuf_puts(&b, "{\"error\":");
	strbuf_json(&b, message, strlen(message));
	strbuf_putc(&b, '}');
	answer_text(x, status, "application/json", &b);
}

void answer_error(exchange *x, unsigned status, const char *fmt, ...)
{
	char message[512];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(message, sizeof message, fmt, ap);
	va_end(ap);
	answer_message(x, status, message);
}

void answer_exhausted(exchange *x, const char *message)
{
	answer_message(x, 503, message);
	x->out.exhausted = true;
}

/* Statuses whose messages are about the server itself do not go to clients: they may name files. */
bool answer_status(exchange *x, clv_status st)
{
	if (st == CLV_OK || x->out.status >= 400)
		return st == CLV_OK;
	switch (st) {
	case CLV_E_INVALID:
	case CLV_E_PARSE:
	case CLV_E_INPUT:
	case CLV_E_LAYOUT:
	case CLV_E_GUARD:
	case CLV_E_UNSUPPORTED:
	case CLV_E_OVERFLOW: answer_message(x, 400, status_message()); break;
	case CLV_E_NOT_FOUND: answer_message(x, 404, status_message()); break;
	case CLV_E_LIMIT: answer_exhausted(x, "the run takes more time or memory than the server allows"); break;
	case CLV_E_NOMEM: answer_exhausted(x, "the server has no memory for this request now"); break;
	case CLV_E_CANCELLED: answer_message(x, 503, "the run was stopped"); break;
	default:
		server_say(x->s, "%s: %s", x->id, status_message());
		answer_error(x, 500, "the run failed (%s); the log of the server says why, under request %s",
		             clv_status_name(st), x->id);
	}
	return false;
}

/* After a run: an operator takes numbers that it refuses (an index that is too large) from the request. */
bool answer_run(exchange *x, clv_status st)
{
	if (st != CLV_E_TORCH)
		return answer_status(x, st);
	answer_message(x, 400, status_message());
	return false;
}

/* ---- what goes with them ------------------------------------------------------------------------------------------------- */

enum { SAMPLE = 64 * 1024 };

static clv_status deflate_piece(deflater *d, const piece *p, size_t skip, bool last, strbuf *b)
{
	const char *at = p->at;
	if (skip)
		strbuf_add(b, at, skip);
	return deflate_add(d, at + skip, p->n - skip, last, b);
}

/* Numbers as they come out of a model often do not become smaller: then it ends after the first of them. It also ends when the
   client has left. */
static clv_status deflate_pieces(deflater *d, const exchange *x, size_t skip, strbuf *b, bool *saves)
{
	const answer *a = &x->out;
	size_t seen = 0;
	*saves = true;
	for (uint32_t i = 0; i < a->body.n && *saves; i++, skip = 0) {
		piece p = a->body.at[i];
		while (p.n > SAMPLE && *saves) {
			TRY(deflate_piece(d, &(piece){.at = p.at, .n = SAMPLE}, skip, false, b));
			seen += SAMPLE;
			skip = 0;
			p.at = (const char *)p.at + SAMPLE;
			p.n -= SAMPLE;
			*saves = b->n < seen - seen / 5 && !atomic_load(&x->gone);
		}
		TRY(deflate_piece(d, &p, skip, i + 1 == a->body.n, b));
		seen += p.n;
	}
	*saves = *saves && b->n < a->n;
	return CLV_OK;
}

clv_status answer_deflate(exchange *x, size_t skip)
{
	answer *a = &x->out;
	strbuf b = STRBUF_INIT;
	deflater *d;
	bool saves = false;
	char *at = NULL;
	if (!x->reply || a->n <= skip)
		return CLV_OK;
	TRY(deflate_open(x->reply, &d));
	clv_status st = deflate_pieces(d, x, skip, &b, &saves);
	deflate_close(d);
	size_t n = b.n;
	if (st == CLV_OK && saves)
		st = strbuf_take(&b, &at);
	strbuf_free(&b);
	if (st != CLV_OK || !at)
		return st;
	answer_clear(a);
	a->coding = x->reply;
	return answer_piece(a, at, n, mem_free, at);
}

bool answer_timing(const exchange *x, char out[TIMING_MOST])
{
	const moments *at = &x->at;
	if (!at->queued || at->taken < at->queued || at->ran < at->taken)
		return false;
	snprintf(out, TIMING_MOST, "queue;dur=%.3f, compute;dur=%.3f", (double)(at->taken - at->queued) / 1e6,
	         (double)(at->ran - at->taken) / 1e6);
	return true;
}
