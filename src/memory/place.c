/* Places blocks greedily: in some order, each into the smallest gap between the blocks that live at the same time.
 *
 * In the order of time also between two walls, each block next to the neighbour that lives longest: a chain of results then
 * alternates between the walls, and needs no more than any two of them. */
#include "memory/place.h"

#include <string.h>

#include "base/arena.h"

/* What is tried is quadratic; beyond this many steps it would be felt. */
static const uint64_t MOST_STEPS = UINT64_C(1) << 24;

typedef struct sort_key {
	uint64_t first, second;
	uint32_t i;
} sort_key;

static int by_key(const void *a, const void *b)
{
	const sort_key *x = a, *y = b;
	if (x->first != y->first)
		return x->first < y->first ? -1 : 1;
	if (x->second != y->second)
		return x->second < y->second ? -1 : 1;
	return x->i < y->i ? -1 : x->i > y->i;
}

/* Ends come before starts at the same event. */
static clv_status most_alive(const place_block *at, uint32_t n, uint64_t *bytes, uint32_t *count)
{
	sort_key *events = mem_alloc(((size_t)n * 2 + 1) * sizeof *events);
	uint64_t live = 0;
	uint32_t alive = 0;
	TRY_MEM(events);
	for (uint32_t i = 0; i < n; i++) {
		events[2 * i] = (sort_key){at[i].born, 1, i};
		events[2 * i + 1] = (sort_key){at[i].died, 0, i};
	}
	qsort(events, (size_t)n * 2, sizeof *events, by_key);
	*bytes = 0;
	*count = 0;
	for (size_t k = 0; k < (size_t)n * 2; k++) {
		bool starts = events[k].second;
		live = starts ? live + at[events[k].i].size : live - at[events[k].i].size;
		alive = starts ? alive + 1 : alive - 1;
		*bytes = live > *bytes ? live : *bytes;
		*count = alive > *count ? alive : *count;
	}
	mem_free(events);
	return CLV_OK;
}

typedef struct placing {
	const place_block *at;
	uint32_t n;
	sort_key *order;
	uint64_t *offsets, *best; /* per block: of this order, of the best one */
	uint32_t *placed;         /* by offset */
	uint32_t nplaced;
	uint64_t best_bytes;
} placing;

static bool at_once(const place_block *a, const place_block *b)
{
	return a->born < b->died && b->born < a->died;
}

/* The smallest gap that is large enough, or the end. */
static uint64_t find_gap(const placing *s, const place_block *b)
{
	uint64_t end = 0, found = PLACE_NONE, least = UINT64_MAX;
	for (uint32_t k = 0; k < s->nplaced; k++) {
		uint32_t other = s->placed[k];
		if (!at_once(b, &s->at[other]))
			continue;
		uint64_t from = s->offsets[other];
		if (from > end && from - end >= b->size && from - end < least) {
			least = from - end;
			found = end;
		}
		if (from + s->at[other].size > end)
			end = from + s->at[other].size;
	}
	return found == PLACE_NONE ? end : found;
}

static void insert_placed(placing *s, uint32_t i)
{
	uint32_t low = 0, high = s->nplaced;
	while (low < high) {
		uint32_t mid = low + (high - low) / 2;
		if (s->offsets[s->placed[mid]] < s->offsets[i])
			low = mid + 1;
		else
			high = mid;
	}
	memmove(&s->placed[low + 1], &s->placed[low], (s->nplaced - low) * sizeof *s->placed);
	s->placed[low] = i;
	s->nplaced++;
}

/* In the order of time, what has died is in nobody's way any more. */
static void forget_dead(placing *s, uint32_t now)
{
	uint32_t kept = 0;
	for (uint32_t k = 0; k < s->nplaced; k++)
		if (s->at[s->placed[k]].died > now)
			s->placed[kept++] = s->placed[k];
	s->nplaced = kept;
}

static void keep_best(placing *s, uint64_t bytes)
{
	if (bytes >= s->best_bytes)
		return;
	s->best_bytes = bytes;
	memcpy(s->best, s->offsets, s->n * sizeof *s->best);
}

static void place_in_order(placing *s, bool in_time)
{
	uint64_t bytes = 0;
	s->nplaced = 0;
	for (uint32_t k = 0; k < s->n; k++) {
		uint32_t i = s->order[k].i;
		if (in_time)
			forget_dead(s, s->at[i].born);
		s->offsets[i] = find_gap(s, &s->at[i]);
		if (s->offsets[i] + s->at[i].size > bytes)
			bytes = s->offsets[i] + s->at[i].size;
		insert_placed(s, i);
	}
	keep_best(s, bytes);
}

