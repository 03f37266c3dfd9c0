/* Time that never goes back, for measuring and for limits. */
#pragma once

#include <stdint.h>

int64_t clock_nanoseconds(void);
double clock_seconds(void);
