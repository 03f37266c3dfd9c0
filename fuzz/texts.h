/* What fuzz targets share: bytes that are several texts, each after a line "=== <key>", so that the fuzzer need not learn
 * lengths and quoting first. */
#pragma once

#include <string.h>

#include "file/safetensors.h"
#include "must.h"

/* Cuts "=== key\n…" pieces; how many. Keys and texts point into s, which is changed. */
static inline uint32_t cut_texts(char *s, size_t n, st_text *out, uint32_t most)
{
	static const char mark[] = "=== ";
	uint32_t count = 0;
	char *at = memmem(s, n, mark, sizeof mark - 1), *end = s + n;
	while (at && count < most) {
		char *key = at + sizeof mark - 1, *line = memchr(key, '\n', (size_t)(end - key));
		if (!line)
			break;
		*line++ = '\0';
		at = memmem(line, (size_t)(end - line), mark, sizeof mark - 1);
		out[count++] = (st_text){key, line, (size_t)((at ? at : end) - line)};
	}
	return count;
}

/* In a block of exactly their size, which starts where a mapped file would; caller frees. */
static inline uint8_t *aligned_copy(const void *data, size_t n)
{
	void *at = NULL;
	MUST(posix_memalign(&at, ST_MAPPED_ALIGN, n ? n : 1) == 0);
	if (n)
		memcpy(at, data, n);
	return at;
}
