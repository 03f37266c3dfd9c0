/* Operators that find elements by number: index, gather, scatter, embedding and their like. Every number is compared with the
 * size of its dimension in every run; one that is out of range ends the run with the message that torch has for it.
 *
 * Numbers become offsets in bytes first (one pass, on one thread); then whole slices are moved to or from these offsets. */
#include <string.h>

#include "native/moves.h"
#include "native/numbers.h"
#include "tensor/tensor.h"

static clv_status no_fit(void)
{
	return fail(CLV_E_INVALID, "the sizes of the arguments do not fit together");
}

/* Numbers as i64 in rows, spread over these sizes. */
static clv_status as_numbers(lowering *l, slot s, uint32_t ndim, const int64_t *size, slot *out)
{
	nt form = *low_at(l, s), spread;
	if (form.dtype != DT_I64 && form.dtype != DT_I32)
		return fail(CLV_E_INVALID, "tensors used as indices must be of type i64 or i32");
	if (!nt_expand(&form, (uint8_t)ndim, size, &spread))
		return no_fit();
	*out = s;
	if (form.dtype == DT_I64 && nt_is_rows(&spread))
		return CLV_OK;
	TRY(low_part(l, s, 0, &spread, &s));
	spread.dtype = DT_I64;
	nt_rows(&spread);
	TRY(low_temp(l, &spread, out));
	return low_copy(l, s, *out);
}

static clv_status as_type_rows(lowering *l, slot s, uint8_t type, slot *out)
{
	nt form = *low_at(l, s);
	*out = s;
	if (form.dtype == type && nt_is_rows(&form))
		return CLV_OK;
	form.dtype = type;
	nt_rows(&form);
	TRY(low_temp(l, &form, out));
	return low_copy(l, s, *out);
}

/* Result 0: argument 0 itself where the operator writes it, else a copy of it, row-major. */
static clv_status own_or_self(lowering *l, node_id n, slot *out)
{
	slot of;
	nt form;
	if (node_op(low_plan(l), n)->writes)
		return low_in_place(l, n, out);
	TRY(low_tensor(l, n, 0, &of));
	TRY(low_form(l, n, 0, &form));
	TRY(low_result(l, n, 0, &form, true, out));
	return low_copy(l, of, *out);
}

/* ---- slices at offsets ----------------------------------------------------------------------------------------------------- */

enum { OUT_INDEX, OUT_SELF, OUT_TAKE }; /* how torch says that a number is out of range */

typedef struct number_dim {
	slot s;
	int64_t bound, stride; /* bytes between elements of the dimension */
	uint32_t dim;
} number_dim;

typedef struct slices {
	uint32_t nnumbers;
	number_dim numbers[NT_DIMS];
	bool wraps; /* negative numbers count from the end */
	uint8_t says, dtype;
	slot mask;  /* instead of numbers: bytes, rows; NONE */
	nt masked;  /* its sizes, and strides (in bytes) of the tensor */
	bool exact; /* as many as `count` are masked; else any number of them */
	slot self, other, offsets;
	int64_t count, step; /* slices; bytes between them in `other` */
	bool put, add;
	move inner; /* one slice: from self to other, or the reverse for `put`; ready */
} slices;

static clv_status out_of_range(const slices *x, const number_dim *d, int64_t k)
{
	if (x->says == OUT_SELF)
		return fail(CLV_E_INPUT, "index out of range in self");
	if (x->says == OUT_TAKE)
		return fail(CLV_E_INPUT, "out of range: tried to access index %lld on a tensor of %lld elements.", (long long)k,
		            (long long)d->bound);
	return fail(CLV_E_INPUT, "index %lld is out of bounds for dimension %u with size %lld", (long long)k, d->dim,
	            (long long)d->bound);
}

static clv_status numbers_to_offsets(const slices *x, frame *f, int64_t *offsets)
{
	for (uint32_t i = 0; i < x->nnumbers; i++) {
		const number_dim *d = &x->numbers[i];
		const int64_t *at = (const int64_t *)f->t[d->s].data;
		for (int64_t j = 0; j < x->count; j++) {
			int64_t k = at[j];
			if (k < 0 && x->wraps)
				k += d->bound;
			if (k < 0 || k >= d->bound)
				return out_of_range(x, d, at[j]);
			offsets[j] = (i ? offsets[j] : 0) + k * d->stride;
		}
	}
	return CLV_OK;
}

static clv_status mask_to_offsets(const slices *x, frame *f, int64_t *offsets, int64_t *count)
{
	const uint8_t *mask = (const uint8_t *)f->t[x->mask].data;
	int64_t n = nt_numel(&x->masked), found = 0;
	for (int64_t j = 0; j < n; j++) {
		int64_t rest = j, offset = 0;
		if (!mask[j])
			continue;
		for (uint32_t d = x->masked.ndim; d-- > 0; rest /= x->masked.size[d])
			offset += rest % x->masked.size[d] * x->masked.stride[d];
		if (x->exact && found == x->count)
			return fail(CLV_E_GUARD, "the mask has more true elements than the %lld that the plan was captured with",
			            (long long)x->count);
		offsets[found++] = offset;
	}
	if (x->exact && found != x->count)
		return fail(CLV_E_GUARD, "the mask has %lld true elements, the plan was captured with %lld", (long long)found,
		            (long long)x->count);
	*count = found;
	return CLV_OK;
}

typedef struct slice_run {
	const slices *x;
	const native_kernels *k;
	const int64_t *offsets;
	char *self, *other;
} slice_run;

#define TAKE(type)                                                                                                     \
	for (int64_t j = first; j < end; j++)                                                                              \
	*(type *)(r->other + j * x->step) = *(const type *)(r->self + r->offsets[j])

static void take_each(const slice_run *r, int64_t first, int64_t end)
{
	const slices *x = r->x;
	switch (x->inner.bytes) {
	case 1: TAKE(uint8_t); return;
	case 2: TAKE(uint16_t); return;
	case 4: TAKE(uint32_t); return;
	default: TAKE(uint64_t); return;
	}
}

static void slice_items(void *ctx, int64_t first, int64_t end, int thread)
{
	const slice_run *r = ctx;
	const slices *x = r->x;
	const move *m = &x->inner;
	(void)thread;
	if (!x->put && m->items == 1 && m->d[0].size == 1 && m->d[1].size == 1) {
		take_each(r, first, end);
		return;
	}
	for (int64_t j = first; j < end; j++) {
		char *self = r->self + r->offsets[j], *other = r->other + j * x->step;
		r->k->move(m, x->put ? other : self, x->put ? self : other, 0, m->items);
	}
}

