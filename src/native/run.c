/* Runs: a frame is filled with pointers to what the call brings, the steps run, and outputs leave. */
#include "native/program.h"

#include <string.h>

#include "base/clock.h"
#include "base/limits.h"

enum { FEW = 16 }; /* symbols that need no memory of their own */

/* Tensors without elements may have no memory; addresses are computed from it all the same. One that has elements and is only
   packed has none either, and nothing to read. */
static char none[MEMORY_ALIGN];

/* ---- frames ---------------------------------------------------------------------------------------------------------------- */

void native_frame_free(native_frame *f)
{
	if (!f)
		return;
	for (uint32_t i = 0; f->rooms && i < f->ninputs; i++)
		clv_tensor_free(f->rooms[i]);
	mem_free(f->f.t);
	mem_free(f->memory);
	mem_free(f->outputs);
	mem_free(f->copies);
	mem_free(f->rooms);
	mem_free(f);
}

static void point(native_frame *f, const shaped *s)
{
	for (slot i = 0; i < s->slots.n; i++) {
		const slot_info *x = &s->slots.at[i];
		f->f.t[i] = x->t;
		f->f.t[i].data = x->t.data || nt_numel(&x->t) ? x->t.data : none;
		if (x->root == ROOT_BLOCK && !s->blocks.at[x->id].output)
			f->f.t[i].data = f->memory + s->blocks.at[x->id].offset + x->offset;
	}
}

clv_status native_frame_new(const native_program *g, const shaped *s, native_frame **out)
{
	native_frame *f = mem_alloc(sizeof *f);
	if (!f)
		return fail_nomem();
	f->f = (frame){.k = g->k, .team = g->team, .t = mem_realloc(NULL, s->slots.n + 1, sizeof *f->f.t)};
	f->memory = mem_pages(s->bytes + 1);
	f->outputs = mem_alloc((s->blocks.n + 1) * sizeof(tensor_memory *));
	f->copies = mem_alloc((g->v.inputs.n + 1) * sizeof(clv_tensor *));
	f->rooms = mem_alloc((g->v.inputs.n + 1) * sizeof(clv_tensor *));
	f->ninputs = g->v.inputs.n;
	if (!f->f.t || !f->memory || !f->outputs || !f->copies || !f->rooms) {
		native_frame_free(f);
		return fail(CLV_E_NOMEM, "there is no memory for the %llu bytes of a run", (unsigned long long)s->bytes);
	}
	point(f, s);
	*out = f;
	return CLV_OK;
}

/* ---- what a run brings ------------------------------------------------------------------------------------------------------ */

/* A row-major copy, in the room that frames keep for it. */
static clv_status copy_input(const clv_tensor *t, const nt *form, clv_tensor **room, clv_tensor **out)
{
	nt from = *form;
	if (!*room)
		TRY(tensor_new(&(tensor_form){.dtype = form->dtype, .ndim = form->ndim, .sizes = form->size}, room));
	*out = *room;
	memcpy(from.stride, t->m.strides, form->ndim * sizeof *from.stride);
	from.data = t->data;
	nt to = *form;
	nt_rows(&to);
	to.data = (*out)->data;
	nt_copy(&from, &to);
	return CLV_OK;
}

static bool lies_so(const clv_tensor *t, const nt *form)
{
	for (uint32_t d = 0; d < form->ndim; d++)
		if (form->size[d] != 1 && t->m.strides[d] != form->stride[d])
			return false;
	return true;
}

static clv_status load_input(const native_program *g, const shaped *s, native_frame *f, const clv_tensor *t, uint32_t i)
{
	char scratch[32];
	value_id v = g->v.inputs.at[i];
	const nt *form = &s->slots.at[s->inputs[i]].t;
	if (!tensor_is_plain(t))
		return fail(CLV_E_INPUT, "input %s has no plain elements in the memory of the CPU",
		            input_name(g->p, v, scratch, sizeof scratch));
	if (g->writes[i] && g->p->values.at[v].kind == VALUE_INPUT) {
		if (tensor_is_fixed(t))
			return fail(CLV_E_INPUT, "input %s is written by the plan and lies in memory that nobody may write",
			            input_name(g->p, v, scratch, sizeof scratch));
		return CLV_OK;
	}
	return g->writes[i] || !lies_so(t, form) ? copy_input(t, form, &f->rooms[i], &f->copies[i]) : CLV_OK;
}

static bool share(const clv_tensor *a, const clv_tensor *b)
{
	return a != b && a->data && b->data && (char *)a->data < (char *)b->data + b->extent &&
	       (char *)b->data < (char *)a->data + a->extent;
}

