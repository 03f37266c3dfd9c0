/* Makes chains: registers for tensors and numbers, the step that runs a chain, and the epilogue that does. */
#include "native/elementwise.h"

#include <string.h>

#include "file/narrow.h"
#include "native/rows.h"
#include "native/rules.h"

bool ew_type(uint8_t d, number_type *out)
{
	switch (d) {
	case DT_F32: *out = NUM_F32; return true;
	case DT_F64: *out = NUM_F64; return true;
	case DT_I64: *out = NUM_I64; return true;
	case DT_I32: *out = NUM_I32; return true;
	case DT_I16: *out = NUM_I16; return true;
	case DT_I8: *out = NUM_I8; return true;
	case DT_U8: *out = NUM_U8; return true;
	case DT_BOOL: *out = NUM_BOOL; return true;
	default: return false;
	}
}

clv_status ew_new(lowering *l, const nt *form, ew **out)
{
	ew *e = mem_alloc(sizeof *e);
	TRY_MEM(e);
	e->l = l;
	e->form = *form;
	e->c.regs = e->regs;
	e->c.steps = e->steps;
	e->c.ndim = form->ndim;
	memcpy(e->c.size, form->size, sizeof form->size);
	*out = e;
	return CLV_OK;
}

static clv_status new_reg(ew *e, chain_kind kind, number_type type, uint8_t *out)
{
	if (e->c.nregs == CHAIN_REGS)
		return fail(CLV_E_UNSUPPORTED, "it has more than %d operands and results", CHAIN_REGS);
	*out = e->c.nregs++;
	e->slots[*out] = NONE;
	e->regs[*out] = (chain_reg){.kind = (uint8_t)kind, .type = (uint8_t)type};
	return CLV_OK;
}

static clv_status in_memory(ew *e, chain_kind kind, slot s, const nt *expanded, uint8_t *out)
{
	number_type type;
	if (!ew_type(low_at(e->l, s)->dtype, &type))
		return fail(CLV_E_UNSUPPORTED, "there is no kernel for %s", dtype_name((dtype)low_at(e->l, s)->dtype));
	TRY(new_reg(e, kind, type, out));
	e->slots[*out] = s;
	memcpy(e->regs[*out].stride, expanded->stride, sizeof expanded->stride);
	return CLV_OK;
}

clv_status ew_input_as(ew *e, slot s, const nt *expanded, bool flat, term *out)
{
	*out = (term){.kind = TERM_TENSOR, .flat = flat};
	for (unsigned r = 0; r < e->c.nregs; r++)
		if (e->slots[r] == s && e->regs[r].kind == REG_INPUT && e->regs[r].narrow == e->narrow &&
		    memcmp(e->regs[r].stride, expanded->stride, sizeof expanded->stride) == 0)
			out->reg = (uint8_t)r, out->kind = TERM_NUMBER;
	if (out->kind == TERM_TENSOR)
		TRY(in_memory(e, REG_INPUT, s, expanded, &out->reg));
	e->regs[out->reg].narrow = e->narrow;
	out->kind = TERM_TENSOR;
	out->type = e->regs[out->reg].type;
	return CLV_OK;
}

clv_status ew_input(ew *e, slot s, term *out)
{
	nt expanded, form = e->form;
	const nt *t = low_at(e->l, s);
	if (e->narrow)
		form.size[form.ndim - 1] = 1;
	if (!nt_expand(t, form.ndim, form.size, &expanded))
		return fail(CLV_E_INVALID, "a tensor does not broadcast to the sizes of the result");
	return ew_input_as(e, s, &expanded, t->ndim > 0, out);
}

