/* A server inside a program (clv_server_create, clv_server_run): what it keeps of its options, and what it does to the program. */
#define _GNU_SOURCE
#define CLV_EXPERIMENTAL
#include "artifacts.h"

#include <arpa/inet.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

static char folder[] = "/tmp/cleave-server-XXXXXX", model[64], cert[64], key[64];

/* ---- files ---------------------------------------------------------------------------------------------------------- */

/* For 127.0.0.1, signed by itself. */
static void make_certificate(void)
{
	EVP_PKEY *k = EVP_RSA_gen(2048);
	X509 *x = X509_new();
	FILE *f = fopen(key, "w");
	assert_true(k && x && f && PEM_write_PrivateKey(f, k, NULL, NULL, 0, NULL, NULL));
	fclose(f);
	X509_set_version(x, 2);
	ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
	X509_gmtime_adj(X509_getm_notBefore(x), -3600);
	X509_gmtime_adj(X509_getm_notAfter(x), 3600);
	X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC, (const uint8_t *)"localhost", -1, -1, 0);
	X509_set_issuer_name(x, X509_get_subject_name(x));
	X509_EXTENSION *name = X509V3_EXT_conf_nid(NULL, NULL, NID_subject_alt_name, "IP:127.0.0.1");
	assert_true(name && X509_add_ext(x, name, -1) && X509_set_pubkey(x, k) && X509_sign(x, k, EVP_sha256()));
	f = fopen(cert, "w");
	assert_true(f && PEM_write_X509(f, x));
	fclose(f);
	X509_EXTENSION_free(name);
	X509_free(x);
	EVP_PKEY_free(k);
}

static int make_files(void **state)
{
	(void)state;
	new_folder(folder);
	snprintf(model, sizeof model, "%s/net.clv", folder);
	snprintf(cert, sizeof cert, "%s/cert.pem", folder);
	snprintf(key, sizeof key, "%s/key.pem", folder);
	artifact *a = sample();
	OK(clv_artifact_save(a, model));
	artifact_free(a);
	make_certificate();
	return 0;
}

static int remove_files(void **state)
{
	(void)state;
	count_files(folder, true);
	return 0;
}

/* ---- a server ---------------------------------------------------------------------------------------------------------- */

typedef struct running {
	clv_server *s;
	pthread_t thread;
	clv_status ended;
	FILE *log;
} running;

static void *run(void *given)
{
	running *r = given;
	r->ended = clv_server_run(r->s);
	return NULL;
}

/* Whatever the options point to is gone when it returns. */
static __attribute__((noinline)) void begin(running *r, bool tls)
{
	char engine[] = "native", level[] = "none", path[sizeof model + 8];
	const char *models[] = {path};
	clv_open_options open = CLV_OPEN_OPTIONS_INIT;
	clv_runtime_options runtime = CLV_RUNTIME_OPTIONS_INIT;
	clv_server_options o = CLV_SERVER_OPTIONS_INIT;
	snprintf(path, sizeof path, "net=%s", model);
	runtime.engine = engine;
	runtime.optimize = level;
	runtime.sandbox = CLV_SANDBOX_OFF;
	o.models = models;
	o.nmodels = 1;
	o.open = &open;
	o.runtime = &runtime;
	o.tls_cert = tls ? cert : NULL;
	o.tls_key = tls ? key : NULL;
	o.poll = 0.2;
	r->log = tmpfile();
	assert_non_null(r->log);
	o.log = "text";
	o.log_fd = fileno(r->log);
	OK(clv_server_create(&o, &r->s));
	assert_int_equal(pthread_create(&r->thread, NULL, run, r), 0);
	memset(engine, '?', sizeof engine - 1);
	memset(level, '?', sizeof level - 1);
	memset(&runtime, 0xff, sizeof runtime);
	memset(&open, 0xff, sizeof open);
}

static void end(running *r)
{
	clv_server_stop(r->s);
	clv_server_stop(r->s);
	pthread_join(r->thread, NULL);
	OK(r->ended);
	clv_server_free(r->s);
	fclose(r->log);
}

/* How often it says so. */
static unsigned says(const running *r, const char *what)
{
	char text[8192];
	ssize_t n = pread(fileno(r->log), text, sizeof text - 1, 0);
	unsigned often = 0;
	assert_true(n >= 0);
	text[n] = '\0';
	for (const char *at = text; (at = strstr(at, what)); at++)
		often++;
	return often;
}

static clv_remote *client_of(const running *r, bool tls)
{
	char url[64];
	clv_remote_options o = CLV_REMOTE_OPTIONS_INIT;
	clv_remote *c = NULL;
	o.ca = tls ? cert : NULL;
	snprintf(url, sizeof url, "http%s://127.0.0.1:%u/net", tls ? "s" : "", clv_server_port(r->s));
	OK(clv_remote_connect(url, &o, &c));
	return c;
}

/* The numbers of a row. */
static void ask(clv_remote *c, float out[4])
{
	clv_tensor *x, *y = NULL;
	OK(clv_tensor_from_data((float[]){1, -2, 3, -4}, "f32", 2, (int64_t[]){1, 4}, &x));
	OK(clv_remote_run(c, (const clv_tensor *const[]){x}, 1, &y, 1, NULL));
	memcpy(out, clv_tensor_data(y), 4 * sizeof *out);
	clv_tensor_free(x);
	clv_tensor_free(y);
}

/* ---- tests -------------------------------------------------------------------------------------------------------------- */

static void options_may_go_once_the_server_is_made(void **state)
{
	float before[4], after[4];
	running r;
	(void)state;
	begin(&r, false);
	clv_remote *c = client_of(&r, false);
	ask(c, before);
	artifact *a = sample();
	OK(clv_artifact_save(a, model)); /* another file, so it is loaded again, with the same options */
	artifact_free(a);
	for (int i = 0; i < 200 && says(&r, "is ready") + says(&r, "cannot be loaded") < 2; i++)
		usleep(50000);
	assert_int_equal(says(&r, "model net version 1 is ready (native)"), 2);
	ask(c, after);
	assert_memory_equal(before, after, sizeof before);
	clv_remote_free(c);
	end(&r);
}

/* Asks for something, and is gone before all of the answer was read. */
static void hang_up(const running *r, SSL_CTX *ctx)
{
	static const char request[] = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct linger at_once = {.l_onoff = 1};
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	SSL *ssl = SSL_new(ctx);
	to.sin_port = htons(clv_server_port(r->s));
	assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
	SSL_set_fd(ssl, fd);
	assert_int_equal(SSL_connect(ssl), 1);
	for (int i = 0; i < 50; i++)
		assert_int_equal(SSL_write(ssl, request, sizeof request - 1), sizeof request - 1);
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
	close(fd);
	SSL_free(ssl);
}

static void clients_that_hang_up_send_the_program_no_signal(void **state)
{
	float out[4];
	running r;
	SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
	(void)state;
	signal(SIGPIPE, SIG_DFL);
	begin(&r, true);
	for (int i = 0; i < 50; i++)
		hang_up(&r, ctx);
	clv_remote *c = client_of(&r, true);
	ask(c, out);
	clv_remote_free(c);
	end(&r);
	SSL_CTX_free(ctx);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(options_may_go_once_the_server_is_made),
		cmocka_unit_test(clients_that_hang_up_send_the_program_no_signal),
	};
	return cmocka_run_group_tests(tests, make_files, remove_files);
}
