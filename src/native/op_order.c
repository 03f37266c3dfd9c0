/* Operators along one dimension that order, search or scan: sort, topk, searchsorted, cummax, diff. A line is the
 * elements along that dimension; lines are independent of one another and shared among threads. */
#include <math.h>
#include <string.h>

#include "native/elementwise.h"
#include "native/moves.h"
#include "native/numbers.h"
#include "tensor/tensor.h"

static clv_status no_fit(void)
{
	return fail(CLV_E_INVALID, "the sizes of the arguments do not fit together");
}

/* A tensor as lines: how many elements each has, and where they begin. */
typedef struct lines {
	int64_t n, stride;                    /* of a line; bytes between its elements */
	int64_t count;                        /* of lines */
	uint32_t ndim;                        /* of the other dimensions */
	int64_t size[NT_DIMS], step[NT_DIMS]; /* and bytes between their elements */
} lines;

static lines lines_of(const nt *t, uint32_t at)
{
	int64_t bytes = (int64_t)dtype_bytes(t->dtype);
	lines x = {.n = t->ndim ? t->size[at] : 1, .stride = t->ndim ? t->stride[at] * bytes : bytes, .count = 1};
	for (uint32_t d = 0; d < t->ndim; d++) {
		if (d == at)
			continue;
		x.size[x.ndim] = t->size[d];
		x.step[x.ndim++] = t->stride[d] * bytes;
		x.count *= t->size[d];
	}
	return x;
}

static int64_t line_at(const lines *x, int64_t i)
{
	int64_t offset = 0;
	for (uint32_t d = x->ndim; d-- > 0; i /= x->size[d])
		offset += i % x->size[d] * x->step[d];
	return offset;
}

static bool same_but(const nt *a, const nt *b, uint32_t but)
{
	bool same = a->ndim == b->ndim;
	for (uint32_t d = 0; same && d < a->ndim; d++)
		same = d == but || a->size[d] == b->size[d];
	return same;
}

/* ---- order ---------------------------------------------------------------------------------------------------------------- */

/* A number that is ordered as the elements are: nan is the largest, 0.0 and -0.0 are equal. */
static uint64_t key_of_real(double x)
{
	uint64_t bits;
	if (isnan(x))
		return UINT64_MAX;
	x += 0.0; /* -0.0 becomes 0.0 */
	memcpy(&bits, &x, sizeof bits);
	return bits >> 63 ? ~bits : bits | (uint64_t)1 << 63;
}

static uint64_t key_of_int(int64_t x)
{
	return (uint64_t)x ^ (uint64_t)1 << 63;
}

static uint64_t key_of(uint8_t type, const char *at)
{
	switch (type) {
	case DT_F32: return key_of_real((double)*(const float *)at);
	case DT_F64: return key_of_real(*(const double *)at);
	case DT_I64: return key_of_int(*(const int64_t *)at);
	case DT_I32: return key_of_int(*(const int32_t *)at);
	case DT_I16: return key_of_int(*(const int16_t *)at);
	case DT_I8: return key_of_int(*(const int8_t *)at);
	default: return key_of_int(*(const uint8_t *)at); /* u8, bool */
	}
}

typedef struct keyed {
	uint64_t key;
	int64_t at;
} keyed;

enum { SORTED_BY_HAND = 16 };

static void insert_sort(keyed *x, int64_t n)
{
	for (int64_t i = 1; i < n; i++) {
		keyed k = x[i];
		int64_t j = i;
		for (; j > 0 && k.key < x[j - 1].key; j--)
			x[j] = x[j - 1];
		x[j] = k;
	}
}

static void merge(const keyed *a, int64_t na, const keyed *b, int64_t nb, keyed *out)
{
	while (na && nb) {
		if (b->key < a->key) {
			*out++ = *b++;
			nb--;
		} else {
			*out++ = *a++;
			na--;
		}
	}
	memcpy(out, na ? a : b, (size_t)(na ? na : nb) * sizeof *out);
}

