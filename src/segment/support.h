/* Which nodes each built-in back end takes. */
#pragma once

#include "segment/segment.h"

/* Says why in no[n], which is NULL before, where this back end does not take node n. What no back end takes
   (support_obstacle) it need not look at. */
typedef clv_status (*support_fn)(const plan *p, const support_spec *s, const char **no, arena *a);

#define DECLARE(name) clv_status support_##name(const plan *p, const support_spec *s, const char **no, arena *a);
CLV_BACKEND_LIST(DECLARE)
#undef DECLARE
