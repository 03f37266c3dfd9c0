/* Measures the blocks of a plan in one walk over it.
 *
 * At each block the values that it reads are at hand: the block runs on them several times, detached from what came before
 * (leaves that require grad as the values did), then once for real, which makes the values of the blocks after it. A value
 * is released after its last use, so the walk needs no more memory than a forward.
 *
 * Tensors that a block writes in place are copied for every measured run, outside of the measured time. */
#include "exec/profile_blocks.h"

#include <string.h>

#include "base/arena.h"
#include "exec/tolerance.h"
#include "pipe/estimate.h"

/* The walk. */
typedef struct lab {
	arena arena;
	const plan *p;
	const profile_spec *s;
	br_tensor **values; /* per value: what is there now */
	bool *grad;         /* per value: gradients flow through it */
	int64_t *symbols;
	liveness live;
	const char *device; /* borrowed from the plan */
	br_clock *clock;
	double *forward, *backward; /* samples */
} lab;

/* A block on it. */
typedef struct bench {
	lab *l;
	uint32_t block;
	clv_program *g;
	arena arena;
	bool *written;                              /* per value that owns its memory */
	br_tensor **inputs, **externals, **outputs; /* of one run */
} bench;

static bool wants_grad(const lab *l, value_id v)
{
	const value *x = &l->p->values.at[v];
	if (x->kind == VALUE_INPUT)
		return (x->flags & VALUE_GRAD) != 0; /* what a run checks */
	if (x->kind == VALUE_RESULT)
		return l->s->training && l->grad[v];
	return br_requires_grad(l->values[v]);
}

/* Copies of those among ids that the block writes; the rest on the memory that is there. leaf: for br_copies. */
static clv_status fill_run(bench *b, const value_id *ids, uint32_t n, bool leaf, br_tensor **out)
{
	lab *l = b->l;
	arena scratch = {0};
	br_tensor **from = arena_array(&scratch, n, sizeof *from), **copies = arena_array(&scratch, n, sizeof *copies);
	uint32_t *place = arena_ids(&scratch, n), count = 0;
	bool *grad = arena_alloc(&scratch, n);
	clv_status st = arena_status(&scratch);
	for (uint32_t i = 0; st == CLV_OK && i < n; i++) {
		value_id v = ids[i];
		if (!l->values[v])
			continue;
		if (!b->written[alias_root(l->p, v)]) {
			st = br_leaf(l->values[v], wants_grad(l, v), &out[i]);
			continue;
		}
		place[count] = i;
		grad[count] = wants_grad(l, v);
		from[count++] = l->values[v];
	}
	if (st == CLV_OK)
		st = br_copies(from, count, grad, leaf, copies);
	for (uint32_t i = 0; i < count; i++)
		out[place[i]] = copies[i]; /* also on failure: then they are released with the rest */
	arena_free(&scratch);
	return st;
}

static void clear_run(bench *b)
{
	release_all(b->outputs, b->g->outputs.n);
	release_all(b->inputs, b->g->v.inputs.n);
	release_all(b->externals, b->g->v.externals.n);
}

static clv_status set_up(bench *b)
{
	const lab *l = b->l;
	if (l->s->tick)
		TRY(l->s->tick(l->s->ctx, b->block));
	TRY(fill_run(b, b->g->v.inputs.at, b->g->v.inputs.n, false, b->inputs));
	return fill_run(b, b->g->v.externals.at, b->g->v.externals.n, true, b->externals);
}

static clv_status run_forward(const bench *b, br_tensor *const *inputs, br_tensor *const *externals, bool grad)
{
	const lab *l = b->l;
	run_spec r = {.inputs = inputs,
	              .externals = externals,
	              .outputs = b->outputs,
	              .symbols = l->symbols,
	              .grad = grad,
	              .python = l->s->python,
	              .python_ctx = l->s->python_ctx};
	return program_run(b->g, &r);
}

