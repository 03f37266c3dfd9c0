/* Chooses segments: joins the nodes that a back end takes.
 *
 * Every unit has a level: an edge never goes to a lower one, and an edge from the tape to compiled code goes to a
 * higher one. A segment is a connected part of the compiled units of one level.
 *
 * Why that has no cycles: the order (level, compiled before tape) never falls along an edge, so a path that leaves a
 * segment and comes back stays in its level and in compiled code, where each edge is inside the segment, because it
 * joined its ends. The same holds for a union of segments of one level, and for segments that are given up again.
 *
 * First each unit is as early as it can be. Then units that may be later move to the level of their users if no more
 * bytes cross for it; that also joins units that only the order of an effect on the tape had separated. Everything is
 * linear except for sorting; a round in which segments were too small is repeated, a few times at most. */
#include "segment/segment.h"

#include <string.h>

#include "segment/units.h"
#include "split/frontier.h"

enum {
	ROUNDS = 4,    /* of choosing again without the segments that were too small */
	FEW_USERS = 64 /* a value with more is not looked at when units move: each of its users would ask */
};

typedef struct choosing {
	arena arena; /* of the arrays below, and of scratch */
	const plan *p;
	const segments_spec *s;
	segments *out;
	node_names *names;
	units u;
	amounts m;
	bool *taken;          /* per unit: it is compiled */
	uint32_t *level;      /* per unit */
	uint32_t *late;       /* per unit: the latest level, if all that follows is as late as it can be */
	uint32_t *whole;      /* per unit: nodes of its part of the level before units move */
	uint32_t *parent;     /* per unit: union-find of the parts of a level */
	uint32_t *nodes;      /* per unit that stands for a part: nodes of the part */
	double *work;         /* likewise */
	uint32_t *seen_level; /* per level: when it was last seen */
	uint32_t *seen_value; /* per value: likewise */
	uint32_t tick;
	VEC(value_id) touched; /* by the units that want to move */
	clv_status st;
} choosing;

/* ---- levels ----------------------------------------------------------------------------------------------------------------- */

static void find_levels(choosing *c)
{
	const digraph *g = &c->u.g;
	memset(c->level, 0, c->u.n * sizeof *c->level);
	for (uint32_t u = 0; u < g->n; u++)
		for (uint32_t e = g->first[u]; e < g->first[u + 1]; e++) {
			uint32_t to = g->to[e], least = c->level[u] + (!c->taken[u] && c->taken[to]);
			if (c->level[to] < least)
				c->level[to] = least;
		}
}

static uint32_t part_of(choosing *c, uint32_t u)
{
	while (c->parent[u] != u)
		u = c->parent[u] = c->parent[c->parent[u]];
	return u;
}

/* The smaller unit stands for both. */
static void unite(choosing *c, uint32_t a, uint32_t b)
{
	a = part_of(c, a);
	b = part_of(c, b);
	if (a == b)
		return;
	uint32_t low = a < b ? a : b, high = a < b ? b : a;
	c->parent[high] = low;
	c->nodes[low] += c->nodes[high];
	c->work[low] += c->work[high];
}

static void start_parts(choosing *c)
{
	for (uint32_t u = 0; u < c->u.n; u++) {
		c->parent[u] = u;
		c->nodes[u] = c->u.first[u + 1] - c->u.first[u];
		c->work[u] = 0;
		for (uint32_t i = c->u.first[u]; i < c->u.first[u + 1]; i++)
			c->work[u] += c->m.work[c->u.nodes[i]];
	}
}

static void join_neighbours(choosing *c)
{
	const digraph *g = &c->u.g;
	start_parts(c);
	for (uint32_t u = 0; u < g->n; u++)
		for (uint32_t e = g->first[u]; e < g->first[u + 1]; e++)
			if (c->taken[u] && c->taken[g->to[e]] && c->level[u] == c->level[g->to[e]])
				unite(c, u, g->to[e]);
}

/* Units that read the same tensor in one level become one part, which gets it once. */
static void join_readers(choosing *c)
{
	const digraph *g = &c->u.uses;
	uint32_t *reader = c->seen_level; /* per level: a unit that reads this value */
	for (value_id v = 0; v < g->n; v++) {
		for (uint32_t e = g->first[v]; e < g->first[v + 1]; e++)
			reader[c->level[g->to[e]]] = NONE;
		for (uint32_t e = g->first[v]; e < g->first[v + 1]; e++) {
			uint32_t u = g->to[e], l = c->level[u];
			if (!c->taken[u] || c->p->values.at[v].type != TYPE_TENSOR)
				continue;
			if (reader[l] != NONE)
				unite(c, reader[l], u);
			reader[l] = u;
		}
	}
	memset(reader, 0, ((size_t)c->u.n + 1) * sizeof *reader);
}

