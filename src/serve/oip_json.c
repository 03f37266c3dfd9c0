/* Inference over REST: the body of a request into tensors, results into the body of the answer.
 *
 * A body is JSON, JSON with the bytes of tensors after it, the bytes of one tensor alone, or a boundary. Tensors are used where
 * they lie in the body if they start at a multiple of 64 bytes, and results are sent from where the run left them. */
#include <math.h>
#include <string.h>

#include "base/member.h"
#include "serve/grpc.h"
#include "serve/oip.h"

/* ---- tensors of a body --------------------------------------------------------------------------------------------------- */

clv_status infer_bytes(const infer_input *in, size_t *out)
{
	return shape_bytes(in->dtype, in->ndim, in->shape, out);
}

clv_status infer_place(exchange *x, infer_input *in, const uint8_t *at, size_t n)
{
	tensor_form form = {.dtype = (uint8_t)in->dtype, .ndim = in->ndim, .sizes = in->shape};
	size_t want;
	TRY(infer_bytes(in, &want));
	if (n != want)
		return fail(CLV_E_INPUT, "unexpected total byte size %zu for input '%s', expecting %zu", n, in->name, want);
	TRY_MORE(bools_check(in->dtype, at, n), "input '%s'", in->name);
	if ((uintptr_t)at % 64 == 0 && n)
		return tensor_over(x->body.memory, (void *)at, &form, &in->tensor);
	TRY(exchange_hold(x, n));
	TRY(tensor_new(&form, &in->tensor));
	if (n)
		memcpy(in->tensor->data, at, n);
	return CLV_OK;
}

/* ---- numbers of JSON ------------------------------------------------------------------------------------------------------ */

typedef struct filling {
	const infer_input *in;
	char *at;
	size_t item;
} filling;

static const struct {
	dtype dtype;
	int64_t low, high;
} ranges[] = {
	{DT_I8, INT8_MIN, INT8_MAX},    {DT_I16, INT16_MIN, INT16_MAX}, {DT_I32, INT32_MIN, INT32_MAX},
	{DT_I64, INT64_MIN, INT64_MAX}, {DT_U8, 0, UINT8_MAX},          {DT_U16, 0, UINT16_MAX},
	{DT_U32, 0, UINT32_MAX},        {DT_U64, 0, INT64_MAX},         {DT_BOOL, 0, 1},
};

static clv_status put_integer(filling *f, const json_t *v)
{
	int64_t n = json_is_boolean(v) ? json_is_true(v) : json_integer_value(v);
	if (json_is_boolean(v) ? f->in->dtype != DT_BOOL : !json_is_integer(v))
		return fail(CLV_E_INPUT, "input '%s': an element is no %s", f->in->name,
		            oip_datatype(dtype_name(f->in->dtype)));
	for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
		if (ranges[i].dtype == f->in->dtype && (n < ranges[i].low || n > ranges[i].high))
			return fail(CLV_E_INPUT, "input '%s': %lld does not fit into %s", f->in->name, (long long)n,
			            oip_datatype(dtype_name(f->in->dtype)));
	memcpy(f->at, &n, f->item); /* little endian */
	return CLV_OK;
}

static clv_status put_real(filling *f, const json_t *v)
{
	double d = json_number_value(v);
	float s = (float)d;
	if (!json_is_number(v))
		return fail(CLV_E_INPUT, "input '%s': an element is no number", f->in->name);
	if (f->in->dtype == DT_F32 && !isfinite(s))
		return fail(CLV_E_INPUT, "input '%s': %g does not fit into FP32", f->in->name, d);
	memcpy(f->at, f->in->dtype == DT_F32 ? (void *)&s : (void *)&d, f->item);
	return CLV_OK;
}

