/* The methods of inference.GRPCInferenceService and grpc.health.v1.Health: messages in, messages out.
 *
 * Numbers of fields are those of the published .proto files. Tensors come as raw bytes or as lists of numbers, and go as raw
 * bytes, from where the run left them. */
#include <string.h>

#include "net/protobuf.h"
#include "serve/batch.h"
#include "serve/grpc.h"
#include "serve/oip.h"

/* ---- requests -------------------------------------------------------------------------------------------------------------------- */

/* *out is "" before. */
static clv_status keep_field(exchange *x, const pb_field *f, const char **out)
{
	char *s;
	if (f->wire == PB_BYTES && !f->n)
		return CLV_OK;
	if (**out)
		return fail(CLV_E_PARSE, "field %u of the message is there twice", f->number);
	if (f->wire != PB_BYTES || memchr(f->at, 0, f->n) || !utf8_valid(f->at, f->n))
		return fail(CLV_E_PARSE, "field %u of the message is no text", f->number);
	s = arena_alloc(&x->arena, f->n + 1);
	TRY_MEM(s);
	memcpy(s, f->at, f->n);
	*out = s;
	return CLV_OK;
}

/* Two texts by number; NULL or empty: not there. */
static clv_status read_texts(exchange *x, uint32_t first, const char **a, uint32_t second, const char **b)
{
	enum { FIELDS_MOST = 64 * 1024 }; /* others wait while they are read */
	pb_reader r = pb_read(x->message, x->nmessage);
	pb_field f;
	bool there;
	for (uint32_t n = 0; n < FIELDS_MOST; n++) {
		TRY(pb_next(&r, &f, &there));
		if (!there)
			return CLV_OK;
		if (f.number == first)
			TRY(keep_field(x, &f, a));
		else if (f.number == second)
			TRY(keep_field(x, &f, b));
	}
	return fail(CLV_E_PARSE, "the message has more than %d fields", FIELDS_MOST);
}

