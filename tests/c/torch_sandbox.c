/* Sandboxes from C: what the filter lets through, answers that are hostile, the runtime of a program in C. */
#define _GNU_SOURCE /* syscall */
#include "artifacts.h"
#include "torch.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sandbox/sandbox.h"

/* ---- the filter --------------------------------------------------------------------------------------------------- */

/* What became of a call in a confined process: its error, 0, or the signal that ended the process, negative. */
typedef long (*attempt_fn)(long);

static int confined(attempt_fn attempt, long arg)
{
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		if (sandbox_confine((uint64_t)1 << 30) != CLV_OK)
			_exit(255);
		errno = 0;
		long got = attempt(arg);
		_exit(got == -1 && errno ? errno : 0);
	}
	int status;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFSIGNALED(status))
		return -WTERMSIG(status);
	assert_int_not_equal(WEXITSTATUS(status), 255);
	return WEXITSTATUS(status);
}

static long any_call(long nr)
{
	return syscall(nr, -1L, -1L, -1L, -1L, -1L, -1L); /* nothing that is allowed does harm with these */
}

/* The list, once more and by itself. */
static bool may_return(long nr)
{
	static const long calls[] = {
		SYS_read,
		SYS_write,
		SYS_readv,
		SYS_writev,
		SYS_recvfrom,
		SYS_sendto,
		SYS_close,
		SYS_lseek,
		SYS_mmap,
		SYS_munmap,
		SYS_mremap,
		SYS_mprotect,
		SYS_madvise,
		SYS_brk,
		SYS_clone3,
		SYS_futex,
		SYS_set_robust_list,
		SYS_set_tid_address,
		SYS_rseq,
		SYS_membarrier,
		SYS_sched_yield,
		SYS_sched_getaffinity,
		SYS_sched_setaffinity,
		SYS_gettid,
		SYS_getpid,
		SYS_getcpu,
		SYS_exit,
		SYS_exit_group,
		SYS_rt_sigaction,
		SYS_rt_sigprocmask,
		SYS_rt_sigreturn,
		SYS_sigaltstack,
		SYS_restart_syscall,
		SYS_clock_gettime,
		SYS_clock_getres,
		SYS_gettimeofday,
		SYS_nanosleep,
		SYS_clock_nanosleep,
		SYS_getrandom,
		SYS_getrusage,
		SYS_sysinfo,
		SYS_uname,
		SYS_openat,
		SYS_faccessat,
		SYS_fstat,
		SYS_newfstatat,
		SYS_statx,
		SYS_readlinkat,
		SYS_getcwd,
		SYS_ioctl,
		SYS_fcntl,
		SYS_getdents64,
		SYS_mlock,
		SYS_munlock,
		SYS_get_mempolicy,
		SYS_set_mempolicy,
		SYS_mbind,
		SYS_getuid,
		SYS_geteuid,
		SYS_getgid,
		SYS_getegid,
		SYS_getppid,
		SYS_mincore,
		SYS_sched_getparam,
		SYS_sched_getscheduler,
		SYS_sched_setscheduler,
		SYS_getpriority,
		SYS_setpriority,
		SYS_prctl,
		SYS_prlimit64,
#ifdef __x86_64__
		SYS_time,
		SYS_arch_prctl,
		SYS_open,
		SYS_access,
		SYS_stat,
		SYS_lstat,
		SYS_readlink,
		335, /* and 336, by which the kernel comes back from its own probes: no filter sees them, and without a probe they */
		336, /* end the process */
#endif
	};
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
		if (calls[i] == nr)
			return true;
	return false;
}

static void every_other_system_call_ends_the_process(void **state)
{
	(void)state;
	for (long nr = 0; nr < 512; nr++)
		if (!may_return(nr) && confined(any_call, nr) != -SIGSYS)
			fail_msg("call %ld: %d", nr, confined(any_call, nr));
#ifdef __x86_64__
	assert_int_equal(confined(any_call, 0x40000000L | SYS_getpid), -SIGSYS); /* by the numbers of x32 */
#endif
}

