/* src/segment/child.c, jobs.c, result.c: compilers that work, fail, crash, hang, hide and write nonsense. */
#define _GNU_SOURCE /* unshare */
#include "support.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "segment/child.h"
#include "segment/compile.h"

enum { MOST = 8 };

/* Jobs in folders of a base, with one script as the compiler. */
typedef struct bench {
	char *base;
	char *dirs[MOST];
	char names[MOST][16];
	job jobs[MOST];
	uint32_t n;
	jobs_spec spec;
	const char *argv[5];
} bench;

static bench *set_up(uint32_t n, const char *script)
{
	bench *b = calloc(1, sizeof *b);
	b->n = n;
	OK(folder_make_temporary(&b->base));
	for (uint32_t i = 0; i < n; i++) {
		snprintf(b->names[i], sizeof b->names[i], "%u", i);
		OK(job_folder_make(b->base, b->names[i], &b->dirs[i]));
		b->jobs[i] = (job){.name = b->names[i], .dir = b->dirs[i]};
	}
	b->argv[0] = "sh";
	b->argv[1] = "-c";
	b->argv[2] = script;
	b->argv[3] = "compiler";
	b->spec = (jobs_spec){.argv = b->argv, .timeout = 60};
	return b;
}

static void tear_down(bench *b)
{
	for (uint32_t i = 0; i < b->n; i++) {
		job_free(&b->jobs[i]);
		mem_free(b->dirs[i]);
	}
	OK(folder_remove(b->base));
	assert_int_not_equal(access(b->base, F_OK), 0);
	mem_free(b->base);
	free(b);
}

static void run(bench *b)
{
	OK(jobs_run(b->jobs, b->n, &b->spec));
}

/* One job whose message holds `part`. */
static bench *failing(const char *script, const char *part)
{
	bench *b = set_up(1, script);
	run(b);
	assert_int_equal(b->jobs[0].state, JOB_FAILED);
	if (!strstr(b->jobs[0].message, part))
		fail_msg("\"%s\" has no \"%s\"", b->jobs[0].message, part);
	assert_int_equal(b->jobs[0].made.members.n, 0);
	return b;
}

/* The file `name` of the first job, as a number; 0: not there yet. */
static long number_in(const bench *b, const char *name)
{
	uint8_t *text;
	size_t n;
	char copy[32] = "";
	if (folder_read(b->dirs[0], name, 31, &text, &n) != CLV_OK)
		return 0;
	memcpy(copy, text, n);
	mem_free(text);
	return strtol(copy, NULL, 10);
}

static bool alive(long pid)
{
	return kill((pid_t)pid, 0) == 0;
}

static void pause_ms(long ms)
{
	struct timespec t = {ms / 1000, ms % 1000 * 1000000};
	nanosleep(&t, NULL);
}

#define RESULT "printf 'code' > model.so; echo '{\"members\": [\"model.so\"]}' > result.json"

/* ---- success ---------------------------------------------------------------------------------------------------- */

static void test_result_has_members_needs_and_notes(void **state)
{
	(void)state;
	bench *b = set_up(1, "test \"$1\" = \"$PWD\" || exit 9; printf 'a\\0b' > model.xml; : > model.bin; cat; echo seen; "
	                     "echo '{\"members\": [\"model.xml\", \"model.bin\"], \"needs\": {\"cpu\": \"avx2\"}, "
	                     "\"notes\": {\"kernels\": \"14\"}}' > result.json");
	run(b);
	job *j = &b->jobs[0];
	assert_int_equal(j->state, JOB_DONE);
	assert_null(j->message);
	assert_int_equal(j->made.members.n, 2);
	const compiled_member *m = compiled_find(&j->made, "model.xml");
	assert_int_equal(m->n, 3);
	assert_memory_equal(m->data, "a\0b", 3);
	assert_int_equal(compiled_find(&j->made, "model.bin")->n, 0);
	assert_string_equal(compiled_need_of(&j->made, "cpu"), "avx2");
	assert_null(compiled_need_of(&j->made, "torch"));
	assert_string_equal(j->made.notes.at[0].text, "14");
	assert_true(j->seconds > 0);
	tear_down(b);
}

static void test_environment_is_ours_and_what_was_asked_for(void **state)
{
	(void)state;
	static const char *const env[] = {"CLEAVE_TEST=mine", "CLEAVE_NEW=new", NULL};
	setenv("CLEAVE_TEST", "theirs", 1);
	bench *b = set_up(1, "test $CLEAVE_TEST$CLEAVE_NEW$HOME = minenew$HOME && " RESULT);
	b->spec.env = env;
	run(b);
	assert_int_equal(b->jobs[0].state, JOB_DONE);
	tear_down(b);
	unsetenv("CLEAVE_TEST");
}

