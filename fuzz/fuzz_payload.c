/* Fuzz target: any bytes as a payload. They must be refused with a message, or be a payload whose tensors can be put into
 * memory, and that is the same payload when it is written and read again.
 *
 * Bytes that start with 'M' are the header text of a payload instead, and get a file with a few entries around them: so
 * the fuzzer need not learn lengths and quoting first. */
#define _GNU_SOURCE /* memmem */
#include <stdlib.h>
#include <string.h>

#include "file/payload.h"
#include "must.h"

enum { LARGE = 1 << 20 };

static void fill_free(const payload *p, void **memories)
{
	for (uint32_t i = 0; memories && i < p->memories.n; i++)
		mem_free(memories[i]);
	mem_free(memories);
}

/* NULL: what packed data says it holds is not there, which is seen only now. */
static void **fill(const payload *p)
{
	bool ok = true;
	void **memories = mem_alloc(p->memories.n * sizeof *memories);
	MUST(memories);
	for (uint32_t i = 0; i < p->memories.n; i++) {
		memories[i] = mem_alloc(p->memories.at[i].nbytes); /* exactly: a write past the end is seen */
		MUST(memories[i]);
		ok = payload_fill(p, i, memories[i]) == CLV_OK && ok;
		MUST(ok || (encoding_packed(p->memories.at[i].encoding) && status_message()[0] != '\0'));
	}
	if (ok)
		return memories;
	fill_free(p, memories);
	return NULL;
}

#define COPY_ARRAY(to, from, field)                                                                                    \
	for (uint32_t k_ = 0; k_ < (from)->field.n; k_++)                                                                  \
	MUST(vec_push(&(to)->field, (from)->field.at[k_]) == CLV_OK)

/* The same payload with tensors in memory; text is borrowed. */
static payload *again(const payload *p, void *const *memories)
{
	payload *q;
	uint32_t number;
	MUST(payload_new(p->kind, &q) == CLV_OK);
	for (uint32_t i = 0; i < p->tensors.n; i++) {
		payload_tensor t = p->tensors.at[i];
		t.storage = memories[t.memory];
		t.data = t.storage + t.offset;
		MUST(payload_add_tensor(q, &t, &number) == CLV_OK && number == i);
	}
	q->split_id = p->split_id;
	q->graph_signature = p->graph_signature;
	q->has_batch_size = p->has_batch_size;
	q->batch_size = p->batch_size;
	q->weight_version = p->weight_version;
	q->supports_prefix_backward = p->supports_prefix_backward;
	COPY_ARRAY(q, p, sizes);
	COPY_ARRAY(q, p, requires_grad);
	COPY_ARRAY(q, p, schema);
	COPY_ARRAY(q, p, passthrough);
	COPY_ARRAY(q, p, values);
	COPY_ARRAY(q, p, strs);
	return q;
}

/* Element by element, as the tensors see them: what lies between may differ. */
static void check_same_data(const payload *p, void *const *a, const payload *q, void *const *b)
{
	MUST(p->tensors.n == q->tensors.n);
	for (uint32_t i = 0; i < p->tensors.n; i++) {
		const payload_tensor *t = &p->tensors.at[i], *u = &q->tensors.at[i];
		size_t extent, item = dtype_bits(t->dtype) / 8;
		MUST(strcmp(t->label, u->label) == 0 && t->dtype == u->dtype && t->ndim == u->ndim);
		MUST(memcmp(t->sizes, u->sizes, t->ndim * sizeof *t->sizes) == 0);
		MUST(memcmp(t->strides, u->strides, t->ndim * sizeof *t->strides) == 0);
		MUST(strided_extent(t->ndim, t->sizes, t->strides, &extent) == CLV_OK);
		if (extent == 0)
			continue;
		const char *x = (const char *)a[t->memory] + t->offset, *y = (const char *)b[u->memory] + u->offset;
		MUST(memcmp(x, y, item) == 0 && memcmp(x + (extent - 1) * item, y + (extent - 1) * item, item) == 0);
	}
}

static void check_schema(const payload *p)
{
	if (p->schema.n && p->schema.n <= p->tensors.n)
		(void)schema_check(p->schema.at, p->tensors.at, p->schema.n, p->sizes.at, p->sizes.n);
}