static clv_status literal(ew *e, const arg *a, term *out)
{
	number_type type;
	*out = (term){.kind = TERM_NUMBER};
	switch (a->kind) {
	case ARG_NONE: out->kind = TERM_NONE; return CLV_OK;
	case ARG_STR:
		out->kind = TERM_TEXT;
		out->text = plan_s(low_plan(e->l), a->u.s);
		return CLV_OK;
	case ARG_DTYPE:
		out->kind = TERM_DTYPE;
		if (!ew_type((uint8_t)a->u.code, &type))
			return fail(CLV_E_UNSUPPORTED, "there is no kernel for %s", dtype_name((dtype)a->u.code));
		out->type = (uint8_t)type;
		return CLV_OK;
	case ARG_BOOL:
	case ARG_INT:
		out->type = a->kind == ARG_BOOL ? NUM_BOOL : NUM_I64;
		TRY(low_int_of(e->l, a, &out->i));
		out->f = (double)out->i;
		return CLV_OK;
	case ARG_FLOAT:
	case ARG_REAL:
		out->type = NUM_F64;
		TRY(low_real_of(e->l, a, &out->f));
		out->i = out->f > -9e18 && out->f < 9e18 ? (int64_t)out->f : INT64_MIN;
		return CLV_OK;
	case ARG_COMPLEX: return fail(CLV_E_UNSUPPORTED, "an argument is a complex number");
	default: out->kind = TERM_NONE; return CLV_OK; /* devices, layouts, memory formats */
	}
}

clv_status ew_make(ew *e, value_id v, const term *x)
{
	if (e->nmade == EW_MADE)
		return fail(CLV_E_UNSUPPORTED, "a group has more than %d results", EW_MADE);
	e->made[e->nmade++] = (struct ew_made){v, *x};
	return CLV_OK;
}

bool ew_made(const ew *e, value_id v, term *out)
{
	for (uint32_t i = 0; i < e->nmade; i++)
		if (e->made[i].v == v) {
			*out = e->made[i].t;
			return true;
		}
	return false;
}

clv_status ew_arg(ew *e, node_id n, uint32_t i, term *out)
{
	const plan *p = low_plan(e->l);
	const node *x = &p->nodes.at[n];
	const arg *a = i < x->nargs ? &p->args.at[x->args + i] : &(arg){.kind = ARG_NONE};
	slot s;
	if (a->kind != ARG_VALUE)
		return literal(e, a, out);
	if (ew_made(e, a->u.v, out))
		return CLV_OK;
	TRY(low_tensor(e->l, n, i, &s));
	return ew_input(e, s, out);
}

/* A number that is compared with halves becomes one of them first. */
static void round_to_halves(const plan *p, node_id n, term *t, uint32_t count)
{
	const node *x = &p->nodes.at[n];
	for (uint32_t i = 0; i < count; i++) {
		const arg *other = &p->args.at[x->args + (i == 0)];
		uint8_t d = count == 2 && other->kind == ARG_VALUE ? p->values.at[other->u.v].dtype : DT_COUNT;
		if (t[i].kind != TERM_NUMBER || !is_half(d))
			continue;
		float f = (float)t[i].f;
		t[i].f = d == DT_F16 ? narrow_from_f16(narrow_to_f16(f)) : narrow_from_bf16(narrow_to_bf16(f));
		t[i].type = NUM_F64;
	}
}

clv_status ew_node(ew *e, node_id n, term *out)
{
	term args[EW_TERMS];
	uint32_t count = low_plan(e->l)->nodes.at[n].nargs;
	if (count > EW_TERMS)
		return fail(CLV_E_UNSUPPORTED, "it has more than %d arguments", EW_TERMS);
	for (uint32_t i = 0; i < count; i++)
		TRY(ew_arg(e, n, i, &args[i]));
	if (low_what(e->l, n) >> 8 == RULE_COMPARE)
		round_to_halves(low_plan(e->l), n, args, count);
	return ew_apply(e, low_what(e->l, n), args, count, out);
}

