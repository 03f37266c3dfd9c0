/* Which operators a plan from a file may hold. */
#pragma once

#include "plan/plan.h"

/* CLV_E_UNSUPPORTED names the first operator that is neither on the list (FILE_ALLOW in plan/ops.def) nor allowed by the caller: its
   node, module and source line, and the reason. Entries of `allow`: "aten::from_file" (with all overloads),
   "aten::from_file.out" (that one), "mylib::*" (a namespace); anything else is CLV_E_INVALID. Allocates only to refuse. */
clv_status operators_check(const plan *p, const char *const *allow, uint32_t nallow);
