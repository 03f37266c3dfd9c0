/* src/remote: a client against a server that answers what a test says, well-formed or hostile; URLs, heads and chunks. */
#define _GNU_SOURCE /* strcasestr */
#include "support.h"

#include <arpa/inet.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "file/payload.h"
#include "remote/remote.h"

/* ---- a server that reads from a script ------------------------------------------------------------------------------ */

enum { REPLIES = 8, CONNECTIONS = 16, REQUEST = 1 << 16 };

typedef struct reply {
	const char *at;
	size_t n;
	bool hang_up;  /* the connection ends after it */
	bool at_once;  /* before the request was read */
	unsigned wait; /* milliseconds before it */
} reply;

typedef struct script {
	reply replies[REPLIES];
	uint32_t n;
	_Atomic uint32_t next, connections;
	int listener;
	_Atomic bool over;
	pthread_t accepter, threads[CONNECTIONS];
	char request[REPLIES][REQUEST]; /* with a NUL after it */
	size_t request_n[REPLIES];
	char url[64];
} script;

/* Bytes of a request that were said to come. */
static size_t whole_request(const char *at, size_t n)
{
	size_t head = http_head_end(at, n);
	const char *length = head ? strcasestr(at, "content-length:") : NULL;
	if (!head)
		return SIZE_MAX;
	return head + (length && length < at + head ? strtoul(length + 15, NULL, 10) : 0);
}

static bool readable(const script *s, int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	while (!s->over)
		if (poll(&p, 1, 20) > 0)
			return true;
	return false;
}

static bool read_request(script *s, int fd, uint32_t i)
{
	size_t n = 0;
	while (n < whole_request(s->request[i], n)) {
		ssize_t k = readable(s, fd) ? read(fd, s->request[i] + n, REQUEST - 1 - n) : 0;
		if (k <= 0)
			return false;
		n += (size_t)k;
		s->request[i][n] = '\0';
	}
	s->request_n[i] = n;
	return true;
}

static bool answer(script *s, int fd)
{
	if (!readable(s, fd))
		return false;
	char c;
	if (recv(fd, &c, 1, MSG_PEEK) <= 0)
		return false;
	uint32_t i = atomic_fetch_add(&s->next, 1);
	if (i >= s->n)
		return false;
	const reply *r = &s->replies[i];
	if (!r->at_once && !read_request(s, fd, i))
		return false;
	usleep(r->wait * 1000);
	for (size_t k = 0; k < r->n;) {
		ssize_t sent = send(fd, r->at + k, r->n - k, MSG_NOSIGNAL);
		if (sent <= 0)
			return false;
		k += (size_t)sent;
	}
	return !r->hang_up;
}

typedef struct served {
	script *s;
	int fd;
} served;

static void *serve(void *given)
{
	served c = *(served *)given;
	free(given);
	while (answer(c.s, c.fd)) {}
	close(c.fd);
	return NULL;
}

static void *accept_all(void *given)
{
	script *s = given;
	while (readable(s, s->listener)) {
		served *c = malloc(sizeof *c);
		*c = (served){s, accept(s->listener, NULL, NULL)};
		uint32_t i = atomic_fetch_add(&s->connections, 1);
		if (i >= CONNECTIONS || c->fd < 0)
			abort();
		pthread_create(&s->threads[i], NULL, serve, c);
	}
	return NULL;
}

static script *start(const reply *replies, uint32_t n)
{
	script *s = calloc(1, sizeof *s);
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof a;
	if (n)
		memcpy(s->replies, replies, n * sizeof *replies);
	s->n = n;
	for (uint32_t i = 0; i < n; i++)
		s->replies[i].n = s->replies[i].n ? s->replies[i].n : s->replies[i].at ? strlen(s->replies[i].at) : 0;
	s->listener = socket(AF_INET, SOCK_STREAM, 0);
	assert_int_equal(bind(s->listener, (struct sockaddr *)&a, sizeof a), 0);
	assert_int_equal(listen(s->listener, 16), 0);
	assert_int_equal(getsockname(s->listener, (struct sockaddr *)&a, &size), 0);
	snprintf(s->url, sizeof s->url, "http://127.0.0.1:%d/net", ntohs(a.sin_port));
	pthread_create(&s->accepter, NULL, accept_all, s);
	return s;
}

