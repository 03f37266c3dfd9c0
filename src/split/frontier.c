/* Frontiers: where a plan can be cut in two, what crosses there, and what each side costs.
 *
 * A frontier after node k puts nodes 0 … k into the prefix. What crosses is what was made (or came in) before the cut and
 * is needed after it. All frontiers are counted in one sweep, linear in the plan: every value is alive over an interval
 * of positions, so counts and bytes are sums over intervals. Whether a cut is safe: judge.c; which one is meant: choose.c. */
#include "split/frontier.h"

#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "base/options.h"
#include "file/payload.h"
#include "plan/data.h"
#include "plan/flops.h"
#include "plan/poly.h"
#include "split/early.h"

/* ---- values ---------------------------------------------------------------------------------------------------------- */

node_id value_born(const plan *p, value_id v)
{
	return p->values.at[v].kind == VALUE_INPUT ? 0 : p->values.at[v].def; /* inputs are there before node 0 */
}

bool can_cross(const plan *p, value_id v)
{
	return p->values.at[v].type == TYPE_TENSOR && moves(p, v);
}

bool can_be_sent(const value *x)
{
	dtype wire;
	uint32_t parts;
	return x->type == TYPE_TENSOR && !(x->flags & VALUE_ODD) && wire_dtype((dtype)x->dtype, &wire, &parts);
}

bool moves(const plan *p, value_id v)
{
	return p->values.at[v].kind == VALUE_INPUT || p->values.at[v].kind == VALUE_RESULT;
}

/* A size may come out negative at these symbols; it counts as 0. */
static int64_t at_most_64(__int128 n)
{
	return n < INT64_MAX ? (int64_t)n : INT64_MAX;
}

static int64_t product_of_sizes(const clv_frontiers *f, value_id v, int64_t n)
{
	const value *x = &f->p->values.at[v];
	for (uint32_t d = 0; d < x->ndim; d++) {
		expr_id e = f->p->dims.at[x->shape + d];
		int64_t size = f->sizes[e] > 0 ? f->sizes[e] : 0;
		if (!f->defined[e] || __builtin_mul_overflow(n, size, &n))
			return INT64_MAX;
	}
	return n;
}

/* Bytes in a payload; of q1 … q8 at most. */
static int64_t sent_bytes(const clv_frontiers *f, value_id v, encoding e)
{
	__int128 n = product_of_sizes(f, v, 1), bits = encoded_bits(e, (dtype)f->p->values.at[v].dtype);
	return n == INT64_MAX ? INT64_MAX : at_most_64((n * bits + 7) / 8);
}

int64_t value_bytes_at(const clv_frontiers *f, value_id v)
{
	return product_of_sizes(f, v, dtype_bits((dtype)f->p->values.at[v].dtype) / 8);
}

void last_writers(const plan *p, node_id *writer)
{
	for (node_id k = 0; k < p->nodes.n; k++)
		for (uint32_t w = 0; w < p->nodes.at[k].nwrites; w++)
			writer[alias_root(p, p->ids.at[p->nodes.at[k].writes + w])] = k;
}

/* ---- what crosses ---------------------------------------------------------------------------------------------------- */

static clv_status add_crossing_entry(crossings *c, uint32_t tree_node, value_id v)
{
	uint32_t next = c->head[tree_node];
	c->head[tree_node] = c->entries.n;
	return vec_push(&c->entries, ((crossing_entry){v, next}));
}

/* Value v crosses at positions first … end-1. */
static clv_status add_interval(crossings *c, value_id v, uint32_t first, uint32_t end)
{
	for (first += c->n, end += c->n; first < end; first /= 2, end /= 2) {
		if (first & 1)
			TRY(add_crossing_entry(c, first++, v));
		if (end & 1)
			TRY(add_crossing_entry(c, --end, v));
	}
	return CLV_OK;
}

typedef VEC(value_id) value_list;

/* What crosses, ascending. */
static clv_status frontier_values(const clv_frontiers *f, uint32_t i, value_list *out)
{
	const crossings *c = &f->cross;
	for (uint32_t t = i + c->n; t > 0; t /= 2)
		for (uint32_t e = c->head[t]; e != NONE; e = c->entries.at[e].next)
			TRY(vec_push(out, c->entries.at[e].v));
	out->n = sort_unique_ids(out->at, out->n);
	return CLV_OK;
}

