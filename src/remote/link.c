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

#ifdef CLEAVE_TLS
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#endif

struct remote_link {
	int fd;
#ifdef CLEAVE_TLS
	SSL *ssl; /* NULL: there is no TLS */
#endif
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

/* ---- TLS -------------------------------------------------------------------------------------------------------- */

#ifdef CLEAVE_TLS

struct remote_security {
	SSL_CTX *ctx;
	BIO_METHOD *socket; /* as OpenSSL's own, but a write to a closed connection sends no signal to the process */
};

static clv_status fail_tls(const char *what)
{
	char text[256] = "";
	unsigned long code = ERR_get_error();
	if (code)
		ERR_error_string_n(code, text, sizeof text);
	ERR_clear_error();
	return fail(CLV_E_IO, "%s%s%s", what, *text ? ": " : "", text);
}

static int bio_fd(BIO *b)
{
	return (int)(intptr_t)BIO_get_data(b);
}

static int bio_result(BIO *b, ssize_t n, int retry)
{
	BIO_clear_retry_flags(b);
	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
		BIO_set_flags(b, retry | BIO_FLAGS_SHOULD_RETRY);
	return (int)n;
}

static int bio_write(BIO *b, const char *at, int n)
{
	return bio_result(b, send(bio_fd(b), at, (size_t)n, MSG_NOSIGNAL), BIO_FLAGS_WRITE);
}

static int bio_read(BIO *b, char *to, int n)
{
	return bio_result(b, recv(bio_fd(b), to, (size_t)n, 0), BIO_FLAGS_READ);
}

static long bio_ctrl(BIO *b, int what, long n, void *p)
{
	(void)b, (void)n, (void)p;
	return what == BIO_CTRL_FLUSH;
}

static BIO_METHOD *new_socket_method(void)
{
	BIO_METHOD *m = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "cleave socket");
	if (!m || !BIO_meth_set_write(m, bio_write) || !BIO_meth_set_read(m, bio_read) || !BIO_meth_set_ctrl(m, bio_ctrl)) {
		BIO_meth_free(m);
		return NULL;
	}
	return m;
}

static clv_status load_files(SSL_CTX *ctx, const char *ca, const char *cert, const char *key)
{
	if (ca ? SSL_CTX_load_verify_file(ctx, ca) != 1 : SSL_CTX_set_default_verify_paths(ctx) != 1)
		return fail_tls(ca ? "the file with trusted certificates cannot be read" : "there are no trusted certificates");
	if (!cert != !key)
		return fail(CLV_E_INVALID, "a certificate of the client goes with its key");
	if (cert && SSL_CTX_use_certificate_chain_file(ctx, cert) != 1)
		return fail_tls("the certificate of the client cannot be read");
	if (key && (SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) != 1 || SSL_CTX_check_private_key(ctx) != 1))
		return fail_tls("the key of the client cannot be read, or is for another certificate");
	return CLV_OK;
}

