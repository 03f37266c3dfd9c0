/* The back end openvino: models in OpenVINO's own form (model.xml, model.bin), run through its C library.
 *
 * A model computes what its file says, with kernels that trust it, so it runs only with permission, as machine code does.
 * The compiler also writes run.json: the properties for compiling the model here, and the order of dimensions that each
 * input has in memory. Tensors are not copied: inputs are read
 * where they are, outputs are written into new tensors. Every run has a request of its own; requests are kept for the
 * next runs. */
#define _GNU_SOURCE /* memmem */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "bridge/bridge.h"
#include "exec/backend.h"
#include "exec/openvino_api.h"
#include "file/json.h"
#include "segment/support.h"

/* ---- properties and arguments -------------------------------------------------------------------------------------------- */

/* Properties that change how the CPU computes, and nothing else: a file may hold these. Others write files, load code. */
static const char *const properties[] = {"PERFORMANCE_HINT",
                                         "INFERENCE_PRECISION_HINT",
                                         "INFERENCE_NUM_THREADS",
                                         "EXECUTION_MODE_HINT",
                                         "NUM_STREAMS",
                                         "ENABLE_CPU_PINNING",
                                         "ENABLE_CPU_RESERVATION",
                                         "ENABLE_HYPER_THREADING",
                                         "SCHEDULING_CORE_TYPE",
                                         "CPU_DENORMALS_OPTIMIZATION",
                                         "CPU_SPARSE_WEIGHTS_DECOMPRESSION_RATE",
                                         "DYNAMIC_QUANTIZATION_GROUP_SIZE",
                                         "KV_CACHE_PRECISION"};
enum { PROPERTIES = sizeof properties / sizeof *properties };

static int property_find(const char *key, size_t n)
{
	for (int i = 0; i < PROPERTIES; i++)
		if (strlen(properties[i]) == n && !memcmp(properties[i], key, n))
			return i;
	return -1;
}

static bool is_known_text(const char *text, const char *const *known)
{
	while (*known && strcmp(*known, text) != 0)
		known++;
	return *known != NULL;
}

static bool is_count(const char *text)
{
	size_t n = strspn(text, "0123456789");
	return n > 0 && n <= 6 && !text[n] && text[0] != '0';
}

static clv_status check_property(const char *text)
{
	const char *equals = strchr(text, '=');
	if (equals && equals[1] && property_find(text, (size_t)(equals - text)) >= 0)
		return CLV_OK;
	strbuf b = STRBUF_INIT;
	strbuf_printf(&b, "--property=%.100s: it is --property=KEY=TEXT, where KEY is one of ", text);
	for (int i = 0; i < PROPERTIES; i++)
		strbuf_printf(&b, "%s%s", i ? ", " : "", properties[i]);
	return strbuf_fail(CLV_E_INVALID, &b);
}

static clv_status check_argument(const char *text)
{
	static const char *const hints[] = {"latency", "throughput", NULL};
	static const char *const precisions[] = {"f32", "bf16", "f16", NULL};
	if (!strncmp(text, "--property=", 11))
		return check_property(text + 11);
	if (!strncmp(text, "--hint=", 7) && is_known_text(text + 7, hints))
		return CLV_OK;
	if (!strncmp(text, "--precision=", 12) && is_known_text(text + 12, precisions))
		return CLV_OK;
	if (!strncmp(text, "--threads=", 10) && is_count(text + 10))
		return CLV_OK;
	return fail(CLV_E_INVALID,
	            "openvino does not take the argument \"%.100s\"; it takes --hint=latency|throughput, "
	            "--precision=f32|bf16|f16, --threads=N, --property=KEY=TEXT",
	            text);
}

static clv_status openvino_check_args(void *ctx, const char *const *args, uint32_t n)
{
	(void)ctx;
	for (uint32_t i = 0; i < n; i++)
		TRY(check_argument(args[i]));
	return CLV_OK;
}