/* Adds a slice of `other` to one of `self`, element by element in the order of the move. */
static void add_slice(const slices *x, const char *from, char *to)
{
	const move *m = &x->inner;
	int64_t n = m->items ? 1 : 0;
	for (uint32_t d = 0; d < m->ndim; d++)
		n *= m->d[d].size;
	for (int64_t i = 0; i < n; i++) {
		int64_t rest = i, f = m->from, t = m->to;
		for (uint32_t d = m->ndim; d-- > 0; rest /= m->d[d].size) {
			f += rest % m->d[d].size * m->d[d].from;
			t += rest % m->d[d].size * m->d[d].to;
		}
		number_add(x->dtype, to + t, from + f);
	}
}

static clv_status step_slices(const void *params, frame *f)
{
	const slices *x = params;
	slice_run r = {x, f->k, (const int64_t *)f->t[x->offsets].data, f->t[x->self].data, f->t[x->other].data};
	int64_t *offsets = (int64_t *)f->t[x->offsets].data, count = x->count;
	TRY(x->mask == NONE ? numbers_to_offsets(x, f, offsets) : mask_to_offsets(x, f, offsets, &count));
	if (x->inner.items == 0)
		return CLV_OK;
	if (x->add)
		for (int64_t j = 0; j < count; j++)
			add_slice(x, r.other + j * x->step, r.self + offsets[j]);
	else if (x->put) /* in order: the last of several at one place stays */
		slice_items(&r, 0, count, 0);
	else
		team_run(f->team, count, x->inner.grain, slice_items, &r);
	return CLV_OK;
}

/* Dimensions of a tensor that are numbered, and the rest in its order. */
typedef struct layout {
	nt self, other;                /* other: sizes and strides of the result, or of the values */
	uint32_t nkept, kept[NT_DIMS]; /* dimensions of self that no number is for */
	uint32_t at, nb;               /* where the dimensions of the numbers are in `other`, and how many */
} layout;

/* Slices are so far apart in `other`: dimensions of size 1 may have any stride. */
static int64_t step_between(const layout *y)
{
	for (uint32_t d = y->nb; d-- > 0;)
		if (y->other.size[y->at + d] != 1)
			return y->other.stride[y->at + d];
	return 0;
}

static clv_status slice_step(lowering *l, slices *x, const layout *y)
{
	int64_t bytes = (int64_t)dtype_bytes(y->self.dtype);
	slices *made = low_alloc(l, sizeof *made);
	TRY_MEM(made);
	TRY(low_same_type(l, x->self, x->other));
	x->dtype = y->self.dtype;
	x->inner = (move){.bytes = (uint32_t)bytes};
	for (uint32_t k = 0; k < y->nkept; k++) {
		uint32_t d = y->kept[k], o = k < y->at ? k : k + y->nb;
		if (o >= y->other.ndim || y->other.size[o] != y->self.size[d])
			return no_fit();
		int64_t a = y->self.stride[d], b = y->other.stride[o];
		move_add(&x->inner, y->self.size[d], x->put ? b : a, x->put ? a : b);
	}
	move_ready(&x->inner);
	x->step = step_between(y) * bytes;
	TRY(low_scratch(l, (size_t)x->count * sizeof(int64_t), &x->offsets));
	*made = *x;
	return x->count || x->mask != NONE ? low_step(l, step_slices, made) : CLV_OK; /* of a mask, none may be true */
}

/* ---- one dimension ---------------------------------------------------------------------------------------------------------- */

/* Slices of self at the numbers of one tensor, along dimension `at`; `other` has nb dimensions for them. */
static clv_status by_numbers(lowering *l, slices *x, slot numbers, uint32_t at, uint32_t nb)
{
	layout y = {.self = *low_at(l, x->self), .other = *low_at(l, x->other), .at = at, .nb = nb};
	x->mask = NONE;
	x->count = 1;
	for (uint32_t d = 0; d < nb; d++)
		x->count *= y.other.size[at + d];
	x->nnumbers = 1;
	x->numbers[0] = (number_dim){.bound = y.self.size[at], .dim = at};
	x->numbers[0].stride = y.self.stride[at] * (int64_t)dtype_bytes(y.self.dtype);
	TRY(as_numbers(l, numbers, nb, y.other.size + at, &x->numbers[0].s));
	for (uint32_t d = 0; d < y.self.ndim; d++)
		if (d != at)
			y.kept[y.nkept++] = d;
	if (y.other.ndim != y.self.ndim - 1 + nb)
		return no_fit();
	return slice_step(l, x, &y);
}

static clv_status lower_embedding(lowering *l, node_id n)
{
	slices x = {.says = OUT_SELF};
	slot numbers;
	nt form;
	TRY(low_tensor(l, n, 0, &x.self));
	TRY(low_tensor(l, n, 1, &numbers));
	TRY(low_form(l, n, 0, &form));
	TRY(low_result(l, n, 0, &form, true, &x.other));
	uint32_t nb = low_at(l, numbers)->ndim;
	if (low_at(l, x.self)->ndim != 2 || form.ndim != nb + 1)
		return no_fit();
	return by_numbers(l, &x, numbers, 0, nb);
}

static clv_status lower_index_select(lowering *l, node_id n)
{
	slices x = {.says = OUT_SELF};
	slot numbers;
	uint32_t at;
	nt form;
	TRY(low_tensor(l, n, 0, &x.self));
	TRY(low_tensor(l, n, 2, &numbers));
	const nt self = *low_at(l, x.self);
	TRY(low_dim(l, n, 1, 0, self.ndim, &at));
	TRY(low_form(l, n, 0, &form));
	if (self.ndim == 0 || form.ndim != self.ndim)
		return fail(CLV_E_UNSUPPORTED, "index_select of a tensor without dimensions is not supported");
	if (low_at(l, numbers)->ndim > 1 || nt_numel(low_at(l, numbers)) != form.size[at])
		return no_fit();
	TRY(low_result(l, n, 0, &form, true, &x.other));
	return by_numbers(l, &x, numbers, at, 1);
}

enum { AT_COPY, AT_ADD, AT_FILL };

