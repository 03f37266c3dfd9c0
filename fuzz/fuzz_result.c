/* Fuzz target: what a compiler leaves in its folder. The bytes are files, each after a line "=== <name>": result.json, error.json,
 * compile.log, members; the first byte is how the compiler ended. Whatever is there is a result whose members can be read, or a
 * sentence that steers no terminal. */
#define _GNU_SOURCE /* memmem */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "segment/child.h"
#include "texts.h"

enum { FILES = 8 };

static char folder[64];

static void make_folder(void)
{
	if (folder[0])
		return;
	snprintf(folder, sizeof folder, "%s/cleave-fuzz-%ld", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp",
	         (long)getpid());
	MUST(mkdir(folder, 0700) == 0);
}

static void remove_folder(void)
{
	MUST(folder_remove(folder) == CLV_OK);
	folder[0] = '\0';
}

/* Texts of compilers, and of others, are printed. */
static void check_message(const char *s)
{
	MUST(s && *s);
	for (; *s; s++)
		MUST((unsigned char)*s >= 0x20 || *s == '\n');
}

static void check_made(const compiled *c)
{
	MUST(c->members.n > 0);
	for (uint32_t i = 0; i < c->members.n; i++) {
		MUST(plain_file_name(c->members.at[i].name));
		digest_of(c->members.at[i].data, c->members.at[i].n);
	}
	for (uint32_t i = 0; i < c->needs.n; i++)
		MUST(c->needs.at[i].key && c->needs.at[i].text);
}

/* What was made is kept in the cache, so it must come back from a file. */
static void check_saved(const compiled *c)
{
	char path[96];
	compiled again = {0};
	snprintf(path, sizeof path, "%s/saved", folder);
	if (compiled_save(c, path) == CLV_OK) {
		MUST(compiled_load(path, &again) == CLV_OK && again.members.n == c->members.n);
		compiled_free(&again);
	} else {
		MUST(status_message()[0] != '\0');
	}
}

static void look(int status)
{
	child c = {.has_status = status != 0xff, .status = status == 0xfe ? 11 : status << 8};
	job j = {.name = "job", .dir = folder};
	MUST(job_read_result(&j, &c, 0) == CLV_OK);
	MUST(j.state == JOB_DONE || j.state == JOB_FAILED);
	if (j.state == JOB_DONE) {
		check_made(&j.made);
		check_saved(&j.made);
	} else {
		check_message(j.message);
	}
	for (uint32_t i = 0; i < j.nblamed; i++)
		MUST(j.blamed[i]);
	job_free(&j);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	st_text files[FILES];
	if (size == 0)
		return 0;
	char *copy = mem_strdup((const char *)data + 1, size - 1);
	MUST(copy);
	uint32_t n = cut_texts(copy, size - 1, files, FILES);
	make_folder();
	for (uint32_t i = 0; i < n; i++)
		if (plain_file_name(files[i].key))
			(void)folder_write(folder, files[i].key, files[i].text, files[i].n); /* or the name is too long */
	look(data[0] == '0' ? 0 : data[0]);
	remove_folder();
	mem_free(copy);
	return 0;
}
