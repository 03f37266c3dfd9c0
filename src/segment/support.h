/* Which nodes each built-in back end takes. */
#pragma once

#include "segment/segment.h"

/* Says why in no[n], which is NULL before, where this back end does not take node n. What no back end takes
   (support_obstacle) it need not look at. */
typedef clv_status (*support_fn)(const plan *p, const support_spec *s, const char **no, arena *a);

clv_status support_native(const plan *p, const support_spec *s, const char **no, arena *a);
clv_status support_inductor(const plan *p, const support_spec *s, const char **no, arena *a);
clv_status support_openvino(const plan *p, const support_spec *s, const char **no, arena *a);
