/* Sequences whose length follows the sizes: rows of unbind, parts of split and chunk.
 *
 * Streams with other numbers of results do not align. But where a sequence is put together again whole, in order or reversed
 * (stack, cat), the result is a copy of the tensor it was taken from, or that tensor flipped; and where only a few of its
 * parts are used (rows[0], rows[-1]), each of them is a view that can be taken by itself. Folding writes the stream so; the
 * numbers in it then are formulas like any other. What is done to every row on its own stays as it is. */
#include "capture/capture.h"

#include <string.h>

enum { PARTS_MAX = 4 };

typedef struct fold {
	stream *s;
	uint32_t op;          /* the one in hand */
	uint32_t *whole_uses; /* per tensor: uses as a part of a sequence that is put together again */
	uint32_t *uses;       /* per tensor: all uses */
	VEC(stream_op) ops;   /* the new ones */
	bool any;
} fold;

/* ---- uses -------------------------------------------------------------------------------------------------------- */

static void count_steps(const br_arg *a, uint32_t n, uint32_t *uses)
{
	for (uint32_t i = 0; i < n; i++) {
		if (a[i].kind == BR_TENSOR)
			uses[a[i].u.id]++;
		else if (a[i].kind == BR_LIST)
			count_steps(a[i].u.list.at, a[i].u.list.n, uses);
	}
}

static void count_all(fold *f)
{
	const stream *s = f->s;
	for (uint32_t i = 0; i < s->ops.n; i++) {
		count_steps(s->ops.at[i].args, s->ops.at[i].nargs, f->uses);
		for (uint32_t w = 0; w < s->ops.at[i].nwrites; w++)
			f->uses[s->ops.at[i].writes[w]]++;
	}
	for (uint32_t i = 0; i < s->outputs.n; i++)
		f->uses[s->outputs.at[i]]++;
	for (uint32_t i = 0; i < s->rebinds.n; i++)
		f->uses[s->rebinds.at[i].tensor]++;
}

/* An operator that takes a tensor apart along a dimension. */
static bool takes_apart(const stream *s, const stream_op *o, int64_t *dim)
{
	bool rows = o->op_id == OP_unbind_int;
	uint32_t at = rows ? 1 : 2;
	if (!rows && o->op_id != OP_split_Tensor && o->op_id != OP_chunk)
		return false;
	if (o->modes.grad || o->nargs <= at || o->args[0].kind != BR_TENSOR || o->args[at].kind != BR_INT ||
	    o->nresults != 1 || o->results[0].kind != BR_LIST || o->results[0].u.list.n < 1)
		return false;
	int64_t ndim = s->tensors.at[o->args[0].u.id].ndim;
	*dim = o->args[at].u.i < 0 ? o->args[at].u.i + ndim : o->args[at].u.i;
	return s->tensors.at[o->args[0].u.id].strided;
}

/* Whether all parts of `apart`, and nothing else, stand in the list, in order or reversed. */
static bool same_parts(const br_arg *parts, const br_arg *list, bool reversed)
{
	uint32_t n = parts->u.list.n;
	for (uint32_t i = 0; i < n; i++) {
		const br_arg *x = &parts->u.list.at[i], *y = &list->u.list.at[reversed ? n - 1 - i : i];
		if (x->kind != BR_TENSOR || y->kind != BR_TENSOR || x->u.id != y->u.id)
			return false;
	}
	return true;
}

static bool contiguous(const stream_tensor *t)
{
	br_meta m = {.strided = t->strided, .ndim = t->ndim, .sizes = t->sizes, .strides = t->strides};
	return t->strided && br_is_contiguous(&m) && !t->conj && !t->neg;
}

/* Operator `at` puts the parts of operator `from` together again along the same dimension. */
static bool puts_together(const stream *s, uint32_t from, uint32_t at, bool *reversed)
{
	const stream_op *o = &s->ops.at[at], *a = &s->ops.at[from];
	bool rows = a->op_id == OP_unbind_int;
	int64_t dim, whole = s->tensors.at[a->args[0].u.id].ndim;
	if (o->op_id != (rows ? OP_stack : OP_cat) || o->nargs != 2 || o->args[0].kind != BR_LIST ||
	    o->args[1].kind != BR_INT || o->args[0].u.list.n != a->results[0].u.list.n || !takes_apart(s, a, &dim))
		return false;
	if ((o->args[1].u.i < 0 ? o->args[1].u.i + whole : o->args[1].u.i) != dim || o->modes.grad ||
	    !contiguous(&s->tensors.at[a->args[0].u.id]))
		return false;
	*reversed = a->results[0].u.list.n > 1 && same_parts(&a->results[0], &o->args[0], true);
	bool single = rows || (a->args[1].kind == BR_INT && a->args[1].u.i == 1 && a->op_id == OP_split_Tensor);
	return same_parts(&a->results[0], &o->args[0], false) || (*reversed && single);
}

/* ---- writing the stream anew ---------------------------------------------------------------------------------------- */

