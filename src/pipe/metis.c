/* metis: one part of the undirected graph for each device, made into stages without cycles.
 *
 * libmetis cuts as few bytes as it can into parts whose work is in proportion to the devices' speeds, and whose memory to
 * their limits if there are any. It ignores directions, so its parts depend on each other in circles; a walk over the
 * graph (partition_from_devices) splits each part into as many stages as that takes. Those are too many and too small:
 * they are joined with their neighbours for several numbers of stages, put on devices anew where that is better, and
 * polished; the best is kept. raw_cut_bytes and raw_balance describe METIS's own parts.
 *
 * libmetis draws from rand() of the C library, changes signal handlers while it runs, and prints if a subgraph has fewer
 * vertices than parts. Hence the lock, the random state of its own (the program's is restored), and, where it might
 * print, bisections one by one, each with enough vertices. */
#if !defined(_DEFAULT_SOURCE)
#define _DEFAULT_SOURCE /* initstate, setstate */
#endif
#include "pipe/polish.h"

#ifndef CLEAVE_METIS

clv_status pipe_metis(const pipe_problem *pr, pipe_partition *out)
{
	(void)pr;
	(void)out;
	return fail(CLV_E_UNSUPPORTED,
	            "this build is without METIS; install it (on Debian: apt-get install libmetis-dev) and "
	            "build again, or use another method, such as mpipe");
}

#else

#include <math.h>
#include <metis.h>
#include <pthread.h>

#define WORK_UNITS (1 << 24) /* all work together: METIS computes shares in single precision */
#define EDGE_UNITS (1 << 28) /* all edges together: METIS adds them up, twice each, in 31 bits */
#define KWAY_VERTICES 20     /* of weight, for each part; with fewer, bisections one by one */
#define SMALLEST_SHARE 1e-5  /* of a device, however slow: METIS refuses 0 */

typedef struct metis_graph {
	arena arena;
	idx_t n, ncon;
	idx_t *first, *to, *bytes; /* edges, both ways */
	idx_t *weights;            /* ncon for each vertex */
} metis_graph;

static clv_status metis_graph_alloc(metis_graph *m, size_t n, size_t ncon, size_t edges)
{
	if (n > IDX_MAX / 4 || edges > IDX_MAX / 4)
		return fail(CLV_E_UNSUPPORTED, "METIS cannot take a graph of %zu nodes and %zu edges; use another method", n,
		            edges);
	*m = (metis_graph){.n = (idx_t)n, .ncon = (idx_t)ncon};
	m->first = arena_array(&m->arena, n + 1, sizeof *m->first);
	m->to = arena_array(&m->arena, 2 * edges, sizeof *m->to);
	m->bytes = arena_array(&m->arena, 2 * edges, sizeof *m->bytes);
	m->weights = arena_array(&m->arena, n * ncon, sizeof *m->weights);
	return arena_status(&m->arena);
}

/* ---- the undirected graph ---------------------------------------------------------------------------------------- */