static clv_status add_step(ew *e, const chain_step *s, bool narrow, uint8_t *out)
{
	if (e->c.nsteps == EW_STEPS)
		return fail(CLV_E_UNSUPPORTED, "it has more than %d steps", EW_STEPS);
	TRY(new_reg(e, REG_TEMP, (number_type)s->to, out));
	e->regs[*out].narrow = narrow;
	e->steps[e->c.nsteps] = *s;
	e->steps[e->c.nsteps++].out = *out;
	return CLV_OK;
}

/* Whether all of them are numbers per row, or numbers. */
static bool all_narrow(const ew *e, const uint8_t *operands, unsigned n)
{
	bool any = e->narrow;
	for (unsigned i = 0; i < n; i++) {
		const chain_reg *r = &e->regs[operands[i]];
		if (r->kind != REG_NUMBER && !r->narrow)
			return false;
		any |= r->narrow;
	}
	return any;
}

static clv_status widen_row(ew *e, uint8_t *reg)
{
	const chain_reg *r = &e->regs[*reg];
	if (!r->narrow)
		return CLV_OK;
	return add_step(e, &(chain_step){.op = ROW_SPREAD, .type = r->type, .to = r->type, .a = *reg, .b = *reg, .c = *reg},
	                false, reg);
}

clv_status ew_step(ew *e, unsigned op, number_type type, number_type to, const uint8_t *operands, unsigned n, term *out)
{
	uint8_t x[3];
	bool narrow = all_narrow(e, operands, n);
	if (!chain_find(low_kernels(e->l), op, type, to))
		return fail(CLV_E_UNSUPPORTED, "there is no kernel for these types");
	for (unsigned i = 0; i < n; i++) {
		x[i] = operands[i];
		if (!narrow)
			TRY(widen_row(e, &x[i]));
	}
	*out = (term){.kind = TERM_TENSOR, .type = (uint8_t)to};
	return add_step(e,
	                &(chain_step){.op = (uint8_t)op,
	                              .type = (uint8_t)type,
	                              .to = (uint8_t)to,
	                              .a = x[0],
	                              .b = x[n > 1],
	                              .c = x[n > 2 ? 2 : 0]},
	                narrow, &out->reg);
}

static clv_status wide_floats(ew *e, const term *x, uint8_t *reg)
{
	if (x->kind != TERM_TENSOR || x->type != NUM_F32)
		return fail(CLV_E_UNSUPPORTED, "there is no kernel for these types");
	*reg = x->reg;
	return widen_row(e, reg);
}

clv_status ew_row_step(ew *e, const row_step *s, term *out)
{
	chain_step t = {.op = (uint8_t)s->op, .type = NUM_F32, .to = (uint8_t)s->to, .number = s->number};
	TRY(wide_floats(e, s->x, &t.a));
	t.b = t.c = t.a;
	if (s->weight)
		TRY(wide_floats(e, s->weight, &t.b));
	if (s->bias)
		TRY(wide_floats(e, s->bias, &t.c));
	t.given = (uint8_t)((s->weight ? 1 : 0) | (s->bias ? 2 : 0));
	*out = (term){.kind = TERM_TENSOR, .type = (uint8_t)s->to, .flat = true};
	return add_step(e, &t, s->narrow, &out->reg);
}

static clv_status number_reg(ew *e, const term *x, number_type type, uint8_t *out)
{
	chain_reg want = {.kind = REG_NUMBER, .type = (uint8_t)type};
	if (type == NUM_F32 || type == NUM_F64)
		want.number.f = x->f;
	else
		want.number.i = type == NUM_BOOL ? x->f != 0 : x->i;
	for (unsigned r = 0; r < e->c.nregs; r++)
		if (memcmp(&e->regs[r], &want, sizeof want) == 0) {
			*out = (uint8_t)r;
			return CLV_OK;
		}
	TRY(new_reg(e, REG_NUMBER, type, out));
	e->regs[*out] = want;
	return CLV_OK;
}

