/* Chains: finds the best cut of an order, and the cost of a cut.
 *
 * Where time alone counts, stages are filled up to a limit, which is bisected. Where links or memory count, it is a DP
 * over positions: all of them, or the cheapest to cut of each run of neighbours. */
#include "pipe/chain.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define SPOTS 400 /* candidates for cuts in the DP */
#define OVER 1e30 /* us that a byte over the memory counts as */

void chain_sum(chain *c)
{
	c->sum[0] = 0; /* a search may have used it for other sums */
	for (uint32_t i = 0; i < c->n; i++)
		c->sum[i + 1] = c->sum[i] + node_us(c->pr, c->order[i]);
}

/* The last position in [from, to] with at most `most` before it; from - 1 if there is none. */
static uint32_t last_within(const double *sum, uint32_t from, uint32_t to, double most)
{
	while (from <= to) {
		uint32_t mid = from + (to - from) / 2;
		if (sum[mid] <= most)
			from = mid + 1;
		else
			to = mid - 1;
	}
	return from - 1;
}

/* Stages before `pivot` are filled from the front up to the limit, those behind it from the end; the pivot gets
   what is between. If any cut of this order is within the limit, this one is. */
static bool fill_stages(const chain *c, double most, uint32_t pivot, uint32_t *cut)
{
	const double *sum = c->sum;
	uint32_t n = c->n, k = c->k;
	double room = most * (1 + CHAIN_ROUNDING);
	cut[0] = 0;
	cut[k] = n;
	for (uint32_t s = 0; s < pivot; s++) {
		uint32_t at = last_within(sum, cut[s] + 1, n - (k - 1 - s), sum[cut[s]] + room * chain_speed(c, s));
		if (at <= cut[s])
			return false;
		cut[s + 1] = at;
	}
	for (uint32_t s = k - 1; s > pivot; s--) {
		/* the first position from which on it fits: one behind the last at which it is too much */
		double least = sum[cut[s + 1]] - room * chain_speed(c, s);
		uint32_t at = sum[s] >= least ? s : last_within(sum, s, cut[s + 1], nextafter(least, -DBL_MAX)) + 1;
		if (at >= cut[s + 1])
			return false;
		cut[s] = at;
	}
	return cut[pivot] < cut[pivot + 1] && sum[cut[pivot + 1]] - sum[cut[pivot]] <= room * chain_speed(c, pivot);
}

static double slowest(const chain *c, const uint32_t *cut)
{
	double most = 0;
	for (uint32_t s = 0; s < c->k; s++)
		most = fmax(most, (c->sum[cut[s + 1]] - c->sum[cut[s]]) / chain_speed(c, s));
	return most;
}

static void keep_trial(chain *c)
{
	memcpy(c->cut, c->trial, (c->k + 1) * sizeof *c->cut);
	c->worst = slowest(c, c->cut);
}

/* c->cut is within c->worst; bisects down to the best of this order. */
static void bisect(chain *c, uint32_t pivot)
{
	double low = c->least;
	while (c->worst - low > CHAIN_EQUAL / 4 * c->worst) {
		double mid = low + (c->worst - low) / 2;
		c->steps += 16 * c->k;
		if (fill_stages(c, mid, pivot, c->trial))
			keep_trial(c);
		else
			low = mid;
	}
}

/* The best cut, if it is better than c->worst; else one that is as good, with the spare room elsewhere. False if
   there is none (devices were changed). */
static bool cut_plain(chain *c, uint32_t pivot)
{
	chain_sum(c);
	c->steps += c->n + 16 * c->k;
	if (fill_stages(c, c->worst * (1 - CHAIN_EQUAL), pivot, c->trial)) {
		keep_trial(c);
		bisect(c, pivot);
		return true;
	}
	if (!fill_stages(c, c->worst, pivot, c->trial))
		return false;
	memcpy(c->cut, c->trial, (c->k + 1) * sizeof *c->cut);
	return true;
}

static double bytes_over(const chain *c, uint32_t s, const chain_load *in, const pipe_border *before)
{
	const pipe_problem *pr = c->pr;
	int64_t limit = pr->devices[c->device_of[s]].memory_bytes;
	if (limit == 0)
		return 0;
	double bytes = in->param * pr->param_copies + in->work;
	if (pr->training && pr->recompute)
		bytes += (double)before->fwd * c->in_flight[s] + in->held;
	else if (pr->training)
		bytes += in->held * c->in_flight[s];
	return fmax(0, ceil(bytes) - (double)limit);
}

