/* Compares the data of two tensors of one shape.
 * The data of two tensors of one shape: first by digest, then element by element from the mapped files, a block at a
 * time. Elements are equal when their bits are; where the types differ, when their values are. */
#include <math.h>
#include <string.h>

#include "file/diff.h"

enum { BLOCK = 512, ITEM_MAX = 16 };

/* Elements of a tensor in the order of its indices. */
typedef struct elements {
	const payload_tensor *t;
	const uint8_t *at; /* the first one */
	size_t item;
	bool rows; /* one after the other */
	int64_t strides[PAYLOAD_NDIM], index[PAYLOAD_NDIM];
	int64_t offset; /* of the next one, in elements */
	uint8_t block[BLOCK * ITEM_MAX];
} elements;

static bool row_strides(const payload_tensor *t, int64_t *strides)
{
	bool same = true;
	int64_t step = 1;
	for (uint32_t i = t->ndim; i-- > 0;) {
		same = same && (t->strides[i] == step || t->sizes[i] == 1);
		strides[i] = step;
		step *= t->sizes[i];
	}
	return same;
}

static void elements_start(const artifact *a, uint32_t tensor, elements *e)
{
	const payload_tensor *t = &a->tensors->tensors.at[tensor];
	const payload_memory *m = &a->tensors->memories.at[t->memory];
	e->t = t;
	e->item = dtype_bits(t->dtype) / 8;
	e->at = (const uint8_t *)m->data;
	e->offset = 0;
	memset(e->index, 0, sizeof e->index);
	e->rows = row_strides(t, e->strides) || m->dense;
	if (m->dense)
		return; /* a dense entry has its elements in rows, whatever its strides are in memory */
	e->at += t->offset;
	memcpy(e->strides, t->strides, t->ndim * sizeof *e->strides);
}

static void step_element(elements *e)
{
	for (uint32_t i = e->t->ndim; i-- > 0;) {
		e->offset += e->strides[i];
		if (++e->index[i] < e->t->sizes[i])
			return;
		e->offset -= e->strides[i] * e->t->sizes[i];
		e->index[i] = 0;
	}
}

/* The next n elements, one after the other; good until the next call. */
static const uint8_t *elements_next(elements *e, size_t n)
{
	if (e->rows) {
		const uint8_t *at = e->at + (size_t)e->offset * e->item;
		e->offset += (int64_t)n;
		return at;
	}
	for (size_t i = 0; i < n; i++) {
		memcpy(e->block + i * e->item, e->at + e->offset * (int64_t)e->item, e->item);
		step_element(e);
	}
	return e->block;
}

static void note_difference(diff_data *x, double by)
{
	x->largest = by > x->largest ? by : x->largest;
}

/* Of 64-bit integers, whose difference a double may not have room for before it is taken. */
static void note_wide(diff_data *x, dtype d, const uint8_t *a, const uint8_t *b)
{
	uint64_t u, v;
	memcpy(&u, a, sizeof u);
	memcpy(&v, b, sizeof v);
	bool less = d == DT_U64 ? u < v : (int64_t)u < (int64_t)v;
	note_difference(x, (double)(less ? v - u : u - v));
}

static void note_doubles(diff_data *x, double a, double b)
{
	if (isnan(a) && isnan(b))
		return;
	if (isnan(a) || isnan(b))
		x->nans++;
	else if (a != b)
		note_difference(x, fabs(a - b));
}

static bool same_numbers(double a, double b)
{
	return a == b || (isnan(a) && isnan(b));
}

static void compare_block(const elements *a, const elements *b, const uint8_t *x, const uint8_t *y, size_t n,
                          diff_data *out)
{
	double u[BLOCK], v[BLOCK];
	dtype d = a->t->dtype;
	bool one_type = d == b->t->dtype, wide = one_type && (d == DT_I64 || d == DT_U64);
	if (one_type && memcmp(x, y, n * a->item) == 0)
		return;
	if (out->has_numbers && !wide) {
		elements_load(d, x, n, u);
		elements_load(b->t->dtype, y, n, v);
	}
	for (size_t i = 0; i < n; i++) {
		const uint8_t *p = x + i * a->item, *q = y + i * b->item;
		if (one_type ? memcmp(p, q, a->item) == 0 : same_numbers(u[i], v[i]))
			continue;
		out->differ++;
		if (wide)
			note_wide(out, d, p, q);
		else if (out->has_numbers)
			note_doubles(out, u[i], v[i]);
	}
}

