/* Reads a hostile file as a payload.
 * The safetensors reader has checked the entries; here the header text is read, and every tensor is checked against the
 * entry it is said to be in. */
#include <math.h>
#include <string.h>

#include "file/json.h"
#include "file/training.h"

typedef struct reader {
	payload *p;
	const st_file *file;
	const json_t *root;
	bool *used; /* per entry of the file */
} reader;

/* ---- fields ----------------------------------------------------------------------------------------------------- */

static clv_status keep_string(payload *p, const json_t *object, const char *key, const char **out)
{
	const char *s;
	TRY(json_get_string(object, key, &s));
	return payload_text(p, s, strlen(s), out);
}

static clv_status get_dtype(const json_t *object, dtype *out)
{
	const char *name;
	TRY(json_get_string(object, "dtype", &name));
	return dtype_parse(name, strlen(name), out) ? CLV_OK : fail(CLV_E_PARSE, "there is no dtype \"%.32s\"", name);
}

static clv_status get_flag(const json_t *from, const char *key, const char *name, int64_t *out)
{
	if (!json_is_boolean(from))
		return fail(CLV_E_PARSE, "\"%s\" of \"%.64s\" is not true or false", key, name);
	*out = json_is_true(from);
	return CLV_OK;
}

static clv_status get_size(const json_t *from, const char *key, const char *name, int64_t *out)
{
	*out = json_integer_value(from);
	if (!json_is_integer(from) || *out < 0)
		return fail(CLV_E_PARSE, "\"%s\" of \"%.64s\" is no size", key, name);
	return CLV_OK;
}

typedef clv_status (*number_fn)(const json_t *from, const char *key, const char *name, int64_t *out);

static clv_status read_named_number(payload *p, const json_t *from, const char *key, const char *name, number_fn f,
                                    payload_number *out)
{
	TRY(f(from, key, name, &out->value));
	return payload_text(p, name, strlen(name), &out->name);
}

static clv_status read_named(reader *r, const char *key, number_fn f)
{
	json_t *object, *number;
	const char *name;
	TRY(json_get_object(r->root, key, &object));
	json_object_foreach(object, name, number)
	{
		payload_number n;
		TRY(read_named_number(r->p, number, key, name, f, &n));
		TRY(f == get_flag ? vec_push(&r->p->requires_grad, n) : vec_push(&r->p->sizes, n));
	}
	return CLV_OK;
}

static clv_status read_passthrough(reader *r)
{
	const json_t *list;
	TRY(json_get_array(r->root, "passthrough_inputs", &list));
	for (size_t i = 0; i < json_array_size(list); i++) {
		const char *s = json_string_value(json_array_get(list, i)), *kept;
		if (!s)
			return fail(CLV_E_PARSE, "a passthrough input is no text");
		TRY(payload_text(r->p, s, json_string_length(json_array_get(list, i)), &kept));
		TRY(vec_push(&r->p->passthrough, kept));
	}
	return CLV_OK;
}

static clv_status read_dims(payload *p, const json_t *from, payload_schema *s)
{
	const json_t *dims;
	TRY(json_get_array(from, "shape", &dims));
	if (json_array_size(dims) > PAYLOAD_NDIM)
		return fail(CLV_E_PARSE, "a schema has %zu dimensions", json_array_size(dims));
	s->ndim = (uint32_t)json_array_size(dims);
	const char **kept = arena_alloc(&p->arena, s->ndim * sizeof *kept);
	TRY_MEM(kept);
	for (uint32_t i = 0; i < s->ndim; i++) {
		const char *text = json_string_value(json_array_get(dims, i));
		if (!text)
			return fail(CLV_E_PARSE, "a dimension of a schema is no text");
		TRY(payload_text(p, text, json_string_length(json_array_get(dims, i)), &kept[i]));
	}
	s->dims = kept;
	return CLV_OK;
}

static clv_status read_schema(reader *r)
{
	const json_t *list;
	TRY(json_get_array(r->root, "schema", &list));
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *from = json_array_get(list, i);
		payload_schema s = {0};
		TRY(keep_string(r->p, from, "label", &s.label));
		TRY(keep_string(r->p, from, "device", &s.device));
		TRY(get_dtype(from, &s.dtype));
		TRY(json_get_bool(from, "requires_grad", &s.requires_grad));
		TRY(read_dims(r->p, from, &s));
		TRY(vec_push(&r->p->schema, s));
	}
	return CLV_OK;
}

