/* Artifacts on disk: whatever goes wrong while one is written, the file at the path is the old one or the new one and
 * opens; a large one opens at once and costs no memory. */
#include "artifacts.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <time.h>

/* ---- a folder with an artifact in it ---------------------------------------------------------------------------- */

typedef struct place {
	char folder[32], path[64], spare[64];
	image old;
} place;

/* A sample whose bias is `version` everywhere; the first has 0. */
static artifact *sample_of(int version)
{
	artifact *a = sample();
	for (int i = 16; i < 20; i++)
		weights[i] = (float)version;
	return a;
}

static place new_place(void)
{
	place p = {.folder = "/tmp/cleave-test-XXXXXX"};
	new_folder(p.folder);
	snprintf(p.path, sizeof p.path, "%s/model.clv", p.folder);
	snprintf(p.spare, sizeof p.spare, "%s/model.clv.0.tmp", p.folder);
	artifact *a = sample_of(0);
	OK(artifact_save(a, p.path));
	artifact_free(a);
	p.old = read_image(p.path);
	return p;
}

static void leave(place *p)
{
	count_files(p->folder, true);
	image_free(&p->old);
}

static clv_status save_version(int version, const char *path)
{
	artifact *a = sample_of(version);
	clv_status st = artifact_save(a, path);
	artifact_free(a);
	return st;
}

static void check_old(const place *p)
{
	image now = read_image(p->path);
	assert_true(same_image(now, p->old));
	image_free(&now);
}

/* ---- in use ----------------------------------------------------------------------------------------------------- */

static void an_open_artifact_outlives_its_file(void **state)
{
	(void)state;
	place p = new_place();
	artifact *a;
	OK(clv_artifact_open(p.path, NULL, &a));
	OK(save_version(1, p.path));
	assert_int_equal(unlink(p.path), 0);
	OK(artifact_check_data(a));
	image again = whole_again(a);
	assert_true(same_image(again, p.old));
	image_free(&again);
	artifact_free(a);
	leave(&p);
}

static void a_half_may_take_the_place_of_the_whole(void **state)
{
	(void)state;
	place p = new_place();
	artifact *a, *half;
	clv_split_options o = CLV_SPLIT_OPTIONS_INIT;
	o.boundary = "after:relu";
	OK(clv_artifact_open(p.path, NULL, &a));
	OK(clv_artifact_split(a, &o, p.path, p.spare));
	OK(artifact_check_data(a));
	artifact_free(a);
	OK(clv_artifact_open(p.path, NULL, &half));
	OK(artifact_check_data(half));
	assert_string_equal(clv_artifact_part(half), "prefix");
	artifact_free(half);
	leave(&p);
}

static void a_split_that_cannot_write_its_second_file_leaves_the_first_as_it_was(void **state)
{
	(void)state;
	place p = new_place();
	artifact *a;
	clv_split_options o = CLV_SPLIT_OPTIONS_INIT;
	o.boundary = "after:relu";
	OK(clv_artifact_open(p.path, NULL, &a));
	FAILS(clv_artifact_split(a, &o, p.path, "/no/such/folder/x.clv"), CLV_E_IO, "cannot write /no/such/folder/x.clv");
	check_old(&p);
	assert_int_equal(count_files(p.folder, false), 1);
	artifact_free(a);
	leave(&p);
}

static void halves_that_are_one_file_through_a_link_are_refused(void **state)
{
	(void)state;
	place p = new_place();
	char link_path[64];
	artifact *a;
	clv_split_options o = CLV_SPLIT_OPTIONS_INIT;
	o.boundary = "after:relu";
	snprintf(link_path, sizeof link_path, "%s/link", p.folder);
	assert_int_equal(symlink("model.clv", link_path), 0);
	OK(clv_artifact_open(p.path, NULL, &a));
	FAILS(clv_artifact_split(a, &o, p.path, link_path), CLV_E_INVALID, "both halves would be the same file");
	check_old(&p);
	assert_int_equal(count_files(p.folder, false), 2);
	artifact_free(a);
	leave(&p);
}

