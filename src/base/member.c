/* The JSON writer: see member.h. What is open is seen in the text itself, so there is no state to keep. */
#include "base/member.h"

#include <math.h>
#include <string.h>

/* The comma before another member, unless it is the first. */
static void separate(strbuf *b)
{
	size_t n = b->n;
	while (n && (b->at[n - 1] == ' ' || b->at[n - 1] == '\n'))
		n--;
	if (n && !strchr("{[,:", b->at[n - 1]))
		strbuf_putc(b, ',');
}

void member_key(strbuf *b, const char *key)
{
	separate(b);
	if (key)
		strbuf_printf(b, "\"%s\":", key);
}

void member_line(strbuf *b, unsigned indent)
{
	separate(b);
	strbuf_printf(b, "\n%*s", (int)indent, "");
}

void member_open(strbuf *b, const char *key, char bracket)
{
	member_key(b, key);
	strbuf_putc(b, bracket);
}

void member_text(strbuf *b, const char *key, const char *s)
{
	member_key(b, key);
	if (s)
		strbuf_json(b, s, strlen(s));
	else
		strbuf_puts(b, "null");
}

void member_int(strbuf *b, const char *key, int64_t n)
{
	member_key(b, key);
	strbuf_int(b, n);
}

void member_amount(strbuf *b, const char *key, int64_t n)
{
	if (n == INT64_MAX)
		member_text(b, key, NULL);
	else
		member_int(b, key, n);
}

void member_number(strbuf *b, const char *key, double x)
{
	if (!isfinite(x)) {
		member_text(b, key, NULL);
	} else if (x == rint(x) && fabs(x) < 9007199254740992.0) {
		member_int(b, key, (int64_t)x);
	} else {
		member_key(b, key);
		strbuf_double(b, x);
	}
}

void member_bool(strbuf *b, const char *key, bool x)
{
	member_key(b, key);
	strbuf_puts(b, x ? "true" : "false");
}
