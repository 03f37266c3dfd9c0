#include "file/operators.h"
clv_status operators_check(const plan *p, const char *const *allow, uint32_t nallow)
{
	(void)p, (void)allow, (void)nallow;
	return CLV_OK;
}
