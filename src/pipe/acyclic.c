/* Stages in a row, one per device: acyclic by construction.
 *
 * A partition is a topological order and the places where it is cut, so no result can have a cycle. Several
 * orders (the given one, one into depth, random ones from the seed) are each cut as well as they can be; then
 * orders inside of the stages are shuffled and the whole is cut anew, many times (chain_search.c). Where devices
 * differ their places in the row are part of the search. In the end nodes move to where fewer bytes cross, as
 * long as no stage gets slower than the slowest.
 *
 * An attempt costs O(nodes + edges), and with links or memory O(stages * 400^2) more at worst. The number of
 * attempts follows from a limit of steps, so that large graphs get fewer of them. */
#include "pipe/chain.h"

#define RUNS 4 /* that know nothing of each other, so that one that is stuck does not matter */
#define FEW 64 /* nodes for which two runs do */
#define SEARCH_STEPS 40000000u
#define POLISH_STEPS 3000000u

static clv_status search_once(chain *c, bool given, pipe_random *r, keeper *kept)
{
	pipe_partition p;
	TRY(chain_search(c, SEARCH_STEPS, given, r));
	chain_polish(c, POLISH_STEPS, r);
	TRY(chain_partition(c, &p));
	return keeper_offer(c->pr, kept, &p);
}

clv_status pipe_acyclic(const pipe_problem *pr, pipe_partition *out)
{
	pipe_random r = {pr->seed};
	keeper kept = {0};
	clv_status st = CLV_OK;
	chain c;
	TRY(chain_new(pr, &c));
	for (uint32_t i = 0; i < (c.n < FEW ? 2 : RUNS) && st == CLV_OK && !c.stopped; i++) {
		st = search_once(&c, i == 0, &r, &kept);
		if (c.worst <= c.least * (1 + 1e-9))
			break;
	}
	kept.best.stopped = c.stopped;
	kept.best.method = "acyclic";
	chain_free(&c);
	return keeper_end(&kept, st, out);
}
