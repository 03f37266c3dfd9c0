/* Partitions: nodes in stages, stages on devices.
 *
 * partition_from_devices and partition_tidy make stages topological by the same kind of walk: it takes units that are
 * ready, from one device as long as that has any, and begins a stage with each change of device. The units are nodes in
 * the first, existing stages in the second. */
#include "base/heap.h"
#include "pipe/pipe.h"

#include <string.h>

clv_status partition_new(const pipe_graph *g, pipe_partition *out)
{
	*out = (pipe_partition){.nstages = 1};
	out->stage_of = mem_alloc((size_t)g->nodes.n * sizeof *out->stage_of);
	out->device_of =
		mem_alloc((size_t)g->nodes.n * sizeof *out->device_of); /* there are never more stages than nodes */
	if (out->stage_of && out->device_of)
		return CLV_OK;
	partition_free(out);
	return fail_nomem();
}

clv_status partition_copy(const pipe_graph *g, const pipe_partition *p, pipe_partition *out)
{
	pipe_partition copy;
	TRY(partition_new(g, &copy));
	memcpy(copy.stage_of, p->stage_of, g->nodes.n * sizeof *copy.stage_of);
	memcpy(copy.device_of, p->device_of, p->nstages * sizeof *copy.device_of);
	uint32_t *stage_of = copy.stage_of, *device_of = copy.device_of;
	*out = *p;
	out->stage_of = stage_of;
	out->device_of = device_of;
	return CLV_OK;
}

void partition_free(pipe_partition *p)
{
	mem_free(p->stage_of);
	mem_free(p->device_of);
	*p = (pipe_partition){0};
}

clv_status partition_nodes(const pipe_graph *g, const pipe_partition *p, uint32_t **first, uint32_t **nodes)
{
	uint32_t *begin = mem_alloc(((size_t)p->nstages + 2) * sizeof *begin), *list = mem_ids(g->nodes.n);
	if (!begin || !list) {
		mem_free(begin);
		mem_free(list);
		return fail_nomem();
	}
	for (uint32_t n = 0; n < g->nodes.n; n++)
		begin[p->stage_of[n] + 2]++;
	for (uint32_t s = 0; s < p->nstages; s++)
		begin[s + 2] += begin[s + 1];
	/* begin[s + 1] is where the next node of s goes, and in the end where those of s + 1 begin */
	for (uint32_t n = 0; n < g->nodes.n; n++)
		list[begin[p->stage_of[n] + 1]++] = n;
	*first = begin;
	*nodes = list;
	return CLV_OK;
}

/* ---- the walk ------------------------------------------------------------------------------------------------------- */

/* Nodes that are ready, one list per device. */
typedef struct walk {
	arena arena;
	uint32_t *waits;       /* per node: predecessors that were not taken */
	uint32_t *next, *head; /* lists: per node, per device */
	uint32_t *count;       /* per device */
	double *ready_us;      /* per device */
} walk;

static clv_status walk_new(const pipe_graph *g, uint32_t k, walk *w)
{
	*w = (walk){0};
	w->waits = arena_ids(&w->arena, g->nodes.n);
	w->next = arena_ids(&w->arena, g->nodes.n);
	w->head = arena_ids(&w->arena, k);
	w->count = arena_array(&w->arena, k, sizeof *w->count);
	w->ready_us = arena_array(&w->arena, k, sizeof *w->ready_us);
	return arena_status(&w->arena);
}

static void add_ready(walk *w, const pipe_graph *g, const uint32_t *device_of_node, uint32_t n)
{
	uint32_t d = device_of_node[n];
	w->next[n] = w->head[d];
	w->head[d] = n;
	w->count[d]++;
	w->ready_us[d] += g->nodes.at[n].fwd_us + g->nodes.at[n].bwd_us;
}

/* The device with the most ready work, PIPE_NONE when nothing is ready. */
static uint32_t busiest(const walk *w, uint32_t k)
{
	uint32_t best = PIPE_NONE;
	for (uint32_t d = 0; d < k; d++) {
		if (w->count[d] == 0)
			continue;
		if (best == PIPE_NONE || w->ready_us[d] > w->ready_us[best] ||
		    (w->ready_us[d] == w->ready_us[best] && w->count[d] > w->count[best]))
			best = d;
	}
	return best;
}

/* Takes all that device d can do now, and what becomes ready there by that. */
static void take_device(walk *w, const pipe_graph *g, const uint32_t *device_of_node, uint32_t d, uint32_t stage,
                        uint32_t *stage_of)
{
	while (w->head[d] != PIPE_NONE) {
		uint32_t n = w->head[d];
		w->head[d] = w->next[n];
		stage_of[n] = stage;
		for (uint32_t i = g->succ_first[n]; i < g->succ_first[n + 1]; i++)
			if (--w->waits[g->succ[i]] == 0)
				add_ready(w, g, device_of_node, g->succ[i]);
	}
	w->count[d] = 0;
	w->ready_us[d] = 0;
}

clv_status partition_from_devices(const pipe_graph *g, const uint32_t *device_of_node, uint32_t k, pipe_partition *out)
{
	walk w;
	clv_status st = walk_new(g, k, &w);
	if (st == CLV_OK)
		st = partition_new(g, out);
	if (st == CLV_OK) {
		out->nstages = 0;
		for (uint32_t n = 0; n < g->nodes.n; n++) {
			w.waits[n] = g->pred_first[n + 1] - g->pred_first[n];
			if (w.waits[n] == 0)
				add_ready(&w, g, device_of_node, n);
		}
		for (uint32_t d = busiest(&w, k); d != PIPE_NONE; d = busiest(&w, k)) {
			take_device(&w, g, device_of_node, d, out->nstages, out->stage_of);
			out->device_of[out->nstages++] = d;
		}
	}
	arena_free(&w.arena);
	return st;
}

