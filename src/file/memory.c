/* Places tensors on the memory that they share, when payloads are written and read.
 *
 * Written: tensors of one storage make one entry, the part of the storage that they use; bytes in it that belong to none
 * of them are zero. A tensor that has its storage for itself makes an entry of its own shape, row by row, whatever its
 * strides are, so that any reader sees the tensor itself. Read: the same backwards. */
#include <string.h>

#include "file/payload.h"

static size_t item_size(dtype d)
{
	return dtype_bits(d) / 8;
}

/* ---- strides ---------------------------------------------------------------------------------------------------- */

static bool is_empty(uint32_t ndim, const int64_t *sizes)
{
	for (uint32_t i = 0; i < ndim; i++)
		if (sizes[i] == 0)
			return true;
	return false;
}

clv_status strided_extent(uint32_t ndim, const int64_t *sizes, const int64_t *strides, size_t *out)
{
	int64_t last = 0, step;
	*out = 0;
	if (is_empty(ndim, sizes))
		return CLV_OK;
	for (uint32_t i = 0; i < ndim; i++)
		if (__builtin_mul_overflow(sizes[i] - 1, strides[i], &step) || __builtin_add_overflow(last, step, &last))
			return fail(CLV_E_OVERFLOW, "its strides reach further than 2^63 elements");
	*out = (size_t)last + 1;
	return CLV_OK;
}

static void dense_strides(uint32_t ndim, const int64_t *sizes, int64_t *strides)
{
	int64_t step = 1;
	for (uint32_t i = ndim; i-- > 0;) {
		strides[i] = step;
		step *= sizes[i];
	}
}

static bool is_dense(const payload_tensor *t)
{
	int64_t strides[PAYLOAD_NDIM];
	if (is_empty(t->ndim, t->sizes))
		return true;
	dense_strides(t->ndim, t->sizes, strides);
	for (uint32_t i = 0; i < t->ndim; i++)
		if (t->sizes[i] != 1 && t->strides[i] != strides[i])
			return false;
	return true;
}

static void copy_row(uint8_t *to, size_t to_step, const uint8_t *from, size_t from_step, size_t n, size_t item)
{
	if (to_step == item && from_step == item) {
		memcpy(to, from, n * item);
		return;
	}
	for (size_t i = 0; i < n; i++)
		memcpy(to + i * to_step, from + i * from_step, item);
}

/* Elements by sizes and strides; the last size is the innermost. */
typedef struct places {
	uint32_t ndim;
	int64_t sizes[PAYLOAD_NDIM], strides[PAYLOAD_NDIM];
} places;

/* Behind those with a larger stride. */
static void add_place(places *x, int64_t size, int64_t stride)
{
	uint32_t at = x->ndim++;
	for (; at > 0 && x->strides[at - 1] < stride; at--) {
		x->sizes[at] = x->sizes[at - 1];
		x->strides[at] = x->strides[at - 1];
	}
	x->sizes[at] = size;
	x->strides[at] = stride;
}

/* Where a tensor's elements are, places that several of them have counted once as far as they are one run. */
static places distinct_places(uint32_t ndim, const int64_t *sizes, const int64_t *strides)
{
	places all = {0}, x = {0};
	for (uint32_t i = 0; i < ndim; i++)
		if (sizes[i] > 1 && strides[i] > 0)
			add_place(&all, sizes[i], strides[i]);
	while (all.ndim--) { /* the smallest stride first: x grows at its front */
		int64_t size = all.sizes[all.ndim], stride = all.strides[all.ndim], apart = x.ndim ? stride / x.strides[0] : 0;
		if (x.ndim && stride % x.strides[0] == 0 && apart <= x.sizes[0])
			x.sizes[0] += (size - 1) * apart; /* no more than the extent */
		else
			add_place(&x, size, stride);
	}
	return x;
}

bool strided_overlaps(uint32_t ndim, const int64_t *sizes, const int64_t *strides, size_t extent)
{
	enum { OFTEN = 64 };
	places x = distinct_places(ndim, sizes, strides);
	size_t n = 1;
	for (uint32_t i = 0; i < x.ndim; i++)
		if (__builtin_mul_overflow(n, (size_t)x.sizes[i], &n))
			return true;
	return n / OFTEN > extent;
}

