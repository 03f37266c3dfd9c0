/* Folders for jobs: private to their owner, emptied and removed without following links. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "segment/compile.h"

bool plain_file_name(const char *name)
{
	size_t n = strlen(name);
	if (n == 0 || n > 255 || strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || !utf8_valid(name, n))
		return false;
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f || name[i] == '/' || utf8_control(name + i, n - i))
			return false;
	return true;
}

clv_status path_absolute(const char *path, char **out)
{
	strbuf b = STRBUF_INIT;
	if (path[0] != '/') {
		char *here = getcwd(NULL, 0);
		if (!here)
			return fail(CLV_E_IO, "cannot tell which folder this is: %s", strerror(errno));
		strbuf_puts(&b, here);
		strbuf_putc(&b, '/');
		free(here);
	}
	strbuf_puts(&b, path);
	return strbuf_take(&b, out);
}

clv_status folder_make_temporary(char **out)
{
	const char *base = getenv("TMPDIR");
	strbuf b = STRBUF_INIT;
	char *path;
	strbuf_printf(&b, "%s/cleave-XXXXXX", base && *base ? base : "/tmp");
	TRY(strbuf_take(&b, &path));
	if (!mkdtemp(path)) {
		clv_status st = fail_io("make a temporary folder", path);
		mem_free(path);
		return st;
	}
	*out = path;
	return CLV_OK;
}

static bool is_dot(const char *name)
{
	return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

static bool is_folder(int dir, const char *name)
{
	struct stat info;
	return fstatat(dir, name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(info.st_mode);
}

/* What a walk through a folder does with each name; false: errno says why not. */
typedef bool (*folder_step)(int dir, const char *name);

/* Takes fd. */
static bool each_name(int fd, folder_step step)
{
	DIR *d = fdopendir(fd);
	bool good = d != NULL;
	if (!d) {
		close(fd);
		return false;
	}
	/* What is removed while it is listed is not listed again. */
	for (struct dirent *e; good && (errno = 0, e = readdir(d));)
		good = is_dot(e->d_name) || step(dirfd(d), e->d_name);
	good = good && errno == 0;
	int why = errno;
	closedir(d);
	errno = why;
	return good;
}

