/* src/segment/compiled.c, cache.c, folder.c, job.c, machine.c: what compilers make as files; folders; keys; features. */
#include "artifacts.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "segment/compile.h"

static compiled sample_code(const char *text)
{
	compiled c = {0};
	size_t n = strlen(text);
	OK(compiled_add(&c, "model.so", mem_strdup(text, n), n));
	OK(compiled_add(&c, "empty", mem_alloc(1), 0));
	OK(compiled_need(&c, "torch", "2.13.0"));
	OK(compiled_need(&c, "cpu", "avx avx2"));
	OK(compiled_note(&c, "kernels", "14"));
	return c;
}

static void check_code(const compiled *c, const char *text)
{
	assert_int_equal(c->members.n, 2);
	const compiled_member *m = compiled_find(c, "model.so");
	assert_int_equal(m->n, strlen(text));
	assert_memory_equal(m->data, text, m->n);
	assert_int_equal(compiled_find(c, "empty")->n, 0);
	assert_null(compiled_find(c, "model.bin"));
	assert_string_equal(compiled_need_of(c, "cpu"), "avx avx2");
	assert_string_equal(c->notes.at[0].key, "kernels");
}

static char *temporary(void)
{
	char *path;
	OK(folder_make_temporary(&path));
	return path;
}

static void drop(char *path)
{
	OK(folder_remove(path));
	mem_free(path);
}

/* base/name; lives until the next call. */
static const char *in(const char *base, const char *name)
{
	static char path[512];
	snprintf(path, sizeof path, "%s/%s", base, name);
	return path;
}

static void put_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	fputs(text, f);
	assert_int_equal(fclose(f), 0);
}

/* ---- compiled --------------------------------------------------------------------------------------------------- */

static void test_what_is_saved_is_loaded(void **state)
{
	(void)state;
	char *base = temporary();
	compiled c = sample_code("code"), back;
	OK(compiled_save(&c, in(base, "file")));
	OK(compiled_load(in(base, "file"), &back));
	check_code(&back, "code");
	compiled_free(&back);
	compiled_free(&c);
	FAILS(compiled_load(in(base, "gone"), &back), CLV_E_IO, "gone");
	drop(base);
}

static void test_names_are_plain(void **state)
{
	(void)state;
	static const char *const bad[] = {"", ".", "..", "a/b", "/a", "a\nb", "\x7f", "\xff", "\xc2\x9b", "__metadata__"};
	char long_name[300] = "";
	compiled c = {0};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		FAILS(compiled_add(&c, bad[i], mem_alloc(1), 1), CLV_E_INVALID, "plain");
	memset(long_name, 'a', 256);
	FAILS(compiled_add(&c, long_name, mem_alloc(1), 1), CLV_E_INVALID, "plain");
	OK(compiled_add(&c, "..a b\xc3\xa4", mem_alloc(1), 1));
	FAILS(compiled_add(&c, "..a b\xc3\xa4", mem_alloc(1), 1), CLV_E_INVALID, "two files");
	compiled_free(&c);
}

static clv_status parse_copy(const uint8_t *data, size_t n)
{
	compiled c;
	uint8_t *copy = mem_realloc(NULL, n, 1);
	if (n)
		memcpy(copy, data, n);
	clv_status st = compiled_parse(copy, n, "", &c);
	compiled_free(&c);
	return st;
}

/* The header is padded with spaces; every byte elsewhere counts. */
static void test_no_damaged_file_is_loaded(void **state)
{
	(void)state;
	char *base = temporary();
	compiled c = sample_code("some code");
	OK(compiled_save(&c, in(base, "file")));
	compiled_free(&c);
	image i = read_image(in(base, "file"));
	OK(parse_copy(i.at, i.n));
	for (size_t k = 0; k < i.n; k++) {
		assert_int_not_equal(parse_copy(i.at, k), CLV_OK);
		for (int bit = 0; bit < 8; bit++) {
			i.at[k] ^= (uint8_t)(1 << bit);
			clv_status st = parse_copy(i.at, i.n);
			i.at[k] ^= (uint8_t)(1 << bit);
			if (st == CLV_OK && i.at[k] != ' ')
				fail_msg("bit %d of byte %zu does not count", bit, k);
		}
	}
	image_free(&i);
	drop(base);
}

