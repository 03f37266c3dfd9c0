/* Reads and writes safetensors files.
 * Reading: the header is parsed by jansson, then every entry is checked on its own, then all of them together: sorted by
 * place they must cover the data without holes or overlaps. Writing is the same backwards. */
#include "file/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "base/table.h"
#include "file/json.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "data is written as it is in memory, and files are little endian");

enum { PREFIX = 8, ALIGN = 8 };

struct st_file {
	json_t *header; /* owned; names and texts live in it */
	VEC(st_entry) entries;
	VEC(int64_t) dims; /* shapes of all entries; st_entry.shape points here once it is complete */
	table by_name;     /* ids are entries */
	const uint8_t *data;
	size_t data_n, header_n; /* header_n: with the length before it */
};

/* ---- element types ---------------------------------------------------------------------------------------------- */

static const struct {
	const char *name;
	dtype dtype;
} types[] = {
	{"BOOL", DT_BOOL},
	{"U8", DT_U8},
	{"I8", DT_I8},
	{"F8_E5M2", DT_F8E5M2},
	{"F8_E4M3", DT_F8E4M3FN},
	{"F8_E8M0", DT_F8E8M0FNU},
	{"F8_E5M2FNUZ", DT_F8E5M2FNUZ},
	{"F8_E4M3FNUZ", DT_F8E4M3FNUZ},
	{"I16", DT_I16},
	{"U16", DT_U16},
	{"F16", DT_F16},
	{"BF16", DT_BF16},
	{"I32", DT_I32},
	{"U32", DT_U32},
	{"F32", DT_F32},
	{"C64", DT_C64},
	{"F64", DT_F64},
	{"I64", DT_I64},
	{"U64", DT_U64},
};
enum { TYPES = sizeof types / sizeof *types };

const char *st_dtype_name(dtype d)
{
	for (size_t i = 0; i < TYPES; i++)
		if (types[i].dtype == d)
			return types[i].name;
	return NULL;
}

static bool st_dtype_parse(const char *name, dtype *out)
{
	for (size_t i = 0; i < TYPES; i++) {
		if (strcmp(types[i].name, name) == 0) {
			*out = types[i].dtype;
			return true;
		}
	}
	return false;
}

clv_status shape_bytes(dtype d, uint32_t ndim, const int64_t *shape, size_t *out)
{
	int64_t count = dtype_bits(d) / 8;
	bool empty = false, too_large = false;
	for (uint32_t i = 0; i < ndim; i++) {
		if (shape[i] < 0)
			return fail(CLV_E_INVALID, "dimension %u is %lld", i, (long long)shape[i]);
		empty |= shape[i] == 0;
		if (!too_large)
			too_large = __builtin_mul_overflow(count, shape[i], &count);
	}
	if (too_large && !empty)
		return fail(CLV_E_OVERFLOW, "its shape has more than 2^63 bytes");
	*out = empty ? 0 : (size_t)count;
	return CLV_OK;
}

size_t bools_odd(dtype d, const void *data, size_t n)
{
	const uint8_t *at = data;
	size_t i = 0;
	while (d == DT_BOOL && i < n && at[i] <= 1)
		i++;
	return d == DT_BOOL ? i : n;
}

clv_status bools_check(dtype d, const void *data, size_t n)
{
	size_t odd = bools_odd(d, data, n);
	return odd == n ? CLV_OK : fail(CLV_E_PARSE, "byte %zu is no bool", odd);
}

/* ---- reading one entry ------------------------------------------------------------------------------------------ */

static clv_status read_dtype(const json_t *info, dtype *out)
{
	const char *name = json_string_value(json_object_get(info, "dtype"));
	if (!name)
		return fail(CLV_E_PARSE, "it has no dtype");
	if (!st_dtype_parse(name, out))
		return fail(CLV_E_UNSUPPORTED, "dtype \"%.32s\" is not supported", name);
	return CLV_OK;
}

