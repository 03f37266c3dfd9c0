/* Characters of plan text: position, blanks, words, strings, numbers, and errors that say "line:col: …".
 *
 * The text is hostile and need not be NUL-terminated; nothing reads past `end`. A statement is one line, so no
 * function here crosses a line end except lex_next_line. */
#pragma once

#include "base/strbuf.h"

typedef struct slice {
	const char *s; /* borrowed from the text */
	size_t n;
} slice;

typedef struct lexer {
	const char *at, *end, *line_start;
	uint32_t line;
	strbuf scratch; /* the last string or number read; lex_free releases it */
} lexer;

void lex_init(lexer *l, const char *text, size_t n);
void lex_free(lexer *l);

/* CLV_E_PARSE with line and column of `at`, which is in the current line. */
clv_status lex_fail(const lexer *l, const char *at, const char *fmt, ...) PRINTF_LIKE(3, 4);
clv_status lex_expected(const lexer *l, const char *what); /* "expected <what>, found …", at the current place */
clv_status lex_blame(const lexer *l, const char *at, clv_status st); /* puts line and column before an error */

void lex_skip(lexer *l);      /* blanks, and a comment */
bool lex_at_end(lexer *l);    /* of the line, after blanks */
bool lex_next_line(lexer *l); /* to the first character of the next line; false at the end of the text */

char lex_peek(lexer *l);         /* next character after blanks; '\0' at the end of the line */
bool lex_take(lexer *l, char c); /* skips blanks and c, if it is there */
clv_status lex_want(lexer *l, char c);
bool slice_is(slice s, const char *word);

/* Characters in a row for which `in` holds, from here, no blanks skipped; may be empty. */
slice lex_run(lexer *l, bool (*in)(char));
slice lex_peek_run(const lexer *l, bool (*in)(char));
bool lex_take_word(lexer *l, const char *word); /* a word of letters, digits and _, after blanks */

clv_status lex_string(lexer *l, slice *out); /* "…"; valid until the next string or number */
clv_status lex_bare_or_string(lexer *l, bool (*in)(char), const char *what, slice *out);
clv_status lex_uint(lexer *l, int64_t *out); /* digits */
clv_status lex_int(lexer *l, int64_t *out);  /* -digits or digits */
bool lex_float_ahead(lexer *l);              /* 1.5 1e5 -inf nan, not 12 */
clv_status lex_float(lexer *l, double *out);
