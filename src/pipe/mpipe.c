/* mpipe: mixed pipes with more stages than devices, so that a device gets several that are not neighbours.
 *
 * As in the FTPipe paper: coarsen the graph to L blocks, assign blocks to devices, refine border nodes, and do all of
 * that for several L. A block here is an interval of a topological order, cut where the fewest bytes are alive near the
 * even places, so that blocks cannot depend on each other in a circle. Blocks are assigned the largest first, or round
 * robin (for interleaved schedules); then nodes at borders move until the devices are even (polish.c), with transfers
 * counted where links have a bandwidth.
 *
 * L grows from the number of devices: once few stages reach the lower bound, more are not tried, and beyond two stages a
 * device only if the gap is worth closing. */
#include "pipe/polish.h"

#define WORTH_MORE 5e-3 /* gap to the bound above which more than two stages for a device are tried */
#define MANY_NODES 3000 /* from here on fewer attempts */
#define MOST_NODES 50000

typedef struct mpipe_attempt {
	pipe_order order;
	double slack; /* how far from the even place a cut may be, in blocks */
	bool loops;   /* blocks go round the devices */
} mpipe_attempt;

static const mpipe_attempt attempts[] = {
	{ORDER_GIVEN, 0.1, true},
	{ORDER_GIVEN, 0.4, false},
	{ORDER_DEPTH, 0.2, true},
	{ORDER_DEPTH, 0.4, false},
};
enum { ATTEMPTS = sizeof attempts / sizeof *attempts };

typedef struct mpipe {
	arena arena;
	const pipe_problem *pr;
	polisher *po;
	uint32_t *order, *cut; /* cut[b]: place of the order where block b begins */
	double *before;        /* work before a place of the order */
	pipe_border *crossing; /* of the order */
	pipe_random random;
	keeper kept;
} mpipe;

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

static void work_before(mpipe *m)
{
	uint32_t nodes = m->pr->g->nodes.n;
	m->before[0] = 0;
	for (uint32_t i = 0; i < nodes; i++)
		m->before[i + 1] = m->before[i] + node_us(m->pr, m->order[i]);
	for (uint32_t i = 0; i <= nodes && m->before[nodes] <= 0; i++) /* no work anywhere: nodes count */
		m->before[i] = i;
}

/* A place after `first` and not after `last`: within the slack of `even` the one with the fewest bytes, else the
   nearest. */
static uint32_t place_to_cut(const mpipe *m, uint32_t first, uint32_t last, double even, double slack)
{
	uint32_t best = first + 1;
	bool best_near = false;
	for (uint32_t i = first + 1; i <= last; i++) {
		double off = m->before[i] > even ? m->before[i] - even : even - m->before[i];
		double best_off = m->before[best] > even ? m->before[best] - even : even - m->before[best];
		bool near = off <= slack;
		if (near ? !best_near || m->crossing[i].fwd < m->crossing[best].fwd : !best_near && off < best_off)
			best = i;
		best_near = best_near || near;
		if (m->before[i] > even + slack)
			break;
	}
	return best;
}

static void blocks_cut(mpipe *m, uint32_t blocks, double slack)
{
	uint32_t nodes = m->pr->g->nodes.n;
	double each = m->before[nodes] / blocks;
	m->cut[0] = 0;
	for (uint32_t b = 1; b < blocks; b++)
		m->cut[b] = place_to_cut(m, m->cut[b - 1], nodes - (blocks - b), each * b, each * slack);
	m->cut[blocks] = nodes;
}

/* ---- attempts ---------------------------------------------------------------------------------------------------- */

static void partition_of_blocks(const mpipe *m, uint32_t blocks, pipe_partition *p)
{
	p->nstages = blocks;
	for (uint32_t b = 0; b < blocks; b++) {
		p->device_of[b] = b % m->pr->k;
		for (uint32_t i = m->cut[b]; i < m->cut[b + 1]; i++)
			p->stage_of[m->order[i]] = b;
	}
}