static void test_files_and_signals_of_the_host_do_not_reach_the_compiler(void **state)
{
	(void)state;
	char *base;
	OK(folder_make_temporary(&base));
	char path[256];
	snprintf(path, sizeof path, "%s/open", base);
	int fd = open(path, O_RDWR | O_CREAT, 0600);
	assert_int_equal(dup2(fd, 77), 77);
	signal(SIGUSR1, SIG_IGN);
	bench *b = set_up(1, "test ! -e /proc/$$/fd/77 || exit 1; grep -q '^SigIgn:.*0000$' /proc/self/status || exit 2; "
	                     "grep -q '^SigBlk:.*0000000$' /proc/self/status || exit 3; " RESULT);
	run(b);
	if (b->jobs[0].state != JOB_DONE)
		fail_msg("%s", b->jobs[0].message);
	signal(SIGUSR1, SIG_DFL);
	close(77);
	close(fd);
	tear_down(b);
	OK(folder_remove(base));
	mem_free(base);
}

static void test_a_relative_folder_is_found(void **state)
{
	(void)state;
	bench *b = set_up(1, RESULT);
	char *here = getcwd(NULL, 0);
	assert_int_equal(chdir(b->base), 0);
	b->jobs[0].dir = "0";
	run(b);
	assert_int_equal(b->jobs[0].state, JOB_DONE);
	assert_int_equal(chdir(here), 0);
	free(here);
	tear_down(b);
}

static void test_no_jobs_are_no_work(void **state)
{
	(void)state;
	bench *b = set_up(0, RESULT);
	run(b);
	tear_down(b);
}

/* ---- the bound, ticks ------------------------------------------------------------------------------------------- */

typedef struct watcher {
	uint32_t most, ticks, stop_after;
	double stop_at;
} watcher;

static bool watch(void *ctx, const job *jobs, uint32_t n)
{
	watcher *w = ctx;
	uint32_t running = 0;
	for (uint32_t i = 0; i < n; i++)
		running += jobs[i].state == JOB_RUNS;
	w->most = running > w->most ? running : w->most;
	w->ticks++;
	return !w->stop_after || w->ticks < w->stop_after;
}

static void test_no_more_jobs_run_at_a_time_than_asked_for(void **state)
{
	(void)state;
	watcher w = {0};
	bench *b = set_up(6, "mkdir ../now.$$; set -- ../now.*; echo $# > count; sleep 0.3; rmdir ../now.$$; " RESULT);
	b->spec.parallel = 2;
	b->spec.tick = watch;
	b->spec.ctx = &w;
	run(b);
	for (uint32_t i = 0; i < b->n; i++) {
		uint8_t *text;
		size_t n;
		assert_int_equal(b->jobs[i].state, JOB_DONE);
		OK(folder_read(b->dirs[i], "count", 8, &text, &n));
		assert_in_range(text[0], '1', '2');
		mem_free(text);
	}
	assert_int_equal(w.most, 2);
	assert_true(w.ticks >= 12);
	tear_down(b);
}

/* ---- failure ---------------------------------------------------------------------------------------------------- */

static void test_error_json_is_the_message_with_the_culprits(void **state)
{
	(void)state;
	bench *b =
		failing("echo '{\"message\": \"no kernel for sort\", \"nodes\": [\"sort\", \"sort_1\"]}' > error.json; exit 1",
	            "no kernel for sort");
	assert_string_equal(b->jobs[0].message, "no kernel for sort");
	assert_int_equal(b->jobs[0].nblamed, 2);
	assert_string_equal(b->jobs[0].blamed[1], "sort_1");
	assert_false(b->jobs[0].argument);
	tear_down(b);
	b = failing("echo '{\"message\": \"unknown argument --x\", \"nodes\": [], \"argument\": true}' > error.json",
	            "--x");
	assert_true(b->jobs[0].argument);
	tear_down(b);
}

static void test_a_failure_without_words_shows_the_end_of_the_log(void **state)
{
	(void)state;
	tear_down(failing("echo first; echo oops >&2; exit 3", "ended with code 3"));
	bench *b = failing("i=0; while [ $i -lt 50 ]; do echo line-$i-; i=$((i+1)); done; printf '\\033[2J\\377'; exit 3",
	                   "line-49-\n  ?[2J?");
	assert_null(strstr(b->jobs[0].message, "line-9-"));
	tear_down(b);
}

