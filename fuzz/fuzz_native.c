/* Fuzz target: plans of strangers on the native engine. Threads change no bit, nor do packed weights of the file. */
#define _GNU_SOURCE /* memmem */
#include "run_plan.h"

#include <unistd.h>

#include "file/safetensors.h"
#include "must.h"

static void check_same(const results *a, const results *b)
{
	MUST(a->n == b->n);
	for (uint32_t i = 0; i < a->n; i++) {
		int64_t n = clv_tensor_bytes(a->at[i]);
		if (n > 1 << 20)
			continue;
		char *x = malloc((size_t)n + 1), *y = malloc((size_t)n + 1);
		MUST(x && y && clv_tensor_bytes(b->at[i]) == n);
		MUST(clv_tensor_copy_to(a->at[i], x, (size_t)n) == CLV_OK &&
		     clv_tensor_copy_to(b->at[i], y, (size_t)n) == CLV_OK);
		MUST(memcmp(x, y, (size_t)n) == 0);
		free(x);
		free(y);
	}
}

/* Limits of time and memory may end one run and not the other. */
static void run_too(const void *file, size_t n, int threads, const results *want)
{
	results r;
	if (open_and_run(file, n, "native", threads, &r) == CLV_OK)
		check_same(want, &r);
	drop_results(&r);
}

static void run_packed(const strbuf *file, const results *want)
{
	clv_packing_options o = CLV_PACKING_OPTIONS_INIT;
	uint8_t *bytes = aligned_copy(file->at, file->n), *packed;
	clv_artifact *a = NULL;
	char path[64];
	size_t n;
	o.sandbox = CLV_SANDBOX_OFF;
	snprintf(path, sizeof path, "/tmp/cleave-fuzz-%ld.clv", (long)getpid());
	if (clv_artifact_parse(bytes, file->n, NULL, &a) == CLV_OK && clv_artifact_pack(a, &o, path) == CLV_OK) {
		MUST(file_read(path, &packed, &n) == CLV_OK);
		run_too(packed, n, 1, want);
		mem_free(packed);
		unlink(path);
	}
	clv_artifact_free(a);
	free(bytes);
}

static void check_file(const strbuf *file)
{
	results r;
	if (open_and_run(file->at, file->n, "native", 1, &r) == CLV_OK) {
		run_too(file->at, file->n, 3, &r);
		run_packed(file, &r);
	}
	drop_results(&r);
}
