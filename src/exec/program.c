/* Lowers a view to a program: every value gets a slot, every node a pre-bound call site, every slot the step after which
 * it is released. A tensor read for the last time is handed over to the operator instead of copied. */
#include "exec/program.h"

#include <string.h>

#include "base/arena.h"
#include "exec/apart.h"
#include "exec/code.h"
#include "exec/native_part.h"
#include "exec/optimized.h"
#include "exec/resume.h"
#include "exec/segment_check.h"
#include "exec/undo.h"
#include "plan/data.h"

/* Where a code runs, and what goes in and out. */
typedef struct placed {
	node_span at;
	const view *v;
	clv_program *tape; /* of the program that this is a variant of; NULL: it gets one */
} placed;

typedef struct lowering {
	clv_program *g;
	const program_spec *spec;
	node_id *last;     /* per value: last step (node) of the view that uses it; NONE: none */
	uint32_t *int_of;  /* per expression: its place in g->numbers; NONE */
	uint32_t *real_of; /* per real, likewise */
	uint32_t *host_of; /* per host value, likewise */
	bool *known;       /* per symbol: given, or read by a step before */
	uint32_t ncodes;   /* that are used */
	placed *segments;  /* per code */
	view *views;       /* the same, unless another program has them */
	liveness live;     /* of the plan, where there are codes */
	arena a;           /* br_args of the site in hand */
} lowering;

/* ---- slots and lifetimes ---------------------------------------------------------------------------------------- */

static void give_slot(clv_program *g, value_id v)
{
	if (g->slot[v] == NONE)
		g->slot[v] = g->nslots++;
}

typedef struct use {
	lowering *l;
	node_id n;
} use;

static void note_use(void *ctx, value_id v)
{
	use *u = ctx;
	u->l->last[v] = u->n;
}

static void slot_result(void *ctx, value_id v)
{
	use *u = ctx;
	give_slot(u->l->g, v);
	u->l->last[v] = u->n; /* until something reads it */
}

/* A segment is one step, that of its first node; what is inside of it alone has no slot. */
static void slot_segment(use *u, const view *v)
{
	for (uint32_t i = 0; i < v->inputs.n; i++)
		note_use(u, v->inputs.at[i]);
	for (uint32_t i = 0; i < v->outputs.n; i++)
		slot_result(u, v->outputs.at[i]);
}

static void assign_slots(lowering *l)
{
	clv_program *g = l->g;
	for (uint32_t i = 0; i < g->v.inputs.n; i++)
		give_slot(g, g->v.inputs.at[i]);
	for (uint32_t i = 0; i < g->v.externals.n; i++)
		give_slot(g, g->v.externals.at[i]);
	uint32_t k = 0;
	for (node_id n = l->spec->first; n < l->spec->end; n++) {
		use u = {l, n};
		if (k < l->ncodes && l->segments[k].at.first == n) {
			slot_segment(&u, l->segments[k].v);
			n = l->segments[k++].at.end - 1;
			continue;
		}
		node_each_arg(g->p, n, note_use, &u);
		node_each_result(g->p, n, slot_result, &u);
	}
}

/* Only results of this view are owned by the frame; outputs stay until the end. */
static bool dies_at(const lowering *l, value_id v, node_id n)
{
	const value *x = &l->g->p->values.at[v];
	return x->kind == VALUE_RESULT && x->type == TYPE_TENSOR && x->def >= l->spec->first && l->last[v] == n;
}

/* ---- call sites ------------------------------------------------------------------------------------------------- */

typedef struct need {
	lowering *l;
	symbol_id missing; /* NONE: there is none */
	bool later;
} need;

static void need_symbol(void *ctx, symbol_id s)
{
	need *x = ctx;
	if (!x->l->g->p->symbols.at[s].data)
		return;
	x->later = true;
	if (!x->l->known[s] && s < x->missing)
		x->missing = s;
}

