/* multilevel: finds a chain of stages on a coarse graph and refines it on the way back to the whole one.
 *
 * Coarsening joins pairs of nodes so that no cycle can arise, however many pairs are joined at once:
 *   u -> v, where u has no other successor or v no other predecessor: whatever passes through the pair is a real path;
 *   two nodes of one level (longest path from the sources): every edge goes to a higher level before and after.
 * Pairs that share many bytes come first, light nodes before heavy ones, and no pair gets too heavy to be balanced. The
 * coarsest graph is partitioned as in acyclic.c; each finer one starts from the stages of the coarser one, which are
 * refined and polished. Nodes that share many bytes stay together, so that fewer bytes cross the borders than with random
 * orders.
 *
 * Costs O(nodes + edges) per level for coarsening, with half or less of the nodes on each level, and limited
 * steps. */
#include "pipe/chain.h"

#include <math.h>
#include <string.h>

#define SEARCH_STEPS 40000000u
#define REFINE_STEPS 4000000u
#define FINEST_STEPS 10000000u
#define POLISH_STEPS 2000000u
#define PER_STAGE 24 /* nodes of the coarsest graph */
#define REFINES 2000 /* attempts on one level */
#define LEVELS 24

typedef struct level {
	pipe_graph g;       /* owned, but for the first level */
	pipe_problem pr;    /* of this level's graph */
	uint32_t *joins;    /* per node of this level: the node of the next, coarser one */
	uint32_t *stage_of; /* per node of this level */
} level;

/* What pairs are chosen with; all per node. */
typedef struct matching {
	arena arena;
	uint32_t *mate, *depth, *by_weight, *last;
	double *us, *shared;
	double most_us;
	uint32_t pairs;
} matching;

static clv_status matching_new(const pipe_problem *pr, matching *m)
{
	uint32_t n = pr->g->nodes.n;
	double total = 0;
	m->mate = arena_ids(&m->arena, n);
	m->depth = arena_ids(&m->arena, n);
	m->by_weight = arena_ids(&m->arena, n);
	m->last = arena_ids(&m->arena, n);
	m->us = arena_array(&m->arena, n, sizeof *m->us);
	m->shared = arena_array(&m->arena, n, sizeof *m->shared);
	TRY(arena_status(&m->arena));
	for (uint32_t i = 0; i < n; i++)
		total += m->us[i] = node_us(pr, i);
	m->most_us = total / pr->k / (PER_STAGE / 2);
	return CLV_OK;
}

static void find_depths(const pipe_graph *g, uint32_t *depth)
{
	for (uint32_t n = 0; n < g->nodes.n; n++) {
		depth[n] = 0;
		for (uint32_t e = g->pred_first[n]; e < g->pred_first[n + 1]; e++)
			depth[n] = depth[g->pred[e]] + 1 > depth[n] ? depth[g->pred[e]] + 1 : depth[n];
	}
}

typedef struct weighed {
	double us;
	uint32_t n;
} weighed;

static int lighter(const void *a, const void *b)
{
	const weighed *x = a, *y = b;
	if (x->us != y->us)
		return x->us < y->us ? -1 : 1;
	return x->n < y->n ? -1 : x->n > y->n;
}

static clv_status sort_by_weight(matching *m, uint32_t n)
{
	weighed *all = mem_alloc(n * sizeof *all);
	TRY_MEM(all);
	for (uint32_t i = 0; i < n; i++)
		all[i] = (weighed){m->us[i], i};
	qsort(all, n, sizeof *all, lighter);
	for (uint32_t i = 0; i < n; i++)
		m->by_weight[i] = all[i].n;
	mem_free(all);
	return CLV_OK;
}

static void join_two(matching *m, uint32_t a, uint32_t b)
{
	m->mate[a] = b;
	m->mate[b] = a;
	m->pairs++;
}

static bool may_join(const matching *m, uint32_t a, uint32_t b)
{
	return m->mate[a] == PIPE_NONE && m->mate[b] == PIPE_NONE && m->us[a] + m->us[b] <= m->most_us;
}

