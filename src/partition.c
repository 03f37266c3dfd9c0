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
	if (!p->devices)
		return fail_nomem();
	for (uint32_t d = 0; d < o->k; d++) {
		p->devices[d].speed = o->speeds ? o->speeds[d] : 1;
		p->devices[d].memory_bytes = o->memory_limits ? o->memory_limits[d] : 0;
	}
	return CLV_OK;
}

static clv_status read_links(const clv_partition_options *o, clv_partition *p)
{
	size_t links = (size_t)o->k * o->k;
	if (!o->bandwidths && o->bandwidth == 0)
		return CLV_OK;
	p->bandwidth = mem_alloc(links * sizeof *p->bandwidth);
	if (!p->bandwidth)
		return fail_nomem();
	for (size_t i = 0; i < links; i++)
		p->bandwidth[i] = o->bandwidths ? o->bandwidths[i] : o->bandwidth;
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

static int by_id(const void *a, const void *b)
{
	int64_t x = ((const node_by_id *)a)->id, y = ((const node_by_id *)b)->id;
	return (x > y) - (x < y);
}

static clv_status sort_ids(clv_partition *p)
{
	p->by_id = mem_realloc(NULL, p->g.nodes.n, sizeof *p->by_id);
	if (!p->by_id)
		return fail_nomem();
	for (uint32_t n = 0; n < p->g.nodes.n; n++)
		p->by_id[n] = (node_by_id){p->g.nodes.at[n].id, n};
	qsort(p->by_id, p->g.nodes.n, sizeof *p->by_id, by_id);
	return CLV_OK;
}

static clv_status partition_into(const clv_partition_options *o, clv_partition *p)
{
	double start = clock_seconds();
	TRY(read_problem(o, p));
	TRY(pipe_partition_run(&p->pr, o->method ? o->method : "auto", &p->p, &p->score));
	p->seconds = clock_seconds() - start;
	TRY(partition_nodes(&p->g, &p->p, &p->first, &p->nodes));
	TRY(sort_ids(p));
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
	mem_free(p->first);
	mem_free(p->nodes);
	mem_free(p->by_id);
	plan_free(p->staged);
	mem_free(p->ends);
	mem_free(p->node_stage);
	mem_free(p);
}

/* ---- what it is --------------------------------------------------------------------------------------------------- */

const char *clv_partition_method(uint32_t i)
{
	return method_name(i);
}

uint32_t clv_partition_stage_count(const clv_partition *p)
{
	return p ? p->p.nstages : 0;
}

uint32_t clv_partition_device_count(const clv_partition *p)
{
	return p ? p->pr.k : 0;
}

uint32_t clv_partition_node_count(const clv_partition *p)
{
	return p ? p->g.nodes.n : 0;
}

static clv_status check_number(const char *what, uint32_t i, uint32_t n)
{
	return i < n ? CLV_OK : fail(CLV_E_INVALID, "there is no %s %" PRIu32 ": there are %" PRIu32, what, i, n);
}

static clv_status check_place(const clv_partition *p, const void *out)
{
	return p && out ? CLV_OK : fail(CLV_E_INVALID, "a partition and a place for the answer are needed");
}

clv_status clv_partition_stage(const clv_partition *p, uint32_t stage, clv_pipe_stage *out)
{
	TRY(check_place(p, out));
	TRY(check_number("stage", stage, p->p.nstages));
	const stage_score *s = &p->score.stages[stage];
	clv_pipe_stage all = {sizeof all,  s->device,    s->nodes,         s->fwd_us,      s->bwd_us,       s->comm_us,
	                      s->in_bytes, s->out_bytes, s->relayed_bytes, s->param_bytes, s->memory_bytes, s->in_flight};
	return options_write(out, &all, sizeof all, "clv_pipe_stage");
}

const uint32_t *clv_partition_stage_nodes(const clv_partition *p, uint32_t stage)
{
	return p && stage < p->p.nstages ? p->nodes + p->first[stage] : NULL;
}

clv_status clv_partition_device(const clv_partition *p, uint32_t device, clv_pipe_device *out)
{
	TRY(check_place(p, out));
	TRY(check_number("device", device, p->pr.k));
	clv_pipe_device all = {
		.size = sizeof all, .time_us = p->score.device_us[device], .memory_bytes = p->score.device_bytes[device]};
	for (uint32_t s = 0; s < p->p.nstages; s++)
		all.stages += p->p.device_of[s] == device;
	if (p->timeline.first)
		all.actions = p->timeline.first[device + 1] - p->timeline.first[device];
	return options_write(out, &all, sizeof all, "clv_pipe_device");
}

clv_status clv_partition_node(const clv_partition *p, uint32_t position, clv_pipe_node *out)
{
	TRY(check_place(p, out));
	TRY(check_number("node", position, p->g.nodes.n));
	const pipe_node *n = &p->g.nodes.at[position];
	clv_pipe_node all = {sizeof all, n->id, n->name, p->p.stage_of[position], n->fwd_us, n->bwd_us, n->param_bytes};
	return options_write(out, &all, sizeof all, "clv_pipe_node");
}

clv_status clv_partition_find(const clv_partition *p, int64_t id, uint32_t *position)
{
	TRY(check_place(p, position));
	const node_by_id key = {id, 0};
	const node_by_id *found = bsearch(&key, p->by_id, p->g.nodes.n, sizeof key, by_id);
	if (!found)
		return fail(CLV_E_NOT_FOUND, "there is no node with id %" PRId64, id);
	*position = found->n;
	return CLV_OK;
}

const clv_plan *clv_partition_plan(const clv_partition *p, const uint32_t **ends)
{
	if (p && p->staged && ends)
		*ends = p->ends;
	return p ? p->staged : NULL;
}

const uint32_t *clv_partition_plan_stages(const clv_partition *p)
{
	return p ? p->node_stage : NULL;
}

/* ---- what it does ------------------------------------------------------------------------------------------------- */

static clv_status check_timeline(const clv_partition *p)
{
	return p->timeline.first ? CLV_OK
	                         : fail(CLV_E_OVERFLOW,
	                                "%" PRIu32 " stages and %" PRIu32 " micro-batches are too many to lay out in time",
	                                p->p.nstages, p->pr.microbatches);
}

clv_status clv_partition_action(const clv_partition *p, uint32_t device, uint32_t i, clv_pipe_action *out)
{
	TRY(check_place(p, out));
	TRY(check_timeline(p));
	TRY(check_number("device", device, p->pr.k));
	TRY(check_number("action", i, p->timeline.first[device + 1] - p->timeline.first[device]));
	const pipe_action *a = &p->timeline.actions[p->timeline.first[device] + i];
	clv_pipe_action all = {sizeof all, a->kind == ACTION_BACKWARD, a->stage, a->microbatch, a->start_us, a->end_us};
	return options_write(out, &all, sizeof all, "clv_pipe_action");
}

clv_status clv_partition_quality(const clv_partition *p, clv_pipe_quality *out)
{
	TRY(check_place(p, out));
	clv_pipe_quality all = {.size = sizeof all,
	                        .method = p->p.method,
	                        .seconds = p->seconds,
	                        .bottleneck_us = p->score.bottleneck_us,
	                        .lower_bound_us = p->score.lower_bound_us,
	                        .bound_us = fmax(p->p.bound_us, p->score.lower_bound_us),
	                        .optimal = p->p.optimal,
	                        .stopped = p->p.stopped,
	                        .cut_bytes = p->score.cut_bytes,
	                        .relay_bytes = p->score.relay_bytes,
	                        .makespan_us = p->timeline.makespan_us,
	                        .bubble = p->timeline.bubble,
	                        .per_second = p->timeline.per_second,
	                        .schedule_fits = p->timeline.fits};
	return options_write(out, &all, sizeof all, "clv_pipe_quality");
}

/* ---- text ----------------------------------------------------------------------------------------------------------- */

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
	TRY(check_timeline(p));
	return give_text(timeline_text(&p->pr, &p->timeline, &b), &b, out);
}