static void test_a_crash_is_said(void **state)
{
	(void)state;
	tear_down(failing("echo before; kill -SEGV $$", "killed by signal 11"));
	tear_down(failing("kill -KILL $$", "killed by signal 9"));
}

static void test_a_result_of_a_compiler_that_failed_does_not_count(void **state)
{
	(void)state;
	tear_down(failing(RESULT "; exit 4", "code 4"));
	tear_down(failing(RESULT "; kill -ABRT $$", "signal 6"));
}

static void test_nonsense_is_refused(void **state)
{
	(void)state;
	static const char *const results[][2] = {
		{"exit 0", "no result.json"},
		{"printf '{\"members\": [' > result.json", "no valid JSON"},
		{": > result.json", "no valid JSON"},
		{"echo '[]' > result.json", "\"members\""},
		{"echo '{\"members\": []}' > result.json", "0 members"},
		{"echo '{\"members\": [7]}' > result.json", "plain file name"},
		{"echo '{\"members\": [\"../0/x\"]}' > result.json", "plain file name"},
		{"echo '{\"members\": [\"..\"]}' > result.json", "plain file name"},
		{"echo '{\"members\": [\"a\\u0000b\"]}' > result.json", "plain file name"},
		{"echo '{\"members\": [\"a\\u001b\"]}' > result.json", "plain file name"},
		{"echo '{\"members\": [\"/etc/passwd\"]}' > result.json", "plain file name"},
		{"echo '{\"members\": [\"gone\"]}' > result.json", "there is no gone"},
		{"mkdir d; echo '{\"members\": [\"d\"]}' > result.json", "d is no regular file"},
		{"mkfifo p; echo '{\"members\": [\"p\"]}' > result.json", "p is no regular file"},
		{"ln -s /etc/passwd l; echo '{\"members\": [\"l\"]}' > result.json", "l is a link"},
		{": > a; echo '{\"members\": [\"a\", \"a\"]}' > result.json", "two files"},
		{": > a; echo '{\"members\": [\"a\"], \"needs\": 3}' > result.json", "needs"},
		{": > a; echo '{\"members\": [\"a\"], \"notes\": {\"a\": 1}}' > result.json", "\"a\""},
		{"ln -s /etc/passwd result.json", "is a link"},
		{"mkdir result.json", "no regular file"},
		{"truncate -s 100M result.json", "bytes"},
		{"echo 'oops' > error.json; exit 1", "error.json is no valid JSON"},
		{"echo '{}' > error.json; exit 1", "\"message\""},
		{"echo '{\"message\": \"m\", \"nodes\": [3]}' > error.json; exit 1", "node 0"},
		{"echo '{\"message\": \"m\", \"nodes\": 3}' > error.json; exit 1", "\"nodes\""},
	};
	for (size_t i = 0; i < sizeof results / sizeof *results; i++)
		tear_down(failing(results[i][0], results[i][1]));
}

static void test_what_a_former_run_left_is_not_taken(void **state)
{
	(void)state;
	bench *b = set_up(1, RESULT);
	run(b);
	assert_int_equal(b->jobs[0].state, JOB_DONE);
	job_free(&b->jobs[0]);
	b->argv[2] = "exit 0";
	run(b);
	assert_int_equal(b->jobs[0].state, JOB_FAILED);
	tear_down(b);
}

static void test_a_compiler_that_cannot_be_started_is_said(void **state)
{
	(void)state;
	bench *b = set_up(1, "");
	b->argv[0] = "cleave-no-such-program";
	run(b);
	assert_int_equal(b->jobs[0].state, JOB_FAILED);
	assert_non_null(strstr(b->jobs[0].message, "no program \"cleave-no-such-program\""));
	job_free(&b->jobs[0]);
	b->argv[0] = "/etc/passwd";
	run(b);
	assert_int_equal(b->jobs[0].state, JOB_FAILED);
	assert_non_null(strstr(b->jobs[0].message, "cannot start: Permission denied"));
	job_free(&b->jobs[0]);
	b->argv[0] = "sh";
	b->jobs[0].dir = "/nowhere/at/all";
	run(b);
	assert_non_null(strstr(b->jobs[0].message, "cannot enter the folder: No such file"));
	tear_down(b);
}