/* The place of the number that is the argument; `known` is where it was put before, or NONE. */
static clv_status place_number(lowering *l, const arg *from, live_number n, uint32_t *known, uint32_t *out)
{
	const plan *p = l->g->p;
	need x = {l, NONE, n.kind == NUMBER_HOST};
	if (*known == NONE) {
		arg_each_symbol(p, from, need_symbol, &x);
		if (x.missing != NONE)
			return fail(CLV_E_UNSUPPORTED, "%s is read from data in another part of the plan, or later",
			            plan_s(p, p->symbols.at[x.missing].name));
		n.later = x.later;
		*known = l->g->numbers.n;
		TRY(vec_push(&l->g->numbers, n));
	}
	*out = *known;
	return CLV_OK;
}

static clv_status int_arg(lowering *l, const arg *from, br_arg *to)
{
	int64_t k;
	if (expr_is_const(l->g->p, from->u.e, &k)) {
		to->kind = BR_INT;
		to->u.i = k;
		return CLV_OK;
	}
	to->kind = BR_INTVAR;
	return place_number(l, from, (live_number){NUMBER_INT, from->u.e, false}, &l->int_of[from->u.e], &to->u.id);
}

static clv_status real_arg(lowering *l, const arg *from, br_arg *to)
{
	to->kind = BR_REALVAR;
	return place_number(l, from, (live_number){NUMBER_REAL, from->u.r, false}, &l->real_of[from->u.r], &to->u.id);
}

/* A host result of an earlier step. */
static clv_status host_arg(lowering *l, const arg *from, br_arg *to)
{
	const value *v = &l->g->p->values.at[from->u.v];
	if (v->type != TYPE_INT && v->type != TYPE_FLOAT && v->type != TYPE_BOOL)
		return fail(CLV_E_UNSUPPORTED, "a host value that is no number as an argument");
	if (v->def < l->spec->first)
		return fail(CLV_E_UNSUPPORTED, "a number is read from data in another part of the plan");
	to->kind = v->type == TYPE_INT ? BR_INTVAR : v->type == TYPE_FLOAT ? BR_REALVAR : BR_BOOLVAR;
	return place_number(l, from, (live_number){NUMBER_HOST, from->u.v, true}, &l->host_of[from->u.v], &to->u.id);
}

static clv_status to_site_arg(lowering *l, const arg *from, br_arg *to)
{
	const plan *p = l->g->p;
	if (br_from_plain(p, from, to))
		return CLV_OK;
	*to = (br_arg){.wrapped = from->wrapped};
	switch ((arg_kind)from->kind) {
	case ARG_VALUE:
		if (p->values.at[from->u.v].kind == VALUE_OBJECT) {
			to->kind = BR_OBJECT;
			to->u.id = from->u.v;
			return CLV_OK;
		}
		if (p->values.at[from->u.v].type != TYPE_TENSOR)
			return host_arg(l, from, to);
		to->kind = BR_TENSOR;
		to->u.id = l->g->slot[from->u.v];
		return CLV_OK;
	case ARG_INT: return int_arg(l, from, to);
	case ARG_REAL: return real_arg(l, from, to);
	case ARG_LIST:
		to->kind = BR_LIST;
		to->u.list.n = from->u.list.n;
		to->u.list.at = arena_alloc(&l->a, (from->u.list.n + 1) * sizeof(br_arg));
		TRY_MEM(to->u.list.at);
		for (uint32_t i = 0; i < from->u.list.n; i++)
			TRY(to_site_arg(l, &p->args.at[from->u.list.first + i], &to->u.list.at[i]));
		return CLV_OK;
	default: return fail(CLV_E_INVALID, "an argument of an unknown kind");
	}
}

static clv_status to_site_result(lowering *l, const arg *from, br_arg *to)
{
	static const uint8_t kinds[] = {
		[TYPE_BOOL] = BR_BOOL, [TYPE_INT] = BR_INT,       [TYPE_FLOAT] = BR_FLOAT,  [TYPE_COMPLEX] = BR_COMPLEX,
		[TYPE_STR] = BR_STR,   [TYPE_OBJECT] = BR_OBJECT, [TYPE_TENSOR] = BR_TENSOR};
	const plan *p = l->g->p;
	*to = (br_arg){.kind = BR_NONE};
	if (from->kind == ARG_VALUE) {
		to->kind = kinds[p->values.at[from->u.v].type];
		if (to->kind == BR_TENSOR)
			to->u.id = l->g->slot[from->u.v];
	} else if (from->kind == ARG_LIST) {
		to->kind = BR_LIST;
		to->u.list.n = from->u.list.n;
		to->u.list.at = arena_alloc(&l->a, (from->u.list.n + 1) * sizeof(br_arg));
		TRY_MEM(to->u.list.at);
		for (uint32_t i = 0; i < from->u.list.n; i++)
			TRY(to_site_result(l, &p->args.at[from->u.list.first + i], &to->u.list.at[i]));
	}
	return CLV_OK;
}

