/* Chains: the order, the cuts, the search.
 *
 * The one move of the search is larger than moving nodes: the nodes of every stage are put into another
 * topological order at random, and the whole order is cut anew. The cuts that were there are among those that
 * can be chosen, so the result is never worse; a new order offers other sums at each border, and a cut of the
 * whole lets a gain at one border go on to the next. What cannot be improved is walked along: stages are filled
 * up to the bottleneck from both ends, and the room that is left over gathers in a stage chosen at random. An
 * attempt costs O(nodes + edges).
 *
 * Where time alone counts, the best cut of an order is found by filling stages under a limit that is bisected.
 * Where links or memory count, it is a DP over positions (all of them, or the cheapest to cut of each run of
 * neighbours). */
#define _POSIX_C_SOURCE 200809L
#include "pipe/refine.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define SPOTS 400      /* candidates for cuts in the DP */
#define EQUAL 1e-9     /* as score_better: what is closer than that is no gain */
#define ROUNDING 1e-13 /* of sums taken in another order */
#define OVER 1e30      /* us that a byte over the memory counts as */
#define POLISHES 12    /* attempts to save bytes in a row that save none */
#define FRESH 12       /* one kick in so many is a new start */
#define REFINES 60     /* attempts after a kick; fewer where nodes are few */
#define KICKS 10       /* without a gain, after which a search ends; more of them for more nodes */
#define KICKS_PER_NODE 2
#define STARTS 10 /* orders that a search begins with */

/* ---- making -------------------------------------------------------------------------------------------------- */

void chain_free(chain *c)
{
	void *all[] = {c->order, c->cut,   c->stage_of, c->device_of,  c->made,     c->made_first, c->read,  c->read_first,
	               c->sum,   c->load,  c->border,   c->wait,       c->ready,    c->place,      c->trial, c->in_flight,
	               c->spot,  c->reach, c->back,     c->kept_order, c->kept_cut, c->kept_device};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		mem_free(all[i]);
	*c = (chain){0};
}

static uint32_t most_spots(const chain *c)
{
	return c->n <= SPOTS ? c->n + 1 : SPOTS + c->k + 2;
}

/* Ids for `to`, added to what failed before. */
static bool ids(uint32_t **to, size_t n)
{
	*to = mem_ids(n);
	return *to != NULL;
}

static clv_status allocate(chain *c)
{
	size_t n = c->n, k = c->k, spots = most_spots(c);
	bool ok = ids(&c->order, n) && ids(&c->cut, k + 1) && ids(&c->stage_of, n) && ids(&c->device_of, k) &&
	          ids(&c->made, (size_t)c->pr->g->values.n + 1) && ids(&c->read, (size_t)c->pr->g->uses.n + 1) &&
	          ids(&c->wait, n) && ids(&c->ready, n) && ids(&c->place, n) && ids(&c->trial, k + 1) &&
	          ids(&c->in_flight, k) && ids(&c->spot, spots) && ids(&c->back, (k + 1) * spots) &&
	          ids(&c->kept_order, n) && ids(&c->kept_cut, k + 1) && ids(&c->kept_device, k);
	c->made_first = mem_alloc((n + 2) * sizeof *c->made_first);
	c->read_first = mem_alloc((n + 2) * sizeof *c->read_first);
	c->sum = mem_alloc((n + 1) * sizeof *c->sum);
	c->load = mem_alloc((n + 1) * sizeof *c->load);
	c->border = mem_alloc((n + 2) * sizeof *c->border);
	c->reach = mem_alloc((k + 1) * spots * sizeof *c->reach);
	return ok && c->made_first && c->read_first && c->sum && c->load && c->border && c->reach ? CLV_OK : fail_nomem();
}

