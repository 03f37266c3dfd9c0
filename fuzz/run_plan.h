/* For fuzz targets: any text as the plan of a file, which is opened and run as a stranger's. It gives a result, or an error;
 * nothing else. A target says in check_file() what else has to hold.
 *
 * The plan's tensors are made for it, with sizes that it asks for where they are small, and so are the inputs. Runs have
 * limits, so that what takes long is what they do not hold. */
#include <stdlib.h>
#include <string.h>

#include "file/artifact.h"
#include "file/narrow.h"
#include "texts.h"

enum {
	MOST_TEXT = 1 << 14,
	MOST_NODES = 64,
	RUN_DIMS = 8,
	MOST_INPUTS = 16,
	MOST_OUTPUTS = 16,
	ELEMENTS = 1 << 12,
	SIZE = 3
};

/* Numbers for every dtype: small integers first, that indices may be, and farther on bits of any kind. */
static _Alignas(64) uint8_t numbers[ELEMENTS * 16];

static void make_numbers(void)
{
	for (size_t i = 0; i < sizeof numbers; i++)
		numbers[i] = (uint8_t)(i / 64 % 4 == 3 ? i * 37 : i % 8 ? 0 : i / 8 % 3);
}

/* Bytes for tensors of a dtype. PLAIN_NUMBERS: floats around 1, flags that are 0 or 1, for targets that compare results; bits of
   any kind add up to something else in another order. */
static const void *numbers_of(uint8_t type)
{
#ifdef PLAIN_NUMBERS
	static _Alignas(64) double f64[ELEMENTS];
	static _Alignas(64) float f32[ELEMENTS];
	static _Alignas(64) uint16_t f16[ELEMENTS], bf16[ELEMENTS];
	static _Alignas(64) uint8_t flags[ELEMENTS];
	for (int i = 0; i < ELEMENTS; i++) {
		f64[i] = (i * 37 % 257 - 128) / 64.0;
		f32[i] = (float)f64[i];
		f16[i] = narrow_to_f16(f32[i]);
		bf16[i] = narrow_to_bf16(f32[i]);
		flags[i] = i % 3 == 0;
	}
	switch (type) {
	case DT_F64: return f64;
	case DT_F32: return f32;
	case DT_F16: return f16;
	case DT_BF16: return bf16;
	case DT_BOOL: return flags;
	default: break;
	}
#endif
	(void)type;
	return numbers;
}

/* ---- a file around the plan ---------------------------------------------------------------------------------------- */

typedef struct sizes {
	int64_t at[RUN_DIMS], strides[RUN_DIMS];
	uint32_t n;
} sizes;

/* False: no tensor of it will be made. */
static bool sizes_of(const plan *p, value_id v, sizes *out)
{
	const value *x = &p->values.at[v];
	int64_t step = 1;
	out->n = x->ndim;
	if (x->type != TYPE_TENSOR || x->ndim > RUN_DIMS || x->strides != NONE)
		return false;
	for (uint32_t d = x->ndim; d-- > 0;) {
		if (!expr_is_const(p, p->dims.at[x->shape + d], &out->at[d]) || out->at[d] < 0 || out->at[d] > ELEMENTS)
			return false;
		out->strides[d] = step;
		step *= out->at[d] ? out->at[d] : 1;
		if (step > ELEMENTS)
			return false;
	}
	return true;
}

static clv_status add_tensor(artifact *a, value_id v)
{
	artifact_plan *e = &a->plans.at[0];
	const value *x = &e->p->values.at[v];
	sizes s;
	uint32_t at;
	strbuf b = STRBUF_INIT;
	char *label;
	if (x->kind == VALUE_INPUT || x->kind == VALUE_RESULT || x->kind == VALUE_OBJECT || !sizes_of(e->p, v, &s))
		return CLV_OK;
	if (x->kind == VALUE_CONST)
		strbuf_printf(&b, "const.0.%u", v);
	else
		strbuf_puts(&b, plan_s(e->p, x->name));
	TRY(strbuf_take(&b, &label));
	payload_tensor t = {.label = label,
	                    .dtype = x->dtype,
	                    .requires_grad = x->flags & VALUE_TRAINABLE,
	                    .device = "cpu",
	                    .ndim = s.n,
	                    .sizes = s.at,
	                    .strides = s.strides,
	                    .data = numbers_of(x->dtype)};
	clv_status st = payload_add_tensor(a->tensors, &t, &at);
	mem_free(label);
	if (st == CLV_OK && x->kind == VALUE_CONST)
		st = vec_push(&e->consts, ((artifact_const){v, at}));
	return st;
}

static clv_status fill(artifact *a, plan *p /* taken */)
{
	TRY(artifact_add_plan(a, p, "fuzz"));
	for (value_id v = 0; v < p->values.n; v++)
		TRY(add_tensor(a, v));
	return CLV_OK;
}

