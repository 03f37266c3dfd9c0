/* Errors: one status enum (public, in cleave.h), one message slot per thread, two macros.
 *
 * A function that can fail returns clv_status and puts its result in an out-parameter, last.
 * fail() records code, place and message and returns the code; TRY() forwards it.
 * fail_more() puts a sentence in front of the message that is already in the slot, so that each layer can
 * add what it knows (the node, the file, the line) while the error travels up. */
#pragma once

#include <stdarg.h>

#include "cleave.h"

#if defined(__GNUC__)
#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))
#else
#define PRINTF_LIKE(f, a)
#endif

#ifdef __cplusplus
extern "C" {
#endif

clv_status status_fail(clv_status code, const char *file, int line, const char *fmt, ...) PRINTF_LIKE(4, 5);

clv_status status_vfail(clv_status code, const char *file, int line, const char *fmt, va_list ap);

/* Prepends to the message in the slot, with ": " between unless the new text ends in a space; returns `code`. */
clv_status fail_more(clv_status code, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* What the last failure on this thread is about. detail() fills in a text of it, as far as that fits. */
clv_error_details *status_details(void);
void status_detail(char *field, size_t n, const char *fmt, ...) PRINTF_LIKE(3, 4);
#define detail(field, ...) status_detail(status_details()->field, sizeof status_details()->field, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

const char *status_message(void);            /* of the last failure on this thread; "" if there was none */
const char *status_meaning(clv_status code); /* the sentence of CLV_STATUS_LIST */

/* Inlined, so that the compiler sees that a failure is not CLV_OK, and that out-parameters are set after TRY. */
static inline clv_status status_given(clv_status code, clv_status same)
{
	(void)same;
	return code;
}

#define fail(code, ...) status_given((code), status_fail((code), __FILE__, __LINE__, __VA_ARGS__))
#define fail_nomem() fail(CLV_E_NOMEM, "out of memory")
#define fail_io(what, path) fail(CLV_E_IO, "cannot %s %s: %s", what, path, strerror(errno))

#define TRY(call)                                                                                                      \
	do {                                                                                                               \
		clv_status try_status_ = (call);                                                                               \
		if (try_status_ != CLV_OK)                                                                                     \
			return try_status_;                                                                                        \
	} while (0)

/* As TRY, with a text in front of the message: TRY_MORE(read_plan(i), "plan %u", i). "Out of memory" stays as it is. */
#define TRY_MORE(call, ...)                                                                                            \
	do {                                                                                                               \
		clv_status try_status_ = (call);                                                                               \
		if (try_status_ != CLV_OK)                                                                                     \
			return try_status_ == CLV_E_NOMEM ? try_status_ : fail_more(try_status_, __VA_ARGS__);                     \
	} while (0)

/* Returns CLV_E_NOMEM unless `ok`, usually the pointer that was just allocated. */
#define TRY_MEM(ok) TRY((ok) ? CLV_OK : fail_nomem())

/* As TRY, but leaves through the label `out` with `st` set, for functions that must release something. */
#define TRY_OUT(call)                                                                                                  \
	do {                                                                                                               \
		st = (call);                                                                                                   \
		if (st != CLV_OK)                                                                                              \
			goto out;                                                                                                  \
	} while (0)
