/* Views: operators whose result is the memory of their argument with other sizes and strides. They make no step. Where
 * strides do not allow it (inside, images may lie otherwise than in torch), the result is a copy, unless writes must be seen
 * through it. */
#include <string.h>

#include "native/moves.h"

/* ---- sizes -------------------------------------------------------------------------------------------------------------- */

/* Strides for the sizes of `to` on the elements of `from`, in row-major order. False: there are none. */
static bool fit_strides(const nt *from, nt *to)
{
	int64_t chunk = 1, stride; /* elements and stride of dimensions of `from` that lie behind one another */
	uint32_t view = to->ndim;
	if (nt_numel(from) == 0) {
		nt_rows(to);
		return true;
	}
	for (uint32_t d = 0; d < to->ndim; d++)
		to->stride[d] = 1; /* of those that are left over: all of size 1 */
	stride = from->ndim ? from->stride[from->ndim - 1] : 1;
	for (uint32_t d = from->ndim; d-- > 0;) {
		int64_t covered = 1;
		chunk *= from->size[d];
		if (d > 0 && (from->size[d - 1] == 1 || from->stride[d - 1] == chunk * stride))
			continue;
		while (view > 0 && (covered < chunk || to->size[view - 1] == 1)) {
			view--;
			to->stride[view] = covered * stride;
			covered *= to->size[view];
		}
		if (covered != chunk)
			return false;
		if (d > 0) {
			stride = from->stride[d - 1];
			chunk = 1;
		}
	}
	return true;
}

/* ---- one result ---------------------------------------------------------------------------------------------------------- */

static clv_status give_view(lowering *l, node_id n, uint32_t i, slot of, int64_t offset, const nt *t)
{
	slot out;
	return low_view(l, n, i, of, offset, t, &out);
}

/* A reshape to the sizes of the plan: `wanted` is what the arguments say, -1 for whatever is left. */
static clv_status give_reshape(lowering *l, node_id n, slot of, const int64_t *wanted, uint32_t count)
{
	nt form, from = *low_at(l, of), rows;
	slot out;
	move m;
	TRY(low_form(l, n, 0, &form));
	form.dtype = from.dtype;
	bool same = count == form.ndim && nt_numel(&form) == nt_numel(&from);
	for (uint32_t d = 0; same && d < count; d++)
		same = wanted[d] == -1 || wanted[d] == form.size[d];
	if (!same)
		return fail(CLV_E_VERIFY, "the sizes of the result are not those of the plan");
	if (fit_strides(&from, &form))
		return low_view(l, n, 0, of, 0, &form, &out);
	nt_rows(&form);
	TRY(low_result(l, n, 0, &form, true, &out));
	rows = from;
	nt_rows(&rows);
	m = move_between(&from, &rows);
	return low_move(l, of, out, &m);
}

static clv_status lower_reshape(lowering *l, node_id n)
{
	int64_t wanted[NT_DIMS];
	uint32_t count;
	slot of;
	TRY(low_tensor(l, n, 0, &of));
	TRY(low_ints(l, n, 1, NT_DIMS, wanted, &count));
	return give_reshape(l, n, of, wanted, count);
}

static clv_status lower_reshape_as(lowering *l, node_id n)
{
	slot of, other;
	TRY(low_tensor(l, n, 0, &of));
	TRY(low_tensor(l, n, 1, &other));
	const nt like = *low_at(l, other);
	return give_reshape(l, n, of, like.size, like.ndim);
}

static clv_status lower_flatten(lowering *l, node_id n)
{
	int64_t wanted[NT_DIMS] = {1};
	uint32_t first = 0, last = 0, count = 0;
	slot of;
	TRY(low_tensor(l, n, 0, &of));
	const nt t = *low_at(l, of);
	if (low_what(l, n)) {
		TRY(low_dim(l, n, 1, 0, t.ndim, &first));
		TRY(low_dim(l, n, 2, -1, t.ndim, &last));
	} else if (t.ndim) { /* ravel */
		last = t.ndim - 1u;
	}
	if (first > last)
		return fail(CLV_E_INVALID, "flatten() has invalid args: start_dim cannot come after end_dim");
	for (uint32_t d = 0; d < t.ndim; d++) {
		if (d <= first || d > last)
			wanted[count++] = t.size[d];
		else
			wanted[count - 1] *= t.size[d];
	}
	return give_reshape(l, n, of, wanted, count ? count : 1);
}

static clv_status lower_unflatten(lowering *l, node_id n)
{
	int64_t wanted[2 * NT_DIMS], sizes[NT_DIMS];
	uint32_t at, count, total = 0;
	slot of;
	TRY(low_tensor(l, n, 0, &of));
	const nt t = *low_at(l, of);
	TRY(low_dim(l, n, 1, 0, t.ndim, &at));
	TRY(low_ints(l, n, 2, NT_DIMS, sizes, &count));
	for (uint32_t d = 0; d < t.ndim; d++) {
		for (uint32_t k = 0; d == at && k < count; k++)
			wanted[total++] = sizes[k];
		if (d != at)
			wanted[total++] = t.size[d];
	}
	return give_reshape(l, n, of, wanted, total);
}

