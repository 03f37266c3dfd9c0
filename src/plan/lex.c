/* The lexer of plan text. */
#include "plan/lex.h"

#include <math.h>
#include <string.h>

#include "base/digest.h"
#include "base/number.h"
#include "plan/words.h"

void lex_init(lexer *l, const char *text, size_t n)
{
	*l = (lexer){.at = text, .end = text + n, .line_start = text, .line = 1};
}

void lex_free(lexer *l)
{
	strbuf_free(&l->scratch);
}

/* ---- errors ----------------------------------------------------------------------------------------------------- */

clv_status lex_blame(const lexer *l, const char *at, clv_status st)
{
	if (st == CLV_OK || st == CLV_E_NOMEM)
		return st;
	return fail_more(CLV_E_PARSE, "%u:%zu", l->line, (size_t)(at - l->line_start) + 1);
}

clv_status lex_fail(const lexer *l, const char *at, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	status_vfail(CLV_E_PARSE, __FILE__, __LINE__, fmt, ap);
	va_end(ap);
	return lex_blame(l, at, CLV_E_PARSE);
}

/* What stands here, quoted and cut short for a message. */
static void found(const char *s, const char *end, strbuf *b)
{
	size_t n = 0, most = (size_t)(end - s);
	while (n < most && n < 24 && s[n] != ' ' && s[n] != '\t' && s[n] != '\n' && s[n] != '\r')
		n += 1;
	if (n == 0)
		strbuf_puts(b, s < end ? "the end of the line" : "the end of the text");
	else
		strbuf_quoted(b, s, n);
}

clv_status lex_expected(const lexer *l, const char *what)
{
	lexer here = *l;
	lex_skip(&here);
	strbuf b = STRBUF_INIT;
	char *text;
	found(here.at, here.end, &b);
	TRY(strbuf_take(&b, &text));
	clv_status st = lex_fail(l, here.at, "expected %s, found %s", what, text);
	mem_free(text);
	return st;
}

/* ---- lines and characters --------------------------------------------------------------------------------------- */

static bool ends_line(const lexer *l)
{
	return l->at == l->end || *l->at == '\n';
}

void lex_skip(lexer *l)
{
	while (l->at < l->end && (*l->at == ' ' || *l->at == '\t' || *l->at == '\r'))
		l->at++;
	if (l->at < l->end && *l->at == ';')
		while (!ends_line(l))
			l->at++;
}

bool lex_at_end(lexer *l)
{
	lex_skip(l);
	return ends_line(l);
}

bool lex_next_line(lexer *l)
{
	if (l->at == l->end)
		return false;
	l->line_start = ++l->at;
	l->line++;
	return true;
}

char lex_peek(lexer *l)
{
	return lex_at_end(l) ? '\0' : *l->at;
}

bool lex_take(lexer *l, char c)
{
	if (lex_at_end(l) || *l->at != c)
		return false;
	l->at++;
	return true;
}

clv_status lex_want(lexer *l, char c)
{
	return lex_take(l, c) ? CLV_OK : lex_expected(l, (char[]){'\'', c, '\'', '\0'});
}

bool slice_is(slice s, const char *word)
{
	return strlen(word) == s.n && memcmp(s.s, word, s.n) == 0;
}

slice lex_peek_run(const lexer *l, bool (*in)(char))
{
	slice s = {l->at, 0};
	while (s.s + s.n < l->end && in(s.s[s.n]))
		s.n++;
	return s;
}

slice lex_run(lexer *l, bool (*in)(char))
{
	slice s = lex_peek_run(l, in);
	l->at += s.n;
	return s;
}

bool lex_take_word(lexer *l, const char *word)
{
	lex_skip(l);
	if (!slice_is(lex_peek_run(l, char_in_word), word))
		return false;
	l->at += strlen(word);
	return true;
}

/* ---- strings ---------------------------------------------------------------------------------------------------- */

/* After a backslash. */
static clv_status lex_escape(lexer *l)
{
	const char *start = l->at - 1;
	char c = ends_line(l) ? '\0' : *l->at++;
	if (c == '"' || c == '\\') {
		strbuf_putc(&l->scratch, c);
	} else if (c == 'n' || c == 't') {
		strbuf_putc(&l->scratch, c == 'n' ? '\n' : '\t');
	} else if (c == 'x' && l->end - l->at >= 2 && hex_digit_any(l->at[0]) >= 0 && hex_digit_any(l->at[1]) >= 0) {
		strbuf_putc(&l->scratch, (char)(hex_digit_any(l->at[0]) << 4 | hex_digit_any(l->at[1])));
		l->at += 2;
	} else {
		return lex_fail(l, start, "unknown escape; a string has \\\" \\\\ \\n \\t and \\xHH");
	}
	return CLV_OK;
}