static void a_file_that_is_replaced_keeps_its_mode(void **state)
{
	(void)state;
	static const mode_t modes[] = {0600, 0640, 0644, 0666};
	place p = new_place();
	struct stat info;
	for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
		assert_int_equal(chmod(p.path, modes[i]), 0);
		OK(save_version(1, p.path));
		assert_int_equal(stat(p.path, &info), 0);
		assert_int_equal(info.st_mode & 0777, modes[i]);
	}
	leave(&p);
}

/* ---- errors ----------------------------------------------------------------------------------------------------- */

static void every_step_of_the_writer_may_fail_and_leaves_nothing_behind(void **state)
{
	(void)state;
	static const int errors[] = {ENOSPC, EIO, EDQUOT};
	place p = new_place();
	for (size_t k = 0; k < sizeof errors / sizeof *errors; k++)
		for (uint64_t n = 1;; n++) {
			disk_fault_after(n, errors[k]);
			clv_status st = save_version(1, p.path);
			bool over = disk_fault_waits();
			disk_fault_after(0, 0);
			assert_int_equal(count_files(p.folder, false), 1);
			if (st == CLV_OK) {
				assert_true(over || n > 5); /* the folder may not say that it reached the disk */
				OK(save_version(0, p.path));
			} else {
				check_error(st, CLV_E_IO, strerror(errors[k]));
			}
			check_old(&p);
			if (over)
				break;
		}
	leave(&p);
}

static void a_disk_that_fills_up_leaves_the_old_file(void **state)
{
	(void)state;
	place p = new_place();
	struct rlimit was, limit;
	void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
	for (size_t n = 0; n < p.old.n; n += p.old.n / 7) {
		limit = (struct rlimit){n, was.rlim_max};
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
		clv_status st = save_version(1, p.path);
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
		FAILS(st, CLV_E_IO, "cannot write");
		assert_int_equal(count_files(p.folder, false), 1);
		check_old(&p);
	}
	signal(SIGXFSZ, handler);
	leave(&p);
}

static void targets_that_are_no_plain_files_are_left_alone(void **state)
{
	(void)state;
	place p = new_place();
	struct stat info;
	char pipe_path[64], link_path[64];
	snprintf(pipe_path, sizeof pipe_path, "%s/pipe", p.folder);
	snprintf(link_path, sizeof link_path, "%s/link", p.folder);
	assert_int_equal(mkfifo(pipe_path, 0600) | symlink("model.clv", link_path), 0);
	FAILS(save_version(1, p.folder), CLV_E_IO, "no regular file");
	FAILS(save_version(1, pipe_path), CLV_E_IO, "no regular file");
	FAILS(save_version(1, "/dev/full"), CLV_E_IO, "no regular file");
	FAILS(save_version(1, "/no/such/folder/x.clv"), CLV_E_IO, "cannot write /no/such/folder/x.clv");
	artifact *a;
	FAILS(clv_artifact_open(pipe_path, NULL, &a), CLV_E_IO, "no regular file"); /* and nobody waits for its other end */
	check_old(&p);
	OK(save_version(1, link_path)); /* the file behind it */
	assert_true(lstat(link_path, &info) == 0 && S_ISLNK(info.st_mode));
	OK(save_version(0, p.path));
	check_old(&p);
	assert_int_equal(count_files(p.folder, false), 3);
	leave(&p);
}

static void a_folder_that_cannot_be_written_is_an_error(void **state)
{
	(void)state;
	if (geteuid() == 0)
		skip(); /* root may write everywhere */
	place p = new_place();
	assert_int_equal(chmod(p.folder, 0500), 0);
	FAILS(save_version(1, p.path), CLV_E_IO, "Permission denied");
	check_old(&p);
	assert_int_equal(chmod(p.folder, 0700), 0);
	leave(&p);
}

