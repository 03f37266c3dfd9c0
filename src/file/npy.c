/* .npy files: six bytes of magic, two of version, the length of the header, the header, the data.
 *
 * The header is a Python dict in text: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }. It is read by a
 * parser for just that; nothing is evaluated. */
#include "file/npy.h"

#include <ctype.h>
#include <string.h>

#include "file/safetensors.h"

static const char magic[] = "\x93NUMPY";
enum { MAGIC = 6, HEADER_MAX = 65536 };

typedef struct reader {
	const char *at, *end;
} reader;

bool npy_looks_like(const void *data, size_t n)
{
	return n >= MAGIC && memcmp(data, magic, MAGIC) == 0;
}

/* ---- the header -------------------------------------------------------------------------------------------------- */

static void skip_space(reader *r)
{
	while (r->at < r->end && isspace((unsigned char)*r->at))
		r->at++;
}

static bool take_char(reader *r, char c)
{
	skip_space(r);
	if (r->at == r->end || *r->at != c)
		return false;
	r->at++;
	return true;
}

static bool take_word(reader *r, const char *word)
{
	size_t n = strlen(word);
	skip_space(r);
	if ((size_t)(r->end - r->at) < n || memcmp(r->at, word, n) != 0)
		return false;
	r->at += n;
	return true;
}

/* A text without escapes into out, which has room for n bytes. */
static bool take_text(reader *r, char *out, size_t n)
{
	char quote = take_char(r, '\'') ? '\'' : '"';
	if (quote == '"' && !take_char(r, '"'))
		return false;
	const char *close = memchr(r->at, quote, (size_t)(r->end - r->at));
	if (!close || (size_t)(close - r->at) >= n || memchr(r->at, '\\', (size_t)(close - r->at)))
		return false;
	memcpy(out, r->at, (size_t)(close - r->at));
	out[close - r->at] = '\0';
	r->at = close + 1;
	return true;
}

static bool take_size(reader *r, int64_t *out)
{
	int64_t v = 0;
	skip_space(r);
	const char *start = r->at;
	for (; r->at < r->end && isdigit((unsigned char)*r->at); r->at++)
		if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *r->at - '0', &v))
			return false;
	*out = v;
	return r->at > start;
}

/* (), (3,), (3, 4) */
static clv_status read_shape(reader *r, npy *a)
{
	if (!take_char(r, '('))
		return fail(CLV_E_PARSE, "its shape is no tuple");
	while (!take_char(r, ')')) {
		if (a->ndim == NPY_DIMS_MAX)
			return fail(CLV_E_PARSE, "it has more than %d dimensions", NPY_DIMS_MAX);
		if (!take_size(r, &a->shape[a->ndim]))
			return fail(CLV_E_PARSE, "dimension %u is no size", a->ndim);
		a->ndim++;
		if (!take_char(r, ',') && (r->at == r->end || *r->at != ')'))
			return fail(CLV_E_PARSE, "its shape does not end");
	}
	return CLV_OK;
}

static const struct {
	const char *descr; /* without the byte order */
	dtype dtype;
} types[] = {
	{"b1", DT_BOOL}, {"u1", DT_U8},  {"i1", DT_I8},  {"u2", DT_U16}, {"i2", DT_I16}, {"u4", DT_U32}, {"i4", DT_I32},
	{"u8", DT_U64},  {"i8", DT_I64}, {"f2", DT_F16}, {"f4", DT_F32}, {"f8", DT_F64}, {"c8", DT_C64}, {"c16", DT_C128},
};

static clv_status read_descr(reader *r, npy *a)
{
	char descr[16];
	if (take_char(r, '['))
		return fail(CLV_E_UNSUPPORTED, "it has records of several fields; a tensor has numbers of one type");
	if (!take_text(r, descr, sizeof descr))
		return fail(CLV_E_PARSE, "its descr is no short text");
	if (strchr(descr, 'O'))
		return fail(CLV_E_UNSUPPORTED, "it has Python objects, which are not read");
	if (descr[0] == '>')
		return fail(CLV_E_UNSUPPORTED,
		            "its numbers are big-endian (%s); write it with astype(a.dtype.newbyteorder('<'))", descr);
	for (size_t i = 0; i < sizeof types / sizeof *types; i++)
		if ((descr[0] == '<' || descr[0] == '|') && strcmp(descr + 1, types[i].descr) == 0) {
			a->dtype = types[i].dtype;
			return CLV_OK;
		}
	return fail(CLV_E_UNSUPPORTED, "dtype \"%s\" is none of tensors", descr);
}