/* ModelX{name=1, version=2} */
static clv_status read_model(exchange *x)
{
	const char *name = "", *version = "";
	TRY(read_texts(x, 1, &name, 2, &version));
	x->model = name;
	x->version = version[0] ? version : NULL;
	return CLV_OK;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------------------------- */

typedef struct numbers {
	infer_input *in;
	char *at, *end;
	size_t item;
} numbers;

static clv_status put_element(numbers *c, uint64_t number)
{
	dtype d = c->in->dtype;
	int64_t n = (int64_t)number;
	if (c->at == c->end)
		return fail(CLV_E_INPUT, "input '%s' has more elements than its shape", c->in->name);
	bool fits = d == DT_I8     ? n == (int8_t)n
	            : d == DT_I16  ? n == (int16_t)n
	            : d == DT_U8   ? number <= UINT8_MAX
	            : d == DT_U16  ? number <= UINT16_MAX
	            : d == DT_BOOL ? number <= 1
	                           : true;
	if (!fits)
		return fail(CLV_E_INPUT, "input '%s': an element does not fit its datatype", c->in->name);
	memcpy(c->at, &number, c->item);
	c->at += c->item;
	return CLV_OK;
}

/* Which field of InferTensorContents holds numbers of a type, and whether they have a fixed width there. */
static uint32_t contents_of(dtype d, size_t *fixed)
{
	*fixed = d == DT_F32 ? 4 : d == DT_F64 ? 8 : 0;
	switch (d) {
	case DT_BOOL: return 1;
	case DT_I8:
	case DT_I16:
	case DT_I32: return 2;
	case DT_I64: return 3;
	case DT_U8:
	case DT_U16:
	case DT_U32: return 4;
	case DT_U64: return 5;
	case DT_F32: return 6;
	case DT_F64: return 7;
	default: return 0;
	}
}

static clv_status put_packed(numbers *c, const pb_field *f, size_t fixed)
{
	pb_reader r = pb_read(f->at, f->n);
	uint64_t number;
	if (fixed && f->n % fixed)
		return fail(CLV_E_PARSE, "the message is no valid protocol buffer");
	while (r.at < r.end) {
		number = 0;
		if (fixed) {
			memcpy(&number, r.at, fixed);
			r.at += fixed;
		} else {
			TRY(pb_varint(&r, &number));
		}
		TRY(put_element(c, number));
	}
	return CLV_OK;
}

static clv_status read_contents(exchange *x, infer_input *in, const pb_field *from)
{
	tensor_form form = {.dtype = (uint8_t)in->dtype, .ndim = in->ndim, .sizes = in->shape};
	pb_reader r = pb_read(from->at, from->n);
	pb_field f;
	bool there;
	size_t fixed, n;
	uint32_t want = contents_of(in->dtype, &fixed);
	if (!want)
		return fail(CLV_E_INPUT, "input '%s': %s is sent as raw bytes only", in->name,
		            oip_datatype(dtype_name(in->dtype)));
	TRY(infer_bytes(in, &n));
	if (n > 16 * from->n + 16) /* each element takes a byte at least: no memory for lengths that lie */
		return fail(CLV_E_INPUT, "input '%s' has fewer elements than its shape", in->name);
	TRY(exchange_hold(x, n));
	TRY(tensor_new(&form, &in->tensor));
	numbers c = {in, in->tensor->data, (char *)in->tensor->data + n, dtype_bytes((uint8_t)in->dtype)};
	for (;;) {
		TRY(pb_next(&r, &f, &there));
		if (!there)
			break;
		if (f.number != want)
			return fail(CLV_E_INPUT, "input '%s' has numbers of another type than it says", in->name);
		TRY(f.wire == PB_BYTES ? put_packed(&c, &f, fixed) : put_element(&c, f.value));
	}
	return c.at == c.end ? CLV_OK : fail(CLV_E_INPUT, "input '%s' has fewer elements than its shape", in->name);
}

static clv_status add_dim(infer_input *in, int64_t *dims, uint64_t number)
{
	if (in->ndim == RANK_MOST)
		return fail(CLV_E_INPUT, "input '%s' has more than %d dimensions", in->name, RANK_MOST);
	dims[in->ndim++] = (int64_t)number;
	return CLV_OK;
}

static clv_status add_dims(infer_input *in, int64_t *dims, const pb_field *f)
{
	pb_reader r = pb_read(f->at, f->wire == PB_BYTES ? f->n : 0);
	uint64_t number;
	if (f->wire == PB_NUMBER)
		return add_dim(in, dims, f->value);
	while (r.at < r.end) {
		TRY(pb_varint(&r, &number));
		TRY(add_dim(in, dims, number));
	}
	return CLV_OK;
}

/* Whether a map of parameters has a key; "file:" is any that starts so. */
static clv_status has_parameter(const pb_field *entry, const char *key, bool *out)
{
	pb_reader r = pb_read(entry->at, entry->wire == PB_BYTES ? entry->n : 0);
	pb_field f;
	bool there;
	size_t n = strlen(key);
	for (;;) {
		TRY(pb_next(&r, &f, &there));
		if (!there)
			return CLV_OK;
		*out |=
			f.number == 1 && f.wire == PB_BYTES && (key[n - 1] == ':' ? f.n >= n : f.n == n) && !memcmp(f.at, key, n);
	}
}

/* InferInputTensor{name=1, datatype=2, shape=3, parameters=4, contents=5} */
static clv_status read_input(exchange *x, const pb_field *from)
{
	infer *c = &x->call;
	pb_reader r = pb_read(from->at, from->wire == PB_BYTES ? from->n : 0);
	pb_field f, contents = {0};
	const char *type = "";
	int64_t dims[RANK_MOST];
	bool there, shared = false;
	TRY(vec_push(&c->inputs, ((infer_input){.name = ""})));
	infer_input *in = &c->inputs.at[c->inputs.n - 1];
	for (;;) {
		TRY(pb_next(&r, &f, &there));
		if (!there)
			break;
		if (f.number == 1)
			TRY(keep_field(x, &f, &in->name));
		else if (f.number == 2)
			TRY(keep_field(x, &f, &type));
		else if (f.number == 3)
			TRY(add_dims(in, dims, &f));
		else if (f.number == 4)
			TRY(has_parameter(&f, "shared_memory_region", &shared));
		else if (f.number == 5)
			contents = f;
	}
	if (shared)
		return fail(CLV_E_UNSUPPORTED, "input '%s' is in shared memory, which this server does not read", in->name);
	TRY(infer_type(in, type));
	TRY(infer_shape(in, dims, in->ndim));
	return contents.n ? read_contents(x, in, &contents) : CLV_OK;
}

/* InferRequestedOutputTensor{name=1, parameters=2} */
static clv_status read_output(exchange *x, const pb_field *from)
{
	pb_reader r = pb_read(from->at, from->wire == PB_BYTES ? from->n : 0);
	infer_output out = {.name = "", .binary = true};
	pb_field f;
	bool there, odd = false;
	for (;;) {
		TRY(pb_next(&r, &f, &there));
		if (!there)
			break;
		if (f.number == 1)
			TRY(keep_field(x, &f, &out.name));
		else if (f.number == 2) {
			TRY(has_parameter(&f, "classification", &odd));
			TRY(has_parameter(&f, "shared_memory_region", &odd));
		}
	}
	if (odd)
		return fail(CLV_E_UNSUPPORTED, "classification and shared memory are not supported");
	return vec_push(&x->call.outputs, out);
}

/* Entry{key=1, value=2: InferParameter{int64=2, uint64=5}} */
static clv_status read_parameter(exchange *x, const pb_field *entry)
{
	pb_reader r = pb_read(entry->at, entry->wire == PB_BYTES ? entry->n : 0);
	pb_field f;
	bool there, timeout = false;
	uint64_t number = 0;
	TRY(has_parameter(entry, "timeout", &timeout));
	while (timeout) {
		TRY(pb_next(&r, &f, &there));
		if (!there)
			break;
		pb_reader inner = pb_read(f.at, f.number == 2 && f.wire == PB_BYTES ? f.n : 0);
		TRY(pb_next(&inner, &f, &there));
		if (there && (f.number == 2 || f.number == 5))
			number = f.value;
	}
	if (number && number < INT64_MAX)
		infer_deadline(x, (int64_t)number);
	return CLV_OK;
}

static clv_status place_raw(exchange *x, const pb_field *f, uint32_t *next)
{
	infer *c = &x->call;
	while (*next < c->inputs.n && c->inputs.at[*next].tensor)
		++*next;
	if (*next == c->inputs.n || f->wire != PB_BYTES)
		return fail(CLV_E_INPUT, "the request has raw contents for more inputs than it has");
	return infer_place(x, &c->inputs.at[*next], f->at, f->n);
}

static clv_status read_request(exchange *x, uint32_t pass)
{
	pb_reader r = pb_read(x->message, x->nmessage);
	pb_field f;
	bool there;
	uint32_t next = 0;
	for (;;) {
		TRY(pb_next(&r, &f, &there));
		if (!there)
			return CLV_OK;
		if (pass == 1 && f.number == 7)
			TRY(place_raw(x, &f, &next));
		else if (pass == 0 && f.number == 3)
			TRY(keep_field(x, &f, &x->call.id));
		else if (pass == 0 && f.number == 4)
			TRY(read_parameter(x, &f));
		else if (pass == 0 && f.number == 5)
			TRY(read_input(x, &f));
		else if (pass == 0 && f.number == 6)
			TRY(read_output(x, &f));
	}
}

static clv_status count_request(exchange *x)
{
	pb_reader r = pb_read(x->message, x->nmessage);
	pb_field f;
	size_t inputs = 0, outputs = 0;
	for (bool there = true; there;) {
		TRY(pb_next(&r, &f, &there));
		inputs += there && f.number == 5;
		outputs += there && f.number == 6;
	}
	return infer_count(x, inputs, outputs);
}

clv_status grpc_read(exchange *x)
{
	TRY(count_request(x));
	TRY(read_request(x, 0));
	TRY(read_request(x, 1));
	for (uint32_t i = 0; i < x->call.inputs.n; i++)
		if (!x->call.inputs.at[i].tensor)
			return fail(CLV_E_INPUT, "input '%s' has no data", x->call.inputs.at[i].name);
	return CLV_OK;
}

/* ---- answers ----------------------------------------------------------------------------------------------------------------------- */

/* A message as the whole answer. */
static void answer_message(exchange *x, clv_status st, strbuf *b)
{
	strbuf all = STRBUF_INIT;
	if (st == CLV_OK && b->failed)
		st = fail_nomem();
	if (answer_status(x, st)) {
		grpc_put_frame(&all, b->n);
		strbuf_move(&all, b);
		answer_text(x, 200, "application/grpc", &all);
	}
	strbuf_free(b);
}

static uint32_t result_of(const exchange *x, uint32_t k)
{
	return x->call.outputs.n ? infer_find_result(x, x->call.outputs.at[k].name) : k;
}

/* InferOutputTensor{name=1, datatype=2, shape=3} */
static clv_status put_result(exchange *x, uint32_t i, strbuf *b)
{
	const clv_tensor *t = x->call.results[i];
	const char *type = oip_datatype(clv_tensor_dtype(t));
	strbuf out = STRBUF_INIT;
	if (!type)
		return fail(CLV_E_UNSUPPORTED, "output '%s' is %s, for which the protocol has no name", infer_result_name(x, i),
		            clv_tensor_dtype(t));
	pb_put_text(&out, 1, infer_result_name(x, i));
	pb_put_text(&out, 2, type);
	pb_put_packed(&out, 3, t->m.sizes, t->m.ndim);
	pb_put_message(b, 5, &out);
	return CLV_OK;
}

static clv_status send_raw(exchange *x, uint32_t i, strbuf *head)
{
	char *text;
	size_t n = head->n;
	TRY(strbuf_take(head, &text));
	TRY(answer_piece(&x->out, text, n, mem_free, text));
	return infer_send(x, i);
}

/* ModelInferResponse{model_name=1, model_version=2, id=3, outputs=5, raw_output_contents=6}; of a stream
   ModelStreamInferResponse{infer_response=2}. */
clv_status grpc_write(exchange *x)
{
	const infer *c = &x->call;
	uint32_t n = c->outputs.n ? c->outputs.n : c->nresults;
	strbuf b = STRBUF_INIT, framed = STRBUF_INIT;
	clv_status st = CLV_OK;
	size_t raw = 0;
	pb_put_text(&b, 1, x->served->name);
	pb_put_text(&b, 2, x->served->version);
	pb_put_text(&b, 3, c->id);
	for (uint32_t k = 0; k < n && st == CLV_OK; k++)
		st = put_result(x, result_of(x, k), &b);
	strbuf *heads = arena_alloc(&x->arena, (n + 1) * sizeof *heads);
	if (st == CLV_OK && !heads)
		st = fail_nomem();
	for (uint32_t k = 0; k < n && st == CLV_OK; k++) {
		size_t bytes = (size_t)clv_tensor_bytes(c->results[result_of(x, k)]);
		pb_put_head(&heads[k], 6, bytes);
		raw += heads[k].n + bytes;
	}
	if (st == CLV_OK && b.n + raw > INT32_MAX)
		st = fail(CLV_E_UNSUPPORTED, "the outputs are larger than a message of gRPC may be");
	if (st == CLV_OK) {
		strbuf wrap = STRBUF_INIT;
		if (x->in_stream)
			pb_put_head(&wrap, 2, b.n + raw);
		grpc_put_frame(&framed, wrap.n + b.n + raw);
		strbuf_move(&framed, &wrap);
		strbuf_move(&framed, &b);
		answer_text(x, 200, "application/grpc", &framed);
	}
	for (uint32_t k = 0; k < n && st == CLV_OK; k++)
		st = send_raw(x, result_of(x, k), &heads[k]);
	for (uint32_t k = 0; heads && k < n; k++)
		strbuf_free(&heads[k]);
	strbuf_free(&b);
	return st;
}

/* ModelStreamInferResponse{error_message=1} */
static clv_status put_error(const exchange *y, piece_list *to)
{
	strbuf b = STRBUF_INIT, framed = STRBUF_INIT;
	char *text;
	pb_put_text(&b, 1, y->out.error ? y->out.error : "the request failed");
	grpc_put_frame(&framed, b.n);
	strbuf_move(&framed, &b);
	size_t n = framed.n;
	TRY(strbuf_take(&framed, &text));
	clv_status st = vec_push(to, ((piece){text, n, mem_free, text}));
	if (st != CLV_OK)
		mem_free(text);
	return st;
}

clv_status grpc_write_stream(const exchange *y, piece_list *to)
{
	if (y->out.status != 200)
		return put_error(y, to);
	for (uint32_t i = 0; i < y->out.body.n; i++) {
		TRY(vec_push(to, y->out.body.at[i]));
		y->out.body.at[i].drop = NULL;
	}
	return CLV_OK;
}

/* ---- methods ------------------------------------------------------------------------------------------------------------------------- */

static void answer_flag(exchange *x, bool flag)
{
	strbuf b = STRBUF_INIT;
	pb_put_number(&b, 1, flag);
	answer_message(x, CLV_OK, &b);
}

static void server_live(exchange *x)
{
	answer_flag(x, true);
}

static void server_ready(exchange *x)
{
	answer_flag(x, server_is_ready(x->s));
}

static void server_metadata(exchange *x)
{
	strbuf b = STRBUF_INIT;
	pb_put_text(&b, 1, "cleave");
	pb_put_text(&b, 2, CLV_VERSION);
	for (uint32_t i = 0; oip_extensions[i]; i++)
		pb_put_text(&b, 3, oip_extensions[i]);
	answer_message(x, CLV_OK, &b);
}

/* Health: UNKNOWN=0, SERVING=1, NOT_SERVING=2, SERVICE_UNKNOWN=3; of the server, or of the model that the service is named
   after. */
static bool is_server(const char *service)
{
	return !*service || strcmp(service, "inference.GRPCInferenceService") == 0;
}

uint32_t grpc_health(server *s, const char *service)
{
	served *m = NULL;
	if (is_server(service))
		return server_is_ready(s) ? 1 : 2;
	bool there = models_is_quick(service) && models_find(s, service, NULL, &m) == CLV_OK;
	served_free(m);
	return there ? 1 : 3;
}

static void health_check(exchange *x)
{
	strbuf b = STRBUF_INIT;
	const char *service = "", *none = "";
	clv_status st = read_texts(x, 1, &service, NONE, &none);
	if (st == CLV_OK && !is_server(service) && !tokens_know(x)) /* strangers are not told which models there are */
		return;
	uint32_t health = st == CLV_OK ? grpc_health(x->s, service) : 0;
	if (health == 3)
		st = fail(CLV_E_NOT_FOUND, "there is no service or model '%.128s'", service);
	pb_put_number(&b, 1, health);
	answer_message(x, st, &b);
}

/* Goes on until the client ends it or the server stops: whoever may hold a connection for that has a token. */
static void health_watch(exchange *x)
{
	const char *service = "", *none = "";
	clv_status st = read_texts(x, 1, &service, NONE, &none);
	if (!answer_status(x, st) || !tokens_know(x))
		return;
	x->watch = service;
	x->streaming = x->half_closed = true;
	grpc_watch(x);
}

static void model_ready(exchange *x)
{
	served *m = NULL;
	clv_status st = models_find(x->s, x->model, x->version, &m);
	served_free(m);
	answer_flag(x, st == CLV_OK);
}

/* TensorMetadata{name=1, datatype=2, shape=3} as field 4 or 5; ModelInput{name=1, data_type=2, dims=4} as 5, ModelOutput with
   dims=3 as 6. */
static clv_status put_ports(const served *m, bool output, bool config, strbuf *b)
{
	uint32_t first = config && oip_batch_size(m) ? 1 : 0;
	for (uint32_t i = 0; i < served_port_count(m, output); i++) {
		clv_port p;
		strbuf one = STRBUF_INIT;
		int64_t dims[RANK_MOST];
		uint32_t n = 0;
		TRY(served_port(m, output, i, &p));
		const char *type = oip_datatype(p.dtype);
		for (uint32_t d = first; d < p.ndim && n < RANK_MOST; d++)
			dims[n++] = oip_dim(p.dims[d]);
		pb_put_text(&one, 1, p.name);
		if (config)
			pb_put_number(&one, 2, oip_type_number(p.dtype));
		else
			pb_put_text(&one, 2, type ? type : p.dtype);
		pb_put_packed(&one, config && !output ? 4 : 3, dims, n);
		pb_put_message(b, 4u + config + output, &one);
	}
	return CLV_OK;
}

static void put_version(void *b, const char *version)
{
	pb_put_text(b, 2, version);
}

/* ModelMetadataResponse{name=1, versions=2, platform=3, inputs=4, outputs=5} */
static clv_status put_metadata(exchange *x, const served *m, strbuf *b)
{
	pb_put_text(b, 1, m->name);
	models_versions(x->s, m->name, put_version, b);
	pb_put_text(b, 3, "cleave");
	TRY(put_ports(m, false, false, b));
	return put_ports(m, true, false, b);
}

/* ModelConfigResponse{config=1: ModelConfig{name=1, platform=2, max_batch_size=4, input=5, output=6,
   dynamic_batching=11: {preferred_batch_size=1}, backend=17}} */
static clv_status put_config(exchange *x, const served *m, strbuf *b)
{
	(void)x;
	const batching *how = &m->batching;
	strbuf one = STRBUF_INIT, dynamic = STRBUF_INIT;
	int64_t size;
	pb_put_text(&one, 1, m->name);
	pb_put_text(&one, 2, "cleave");
	pb_put_number(&one, 4, oip_batch_size(m));
	clv_status st = put_ports(m, false, true, &one);
	if (st == CLV_OK)
		st = put_ports(m, true, true, &one);
	for (uint32_t n = 0; oip_batch_size(m) && (n = batch_size_above(how, n)) != 0;) {
		size = n;
		pb_put_packed(&dynamic, 1, &size, 1);
	}
	if (dynamic.n)
		pb_put_message(&one, 11, &dynamic);
	pb_put_text(&one, 17, "cleave");
	pb_put_message(b, 1, &one);
	return st;
}

static void model_metadata(exchange *x)
{
	strbuf b = STRBUF_INIT;
	answer_message(x, oip_describe(x, put_metadata, &b), &b);
}

static void model_config(exchange *x)
{
	strbuf b = STRBUF_INIT;
	answer_message(x, oip_describe(x, put_config, &b), &b);
}

static void put_duration(strbuf *b, uint32_t field, const duration *d)
{
	strbuf one = STRBUF_INIT;
	pb_put_number(&one, 1, atomic_load(&d->count));
	pb_put_number(&one, 2, atomic_load(&d->ns));
	pb_put_message(b, field, &one);
}

/* InferBatchStatistics{batch_size=1, compute_input=2, compute_infer=3, compute_output=4} */
static void put_batches(strbuf *b, const served *m)
{
	for (uint32_t i = 0; i < m->nbatches; i++) {
		const batch_tally *at = &m->batches[i];
		strbuf one = STRBUF_INIT;
		if (!atomic_load(&at->infer.count))
			continue;
		pb_put_number(&one, 1, i + 1);
		put_duration(&one, 2, &at->input);
		put_duration(&one, 3, &at->infer);
		put_duration(&one, 4, &at->output);
		pb_put_message(b, 7, &one);
	}
}

/* ModelStatistics{name=1, version=2, last_inference=3, inference_count=4, execution_count=5, inference_stats=6: {success=1, fail=2,
   queue=3, compute_input=4, compute_infer=5, compute_output=6, cache_hit=7, cache_miss=8}, batch_stats=7} */
static clv_status put_statistics(void *ctx, served *m)
{
	strbuf one = STRBUF_INIT, stats = STRBUF_INIT;
	const tally *t = &m->tally;
	static const duration none;
	const duration *all[] = {&t->success,       &t->failure,        &t->queue, &t->compute_input,
	                         &t->compute_infer, &t->compute_output, &none,     &none};
	pb_put_text(&one, 1, m->name);
	pb_put_text(&one, 2, m->version);
	pb_put_number(&one, 3, (uint64_t)atomic_load(&t->last_ms));
	pb_put_number(&one, 4, atomic_load(&t->inferences));
	pb_put_number(&one, 5, atomic_load(&t->executions));
	for (uint32_t i = 0; i < sizeof all / sizeof *all; i++)
		put_duration(&stats, i + 1, all[i]);
	pb_put_message(&one, 6, &stats);
	put_batches(&one, m);
	pb_put_message(ctx, 1, &one);
	return CLV_OK;
}

static void model_statistics(exchange *x)
{
	strbuf b = STRBUF_INIT;
	clv_status st = models_each(x->s, x->model[0] ? x->model : NULL, x->version, put_statistics, &b);
	answer_message(x, st, &b);
}

/* ModelIndex{name=1, version=2, state=3, reason=4} */
static clv_status put_index(void *ctx, const char *name, const char *version, bool ready, const char *reason)
{
	strbuf one = STRBUF_INIT;
	pb_put_text(&one, 1, name);
	pb_put_text(&one, 2, version);
	pb_put_text(&one, 3, ready ? "READY" : "UNAVAILABLE");
	pb_put_text(&one, 4, reason);
	pb_put_message(ctx, 1, &one);
	return CLV_OK;
}

static void repository_index(exchange *x)
{
	strbuf b = STRBUF_INIT;
	pb_reader r = pb_read(x->message, x->nmessage);
	pb_field f;
	bool there = true, ready = false;
	clv_status st = CLV_OK;
	while (st == CLV_OK && there) {
		st = pb_next(&r, &f, &there);
		if (st == CLV_OK && there && f.number == 2)
			ready = f.value != 0;
	}
	if (st == CLV_OK)
		st = models_index(x->s, ready, put_index, &b);
	answer_message(x, st, &b);
}

static void repository_load(exchange *x)
{
	strbuf b = STRBUF_INIT;
	answer_message(x, models_load(x->s, x->model), &b);
}

static void repository_unload(exchange *x)
{
	strbuf b = STRBUF_INIT;
	answer_message(x, models_unload(x->s, x->model), &b);
}

/* Files and settings of the request are not taken, as over REST. */
static clv_status check_load(const exchange *x)
{
	pb_reader r = pb_read(x->message, x->nmessage);
	pb_field f;
	bool there;
	for (;;) {
		TRY(pb_next(&r, &f, &there));
		if (!there)
			return CLV_OK;
		bool config = false;
		if (f.number == 3)
			TRY(has_parameter(&f, "config", &config));
		if (f.number == 3)
			TRY(has_parameter(&f, "file:", &config));
		if (config)
			return fail(CLV_E_UNSUPPORTED,
			            "files and configurations in a request are not taken: put the model into the repository");
	}
}

typedef enum named { NAMED_NOT, NAMED_MODEL, NAMED_CHANGE } named; /* how a message names a model */

static const struct method {
	const char *path;
	work_fn call;
	named named;
	bool desk;
} methods[] = {
	{"/inference.GRPCInferenceService/ServerLive", server_live},
	{"/inference.GRPCInferenceService/ServerReady", server_ready},
	{"/inference.GRPCInferenceService/ServerMetadata", server_metadata},
	{"/inference.GRPCInferenceService/ModelReady", model_ready, NAMED_MODEL},
	{"/inference.GRPCInferenceService/ModelMetadata", model_metadata, NAMED_MODEL},
	{"/inference.GRPCInferenceService/ModelConfig", model_config, NAMED_MODEL},
	{"/inference.GRPCInferenceService/ModelStatistics", model_statistics, NAMED_MODEL},
	{"/inference.GRPCInferenceService/ModelInfer", infer_work, NAMED_MODEL},
	{"/inference.GRPCInferenceService/ModelStreamInfer", infer_work, NAMED_MODEL},
	{"/inference.GRPCInferenceService/RepositoryIndex", repository_index},
	{"/inference.GRPCInferenceService/RepositoryModelLoad", repository_load, NAMED_CHANGE, true},
	{"/inference.GRPCInferenceService/RepositoryModelUnload", repository_unload, NAMED_CHANGE, true},
	{"/grpc.health.v1.Health/Check", health_check},
	{"/grpc.health.v1.Health/Watch", health_watch},
};

bool grpc_method_streams(const char *path)
{
	return path && strcmp(path, "/inference.GRPCInferenceService/ModelStreamInfer") == 0;
}

static clv_status name_model(exchange *x, named how)
{
	const char *none = "";
	if (how == NAMED_MODEL)
		return read_model(x);
	x->model = "";
	if (how == NAMED_NOT)
		return CLV_OK;
	TRY(read_texts(x, 2, &x->model, NONE, &none));
	return check_load(x);
}

/* A message of a stream has the token that its call came with. */
static bool grpc_may(exchange *x, named how)
{
	if (!x->outer && !tokens_know(x))
		return false;
	return tokens_allow(x, how == NAMED_NOT || !x->model[0] ? NULL : x->model, how == NAMED_CHANGE);
}

void grpc_call(exchange *x)
{
	const struct method *m = NULL;
	for (size_t i = 0; i < sizeof methods / sizeof *methods && !m; i++)
		if (x->head.path && strcmp(methods[i].path, x->head.path) == 0)
			m = &methods[i];
	if (!m) {
		answer_error(x, 501, "this server has no such method");
		return;
	}
	if (!answer_status(x, name_model(x, m->named)))
		return;
	bool open = m->call == server_live || m->call == server_ready || m->call == health_check || m->call == health_watch;
	if (!open && !grpc_may(x, m->named))
		return;
	x->work = m->call;
	if (m->call == infer_work)
		queue_add(x);
	else if (m->desk || !models_is_quick(x->model))
		queue_add_desk(x);
	else
		m->call(x);
}
