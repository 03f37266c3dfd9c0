/* Requests: connections that are kept and shared by threads, and tries that are repeated where that is safe.
 *
 * Inference changes nothing on the server, so a request may be sent again after the connection broke, and after an answer that
 * says "not now" (429, 503). It is not sent again when it was too late, when the server refused it, or when part of an answer had
 * come: what answers once in a wrong way does so again. Steps of training have numbers, so they may be sent again in that case
 * too, and are sent until it is their turn (train.c). */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "file/json.h"
#include "remote/remote.h"

enum { READ_AT_ONCE = 64 * 1024, INTERIM_MOST = 8 };

clv_status remote_failed(const clv_remote *r, clv_status st)
{
	const char *host = r->url.host;
	bool v6 = strchr(host, ':');
	return st == CLV_OK || st == CLV_E_NOMEM
	           ? st
	           : fail_more(st, "server %s%s%s:%s", v6 ? "[" : "", host, v6 ? "]" : "", r->url.port);
}

void remote_answer_free(remote_answer *a)
{
	mem_free(a->body);
	*a = (remote_answer){0};
}

/* One try. */
typedef struct attempt {
	clv_remote *r;
	const remote_request *q;
	remote_link *link;
	double deadline;
	bool kept;     /* the connection had an answer before */
	bool answered; /* something came back */
	char in[READ_AT_ONCE];
	size_t n; /* bytes there that were not looked at */
} attempt;

/* ---- connections ------------------------------------------------------------------------------------------------ */

static struct timespec moment_of(double seconds)
{
	struct timespec t = {.tv_sec = (time_t)seconds};
	t.tv_nsec = (long)((seconds - floor(seconds)) * 1e9);
	return t;
}

/* A connection that is idle, or leave to open one; waits while all are in use. */
static clv_status take_turn(clv_remote *r, double deadline, remote_link **idle)
{
	clv_status st = CLV_OK;
	pthread_mutex_lock(&r->lock);
	while (r->nidle == 0 && r->nopen >= (uint32_t)r->o.connections && st == CLV_OK) {
		struct timespec until = moment_of(deadline);
		if (pthread_cond_timedwait(&r->free_again, &r->lock, &until) != 0 && clock_seconds() >= deadline)
			st = fail(CLV_E_IO, "all %d connections were in use for too long", r->o.connections);
	}
	*idle = st == CLV_OK && r->nidle ? r->idle[--r->nidle] : NULL;
	r->nopen += st == CLV_OK && !*idle;
	pthread_mutex_unlock(&r->lock);
	return st;
}

/* link NULL: it is gone. */
static void end_turn(clv_remote *r, remote_link *link)
{
	pthread_mutex_lock(&r->lock);
	if (link)
		r->idle[r->nidle++] = link;
	else
		r->nopen--;
	pthread_cond_signal(&r->free_again);
	pthread_mutex_unlock(&r->lock);
}

static clv_status find_link(attempt *t, clv_remote_times *times)
{
	clv_remote *r = t->r;
	TRY(take_turn(r, t->deadline, &t->link));
	t->kept = t->link != NULL;
	if (t->link && link_is_quiet(t->link))
		return CLV_OK;
	link_close(t->link);
	t->link = NULL;
	t->kept = false;
	double start = clock_seconds(), until = start + r->o.connect_timeout;
	clv_status st = link_open(&r->url, r->tls, until < t->deadline ? until : t->deadline, &t->link);
	times->connect += clock_seconds() - start;
	if (st != CLV_OK)
		end_turn(r, NULL);
	return st;
}

/* ---- one request ------------------------------------------------------------------------------------------------ */

static clv_status put_request(const attempt *t, size_t bytes, strbuf *b)
{
	const clv_remote *r = t->r;
	bool v6 = strchr(r->url.host, ':') != NULL;
	strbuf_printf(b, "%s %s/v2/models/%s%s HTTP/1.1\r\n", t->q->method, r->url.base, r->url.model, t->q->path);
	strbuf_printf(b, "Host: %s%s%s:%s\r\nUser-Agent: cleave/%s\r\n", v6 ? "[" : "", r->url.host, v6 ? "]" : "",
	              r->url.port, CLV_VERSION);
	if (r->token)
		strbuf_printf(b, "Authorization: Bearer %s\r\n", r->token);
	if (t->q->nbody)
		strbuf_printf(b, "Content-Length: %zu\r\n", bytes);
	strbuf_puts(b, t->q->fields);
	strbuf_puts(b, "\r\n");
	return b->failed ? fail_nomem() : CLV_OK;
}

