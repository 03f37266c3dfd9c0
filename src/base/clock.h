/* Time that never goes back, for measuring and for limits. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

int64_t clock_nanoseconds(void);
double clock_seconds(void);

#endif
