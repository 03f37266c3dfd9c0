/* A growable string. Errors stick: append freely, ask once at the end (strbuf_take, or `failed`). */
#ifndef BASE_STRBUF_H
#define BASE_STRBUF_H

#include "base/mem.h"

typedef struct strbuf {
	char *at;
	size_t n, cap;
	bool failed;
} strbuf;

#define STRBUF_INIT {NULL, 0, 0, false}

void strbuf_add(strbuf *b, const char *s, size_t n);
void strbuf_puts(strbuf *b, const char *s);
void strbuf_putc(strbuf *b, char c);
void strbuf_printf(strbuf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
void strbuf_int(strbuf *b, int64_t v);              /* fast path of printf("%lld") */
void strbuf_quoted(strbuf *b, const char *s, size_t n); /* "…" with \" \\ \n \t \xHH; valid UTF-8 as it is, stray bytes as \xHH */
void strbuf_quoted_ascii(strbuf *b, const char *s, size_t n); /* as strbuf_quoted, every byte >= 0x80 as \xHH */
void strbuf_double(strbuf *b, double v);            /* shortest text that reads back to the same bits; always has . e inf or nan */
void strbuf_free(strbuf *b);
clv_status strbuf_take(strbuf *b, char **out);      /* NUL-terminated; caller frees with mem_free; b is empty after */

#endif
