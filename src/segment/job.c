/* Writes a job as text: job.json for the compiler, and the key under which its result is cached. */
#include <string.h>

#include "file/json.h"
#include "plan/view.h"
#include "segment/compile.h"

enum { JOB_VERSION = 1 };

/* ---- job.json ----------------------------------------------------------------------------------------------------- */

static clv_status put_texts(json_t *root, const char *key, const char *const *texts, uint32_t n)
{
	json_t *array = json_array();
	TRY(json_put(root, key, array));
	for (uint32_t i = 0; i < n; i++)
		TRY(json_push_string(array, texts[i]));
	return CLV_OK;
}

static clv_status put_job_size(json_t *sizes, const job_size *s)
{
	json_t *size = json_object();
	if (!utf8_valid(s->symbol, strlen(s->symbol))) {
		json_decref(size);
		return fail(CLV_E_INVALID, "the name of a symbol is not valid UTF-8");
	}
	TRY(json_put(sizes, s->symbol, size));
	TRY(json_put(size, "low", json_integer(s->low)));
	TRY(json_put(size, "high", json_integer(s->high)));
	return json_put(size, "example", json_integer(s->example));
}

static clv_status put_order(json_t *input, const job_tensor *t)
{
	if (!t->order)
		return json_put(input, "order", json_null());
	json_t *order = json_array();
	TRY(json_put(input, "order", order));
	for (uint32_t i = 0; i < t->ndim; i++)
		TRY(json_push(order, json_integer(t->order[i])));
	return CLV_OK;
}

static clv_status push_input(json_t *inputs, const job_tensor *t)
{
	json_t *input = json_object();
	TRY(json_push(inputs, input));
	TRY(json_put_string(input, "dtype", t->dtype));
	TRY(json_put_string(input, "device", t->device));
	TRY(put_texts(input, "shape", t->shape, t->ndim));
	return put_order(input, t);
}

static clv_status describe_job(const job_spec *s, json_t *root)
{
	TRY(json_put(root, "version", json_integer(JOB_VERSION)));
	TRY(json_put_string(root, "backend", s->backend));
	TRY(put_texts(root, "args", s->args, s->nargs));
	json_t *sizes = json_object(), *inputs = json_array();
	clv_status st = json_put(root, "sizes", sizes);
	clv_status st2 = json_put(root, "inputs", inputs);
	TRY(st);
	TRY(st2);
	for (uint32_t i = 0; i < s->nsizes; i++)
		TRY(put_job_size(sizes, &s->sizes[i]));
	for (uint32_t i = 0; i < s->ninputs; i++)
		TRY(push_input(inputs, &s->inputs[i]));
	return CLV_OK;
}

/* `threads` is how it is compiled, not what: it is no part of the key. */
static clv_status job_text(const job_spec *s, bool threads, strbuf *out)
{
	json_t *root = json_object();
	TRY_MEM(root);
	clv_status st = describe_job(s, root);
	if (st == CLV_OK && threads)
		st = json_put(root, "threads", json_integer(s->threads));
	if (st == CLV_OK)
		st = json_print(root, 0, out);
	json_decref(root);
	return st;
}

clv_status job_write(const job_spec *s, const char *dir)
{
	strbuf text = STRBUF_INIT;
	clv_status st = job_text(s, true, &text);
	if (st == CLV_OK) {
		strbuf_putc(&text, '\n');
		st = text.failed ? fail_nomem() : folder_write(dir, "job.json", text.at, text.n);
	}
	strbuf_free(&text);
	return st;
}

/* ---- the key ------------------------------------------------------------------------------------------------------ */

/* The tensor's memory from its first element to its last; of a file that was opened, the memory that holds it. */
static clv_status tensor_bytes(const payload *p, const payload_tensor *t, const void **at, size_t *n)
{
	if (!t->data && t->memory < p->memories.n) {
		*at = p->memories.at[t->memory].data;
		*n = p->memories.at[t->memory].data_n;
		return CLV_OK;
	}
	size_t extent = 0;
	if (t->data)
		TRY(strided_extent(t->ndim, t->sizes, t->strides, &extent));
	*at = t->data;
	*n = extent * (dtype_bits(t->dtype) / 8);
	return CLV_OK;
}

static void put_ints(strbuf *b, const int64_t *at, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		strbuf_printf(b, " %lld", (long long)at[i]);
	strbuf_putc(b, ';');
}

