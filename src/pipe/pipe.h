/* Pipelines: a graph of work cut into stages, and stages put on devices.
 *
 *     graph ──(problem: devices, link, schedule, limits)──▶ method ──▶ partition ──▶ score
 *
 * A *graph* is what a plan is once it is folded into blocks (blocks.c), or what a JSON file says (graph_read.c): nodes
 * with times and bytes, values that go from one node to others, order without data. A *method* (one file each, listed in
 * methods.c) puts every node into a stage and every stage on a device. A *partition* is a list of stages that is
 * topological: what a stage reads was made by itself or by an earlier one. score.c is the only judge of partitions: every
 * method optimises and every table shows what it says.
 *
 * Nothing here needs torch or a plan; blocks.c alone reads plans. */
#pragma once

#include "base/arena.h"
#include "base/clock.h"
#include "base/digraph.h"

#define PIPE_NONE UINT32_MAX

/* ---- the graph --------------------------------------------------------------------------------------------------- */

typedef struct pipe_node {
	int64_t id;            /* the caller's: of the JSON file, or the number of the block */
	const char *name;      /* in graph->names; "" if it has none */
	double fwd_us, bwd_us; /* on a device of speed 1; finite, >= 0 */
	int64_t param_bytes;   /* parameters and buffers that it reads; shared ones count with each node */
	int64_t held_bytes;    /* what its forward leaves behind for its backward, for one micro-batch */
	int64_t work_bytes;    /* more that it needs only while it runs */
} pipe_node;

/* What one node makes and others read. */
typedef struct pipe_value {
	uint32_t from;        /* node; PIPE_NONE: comes into the model, and so with stage 0 */
	uint32_t uses, nuses; /* slice of graph->uses: nodes that read it, ascending, each once, `from` not among them */
	int64_t bytes;        /* for one micro-batch */
	bool grad;            /* as many bytes come back in the backward */
	bool leaves;          /* it is an output of the model: needed after the last stage */
} pipe_value;

typedef arc pipe_edge;

/* Nodes are in an order that is topological: every edge goes from a smaller number to a larger one. */
typedef struct pipe_graph {
	VEC(pipe_node) nodes;
	VEC(pipe_value) values;
	VEC(uint32_t) uses;
	VEC(pipe_edge) order; /* `to` must not be in an earlier stage than `from`, though nothing goes between them */
	bool named;           /* nodes have names */
	arena names;

	/* made by graph_finish, in `neighbours`: all edges, each pair once, of values and of order */
	arena neighbours;
	uint32_t *succ, *pred; /* neighbours of node n: succ[succ_first[n]] … succ[succ_first[n+1]-1], ascending */
	uint32_t *succ_first, *pred_first; /* nodes.n + 1 each */
	double total_us;                   /* forward and backward of all nodes */
	double heaviest_us;                /* of one node */
} pipe_graph;

/* Sorts nodes topologically (stable: by smallest number among those that are free), checks weights (finite, not negative,
   sums that fit), and makes the neighbours. A cycle is CLV_E_INVALID and names nodes on it. */
clv_status graph_finish(pipe_graph *g);
void edges_sort(pipe_edge *at, uint32_t *n); /* ascending by from, then to; each pair once */
void graph_free(pipe_graph *g);

#define NODE_LABEL 112
const char *node_label(const pipe_graph *g, uint32_t n, char out[NODE_LABEL]); /* "conv1 (id 3)"; for errors */

/* graph_read.c: hostile JSON, {"nodes":[{"id","name","fwd_us","bwd_us","param_bytes","out_bytes"}],"edges":[[src,dst]]};
   every node makes one value of out_bytes. "id" and "fwd_us" must be there, what else is missing is 0 or "". More keys of
   a node: "held_bytes" (default: out_bytes), "work_bytes".
   Errors say what is wrong and where ("nodes[3].fwd_us is negative: -1"). */
clv_status graph_read(const char *text, size_t n, pipe_graph *out);

/* ---- the problem -------------------------------------------------------------------------------------------------- */

typedef enum pipe_schedule { SCHEDULE_GPIPE, SCHEDULE_1F1B, SCHEDULE_INTERLEAVED, SCHEDULE_COUNT } pipe_schedule;
extern const char *const pipe_schedule_names[SCHEDULE_COUNT]; /* "gpipe", "1f1b", "interleaved" */

/* What auto keeps: the smallest time of the slowest device; the most micro-batches per second in the timeline; or, of one
   stage a device, the most per second, and more stages only where they give SEVERAL_STAGES_GAIN of that. */
