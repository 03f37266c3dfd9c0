/* Reading plans and writing text for the commands, with messages a person can act on. */
#define _GNU_SOURCE /* memmem */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

/* Messages quote files that anybody may have written: nothing in them may steer the terminal. */
static void put_harmless(const char *s)
{
	for (; *s; s++)
		fputc((unsigned char)*s < 0x20 || *s == 0x7F ? '?' : *s, stderr);
}

void complain(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	char *text = n < 0 ? NULL : malloc((size_t)n + 1);
	if (text) {
		va_start(ap, fmt);
		vsnprintf(text, (size_t)n + 1, fmt, ap);
		va_end(ap);
	}
	fflush(stdout);
	fputs("cleave: ", stderr);
	put_harmless(text ? text : fmt);
	fputc('\n', stderr);
	free(text);
}

/* A plan of a million nodes is some 150 MB of text; what is larger is no plan, or never ends. */
enum { TEXT_MAX = 1 << 30 };

/* The rest of f; NULL with errno set. Caller frees. */
static char *read_all(FILE *f, size_t *n)
{
	size_t cap = 1 << 16;
	char *text = malloc(cap);
	*n = 0;
	while (text) {
		*n += fread(text + *n, 1, cap - *n, f);
		if (*n < cap)
			break;
		if (cap >= TEXT_MAX) {
			free(text);
			errno = EFBIG;
			return NULL;
		}
		cap *= 2;
		char *grown = realloc(text, cap);
		if (!grown)
			free(text);
		text = grown;
	}
	if (text && ferror(f)) {
		free(text);
		return NULL;
	}
	return text;
}

static char *read_file(const char *path, size_t *n)
{
	if (strcmp(path, "-") == 0)
		return read_all(stdin, n);
	FILE *f = fopen(path, "rb");
	if (!f)
		return NULL;
	char *text = read_all(f, n);
	int error = errno;
	fclose(f);
	errno = error;
	return text;
}

/* Compilers write file:line:col:, and so do we. */
static void complain_plan(const char *path, clv_status st, const char *text, size_t n)
{
	const char *name = strcmp(path, "-") == 0 ? "standard input" : path;
	complain(st == CLV_E_PARSE ? "%s:%s" : "%s: %s", name, clv_last_error());
	if (st == CLV_E_PARSE && (n < 11 || !memmem(text, n < 4096 ? n : 4096, "cleave-plan", 11)))
		fputs("This does not look like a plan: the first line of one is \"cleave-plan 1\".\n", stderr);
}

clv_plan *load_plan(const char *path)
{
	size_t n;
	clv_plan *p = NULL;
	char *text = read_file(path, &n);
	if (!text) {
		complain("cannot read %s: %s", path, strerror(errno));
		return NULL;
	}
	clv_status st = clv_plan_parse(text, n, &p);
	if (st != CLV_OK)
		complain_plan(path, st, text, n);
	free(text);
	return p;
}

bool written(void)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return true;
	complain("cannot write to standard output: %s", strerror(errno));
	return false;
}

bool put_text(char *text)
{
	fputs(text, stdout);
	clv_string_free(text);
	return written();
}