/* All that is placed lives now. PLACE_NONE: no gap is large enough. */
static uint64_t gap_between_walls(const placing *s, uint64_t size, uint64_t ceiling)
{
	uint64_t end = 0, found = PLACE_NONE, least = UINT64_MAX;
	uint32_t below = UINT32_MAX; /* when the neighbour below goes; walls never do */
	for (uint32_t k = 0; k <= s->nplaced; k++) {
		bool wall = k == s->nplaced;
		uint64_t from = wall ? ceiling : s->offsets[s->placed[k]];
		uint32_t above = wall ? UINT32_MAX : s->at[s->placed[k]].died;
		if (from - end >= size && from - end < least) {
			least = from - end;
			found = below >= above ? end : from - size;
		}
		if (!wall)
			end = from + s->at[s->placed[k]].size;
		below = above;
	}
	return found;
}

static bool place_between_walls(placing *s, uint64_t ceiling)
{
	s->nplaced = 0;
	for (uint32_t k = 0; k < s->n; k++) {
		uint32_t i = s->order[k].i;
		forget_dead(s, s->at[i].born);
		s->offsets[i] = gap_between_walls(s, s->at[i].size, ceiling);
		if (s->offsets[i] == PLACE_NONE)
			return false;
		insert_placed(s, i);
	}
	keep_best(s, ceiling);
	return true;
}

/* The lowest of a few ceilings under which all find a place; blocks are in the order of time. */
static void try_ceilings(placing *s, uint64_t bound)
{
	enum { CEILINGS = 16 };
	uint64_t over = s->best_bytes - bound;
	for (uint32_t k = 0; k < CEILINGS; k++)
		if (place_between_walls(s, bound + over / CEILINGS * k))
			return;
}

typedef sort_key (*key_fn)(const place_block *b);

static sort_key largest_first(const place_block *b)
{
	return (sort_key){.first = UINT64_MAX - b->size, .second = UINT32_MAX - (b->died - b->born)};
}

static sort_key longest_first(const place_block *b)
{
	return (sort_key){.first = UINT32_MAX - (b->died - b->born), .second = UINT64_MAX - b->size};
}

static sort_key oldest_first(const place_block *b)
{
	return (sort_key){.first = b->born, .second = UINT64_MAX - b->size};
}

static void try_order(placing *s, key_fn key)
{
	for (uint32_t i = 0; i < s->n; i++) {
		s->order[i] = key(&s->at[i]);
		s->order[i].i = i;
	}
	qsort(s->order, s->n, sizeof *s->order, by_key);
	place_in_order(s, key == oldest_first);
}

static void try_orders(placing *s, uint64_t bound, uint32_t alive)
{
	static const key_fn orders[] = {largest_first, longest_first};
	for (uint32_t i = 0; i < 2 && (uint64_t)s->n * s->n <= MOST_STEPS && s->best_bytes > bound; i++)
		try_order(s, orders[i]);
	if (s->best_bytes > bound && (uint64_t)s->n * alive <= MOST_STEPS) {
		try_order(s, oldest_first);
		try_ceilings(s, bound);
	}
}

static clv_status check_blocks(const place_block *at, uint32_t n)
{
	uint64_t sum = 0;
	for (uint32_t i = 0; i < n; i++) {
		if (at[i].born >= at[i].died)
			return fail(CLV_E_INVALID, "block %u dies at %u and is born at %u", i, at[i].died, at[i].born);
		if (__builtin_add_overflow(sum, at[i].size, &sum) || sum > INT64_MAX)
			return fail(CLV_E_OVERFLOW, "blocks of memory have more than 2^63 bytes in all");
	}
	return CLV_OK;
}

clv_status place_blocks(place_block *at, uint32_t n, uint64_t *bytes, uint64_t *bound)
{
	uint32_t alive;
	arena scratch = {0};
	placing s = {.at = at, .n = n, .best_bytes = PLACE_NONE};
	*bytes = 0;
	*bound = 0;
	if (!n)
		return CLV_OK;
	TRY(check_blocks(at, n));
	TRY(most_alive(at, n, bound, &alive));
	s.order = arena_array(&scratch, n, sizeof *s.order);
	s.offsets = arena_array(&scratch, n, sizeof *s.offsets);
	s.best = arena_array(&scratch, n, sizeof *s.best);
	s.placed = arena_ids(&scratch, n);
	clv_status st = arena_status(&scratch);
	if (st == CLV_OK)
		try_orders(&s, *bound, alive);
	for (uint32_t i = 0; st == CLV_OK && i < n; i++)
		at[i].offset = s.best_bytes == PLACE_NONE ? PLACE_NONE : s.best[i];
	if (st == CLV_OK && s.best_bytes != PLACE_NONE)
		*bytes = s.best_bytes;
	arena_free(&scratch);
	return st;
}
