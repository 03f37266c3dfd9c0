/* Digests: 128 bits that tell whether bytes are still the same. They guard against accidents, not against forgery. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct digest {
	uint64_t high, low;
} digest;

#define DIGEST_TEXT 33 /* 32 hexadecimal digits and a NUL */

digest digest_of(const void *at, size_t n);
/* Of several pieces as if they were one. */
digest digest_of_three(const void *a, size_t na, const void *b, size_t nb, const void *c, size_t nc);
bool digest_equal(digest a, digest b);
void digest_print(digest d, char out[DIGEST_TEXT]);
void hex_print(const void *bytes, size_t n, char *out);  /* 2 n digits, and no NUL */
int hex_digit(char c);                                   /* of 0 to 9, a to f; -1: it is none */
int hex_digit_any(char c);                               /* also of A to F */
bool hex_parse(const char *from, uint8_t *to, size_t n); /* 2 n digits, small ones; false: others are among them */
bool digest_parse(const char *text, digest *out);        /* what digest_print wrote, and nothing else */
