/* Lays a partition out in time: the timeline of a schedule.
 *
 * A schedule is an order of actions for each device; their times follow from that order and from what each action waits
 * for. If the placement is the one that the schedule is made for, its rule gives the order: some forwards first (the
 * warm-up), then a forward and a backward in turn, then the remaining backwards. Otherwise a simulation finds it: the
 * device that can begin first begins with the action that the rule prefers.
 *
 * The simulation cannot get stuck. Micro-batches go through a stage one after the other, and the oldest one that is not
 * done has none before it that would fill the stage: its next action is always allowed. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "pipe/pipe.h"

typedef struct player {
	arena arena;
	const pipe_problem *pr;
	const pipe_partition *p;
	const pipe_score *score;
	pipe_timeline *out;
	uint32_t *filled;                /* per device: actions that it has done (by times: whose time is known) */
	uint32_t *stages, *stages_first; /* of each device: stages[stages_first[d]] …, ascending */
	uint32_t *fwd_done, *bwd_done;   /* per stage: micro-batches */
	double *free_us;                 /* per device: when it ends what it does */
	double *fwd_link, *bwd_link;     /* per border after stage s: when it is free */
	double *fwd_at, *bwd_at;         /* per stage and micro-batch: when what it needs is there; infinite: not yet */
	pipe_action *next;               /* per device: what it would do next; start_us infinite: nothing can be done */
} player;

static void list_stages(player *y)
{
	uint32_t k = y->pr->k, n = 0;
	for (uint32_t d = 0; d < k; d++) {
		y->stages_first[d] = n;
		for (uint32_t s = 0; s < y->p->nstages; s++)
			if (y->p->device_of[s] == d)
				y->stages[n++] = s;
	}
	y->stages_first[k] = n;
}

static clv_status player_new(const pipe_problem *pr, const pipe_partition *p, const pipe_score *score, player *y)
{
	size_t k = pr->k, stages = p->nstages, cells = stages * pr->microbatches;
	arena *a = &y->arena;
	*y = (player){.pr = pr, .p = p, .score = score};
	y->filled = arena_ids(a, k);
	y->stages = arena_ids(a, stages);
	y->stages_first = arena_ids(a, k + 1);
	y->fwd_done = arena_ids(a, stages);
	y->bwd_done = arena_ids(a, stages);
	y->free_us = arena_array(a, k, sizeof *y->free_us);
	y->fwd_link = arena_array(a, stages, sizeof *y->fwd_link);
	y->bwd_link = arena_array(a, stages, sizeof *y->bwd_link);
	y->fwd_at = arena_array(a, cells, sizeof *y->fwd_at);
	y->bwd_at = arena_array(a, cells, sizeof *y->bwd_at);
	y->next = arena_array(a, k, sizeof *y->next);
	if (!a->failed)
		list_stages(y);
	return arena_status(a);
}

/* Nothing was done: the first stage has its inputs, nobody else has. */
static void rewind_player(player *y)
{
	uint32_t m = y->pr->microbatches, stages = y->p->nstages;
	memset(y->filled, 0, y->pr->k * sizeof *y->filled);
	memset(y->fwd_done, 0, stages * sizeof *y->fwd_done);
	memset(y->bwd_done, 0, stages * sizeof *y->bwd_done);
	for (uint32_t d = 0; d < y->pr->k; d++)
		y->free_us[d] = 0;
	for (uint32_t s = 0; s < stages; s++)
		y->fwd_link[s] = y->bwd_link[s] = 0;
	for (size_t i = 0; i < (size_t)stages * m; i++) {
		y->fwd_at[i] = i < m ? 0 : INFINITY;
		y->bwd_at[i] = INFINITY;
	}
}

/* When the action could begin for all that it needs; infinite: that is not known yet. */
static double ready_us(const player *y, uint32_t kind, uint32_t stage, uint32_t m)
{
	return (kind == ACTION_FORWARD ? y->fwd_at : y->bwd_at)[(size_t)stage * y->pr->microbatches + m];
}

/* Over the border after stage s, one transfer after the other. */
static double arrives_us(const player *y, double *link, uint32_t from, uint32_t to, int64_t bytes, double end)
{
	double us = transfer_us(y->pr, y->p->device_of[from], y->p->device_of[to], bytes);
	if (us == 0)
		return end;
	*link = fmax(*link, end) + us;
	return *link;
}