/* Whoever else is on memory that the plan writes would see it, at another time than in the model. */
static clv_status check_apart(const native_program *g, const run_call *c, const native_frame *f)
{
	char scratch[32];
	for (uint32_t i = 0; i < g->v.inputs.n; i++) {
		if (!g->writes[i] || f->copies[i])
			continue;
		bool shared = false;
		for (uint32_t k = 0; k < g->v.inputs.n; k++)
			shared |= k != i && (c->inputs[k] == c->inputs[i] || share(c->inputs[i], c->inputs[k]));
		for (uint32_t k = 0; k < g->v.externals.n; k++)
			shared |= g->externals[k] && share(c->inputs[i], g->externals[k]);
		if (shared)
			return fail(CLV_E_INPUT, "input %s, which the plan writes, shares memory with another tensor; pass copies",
			            input_name(g->p, g->v.inputs.at[i], scratch, sizeof scratch));
	}
	return CLV_OK;
}

/* What two runs give away may wait to be used again: callers often hold one result while the next is made. */
static clv_status make_outputs(const native_program *g, const shaped *s, native_frame *f)
{
	size_t all = 0;
	for (uint32_t i = 0; i < s->blocks.n; i++)
		if (s->blocks.at[i].output)
			all += memory_store_cost(s->blocks.at[i].bytes);
	memory_store_keep(g->given, 2 * all);
	for (uint32_t i = 0; i < s->blocks.n; i++)
		if (s->blocks.at[i].output)
			TRY(memory_store_take(g->given, s->blocks.at[i].bytes, &f->outputs[i]));
	return CLV_OK;
}

static char *root_data(const native_program *g, const slot_info *x, const native_frame *f, const run_call *c)
{
	if (x->root == ROOT_INPUT)
		return f->copies[x->id] ? f->copies[x->id]->data : c->inputs[x->id]->data;
	return x->root == ROOT_EXTERNAL ? g->externals[x->id]->data : f->outputs[x->id]->base;
}

clv_status native_frame_load(const native_program *g, const shaped *s, native_frame *f, const run_call *c)
{
	for (uint32_t i = 0; c && i < g->v.inputs.n; i++)
		TRY(load_input(g, s, f, c->inputs[i], i));
	if (c && g->writes_outside)
		TRY(check_apart(g, c, f));
	TRY(make_outputs(g, s, f));
	for (uint32_t i = 0; i < s->moving.n; i++) {
		const slot_info *x = &s->slots.at[s->moving.at[i]];
		char *data = root_data(g, x, f, c);
		f->f.t[s->moving.at[i]].data = data ? data + x->offset : none;
	}
	return CLV_OK;
}

/* The frame keeps nothing of the call. */
static void unload(const native_program *g, const shaped *s, native_frame *f)
{
	for (uint32_t i = 0; i < g->v.inputs.n; i++)
		f->copies[i] = NULL;
	for (uint32_t i = 0; i < s->blocks.n; i++) {
		tensor_memory_unref(f->outputs[i]);
		f->outputs[i] = NULL;
	}
}

/* ---- steps ------------------------------------------------------------------------------------------------------------------ */

clv_status run_steps(const native_program *g, const shaped *s, frame *f, const run_call *c)
{
	bool limited = limits_here();
	int64_t *times = c ? c->times : NULL, start = 0;
	for (uint32_t i = 0; i < s->steps.n; i++) {
		const native_step *x = &s->steps.at[i];
		if (c && c->place && x->node != NONE)
			call_tell_place(g->p, g->names, x->node, c->place);
		if (times)
			start = clock_nanoseconds();
		clv_status st = limited ? limits_check() : CLV_OK;
		if (st == CLV_OK)
			st = x->run(x->params, f);
		if (st == CLV_OK && limited) /* it may have ended early */
			st = limits_check();
		if (st != CLV_OK) {
			if (x->node != NONE)
				call_failed_at(g->p, g->names, x->node, st);
			status_details()->undone &= !g->writes_outside;
			return st;
		}
		if (times && x->node < g->part[PARTS])
			times[x->node - g->part[0]] += clock_nanoseconds() - start;
	}
	return CLV_OK;
}

/* ---- outputs ---------------------------------------------------------------------------------------------------------------- */

static clv_status give_block(const shaped *s, const native_frame *f, slot o, clv_tensor **out)
{
	const nt *t = &f->f.t[o];
	tensor_memory *m = f->outputs[s->slots.at[o].id];
	return tensor_over(m, m->base,
	                   &(tensor_form){.dtype = t->dtype, .ndim = t->ndim, .sizes = t->size, .strides = t->stride}, out);
}

