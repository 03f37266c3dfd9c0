/* Stages in a row, one per device: acyclic by construction.
 *
 * A partition is a topological order and the places where it is cut, so no result can have a cycle. Several orders (the
 * given one, one into depth, random ones from the seed) are each cut as well as they can be; then orders inside of the
 * stages are shuffled and the whole is cut anew, many times (refine.c). Where devices differ their places in the row are
 * part of the search. In the end nodes move to where fewer bytes cross, as long as no stage gets slower than the slowest.
 *
 * An attempt costs O(nodes + edges), and with links or memory O(stages * 400^2) more at worst. The number of attempts
 * follows from a limit of steps, so that large graphs get fewer of them. */
#include "pipe/refine.h"

#define SEARCH_STEPS 100000000u
#define POLISH_STEPS 6000000u

clv_status pipe_acyclic(const pipe_problem *pr, pipe_partition *out)
{
	pipe_random r = {pr->seed};
	chain c;
	TRY(chain_new(pr, &c));
	clv_status st = chain_search(&c, SEARCH_STEPS, &r);
	if (st == CLV_OK) {
		chain_polish(&c, POLISH_STEPS, &r);
		st = chain_partition(&c, out);
	}
	if (st == CLV_OK)
		out->method = "acyclic";
	chain_free(&c);
	return st;
}
