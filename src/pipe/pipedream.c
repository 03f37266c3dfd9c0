/* pipedream: the best cut of a chain into one stage per device, devices in their order.
 *
 *     best[m][i] = min over j < i of max(best[m-1][j], time of nodes j … i-1 on device m with its transfers)
 *
 * Nodes are put in a row (several topological orders are tried), and times come from prefix sums. For each i the search
 * goes from the last choice both ways and ends where nothing better can come: downwards when the work alone is too
 * much, upwards when the devices before are too slow, and at once when a bound is met that holds for all. Where links are
 * slow, a cut at few places with little to transfer comes first: places whose transfer alone is over its time are left
 * out of the whole one. So it is exact, and near linear in practice. */
#include <math.h>
#include <string.h>

#include "pipe/pipe.h"

typedef struct chain {
	const pipe_problem *pr;
	uint32_t n;
	const uint32_t *order;       /* borrowed */
	double *fwd, *bwd;           /* prefix sums, n + 1; of recomputing included */
	double *params, *held;       /* prefix sums of bytes, n + 1 */
	int64_t *work;               /* per place */
	int64_t *cross, *grad_cross; /* bytes over the border before place i, n + 1 */
	/* of one device */
	double *in_fwd, *in_bwd;   /* transfers over the border that its stage begins with */
	double *out_fwd, *out_bwd; /* … ends with */
	uint32_t *lowest;          /* per end: the first begin that fits its memory */
	uint32_t *deque;           /* places whose work is the most of what follows */
	double *before, *after;    /* best of the devices before, and with this one; n + 1 */
	double *least_from;        /* least of before[j] … before[n] */
	/* Where it may be cut: places, ascending, with 0 and n. What follows is by their numbers in this list. */
	uint32_t *places, nplaces;
	double floor, limit; /* no cut is below; none above is wanted */
	uint32_t *choice;    /* [device][end]: begin of its stage */
} chain;

static void chain_free(chain *c)
{
	void *all[] = {c->fwd,        c->bwd,    c->params, c->held,       c->work,    c->cross,
	               c->grad_cross, c->in_fwd, c->in_bwd, c->out_fwd,    c->out_bwd, c->lowest,
	               c->deque,      c->before, c->after,  c->least_from, c->places,  c->choice};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		mem_free(all[i]);
}

static clv_status chain_new(const pipe_problem *pr, chain *c)
{
	size_t n = (size_t)pr->g->nodes.n + 1, d = n * sizeof(double);
	*c = (chain){.pr = pr, .n = pr->g->nodes.n};
	c->choice = n < SIZE_MAX / pr->k ? mem_ids(n * pr->k) : NULL;
	bool made = (c->fwd = mem_alloc(d)) && (c->bwd = mem_alloc(d)) && (c->params = mem_alloc(d)) &&
	            (c->held = mem_alloc(d)) && (c->work = mem_alloc(n * sizeof *c->work)) &&
	            (c->cross = mem_alloc(n * sizeof *c->cross)) && (c->grad_cross = mem_alloc(n * sizeof *c->cross)) &&
	            (c->in_fwd = mem_alloc(d)) && (c->in_bwd = mem_alloc(d)) && (c->out_fwd = mem_alloc(d)) &&
	            (c->out_bwd = mem_alloc(d)) && (c->lowest = mem_ids(n)) && (c->deque = mem_ids(n)) &&
	            (c->before = mem_alloc(d)) && (c->after = mem_alloc(d)) && (c->least_from = mem_alloc(d)) &&
	            (c->places = mem_ids(n)) && c->choice;
	if (made)
		return CLV_OK;
	chain_free(c);
	return fail_nomem();
}

static void sum_nodes(chain *c)
{
	const pipe_problem *pr = c->pr;
	for (uint32_t i = 0; i < c->n; i++) {
		const pipe_node *x = &pr->g->nodes.at[c->order[i]];
		c->fwd[i + 1] = c->fwd[i] + x->fwd_us;
		c->bwd[i + 1] = c->bwd[i] + (pr->training ? x->bwd_us + (pr->recompute ? x->fwd_us : 0) : 0);
		c->params[i + 1] = c->params[i] + (double)x->param_bytes * pr->param_copies;
		c->held[i + 1] = c->held[i] + (pr->training ? (double)x->held_bytes : 0);
		c->work[i] = x->work_bytes + (pr->training ? 0 : x->held_bytes);
	}
}

/* place[n]: where node n stands. */
static void sum_values(chain *c, const uint32_t *place)
{
	const pipe_graph *g = c->pr->g;
	memset(c->cross, 0, ((size_t)c->n + 1) * sizeof *c->cross);
	memset(c->grad_cross, 0, ((size_t)c->n + 1) * sizeof *c->grad_cross);
	for (uint32_t v = 0; v < g->values.n; v++) {
		const pipe_value *x = &g->values.at[v];
		uint32_t from = x->from == PIPE_NONE ? 0 : place[x->from], last = x->leaves ? c->n - 1 : from;
		for (uint32_t i = 0; i < x->nuses; i++) {
			uint32_t at = place[g->uses.at[x->uses + i]];
			last = at > last ? at : last;
		}
		c->cross[from + 1] += x->bytes;
		c->cross[last + 1] -= x->bytes;
		if (x->grad) {
			c->grad_cross[from + 1] += x->bytes;
			c->grad_cross[last + 1] -= x->bytes;
		}
	}
	for (uint32_t i = 1; i <= c->n; i++) {
		c->cross[i] += c->cross[i - 1];
		c->grad_cross[i] += c->grad_cross[i - 1];
	}
}