/* index_copy, index_add, index_fill: slices of self written at the numbers. */
static clv_status lower_index_write(lowering *l, node_id n)
{
	uint32_t what = low_what(l, n), at;
	slices x = {
		.put = true, .says = what == AT_ADD ? OUT_SELF : OUT_INDEX, .wraps = what == AT_FILL, .add = what == AT_ADD};
	slot numbers;
	double alpha;
	TRY(low_tensor(l, n, 2, &numbers));
	TRY(own_or_self(l, n, &x.self));
	const nt self = *low_at(l, x.self);
	TRY(low_dim(l, n, 1, 0, self.ndim, &at));
	TRY(low_real(l, n, 4, 1, &alpha));
	if (self.ndim == 0 || low_at(l, numbers)->ndim > 1 || (what == AT_ADD && alpha != 1))
		return fail(CLV_E_UNSUPPORTED, "a tensor without dimensions, or a factor that is not 1, is not supported");
	nt form = self;
	form.size[at] = nt_numel(low_at(l, numbers));
	if (what == AT_FILL) {
		uint64_t element;
		nt one = {.dtype = self.dtype};
		memset(form.stride, 0, sizeof form.stride);
		if (low_is_number(l, n, 3)) {
			TRY(low_element(l, n, 3, self.dtype, &element));
			TRY(low_temp(l, &one, &x.other));
			TRY(low_fill(l, x.other, &one, 0, &element));
		} else {
			TRY(low_tensor(l, n, 3, &x.other));
			TRY(as_type_rows(l, x.other, self.dtype, &x.other));
			if (nt_numel(low_at(l, x.other)) != 1)
				return no_fit();
		}
		TRY(low_part(l, x.other, 0, &form, &x.other));
	} else {
		TRY(low_tensor(l, n, 3, &x.other));
		const nt from = *low_at(l, x.other);
		if (from.dtype != self.dtype || from.ndim != self.ndim || from.size[at] != form.size[at])
			return no_fit();
	}
	return by_numbers(l, &x, numbers, at, 1);
}

static const char *takes_sums(const plan *p, node_id n)
{
	const node *x = &p->nodes.at[n];
	const arg *a = &p->args.at[x->args];
	uint8_t d = x->nargs && a->kind == ARG_VALUE ? native_dtype(p, a->u.v) : DT_COUNT;
	return number_known(d) ? NULL : "it calculates with elements of a type that is not supported";
}

/* ---- several dimensions: x[i, :, j] ------------------------------------------------------------------------------------------- */

static bool is_mask(uint8_t type)
{
	return type == DT_BOOL || type == DT_U8;
}

/* A mask stands alone: its result is known by its size only. */
static const char *takes_index(const plan *p, node_id n)
{
	const node *x = &p->nodes.at[n];
	const arg *list = &p->args.at[x->args + 1];
	uint32_t masks = 0, numbers = 0;
	if (x->nargs < 2 || list->kind != ARG_LIST)
		return "its indices are no list";
	for (uint32_t k = 0; k < list->u.list.n; k++) {
		const arg *a = &p->args.at[list->u.list.first + k];
		if (a->kind == ARG_VALUE)
			*(is_mask(p->values.at[a->u.v].dtype) ? &masks : &numbers) += 1;
	}
	return masks > 1 || (masks && numbers) ? "it has a mask together with other indices" : NULL;
}

static clv_status add_numbers(layout *y, slices *x, const slot *of, uint32_t count, nt *b, const lowering *l)
{
	for (uint32_t k = 0; k < count; k++) {
		nt form;
		if (of[k] == NONE)
			continue;
		form = *low_at(l, of[k]);
		x->numbers[x->nnumbers++] =
			(number_dim){of[k], y->self.size[k], y->self.stride[k] * (int64_t)dtype_bytes(y->self.dtype), k};
		for (; b->ndim < form.ndim; b->ndim++) { /* sizes to the right fit together */
			memmove(b->size + 1, b->size, (NT_DIMS - 1) * sizeof *b->size);
			b->size[0] = 1;
		}
		for (uint32_t d = 0; d < form.ndim; d++) {
			int64_t *size = &b->size[d + b->ndim - form.ndim];
			if (*size == 1)
				*size = form.size[d];
			else if (form.size[d] != 1 && form.size[d] != *size)
				return no_fit();
		}
	}
	return CLV_OK;
}

/* Where the dimensions of the numbers go: at the first of them if they are neighbours, else in front. */
static void place_numbers(layout *y, const slices *x)
{
	uint32_t taken = 0, first = x->numbers[0].dim, last = x->numbers[x->nnumbers - 1].dim;
	for (uint32_t i = 0; i < x->nnumbers; i++)
		taken |= 1u << x->numbers[i].dim;
	for (uint32_t d = 0; d < y->self.ndim; d++)
		if (!(taken >> d & 1))
			y->kept[y->nkept++] = d;
	y->at = last - first + 1 == x->nnumbers ? first : 0;
}

/* What list i of the node says about self; b: the sizes that take the place of the numbered dimensions. */
static clv_status read_indices(lowering *l, node_id n, slices *x, layout *y, nt *b)
{
	uint32_t count, first = NONE;
	slot *of;
	TRY(low_tensors_or_none(l, n, 1, &of, &count));
	x->mask = NONE;
	for (uint32_t k = 0; k < count; k++)
		if (of[k] != NONE && first == NONE)
			first = k;
	if (first == NONE || count > y->self.ndim)
		return no_fit();
	if (!is_mask(low_at(l, of[first])->dtype)) {
		TRY(add_numbers(y, x, of, count, b, l));
		place_numbers(y, x);
		return CLV_OK;
	}
	nt mask = *low_at(l, of[first]);
	int64_t bytes = (int64_t)dtype_bytes(y->self.dtype);
	for (uint32_t k = first + 1; k < count; k++)
		if (of[k] != NONE)
			return no_fit();
	if (first + mask.ndim > y->self.ndim)
		return no_fit();
	x->masked = mask;
	for (uint32_t d = 0; d < mask.ndim; d++) {
		if (mask.size[d] != y->self.size[first + d])
			return no_fit();
		x->masked.stride[d] = y->self.stride[first + d] * bytes;
	}
	for (uint32_t d = 0; d < y->self.ndim; d++)
		if (d < first || d >= first + mask.ndim)
			y->kept[y->nkept++] = d;
	y->at = first;
	TRY(as_type_rows(l, of[first], DT_BOOL, &x->mask));
	*b = (nt){.ndim = 1, .size = {-1}}; /* known in the run */
	return CLV_OK;
}

static clv_status spread_numbers(lowering *l, slices *x, const nt *b)
{
	x->count = nt_numel(b);
	for (uint32_t i = 0; i < x->nnumbers; i++)
		TRY(as_numbers(l, x->numbers[i].s, b->ndim, b->size, &x->numbers[i].s));
	return CLV_OK;
}

