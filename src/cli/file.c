/* Reads plans and models and writes text, with messages that a person can act on. */
#define _GNU_SOURCE /* memmem */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
static char *read_stream(FILE *f, size_t *n)
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

static char *read_path(const char *path, size_t *n)
{
	if (strcmp(path, "-") == 0)
		return read_stream(stdin, n);
	FILE *f = fopen(path, "rb");
	if (!f)
		return NULL;
	char *text = read_stream(f, n);
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
	bool plan = n >= 11 && memmem(text, n < 4096 ? n : 4096, "cleave-plan", 11);
	if (n == 0)
		complain("%s: the file is empty", name_of(path));
	else if (st == CLV_E_PARSE && !plan)
		complain("%s: neither a .clv file nor a plan, whose first line is \"cleave-plan 1\"", name_of(path));
	else
		complain(st == CLV_E_PARSE ? "%s:%s" : "%s: %s", name_of(path), clv_last_error());
}

/* ---- models ------------------------------------------------------------------------------------------------------- */

static void complain_read(const char *path)
{
	complain("%s: cannot be read: %s", name_of(path), strerror(errno));
}

/* What a .clv file has first: it is mapped and not read. */
bool starts_as_artifact(const char *path)
{
	char start[9];
	FILE *f = strcmp(path, "-") ? fopen(path, "rb") : NULL;
	size_t n = f ? fread(start, 1, sizeof start, f) : 0;
	if (f)
		fclose(f);
	return clv_is_artifact(start, n);
}

static bool use_artifact(model *m, const opening *o)
{
	uint32_t n = clv_artifact_plan_count(m->artifact);
	m->plan = o->plan < n ? clv_artifact_plan(m->artifact, (uint32_t)o->plan) : NULL;
	if (m->plan)
		return true;
	complain("%s: there is no plan %lld; the file has %u", name_of(m->path), (long long)o->plan, n);
	return false;
}

clv_open_options open_options(const opening *o)
{
	clv_open_options options = CLV_OPEN_OPTIONS_INIT;
	options.allow_operators = o->allow.at;
	options.nallow_operators = o->allow.n;
	options.check_data = o->check;
	options.copy = o->copy;
	options.trusted_keys = o->trusted_keys.at;
	options.ntrusted_keys = o->trusted_keys.n;
	return options;
}

bool complain_artifact(const char *path, clv_status st)
{
	const char *why = clv_last_error();
	size_t n = strlen(path);
	if (!strncmp(why, path, n) && !strncmp(why + n, ": ", 2)) /* the library names files too */
		complain("%s", why);
	else
		complain("%s: %s", name_of(path), why);
	if (st == CLV_E_UNSUPPORTED && clv_last_error_details()->op[0])
		hint("--allow-operator NAME lets it through, for a file that you trust");
	return false;
}

static bool open_file(model *m, const opening *o)
{
	clv_open_options options = open_options(o);
	struct stat info;
	clv_status st = clv_artifact_open(m->path, &options, &m->artifact);
	if (st != CLV_OK)
		return complain_artifact(m->path, st);
	m->size = stat(m->path, &info) == 0 ? info.st_size : 0;
	return use_artifact(m, o);
}

/* Bytes of standard input; they must start at a multiple of 64 and stay. */
static bool open_bytes(model *m, const opening *o, const char *text, size_t n)
{
	enum { ALIGN = 64 };
	clv_open_options options = open_options(o);
	m->bytes = aligned_alloc(ALIGN, (n + ALIGN) / ALIGN * ALIGN);
	if (!m->bytes) {
		complain("out of memory");
		return false;
	}
	memcpy(m->bytes, text, n);
	clv_status st = clv_artifact_parse(m->bytes, n, &options, &m->artifact);
	return st == CLV_OK ? use_artifact(m, o) : complain_artifact(m->path, st);
}

static bool open_text(model *m, const opening *o, const char *text, size_t n)
{
	if (o->trusted_keys.n) {
		complain("%s: this is no .clv file, and only those are signed", name_of(m->path));
		return false;
	}
	clv_status st = clv_plan_parse(text, n, &m->own);
	m->plan = m->own;
	if (st != CLV_OK)
		complain_plan(m->path, st, text, n);
	else if (o->plan)
		complain("%s: there is no plan %lld; this is the text of one", name_of(m->path), (long long)o->plan);
	return st == CLV_OK && !o->plan;
}

char *load_text(const char *path, size_t *n)
{
	char *text = read_path(path, n);
	if (!text)
		complain_read(path);
	return text;
}

bool model_open_read(const char *path, const opening *o, const char *text, size_t n, model *out)
{
	*out = (model){.path = path, .size = (int64_t)n};
	bool ok = clv_is_artifact(text, n) ? open_bytes(out, o, text, n) : open_text(out, o, text, n);
	if (!ok)
		model_close(out);
	return ok;
}

