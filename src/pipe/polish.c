/* Refines mixed placements: moves nodes at the borders of stages across the border.
 *
 * The number of stages stays. A node may go to any stage from the latest of those it reads from to the earliest that
 * reads from it, so that the stages stay topological by construction; two stages may swap devices. To even out the
 * devices' times is number partitioning, where descent by single moves ends early: so this is simulated annealing with up
 * to four moves at once, because the last percent needs two moves that nearly cancel. The cost is the slowest device, a
 * share of all that is above the lower bound, and a little of the bytes between stages. A move is counted as score.c
 * counts it, in time that grows with the node's degree. The result is the best state seen, unless score.c finds it
 * worse. */
#include "pipe/polish.h"

#include <math.h>
#include <string.h>

#define EXCESS_SHARE 0.5             /* weight of the mean excess, relative to the largest */
#define BYTES_FIRST 1e-3             /* weight of bytes, as a share of what they are, while devices are made even */
#define BYTES_THEN 0.1               /* … and after it */
#define COLDEST 1e-3                 /* of the heat in the beginning */
#define OVER_SHARE 4.0               /* weight of what is over the memory, as a share of the limits */
#define MOST_MOVES 4                 /* at once */
#define SWAP_CHANCE (UINT32_MAX / 8) /* that two stages change devices, too */
#define RESYNC 65536                 /* proposals after which sums of floating point are made anew */
#define VISITS 128 /* of neighbours, readers, stages and devices are one more step, so that time has a limit */

/* What a stage costs, in parts that moves change. */
typedef struct stage_sums {
	double fwd, bwd;             /* on its device */
	double us;                   /* with waiting for transfers: what its device has to do */
	double params, held, work;   /* bytes */
	int64_t border, grad_border; /* bytes that go on behind it */
	uint32_t nodes;
} stage_sums;

typedef struct polish_rank {
	double over, bottleneck, bytes;
} polish_rank;

/* A node that came from a stage; or, without a node, two stages that changed devices. */
typedef struct polish_move {
	uint32_t node, stage, other;
} polish_move;

struct polisher {
	arena arena, stage_arena; /* the second: what is per stage */
	const pipe_problem *pr;
	uint32_t *touch_first, *touch; /* values that a node makes or reads: touch[touch_first[n]] … */
	double bound, mean_us;         /* of nodes that take time */
	double limits;                 /* of memory, together; 0: there are none */
	bool borders;                  /* bytes of single borders are needed */

	/* the partition at hand */
	pipe_partition *p;
	stage_sums *stages;
	uint32_t *in_flight;   /* per stage */
	uint32_t *dirty;       /* stages whose transfers changed */
	bool *is_dirty;        /* per stage */
	uint32_t ndirty, room; /* room: stages that there is memory for */
	double *device_us, *device_kept, *device_work;
	uint32_t *device_nodes;
	uint32_t *lo, *hi;                     /* per value: the stage it is made in, the last that needs it */
	double bytes;                          /* between stages, in all */
	double reached_us;                     /* what is below is no better */
	double enough_us;                      /* a device with less costs nothing */
	double bytes_cost;                     /* of one */
	uint32_t *border, *border_at, nborder; /* nodes that may go elsewhere; where each is among them */
	uint32_t *best, *best_device;          /* stage_of and device_of of the best state */
	bool swaps;                            /* stages may change devices */
	polish_rank best_rank;
	uint64_t visits; /* of neighbours, readers, stages, devices: what time is spent on */
};

/* ---- tables of the problem --------------------------------------------------------------------------------------- */

void polisher_free(polisher *po)
{
	if (!po)
		return;
	arena_free(&po->arena);
	arena_free(&po->stage_arena);
	mem_free(po);
}

static void touch_fill(polisher *po)
{
	const pipe_graph *g = po->pr->g;
	for (uint32_t pass = 0; pass < 2; pass++) { /* counts, then values: first[n + 1] is where the next one goes */
		for (uint32_t v = 0; v < g->values.n; v++) {
			const pipe_value *x = &g->values.at[v];
			for (uint32_t u = 0; u <= x->nuses; u++) {
				uint32_t n = u < x->nuses ? g->uses.at[x->uses + u] : x->from;
				if (n == PIPE_NONE)
					continue;
				if (pass)
					po->touch[po->touch_first[n + 1]++] = v;
				else
					po->touch_first[n + 2]++;
			}
		}
		for (uint32_t n = 0; !pass && n < g->nodes.n; n++)
			po->touch_first[n + 2] += po->touch_first[n + 1];
	}
}