static clv_status lower_index(lowering *l, node_id n)
{
	slices x = {.wraps = true, .exact = true};
	layout y = {0};
	nt b = {0}, form;
	TRY(low_tensor(l, n, 0, &x.self));
	y.self = *low_at(l, x.self);
	TRY(read_indices(l, n, &x, &y, &b));
	TRY(low_form(l, n, 0, &form));
	y.nb = b.ndim;
	if (form.ndim != y.nkept + y.nb || y.at + y.nb > form.ndim)
		return no_fit();
	if (x.mask != NONE)
		b.size[0] = form.size[y.at];
	for (uint32_t d = 0; d < y.nb; d++)
		if (b.size[d] != form.size[y.at + d])
			return no_fit();
	TRY(low_result(l, n, 0, &form, true, &x.other));
	y.other = *low_at(l, x.other);
	x.count = nt_numel(&b);
	if (x.mask == NONE)
		TRY(spread_numbers(l, &x, &b));
	return slice_step(l, &x, &y);
}

/* The values spread over the slices; one value, or none for a mask of unknown size, is not copied. */
static clv_status spread_values(lowering *l, node_id n, slices *x, layout *y, const nt *b)
{
	nt whole = {.dtype = y->self.dtype, .ndim = (uint8_t)(y->nkept + b->ndim)}, spread;
	slot s;
	if (whole.ndim > NT_DIMS)
		return fail(CLV_E_UNSUPPORTED, "tensors of more than %d dimensions are not supported", NT_DIMS);
	for (uint32_t d = 0, k = 0; d < whole.ndim; d++)
		whole.size[d] = d >= y->at && d < y->at + b->ndim ? b->size[d - y->at] : y->self.size[y->kept[k++]];
	TRY(low_tensor(l, n, 2, &s));
	if (low_at(l, s)->dtype != whole.dtype)
		return fail(CLV_E_INVALID, "index_put takes values of the type of the tensor");
	if (!nt_expand(low_at(l, s), whole.ndim, whole.size, &spread))
		return no_fit();
	y->nb = b->ndim;
	TRY(low_part(l, s, 0, &spread, &x->other));
	if (nt_numel(low_at(l, s)) != 1 && y->nb > 1 && !nt_is_rows(&spread)) {
		nt_rows(&spread);
		TRY(low_temp(l, &spread, &s));
		TRY(low_copy(l, x->other, s));
		x->other = s;
	}
	y->other = *low_at(l, x->other);
	return CLV_OK;
}

static clv_status lower_index_put(lowering *l, node_id n)
{
	slices x = {.put = true, .wraps = true};
	layout y = {0};
	nt b = {0};
	slot values;
	TRY(low_tensor(l, n, 2, &values));
	TRY(own_or_self(l, n, &x.self));
	TRY(low_bool(l, n, 3, false, &x.add));
	y.self = *low_at(l, x.self);
	TRY(read_indices(l, n, &x, &y, &b));
	if (x.mask != NONE) {
		const nt v = *low_at(l, values);
		int64_t rest = (int64_t)y.nkept - y.at; /* dimensions behind the masked ones */
		int64_t at = v.ndim - 1 - rest;         /* of the values, where they have one for each masked element */
		x.exact = at >= 0 && v.size[at] != 1;
		b.size[0] = x.exact ? v.size[at] : nt_numel(&x.masked);
		x.count = b.size[0];
	} else {
		TRY(spread_numbers(l, &x, &b));
	}
	TRY(spread_values(l, n, &x, &y, &b));
	return slice_step(l, &x, &y);
}

static const char *takes_index_put(const plan *p, node_id n)
{
	const node *x = &p->nodes.at[n];
	const arg *a = &p->args.at[x->args];
	bool adds = x->nargs > 3 && a[3].kind == ARG_BOOL && a[3].u.b && a->kind == ARG_VALUE;
	if (adds && !number_known(p->values.at[a->u.v].dtype))
		return "it calculates with elements of a type that is not supported";
	return takes_index(p, n);
}

/* ---- gather and scatter -------------------------------------------------------------------------------------------------------- */

typedef enum scatter_how {
	SCATTER_SET,
	SCATTER_ADD,
	SCATTER_MUL,
	SCATTER_MAX,
	SCATTER_MIN,
	SCATTER_MEAN,
	SCATTER_NONE
} scatter_how;

/* out[…, j, …] = self[…, number[j], …], or the reverse with a calculation. Dimensions are those of the numbers. */
typedef struct gathering {
	slot numbers, self, other, counts;  /* counts: of what was added to each element; NONE */
	nt n;                               /* sizes of the numbers, row-major */
	int64_t from[NT_DIMS], to[NT_DIMS]; /* strides in bytes; of self 0 along `at` */
	int64_t bound, stride;
	uint32_t at, bytes;
	uint8_t dtype, how;
	bool wraps, fresh; /* fresh: what is there does not count */
} gathering;

typedef struct gather_run {
	const gathering *x;
	const int64_t *numbers;
	char *self, *other;
	int64_t *counts;
	_Atomic int64_t bad; /* a number that is out of range; place + 1 */
} gather_run;

static inline void move_one(uint32_t bytes, char *to, const char *from)
{
	switch (bytes) {
	case 1: *to = *from; return;
	case 2: memcpy(to, from, 2); return;
	case 4: memcpy(to, from, 4); return;
	default: memcpy(to, from, 8); return;
	}
}

/* The offsets of an element by its place: of self without its number, and of other. */
static inline void place_of(const gathering *x, int64_t i, int64_t *self, int64_t *other)
{
	*self = *other = 0;
	for (uint32_t d = x->n.ndim; d-- > 0; i /= x->n.size[d]) {
		*self += i % x->n.size[d] * x->from[d];
		*other += i % x->n.size[d] * x->to[d];
	}
}

/* Rows of the last dimension: first … end-1. */
static void gather_rows(void *ctx, int64_t first, int64_t end, int thread)
{
	gather_run *r = ctx;
	const gathering *x = r->x;
	uint32_t last = x->n.ndim - 1;
	int64_t cols = x->n.size[last], fs = x->from[last], ts = x->to[last];
	(void)thread;
	for (int64_t row = first; row < end; row++) {
		const int64_t *numbers = r->numbers + row * cols;
		int64_t self, other;
		place_of(x, row * cols, &self, &other);
		for (int64_t j = 0; j < cols; j++) {
			int64_t k = numbers[j] < 0 && x->wraps ? numbers[j] + x->bound : numbers[j];
			if (k < 0 || k >= x->bound) {
				r->bad = row * cols + j + 1;
				return;
			}
			move_one(x->bytes, r->other + other + j * ts, r->self + self + j * fs + k * x->stride);
		}
	}
}

static clv_status bad_number(const gathering *x, const gather_run *r)
{
	if (r->bad == 0)
		return CLV_OK;
	return fail(CLV_E_INPUT, "index %lld is out of bounds for dimension %u with size %lld",
	            (long long)r->numbers[r->bad - 1], x->at, (long long)x->bound);
}