static void test_forged_files_are_refused_by_reason(void **state)
{
	(void)state;
	static const int64_t two[] = {2}, one[] = {1};
	static const struct {
		const char *text, *entry, *part;
		dtype dtype;
	} cases[] = {
		{"[]", "a", "version", DT_U8},
		{"{\"version\":2}", "a", "version 2", DT_U8},
		{"{\"version\":1,\"key\":\"x\"}", "a", "another key", DT_U8},
		{"{\"version\":1,\"key\":\"\",\"needs\":[]}", "a", "needs", DT_U8},
		{"{\"version\":1,\"key\":\"\",\"needs\":{\"a\":1}}", "a", "\"a\"", DT_U8},
		{"{\"version\":1,\"key\":\"\",\"needs\":{},\"notes\":{},\"digests\":{}}", "a", "digests", DT_U8},
		{"{\"version\":1,\"key\":\"\",\"needs\":{},\"notes\":{},\"digests\":{\"b\":\"\"}}", "a", "\"a\"", DT_U8},
		{"{\"version\":1,\"key\":\"\",\"needs\":{},\"notes\":{},\"digests\":{\"a\":\"\"}}", "a", "damaged", DT_U8},
		{"{\"version\":1,\"key\":\"\",\"needs\":{},\"notes\":{},\"digests\":{\"a\":\"%s\"}}", "a", "damaged", DT_I16},
		{"{\"version\":1,\"key\":\"\",\"needs\":{},\"notes\":{},\"digests\":{\"../a\":\"%s\"}}", "../a", "plain",
	     DT_U8},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char text[512], of_data[DIGEST_TEXT], sum[DIGEST_TEXT];
		st_image image;
		strbuf b = STRBUF_INIT;
		st_entry e = {cases[i].entry, cases[i].dtype, 1, cases[i].dtype == DT_U8 ? two : one, "ab", 2};
		digest_print(digest_of("ab", 2), of_data);
		snprintf(text, sizeof text, cases[i].text, of_data);
		digest_print(digest_of(text, strlen(text)), sum);
		st_text texts[] = {{"cleave.compiled", text, strlen(text)}, {"cleave.compiled.check", sum, strlen(sum)}};
		OK(st_layout(&e, 1, texts, 2, &image));
		OK(st_append(&image, &b));
		clv_status st = parse_copy((uint8_t *)b.at, b.n);
		if (st == CLV_OK || !strstr(status_message(), cases[i].part))
			fail_msg("case %zu: %d \"%s\"", i, st, status_message());
		strbuf_free(&b);
		st_image_free(&image);
	}
}

/* ---- the cache -------------------------------------------------------------------------------------------------- */

static const digest key_a = {1, 2}, key_b = {3, 4}, key_c = {5, 6};
#define NAME_A "00000000000000010000000000000002.compiled"

static bool hit(const cache *c, digest key, const char *text)
{
	compiled got;
	bool found;
	OK(cache_get(c, key, &got, &found));
	if (found)
		check_code(&got, text);
	else
		assert_int_equal(got.members.n, 0);
	compiled_free(&got);
	return found;
}

static void keep(const cache *c, digest key, const char *text)
{
	compiled made = sample_code(text);
	OK(cache_put(c, key, &made));
	compiled_free(&made);
}

static void test_an_entry_is_found_under_its_key(void **state)
{
	(void)state;
	char *base = temporary();
	struct stat info;
	cache c;
	OK(cache_open(in(base, "deep/er"), 0, &c));
	assert_int_equal(c.limit, 8000000000);
	assert_false(hit(&c, key_a, "a"));
	umask(0);
	keep(&c, key_a, "a");
	umask(022);
	keep(&c, key_b, "bb");
	assert_true(hit(&c, key_a, "a"));
	assert_true(hit(&c, key_b, "bb"));
	keep(&c, key_a, "other");
	assert_true(hit(&c, key_a, "other"));
	assert_int_equal(stat(c.dir, &info), 0);
	assert_int_equal(info.st_mode & 0777, 0700);
	assert_int_equal(stat(in(c.dir, NAME_A), &info), 0);
	assert_int_equal(info.st_mode & 0777, 0600);
	assert_int_equal(count_files(c.dir, false), 2);
	cache_close(&c);
	drop(base);
}