/* ---- without a change of order --------------------------------------------------------------------------------------------- */

static void drop_dim(nt *t, uint32_t at)
{
	t->ndim--;
	for (uint32_t d = at; d < t->ndim; d++) {
		t->size[d] = t->size[d + 1];
		t->stride[d] = t->stride[d + 1];
	}
}

static clv_status add_dim(nt *t, uint32_t at, int64_t size, int64_t stride)
{
	if (t->ndim == NT_DIMS)
		return fail(CLV_E_UNSUPPORTED, "tensors of more than %d dimensions are not supported", NT_DIMS);
	for (uint32_t d = t->ndim++; d > at; d--) {
		t->size[d] = t->size[d - 1];
		t->stride[d] = t->stride[d - 1];
	}
	t->size[at] = size;
	t->stride[at] = stride;
	return CLV_OK;
}

/* squeeze: all dimensions of size 1, or of those that are given. */
static clv_status lower_squeeze(lowering *l, node_id n)
{
	int64_t dims[NT_DIMS];
	uint32_t count, asked = 0;
	slot of;
	TRY(low_tensor(l, n, 0, &of));
	nt t = *low_at(l, of);
	TRY(low_ints(l, n, 1, NT_DIMS, dims, &count));
	for (uint32_t k = 0; k < count; k++) {
		int64_t most = t.ndim ? t.ndim : 1;
		if (dims[k] < -most || dims[k] >= most)
			return fail(CLV_E_INVALID, "a tensor of %u dimensions has no dimension %lld", t.ndim, (long long)dims[k]);
		asked |= 1u << (dims[k] < 0 ? dims[k] + most : dims[k]);
	}
	for (uint32_t d = t.ndim; d-- > 0;)
		if (t.size[d] == 1 && (low_what(l, n) == 0 || asked >> d & 1))
			drop_dim(&t, d);
	return give_view(l, n, 0, of, 0, &t);
}

static clv_status lower_unsqueeze(lowering *l, node_id n)
{
	uint32_t at;
	slot of;
	TRY(low_tensor(l, n, 0, &of));
	nt t = *low_at(l, of);
	TRY(low_dim(l, n, 1, 0, t.ndim + 1u, &at));
	TRY(add_dim(&t, at, 1, at < t.ndim ? t.size[at] * t.stride[at] : 1));
	return give_view(l, n, 0, of, 0, &t);
}

/* atleast_1d, _2d, _3d: `what` dimensions. */
static clv_status lower_atleast(lowering *l, node_id n)
{
	slot of;
	TRY(low_tensor(l, n, 0, &of));
	nt t = *low_at(l, of);
	TRY(at_least(&t, low_what(l, n)));
	return give_view(l, n, 0, of, 0, &t);
}

clv_status at_least(nt *t, uint32_t dims)
{
	if (t->ndim < 1 && dims >= 1)
		TRY(add_dim(t, 0, 1, 1));
	if (t->ndim < 2 && dims >= 2)
		TRY(add_dim(t, 0, 1, t->size[0]));
	if (t->ndim < 3 && dims >= 3)
		TRY(add_dim(t, 2, 1, 1));
	return CLV_OK;
}

/* expand, broadcast_to: -1 keeps a size. */
static clv_status lower_expand(lowering *l, node_id n)
{
	int64_t sizes[NT_DIMS];
	uint32_t count;
	slot of;
	nt t;
	TRY(low_tensor(l, n, 0, &of));
	const nt from = *low_at(l, of);
	TRY(low_ints(l, n, 1, NT_DIMS, sizes, &count));
	for (uint32_t d = 0; d < count; d++)
		if (sizes[d] == -1 && d + from.ndim >= count)
			sizes[d] = from.size[d + from.ndim - count];
	if (!nt_expand(&from, (uint8_t)count, sizes, &t))
		return fail(CLV_E_INVALID, "the tensor cannot be expanded to these sizes");
	return give_view(l, n, 0, of, 0, &t);
}

static clv_status lower_expand_as(lowering *l, node_id n)
{
	slot of, other;
	nt t;
	TRY(low_tensor(l, n, 0, &of));
	TRY(low_tensor(l, n, 1, &other));
	const nt like = *low_at(l, other);
	if (!nt_expand(low_at(l, of), like.ndim, like.size, &t))
		return fail(CLV_E_INVALID, "the tensor cannot be expanded to these sizes");
	return give_view(l, n, 0, of, 0, &t);
}

/* ---- another order of dimensions --------------------------------------------------------------------------------------------- */

static clv_status give_order(lowering *l, node_id n, slot of, const uint32_t *order)
{
	const nt from = *low_at(l, of);
	nt t = from;
	for (uint32_t d = 0; d < t.ndim; d++) {
		t.size[d] = from.size[order[d]];
		t.stride[d] = from.stride[order[d]];
	}
	return give_view(l, n, 0, of, 0, &t);
}

