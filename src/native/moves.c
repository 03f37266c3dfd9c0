/* Copies of elements as steps. */
#include <string.h>

#include "file/narrow.h"
#include "native/moves.h"
#include "tensor/tensor.h"

void move_add(move *m, int64_t size, int64_t from, int64_t to)
{
	int64_t bytes = m->bytes;
	m->d[m->ndim++] = (move_dim){size, from * bytes, to * bytes};
}

move move_between(const nt *from, const nt *to)
{
	move m = {.bytes = (uint32_t)dtype_bytes(from->dtype)};
	for (uint32_t d = 0; d < from->ndim; d++)
		move_add(&m, from->size[d], from->stride[d], to->stride[d]);
	return m;
}

typedef struct moving {
	const move *m;
	const native_kernels *k;
	const char *from;
	char *to;
} moving;

static void move_items(void *ctx, int64_t first, int64_t end, int thread)
{
	const moving *x = ctx;
	(void)thread;
	x->k->move(x->m, x->from, x->to, first, end);
}

void run_move(frame *f, const move *m, const char *from, char *to)
{
	moving x = {m, f->k, from, to};
	if (m->items <= m->grain)
		f->k->move(m, from, to, 0, m->items);
	else
		team_run(f->team, m->items, m->grain, move_items, &x);
}

/* ---- steps -------------------------------------------------------------------------------------------------------------- */

typedef struct move_params {
	slot from, to; /* from NONE: one element, `value` */
	char value[8];
	move m;
} move_params;

static clv_status step_move(const void *params, frame *f)
{
	const move_params *x = params;
	run_move(f, &x->m, x->from == NONE ? x->value : f->t[x->from].data, f->t[x->to].data);
	return CLV_OK;
}

static clv_status add_move(lowering *l, const move_params *like)
{
	move_params *x;
	move m = like->m;
	move_ready(&m);
	if (m.items == 0)
		return CLV_OK;
	x = low_alloc(l, sizeof *x);
	TRY_MEM(x);
	*x = *like;
	x->m = m;
	return low_step(l, step_move, x);
}

clv_status low_same_type(const lowering *l, slot a, slot b)
{
	return low_at(l, a)->dtype == low_at(l, b)->dtype
	           ? CLV_OK
	           : fail(CLV_E_VERIFY, "the operator gives %s, the plan has %s", dtype_name((dtype)low_at(l, a)->dtype),
	                  dtype_name((dtype)low_at(l, b)->dtype));
}

clv_status low_move(lowering *l, slot from, slot to, const move *m)
{
	TRY(low_same_type(l, from, to)); /* strides are counted in elements of one size */
	return add_move(l, &(move_params){.from = from, .to = to, .m = *m});
}

clv_status low_fill(lowering *l, slot to, const nt *part, int64_t offset, const void *element)
{
	nt one = *part;
	move_params x = {.from = NONE, .to = to};
	memset(one.stride, 0, sizeof one.stride);
	x.m = move_between(&one, part);
	x.m.to = offset * x.m.bytes;
	memcpy(x.value, element, x.m.bytes);
	return add_move(l, &x);
}

clv_status low_zero(lowering *l, slot s)
{
	const nt t = *low_at(l, s);
	return low_fill(l, s, &t, 0, &(uint64_t){0});
}

/* ---- numbers as elements --------------------------------------------------------------------------------------------------- */

#define STORE(id, type, x)                                                                                             \
	case DT_##id: {                                                                                                    \
		type made = (x);                                                                                               \
		memcpy(out, &made, sizeof made);                                                                               \
		return CLV_OK;                                                                                                 \
	}

static int64_t real_to_int(double x)
{
	return x >= -0x1p63 && x < 0x1p63 ? (int64_t)x : INT64_MIN;
}

clv_status low_element(lowering *l, node_id n, uint32_t i, uint8_t type, void *out)
{
	int64_t k = 0;
	double r;
	memset(out, 0, 8);
	TRY(low_real(l, n, i, 0, &r));
	if (low_int(l, n, i, 0, &k) != CLV_OK)
		k = real_to_int(r); /* no integer: low_real took it */
	switch (type) {
		STORE(U8, uint8_t, (uint8_t)k)
		STORE(I8, int8_t, (int8_t)k)
		STORE(I16, int16_t, (int16_t)k)
		STORE(I32, int32_t, (int32_t)k)
		STORE(I64, int64_t, k)
		STORE(BOOL, uint8_t, r != 0)
		STORE(F32, float, (float)r)
		STORE(F64, double, r)
		STORE(F16, uint16_t, narrow_to_f16((float)r))
		STORE(BF16, uint16_t, narrow_to_bf16((float)r))
	default: return fail(CLV_E_UNSUPPORTED, "elements of type %s are not supported", dtype_name((dtype)type));
	}
}

const char *takes_any(const plan *p, node_id n)
{
	(void)p, (void)n;
	return NULL;
}
