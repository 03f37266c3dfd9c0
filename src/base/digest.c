/* XXH3 of xxHash, compiled in from its header. */
#include "base/digest.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL
#define XXH_NO_XXH32
#include <xxhash.h>

static digest from_xxh(XXH128_hash_t h)
{
	return (digest){h.high64, h.low64};
}

digest digest_of(const void *at, size_t n)
{
	return from_xxh(XXH3_128bits(n ? at : "", n));
}

digest digest_of_three(const void *a, size_t na, const void *b, size_t nb, const void *c, size_t nc)
{
	XXH3_state_t state;
	XXH3_128bits_reset(&state);
	XXH3_128bits_update(&state, a, na);
	XXH3_128bits_update(&state, b, nb);
	XXH3_128bits_update(&state, c, nc);
	return from_xxh(XXH3_128bits_digest(&state));
}

void digest_print(digest d, char out[DIGEST_TEXT])
{
	snprintf(out, DIGEST_TEXT, "%016" PRIx64 "%016" PRIx64, d.high, d.low);
}

void hex_print(const void *bytes, size_t n, char *out)
{
	const uint8_t *from = bytes;
	for (size_t i = 0; i < n; i++) {
		out[2 * i] = "0123456789abcdef"[from[i] >> 4];
		out[2 * i + 1] = "0123456789abcdef"[from[i] & 15];
	}
}

int hex_digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int hex_digit_any(char c)
{
	return hex_digit(c >= 'A' && c <= 'F' ? (char)(c + 'a' - 'A') : c);
}

bool hex_parse(const char *from, uint8_t *to, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		int high = hex_digit(from[2 * i]), low = high < 0 ? -1 : hex_digit(from[2 * i + 1]);
		if (low < 0)
			return false;
		to[i] = (uint8_t)(high << 4 | low);
	}
	return true;
}

bool digest_equal(digest a, digest b)
{
	return a.high == b.high && a.low == b.low;
}

bool digest_parse(const char *text, digest *out)
{
	uint64_t half[2] = {0, 0};
	if (strlen(text) != DIGEST_TEXT - 1 || strspn(text, "0123456789abcdef") != DIGEST_TEXT - 1)
		return false;
	for (int i = 0; i < DIGEST_TEXT - 1; i++)
		half[i / 16] = half[i / 16] << 4 | (uint64_t)hex_digit(text[i]);
	*out = (digest){half[0], half[1]};
	return true;
}
