/* Joins stages where there are too many, and puts stages on devices, for methods that may give a device several.
 *
 * A topological order cut into intervals is always a valid list of stages. So nothing here can make a cycle, and the
 * bytes alive at a place of the order (its crossing) are the cost of a cut there, whatever the other cuts are. */
#include "pipe/polish.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define LIGHTEST 4096.0 /* stages of so small a part of an even one are joined first */

clv_status offer_filled(const pipe_problem *pr, keeper *kept, pipe_partition *p)
{
	clv_status st = partition_fill(pr, p);
	if (st == CLV_OK)
		return keeper_offer(pr, kept, p);
	partition_free(p);
	return st;
}

bool kept_reached(const keeper *kept)
{
	const pipe_score *s = &kept->score;
	return kept->has && s->over_bytes <= 0 && s->bottleneck_us <= s->lower_bound_us * (1 + POLISH_REACHED);
}

uint32_t stages_limit(const pipe_problem *pr)
{
	uint64_t most = pr->max_stages ? pr->max_stages : 4 * (uint64_t)pr->k;
	return most < pr->g->nodes.n ? (uint32_t)most : pr->g->nodes.n;
}

bool time_is_up(const pipe_problem *pr, double began)
{
	return pr->seconds > 0 && clock_seconds() - began >= pr->seconds;
}

/* ---- joining stages ---------------------------------------------------------------------------------------------- */

typedef struct joint {
	double us;
	int64_t before; /* bytes alive before its first node */
	uint32_t prev, next, device, into;
} joint;

static clv_status joints_make(const pipe_problem *pr, const pipe_partition *p, joint *js)
{
	const pipe_graph *g = pr->g;
	uint32_t *first, *order; /* as numbered within a stage: topological, as stages are */
	pipe_border *crossing = mem_alloc(((size_t)g->nodes.n + 1) * sizeof *crossing);
	clv_status st = crossing ? partition_nodes(g, p, &first, &order) : fail_nomem();
	if (st == CLV_OK) {
		st = order_crossing(g, order, crossing);
		for (uint32_t s = 0; st == CLV_OK && s < p->nstages; s++)
			js[s] = (joint){.before = crossing[first[s]].fwd,
			                .prev = s ? s - 1 : PIPE_NONE,
			                .next = s + 1 < p->nstages ? s + 1 : PIPE_NONE,
			                .device = p->device_of[s],
			                .into = s};
		for (uint32_t n = 0; st == CLV_OK && n < g->nodes.n; n++)
			js[p->stage_of[n]].us += node_us(pr, n);
		mem_free(first);
		mem_free(order);
	}
	mem_free(crossing);
	return st;
}

/* The one behind a is taken into a, on the device of the heavier one. */
static void joints_join(joint *js, uint32_t a)
{
	uint32_t b = js[a].next;
	if (js[b].us > js[a].us)
		js[a].device = js[b].device;
	js[a].us += js[b].us;
	js[a].next = js[b].next;
	js[b].into = a;
	if (js[b].next != PIPE_NONE)
		js[js[b].next].prev = a;
}

/* The first of the two that are joined when stage s goes: with a neighbour on its device, else over the most bytes. */
static uint32_t joint_partner(const joint *js, uint32_t s)
{
	uint32_t prev = js[s].prev, next = js[s].next;
	if (prev == PIPE_NONE)
		return s;
	if (next == PIPE_NONE)
		return prev;
	bool same_prev = js[prev].device == js[s].device, same_next = js[next].device == js[s].device;
	if (same_prev != same_next)
		return same_prev ? prev : s;
	if (js[s].before != js[next].before)
		return js[s].before > js[next].before ? prev : s;
	return js[prev].us <= js[next].us ? prev : s;
}

/* Stages of up to `us` are joined with a neighbour, until `limit` are left; how many there are then. */
static uint32_t light_join(joint *js, uint32_t n, uint32_t left, uint32_t limit, double us)
{
	for (uint32_t s = 0; s < n && left > limit; s++)
		if (js[s].into == s && js[s].us <= us) {
			joints_join(js, joint_partner(js, s));
			left--;
		}
	return left;
}