static void test_damaged_entries_are_removed(void **state)
{
	(void)state;
	char *base = temporary();
	cache c;
	OK(cache_open(base, 0, &c));
	put_file(in(base, NAME_A), "oops");
	chmod(in(base, NAME_A), 0600);
	assert_false(hit(&c, key_a, ""));
	assert_int_equal(count_files(base, false), 0);
	keep(&c, key_a, "a");
	assert_int_equal(truncate(in(base, NAME_A), 100), 0);
	assert_false(hit(&c, key_a, ""));
	assert_int_equal(count_files(base, false), 0);
	cache_close(&c);
	drop(base);
}

static void test_an_entry_under_another_name_is_no_hit(void **state)
{
	(void)state;
	char *base = temporary(), from[512];
	cache c;
	OK(cache_open(base, 0, &c));
	keep(&c, key_b, "b");
	snprintf(from, sizeof from, "%s", in(base, "00000000000000030000000000000004.compiled"));
	assert_int_equal(rename(from, in(base, NAME_A)), 0);
	assert_false(hit(&c, key_a, "b"));
	cache_close(&c);
	drop(base);
}

static void test_what_others_could_write_is_not_trusted(void **state)
{
	(void)state;
	char *base = temporary(), target[512];
	cache c, other;
	OK(cache_open(base, 0, &c));
	keep(&c, key_a, "a");
	chmod(in(base, NAME_A), 0666);
	assert_false(hit(&c, key_a, "a"));
	assert_int_equal(count_files(base, false), 0);
	keep(&c, key_b, "b");
	snprintf(target, sizeof target, "%s", in(base, "00000000000000030000000000000004.compiled"));
	assert_int_equal(symlink(target, in(base, NAME_A)), 0);
	assert_false(hit(&c, key_a, "b"));
	assert_int_equal(symlink("/nowhere/else", in(base, NAME_A)), 0);
	keep(&c, key_a, "a"); /* does not go where the link points */
	assert_true(hit(&c, key_a, "a"));
	assert_int_equal(chmod(base, 0777), 0);
	FAILS(cache_open(base, 0, &other), CLV_E_IO, "not safe");
	assert_int_equal(chmod(base, 0700), 0);
	if (geteuid() == 0) {
		assert_int_equal(chown(base, 12345, 0), 0);
		FAILS(cache_open(base, 0, &other), CLV_E_IO, "another user");
		assert_int_equal(chown(base, 0, 0), 0);
		assert_int_equal(chown(in(base, NAME_A), 12345, 0), 0);
		assert_false(hit(&c, key_a, "a"));
	}
	cache_close(&c);
	drop(base);
}

static void test_a_place_that_is_no_folder_is_said(void **state)
{
	(void)state;
	char *base = temporary();
	cache c;
	put_file(in(base, "file"), "");
	FAILS(cache_open(in(base, "file"), 0, &c), CLV_E_IO, "Not a directory");
	assert_null(c.dir);
	FAILS(cache_open(in(base, "file/deeper"), 0, &c), CLV_E_IO, "Not a directory");
	FAILS(cache_open("/proc/cleave", 0, &c), CLV_E_IO, "/proc/cleave");
	FAILS(cache_open(base, -1, &c), CLV_E_INVALID, "-1");
	drop(base);
}