static void test_a_log_that_cannot_be_written_is_said(void **state)
{
	(void)state;
	bench *b = set_up(1, RESULT);
	char path[256];
	snprintf(path, sizeof path, "%s/compile.log", b->dirs[0]);
	assert_int_equal(mkdir(path, 0700), 0);
	run(b);
	assert_int_equal(b->jobs[0].state, JOB_FAILED);
	assert_non_null(strstr(b->jobs[0].message, "cannot write the log"));
	tear_down(b);
}

/* ---- a full disk ------------------------------------------------------------------------------------------------ */

static bool says(const char *part)
{
	return strstr(status_message(), part) != NULL;
}

/* On a disk of 64 kB: which step went wrong; 0: none. */
static int on_a_full_disk(const char *base)
{
	static const char *const argv[] = {"sh", "-c", "head -c 1000000 /dev/zero > model.so", "compiler", NULL};
	jobs_spec s = {.argv = argv, .timeout = 60};
	char *dir, *other;
	cache c;
	compiled made = {0};
	if (job_folder_make(base, "0", &dir) != CLV_OK || job_folder_make(base, "1", &other) != CLV_OK ||
	    cache_open(base, 0, &c) != CLV_OK || compiled_add(&made, "a", mem_alloc(100000), 100000) != CLV_OK)
		return 1;
	if (cache_put(&c, (digest){1, 2}, &made) != CLV_E_IO || !says("No space left"))
		return 2;
	job j = {.name = "0", .dir = dir};
	if (jobs_run(&j, 1, &s) != CLV_OK || j.state != JOB_FAILED || !strstr(j.message, "disk is full"))
		return 3;
	job_size sizes[] = {{"B", 1, 2, 1}};
	if (job_write(&(job_spec){.backend = "b", .sizes = sizes, .nsizes = 1}, other) != CLV_E_IO ||
	    !says("No space left"))
		return 4;
	char path[256];
	snprintf(path, sizeof path, "%s/job.json", other);
	if (access(path, F_OK) == 0)
		return 5;
	job_free(&j);
	compiled_free(&made);
	cache_close(&c);
	mem_free(dir);
	mem_free(other);
	return folder_remove(path) == CLV_OK ? 0 : 6;
}

/* A disk of our own, which is gone with the process. 77: only root may have one. */
static int with_small_disk(const char *base)
{
	if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
	    mount("tmpfs", base, "tmpfs", 0, "size=64k,mode=0700") != 0)
		return 77;
	return on_a_full_disk(base);
}

static void test_a_full_disk_is_said(void **state)
{
	(void)state;
	int status;
	char *base;
	OK(folder_make_temporary(&base));
	pid_t pid = fork();
	if (pid == 0)
		_exit(with_small_disk(base));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	OK(folder_remove(base));
	mem_free(base);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == 77)
		skip();
	assert_int_equal(WEXITSTATUS(status), 0);
}

/* ---- the end of everything -------------------------------------------------------------------------------------- */

/* A child that ignores SIGTERM, in a session of its own, without its parent, and with an environment of its own. */
#define HIDE                                                                                                           \
	"(env -i setsid sh -c 'trap \"\" TERM INT HUP; echo $$ > hidden.tmp; mv hidden.tmp hidden; "                       \
	"while :; do sleep 1; done' &) ; while [ ! -e hidden ]; do sleep 0.05; done; "

static void test_a_timeout_kills_also_what_hides(void **state)
{
	(void)state;
	bench *b = set_up(1, HIDE "trap '' TERM; echo working; sleep 1000");
	b->spec.timeout = 1;
	run(b);
	assert_int_equal(b->jobs[0].state, JOB_TIMEOUT);
	assert_non_null(strstr(b->jobs[0].message, "after 1 seconds"));
	assert_non_null(strstr(b->jobs[0].message, "working"));
	assert_true(number_in(b, "hidden") > 0);
	assert_false(alive(number_in(b, "hidden")));
	assert_true(b->jobs[0].seconds >= 1 && b->jobs[0].seconds < 20);
	tear_down(b);
}

static void test_a_compiler_that_ends_leaves_nothing_running(void **state)
{
	(void)state;
	bench *b = set_up(1, HIDE RESULT);
	run(b);
	assert_int_equal(b->jobs[0].state, JOB_DONE);
	assert_true(number_in(b, "hidden") > 0);
	assert_false(alive(number_in(b, "hidden")));
	tear_down(b);
}

static bool stop_when_hidden(void *ctx, const job *jobs, uint32_t n)
{
	(void)jobs;
	(void)n;
	return number_in(ctx, "hidden") == 0;
}