/* Joins u with the successor that it shares the most bytes with. */
static void join_edge(const chain *c, matching *m, uint32_t u)
{
	const pipe_graph *g = c->pr->g;
	uint32_t from = g->succ_first[u], to = g->succ_first[u + 1], best = PIPE_NONE;
	for (uint32_t e = from; e < to; e++)
		m->shared[g->succ[e]] = 0;
	for (uint32_t i = c->made_first[u]; i < c->made_first[u + 1]; i++) {
		const pipe_value *x = &g->values.at[c->made[i]];
		for (uint32_t j = 0; j < x->nuses; j++)
			m->shared[g->uses.at[x->uses + j]] += (double)x->bytes;
	}
	for (uint32_t e = from; e < to; e++) {
		uint32_t v = g->succ[e];
		bool alone = to - from == 1 || g->pred_first[v + 1] - g->pred_first[v] == 1;
		if (!alone || !may_join(m, u, v))
			continue;
		if (best == PIPE_NONE || m->shared[v] > m->shared[best] ||
		    (m->shared[v] == m->shared[best] && m->us[v] < m->us[best]))
			best = v;
	}
	if (best != PIPE_NONE)
		join_two(m, u, best);
}

/* Joins neighbours of n, among near[from … to), that are on one level. */
static void join_siblings(matching *m, const uint32_t *near, uint32_t from, uint32_t to)
{
	for (uint32_t e = from; e < to; e++) {
		uint32_t v = near[e], *last = &m->last[m->depth[v]];
		if (m->mate[v] != PIPE_NONE)
			continue;
		if (*last != PIPE_NONE && may_join(m, v, *last)) {
			join_two(m, v, *last);
			*last = PIPE_NONE;
		} else {
			*last = v;
		}
	}
	for (uint32_t e = from; e < to; e++)
		m->last[m->depth[near[e]]] = PIPE_NONE;
}

static void match(const chain *c, matching *m)
{
	const pipe_graph *g = c->pr->g;
	uint32_t n = c->n;
	for (uint32_t i = 0; i < n; i++)
		join_edge(c, m, m->by_weight[i]);
	if (m->pairs >= n / 4)
		return;
	find_depths(g, m->depth);
	for (uint32_t i = 0; i < n; i++)
		join_siblings(m, g->succ, g->succ_first[i], g->succ_first[i + 1]);
	for (uint32_t i = 0; i < n; i++)
		join_siblings(m, g->pred, g->pred_first[i], g->pred_first[i + 1]);
}

/* ---- the coarser graph --------------------------------------------------------------------------------------- */

static void add_fine_node(const pipe_problem *pr, pipe_node *to, uint32_t n)
{
	const pipe_node *x = &pr->g->nodes.at[n];
	int64_t held = pr->training ? x->held_bytes : 0, work = node_work_bytes(pr, n);
	to->fwd_us += x->fwd_us;
	to->bwd_us += x->bwd_us;
	to->param_bytes += x->param_bytes;
	to->held_bytes += held;
	to->work_bytes = work > to->work_bytes ? work : to->work_bytes;
}

static clv_status coarse_nodes(const level *fine, const matching *m, pipe_graph *g)
{
	const pipe_graph *from = fine->pr.g;
	for (uint32_t n = 0; n < from->nodes.n; n++) {
		uint32_t mate = m->mate[n];
		if (mate != PIPE_NONE && mate < n) {
			fine->joins[n] = fine->joins[mate];
		} else {
			pipe_node x = {.id = g->nodes.n, .name = ""};
			fine->joins[n] = g->nodes.n;
			TRY(vec_push(&g->nodes, x));
		}
		add_fine_node(&fine->pr, &g->nodes.at[fine->joins[n]], n);
	}
	return CLV_OK;
}

/* Uses of x in the coarser graph; `seen` has the number of the value last seen per node. */
static clv_status coarse_value(const level *fine, const pipe_value *x, uint32_t number, uint32_t *seen, pipe_graph *g)
{
	const pipe_graph *from = fine->pr.g;
	pipe_value to = *x;
	to.uses = g->uses.n;
	to.nuses = 0;
	if (x->from != PIPE_NONE)
		to.from = fine->joins[x->from];
	for (uint32_t i = 0; i < x->nuses; i++) {
		uint32_t n = fine->joins[from->uses.at[x->uses + i]];
		if (n == to.from || seen[n] == number)
			continue;
		seen[n] = number;
		TRY(vec_push(&g->uses, n));
		to.nuses++;
	}
	return to.nuses || to.leaves ? vec_push(&g->values, to) : CLV_OK;
}

static clv_status coarse_edges(const level *fine, pipe_graph *g)
{
	const pipe_graph *from = fine->pr.g;
	uint32_t *seen = mem_ids(g->nodes.n);
	clv_status st = seen ? CLV_OK : fail_nomem();
	for (uint32_t v = 0; v < from->values.n && st == CLV_OK; v++)
		st = coarse_value(fine, &from->values.at[v], v, seen, g);
	mem_free(seen);
	for (uint32_t i = 0; i < from->order.n && st == CLV_OK; i++) {
		pipe_edge e = {fine->joins[from->order.at[i].from], fine->joins[from->order.at[i].to]};
		if (e.from != e.to)
			st = vec_push(&g->order, e);
	}
	return st;
}

