/* TLS over OpenSSL. */
#include "net/tls.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

#include "base/mem.h"

#ifdef CLEAVE_OPENSSL
#include <openssl/err.h>
#include <openssl/ssl.h>

struct tls_context {
	SSL_CTX *ssl;
};

struct tls_session {
	SSL *ssl;
	bool failed; /* nothing more may be sent, not even a goodbye */
};

static clv_status fail_tls(const char *what)
{
	char text[160];
	unsigned long e = ERR_get_error();
	ERR_error_string_n(e, text, sizeof text);
	ERR_clear_error();
	return fail(CLV_E_INVALID, "%s: %s", what, e ? text : "TLS says no more");
}

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
		return fail_tls("the certificates that clients are checked with cannot be read");
	SSL_CTX_set_client_CA_list(c, names);
	SSL_CTX_set_verify(c, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
	return CLV_OK;
}

static clv_status set_up(SSL_CTX *c, const char *cert, const char *key, const char *client_ca)
{
	SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION);
	SSL_CTX_set_options(c, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_IGNORE_UNEXPECTED_EOF);
	SSL_CTX_clear_mode(c, SSL_MODE_AUTO_RETRY); /* a message without data ends a read: others have their turn */
	SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
	SSL_CTX_set_max_early_data(c, 0); /* it could be replayed */
	SSL_CTX_set_session_id_context(c, (const unsigned char *)"cleave", 6);
	SSL_CTX_set_alpn_select_cb(c, choose_protocol, NULL);
	if (SSL_CTX_use_certificate_chain_file(c, cert) != 1)
		return fail_tls("the certificate cannot be read");
	if (SSL_CTX_use_PrivateKey_file(c, key, SSL_FILETYPE_PEM) != 1 || SSL_CTX_check_private_key(c) != 1)
		return fail_tls("the private key cannot be read, or is not that of the certificate");
	return client_ca ? trust_clients(c, client_ca) : CLV_OK;
}

clv_status tls_server(const char *cert, const char *key, const char *client_ca, tls_context **out)
{
	tls_context *c = mem_alloc(sizeof *c);
	TRY_MEM(c);
	c->ssl = SSL_CTX_new(TLS_server_method());
	clv_status st = c->ssl ? set_up(c->ssl, cert, key, client_ca) : fail_nomem();
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
	mem_free(c);
}

clv_status tls_accept(tls_context *c, int fd, tls_session **out)
{
	tls_session *s = mem_alloc(sizeof *s);
	TRY_MEM(s);
	s->ssl = SSL_new(c->ssl);
	if (!s->ssl || SSL_set_fd(s->ssl, fd) != 1) {
		SSL_free(s->ssl);
		mem_free(s);
		return fail_nomem();
	}
	SSL_set_accept_state(s->ssl);
	*out = s;
	return CLV_OK;
}

void tls_end(tls_session *s)
{
	ERR_clear_error();
	if (!s->failed && SSL_is_init_finished(s->ssl) && !(SSL_get_shutdown(s->ssl) & SSL_SENT_SHUTDOWN))
		SSL_shutdown(s->ssl);
	ERR_clear_error();
}

void tls_close(tls_session *s)
{
	if (!s)
		return;
	tls_end(s);
	SSL_free(s->ssl);
	mem_free(s);
}

static long result(tls_session *s, int got, bool *wants_write)
{
	int error = got > 0 ? SSL_ERROR_NONE : SSL_get_error(s->ssl, got);
	*wants_write = error == SSL_ERROR_WANT_WRITE;
	if (error == SSL_ERROR_NONE)
		return got;
	if (error == SSL_ERROR_ZERO_RETURN)
		return 0;
	s->failed |= error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE;
	errno = s->failed ? EPROTO : EAGAIN;
	return -1;
}

long tls_read(tls_session *s, void *to, size_t n, bool *wants_write)
{
	ERR_clear_error();
	return result(s, SSL_read(s->ssl, to, n > INT_MAX ? INT_MAX : (int)n), wants_write);
}

long tls_write(tls_session *s, const void *from, size_t n, bool *wants_write)
{
	ERR_clear_error();
	return result(s, SSL_write(s->ssl, from, n > INT_MAX ? INT_MAX : (int)n), wants_write);
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

clv_status tls_server(const char *cert, const char *key, const char *client_ca, tls_context **out)
{
	(void)cert, (void)key, (void)client_ca, (void)out;
	return fail(CLV_E_UNSUPPORTED, "this build has no OpenSSL, and so no TLS");
}
void tls_free(tls_context *c)
{
	(void)c;
}
clv_status tls_accept(tls_context *c, int fd, tls_session **out)
{
	(void)c, (void)fd, (void)out;
	return fail(CLV_E_UNSUPPORTED, "this build has no OpenSSL, and so no TLS");
}
void tls_end(tls_session *s)
{
	(void)s;
}
void tls_close(tls_session *s)
{
	(void)s;
}
long tls_read(tls_session *s, void *to, size_t n, bool *wants_write)
{
	(void)s, (void)to, (void)n;
	*wants_write = false;
	errno = EPROTO;
	return -1;
}
long tls_write(tls_session *s, const void *from, size_t n, bool *wants_write)
{
	(void)from;
	return tls_read(s, NULL, n, wants_write);
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