/* The numbers of argument i as dimensions, each at most once. */
static clv_status distinct_dims(lowering *l, node_id n, uint32_t i, uint32_t ndim, uint32_t *out, uint32_t *count)
{
	int64_t dims[NT_DIMS];
	uint32_t seen = 0;
	TRY(low_ints(l, n, i, NT_DIMS, dims, count));
	for (uint32_t k = 0; k < *count; k++) {
		int64_t d = dims[k] < 0 ? dims[k] + ndim : dims[k];
		if (d < 0 || d >= ndim || seen >> d & 1)
			return fail(CLV_E_INVALID, "argument %u: %lld is no dimension, or was named before", i, (long long)dims[k]);
		seen |= 1u << d;
		out[k] = (uint32_t)d;
	}
	return CLV_OK;
}

static clv_status lower_permute(lowering *l, node_id n)
{
	uint32_t order[NT_DIMS], count;
	slot of;
	TRY(low_tensor(l, n, 0, &of));
	uint32_t ndim = low_at(l, of)->ndim;
	TRY(distinct_dims(l, n, 1, ndim, order, &count));
	if (count != ndim)
		return fail(CLV_E_INVALID, "permute: %u dimensions are named, the tensor has %u", count, ndim);
	return give_order(l, n, of, order);
}

static clv_status lower_transpose(lowering *l, node_id n)
{
	uint32_t order[NT_DIMS], a, b;
	slot of;
	TRY(low_tensor(l, n, 0, &of));
	uint32_t ndim = low_at(l, of)->ndim;
	TRY(low_dim(l, n, 1, 0, ndim, &a));
	TRY(low_dim(l, n, 2, 0, ndim, &b));
	for (uint32_t d = 0; d < ndim; d++)
		order[d] = d == a ? b : d == b ? a : d;
	return give_order(l, n, of, order);
}

enum { TURN_ALL, TURN_LAST };

/* t, T (all dimensions), mT (the last two). */
static clv_status lower_turn(lowering *l, node_id n)
{
	uint32_t order[NT_DIMS];
	slot of;
	TRY(low_tensor(l, n, 0, &of));
	uint32_t ndim = low_at(l, of)->ndim, from = low_what(l, n) == TURN_LAST && ndim > 2 ? ndim - 2 : 0;
	if (low_what(l, n) == TURN_LAST && ndim < 2)
		return fail(CLV_E_INVALID, "the tensor has %u dimensions, two are needed", ndim);
	for (uint32_t d = 0; d < ndim; d++)
		order[d] = d < from ? d : ndim - 1 - (d - from);
	return give_order(l, n, of, order);
}

static clv_status lower_movedim(lowering *l, node_id n)
{
	uint32_t from[NT_DIMS], to[NT_DIMS], order[NT_DIMS], count, other, next = 0, taken = 0;
	slot of;
	TRY(low_tensor(l, n, 0, &of));
	uint32_t ndim = low_at(l, of)->ndim;
	TRY(distinct_dims(l, n, 1, ndim, from, &count));
	TRY(distinct_dims(l, n, 2, ndim, to, &other));
	if (count != other)
		return fail(CLV_E_INVALID, "movedim: %u dimensions are to be moved to %u places", count, other);
	for (uint32_t d = 0; d < ndim; d++)
		order[d] = NONE;
	for (uint32_t k = 0; k < count; k++) {
		order[to[k]] = from[k];
		taken |= 1u << from[k];
	}
	for (uint32_t d = 0; d < ndim; d++) {
		while (taken >> next & 1)
			next++;
		if (order[d] == NONE)
			order[d] = next++;
	}
	return give_order(l, n, of, order);
}

/* ---- parts -------------------------------------------------------------------------------------------------------------------- */

/* Result i: `length` of dimension `at`, from `first` on. */
static clv_status give_part(lowering *l, node_id n, uint32_t i, slot of, uint32_t at, int64_t first, int64_t length)
{
	nt t = *low_at(l, of);
	if (at >= t.ndim || first < 0 || length < 0 || first > t.size[at] || length > t.size[at] - first)
		return fail(CLV_E_INVALID, "%lld elements from %lld on of dimension %u are not all there", (long long)length,
		            (long long)first, at);
	t.size[at] = length;
	return give_view(l, n, i, of, length ? first * t.stride[at] : 0, &t);
}

clv_status slice_of(lowering *l, node_id n, uint32_t i, const nt *t, uint32_t *at, int64_t *first, int64_t *length,
                    int64_t *step)
{
	int64_t size, end;
	if (t->ndim == 0)
		return fail(CLV_E_INVALID, "slice() cannot be applied to a 0-dim tensor");
	TRY(low_dim(l, n, i, 0, t->ndim, at));
	size = t->size[*at];
	TRY(low_int(l, n, i + 1, 0, first));
	TRY(low_int(l, n, i + 2, INT64_MAX, &end));
	TRY(low_int(l, n, i + 3, 1, step));
	if (*step <= 0)
		return fail(CLV_E_INVALID, "slice step must be positive");
	*first = *first < 0 ? *first + size : *first;
	*first = *first < 0 ? 0 : *first > size ? size : *first;
	end = end < 0 ? end + size : end;
	end = end < *first ? *first : end > size ? size : end;
	*length = end == *first ? 0 : (end - *first - 1) / *step + 1;
	return CLV_OK;
}

