/* Programs: which nodes the engine takes, the passes before lowering, what writes reach, and the tensors that are bound. */
#include "memory/room.h"
#include "native/lowering.h"
#include "native/packed.h"

#include <string.h>

#include "native/team.h"
#include "plan/data.h"
#include "plan/intern.h"

/* ---- what it takes --------------------------------------------------------------------------------------------------------- */

typedef struct taking {
	const plan *p;
	bool checks; /* the operator looks at sizes that depend on data */
	const char *why;
} taking;

static bool has_type(uint8_t d)
{
	return d == DT_F32 || d == DT_F64 || d == DT_I64 || d == DT_I32 || d == DT_I16 || d == DT_I8 || d == DT_U8 ||
	       d == DT_BOOL || d == DT_F16 || d == DT_BF16;
}

static void take_arg(void *ctx, value_id v)
{
	taking *t = ctx;
	if (t->p->values.at[v].type != TYPE_TENSOR && t->p->values.at[v].kind == VALUE_RESULT && !t->why)
		t->why = "it takes a number that is read from data";
}

static void take_value(void *ctx, value_id v)
{
	taking *t = ctx;
	const value *x = &t->p->values.at[v];
	if (t->why)
		return;
	if (x->type == TYPE_TENSOR && x->kind == VALUE_OBJECT)
		t->why = "it takes an object that is no tensor";
	else if (x->type == TYPE_OBJECT || x->type == TYPE_STR || x->type == TYPE_COMPLEX)
		t->why = "a value of it is no tensor and no plain number";
	else if (x->type != TYPE_TENSOR)
		return;
	else if (x->flags & VALUE_ODD)
		t->why = "a tensor of it is sparse or nested";
	else if (strcmp(plan_s(t->p, x->device), "cpu") != 0)
		t->why = "a tensor of it is not on the CPU";
	else if (x->dtype == DT_C32 || x->dtype == DT_C64 || x->dtype == DT_C128)
		t->why = "a tensor of it is complex";
	else if (!has_type(x->dtype))
		t->why = "there is no kernel for a dtype of it";
	else if (x->ndim > NT_DIMS)
		t->why = "a tensor of it has more than 8 dimensions";
	else if (shape_takes_data(t->p, x) || (!t->checks && value_guarded(t->p, v)))
		t->why = "a shape depends on data";
}

/* What it writes is its first argument, which it returns. */
static const char *take_writes(const plan *p, const node *x)
{
	const arg *a = x->nargs ? &p->args.at[x->args] : NULL, *r = x->nresults ? &p->args.at[x->results] : NULL;
	if (!x->nwrites)
		return op_rows[x->op_id].writes ? "it writes, and the plan does not say where" : NULL;
	if (!op_rows[x->op_id].writes || !a || a->kind != ARG_VALUE || !r || r->kind != ARG_VALUE || x->nresults != 1)
		return "it writes something else than its first argument";
	for (uint32_t i = 0; i < x->nwrites; i++)
		if (alias_root(p, p->ids.at[x->writes + i]) != alias_root(p, a->u.v))
			return "it writes something else than its first argument";
	return alias_root(p, r->u.v) == alias_root(p, a->u.v) ? NULL : "it returns something else than it writes";
}

typedef struct reader {
	const plan *p;
	node_id maker;
	bool found;
} reader;

static void see_use(void *ctx, value_id v)
{
	reader *r = ctx;
	const value *x = &r->p->values.at[v];
	r->found |= x->kind == VALUE_RESULT && x->def == r->maker;
}

bool native_skips(const plan *p, node_id n)
{
	enum { FAR = 4096 }; /* nodes: plans may have any number of draws */
	reader r = {.p = p, .maker = n};
	if (!node_draws(p, n) || p->nodes.at[n].nwrites || p->nodes.n - n > FAR)
		return false;
	for (node_id k = n + 1; k < p->nodes.n && !r.found; k++)
		node_each_use(p, k, see_use, &r);
	plan_each_output(p, see_use, &r);
	for (uint32_t i = 0; i < p->rebinds.n; i++)
		see_use(&r, p->rebinds.at[i].value);
	return !r.found;
}