static double mean_us(const pipe_problem *pr)
{
	double sum = 0, n = 0;
	for (uint32_t i = 0; i < pr->g->nodes.n; i++) {
		sum += node_us(pr, i);
		n += node_us(pr, i) > 0;
	}
	return n > 0 ? sum / n : 0;
}

clv_status polisher_new(const pipe_problem *pr, polisher **out)
{
	size_t nodes = pr->g->nodes.n, values = pr->g->values.n, uses = pr->g->uses.n;
	polisher *po = mem_alloc(sizeof *po);
	TRY_MEM(po);
	arena *a = &po->arena;
	po->pr = pr;
	po->bound = fmax(problem_lower_bound(pr), 1e-9);
	for (uint32_t d = 0; d < pr->k; d++)
		po->limits += (double)pr->devices[d].memory_bytes;
	po->mean_us = mean_us(pr);
	po->borders = pr->bandwidth || (po->limits > 0 && pr->recompute);
	po->touch_first = arena_array(a, nodes + 2, sizeof *po->touch_first);
	po->touch = arena_ids(a, values + uses);
	po->device_us = arena_array(a, pr->k, sizeof *po->device_us);
	po->device_kept = arena_array(a, pr->k, sizeof *po->device_kept);
	po->device_work = arena_array(a, pr->k, sizeof *po->device_work);
	po->device_nodes = arena_array(a, pr->k, sizeof *po->device_nodes);
	po->lo = arena_ids(a, values);
	po->hi = arena_ids(a, values);
	po->border = arena_ids(a, nodes);
	po->border_at = arena_ids(a, nodes);
	po->best = arena_ids(a, nodes);
	if (a->failed) {
		polisher_free(po);
		return fail_nomem();
	}
	touch_fill(po);
	*out = po;
	return CLV_OK;
}

/* ---- the state --------------------------------------------------------------------------------------------------- */

/* As score.c: work, and what of the transfers takes longer than the work. */
static double stage_us(const polisher *po, uint32_t s)
{
	const pipe_problem *pr = po->pr;
	const stage_sums *x = &po->stages[s];
	if (!pr->bandwidth)
		return x->fwd + x->bwd;
	const uint32_t *device = po->p->device_of;
	double fwd = x->fwd, bwd = x->bwd;
	if (s > 0) {
		fwd = fmax(fwd, transfer_us(pr, device[s - 1], device[s], x[-1].border));
		bwd = fmax(bwd, transfer_us(pr, device[s], device[s - 1], x[-1].grad_border));
	}
	if (s + 1 < po->p->nstages) {
		fwd = fmax(fwd, transfer_us(pr, device[s], device[s + 1], x->border));
		bwd = fmax(bwd, transfer_us(pr, device[s + 1], device[s], x->grad_border));
	}
	return pr->training ? fwd + bwd : fwd;
}

static void stage_refresh(polisher *po, uint32_t s)
{
	double us = stage_us(po, s);
	po->device_us[po->p->device_of[s]] += us - po->stages[s].us;
	po->stages[s].us = us;
}

/* Node n comes into stage s (times 1) or leaves it (-1). `work` stays when it leaves: a stage may seem to need too much
   until the next resync. */
static void node_count(polisher *po, uint32_t n, uint32_t s, int times)
{
	const pipe_problem *pr = po->pr;
	const pipe_node *x = &pr->g->nodes.at[n];
	stage_sums *t = &po->stages[s];
	double speed = times * pr->devices[po->p->device_of[s]].speed;
	t->nodes += (uint32_t)times;
	po->device_nodes[po->p->device_of[s]] += (uint32_t)times;
	t->fwd += x->fwd_us / speed;
	t->bwd += node_backward_us(pr, n) / speed;
	t->params += times * (double)x->param_bytes;
	t->held += times * (double)x->held_bytes;
	if (times > 0)
		t->work = fmax(t->work, (double)node_work_bytes(pr, n));
}

static void dirty_add(polisher *po, uint32_t s)
{
	if (s >= po->p->nstages || po->is_dirty[s])
		return;
	po->is_dirty[s] = true;
	po->dirty[po->ndirty++] = s;
}

