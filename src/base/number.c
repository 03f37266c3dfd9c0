/* Doubles as text. printf and strtod use the decimal point of the locale, which a host program may have changed;
 * both ways it is put right here. */
#include "base/number.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* What printf of this locale writes for the point: everything between the digits of "0.5". */
static size_t locale_point(char *out, size_t size)
{
	char half[24];
	int n = snprintf(half, sizeof half, "%.1f", 0.5);
	if (n < 3 || (size_t)n - 2 >= size)
		return 0;
	memcpy(out, half + 1, (size_t)n - 2);
	return (size_t)n - 2;
}

/* Digits, sign and exponent stay; whatever else printf wrote is the point. */
static void fix_point(char *s)
{
	char *to = s;
	for (const char *from = s; *from;) {
		size_t keep = strspn(from, "0123456789+-e");
		memmove(to, from, keep);
		to += keep;
		from += keep;
		size_t point = strcspn(from, "0123456789+-e");
		if (point)
			*to++ = '.';
		from += point;
	}
	*to = '\0';
}

static bool reads_back(const char *s, double v)
{
	return strtod(s, NULL) == v; /* before fix_point: in the same locale */
}

/* A normal double that any 15 digits name is named by its %.15g; a subnormal may need fewer. */
static void shortest(double v, char *out)
{
	int from = fabs(v) < DBL_MIN ? 1 : 15;
	for (int digits = from; digits <= 17; digits++) {
		snprintf(out, NUMBER_TEXT, "%.*g", digits, v);
		if (reads_back(out, v))
			break;
	}
	fix_point(out);
}

void number_print(double v, char out[NUMBER_TEXT])
{
	if (isnan(v)) {
		memcpy(out, "nan", 4);
	} else if (isinf(v)) {
		memcpy(out, v < 0 ? "-inf" : "inf", v < 0 ? 5 : 4);
	} else {
		shortest(v, out);
		if (!strpbrk(out, ".e"))
			memcpy(out + strlen(out), ".0", 3);
	}
}

static bool is_decimal(const char *s)
{
	static const char digits[] = "0123456789";
	s += *s == '-';
	size_t n = strspn(s, digits);
	s += n;
	if (n == 0)
		return false;
	if (*s == '.')
		s += 1 + strspn(s + 1, digits);
	if (*s == 'e' || *s == 'E') {
		s++;
		s += *s == '+' || *s == '-';
		n = strspn(s, digits);
		s += n;
		if (n == 0)
			return false;
	}
	return *s == '\0';
}

/* Only reached when the locale's point is no '.'. */
static bool parse_in_locale(const char *s, double *out)
{
	char point[16];
	size_t point_n = locale_point(point, sizeof point), head = strcspn(s, "."), n = strlen(s);
	char *text = mem_alloc(n + point_n + 1);
	if (!text)
		return false;
	memcpy(text, s, head);
	memcpy(text + head, point, point_n);
	memcpy(text + head + point_n, s + head + 1, n - head);
	char *end;
	*out = strtod(text, &end);
	bool whole = *end == '\0';
	mem_free(text);
	return whole;
}

bool number_parse(const char *s, double *out)
{
	if (!is_decimal(s))
		return false;
	char *end;
	double v = strtod(s, &end);
	if (*end && (*end != '.' || !parse_in_locale(s, &v)))
		return false;
	if (isinf(v))
		return false;
	*out = v;
	return true;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

void numbers_sort(double *at, size_t n)
{
	qsort(at, n, sizeof *at, by_size);
}

int uint32_order(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return (x > y) - (x < y);
}
