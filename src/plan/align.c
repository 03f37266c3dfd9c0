/* Aligns two sequences with Myers' O(ND) method in linear space.
 * Two sequences aligned by Myers' O(ND) method in linear space: paths from both corners of the edit graph meet in the
 * middle, and both halves are solved the same way.
 *
 * What occurs on one side only cannot match and is left out first, so that sequences without anything in common cost
 * nothing. Where the paths have not met after COST_MAX differences, the graph is cut where the further one has come: what is
 * found is then still in order, but perhaps not the longest. */
#include "plan/align.h"

#include <string.h>

enum { COST_MAX = 256, FRONT = 2 * COST_MAX + 3, CENTER = COST_MAX + 1 };

#define NOWHERE INT64_MIN

typedef struct kept {
	uint32_t token, place;
} kept;

struct aligner {
	uint32_t ntokens;
	uint32_t *seen[2];                       /* per token: how often it is on that side; zero between calls */
	VEC(kept) a, b;                          /* what is on both sides */
	int64_t forward[FRONT], backward[FRONT]; /* per diagonal: how far in a */
	uint32_t *match;                         /* of the call */
};

/* Parts of a and b that are still to be aligned. */
typedef struct box {
	uint32_t a, a_end, b, b_end;
} box;

clv_status aligner_new(uint32_t ntokens, aligner **out)
{
	aligner *w = mem_alloc(sizeof *w);
	TRY_MEM(w);
	w->ntokens = ntokens;
	for (int side = 0; side < 2; side++)
		w->seen[side] = mem_alloc(((size_t)ntokens + 1) * sizeof **w->seen);
	if (!w->seen[0] || !w->seen[1]) {
		aligner_free(w);
		return fail_nomem();
	}
	*out = w;
	return CLV_OK;
}

void aligner_free(aligner *w)
{
	if (!w)
		return;
	mem_free(w->seen[0]);
	mem_free(w->seen[1]);
	vec_free(&w->a);
	vec_free(&w->b);
	mem_free(w);
}

/* ---- the middle of a path --------------------------------------------------------------------------------------- */

/* One of the two searches, seen from its own corner. */
typedef struct search {
	const aligner *w;
	int64_t *front;
	box x;
	int64_t n, m;
	bool back;
} search;

static bool same_at(const search *s, int64_t i, int64_t k)
{
	uint32_t a = s->back ? s->x.a_end - 1 - (uint32_t)i : s->x.a + (uint32_t)i;
	uint32_t b = s->back ? s->x.b_end - 1 - (uint32_t)k : s->x.b + (uint32_t)k;
	return s->w->a.at[a].token == s->w->b.at[b].token;
}

/* How far diagonal k reaches with one difference more than its neighbours had. */
static int64_t reach(const search *s, int64_t d, int64_t k)
{
	int64_t best = d == 0 ? 0 : NOWHERE;
	int64_t down = k < d ? s->front[CENTER + k + 1] : NOWHERE, right = k > -d ? s->front[CENTER + k - 1] : NOWHERE;
	if (down != NOWHERE && down - (k + 1) < s->m)
		best = down;
	if (right != NOWHERE && right < s->n && right + 1 > best)
		best = right + 1;
	if (best == NOWHERE)
		return NOWHERE;
	while (best < s->n && best - k < s->m && same_at(s, best, best - k))
		best++;
	return best;
}

/* Moves one search on by one difference; true where it meets the other: *x, *y from its own corner. */
static bool advance(const search *s, const search *other, int64_t d, int64_t other_d, int64_t *x, int64_t *y)
{
	int64_t delta = s->n - s->m;
	for (int64_t k = -d; k <= d; k += 2) {
		int64_t far = s->front[CENTER + k] = reach(s, d, k), there = delta - k;
		if (far == NOWHERE || there < -other_d || there > other_d || (there - other_d) % 2 != 0)
			continue;
		if (other->front[CENTER + there] == NOWHERE || far + other->front[CENTER + there] < s->n)
			continue;
		*x = far;
		*y = far - k;
		return true;
	}
	return false;
}

/* Where a search came furthest after d differences, from its own corner; how far that is. */
static int64_t furthest(const search *s, int64_t d, int64_t *x, int64_t *y)
{
	int64_t most = -1;
	for (int64_t k = -d; k <= d; k += 2) {
		int64_t far = s->front[CENTER + k];
		if (far == NOWHERE || 2 * far - k <= most)
			continue;
		most = 2 * far - k;
		*x = far;
		*y = far - k;
	}
	return most;
}

