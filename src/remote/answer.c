/* The head of an answer of HTTP/1.1. What two readers could understand in two ways is refused. */
#define _GNU_SOURCE /* strcasestr */
#include <math.h>
#include <string.h>

#include "base/number.h"
#include "remote/remote.h"

/* "12.5", without signs and exponents; NaN: something else. */
static double read_decimal(const char *s)
{
	char text[24] = "";
	double v;
	size_t n = strspn(s, "0123456789.");
	memcpy(text, s, n < sizeof text ? n : 0);
	return number_parse(text, &v) ? v : NAN;
}

/* "queue;dur=1.5, compute;dur=20": milliseconds of the entry `name`, as seconds. */
static double read_timing(const char *s, const char *name)
{
	size_t n = strlen(name);
	for (const char *at = s; (at = strcasestr(at, name)); at += n)
		if ((at == s || at[-1] == ' ' || at[-1] == ',') && strncasecmp(at + n, ";dur=", 5) == 0)
			return read_decimal(at + n + 5) / 1000;
	return NAN;
}

static clv_status read_field(answer_head *h, const char *name, const char *text)
{
	int64_t n;
	if (strcmp(name, "content-length") == 0) {
		if (!http_number(text, &n) || (h->length >= 0 && h->length != n))
			return fail(CLV_E_PARSE, "its Content-Length is no length");
		h->length = n;
	} else if (strcmp(name, "transfer-encoding") == 0) {
		if (strcasecmp(text, "chunked") != 0 || h->chunked)
			return fail(CLV_E_PARSE, "its Transfer-Encoding is not chunked");
		h->chunked = true;
	} else if (strcmp(name, "content-encoding") == 0 && strcasecmp(text, "identity") != 0) {
		return fail(CLV_E_PARSE, "its body is compressed, for which nobody asked");
	} else if (strcmp(name, "connection") == 0) {
		h->keep = !http_has_word(text, "close") && (http_has_word(text, "keep-alive") || h->keep);
	} else if (strcmp(name, "content-type") == 0) {
		h->tensors = http_has_word(text, ST_MEDIA_TYPE);
	} else if (strcmp(name, "inference-header-content-length") == 0) {
		if (!http_number(text, &h->json))
			return fail(CLV_E_PARSE, "its Inference-Header-Content-Length is no length");
	} else if (strcmp(name, "retry-after") == 0) {
		h->retry = http_number(text, &n) && n < 86400 ? (double)n : 0; /* a date: as if not said */
	} else if (strcmp(name, "server-timing") == 0) {
		h->queue = read_timing(text, "queue");
		h->compute = read_timing(text, "compute");
	}
	return CLV_OK;
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* "HTTP/1.1 200 OK" */
static clv_status read_status(answer_head *h, const char *at, size_t n)
{
	bool known = n >= 12 && memcmp(at, "HTTP/1.", 7) == 0 && (at[7] == '0' || at[7] == '1') && at[8] == ' ';
	if (!known || !is_digit(at[9]) || !is_digit(at[10]) || !is_digit(at[11]) || (n > 12 && at[12] != ' '))
		return fail(CLV_E_PARSE, "it does not begin as HTTP/1.1 does");
	h->status = (unsigned)((at[9] - '0') * 100 + (at[10] - '0') * 10 + at[11] - '0');
	h->keep = at[7] == '1';
	if (h->status < 100)
		return fail(CLV_E_PARSE, "there is no status %u", h->status);
	return CLV_OK;
}

static clv_status read_head(const char *at, size_t n, arena *a, http_head *h, answer_head *out)
{
	size_t first;
	TRY(http_fields_read(at, n, a, h, &first));
	TRY(read_status(out, at, first));
	for (uint32_t i = 0; i < h->fields.n; i++)
		TRY(read_field(out, h->fields.at[i].name, h->fields.at[i].value));
	if (out->chunked && out->length >= 0)
		return fail(CLV_E_PARSE, "it has a length and chunks");
	out->none = out->status < 200 || out->status == 204 || out->status == 304;
	return CLV_OK;
}

clv_status answer_head_read(const char *at, size_t n, answer_head *out)
{
	arena a = {0};
	http_head h;
	*out = (answer_head){.length = -1, .json = -1, .queue = NAN, .compute = NAN};
	clv_status st = read_head(at, n, &a, &h, out);
	http_head_free(&h);
	arena_free(&a);
	return st == CLV_E_LIMIT ? CLV_E_PARSE : st;
}