/* ---- what others left ------------------------------------------------------------------------------------------- */

static void put_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");
	assert_true(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void what_a_dead_writer_left_is_used_up(void **state)
{
	(void)state;
	place p = new_place();
	char *long_text = mem_alloc(100001);
	memset(long_text, 'x', 100000); /* longer than what is written now */
	put_file(p.spare, long_text);
	OK(save_version(0, p.path));
	check_old(&p);
	assert_int_equal(count_files(p.folder, false), 1);
	mem_free(long_text);
	leave(&p);
}

static void what_another_writer_is_writing_is_left_alone(void **state)
{
	(void)state;
	place p = new_place();
	put_file(p.spare, "theirs");
	int fd = open(p.spare, O_WRONLY);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	OK(save_version(0, p.path));
	check_old(&p);
	image theirs = read_image(p.spare);
	assert_int_equal(theirs.n, 6);
	image_free(&theirs);
	close(fd);
	leave(&p);
}

/* A name that leads elsewhere must not be written through. */
static void links_in_the_place_of_the_new_file_are_not_followed(void **state)
{
	(void)state;
	place p = new_place();
	char victim[64];
	snprintf(victim, sizeof victim, "%s/victim", p.folder);
	put_file(victim, "mine");
	assert_int_equal(symlink("victim", p.spare), 0);
	OK(save_version(0, p.path));
	unlink(p.spare);
	assert_int_equal(link(victim, p.spare), 0);
	OK(save_version(0, p.path));
	unlink(p.spare);
	assert_int_equal(mkfifo(p.spare, 0600), 0);
	OK(save_version(0, p.path));
	check_old(&p);
	image kept = read_image(victim);
	assert_true(kept.n == 4 && memcmp(kept.at, "mine", 4) == 0);
	image_free(&kept);
	leave(&p);
}

static void writers_of_one_path_do_not_disturb_each_other(void **state)
{
	(void)state;
	place p = new_place();
	pid_t children[4];
	for (int c = 0; c < 4; c++) {
		children[c] = fork();
		if (children[c] == 0) {
			int failed = 0;
			for (int i = 0; i < 25; i++)
				failed |= save_version(c, p.path) != CLV_OK;
			_exit(failed);
		}
	}
	for (int c = 0; c < 4; c++) {
		int status;
		assert_int_equal(waitpid(children[c], &status, 0), children[c]);
		assert_int_equal(status, 0);
	}
	clv_open_options o = CLV_OPEN_OPTIONS_INIT;
	artifact *a;
	o.check_data = true;
	OK(clv_artifact_open(p.path, &o, &a));
	artifact_free(a);
	assert_int_equal(count_files(p.folder, false), 1);
	leave(&p);
}

/* ---- kills ------------------------------------------------------------------------------------------------------ */

enum { MEGABYTE = 1 << 20 };

/* One weight of a megabyte, all bytes of it `version`; with it the plan. */
static clv_status save_large(uint8_t version, const char *path)
{
	static const int64_t size[] = {MEGABYTE}, one[] = {1};
	static uint8_t data[MEGABYTE];
	memset(data, version, sizeof data);
	artifact *a = new_artifact("cleave-plan 1\nmodel \"m\"\nparam @w u8[1048576]\n"
	                           "%0 = aten::relu(@w) -> u8[1048576]\noutput %0\n");
	OK(add(a->tensors, tensor_on("w", DT_U8, data, 0, 1, size, one)));
	clv_status st = artifact_save(a, path);
	artifact_free(a);
	return st;
}

/* The version of the file at the path, which is whole. */
static int version_at(const char *path)
{
	clv_open_options o = CLV_OPEN_OPTIONS_INIT;
	artifact *a = NULL;
	o.check_data = true;
	if (clv_artifact_open(path, &o, &a) != CLV_OK)
		fail_msg("after a kill: %s", status_message());
	const uint8_t *data = a->tensors->memories.at[0].data;
	int version = data[0];
	for (size_t i = 0; i < MEGABYTE; i += 4096)
		assert_int_equal(data[i], version);
	artifact_free(a);
	return version;
}

/* Runs `work` in a process that is killed after `delay` microseconds, or kills itself (delay 0). */
static void run_and_kill(void (*work)(const char *path, uint64_t n), const char *path, uint64_t n, unsigned delay)
{
	int status;
	pid_t child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		work(path, n);
		_exit(0);
	}
	if (delay) {
		nanosleep(&(struct timespec){0, (long)delay * 1000}, NULL);
		kill(child, SIGKILL);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
		fail_msg("the writer ended by itself, with %d", status);
}

static void write_until_step(const char *path, uint64_t n)
{
	disk_fault_after(n, 0);
	(void)save_large(2, path);
	if (disk_fault_waits())
		raise(SIGKILL); /* it was over before */
}

static void a_writer_killed_before_any_of_its_steps_leaves_the_old_file_or_the_new_one(void **state)
{
	(void)state;
	char folder[] = "/tmp/cleave-test-XXXXXX", path[64];
	unsigned olds = 0, news = 0;
	new_folder(folder);
	snprintf(path, sizeof path, "%s/model.clv", folder);
	for (uint64_t n = 1; n <= 8; n++) {
		OK(save_large(1, path)); /* over what the one before left behind */
		assert_int_equal(count_files(folder, false), 1);
		run_and_kill(write_until_step, path, n, 0);
		int version = version_at(path);
		assert_true(version == 1 || version == 2);
		olds += version == 1;
		news += version == 2;
	}
	assert_true(olds >= 4 && news >= 1);
	count_files(folder, true);
}

static void write_for_ever(const char *path, uint64_t n)
{
	for (uint8_t version = (uint8_t)n;; version++)
		if (save_large(version, path) != CLV_OK)
			_exit(1);
}

/* How long one writer takes here, in microseconds. */
static unsigned time_of_a_save(const char *path)
{
	struct timespec a, b;
	clock_gettime(CLOCK_MONOTONIC, &a);
	OK(save_large(0, path));
	clock_gettime(CLOCK_MONOTONIC, &b);
	return (unsigned)((b.tv_sec - a.tv_sec) * 1000000 + (b.tv_nsec - a.tv_nsec) / 1000);
}

static void a_writer_killed_at_any_moment_leaves_a_whole_file(void **state)
{
	(void)state;
	enum { KILLS = 250, LONG = 80000 };
	char folder[] = "/tmp/cleave-test-XXXXXX", path[64];
	uint64_t seed = 5;
	unsigned changed = 0;
	new_folder(folder);
	snprintf(path, sizeof path, "%s/model.clv", folder);
	unsigned delays = 2000 + 3 * time_of_a_save(path);
	for (unsigned k = 0; k < KILLS; k++) {
		int before = version_at(path);
		unsigned delay = 300 + random_below(&seed, delays < LONG ? delays : LONG);
		run_and_kill(write_for_ever, path, (uint64_t)before + 1, delay);
		changed += version_at(path) != before;
		assert_in_range(count_files(folder, false), 1, 2); /* what is left behind does not pile up */
	}
	assert_in_range(changed, 1, KILLS);
	OK(save_large(7, path));
	assert_int_equal(version_at(path), 7);
	assert_int_equal(count_files(folder, false), 1);
	count_files(folder, true);
}

/* ---- large files ------------------------------------------------------------------------------------------------ */

static long resident_kilobytes(void)
{
	long kilobytes = -1;
	char line[128];
	FILE *f = fopen("/proc/self/status", "r");
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "VmRSS: %ld", &kilobytes) == 1)
			break;
	if (f)
		fclose(f);
	return kilobytes;
}

