/* pipedream: the best cut of a chain into one stage per device, devices in their order.
 *
 *     best[m][i] = min over j < i of max(best[m-1][j], time of nodes j … i-1 on device m with its transfers)
 *
 * Nodes are put in a row (several topological orders are tried), and times come from prefix sums. The best j of each i is
 * found in a tree over all j, whose nodes know the least of what lies below them: what cannot be better than the best so
 * far is passed over. So it is exact, and takes about devices * nodes * log nodes steps, however slow the links are. */
#include <math.h>
#include <string.h>

#include "pipe/pipe.h"

/* Where a stage may begin, or several places where it may, with the least of each. */
typedef struct begins {
	double before;         /* the slowest of the devices before */
	double in_fwd, in_bwd; /* transfers over the border that it begins with */
} begins;

typedef struct row {
	arena arena;
	const pipe_problem *pr;
	uint32_t n;
	const uint32_t *order; /* borrowed */
	double *fwd, *bwd;     /* prefix sums, n + 1; of recomputing included */
	double *params, *held; /* prefix sums of bytes, n + 1 */
	int64_t *work;         /* per place */
	pipe_border *cross;    /* bytes over the border before place i, n + 1 */
	double floor;          /* no cut is below */
	double *before;        /* n + 1: the slowest of the devices so far, that end there */
	uint32_t *choice;      /* [device][end]: begin of its stage */
	uint32_t *devices;     /* 0, 1, … */
	uint32_t *in_flight;   /* per device */
	/* of one device */
	begins *tree;     /* children of x are 2x and 2x + 1, the leaf of place j is width + j */
	uint32_t width;   /* a power of two, over n */
	uint32_t *lowest; /* per end: the first begin that fits its memory */
	uint32_t *deque;  /* places whose work is the most of what follows */
} row;

static clv_status row_new(const pipe_problem *pr, const uint32_t *order, row *c)
{
	arena *a = &c->arena;
	size_t n = (size_t)pr->g->nodes.n + 1;
	*c = (row){.pr = pr, .n = pr->g->nodes.n, .order = order, .width = 1};
	while (c->width < n)
		c->width *= 2;
	c->floor = problem_lower_bound(pr);
	c->fwd = arena_array(a, n, sizeof *c->fwd);
	c->bwd = arena_array(a, n, sizeof *c->bwd);
	c->params = arena_array(a, n, sizeof *c->params);
	c->held = arena_array(a, n, sizeof *c->held);
	c->work = arena_array(a, n, sizeof *c->work);
	c->cross = arena_array(a, n, sizeof *c->cross);
	c->before = arena_array(a, n, sizeof *c->before);
	c->choice = arena_array(a, n * pr->k, sizeof *c->choice); /* n and k are less than 2^32 */
	c->tree = arena_array(a, 2 * (size_t)c->width, sizeof *c->tree);
	c->lowest = arena_ids(a, n);
	c->deque = arena_ids(a, n);
	c->in_flight = arena_ids(a, pr->k);
	c->devices = arena_ids(a, pr->k);
	return arena_status(a);
}

static void sum_nodes(row *c)
{
	const pipe_problem *pr = c->pr;
	for (uint32_t i = 0; i < c->n; i++) {
		const pipe_node *x = &pr->g->nodes.at[c->order[i]];
		c->fwd[i + 1] = c->fwd[i] + x->fwd_us;
		c->bwd[i + 1] = c->bwd[i] + node_backward_us(pr, c->order[i]);
		c->params[i + 1] = c->params[i] + (double)x->param_bytes * pr->param_copies;
		c->held[i + 1] = c->held[i] + (pr->training ? (double)x->held_bytes : 0);
		c->work[i] = node_work_bytes(pr, c->order[i]);
	}
}

/* The first begin that fits, for each end; memory only grows with a stage, so both go upwards. What a recomputing stage
   keeps of its inputs is left to the score. */
static void memory_of(row *c, uint32_t m, uint32_t in_flight)
{
	const pipe_problem *pr = c->pr;
	double limit = (double)pr->devices[m].memory_bytes, times = pr->recompute ? 1 : in_flight;
	uint32_t begin = 0, head = 0, tail = 0;
	for (uint32_t end = 1; end <= c->n; end++) {
		while (tail > head && c->work[c->deque[tail - 1]] <= c->work[end - 1])
			tail--;
		c->deque[tail++] = end - 1;
		while (begin < end && limit > 0 &&
		       c->params[end] - c->params[begin] + (c->held[end] - c->held[begin]) * times +
		               (double)c->work[c->deque[head]] >
		           limit) {
			begin++;
			while (head < tail && c->deque[head] < begin)
				head++;
		}
		c->lowest[end] = begin;
	}
}

/* A leaf for each begin of a stage of device m, and above them the least of both children. */
static void plant_tree(row *c, uint32_t m)
{
	const pipe_problem *pr = c->pr;
	for (uint32_t j = 0; j < c->width; j++) {
		begins *leaf = &c->tree[c->width + j];
		*leaf = (begins){j < c->n ? c->before[j] : INFINITY, 0, 0};
		if (!pr->bandwidth || m == 0 || j >= c->n)
			continue;
		leaf->in_fwd = transfer_us(pr, m - 1, m, c->cross[j].fwd);
		leaf->in_bwd = pr->training ? transfer_us(pr, m, m - 1, c->cross[j].bwd) : 0;
	}
	for (uint32_t x = c->width - 1; x > 0; x--) {
		const begins *a = &c->tree[2 * x], *b = a + 1;
		c->tree[x] = (begins){fmin(a->before, b->before), fmin(a->in_fwd, b->in_fwd), fmin(a->in_bwd, b->in_bwd)};
	}
}