/* ---- versions ------------------------------------------------------------------------------------------------------------ */

static clv_status openvino_version(void *ctx, strbuf *out)
{
	const ov_api *ov;
	(void)ctx;
	TRY(openvino_api(&ov));
	strbuf_printf(out, "openvino %s", ov->version);
	return CLV_OK;
}

/* "2026.4.0-…" as 202604; 0: it is no version. */
static long release_of(const char *text)
{
	char *end;
	long year = strtol(text, &end, 10);
	if (end == text || *end != '.' || year < 2000 || year > 9999)
		return 0;
	long number = strtol(end + 1, NULL, 10);
	return number < 0 || number > 99 ? 0 : year * 100 + number;
}

/* What is not here is no error: then the tape runs. */
static clv_status openvino_fits(void *ctx, const compiled *c, const code_spec *s, arena *a, const char **reason)
{
	const ov_api *ov = NULL;
	strbuf b = STRBUF_INIT;
	const char *needs = compiled_need_of(c, "openvino");
	bool on_cpu = strcmp(s->device, "cpu") == 0;
	clv_status st = on_cpu ? openvino_api(&ov) : CLV_OK;
	(void)ctx;
	*reason = NULL;
	if (st == CLV_E_NOMEM)
		return st;
	if (!on_cpu)
		strbuf_printf(&b, "it is compiled for the CPU, not for %s", s->device);
	else if (st != CLV_OK)
		strbuf_puts(&b, status_message());
	else if (needs && release_of(ov->version) < release_of(needs))
		strbuf_printf(&b, "it was compiled by OpenVINO %s, here is the older %s", needs, ov->version);
	return b.n || b.failed ? arena_take(a, &b, reason) : CLV_OK;
}

/* ---- loading ---------------------------------------------------------------------------------------------------------------- */

typedef VEC(uint32_t) dims_order;

typedef struct model {
	const ov_api *ov;
	ov_compiled_model *compiled;
	uint32_t ninputs, noutputs;
	dims_order *orders; /* per input: dimensions from the slowest to the fastest in memory; empty: row by row */
	pthread_mutex_t lock;
	VEC(ov_infer_request *) idle;
} model;

static void openvino_unload(void *ctx, void *code)
{
	model *m = code;
	(void)ctx;
	for (uint32_t i = 0; i < m->idle.n; i++)
		m->ov->ov_infer_request_free(m->idle.at[i]);
	vec_free(&m->idle);
	if (m->compiled)
		m->ov->ov_compiled_model_free(m->compiled);
	for (uint32_t i = 0; m->orders && i < m->ninputs; i++)
		vec_free(&m->orders[i]);
	mem_free(m->orders);
	pthread_mutex_destroy(&m->lock);
	mem_free(m);
}

static clv_status member(const compiled *c, const char *name, const compiled_member **out)
{
	*out = compiled_find(c, name);
	return *out ? CLV_OK : fail(CLV_E_PARSE, "a segment compiled by openvino has no %s", name);
}

static clv_status read_dims_order(const json_t *from, dims_order *out)
{
	bool seen[64] = {false};
	size_t n = json_array_size(from);
	if (json_is_null(from))
		return CLV_OK;
	if (!json_is_array(from) || n > sizeof seen)
		return fail(CLV_E_PARSE, "run.json: an order of dimensions is a list of at most %zu numbers", sizeof seen);
	for (size_t i = 0; i < n; i++) {
		const json_t *at = json_array_get(from, i);
		json_int_t d = json_is_integer(at) ? json_integer_value(at) : -1;
		if (d < 0 || (size_t)d >= n || seen[d])
			return fail(CLV_E_PARSE, "run.json: an order names every dimension once");
		seen[d] = true;
		TRY(vec_push(out, (uint32_t)d));
	}
	return CLV_OK;
}

