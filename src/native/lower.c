/* Lowering: the nodes of a part at given sizes become slots, blocks of memory and steps.
 *
 * A value of the plan is a slot: a tensor with strides on a block of the frame, an input, a bound tensor or memory that is the
 * same in every run. A block lives from the node that makes it to the last node that uses a value on it.
 *
 * Memory that is shared in the plan need not be shared here, and the reverse, as long as no write can tell. Where it could,
 * `strict` sets of the plan keep their layout and their views (program.c finds them), and what the plan has on memory of its
 * own is copied. */
#include "native/lowering.h"

#include <string.h>

#include "base/limits.h"
#include "native/moves.h"
#include "native/packed.h"
#include "native/widen.h"

#include "memory/place.h"

/* ---- slots and blocks ---------------------------------------------------------------------------------------------------- */

const plan *low_plan(const lowering *l)
{
	return l->p;
}

const native_kernels *low_kernels(const lowering *l)
{
	return l->k;
}

int low_threads(const lowering *l)
{
	return l->g->threads;
}

uint32_t low_what(const lowering *l, node_id n)
{
	const native_op *o = native_op_of(l->p->nodes.at[n].op_id);
	return o ? o->what : 0;
}

void *low_alloc(lowering *l, size_t n)
{
	l->taken += n;
	if (n > INT64_MAX || l->taken > INT64_MAX || limits_room((int64_t)l->taken) != CLV_OK)
		return NULL;
	return arena_alloc(&l->s->arena, n ? n : 1);
}

void *low_array(lowering *l, int64_t n, size_t each)
{
	size_t bytes;
	return n < 0 || __builtin_mul_overflow((size_t)n, each, &bytes) ? NULL : low_alloc(l, bytes);
}

const nt *low_at(const lowering *l, slot s)
{
	return &l->s->slots.at[s].t;
}

bool low_is_constant(const lowering *l, slot s)
{
	return l->s->slots.at[s].constant;
}

/* Steps and tensors of a node may be as many as a number in the file says. */
static clv_status count_made(lowering *l, uint32_t n, size_t bytes)
{
	l->taken += bytes;
	if (n % 1024)
		return CLV_OK;
	TRY(limits_check());
	return limits_room((int64_t)l->taken);
}

clv_status low_step(lowering *l, step_fn run, const void *params)
{
	TRY(count_made(l, l->s->steps.n, sizeof(native_step)));
	return vec_push(&l->s->steps, ((native_step){run, params, l->at < l->end ? l->at : NONE}));
}

static clv_status too_large(void)
{
	return fail(CLV_E_OVERFLOW, "a tensor of these sizes has more than 2^63 bytes");
}

clv_status low_block(lowering *l, uint64_t bytes, uint32_t *out)
{
	if (bytes > INT64_MAX / 4)
		return too_large();
	*out = l->s->blocks.n;
	return vec_push(&l->s->blocks, ((native_block){.bytes = (bytes + MEMORY_ALIGN - 1) & ~(uint64_t)(MEMORY_ALIGN - 1),
	                                               .born = l->at,
	                                               .died = l->at}));
}

clv_status low_slot(lowering *l, const slot_info *info, slot *out)
{
	shaped *s = l->s;
	int64_t n = nt_numel(&info->t);
	if (n > s->largest) {
		s->largest = n;
		s->each = (int64_t)dtype_bytes(info->t.dtype);
	}
	*out = s->slots.n;
	TRY(count_made(l, s->slots.n, sizeof *info));
	return vec_push(&s->slots, *info);
}

/* A tensor on a new block. */
clv_status low_new(lowering *l, const nt *form, value_id owner, slot *out)
{
	slot_info info = {.t = *form, .root = ROOT_BLOCK, .owner = owner, .from = NONE};
	uint64_t bytes;
	if (!nt_bytes(form, &bytes))
		return too_large();
	info.t.data = NULL;
	info.reach = bytes;
	TRY(low_block(l, bytes, &info.id));
	return low_slot(l, &info, out);
}

clv_status low_temp(lowering *l, const nt *form, slot *out)
{
	return low_new(l, form, NONE, out);
}