/* graph_finish gives nodes new numbers; their ids still say which they were. */
static clv_status renumber_joins(level *fine, const pipe_graph *g)
{
	uint32_t *now = mem_ids(g->nodes.n);
	TRY_MEM(now);
	for (uint32_t n = 0; n < g->nodes.n; n++)
		now[g->nodes.at[n].id] = n;
	for (uint32_t n = 0; n < fine->pr.g->nodes.n; n++)
		fine->joins[n] = now[fine->joins[n]];
	mem_free(now);
	return CLV_OK;
}

static clv_status join_pairs(level *fine, const matching *m, level *coarse)
{
	pipe_graph *g = &coarse->g;
	fine->joins = mem_ids(fine->pr.g->nodes.n);
	TRY_MEM(fine->joins);
	TRY(coarse_nodes(fine, m, g));
	TRY(coarse_edges(fine, g));
	TRY(graph_finish(g));
	TRY(renumber_joins(fine, g));
	coarse->pr = fine->pr;
	coarse->pr.g = g;
	return CLV_OK;
}

/* One level more; false: the graph does not get smaller any more. */
static clv_status coarsen(level *fine, level *coarse, bool *smaller)
{
	matching m = {0};
	chain c;
	TRY(chain_new(&fine->pr, &c));
	clv_status st = matching_new(&fine->pr, &m);
	if (st == CLV_OK)
		st = sort_by_weight(&m, c.n);
	if (st == CLV_OK) {
		match(&c, &m);
		*smaller = m.pairs > c.n / 20;
		if (*smaller)
			st = join_pairs(fine, &m, coarse);
	}
	arena_free(&m.arena);
	chain_free(&c);
	return st;
}

/* ---- and back ------------------------------------------------------------------------------------------------ */

static clv_status keep_stages(const chain *c, level *at)
{
	at->stage_of = mem_ids(c->n);
	TRY_MEM(at->stage_of);
	memcpy(at->stage_of, c->stage_of, c->n * sizeof *at->stage_of);
	return CLV_OK;
}

/* Stages of one level; `coarser` is NULL for the coarsest. The first level's become the result. */
static clv_status solve_level(level *at, const level *coarser, uint32_t *device_of, bool last, double deadline,
                              pipe_partition *out)
{
	pipe_random r = {at->pr.seed + at->pr.g->nodes.n};
	clv_status st = CLV_OK;
	chain c;
	TRY(chain_new(&at->pr, &c));
	c.deadline = deadline;
	if (coarser) {
		for (uint32_t n = 0; n < c.n; n++)
			c.place[n] = coarser->stage_of[at->joins[n]];
		chain_take(&c, c.place, device_of);
		chain_refine(&c, REFINES, last ? FINEST_STEPS : REFINE_STEPS, &r);
	} else {
		st = chain_search(&c, SEARCH_STEPS, true, &r);
	}
	if (st == CLV_OK) {
		chain_polish(&c, POLISH_STEPS, &r);
		memcpy(device_of, c.device_of, c.k * sizeof *device_of);
		st = last ? chain_partition(&c, out) : keep_stages(&c, at);
	}
	chain_free(&c);
	return st;
}

static clv_status all_levels(level *levels, uint32_t *device_of, double deadline, pipe_partition *out)
{
	uint32_t n = 1, k = levels[0].pr.k;
	for (bool smaller = true; n < LEVELS && levels[n - 1].pr.g->nodes.n / PER_STAGE > k; n++) {
		TRY(coarsen(&levels[n - 1], &levels[n], &smaller));
		if (!smaller)
			break;
	}
	for (uint32_t i = n; i-- > 0;)
		TRY(solve_level(&levels[i], i + 1 < n ? &levels[i + 1] : NULL, device_of, i == 0, deadline, out));
	return CLV_OK;
}

clv_status pipe_multilevel(const pipe_problem *pr, pipe_partition *out)
{
	double deadline = pr->seconds > 0 ? clock_seconds() + pr->seconds : 0;
	level levels[LEVELS] = {{.pr = *pr}};
	uint32_t *device_of = mem_ids(pr->k);
	clv_status st = device_of ? all_levels(levels, device_of, deadline, out) : fail_nomem();
	for (uint32_t i = 0; i < LEVELS; i++) {
		graph_free(&levels[i].g);
		mem_free(levels[i].joins);
		mem_free(levels[i].stage_of);
	}
	mem_free(device_of);
	if (st == CLV_OK)
		out->method = "multilevel";
	return st;
}
