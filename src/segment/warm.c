/* Warm compilers: processes that have loaded torch and a compiler and wait for jobs, one for each command line.
 *
 * Loading takes longer than most segments take to compile. So a compiler is started once, as `argv --serve`, with a socket
 * as its standard input, and forks for each job: a job that crashes, hangs or eats memory is still a process of its own,
 * under a guard of its own. A message is the job's folder, with the ends of the job's pipes attached. The first message of
 * the compiler says that it is ready.
 *
 * Warm compilers end with this process, and by themselves after some idle minutes. Compilers take settings from the
 * environment, so another environment needs another compiler. */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/digest.h"
#include "segment/child.h"

typedef struct warm {
	pid_t owner;          /* the process that started it: copies of it start their own */
	digest command, text; /* of the command line; of that and the environment */
	child c;
	int socket; /* -1: it gets no more jobs */
	bool ready; /* it was, once */
	bool old;   /* it was made for another environment */
} warm;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static VEC(warm) all;
extern char **environ;

static void put_texts(strbuf *b, const char *const *texts)
{
	for (; texts && *texts; texts++) {
		strbuf_puts(b, *texts);
		strbuf_putc(b, '\n');
	}
	strbuf_putc(b, '\f');
}

static clv_status describe_command(const char *const *argv, const char *const *env, warm *out)
{
	strbuf b = STRBUF_INIT;
	put_texts(&b, argv);
	size_t n = b.n;
	put_texts(&b, env);
	put_texts(&b, (const char *const *)environ);
	clv_status st = b.failed ? fail_nomem() : CLV_OK;
	if (st == CLV_OK) {
		out->command = digest_of(b.at, n);
		out->text = digest_of(b.at, b.n);
	}
	strbuf_free(&b);
	return st;
}

/* No more jobs: it ends when those that it has are done. */
static void retire(warm *w)
{
	if (w->socket >= 0)
		close(w->socket);
	w->socket = -1;
}

static bool is_alive(warm *w)
{
	char hello;
	if (w->socket >= 0 && recv(w->socket, &hello, 1, MSG_DONTWAIT) == 1)
		w->ready = true;
	child_poll(&w->c);
	return !w->c.over;
}

/* Forgets those that ended, except those that never became ready: they would not the next time either. */
static void tidy(void)
{
	uint32_t kept = 0;
	for (uint32_t i = 0; i < all.n; i++) {
		warm *w = &all.at[i];
		bool ours = w->owner == getpid(), alive = ours && is_alive(w);
		if (!alive)
			retire(w);
		if (ours && !alive)
			child_end(&w->c);
		if (!ours)
			child_forget(&w->c);
		if (alive || (ours && !w->ready && !w->old))
			all.at[kept++] = *w;
	}
	all.n = kept;
}

static warm *find_warm(const warm *like)
{
	for (uint32_t i = 0; i < all.n; i++) {
		warm *w = &all.at[i];
		if (digest_equal(w->text, like->text) && (w->socket >= 0 || (!w->ready && !w->old)))
			return w;
		if (digest_equal(w->command, like->command)) {
			retire(w); /* the environment changed */
			w->old = true;
		}
	}
	return NULL;
}

static clv_status start_warm(const char *const *argv, const char *const *env, warm *w)
{
	int ends[2];
	TRY(vec_reserve(&all, 1));
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
		return fail(CLV_E_IO, "cannot make a pair of sockets: %s", strerror(errno));
	child_spec spec = {
		.argv = argv, .last = "--serve", .env = env, .dir = "/", .log = "/dev/null", .input = ends[1], .lasts = true};
	clv_status st = child_start(&spec, &w->c);
	close(ends[1]);
	w->socket = ends[0];
	if (st != CLV_OK)
		retire(w);
	else
		all.at[all.n++] = *w;
	return st;
}

static bool send_job(const warm *w, const char *dir, const int ends[2])
{
	_Alignas(struct cmsghdr) char room[CMSG_SPACE(2 * sizeof(int))] = {0};
	struct iovec text = {(void *)(uintptr_t)dir, strlen(dir)};
	struct msghdr m = {.msg_iov = &text, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
	struct cmsghdr *files = CMSG_FIRSTHDR(&m);
	files->cmsg_level = SOL_SOCKET;
	files->cmsg_type = SCM_RIGHTS;
	files->cmsg_len = CMSG_LEN(2 * sizeof(int));
	memcpy(CMSG_DATA(files), ends, 2 * sizeof(int));
	return sendmsg(w->socket, &m, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

static clv_status give_job(const warm *w, const char *dir, child *out)
{
	int ends[2];
	TRY(child_order(out, ends));
	bool sent = send_job(w, dir, ends);
	close(ends[0]);
	close(ends[1]);
	if (sent)
		return CLV_OK;
	child_end(out);
	return fail(CLV_E_NOT_FOUND, "the warm compiler takes no job");
}

static clv_status find_and_give(const char *const *argv, const char *const *env, const char *dir, child *out)
{
	warm like = {.owner = getpid(), .socket = -1};
	TRY(describe_command(argv, env, &like));
	tidy();
	warm *w = find_warm(&like);
	if (w && w->socket < 0)
		return fail(CLV_E_NOT_FOUND, "the compiler cannot wait for jobs");
	if (w && give_job(w, dir, out) == CLV_OK)
		return CLV_OK;
	if (w)
		retire(w); /* it is ending */
	TRY(start_warm(argv, env, &like));
	return give_job(&all.at[all.n - 1], dir, out);
}

clv_status warm_job(const char *const *argv, const char *const *env, const char *dir, child *out)
{
	pthread_mutex_lock(&lock);
	clv_status st = find_and_give(argv, env, dir, out);
	pthread_mutex_unlock(&lock);
	return st;
}

void warm_give_up(void)
{
	pthread_mutex_lock(&lock);
	tidy();
	for (uint32_t i = 0; i < all.n; i++) {
		if (all.at[i].ready)
			continue;
		retire(&all.at[i]);
		child_end(&all.at[i].c);
	}
	pthread_mutex_unlock(&lock);
}

uint32_t warm_count(pid_t *pids, uint32_t most)
{
	uint32_t n = 0;
	pthread_mutex_lock(&lock);
	tidy();
	for (uint32_t i = 0; i < all.n; i++) {
		if (all.at[i].socket < 0)
			continue;
		if (n < most)
			pids[n] = all.at[i].c.guard;
		n++;
	}
	pthread_mutex_unlock(&lock);
	return n;
}
