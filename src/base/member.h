/* Writes JSON into a strbuf, member by member, with the commas between them: the one writer of JSON that nobody reads first.
 * Files that are also read are built with jansson (file/json.h). */
#pragma once

#include "base/strbuf.h"

/* `key` is NULL for an element of an array, and at the start. Keys are plain ASCII. */
void member_open(strbuf *b, const char *key, char bracket);  /* { or [ */
void member_text(strbuf *b, const char *key, const char *s); /* NULL: null; what is no UTF-8 becomes U+FFFD */
void member_int(strbuf *b, const char *key, int64_t n);
void member_amount(strbuf *b, const char *key, int64_t n); /* INT64_MAX, which sums stop at, is null */
void member_number(strbuf *b, const char *key, double x);  /* whole numbers without a point; not finite: null */
void member_bool(strbuf *b, const char *key, bool x);
void member_key(strbuf *b, const char *key);  /* the caller writes the value */
void member_line(strbuf *b, unsigned indent); /* what comes next starts a line */