/* Borders a … b-1 carry the value from now on (sign 1), or no longer (-1). */
static void borders_add(polisher *po, const pipe_value *x, uint32_t a, uint32_t b, int64_t sign)
{
	po->visits += b - a;
	for (uint32_t s = a; s < b; s++) {
		po->stages[s].border += sign * x->bytes;
		if (x->grad)
			po->stages[s].grad_border += sign * x->bytes;
		dirty_add(po, s);
		dirty_add(po, s + 1);
	}
}

static void value_move(polisher *po, uint32_t v, uint32_t lo, uint32_t hi)
{
	const pipe_value *x = &po->pr->g->values.at[v];
	uint32_t lo_was = po->lo[v], hi_was = po->hi[v];
	if (lo == lo_was && hi == hi_was)
		return;
	po->lo[v] = lo;
	po->hi[v] = hi;
	po->bytes += (double)x->bytes * ((double)(hi - lo) - (double)(hi_was - lo_was));
	if (!po->borders)
		return;
	borders_add(po, x, lo_was, hi_was, -1);
	borders_add(po, x, lo, hi, 1);
}

static uint32_t value_made(const polisher *po, const pipe_value *x)
{
	return x->from == PIPE_NONE ? 0 : po->p->stage_of[x->from];
}

/* The last stage that needs the value, which is not after `most`. */
static uint32_t value_last(polisher *po, const pipe_value *x, uint32_t most)
{
	if (x->leaves)
		return po->p->nstages - 1;
	uint32_t last = value_made(po, x);
	for (uint32_t u = 0; u < x->nuses && last < most; u++, po->visits++) {
		uint32_t s = po->p->stage_of[po->pr->g->uses.at[x->uses + u]];
		last = s > last ? s : last;
	}
	return last;
}

/* All sums anew. */
static void state_sum(polisher *po)
{
	const pipe_graph *g = po->pr->g;
	memset(po->stages, 0, po->p->nstages * sizeof *po->stages);
	memset(po->device_us, 0, po->pr->k * sizeof *po->device_us);
	memset(po->device_nodes, 0, po->pr->k * sizeof *po->device_nodes);
	for (uint32_t n = 0; n < g->nodes.n; n++)
		node_count(po, n, po->p->stage_of[n], 1);
	po->bytes = 0;
	for (uint32_t v = 0; v < g->values.n; v++) {
		const pipe_value *x = &g->values.at[v];
		uint32_t lo = value_made(po, x), hi = value_last(po, x, po->p->nstages - 1);
		po->lo[v] = po->hi[v] = lo;
		value_move(po, v, lo, hi);
	}
	while (po->ndirty)
		po->is_dirty[po->dirty[--po->ndirty]] = false;
	for (uint32_t s = 0; s < po->p->nstages; s++)
		stage_refresh(po, s);
}

/* ---- moves ------------------------------------------------------------------------------------------------------- */

static void range_from(polisher *po, uint32_t n, uint32_t *lo, uint32_t hi)
{
	const pipe_graph *g = po->pr->g;
	for (uint32_t e = g->pred_first[n]; e < g->pred_first[n + 1] && *lo < hi; e++, po->visits++)
		*lo = po->p->stage_of[g->pred[e]] > *lo ? po->p->stage_of[g->pred[e]] : *lo;
}

static void range_to(polisher *po, uint32_t n, uint32_t lo, uint32_t *hi)
{
	const pipe_graph *g = po->pr->g;
	for (uint32_t e = g->succ_first[n]; e < g->succ_first[n + 1] && lo < *hi; e++, po->visits++)
		*hi = po->p->stage_of[g->succ[e]] < *hi ? po->p->stage_of[g->succ[e]] : *hi;
}

/* The stages that node n can be in. The side with fewer neighbours goes first: nodes with very many are seldom free,
   and that shows before all were looked at. */
static void node_range(polisher *po, uint32_t n, uint32_t *lo, uint32_t *hi)
{
	const pipe_graph *g = po->pr->g;
	uint32_t preds = g->pred_first[n + 1] - g->pred_first[n], succs = g->succ_first[n + 1] - g->succ_first[n];
	*lo = 0;
	*hi = po->p->nstages - 1;
	if (preds <= succs)
		range_from(po, n, lo, *hi);
	range_to(po, n, *lo, hi);
	if (preds > succs)
		range_from(po, n, lo, *hi);
}