/* Values by the node that makes and by the nodes that read them. */
static void list_values(chain *c)
{
	const pipe_graph *g = c->pr->g;
	for (uint32_t v = 0; v < g->values.n; v++) {
		const pipe_value *x = &g->values.at[v];
		if (x->from != PIPE_NONE)
			c->made_first[x->from + 2]++;
		for (uint32_t i = 0; i < x->nuses; i++)
			c->read_first[g->uses.at[x->uses + i] + 2]++;
	}
	for (uint32_t n = 1; n <= c->n; n++) {
		c->made_first[n + 1] += c->made_first[n];
		c->read_first[n + 1] += c->read_first[n];
	}
	for (uint32_t v = 0; v < g->values.n; v++) {
		const pipe_value *x = &g->values.at[v];
		if (x->from != PIPE_NONE)
			c->made[c->made_first[x->from + 1]++] = v;
		for (uint32_t i = 0; i < x->nuses; i++)
			c->read[c->read_first[g->uses.at[x->uses + i] + 1]++] = v;
	}
}

/* Links that differ make devices differ. */
static bool links_alike(const pipe_problem *pr)
{
	for (uint32_t i = 0; pr->bandwidth && i < pr->k * pr->k; i++)
		if (i / pr->k != i % pr->k && pr->bandwidth[i] != pr->bandwidth[1])
			return false;
	return true;
}

static void look_at_devices(chain *c)
{
	const pipe_device *d = c->pr->devices;
	c->plain = c->pr->bandwidth == NULL;
	c->alike = links_alike(c->pr);
	for (uint32_t i = 0; i < c->k; i++) {
		c->plain = c->plain && d[i].memory_bytes == 0;
		c->alike = c->alike && d[i].speed == d[0].speed && d[i].memory_bytes == d[0].memory_bytes;
		c->device_of[i] = i;
	}
}

clv_status chain_new(const pipe_problem *pr, chain *c)
{
	*c = (chain){.pr = pr, .n = pr->g->nodes.n, .k = pr->k, .worst = DBL_MAX};
	clv_status st = allocate(c);
	if (st == CLV_OK)
		st = least_bottleneck(pr, &c->least);
	if (st != CLV_OK) {
		chain_free(c);
		return st;
	}
	list_values(c);
	look_at_devices(c);
	schedule_in_flight(pr, c->device_of, c->k, c->in_flight);
	if (pr->seconds > 0)
		c->deadline = clock_seconds() + pr->seconds;
	return CLV_OK;
}

static int by_time_down(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x < y) - (x > y);
}

/* Of the j*k + 1 heaviest nodes some device has j + 1, and those are at least as heavy as the last j + 1 of them. */
static double crowded(const double *us, uint32_t n, uint32_t k, double fastest)
{
	double least = 0;
	for (uint32_t j = 1; (uint64_t)j * k < n; j++) {
		double sum = 0;
		for (uint32_t i = j * k - j; i <= j * k; i++)
			sum += us[i];
		least = fmax(least, sum / fastest);
		if (j > 64)
			break; /* by then work over all speeds says more */
	}
	return least;
}

clv_status least_bottleneck(const pipe_problem *pr, double *us_out)
{
	uint32_t n = pr->g->nodes.n;
	double *us = mem_alloc(n * sizeof *us), total = 0, speeds = 0, fastest = 0;
	if (!us)
		return fail_nomem();
	for (uint32_t i = 0; i < n; i++)
		total += us[i] = node_us(pr, i);
	for (uint32_t d = 0; d < pr->k; d++) {
		speeds += pr->devices[d].speed;
		fastest = fmax(fastest, pr->devices[d].speed);
	}
	qsort(us, n, sizeof *us, by_time_down);
	*us_out = fmax(total / speeds, fmax(n ? us[0] / fastest : 0, crowded(us, n, pr->k, fastest)));
	mem_free(us);
	return CLV_OK;
}

/* ---- orders -------------------------------------------------------------------------------------------------- */

static bool out_of_time(chain *c)
{
	if (c->deadline > 0 && clock_seconds() > c->deadline)
		c->stopped = true;
	return c->stopped;
}

/* How the next node is chosen from those that are ready: the newest, or any; how often, in 256. New ones may be
   buried below others, so that a branch is left for later. */
