/* Text for people: amounts with units, and cells as aligned columns. */
#include "base/human.h"

#include <string.h>

#define UNITS 7

/* One decimal, by hand: printf's point depends on the locale. */
static void print_scaled(strbuf *b, int64_t n, const char *const units[UNITS])
{
	double v = n < 0 ? -(double)n : (double)n;
	unsigned unit = 0;
	for (; v >= 999.95 && unit < UNITS - 1; unit++)
		v /= 1000;
	long tenths = (long)(v * 10 + 0.5);
	strbuf_printf(b, "%s%ld.%ld%s", n < 0 ? "-" : "", tenths / 10, tenths % 10, units[unit]);
}

void strbuf_bytes(strbuf *b, int64_t bytes)
{
	static const char *const units[UNITS] = {" bytes", " kB", " MB", " GB", " TB", " PB", " EB"};
	if (bytes > -1000 && bytes < 1000)
		strbuf_printf(b, "%lld byte%s", (long long)bytes, bytes == 1 ? "" : "s");
	else
		print_scaled(b, bytes, units);
}

void strbuf_count(strbuf *b, int64_t n)
{
	static const char *const units[UNITS] = {"", "K", "M", "G", "T", "P", "E"};
	if (n > -1000 && n < 1000)
		strbuf_int(b, n);
	else
		print_scaled(b, n, units);
}

/* ---- columns --------------------------------------------------------------------------------------------------------- */

/* Characters of a UTF-8 text: bytes that continue none. */
static size_t characters(const char *s)
{
	size_t n = 0;
	for (; *s; s++)
		n += ((unsigned char)*s & 0xC0) != 0x80;
	return n;
}

void strbuf_plain(strbuf *b, const char *s)
{
	for (size_t left = strlen(s), n; left; s += n, left -= n) {
		bool control = (unsigned char)*s < 0x20 || *s == 0x7F || utf8_control(s, left);
		size_t length = utf8_length(s, left);
		n = length ? length : 1;
		if (control || !length)
			strbuf_putc(b, '?');
		else
			strbuf_add(b, s, n);
	}
}

static void put_spaces(strbuf *b, size_t n)
{
	while (n--)
		strbuf_putc(b, ' ');
}

static void put_row(strbuf *b, const char *const *cells, uint32_t columns, const size_t *widths, const bool *right)
{
	uint32_t last = columns; /* no spaces after the last cell with text */
	while (last && !*cells[last - 1])
		last--;
	for (uint32_t i = 0; i < last; i++) {
		size_t space = widths[i] - characters(cells[i]);
		put_spaces(b, right[i] ? space : 0);
		strbuf_plain(b, cells[i]);
		if (i + 1 < last)
			put_spaces(b, (right[i] ? 0 : space) + 2);
	}
	strbuf_putc(b, '\n');
}

void strbuf_columns(strbuf *b, const char *const *cells, uint32_t rows, uint32_t columns, const bool *right)
{
	size_t *widths = mem_alloc(columns * sizeof *widths);
	if (!widths) {
		b->failed = true;
		return;
	}
	for (size_t i = 0; i < (size_t)rows * columns; i++) {
		size_t n = characters(cells[i]);
		if (n > widths[i % columns])
			widths[i % columns] = n;
	}
	for (uint32_t r = 0; r < rows; r++)
		put_row(b, cells + (size_t)r * columns, columns, widths, right);
	mem_free(widths);
}
