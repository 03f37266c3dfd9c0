/* Runs a range of a plan by the native engine on tensors of torch: see native_part.h. */
#include "exec/native_part.h"

#include <pthread.h>
#include <string.h>

#include "exec/optimized.h"

enum { FEW = 16 };

struct native_part {
	const engine *e;
	plan *own; /* the nodes alone, of code; NULL: p is borrowed */
	const plan *p;
	plan_part of;
	node_id first, end;
	const char *optimize;
	uint32_t *symbol_of;   /* per symbol: that of the plan it was taken from; NULL: the same */
	pthread_rwlock_t lock; /* shared by runs; exclusive for what follows */
	bool has_lock;
	void *program; /* of the engine; NULL: not made yet */
	int threads;   /* that it was made for */
	bool bound;
	bool again;             /* the program had tensors before */
	bool writes;            /* memory in place: which values share it may follow from how they are laid out */
	clv_tensor **externals; /* that it has, on memory that nobody else gets while it is compared with */
	uint64_t *marks;        /* of them */
};

/* ---- what it takes ----------------------------------------------------------------------------------------------- */

/* A write would go unnoticed: no version counts it. */
static bool writes_outside(const plan *p, node_id n)
{
	const node *x = &p->nodes.at[n];
	for (uint32_t i = 0; i < x->nwrites; i++)
		if (p->values.at[alias_root(p, p->ids.at[x->writes + i])].kind != VALUE_RESULT)
			return true;
	return false;
}

const char *native_refuses(const engine *e, const plan *p, node_id n)
{
	const char *why = e->takes(p, n);
	if (why)
		return why;
	if (node_draws(p, n)) /* also where nobody reads it: the caller's generator would be left behind */
		return "it draws random numbers";
	return writes_outside(p, n) ? "it writes an input, or a tensor of the model, in place" : NULL;
}

static clv_status check_taken(const engine *e, const plan *p, node_id first, node_id end)
{
	for (node_id n = first; n < end; n++) {
		const char *why = native_refuses(e, p, n);
		if (!why)
			continue;
		node_names *names;
		strbuf b = STRBUF_INIT;
		TRY(node_names_new(p, &names));
		strbuf_printf(&b, "the native engine does not take node %s, %s", node_name(names, n),
		              plan_s(p, p->nodes.at[n].op));
		node_names_free(names);
		if (p->nodes.at[n].at != NONE)
			strbuf_printf(&b, " (%s)", plan_s(p, p->nodes.at[n].at));
		strbuf_printf(&b, ": %s; the engine tape runs all nodes", why);
		return strbuf_fail(CLV_E_UNSUPPORTED, &b);
	}
	return CLV_OK;
}

/* ---- making one -------------------------------------------------------------------------------------------------- */

static clv_status fill(native_part *x)
{
	TRY(check_taken(x->e, x->p, x->first, x->end));
	TRY(plan_part_new(x->p, x->first, x->end, &x->of));
	x->externals = mem_alloc((x->of.v.externals.n + 1) * sizeof *x->externals);
	x->marks = mem_alloc((x->of.v.externals.n + 1) * sizeof *x->marks);
	TRY_MEM(x->externals && x->marks);
	for (node_id n = x->first; n < x->end; n++)
		x->writes |= x->p->nodes.at[n].nwrites > 0;
	if (pthread_rwlock_init(&x->lock, NULL) != 0)
		return fail_nomem();
	x->has_lock = true;
	return CLV_OK;
}

static clv_status make(native_part *given, native_part **out)
{
	native_part *x = mem_alloc(sizeof *x);
	if (!x) {
		plan_free(given->own);
		return fail_nomem();
	}
	*x = *given;
	clv_status st = fill(x);
	if (st == CLV_OK)
		*out = x;
	else
		native_part_free(x);
	return st;
}

clv_status native_part_new(const engine *e, const plan *p, node_id first, node_id end, const char *optimize,
                           native_part **out)
{
	return make(&(native_part){.e = e, .p = p, .first = first, .end = end, .optimize = optimize}, out);
}

static void drop_bound(native_part *x)
{
	for (uint32_t i = 0; x->externals && i < x->of.v.externals.n; i++) {
		clv_tensor_free(x->externals[i]);
		x->externals[i] = NULL;
	}
	x->bound = false;
}

void native_part_free(native_part *x)
{
	if (!x)
		return;
	x->e->release(x->program);
	drop_bound(x);
	mem_free(x->externals);
	mem_free(x->marks);
	mem_free(x->symbol_of);
	if (x->has_lock)
		pthread_rwlock_destroy(&x->lock);
	plan_part_free(&x->of);
	plan_free(x->own);
	mem_free(x);
}

void native_part_forget(native_part *x)
{
	pthread_rwlock_wrlock(&x->lock);
	x->bound = false;
	pthread_rwlock_unlock(&x->lock);
}

/* ---- tensors of the model ----------------------------------------------------------------------------------------- */

static const br_tensor *counter_of(const run_spec *r, uint32_t i)
{
	return r->counters ? r->counters[i] : NULL;
}