/* Copies every element from one layout to another; strides in elements. */
static void copy_places(const places *to_places, uint8_t *to, const int64_t *from_strides, const uint8_t *from,
                        size_t item)
{
	size_t index[PAYLOAD_NDIM] = {0};
	const int64_t *sizes = to_places->sizes, *to_strides = to_places->strides;
	if (to_places->ndim == 0) {
		memcpy(to, from, item);
		return;
	}
	for (uint32_t last = to_places->ndim - 1;;) {
		size_t at = 0, source = 0;
		for (uint32_t i = 0; i < last; i++) {
			at += index[i] * (size_t)to_strides[i];
			source += index[i] * (size_t)from_strides[i];
		}
		copy_row(to + at * item, (size_t)to_strides[last] * item, from + source * item,
		         (size_t)from_strides[last] * item, (size_t)sizes[last], item);
		uint32_t i = last;
		while (i-- > 0 && ++index[i] == (size_t)sizes[i])
			index[i] = 0;
		if (i == UINT32_MAX)
			return;
	}
}

static void strided_copy(const payload_tensor *t, uint8_t *to, const int64_t *to_strides, const uint8_t *from,
                         const int64_t *from_strides)
{
	size_t item = item_size(t->dtype), n = t->ndim * sizeof *t->sizes;
	places x = {.ndim = t->ndim};
	if (is_empty(t->ndim, t->sizes))
		return;
	if (n && memcmp(to_strides, from_strides, n) == 0) {
		x = distinct_places(t->ndim, t->sizes, to_strides);
		copy_places(&x, to, x.strides, from, item);
		return;
	}
	if (n) {
		memcpy(x.sizes, t->sizes, n);
		memcpy(x.strides, to_strides, n);
	}
	copy_places(&x, to, from_strides, from, item);
}

/* How much memory what is in the file may become, beyond what any may: of zstd and q1 … q8 its bytes many times over, of the
   others the elements with gaps between them. Weights are there before anything bounds a run, and have few gaps. */
static size_t room_bytes(const payload *p, const payload_memory *m)
{
	size_t n = m->data_n, times = p->kind == PAYLOAD_WEIGHTS ? 16 : 4096;
	if (m->encoding != ENC_PLAIN && !encoding_packed(m->encoding))
		n = n / item_size(encoding_dtype(m->encoding, m->dtype)) * item_size(m->dtype);
	return n * times;
}

bool take_room(payload *p, const payload_memory *m)
{
	enum { ALWAYS = 64 << 20 };
	size_t bytes = room_bytes(p, m) + p->room_bytes, memory;
	if (__builtin_add_overflow(p->room_memory, m->nbytes, &memory))
		return false;
	if (memory > ALWAYS && memory - ALWAYS > bytes)
		return false;
	p->room_memory = memory;
	p->room_bytes = bytes;
	return true;
}

static void give_room_back(payload *p, const payload_memory *m)
{
	p->room_memory -= m->nbytes;
	p->room_bytes -= room_bytes(p, m);
}

/* ---- which tensors share ---------------------------------------------------------------------------------------- */

typedef struct wanted {
	const payload *p;
	const uint8_t *storage;
} wanted;

static bool same_storage(const void *ctx, uint32_t id)
{
	const wanted *w = ctx;
	return w->p->tensors.at[w->p->memories.at[id].first].storage == w->storage;
}

static clv_status find_memory(payload *p, table *by_storage, const payload_tensor *t, uint32_t number, uint32_t *out)
{
	uint32_t hash = hash_bytes(&t->storage, sizeof t->storage, 0);
	*out = t->storage ? table_find(by_storage, hash, same_storage, &(wanted){p, t->storage}) : NONE;
	if (*out != NONE)
		return CLV_OK;
	*out = p->memories.n;
	TRY(vec_push(&p->memories, ((payload_memory){.first = number, .entry = t->label, .dtype = t->dtype})));
	return t->storage ? table_add(by_storage, hash, *out) : CLV_OK;
}