static void test_a_stop_kills_everything_and_starts_nothing_more(void **state)
{
	(void)state;
	bench *b = set_up(3, HIDE "sleep 1000");
	b->spec.parallel = 2;
	b->spec.tick = stop_when_hidden;
	b->spec.ctx = b;
	run(b);
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(b->jobs[i].state, JOB_CANCELLED);
		assert_null(b->jobs[i].message);
	}
	assert_false(alive(number_in(b, "hidden")));
	tear_down(b);
}

/* The guard is the parent of the compiler; it is not one of our children that wait() sees. */
static bool kill_the_guard(void *ctx, const job *jobs, uint32_t n)
{
	(void)jobs;
	(void)n;
	long guard = number_in(ctx, "guard");
	if (guard > 1)
		kill((pid_t)guard, SIGKILL);
	return true;
}

static void test_a_killed_guard_takes_all_with_it(void **state)
{
	(void)state;
	bench *b = set_up(1, "(setsid sh -c 'echo $$ > hidden; sleep 1000' &); while [ ! -s hidden ]; do sleep 0.05; done; "
	                     "echo $$ > program; echo $PPID > guard; sleep 1000");
	b->spec.tick = kill_the_guard;
	b->spec.ctx = b;
	run(b);
	assert_int_equal(b->jobs[0].state, JOB_FAILED);
	assert_non_null(strstr(b->jobs[0].message, "killed from outside"));
	for (int i = 0; i < 100 && (alive(number_in(b, "hidden")) || alive(number_in(b, "program"))); i++)
		pause_ms(50); /* whoever adopted them takes their status */
	assert_true(number_in(b, "hidden") > 0);
	assert_false(alive(number_in(b, "hidden")));
	assert_false(alive(number_in(b, "program")));
	tear_down(b);
}

static void test_jobs_die_with_this_process(void **state)
{
	(void)state;
	bench *b = set_up(1, HIDE "echo $$ > program; sleep 1000");
	pid_t pid = fork();
	if (pid == 0) {
		jobs_run(b->jobs, b->n, &b->spec);
		_exit(0);
	}
	while (!number_in(b, "program"))
		pause_ms(20);
	assert_true(alive(number_in(b, "hidden")));
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	for (int i = 0; i < 200 && (alive(number_in(b, "hidden")) || alive(number_in(b, "program"))); i++)
		pause_ms(50);
	assert_false(alive(number_in(b, "hidden")));
	assert_false(alive(number_in(b, "program")));
	tear_down(b);
}

/* A copy of this process has the same files open, so that closing ours says nothing. */
static bool stop_with_a_copy(void *ctx, const job *jobs, uint32_t n)
{
	(void)n;
	pid_t *copy = ctx;
	if (!*copy && jobs[0].state == JOB_RUNS && (*copy = fork()) == 0) {
		pause_ms(30000);
		_exit(0);
	}
	return !*copy;
}

static void test_a_stop_is_heard_though_the_host_was_copied(void **state)
{
	(void)state;
	pid_t copy = 0;
	bench *b = set_up(1, "sleep 1000");
	b->spec.tick = stop_with_a_copy;
	b->spec.ctx = &copy;
	double start = clock_seconds();
	run(b);
	assert_int_equal(b->jobs[0].state, JOB_CANCELLED);
	assert_true(clock_seconds() - start < 8);
	kill(copy, SIGKILL);
	assert_int_equal(waitpid(copy, NULL, 0), copy);
	tear_down(b);
}

static void test_messages_do_not_steer_terminals(void **state)
{
	(void)state;
	bench *b =
		failing("printf '%s' '{\"message\": \"two\\nlines \\u001b[2J\"}' > error.json; exit 1", "two\nlines ?[2J");
	tear_down(b);
}

/* ---- the host --------------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t child_signals;

static void count_signal(int s)
{
	(void)s;
	child_signals = child_signals + 1;
}

static bool never_reap(void *ctx, const job *jobs, uint32_t n)
{
	(void)jobs;
	(void)n;
	pid_t got = waitpid(-1, NULL, WNOHANG);
	*(bool *)ctx = *(bool *)ctx || got > 0;
	return true;
}

static void test_the_host_sees_none_of_it(void **state)
{
	(void)state;
	bool reaped = false;
	bench *b = set_up(2, "sleep 0.3; " RESULT);
	b->spec.tick = never_reap;
	b->spec.ctx = &reaped;
	child_signals = 0;
	signal(SIGCHLD, count_signal);
	run(b);
	signal(SIGCHLD, SIG_DFL);
	assert_int_equal(child_signals, 0);
	assert_false(reaped);
	assert_int_equal(b->jobs[0].state, JOB_DONE);
	assert_int_equal(waitpid(-1, NULL, WNOHANG | __WALL), -1); /* no child of any kind is left */
	job_free(&b->jobs[0]);
	job_free(&b->jobs[1]);
	signal(SIGCHLD, SIG_IGN);
	b->spec.tick = NULL;
	run(b);
	signal(SIGCHLD, SIG_DFL);
	assert_int_equal(b->jobs[1].state, JOB_DONE);
	tear_down(b);
}

