/* Chains: making one, and shuffling the topological order inside its stages. */
#include "pipe/chain.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---- making ---------------------------------------------------------------------------------------------------- */

void chain_free(chain *c)
{
	arena_free(&c->arena);
	*c = (chain){0};
}

static clv_status allocate(chain *c)
{
	arena *a = &c->arena;
	size_t n = c->n, k = c->k, spots = chain_spots(c);
	c->order = arena_ids(a, n);
	c->stage_of = arena_ids(a, n);
	c->wait = arena_ids(a, n);
	c->ready = arena_ids(a, n);
	c->place = arena_ids(a, n);
	c->kept_order = arena_ids(a, n);
	c->device_of = arena_ids(a, k);
	c->in_flight = arena_ids(a, k);
	c->kept_device = arena_ids(a, k);
	c->cut = arena_ids(a, k + 1);
	c->trial = arena_ids(a, k + 1);
	c->kept_cut = arena_ids(a, k + 1);
	c->spot = arena_ids(a, spots);
	c->back = arena_ids(a, (k + 1) * spots);
	c->reach = arena_array(a, (k + 1) * spots, sizeof *c->reach);
	c->made = arena_ids(a, c->pr->g->values.n);
	c->read = arena_ids(a, c->pr->g->uses.n);
	c->made_first = arena_array(a, n + 2, sizeof *c->made_first);
	c->read_first = arena_array(a, n + 2, sizeof *c->read_first);
	c->sum = arena_array(a, n + 1, sizeof *c->sum);
	c->load = arena_array(a, n + 1, sizeof *c->load);
	c->border = arena_array(a, n + 2, sizeof *c->border);
	return arena_status(a);
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
	c->plain = !pr->bandwidth && !memory_limited(pr);
	c->alike = devices_alike(pr);
	for (uint32_t i = 0; i < c->k; i++)
		c->device_of[i] = i;
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
	double *us = mem_alloc(n * sizeof *us), fastest = 0;
	TRY_MEM(us);
	for (uint32_t i = 0; i < n; i++)
		us[i] = node_us(pr, i);
	for (uint32_t d = 0; d < pr->k; d++)
		fastest = fmax(fastest, pr->devices[d].speed);
	qsort(us, n, sizeof *us, by_time_down);
	*us_out = fmax(problem_lower_bound(pr), crowded(us, n, pr->k, fastest));
	mem_free(us);
	return CLV_OK;
}

/* ---- stages ---------------------------------------------------------------------------------------------------- */

void chain_set_stages(chain *c)
{
	for (uint32_t s = 0; s < c->k; s++)
		for (uint32_t i = c->cut[s]; i < c->cut[s + 1]; i++)
			c->stage_of[c->order[i]] = s;
}

void chain_swap_devices(chain *c, uint32_t a, uint32_t b)
{
	uint32_t d = c->device_of[a];
	c->device_of[a] = c->device_of[b];
	c->device_of[b] = d;
	schedule_in_flight(c->pr, c->device_of, c->k, c->in_flight);
}

void chain_sort(chain *c)
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
	chain_sort(c);
	chain_sum_all(c);
	c->worst = chain_costliest(c);
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

/* ---- orders ---------------------------------------------------------------------------------------------------- */

chain_taste chain_any_taste(pipe_random *r)
{
	static const chain_taste tastes[] = {{0, 0}, {128, 0}, {256, 8}, {240, 64}, {256, 128}, {256, 0}};
	return tastes[pipe_random_below(r, sizeof tastes / sizeof *tastes)];
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

void chain_shuffle_run(chain *c, uint32_t from, uint32_t to, uint32_t a, uint32_t b, chain_taste by, pipe_random *r)
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

void chain_shuffle_by(chain *c, chain_taste by, pipe_random *r)
{
	for (uint32_t s = 0; s < c->k; s++)
		chain_shuffle_run(c, c->cut[s], c->cut[s + 1], s, s, by, r);
	c->steps += c->n + c->pr->g->succ_first[c->n];
}

void chain_shuffle(chain *c, pipe_random *r)
{
	chain_shuffle_by(c, chain_any_taste(r), r);
}

void chain_shuffle_all(chain *c, chain_taste by, pipe_random *r)
{
	memset(c->stage_of, 0, c->n * sizeof *c->stage_of);
	chain_shuffle_run(c, 0, c->n, 0, 0, by, r);
	c->steps += c->n + c->pr->g->succ_first[c->n];
}