static gather_run start_gather(const gathering *x, frame *f)
{
	return (gather_run){.x = x,
	                    .numbers = (const int64_t *)f->t[x->numbers].data,
	                    .self = f->t[x->self].data,
	                    .other = f->t[x->other].data,
	                    .counts = x->counts == NONE ? NULL : (int64_t *)f->t[x->counts].data};
}

static clv_status step_gather(const void *params, frame *f)
{
	const gathering *x = params;
	gather_run r = start_gather(x, f);
	int64_t cols = x->n.size[x->n.ndim - 1];
	team_run(f->team, nt_numel(&x->n) / cols, 1 + 8192 / cols, gather_rows, &r);
	return bad_number(x, &r);
}

/* In the order of the numbers, on one thread: places may come more than once. */
static clv_status step_scatter(const void *params, frame *f)
{
	const gathering *x = params;
	gather_run r = start_gather(x, f);
	int64_t total = nt_numel(&x->n);
	for (int pass = x->fresh ? 0 : 1; pass < 2; pass++) {
		for (int64_t i = 0; i < total; i++) {
			int64_t self, other, k = r.numbers[i];
			if (k < 0 || k >= x->bound) {
				r.bad = i + 1;
				return bad_number(x, &r);
			}
			place_of(x, i, &self, &other);
			char *to = r.self + self + k * x->stride;
			if (pass == 0)
				number_first(x->dtype, (number_how)x->how, to);
			else if (x->how == SCATTER_SET)
				move_one(x->bytes, to, r.other + other);
			else
				number_join(x->dtype, (number_how)x->how, to, r.other + other);
			if (pass == 1 && r.counts)
				r.counts[(self + k * x->stride) / x->bytes]++;
		}
	}
	return CLV_OK;
}

typedef struct averaging {
	slot self, counts;
	int64_t n;
	uint8_t dtype;
	bool fresh;
} averaging;

static clv_status step_average(const void *params, frame *f)
{
	const averaging *x = params;
	const int64_t *counts = (const int64_t *)f->t[x->counts].data;
	uint32_t bytes = (uint32_t)dtype_bytes(x->dtype);
	for (int64_t i = 0; i < x->n; i++)
		if (counts[i])
			number_divide(x->dtype, f->t[x->self].data + i * bytes, counts[i] + (x->fresh ? 0 : 1));
	return CLV_OK;
}

/* Sizes and strides for the numbers; those of self and other must be at least as large but for dimension `at` of self. */
static clv_status fit_gather(lowering *l, gathering *x, const nt *self, const nt *other, const nt *numbers)
{
	int64_t bytes = (int64_t)dtype_bytes(self->dtype);
	x->n = *numbers;
	x->bytes = (uint32_t)bytes;
	x->dtype = self->dtype;
	nt_rows(&x->n);
	if (x->n.ndim == 0) { /* as vectors of one */
		x->n.ndim = 1;
		x->n.size[0] = 1;
		x->bound = self->ndim ? self->size[0] : 1;
		x->stride = self->ndim ? self->stride[0] * bytes : bytes;
		return self->ndim <= 1 ? CLV_OK : no_fit();
	}
	if (self->ndim != x->n.ndim && !(self->ndim == 0 && x->n.ndim == 1))
		return no_fit();
	for (uint32_t d = 0; d < x->n.ndim; d++) {
		if ((d != x->at && self->ndim && self->size[d] < x->n.size[d]) ||
		    (other->ndim && other->size[d] < x->n.size[d]))
			return no_fit();
		x->from[d] = d == x->at || !self->ndim ? 0 : self->stride[d] * bytes;
		x->to[d] = other->ndim ? other->stride[d] * bytes : 0;
	}
	x->bound = self->ndim ? self->size[x->at] : 1;
	x->stride = self->ndim ? self->stride[x->at] * bytes : bytes;
	(void)l;
	return CLV_OK;
}

static clv_status give_gather(lowering *l, node_id n, slot self, slot numbers, const nt *spread_self, const nt *sizes,
                              uint32_t at, bool wraps)
{
	gathering *x = low_alloc(l, sizeof *x);
	nt form;
	TRY_MEM(x);
	TRY(low_form(l, n, 0, &form));
	TRY(low_result(l, n, 0, &form, true, &x->other));
	x->self = self;
	TRY(low_same_type(l, self, x->other));
	x->at = at;
	x->wraps = wraps;
	x->counts = NONE;
	if (form.ndim != sizes->ndim || memcmp(form.size, sizes->size, form.ndim * sizeof *form.size))
		return no_fit();
	TRY(as_numbers(l, numbers, sizes->ndim, sizes->size, &x->numbers));
	TRY(fit_gather(l, x, spread_self, &form, sizes));
	return nt_numel(sizes) ? low_step(l, step_gather, x) : CLV_OK;
}

static clv_status lower_gather(lowering *l, node_id n)
{
	slot self, numbers;
	uint32_t at;
	TRY(low_tensor(l, n, 0, &self));
	TRY(low_tensor(l, n, 2, &numbers));
	const nt from = *low_at(l, self), sizes = *low_at(l, numbers);
	TRY(low_dim(l, n, 1, 0, from.ndim, &at));
	return give_gather(l, n, self, numbers, &from, &sizes, at, false);
}

/* take and take_along_dim without a dimension: numbers of all elements. */
static clv_status take_any(lowering *l, node_id n, slot self, slot numbers, bool flat)
{
	slices x = {.wraps = true, .says = flat ? OUT_INDEX : OUT_TAKE, .mask = NONE, .nnumbers = 1};
	layout y = {0};
	nt form;
	TRY(low_as_rows(l, self, &x.self));
	TRY(low_form(l, n, 0, &form));
	const nt sizes = *low_at(l, numbers);
	if (flat ? form.ndim != 1 || form.size[0] != nt_numel(&sizes)
	         : form.ndim != sizes.ndim || memcmp(form.size, sizes.size, form.ndim * sizeof *form.size))
		return no_fit();
	TRY(low_result(l, n, 0, &form, true, &x.other));
	y.self = (nt){.dtype = form.dtype, .ndim = 1, .size = {nt_numel(low_at(l, self))}, .stride = {1}};
	y.other = (nt){.dtype = form.dtype, .ndim = 1, .size = {nt_numel(&form)}, .stride = {1}};
	y.nb = 1;
	x.count = nt_numel(&form);
	x.numbers[0] = (number_dim){.bound = y.self.size[0], .stride = (int64_t)dtype_bytes(form.dtype)};
	TRY(as_numbers(l, numbers, sizes.ndim, sizes.size, &x.numbers[0].s));
	return slice_step(l, &x, &y);
}