/* How the sums change from one position to the next: a value costs the same however long it lives. */
typedef struct change {
	int64_t tensors, passthrough;
	__int128 bytes, sent[ENC_COUNT]; /* exact also where the sum is more than 2^63 */
} change;

static void add_change(change *c, int64_t sign, const clv_frontiers *f, value_id v)
{
	const value *x = &f->p->values.at[v];
	c->tensors += sign;
	c->passthrough += x->kind == VALUE_INPUT ? sign : 0;
	c->bytes += (__int128)sign * value_bytes_at(f, v);
	for (int e = 0; e < ENC_COUNT; e++)
		c->sent[e] += (__int128)sign * sent_bytes(f, v, (encoding)e);
}

/* A value crosses at positions k with born <= k < last. */
static clv_status add_crossing(clv_frontiers *f, change *by)
{
	const plan *p = f->p;
	for (value_id v = 0; v < p->values.n; v++) {
		if (!can_cross(p, v) || f->live.last[v] == NONE)
			continue;
		node_id first = value_born(p, v), end = earlier(f->live.last[v], f->n);
		if (first >= end)
			continue;
		add_change(&by[first], 1, f, v);
		add_change(&by[end], -1, f, v);
		TRY(add_interval(&f->cross, v, first, end));
	}
	return CLV_OK;
}

static clv_status count_crossing(clv_frontiers *f)
{
	change *by = mem_alloc((f->n + 1) * sizeof *by), sum = {0};
	f->cross.n = f->n;
	f->cross.head = mem_ids(2 * (size_t)f->n + 2);
	clv_status st = by && f->cross.head ? add_crossing(f, by) : fail_nomem();
	for (node_id k = 0; st == CLV_OK && k < f->n; k++) {
		frontier *c = &f->at[k];
		sum.tensors += by[k].tensors;
		sum.passthrough += by[k].passthrough;
		sum.bytes += by[k].bytes;
		for (int e = 0; e < ENC_COUNT; e++) {
			sum.sent[e] += by[k].sent[e];
			c->sent[e] = at_most_64(sum.sent[e]);
		}
		c->tensors = (uint32_t)sum.tensors;
		c->passthrough = (uint32_t)sum.passthrough;
		c->bytes = at_most_64(sum.bytes);
	}
	mem_free(by);
	return st;
}

static void count_inputs(clv_frontiers *f)
{
	__int128 sum = 0;
	for (value_id v = 0; v < f->p->values.n; v++)
		if (f->p->values.at[v].kind == VALUE_INPUT && can_cross(f->p, v) && f->live.last[v] != NONE) {
			sum += value_bytes_at(f, v);
			f->inputs++;
		}
	f->input_bytes = at_most_64(sum);
}

/* ---- what each side costs -------------------------------------------------------------------------------------------- */

/* A size may come out negative at these symbols; such a node counts as no work. */
static double work_of(const clv_frontiers *f, node_id k)
{
	double work = node_flops(f->p, k, f->sizes);
	return work > 0 ? work : 0;
}

static void count_work(clv_frontiers *f)
{
	uint32_t n = f->p->nodes.n;
	double total = 0;
	for (node_id k = 0; k < n; k++) {
		total += work_of(f, k);
		f->at[k].flops[PREFIX] = total; /* one frontier more than there are has room */
	}
	f->flops = total;
	bool known = total > 0 && isfinite(total);
	for (node_id k = 0; k < f->n; k++) {
		frontier *c = &f->at[k];
		c->cost = known ? c->flops[PREFIX] / total : (double)(k + 1) / n;
		c->flops[SUFFIX] = known ? total - c->flops[PREFIX] : total;
	}
}

static void mark_trainable(clv_frontiers *f)
{
	const plan *p = f->p;
	node_id last = 0;
	bool any = false;
	for (value_id v = 0; v < p->values.n; v++)
		if ((p->values.at[v].flags & VALUE_TRAINABLE) && f->live.last[v] != NONE) {
			any = true;
			last = f->live.last[v] > last ? f->live.last[v] : last;
		}
	for (node_id k = 0; any && k < f->n && k < last; k++)
		f->at[k].trainable = true;
}

