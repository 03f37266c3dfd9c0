/* exact: the best chain of stages, proven optimal where that is feasible.
 *
 * It starts from the results of other methods, so it is never worse. Then it makes all ideals of the graph, if they are
 * not too many, and the best path through them is the best chain (ideals.c): by time alone over all orders of the
 * devices; with links and memory over all orders of a few devices, or in the given one. If the second is too much work,
 * the first still gives a bound; if both are, the bound is that of all partitions: work over all speeds, the heaviest
 * nodes. All of it is limited by a count of steps.
 *
 * If even the best chain is far from the bound of all partitions, more stages than one per device are tried (mixed.c), as
 * few as suffice. That is a search: its result is optimal only if it reaches the bound of all partitions. */
#include "pipe/ideals.h"
#include "pipe/mixed.h"

#include <math.h>
#include <string.h>

#define TIME_STEPS 300000000u
#define COST_STEPS 100000000u
#define POLISH_STEPS 4000000u
#define EQUAL 1e-9
#define GAP 1e-3  /* closer than that to the bound a mixed pipe is not worth its stages */
#define ORDERED 5 /* devices that differ, of which every order is tried: 120 */
#define SMALL 64  /* nodes up to which the ideals are looked at before anything is searched for */

typedef struct search {
	const pipe_problem *pr;
	chain c;
	keeper kept;
	double least; /* no partition can be below */
	double bound; /* no chain can be below */
	uint32_t *stage_of, *device_of;
	uint64_t steps;
	bool stopped;
} search;

static void swap(uint32_t *a, uint32_t *b)
{
	uint32_t was = *a;
	*a = *b;
	*b = was;
}

static bool kept_fits(const search *x)
{
	return x->kept.score.over_bytes == 0;
}

static bool reached(const search *x, double bound)
{
	return kept_fits(x) && x->kept.score.bottleneck_us <= bound * (1 + EQUAL);
}

static bool speeds_alike(const pipe_problem *pr)
{
	for (uint32_t d = 1; d < pr->k; d++)
		if (pr->devices[d].speed != pr->devices[0].speed)
			return false;
	return true;
}

/* Each stage has a node that takes time, then: see ideals_new. */
static bool can_close(const pipe_problem *pr)
{
	uint32_t count = 0;
	for (uint32_t n = 0; n < pr->g->nodes.n; n++)
		count += node_us(pr, n) > 0;
	return count >= pr->k && speeds_alike(pr);
}

static clv_status try_method(search *x, pipe_method method)
{
	pipe_problem own = *x->pr;
	pipe_partition p;
	own.seconds /= 4;
	TRY(method(&own, &p));
	x->stopped = x->stopped || p.stopped;
	return keeper_offer(x->pr, &x->kept, &p);
}

static clv_status try_searches(search *x)
{
	TRY(try_method(x, pipe_acyclic));
	return reached(x, x->bound) ? CLV_OK : try_method(x, pipe_multilevel);
}

/* A chain that was found: with as few bytes over its borders as can be had quickly. */
static clv_status offer_chain(search *x)
{
	pipe_random r = {x->pr->seed};
	pipe_partition p;
	chain_take(&x->c, x->stage_of, x->device_of);
	chain_polish(&x->c, POLISH_STEPS, &r);
	TRY(chain_partition(&x->c, &p));
	p.method = "exact";
	return keeper_offer(x->pr, &x->kept, &p);
}

/* Time alone: raises the bound, and offers what is found if that is what counts. */
static clv_status by_time(search *x, bool use)
{
	double worst = x->kept.score.bottleneck_us, was = worst;
	ideals d;
	TRY(ideals_new(&x->c, can_close(x->pr), &d));
	clv_status st = CLV_OK;
	if (d.whole)
		st = ideals_by_time(&d, &x->steps, TIME_STEPS, x->stage_of, x->device_of, &worst, &x->bound);
	ideals_free(&d);
	return st == CLV_OK && use && worst < was ? offer_chain(x) : st;
}

/* Is the cost of a stage all that score.c says? What a recomputing stage holds of its inputs is only bounded. */
static bool cost_is_exact(const search *x)
{
	return !(memory_limited(x->pr) && x->pr->training && x->pr->recompute);
}

