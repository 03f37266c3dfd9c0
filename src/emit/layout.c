/* Breaks lines: takes one logical line of Python as flat text and lays it out as a formatter would.
 *
 * A line that fits stays. One that does not is opened at its last brackets: the arguments of a call go on one line if they
 * fit there; else each element gets a line of its own with a comma after the last. */
#include <ctype.h>
#include <string.h>

#include "emit/emit.h"

enum { WIDTH = 88 };

typedef struct brackets {
	size_t open, close;
} brackets;

/* After the string that starts at s[i]. */
static size_t after_string(const char *s, size_t n, size_t i)
{
	char quote = s[i++];
	while (i < n && s[i] != quote)
		i += s[i] == '\\' ? 2 : 1;
	return i < n ? i + 1 : n;
}

static int depth_change(char c)
{
	return (c == '(' || c == '[' || c == '{') - (c == ')' || c == ']' || c == '}');
}

/* The next place at or after i that is not inside a string; *depth follows. */
static size_t step_over(const char *s, size_t n, size_t i, int *depth)
{
	if (s[i] == '"' || s[i] == '\'')
		return after_string(s, n, i);
	*depth += depth_change(s[i]);
	return i + 1;
}

/* The last brackets of the outermost level that hold something. */
static bool last_brackets(const char *s, size_t n, brackets *out)
{
	size_t open = 0;
	bool found = false;
	for (size_t i = 0; i < n;) {
		int depth = 0;
		size_t next = step_over(s, n, i, &depth);
		if (depth <= 0) {
			i = next;
			continue;
		}
		for (open = i, i = next; i < n && depth > 0;)
			i = step_over(s, n, i, &depth);
		if (i > open + 2) {
			*out = (brackets){open, i - 1};
			found = true;
		}
	}
	return found;
}

static size_t width(const char *s, size_t n)
{
	size_t count = 0;
	for (size_t i = 0; i < n; i++)
		count += ((unsigned char)s[i] & 0xC0) != 0x80;
	return count;
}

/* The end of the element that starts at i: its comma, or n. */
static size_t element_end(const char *s, size_t n, size_t i)
{
	int depth = 0;
	while (i < n && !(depth == 0 && s[i] == ','))
		i = step_over(s, n, i, &depth);
	return i;
}

static bool is_name_char(char c)
{
	return isalnum((unsigned char)c) || c == '_';
}

/* They belong to what stands before them: a call, an index. */
static bool is_attached(const char *s, const brackets *at)
{
	return at->open > 0 && (is_name_char(s[at->open - 1]) || strchr(")]\"'", s[at->open - 1]));
}

/* x[i] and (a + b) mean something else with a comma behind. */
static bool takes_comma(const char *s, const brackets *at)
{
	bool after = is_attached(s, at);
	size_t first = element_end(s, at->close, at->open + 1);
	if (first < at->close || s[at->open] == '{')
		return true;
	return s[at->open] == '[' ? !after : after;
}

static void put_elements(strbuf *b, unsigned indent, const char *s, size_t n, const char *comma);

static void put_broken(strbuf *b, unsigned indent, const char *s, size_t n, const char *tail)
{
	brackets at;
	if (indent + width(s, n) + strlen(tail) <= WIDTH || !last_brackets(s, n, &at)) {
		strbuf_add(b, s, n);
		strbuf_puts(b, tail);
		return;
	}
	const char *body = s + at.open + 1;
	size_t length = at.close - at.open - 1;
	strbuf_add(b, s, at.open + 1);
	if (is_attached(s, &at) && indent + INDENT + width(body, length) <= WIDTH)
		strbuf_printf(b, "\n%*s%.*s", (int)indent + INDENT, "", (int)length, body);
	else
		put_elements(b, indent + INDENT, body, length, takes_comma(s, &at) ? "," : "");
	strbuf_printf(b, "\n%*s", (int)indent, "");
	strbuf_add(b, s + at.close, n - at.close);
	strbuf_puts(b, tail);
}

static void put_elements(strbuf *b, unsigned indent, const char *s, size_t n, const char *comma)
{
	for (size_t i = 0; i < n;) {
		size_t end = element_end(s, n, i);
		strbuf_printf(b, "\n%*s", (int)indent, "");
		put_broken(b, indent, s + i, end - i, comma);
		for (i = end + 1; i < n && s[i] == ' ';)
			i++;
	}
}

/* Where " = " of an assignment is; n: it is none. */
static size_t find_assignment(const char *s, size_t n)
{
	int depth = 0;
	for (size_t i = 0; i < n; i = step_over(s, n, i, &depth))
		if (depth == 0 && n - i > 3 && !memcmp(s + i, " = ", 3))
			return i;
	return n;
}