static clv_status lower_take(lowering *l, node_id n)
{
	slot self, numbers;
	TRY(low_tensor(l, n, 0, &self));
	TRY(low_tensor(l, n, 1, &numbers));
	return take_any(l, n, self, numbers, false);
}

static clv_status lower_take_along(lowering *l, node_id n)
{
	slot self, numbers;
	uint32_t at;
	nt spread;
	TRY(low_tensor(l, n, 0, &self));
	TRY(low_tensor(l, n, 1, &numbers));
	if (!low_has(l, n, 2))
		return take_any(l, n, self, numbers, true);
	const nt from = *low_at(l, self), index = *low_at(l, numbers);
	TRY(low_dim(l, n, 2, 0, from.ndim, &at));
	if (from.ndim != index.ndim || from.ndim == 0)
		return no_fit();
	nt sizes = index, wide;
	for (uint32_t d = 0; d < from.ndim; d++)
		if (d != at && sizes.size[d] == 1)
			sizes.size[d] = from.size[d];
	wide = sizes;
	wide.size[at] = from.size[at];
	if (!nt_expand(&from, wide.ndim, wide.size, &spread))
		return no_fit();
	nt_rows(&sizes);
	return give_gather(l, n, self, numbers, &spread, &sizes, at, false);
}

/* Arguments 3 and 4 as words: the overloads differ in what they call it. */
static scatter_how how_of(const lowering *l, node_id n)
{
	static const struct {
		const char *name;
		scatter_how how;
	} words[] = {{"add", SCATTER_ADD},  {"sum", SCATTER_ADD},  {"multiply", SCATTER_MUL}, {"prod", SCATTER_MUL},
	             {"amax", SCATTER_MAX}, {"amin", SCATTER_MIN}, {"mean", SCATTER_MEAN}};
	const char *word = low_str(l, n, 4);
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (strcmp(word, words[i].name) == 0)
			return words[i].how;
	return *word ? SCATTER_NONE : (scatter_how)low_what(l, n);
}

static clv_status scatter_source(lowering *l, node_id n, gathering *x, nt *form)
{
	uint64_t element;
	*form = (nt){.dtype = low_at(l, x->self)->dtype};
	if (!low_is_number(l, n, 3)) {
		TRY(low_tensor(l, n, 3, &x->other));
		if (low_at(l, x->other)->dtype != form->dtype)
			return no_fit();
		*form = *low_at(l, x->other);
		return CLV_OK;
	}
	TRY(low_element(l, n, 3, form->dtype, &element));
	TRY(low_temp(l, form, &x->other));
	return low_fill(l, x->other, form, 0, &element);
}

static clv_status count_and_divide(lowering *l, gathering *x, int64_t elements)
{
	averaging *a = low_alloc(l, sizeof *a);
	nt counts = {.dtype = DT_I64, .ndim = 1, .size = {elements}, .stride = {1}};
	TRY_MEM(a);
	TRY(low_temp(l, &counts, &x->counts));
	TRY(low_zero(l, x->counts));
	TRY(low_step(l, step_scatter, x));
	*a = (averaging){x->self, x->counts, elements, x->dtype, x->fresh};
	return low_step(l, step_average, a);
}

static clv_status lower_scatter(lowering *l, node_id n)
{
	gathering *x = low_alloc(l, sizeof *x);
	slot numbers;
	nt other;
	bool include = true;
	TRY_MEM(x);
	TRY(low_tensor(l, n, 2, &numbers));
	TRY(own_or_self(l, n, &x->self));
	const nt self = *low_at(l, x->self), sizes = *low_at(l, numbers);
	TRY(low_dim(l, n, 1, 0, self.ndim, &x->at));
	TRY(scatter_source(l, n, x, &other));
	TRY(low_bool(l, n, 5, true, &include));
	x->how = (uint8_t)how_of(l, n);
	x->fresh = !include;
	x->counts = NONE;
	if (x->how == SCATTER_NONE)
		return fail(CLV_E_UNSUPPORTED, "scatter has no reduction \"%s\"", low_str(l, n, 4));
	TRY(as_numbers(l, numbers, sizes.ndim, sizes.size, &x->numbers));
	if (other.ndim && other.ndim != sizes.ndim)
		return no_fit();
	TRY(fit_gather(l, x, &self, &other, &sizes));
	if (nt_numel(&sizes) == 0)
		return CLV_OK;
	if (x->how != SCATTER_MEAN)
		return low_step(l, step_scatter, x);
	if (!nt_is_rows(&self))
		return fail(CLV_E_UNSUPPORTED, "the mean of a tensor that is not row-major is not supported");
	return count_and_divide(l, x, nt_numel(&self));
}

static const char *takes_scatter(const plan *p, node_id n)
{
	const node *x = &p->nodes.at[n];
	const arg *a = &p->args.at[x->args];
	bool sets = x->op_id == OP_scatter_src || x->op_id == OP_scatter_value || x->op_id == OP_scatter__src ||
	            x->op_id == OP_scatter__value;
	(void)a;
	return sets ? NULL : takes_sums(p, n);
}

/* ---- bags and classes ------------------------------------------------------------------------------------------------------------- */

enum { BAG_SUM, BAG_MEAN, BAG_MAX };

typedef struct bagging {
	slot weight, numbers, offsets, weights, out; /* weights NONE: all are 1 */
	int64_t rows, dim, row, bags, total;         /* row: elements between rows of the weight */
	int64_t skip;                                /* padding_idx; -1: none */
	uint8_t mode;
	bool wide;
} bagging;

#define BAG(type)                                                                                                      \
	{                                                                                                                  \
		type *to = (type *)f->t[x->out].data + b * x->dim;                                                             \
		const type *w = (const type *)f->t[x->weight].data + k * x->row;                                               \
		type s = x->weights == NONE ? 1 : ((const type *)f->t[x->weights].data)[i];                                    \
		for (int64_t c = 0; c < x->dim; c++)                                                                           \
			to[c] = x->mode != BAG_MAX ? to[c] + s * w[c] : used == 0 || w[c] > to[c] || w[c] != w[c] ? w[c] : to[c];  \
	}
#define BAG_SCALE(type)                                                                                                \
	for (int64_t c = 0; c < x->dim; c++)                                                                               \
	((type *)f->t[x->out].data)[b * x->dim + c] /= (type)used