/* It was made for these tensors, as they are, and for so many threads. */
static bool holds(const native_part *x, const run_spec *r)
{
	const value_id *v = x->of.v.externals.at;
	bool same = x->bound && x->threads == br_threads();
	for (uint32_t i = 0; same && i < x->of.v.externals.n; i++) {
		uint64_t mark;
		same = external_mark(x->p, v[i], r->externals[i], counter_of(r, i), &mark) && mark == x->marks[i];
	}
	return same;
}

static clv_status lower(native_part *x)
{
	static const artifact no_file = {0};
	clv_runtime_options o = CLV_RUNTIME_OPTIONS_INIT;
	void *made;
	o.threads = br_threads();
	o.optimize = x->optimize;
	engine_order order = {
		.a = &no_file, .of = &x->of, .first = x->first, .end = x->end, .device = "", .o = &o, .lend = br_parallel};
	TRY(x->e->lower(&order, &made));
	x->e->release(x->program);
	x->program = made;
	x->again = false;
	x->threads = o.threads;
	return CLV_OK;
}

/* Tensors of a kind of their own (fake ones) may have no elements at all. */
static clv_status check_plain(const clv_tensor *t, const char *what)
{
	if (tensor_is_plain(t) && (t->data || tensor_numel(t) == 0))
		return CLV_OK;
	return fail(CLV_E_INPUT, "%s has no plain elements in the memory of the CPU, which the native engine needs", what);
}

static clv_status take_external(native_part *x, uint32_t i, const run_spec *r)
{
	br_tensor *held, *t = r->externals[i];
	value_id v = x->of.v.externals.at[i];
	clv_tensor_free(x->externals[i]);
	x->externals[i] = NULL;
	if (!t)
		return fail(CLV_E_INPUT, "a tensor of the model is not bound");
	(void)external_mark(x->p, v, t, counter_of(r, i), &x->marks[i]);
	TRY(br_leaf(t, false, &held));
	TRY(br_give(held, &x->externals[i]));
	return check_plain(x->externals[i], "a tensor of the model");
}

/* `contiguous` of a tensor that lies otherwise than it did is that tensor instead of a copy, or the other way round. */
static clv_status check_layouts(const native_part *x, const run_spec *r)
{
	for (uint32_t i = 0; x->writes && i < x->of.v.externals.n; i++) {
		const clv_tensor *had = x->externals[i];
		tensor_meta now;
		br_look(r->externals[i], &now);
		size_t bytes = now.ndim * sizeof *now.strides;
		if (had && now.strided && had->m.ndim == now.ndim && memcmp(had->m.strides, now.strides, bytes) != 0)
			return fail(CLV_E_LAYOUT,
			            "a tensor of the model lies otherwise in memory than when the native engine first "
			            "ran; what the plan writes may be another tensor then");
	}
	return CLV_OK;
}

static clv_status bind(native_part *x, const run_spec *r)
{
	x->bound = false;
	TRY(check_layouts(x, r));
	if (!x->program || x->threads != br_threads())
		TRY(lower(x));
	for (uint32_t i = 0; i < x->of.v.externals.n; i++)
		TRY(take_external(x, i, r));
	if (x->e->changed && x->again) /* before the first ones it would mean that they change from run to run */
		x->e->changed(x->program, NONE, "the tensors of the model have changed");
	x->again = true;
	TRY(x->e->bind(x->program, x->externals));
	x->bound = true;
	return CLV_OK;
}

/* ---- running ------------------------------------------------------------------------------------------------------ */

/* A segment's inputs are results of other nodes, in any layout; in the segment's own plan they lie row by row. */
static clv_status as_planned(const native_part *x, uint32_t i, br_tensor *t, br_tensor **out)
{
	enum { MOST = 64 };
	uint32_t order[MOST];
	br_meta m;
	TRY(br_meta_get(t, &m));
	const value *v = &x->p->values.at[x->of.v.inputs.at[i]];
	if (!x->own || v->strides != NONE || m.ndim > MOST || !m.strides || br_is_contiguous(&m)) {
		*out = br_ref(t);
		return CLV_OK;
	}
	for (uint32_t d = 0; d < m.ndim; d++)
		order[d] = d;
	return br_dense(t, order, out);
}

static clv_status give_inputs(const native_part *x, br_tensor *const *inputs, clv_tensor **out)
{
	for (uint32_t i = 0; i < x->of.v.inputs.n; i++) {
		br_tensor *t;
		TRY(as_planned(x, i, inputs[i], &t));
		TRY(br_give(t, &out[i]));
		TRY(check_plain(out[i], "an input"));
	}
	return CLV_OK;
}

/* Room for inputs, then outputs. */
static clv_status run_in(const native_part *x, const run_spec *r, clv_tensor **room)
{
	uint32_t n = x->of.v.inputs.n;
	run_call c = {.inputs = room, .symbols = r->symbols, .numbers = r->numbers, .place = r->place};
	clv_status st = give_inputs(x, r->inputs, room);
	if (st == CLV_OK)
		st = x->e->run(x->program, &c, room + n);
	if (st == CLV_OK)
		st = br_take_all(room + n, x->of.outputs.n, r->outputs);
	for (uint32_t i = 0; i < n; i++)
		clv_tensor_free(room[i]);
	return st;
}

