/* The one judge of partitions: what each stage and each device has to do for one micro-batch, and what it has to hold.
 *
 * Stages talk to the next one alone, so what goes over the border between two stages is every value that was made at or
 * before it and is needed after it, and all of a micro-batch goes as one transfer. Links work in both directions at once
 * and beside the device's own work: a stage waits only for the part that takes longer than that work. */
#include "pipe/pipe.h"

#include <math.h>
#include <string.h>

/* What only the sums need; all per stage but `border`, `grad_border`: after stage s. */
typedef struct sums {
	double *fwd, *bwd;             /* us on a device of speed 1 */
	int64_t *held, *work, *reads;  /* bytes; reads: values of other stages that it reads itself */
	int64_t *border, *grad_border; /* bytes that go on */
	int64_t *passes;               /* bytes that go over the stage: not made there, not read there, needed later */
	uint32_t *mark, *in_flight;
} sums;

static void sums_free(sums *m)
{
	mem_free(m->fwd);
	mem_free(m->bwd);
	mem_free(m->held);
	mem_free(m->work);
	mem_free(m->reads);
	mem_free(m->border);
	mem_free(m->grad_border);
	mem_free(m->passes);
	mem_free(m->mark);
	mem_free(m->in_flight);
}

static clv_status sums_new(uint32_t stages, sums *m)
{
	size_t n = (size_t)stages + 1;
	*m = (sums){mem_alloc(n * sizeof(double)),
	            mem_alloc(n * sizeof(double)),
	            mem_alloc(n * sizeof(int64_t)),
	            mem_alloc(n * sizeof(int64_t)),
	            mem_alloc(n * sizeof(int64_t)),
	            mem_alloc(n * sizeof(int64_t)),
	            mem_alloc(n * sizeof(int64_t)),
	            mem_alloc(n * sizeof(int64_t)),
	            mem_ids(n),
	            mem_ids(n)};
	if (m->fwd && m->bwd && m->held && m->work && m->reads && m->border && m->grad_border && m->passes && m->mark &&
	    m->in_flight)
		return CLV_OK;
	sums_free(m);
	return fail_nomem();
}

static void add_nodes(const pipe_problem *pr, const pipe_partition *p, sums *m, stage_score *stages)
{
	for (uint32_t n = 0; n < pr->g->nodes.n; n++) {
		const pipe_node *x = &pr->g->nodes.at[n];
		uint32_t s = p->stage_of[n];
		m->fwd[s] += x->fwd_us;
		m->bwd[s] += x->bwd_us;
		m->held[s] += x->held_bytes;
		/* without a backward nothing is held, but what a node makes is there while it runs */
		int64_t work = x->work_bytes + (pr->training ? 0 : x->held_bytes);
		m->work[s] = work > m->work[s] ? work : m->work[s];
		stages[s].param_bytes += x->param_bytes;
		stages[s].nodes++;
	}
}

/* Where one value goes: each border is counted once, each stage that reads it once. Differences; summed up later. */
static void add_value(const pipe_problem *pr, const pipe_partition *p, const pipe_value *x, uint32_t id, sums *m,
                      pipe_score *out)
{
	uint32_t from = x->from == PIPE_NONE ? 0 : p->stage_of[x->from];
	uint32_t last = x->leaves ? p->nstages - 1 : from, readers = 0;
	for (uint32_t i = 0; i < x->nuses; i++) {
		uint32_t s = p->stage_of[pr->g->uses.at[x->uses + i]];
		if (m->mark[s] == id)
			continue;
		m->mark[s] = id;
		if (s != from || x->from == PIPE_NONE)
			m->reads[s] += x->bytes;
		if (s == from)
			continue;
		readers++;
		last = s > last ? s : last;
		m->passes[s] -= x->bytes; /* of the sum that is made below: what it reads it does not only pass on */
	}
	m->border[from] += x->bytes;
	m->border[last] -= x->bytes;
	if (x->grad) {
		m->grad_border[from] += x->bytes;
		m->grad_border[last] -= x->bytes;
	}
	out->cut_bytes += (double)x->bytes * readers;
	out->relay_bytes += (double)x->bytes * (last - from - readers);
	if (x->leaves && last != from && m->mark[last] != id)
		m->passes[last] -= x->bytes; /* it arrives there */
}

static void add_values(const pipe_problem *pr, const pipe_partition *p, sums *m, pipe_score *out)
{
	for (uint32_t v = 0; v < pr->g->values.n; v++)
		add_value(pr, p, &pr->g->values.at[v], v, m, out);
	for (uint32_t s = 1; s < p->nstages; s++) {
		m->border[s] += m->border[s - 1];
		m->grad_border[s] += m->grad_border[s - 1];
		m->passes[s] += m->border[s - 1]; /* all that comes in, less what it is for */
	}
}

/* ---- time ------------------------------------------------------------------------------------------------------------ */

double transfer_us(const pipe_problem *pr, uint32_t from, uint32_t to, int64_t bytes)
{
	if (!pr->bandwidth || from == to || bytes == 0)
		return 0;
	return (double)bytes / pr->bandwidth[(size_t)from * pr->k + to] * 1e6 + pr->latency_us;
}