/* Equal keys stay in their order. The result is x or spare. */
static keyed *merge_sort(keyed *x, keyed *spare, int64_t n)
{
	for (int64_t i = 0; i < n; i += SORTED_BY_HAND)
		insert_sort(x + i, n - i < SORTED_BY_HAND ? n - i : SORTED_BY_HAND);
	for (int64_t run = SORTED_BY_HAND; run < n; run *= 2) {
		for (int64_t i = 0; i < n; i += 2 * run) {
			int64_t na = n - i < run ? n - i : run, nb = n - i - na < run ? n - i - na : run;
			merge(x + i, na, x + i + na, nb, spare + i);
		}
		keyed *other = x;
		x = spare;
		spare = other;
	}
	return x;
}

/* The first `most` of the order, as a heap whose largest is on top; then sorted. Places break ties: the first ones win. */
static bool is_after(const keyed *a, const keyed *b)
{
	return a->key != b->key ? a->key > b->key : a->at > b->at;
}

static void sift(keyed *heap, int64_t n, int64_t i)
{
	for (;;) {
		int64_t top = i, left = 2 * i + 1;
		if (left < n && is_after(&heap[left], &heap[top]))
			top = left;
		if (left + 1 < n && is_after(&heap[left + 1], &heap[top]))
			top = left + 1;
		if (top == i)
			return;
		keyed k = heap[i];
		heap[i] = heap[top];
		heap[top] = k;
		i = top;
	}
}

static keyed *first_of(keyed *x, int64_t n, int64_t most)
{
	for (int64_t i = most / 2; i-- > 0;)
		sift(x, most, i);
	for (int64_t i = most; i < n; i++)
		if (is_after(&x[0], &x[i])) {
			x[0] = x[i];
			sift(x, most, 0);
		}
	for (int64_t i = most; i-- > 1;) {
		keyed k = x[0];
		x[0] = x[i];
		x[i] = k;
		sift(x, i, 0);
	}
	return x;
}

typedef struct ordering {
	slot of, values, places, scratch; /* values, places NONE: not wanted */
	lines from, to, at;               /* of the argument, the values, the places */
	int64_t first, most;              /* of the order: which elements are given */
	uint8_t type;
	bool down;
} ordering;

typedef struct order_run {
	const ordering *x;
	frame *f;
} order_run;

static void order_line(const ordering *x, frame *f, int64_t line, keyed *keys)
{
	const char *from = f->t[x->of].data + line_at(&x->from, line);
	size_t bytes = dtype_bytes(x->type);
	int64_t n = x->from.n, end = x->first + x->most;
	for (int64_t i = 0; i < n; i++) {
		uint64_t key = key_of(x->type, from + i * x->from.stride);
		keys[i] = (keyed){x->down ? ~key : key, i};
	}
	keyed *sorted = end < n / 8 ? first_of(keys, n, end) : merge_sort(keys, keys + n, n);
	for (int64_t i = 0; x->values != NONE && i < x->most; i++)
		memcpy(f->t[x->values].data + line_at(&x->to, line) + i * x->to.stride,
		       from + sorted[x->first + i].at * x->from.stride, bytes);
	for (int64_t i = 0; x->places != NONE && i < x->most; i++)
		*(int64_t *)(f->t[x->places].data + line_at(&x->at, line) + i * x->at.stride) = sorted[x->first + i].at;
}

static void order_lines(void *ctx, int64_t first, int64_t end, int thread)
{
	const order_run *r = ctx;
	keyed *keys = (keyed *)r->f->t[r->x->scratch].data + 2 * r->x->from.n * thread;
	for (int64_t i = first; i < end; i++)
		order_line(r->x, r->f, i, keys);
}

static clv_status step_order(const void *params, frame *f)
{
	order_run r = {params, f};
	team_run(f->team, r.x->from.count, 1 + 4096 / (r.x->from.n + 1), order_lines, &r);
	return CLV_OK;
}

/* Result i of the node, if somebody reads it. */
static clv_status order_result(lowering *l, node_id n, uint32_t i, uint32_t at, const nt *like, uint8_t type,
                               int64_t most, slot *out, lines *x)
{
	nt form;
	*out = NONE;
	if (!low_wants(l, n, i))
		return CLV_OK;
	TRY(low_form(l, n, i, &form));
	nt whole = form; /* kthvalue leaves the dimension out */
	if (form.ndim + 1 == like->ndim) {
		for (uint32_t d = whole.ndim++; d > at; d--) {
			whole.size[d] = whole.size[d - 1];
			whole.stride[d] = whole.stride[d - 1];
		}
		whole.size[at] = 1;
	}
	if (form.dtype != type || !same_but(&whole, like, at) || (whole.ndim ? whole.size[at] : 1) != most)
		return no_fit();
	TRY(low_result(l, n, i, &form, true, out));
	*x = lines_of(&whole, at);
	return CLV_OK;
}