/* How often each slot is read by the site in hand; a slot read once, for the last time, is taken. */
static uint32_t count_slot(const br_arg *args, uint32_t n, uint32_t slot)
{
	uint32_t c = 0;
	for (uint32_t i = 0; i < n; i++) {
		if (args[i].kind == BR_TENSOR)
			c += args[i].u.id == slot;
		else if (args[i].kind == BR_LIST)
			c += count_slot(args[i].u.list.at, args[i].u.list.n, slot);
	}
	return c;
}

static bool take_slot(br_arg *args, uint32_t n, uint32_t slot)
{
	for (uint32_t i = 0; i < n; i++) {
		if (args[i].kind == BR_TENSOR && args[i].u.id == slot) {
			args[i].take = 1;
			return true;
		}
		if (args[i].kind == BR_LIST && take_slot(args[i].u.list.at, args[i].u.list.n, slot))
			return true;
	}
	return false;
}

typedef struct dying {
	lowering *l;
	step *s;
	br_arg *args; /* NULL: nothing can be taken */
	uint32_t nargs;
	clv_status st;
} dying;

static void release_after(void *ctx, value_id v)
{
	dying *d = ctx;
	clv_program *g = d->l->g;
	if (d->st != CLV_OK || !dies_at(d->l, v, d->s->node))
		return;
	uint32_t slot = g->slot[v];
	if (d->args && count_slot(d->args, d->nargs, slot) == 1 && take_slot(d->args, d->nargs, slot))
		return;
	for (uint32_t i = d->s->frees; i < g->frees.n; i++)
		if (g->frees.at[i] == slot)
			return;
	d->st = vec_push(&g->frees, slot);
}

static clv_status release_dead(lowering *l, step *s, br_arg *args, uint32_t nargs)
{
	dying d = {l, s, args, nargs, CLV_OK};
	s->frees = l->g->frees.n;
	node_each_arg(l->g->p, s->node, release_after, &d);
	node_each_result(l->g->p, s->node, release_after, &d);
	s->nfrees = l->g->frees.n - s->frees;
	return d.st;
}

typedef struct check_walk {
	lowering *l;
	uint32_t host;
	clv_status st;
} check_walk;

/* The first result that has a data symbol defines it. */
static void add_read(void *ctx, symbol_id s, value_id v, uint32_t dim)
{
	check_walk *w = ctx;
	data_read r = {s, v, dim, dim == NONE ? w->host : NONE};
	if (w->st != CLV_OK || w->l->known[s])
		return;
	w->l->known[s] = true;
	w->st = vec_push(&w->l->g->reads, r);
}

static void add_check(void *ctx, value_id v)
{
	check_walk *w = ctx;
	const value *x = &w->l->g->p->values.at[v];
	value_each_data(w->l->g->p, v, add_read, w);
	check c = {v, x->type == TYPE_TENSOR ? NONE : w->host++};
	bool wanted = (x->flags & VALUE_GUARD) || x->type == TYPE_TENSOR;
	if (w->st == CLV_OK && wanted)
		w->st = vec_push(&w->l->g->checks, c);
}

static clv_status add_checks(lowering *l, step *s)
{
	check_walk w = {l, 0, CLV_OK};
	s->checks = l->g->checks.n;
	s->reads = l->g->reads.n;
	node_each_result(l->g->p, s->node, add_check, &w);
	s->nchecks = l->g->checks.n - s->checks;
	s->nreads = l->g->reads.n - s->reads;
	if (w.host > l->g->nhosts)
		l->g->nhosts = w.host;
	return w.st;
}

