/* What writer and reader of artifacts agree on: keys of the metadata, and the place of the header's check. */
#ifndef FILE_ARTIFACT_KEYS_H
#define FILE_ARTIFACT_KEYS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"

#define ARTIFACT_KEY "cleave.artifact"
#define ARTIFACT_PLAN_KEY "cleave.plan." /* and the number of the plan */
#define ARTIFACT_CHECK_KEY "cleave.check"
#define ARTIFACT_NO_CHECK "00000000000000000000000000000000"

#define PLAN_KEY 32 /* bytes of a plan's key */
static inline void plan_key(uint32_t number, char out[PLAN_KEY])
{
	snprintf(out, PLAN_KEY, ARTIFACT_PLAN_KEY "%u", number);
}

/* Where the digits of the check stand in a header; NULL: nowhere. No name or text of a header can look like this: quotes
   in them are escaped. */
static inline char *check_place(char *head, size_t n)
{
	static const char before[] = "\"" ARTIFACT_CHECK_KEY "\":\"";
	size_t skip = sizeof before - 1, digits = sizeof ARTIFACT_NO_CHECK - 1;
	for (char *at = head, *end = head + n; at; at++) {
		at = memchr(at, '"', (size_t)(end - at));
		if (!at || (size_t)(end - at) < skip + digits + 1)
			return NULL;
		if (memcmp(at, before, skip) == 0 && at[skip + digits] == '"')
			return at + skip;
	}
	return NULL;
}

/* Puts the check of a header, with the length before it, into its place. */
clv_status artifact_put_check(char *head, size_t n);

#endif
