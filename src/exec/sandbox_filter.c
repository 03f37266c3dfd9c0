/* What the process of a sandbox may still do: a list of system calls, and limits.
 *
 * The list is of what is allowed. No call on it opens a file, makes a socket or a process, or reaches another process. Calls
 * that libraries try in passing and can do without (open, stat, ioctl) fail with EPERM; all others end the process. Memory
 * may be executable: oneDNN writes machine code for the sizes it meets, and whoever runs code of his own in here has the
 * same list before him. */
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

#include "exec/sandbox.h"

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#endif

#ifdef ARCH

/* What is done with a call. */
enum { ALLOW = SECCOMP_RET_ALLOW, REFUSE = SECCOMP_RET_ERRNO | EPERM, ABSENT = SECCOMP_RET_ERRNO | ENOSYS };

typedef struct rule {
	int call;
	uint32_t verdict;
} rule;

static const rule rules[] = {
	/* the socket, and what is open */
	{__NR_read, ALLOW},
	{__NR_write, ALLOW},
	{__NR_readv, ALLOW},
	{__NR_writev, ALLOW},
	{__NR_recvfrom, ALLOW},
	{__NR_close, ALLOW},
	{__NR_lseek, ALLOW},
	/* memory */
	{__NR_mmap, ALLOW},
	{__NR_munmap, ALLOW},
	{__NR_mremap, ALLOW},
	{__NR_mprotect, ALLOW},
	{__NR_madvise, ALLOW},
	{__NR_brk, ALLOW},
	/* threads; glibc makes them with clone() where there is no clone3(), whose flags a filter cannot see */
	{__NR_clone3, ABSENT},
	{__NR_futex, ALLOW},
	{__NR_set_robust_list, ALLOW},
	{__NR_set_tid_address, ALLOW},
#ifdef __NR_rseq
	{__NR_rseq, ALLOW},
#endif
#ifdef __NR_membarrier
	{__NR_membarrier, ALLOW},
#endif
	{__NR_sched_yield, ALLOW},
	{__NR_sched_getaffinity, ALLOW},
	{__NR_gettid, ALLOW},
	{__NR_getpid, ALLOW},
	{__NR_getcpu, ALLOW},
	{__NR_exit, ALLOW},
	{__NR_exit_group, ALLOW},
	/* signals to itself */
	{__NR_rt_sigaction, ALLOW},
	{__NR_rt_sigprocmask, ALLOW},
	{__NR_rt_sigreturn, ALLOW},
	{__NR_sigaltstack, ALLOW},
	{__NR_restart_syscall, ALLOW},
	/* time, chance, and what the machine is */
	{__NR_clock_gettime, ALLOW},
	{__NR_clock_getres, ALLOW},
	{__NR_gettimeofday, ALLOW},
	{__NR_nanosleep, ALLOW},
	{__NR_clock_nanosleep, ALLOW},
	{__NR_getrandom, ALLOW},
	{__NR_getrusage, ALLOW},
	{__NR_sysinfo, ALLOW},
	{__NR_uname, ALLOW},
	/* tried in passing */
	{__NR_openat, REFUSE},
	{__NR_faccessat, REFUSE},
	{__NR_fstat, REFUSE},
	{__NR_newfstatat, REFUSE},
	{__NR_statx, REFUSE},
	{__NR_readlinkat, REFUSE},
	{__NR_getcwd, REFUSE},
	{__NR_ioctl, REFUSE},
	{__NR_fcntl, REFUSE},
	{__NR_getdents64, REFUSE},
	{__NR_sched_setaffinity, REFUSE},
	{__NR_mlock, REFUSE},
	{__NR_munlock, REFUSE},
	{__NR_get_mempolicy, REFUSE},
	{__NR_set_mempolicy, REFUSE},
	{__NR_mbind, REFUSE},
	{__NR_getuid, REFUSE},
	{__NR_geteuid, REFUSE},
	{__NR_getgid, REFUSE},
	{__NR_getegid, REFUSE},
	{__NR_getppid, REFUSE},
	{__NR_mincore, REFUSE},
	{__NR_sched_getparam, REFUSE},
	{__NR_sched_getscheduler, REFUSE},
	{__NR_sched_setscheduler, REFUSE},
	{__NR_getpriority, REFUSE},
	{__NR_setpriority, REFUSE},
#ifdef __x86_64__
	{__NR_time, ALLOW},
	{__NR_open, REFUSE},
	{__NR_access, REFUSE},
	{__NR_stat, REFUSE},
	{__NR_lstat, REFUSE},
	{__NR_readlink, REFUSE},
#endif
};