const char *native_takes(const plan *p, node_id n)
{
	const node *x = &p->nodes.at[n];
	const native_op *o = native_op_of(x->op_id);
	if (native_skips(p, n))
		return NULL;
	if (node_draws(p, n))
		return "it draws random numbers";
	if (!o)
		return "there is no kernel for this operator";
	taking t = {.p = p, .checks = true}; /* arguments: by the node that makes them */
	if (node_takes(p, n, NONE))
		return "it takes a number that is read from data";
	if (p->contexts.at[x->context].nautocast)
		return "it runs under autocast";
	node_each_arg(p, n, take_value, &t);
	node_each_arg(p, n, take_arg, &t);
	t.checks = o->checks;
	node_each_result(p, n, take_value, &t);
	if (t.why)
		return t.why;
	const char *why = take_writes(p, x);
	if (!why && o->takes)
		why = o->takes(p, n);
	return why || o->lower ? why : "there is no kernel for this operator";
}

static const char *refused(const plan *p, node_id first, node_id end, node_id *n)
{
	for (*n = first; *n < end; ++*n) {
		const char *why = native_takes(p, *n);
		if (why)
			return why;
	}
	return NULL;
}

/* ---- what writes reach ------------------------------------------------------------------------------------------------------- */

typedef struct uses {
	native_program *g;
	node_id now;
} uses;

static void note_use(void *ctx, value_id v)
{
	uses *u = ctx;
	u->g->last[v] = u->now;
}

static void count_use(void *ctx, value_id v)
{
	((native_program *)ctx)->uses[v]++;
}

/* A root and a node that writes it; sorted, those of a root are one after the other. */
typedef VEC(uint64_t) writes;

static uint64_t write_of(value_id root, node_id n)
{
	return (uint64_t)root << 32 | n;
}

static clv_status note_writes(native_program *g, node_id n, writes *w)
{
	const node *x = &g->p->nodes.at[n];
	for (uint32_t i = 0; i < x->nwrites; i++) {
		value_id root = alias_root(g->p, g->p->ids.at[x->writes + i]);
		g->last_write[root] = n;
		TRY(vec_push(w, write_of(root, n)));
	}
	return CLV_OK;
}

static int by_number(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return x < y ? -1 : x > y;
}

/* Some node from `first` on and before `end` writes it. */
static bool is_written(const writes *w, value_id root, node_id first, node_id end)
{
	uint32_t low = 0, high = w->n;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (w->at[middle] < write_of(root, first))
			low = middle + 1;
		else
			high = middle;
	}
	return first < end && low < w->n && w->at[low] < write_of(root, end);
}

/* A view that was made before a write and is used at it or after: it sees the write. Results of writers are no views here. */
static bool sees_write(const native_program *g, value_id v, const writes *w)
{
	const value *x = &g->p->values.at[v];
	value_id root = alias_root(g->p, v);
	bool made = x->kind == VALUE_RESULT && x->def >= g->part[0] && x->def < g->part[PARTS];
	if (x->alias == NONE || g->last_write[root] == NONE || (made && g->p->nodes.at[x->def].nwrites))
		return false;
	node_id end = g->kept[v] ? g->part[PARTS] : g->last[v] == NONE ? 0 : g->last[v] + 1;
	return is_written(w, root, made ? x->def + 1 : g->part[0], end);
}

static void find_strict(native_program *g, writes *w)
{
	if (w->n)
		qsort(w->at, w->n, sizeof *w->at, by_number);
	for (value_id v = 0; v < g->p->values.n; v++)
		if (sees_write(g, v, w))
			g->strict[alias_root(g->p, v)] = true;
}

static clv_status see_nodes(native_program *g, writes *w)
{
	uses u = {.g = g};
	for (u.now = g->part[0]; u.now < g->part[PARTS]; u.now++) {
		node_each_use(g->p, u.now, note_use, &u);
		node_each_arg(g->p, u.now, count_use, g);
		TRY(note_writes(g, u.now, w));
		g->guards |= node_guards(g->p, u.now);
	}
	find_strict(g, w);
	return CLV_OK;
}

static clv_status find_uses(native_program *g)
{
	const plan *p = g->p;
	writes w = {0};
	g->last = mem_ids(p->values.n + 1);
	g->last_write = mem_ids(p->values.n + 1);
	g->uses = mem_alloc((p->values.n + 1) * sizeof *g->uses);
	g->strict = mem_alloc(p->values.n + 1);
	g->kept = mem_alloc(p->values.n + 1);
	TRY_MEM(g->last && g->last_write && g->uses && g->strict && g->kept);
	for (uint32_t i = 0; i < g->outputs.n; i++)
		g->kept[g->outputs.at[i]] = true;
	clv_status st = see_nodes(g, &w);
	vec_free(&w);
	return st;
}