/* `most` elements from `first` on of the order of argument 0 along `at`; values are result v, places result p. */
static clv_status give_order(lowering *l, node_id n, uint32_t at, ordering *x, uint32_t v, uint32_t p)
{
	ordering *made = low_alloc(l, sizeof *made);
	size_t bytes;
	TRY_MEM(made);
	const nt from = *low_at(l, x->of);
	x->type = from.dtype;
	x->from = lines_of(&from, at);
	x->values = x->places = NONE;
	if (v != NONE)
		TRY(order_result(l, n, v, at, &from, from.dtype, x->most, &x->values, &x->to));
	if (p != NONE)
		TRY(order_result(l, n, p, at, &from, DT_I64, x->most, &x->places, &x->at));
	if (__builtin_mul_overflow((size_t)x->from.n, 2 * sizeof(keyed), &bytes) ||
	    __builtin_mul_overflow(bytes, (size_t)low_threads(l), &bytes))
		return fail(CLV_E_OVERFLOW, "a line of %lld elements is too long", (long long)x->from.n);
	TRY(low_scratch(l, bytes, &x->scratch));
	*made = *x;
	return x->from.count && x->most ? low_step(l, step_order, made) : CLV_OK;
}

enum { SORT_DEFAULT, SORT_STABLE, SORT_ROWS, SORT_ARGS = 8 };

/* sort, argsort, msort; with `stable` as argument 1 the others come one later. */
static clv_status lower_sort(lowering *l, node_id n)
{
	uint32_t what = low_what(l, n), more = what & SORT_STABLE ? 1 : 0, at = 0;
	ordering x = {0};
	TRY(low_tensor(l, n, 0, &x.of));
	uint32_t ndim = low_at(l, x.of)->ndim;
	if (!(what & SORT_ROWS)) {
		TRY(low_dim(l, n, 1 + more, -1, ndim, &at));
		TRY(low_bool(l, n, 2 + more, false, &x.down));
	}
	x.most = ndim ? low_at(l, x.of)->size[at] : 1;
	if (what & SORT_ARGS)
		return give_order(l, n, at, &x, NONE, 0);
	return give_order(l, n, at, &x, 0, what & SORT_ROWS ? NONE : 1);
}

static clv_status lower_topk(lowering *l, node_id n)
{
	ordering x = {0};
	uint32_t at;
	TRY(low_tensor(l, n, 0, &x.of));
	uint32_t ndim = low_at(l, x.of)->ndim;
	TRY(low_int(l, n, 1, 1, &x.most));
	TRY(low_dim(l, n, 2, -1, ndim, &at));
	TRY(low_bool(l, n, 3, true, &x.down));
	if (x.most < 0 || x.most > (ndim ? low_at(l, x.of)->size[at] : 1))
		return fail(CLV_E_INVALID, "selected index k out of range");
	return give_order(l, n, at, &x, 0, 1);
}

static clv_status lower_kthvalue(lowering *l, node_id n)
{
	ordering x = {.most = 1};
	uint32_t at;
	int64_t k;
	TRY(low_tensor(l, n, 0, &x.of));
	uint32_t ndim = low_at(l, x.of)->ndim;
	TRY(low_int(l, n, 1, 1, &k));
	TRY(low_dim(l, n, 2, -1, ndim, &at));
	if (k < 1 || k > (ndim ? low_at(l, x.of)->size[at] : 1))
		return fail(CLV_E_INVALID, "selected number k out of range for dimension %u", at);
	x.first = k - 1;
	return give_order(l, n, at, &x, 0, 1);
}

/* ---- search ---------------------------------------------------------------------------------------------------------------- */

typedef struct searching {
	slot sequence, values, sorter, out; /* sorter: NONE, or what sorts each sequence */
	int64_t lines, n, each;             /* sequences; elements of one; values that are looked up in each */
	bool one;                           /* one sequence serves all */
	bool right, narrow;                 /* narrow: results are i32 */
	uint8_t type;
	_Alignas(8) char value[8]; /* where values is NONE */
} searching;