clv_status lex_string(lexer *l, slice *out)
{
	if (lex_peek(l) != '"')
		return lex_expected(l, "a string");
	const char *start = l->at++;
	l->scratch.n = 0;
	while (!ends_line(l) && *l->at != '"') {
		const char *run = l->at;
		while (!ends_line(l) && *l->at != '"' && *l->at != '\\')
			l->at++;
		strbuf_add(&l->scratch, run, (size_t)(l->at - run));
		if (!ends_line(l) && *l->at == '\\') {
			l->at++;
			TRY(lex_escape(l));
		}
	}
	if (ends_line(l))
		return lex_fail(l, start, "the string is not closed in its line");
	l->at++;
	strbuf_putc(&l->scratch, '\0');
	TRY_MEM(!l->scratch.failed);
	*out = (slice){l->scratch.at, l->scratch.n - 1};
	return CLV_OK;
}

clv_status lex_bare_or_string(lexer *l, bool (*in)(char), const char *what, slice *out)
{
	lex_skip(l);
	if (l->at < l->end && *l->at == '"')
		return lex_string(l, out);
	*out = lex_run(l, in);
	return out->n ? CLV_OK : lex_expected(l, what);
}

/* ---- numbers ---------------------------------------------------------------------------------------------------- */

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static clv_status lex_digits(lexer *l, bool negative, int64_t *out)
{
	const char *start = l->at;
	slice digits = lex_run(l, is_digit);
	if (digits.n == 0)
		return lex_expected(l, "an integer");
	int64_t v = 0;
	for (size_t i = 0; i < digits.n; i++) {
		int d = digits.s[i] - '0';
		if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, negative ? -d : d, &v))
			return lex_fail(l, start, "the integer does not fit into 64 bits");
	}
	*out = v;
	return CLV_OK;
}

clv_status lex_uint(lexer *l, int64_t *out)
{
	lex_skip(l);
	return lex_digits(l, false, out);
}

clv_status lex_int(lexer *l, int64_t *out)
{
	bool negative = lex_take(l, '-');
	lex_skip(l);
	return lex_digits(l, negative, out);
}

/* Length of the digits at s[i]. */
static size_t digits_at(const char *s, size_t i, size_t n)
{
	size_t k = i;
	while (k < n && is_digit(s[k]))
		k++;
	return k - i;
}

/* Length of 1.5, 1., 1e5 or 1.5e-3 at s; 0 if there is only an integer. */
static size_t decimal_length(const char *s, size_t n)
{
	size_t i = digits_at(s, 0, n);
	if (i == 0)
		return 0;
	bool point = i < n && s[i] == '.';
	if (point)
		i += 1 + digits_at(s, i + 1, n);
	if (i < n && (s[i] == 'e' || s[i] == 'E')) {
		size_t sign = i + 1 < n && (s[i + 1] == '+' || s[i + 1] == '-');
		size_t exponent = digits_at(s, i + 1 + sign, n);
		if (exponent) {
			point = true;
			i += 1 + sign + exponent;
		}
	}
	return point ? i : 0;
}

/* Length of a float literal after blanks, its sign included; 0 if there is none. */
static size_t float_length(lexer *l)
{
	lex_skip(l);
	lexer here = *l;
	size_t sign = here.at < here.end && *here.at == '-';
	here.at += sign;
	slice word = lex_peek_run(&here, char_in_word);
	if (slice_is(word, "inf") || (slice_is(word, "nan") && !sign))
		return sign + word.n;
	size_t n = decimal_length(here.at, (size_t)(here.end - here.at));
	return n ? sign + n : 0;
}

bool lex_float_ahead(lexer *l)
{
	return float_length(l) > 0;
}

static bool word_value(slice s, double *out)
{
	bool known = true;
	if (slice_is(s, "nan"))
		*out = (double)NAN;
	else if (slice_is(s, "inf") || slice_is(s, "-inf"))
		*out = s.s[0] == '-' ? -(double)INFINITY : (double)INFINITY;
	else
		known = false;
	return known;
}

clv_status lex_float(lexer *l, double *out)
{
	slice s = {NULL, float_length(l)};
	s.s = l->at;
	if (s.n == 0)
		return lex_expected(l, "a number with a point, inf or nan");
	l->at += s.n;
	if (word_value(s, out))
		return CLV_OK;
	l->scratch.n = 0;
	strbuf_add(&l->scratch, s.s, s.n);
	strbuf_putc(&l->scratch, '\0');
	TRY_MEM(!l->scratch.failed);
	return number_parse(l->scratch.at, out) ? CLV_OK : lex_fail(l, s.s, "the number is too large for a double");
}
