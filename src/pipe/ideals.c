/* Makes all ideals of a graph and finds the best chain of stages through them.
 *
 * They are made from the empty one upwards, each by adding a node that is ready; a hash table finds those that were made
 * before. A graph like a chain has few more ideals than nodes, one with many independent branches has exponentially many:
 * then this stops at a limit.
 *
 * Where time alone counts, it is enough to know for every ideal and number of stages whether it can be reached within a
 * bottleneck: of all reachable ideals inside it, the longest leaves the least for the next stage, and that one is handed
 * upwards. So a bottleneck is decided in O(ways * stages), and the smallest found by bisection. Devices that differ are
 * grouped by kind: the number of stages becomes the number of devices used of each kind. With links and memory the
 * longest is not always the best, and all pairs of ideals within the bottleneck are tried. */
#include "pipe/ideals.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define MOST_IDEALS 400000u
#define MOST_WORDS 6000000u
#define MOST_WAYS 2000000u
#define MOST_STATES 12000000u /* ideals times numbers of devices used */
#define EQUAL 1e-9
#define ROUNDING 1e-13

/* ---- making -------------------------------------------------------------------------------------------------- */

void ideals_free(ideals *d)
{
	vec_free(&d->bits);
	vec_free(&d->us);
	vec_free(&d->hash);
	vec_free(&d->load);
	vec_free(&d->border);
	vec_free(&d->first);
	vec_free(&d->via);
	vec_free(&d->up);
	mem_free(d->slots);
	arena_free(&d->arena);
	*d = (ideals){0};
}

static clv_status grow_slots(ideals *d)
{
	if (d->nslots && d->n < d->nslots / 2)
		return CLV_OK;
	uint32_t more = d->nslots ? d->nslots * 2 : 1024, *slots = mem_ids(more);
	TRY_MEM(slots);
	for (uint32_t i = 0; i < d->n; i++) {
		uint32_t at = (uint32_t)d->hash.at[i] & (more - 1);
		while (slots[at] != PIPE_NONE)
			at = (at + 1) & (more - 1);
		slots[at] = i;
	}
	mem_free(d->slots);
	d->slots = slots;
	d->nslots = more;
	return CLV_OK;
}

/* The slot of the set in d->mark: that of the ideal, or the empty one where it belongs. */
static uint32_t *find_slot(ideals *d, uint64_t hash)
{
	uint32_t at = (uint32_t)hash & (d->nslots - 1);
	for (;; at = (at + 1) & (d->nslots - 1)) {
		uint32_t i = d->slots[at];
		if (i == PIPE_NONE ||
		    (d->hash.at[i] == hash && !memcmp(d->bits.at + (size_t)i * d->words, d->mark, d->words * sizeof *d->mark)))
			return &d->slots[at];
	}
}

static bool marked(const ideals *d, uint32_t n)
{
	return d->mark[n / 64] >> (n % 64) & 1;
}

static bool is_ready(const ideals *d, uint32_t n)
{
	const pipe_graph *g = d->c->pr->g;
	for (uint32_t e = g->pred_first[n]; e < g->pred_first[n + 1]; e++)
		if (!marked(d, g->pred[e]))
			return false;
	return true;
}

static void now_ready(ideals *d, uint32_t n)
{
	if (d->closed && d->time[n] == 0)
		d->added[d->nadded++] = n;
	else
		d->fresh[d->nfresh++] = n;
}

/* Puts what is in d->added into d->mark, and what comes in by that. A node is marked when its successors are
   looked at, so that each of them is found ready once: by its last predecessor. */
static void add_marked(ideals *d, uint64_t *hash, double *us)
{
	const pipe_graph *g = d->c->pr->g;
	for (uint32_t i = 0; i < d->nadded; i++) {
		uint32_t n = d->added[i];
		d->mark[n / 64] |= UINT64_C(1) << (n % 64);
		*hash ^= d->zobrist[n];
		*us += d->time[n];
		for (uint32_t e = g->succ_first[n]; e < g->succ_first[n + 1]; e++)
			if (is_ready(d, g->succ[e]))
				now_ready(d, g->succ[e]);
	}
}