clv_status low_scratch(lowering *l, size_t bytes, slot *out)
{
	nt form = {.dtype = DT_U8, .ndim = 1, .size = {(int64_t)bytes}, .stride = {1}};
	return bytes > INT64_MAX / 4 ? too_large() : low_new(l, &form, NONE, out);
}

static bool same_place(const slot_info *a, const slot_info *b)
{
	if (a->root != b->root || a->id != b->id || a->offset != b->offset || a->t.data != b->t.data ||
	    a->t.dtype != b->t.dtype || a->t.ndim != b->t.ndim)
		return false;
	for (uint32_t d = 0; d < a->t.ndim; d++)
		if (a->t.size[d] != b->t.size[d] || (a->t.size[d] != 1 && a->t.stride[d] != b->t.stride[d]))
			return false;
	return true;
}

static bool same_sizes(const nt *a, const nt *b)
{
	return a->ndim == b->ndim && memcmp(a->size, b->size, a->ndim * sizeof *a->size) == 0;
}

clv_status low_copy(lowering *l, slot from, slot to)
{
	const slot_info *a = &l->s->slots.at[from], *b = &l->s->slots.at[to];
	if (!same_sizes(&a->t, &b->t))
		return fail(CLV_E_INVALID, "a tensor is copied to one of another shape");
	if (same_place(a, b))
		return CLV_OK;
	TRY(low_reads(l, from));
	a = &l->s->slots.at[from], b = &l->s->slots.at[to]; /* slots may have moved */
	if (a->t.dtype == b->t.dtype) {
		move m = move_between(&a->t, &b->t);
		return low_move(l, from, to, &m);
	}
	slot *params = low_alloc(l, 2 * sizeof *params);
	TRY_MEM(params);
	params[0] = from;
	params[1] = to;
	return low_step(l, step_copy, params);
}

clv_status low_as_rows(lowering *l, slot s, slot *out)
{
	nt form = *low_at(l, s);
	*out = s;
	if (nt_is_rows(&form))
		return CLV_OK;
	nt_rows(&form);
	TRY(low_temp(l, &form, out));
	return low_copy(l, s, *out);
}

/* The tensor on the memory of another, if it lies inside of that. */
clv_status low_slice(lowering *l, slot of, int64_t offset, const nt *form, slot *out)
{
	slot_info info = l->s->slots.at[of];
	int64_t item = (int64_t)dtype_bytes(info.t.dtype), bytes;
	uint64_t reach;
	char *data = info.t.data;
	if (!nt_bytes(form, &reach))
		return too_large();
	if (offset < 0 || __builtin_mul_overflow(offset, item, &bytes) ||
	    __builtin_add_overflow(info.offset, bytes, &info.offset) ||
	    (reach && (uint64_t)info.offset + reach > info.reach))
		return fail(CLV_E_INVALID, "a view reaches beyond the tensor that it is of");
	info.t = *form;
	info.t.data = data ? data + bytes : NULL;
	return low_slot(l, &info, out);
}

clv_status low_part(lowering *l, slot of, int64_t offset, const nt *form, slot *out)
{
	return low_slice(l, of, offset, form, out);
}

/* ---- results ------------------------------------------------------------------------------------------------------------- */

value_id arg_value(const arg *a)
{
	return a->kind == ARG_VALUE ? a->u.v : NONE;
}

/* Result i of a node, lists taken apart. */
value_id node_result(const plan *p, node_id n, uint32_t i)
{
	const node *x = &p->nodes.at[n];
	for (uint32_t k = 0; k < x->nresults; k++) {
		const arg *a = &p->args.at[x->results + k];
		uint32_t count = a->kind == ARG_LIST ? a->u.list.n : 1;
		if (i < count)
			return arg_value(a->kind == ARG_LIST ? &p->args.at[a->u.list.first + i] : a);
		i -= count;
	}
	return NONE;
}

uint32_t low_results(const lowering *l, node_id n)
{
	const node *x = &l->p->nodes.at[n];
	uint32_t count = 0;
	for (uint32_t k = 0; k < x->nresults; k++) {
		const arg *a = &l->p->args.at[x->results + k];
		count += a->kind == ARG_LIST ? a->u.list.n : 1;
	}
	return count;
}