static clv_status time_backward(const bench *b, double *ms)
{
	br_backward *back = NULL;
	*ms = 0;
	TRY(br_backward_new(b->outputs, b->g->outputs.n, &back));
	if (!back)
		return CLV_OK;
	clv_status st = br_clock_start(b->l->clock);
	if (st == CLV_OK)
		st = br_backward_run(back);
	if (st == CLV_OK)
		st = br_clock_stop(b->l->clock, ms);
	br_backward_free(back);
	return st;
}

static clv_status time_once(bench *b, double *forward, double *backward)
{
	*backward = 0;
	TRY(br_clock_start(b->l->clock));
	TRY(run_forward(b, b->inputs, b->externals, b->l->s->training));
	TRY(br_clock_stop(b->l->clock, forward));
	return b->l->s->training ? time_backward(b, backward) : CLV_OK;
}

static clv_status time_block(bench *b, block_profile *out)
{
	lab *l = b->l;
	for (uint32_t k = 0; k < l->s->warmup + l->s->iterations; k++) {
		uint32_t at = k < l->s->warmup ? 0 : k - l->s->warmup;
		clv_status st = set_up(b);
		if (st == CLV_OK)
			st = time_once(b, &l->forward[at], &l->backward[at]);
		clear_run(b);
		TRY(st);
	}
	out->forward = spread_of(l->forward, l->s->iterations);
	out->backward = spread_of(l->backward, l->s->iterations);
	return CLV_OK;
}

static double megabytes(int64_t bytes)
{
	return (double)(bytes > 0 ? bytes : 0) / 1e6;
}

static int64_t tensor_bytes(const br_tensor *t)
{
	br_meta m;
	if (!t || br_meta_get(t, &m) != CLV_OK || !m.strided || m.dtype >= DT_COUNT)
		return 0;
	int64_t n = dtype_bits((dtype)m.dtype) / 8;
	for (uint32_t d = 0; d < m.ndim; d++)
		n *= m.sizes[d];
	return n;
}

static bool passes_by(const view *v, value_id id)
{
	for (uint32_t i = 0; i < v->passthrough.n; i++)
		if (v->passthrough.at[i] == id)
			return true;
	return false;
}

static void size_inputs(const bench *b, block_profile *out)
{
	const view *v = &b->g->v;
	int64_t inputs = 0, state = 0;
	for (uint32_t i = 0; i < v->inputs.n; i++) {
		value_id id = v->inputs.at[i];
		bool used = b->l->live.last[id] != NONE && !passes_by(v, id); /* the first block gets all inputs of the plan */
		inputs += used ? tensor_bytes(b->l->values[id]) : 0;
	}
	for (uint32_t i = 0; i < v->externals.n; i++) {
		uint8_t kind = b->l->p->values.at[v->externals.at[i]].kind;
		if (kind == VALUE_PARAM || kind == VALUE_BUFFER || kind == VALUE_ATTR)
			state += tensor_bytes(b->l->values[v->externals.at[i]]);
	}
	out->input_size = megabytes(inputs);
	out->size = megabytes(state);
}

/* Results of the block itself, each once. */
static void size_outputs(const bench *b, block_profile *out)
{
	const clv_program *g = b->g;
	int64_t bytes = 0;
	for (uint32_t i = 0; i < g->outputs.n; i++) {
		const value *x = &g->p->values.at[g->outputs.at[i]];
		bool here = x->kind == VALUE_RESULT && x->def >= g->v.nodes.at[0];
		for (uint32_t k = 0; here && k < i; k++)
			here = g->outputs.at[k] != g->outputs.at[i];
		bytes += here ? tensor_bytes(b->outputs[i]) : 0;
	}
	out->output_size = megabytes(bytes);
}

static clv_status weigh_backward(const bench *b, br_meter *m, block_profile *out)
{
	br_backward *back = NULL;
	TRY(br_backward_new(b->outputs, b->g->outputs.n, &back));
	int64_t before = br_meter_live(m);
	(void)br_meter_peak(m);
	clv_status st = back ? br_backward_run(back) : CLV_OK;
	if (st == CLV_OK && back)
		out->backward_memory = megabytes(br_meter_peak(m) - before);
	br_backward_free(back);
	return st;
}