typedef struct user {
	node_id *first;
	node_id now;
} user;

static void note_first(void *ctx, value_id v)
{
	((user *)ctx)->first[v] = ((user *)ctx)->now;
}

/* Per value: the first node that uses it, p->nodes.n if only what is after the last node does. NULL: out of memory. */
static node_id *first_uses(const clv_frontiers *f)
{
	const plan *p = f->p;
	user u = {mem_ids(p->values.n), p->nodes.n};
	for (value_id v = 0; u.first && v < p->values.n; v++)
		u.first[v] = f->live.last[v];
	while (u.first && u.now-- > 0)
		node_each_use(p, u.now, note_first, &u);
	return u.first;
}

/* How what is held on each side changes from one position to the next. */
typedef struct holding {
	__int128 params[SIDES], param_bytes[SIDES], outside[SIDES]; /* outside: all memory that is not made by nodes */
	__int128 live;                                              /* inputs and results, at node k */
} holding;

typedef struct whole { /* all that the plan reads */
	__int128 params, param_bytes, outside;
} whole;

enum amount { PARAMS, PARAM_BYTES, OUTSIDE };

static __int128 *amount_of(holding *h, enum amount a)
{
	return a == PARAMS ? h->params : a == PARAM_BYTES ? h->param_bytes : h->outside;
}

/* What is read from node `first` to node `last` is in the prefix from `first` on, in the suffix up to `last`. */
static void hold_amount(const clv_frontiers *f, holding *by, node_id first, node_id last, enum amount a, int64_t n)
{
	if (first < f->n)
		amount_of(&by[first], a)[PREFIX] += n;
	amount_of(&by[0], a)[SUFFIX] += n;
	amount_of(&by[earlier(last, f->n)], a)[SUFFIX] -= n;
}

static void hold_params(const clv_frontiers *f, const node_id *first, holding *by, whole *all)
{
	for (value_id v = 0; v < f->p->values.n; v++)
		if (f->p->values.at[v].kind == VALUE_PARAM && first[v] != NONE) {
			int64_t n = product_of_sizes(f, v, 1), bytes = value_bytes_at(f, v);
			hold_amount(f, by, first[v], f->live.last[v], PARAMS, n);
			hold_amount(f, by, first[v], f->live.last[v], PARAM_BYTES, bytes);
			all->params += n;
			all->param_bytes += bytes;
		}
}

/* Memory is held as long as any value on it is used; its size is that of the first value on it. */
static void hold_memory(const clv_frontiers *f, node_id *first, node_id *last, holding *by, whole *all)
{
	const plan *p = f->p;
	for (value_id v = 0; v < p->values.n; v++) {
		value_id root = alias_root(p, v);
		if (first[v] == NONE || root == v)
			continue;
		first[root] = earlier(first[root], first[v]);
		last[root] = last[root] == NONE || last[v] > last[root] ? last[v] : last[root];
	}
	for (value_id v = 0; v < p->values.n; v++) {
		if (alias_root(p, v) != v || p->values.at[v].type != TYPE_TENSOR)
			continue;
		if (!moves(p, v)) {
			if (first[v] == NONE)
				continue;
			hold_amount(f, by, first[v], last[v], OUTSIDE, value_bytes_at(f, v));
			all->outside += value_bytes_at(f, v);
			continue;
		}
		node_id born = value_born(p, v), end = last[v] == NONE ? born : last[v];
		by[born].live += value_bytes_at(f, v);
		by[earlier(end, p->nodes.n - 1) + 1].live -= value_bytes_at(f, v);
	}
}

static void add_holding(holding *sum, const holding *h)
{
	for (int s = 0; s < SIDES; s++) {
		sum->params[s] += h->params[s];
		sum->param_bytes[s] += h->param_bytes[s];
		sum->outside[s] += h->outside[s];
	}
	sum->live += h->live;
}