/* The header of a file with one weight of `n` zeros, taken from a small one; the data is a hole. */
static void craft_large(const char *path, json_int_t n)
{
	char folder_path[80], text[256];
	snprintf(folder_path, sizeof folder_path, "%s.small", path);
	OK(save_large(0, folder_path));
	image i = read_image(folder_path);
	unlink(folder_path);
	opened_up o = open_up(i);
	json_object_set_new(o.header, "w",
	                    json_pack("{s:s,s:[I],s:[i,I]}", "dtype", "U8", "shape", n, "data_offsets", 0, n));
	json_object_set_new(json_array_get(json_object_get(o.tensors, "tensors"), 0), "shape", json_pack("[I]", n));
	snprintf(text, sizeof text,
	         "cleave-plan 1\nmodel \"m\"\nparam @w u8[%lld]\n%%0 = aten::relu(@w) -> u8[%lld]\noutput %%0\n",
	         (long long)n, (long long)n);
	json_object_set_new(metadata_of(&o), "cleave.plan.0", json_string(text));
	o.data_n = 0;
	image head = closed_again(&o);
	FILE *f = fopen(path, "wb");
	assert_true(f && fwrite(head.at, 1, head.n, f) == head.n && fclose(f) == 0);
	assert_int_equal(truncate(path, (off_t)head.n + n), 0);
	image_free(&i);
	image_free(&head);
}