static int open_folder(int dir, const char *name)
{
	return openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static bool remove_one(int dir, const char *name)
{
	if (unlinkat(dir, name, 0) == 0 || errno == ENOENT)
		return true;
	if (!is_folder(dir, name))
		return false;
	int fd = open_folder(dir, name);
	return fd >= 0 && each_name(fd, remove_one) && unlinkat(dir, name, AT_REMOVEDIR) == 0;
}

clv_status folder_remove(const char *path)
{
	return remove_one(AT_FDCWD, path) ? CLV_OK : fail_io("remove", path);
}

/* The first file of a job's folder: the next run may remove all other files there. */
#define JOB_MARK ".cleave-job"

static bool is_nothing(int dir, const char *name)
{
	(void)dir;
	(void)name;
	errno = ENOTEMPTY;
	return false;
}

static bool remove_but_mark(int dir, const char *name)
{
	return strcmp(name, JOB_MARK) == 0 || remove_one(dir, name);
}

static clv_status mark_folder(int fd, const char *path)
{
	int mark = openat(fd, JOB_MARK, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (mark < 0)
		return fail_io("write into", path);
	close(mark);
	return CLV_OK;
}

/* Takes fd. */
static clv_status prepare_folder(int fd, const char *path)
{
	struct stat info;
	bool marked = fstatat(fd, JOB_MARK, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(info.st_mode);
	int again = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	bool good = again >= 0 && each_name(again, marked ? remove_but_mark : is_nothing);
	clv_status st = CLV_OK;
	if (!good && !marked && errno == ENOTEMPTY)
		st = fail(CLV_E_IO, "%s is not empty and not from an earlier compilation: remove it, or choose another folder",
		          path);
	else if (!good)
		st = fail_io("empty", path);
	else if (!marked)
		st = mark_folder(fd, path);
	close(fd);
	return st;
}

clv_status job_folder_make(const char *base, const char *name, char **out)
{
	strbuf b = STRBUF_INIT;
	char *path;
	if (!plain_file_name(name))
		return fail(CLV_E_INVALID, "the name of a job is no plain file name");
	strbuf_printf(&b, "%s/%s", base, name);
	TRY(strbuf_take(&b, &path));
	clv_status st = folder_make(path);
	if (st == CLV_OK) {
		int fd = open_folder(AT_FDCWD, path);
		st = fd < 0 ? fail_io("open", path) : prepare_folder(fd, path);
	}
	if (st != CLV_OK) {
		mem_free(path);
		return st;
	}
	*out = path;
	return CLV_OK;
}

/* ESTALE: the file became shorter. */
static bool read_whole(int fd, uint8_t *to, size_t n)
{
	for (size_t at = 0; at < n;) {
		ssize_t got = read(fd, to + at, n - at);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0) {
			errno = got ? errno : ESTALE;
			return false;
		}
		at += (size_t)got;
	}
	return true;
}

static clv_status read_open(int fd, const char *name, size_t most, uint8_t **data, size_t *n)
{
	struct stat info;
	if (fstat(fd, &info) != 0)
		return fail_io("read", name);
	if (!S_ISREG(info.st_mode))
		return fail(CLV_E_IO, "%s is no regular file", name);
	if ((uint64_t)info.st_size > most)
		return fail(CLV_E_IO, "%s has %lld bytes, %zu are allowed", name, (long long)info.st_size, most);
	*n = (size_t)info.st_size;
	*data = mem_realloc(NULL, *n, 1);
	TRY_MEM(*data);
	if (read_whole(fd, *data, *n))
		return CLV_OK;
	mem_free(*data);
	return fail_io("read", name);
}

clv_status folder_read(const char *dir, const char *name, size_t most, uint8_t **data, size_t *n)
{
	int at = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (at < 0)
		return fail_io("open", dir);
	int fd = openat(at, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	int why = errno;
	close(at);
	errno = why;
	if (fd < 0 && errno == ENOENT)
		return fail(CLV_E_NOT_FOUND, "there is no %s", name);
	if (fd < 0)
		return errno == ELOOP ? fail(CLV_E_IO, "%s is a link", name) : fail_io("open", name);
	clv_status st = read_open(fd, name, most, data, n);
	close(fd);
	return st;
}

static bool write_whole(int fd, const char *from, size_t n)
{
	while (n) {
		ssize_t put = write(fd, from, n);
		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0)
			return false;
		from += put;
		n -= (size_t)put;
	}
	return true;
}

/* Takes dir. */
static bool write_at(int dir, const char *name, const char *temporary, const void *data, size_t n)
{
	unlinkat(dir, temporary, 0);
	int fd = openat(dir, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	bool good = fd >= 0 && write_whole(fd, data, n);
	if (fd >= 0)
		good = close(fd) == 0 && good;
	good = good && renameat(dir, temporary, dir, name) == 0;
	int why = errno;
	if (!good && fd >= 0)
		unlinkat(dir, temporary, 0);
	close(dir);
	errno = why;
	return good;
}

clv_status folder_write(const char *dir, const char *name, const void *data, size_t n)
{
	strbuf b = STRBUF_INIT;
	char *temporary;
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return fail_io("open", dir);
	strbuf_printf(&b, "%s.tmp", name);
	clv_status st = strbuf_take(&b, &temporary);
	if (st != CLV_OK) {
		close(fd);
		return st;
	}
	if (!write_at(fd, name, temporary, data, n))
		st = fail(CLV_E_IO, "cannot write %s/%s: %s", dir, name, strerror(errno));
	mem_free(temporary);
	return st;
}
