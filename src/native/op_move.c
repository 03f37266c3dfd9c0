/* Operators that put elements elsewhere: concatenation, repetition, reversal, shifts, triangles, windows. Each becomes a few
 * copies with strides. */
#include <string.h>

#include "native/moves.h"

static const char *sizes_differ = "the sizes of the arguments do not fit together";

/* A row-major result with the sizes of the plan. */
static clv_status new_rows(lowering *l, node_id n, nt *form, slot *out)
{
	TRY(low_form(l, n, 0, form));
	return low_result(l, n, 0, form, true, out);
}

/* The tensor in the type of the result. */
static clv_status as_type(lowering *l, slot s, uint8_t type, slot *out)
{
	nt form = *low_at(l, s);
	*out = s;
	if (form.dtype == type)
		return CLV_OK;
	form.dtype = type;
	nt_rows(&form);
	TRY(low_temp(l, &form, out));
	return low_copy(l, s, *out);
}

/* Row-major strides for these sizes. */
static nt rows_of(const nt *t)
{
	nt rows = *t;
	nt_rows(&rows);
	return rows;
}

/* Whether two tensors have the same sizes, but for dimension `but`. */
static bool same_but(const nt *a, const nt *b, uint32_t but)
{
	if (a->ndim != b->ndim)
		return false;
	for (uint32_t d = 0; d < a->ndim; d++)
		if (d != but && a->size[d] != b->size[d])
			return false;
	return true;
}

static int64_t times(int64_t a,
                     int64_t b) /* of sizes that fit in memory; hostile factors give a size that nothing has */
{
	int64_t r;
	return a < 0 || b < 0 || __builtin_mul_overflow(a, b, &r) ? -1 : r;
}

/* ---- concatenation ------------------------------------------------------------------------------------------------------------ */

/* Tensors side by side along dimension `at` of the result; forms are how each is to be seen. */
static clv_status place_all(lowering *l, node_id n, const slot *of, const nt *forms, uint32_t count, uint32_t at)
{
	nt form;
	slot out;
	int64_t done = 0;
	TRY(low_form(l, n, 0, &form));
	if (at >= form.ndim)
		return fail(CLV_E_INVALID, "%s", sizes_differ);
	for (uint32_t k = 0; k < count; k++) {
		if (!same_but(&forms[k], &form, at) || __builtin_add_overflow(done, forms[k].size[at], &done))
			return fail(CLV_E_INVALID, "%s", sizes_differ);
	}
	if (done != form.size[at])
		return fail(CLV_E_INVALID, "%s", sizes_differ);
	if (count && forms[0].size[at] != 1 && nt_is_dense(&forms[0]))
		nt_strides_like(&form, &forms[0]);
	TRY(low_result(l, n, 0, &form, false, &out));
	const nt to = *low_at(l, out);
	done = 0;
	for (uint32_t k = 0; k < count; done += forms[k++].size[at]) {
		nt part = forms[k];
		slot from, place;
		TRY(low_part(l, of[k], 0, &forms[k], &from));
		part.dtype = to.dtype;
		memcpy(part.stride, to.stride, sizeof part.stride);
		TRY(low_part(l, out, nt_numel(&part) ? done * to.stride[at] : 0, &part, &place));
		TRY(low_copy(l, from, place)); /* nothing to do where it was made there */
	}
	return CLV_OK;
}

static clv_status forms_of(lowering *l, node_id n, slot **of, nt **forms, uint32_t *count)
{
	TRY(low_tensors(l, n, 0, of, count));
	*forms = low_alloc(l, (*count + 1) * sizeof **forms);
	TRY_MEM(*forms);
	for (uint32_t k = 0; k < *count; k++)
		(*forms)[k] = *low_at(l, (*of)[k]);
	return CLV_OK;
}

/* Vectors without elements are left out, whatever the others are: torch has kept that from its early days. */
static uint32_t without_empty(slot *of, nt *forms, uint32_t count)
{
	uint32_t n = 0;
	for (uint32_t k = 0; k < count; k++) {
		if (forms[k].ndim == 1 && forms[k].size[0] == 0)
			continue;
		of[n] = of[k];
		forms[n++] = forms[k];
	}
	return n;
}

static clv_status lower_cat(lowering *l, node_id n)
{
	uint32_t count, at;
	slot *of, out;
	nt *forms, form;
	TRY(forms_of(l, n, &of, &forms, &count));
	count = without_empty(of, forms, count);
	TRY(low_form(l, n, 0, &form));
	if (count == 0)
		return nt_numel(&form) ? fail(CLV_E_INVALID, "%s", sizes_differ) : low_result(l, n, 0, &form, false, &out);
	TRY(low_dim(l, n, 1, 0, forms[0].ndim, &at));
	return place_all(l, n, of, forms, count, at);
}

