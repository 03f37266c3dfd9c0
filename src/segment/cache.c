/* The cache of compiled segments: a folder with a file per key, <32 digits>.compiled.
 *
 * Several processes use it at once: a file appears whole, is never changed, and disappears whole; a process that has it
 * open keeps it. A hit sets the file's modification time, and the oldest files are evicted first. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "segment/compile.h"

#define SUFFIX ".compiled"
static const int64_t usual_limit = INT64_C(8000000000);
static const size_t entry_most = (size_t)1 << 38;

static clv_status find_place(const char *dir, char **out)
{
	strbuf b = STRBUF_INIT;
	const char *wish = dir ? dir : getenv("CLEAVE_CACHE");
	*out = NULL;
	if (!wish)
		usual_place("XDG_CACHE_HOME", ".cache", &b);
	else if (strcmp(wish, "off") != 0)
		strbuf_puts(&b, wish);
	if (b.n == 0 && !b.failed) {
		strbuf_free(&b);
		return CLV_OK;
	}
	char *path;
	TRY(strbuf_take(&b, &path));
	clv_status st = path_absolute(path, out);
	mem_free(path);
	return st;
}

static clv_status find_limit(int64_t limit, int64_t *out)
{
	const char *text = environment_text("CLEAVE_CACHE_LIMIT");
	char *end;
	*out = limit ? limit : usual_limit;
	if (limit < 0)
		return fail(CLV_E_INVALID, "the limit of the cache is %lld bytes", (long long)limit);
	if (limit || !text)
		return CLV_OK;
	errno = 0;
	long long n = strtoll(text, &end, 10);
	if (errno || *end || !isdigit((unsigned char)text[0]) || n <= 0)
		return fail(CLV_E_INVALID, "CLEAVE_CACHE_LIMIT is \"%.32s\"; it is a number of bytes", text);
	*out = n;
	return CLV_OK;
}

clv_status cache_open(const char *dir, int64_t limit, cache *out)
{
	clv_status st = CLV_OK;
	*out = (cache){0};
	TRY(find_limit(limit, &out->limit));
	TRY(find_place(dir, &out->dir));
	if (out->dir)
		st = folder_make(out->dir);
	if (out->dir && st == CLV_OK)
		st = folder_check(out->dir);
	if (st == CLV_OK)
		return CLV_OK;
	cache_close(out);
	return st == CLV_E_NOMEM ? st : fail_more(st, "there is no cache");
}

void cache_close(cache *c)
{
	mem_free(c->dir);
	*c = (cache){0};
}

static clv_status entry_name(digest key, char word[DIGEST_TEXT], char **name)
{
	strbuf b = STRBUF_INIT;
	digest_print(key, word);
	strbuf_printf(&b, "%s" SUFFIX, word);
	return strbuf_take(&b, name);
}

/* Whether there is an entry that we may read; one that cannot be trusted is removed. */
static bool entry_usable(int dir, const char *name)
{
	struct stat info;
	if (fstatat(dir, name, &info, AT_SYMLINK_NOFOLLOW) != 0)
		return false;
	if (S_ISREG(info.st_mode) && !distrust(&info))
		return true;
	unlinkat(dir, name, 0);
	return false;
}

static clv_status read_entry(const cache *c, const char *name, const char *key, compiled *out)
{
	uint8_t *data;
	size_t n;
	TRY(folder_read(c->dir, name, entry_most, &data, &n));
	return compiled_parse(data, n, key, out);
}

static clv_status get_at(const cache *c, int dir, const char *name, const char *key, compiled *out, bool *found)
{
	if (!entry_usable(dir, name))
		return CLV_OK;
	clv_status st = read_entry(c, name, key, out);
	if (st == CLV_E_NOMEM)
		return st;
	*found = st == CLV_OK;
	if (*found)
		utimensat(dir, name, NULL, AT_SYMLINK_NOFOLLOW);
	else if (st != CLV_E_NOT_FOUND && st != CLV_E_IO)
		unlinkat(dir, name, 0);
	return CLV_OK;
}

