/* Folders of the user: where caches and state are, how they are made, and whether others can write them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "file/folders.h"

const char *environment_text(const char *name)
{
	const char *s = getenv(name);
	return s && *s ? s : NULL;
}

void usual_place(const char *variable, const char *below_home, strbuf *b)
{
	const char *base = environment_text(variable), *home = environment_text("HOME");
	if (base && base[0] == '/')
		strbuf_printf(b, "%s/cleave", base);
	else if (home && home[0] == '/')
		strbuf_printf(b, "%s/%s/cleave", home, below_home);
}

static clv_status make_one(const char *path)
{
	struct stat info;
	if (mkdir(path, 0700) == 0)
		return CLV_OK;
	int why = errno;
	if (stat(path, &info) == 0) {
		if (S_ISDIR(info.st_mode))
			return CLV_OK;
		why = ENOTDIR;
	}
	errno = why;
	return fail(CLV_E_IO, "cannot make the folder %s: %s", path, strerror(errno));
}

clv_status folder_make(const char *path)
{
	clv_status st = CLV_OK;
	char *copy = mem_strdup(path, strlen(path));
	TRY_MEM(copy);
	for (char *slash = copy; st == CLV_OK && *copy && (slash = strchr(slash + 1, '/'));) {
		*slash = 0;
		st = make_one(copy);
		*slash = '/';
	}
	if (st == CLV_OK)
		st = make_one(copy);
	mem_free(copy);
	return st;
}

const char *distrust(const struct stat *info)
{
	if (info->st_uid != geteuid())
		return "it belongs to another user";
	if (info->st_mode & (S_IWGRP | S_IWOTH))
		return "others may write it (chmod go-w would change that)";
	return NULL;
}

clv_status folder_check(const char *dir)
{
	struct stat info;
	if (stat(dir, &info) != 0)
		return fail(CLV_E_IO, "cannot open %s: %s", dir, strerror(errno));
	const char *why = distrust(&info);
	if (why)
		return fail(CLV_E_IO, "%s is not safe for compiled code: %s", dir, why);
	if (access(dir, R_OK | X_OK) != 0)
		return fail(CLV_E_IO, "cannot read %s: %s", dir, strerror(errno));
	return CLV_OK;
}

clv_status state_folder(bool make, char **out)
{
	strbuf b = STRBUF_INIT;
	usual_place("XDG_STATE_HOME", ".local/state", &b);
	if (b.n == 0 && !b.failed)
		return fail(CLV_E_NOT_FOUND, "there is no folder for state");
	TRY(strbuf_take(&b, out));
	clv_status st = make ? folder_make(*out) : CLV_OK;
	if (st == CLV_OK)
		st = folder_check(*out);
	if (st != CLV_OK)
		mem_free(*out);
	return st;
}
