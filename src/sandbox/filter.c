/* Confines the process of a sandbox: a list of allowed system calls, and limits.
 *
 * No call on the list opens a file, makes a socket or a process, or reaches another process. Calls that libraries try in
 * passing and can do without (open, stat, ioctl) fail with EPERM; all others end the process. Memory may be executable:
 * oneDNN writes machine code for the sizes it meets, and foreign code in here has no more system calls than that. */
#define _GNU_SOURCE /* clone flags */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sandbox/sandbox.h"

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#endif

#ifdef ARCH

/* What is done with a call. */
enum { ALLOW = SECCOMP_RET_ALLOW, REFUSE = SECCOMP_RET_ERRNO | EPERM, ABSENT = SECCOMP_RET_ERRNO | ENOSYS };

static const int allowed[] = {
	/* the socket, and what is open */
	__NR_read,
	__NR_write,
	__NR_readv,
	__NR_writev,
	__NR_recvfrom,
	__NR_close,
	__NR_lseek,
	/* memory */
	__NR_mmap,
	__NR_munmap,
	__NR_mremap,
	__NR_mprotect,
	__NR_madvise,
	__NR_brk,
	/* threads; see also make_filter */
	__NR_futex,
	__NR_set_robust_list,
	__NR_set_tid_address,
	__NR_sched_yield,
	__NR_sched_getaffinity,
	__NR_gettid,
	__NR_getpid,
	__NR_getcpu,
	__NR_exit,
	__NR_exit_group,
#ifdef __NR_rseq
	__NR_rseq,
#endif
#ifdef __NR_membarrier
	__NR_membarrier,
#endif
	/* signals to itself */
	__NR_rt_sigaction,
	__NR_rt_sigprocmask,
	__NR_rt_sigreturn,
	__NR_sigaltstack,
	__NR_restart_syscall,
	/* time, randomness, and what the machine is */
	__NR_clock_gettime,
	__NR_clock_getres,
	__NR_gettimeofday,
	__NR_nanosleep,
	__NR_clock_nanosleep,
	__NR_getrandom,
	__NR_getrusage,
	__NR_sysinfo,
	__NR_uname,
#ifdef __x86_64__
	__NR_time,
#endif
};

/* Libraries try these in passing, and can do without. */
static const int refused[] = {
	__NR_openat,
	__NR_faccessat,
	__NR_fstat,
	__NR_newfstatat,
	__NR_statx,
	__NR_readlinkat,
	__NR_getcwd,
	__NR_ioctl,
	__NR_fcntl,
	__NR_getdents64,
	__NR_sched_setaffinity,
	__NR_mlock,
	__NR_munlock,
	__NR_get_mempolicy,
	__NR_set_mempolicy,
	__NR_mbind,
	__NR_getuid,
	__NR_geteuid,
	__NR_getgid,
	__NR_getegid,
	__NR_getppid,
	__NR_mincore,
	__NR_sched_getparam,
	__NR_sched_getscheduler,
	__NR_sched_setscheduler,
	__NR_getpriority,
	__NR_setpriority,
#ifdef __x86_64__
	__NR_open,
	__NR_access,
	__NR_stat,
	__NR_lstat,
	__NR_readlink,
#endif
};

/* oneDNN asks for the registers of AMX when it first has a use for them: 0x1022 reads what is permitted, 0x1023 asks. */
enum { GET_XCOMP_PERM = 0x1022 };

enum {
	NALLOWED = sizeof allowed / sizeof *allowed,
	NREFUSED = sizeof refused / sizeof *refused,
	MOST_STEPS = 2 * (NALLOWED + NREFUSED) + 50
};

typedef struct filter {
	struct sock_filter at[MOST_STEPS];
	unsigned short n;
} filter;

static void put_step(filter *f, uint16_t op, uint32_t k, uint8_t yes, uint8_t no)
{
	f->at[f->n++] = (struct sock_filter){op, yes, no, k};
}

static void put_load(filter *f, size_t offset)
{
	put_step(f, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset, 0, 0);
}

static void put_return(filter *f, uint32_t verdict)
{
	put_step(f, BPF_RET | BPF_K, verdict, 0, 0);
}

static void put_verdict(filter *f, int call, uint32_t verdict)
{
	put_step(f, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 1);
	put_return(f, verdict);
}

/* Both machines are little endian. */
#define ARG_LOW(i) (offsetof(struct seccomp_data, args) + 8 * (size_t)(i))
#define ARG_HIGH(i) (ARG_LOW(i) + 4)

/* A call that is fine where the bits `mask` of an argument are `want`. */
static void put_masked(filter *f, int call, size_t field, uint32_t mask, uint32_t want, uint32_t otherwise)
{
	put_step(f, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 5);
	put_load(f, field);
	put_step(f, BPF_ALU | BPF_AND | BPF_K, mask, 0, 0);
	put_step(f, BPF_JMP | BPF_JEQ | BPF_K, want, 0, 1);
	put_return(f, ALLOW);
	put_return(f, otherwise);
}

