/* Runs a model on what a request has: inputs by name, or a boundary. */
#include <string.h>

#include "base/clock.h"
#include "serve/batch.h"
#include "serve/oip.h"

void infer_deadline(exchange *x, int64_t microseconds)
{
	int64_t ns;
	if (microseconds <= 0 || __builtin_mul_overflow(microseconds, 1000, &ns) ||
	    __builtin_add_overflow(ns, x->at.begun, &ns))
		return;
	if (!x->deadline || ns < x->deadline)
		x->deadline = ns;
}

/* ---- inputs ---------------------------------------------------------------------------------------------------------------- */

static clv_status check_type(const exchange *x, const infer_input *in, const clv_port *p)
{
	if (strcmp(dtype_name(in->dtype), p->dtype) == 0)
		return CLV_OK;
	const char *want = oip_datatype(p->dtype);
	return fail(CLV_E_INPUT, "inference input '%s' data-type is '%s', but model '%s' expects '%s'", in->name,
	            oip_datatype(dtype_name(in->dtype)), x->model, want ? want : p->dtype);
}

clv_status infer_count(const exchange *x, size_t inputs, size_t outputs)
{
	enum { MOST = 4096 };
	size_t n =
		x->served ? clv_runtime_input_count(x->served->runtime) : inputs; /* the readers are fuzzed without a model */
	if (inputs != n)
		return fail(CLV_E_INPUT, "expected %zu inputs but got %zu inputs for model '%s'", n, inputs, x->model);
	return outputs <= MOST ? CLV_OK : fail(CLV_E_INPUT, "the request asks for more than %d outputs", MOST);
}

/* Borrowed, in the order of the model. */
static clv_status order_inputs(exchange *x, clv_tensor **out)
{
	const infer *c = &x->call;
	uint32_t n = clv_runtime_input_count(x->served->runtime);
	for (uint32_t k = 0; k < n; k++) {
		const infer_input *in = &c->inputs.at[k];
		uint32_t i = 0;
		clv_port p = {0};
		for (; i < n; i++) {
			TRY(served_port(x->served, false, i, &p));
			if (strcmp(p.name, in->name) == 0)
				break;
		}
		if (i == n)
			return fail(CLV_E_INPUT, "unexpected inference input '%s' for model '%s'", in->name, x->model);
		if (out[i])
			return fail(CLV_E_INPUT, "input '%s' already exists in request", in->name);
		TRY(check_type(x, in, &p));
		out[i] = in->tensor;
	}
	return CLV_OK;
}

clv_status infer_to_devices(const served *m, clv_tensor *const *from, clv_tensor **to, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		clv_port p;
		TRY(served_port(m, false, i, &p));
		TRY(clv_tensor_to_device(from[i], p.device, &to[i]));
	}
	return CLV_OK;
}

/* ---- results --------------------------------------------------------------------------------------------------------------- */

clv_status infer_settle(const served *m, clv_tensor **t)
{
	clv_tensor *here = NULL, *rows = NULL;
	TRY(clv_tensor_to_device(*t, "cpu", &here));
	bool dense = tensor_is_plain(here) && tensor_is_contiguous(&here->m);
	if (dense && !m->runtime->stateful) {
		clv_tensor_free(*t);
		*t = here;
		return CLV_OK;
	}
	tensor_form form = {.dtype = here->m.dtype, .ndim = here->m.ndim, .sizes = here->m.sizes};
	int64_t bytes = clv_tensor_bytes(here);
	clv_status st = bytes < 0 || dtype_quantised((dtype)here->m.dtype)
	                    ? fail(CLV_E_UNSUPPORTED, "an output has no plain elements")
	                    : tensor_new(&form, &rows);
	if (st == CLV_OK)
		st = clv_tensor_copy_to(here, rows->data, (size_t)bytes);
	clv_tensor_free(here);
	if (st != CLV_OK) {
		clv_tensor_free(rows);
		return st;
	}
	clv_tensor_free(*t);
	*t = rows;
	return CLV_OK;
}

static clv_status take_crossing(infer *c)
{
	c->nresults = clv_boundary_count(c->crossing);
	c->results = mem_alloc((c->nresults + 1) * sizeof *c->results);
	TRY_MEM(c->results);
	for (uint32_t i = 0; i < c->nresults; i++)
		c->results[i] = tensor_ref(clv_boundary_tensor(c->crossing, i));
	return CLV_OK;
}

/* ---- runs -------------------------------------------------------------------------------------------------------------------- */