static clv_status add_op(fold *f, const stream_op *like, uint16_t op, const br_arg *args, uint32_t nargs,
                         const br_arg *result)
{
	stream_op o = *like;
	o.op = op_rows[op].text;
	o.op_id = op;
	o.args = arena_copy(&f->s->a, args, nargs * sizeof *args);
	o.results = arena_copy(&f->s->a, result, sizeof *result);
	o.nargs = nargs;
	o.nresults = 1;
	o.writes = NULL;
	o.nwrites = 0;
	TRY_MEM(o.args && o.results);
	return vec_push(&f->ops, o);
}

/* One part by itself: select for a row, narrow for a longer part. */
static clv_status add_part(fold *f, const stream_op *o, int64_t dim, uint32_t k, int64_t start)
{
	const br_arg *part = &o->results[0].u.list.at[k];
	br_arg a[4] = {o->args[0], {.kind = BR_INT, .u.i = dim}, {.kind = BR_INT}, {.kind = BR_INT}};
	bool rows = o->op_id == OP_unbind_int;
	a[2].u.i = rows ? (int64_t)k : start;
	if (!rows)
		a[3].u.i = f->s->tensors.at[part->u.id].sizes[dim];
	return add_op(f, o, rows ? OP_select_int : OP_narrow, a, rows ? 3 : 4, part);
}

static uint32_t used_alone(const fold *f, const stream_op *o)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < o->results[0].u.list.n; i++) {
		const br_arg *r = &o->results[0].u.list.at[i];
		n += r->kind == BR_TENSOR && f->uses[r->u.id] > f->whole_uses[r->u.id];
	}
	return n;
}

static clv_status fold_apart(fold *f, const stream_op *o, int64_t dim)
{
	int64_t start = 0;
	uint32_t alone = used_alone(f, o);
	if (alone > PARTS_MAX || o->results[0].u.list.at[0].kind != BR_TENSOR)
		return vec_push(&f->ops, *o);
	f->any = true;
	for (uint32_t i = 0; i < o->results[0].u.list.n; i++) {
		uint32_t t = o->results[0].u.list.at[i].u.id;
		if (f->uses[t] > f->whole_uses[t])
			TRY(add_part(f, o, dim, i, start));
		if (o->op_id != OP_unbind_int)
			start += f->s->tensors.at[t].sizes[dim];
	}
	return CLV_OK;
}

/* stack(unbind(x)) is a copy of x, of its reverse flip(x). */
static clv_status fold_together(fold *f, const stream_op *o, uint32_t from, bool reversed)
{
	const stream_op *apart = &f->s->ops.at[from];
	int64_t dim;
	br_arg a[2] = {apart->args[0], {.kind = BR_MEMFMT, .u.code = 0 /* contiguous */}}, axis = {.kind = BR_INT};
	(void)takes_apart(f->s, apart, &dim);
	f->any = true;
	if (!reversed)
		return add_op(f, o, OP_clone, a, 2, &o->results[0]);
	axis.u.i = dim;
	a[1] = (br_arg){.kind = BR_LIST};
	a[1].u.list.n = 1;
	TRY_MEM((a[1].u.list.at = arena_copy(&f->s->a, &axis, sizeof axis)));
	return add_op(f, o, OP_flip, a, 2, &o->results[0]);
}

/* Which operator's parts `at` puts together; NONE: it does not. Parts are views: what is written to them in between is in the
   tensor itself when it is copied. */
static uint32_t apart_of(const stream *s, uint32_t at, bool *reversed)
{
	uint16_t op = s->ops.at[at].op_id;
	int64_t dim;
	if (op != OP_stack && op != OP_cat)
		return NONE;
	for (uint32_t k = at; k-- > 0;)
		if (takes_apart(s, &s->ops.at[k], &dim) && puts_together(s, k, at, reversed))
			return k;
	return NONE;
}

static clv_status fold_ops(fold *f)
{
	const stream *s = f->s;
	bool reversed;
	for (uint32_t i = 0; i < s->ops.n; i++)
		if (apart_of(s, i, &reversed) != NONE)
			count_steps(s->ops.at[i].args, 1, f->whole_uses);
	for (uint32_t i = 0; i < s->ops.n; i++) {
		const stream_op *o = &s->ops.at[i];
		int64_t dim;
		uint32_t from = apart_of(s, i, &reversed);
		if (from != NONE && used_alone(f, &s->ops.at[from]) <= PARTS_MAX)
			TRY(fold_together(f, o, from, reversed));
		else if (takes_apart(s, o, &dim))
			TRY(fold_apart(f, o, dim));
		else
			TRY(vec_push(&f->ops, *o));
	}
	return CLV_OK;
}

/* ---- numbers of tensors: those that are left count up again ----------------------------------------------------------- */

static void keep_step(const br_arg *a, uint32_t n, uint32_t *to)
{
	for (uint32_t i = 0; i < n; i++) {
		if (a[i].kind == BR_TENSOR)
			to[a[i].u.id] = 0;
		else if (a[i].kind == BR_LIST)
			keep_step(a[i].u.list.at, a[i].u.list.n, to);
	}
}