/* ---- moving to later levels ------------------------------------------------------------------------------------------------- */

static uint32_t maker_of(const choosing *c, value_id v)
{
	node_id def = c->p->values.at[v].def;
	return def == NONE ? NONE : c->u.of_node[def];
}

/* Segments that a value goes to, and one if it leaves the segment that makes it; parts of a level count as one. */
static uint32_t crossings_of(choosing *c, value_id v)
{
	const digraph *g = &c->u.uses;
	uint32_t maker = maker_of(c, v), n = 0;
	bool made = maker != NONE && c->taken[maker], leaves = c->u.kept[v];
	if (g->first[v + 1] - g->first[v] > FEW_USERS)
		return 0;
	c->tick++;
	for (uint32_t e = g->first[v]; e < g->first[v + 1]; e++) {
		uint32_t u = g->to[e];
		if (made && c->taken[u] && c->level[u] == c->level[maker])
			continue;
		leaves = true;
		if (c->taken[u] && c->seen_level[c->level[u]] != c->tick) {
			c->seen_level[c->level[u]] = c->tick;
			n++;
		}
	}
	return n + (made && leaves);
}

static double touched_bytes(choosing *c)
{
	double sum = 0;
	for (uint32_t i = 0; i < c->touched.n; i++)
		sum += (double)c->m.bytes[c->touched.at[i]] * crossings_of(c, c->touched.at[i]);
	return sum;
}

static void note_touched(void *ctx, value_id v)
{
	choosing *c = ctx;
	if (!c->m.bytes[v] || c->seen_value[v] || c->st != CLV_OK)
		return;
	c->seen_value[v] = 1;
	c->st = vec_push(&c->touched, v);
}

static void touch_unit(choosing *c, uint32_t u)
{
	for (uint32_t i = c->u.first[u]; i < c->u.first[u + 1]; i++) {
		node_each_arg(c->p, c->u.nodes[i], note_touched, c);
		node_each_result(c->p, c->u.nodes[i], note_touched, c);
	}
}

/* The latest level that its successors allow a unit, and the earliest of the compiled ones among them. */
typedef struct room {
	uint32_t latest, target; /* NONE: no successor says anything */
} room;

static room look_ahead(const choosing *c, const uint32_t *level, uint32_t u)
{
	const digraph *g = &c->u.g;
	room r = {NONE, NONE};
	for (uint32_t e = g->first[u]; e < g->first[u + 1]; e++) {
		uint32_t to = g->to[e], l = level[to] - (!c->taken[u] && c->taken[to]);
		r.latest = l < r.latest ? l : r.latest;
		if (c->taken[to] && level[to] < r.target)
			r.target = level[to];
	}
	return r;
}

/* The tape costs nothing anywhere: as late as it can be, so that what it needs may be late. */
static void delay_tape(choosing *c, uint32_t u)
{
	room r = look_ahead(c, c->level, u);
	if (r.latest != NONE)
		c->level[u] = r.latest;
}

/* Connected parts, on each level, of the compiled units that could be on a later one; the others stand alone. */
static void join_movable(choosing *c)
{
	const digraph *g = &c->u.g;
	for (uint32_t u = c->u.n; u-- > 0;) {
		room r = look_ahead(c, c->late, u);
		c->late[u] = r.latest == NONE ? c->level[u] : r.latest;
	}
	start_parts(c);
	for (uint32_t u = 0; u < g->n; u++)
		for (uint32_t e = g->first[u]; e < g->first[u + 1]; e++) {
			uint32_t to = g->to[e];
			if (c->taken[u] && c->taken[to] && c->level[u] == c->level[to] && c->late[u] > c->level[u] &&
			    c->late[to] > c->level[to])
				unite(c, u, to);
		}
}

/* Moves a unit to the later level of its users; `less`: bytes that cross less for it (more: less than 0). False:
   there is no such level, and nothing happened. */
