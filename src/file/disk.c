/* Reads, maps and writes whole files.
 * What is written goes to a file of another name next to the target, which then takes its place: a reader sees the old
 * content or the new one, never a part. */
#define _GNU_SOURCE /* memfd_create */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file/safetensors.h"

static _Thread_local struct {
	uint64_t left;
	int error;
} fault;

void disk_fault_after(uint64_t n, int error)
{
	fault.left = n;
	fault.error = error;
}

bool disk_fault_waits(void)
{
	return fault.left != 0;
}

/* Asked before each step that writes. */
static bool step_fails(void)
{
	if (!fault.left || --fault.left)
		return false;
	if (!fault.error)
		raise(SIGKILL);
	errno = fault.error;
	return true;
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

static clv_status read_bytes(int fd, const char *path, uint8_t *to, size_t n)
{
	for (size_t at = 0; at < n;) {
		ssize_t got = read(fd, to + at, n - at);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return fail_io("read", path);
		if (got == 0)
			return fail(CLV_E_IO, "cannot read %s: it became shorter while it was read", path);
		at += (size_t)got;
	}
	return CLV_OK;
}

static clv_status regular_size(int fd, const char *path, size_t *n)
{
	struct stat info;
	if (fstat(fd, &info) != 0)
		return fail_io("read", path);
	if (!S_ISREG(info.st_mode))
		return fail(CLV_E_IO, "cannot read %s: it is no regular file", path);
	*n = (size_t)info.st_size;
	return CLV_OK;
}

static clv_status read_open(int fd, const char *path, size_t most, uint8_t **data, size_t *n)
{
	TRY(regular_size(fd, path, n));
	if (*n > most)
		return fail(CLV_E_IO, "cannot read %s: it has %zu bytes, %zu at most are expected here", path, *n, most);
	*data = mem_realloc(NULL, *n, 1);
	TRY_MEM(*data);
	clv_status st = read_bytes(fd, path, *data, *n);
	if (st != CLV_OK)
		mem_free(*data);
	return st;
}

static clv_status open_file(const char *path, int *fd)
{
	*fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe would wait for its other end */
	return *fd < 0 ? fail_io("open", path) : CLV_OK;
}

clv_status file_read_most(const char *path, size_t most, uint8_t **data, size_t *n)
{
	int fd;
	TRY(open_file(path, &fd));
	clv_status st = read_open(fd, path, most, data, n);
	close(fd);
	return st;
}

clv_status file_read(const char *path, uint8_t **data, size_t *n)
{
	return file_read_most(path, SIZE_MAX, data, n);
}

static clv_status copy_new(mapping *m)
{
	void *at = mmap(NULL, m->n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		return fail_nomem();
	m->at = at;
	return CLV_OK;
}

static clv_status copy_open(int fd, const char *path, mapping *m)
{
	TRY(copy_new(m));
	TRY(read_bytes(fd, path, m->at, m->n));
	return mprotect(m->at, m->n, PROT_READ) == 0 ? CLV_OK : fail_io("protect the copy of", path);
}

clv_status image_map(const st_image *i, mapping *out)
{
	*out = (mapping){.n = i->total};
	TRY(copy_new(out));
	st_copy(i, out->at);
	if (mprotect(out->at, out->n, PROT_READ) == 0)
		return CLV_OK;
	file_unmap(out);
	return fail(CLV_E_IO, "cannot protect a copy: %s", strerror(errno));
}

static clv_status map_open(int fd, const char *path, bool copy, mapping *m)
{
	TRY(regular_size(fd, path, &m->n));
	if (m->n == 0)
		return CLV_OK;
	if (copy)
		return copy_open(fd, path, m);
	void *at = mmap(NULL, m->n, PROT_READ, MAP_PRIVATE, fd, 0);
	if (at == MAP_FAILED)
		return fail_io("map", path);
	m->at = at;
	return CLV_OK;
}

clv_status file_map(const char *path, bool copy, mapping *out)
{
	int fd;
	*out = (mapping){0};
	TRY(open_file(path, &fd));
	clv_status st = map_open(fd, path, copy, out);
	if (st != CLV_OK)
		file_unmap(out);
	close(fd);
	return st;
}

/* Pages that are written are the process's own. */
clv_status mapping_own(const mapping *m, size_t n)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	if (mprotect(m->at, n, PROT_READ | PROT_WRITE) != 0)
		return fail(CLV_E_IO, "cannot copy the start of a file: %s", strerror(errno));
	for (size_t at = 0; at < n; at += page) {
		volatile uint8_t *byte = m->at + at;
		*byte = *byte;
	}
	return mprotect(m->at, n, PROT_READ) == 0 ? CLV_OK : fail(CLV_E_IO, "cannot protect a file: %s", strerror(errno));
}

/* write() says that a page is no more, where reading it would end the process. */
static clv_status settle_in(int fd, const mapping *m)
{
	for (size_t at = 0; at < m->n;) {
		ssize_t put = write(fd, m->at + at, m->n - at);
		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0)
			return fail(CLV_E_IO, "cannot copy the file: %s",
			            put < 0 && errno != EFAULT ? strerror(errno) : "it became shorter while it was read");
		at += (size_t)put;
	}
	return mmap(m->at, m->n, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0) == m->at
	           ? CLV_OK
	           : fail(CLV_E_IO, "cannot map a copy of the file: %s", strerror(errno));
}

