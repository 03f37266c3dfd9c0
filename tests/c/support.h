/* What the C tests share: cmocka with what it needs before it, and plans from text. */
#ifndef TESTS_SUPPORT_H
#define TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "plan/plan.h"

/* cmocka has a fail() of its own; ours goes by another name here. */
#undef fail
#define fails_with(code, ...) status_fail((code), __FILE__, __LINE__, __VA_ARGS__)

#include <cmocka.h>

#define OK(call) assert_int_equal((call), CLV_OK)

/* The failure's message holds `part`. */
static inline void check_error(clv_status st, clv_status want, const char *part)
{
	if (st != want || !strstr(status_message(), part))
		fail_msg("status %d \"%s\" instead of %d with \"%s\"", st, st ? status_message() : "", want, part);
}

#define FAILS(call, status, part) check_error((call), (status), (part))

/* Seconds of the processor that `work` takes on n things, at best. */
static inline double least_seconds(void (*work)(uint32_t n), uint32_t n)
{
	double least = 1e9;
	for (int i = 0; i < 3; i++) {
		struct timespec from, to;
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
		work(n);
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
		double took = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
		least = took < least ? took : least;
	}
	return least;
}

/* Four times as many things take less than nine times the work: of the square of their number it would be sixteen. */
static inline void check_growth(void (*work)(uint32_t n), uint32_t n)
{
	double few = least_seconds(work, n / 4), all = least_seconds(work, n);
	if (all > 9 * few + 0.05)
		fail_msg("%u things take %.2f s, a quarter of them %.2f s", n, all, few);
}

static inline plan *parse_ok(const char *text)
{
	plan *p = NULL;
	clv_status st = plan_parse(text, strlen(text), &p);
	if (st != CLV_OK)
		fail_msg("%s\nin\n%s", status_message(), text);
	return p;
}

static inline plan *load_ok(const char *text)
{
	plan *p = parse_ok(text);
	if (plan_verify(p) != CLV_OK)
		fail_msg("%s\nin\n%s", status_message(), text);
	return p;
}

static inline char *print_ok(const plan *p)
{
	strbuf b = STRBUF_INIT;
	char *text = NULL;
	plan_print(p, &b);
	OK(strbuf_take(&b, &text));
	return text;
}

/* Text of what an append function wrote into the buffer; the buffer is empty after. Caller frees. */
static inline char *taken(strbuf *b)
{
	char *text = NULL;
	OK(strbuf_take(b, &text));
	return text;
}

/* The fault sweep: runs `attempt` with its first allocation failing, then its second, … until there is none to fail. All
   end with CLV_E_NOMEM but the last one, which ends with `want`; how many allocations it made. Where an error is wanted,
   the allocation that failed may have been for its message; optional: it may be one that can be done without. */
static inline uint64_t sweep_each(clv_status (*attempt)(const void *ctx), const void *ctx, clv_status want,
                                  bool optional)
{
	for (uint64_t n = 1;; n++) {
		mem_fail_after(n);
		clv_status st = attempt(ctx);
		bool over = mem_fail_waits();
		mem_fail_after(0);
		if (st != (over ? want : CLV_E_NOMEM) && (st != want || (st == CLV_OK && !optional)))
			fail_msg("allocation %llu %s: status %d \"%s\"", (unsigned long long)n, over ? "did not fail" : "failed",
			         st, st ? status_message() : "");
		if (over)
			return n - 1;
	}
}

static inline uint64_t sweep_faults(clv_status (*attempt)(const void *ctx), const void *ctx, clv_status want)
{
	return sweep_each(attempt, ctx, want, false);
}

/* Of n random trials those that this run makes: a twentieth with CLEAVE_TESTS_SHARE=20, where a processor is emulated. */
static inline int64_t some_of(int64_t n)
{
	const char *share = getenv("CLEAVE_TESTS_SHARE");
	long by = share ? strtol(share, NULL, 10) : 1;
	return by > 1 ? n / by + 1 : n;
}

/* splitmix64: the same numbers everywhere. */
static inline uint64_t random64(uint64_t *state)
{
	uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
	z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
	z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
	return z ^ z >> 31;
}

static inline uint32_t random_below(uint64_t *state, uint32_t n)
{
	return (uint32_t)(random64(state) % n);
}

#endif