bool low_wants(const lowering *l, node_id n, uint32_t i)
{
	value_id v = node_result(l->p, n, i);
	return v != NONE && (l->g->last[v] != NONE || l->g->kept[v]);
}

/* The tensor that the plan has, row-major. */
clv_status low_form_of(const lowering *l, value_id v, nt *out)
{
	const value *x = &l->p->values.at[v];
	uint64_t bytes;
	*out = (nt){.dtype = x->dtype, .ndim = (uint8_t)x->ndim};
	if (x->type != TYPE_TENSOR || x->ndim > NT_DIMS)
		return fail(CLV_E_UNSUPPORTED, "a value is no tensor, or has more than %d dimensions", NT_DIMS);
	for (uint32_t d = 0; d < x->ndim; d++) {
		expr_id e = l->p->dims.at[x->shape + d];
		if (!l->s->defined[e] || l->s->exprs[e] < 0)
			return fail(CLV_E_OVERFLOW, "a size of the plan is negative or not defined for these sizes");
		out->size[d] = l->s->exprs[e];
	}
	int64_t at = 1;
	for (uint32_t d = 0; d < x->ndim; d++)
		if (__builtin_mul_overflow(at, out->size[d] ? out->size[d] : 1, &at))
			return too_large();
	nt_rows(out);
	return nt_bytes(out, &bytes) ? CLV_OK : too_large();
}

static clv_status result_of(const lowering *l, node_id n, uint32_t i, value_id *out)
{
	*out = node_result(l->p, n, i);
	return *out != NONE ? CLV_OK : fail(CLV_E_UNSUPPORTED, "the plan has no result %u", i);
}

clv_status low_form(lowering *l, node_id n, uint32_t i, nt *out)
{
	value_id v;
	TRY(result_of(l, n, i, &v));
	TRY(low_form_of(l, v, out));
	if (widen_result(l, v))
		out->dtype = DT_F32;
	return CLV_OK;
}

static clv_status other_type(uint8_t gives, uint8_t has)
{
	return fail(CLV_E_VERIFY, "the operator gives %s, the plan has %s", dtype_name((dtype)gives),
	            dtype_name((dtype)has));
}

clv_status low_form_of_type(lowering *l, node_id n, uint32_t i, uint8_t type, nt *out)
{
	TRY(low_form(l, n, i, out));
	return out->dtype == type ? CLV_OK : other_type(type, out->dtype);
}

static clv_status check_form(const lowering *l, value_id v, const nt *form)
{
	nt want;
	TRY(low_form_of(l, v, &want));
	if (widen_result(l, v))
		want.dtype = DT_F32;
	if (form->dtype != want.dtype)
		return other_type(form->dtype, want.dtype);
	if (same_sizes(form, &want))
		return CLV_OK;
	strbuf b = STRBUF_INIT;
	char *text = NULL;
	for (uint32_t d = 0; d < form->ndim; d++)
		strbuf_printf(&b, "%s%lld", d ? "," : "", (long long)form->size[d]);
	strbuf_puts(&b, "], the plan has ");
	value_print_type(l->p, v, &b);
	TRY(strbuf_take(&b, &text));
	clv_status st = fail(CLV_E_VERIFY, "the operator gives a tensor of sizes [%s", text);
	mem_free(text);
	return st;
}

/* The value is in that slot; its block lives as long as the value does. */
void low_put(lowering *l, value_id v, slot s)
{
	const slot_info *info = &l->s->slots.at[s];
	uint32_t last = l->g->kept[v] ? UINT32_MAX - 1 : l->g->last[v];
	l->s->slot_of[v] = s;
	if (info->root == ROOT_BLOCK && last != NONE && last > l->s->blocks.at[info->id].died)
		l->s->blocks.at[info->id].died = last;
}

/* The argument that a node writes and returns; NONE: it writes none. */
static value_id self_of(const lowering *l, node_id n, uint32_t i)
{
	const node *x = &l->p->nodes.at[n];
	value_id v = x->nwrites && x->nargs && i == 0 ? arg_value(&l->p->args.at[x->args]) : NONE;
	return v;
}

/* The dimension with the smallest stride of those that are not done; NT_DIMS: none is left. */
static uint32_t next_dim(const nt *t, unsigned done)
{
	uint32_t best = NT_DIMS;
	for (uint32_t d = 0; d < t->ndim; d++)
		if (!(done >> d & 1) && t->size[d] > 1 && (best == NT_DIMS || t->stride[d] < t->stride[best]))
			best = d;
	return best;
}

