/* The server: models over HTTP.
 *
 * One thread, the loop, has all sockets. It reads a request into an *exchange*, hands that to a worker (queue.c), which reads the
 * tensors, runs the model and puts the answer into the exchange; the loop then writes it. An exchange belongs to one of them at a
 * time, and its answer can go nowhere but back over the connection and stream that it came by.
 *
 *     server.c            ports, epoll, time limits, stopping             route.c     what a path of REST asks for
 *     connection.c        bytes of a socket, TLS, which protocol          grpc.c      frames, codes and streams of gRPC
 *     http1.c, http2.c    requests and answers in either protocol         oip*.c      the Open Inference Protocol
 *     exchange.c          one request with its answer                     infer.c     one request: read, run, answered
 *     queue.c             who runs what, and when                         batch.c     several requests as one run
 *     models.c            models, versions, the repository                tokens.c    who may call
 *     metrics.c           figures for Prometheus                          log.c       a line for each request
 *     config.c            config.pbtxt beside a model                 train.c     steps of training
 *     session.c           sessions of training, and their files */
#ifndef SERVE_SERVE_H
#define SERVE_SERVE_H

#include <pthread.h>
#include <stdatomic.h>

#include "file/json.h"
#include "file/oip_types.h"
#include "net/http.h"
#include "net/inflate.h"
#include "net/tls.h"
#include "runtime/runtime.h"

typedef struct clv_server server;
typedef struct connection connection;
typedef struct exchange exchange;
typedef struct served served;
typedef struct queue_line queue_line;
typedef struct batch_point batch_point;

/* What a port answers. */
typedef enum port_role { ROLE_ALL, ROLE_REST, ROLE_GRPC, ROLE_METRICS } port_role;

/* ---- answers ----------------------------------------------------------------------------------------------------------- */

/* Bytes to be sent, from where they lie. */
typedef struct piece {
	const void *at;
	size_t n;
	void (*drop)(void *ctx); /* NULL: they are static */
	void *ctx;
} piece;

typedef VEC(piece) piece_list;

/* As gRPC counts them. */
typedef enum grpc_code {
	GRPC_OK = 0,
	GRPC_CANCELLED = 1,
	GRPC_UNKNOWN = 2,
	GRPC_INVALID = 3,
	GRPC_DEADLINE = 4,
	GRPC_NOT_FOUND = 5,
	GRPC_EXISTS = 6,
	GRPC_FORBIDDEN = 7,
	GRPC_EXHAUSTED = 8,
	GRPC_PRECONDITION = 9,
	GRPC_UNIMPLEMENTED = 12,
	GRPC_INTERNAL = 13,
	GRPC_UNAVAILABLE = 14,
	GRPC_UNAUTHENTICATED = 16
} grpc_code;

typedef struct answer {
	unsigned status;  /* of HTTP; 0: there is no answer yet */
	const char *type; /* of the body; NULL: none */
	piece_list body;
	size_t n;          /* bytes of the body */
	int64_t json;      /* bytes of JSON before binary tensors; -1: none follow */
	unsigned retry;    /* seconds after which to try again; 0: not said */
	const char *allow; /* methods, of 405 */
	coding coding;     /* of the body */
	const char *error; /* the message, where the status is one; in the arena */
	bool close;        /* the connection ends with it */
	bool exhausted;    /* 503 for want of memory: gRPC has a code of its own for that */
} answer;

/* ---- inference --------------------------------------------------------------------------------------------------------- */

enum { RANK_MOST = 16 };

typedef struct infer_input {
	const char *name;
	dtype dtype;
	uint32_t ndim;
	int64_t shape[RANK_MOST];
	clv_tensor *tensor; /* owned */
} infer_input;

typedef struct infer_output {
	const char *name;
	bool binary;
} infer_output;

/* A call of a model. Texts are in the arena of the exchange. */
typedef struct infer {
	const char *id; /* "" */
	VEC(infer_input) inputs;
	VEC(infer_output) outputs; /* none: all */
	bool binary;               /* outputs of which nothing else is said are sent as bytes */
	clv_boundary *boundary;    /* instead of inputs; owned */
	clv_tensor **results;      /* per output of the model; owned, NULL: there are none yet */
	uint32_t nresults;
	uint32_t plan;          /* that gave them, and names them */
	clv_boundary *crossing; /* instead of results, of a prefix; owned */
} infer;

/* Moments of a request, in nanoseconds of the clock; 0: not reached. */
typedef struct moments {
	int64_t begun, queued, taken, ready, ran, answered;
} moments;

/* ---- exchanges ----------------------------------------------------------------------------------------------------------- */

