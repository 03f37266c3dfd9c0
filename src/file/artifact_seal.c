/* The seal of a file: whether this user saved it, and as it is.
 *
 * It stands in the header as 80 digits: the seal (seal.c) over the rest of the header, and 16 digits by which its owner
 * recognizes a seal of their own even if the header was changed since. Zeros: there is none. It covers plans, description and
 * the names, types, places and digests of all tensors; not the data, which nobody reads when a file is opened. A signature
 * that is put in later (signature.c) leaves it valid, since it stands outside. */
#include <string.h>

#include "file/artifact.h"
#include "file/artifact_keys.h"
#include "file/signature.h"

static const char domain[] = "cleave file seal 1";   /* with its NUL */
static const char owner_domain[] = "cleave owner 1"; /* likewise */

enum { LENGTH = 8, CHECK_DIGITS = sizeof ARTIFACT_NO_CHECK - 1, MAC_DIGITS = SEAL_TEXT - 1, OWNER_DIGITS = 16 };
_Static_assert(MAC_DIGITS + OWNER_DIGITS == sizeof ARTIFACT_NO_SEAL - 1, "a seal and the mark of its owner");

/* The length of the header, as it is without a signature. */
static void put_length(size_t n, uint8_t out[LENGTH])
{
	for (int i = 0; i < LENGTH; i++)
		out[i] = (uint8_t)((uint64_t)n >> 8 * i);
}

/* The header without the digits of check and seal, and without a signature. False: no key, or they stand there otherwise than
   they are written. */
static bool seal_header(bool make, const char *head, size_t n, const char *digits, char out[SEAL_TEXT])
{
	uint8_t length[LENGTH];
	const char *check = check_place((char *)head, n), *rest = digits + sizeof ARTIFACT_NO_SEAL - 1;
	size_t extra = signature_is_there(head, n) ? SIGNATURE_BLOCK : 0;
	const char *quote = check ? check + CHECK_DIGITS : NULL, *from = quote ? quote + 1 + extra : NULL;
	out[0] = '\0';
	if (!check || digits < from)
		return false;
	put_length(n - LENGTH - extra, length);
	seal_piece pieces[] = {{domain, sizeof domain},
	                       {length, sizeof length},
	                       {head + LENGTH, (size_t)(check - head) - LENGTH},
	                       {quote, 1},
	                       {from, (size_t)(digits - from)},
	                       {rest, n - (size_t)(rest - head)}};
	return seal_compute(make, pieces, sizeof pieces / sizeof *pieces, out);
}

/* Says whose key made a seal, and nothing to anybody else. */
static bool mark_owner(const char *seal, char out[SEAL_TEXT])
{
	seal_piece pieces[] = {{owner_domain, sizeof owner_domain}, {seal, MAC_DIGITS}};
	return seal_compute(false, pieces, 2, out);
}

void artifact_put_seal(char *head, size_t n)
{
	char seal[SEAL_TEXT], owner[SEAL_TEXT], *digits = seal_place(head, n);
	if (!digits || !seal_header(true, head, n, digits, seal) || !mark_owner(seal, owner))
		return;
	memcpy(digits, seal, MAC_DIGITS);
	memcpy(digits + MAC_DIGITS, owner, OWNER_DIGITS);
}

vouching artifact_check_seal(const char *head, size_t n)
{
	char seal[SEAL_TEXT], owner[SEAL_TEXT];
	const char *digits = seal_place((char *)head, n);
	if (!digits || memcmp(digits, ARTIFACT_NO_SEAL, sizeof ARTIFACT_NO_SEAL - 1) == 0)
		return UNVOUCHED_NO_SEAL;
	if (!mark_owner(digits, owner))
		return UNVOUCHED_NO_KEY;
	if (!seal_same(owner, digits + MAC_DIGITS, OWNER_DIGITS))
		return UNVOUCHED_OTHER;
	return seal_header(false, head, n, digits, seal) && seal_same(seal, digits, MAC_DIGITS) ? VOUCHED_SAVED
	                                                                                        : UNVOUCHED_CHANGED;
}

const char *artifact_unvouched(const artifact *a)
{
	switch (a->vouching) {
	case UNVOUCHED_NO_SEAL: return "it has no seal";
	case UNVOUCHED_NO_KEY:
		return "another user saved it, or the key of its seal is not here (no state folder, or an unsafe one)";
	case UNVOUCHED_OTHER: return "another user saved it, or this one on another machine";
	case UNVOUCHED_CHANGED: return "it was changed after it was saved";
	default: return NULL;
	}
}

clv_status fail_unvouched(const artifact *a, clv_status st)
{
	char *what = mem_strdup(status_message(), strlen(status_message()));
	TRY_MEM(what);
	st = fail(
		st,
		"nobody vouches for this file (%s), %s; if you trust it, turn the sandbox off (sandbox=False, --no-sandbox, "
		"CLV_SANDBOX_OFF), or have it signed (cleave sign) and name the key (trusted_keys)",
		artifact_unvouched(a), what);
	mem_free(what);
	return st;
}
