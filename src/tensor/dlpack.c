/* Tensors from and for DLPack, on the same memory. */
#include "tensor/dlpack.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "tensor/tensor.h"

static const struct {
	uint8_t dtype, code, bits;
} types[] = {{DT_BOOL, DL_BOOL, 8},
             {DT_U8, DL_UINT, 8},
             {DT_U16, DL_UINT, 16},
             {DT_U32, DL_UINT, 32},
             {DT_U64, DL_UINT, 64},
             {DT_I8, DL_INT, 8},
             {DT_I16, DL_INT, 16},
             {DT_I32, DL_INT, 32},
             {DT_I64, DL_INT, 64},
             {DT_F16, DL_FLOAT, 16},
             {DT_F32, DL_FLOAT, 32},
             {DT_F64, DL_FLOAT, 64},
             {DT_BF16, DL_BFLOAT, 16},
             {DT_F8E4M3FN, DL_F8E4M3FN, 8},
             {DT_F8E4M3FNUZ, DL_F8E4M3FNUZ, 8},
             {DT_F8E5M2, DL_F8E5M2, 8},
             {DT_F8E5M2FNUZ, DL_F8E5M2FNUZ, 8},
             {DT_F8E8M0FNU, DL_F8E8M0FNU, 8},
             {DT_C32, DL_COMPLEX, 32},
             {DT_C64, DL_COMPLEX, 64},
             {DT_C128, DL_COMPLEX, 128}};
enum { TYPES = sizeof types / sizeof *types };

static clv_status read_type(const DLTensor *d, uint8_t *out)
{
	for (unsigned i = 0; i < TYPES; i++)
		if (types[i].code == d->dtype.code && types[i].bits == d->dtype.bits && d->dtype.lanes == 1) {
			*out = types[i].dtype;
			return CLV_OK;
		}
	return fail(CLV_E_UNSUPPORTED, "clv_tensor_from_dlpack: elements of type %u with %u bits and %u lanes",
	            d->dtype.code, d->dtype.bits, d->dtype.lanes);
}

static clv_status read_device(const DLTensor *d, char *out, size_t n)
{
	if (d->device.type == DL_CUDA)
		snprintf(out, n, "cuda:%d", d->device.id);
	else if (d->device.type == DL_CPU || d->device.type == DL_CUDA_HOST)
		snprintf(out, n, "cpu");
	else
		return fail(CLV_E_UNSUPPORTED, "clv_tensor_from_dlpack: a device of type %d", d->device.type);
	return CLV_OK;
}

static void release(void *ctx)
{
	DLManagedTensor *from = ctx;
	if (from->deleter)
		from->deleter(from);
}

clv_status clv_tensor_from_dlpack(struct DLManagedTensor *from, clv_tensor **out)
{
	char device[DEVICE_TEXT];
	tensor_memory *m;
	size_t n;
	if (!from || !out)
		return fail(CLV_E_INVALID, "clv_tensor_from_dlpack: an argument is NULL");
	const DLTensor *d = &from->dl_tensor;
	if (d->ndim < 0 || (d->ndim > 0 && !d->shape))
		return fail(CLV_E_INVALID, "clv_tensor_from_dlpack: it has %d dimensions%s", d->ndim,
		            d->ndim > 0 ? ", but no shape" : "");
	tensor_form s = {.ndim = (uint32_t)d->ndim, .sizes = d->shape, .strides = d->strides, .device = device};
	TRY(read_type(d, &s.dtype));
	TRY(read_device(d, device, sizeof device));
	TRY(tensor_extent("clv_tensor_from_dlpack", &s, &n));
	char *data = d->data ? (char *)d->data + d->byte_offset : NULL;
	TRY(tensor_memory_wrap(data, n, false, NULL, NULL, &m));
	clv_status st = tensor_over(m, data, &s, out);
	if (st == CLV_OK) {
		m->release = release; /* not before there is a tensor: on failure it stays the caller's */
		m->ctx = from;
	}
	tensor_memory_unref(m);
	return st;
}

/* What goes out: sizes and strides follow. */
typedef struct outgoing {
	DLManagedTensor managed;
	clv_tensor *t;
	int64_t dims[];
} outgoing;

static void outgoing_free(DLManagedTensor *self)
{
	outgoing *o = self->manager_ctx;
	clv_tensor_free(o->t);
	mem_free(o);
}

static clv_status write_type(const clv_tensor *t, DLTensor *d)
{
	for (unsigned i = 0; i < TYPES; i++)
		if (types[i].dtype == t->m.dtype) {
			d->dtype.code = types[i].code;
			d->dtype.bits = types[i].bits;
			d->dtype.lanes = 1;
			return CLV_OK;
		}
	return fail(CLV_E_UNSUPPORTED, "the tensor is of type %s, which DLPack cannot say", clv_tensor_dtype(t));
}

static clv_status write_device(const clv_tensor *t, DLTensor *d)
{
	d->device.type = DL_CPU;
	if (strcmp(t->device, "cpu") == 0)
		return CLV_OK;
	d->device.type = DL_CUDA;
	return sscanf(t->device, "cuda:%d", &d->device.id) == 1
	           ? CLV_OK
	           : fail(CLV_E_UNSUPPORTED, "the tensor is on %s, which DLPack cannot say", t->device);
}

clv_status clv_tensor_to_dlpack(const clv_tensor *t, struct DLManagedTensor **out)
{
	DLTensor d = {0};
	if (!t || !out)
		return fail(CLV_E_INVALID, "clv_tensor_to_dlpack: an argument is NULL");
	if (!t->m.strided || t->lazy)
		return fail(CLV_E_UNSUPPORTED, "the tensor is %s, which DLPack cannot say",
		            !t->m.strided ? "sparse or nested" : "lazily changed (conj or neg)");
	TRY(write_type(t, &d));
	TRY(write_device(t, &d));
	outgoing *o = mem_alloc(sizeof *o + (2 * (size_t)t->m.ndim + 1) * sizeof *o->dims);
	TRY_MEM(o);
	d.data = t->data;
	d.ndim = (int32_t)t->m.ndim;
	d.shape = o->dims;
	d.strides = o->dims + t->m.ndim;
	for (uint32_t i = 0; i < t->m.ndim; i++) {
		d.shape[i] = t->m.sizes[i];
		d.strides[i] = t->m.sizes[i] < 2 ? 1 : t->m.strides[i]; /* some readers look at it though it says nothing */
	}
	o->managed = (DLManagedTensor){.dl_tensor = d, .manager_ctx = o, .deleter = outgoing_free};
	o->t = tensor_ref(t);
	*out = &o->managed;
	return CLV_OK;
}