static clv_status weigh_run(bench *b, br_meter *m, block_profile *out)
{
	TRY(run_forward(b, b->inputs, b->externals, b->l->s->training));
	out->forward_memory = megabytes(br_meter_peak(m));
	out->held = megabytes(br_meter_live(m));
	size_outputs(b, out);
	return b->l->s->training ? weigh_backward(b, m, out) : CLV_OK;
}

/* After the timed runs, so that what is allocated once (work space of libraries) is there. */
static clv_status weigh_block(bench *b, block_profile *out)
{
	br_meter *m = NULL;
	clv_status st = set_up(b);
	if (st == CLV_OK)
		st = br_meter_start(strcmp(b->l->device, "cpu") != 0, &m);
	if (st == CLV_OK)
		st = weigh_run(b, m, out);
	release_all(b->outputs, b->g->outputs.n); /* while they are metered: what comes must be seen to go */
	br_meter_stop(m);
	clear_run(b);
	return st;
}

static void bench_free(bench *b)
{
	program_free(b->g);
	mem_free(b->written);
	arena_free(&b->arena);
}

static clv_status bench_init(bench *b, node_id first, node_id end)
{
	const lab *l = b->l;
	program_spec spec = {
		.first = first, .end = end, .writes_through = true, .objects = l->s->objects, .nobjects = l->s->nobjects};
	TRY(program_new(l->p, &spec, &b->g));
	TRY(view_written(&b->g->v, &b->written));
	b->inputs = arena_array(&b->arena, b->g->v.inputs.n, sizeof *b->inputs);
	b->externals = arena_array(&b->arena, b->g->v.externals.n, sizeof *b->externals);
	b->outputs = arena_array(&b->arena, b->g->outputs.n, sizeof *b->outputs);
	return arena_status(&b->arena);
}

/* Run for real, on the values that are there and without gradients: its results are there after it. */
static clv_status advance(bench *b)
{
	lab *l = b->l;
	const view *v = &b->g->v;
	br_modes now, off;
	for (uint32_t i = 0; i < v->inputs.n; i++)
		b->inputs[i] = br_ref(l->values[v->inputs.at[i]]);
	for (uint32_t i = 0; i < v->externals.n; i++)
		b->externals[i] = br_ref(l->values[v->externals.at[i]]);
	br_modes_get(&now);
	off = now;
	off.grad = false;
	br_modes_set(&off, 0);
	clv_status st = run_forward(b, b->inputs, b->externals, false);
	br_modes_set(&now, 0);
	return st;
}

static void keep_results(bench *b, node_id end)
{
	lab *l = b->l;
	for (uint32_t i = 0; i < b->g->outputs.n; i++) {
		value_id v = b->g->outputs.at[i];
		if (l->p->values.at[v].kind != VALUE_RESULT || l->values[v])
			continue;
		l->values[v] = b->outputs[i];
		b->outputs[i] = NULL;
	}
	for (value_id v = 0; v < l->p->values.n; v++) {
		const value *x = &l->p->values.at[v];
		bool gone = l->live.last[v] == NONE || l->live.last[v] < end;
		if (gone && l->values[v] && (x->kind == VALUE_RESULT || x->kind == VALUE_INPUT)) {
			br_unref(l->values[v]);
			l->values[v] = NULL;
		}
	}
}

static clv_status measure_block(bench *b, block_profile *out)
{
	*out = (block_profile){0};
	TRY(time_block(b, out));
	TRY(weigh_block(b, out));
	size_inputs(b, out);
	return CLV_OK;
}