static clv_status send_request(attempt *t, clv_remote_times *times)
{
	strbuf head = STRBUF_INIT;
	size_t bytes = 0;
	for (uint32_t i = 0; i < t->q->nbody; i++)
		bytes += t->q->body[i].n;
	clv_status st = put_request(t, bytes, &head);
	if (st == CLV_OK)
		st = link_write(t->link, head.at, head.n, t->q->nbody > 0, t->deadline);
	for (uint32_t i = 0; st == CLV_OK && i < t->q->nbody; i++)
		st = link_write(t->link, t->q->body[i].at, t->q->body[i].n, i + 1 < t->q->nbody, t->deadline);
	if (st == CLV_OK)
		times->sent_bytes = (int64_t)(head.n + bytes);
	strbuf_free(&head);
	return st;
}

static void consume(attempt *t, size_t n)
{
	t->n -= n;
	memmove(t->in, t->in + n, t->n);
}

/* More bytes into t->in, which has room. */
static clv_status read_more(attempt *t)
{
	size_t got;
	TRY(link_read(t->link, t->in + t->n, sizeof t->in - t->n, t->deadline, &got));
	if (got == 0)
		return fail(CLV_E_IO, "the server closed the connection before its answer was whole");
	t->answered = true;
	t->n += got;
	return CLV_OK;
}

static clv_status read_one_head(attempt *t, answer_head *out)
{
	size_t n;
	while ((n = http_head_end(t->in, t->n)) == 0) {
		if (t->n >= ANSWER_HEAD_MOST)
			return fail(CLV_E_PARSE, "the head of its answer is too long");
		TRY(read_more(t));
	}
	TRY(answer_head_read(t->in, n, out));
	consume(t, n);
	return CLV_OK;
}

/* Answers such as "100 Continue" come before the real one. */
static clv_status read_head(attempt *t, answer_head *out)
{
	for (int i = 0; i < INTERIM_MOST; i++) {
		TRY(read_one_head(t, out));
		if (out->status >= 200)
			return CLV_OK;
	}
	return fail(CLV_E_PARSE, "it says again and again that an answer will come");
}

/* Memory grows with what has come: a length that is only said costs nothing. */
static clv_status add_body(const attempt *t, remote_answer *a, size_t *room, const char *at, size_t n)
{
	if (a->n + n > (size_t)t->r->o.max_answer)
		return fail(CLV_E_PARSE, "its answer is larger than %lld bytes", (long long)t->r->o.max_answer);
	if (a->n + n > *room) {
		size_t want = *room ? *room * 2 : READ_AT_ONCE;
		want = want < a->n + n ? a->n + n : want;
		char *body = mem_realloc(a->body, want, 1);
		TRY_MEM(body);
		a->body = body;
		*room = want;
	}
	if (n)
		memcpy(a->body + a->n, at, n);
	a->n += n;
	return CLV_OK;
}

static clv_status read_chunked(attempt *t, remote_answer *a)
{
	http_chunks c = {0};
	size_t room = 0, used, data, at = 0;
	bool done = false;
	while (!done) {
		if (at == t->n) {
			t->n = at = 0;
			TRY(read_more(t));
		}
		TRY(http_chunks_read(&c, t->in + at, t->n - at, &used, &data, &done));
		at += used;
		TRY(add_body(t, a, &room, t->in + at - data, data));
	}
	consume(t, at);
	return CLV_OK;
}

static clv_status read_counted(attempt *t, remote_answer *a)
{
	size_t room = 0, want = (size_t)a->head.length;
	if (a->head.length > t->r->o.max_answer)
		return fail(CLV_E_PARSE, "its answer is larger than %lld bytes", (long long)t->r->o.max_answer);
	while (a->n < want) {
		if (t->n == 0)
			TRY(read_more(t));
		size_t n = t->n < want - a->n ? t->n : want - a->n;
		TRY(add_body(t, a, &room, t->in, n));
		consume(t, n);
	}
	return CLV_OK;
}

static clv_status read_rest(attempt *t, remote_answer *a)
{
	size_t room = 0, got;
	a->head.keep = false;
	for (;;) {
		TRY(add_body(t, a, &room, t->in, t->n));
		t->n = 0;
		TRY(link_read(t->link, t->in, sizeof t->in, t->deadline, &got));
		if (got == 0)
			return CLV_OK;
		t->n = got;
	}
}

static clv_status read_answer(attempt *t, remote_answer *a, clv_remote_times *times)
{
	double start = clock_seconds();
	TRY(read_head(t, &a->head));
	times->wait = clock_seconds() - start;
	times->queue = a->head.queue;
	times->compute = a->head.compute;
	if (!a->head.none)
		TRY(a->head.chunked ? read_chunked(t, a) : a->head.length >= 0 ? read_counted(t, a) : read_rest(t, a));
	times->receive = clock_seconds() - start - times->wait;
	times->received_bytes = (int64_t)a->n;
	return CLV_OK;
}

/* A server that refuses a large request may answer and close before it has read all of it. */
static clv_status exchange_on(attempt *t, remote_answer *a, clv_remote_times *times)
{
	double start = clock_seconds();
	clv_status sent = send_request(t, times);
	times->send = clock_seconds() - start;
	if (sent != CLV_OK && clock_seconds() >= t->deadline)
		return sent;
	clv_status st = read_answer(t, a, times);
	if (sent != CLV_OK && st == CLV_OK)
		a->head.keep = false;
	return st;
}