static clv_status find_changing(native_program *g)
{
	const view *v = &g->v;
	g->changing = mem_alloc(v->externals.n + 1);
	g->externals = mem_alloc((v->externals.n + 1) * sizeof *g->externals);
	g->writes = mem_alloc(v->inputs.n + 1);
	TRY_MEM(g->changing && g->externals && g->writes);
	for (uint32_t i = 0; i < v->inputs.n; i++)
		g->writes[i] = g->last_write[alias_root(g->p, v->inputs.at[i])] != NONE;
	for (uint32_t i = 0; i < v->externals.n; i++)
		g->changing[i] = g->last_write[alias_root(g->p, v->externals.at[i])] != NONE;
	for (value_id i = 0; i < g->p->values.n; i++)
		g->writes_outside |= g->last_write[i] != NONE && g->p->values.at[i].kind != VALUE_RESULT;
	return CLV_OK;
}

/* ---- passes ------------------------------------------------------------------------------------------------------------------ */

/* Left out: those that make what only torch has, and those that the engine does in its own way; then also those that replace
   operators by others, which it may not have. */
static const char *const passes_off[] = {"channels_last", "conv_as_linear", "bias_apart", "fuse", "in_place", NULL};
static const char *const more_off[] = {"channels_last", "conv_as_linear", "bias_apart", "fuse",
                                       "in_place",      "functions",      "norms",      "attention",
                                       "rotary",        "merge_linears",  "views",      NULL};

static void use_as_captured(native_program *g, const engine_order *o)
{
	g->p = g->original;
	for (unsigned i = 0; i <= PARTS; i++)
		g->part[i] = i < PARTS ? o->first : o->end;
}

/* False: what the passes made is not all taken. */
static clv_status try_passes(native_program *g, const engine_order *o, const char *const *off, bool *taken)
{
	optimize_spec s = {.level = OPTIMIZE_FAST, .off = off, .groups = native_group_role};
	node_id n;
	TRY(optimize(g->original, o->first, o->end, &s, &g->made));
	*taken = !refused(g->made.p, g->made.part[0], g->made.part[PARTS], &n);
	if (!*taken) {
		optimized_plan_free(&g->made);
		return CLV_OK;
	}
	memcpy(g->part, g->made.part, sizeof g->part);
	g->p = g->made.p;
	return CLV_OK;
}

static clv_status choose_plan(native_program *g, const engine_order *o)
{
	optimize_level asked;
	bool taken = false;
	TRY(optimize_level_read(o->o->optimize, &asked));
	if (asked != OPTIMIZE_NONE)
		TRY(try_passes(g, o, passes_off, &taken));
	if (asked != OPTIMIZE_NONE && !taken)
		TRY(try_passes(g, o, more_off, &taken));
	if (!taken)
		use_as_captured(g, o);
	return CLV_OK;
}

static clv_status check_taken(const plan *p, node_id first, node_id end)
{
	node_id n;
	const char *why = refused(p, first, end, &n);
	if (!why)
		return CLV_OK;
	return fail(CLV_E_UNSUPPORTED, "native does not take %s: %s", plan_s(p, p->nodes.at[n].op), why);
}

static clv_status find_numbers(native_program *g, bool whole)
{
	const plan *p = g->original;
	int64_t k;
	for (uint32_t i = 0; whole && i < p->out_tree.n; i++) {
		const tree *t = &p->out_tree.at[i];
		if (t->kind == TREE_REAL || (t->kind == TREE_INT && !expr_is_const(p, t->u.e, &k)))
			TRY(vec_push(&g->numbers, i));
	}
	return CLV_OK;
}