static clv_status insert_dim(nt *t, uint32_t at)
{
	if (t->ndim == NT_DIMS)
		return fail(CLV_E_UNSUPPORTED, "tensors of more than %d dimensions are not supported", NT_DIMS);
	for (uint32_t d = t->ndim++; d > at; d--) {
		t->size[d] = t->size[d - 1];
		t->stride[d] = t->stride[d - 1];
	}
	t->size[at] = 1;
	t->stride[at] = 1;
	return CLV_OK;
}

static clv_status lower_stack(lowering *l, node_id n)
{
	uint32_t count, at;
	slot *of;
	nt *forms;
	TRY(forms_of(l, n, &of, &forms, &count));
	if (count == 0)
		return fail(CLV_E_INVALID, "stack expects a non-empty list");
	TRY(low_dim(l, n, 1, 0, forms[0].ndim + 1u, &at));
	for (uint32_t k = 0; k < count; k++) {
		if (forms[k].ndim < at)
			return fail(CLV_E_INVALID, "%s", sizes_differ);
		TRY(insert_dim(&forms[k], at));
	}
	return place_all(l, n, of, forms, count, at);
}

enum { STACK_H, STACK_V, STACK_D, STACK_COLUMNS };

/* hstack, vstack, dstack, column_stack: concatenation of tensors with a least number of dimensions. */
static clv_status lower_stacks(lowering *l, node_id n)
{
	uint32_t count, what = low_what(l, n), at = what == STACK_V ? 0 : what == STACK_D ? 2 : 1;
	slot *of;
	nt *forms;
	TRY(forms_of(l, n, &of, &forms, &count));
	for (uint32_t k = 0; k < count; k++) {
		bool vector = forms[k].ndim < 2;
		TRY(at_least(&forms[k], what == STACK_V ? 2 : what == STACK_D ? 3 : 1));
		if (what == STACK_COLUMNS && vector)
			TRY(insert_dim(&forms[k], 1));
	}
	if (what == STACK_H && count && forms[0].ndim == 1)
		at = 0;
	count = without_empty(of, forms, count);
	return place_all(l, n, of, forms, count, at);
}

/* ---- repetition ---------------------------------------------------------------------------------------------------------------- */

/* repeat and tile: argument 1 has a number for each dimension of the result. */
static clv_status lower_repeat(lowering *l, node_id n)
{
	int64_t reps[NT_DIMS];
	uint32_t count;
	slot of, out;
	nt form;
	TRY(low_tensor(l, n, 0, &of));
	const nt from = *low_at(l, of);
	TRY(low_ints(l, n, 1, NT_DIMS, reps, &count));
	TRY(new_rows(l, n, &form, &out));
	uint32_t most = count > from.ndim ? count : from.ndim;
	if (most != form.ndim || (count < from.ndim && !low_what(l, n)))
		return fail(CLV_E_INVALID, "%s", sizes_differ);
	move m = {.bytes = move_between(&form, &form).bytes};
	for (uint32_t d = 0; d < form.ndim; d++) {
		bool there = d + from.ndim >= form.ndim;
		int64_t size = there ? from.size[d + from.ndim - form.ndim] : 1;
		int64_t stride = there ? from.stride[d + from.ndim - form.ndim] : 0;
		int64_t rep = d + count >= form.ndim ? reps[d + count - form.ndim] : 1;
		if (times(size, rep) != form.size[d])
			return fail(CLV_E_INVALID, "%s", sizes_differ);
		move_add(&m, rep, 0, size * form.stride[d]);
		move_add(&m, size, stride, form.stride[d]);
	}
	return low_move(l, of, out, &m);
}

/* Each element so many times in a row, along a dimension or of all elements. */
static clv_status lower_interleave(lowering *l, node_id n)
{
	int64_t rep;
	uint32_t at = 0;
	slot of, out;
	nt form;
	TRY(low_tensor(l, n, 0, &of));
	TRY(low_int(l, n, 1, 1, &rep));
	TRY(new_rows(l, n, &form, &out));
	const nt from = *low_at(l, of);
	bool all = !low_has(l, n, 2) || from.ndim == 0;
	if (!all)
		TRY(low_dim(l, n, 2, 0, from.ndim, &at));
	if (all ? form.ndim != 1 || times(nt_numel(&from), rep) != form.size[0]
	        : !same_but(&from, &form, at) || times(from.size[at], rep) != form.size[at])
		return fail(CLV_E_INVALID, "%s", sizes_differ);
	const nt rows = rows_of(&from);
	move m = {.bytes = move_between(&form, &form).bytes};
	for (uint32_t d = 0; d < from.ndim; d++) {
		int64_t to = all ? rows.stride[d] * rep : d == at ? form.stride[d] * rep : form.stride[d];
		move_add(&m, from.size[d], from.stride[d], to);
	}
	move_add(&m, rep, 0, all ? 1 : form.stride[at]);
	return low_move(l, of, out, &m);
}

/* ---- reversal and shifts --------------------------------------------------------------------------------------------------------- */