static bool move_unit(choosing *c, uint32_t u, double *less)
{
	room r = look_ahead(c, c->level, u);
	if (r.target == NONE || r.target > r.latest || r.target <= c->level[u])
		return false;
	c->touched.n = 0;
	touch_unit(c, u);
	*less = touched_bytes(c);
	c->level[u] = r.target;
	*less -= touched_bytes(c);
	for (uint32_t i = 0; i < c->touched.n; i++)
		c->seen_value[c->touched.at[i]] = 0;
	return true;
}

/* Moves the units of a part one after another, the last first, and takes back those beyond the point where the fewest
   bytes cross: so a step that costs is taken where later ones pay for it. All of a segment may go for nothing, as that is
   one less; one that would be too small alone goes in any case. */
static void move_part(choosing *c, uint32_t *at, uint32_t n)
{
	uint32_t level = c->level[at[0]], moved = 0, kept = 0;
	double less = 0, best = 0, gain;
	for (uint32_t i = 0; i < n && c->st == CLV_OK; i++) {
		if (!move_unit(c, at[i], &gain))
			continue;
		less += gain;
		at[moved++] = at[i];
		if (less > best) {
			best = less;
			kept = moved;
		}
	}
	uint32_t nodes = c->whole[at[0]];
	if (moved == n && nodes == c->nodes[part_of(c, at[0])] && (less >= best || nodes < c->s->minimum))
		kept = moved;
	for (uint32_t i = kept; i < moved; i++)
		c->level[at[i]] = level;
}

/* Units by level, and within a level by part, the tape last. Their levels of before, as these change on the way. */
typedef struct shelf {
	uint32_t level, part, unit;
} shelf;

static int by_shelf(const void *a, const void *b)
{
	const shelf *x = a, *y = b;
	if (x->level != y->level)
		return x->level < y->level ? -1 : 1;
	if (x->part != y->part)
		return x->part < y->part ? -1 : 1;
	return (x->unit > y->unit) - (x->unit < y->unit);
}

/* From the last level to the first, on each the tape before the rest: what comes after a part has moved already. */
static clv_status move_parts(choosing *c)
{
	uint32_t n = c->u.n;
	shelf *shelves = arena_array(&c->arena, n, sizeof *shelves);
	uint32_t *at = arena_ids(&c->arena, n);
	TRY(arena_status(&c->arena));
	for (uint32_t u = 0; u < n; u++)
		shelves[u] = (shelf){c->level[u], c->taken[u] ? part_of(c, u) : NONE, u};
	qsort(shelves, n, sizeof *shelves, by_shelf);
	for (uint32_t i = n; c->st == CLV_OK && i-- > 0;) {
		uint32_t count = 0;
		if (shelves[i].part == NONE) {
			delay_tape(c, shelves[i].unit);
			continue;
		}
		at[count++] = shelves[i].unit;
		for (; i && shelves[i - 1].level == shelves[i].level && shelves[i - 1].part == shelves[i].part; i--)
			at[count++] = shelves[i - 1].unit;
		move_part(c, at, count);
	}
	return c->st;
}

/* ---- segments that are not worth it ---------------------------------------------------------------------------------------- */

static void give_up(choosing *c, uint32_t u, const char *reason)
{
	c->taken[u] = false;
	for (uint32_t i = c->u.first[u]; i < c->u.first[u + 1]; i++)
		c->out->reason[c->u.nodes[i]] = reason;
}

static clv_status too_small(choosing *c, uint32_t nodes, const char **out)
{
	strbuf b = STRBUF_INIT;
	strbuf_printf(&b, ALONE "a segment has at least %u operators, and %u would be together here", c->s->minimum, nodes);
	return arena_take(&c->out->arena, &b, out);
}

/* Segments with too few nodes go to the tape. */
static clv_status drop_small(choosing *c, bool *dropped)
{
	const char **why = arena_array(&c->arena, c->u.n, sizeof *why); /* per unit that stands for a part */
	TRY(arena_status(&c->arena));
	*dropped = false;
	for (uint32_t u = 0; u < c->u.n; u++) {
		uint32_t x = part_of(c, u);
		if (!c->taken[u] || c->nodes[x] >= c->s->minimum)
			continue;
		if (!why[x])
			TRY(too_small(c, c->nodes[x], &why[x]));
		give_up(c, u, why[x]);
		*dropped = true;
	}
	return CLV_OK;
}

