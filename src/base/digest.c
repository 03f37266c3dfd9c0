/* XXH3 of xxHash, compiled in from its header. */
#include "base/digest.h"

#include <inttypes.h>
#include <stdio.h>

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
