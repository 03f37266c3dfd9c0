/* Fuzz target: any bytes as an artifact. They must be refused with a message, or be an artifact whose plans and tensors can
 * be listed, that can be taken apart and cut, and that is the same file when it is written and read again.
 *
 * A header has a check of itself, which no mutation would get past: bytes get a new one before they are looked at. Bytes that
 * start with 'M' are texts instead, each after a line "=== <key>", and get a file with a few entries around them: so the
 * fuzzer need not learn lengths and quoting first. */
#define _GNU_SOURCE /* memmem */
#include <unistd.h>

#include "file/artifact.h"
#include "file/artifact_keys.h"
#include "file/artifact_segments.h"
#include "file/signature.h"
#include "file/training.h"
#include "texts.h"

enum { LARGE = 1 << 20 };

/* Every byte of the code, and nothing beyond it. */
static void list_segments(const artifact *a, uint32_t number)
{
	const artifact_plan *e = &a->plans.at[number];
	const char *key, *text;
	uint32_t n;
	MUST(clv_artifact_segment_count(a, number) == e->segments.n);
	for (uint32_t i = 0; i < e->segments.n; i++) {
		clv_segment_info info = {.size = sizeof info};
		MUST(clv_artifact_segment(a, number, i, &info) == CLV_OK);
		MUST(info.first >= e->first && info.first < info.end && info.end <= e->end);
		MUST(info.nsymbols == e->p->symbols.n);
		for (uint32_t k = 0; clv_artifact_segment_need(a, number, i, k, &key, &text); k++)
			MUST(key[0]);
		for (uint32_t k = 0; clv_artifact_segment_fact(a, number, i, k, &key, &text); k++)
			MUST(key[0]);
		for (uint32_t k = 0; k < e->segments.at[i].members.n; k++)
			digest_of(e->segments.at[i].members.at[k].data, e->segments.at[i].members.at[k].n);
	}
	for (uint32_t i = 0; clv_artifact_fallback(a, number, i, &n, &text); i++)
		MUST(n < e->p->nodes.n && text[0]);
}

static void list(const artifact *a)
{
	const char *key, *text;
	for (uint32_t i = 0; clv_artifact_about(a, i, &key, &text); i++)
		MUST(key && text);
	for (uint32_t i = 0; i < clv_artifact_plan_count(a); i++) {
		clv_plan_info info = {.size = sizeof info};
		MUST(clv_artifact_plan(a, i) && clv_artifact_plan_info(a, i, &info) == CLV_OK);
		MUST(info.first <= info.end && info.end <= a->plans.at[i].p->nodes.n);
		list_segments(a, i);
	}
	for (uint32_t i = 0; i < clv_artifact_tensor_count(a); i++) {
		clv_tensor_info info = {.size = sizeof info};
		MUST(clv_artifact_tensor(a, i, &info) == CLV_OK && strlen(info.digest) == 32);
	}
	artifact_check_data(a);
}

/* Memory as a run would need it. */
static size_t fill(const artifact *a)
{
	size_t sum = 0;
	for (uint32_t i = 0; i < a->tensors->memories.n; i++)
		sum += a->tensors->memories.at[i].nbytes;
	for (uint32_t i = 0; sum < LARGE && i < a->tensors->memories.n; i++) {
		void *memory = mem_alloc(a->tensors->memories.at[i].nbytes); /* exactly: a write past the end is seen */
		MUST(memory && payload_fill(a->tensors, i, memory) == CLV_OK);
		mem_free(memory);
	}
	return sum;
}

static artifact_range *ranges_of(const artifact *a)
{
	artifact_range *ranges = mem_alloc(a->plans.n * sizeof *ranges);
	MUST(ranges);
	for (uint32_t i = 0; i < a->plans.n; i++) {
		const artifact_plan *e = &a->plans.at[i];
		ranges[i] = (artifact_range){e->first, e->end, e->cut};
	}
	return ranges;
}

/* The same part again, in a block that starts where a mapped file would; caller frees. */
static void *write_again(const artifact *a, size_t *n)
{
	artifact_range *ranges = ranges_of(a);
	artifact *part;
	strbuf b = STRBUF_INIT;
	void *at = NULL;
	MUST(artifact_take(a, a->part, ranges, &part) == CLV_OK);
	MUST(artifact_append(part, &b) == CLV_OK);
	MUST(posix_memalign(&at, ST_MAPPED_ALIGN, b.n) == 0);
	memcpy(at, b.at, b.n);
	*n = b.n;
	strbuf_free(&b);
	artifact_free(part);
	mem_free(ranges);
	return at;
}