/* The first place whose element is not before the value (right: is behind it), as torch compares: nan is after nothing. */
#define SEARCH(type)                                                                                                   \
	{                                                                                                                  \
		const type *s = (const type *)sequence, v = *(const type *)wanted;                                             \
		while (first < end) {                                                                                          \
			int64_t mid = first + (end - first) / 2, at = sorter ? sorter[mid] : mid;                                  \
			if (right ? !(s[at] > v) : !(s[at] >= v))                                                                  \
				first = mid + 1;                                                                                       \
			else                                                                                                       \
				end = mid;                                                                                             \
		}                                                                                                              \
		return first;                                                                                                  \
	}

static int64_t find(uint8_t dt, const char *sequence, const int64_t *sorter, int64_t end, const char *wanted,
                    bool right)
{
	int64_t first = 0;
	switch (dt) {
	case DT_F32: SEARCH(float)
	case DT_F64: SEARCH(double)
	case DT_I64: SEARCH(int64_t)
	case DT_I32: SEARCH(int32_t)
	case DT_I16: SEARCH(int16_t)
	case DT_I8: SEARCH(int8_t)
	default: SEARCH(uint8_t)
	}
}

static clv_status step_search(const void *params, frame *f)
{
	const searching *x = params;
	int64_t bytes = (int64_t)dtype_bytes(x->type);
	const int64_t *sorter = x->sorter == NONE ? NULL : (const int64_t *)f->t[x->sorter].data;
	for (int64_t i = 0; sorter && i < nt_numel(&f->t[x->sorter]); i++)
		if (sorter[i] < 0 || sorter[i] >= x->n)
			return fail(CLV_E_INPUT, "torch.searchsorted(): sorter index out of range");
	for (int64_t i = 0; i < x->lines; i++) {
		int64_t line = x->one ? 0 : i * x->n;
		const char *sequence = f->t[x->sequence].data + line * bytes;
		for (int64_t j = i * x->each; j < (i + 1) * x->each; j++) {
			const char *v = x->values == NONE ? x->value : f->t[x->values].data + j * bytes;
			int64_t at = find(x->type, sequence, sorter ? sorter + line : NULL, x->n, v, x->right);
			if (x->narrow)
				((int32_t *)f->t[x->out].data)[j] = (int32_t)at;
			else
				((int64_t *)f->t[x->out].data)[j] = at;
		}
	}
	return CLV_OK;
}

/* The type in which both are compared: torch's common one. */
static clv_status compared_type(lowering *l, node_id n, const nt *sequence, uint32_t v, uint8_t *out)
{
	const plan *p = low_plan(l);
	const arg *a = &p->args.at[p->nodes.at[n].args + v];
	number_type own, other;
	slot s;
	term x[2] = {{.kind = TERM_TENSOR, .flat = true}, {.kind = TERM_NUMBER}};
	bool ok = ew_type(sequence->dtype, &own);
	if (low_is_number(l, n, v)) {
		other = a->kind == ARG_BOOL ? NUM_BOOL : a->kind == ARG_INT ? NUM_I64 : NUM_F64;
	} else {
		TRY(low_tensor(l, n, v, &s));
		ok = ok && ew_type(low_at(l, s)->dtype, &other);
		x[1] = (term){.kind = TERM_TENSOR, .flat = low_at(l, s)->ndim > 0};
	}
	if (!ok)
		return fail(CLV_E_UNSUPPORTED, "there is no kernel for these types");
	x[0].type = (uint8_t)own, x[1].type = (uint8_t)other;
	*out = ew_common_dtype(x, 2);
	return CLV_OK;
}

static clv_status as_rows_of(lowering *l, uint8_t type, slot *s)
{
	slot from = *s;
	nt form = *low_at(l, from);
	if (form.dtype == type)
		return low_as_rows(l, from, s);
	form.dtype = type;
	nt_rows(&form);
	TRY(low_temp(l, &form, s));
	return low_copy(l, from, *s);
}

static clv_status read_sorter(lowering *l, node_id n, uint32_t i, const nt *sequence, slot *out)
{
	TRY(low_tensor_or_none(l, n, i, out));
	if (*out == NONE)
		return CLV_OK;
	if (low_at(l, *out)->dtype != DT_I64 || !same_but(low_at(l, *out), sequence, NONE))
		return fail(CLV_E_VERIFY, "a sorter is i64 and has the sizes of the sequences");
	return low_as_rows(l, *out, out);
}