/* Stages of one device with one end. */
typedef struct query {
	double speed, out_fwd, out_bwd; /* transfers over the border that they end with */
	uint32_t first, end;            /* begins are first … end - 1 */
	double best;
	uint32_t choice; /* its begin */
} query;

/* The least that the slowest of all devices so far can take with a begin below node x, which stands for `width` places
   from `from` on. Of a leaf that is what it takes. */
static double least_us(const row *c, const query *q, uint32_t x, uint32_t from, uint32_t width)
{
	uint32_t last = from + width < q->end ? from + width - 1 : q->end - 1;
	if (from >= q->end || last < q->first)
		return INFINITY;
	const begins *b = &c->tree[x];
	double fwd = (c->fwd[q->end] - c->fwd[last]) / q->speed, bwd = (c->bwd[q->end] - c->bwd[last]) / q->speed;
	double us = fmax(fwd, fmax(b->in_fwd, q->out_fwd)) + fmax(bwd, fmax(b->in_bwd, q->out_bwd));
	return fmax(c->floor, fmax(b->before, us));
}

/* Begins below node x, of which none is below `us`: the half that promises more comes first. */
static void find_begin(const row *c, query *q, uint32_t x, uint32_t from, uint32_t width, double us)
{
	if (us >= q->best)
		return;
	if (width == 1) {
		q->best = us;
		q->choice = from;
		return;
	}
	width /= 2;
	double left = least_us(c, q, 2 * x, from, width), right = least_us(c, q, 2 * x + 1, from + width, width);
	if (left < right)
		find_begin(c, q, 2 * x, from, width, left);
	find_begin(c, q, 2 * x + 1, from + width, width, right);
	if (left >= right)
		find_begin(c, q, 2 * x, from, width, left);
}

static void add_device(row *c, uint32_t m)
{
	const pipe_problem *pr = c->pr;
	bool links = pr->bandwidth && m + 1 < pr->k;
	plant_tree(c, m);
	c->before[0] = INFINITY;
	for (uint32_t end = 1; end <= c->n; end++) {
		query q = {.speed = pr->devices[m].speed, .first = c->lowest[end], .end = end, .best = INFINITY};
		c->before[end] = INFINITY;
		if (end <= m || c->n - end < pr->k - 1 - m) /* each device gets a node */
			continue;
		q.out_fwd = links ? transfer_us(pr, m, m + 1, c->cross[end].fwd) : 0;
		q.out_bwd = links && pr->training ? transfer_us(pr, m + 1, m, c->cross[end].bwd) : 0;
		find_begin(c, &q, 1, 0, c->width, c->floor);
		c->before[end] = q.best;
		c->choice[(size_t)m * (c->n + 1) + end] = q.choice;
	}
}

/* The time of the slowest device, infinite when the chain does not fit the memory. */
static double cut_row(row *c, bool limits)
{
	for (uint32_t i = 0; i <= c->n; i++)
		c->before[i] = i ? INFINITY : 0;
	for (uint32_t m = 0; m < c->pr->k; m++) {
		if (limits)
			memory_of(c, m, c->in_flight[m]);
		else
			memset(c->lowest, 0, ((size_t)c->n + 1) * sizeof *c->lowest);
		add_device(c, m);
	}
	return c->before[c->n];
}

static void read_choices(const row *c, pipe_partition *out)
{
	uint32_t end = c->n;
	for (uint32_t m = c->pr->k; m-- > 0;) {
		uint32_t begin = c->choice[(size_t)m * (c->n + 1) + end];
		for (uint32_t i = begin; i < end; i++)
			out->stage_of[c->order[i]] = m;
		out->device_of[m] = c->devices[m];
		end = begin;
	}
	out->nstages = c->pr->k;
}

clv_status order_cut(const pipe_problem *pr, const uint32_t *order, pipe_partition *out)
{
	row c;
	clv_status st = row_new(pr, order, &c);
	if (st == CLV_OK)
		st = order_crossing(pr->g, order, c.cross);
	if (st == CLV_OK)
		st = partition_new(pr->g, out);
	if (st == CLV_OK) {
		for (uint32_t m = 0; m < pr->k; m++)
			c.devices[m] = m;
		schedule_in_flight(pr, c.devices, pr->k, c.in_flight);
		sum_nodes(&c);
		if (isinf(cut_row(&c, true)))
			cut_row(&c, false);
		read_choices(&c, out);
	}
	arena_free(&c.arena);
	return st;
}

clv_status pipe_pipedream(const pipe_problem *pr, pipe_partition *out)
{
	clv_status st = CLV_OK;
	uint32_t *order = mem_ids(pr->g->nodes.n);
	keeper kept = {0};
	TRY_MEM(order);
	for (int kind = 0; kind < ORDER_COUNT && st == CLV_OK; kind++) {
		pipe_partition p;
		st = order_new(pr->g, (pipe_order)kind, order);
		if (st == CLV_OK)
			st = order_cut(pr, order, &p);
		if (st == CLV_OK)
			st = keeper_offer(pr, &kept, &p);
	}
	mem_free(order);
	return keeper_end(&kept, st, out);
}