/* Marks what the node says that it writes. */
static void mark_written(const plan *p, const node *n, const arg *from, br_arg *to)
{
	for (uint32_t i = 0; to->kind == BR_LIST && i < to->u.list.n; i++)
		mark_written(p, n, &p->args.at[from->u.list.first + i], &to->u.list.at[i]);
	for (uint32_t i = 0; to->kind == BR_TENSOR && i < n->nwrites; i++)
		to->written |= alias_root(p, p->ids.at[n->writes + i]) == alias_root(p, from->u.v);
}

static clv_status lower_call(lowering *l, step *s)
{
	const plan *p = l->g->p;
	const node *n = &p->nodes.at[s->node];
	br_arg *args = arena_alloc(&l->a, (n->nargs + n->nresults + 1) * sizeof *args), *results = args + n->nargs;
	TRY_MEM(args);
	for (uint32_t i = 0; i < n->nargs; i++)
		TRY(to_site_arg(l, &p->args.at[n->args + i], &args[i]));
	for (uint32_t i = 0; i < n->nargs && n->nwrites; i++)
		mark_written(p, n, &p->args.at[n->args + i], &args[i]);
	for (uint32_t i = 0; i < n->nresults; i++)
		TRY(to_site_result(l, &p->args.at[n->results + i], &results[i]));
	TRY(release_dead(l, s, args, n->nargs));
	for (uint32_t i = 0; i < n->nargs; i++)
		if (args[i].kind == BR_OBJECT && args[i].u.id >= l->spec->nobjects)
			return fail(CLV_E_UNSUPPORTED,
			            "argument %u is an object (%s) that only the process that captured the plan has", i,
			            plan_s(p, p->values.at[args[i].u.id].name));
	return br_site_new(plan_s(p, n->op), args, n->nargs, results, n->nresults, l->spec->objects, l->spec->untrusted,
	                   &s->site);
}

static clv_status slots_of_args(lowering *l, uint32_t first, uint32_t n, uint32_t *at)
{
	const plan *p = l->g->p;
	*at = l->g->slots_of.n;
	for (uint32_t i = 0; i < n; i++) {
		const arg *a = &p->args.at[first + i];
		TRY(vec_push(&l->g->slots_of, a->kind == ARG_VALUE ? l->g->slot[a->u.v] : NONE));
	}
	return CLV_OK;
}

static clv_status lower_own(lowering *l, step *s)
{
	const plan *p = l->g->p;
	const node *n = &p->nodes.at[s->node];
	uint32_t skip = 0;
	if (s->kind == STEP_PYTHON) {
		if (!n->nargs || p->args.at[n->args].kind != ARG_VALUE)
			return fail(CLV_E_VERIFY, "cleave::python needs an object as its first argument");
		s->object = p->args.at[n->args].u.v;
		skip = 1;
	} else if (n->nargs != 3 || p->args.at[n->args].kind != ARG_VALUE || p->args.at[n->args + 1].kind != ARG_VALUE ||
	           p->args.at[n->args + 2].kind != ARG_STR) {
		return fail(CLV_E_VERIFY, "cleave::guard_equal takes two tensors and how the first is read");
	}
	s->nargs = s->kind == STEP_PYTHON ? n->nargs - skip : 2;
	s->nresults = n->nresults;
	TRY(slots_of_args(l, n->args + skip, s->nargs, &s->args));
	TRY(slots_of_args(l, n->results, n->nresults, &s->results));
	return release_dead(l, s, NULL, 0);
}

static clv_status lower_node(lowering *l, node_id id)
{
	clv_program *g = l->g;
	const node *n = &g->p->nodes.at[id];
	step s = {.kind = STEP_CALL, .node = id, .context = n->context};
	if (n->op_id == OP_cleave_python)
		s.kind = STEP_PYTHON;
	else if (n->op_id == OP_cleave_guard_equal)
		s.kind = STEP_GUARD_EQUAL;
	clv_status st = s.kind == STEP_CALL ? lower_call(l, &s) : lower_own(l, &s);
	if (st == CLV_OK)
		st = add_checks(l, &s); /* after the call: its results may define what later calls take */
	if (st == CLV_OK)
		st = vec_push(&g->steps, s);
	if (st != CLV_OK) {
		br_site_free(s.site);
		strbuf b = STRBUF_INIT;
		node_print(g->p, id, &b);
		char *line = NULL;
		if (strbuf_take(&b, &line) == CLV_OK)
			fail_more(st, "node %s cannot be prepared: %s\n  ", node_name(g->names, id), line);
		mem_free(line);
	}
	return st;
}