static uint32_t edge_find(const pipe_graph *g, uint32_t from, uint32_t to)
{
	uint32_t lo = g->succ_first[from], hi = g->succ_first[from + 1];
	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;
		if (g->succ[mid] < to)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* Bytes of every edge, as g->succ lists them. */
static void edges_weigh(const pipe_graph *g, double *bytes)
{
	for (uint32_t v = 0; v < g->values.n; v++) {
		const pipe_value *x = &g->values.at[v];
		for (uint32_t u = 0; x->from != PIPE_NONE && u < x->nuses; u++)
			bytes[edge_find(g, x->from, g->uses.at[x->uses + u])] += (double)x->bytes;
	}
}

static void edges_fill(const pipe_graph *g, const double *bytes, metis_graph *m)
{
	uint32_t edges = g->succ_first[g->nodes.n];
	double all = 0;
	for (uint32_t e = 0; e < edges; e++)
		all += bytes[e];
	double scale = all > EDGE_UNITS ? EDGE_UNITS / all : 1;
	idx_t at = 0;
	for (uint32_t n = 0; n < g->nodes.n; n++) {
		m->first[n] = at;
		for (uint32_t e = g->pred_first[n]; e < g->pred_first[n + 1]; e++, at++) {
			m->to[at] = (idx_t)g->pred[e];
			m->bytes[at] = 1 + (idx_t)(bytes[edge_find(g, g->pred[e], n)] * scale);
		}
		for (uint32_t e = g->succ_first[n]; e < g->succ_first[n + 1]; e++, at++) {
			m->to[at] = (idx_t)g->succ[e];
			m->bytes[at] = 1 + (idx_t)(bytes[e] * scale);
		}
	}
	m->first[g->nodes.n] = at;
}

/* What node n takes of the work (0) or of the memory (1). */
static double node_share(const pipe_problem *pr, uint32_t n, uint32_t constraint)
{
	const pipe_node *x = &pr->g->nodes.at[n];
	if (constraint == 0)
		return node_us(pr, n);
	return (double)x->param_bytes * pr->param_copies + (pr->training ? (double)x->held_bytes : 0);
}

/* A vertex counts for no more than a part should have: heavier ones would leave METIS with parts of no vertices. */
static void weights_fill(const pipe_problem *pr, metis_graph *m)
{
	for (uint32_t c = 0; c < (uint32_t)m->ncon; c++) {
		double all = 0;
		for (uint32_t n = 0; n < pr->g->nodes.n; n++)
			all += node_share(pr, n, c);
		for (uint32_t n = 0; n < pr->g->nodes.n; n++) {
			double share = all > 0 ? node_share(pr, n, c) / all : 1.0 / pr->g->nodes.n;
			share = share * pr->k > 1 ? 1.0 / pr->k : share;
			m->weights[(size_t)n * (size_t)m->ncon + c] = (idx_t)ceil(share * WORK_UNITS);
		}
	}
}

static clv_status metis_graph_make(const pipe_problem *pr, metis_graph *m)
{
	const pipe_graph *g = pr->g;
	uint32_t edges = g->succ_first[g->nodes.n];
	TRY(metis_graph_alloc(m, g->nodes.n, memory_limited(pr) ? 2 : 1, edges));
	double *bytes = arena_array(&m->arena, edges, sizeof *bytes);
	TRY(arena_status(&m->arena));
	edges_weigh(g, bytes);
	edges_fill(g, bytes, m);
	weights_fill(pr, m);
	return CLV_OK;
}

/* ---- calls of METIS ---------------------------------------------------------------------------------------------- */

/* What a device should get of the work (0) or of the memory (1). */
static double device_share(const pipe_problem *pr, uint32_t d, idx_t constraint)
{
	if (constraint == 0)
		return pr->devices[d].speed;
	double limit = (double)pr->devices[d].memory_bytes;
	for (uint32_t e = 0; limit <= 0 && e < pr->k; e++) /* no limit: as much as all that have one */
		limit -= (double)pr->devices[e].memory_bytes;
	return fabs(limit);
}

/* Shares of parts first … first + n - 1: of each, or, with a `half`, of those before it and of the rest. */
static void shares_fill(const pipe_problem *pr, uint32_t first, uint32_t n, uint32_t half, idx_t ncon, real_t *shares)
{
	for (idx_t c = 0; c < ncon; c++) {
		double all = 0, sum = 0;
		for (uint32_t d = first; d < first + n; d++)
			all += device_share(pr, d, c);
		for (uint32_t d = first; d < first + n; d++) {
			double share = fmax(device_share(pr, d, c) / all, SMALLEST_SHARE);
			sum += share;
			uint32_t group = half ? d - first >= half : d - first;
			shares[(size_t)group * (size_t)ncon + (size_t)c] += (real_t)share;
		}
		for (uint32_t i = 0; i < (half ? 2 : n); i++)
			shares[(size_t)i * (size_t)ncon + (size_t)c] /= (real_t)sum;
	}
}

/* rand() and the signal handlers are the whole process's. */
static pthread_mutex_t metis_lock = PTHREAD_MUTEX_INITIALIZER;

static clv_status metis_call(metis_graph *m, idx_t parts, real_t *shares, uint64_t seed, idx_t *part)
{
	idx_t options[METIS_NOPTIONS], cut = 0;
	real_t loose[2] = {1.02f, 1.2f};
	char state[128];
	METIS_SetDefaultOptions(options);
	options[METIS_OPTION_SEED] = (idx_t)((seed ^ seed >> 31) & 0x7fffffff);
	pthread_mutex_lock(&metis_lock);
	char *before = initstate(1, state, sizeof state);
	int rc = (parts == 2 ? METIS_PartGraphRecursive : METIS_PartGraphKway)(
		&m->n, &m->ncon, m->first, m->to, m->weights, NULL, m->bytes, &parts, shares, loose, options, &cut, part);
	if (before)
		setstate(before);
	pthread_mutex_unlock(&metis_lock);
	if (rc == METIS_ERROR_MEMORY)
		return fail_nomem();
	if (rc != METIS_OK)
		return fail(CLV_E_UNSUPPORTED, "METIS gave up on this graph (its code %d); use another method, such as mpipe",
		            rc);
	for (idx_t n = 0; n < m->n; n++)
		if (part[n] < 0 || part[n] >= parts)
			return fail(CLV_E_UNSUPPORTED, "METIS left a node without a part; use another method, such as mpipe");
	return CLV_OK;
}

/* METIS prints when it is to make more parts of something than that has vertices, on the way down to K parts. It
   does not come to that where all parts should be of about one size, and enough vertices have weight. */
static bool kway_is_safe(const pipe_problem *pr, const metis_graph *m)
{
	double speeds = 0, slowest = INFINITY, mean = (double)WORK_UNITS / m->n, heavy = 0;
	for (uint32_t d = 0; d < pr->k; d++) {
		speeds += pr->devices[d].speed;
		slowest = fmin(slowest, pr->devices[d].speed);
	}
	for (idx_t n = 0; n < m->n; n++)
		heavy += (double)m->weights[n * m->ncon] >= mean / 8;
	return m->first[m->n] > 0 && heavy >= (double)KWAY_VERTICES * pr->k && slowest * pr->k >= speeds / 4;
}

static clv_status kway(const pipe_problem *pr, metis_graph *m, uint64_t seed, idx_t *part)
{
	real_t *shares = mem_alloc((size_t)pr->k * (size_t)m->ncon * sizeof *shares);
	TRY_MEM(shares);
	shares_fill(pr, 0, pr->k, 0, m->ncon, shares);
	clv_status st = metis_call(m, (idx_t)pr->k, shares, seed, part);
	mem_free(shares);
	return st;
}

/* ---- bisections, for graphs that are small ----------------------------------------------------------------------- */

/* The vertices of m that are in `which`; old[i] is the number that vertex i of the result has in m. */
static clv_status subgraph(const metis_graph *m, const idx_t *part, idx_t which, metis_graph *out, idx_t *old,
                           idx_t *new)
{
	size_t n = 0, edges = 0;
	for (idx_t v = 0; v < m->n; v++) {
		new[v] = part[v] == which ? (idx_t)n : -1;
		if (part[v] != which)
			continue;
		old[n++] = v;
		edges += (size_t)(m->first[v + 1] - m->first[v]);
	}
	TRY(metis_graph_alloc(out, n, (size_t)m->ncon, edges));
	idx_t at = 0;
	for (idx_t i = 0; i < out->n; i++) {
		idx_t v = old[i];
		for (idx_t c = 0; c < m->ncon; c++)
			out->weights[i * m->ncon + c] = m->weights[v * m->ncon + c];
		for (idx_t e = m->first[v]; e < m->first[v + 1]; e++)
			if (new[m->to[e]] >= 0) {
				out->to[at] = new[m->to[e]];
				out->bytes[at++] = m->bytes[e];
			}
		out->first[i + 1] = at;
	}
	return CLV_OK;
}

/* Both sides get as many vertices as they will have parts, at least; the last ones of the other side go over. */
static void sides_fill(idx_t *side, idx_t n, idx_t want0, idx_t want1)
{
	idx_t have[2] = {0, 0}, want[2] = {want0, want1};
	for (idx_t v = 0; v < n; v++)
		have[side[v]]++;
	for (idx_t s = 0; s < 2; s++)
		for (idx_t v = n; have[s] < want[s] && v-- > 0;)
			if (side[v] != s && have[!s] > want[!s]) {
				side[v] = s;
				have[s]++;
				have[!s]--;
			}
}

typedef struct bisecting {
	const pipe_problem *pr;
	const metis_graph *m;
	idx_t *part, *old, *new, *side;
	uint64_t seed;
} bisecting;

/* Parts first … first + n - 1 out of the vertices that are in part `first`. */
static clv_status bisect(bisecting *b, uint32_t first, uint32_t n)
{
	if (n < 2)
		return CLV_OK;
	uint32_t half = n / 2;
	metis_graph sub = {0};
	real_t shares[4] = {0};
	clv_status st = subgraph(b->m, b->part, (idx_t)first, &sub, b->old, b->new);
	if (st == CLV_OK) {
		shares_fill(b->pr, first, n, half, sub.ncon, shares);
		/* as many vertices as parts: METIS has nothing to choose, and sides_fill does it */
		if ((uint32_t)sub.n > n)
			st = metis_call(&sub, 2, shares, b->seed + first, b->side);
		else
			for (idx_t v = 0; v < sub.n; v++)
				b->side[v] = 0;
	}
	if (st == CLV_OK) {
		sides_fill(b->side, sub.n, (idx_t)half, (idx_t)(n - half));
		for (idx_t v = 0; v < sub.n; v++)
			if (b->side[v])
				b->part[b->old[v]] = (idx_t)(first + half);
	}
	arena_free(&sub.arena);
	TRY(st);
	TRY(bisect(b, first, half));
	return bisect(b, first + half, n - half);
}

static clv_status bisections(const pipe_problem *pr, const metis_graph *m, uint64_t seed, idx_t *part)
{
	size_t n = (size_t)m->n;
	idx_t *room = mem_alloc(3 * n * sizeof *room);
	TRY_MEM(room);
	for (size_t v = 0; v < n; v++)
		part[v] = 0;
	bisecting b = {pr, m, part, room, room + n, room + 2 * n, seed};
	clv_status st = bisect(&b, 0, pr->k);
	mem_free(room);
	return st;
}

/* ---- from parts to stages ---------------------------------------------------------------------------------------- */

static double parts_cut(const pipe_graph *g, const uint32_t *device, uint32_t *seen)
{
	double cut = 0;
	for (uint32_t v = 0; v < g->values.n; v++) {
		const pipe_value *x = &g->values.at[v];
		if (x->from == PIPE_NONE)
			continue;
		seen[device[x->from]] = v + 1;
		for (uint32_t u = 0; u < x->nuses; u++) {
			uint32_t d = device[g->uses.at[x->uses + u]];
			cut += seen[d] == v + 1 ? 0 : (double)x->bytes;
			seen[d] = v + 1;
		}
	}
	return cut;
}

static double parts_balance(const pipe_problem *pr, const uint32_t *device, double *us)
{
	double all = 0, speeds = 0, slowest = 0;
	for (uint32_t n = 0; n < pr->g->nodes.n; n++)
		us[device[n]] += node_us(pr, n);
	for (uint32_t d = 0; d < pr->k; d++) {
		all += us[d];
		speeds += pr->devices[d].speed;
		slowest = fmax(slowest, us[d] / pr->devices[d].speed);
	}
	return all > 0 ? slowest / (all / speeds) : 1;
}

static clv_status parts_measure(const pipe_problem *pr, const uint32_t *device, double *cut, double *balance)
{
	arena scratch = {0};
	uint32_t *seen = arena_array(&scratch, pr->k, sizeof *seen);
	double *us = arena_array(&scratch, pr->k, sizeof *us);
	clv_status st = arena_status(&scratch);
	if (st == CLV_OK) {
		*cut = parts_cut(pr->g, device, seen);
		*balance = parts_balance(pr, device, us);
	}
	arena_free(&scratch);
	return st;
}

/* The stages of the walk, joined until `limit` are left, on their devices or on others, polished. */
static clv_status offer_joined(const pipe_problem *pr, const pipe_partition *walk, uint32_t limit, polisher *po,
                               keeper *kept)
{
	pipe_partition p = {0};
	TRY(partition_copy(pr->g, walk, &p));
	clv_status st = stages_join(pr, &p, limit);
	if (st == CLV_OK)
		st = stages_place(pr, &p);
	if (st == CLV_OK)
		st = polish(po, &p, &(polish_effort){polish_steps(pr->g) / 4, 0.5, pr->seed + limit});
	if (st != CLV_OK) {
		partition_free(&p);
		return st;
	}
	return offer_filled(pr, kept, &p);
}

static clv_status offer_all(const pipe_problem *pr, const pipe_partition *walk, keeper *kept)
{
	polisher *po = NULL;
	uint32_t most = stages_limit(pr), tried = 0;
	double began = clock_seconds();
	TRY(polisher_new(pr, &po));
	clv_status st = CLV_OK;
	for (uint32_t times = 1; st == CLV_OK && times <= 4 && !kept_reached(kept); times *= 2) {
		uint64_t wanted = (uint64_t)pr->k * times;
		uint32_t limit = wanted < most ? (uint32_t)wanted : most;
		if (limit == tried)
			break;
		if (kept->has && time_is_up(pr, began)) {
			kept->best.stopped = true;
			break;
		}
		tried = limit;
		st = offer_joined(pr, walk, limit, po, kept);
	}
	polisher_free(po);
	return st;
}

static clv_status stages_of_parts(const pipe_problem *pr, const uint32_t *device, pipe_partition *out)
{
	pipe_partition walk = {0};
	keeper kept = {0};
	double cut = 0, balance = 0;
	TRY(parts_measure(pr, device, &cut, &balance));
	TRY(partition_from_devices(pr->g, device, pr->k, &walk));
	clv_status st = keeper_end(&kept, offer_all(pr, &walk, &kept), out);
	partition_free(&walk);
	if (st == CLV_OK) {
		out->raw_cut_bytes = cut;
		out->raw_balance = balance;
		out->method = "metis";
	}
	return st;
}

clv_status pipe_metis(const pipe_problem *pr, pipe_partition *out)
{
	metis_graph m = {0};
	arena scratch = {0};
	uint32_t n = pr->g->nodes.n, *device = arena_ids(&scratch, n);
	idx_t *part = arena_array(&scratch, n, sizeof *part);
	clv_status st = scratch.failed ? fail_nomem() : metis_graph_make(pr, &m);
	if (st == CLV_OK && pr->k > 1)
		st = kway_is_safe(pr, &m) ? kway(pr, &m, pr->seed, part) : bisections(pr, &m, pr->seed, part);
	for (uint32_t i = 0; st == CLV_OK && i < n; i++)
		device[i] = (uint32_t)part[i];
	if (st == CLV_OK)
		st = stages_of_parts(pr, device, out);
	arena_free(&m.arena);
	arena_free(&scratch);
	return st;
}

#endif