/* Dimension d of the result runs backwards. */
static void reverse(move *m, uint32_t d)
{
	if (m->d[d].size > 0)
		m->from += (m->d[d].size - 1) * m->d[d].from;
	m->d[d].from = -m->d[d].from;
}

static clv_status lower_flip(lowering *l, node_id n)
{
	int64_t dims[NT_DIMS];
	uint32_t count = 1, what = low_what(l, n), seen = 0;
	slot of, out;
	nt form;
	TRY(low_tensor(l, n, 0, &of));
	TRY(new_rows(l, n, &form, &out));
	const nt from = *low_at(l, of);
	dims[0] = what == 1 ? 1 : 0; /* fliplr, flipud */
	if (what == 0)
		TRY(low_ints(l, n, 1, NT_DIMS, dims, &count));
	if (!same_but(&from, &form, NONE))
		return fail(CLV_E_INVALID, "%s", sizes_differ);
	move m = move_between(&from, &form);
	for (uint32_t k = 0; k < count; k++) {
		int64_t d = dims[k] < 0 ? dims[k] + from.ndim : dims[k];
		if (d < 0 || d >= from.ndim || seen >> d & 1)
			return fail(CLV_E_INVALID, "flip: %lld is no dimension, or was named before", (long long)dims[k]);
		seen |= 1u << d;
		reverse(&m, (uint32_t)d);
	}
	return low_move(l, of, out, &m);
}

static clv_status lower_rot90(lowering *l, node_id n)
{
	int64_t k, dims[2] = {0, 1};
	uint32_t count;
	slot of, out;
	nt form;
	TRY(low_tensor(l, n, 0, &of));
	nt from = *low_at(l, of);
	TRY(low_int(l, n, 1, 1, &k));
	if (low_has(l, n, 2))
		TRY(low_ints(l, n, 2, 2, dims, &count));
	for (uint32_t i = 0; i < 2; i++)
		dims[i] = dims[i] < 0 ? dims[i] + from.ndim : dims[i];
	if (dims[0] < 0 || dims[1] < 0 || dims[0] >= from.ndim || dims[1] >= from.ndim || dims[0] == dims[1])
		return fail(CLV_E_INVALID, "rot90 needs two different dimensions");
	TRY(new_rows(l, n, &form, &out));
	uint32_t a = (uint32_t)dims[0], b = (uint32_t)dims[1];
	k = (k % 4 + 4) % 4;
	if (k & 1) {
		int64_t size = from.size[a], stride = from.stride[a];
		from.size[a] = from.size[b];
		from.stride[a] = from.stride[b];
		from.size[b] = size;
		from.stride[b] = stride;
	}
	if (!same_but(&from, &form, NONE))
		return fail(CLV_E_INVALID, "%s", sizes_differ);
	move m = move_between(&from, &form);
	if (k == 1 || k == 2)
		reverse(&m, a);
	if (k == 2 || k == 3)
		reverse(&m, b);
	return low_move(l, of, out, &m);
}

/* Two copies for each dimension that is shifted: what stays in order, and what comes round. */
static clv_status roll_from(lowering *l, slot of, slot out, const move *m, const int64_t *shift, uint32_t at)
{
	while (at < m->ndim && (shift[at] == 0 || m->d[at].size < 2))
		at++;
	if (at == m->ndim)
		return low_move(l, of, out, m);
	move stays = *m, round = *m;
	stays.d[at].size -= shift[at];
	stays.to += shift[at] * m->d[at].to;
	round.d[at].size = shift[at];
	round.from += (m->d[at].size - shift[at]) * m->d[at].from;
	TRY(roll_from(l, of, out, &stays, shift, at + 1));
	return roll_from(l, of, out, &round, shift, at + 1);
}

static clv_status lower_roll(lowering *l, node_id n)
{
	int64_t shifts[NT_DIMS], dims[NT_DIMS], total[MOVE_DIMS] = {0};
	uint32_t count, named;
	slot of, out;
	nt form;
	TRY(low_tensor(l, n, 0, &of));
	TRY(low_ints(l, n, 1, NT_DIMS, shifts, &count));
	TRY(low_ints(l, n, 2, NT_DIMS, dims, &named));
	TRY(new_rows(l, n, &form, &out));
	if (!same_but(low_at(l, of), &form, NONE) || (named != count && !(named == 0 && count == 1)))
		return fail(CLV_E_INVALID, "%s", sizes_differ);
	if (nt_numel(&form) == 0)
		return CLV_OK;
	if (named == 0) { /* over all elements */
		TRY(low_as_rows(l, of, &of));
		form = (nt){.dtype = form.dtype, .ndim = 1, .size = {nt_numel(&form)}, .stride = {1}};
		dims[0] = 0;
	}
	const nt from = named ? *low_at(l, of) : form;
	for (uint32_t k = 0; k < count; k++) {
		int64_t d = dims[k] < 0 ? dims[k] + form.ndim : dims[k];
		if (d < 0 || d >= form.ndim)
			return fail(CLV_E_INVALID, "roll: there is no dimension %lld", (long long)dims[k]);
		total[d] = (total[d] + shifts[k] % form.size[d] + form.size[d]) % form.size[d];
	}
	move m = move_between(&from, &form);
	return roll_from(l, of, out, &m, total, 0);
}

