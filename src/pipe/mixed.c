/* Mixed pipes: an order cut into more blocks than there are devices, a device for each block.
 *
 * What a chain cannot balance, because a node is too large to be on either side of a border, several borders per
 * device can: each is one more sum to choose. Blocks stand in one order, so there are no cycles, and there are
 * no more stages than blocks. Borders are moved one at a time to where the two devices at it are most alike,
 * or at random where neither gets slower than the slowest; orders inside of blocks are shuffled as in chain_search.c.
 * Some placements are tried for each number of blocks: looped (which interleaved schedules want), there and
 * back, and random ones; then devices of two blocks are swapped in the best of them.
 *
 * A round costs O(nodes + edges + blocks * log nodes); rounds are limited. */
#include "pipe/mixed.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define STEPS 12000000u       /* for one number of blocks */
#define GAIN 1e-3             /* that more stages must bring */
#define MOST_DEVICES_MIXED 64 /* beyond, a few stages more change nothing and many cost much */
#define PLACEMENTS 6
#define PATIENCE 120 /* rounds without a gain after which a placement is given up */
#define KICKS 200    /* fewer where nodes are few */

typedef struct mixed {
	arena arena;
	const pipe_problem *pr;
	chain c;              /* blocks as if each had a device */
	pipe_device *devices; /* per block: its device */
	uint32_t *device_of, *best_device;
	uint32_t *in_order;   /* 0, 1, …: devices of the chain */
	uint32_t *best_stage; /* per node */
	double *us;           /* per device */
	double worst, best;
} mixed;

static void mixed_free(mixed *m)
{
	chain_free(&m->c);
	arena_free(&m->arena);
}

/* Chains of `blocks` stages; the problem behind it has so many devices and counts time alone. */
static clv_status mixed_new(const pipe_problem *pr, uint32_t blocks, pipe_problem *own, mixed *m)
{
	*m = (mixed){.pr = pr, .best = DBL_MAX};
	m->devices = arena_array(&m->arena, blocks, sizeof *m->devices);
	m->device_of = arena_ids(&m->arena, blocks);
	m->best_device = arena_ids(&m->arena, blocks);
	m->in_order = arena_ids(&m->arena, blocks);
	m->best_stage = arena_ids(&m->arena, pr->g->nodes.n);
	m->us = arena_array(&m->arena, pr->k, sizeof *m->us);
	clv_status st = arena_status(&m->arena);
	for (uint32_t i = 0; i < blocks && st == CLV_OK; i++) {
		m->devices[i].speed = 1;
		m->in_order[i] = i;
	}
	*own = *pr;
	own->k = blocks;
	own->devices = m->devices;
	own->bandwidth = NULL;
	if (st == CLV_OK)
		st = chain_new(own, &m->c);
	if (st != CLV_OK)
		mixed_free(m);
	return st;
}

/* Which device has which block; every device has one at least. */
static void place_blocks(mixed *m, uint32_t number, pipe_random *r)
{
	uint32_t k = m->pr->k, blocks = m->c.k;
	for (uint32_t b = 0; b < blocks; b++) {
		uint32_t turn = b / k, at = b % k;
		m->device_of[b] = number == 1 && turn % 2 ? k - 1 - at : at;
	}
	for (uint32_t b = blocks - 1; number > 1 && b > 0; b--) {
		uint32_t other = pipe_random_below(r, b + 1), d = m->device_of[b];
		m->device_of[b] = m->device_of[other];
		m->device_of[other] = d;
	}
}

/* Blocks of a device share its speed. */
static void begin(mixed *m, pipe_random *r)
{
	double *shares = m->us;
	memset(shares, 0, m->pr->k * sizeof *shares);
	for (uint32_t b = 0; b < m->c.k; b++)
		shares[m->device_of[b]]++;
	for (uint32_t b = 0; b < m->c.k; b++)
		m->devices[b].speed = m->pr->devices[m->device_of[b]].speed / shares[m->device_of[b]];
	chain_cut_order(&m->c, r);
}

static void weigh(mixed *m)
{
	m->worst = 0;
	chain_sum(&m->c);
	memset(m->us, 0, m->pr->k * sizeof *m->us);
	for (uint32_t b = 0; b < m->c.k; b++)
		m->us[m->device_of[b]] += m->c.sum[m->c.cut[b + 1]] - m->c.sum[m->c.cut[b]];
	for (uint32_t d = 0; d < m->pr->k; d++)
		m->worst = fmax(m->worst, m->us[d] / m->pr->devices[d].speed);
}

/* The two devices at border b, if it were at a position: the slower of them. */
static double slower(const mixed *m, uint32_t b, uint32_t at)
{
	uint32_t left = m->device_of[b - 1], right = m->device_of[b];
	double more = m->c.sum[at] - m->c.sum[m->c.cut[b]];
	return fmax((m->us[left] + more) / m->pr->devices[left].speed, (m->us[right] - more) / m->pr->devices[right].speed);
}

static void move_border(mixed *m, uint32_t b, uint32_t at)
{
	double more = m->c.sum[at] - m->c.sum[m->c.cut[b]];
	m->us[m->device_of[b - 1]] += more;
	m->us[m->device_of[b]] -= more;
	m->c.cut[b] = at;
}