static void border_update(polisher *po, uint32_t n)
{
	uint32_t lo, hi, at = po->border_at[n];
	node_range(po, n, &lo, &hi);
	if (lo < hi && at == PIPE_NONE) {
		po->border_at[n] = po->nborder;
		po->border[po->nborder++] = n;
	} else if (lo == hi && at != PIPE_NONE) {
		uint32_t last = po->border[--po->nborder];
		po->border[at] = last;
		po->border_at[last] = at;
		po->border_at[n] = PIPE_NONE;
	}
}

static void border_fill(polisher *po)
{
	po->nborder = 0;
	for (uint32_t n = 0; n < po->pr->g->nodes.n; n++)
		po->border_at[n] = PIPE_NONE;
	for (uint32_t n = 0; n < po->pr->g->nodes.n; n++)
		border_update(po, n);
}

static void dirty_refresh(polisher *po)
{
	while (po->ndirty) {
		uint32_t s = po->dirty[--po->ndirty];
		po->is_dirty[s] = false;
		stage_refresh(po, s);
	}
}

static void stage_move(polisher *po, uint32_t s, uint32_t to)
{
	uint32_t from = po->p->device_of[s];
	stage_sums *x = &po->stages[s];
	double slows = po->pr->devices[from].speed / po->pr->devices[to].speed;
	po->device_us[from] -= x->us;
	po->device_nodes[from] -= x->nodes;
	po->device_nodes[to] += x->nodes;
	x->us = 0;
	x->fwd *= slows;
	x->bwd *= slows;
	po->p->device_of[s] = to;
	dirty_add(po, s - 1); /* of stage 0 this is none */
	dirty_add(po, s);
	dirty_add(po, s + 1);
}

static void stages_swap(polisher *po, uint32_t s, uint32_t t)
{
	uint32_t ds = po->p->device_of[s], dt = po->p->device_of[t];
	stage_move(po, s, dt);
	stage_move(po, t, ds);
	dirty_refresh(po);
}

static void node_move(polisher *po, uint32_t n, uint32_t to)
{
	const pipe_graph *g = po->pr->g;
	uint32_t from = po->p->stage_of[n];
	node_count(po, n, from, -1);
	node_count(po, n, to, 1);
	po->p->stage_of[n] = to;
	for (uint32_t i = po->touch_first[n]; i < po->touch_first[n + 1]; i++) {
		uint32_t v = po->touch[i];
		const pipe_value *x = &g->values.at[v];
		if (x->from == n)
			value_move(po, v, to, x->nuses || x->leaves ? po->hi[v] : to);
		else if (to > po->hi[v])
			value_move(po, v, po->lo[v], to);
		else if (from == po->hi[v])
			value_move(po, v, po->lo[v], value_last(po, x, from));
	}
	dirty_add(po, from);
	dirty_add(po, to);
	dirty_refresh(po);
	border_update(po, n);
	for (uint32_t e = g->pred_first[n]; e < g->pred_first[n + 1]; e++)
		border_update(po, g->pred[e]);
	for (uint32_t e = g->succ_first[n]; e < g->succ_first[n + 1]; e++)
		border_update(po, g->succ[e]);
}

/* ---- cost -------------------------------------------------------------------------------------------------------- */

/* What a stage keeps; when it recomputes, what comes in stands for what it reads. */
static double kept_bytes(const polisher *po, uint32_t s)
{
	const pipe_problem *pr = po->pr;
	const stage_sums *x = &po->stages[s];
	double params = x->params * pr->param_copies;
	if (!pr->training)
		return params;
	double held = !pr->recompute ? x->held : s > 0 ? (double)x[-1].border : 0;
	return params + held * po->in_flight[s];
}

static double over_bytes(polisher *po)
{
	const pipe_problem *pr = po->pr;
	double over = 0;
	if (po->limits <= 0)
		return 0;
	for (uint32_t d = 0; d < pr->k; d++)
		po->device_kept[d] = po->device_work[d] = 0;
	for (uint32_t s = 0; s < po->p->nstages; s++) {
		uint32_t d = po->p->device_of[s];
		double work = po->stages[s].work + (pr->training && pr->recompute ? po->stages[s].held : 0);
		po->device_kept[d] += kept_bytes(po, s);
		po->device_work[d] = fmax(po->device_work[d], work);
	}
	for (uint32_t d = 0; d < pr->k; d++)
		if (pr->devices[d].memory_bytes > 0)
			over += fmax(0, po->device_kept[d] + po->device_work[d] - (double)pr->devices[d].memory_bytes);
	return over;
}