static clv_status one_bag(const bagging *x, frame *f, int64_t b, int64_t first, int64_t end)
{
	const int64_t *numbers = (const int64_t *)f->t[x->numbers].data;
	int64_t used = 0;
	for (int64_t i = first; i < end; i++) {
		int64_t k = numbers[i];
		if (k < 0 || k >= x->rows)
			return fail(CLV_E_INPUT,
			            "embedding_bag: Expected idx >= 0 && idx < num_embeddings but found idx to be: %lld",
			            (long long)k);
		if (k == x->skip)
			continue;
		if (x->wide)
			BAG(double)
		else
			BAG(float)
		used++;
	}
	if (x->mode == BAG_MEAN && used > 1) {
		if (x->wide)
			BAG_SCALE(double);
		else
			BAG_SCALE(float);
	}
	return CLV_OK;
}

static clv_status step_bags(const void *params, frame *f)
{
	const bagging *x = params;
	const int64_t *offsets = (const int64_t *)f->t[x->offsets].data;
	memset(f->t[x->out].data, 0, (size_t)(x->bags * x->dim) * (x->wide ? 8 : 4));
	for (int64_t b = 0; b < x->bags; b++) {
		int64_t first = offsets[b], end = b + 1 < nt_numel(&f->t[x->offsets]) ? offsets[b + 1] : x->total;
		if (b == 0 && first != 0)
			return fail(CLV_E_INPUT,
			            "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from "
			            "position 0. However, got %lld",
			            (long long)first);
		if (first < 0 || end < first || end > x->total)
			return fail(CLV_E_INPUT, "embedding_bag: offset %lld is out of range or smaller than the one before it",
			            (long long)end);
		TRY(one_bag(x, f, b, first, end));
	}
	return CLV_OK;
}

static clv_status lower_embedding_bag(lowering *l, node_id n)
{
	bagging *x = low_alloc(l, sizeof *x);
	int64_t mode;
	bool last;
	slot numbers, offsets, weights;
	nt form;
	TRY_MEM(x);
	TRY(low_tensor(l, n, 0, &x->weight));
	TRY(low_tensor(l, n, 1, &numbers));
	TRY(low_tensor(l, n, 2, &offsets));
	TRY(low_int(l, n, 4, 0, &mode));
	TRY(low_tensor_or_none(l, n, 6, &weights));
	TRY(low_bool(l, n, 7, false, &last));
	TRY(low_int(l, n, 8, -1, &x->skip));
	TRY(low_form(l, n, 0, &form));
	for (uint32_t i = 1; i < low_results(l, n); i++)
		if (low_wants(l, n, i))
			return fail(CLV_E_UNSUPPORTED, "its result %u is used", i);
	const nt table = *low_at(l, x->weight), at = *low_at(l, offsets), many = *low_at(l, numbers);
	if (form.dtype != table.dtype || table.ndim != 2 || at.ndim != 1 || many.ndim != 1 || form.ndim != 2 || mode < 0 ||
	    mode > BAG_MAX)
		return no_fit();
	x->mode = (uint8_t)mode;
	x->wide = table.dtype == DT_F64;
	x->rows = table.size[0];
	x->dim = table.size[1];
	x->total = many.size[0];
	x->bags = at.size[0] - (last ? 1 : 0);
	x->skip = x->skip < 0 && low_has(l, n, 8) && x->skip != -1 ? x->skip + x->rows : x->skip;
	if (form.size[0] != x->bags || form.size[1] != x->dim ||
	    (weights != NONE && low_at(l, weights)->dtype != table.dtype) ||
	    (weights != NONE && nt_numel(low_at(l, weights)) != x->total))
		return no_fit();
	x->weights = NONE;
	if (weights != NONE)
		TRY(as_type_rows(l, weights, table.dtype, &x->weights));
	TRY(low_as_rows(l, x->weight, &x->weight));
	x->row = x->dim;
	TRY(as_numbers(l, numbers, 1, many.size, &x->numbers));
	TRY(as_numbers(l, offsets, 1, at.size, &x->offsets));
	TRY(low_result(l, n, 0, &form, true, &x->out));
	return low_step(l, step_bags, x);
}

static const char *takes_bag(const plan *p, node_id n)
{
	const node *x = &p->nodes.at[n];
	const arg *a = &p->args.at[x->args];
	uint8_t d = x->nargs && a->kind == ARG_VALUE ? native_dtype(p, a->u.v) : DT_COUNT;
	return d == DT_F32 || d == DT_F64 ? NULL : "its elements are no f32 or f64";
}

typedef struct hot {
	slot numbers, out;
	int64_t n, classes;
	bool counted; /* the number of classes is one more than the largest number */
} hot;

static clv_status step_one_hot(const void *params, frame *f)
{
	const hot *x = params;
	const int64_t *numbers = (const int64_t *)f->t[x->numbers].data;
	int64_t *out = (int64_t *)f->t[x->out].data, top = -1;
	memset(out, 0, (size_t)(x->n * x->classes) * sizeof *out);
	for (int64_t i = 0; i < x->n; i++) {
		if (numbers[i] < 0)
			return fail(CLV_E_INPUT, "Class values must be non-negative.");
		if (numbers[i] >= x->classes)
			return x->counted ? fail(CLV_E_GUARD, "the largest class is %lld, the plan was captured with %lld classes",
			                         (long long)numbers[i], (long long)x->classes)
			                  : fail(CLV_E_INPUT, "Class values must be smaller than num_classes.");
		top = numbers[i] > top ? numbers[i] : top;
		out[i * x->classes + numbers[i]] = 1;
	}
	if (x->counted && top + 1 != x->classes)
		return fail(CLV_E_GUARD, "the largest class is %lld, the plan was captured with %lld classes", (long long)top,
		            (long long)x->classes);
	return CLV_OK;
}

static clv_status lower_one_hot(lowering *l, node_id n)
{
	hot *x = low_alloc(l, sizeof *x);
	int64_t classes;
	slot numbers;
	nt form;
	TRY_MEM(x);
	TRY(low_tensor(l, n, 0, &numbers));
	TRY(low_int(l, n, 1, -1, &classes));
	TRY(low_form(l, n, 0, &form));
	const nt from = *low_at(l, numbers);
	if (form.ndim != from.ndim + 1 || memcmp(form.size, from.size, from.ndim * sizeof *form.size) ||
	    form.dtype != DT_I64)
		return no_fit();
	x->classes = form.size[from.ndim];
	x->counted = classes == -1;
	x->n = nt_numel(&from);
	if (!x->counted && classes != x->classes)
		return no_fit();
	TRY(as_numbers(l, numbers, from.ndim, from.size, &x->numbers));
	TRY(low_result(l, n, 0, &form, true, &x->out));
	return low_step(l, step_one_hot, x);
}

/* ---- masked_scatter ------------------------------------------------------------------------------------------------------------------ */

typedef struct masked_copy {
	slot to, mask, from;
	nt where; /* the mask, spread over the result */
	int64_t given;
} masked_copy;

