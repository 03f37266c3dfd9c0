/* Refuses gradient hooks that a forward puts on its results: see br_recorder_find_hook. */
#include "capture/builder.h"

static bool makes(const br_arg *results, uint32_t n, uint32_t tensor)
{
	for (uint32_t i = 0; i < n; i++) {
		if (results[i].kind == BR_TENSOR && results[i].u.id == tensor)
			return true;
		if (results[i].kind == BR_LIST && makes(results[i].u.list.at, results[i].u.list.n, tensor))
			return true;
	}
	return false;
}

static const stream_op *maker_of(const stream *s, uint32_t tensor)
{
	for (uint32_t i = s->ops.n; i-- > 0 && tensor != NONE;)
		if (makes(s->ops.at[i].results, s->ops.at[i].nresults, tensor))
			return &s->ops.at[i];
	return NULL;
}

clv_status stream_check_hooks(const stream *s, br_tensor *const *tensors, uint32_t n)
{
	br_hook h;
	TRY(br_recorder_find_hook(s->recorder, tensors, n, &h));
	if (!h.found)
		return CLV_OK;
	const stream_op *o = maker_of(s, h.tensor);
	const char *what =
		h.retains ? "its result has retain_grad(), and is given back: a plan would give back one that has not"
				  : "it has a gradient hook (of a tensor, or the backward hook of a module), which a plan would "
					"not call: put the hook on a parameter or on an output of the plan, or remove it";
	return o ? fail_at(s, o, what) : fail(CLV_E_UNSUPPORTED, "%s: %s", h.node, what);
}
