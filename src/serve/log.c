/* The log: a line for each request, and for what happens to the server. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/human.h"
#include "base/member.h"
#include "serve/serve.h"

static bool is_on(const server *s)
{
	return strcmp(s->o.log, "off") != 0;
}

static bool is_json(const server *s)
{
	return strcmp(s->o.log, "json") == 0;
}

static void put_time(char out[32])
{
	struct tm t;
	int64_t ms = wall_milliseconds();
	time_t seconds = (time_t)(ms / 1000);
	gmtime_r(&seconds, &t);
	size_t n = strftime(out, 24, "%Y-%m-%dT%H:%M:%S", &t);
	snprintf(out + n, 32 - n, ".%03dZ", (int)(ms % 1000));
}

/* One write, so that lines of several threads do not mix. */
static void put_line(const server *s, strbuf *b)
{
	strbuf_putc(b, '\n');
	if (!b->failed)
		(void)!write(s->o.log_fd, b->at, b->n);
	strbuf_free(b);
}

void server_say(server *s, const char *fmt, ...)
{
	char text[1024], when[32];
	strbuf b = STRBUF_INIT;
	va_list ap;
	if (!is_on(s))
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	put_time(when);
	if (is_json(s)) {
		member_open(&b, NULL, '{');
		member_text(&b, "time", when);
		member_text(&b, "message", text);
		strbuf_putc(&b, '}');
	} else {
		strbuf_printf(&b, "%s ", when);
		strbuf_plain(&b, text);
	}
	put_line(s, &b);
}

static double ms_between(int64_t from, int64_t to)
{
	return from && to > from ? (double)(to - from) / 1e6 : 0;
}

void server_log(server *s, const exchange *x)
{
	char when[32];
	strbuf b = STRBUF_INIT;
	const char *method = x->head.method ? x->head.method : "-", *path = x->head.path ? x->head.path : "-";
	double all = ms_between(x->at.begun, x->at.answered), waited = ms_between(x->at.queued, x->at.taken),
		   run = ms_between(x->at.ready, x->at.ran);
	metrics_count(s, x);
	if (!is_on(s))
		return;
	put_time(when);
	if (is_json(s)) {
		member_open(&b, NULL, '{');
		member_text(&b, "time", when);
		member_text(&b, "request", x->id);
		member_text(&b, "method", method);
		member_text(&b, "path", path);
		member_int(&b, "status", x->out.status);
		member_int(&b, "bytes_in", (int64_t)x->body.n);
		member_int(&b, "bytes_out", (int64_t)x->out.n);
		member_number(&b, "ms", all);
		member_number(&b, "queue_ms", waited);
		member_number(&b, "run_ms", run);
		if (x->out.error)
			member_text(&b, "error", x->out.error);
		strbuf_putc(&b, '}');
	} else {
		strbuf_printf(&b, "%s %s ", when, x->id);
		strbuf_plain(&b, method);
		strbuf_putc(&b, ' ');
		strbuf_plain(&b, path);
		strbuf_printf(&b, " %u in %zu out %zu %.3f ms (queue %.3f, run %.3f)", x->out.status, x->body.n, x->out.n, all,
		              waited, run);
		if (x->out.error) {
			strbuf_puts(&b, ": ");
			strbuf_plain(&b, x->out.error);
		}
	}
	put_line(s, &b);
}