clv_status mapping_settle(const mapping *m)
{
	if (!m->at)
		return CLV_OK;
	int fd = memfd_create("cleave-copy", MFD_CLOEXEC);
	if (fd < 0)
		return fail(CLV_E_IO, "cannot make memory for a copy of the file: %s", strerror(errno));
	clv_status st = settle_in(fd, m);
	close(fd);
	return st;
}

void file_unmap(mapping *m)
{
	if (m->at)
		munmap(m->at, m->n);
	*m = (mapping){0};
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

static clv_status write_bytes(int fd, const char *path, const void *from, size_t n)
{
	for (const char *at = from; n;) {
		ssize_t put = step_fails() ? -1 : write(fd, at, n);
		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			return fail_io("write", path);
		at += put;
		n -= (size_t)put;
	}
	return CLV_OK;
}

static clv_status write_image(int fd, const char *path, const st_image *image)
{
	TRY(write_bytes(fd, path, image->head, image->head_n));
	for (uint32_t i = 0; i < image->n; i++) {
		const st_entry *e = &image->entries[image->order[i]];
		TRY(write_bytes(fd, path, e->data, e->nbytes));
	}
	return (!step_fails() && fsync(fd) == 0) || errno == EINVAL ? CLV_OK : fail_io("write", path);
}

clv_status file_create(const char *path, const void *data, size_t n, bool secret)
{
	int fd = step_fails() ? -1 : open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, secret ? 0600 : 0666);
	if (fd < 0 && errno == EEXIST)
		return fail(CLV_E_IO, "%s exists already, and is not overwritten", path);
	if (fd < 0)
		return fail_io("write", path);
	clv_status st = write_bytes(fd, path, data, n);
	if (st == CLV_OK && (step_fails() || fsync(fd) != 0))
		st = fail_io("write", path);
	close(fd);
	if (st != CLV_OK)
		unlink(path);
	return st;
}

/* Whether the file behind fd still has that name. */
static bool has_name(int fd, const char *name, struct stat *here)
{
	struct stat there;
	return fstat(fd, here) == 0 && lstat(name, &there) == 0 && here->st_dev == there.st_dev &&
	       here->st_ino == there.st_ino;
}

/* A writer holds a lock on its file until the file has its final name. */
static bool keep_new(int fd, const char *name)
{
	struct stat here;
	if (flock(fd, LOCK_EX | LOCK_NB) != 0)
		return errno != EWOULDBLOCK; /* a file system without locks: there nothing is taken over either */
	return has_name(fd, name, &here);
}

/* What can be locked was left behind by a writer that is gone. It must be ours and have no other name. */
static bool take_over(int fd, const char *name)
{
	struct stat here;
	return flock(fd, LOCK_EX | LOCK_NB) == 0 && has_name(fd, name, &here) && S_ISREG(here.st_mode) &&
	       here.st_nlink == 1 && here.st_uid == geteuid() && ftruncate(fd, 0) == 0;
}