static clv_status run_on(exchange *x, clv_tensor *const *inputs, uint32_t n)
{
	const served *m = x->served;
	infer *c = &x->call;
	if (m->kind == SERVES_SUFFIX && !c->boundary)
		TRY(runtime_boundary_of(m->runtime, inputs, n, &c->boundary));
	if (m->kind == SERVES_PREFIX) {
		TRY(clv_runtime_run_prefix(m->runtime, (const clv_tensor *const *)inputs, n, &c->crossing));
		return take_crossing(c);
	}
	uint32_t noutputs = clv_runtime_most_outputs(m->runtime);
	c->results = mem_alloc((noutputs + 1) * sizeof *c->results);
	TRY_MEM(c->results);
	clv_status st = c->boundary ? clv_runtime_run_suffix_any(m->runtime, c->boundary, c->results, noutputs, &c->plan)
	                            : clv_runtime_run_any(m->runtime, (const clv_tensor *const *)inputs, n, c->results,
	                                                  noutputs, &c->plan);
	c->nresults = st == CLV_OK ? clv_runtime_plan_output_count(m->runtime, c->plan) : 0;
	return st;
}

static clv_status run_inputs(exchange *x)
{
	uint32_t n = clv_runtime_input_count(x->served->runtime);
	clv_tensor **moved = mem_alloc((n + 1) * sizeof *moved);
	clv_status st = moved ? infer_to_devices(x->served, x->inputs, moved, n) : fail_nomem();
	if (st == CLV_OK)
		st = run_on(x, moved, n);
	for (uint32_t i = 0; moved && i < n; i++)
		clv_tensor_free(moved[i]);
	mem_free(moved);
	return st;
}

static clv_status check_outputs(exchange *x)
{
	bool *asked = arena_alloc(&x->arena, x->call.nresults + 1);
	TRY_MEM(asked);
	for (uint32_t i = 0; i < x->call.outputs.n; i++) {
		const char *name = x->call.outputs.at[i].name;
		uint32_t result = infer_find_result(x, name);
		if (result == NONE)
			return fail(CLV_E_INPUT, "unexpected inference output '%s' for model '%s'", name, x->model);
		if (asked[result]) /* a short request does not become an answer of any length */
			return fail(CLV_E_INPUT, "output '%s' already exists in request", name);
		asked[result] = true;
	}
	return CLV_OK;
}

static clv_status infer_run(exchange *x)
{
	TRY(x->call.boundary ? run_on(x, NULL, 0) : run_inputs(x));
	for (uint32_t i = 0; i < x->call.nresults; i++)
		TRY(infer_settle(x->served, &x->call.results[i]));
	return CLV_OK;
}

static clv_status room_for(void *ctx, size_t bytes)
{
	return exchange_hold(ctx, bytes);
}

/* Of another split or other weights: what is wrong is not the request as such. */
clv_status infer_boundary(exchange *x, const void *at, size_t n)
{
	boundary_gate gate = {.room = room_for, .ctx = x, .memory = x->body.memory};
	if (x->served->kind != SERVES_SUFFIX)
		return fail(CLV_E_INPUT, "model '%s' is no suffix: it takes its inputs, not a boundary", x->model);
	size_t memory = json_memory_most(st_header_bytes(at, n));
	TRY(exchange_hold(x, memory));
	clv_status st = runtime_read_boundary(x->served->runtime, at, n, &gate, &x->call.boundary);
	exchange_sent(x, memory);
	if (gate.elsewhere)
		answer_error(x, 409, "%s", status_message());
	return st;
}

/* ---- the work of a worker ------------------------------------------------------------------------------------------------------ */

static void count(duration *d, int64_t ns)
{
	atomic_fetch_add(&d->count, 1);
	atomic_fetch_add(&d->ns, (uint64_t)(ns > 0 ? ns : 0));
}

clv_status tally_open(served *m)
{
	const batching *b = &m->batching;
	m->nbatches = b->on ? batch_largest(b) : 1;
	m->batches = mem_alloc(m->nbatches * sizeof *m->batches);
	return m->batches ? CLV_OK : fail_nomem();
}

static void count_run(served *m, const moments *at, int64_t now, uint32_t rows)
{
	if (!rows || rows > m->nbatches)
		return;
	batch_tally *b = &m->batches[rows - 1];
	count(&b->input, at->ready - at->taken);
	count(&b->infer, at->ran - at->ready);
	count(&b->output, now - at->ran);
}