static clv_status lower_slice(lowering *l, node_id n)
{
	int64_t first, length, step;
	uint32_t at;
	slot of;
	TRY(low_tensor(l, n, 0, &of));
	nt t = *low_at(l, of);
	TRY(slice_of(l, n, 1, &t, &at, &first, &length, &step));
	first = length ? first * t.stride[at] : 0;
	t.size[at] = length;
	t.stride[at] = length > 1 ? t.stride[at] * step : t.stride[at];
	return give_view(l, n, 0, of, first, &t);
}

clv_status select_of(lowering *l, node_id n, uint32_t i, const nt *t, uint32_t *at, int64_t *index)
{
	if (t->ndim == 0)
		return fail(CLV_E_INVALID, "select() cannot be applied to a 0-dim tensor.");
	TRY(low_dim(l, n, i, 0, t->ndim, at));
	TRY(low_int(l, n, i + 1, 0, index));
	int64_t size = t->size[*at];
	if (*index < -size || *index >= size)
		return fail(CLV_E_INVALID, "select(): index %lld out of range for a dimension of size %lld", (long long)*index,
		            (long long)size);
	*index = *index < 0 ? *index + size : *index;
	return CLV_OK;
}

static clv_status lower_select(lowering *l, node_id n)
{
	int64_t index;
	uint32_t at;
	slot of;
	TRY(low_tensor(l, n, 0, &of));
	nt t = *low_at(l, of);
	TRY(select_of(l, n, 1, &t, &at, &index));
	index = nt_numel(&t) ? index * t.stride[at] : 0;
	drop_dim(&t, at);
	return give_view(l, n, 0, of, index, &t);
}

static clv_status lower_narrow(lowering *l, node_id n)
{
	int64_t first, length;
	uint32_t at;
	slot of;
	TRY(low_tensor(l, n, 0, &of));
	const nt t = *low_at(l, of);
	TRY(low_dim(l, n, 1, 0, t.ndim, &at));
	TRY(low_int(l, n, 2, 0, &first));
	TRY(low_int(l, n, 3, 0, &length));
	if (t.ndim && first < 0)
		first += t.size[at];
	return give_part(l, n, 0, of, at, first, length);
}

static clv_status results_are(lowering *l, node_id n, int64_t count)
{
	return (int64_t)low_results(l, n) == count
	           ? CLV_OK
	           : fail(CLV_E_UNSUPPORTED, "the operator gives %lld tensors, the plan has %u", (long long)count,
	                  low_results(l, n));
}

/* Pieces of `each` elements; the last one may be smaller. */
static clv_status give_pieces(lowering *l, node_id n, slot of, uint32_t at, int64_t each)
{
	int64_t size = low_at(l, of)->size[at], count;
	if (each < 0 || (each == 0 && size != 0))
		return fail(CLV_E_INVALID, "a tensor cannot be split into pieces of %lld", (long long)each);
	count = size == 0 ? 1 : (size - 1) / each + 1;
	TRY(results_are(l, n, count));
	for (int64_t k = 0; k < count; k++)
		TRY(give_part(l, n, (uint32_t)k, of, at, k * each, size - k * each < each ? size - k * each : each));
	return CLV_OK;
}

static clv_status split_arguments(lowering *l, node_id n, uint32_t i, slot *of, uint32_t *at)
{
	TRY(low_tensor(l, n, 0, of));
	uint32_t ndim = low_at(l, *of)->ndim;
	if (ndim == 0)
		return fail(CLV_E_INVALID, "a tensor without dimensions cannot be split");
	return low_dim(l, n, i, 0, ndim, at);
}

static clv_status lower_split(lowering *l, node_id n)
{
	int64_t each;
	uint32_t at;
	slot of;
	TRY(split_arguments(l, n, 2, &of, &at));
	TRY(low_int(l, n, 1, 0, &each));
	return give_pieces(l, n, of, at, each);
}

static clv_status lower_chunk(lowering *l, node_id n)
{
	int64_t chunks, size, each;
	uint32_t at;
	slot of;
	TRY(split_arguments(l, n, 2, &of, &at));
	TRY(low_int(l, n, 1, 1, &chunks));
	size = low_at(l, of)->size[at];
	if (chunks <= 0)
		return fail(CLV_E_INVALID, "chunk expects `chunks` to be greater than 0, got: %lld", (long long)chunks);
	if (size > 0) {
		each = (size - 1) / chunks + 1;
		return give_pieces(l, n, of, at, each);
	}
	TRY(results_are(l, n, chunks)); /* torch gives so many empty ones */
	for (int64_t k = 0; k < chunks; k++)
		TRY(give_part(l, n, (uint32_t)k, of, at, 0, 0));
	return CLV_OK;
}