/* ---- segments --------------------------------------------------------------------------------------------------- */

static clv_status slots_of_values(lowering *l, const value_id *v, uint32_t n, uint32_t *at)
{
	*at = l->g->slots_of.n;
	for (uint32_t i = 0; i < n; i++)
		TRY(vec_push(&l->g->slots_of, l->g->slot[v[i]]));
	return CLV_OK;
}

static clv_status release_segment(lowering *l, step *s, const view *v)
{
	dying d = {l, s, NULL, 0, CLV_OK};
	s->frees = l->g->frees.n;
	for (uint32_t i = 0; i < v->inputs.n; i++)
		release_after(&d, v->inputs.at[i]);
	for (uint32_t i = 0; i < v->outputs.n; i++)
		release_after(&d, v->outputs.at[i]);
	s->nfrees = l->g->frees.n - s->frees;
	return d.st;
}

/* The nodes themselves, which write what is the outer program's as they would there. */
static clv_status segment_tape(lowering *l, const placed *at, clv_program **out)
{
	program_spec spec = {.first = at->at.first,
	                     .end = at->at.end,
	                     .inference = l->spec->inference,
	                     .untrusted = l->spec->untrusted,
	                     .writes_through = true,
	                     .objects = l->spec->objects,
	                     .nobjects = l->spec->nobjects,
	                     .outer = l->g,
	                     .live = &l->live};
	return program_new(l->g->p, &spec, out);
}

static clv_status lower_segment(lowering *l, code *c, const placed *at)
{
	const view *v = at->v;
	step s = {.kind = STEP_SEGMENT,
	          .node = at->at.first,
	          .context = NONE,
	          .nargs = v->inputs.n,
	          .nresults = v->outputs.n,
	          .tape = at->tape};
	TRY(slots_of_values(l, v->inputs.at, v->inputs.n, &s.args));
	TRY(slots_of_values(l, v->outputs.at, v->outputs.n, &s.results));
	TRY(release_segment(l, &s, v));
	if (!s.tape)
		TRY(segment_tape(l, at, &s.tape));
	s.compiled = code_ref(c);
	clv_status st = vec_push(&l->g->steps, s);
	if (st != CLV_OK) {
		code_unref(s.compiled);
		if (!at->tape)
			program_free(s.tape);
	}
	return st;
}

static clv_status lower_nodes(lowering *l)
{
	uint32_t k = 0;
	for (node_id n = l->spec->first; n < l->spec->end; n++) {
		if (k < l->ncodes && l->segments[k].at.first == n) {
			TRY(lower_segment(l, l->spec->codes[k], &l->segments[k]));
			n = l->segments[k++].at.end - 1;
			continue;
		}
		TRY(lower_node(l, n));
		arena_free(&l->a);
	}
	return CLV_OK;
}

static clv_status view_codes(lowering *l)
{
	const program_spec *spec = l->spec;
	node_id from = spec->first;
	l->views = mem_alloc(l->ncodes * sizeof *l->views);
	TRY_MEM(l->views);
	TRY(liveness_new(l->g->p, &l->live));
	for (uint32_t i = 0; i < l->ncodes; i++) {
		const code *c = spec->codes[i];
		if (c->first < from || c->first >= c->end || c->end > spec->end)
			return fail(CLV_E_INVALID,
			            "compiled segment %u has nodes %u to %u, which are not %u to %u, or not in order", i, c->first,
			            c->end, from, spec->end);
		l->segments[i] = (placed){.at = {c->first, c->end}, .v = &l->views[i]};
		TRY(view_segment(l->g->p, &l->live, c->first, c->end, &l->views[i]));
		from = c->end;
	}
	return segment_check(l->g->p, l->views, l->ncodes);
}