static clv_status run_bound(const native_part *x, const run_spec *r)
{
	clv_tensor *few[FEW] = {0}, **room = few;
	uint32_t n = x->of.v.inputs.n + x->of.outputs.n;
	if (n > FEW && !(room = mem_alloc(n * sizeof *room)))
		return fail_nomem();
	clv_status st = run_in(x, r, room);
	if (room != few)
		mem_free(room);
	return st;
}

clv_status native_part_run(native_part *x, const run_spec *r)
{
	pthread_rwlock_rdlock(&x->lock);
	bool ready = holds(x, r);
	clv_status st = ready ? run_bound(x, r) : CLV_OK;
	pthread_rwlock_unlock(&x->lock);
	if (ready)
		return st;
	pthread_rwlock_wrlock(&x->lock);
	if (!holds(x, r))
		st = bind(x, r);
	if (st == CLV_OK)
		st = run_bound(x, r); /* alone: another thread may have other tensors of the model */
	pthread_rwlock_unlock(&x->lock);
	return st;
}

/* ---- as code ------------------------------------------------------------------------------------------------------ */

static clv_status run_code(void *ctx, void *loaded, const code_run *c)
{
	native_part *x = loaded;
	int64_t few[FEW], *symbols = few;
	uint32_t n = x->p->symbols.n;
	(void)ctx;
	if (n > FEW && !(symbols = mem_alloc(n * sizeof *symbols)))
		return fail_nomem();
	for (uint32_t i = 0; i < n; i++)
		symbols[i] = c->of->symbols[x->symbol_of[i]];
	run_spec r = {.inputs = c->inputs,
	              .externals = c->of->externals,
	              .counters = c->of->counters,
	              .outputs = c->outputs,
	              .symbols = n ? symbols : NULL};
	clv_status st = native_part_run(x, &r);
	if (symbols != few)
		mem_free(symbols);
	return st;
}

static void unload(void *ctx, void *loaded)
{
	(void)ctx;
	native_part_free(loaded);
}

static const backend live = {.name = "native", .run = run_code, .unload = unload, .live = true};

static clv_status find_symbols(native_part *x, const plan *p)
{
	x->symbol_of = mem_ids(x->p->symbols.n + 1);
	TRY_MEM(x->symbol_of);
	for (symbol_id i = 0; i < x->p->symbols.n; i++) {
		for (symbol_id k = 0; k < p->symbols.n; k++)
			if (!strcmp(plan_s(p, p->symbols.at[k].name), plan_s(x->p, x->p->symbols.at[i].name)))
				x->symbol_of[i] = k;
		if (x->symbol_of[i] == NONE)
			return fail(CLV_E_VERIFY, "a segment has a symbol that its plan has not: this is a bug");
	}
	return CLV_OK;
}

/* What comes in and goes out is that of view_segment. */
static clv_status check_ends(const native_part *x, const view *v, const value_id *origin)
{
	const view *mine = &x->of.v;
	bool same = mine->inputs.n == v->inputs.n && mine->externals.n == v->externals.n && x->of.outputs.n == v->outputs.n;
	for (uint32_t i = 0; same && i < v->inputs.n; i++)
		same = origin[mine->inputs.at[i]] == v->inputs.at[i];
	for (uint32_t i = 0; same && i < v->externals.n; i++)
		same = origin[mine->externals.at[i]] == v->externals.at[i];
	for (uint32_t i = 0; same && i < v->outputs.n; i++)
		same = origin[x->of.outputs.at[i]] == v->outputs.at[i];
	return same ? CLV_OK : fail(CLV_E_UNSUPPORTED, "a part of the plan has other inputs when it is alone");
}

static clv_status extracted(const engine *e, const plan *p, const view *v, node_id first, node_id end,
                            native_part **out)
{
	value_id *origin;
	native_part x = {.e = e, .optimize = "fast"}, *made = NULL;
	TRY(plan_extract(p, first, end, &x.own, &origin));
	x.p = x.own;
	x.end = x.own->nodes.n;
	clv_status st = make(&x, &made);
	if (st == CLV_OK)
		st = check_ends(made, v, origin);
	if (st == CLV_OK)
		st = find_symbols(made, p);
	if (st == CLV_OK)
		*out = made;
	else
		native_part_free(made);
	mem_free(origin);
	return st;
}

clv_status native_code(const engine *e, const plan *p, const liveness *l, node_id first, node_id end, code **out)
{
	view v;
	code *c = NULL;
	native_part *x = NULL;
	TRY(view_segment(p, l, first, end, &v));
	clv_status st = extracted(e, p, &v, first, end, &x);
	if (st == CLV_OK)
		st = code_empty(first, end, &c);
	if (st == CLV_OK) {
		c->b = &live;
		c->loaded = x;
		x = NULL;
	}
	native_part_free(x);
	view_free(&v);
	if (st == CLV_OK)
		*out = c;
	else
		code_unref(c);
	return st;
}