/* ---- copies ------------------------------------------------------------------------------------------------------------------------ */

/* clone and the like: layouts are our own affair, low_same copies where a write could tell. */
static clv_status lower_clone(lowering *l, node_id n)
{
	slot of;
	TRY(low_tensor(l, n, 0, &of));
	return low_same(l, n, 0, of);
}

/* The values of `from`, spread over the sizes of `to` and cast, into a part of it. */
static clv_status write_part(lowering *l, slot from, slot to, int64_t offset, const nt *part)
{
	nt spread;
	slot s, out;
	TRY(as_type(l, from, part->dtype, &s));
	if (!nt_expand(low_at(l, s), part->ndim, part->size, &spread))
		return fail(CLV_E_INVALID, "%s", sizes_differ);
	if (nt_numel(part) == 0)
		return CLV_OK;
	TRY(low_part(l, s, 0, &spread, &s));
	TRY(low_part(l, to, offset, part, &out));
	return low_copy(l, s, out);
}

static bool share_memory(const plan *p, node_id n)
{
	const node *x = &p->nodes.at[n];
	const arg *a = &p->args.at[x->args];
	return a[0].kind == ARG_VALUE && a[1].kind == ARG_VALUE && alias_root(p, a[0].u.v) == alias_root(p, a[1].u.v);
}

static clv_status lower_copy_(lowering *l, node_id n)
{
	slot to, from, own;
	TRY(low_tensor(l, n, 1, &from));
	TRY(low_in_place(l, n, &to));
	if (share_memory(low_plan(l), n)) {
		nt form = *low_at(l, from);
		nt_rows(&form);
		TRY(low_temp(l, &form, &own));
		TRY(low_copy(l, from, own));
		from = own;
	}
	const nt part = *low_at(l, to);
	return write_part(l, from, to, 0, &part);
}

static clv_status lower_fill_(lowering *l, node_id n)
{
	uint64_t element = 0;
	slot to, from;
	TRY(low_in_place(l, n, &to));
	const nt part = *low_at(l, to);
	if (low_what(l, n) == 0) /* zero_ */
		return low_zero(l, to);
	if (low_is_number(l, n, 1)) {
		TRY(low_element(l, n, 1, part.dtype, &element));
		return low_fill(l, to, &part, 0, &element);
	}
	TRY(low_tensor(l, n, 1, &from));
	if (low_at(l, from)->ndim)
		return fail(CLV_E_INVALID, "fill_ takes a number, or a tensor without dimensions");
	return write_part(l, from, to, 0, &part);
}

/* slice_scatter, select_scatter, diagonal_scatter: argument 0 with a part replaced by argument 1. */
enum { SCATTER_SLICE, SCATTER_SELECT, SCATTER_DIAGONAL };

static clv_status part_of(lowering *l, node_id n, const nt *t, int64_t *offset, nt *part)
{
	int64_t first, length, step;
	uint32_t a, b;
	*part = *t;
	switch (low_what(l, n)) {
	case SCATTER_SLICE:
		TRY(slice_of(l, n, 2, t, &a, &first, &length, &step));
		part->size[a] = length;
		part->stride[a] *= length > 1 ? step : 1;
		*offset = first * t->stride[a];
		return CLV_OK;
	case SCATTER_SELECT:
		TRY(select_of(l, n, 2, t, &a, &first));
		*offset = first * t->stride[a];
		part->ndim--;
		for (uint32_t d = a; d < part->ndim; d++) {
			part->size[d] = t->size[d + 1];
			part->stride[d] = t->stride[d + 1];
		}
		return CLV_OK;
	default:
		TRY(low_int(l, n, 2, 0, &first));
		TRY(low_dim(l, n, 3, 0, t->ndim, &a));
		TRY(low_dim(l, n, 4, 1, t->ndim, &b));
		return t->ndim < 2 ? fail(CLV_E_INVALID, "a diagonal needs two dimensions")
		                   : diagonal_of(t, first, a, b, offset, part);
	}
}

static clv_status lower_part_scatter(lowering *l, node_id n)
{
	int64_t offset;
	slot of, from, out;
	nt form, part;
	TRY(low_tensor(l, n, 0, &of));
	TRY(low_tensor(l, n, 1, &from));
	TRY(new_rows(l, n, &form, &out));
	TRY(low_copy(l, of, out));
	TRY(part_of(l, n, &form, &offset, &part));
	if (!same_but(low_at(l, from), &part, NONE))
		return fail(CLV_E_INVALID, "%s", sizes_differ);
	return write_part(l, from, out, offset, &part);
}

/* ---- triangles and diagonals --------------------------------------------------------------------------------------------------------- */

