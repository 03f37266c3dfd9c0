/* Whether a range of nodes may run as compiled code. */
#pragma once

#include "plan/view.h"

/* Segments of a plan (view_segment, ascending): CLV_E_INVALID for nodes that do more than compute tensors from tensors, or
   share memory with others in a way that code, which gives tensors of its own, would not keep. */
clv_status segment_check(const plan *p, const view *segments, uint32_t n);
