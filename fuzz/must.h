/* What has to hold in a fuzz target. */
#pragma once

#include <stdio.h>
#include <stdlib.h>

#include "base/status.h"

#define MUST(what)                                                                                                     \
	do {                                                                                                               \
		if (!(what)) {                                                                                                 \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #what, status_message());                           \
			abort();                                                                                                   \
		}                                                                                                              \
	} while (0)