typedef enum pipe_goal { GOAL_BOTTLENECK, GOAL_THROUGHPUT, GOAL_SIMPLE, GOAL_COUNT } pipe_goal;
extern const char *const pipe_goal_names[GOAL_COUNT]; /* "bottleneck", "throughput", "simple" */
clv_status pipe_goal_read(const char *name, pipe_goal *out);
#define SEVERAL_STAGES_GAIN 1.05

#define MOST_DEVICES 4096
#define MOST_MICROBATCHES (1 << 16)

typedef struct pipe_device {
	double speed;         /* 1: times of the graph hold; 2: twice as fast */
	int64_t memory_bytes; /* 0: no limit */
} pipe_device;

typedef struct pipe_problem {
	const pipe_graph *g;
	const pipe_device *devices; /* k of them */
	uint32_t k;
	const double *bandwidth; /* k*k bytes per second, [from*k + to]; NULL: links cost nothing */
	double latency_us;       /* of one transfer */
	pipe_schedule schedule;
	uint32_t microbatches; /* >= 1 */
	bool recompute;        /* forward is run again in the backward; a stage keeps its inputs alone */
	bool training;         /* false: no backward */
	double param_copies;   /* memory per byte of parameters: 1 weights, 2 with gradients, 4 with Adam's two moments */
	uint32_t max_stages;   /* no method makes more; 0: as many as it likes. At least k */
	pipe_goal goal;        /* of auto */
	uint64_t seed;
	double seconds; /* when so much time has passed no new attempt is started; 0: no limit. Methods count attempts, not
	                   seconds, so that a seed gives one result unless this limit strikes */
} pipe_problem;

/* methods.c: what no partition can meet: k of 0 or over the nodes, speeds, parameters that are over all memory, … */
clv_status problem_check(const pipe_problem *pr);
double problem_lower_bound(const pipe_problem *pr); /* as pipe_score.lower_bound_us */

bool devices_alike(const pipe_problem *pr); /* speed, memory and links are the same for all */
bool memory_limited(const pipe_problem *pr);

/* Bytes over the border between two stages: forward, and back as gradients. */
typedef struct pipe_border {
	int64_t fwd, bwd;
} pipe_border;

/* score.c: of `bytes` that go together over one link; 0 for none, between stages of one device, without bandwidth. */
double transfer_us(const pipe_problem *pr, uint32_t from_device, uint32_t to_device, int64_t bytes);
/* The part of stage s's transfers over its two borders that its own work (fwd, bwd) does not hide. */
double waits_us(const pipe_problem *pr, const uint32_t *device_of, uint32_t nstages, uint32_t s,
                const pipe_border *before, const pipe_border *after, double fwd, double bwd);

/* in_flight.c: per stage, how many micro-batches it holds at once by the rule of the schedule: all (GPipe), as many as
   stages are left (1F1B), those of the warm-up (interleaved, where the placement loops; elsewhere as 1F1B). */
void schedule_in_flight(const pipe_problem *pr, const uint32_t *device_of, uint32_t nstages, uint32_t *out);
bool placement_loops(const uint32_t *device_of, uint32_t nstages, uint32_t k); /* stage s is on device s % k */
/* Interleaved: micro-batches of one chunk in a row; false where they do not divide into rounds. */
bool rounds_of(uint32_t microbatches, uint32_t k, uint32_t *per_round);
uint32_t interleaved_warmup(uint32_t k, uint32_t chunks, uint32_t per_round, uint32_t microbatches, uint32_t device);

/* ---- partitions --------------------------------------------------------------------------------------------------- */

typedef struct pipe_partition {
	uint32_t *stage_of;  /* per node */
	uint32_t *device_of; /* per stage */
	uint32_t nstages;
	/* A remark of the method on its result; 0: none. */
	double bound_us;                   /* proven: no partition of the kind it looks at has a smaller bottleneck */
	bool optimal;                      /* the bottleneck is proven to be the smallest of that kind */
	bool stopped;                      /* the time limit struck */
	double raw_cut_bytes, raw_balance; /* metis: before the stages were made acyclic; balance is heaviest part / mean */
	const char *method;                /* which method made it (auto: the one that was kept); static */
	const char *asked;                 /* which method was asked for; static. pipe_partition_run sets it */
} pipe_partition;

clv_status partition_new(const pipe_graph *g, pipe_partition *out); /* all nodes in stage 0 on device 0 */
clv_status partition_copy(const pipe_graph *g, const pipe_partition *p, pipe_partition *out);
void partition_free(pipe_partition *p);

/* Nodes by stage, ascending: those of stage s are nodes[first[s]] … nodes[first[s+1]-1]. Caller frees both. */
clv_status partition_nodes(const pipe_graph *g, const pipe_partition *p, uint32_t **first, uint32_t **nodes);