static clv_status read_shape(st_file *f, const json_t *info, st_entry *e)
{
	const json_t *shape = json_object_get(info, "shape");
	if (!json_is_array(shape))
		return fail(CLV_E_PARSE, "it has no shape");
	if (json_array_size(shape) >= UINT32_MAX)
		return fail(CLV_E_PARSE, "it has too many dimensions");
	e->ndim = (uint32_t)json_array_size(shape);
	for (uint32_t i = 0; i < e->ndim; i++) {
		const json_t *dim = json_array_get(shape, i);
		if (!json_is_integer(dim) || json_integer_value(dim) < 0)
			return fail(CLV_E_PARSE, "dimension %u is no size", i);
		TRY(vec_push(&f->dims, (int64_t)json_integer_value(dim)));
	}
	return CLV_OK;
}

static bool read_offset(const json_t *offsets, size_t i, size_t *out)
{
	const json_t *o = json_array_get(offsets, i);
	if (!json_is_integer(o) || json_integer_value(o) < 0)
		return false;
	*out = (size_t)json_integer_value(o);
	return true;
}

/* An entry whose shape fits its offsets may reach beyond the data: then the end of the file is missing (check_cover). */
static clv_status read_place(const st_file *f, const json_t *info, const int64_t *shape, st_entry *e)
{
	const json_t *offsets = json_object_get(info, "data_offsets");
	size_t end, want;
	if (!json_is_array(offsets) || json_array_size(offsets) != 2 || !read_offset(offsets, 0, &e->begin) ||
	    !read_offset(offsets, 1, &end))
		return fail(CLV_E_PARSE, "data_offsets is no pair of numbers");
	TRY(shape_bytes(e->dtype, e->ndim, shape, &want));
	e->nbytes = end - e->begin;
	if (e->begin > end || (want != e->nbytes && end > f->data_n))
		return fail(CLV_E_PARSE, "its data is bytes %zu to %zu of %zu", e->begin, end, f->data_n);
	if (want != e->nbytes)
		return fail(CLV_E_PARSE, "its shape needs %zu bytes, its data has %zu", want, e->nbytes);
	return CLV_OK;
}

static clv_status read_entry(st_file *f, const json_t *info, st_entry *e)
{
	uint32_t first = f->dims.n;
	if (!json_is_object(info))
		return fail(CLV_E_PARSE, "its description is no object");
	TRY(read_dtype(info, &e->dtype));
	TRY(read_shape(f, info, e));
	return read_place(f, info, vec_from(&f->dims, first), e);
}

static clv_status check_texts(const json_t *metadata)
{
	const char *key;
	json_t *text;
	if (!json_is_object(metadata))
		return fail(CLV_E_PARSE, "__metadata__ is no object");
	json_object_foreach((json_t *)metadata, key, text)
	{
		if (!json_is_string(text))
			return fail(CLV_E_PARSE, "__metadata__ \"%.64s\" is no string", key);
	}
	return CLV_OK;
}

/* ---- reading all of them ---------------------------------------------------------------------------------------- */

static clv_status read_entries(st_file *f)
{
	const char *key;
	json_t *info;
	json_object_foreach(f->header, key, info)
	{
		if (strcmp(key, "__metadata__") == 0) {
			TRY(check_texts(info));
			continue;
		}
		st_entry e = {.name = key};
		TRY_MORE(read_entry(f, info, &e), "tensor \"%.64s\"", key);
		TRY(vec_push(&f->entries, e));
	}
	return CLV_OK;
}

/* By place; an empty entry comes before the one that starts where it is. */
static int by_place(const void *a, const void *b)
{
	const st_entry *x = a, *y = b;
	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	return (x->nbytes > y->nbytes) - (x->nbytes < y->nbytes);
}