/* Does the action and tells those that wait for it. */
static void perform(player *y, pipe_action a)
{
	uint32_t s = a.stage, d = y->p->device_of[s], last = y->p->nstages - 1, m = y->pr->microbatches;
	const stage_score *stage = &y->score->stages[s];
	size_t cell = (size_t)s * m + a.microbatch;
	a.start_us = fmax(y->free_us[d], ready_us(y, a.kind, s, a.microbatch));
	a.end_us = a.start_us + (a.kind == ACTION_FORWARD ? stage->fwd_us : stage->bwd_us);
	y->free_us[d] = a.end_us;
	y->out->actions[y->out->first[d] + y->filled[d]++] = a;
	y->out->makespan_us = fmax(y->out->makespan_us, a.end_us);
	if (a.kind == ACTION_FORWARD) {
		y->fwd_done[s]++;
		if (s < last)
			y->fwd_at[cell + m] = arrives_us(y, &y->fwd_link[s], s, s + 1, stage->out_bytes, a.end_us);
		else
			y->bwd_at[cell] = a.end_us;
	} else {
		y->bwd_done[s]++;
		if (s > 0)
			y->bwd_at[cell - m] =
				arrives_us(y, &y->bwd_link[s - 1], s, s - 1, y->score->stages[s - 1].grad_bytes, a.end_us);
	}
}

static uint32_t actions_of(const player *y, uint32_t d)
{
	return y->out->first[d + 1] - y->out->first[d];
}

/* ---- orders by rule --------------------------------------------------------------------------------------------------- */

/* Step i of a device's forwards or backwards: `per_round` micro-batches of each of its stages in turn. */
static pipe_action step_of(const player *y, uint32_t d, uint32_t kind, uint32_t per_round, uint32_t i)
{
	uint32_t chunks = y->stages_first[d + 1] - y->stages_first[d], round = i / (per_round * chunks);
	uint32_t chunk = i / per_round % chunks;
	if (kind == ACTION_BACKWARD)
		chunk = chunks - 1 - chunk;
	return (pipe_action){.stage = y->stages[y->stages_first[d] + chunk],
	                     .microbatch = round * per_round + i % per_round,
	                     .kind = (uint8_t)kind};
}

static uint32_t warmup_of(const player *y, uint32_t d, uint32_t per_round)
{
	uint32_t m = y->pr->microbatches, chunks = y->stages_first[d + 1] - y->stages_first[d];
	if (y->pr->schedule == SCHEDULE_GPIPE)
		return m * chunks;
	if (y->pr->schedule == SCHEDULE_INTERLEAVED)
		return interleaved_warmup(y->pr->k, chunks, per_round, m, d);
	uint32_t left = y->p->nstages - 1 - y->stages[y->stages_first[d]];
	return left < m ? left : m;
}

static void write_order(player *y, uint32_t d, uint32_t per_round)
{
	uint32_t chunks = y->stages_first[d + 1] - y->stages_first[d], steps = y->pr->microbatches * chunks;
	uint32_t warmup = y->pr->training ? warmup_of(y, d, per_round) : steps, fwd = 0, bwd = 0;
	pipe_action *at = y->out->actions + y->out->first[d];
	for (; fwd < warmup; fwd++)
		*at++ = step_of(y, d, ACTION_FORWARD, per_round, fwd);
	while (y->pr->training && bwd < steps) {
		if (fwd < steps)
			*at++ = step_of(y, d, ACTION_FORWARD, per_round, fwd++);
		*at++ = step_of(y, d, ACTION_BACKWARD, per_round, bwd++);
	}
}

/* Does what the orders say as far as it goes; false: each device waits for another. */
static bool play_orders(player *y)
{
	for (bool moved = true; moved;) {
		moved = false;
		for (uint32_t d = 0; d < y->pr->k; d++)
			while (y->filled[d] < actions_of(y, d)) {
				pipe_action a = y->out->actions[y->out->first[d] + y->filled[d]];
				if (isinf(ready_us(y, a.kind, a.stage, a.microbatch)))
					break;
				perform(y, a);
				moved = true;
			}
	}
	for (uint32_t d = 0; d < y->pr->k; d++)
		if (y->filled[d] < actions_of(y, d))
			return false;
	return true;
}

/* One stage on each device; or stages in turn on the devices, for interleaving. */
static bool placement_fits(const player *y, uint32_t *per_round)
{
	const pipe_problem *pr = y->pr;
	*per_round = pr->microbatches;
	if (pr->schedule == SCHEDULE_INTERLEAVED)
		return placement_loops(y->p->device_of, y->p->nstages, pr->k) && rounds_of(pr->microbatches, pr->k, per_round);
	for (uint32_t d = 0; d < pr->k; d++)
		if (y->stages_first[d + 1] - y->stages_first[d] != 1)
			return false;
	return true;
}

/* ---- orders by playing ------------------------------------------------------------------------------------------------ */

static bool all_forwards_done(const player *y, uint32_t d)
{
	for (uint32_t i = y->stages_first[d]; i < y->stages_first[d + 1]; i++)
		if (y->fwd_done[y->stages[i]] < y->pr->microbatches)
			return false;
	return true;
}

static bool may_forward(const player *y, uint32_t s)
{
	if (y->fwd_done[s] >= y->pr->microbatches)
		return false;
	return !y->pr->training || y->fwd_done[s] - y->bwd_done[s] < y->score->stages[s].in_flight;
}