static void stop(script *s)
{
	s->over = true;
	pthread_join(s->accepter, NULL);
	for (uint32_t i = 0; i < s->connections; i++)
		pthread_join(s->threads[i], NULL);
	close(s->listener);
	free(s);
}

/* ---- what it says --------------------------------------------------------------------------------------------------- */

#define METADATA                                                                                                       \
	"{\"name\":\"net\",\"inputs\":[{\"name\":\"x\",\"datatype\":\"FP32\",\"shape\":[-1,2]}],"                          \
	"\"outputs\":[{\"name\":\"y\",\"datatype\":\"FP32\",\"shape\":[-1,2]}],\"parameters\":{\"part\":\"suffix\"}}"

static char *with_length(const char *head, const char *body, size_t n)
{
	static char texts[REPLIES][4096];
	static unsigned at;
	char *to = texts[at++ % REPLIES];
	int k = snprintf(to, 4096, "HTTP/1.1 %s\r\nContent-Length: %zu\r\n\r\n", head, n);
	memcpy(to + k, body, n);
	to[(size_t)k + n] = '\0';
	return to;
}

static reply say(const char *head, const char *body)
{
	const char *text = with_length(head, body, strlen(body));
	return (reply){.at = text, .n = strlen(text)};
}

static reply metadata(void)
{
	return say("200 OK", METADATA);
}

static reply say_binary(const char *head, const void *body, size_t n)
{
	char *text = with_length(head, body, n);
	return (reply){.at = text, .n = http_head_end(text, 4096) + n};
}

/* {[1,2],[3,4]} as y in a safetensors file. */
static reply say_tensors(const char *name)
{
	static const float numbers[] = {1, 2, 3, 4};
	static char file[512];
	st_entry e = {
		.name = name, .dtype = DT_F32, .ndim = 2, .shape = (const int64_t[]){2, 2}, .data = numbers, .nbytes = 16};
	st_image image;
	OK(st_layout(&e, 1, NULL, 0, &image));
	st_copy(&image, file);
	size_t n = image.total;
	st_image_free(&image);
	return say_binary("200 OK\r\nContent-Type: application/x-safetensors\r\n"
	                  "Server-Timing: queue;dur=1.5, compute;dur=20",
	                  file, n);
}

static clv_boundary *boundary(void)
{
	static const float data[] = {5, 6};
	payload *p;
	st_image image;
	strbuf file = STRBUF_INIT;
	clv_boundary *b;
	uint32_t i;
	payload_tensor t = {.label = "%1", .dtype = DT_F32, .boundary = true, .device = "cpu", .ndim = 1, .data = data};
	t.sizes = (const int64_t[]){2};
	t.strides = (const int64_t[]){1};
	OK(payload_new(PAYLOAD_BOUNDARY, &p));
	OK(payload_add_tensor(p, &t, &i));
	OK(payload_image(p, &image));
	OK(st_append(&image, &file));
	OK(clv_boundary_unpack(file.at, file.n, &b));
	st_image_free(&image);
	strbuf_free(&file);
	payload_free(p);
	return b;
}

static clv_status connect_with(const script *s, clv_remote_options o, clv_remote **out)
{
	*out = NULL;
	return clv_remote_connect(s->url, &o, out);
}

static const clv_remote_options quick = {.size = sizeof quick, .timeout = 5, .connect_timeout = 5, .retries = -1};

/* A server that says what a model is, then this to the first call. */
static clv_status call_once(reply r, clv_remote_options o, clv_remote_times *times)
{
	script *s = start((const reply[]){metadata(), r}, 2);
	clv_remote *c;
	clv_tensor *y = NULL;
	clv_boundary *b = boundary();
	OK(connect_with(s, o, &c));
	clv_status st = clv_remote_run_suffix(c, b, NULL, &y, 1, times);
	assert_true((st == CLV_OK) == (y != NULL));
	clv_tensor_free(y);
	clv_boundary_free(b);
	clv_remote_free(c);
	stop(s);
	return st;
}

