/* Which nodes the native engine takes: it is asked. */
#include "native/native.h"
#include "segment/support.h"

clv_status support_native(const plan *p, const support_spec *s, const char **no, arena *a)
{
	(void)s, (void)a;
	for (node_id n = 0; n < p->nodes.n; n++)
		no[n] = native_takes(p, n);
	return CLV_OK;
}
