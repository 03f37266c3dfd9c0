/* Seals: a user's mark on files and compiled code of their own. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SEAL_TEXT 65 /* hexadecimal digits and a NUL */

typedef struct seal_piece {
	const void *at;
	size_t n;
} seal_piece;

/* The seal of the pieces, one after another, under the user's key. False, and "": there is no key, or no way to compute it.
   make: a key is made where there is none. */
bool seal_compute(bool make, const seal_piece *pieces, uint32_t n, char out[SEAL_TEXT]);
bool seal_same(const char *a, const char *b, size_t n); /* in a time that tells nothing */