static clv_status lower_split_sizes(lowering *l, node_id n)
{
	uint32_t at, count, results = low_results(l, n);
	int64_t *sizes = low_alloc(l, (results + 1) * sizeof *sizes), first = 0;
	slot of;
	TRY_MEM(sizes);
	TRY(split_arguments(l, n, 2, &of, &at));
	TRY(low_ints(l, n, 1, results, sizes, &count));
	TRY(results_are(l, n, count));
	for (uint32_t k = 0; k < count; first += sizes[k++])
		TRY(give_part(l, n, k, of, at, first, sizes[k]));
	return first == low_at(l, of)->size[at]
	           ? CLV_OK
	           : fail(CLV_E_INVALID, "split_with_sizes expects split_sizes to sum exactly to %lld",
	                  (long long)low_at(l, of)->size[at]);
}

/* tensor_split: into so many parts, the first ones larger by one … */
static clv_status lower_sections(lowering *l, node_id n)
{
	int64_t parts, size, first = 0;
	uint32_t at;
	slot of;
	TRY(split_arguments(l, n, 2, &of, &at));
	TRY(low_int(l, n, 1, 1, &parts));
	if (parts <= 0)
		return fail(CLV_E_INVALID, "number of sections must be larger than 0, got %lld", (long long)parts);
	TRY(results_are(l, n, parts));
	size = low_at(l, of)->size[at];
	for (int64_t k = 0; k < parts; k++) {
		int64_t length = size / parts + (k < size % parts);
		TRY(give_part(l, n, (uint32_t)k, of, at, first, length));
		first += length;
	}
	return CLV_OK;
}

/* … or at these places. */
static clv_status lower_places(lowering *l, node_id n)
{
	uint32_t at, count, results = low_results(l, n);
	int64_t *places = low_alloc(l, (results + 1) * sizeof *places), first = 0, size;
	slot of;
	TRY_MEM(places);
	TRY(split_arguments(l, n, 2, &of, &at));
	TRY(low_ints(l, n, 1, results, places, &count));
	TRY(results_are(l, n, (int64_t)count + 1));
	size = low_at(l, of)->size[at];
	for (uint32_t k = 0; k <= count; k++) {
		int64_t end = k == count ? size : places[k] < 0 ? places[k] + size : places[k];
		end = end < 0 ? 0 : end > size ? size : end;
		TRY(give_part(l, n, k, of, at, first, end > first ? end - first : 0));
		first = end;
	}
	return CLV_OK;
}

static clv_status lower_unbind(lowering *l, node_id n)
{
	uint32_t at;
	slot of;
	TRY(split_arguments(l, n, 1, &of, &at));
	const nt from = *low_at(l, of);
	nt t = from;
	drop_dim(&t, at);
	TRY(results_are(l, n, from.size[at]));
	for (int64_t k = 0; k < from.size[at]; k++)
		TRY(give_view(l, n, (uint32_t)k, of, nt_numel(&t) ? k * from.stride[at] : 0, &t));
	return CLV_OK;
}

clv_status diagonal_of(const nt *from, int64_t shift, uint32_t a, uint32_t b, int64_t *offset, nt *out)
{
	int64_t rows, cols, n;
	if (a == b)
		return fail(CLV_E_INVALID, "diagonal dimensions cannot be identical");
	*out = *from;
	rows = from->size[a];
	cols = from->size[b];
	*offset = 0;
	if (shift <= -rows || shift >= cols)
		n = 0;
	else if (shift >= 0)
		n = cols - shift < rows ? cols - shift : rows;
	else
		n = rows + shift < cols ? rows + shift : cols;
	if (n > 0)
		*offset = shift >= 0 ? shift * from->stride[b] : -shift * from->stride[a];
	drop_dim(out, a > b ? a : b);
	drop_dim(out, a > b ? b : a);
	return add_dim(out, out->ndim, n, from->stride[a] + from->stride[b]);
}

static clv_status lower_diagonal(lowering *l, node_id n)
{
	int64_t shift, offset;
	uint32_t a, b;
	slot of;
	nt t;
	TRY(low_tensor(l, n, 0, &of));
	const nt from = *low_at(l, of);
	TRY(low_int(l, n, 1, 0, &shift));
	TRY(low_dim(l, n, 2, 0, from.ndim, &a));
	TRY(low_dim(l, n, 3, 1, from.ndim, &b));
	if (from.ndim < 2)
		return fail(CLV_E_INVALID, "diagonal needs two dimensions");
	TRY(diagonal_of(&from, shift, a, b, &offset, &t));
	return give_view(l, n, 0, of, nt_numel(&t) ? offset : 0, &t);
}