/* Nested lists, or one flat one: elements are counted, shapes are said elsewhere. */
static clv_status count_all(const infer_input *in, const json_t *list, unsigned depth, size_t *n)
{
	if (depth > RANK_MOST)
		return fail(CLV_E_INPUT, "input '%s': lists are nested too deeply", in->name);
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *v = json_array_get(list, i);
		if (json_is_array(v))
			TRY(count_all(in, v, depth + 1, n));
		else
			++*n;
	}
	return CLV_OK;
}

static clv_status put_all(filling *f, const json_t *list)
{
	bool floats = f->in->dtype == DT_F32 || f->in->dtype == DT_F64;
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *v = json_array_get(list, i);
		if (json_is_array(v)) {
			TRY(put_all(f, v));
			continue;
		}
		TRY(floats ? put_real(f, v) : put_integer(f, v));
		f->at += f->item;
	}
	return CLV_OK;
}

static clv_status read_numbers(exchange *x, infer_input *in, const json_t *data)
{
	tensor_form form = {.dtype = (uint8_t)in->dtype, .ndim = in->ndim, .sizes = in->shape};
	size_t need, n = 0, item = dtype_bytes((uint8_t)in->dtype);
	if (in->dtype == DT_F16 || in->dtype == DT_BF16)
		return fail(CLV_E_INPUT, "input '%s': %s is sent as binary data only", in->name,
		            oip_datatype(dtype_name(in->dtype)));
	TRY(infer_bytes(in, &need));
	TRY(count_all(in, data, 1, &n));
	if (n != need / item) /* no memory for shapes that lie */
		return fail(CLV_E_INPUT, "input '%s' has %s elements than its shape", in->name,
		            n < need / item ? "fewer" : "more");
	TRY(exchange_hold(x, need));
	TRY(tensor_new(&form, &in->tensor));
	filling f = {in, in->tensor->data, item};
	return put_all(&f, data);
}

/* ---- requests --------------------------------------------------------------------------------------------------------------- */

typedef struct reading {
	exchange *x;
	const uint8_t *at; /* binary tensors that were not taken yet */
	size_t left;
	json_t *root;
} reading;

static clv_status keep_string(reading *r, const json_t *object, const char *key, const char **out)
{
	const char *s = json_plain_string(json_object_get(object, key));
	if (!s)
		return fail(CLV_E_PARSE, "the request has no text \"%s\" where there has to be one", key);
	*out = arena_str(&r->x->arena, s);
	return *out ? CLV_OK : fail_nomem();
}

clv_status infer_shape(infer_input *in, const int64_t *dims, size_t n)
{
	size_t bytes;
	if (n > RANK_MOST)
		return fail(CLV_E_INPUT, "input '%s' has more than %d dimensions", in->name, RANK_MOST);
	in->ndim = (uint32_t)n;
	memcpy(in->shape, dims, n * sizeof *dims);
	for (size_t i = 0; i < n; i++)
		if (dims[i] < 0)
			return fail(CLV_E_INPUT, "input '%s': dimension %zu is negative", in->name, i);
	TRY(infer_bytes(in, &bytes));
	return CLV_OK;
}

static clv_status read_shape(infer_input *in, const json_t *list)
{
	int64_t dims[RANK_MOST];
	size_t n = json_array_size(list);
	if (!json_is_array(list) || n > RANK_MOST)
		return fail(CLV_E_INPUT, "input '%s' has no shape, or one of more than %d dimensions", in->name, RANK_MOST);
	for (size_t i = 0; i < n; i++) {
		if (!json_is_integer(json_array_get(list, i)))
			return fail(CLV_E_INPUT, "input '%s': dimension %zu is no integer", in->name, i);
		dims[i] = json_integer_value(json_array_get(list, i));
	}
	return infer_shape(in, dims, n);
}

clv_status infer_type(infer_input *in, const char *datatype)
{
	if (strcmp(datatype, "BYTES") == 0)
		return fail(CLV_E_INPUT, "input '%s' is BYTES; tensors of text are not supported", in->name);
	return oip_dtype(datatype, &in->dtype)
	           ? CLV_OK
	           : fail(CLV_E_INPUT, "input '%s': there is no datatype '%.32s'", in->name, datatype);
}

