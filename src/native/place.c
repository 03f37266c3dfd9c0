/* Copies by index: see place.h. */
#include "native/place.h"

#include <string.h>

#include "tensor/tensor.h"

typedef struct place_step {
	slot in, out;
	uint32_t ndim, inner;
	size_t bytes; /* of an element */
	const int64_t *map[NT_DIMS];
	char fill[16];
} place_step;

static void fill_run(char *to, int64_t stride, int64_t n, size_t bytes, const char *with)
{
	for (int64_t i = 0; i < n; i++)
		memcpy(to + (size_t)(i * stride) * bytes, with, bytes);
}

#define COPY_RUN(type)                                                                                                 \
	for (int64_t i = 0; i < n; i++)                                                                                    \
	((type *)to)[i * to_stride] = ((const type *)from)[i * from_stride]

static void copy_run(char *to, int64_t to_stride, const char *from, int64_t from_stride, int64_t n, size_t bytes)
{
	if (to_stride == 1 && from_stride == 1)
		memcpy(to, from, (size_t)n * bytes);
	else if (bytes == 8)
		COPY_RUN(uint64_t);
	else if (bytes == 4)
		COPY_RUN(uint32_t);
	else if (bytes == 2)
		COPY_RUN(uint16_t);
	else
		COPY_RUN(uint8_t);
}

/* The innermost dimension: runs of indices that follow each other. */
static void place_row(const place_step *s, char *to, int64_t to_stride, const char *from, int64_t from_stride,
                      int64_t n)
{
	const int64_t *map = s->map[s->inner];
	if (!map) {
		copy_run(to, to_stride, from, from_stride, n, s->bytes);
		return;
	}
	for (int64_t i = 0, end; i < n; i = end) {
		char *at = to + (size_t)(i * to_stride) * s->bytes;
		for (end = i + 1; end < n && map[end] == (map[i] < 0 ? -1 : map[i] + end - i);)
			end++;
		if (map[i] < 0)
			fill_run(at, to_stride, end - i, s->bytes, s->fill);
		else
			copy_run(at, to_stride, from + (size_t)(map[i] * from_stride) * s->bytes, from_stride, end - i, s->bytes);
	}
}

typedef struct place_run {
	const place_step *s;
	frame *f;
} place_run;

static void place_rows(void *ctx, int64_t first, int64_t end, int thread)
{
	const place_run *r = ctx;
	const place_step *s = r->s;
	const nt *x = &r->f->t[s->in], *y = &r->f->t[s->out];
	(void)thread;
	for (int64_t row = first; row < end; row++) {
		int64_t rest = row, from = 0, to = 0;
		bool none = false;
		for (uint32_t d = s->ndim; d-- > 0;) {
			if (d == s->inner)
				continue;
			int64_t i = rest % y->size[d], k = s->map[d] ? s->map[d][i] : i;
			rest /= y->size[d];
			to += i * y->stride[d];
			from += k * x->stride[d];
			none |= k < 0;
		}
		char *at = y->data + (size_t)to * s->bytes;
		int64_t n = y->size[s->inner], stride = y->stride[s->inner];
		if (none)
			fill_run(at, stride, n, s->bytes, s->fill);
		else
			place_row(s, at, stride, x->data + (size_t)from * s->bytes, x->stride[s->inner], n);
	}
}

static clv_status run_place(const void *params, frame *f)
{
	const place_step *s = params;
	const nt *y = &f->t[s->out];
	place_run r = {s, f};
	int64_t all = nt_numel(y);
	if (all)
		team_run(f->team, all / y->size[s->inner], 1 + 4096 / y->size[s->inner], place_rows, &r);
	return CLV_OK;
}

static clv_status number_as(uint8_t type, double x, char *out)
{
	int64_t k = x >= -0x1p63 && x < 0x1p63 ? (int64_t)x : INT64_MIN;
	uint8_t flag = x != 0;
	float f = (float)x;
	bool whole = x == (double)k;
	switch (type) {
	case DT_F32: memcpy(out, &f, sizeof f); return CLV_OK;
	case DT_F64: memcpy(out, &x, sizeof x); return CLV_OK;
	case DT_BOOL: *out = (char)flag; return CLV_OK;
	case DT_I64:
	case DT_I32:
	case DT_I16:
	case DT_I8:
	case DT_U8:
		memcpy(out, &k, sizeof k); /* the low bytes: little endian, as all machines of the engine are */
		return whole ? CLV_OK : fail(CLV_E_UNSUPPORTED, "a fraction to fill integers with");
	default: return fail(CLV_E_UNSUPPORTED, "a type to fill that the native engine does not have");
	}
}

clv_status low_place(lowering *l, node_id n, slot in, const int64_t *const *map, double fill)
{
	place_step *s = low_alloc(l, sizeof *s);
	nt form;
	if (!s)
		return fail_nomem();
	const nt *x = low_at(l, in);
	TRY(low_form_of_type(l, n, 0, x->dtype, &form));
	bool fits = form.ndim == x->ndim;
	for (uint32_t d = 0; fits && d < form.ndim; d++)
		fits = map[d] || form.size[d] == x->size[d];
	if (!fits)
		return fail(CLV_E_VERIFY, "the result has another shape than the operator gives");
	if (form.ndim == 0)
		return low_same(l, n, 0, in);
	nt_strides_like(&form, x);
	s->in = in;
	s->ndim = form.ndim;
	s->bytes = dtype_bytes(form.dtype);
	memcpy(s->map, map, form.ndim * sizeof *map);
	TRY(number_as(form.dtype, fill, s->fill));
	TRY(low_result(l, n, 0, &form, false, &s->out));
	const nt *y = low_at(l, s->out);
	for (uint32_t d = 1; d < y->ndim; d++)
		if (y->size[s->inner] == 1 || (y->size[d] > 1 && y->stride[d] <= y->stride[s->inner]))
			s->inner = d;
	return low_step(l, run_place, s);
}