/* The set in d->mark becomes an ideal; its ways are those of `from` but for `without`, and the fresh ones. */
static clv_status add_ideal(ideals *d, uint64_t hash, double us, uint32_t from, uint32_t without)
{
	TRY(vec_reserve(&d->bits, d->words));
	memcpy(d->bits.at + d->bits.n, d->mark, d->words * sizeof *d->mark);
	d->bits.n += d->words;
	TRY(vec_push(&d->hash, hash));
	TRY(vec_push(&d->us, us));
	if (from != PIPE_NONE)
		for (uint32_t e = d->first.at[from]; e < d->first.at[from + 1]; e++)
			if (d->via.at[e] != without)
				TRY(vec_push(&d->via, d->via.at[e]));
	for (uint32_t i = 0; i < d->nfresh; i++)
		TRY(vec_push(&d->via, d->fresh[i]));
	d->n++;
	return vec_push(&d->first, d->via.n);
}

static bool all_read(const ideals *d, const pipe_value *x)
{
	for (uint32_t i = 0; i < x->nuses; i++)
		if (!marked(d, d->c->pr->g->uses.at[x->uses + i]))
			return false;
	return true;
}

static void add_crossing(pipe_border *to, const pipe_value *x, int64_t times)
{
	to->fwd += x->bytes * times;
	to->bwd += x->grad ? x->bytes * times : 0;
}

/* Of the set in d->mark, which has node n more than ideal i. */
static clv_status add_costs(ideals *d, uint32_t i, uint32_t n)
{
	const chain *c = d->c;
	const pipe_value *values = c->pr->g->values.at;
	chain_load more = node_load(c->pr, n), load = d->load.at[i];
	pipe_border border = d->border.at[i];
	load = (chain_load){load.fwd + more.fwd, load.bwd + more.bwd, load.param + more.param, load.held + more.held, 0};
	for (uint32_t e = c->made_first[n]; e < c->made_first[n + 1]; e++)
		if (values[c->made[e]].nuses || values[c->made[e]].leaves)
			add_crossing(&border, &values[c->made[e]], 1);
	for (uint32_t e = c->read_first[n]; e < c->read_first[n + 1]; e++)
		if (!values[c->read[e]].leaves && all_read(d, &values[c->read[e]]))
			add_crossing(&border, &values[c->read[e]], -1);
	TRY(vec_push(&d->load, load));
	return vec_push(&d->border, border);
}

static clv_status add_empty(ideals *d)
{
	const pipe_graph *g = d->c->pr->g;
	pipe_border border = {0};
	uint64_t hash = 0;
	double us = 0;
	for (uint32_t n = 0; n < g->nodes.n; n++)
		if (g->pred_first[n] == g->pred_first[n + 1])
			now_ready(d, n);
	for (uint32_t v = 0; v < g->values.n; v++)
		if (g->values.at[v].from == PIPE_NONE && (g->values.at[v].nuses || g->values.at[v].leaves))
			add_crossing(&border, &g->values.at[v], 1);
	TRY(vec_push(&d->load, (chain_load){0}));
	TRY(vec_push(&d->border, border));
	add_marked(d, &hash, &us);
	TRY(grow_slots(d));
	*find_slot(d, hash) = 0;
	TRY(vec_push(&d->first, 0));
	return add_ideal(d, hash, us, PIPE_NONE, PIPE_NONE);
}

/* The ideal above i with the node of way e. */
static clv_status go_up(ideals *d, uint32_t i, uint32_t e)
{
	uint64_t hash = d->hash.at[i];
	double us = d->us.at[i];
	memcpy(d->mark, d->bits.at + (size_t)i * d->words, d->words * sizeof *d->mark);
	d->added[0] = d->via.at[e];
	d->nadded = 1;
	d->nfresh = 0;
	add_marked(d, &hash, &us);
	TRY(grow_slots(d));
	uint32_t *slot = find_slot(d, hash);
	if (*slot == PIPE_NONE) {
		*slot = d->n;
		TRY(add_ideal(d, hash, us, i, d->added[0]));
		if (!d->closed)
			TRY(add_costs(d, i, d->added[0]));
	}
	return vec_push(&d->up, *slot);
}

static bool too_many(const ideals *d)
{
	return d->n > MOST_IDEALS || d->bits.n > MOST_WORDS || d->via.n > MOST_WAYS;
}

static clv_status make_all(ideals *d)
{
	TRY(add_empty(d));
	for (uint32_t i = 0; i < d->n && !too_many(d); i++)
		for (uint32_t e = d->first.at[i]; e < d->first.at[i + 1]; e++)
			TRY(go_up(d, i, e));
	d->whole = !too_many(d);
	return CLV_OK;
}