/* The code gives what it gave, whether or not the variant needs all of it: what goes in and out stays. */
static clv_status borrow_codes(lowering *l)
{
	const clv_program *of = l->spec->of;
	uint32_t k = 0;
	for (uint32_t i = 0; i < of->steps.n && k < l->ncodes; i++)
		if (of->steps.at[i].kind == STEP_SEGMENT) {
			clv_program *tape = of->steps.at[i].tape;
			l->segments[k] = (placed){.at = l->spec->places[k], .v = &tape->v, .tape = tape};
			k++;
		}
	return k == l->ncodes ? CLV_OK : fail(CLV_E_INVALID, "a variant has other segments than its program");
}

/* Codes in order, and what goes in and out of each. */
static clv_status find_segments(lowering *l)
{
	l->ncodes = l->spec->debug ? 0 : l->spec->ncodes;
	if (!l->ncodes)
		return CLV_OK;
	l->segments = mem_alloc(l->ncodes * sizeof *l->segments);
	TRY_MEM(l->segments);
	return l->spec->of ? borrow_codes(l) : view_codes(l);
}

/* ---- ends ------------------------------------------------------------------------------------------------------- */

/* A number of the output tree; tensors before it are counted. */
static clv_status choose_leaf(lowering *l, const tree *t, uint32_t *tensors)
{
	clv_program *g = l->g;
	br_arg a = {.kind = BR_NONE};
	if (t->kind == TREE_VALUE)
		++*tensors;
	else if (t->kind == TREE_INT)
		TRY(int_arg(l, &(arg){.kind = ARG_INT, .u.e = t->u.e}, &a));
	else if (t->kind == TREE_REAL)
		TRY(real_arg(l, &(arg){.kind = ARG_REAL, .u.r = t->u.r}, &a));
	if (a.kind != BR_INTVAR && a.kind != BR_REALVAR)
		return CLV_OK;
	TRY(vec_push(&g->out_places, *tensors + g->out_numbers.n));
	return vec_push(&g->out_numbers, a.u.id);
}

static clv_status choose_numbers(lowering *l)
{
	uint32_t tensors = 0;
	for (uint32_t i = 0; l->g->whole && i < l->g->p->out_tree.n; i++)
		TRY(choose_leaf(l, &l->g->p->out_tree.at[i], &tensors));
	return CLV_OK;
}

static clv_status choose_outputs(lowering *l)
{
	clv_program *g = l->g;
	TRY(view_gives(&g->v, g->whole, &g->outputs));
	for (uint32_t i = 0; i < g->outputs.n; i++)
		l->last[g->outputs.at[i]] = g->p->nodes.n; /* never freed by a step */
	return CLV_OK;
}

/* Inputs of a view that are no inputs of the plan belong to whoever made them: if the view writes them it works on a
   copy. (Inputs of the plan are written as the model itself would.) */
static clv_status find_cloned(clv_program *g, const bool *written)
{
	const plan *p = g->p;
	for (uint32_t i = 0; i < g->v.inputs.n; i++) {
		value_id in = g->v.inputs.at[i];
		if (p->values.at[in].kind != VALUE_INPUT && written[alias_root(p, in)])
			TRY(vec_push(&g->cloned, in));
	}
	return CLV_OK;
}

static clv_status find_writes(clv_program *g, bool through)
{
	bool *written;
	TRY(view_written(&g->v, &written));
	for (value_id v = 0; v < g->p->values.n; v++)
		g->writes_inputs |= written[v] && g->p->values.at[v].kind == VALUE_INPUT;
	clv_status st = through ? CLV_OK : find_cloned(g, written);
	mem_free(written);
	return st;
}

static void context_modes(const plan *p, const context *c, br_modes *m)
{
	*m = (br_modes){.grad = !c->nograd && !c->inference, .inference = c->inference, .flags = c->flags};
	for (uint32_t i = 0; i < c->nautocast; i++) {
		const autocast *a = &p->autocasts.at[c->autocast + i];
		for (uint32_t d = 0; d < BR_AUTOCAST_DEVICES; d++)
			if (!strcmp(plan_s(p, a->device), br_autocast_device_names[d])) {
				m->autocast[d] = true;
				m->autocast_dtype[d] = a->dtype;
				m->autocast_cache = a->cache;
			}
	}
}

typedef struct host_walk {
	lowering *l;
	uint32_t host;
	clv_status st;
} host_walk;