#ifdef __x86_64__
/* As a 32-bit program calls getpid(). */
static long call_as_32_bits(long arg)
{
	long got;
	(void)arg;
	__asm__ volatile("int $0x80" : "=a"(got) : "a"(20) : "memory");
	return got;
}

static void calls_of_another_architecture_end_the_process(void **state)
{
	(void)state;
	assert_int_equal(confined(call_as_32_bits, 0), -SIGSYS);
}
#endif

static long open_a_file(long how)
{
	return how == 0   ? open("/etc/passwd", O_RDONLY)
	       : how == 1 ? open("/tmp/x", O_CREAT | O_WRONLY, 0600)
	                  : access("/", F_OK);
}

static long set_a_limit(long arg)
{
	struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
	(void)arg;
	return setrlimit(RLIMIT_AS, &all);
}

static long outlive_the_guard(long arg)
{
	return prctl(arg, 0, 0, 0, 0);
}

static long signal_somebody(long pid)
{
	return syscall(SYS_tgkill, pid, pid, 0);
}

static long send_elsewhere(long arg)
{
	static const char to[16] = {AF_UNIX};
	(void)arg;
	return syscall(SYS_sendto, 0L, to, 1L, 0L, to, 16L);
}

static long split_off(long flags)
{
	return syscall(SYS_clone, flags, 0L, 0L, 0L, 0L);
}

#ifdef __x86_64__
/* What is permitted is told; all else that the call can do is refused. */
static long set_registers(long code)
{
	uint64_t bits = 0;
	return syscall(SYS_arch_prctl, code, &bits);
}

static void the_registers_of_amx_can_be_asked_for(void **state)
{
	uint64_t bits = 0;
	(void)state;
	for (long code = 0x1022; code <= 0x1023; code++) {
		errno = 0;
		/* without a filter; the request itself names no such registers */
		int plain = syscall(SYS_arch_prctl, code, code == 0x1022 ? (long)&bits : 63L) == 0 ? 0 : errno;
		int boxed = confined(set_registers, code);
		assert_true(boxed >= 0 && boxed != EPERM);
		assert_true(code == 0x1023 || boxed == plain);
	}
	assert_int_equal(confined(set_registers, 0x1002 /* ARCH_SET_FS */), EPERM);
	assert_int_equal(confined(set_registers, 0x1025), EPERM);
}
#endif

static long take_memory(long bytes)
{
	return mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? -1 : 0;
}

static void *add_one(void *at)
{
	++*(int *)at;
	return NULL;
}

static long start_a_thread(long arg)
{
	pthread_t t;
	int n = 0;
	(void)arg;
	errno = pthread_create(&t, NULL, add_one, &n);
	if (errno || (errno = pthread_join(t, NULL)))
		return -1;
	errno = EPROTO;
	return n == 1 ? 0 : -1;
}

static void arguments_decide_where_a_call_is_for_some(void **state)
{
	(void)state;
	for (long how = 0; how < 3; how++)
		assert_int_equal(confined(open_a_file, how), EPERM);
	assert_int_equal(confined(set_a_limit, 0), EPERM);
	assert_int_equal(confined(outlive_the_guard, PR_SET_PDEATHSIG), EPERM);
	assert_int_equal(confined(outlive_the_guard, PR_SET_DUMPABLE), EPERM);
	assert_int_equal(confined(signal_somebody, getpid()), -SIGSYS);
	assert_int_equal(confined(send_elsewhere, 0), EPERM);
	assert_int_equal(confined(split_off, SIGCHLD), -SIGSYS);
	assert_int_equal(confined(split_off, 0x10000000 /* a user namespace */ | SIGCHLD), -SIGSYS);
	assert_int_equal(confined(start_a_thread, 0), 0);
	assert_int_equal(confined(take_memory, 1 << 20), 0);
	assert_int_equal(confined(take_memory, (long)2 << 30), ENOMEM);
}

