/* The public functions of clients. */
#include "remote/remote.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/options.h"

/* ---- clients ----------------------------------------------------------------------------------------------------- */

static clv_status check_token(const char *token)
{
	for (const char *s = token; *s; s++)
		if ((unsigned char)*s <= ' ' || (unsigned char)*s >= 127)
			return fail(CLV_E_INVALID, "the token has a character that no token has");
	return *token ? CLV_OK : fail(CLV_E_INVALID, "the token is empty");
}

static clv_status set_defaults(clv_remote_options *o)
{
	o->timeout = o->timeout != 0 ? o->timeout : 60;
	o->connect_timeout = o->connect_timeout != 0 ? o->connect_timeout : 5;
	o->retries = o->retries ? o->retries : 2;
	o->connections = o->connections ? o->connections : 8;
	o->max_answer = o->max_answer ? o->max_answer : (int64_t)1 << 30;
	if (!(o->timeout > 0 && o->timeout < 1e7) || !(o->connect_timeout > 0 && o->connect_timeout < 1e7))
		return fail(CLV_E_INVALID, "a time limit is a number of seconds above 0");
	if (o->connections < 1 || o->connections > 1024 || o->max_answer < 1)
		return fail(CLV_E_INVALID, "there are 1 to 1024 connections, and answers of one byte or more");
	return CLV_OK;
}

/* A token is a password: it does not go where others listen. */
static clv_status check_secrecy(const clv_remote *r)
{
	if (r->url.tls || !r->o.token || r->o.insecure || remote_is_loopback(r->url.host))
		return CLV_OK;
	return fail(CLV_E_INVALID, "the token would go to %s in the clear: use https://, or say that it may (insecure)",
	            r->url.host);
}

static clv_status set_up(clv_remote *r, const char *url)
{
	TRY(set_defaults(&r->o));
	TRY(remote_url_read(url, &r->url));
	TRY(check_secrecy(r));
	if (r->o.token) {
		TRY(check_token(r->o.token));
		r->token = mem_strdup(r->o.token, strlen(r->o.token));
		TRY_MEM(r->token);
	}
	if (!r->url.tls && (r->o.ca || r->o.cert || r->o.key))
		return fail(CLV_E_INVALID, "certificates are for https://");
	if (r->url.tls)
		TRY(tls_client(r->o.ca, r->o.cert, r->o.key, &r->tls));
	r->o.token = r->o.ca = r->o.cert = r->o.key = NULL; /* the caller's */
	r->idle = mem_alloc((size_t)r->o.connections * sizeof *r->idle);
	TRY_MEM(r->idle);
	return CLV_OK;
}

static bool set_up_lock(clv_remote *r)
{
	pthread_condattr_t attributes;
	if (pthread_condattr_init(&attributes) != 0)
		return false;
	(void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC); /* that of clock_seconds */
	bool good = pthread_cond_init(&r->free_again, &attributes) == 0;
	pthread_condattr_destroy(&attributes);
	if (good && pthread_mutex_init(&r->lock, NULL) != 0) {
		pthread_cond_destroy(&r->free_again);
		good = false;
	}
	return good;
}

clv_status clv_remote_connect(const char *url, const clv_remote_options *options, clv_remote **out)
{
	clv_remote_options o = CLV_REMOTE_OPTIONS_INIT;
	if (!url || !out)
		return fail(CLV_E_INVALID, "clv_remote_connect needs a URL and a place for the client");
	TRY(options_read(&o, sizeof o, options, "clv_remote_options"));
	clv_remote *r = mem_alloc(sizeof *r);
	TRY_MEM(r);
	r->o = o;
	if (!set_up_lock(r)) {
		mem_free(r);
		return fail_nomem();
	}
	clv_status st = set_up(r, url);
	if (st == CLV_OK && !r->o.lazy)
		st = remote_know(r, 0);
	if (st == CLV_OK)
		*out = r;
	else
		clv_remote_free(r);
	return st;
}

void clv_remote_free(clv_remote *r)
{
	if (!r)
		return;
	for (uint32_t i = 0; i < r->nidle; i++)
		link_close(r->idle[i]);
	mem_free(r->idle);
	tls_free(r->tls);
	remote_url_free(&r->url);
	if (r->token)
		explicit_bzero(r->token, strlen(r->token));
	mem_free(r->token);
	mem_free(r->metadata);
	arena_free(&r->arena);
	pthread_cond_destroy(&r->free_again);
	pthread_mutex_destroy(&r->lock);
	mem_free(r);
}

/* ---- what the server says of the model ----------------------------------------------------------------------------- */

/* Another thread may have been faster. */
static clv_status keep_metadata(clv_remote *r, const remote_answer *a)
{
	if (r->known)
		return CLV_OK;
	clv_status st = remote_read_metadata(r, a->body, a->n);
	if (st != CLV_OK)
		arena_free(&r->arena); /* the next call asks again */
	TRY(remote_failed(r, st));
	r->metadata = mem_strdup(a->body, a->n);
	TRY_MEM(r->metadata);
	r->known = true;
	return CLV_OK;
}

