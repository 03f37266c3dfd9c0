/* What tests of pipelines share: graphs of text, random graphs, problems, and a check of partitions. */
#ifndef TESTS_PIPES_H
#define TESTS_PIPES_H

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "pipe/pipe.h"
#include "support.h"

static inline pipe_graph read_graph(const char *text)
{
	pipe_graph g;
	OK(graph_read(text, strlen(text), &g));
	return g;
}

static inline pipe_problem problem_of(const pipe_graph *g, const pipe_device *devices, uint32_t k)
{
	return (pipe_problem){.g = g,
	                      .devices = devices,
	                      .k = k,
	                      .schedule = SCHEDULE_1F1B,
	                      .microbatches = 4,
	                      .training = true,
	                      .param_copies = 2};
}

/* n nodes with random times; each but the first reads up to `reads` of the `span` before it. */
static inline pipe_graph random_graph(pipe_random *r, uint32_t n, uint32_t reads, uint32_t span)
{
	pipe_graph g = {0};
	for (uint32_t i = 0; i < n; i++) {
		pipe_node x = {.id = 1000 + (int64_t)i,
		               .name = "",
		               .fwd_us = pipe_random_below(r, 100),
		               .bwd_us = pipe_random_below(r, 200),
		               .param_bytes = pipe_random_below(r, 1000),
		               .held_bytes = pipe_random_below(r, 1000),
		               .work_bytes = pipe_random_below(r, 100)};
		OK(vec_push(&g.nodes, x));
	}
	for (uint32_t i = 0; i < n; i++) {
		pipe_value v = {
			.from = i, .uses = g.uses.n, .bytes = pipe_random_below(r, 500), .grad = pipe_random_below(r, 4) > 0};
		for (uint32_t j = i + 1; j < n && j <= i + span; j++)
			if (pipe_random_below(r, span) < reads) {
				OK(vec_push(&g.uses, j));
				v.nuses++;
			}
		OK(vec_push(&g.values, v));
	}
	OK(graph_finish(&g));
	return g;
}

/* Stages are topological, none is empty, devices exist, and neighbours are on different ones. */
static inline void assert_partition(const pipe_problem *pr, const pipe_partition *p)
{
	uint32_t *count = mem_alloc(p->nstages * sizeof *count);
	for (uint32_t n = 0; n < pr->g->nodes.n; n++) {
		assert_true(p->stage_of[n] < p->nstages);
		count[p->stage_of[n]]++;
		for (uint32_t i = pr->g->succ_first[n]; i < pr->g->succ_first[n + 1]; i++)
			assert_true(p->stage_of[n] <= p->stage_of[pr->g->succ[i]]);
	}
	for (uint32_t s = 0; s < p->nstages; s++) {
		assert_true(count[s] > 0);
		assert_true(p->device_of[s] < pr->k);
		assert_true(s == 0 || p->device_of[s] != p->device_of[s - 1]);
	}
	mem_free(count);
}

#endif