clv_status cache_get(const cache *c, digest key, compiled *out, bool *found)
{
	char word[DIGEST_TEXT], *name;
	*out = (compiled){0};
	*found = false;
	if (!c->dir)
		return CLV_OK;
	TRY(entry_name(key, word, &name));
	int dir = open(c->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	clv_status st = dir >= 0 ? get_at(c, dir, name, word, out, found) : CLV_OK; /* a removed cache has no hits */
	if (dir >= 0)
		close(dir);
	mem_free(name);
	return st;
}

typedef struct cache_entry {
	char name[64];
	int64_t bytes;
	struct timespec used;
} cache_entry;

typedef VEC(cache_entry) cache_entries;

static bool is_entry(const char *name)
{
	size_t digits = strspn(name, "0123456789abcdef");
	return digits == DIGEST_TEXT - 1 && strcmp(name + digits, SUFFIX) == 0;
}

/* Removes the file of a writer that died. Writers hold a lock. */
static void remove_left(int dir, const char *name, const struct stat *info)
{
	size_t digits = strspn(name, "0123456789abcdef"), n = strlen(name);
	if (digits != DIGEST_TEXT - 1 || n < 4 || strcmp(name + n - 4, ".tmp") != 0 || time(NULL) - info->st_mtime < 3600)
		return;
	int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return;
	if (flock(fd, LOCK_EX | LOCK_NB) == 0)
		unlinkat(dir, name, 0);
	close(fd);
}

static clv_status list_entries(DIR *d, cache_entries *out)
{
	for (struct dirent *e; (e = readdir(d));) {
		struct stat info;
		cache_entry entry = {0};
		if (fstatat(dirfd(d), e->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(info.st_mode))
			continue;
		if (!is_entry(e->d_name)) {
			remove_left(dirfd(d), e->d_name, &info);
			continue;
		}
		strcpy(entry.name, e->d_name); /* of known length */
		entry.bytes = info.st_size;
		entry.used = info.st_mtim;
		TRY(vec_push(out, entry));
	}
	return CLV_OK;
}

static int by_use(const void *a, const void *b)
{
	const cache_entry *x = a, *y = b;
	if (x->used.tv_sec != y->used.tv_sec)
		return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
	if (x->used.tv_nsec != y->used.tv_nsec)
		return x->used.tv_nsec < y->used.tv_nsec ? -1 : 1;
	return strcmp(x->name, y->name);
}

static void remove_oldest(const cache *c, int dir, cache_entries *all, const char *keep)
{
	int64_t sum = 0;
	for (uint32_t i = 0; i < all->n; i++)
		sum += all->at[i].bytes;
	if (all->n)
		qsort(all->at, all->n, sizeof *all->at, by_use);
	for (uint32_t i = 0; i < all->n && sum > c->limit; i++) {
		if (strcmp(all->at[i].name, keep) == 0)
			continue;
		unlinkat(dir, all->at[i].name, 0);
		sum -= all->at[i].bytes;
	}
}

static clv_status evict_entries(const cache *c, const char *keep)
{
	cache_entries all = {0};
	DIR *d = opendir(c->dir);
	if (!d)
		return fail(CLV_E_IO, "cannot read the cache %s: %s", c->dir, strerror(errno));
	clv_status st = list_entries(d, &all);
	if (st == CLV_OK)
		remove_oldest(c, dirfd(d), &all, keep);
	closedir(d);
	vec_free(&all);
	return st;
}

static clv_status commit_private(const cache *c, st_pending *f)
{
	struct stat info;
	if (fchmod(f->fd, 0600) != 0 || fstat(f->fd, &info) != 0) {
		clv_status st = fail(CLV_E_IO, "cannot write %s: %s", f->path, strerror(errno));
		st_drop(f);
		return st;
	}
	if (info.st_size > c->limit) {
		st_drop(f);
		return fail(CLV_E_IO, "an entry of %lld bytes is larger than the cache may be (CLEAVE_CACHE_LIMIT, %lld bytes)",
		            (long long)info.st_size, (long long)c->limit);
	}
	return st_commit(f);
}

/* A link under that name would be followed. */
static void remove_foreign(const char *path)
{
	struct stat info;
	if (lstat(path, &info) == 0 && (!S_ISREG(info.st_mode) || distrust(&info)))
		unlink(path);
}

static clv_status put_at(const cache *c, const char *name, const char *key, const compiled *made)
{
	st_pending f;
	strbuf b = STRBUF_INIT;
	char *path;
	strbuf_printf(&b, "%s/%s", c->dir, name);
	TRY(strbuf_take(&b, &path));
	remove_foreign(path);
	clv_status st = compiled_write(made, key, path, &f);
	if (st == CLV_OK)
		st = commit_private(c, &f);
	mem_free(path);
	return st == CLV_OK ? evict_entries(c, name) : st;
}

clv_status cache_put(const cache *c, digest key, const compiled *made)
{
	char word[DIGEST_TEXT], *name;
	if (!c->dir)
		return CLV_OK;
	TRY(entry_name(key, word, &name));
	clv_status st = put_at(c, name, word, made);
	mem_free(name);
	return st == CLV_OK || st == CLV_E_NOMEM ? st : fail_more(st, "the compiled segment was not cached");
}