double chain_cost(const chain *c, uint32_t s, const chain_load *in, const pipe_border *before, const pipe_border *after)
{
	double speed = chain_speed(c, s), fwd = in->fwd / speed, bwd = in->bwd / speed, cost = fwd + bwd;
	if (c->pr->bandwidth)
		cost += waits_us(c->pr, c->device_of, c->k, s, before, after, fwd, bwd);
	return cost + OVER * bytes_over(c, s, in, before);
}

chain_load node_load(const pipe_problem *pr, uint32_t n)
{
	const pipe_node *x = &pr->g->nodes.at[n];
	return (chain_load){x->fwd_us, node_backward_us(pr, n), (double)x->param_bytes, (double)x->held_bytes,
	                    (double)node_work_bytes(pr, n)};
}

static void sum_loads(chain *c)
{
	for (uint32_t i = 0; i < c->n; i++) {
		chain_load x = node_load(c->pr, c->order[i]), *at = &c->load[i];
		at->work = x.work;
		at[1] = (chain_load){at->fwd + x.fwd, at->bwd + x.bwd, at->param + x.param, at->held + x.held, 0};
	}
}

/* What crosses each position: a value does from behind its maker up to its last reader, or to the end if it
   leaves. */
static void sum_borders(chain *c)
{
	const pipe_graph *g = c->pr->g;
	for (uint32_t i = 0; i < c->n; i++)
		c->place[c->order[i]] = i;
	memset(c->border, 0, (c->n + 2) * sizeof *c->border);
	for (uint32_t v = 0; v < g->values.n; v++) {
		const pipe_value *x = &g->values.at[v];
		uint32_t from = x->from == PIPE_NONE ? 0 : c->place[x->from] + 1, last = x->leaves ? c->n - 1 : 0;
		for (uint32_t i = 0; i < x->nuses && !x->leaves; i++) {
			uint32_t at = c->place[g->uses.at[x->uses + i]];
			last = at > last ? at : last;
		}
		if (last < from)
			continue;
		int64_t grad = x->grad ? x->bytes : 0;
		c->border[from].fwd += x->bytes;
		c->border[from].bwd += grad;
		c->border[last + 1].fwd -= x->bytes;
		c->border[last + 1].bwd -= grad;
	}
	for (uint32_t i = 0; i < c->n; i++) {
		c->border[i + 1].fwd += c->border[i].fwd;
		c->border[i + 1].bwd += c->border[i].bwd;
	}
	c->steps += g->values.n + g->uses.n + 2 * c->n;
}

void chain_sum_all(chain *c)
{
	chain_sum(c);
	sum_loads(c);
	sum_borders(c);
}

static chain_load between(const chain *c, uint32_t from, uint32_t to, double work)
{
	const chain_load *a = &c->load[from], *b = &c->load[to];
	return (chain_load){b->fwd - a->fwd, b->bwd - a->bwd, b->param - a->param, b->held - a->held, work};
}

double chain_costliest(const chain *c)
{
	double most = 0;
	for (uint32_t s = 0; s < c->k; s++) {
		double work = 0;
		for (uint32_t i = c->cut[s]; i < c->cut[s + 1]; i++)
			work = fmax(work, c->load[i].work);
		chain_load in = between(c, c->cut[s], c->cut[s + 1], work);
		most = fmax(most, chain_cost(c, s, &in, &c->border[c->cut[s]], &c->border[c->cut[s + 1]]));
	}
	return most;
}

uint32_t chain_spots(const chain *c)
{
	return c->n <= SPOTS ? c->n + 1 : SPOTS + c->k + 2;
}

static void add_spot(chain *c, uint32_t at)
{
	if (c->nspots == 0 || c->spot[c->nspots - 1] < at)
		c->spot[c->nspots++] = at;
}