/* by[k] becomes what is held at position k; the peaks of a side are then the running maxima from its end. */
static void sum_up(clv_frontiers *f, holding *by, const whole *all)
{
	holding sum = {0};
	__int128 peak = 0;
	for (node_id k = 0; k <= f->n; k++) {
		add_holding(&sum, &by[k]);
		by[k] = sum;
		peak = sum.live > peak ? sum.live : peak;
		for (int s = 0; k < f->n && s < SIDES; s++) {
			f->at[k].params[s] = at_most_64(sum.params[s]);
			f->at[k].param_bytes[s] = at_most_64(sum.param_bytes[s]);
		}
		if (k < f->n)
			f->at[k].memory[PREFIX] = at_most_64(sum.outside[PREFIX] + peak);
	}
	f->params = at_most_64(all->params);
	f->param_bytes = at_most_64(all->param_bytes);
	f->memory = at_most_64(all->outside + peak);
	peak = 0;
	for (node_id k = f->n; k-- > 0;) {
		peak = by[k + 1].live > peak ? by[k + 1].live : peak;
		f->at[k].memory[SUFFIX] = at_most_64(by[k].outside[SUFFIX] + peak);
	}
}

static clv_status count_memory(clv_frontiers *f)
{
	uint32_t n = f->p->values.n;
	node_id *first = first_uses(f), *last = mem_ids(n);
	holding *by = mem_alloc(((size_t)f->p->nodes.n + 1) * sizeof *by);
	bool memory = first && last && by;
	whole all = {0};
	if (memory && f->p->nodes.n) {
		memcpy(last, f->live.last, n * sizeof *last);
		hold_params(f, first, by, &all);
		hold_memory(f, first, last, by, &all);
		sum_up(f, by, &all);
	}
	mem_free(first);
	mem_free(last);
	mem_free(by);
	return memory ? CLV_OK : fail_nomem();
}

/* ---- sizes ----------------------------------------------------------------------------------------------------------- */

static clv_status no_symbol(const plan *p, const char *name)
{
	strbuf b = STRBUF_INIT;
	char *list;
	for (symbol_id i = 0; i < p->symbols.n; i++)
		strbuf_printf(&b, "%s%s", i ? ", " : "", plan_s(p, p->symbols.at[i].name));
	TRY(strbuf_take(&b, &list));
	clv_status st = fail(CLV_E_NOT_FOUND, "the plan has no symbol \"%s\"; it has: %s", name, list[0] ? list : "none");
	mem_free(list);
	return st;
}

static clv_status set_size(const plan *p, const char *name, int64_t size, int64_t *syms)
{
	for (symbol_id i = 0; i < p->symbols.n; i++) {
		const symbol *s = &p->symbols.at[i];
		if (strcmp(plan_s(p, s->name), name) != 0)
			continue;
		if (size < s->lo || size > s->hi)
			return fail(CLV_E_INVALID, "%s is %lld, the plan is for %lld to %lld", name, (long long)size,
			            (long long)s->lo, (long long)s->hi);
		syms[i] = size;
		return CLV_OK;
	}
	return no_symbol(p, name);
}

clv_status choose_sizes(const plan *p, const clv_sizes *sizes, int64_t *syms)
{
	TRY(sizes_check(sizes));
	for (symbol_id i = 0; i < p->symbols.n; i++)
		syms[i] = p->symbols.at[i].lo > 0 ? p->symbols.at[i].lo : 1;
	for (uint32_t i = 0; sizes && i < sizes->n; i++)
		TRY(set_size(p, sizes->symbols[i], sizes->values[i], syms));
	return CLV_OK;
}

static clv_status eval_all_sizes(clv_frontiers *f, const clv_sizes *sizes)
{
	const plan *p = f->p;
	f->syms = mem_alloc((p->symbols.n + 1) * sizeof *f->syms);
	f->sizes = mem_alloc((p->exprs.n + 1) * sizeof *f->sizes);
	f->defined = mem_alloc((p->exprs.n + 1) * sizeof *f->defined);
	TRY_MEM(f->syms && f->sizes && f->defined);
	TRY(choose_sizes(p, sizes, f->syms));
	return expr_eval_all(p, f->syms, f->sizes, f->defined);
}

/* ---- making and looking ---------------------------------------------------------------------------------------------- */