clv_status ideals_new(const chain *c, bool closed, ideals *d)
{
	pipe_random r = {UINT64_C(0x1DEA15)};
	*d = (ideals){.c = c, .closed = closed, .words = (c->n + 63) / 64};
	d->mark = arena_array(&d->arena, d->words, sizeof *d->mark);
	d->zobrist = arena_array(&d->arena, c->n, sizeof *d->zobrist);
	d->time = arena_array(&d->arena, c->n, sizeof *d->time);
	d->added = arena_ids(&d->arena, c->n);
	d->fresh = arena_ids(&d->arena, c->n);
	clv_status st = arena_status(&d->arena);
	for (uint32_t n = 0; n < c->n && st == CLV_OK; n++) {
		d->zobrist[n] = random_next(&r);
		d->time[n] = node_us(c->pr, n);
	}
	if (st == CLV_OK)
		st = make_all(d);
	if (st != CLV_OK)
		ideals_free(d);
	return st;
}

/* ---- time alone ---------------------------------------------------------------------------------------------- */

/* Devices by kinds. A state says how many of each kind are used: a number of mixed radix. */
typedef struct kinds {
	arena arena;
	uint32_t n, states;
	double *speed;
	uint32_t *count, *stride, *digit;
	uint32_t *from;    /* [state][ideal]: the ideal before, where this can be reached; PIPE_NONE elsewhere */
	uint32_t *longest; /* per ideal: the longest one inside of it that is reached in the state */
} kinds;

static void count_kinds(const pipe_problem *pr, kinds *x)
{
	for (uint32_t i = 0; i < pr->k; i++) {
		uint32_t t = 0;
		while (t < x->n && x->speed[t] != pr->devices[i].speed)
			t++;
		if (t == x->n)
			x->speed[x->n++] = pr->devices[i].speed;
		x->count[t]++;
	}
	uint64_t states = 1;
	for (uint32_t t = 0; t < x->n && states <= MOST_STATES; t++) {
		x->stride[t] = (uint32_t)states;
		states *= x->count[t] + 1;
	}
	x->states = (uint32_t)states;
}

/* Leaves `from` NULL if there are too many states. */
static clv_status kinds_new(const ideals *d, kinds *x)
{
	uint32_t k = d->c->k;
	*x = (kinds){0};
	x->speed = arena_array(&x->arena, k, sizeof *x->speed);
	x->count = arena_array(&x->arena, k, sizeof *x->count);
	x->stride = arena_array(&x->arena, k, sizeof *x->stride);
	x->digit = arena_array(&x->arena, k, sizeof *x->digit);
	x->longest = arena_ids(&x->arena, d->n);
	TRY(arena_status(&x->arena));
	count_kinds(d->c->pr, x);
	if ((uint64_t)x->states * d->n <= MOST_STATES)
		x->from = arena_ids(&x->arena, (size_t)x->states * d->n);
	return arena_status(&x->arena);
}

/* Ends of the next stage, from state m; `rest` is the speed of devices that are not used in m. */
static void end_stage(const ideals *d, kinds *x, uint32_t m, uint32_t i, double most, double rest)
{
	double total = d->us.at[d->n - 1], us = d->us.at[i] - d->us.at[x->longest[i]];
	for (uint32_t t = 0; t < x->n; t++) {
		if (x->digit[t] == x->count[t] || us > most * x->speed[t] * (1 + ROUNDING))
			continue;
		if (total - d->us.at[i] > most * (rest - x->speed[t]) + total * 1e-12)
			continue;
		uint32_t *from = &x->from[(size_t)(m + x->stride[t]) * d->n + i];
		if (*from == PIPE_NONE)
			*from = x->longest[i];
	}
}

/* Hands the longest reached ideal of state m upwards, and ends stages with it. */
static void leave_state(const ideals *d, kinds *x, uint32_t m, double most)
{
	const uint32_t *reached = x->from + (size_t)m * d->n;
	double rest = 0;
	for (uint32_t t = 0, left = m; t < x->n; t++) {
		x->digit[t] = left % (x->count[t] + 1);
		left /= x->count[t] + 1;
		rest += x->speed[t] * (x->count[t] - x->digit[t]);
	}
	for (uint32_t i = 0; i < d->n; i++)
		x->longest[i] = PIPE_NONE;
	for (uint32_t i = 0; i < d->n; i++) {
		uint32_t best = reached[i] != PIPE_NONE ? i : x->longest[i];
		if (best == PIPE_NONE)
			continue;
		if (x->longest[i] != PIPE_NONE)
			end_stage(d, x, m, i, most, rest);
		for (uint32_t e = d->first.at[i]; e < d->first.at[i + 1]; e++) {
			uint32_t *above = &x->longest[d->up.at[e]];
			if (*above == PIPE_NONE || d->us.at[best] > d->us.at[*above])
				*above = best;
		}
	}
}