/* Positions that may become cuts: all, or the cheapest of each run of neighbours and those that are cuts now. */
static void choose_spots(chain *c)
{
	uint32_t run = c->n <= SPOTS ? 1 : c->n / SPOTS + 1, s = 0;
	c->nspots = 0;
	for (uint32_t from = 0; from <= c->n; from += run) {
		uint32_t best = from, to = from + run <= c->n ? from + run : c->n + 1;
		for (uint32_t i = from; i < to; i++)
			if (c->border[i].fwd < c->border[best].fwd)
				best = i;
		for (; s <= c->k && c->cut[s] < best; s++)
			add_spot(c, c->cut[s]);
		add_spot(c, best);
		for (; s <= c->k && c->cut[s] < to; s++)
			add_spot(c, c->cut[s]);
	}
}

/* From spot i, stage s to every later spot that is within `most`; the sum of borders is what counts if `bytes`. */
static void reach_from(chain *c, uint32_t s, uint32_t i, double most, double rest, bool bytes)
{
	double *row = c->reach + (size_t)s * c->nspots, *next = row + c->nspots, work = 0, speed = chain_speed(c, s);
	uint32_t *back = c->back + (size_t)(s + 1) * c->nspots, from = c->spot[i], at = from;
	double total = c->load[c->n].fwd + c->load[c->n].bwd;
	for (uint32_t j = i + 1; j < c->nspots; j++) {
		uint32_t to = c->spot[j];
		for (; at < to; at++)
			work = fmax(work, c->load[at].work);
		chain_load in = between(c, from, to, work);
		c->steps++;
		if (in.fwd + in.bwd > most * speed)
			return;
		if (total - c->load[to].fwd - c->load[to].bwd > most * rest * (1 + CHAIN_ROUNDING) || row[i] >= next[j])
			continue;
		c->steps += 8;
		double cost = chain_cost(c, s, &in, &c->border[from], &c->border[to]);
		if (cost > most)
			continue;
		double reached = bytes ? row[i] + (to < c->n ? (double)c->border[to].fwd : 0) : fmax(row[i], cost);
		if (reached < next[j]) {
			next[j] = reached;
			back[j] = i;
		}
	}
}

double chain_cut_spots(chain *c, double most, bool bytes)
{
	double rest = 0;
	choose_spots(c);
	for (size_t i = 0; i < (size_t)(c->k + 1) * c->nspots; i++)
		c->reach[i] = DBL_MAX;
	c->reach[0] = 0;
	c->steps += (uint64_t)(c->k + 1) * c->nspots;
	for (uint32_t s = 0; s < c->k; s++)
		rest += chain_speed(c, s);
	for (uint32_t s = 0; s < c->k; s++) {
		rest = s + 1 < c->k ? rest - chain_speed(c, s) : 0;
		for (uint32_t i = s; i < c->nspots; i++)
			if (c->reach[(size_t)s * c->nspots + i] < DBL_MAX)
				reach_from(c, s, i, most, rest, bytes);
		if (c->steps > c->most_steps)
			return DBL_MAX;
	}
	uint32_t at = c->nspots - 1;
	double found = c->reach[(size_t)c->k * c->nspots + at];
	for (uint32_t s = c->k; s > 0 && found < DBL_MAX; s--) {
		c->cut[s] = c->spot[at];
		at = c->back[(size_t)s * c->nspots + at];
	}
	return found;
}

bool chain_recut(chain *c, pipe_random *r)
{
	bool ok;
	if (c->plain) {
		ok = cut_plain(c, pipe_random_below(r, c->k));
	} else {
		chain_sum_all(c);
		double found = chain_cut_spots(c, c->worst * (1 + CHAIN_ROUNDING), false);
		ok = found < DBL_MAX;
		c->worst = fmin(c->worst, found);
	}
	if (ok)
		chain_set_stages(c);
	return ok;
}

/* By time alone, and then by everything. */
void chain_cut_order(chain *c, pipe_random *r)
{
	for (uint32_t s = 0; s <= c->k; s++) /* none to keep, but they must be valid */
		c->cut[s] = s < c->k ? s : c->n;
	double slow = DBL_MAX;
	chain_sum(c);
	for (uint32_t s = 0; s < c->k; s++)
		slow = fmin(slow, chain_speed(c, s));
	c->worst = 2 * (c->sum[c->n] / slow) + DBL_MIN;
	cut_plain(c, pipe_random_below(r, c->k));
	if (!c->plain) {
		chain_sum_all(c);
		c->worst = chain_costliest(c);
		double found = chain_cut_spots(c, c->worst * (1 + CHAIN_ROUNDING), false);
		c->worst = fmin(c->worst, found);
	}
	chain_set_stages(c);
}