static clv_status find_frontiers(clv_frontiers *f, const clv_sizes *sizes)
{
	TRY(node_names_new(f->p, &f->names));
	f->n = f->p->nodes.n ? f->p->nodes.n - 1 : 0;
	f->at = mem_alloc((f->n + 1) * sizeof *f->at);
	f->formulas = mem_alloc(sizeof *f->formulas);
	if (f->formulas)
		pthread_mutex_init(&f->formulas->lock, NULL);
	TRY_MEM(f->at && f->formulas);
	TRY(liveness_parts(f->p, &f->live, NULL));
	TRY(eval_all_sizes(f, sizes));
	TRY(count_crossing(f));
	count_inputs(f);
	TRY(count_memory(f));
	count_work(f);
	mark_trainable(f);
	return frontiers_judge(f);
}

clv_status clv_frontiers_create(const clv_plan *p, const clv_sizes *sizes, clv_frontiers **out)
{
	if (!p || !out)
		return fail(CLV_E_INVALID, "clv_frontiers_create: an argument is NULL");
	clv_frontiers *f = mem_alloc(sizeof *f);
	TRY_MEM(f);
	f->p = p;
	clv_status st = find_frontiers(f, sizes);
	if (st == CLV_OK)
		*out = f;
	else
		clv_frontiers_free(f);
	return st;
}

static void free_formulas(formula_table *t, uint32_t n)
{
	if (!t)
		return;
	for (uint32_t i = 0; t->at && i < n; i++)
		mem_free(t->at[i]);
	mem_free(t->at);
	pthread_mutex_destroy(&t->lock);
	mem_free(t);
}

void clv_frontiers_free(clv_frontiers *f)
{
	if (!f)
		return;
	free_formulas(f->formulas, f->n);
	for (uint32_t i = 0; i < f->reasons.n; i++)
		mem_free(f->reasons.at[i]);
	vec_free(&f->reasons);
	vec_free(&f->cross.entries);
	mem_free(f->cross.head);
	liveness_free(&f->live);
	mem_free(f->syms);
	mem_free(f->sizes);
	mem_free(f->defined);
	node_names_free(f->names);
	mem_free(f->at);
	mem_free(f);
}

uint32_t clv_frontiers_count(const clv_frontiers *f)
{
	return f ? f->n : 0;
}

static clv_status no_frontier(uint32_t i)
{
	return fail(CLV_E_INVALID, "no frontier %u", i);
}

typedef struct use_limit {
	const liveness *live;
	node_id end;
	bool used, beyond; /* a result is used at all; by `end` or later */
} use_limit;

static void note_use(void *ctx, value_id v)
{
	use_limit *u = ctx;
	node_id last = u->live->last[v];
	u->used |= last != NONE;
	u->beyond |= last != NONE && last >= u->end;
}

/* The last node up to i that is there for more than guards behind it (guards_early puts them there). */
static node_id behind_guards(const clv_frontiers *f, node_id i)
{
	node_id k = i + 1;
	bool stands = false;
	while (k > 0 && !stands) {
		use_limit u = {&f->live, i + 1, false, false};
		node_each_result(f->p, --k, note_use, &u);
		stands = u.beyond || !node_only_computes(f->p, k) || !(u.used || node_guards(f->p, k));
	}
	return stands ? k : i;
}

clv_status clv_frontiers_get(const clv_frontiers *f, uint32_t i, clv_frontier *out)
{
	if (!f || !out || i >= f->n)
		return no_frontier(i);
	const frontier *c = &f->at[i];
	clv_frontier all = {.position = i,
	                    .name = node_name(f->names, i),
	                    .module = module_path(f->p, i),
	                    .boundary_tensors = c->tensors,
	                    .passthrough_inputs = c->passthrough,
	                    .boundary_bytes = c->bytes,
	                    .prefix_cost = c->cost,
	                    .trainable_suffix = c->trainable,
	                    .unsafe = c->unsafe,
	                    .prefix_nodes = i + 1,
	                    .suffix_nodes = f->p->nodes.n - i - 1,
	                    .prefix_flops = c->flops[PREFIX],
	                    .suffix_flops = c->flops[SUFFIX],
	                    .prefix_params = c->params[PREFIX],
	                    .suffix_params = c->params[SUFFIX],
	                    .prefix_param_bytes = c->param_bytes[PREFIX],
	                    .suffix_param_bytes = c->param_bytes[SUFFIX],
	                    .prefix_memory = c->memory[PREFIX],
	                    .suffix_memory = c->memory[SUFFIX],
	                    .behind = behind_guards(f, i)};
	return options_write(out, &all, sizeof all, "clv_frontier");
}

