/* The tape as an engine. Tensors of the core and of torch meet here, and nowhere below. */
#include "exec/tape.h"

#include <string.h>

#include "exec/optimized.h"
#include "runtime/handover.h"

enum { FEW = 16 };

/* Whether libtorch has an operator is seen when a plan is lowered, with the arguments that it gets. */
static const char *takes(const plan *p, node_id n)
{
	(void)p, (void)n;
	return NULL;
}

static clv_status accepts(const clv_runtime_options *o)
{
	TRY(br_team_check(o->threads));
	if (o->max_memory && !br_pool_install())
		return fail(CLV_E_UNSUPPORTED,
		            "memory of runs cannot be limited: another allocator has taken the place of torch's");
	return CLV_OK;
}

static void release(void *program)
{
	taped *t = program;
	if (!t)
		return;
	program_free(t->g);
	tape_free_codes(t);
	mem_free(t->externals);
	arena_free(&t->arena);
	mem_free(t);
}

static clv_status fill(taped *t, const engine_order *o)
{
	program_spec spec = {.first = o->first,
	                     .end = o->end,
	                     .inference = !t->trains,
	                     .untrusted = artifact_origin(o->a) != NULL,
	                     .debug = o->o->debug,
	                     .threads = o->o->threads};
	code_list codes = {0};
	optimize_level level;
	TRY(optimize_level_read(o->o->optimize, &level));
	spec.optimize = (uint8_t)level;
	t->draws = view_draws(&o->of->v);
	t->externals = mem_alloc((o->of->v.externals.n + 1) * sizeof *t->externals);
	clv_status st = t->externals ? tape_load_codes(t, o, &codes) : fail_nomem();
	spec.codes = codes.at;
	spec.ncodes = codes.n;
	if (st == CLV_OK)
		st = program_new(o->of->p, &spec, &t->g);
	vec_free(&codes);
	return st;
}

static clv_status lower_as(const engine_order *o, bool trains, void **out)
{
	taped *t = mem_alloc(sizeof *t);
	TRY_MEM(t);
	t->trains = trains;
	clv_status st = fill(t, o);
	if (st == CLV_OK)
		*out = t;
	else
		release(t);
	return st;
}

static clv_status lower(const engine_order *o, void **out)
{
	return lower_as(o, false, out);
}

static clv_status lower_training(const engine_order *o, void **out)
{
	return lower_as(o, true, out);
}

