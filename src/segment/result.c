/* Reads the results of a compiler from its folder.
 *
 * It may have crashed, filled the disk, or be wrong: the outcome is a checked result, or a message for people. Only lack of
 * memory is an error here. */
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "file/json.h"
#include "segment/child.h"

enum { JSON_MOST = 16 << 20, LOG_TAIL = 4000, LOG_LINES = 20, MEMBERS_MOST = 4096 };
static const size_t member_most = (size_t)1 << 38;

/* What a program printed must not steer a terminal, and is text whatever it was. */
static void put_printed(strbuf *b, const char *s, size_t n)
{
	for (size_t i = 0, step; i < n; i += step) {
		step = utf8_length(s + i, n - i);
		bool odd = step == 0 || (unsigned char)s[i] < 0x20 || s[i] == 0x7f || utf8_control(s + i, n - i);
		step = step ? step : 1;
		if (s[i] == '\t')
			strbuf_putc(b, ' ');
		else if (odd)
			strbuf_putc(b, '?');
		else
			strbuf_add(b, s + i, step);
	}
}

/* Where the last lines begin. */
static size_t tail_of(const char *s, size_t n)
{
	size_t at = n;
	for (uint32_t lines = 0; at > 0; at--)
		if (s[at - 1] == '\n' && at != n && ++lines == LOG_LINES)
			break;
	return at;
}

static void put_lines(strbuf *b, const char *s, size_t n, const char *between)
{
	for (size_t at = 0, end; at < n; at = end + 1) {
		const char *line = memchr(s + at, '\n', n - at);
		end = line ? (size_t)(line - s) : n;
		strbuf_puts(b, at ? between : "");
		put_printed(b, s + at, end - at);
	}
}

static void put_tail(strbuf *b, const char *s, size_t n)
{
	while (n && (s[n - 1] == '\n' || s[n - 1] == '\r' || s[n - 1] == ' '))
		n--;
	if (!n)
		return;
	size_t from = tail_of(s, n);
	strbuf_puts(b, "; the end of its output (compile.log):\n  ");
	put_lines(b, s + from, n - from, "\n  ");
}

