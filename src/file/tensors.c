/* Bytes of files become tensors without an operator, and tensors are described for files. */
#include "file/tensors.h"

#include <string.h>

clv_status entry_tensor(const st_entry *e, clv_tensor **out)
{
	TRY_MORE(bools_check(e->dtype, e->data, e->nbytes), "\"%.64s\"", e->name);
	return clv_tensor_from_data(e->data, dtype_name(e->dtype), e->ndim, e->shape, out);
}

clv_status tensor_describe(payload *p, const clv_tensor *original, const clv_tensor *host, payload_tensor *out)
{
	if (!host->m.strided)
		return fail(CLV_E_UNSUPPORTED, "it is sparse or nested, only strided tensors have memory that can be written");
	if (host->lazy || strcmp(host->device, "cpu") != 0)
		return fail(CLV_E_INVALID, "its data is on %s%s, not plain memory", host->device,
		            host->lazy ? ", lazily changed" : "");
	out->dtype = (dtype)original->m.dtype;
	if (original->quantiser) {
		quantiser *q = arena_copy(&p->arena, original->quantiser, sizeof *q);
		size_t n = original->quantiser->n * sizeof *q->scales;
		if (!q || !(q->scales = arena_copy(&p->arena, q->scales, n)) ||
		    !(q->zero_points = arena_copy(&p->arena, q->zero_points, n)))
			return fail_nomem();
		out->quantiser = q;
	}
	TRY(payload_text(p, original->device, strlen(original->device), &out->device));
	out->requires_grad = original->requires_grad;
	out->ndim = host->m.ndim;
	out->sizes = arena_copy(&p->arena, host->m.sizes, 2 * (size_t)host->m.ndim * sizeof *out->sizes);
	TRY_MEM(out->sizes);
	out->strides = out->sizes + host->m.ndim;
	out->data = host->data;
	out->storage = host->base;
	return CLV_OK;
}

clv_status memory_load(const payload *p, uint32_t memory, tensor_memory **out)
{
	const payload_memory *m = &p->memories.at[memory];
	if (m->nbytes > SIZE_MAX - m->lead)
		return fail(CLV_E_OVERFLOW, "a memory has more than 2^64 bytes");
	tensor_memory *made;
	TRY(tensor_memory_new(m->nbytes + m->lead, &made));
	clv_status st = m->nbytes ? payload_fill(p, memory, made->base + m->lead) : CLV_OK;
	if (st == CLV_OK)
		*out = made;
	else
		tensor_memory_unref(made);
	return st;
}

tensor_form stored_form(const payload_tensor *t, bool requires_grad)
{
	return (tensor_form){.dtype = (uint8_t)t->dtype,
	                     .ndim = t->ndim,
	                     .sizes = t->sizes,
	                     .strides = t->strides,
	                     .requires_grad = requires_grad,
	                     .quantiser = t->quantiser};
}

clv_status memory_tensor(const payload *p, uint32_t i, tensor_memory *m, bool requires_grad, clv_tensor **out)
{
	const payload_tensor *t = &p->tensors.at[i];
	tensor_form f = stored_form(t, requires_grad);
	return tensor_over(m, m->base + p->memories.at[t->memory].lead + t->offset, &f, out);
}