/* The memory now also has to hold t, whose offset is in the storage until the start of the memory is known. */
static clv_status extend_memory(payload_memory *m, payload_tensor *t)
{
	size_t extent;
	TRY(strided_extent(t->ndim, t->sizes, t->strides, &extent));
	m->mixed |= m->users > 0 && t->dtype != m->dtype;
	m->users++;
	t->offset = t->storage && t->data ? (size_t)((const uint8_t *)t->data - t->storage) : 0;
	if (extent == 0)
		return CLV_OK;
	size_t high = t->offset + extent * item_size(t->dtype);
	if (m->high == 0 || t->offset < m->low)
		m->low = t->offset;
	if (high > m->high)
		m->high = high;
	return CLV_OK;
}

static clv_status group(payload *p)
{
	table by_storage = {0};
	clv_status st = CLV_OK;
	for (uint32_t i = 0; i < p->tensors.n && st == CLV_OK; i++) {
		payload_tensor *t = &p->tensors.at[i];
		st = find_memory(p, &by_storage, t, i, &t->memory);
		if (st == CLV_OK)
			st = extend_memory(&p->memories.at[t->memory], t);
	}
	table_free(&by_storage);
	return st;
}

/* ---- data as it is written -------------------------------------------------------------------------------------- */

clv_status payload_own(payload *p, void *buffer)
{
	clv_status st = buffer ? vec_push(&p->buffers, buffer) : fail_nomem();
	if (st != CLV_OK)
		mem_free(buffer);
	return st;
}

static clv_status new_buffer(payload *p, size_t n, void **out)
{
	*out = mem_alloc(n);
	return payload_own(p, *out);
}

static clv_status take_dense(payload *p, payload_memory *m, payload_tensor *t)
{
	int64_t strides[PAYLOAD_NDIM];
	void *rows;
	t->offset = 0;
	m->data = t->data;
	if (is_dense(t))
		return CLV_OK;
	TRY(new_buffer(p, m->data_n, &rows));
	dense_strides(t->ndim, t->sizes, strides);
	strided_copy(t, rows, strides, t->data, t->strides);
	m->data = rows;
	return CLV_OK;
}

/* Where in the storage the memory starts. */
static size_t start_of(const payload_memory *m)
{
	enum { WIDEST = 16 }; /* a multiple of every element size */
	return m->mixed ? m->low / WIDEST * WIDEST : m->low;
}

/* Only what the tensors name is copied: other content of the storage must not leak. */
static clv_status take_span(payload *p, payload_memory *m, uint32_t number)
{
	size_t low = start_of(m);
	void *span;
	m->nbytes = m->data_n = m->high - low;
	TRY(new_buffer(p, m->nbytes, &span));
	for (uint32_t i = m->first, left = m->users; left; i++) {
		payload_tensor *t = &p->tensors.at[i];
		if (t->memory != number)
			continue;
		left--;
		t->offset = is_empty(t->ndim, t->sizes) ? 0 : t->offset - low;
		if (t->data)
			strided_copy(t, (uint8_t *)span + t->offset, t->strides, t->data, t->strides);
	}
	m->data = span;
	return CLV_OK;
}

/* Kernels take other ways for data that is aligned otherwise, and add up in another order. Memory of other devices was
   copied on its way here. */
static uint8_t lead_of(const payload *p, const payload_memory *m, uint32_t number)
{
	uintptr_t start = 0;
	size_t widest = 1; /* element sizes are powers of two */
	for (uint32_t i = m->first, left = m->users; left && i < p->tensors.n; i++) {
		const payload_tensor *t = &p->tensors.at[i];
		if (t->memory != number)
			continue;
		left--;
		size_t item = item_size(t->dtype);
		widest = item > widest ? item : widest;
		if (t->has_lead)
			return (uint8_t)((t->lead + start_of(m)) % MEMORY_ALIGN);
		if (strcmp(t->device, "cpu") != 0)
			return 0;
		if (t->data && !is_empty(t->ndim, t->sizes))
			start = (uintptr_t)t->data - t->offset;
	}
	return start % widest ? 0 : start % MEMORY_ALIGN; /* elements that lie askew are put straight */
}