/* The entries are the data, all of it; only now they get their place in memory. */
static clv_status check_cover(st_file *f)
{
	size_t at = 0;
	for (uint32_t i = 0; i < f->entries.n; i++) {
		const st_entry *e = &f->entries.at[i];
		if (e->begin != at)
			return fail(CLV_E_PARSE, "tensor \"%.64s\": its data starts at byte %zu, %s byte %zu", e->name, e->begin,
			            e->begin < at ? "inside of the one before it, which ends at" : "after a hole from", at);
		at = e->begin + e->nbytes;
	}
	if (at > f->data_n)
		return fail(CLV_E_PARSE, "the file is truncated: it has %zu bytes and should have %zu", f->header_n + f->data_n,
		            f->header_n + at);
	if (at != f->data_n)
		return fail(CLV_E_PARSE, "the data has %zu bytes, its tensors end at byte %zu", f->data_n, at);
	for (uint32_t i = 0; i < f->entries.n; i++)
		f->entries.at[i].data = f->data + f->entries.at[i].begin;
	return CLV_OK;
}

typedef struct wanted {
	const st_file *f;
	const char *name;
} wanted;

static bool same_name(const void *ctx, uint32_t id)
{
	const wanted *w = ctx;
	return strcmp(w->f->entries.at[id].name, w->name) == 0;
}

/* Shapes were laid down in the order of the header, which entries still have here. */
static clv_status place_entries(st_file *f)
{
	uint32_t dim = 0;
	for (uint32_t i = 0; i < f->entries.n; i++) {
		f->entries.at[i].shape = vec_from(&f->dims, dim);
		dim += f->entries.at[i].ndim;
	}
	if (f->entries.n)
		qsort(f->entries.at, f->entries.n, sizeof *f->entries.at, by_place);
	TRY(check_cover(f));
	for (uint32_t i = 0; i < f->entries.n; i++)
		TRY(table_add(&f->by_name, hash_text(f->entries.at[i].name, f), i));
	return CLV_OK;
}

static clv_status find_header(const uint8_t *bytes, size_t n, size_t *header_n)
{
	uint64_t length = 0;
	if (n < PREFIX)
		return fail(CLV_E_PARSE, "the file is truncated: it has %zu bytes, a safetensors file at least 8", n);
	if (memcmp(bytes, "PK\3\4", 4) == 0)
		return fail(CLV_E_PARSE,
		            "this is no safetensors file but a zip archive, as torch.save and torch.jit.save write: "
		            "torch.jit.load reads such files");
	for (int i = PREFIX - 1; i >= 0; i--)
		length = length << 8 | bytes[i];
	if (length > ST_HEADER_MAX)
		return fail(CLV_E_PARSE, "this is no safetensors file: a header of %llu bytes is over the limit of %d",
		            (unsigned long long)length, ST_HEADER_MAX);
	if (length > n - PREFIX)
		return fail(CLV_E_PARSE, "the file is truncated: it has %zu bytes, its header alone ends at byte %llu", n,
		            (unsigned long long)length + PREFIX);
	if (length == 0 || bytes[PREFIX] != '{')
		return fail(CLV_E_PARSE, "the header is no JSON object");
	*header_n = (size_t)length;
	return CLV_OK;
}

size_t st_header_bytes(const void *data, size_t n)
{
	size_t header_n = 0;
	return find_header(data, n, &header_n) == CLV_OK ? header_n : 0;
}

static clv_status parse_into(st_file *f, const uint8_t *bytes, size_t n)
{
	size_t header_n;
	TRY(find_header(bytes, n, &header_n));
	TRY(json_read((const char *)bytes + PREFIX, header_n, "the header", &f->header));
	f->data = bytes + PREFIX + header_n;
	f->header_n = PREFIX + header_n;
	f->data_n = n - PREFIX - header_n;
	TRY(read_entries(f));
	return place_entries(f);
}

clv_status st_parse(const void *data, size_t n, st_file **out)
{
	st_file *f = mem_alloc(sizeof *f);
	TRY_MEM(f);
	clv_status st = parse_into(f, data, n);
	if (st == CLV_OK)
		*out = f;
	else
		st_free(f);
	return st;
}

