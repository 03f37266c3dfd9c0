/* Chains: searches for the best one.
 *
 * The only move of the search: put the nodes of every stage into another topological order at random, and cut the whole
 * order anew. The old cuts are among the candidates, so the result is never worse; a new order offers other sums at each
 * border, and cutting the whole lets a gain at one border move on to the next. Where nothing improves, the search walks
 * along a plateau: it fills stages up to the bottleneck from both ends, and the room left over gathers in a stage chosen
 * at random. An attempt costs O(nodes + edges). */
#include "pipe/chain.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define POLISHES 12 /* attempts to save bytes in a row that save none */
#define FRESH 12    /* one kick in so many is a new start */
#define REFINES 60  /* attempts after a kick; fewer where nodes are few */
#define KICKS 10    /* without a gain, after which a search ends; more of them for more nodes */
#define KICKS_PER_NODE 2
#define STARTS 10 /* orders that a search begins with */

/* ---- a smaller bottleneck -------------------------------------------------------------------------------------- */

static bool out_of_time(chain *c)
{
	if (c->deadline > 0 && clock_seconds() > c->deadline)
		c->stopped = true;
	return c->stopped;
}

static bool is_least(const chain *c)
{
	return c->worst <= c->least * (1 + CHAIN_EQUAL);
}

void chain_refine(chain *c, uint32_t attempts, uint64_t end, pipe_random *r)
{
	c->most_steps = c->most_steps > end ? c->most_steps : end;
	for (; attempts && c->k > 1 && c->steps < end && !is_least(c) && !out_of_time(c); attempts--) {
		uint32_t a = 0, b = 0;
		chain_shuffle(c, r);
		if (!c->alike && pipe_random_below(r, 4) == 0) {
			a = pipe_random_below(r, c->k);
			b = pipe_random_below(r, c->k);
			chain_swap_devices(c, a, b);
		}
		if (!chain_recut(c, r))
			chain_swap_devices(c, a, b);
	}
}

static void keep_chain(chain *c)
{
	memcpy(c->kept_order, c->order, c->n * sizeof *c->order);
	memcpy(c->kept_cut, c->cut, (c->k + 1) * sizeof *c->cut);
	memcpy(c->kept_device, c->device_of, c->k * sizeof *c->device_of);
	c->kept_worst = c->worst;
}

static void take_kept(chain *c)
{
	memcpy(c->order, c->kept_order, c->n * sizeof *c->order);
	memcpy(c->cut, c->kept_cut, (c->k + 1) * sizeof *c->cut);
	memcpy(c->device_of, c->kept_device, c->k * sizeof *c->device_of);
	schedule_in_flight(c->pr, c->device_of, c->k, c->in_flight);
	c->worst = c->kept_worst;
	chain_set_stages(c);
}

/* The first starts have orders that are not random, the others are. */
static clv_status start_order(chain *c, uint32_t number, pipe_random *r)
{
	for (uint32_t i = 0; i < c->k; i++)
		c->device_of[i] = i;
	schedule_in_flight(c->pr, c->device_of, c->k, c->in_flight);
	TRY(order_new(c->pr->g, number < ORDER_COUNT ? (pipe_order)number : ORDER_GIVEN, c->order));
	if (number >= ORDER_COUNT)
		chain_shuffle_all(c, chain_any_taste(r), r);
	for (uint32_t i = c->k - 1; number >= ORDER_COUNT && !c->alike && i > 0; i--)
		chain_swap_devices(c, i, pipe_random_below(r, i + 1));
	chain_cut_order(c, r);
	return CLV_OK;
}

/* Some stages in a row become one, which is put into another order; the whole is then cut from scratch. */
static void kick(chain *c, pipe_random *r)
{
	uint32_t a = pipe_random_below(r, c->k - 1), b = a + 1 + pipe_random_below(r, c->k - 1 - a);
	chain_shuffle_run(c, c->cut[a], c->cut[b + 1], a, b, chain_any_taste(r), r);
	c->steps += c->n + c->pr->g->succ_first[c->n];
	chain_cut_order(c, r);
}

static uint32_t refines(const chain *c)
{
	return c->n < REFINES ? c->n : REFINES;
}

/* Kicks the best that is known and refines a little, until that has not helped for long. */
static clv_status kick_and_refine(chain *c, uint64_t end, pipe_random *r)
{
	uint32_t patience = KICKS + KICKS_PER_NODE * (c->n < 1000 ? c->n : 1000);
	for (uint32_t idle = 0; c->k > 1 && idle < patience && c->steps < end; idle++) {
		if (c->kept_worst <= c->least * (1 + CHAIN_EQUAL) || out_of_time(c))
			break;
		if (pipe_random_below(r, FRESH) == 0) {
			TRY(start_order(c, STARTS, r));
			chain_refine(c, 4 * refines(c), end, r);
		} else {
			take_kept(c);
			kick(c, r);
			chain_refine(c, refines(c), end, r);
		}
		if (c->worst < c->kept_worst * (1 - CHAIN_EQUAL))
			idle = 0;
		if (c->worst <= c->kept_worst)
			keep_chain(c);
	}
	take_kept(c);
	return CLV_OK;
}