static void renumber_tensors(br_arg *a, uint32_t n, const uint32_t *to)
{
	for (uint32_t i = 0; i < n; i++) {
		if (a[i].kind == BR_TENSOR)
			a[i].u.id = to[a[i].u.id];
		else if (a[i].kind == BR_LIST)
			renumber_tensors(a[i].u.list.at, a[i].u.list.n, to);
	}
}

/* Arguments of operators that were left alone share no memory with those made anew but for lists, which are copied. */
static clv_status own_lists(stream *s, br_arg *a, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		if (a[i].kind != BR_LIST || !a[i].u.list.n)
			continue;
		a[i].u.list.at = arena_copy(&s->a, a[i].u.list.at, a[i].u.list.n * sizeof *a);
		TRY_MEM(a[i].u.list.at);
		TRY(own_lists(s, a[i].u.list.at, a[i].u.list.n));
	}
	return CLV_OK;
}

static void renumber_all(stream *s, const uint32_t *to)
{
	for (uint32_t i = 0; i < s->ops.n; i++) {
		stream_op *o = &s->ops.at[i];
		renumber_tensors(o->args, o->nargs, to);
		renumber_tensors(o->results, o->nresults, to);
		for (uint32_t w = 0; w < o->nwrites; w++)
			o->writes[w] = to[o->writes[w]];
	}
	for (uint32_t i = 0; i < s->inputs.n; i++)
		s->inputs.at[i] = to[s->inputs.at[i]];
	for (uint32_t i = 0; i < s->outputs.n; i++)
		s->outputs.at[i] = to[s->outputs.at[i]];
	for (uint32_t i = 0; i < s->states.n; i++)
		s->states.at[i].tensor = to[s->states.at[i].tensor];
	for (uint32_t i = 0; i < s->ties.n; i++)
		s->ties.at[i].tensor = to[s->ties.at[i].tensor];
	for (uint32_t i = 0; i < s->rebinds.n; i++)
		s->rebinds.at[i].tensor = to[s->rebinds.at[i].tensor];
}

/* Parts that no operator has any more are dropped; every other tensor stays, in its order. */
static clv_status compact(stream *s, const stream_op *old, uint32_t nold)
{
	uint32_t *to = mem_alloc((s->tensors.n + 1) * sizeof *to), n = 0;
	TRY_MEM(to);
	for (uint32_t i = 0; i < nold; i++)
		for (uint32_t k = 0; k < old[i].nresults; k++)
			for (uint32_t e = 0; old[i].results[k].kind == BR_LIST && e < old[i].results[k].u.list.n; e++)
				if (old[i].results[k].u.list.at[e].kind == BR_TENSOR)
					to[old[i].results[k].u.list.at[e].u.id] = NONE;
	for (uint32_t i = 0; i < s->ops.n; i++) {
		keep_step(s->ops.at[i].args, s->ops.at[i].nargs, to);
		keep_step(s->ops.at[i].results, s->ops.at[i].nresults, to);
	}
	for (uint32_t i = 0; i < s->outputs.n; i++)
		to[s->outputs.at[i]] = 0;
	for (uint32_t i = 0; i < s->rebinds.n; i++)
		to[s->rebinds.at[i].tensor] = 0;
	for (uint32_t t = 0; t < s->tensors.n; t++) {
		if (to[t] == NONE) {
			br_unref(s->tensors.at[t].data);
			continue;
		}
		to[t] = n;
		s->tensors.at[n++] = s->tensors.at[t];
	}
	s->tensors.n = n;
	renumber_all(s, to);
	mem_free(to);
	return CLV_OK;
}

static clv_status replace_ops(fold *f)
{
	stream *s = f->s;
	for (uint32_t i = 0; i < f->ops.n; i++) {
		stream_op *o = &f->ops.at[i];
		o->args = arena_copy(&s->a, o->args, o->nargs * sizeof *o->args);
		o->results = arena_copy(&s->a, o->results, o->nresults * sizeof *o->results);
		o->writes = arena_copy(&s->a, o->writes, o->nwrites * sizeof *o->writes);
		TRY_MEM(o->args && o->results && o->writes);
		TRY(own_lists(s, o->args, o->nargs));
		TRY(own_lists(s, o->results, o->nresults));
	}
	stream_op *old = s->ops.at;
	uint32_t nold = s->ops.n;
	s->ops.at = f->ops.at;
	s->ops.n = f->ops.n;
	s->ops.cap = f->ops.cap;
	memset(&f->ops, 0, sizeof f->ops);
	clv_status st = compact(s, old, nold);
	mem_free(old);
	return st;
}

clv_status stream_fold(stream *s, bool *changed)
{
	fold f = {.s = s};
	f.uses = mem_alloc((s->tensors.n + 1) * sizeof *f.uses);
	f.whole_uses = mem_alloc((s->tensors.n + 1) * sizeof *f.whole_uses);
	clv_status st = f.uses && f.whole_uses ? CLV_OK : fail_nomem();
	if (st == CLV_OK) {
		count_all(&f);
		st = fold_ops(&f);
	}
	if (st == CLV_OK && f.any)
		st = replace_ops(&f);
	*changed = f.any;
	mem_free(f.uses);
	mem_free(f.whole_uses);
	vec_free(&f.ops);
	return st;
}
