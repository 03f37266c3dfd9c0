/* The public functions for pipelines: options read, a partition made and kept with all that is asked of it later. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/options.h"
#include "pipe/partition_object.h"

/* ---- making one --------------------------------------------------------------------------------------------------- */

static clv_status read_schedule(const char *name, pipe_schedule *out)
{
	*out = SCHEDULE_1F1B;
	for (int i = 0; i < SCHEDULE_COUNT && name; i++)
		if (strcmp(name, pipe_schedule_names[i]) == 0) {
			*out = (pipe_schedule)i;
			return CLV_OK;
		}
	return name ? fail(CLV_E_NOT_FOUND, "there is no schedule \"%s\"; there are gpipe, 1f1b, interleaved", name)
	            : CLV_OK;
}

static clv_status read_devices(const clv_partition_options *o, clv_partition *p)
{
	p->devices = mem_alloc(o->k * sizeof *p->devices);
	TRY_MEM(p->devices);
	for (uint32_t d = 0; d < o->k; d++) {
		p->devices[d].speed = o->speeds ? o->speeds[d] : 1;
		p->devices[d].memory_bytes = o->memory_limits ? o->memory_limits[d] : 0;
	}
	return CLV_OK;
}

static clv_status read_links(const clv_partition_options *o, clv_partition *p)
{
	size_t links = (size_t)o->k * o->k;
	if (o->bandwidth == 0)
		return CLV_OK;
	p->bandwidth = mem_alloc(links * sizeof *p->bandwidth);
	TRY_MEM(p->bandwidth);
	for (size_t i = 0; i < links; i++)
		p->bandwidth[i] = o->bandwidth;
	return CLV_OK;
}

static clv_status read_problem(const clv_partition_options *o, clv_partition *p)
{
	if (o->k == 0 || o->k > MOST_DEVICES) /* before memory is asked for */
		return fail(CLV_E_INVALID, "the number of devices is %" PRIu32 "; it can be 1 to %d", o->k, MOST_DEVICES);
	TRY(read_devices(o, p));
	TRY(read_links(o, p));
	p->pr = (pipe_problem){.g = &p->g,
	                       .devices = p->devices,
	                       .k = o->k,
	                       .bandwidth = p->bandwidth,
	                       .latency_us = o->latency_us,
	                       .microbatches = o->microbatches,
	                       .recompute = o->recompute,
	                       .training = !o->inference,
	                       .param_copies = o->param_copies != 0 ? o->param_copies
	                                       : o->inference       ? 1
	                                                            : 2,
	                       .max_stages = o->max_stages,
	                       .seed = o->seed,
	                       .seconds = o->seconds};
	if (o->objective)
		TRY(pipe_goal_read(o->objective, &p->pr.goal));
	return read_schedule(o->schedule, &p->pr.schedule);
}

static clv_status partition_into(const clv_partition_options *o, clv_partition *p)
{
	double start = clock_seconds();
	TRY(read_problem(o, p));
	TRY(pipe_partition_run(&p->pr, o->method ? o->method : "auto", &p->p, &p->score));
	p->seconds = clock_seconds() - start;
	clv_status st = timeline_new(&p->pr, &p->p, &p->score, &p->timeline);
	return st == CLV_E_OVERFLOW ? CLV_OK : st;
}

clv_status partition_object_new(pipe_graph *g, const clv_partition_options *options, clv_partition **out)
{
	clv_partition_options o = CLV_PARTITION_OPTIONS_INIT;
	clv_partition *p = mem_alloc(sizeof *p);
	clv_status st = p ? options_read(&o, sizeof o, options, "clv_partition_options") : fail_nomem();
	if (!p) {
		graph_free(g);
		return st;
	}
	p->g = *g;
	*g = (pipe_graph){0};
	if (st == CLV_OK)
		st = partition_into(&o, p);
	if (st == CLV_OK)
		*out = p;
	else
		clv_partition_free(p);
	return st;
}

clv_status clv_partition_graph(const char *json, size_t n, const clv_partition_options *options, clv_partition **out)
{
	pipe_graph g;
	if (!json || !out)
		return fail(CLV_E_INVALID, "clv_partition_graph needs a text and a place for the partition");
	TRY(graph_read(json, n, &g));
	return partition_object_new(&g, options, out);
}

void clv_partition_free(clv_partition *p)
{
	if (!p)
		return;
	graph_free(&p->g);
	partition_free(&p->p);
	score_free(&p->score);
	timeline_free(&p->timeline);
	mem_free(p->devices);
	mem_free(p->bandwidth);
	plan_free(p->staged);
	mem_free(p->ends);
	mem_free(p->node_stage);
	mem_free(p);
}

/* ---- what it is --------------------------------------------------------------------------------------------------- */

uint32_t clv_partition_stage_count(const clv_partition *p)
{
	return p ? p->p.nstages : 0;
}

uint32_t clv_partition_device_count(const clv_partition *p)
{
	return p ? p->pr.k : 0;
}

uint32_t clv_partition_stage_device(const clv_partition *p, uint32_t stage)
{
	return stage < clv_partition_stage_count(p) ? p->p.device_of[stage] : CLV_NONE;
}

const clv_plan *clv_partition_plan(const clv_partition *p, const uint32_t **ends)
{
	if (p && p->staged && ends)
		*ends = p->ends;
	return p ? p->staged : NULL;
}

/* ---- text ----------------------------------------------------------------------------------------------------------- */

static clv_status check_place(const clv_partition *p, const void *out)
{
	return p && out ? CLV_OK : fail(CLV_E_INVALID, "a partition and a place for the text are needed");
}

/* Gives what was written, or releases it. */
static clv_status give_text(clv_status st, strbuf *b, char **out)
{
	if (st == CLV_OK)
		return strbuf_take(b, out);
	strbuf_free(b);
	return st;
}

clv_status clv_partition_table(const clv_partition *p, char **out)
{
	strbuf b = STRBUF_INIT;
	TRY(check_place(p, out));
	clv_status st = partition_table(&p->pr, &p->p, &p->score, &b);
	if (st == CLV_OK && p->staged)
		st = partition_names(&p->pr, &p->p, &b);
	return give_text(st, &b, out);
}

clv_status clv_partition_json(const clv_partition *p, char **out)
{
	strbuf b = STRBUF_INIT;
	TRY(check_place(p, out));
	return give_text(partition_json(&p->pr, &p->p, &p->score, p->seconds, &b), &b, out);
}

clv_status clv_partition_graph_json(const clv_partition *p, char **out)
{
	strbuf b = STRBUF_INIT;
	TRY(check_place(p, out));
	return give_text(graph_write(&p->g, &b), &b, out);
}

clv_status clv_partition_timeline(const clv_partition *p, char **out)
{
	strbuf b = STRBUF_INIT;
	TRY(check_place(p, out));
	if (!p->timeline.first)
		return fail(CLV_E_OVERFLOW, "%" PRIu32 " stages and %" PRIu32 " micro-batches are too many to lay out in time",
		            p->p.nstages, p->pr.microbatches);
	return give_text(timeline_text(&p->pr, &p->timeline, &b), &b, out);
}