/* ---- calls that go well ----------------------------------------------------------------------------------------------- */

static void a_boundary_goes_and_outputs_come_over_one_connection(void **state)
{
	(void)state;
	script *s = start((const reply[]){metadata(), say_tensors("y"), say_tensors("y")}, 3);
	clv_remote_options o = quick;
	clv_remote_times t = {.size = sizeof t};
	clv_remote *c;
	clv_tensor *y;
	clv_boundary *b = boundary(), *sent;
	o.token = "secret";
	OK(connect_with(s, o, &c));
	assert_true(clv_remote_is_suffix(c));
	clv_port p = {.size = sizeof p};
	OK(clv_remote_output(c, 0, &p));
	assert_string_equal(p.name, "y");
	assert_string_equal(p.dims[0], "-1");
	for (int i = 0; i < 2; i++) {
		OK(clv_remote_run_suffix(c, b, NULL, &y, 1, &t));
		assert_true(((const float *)clv_tensor_data(y))[3] == 4);
		clv_tensor_free(y);
	}
	assert_true(t.queue == 0.0015 && t.compute == 0.02 && t.tries == 1 && t.connect == 0 && t.total > 0);
	assert_int_equal(s->connections, 1);
	assert_non_null(strstr(s->request[0], "GET /v2/models/net HTTP/1.1\r\n"));
	assert_non_null(strstr(s->request[1], "POST /v2/models/net/infer HTTP/1.1\r\n"));
	assert_non_null(strstr(s->request[1], "Authorization: Bearer secret\r\n"));
	assert_non_null(strstr(s->request[1], "Content-Type: application/x-safetensors\r\n"));
	size_t head = http_head_end(s->request[1], s->request_n[1]);
	OK(clv_boundary_unpack(s->request[1] + head, s->request_n[1] - head, &sent));
	assert_string_equal(clv_boundary_label(sent, 0), "%1");
	clv_boundary_free(sent);
	clv_boundary_free(b);
	clv_remote_free(c);
	stop(s);
}

#define BINARY(name, bytes)                                                                                            \
	"{\"outputs\":[{\"name\":\"" name                                                                                  \
	"\",\"datatype\":\"FP32\",\"shape\":[1,2],\"parameters\":{\"binary_data_size\":" bytes "}}]}"

static reply say_outputs(const char *json)
{
	static char body[1024];
	static const float numbers[] = {7, 8};
	char head[96];
	size_t n = strlen(json);
	memcpy(body, json, n);
	memcpy(body + n, numbers, sizeof numbers);
	snprintf(head, sizeof head, "200 OK\r\nInference-Header-Content-Length: %zu", n);
	return say_binary(head, body, n + sizeof numbers);
}

static clv_status call_whole(const char *json)
{
	script *s = start((const reply[]){metadata(), say_outputs(json)}, 2);
	clv_remote *c;
	clv_tensor *x, *y = NULL;
	OK(clv_tensor_from_data((const float[]){1, 2}, "f32", 2, (const int64_t[]){1, 2}, &x));
	OK(connect_with(s, quick, &c));
	clv_status st = clv_remote_run(c, (const clv_tensor *const[]){x}, 1, &y, 1, NULL);
	if (st == CLV_OK) {
		assert_true(((const float *)clv_tensor_data(y))[1] == 8);
		assert_non_null(strstr(s->request[1], "\"binary_data_output\":true"));
		assert_non_null(strstr(s->request[1], "\"datatype\":\"FP32\",\"shape\":[1,2]"));
	}
	clv_tensor_free(x);
	clv_tensor_free(y);
	clv_remote_free(c);
	stop(s);
	return st;
}