static clv_status choose_parts(choosing *c)
{
	for (uint32_t round = 0; round < ROUNDS; round++) {
		bool dropped;
		find_levels(c);
		join_neighbours(c);
		for (uint32_t u = 0; u < c->u.n; u++)
			c->whole[u] = c->nodes[part_of(c, u)];
		join_movable(c);
		TRY(move_parts(c));
		join_neighbours(c);
		join_readers(c);
		TRY(drop_small(c, &dropped));
		if (!dropped)
			break;
	}
	return CLV_OK;
}

/* ---- at most so many -------------------------------------------------------------------------------------------------------- */

typedef struct candidate {
	double work;
	uint32_t level, part, next; /* next: a part of the same level with no less work; NONE: it is the last there */
} candidate;

static int by_work(const void *a, const void *b)
{
	const candidate *x = a, *y = b;
	if (x->work != y->work)
		return x->work < y->work ? -1 : 1;
	return (x->part > y->part) - (x->part < y->part);
}

static int by_level(const void *a, const void *b)
{
	const candidate *x = a, *y = b;
	if (x->level != y->level)
		return x->level < y->level ? -1 : 1;
	return by_work(a, b);
}

typedef VEC(candidate) candidates;

static clv_status list_parts(choosing *c, candidates *out)
{
	out->n = 0;
	for (uint32_t u = 0; u < c->u.n; u++)
		if (c->taken[u] && part_of(c, u) == u)
			TRY(vec_push(out, ((candidate){c->work[u], c->level[u], u, NONE})));
	if (!out->n)
		return CLV_OK;
	qsort(out->at, out->n, sizeof *out->at, by_level);
	for (uint32_t i = 0; i + 1 < out->n; i++)
		if (out->at[i].level == out->at[i + 1].level)
			out->at[i].next = out->at[i + 1].part;
	qsort(out->at, out->n, sizeof *out->at, by_work);
	return CLV_OK;
}

static void join_least(choosing *c, const candidates *all)
{
	uint32_t over = all->n - c->s->most;
	for (uint32_t i = 0; i < all->n && over; i++)
		if (all->at[i].next != NONE) {
			unite(c, all->at[i].part, all->at[i].next);
			over--;
		}
}

static clv_status drop_least(choosing *c, const candidates *all)
{
	bool *drop = arena_alloc(&c->arena, c->u.n); /* per unit that stands for a part */
	strbuf b = STRBUF_INIT;
	const char *why = NULL;
	strbuf_printf(&b, GIVEN_UP "there may be %u segment%s, and others have more work", c->s->most,
	              c->s->most == 1 ? "" : "s");
	TRY(arena_take(&c->out->arena, &b, &why));
	TRY(arena_status(&c->arena));
	for (uint32_t i = 0; i + c->s->most < all->n; i++)
		drop[all->at[i].part] = true;
	for (uint32_t u = 0; u < c->u.n; u++)
		if (c->taken[u] && drop[part_of(c, u)])
			give_up(c, u, why);
	return CLV_OK;
}

static clv_status limit_parts(choosing *c)
{
	candidates all = {0};
	clv_status st = c->s->most ? list_parts(c, &all) : CLV_OK;
	if (st == CLV_OK && all.n > c->s->most) {
		join_least(c, &all);
		st = list_parts(c, &all);
	}
	if (st == CLV_OK && all.n > c->s->most)
		st = drop_least(c, &all);
	vec_free(&all);
	return st;
}

/* ---- what comes out --------------------------------------------------------------------------------------------------------- */

static uint32_t segment_of_unit(const choosing *c, uint32_t u)
{
	return c->out->of_node[c->u.nodes[c->u.first[u]]];
}

/* c->seen_value is here: per segment, the last value that was counted for it, and one more. */
static void count_segment_bytes(choosing *c, value_id v, uint32_t *counted)
{
	const digraph *g = &c->u.uses;
	segments *s = c->out;
	uint32_t maker = maker_of(c, v), from = maker == NONE ? NONE : segment_of_unit(c, maker);
	bool leaves = c->u.kept[v];
	for (uint32_t e = g->first[v]; e < g->first[v + 1]; e++) {
		uint32_t to = segment_of_unit(c, g->to[e]);
		if (to == from)
			continue;
		leaves = true;
		if (to != NONE && counted[to] != v) {
			counted[to] = v;
			s->at.at[to].bytes_in = add_bytes(s->at.at[to].bytes_in, c->m.bytes[v]);
		}
	}
	if (from != NONE && leaves)
		s->at.at[from].bytes_out = add_bytes(s->at.at[from].bytes_out, c->m.bytes[v]);
}