/* A call that is fine where an argument is NULL. */
static void put_null(filter *f, int call, size_t which)
{
	put_step(f, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 6);
	put_load(f, ARG_LOW(which));
	put_step(f, BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 3);
	put_load(f, ARG_HIGH(which));
	put_step(f, BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1);
	put_return(f, ALLOW);
	put_return(f, REFUSE);
}

static void make_filter(filter *f)
{
	const uint32_t thread = CLONE_VM | CLONE_SIGHAND | CLONE_THREAD;
	const uint32_t others = CLONE_PTRACE | CLONE_VFORK | CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC |
	                        CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_IO;
	put_load(f, offsetof(struct seccomp_data, arch));
	put_step(f, BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0);
	put_return(f, SECCOMP_RET_KILL_PROCESS);
	put_load(f, offsetof(struct seccomp_data, nr)); /* a number of the x32 calls is no number of the list */
	for (int i = 0; i < NALLOWED; i++)
		put_verdict(f, allowed[i], ALLOW);
	for (int i = 0; i < NREFUSED; i++)
		put_verdict(f, refused[i], REFUSE);
	/* glibc makes threads with clone() where there is no clone3(), whose flags a filter cannot see */
	put_verdict(f, __NR_clone3, ABSENT);
	/* Those that look at an argument end the program where the number is theirs. */
	put_masked(f, __NR_clone, ARG_LOW(0), thread | others, thread, SECCOMP_RET_KILL_PROCESS);
	put_masked(f, __NR_tgkill, ARG_LOW(0), UINT32_MAX, (uint32_t)getpid(), SECCOMP_RET_KILL_PROCESS);
	put_masked(f, __NR_prctl, ARG_LOW(0), UINT32_MAX, PR_SET_NAME, REFUSE);
#ifdef __x86_64__
	put_masked(f, __NR_arch_prctl, ARG_LOW(0), UINT32_MAX - 1, GET_XCOMP_PERM, REFUSE);
#endif
	put_null(f, __NR_sendto, 4);    /* to the other end alone */
	put_null(f, __NR_prlimit64, 2); /* limits are read, not set */
	put_return(f, SECCOMP_RET_KILL_PROCESS);
}

static clv_status cannot(const char *what)
{
	return fail(CLV_E_UNSUPPORTED, "this system cannot run a sandbox: %s: %s", what, strerror(errno));
}

static clv_status install(void)
{
	filter f = {.n = 0};
	make_filter(&f);
	struct sock_fprog program = {.len = f.n, .filter = f.at};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
		return cannot("giving up privileges");
	/* Threads that libraries have started already get it too. */
	if (syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0)
		return cannot("a filter of system calls (seccomp)");
	return CLV_OK;
}
#else
static clv_status install(void)
{
	return fail(CLV_E_UNSUPPORTED, "there are sandboxes on x86-64 and on 64-bit ARM alone");
}
#endif

static clv_status limit(int what, rlim_t most, const char *name)
{
	struct rlimit now, l = {most, most};
	if (getrlimit((__rlimit_resource_t)what, &now) != 0)
		return fail(CLV_E_UNSUPPORTED, "this system cannot run a sandbox: the limit of %s: %s", name, strerror(errno));
	if (now.rlim_max < most) /* a narrower one stays */
		l = (struct rlimit){now.rlim_max, now.rlim_max};
	if (setrlimit((__rlimit_resource_t)what, &l) != 0)
		return fail(CLV_E_UNSUPPORTED, "this system cannot run a sandbox: the limit of %s: %s", name, strerror(errno));
	return CLV_OK;
}

/* Bytes of address space that this process has. */
static clv_status address_space(uint64_t *out)
{
	unsigned long pages;
	FILE *f = fopen("/proc/self/statm", "re");
	bool ok = f && fscanf(f, "%lu", &pages) == 1;
	if (f)
		fclose(f);
	if (!ok)
		return fail(CLV_E_UNSUPPORTED, "this system cannot run a sandbox: /proc/self/statm cannot be read");
	*out = (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
	return CLV_OK;
}

/* Threads are counted per user, not per process, so their number is limited by memory. Time is limited from outside. */
static clv_status set_limits(uint64_t room)
{
	uint64_t now;
	TRY(address_space(&now));
	TRY(limit(RLIMIT_AS, room > RLIM_INFINITY - now ? RLIM_INFINITY : now + room, "memory"));
	TRY(limit(RLIMIT_CORE, 0, "core dumps"));
	TRY(limit(RLIMIT_FSIZE, 0, "written files"));
	TRY(limit(RLIMIT_MEMLOCK, 0, "locked memory"));
	TRY(limit(RLIMIT_MSGQUEUE, 0, "message queues"));
	return limit(RLIMIT_NOFILE, 0, "open files");
}

clv_status sandbox_confine(uint64_t room)
{
	if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0)
		return fail(CLV_E_UNSUPPORTED, "this system cannot run a sandbox: %s", strerror(errno));
	TRY(set_limits(room));
	return install();
}