static void transfers_of(chain *c, uint32_t m)
{
	const pipe_problem *pr = c->pr;
	for (uint32_t i = 0; i <= c->n && pr->bandwidth; i++) {
		c->in_fwd[i] = m > 0 ? transfer_us(pr, m - 1, m, c->cross[i]) : 0;
		c->out_fwd[i] = m + 1 < pr->k ? transfer_us(pr, m, m + 1, c->cross[i]) : 0;
		if (!pr->training)
			continue;
		c->in_bwd[i] = m > 0 ? transfer_us(pr, m, m - 1, c->grad_cross[i]) : 0;
		c->out_bwd[i] = m + 1 < pr->k ? transfer_us(pr, m + 1, m, c->grad_cross[i]) : 0;
	}
}

/* The first begin that fits, for each end; memory only grows with a stage, so both go upwards. What a recomputing stage
   keeps of its inputs is left to the score. */
static void memory_of(chain *c, uint32_t m, uint32_t in_flight)
{
	const pipe_problem *pr = c->pr;
	double limit = (double)pr->devices[m].memory_bytes, times = pr->recompute ? 1 : in_flight;
	uint32_t begin = 0, head = 0, tail = 0;
	for (uint32_t end = 1; end <= c->n; end++) {
		while (tail > head && c->work[c->deque[tail - 1]] <= c->work[end - 1])
			tail--;
		c->deque[tail++] = end - 1;
		while (begin < end && limit > 0 &&
		       c->params[end] - c->params[begin] + (c->held[end] - c->held[begin]) * times +
		               (double)c->work[c->deque[head]] >
		           limit) {
			begin++;
			while (head < tail && c->deque[head] < begin)
				head++;
		}
		c->lowest[end] = begin;
	}
}

static double most(double a, double b)
{
	return a > b ? a : b;
}

/* Of nodes begin … end-1, without what lies before. */
static double stage_us(const chain *c, double speed, uint32_t begin, uint32_t end)
{
	double fwd = (c->fwd[end] - c->fwd[begin]) / speed, bwd = (c->bwd[end] - c->bwd[begin]) / speed;
	if (!c->pr->bandwidth)
		return fwd + bwd;
	return most(fwd, most(c->in_fwd[begin], c->out_fwd[end])) + most(bwd, most(c->in_bwd[begin], c->out_bwd[end]));
}

static double work_us(const chain *c, double speed, uint32_t begin, uint32_t end)
{
	return (c->fwd[end] - c->fwd[begin] + c->bwd[end] - c->bwd[begin]) / speed;
}

/* The best begin of a stage that ends at place number `end`: numbers from `first` on, searched outwards from `near`. */
static double best_begin(const chain *c, double speed, uint32_t first, uint32_t end, uint32_t near, uint32_t *choice)
{
	const uint32_t *at = c->places;
	double best = INFINITY, enough = most(c->floor, c->out_fwd[at[end]] + c->out_bwd[at[end]]);
	near = near < first ? first : near > end - 1 ? end - 1 : near;
	for (uint32_t j = near + 1; j-- > first && best > enough;) {
		double work = work_us(c, speed, at[j], at[end]);
		if (work >= best || work > c->limit)
			break;
		double us = most(c->before[j], stage_us(c, speed, at[j], at[end]));
		if (us < best) {
			best = us;
			*choice = j;
		}
	}
	for (uint32_t j = near + 1; j < end && best > enough && c->least_from[j] < best; j++) {
		double us = most(c->before[j], stage_us(c, speed, at[j], at[end]));
		if (us < best) {
			best = us;
			*choice = j;
		}
	}
	return best;
}

static void add_device(chain *c, uint32_t m)
{
	double speed = c->pr->devices[m].speed;
	uint32_t last = c->nplaces - 1, near = m, first = m, *choice = c->choice + (size_t)m * (c->n + 1);
	c->least_from[last] = c->before[last];
	for (uint32_t j = last; j-- > 0;)
		c->least_from[j] = c->before[j] < c->least_from[j + 1] ? c->before[j] : c->least_from[j + 1];
	for (uint32_t end = 0; end <= last; end++) {
		uint32_t place = c->places[end];
		c->after[end] = INFINITY;
		if (end <= m || last - end < c->pr->k - 1 - m) /* each device gets a node */
			continue;
		while (first < end && c->places[first] < c->lowest[place])
			first++;
		if (first >= end || c->out_fwd[place] + c->out_bwd[place] > c->limit)
			continue;
		c->after[end] = best_begin(c, speed, first, end, near, &choice[end]);
		near = isinf(c->after[end]) ? near : choice[end];
	}
	double *swap = c->before;
	c->before = c->after;
	c->after = swap;
}

