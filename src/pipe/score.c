/* Scores partitions: the time and memory that each stage and each device needs for one micro-batch.
 *
 * A stage sends only to the next stage. So the border between two stages is crossed by every value that was made before
 * it and is needed after it, and all values of a micro-batch cross in one transfer. Links work in both directions at once
 * and in parallel to the device: a stage waits only for the part of a transfer that takes longer than its own work. */
#include "pipe/pipe.h"

#include <math.h>
#include <string.h>

/* What is added up per stage before it is scored. Bytes, but for the times. */
typedef struct stage_sums {
	double fwd, bwd;    /* us on a device of speed 1 */
	int64_t held, work; /* work: the most that one node needs */
	int64_t reads;      /* values of other stages that it reads itself */
	int64_t passes;     /* values that it neither makes nor reads, and that later stages need */
	pipe_border border; /* after the stage */
	uint32_t mark;      /* the last value that was counted as read here, from 1 */
} stage_sums;

static void add_nodes(const pipe_problem *pr, const pipe_partition *p, stage_sums *sums, stage_score *stages)
{
	for (uint32_t n = 0; n < pr->g->nodes.n; n++) {
		const pipe_node *x = &pr->g->nodes.at[n];
		uint32_t s = p->stage_of[n];
		sums[s].fwd += x->fwd_us;
		sums[s].bwd += x->bwd_us;
		sums[s].held += x->held_bytes;
		int64_t work = node_work_bytes(pr, n);
		sums[s].work = work > sums[s].work ? work : sums[s].work;
		stages[s].param_bytes += x->param_bytes;
		stages[s].nodes++;
	}
}

/* Counts a value once at each border it crosses and at each stage that reads it. Borders get differences, which are
   summed up later. */
static void add_value(const pipe_problem *pr, const pipe_partition *p, const pipe_value *x, uint32_t mark,
                      stage_sums *sums, pipe_score *out)
{
	uint32_t from = x->from == PIPE_NONE ? 0 : p->stage_of[x->from];
	uint32_t last = x->leaves ? p->nstages - 1 : from, readers = 0;
	int64_t grad = x->grad ? x->bytes : 0;
	for (uint32_t i = 0; i < x->nuses; i++) {
		uint32_t s = p->stage_of[pr->g->uses.at[x->uses + i]];
		if (sums[s].mark == mark)
			continue;
		sums[s].mark = mark;
		if (s != from || x->from == PIPE_NONE)
			sums[s].reads += x->bytes;
		if (s == from)
			continue;
		readers++;
		last = s > last ? s : last;
		sums[s].passes -= x->bytes; /* of the sum below: a stage does not only pass on what it reads */
	}
	sums[from].border.fwd += x->bytes;
	sums[from].border.bwd += grad;
	sums[last].border.fwd -= x->bytes;
	sums[last].border.bwd -= grad;
	out->cut_bytes += (double)x->bytes * readers;
	out->relay_bytes += (double)x->bytes * (last - from - readers);
	if (x->leaves && last != from && sums[last].mark != mark)
		sums[last].passes -= x->bytes; /* it arrives there */
}

static void add_values(const pipe_problem *pr, const pipe_partition *p, stage_sums *sums, pipe_score *out)
{
	for (uint32_t v = 0; v < pr->g->values.n; v++)
		add_value(pr, p, &pr->g->values.at[v], v + 1, sums, out);
	for (uint32_t s = 1; s < p->nstages; s++) {
		sums[s].border.fwd += sums[s - 1].border.fwd;
		sums[s].border.bwd += sums[s - 1].border.bwd;
		sums[s].passes += sums[s - 1].border.fwd; /* all that comes in, less what it is for */
	}
}

double transfer_us(const pipe_problem *pr, uint32_t from, uint32_t to, int64_t bytes)
{
	if (!pr->bandwidth || from == to || bytes == 0)
		return 0;
	return (double)bytes / pr->bandwidth[(size_t)from * pr->k + to] * 1e6 + pr->latency_us;
}

double waits_us(const pipe_problem *pr, const uint32_t *device_of, uint32_t nstages, uint32_t s,
                const pipe_border *before, const pipe_border *after, double fwd, double bwd)
{
	uint32_t d = device_of[s];
	double in = 0, out = 0, grad_in = 0, grad_out = 0;
	if (s > 0) {
		in = transfer_us(pr, device_of[s - 1], d, before->fwd);
		grad_out = transfer_us(pr, d, device_of[s - 1], before->bwd);
	}
	if (s + 1 < nstages) {
		out = transfer_us(pr, d, device_of[s + 1], after->fwd);
		grad_in = transfer_us(pr, device_of[s + 1], d, after->bwd);
	}
	double waits = fmax(0, fmax(in, out) - fwd);
	return pr->training ? waits + fmax(0, fmax(grad_in, grad_out) - bwd) : waits;
}

static void score_stage(const pipe_problem *pr, const pipe_partition *p, const stage_sums *sums, uint32_t s,
                        stage_score *out)
{
	static const pipe_border none = {0};
	const uint32_t *device_of = p->device_of;
	double speed = pr->devices[device_of[s]].speed;
	const pipe_border *before = s > 0 ? &sums[s - 1].border : &none, *after = &sums[s].border;
	bool to_other = s + 1 < p->nstages && device_of[s + 1] != device_of[s];
	out->device = device_of[s];
	out->fwd_us = sums[s].fwd / speed;
	out->bwd_us = pr->training ? (sums[s].bwd + (pr->recompute ? sums[s].fwd : 0)) / speed : 0;
	out->comm_us = waits_us(pr, device_of, p->nstages, s, before, after, out->fwd_us, out->bwd_us);
	out->in_bytes = s > 0 && device_of[s - 1] != device_of[s] ? before->fwd : 0;
	out->out_bytes = to_other ? after->fwd : 0;
	out->grad_bytes = to_other && pr->training ? after->bwd : 0;
	out->relayed_bytes = s > 0 ? sums[s].passes : 0;
}