static bool is_known(clv_remote *r)
{
	pthread_mutex_lock(&r->lock);
	bool known = r->known;
	pthread_mutex_unlock(&r->lock);
	return known;
}

clv_status remote_know(clv_remote *r, double limit)
{
	remote_request q = {.method = "GET", .path = "", .fields = "Accept: application/json\r\n", .limit = limit};
	remote_answer a;
	clv_remote_times times = {0};
	if (is_known(r))
		return CLV_OK;
	TRY(remote_ask(r, &q, &a, &times));
	pthread_mutex_lock(&r->lock);
	clv_status st = keep_metadata(r, &a);
	pthread_mutex_unlock(&r->lock);
	remote_answer_free(&a);
	return st;
}

clv_status clv_remote_metadata(clv_remote *r, const char **out)
{
	if (!r || !out)
		return fail(CLV_E_INVALID, "clv_remote_metadata: an argument is NULL");
	TRY(remote_know(r, 0));
	*out = r->metadata;
	return CLV_OK;
}

clv_status remote_ping(clv_remote *r, double limit, double *seconds)
{
	remote_request q = {.method = "GET", .path = "/ready", .fields = "", .limit = limit};
	remote_answer a;
	clv_remote_times times = {0};
	TRY(remote_ask(r, &q, &a, &times));
	remote_answer_free(&a);
	*seconds = times.send + times.wait + times.receive;
	return CLV_OK;
}

clv_status clv_remote_ping(clv_remote *r, double *seconds)
{
	if (!r || !seconds)
		return fail(CLV_E_INVALID, "clv_remote_ping: an argument is NULL");
	return remote_ping(r, 0, seconds);
}

uint32_t clv_remote_input_count(const clv_remote *r)
{
	return r ? r->nports[0] : 0;
}

uint32_t clv_remote_output_count(const clv_remote *r)
{
	return r ? r->nports[1] : 0;
}

static clv_status copy_port(const clv_remote *r, int which, uint32_t i, clv_port *out)
{
	if (!r || i >= r->nports[which] || !out)
		return fail(CLV_E_INVALID, "the server's model has no %s %u", which ? "output" : "input", i);
	clv_port p = r->ports[which][i];
	return options_write(out, &p, sizeof p, "clv_port");
}

clv_status clv_remote_input(const clv_remote *r, uint32_t i, clv_port *out)
{
	return copy_port(r, 0, i, out);
}

clv_status clv_remote_output(const clv_remote *r, uint32_t i, clv_port *out)
{
	return copy_port(r, 1, i, out);
}

bool clv_remote_is_suffix(const clv_remote *r)
{
	return r && r->suffix;
}

/* ---- runs ----------------------------------------------------------------------------------------------------------- */

typedef clv_status (*read_fn)(const clv_remote *r, const remote_answer *a, clv_tensor **outputs);

static clv_status read_results(const clv_remote *r, const remote_answer *a, read_fn read, clv_tensor **outputs)
{
	uint32_t n = r->nports[1];
	for (uint32_t i = 0; i < n; i++)
		outputs[i] = NULL;
	clv_status st = read(r, a, outputs);
	for (uint32_t i = 0; st != CLV_OK && i < n; i++) {
		clv_tensor_free(outputs[i]);
		outputs[i] = NULL;
	}
	return remote_failed(r, st);
}

/* Sends a request and reads the outputs of its answer. */
static clv_status ask_and_read(clv_remote *r, const remote_request *q, read_fn read, clv_tensor **outputs,
                               clv_remote_times *t)
{
	remote_answer a;
	TRY(remote_ask(r, q, &a, t));
	double start = clock_seconds();
	clv_status st = read_results(r, &a, read, outputs);
	t->decode = clock_seconds() - start;
	remote_answer_free(&a);
	return st;
}

static clv_status send_bytes(clv_remote *r, const remote_call *c, clv_tensor **outputs, clv_remote_times *t)
{
	remote_request q = {
		.method = "POST",
		.path = "/infer",
		.fields = "Content-Type: " ST_MEDIA_TYPE "\r\nAccept: " ST_MEDIA_TYPE "\r\n",
		.body = &(remote_piece){c->data, c->n},
		.nbody = 1,
		.limit = c->limit,
	};
	return ask_and_read(r, &q, remote_read_tensors, outputs, t);
}

static clv_status send_boundary(clv_remote *r, const remote_call *c, clv_tensor **outputs, clv_remote_times *t)
{
	void *data;
	remote_call packed = *c;
	double start = clock_seconds();
	TRY(clv_boundary_pack(c->boundary, c->pack, &data, &packed.n));
	packed.data = data;
	t->encode = clock_seconds() - start;
	clv_status st = send_bytes(r, &packed, outputs, t);
	clv_free(data);
	return st;
}