static void check_round_trip(const artifact *a)
{
	const clv_open_options o = {sizeof o, NULL, 0, true};
	size_t one_n, two_n;
	artifact *b;
	void *one = write_again(a, &one_n);
	MUST(clv_artifact_parse(one, one_n, &o, &b) == CLV_OK);
	MUST(a->plans.n == b->plans.n && strcmp(a->part, b->part) == 0 && a->notes.n == b->notes.n);
	for (uint32_t i = 0; i < a->plans.n; i++)
		MUST(plan_equal(a->plans.at[i].p, b->plans.at[i].p));
	void *two = write_again(b, &two_n);
	MUST(one_n == two_n && memcmp(one, two, one_n) == 0);
	artifact_free(b);
	free(one);
	free(two);
}

/* A whole model again, with its code. */
static void check_copy(const artifact *a)
{
	const clv_open_options o = {sizeof o, NULL, 0, true};
	artifact *copy, *b;
	strbuf bytes = STRBUF_INIT;
	plan **none = mem_alloc(a->plans.n * sizeof *none);
	void *at = NULL;
	MUST(none);
	if (strcmp(a->part, "all") != 0) {
		mem_free(none);
		return;
	}
	MUST(artifact_reordered(a, none, &copy) == CLV_OK);
	MUST(artifact_append(copy, &bytes) == CLV_OK);
	MUST(posix_memalign(&at, ST_MAPPED_ALIGN, bytes.n) == 0);
	memcpy(at, bytes.at, bytes.n);
	MUST(clv_artifact_parse(at, bytes.n, &o, &b) == CLV_OK);
	for (uint32_t i = 0; i < a->plans.n; i++) {
		MUST(a->plans.at[i].segments.n == b->plans.at[i].segments.n);
		MUST(a->plans.at[i].fallbacks.n == b->plans.at[i].fallbacks.n);
	}
	artifact_free(b);
	artifact_free(copy);
	strbuf_free(&bytes);
	mem_free(none);
	free(at);
}

/* The first segment of each plan, or its first nodes, as an artifact of its own. */
static void take_nodes(const artifact *a)
{
	for (uint32_t i = 0; i < a->plans.n && i < 4; i++) {
		const artifact_plan *e = &a->plans.at[i];
		node_id first = e->segments.n ? e->segments.at[0].first : e->first;
		node_id end = e->segments.n ? e->segments.at[0].end : e->end - (e->end - e->first) / 2;
		artifact *part;
		strbuf bytes = STRBUF_INIT;
		if (artifact_take_nodes(a, i, first, end, &part) == CLV_OK) {
			MUST(artifact_append(part, &bytes) == CLV_OK);
			artifact_free(part);
		} else {
			MUST(status_message()[0] != '\0');
		}
		strbuf_free(&bytes);
	}
}

/* A cut somewhere, as files; most plans refuse most of them. */
static void cut(const artifact *a)
{
	char prefix[64], suffix[64];
	const char *folder = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
	clv_split_options o = CLV_SPLIT_OPTIONS_INIT;
	artifact *half;
	snprintf(prefix, sizeof prefix, "%s/cleave-fuzz-%ld.prefix", folder, (long)getpid());
	snprintf(suffix, sizeof suffix, "%s/cleave-fuzz-%ld.suffix", folder, (long)getpid());
	o.boundary = a->plans.at[0].cut == NONE ? "50%" : NULL;
	if (clv_artifact_split(a, &o, prefix, suffix) == CLV_OK) {
		MUST(clv_artifact_open(prefix, NULL, &half) == CLV_OK);
		artifact_free(half);
		MUST(clv_artifact_open(suffix, NULL, &half) == CLV_OK);
		artifact_free(half);
	} else {
		MUST(status_message()[0] != '\0');
	}
	unlink(prefix);
	unlink(suffix);
}

/* What was accepted can be read again; nothing else is made of it. */
static void look_training(const artifact *a)
{
	training x;
	artifact *loss, *part;
	artifact_range *ranges = ranges_of(a);
	MUST(training_read(a->training, &x) == CLV_OK);
	training_free(&x);
	MUST(training_loss(a, &loss) == CLV_OK);
	list(loss);
	artifact_free(loss);
	MUST(artifact_take(a, a->part, ranges, &part) == CLV_E_UNSUPPORTED);
	mem_free(ranges);
}