/* oneDNN asks for the registers of AMX when it first has a use for them: 0x1022 reads what is permitted, 0x1023 asks. */
enum { GET_XCOMP_PERM = 0x1022 };

enum { NRULES = sizeof rules / sizeof *rules, MOST_STEPS = 2 * NRULES + 48 };

typedef struct filter {
	struct sock_filter at[MOST_STEPS];
	unsigned short n;
} filter;

static void put(filter *f, uint16_t op, uint32_t k, uint8_t yes, uint8_t no)
{
	f->at[f->n++] = (struct sock_filter){op, yes, no, k};
}

static void load(filter *f, size_t offset)
{
	put(f, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset, 0, 0);
}

static void give(filter *f, uint32_t verdict)
{
	put(f, BPF_RET | BPF_K, verdict, 0, 0);
}

/* Both machines are little endian. */
#define ARG_LOW(i) (offsetof(struct seccomp_data, args) + 8 * (size_t)(i))
#define ARG_HIGH(i) (ARG_LOW(i) + 4)

/* A call that is fine where the bits `mask` of an argument are `want`. */
static void put_masked(filter *f, int call, size_t field, uint32_t mask, uint32_t want, uint32_t otherwise)
{
	put(f, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 5);
	load(f, field);
	put(f, BPF_ALU | BPF_AND | BPF_K, mask, 0, 0);
	put(f, BPF_JMP | BPF_JEQ | BPF_K, want, 0, 1);
	give(f, ALLOW);
	give(f, otherwise);
}

/* A call that is fine where an argument is NULL. */
static void put_null(filter *f, int call, size_t which)
{
	put(f, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 6);
	load(f, ARG_LOW(which));
	put(f, BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 3);
	load(f, ARG_HIGH(which));
	put(f, BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1);
	give(f, ALLOW);
	give(f, REFUSE);
}

static void make_filter(filter *f)
{
	const uint32_t thread = CLONE_VM | CLONE_SIGHAND | CLONE_THREAD;
	const uint32_t others = CLONE_PTRACE | CLONE_VFORK | CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC |
	                        CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_IO;
	load(f, offsetof(struct seccomp_data, arch));
	put(f, BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0);
	give(f, SECCOMP_RET_KILL_PROCESS);
	load(f, offsetof(struct seccomp_data, nr)); /* a number of the x32 calls is no number of the list */
	for (int i = 0; i < NRULES; i++) {
		put(f, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)rules[i].call, 0, 1);
		give(f, rules[i].verdict);
	}
	/* Those that look at an argument end the program where the number is theirs. */
	put_masked(f, __NR_clone, ARG_LOW(0), thread | others, thread, SECCOMP_RET_KILL_PROCESS);
	put_masked(f, __NR_tgkill, ARG_LOW(0), UINT32_MAX, (uint32_t)getpid(), SECCOMP_RET_KILL_PROCESS);
	put_masked(f, __NR_prctl, ARG_LOW(0), UINT32_MAX, PR_SET_NAME, REFUSE);
#ifdef __x86_64__
	put_masked(f, __NR_arch_prctl, ARG_LOW(0), UINT32_MAX - 1, GET_XCOMP_PERM, REFUSE);
#endif
	put_null(f, __NR_sendto, 4);    /* to the other end alone */
	put_null(f, __NR_prlimit64, 2); /* limits are read, not set */
	give(f, SECCOMP_RET_KILL_PROCESS);
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