static clv_status read_data(reading *r, const json_t *from, infer_input *in)
{
	const json_t *parameters = json_object_get(from, "parameters"), *data = json_object_get(from, "data");
	const json_t *size = json_object_get(parameters, "binary_data_size");
	if (json_object_get(parameters, "shared_memory_region"))
		return fail(CLV_E_UNSUPPORTED, "input '%s' is in shared memory, which this server does not read", in->name);
	if (!size)
		return json_is_array(data) ? read_numbers(r->x, in, data)
		                           : fail(CLV_E_INPUT, "input '%s' has no data", in->name);
	int64_t n = json_integer_value(size);
	if (!json_is_integer(size) || n < 0 || (uint64_t)n > r->left || data)
		return fail(CLV_E_INPUT, "input '%s': binary_data_size is not that of the data that follows", in->name);
	TRY(infer_place(r->x, in, r->at, (size_t)n));
	r->at += n;
	r->left -= (size_t)n;
	return CLV_OK;
}

static clv_status read_input(reading *r, const json_t *from)
{
	const char *datatype;
	infer *c = &r->x->call;
	TRY(vec_push(&c->inputs, (infer_input){0}));
	infer_input *in = &c->inputs.at[c->inputs.n - 1];
	TRY(keep_string(r, from, "name", &in->name));
	TRY(keep_string(r, from, "datatype", &datatype));
	TRY(infer_type(in, datatype));
	TRY(read_shape(in, json_object_get(from, "shape")));
	return read_data(r, from, in);
}

static clv_status read_output(reading *r, const json_t *from)
{
	const json_t *parameters = json_object_get(from, "parameters"),
				 *binary = json_object_get(parameters, "binary_data");
	infer_output out = {.binary = binary ? json_is_true(binary) : r->x->call.binary};
	if (json_object_get(parameters, "classification"))
		return fail(CLV_E_UNSUPPORTED, "classification of outputs is not supported");
	if (json_object_get(parameters, "shared_memory_region"))
		return fail(CLV_E_UNSUPPORTED, "an output in shared memory is not supported");
	TRY(keep_string(r, from, "name", &out.name));
	return vec_push(&r->x->call.outputs, out);
}

static clv_status read_parameters(reading *r)
{
	const json_t *parameters = json_object_get(r->root, "parameters");
	const json_t *timeout = json_object_get(parameters, "timeout");
	r->x->call.binary = json_is_true(json_object_get(parameters, "binary_data_output"));
	if (timeout && (!json_is_integer(timeout) || json_integer_value(timeout) < 0))
		return fail(CLV_E_INPUT, "the parameter timeout is no number of microseconds");
	if (timeout)
		infer_deadline(r->x, json_integer_value(timeout));
	return CLV_OK;
}

static clv_status read_request(reading *r)
{
	const json_t *inputs = json_object_get(r->root, "inputs"), *outputs = json_object_get(r->root, "outputs");
	if (!json_is_array(inputs))
		return fail(CLV_E_PARSE, "Unable to parse 'inputs': there is no such list in the request");
	r->x->call.id = "";
	if (json_object_get(r->root, "id"))
		TRY(keep_string(r, r->root, "id", &r->x->call.id));
	TRY(read_parameters(r));
	TRY(infer_count(r->x, json_array_size(inputs), json_array_size(outputs)));
	for (size_t i = 0; i < json_array_size(inputs); i++)
		TRY(read_input(r, json_array_get(inputs, i)));
	for (size_t i = 0; i < json_array_size(outputs); i++)
		TRY(read_output(r, json_array_get(outputs, i)));
	return r->left ? fail(CLV_E_INPUT, "unexpected additional input data for model '%s'", r->x->model) : CLV_OK;
}