/* The input itself, or a view of it; a copy where nobody may write it, or where the steps had one. */
static clv_status give_input(const shaped *s, const native_frame *f, slot o, const run_call *c, clv_tensor **out)
{
	const slot_info *x = &s->slots.at[o];
	clv_tensor *in = c->inputs[x->id];
	const nt *t = &f->f.t[o];
	if (!tensor_is_fixed(in) && o == s->inputs[x->id] && !f->copies[x->id]) {
		*out = tensor_ref(in);
		return CLV_OK;
	}
	if (!tensor_is_fixed(in) && !f->copies[x->id])
		return tensor_view(in, (size_t)x->offset,
		                   &(tensor_form){.dtype = t->dtype, .ndim = t->ndim, .sizes = t->size, .strides = t->stride},
		                   out);
	TRY(tensor_new(&(tensor_form){.dtype = t->dtype, .ndim = t->ndim, .sizes = t->size}, out));
	nt to = *t;
	nt_rows(&to);
	to.data = (*out)->data;
	nt_copy(t, &to);
	return CLV_OK;
}

static clv_status give_output(const shaped *s, const native_frame *f, uint32_t i, const run_call *c,
                              clv_tensor **outputs)
{
	const output_info *o = &s->outputs.at[i];
	if (o->same != NONE) {
		outputs[i] = tensor_ref(outputs[o->same]);
		return CLV_OK;
	}
	return o->from == OUTPUT_INPUT ? give_input(s, f, o->s, c, &outputs[i]) : give_block(s, f, o->s, &outputs[i]);
}

static clv_status give_outputs(const native_program *g, const shaped *s, const native_frame *f, const run_call *c,
                               clv_tensor **outputs)
{
	for (uint32_t i = 0; i < s->outputs.n; i++) {
		outputs[i] = NULL;
		clv_status st = give_output(s, f, i, c, outputs);
		if (st == CLV_OK)
			continue;
		for (uint32_t k = 0; k <= i; k++)
			clv_tensor_free(outputs[k]);
		return st;
	}
	if (c->numbers)
		memcpy(c->numbers, s->numbers, g->numbers.n * sizeof *c->numbers);
	return CLV_OK;
}

/* ---- a run ------------------------------------------------------------------------------------------------------------------ */

static clv_status check_limits(const shaped *s)
{
	int64_t bytes = (int64_t)(s->bytes + s->given + s->beside);
	TRY(limits_check_tensor(s->largest, s->each));
	TRY(limits_room(bytes));
	limits_count(bytes);
	return CLV_OK;
}

static clv_status check_inputs(const native_program *g, const shaped *s, const run_call *c)
{
	for (uint32_t i = 0; i < g->v.inputs.n; i++) {
		tensor_meta m = tensor_meta_of(c->inputs[i]);
		TRY(input_check(g->p, g->v.inputs.at[i], &m, s->exprs));
	}
	return CLV_OK;
}

static clv_status run_shaped(const native_program *g, const shaped *s, native_frame **f, const run_call *c,
                             clv_tensor **outputs)
{
	TRY(check_inputs(g, s, c));
	TRY(check_limits(s));
	if (!*f)
		TRY(native_frame_new(g, s, f));
	clv_status st = native_frame_load(g, s, *f, c);
	if (st == CLV_OK)
		st = run_steps(g, s, &(*f)->f, c);
	if (st == CLV_OK)
		st = give_outputs(g, s, *f, c, outputs);
	unload(g, s, *f);
	return st;
}

static clv_status run_at(native_program *g, const int64_t *symbols, const run_call *c, clv_tensor **outputs)
{
	native_frame *f = NULL;
	shaped *s;
	TRY(shaped_take(g, symbols, c, &s, &f));
	clv_status st = run_shaped(g, s, &f, c, outputs);
	shaped_give(g, s, f);
	return st;
}

clv_status native_run(native_program *g, const run_call *c, clv_tensor **outputs)
{
	int64_t few[FEW], *symbols = few;
	if (g->p->symbols.n > FEW && !(symbols = mem_alloc(g->p->symbols.n * sizeof *symbols)))
		return fail_nomem();
	clv_status st = call_symbols(&g->v, c->inputs, c->symbols, symbols);
	if (st == CLV_OK)
		st = run_at(g, symbols, c, outputs);
	if (symbols != few)
		mem_free(symbols);
	return st;
}