/* One block for each device: the DP over the chain knows best where to cut. */
static clv_status blocks_new(mpipe *m, const mpipe_attempt *a, uint32_t blocks, pipe_partition *p)
{
	if (blocks == m->pr->k && a->loops)
		return order_cut(m->pr, m->order, p);
	TRY(order_crossing(m->pr->g, m->order, m->crossing));
	work_before(m);
	blocks_cut(m, blocks, a->slack);
	TRY(partition_new(m->pr->g, p));
	partition_of_blocks(m, blocks, p);
	return CLV_OK;
}

static clv_status attempt_blocks(mpipe *m, const mpipe_attempt *a, uint32_t blocks, pipe_partition *p)
{
	TRY(blocks_new(m, a, blocks, p));
	if (!a->loops)
		TRY(stages_place(m->pr, p));
	return polish(m->po, p, &(polish_effort){polish_steps(m->pr->g), 0.5, random_next(&m->random)});
}

static clv_status attempt(mpipe *m, const mpipe_attempt *a, uint32_t blocks)
{
	pipe_partition p = {0};
	TRY(order_new(m->pr->g, a->order, m->order));
	clv_status st = attempt_blocks(m, a, blocks, &p);
	if (st != CLV_OK) {
		partition_free(&p);
		return st;
	}
	return offer_filled(m->pr, &m->kept, &p);
}

static uint32_t attempts_for(uint32_t nodes)
{
	return nodes > MOST_NODES ? 1 : nodes > MANY_NODES ? 2 : ATTEMPTS;
}

/* Whether more blocks for each device are worth a try: halves counts them. */
static bool worth_more(const mpipe *m, uint32_t halves)
{
	const pipe_score *s = &m->kept.score;
	if (kept_reached(&m->kept))
		return false;
	return halves <= 4 || s->over_bytes > 0 || s->bottleneck_us > s->lower_bound_us * (1 + WORTH_MORE);
}

static clv_status attempt_all(mpipe *m)
{
	static const uint32_t halves[] = {2, 3, 4, 6, 8}; /* blocks for two devices */
	uint32_t most = stages_limit(m->pr), tried = 0, each = attempts_for(m->pr->g->nodes.n);
	double began = clock_seconds();
	for (size_t i = 0; i < sizeof halves / sizeof *halves; i++) {
		uint64_t wanted = ((uint64_t)m->pr->k * halves[i] + 1) / 2;
		uint32_t blocks = wanted < most ? (uint32_t)wanted : most;
		if (blocks == tried || (tried && !worth_more(m, halves[i])))
			break;
		tried = blocks;
		for (uint32_t a = 0; a < each && !kept_reached(&m->kept); a++) {
			if (m->kept.has && time_is_up(m->pr, began)) {
				m->kept.best.stopped = true;
				return CLV_OK;
			}
			TRY(attempt(m, &attempts[a], blocks));
		}
	}
	return CLV_OK;
}

static clv_status mpipe_new(const pipe_problem *pr, mpipe *m)
{
	size_t nodes = pr->g->nodes.n;
	*m = (mpipe){.pr = pr, .random = {pr->seed}};
	m->order = arena_ids(&m->arena, nodes);
	m->cut = arena_ids(&m->arena, nodes + 1);
	m->before = arena_array(&m->arena, nodes + 1, sizeof *m->before);
	m->crossing = arena_array(&m->arena, nodes + 1, sizeof *m->crossing);
	TRY(arena_status(&m->arena));
	return polisher_new(pr, &m->po);
}

clv_status pipe_mpipe(const pipe_problem *pr, pipe_partition *out)
{
	mpipe m;
	clv_status st = mpipe_new(pr, &m);
	if (st == CLV_OK)
		st = attempt_all(&m);
	st = keeper_end(&m.kept, st, out);
	if (st == CLV_OK)
		out->method = "mpipe";
	polisher_free(m.po);
	arena_free(&m.arena);
	return st;
}