static bool within(const ideals *d, kinds *x, double most, uint64_t *steps)
{
	memset(x->from, 0xff, (size_t)x->states * d->n * sizeof *x->from);
	x->from[0] = 0;
	for (uint32_t m = 0; m + 1 < x->states; m++)
		leave_state(d, x, m, most);
	*steps += (uint64_t)x->states * (d->n + d->up.n);
	return x->from[(size_t)x->states * d->n - 1] != PIPE_NONE;
}

/* The device number `nth` (from 1) of those with a speed. */
static uint32_t device_of_speed(const pipe_problem *pr, double speed, uint32_t nth)
{
	uint32_t d = 0;
	while (d + 1 < pr->k && (pr->devices[d].speed != speed || --nth))
		d++;
	return d;
}

/* A kind with which the last stage of state m can be that from ideal j to i. */
static uint32_t last_kind(const ideals *d, const kinds *x, uint32_t m, uint32_t j, uint32_t i, double most)
{
	for (uint32_t t = 0; t < x->n; t++) {
		uint32_t digit = m / x->stride[t] % (x->count[t] + 1);
		if (digit && x->from[(size_t)(m - x->stride[t]) * d->n + j] != PIPE_NONE &&
		    d->us.at[i] - d->us.at[j] <= most * x->speed[t] * (1 + ROUNDING))
			return t;
	}
	return 0; /* cannot be: it was reached */
}

/* The way to all nodes, walked back; its bottleneck. */
static double walk_back(const ideals *d, const kinds *x, double most, uint32_t *stage_of, uint32_t *device_of)
{
	uint32_t m = x->states - 1, i = d->n - 1;
	double worst = 0;
	for (uint32_t s = d->c->k; s-- > 0;) {
		uint32_t j = x->from[(size_t)m * d->n + i], t = last_kind(d, x, m, j, i, most);
		for (uint32_t n = 0; n < d->c->n; n++)
			if (ideals_has(d, i, n) && (s == 0 || !ideals_has(d, j, n)))
				stage_of[n] = s;
		worst = fmax(worst, (d->us.at[i] - d->us.at[j]) / x->speed[t]);
		device_of[s] = device_of_speed(d->c->pr, x->speed[t], m / x->stride[t] % (x->count[t] + 1));
		m -= x->stride[t];
		i = j;
	}
	return worst;
}

clv_status ideals_by_time(const ideals *d, uint64_t *steps, uint64_t limit, uint32_t *stage_of, uint32_t *device_of,
                          double *worst, double *bound)
{
	kinds x;
	clv_status st = kinds_new(d, &x);
	double most = *worst * (1 - EQUAL), low = *bound;
	while (st == CLV_OK && x.from && low < *worst * (1 - 1.1 * EQUAL) && *steps < limit) {
		if (within(d, &x, most, steps))
			*worst = walk_back(d, &x, most, stage_of, device_of);
		else
			low = most;
		most = fmin(low + (*worst - low) / 2, *worst * (1 - EQUAL));
	}
	*bound = low >= *worst * (1 - 2 * EQUAL) ? *worst : low;
	arena_free(&x.arena);
	return st;
}

/* ---- links and memory ---------------------------------------------------------------------------------------- */

typedef struct climb {
	arena arena;
	double *now, *next; /* per ideal: the least bottleneck that it is reached with */
	uint32_t *back;     /* [stage][ideal] */
	uint32_t *seen, round, *queue;
	double *work; /* per ideal that was seen: the most of one node beyond the ideal that the climb began with */
	double *node_work;
	double most, rest;
} climb;

