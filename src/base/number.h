/* Doubles as text, the same whatever locale the program has set. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define NUMBER_TEXT 40 /* bytes that number_print needs */

/* Shortest text that reads back to the same double; has one of . e inf nan, so it never looks like an integer. */
void number_print(double v, char out[NUMBER_TEXT]);

/* Reads [-]digits[.digits][e[+-]digits] (the whole of s, which is NUL-terminated); false if it is not that, or
   too large for a double. */
bool number_parse(const char *s, double *out);

void numbers_sort(double *at, size_t n); /* ascending */

int uint32_order(const void *a, const void *b); /* for qsort and bsearch */
