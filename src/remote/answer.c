/* Answers of HTTP/1.1 as bytes: the head, and bodies in chunks. Pure functions over memory.
 * What two readers could understand in two ways is refused. */
#include <math.h>
#include <string.h>
#include <strings.h>

#include "remote/remote.h"

size_t answer_head_end(const char *at, size_t n)
{
	for (size_t i = 3; i < n; i++)
		if (at[i] == '\n' && at[i - 1] == '\r' && at[i - 2] == '\n' && at[i - 3] == '\r')
			return i + 1;
	return 0;
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* Digits alone. */
static bool read_count(const char *s, size_t n, int64_t *out)
{
	int64_t v = 0;
	for (size_t i = 0; i < n; i++)
		if (!is_digit(s[i]) || __builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, s[i] - '0', &v))
			return false;
	*out = v;
	return n > 0;
}

static bool is_text(const char *s, size_t n, const char *text)
{
	return strlen(text) == n && strncasecmp(s, text, n) == 0;
}

static bool starts_with(const char *s, size_t n, const char *text)
{
	return n >= strlen(text) && strncasecmp(s, text, strlen(text)) == 0;
}

/* A list of words with commas between them has this one. */
static bool has_word(const char *s, size_t n, const char *word)
{
	while (n) {
		const char *comma = memchr(s, ',', n);
		size_t part = comma ? (size_t)(comma - s) : n, k = part;
		const char *at = s;
		for (; k && *at == ' '; at++)
			k--;
		for (; k && at[k - 1] == ' ';)
			k--;
		if (is_text(at, k, word))
			return true;
		s += comma ? part + 1 : part;
		n -= comma ? part + 1 : part;
	}
	return false;
}

/* "12.5", without signs and exponents; NaN: something else. */
static double read_decimal(const char *s, size_t n)
{
	double v = 0, unit = 1;
	bool point = false;
	if (n == 0 || n > 20 || *s == '.')
		return NAN;
	for (size_t i = 0; i < n; i++) {
		if (s[i] == '.' && !point) {
			point = true;
			continue;
		}
		if (!is_digit(s[i]))
			return NAN;
		v = v * 10 + (s[i] - '0');
		unit = point ? unit * 10 : unit;
	}
	return v / unit;
}

/* "queue;dur=1.5, compute;dur=20": milliseconds of the entry `name`, as seconds. */
static double read_timing(const char *s, size_t n, const char *name)
{
	size_t length = strlen(name);
	for (size_t i = 0; i + length + 5 < n; i++) {
		bool start = i == 0 || s[i - 1] == ' ' || s[i - 1] == ',';
		const char *at = s + i + length;
		if (!start || strncasecmp(s + i, name, length) != 0 || strncasecmp(at, ";dur=", 5) != 0)
			continue;
		at += 5;
		size_t digits = 0, left = (size_t)(s + n - at);
		while (digits < left && (is_digit(at[digits]) || at[digits] == '.'))
			digits++;
		return read_decimal(at, digits) / 1000;
	}
	return NAN;
}

static clv_status read_field(answer_head *h, const char *name, size_t nname, const char *v, size_t n)
{
	int64_t length;
	if (is_text(name, nname, "content-length")) {
		if (!read_count(v, n, &length) || (h->length >= 0 && h->length != length))
			return fail(CLV_E_PARSE, "its Content-Length is no length");
		h->length = length;
	} else if (is_text(name, nname, "transfer-encoding")) {
		if (!is_text(v, n, "chunked") || h->chunked)
			return fail(CLV_E_PARSE, "its Transfer-Encoding is not chunked");
		h->chunked = true;
	} else if (is_text(name, nname, "content-encoding") && !is_text(v, n, "identity")) {
		return fail(CLV_E_PARSE, "its body is compressed, for which nobody asked");
	} else if (is_text(name, nname, "connection")) {
		h->keep = has_word(v, n, "close") ? false : has_word(v, n, "keep-alive") || h->keep;
	} else if (is_text(name, nname, "content-type")) {
		h->tensors = starts_with(v, n, "application/x-safetensors");
	} else if (is_text(name, nname, "inference-header-content-length")) {
		if (!read_count(v, n, &h->json))
			return fail(CLV_E_PARSE, "its Inference-Header-Content-Length is no length");
	} else if (is_text(name, nname, "retry-after")) {
		h->retry = read_count(v, n, &length) && length < 86400 ? (double)length : 0; /* a date: as if not said */
	} else if (is_text(name, nname, "server-timing")) {
		h->queue = read_timing(v, n, "queue");
		h->compute = read_timing(v, n, "compute");
	}
	return CLV_OK;
}