static clv_status bind(void *program, clv_tensor *const *externals)
{
	taped *t = program;
	return br_of_all((const clv_tensor *const *)externals, t->g->v.externals.n, t->externals);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* Operators that make tensors without being told a dtype take torch's default: files are for f32. */
static clv_status check_default_dtype(void)
{
	uint8_t d = br_default_dtype();
	return d == DT_F32 ? CLV_OK
	                   : fail(CLV_E_INPUT, "torch's default dtype is %s, files are for f32",
	                          d < DT_COUNT ? dtype_name((dtype)d) : "?");
}

static clv_status make_spec(const taped *t, const run_call *c, br_tensor **inputs, run_spec *out)
{
	TRY(check_default_dtype());
	TRY(br_of_all((const clv_tensor *const *)c->inputs, t->g->v.inputs.n, inputs));
	*out = (run_spec){.inputs = inputs,
	                  .externals = t->externals,
	                  .symbols = c->symbols,
	                  .numbers = c->numbers,
	                  .times = c->times,
	                  .grad = t->trains,
	                  .place = c->place};
	return CLV_OK;
}

/* A model may give a tensor of its own: the caller may write it, and nobody may write the file. */
static clv_status own_outputs(br_tensor **outputs, uint32_t n, bool grad)
{
	for (uint32_t i = 0; i < n; i++) {
		br_tensor *own;
		if (!outputs[i] || !br_is_fixed(outputs[i]))
			continue;
		TRY(br_clone(outputs[i], grad, &own));
		br_unref(outputs[i]);
		outputs[i] = own;
	}
	return CLV_OK;
}

/* Runs that draw take turns, and others may draw between two of them. */
static bool goes_on(const void *program)
{
	return !((const taped *)program)->draws;
}

static clv_status run_program(const taped *t, run_spec *r)
{
	handover *h = handover_enter();
	r->over = goes_on(t) ? h : NULL;
	clv_status st = h && h->left && !r->over ? handover_pass(h) : program_run(t->g, r);
	handover_leave(h);
	return st;
}

/* On room for inputs and outputs. */
static clv_status run_in(const taped *t, const run_call *c, br_tensor **room, clv_tensor **outputs)
{
	const clv_program *g = t->g;
	br_tensor **made = room + g->v.inputs.n;
	run_spec spec;
	TRY(make_spec(t, c, room, &spec));
	spec.outputs = made;
	TRY(run_program(t, &spec));
	clv_status st = own_outputs(made, g->outputs.n, t->trains);
	for (uint32_t i = 0; g->writes_inputs && i < g->v.inputs.n && st == CLV_OK; i++)
		st = br_refresh(c->inputs[i]);
	for (uint32_t i = 0; i < g->outputs.n && st != CLV_OK; i++)
		br_unref(made[i]);
	TRY(st);
	return br_give_all(made, g->outputs.n, outputs);
}

pthread_mutex_t tape_drawing = PTHREAD_MUTEX_INITIALIZER;

static clv_status run_alone(const taped *t, const run_call *c, br_tensor **room, clv_tensor **outputs)
{
	bool alone = t->draws && !t->trains; /* a trainer holds it already */
	if (alone)
		pthread_mutex_lock(&tape_drawing);
	clv_status st = run_in(t, c, room, outputs);
	if (alone)
		pthread_mutex_unlock(&tape_drawing);
	return st;
}

static clv_status run(void *program, const run_call *c, clv_tensor **outputs)
{
	taped *t = program;
	br_tensor *few[FEW], **room = few;
	uint32_t n = t->g->v.inputs.n + t->g->outputs.n;
	if (t->segments.n)
		atomic_fetch_add_explicit(&t->runs, 1, memory_order_relaxed);
	if (n > FEW && !(room = mem_alloc(n * sizeof *room)))
		return fail_nomem();
	clv_status st = run_alone(t, c, room, outputs);
	if (room != few)
		mem_free(room);
	return st;
}

static clv_status report(const void *program, strbuf *b)
{
	return program_report(((const taped *)program)->g, b);
}

static uint32_t steps(const void *program)
{
	return ((const taped *)program)->g->steps.n;
}

static node_id step_node(const void *program, uint32_t i)
{
	return ((const taped *)program)->g->steps.at[i].node;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static clv_status device(const char *text, char *out)
{
	return br_device(text, out, DEVICE_TEXT);
}

static clv_status to_device(const clv_tensor *t, const char *where, clv_tensor **out)
{
	br_tensor *from, *moved;
	TRY(br_of(t, &from));
	TRY(br_to_device(from, where, &moved));
	if (moved != from)
		return br_give(moved, out);
	br_unref(moved);
	*out = tensor_ref(t);
	return CLV_OK;
}

static clv_status clone(const clv_tensor *t, clv_tensor **out)
{
	br_tensor *from, *own;
	TRY(br_of(t, &from));
	TRY(br_clone(from, false, &own));
	return br_give(own, out);
}

static clv_status leaf(const clv_tensor *t, bool requires_grad, clv_tensor **out)
{
	br_tensor *from, *made;
	TRY(br_of(t, &from));
	TRY(br_leaf(from, requires_grad, &made));
	return br_give(made, out);
}

static clv_status write_to(const clv_tensor *from, clv_tensor *to)
{
	br_tensor *a, *b;
	TRY(br_of(from, &a));
	TRY(br_of(to, &b));
	return br_copy(a, b);
}

static const engine_tensors tensors = {device, to_device, clone, leaf, write_to};

const engine engine_tape = {.name = "tape",
                            .takes = takes,
                            .lower = lower,
                            .bind = bind,
                            .run = run,
                            .release = release,
                            .accepts = accepts,
                            .report = report,
                            .steps = steps,
                            .step = step_node,
                            .changed = tape_changed,
                            .segments = tape_segments,
                            .segment = tape_segment_state,
                            .goes_on = goes_on,
                            .tensors = &tensors,
                            .sandbox = &tape_sandbox};

/* Nothing around the elements of a leaf is reached, and what it shares memory with has leaves of its own. */
static clv_status fenced_leaf(const clv_tensor *t, bool requires_grad, clv_tensor **out)
{
	br_tensor *from, *fenced, *made = NULL;
	TRY(br_of(t, &from));
	TRY(br_fence(from, &fenced));
	clv_status st = br_leaf(fenced, requires_grad, &made);
	br_unref(fenced);
	return st == CLV_OK ? br_give(made, out) : st;
}

static const engine_tensors training_tensors = {device, to_device, clone, fenced_leaf, write_to};

/* For trainers: runs leave the graph behind what they give. */
const engine engine_training = {.name = "tape",
                                .takes = takes,
                                .lower = lower_training,
                                .bind = bind,
                                .run = run,
                                .release = release,
                                .accepts = accepts,
                                .tensors = &training_tensors};
