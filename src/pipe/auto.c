/* auto: runs all methods, keeps the best result and polishes it.
 *
 * First come the methods that give each device one stage; each result is also polished. Then come those with mixed
 * placements. Once the lower bound is reached, only quick methods still run, to save bytes. In the end the best result
 * is polished round after round. Methods that are too slow for a graph are left out by its number of nodes, not by a
 * clock, so that a seed gives one result; the problem's time limit stops between methods. The DP over the chain always
 * runs, so the result is never worse than its. A method that refuses (METIS is not there, its own limits) is skipped.
 *
 * Of all results within NEAR of the best, the one that sends the fewest bytes is taken: measured times are no more exact
 * than that. If the goal is throughput, it is the one whose timeline gives the most: with few micro-batches a pipe of
 * fewer stages can idle less than an evener one of many. The simple goal compares the fastest result with one stage a
 * device with the fastest of all. */
#include "pipe/polish.h"

typedef struct auto_method {
	const char *name;
	uint32_t most_nodes; /* it takes too long for larger graphs; 0: for none */
	bool mixed;          /* polishes its own result */
	bool spare;          /* not needed once the bound is reached */
} auto_method;

static const auto_method candidates[] = {
	{"pipedream", 0, false, false}, {"multilevel", 0, false, false}, {"acyclic", 5000, false, true},
	{"exact", 2000, false, true},   {"mpipe", 0, true, false},       {"metis", 0, true, false},
};
enum { CANDIDATES = sizeof candidates / sizeof *candidates, ROUNDS = 10, ROUNDS_MANY = 3, MANY_NODES = 3000 };

#define NEAR 2e-4 /* as good as the best: slower by this part at most */

typedef struct found {
	pipe_partition p;
	pipe_score score;
} found;

typedef struct auto_run {
	const pipe_problem *pr;
	polisher *po;
	keeper kept;
	VEC(found) all;  /* everything that was offered */
	double chain_us; /* the slowest device of the DP over the chain, which came first */
	double began;
} auto_run;

static clv_status remember(auto_run *a, const pipe_partition *p)
{
	found f = {0};
	TRY(partition_copy(a->pr->g, p, &f.p));
	clv_status st = score_new(a->pr, &f.p, &f.score);
	if (st == CLV_OK)
		st = vec_push(&a->all, f);
	if (st != CLV_OK) {
		partition_free(&f.p);
		score_free(&f.score);
	} else if (a->all.n == 1) {
		a->chain_us = f.score.bottleneck_us;
	}
	return st;
}

/* Takes p, also on failure. */
static clv_status offer_found(auto_run *a, pipe_partition *p)
{
	clv_status st = partition_fill(a->pr, p);
	if (st == CLV_OK)
		st = remember(a, p);
	if (st == CLV_OK)
		return keeper_offer(a->pr, &a->kept, p);
	partition_free(p);
	return st;
}

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
	return offer_found(a, &copy);
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
		st = offer_found(a, &copy);
	if (st == CLV_OK && !m->mixed)
		st = offer_polished(a, &p, 0.3, 0);
	partition_free(&p);
	return st;
}

static clv_status offer_all(auto_run *a)
{
	clv_status st = CLV_OK, refused = CLV_OK;
	for (size_t i = 0; i < CANDIDATES; i++) {
		const auto_method *m = &candidates[i];
		bool too_large = m->most_nodes && a->pr->g->nodes.n > m->most_nodes;
		if (too_large || (m->spare && kept_reached(&a->kept)))
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

static bool sends_less(const found *a, const found *b)
{
	if (a->score.cut_bytes != b->score.cut_bytes)
		return a->score.cut_bytes < b->score.cut_bytes;
	return a->p.nstages < b->p.nstages;
}

static void take_found(auto_run *a, found *better)
{
	found kept = {a->kept.best, a->kept.score};
	better->p.stopped = kept.p.stopped;
	a->kept.best = better->p;
	a->kept.score = better->score;
	*better = kept;
}

/* Of what is as good as the best, and not worse than the chain, what sends the least. */
static void take_thriftiest(auto_run *a)
{
	const pipe_score *best = &a->kept.score;
	double most = best->bottleneck_us * (1 + NEAR) < a->chain_us ? best->bottleneck_us * (1 + NEAR) : a->chain_us;
	found *least = NULL;
	for (uint32_t i = 0; i < a->all.n; i++) {
		found *f = &a->all.at[i];
		bool near = f->score.bottleneck_us <= most && f->score.over_bytes <= best->over_bytes;
		if (near && (!least || sends_less(f, least)))
			least = f;
	}
	if (least)
		take_found(a, least);
}

/* 0: it cannot be laid out in time. */
static clv_status per_second(const auto_run *a, const found *f, double *out)
{
	pipe_timeline t;
	*out = 0;
	clv_status st = timeline_new(a->pr, &f->p, &f->score, &t);
	if (st == CLV_E_OVERFLOW)
		return CLV_OK;
	TRY(st);
	*out = t.per_second;
	timeline_free(&t);
	return CLV_OK;
}

/* Of all that fit as well as the best, what gives the most micro-batches per second, one stage a device counted by
   `simple` of it; where none can be laid out in time, the best by its bottleneck stays. */
static clv_status take_fastest(auto_run *a, double simple)
{
	double most = 0;
	found *fastest = NULL;
	for (uint32_t i = 0; i < a->all.n; i++) {
		found *f = &a->all.at[i];
		double rate;
		if (f->score.over_bytes > a->kept.score.over_bytes)
			continue;
		TRY(per_second(a, f, &rate));
		if (f->p.nstages <= a->pr->k)
			rate *= simple;
		if (rate > most || (rate == most && fastest && sends_less(f, fastest))) {
			most = rate;
			fastest = f;
		}
	}
	if (fastest)
		take_found(a, fastest);
	return CLV_OK;
}

clv_status pipe_auto(const pipe_problem *pr, pipe_partition *out)
{
	auto_run a = {.pr = pr, .began = clock_seconds()};
	clv_status st = polisher_new(pr, &a.po);
	if (st == CLV_OK)
		st = offer_all(&a);
	if (st == CLV_OK)
		st = polish_kept(&a);
	if (st == CLV_OK && pr->goal != GOAL_BOTTLENECK)
		st = take_fastest(&a, pr->goal == GOAL_SIMPLE ? SEVERAL_STAGES_GAIN : 1);
	else if (st == CLV_OK)
		take_thriftiest(&a);
	for (uint32_t i = 0; i < a.all.n; i++) {
		partition_free(&a.all.at[i].p);
		score_free(&a.all.at[i].score);
	}
	vec_free(&a.all);
	polisher_free(a.po);
	return keeper_end(&a.kept, st, out);
}