/* Row by row, if that needs no more bytes than the memory, and the reader will make room for the strides. */
static clv_status take_data(payload *p, uint32_t number)
{
	payload_memory *m = &p->memories.at[number];
	payload_tensor *t = &p->tensors.at[m->first];
	TRY(shape_bytes(t->dtype, t->ndim, t->sizes, &m->data_n));
	m->nbytes = m->high - m->low;
	m->dense = m->users == 1 && m->data_n <= m->nbytes && take_room(p, m);
	TRY(m->dense ? take_dense(p, m, t) : take_span(p, m, number));
	m->lead = lead_of(p, m, number);
	return CLV_OK;
}

/* ---- compression ------------------------------------------------------------------------------------------------ */

static clv_status refuse_wish(const payload_tensor *t, const payload_memory *m, encoding e)
{
	if (m->mixed)
		return fail(CLV_E_INVALID,
		            "tensor \"%.64s\" shares memory with a tensor of another dtype; it cannot be written as %s",
		            t->label, encoding_names[e]);
	return fail(CLV_E_INVALID, "tensor \"%.64s\" is %s, which cannot be written as %s", t->label, dtype_name(t->dtype),
	            encoding_names[e]);
}

/* Plain unless all tensors on the memory are to be written in the same way and can be. A wish for one tensor is kept or
   refused; one for all of them is dropped where it does not apply. */
static clv_status choose_encoding(const payload *p, uint32_t number, encoding *out)
{
	const payload_memory *m = &p->memories.at[number];
	const payload_tensor *first = &p->tensors.at[m->first];
	uint32_t left = m->users;
	*out = first->wish;
	for (uint32_t i = m->first; left; i++) {
		const payload_tensor *t = &p->tensors.at[i];
		if (t->memory != number)
			continue;
		left--;
		if (t->wish != first->wish && (t->must || first->must))
			return fail(CLV_E_INVALID,
			            "tensors \"%.64s\" and \"%.64s\" share memory; they can only be compressed in the same way",
			            first->label, t->label);
		bool whole = t->wish == ENC_PLAIN || t->wish == ENC_ZSTD;
		bool applies = whole || (!m->mixed && encoding_applies(t->wish, t->dtype));
		if (!applies && t->must)
			return refuse_wish(t, m, t->wish);
		if (!applies || t->wish != first->wish)
			*out = ENC_PLAIN;
	}
	return CLV_OK;
}

/* A name that no tensor has. */
static clv_status scales_name(payload *p, uint32_t number, const char **out)
{
	strbuf name = STRBUF_INIT;
	char *text;
	strbuf_printf(&name, "cleave.scales.%u", number);
	while (!name.failed && payload_find(p, name.at) != NONE)
		strbuf_putc(&name, '.');
	TRY(strbuf_take(&name, &text));
	clv_status st = payload_text(p, text, strlen(text), out);
	mem_free(text);
	return st;
}

/* Several scales are an entry of their own. */
static clv_status put_scales(payload *p, uint32_t number)
{
	payload_memory *m = &p->memories.at[number];
	void *data;
	if (m->scales.n == 1)
		return CLV_OK;
	m->scales_dtype = m->dtype == DT_F64 ? DT_F64 : DT_F32;
	m->scales_n = m->scales.n * item_size(m->scales_dtype);
	TRY(new_buffer(p, m->scales_n, &data));
	elements_store(m->scales_dtype, data, m->scales.n, m->scales.at);
	m->scales_data = data;
	return scales_name(p, number, &m->scales_entry);
}

static clv_status narrow_memory(payload *p, uint32_t number)
{
	payload_memory *m = &p->memories.at[number];
	const payload_tensor *t = &p->tensors.at[m->first];
	size_t count = m->data_n / item_size(m->dtype), n = count * item_size(encoding_dtype(m->encoding, m->dtype));
	void *small;
	double *at;
	if (m->encoding == ENC_INT8) {
		TRY(int8_scales(m->dtype, m->data, count, m->dense ? t->ndim : 0, t->sizes, &m->scales, &at));
		TRY(payload_own(p, at));
	}
	TRY(new_buffer(p, n, &small));
	narrow(m->encoding, m->dtype, m->data, count, &m->scales, small, &m->loss);
	m->data = small;
	m->data_n = n;
	return m->encoding == ENC_INT8 ? put_scales(p, number) : CLV_OK;
}

