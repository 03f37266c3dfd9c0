/* config.pbtxt: protocol buffers as text. Fields are walked with their path; some of them are taken, others are named. */
#include "serve/config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/digest.h"
#include "file/safetensors.h"
#include "net/http.h"

enum { DEPTH = 32, WORD = 128, FILE_MOST = 1 << 20 };

typedef struct reader {
	const char *at, *end;
	unsigned line;
	char word[WORD]; /* the token: a name, a number, the inside of a string, or one mark */
	char kind;       /* 'w', 's', the mark itself, or 0 at the end */
	model_config *c;
} reader;

static clv_status malformed(const reader *r, const char *what)
{
	return fail(CLV_E_PARSE, "config.pbtxt, line %u: %s", r->line, what);
}

static void skip_blank(reader *r)
{
	for (; r->at < r->end; r->at++) {
		if (*r->at == '#')
			while (r->at + 1 < r->end && r->at[1] != '\n')
				r->at++;
		else if (*r->at == '\n')
			r->line++;
		else if (!strchr(" \t\r,;", *r->at) || !*r->at)
			return;
	}
}

static bool in_word(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c && strchr("_.+-", c));
}

static clv_status next(reader *r)
{
	size_t n = 0;
	skip_blank(r);
	r->word[0] = '\0';
	r->kind = r->at < r->end ? *r->at : '\0';
	if (r->at == r->end)
		return CLV_OK;
	if (in_word(*r->at)) {
		r->kind = 'w';
		for (; r->at < r->end && in_word(*r->at) && n < WORD - 1; n++)
			r->word[n] = *r->at++;
	} else if (*r->at == '"' || *r->at == '\'') {
		char quote = *r->at++;
		r->kind = 's';
		while (r->at < r->end && *r->at != quote && *r->at != '\n' && n < WORD - 1) {
			r->at += *r->at == '\\' && r->at + 1 < r->end;
			r->word[n++] = *r->at++;
		}
		if (r->at == r->end || *r->at++ != quote)
			return malformed(r, "a text has no end, or is long");
	} else if (strchr("{}[]<>:", *r->at)) {
		r->at++;
	} else {
		return malformed(r, "there is a character that does not belong there");
	}
	r->word[n] = '\0';
	return CLV_OK;
}

/* Each once. */
static void note_unused(reader *r, const char *name)
{
	enum { MOST = 2000 }; /* bytes, about */
	strbuf *b = &r->c->unused;
	if (b->n > MOST)
		return;
	strbuf_putc(b, '\0');
	b->n -= !b->failed;
	if (b->failed || http_has_word(b->at, name))
		return;
	strbuf_printf(b, "%s%s", b->n ? ", " : "", name);
	strbuf_puts(b, b->n > MOST ? ", …" : "");
}

static clv_status take(reader *r, const char *path)
{
	model_config *c = r->c;
	int64_t n = -1;
	bool number = http_number(r->word, &n);
	if (strcmp(path, "name") == 0) {
		mem_free(c->name);
		c->name = mem_strdup(r->word, strlen(r->word));
		TRY_MEM(c->name);
	} else if (strcmp(path, "max_batch_size") == 0) {
		if (!number)
			return malformed(r, "max_batch_size is no number");
		c->max_batch = n;
	} else if (strcmp(path, "version_policy.specific.versions") == 0) {
		if (!number)
			return malformed(r, "a version is no number");
		TRY(vec_push(&c->versions, n));
		c->latest = INT64_MAX;
	} else if (strcmp(path, "version_policy.latest.num_versions") == 0) {
		if (!number || n < 1)
			return malformed(r, "num_versions is no number from 1 on");
		c->latest = n;
	}
	return CLV_OK;
}

static clv_status read_fields(reader *r, const char *path, unsigned depth, char end);

static clv_status read_value(reader *r, const char *path, unsigned depth)
{
	if (r->kind == '{' || r->kind == '<')
		return read_fields(r, path, depth + 1, r->kind == '{' ? '}' : '>');
	if (r->kind != 'w' && r->kind != 's')
		return malformed(r, "a field has no value");
	return take(r, path);
}

static clv_status read_list(reader *r, const char *path, unsigned depth)
{
	for (;;) {
		TRY(next(r));
		if (r->kind == ']')
			return CLV_OK;
		TRY(read_value(r, path, depth));
	}
}

static clv_status read_fields(reader *r, const char *path, unsigned depth, char end)
{
	char inner[2 * WORD];
	if (depth > DEPTH)
		return malformed(r, "it is nested too deeply");
	for (;;) {
		TRY(next(r));
		if (r->kind == end)
			return CLV_OK;
		if (r->kind != 'w')
			return malformed(r, "there is no name of a field where there has to be one");
		if (!depth && strcmp(r->word, "name") && strcmp(r->word, "max_batch_size") && strcmp(r->word, "version_policy"))
			note_unused(r, r->word);
		int n = snprintf(inner, sizeof inner, "%s%s%s", path, path[0] ? "." : "", r->word);
		if (n >= (int)sizeof inner)
			return malformed(r, "a name is too long");
		TRY(next(r));
		if (r->kind == ':')
			TRY(next(r));
		TRY(r->kind == '[' ? read_list(r, inner, depth) : read_value(r, inner, depth));
		if (strcmp(inner, "version_policy.all") == 0)
			r->c->latest = INT64_MAX;
	}
}

clv_status model_config_parse(const char *text, size_t n, model_config *out)
{
	reader r = {.at = text, .end = text + n, .line = 1, .c = out};
	*out = (model_config){.max_batch = -1, .latest = 1};
	TRY(read_fields(&r, "", 0, '\0'));
	return out->unused.failed ? fail_nomem() : CLV_OK;
}

clv_status model_config_read(const char *folder, model_config *out)
{
	strbuf path = STRBUF_INIT;
	uint8_t *data;
	size_t n;
	struct stat info;
	*out = (model_config){.max_batch = -1, .latest = 1};
	if (!folder)
		return CLV_OK;
	strbuf_printf(&path, "%s/config.pbtxt", folder);
	strbuf_putc(&path, '\0');
	clv_status st = path.failed ? fail_nomem() : CLV_OK;
	bool there = st == CLV_OK && stat(path.at, &info) == 0;
	if (there)
		st = file_read_most(path.at, FILE_MOST, &data, &n);
	strbuf_free(&path);
	if (!there || st != CLV_OK)
		return st;
	st = model_config_parse((const char *)data, n, out);
	out->digest = digest_of(data, n).low | 1;
	mem_free(data);
	return st;
}

void model_config_free(model_config *c)
{
	mem_free(c->name);
	vec_free(&c->versions);
	strbuf_free(&c->unused);
}