static clv_status lower_unfold(lowering *l, node_id n)
{
	int64_t size, step;
	uint32_t at;
	slot of;
	TRY(low_tensor(l, n, 0, &of));
	nt t = *low_at(l, of);
	TRY(low_dim(l, n, 1, 0, t.ndim, &at));
	TRY(low_int(l, n, 2, 0, &size));
	TRY(low_int(l, n, 3, 1, &step));
	int64_t whole = t.ndim ? t.size[at] : 1, stride = t.ndim ? t.stride[at] : 1;
	if (size < 0 || size > whole || step <= 0)
		return fail(CLV_E_INVALID, "windows of %lld in steps of %lld do not fit dimension %u of size %lld",
		            (long long)size, (long long)step, at, (long long)whole);
	if (t.ndim) {
		t.size[at] = (whole - size) / step + 1;
		t.stride[at] = t.size[at] > 1 ? stride * step : stride;
	}
	TRY(add_dim(&t, t.ndim, size, stride));
	return give_view(l, n, 0, of, 0, &t);
}

/* ---- the tensor itself ------------------------------------------------------------------------------------------------------------ */

/* Dropout that drops nothing: not training, or p is 0. */
static const char *takes_dropout(const plan *p, node_id n)
{
	return node_draws(p, n) ? "it draws random numbers" : NULL;
}

static clv_status lower_same(lowering *l, node_id n)
{
	slot of;
	TRY(low_tensor(l, n, 0, &of));
	return low_same(l, n, 0, of);
}

/* Layouts are our own affair: only scattered elements are gathered, once, for the steps that read them. */
static clv_status lower_contiguous(lowering *l, node_id n)
{
	slot of, out;
	TRY(low_tensor(l, n, 0, &of));
	nt t = *low_at(l, of);
	if (nt_is_dense(&t) || (t.ndim && t.stride[t.ndim - 1] == 1))
		return low_same(l, n, 0, of);
	nt_rows(&t);
	TRY(low_result(l, n, 0, &t, false, &out));
	return low_copy(l, of, out);
}

/* Views that have all elements of row-major memory in their order. */
static bool keeps_order(uint16_t op)
{
	return op == OP_view || op == OP_reshape || op == OP__unsafe_view || op == OP_flatten_using_ints ||
	       op == OP_unflatten_int || op == OP_unsqueeze || op == OP_squeeze || op == OP_squeeze_dim || op == OP_alias ||
	       op == OP_detach;
}

static bool makes_rows(const plan *p, const node *n)
{
	const arg *format = n->nargs > 1 ? &p->args.at[n->args + 1] : NULL;
	return n->op_id == OP_contiguous && (!format || (format->kind == ARG_MEMFMT && format->u.code == 0));
}

/* All of row-major memory in torch. Plans do not say the strides of results, which follow those of arguments. `back`: nodes to
   look back; *visits: values to look at in all, as nodes of a stranger have any number of arguments. */
static bool is_row_major(const plan *p, value_id v, int back, uint32_t *visits)
{
	const value *x = &p->values.at[v];
	if (x->type != TYPE_TENSOR)
		return true;
	if (x->strides != NONE || !back || !*visits)
		return false;
	--*visits;
	if (x->kind != VALUE_RESULT)
		return x->alias == NONE;
	const node *n = &p->nodes.at[x->def];
	if (makes_rows(p, n))
		return true;
	bool keeps = keeps_order(n->op_id);
	if (!keeps && (op_rows[n->op_id].strides != STRIDES_EVERY || n->nwrites || x->alias != NONE))
		return false;
	bool rows = n->nargs <= *visits;
	for (uint32_t i = 0; rows && i < n->nargs; i++) {
		const arg *a = &p->args.at[n->args + i];
		rows = a->kind == ARG_VALUE ? is_row_major(p, a->u.v, back - 1, visits) : a->kind != ARG_LIST || keeps;
	}
	return rows;
}

static const char *takes_as_strided(const plan *p, node_id n)
{
	enum { BACK = 6, VISITS = 64 };
	const node *x = &p->nodes.at[n];
	uint32_t visits = VISITS;
	bool rows =
		x->nargs && p->args.at[x->args].kind == ARG_VALUE && is_row_major(p, p->args.at[x->args].u.v, BACK, &visits);
	return rows ? NULL : "its argument is a view, or may not be row-major";
}

static clv_status lower_as_strided(lowering *l, node_id n)
{
	int64_t sizes[NT_DIMS], strides[NT_DIMS], offset, reach = 1;
	uint32_t ndim, other;
	slot of, out;
	TRY(low_tensor(l, n, 0, &of));
	TRY(low_ints(l, n, 1, NT_DIMS, sizes, &ndim));
	TRY(low_ints(l, n, 2, NT_DIMS, strides, &other));
	TRY(low_int(l, n, 3, 0, &offset));
	nt t = {.dtype = low_at(l, of)->dtype, .ndim = (uint8_t)ndim};
	if (ndim != other)
		return fail(CLV_E_INVALID, "as_strided has %u sizes and %u strides", ndim, other);
	for (uint32_t d = 0; d < ndim; d++) {
		int64_t step;
		t.size[d] = sizes[d];
		t.stride[d] = strides[d];
		if (sizes[d] < 0 || strides[d] < 0 || __builtin_mul_overflow(sizes[d] ? sizes[d] - 1 : 0, strides[d], &step) ||
		    __builtin_add_overflow(reach, step, &reach))
			return fail(CLV_E_INVALID, "as_strided has a negative size or stride, or one that is too large");
	}
	uint64_t bytes;
	if (!nt_bytes(&t, &bytes))
		return fail(CLV_E_OVERFLOW, "as_strided has more elements than memory can hold");
	int64_t there = nt_numel(low_at(l, of));
	if (nt_numel(&t) && (offset < 0 || reach > there || offset > there - reach))
		return fail(CLV_E_INVALID, "as_strided reaches beyond the tensor");
	if (nt_is_rows(low_at(l, of)))
		return give_view(l, n, 0, of, nt_numel(&t) ? offset : 0, &t);
	nt form = t;
	nt_rows(&form);
	TRY(low_result(l, n, 0, &form, true, &out));
	TRY(low_as_rows(l, of, &of));
	move m = move_between(&t, &form);
	m.from = offset * m.bytes;
	return low_move(l, of, out, &m);
}

