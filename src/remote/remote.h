/* Clients of a server (docs/remote.md): one request over HTTP/1.1 after the other on each of a few connections.
 *
 *     url.c      where the server is, what the model is called      link.c      a socket, or TLS on one, with a deadline
 *     answer.c   the head of an answer                              exchange.c  requests: connections that are kept, retries
 *     oip.c      inputs and outputs as the protocol has them        remote.c    the public functions
 *     choose_link.c  which way to divide a call is fastest          follow*.c   calls that take it
 *     train.c    sessions of training
 *
 * What a server answers is taken as hostile: sizes, names, types and framing are checked before they are used. Every wait has
 * a deadline. */
#ifndef REMOTE_REMOTE_H
#define REMOTE_REMOTE_H

#include <pthread.h>

#include "base/arena.h"
#include "base/strbuf.h"
#include "file/safetensors.h"
#include "net/http.h"
#include "net/tls.h"
#include "plan/plan.h"
#include "tensor/tensor.h"

/* ---- addresses (url.c) -------------------------------------------------------------------------------------------- */

typedef struct remote_url {
	bool tls;
	char *host;  /* without the brackets of an IPv6 address */
	char *port;  /* digits */
	char *base;  /* what comes before /v2: "", or "/prefix" */
	char *model; /* as it is in a path: escaped */
} remote_url;

/* "https://host:8000/model". CLV_E_INVALID says what is wrong. remote_url_free in any case. */
clv_status remote_url_read(const char *text, remote_url *out);
void remote_url_free(remote_url *u);
bool remote_is_loopback(const char *host); /* "localhost", 127.…, ::1: nobody else hears what is sent there */

/* ---- bytes (link.c) ------------------------------------------------------------------------------------------------ */

typedef struct remote_link remote_link;

/* Deadlines are of clock_seconds(). Everything fails with CLV_E_IO: it could not be reached, was closed, was too late. */
clv_status link_open(const remote_url *u, tls_context *c /* NULL: no TLS */, double deadline, remote_link **out);
void link_close(remote_link *l); /* NULL is allowed */
clv_status link_write(remote_link *l, const void *at, size_t n, bool more,
                      double deadline); /* more: others follow at once */
clv_status link_read(remote_link *l, void *to, size_t n, double deadline,
                     size_t *got);  /* 0: the other side has closed */
bool link_is_quiet(remote_link *l); /* open, and nothing came that nobody asked for */

/* ---- answers (answer.c) -------------------------------------------------------------------------------------------- */

enum { ANSWER_HEAD_MOST = 32 * 1024 };

typedef struct answer_head {
	unsigned status;
	int64_t length;           /* of the body; -1: in chunks, or until the connection ends */
	int64_t json;             /* Inference-Header-Content-Length; -1: not said */
	bool chunked, keep, none; /* none: an answer of this kind has no body */
	bool tensors;             /* it is application/x-safetensors */
	double retry;             /* seconds; 0: not said */
	double queue, compute;    /* seconds, of Server-Timing; NaN: not said */
} answer_head;

/* Of the n bytes that http_head_end() found. CLV_E_PARSE: it is malformed, or could be understood in two ways. */
clv_status answer_head_read(const char *at, size_t n, answer_head *out);

/* ---- requests (exchange.c) ----------------------------------------------------------------------------------------- */

typedef struct remote_piece {
	const void *at;
	size_t n;
} remote_piece;

typedef struct remote_request {
	const char *method, *path; /* path: after /v2/models/MODEL; "" or "/infer" */
	const char *fields;        /* more lines of the head, each with \r\n; "" */
	const remote_piece *body;
	uint32_t nbody;
	double limit; /* seconds with all tries, where that is less than the client's; 0: the client's */
	bool
		repeat; /* making it twice is as making it once, even if part of an answer came; and it may wait long for its turn */
} remote_request;

typedef struct remote_answer {
	answer_head head;
	char *body; /* owned */
	size_t n;
} remote_answer;

struct clv_remote {
	clv_remote_options o; /* texts are owned below */
	char *token;
	remote_url url;
	tls_context *tls; /* NULL: there is none */

	pthread_mutex_t lock;
	pthread_cond_t free_again;
	remote_link **idle; /* o.connections of them at most */
	uint32_t nidle, nopen;

	bool known; /* what follows was read from the server, and stays */
	char *metadata;
	bool suffix;
	uint32_t nports[2]; /* inputs, outputs */
	clv_port *ports[2];
	arena arena; /* what ports point to */
};

/* Sends it and reads the answer, again where that is safe, within o.timeout. An answer that is no success is an error. */
clv_status remote_ask(clv_remote *r, const remote_request *q, remote_answer *out, clv_remote_times *times);
void remote_answer_free(remote_answer *a);
/* A failure with the server's name in front of its message; CLV_OK and CLV_E_NOMEM as they are. */
clv_status remote_failed(const clv_remote *r, clv_status st);

/* A call of a model: a boundary, one that is bytes already, or inputs. */
typedef struct remote_call {
	const clv_boundary *boundary;
	const clv_pack_options *pack;
	const void *data;
	size_t n;
	const clv_tensor *const *inputs;
	uint32_t ninputs;
	double limit, know_limit; /* as in a request; of the call, and of the question what the model is */
} remote_call;

/* As clv_remote_run and clv_remote_run_suffix. */
clv_status remote_run(clv_remote *r, const remote_call *c, clv_tensor **outputs, uint32_t noutputs,
                      clv_remote_times *times);

/* limit: as in a request */
clv_status remote_know(clv_remote *r, double limit); /* asks what the model is, if nobody did */
clv_status remote_ping(clv_remote *r, double limit, double *seconds);

/* ---- links (choose_link.c) ----------------------------------------------------------------------------------------- */

/* As clv_link_tell(). first: the server's work also had to make things, and says nothing about later calls. */
clv_status link_tell(clv_link *l, uint32_t way, double here, const clv_remote_times *times, bool first);
void link_tell_late(clv_link *l, uint32_t way, double seconds); /* a call was given up after so long */
void link_tell_away(clv_link *l, double lost);         /* as clv_link_tell_away(), of a call that lost seconds */
void link_bar(clv_link *l, uint32_t way, bool barred); /* it is not chosen from now on, or is again */
uint32_t link_look(clv_link *l);                       /* the fastest way with the server; NONE: it is away */
void link_way(clv_link *l, uint32_t i, clv_way *out);  /* as it is known now */

/* train.c. A step with a boundary that is bytes already; its answer is a payload with "loss" and gradients. */
clv_status remote_train_bytes(clv_remote_session *s, const void *data, size_t n, const clv_tensor *const *targets,
                              uint32_t ntargets, remote_answer *out, clv_remote_times *t);

/* ---- the protocol (oip.c) ------------------------------------------------------------------------------------------ */

clv_status remote_read_metadata(clv_remote *r, const char *text, size_t n);
/* The JSON before the tensors of a request. */
clv_status remote_write_inputs(const clv_remote *r, const clv_tensor *const *inputs, strbuf *out);
/* The outputs of an answer, in the order of the metadata; new ones, the caller's. CLV_E_PARSE. */
clv_status remote_read_binary(const clv_remote *r, const remote_answer *a, clv_tensor **outputs);
clv_status remote_read_tensors(const clv_remote *r, const remote_answer *a, clv_tensor **outputs);

#endif