/* ---- answers ------------------------------------------------------------------------------------------------------ */

static clv_tensor *tensor_of(float x)
{
	clv_tensor *t = NULL;
	const float data[6] = {x, 1, 2, 3, 4, 5};
	OK(clv_tensor_from_data(data, "f32", 2, (const int64_t[]){2, 3}, &t));
	return t;
}

typedef struct message {
	uint8_t at[8192];
	size_t n;
} message;

static void put(message *m, const void *from, size_t n)
{
	assert_true(m->n + n <= sizeof m->at);
	memcpy(m->at + m->n, from, n);
	m->n += n;
}

/* As the child writes it: one number, two tensors. */
static message good_answer(void)
{
	message m = {.n = 0};
	clv_tensor *two[] = {tensor_of(1), tensor_of(2)};
	parcel x;
	OK(parcel_make(two, 2, &x));
	sandbox_answer a = {.nnumbers = 1, .ntensors = 2, .tensors = x.image.total};
	run_number n = {.i = 7};
	put(&m, &a, sizeof a);
	put(&m, &n, sizeof n);
	assert_true(m.n + x.image.total <= sizeof m.at);
	st_copy(&x.image, m.at + m.n);
	m.n += x.image.total;
	parcel_free(&x);
	clv_tensor_free(two[0]);
	clv_tensor_free(two[1]);
	return m;
}

/* What a reader that expects one number and two tensors makes of it: the head comes over a socket that is closed then, the rest
   lies in a file. */
static clv_status read_message(const message *m, reply *out)
{
	int ends[2], file = memfd_create("answers", 0);
	size_t head = m->n < sizeof(sandbox_answer) ? m->n : sizeof(sandbox_answer);
	*out = (reply){0};
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
	assert_int_equal(write(ends[1], m->at, head), (ssize_t)head);
	OK(memory_write(file, PLACE_ROOM, m->at + head, m->n - head));
	close(ends[1]);
	clv_status st = reply_read(&(wire){.fd = ends[0]}, file, 4096, 1, 2, out);
	close(ends[0]);
	close(file);
	return st;
}

static void an_answer_comes_back_as_it_was(void **state)
{
	reply x;
	message m = good_answer();
	(void)state;
	OK(read_message(&m, &x));
	assert_int_equal(x.status, CLV_OK);
	assert_int_equal(x.numbers[0].i, 7);
	assert_true(((const float *)clv_tensor_data(x.tensors[1]))[0] == 2);
	reply_free(&x);
}

static void answers_that_claim_something_else_are_refused(void **state)
{
	message good = good_answer();
	reply x;
	(void)state;
	const struct {
		size_t at;
		uint64_t value;
		size_t n;
	} lies[] = {
		{offsetof(sandbox_answer, status), 99, 4},
		{offsetof(sandbox_answer, status), UINT32_MAX, 4},
		{offsetof(sandbox_answer, status), CLV_E_MACHINE + 1, 4},
		{offsetof(sandbox_answer, status), CLV_E_CRASHED, 4},   /* that, we say */
		{offsetof(sandbox_answer, status), CLV_E_CANCELLED, 4}, /* and that */
		{offsetof(sandbox_answer, message), UINT32_MAX, 4},
		{offsetof(sandbox_answer, message), 1, 4},
		{offsetof(sandbox_answer, nnumbers), 0, 4},
		{offsetof(sandbox_answer, nnumbers), UINT32_MAX, 4},
		{offsetof(sandbox_answer, ntensors), 1, 4},
		{offsetof(sandbox_answer, ntensors), UINT32_MAX, 4},
		{offsetof(sandbox_answer, tensors), UINT64_MAX, 8},
		{offsetof(sandbox_answer, tensors), 4097, 8},
		{offsetof(sandbox_answer, tensors), 0, 8},
		{sizeof(sandbox_answer) + offsetof(run_number, real), 2, 1}, /* no bool */
		{sizeof(sandbox_answer) + offsetof(run_number, real), 255, 1},
		{sizeof(sandbox_answer) + sizeof(run_number), UINT64_MAX, 8}, /* of the header of the tensors */
	};
	for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
		message m = good;
		memcpy(m.at + lies[i].at, &lies[i].value, lies[i].n);
		if (read_message(&m, &x) == CLV_OK)
			fail_msg("lie %zu was believed", i);
		reply_free(&x);
	}
	for (size_t n = 0; n < good.n; n++) { /* it ends in the middle */
		message m = good;
		m.n = n;
		assert_int_not_equal(read_message(&m, &x), CLV_OK);
		reply_free(&x);
	}
}