static void test_where_the_cache_is(void **state)
{
	(void)state;
	char *base = temporary();
	cache c;
	char *home = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
	unsetenv("CLEAVE_CACHE");
	unsetenv("XDG_CACHE_HOME");
	setenv("HOME", base, 1);
	OK(cache_open(NULL, 0, &c));
	assert_string_equal(c.dir, in(base, ".cache/cleave"));
	cache_close(&c);
	setenv("XDG_CACHE_HOME", base, 1);
	OK(cache_open(NULL, 0, &c));
	assert_string_equal(c.dir, in(base, "cleave"));
	cache_close(&c);
	setenv("CLEAVE_CACHE", in(base, "mine"), 1);
	setenv("CLEAVE_CACHE_LIMIT", "1234", 1);
	OK(cache_open(NULL, 0, &c));
	assert_string_equal(c.dir, in(base, "mine"));
	assert_int_equal(c.limit, 1234);
	cache_close(&c);
	setenv("CLEAVE_CACHE_LIMIT", "12GB", 1);
	FAILS(cache_open(NULL, 0, &c), CLV_E_INVALID, "12GB");
	unsetenv("CLEAVE_CACHE_LIMIT");
	setenv("CLEAVE_CACHE", "off", 1);
	OK(cache_open(NULL, 0, &c));
	assert_null(c.dir);
	keep(&c, key_a, "a");
	assert_false(hit(&c, key_a, "a"));
	OK(cache_open("", 0, &c));
	assert_null(c.dir);
	unsetenv("CLEAVE_CACHE");
	unsetenv("XDG_CACHE_HOME");
	if (home)
		setenv("HOME", home, 1);
	free(home);
	drop(base);
}