/* Where device_of_node[n] says which device runs node n, the fewest stages found by a list walk: nodes are taken in a
   topological order that stays on one device as long as something there is ready (the device with the most ready work
   next), and each change of device begins a stage. Never fails on a cycle of parts: that is what it repairs. */
clv_status partition_from_devices(const pipe_graph *g, const uint32_t *device_of_node, uint32_t k, pipe_partition *out);

/* Empty stages are dropped, neighbours on one device joined where nothing is between them, stages numbered in a
   topological order. CLV_E_INVALID if the stages have a cycle. */
clv_status partition_tidy(const pipe_problem *pr, pipe_partition *p);

/* ---- the score ----------------------------------------------------------------------------------------------------- */

typedef struct stage_score {
	uint32_t device, nodes;
	double fwd_us, bwd_us;       /* on its device; bwd includes the second forward when recomputing */
	double comm_us;              /* of transfers, the part that the stage's own work does not hide */
	int64_t in_bytes, out_bytes; /* over links, in the forward; what is relayed through the stage included */
	int64_t grad_bytes;          /* come over the link from the next stage, in the backward */
	int64_t relayed_bytes;       /* come in only to go on */
	int64_t param_bytes;
	int64_t memory_bytes; /* parameters with copies, held for the micro-batches in flight, work */
	uint32_t in_flight;   /* micro-batches */
} stage_score;

typedef struct pipe_score {
	double bottleneck_us;  /* the slowest device: its stages' time for one micro-batch, with comm_us */
	double lower_bound_us; /* of every partition on these devices: all work spread evenly, and the heaviest node */
	double cut_bytes;      /* each value once for every other stage that reads it */
	double relay_bytes;    /* each value once for every stage that only passes it on */
	double over_bytes;     /* over the memory limits, summed over devices; 0: it fits */
	double *device_us;     /* k */
	int64_t *device_bytes; /* k */
	stage_score *stages;   /* nstages */
	arena arena;           /* of the three arrays */
} pipe_score;

clv_status score_new(const pipe_problem *pr, const pipe_partition *p, pipe_score *out);
void score_free(pipe_score *s);

/* a is better: it fits better, else its bottleneck is smaller by more than a billionth, else it cuts fewer bytes, else it
   has fewer stages. */
bool score_better(const pipe_score *a, uint32_t a_stages, const pipe_score *b, uint32_t b_stages);

/* ---- methods -------------------------------------------------------------------------------------------------------- */

/* A stage waits for the part of its transfers that is longer than its work, so that it takes
       max(fwd, longer of in and out) + max(bwd, longer of gradients in and out)
   where all values that go over one border of stages go as one transfer, also those that are only relayed. */

/* Each gives a tidy partition, or an error. What does not fit the memory is not their error: the caller looks at
   over_bytes. They end in a time that is polynomial in the graph and do not depend on clocks unless `seconds` strikes. */
typedef clv_status (*pipe_method)(const pipe_problem *pr, pipe_partition *out);

clv_status pipe_acyclic(const pipe_problem *pr, pipe_partition *out);
clv_status pipe_multilevel(const pipe_problem *pr, pipe_partition *out);
clv_status pipe_metis(const pipe_problem *pr, pipe_partition *out);
clv_status pipe_mpipe(const pipe_problem *pr, pipe_partition *out);
clv_status pipe_pipedream(const pipe_problem *pr, pipe_partition *out);
clv_status pipe_exact(const pipe_problem *pr, pipe_partition *out);
clv_status pipe_auto(const pipe_problem *pr, pipe_partition *out);

/* methods.c: by name, and their names in a row; NULL: there is none. */
pipe_method method_named(const char *name);
const char *method_name(size_t i);

/* The best of several partitions. Starts as all zero bytes; keeper_offer tidies the partition and takes it (also when it
   fails, p is empty after), keeper_end gives the best out, or releases it when st is a failure. */
typedef struct keeper {
	bool has;
	pipe_partition best;
	pipe_score score; /* of the best */
} keeper;
clv_status keeper_offer(const pipe_problem *pr, keeper *kept, pipe_partition *p);
clv_status keeper_end(keeper *kept, clv_status st, pipe_partition *out);

/* pipedream.c: the best cut of this order into one stage per device; order is topological. Memory limits are kept where
   that is possible. */
clv_status order_cut(const pipe_problem *pr, const uint32_t *order, pipe_partition *out);

/* What methods end with: partition_tidy, and every device gets a stage, because each rank of a real pipeline needs one. */
clv_status partition_fill(const pipe_problem *pr, pipe_partition *p);

/* problem_check, the method, partition_fill, score. A partition over a memory limit is CLV_E_UNSUPPORTED and says which
   device lacks how much. */
clv_status pipe_partition_run(const pipe_problem *pr, const char *method, pipe_partition *out, pipe_score *score);