static void *run_on_a_thread(void *at)
{
	bench *b = at;
	return jobs_run(b->jobs, b->n, &b->spec) == CLV_OK ? NULL : b;
}

static void test_threads_run_jobs_of_their_own(void **state)
{
	(void)state;
	bench *b[3];
	pthread_t threads[3];
	for (int i = 0; i < 3; i++) {
		b[i] = set_up(4, RESULT);
		assert_int_equal(pthread_create(&threads[i], NULL, run_on_a_thread, b[i]), 0);
	}
	for (int i = 0; i < 3; i++) {
		void *bad;
		pthread_join(threads[i], &bad);
		assert_null(bad);
		for (uint32_t k = 0; k < 4; k++)
			assert_int_equal(b[i]->jobs[k].state, JOB_DONE);
		tear_down(b[i]);
	}
}

static unsigned open_files(void)
{
	unsigned n = 0;
	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static void test_no_file_stays_open(void **state)
{
	(void)state;
	unsigned before = open_files();
	bench *b = set_up(4, RESULT);
	run(b);
	assert_int_equal(open_files(), before);
	tear_down(b);
}

/* ---- faults ----------------------------------------------------------------------------------------------------- */

static clv_status attempt(const void *ctx)
{
	bench *b = (bench *)ctx;
	clv_status st = jobs_run(b->jobs, b->n, &b->spec);
	for (uint32_t i = 0; i < b->n; i++)
		job_free(&b->jobs[i]);
	return st;
}

static void test_every_allocation_may_fail(void **state)
{
	(void)state;
	bench *b = set_up(2, RESULT);
	assert_true(sweep_faults(attempt, b, CLV_OK) > 10);
	b->argv[2] = "echo '{\"message\": \"no\", \"nodes\": [\"a\", \"b\"]}' > error.json; exit 1";
	assert_true(sweep_faults(attempt, b, CLV_OK) > 10);
	tear_down(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_result_has_members_needs_and_notes),
		cmocka_unit_test(test_environment_is_ours_and_what_was_asked_for),
		cmocka_unit_test(test_files_and_signals_of_the_host_do_not_reach_the_compiler),
		cmocka_unit_test(test_a_relative_folder_is_found),
		cmocka_unit_test(test_no_jobs_are_no_work),
		cmocka_unit_test(test_no_more_jobs_run_at_a_time_than_asked_for),
		cmocka_unit_test(test_error_json_is_the_message_with_the_culprits),
		cmocka_unit_test(test_a_failure_without_words_shows_the_end_of_the_log),
		cmocka_unit_test(test_a_crash_is_said),
		cmocka_unit_test(test_a_result_of_a_compiler_that_failed_does_not_count),
		cmocka_unit_test(test_nonsense_is_refused),
		cmocka_unit_test(test_what_a_former_run_left_is_not_taken),
		cmocka_unit_test(test_a_compiler_that_cannot_be_started_is_said),
		cmocka_unit_test(test_a_log_that_cannot_be_written_is_said),
		cmocka_unit_test(test_a_full_disk_is_said),
		cmocka_unit_test(test_a_timeout_kills_also_what_hides),
		cmocka_unit_test(test_a_compiler_that_ends_leaves_nothing_running),
		cmocka_unit_test(test_a_stop_kills_everything_and_starts_nothing_more),
		cmocka_unit_test(test_a_killed_guard_takes_all_with_it),
		cmocka_unit_test(test_jobs_die_with_this_process),
		cmocka_unit_test(test_a_stop_is_heard_though_the_host_was_copied),
		cmocka_unit_test(test_messages_do_not_steer_terminals),
		cmocka_unit_test(test_the_host_sees_none_of_it),
		cmocka_unit_test(test_threads_run_jobs_of_their_own),
		cmocka_unit_test(test_no_file_stays_open),
		cmocka_unit_test(test_every_allocation_may_fail),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