clv_status stages_join(const pipe_problem *pr, pipe_partition *p, uint32_t limit)
{
	uint32_t n = p->nstages, left = n;
	if (n <= limit)
		return CLV_OK;
	joint *js = mem_alloc((size_t)n * sizeof *js);
	TRY_MEM(js);
	clv_status st = joints_make(pr, p, js);
	double us = fmax(pr->g->total_us / (LIGHTEST * (double)limit), DBL_MIN);
	for (; st == CLV_OK && left > limit; us *= 2)
		left = light_join(js, n, left, limit, us);
	/* `into` is a smaller number, or the stage itself: one pass finds where each ended */
	uint32_t last = 0;
	for (uint32_t s = 0; st == CLV_OK && s < n; s++) {
		bool stays = js[s].into == s;
		if (stays && s > 0)
			last++;
		if (stays)
			p->device_of[last] = js[s].device;
		js[s].into = last;
	}
	for (uint32_t x = 0; st == CLV_OK && x < pr->g->nodes.n; x++)
		p->stage_of[x] = js[p->stage_of[x]].into;
	if (st == CLV_OK)
		p->nstages = left;
	mem_free(js);
	return st;
}

/* ---- stages on devices ------------------------------------------------------------------------------------------- */

typedef struct stage_load {
	double us, bytes;
	uint32_t stage;
} stage_load;

static int by_load(const void *a, const void *b)
{
	const stage_load *x = a, *y = b;
	if (x->us > y->us || x->us < y->us)
		return x->us > y->us ? -1 : 1;
	return x->stage < y->stage ? -1 : x->stage > y->stage;
}

static clv_status loads_make(const pipe_problem *pr, const pipe_partition *p, stage_load *loads)
{
	uint32_t *in_flight = mem_alloc((size_t)p->nstages * sizeof *in_flight);
	TRY_MEM(in_flight);
	schedule_in_flight(pr, p->device_of, p->nstages, in_flight);
	for (uint32_t s = 0; s < p->nstages; s++)
		loads[s] = (stage_load){0, 0, s};
	for (uint32_t n = 0; n < pr->g->nodes.n; n++) {
		const pipe_node *x = &pr->g->nodes.at[n];
		stage_load *l = &loads[p->stage_of[n]];
		l->us += node_us(pr, n);
		l->bytes += (double)x->param_bytes * pr->param_copies;
		if (pr->training && !pr->recompute)
			l->bytes += (double)x->held_bytes * in_flight[p->stage_of[n]];
	}
	mem_free(in_flight);
	return CLV_OK;
}

typedef struct device_load {
	double us, bytes;
} device_load;

static double room_left(const pipe_problem *pr, const device_load *d, uint32_t i, double bytes)
{
	double limit = (double)pr->devices[i].memory_bytes;
	return limit > 0 ? limit - d[i].bytes - bytes : INFINITY;
}

/* Where the stage fits and would be done first; where it fits nowhere, the device with the most room. */
static uint32_t device_for(const pipe_problem *pr, const device_load *d, const stage_load *l)
{
	uint32_t best = 0;
	for (uint32_t i = 1; i < pr->k; i++) {
		double room = room_left(pr, d, i, l->bytes), best_room = room_left(pr, d, best, l->bytes);
		double us = (d[i].us + l->us) / pr->devices[i].speed;
		double best_us = (d[best].us + l->us) / pr->devices[best].speed;
		if ((room >= 0) != (best_room >= 0) ? room >= 0 : room >= 0 ? us < best_us : room > best_room)
			best = i;
	}
	return best;
}

static void device_add(device_load *d, const stage_load *l)
{
	d->us += l->us;
	d->bytes += l->bytes;
}

/* The slowest device; infinite where memory does not fit. */
static double slowest(const pipe_problem *pr, const device_load *d)
{
	double most = 0;
	for (uint32_t i = 0; i < pr->k; i++)
		most = fmax(most, room_left(pr, d, i, 0) < 0 ? INFINITY : d[i].us / pr->devices[i].speed);
	return most;
}

clv_status stages_place(const pipe_problem *pr, pipe_partition *p)
{
	arena scratch = {0};
	uint32_t n = p->nstages;
	stage_load *loads = arena_array(&scratch, n, sizeof *loads);
	device_load *was = arena_array(&scratch, pr->k, sizeof *was), *now = arena_array(&scratch, pr->k, sizeof *now);
	uint32_t *device = arena_ids(&scratch, n);
	clv_status st = scratch.failed ? fail_nomem() : loads_make(pr, p, loads);
	if (st == CLV_OK) {
		for (uint32_t s = 0; s < n; s++)
			device_add(&was[p->device_of[s]], &loads[s]);
		qsort(loads, n, sizeof *loads, by_load);
		for (uint32_t i = 0; i < n; i++) {
			uint32_t d = device_for(pr, now, &loads[i]);
			device[loads[i].stage] = d;
			device_add(&now[d], &loads[i]);
		}
		if (slowest(pr, now) < slowest(pr, was))
			memcpy(p->device_of, device, n * sizeof *device);
	}
	arena_free(&scratch);
	return st;
}