/* Two tensors or an error, whatever comes. */
static void answers_with_wrong_bytes_give_tensors_or_errors(void **state)
{
	message good = good_answer();
	uint64_t seed = 1;
	(void)state;
	for (int i = 0; i < 20000; i++) {
		message m = good;
		reply x;
		for (int k = 0; k <= i % 4; k++) {
			seed = seed * 6364136223846793005u + 1442695040888963407u;
			m.at[(seed >> 33) % m.n] = (uint8_t)(seed >> 25);
		}
		if (read_message(&m, &x) == CLV_OK && x.status == CLV_OK) {
			assert_int_equal(x.ntensors, 2);
			for (int k = 0; k < 2; k++)
				assert_true(clv_tensor_bytes(x.tensors[k]) <= 8192);
		}
		reply_free(&x);
	}
}

static void texts_of_the_child_cannot_reach_the_terminal(void **state)
{
	char out[8];
	(void)state;
	sandbox_clean(out, "a\033[2J\nb", sizeof out);
	assert_string_equal(out, "a?[2J\nb");
	sandbox_clean(out, "0123456789", sizeof out); /* and no NUL in sight */
	assert_string_equal(out, "0123456");
}

/* ---- the order ---------------------------------------------------------------------------------------------------- */

static void send_order(int fd, const sandbox_order *o, size_t n, const int files[SANDBOX_FILES])
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(SANDBOX_FILES * sizeof(int))] = {0};
	struct iovec part = {(void *)o, n};
	struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	*c = (struct cmsghdr){
		.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(SANDBOX_FILES * sizeof(int))};
	memcpy(CMSG_DATA(c), files, SANDBOX_FILES * sizeof(int));
	assert_int_equal(sendmsg(fd, &m, MSG_NOSIGNAL), (ssize_t)n);
}

static void a_program_of_another_version_says_so(void **state)
{
	static const size_t sizes[] = {sizeof(sandbox_order), 32, 40}; /* another version may have less in its order */
	(void)state;
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		int ends[2], status, files[SANDBOX_FILES];
		sandbox_order o = {.version = "0.0.1-other"};
		reply x = {0};
		for (int k = 0; k < SANDBOX_FILES; k++) {
			files[k] = memfd_create("test", 0);
			assert_int_equal(ftruncate(files[k], PLACE_ROOM + SANDBOX_MESSAGE), 0);
		}
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
		pid_t pid = fork();
		assert_true(pid >= 0);
		if (pid == 0) {
			close(ends[0]);
			dup2(ends[1], 0);
			_exit(clv_sandbox_serve(0));
		}
		close(ends[1]);
		send_order(ends[0], &o, sizes[i], files);
		OK(reply_read(&(wire){.fd = ends[0]}, files[2], 4096, 0, 0, &x));
		assert_int_equal(x.status, CLV_E_UNSUPPORTED);
		assert_non_null(strstr(clv_last_error(), "0.0.1-other"));
		assert_int_equal(waitpid(pid, &status, 0), pid);
		reply_free(&x);
		close(ends[0]);
		for (int k = 0; k < SANDBOX_FILES; k++)
			close(files[k]);
	}
}