static clv_status read_line(answer_head *h, const char *at, size_t n)
{
	const char *colon = memchr(at, ':', n);
	if (!colon || colon == at || *at == ' ' || *at == '\t' || colon[-1] == ' ')
		return fail(CLV_E_PARSE, "a field of its head is malformed");
	for (size_t i = 0; i < n; i++)
		if (((unsigned char)at[i] < ' ' && at[i] != '\t') || at[i] == 127)
			return fail(CLV_E_PARSE, "a field of its head has a control character");
	const char *v = colon + 1, *end = at + n;
	while (v < end && (*v == ' ' || *v == '\t'))
		v++;
	while (end > v && (end[-1] == ' ' || end[-1] == '\t'))
		end--;
	return read_field(h, at, (size_t)(colon - at), v, (size_t)(end - v));
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

clv_status answer_head_read(const char *at, size_t n, answer_head *out)
{
	const char *end = at + n - 2; /* without the empty line */
	*out = (answer_head){.length = -1, .json = -1, .queue = NAN, .compute = NAN};
	for (bool first = true; at < end; first = false) {
		const char *line = memchr(at, '\n', (size_t)(end - at));
		if (!line || line == at || line[-1] != '\r')
			return fail(CLV_E_PARSE, "a line of its head does not end as one");
		size_t length = (size_t)(line - at) - 1;
		TRY(first ? read_status(out, at, length) : read_line(out, at, length));
		at = line + 1;
	}
	if (out->chunked && out->length >= 0)
		return fail(CLV_E_PARSE, "it has a length and chunks");
	out->none = out->status < 200 || out->status == 204 || out->status == 304;
	return CLV_OK;
}

/* ---- chunks ----------------------------------------------------------------------------------------------------- */

enum { CHUNK_SIZE, CHUNK_EXTENSION, CHUNK_LF, CHUNK_DATA, CHUNK_END, CHUNK_END_LF, CHUNK_TRAILER, CHUNK_LAST_LF };
enum { TRAILERS_MOST = 8192 };

static int hex_digit(char c)
{
	return is_digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static clv_status fail_chunk(void)
{
	return fail(CLV_E_PARSE, "a chunk of its body is malformed");
}

static clv_status size_char(answer_chunks *c, char x)
{
	int digit = hex_digit(x);
	if (digit >= 0 && c->digits < 15) {
		c->left = c->left << 4 | (unsigned)digit;
		c->digits++;
	} else if (c->digits && x == '\r') {
		c->state = CHUNK_LF;
	} else if (c->digits && (x == ';' || x == ' ')) {
		c->state = CHUNK_EXTENSION;
	} else {
		return fail_chunk();
	}
	return CLV_OK;
}

/* A character that is no data. `line` counts those of extensions and trailers, and in trailers of a line. */
static clv_status frame_char(answer_chunks *c, char x, bool *done)
{
	switch (c->state) {
	case CHUNK_SIZE: return size_char(c, x);
	case CHUNK_EXTENSION:
		c->state = x == '\r' ? CHUNK_LF : CHUNK_EXTENSION;
		return ++c->line > TRAILERS_MOST || x == '\n' ? fail_chunk() : CLV_OK;
	case CHUNK_LF:
		c->state = c->left ? CHUNK_DATA : CHUNK_TRAILER;
		c->digits = 0;
		return x == '\n' ? CLV_OK : fail_chunk();
	case CHUNK_END: c->state = CHUNK_END_LF; return x == '\r' ? CLV_OK : fail_chunk();
	case CHUNK_END_LF: c->state = CHUNK_SIZE; return x == '\n' ? CLV_OK : fail_chunk();
	case CHUNK_TRAILER: /* digits: of the line so far */
		if (++c->line > TRAILERS_MOST)
			return fail_chunk();
		if (x == '\r' && c->digits == 0)
			c->state = CHUNK_LAST_LF;
		else
			c->digits = x == '\n' ? 0 : 1;
		return CLV_OK;
	default: *done = true; return x == '\n' ? CLV_OK : fail_chunk();
	}
}

clv_status answer_chunks_read(answer_chunks *c, const char *at, size_t n, size_t *used, size_t *data, bool *done)
{
	*used = *data = 0;
	while (*used < n && !*done) {
		if (c->state != CHUNK_DATA) {
			TRY(frame_char(c, at[(*used)++], done));
			continue;
		}
		size_t left = n - *used;
		*data = c->left < left ? (size_t)c->left : left;
		*used += *data;
		c->left -= *data;
		c->state = c->left ? CHUNK_DATA : CHUNK_END;
		return CLV_OK;
	}
	return CLV_OK;
}