static void a_large_file_opens_without_being_read(void **state)
{
	(void)state;
	const json_int_t n = (json_int_t)1 << 30;
	char folder[] = "/tmp/cleave-test-XXXXXX", path[64];
	struct statvfs disk;
	if (statvfs("/tmp", &disk) != 0 || disk.f_bavail * disk.f_frsize < (unsigned long)64 << 20) {
		print_message("skipped: /tmp has no room for a large file\n");
		skip();
	}
	new_folder(folder);
	snprintf(path, sizeof path, "%s/large.clv", folder);
	craft_large(path, n);
	artifact *a;
	long before = resident_kilobytes();
	OK(clv_artifact_open(path, NULL, &a));
	assert_int_equal(a->tensors->memories.at[0].nbytes, n);
	assert_true(payload_as_is(a->tensors, 0));
	assert_int_equal((uintptr_t)a->tensors->memories.at[0].data % 64, 0);
	assert_in_range(resident_kilobytes() - before + 4096, 0, 20 << 10); /* of a gigabyte */
	assert_int_equal(((const uint8_t *)a->tensors->memories.at[0].data)[n - 1], 0);
	artifact_free(a);
	count_files(folder, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_open_artifact_outlives_its_file),
		cmocka_unit_test(a_half_may_take_the_place_of_the_whole),
		cmocka_unit_test(a_split_that_cannot_write_its_second_file_leaves_the_first_as_it_was),
		cmocka_unit_test(halves_that_are_one_file_through_a_link_are_refused),
		cmocka_unit_test(a_file_that_is_replaced_keeps_its_mode),
		cmocka_unit_test(every_step_of_the_writer_may_fail_and_leaves_nothing_behind),
		cmocka_unit_test(a_disk_that_fills_up_leaves_the_old_file),
		cmocka_unit_test(targets_that_are_no_plain_files_are_left_alone),
		cmocka_unit_test(a_folder_that_cannot_be_written_is_an_error),
		cmocka_unit_test(what_a_dead_writer_left_is_used_up),
		cmocka_unit_test(what_another_writer_is_writing_is_left_alone),
		cmocka_unit_test(links_in_the_place_of_the_new_file_are_not_followed),
		cmocka_unit_test(writers_of_one_path_do_not_disturb_each_other),
		cmocka_unit_test(a_writer_killed_before_any_of_its_steps_leaves_the_old_file_or_the_new_one),
		cmocka_unit_test(a_writer_killed_at_any_moment_leaves_a_whole_file),
		cmocka_unit_test(a_large_file_opens_without_being_read),
	};
	return cmocka_run_group_tests_name("artifact_disk", tests, NULL, NULL);
}