/* What of the transfers of stage s is not hidden by its work, forward and backward. */
static double comm_us(const pipe_problem *pr, const pipe_partition *p, const sums *m, uint32_t s, double fwd,
                      double bwd)
{
	uint32_t d = p->device_of[s];
	double in = 0, out = 0, grad_in = 0, grad_out = 0;
	if (s > 0) {
		in = transfer_us(pr, p->device_of[s - 1], d, m->border[s - 1]);
		grad_out = transfer_us(pr, d, p->device_of[s - 1], m->grad_border[s - 1]);
	}
	if (s + 1 < p->nstages) {
		out = transfer_us(pr, d, p->device_of[s + 1], m->border[s]);
		grad_in = transfer_us(pr, p->device_of[s + 1], d, m->grad_border[s]);
	}
	double waits = fmax(0, fmax(in, out) - fwd);
	return pr->training ? waits + fmax(0, fmax(grad_in, grad_out) - bwd) : waits;
}

static void score_stage(const pipe_problem *pr, const pipe_partition *p, const sums *m, uint32_t s, stage_score *out)
{
	double speed = pr->devices[p->device_of[s]].speed;
	bool from_other = s > 0 && p->device_of[s - 1] != p->device_of[s];
	bool to_other = s + 1 < p->nstages && p->device_of[s + 1] != p->device_of[s];
	out->device = p->device_of[s];
	out->fwd_us = m->fwd[s] / speed;
	out->bwd_us = pr->training ? (m->bwd[s] + (pr->recompute ? m->fwd[s] : 0)) / speed : 0;
	out->comm_us = comm_us(pr, p, m, s, out->fwd_us, out->bwd_us);
	out->in_bytes = from_other ? m->border[s - 1] : 0;
	out->out_bytes = to_other ? m->border[s] : 0;
	out->grad_bytes = to_other && pr->training ? m->grad_border[s] : 0;
	out->relayed_bytes = s > 0 ? m->passes[s] : 0;
}

/* ---- memory ----------------------------------------------------------------------------------------------------------- */

static int64_t whole_bytes(double bytes)
{
	return bytes >= 9.2e18 ? INT64_MAX : (int64_t)ceil(bytes);
}

/* What a stage needs beside `work`, which stages of one device need one after the other. */
static double kept_bytes(const pipe_problem *pr, const sums *m, const stage_score *stage, uint32_t s)
{
	double params = (double)stage->param_bytes * pr->param_copies;
	if (!pr->training)
		return params;
	return params + (double)(pr->recompute ? m->reads[s] : m->held[s]) * stage->in_flight;
}

static double work_bytes(const pipe_problem *pr, const sums *m, uint32_t s)
{
	return (double)m->work[s] + (pr->training && pr->recompute ? (double)m->held[s] : 0);
}

/* Per device: what its stages keep, and the most work of one. */
static clv_status score_memory(const pipe_problem *pr, const pipe_partition *p, const sums *m, pipe_score *out)
{
	double *kept = mem_alloc((size_t)pr->k * 2 * sizeof *kept), *work = kept + pr->k;
	if (!kept)
		return fail_nomem();
	for (uint32_t s = 0; s < p->nstages; s++) {
		stage_score *stage = &out->stages[s];
		stage->in_flight = m->in_flight[s];
		double keeps = kept_bytes(pr, m, stage, s), works = work_bytes(pr, m, s);
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
	mem_free(kept);
	return CLV_OK;
}

/* ---- all of it -------------------------------------------------------------------------------------------------------- */

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

static clv_status score_into(const pipe_problem *pr, const pipe_partition *p, sums *m, pipe_score *out)
{
	add_nodes(pr, p, m, out->stages);
	add_values(pr, p, m, out);
	schedule_in_flight(pr, p->device_of, p->nstages, m->in_flight);
	for (uint32_t s = 0; s < p->nstages; s++) {
		stage_score *stage = &out->stages[s];
		score_stage(pr, p, m, s, stage);
		out->device_us[stage->device] += stage->fwd_us + stage->bwd_us + stage->comm_us;
	}
	for (uint32_t d = 0; d < pr->k; d++)
		out->bottleneck_us = fmax(out->bottleneck_us, out->device_us[d]);
	/* sums in another order may differ in their last digit */
	out->lower_bound_us = fmin(problem_lower_bound(pr), out->bottleneck_us);
	return score_memory(pr, p, m, out);
}

clv_status score_new(const pipe_problem *pr, const pipe_partition *p, pipe_score *out)
{
	sums m;
	*out = (pipe_score){0};
	TRY(sums_new(p->nstages, &m));
	out->device_us = mem_alloc((size_t)pr->k * sizeof *out->device_us);
	out->device_bytes = mem_alloc((size_t)pr->k * sizeof *out->device_bytes);
	out->stages = mem_alloc((size_t)p->nstages * sizeof *out->stages);
	clv_status st = out->device_us && out->device_bytes && out->stages ? score_into(pr, p, &m, out) : fail_nomem();
	sums_free(&m);
	if (st != CLV_OK)
		score_free(out);
	return st;
}

void score_free(pipe_score *s)
{
	mem_free(s->device_us);
	mem_free(s->device_bytes);
	mem_free(s->stages);
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