static clv_status measure_segments(choosing *c)
{
	segments *s = c->out;
	uint32_t *counted = arena_ids(&c->arena, s->at.n);
	TRY(arena_status(&c->arena));
	for (node_id k = 0; k < c->p->nodes.n; k++)
		if (s->of_node[k] != NONE)
			s->at.at[s->of_node[k]].work += c->m.work[k];
	for (value_id v = 0; v < c->p->values.n; v++)
		if (c->m.bytes[v])
			count_segment_bytes(c, v, counted);
	return CLV_OK;
}

static clv_status fill_segments(choosing *c)
{
	segments *s = c->out;
	uint32_t *name = arena_ids(&c->arena, c->u.n), n = 0; /* per unit that stands for a part */
	TRY(arena_status(&c->arena));
	for (uint32_t u = 0; u < c->u.n; u++) {
		uint32_t x = part_of(c, u);
		if (c->taken[u] && name[x] == NONE)
			name[x] = n++;
		for (uint32_t i = c->u.first[u]; i < c->u.first[u + 1]; i++) {
			s->of_node[c->u.nodes[i]] = c->taken[u] ? name[x] : NONE;
			s->unit_of[c->u.nodes[i]] = u;
		}
	}
	TRY(segments_order(s, &c->u, n));
	return measure_segments(c);
}

static clv_status choosing_alloc(choosing *c)
{
	arena *a = &c->arena;
	size_t n = (size_t)c->u.n + 1;
	c->taken = arena_alloc(a, n);
	c->level = arena_array(a, n, sizeof *c->level);
	c->late = arena_array(a, n, sizeof *c->late);
	c->whole = arena_array(a, n, sizeof *c->whole);
	c->parent = arena_array(a, n, sizeof *c->parent);
	c->nodes = arena_array(a, n, sizeof *c->nodes);
	c->work = arena_array(a, n, sizeof *c->work);
	c->seen_level = arena_array(a, n, sizeof *c->seen_level);
	c->seen_value = arena_array(a, c->p->values.n, sizeof *c->seen_value);
	return arena_status(a);
}

static clv_status choose_all(choosing *c)
{
	segments *s = c->out;
	uint32_t n = c->p->nodes.n;
	TRY(arena_status(&s->arena));
	for (node_id k = 0; k < n; k++)
		s->reason[k] = c->s->no ? c->s->no[k] : NULL;
	TRY(node_names_new(c->p, &c->names));
	TRY(units_find(c->p, c->names, s->reason, &s->arena, &c->u));
	TRY(amounts_of(c->p, c->s->syms, &c->m));
	TRY(choosing_alloc(c));
	for (uint32_t u = 0; u < c->u.n; u++) /* a unit of several nodes has none with a reason */
		c->taken[u] = !s->reason[c->u.nodes[c->u.first[u]]];
	TRY(choose_parts(c));
	TRY(limit_parts(c));
	return fill_segments(c);
}

clv_status segments_choose(const plan *p, const segments_spec *s, segments *out)
{
	segments made = {.p = p};
	made.of_node = arena_ids(&made.arena, p->nodes.n);
	made.unit_of = arena_ids(&made.arena, p->nodes.n);
	made.reason = arena_array(&made.arena, p->nodes.n, sizeof *made.reason);
	choosing c = {.p = p, .s = s, .out = &made};
	clv_status st = choose_all(&c);
	node_names_free(c.names);
	units_free(&c.u);
	amounts_free(&c.m);
	arena_free(&c.arena);
	vec_free(&c.touched);
	if (st == CLV_OK)
		*out = made;
	else
		segments_free(&made);
	return st;
}

void segments_free(segments *s)
{
	vec_free(&s->at);
	vec_free(&s->order);
	arena_free(&s->arena);
	*s = (segments){0};
}

bool reason_is_chooser(const char *reason)
{
	return strncmp(reason, ALONE, strlen(ALONE)) == 0 || strncmp(reason, GIVEN_UP, strlen(GIVEN_UP)) == 0 ||
	       strncmp(reason, TIED, strlen(TIED)) == 0 || strcmp(reason, SLOWER) == 0;
}