/* (
       a,
       b,
   ) = f(x), where the names alone leave no place. Gives where the rest starts. */
static size_t put_many_targets(strbuf *b, unsigned indent, const char *s, size_t n)
{
	size_t sign = find_assignment(s, n);
	if (sign == n || element_end(s, sign, 0) == sign)
		return 0;
	brackets at;
	size_t head = last_brackets(s, n, &at) && at.open > sign ? at.open + 1 : n;
	if (indent + width(s, head) <= WIDTH)
		return 0;
	strbuf_putc(b, '(');
	put_elements(b, indent + INDENT, s, sign, ",");
	strbuf_printf(b, "\n%*s)", (int)indent, "");
	return sign;
}

/* The next place where a chain a[0].b.c[1].d may be broken: before a dot that follows a bracket; n: there is none. */
static size_t chain_break(const char *s, size_t n, size_t i)
{
	int depth = 0;
	while (i < n) {
		i = step_over(s, n, i, &depth);
		if (depth == 0 && i < n && s[i] == '.' && (s[i - 1] == ')' || s[i - 1] == ']'))
			return i;
	}
	return n;
}

/* Formatters break such chains themselves where they have two places for it, before they open brackets. */
static bool is_chain(const char *s, size_t n)
{
	int depth = 0;
	for (size_t i = 0; i < n; i = step_over(s, n, i, &depth))
		if (depth == 0 && (s[i] == ' ' || s[i] == ','))
			return false;
	size_t first = chain_break(s, n, 0);
	return first < n && chain_break(s, n, first + 1) < n;
}

static void put_chain(strbuf *b, unsigned indent, const char *s, size_t n)
{
	if (indent + width(s, n) <= WIDTH) {
		strbuf_add(b, s, n);
		return;
	}
	for (size_t i = 0; i < n;) {
		size_t end = chain_break(s, n, i + 1);
		if (i)
			strbuf_printf(b, "\n%*s", (int)indent, "");
		put_broken(b, indent, s + i, end - i, "");
		i = end;
	}
}

/* a = b[
       0
   ].c.d(x), where the call opens too late: formatters take the brackets before then. */
static bool put_earlier(strbuf *b, unsigned indent, const char *s, size_t n, size_t late)
{
	brackets at;
	if (!last_brackets(s, late, &at) || s[at.open] != '[' || indent + width(s, at.open + 1) > WIDTH ||
	    indent + width(s + at.close, n - at.close) > WIDTH)
		return false;
	strbuf_add(b, s, at.open + 1);
	strbuf_printf(b, "\n%*s%.*s", (int)indent + INDENT, "", (int)(at.close - at.open - 1), s + at.open + 1);
	strbuf_printf(b, "\n%*s", (int)indent, "");
	strbuf_add(b, s + at.close, n - at.close);
	return true;
}

/* name = (
       value
   ), for a value that has nothing to open, opens too late, or is a chain. */
static bool put_wrapped(strbuf *b, unsigned indent, const char *s, size_t n)
{
	brackets at;
	size_t sign = find_assignment(s, n), from = sign == n ? 0 : sign + 3;
	bool chain = is_chain(s + from, n - from);
	if ((sign == n && !chain) || indent + width(s, n) <= WIDTH)
		return false;
	bool opens = last_brackets(s, n, &at) && (at.open > from || at.close + 1 == n);
	if (opens && !chain && indent + width(s, at.open + 1) <= WIDTH)
		return false;
	if (!opens && indent + INDENT + width(s + from, n - from) > WIDTH)
		return false;
	if (opens && !chain && put_earlier(b, indent, s, n, at.open))
		return true;
	strbuf_add(b, s, from);
	strbuf_printf(b, "(\n%*s", (int)indent + INDENT, "");
	if (chain)
		put_chain(b, indent + INDENT, s + from, n - from);
	else
		put_broken(b, indent + INDENT, s + from, n - from, "");
	strbuf_printf(b, "\n%*s)", (int)indent, "");
	return true;
}

bool layout_fits(unsigned indent, const strbuf *line)
{
	return line->failed || indent + width(line->at, line->n) <= WIDTH;
}

void layout_line(strbuf *b, unsigned indent, strbuf *line)
{
	if (line->failed) {
		b->failed = true;
	} else if (line->n) {
		strbuf_printf(b, "%*s", (int)indent, "");
		size_t from = put_many_targets(b, indent, line->at, line->n);
		if (from || !put_wrapped(b, indent, line->at, line->n))
			put_broken(b, indent, line->at + from, line->n - from, "");
		strbuf_putc(b, '\n');
	}
	strbuf_free(line);
}