/* Elements of it may be the same memory: a dimension steps no further than those inside of it reach. */
static bool overlaps(const nt *t)
{
	int64_t reach = 0;
	unsigned done = 0;
	for (uint32_t d; nt_numel(t) && (d = next_dim(t, done)) != NT_DIMS; done |= 1u << d) {
		if (t->stride[d] <= reach)
			return true;
		reach += (t->size[d] - 1) * t->stride[d];
	}
	return false;
}

static clv_status copy_at_end(lowering *l, slot from, slot to)
{
	TRY(vec_push(&l->copies, from));
	return vec_push(&l->copies, to);
}

clv_status low_in_place(lowering *l, node_id n, slot *out)
{
	value_id self = self_of(l, n, 0), v;
	TRY(result_of(l, n, 0, &v));
	if (self == NONE || l->s->slot_of[self] == NONE)
		return fail(CLV_E_UNSUPPORTED, "argument 0 is no tensor that was made");
	*out = l->s->slot_of[self];
	slot written = widen_original(l, self);
	if (overlaps(low_at(l, written)))
		return fail(CLV_E_UNSUPPORTED, "it writes a tensor whose elements overlap");
	if (l->s->slots.at[written].root == ROOT_FIXED)
		return fail(CLV_E_UNSUPPORTED, "it writes a tensor that is taken for constant");
	TRY(check_form(l, v, low_at(l, *out)));
	low_put(l, v, written);
	return written == *out ? CLV_OK : copy_at_end(l, *out, written);
}

/* The operator writes strides or a type of its own: its result is copied to where it belongs when the node is done. */
static clv_status beside(lowering *l, const nt *form, slot to, slot *out)
{
	TRY(low_temp(l, form, out));
	return copy_at_end(l, *out, to);
}

static bool same_strides(const nt *a, const nt *b)
{
	for (uint32_t d = 0; d < a->ndim; d++)
		if (a->size[d] != 1 && a->stride[d] != b->stride[d])
			return false;
	return true;
}

static clv_status result_in_place(lowering *l, node_id n, const nt *form, bool fixed, slot *out)
{
	slot to;
	TRY(low_in_place(l, n, &to));
	*out = to;
	return fixed && !same_strides(form, low_at(l, to)) ? beside(l, form, to, out) : CLV_OK;
}

clv_status low_result(lowering *l, node_id n, uint32_t i, const nt *form, bool fixed, slot *out)
{
	value_id v, root;
	nt kept = *form, rows;
	slot to;
	TRY(result_of(l, l->until[n] == NONE || i ? n : l->until[n], i, &v));
	TRY(check_form(l, v, form));
	if (!nt_is_dense(form))
		return fail(CLV_E_VERIFY, "the operator gives a result whose elements leave gaps, or overlap");
	if (self_of(l, n, i) != NONE)
		return result_in_place(l, n, form, fixed, out);
	root = alias_root(l->p, v);
	if (l->g->strict[root] && root != v)
		return fail(CLV_E_UNSUPPORTED, "the plan has a view here of memory that is written, and it cannot be one");
	kept.dtype = l->p->values.at[v].dtype;
	rows = kept;
	nt_rows(&rows);
	bool plain = l->g->strict[root] || (l->g->kept[v] && !fixed);
	to = l->s->slot_of[v]; /* of a concatenation that has parts already */
	if (to == NONE)
		TRY(concat_place_of(l, v, &kept, fixed, &to));
	if (to == NONE)
		TRY(low_new(l, plain ? &rows : &kept, root, &to));
	low_put(l, v, to);
	*out = to;
	bool other = widen_result(l, v) || (fixed && !same_strides(form, low_at(l, to)));
	return other ? beside(l, form, to, out) : CLV_OK;
}

static bool written_later(const lowering *l, value_id root)
{
	return root != NONE && l->g->last_write[root] != NONE && l->g->last_write[root] > l->at;
}