static void a_whole_model_is_called_with_binary_tensors(void **state)
{
	(void)state;
	OK(call_whole(BINARY("y", "8")));
	FAILS(call_whole(BINARY("z", "8")), CLV_E_PARSE, "\"z\" is none of the model's");
	FAILS(call_whole(BINARY("y", "12")), CLV_E_PARSE, "impossible type, shape or size");
	FAILS(call_whole(BINARY("y", "-8")), CLV_E_PARSE, "impossible type, shape or size");
	FAILS(call_whole(BINARY("y", "4")), CLV_E_PARSE, "has 4 bytes instead of 8");
	FAILS(call_whole("{\"outputs\":[]}"), CLV_E_PARSE, "0 outputs instead of 1");
	FAILS(call_whole("{\"outputs\":[{}]}"), CLV_E_PARSE, "\"name\" is missing");
	FAILS(call_whole("[1,2"), CLV_E_PARSE, "no valid JSON");
}

static void inputs_of_another_type_do_not_leave(void **state)
{
	(void)state;
	script *s = start((const reply[]){metadata()}, 1);
	clv_remote *c;
	clv_tensor *x, *y = NULL;
	OK(clv_tensor_from_data((const int64_t[]){1, 2}, "i64", 2, (const int64_t[]){1, 2}, &x));
	OK(connect_with(s, quick, &c));
	FAILS(clv_remote_run(c, (const clv_tensor *const[]){x}, 1, &y, 1, NULL), CLV_E_INPUT,
	      "input x is i64, expected f32");
	FAILS(clv_remote_run(c, NULL, 0, &y, 1, NULL), CLV_E_INVALID, "1 inputs, not 0");
	FAILS(clv_remote_run(c, (const clv_tensor *const[]){x}, 1, &y, 2, NULL), CLV_E_INVALID, "1 outputs");
	clv_tensor_free(x);
	clv_remote_free(c);
	stop(s);
}

/* ---- servers that are busy or go away ------------------------------------------------------------------------------------ */

static void busy_servers_are_asked_again_when_they_say_so(void **state)
{
	(void)state;
	script *s =
		start((const reply[]){metadata(), say("503 Service Unavailable\r\nRetry-After: 1", "{\"error\":\"full\"}"),
	                          say("429 Too Many Requests", ""), say_tensors("y")},
	          4);
	clv_remote_options o = quick;
	clv_remote_times t = {.size = sizeof t};
	clv_remote *c;
	clv_tensor *y;
	clv_boundary *b = boundary();
	o.retries = 2;
	OK(connect_with(s, o, &c));
	OK(clv_remote_run_suffix(c, b, NULL, &y, 1, &t));
	assert_int_equal(t.tries, 3);
	assert_true(t.total >= 1);
	clv_tensor_free(y);
	clv_boundary_free(b);
	clv_remote_free(c);
	stop(s);
}

static void a_busy_server_is_not_waited_for_beyond_the_time_limit(void **state)
{
	(void)state;
	clv_remote_options o = quick;
	o.retries = 5;
	double start_at = clock_seconds();
	FAILS(call_once(say("503 No\r\nRetry-After: 60", "{\"error\":\"full\"}"), o, NULL), CLV_E_IO,
	      "it answers 503: full");
	assert_true(clock_seconds() - start_at < 5);
}

static void a_connection_that_broke_is_replaced(void **state)
{
	(void)state;
	reply closed = metadata(), gone = {.hang_up = true};
	closed.hang_up = true; /* though it did not say so */
	script *s = start((const reply[]){closed, gone, say_tensors("y")}, 3);
	clv_remote_options o = quick;
	clv_remote_times t = {.size = sizeof t};
	clv_remote *c;
	clv_tensor *y;
	clv_boundary *b = boundary();
	o.retries = 1;
	OK(connect_with(s, o, &c));
	OK(clv_remote_run_suffix(c, b, NULL, &y, 1, &t));
	assert_true(t.tries >= 2);
	clv_tensor_free(y);
	clv_boundary_free(b);
	clv_remote_free(c);
	stop(s);
}