/* Bytes of the elements whose bytes are put apart. */
static size_t shuffle_item(const payload_memory *m, size_t bytes)
{
	return m->mixed || bytes % item_size(m->dtype) ? 1 : item_size(m->dtype);
}

/* Plain where it would not be smaller, or so small that readers would not believe it. */
static clv_status pack_memory(payload *p, payload_memory *m)
{
	size_t item = shuffle_item(m, m->data_n);
	payload_memory small = *m, plain = *m;
	void *packed;
	plain.encoding = ENC_PLAIN;
	TRY(shuffle_pack(m->data, m->data_n / item, item, &packed, &small.data_n));
	m->encoding = ENC_PLAIN;
	if (small.data_n == 0)
		return CLV_OK;
	TRY(payload_own(p, packed));
	small.data = packed;
	if (m->dense)
		give_room_back(p, &plain);
	if (take_room(p, &small))
		*m = small;
	else if (m->dense)
		(void)take_room(p, &plain); /* as before */
	return CLV_OK;
}

/* Plain where it is so small that readers would not believe it. */
static clv_status quantise_memory(payload *p, payload_memory *m)
{
	const payload_tensor *t = &p->tensors.at[m->first];
	payload_memory small = *m, plain = *m;
	void *packed;
	plain.encoding = ENC_PLAIN;
	small.quant.bits = encoding_bits(m->encoding);
	TRY(quantise(m->dtype, m->data, m->data_n / item_size(m->dtype), m->dense ? t->ndim : 0, t->sizes, &small.quant,
	             &packed, &small.data_n, &small.loss));
	TRY(payload_own(p, packed));
	small.data = packed;
	if (m->dense)
		give_room_back(p, &plain);
	if (take_room(p, &small)) {
		*m = small;
		return CLV_OK;
	}
	if (m->dense)
		(void)take_room(p, &plain); /* as before */
	*m = plain;
	return CLV_OK;
}

static clv_status compress(payload *p, uint32_t number)
{
	payload_memory *m = &p->memories.at[number];
	TRY(choose_encoding(p, number, &m->encoding));
	if (m->encoding == ENC_PLAIN)
		return CLV_OK;
	clv_status st = CLV_OK;
	if (!encoding_packed(m->encoding))
		st = narrow_memory(p, number);
	else if (m->data_n)
		st = m->encoding == ENC_ZSTD ? pack_memory(p, m) : quantise_memory(p, m);
	else
		m->encoding = ENC_PLAIN;
	return st == CLV_OK || st == CLV_E_NOMEM ? st : fail_more(st, "tensor \"%.64s\"", m->entry);
}

/* ---- entries ---------------------------------------------------------------------------------------------------- */

/* Shape of the entry: the tensor's, or one dimension; and one more of 2 for complex numbers that are pairs. */
static clv_status add_memory_entry(payload *p, const payload_memory *m)
{
	const payload_tensor *t = &p->tensors.at[m->first];
	int64_t shape[PAYLOAD_NDIM + 1];
	bool packed = encoding_packed(m->encoding);
	uint32_t parts, ndim = m->dense && !packed ? t->ndim : 1;
	st_entry e = {.name = m->entry, .data = m->data, .nbytes = m->data_n};
	if (m->mixed || packed)
		e.dtype = DT_U8;
	else if (m->encoding != ENC_PLAIN)
		e.dtype = encoding_dtype(m->encoding, m->dtype);
	wire_dtype(m->mixed || m->encoding != ENC_PLAIN ? e.dtype : m->dtype, &e.dtype, &parts);
	for (uint32_t i = 0; m->dense && !packed && i < ndim; i++)
		shape[i] = t->sizes[i];
	if (!m->dense || packed)
		shape[0] = (int64_t)(m->data_n / (item_size(e.dtype) * parts));
	if (parts > 1)
		shape[ndim++] = parts;
	e.ndim = ndim;
	TRY(payload_ints(p, shape, ndim, &e.shape));
	return vec_push(&p->entries, e);
}

static clv_status add_scales_entry(payload *p, const payload_memory *m)
{
	int64_t n = (int64_t)m->scales.n;
	st_entry e = {
		.name = m->scales_entry, .dtype = m->scales_dtype, .ndim = 1, .data = m->scales_data, .nbytes = m->scales_n};
	if (!m->scales_entry)
		return CLV_OK;
	TRY(payload_ints(p, &n, 1, &e.shape));
	return vec_push(&p->entries, e);
}