clv_status remote_security_new(const char *ca, const char *cert, const char *key, remote_security **out)
{
	static const unsigned char http1[] = "\x08http/1.1";
	remote_security *s = mem_alloc(sizeof *s);
	TRY_MEM(s);
	ERR_clear_error();
	s->ctx = SSL_CTX_new(TLS_client_method());
	s->socket = new_socket_method();
	clv_status st = s->ctx && s->socket ? CLV_OK : fail_nomem();
	if (st == CLV_OK) {
		SSL_CTX_set_verify(s->ctx, SSL_VERIFY_PEER, NULL);
		SSL_CTX_clear_mode(s->ctx, SSL_MODE_AUTO_RETRY); /* the time is looked at after messages without data, too */
		SSL_CTX_set_mode(s->ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
		bool set = SSL_CTX_set_min_proto_version(s->ctx, TLS1_3_VERSION) == 1 &&
		           SSL_CTX_set_alpn_protos(s->ctx, http1, sizeof http1 - 1) == 0;
		st = set ? load_files(s->ctx, ca, cert, key) : fail_tls("TLS 1.3 is not there");
	}
	if (st == CLV_OK)
		*out = s;
	else
		remote_security_free(s);
	return st;
}

void remote_security_free(remote_security *s)
{
	if (!s)
		return;
	SSL_CTX_free(s->ctx);
	BIO_meth_free(s->socket);
	mem_free(s);
}

/* The certificate has to be for this host, by name or by address. */
static bool expect_host(SSL *ssl, const char *host)
{
	X509_VERIFY_PARAM *p = SSL_get0_param(ssl);
	unsigned char address[16];
	bool number = inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;
	if (number)
		return X509_VERIFY_PARAM_set1_ip_asc(p, host) == 1;
	X509_VERIFY_PARAM_set_hostflags(p, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
	return X509_VERIFY_PARAM_set1_host(p, host, 0) == 1 && SSL_set_tlsext_host_name(ssl, host) == 1;
}

/* After a call of OpenSSL that could not go on: waits, or says why it never will. *closed: the other side ended it. */
static clv_status tls_wait(remote_link *l, int n, double deadline, bool *closed)
{
	*closed = false;
	switch (SSL_get_error(l->ssl, n)) {
	case SSL_ERROR_WANT_READ: return wait_until(l->fd, POLLIN, deadline);
	case SSL_ERROR_WANT_WRITE: return wait_until(l->fd, POLLOUT, deadline);
	case SSL_ERROR_ZERO_RETURN: *closed = true; return CLV_OK;
	case SSL_ERROR_SYSCALL:
		return fail(CLV_E_IO, "the connection broke: %s", errno ? strerror(errno) : "it was closed");
	default: return fail_tls("the connection broke");
	}
}

static clv_status shake_hands(remote_link *l, const char *host, double deadline)
{
	for (;;) {
		bool closed;
		errno = 0;
		ERR_clear_error();
		int n = SSL_connect(l->ssl);
		if (n == 1)
			return CLV_OK;
		long wrong = SSL_get_verify_result(l->ssl);
		if (wrong != X509_V_OK) {
			ERR_clear_error();
			return fail(CLV_E_INVALID, "the certificate of %s is not accepted: %s", host,
			            X509_verify_cert_error_string(wrong));
		}
		TRY(tls_wait(l, n, deadline, &closed));
		if (closed)
			return fail(CLV_E_IO, "the server ended the connection while TLS began");
	}
}

static clv_status begin_tls(remote_link *l, remote_security *s, const char *host, double deadline)
{
	BIO *b = BIO_new(s->socket);
	TRY_MEM(b);
	BIO_set_data(b, (void *)(intptr_t)l->fd);
	BIO_set_init(b, 1);
	l->ssl = SSL_new(s->ctx);
	if (!l->ssl) {
		BIO_free(b);
		return fail_nomem();
	}
	SSL_set_bio(l->ssl, b, b);
	if (!expect_host(l->ssl, host))
		return fail_tls("the host cannot be checked");
	return shake_hands(l, host, deadline);
}

static clv_status tls_write(remote_link *l, const void *at, size_t n, double deadline)
{
	while (n) {
		bool closed;
		size_t done = 0;
		errno = 0;
		ERR_clear_error();
		int ok = SSL_write_ex(l->ssl, at, n, &done);
		if (ok != 1)
			TRY(tls_wait(l, ok, deadline, &closed));
		else
			closed = false;
		if (closed)
			return fail(CLV_E_IO, "the server closed the connection");
		at = (const char *)at + done;
		n -= done;
	}
	return CLV_OK;
}

static clv_status tls_read(remote_link *l, void *to, size_t n, double deadline, size_t *got)
{
	for (;;) {
		bool closed;
		errno = 0;
		ERR_clear_error();
		int ok = SSL_read_ex(l->ssl, to, n, got);
		if (ok == 1)
			return CLV_OK;
		*got = 0;
		TRY(tls_wait(l, ok, deadline, &closed));
		if (closed)
			return CLV_OK;
	}
}

#else

clv_status remote_security_new(const char *ca, const char *cert, const char *key, remote_security **out)
{
	(void)ca, (void)cert, (void)key, (void)out;
	return fail(CLV_E_UNSUPPORTED,
	            "this build of Cleave is without OpenSSL, and so without https://: install it (on Debian: "
	            "apt-get install libssl-dev) and build again");
}

void remote_security_free(remote_security *s)
{
	(void)s;
}

#endif

/* ---- links ------------------------------------------------------------------------------------------------------ */

clv_status link_open(const remote_url *u, remote_security *s, double deadline, remote_link **out)
{
	remote_link *l = mem_alloc(sizeof *l);
	TRY_MEM(l);
	l->fd = -1;
	clv_status st = open_any(u, deadline, &l->fd);
#ifdef CLEAVE_TLS
	if (st == CLV_OK && u->tls)
		st = begin_tls(l, s, u->host, deadline);
#else
	(void)s;
#endif
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
#ifdef CLEAVE_TLS
	if (l->ssl) {
		(void)SSL_shutdown(l->ssl);
		ERR_clear_error();
		SSL_free(l->ssl);
	}
#endif
	if (l->fd >= 0)
		close(l->fd);
	mem_free(l);
}

static clv_status plain_write(remote_link *l, const char *at, size_t n, bool more, double deadline)
{
	while (n) {
		ssize_t k = send(l->fd, at, n, MSG_NOSIGNAL | (more ? MSG_MORE : 0));
		if (k < 0 && errno == EAGAIN) {
			TRY(wait_until(l->fd, POLLOUT, deadline));
		} else if (k < 0 && errno != EINTR) {
			return fail(CLV_E_IO, "the connection broke: %s", strerror(errno));
		} else if (k > 0) {
			at += k;
			n -= (size_t)k;
		}
	}
	return CLV_OK;
}

clv_status link_write(remote_link *l, const void *at, size_t n, bool more, double deadline)
{
#ifdef CLEAVE_TLS
	if (l->ssl)
		return tls_write(l, at, n, deadline);
#endif
	return plain_write(l, at, n, more, deadline);
}

clv_status link_read(remote_link *l, void *to, size_t n, double deadline, size_t *got)
{
	if (clock_seconds() >= deadline) /* a server that sends without end is never waited for */
		return fail(CLV_E_IO, "the server took too long");
#ifdef CLEAVE_TLS
	if (l->ssl)
		return tls_read(l, to, n, deadline, got);
#endif
	for (;;) {
		ssize_t k = recv(l->fd, to, n, 0);
		*got = k > 0 ? (size_t)k : 0;
		if (k >= 0)
			return CLV_OK;
		if (errno == EAGAIN)
			TRY(wait_until(l->fd, POLLIN, deadline));
		else if (errno != EINTR)
			return fail(CLV_E_IO, "the connection broke: %s", strerror(errno));
	}
}

bool link_is_quiet(remote_link *l)
{
	char c;
#ifdef CLEAVE_TLS
	if (l->ssl) { /* tickets for later sessions may have come; other bytes mean trouble */
		size_t got;
		errno = 0;
		ERR_clear_error();
		int ok = SSL_peek_ex(l->ssl, &c, 1, &got);
		bool quiet = ok != 1 && SSL_get_error(l->ssl, ok) == SSL_ERROR_WANT_READ;
		ERR_clear_error();
		return quiet;
	}
#endif
	ssize_t k = recv(l->fd, &c, 1, MSG_PEEK);
	return k < 0 && (errno == EAGAIN || errno == EINTR);
}