static void a_server_that_is_not_there_is_an_error_in_time(void **state)
{
	(void)state;
	clv_remote *c;
	script *s = start(NULL, 0);
	clv_remote_options o = quick;
	char url[64];
	strcpy(url, s->url);
	stop(s);
	FAILS(clv_remote_connect(url, &o, &c), CLV_E_IO, "cannot reach 127.0.0.1 port");
	o.lazy = true;
	OK(clv_remote_connect(url, &o, &c));
	clv_tensor *y;
	clv_boundary *b = boundary();
	FAILS(clv_remote_run_suffix(c, b, NULL, &y, 1, NULL), CLV_E_IO, "cannot reach");
	clv_boundary_free(b);
	clv_remote_free(c);
}

static void an_answer_that_takes_too_long_is_an_error(void **state)
{
	(void)state;
	clv_remote_options o = quick;
	reply late = say_tensors("y");
	late.wait = 600;
	o.timeout = 0.2;
	FAILS(call_once(late, o, NULL), CLV_E_IO, "took too long");
	FAILS(call_once((reply){.at = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc"}, o, NULL), CLV_E_IO,
	      "took too long");
}

static void statuses_say_what_is_wrong(void **state)
{
	(void)state;
	FAILS(call_once(say("409 Conflict", "{\"error\":\"other weights\"}"), quick, NULL), CLV_E_INPUT,
	      "it answers 409: other weights");
	FAILS(call_once(say("401 Unauthorized", ""), quick, NULL), CLV_E_INVALID, "401 (it wants a token)");
	FAILS(call_once(say("404 Not Found", "{\"error\":\"no model\"}"), quick, NULL), CLV_E_NOT_FOUND, "no model");
	FAILS(call_once(say("302 Found\r\nLocation: http://elsewhere/", ""), quick, NULL), CLV_E_PARSE, "they do not go");
	FAILS(call_once(say("500 Oh", "a\x1b[31mb"), quick, NULL), CLV_E_IO, "500: a?[31mb");
}

/* ---- hostile answers ---------------------------------------------------------------------------------------------------- */

#define HOSTILE(text, status, part)                                                                                    \
	do {                                                                                                               \
		reply hostile_ = {.at = text, .n = sizeof text - 1, .hang_up = true};                                          \
		FAILS(call_once(hostile_, quick, NULL), status, part);                                                         \
	} while (0)

static void malformed_answers_are_errors(void **state)
{
	(void)state;
	HOSTILE("garbage without a line", CLV_E_IO, "closed the connection before its answer was whole");
	HOSTILE("SSH-2.0-OpenSSH\r\n\r\n", CLV_E_PARSE, "does not begin as HTTP/1.1 does");
	HOSTILE("HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", CLV_E_PARSE, "no length");
	HOSTILE("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", CLV_E_PARSE, "no length");
	HOSTILE("HTTP/1.1 200 OK\r\nContent-Length: 9000000000000000000\r\n\r\n", CLV_E_PARSE, "larger than");
	HOSTILE("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", CLV_E_PARSE, "no length");
	HOSTILE("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", CLV_E_PARSE,
	        "length and chunks");
	HOSTILE("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n", CLV_E_PARSE, "compressed");
	HOSTILE("HTTP/1.1 200 OK\r\n folded: x\r\n\r\n", CLV_E_PARSE, "malformed");
	HOSTILE("HTTP/1.1 200 OK\r\nX: a\x01\r\n\r\n", CLV_E_PARSE, "control character");
	HOSTILE("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", CLV_E_PARSE, "chunk");
	HOSTILE("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcX\r\n", CLV_E_PARSE, "chunk");
	HOSTILE("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\nabc", CLV_E_IO,
	        "before its answer");
	HOSTILE("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", CLV_E_PARSE, "");
	HOSTILE("HTTP/1.1 200 OK\r\n\r\nno length, to the end", CLV_E_PARSE, "");
	HOSTILE("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
	        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
	        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n",
	        CLV_E_PARSE, "again and again");
	FAILS(call_once(say_tensors("z"), quick, NULL), CLV_E_PARSE, "\"y\" is missing");
}

static void a_head_without_end_is_an_error(void **state)
{
	(void)state;
	static char text[ANSWER_HEAD_MOST * 2 + 64] = "HTTP/1.1 200 OK\r\nX: ";
	memset(text + strlen(text), 'a', sizeof text - 64);
	reply r = {.at = text, .n = sizeof text - 40, .hang_up = true};
	FAILS(call_once(r, quick, NULL), CLV_E_PARSE, "too long");
}

static void large_answers_are_refused_before_they_take_memory(void **state)
{
	(void)state;
	clv_remote_options o = quick;
	o.max_answer = 300;
	static char body[1000];
	FAILS(call_once(say_binary("200 OK", body, sizeof body), o, NULL), CLV_E_PARSE, "larger than 300 bytes");
}

static void a_refusal_before_the_request_was_read_is_heard(void **state)
{
	(void)state;
	reply early = say("413 Too Large\r\nConnection: close", "{\"error\":\"too large\"}");
	early.at_once = early.hang_up = true;
	clv_status st = call_once(early, quick, NULL);
	assert_true(st == CLV_E_INPUT || st == CLV_E_IO); /* the reset may overtake the answer */
}

static void bad_metadata_is_an_error(void **state)
{
	(void)state;
	static const char *const bad[] = {
		"", "[]", "{}", "{\"inputs\":[{}],\"outputs\":[]}",
		"{\"inputs\":[],\"outputs\":[{\"name\":\"y\",\"datatype\":\"FP32\",\"shape\":[-2]}]}"};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		script *s = start((const reply[]){say("200 OK", bad[i])}, 1);
		clv_remote *c;
		FAILS(connect_with(s, quick, &c), CLV_E_PARSE, "server 127.0.0.1");
		stop(s);
	}
	script *s =
		start((const reply[]){say("200 OK", "{\"inputs\":[{\"name\":\"x\",\"datatype\":\"BYTES\",\"shape\":[1]}],"
	                                        "\"outputs\":[]}")},
	          1);
	clv_remote *c;
	FAILS(connect_with(s, quick, &c), CLV_E_UNSUPPORTED, "type BYTES");
	stop(s);
}

static void chunks_may_be_cut_anywhere(void **state)
{
	(void)state;
	static const char text[] = "3;x=y\r\nabc\r\n0A\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\nrest";
	for (size_t step = 1; step < sizeof text; step++) {
		http_chunks c = {0};
		char body[64];
		size_t n = 0, at = 0, used, data;
		bool done = false;
		while (!done) {
			size_t left = sizeof text - 1 - at;
			OK(http_chunks_read(&c, text + at, step < left ? step : left, &used, &data, &done));
			memcpy(body + n, text + at + used - data, data);
			n += data;
			at += used;
		}
		assert_int_equal(n, 13);
		assert_memory_equal(body, "abc0123456789", 13);
		assert_string_equal(text + at, "rest");
	}
}

/* ---- what can be said before anything is sent ------------------------------------------------------------------------------ */

static void urls_are_read_or_refused(void **state)
{
	(void)state;
	remote_url u;
	OK(remote_url_read("https://example.org/a/b/net@%7", &u));
	assert_true(u.tls && !strcmp(u.host, "example.org") && !strcmp(u.port, "443"));
	assert_true(!strcmp(u.base, "/a/b") && !strcmp(u.model, "net@%257"));
	remote_url_free(&u);
	static const char *const percents[][2] = {
		{"net@50%", "net@50%25"}, {"net@50%25", "net@50%25"}, {"a%2Fb", "a%2Fb"}, {"%zz%", "%25zz%25"}};
	for (size_t i = 0; i < sizeof percents / sizeof *percents; i++) {
		char url[64];
		snprintf(url, sizeof url, "http://x/%s", percents[i][0]);
		OK(remote_url_read(url, &u));
		assert_string_equal(u.model, percents[i][1]);
		remote_url_free(&u);
	}
	OK(remote_url_read("http://[::1]:8000/my model/", &u));
	assert_true(!u.tls && !strcmp(u.host, "::1") && !strcmp(u.port, "8000") && !strcmp(u.model, "my%20model"));
	remote_url_free(&u);
	static const char *const bad[] = {
		"example.org/net",        "ftp://x/net",          "http://x",         "http://x/",
		"http://x:0/net",         "http://x:99999/net",   "http://x:80a/net", "http:///net",
		"http://a b/net",         "http://user:pw@x/net", "http://x/net?a=b", "http://[::1/net",
		"http://x/a\r\nb: c/net", "http://[::1]x/net"};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		clv_status st = remote_url_read(bad[i], &u);
		if (st != CLV_E_INVALID)
			fail_msg("%s: %d", bad[i], st);
		remote_url_free(&u);
	}
}