enum { NO_SORTER = 99 };

/* Argument `s` is the sequences, `v` the values. */
static clv_status give_search(lowering *l, node_id n, uint32_t s, uint32_t v, bool right, uint32_t sorter)
{
	uint8_t type;
	searching *x = low_alloc(l, sizeof *x);
	slot sequence, values = NONE;
	nt form;
	TRY_MEM(x);
	TRY(low_tensor(l, n, s, &sequence));
	if (!low_is_number(l, n, v))
		TRY(low_tensor(l, n, v, &values));
	TRY(low_form(l, n, 0, &form));
	const nt many = *low_at(l, sequence);
	if (many.ndim == 0 || (form.dtype != DT_I64 && form.dtype != DT_I32))
		return no_fit();
	TRY(compared_type(l, n, &many, v, &type));
	*x = (searching){.n = many.size[many.ndim - 1], .type = type, .right = right, .lines = 1, .values = NONE};
	TRY(read_sorter(l, n, sorter, &many, &x->sorter));
	x->one = many.ndim == 1;
	x->narrow = form.dtype == DT_I32;
	x->each = nt_numel(&form);
	if (values != NONE) {
		const nt what = *low_at(l, values);
		if (!same_but(&what, &form, NONE) || (!x->one && !same_but(&many, &what, many.ndim - 1u)))
			return no_fit();
		TRY(as_rows_of(l, type, &values));
		x->values = values;
	} else if (form.ndim || !x->one) {
		return no_fit();
	} else {
		TRY(low_element(l, n, v, type, x->value));
	}
	if (!x->one) {
		x->each = form.size[form.ndim - 1];
		x->lines = x->each ? nt_numel(&form) / x->each : 0;
	}
	TRY(as_rows_of(l, type, &sequence));
	x->sequence = sequence;
	TRY(low_result(l, n, 0, &form, true, &x->out));
	return low_step(l, step_search, x);
}

/* Other types are rounded to halves before they are compared. */
static const char *takes_search(const plan *p, node_id n)
{
	const node *x = &p->nodes.at[n];
	const arg *a = &p->args.at[x->args];
	uint8_t type[2] = {DT_COUNT, DT_COUNT};
	for (uint32_t i = 0; i < 2 && i < x->nargs; i++)
		type[i] = a[i].kind == ARG_VALUE ? p->values.at[a[i].u.v].dtype : DT_COUNT;
	return type[0] == type[1] || !(is_half(type[0]) || is_half(type[1]))
	           ? NULL
	           : "16-bit numbers are searched among numbers of another type";
}

static clv_status lower_searchsorted(lowering *l, node_id n)
{
	bool right;
	TRY(low_bool(l, n, 3, false, &right));
	return give_search(l, n, 0, 1, right || strcmp(low_str(l, n, 4), "right") == 0, 5);
}

static clv_status lower_bucketize(lowering *l, node_id n)
{
	bool right;
	TRY(low_bool(l, n, 3, false, &right));
	return give_search(l, n, 1, 0, right, NO_SORTER);
}

/* ---- scans ------------------------------------------------------------------------------------------------------------------ */

enum { SCAN_MAX, SCAN_MIN };

typedef struct scanning {
	slot of, out, places; /* places NONE: not wanted */
	lines from, to, at;
	uint8_t type, what;
} scanning;

static void extreme_line(const scanning *x, const char *from, char *to, char *places)
{
	size_t bytes = dtype_bytes(x->type);
	int64_t best = 0;
	uint64_t top = 0;
	for (int64_t i = 0; i < x->from.n; i++) {
		bool nan = x->type == DT_F32   ? isnan(*(const float *)(from + i * x->from.stride))
		           : x->type == DT_F64 ? isnan(*(const double *)(from + i * x->from.stride))
		                               : false;
		uint64_t key = key_of(x->type, from + i * x->from.stride);
		key = x->what == SCAN_MIN && !nan ? ~key : key;
		if (i == 0 || key >= top) { /* the last of equal ones; nan stays */
			top = key;
			best = i;
		}
		memcpy(to + i * x->to.stride, from + best * x->from.stride, bytes);
		if (places)
			*(int64_t *)(places + i * x->at.stride) = best;
	}
}

