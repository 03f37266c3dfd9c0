/* A connection to a server: a socket that does not block, or TLS 1.3 on one; every wait ends at a deadline. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "remote/remote.h"

struct remote_link {
	int fd;
	tls_session *tls; /* NULL: there is none */
};

/* ---- sockets ---------------------------------------------------------------------------------------------------- */

static clv_status wait_until(int fd, short events, double deadline)
{
	for (;;) {
		double left = deadline - clock_seconds();
		if (left <= 0)
			return fail(CLV_E_IO, "the server took too long");
		struct pollfd p = {.fd = fd, .events = events};
		int n = poll(&p, 1, left > 1000 ? 1000000 : (int)(left * 1000) + 1);
		if (n > 0)
			return CLV_OK;
		if (n < 0 && errno != EINTR)
			return fail(CLV_E_IO, "waiting for the server: %s", strerror(errno));
	}
}

static clv_status connect_to(int fd, const struct addrinfo *a, double deadline)
{
	int error = 0, one = 1;
	socklen_t n = sizeof error;
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	if (connect(fd, a->ai_addr, a->ai_addrlen) == 0)
		return CLV_OK;
	if (errno != EINPROGRESS)
		return fail(CLV_E_IO, "%s", strerror(errno));
	TRY(wait_until(fd, POLLOUT, deadline));
	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n) != 0 || error)
		return fail(CLV_E_IO, "%s", strerror(error));
	return CLV_OK;
}

static clv_status open_socket(const struct addrinfo *a, double deadline, int *out)
{
	int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
	if (fd < 0)
		return fail(CLV_E_IO, "%s", strerror(errno));
	clv_status st = connect_to(fd, a, deadline);
	if (st == CLV_OK)
		*out = fd;
	else
		close(fd);
	return st;
}

#ifdef CLEAVE_NUMERIC_HOSTS

/* A static program cannot look up names: libc loads parts of itself for that. */
static clv_status open_any(const remote_url *u, double deadline, int *out)
{
	uint16_t port = htons((uint16_t)strtoul(u->port, NULL, 10));
	struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = port};
	struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = port};
	struct addrinfo a = {.ai_socktype = SOCK_STREAM};
	if (inet_pton(AF_INET, u->host, &four.sin_addr) == 1) {
		a.ai_family = AF_INET, a.ai_addr = (struct sockaddr *)&four, a.ai_addrlen = sizeof four;
	} else if (inet_pton(AF_INET6, u->host, &six.sin6_addr) == 1) {
		a.ai_family = AF_INET6, a.ai_addr = (struct sockaddr *)&six, a.ai_addrlen = sizeof six;
	} else {
		return fail(CLV_E_INVALID,
		            "this program cannot look up names such as %s: give the server's address, http://192.0.2.1:%s/…",
		            u->host, u->port);
	}
	clv_status st = open_socket(&a, deadline, out);
	return st == CLV_OK ? CLV_OK : fail_more(st, "cannot reach %s port %s", u->host, u->port);
}

#else

/* The first of its addresses that answers. */
static clv_status open_any(const remote_url *u, double deadline, int *out)
{
	struct addrinfo want = {.ai_socktype = SOCK_STREAM}, *list = NULL;
	int error = getaddrinfo(u->host, u->port, &want, &list);
	if (error)
		return fail(CLV_E_IO, "%s is not known: %s", u->host, gai_strerror(error));
	clv_status st = CLV_E_IO;
	for (const struct addrinfo *a = list; a && st != CLV_OK; a = a->ai_next)
		st = open_socket(a, deadline, out);
	freeaddrinfo(list);
	return st == CLV_OK ? CLV_OK : fail_more(st, "cannot reach %s port %s", u->host, u->port);
}

#endif

/* ---- links ------------------------------------------------------------------------------------------------------ */

/* After a call that could not go on: waits, or says why it never will. */
static clv_status wait_for(remote_link *l, bool writes, double deadline)
{
	if (errno == EINTR)
		return CLV_OK;
	if (errno == EAGAIN || errno == EWOULDBLOCK)
		return wait_until(l->fd, writes ? POLLOUT : POLLIN, deadline);
	return l->tls ? CLV_E_IO : fail(CLV_E_IO, "the connection broke: %s", strerror(errno));
}

static clv_status shake_hands(remote_link *l, const char *host, double deadline)
{
	for (;;) {
		bool writes;
		long n = tls_begin(l->tls, &writes);
		if (n > 0)
			return CLV_OK;
		if (tls_distrust(l->tls))
			return fail(CLV_E_INVALID, "the certificate of %s is not accepted: %s", host, tls_distrust(l->tls));
		if (n == 0)
			return fail(CLV_E_IO, "the server ended the connection while TLS began");
		TRY(wait_for(l, writes, deadline));
	}
}

clv_status link_open(const remote_url *u, tls_context *c, double deadline, remote_link **out)
{
	remote_link *l = mem_alloc(sizeof *l);
	TRY_MEM(l);
	l->fd = -1;
	clv_status st = open_any(u, deadline, &l->fd);
	if (st == CLV_OK && c)
		st = tls_connect(c, l->fd, u->host, &l->tls);
	if (st == CLV_OK && c)
		st = shake_hands(l, u->host, deadline);
	if (st == CLV_OK)
		*out = l;
	else
		link_close(l);
	return st;
}

void link_close(remote_link *l)
{
	if (!l)
		return;
	tls_close(l->tls);
	if (l->fd >= 0)
		close(l->fd);
	mem_free(l);
}

clv_status link_write(remote_link *l, const void *at, size_t n, bool more, double deadline)
{
	while (n) {
		bool writes = true;
		long k = l->tls ? tls_write(l->tls, at, n, &writes) : send(l->fd, at, n, MSG_NOSIGNAL | (more ? MSG_MORE : 0));
		if (k < 0)
			TRY(wait_for(l, writes, deadline));
		else if (k == 0)
			return fail(CLV_E_IO, "the server closed the connection");
		else
			at = (const char *)at + k, n -= (size_t)k;
	}
	return CLV_OK;
}

clv_status link_read(remote_link *l, void *to, size_t n, double deadline, size_t *got)
{
	if (clock_seconds() >= deadline) /* a server that sends without end is never waited for */
		return fail(CLV_E_IO, "the server took too long");
	for (;;) {
		bool writes = false;
		long k = l->tls ? tls_read(l->tls, to, n, &writes) : recv(l->fd, to, n, 0);
		*got = k > 0 ? (size_t)k : 0;
		if (k >= 0)
			return CLV_OK;
		TRY(wait_for(l, writes, deadline));
	}
}

/* Over TLS tickets for later sessions may have come, which are no bytes for us; other bytes mean trouble. */
bool link_is_quiet(remote_link *l)
{
	char c;
	bool writes;
	long k = l->tls ? tls_read(l->tls, &c, 1, &writes) : recv(l->fd, &c, 1, MSG_PEEK);
	return k < 0 && (errno == EAGAIN || errno == EINTR);
}
