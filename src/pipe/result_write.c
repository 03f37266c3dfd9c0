/* Writes a partition as JSON: first the keys that every partitioner writes, then the rest. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "pipe/pipe.h"

static void put_key(strbuf *b, const char *key)
{
	if (b->n && b->at && b->at[b->n - 1] != '{' && b->at[b->n - 1] != '[')
		strbuf_putc(b, ',');
	if (key)
		strbuf_printf(b, "\"%s\":", key);
}

static void put_text(strbuf *b, const char *key, const char *s)
{
	put_key(b, key);
	strbuf_json(b, s, strlen(s));
}

static void put_int(strbuf *b, const char *key, int64_t n)
{
	put_key(b, key);
	strbuf_int(b, n);
}

static void put_bool(strbuf *b, const char *key, bool x)
{
	put_key(b, key);
	strbuf_puts(b, x ? "true" : "false");
}

/* Sums of bytes too, which are doubles that hold whole numbers. */
static void put_number(strbuf *b, const char *key, double x)
{
	if (x == floor(x) && fabs(x) < 9007199254740992.0) {
		put_int(b, key, (int64_t)x);
		return;
	}
	put_key(b, key);
	strbuf_double(b, x);
}

static void put_stage(strbuf *b, const pipe_graph *g, const stage_score *s, const uint32_t *nodes, uint32_t n)
{
	put_key(b, NULL);
	strbuf_puts(b, "{\"nodes\":[");
	for (uint32_t i = 0; i < n; i++)
		put_int(b, NULL, g->nodes.at[nodes[i]].id);
	strbuf_putc(b, ']');
	put_int(b, "device", s->device);
	put_number(b, "fwd_us", s->fwd_us);
	put_number(b, "bwd_us", s->bwd_us);
	put_number(b, "comm_us", s->comm_us);
	put_int(b, "param_bytes", s->param_bytes);
	put_int(b, "memory_bytes", s->memory_bytes);
	put_int(b, "in_bytes", s->in_bytes);
	put_int(b, "out_bytes", s->out_bytes);
	put_int(b, "relayed_bytes", s->relayed_bytes);
	put_int(b, "in_flight", s->in_flight);
	if (g->named) {
		put_key(b, "names");
		strbuf_putc(b, '[');
		for (uint32_t i = 0; i < n; i++)
			put_text(b, NULL, g->nodes.at[nodes[i]].name);
		strbuf_putc(b, ']');
	}
	strbuf_putc(b, '}');
}

static clv_status put_stages(strbuf *b, const pipe_graph *g, const pipe_partition *p, const pipe_score *s)
{
	uint32_t *first, *nodes;
	TRY(partition_nodes(g, p, &first, &nodes));
	put_key(b, "stages");
	strbuf_putc(b, '[');
	for (uint32_t i = 0; i < p->nstages; i++)
		put_stage(b, g, &s->stages[i], nodes + first[i], first[i + 1] - first[i]);
	strbuf_putc(b, ']');
	mem_free(first);
	mem_free(nodes);
	return CLV_OK;
}

static void put_devices(strbuf *b, const pipe_problem *pr, const pipe_score *s)
{
	put_key(b, "device_us");
	strbuf_putc(b, '[');
	for (uint32_t d = 0; d < pr->k; d++)
		put_number(b, NULL, s->device_us[d]);
	strbuf_putc(b, ']');
	put_key(b, "device_bytes");
	strbuf_putc(b, '[');
	for (uint32_t d = 0; d < pr->k; d++)
		put_int(b, NULL, s->device_bytes[d]);
	strbuf_putc(b, ']');
}

static clv_status put_schedule(strbuf *b, const pipe_problem *pr, const pipe_partition *p, const pipe_score *s)
{
	pipe_timeline t;
	put_text(b, "schedule", pipe_schedule_names[pr->schedule]);
	put_int(b, "microbatches", pr->microbatches);
	clv_status st = timeline_new(pr, p, s, &t);
	if (st == CLV_E_OVERFLOW)
		return CLV_OK;
	TRY(st);
	put_bool(b, "schedule_fits", t.fits);
	put_number(b, "makespan_us", t.makespan_us);
	put_number(b, "bubble", t.bubble);
	put_number(b, "microbatches_per_second", t.per_second);
	timeline_free(&t);
	return CLV_OK;
}

clv_status partition_json(const pipe_problem *pr, const pipe_partition *p, const pipe_score *s, double seconds,
                          strbuf *b)
{
	strbuf_putc(b, '{');
	put_text(b, "method", p->asked ? p->asked : p->method);
	put_int(b, "k", pr->k);
	put_key(b, "seed");
	strbuf_printf(b, "%" PRIu64, pr->seed);
	put_number(b, "bottleneck_us", s->bottleneck_us);
	put_number(b, "lower_bound_us", s->lower_bound_us);
	put_number(b, "cut_bytes", s->cut_bytes);
	put_number(b, "seconds", seconds);
	TRY(put_stages(b, pr->g, p, s));
	put_text(b, "made_by", p->method);
	put_bool(b, "optimal", p->optimal);
	put_bool(b, "stopped", p->stopped);
	put_number(b, "bound_us", fmax(p->bound_us, s->lower_bound_us));
	put_number(b, "gap", score_gap(s));
	put_number(b, "relay_bytes", s->relay_bytes);
	put_bool(b, "fits", s->over_bytes == 0);
	put_devices(b, pr, s);
	if (p->raw_balance > 0) {
		put_number(b, "raw_cut_bytes", p->raw_cut_bytes);
		put_number(b, "raw_balance", p->raw_balance);
	}
	TRY(put_schedule(b, pr, p, s));
	strbuf_puts(b, "}\n");
	return b->failed ? fail_nomem() : CLV_OK;
}