/* On the memory of another tensor where the plan has it on memory of its own: no write may tell. */
static bool may_share(const lowering *l, value_id v, slot of)
{
	value_id root = alias_root(l->p, v), owner = l->s->slots.at[of].owner;
	return root == owner || (!written_later(l, root) && !written_later(l, owner));
}

static clv_status own_copy(lowering *l, node_id n, uint32_t i, slot of)
{
	nt form = *low_at(l, of);
	slot to;
	nt_rows(&form);
	TRY(low_result(l, n, i, &form, false, &to));
	return low_copy(l, of, to);
}

clv_status low_view(lowering *l, node_id n, uint32_t i, slot of, int64_t offset, const nt *form, slot *out)
{
	value_id v;
	TRY(result_of(l, n, i, &v));
	TRY(check_form(l, v, form));
	TRY(low_slice(l, of, offset, form, out));
	if (widen_result(l, v) || !may_share(l, v, of)) {
		TRY(own_copy(l, n, i, *out));
		*out = l->s->slot_of[v];
		return CLV_OK;
	}
	low_put(l, v, *out);
	return CLV_OK;
}

clv_status low_same(lowering *l, node_id n, uint32_t i, slot of)
{
	value_id v;
	TRY(result_of(l, n, i, &v));
	TRY(check_form(l, v, low_at(l, of)));
	if (widen_result(l, v) || !may_share(l, v, of))
		return own_copy(l, n, i, of);
	low_put(l, v, of);
	return CLV_OK;
}

/* ---- what comes in ----------------------------------------------------------------------------------------------------------- */

static clv_status add_root(lowering *l, value_id v, slot_info *info)
{
	slot s;
	if (!nt_bytes(&info->t, &info->reach))
		return too_large();
	info->owner = alias_root(l->p, v);
	info->from = info->constant ? v : NONE;
	TRY(low_slot(l, info, &s));
	l->s->slot_of[v] = s;
	return CLV_OK;
}

/* With the strides of the plan, where it has some; a run brings others into this order. */
static clv_status add_input(lowering *l, uint32_t i)
{
	value_id v = l->g->v.inputs.at[i];
	const value *x = &l->p->values.at[v];
	slot_info info = {.root = ROOT_INPUT, .id = i};
	TRY(low_form_of(l, v, &info.t));
	for (uint32_t d = 0; x->kind == VALUE_INPUT && x->strides != NONE && d < x->ndim; d++) {
		expr_id e = l->p->dims.at[x->strides + d];
		if (!l->s->defined[e] || l->s->exprs[e] < 0)
			return fail(CLV_E_OVERFLOW, "a stride of an input is negative or not defined for these sizes");
		info.t.stride[d] = l->s->exprs[e];
	}
	TRY(add_root(l, v, &info));
	l->s->inputs[i] = l->s->slot_of[v];
	return CLV_OK;
}

static clv_status add_external(lowering *l, uint32_t i)
{
	value_id v = l->g->v.externals.at[i];
	const clv_tensor *t = l->g->externals[i];
	slot_info info = {.root = l->g->changing[i] ? ROOT_EXTERNAL : ROOT_FIXED, .constant = !l->g->changing[i], .id = i};
	nt want;
	if (!t || l->p->values.at[v].type != TYPE_TENSOR)
		return CLV_OK; /* if a node reads it, that fails */
	TRY(low_form_of(l, v, &want));
	if (!tensor_is_plain(t) || t->m.dtype != want.dtype || t->m.ndim != want.ndim ||
	    memcmp(t->m.sizes, want.size, want.ndim * sizeof *want.size) != 0) {
		char *label;
		TRY(value_label_text(l->p, v, &label));
		clv_status st = fail(CLV_E_INPUT, "%s is of another dtype or shape than the plan was captured with", label);
		mem_free(label);
		return st;
	}
	info.t = want;
	memcpy(info.t.stride, t->m.strides, want.ndim * sizeof *want.stride);
	info.t.data = info.root == ROOT_FIXED ? t->data : NULL;
	return add_root(l, v, &info);
}

/* Results that were made before are there, and stay. Without a frame they were not computed yet: some are views of weights, some
   are in the file. */
