#ifndef FILE_OPERATORS_H
#define FILE_OPERATORS_H
#include "plan/plan.h"
clv_status operators_check(const plan *p, const char *const *allow, uint32_t nallow);
#endif