typedef struct request_body {
	tensor_memory *memory; /* NULL: nothing has come */
	size_t lead, n, cap;   /* it starts after `lead` bytes; n have come */
} request_body;

typedef void (*work_fn)(exchange *x);

enum { STREAM_PRICE = 8 * 1024 }; /* memory of a stream of HTTP/2 besides its fields and its body */

struct exchange {
	server *s;
	connection *c;  /* for the loop; NULL: it is gone */
	int32_t stream; /* of HTTP/2 */
	arena arena;
	http_head head;
	request_body body;
	size_t held; /* bytes of memory beside the body that count as the server's */
	answer out;
	char id[40];       /* of the request, for logs */
	_Atomic bool gone; /* nobody waits for the answer any more */
	bool working;      /* a worker has it */
	int64_t since;     /* HTTP/2: when what it waits for began */
	uint64_t moved;    /* bytes since then */
	moments at;
	int64_t deadline;            /* nanoseconds of the clock; 0: none */
	const char *model, *version; /* unescaped; version NULL: the newest */
	served *served;              /* counted */
	infer call;
	clv_tensor **inputs; /* in the order of the model; borrowed from the call, in the arena; NULL: not known yet */
	bool prepared;       /* it was read, and waits to be run */
	int64_t read_ns;     /* how long that took */
	batch_point *point;  /* of its model; NULL: it runs alone */
	int64_t rows;
	uint32_t run_rows; /* of the batch that it was run in; 0: none */
	queue_line *in;    /* where it waits; NULL: nowhere. Of the queue */
	work_fn work;
	work_fn then;                /* on the loop, after work that is not all: then there is no answer yet */
	coding coding;               /* of the body, or of the message, until it is inflated */
	coding reply;                /* in which the client takes the answer */
	uint32_t token;              /* who asks, of the list; NONE: nobody in particular */
	const char *session, *owner; /* of training: its number, and the token that asks, hashed; NULL: not asked for */
	/* HTTP/2 */
	bool grpc, whole;       /* whole: all of the request has come */
	uint32_t head_bytes;    /* of its fields */
	uint32_t sent;          /* pieces of the answer */
	size_t sent_bytes;      /* of the next one */
	const uint8_t *message; /* of gRPC, in the body */
	size_t nmessage;
	/* A call with messages both ways: each becomes an exchange of its own, one at a time. */
	bool streaming, half_closed; /* half_closed: the client sends no more */
	bool waiting;                /* it has messages that are taken once the client reads its answers */
	size_t unsent;               /* bytes of its answers */
	size_t taken;                /* bytes of the body whose messages were taken */
	bool in_stream;              /* it is one of these */
	const char *watch;           /* a call that is told of the health of this service; NULL: it is none */
	uint32_t told;               /* what it was told last, plus 1 */
	exchange *inner, *outer;     /* the one for a message, and the call that it belongs to */
	exchange *next;              /* in a list of whoever has it */
	exchange *sibling;           /* of the same connection */
};

clv_status exchange_new(server *s, exchange **out);
void exchange_free(exchange *x);
/* It has an error for an answer: gives back what was there to run it. */
void exchange_refused(exchange *x);
/* More memory for this request than its body, until it is released: tensors that are made of numbers, or were compressed.
   CLV_E_NOMEM: more than the server has at once. CLV_E_LIMIT: more than it ever has; it is answered. */
clv_status exchange_hold(exchange *x, size_t n);
void exchange_owe(exchange *x, size_t n);  /* an answer that exists already: counted, never refused */
void exchange_sent(exchange *x, size_t n); /* so much of it has gone */
/* Room for `more` bytes of the body, of which `total` are expected (-1: not known). `lead` is read at the first call. */
clv_status body_reserve(exchange *x, size_t more, int64_t total);
static inline uint8_t *body_at(const request_body *b)
{
	return b->memory ? (uint8_t *)b->memory->base + b->lead : NULL;
}
/* Adds bytes that came. CLV_E_LIMIT: more than a body may have, or than one of somebody unknown. CLV_E_NOMEM: more than the server
   has at once. */
clv_status body_add(exchange *x, const void *at, size_t n);
void body_refuse(exchange *x, clv_status st); /* answers that */
/* Inflates the body, or the message of gRPC, on a worker; `then` is called on the loop with the plain one. */
void body_inflate(exchange *x, work_fn then);
clv_status body_json(const exchange *x, json_t **root); /* for the loop: a short one; caller frees */
void body_drop(exchange *x, size_t n);                  /* its first bytes, which nobody reads any more */
/* Binary tensors after JSON start at a multiple of 64, so that they are used where they are: bytes to leave free for that. Those of
   boundaries and of messages do, too, as far as the first bytes tell. */
