/* Limits of a run: time, memory, the size of a tensor, and a request to stop.
 *
 * They are a thread's while it runs something (limits_enter): the run asks between its steps, the allocator of tensors
 * before it takes memory. Limits in each other all hold. */
#pragma once

#include <stdint.h>

#include "base/status.h"

typedef struct limits {
	double seconds; /* that it may take, from limits_enter on; 0: as long as it likes */
	int64_t bytes;  /* of tensors that it has at once, and of the elements of one; 0: no limit */
	/* _Atomic uint64_t (C++ has no word for it): goes up when the runs of its owner are to end; NULL: they cannot be */
	const void *stops;
	int64_t deadline, live; /* set by limits_enter */
	uint64_t stops_seen;
	struct limits *outer;
} limits;

/* Of a call of a file that nobody vouches for, where the caller says nothing: so many seconds, and half of the machine's memory. */
enum { STRANGER_SECONDS = 600 };
int64_t limits_of_stranger(void);

void limits_enter(limits *l);
void limits_leave(limits *l);
bool limits_here(void);         /* this thread has some */
const limits *limits_now(void); /* those, for another thread that works for this one; NULL: none */
/* What limits_over would say, from any thread and without a message: the run is to end. */
bool limits_spent(const limits *l);
bool limits_bytes(void); /* and memory is among them */

clv_status limits_over(const limits *l);                              /* CLV_E_LIMIT, CLV_E_CANCELLED: of its time */
clv_status limits_check(void);                                        /* of any of this thread's */
clv_status limits_check_tensor(int64_t elements, int64_t bytes_each); /* CLV_E_LIMIT: it is larger than it may be */
clv_status limits_room(int64_t bytes);                                /* CLV_E_LIMIT: they are not to be had */
void limits_count(int64_t bytes);                                     /* that were taken; negative: released */