/* A log may be of any size; its end is what counts. */
static size_t read_end(const char *dir, char *to, size_t most)
{
	int folder = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int fd = folder < 0 ? -1 : openat(folder, "compile.log", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	off_t size = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
	ssize_t n = size < 0 ? -1 : pread(fd, to, most, size > (off_t)most ? size - (off_t)most : 0);
	if (fd >= 0)
		close(fd);
	if (folder >= 0)
		close(folder);
	return n < 0 ? 0 : (size_t)n;
}

static void put_log(strbuf *b, const char *dir)
{
	char log[LOG_TAIL];
	put_tail(b, log, read_end(dir, log, sizeof log));
}

/* A compiler often cannot say that the disk is full. */
static void put_disk(strbuf *b, const char *dir)
{
	struct statvfs disk;
	if (statvfs(dir, &disk) == 0 && (uint64_t)disk.f_bavail * disk.f_frsize < 65536)
		strbuf_printf(b, "; the disk is full where its folder is (%s)", dir);
}

static void put_end(strbuf *b, const child *c)
{
	const char *step = child_broken(c);
	if (step)
		strbuf_printf(b, "the compiler was not started: cannot %s: %s", step, strerror(c->broken_errno));
	else if (!c->has_status)
		strbuf_puts(b, "the compiler was killed from outside; perhaps there was not enough memory");
	else if (WIFSIGNALED(c->status))
		strbuf_printf(b, "the compiler was killed by signal %d (%s)", WTERMSIG(c->status),
		              strsignal(WTERMSIG(c->status)));
	else if (WEXITSTATUS(c->status))
		strbuf_printf(b, "the compiler ended with code %d", WEXITSTATUS(c->status));
	else
		strbuf_puts(b, "the compiler reported success");
}

/* Adds the state of the disk and the end of the log. */
static clv_status finish_message(job *j, strbuf *b)
{
	put_disk(b, j->dir);
	put_log(b, j->dir);
	return strbuf_take(b, &j->message);
}

static clv_status fail_job(job *j, const child *c, const char *why)
{
	strbuf b = STRBUF_INIT;
	j->state = JOB_FAILED;
	put_end(&b, c);
	if (*why) { /* it quotes what the compiler wrote */
		strbuf_puts(&b, ", but ");
		put_lines(&b, why, strlen(why), "\n");
	}
	return finish_message(j, &b);
}

static clv_status read_blamed(job *j, const json_t *nodes)
{
	uint32_t n = (uint32_t)json_array_size(nodes);
	j->blamed = mem_alloc((size_t)n * sizeof *j->blamed);
	TRY_MEM(j->blamed);
	for (uint32_t i = 0; i < n; i++) {
		const json_t *name = json_array_get(nodes, i);
		if (!json_is_string(name))
			return fail(CLV_E_PARSE, "node %u of \"nodes\" is not a string", i);
		j->blamed[i] = mem_strdup(json_string_value(name), json_string_length(name));
		TRY_MEM(j->blamed[i]);
		j->nblamed++;
	}
	return CLV_OK;
}

static clv_status read_error(job *j, const json_t *root)
{
	const char *message;
	const json_t *nodes = json_object_get(root, "nodes"), *argument = json_object_get(root, "argument");
	TRY(json_get_string(root, "message", &message));
	if (nodes && !json_is_array(nodes))
		return fail(CLV_E_PARSE, "\"nodes\" is not an array");
	if (nodes)
		TRY(read_blamed(j, nodes));
	j->argument = argument && !json_is_false(argument) && !json_is_null(argument);
	strbuf b = STRBUF_INIT;
	put_lines(&b, message, strlen(message), "\n");
	return strbuf_take(&b, &j->message);
}

static clv_status read_result_member(job *j, const json_t *entry)
{
	const char *name = json_string_value(entry);
	uint8_t *data;
	size_t n;
	if (!name || strlen(name) != json_string_length(entry) || !plain_file_name(name))
		return fail(CLV_E_PARSE, "a member is not a plain file name");
	TRY(folder_read(j->dir, name, member_most, &data, &n));
	return compiled_add(&j->made, name, data, n);
}

static clv_status read_result_members(job *j, const json_t *root)
{
	const json_t *members;
	TRY(json_get_array(root, "members", &members));
	if (json_array_size(members) == 0 || json_array_size(members) > MEMBERS_MOST)
		return fail(CLV_E_PARSE, "it has %zu members", json_array_size(members));
	for (size_t i = 0; i < json_array_size(members); i++)
		TRY(read_result_member(j, json_array_get(members, i)));
	return CLV_OK;
}

static clv_status read_texts(compiled *c, json_t *object, const char *what,
                             clv_status (*add)(compiled *, const char *, const char *))
{
	const char *key;
	json_t *text;
	if (object && !json_is_object(object))
		return fail(CLV_E_PARSE, "\"%s\" is not an object", what);
	json_object_foreach(object, key, text)
	{
		const char *s;
		TRY(json_get_string(object, key, &s));
		TRY(add(c, key, s));
	}
	return CLV_OK;
}

static clv_status read_result(job *j, const json_t *root)
{
	TRY(read_texts(&j->made, json_object_get(root, "needs"), "needs", compiled_need));
	TRY(read_texts(&j->made, json_object_get(root, "notes"), "notes", compiled_note));
	return read_result_members(j, root);
}

/* CLV_E_NOT_FOUND: there is no such file. */
static clv_status read_json(job *j, const char *name, clv_status (*read)(job *, const json_t *))
{
	uint8_t *text;
	size_t n;
	json_t *root = NULL;
	TRY(folder_read(j->dir, name, JSON_MOST, &text, &n));
	clv_status st = json_read((const char *)text, n, name, &root);
	mem_free(text);
	TRY(st);
	st = read(j, root);
	json_decref(root);
	if (st == CLV_E_NOT_FOUND)
		st = CLV_E_IO; /* a file that it names, not the file itself */
	return st == CLV_OK ? st : fail_more(st, "%s is wrong", name);
}

static void drop_blamed(job *j)
{
	for (uint32_t i = 0; i < j->nblamed; i++)
		mem_free(j->blamed[i]);
	mem_free(j->blamed);
	j->blamed = NULL;
	j->nblamed = 0;
}

void job_free(job *j)
{
	compiled_free(&j->made);
	mem_free(j->message);
	drop_blamed(j);
	j->message = NULL;
}

/* The compiler's own words, if there are any. */
static clv_status take_error(job *j, const child *c, const char *without)
{
	clv_status st = read_json(j, "error.json", read_error);
	if (st == CLV_OK) {
		j->state = JOB_FAILED;
		return CLV_OK;
	}
	drop_blamed(j);
	if (st == CLV_E_NOMEM)
		return st;
	return fail_job(j, c, st == CLV_E_NOT_FOUND ? without : status_message());
}

static clv_status timed_out(job *j, double timeout)
{
	strbuf b = STRBUF_INIT;
	j->state = JOB_TIMEOUT;
	strbuf_printf(&b, "the compiler was stopped after %g seconds", timeout);
	return finish_message(j, &b);
}

clv_status job_read_result(job *j, const child *c, double timeout)
{
	if (timeout > 0)
		return timed_out(j, timeout);
	if (child_broken(c))
		return fail_job(j, c, "");
	if (!c->has_status || !WIFEXITED(c->status) || WEXITSTATUS(c->status) != 0)
		return take_error(j, c, "");
	clv_status st = read_json(j, "result.json", read_result);
	if (st == CLV_OK) {
		j->state = JOB_DONE;
		return CLV_OK;
	}
	compiled_free(&j->made);
	if (st == CLV_E_NOMEM)
		return st;
	if (st == CLV_E_NOT_FOUND)
		return take_error(j, c, "it left no result.json");
	return fail_job(j, c, status_message());
}
