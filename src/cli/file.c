/* Reading plans and writing text for the commands, with messages a person can act on. */
#define _GNU_SOURCE /* memmem */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

void *regrab(void *at, size_t bytes)
{
	void *grown = realloc(at, bytes ? bytes : 1);
	if (!grown) {
		complain("out of memory");
		exit(EXIT_FAILED);
	}
	return grown;
}

void *grab(size_t bytes)
{
	return memset(regrab(NULL, bytes), 0, bytes);
}

char *grab_text(const char *s, size_t n)
{
	char *text = grab(n + 1);
	memcpy(text, s, n);
	return text;
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

const char *name_of(const char *path)
{
	return strcmp(path, "-") ? path : "standard input";
}

/* Compilers write file:line:col:, and so do we. */
static void complain_plan(const char *path, clv_status st, const char *text, size_t n)
{
	complain(st == CLV_E_PARSE ? "%s:%s" : "%s: %s", name_of(path), clv_last_error());
	if (st == CLV_E_PARSE && (n < 11 || !memmem(text, n < 4096 ? n : 4096, "cleave-plan", 11)))
		hint("this does not look like a plan: the first line of one is \"cleave-plan 1\"");
}

clv_plan *load_plan(const char *path)
{
	size_t n;
	clv_plan *p = NULL;
	char *text = read_file(path, &n);
	if (!text) {
		complain("%s: cannot be read: %s", name_of(path), strerror(errno));
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
	complain("standard output: cannot be written: %s", strerror(errno));
	return false;
}

bool put_text(char *text)
{
	fputs(text, stdout);
	clv_string_free(text);
	return written();
}

bool save_text(const char *path, char *text)
{
	if (strcmp(path, "-") == 0)
		return put_text(text);
	FILE *f = fopen(path, "wb");
	bool ok = f && fputs(text, f) >= 0;
	ok = f && fclose(f) == 0 && ok;
	if (!ok)
		complain("%s: cannot be written: %s", path, strerror(errno));
	clv_string_free(text);
	return ok;
}
