/* Halves: most operators know no f16 and bf16. They see f32: arguments are widened for the steps of the node, results are rounded
 * when it is done, which is how torch computes on the CPU. Constants are widened once. */
#include "native/lowering.h"

#include "native/widen.h"

bool is_half(uint8_t d)
{
	return d == DT_F16 || d == DT_BF16;
}

uint8_t native_dtype(const plan *p, value_id v)
{
	uint8_t d = p->values.at[v].dtype;
	return is_half(d) ? DT_F32 : d;
}

bool native_floats(const plan *p, node_id n, uint32_t most)
{
	const node *x = &p->nodes.at[n];
	uint8_t type = DT_COUNT;
	for (uint32_t i = 0; i < most && i < x->nargs; i++) {
		const arg *a = &p->args.at[x->args + i];
		uint8_t own = a->kind == ARG_VALUE ? native_dtype(p, a->u.v) : type;
		if ((own != type && type != DT_COUNT) || (own != DT_F32 && own != DT_F64 && own != DT_COUNT))
			return false;
		type = own;
	}
	return type != DT_COUNT;
}

static bool is_half_tensor(const plan *p, value_id v)
{
	return p->values.at[v].type == TYPE_TENSOR && is_half(p->values.at[v].dtype);
}

typedef struct looking {
	const plan *p;
	bool any;
} looking;

static void look(void *ctx, value_id v)
{
	looking *k = ctx;
	k->any |= is_half_tensor(k->p, v);
}

static bool has_halves(const plan *p, node_id n)
{
	looking k = {.p = p};
	node_each_arg(p, n, look, &k);
	node_each_result(p, n, look, &k);
	return k.any;
}

/* ---- arguments ----------------------------------------------------------------------------------------------------------- */

static nt as_floats(const nt *t)
{
	nt form = *t;
	form.dtype = DT_F32;
	form.data = NULL;
	nt_strides_like(&form, t);
	return form;
}

static size_t constant_bytes(const nt *t, const void *spec)
{
	uint64_t bytes;
	nt form = as_floats(t);
	(void)spec;
	return nt_bytes(&form, &bytes) ? (size_t)bytes : SIZE_MAX;
}

static void widen_constant(const nt *t, const void *spec, void *out)
{
	nt form = as_floats(t);
	(void)spec;
	form.data = out;
	nt_copy(t, &form);
}

static clv_status constant_as_floats(lowering *l, slot s, slot *out)
{
	static const packing k = {"widened/1", "", 0, constant_bytes, widen_constant};
	slot_info info = {.t = as_floats(low_at(l, s)), .root = ROOT_FIXED, .constant = true, .owner = NONE, .from = NONE};
	const void *data;
	if (!nt_bytes(&info.t, &info.reach))
		return fail(CLV_E_OVERFLOW, "a tensor of halves is too large as floats");
	TRY(low_packed(l, s, &k, &data));
	if (l->dry) /* only noted; what is made of it in turn reads something */
		TRY_MEM(data = low_alloc(l, (size_t)info.reach));
	info.t.data = (char *)data; /* nothing writes a constant */
	return low_slot(l, &info, out);
}

static clv_status widen_slot(lowering *l, slot s, slot *out)
{
	nt form = as_floats(low_at(l, s));
	if (low_is_constant(l, s))
		return constant_as_floats(l, s, out);
	TRY(low_temp(l, &form, out));
	return low_copy(l, s, *out);
}

typedef struct widening {
	lowering *l;
	clv_status st;
	value_id kept; /* is not widened; NONE: there is none */
} widening;

static void widen_arg(void *ctx, value_id v)
{
	widening *w = ctx;
	lowering *l = w->l;
	slot s = l->s->slot_of[v], wide;
	if (w->st != CLV_OK || v == w->kept || !is_half_tensor(l->p, v) || s == NONE || !is_half(low_at(l, s)->dtype))
		return;
	w->st = widen_slot(l, s, &wide);
	if (w->st == CLV_OK)
		w->st = vec_push(&l->widened, ((widened){v, s}));
	if (w->st == CLV_OK)
		l->s->slot_of[v] = wide;
}

/* ---- a node ---------------------------------------------------------------------------------------------------------------- */

/* NONE: it is not constant, or another argument, too. */
static value_id kept_of(const lowering *l, node_id n, uint32_t i)
{
	const node *x = &l->p->nodes.at[n];
	value_id v = i && i < x->nargs ? arg_value(&l->p->args.at[x->args + i]) : NONE;
	if (v == NONE || l->s->slot_of[v] == NONE || !low_is_constant(l, l->s->slot_of[v]))
		return NONE;
	for (uint32_t k = 0; k < x->nargs; k++)
		if (k != i && arg_value(&l->p->args.at[x->args + k]) == v)
			return NONE;
	return v;
}

clv_status widen_start(lowering *l, node_id n, const native_op *o)
{
	widening w = {.l = l, .kept = kept_of(l, n, o->keeps)};
	l->widens = (!o->takes || o->widens) && has_halves(l->p, n);
	if (l->widens)
		node_each_arg(l->p, n, widen_arg, &w);
	return w.st;
}

void widen_end(lowering *l)
{
	for (uint32_t i = 0; i < l->widened.n; i++)
		l->s->slot_of[l->widened.at[i].v] = l->widened.at[i].narrow;
	l->widened.n = 0;
	l->widens = false;
}

bool widen_result(const lowering *l, value_id v)
{
	return l->widens && is_half_tensor(l->p, v);
}

slot widen_original(const lowering *l, value_id v)
{
	for (uint32_t i = 0; i < l->widened.n; i++)
		if (l->widened.at[i].v == v)
			return l->widened.at[i].narrow;
	return l->s->slot_of[v];
}