clv_status clv_frontiers_total(const clv_frontiers *f, clv_total *out)
{
	if (!f || !out)
		return fail(CLV_E_INVALID, "clv_frontiers_total: an argument is NULL");
	clv_total all = {.flops = f->flops,
	                 .params = f->params,
	                 .param_bytes = f->param_bytes,
	                 .memory = f->memory,
	                 .input_bytes = f->input_bytes,
	                 .inputs = f->inputs};
	return options_write(out, &all, sizeof all, "clv_total");
}

/* sum += bytes of v, in symbols. */
static clv_status add_value_bytes(const plan *p, value_id v, poly *sum)
{
	const value *x = &p->values.at[v];
	poly bytes = {0};
	clv_status st = poly_const(&bytes, dtype_bits((dtype)x->dtype) / 8);
	for (uint32_t d = 0; st == CLV_OK && d < x->ndim; d++)
		st = poly_times(p, &bytes, p->dims.at[x->shape + d]);
	if (st == CLV_OK)
		st = poly_add(sum, &bytes);
	vec_free(&bytes);
	return st;
}

static clv_status print_bytes(const plan *p, const value_list *values, strbuf *b)
{
	poly sum = {0};
	clv_status st = CLV_OK;
	for (uint32_t i = 0; st == CLV_OK && i < values->n; i++)
		st = add_value_bytes(p, values->at[i], &sum);
	if (st == CLV_OK)
		st = poly_print(p, &sum, b);
	vec_free(&sum);
	return st;
}

static clv_status print_labels(const plan *p, const value_list *values, strbuf *b)
{
	for (uint32_t i = 0; i < values->n; i++) {
		strbuf_puts(b, i ? " " : "");
		value_label(p, values->at[i], b);
	}
	return CLV_OK;
}

typedef clv_status (*values_printer)(const plan *p, const value_list *values, strbuf *b);

static clv_status values_text(const clv_frontiers *f, uint32_t i, values_printer print, char **out)
{
	if (!f || !out || i >= f->n)
		return no_frontier(i);
	value_list values = {0};
	strbuf b = STRBUF_INIT;
	clv_status st = frontier_values(f, i, &values);
	if (st == CLV_OK)
		st = print(f->p, &values, &b);
	if (st == CLV_OK)
		st = strbuf_take(&b, out);
	strbuf_free(&b);
	vec_free(&values);
	return st;
}

clv_status clv_frontiers_labels(const clv_frontiers *f, uint32_t i, char **out)
{
	return values_text(f, i, print_labels, out);
}

/* ---- all formulas in one walk ------------------------------------------------------------------------------------ */

/* The sum of what crosses, carried from one position to the next. */
typedef struct formula_walk {
	const clv_frontiers *f;
	uint32_t *born, *gone;           /* per position: first of the values that start, or stop, crossing there */
	uint32_t *next_born, *next_gone; /* per value */
	poly sum;
	uint32_t nameless; /* values now crossing whose bytes cannot be written down */
	bool given_up;     /* the sum grew beyond all use: from here on there are no formulas */
	strbuf text;
} formula_walk;

enum { SUM_MAX = 4096 }; /* terms that are carried along; each position costs that much */

static void list_values(formula_walk *w)
{
	const clv_frontiers *f = w->f;
	for (value_id v = f->p->values.n; v-- > 0;) {
		if (!can_cross(f->p, v) || f->live.last[v] == NONE)
			continue;
		node_id first = value_born(f->p, v), end = earlier(f->live.last[v], f->n);
		if (first >= end)
			continue;
		w->next_born[v] = w->born[first];
		w->born[first] = v;
		w->next_gone[v] = w->gone[end];
		w->gone[end] = v;
	}
}