typedef struct triangle {
	slot of;
	bool upper;
	int64_t shift, rows, cols, row; /* of a matrix; bytes between rows */
	int64_t matrices, matrix;       /* how many, bytes between them */
	uint32_t bytes;
} triangle;

static void zero_outside(const triangle *x, char *at)
{
	for (int64_t i = 0; i < x->rows; i++) {
		int64_t edge = x->upper ? i + x->shift : i + x->shift + 1; /* the first column on the right side of it */
		edge = edge < 0 ? 0 : edge > x->cols ? x->cols : edge;
		if (x->upper)
			memset(at + i * x->row, 0, (size_t)(edge * x->bytes));
		else
			memset(at + i * x->row + edge * x->bytes, 0, (size_t)((x->cols - edge) * x->bytes));
	}
}

static clv_status step_triangle(const void *params, frame *f)
{
	const triangle *x = params;
	for (int64_t k = 0; k < x->matrices; k++)
		zero_outside(x, f->t[x->of].data + k * x->matrix);
	return CLV_OK;
}

enum { TRIANGLE_LOWER, TRIANGLE_UPPER };

static clv_status lower_triangle(lowering *l, node_id n)
{
	triangle *x = low_alloc(l, sizeof *x);
	slot of;
	nt form;
	TRY_MEM(x);
	TRY(low_tensor(l, n, 0, &of));
	TRY(new_rows(l, n, &form, &x->of));
	TRY(low_int(l, n, 1, 0, &x->shift));
	TRY(low_copy(l, of, x->of));
	if (form.ndim < 2)
		return fail(CLV_E_INVALID, "the tensor must have at least 2 dimensions");
	if (nt_numel(&form) == 0)
		return CLV_OK;
	x->upper = low_what(l, n) == TRIANGLE_UPPER;
	x->rows = form.size[form.ndim - 2];
	x->cols = form.size[form.ndim - 1];
	x->shift = x->shift < -x->rows ? -x->rows : x->shift > x->cols ? x->cols : x->shift;
	x->bytes = move_between(&form, &form).bytes;
	x->row = x->cols * x->bytes;
	x->matrix = x->rows * x->row;
	x->matrices = nt_numel(&form) / (x->rows * x->cols);
	return low_step(l, step_triangle, x);
}

/* diag of a vector, diag_embed: zeros with the elements on a diagonal. */
static clv_status embed(lowering *l, node_id n, slot of, int64_t shift, uint32_t a, uint32_t b)
{
	int64_t offset;
	slot out;
	nt form, part;
	TRY(new_rows(l, n, &form, &out));
	if (form.ndim < 2 || a >= form.ndim || b >= form.ndim)
		return fail(CLV_E_INVALID, "%s", sizes_differ);
	TRY(diagonal_of(&form, shift, a, b, &offset, &part));
	if (!same_but(low_at(l, of), &part, NONE))
		return fail(CLV_E_INVALID, "%s", sizes_differ);
	TRY(low_zero(l, out));
	return write_part(l, of, out, offset, &part);
}

static clv_status lower_diag(lowering *l, node_id n)
{
	int64_t shift, offset;
	slot of, out;
	nt part;
	TRY(low_tensor(l, n, 0, &of));
	TRY(low_int(l, n, 1, 0, &shift));
	const nt from = *low_at(l, of);
	if (from.ndim == 1)
		return embed(l, n, of, shift, 0, 1);
	if (from.ndim != 2)
		return fail(CLV_E_INVALID, "diag takes a vector or a matrix");
	TRY(diagonal_of(&from, shift, 0, 1, &offset, &part));
	return low_view(l, n, 0, of, nt_numel(&part) ? offset : 0, &part, &out);
}

static clv_status lower_diag_embed(lowering *l, node_id n)
{
	int64_t shift;
	uint32_t a, b, ndim;
	slot of;
	TRY(low_tensor(l, n, 0, &of));
	ndim = low_at(l, of)->ndim + 1u;
	TRY(low_int(l, n, 1, 0, &shift));
	TRY(low_dim(l, n, 2, -2, ndim, &a));
	TRY(low_dim(l, n, 3, -1, ndim, &b));
	return embed(l, n, of, shift, a, b);
}

/* ---- windows and channels --------------------------------------------------------------------------------------------------------------- */

/* Which places of a row of windows lie inside: offset k of the kernel meets pixels first*stride + start … */
typedef struct span {
	int64_t first, count, start;
} span;

static span inside(int64_t places, int64_t stride, int64_t start, int64_t size)
{
	int64_t first = start < 0 ? (-start + stride - 1) / stride : 0;
	int64_t end = size - start > 0 ? (size - start - 1) / stride + 1 : 0;
	end = end > places ? places : end;
	return (span){first, end > first ? end - first : 0, start + first * stride};
}

typedef struct windows {
	int64_t kernel[2], dilation[2], padding[2], stride[2], size[2], places[2];
} windows;

