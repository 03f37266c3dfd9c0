/* auto: the best of all methods, and then a little better.
 *
 * First those that give each device one stage; what comes out of each is also polished. Then those with mixed placements.
 * Where the lower bound is reached, only what is quick is still run, for fewer bytes. In the end the best is polished round
 * after round. What a graph is too large for is left out by its number of nodes, not by a clock, so that a seed gives one
 * result; the problem's time limit stops between methods. The DP over the chain is always among them: nothing that comes
 * out is worse than it. A method that refuses (METIS is not there, its own limits) is passed over. */
#include "pipe/polish.h"

typedef struct auto_method {
	const char *name;
	uint32_t most_nodes; /* for larger graphs it takes too long; 0: none is too large */
	bool mixed;          /* polishes by itself */
	bool spare;          /* not needed once the bound is reached */
} auto_method;

static const auto_method candidates[] = {
	{"pipedream", 0, false, false}, {"multilevel", 0, false, false}, {"acyclic", 5000, false, true},
	{"exact", 2000, false, true},   {"mpipe", 0, true, false},       {"metis", 0, true, false},
};
enum { CANDIDATES = sizeof candidates / sizeof *candidates, ROUNDS = 10, ROUNDS_MANY = 3, MANY_NODES = 3000 };

typedef struct auto_run {
	const pipe_problem *pr;
	polisher *po;
	keeper kept;
	double began;
} auto_run;

/* The partition itself has been offered; a polished copy is, too. It is of the same method, but proves nothing. */
static clv_status offer_polished(auto_run *a, const pipe_partition *p, double heat, uint64_t more)
{
	pipe_partition copy = {0};
	TRY(partition_copy(a->pr->g, p, &copy));
	clv_status st = polish(a->po, &copy, &(polish_effort){polish_steps(a->pr->g) / 2, heat, a->pr->seed + more});
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
		st = offer_polished(a, &p, 0.3, 0);
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

/* Again and again from the best: what is found begins the next round. */
static clv_status polish_kept(auto_run *a)
{
	uint32_t rounds = a->pr->g->nodes.n > MANY_NODES ? ROUNDS_MANY : ROUNDS;
	clv_status st = CLV_OK;
	for (uint32_t round = 0; st == CLV_OK && round < rounds; round++) {
		pipe_partition p = {0};
		if (kept_reached(&a->kept) || time_is_up(a->pr, a->began))
			break;
		TRY(partition_copy(a->pr->g, &a->kept.best, &p));
		st = offer_polished(a, &p, round % 2 ? 0.1 : 0.3, round);
		partition_free(&p);
	}
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