/* The bytes of the only input, and nothing else. */
static clv_status read_raw(exchange *x)
{
	const served *m = x->served;
	clv_port p;
	int64_t known;
	uint32_t open = NONE;
	if (clv_runtime_input_count(m->runtime) != 1)
		return fail(CLV_E_INPUT, "Raw request must only have 1 input to be deduced, the model has %u",
		            clv_runtime_input_count(m->runtime));
	TRY(served_port(m, false, 0, &p));
	TRY(vec_push(&x->call.inputs, ((infer_input){.name = p.name, .ndim = p.ndim})));
	infer_input *in = &x->call.inputs.at[0];
	const char *type = oip_datatype(p.dtype);
	if (!type || p.ndim > RANK_MOST)
		return fail(CLV_E_INPUT, "input '%s' cannot be sent raw", p.name);
	TRY(infer_type(in, type));
	known = (int64_t)dtype_bytes((uint8_t)in->dtype);
	for (uint32_t d = 0; d < p.ndim; d++) {
		in->shape[d] = oip_dim(p.dims[d]);
		if (in->shape[d] < 0 && open != NONE)
			return fail(CLV_E_INPUT, "input '%s' has several dimensions of variable size: its shape has to be sent",
			            p.name);
		open = in->shape[d] < 0 ? d : open;
		if (in->shape[d] > 0 && __builtin_mul_overflow(known, in->shape[d], &known))
			return fail(CLV_E_OVERFLOW, "input '%s' is too large", p.name);
	}
	if (open != NONE)
		in->shape[open] = (int64_t)x->body.n / known;
	x->call.binary = true;
	return infer_place(x, in, body_at(&x->body), x->body.n);
}

static bool is_type(const exchange *x, const char *field, const char *type)
{
	const char *has = http_field_of(&x->head, field);
	return http_has_word(has, type);
}

static clv_status read_boundary(exchange *x)
{
	if (!x->body.n)
		return fail(CLV_E_PARSE, "the request has no boundary in it");
	return infer_boundary(x, body_at(&x->body), x->body.n);
}

static clv_status read_json(exchange *x, size_t n)
{
	const char *at = (const char *)body_at(&x->body);
	reading r = {.x = x, .at = (const uint8_t *)at + n, .left = x->body.n - n};
	if ((int64_t)n > x->s->o.max_json) {
		answer_error(x, 413, "the JSON is larger than the %lld bytes that it may have; send tensors as binary data",
		             (long long)x->s->o.max_json);
		return CLV_E_LIMIT;
	}
	size_t memory = json_memory(at, n);
	TRY(exchange_hold(x, memory));
	clv_status st = json_read(at, n, "the request", &r.root);
	if (st == CLV_OK)
		st = read_request(&r);
	json_decref(r.root);
	exchange_sent(x, memory);
	return st;
}

clv_status oip_read(exchange *x)
{
	const char *text = http_field_of(&x->head, "inference-header-content-length");
	int64_t n = (int64_t)x->body.n;
	x->call.id = "";
	if (x->grpc)
		return grpc_read(x);
	if (is_type(x, "content-type", ST_MEDIA_TYPE))
		return read_boundary(x);
	if (text && (!http_number(text, &n) || (uint64_t)n > x->body.n))
		return fail(CLV_E_PARSE, "Inference-Header-Content-Length is not the length of JSON in this body");
	if (!x->body.n)
		return fail(CLV_E_PARSE, "the request has no body");
	return text && !n ? read_raw(x) : read_json(x, (size_t)n);
}

/* ---- answers ---------------------------------------------------------------------------------------------------------------- */

static void drop_tensor(void *t)
{
	clv_tensor_free(t);
}

clv_status infer_send(exchange *x, uint32_t i)
{
	clv_tensor *t = x->call.results[i];
	size_t n = (size_t)clv_tensor_bytes(t);
	return n ? answer_piece(&x->out, clv_tensor_data(t), n, drop_tensor, tensor_ref(t)) : CLV_OK;
}

