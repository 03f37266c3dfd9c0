/* Fuzz target: what a server gets from the network. The first byte says what the rest is: the head of a request over HTTP/1.1, a
 * body in chunks, a request of the Open Inference Protocol as JSON with binary tensors, or as a message of gRPC; the path and the
 * body of a request that needs no worker; compressed data; a file of tokens; a configuration.
 *
 * It is refused with a message, or it is a request whose tensors have the bytes that their shapes say. */
#define _GNU_SOURCE /* memfd_create */
#include <sys/mman.h>
#include <unistd.h>

#include "loopback.h"
#include "serve/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void look_at_head(const char *at, size_t n)
{
	arena a = {0};
	http_head h;
	size_t end = http_head_end(at, n);
	clv_status st = http_head_read(at, end ? end : n, &a, &h);
	MUST(st == CLV_OK || clv_last_error()[0]);
	MUST(st != CLV_OK || (h.method[0] && h.path[0] && !(h.chunked && h.length >= 0)));
	http_head_free(&h);
	arena_free(&a);
}

/* The same bytes in one piece and byte by byte are the same body. */
static void look_at_chunks(const char *at, size_t n)
{
	http_chunks one = {0}, many = {0};
	size_t used = 0, data, whole = 0, pieces = 0, i = 0;
	bool done = false, ended = false;
	clv_status st = CLV_OK, each = CLV_OK;
	for (size_t k = 0; k < n && st == CLV_OK && !done; k += used, whole += data)
		st = http_chunks_read(&one, at + k, n - k, &used, &data, &done);
	for (; i < n && each == CLV_OK && !ended; i += used, pieces += data)
		each = http_chunks_read(&many, at + i, 1, &used, &data, &ended);
	MUST(st == each && done == ended && (st != CLV_OK || whole == pieces));
}

static void add_field(exchange *x, const char *name, const char *text)
{
	MUST(http_field_add(&x->head, &x->arena, name, strlen(name), text, strlen(text)) == CLV_OK);
}

/* Two bytes say how long the JSON is. */
static void look_at_request(const uint8_t *at, size_t n, bool grpc)
{
	server s = {.o = CLV_SERVER_OPTIONS_INIT, .started = 1};
	exchange *x;
	char length[16];
	s.o.max_body = s.o.max_json = 1 << 20;
	MUST(exchange_new(&s, &x) == CLV_OK);
	size_t json = n >= 2 ? (size_t)at[0] << 8 | at[1] : 0, skip = n >= 2 && !grpc ? 2 : 0;
	snprintf(length, sizeof length, "%zu", json ? json : n);
	x->model = "m";
	x->grpc = grpc;
	x->head.length = (int64_t)(n - skip);
	if (!grpc && json)
		add_field(x, "inference-header-content-length", length);
	MUST(body_add(x, at + skip, n - skip) == CLV_OK);
	x->message = body_at(&x->body);
	x->nmessage = x->body.n;
	clv_status st = oip_read(x);
	MUST(st == CLV_OK || clv_last_error()[0] || x->out.status);
	for (uint32_t i = 0; st == CLV_OK && i < x->call.inputs.n; i++) {
		const infer_input *in = &x->call.inputs.at[i];
		volatile uint8_t sum = 0;
		size_t bytes = (size_t)clv_tensor_bytes(in->tensor);
		for (size_t k = 0; k < bytes; k++)
			sum = (uint8_t)(sum + ((const uint8_t *)in->tensor->data)[k]);
	}
	exchange_free(x);
	MUST(s.nexchanges == 0 && atomic_load(&s.bytes_held) == 0);
}

/* The path ends at the first line. */
static void look_at_path(const char *at, size_t n)
{
	server *s = loopback_server();
	exchange *x;
	const char *end = memchr(at, '\n', n);
	size_t path = end ? (size_t)(end - at) : n;
	MUST(exchange_new(s, &x) == CLV_OK);
	x->head.method = end ? "POST" : "GET";
	x->head.length = -1;
	if (http_target(&x->head, &x->arena, at, path) == CLV_OK) {
		MUST(!end || body_add(x, end + 1, n - path - 1) == CLV_OK);
		route(x);
		MUST(x->out.status);
	}
	exchange_free(x);
	MUST(!s->nexchanges && !atomic_load(&s->bytes_held));
}

typedef struct room {
	uint8_t bytes[1000];
	size_t n;
} room;

static clv_status more_room(void *ctx, size_t written, uint8_t **at, size_t *n)
{
	room *r = ctx;
	MUST(written <= sizeof r->bytes);
	r->n += written;
	if (r->n > 1 << 20)
		return fail(CLV_E_LIMIT, "it is large");
	if (at) {
		*at = r->bytes;
		*n = sizeof r->bytes;
	}
	return CLV_OK;
}

/* What was compressed becomes what it was. */
static void look_at_coding(coding c, const uint8_t *at, size_t n)
{
	room r = {.n = 0};
	strbuf packed = STRBUF_INIT;
	deflater *d;
	MUST(inflate_bytes(c, at, n, more_room, &r) == CLV_OK || clv_last_error()[0]);
	r.n = 0;
	MUST(deflate_open(c, &d) == CLV_OK && deflate_add(d, at, n, true, &packed) == CLV_OK);
	MUST(inflate_bytes(c, packed.at, packed.n, more_room, &r) == CLV_OK && r.n == n);
	deflate_close(d);
	strbuf_free(&packed);
}

static void look_at_config(const char *at, size_t n)
{
	model_config c;
	MUST(model_config_parse(at, n, &c) == CLV_OK || clv_last_error()[0]);
	MUST(c.max_batch >= -1);
	model_config_free(&c);
}

static void look_at_tokens(const uint8_t *at, size_t n)
{
	tokens *l = NULL;
	char path[40];
	int fd = memfd_create("tokens", MFD_CLOEXEC);
	MUST(fd >= 0 && write(fd, at, n) == (ssize_t)n);
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	MUST(tokens_load(path, &l) == CLV_OK || clv_last_error()[0]);
	tokens_free(l);
	close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (!size || size > 1 << 16)
		return 0;
	switch (data[0] % 9) {
	case 0: look_at_head((const char *)data + 1, size - 1); break;
	case 1: look_at_chunks((const char *)data + 1, size - 1); break;
	case 2:
	case 3: look_at_request(data + 1, size - 1, data[0] % 9 == 3); break;
	case 4: look_at_path((const char *)data + 1, size - 1); break;
	case 5: look_at_coding(CODING_GZIP, data + 1, size - 1); break;
	case 6: look_at_coding(CODING_DEFLATE, data + 1, size - 1); break;
	case 7: look_at_tokens(data + 1, size - 1); break;
	default: look_at_config((const char *)data + 1, size - 1);
	}
	return 0;
}