static clv_status step_masked_copy(const void *params, frame *f)
{
	const masked_copy *x = params;
	const nt *to = &f->t[x->to];
	const char *from = f->t[x->from].data;
	const uint8_t *mask = (const uint8_t *)f->t[x->mask].data;
	int64_t bytes = (int64_t)dtype_bytes(to->dtype), taken = 0, n = nt_numel(to);
	for (int64_t i = 0; i < n; i++) {
		int64_t at = 0, where = 0, rest = i;
		for (uint32_t d = to->ndim; d-- > 0; rest /= to->size[d]) {
			where += rest % to->size[d] * x->where.stride[d];
			at += rest % to->size[d] * to->stride[d];
		}
		if (!mask[where])
			continue;
		if (taken == x->given)
			return fail(CLV_E_INPUT, "masked_scatter: the source has fewer elements than the mask has ones");
		memcpy(to->data + at * bytes, from + taken++ * bytes, (size_t)bytes);
	}
	return CLV_OK;
}

/* Elements of the source, one after the other, where the mask is true. */
static clv_status lower_masked_copy(lowering *l, node_id n)
{
	masked_copy *x = low_alloc(l, sizeof *x);
	slot of, source;
	nt form, all;
	TRY_MEM(x);
	TRY(low_tensor(l, n, 0, &of));
	TRY(low_tensor(l, n, 1, &x->mask));
	TRY(low_tensor(l, n, 2, &source));
	if (node_op(low_plan(l), n)->writes) {
		TRY(low_in_place(l, n, &x->to));
	} else {
		TRY(low_form(l, n, 0, &form));
		if (!nt_expand(low_at(l, of), form.ndim, form.size, &all))
			return no_fit();
		TRY(low_result(l, n, 0, &form, true, &x->to));
		TRY(low_part(l, of, 0, &all, &of));
		TRY(low_copy(l, of, x->to));
	}
	const nt to = *low_at(l, x->to), mask = *low_at(l, x->mask);
	if (mask.dtype != DT_BOOL || !nt_expand(&mask, to.ndim, to.size, &x->where))
		return no_fit();
	TRY(low_same_type(l, source, x->to));
	TRY(low_as_rows(l, source, &x->from));
	x->given = nt_numel(low_at(l, source));
	return low_step(l, step_masked_copy, x);
}

/* ---- refused -------------------------------------------------------------------------------------------------------------------------- */

static const char *depends_on_data(const plan *p, node_id n)
{
	(void)p, (void)n;
	return "the size of its result depends on data";
}

const native_op native_ops_index[] = {
	{.id = OP__index_put_impl_, .takes = takes_index_put, .lower = lower_index_put, .checks = true},
	{.id = OP__unsafe_index_Tensor, .takes = takes_index, .lower = lower_index, .checks = true},
	{.id = OP_embedding, .takes = takes_any, .lower = lower_embedding},
	{.id = OP_embedding_bag, .takes = takes_bag, .widens = true, .lower = lower_embedding_bag},
	{.id = OP_embedding_bag_padding_idx, .takes = takes_bag, .widens = true, .lower = lower_embedding_bag},
	{.id = OP_gather, .takes = takes_any, .lower = lower_gather},
	{.id = OP_index_Tensor, .takes = takes_index, .lower = lower_index, .checks = true},
	{.id = OP_index_add, .takes = takes_sums, .widens = true, .lower = lower_index_write, .what = AT_ADD},
	{.id = OP_index_add_, .takes = takes_sums, .widens = true, .lower = lower_index_write, .what = AT_ADD},
	{.id = OP_index_copy, .takes = takes_any, .lower = lower_index_write, .what = AT_COPY},
	{.id = OP_index_copy_, .takes = takes_any, .lower = lower_index_write, .what = AT_COPY},
	{.id = OP_index_fill_int_Scalar, .takes = takes_any, .lower = lower_index_write, .what = AT_FILL},
	{.id = OP_index_fill_int_Tensor, .takes = takes_any, .lower = lower_index_write, .what = AT_FILL, .checks = true},
	{.id = OP_index_fill__int_Scalar, .takes = takes_any, .lower = lower_index_write, .what = AT_FILL},
	{.id = OP_index_fill__int_Tensor, .takes = takes_any, .lower = lower_index_write, .what = AT_FILL, .checks = true},
	{.id = OP_index_put, .takes = takes_index_put, .lower = lower_index_put, .checks = true},
	{.id = OP_index_put_, .takes = takes_index_put, .lower = lower_index_put, .checks = true},
	{.id = OP_index_select, .takes = takes_any, .lower = lower_index_select},
	{.id = OP_masked_scatter, .takes = takes_any, .lower = lower_masked_copy},
	{.id = OP_masked_scatter_, .takes = takes_any, .lower = lower_masked_copy},
	{.id = OP_masked_select, .takes = depends_on_data},
	{.id = OP_nonzero, .takes = depends_on_data},
	{.id = OP_one_hot, .takes = takes_any, .lower = lower_one_hot, .checks = true},
	{.id = OP_repeat_interleave_Tensor, .takes = depends_on_data},
	{.id = OP_repeat_interleave_self_Tensor, .takes = depends_on_data},
	{.id = OP_scatter_add, .takes = takes_scatter, .widens = true, .lower = lower_scatter, .what = SCATTER_ADD},
	{.id = OP_scatter_add_, .takes = takes_scatter, .widens = true, .lower = lower_scatter, .what = SCATTER_ADD},
	{.id = OP_scatter_reduce_two, .takes = takes_scatter, .widens = true, .lower = lower_scatter},
	{.id = OP_scatter_reduce__two, .takes = takes_scatter, .widens = true, .lower = lower_scatter},
	{.id = OP_scatter_src, .takes = takes_scatter, .widens = true, .lower = lower_scatter},
	{.id = OP_scatter_value, .takes = takes_scatter, .widens = true, .lower = lower_scatter},
	{.id = OP_scatter_value_reduce, .takes = takes_scatter, .widens = true, .lower = lower_scatter},
	{.id = OP_scatter__reduce, .takes = takes_scatter, .widens = true, .lower = lower_scatter},
	{.id = OP_scatter__src, .takes = takes_scatter, .widens = true, .lower = lower_scatter},
	{.id = OP_scatter__value, .takes = takes_scatter, .widens = true, .lower = lower_scatter},
	{.id = OP_scatter__value_reduce, .takes = takes_scatter, .widens = true, .lower = lower_scatter},
	{.id = OP_take, .takes = takes_any, .lower = lower_take},
	{.id = OP_take_along_dim, .takes = takes_any, .lower = lower_take_along},
	{.id = OP_UNKNOWN},
};