/* The cost that is annealed; the rank is what the state is worth. */
static double cost_now(polisher *po, polish_rank *r)
{
	double excess = 0;
	po->visits += po->pr->k + (po->limits > 0 ? po->p->nstages : 0);
	*r = (polish_rank){over_bytes(po), 0, po->bytes};
	for (uint32_t d = 0; d < po->pr->k; d++) {
		r->bottleneck = fmax(r->bottleneck, po->device_us[d]);
		excess += fmax(0, po->device_us[d] - po->enough_us);
	}
	double late = fmax(0, r->bottleneck - po->enough_us) + EXCESS_SHARE * excess / po->pr->k;
	double cost = late / po->bound + r->bytes * po->bytes_cost;
	return po->limits > 0 ? cost + OVER_SHARE * r->over / po->limits : cost;
}

static bool rank_better(const polisher *po, const polish_rank *a, const polish_rank *b)
{
	double a_us = fmax(a->bottleneck, po->reached_us), b_us = fmax(b->bottleneck, po->reached_us);
	if (a->over < b->over || a->over > b->over)
		return a->over < b->over;
	if (fabs(a_us - b_us) > 1e-9 * b_us)
		return a_us < b_us;
	return a->bytes < b->bytes;
}

static void best_keep(polisher *po, const polish_rank *r)
{
	po->best_rank = *r;
	po->visits += po->pr->g->nodes.n / 16;
	memcpy(po->best, po->p->stage_of, po->pr->g->nodes.n * sizeof *po->best);
	memcpy(po->best_device, po->p->device_of, po->p->nstages * sizeof *po->best_device);
}

/* ---- the search -------------------------------------------------------------------------------------------------- */

typedef struct polish_run {
	pipe_random random;
	polish_move undo[MOST_MOVES + 1];
	uint32_t nundo;
	uint64_t spent;
	double cost;
} polish_run;

/* One node goes to another stage, unless it is the last one of its device; where it was is noted. */
static void step_move(polisher *po, polish_run *run)
{
	uint32_t lo, hi, n = po->border[pipe_random_below(&run->random, po->nborder)], from = po->p->stage_of[n];
	node_range(po, n, &lo, &hi);
	uint32_t to = lo + pipe_random_below(&run->random, hi - lo);
	to += to >= from;
	if (po->device_nodes[po->p->device_of[from]] == 1)
		return;
	run->undo[run->nundo++] = (polish_move){n, from, 0};
	node_move(po, n, to);
}

static void step_swap(polisher *po, polish_run *run)
{
	uint32_t s = pipe_random_below(&run->random, po->p->nstages), t = pipe_random_below(&run->random, po->p->nstages);
	if (po->p->device_of[s] == po->p->device_of[t])
		return;
	run->undo[run->nundo++] = (polish_move){PIPE_NONE, s, t};
	stages_swap(po, s, t);
}

static void step_undo(polisher *po, const polish_move *m)
{
	if (m->node == PIPE_NONE)
		stages_swap(po, m->stage, m->other);
	else
		node_move(po, m->node, m->stage);
}

/* Proposes one to MOST_MOVES moves; they stay when they make the cost grow by no more than `allowed`. */
static void propose_moves(polisher *po, polish_run *run, double allowed)
{
	uint32_t moves = 1;
	polish_rank r;
	uint64_t bits = random_next(&run->random);
	for (; moves < MOST_MOVES && (bits & 1); bits >>= 1)
		moves++;
	run->nundo = 0;
	if (po->swaps && bits >> 32 < SWAP_CHANCE)
		step_swap(po, run);
	while (moves-- && po->nborder)
		step_move(po, run);
	double cost = cost_now(po, &r);
	if (cost <= run->cost + allowed) {
		run->cost = cost;
		if (rank_better(po, &r, &po->best_rank))
			best_keep(po, &r);
		return;
	}
	while (run->nundo--)
		step_undo(po, &run->undo[run->nundo]);
}

static double random_unit(pipe_random *r)
{
	return ((double)(random_next(r) >> 11) + 0.5) * 0x1p-53;
}