static clv_status try_once(attempt *t, remote_answer *a, clv_remote_times *times)
{
	t->answered = false;
	t->n = 0;
	TRY(find_link(t, times));
	clv_status st = exchange_on(t, a, times);
	bool keep = st == CLV_OK && a->head.keep && t->n == 0;
	if (!keep)
		link_close(t->link);
	end_turn(t->r, keep ? t->link : NULL);
	t->link = NULL;
	if (st != CLV_OK)
		remote_answer_free(a);
	return st;
}

/* ---- errors that a server answers ------------------------------------------------------------------------------- */

/* Without what could steer a terminal. */
static void put_clean(const char *at, size_t n, strbuf *b)
{
	enum { MOST = 400 };
	for (size_t i = 0; i < n && i < MOST; i++)
		strbuf_putc(b, (unsigned char)at[i] < ' ' || (unsigned char)at[i] >= 127 ? '?' : at[i]);
}

/* {"error":"…"}: its text; else the start of the body. */
static void put_reason(const remote_answer *a, strbuf *b)
{
	json_t *root = NULL;
	const char *text = json_read(a->body, a->n, "its answer", &root) == CLV_OK
	                       ? json_plain_string(json_object_get(root, "error"))
	                       : NULL;
	if (text)
		put_clean(text, strlen(text), b);
	else
		put_clean(a->body, a->n, b);
	json_decref(root);
}

static clv_status status_of(unsigned status)
{
	switch (status) {
	case 401:
	case 403: return CLV_E_INVALID;
	case 404: return CLV_E_NOT_FOUND;
	case 408:
	case 429: return CLV_E_IO;
	case 501: return CLV_E_UNSUPPORTED;
	default: return status >= 500 ? CLV_E_IO : status >= 400 ? CLV_E_INPUT : CLV_E_PARSE;
	}
}

static clv_status fail_answer(const clv_remote *r, const remote_answer *a)
{
	strbuf b = STRBUF_INIT;
	unsigned status = a->head.status;
	if (status >= 300 && status < 400)
		return fail(CLV_E_PARSE, "it answers %u, which sends clients elsewhere; they do not go", status);
	strbuf_printf(&b, "it answers %u", status);
	if (status == 401)
		strbuf_puts(&b, r->token ? " (it does not accept the token)" : " (it wants a token)");
	if (a->n) {
		strbuf_puts(&b, ": ");
		put_reason(a, &b);
	}
	return strbuf_fail(status_of(status), &b);
}

/* ---- tries ------------------------------------------------------------------------------------------------------ */

static bool says_not_now(const remote_answer *a)
{
	return a->head.status == 429 || a->head.status == 503;
}

static void sleep_for(double seconds)
{
	struct timespec t = moment_of(seconds);
	while (nanosleep(&t, &t) != 0) {}
}

/* As long as the server says; else 0.1 s, 0.2 s and so on. False: it would end after the deadline. */
static bool wait_for_turn(double said, int try, double deadline)
{
	double wait = said > 0 ? said : 0.1 * (double)(1 << (try < 6 ? try : 6));
	if (clock_seconds() + wait >= deadline)
		return false;
	sleep_for(wait);
	return true;
}

static clv_status ask_in_turn(attempt *t, remote_answer *out, clv_remote_times *times)
{
	int retries = t->r->o.retries;
	for (int try = 0;;) {
		times->tries++;
		clv_status st = try_once(t, out, times);
		if (st == CLV_OK && out->head.status >= 200 && out->head.status < 300)
			return CLV_OK;
		bool later = st == CLV_OK && says_not_now(out), stale = st == CLV_E_IO && t->kept && !t->answered;
		double said = later ? out->head.retry : 0;
		bool broke = st == CLV_E_IO && (!t->answered || t->q->repeat); /* no whole answer came */
		bool in_line = later && t->q->repeat && out->head.status == 503;
		if (st == CLV_OK)
			st = fail_answer(t->r, out);
		bool again = later || (broke && clock_seconds() < t->deadline);
		remote_answer_free(out);
		if (stale)
			continue; /* it had been closed while nobody used it: the next one is new, or was used since */
		if (!again || (try >= retries && !in_line) || !wait_for_turn(said, try, t->deadline))
			return st;
		try++;
	}
}

clv_status remote_ask(clv_remote *r, const remote_request *q, remote_answer *out, clv_remote_times *times)
{
	attempt *t = mem_alloc(sizeof *t);
	TRY_MEM(t);
	t->r = r;
	t->q = q;
	t->deadline = clock_seconds() + (q->limit > 0 && q->limit < r->o.timeout ? q->limit : r->o.timeout);
	*out = (remote_answer){0};
	clv_status st = ask_in_turn(t, out, times);
	mem_free(t);
	return remote_failed(r, st);
}