static void keep_host(void *ctx, value_id v)
{
	host_walk *w = ctx;
	if (w->l->g->p->values.at[v].type == TYPE_TENSOR)
		return;
	if (w->l->host_of[v] != NONE && w->st == CLV_OK)
		w->st = vec_push(&w->l->g->keeps, ((host_keep){w->host, w->l->host_of[v]}));
	w->host++;
}

/* Which host results later steps take is known when all are lowered. */
static clv_status find_keeps(lowering *l)
{
	clv_program *g = l->g;
	for (uint32_t i = 0; i < g->steps.n; i++) {
		step *s = &g->steps.at[i];
		host_walk w = {l, 0, CLV_OK};
		s->keeps = g->keeps.n;
		node_each_result(g->p, s->node, keep_host, &w);
		TRY(w.st);
		s->nkeeps = g->keeps.n - s->keeps;
	}
	return CLV_OK;
}

/* Symbols that are known when a run starts: given, or a size of what comes in. */
static void find_known(lowering *l)
{
	const plan *p = l->g->p;
	for (symbol_id s = 0; s < p->symbols.n; s++)
		l->known[s] = !p->symbols.at[s].data;
	for (uint32_t i = 0; i < l->g->v.inputs.n; i++) {
		const value *x = &p->values.at[l->g->v.inputs.at[i]];
		symbol_id s;
		for (uint32_t d = 0; x->type == TYPE_TENSOR && d < x->ndim; d++)
			if (expr_is_data(p, p->dims.at[x->shape + d], &s))
				l->known[s] = true;
	}
}

static clv_status lower(lowering *l)
{
	clv_program *g = l->g;
	find_known(l);
	TRY(find_segments(l));
	assign_slots(l);
	TRY(choose_outputs(l));
	TRY(find_writes(g, l->spec->writes_through));
	for (uint32_t i = 0; i < g->p->contexts.n; i++) {
		context_modes(g->p, &g->p->contexts.at[i], &g->modes[i]);
		g->autocast |= g->p->contexts.at[i].nautocast != 0;
		g->flags |= g->p->contexts.at[i].flags_mask != 0;
	}
	TRY(lower_nodes(l));
	for (uint32_t i = 0; i < g->steps.n; i++)
		g->resizes |= g->steps.at[i].site && br_site_resizes(g->steps.at[i].site);
	TRY(choose_numbers(l));
	return find_keeps(l);
}

