/* Tensors with strides: layouts, and the copy that fits all of them. */
#include "native/program.h"

#include <string.h>

#include "file/narrow.h"

int64_t nt_numel(const nt *t)
{
	int64_t n = 1;
	for (uint32_t d = 0; d < t->ndim; d++)
		n *= t->size[d];
	return n;
}

bool nt_is_rows(const nt *t)
{
	int64_t want = 1;
	for (uint32_t d = t->ndim; d-- > 0;) {
		if (t->size[d] == 0)
			return true;
		if (t->size[d] != 1 && t->stride[d] != want)
			return false;
		want *= t->size[d];
	}
	return true;
}

/* The dimensions that are not 1 in `sizes`, those with the largest strides in t first; equal ones in their order. */
static uint32_t by_stride(const nt *t, const nt *sizes, uint32_t *out)
{
	uint32_t n = 0;
	for (uint32_t d = 0; d < t->ndim; d++) {
		if (sizes->size[d] == 1)
			continue;
		uint32_t at = n++;
		for (; at > 0 && t->stride[out[at - 1]] < t->stride[d]; at--)
			out[at] = out[at - 1];
		out[at] = d;
	}
	return n;
}

bool nt_is_dense(const nt *t)
{
	uint32_t order[NT_DIMS];
	int64_t want = 1;
	for (uint32_t d = 0; d < t->ndim; d++)
		if (t->size[d] == 0)
			return true;
	for (uint32_t i = by_stride(t, t, order); i-- > 0; want *= t->size[order[i]])
		if (t->stride[order[i]] != want)
			return false;
	return true;
}

/* Of zero sizes as if they were 1, as torch does. */
static int64_t room(int64_t size)
{
	return size ? size : 1;
}

void nt_rows(nt *t)
{
	int64_t at = 1;
	for (uint32_t d = t->ndim; d-- > 0; at *= room(t->size[d]))
		t->stride[d] = at;
}

void nt_channels_last(nt *t)
{
	int64_t at;
	if (t->ndim < 3) {
		nt_rows(t);
		return;
	}
	t->stride[1] = 1;
	at = room(t->size[1]);
	for (uint32_t d = t->ndim; d-- > 2; at *= room(t->size[d]))
		t->stride[d] = at;
	t->stride[0] = at;
}

void nt_strides_like(nt *t, const nt *other)
{
	uint32_t order[NT_DIMS], n = t->ndim == other->ndim ? by_stride(other, t, order) : 0;
	int64_t at = 1;
	bool broadcast = false;
	for (uint32_t i = 0; i < n; i++)
		broadcast |= other->size[order[i]] != 1 && other->stride[order[i]] == 0;
	nt_rows(t);
	for (uint32_t i = n; !broadcast && i-- > 0; at *= room(t->size[order[i]]))
		t->stride[order[i]] = at;
}

bool nt_expand(const nt *t, uint8_t ndim, const int64_t *size, nt *out)
{
	nt made = {.data = t->data, .dtype = t->dtype, .ndim = ndim};
	if (t->ndim > ndim || ndim > NT_DIMS)
		return false;
	for (uint32_t d = 0, lead = ndim - t->ndim; d < ndim; d++) {
		made.size[d] = size[d];
		if (d < lead)
			continue;
		if (t->size[d - lead] != size[d] && t->size[d - lead] != 1)
			return false;
		made.stride[d] = t->size[d - lead] == size[d] ? t->stride[d - lead] : 0;
	}
	*out = made;
	return true;
}

bool nt_bytes(const nt *t, uint64_t *out)
{
	int64_t reach = 1, elements = (int64_t)dtype_bytes(t->dtype), step;
	bool none = false;
	for (uint32_t d = 0; d < t->ndim; d++) {
		none |= t->size[d] == 0;
		if (t->size[d] < 0 || t->stride[d] < 0 || __builtin_mul_overflow(elements, room(t->size[d]), &elements))
			return false;
		if (t->size[d] > 1 && (__builtin_mul_overflow(t->size[d] - 1, t->stride[d], &step) ||
		                       __builtin_add_overflow(reach, step, &reach)))
			return false;
	}
	if (__builtin_mul_overflow(reach, (int64_t)dtype_bytes(t->dtype), &reach) || reach > INT64_MAX / 4)
		return false;
	*out = none ? 0 : (uint64_t)reach;
	return true;
}

/* ---- copies ------------------------------------------------------------------------------------------------------------ */

enum { CHUNK = 256 };

typedef union chunk {
	double f[CHUNK];
	int64_t i[CHUNK];
} chunk;

static bool is_real(uint8_t d)
{
	return d == DT_F32 || d == DT_F64 || d == DT_F16 || d == DT_BF16;
}

#define LOAD(id, type, to, convert)                                                                                    \
	case DT_##id:                                                                                                      \
		for (int64_t k = 0; k < n; k++) {                                                                              \
			type x = ((const type *)from)[k * stride];                                                                 \
			c->to[k] = convert;                                                                                        \
		}                                                                                                              \
		return;

