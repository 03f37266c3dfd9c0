/* Text for people: amounts with units, and cells as aligned columns. The same whatever the locale. */
#pragma once

#include "base/strbuf.h"

void strbuf_bytes(strbuf *b, int64_t bytes); /* 812 bytes, 46.8 MB: steps of 1000 */
void strbuf_count(strbuf *b, int64_t n);     /* 812, 74.0K, 11.7M */
void strbuf_plain(
	strbuf *b,
	const char *s); /* control characters, and bytes that are no UTF-8, become "?": no text may steer a terminal */

/* Rows of `columns` cells each, one line per row, columns two spaces apart and as wide as their widest cell, counted in
   characters. right[i]: column i is flush right. Cells are written plain. */
void strbuf_columns(strbuf *b, const char *const *cells, uint32_t rows, uint32_t columns, const bool *right);
