/* TLS 1.3 for servers and clients: one context from files in PEM, a session per connection. Without OpenSSL there is none. */
#ifndef NET_TLS_H
#define NET_TLS_H

#include "base/status.h"

typedef struct tls_context tls_context;
typedef struct tls_session tls_session;

/* For a server: h2 and http/1.1 by ALPN. client_ca, unless NULL: every client shows a certificate of one of these. */
clv_status tls_server(const char *cert, const char *key, const char *client_ca, tls_context **out);
/* For a client of HTTP/1.1. ca: who is trusted, NULL: the system's certificates. cert, key: what it shows; NULL: nothing. */
clv_status tls_client(const char *ca, const char *cert, const char *key, tls_context **out);
void tls_free(tls_context *c); /* NULL is allowed */

clv_status tls_accept(tls_context *c, int fd, tls_session **out); /* fd stays the caller's */
/* The server's certificate has to be for this host, by name or by address. */
clv_status tls_connect(tls_context *c, int fd, const char *host, tls_session **out);
void tls_close(tls_session *s); /* says goodbye if it can; NULL is allowed */
/* As read(2) and write(2) of a socket that does not block: -1 with errno EAGAIN, and *wants_write says for what; otherwise
   status_message() says why. No write sends a signal to the process. */
long tls_read(tls_session *s, void *to, size_t n, bool *wants_write);
long tls_write(tls_session *s, const void *from, size_t n, bool *wants_write);
long tls_begin(tls_session *s, bool *wants_write); /* as these; 1: both sides know each other */
const char *tls_distrust(const tls_session *s);    /* why the other side's certificate is not accepted; NULL: it is */
bool tls_pending(const tls_session *s);            /* bytes came that epoll knows nothing of */
bool tls_is_h2(const tls_session *s);              /* both sides agreed on HTTP/2 */

#endif