/* The heat falls from `hottest` to a thousandth of it while `steps` are spent. */
static void anneal(polisher *po, polish_run *run, uint64_t steps, double hottest)
{
	polish_rank r;
	double heat = hottest;
	uint64_t rounds = 0;
	run->spent = 0;
	run->cost = cost_now(po, &r);
	while (run->spent < steps && po->nborder) {
		if (rounds % 256 == 0 && hottest > 0)
			heat = hottest * pow(COLDEST, (double)run->spent / (double)steps);
		propose_moves(po, run, hottest > 0 ? -heat * log(random_unit(&run->random)) : 0);
		run->spent += 1 + po->visits / VISITS;
		po->visits %= VISITS;
		if (++rounds % RESYNC == 0) {
			state_sum(po);
			run->cost = cost_now(po, &r);
		}
	}
}

static void best_restore(polisher *po)
{
	memcpy(po->p->stage_of, po->best, po->pr->g->nodes.n * sizeof *po->best);
	memcpy(po->p->device_of, po->best_device, po->p->nstages * sizeof *po->best_device);
	state_sum(po);
	border_fill(po);
}

/* First the devices are made even, with bytes as a trifle; then bytes become fewer, and no device slower than the
   slowest was. */
static void search(polisher *po, const polish_effort *effort)
{
	polish_run run = {.random = {effort->seed}};
	polish_rank r;
	po->bytes_cost = BYTES_FIRST / fmax(po->bytes, 1);
	cost_now(po, &r);
	best_keep(po, &r);
	po->reached_us = po->bound * (1 + POLISH_REACHED);
	if (r.bottleneck < po->reached_us)
		po->reached_us = r.bottleneck;
	po->enough_us = po->reached_us;
	/* where transfers are what counts, so does a share of them */
	double heat = effort->heat * fmax(po->mean_us, (r.bottleneck - po->bound) / 16) / po->bound;
	anneal(po, &run, effort->steps, heat);
	best_restore(po);
	po->enough_us = fmax(po->best_rank.bottleneck, po->reached_us);
	po->bytes_cost = BYTES_THEN / fmax(po->bytes, 1);
	anneal(po, &run, effort->steps / 2, effort->heat * po->mean_us / po->bound);
	best_restore(po);
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static clv_status stages_room(polisher *po, uint32_t stages)
{
	arena *a = &po->stage_arena;
	if (stages <= po->room)
		return CLV_OK;
	arena_free(a);
	po->stages = arena_array(a, stages, sizeof *po->stages);
	po->in_flight = arena_ids(a, stages);
	po->dirty = arena_ids(a, stages);
	po->is_dirty = arena_alloc(a, stages);
	po->best_device = arena_ids(a, stages);
	po->room = a->failed ? 0 : stages;
	return arena_status(a);
}

uint64_t polish_steps(const pipe_graph *g)
{
	uint64_t n = g->nodes.n, states = 60 * n * n;
	return (states < 300000 ? states : 300000) + 5 * n;
}

static clv_status refine(polisher *po, pipe_partition *p, const polish_effort *effort)
{
	TRY(stages_room(po, p->nstages));
	po->p = p;
	po->ndirty = 0;
	po->swaps = po->pr->schedule != SCHEDULE_INTERLEAVED || !placement_loops(p->device_of, p->nstages, po->pr->k);
	schedule_in_flight(po->pr, p->device_of, p->nstages, po->in_flight);
	state_sum(po);
	border_fill(po);
	search(po, effort);
	return partition_tidy(po->pr, p);
}

/* Sums of moves are near enough to search with; whether it was worth it is for score.c to say. */
static clv_status is_worse(const polisher *po, const pipe_partition *was, const pipe_partition *now, bool *out)
{
	pipe_score a, b;
	TRY(score_new(po->pr, was, &a));
	clv_status st = score_new(po->pr, now, &b);
	if (st == CLV_OK) {
		double allowed = fmax(a.bottleneck_us, po->reached_us);
		*out = b.over_bytes > a.over_bytes || (b.over_bytes >= a.over_bytes && b.bottleneck_us > allowed * (1 + 1e-9));
		score_free(&b);
	}
	score_free(&a);
	return st;
}

clv_status polish(polisher *po, pipe_partition *p, const polish_effort *effort)
{
	pipe_partition was = {0};
	bool worse = false;
	if (p->nstages < 2)
		return CLV_OK;
	TRY(partition_copy(po->pr->g, p, &was));
	clv_status st = refine(po, p, effort);
	if (st == CLV_OK)
		st = is_worse(po, &was, p, &worse);
	if (st == CLV_OK && worse) {
		pipe_partition swap = *p;
		*p = was;
		was = swap;
	}
	partition_free(&was);
	return st;
}