const char *infer_result_name(const exchange *x, uint32_t i)
{
	clv_port p = {.size = sizeof p};
	if (x->call.crossing)
		return clv_boundary_label(x->call.crossing, i);
	return clv_runtime_plan_output(x->served->runtime, x->call.plan, i, &p) == CLV_OK ? p.name : "?";
}

/* Which result an output is, or NONE. */
uint32_t infer_find_result(const exchange *x, const char *name)
{
	for (uint32_t i = 0; i < x->call.nresults; i++)
		if (strcmp(infer_result_name(x, i), name) == 0)
			return i;
	return NONE;
}

static clv_status put_number(strbuf *b, dtype d, const char *at)
{
	union {
		int8_t i8;
		int16_t i16;
		int32_t i32;
		int64_t i64;
		uint8_t u8;
		uint16_t u16;
		uint32_t u32;
		uint64_t u64;
		float f32;
		double f64;
	} v;
	memcpy(&v, at, dtype_bytes((uint8_t)d));
	switch (d) {
	case DT_BOOL: strbuf_puts(b, v.u8 ? "true" : "false"); break;
	case DT_I8: strbuf_int(b, v.i8); break;
	case DT_I16: strbuf_int(b, v.i16); break;
	case DT_I32: strbuf_int(b, v.i32); break;
	case DT_I64: strbuf_int(b, v.i64); break;
	case DT_U8: strbuf_int(b, v.u8); break;
	case DT_U16: strbuf_int(b, v.u16); break;
	case DT_U32: strbuf_int(b, v.u32); break;
	case DT_U64: strbuf_printf(b, "%llu", (unsigned long long)v.u64); break;
	case DT_F32:
	case DT_F64: {
		double x = d == DT_F32 ? (double)v.f32 : v.f64;
		if (!isfinite(x))
			return fail(CLV_E_UNSUPPORTED,
			            "holds a number that is not finite, which JSON does not have; ask for binary data");
		strbuf_double(b, x);
		break;
	}
	default: return fail(CLV_E_UNSUPPORTED, "is of a type that JSON does not have; ask for binary data");
	}
	return CLV_OK;
}

static clv_status put_data(strbuf *b, const clv_tensor *t)
{
	const char *at = clv_tensor_data(t);
	size_t item = dtype_bytes(t->m.dtype), n = (size_t)tensor_numel(t);
	member_open(b, "data", '[');
	for (size_t i = 0; i < n; i++) {
		if (i)
			strbuf_putc(b, ',');
		TRY(put_number(b, (dtype)t->m.dtype, at + i * item));
	}
	strbuf_putc(b, ']');
	return CLV_OK;
}

static clv_status put_result(exchange *x, uint32_t i, bool binary, strbuf *b)
{
	const clv_tensor *t = x->call.results[i];
	const char *name = infer_result_name(x, i), *type = oip_datatype(clv_tensor_dtype(t));
	if (!type)
		return fail(CLV_E_UNSUPPORTED, "output '%s' is %s, for which the protocol has no name", name,
		            clv_tensor_dtype(t));
	member_open(b, NULL, '{');
	member_text(b, "name", name);
	member_text(b, "datatype", type);
	member_open(b, "shape", '[');
	for (uint32_t d = 0; d < clv_tensor_ndim(t); d++)
		member_int(b, NULL, clv_tensor_dim(t, d));
	strbuf_putc(b, ']');
	if (binary) {
		member_open(b, "parameters", '{');
		member_int(b, "binary_data_size", clv_tensor_bytes(t));
		strbuf_putc(b, '}');
	} else {
		TRY_MORE(put_data(b, t), "output '%s' ", name);
	}
	strbuf_putc(b, '}');
	return CLV_OK;
}