static const char *takes_dtype_of_one_size(const plan *p, node_id n)
{
	const node *x = &p->nodes.at[n];
	const arg *a = &p->args.at[x->args], *r = &p->args.at[x->results];
	if (x->nargs < 2 || x->nresults != 1 || a->kind != ARG_VALUE || r->kind != ARG_VALUE)
		return "it has no tensor";
	return dtype_bits((dtype)p->values.at[a->u.v].dtype) == dtype_bits((dtype)p->values.at[r->u.v].dtype)
	           ? NULL
	           : "it views elements as a type of another size";
}

/* view.dtype: the same bytes. */
static clv_status lower_view_dtype(lowering *l, node_id n)
{
	slot of;
	TRY(low_tensor(l, n, 0, &of));
	nt t = *low_at(l, of);
	TRY(low_dtype(l, n, 1, t.dtype, &t.dtype));
	if (dtype_bits((dtype)t.dtype) != dtype_bits((dtype)low_at(l, of)->dtype))
		return fail(CLV_E_UNSUPPORTED, "it views elements as a type of another size");
	return give_view(l, n, 0, of, 0, &t);
}

static clv_status lower_meshgrid(lowering *l, node_id n)
{
	uint32_t count, swap = strcmp(low_str(l, n, 1), "xy") == 0;
	slot *of;
	nt whole = {0};
	TRY(low_tensors(l, n, 0, &of, &count));
	TRY(results_are(l, n, count));
	if (count > NT_DIMS)
		return fail(CLV_E_UNSUPPORTED, "tensors of more than %d dimensions are not supported", NT_DIMS);
	swap = swap && count > 1;
	for (uint32_t k = 0; k < count; k++) {
		uint32_t d = swap && k < 2 ? 1 - k : k;
		if (low_at(l, of[k])->ndim > 1)
			return fail(CLV_E_INVALID, "meshgrid takes vectors");
		whole.size[d] = low_at(l, of[k])->ndim ? low_at(l, of[k])->size[0] : 1;
	}
	for (uint32_t k = 0; k < count; k++) {
		const nt from = *low_at(l, of[k]);
		nt t = whole;
		t.ndim = (uint8_t)count;
		t.dtype = from.dtype;
		t.stride[swap && k < 2 ? 1 - k : k] = from.ndim ? from.stride[0] : 0;
		TRY(give_view(l, n, k, of[k], 0, &t));
	}
	return CLV_OK;
}

/* All to the sizes that they have together. */
static clv_status lower_broadcast(lowering *l, node_id n)
{
	uint32_t count;
	slot *of;
	nt form, t;
	TRY(low_tensors(l, n, 0, &of, &count));
	TRY(results_are(l, n, count));
	for (uint32_t k = 0; k < count; k++) {
		TRY(low_form(l, n, k, &form));
		if (!nt_expand(low_at(l, of[k]), form.ndim, form.size, &t))
			return fail(CLV_E_VERIFY, "the tensors do not have the sizes of the results");
		TRY(give_view(l, n, k, of[k], 0, &t));
	}
	return CLV_OK;
}