/* The searches did not meet: the one that came further counts, so that its steps were not in vain. */
static bool give_up(const search *forward, const search *backward, int64_t *x, int64_t *y)
{
	int64_t u = 0, v = 0;
	if (furthest(backward, COST_MAX, &u, &v) <= furthest(forward, COST_MAX, x, y))
		return false;
	*x = forward->n - u;
	*y = forward->m - v;
	return true;
}

/* A point on a good path through the box, neither its first nor its last: both ends of the box differ. True: what comes
   after it has few differences, else what comes before it. */
static bool middle(aligner *w, box r, uint32_t *a, uint32_t *b)
{
	search forward = {w, w->forward, r, (int64_t)r.a_end - r.a, (int64_t)r.b_end - r.b, false}, backward = forward;
	int64_t x = 0, y = 0;
	bool after = false;
	backward.front = w->backward;
	backward.back = true;
	for (int64_t d = 0; d <= COST_MAX; d++) {
		if (advance(&forward, &backward, d, d - 1, &x, &y))
			break;
		if (advance(&backward, &forward, d, d, &x, &y)) {
			x = forward.n - x;
			y = forward.m - y;
			break;
		}
		if (d == COST_MAX)
			after = give_up(&forward, &backward, &x, &y);
	}
	*a = r.a + (uint32_t)x;
	*b = r.b + (uint32_t)y;
	return after;
}

/* ---- whole sequences -------------------------------------------------------------------------------------------- */

static void pair(aligner *w, uint32_t a, uint32_t b)
{
	w->match[w->a.at[a].place] = w->b.at[b].place;
}

/* Pairs off what both ends of the box share; false: nothing is left to do. */
static bool trim(aligner *w, box *r)
{
	while (r->a < r->a_end && r->b < r->b_end && w->a.at[r->a].token == w->b.at[r->b].token)
		pair(w, r->a++, r->b++);
	while (r->a < r->a_end && r->b < r->b_end && w->a.at[r->a_end - 1].token == w->b.at[r->b_end - 1].token)
		pair(w, --r->a_end, --r->b_end);
	return r->a < r->a_end && r->b < r->b_end;
}

/* The part with few differences has half of them, or COST_MAX, so recursion stays shallow. */
static void align_box(aligner *w, box r)
{
	while (trim(w, &r)) {
		uint32_t a, b;
		bool after = middle(w, r, &a, &b);
		box first = {r.a, a, r.b, b}, second = {a, r.a_end, b, r.b_end};
		align_box(w, after ? second : first);
		r = after ? first : second;
	}
}

static void count_tokens(aligner *w, int side, const uint32_t *tokens, uint32_t n, bool again)
{
	for (uint32_t i = 0; i < n; i++)
		w->seen[side][tokens[i]] = again ? w->seen[side][tokens[i]] + 1 : 0;
}

static clv_status keep_tokens(aligner *w, const uint32_t *a, const uint32_t *b, box r)
{
	w->a.n = w->b.n = 0;
	for (uint32_t i = r.a; i < r.a_end; i++)
		if (w->seen[1][a[i]])
			TRY(vec_push(&w->a, ((kept){a[i], i})));
	for (uint32_t i = r.b; i < r.b_end; i++)
		if (w->seen[0][b[i]])
			TRY(vec_push(&w->b, ((kept){b[i], i})));
	return CLV_OK;
}

/* Keeps what is on both sides. */
static clv_status keep_common(aligner *w, const uint32_t *a, const uint32_t *b, box r)
{
	count_tokens(w, 0, a + r.a, r.a_end - r.a, true);
	count_tokens(w, 1, b + r.b, r.b_end - r.b, true);
	clv_status st = keep_tokens(w, a, b, r);
	count_tokens(w, 0, a + r.a, r.a_end - r.a, false);
	count_tokens(w, 1, b + r.b, r.b_end - r.b, false);
	return st;
}

static bool in_reach(const aligner *w, const uint32_t *tokens, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (tokens[i] >= w->ntokens)
			return false;
	return true;
}

clv_status align(aligner *w, const uint32_t *a, uint32_t n, const uint32_t *b, uint32_t m, uint32_t *match)
{
	if (!in_reach(w, a, n) || !in_reach(w, b, m))
		return fail(CLV_E_INVALID, "a token is beyond the %u that were announced", w->ntokens);
	box r = {0, n, 0, m};
	memset(match, 0xFF, n * sizeof *match);
	for (; r.a < n && r.b < m && a[r.a] == b[r.b]; r.b++) /* both ends first, where nothing was left out yet */
		match[r.a++] = r.b;
	while (r.a_end > r.a && r.b_end > r.b && a[r.a_end - 1] == b[r.b_end - 1])
		match[--r.a_end] = --r.b_end;
	TRY(keep_common(w, a, b, r));
	w->match = match;
	align_box(w, (box){0, w->a.n, 0, w->b.n});
	return CLV_OK;
}
