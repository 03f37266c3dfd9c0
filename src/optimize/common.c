#include "optimize/optimize.h"

clv_status pass_common(edit *e, const optimize_spec *s, uint32_t *changes)
{
	(void)e;
	(void)s;
	(void)changes;
	return CLV_OK;
}