clv_status ew_reg(ew *e, const term *x, number_type type, uint8_t *out)
{
	term cast;
	if (x->kind == TERM_NUMBER)
		return number_reg(e, x, type, out);
	if (x->kind != TERM_TENSOR)
		return fail(CLV_E_UNSUPPORTED, "an argument is neither a tensor nor a number");
	if (x->type == type) {
		*out = x->reg;
		return CLV_OK;
	}
	TRY(ew_step(e, CHAIN_CAST, (number_type)x->type, type, &x->reg, 1, &cast));
	*out = cast.reg;
	return CLV_OK;
}

clv_status ew_cast(ew *e, const term *x, number_type to, term *out)
{
	uint8_t reg;
	TRY(ew_reg(e, x, to, &reg));
	*out = (term){.kind = TERM_TENSOR, .type = (uint8_t)to, .reg = reg, .flat = x->flat};
	return CLV_OK;
}

/* The register in which the result is made becomes `to`; one that is made otherwise, or is needed, is copied. */
static clv_status write_to(ew *e, const term *x, uint8_t to)
{
	term made;
	uint8_t reg;
	number_type type = (number_type)e->regs[to].type;
	TRY(ew_reg(e, x, type, &reg));
	if (e->regs[reg].kind != REG_TEMP) {
		TRY(ew_step(e, CHAIN_COPY, type, type, &reg, 1, &made));
		reg = made.reg;
	}
	for (unsigned i = 0; i < e->c.nsteps; i++) {
		chain_step *s = &e->steps[i];
		s->out = s->out == reg ? to : s->out;
		s->a = s->a == reg ? to : s->a;
		s->b = s->b == reg ? to : s->b;
		s->c = s->c == reg ? to : s->c;
	}
	for (uint32_t i = 0; i < e->nmade; i++)
		if (e->made[i].t.reg == reg)
			e->made[i].t.reg = to;
	return CLV_OK;
}

clv_status ew_output_as(ew *e, const term *x, slot s, const nt *expanded, bool narrow)
{
	uint8_t to;
	term given = *x; /* which may be one of those made */
	TRY(in_memory(e, REG_OUTPUT, s, expanded, &to));
	e->regs[to].narrow = narrow;
	return write_to(e, &given, to);
}

clv_status ew_output(ew *e, const term *x, slot s)
{
	return ew_output_as(e, x, s, low_at(e->l, s), false);
}

void ew_layout(const ew *e, nt *form)
{
	for (unsigned r = 0; r < e->c.nregs; r++) {
		const nt *t = e->slots[r] == NONE ? NULL : low_at(e->l, e->slots[r]);
		if (!t || t->ndim != form->ndim || memcmp(t->size, form->size, form->ndim * sizeof *t->size) != 0 ||
		    !nt_is_dense(t))
			continue;
		nt_strides_like(form, t);
		return;
	}
}

/* ---- running ------------------------------------------------------------------------------------------------------------------ */

typedef struct chain_params {
	chain c;
	slot *slots;
	slot scratch;     /* `room` bytes for each thread; NONE: the chain needs none */
	int64_t grain;    /* tiles that are worth a thread */
	unsigned in, out; /* of an epilogue */
} chain_params;

static clv_status keep(ew *e, unsigned like, bool keep_last, chain_params **out)
{
	chain_params *x = low_alloc(e->l, sizeof *x);
	chain *c = &e->c;
	TRY_MEM(x);
	if (!chain_finish(c, low_kernels(e->l), like, keep_last))
		return fail(CLV_E_UNSUPPORTED, "it has too many operands");
	x->slots = low_alloc(e->l, c->nregs * sizeof *x->slots);
	x->c = *c;
	x->c.regs = low_alloc(e->l, c->nregs * sizeof *c->regs);
	x->c.steps = low_alloc(e->l, c->nsteps * sizeof *c->steps);
	TRY_MEM(x->slots && x->c.regs && x->c.steps);
	memcpy(x->slots, e->slots, c->nregs * sizeof *x->slots);
	memcpy(x->c.regs, e->regs, c->nregs * sizeof *c->regs);
	memcpy(x->c.steps, e->steps, c->nsteps * sizeof *c->steps);
	*out = x;
	return CLV_OK;
}

