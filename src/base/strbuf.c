/* The growable string: appending, quoting, numbers. */
#include "base/strbuf.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/number.h"

/* Room for n more bytes and a NUL. */
static bool room(strbuf *b, size_t n)
{
	if (b->failed)
		return false;
	if (n < b->cap - b->n)
		return true;
	size_t want = b->cap < SIZE_MAX / 2 ? b->cap * 2 : SIZE_MAX;
	if (n >= SIZE_MAX - b->n) {
		b->failed = true;
		return false;
	}
	if (want < b->n + n + 1)
		want = b->n + n + 1;
	if (want < 64)
		want = 64;
	char *grown = mem_realloc(b->at, want, 1);
	if (!grown) {
		b->failed = true;
		return false;
	}
	b->at = grown;
	b->cap = want;
	return true;
}

void strbuf_add(strbuf *b, const char *s, size_t n)
{
	if (!room(b, n) || n == 0)
		return;
	memcpy(b->at + b->n, s, n);
	b->n += n;
}

void strbuf_puts(strbuf *b, const char *s)
{
	strbuf_add(b, s, strlen(s));
}

void strbuf_putc(strbuf *b, char c)
{
	if (room(b, 1))
		b->at[b->n++] = c;
}

void strbuf_printf(strbuf *b, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	if (n < 0 || !room(b, (size_t)n)) {
		b->failed = true;
		return;
	}
	va_start(ap, fmt);
	vsnprintf(b->at + b->n, (size_t)n + 1, fmt, ap);
	va_end(ap);
	b->n += (size_t)n;
}

void strbuf_int(strbuf *b, int64_t v)
{
	char text[20];
	size_t i = sizeof text;
	uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
	do {
		text[--i] = (char)('0' + u % 10);
		u /= 10;
	} while (u);
	if (v < 0)
		text[--i] = '-';
	strbuf_add(b, text + i, sizeof text - i);
}

/* Length of the well-formed UTF-8 sequence of two bytes or more at s, 0 if there is none. */
static size_t utf8_sequence(const unsigned char *s, size_t n)
{
	size_t len = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
	if (s[0] < 0xC2 || s[0] > 0xF4 || n < len)
		return 0;
	for (size_t i = 1; i < len; i++)
		if ((s[i] & 0xC0) != 0x80)
			return 0;
	bool overlong = (s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xF0 && s[1] < 0x90);
	bool surrogate = s[0] == 0xED && s[1] > 0x9F;
	bool too_large = s[0] == 0xF4 && s[1] > 0x8F;
	return overlong || surrogate || too_large ? 0 : len;
}

size_t utf8_length(const char *s, size_t n)
{
	const unsigned char *at = (const unsigned char *)s;
	return n == 0 ? 0 : *at < 0x80 ? 1 : utf8_sequence(at, n);
}

bool utf8_valid(const char *s, size_t n)
{
	for (size_t i = 0; i < n;) {
		size_t take = utf8_length(s + i, n - i);
		if (take == 0)
			return false;
		i += take;
	}
	return true;
}

bool utf8_control(const char *s, size_t n)
{
	return n > 1 && (unsigned char)s[0] == 0xC2 && ((unsigned char)s[1] & 0xE0) == 0x80;
}

static void add_escaped(strbuf *b, unsigned char c)
{
	static const char hex[] = "0123456789abcdef";
	switch (c) {
	case '"': strbuf_puts(b, "\\\""); break;
	case '\\': strbuf_puts(b, "\\\\"); break;
	case '\n': strbuf_puts(b, "\\n"); break;
	case '\t': strbuf_puts(b, "\\t"); break;
	default: {
		char text[4] = {'\\', 'x', hex[c >> 4], hex[c & 15]};
		strbuf_add(b, text, sizeof text);
	}
	}
}

static void add_quoted(strbuf *b, const char *text, size_t n, bool keep_utf8)
{
	const unsigned char *s = (const unsigned char *)text;
	strbuf_putc(b, '"');
	for (size_t i = 0; i < n;) {
		size_t plain = i;
		while (plain < n && s[plain] >= 0x20 && s[plain] < 0x7F && s[plain] != '"' && s[plain] != '\\')
			plain++;
		size_t take = plain - i;
		if (take == 0 && keep_utf8 && s[i] >= 0x80 && !utf8_control(text + i, n - i))
			take = utf8_sequence(s + i, n - i);
		if (take == 0)
			add_escaped(b, s[i++]);
		else
			strbuf_add(b, text + i, take);
		i += take;
	}
	strbuf_putc(b, '"');
}

void strbuf_quoted(strbuf *b, const char *s, size_t n)
{
	add_quoted(b, s, n, true);
}

void strbuf_quoted_ascii(strbuf *b, const char *s, size_t n)
{
	add_quoted(b, s, n, false);
}

static bool plain_in_json(unsigned char c)
{
	return c >= 0x20 && c < 0x7F && !strchr("\"\\<>&", c);
}

/* What a JSON text had better not hold as it is, of two bytes or more: line separators, which end a line in a script, and controls
   that terminals obey. 0: none. */
static unsigned unfit_for_json(const unsigned char *s, size_t sequence)
{
	if (sequence == 3 && s[0] == 0xE2 && s[1] == 0x80 && (s[2] & 0xFE) == 0xA8)
		return 0x2000u | (s[2] & 0x3Fu);
	return sequence == 2 && s[0] == 0xC2 && s[1] < 0xA0 ? s[1] : 0;
}

void strbuf_json(strbuf *b, const char *text, size_t n)
{
	const unsigned char *s = (const unsigned char *)text;
	strbuf_putc(b, '"');
	for (size_t i = 0, take; i < n; i += take) {
		for (take = 0; i + take < n && plain_in_json(s[i + take]); take++)
			;
		size_t sequence = take || s[i] < 0x80 ? 0 : utf8_sequence(s + i, n - i);
		unsigned unfit = unfit_for_json(s + i, sequence);
		if (take || (sequence && !unfit))
			strbuf_add(b, text + i, take ? take : sequence);
		else
			strbuf_printf(b, "\\u%04x", unfit ? unfit : s[i] < 0x80 ? s[i] : 0xFFFDu);
		take = take ? take : sequence ? sequence : 1;
	}
	strbuf_putc(b, '"');
}

void strbuf_double(strbuf *b, double v)
{
	char text[NUMBER_TEXT];
	number_print(v, text);
	strbuf_puts(b, text);
}

void strbuf_free(strbuf *b)
{
	mem_free(b->at);
	*b = (strbuf)STRBUF_INIT;
}

clv_status strbuf_take(strbuf *b, char **out)
{
	strbuf_add(b, "", 0); /* an empty buffer gives "" */
	if (b->failed) {
		strbuf_free(b);
		return fail_nomem();
	}
	b->at[b->n] = '\0';
	*out = b->at;
	*b = (strbuf)STRBUF_INIT;
	return CLV_OK;
}

void strbuf_move(strbuf *b, strbuf *from)
{
	b->failed |= from->failed;
	if (from->n)
		strbuf_add(b, from->at, from->n);
	strbuf_free(from);
}

clv_status strbuf_fail(clv_status code, strbuf *b)
{
	char *text;
	TRY(strbuf_take(b, &text));
	clv_status st = fail(code, "%s", text);
	mem_free(text);
	return st;
}