static clv_status window_pair(lowering *l, node_id n, uint32_t i, int64_t least, int64_t *out)
{
	uint32_t count;
	TRY(low_ints(l, n, i, 2, out, &count));
	if (count == 1)
		out[1] = out[0];
	return count && out[0] >= least && out[1] >= least && out[0] < 1 << 30 && out[1] < 1 << 30
	           ? CLV_OK
	           : fail(CLV_E_INVALID, "argument %u has a size that is too small or too large", i);
}

/* Kernel, dilation, padding and stride are arguments i … i+3. */
static clv_status windows_of(lowering *l, node_id n, uint32_t i, int64_t height, int64_t width, windows *w)
{
	w->size[0] = height;
	w->size[1] = width;
	TRY(window_pair(l, n, i, 1, w->kernel));
	TRY(window_pair(l, n, i + 1, 1, w->dilation));
	TRY(window_pair(l, n, i + 2, 0, w->padding));
	TRY(window_pair(l, n, i + 3, 1, w->stride));
	for (int d = 0; d < 2; d++) {
		int64_t reach = w->dilation[d] * (w->kernel[d] - 1) + 1, whole = w->size[d] + 2 * w->padding[d];
		w->places[d] = whole < reach ? 0 : (whole - reach) / w->stride[d] + 1;
	}
	return CLV_OK;
}

/* Strides of a tensor N, C, then the rest; a missing N has size 1. */
static nt with_batch(const nt *t, uint32_t ndim)
{
	nt made = *t;
	if (t->ndim == ndim)
		return made;
	made.ndim = (uint8_t)ndim;
	for (uint32_t d = ndim; d-- > 1;) {
		made.size[d] = t->size[d - 1];
		made.stride[d] = t->stride[d - 1];
	}
	made.size[0] = 1;
	made.stride[0] = 0;
	return made;
}

/* F.unfold: column c * kernel + k of the result is what offset k of each window meets in channel c. */
static clv_status lower_im2col(lowering *l, node_id n)
{
	slot of, out;
	windows w;
	nt form;
	TRY(low_tensor(l, n, 0, &of));
	TRY(new_rows(l, n, &form, &out));
	uint32_t ndim = low_at(l, of)->ndim;
	if (ndim < 3 || ndim > 4 || form.ndim + 1u != ndim)
		return fail(CLV_E_INVALID, "unfold takes an image, or several");
	const nt x = with_batch(low_at(l, of), 4), y = with_batch(&form, 3);
	TRY(windows_of(l, n, 1, x.size[2], x.size[3], &w));
	int64_t taps = w.kernel[0] * w.kernel[1], places = times(w.places[0], w.places[1]);
	if (y.size[0] != x.size[0] || times(x.size[1], taps) != y.size[1] || places != y.size[2])
		return fail(CLV_E_INVALID, "%s", sizes_differ);
	if (nt_numel(&y) == 0)
		return CLV_OK;
	TRY(low_zero(l, out));
	for (int64_t k = 0; k < taps; k++) {
		int64_t i = k / w.kernel[1], j = k % w.kernel[1];
		span h = inside(w.places[0], w.stride[0], i * w.dilation[0] - w.padding[0], x.size[2]);
		span v = inside(w.places[1], w.stride[1], j * w.dilation[1] - w.padding[1], x.size[3]);
		move m = {.bytes = move_between(&form, &form).bytes};
		move_add(&m, x.size[0], x.stride[0], y.stride[0]);
		move_add(&m, x.size[1], x.stride[1], y.stride[1] * taps);
		move_add(&m, h.count, w.stride[0] * x.stride[2], w.places[1]);
		move_add(&m, v.count, w.stride[1] * x.stride[3], 1);
		m.from = (h.start * x.stride[2] + v.start * x.stride[3]) * m.bytes;
		m.to = (k * y.stride[1] + h.first * w.places[1] + v.first) * m.bytes;
		TRY(low_move(l, of, out, &m));
	}
	return CLV_OK;
}

typedef struct folding {
	slot from, to;
	windows w;
	int64_t images, channels; /* N, C */
	bool wide;                /* f64 */
} folding;

#define FOLD(type)                                                                                                     \
	for (int64_t k = 0; k < taps; k++) {                                                                               \
		span h = inside(w->places[0], w->stride[0], k / w->kernel[1] * w->dilation[0] - w->padding[0], w->size[0]);    \
		span v = inside(w->places[1], w->stride[1], k % w->kernel[1] * w->dilation[1] - w->padding[1], w->size[1]);    \
		for (int64_t i = 0; i < h.count; i++) {                                                                        \
			const type *f = (const type *)from + (k * w->places[0] + h.first + i) * w->places[1] + v.first;            \
			type *t = (type *)to + (h.start + i * w->stride[0]) * w->size[1] + v.start;                                \
			for (int64_t j = 0; j < v.count; j++)                                                                      \
				t[j * w->stride[1]] += f[j];                                                                           \
		}                                                                                                              \
	}