static clv_status add_made(lowering *l, const shaped *s, const native_frame *f, bool constant)
{
	for (value_id v = 0; s && v < l->p->values.n; v++) {
		if (s->slot_of[v] == NONE || l->s->slot_of[v] != NONE)
			continue;
		const nt *t = f ? &f->f.t[s->slot_of[v]] : &s->slots.at[s->slot_of[v]].t;
		slot_info info = {.t = *t, .root = ROOT_FIXED, .constant = constant};
		TRY(add_root(l, v, &info));
		if (constant)
			TRY(packed_value(l, v));
	}
	return CLV_OK;
}

static bool has_sizes(const lowering *l, value_id v)
{
	const value *x = &l->p->values.at[v];
	for (uint32_t d = 0; d < x->ndim; d++)
		if (!l->s->defined[l->p->dims.at[x->shape + d]])
			return false;
	return true;
}

/* What is made once knows no sizes of the call. */
static clv_status add_what_comes_in(lowering *l)
{
	for (uint32_t i = 0; l->main && i < l->g->v.inputs.n; i++)
		TRY(add_input(l, i));
	for (uint32_t i = 0; i < l->g->v.externals.n; i++)
		if (l->main || has_sizes(l, l->g->v.externals.at[i]))
			TRY(add_external(l, i));
	TRY(add_made(l, l->once, l->g->once_frame, true));
	return add_made(l, l->s->sized, l->s->sized ? l->s->sized->spare : NULL, false);
}

/* ---- nodes ------------------------------------------------------------------------------------------------------------------- */

static clv_status finish_copies(lowering *l)
{
	for (; l->copies.n; l->copies.n -= 2)
		TRY(low_copy(l, l->copies.at[l->copies.n - 2], l->copies.at[l->copies.n - 1]));
	return CLV_OK;
}

typedef struct emptiness {
	const lowering *l;
	bool made, full;
} emptiness;

static void see_size(void *ctx, value_id v)
{
	emptiness *x = ctx;
	slot s = x->l->s->slot_of[v];
	x->made |= s != NONE;
	x->full |= s != NONE && nt_numel(low_at(x->l, s)) > 0;
}

/* Tensors without elements may have any other sizes: no step is to loop over those. */
static bool is_nothing_to_do(const lowering *l, node_id n, const native_op *o)
{
	emptiness x = {.l = l};
	node_each_result(l->p, n, see_size, &x);
	return x.made && !x.full && !o->checks && !l->p->nodes.at[n].nwrites;
}

clv_status low_node(lowering *l, node_id n)
{
	const native_op *o = native_op_of(l->p->nodes.at[n].op_id);
	uint32_t before = l->s->steps.n;
	l->at = n;
	if (native_skips(l->p, n))
		return CLV_OK;
	TRY(widen_start(l, n, o));
	TRY(o->lower(l, n));
	TRY(finish_copies(l));
	widen_end(l);
	if (is_nothing_to_do(l, n, o))
		l->s->steps.n = before;
	return CLV_OK;
}

/* Groups count only where the engine's own pass made them, and where all of it is lowered. */
static clv_status try_group(lowering *l, node_id n)
{
	const plan *p = l->p;
	while (l->next_group < p->groups.n && p->groups.at[l->next_group].first < n)
		l->next_group++;
	if (p == l->g->original || l->next_group == p->groups.n || p->groups.at[l->next_group].first != n ||
	    p->groups.at[l->next_group].end > l->end)
		return CLV_OK;
	TRY(low_group(l, p->groups.at[l->next_group]));
	return finish_copies(l);
}

static clv_status lower_nodes(lowering *l)
{
	for (node_id n = l->first; n < l->end; n++) {
		clv_status st = try_group(l, n);
		if (st == CLV_OK && !l->done[n])
			st = low_node(l, n);
		if (st == CLV_OK)
			st = packed_node(l, n);
		if (st == CLV_E_NOMEM) /* low_alloc gives nothing beyond the limit of the run */
			st = limits_room((int64_t)l->taken) != CLV_OK ? CLV_E_LIMIT : st;
		if (st != CLV_OK)
			return call_failed_at(l->p, l->g->names, l->at, st);
	}
	return CLV_OK;
}

/* ---- what goes out ----------------------------------------------------------------------------------------------------------- */

