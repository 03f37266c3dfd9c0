/* A stranger's file on the native engine: in the process of a sandbox, started from `cleave`, with the same bits. */
#define _GNU_SOURCE /* setenv */
#include "artifacts.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define HEAD "cleave-plan 1\nmodel \"Net\" training=no grad=no\n"
#define SMALL                                                                                                          \
	HEAD "symbol B 1..64\ninput %0 f32[B,4] name=\"x\"\n"                                                              \
		 "%1 = aten::tanh(%0) -> f32[B,4]\n%2 = aten::add.Tensor(%1, %0, 1) -> f32[B,4]\noutput %2\n"
/* Minutes in one node. */
#define LONG                                                                                                           \
	HEAD "input %0 f32[1,1,2048,2048] name=\"x\"\n%1 = aten::avg_pool2d(%0, [255, 255], [1, 1], [0, 0], false, true, " \
		 "none) "                                                                                                      \
		 "-> f32[1,1,1794,1794]\noutput %1\n"

static clv_status open_text(const char *text, const clv_runtime_options *how, clv_runtime **out)
{
	clv_runtime_options o = *how;
	image i = written(new_artifact(text));
	artifact *a = opened(i);
	o.engine = "native";
	o.unproven = true;
	clv_status st = clv_runtime_create(a, &o, out);
	artifact_free(a);
	image_free(&i);
	return st;
}

static clv_tensor *input(int64_t rows, int64_t columns)
{
	clv_tensor *t;
	float data[64];
	for (int i = 0; i < 64; i++)
		data[i] = (float)i / 7 - 3;
	OK(clv_tensor_from_data(data, "f32", 2, (const int64_t[]){rows, columns}, &t));
	return t;
}

static clv_tensor *large_input(void)
{
	clv_tensor *t;
	float *data = calloc(2048 * 2048, sizeof *data);
	assert_non_null(data);
	OK(clv_tensor_from_data(data, "f32", 4, (const int64_t[]){1, 1, 2048, 2048}, &t));
	free(data);
	return t;
}

static clv_status run(clv_runtime *r, clv_tensor *x, clv_tensor **y)
{
	return clv_runtime_run(r, (const clv_tensor *const[]){x}, 1, y, 1);
}

static void it_runs_there_with_the_same_bits(void **state)
{
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	clv_runtime *there, *here;
	(void)state;
	OK(open_text(SMALL, &o, &there));
	assert_true(clv_runtime_sandboxed(there));
	assert_string_equal(clv_runtime_engine(there), "native");
	o.sandbox = CLV_SANDBOX_OFF;
	OK(open_text(SMALL, &o, &here));
	assert_false(clv_runtime_sandboxed(here));
	for (int64_t rows = 1; rows < 9; rows += 5) {
		clv_tensor *x = input(rows, 4), *y[2];
		OK(run(there, x, &y[0]));
		OK(run(here, x, &y[1]));
		assert_int_equal(clv_tensor_bytes(y[0]), rows * 16);
		assert_memory_equal(clv_tensor_data(y[0]), clv_tensor_data(y[1]), (size_t)rows * 16);
		clv_tensor_free(y[0]);
		clv_tensor_free(y[1]);
		clv_tensor_free(x);
	}
	clv_runtime_free(there);
	clv_runtime_free(here);
}

static void an_input_of_another_shape_is_told_here(void **state)
{
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	clv_runtime *r;
	clv_tensor *x = input(2, 5), *y = NULL;
	(void)state;
	OK(open_text(SMALL, &o, &r));
	FAILS(run(r, x, &y), CLV_E_INPUT, "x");
	assert_string_equal(clv_last_error_details()->input, "x");
	clv_tensor_free(x);
	clv_runtime_free(r);
}

static void it_ends_at_its_limits(void **state)
{
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	clv_runtime *r;
	clv_tensor *x = large_input(), *y = NULL;
	(void)state;
	o.timeout = 0.5;
	o.threads = 1;
	OK(open_text(LONG, &o, &r));
	FAILS(run(r, x, &y), CLV_E_LIMIT, "0.5 s");
	clv_runtime_free(r);
	o.max_memory = 1 << 16;
	OK(open_text(LONG, &o, &r));
	FAILS(run(r, x, &y), CLV_E_LIMIT, "bytes");
	clv_runtime_free(r);
	clv_tensor_free(x);
}