void st_free(st_file *f)
{
	if (!f)
		return;
	json_decref(f->header);
	vec_free(&f->entries);
	vec_free(&f->dims);
	table_free(&f->by_name);
	mem_free(f);
}

uint32_t st_count(const st_file *f)
{
	return f->entries.n;
}

size_t st_header_size(const st_file *f)
{
	return f->header_n;
}

const st_entry *st_at(const st_file *f, uint32_t i)
{
	return &f->entries.at[i];
}

uint32_t st_find(const st_file *f, const char *name)
{
	return table_find(&f->by_name, hash_text(name, f), same_name, &(wanted){f, name});
}

const char *st_metadata(const st_file *f, const char *key, size_t *n)
{
	const json_t *text = json_object_get(json_object_get(f->header, "__metadata__"), key);
	if (!text)
		return NULL;
	*n = json_string_length(text);
	return json_string_value(text);
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

static json_t *entry_as_json(const st_entry *e, size_t begin)
{
	json_t *shape = json_array(), *info = json_object(), *offsets = json_array();
	bool ok = shape && info && offsets;
	for (uint32_t i = 0; ok && i < e->ndim; i++)
		ok = json_array_append_new(shape, json_integer(e->shape[i])) == 0;
	ok = ok && json_array_append_new(offsets, json_integer((json_int_t)begin)) == 0 &&
	     json_array_append_new(offsets, json_integer((json_int_t)(begin + e->nbytes))) == 0 &&
	     json_object_set_new(info, "dtype", json_string(st_dtype_name(e->dtype))) == 0 &&
	     json_object_set(info, "shape", shape) == 0 && json_object_set(info, "data_offsets", offsets) == 0;
	json_decref(shape);
	json_decref(offsets);
	if (ok)
		return info;
	json_decref(info);
	return NULL;
}

static clv_status check_entry(const st_entry *e, const json_t *header)
{
	size_t want;
	if (!st_dtype_name(e->dtype))
		return fail(CLV_E_UNSUPPORTED, "a safetensors file has no dtype %s", dtype_name(e->dtype));
	TRY(shape_bytes(e->dtype, e->ndim, e->shape, &want));
	if (want != e->nbytes)
		return fail(CLV_E_INVALID, "its shape needs %zu bytes, its data has %zu", want, e->nbytes);
	if (!utf8_valid(e->name, strlen(e->name)))
		return fail(CLV_E_INVALID, "the name is not valid UTF-8");
	if (strcmp(e->name, "__metadata__") == 0)
		return fail(CLV_E_INVALID, "the format has this name for itself");
	if (json_object_get(header, e->name))
		return fail(CLV_E_INVALID, "the name is given twice");
	return CLV_OK;
}

static clv_status add_header_entry(json_t *header, const st_entry *e, size_t *at)
{
	size_t end;
	TRY(check_entry(e, header));
	if (__builtin_add_overflow(*at, e->nbytes, &end) || end > INT64_MAX)
		return fail(CLV_E_OVERFLOW, "the file has more than 2^63 bytes");
	TRY(json_put(header, e->name, entry_as_json(e, *at)));
	*at = end;
	return CLV_OK;
}

static clv_status add_texts(json_t *header, const st_text *texts, uint32_t n)
{
	if (n == 0)
		return CLV_OK;
	json_t *metadata = json_object();
	TRY(json_put(header, "__metadata__", metadata));
	for (uint32_t i = 0; i < n; i++)
		TRY(json_put_text(metadata, texts[i].key, texts[i].text, texts[i].n));
	return CLV_OK;
}

/* Stable: entries of one width stay in the caller's order. */
static clv_status order_entries(st_image *image)
{
	static const uint32_t widths[] = {64, 32, 16, 8};
	uint32_t k = 0;
	image->order = mem_ids(image->n);
	TRY_MEM(image->order);
	for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
		for (uint32_t i = 0; i < image->n; i++)
			if (dtype_bits(image->entries[i].dtype) == widths[w])
				image->order[k++] = i;
	for (uint32_t i = 0; k < image->n && i < image->n; i++)
		if (!st_dtype_name(image->entries[i].dtype))
			image->order[k++] = i; /* refused when it is added, with its name */
	return CLV_OK;
}

/* Spaces after the header, so that the data starts at a multiple of `align`. */
static clv_status print_head(st_image *image, const json_t *header, size_t align)
{
	strbuf b = STRBUF_INIT;
	static const char length[PREFIX];
	strbuf_add(&b, length, PREFIX);
	clv_status st = json_print(header, 0, &b);
	while (st == CLV_OK && b.n % align && !b.failed)
		strbuf_putc(&b, ' ');
	if (st == CLV_OK && b.n - PREFIX > ST_HEADER_MAX)
		st =
			fail(CLV_E_OVERFLOW, "a header of %zu bytes is over the format's limit of %d", b.n - PREFIX, ST_HEADER_MAX);
	if (st != CLV_OK) {
		strbuf_free(&b);
		return st;
	}
	image->head_n = b.n;
	for (int i = 0; i < PREFIX; i++)
		b.at[i] = (char)(((b.n - PREFIX) >> 8 * i) & 0xff);
	return strbuf_take(&b, &image->head);
}

static clv_status keep_order(st_image *image)
{
	image->order = mem_ids(image->n);
	TRY_MEM(image->order);
	for (uint32_t i = 0; i < image->n; i++)
		image->order[i] = i;
	return CLV_OK;
}

static clv_status layout_into(st_image *image, json_t *header, const st_text *texts, uint32_t ntexts, size_t align)
{
	size_t at = 0;
	TRY(align == ALIGN ? order_entries(image) : keep_order(image));
	TRY(add_texts(header, texts, ntexts));
	for (uint32_t i = 0; i < image->n; i++) {
		const st_entry *e = &image->entries[image->order[i]];
		TRY_MORE(add_header_entry(header, e, &at), "tensor \"%.64s\"", e->name);
	}
	TRY(print_head(image, header, align));
	image->total = image->head_n + at;
	return CLV_OK;
}

static clv_status layout(const st_entry *entries, uint32_t n, const st_text *texts, uint32_t ntexts, size_t align,
                         st_image *out)
{
	json_t *header = json_object();
	TRY_MEM(header);
	*out = (st_image){.entries = entries, .n = n};
	clv_status st = layout_into(out, header, texts, ntexts, align);
	json_decref(header);
	if (st != CLV_OK)
		st_image_free(out);
	return st;
}

clv_status st_layout(const st_entry *entries, uint32_t n, const st_text *texts, uint32_t ntexts, st_image *out)
{
	return layout(entries, n, texts, ntexts, ALIGN, out);
}

clv_status st_layout_mapped(const st_entry *entries, uint32_t n, const st_text *texts, uint32_t ntexts, st_image *out)
{
	return layout(entries, n, texts, ntexts, ST_MAPPED_ALIGN, out);
}

void st_image_free(st_image *i)
{
	mem_free(i->order);
	mem_free(i->head);
	*i = (st_image){0};
}

void st_copy(const st_image *image, void *to)
{
	uint8_t *at = to;
	memcpy(at, image->head, image->head_n);
	at += image->head_n;
	for (uint32_t i = 0; i < image->n; i++) {
		const st_entry *e = &image->entries[image->order[i]];
		if (e->nbytes)
			memcpy(at, e->data, e->nbytes);
		at += e->nbytes;
	}
}

clv_status st_append(const st_image *image, strbuf *b)
{
	strbuf_add(b, image->head, image->head_n);
	for (uint32_t i = 0; i < image->n; i++) {
		const st_entry *e = &image->entries[image->order[i]];
		strbuf_add(b, e->data, e->nbytes);
	}
	return b->failed ? fail_nomem() : CLV_OK;
}
