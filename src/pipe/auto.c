/* auto: the best of all methods, and then a little better.
 *
 * First those that give each device one stage; what comes out of each is also polished. Then those with mixed placements.
 * Where the lower bound is reached, only what is quick is run for fewer bytes. What a graph is too large for is left out by its number of nodes, not by a clock, so that a seed gives
 * one result; the problem's time limit stops between methods. The DP over the chain is always among them: nothing here is
 * worse than it. A method that refuses (METIS is not there, memory, its own limits) is passed over. */
#include "pipe/mixed.h"

#include <string.h>

typedef struct auto_method {
	const char *name;
	uint32_t most_nodes; /* for larger graphs it takes too long; 0: none is too large */
	bool mixed;          /* polishes by itself */
	bool spare;          /* not needed once the bound is reached */
} auto_method;

static const auto_method candidates[] = {
	{"pipedream", 0, false, false}, {"multilevel", 0, false, false}, {"acyclic", 20000, false, true},
	{"exact", 2000, false, true},   {"mpipe", 0, true, false},       {"metis", 0, true, true},
};
enum { CANDIDATES = sizeof candidates / sizeof *candidates };

typedef struct auto_run {
	const pipe_problem *pr;
	polisher *po;
	keeper kept;
	double began;
} auto_run;

static uint64_t steps_for(const pipe_problem *pr)
{
	return 200000 + 5 * (uint64_t)pr->g->nodes.n;
}

/* The partition itself has been offered; a polished copy is, too. It is of the same method, but proves nothing. */
static clv_status offer_polished(auto_run *a, const pipe_partition *p, double heat)
{
	pipe_partition copy = {0};
	TRY(partition_copy(a->pr->g, p, &copy));
	clv_status st = polish(a->po, &copy, &(polish_effort){steps_for(a->pr), heat, a->pr->seed});
	if (st != CLV_OK) {
		partition_free(&copy);
		return st;
	}
	copy.bound_us = 0;
	copy.optimal = false;
	return offer_filled(a->pr, &a->kept, &copy);
}

static clv_status offer_method(auto_run *a, const auto_method *m)
{
	pipe_problem rest = *a->pr;
	pipe_partition p = {0}, copy = {0};
	if (rest.seconds > 0) {
		rest.seconds -= clock_seconds() - a->began;
		rest.seconds = rest.seconds > 1e-6 ? rest.seconds : 1e-6;
	}
	clv_status st = method_named(m->name)(&rest, &p);
	if (st != CLV_OK)
		return st;
	if (!p.method)
		p.method = m->name;
	st = partition_copy(a->pr->g, &p, &copy);
	if (st == CLV_OK)
		st = offer_filled(a->pr, &a->kept, &copy);
	if (st == CLV_OK && !m->mixed)
		st = offer_polished(a, &p, 0.3);
	partition_free(&p);
	return st;
}

static bool fits(const auto_run *a, const auto_method *m)
{
	return method_named(m->name) && (m->most_nodes == 0 || a->pr->g->nodes.n <= m->most_nodes);
}

static clv_status offer_all(auto_run *a)
{
	clv_status st = CLV_OK, refused = CLV_OK;
	for (size_t i = 0; i < CANDIDATES; i++) {
		const auto_method *m = &candidates[i];
		if (!fits(a, m) || (m->spare && kept_reached(&a->kept)))
			continue;
		if (a->kept.has && time_is_up(a->pr, a->began)) {
			a->kept.best.stopped = true;
			return CLV_OK;
		}
		st = offer_method(a, m);
		if (st == CLV_E_NOMEM)
			return st;
		refused = st != CLV_OK ? st : refused;
	}
	return a->kept.has ? CLV_OK : refused;
}

static clv_status polish_kept(auto_run *a)
{
	pipe_partition p = {0};
	if (kept_reached(&a->kept) || time_is_up(a->pr, a->began))
		return CLV_OK;
	TRY(partition_copy(a->pr->g, &a->kept.best, &p));
	clv_status st = offer_polished(a, &p, 0.1);
	partition_free(&p);
	return st;
}

clv_status pipe_auto(const pipe_problem *pr, pipe_partition *out)
{
	auto_run a = {.pr = pr, .began = clock_seconds()};
	clv_status st = polisher_new(pr, &a.po);
	if (st == CLV_OK)
		st = offer_all(&a);
	if (st == CLV_OK)
		st = polish_kept(&a);
	polisher_free(a.po);
	return keeper_end(&a.kept, st, out);
}