static void consider(const player *y, pipe_action *best, uint32_t d, uint32_t kind, uint32_t s, uint32_t m)
{
	double start = fmax(y->free_us[d], ready_us(y, kind, s, m));
	if (start < best->start_us)
		*best = (pipe_action){.stage = s, .microbatch = m, .kind = (uint8_t)kind, .start_us = start};
}

/* What device d would do next: what can begin first; of those backwards, then forwards of late stages, whose
   micro-batches are older. GPipe has no backward before all forwards are done. */
static pipe_action choose_action(const player *y, uint32_t d)
{
	pipe_action best = {.start_us = INFINITY};
	uint32_t m = y->pr->microbatches;
	if (y->pr->schedule != SCHEDULE_GPIPE || all_forwards_done(y, d))
		for (uint32_t i = y->stages_first[d]; i < y->stages_first[d + 1] && y->pr->training; i++)
			if (y->bwd_done[y->stages[i]] < m)
				consider(y, &best, d, ACTION_BACKWARD, y->stages[i], y->bwd_done[y->stages[i]]);
	for (uint32_t i = y->stages_first[d + 1]; i-- > y->stages_first[d];)
		if (may_forward(y, y->stages[i]))
			consider(y, &best, d, ACTION_FORWARD, y->stages[i], y->fwd_done[y->stages[i]]);
	return best;
}

static void play_freely(player *y)
{
	uint32_t k = y->pr->k;
	for (uint32_t d = 0; d < k; d++)
		y->next[d] = choose_action(y, d);
	for (uint32_t left = y->out->first[k]; left; left--) {
		uint32_t d = 0;
		for (uint32_t i = 1; i < k; i++)
			if (y->next[i].start_us < y->next[d].start_us)
				d = i;
		pipe_action a = y->next[d];
		perform(y, a);
		uint32_t s = a.stage;
		if (a.kind == ACTION_FORWARD && s + 1 < y->p->nstages)
			y->next[y->p->device_of[s + 1]] = choose_action(y, y->p->device_of[s + 1]);
		if (a.kind == ACTION_BACKWARD && s > 0)
			y->next[y->p->device_of[s - 1]] = choose_action(y, y->p->device_of[s - 1]);
		y->next[d] = choose_action(y, d);
	}
}

/* ---- all of it -------------------------------------------------------------------------------------------------------- */

static void play(player *y)
{
	uint32_t per_round;
	rewind_player(y);
	y->out->fits = placement_fits(y, &per_round);
	if (y->out->fits) {
		for (uint32_t d = 0; d < y->pr->k; d++)
			write_order(y, d, per_round);
		if (play_orders(y))
			return;
		y->out->fits = false;
		y->out->makespan_us = 0;
		rewind_player(y);
	}
	play_freely(y);
}

static void sum_up(const player *y, pipe_timeline *out)
{
	double busy = 0, all = out->makespan_us * y->pr->k;
	for (uint32_t i = 0; i < out->first[y->pr->k]; i++)
		busy += out->actions[i].end_us - out->actions[i].start_us;
	out->bubble = all > 0 ? fmin(1, fmax(0, 1 - busy / all)) : 0;
	out->per_second = out->makespan_us > 0 ? y->pr->microbatches / out->makespan_us * 1e6 : 0;
}

static clv_status timeline_room(const player *y, pipe_timeline *out)
{
	uint32_t each = y->pr->microbatches * (y->pr->training ? 2 : 1);
	out->first = mem_ids((size_t)y->pr->k + 1);
	TRY_MEM(out->first);
	for (uint32_t d = 0; d <= y->pr->k; d++)
		out->first[d] = y->stages_first[d] * each;
	out->actions = mem_alloc((size_t)out->first[y->pr->k] * sizeof *out->actions);
	return out->actions ? CLV_OK : fail_nomem();
}

clv_status timeline_new(const pipe_problem *pr, const pipe_partition *p, const pipe_score *s, pipe_timeline *out)
{
	player y;
	*out = (pipe_timeline){0};
	if ((uint64_t)p->nstages * pr->microbatches * 2 > MOST_ACTIONS)
		return fail(CLV_E_OVERFLOW, "%" PRIu32 " stages and %" PRIu32 " micro-batches are too many for a timeline",
		            p->nstages, pr->microbatches);
	clv_status st = player_new(pr, p, s, &y);
	y.out = out;
	if (st == CLV_OK)
		st = timeline_room(&y, out);
	if (st == CLV_OK) {
		play(&y);
		sum_up(&y, out);
	} else {
		timeline_free(out);
	}
	arena_free(&y.arena);
	return st;
}

void timeline_free(pipe_timeline *t)
{
	mem_free(t->actions);
	mem_free(t->first);
	*t = (pipe_timeline){0};
}