static clv_status write_file(plan *p /* taken */, strbuf *out)
{
	artifact *a;
	clv_status st = artifact_new("all", &a);
	if (st != CLV_OK) {
		plan_free(p);
		return st;
	}
	st = fill(a, p);
	if (st == CLV_OK)
		st = artifact_append(a, out);
	artifact_free(a);
	return st;
}

/* ---- running it ---------------------------------------------------------------------------------------------------- */

static uint8_t dtype_of(const char *name)
{
	uint8_t d = 0;
	while (d < DT_COUNT && strcmp(dtype_name(d), name) != 0)
		d++;
	return d;
}

static clv_status make_input(const clv_runtime *r, uint32_t i, clv_tensor **out)
{
	clv_port port = {.size = sizeof port};
	int64_t at[RUN_DIMS], count = 1;
	TRY(clv_runtime_input(r, i, &port));
	if (port.ndim > RUN_DIMS)
		return fail(CLV_E_INVALID, "too many dimensions");
	for (uint32_t d = 0; d < port.ndim; d++) {
		char *end;
		at[d] = strtoll(port.dims[d], &end, 10);
		if (*end)
			at[d] = SIZE;
		if (at[d] < 0 || at[d] > ELEMENTS || (count *= at[d] ? at[d] : 1) > ELEMENTS)
			return fail(CLV_E_INVALID, "too large");
	}
	return clv_tensor_from_data(numbers_of(dtype_of(port.dtype)), port.dtype, port.ndim, at, out);
}

/* Every byte of a result can be read. */
static void look_at(const clv_tensor *t)
{
	int64_t n = clv_tensor_bytes(t);
	if (n < 0 || n > 1 << 20)
		return;
	void *copy = malloc((size_t)n + 1);
	if (copy)
		clv_tensor_copy_to(t, copy, (size_t)n);
	free(copy);
}

typedef struct results {
	clv_tensor *at[MOST_OUTPUTS];
	uint32_t n;
} results;

static void drop_results(results *r)
{
	for (uint32_t i = 0; i < r->n; i++)
		clv_tensor_free(r->at[i]);
	r->n = 0;
}

/* Two runs; the second finds what the first left in the runtime. Results of the last one. */
static clv_status run(const clv_runtime *r, results *out)
{
	clv_tensor *in[MOST_INPUTS] = {NULL};
	uint32_t nin = clv_runtime_input_count(r), nout = clv_runtime_output_count(r);
	clv_status st = nin > MOST_INPUTS || nout > MOST_OUTPUTS ? fail(CLV_E_INVALID, "too many values") : CLV_OK;
	for (uint32_t i = 0; i < nin && st == CLV_OK; i++)
		st = make_input(r, i, &in[i]);
	for (int k = 0; k < 2 && st == CLV_OK; k++) {
		drop_results(out);
		st = clv_runtime_run(r, (const clv_tensor *const *)in, nin, out->at, nout);
		out->n = st == CLV_OK ? nout : 0;
		for (uint32_t i = 0; i < out->n; i++)
			look_at(out->at[i]);
	}
	for (uint32_t i = 0; i < nin && i < MOST_INPUTS; i++)
		clv_tensor_free(in[i]);
	return st;
}

/* The caller drops the results. threads 0: as the engine likes. */
static clv_status open_and_run(const void *file, size_t n, const char *engine, int threads, results *out)
{
	uint8_t *bytes = aligned_copy(file, n);
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	clv_artifact *a = NULL;
	clv_runtime *r = NULL;
	*out = (results){.n = 0};
	o.engine = engine;
	o.sandbox = CLV_SANDBOX_OFF; /* the engine itself is looked at here */
	o.unproven = true;
	o.timeout = 1;
	o.max_memory = 1 << 24;
	o.threads = threads;
	clv_status st = clv_artifact_parse(bytes, n, NULL, &a);
	if (st == CLV_OK)
		st = clv_runtime_create(a, &o, &r);
	if (st == CLV_OK)
		st = run(r, out);
	clv_runtime_free(r);
	clv_artifact_free(a);
	free(bytes);
	return st;
}

static void check_file(const strbuf *file); /* the target's own */

/* A file around the plan; false: there is none. */
static bool file_of(const void *data, size_t n, strbuf *file)
{
	plan *p = NULL;
	make_numbers();
	if (n > MOST_TEXT || plan_parse(data, n, &p) != CLV_OK)
		return false;
	if (p->nodes.n <= MOST_NODES)
		return write_file(p, file) == CLV_OK;
	plan_free(p);
	return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	strbuf file = STRBUF_INIT;
	if (file_of(data, n, &file))
		check_file(&file);
	strbuf_free(&file);
	return 0;
}