size_t body_lead_for(const http_head *h);

/* Answers. The first error stays. */
void answer_empty(exchange *x, unsigned status);
void answer_text(exchange *x, unsigned status, const char *type, strbuf *text /* empty after */);
void answer_error(exchange *x, unsigned status, const char *fmt, ...) PRINTF_LIKE(3, 4);
void answer_exhausted(exchange *x, const char *message); /* 503: there is no memory now */
/* True: CLV_OK. Otherwise it is answered with what the library said last on this thread, as far as that is for clients. */
bool answer_status(exchange *x, clv_status st);
bool answer_run(exchange *x, clv_status st); /* the same, after the model ran on what the client sent */
clv_status answer_piece(answer *a, const void *at, size_t n, void (*drop)(void *), void *ctx); /* drops it on failure */
void answer_clear(answer *a);
/* Compresses the body, as the client may have it, except for its first `skip` bytes. Not where that saves nothing. */
clv_status answer_deflate(exchange *x, size_t skip);
enum { TIMING_MOST = 80 };
bool answer_timing(const exchange *x, char out[TIMING_MOST]); /* Server-Timing; false: nothing was run */

/* ---- models (models.c) ------------------------------------------------------------------------------------------------------ */

typedef enum served_kind { SERVES_WHOLE, SERVES_PREFIX, SERVES_SUFFIX, SERVES_TRAINING } served_kind;

typedef struct duration {
	_Atomic uint64_t count, ns;
} duration;

enum { BUCKETS = 14 };

typedef struct histogram {
	_Atomic uint64_t bucket[BUCKETS + 1], count,
		sum; /* the last has what is above all bounds; sum in nanoseconds or bytes */
} histogram;

typedef enum histogram_unit { UNIT_SECONDS, UNIT_BYTES, UNIT_ROWS } histogram_unit;
void histogram_add(histogram *h, histogram_unit unit, int64_t amount); /* seconds in nanoseconds */

/* Runs of one batch size. */
typedef struct batch_tally {
	duration input, infer, output;
} batch_tally;

typedef struct tally {
	duration success, failure, queue, compute_input, compute_infer, compute_output;
	_Atomic uint64_t inferences, executions;
	_Atomic int64_t last_ms; /* since 1970 */
	histogram queue_time, compute_time, request_time, batch_size, bytes_in, bytes_out;
	_Atomic uint64_t train_steps; /* of sessions */
	histogram train_time;
} tally;

/* Requests that wait for the same thing, in the order in which they came. Of the queue, which locks it. */
struct queue_line {
	exchange *first, *last;
	uint32_t n;
	int64_t rows;        /* of all of them */
	batch_point *serves; /* NULL: they run one by one */
	queue_line *after;   /* in the list of those with somebody in them */
	uint32_t vain;       /* runs in a row of one request alone */
	double rate;         /* rows that came per nanosecond, as of `seen` */
	int64_t seen;
};

/* Requests of one plan that differ in their rows alone: what else is in a shape is the same. */
struct batch_point {
	uint32_t plan;
	int64_t *dims; /* of all inputs, one after the other, without the first of each */
	uint32_t n;
	uint32_t *sizes; /* rows that are run, ascending from 1 */
	int64_t *times;  /* nanoseconds of a run at each */
	queue_line line;
};

/* How a model runs in batches. */
typedef struct batching {
	bool on;
	char *why; /* why not; NULL: it is on */
	uint32_t npoints, ndims;
	batch_point *points;
	bool *of_rows;    /* per output of the runtime: it has a row for each row */
	double max_error; /* the largest difference that was seen to rows alone; 0: they are the same bits */
} batching;

/* Why requests had no answer of a model; kept as long as the server runs. */
typedef enum refusal {
	REFUSED_UNAUTHORIZED,
	REFUSED_FORBIDDEN,
	REFUSED_TOO_LARGE,
	REFUSED_BUSY,
	REFUSED_NO_MEMORY,
	REFUSED_DEADLINE,
	REFUSED_CANCELLED,
	REFUSALS
} refusal;

/* One version of a model, ready to run. */
struct served {
	_Atomic uint32_t refs;
	char *name, *version; /* as clients call it; name with its cut */
	clv_artifact *artifact;
	clv_runtime *runtime;
	clv_trainer *trainer; /* of a file that trains, whose runtime is the trainer's; NULL for others */
	served_kind kind;
	int64_t max_batch; /* of its configuration; -1: none said */
	char *unused;      /* fields of its configuration that mean nothing here; NULL: none */
	batching batching;
	tally tally;
	batch_tally *batches; /* by rows of the run, from 1 */
	uint32_t nbatches;
	served *
		heir; /* counted; of the same name and version, in its place: what is counted here is counted there at the end */
};