typedef struct taste {
	uint32_t newest, bury;
} taste;

static taste any_taste(pipe_random *r)
{
	static const taste tastes[] = {{0, 0}, {128, 0}, {256, 8}, {240, 64}, {256, 128}, {256, 0}};
	return tastes[random_below(r, sizeof tastes / sizeof *tastes)];
}

/* A cheap source for the many choices of one order. */
static uint32_t draw(uint64_t *bits, uint32_t n)
{
	*bits = *bits * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)((*bits >> 32) * n >> 32);
}

static void add_ready(chain *c, uint32_t n, uint32_t bury, uint32_t *nready, uint64_t *bits)
{
	uint32_t at = (*nready)++;
	c->ready[at] = n;
	if (at > 0 && bury && draw(bits, 256) < bury) {
		uint32_t below = draw(bits, at);
		c->ready[at] = c->ready[below];
		c->ready[below] = n;
	}
}

/* Another topological order of the nodes at order[from] … order[to-1], which are all those with stage_of from `a` to
   `b`. */
static void shuffle_run(chain *c, uint32_t from, uint32_t to, uint32_t a, uint32_t b, taste by, pipe_random *r)
{
	const pipe_graph *g = c->pr->g;
	uint32_t nready = 0;
	uint64_t bits = random_next(r);
	for (uint32_t i = from; i < to; i++) {
		uint32_t n = c->order[i];
		c->wait[n] = 0;
		for (uint32_t e = g->pred_first[n]; e < g->pred_first[n + 1]; e++)
			c->wait[n] += c->stage_of[g->pred[e]] >= a; /* none is behind b */
		if (c->wait[n] == 0)
			add_ready(c, n, by.bury, &nready, &bits);
	}
	for (uint32_t i = from; i < to; i++) {
		uint32_t at = nready - 1;
		if (nready > 1 && by.newest < 256 && draw(&bits, 256) >= by.newest)
			at = draw(&bits, nready);
		uint32_t n = c->ready[at];
		c->ready[at] = c->ready[--nready];
		c->order[i] = n;
		for (uint32_t e = g->succ_first[n]; e < g->succ_first[n + 1]; e++) {
			uint32_t m = g->succ[e];
			if (c->stage_of[m] <= b && --c->wait[m] == 0)
				add_ready(c, m, by.bury, &nready, &bits);
		}
	}
}

static void shuffle_stages(chain *c, taste by, pipe_random *r)
{
	for (uint32_t s = 0; s < c->k; s++)
		shuffle_run(c, c->cut[s], c->cut[s + 1], s, s, by, r);
	c->steps += c->n + c->pr->g->succ_first[c->n];
}

void chain_shuffle(chain *c, pipe_random *r)
{
	shuffle_stages(c, any_taste(r), r);
}

static void shuffle_all(chain *c, taste by, pipe_random *r)
{
	memset(c->stage_of, 0, c->n * sizeof *c->stage_of);
	shuffle_run(c, 0, c->n, 0, 0, by, r);
	c->steps += c->n + c->pr->g->succ_first[c->n];
}

void chain_set_stages(chain *c)
{
	for (uint32_t s = 0; s < c->k; s++)
		for (uint32_t i = c->cut[s]; i < c->cut[s + 1]; i++)
			c->stage_of[c->order[i]] = s;
}

/* ---- cuts where time alone counts ---------------------------------------------------------------------------- */

static double speed_of(const chain *c, uint32_t s)
{
	return c->pr->devices[c->device_of[s]].speed;
}