static void scan_lines(void *ctx, int64_t first, int64_t end, int thread)
{
	void **c = ctx;
	const scanning *x = c[0];
	frame *f = c[1];
	(void)thread;
	for (int64_t i = first; i < end; i++) {
		const char *from = f->t[x->of].data + line_at(&x->from, i);
		char *to = f->t[x->out].data + line_at(&x->to, i);
		extreme_line(x, from, to, x->places == NONE ? NULL : f->t[x->places].data + line_at(&x->at, i));
	}
}

static clv_status step_scan(const void *params, frame *f)
{
	const scanning *x = params;
	void *ctx[] = {(void *)(uintptr_t)x, f};
	team_run(f->team, x->from.count, 1 + 16384 / (x->from.n + 1), scan_lines, ctx);
	return CLV_OK;
}

static clv_status lower_scan(lowering *l, node_id n)
{
	scanning *x = low_alloc(l, sizeof *x);
	uint32_t at;
	nt form, places;
	TRY_MEM(x);
	x->what = (uint8_t)low_what(l, n);
	TRY(low_tensor(l, n, 0, &x->of));
	TRY(low_dim(l, n, 1, 0, low_at(l, x->of)->ndim, &at));
	TRY(low_form(l, n, 0, &form));
	x->type = form.dtype;
	x->places = NONE;
	if (!same_but(low_at(l, x->of), &form, NONE))
		return no_fit();
	if (low_at(l, x->of)->dtype != form.dtype) {
		slot cast;
		TRY(low_temp(l, &form, &cast));
		TRY(low_copy(l, x->of, cast));
		x->of = cast;
	}
	x->from = lines_of(low_at(l, x->of), at);
	TRY(low_result(l, n, 0, &form, true, &x->out));
	x->to = lines_of(&form, at);
	if (low_wants(l, n, 1)) {
		TRY(low_form(l, n, 1, &places));
		if (!same_but(&places, &form, NONE) || places.dtype != DT_I64)
			return no_fit();
		TRY(low_result(l, n, 1, &places, true, &x->places));
		x->at = lines_of(&places, at);
	}
	return nt_numel(&form) ? low_step(l, step_scan, x) : CLV_OK;
}

static uint8_t result_type(const plan *p, node_id n)
{
	const node *x = &p->nodes.at[n];
	const arg *r = x->nresults ? &p->args.at[x->results] : NULL;
	return r && r->kind == ARG_VALUE ? p->values.at[r->u.v].dtype : DT_COUNT;
}

/* ---- differences -------------------------------------------------------------------------------------------------------------- */

typedef struct differing {
	slot of, out;
	lines from, to;
	uint8_t type;
} differing;

static clv_status step_diff(const void *params, frame *f)
{
	const differing *x = params;
	for (int64_t i = 0; i < x->to.count; i++) {
		const char *from = f->t[x->of].data + line_at(&x->from, i);
		char *to = f->t[x->out].data + line_at(&x->to, i);
		for (int64_t j = 0; j < x->to.n; j++)
			number_subtract(x->type, to + j * x->to.stride, from + (j + 1) * x->from.stride, from + j * x->from.stride);
	}
	return CLV_OK;
}

/* Result 0 of `times` times the differences of neighbours; each time there is one element less. */
static clv_status give_differences(lowering *l, node_id n, slot of, uint32_t at, int64_t times)
{
	nt form;
	TRY(low_form(l, n, 0, &form));
	for (; times > 0; times--) {
		differing *x = low_alloc(l, sizeof *x);
		TRY_MEM(x);
		nt next = *low_at(l, of);
		next.size[at] = next.size[at] > 0 ? next.size[at] - 1 : 0;
		nt_rows(&next);
		x->type = next.dtype;
		x->of = of;
		x->from = lines_of(low_at(l, of), at);
		x->to = lines_of(&next, at);
		if (times > 1)
			TRY(low_temp(l, &next, &x->out));
		else
			TRY(low_result(l, n, 0, &next, true, &x->out));
		of = x->out;
		if (nt_numel(&next))
			TRY(low_step(l, step_diff, x));
	}
	return CLV_OK;
}