served *served_ref(served *m);
void served_free(served *m);      /* one user less */
clv_status tally_open(served *m); /* once it is known how it is batched */

typedef struct models models;
clv_status models_open(server *s); /* all that the options name; what cannot be loaded is an error */
void models_close(server *s);
/* A model that is ready, or a cut that was made already; NULL: models_find has to look, or to cut. */
served *models_quick(server *s, const char *name, const char *version);
/* CLV_E_NOT_FOUND, or why it cannot be served. version NULL: the newest. May cut a model: not on the loop. */
clv_status models_find(server *s, const char *name, const char *version, served **out);
bool models_is_quick(const char *name); /* finding it takes no time */
bool models_ready(server *s);           /* all that should be there are */
/* Those of a model, or of the model of a cut, that run; the newest first. With the lock: `each` asks no more. */
void models_versions(server *s, const char *name, void (*each)(void *ctx, const char *version), void *ctx);
clv_status models_load(server *s, const char *name);
clv_status models_unload(server *s, const char *name);
clv_trainer_options models_trainer_options(const server *s);
void models_poll(server *s, bool all); /* takes up files that changed */
typedef clv_status (*index_fn)(void *ctx, const char *name, const char *version, bool ready, const char *reason);
clv_status models_index(server *s, bool ready_only, index_fn each, void *ctx);
/* Calls `each` with every version that is ready, of the model `name` (NULL: of all). */
clv_status models_each(server *s, const char *name, const char *version, clv_status (*each)(void *ctx, served *m),
                       void *ctx);

/* ---- the protocol (oip.c, oip_json.c, oip_grpc.c) ------------------------------------------------------------------------ */

/* As Triton configures it: rows of the largest run where every input and output has a row for each; 0: no batching. */
uint32_t oip_batch_size(const served *m);
int64_t oip_dim(const char *text); /* "3" is 3, a formula -1 */
clv_status oip_metadata(exchange *x, const served *m, strbuf *json);
clv_status oip_config(exchange *x, const served *m, strbuf *json);
clv_status oip_statistics(const served *m, strbuf *json);

/* Reads the body of an inference into x->call. */
clv_status oip_read(exchange *x);
void oip_write(exchange *x); /* the answer, of the results */
void infer_free(infer *c);
clv_status infer_settle(const served *m, clv_tensor **t); /* on the CPU, in rows, on memory that no later run writes */

/* ---- requests ------------------------------------------------------------------------------------------------------------ */

void infer_work(exchange *x);    /* of a worker: reads, runs, answers */
void infer_prepare(exchange *x); /* the first part of it: x has its inputs, or an answer */
void infer_finish(exchange *x, clv_status ran, uint32_t batch); /* the last part: after a run of so many requests */
void route(exchange *x);                                        /* on the loop: answers, or hands it to a worker */

clv_status queue_open(server *s);
clv_status queue_close(server *s); /* CLV_E_CANCELLED: a run does not end, and its thread is still there */
void queue_add(exchange *x);       /* to the workers; answers 503 where there are too many */
void queue_add_desk(exchange *x);  /* to the thread that loads models */
exchange *queue_done(server *s);   /* a list of those that have an answer now */
/* Nobody waits for x any more. True: it waited, and is the caller's now; false: somebody works on it. */
bool queue_take_back(exchange *x);
int64_t queue_next_deadline(server *s); /* of those that wait, in nanoseconds of the clock; INT64_MAX: none */
void queue_sweep(server *s);            /* answers those whose time is over */

/* tokens.c. On the loop; what may not be is answered. */
typedef struct tokens tokens;
clv_status tokens_load(const char *path, tokens **out);
void tokens_free(tokens *l);
bool tokens_know(exchange *x);
uint32_t tokens_find(const exchange *x); /* the number of its token now; NONE: there is none, or it is not known */
/* model NULL: all of them. change: it loads or unloads. */
bool tokens_allow(exchange *x, const char *model, bool change);
void tokens_owner(exchange *x); /* sets x->owner */

/* metrics.c */
clv_status metrics_write(server *s, strbuf *b);
void metrics_count(server *s, const exchange *x); /* its answer, where that is a refusal */
void tally_move(served *from, served *to);        /* what was counted */

