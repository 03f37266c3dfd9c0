/* TLS over OpenSSL. */
#include "net/tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/socket.h>

#include "base/mem.h"

#ifdef CLEAVE_OPENSSL
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

struct tls_context {
	SSL_CTX *ssl;
	BIO_METHOD *socket; /* as OpenSSL's own, but a write to a closed connection sends no signal to the process */
};

struct tls_session {
	SSL *ssl;
	bool failed; /* nothing more may be sent, not even a goodbye */
};

/* file: which it is about; "": none. */
static clv_status fail_tls(clv_status code, const char *what, const char *file)
{
	unsigned long e = ERR_get_error();
	const char *why = ERR_SYSTEM_ERROR(e) ? strerror(ERR_GET_REASON(e)) : ERR_reason_error_string(e);
	ERR_clear_error();
	return fail(code, "%s%s%s: %s", what, *file ? " " : "", file, why ? why : "TLS says no more");
}

/* ---- sockets ---------------------------------------------------------------------------------------------------------- */

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

/* ---- contexts --------------------------------------------------------------------------------------------------------- */

static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *n, const unsigned char *in,
                           unsigned in_n, void *ctx)
{
	static const unsigned char ours[] = "\x02h2\x08http/1.1";
	(void)ssl, (void)ctx;
	int found = SSL_select_next_proto((unsigned char **)out, n, ours, sizeof ours - 1, in, in_n);
	return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

static clv_status trust_clients(SSL_CTX *c, const char *ca)
{
	STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(ca);
	if (!names || SSL_CTX_load_verify_locations(c, ca, NULL) != 1)
		return fail_tls(CLV_E_INVALID, "no certificates to check clients with can be read from", ca);
	SSL_CTX_set_client_CA_list(c, names);
	SSL_CTX_set_verify(c, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
	return CLV_OK;
}

/* To the other side, who we are. */
static clv_status show(SSL_CTX *c, const char *cert, const char *key)
{
	if (SSL_CTX_use_certificate_chain_file(c, cert) != 1)
		return fail_tls(CLV_E_INVALID, "no certificate can be read from", cert);
	if (SSL_CTX_use_PrivateKey_file(c, key, SSL_FILETYPE_PEM) != 1 || SSL_CTX_check_private_key(c) != 1)
		return fail_tls(CLV_E_INVALID, "no private key of the certificate can be read from", key);
	return CLV_OK;
}

static clv_status new_context(const SSL_METHOD *method, tls_context **out)
{
	tls_context *c = mem_alloc(sizeof *c);
	TRY_MEM(c);
	ERR_clear_error();
	c->ssl = SSL_CTX_new(method);
	c->socket = new_socket_method();
	if (!c->ssl || !c->socket) {
		tls_free(c);
		return fail_nomem();
	}
	SSL_CTX_set_mode(c->ssl, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
	SSL_CTX_clear_mode(c->ssl, SSL_MODE_AUTO_RETRY); /* messages without data end a read: others have their turn */
	SSL_CTX_set_min_proto_version(c->ssl, TLS1_3_VERSION);
	*out = c;
	return CLV_OK;
}

static clv_status set_up_server(SSL_CTX *c, const char *cert, const char *key, const char *client_ca)
{
	SSL_CTX_set_options(c, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_IGNORE_UNEXPECTED_EOF);
	SSL_CTX_set_mode(c, SSL_MODE_RELEASE_BUFFERS);
	SSL_CTX_set_max_early_data(c, 0); /* it could be replayed */
	SSL_CTX_set_session_id_context(c, (const unsigned char *)"cleave", 6);
	SSL_CTX_set_alpn_select_cb(c, choose_protocol, NULL);
	TRY(show(c, cert, key));
	return client_ca ? trust_clients(c, client_ca) : CLV_OK;
}

clv_status tls_server(const char *cert, const char *key, const char *client_ca, tls_context **out)
{
	tls_context *c;
	TRY(new_context(TLS_server_method(), &c));
	clv_status st = set_up_server(c->ssl, cert, key, client_ca);
	if (st == CLV_OK)
		*out = c;
	else
		tls_free(c);
	return st;
}

static clv_status set_up_client(SSL_CTX *c, const char *ca, const char *cert, const char *key)
{
	static const unsigned char http1[] = "\x08http/1.1";
	SSL_CTX_set_verify(c, SSL_VERIFY_PEER, NULL);
	SSL_CTX_set_alpn_protos(c, http1, sizeof http1 - 1);
	if (ca ? SSL_CTX_load_verify_file(c, ca) != 1 : SSL_CTX_set_default_verify_paths(c) != 1)
		return fail_tls(CLV_E_IO,
		                ca ? "no certificates to trust can be read from" : "there are no trusted certificates",
		                ca ? ca : "");
	if (!cert != !key)
		return fail(CLV_E_INVALID, "a certificate of the client goes with its key");
	return cert ? show(c, cert, key) : CLV_OK;
}

clv_status tls_client(const char *ca, const char *cert, const char *key, tls_context **out)
{
	tls_context *c;
	TRY(new_context(TLS_client_method(), &c));
	clv_status st = set_up_client(c->ssl, ca, cert, key);
	if (st == CLV_OK)
		*out = c;
	else
		tls_free(c);
	return st;
}

void tls_free(tls_context *c)
{
	if (!c)
		return;
	SSL_CTX_free(c->ssl);
	BIO_meth_free(c->socket);
	mem_free(c);
}

/* ---- sessions --------------------------------------------------------------------------------------------------------- */

static clv_status new_session(tls_context *c, int fd, tls_session **out)
{
	tls_session *s = mem_alloc(sizeof *s);
	BIO *b = BIO_new(c->socket);
	if (!s || !b || !(s->ssl = SSL_new(c->ssl))) {
		BIO_free(b);
		mem_free(s);
		return fail_nomem();
	}
	BIO_set_data(b, (void *)(intptr_t)fd);
	BIO_set_init(b, 1);
	SSL_set_bio(s->ssl, b, b);
	*out = s;
	return CLV_OK;
}

clv_status tls_accept(tls_context *c, int fd, tls_session **out)
{
	TRY(new_session(c, fd, out));
	SSL_set_accept_state((*out)->ssl);
	return CLV_OK;
}

static bool expect_host(SSL *ssl, const char *host)
{
	X509_VERIFY_PARAM *p = SSL_get0_param(ssl);
	unsigned char address[16];
	if (inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1)
		return X509_VERIFY_PARAM_set1_ip_asc(p, host) == 1;
	X509_VERIFY_PARAM_set_hostflags(p, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
	return X509_VERIFY_PARAM_set1_host(p, host, 0) == 1 && SSL_set_tlsext_host_name(ssl, host) == 1;
}

clv_status tls_connect(tls_context *c, int fd, const char *host, tls_session **out)
{
	tls_session *s;
	TRY(new_session(c, fd, &s));
	SSL_set_connect_state(s->ssl);
	if (!expect_host(s->ssl, host)) {
		clv_status st = fail_tls(CLV_E_IO, "the host cannot be checked", "");
		tls_close(s);
		return st;
	}
	*out = s;
	return CLV_OK;
}

void tls_close(tls_session *s)
{
	if (!s)
		return;
	ERR_clear_error();
	if (!s->failed && SSL_is_init_finished(s->ssl))
		SSL_shutdown(s->ssl);
	ERR_clear_error();
	SSL_free(s->ssl);
	mem_free(s);
}

static long result(tls_session *s, int got, bool *wants_write)
{
	int e = errno, error = got > 0 ? SSL_ERROR_NONE : SSL_get_error(s->ssl, got);
	*wants_write = error == SSL_ERROR_WANT_WRITE;
	if (error == SSL_ERROR_NONE)
		return got;
	if (error == SSL_ERROR_ZERO_RETURN)
		return 0;
	s->failed |= error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE;
	if (s->failed && error == SSL_ERROR_SYSCALL)
		fail(CLV_E_IO, "the connection broke: %s", e ? strerror(e) : "it was closed");
	else if (s->failed)
		fail_tls(CLV_E_IO, "the connection broke", "");
	errno = s->failed ? EPROTO : EAGAIN;
	return -1;
}

static void begin_call(void)
{
	errno = 0;
	ERR_clear_error();
}

long tls_read(tls_session *s, void *to, size_t n, bool *wants_write)
{
	begin_call();
	return result(s, SSL_read(s->ssl, to, n > INT_MAX ? INT_MAX : (int)n), wants_write);
}

long tls_write(tls_session *s, const void *from, size_t n, bool *wants_write)
{
	begin_call();
	return result(s, SSL_write(s->ssl, from, n > INT_MAX ? INT_MAX : (int)n), wants_write);
}

long tls_begin(tls_session *s, bool *wants_write)
{
	begin_call();
	return result(s, SSL_do_handshake(s->ssl), wants_write);
}

const char *tls_distrust(const tls_session *s)
{
	long wrong = SSL_get_verify_result(s->ssl);
	return wrong == X509_V_OK ? NULL : X509_verify_cert_error_string(wrong);
}

bool tls_pending(const tls_session *s)
{
	return SSL_pending(s->ssl) > 0;
}

bool tls_is_h2(const tls_session *s)
{
	const unsigned char *name;
	unsigned n;
	SSL_get0_alpn_selected(s->ssl, &name, &n);
	return n == 2 && memcmp(name, "h2", 2) == 0;
}

#else

/* Without a context there is no session. */
clv_status tls_server(const char *cert, const char *key, const char *client_ca, tls_context **out)
{
	(void)client_ca;
	return tls_client(NULL, cert, key, out);
}
clv_status tls_client(const char *ca, const char *cert, const char *key, tls_context **out)
{
	(void)ca, (void)cert, (void)key, (void)out;
	return fail(CLV_E_UNSUPPORTED,
	            "this build of Cleave is without OpenSSL, and so without https://: install it (on Debian: "
	            "apt-get install libssl-dev) and build again");
}
void tls_free(tls_context *c)
{
	(void)c;
}
clv_status tls_accept(tls_context *c, int fd, tls_session **out)
{
	return tls_connect(c, fd, NULL, out);
}
clv_status tls_connect(tls_context *c, int fd, const char *host, tls_session **out)
{
	(void)c, (void)fd, (void)host, (void)out;
	return tls_client(NULL, NULL, NULL, NULL);
}
void tls_close(tls_session *s)
{
	(void)s;
}
long tls_begin(tls_session *s, bool *wants_write)
{
	(void)s, (void)wants_write;
	errno = EPROTO;
	return -1;
}
long tls_read(tls_session *s, void *to, size_t n, bool *wants_write)
{
	(void)to, (void)n;
	return tls_begin(s, wants_write);
}
long tls_write(tls_session *s, const void *from, size_t n, bool *wants_write)
{
	(void)from, (void)n;
	return tls_begin(s, wants_write);
}
const char *tls_distrust(const tls_session *s)
{
	(void)s;
	return NULL;
}
bool tls_pending(const tls_session *s)
{
	(void)s;
	return false;
}
bool tls_is_h2(const tls_session *s)
{
	(void)s;
	return false;
}

#endif
