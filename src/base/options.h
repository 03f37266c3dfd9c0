/* Structs of options and answers that callers make: each starts with its size, so that it can grow. */
#pragma once

#include "base/status.h"

/* Copies a caller's struct, which starts with its size, over the defaults in `out`. A caller built with an older header
   gives a shorter one: the rest keeps its default. NULL: all do. */
clv_status options_read(void *out, size_t known, const void *given, const char *name);

/* The other way: copies an answer to a caller's struct as far as that goes. The size in `all` is set. */
clv_status options_write(void *out, void *all, size_t known, const char *name);

/* Fails where a size has no name or no value; NULL is fine. */
clv_status sizes_check(const clv_sizes *s);