/* A run gives the block away as it is: nobody else has it, and nothing but the output is on it. */
static bool can_give(const lowering *l, const slot_info *info)
{
	uint64_t bytes;
	return info->root == ROOT_BLOCK && !l->s->blocks.at[info->id].output && info->offset == 0 && nt_is_rows(&info->t) &&
	       nt_bytes(&info->t, &bytes) && l->s->blocks.at[info->id].bytes - bytes < MEMORY_ALIGN;
}

static clv_status copy_out(lowering *l, slot *s)
{
	nt form = *low_at(l, *s);
	slot to;
	nt_rows(&form);
	TRY(low_temp(l, &form, &to));
	TRY(low_copy(l, *s, to));
	*s = to;
	return CLV_OK;
}

/* A view of an input is one here too. */
static bool is_view_of_input(const lowering *l, value_id v, const slot_info *info)
{
	return info->root == ROOT_INPUT && alias_root(l->p, v) == info->owner;
}

static clv_status add_output(lowering *l, uint32_t i)
{
	value_id v = l->g->outputs.at[i];
	output_info o = {.from = OUTPUT_BLOCK, .same = NONE, .s = l->s->slot_of[v]};
	if (l->output_of[v] != NONE) {
		o.same = l->output_of[v];
		return vec_push(&l->s->outputs, o);
	}
	l->output_of[v] = i;
	if (o.s == NONE)
		return fail(CLV_E_UNSUPPORTED, "an output of the plan is not made");
	TRY(packed_output(l, v));
	if (is_view_of_input(l, v, &l->s->slots.at[o.s])) {
		o.from = OUTPUT_INPUT;
		return vec_push(&l->s->outputs, o);
	}
	if (!can_give(l, &l->s->slots.at[o.s]))
		TRY(copy_out(l, &o.s));
	native_block *b = &l->s->blocks.at[l->s->slots.at[o.s].id];
	b->output = true;
	b->bytes = b->bytes ? b->bytes : MEMORY_ALIGN; /* an empty one is given, too */
	l->s->given += b->bytes;
	return vec_push(&l->s->outputs, o);
}

static clv_status add_outputs(lowering *l)
{
	l->at = l->end;
	l->output_of = arena_ids(&l->s->arena, l->p->values.n);
	TRY(arena_status(&l->s->arena));
	for (uint32_t i = 0; i < l->g->outputs.n; i++)
		TRY(add_output(l, i));
	return CLV_OK;
}

static clv_status add_numbers(lowering *l)
{
	shaped *s = l->s;
	s->numbers = arena_array(&s->arena, l->g->numbers.n, sizeof *s->numbers);
	TRY_MEM(s->numbers);
	for (uint32_t i = 0; i < l->g->numbers.n; i++) {
		const tree *t = &l->p->out_tree.at[l->g->numbers.at[i]];
		run_number *x = &s->numbers[i];
		x->real = t->kind == TREE_REAL;
		bool ok = x->real ? real_eval(l->p, t->u.r, s->exprs, s->defined, &x->f) : s->defined[t->u.e];
		if (!x->real)
			x->i = s->exprs[t->u.e];
		if (!ok)
			return fail(CLV_E_OVERFLOW, "a number of the plan is not defined for these sizes");
	}
	return CLV_OK;
}

/* ---- memory ------------------------------------------------------------------------------------------------------------------ */

/* One after the other, where there are too many blocks to look for better places. */
static clv_status place_in_line(shaped *s, place_block *at, uint32_t n)
{
	s->bytes = 0;
	for (uint32_t i = 0; i < n; i++) {
		at[i].offset = s->bytes;
		if (__builtin_add_overflow(s->bytes, at[i].size, &s->bytes) || s->bytes > INT64_MAX / 2)
			return too_large();
	}
	return CLV_OK;
}

static clv_status place(shaped *s, place_block *at, uint32_t n)
{
	uint64_t bound, sum = 0;
	for (uint32_t i = 0; i < n; i++)
		if (__builtin_add_overflow(sum, at[i].size, &sum) || sum > INT64_MAX / 2)
			return too_large();
	TRY(place_blocks(at, n, &s->bytes, &bound));
	return n && at[0].offset == PLACE_NONE ? place_in_line(s, at, n) : CLV_OK;
}