/* ---- connections --------------------------------------------------------------------------------------------------------- */

typedef enum protocol { PROTOCOL_UNKNOWN, PROTOCOL_HTTP1, PROTOCOL_HTTP2 } protocol;

struct connection {
	server *s;
	port_role role;
	int fd;
	tls_session *tls; /* NULL: none */
	protocol protocol;
	char *in; /* what came and was not looked at yet */
	size_t in_n;
	piece_list out; /* to be sent, from `sent` on */
	uint32_t sent;
	size_t sent_bytes; /* of that piece */
	uint32_t events;   /* that epoll has */
	bool wants_write;  /* TLS cannot go on before it wrote */
	bool ending;       /* closed once all is sent */
	bool lingering;    /* all is sent; what still comes is thrown away */
	bool dead;         /* to be released when nothing is on the stack */
	bool reading_body;
	uint32_t blank; /* HTTP/1: empty lines before the next request */
	http_chunks chunks;
	exchange *x;    /* HTTP/1: the one under way; HTTP/2: all of them */
	void *h2;       /* nghttp2_session */
	int64_t since;  /* when what it waits for began */
	uint64_t moved; /* bytes since then */
	uint32_t requests;
	uint64_t client; /* its address */
	int64_t drained; /* HTTP/2: when it was told that the server stops; 0: it was not */
	bool last_told;  /* and which request was the last one */
	connection *before, *after;
};

connection *connection_new(server *s, int fd, port_role role);
void connection_free(connection *c);
void time_moved(int64_t *since, uint64_t *moved, size_t n); /* bytes moved since then */
void connection_event(connection *c, uint32_t events);
void connection_answer(connection *c, exchange *x); /* x has one */
void connection_settle(connection *c);              /* sends what can be sent, waits for the rest */
clv_status connection_send(connection *c, const void *at, size_t n, void (*drop)(void *), void *ctx);
void connection_watch(connection *c, int64_t now); /* tells calls that watch the health of the server what is new */
void connection_drain(connection *c);              /* the server stops: no more requests */
bool connection_is_late(const connection *c, int64_t now);

/* http1.c */
void http1_read(connection *c);
void http1_answer(connection *c, exchange *x);
/* http2.c */
clv_status http2_open(connection *c);
void http2_read(connection *c);
void http2_answer(connection *c, exchange *x);
void http2_fill(connection *c); /* what the session has to send, into c->out */
void http2_drain(connection *c);
void http2_stream(connection *c, exchange *x); /* a call has more to send, or ends */
void http2_reset(connection *c, exchange *x);  /* its client took too long */
void http2_close(connection *c);
bool http2_is_start(const char *at, size_t n); /* of what a client of HTTP/2 says first, as far as it came */

/* ---- the server ------------------------------------------------------------------------------------------------------------ */

typedef struct queue queue;

typedef struct listener {
	int fd; /* -1: it is closed */
	port_role role;
	uint16_t port;
} listener;

struct clv_server {
	clv_server_options o; /* what it points to is below, and texts are in the arena */
	clv_open_options open;
	clv_runtime_options runtime;
	arena arena;
	int epoll, wake; /* wake: an eventfd */
	listener listeners[3];
	uint32_t nlisteners;
	tls_context *tls;
	models *models;
	struct sessions *sessions; /* NULL: there is no folder for them */
	tokens *tokens;            /* NULL: everybody may call */
	queue *queue;
	connection *connections;
	uint32_t nconnections, nexchanges;
	_Atomic uint32_t stopping; /* how often it was told */
	_Atomic bool reloading;
	bool looking;  /* somebody looks for changed files now */
	bool tidying;  /* somebody ends sessions that are old now */
	bool paused;   /* there was no descriptor for a connection: the listener is left alone until the next tick */
	bool leaving;  /* it is not ready any more */
	bool draining; /* it takes no connections any more */
	int64_t leave_until, drain_until;
	_Atomic uint64_t bytes_held; /* of bodies, of tensors made for them, of answers that wait to be read */
	_Atomic uint64_t refused[REFUSALS];
	uint64_t next_id;
	int64_t started, polled;
};

bool server_hold(server *s, size_t n); /* counts them; false: there is no room */
void server_owe(server *s, size_t n);  /* counts what exists already: new requests find less room */
void server_release(server *s, size_t n);
void server_wake(server *s);
bool server_is_ready(server *s);
int64_t wall_milliseconds(void); /* since 1970 */
void server_log(server *s, const exchange *x);
void server_say(server *s, const char *fmt, ...) PRINTF_LIKE(2, 3); /* a line of the log, of the server itself */

#endif