const native_op native_ops_view[] = {
	{.id = OP_alias, .takes = takes_any, .lower = lower_same},
	{.id = OP_alpha_dropout, .takes = takes_dropout, .lower = lower_same},
	{.id = OP_alpha_dropout_, .takes = takes_dropout, .lower = lower_same},
	{.id = OP_as_strided, .takes = takes_as_strided, .lower = lower_as_strided},
	{.id = OP_atleast_1d, .takes = takes_any, .lower = lower_atleast, .what = 1},
	{.id = OP_atleast_2d, .takes = takes_any, .lower = lower_atleast, .what = 2},
	{.id = OP_atleast_3d, .takes = takes_any, .lower = lower_atleast, .what = 3},
	{.id = OP_broadcast_tensors, .takes = takes_any, .lower = lower_broadcast},
	{.id = OP_broadcast_to, .takes = takes_any, .lower = lower_expand},
	{.id = OP_chunk, .takes = takes_any, .lower = lower_chunk},
	{.id = OP_contiguous, .takes = takes_any, .lower = lower_contiguous},
	{.id = OP_detach, .takes = takes_any, .lower = lower_same},
	{.id = OP_detach_, .takes = takes_any, .lower = lower_same},
	{.id = OP_diagonal, .takes = takes_any, .lower = lower_diagonal},
	{.id = OP_dropout, .takes = takes_dropout, .lower = lower_same},
	{.id = OP_dropout_, .takes = takes_dropout, .lower = lower_same},
	{.id = OP_expand, .takes = takes_any, .lower = lower_expand},
	{.id = OP_expand_as, .takes = takes_any, .lower = lower_expand_as},
	{.id = OP_feature_alpha_dropout, .takes = takes_dropout, .lower = lower_same},
	{.id = OP_feature_alpha_dropout_, .takes = takes_dropout, .lower = lower_same},
	{.id = OP_feature_dropout, .takes = takes_dropout, .lower = lower_same},
	{.id = OP_feature_dropout_, .takes = takes_dropout, .lower = lower_same},
	{.id = OP_flatten_using_ints, .takes = takes_any, .lower = lower_flatten, .what = 1},
	{.id = OP_lift_fresh, .takes = takes_any, .lower = lower_same},
	{.id = OP_mT, .takes = takes_any, .lower = lower_turn, .what = TURN_LAST},
	{.id = OP_meshgrid, .takes = takes_any, .lower = lower_meshgrid},
	{.id = OP_meshgrid_indexing, .takes = takes_any, .lower = lower_meshgrid},
	{.id = OP_moveaxis_int, .takes = takes_any, .lower = lower_movedim},
	{.id = OP_moveaxis_intlist, .takes = takes_any, .lower = lower_movedim},
	{.id = OP_movedim_int, .takes = takes_any, .lower = lower_movedim},
	{.id = OP_movedim_intlist, .takes = takes_any, .lower = lower_movedim},
	{.id = OP_narrow, .takes = takes_any, .lower = lower_narrow},
	{.id = OP_numpy_T, .takes = takes_any, .lower = lower_turn, .what = TURN_ALL},
	{.id = OP_permute, .takes = takes_any, .lower = lower_permute},
	{.id = OP_positive, .takes = takes_any, .lower = lower_same},
	{.id = OP_ravel, .takes = takes_any, .lower = lower_flatten},
	{.id = OP_reshape, .takes = takes_any, .lower = lower_reshape},
	{.id = OP_reshape_as, .takes = takes_any, .lower = lower_reshape_as},
	{.id = OP_resolve_conj, .takes = takes_any, .lower = lower_same},
	{.id = OP_resolve_neg, .takes = takes_any, .lower = lower_same},
	{.id = OP_select_int, .takes = takes_any, .lower = lower_select},
	{.id = OP_slice_Tensor, .takes = takes_any, .lower = lower_slice},
	{.id = OP_split_Tensor, .takes = takes_any, .lower = lower_split},
	{.id = OP_split_sizes, .takes = takes_any, .lower = lower_split_sizes},
	{.id = OP_split_with_sizes, .takes = takes_any, .lower = lower_split_sizes},
	{.id = OP_squeeze, .takes = takes_any, .lower = lower_squeeze},
	{.id = OP_squeeze_dim, .takes = takes_any, .lower = lower_squeeze, .what = 1},
	{.id = OP_squeeze_dims, .takes = takes_any, .lower = lower_squeeze, .what = 1},
	{.id = OP_swapaxes, .takes = takes_any, .lower = lower_transpose},
	{.id = OP_swapdims, .takes = takes_any, .lower = lower_transpose},
	{.id = OP_t, .takes = takes_any, .lower = lower_turn, .what = TURN_ALL},
	{.id = OP_tensor_split_indices, .takes = takes_any, .lower = lower_places},
	{.id = OP_tensor_split_sections, .takes = takes_any, .lower = lower_sections},
	{.id = OP_transpose_int, .takes = takes_any, .lower = lower_transpose},
	{.id = OP_unbind_int, .takes = takes_any, .lower = lower_unbind},
	{.id = OP_unflatten_int, .takes = takes_any, .lower = lower_unflatten},
	{.id = OP_unfold, .takes = takes_any, .lower = lower_unfold},
	{.id = OP_unsafe_chunk, .takes = takes_any, .lower = lower_chunk},
	{.id = OP_unsafe_split_Tensor, .takes = takes_any, .lower = lower_split},
	{.id = OP_unsafe_split_with_sizes, .takes = takes_any, .lower = lower_split_sizes},
	{.id = OP_unsqueeze, .takes = takes_any, .lower = lower_unsqueeze},
	{.id = OP_view, .takes = takes_any, .lower = lower_reshape},
	{.id = OP_view_as, .takes = takes_any, .lower = lower_reshape_as},
	{.id = OP_view_dtype, .takes = takes_dtype_of_one_size, .lower = lower_view_dtype},
	{.id = OP__unsafe_view, .takes = takes_any, .lower = lower_reshape},
	{.id = OP_UNKNOWN},
};
