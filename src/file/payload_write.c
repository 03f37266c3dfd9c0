/* Writes the header of a payload: everything but the data, as compact JSON. */
#include "file/json.h"
#include "file/payload.h"

/* Puts what `make` builds for each of n elements into an array. */
typedef clv_status (*make_fn)(const payload *p, uint32_t i, json_t *object);

static clv_status put_list(const payload *p, json_t *root, const char *key, uint32_t n, make_fn make)
{
	json_t *list, *object;
	TRY(json_put_list(root, key, &list));
	for (uint32_t i = 0; i < n; i++) {
		TRY(json_push_object(list, &object));
		TRY(make(p, i, object));
	}
	return CLV_OK;
}

static clv_status put_ints(json_t *object, const char *key, const int64_t *at, uint32_t n)
{
	json_t *list;
	TRY(json_put_list(object, key, &list));
	for (uint32_t i = 0; i < n; i++)
		TRY(json_push(list, json_integer(at[i])));
	return CLV_OK;
}

static clv_status float_text(double v, json_t **out)
{
	strbuf b = STRBUF_INIT;
	float_print(v, &b);
	clv_status st = b.failed ? fail_nomem() : json_text(b.at, b.n, out);
	strbuf_free(&b);
	return st;
}

static clv_status put_float_member(json_t *o, const char *key, double v)
{
	json_t *text;
	TRY(float_text(v, &text));
	return json_put(o, key, text);
}

static clv_status put_floats(json_t *o, const char *key, const double *at, uint32_t n)
{
	json_t *list;
	TRY(json_put_list(o, key, &list));
	for (uint32_t i = 0; i < n; i++) {
		json_t *text;
		TRY(float_text(at[i], &text));
		TRY(json_push(list, text));
	}
	return CLV_OK;
}

static clv_status put_quantiser(json_t *tensor, const quantiser *q)
{
	json_t *o;
	TRY(json_put_object(tensor, "quantiser", &o));
	TRY(json_put_string(o, "scheme", quant_schemes[q->scheme]));
	TRY(json_put(o, "axis", json_integer(q->axis)));
	TRY(put_floats(o, "scales", q->scales, q->n));
	return put_floats(o, "zero_points", q->zero_points, q->n);
}

static clv_status tensor_members(const payload *p, uint32_t i, json_t *o)
{
	const payload_tensor *t = &p->tensors.at[i];
	TRY(json_put_string(o, "label", t->label));
	TRY(json_put_string(o, "dtype", dtype_name(t->dtype)));
	TRY(put_ints(o, "shape", t->sizes, t->ndim));
	TRY(put_ints(o, "strides", t->strides, t->ndim));
	TRY(json_put(o, "memory", json_integer(t->memory)));
	TRY(json_put(o, "offset", json_integer((json_int_t)t->offset)));
	TRY(json_put_string(o, "device", t->device));
	TRY(json_put(o, "requires_grad", json_boolean(t->requires_grad)));
	if (t->quantiser)
		TRY(put_quantiser(o, t->quantiser));
	return json_put(o, "boundary", json_boolean(t->boundary));
}

/* What it becomes, where its shape does not say that. */
static clv_status put_packed(const payload_memory *m, json_t *o)
{
	if (!m->dense)
		TRY(json_put(o, "bytes", json_integer((json_int_t)m->nbytes)));
	if (m->encoding == ENC_ZSTD || m->quant.channels == 1)
		return CLV_OK;
	TRY(json_put(o, "channels", json_integer((json_int_t)m->quant.channels)));
	return json_put(o, "run", json_integer((json_int_t)m->quant.run));
}

