/* Compresses elements without loss, by zstd.
 * Lossless: the first bytes of all elements, then the second ones, and so on, through zstd. Signs and exponents of
 * neighbours are alike, and the digits behind them are not: apart from each other they compress, mixed they do not. */
#include <string.h>

#include "file/narrow.h"

#ifndef CLEAVE_ZSTD

static clv_status no_zstd(void)
{
	return fail(CLV_E_UNSUPPORTED, "this build of Cleave is without zstd: install it (on Debian: apt-get install "
	                               "libzstd-dev) and build again");
}

clv_status shuffle_pack(const void *src, size_t count, size_t item, void **out, size_t *n)
{
	(void)src, (void)count, (void)item, (void)out, (void)n;
	return no_zstd();
}

clv_status shuffle_check(const void *data, size_t n, size_t want)
{
	(void)data, (void)n, (void)want;
	return no_zstd();
}

clv_status shuffle_unpack(const void *data, size_t n, size_t count, size_t item, void *dst)
{
	(void)data, (void)n, (void)count, (void)item, (void)dst;
	return no_zstd();
}

#else

#include <zstd.h>
#include <zstd_errors.h>

enum { LEVEL = 1, TILE = 1024 }; /* higher levels take much longer for a few percent */

/* A tile at a time, so that what is read and written stays near. */
static void shuffle(const uint8_t *from, size_t count, size_t item, uint8_t *to)
{
	for (size_t i = 0; i < count; i += TILE) {
		size_t n = count - i < TILE ? count - i : TILE;
		for (size_t b = 0; b < item; b++)
			for (size_t k = 0; k < n; k++)
				to[b * count + i + k] = from[(i + k) * item + b];
	}
}

static void unshuffle(const uint8_t *from, size_t count, size_t item, uint8_t *to)
{
	for (size_t i = 0; i < count; i += TILE) {
		size_t n = count - i < TILE ? count - i : TILE;
		for (size_t b = 0; b < item; b++)
			for (size_t k = 0; k < n; k++)
				to[(i + k) * item + b] = from[b * count + i + k];
	}
}

static clv_status fail_zstd(size_t code)
{
	if (ZSTD_getErrorCode(code) == ZSTD_error_memory_allocation)
		return fail_nomem();
	return fail(CLV_E_PARSE, "its zstd data is damaged: %s", ZSTD_getErrorName(code));
}

clv_status shuffle_pack(const void *src, size_t count, size_t item, void **out, size_t *n)
{
	size_t raw = count * item;
	uint8_t *room = mem_realloc(NULL, raw, 2); /* one half shuffled, one for what is smaller than that */
	TRY_MEM(room);
	shuffle(src, count, item, room);
	size_t got = ZSTD_compress(room + raw, raw, room, raw, LEVEL);
	*n = 0;
	*out = NULL;
	clv_status st = CLV_OK;
	if (!ZSTD_isError(got) && got < raw) {
		*out = mem_realloc(NULL, got, 1);
		if (*out)
			memcpy(*out, room + raw, *n = got);
		else
			st = fail_nomem();
	} else if (ZSTD_isError(got) && ZSTD_getErrorCode(got) != ZSTD_error_dstSize_tooSmall) {
		st = fail_zstd(got);
	}
	mem_free(room);
	return st;
}

clv_status shuffle_check(const void *data, size_t n, size_t want)
{
	unsigned long long says = ZSTD_getFrameContentSize(data, n);
	size_t frame = ZSTD_findFrameCompressedSize(data, n);
	if (ZSTD_isError(frame) || frame != n || says != want)
		return fail(CLV_E_PARSE, "its zstd data is not one frame of %zu bytes", want);
	return CLV_OK;
}

clv_status shuffle_unpack(const void *data, size_t n, size_t count, size_t item, void *dst)
{
	size_t raw = count * item;
	uint8_t *room = mem_realloc(NULL, raw, 1);
	TRY_MEM(room);
	size_t got = ZSTD_decompress(room, raw, data, n);
	clv_status st = CLV_OK;
	if (ZSTD_isError(got))
		st = fail_zstd(got);
	else if (got != raw)
		st = fail(CLV_E_PARSE, "its zstd data gives %zu bytes instead of %zu", got, raw);
	else
		unshuffle(room, count, item, dst);
	mem_free(room);
	return st;
}

#endif