static clv_status read_orders(model *m, const json_t *root)
{
	const json_t *orders;
	TRY(json_get_array(root, "orders", &orders));
	if (json_array_size(orders) != m->ninputs)
		return fail(CLV_E_PARSE, "run.json has orders of %zu inputs, the segment has %u inputs",
		            json_array_size(orders), m->ninputs);
	m->orders = mem_alloc(((size_t)m->ninputs + 1) * sizeof *m->orders);
	TRY_MEM(m->orders);
	for (uint32_t i = 0; i < m->ninputs; i++)
		TRY(read_dims_order(json_array_get(orders, i), &m->orders[i]));
	return CLV_OK;
}

/* Keys and texts by turns, as many as OpenVINO is told; it reads no more of them. */
typedef struct settings {
	const char *at[2 * (PROPERTIES + 1)];
	size_t n;
	char threads[16];
} settings;

static void set(settings *s, const char *key, const char *text)
{
	for (size_t i = 0; i < s->n; i += 2)
		if (!strcmp(s->at[i], key)) {
			s->at[i + 1] = text;
			return;
		}
	s->at[s->n++] = key;
	s->at[s->n++] = text;
}

/* Ours first: as many threads as torch has, so that both share the machine alike; threads of the caller are not tied to
   cores; and f32, because the default may be less. A number that the caller of this process gives counts most. */
static clv_status read_settings(const json_t *root, int threads, settings *s)
{
	const json_t *given = json_object_get(root, "properties");
	const char *key;
	json_t *text;
	if (!json_is_object(given))
		return fail(CLV_E_PARSE, "run.json has no properties");
	snprintf(s->threads, sizeof s->threads, "%d", threads ? threads : br_threads());
	set(s, "INFERENCE_NUM_THREADS", s->threads);
	set(s, "ENABLE_CPU_PINNING", "NO");
	set(s, "INFERENCE_PRECISION_HINT", "f32");
	json_object_foreach((json_t *)given, key, text)
	{
		int at = property_find(key, strlen(key));
		if (at < 0 || !json_is_string(text))
			return fail(CLV_E_PARSE, "run.json: \"%.60s\" is no property that a file may set", key);
		set(s, properties[at], json_string_value(text));
	}
	if (threads)
		set(s, "INFERENCE_NUM_THREADS", s->threads);
	return CLV_OK;
}

static clv_status compile_it(model *m, const ov_model *from, const settings *s)
{
	const char *const *a = s->at;
	/* Arguments beyond the count are not read. */
	_Static_assert(PROPERTIES + 1 == 14, "as many as are passed below");
	OV_TRY(m->ov, "compile the model",
	       m->ov->ov_core_compile_model(m->ov->core, from, "CPU", s->n, &m->compiled, a[0], a[1], a[2], a[3], a[4],
	                                    a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15], a[16],
	                                    a[17], a[18], a[19], a[20], a[21], a[22], a[23], a[24], a[25], a[26], a[27]));
	return CLV_OK;
}

/* Weights in memory of OpenVINO's own: the model keeps them as long as it needs them. */
static clv_status copy_weights(const ov_api *ov, const compiled_member *bin, ov_tensor **out)
{
	int64_t n = (int64_t)bin->n;
	void *data = NULL;
	OV_TRY(ov, "take the weights", ov->ov_tensor_create(ov->types[DT_U8], (ov_shape){1, &n}, out));
	if (bin->n && ov->ov_tensor_data(*out, &data) != 0) {
		ov->ov_tensor_free(*out);
		return openvino_fail(ov, "take the weights");
	}
	if (bin->n)
		memcpy(data, bin->data, bin->n);
	return CLV_OK;
}

static bool starts(const char *at, const char *end, const char *with)
{
	return (size_t)(end - at) >= strlen(with) && memcmp(at, with, strlen(with)) == 0;
}

/* OpenVINO finds out what a model is from its bytes, and also takes ONNX, whose weights may be any file that it names. What
   begins with an element "net" is its own form and nothing else. */