/* Rows of an input: where they lie, or a copy. */
static clv_status row_major(const clv_tensor *t, remote_piece *out, void **copy)
{
	out->n = (size_t)clv_tensor_bytes(t);
	out->at = clv_tensor_data(t);
	if (out->at || !out->n)
		return CLV_OK;
	out->at = *copy = mem_realloc(NULL, out->n, 1);
	TRY_MEM(*copy);
	return clv_tensor_copy_to(t, *copy, out->n);
}

static clv_status send_pieces(clv_remote *r, const remote_call *c, remote_piece *body, void **copies,
                              clv_tensor **outputs, clv_remote_times *t)
{
	strbuf json = STRBUF_INIT, fields = STRBUF_INIT;
	uint32_t n = r->nports[0];
	double start = clock_seconds();
	clv_status st = remote_write_inputs(r, c->inputs, &json);
	for (uint32_t i = 0; st == CLV_OK && i < n; i++)
		st = row_major(c->inputs[i], &body[i + 1], &copies[i]);
	body[0] = (remote_piece){json.at, json.n};
	strbuf_printf(&fields, "Content-Type: application/octet-stream\r\nInference-Header-Content-Length: %zu\r\n",
	              json.n);
	if (st == CLV_OK && fields.failed)
		st = fail_nomem();
	t->encode = clock_seconds() - start;
	remote_request q = {
		.method = "POST", .path = "/infer", .fields = fields.at, .body = body, .nbody = n + 1, .limit = c->limit};
	if (st == CLV_OK)
		st = ask_and_read(r, &q, remote_read_binary, outputs, t);
	strbuf_free(&json);
	strbuf_free(&fields);
	return st;
}

static clv_status send_inputs(clv_remote *r, const remote_call *c, clv_tensor **outputs, clv_remote_times *t)
{
	uint32_t n = r->nports[0];
	if (c->ninputs != n || (n && !c->inputs))
		return fail(CLV_E_INVALID, "the server's model has %u inputs, not %u", n, c->ninputs);
	for (uint32_t i = 0; i < n; i++)
		if (!c->inputs[i])
			return fail(CLV_E_INVALID, "input %u is NULL", i);
	remote_piece *body = mem_alloc((n + 1) * sizeof *body);
	void **copies = mem_alloc((n + 1) * sizeof *copies);
	clv_status st = body && copies ? send_pieces(r, c, body, copies, outputs, t) : fail_nomem();
	for (uint32_t i = 0; copies && i < n; i++)
		mem_free(copies[i]);
	mem_free(copies);
	mem_free(body);
	return st;
}

/* Checks a call, and that the model is known. */
static clv_status begin(clv_remote *r, const remote_call *c, clv_tensor **outputs, uint32_t noutputs)
{
	if (!r || (!outputs && noutputs))
		return fail(CLV_E_INVALID, "a run on a server needs a client and room for its outputs");
	TRY(remote_know(r, c->know_limit));
	if (noutputs != r->nports[1])
		return fail(CLV_E_INVALID, "the server's model has %u outputs, and there is room for %u", r->nports[1],
		            noutputs);
	return CLV_OK;
}

clv_status remote_run(clv_remote *r, const remote_call *c, clv_tensor **outputs, uint32_t noutputs,
                      clv_remote_times *times)
{
	clv_remote_times t = {.queue = NAN, .compute = NAN};
	double start = clock_seconds();
	clv_status st = begin(r, c, outputs, noutputs);
	if (st == CLV_OK)
		st = c->boundary ? send_boundary(r, c, outputs, &t)
		     : c->data   ? send_bytes(r, c, outputs, &t)
		                 : send_inputs(r, c, outputs, &t);
	/* Also of a run that failed: a caller who retries elsewhere wants to know how long it took. */
	t.total = clock_seconds() - start;
	if (times)
		TRY(options_write(times, &t, sizeof t, "clv_remote_times"));
	return st;
}

clv_status clv_remote_run_suffix(clv_remote *r, const clv_boundary *b, const clv_pack_options *pack,
                                 clv_tensor **outputs, uint32_t noutputs, clv_remote_times *times)
{
	remote_call c = {.boundary = b, .pack = pack};
	if (!b)
		return fail(CLV_E_INVALID, "clv_remote_run_suffix: there is no boundary");
	return remote_run(r, &c, outputs, noutputs, times);
}

clv_status clv_remote_run(clv_remote *r, const clv_tensor *const *inputs, uint32_t ninputs, clv_tensor **outputs,
                          uint32_t noutputs, clv_remote_times *times)
{
	remote_call c = {.inputs = inputs, .ninputs = ninputs};
	return remote_run(r, &c, outputs, noutputs, times);
}
