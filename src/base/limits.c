#include "base/limits.h"

#include <stdatomic.h>
#include <sys/sysinfo.h>

#include "base/clock.h"

static _Thread_local limits *now;

int64_t limits_of_stranger(void)
{
	struct sysinfo info;
	return sysinfo(&info) == 0 ? (int64_t)((uint64_t)info.totalram * info.mem_unit / 2) : (int64_t)4 << 30;
}

static uint64_t stops_of(const limits *l)
{
	return l->stops ? atomic_load_explicit((const _Atomic uint64_t *)l->stops, memory_order_relaxed) : 0;
}

void limits_enter(limits *l)
{
	l->deadline = l->seconds > 0 && l->seconds < 1e9 ? clock_nanoseconds() + (int64_t)(l->seconds * 1e9) : 0;
	l->live = 0;
	l->stops_seen = stops_of(l);
	l->outer = now;
	now = l;
}

void limits_leave(limits *l)
{
	now = l->outer;
}

bool limits_here(void)
{
	return now != NULL;
}

const limits *limits_now(void)
{
	return now;
}

bool limits_spent(const limits *l)
{
	int64_t time = l && (l->deadline || l->outer) ? clock_nanoseconds() : 0;
	for (; l; l = l->outer)
		if (stops_of(l) != l->stops_seen || (l->deadline && time > l->deadline))
			return true;
	return false;
}

bool limits_bytes(void)
{
	for (const limits *l = now; l; l = l->outer)
		if (l->bytes)
			return true;
	return false;
}

clv_status limits_over(const limits *l)
{
	if (stops_of(l) != l->stops_seen)
		return fail(CLV_E_CANCELLED, "the run was stopped by another thread");
	if (l->deadline && clock_nanoseconds() > l->deadline)
		return fail(CLV_E_LIMIT, "the run takes longer than the %g s that it may", l->seconds);
	return CLV_OK;
}

clv_status limits_check(void)
{
	for (const limits *l = now; l; l = l->outer)
		TRY(limits_over(l));
	return CLV_OK;
}

clv_status limits_check_tensor(int64_t elements, int64_t bytes_each)
{
	int64_t bytes;
	for (const limits *l = now; l; l = l->outer)
		if (l->bytes && (__builtin_mul_overflow(elements, bytes_each, &bytes) || bytes > l->bytes))
			return fail(CLV_E_LIMIT, "a tensor has %lld elements, more than the %lld bytes that the run may have",
			            (long long)elements, (long long)l->bytes);
	return CLV_OK;
}

clv_status limits_room(int64_t bytes)
{
	for (const limits *l = now; l; l = l->outer)
		if (l->bytes && (bytes > l->bytes || l->live > l->bytes - bytes))
			return fail(CLV_E_LIMIT, "the run needs %lld bytes more and has %lld of the %lld that it may have",
			            (long long)bytes, (long long)l->live, (long long)l->bytes);
	return CLV_OK;
}

/* What is released in a run may have been there before it. */
void limits_count(int64_t bytes)
{
	for (limits *l = now; l; l = l->outer)
		l->live = l->live > -bytes ? l->live + bytes : 0;
}