/* ---- small things the methods share (random.c, order.c) ------------------------------------------------------------- */

/* Topological orders of the nodes: as they are numbered; depth first, where of those that become ready by a node the
   first, that with the longest way to the end, or that with the shortest is next. */
typedef enum pipe_order { ORDER_GIVEN, ORDER_DEPTH, ORDER_LONG, ORDER_SHORT, ORDER_COUNT } pipe_order;
clv_status order_new(const pipe_graph *g, pipe_order kind, uint32_t *out /* nodes.n, caller's */);
/* Bytes that cross the place before order[i], i = 0 … nodes.n. */
clv_status order_crossing(const pipe_graph *g, const uint32_t *order, pipe_border *out /* nodes.n + 1 */);

typedef struct pipe_random {
	uint64_t s;
} pipe_random;
uint64_t random_next(pipe_random *r);
uint32_t pipe_random_below(pipe_random *r, uint32_t n); /* n > 0 */

static inline double node_us(const pipe_problem *pr, uint32_t n)
{
	const pipe_node *x = &pr->g->nodes.at[n];
	return pr->training ? x->fwd_us * (pr->recompute ? 2 : 1) + x->bwd_us : x->fwd_us;
}

/* Bytes that node n needs while it runs. Without a backward nothing is held: what it makes is there only meanwhile. */
static inline int64_t node_work_bytes(const pipe_problem *pr, uint32_t n)
{
	const pipe_node *x = &pr->g->nodes.at[n];
	return x->work_bytes + (pr->training ? 0 : x->held_bytes);
}

/* Backward of node n on a device of speed 1, with the second forward when recomputing. */
static inline double node_backward_us(const pipe_problem *pr, uint32_t n)
{
	const pipe_node *x = &pr->g->nodes.at[n];
	return pr->training ? x->bwd_us + (pr->recompute ? x->fwd_us : 0) : 0;
}

/* ---- schedules (schedule.c): what a partition does in time ------------------------------------------------------------ */

typedef enum pipe_action_kind { ACTION_FORWARD, ACTION_BACKWARD } pipe_action_kind;

typedef struct pipe_action {
	uint32_t stage, microbatch;
	uint8_t kind; /* pipe_action_kind */
	double start_us, end_us;
} pipe_action;

/* Every action waits for what it reads: forward (s, m) for (s-1, m); backward (s, m) for backward (s+1, m), that of the
   last stage for its forward. Each border of stages carries one transfer after the other.
   What each device does, in order: the actions of device d are actions[first[d]] … actions[first[d+1]-1]. Works for every
   placement: where the named schedule fits the placement its order is that schedule's, elsewhere a list schedule with the
   same rule (backward first, in flight at most as the schedule allows) that cannot deadlock. */
typedef struct pipe_timeline {
	pipe_action *actions;
	uint32_t *first; /* k + 1 */
	double makespan_us;
	double bubble;     /* share of device time that is idle, 0 … 1 */
	double per_second; /* micro-batches */
	bool fits;         /* the placement is the one that the named schedule is for */
} pipe_timeline;

/* CLV_E_OVERFLOW: there are over MOST_ACTIONS, which nobody looks at. */
#define MOST_ACTIONS (1u << 24)
clv_status timeline_new(const pipe_problem *pr, const pipe_partition *p, const pipe_score *s, pipe_timeline *out);
void timeline_free(pipe_timeline *t);

double score_gap(const pipe_score *s); /* of the bottleneck over the lower bound: 0.02 is two percent */

/* ---- text (table.c, result_write.c, graph_write.c) ---------------------------------------------------------------------------------- */

/* The table for people: per stage device, time, share, memory, parameters, bytes in and out; bound, gap, bubble. */
clv_status partition_table(const pipe_problem *pr, const pipe_partition *p, const pipe_score *s, strbuf *b);
/* The nodes of each stage by name, one line per stage: "stage 0        conv1 … relu_3, add_7". */
clv_status partition_names(const pipe_problem *pr, const pipe_partition *p, strbuf *b);
/* What each device does, one line per device: "device 0: F0.0 F0.1 B0.0 …", kind, stage and micro-batch. */
clv_status timeline_text(const pipe_problem *pr, const pipe_timeline *t, strbuf *b);
/* {"method","k","seed","bottleneck_us","lower_bound_us","cut_bytes","seconds","stages":[{"nodes":[id…],"device":int}…]} and
   more keys; one line. */
clv_status partition_json(const pipe_problem *pr, const pipe_partition *p, const pipe_score *s, double seconds,
                          strbuf *b);

/* graph_write.c: what graph_read reads; out_bytes are the sum of what others read of a node. */
clv_status graph_write(const pipe_graph *g, strbuf *b);