/* The images first … end-1, counted over channels. */
static void fold_items(void *ctx, int64_t first, int64_t end, int thread)
{
	void **c = ctx;
	const folding *x = c[0];
	const windows *w = &x->w;
	int64_t taps = w->kernel[0] * w->kernel[1], bytes = x->wide ? 8 : 4;
	(void)thread;
	for (int64_t item = first; item < end; item++) {
		const char *from = (const char *)c[1] + item * taps * w->places[0] * w->places[1] * bytes;
		char *to = (char *)c[2] + item * w->size[0] * w->size[1] * bytes;
		if (x->wide) {
			FOLD(double)
		} else {
			FOLD(float)
		}
	}
}

static clv_status step_fold(const void *params, frame *f)
{
	const folding *x = params;
	void *ctx[] = {(void *)(uintptr_t)x, f->t[x->from].data, f->t[x->to].data};
	team_run(f->team, x->images * x->channels, 1, fold_items, ctx);
	return CLV_OK;
}

static const char *takes_floats(const plan *p, node_id n)
{
	const node *x = &p->nodes.at[n];
	const arg *a = &p->args.at[x->args];
	uint8_t d = x->nargs && a->kind == ARG_VALUE ? native_dtype(p, a->u.v) : DT_COUNT;
	return d == DT_F32 || d == DT_F64 ? NULL : "its elements are no f32 or f64";
}

/* F.fold: sums of what windows have. */
static clv_status lower_col2im(lowering *l, node_id n)
{
	folding *x = low_alloc(l, sizeof *x);
	int64_t size[2];
	slot of;
	nt form;
	TRY_MEM(x);
	TRY(low_tensor(l, n, 0, &of));
	TRY(new_rows(l, n, &form, &x->to));
	TRY(window_pair(l, n, 1, 1, size));
	uint32_t ndim = low_at(l, of)->ndim;
	if (ndim < 2 || ndim > 3 || form.ndim != ndim + 1u)
		return fail(CLV_E_INVALID, "fold takes the columns of an image, or of several");
	const nt c = with_batch(low_at(l, of), 3), y = with_batch(&form, 4);
	TRY(windows_of(l, n, 2, size[0], size[1], &x->w));
	x->images = y.size[0];
	x->channels = y.size[1];
	x->wide = form.dtype == DT_F64;
	if (y.size[0] != c.size[0] || y.size[2] != size[0] || y.size[3] != size[1] ||
	    times(y.size[1], x->w.kernel[0] * x->w.kernel[1]) != c.size[1] ||
	    times(x->w.places[0], x->w.places[1]) != c.size[2])
		return fail(CLV_E_INVALID, "%s", sizes_differ);
	TRY(low_same_type(l, of, x->to));
	TRY(low_as_rows(l, of, &x->from));
	TRY(low_zero(l, x->to));
	return nt_numel(&c) ? low_step(l, step_fold, x) : CLV_OK;
}

/* channel_shuffle: groups of channels, read across. */
static clv_status lower_channel_shuffle(lowering *l, node_id n)
{
	int64_t groups;
	slot of, out;
	nt form;
	TRY(low_tensor(l, n, 0, &of));
	TRY(low_int(l, n, 1, 1, &groups));
	TRY(low_form(l, n, 0, &form));
	const nt x = *low_at(l, of);
	if (x.ndim < 3 || groups <= 0 || !same_but(&x, &form, NONE) || groups > x.size[1] || x.size[1] % groups)
		return fail(CLV_E_INVALID, "the channels cannot be divided into %lld groups", (long long)groups);
	nt_strides_like(&form, &x);
	TRY(low_result(l, n, 0, &form, false, &out));
	const nt y = *low_at(l, out);
	int64_t each = x.size[1] / groups;
	move m = {.bytes = move_between(&x, &y).bytes};
	for (uint32_t d = 0; d < x.ndim; d++)
		if (d != 1)
			move_add(&m, x.size[d], x.stride[d], y.stride[d]);
	move_add(&m, groups, each * x.stride[1], y.stride[1]);
	move_add(&m, each, x.stride[1], groups * y.stride[1]);
	return low_move(l, of, out, &m);
}

