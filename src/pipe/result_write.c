/* Writes a partition as JSON: first the keys that every partitioner writes, then the rest. */
#include <inttypes.h>
#include <math.h>

#include "base/member.h"
#include "pipe/pipe.h"

static void put_stage(strbuf *b, const pipe_graph *g, const stage_score *s, const uint32_t *nodes, uint32_t n)
{
	member_open(b, NULL, '{');
	member_open(b, "nodes", '[');
	for (uint32_t i = 0; i < n; i++)
		member_int(b, NULL, g->nodes.at[nodes[i]].id);
	strbuf_putc(b, ']');
	member_int(b, "device", s->device);
	member_number(b, "fwd_us", s->fwd_us);
	member_number(b, "bwd_us", s->bwd_us);
	member_number(b, "comm_us", s->comm_us);
	member_int(b, "param_bytes", s->param_bytes);
	member_int(b, "memory_bytes", s->memory_bytes);
	member_int(b, "in_bytes", s->in_bytes);
	member_int(b, "out_bytes", s->out_bytes);
	member_int(b, "relayed_bytes", s->relayed_bytes);
	member_int(b, "in_flight", s->in_flight);
	if (g->named) {
		member_open(b, "names", '[');
		for (uint32_t i = 0; i < n; i++)
			member_text(b, NULL, g->nodes.at[nodes[i]].name);
		strbuf_putc(b, ']');
	}
	strbuf_putc(b, '}');
}

static clv_status put_stages(strbuf *b, const pipe_graph *g, const pipe_partition *p, const pipe_score *s)
{
	uint32_t *first, *nodes;
	TRY(partition_nodes(g, p, &first, &nodes));
	member_open(b, "stages", '[');
	for (uint32_t i = 0; i < p->nstages; i++)
		put_stage(b, g, &s->stages[i], nodes + first[i], first[i + 1] - first[i]);
	strbuf_putc(b, ']');
	mem_free(first);
	mem_free(nodes);
	return CLV_OK;
}

static void put_devices(strbuf *b, const pipe_problem *pr, const pipe_score *s)
{
	member_open(b, "device_us", '[');
	for (uint32_t d = 0; d < pr->k; d++)
		member_number(b, NULL, s->device_us[d]);
	strbuf_putc(b, ']');
	member_open(b, "device_bytes", '[');
	for (uint32_t d = 0; d < pr->k; d++)
		member_int(b, NULL, s->device_bytes[d]);
	strbuf_putc(b, ']');
}

static clv_status put_schedule(strbuf *b, const pipe_problem *pr, const pipe_partition *p, const pipe_score *s)
{
	pipe_timeline t;
	member_text(b, "schedule", pipe_schedule_names[pr->schedule]);
	member_int(b, "microbatches", pr->microbatches);
	clv_status st = timeline_new(pr, p, s, &t);
	if (st == CLV_E_OVERFLOW)
		return CLV_OK;
	TRY(st);
	member_bool(b, "schedule_fits", t.fits);
	member_number(b, "makespan_us", t.makespan_us);
	member_number(b, "bubble", t.bubble);
	member_number(b, "microbatches_per_second", t.per_second);
	timeline_free(&t);
	return CLV_OK;
}

clv_status partition_json(const pipe_problem *pr, const pipe_partition *p, const pipe_score *s, double seconds,
                          strbuf *b)
{
	strbuf_putc(b, '{');
	member_text(b, "method", p->asked ? p->asked : p->method);
	member_int(b, "k", pr->k);
	member_key(b, "seed");
	strbuf_printf(b, "%" PRIu64, pr->seed);
	member_number(b, "bottleneck_us", s->bottleneck_us);
	member_number(b, "lower_bound_us", s->lower_bound_us);
	member_number(b, "cut_bytes", s->cut_bytes);
	member_number(b, "seconds", seconds);
	TRY(put_stages(b, pr->g, p, s));
	member_text(b, "made_by", p->method);
	member_bool(b, "optimal", p->optimal);
	member_bool(b, "stopped", p->stopped);
	member_number(b, "bound_us", fmax(p->bound_us, s->lower_bound_us));
	member_number(b, "gap", score_gap(s));
	member_number(b, "relay_bytes", s->relay_bytes);
	member_bool(b, "fits", s->over_bytes == 0);
	put_devices(b, pr, s);
	if (p->raw_balance > 0) {
		member_number(b, "raw_cut_bytes", p->raw_cut_bytes);
		member_number(b, "raw_balance", p->raw_balance);
	}
	TRY(put_schedule(b, pr, p, s));
	strbuf_puts(b, "}\n");
	return b->failed ? fail_nomem() : CLV_OK;
}
