/* Bytes of files become tensors without an operator: nothing is recorded, no mode changes what comes out. */
#include "exec/tensors.h"

#include <string.h>

/* The numbers are the payload's. */
static clv_status describe_quantiser(payload *p, const br_tensor *t, payload_tensor *out)
{
	quantiser q;
	TRY(br_quantiser_get(t, &q));
	double *numbers = arena_alloc(&p->arena, (2 * (size_t)q.n + 1) * sizeof *numbers);
	if (!numbers)
		return fail_nomem();
	TRY(br_quantiser_numbers(t, &q, numbers));
	q.scales = numbers;
	q.zero_points = numbers + q.n;
	out->quantiser = arena_copy(&p->arena, &q, sizeof q);
	return out->quantiser ? CLV_OK : fail_nomem();
}

clv_status tensor_describe(payload *p, const br_tensor *original, const br_tensor *host, payload_tensor *out)
{
	br_meta before, meta;
	br_memory memory;
	TRY(br_meta_get(original, &before));
	TRY(br_meta_get(host, &meta));
	TRY(br_memory_get(host, &memory));
	out->dtype = (dtype)before.dtype;
	if (dtype_quantised(out->dtype))
		TRY(describe_quantiser(p, original, out));
	TRY(payload_text(p, before.device, strlen(before.device), &out->device));
	out->requires_grad = before.requires_grad;
	out->ndim = meta.ndim;
	out->sizes = meta.sizes;
	out->strides = meta.strides;
	out->data = memory.data;
	out->storage = memory.base;
	return CLV_OK;
}

clv_status memory_tensor(const payload *p, uint32_t memory, br_tensor **out)
{
	const payload_memory *m = &p->memories.at[memory];
	br_tensor *bytes;
	void *data;
	if (m->nbytes > SIZE_MAX - m->lead)
		return fail(CLV_E_OVERFLOW, "a memory has more than 2^64 bytes");
	TRY(br_bytes_new(m->nbytes + m->lead, &bytes, &data));
	clv_status st = data ? payload_fill(p, memory, (char *)data + m->lead) : CLV_OK; /* NULL: no bytes */
	if (st == CLV_OK)
		*out = bytes;
	else
		br_unref(bytes);
	return st;
}

clv_status memory_view(const payload *p, uint32_t i, const br_tensor *bytes, size_t lead, bool requires_grad,
                       br_tensor **out)
{
	const payload_tensor *t = &p->tensors.at[i];
	br_view v = {.dtype = (uint8_t)t->dtype,
	             .ndim = t->ndim,
	             .sizes = t->sizes,
	             .strides = t->strides,
	             .offset = (int64_t)(t->offset + lead),
	             .requires_grad = requires_grad,
	             .quantiser = t->quantiser};
	return br_view_bytes(bytes, &v, out);
}