/* As Triton counts: rows, where the model has them. */
static uint64_t inferences_of(const exchange *x)
{
	return oip_batch_size(x->served) && x->inputs && x->inputs[0]->m.ndim ? (uint64_t)x->inputs[0]->m.sizes[0] : 1;
}

/* batch: requests of the run; the run itself is counted by the first of them. */
static void tally_up(const exchange *x, bool good, uint32_t batch)
{
	tally *t = &x->served->tally;
	const moments *at = &x->at;
	int64_t now = clock_nanoseconds();
	count(good ? &t->success : &t->failure, now - at->begun);
	histogram_add(&t->bytes_in, UNIT_BYTES, (int64_t)x->body.n);
	histogram_add(&t->bytes_out, UNIT_BYTES, (int64_t)x->out.n);
	histogram_add(&t->request_time, UNIT_SECONDS, now - at->begun);
	histogram_add(&t->queue_time, UNIT_SECONDS, at->taken - at->queued);
	if (!good)
		return;
	count(&t->queue, at->taken - at->queued);
	count(&t->compute_input, at->ready - at->taken);
	count(&t->compute_infer, at->ran - at->ready);
	count(&t->compute_output, now - at->ran);
	histogram_add(&t->compute_time, UNIT_SECONDS, at->ran - at->ready);
	uint64_t n = inferences_of(x);
	atomic_fetch_add(&t->inferences, n);
	if (batch) {
		count_run(x->served, at, now, x->run_rows ? x->run_rows : (uint32_t)n);
		atomic_fetch_add(&t->executions, 1);
		histogram_add(&t->batch_size, UNIT_ROWS, batch);
	}
	atomic_store(&t->last_ms, wall_milliseconds());
}

static bool find_model(exchange *x)
{
	if (answer_status(x, models_find(x->s, x->model, x->version, &x->served)) && x->served->kind == SERVES_TRAINING)
		answer_error(x, 400, "model '%s' trains: send its steps to sessions (POST …/sessions, POST …/train)", x->model);
	return !x->out.status;
}

/* The tensors of a boundary in the order of the model: for a batch, which needs no other of it. */
static clv_status order_boundary(exchange *x, clv_tensor **out)
{
	const clv_boundary *b = x->call.boundary;
	for (uint32_t i = 0; i < clv_runtime_input_count(x->served->runtime); i++) {
		clv_port p;
		uint32_t k = 0;
		TRY(served_port(x->served, false, i, &p));
		while (k < clv_boundary_count(b) && strcmp(clv_boundary_label(b, k), p.name) != 0)
			k++;
		if (k == clv_boundary_count(b))
			return fail(CLV_E_INPUT, "the boundary lacks %s", p.name);
		out[i] = (clv_tensor *)clv_boundary_tensor(b, k);
	}
	return CLV_OK;
}

static clv_status prepare(exchange *x)
{
	TRY(oip_read(x));
	if (x->deadline && clock_nanoseconds() > x->deadline) {
		answer_error(x, 504, "the time of the request was over before it was its turn");
		return CLV_OK;
	}
	uint32_t n = clv_runtime_input_count(x->served->runtime);
	clv_tensor **inputs = arena_alloc(&x->arena, (n + 1) * sizeof *inputs);
	TRY_MEM(inputs);
	if (x->call.boundary && !x->served->batching.on)
		return CLV_OK;
	TRY(x->call.boundary ? order_boundary(x, inputs) : order_inputs(x, inputs));
	x->inputs = inputs;
	return CLV_OK;
}

void infer_prepare(exchange *x)
{
	int64_t start = clock_nanoseconds();
	x->at.taken = start;
	if (!x->served && !find_model(x))
		return;
	clv_status st = prepare(x);
	x->prepared = true;
	x->at.ready = x->at.ran = clock_nanoseconds();
	x->read_ns = x->at.ready - start;
	answer_status(x, st);
	if (x->out.status)
		tally_up(x, false, 0);
}

void infer_finish(exchange *x, clv_status ran, uint32_t batch)
{
	if (answer_run(x, ran == CLV_OK ? check_outputs(x) : ran))
		oip_write(x);
	tally_up(x, x->out.status == 200, batch);
}

void infer_work(exchange *x)
{
	if (!x->prepared)
		infer_prepare(x);
	if (x->out.status)
		return;
	x->at.ready = clock_nanoseconds();
	clv_status st = infer_run(x);
	x->at.ran = clock_nanoseconds();
	infer_finish(x, st, 1);
}