bool model_open(const char *path, const opening *given, model *out)
{
	opening o = {0};
	size_t n;
	if (given)
		o = *given;
	*out = (model){.path = path};
	if (starts_as_artifact(path)) {
		bool opened = open_file(out, &o);
		if (!opened)
			model_close(out);
		return opened;
	}
	char *text = load_text(path, &n);
	bool ok = text && model_open_read(path, &o, text, n, out);
	free(text);
	return ok;
}

bool model_open_artifact(const char *path, const opening *o, model *out)
{
	if (!model_open(path, o, out))
		return false;
	if (out->artifact)
		return true;
	model_close(out);
	complain("%s: this is the text of a plan, without weights", name_of(path));
	hint("plan.save(\"model.clv\") in Python writes plan and weights as one file");
	return false;
}

void model_close(model *m)
{
	clv_artifact_free(m->artifact);
	clv_plan_free(m->own);
	free(m->bytes);
	*m = (model){0};
}

static int by_entry(const void *a, const void *b)
{
	const clv_tensor_info *x = a, *y = b;
	int d = strcmp(x->entry, y->entry);
	return d ? d : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

int64_t tensor_bytes(const clv_artifact *a)
{
	uint32_t n = clv_artifact_tensor_count(a), known = 0;
	clv_tensor_info *at = grab((n + 1) * sizeof *at);
	int64_t sum = 0;
	for (uint32_t i = 0; i < n; i++) {
		at[known].size = sizeof *at;
		known += clv_artifact_tensor(a, i, &at[known]) == CLV_OK;
	}
	qsort(at, known, sizeof *at, by_entry);
	for (uint32_t i = 0; i < known; i++) /* the last of an entry is the largest */
		sum += i + 1 == known || strcmp(at[i].entry, at[i + 1].entry) ? at[i].bytes : 0;
	free(at);
	return sum;
}

/* ---- writing ------------------------------------------------------------------------------------------------------ */

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
	clv_free(text);
	return written();
}

/* A terminal may be read and written. */
static bool is_same_file(const char *a, const char *b)
{
	struct stat x, y;
	return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino && S_ISREG(x.st_mode);
}

bool check_output_as(const char *name, const char *output, const char *input)
{
	if (!output || !input || !strcmp(output, "-") || !strcmp(input, "-") || !is_same_file(output, input))
		return true;
	complain("%s %s is the file that is read", name, output);
	return false;
}

bool check_output(const char *output, const char *input)
{
	return check_output_as("-o", output, input);
}

static bool put_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "wb");
	bool ok = f && fputs(text, f) >= 0;
	return f && fclose(f) == 0 && ok;
}

/* A new file gets what the umask leaves, one that is replaced keeps what it has. */
static mode_t mode_for(const struct stat *old)
{
	mode_t mask = umask(0);
	umask(mask);
	return old ? old->st_mode & 0777 : 0666 & ~mask;
}

/* Written to a temporary file that is renamed when complete, so that a reader never sees part of it. */
static bool replace_file(const char *path, const struct stat *old, const char *text)
{
	char *name = grab(strlen(path) + sizeof ".XXXXXX");
	sprintf(name, "%s.XXXXXX", path);
	int fd = mkstemp(name);
	bool ok = fd >= 0 && fchmod(fd, mode_for(old)) == 0 && put_file(name, text) && rename(name, path) == 0;
	int error = errno;
	if (fd >= 0) {
		close(fd);
		if (!ok)
			unlink(name);
	}
	free(name);
	errno = error;
	return ok;
}

static bool save_at(const char *path, const char *text)
{
	struct stat old;
	bool there = stat(path, &old) == 0;
	if (there && !S_ISREG(old.st_mode)) /* a pipe, a terminal */
		return put_file(path, text);
	char *target = there ? realpath(path, NULL) : NULL; /* of a link the file behind it is replaced */
	bool ok = replace_file(target ? target : path, there ? &old : NULL, text);
	free(target);
	return ok;
}

bool save_text(const char *path, char *text)
{
	if (strcmp(path, "-") == 0)
		return put_text(text);
	bool ok = save_at(path, text);
	if (!ok)
		complain("%s: cannot be written: %s", path, strerror(errno));
	clv_free(text);
	return ok;
}

int save_result(clv_status st, char *text, const char *output, const char *path)
{
	if (st != CLV_OK)
		return fail_with(path);
	return save_text(output, text) ? EXIT_OK : EXIT_FAILED;
}

bool is_traced(const clv_artifact *a, uint32_t plan_number)
{
	uint32_t node;
	const char *reason;
	return clv_artifact_segment_count(a, plan_number) || clv_artifact_fallback(a, plan_number, 0, &node, &reason);
}
