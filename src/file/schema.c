/* Checks a boundary against what a split expects of it: where it comes from, its sizes, its labels, its tensors.
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

/* ---- whose boundary it is --------------------------------------------------------------------------------------- */

static bool has_text(const char *const *all, uint32_t n, const char *s)
{
	for (uint32_t i = 0; i < n; i++)
		if (strcmp(all[i], s) == 0)
			return true;
	return false;
}

clv_status payload_sizes_of(const plan *p, const payload_number *sizes, uint32_t n, int64_t *symbols)
{
	text_index names;
	clv_status st = text_index_new(sizes, n, sizeof *sizes, &names);
	for (symbol_id s = 0; st == CLV_OK && s < p->symbols.n; s++) {
		uint32_t i = text_index_find(&names, plan_s(p, p->symbols.at[s].name));
		symbols[s] = i == TABLE_NONE ? -1 : sizes[i].value;
	}
	text_index_free(&names);
	return st;
}

static clv_status check_origin(const boundary_want *want, const boundary_facts *got)
{
	if (strcmp(got->split_id, want->split_id) != 0)
		return fail(CLV_E_INPUT, "the boundary belongs to split %.64s, not to %.64s", got->split_id, want->split_id);
	if (!want->signatures || has_text(want->signatures, want->nsignatures, got->signature))
		return CLV_OK;
	strbuf text = STRBUF_INIT;
	strbuf_printf(&text, "the boundary was made by plan %.64s, not by ", got->signature);
	for (uint32_t i = 0; i < want->nsignatures; i++)
		strbuf_printf(&text, "%s%.64s", i ? ", " : "", want->signatures[i]);
	return strbuf_fail(CLV_E_INPUT, &text);
}

static clv_status out_of_range(const boundary_range *want, int64_t n)
{
	strbuf text = STRBUF_INIT;
	strbuf_printf(&text, "the boundary has %s=%" PRId64 ", expected %" PRId64, want->name, n, want->low);
	if (want->high != want->low)
		strbuf_printf(&text, " to %" PRId64, want->high);
	return strbuf_fail(CLV_E_INPUT, &text);
}

static clv_status check_range(const boundary_range *want, const boundary_facts *got, const text_index *sizes)
{
	uint32_t at = text_index_find(sizes, want->name);
	const payload_number *n = at == TABLE_NONE ? NULL : &got->sizes[at];
	if (!n)
		return fail(CLV_E_INPUT, "the boundary lacks the size %s", want->name);
	if (n->value < want->low || n->value > want->high)
		return out_of_range(want, n->value);
	if (want->is_batch && !got->has_batch_size)
		return fail(CLV_E_INPUT, "the boundary has no batch size, but %s=%" PRId64, want->name, n->value);
	if (want->is_batch && got->batch_size != n->value)
		return fail(CLV_E_INPUT, "the boundary has batch %" PRId64 ", but %s=%" PRId64, got->batch_size, want->name,
		            n->value);
	return CLV_OK;
}

/* The batch size is one of the sizes, also where nobody says which. */
static clv_status check_batch(const boundary_facts *got)
{
	for (uint32_t i = 0; i < got->nsizes; i++)
		if (got->sizes[i].value == got->batch_size)
			return CLV_OK;
	if (!got->has_batch_size || !got->nsizes)
		return CLV_OK;
	return fail(CLV_E_INPUT, "the boundary has batch %" PRId64 ", which none of its sizes is", got->batch_size);
}

/* Fails with a list of all that is in `these` and not in `those`, and text around it. */
static clv_status check_listed(const char *const *these, uint32_t n, const char *const *those, uint32_t nthose,
                               const char *before, const char *after)
{
	strbuf text = STRBUF_INIT;
	text_index known;
	bool any = false;
	clv_status st = text_index_new(those, nthose, sizeof *those, &known);
	for (uint32_t i = 0; st == CLV_OK && i < n; i++)
		if (text_index_find(&known, these[i]) == TABLE_NONE) {
			strbuf_printf(&text, "%s%.64s", any ? ", " : before, these[i]);
			any = true;
		}
	text_index_free(&known);
	if (!any)
		return st;
	strbuf_puts(&text, after);
	return strbuf_fail(CLV_E_INPUT, &text);
}

clv_status boundary_check(const boundary_want *want, const boundary_facts *got)
{
	if (want->split_id)
		TRY(check_origin(want, got));
	if (!want->labels)
		return CLV_OK;
	text_index sizes;
	clv_status st = text_index_new(got->sizes, got->nsizes, sizeof *got->sizes, &sizes);
	for (uint32_t i = 0; st == CLV_OK && i < want->nsizes; i++)
		st = check_range(&want->sizes[i], got, &sizes);
	text_index_free(&sizes);
	TRY(st);
	TRY(check_batch(got));
	TRY(check_listed(want->labels, want->nlabels, got->labels, got->nlabels, "the boundary lacks ", ""));
	return check_listed(got->labels, got->nlabels, want->labels, want->nlabels, "the boundary has ",
	                    ", which the split does not know");
}
