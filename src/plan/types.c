/* Names and sizes of dtypes, layouts, memory formats and context flags, and the bytes of a value. */
#include <string.h>

#include "plan/plan.h"
#include "plan/words.h"

static const struct {
	const char *name;
	uint32_t bits;
	const char *torch;
} dtypes[DT_COUNT] = {
#define X(id, text, bits, number, torch) {text, bits, torch},
	DTYPE_LIST(X)
#undef X
};

const char *const layout_names[] = {"strided",    "sparse_coo", "sparse_csr", "mkldnn", "sparse_csc",
                                    "sparse_bsr", "sparse_bsc", "jagged",     NULL};

const char *const memfmt_names[] = {"contiguous", "preserve", "channels_last", "channels_last_3d", NULL};

const char *const ctx_flag_names[CTX_FLAG_COUNT] = {
#define X(id, text) text,
	CTX_FLAG_LIST(X)
#undef X
};

const char *dtype_name(dtype d)
{
	return (unsigned)d < DT_COUNT ? dtypes[d].name : "?";
}

uint32_t dtype_bits(dtype d)
{
	return (unsigned)d < DT_COUNT ? dtypes[d].bits : 0;
}

bool device_is(const char *device, const char *type)
{
	size_t n = strlen(type);
	return !strncmp(device, type, n) && (device[n] == '\0' || device[n] == ':');
}

bool dtype_quantised(dtype d)
{
	return d == DT_QI8 || d == DT_QU8 || d == DT_QI32 || d == DT_QU4X2 || d == DT_QU2X4;
}

bool dtype_has_grad(dtype d)
{
	switch (d) {
	case DT_F16:
	case DT_F32:
	case DT_F64:
	case DT_BF16:
	case DT_C32:
	case DT_C64:
	case DT_C128:
	case DT_F8E5M2:
	case DT_F8E4M3FN:
	case DT_F8E5M2FNUZ:
	case DT_F8E4M3FNUZ:
	case DT_F8E8M0FNU:
	case DT_F4E2M1X2: return true;
	default: return false;
	}
}

bool dtype_parse(const char *s, size_t n, dtype *out)
{
	for (unsigned d = 0; d < DT_COUNT; d++) {
		if (strlen(dtypes[d].name) == n && memcmp(dtypes[d].name, s, n) == 0) {
			*out = (dtype)d;
			return true;
		}
	}
	return false;
}

const char *torch_dtype(uint8_t d)
{
	return d < DT_COUNT ? dtypes[d].torch : "float32";
}

static clv_status fail_dtype(const char *name)
{
	strbuf b = STRBUF_INIT;
	for (unsigned d = 0; d < DT_COUNT; d++)
		strbuf_printf(&b, "%s%s", d ? ", " : "", dtypes[d].name);
	clv_status st = b.failed ? fail_nomem() : fail(CLV_E_INVALID, "no dtype \"%.32s\"; there are %s", name, b.at);
	strbuf_free(&b);
	return st;
}

clv_status dtype_read(const char *name, dtype *out)
{
	if (dtype_parse(name, strlen(name), out))
		return CLV_OK;
	for (unsigned d = 0; d < DT_COUNT; d++)
		if (strcmp(torch_dtype((uint8_t)d), name) == 0) {
			*out = (dtype)d;
			return CLV_OK;
		}
	return fail_dtype(name);
}

/* An empty tensor has 0 bytes even if the product of its other sizes is too large for a number. */
static clv_status add_dim(int64_t dim, int64_t *count, bool *empty, bool *too_large)
{
	if (dim < 0)
		return fail(CLV_E_INPUT, "a size is %lld", (long long)dim);
	if (dim == 0)
		*empty = true;
	if (__builtin_mul_overflow(*count, dim, count)) {
		*too_large = true;
		*count = 1;
	}
	return CLV_OK;
}

clv_status value_bytes(const plan *p, value_id v, const int64_t *syms, int64_t *out)
{
	if (v >= p->values.n)
		return fail(CLV_E_INVALID, "there is no value %u", v);
	const value *x = &p->values.at[v];
	int64_t count = x->type == TYPE_TENSOR ? dtype_bits(x->dtype) / 8 : 0;
	bool empty = false, too_large = false;
	for (uint32_t i = 0; i < x->ndim && x->type == TYPE_TENSOR; i++) {
		int64_t dim;
		TRY(expr_eval(p, p->dims.at[x->shape + i], syms, &dim));
		TRY(add_dim(dim, &count, &empty, &too_large));
	}
	if (too_large && !empty)
		return fail(CLV_E_OVERFLOW, "a tensor has more than 2^63 bytes");
	*out = empty ? 0 : count;
	return CLV_OK;
}

/* ---- words of the plan text ------------------------------------------------------------------------------------- */

const char *const host_type_names[7] = {"tensor", "bool", "int", "float", "complex", "str", "object"};
const char *const external_words[7] = {NULL, "param", "buffer", "attr", "const", "object", NULL};
const char *const grad_mode_names[4] = {"unproven", "no", "yes", "any"};

bool char_in_word(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

bool char_in_label(char c)
{
	return char_in_word(c) || c == '.';
}

bool char_in_path(char c)
{
	return char_in_label(c) || c == '-' || c == '<' || c == '>';
}

bool char_in_op(char c)
{
	return char_in_label(c) || c == ':';
}

bool char_in_device(char c)
{
	return char_in_word(c) || c == ':';
}

bool op_name_ok(const char *s, size_t n)
{
	size_t space = 0;
	while (space < n && char_in_word(s[space]))
		space++;
	if (space == 0 || n < space + 3 || s[space] != ':' || s[space + 1] != ':' || s[space + 2] == '.')
		return false;
	for (size_t i = space + 2; i < n; i++)
		if (!char_in_op(s[i]))
			return false;
	return true;
}
