/* Payloads as data: made, filled, released. */
#include "file/payload.h"

#include <math.h>
#include <string.h>

const char *const payload_kinds[] = {"boundary", "values", "weights"};
const char *const quant_schemes[] = {"per_tensor_affine", "per_channel_affine", "per_channel_affine_float_qparams"};

clv_status payload_new(payload_kind kind, payload **out)
{
	payload *p = mem_alloc(sizeof *p);
	TRY_MEM(p);
	p->kind = kind;
	p->unchecked = kind == PAYLOAD_WEIGHTS;
	p->split_id = p->graph_signature = "";
	*out = p;
	return CLV_OK;
}

void payload_free(payload *p)
{
	if (!p)
		return;
	for (uint32_t i = 0; i < p->buffers.n; i++)
		mem_free(p->buffers.at[i]);
	vec_free(&p->buffers);
	vec_free(&p->sizes);
	vec_free(&p->requires_grad);
	vec_free(&p->schema);
	vec_free(&p->passthrough);
	vec_free(&p->tensors);
	vec_free(&p->memories);
	vec_free(&p->values);
	vec_free(&p->strs);
	vec_free(&p->entries);
	table_free(&p->by_label);
	arena_free(&p->arena);
	mem_free(p);
}

/* ---- copies ----------------------------------------------------------------------------------------------------- */

static char *arena_text(arena *a, const char *s, size_t n)
{
	char *copy = n < SIZE_MAX ? arena_alloc(a, n + 1) : NULL;
	if (copy && n)
		memcpy(copy, s, n);
	return copy;
}

clv_status payload_text(payload *p, const char *s, size_t n, const char **out)
{
	if (memchr(s, '\0', n))
		return fail(CLV_E_INVALID, "\"%.64s\" goes on after a NUL character; a name cannot", s);
	if (!utf8_valid(s, n))
		return fail(CLV_E_INVALID, "a name is not valid UTF-8");
	*out = arena_text(&p->arena, s, n);
	return *out ? CLV_OK : fail_nomem();
}

clv_status payload_str(payload *p, const char *s, size_t n, uint32_t *out)
{
	if (n >= UINT32_MAX)
		return fail(CLV_E_OVERFLOW, "a text of %zu bytes is too long", n);
	str copy = {arena_text(&p->arena, s, n), (uint32_t)n};
	TRY_MEM(copy.s);
	*out = p->strs.n;
	return vec_push(&p->strs, copy);
}

clv_status payload_ints(payload *p, const int64_t *from, uint32_t n, const int64_t **out)
{
	*out = arena_copy(&p->arena, from, n * sizeof *from);
	return *out ? CLV_OK : fail_nomem();
}

/* ---- element types ---------------------------------------------------------------------------------------------- */

bool wire_dtype(dtype d, dtype *wire, uint32_t *parts)
{
	*parts = 1;
	*wire = d;
	switch (d) {
	case DT_C32:
	case DT_C128:
		*wire = d == DT_C32 ? DT_F16 : DT_F64;
		*parts = 2;
		return true;
	case DT_F8E5M2FNUZ: /* named by the format, but not known to all of its readers */
	case DT_F8E4M3FNUZ:
	case DT_F8E8M0FNU: *wire = DT_U8; return true;
	case DT_QI8: *wire = DT_I8; return true;
	case DT_QU8: *wire = DT_U8; return true;
	case DT_QI32: *wire = DT_I32; return true;
	default: return st_dtype_name(d) != NULL;
	}
}

/* ---- tensors ---------------------------------------------------------------------------------------------------- */

typedef struct wanted {
	const payload *p;
	const char *label;
} wanted;

static bool same_label(const void *ctx, uint32_t id)
{
	const wanted *w = ctx;
	return strcmp(w->p->tensors.at[id].label, w->label) == 0;
}

uint32_t payload_find(const payload *p, const char *label)
{
	return table_find(&p->by_label, hash_text(label, p), same_label, &(wanted){p, label});
}

