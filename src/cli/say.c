/* Messages for people: errors, hints, colours, units, progress.
 * All but colours go to standard error. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

settings global;

static char *complaint; /* the last one */
static bool hinted;     /* a hint came after it: one is enough */

/* Terminals also obey U+0080 to U+009F. */
static bool is_c1(const char *s)
{
	return (unsigned char)s[0] == 0xC2 && ((unsigned char)s[1] & 0xE0) == 0x80;
}

void put_plain(FILE *to, const char *s)
{
	for (; *s; s += 1 + is_c1(s))
		fputc((unsigned char)*s < 0x20 || *s == 0x7F || is_c1(s) ? '?' : *s, to);
}

static bool has_colors(FILE *to)
{
	if (global.color && strcmp(global.color, "auto"))
		return !strcmp(global.color, "always");
	const char *none = getenv("NO_COLOR"), *term = getenv("TERM");
	return isatty(fileno(to)) && !(none && *none) && !(term && !strcmp(term, "dumb"));
}

const char *paint(FILE *to, style s)
{
	static const char *const codes[] = {"\033[0m", "\033[1m", "\033[2m", "\033[31m", "\033[32m", "\033[33m"};
	return has_colors(to) ? codes[s] : "";
}

static void say(style s, const char *prefix, const char *fmt, va_list ap)
{
	va_list again;
	va_copy(again, ap);
	int n = vsnprintf(NULL, 0, fmt, again);
	va_end(again);
	char *text = n < 0 ? NULL : malloc((size_t)n + 1); /* not grab, which complains */
	if (text)
		vsnprintf(text, (size_t)n + 1, fmt, ap);
	fflush(stdout);
	fprintf(stderr, "%s%s%s", s ? paint(stderr, s) : "", prefix, s ? paint(stderr, STYLE_NONE) : "");
	put_plain(stderr, text ? text : fmt);
	fputc('\n', stderr);
	if (s == STYLE_RED) {
		free(complaint);
		complaint = text;
	} else {
		free(text);
	}
}

const char *last_complaint(void)
{
	return complaint;
}

void complain(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	say(STYLE_RED, "cleave: ", fmt, ap);
	hinted = false;
	va_end(ap);
}

void hint(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	if (!global.quiet && !hinted)
		say(STYLE_YELLOW, "hint: ", fmt, ap);
	hinted = true;
	va_end(ap);
}

void note(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	if (!global.quiet)
		say(STYLE_NONE, "", fmt, ap);
	va_end(ap);
}

int fail_with(const char *path)
{
	if (path)
		complain("%s: %s", name_of(path), clv_last_error());
	else
		complain("%s", clv_last_error());
	return EXIT_FAILED;
}

/* As the library writes them in its pages. */
static const char *print_thousands(int64_t n, const char *const units[7], char *out)
{
	double v = (double)n;
	unsigned unit = 0;
	for (; v >= 999.95 && unit < 6; unit++)
		v /= 1000;
	snprintf(out, HUMAN_TEXT, "%.1f%s", v, units[unit]);
	return out;
}

const char *human_bytes(int64_t n, char out[HUMAN_TEXT])
{
	static const char *const units[7] = {" bytes", " kB", " MB", " GB", " TB", " PB", " EB"};
	if (n >= 1000)
		return print_thousands(n, units, out);
	snprintf(out, HUMAN_TEXT, n == 1 ? "%lld byte" : "%lld bytes", (long long)n);
	return out;
}

const char *human_count(int64_t n, char out[HUMAN_TEXT])
{
	static const char *const units[7] = {"", "K", "M", "G", "T", "P", "E"};
	if (n >= 1000)
		return print_thousands(n, units, out);
	snprintf(out, HUMAN_TEXT, "%lld", (long long)n);
	return out;
}

/* Three digits that count: 1.25, 12.5, 125. */
const char *human_seconds(double s, char out[HUMAN_TEXT])
{
	static const char *const units[] = {"s", "ms", "us", "ns"};
	unsigned unit = 0;
	for (; s < 0.9995 && s > 0 && unit < 3; unit++)
		s *= 1000;
	snprintf(out, HUMAN_TEXT, "%.*f %s", s < 9.995 ? 2 : s < 99.95 ? 1 : 0, s, units[unit]);
	return out;
}

double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

progress progress_start(const char *what)
{
	return (progress){.what = what, .started = now()};
}

void progress_step(progress *p, uint64_t done, uint64_t total)
{
	enum { WIDTH = 30 };
	double t = now();
	if (global.quiet || !isatty(STDERR_FILENO) || t - p->started < 1 || t - p->drawn < 0.1 || total == 0)
		return;
	p->drawn = t;
	p->shown = true;
	double share = done < total ? (double)done / (double)total : 1;
	int full = (int)(share * WIDTH);
	char left[HUMAN_TEXT] = "?";
	if (done)
		human_seconds((t - p->started) * (1 - share) / share, left);
	fprintf(stderr, "\r%s [%.*s%*s] %3.0f %%, %s left \033[K", p->what, full, "##############################",
	        WIDTH - full, "", share * 100, left);
	fflush(stderr);
}

void progress_end(progress *p)
{
	if (p->shown)
		fputs("\r\033[K", stderr);
	p->shown = false;
}