/* pixel_shuffle: channels c*r*r + i*r + j become pixel (i, j) of blocks of r by r; pixel_unshuffle is the reverse. */
static clv_status lower_pixel_shuffle(lowering *l, node_id n)
{
	bool back = low_what(l, n);
	int64_t r;
	slot of, out;
	nt form;
	TRY(low_tensor(l, n, 0, &of));
	TRY(low_int(l, n, 1, 1, &r));
	TRY(low_form(l, n, 0, &form));
	const nt x = *low_at(l, of);
	const nt *many = back ? &form : &x, *wide = back ? &x : &form; /* with many channels, with many pixels */
	uint32_t c = x.ndim < 3 ? 0 : x.ndim - 3u;
	bool fits = x.ndim >= 3 && form.ndim == x.ndim && r > 0 && r < 1 << 20 &&
	            many->size[c] == times(wide->size[c], r * r) && wide->size[c + 1] == times(many->size[c + 1], r) &&
	            wide->size[c + 2] == times(many->size[c + 2], r);
	for (uint32_t d = 0; fits && d < c; d++)
		fits = x.size[d] == form.size[d];
	if (!fits)
		return fail(CLV_E_INVALID, "%s", sizes_differ);
	if (x.ndim == 4 && x.stride[1] == 1)
		nt_channels_last(&form);
	TRY(low_result(l, n, 0, &form, false, &out));
	const nt y = *low_at(l, out), m_at = back ? y : x, w_at = back ? x : y;
	move m = {.bytes = move_between(&x, &y).bytes};
#define ADD(size, m_stride, w_stride) move_add(&m, size, back ? (w_stride) : (m_stride), back ? (m_stride) : (w_stride))
	for (uint32_t d = 0; d < c; d++)
		ADD(m_at.size[d], m_at.stride[d], w_at.stride[d]);
	ADD(w_at.size[c], m_at.stride[c] * r * r, w_at.stride[c]);
	ADD(r, m_at.stride[c] * r, w_at.stride[c + 1]);
	ADD(r, m_at.stride[c], w_at.stride[c + 2]);
	ADD(m_at.size[c + 1], m_at.stride[c + 1], w_at.stride[c + 1] * r);
	ADD(m_at.size[c + 2], m_at.stride[c + 2], w_at.stride[c + 2] * r);
#undef ADD
	return low_move(l, of, out, &m);
}

const native_op native_ops_move[] = {
	{.id = OP_cat, .takes = takes_any, .lower = lower_cat},
	{.id = OP_channel_shuffle, .takes = takes_any, .lower = lower_channel_shuffle},
	{.id = OP_clone, .takes = takes_any, .lower = lower_clone},
	{.id = OP_col2im, .takes = takes_floats, .widens = true, .lower = lower_col2im},
	{.id = OP_column_stack, .takes = takes_any, .lower = lower_stacks, .what = STACK_COLUMNS},
	{.id = OP_concat, .takes = takes_any, .lower = lower_cat},
	{.id = OP_concatenate, .takes = takes_any, .lower = lower_cat},
	{.id = OP_copy_, .takes = takes_any, .lower = lower_copy_},
	{.id = OP_diag, .takes = takes_any, .lower = lower_diag},
	{.id = OP_diag_embed, .takes = takes_any, .lower = lower_diag_embed},
	{.id = OP_diagonal_scatter, .takes = takes_any, .lower = lower_part_scatter, .what = SCATTER_DIAGONAL},
	{.id = OP_dstack, .takes = takes_any, .lower = lower_stacks, .what = STACK_D},
	{.id = OP_fill__Scalar, .takes = takes_any, .lower = lower_fill_, .what = 1},
	{.id = OP_fill__Tensor, .takes = takes_any, .lower = lower_fill_, .what = 1},
	{.id = OP_flip, .takes = takes_any, .lower = lower_flip},
	{.id = OP_fliplr, .takes = takes_any, .lower = lower_flip, .what = 1},
	{.id = OP_flipud, .takes = takes_any, .lower = lower_flip, .what = 2},
	{.id = OP_hstack, .takes = takes_any, .lower = lower_stacks, .what = STACK_H},
	{.id = OP_im2col, .takes = takes_any, .lower = lower_im2col},
	{.id = OP_lift_fresh_copy, .takes = takes_any, .lower = lower_clone},
	{.id = OP_pixel_shuffle, .takes = takes_any, .lower = lower_pixel_shuffle},
	{.id = OP_pixel_unshuffle, .takes = takes_any, .lower = lower_pixel_shuffle, .what = 1},
	{.id = OP_repeat, .takes = takes_any, .lower = lower_repeat},
	{.id = OP_repeat_interleave_self_int, .takes = takes_any, .lower = lower_interleave},
	{.id = OP_roll, .takes = takes_any, .lower = lower_roll},
	{.id = OP_rot90, .takes = takes_any, .lower = lower_rot90},
	{.id = OP_row_stack, .takes = takes_any, .lower = lower_stacks, .what = STACK_V},
	{.id = OP_select_scatter, .takes = takes_any, .lower = lower_part_scatter, .what = SCATTER_SELECT},
	{.id = OP_slice_scatter, .takes = takes_any, .lower = lower_part_scatter, .what = SCATTER_SLICE},
	{.id = OP_stack, .takes = takes_any, .lower = lower_stack},
	{.id = OP_tile, .takes = takes_any, .lower = lower_repeat, .what = 1},
	{.id = OP_tril, .takes = takes_any, .lower = lower_triangle, .what = TRIANGLE_LOWER},
	{.id = OP_triu, .takes = takes_any, .lower = lower_triangle, .what = TRIANGLE_UPPER},
	{.id = OP_vstack, .takes = takes_any, .lower = lower_stacks, .what = STACK_V},
	{.id = OP_zero_, .takes = takes_any, .lower = lower_fill_},
	{.id = OP_UNKNOWN},
};