static clv_status check_ir(const compiled_member *xml)
{
	const char *at = xml->data, *end = at + xml->n;
	if (starts(at, end, "<?xml")) {
		while (at < end && *at != '>')
			at++;
		at += at < end;
		while (at < end && strchr(" \t\r\n", *at))
			at++;
	}
	if (!starts(at, end, "<net "))
		return fail(CLV_E_PARSE, "model.xml is not a model in OpenVINO's own form: it does not begin with <net");
	if (memchr(xml->data, '\0', xml->n) || memmem(xml->data, xml->n, "<!", 2))
		return fail(CLV_E_PARSE, "model.xml has parts that no compiler writes: NUL, <!");
	return CLV_OK;
}

static clv_status read_model(const ov_api *ov, const compiled *c, ov_model **out)
{
	const compiled_member *xml, *bin;
	ov_tensor *weights;
	TRY(member(c, "model.xml", &xml));
	TRY(member(c, "model.bin", &bin));
	TRY(check_ir(xml));
	TRY(copy_weights(ov, bin, &weights));
	int st = ov->ov_core_read_model_from_memory_buffer(ov->core, xml->data, xml->n, weights, out);
	clv_status ours = st == 0 ? CLV_OK : openvino_fail(ov, "read model.xml");
	ov->ov_tensor_free(weights);
	return ours;
}

static clv_status check_ports(const model *m)
{
	size_t in = 0, out = 0;
	OV_TRY(m->ov, "count its inputs", m->ov->ov_compiled_model_inputs_size(m->compiled, &in));
	OV_TRY(m->ov, "count its outputs", m->ov->ov_compiled_model_outputs_size(m->compiled, &out));
	if (in != m->ninputs || out != m->noutputs)
		return fail(CLV_E_PARSE, "model.xml has %zu inputs and %zu outputs, the segment has %u and %u", in, out,
		            m->ninputs, m->noutputs);
	return CLV_OK;
}

static clv_status load_into(model *m, const compiled *c, const json_t *root, int threads)
{
	settings s = {.n = 0};
	ov_model *from = NULL;
	TRY(read_orders(m, root));
	TRY(read_settings(root, threads, &s));
	TRY(read_model(m->ov, c, &from));
	clv_status st = compile_it(m, from, &s);
	m->ov->ov_model_free(from);
	return st == CLV_OK ? check_ports(m) : st;
}

static clv_status openvino_load(void *ctx, const compiled *c, const code_spec *s, void **code)
{
	const ov_api *ov;
	const compiled_member *run;
	json_t *root;
	TRY(openvino_api(&ov));
	TRY(member(c, "run.json", &run));
	TRY(json_read(run->data, run->n, "run.json", &root));
	model *m = mem_alloc(sizeof *m);
	clv_status st = m ? CLV_OK : fail_nomem();
	if (m) {
		*m = (model){.ov = ov, .ninputs = s->ninputs, .noutputs = s->noutputs};
		pthread_mutex_init(&m->lock, NULL);
		st = load_into(m, c, root, s->threads);
	}
	json_decref(root);
	if (st != CLV_OK && m)
		openvino_unload(ctx, m);
	else
		*code = m;
	return st;
}

/* ---- running ---------------------------------------------------------------------------------------------------------------- */

static clv_status request_take(model *m, ov_infer_request **out)
{
	*out = NULL;
	pthread_mutex_lock(&m->lock);
	if (m->idle.n)
		*out = m->idle.at[--m->idle.n];
	pthread_mutex_unlock(&m->lock);
	if (!*out)
		OV_TRY(m->ov, "begin a run", m->ov->ov_compiled_model_create_infer_request(m->compiled, out));
	return CLV_OK;
}

static void request_give(model *m, ov_infer_request *r)
{
	pthread_mutex_lock(&m->lock);
	clv_status st = vec_push(&m->idle, r);
	pthread_mutex_unlock(&m->lock);
	if (st != CLV_OK)
		m->ov->ov_infer_request_free(r);
}