static clv_status program_init(lowering *l, const plan *p)
{
	clv_program *g = l->g;
	g->p = p;
	g->debug = l->spec->debug;
	g->inference = l->spec->inference;
	g->untrusted = l->spec->untrusted;
	g->segment = l->spec->outer != NULL;
	g->variant = l->spec->of != NULL;
	g->threads = l->spec->threads;
	g->whole = l->spec->end == p->nodes.n && !l->spec->live;
	if (l->spec->live)
		TRY(view_segment(p, l->spec->live, l->spec->first, l->spec->end, &g->v));
	else
		TRY(view_range_like(p, l->spec->first, l->spec->end, l->spec->of ? &l->spec->of->v : NULL, &g->v));
	if (g->segment)
		g->names = l->spec->outer->names;
	else
		TRY(node_names_new(p, &g->names));
	g->slot = mem_ids(p->values.n);
	l->last = mem_ids(p->values.n);
	l->int_of = mem_ids(p->exprs.n);
	l->real_of = mem_ids(p->reals.n);
	l->host_of = mem_ids(p->values.n);
	l->known = mem_alloc(p->symbols.n + 1);
	g->modes = mem_alloc((p->contexts.n + 1) * sizeof *g->modes);
	g->bound = mem_alloc((g->v.externals.n + 1) * sizeof(br_tensor *));
	TRY_MEM(g->slot && l->last && l->int_of && l->real_of && l->host_of && l->known && g->modes && g->bound);
	return lower(l);
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

typedef struct device_walk {
	const plan *p;
	bool cpu;
} device_walk;

static void look_at_device(void *ctx, value_id v)
{
	device_walk *w = ctx;
	const value *x = &w->p->values.at[v];
	if (x->type == TYPE_TENSOR && strcmp(plan_s(w->p, x->device), "cpu") != 0)
		w->cpu = false;
}

/* Where devices have a part in it, memory of the host may be in use after a step is done. */
static bool only_cpu(const clv_program *g)
{
	device_walk w = {g->p, true};
	for (uint32_t i = 0; i < g->v.nodes.n && w.cpu; i++) {
		node_each_arg(g->p, g->v.nodes.at[i], look_at_device, &w);
		node_each_result(g->p, g->v.nodes.at[i], look_at_device, &w);
	}
	return w.cpu;
}

static clv_status give_pool(clv_program *g, const program_spec *spec)
{
	bool wanted = (spec->optimize || spec->pooled) && !spec->native && !spec->debug && !spec->outer &&
	              !pass_is_off(spec->passes_off, "memory");
	if (!wanted || !only_cpu(g) || !br_pool_install())
		return CLV_OK;
	return pool_new(g->steps.n + 1, g->p->symbols.n, &g->memory); /* step 0: what comes before the first */
}

static clv_status make_faster(clv_program *g, const program_spec *spec)
{
	if (spec->debug)
		return CLV_OK;
	atomic_init(&g->turn, spec->choose_later ? NATIVE_WAITS : NATIVE_COMPARED);
	if (spec->native)
		return native_part_new(&engine_native, g->p, spec->first, spec->end, spec->optimize ? "fast" : "none",
		                       &g->native);
	return spec->optimize ? optimizer_new(g, spec, &g->optimizer) : CLV_OK;
}

static _Atomic uint64_t ids;

clv_status program_new(const plan *p, const program_spec *spec, clv_program **out)
{
	if (spec->first > spec->end || spec->end > p->nodes.n)
		return fail(CLV_E_INVALID, "nodes %u to %u are not a part of a plan of %u nodes", spec->first, spec->end,
		            p->nodes.n);
	TRY(br_team_check(spec->threads));
	clv_program *g = mem_alloc(sizeof *g);
	TRY_MEM(g);
	g->id = atomic_fetch_add(&ids, 1);
	lowering l = {.g = g, .spec = spec};
	clv_status st = program_init(&l, p);
	arena_free(&l.a);
	mem_free(l.last);
	mem_free(l.int_of);
	mem_free(l.real_of);
	mem_free(l.host_of);
	mem_free(l.known);
	for (uint32_t i = 0; l.views && i < l.ncodes; i++)
		view_free(&l.views[i]);
	mem_free(l.views);
	mem_free(l.segments);
	liveness_free(&l.live);
	if (st == CLV_OK)
		st = give_pool(g, spec);
	g->assumes = (spec->optimize || spec->ncodes) && !spec->debug;
	if (st == CLV_OK && !spec->of && !spec->outer)
		st = apart_new(g, &g->apart);
	if (st == CLV_OK && !spec->of && !spec->outer)
		st = undo_new(g, &g->undo);
	if (st == CLV_OK)
		st = make_faster(g, spec);
	if (st != CLV_OK) {
		program_free(g);
		return st;
	}
	*out = g;
	return CLV_OK;
}

void program_free(clv_program *g)
{
	if (!g)
		return;
	for (uint32_t i = 0; i < g->steps.n; i++) {
		br_site_free(g->steps.at[i].site);
		code_unref(g->steps.at[i].compiled);
		if (!g->variant)
			program_free(g->steps.at[i].tape);
	}
	for (uint32_t i = 0; g->bound && i < g->v.externals.n; i++)
		br_unref(g->bound[i]);
	optimizer_free(g->optimizer);
	native_part_free(g->native);
	apart_free(g->apart);
	undo_free(g->undo);
	beginnings_free(g);
	pool_free(g->memory);
	frame_free(atomic_load(&g->spare));
	view_free(&g->v);
	if (!g->segment)
		node_names_free(g->names);
	vec_free(&g->steps);
	vec_free(&g->checks);
	vec_free(&g->frees);
	vec_free(&g->slots_of);
	vec_free(&g->numbers);
	vec_free(&g->outputs);
	vec_free(&g->out_numbers);
	vec_free(&g->out_places);
	vec_free(&g->reads);
	vec_free(&g->keeps);
	vec_free(&g->cloned);
	mem_free(g->slot);
	mem_free(g->modes);
	mem_free(g->bound);
	mem_free(g);
}
