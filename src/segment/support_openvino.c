/* What OpenVINO takes. */
#include "segment/support.h"

#include <string.h>

clv_status support_openvino(const plan *p, const support_spec *s, const char **no, arena *a)
{
	(void)s;
	(void)a;
	for (node_id n = 0; n < p->nodes.n; n++)
		if (!no[n] && strncmp(plan_s(p, p->nodes.at[n].op), "aten::", 6) != 0)
			no[n] = "is no operator of PyTorch itself";
	return CLV_OK;
}