/* ---- the random generator ----------------------------------------------------------------------------------------- */

static clv_status check_state(const void *data, const char *dtype, int64_t n)
{
	clv_tensor *t = NULL;
	OK(clv_tensor_from_data(data, dtype, 1, &n, &t));
	clv_status st = br_random_check(torch_of(t));
	clv_tensor_free(t);
	return st;
}

static void a_state_of_the_generator_is_checked(void **state)
{
	br_tensor *now = NULL;
	(void)state;
	OK(br_random_get("cpu", &now));
	clv_tensor *own = core_of(now);
	int64_t n = tensor_numel(own);
	char *data = malloc((size_t)n);
	memcpy(data, clv_tensor_data(own), (size_t)n);
	OK(check_state(data, "u8", n));
	assert_int_not_equal(check_state(data, "u8", n - 8), CLV_OK);
	assert_int_not_equal(check_state(data, "i8", n), CLV_OK);
	int32_t left = 624;
	int64_t next = 600; /* each is in range, and together they read beyond the 624 numbers */
	memcpy(data + 8, &left, sizeof left);
	memcpy(data + 16, &next, sizeof next);
	assert_int_not_equal(check_state(data, "u8", n), CLV_OK);
	next = 1;
	memcpy(data + 16, &next, sizeof next);
	OK(check_state(data, "u8", n));
	free(data);
	clv_tensor_free(own);
}

/* ---- runtimes ----------------------------------------------------------------------------------------------------- */

/* By default, where nobody vouches for it; and where there is no sandbox, it does not run. */
static void a_file_that_nobody_vouches_for_runs_in_a_sandbox(void **state)
{
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	clv_runtime *r = NULL;
	clv_tensor *x, *y = NULL;
	const char *why;
	char *program = getenv("CLEAVE_TORCH_PROGRAM") ? strdup(getenv("CLEAVE_TORCH_PROGRAM")) : NULL;
	image i = written(sample());
	artifact *made = sample(), *a = opened(i);
	artifact *derived = taken_from(a, "all", (artifact_range[]){{0, a->plans.at[0].end, NONE}});
	(void)state;
	OK(artifact_ready(made));
	OK(artifact_ready(derived));
	assert_false(clv_artifact_vouched(a, &why));
	assert_string_equal(why, "it has no seal");
	OK(clv_runtime_create(a, NULL, &r));
	assert_true(clv_runtime_sandboxed(r));
	OK(clv_tensor_from_data((float[8]){1}, "f32", 2, (const int64_t[]){2, 4}, &x));
	OK(clv_runtime_run(r, (const clv_tensor *const[]){x}, 1, &y, 1));
	FAILS(clv_runtime_profile(r, true), CLV_E_UNSUPPORTED, "nobody vouches for this file (it has no seal), so it runs");
	FAILS(clv_runtime_profile(r, true), CLV_E_UNSUPPORTED, "no profile of it here; if you trust it");
	clv_runtime_free(r);
	setenv("CLEAVE_TORCH_PROGRAM", "/nonexistent", 1);
	FAILS(clv_runtime_create(a, NULL, &r), CLV_E_NOT_FOUND, "nobody vouches for this file (it has no seal)");
	FAILS(clv_runtime_create(a, NULL, &r), CLV_E_NOT_FOUND, "there can be none: CLEAVE_TORCH_PROGRAM names");
	FAILS(clv_runtime_create(a, NULL, &r), CLV_E_NOT_FOUND, "CLV_SANDBOX_OFF), or have it signed (cleave sign)");
	FAILS(clv_runtime_create(derived, NULL, &r), CLV_E_UNSUPPORTED, "nobody vouches for this file");
	OK(clv_runtime_create(made, NULL, &r)); /* a live model needs nothing */
	assert_false(clv_runtime_sandboxed(r));
	clv_runtime_free(r);
	o.sandbox = CLV_SANDBOX_OFF;
	OK(clv_runtime_create(a, &o, &r));
	clv_runtime_free(r);
	o.sandbox = CLV_SANDBOX_AUTO;
	o.allow_compiled = true; /* who allows its machine code trusts it */
	OK(clv_runtime_create(a, &o, &r));
	assert_false(clv_runtime_sandboxed(r));
	clv_runtime_free(r);
	program ? setenv("CLEAVE_TORCH_PROGRAM", program, 1) : unsetenv("CLEAVE_TORCH_PROGRAM");
	free(program);
	clv_tensor_free(x);
	clv_tensor_free(y);
	artifact_free(derived);
	artifact_free(made);
	artifact_free(a);
	image_free(&i);
}