static int64_t whole_bytes(double bytes)
{
	return bytes >= 9.2e18 ? INT64_MAX : (int64_t)ceil(bytes);
}

/* What a stage keeps all the time. */
static double kept_bytes(const pipe_problem *pr, const stage_sums *sums, const stage_score *stage)
{
	double params = (double)stage->param_bytes * pr->param_copies;
	if (!pr->training)
		return params;
	return params + (double)(pr->recompute ? sums->reads : sums->held) * stage->in_flight;
}

/* What it needs only while it runs: stages of one device need it one after the other. */
static double work_bytes(const pipe_problem *pr, const stage_sums *sums)
{
	return (double)sums->work + (pr->training && pr->recompute ? (double)sums->held : 0);
}

/* Per device: what its stages keep, and the most work of one. */
static void score_memory(const pipe_problem *pr, const pipe_partition *p, const stage_sums *sums, double *kept,
                         double *work, pipe_score *out)
{
	for (uint32_t s = 0; s < p->nstages; s++) {
		stage_score *stage = &out->stages[s];
		double keeps = kept_bytes(pr, &sums[s], stage), works = work_bytes(pr, &sums[s]);
		stage->memory_bytes = whole_bytes(keeps + works);
		kept[stage->device] += keeps;
		work[stage->device] = fmax(work[stage->device], works);
	}
	for (uint32_t d = 0; d < pr->k; d++) {
		int64_t limit = pr->devices[d].memory_bytes;
		out->device_bytes[d] = whole_bytes(kept[d] + work[d]);
		if (limit && out->device_bytes[d] > limit)
			out->over_bytes += (double)(out->device_bytes[d] - limit);
	}
}

double problem_lower_bound(const pipe_problem *pr)
{
	double total = 0, heaviest = 0, speeds = 0, fastest = 0;
	for (uint32_t n = 0; n < pr->g->nodes.n; n++) {
		double us = node_us(pr, n);
		total += us;
		heaviest = fmax(heaviest, us);
	}
	for (uint32_t d = 0; d < pr->k; d++) {
		speeds += pr->devices[d].speed;
		fastest = fmax(fastest, pr->devices[d].speed);
	}
	return fmax(total / speeds, heaviest / fastest);
}

/* in_flight, kept, work: scratch per stage, per device, per device. */
static void score_into(const pipe_problem *pr, const pipe_partition *p, stage_sums *sums, uint32_t *in_flight,
                       double *kept, double *work, pipe_score *out)
{
	add_nodes(pr, p, sums, out->stages);
	add_values(pr, p, sums, out);
	schedule_in_flight(pr, p->device_of, p->nstages, in_flight);
	for (uint32_t s = 0; s < p->nstages; s++) {
		stage_score *stage = &out->stages[s];
		score_stage(pr, p, sums, s, stage);
		stage->in_flight = in_flight[s];
		out->device_us[stage->device] += stage->fwd_us + stage->bwd_us + stage->comm_us;
	}
	for (uint32_t d = 0; d < pr->k; d++)
		out->bottleneck_us = fmax(out->bottleneck_us, out->device_us[d]);
	/* sums in another order may differ in their last digit */
	out->lower_bound_us = fmin(problem_lower_bound(pr), out->bottleneck_us);
	score_memory(pr, p, sums, kept, work, out);
}

clv_status score_new(const pipe_problem *pr, const pipe_partition *p, pipe_score *out)
{
	arena scratch = {0};
	size_t k = pr->k, stages = p->nstages;
	*out = (pipe_score){0};
	stage_sums *sums = arena_array(&scratch, stages, sizeof *sums);
	uint32_t *in_flight = arena_ids(&scratch, stages);
	double *kept = arena_array(&scratch, k, sizeof *kept), *work = arena_array(&scratch, k, sizeof *work);
	out->device_us = arena_array(&out->arena, k, sizeof *out->device_us);
	out->device_bytes = arena_array(&out->arena, k, sizeof *out->device_bytes);
	out->stages = arena_array(&out->arena, stages, sizeof *out->stages);
	clv_status st = scratch.failed ? fail_nomem() : arena_status(&out->arena);
	if (st == CLV_OK)
		score_into(pr, p, sums, in_flight, kept, work, out);
	else
		score_free(out);
	arena_free(&scratch);
	return st;
}

void score_free(pipe_score *s)
{
	arena_free(&s->arena);
	*s = (pipe_score){0};
}

double score_gap(const pipe_score *s)
{
	return s->lower_bound_us > 0 ? fmax(0, s->bottleneck_us / s->lower_bound_us - 1) : 0;
}

bool score_better(const pipe_score *a, uint32_t a_stages, const pipe_score *b, uint32_t b_stages)
{
	if (a->over_bytes != b->over_bytes)
		return a->over_bytes < b->over_bytes;
	double least = fmin(a->bottleneck_us, b->bottleneck_us);
	if (fabs(a->bottleneck_us - b->bottleneck_us) > least * 1e-9)
		return a->bottleneck_us < b->bottleneck_us;
	double a_bytes = a->cut_bytes + a->relay_bytes, b_bytes = b->cut_bytes + b->relay_bytes;
	if (a_bytes != b_bytes)
		return a_bytes < b_bytes;
	return a_stages < b_stages;
}