digest memory_digest(const payload_memory *m)
{
	return m->scales_n ? digest_of_three(m->data, m->data_n, m->scales_data, m->scales_n, "", 0)
	                   : digest_of(m->data, m->data_n);
}

clv_status payload_entries(payload *p)
{
	if (p->memories.n)
		return fail(CLV_E_INVALID, "a payload is written once");
	TRY(group(p));
	for (uint32_t i = 0; i < p->memories.n; i++) {
		payload_memory *m = &p->memories.at[i];
		TRY(take_data(p, i));
		TRY(compress(p, i));
		if (!p->unchecked)
			m->digest = memory_digest(m);
		TRY(add_memory_entry(p, m));
		TRY(add_scales_entry(p, m));
	}
	return CLV_OK;
}

clv_status payload_image(payload *p, st_image *out)
{
	strbuf header = STRBUF_INIT;
	char check[DIGEST_TEXT];
	TRY(payload_entries(p));
	clv_status st = payload_header(p, &header);
	if (st == CLV_OK) {
		digest_print(digest_of(header.at, header.n), check);
		const st_text texts[] = {{PAYLOAD_KEY, header.at, header.n}, {PAYLOAD_CHECK_KEY, check, DIGEST_TEXT - 1}};
		st = st_layout(p->entries.at, p->entries.n, texts, p->unchecked ? 1 : 2, out);
	}
	strbuf_free(&header);
	return st;
}

/* ---- data as it was read ---------------------------------------------------------------------------------------- */

bool payload_as_is(const payload *p, uint32_t memory)
{
	const payload_memory *m = &p->memories.at[memory];
	return m->encoding == ENC_PLAIN && (!m->dense || is_dense(&p->tensors.at[m->first]));
}

static void fill_dense(const payload_memory *m, const payload_tensor *t, void *to)
{
	int64_t strides[PAYLOAD_NDIM];
	dense_strides(t->ndim, t->sizes, strides);
	strided_copy(t, to, t->strides, m->data, strides);
}

static clv_status unpack_elements(const payload_memory *m, size_t bytes, void *to)
{
	size_t item = shuffle_item(m, bytes);
	if (encoding_bits(m->encoding))
		return dequantise(m->dtype, m->data, m->data_n, &m->quant, bytes / item_size(m->dtype), to);
	if (m->encoding != ENC_ZSTD) {
		widen(m->encoding, m->dtype, m->data, bytes / item_size(m->dtype), &m->scales, to);
		return CLV_OK;
	}
	TRY(shuffle_unpack(m->data, m->data_n, bytes / item, item, to));
	payload_memory plain = *m;
	plain.encoding = ENC_PLAIN;
	plain.data = to;
	plain.data_n = bytes;
	return payload_check_bools(&plain);
}

static clv_status fill_compressed(const payload_memory *m, const payload_tensor *t, void *to)
{
	size_t bytes = m->nbytes;
	if (m->dense)
		TRY(shape_bytes(t->dtype, t->ndim, t->sizes, &bytes));
	if (!m->dense || is_dense(t))
		return unpack_elements(m, bytes, to);
	payload_memory wide = *m;
	void *rows = mem_alloc(bytes);
	clv_status st = rows ? unpack_elements(m, bytes, rows) : fail_nomem();
	wide.data = rows;
	if (st == CLV_OK)
		fill_dense(&wide, t, to);
	mem_free(rows);
	return st;
}

clv_status payload_fill(const payload *p, uint32_t memory, void *to)
{
	const payload_memory *m = &p->memories.at[memory];
	const payload_tensor *t = &p->tensors.at[m->first];
	if (m->data_n == 0)
		return CLV_OK;
	if (m->encoding != ENC_PLAIN) {
		clv_status st = fill_compressed(m, t, to);
		return st == CLV_OK || st == CLV_E_NOMEM ? st : fail_more(st, "tensor \"%.64s\"", m->entry);
	}
	if (m->dense)
		fill_dense(m, t, to);
	else
		memcpy(to, m->data, m->data_n);
	return CLV_OK;
}