/* Compressed it is a payload too, unless it holds what int8 and q1 to q8 cannot, or there is no zstd. */
static void check_compressed(const payload *p, void *const *memories, encoding e)
{
	payload *q = again(p, memories), *back;
	st_image image;
	strbuf file = STRBUF_INIT;
	for (uint32_t i = 0; i < q->tensors.n; i++)
		q->tensors.at[i].wish = e;
	clv_status st = payload_image(q, &image);
	MUST(st == CLV_OK || (st == CLV_E_INVALID && (e == ENC_INT8 || encoding_bits(e))) ||
	     (st == CLV_E_UNSUPPORTED && e == ENC_ZSTD));
	if (st == CLV_OK) {
		MUST(st_append(&image, &file) == CLV_OK && payload_read(file.at, file.n, p->kind, &back) == CLV_OK);
		void **filled = fill(back);
		MUST(filled);
		fill_free(back, filled);
		payload_free(back);
		st_image_free(&image);
	}
	strbuf_free(&file);
	payload_free(q);
}

static void check_round_trip(const payload *p)
{
	void **memories = fill(p);
	if (!memories)
		return;
	check_compressed(p, memories, (encoding)(ENC_FP16 + p->tensors.n % (ENC_COUNT - ENC_FP16)));
	payload *q = again(p, memories), *back;
	st_image image;
	strbuf file = STRBUF_INIT, one = STRBUF_INIT, two = STRBUF_INIT;
	MUST(payload_image(q, &image) == CLV_OK && st_append(&image, &file) == CLV_OK && file.n == image.total);
	MUST(payload_read(file.at, file.n, p->kind, &back) == CLV_OK);
	MUST(payload_header(q, &one) == CLV_OK && payload_header(back, &two) == CLV_OK);
	MUST(one.n == two.n && memcmp(one.at, two.at, one.n) == 0);
	void **other = fill(back);
	check_same_data(p, memories, back, other);
	fill_free(back, other);
	fill_free(p, memories);
	payload_free(q);
	payload_free(back);
	st_image_free(&image);
	strbuf_free(&file);
	strbuf_free(&one);
	strbuf_free(&two);
}

static void look(const void *data, size_t n, payload_kind kind)
{
	payload *p;
	size_t sum = 0;
	if (payload_read(data, n, kind, &p) != CLV_OK) {
		MUST(status_message()[0] != '\0');
		return;
	}
	for (uint32_t i = 0; i < p->memories.n; i++)
		sum += p->memories.at[i].nbytes;
	check_schema(p);
	if (sum < LARGE)
		check_round_trip(p);
	payload_free(p);
}

/* A file with those of these entries that the text speaks of. */
static void look_at_header(const char *text, size_t n)
{
	static const uint8_t data[64] = {1, 0, 1, 1, 0x80, 0x3f, 0, 0xff};
	static const uint8_t packed[] = {0x28, 0xb5, 0x2f, 0xfd, 0x20, 0x40, 0x45, 0x00, 0x00,
	                                 0x10, 0x00, 0x00, 0x01, 0x00, 0x93, 0x00, 0x16}; /* 64 zeros, by zstd */
	static const float scales[] = {1, 0.5f};
	static const int64_t shapes[][2] = {{4, 4}, {4, 2}, {2, 4}, {64}, {4, 3}, {2, 2}, {sizeof packed}, {2}};
	static const struct {
		const char *quoted;
		st_entry entry;
	} all[] = {
		{"\"a\"", {"a", DT_F32, 2, shapes[0], data, 64}},
		{"\"b\"", {"b", DT_F16, 2, shapes[1], data, 16}},
		{"\"c\"", {"c", DT_I8, 2, shapes[2], data, 8}},
		{"\"d\"", {"d", DT_U8, 1, shapes[3], data, 64}},
		{"\"e\"", {"e", DT_BOOL, 2, shapes[4], data, 12}},
		{"\"f\"", {"f", DT_F64, 2, shapes[5], data, 32}},
		{"\"g\"", {"g", DT_U8, 1, shapes[6], packed, sizeof packed}},
		{"\"s\"", {"s", DT_F32, 1, shapes[7], scales, sizeof scales}},
	};
	st_entry entries[sizeof all / sizeof *all];
	uint32_t count = 0;
	st_image image;
	strbuf file = STRBUF_INIT;
	st_text header = {PAYLOAD_KEY, text, n};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (memmem(text, n, all[i].quoted, 3))
			entries[count++] = all[i].entry;
	if (st_layout(entries, count, &header, 1, &image) != CLV_OK)
		return; /* no UTF-8 */
	MUST(st_append(&image, &file) == CLV_OK);
	look(file.at, file.n, PAYLOAD_BOUNDARY);
	look(file.at, file.n, PAYLOAD_VALUES);
	st_image_free(&image);
	strbuf_free(&file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size && data[0] == 'M') {
		look_at_header((const char *)data + 1, size - 1);
		return 0;
	}
	look(data, size, PAYLOAD_BOUNDARY);
	look(data, size, PAYLOAD_VALUES);
	return 0;
}
