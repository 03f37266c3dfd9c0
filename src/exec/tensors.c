/* Bytes of files become tensors without an operator: nothing is recorded, no mode changes what comes out. */
#include "exec/tensors.h"

clv_status memory_tensor(const payload *p, uint32_t memory, clv_tensor **out)
{
	const payload_memory *m = &p->memories.at[memory];
	clv_tensor *bytes;
	void *data;
	if (m->nbytes > SIZE_MAX - m->lead)
		return fail(CLV_E_OVERFLOW, "a memory has more than 2^64 bytes");
	TRY(br_bytes_new(m->nbytes + m->lead, &bytes, &data));
	clv_status st = payload_fill(p, memory, (char *)data + m->lead);
	if (st == CLV_OK)
		*out = bytes;
	else
		br_unref(bytes);
	return st;
}

clv_status memory_view(const payload *p, uint32_t i, const clv_tensor *bytes, size_t lead, bool requires_grad,
                       clv_tensor **out)
{
	const payload_tensor *t = &p->tensors.at[i];
	br_view v = {.dtype = (uint8_t)t->dtype,
	             .ndim = t->ndim,
	             .sizes = t->sizes,
	             .strides = t->strides,
	             .offset = (int64_t)(t->offset + lead),
	             .requires_grad = requires_grad};
	return br_view_bytes(bytes, &v, out);
}