static clv_status read_order(reader *r, npy *a)
{
	a->fortran = take_word(r, "True");
	return a->fortran || take_word(r, "False") ? CLV_OK : fail(CLV_E_PARSE, "fortran_order is neither True nor False");
}

static clv_status read_field(reader *r, npy *a, unsigned *seen)
{
	static const char *const keys[] = {"descr", "fortran_order", "shape"};
	static clv_status (*const readers[])(reader *, npy *) = {read_descr, read_order, read_shape};
	char key[16];
	if (!take_text(r, key, sizeof key) || !take_char(r, ':'))
		return fail(CLV_E_PARSE, "its header is no dict of texts");
	for (unsigned i = 0; i < 3; i++) {
		if (strcmp(key, keys[i]) != 0)
			continue;
		if (*seen & 1u << i)
			return fail(CLV_E_PARSE, "its header has %s twice", key);
		*seen |= 1u << i;
		return readers[i](r, a);
	}
	return fail(CLV_E_PARSE, "its header has \"%s\", which it should not", key);
}

static clv_status read_header(reader *r, npy *a)
{
	unsigned seen = 0;
	if (!take_char(r, '{'))
		return fail(CLV_E_PARSE, "its header is no dict");
	while (!take_char(r, '}')) {
		TRY(read_field(r, a, &seen));
		if (!take_char(r, ',') && (r->at == r->end || *r->at != '}'))
			return fail(CLV_E_PARSE, "its header does not end");
	}
	skip_space(r);
	if (r->at != r->end)
		return fail(CLV_E_PARSE, "its header goes on after the dict");
	return seen == 7 ? CLV_OK : fail(CLV_E_PARSE, "its header lacks one of descr, fortran_order and shape");
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static clv_status find_header(const uint8_t *bytes, size_t n, reader *out)
{
	if (!npy_looks_like(bytes, n) || n < MAGIC + 4)
		return fail(CLV_E_PARSE, "this is no .npy file");
	unsigned version = bytes[MAGIC];
	if (version < 1 || version > 3)
		return fail(CLV_E_UNSUPPORTED, "version %u of .npy is not known", version);
	size_t start = MAGIC + 2 + (version == 1 ? 2 : 4), length = 0;
	if (n < start)
		return fail(CLV_E_PARSE, "the file is cut off");
	for (size_t i = start; i > MAGIC + 2; i--)
		length = length << 8 | bytes[i - 1];
	if (length > HEADER_MAX)
		return fail(CLV_E_PARSE, "a header of %zu bytes is over the limit of %d", length, HEADER_MAX);
	if (length > n - start)
		return fail(CLV_E_PARSE, "the header has %zu bytes, the file only %zu", length, n);
	*out = (reader){(const char *)bytes + start, (const char *)bytes + start + length};
	return CLV_OK;
}

clv_status npy_parse(const void *data, size_t n, npy *out)
{
	npy a = {0};
	reader r;
	TRY(find_header(data, n, &r));
	a.data = (const uint8_t *)r.end;
	TRY(read_header(&r, &a));
	TRY(shape_bytes(a.dtype, a.ndim, a.shape, &a.nbytes));
	size_t have = n - (size_t)(a.data - (const uint8_t *)data);
	if (have != a.nbytes)
		return fail(CLV_E_PARSE, "its shape needs %zu bytes, its data has %zu", a.nbytes, have);
	*out = a;
	return CLV_OK;
}

/* Walks the elements in row-major order; `from` follows by column-major strides. */
static void copy_fortran(const npy *a, uint8_t *to)
{
	size_t item = dtype_bits(a->dtype) / 8, stride[NPY_DIMS_MAX], from = 0;
	int64_t index[NPY_DIMS_MAX] = {0};
	for (uint32_t d = 0; d < a->ndim; d++)
		stride[d] = d ? stride[d - 1] * (size_t)a->shape[d - 1] : item;
	for (size_t at = 0; at < a->nbytes; at += item) {
		memcpy(to + at, a->data + from, item);
		for (uint32_t d = a->ndim; d-- > 0;) {
			from += stride[d];
			if (++index[d] < a->shape[d])
				break;
			from -= stride[d] * (size_t)a->shape[d];
			index[d] = 0;
		}
	}
}

void npy_copy(const npy *a, void *to)
{
	if (a->nbytes == 0)
		return;
	if (a->fortran)
		copy_fortran(a, to);
	else
		memcpy(to, a->data, a->nbytes);
}