/* ---- tidying -------------------------------------------------------------------------------------------------------- */

/* Stages as a graph; a pair of stages may have more than one edge. */
typedef struct quotient {
	arena arena;
	uint32_t *first, *to; /* edges of stage s: to[first[s]] … to[first[s+1]-1] */
	uint32_t *waits;      /* per stage: edges that come in */
	uint32_t *number;     /* per stage: its new number */
	uint32_t *device;     /* per new stage */
	bool *used;           /* per stage: has nodes */
	heap ready;           /* stages that can come next; those that have a number already are skipped */
	heap *ready_on;       /* the same per device */
	uint32_t *room;       /* of the heaps of devices, one after the other */
} quotient;

static clv_status quotient_new(const pipe_graph *g, size_t stages, uint32_t k, quotient *q)
{
	arena *a = &q->arena;
	*q = (quotient){0};
	q->first = arena_array(a, stages + 2, sizeof *q->first);
	q->to = arena_ids(a, g->succ_first[g->nodes.n]);
	q->waits = arena_array(a, stages, sizeof *q->waits);
	q->number = arena_ids(a, stages);
	q->device = arena_ids(a, stages);
	q->used = arena_alloc(a, stages);
	q->ready.at = arena_ids(a, stages);
	q->ready_on = arena_array(a, k, sizeof *q->ready_on);
	q->room = arena_ids(a, stages);
	return arena_status(a);
}

static void quotient_edges(const pipe_graph *g, const pipe_partition *p, quotient *q)
{
	for (uint32_t n = 0; n < g->nodes.n; n++) {
		uint32_t from = p->stage_of[n];
		q->used[from] = true;
		for (uint32_t i = g->succ_first[n]; i < g->succ_first[n + 1]; i++)
			if (p->stage_of[g->succ[i]] != from)
				q->first[from + 2]++;
	}
	for (uint32_t s = 0; s < p->nstages; s++)
		q->first[s + 2] += q->first[s + 1];
	/* first[s + 1] is where the next edge of s goes: in the end, where s ends */
	for (uint32_t n = 0; n < g->nodes.n; n++)
		for (uint32_t i = g->succ_first[n]; i < g->succ_first[n + 1]; i++) {
			uint32_t from = p->stage_of[n], to = p->stage_of[g->succ[i]];
			if (from == to)
				continue;
			q->to[q->first[from + 1]++] = to;
			q->waits[to]++;
		}
}

/* A heap for each device, with room for all its stages. */
static void share_room(const pipe_partition *p, quotient *q, uint32_t k)
{
	uint32_t at = 0;
	for (uint32_t s = 0; s < p->nstages; s++)
		q->ready_on[p->device_of[s]].n++;
	for (uint32_t d = 0; d < k; d++) {
		q->ready_on[d].at = q->room + at;
		at += q->ready_on[d].n;
		q->ready_on[d].n = 0;
	}
}

static void push_stage(const pipe_partition *p, quotient *q, uint32_t s)
{
	heap_push(&q->ready, s);
	heap_push(&q->ready_on[p->device_of[s]], s);
}

static uint32_t pop_stage(const quotient *q, heap *from)
{
	while (from->n) {
		uint32_t s = heap_pop(from);
		if (q->number[s] == PIPE_NONE)
			return s;
	}
	return PIPE_NONE;
}

/* The ready stage with the smallest number, on `device` if there is one there. */
static uint32_t next_stage(quotient *q, uint32_t device)
{
	uint32_t s = device == PIPE_NONE ? PIPE_NONE : pop_stage(q, &q->ready_on[device]);
	return s == PIPE_NONE ? pop_stage(q, &q->ready) : s;
}

/* Numbers of the stages in the order of the walk; how many there are then. */
static clv_status number_stages(const pipe_partition *p, quotient *q, uint32_t *out)
{
	uint32_t made = 0, left = 0, device = PIPE_NONE;
	for (uint32_t s = 0; s < p->nstages; s++) {
		left += q->used[s];
		if (q->used[s] && q->waits[s] == 0)
			push_stage(p, q, s);
	}
	for (; left; left--) {
		uint32_t s = next_stage(q, device);
		if (s == PIPE_NONE)
			return fail(CLV_E_INVALID, "the stages of the partition wait for each other in a cycle");
		if (p->device_of[s] != device) {
			device = p->device_of[s];
			q->device[made++] = device;
		}
		q->number[s] = made - 1;
		for (uint32_t i = q->first[s]; i < q->first[s + 1]; i++)
			if (--q->waits[q->to[i]] == 0)
				push_stage(p, q, q->to[i]);
	}
	*out = made;
	return CLV_OK;
}

clv_status partition_tidy(const pipe_problem *pr, pipe_partition *p)
{
	const pipe_graph *g = pr->g;
	uint32_t made = 0;
	quotient q;
	clv_status st = quotient_new(g, p->nstages, pr->k, &q);
	if (st == CLV_OK) {
		quotient_edges(g, p, &q);
		share_room(p, &q, pr->k);
		st = number_stages(p, &q, &made);
	}
	if (st == CLV_OK) {
		for (uint32_t n = 0; n < g->nodes.n; n++)
			p->stage_of[n] = q.number[p->stage_of[n]];
		memcpy(p->device_of, q.device, made * sizeof *p->device_of);
		p->nstages = made;
	}
	arena_free(&q.arena);
	return st;
}
