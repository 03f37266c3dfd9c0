/* Tensors and their memories: made, shared, copied. */
#include "tensor/tensor.h"

#include <string.h>

#include "base/mem.h"
#include "plan/words.h"

/* ---- slots of engines -------------------------------------------------------------------------------------------- */

void *slot_get(engine_slot *s, slot_drop mine)
{
	return __atomic_load_n(&s->drop, __ATOMIC_ACQUIRE) == mine ? __atomic_load_n(&s->ref, __ATOMIC_ACQUIRE) : NULL;
}

bool tensor_is_same(const clv_tensor *a, const clv_tensor *b)
{
	slot_drop mine = a && b ? __atomic_load_n(&a->slot.drop, __ATOMIC_ACQUIRE) : NULL;
	void *ref = mine ? slot_get((engine_slot *)&a->slot, mine) : NULL;
	return a == b || (ref && ref == slot_get((engine_slot *)&b->slot, mine));
}

void *slot_keep(engine_slot *s, slot_drop mine, void *ref)
{
	slot_drop other = NULL;
	void *there = NULL;
	if (!__atomic_compare_exchange_n(&s->drop, &other, mine, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) &&
	    other != mine)
		return NULL;
	if (__atomic_compare_exchange_n(&s->ref, &there, ref, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return ref;
	mine(ref);
	return there;
}

static void slot_empty(engine_slot *s)
{
	if (s->ref)
		s->drop(s->ref);
}

static bool is_last(uint32_t *refs)
{
	return __atomic_sub_fetch(refs, 1, __ATOMIC_ACQ_REL) == 0;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

clv_status tensor_memory_wrap(void *base, size_t n, bool fixed, void (*release)(void *), void *ctx, tensor_memory **out)
{
	tensor_memory *m = mem_alloc(sizeof *m);
	TRY_MEM(m);
	m->refs = 1;
	m->base = base;
	m->bytes = n;
	m->fixed = fixed;
	m->release = release;
	m->ctx = ctx;
	*out = m;
	return CLV_OK;
}

clv_status memory_block(size_t n, void **block, char **base)
{
	if (n > INT64_MAX - BLOCK_ALIGN)
		return fail(CLV_E_OVERFLOW, "a memory has more than 2^63 bytes");
	*block = mem_realloc(NULL, n + BLOCK_ALIGN, 1);
	if (!*block)
		return fail(CLV_E_NOMEM, "there is no memory for %zu bytes", n);
	*base = (char *)*block + (BLOCK_ALIGN - (uintptr_t)*block % BLOCK_ALIGN) % BLOCK_ALIGN;
	return CLV_OK;
}

clv_status tensor_memory_new(size_t n, tensor_memory **out)
{
	void *block;
	char *base;
	TRY(memory_block(n, &block, &base));
	clv_status st = tensor_memory_wrap(base, n, false, mem_free, block, out);
	if (st != CLV_OK)
		mem_free(block);
	else
		(*out)->own = true;
	return st;
}

tensor_memory *tensor_memory_ref(tensor_memory *m)
{
	__atomic_add_fetch(&m->refs, 1, __ATOMIC_RELAXED);
	return m;
}

void tensor_memory_unref(tensor_memory *m)
{
	if (!m || !is_last(&m->refs))
		return;
	slot_empty(&m->slot);
	if (m->store) {
		memory_store_give(m);
		return;
	}
	if (m->release)
		m->release(m->ctx);
	mem_free(m);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

clv_status tensor_extent(const char *who, const tensor_form *s, size_t *out)
{
	int64_t item = (int64_t)dtype_bytes(s->dtype), elements = item, reach = 1, step;
	bool over = false, none = false;
	for (uint32_t i = 0; i < s->ndim; i++) {
		if (s->sizes[i] < 0 || (s->strides && s->strides[i] < 0))
			return fail(CLV_E_INVALID, "%s: dimension %u or its stride is negative", who, i);
		none |= s->sizes[i] == 0;
		over |= __builtin_mul_overflow(elements, s->sizes[i] ? s->sizes[i] : 1, &elements);
		over |= s->strides && s->sizes[i] > 1 &&
		        (__builtin_mul_overflow(s->sizes[i] - 1, s->strides[i], &step) ||
		         __builtin_add_overflow(reach, step, &reach));
	}
	if (over || __builtin_mul_overflow(reach, item, &step))
		return fail(CLV_E_OVERFLOW, "%s: a tensor of this shape has more than 2^63 bytes", who);
	*out = none ? 0 : (size_t)(s->strides ? step : elements);
	return CLV_OK;
}

clv_status tensor_resize(clv_tensor *t, uint32_t ndim, const int64_t *sizes, const int64_t *strides)
{
	int64_t *at = t->few, dense = 1;
	if (ndim > TENSOR_FEW && !(at = mem_alloc(2 * (size_t)ndim * sizeof *at)))
		return fail_nomem();
	if (t->m.sizes != t->few)
		mem_free((void *)t->m.sizes);
	for (uint32_t i = ndim; i-- > 0;) {
		at[i] = sizes[i];
		at[ndim + i] = strides ? strides[i] : dense;
		if (__builtin_mul_overflow(dense, sizes[i] ? sizes[i] : 1, &dense))
			dense = INT64_MAX; /* of a view that repeats its elements: its strides are given */
	}
	t->m.ndim = ndim;
	t->m.sizes = at;
	t->m.strides = at + ndim;
	return CLV_OK;
}

static const quantiser *quantiser_copy(const quantiser *from)
{
	quantiser *q = mem_alloc(sizeof *q + 2 * (size_t)from->n * sizeof(double));
	if (!q)
		return NULL;
	double *numbers = (double *)(q + 1);
	memcpy(numbers, from->scales, from->n * sizeof *numbers);
	memcpy(numbers + from->n, from->zero_points, from->n * sizeof *numbers);
	*q = *from;
	q->scales = numbers;
	q->zero_points = numbers + from->n;
	return q;
}

/* Zeroed; beside its memory where there is room. */
static clv_tensor *tensor_place(tensor_memory *m)
{
	clv_tensor *t = m ? __atomic_exchange_n(&m->room, NULL, __ATOMIC_ACQ_REL) : NULL;
	if (!t)
		return mem_alloc(sizeof *t);
	*t = (clv_tensor){.beside = true};
	return t;
}

clv_status tensor_over(tensor_memory *m, void *data, const tensor_form *s, clv_tensor **out)
{
	clv_tensor *t = tensor_place(m);
	TRY_MEM(t);
	t->refs = 1;
	t->m.sizes = t->few;
	strncpy(t->device, s->device ? s->device : "cpu", sizeof t->device - 1);
	t->m.there = t->m.strided = true;
	t->m.dtype = s->dtype;
	t->m.device = t->device;
	t->requires_grad = s->requires_grad;
	t->data = data;
	t->base = m ? m->base : data;
	clv_status st = tensor_extent("a tensor", s, &t->extent);
	if (st == CLV_OK)
		st = tensor_resize(t, s->ndim, s->sizes, s->strides);
	if (st == CLV_OK && s->quantiser && !(t->quantiser = quantiser_copy(s->quantiser)))
		st = fail_nomem();
	if (st == CLV_OK) {
		t->memory = m ? tensor_memory_ref(m) : NULL;
		*out = t;
	} else {
		clv_tensor_free(t);
	}
	return st;
}

clv_status tensor_new(const tensor_form *s, clv_tensor **out)
{
	tensor_memory *m;
	size_t n;
	TRY(tensor_extent("a tensor", s, &n));
	TRY(tensor_memory_new(n, &m));
	clv_status st = tensor_over(m, m->base, s, out);
	tensor_memory_unref(m);
	return st;
}

static void drop_tensor(void *t)
{
	clv_tensor_free(t);
}

clv_status tensor_view(clv_tensor *t, size_t offset, const tensor_form *s, clv_tensor **out)
{
	tensor_memory *m = t->memory;
	if (m)
		return tensor_over(m, (char *)t->data + offset, s, out);
	TRY(tensor_memory_wrap(t->data, t->extent, false, drop_tensor, tensor_ref(t), &m));
	clv_status st = tensor_over(m, (char *)t->data + offset, s, out);
	tensor_memory_unref(m);
	return st;
}

clv_tensor *tensor_ref(const clv_tensor *t)
{
	if (t)
		__atomic_add_fetch(&((clv_tensor *)t)->refs, 1, __ATOMIC_RELAXED);
	return (clv_tensor *)t;
}

void clv_tensor_free(clv_tensor *t)
{
	if (!t || !is_last(&t->refs))
		return;
	tensor_memory *m = t->memory;
	slot_empty(&t->slot);
	if (t->m.sizes != t->few)
		mem_free((void *)t->m.sizes);
	mem_free((void *)t->quantiser);
	if (!t->beside)
		mem_free(t);
	tensor_memory_unref(m);
}

/* ---- what it is -------------------------------------------------------------------------------------------------- */

bool tensor_is_contiguous(const tensor_meta *m)
{
	int64_t want = 1;
	for (uint32_t i = m->ndim; m->strided && i-- > 0;) {
		if (m->sizes[i] == 0)
			return true;
		if (m->sizes[i] == 1)
			continue;
		if (m->strides[i] != want)
			return false;
		want *= m->sizes[i];
	}
	return true;
}

int64_t tensor_numel(const clv_tensor *t)
{
	int64_t n = 1;
	for (uint32_t i = 0; i < t->m.ndim; i++)
		n *= t->m.sizes[i];
	return n;
}

bool tensor_is_plain(const clv_tensor *t)
{
	return t->m.strided && !t->lazy && t->m.dtype < DT_COUNT && strcmp(t->device, "cpu") == 0;
}

const char *clv_tensor_device(const clv_tensor *t)
{
	return t ? t->device : "?";
}

int64_t clv_tensor_bytes(const clv_tensor *t)
{
	return t && t->m.strided && t->m.dtype < DT_COUNT ? tensor_numel(t) * (int64_t)dtype_bytes(t->m.dtype) : -1;
}

const void *clv_tensor_data(const clv_tensor *t)
{
	return t && tensor_is_plain(t) && tensor_is_contiguous(&t->m) && tensor_numel(t) ? t->data : NULL;
}

uint32_t clv_tensor_ndim(const clv_tensor *t)
{
	return t ? t->m.ndim : 0;
}

int64_t clv_tensor_dim(const clv_tensor *t, uint32_t i)
{
	return t && i < t->m.ndim ? t->m.sizes[i] : -1;
}

const char *clv_tensor_dtype(const clv_tensor *t)
{
	return t && t->m.dtype < DT_COUNT ? dtype_name((dtype)t->m.dtype) : "?";
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */

/* Dimension d and those after it; steps in elements. */
static void copy_dims(const tensor_meta *m, uint32_t d, size_t item, const char *from, char *to, const int64_t *steps)
{
	if (d == m->ndim) {
		memcpy(to, from, item);
		return;
	}
	if (d + 1 == m->ndim && m->strides[d] == 1 && steps[d] == 1) {
		memcpy(to, from, (size_t)m->sizes[d] * item);
		return;
	}
	for (int64_t i = 0; i < m->sizes[d]; i++)
		copy_dims(m, d + 1, item, from + i * m->strides[d] * (int64_t)item, to + i * steps[d] * (int64_t)item, steps);
}

void tensor_copy(const clv_tensor *from, const clv_tensor *to)
{
	if (tensor_numel(from))
		copy_dims(&from->m, 0, dtype_bytes(from->m.dtype), from->data, to->data, to->m.strides);
}

clv_status tensor_read_rows(const clv_tensor *t, void *to)
{
	clv_tensor rows = {.m = t->m, .data = to};
	if (tensor_is_contiguous(&t->m)) {
		if (tensor_numel(t))
			memcpy(to, t->data, (size_t)clv_tensor_bytes(t));
		return CLV_OK;
	}
	rows.m.sizes = rows.few;
	TRY(tensor_resize(&rows, t->m.ndim, t->m.sizes, NULL));
	tensor_copy(t, &rows);
	if (rows.m.sizes != rows.few)
		mem_free((void *)rows.m.sizes);
	return CLV_OK;
}

static bool overlaps(const tensor_meta *m)
{
	for (uint32_t i = 0; i < m->ndim; i++)
		if (m->strides[i] == 0 && m->sizes[i] > 1)
			return true;
	return false;
}

clv_status tensor_clone(const clv_tensor *t, clv_tensor **out)
{
	tensor_form s = {.dtype = t->m.dtype,
	                 .ndim = t->m.ndim,
	                 .sizes = t->m.sizes,
	                 .strides = overlaps(&t->m) ? NULL : t->m.strides,
	                 .quantiser = t->quantiser};
	TRY(tensor_new(&s, out));
	tensor_copy(t, *out);
	return CLV_OK;
}

static void print_like(const clv_tensor *t, strbuf *b)
{
	strbuf_printf(b, "%s[", clv_tensor_dtype(t));
	for (uint32_t i = 0; i < t->m.ndim; i++)
		strbuf_printf(b, "%s%lld", i ? "," : "", (long long)t->m.sizes[i]);
	strbuf_putc(b, ']');
}

clv_status tensor_check_like(const clv_tensor *want, const clv_tensor *got, const char *name)
{
	strbuf b = STRBUF_INIT;
	char *text;
	if (strcmp(got->device, "meta") == 0)
		return fail(CLV_E_INPUT, "%.64s has no data: it is on the device meta", name);
	bool same = want->m.dtype == got->m.dtype && want->m.ndim == got->m.ndim;
	for (uint32_t i = 0; same && i < want->m.ndim; i++)
		same = want->m.sizes[i] == got->m.sizes[i];
	if (same)
		return CLV_OK;
	print_like(got, &b);
	strbuf_puts(&b, ", the model has ");
	print_like(want, &b);
	TRY(strbuf_take(&b, &text));
	clv_status st = fail(CLV_E_INPUT, "%.64s is %s", name, text);
	mem_free(text);
	return st;
}

/* ---- made by callers --------------------------------------------------------------------------------------------- */

static clv_status read_dtype(const char *who, const char *text, uint8_t *out)
{
	dtype d;
	clv_status st = dtype_read(text, &d);
	if (st != CLV_OK)
		return st == CLV_E_NOMEM ? st : fail_more(st, "%s", who);
	*out = (uint8_t)d;
	return dtype_quantised(d) ? fail(CLV_E_UNSUPPORTED, "%s: a %s tensor needs scales and zero points", who, text)
	                          : CLV_OK;
}

clv_status clv_tensor_from_data(const void *data, const char *dtype_text, uint32_t ndim, const int64_t *shape,
                                clv_tensor **out)
{
	tensor_form s = {.ndim = ndim, .sizes = shape};
	size_t n;
	if (!data || !dtype_text || !out || (ndim && !shape))
		return fail(CLV_E_INVALID, "clv_tensor_from_data: an argument is NULL");
	TRY(read_dtype("clv_tensor_from_data", dtype_text, &s.dtype));
	TRY(tensor_extent("clv_tensor_from_data", &s, &n));
	TRY(tensor_new(&s, out));
	memcpy((*out)->data, data, n);
	return CLV_OK;
}

clv_status clv_tensor_wrap(void *data, const char *dtype_text, uint32_t ndim, const int64_t *shape,
                           const int64_t *strides, void (*release)(void *), void *ctx, clv_tensor **out)
{
	tensor_form s = {.ndim = ndim, .sizes = shape, .strides = strides};
	tensor_memory *m;
	size_t n;
	if (!data || !dtype_text || !out || (ndim && !shape))
		return fail(CLV_E_INVALID, "clv_tensor_wrap: an argument is NULL");
	TRY(read_dtype("clv_tensor_wrap", dtype_text, &s.dtype));
	TRY(tensor_extent("clv_tensor_wrap", &s, &n));
	TRY(tensor_memory_wrap(data, n, false, NULL, NULL, &m));
	clv_status st = tensor_over(m, data, &s, out);
	if (st == CLV_OK) {
		m->release = release;
		m->ctx = ctx;
	}
	tensor_memory_unref(m);
	return st;
}
