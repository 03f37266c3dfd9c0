/* The thread's error slot.
 *
 * One message per thread, replaced by each failure and grown by fail_more(). The text is allocated, so that a
 * message can be as long as it needs to be; when even that fails the meaning of the status code stands in. */
#include "base/status.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

typedef struct slot {
	clv_status code;
	char *text; /* owned; NULL: status_meaning(code) */
	clv_error_details details;
} slot;

static _Thread_local slot this_slot;

/* The only process-wide state: the key whose destructor releases a thread's text when the thread ends. */
static pthread_key_t exit_key;
static pthread_once_t exit_once = PTHREAD_ONCE_INIT;
static bool exit_key_made;

static void slot_release(void *at)
{
	slot *s = at;
	mem_free(s->text);
	s->text = NULL;
}

static void make_exit_key(void)
{
	exit_key_made = pthread_key_create(&exit_key, slot_release) == 0;
}

/* Without this a thread that ends after dlclose() would call a destructor that is no longer there. */
__attribute__((destructor)) static void drop_exit_key(void)
{
	if (exit_key_made)
		pthread_key_delete(exit_key);
	exit_key_made = false;
	slot_release(&this_slot);
}

/* Messages have names from files in them, and end up on terminals. */
static void clean_message(char *text)
{
	for (char *s = text; s && *s; s++) {
		unsigned char c = (unsigned char)*s;
		if ((c < ' ' && c != '\n' && c != '\t') || c == 0x7F)
			*s = '?';
		else if (c == 0xC2 && (unsigned char)s[1] >= 0x80 && (unsigned char)s[1] < 0xA0)
			s[0] = s[1] = '?';
	}
}

static void slot_set(clv_status code, char *text)
{
	clean_message(text);
	pthread_once(&exit_once, make_exit_key);
	if (exit_key_made)
		pthread_setspecific(exit_key, &this_slot);
	mem_free(this_slot.text);
	this_slot.text = text;
	this_slot.code = code;
}

const char *status_meaning(clv_status code)
{
	static const char *const meanings[] = {
#define X(id, text) text,
		CLV_STATUS_LIST(X)
#undef X
	};
	return (unsigned)code < CLV_STATUS_COUNT ? meanings[code] : "unknown status";
}

clv_error_details *status_details(void)
{
	return &this_slot.details;
}

void status_detail(char *field, size_t n, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(field, n, fmt, ap);
	va_end(ap);
}

const char *status_message(void)
{
	if (this_slot.text)
		return this_slot.text;
	return this_slot.code == CLV_OK ? "" : status_meaning(this_slot.code);
}

/* head as formatted, sep, tail; NULL when there is no memory. Built aside, as arguments may point into the slot. */
static char *join(const char *fmt, va_list ap, const char *sep, const char *tail)
{
	va_list again;
	va_copy(again, ap);
	int n = vsnprintf(NULL, 0, fmt, again);
	va_end(again);
	if (n < 0)
		return NULL;
	size_t head = (size_t)n, sep_n = strlen(sep), tail_n = strlen(tail);
	char *text = mem_alloc(head + sep_n + tail_n + 1);
	if (!text)
		return NULL;
	vsnprintf(text, head + 1, fmt, ap);
	if (head && (text[head - 1] == ' ' || text[head - 1] == '\n'))
		sep_n = 0; /* the caller brought a separator */
	memcpy(text + head, sep, sep_n);
	memcpy(text + head + sep_n, tail, tail_n + 1);
	return text;
}

clv_status status_vfail(clv_status code, const char *file, int line, const char *fmt, va_list ap)
{
	char place[64] = "";
#ifdef CLV_DEBUG
	const char *base = strrchr(file, '/');
	snprintf(place, sizeof place, " (%s:%d)", base ? base + 1 : file, line);
#else
	(void)file;
	(void)line;
#endif
	slot_set(code, join(fmt, ap, "", place));
	this_slot.details = (clv_error_details){.dimension = -1};
	return code;
}

clv_status status_fail(clv_status code, const char *file, int line, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	status_vfail(code, file, line, fmt, ap);
	va_end(ap);
	return code;
}

clv_status fail_more(clv_status code, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	char *text = join(fmt, ap, ": ", status_message());
	va_end(ap);
	if (text)
		slot_set(code, text);
	return code;
}