static clv_status place_memory(shaped *s)
{
	place_block *at = mem_alloc((s->blocks.n + 1) * sizeof *at);
	uint32_t n = 0;
	if (!at)
		return fail_nomem();
	for (uint32_t i = 0; i < s->blocks.n; i++) {
		const native_block *b = &s->blocks.at[i];
		if (!b->output)
			at[n++] = (place_block){.size = b->bytes, .born = b->born, .died = b->died + 1};
	}
	clv_status st = place(s, at, n);
	n = 0;
	for (uint32_t i = 0; i < s->blocks.n && st == CLV_OK; i++)
		if (!s->blocks.at[i].output)
			s->blocks.at[i].offset = at[n++].offset;
	mem_free(at);
	return st;
}

static clv_status find_moving(lowering *l)
{
	shaped *s = l->s;
	for (slot i = 0; i < s->slots.n; i++) {
		const slot_info *x = &s->slots.at[i];
		TRY(packed_check(l, x));
		bool given = x->root == ROOT_BLOCK && s->blocks.at[x->id].output;
		if (given || x->root == ROOT_INPUT || x->root == ROOT_EXTERNAL)
			TRY(vec_push(&s->moving, i));
	}
	return CLV_OK;
}

/* ---- all of it ------------------------------------------------------------------------------------------------------------- */

static clv_status lower_all(lowering *l)
{
	TRY(add_what_comes_in(l));
	if (l->main)
		TRY(concat_find(l));
	TRY(lower_nodes(l));
	if (l->main) {
		TRY(add_outputs(l));
		TRY(add_numbers(l));
	}
	TRY(place_memory(l->s));
	return find_moving(l);
}

static clv_status make_room(lowering *l, const int64_t *symbols)
{
	shaped *s = l->s;
	const plan *p = l->p;
	s->symbols = arena_array(&s->arena, p->symbols.n, sizeof *s->symbols);
	s->exprs = arena_array(&s->arena, p->exprs.n, sizeof *s->exprs);
	s->defined = arena_array(&s->arena, p->exprs.n, sizeof *s->defined);
	s->inputs = arena_ids(&s->arena, l->g->v.inputs.n);
	s->slot_of = arena_ids(&s->arena, p->values.n);
	l->done = arena_array(&s->arena, p->nodes.n, sizeof *l->done);
	l->until = arena_ids(&s->arena, p->nodes.n);
	TRY(arena_status(&s->arena));
	for (symbol_id i = 0; i < p->symbols.n; i++)
		s->symbols[i] = symbols ? symbols[i] : -1;
	return expr_eval_all(p, s->symbols, s->exprs, s->defined);
}

void shaped_free(shaped *s)
{
	if (!s)
		return;
	while (s->spare) {
		native_frame *f = s->spare;
		s->spare = f->next;
		native_frame_free(f);
	}
	shaped_free(s->sized);
	vec_free(&s->slots);
	vec_free(&s->blocks);
	vec_free(&s->steps);
	vec_free(&s->outputs);
	vec_free(&s->moving);
	arena_free(&s->arena);
	mem_free(s);
}

clv_status shaped_lower(native_program *g, part_id part, const int64_t *symbols, shaped *sized, shaped **out)
{
	lowering l = {.g = g,
	              .p = g->p,
	              .main = part == PART_GUARDS,
	              .k = part == PART_GUARDS ? &g->lays : g->k,
	              .dry = part == PART_GUARDS ? g->packs : part == PART_ONCE && g->once_waits,
	              .once = part == PART_ONCE ? NULL : g->once,
	              .first = g->part[part],
	              .end = g->part[part + 1],
	              .group = {NONE, NONE}};
	if (part == PART_GUARDS)
		l.end = g->part[PARTS]; /* and all after it */
	l.s = mem_alloc(sizeof *l.s);
	if (!l.s)
		return fail_nomem();
	l.s->sized = sized;
	clv_status st = make_room(&l, symbols);
	if (st == CLV_OK)
		st = lower_all(&l);
	vec_free(&l.copies);
	vec_free(&l.widened);
	vec_free(&l.uses);
	mem_free(l.places);
	if (st == CLV_OK) {
		*out = l.s;
		return CLV_OK;
	}
	l.s->sized = NULL; /* the caller's */
	shaped_free(l.s);
	return st;
}