static clv_status type_of(const ov_api *ov, uint8_t d, int *out)
{
	*out = d < DT_COUNT ? ov->types[d] : OV_NO_TYPE;
	return *out == OV_NO_TYPE ? fail(CLV_E_UNSUPPORTED, "OpenVINO has no tensors of this type") : CLV_OK;
}

/* OpenVINO takes no NULL where there are no elements. */
static char nothing[64];

/* Dense in the order that the model expects; sizes in that order. */
static clv_status sizes_in_memory(const model *m, uint32_t i, const br_meta *t, int64_t *sizes)
{
	uint32_t n = m->orders[i].n;
	int64_t step = 1;
	bool empty = false;
	if (n && n != t->ndim)
		return fail(CLV_E_INVALID, "input %u has %u dimensions, it was compiled for %u", i, t->ndim, n);
	for (uint32_t d = 0; d < t->ndim; d++)
		empty |= t->sizes[d] == 0;
	for (uint32_t k = t->ndim; k-- > 0;) {
		uint32_t d = n ? m->orders[i].at[k] : k;
		if (!empty && t->sizes[d] > 1 && t->strides[d] != step)
			return fail(CLV_E_INVALID, "input %u is laid out otherwise than it was compiled for", i);
		sizes[k] = t->sizes[d];
		step *= t->sizes[d] > 0 ? t->sizes[d] : 1;
	}
	return CLV_OK;
}

static clv_status give_input(const model *m, ov_infer_request *r, uint32_t i, const br_tensor *t)
{
	int64_t sizes[64];
	int type;
	br_meta meta;
	br_memory memory;
	ov_tensor *x = NULL;
	TRY(br_meta_get(t, &meta));
	TRY(br_memory_get(t, &memory));
	if (meta.ndim > 64)
		return fail(CLV_E_UNSUPPORTED, "input %u has more than 64 dimensions", i);
	TRY(type_of(m->ov, meta.dtype, &type));
	TRY(sizes_in_memory(m, i, &meta, sizes));
	void *data = memory.data ? (void *)(uintptr_t)memory.data : nothing;
	OV_TRY(m->ov, "take an input", m->ov->ov_tensor_create_from_host_ptr(type, (ov_shape){meta.ndim, sizes}, data, &x));
	int st = m->ov->ov_infer_request_set_input_tensor_by_index(r, i, x);
	m->ov->ov_tensor_free(x);
	return st == 0 ? CLV_OK : openvino_fail(m->ov, "take an input");
}

/* A new tensor, row by row. */
static clv_status make_output(const tensor_form *want, br_tensor **out, void **data)
{
	int64_t strides[64], elements = 1, bytes;
	br_tensor *memory;
	if (want->ndim > 64)
		return fail(CLV_E_UNSUPPORTED, "an output has more than 64 dimensions");
	bool over = false, none = false;
	for (uint32_t d = want->ndim; d-- > 0;) {
		strides[d] = elements;
		none |= want->sizes[d] == 0;
		over |= __builtin_mul_overflow(elements, want->sizes[d] > 0 ? want->sizes[d] : 1, &elements);
	}
	over |= __builtin_mul_overflow(none ? 0 : elements, (int64_t)dtype_bits(want->dtype) / 8, &bytes);
	if (over)
		return fail(CLV_E_OVERFLOW, "an output has more than 2^63 bytes");
	TRY(br_bytes_new((size_t)bytes, &memory, data));
	clv_status st = br_view_bytes(
		memory, 0, &(tensor_form){.dtype = want->dtype, .ndim = want->ndim, .sizes = want->sizes, .strides = strides},
		out);
	br_unref(memory);
	return st;
}