static clv_status read_batch(reader *r)
{
	const json_t *batch = json_object_get(r->root, "batch_size");
	if (json_is_null(batch))
		return CLV_OK;
	r->p->has_batch_size = true;
	return get_size(batch, "batch_size", "the payload", &r->p->batch_size);
}

static clv_status read_boundary(reader *r)
{
	payload *p = r->p;
	TRY(keep_string(p, r->root, "split_id", &p->split_id));
	TRY(keep_string(p, r->root, "graph_signature", &p->graph_signature));
	TRY(read_batch(r));
	TRY(json_get_int(r->root, "weight_version", &p->weight_version));
	TRY(json_get_bool(r->root, "supports_prefix_backward", &p->supports_prefix_backward));
	TRY(read_named(r, "sizes", get_size));
	TRY(read_named(r, "requires_grad", get_flag));
	TRY(read_passthrough(r));
	return read_schema(r);
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

static clv_status get_float_member(const json_t *from, const char *key, double *out)
{
	const char *text;
	TRY(json_get_string(from, key, &text));
	return float_parse(text, out);
}

/* All entries have digests or none has: the first one says which. */
static clv_status check_digest(payload *p, const json_t *from, payload_memory *m)
{
	const json_t *text = json_object_get(from, "digest");
	if (p->memories.n == 0)
		p->unchecked = !text;
	if (p->unchecked != !text)
		return fail(CLV_E_PARSE, "entry \"%.64s\" has %s digest, unlike others", m->entry, text ? "a" : "no");
	if (!text)
		return CLV_OK;
	if (!json_is_string(text) || !digest_parse(json_string_value(text), &m->digest))
		return fail(CLV_E_PARSE, "entry \"%.64s\": its digest is none", m->entry);
	return digest_equal(memory_digest(m), m->digest) ? CLV_OK : payload_damaged(m->entry);
}

static clv_status read_lead(const json_t *from, payload_memory *m)
{
	int64_t lead = 0;
	if (json_object_get(from, "lead"))
		TRY(json_get_int(from, "lead", &lead));
	if (lead < 0 || lead >= MEMORY_ALIGN)
		return fail(CLV_E_PARSE, "a lead is not within 0 … %d", MEMORY_ALIGN - 1);
	m->lead = (uint8_t)lead;
	return CLV_OK;
}

static clv_status read_form(const json_t *from, payload_kind kind, payload_memory *m)
{
	const char *form, *name;
	TRY(json_get_string(from, "form", &form));
	m->dense = strcmp(form, "dense") == 0;
	if (!m->dense && strcmp(form, "span") != 0)
		return fail(CLV_E_PARSE, "there is no form \"%.32s\"", form);
	TRY(json_get_string(from, "encoding", &name));
	if (!encoding_parse(name, &m->encoding))
		return fail(CLV_E_PARSE, "there is no encoding \"%.32s\"", name);
	TRY(read_lead(from, m));
	if (m->encoding != ENC_PLAIN && kind == PAYLOAD_WEIGHTS)
		return fail(CLV_E_PARSE, "weights are not compressed, and one is said to be %s", name);
	return CLV_OK;
}

/* Payloads of before l2_error have another relative_error: the largest loss by the largest magnitude. */
static clv_status read_loss(const json_t *from, narrow_loss *out)
{
	TRY(get_float_member(from, "error", &out->absolute));
	TRY(get_float_member(from, "relative_error", &out->relative));
	out->l2 = NAN;
	return json_object_get(from, "l2_error") ? get_float_member(from, "l2_error", &out->l2) : CLV_OK;
}

static clv_status take_entry(reader *r, const json_t *from, const char *key, const char **name, const st_entry **out)
{
	const char *text;
	TRY(json_get_string(from, key, &text));
	uint32_t i = st_find(r->file, text);
	if (i == NONE || r->used[i])
		return fail(CLV_E_PARSE, "entry \"%.64s\" is %s", text, i == NONE ? "not in the file" : "used twice");
	r->used[i] = true;
	*out = st_at(r->file, i);
	return payload_text(r->p, text, strlen(text), name);
}

/* Their number and length fit the elements, of which there are as many as bytes. */
static clv_status check_scales(const payload_memory *m, const st_entry *e)
{
	bool floating = e->dtype == DT_F32 || e->dtype == DT_F64;
	if (!floating || e->ndim != 1 || m->scales.n < 2 || m->data_n < 1 || m->scales.run < 1 ||
	    m->scales.n - 1 > (m->data_n - 1) / m->scales.run)
		return fail(CLV_E_PARSE, "entry \"%.64s\" is no scales for %zu elements, %zu in a run", e->name, m->data_n,
		            m->scales.run);
	return CLV_OK;
}

static clv_status load_scales(payload *p, payload_memory *m)
{
	if (!m->scales_entry)
		return CLV_OK;
	double *at = mem_alloc(m->scales.n * sizeof *at);
	TRY(payload_own(p, at));
	elements_load(m->scales_dtype, m->scales_data, m->scales.n, at);
	for (size_t i = 0; i < m->scales.n; i++)
		if (!isfinite(at[i]) || at[i] <= 0)
			return fail(CLV_E_PARSE, "scale %zu of entry \"%.64s\" is not finite and positive", i, m->entry);
	m->scales.at = at;
	return CLV_OK;
}

static clv_status read_scales(reader *r, const json_t *from, payload_memory *m)
{
	const st_entry *e;
	int64_t run;
	TRY(json_get_int(from, "run", &run));
	if (run < 1)
		return fail(CLV_E_PARSE, "\"run\" of entry \"%.64s\" is %lld", m->entry, (long long)run);
	TRY(take_entry(r, from, "scales", &m->scales_entry, &e));
	m->scales_data = e->data;
	m->scales_n = e->nbytes;
	m->scales.n = e->nbytes / (dtype_bits(e->dtype) / 8);
	m->scales.run = (size_t)run;
	m->scales_dtype = e->dtype;
	m->scales.of_floats = e->dtype == DT_F32;
	return check_scales(m, e);
}

static clv_status read_channels(const json_t *from, payload_memory *m)
{
	int64_t channels, run;
	m->quant = (quant_layout){encoding_bits(m->encoding), 1, SIZE_MAX};
	if (!m->quant.bits || !json_object_get(from, "channels"))
		return CLV_OK;
	TRY(json_get_int(from, "channels", &channels));
	TRY(json_get_int(from, "run", &run));
	if (channels < 2 || run < 1)
		return fail(CLV_E_PARSE, "entry \"%.64s\" cannot have %lld channels with runs of %lld", m->entry,
		            (long long)channels, (long long)run);
	m->quant.channels = (size_t)channels;
	m->quant.run = (size_t)run;
	return CLV_OK;
}

/* What it becomes; the shape of a dense tensor says that. */
static clv_status read_packed_bytes(const json_t *from, payload_memory *m)
{
	int64_t bytes;
	if (m->dense || !encoding_packed(m->encoding))
		return CLV_OK;
	TRY(json_get_int(from, "bytes", &bytes));
	m->nbytes = (size_t)bytes;
	return bytes >= 0 ? CLV_OK : fail(CLV_E_PARSE, "\"bytes\" of entry \"%.64s\" is negative", m->entry);
}

static clv_status read_encoding(reader *r, const json_t *from, payload_memory *m)
{
	m->scales = (narrow_scales){.n = 1, .run = SIZE_MAX, .one = 1};
	if (m->encoding == ENC_PLAIN)
		return CLV_OK;
	TRY(read_packed_bytes(from, m));
	TRY(read_channels(from, m));
	if (m->encoding == ENC_ZSTD)
		return CLV_OK;
	TRY(read_loss(from, &m->loss));
	if (m->encoding != ENC_INT8)
		return CLV_OK;
	if (json_object_get(from, "scales"))
		return read_scales(r, from, m);
	TRY(get_float_member(from, "scale", &m->scales.one));
	return isfinite(m->scales.one) && m->scales.one > 0 ? CLV_OK
	                                                    : fail(CLV_E_PARSE, "a scale is not finite and positive");
}

static clv_status read_memory(reader *r, const json_t *from)
{
	payload_memory m = {.first = NONE};
	const st_entry *e;
	TRY(take_entry(r, from, "entry", &m.entry, &e));
	TRY(read_form(from, r->p->kind, &m));
	m.data = e->data;
	m.data_n = e->nbytes;
	TRY(read_encoding(r, from, &m));
	if (r->p->kind != PAYLOAD_WEIGHTS)
		TRY(check_digest(r->p, from, &m));
	TRY(load_scales(r->p, &m));
	return vec_push(&r->p->memories, m);
}

static bool is_no_tensor(const reader *r, uint32_t entry)
{
	const char *name = st_at(r->file, entry)->name;
	return r->p->kind == PAYLOAD_WEIGHTS &&
	       (strncmp(name, PAYLOAD_PAD, sizeof PAYLOAD_PAD - 1) == 0 ||
	        strncmp(name, PAYLOAD_SEGMENT, sizeof PAYLOAD_SEGMENT - 1) == 0 ||
	        strncmp(name, PAYLOAD_PACKED, sizeof PAYLOAD_PACKED - 1) == 0 || strcmp(name, PAYLOAD_LOSS) == 0);
}

static clv_status read_memories(reader *r)
{
	const json_t *list;
	TRY(json_get_array(r->root, "memory", &list));
	for (size_t i = 0; i < json_array_size(list); i++)
		TRY(read_memory(r, json_array_get(list, i)));
	for (uint32_t i = 0; i < st_count(r->file); i++)
		if (!r->used[i] && !is_no_tensor(r, i))
			return fail(CLV_E_PARSE, "no tensor is in entry \"%.64s\"", st_at(r->file, i)->name);
	return CLV_OK;
}

/* ---- tensors ---------------------------------------------------------------------------------------------------- */

static clv_status read_ints(const json_t *from, const char *key, int64_t *out, uint32_t *n)
{
	const json_t *list;
	TRY(json_get_array(from, key, &list));
	if (json_array_size(list) > PAYLOAD_NDIM)
		return fail(CLV_E_PARSE, "it has %zu dimensions, at most %d are possible", json_array_size(list), PAYLOAD_NDIM);
	*n = (uint32_t)json_array_size(list);
	for (uint32_t i = 0; i < *n; i++) {
		const json_t *v = json_array_get(list, i);
		if (!json_is_integer(v) || json_integer_value(v) < 0)
			return fail(CLV_E_PARSE, "%s %u is no size", key, i);
		out[i] = json_integer_value(v);
	}
	return CLV_OK;
}

static clv_status read_place(const payload *p, const json_t *from, payload_tensor *t)
{
	int64_t memory, offset;
	TRY(json_get_int(from, "memory", &memory));
	TRY(json_get_int(from, "offset", &offset));
	if (memory < 0 || memory >= p->memories.n)
		return fail(CLV_E_PARSE, "there is no memory %lld", (long long)memory);
	if (offset < 0 || offset % (dtype_bits(t->dtype) / 8))
		return fail(CLV_E_PARSE, "offset %lld is not on an element", (long long)offset);
	t->memory = (uint32_t)memory;
	t->offset = (size_t)offset;
	return CLV_OK;
}

static clv_status read_floats(payload *p, const json_t *from, const char *key, const double **out, uint32_t *n)
{
	const json_t *list;
	TRY(json_get_array(from, key, &list));
	*n = (uint32_t)json_array_size(list); /* of a header: it has less than 2^32 bytes */
	double *at = arena_alloc(&p->arena, (*n + 1) * sizeof *at);
	TRY_MEM(at);
	for (uint32_t i = 0; i < *n; i++) {
		const char *text = json_string_value(json_array_get(list, i));
		if (!text)
			return fail(CLV_E_PARSE, "%s %u is no number as text", key, i);
		TRY(float_parse(text, &at[i]));
	}
	*out = at;
	return CLV_OK;
}

static clv_status read_scheme(const json_t *from, quant_scheme *out)
{
	const char *name;
	TRY(json_get_string(from, "scheme", &name));
	for (int i = 0; i < QUANT_SCHEMES; i++)
		if (strcmp(name, quant_schemes[i]) == 0) {
			*out = (quant_scheme)i;
			return CLV_OK;
		}
	return fail(CLV_E_PARSE, "there is no scheme \"%.32s\" to quantise by", name);
}

/* payload_add_tensor checks that it fits the tensor. */
static clv_status read_quantiser(payload *p, const json_t *from, quantiser *out)
{
	int64_t axis;
	uint32_t zero_points;
	TRY(read_scheme(from, &out->scheme));
	TRY(json_get_int(from, "axis", &axis));
	if (axis < 0 || axis >= PAYLOAD_NDIM)
		return fail(CLV_E_PARSE, "there is no dimension %lld to quantise by", (long long)axis);
	out->axis = (uint32_t)axis;
	TRY(read_floats(p, from, "scales", &out->scales, &out->n));
	TRY(read_floats(p, from, "zero_points", &out->zero_points, &zero_points));
	return zero_points == out->n ? CLV_OK
	                             : fail(CLV_E_PARSE, "it has %u scales and %u zero points", out->n, zero_points);
}

static clv_status add_tensor(reader *r, const json_t *from, payload_tensor *t)
{
	const json_t *quantised = json_object_get(from, "quantiser");
	quantiser q = {0};
	int64_t sizes[PAYLOAD_NDIM], strides[PAYLOAD_NDIM];
	uint32_t nstrides, number;
	TRY(get_dtype(from, &t->dtype));
	TRY(json_get_string(from, "device", &t->device));
	TRY(json_get_bool(from, "requires_grad", &t->requires_grad));
	TRY(json_get_bool(from, "boundary", &t->boundary));
	TRY(read_ints(from, "shape", sizes, &t->ndim));
	TRY(read_ints(from, "strides", strides, &nstrides));
	if (nstrides != t->ndim)
		return fail(CLV_E_PARSE, "it has %u sizes and %u strides", t->ndim, nstrides);
	t->sizes = sizes;
	t->strides = strides;
	TRY(read_place(r->p, from, t));
	if (quantised) {
		TRY(read_quantiser(r->p, quantised, &q));
		t->quantiser = &q;
	}
	if (t->boundary && r->p->kind != PAYLOAD_BOUNDARY)
		return fail(CLV_E_PARSE, "there is no boundary that it could belong to");
	return payload_add_tensor(r->p, t, &number);
}

/* Bytes that become `want` bytes of elements. */
static clv_status check_packed(const payload_memory *m, const st_entry *e, size_t want)
{
	if (e->dtype != DT_U8 || e->ndim != 1)
		return fail(CLV_E_PARSE, "its entry has another dtype or shape");
	if (encoding_bits(m->encoding) && want % (dtype_bits(m->dtype) / 8))
		return fail(CLV_E_PARSE, "%zu bytes are no whole number of elements", want);
	if (encoding_bits(m->encoding))
		return quant_check(&m->quant, m->data, m->data_n, want / (dtype_bits(m->dtype) / 8));
	return shuffle_check(m->data, m->data_n, want);
}

/* The entry is the tensor's elements as they are written. */
static clv_status check_shape(const payload_memory *m, const payload_tensor *t, const st_entry *e)
{
	dtype wire = m->dtype;
	uint32_t parts = 1;
	if (m->encoding == ENC_PLAIN)
		wire_dtype(t->dtype, &wire, &parts);
	else
		wire = encoding_dtype(m->encoding, t->dtype);
	bool same = e->dtype == wire && e->ndim == t->ndim + (parts > 1);
	for (uint32_t i = 0; same && i < t->ndim; i++)
		same = e->shape[i] == t->sizes[i];
	if (!same || (parts > 1 && e->shape[t->ndim] != parts))
		return fail(CLV_E_PARSE, "its entry has another dtype or shape");
	return CLV_OK;
}

static clv_status check_dense(const payload_memory *m, const payload_tensor *t, const st_entry *e, size_t extent)
{
	size_t item = dtype_bits(t->dtype) / 8, dense;
	TRY(shape_bytes(t->dtype, t->ndim, t->sizes, &dense));
	TRY(encoding_packed(m->encoding) ? check_packed(m, e, dense) : check_shape(m, t, e));
	if (t->offset || dense > extent * item)
		return fail(CLV_E_PARSE, "its strides do not fit its shape");
	return CLV_OK;
}

static clv_status check_span(payload_memory *m, const payload_tensor *t, const st_entry *e, size_t extent)
{
	size_t item = dtype_bits(t->dtype) / 8;
	if (encoding_packed(m->encoding))
		TRY(check_packed(m, e, m->nbytes));
	else
		m->nbytes = m->data_n;
	if (m->encoding != ENC_PLAIN && !encoding_packed(m->encoding)) {
		if (e->dtype != encoding_dtype(m->encoding, t->dtype))
			return fail(CLV_E_PARSE, "its entry has another dtype");
		size_t count = m->data_n / (dtype_bits(e->dtype) / 8);
		if (__builtin_mul_overflow(count, item, &m->nbytes))
			return fail(CLV_E_OVERFLOW, "its memory has more than 2^64 bytes");
	}
	if (t->offset > m->nbytes || extent * item > m->nbytes - t->offset)
		return fail(CLV_E_PARSE, "it reaches beyond its entry");
	if (strided_overlaps(t->ndim, t->sizes, t->strides, extent))
		return fail(CLV_E_PARSE, "its elements lie on each other too often");
	return CLV_OK;
}

/* The tensor that was added last fits the entry that its memory is. */
static clv_status check_place(reader *r)
{
	payload_tensor *t = &r->p->tensors.at[r->p->tensors.n - 1];
	payload_memory *m = &r->p->memories.at[t->memory];
	const st_entry *e = st_at(r->file, st_find(r->file, m->entry));
	size_t extent;
	if (m->users++ == 0) {
		m->first = r->p->tensors.n - 1;
		m->dtype = t->dtype;
	}
	m->mixed |= t->dtype != m->dtype;
	if (m->lead % (dtype_bits(t->dtype) / 8))
		return fail(CLV_E_PARSE, "its memory starts between two elements");
	bool narrowed = m->encoding != ENC_PLAIN && m->encoding != ENC_ZSTD;
	if ((m->mixed && narrowed) || (m->dense && m->users > 1))
		return fail(CLV_E_PARSE, "its memory cannot have more than one %s", m->dense ? "tensor" : "dtype");
	if (m->encoding != ENC_PLAIN && !encoding_applies(m->encoding, t->dtype))
		return fail(CLV_E_PARSE, "%s cannot be written as %s", dtype_name(t->dtype), encoding_names[m->encoding]);
	TRY(strided_extent(t->ndim, t->sizes, t->strides, &extent));
	if (!m->dense)
		return check_span(m, t, e, extent);
	m->nbytes = extent * (dtype_bits(t->dtype) / 8);
	return check_dense(m, t, e, extent);
}

static clv_status read_payload_tensors(reader *r)
{
	const json_t *list;
	TRY(json_get_array(r->root, "tensors", &list));
	for (size_t i = 0; i < json_array_size(list); i++) {
		payload_tensor t = {0};
		const json_t *from = json_array_get(list, i);
		TRY(json_get_string(from, "label", &t.label));
		clv_status st = add_tensor(r, from, &t);
		if (st == CLV_OK)
			st = check_place(r);
		if (st != CLV_OK)
			return st == CLV_E_NOMEM ? st : fail_more(st, "tensor \"%.64s\"", t.label);
	}
	return CLV_OK;
}

clv_status payload_damaged(const char *entry)
{
	return fail(CLV_E_PARSE, "the data of tensor \"%.64s\" was changed or damaged", entry);
}

clv_status payload_check_bools(const payload_memory *m)
{
	if (m->mixed || m->encoding != ENC_PLAIN)
		return CLV_OK;
	TRY_MORE(bools_check(m->dtype, m->data, m->data_n), "entry \"%.64s\"", m->entry);
	return CLV_OK;
}

/* Every memory has a tensor. */
static clv_status check_memories(payload *p)
{
	for (uint32_t i = 0; i < p->memories.n; i++) {
		const payload_memory *m = &p->memories.at[i];
		if (m->users == 0)
			return fail(CLV_E_PARSE, "no tensor is in entry \"%.64s\"", m->entry);
		if ((m->dense || encoding_packed(m->encoding)) && !take_room(p, m))
			return fail(CLV_E_PARSE, "entry \"%.64s\": its tensors need too much memory for so small a file", m->entry);
		if (p->kind != PAYLOAD_WEIGHTS)
			TRY(payload_check_bools(m));
	}
	return CLV_OK;
}

/* ---- all -------------------------------------------------------------------------------------------------------- */

static clv_status check_kind(const json_t *root, payload_kind want)
{
	const char *kind;
	int64_t version;
	TRY(json_get_int(root, "version", &version));
	if (version != PAYLOAD_VERSION)
		return fail(CLV_E_PARSE,
		            "the payload has version %lld, this reader knows version %d: both sides need the same Cleave",
		            (long long)version, PAYLOAD_VERSION);
	TRY(json_get_string(root, "kind", &kind));
	if (strcmp(kind, payload_kinds[want]) == 0)
		return CLV_OK;
	if (want == PAYLOAD_WEIGHTS || strcmp(kind, "weights") == 0)
		return fail(CLV_E_INVALID, "its tensors are %s of another kind of file",
		            want == PAYLOAD_WEIGHTS ? "a payload," : "the weights");
	if (strcmp(kind, "values") == 0)
		return fail(CLV_E_INVALID, "this payload holds values, not the boundary of a split; unpack() reads it");
	if (strcmp(kind, "boundary") == 0)
		return fail(CLV_E_INVALID, "this payload is the boundary of a split; BoundaryPayload.from_bytes() reads it");
	return fail(CLV_E_PARSE, "there is no kind of payload \"%.32s\"", kind);
}

static clv_status read_payload(reader *r)
{
	TRY(check_kind(r->root, r->p->kind));
	if (r->p->kind == PAYLOAD_BOUNDARY)
		TRY(read_boundary(r));
	TRY(read_memories(r));
	TRY(read_payload_tensors(r));
	TRY(check_memories(r->p));
	const json_t *values = json_object_get(r->root, "values");
	return values ? tree_from_json(r->p, values) : fail(CLV_E_PARSE, "\"values\" is missing");
}

/* Writers without checks, and those of before there were any, leave the check out. */
static clv_status check_text(const st_file *file, const char *text, size_t n, bool *unchecked)
{
	size_t check_n;
	const char *check = st_metadata(file, PAYLOAD_CHECK_KEY, &check_n);
	digest want;
	*unchecked = !check;
	if (!check)
		return CLV_OK;
	if (!digest_parse(check, &want) || !digest_equal(digest_of(text, n), want))
		return fail(CLV_E_PARSE, "the payload's header was changed or damaged");
	return CLV_OK;
}

static clv_status read_payload_file(const st_file *file, payload *p)
{
	size_t n;
	json_t *root;
	const char *text = st_metadata(file, PAYLOAD_KEY, &n);
	if (!text)
		return fail(CLV_E_PARSE, "this is a safetensors file, but no payload: its metadata has no \"%s\"", PAYLOAD_KEY);
	if (p->kind != PAYLOAD_WEIGHTS)
		TRY(check_text(file, text, n, &p->unchecked));
	TRY(json_read(text, n, "the payload's header", &root));
	reader r = {.p = p, .file = file, .root = root, .used = mem_alloc(st_count(file) * sizeof(bool))};
	clv_status st = r.used ? read_payload(&r) : fail_nomem();
	mem_free(r.used);
	json_decref(root);
	return st;
}

clv_status payload_from(const st_file *file, payload_kind kind, payload **out)
{
	payload *p;
	TRY(payload_new(kind, &p));
	clv_status st = read_payload_file(file, p);
	if (st == CLV_OK)
		*out = p;
	else
		payload_free(p);
	return st;
}

clv_status payload_read(const void *data, size_t n, payload_kind kind, payload **out)
{
	st_file *file;
	TRY(st_parse(data, n, &file));
	clv_status st = payload_from(file, kind, out);
	st_free(file);
	return st;
}
