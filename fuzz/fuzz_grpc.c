/* Fuzz target: a call of gRPC by a client that speaks HTTP/2 as it should. The first byte says which method, the second how the
 * rest becomes the body: as it is, or as one message whose frame is right; and in which coding it says that it comes.
 *
 * The call ends with a status, or the server waits for more of it. */
#include <nghttp2/nghttp2.h>

#include "loopback.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const methods[] = {
	"/inference.GRPCInferenceService/ServerLive",
	"/inference.GRPCInferenceService/ServerReady",
	"/inference.GRPCInferenceService/ServerMetadata",
	"/inference.GRPCInferenceService/ModelReady",
	"/inference.GRPCInferenceService/ModelMetadata",
	"/inference.GRPCInferenceService/ModelConfig",
	"/inference.GRPCInferenceService/ModelStatistics",
	"/inference.GRPCInferenceService/ModelInfer",
	"/inference.GRPCInferenceService/ModelStreamInfer",
	"/inference.GRPCInferenceService/RepositoryIndex",
	"/inference.GRPCInferenceService/RepositoryModelLoad",
	"/inference.GRPCInferenceService/RepositoryModelUnload",
	"/grpc.health.v1.Health/Check",
	"/grpc.health.v1.Health/Watch",
	"/inference.GRPCInferenceService/Nothing",
};

typedef struct call {
	const uint8_t *at;
	size_t left, head; /* head: bytes of the frame's head that were not sent yet */
	uint8_t frame[5];
	bool answered;
} call;

static ssize_t read_body(nghttp2_session *h2, int32_t stream, uint8_t *to, size_t room, uint32_t *flags,
                         nghttp2_data_source *source, void *user)
{
	call *c = source->ptr;
	size_t n = c->head ? c->head : c->left < room ? c->left : room;
	(void)h2, (void)stream, (void)user;
	memcpy(to, c->head ? c->frame + sizeof c->frame - c->head : c->at, n);
	if (c->head) {
		c->head = 0;
	} else {
		c->at += n;
		c->left -= n;
	}
	if (!c->left && !c->head)
		*flags |= NGHTTP2_DATA_FLAG_EOF;
	return (ssize_t)n;
}

static int on_header(nghttp2_session *h2, const nghttp2_frame *f, const uint8_t *name, size_t nname,
                     const uint8_t *text, size_t ntext, uint8_t flags, void *user)
{
	call *c = user;
	(void)h2, (void)f, (void)text, (void)flags;
	c->answered |= nname == 11 && !memcmp(name, "grpc-status", 11) && ntext;
	return 0;
}

static void to_client(void *client, const void *at, size_t n)
{
	MUST(nghttp2_session_mem_recv(client, at, n) >= 0);
}

static nghttp2_nv field(const char *name, const char *text)
{
	return (nghttp2_nv){(uint8_t *)(uintptr_t)name, (uint8_t *)(uintptr_t)text, strlen(name), strlen(text), 0};
}

static nghttp2_session *new_client(call *c)
{
	nghttp2_session_callbacks *calls;
	nghttp2_session *client;
	MUST(nghttp2_session_callbacks_new(&calls) == 0);
	nghttp2_session_callbacks_set_on_header_callback(calls, on_header);
	MUST(nghttp2_session_client_new(&client, calls, c) == 0);
	nghttp2_session_callbacks_del(calls);
	MUST(nghttp2_submit_settings(client, NGHTTP2_FLAG_NONE, NULL, 0) == 0);
	return client;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const codings[] = {"identity", "gzip", "deflate", "br"};
	if (size < 2 || size > 1 << 16)
		return 0;
	size_t which = data[0] % (sizeof methods / sizeof *methods), n = size - 2;
	bool framed = data[1] & 1, packed = data[1] & 2;
	call body = {.at = data + 2,
	             .left = n,
	             .head = framed ? 5 : 0,
	             .frame = {packed, (uint8_t)(n >> 24), (uint8_t)(n >> 16), (uint8_t)(n >> 8), (uint8_t)n}};
	nghttp2_session *client = new_client(&body);
	connection *c = loopback_open(loopback_server());
	nghttp2_nv fields[] = {field(":method", "POST"),
	                       field(":scheme", "http"),
	                       field(":path", methods[which]),
	                       field(":authority", "fuzz"),
	                       field("content-type", "application/grpc"),
	                       field("te", "trailers"),
	                       field("grpc-timeout", "1S"),
	                       field("grpc-encoding", codings[data[1] >> 2 & 3])};
	nghttp2_data_provider source = {.source.ptr = &body, .read_callback = read_body};
	MUST(nghttp2_submit_request(client, NULL, fields, sizeof fields / sizeof *fields, &source, NULL) > 0);
	const uint8_t *at;
	for (ssize_t k = 1; k > 0;) {
		while ((k = nghttp2_session_mem_send(client, &at)) > 0)
			loopback_give(c, at, (size_t)k);
		loopback_take(c, to_client, client);
		k = nghttp2_session_want_write(client) ? 1 : 0;
	}
	MUST(body.answered || strstr(methods[which], "Watch"));
	nghttp2_session_del(client);
	loopback_close(c);
	return 0;
}