/* The time of the slowest device, infinite when the chain does not fit the memory. */
static double cut_places(chain *c, const uint32_t *in_flight, bool limits)
{
	for (uint32_t i = 0; i < c->nplaces; i++)
		c->before[i] = i ? INFINITY : 0;
	for (uint32_t m = 0; m < c->pr->k; m++) {
		transfers_of(c, m);
		if (limits)
			memory_of(c, m, in_flight[m]);
		else
			memset(c->lowest, 0, ((size_t)c->n + 1) * sizeof *c->lowest);
		add_device(c, m);
	}
	return c->before[c->nplaces - 1];
}

/* The least time of a border on any link between neighbours. */
static double border_us(const chain *c, uint32_t place)
{
	const pipe_problem *pr = c->pr;
	double least = INFINITY;
	for (uint32_t m = 0; m + 1 < pr->k; m++) {
		double us = transfer_us(pr, m, m + 1, c->cross[place]);
		us += pr->training ? transfer_us(pr, m + 1, m, c->grad_cross[place]) : 0;
		least = us < least ? us : least;
	}
	return least;
}

/* Of every `step` places the one with the least to transfer. */
static void choose_places(chain *c, uint32_t step)
{
	c->nplaces = 1;
	c->places[0] = 0;
	for (uint32_t i = 1; i < c->n; i += step) {
		uint32_t best = i;
		for (uint32_t j = i; j < i + step && j < c->n; j++)
			if (c->cross[j] < c->cross[best])
				best = j;
		c->places[c->nplaces++] = best;
	}
	c->places[c->nplaces++] = c->n;
}

/* All places whose transfer leaves a cut within the limit possible. */
static void keep_places(chain *c)
{
	c->nplaces = 1;
	c->places[0] = 0;
	for (uint32_t i = 1; i < c->n; i++)
		if (!c->pr->bandwidth || border_us(c, i) <= c->limit)
			c->places[c->nplaces++] = i;
	c->places[c->nplaces++] = c->n;
}

static double cut_chain(chain *c, const uint32_t *in_flight, bool limits)
{
	enum { FEW = 512 };
	c->limit = INFINITY;
	if (c->pr->bandwidth && c->n / FEW > 1 && c->pr->k < FEW) {
		choose_places(c, c->n / FEW);
		c->limit = cut_places(c, in_flight, limits) * (1 + 1e-9);
	}
	keep_places(c);
	return cut_places(c, in_flight, limits);
}

static void read_choices(const chain *c, pipe_partition *out)
{
	uint32_t end = c->nplaces - 1;
	for (uint32_t m = c->pr->k; m-- > 0;) {
		uint32_t begin = c->choice[(size_t)m * (c->n + 1) + end];
		for (uint32_t i = c->places[begin]; i < c->places[end]; i++)
			out->stage_of[c->order[i]] = m;
		out->device_of[m] = m;
		end = begin;
	}
	out->nstages = c->pr->k;
}

clv_status chain_cut(const pipe_problem *pr, const uint32_t *order, pipe_partition *out)
{
	chain c;
	uint32_t *place = mem_ids(pr->g->nodes.n), *in_flight = mem_ids(pr->k), *devices = mem_ids(pr->k);
	clv_status st = place && in_flight && devices ? chain_new(pr, &c) : fail_nomem();
	if (st == CLV_OK) {
		st = partition_new(pr->g, out);
		if (st == CLV_OK) {
			c.order = order;
			c.floor = problem_lower_bound(pr);
			for (uint32_t i = 0; i < c.n; i++)
				place[order[i]] = i;
			for (uint32_t m = 0; m < pr->k; m++)
				devices[m] = m;
			schedule_in_flight(pr, devices, pr->k, in_flight);
			sum_nodes(&c);
			sum_values(&c, place);
			if (isinf(cut_chain(&c, in_flight, true)))
				cut_chain(&c, in_flight, false);
			read_choices(&c, out);
		}
		chain_free(&c);
	}
	mem_free(place);
	mem_free(in_flight);
	mem_free(devices);
	return st;
}

clv_status pipe_pipedream(const pipe_problem *pr, pipe_partition *out)
{
	clv_status st = CLV_OK;
	uint32_t *order = mem_ids(pr->g->nodes.n);
	keeper kept = {0};
	if (!order)
		return fail_nomem();
	for (int kind = 0; kind < ORDER_COUNT && st == CLV_OK; kind++) {
		pipe_partition p;
		st = order_new(pr->g, (pipe_order)kind, order);
		if (st == CLV_OK)
			st = chain_cut(pr, order, &p);
		if (st == CLV_OK)
			st = keeper_offer(pr, &kept, &p);
	}
	mem_free(order);
	return keeper_end(&kept, st, out);
}