/* -1: errno says why; EEXIST: another writer has this name. */
static int open_for_us(const char *name)
{
	int fd = step_fails() ? -1 : open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	bool made = fd >= 0;
	if (!made && errno != EEXIST)
		return -1;
	if (!made)
		fd = open(name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd >= 0 && (made ? keep_new(fd, name) : take_over(fd, name)))
		return fd;
	if (fd >= 0)
		close(fd);
	errno = EEXIST;
	return -1;
}

/* Opens path.<k>.tmp, the first k that is not being written, with the permissions that any new file gets. */
static clv_status open_beside(const char *path, char **name, int *fd)
{
	for (unsigned k = 0; k < 1000; k++) {
		strbuf b = STRBUF_INIT;
		strbuf_printf(&b, "%s.%u.tmp", path, k);
		TRY(strbuf_take(&b, name));
		*fd = open_for_us(*name);
		if (*fd >= 0)
			return CLV_OK;
		int why = errno;
		mem_free(*name);
		*name = NULL;
		errno = why;
		if (why != EEXIST)
			break;
	}
	return fail_io("write", path);
}

static clv_status folder_of(const char *path, char **out)
{
	const char *slash = strrchr(path, '/');
	*out = slash ? mem_strdup(path, slash == path ? 1 : (size_t)(slash - path)) : mem_strdup(".", 1);
	return *out ? CLV_OK : fail_nomem();
}

/* The new name has reached the disk too. A file system that cannot say so is taken at its word. */
static void sync_folder(const char *folder)
{
	int fd = open(folder, O_RDONLY | O_CLOEXEC | O_DIRECTORY);
	if (fd < 0)
		return;
	(void)fsync(fd);
	close(fd);
}

/* Gives the new file the permissions of the one it replaces, before it has any content. */
static clv_status keep_mode(int fd, const char *path, const struct stat *old)
{
	struct stat now;
	mode_t mode = old->st_mode & 0777;
	if (fstat(fd, &now) == 0 && (now.st_mode & 0777) == mode)
		return CLV_OK;
	return fchmod(fd, mode) == 0 ? CLV_OK : fail_io("write", path);
}

static clv_status write_beside(const st_image *image, st_pending *f)
{
	struct stat old;
	bool there = stat(f->path, &old) == 0;
	if (there && !S_ISREG(old.st_mode))
		return fail(CLV_E_IO, "cannot write %s: it is there and no regular file", f->path);
	TRY(open_beside(f->path, &f->name, &f->fd));
	if (there)
		TRY(keep_mode(f->fd, f->path, &old));
	return write_image(f->fd, f->path, image);
}

static clv_status target_of(const char *path, char **out)
{
	char *resolved = realpath(path, NULL); /* of a link the file behind it is replaced, not the link */
	const char *target = resolved ? resolved : path;
	*out = mem_strdup(target, strlen(target));
	free(resolved);
	return *out ? CLV_OK : fail_nomem();
}

clv_status st_write(const st_image *image, const char *path, st_pending *out)
{
	*out = (st_pending){0};
	TRY(target_of(path, &out->path));
	clv_status st = write_beside(image, out);
	if (st != CLV_OK)
		st_drop(out);
	return st;
}

void st_drop(st_pending *f)
{
	if (f->name) {
		unlink(f->name);
		close(f->fd);
	}
	mem_free(f->name);
	mem_free(f->path);
	*f = (st_pending){0};
}

/* The file takes the place of the target while it is locked: a process that finds its old name afterwards finds another file. */
static clv_status rename_pending(st_pending *f)
{
	char *folder;
	TRY(folder_of(f->path, &folder));
	clv_status st = step_fails() || rename(f->name, f->path) != 0 ? fail_io("write", f->path) : CLV_OK;
	if (st == CLV_OK) {
		close(f->fd);
		mem_free(f->name);
		f->name = NULL; /* there is nothing to drop any more */
		if (!step_fails())
			sync_folder(folder);
	}
	mem_free(folder);
	return st;
}

clv_status st_commit(st_pending *f)
{
	clv_status st = f->name ? rename_pending(f) : CLV_OK;
	st_drop(f);
	return st;
}

clv_status st_save(const st_image *image, const char *path)
{
	st_pending f;
	TRY(st_write(image, path, &f));
	return st_commit(&f);
}