static clv_status put_key_tensor(const payload *p, uint32_t i, strbuf *b)
{
	const payload_tensor *t = &p->tensors.at[i];
	char text[DIGEST_TEXT];
	const void *at;
	size_t n;
	TRY(tensor_bytes(p, t, &at, &n));
	digest_print(digest_of(at, n), text);
	strbuf_printf(b, " %s%s", dtype_name(t->dtype), t->requires_grad ? " grad" : "");
	put_ints(b, t->sizes, t->ndim);
	put_ints(b, t->strides, t->ndim);
	if (t->data)
		strbuf_printf(b, " %zu bytes %s", n, text);
	else
		strbuf_printf(b, " %zu of %zu bytes %s", t->offset, n, text);
	return CLV_OK;
}

static void put_value(const plan *p, value_id v, strbuf *b)
{
	const value *x = &p->values.at[v];
	value_label(p, v, b);
	strbuf_putc(b, ' ');
	value_print_type(p, v, b);
	strbuf_printf(b, " %s", plan_s(p, x->device));
	if (x->strides != NONE)
		for (uint32_t i = 0; i < x->ndim; i++) {
			strbuf_putc(b, i ? ',' : ' ');
			expr_print(p, p->dims.at[x->strides + i], b);
		}
	if (x->alias != NONE) {
		strbuf_puts(b, " on ");
		value_label(p, x->alias, b);
	}
}

static void put_values(const char *what, const plan *p, const value_id *at, uint32_t n, strbuf *b)
{
	for (uint32_t i = 0; i < n; i++) {
		strbuf_puts(b, what);
		put_value(p, at[i], b);
		strbuf_putc(b, '\n');
	}
}

static clv_status put_externals(const artifact *a, uint32_t i, const view *v, strbuf *b)
{
	for (uint32_t k = 0; k < v->externals.n; k++) {
		uint32_t tensor = artifact_tensor_of(a, i, v->externals.at[k]);
		strbuf_puts(b, "external ");
		put_value(v->p, v->externals.at[k], b);
		if (tensor != NONE)
			TRY(put_key_tensor(a->tensors, tensor, b));
		strbuf_putc(b, '\n');
	}
	return CLV_OK;
}

/* What is outside of the segment's nodes does not count, nor where in the source they came from. */
static clv_status put_view(const artifact *a, uint32_t i, const view *v, strbuf *b)
{
	const plan *p = v->p;
	strbuf_printf(b, "plan training=%d grad=%d\n", p->training, p->grad_modes);
	for (uint32_t k = 0; k < p->symbols.n; k++)
		strbuf_printf(b, "symbol %s %lld..%lld %d\n", plan_s(p, p->symbols.at[k].name), (long long)p->symbols.at[k].lo,
		              (long long)p->symbols.at[k].hi, p->symbols.at[k].data);
	put_values("input ", p, v->inputs.at, v->inputs.n, b);
	put_values("output ", p, v->outputs.at, v->outputs.n, b);
	TRY(put_externals(a, i, v, b));
	for (uint32_t k = 0; k < v->nodes.n; k++) {
		node_print(p, v->nodes.at[k], b);
		strbuf_putc(b, '\n');
	}
	return CLV_OK;
}

static clv_status put_range(const artifact *a, uint32_t i, const plan *p, strbuf *b)
{
	view v;
	TRY(view_range(p, a->plans.at[i].first, a->plans.at[i].end, &v));
	clv_status st = put_view(a, i, &v, b);
	view_free(&v);
	return st;
}

static clv_status put_key_plan(const artifact *a, uint32_t i, strbuf *b)
{
	plan *copy;
	TRY(plan_copy(a->plans.at[i].p, &copy));
	for (node_id n = 0; n < copy->nodes.n; n++)
		copy->nodes.at[n].at = NONE;
	clv_status st = put_range(a, i, copy, b);
	plan_free(copy);
	return st;
}

static clv_status job_key_text(const job_spec *s, const artifact *segment, const char *setting, strbuf *b)
{
	strbuf_printf(b, "cleave %s key 1\n%zu %s\n", CLV_VERSION, strlen(setting), setting);
	TRY(job_text(s, false, b));
	strbuf_putc(b, '\n');
	for (uint32_t i = 0; i < segment->plans.n; i++)
		TRY(put_key_plan(segment, i, b));
	return b->failed ? fail_nomem() : CLV_OK;
}

clv_status job_key(const job_spec *s, const artifact *segment, const char *setting, digest *out)
{
	strbuf b = STRBUF_INIT;
	clv_status st = job_key_text(s, segment, setting, &b);
	if (st == CLV_OK)
		*out = digest_of(b.at, b.n);
	strbuf_free(&b);
	return st;
}