/* ---- a process that ends ------------------------------------------------------------------------------------------------- */

static long parent_of(long pid)
{
	char path[64], text[512] = "";
	long parent = 0;
	snprintf(path, sizeof path, "/proc/%ld/stat", pid);
	FILE *f = fopen(path, "r");
	if (!f)
		return 0;
	(void)!fread(text, 1, sizeof text - 1, f);
	fclose(f);
	const char *end = strrchr(text, ')');
	if (end)
		(void)!sscanf(end + 1, " %*c %ld", &parent);
	return parent;
}

static bool is_below_us(long pid)
{
	while (pid > 1 && pid != getpid())
		pid = parent_of(pid);
	return pid == getpid();
}

static bool is_sandbox(long pid)
{
	char path[64], text[512];
	snprintf(path, sizeof path, "/proc/%ld/cmdline", pid);
	FILE *f = fopen(path, "r");
	size_t n = f ? fread(text, 1, sizeof text, f) : 0;
	if (f)
		fclose(f);
	return n > 9 && memcmp(text + n - 9, "\0sandbox", 9) == 0;
}

/* The process of a sandbox of ours; 0: there is none. */
static long find_process(void)
{
	long found = 0;
	DIR *d = opendir("/proc");
	assert_non_null(d);
	for (struct dirent *e; !found && (e = readdir(d));) {
		long pid = atol(e->d_name);
		if (pid > 0 && is_sandbox(pid) && is_below_us(pid))
			found = pid;
	}
	closedir(d);
	return found;
}

static void *kill_soon(void *unused)
{
	(void)unused;
	long pid = 0;
	for (int i = 0; i < 200 && !pid; i++) {
		nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
		pid = find_process();
	}
	nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL);
	if (pid > 0)
		kill((pid_t)pid, SIGABRT); /* which AddressSanitizer does not take for itself */
	return NULL;
}

static void a_crash_names_the_node_and_the_caller_lives_on(void **state)
{
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	clv_runtime *r;
	clv_tensor *x = large_input(), *y = NULL;
	pthread_t killer;
	(void)state;
	o.threads = 1;
	o.timeout = 20;
	OK(open_text(LONG, &o, &r));
	for (int i = 0; i < 2; i++) { /* the second run has a process of its own */
		assert_int_equal(pthread_create(&killer, NULL, kill_soon, NULL), 0);
		FAILS(run(r, x, &y), CLV_E_CRASHED, "aten::avg_pool2d");
		assert_non_null(strstr(clv_last_error(), "SIGABRT"));
		pthread_join(killer, NULL);
	}
	clv_runtime_free(r);
	clv_tensor_free(x);
}

static void without_its_program_it_does_not_run(void **state)
{
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	clv_runtime *r = NULL;
	char *given = getenv("CLEAVE_PROGRAM") ? strdup(getenv("CLEAVE_PROGRAM")) : NULL;
	(void)state;
	setenv("CLEAVE_PROGRAM", "/nonexistent", 1);
	FAILS(open_text(SMALL, &o, &r), CLV_E_NOT_FOUND, "there can be none: CLEAVE_PROGRAM names");
	setenv("CLEAVE_PROGRAM", "/bin/false", 1);
	assert_int_not_equal(open_text(SMALL, &o, &r), CLV_OK);
	assert_null(r);
	given ? setenv("CLEAVE_PROGRAM", given, 1) : unsetenv("CLEAVE_PROGRAM");
	free(given);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_runs_there_with_the_same_bits),
		cmocka_unit_test(an_input_of_another_shape_is_told_here),
		cmocka_unit_test(it_ends_at_its_limits),
		cmocka_unit_test(a_crash_names_the_node_and_the_caller_lives_on),
		cmocka_unit_test(without_its_program_it_does_not_run),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
