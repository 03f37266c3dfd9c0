/* The format that the writer and the reader of artifacts share: keys of the metadata, the place of the header's check. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"

#define ARTIFACT_KEY "cleave.artifact"
#define ARTIFACT_PLAN_KEY "cleave.plan." /* and the number of the plan */
#define ARTIFACT_CHECK_KEY "cleave.check"
#define ARTIFACT_NO_CHECK "00000000000000000000000000000000"
#define ARTIFACT_SEAL_KEY "cleave.seal"
#define ARTIFACT_NO_SEAL ARTIFACT_NO_CHECK ARTIFACT_NO_CHECK "0000000000000000"

#define PLAN_KEY 32 /* bytes of a plan's key */
static inline void plan_key(uint32_t number, char out[PLAN_KEY])
{
	snprintf(out, PLAN_KEY, ARTIFACT_PLAN_KEY "%u", number);
}

/* Where so many digits stand in a header behind `before`; NULL: nowhere. No name or text of a header can look like this: quotes
   in them are escaped. */
static inline char *digits_place(char *head, size_t n, const char *before, size_t digits)
{
	size_t skip = strlen(before);
	for (char *at = head, *end = head + n; at; at++) {
		at = memchr(at, '"', (size_t)(end - at));
		if (!at || (size_t)(end - at) < skip + digits + 1)
			return NULL;
		if (memcmp(at, before, skip) == 0 && at[skip + digits] == '"')
			return at + skip;
	}
	return NULL;
}

static inline char *check_place(char *head, size_t n)
{
	return digits_place(head, n, "\"" ARTIFACT_CHECK_KEY "\":\"", sizeof ARTIFACT_NO_CHECK - 1);
}

static inline char *seal_place(char *head, size_t n)
{
	return digits_place(head, n, "\"" ARTIFACT_SEAL_KEY "\":\"", sizeof ARTIFACT_NO_SEAL - 1);
}

/* Puts the check of a header, with the length before it, into its place. */
clv_status artifact_put_check(char *head, size_t n);