/* sum += bytes of v, or -= where it stops crossing. */
static clv_status change_sum(formula_walk *w, value_id v, bool gone)
{
	poly bytes = {0};
	clv_status st = add_value_bytes(w->f->p, v, &bytes);
	if (st == CLV_E_OVERFLOW) {
		w->nameless = gone ? w->nameless - 1 : w->nameless + 1;
		st = CLV_OK;
	} else if (st == CLV_OK) {
		for (uint32_t i = 0; gone && i < bytes.n; i++)
			bytes.at[i].k = -bytes.at[i].k;
		st = poly_add(&w->sum, &bytes);
	}
	vec_free(&bytes);
	return st;
}

static clv_status put_formula(formula_walk *w, uint32_t i, formula_fn put, void *ctx)
{
	w->text.n = 0;
	clv_status st = poly_print(w->f->p, &w->sum, &w->text); /* joins like terms: the sum stays short */
	if (st == CLV_E_OVERFLOW || w->sum.n > SUM_MAX)
		w->given_up = true;
	else if (st != CLV_OK)
		return st;
	strbuf_putc(&w->text, '\0');
	TRY_MEM(!w->text.failed);
	return put(ctx, i, w->given_up || w->nameless || w->sum.n > FORMULA_TERMS ? NULL : w->text.at);
}

static clv_status walk_formulas(formula_walk *w, formula_fn put, void *ctx)
{
	list_values(w);
	for (uint32_t i = 0; i < w->f->n; i++) {
		for (value_id v = w->gone[i]; v != NONE && !w->given_up; v = w->next_gone[v])
			TRY(change_sum(w, v, true));
		for (value_id v = w->born[i]; v != NONE && !w->given_up; v = w->next_born[v])
			TRY(change_sum(w, v, false));
		TRY(w->given_up ? put(ctx, i, NULL) : put_formula(w, i, put, ctx));
	}
	return CLV_OK;
}

clv_status frontiers_formulas(const clv_frontiers *f, formula_fn put, void *ctx)
{
	size_t values = (size_t)f->p->values.n + 1, positions = (size_t)f->n + 1;
	formula_walk w = {.f = f, .text = STRBUF_INIT};
	arena a = {0};
	w.born = arena_ids(&a, positions);
	w.gone = arena_ids(&a, positions);
	w.next_born = arena_ids(&a, values);
	w.next_gone = arena_ids(&a, values);
	bool memory = w.born && w.gone && w.next_born && w.next_gone;
	clv_status st = memory ? walk_formulas(&w, put, ctx) : fail_nomem();
	arena_free(&a);
	vec_free(&w.sum);
	strbuf_free(&w.text);
	return st;
}

/* ---- the formula of one position ---------------------------------------------------------------------------------- */

static clv_status keep_formula(void *ctx, uint32_t i, const char *text)
{
	char **at = ctx;
	at[i] = text ? mem_strdup(text, strlen(text)) : NULL;
	return text && !at[i] ? fail_nomem() : CLV_OK;
}

static clv_status make_formulas(const clv_frontiers *f, formula_table *t)
{
	if (!t->asked || t->at) {
		t->asked = true;
		return CLV_OK;
	}
	t->at = mem_alloc((f->n + 1) * sizeof *t->at);
	clv_status st = t->at ? frontiers_formulas(f, keep_formula, t->at) : fail_nomem();
	for (uint32_t i = 0; st != CLV_OK && t->at && i < f->n; i++)
		mem_free(t->at[i]);
	if (st != CLV_OK) {
		mem_free(t->at);
		t->at = NULL;
	}
	return st;
}

clv_status clv_frontiers_bytes_text(const clv_frontiers *f, uint32_t i, char **out)
{
	if (!f || !out || i >= f->n)
		return no_frontier(i);
	pthread_mutex_lock(&f->formulas->lock);
	clv_status st = make_formulas(f, f->formulas);
	const char *text = st == CLV_OK && f->formulas->at ? f->formulas->at[i] : NULL;
	pthread_mutex_unlock(&f->formulas->lock);
	if (st != CLV_OK)
		return st;
	if (!text)
		return values_text(f, i, print_bytes, out);
	*out = mem_strdup(text, strlen(text));
	return *out ? CLV_OK : fail_nomem();
}