static void look(const void *data, size_t n)
{
	artifact *a;
	if (clv_artifact_parse(data, n, NULL, &a) != CLV_OK) {
		MUST(status_message()[0] != '\0');
		return;
	}
	list(a);
	if (clv_artifact_training(a)) {
		look_training(a);
	} else if (fill(a) < LARGE) {
		check_round_trip(a);
		check_copy(a);
		take_nodes(a);
		cut(a);
	}
	artifact_free(a);
}

static void put_check(uint8_t *data, size_t n)
{
	uint64_t length;
	if (n <= sizeof length)
		return;
	memcpy(&length, data, sizeof length);
	if (length <= n - sizeof length)
		(void)artifact_put_check((char *)data, sizeof length + (size_t)length);
}

/* With the key that signed the seeds, the first one of RFC 8032. */
static void look_trusted(const void *data, size_t n)
{
	static const char *const keys[] = {"-----BEGIN PUBLIC KEY-----\n"
	                                   "MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n"
	                                   "-----END PUBLIC KEY-----\n"};
	clv_open_options o = CLV_OPEN_OPTIONS_INIT;
	artifact *a;
	if (!signature_is_there(data, n))
		return;
	o.trusted_keys = keys;
	o.ntrusted_keys = 1;
	if (clv_artifact_parse(data, n, &o, &a) == CLV_OK) {
		MUST(clv_artifact_signature_verified(a));
		artifact_free(a);
	} else {
		MUST(status_message()[0] != '\0');
	}
}

static void look_checked(const void *data, size_t n)
{
	uint8_t *copy = aligned_copy(data, n);
	look(copy, n);
	put_check(copy, n);
	look(copy, n);
	look_trusted(copy, n);
	free(copy);
}

enum { TEXTS = 8 };

static bool speaks_of(const st_text *texts, uint32_t n, const char *quoted)
{
	for (uint32_t i = 0; i < n; i++)
		if ((strcmp(texts[i].key, PAYLOAD_KEY) == 0 || strcmp(texts[i].key, ARTIFACT_SEGMENTS_KEY) == 0) &&
		    memmem(texts[i].text, texts[i].n, quoted, strlen(quoted)))
			return true;
	return false;
}

/* A file with those of these entries that the texts about tensors and segments speak of. */
static void look_at_texts(const uint8_t *data, size_t n)
{
	static const uint8_t numbers[64] = {1, 0, 1, 1, 0x80, 0x3f, 0, 0xff};
	static const int64_t shapes[][2] = {{4, 4}, {4}, {16}, {2, 3}};
	static const struct {
		const char *quoted;
		st_entry entry;
	} all[] = {
		{"\"a\"", {"a", DT_F32, 2, shapes[0], numbers, 64}},
		{"\"b\"", {"b", DT_F32, 1, shapes[1], numbers, 16}},
		{"\"c\"", {"c", DT_F32, 0, shapes[1], numbers, 4}},
		{"\"d\"", {"d", DT_U8, 1, shapes[2], numbers, 16}},
		{"\"e\"", {"e", DT_BF16, 2, shapes[3], numbers, 12}},
		{"\"so\"", {"cleave.segment.0.0.so", DT_U8, 1, shapes[2], numbers, 16}},
		{"\"bin\"", {"cleave.segment.0.1.bin", DT_U8, 1, shapes[2], numbers, 16}},
	};
	st_entry entries[sizeof all / sizeof *all];
	st_text texts[TEXTS + 1] = {{ARTIFACT_CHECK_KEY, ARTIFACT_NO_CHECK, sizeof ARTIFACT_NO_CHECK - 1}};
	uint32_t count = 0;
	st_image image;
	strbuf file = STRBUF_INIT;
	char *copy = mem_strdup((const char *)data, n);
	MUST(copy);
	uint32_t ntexts = cut_texts(copy, n, texts + 1, TEXTS) + 1;
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (speaks_of(texts, ntexts, all[i].quoted))
			entries[count++] = all[i].entry;
	for (uint32_t i = 0; i < ntexts; i++)
		if (!utf8_valid(texts[i].key, strlen(texts[i].key)))
			ntexts = 0;
	if (ntexts && st_layout_mapped(entries, count, texts, ntexts, &image) == CLV_OK) { /* or a text is no UTF-8 */
		MUST(st_append(&image, &file) == CLV_OK);
		look_checked(file.at, file.n);
		st_image_free(&image);
	}
	strbuf_free(&file);
	mem_free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size && data[0] == 'M')
		look_at_texts(data + 1, size - 1);
	else
		look_checked(data, size);
	return 0;
}