/* Where the two devices are most alike: the left one gets slower with the position, the right one faster. */
static uint32_t best_place(const mixed *m, uint32_t b)
{
	uint32_t low = m->c.cut[b - 1] + 1, high = m->c.cut[b + 1] - 1;
	uint32_t left = m->device_of[b - 1], right = m->device_of[b];
	double sl = m->pr->devices[left].speed, sr = m->pr->devices[right].speed;
	while (low < high) {
		uint32_t mid = low + (high - low) / 2;
		double more = m->c.sum[mid] - m->c.sum[m->c.cut[b]];
		if ((m->us[left] + more) / sl < (m->us[right] - more) / sr)
			low = mid + 1;
		else
			high = mid;
	}
	return low > m->c.cut[b - 1] + 1 && slower(m, b, low - 1) < slower(m, b, low) ? low - 1 : low;
}

static void move_borders(mixed *m, pipe_random *r)
{
	for (uint32_t i = 1; i < m->c.k; i++) {
		uint32_t b = 1 + pipe_random_below(r, m->c.k - 1), low = m->c.cut[b - 1] + 1, high = m->c.cut[b + 1] - 1;
		if (m->device_of[b] == m->device_of[b - 1])
			continue;
		uint32_t any = low + pipe_random_below(r, high - low + 1);
		if (pipe_random_below(r, 4) == 0 && slower(m, b, any) < m->worst)
			move_border(m, b, any);
		else
			move_border(m, b, best_place(m, b));
	}
	m->c.steps += (uint64_t)m->c.k * 16;
}

static void remember(mixed *m)
{
	if (m->worst >= m->best)
		return;
	m->best = m->worst;
	memcpy(m->best_device, m->device_of, m->c.k * sizeof *m->best_device);
	memcpy(m->best_stage, m->c.stage_of, m->c.n * sizeof *m->best_stage);
}

/* Borders of one placement, until moving them has not helped for `patience` rounds. */
static void improve(mixed *m, uint32_t patience, uint64_t end, double enough, pipe_random *r)
{
	double best = DBL_MAX;
	for (uint32_t idle = 0; idle < patience && m->c.steps < end && m->best > enough; idle++) {
		weigh(m);
		move_borders(m, r);
		weigh(m);
		chain_set_stages(&m->c);
		remember(m);
		if (m->worst < best) {
			best = m->worst;
			idle = 0;
		}
		chain_shuffle(&m->c, r);
	}
}

/* The best that is known, with the devices of two blocks swapped. */
static void kick(mixed *m, pipe_random *r)
{
	uint32_t a = pipe_random_below(r, m->c.k), b = pipe_random_below(r, m->c.k), *of = m->device_of;
	chain_take(&m->c, m->best_stage, m->in_order);
	memcpy(of, m->best_device, m->c.k * sizeof *of);
	uint32_t d = of[a];
	of[a] = of[b];
	of[b] = d;
}

static clv_status offer_mixed(const pipe_problem *pr, const mixed *m, keeper *kept)
{
	pipe_partition p;
	TRY(partition_new(pr->g, &p));
	memcpy(p.stage_of, m->best_stage, m->c.n * sizeof *p.stage_of);
	memcpy(p.device_of, m->best_device, m->c.k * sizeof *p.device_of);
	p.nstages = m->c.k;
	return keeper_offer(pr, kept, &p);
}

static clv_status search_blocks(const pipe_problem *pr, const uint32_t *order, uint32_t blocks, double enough,
                                keeper *kept)
{
	pipe_random r = {pr->seed + blocks};
	pipe_problem own;
	mixed m;
	TRY(mixed_new(pr, blocks, &own, &m));
	for (uint32_t i = 0; i < PLACEMENTS && m.best > enough; i++) {
		memcpy(m.c.order, order, m.c.n * sizeof *order);
		place_blocks(&m, i, &r);
		begin(&m, &r);
		improve(&m, PATIENCE, m.c.steps + STEPS / 2 / PLACEMENTS, enough, &r);
	}
	uint32_t kicks = m.c.n < KICKS / 10 ? m.c.n * 10 : KICKS;
	for (uint32_t i = 0; i < kicks && m.best > enough && m.c.steps < STEPS; i++) {
		kick(&m, &r);
		improve(&m, PATIENCE / 4, STEPS, enough, &r);
	}
	double gain = GAIN * (blocks - fmin(blocks, kept->best.nstages));
	clv_status st = m.best < kept->score.bottleneck_us * (1 - gain) ? offer_mixed(pr, &m, kept) : CLV_OK;
	mixed_free(&m);
	return st;
}

clv_status mixed_search(const pipe_problem *pr, const uint32_t *order, double least, double gap, keeper *kept)
{
	uint64_t most = pr->max_stages ? pr->max_stages : (uint64_t)pr->k * 3;
	double deadline = pr->seconds > 0 ? clock_seconds() + pr->seconds : 0;
	most = most > (uint64_t)pr->k * 3 ? (uint64_t)pr->k * 3 : most;
	most = most > pr->g->nodes.n ? pr->g->nodes.n : most;
	for (uint32_t blocks = pr->k + 1; pr->k > 1 && pr->k <= MOST_DEVICES_MIXED && blocks <= most;
	     blocks += 1 + pr->k / 8) {
		if (kept->score.bottleneck_us <= least * (1 + gap) || (deadline > 0 && clock_seconds() > deadline))
			break;
		TRY(search_blocks(pr, order, blocks, least * (1 + gap), kept));
	}
	return CLV_OK;
}
