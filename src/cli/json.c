/* Prints JSON on standard output, one member to a line.
 * What is open is a stack of closing brackets; commands nest little. */
#include <math.h>
#include <string.h>

#include "cli.h"

enum { DEPTH = 32 };

static struct {
	char close[DEPTH];
	bool filled[DEPTH]; /* a member was written */
	unsigned depth;
	unsigned line; /* all deeper than this is on one line; 0: nothing is */
} open_json;

/* Bytes of the UTF-8 character at s; 0: it is none, also where it is a surrogate, too large or longer than need be. */
static int utf8_length(const unsigned char *s)
{
	int n = *s < 0x80 ? 1 : *s >= 0xC2 && *s < 0xE0 ? 2 : *s >= 0xE0 && *s < 0xF0 ? 3 : *s >= 0xF0 && *s < 0xF5 ? 4 : 0;
	for (int i = 1; i < n; i++)
		if ((s[i] & 0xC0) != 0x80)
			return 0;
	bool odd = (*s == 0xE0 && s[1] < 0xA0) || (*s == 0xED && s[1] > 0x9F) || (*s == 0xF0 && s[1] < 0x90) ||
	           (*s == 0xF4 && s[1] > 0x8F);
	return odd ? 0 : n;
}

static void put_string(const char *s)
{
	putchar('"');
	for (int n; *s; s += n ? n : 1) {
		n = utf8_length((const unsigned char *)s);
		if (n == 0)
			fputs("\\ufffd", stdout);
		else if ((unsigned char)*s < 0x20 || *s == 0x7F)
			printf("\\u%04x", (unsigned char)*s);
		else if (n == 2 && (unsigned char)s[0] == 0xC2 && (unsigned char)s[1] < 0xA0) /* terminals obey these too */
			printf("\\u%04x", (unsigned char)s[1]);
		else if (*s == '"' || *s == '\\')
			printf("\\%c", *s);
		else
			fwrite(s, 1, (size_t)n, stdout);
	}
	putchar('"');
}

static void new_line(void)
{
	printf("\n%*s", (int)(2 * open_json.depth), "");
}

static void start_member(const char *key)
{
	if (open_json.depth) {
		bool *filled = &open_json.filled[open_json.depth - 1];
		bool line = open_json.line && open_json.depth > open_json.line;
		if (*filled)
			fputs(line ? ", " : ",", stdout);
		*filled = true;
		if (!line)
			new_line();
	}
	if (key) {
		put_string(key);
		fputs(": ", stdout);
	}
}

void put_json_open(const char *key, char bracket)
{
	start_member(key);
	putchar(bracket);
	if (open_json.depth == DEPTH)
		return;
	open_json.close[open_json.depth] = bracket == '{' ? '}' : ']';
	open_json.filled[open_json.depth++] = false;
}

void put_json_open_line(const char *key, char bracket)
{
	if (!open_json.line)
		open_json.line = open_json.depth;
	put_json_open(key, bracket);
}

void put_json_close(void)
{
	bool filled = open_json.filled[--open_json.depth];
	if (filled && !(open_json.line && open_json.depth >= open_json.line))
		new_line();
	if (open_json.depth == open_json.line)
		open_json.line = 0;
	putchar(open_json.close[open_json.depth]);
	if (open_json.depth == 0)
		putchar('\n');
}

void put_json_text(const char *key, const char *s)
{
	start_member(key);
	if (s)
		put_string(s);
	else
		fputs("null", stdout);
}

void put_json_int(const char *key, int64_t n)
{
	start_member(key);
	printf("%lld", (long long)n);
}

void put_json_number(const char *key, double x)
{
	char text[HUMAN_TEXT];
	start_member(key);
	if (!isfinite(x)) {
		fputs("null", stdout);
		return;
	}
	for (int digits = 15; digits <= 17; digits++) { /* the shortest that reads back */
		double back;
		snprintf(text, sizeof text, "%.*g", digits, x);
		if (sscanf(text, "%lf", &back) == 1 && back == x)
			break;
	}
	fputs(text, stdout);
}

void put_json_bool(const char *key, bool b)
{
	start_member(key);
	fputs(b ? "true" : "false", stdout);
}

void put_json_members(const char *object)
{
	size_t n = strlen(object);
	while (n > 1 && object[n - 1] != '}')
		n--;
	if (n < 3)
		return;
	start_member(NULL);
	fwrite(object + 1, 1, n - 2, stdout);
}
