/* Stands in for the back end inductor until that is there. */
#include "exec/backend.h"

static clv_status fits(void *ctx, const compiled *c, const code_spec *s, arena *a, const char **reason)
{
	(void)ctx, (void)c, (void)s, (void)a;
	*reason = "this build has no back end inductor";
	return CLV_OK;
}

const backend backend_inductor = {.name = "inductor", .native = true, .fits = fits};