/* The next of all orders of the devices, by the alphabet; false after the last. */
static bool next_order(uint32_t *device_of, uint32_t k)
{
	uint32_t i = k - 1, j = k - 1;
	while (i > 0 && device_of[i - 1] >= device_of[i])
		i--;
	if (i == 0)
		return false;
	while (device_of[j] <= device_of[i - 1])
		j--;
	swap(&device_of[i - 1], &device_of[j]);
	for (j = k - 1; i < j; i++, j--)
		swap(&device_of[i], &device_of[j]);
	return true;
}

/* The devices in one order; `*proven` stays if it is shown that no chain in that order is better than what is kept. */
static clv_status try_order(search *x, const ideals *d, uint64_t limit, bool *proven)
{
	double worst = kept_fits(x) ? x->kept.score.bottleneck_us : 1e29; /* chains that do not fit cost more */
	bool found = false, looked = false;
	memcpy(x->c.device_of, x->device_of, x->pr->k * sizeof *x->device_of);
	schedule_in_flight(x->pr, x->c.device_of, x->pr->k, x->c.in_flight);
	TRY(ideals_by_cost(d, &x->steps, limit, x->stage_of, &worst, &found, &looked));
	*proven = *proven && looked;
	return found ? offer_chain(x) : CLV_OK;
}

/* With links and memory. Where devices differ, each of their orders is another problem: all are looked at where they
   are few, elsewhere the one that is given, which proves nothing. */
static clv_status by_cost(search *x)
{
	bool orders = !x->c.alike && x->pr->k <= ORDERED, proven = orders || x->c.alike;
	uint64_t limit = x->steps + COST_STEPS;
	ideals d;
	for (uint32_t i = 0; i < x->pr->k; i++)
		x->device_of[i] = i;
	TRY(ideals_new(&x->c, false, &d));
	clv_status st = CLV_OK;
	proven = proven && d.whole;
	if (d.whole)
		do
			st = try_order(x, &d, limit, &proven);
		while (st == CLV_OK && orders && x->steps < limit && next_order(x->device_of, x->pr->k));
	ideals_free(&d);
	proven = proven && x->steps < limit && cost_is_exact(x);
	if (st == CLV_OK && proven && kept_fits(x) && x->kept.best.nstages == x->pr->k)
		x->bound = x->kept.score.bottleneck_us;
	return st;
}

/* Improves the chain, or proves it optimal, by the ideals. */
static clv_status best_chain(search *x)
{
	if (reached(x, x->bound))
		return CLV_OK;
	TRY(by_time(x, x->c.plain));
	return x->c.plain || reached(x, x->bound) ? CLV_OK : by_cost(x);
}

/* More stages than devices, where they may be and would help. */
static clv_status try_mixed(search *x)
{
	const pipe_problem *pr = x->pr;
	if (reached(x, x->least * (1 + GAP)) || pr->max_stages == pr->k)
		return CLV_OK;
	chain_take(&x->c, x->kept.best.stage_of, x->kept.best.device_of);
	TRY(mixed_search(pr, x->c.order, x->least, GAP, &x->kept));
	if (x->kept.best.nstages > pr->k)
		x->bound = x->least;
	return CLV_OK;
}

static clv_status find_best(search *x)
{
	bool small = x->pr->g->nodes.n <= SMALL;
	TRY(least_bottleneck(x->pr, &x->least));
	x->bound = x->least;
	TRY(try_method(x, pipe_pipedream));
	if (small)
		TRY(best_chain(x));
	if (!small || !reached(x, x->bound))
		TRY(try_searches(x));
	TRY(best_chain(x));
	TRY(try_mixed(x));
	x->kept.best.bound_us = fmin(x->bound, x->kept.score.bottleneck_us);
	x->kept.best.optimal = reached(x, x->bound);
	x->kept.best.stopped = x->stopped;
	x->kept.best.method = "exact";
	return CLV_OK;
}

clv_status pipe_exact(const pipe_problem *pr, pipe_partition *out)
{
	search x = {.pr = pr};
	TRY(chain_new(pr, &x.c));
	x.stage_of = mem_ids(pr->g->nodes.n);
	x.device_of = mem_ids(pr->k);
	clv_status st = x.stage_of && x.device_of ? find_best(&x) : fail_nomem();
	chain_free(&x.c);
	mem_free(x.stage_of);
	mem_free(x.device_of);
	return keeper_end(&x.kept, st, out);
}