static clv_status give_output(const model *m, ov_infer_request *r, uint32_t i, const tensor_form *want, br_tensor **out)
{
	int type;
	void *data = NULL;
	ov_tensor *x = NULL;
	TRY(type_of(m->ov, want->dtype, &type));
	TRY(make_output(want, out, &data));
	ov_shape shape = {want->ndim, (int64_t *)(uintptr_t)want->sizes};
	OV_TRY(m->ov, "give an output", m->ov->ov_tensor_create_from_host_ptr(type, shape, data ? data : nothing, &x));
	int st = m->ov->ov_infer_request_set_output_tensor_by_index(r, i, x);
	m->ov->ov_tensor_free(x);
	return st == 0 ? CLV_OK : openvino_fail(m->ov, "give an output");
}

/* Status of OpenVINO, whose shapes have a dimension at least: a scalar is known by its one element. */
static int has_sizes(const ov_api *ov, const ov_tensor *x, const tensor_form *want, bool *same)
{
	ov_shape shape = {0, NULL};
	size_t elements = 0;
	int st = want->ndim ? ov->ov_tensor_get_shape(x, &shape) : ov->ov_tensor_get_size(x, &elements);
	if (st != 0)
		return st;
	*same = want->ndim ? shape.rank == want->ndim : elements == 1;
	for (uint32_t d = 0; d < want->ndim && *same; d++)
		*same = shape.dims[d] == want->sizes[d];
	if (want->ndim)
		ov->ov_shape_free(&shape);
	return st;
}

/* The model's output is of the size that the plan says; else what we gave was not all written. */
static clv_status check_output(const model *m, ov_infer_request *r, uint32_t i, const tensor_form *want)
{
	ov_tensor *x = NULL;
	bool same = false;
	OV_TRY(m->ov, "give an output", m->ov->ov_infer_request_get_output_tensor_by_index(r, i, &x));
	int st = has_sizes(m->ov, x, want, &same);
	m->ov->ov_tensor_free(x);
	if (st != 0)
		return openvino_fail(m->ov, "give an output");
	return same ? CLV_OK
	            : fail(CLV_E_UNSUPPORTED, "output %u of OpenVINO's model has other sizes than the plan says", i);
}

static clv_status run_request(const model *m, ov_infer_request *r, const code_run *x)
{
	for (uint32_t i = 0; i < m->ninputs; i++)
		TRY(give_input(m, r, i, x->inputs[i]));
	for (uint32_t i = 0; i < m->noutputs; i++)
		TRY(give_output(m, r, i, &x->wanted[i], &x->outputs[i]));
	/* Not ov_infer_request_infer: with one thread it says that all is well when the run failed. */
	OV_TRY(m->ov, "run the model", m->ov->ov_infer_request_start_async(r));
	OV_TRY(m->ov, "run the model", m->ov->ov_infer_request_wait(r));
	for (uint32_t i = 0; i < m->noutputs; i++)
		TRY(check_output(m, r, i, &x->wanted[i]));
	return CLV_OK;
}

static clv_status openvino_run(void *ctx, void *code, const code_run *x)
{
	model *m = code;
	ov_infer_request *r;
	(void)ctx;
	memset(x->outputs, 0, m->noutputs * sizeof *x->outputs);
	TRY(request_take(m, &r));
	clv_status st = run_request(m, r, x);
	if (st == CLV_OK) {
		request_give(m, r);
		return st;
	}
	m->ov->ov_infer_request_free(r); /* it may be in any state */
	for (uint32_t i = 0; i < m->noutputs; i++) {
		br_unref(x->outputs[i]);
		x->outputs[i] = NULL;
	}
	return st;
}

static clv_status openvino_support(void *ctx, const plan *p, const support_spec *s, const char **no, arena *a)
{
	(void)ctx;
	return support_of("openvino", p, s, no, a);
}

const backend backend_openvino = {.name = "openvino",
                                  .support = openvino_support,
                                  .check_args = openvino_check_args,
                                  .version = openvino_version,
                                  .fits = openvino_fits,
                                  .load = openvino_load,
                                  .run = openvino_run,
                                  .unload = openvino_unload};