static clv_status profile_range(lab *l, uint32_t block, node_id first, node_id end, block_profile *out)
{
	bench b = {.l = l, .block = block};
	clv_status st = bench_init(&b, first, end);
	if (st == CLV_OK)
		st = measure_block(&b, out);
	if (st == CLV_OK && block != PROFILE_WHOLE) {
		st = advance(&b);
		if (st == CLV_OK)
			keep_results(&b, end);
	}
	if (b.inputs && b.externals && b.outputs)
		clear_run(&b);
	bench_free(&b);
	if (st == CLV_OK)
		return CLV_OK;
	return block == PROFILE_WHOLE ? fail_more(st, "all blocks at once")
	                              : fail_more(st, "block %u, nodes %u to %u", block, first, end - 1);
}

static const char *device_of_plan(const plan *p)
{
	for (value_id v = 0; v < p->values.n; v++)
		if (p->values.at[v].type == TYPE_TENSOR && p->values.at[v].kind != VALUE_OBJECT &&
		    strcmp(plan_s(p, p->values.at[v].device), "cpu") != 0)
			return plan_s(p, p->values.at[v].device);
	return "cpu";
}

/* Nothing of the caller's may be written. Operators say what they write, but batch_norm and its kin write their statistics
   in silence: nobody can tell of what is no parameter. */
static bool may_be_written(const plan *p, value_id v, const bool *written)
{
	return written[alias_root(p, v)] || p->values.at[v].kind != VALUE_PARAM;
}

/* What may be written is a copy from here on. */
static clv_status load_values(lab *l)
{
	const plan *p = l->p;
	arena scratch = {0};
	size_t values = p->values.n;
	bool *written = NULL, *grad = arena_alloc(&scratch, values);
	br_tensor **from = arena_array(&scratch, values, sizeof *from);
	br_tensor **copies = arena_array(&scratch, values, sizeof *copies);
	value_id *ids = arena_ids(&scratch, values);
	uint32_t n = 0;
	view all = {0};
	clv_status st = scratch.failed ? fail_nomem() : view_range(p, 0, p->nodes.n, &all);
	if (st == CLV_OK)
		st = view_written(&all, &written);
	for (uint32_t i = 0; st == CLV_OK && i < all.inputs.n; i++)
		l->values[all.inputs.at[i]] = br_ref(l->s->inputs[i]);
	for (uint32_t i = 0; st == CLV_OK && i < all.externals.n; i++)
		l->values[all.externals.at[i]] = br_ref(l->s->externals[all.externals.at[i]]);
	for (value_id v = 0; st == CLV_OK && v < p->values.n; v++) {
		if (!l->values[v] || !may_be_written(p, v, written))
			continue;
		ids[n] = v;
		grad[n] = br_requires_grad(l->values[v]);
		from[n++] = l->values[v];
	}
	if (st == CLV_OK)
		st = br_copies(from, n, grad, true, copies);
	for (uint32_t i = 0; i < n; i++) {
		br_unref(l->values[ids[i]]);
		l->values[ids[i]] = copies[i];
	}
	view_free(&all);
	mem_free(written);
	arena_free(&scratch);
	return st;
}

static clv_status read_symbols(lab *l)
{
	clv_program *g;
	program_spec spec = {.first = 0, .end = 0};
	if (!l->p->nodes.n)
		return fail(CLV_E_INVALID, "the plan has no nodes: there is nothing to measure");
	TRY(program_new(l->p, &spec, &g));
	clv_status st = program_symbols(g, &(run_spec){.inputs = l->s->inputs}, l->symbols);
	program_free(g);
	return st;
}

static clv_status lab_init(lab *l)
{
	const plan *p = l->p;
	uint32_t runs = l->s->iterations;
	l->values = arena_array(&l->arena, p->values.n, sizeof *l->values);
	l->symbols = arena_array(&l->arena, p->symbols.n, sizeof *l->symbols);
	l->forward = arena_array(&l->arena, runs, sizeof *l->forward);
	l->backward = arena_array(&l->arena, runs, sizeof *l->backward);
	TRY(arena_status(&l->arena));
	TRY(read_symbols(l));
	TRY(plan_grads(p, &l->grad));
	TRY(liveness_parts(p, &l->live, NULL));
	return br_clock_new(l->device, &l->clock);
}

