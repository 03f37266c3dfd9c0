/* The struct behind clv_partition: a partition with its graph and its problem. */
#pragma once

#include "pipe/pipe.h"
#include "plan/plan.h"

struct clv_partition {
	pipe_graph g;
	pipe_problem pr; /* of g and the two arrays below */
	pipe_device *devices;
	double *bandwidth; /* NULL: links cost nothing */
	pipe_partition p;
	pipe_score score;
	pipe_timeline timeline; /* without actions where there are too many */
	double seconds;
	/* of a plan alone; NULL otherwise */
	plan *staged;         /* nodes stage by stage */
	node_id *ends;        /* per stage: the node after its last one in `staged` */
	uint32_t *node_stage; /* per node of the plan that was given */
};

/* src/api/partition.c: partitions a graph that graph_finish made. g is taken, also on failure, and is empty after. Options are
   the caller's (NULL: the defaults). Freed by clv_partition_free. */
clv_status partition_object_new(pipe_graph *g, const clv_partition_options *options, clv_partition **out);