static uint64_t element_count(const payload_tensor *t)
{
	uint64_t n = 1;
	for (uint32_t i = 0; i < t->ndim; i++)
		n *= (uint64_t)t->sizes[i]; /* fits: its bytes were counted when it was read */
	return n;
}

static void compare_elements(elements *a, elements *b, diff_data *out)
{
	for (uint64_t done = 0; done < out->elements;) {
		size_t n = out->elements - done < BLOCK ? (size_t)(out->elements - done) : BLOCK;
		const uint8_t *x = elements_next(a, n), *y = elements_next(b, n);
		compare_block(a, b, x, y, n, out);
		done += n;
	}
}

static digest digest_at(const artifact *a, uint32_t tensor)
{
	const payload_memory *m = &a->tensors->memories.at[a->tensors->tensors.at[tensor].memory];
	return a->digests.at[st_find(a->file, m->entry)];
}

/* Digests are of entries: the same one stands for the same elements if both are laid out alike in it. */
static bool same_layout(const artifact *a, const payload_tensor *x, const artifact *b, const payload_tensor *y)
{
	bool dense = a->tensors->memories.at[x->memory].dense;
	if (dense != b->tensors->memories.at[y->memory].dense || x->dtype != y->dtype)
		return false;
	return dense || (x->offset == y->offset && memcmp(x->strides, y->strides, x->ndim * sizeof *x->strides) == 0);
}

static bool same_shape(const payload_tensor *x, const payload_tensor *y)
{
	return x->ndim == y->ndim && (x->ndim == 0 || memcmp(x->sizes, y->sizes, x->ndim * sizeof *x->sizes) == 0);
}

static bool readable(const artifact *a, const payload_tensor *t)
{
	return a->tensors->memories.at[t->memory].encoding == ENC_PLAIN && dtype_bits(t->dtype) <= 8 * ITEM_MAX;
}

/* Strides make any number of elements of a few bytes; then digests have to do. */
static bool is_spread(const artifact *a, const artifact *b, const payload_tensor *x, const payload_tensor *y)
{
	uint64_t bytes = a->tensors->memories.at[x->memory].data_n + b->tensors->memories.at[y->memory].data_n;
	return element_count(x) / 64 > bytes + BLOCK;
}

/* Reads both; false: they cannot be compared by elements. */
static bool read_data(const artifact *a, uint32_t ta, const artifact *b, uint32_t tb, diff_data *out)
{
	const payload_tensor *x = &a->tensors->tensors.at[ta], *y = &b->tensors->tensors.at[tb];
	elements u, v;
	out->has_numbers = elements_loadable(x->dtype) && elements_loadable(y->dtype);
	if (!readable(a, x) || !readable(b, y) || is_spread(a, b, x, y) || (x->dtype != y->dtype && !out->has_numbers))
		return false;
	out->has_elements = true;
	out->elements = element_count(x);
	if (out->elements == 0)
		return true;
	elements_start(a, ta, &u);
	elements_start(b, tb, &v);
	compare_elements(&u, &v, out);
	return true;
}

clv_status data_diff(diff *d, const artifact *a, uint32_t ta, const artifact *b, uint32_t tb, clv_diff_weights how)
{
	const payload_tensor *x = &a->tensors->tensors.at[ta], *y = &b->tensors->tensors.at[tb];
	char before[DIGEST_TEXT], after[DIGEST_TEXT];
	diff_data data = {0};
	if (how == CLV_DIFF_NONE || !same_shape(x, y))
		return CLV_OK;
	digest_print(digest_at(a, ta), before);
	digest_print(digest_at(b, tb), after);
	if (strcmp(before, after) == 0 && (how == CLV_DIFF_DIGEST || same_layout(a, x, b, y)))
		return CLV_OK;
	if (how == CLV_DIFF_EXACT && read_data(a, ta, b, tb, &data) && data.differ == 0)
		return CLV_OK;
	return diff_fact_add(d, "data", before, after, &data);
}