static void drop_values(lab *l)
{
	if (l->values)
		release_all(l->values, l->p->values.n);
}

static void lab_free(lab *l)
{
	drop_values(l);
	mem_free(l->grad);
	arena_free(&l->arena);
	liveness_free(&l->live);
	br_clock_free(l->clock);
}

static clv_status walk_blocks(lab *l, block_profile *out)
{
	TRY(load_values(l));
	for (uint32_t i = 0; i < l->s->n; i++)
		TRY(profile_range(l, i, i ? l->s->ends[i - 1] : 0, l->s->ends[i], &out[i]));
	return CLV_OK;
}

/* After the blocks: then the machine is as warm as it was for them. */
static clv_status walk_whole(lab *l, block_profile *out, bool *ran)
{
	drop_values(l);
	TRY(load_values(l));
	clv_status st = profile_range(l, PROFILE_WHOLE, 0, l->p->nodes.n, out);
	*ran = st == CLV_OK;
	return st == CLV_E_MACHINE && br_exhausted() ? CLV_OK : st;
}

static clv_status keep_generators(const profile_spec *s, br_tensor **states)
{
	for (uint32_t i = 0; i < s->nobjects; i++)
		if (s->objects[i])
			TRY(br_generator_state(s->objects[i], &states[i]));
	return CLV_OK;
}

static clv_status restore_generators(const profile_spec *s, br_tensor **states, clv_status st)
{
	for (uint32_t i = 0; i < s->nobjects; i++) {
		if (!states[i])
			continue;
		clv_status put = br_generator_restore(s->objects[i], states[i]);
		st = st == CLV_OK ? put : st;
		br_unref(states[i]);
	}
	return st;
}

static clv_status profile_check(const plan *p, const profile_spec *s, const char *device)
{
	TRY(check_ends(p, s->ends, s->n));
	if (!s->iterations || s->iterations > 1000000 || s->warmup > 1000000)
		return fail(CLV_E_INVALID, "a profile takes 1 to 1000000 measured runs, and 0 to 1000000 before them");
	if (!strcmp(device, "meta"))
		return fail(CLV_E_UNSUPPORTED, "the plan is on the meta device, which has no data to run it on: estimate it");
	return CLV_OK;
}

clv_status profile_blocks(const plan *p, const profile_spec *s, block_profile *out, block_profile *whole,
                          bool *whole_ran)
{
	lab l = {.p = p, .s = s, .device = device_of_plan(p)};
	TRY(profile_check(p, s, l.device));
	br_tensor **states = mem_alloc((s->nobjects + 1) * sizeof *states);
	TRY_MEM(states);
	clv_status st = s->objects ? keep_generators(s, states) : CLV_OK;
	if (st == CLV_OK)
		st = lab_init(&l);
	if (st == CLV_OK)
		st = walk_blocks(&l, out);
	if (st == CLV_OK && whole)
		st = walk_whole(&l, whole, whole_ran);
	lab_free(&l);
	st = s->objects ? restore_generators(s, states, st) : st;
	mem_free(states);
	return st;
}

/* Bytes of a that b begins with, up to the end of a part of the path. */
static size_t common_path(const char *a, size_t n, const char *b)
{
	size_t same = 0, end = 0;
	while (same < n && a[same] == b[same])
		if (a[same++] == '.')
			end = same - 1;
	bool whole_a = same == n, whole_b = b[same] == '\0';
	if (whole_a && (whole_b || b[same] == '.'))
		return n;
	return whole_b && a[same] == '.' ? same : end;
}

void block_module(const plan *p, node_id first, node_id end, strbuf *b)
{
	const char *path = module_path(p, first);
	size_t n = strlen(path);
	for (node_id i = first + 1; i < end; i++)
		n = common_path(path, n, module_path(p, i));
	strbuf_add(b, path, n);
}