clv_status chain_search(chain *c, uint64_t steps, bool given, pipe_random *r)
{
	uint64_t end = c->most_steps = c->steps + steps;
	for (uint32_t i = 0; i < STARTS && (i == 0 || !out_of_time(c)); i++) {
		TRY(start_order(c, given ? i : STARTS, r));
		chain_refine(c, 4 * refines(c), c->steps + steps / 4 / STARTS, r);
		if (i == 0 || c->worst < c->kept_worst * (1 - CHAIN_EQUAL))
			keep_chain(c);
		if (is_least(c))
			break;
	}
	return kick_and_refine(c, end, r);
}

/* ---- fewer bytes ----------------------------------------------------------------------------------------------- */

static double border_bytes(const chain *c)
{
	double sum = 0;
	for (uint32_t s = 1; s < c->k; s++)
		sum += (double)c->border[c->cut[s]].fwd;
	return sum;
}

/* Stages between which node n may be put, by its neighbours. */
static void range_of(const chain *c, uint32_t n, uint32_t *low, uint32_t *high)
{
	const pipe_graph *g = c->pr->g;
	*low = 0;
	*high = c->k - 1;
	for (uint32_t e = g->pred_first[n]; e < g->pred_first[n + 1]; e++)
		*low = c->stage_of[g->pred[e]] > *low ? c->stage_of[g->pred[e]] : *low;
	for (uint32_t e = g->succ_first[n]; e < g->succ_first[n + 1]; e++)
		*high = c->stage_of[g->succ[e]] < *high ? c->stage_of[g->succ[e]] : *high;
}

/* Borders that value v crosses if node n is in stage `s`. */
static double crossings(const chain *c, uint32_t v, uint32_t n, uint32_t s)
{
	const pipe_value *x = &c->pr->g->values.at[v];
	uint32_t from = x->from == n ? s : x->from == PIPE_NONE ? 0 : c->stage_of[x->from], last = from;
	if (x->leaves)
		return (double)(c->k - 1 - from);
	for (uint32_t i = 0; i < x->nuses; i++) {
		uint32_t m = c->pr->g->uses.at[x->uses + i], at = m == n ? s : c->stage_of[m];
		last = at > last ? at : last;
	}
	return (double)(last - from);
}

/* Of value v, when node n goes to stage `to`. */
static double value_saved(chain *c, uint32_t v, uint32_t n, uint32_t to)
{
	const pipe_value *x = &c->pr->g->values.at[v];
	c->steps += x->nuses;
	return (double)x->bytes * (crossings(c, v, n, c->stage_of[n]) - crossings(c, v, n, to));
}

static double bytes_saved(chain *c, uint32_t n, uint32_t to)
{
	double saved = 0;
	for (uint32_t i = c->made_first[n]; i < c->made_first[n + 1]; i++)
		saved += value_saved(c, c->made[i], n, to);
	for (uint32_t i = c->read_first[n]; i < c->read_first[n + 1]; i++)
		saved += value_saved(c, c->read[i], n, to);
	return saved;
}

/* Stages while nodes move: time on a device of speed 1, and nodes. */
typedef struct loads {
	double *us;
	uint32_t *count;
} loads;

/* Puts node n where it saves bytes and loads no stage beyond the slowest, if there is such a stage. */
static bool move_node(chain *c, loads *x, uint32_t n)
{
	uint32_t low, high, s = c->stage_of[n];
	double us = node_us(c->pr, n);
	range_of(c, n, &low, &high);
	c->steps += 4;
	for (uint32_t t = low; t <= high && x->count[s] > 1; t++) {
		c->steps++;
		if (t == s || x->us[t] + us > c->worst * chain_speed(c, t) || bytes_saved(c, n, t) <= 0)
			continue;
		x->us[s] -= us;
		x->us[t] += us;
		x->count[s]--;
		x->count[t]++;
		c->stage_of[n] = t;
		return true;
	}
	return false;
}

/* Moves single nodes while that helps. */
static void move_nodes(chain *c, uint64_t end)
{
	loads x = {c->sum, c->trial}; /* scratch of the chain, made anew by what follows */
	for (uint32_t s = 0; s < c->k; s++) {
		x.us[s] = 0;
		x.count[s] = c->cut[s + 1] - c->cut[s];
		for (uint32_t i = c->cut[s]; i < c->cut[s + 1]; i++)
			x.us[s] += node_us(c->pr, c->order[i]);
	}
	for (bool moved = true; moved && c->steps < end;) {
		moved = false;
		for (uint32_t n = 0; n < c->n && c->steps < end; n++)
			moved = move_node(c, &x, n) || moved;
	}
	chain_sort(c);
}

void chain_polish(chain *c, uint64_t steps, pipe_random *r)
{
	uint64_t end = c->most_steps = c->steps + steps;
	chain_sum_all(c);
	for (uint32_t idle = 0; c->k > 1 && idle < POLISHES && c->steps < end && !out_of_time(c); idle++) {
		double before = border_bytes(c);
		keep_chain(c);
		move_nodes(c, end);
		chain_sum_all(c);
		if (chain_costliest(c) > c->worst * (1 + CHAIN_ROUNDING) || border_bytes(c) > before)
			take_kept(c);
		chain_shuffle_by(c, pipe_random_below(r, 2) ? (chain_taste){256, 0} : (chain_taste){250, 8}, r);
		chain_sum_all(c);
		chain_cut_spots(c, c->worst * (1 + CHAIN_ROUNDING), true);
		chain_set_stages(c);
		if (border_bytes(c) < before)
			idle = 0;
	}
}