static void tokens_do_not_go_in_the_clear(void **state)
{
	(void)state;
	clv_remote_options o = quick;
	clv_remote *c;
	o.lazy = true;
	o.token = "secret";
	FAILS(clv_remote_connect("http://example.org/net", &o, &c), CLV_E_INVALID, "in the clear");
	FAILS(clv_remote_connect("http://127.example.org/net", &o, &c), CLV_E_INVALID, "in the clear");
	o.insecure = true;
	OK(clv_remote_connect("http://example.org/net", &o, &c));
	clv_remote_free(c);
	o.token = "a\r\nHost: b";
	FAILS(clv_remote_connect("http://127.0.0.1/net", &o, &c), CLV_E_INVALID, "the token has a character");
	o.token = NULL;
	o.timeout = NAN;
	FAILS(clv_remote_connect("http://127.0.0.1/net", &o, &c), CLV_E_INVALID, "time limit");
	o.timeout = 1;
	o.ca = "/nowhere";
	FAILS(clv_remote_connect("http://127.0.0.1/net", &o, &c), CLV_E_INVALID, "certificates are for https");
}

static void every_allocation_of_a_client_may_fail(void **state)
{
	(void)state;
	clv_remote_options o = quick;
	clv_remote *c = NULL;
	clv_status st = CLV_E_NOMEM;
	o.lazy = true;
	o.token = "secret";
	for (uint64_t n = 1; st != CLV_OK && n < 100; n++) {
		mem_fail_after(n);
		st = clv_remote_connect("http://127.0.0.1/net", &o, &c);
		mem_fail_after(0);
		assert_true(st == CLV_OK || st == CLV_E_NOMEM);
	}
	assert_int_equal(st, CLV_OK);
	clv_remote_free(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_boundary_goes_and_outputs_come_over_one_connection),
		cmocka_unit_test(a_whole_model_is_called_with_binary_tensors),
		cmocka_unit_test(inputs_of_another_type_do_not_leave),
		cmocka_unit_test(busy_servers_are_asked_again_when_they_say_so),
		cmocka_unit_test(a_busy_server_is_not_waited_for_beyond_the_time_limit),
		cmocka_unit_test(a_connection_that_broke_is_replaced),
		cmocka_unit_test(a_server_that_is_not_there_is_an_error_in_time),
		cmocka_unit_test(an_answer_that_takes_too_long_is_an_error),
		cmocka_unit_test(statuses_say_what_is_wrong),
		cmocka_unit_test(malformed_answers_are_errors),
		cmocka_unit_test(a_head_without_end_is_an_error),
		cmocka_unit_test(large_answers_are_refused_before_they_take_memory),
		cmocka_unit_test(a_refusal_before_the_request_was_read_is_heard),
		cmocka_unit_test(bad_metadata_is_an_error),
		cmocka_unit_test(chunks_may_be_cut_anywhere),
		cmocka_unit_test(urls_are_read_or_refused),
		cmocka_unit_test(tokens_do_not_go_in_the_clear),
		cmocka_unit_test(every_allocation_of_a_client_may_fail),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
