/* Checks tensors against what a split expects of its boundary.
 * Dimensions are expressions of plan text, so they are read and evaluated by a plan that holds the symbols and nothing
 * else. */
#include <inttypes.h>
#include <string.h>

#include "file/payload.h"

typedef struct checker {
	plan *p;
	const payload_number *sizes;
	int64_t *values; /* of the symbols, in order */
} checker;

static clv_status add_size_symbols(checker *c, uint32_t n)
{
	c->values = mem_alloc((n + 1) * sizeof *c->values);
	TRY_MEM(c->values);
	for (uint32_t i = 0; i < n; i++) {
		symbol_id id;
		TRY(plan_symbol(c->p, c->sizes[i].name, 0, INT64_MAX, &id));
		c->values[id] = c->sizes[i].value;
	}
	return CLV_OK;
}

static clv_status eval_dim(const checker *c, const char *text, int64_t *out)
{
	expr_id e;
	TRY(expr_parse(c->p, text, strlen(text), &e));
	return expr_eval(c->p, e, c->values, out);
}

static clv_status check_dim(const checker *c, const payload_schema *want, const payload_tensor *got, uint32_t i)
{
	int64_t size;
	TRY_MORE(eval_dim(c, want->dims[i], &size), "%s: dimension %u is \"%.64s\"", want->label, i, want->dims[i]);
	if (size == got->sizes[i])
		return CLV_OK;
	return fail(CLV_E_INPUT, "%s: dimension %u is %" PRId64 ", expected %s = %" PRId64, want->label, i, got->sizes[i],
	            want->dims[i], size);
}

static clv_status check_shape(const checker *c, const payload_schema *want, const payload_tensor *got)
{
	size_t extent;
	if (want->ndim != got->ndim)
		return fail(CLV_E_INPUT, "%s: it has %u dimensions, expected %u", want->label, got->ndim, want->ndim);
	for (uint32_t i = 0; i < want->ndim; i++)
		TRY(check_dim(c, want, got, i));
	for (uint32_t i = 0; i < got->ndim; i++)
		if (got->strides[i] < 0)
			return fail(CLV_E_INPUT, "%s: stride %u is %" PRId64, want->label, i, got->strides[i]);
	clv_status st = strided_extent(got->ndim, got->sizes, got->strides, &extent);
	return st == CLV_OK ? st : fail_more(CLV_E_INPUT, "%s", want->label);
}

static bool same_device_class(const char *a, const char *b)
{
	size_t n = strcspn(a, ":");
	return n == strcspn(b, ":") && memcmp(a, b, n) == 0;
}

static clv_status check_one(const checker *c, const payload_schema *want, const payload_tensor *got)
{
	if (want->dtype != got->dtype)
		return fail(CLV_E_INPUT, "%s: dtype is %s, expected %s", want->label, dtype_name(got->dtype),
		            dtype_name(want->dtype));
	TRY(check_shape(c, want, got));
	if (!same_device_class(want->device, got->device))
		return fail(CLV_E_INPUT, "%s: it is on %s, expected %s", want->label, got->device, want->device);
	if (want->requires_grad != got->requires_grad)
		return fail(CLV_E_INPUT, "%s: it %s grad, expected one that does%s", want->label,
		            got->requires_grad ? "requires" : "does not require", want->requires_grad ? "" : " not");
	return CLV_OK;
}

clv_status schema_check(const payload_schema *want, const payload_tensor *got, uint32_t n, const payload_number *sizes,
                        uint32_t nsizes)
{
	checker c = {.sizes = sizes};
	TRY(plan_new(&c.p));
	clv_status st = add_size_symbols(&c, nsizes);
	for (uint32_t i = 0; i < n && st == CLV_OK; i++)
		st = check_one(&c, &want[i], &got[i]);
	mem_free(c.values);
	plan_free(c.p);
	return st;
}