static clv_status make_memory(const payload *p, uint32_t i, json_t *o)
{
	const payload_memory *m = &p->memories.at[i];
	TRY(json_put_string(o, "entry", m->entry));
	TRY(json_put_string(o, "form", m->dense ? "dense" : "span"));
	TRY(json_put_string(o, "encoding", encoding_names[m->encoding]));
	if (m->lead)
		TRY(json_put(o, "lead", json_integer(m->lead)));
	if (!p->unchecked) {
		char text[DIGEST_TEXT];
		digest_print(m->digest, text);
		TRY(json_put_string(o, "digest", text));
	}
	if (m->encoding == ENC_PLAIN)
		return CLV_OK;
	if (encoding_packed(m->encoding))
		TRY(put_packed(m, o));
	if (m->encoding == ENC_ZSTD)
		return CLV_OK;
	TRY(put_float_member(o, "error", m->loss.absolute));
	TRY(put_float_member(o, "relative_error", m->loss.relative));
	TRY(put_float_member(o, "l2_error", m->loss.l2));
	if (m->encoding != ENC_INT8)
		return CLV_OK;
	if (!m->scales_entry)
		return put_float_member(o, "scale", m->scales.one);
	TRY(json_put_string(o, "scales", m->scales_entry));
	return json_put(o, "run", json_integer((json_int_t)m->scales.run));
}

static clv_status make_schema(const payload *p, uint32_t i, json_t *o)
{
	const payload_schema *s = &p->schema.at[i];
	json_t *dims;
	TRY(json_put_list(o, "shape", &dims));
	for (uint32_t k = 0; k < s->ndim; k++)
		TRY(json_push_string(dims, s->dims[k]));
	TRY(json_put_string(o, "label", s->label));
	TRY(json_put_string(o, "dtype", dtype_name(s->dtype)));
	TRY(json_put_string(o, "device", s->device));
	return json_put(o, "requires_grad", json_boolean(s->requires_grad));
}

static clv_status put_named_numbers(json_t *root, const char *key, const payload_number *at, uint32_t n, bool flags)
{
	json_t *object;
	TRY(json_put_object(root, key, &object));
	for (uint32_t i = 0; i < n; i++) {
		if (json_object_get(object, at[i].name))
			return fail(CLV_E_INVALID, "\"%s\" has \"%.64s\" twice", key, at[i].name);
		TRY(json_put(object, at[i].name, flags ? json_boolean(at[i].value) : json_integer(at[i].value)));
	}
	return CLV_OK;
}

static clv_status put_boundary(const payload *p, json_t *root)
{
	TRY(json_put_string(root, "split_id", p->split_id));
	TRY(json_put_string(root, "graph_signature", p->graph_signature));
	TRY(json_put(root, "batch_size", p->has_batch_size ? json_integer(p->batch_size) : json_null()));
	TRY(json_put(root, "weight_version", json_integer(p->weight_version)));
	TRY(json_put(root, "supports_prefix_backward", json_boolean(p->supports_prefix_backward)));
	TRY(put_named_numbers(root, "sizes", p->sizes.at, p->sizes.n, false));
	TRY(put_named_numbers(root, "requires_grad", p->requires_grad.at, p->requires_grad.n, true));
	json_t *inputs;
	TRY(json_put_list(root, "passthrough_inputs", &inputs));
	for (uint32_t i = 0; i < p->passthrough.n; i++)
		TRY(json_push_string(inputs, p->passthrough.at[i]));
	return put_list(p, root, "schema", p->schema.n, make_schema);
}

static clv_status put_payload(const void *ctx, json_t *root)
{
	const payload *p = ctx;
	json_t *values;
	TRY(json_put(root, "version", json_integer(PAYLOAD_VERSION)));
	TRY(json_put_string(root, "kind", payload_kinds[p->kind]));
	if (p->kind == PAYLOAD_BOUNDARY)
		TRY(put_boundary(p, root));
	TRY(put_list(p, root, "memory", p->memories.n, make_memory));
	TRY(put_list(p, root, "tensors", p->tensors.n, tensor_members));
	TRY(tree_to_json(p, &values));
	return json_put(root, "values", values);
}

clv_status payload_header(const payload *p, strbuf *out)
{
	return json_write(put_payload, p, out);
}