static void a_runtime_with_a_sandbox_runs(void **state)
{
	char folder[] = "/tmp/cleave-sandbox-XXXXXX", path[64];
	artifact *a = NULL, *mapped = NULL, *made = sample();
	clv_open_options copy = CLV_OPEN_OPTIONS_INIT;
	clv_runtime_options plain = CLV_RUNTIME_OPTIONS_INIT, boxed = CLV_RUNTIME_OPTIONS_INIT;
	clv_runtime *r[2] = {NULL};
	clv_tensor *x = NULL, *y[2] = {NULL};
	const float data[8] = {1, -2, 3, -4, 5, -6, 7, -8};
	(void)state;
	copy.copy = true;
	boxed.sandbox = CLV_SANDBOX_ON;
	plain.sandbox = CLV_SANDBOX_OFF;
	snprintf(path, sizeof path, "%s/model.clv", new_folder(folder));
	OK(artifact_save(made, path));
	OK(clv_artifact_open(path, NULL, &mapped));
	OK(clv_runtime_create(mapped, &boxed, &r[0]));
	clv_runtime_free(r[0]);
	assert_int_equal(clv_runtime_create(made, &boxed, &r[0]), CLV_E_UNSUPPORTED);
	OK(clv_artifact_open(path, &copy, &a));
	OK(clv_runtime_create(a, &plain, &r[0]));
	OK(clv_runtime_create(a, &boxed, &r[1]));
	OK(clv_tensor_from_data(data, "f32", 2, (const int64_t[]){2, 4}, &x));
	for (int i = 0; i < 2; i++)
		OK(clv_runtime_run(r[i], (const clv_tensor *const[]){x}, 1, &y[i], 1));
	assert_memory_equal(clv_tensor_data(y[0]), clv_tensor_data(y[1]), 8 * sizeof(float));
	assert_int_equal(clv_runtime_profile(r[1], true), CLV_E_UNSUPPORTED);
	for (int i = 0; i < 2; i++) {
		clv_tensor_free(y[i]);
		clv_runtime_free(r[i]);
	}
	clv_tensor_free(x);
	clv_artifact_free(a);
	clv_artifact_free(mapped);
	artifact_free(made);
	count_files(folder, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_other_system_call_ends_the_process),
#ifdef __x86_64__
		cmocka_unit_test(calls_of_another_architecture_end_the_process),
		cmocka_unit_test(the_registers_of_amx_can_be_asked_for),
#endif
		cmocka_unit_test(arguments_decide_where_a_call_is_for_some),
		cmocka_unit_test(an_answer_comes_back_as_it_was),
		cmocka_unit_test(answers_that_claim_something_else_are_refused),
		cmocka_unit_test(answers_with_wrong_bytes_give_tensors_or_errors),
		cmocka_unit_test(texts_of_the_child_cannot_reach_the_terminal),
		cmocka_unit_test(a_program_of_another_version_says_so),
		cmocka_unit_test(a_state_of_the_generator_is_checked),
		cmocka_unit_test(a_file_that_nobody_vouches_for_runs_in_a_sandbox),
		cmocka_unit_test(a_runtime_with_a_sandbox_runs),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