void chain_sum(chain *c)
{
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
static bool fill(const chain *c, double most, uint32_t pivot, uint32_t *cut)
{
	const double *sum = c->sum;
	uint32_t n = c->n, k = c->k;
	double room = most * (1 + ROUNDING);
	cut[0] = 0;
	cut[k] = n;
	for (uint32_t s = 0; s < pivot; s++) {
		uint32_t at = last_within(sum, cut[s] + 1, n - (k - 1 - s), sum[cut[s]] + room * speed_of(c, s));
		if (at <= cut[s])
			return false;
		cut[s + 1] = at;
	}
	for (uint32_t s = k - 1; s > pivot; s--) {
		/* the first position from which on it fits: one behind the last at which it is too much */
		double least = sum[cut[s + 1]] - room * speed_of(c, s);
		uint32_t at = sum[s] >= least ? s : last_within(sum, s, cut[s + 1], nextafter(least, -DBL_MAX)) + 1;
		if (at >= cut[s + 1])
			return false;
		cut[s] = at;
	}
	return cut[pivot] < cut[pivot + 1] && sum[cut[pivot + 1]] - sum[cut[pivot]] <= room * speed_of(c, pivot);
}

static double slowest(const chain *c, const uint32_t *cut)
{
	double most = 0;
	for (uint32_t s = 0; s < c->k; s++)
		most = fmax(most, (c->sum[cut[s + 1]] - c->sum[cut[s]]) / speed_of(c, s));
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
	while (c->worst - low > EQUAL / 4 * c->worst) {
		double mid = low + (c->worst - low) / 2;
		c->steps += 16 * c->k;
		if (fill(c, mid, pivot, c->trial))
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
	if (fill(c, c->worst * (1 - EQUAL), pivot, c->trial)) {
		keep_trial(c);
		bisect(c, pivot);
		return true;
	}
	if (!fill(c, c->worst, pivot, c->trial))
		return false;
	memcpy(c->cut, c->trial, (c->k + 1) * sizeof *c->cut);
	return true;
}

/* ---- cuts where everything counts ---------------------------------------------------------------------------- */

static double transfer(const chain *c, uint32_t from, uint32_t to, double bytes)
{
	const pipe_problem *pr = c->pr;
	uint32_t a = c->device_of[from], b = c->device_of[to];
	return pr->bandwidth && bytes > 0 ? bytes / pr->bandwidth[(size_t)a * pr->k + b] * 1e6 + pr->latency_us : 0;
}

/* What of the transfers is not hidden by the stage's own work. */
static double waits_for_links(const chain *c, uint32_t s, double fwd, double bwd, const chain_border *before,
                              const chain_border *after)
{
	double in = 0, out = 0, grad_in = 0, grad_out = 0;
	if (s > 0) {
		in = transfer(c, s - 1, s, before->fwd);
		grad_out = transfer(c, s, s - 1, before->bwd);
	}
	if (s + 1 < c->k) {
		out = transfer(c, s, s + 1, after->fwd);
		grad_in = transfer(c, s + 1, s, after->bwd);
	}
	double waits = fmax(0, fmax(in, out) - fwd);
	return c->pr->training ? waits + fmax(0, fmax(grad_in, grad_out) - bwd) : waits;
}

static double bytes_over(const chain *c, uint32_t s, const chain_load *in, const chain_border *before)
{
	const pipe_problem *pr = c->pr;
	int64_t limit = pr->devices[c->device_of[s]].memory_bytes;
	if (limit == 0)
		return 0;
	double bytes = in->param * pr->param_copies + in->work;
	if (pr->training && pr->recompute)
		bytes += before->fwd * c->in_flight[s] + in->held;
	else if (pr->training)
		bytes += in->held * c->in_flight[s];
	return fmax(0, ceil(bytes) - (double)limit);
}

double chain_cost(const chain *c, uint32_t s, const chain_load *in, const chain_border *before,
                  const chain_border *after)
{
	double speed = speed_of(c, s), fwd = in->fwd / speed, bwd = in->bwd / speed, cost = fwd + bwd;
	if (c->pr->bandwidth)
		cost += waits_for_links(c, s, fwd, bwd, before, after);
	return cost + OVER * bytes_over(c, s, in, before);
}

chain_load node_load(const pipe_problem *pr, uint32_t n)
{
	const pipe_node *x = &pr->g->nodes.at[n];
	double bwd = pr->training ? x->bwd_us + (pr->recompute ? x->fwd_us : 0) : 0;
	return (chain_load){x->fwd_us, bwd, (double)x->param_bytes, (double)x->held_bytes,
	                    (double)(x->work_bytes + (pr->training ? 0 : x->held_bytes))};
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
		double bytes = (double)x->bytes, back = x->grad ? bytes : 0;
		c->border[from].fwd += bytes;
		c->border[from].bwd += back;
		c->border[last + 1].fwd -= bytes;
		c->border[last + 1].bwd -= back;
	}
	for (uint32_t i = 0; i < c->n; i++) {
		c->border[i + 1].fwd += c->border[i].fwd;
		c->border[i + 1].bwd += c->border[i].bwd;
	}
	c->steps += g->values.n + g->uses.n + 2 * c->n;
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

static chain_load between(const chain *c, uint32_t from, uint32_t to, double work)
{
	const chain_load *a = &c->load[from], *b = &c->load[to];
	return (chain_load){b->fwd - a->fwd, b->bwd - a->bwd, b->param - a->param, b->held - a->held, work};
}

/* From spot i, stage s to every later spot that is within `most`; the sum of borders is what counts if `bytes`. */
static void reach_from(chain *c, uint32_t s, uint32_t i, double most, double rest, bool bytes)
{
	double *row = c->reach + (size_t)s * c->nspots, *next = row + c->nspots, work = 0, speed = speed_of(c, s);
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
		if (total - c->load[to].fwd - c->load[to].bwd > most * rest * (1 + ROUNDING) || row[i] >= next[j])
			continue;
		c->steps += 8;
		double cost = chain_cost(c, s, &in, &c->border[from], &c->border[to]);
		if (cost > most)
			continue;
		double reached = bytes ? row[i] + (to < c->n ? c->border[to].fwd : 0) : fmax(row[i], cost);
		if (reached < next[j]) {
			next[j] = reached;
			back[j] = i;
		}
	}
}

/* The best cut of the order, among those with no stage over `most`: by the costliest stage, or by bytes over borders.
   Leaves c->cut alone if there is none, or if that takes too many steps; what it found otherwise. */
static double cut_by_spots(chain *c, double most, bool bytes)
{
	double rest = 0;
	choose_spots(c);
	for (size_t i = 0; i < (size_t)(c->k + 1) * c->nspots; i++)
		c->reach[i] = DBL_MAX;
	c->reach[0] = 0;
	c->steps += (uint64_t)(c->k + 1) * c->nspots;
	for (uint32_t s = 0; s < c->k; s++)
		rest += speed_of(c, s);
	for (uint32_t s = 0; s < c->k; s++) {
		rest = s + 1 < c->k ? rest - speed_of(c, s) : 0;
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

static double costliest(const chain *c)
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

static double border_bytes(const chain *c)
{
	double sum = 0;
	for (uint32_t s = 1; s < c->k; s++)
		sum += c->border[c->cut[s]].fwd;
	return sum;
}

static void sum_all(chain *c)
{
	chain_sum(c);
	sum_loads(c);
	sum_borders(c);
}

/* ---- the search ---------------------------------------------------------------------------------------------- */

/* Cuts the order anew, never worse than c->worst; false if that is not possible (devices were changed). */
static bool recut(chain *c, pipe_random *r)
{
	bool ok;
	if (c->plain) {
		ok = cut_plain(c, random_below(r, c->k));
	} else {
		sum_all(c);
		double found = cut_by_spots(c, c->worst * (1 + ROUNDING), false);
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
		slow = fmin(slow, speed_of(c, s));
	c->worst = 2 * (c->sum[c->n] / slow) + DBL_MIN;
	cut_plain(c, random_below(r, c->k));
	if (!c->plain) {
		sum_all(c);
		c->worst = costliest(c);
		double found = cut_by_spots(c, c->worst * (1 + ROUNDING), false);
		c->worst = fmin(c->worst, found);
	}
	chain_set_stages(c);
}

static void swap_devices(chain *c, uint32_t a, uint32_t b)
{
	uint32_t d = c->device_of[a];
	c->device_of[a] = c->device_of[b];
	c->device_of[b] = d;
	schedule_in_flight(c->pr, c->device_of, c->k, c->in_flight);
}

static bool is_least(const chain *c)
{
	return c->worst <= c->least * (1 + EQUAL);
}

void chain_refine(chain *c, uint32_t attempts, uint64_t end, pipe_random *r)
{
	c->most_steps = c->most_steps > end ? c->most_steps : end;
	for (; attempts && c->k > 1 && c->steps < end && !is_least(c) && !out_of_time(c); attempts--) {
		uint32_t a = 0, b = 0;
		chain_shuffle(c, r);
		if (!c->alike && random_below(r, 4) == 0) {
			a = random_below(r, c->k);
			b = random_below(r, c->k);
			swap_devices(c, a, b);
		}
		if (!recut(c, r))
			swap_devices(c, a, b);
	}
}

static void keep(chain *c)
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
static clv_status start(chain *c, uint32_t number, pipe_random *r)
{
	for (uint32_t i = 0; i < c->k; i++)
		c->device_of[i] = i;
	schedule_in_flight(c->pr, c->device_of, c->k, c->in_flight);
	TRY(order_new(c->pr->g, number < ORDER_COUNT ? (pipe_order)number : ORDER_GIVEN, c->order));
	if (number >= ORDER_COUNT)
		shuffle_all(c, any_taste(r), r);
	for (uint32_t i = c->k - 1; number >= ORDER_COUNT && !c->alike && i > 0; i--)
		swap_devices(c, i, random_below(r, i + 1));
	chain_cut_order(c, r);
	return CLV_OK;
}

/* Some stages in a row become one, which is put into another order; the whole is then cut from scratch. */
static void kick(chain *c, pipe_random *r)
{
	uint32_t a = random_below(r, c->k - 1), b = a + 1 + random_below(r, c->k - 1 - a);
	shuffle_run(c, c->cut[a], c->cut[b + 1], a, b, any_taste(r), r);
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
		if (c->kept_worst <= c->least * (1 + EQUAL) || out_of_time(c))
			break;
		if (random_below(r, FRESH) == 0) {
			TRY(start(c, STARTS, r));
			chain_refine(c, 4 * refines(c), end, r);
		} else {
			take_kept(c);
			kick(c, r);
			chain_refine(c, refines(c), end, r);
		}
		if (c->worst < c->kept_worst * (1 - EQUAL))
			idle = 0;
		if (c->worst <= c->kept_worst)
			keep(c);
	}
	take_kept(c);
	return CLV_OK;
}

clv_status chain_search(chain *c, uint64_t steps, bool given, pipe_random *r)
{
	uint64_t end = c->most_steps = c->steps + steps;
	for (uint32_t i = 0; i < STARTS && (i == 0 || !out_of_time(c)); i++) {
		TRY(start(c, given ? i : STARTS, r));
		chain_refine(c, 4 * refines(c), c->steps + steps / 4 / STARTS, r);
		if (i == 0 || c->worst < c->kept_worst * (1 - EQUAL))
			keep(c);
		if (is_least(c))
			break;
	}
	return kick_and_refine(c, end, r);
}

static void order_by_stage(chain *c)
{
	memset(c->trial, 0, (c->k + 1) * sizeof *c->trial);
	for (uint32_t i = 0; i < c->n; i++)
		c->trial[c->stage_of[i] + 1]++;
	for (uint32_t s = 0; s < c->k; s++)
		c->trial[s + 1] += c->trial[s];
	memcpy(c->cut, c->trial, (c->k + 1) * sizeof *c->cut);
	for (uint32_t i = 0; i < c->n; i++) {
		uint32_t n = c->order[i];
		c->ready[c->trial[c->stage_of[n]]++] = n;
	}
	memcpy(c->order, c->ready, c->n * sizeof *c->order);
}

void chain_take(chain *c, const uint32_t *stage_of, const uint32_t *device_of)
{
	for (uint32_t i = 0; i < c->n; i++)
		c->order[i] = i;
	memcpy(c->stage_of, stage_of, c->n * sizeof *stage_of);
	memcpy(c->device_of, device_of, c->k * sizeof *device_of);
	schedule_in_flight(c->pr, c->device_of, c->k, c->in_flight);
	order_by_stage(c);
	sum_all(c);
	c->worst = costliest(c);
}

/* ---- fewer bytes --------------------------------------------------------------------------------------------- */

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

static double bytes_saved(chain *c, uint32_t n, uint32_t to)
{
	const pipe_graph *g = c->pr->g;
	double saved = 0;
	for (uint32_t i = c->made_first[n]; i < c->made_first[n + 1]; i++) {
		uint32_t v = c->made[i];
		saved += (double)g->values.at[v].bytes * (crossings(c, v, n, c->stage_of[n]) - crossings(c, v, n, to));
		c->steps += g->values.at[v].nuses;
	}
	for (uint32_t i = c->read_first[n]; i < c->read_first[n + 1]; i++) {
		uint32_t v = c->read[i];
		saved += (double)g->values.at[v].bytes * (crossings(c, v, n, c->stage_of[n]) - crossings(c, v, n, to));
		c->steps += g->values.at[v].nuses;
	}
	return saved;
}

/* Moves single nodes while that saves bytes and loads no stage beyond the slowest; c->sum is used for loads of
   stages. */
static void move_nodes(chain *c, uint64_t end)
{
	double *us = c->sum;
	uint32_t *count = c->trial;
	for (uint32_t s = 0; s < c->k; s++) {
		us[s] = 0;
		count[s] = c->cut[s + 1] - c->cut[s];
		for (uint32_t i = c->cut[s]; i < c->cut[s + 1]; i++)
			us[s] += node_us(c->pr, c->order[i]);
	}
	for (bool moved = true; moved && c->steps < end;) {
		moved = false;
		for (uint32_t n = 0; n < c->n && c->steps < end; n++) {
			uint32_t low, high, s = c->stage_of[n];
			range_of(c, n, &low, &high);
			c->steps += 4;
			for (uint32_t t = low; t <= high && count[s] > 1; t++) {
				double more = node_us(c->pr, n);
				c->steps++;
				if (t == s || (us[t] + more) > c->worst * speed_of(c, t) || bytes_saved(c, n, t) <= 0)
					continue;
				us[s] -= more;
				us[t] += more;
				count[s]--;
				count[t]++;
				c->stage_of[n] = t;
				moved = true;
				break;
			}
		}
	}
	order_by_stage(c);
}

void chain_polish(chain *c, uint64_t steps, pipe_random *r)
{
	uint64_t end = c->most_steps = c->steps + steps;
	sum_all(c);
	for (uint32_t idle = 0; c->k > 1 && idle < POLISHES && c->steps < end && !out_of_time(c); idle++) {
		double before = border_bytes(c);
		keep(c);
		move_nodes(c, end);
		sum_all(c);
		if (costliest(c) > c->worst * (1 + ROUNDING) || border_bytes(c) > before)
			take_kept(c);
		shuffle_stages(c, random_below(r, 2) ? (taste){256, 0} : (taste){250, 8}, r);
		sum_all(c);
		cut_by_spots(c, c->worst * (1 + ROUNDING), true);
		chain_set_stages(c);
		if (border_bytes(c) < before)
			idle = 0;
	}
}

clv_status chain_partition(const chain *c, pipe_partition *out)
{
	TRY(partition_new(c->pr->g, out));
	memcpy(out->stage_of, c->stage_of, c->n * sizeof *out->stage_of);
	memcpy(out->device_of, c->device_of, c->k * sizeof *out->device_of);
	out->nstages = c->k;
	out->stopped = c->stopped;
	return CLV_OK;
}