static clv_status put_results(exchange *x, strbuf *b)
{
	const infer *c = &x->call;
	bool named = c->outputs.n > 0;
	uint32_t n = named ? c->outputs.n : c->nresults;
	member_open(b, NULL, '{');
	if (c->id[0])
		member_text(b, "id", c->id);
	member_text(b, "model_name", x->served->name);
	member_text(b, "model_version", x->served->version);
	member_open(b, "outputs", '[');
	for (uint32_t k = 0; k < n; k++) {
		uint32_t i = named ? infer_find_result(x, c->outputs.at[k].name) : k;
		TRY(put_result(x, i, named ? c->outputs.at[k].binary : c->binary, b));
	}
	strbuf_puts(b, "]}");
	return b->failed ? fail_nomem() : CLV_OK;
}

static clv_status write_json(exchange *x)
{
	infer *c = &x->call;
	strbuf b = STRBUF_INIT;
	bool named = c->outputs.n > 0, any = false;
	uint32_t n = named ? c->outputs.n : c->nresults;
	clv_status st = put_results(x, &b);
	if (st != CLV_OK) {
		strbuf_free(&b);
		return st;
	}
	size_t head = b.n;
	answer_text(x, 200, "application/json", &b);
	for (uint32_t k = 0; st == CLV_OK && k < n; k++)
		if (named ? c->outputs.at[k].binary : c->binary) {
			any = true;
			st = infer_send(x, named ? infer_find_result(x, c->outputs.at[k].name) : k);
		}
	if (any) {
		x->out.json = (int64_t)head;
		x->out.type = "application/octet-stream";
	}
	return st;
}

/* The tensors by name. Their bytes are sent from where they are: only the header of the file is made. */
static clv_status write_file(exchange *x)
{
	infer *c = &x->call;
	st_image image = {0};
	st_entry *entries = arena_alloc(&x->arena, (c->nresults + 1) * sizeof *entries);
	TRY_MEM(entries);
	for (uint32_t i = 0; i < c->nresults; i++) {
		const clv_tensor *t = c->results[i];
		entries[i] = (st_entry){.name = infer_result_name(x, i),
		                        .dtype = (dtype)t->m.dtype,
		                        .ndim = t->m.ndim,
		                        .shape = t->m.sizes,
		                        .data = clv_tensor_data(t),
		                        .nbytes = (size_t)clv_tensor_bytes(t)};
	}
	TRY(st_layout(entries, c->nresults, NULL, 0, &image));
	answer_empty(x, 200);
	x->out.type = ST_MEDIA_TYPE;
	clv_status st = answer_piece(&x->out, image.head, image.head_n, mem_free, image.head);
	image.head = NULL;
	for (uint32_t i = 0; st == CLV_OK && i < c->nresults; i++)
		st = infer_send(x, image.order[i]);
	st_image_free(&image);
	return st;
}

static clv_status write_crossing(exchange *x)
{
	boundary_image *kept;
	const st_image *image;
	TRY(boundary_image_new(x->call.crossing, &kept, &image));
	answer_empty(x, 200);
	x->out.type = ST_MEDIA_TYPE;
	clv_status st = answer_piece(&x->out, image->head, image->head_n, NULL, NULL);
	for (uint32_t i = 0; i < image->n && st == CLV_OK; i++) {
		const st_entry *e = &image->entries[image->order[i]];
		if (e->nbytes)
			st = answer_piece(&x->out, e->data, e->nbytes, NULL, NULL);
	}
	if (st != CLV_OK) {
		answer_clear(&x->out);
		boundary_image_free(kept);
		return st;
	}
	piece *last = &x->out.body.at[x->out.body.n - 1]; /* pieces go in order */
	last->drop = boundary_image_free;
	last->ctx = kept;
	return CLV_OK;
}

void oip_write(exchange *x)
{
	bool file = is_type(x, "accept", ST_MEDIA_TYPE);
	clv_status st = x->grpc            ? grpc_write(x)
	                : !file            ? write_json(x)
	                : x->call.crossing ? write_crossing(x)
	                                   : write_file(x);
	if (st == CLV_OK)
		st = x->grpc ? grpc_deflate(x) : answer_deflate(x, 0);
	answer_status(x, st);
}