static clv_status check_dims(const payload_tensor *t)
{
	size_t bytes, extent;
	if (t->ndim > PAYLOAD_NDIM)
		return fail(CLV_E_UNSUPPORTED, "it has %u dimensions, at most %d are possible", t->ndim, PAYLOAD_NDIM);
	for (uint32_t i = 0; i < t->ndim; i++)
		if (t->strides[i] < 0)
			return fail(CLV_E_INVALID, "stride %u is %lld", i, (long long)t->strides[i]);
	TRY(shape_bytes(t->dtype, t->ndim, t->sizes, &bytes));
	TRY(strided_extent(t->ndim, t->sizes, t->strides, &extent));
	if (__builtin_mul_overflow(extent, dtype_bits(t->dtype) / 8, &bytes) || bytes > INT64_MAX)
		return fail(CLV_E_OVERFLOW, "its strides reach further than 2^63 bytes");
	return CLV_OK;
}

/* Kernels take zero points as 32-bit integers. */
static bool is_zero_point(double v)
{
	return v >= INT32_MIN && v <= INT32_MAX && v == (double)(int32_t)v;
}

static clv_status check_quantiser(const payload_tensor *t)
{
	const quantiser *q = t->quantiser;
	if (dtype_quantised(t->dtype) != (q != NULL))
		return fail(CLV_E_INVALID, "it is %s and has %s", dtype_name(t->dtype), q ? "a quantiser" : "no quantiser");
	if (!q)
		return CLV_OK;
	if (q->scheme == QUANT_TENSOR ? q->n != 1 : q->axis >= t->ndim || t->sizes[q->axis] != q->n)
		return fail(CLV_E_INVALID, "its quantiser has %u scales on dimension %u, which is of another size", q->n,
		            q->axis);
	for (uint32_t i = 0; i < q->n; i++) {
		bool whole = q->scheme != QUANT_CHANNEL_FLOAT;
		if (!isfinite(q->scales[i]) || !(whole ? is_zero_point(q->zero_points[i]) : isfinite(q->zero_points[i])))
			return fail(CLV_E_INVALID, "scale %g and zero point %g of its quantiser are impossible", q->scales[i],
			            q->zero_points[i]);
	}
	return CLV_OK;
}

static clv_status check_payload_tensor(const payload *p, const payload_tensor *t)
{
	dtype wire;
	uint32_t parts;
	if (t->dtype >= DT_COUNT || !wire_dtype(t->dtype, &wire, &parts))
		return fail(CLV_E_UNSUPPORTED, "a payload cannot hold dtype %s", dtype_name(t->dtype));
	if (strcmp(t->label, "__metadata__") == 0)
		return fail(CLV_E_INVALID, "the file format has this name for itself");
	if (payload_find(p, t->label) != NONE)
		return fail(CLV_E_INVALID, "there are two of this name");
	if (t->requires_grad && !dtype_has_grad(t->dtype))
		return fail(CLV_E_INVALID, "%s cannot require grad", dtype_name(t->dtype));
	TRY(check_dims(t));
	return check_quantiser(t);
}

static clv_status keep_quantiser(payload *p, const quantiser *from, const quantiser **out)
{
	if (!from)
		return CLV_OK;
	quantiser q = *from;
	q.scales = arena_copy(&p->arena, from->scales, from->n * sizeof *from->scales);
	q.zero_points = arena_copy(&p->arena, from->zero_points, from->n * sizeof *from->zero_points);
	*out = q.scales && q.zero_points ? arena_copy(&p->arena, &q, sizeof q) : NULL;
	return *out ? CLV_OK : fail_nomem();
}

clv_status payload_add_tensor(payload *p, const payload_tensor *from, uint32_t *out)
{
	payload_tensor t = *from;
	TRY_MORE(check_payload_tensor(p, from), "tensor \"%.64s\"", from->label);
	TRY(payload_text(p, from->label, strlen(from->label), &t.label));
	TRY(payload_text(p, from->device, strlen(from->device), &t.device));
	TRY(payload_ints(p, from->sizes, from->ndim, &t.sizes));
	TRY(payload_ints(p, from->strides, from->ndim, &t.strides));
	TRY(keep_quantiser(p, from->quantiser, &t.quantiser));
	TRY(table_add(&p->by_label, hash_text(t.label, p), p->tensors.n));
	*out = p->tensors.n;
	return vec_push(&p->tensors, t);
}