/* Argument 0 with the tensors that are to stand before and behind it. */
static clv_status with_ends(lowering *l, node_id n, uint32_t at, slot *of)
{
	slot parts[3], whole;
	nt form = *low_at(l, *of);
	int64_t done = 0;
	TRY(low_tensor_or_none(l, n, 3, &parts[0]));
	TRY(low_tensor_or_none(l, n, 4, &parts[2]));
	parts[1] = *of;
	if (parts[0] == NONE && parts[2] == NONE)
		return CLV_OK;
	form.size[at] = 0;
	for (uint32_t i = 0; i < 3; i++) {
		if (parts[i] == NONE)
			continue;
		const nt *t = low_at(l, parts[i]);
		if (!same_but(t, &form, at) || t->dtype != form.dtype ||
		    __builtin_add_overflow(form.size[at], t->size[at], &form.size[at]))
			return no_fit();
	}
	nt_rows(&form);
	TRY(low_temp(l, &form, &whole));
	for (uint32_t i = 0; i < 3; i++) {
		if (parts[i] == NONE)
			continue;
		const nt t = *low_at(l, parts[i]);
		move m = move_between(&t, &form);
		m.to = done * form.stride[at] * m.bytes;
		TRY(low_move(l, parts[i], whole, &m));
		done += t.size[at];
	}
	*of = whole;
	return CLV_OK;
}

static clv_status lower_diff(lowering *l, node_id n)
{
	int64_t times;
	uint32_t at;
	slot of;
	TRY(low_tensor(l, n, 0, &of));
	if (low_at(l, of)->ndim == 0)
		return fail(CLV_E_INVALID, "diff expects input to be at least one-dimensional");
	TRY(low_int(l, n, 1, 1, &times));
	TRY(low_dim(l, n, 2, -1, low_at(l, of)->ndim, &at));
	if (times < 0)
		return fail(CLV_E_INVALID, "order must be non-negative but got %lld", (long long)times);
	if (times == 0)
		return low_same(l, n, 0, of);
	TRY(with_ends(l, n, at, &of));
	int64_t size = low_at(l, of)->size[at];
	return give_differences(l, n, of, at, times > size + 1 ? size + 1 : times);
}

static const char *takes_differences(const plan *p, node_id n)
{
	uint8_t d = result_type(p, n);
	return d == DT_BOOL || is_half(d) || number_known(d) ? NULL : "there is no kernel for a dtype of it";
}

/* ---- sizes as numbers ----------------------------------------------------------------------------------------------------------- */

static clv_status lower_shape(lowering *l, node_id n)
{
	slot of, out;
	nt form;
	TRY(low_tensor(l, n, 0, &of));
	TRY(low_form(l, n, 0, &form));
	const nt t = *low_at(l, of);
	if (form.ndim != 1 || form.size[0] != t.ndim || form.dtype != DT_I64)
		return no_fit();
	TRY(low_result(l, n, 0, &form, true, &out));
	for (uint32_t d = 0; d < t.ndim; d++)
		TRY(low_fill(l, out, &(nt){.dtype = DT_I64}, d, &t.size[d]));
	return CLV_OK;
}

const native_op native_ops_order[] = {
	{.id = OP__shape_as_tensor, .lower = lower_shape},
	{.id = OP_argsort, .lower = lower_sort, .what = SORT_ARGS},
	{.id = OP_argsort_stable, .lower = lower_sort, .what = SORT_ARGS | SORT_STABLE},
	{.id = OP_bucketize_Scalar, .takes = takes_search, .widens = true, .lower = lower_bucketize},
	{.id = OP_bucketize_Tensor, .takes = takes_search, .widens = true, .lower = lower_bucketize},
	{.id = OP_cummax, .lower = lower_scan, .what = SCAN_MAX},
	{.id = OP_cummin, .lower = lower_scan, .what = SCAN_MIN},
	{.id = OP_diff, .takes = takes_differences, .widens = true, .lower = lower_diff},
	{.id = OP_kthvalue, .lower = lower_kthvalue},
	{.id = OP_msort, .lower = lower_sort, .what = SORT_ROWS},
	{.id = OP_searchsorted_Scalar, .takes = takes_search, .widens = true, .lower = lower_searchsorted},
	{.id = OP_searchsorted_Tensor, .takes = takes_search, .widens = true, .lower = lower_searchsorted, .checks = true},
	{.id = OP_sort, .lower = lower_sort},
	{.id = OP_sort_stable, .lower = lower_sort, .what = SORT_STABLE},
	{.id = OP_topk, .lower = lower_topk},
	{.id = OP_UNKNOWN},
};