static void load(uint8_t type_of, const char *from, int64_t stride, int64_t n, chunk *c)
{
	switch (type_of) {
		LOAD(U8, uint8_t, i, x)
		LOAD(I8, int8_t, i, x)
		LOAD(I16, int16_t, i, x)
		LOAD(I32, int32_t, i, x)
		LOAD(I64, int64_t, i, x)
		LOAD(BOOL, uint8_t, i, x != 0)
		LOAD(F32, float, f, (double)x)
		LOAD(F64, double, f, x)
		LOAD(F16, uint16_t, f, (double)narrow_from_f16(x))
		LOAD(BF16, uint16_t, f, (double)narrow_from_bf16(x))
	default: return;
	}
}

/* As x86 converts, and so torch there: beyond the range it is the smallest. */
static int64_t to_int(double x)
{
	return x >= -0x1p63 && x < 0x1p63 ? (int64_t)x : INT64_MIN;
}

#define STORE(id, type, of_int, of_real)                                                                               \
	case DT_##id:                                                                                                      \
		for (int64_t k = 0; k < n; k++) {                                                                              \
			if (floats) {                                                                                              \
				double x = c->f[k];                                                                                    \
				((type *)to)[k * stride] = (type)(of_real);                                                            \
			} else {                                                                                                   \
				int64_t x = c->i[k];                                                                                   \
				((type *)to)[k * stride] = (type)(of_int);                                                             \
			}                                                                                                          \
		}                                                                                                              \
		return;

static void store(uint8_t type_of, const chunk *c, bool floats, char *to, int64_t stride, int64_t n)
{
	switch (type_of) {
		STORE(U8, uint8_t, x, to_int(x))
		STORE(I8, int8_t, x, to_int(x))
		STORE(I16, int16_t, x, to_int(x))
		STORE(I32, int32_t, x, to_int(x))
		STORE(I64, int64_t, x, to_int(x))
		STORE(BOOL, uint8_t, x != 0, x != 0)
		STORE(F32, float, x, x)
		STORE(F64, double, x, x)
		STORE(F16, uint16_t, narrow_to_f16((float)x), narrow_to_f16((float)x))
		STORE(BF16, uint16_t, narrow_to_bf16((float)x), narrow_to_bf16((float)x))
	default: return;
	}
}

static void cast_row(const nt *from, const char *f, int64_t fs, const nt *to, char *t, int64_t ts, int64_t n)
{
	int64_t fb = fs * (int64_t)dtype_bytes(from->dtype), tb = ts * (int64_t)dtype_bytes(to->dtype);
	chunk c;
	for (int64_t at = 0; at < n; at += CHUNK) {
		int64_t k = n - at < CHUNK ? n - at : CHUNK;
		load(from->dtype, f + at * fb, fs, k, &c);
		store(to->dtype, &c, is_real(from->dtype), t + at * tb, ts, k);
	}
}

#define MOVE(type)                                                                                                     \
	for (int64_t k = 0; k < n; k++)                                                                                    \
	((type *)t)[k * ts] = ((const type *)f)[k * fs]

static void copy_row(size_t item, const char *f, int64_t fs, char *t, int64_t ts, int64_t n)
{
	if (fs == 1 && ts == 1) {
		memmove(t, f, (size_t)n * item);
		return;
	}
	switch (item) {
	case 1: MOVE(uint8_t); return;
	case 2: MOVE(uint16_t); return;
	case 4: MOVE(uint32_t); return;
	default: MOVE(uint64_t); return;
	}
}

typedef struct copying {
	const nt *from, *to;
	uint32_t n, order[NT_DIMS]; /* dimensions, the outermost first */
} copying;

static void copy_dims(const copying *c, uint32_t i, const char *f, char *t)
{
	const nt *from = c->from, *to = c->to;
	size_t fb = dtype_bytes(from->dtype), tb = dtype_bytes(to->dtype);
	uint32_t d = i < c->n ? c->order[i] : 0;
	int64_t n = i < c->n ? from->size[d] : 1;
	if (i + 1 < c->n) {
		for (int64_t k = 0; k < n; k++)
			copy_dims(c, i + 1, f + k * from->stride[d] * (int64_t)fb, t + k * to->stride[d] * (int64_t)tb);
		return;
	}
	int64_t fs = c->n ? from->stride[d] : 1, ts = c->n ? to->stride[d] : 1;
	if (from->dtype == to->dtype)
		copy_row(fb, f, fs, t, ts, n);
	else
		cast_row(from, f, fs, to, t, ts, n);
}

void nt_copy(const nt *from, const nt *to)
{
	copying c = {.from = from, .to = to};
	if (nt_numel(from) == 0)
		return;
	c.n = by_stride(to, to, c.order);
	copy_dims(&c, 0, from->data, to->data);
}

clv_status step_copy(const void *params, frame *f)
{
	const slot *s = params;
	nt_copy(&f->t[s[0]], &f->t[s[1]]);
	return CLV_OK;
}