static void find_data(const chain_params *x, const frame *f, char **data)
{
	for (unsigned r = 0; r < x->c.nregs; r++)
		data[r] = x->slots[r] == NONE ? NULL : f->t[x->slots[r]].data;
}

typedef struct chain_job {
	const chain_params *x;
	char *data[CHAIN_REGS], *memory;
	bool bad;
} chain_job;

static void run_part(void *ctx, int64_t first, int64_t end, int thread)
{
	chain_job *j = ctx;
	char *memory = j->memory ? j->memory + (size_t)thread * j->x->c.room : NULL;
	if (!chain_run(&j->x->c, j->data, memory, first, end))
		__atomic_store_n(&j->bad, true, __ATOMIC_RELAXED);
}

static clv_status run_chain(const void *params, frame *f)
{
	chain_job j = {.x = params};
	const chain *c = &j.x->c;
	find_data(j.x, f, j.data);
	j.memory = j.x->scratch == NONE ? NULL : f->t[j.x->scratch].data;
	team_run(f->team, chain_items(c), j.x->grain, run_part, &j);
	return j.bad ? fail(CLV_E_INPUT, "an integer is divided by zero") : CLV_OK;
}

static unsigned last_output(const ew *e)
{
	unsigned r = e->c.nregs - 1u;
	while (r > 0 && e->regs[r].kind != REG_OUTPUT)
		r--;
	return r;
}

/* How many elements a plain step does in about the time of a tile. */
static int64_t work_of(const chain *c)
{
	int64_t work = 1;
	for (unsigned i = 0; i < c->nsteps; i++)
		work += c->tile * (c->steps[i].op >= ROW_SOFTMAX ? 8 : 1);
	return work;
}

clv_status ew_finish(ew *e)
{
	chain_params *x;
	TRY(keep(e, last_output(e), false, &x));
	x->scratch = NONE;
	x->grain = 65536 / work_of(&x->c) + 1;
	if (x->c.room)
		TRY(low_scratch(e->l, x->c.room * (size_t)low_threads(e->l), &x->scratch));
	return low_step(e->l, run_chain, x);
}

static void run_block(const void *ctx, frame *f, float *block, int64_t ldc, int64_t row, int64_t rows, int64_t col,
                      int64_t cols)
{
	const chain_params *x = ctx;
	char *data[CHAIN_REGS];
	chain_block b = {
		.row = row, .rows = rows, .col = col, .cols = cols, .pitch = ldc, .at = block, .reg = x->in, .out = x->out};
	find_data(x, f, data);
	chain_run_block(&x->c, data, &b);
}

clv_status ew_block(ew *e, term *out)
{
	*out = (term){.kind = TERM_TENSOR, .type = NUM_F32, .flat = e->form.ndim > 0};
	TRY(new_reg(e, REG_INPUT, NUM_F32, &out->reg));
	memcpy(e->regs[out->reg].stride, e->form.stride, sizeof e->form.stride);
	return CLV_OK;
}

clv_status ew_finish_block(ew *e, const term *in, const term *result, unsigned columns, epilogue *out)
{
	chain_params *x;
	uint8_t to;
	if (e->form.ndim == 0)
		return CLV_OK;
	TRY(new_reg(e, REG_OUTPUT, NUM_F32, &to));
	memcpy(e->regs[to].stride, e->regs[in->reg].stride, sizeof e->regs[to].stride);
	TRY(write_to(e, result, to));
	chain_swap(&e->c, columns, e->c.ndim - 1u);
	TRY(keep(e, in->reg, true, &x));
	x->in = in->reg;
	x->out = to;
	*out = (epilogue){.run = run_block, .ctx = x};
	return CLV_OK;
}
