/* A growable string. Errors stick: append freely, ask once at the end (strbuf_take, or `failed`). */
#pragma once

#include "base/mem.h"

typedef struct strbuf {
	char *at;
	size_t n, cap;
	bool failed;
} strbuf;

#define STRBUF_INIT                                                                                                    \
	{                                                                                                                  \
		NULL, 0, 0, false                                                                                              \
	}

void strbuf_add(strbuf *b, const char *s, size_t n);
void strbuf_puts(strbuf *b, const char *s);
void strbuf_putc(strbuf *b, char c);
void strbuf_printf(strbuf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
void strbuf_int(strbuf *b, int64_t v); /* fast path of printf("%lld") */

/* "…" with \" \\ \n \t \xHH; valid UTF-8 as it is but for control characters, stray bytes as \xHH. The second: every
   byte >= 0x80 as \xHH. */
void strbuf_quoted(strbuf *b, const char *s, size_t n);
void strbuf_quoted_ascii(strbuf *b, const char *s, size_t n);

/* A string of JSON that may also stand inside a page: no < > & and no line separators; stray bytes become U+FFFD. */
void strbuf_json(strbuf *b, const char *s, size_t n);

bool utf8_control(const char *s, size_t n); /* U+0080 to U+009F is at s: terminals obey these too */
bool utf8_valid(const char *s, size_t n);
size_t utf8_length(const char *s, size_t n); /* of the well-formed character at s; 0: there is none */

/* Shortest text that reads back to the same bits; always has one of . e inf nan. */
void strbuf_double(strbuf *b, double v);

void strbuf_free(strbuf *b);
/* NUL-terminated; caller frees with mem_free; b is empty after, also on failure. */
clv_status strbuf_take(strbuf *b, char **out);
/* Appends the text of `from`, which is empty after; a failure of either sticks. */
void strbuf_move(strbuf *b, strbuf *from);
/* Fails with the text of b as its message; b is empty after. */
clv_status strbuf_fail(clv_status code, strbuf *b);