static clv_status climb_new(const ideals *d, climb *w)
{
	arena *a = &w->arena;
	size_t n = d->n;
	*w = (climb){0};
	w->now = arena_array(a, n, sizeof *w->now);
	w->next = arena_array(a, n, sizeof *w->next);
	w->back = arena_ids(a, d->c->k * n);
	w->seen = arena_ids(a, n);
	w->queue = arena_ids(a, n);
	w->work = arena_array(a, n, sizeof *w->work);
	w->node_work = arena_array(a, d->c->n, sizeof *w->node_work);
	TRY(arena_status(a));
	for (uint32_t i = 0; i < d->c->n; i++)
		w->node_work[i] = (double)node_work_bytes(d->c->pr, i);
	for (uint32_t i = 0; i < d->n; i++)
		w->next[i] = i ? DBL_MAX : 0;
	return CLV_OK;
}

/* Stage s from ideal i to ideal j. */
static void try_stage(const ideals *d, climb *w, uint32_t s, uint32_t i, uint32_t j)
{
	const chain_load *a = &d->load.at[i], *b = &d->load.at[j];
	chain_load in = {b->fwd - a->fwd, b->bwd - a->bwd, b->param - a->param, b->held - a->held, w->work[j]};
	double cost = chain_cost(d->c, s, &in, &d->border.at[i], &d->border.at[j]);
	if (cost > w->most)
		return;
	cost = fmax(cost, w->now[i]);
	if (cost < w->next[j]) {
		w->next[j] = cost;
		w->back[(size_t)s * d->n + j] = i;
	}
}

/* All ideals above i that stage s can end with. */
static uint64_t climb_from(const ideals *d, climb *w, uint32_t s, uint32_t i)
{
	double room = w->most * d->c->pr->devices[d->c->device_of[s]].speed * (1 + ROUNDING);
	double total = d->us.at[d->n - 1], need = total - w->most * w->rest - total * 1e-12;
	uint32_t end = 0;
	uint64_t steps = 1;
	w->queue[end++] = i;
	w->work[i] = 0;
	w->round++;
	for (uint32_t q = 0; q < end; q++) {
		uint32_t at = w->queue[q];
		if (q > 0 && d->us.at[at] >= need)
			try_stage(d, w, s, i, at);
		for (uint32_t e = d->first.at[at]; e < d->first.at[at + 1]; e++) {
			uint32_t j = d->up.at[e];
			steps++;
			if (w->seen[j] == w->round || d->us.at[j] - d->us.at[i] > room)
				continue;
			w->seen[j] = w->round;
			w->work[j] = fmax(w->work[at], w->node_work[d->via.at[e]]);
			w->queue[end++] = j;
		}
	}
	return steps;
}

/* Everything below w->most, as long as there are steps; false: there were too few. */
static bool climb_all(const ideals *d, climb *w, uint64_t *steps, uint64_t limit)
{
	const chain *c = d->c;
	for (uint32_t s = 0; s < c->k; s++)
		w->rest += c->pr->devices[c->device_of[s]].speed;
	for (uint32_t s = 0; s < c->k; s++) {
		double *was = w->now;
		w->now = w->next;
		w->next = was;
		w->rest = s + 1 < c->k ? w->rest - c->pr->devices[c->device_of[s]].speed : 0;
		for (uint32_t i = 0; i < d->n; i++)
			w->next[i] = DBL_MAX;
		for (uint32_t i = 0; i < d->n; i++) {
			if (w->now[i] < DBL_MAX)
				*steps += climb_from(d, w, s, i);
			if (*steps > limit)
				return false;
		}
	}
	return true;
}

clv_status ideals_by_cost(const ideals *d, uint64_t *steps, uint64_t limit, uint32_t *stage_of, double *worst,
                          bool *found, bool *proven)
{
	climb w;
	*found = *proven = false;
	if ((uint64_t)d->n * d->c->k > MOST_STATES)
		return CLV_OK;
	clv_status st = climb_new(d, &w);
	w.most = *worst * (1 - EQUAL);
	*proven = st == CLV_OK && climb_all(d, &w, steps, limit);
	*found = *proven && w.next[d->n - 1] < DBL_MAX;
	if (*found)
		*worst = w.next[d->n - 1];
	for (uint32_t s = d->c->k, i = d->n - 1; *found && s-- > 0;) {
		uint32_t j = w.back[(size_t)s * d->n + i];
		for (uint32_t n = 0; n < d->c->n; n++)
			if (ideals_has(d, i, n) && !ideals_has(d, j, n))
				stage_of[n] = s;
		i = j;
	}
	arena_free(&w.arena);
	return st;
}