static clv_status fill(native_program *g, const engine_order *o)
{
	g->original = o->of->p;
	g->of = o->a;
	g->number = o->number;
	TRY(native_isa_check());
	g->k = native_kernels_here();
	g->lays = *g->k;
	g->isa = native_isa_name(g->k);
	g->origin = artifact_origin(o->a);
	g->store = g->origin ? packed_for(g->origin, g->isa) : NULL;
	TRY(memory_store_new(&g->given));
	TRY(team_get_lent(o->o->threads, o->lend, &g->team));
	g->threads = team_threads(g->team);
	TRY(check_taken(g->original, o->first, o->end));
	TRY(view_range(g->original, o->first, o->end, &g->v));
	TRY(view_gives(&g->v, o->of->whole, &g->outputs));
	TRY(choose_plan(g, o));
	TRY(node_names_new(g->p, &g->names));
	TRY(find_numbers(g, o->of->whole));
	TRY(find_uses(g));
	return find_changing(g);
}

typedef struct finder {
	const native_program *g;
	node_id found;
} finder;

static void see_result(void *ctx, value_id v)
{
	finder *f = ctx;
	const plan *p = f->g->original;
	if (v < p->values.n && p->values.at[v].kind == VALUE_RESULT)
		f->found = p->values.at[v].def;
}

/* The node that made one of the values, or that of the nodes after it. */
node_id native_node_of(const native_program *g, node_id n)
{
	finder f = {g, NONE};
	if (g->p == g->original)
		return n;
	for (; n < g->part[PARTS] && f.found == NONE; n++)
		node_each_result(g->p, n, see_result, &f);
	return f.found == NONE ? g->v.nodes.at[0] : f.found;
}

clv_status native_lower(const engine_order *o, native_program **out)
{
	native_program *g = mem_alloc(sizeof *g);
	if (!g)
		return fail_nomem();
	pthread_mutex_init(&g->lock, NULL);
	clv_status st = fill(g, o);
	if (st == CLV_OK)
		*out = g;
	else
		native_program_free(g);
	return st;
}

clv_status native_pack_for(native_program *g, const char *isa)
{
	shaped_drop_all(g);
	g->packs = true;
	return native_lay_for(isa, &g->isa, &g->lays);
}

void native_program_free(native_program *g)
{
	if (!g)
		return;
	shaped_drop_all(g);
	for (uint32_t i = 0; g->externals && i < g->v.externals.n; i++)
		clv_tensor_free(g->externals[i]);
	mem_free(g->externals);
	mem_free(g->changing);
	mem_free(g->writes);
	mem_free(g->last);
	mem_free(g->last_write);
	mem_free(g->uses);
	mem_free(g->strict);
	mem_free(g->kept);
	node_names_free(g->names);
	vec_free(&g->numbers);
	vec_free(&g->outputs);
	view_free(&g->v);
	optimized_plan_free(&g->made);
	memory_store_close(g->given);
	room_give(g->room);
	pthread_mutex_destroy(&g->lock);
	team_put(g->team);
	mem_free(g);
}

/* ---- tensors from outside ------------------------------------------------------------------------------------------------------ */

static bool same_form(const clv_tensor *a, const clv_tensor *b)
{
	size_t n = a->m.ndim * sizeof *a->m.sizes;
	return a->m.dtype == b->m.dtype && a->m.ndim == b->m.ndim && memcmp(a->m.sizes, b->m.sizes, n) == 0 &&
	       memcmp(a->m.strides, b->m.strides, n) == 0;
}

/* What was made of the old one does not hold for the new one. */
static bool makes_stale(const native_program *g, uint32_t i, const clv_tensor *t)
{
	const clv_tensor *old = g->externals[i];
	if (!old || !t)
		return old != t;
	return g->changing[i] ? !same_form(old, t) : old != t;
}

clv_status native_bind(native_program *g, clv_tensor *const *externals)
{
	for (uint32_t i = 0; i < g->v.externals.n; i++) {
		g->stale |= makes_stale(g, i, externals[i]);
		clv_tensor *mine = tensor_ref(externals[i]);
		clv_tensor_free(g->externals[i]);
		g->externals[i] = mine;
	}
	if (g->stale)
		shaped_drop_all(g);
	g->stale = false;
	g->bound = true;
	return CLV_OK;
}

/* Before the first tensors are bound: another plan writes it between runs, so nothing is made of it once. Later: it was
   written, and is bound again. */
void native_changed(native_program *g, value_id external)
{
	g->stale = true;
	if (g->bound)
		return;
	for (uint32_t i = 0; i < g->v.externals.n; i++)
		g->changing[i] |= external == NONE || g->v.externals.at[i] == external;
	for (unsigned i = 0; i < PARTS; i++)
		g->part[i] = g->part[0];
}