static void set_age(const char *path, time_t seconds)
{
	struct timespec times[2] = {{.tv_sec = time(NULL) - seconds}, {.tv_sec = time(NULL) - seconds}};
	assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void test_the_longest_unused_goes_first(void **state)
{
	(void)state;
	char *base = temporary();
	struct stat info;
	cache c;
	OK(cache_open(base, 0, &c));
	keep(&c, key_a, "aaaa");
	assert_int_equal(stat(in(base, NAME_A), &info), 0);
	c.limit = info.st_size * 2 + 1;
	keep(&c, key_b, "bbbb");
	put_file(in(base, "not-ours.txt"), "stays");
	put_file(in(base, "00000000000000010000000000000009.compiled.0.tmp"), "goes");
	set_age(in(base, "00000000000000010000000000000009.compiled.0.tmp"), 7200);
	set_age(in(base, NAME_A), 100);
	set_age(in(base, "00000000000000030000000000000004.compiled"), 50);
	assert_true(hit(&c, key_a, "aaaa")); /* now the other is the oldest */
	keep(&c, key_c, "cccc");
	assert_true(hit(&c, key_a, "aaaa"));
	assert_false(hit(&c, key_b, "bbbb"));
	assert_true(hit(&c, key_c, "cccc"));
	assert_int_equal(count_files(base, false), 3);
	c.limit = 10;
	compiled large = sample_code("x");
	FAILS(cache_put(&c, key_b, &large), CLV_E_IO, "CLEAVE_CACHE_LIMIT");
	compiled_free(&large);
	assert_true(hit(&c, key_a, "aaaa"));
	cache_close(&c);
	drop(base);
}

static void test_a_full_disk_costs_the_entry_alone(void **state)
{
	(void)state;
	char *base = temporary();
	cache c;
	struct rlimit old, small = {2000, 2000};
	OK(cache_open(base, 0, &c));
	keep(&c, key_a, "a");
	compiled made = sample_code("b");
	OK(compiled_add(&made, "large", mem_alloc(100000), 100000));
	getrlimit(RLIMIT_FSIZE, &old);
	small.rlim_max = old.rlim_max;
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
	clv_status st = cache_put(&c, key_b, &made);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
	signal(SIGXFSZ, SIG_DFL);
	check_error(st, CLV_E_IO, "was not cached");
	assert_int_equal(count_files(base, false), 1);
	for (uint64_t n = 1;; n++) {
		disk_fault_after(n, ENOSPC);
		st = cache_put(&c, key_b, &made);
		bool over = disk_fault_waits();
		disk_fault_after(0, 0);
		if (over)
			break;
		assert_int_equal(count_files(base, false), st == CLV_OK ? 2 : 1);
		if (st != CLV_OK)
			check_error(st, CLV_E_IO, "No space");
	}
	OK(st);
	assert_true(hit(&c, key_a, "a"));
	compiled_free(&made);
	cache_close(&c);
	drop(base);
}

/* Writers and readers of one key: every hit is whole. */
static void test_processes_share_it(void **state)
{
	(void)state;
	char *base = temporary();
	cache c;
	pid_t pids[4];
	OK(cache_open(base, 2000, &c));
	for (int i = 0; i < 4; i++) {
		pids[i] = fork();
		if (pids[i])
			continue;
		bool good = true;
		for (uint32_t k = 0; k < 60 && good; k++) {
			compiled made = sample_code("code"), got;
			bool found;
			good = cache_put(&c, (digest){k % 5, 0}, &made) == CLV_OK &&
			       cache_get(&c, (digest){(k + 2) % 5, 0}, &got, &found) == CLV_OK;
			compiled_free(&made);
			compiled_free(&got);
		}
		_exit(good ? 0 : 1);
	}
	for (int i = 0; i < 4; i++) {
		int st;
		assert_int_equal(waitpid(pids[i], &st, 0), pids[i]);
		assert_int_equal(st, 0);
	}
	cache_close(&c);
	drop(base);
}

/* ---- folders ---------------------------------------------------------------------------------------------------- */

static void test_links_are_removed_and_not_followed(void **state)
{
	(void)state;
	char *outside = temporary(), *base = temporary();
	put_file(in(outside, "file"), "stays");
	OK(folder_make(in(base, "a/b/c")));
	put_file(in(base, "a/b/c/d"), "");
	assert_int_equal(symlink(outside, in(base, "a/link")), 0);
	drop(base);
	assert_int_equal(count_files(outside, false), 1);
	drop(outside);
	FAILS(folder_remove("/proc/self"), CLV_E_IO, "/proc/self");
}

static void test_a_jobs_folder_is_emptied_and_others_are_left_alone(void **state)
{
	(void)state;
	char *base = temporary(), *dir;
	OK(job_folder_make(base, "segment-0", &dir));
	put_file(in(dir, "result.json"), "{}");
	OK(folder_make(in(dir, "scratch/deep")));
	mem_free(dir);
	OK(job_folder_make(base, "segment-0", &dir));
	assert_int_equal(count_files(dir, false), 1); /* the mark */
	mem_free(dir);
	OK(folder_make(in(base, "mine")));
	put_file(in(base, "mine/thesis.txt"), "");
	FAILS(job_folder_make(base, "mine", &dir), CLV_E_IO, "not empty");
	assert_int_equal(access(in(base, "mine/thesis.txt"), F_OK), 0);
	assert_int_equal(symlink("mine", in(base, "link")), 0);
	FAILS(job_folder_make(base, "link", &dir), CLV_E_IO, "link");
	FAILS(job_folder_make(base, "../x", &dir), CLV_E_INVALID, "plain");
	put_file(in(base, "file"), "");
	FAILS(job_folder_make(base, "file", &dir), CLV_E_IO, "Not a directory");
	drop(base);
}

/* ---- jobs as text ----------------------------------------------------------------------------------------------- */

static const char *const args[] = {"--opt=3", "\xc3\xa4"};
static const job_size sizes[] = {{"B", 1, 64, 2}};
static const char *const shape[] = {"B", "4"};
static const uint32_t order[] = {1, 0};
static const job_tensor inputs[] = {{"f32", "cpu", 2, shape, NULL}, {"f32", "cpu", 2, shape, order}};
static const job_spec spec = {"inductor", args, 2, sizes, 1, inputs, 2, 4};

static void test_job_json(void **state)
{
	(void)state;
	char *base = temporary();
	uint8_t *text;
	size_t n;
	OK(job_write(&spec, base));
	OK(folder_read(base, "job.json", 4096, &text, &n));
	static const char want[] =
		"{\"version\":1,\"backend\":\"inductor\",\"args\":[\"--opt=3\",\"\xc3\xa4\"],\"sizes\":{\"B\":"
		"{\"low\":1,\"high\":64,\"example\":2}},\"inputs\":[{\"dtype\":\"f32\",\"device\":\"cpu\","
		"\"shape\":[\"B\",\"4\"],\"order\":null},{\"dtype\":\"f32\",\"device\":\"cpu\",\"shape\":"
		"[\"B\",\"4\"],\"order\":[1,0]}],\"threads\":4}\n";
	assert_int_equal(n, sizeof want - 1);
	assert_memory_equal(text, want, n);
	mem_free(text);
	assert_int_equal(count_files(base, false), 1);
	job_spec bad = spec;
	bad.backend = "\xff";
	FAILS(job_write(&bad, base), CLV_E_INVALID, "UTF-8");
	FAILS(job_write(&spec, in(base, "gone")), CLV_E_IO, "gone");
	drop(base);
}

static digest key_of(const job_spec *s, const artifact *a, const char *setting)
{
	digest d;
	OK(job_key(s, a, setting, &d));
	return d;
}

static bool same(digest a, digest b)
{
	return a.high == b.high && a.low == b.low;
}

static void test_equal_jobs_have_equal_keys(void **state)
{
	(void)state;
	artifact *a = sample(), *b = sample();
	job_spec other = spec;
	digest key = key_of(&spec, a, "torch 2.13");
	for (node_id n = 0; n < b->plans.at[0].p->nodes.n; n++)
		OK(plan_cstr(b->plans.at[0].p, "other.py:1", &b->plans.at[0].p->nodes.at[n].at));
	assert_true(same(key, key_of(&spec, b, "torch 2.13")));
	other.threads = 1;
	assert_true(same(key, key_of(&other, b, "torch 2.13")));
	assert_false(same(key, key_of(&spec, b, "torch 2.14")));
	other.nargs = 1;
	assert_false(same(key, key_of(&other, b, "torch 2.13")));
	job_size fixed[] = {{"B", 1, 32, 2}};
	other = spec;
	other.sizes = fixed;
	assert_false(same(key, key_of(&other, b, "torch 2.13")));
	other = spec;
	other.ninputs = 1;
	assert_false(same(key, key_of(&other, b, "torch 2.13")));
	weights[3] += 1;
	assert_false(same(key, key_of(&spec, b, "torch 2.13")));
	weights[3] -= 1;
	weights[49] += 1; /* of the constant */
	assert_false(same(key, key_of(&spec, b, "torch 2.13")));
	weights[49] -= 1;
	assert_true(same(key, key_of(&spec, b, "torch 2.13")));
	b->plans.at[0].end = 4;
	assert_false(same(key, key_of(&spec, b, "torch 2.13")));
	artifact_free(a);
	artifact_free(b);
}

/* Of a file: what is outside of the range does not count, what is inside does. */
static void test_keys_are_of_the_part(void **state)
{
	(void)state;
	image i = written(sample());
	artifact *a = opened(i);
	artifact_range first = {0, 2, 2}, rest = {2, 5, 2};
	artifact *x = taken_from(a, "prefix", &first), *y = taken_from(a, "suffix", &rest);
	digest of_x = key_of(&spec, x, ""), of_y = key_of(&spec, y, "");
	assert_false(same(of_x, of_y));
	image xi = written(x), yi = written(y);
	artifact *xo = opened(xi), *yo = opened(yi);
	assert_false(same(key_of(&spec, xo, ""), key_of(&spec, yo, "")));
	digest before = key_of(&spec, xo, "");
	artifact_free(xo);
	xi.at[xi.n - 1] ^= 1; /* in the data, which is not looked at when it is opened */
	xo = opened(xi);
	assert_false(same(before, key_of(&spec, xo, "")));
	artifact_free(xo);
	artifact_free(yo);
	artifact_free(a);
	image_free(&xi);
	image_free(&yi);
	image_free(&i);
}

/* ---- machines --------------------------------------------------------------------------------------------------- */

static void test_features_of_this_machine(void **state)
{
	(void)state;
	strbuf b = STRBUF_INIT;
	OK(machine_features(&b));
	char *text = taken(&b);
	bool yes;
	const char *lacks = NULL;
	size_t n = 0;
	OK(machine_has(text, &yes, &lacks, &n));
	assert_true(yes);
	OK(machine_has("", &yes, &lacks, &n));
	assert_true(yes);
#ifdef __x86_64__
	assert_non_null(strstr(text, "sse2"));
#endif
	strbuf_printf(&b, "%s warp_drive avx2", text);
	char *more = taken(&b);
	OK(machine_has(more, &yes, &lacks, &n));
	assert_false(yes);
	assert_int_equal(n, 10);
	assert_memory_equal(lacks, "warp_drive", n);
	for (char *word = strtok(text, " "), *before = NULL; word; before = word, word = strtok(NULL, " "))
		assert_true(!before || strcmp(before, word) < 0);
	mem_free(more);
	mem_free(text);
}

/* ---- faults ----------------------------------------------------------------------------------------------------- */

static clv_status build_code(compiled *c)
{
	TRY(compiled_add(c, "model.so", mem_alloc(10), 10));
	TRY(compiled_need(c, "cpu", "avx"));
	return compiled_note(c, "a", "b");
}

static clv_status use_cache(cache *c)
{
	compiled made = {0}, got = {0};
	bool found = false;
	clv_status st = build_code(&made);
	if (st == CLV_OK)
		st = cache_put(c, key_a, &made);
	if (st == CLV_OK)
		st = cache_get(c, key_a, &got, &found);
	compiled_free(&made);
	compiled_free(&got);
	return st != CLV_OK || found ? st : CLV_E_NOT_FOUND;
}

static clv_status attempt_cache(const void *ctx)
{
	cache c;
	TRY(cache_open(ctx, 0, &c));
	clv_status st = use_cache(&c);
	cache_close(&c);
	return st;
}

static clv_status attempt_folders(const void *ctx)
{
	char *dir;
	bool yes;
	const char *lacks;
	size_t n;
	TRY(job_folder_make(ctx, "segment", &dir));
	clv_status st = job_write(&spec, dir);
	mem_free(dir);
	TRY(st);
	return machine_has("avx", &yes, &lacks, &n);
}

static clv_status attempt_key(const void *ctx)
{
	digest d;
	return job_key(&spec, ctx, "here", &d);
}

static void test_every_allocation_may_fail(void **state)
{
	(void)state;
	char *base = temporary();
	artifact *a = sample();
	assert_true(sweep_faults(attempt_cache, base, CLV_OK) > 10);
	assert_int_equal(count_files(base, false), 1);
	assert_true(sweep_faults(attempt_folders, base, CLV_OK) > 5);
	assert_true(sweep_faults(attempt_key, a, CLV_OK) > 10);
	artifact_free(a);
	drop(base);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_is_saved_is_loaded),
		cmocka_unit_test(test_names_are_plain),
		cmocka_unit_test(test_no_damaged_file_is_loaded),
		cmocka_unit_test(test_forged_files_are_refused_by_reason),
		cmocka_unit_test(test_an_entry_is_found_under_its_key),
		cmocka_unit_test(test_damaged_entries_are_removed),
		cmocka_unit_test(test_an_entry_under_another_name_is_no_hit),
		cmocka_unit_test(test_what_others_could_write_is_not_trusted),
		cmocka_unit_test(test_a_place_that_is_no_folder_is_said),
		cmocka_unit_test(test_where_the_cache_is),
		cmocka_unit_test(test_the_longest_unused_goes_first),
		cmocka_unit_test(test_a_full_disk_costs_the_entry_alone),
		cmocka_unit_test(test_processes_share_it),
		cmocka_unit_test(test_links_are_removed_and_not_followed),
		cmocka_unit_test(test_a_jobs_folder_is_emptied_and_others_are_left_alone),
		cmocka_unit_test(test_job_json),
		cmocka_unit_test(test_equal_jobs_have_equal_keys),
		cmocka_unit_test(test_keys_are_of_the_part),
		cmocka_unit_test(test_features_of_this_machine),
		cmocka_unit_test(test_every_allocation_may_fail),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
