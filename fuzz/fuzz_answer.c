/* Fuzz target: any bytes as the answer of a server. The head, the body in whatever framing it says, then the body as metadata, as
 * outputs with binary data, and as a safetensors file of outputs. All is refused with a message, or has the tensors that the
 * metadata announced. */
#include <string.h>

#include "must.h"
#include "remote/remote.h"

static const char metadata[] = "{\"inputs\":[],\"outputs\":[{\"name\":\"y\",\"datatype\":\"FP32\",\"shape\":[-1,2]},"
							   "{\"name\":\"b\",\"datatype\":\"BOOL\",\"shape\":[2]}]}";

/* The body, without its framing; caller frees. NULL: it is malformed, or not all there. */
static char *body_of(const answer_head *h, const char *at, size_t n, size_t *out)
{
	http_chunks c = {0};
	size_t used, data;
	bool done = false;
	char *body = mem_alloc(n + 1);
	MUST(body);
	*out = 0;
	if (!h->chunked) {
		*out = h->length >= 0 && (uint64_t)h->length < n ? (size_t)h->length : n;
		memcpy(body, at, *out);
		return body;
	}
	while (n && !done) {
		if (http_chunks_read(&c, at, n, &used, &data, &done) != CLV_OK)
			break;
		MUST(used <= n && data <= used && (used || done));
		memcpy(body + *out, at + used - data, data);
		*out += data;
		at += used;
		n -= used;
	}
	if (done)
		return body;
	mem_free(body);
	return NULL;
}

typedef clv_status (*read_fn)(const clv_remote *r, const remote_answer *a, clv_tensor **outputs);

static void read_as(const clv_remote *r, const remote_answer *a, read_fn read)
{
	clv_tensor *outputs[2] = {0};
	clv_status st = read(r, a, outputs);
	MUST(st == CLV_OK || status_message()[0] != '\0');
	for (int i = 0; i < 2; i++) {
		MUST(st != CLV_OK || clv_tensor_ndim(outputs[i]) == (i ? 1 : 2));
		clv_tensor_free(outputs[i]);
	}
}

static void look_at_body(remote_answer *a)
{
	clv_remote known = {0}, told = {0};
	MUST(remote_read_metadata(&known, metadata, sizeof metadata - 1) == CLV_OK && known.nports[1] == 2);
	read_as(&known, a, remote_read_binary);
	read_as(&known, a, remote_read_tensors);
	(void)remote_read_metadata(&told, a->body, a->n);
	arena_free(&known.arena);
	arena_free(&told.arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *at = (const char *)data;
	remote_answer a = {0};
	size_t n = http_head_end(at, size);
	if (!n)
		return 0;
	if (answer_head_read(at, n, &a.head) != CLV_OK) {
		MUST(status_message()[0] != '\0');
		return 0;
	}
	a.body = body_of(&a.head, at + n, size - n, &a.n);
	if (a.body)
		look_at_body(&a);
	remote_answer_free(&a);
	return 0;
}
