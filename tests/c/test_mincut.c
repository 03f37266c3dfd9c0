/* The exact cut: the network alone against all cuts, and plans with effects against all ways to divide their nodes. */
#include "support.h"

#include <string.h>
#include <time.h>

#include "plan/view.h"
#include "split/mincut.h"
#include "split/order.h"

#define HEAD "cleave-plan 1\nmodel \"Net\"\n"

/* ---- networks -------------------------------------------------------------------------------------------------------- */

typedef struct random_edge {
	uint32_t from, to;
	int64_t capacity;
} random_edge;

static int64_t cut_cost(const random_edge *e, uint32_t n, uint32_t side)
{
	int64_t cost = 0;
	for (uint32_t i = 0; i < n; i++)
		if ((side >> e[i].from & 1) && !(side >> e[i].to & 1))
			cost = cost + e[i].capacity < NETWORK_NEVER ? cost + e[i].capacity : NETWORK_NEVER;
	return cost;
}

static void a_network_is_cut_where_it_is_cheapest(void **state)
{
	(void)state;
	uint64_t seed = 1;
	for (int round = 0; round < 3000; round++) {
		random_edge e[20];
		uint32_t vertices = 2 + random_below(&seed, 6), n = random_below(&seed, 20), smallest = 0;
		network net = {0};
		bool side[8];
		int64_t got, best = NETWORK_NEVER;
		OK(network_new(&net, vertices));
		for (uint32_t i = 0; i < n; i++) {
			e[i] = (random_edge){random_below(&seed, vertices), random_below(&seed, vertices), random_below(&seed, 9)};
			if (random_below(&seed, 10) == 0)
				e[i].capacity = NETWORK_NEVER;
			OK(network_edge_add(&net, e[i].from, e[i].to, e[i].capacity));
		}
		for (uint32_t s = 1; s < 1u << vertices; s++) {
			int64_t cost = s & 1 && !(s & 2) ? cut_cost(e, n, s) : NETWORK_NEVER;
			if (cost < best ||
			    (cost == best && best < NETWORK_NEVER && __builtin_popcount(s) < __builtin_popcount(smallest))) {
				best = cost;
				smallest = s;
			}
		}
		uint32_t path[8];
		bool uncuttable = network_uncuttable(&net, path) > 0;
		network_cut(&net, side, &got);
		assert_int_equal(got >= NETWORK_NEVER, best >= NETWORK_NEVER);
		if (uncuttable)
			assert_true(got >= NETWORK_NEVER);
		if (best < NETWORK_NEVER) {
			assert_int_equal(got, best);
			for (uint32_t v = 0; v < vertices; v++)
				assert_int_equal(side[v], smallest >> v & 1);
		}
		network_free(&net);
	}
}

/* ---- random plans with effects --------------------------------------------------------------------------------------- */

enum { NODES_MAX = 8, VALUES_MAX = 32 };

typedef struct writer {
	strbuf b;
	uint64_t seed;
	char label[VALUES_MAX][16], root[VALUES_MAX][16];
	uint32_t n, results;
	bool reaches; /* some nodes read memory beyond the elements of what they are given */
} writer;

static uint32_t below(writer *w, uint32_t n)
{
	return random_below(&w->seed, n);
}

static void add_value(writer *w, const char *label, const char *root)
{
	strcpy(w->label[w->n], label);
	strcpy(w->root[w->n++], root);
}

static void put_args(writer *w, uint32_t first)
{
	strbuf_printf(&w->b, "(%s", w->label[first]);
	for (uint32_t i = below(w, 3); i > 0; i--)
		strbuf_printf(&w->b, ", %s", w->label[below(w, w->n)]);
	strbuf_puts(&w->b, ")");
}

static void put_node(writer *w, uint32_t k)
{
	char label[16];
	uint32_t of = below(w, w->n), kind = below(w, 20);
	snprintf(label, sizeof label, "%%r%u", w->results);
	if (kind == 0) {
		strbuf_printf(&w->b, "t::n%u(%s) {impure}\n", k, w->label[of]);
		return;
	}
	if (kind == 1) {
		strbuf_printf(&w->b, "%%h%u = t::n%u(%s) -> float = 1.5 {host}\n", k, k, w->label[of]);
		return;
	}
	strbuf_printf(&w->b, "%s = t::%sn%u", label, w->reaches && below(w, 6) == 0 ? "as_strided." : "", k);
	put_args(w, of);
	strbuf_printf(&w->b, " -> u8[%u]", 1 + below(w, 60));
	bool on_same = kind >= 2 && kind < 9;
	if (kind == 9)
		strbuf_puts(&w->b, " odd");
	if (on_same)
		strbuf_printf(&w->b, " view-of %s", w->root[of]);
	if (kind >= 5 && kind < 9)
		strbuf_printf(&w->b, " writes %s", w->label[of]);
	if (kind == 10 || kind == 11)
		strbuf_puts(&w->b, " {random}");
	strbuf_puts(&w->b, "\n");
	w->results++;
	add_value(w, label, on_same ? w->root[of] : label);
}

static plan *effectful_plan(uint64_t seed)
{
	writer w = {.b = STRBUF_INIT, .seed = seed * 7919 + 13, .reaches = seed % 2 == 0};
	strbuf_puts(&w.b, HEAD "input %x u8[9] name=\"x\"\ninput %y u8[40]\nparam @w u8[20]\n");
	add_value(&w, "%x", "%x");
	add_value(&w, "%y", "%y");
	add_value(&w, "@w", "@w");
	uint32_t nodes = 3 + below(&w, NODES_MAX - 2);
	for (uint32_t k = 0; k < nodes; k++)
		put_node(&w, k);
	strbuf_printf(&w.b, "output [%s", w.label[w.n - 1]);
	for (uint32_t i = below(&w, 3); i > 0; i--)
		strbuf_printf(&w.b, ", %s", w.label[below(&w, w.n)]);
	strbuf_puts(&w.b, "]\n");
	char *text = taken(&w.b);
	plan *p = load_ok(text);
	mem_free(text);
	return p;
}

/* ---- all ways to divide it ------------------------------------------------------------------------------------------- */

typedef struct touching {
	const plan *p;
	bool roots[VALUES_MAX];
} touching;

static void touch(void *ctx, value_id v)
{
	touching *t = ctx;
	t->roots[alias_root(t->p, v)] = true;
}

static void touch_new(void *ctx, value_id v)
{
	touching *t = ctx;
	if (t->p->values.at[v].alias == NONE)
		t->roots[v] = true;
}

static touching touched_by(const plan *p, node_id k, bool only_changed)
{
	touching t = {.p = p};
	node_each_result(p, k, only_changed ? touch_new : touch, &t);
	if (!only_changed)
		node_each_arg(p, k, touch, &t);
	for (uint32_t i = 0; i < p->nodes.at[k].nwrites; i++)
		touch(&t, p->ids.at[p->nodes.at[k].writes + i]);
	return t;
}

static bool overlap(const touching *a, const touching *b)
{
	for (uint32_t i = 0; i < VALUES_MAX; i++)
		if (a->roots[i] && b->roots[i])
			return true;
	return false;
}

typedef struct search_for {
	const plan *p;
	node_id maker;
	bool found;
} search_for;

static void is_made_by(void *ctx, value_id v)
{
	search_for *s = ctx;
	s->found |= s->p->values.at[v].def == s->maker;
}

static bool uses_result_of(const plan *p, node_id b, node_id a)
{
	search_for s = {p, a, false};
	node_each_arg(p, b, is_made_by, &s);
	return s.found;
}

static bool leaves_trace(const plan *p, node_id k)
{
	const node *n = &p->nodes.at[k];
	for (uint32_t i = 0; i < n->nwrites; i++)
		if (p->values.at[alias_root(p, p->ids.at[n->writes + i])].kind != VALUE_RESULT)
			return true;
	return n->flags & NODE_RANDOM;
}

/* One of the first and one of the second are from outside, and one of the two is an input: that may lie on the other. */
static bool may_overlap(const touching *a, const touching *b)
{
	for (value_id i = 0; i < a->p->values.n; i++)
		for (value_id k = 0; k < a->p->values.n; k++) {
			uint8_t x = a->p->values.at[i].kind, y = a->p->values.at[k].kind;
			if (a->roots[i] && b->roots[k] && x != VALUE_RESULT && y != VALUE_RESULT &&
			    (x == VALUE_INPUT || y == VALUE_INPUT))
				return true;
		}
	return false;
}

/* a comes before b in the plan; must it stay so? The rules as they are said. */
static bool must_stay(const plan *p, node_id a, node_id b)
{
	const node *x = &p->nodes.at[a], *y = &p->nodes.at[b];
	touching all_a = touched_by(p, a, false), all_b = touched_by(p, b, false);
	touching changed_a = touched_by(p, a, true), changed_b = touched_by(p, b, true);
	if (uses_result_of(p, b, a) || overlap(&changed_a, &all_b) || overlap(&all_a, &changed_b))
		return true;
	if (may_overlap(&changed_a, &all_b) || may_overlap(&all_a, &changed_b))
		return true;
	if (x->flags & y->flags & NODE_RANDOM)
		return true;
	uint32_t looks = NODE_HOST | NODE_IMPURE;
	return (x->flags & looks) || ((y->flags & looks) && leaves_trace(p, a));
}

typedef struct division {
	plan *p;
	uint32_t closed[NODES_MAX + 1]; /* per node: nodes that must be in the prefix with it */
	uint32_t must_prefix, must_suffix;
} division;

static bool is_allowed(const division *d, uint32_t prefix)
{
	if ((prefix & d->must_prefix) != d->must_prefix || (prefix & d->must_suffix))
		return false;
	for (node_id k = 0; k < d->p->nodes.n; k++)
		if ((prefix >> k & 1) && (prefix & d->closed[k]) != d->closed[k])
			return false;
	return prefix && prefix != (1u << d->p->nodes.n) - 1;
}

/* Bytes that cross between these nodes and the rest; -1 when the cut is unsafe. */
static int64_t bytes_of_division(const plan *p, uint32_t prefix)
{
	node_id order[NODES_MAX + 1];
	uint32_t n = 0;
	plan *q = NULL;
	clv_frontiers *f = NULL;
	clv_frontier c = {.size = sizeof c};
	for (int suffix = 0; suffix <= 1; suffix++)
		for (node_id k = 0; k < p->nodes.n; k++)
			if ((prefix >> k & 1) == !suffix)
				order[n++] = k;
	OK(plan_reorder(p, order, &q));
	OK(clv_frontiers_create(q, NULL, &f));
	OK(clv_frontiers_get(f, (uint32_t)__builtin_popcount(prefix) - 1, &c));
	int64_t bytes = c.unsafe ? -1 : c.boundary_bytes;
	clv_frontiers_free(f);
	plan_free(q);
	return bytes;
}

static int64_t fewest_bytes(const division *d)
{
	int64_t best = -1;
	for (uint32_t s = 1; s < 1u << d->p->nodes.n; s++) {
		int64_t bytes = is_allowed(d, s) ? bytes_of_division(d->p, s) : -1;
		if (bytes >= 0 && (best < 0 || bytes < best))
			best = bytes;
	}
	return best;
}

/* The prefix of a reordered plan as a set of nodes of the first; operators end with n0, n1, … */
static uint32_t prefix_of(const plan *q, uint32_t position)
{
	uint32_t prefix = 0;
	for (node_id k = 0; k <= position; k++)
		prefix |= 1u << atoi(strrchr(plan_s(q, q->nodes.at[k].op), 'n') + 1);
	return prefix;
}

static void set_defaults(division *d, const clv_frontiers *f)
{
	uint32_t n = d->p->nodes.n;
	d->must_prefix = 1;
	d->must_suffix = 1u << (n - 1);
	for (node_id k = 0; k + 1 < n; k++) {
		clv_frontier c = {.size = sizeof c};
		OK(clv_frontiers_get(f, k, &c));
		d->must_prefix |= c.prefix_cost <= 0.2 ? 1u << k : 0;
		d->must_suffix |= c.prefix_cost >= 0.8 ? 1u << (k + 1) : 0;
	}
}

/* Input writers are in the prefix in any case: anything else would be unsafe. */
static void the_exact_cut_has_the_fewest_bytes_of_all_divisions(void **state)
{
	(void)state;
	unsigned found = 0, none = 0, better = 0;
	for (uint64_t seed = 0; seed < 3000; seed++) {
		plan *p = effectful_plan(seed), *q = NULL;
		uint64_t random = seed + 99;
		clv_frontiers *f = NULL;
		division d = {.p = p};
		char first[16], last[16];
		const char *prefix_name = first, *suffix_name = last;
		clv_exact_options o = CLV_EXACT_OPTIONS_INIT;
		uint32_t at = 0;
		OK(clv_frontiers_create(p, NULL, &f));
		for (node_id b = 0; b < p->nodes.n; b++)
			for (node_id a = 0; a < b; a++)
				d.closed[b] |= must_stay(p, a, b) ? 1u << a : 0;
		set_defaults(&d, f);
		if (seed % 2) {
			uint32_t i = random_below(&random, p->nodes.n), k = random_below(&random, p->nodes.n);
			snprintf(first, sizeof first, "n%u", i);
			snprintf(last, sizeof last, "n%u", k);
			o.must_prefix = &prefix_name;
			o.must_suffix = &suffix_name;
			o.nmust_prefix = o.nmust_suffix = 1;
			d.must_prefix = 1u << i;
			d.must_suffix = 1u << k;
		}
		int64_t want = fewest_bytes(&d);
		clv_status st = clv_frontiers_exact(f, &o, &q, &at);
		if (st == CLV_OK) {
			uint32_t prefix = prefix_of(q, at);
			int64_t got = bytes_of_division(p, prefix);
			char *text = print_ok(q);
			if (!is_allowed(&d, prefix) || got != want)
				fail_msg("seed %llu: %lld instead of %lld bytes\n%s", (unsigned long long)seed, (long long)got,
				         (long long)want, text);
			mem_free(text);
			found++;
			better += (prefix & (prefix + 1)) != 0;
		} else {
			assert_int_equal(st, CLV_E_UNSUPPORTED);
			if (want >= 0 && !strstr(status_message(), "nothing crosses"))
				fail_msg("seed %llu: %lld bytes were possible: %s", (unsigned long long)seed, (long long)want,
				         status_message());
			none++;
		}
		clv_frontiers_free(f);
		plan_free(p);
		plan_free(q);
	}
	print_message("%u cuts, %u of them at no position of the plan, %u plans without\n", found, better, none);
	assert_true(found > 1000 && better > 100 && none > 50);
}

/* ---- plans that show one thing each ---------------------------------------------------------------------------------- */

/* Cuts and gives the nodes of the prefix by name. */
static char *prefix_names(const char *text, const clv_exact_options *o)
{
	plan *p = load_ok(text), *q = NULL;
	clv_frontiers *f = NULL;
	node_names *names = NULL;
	strbuf b = STRBUF_INIT;
	uint32_t at = 0;
	OK(clv_frontiers_create(p, NULL, &f));
	if (clv_frontiers_exact(f, o, &q, &at) != CLV_OK)
		fail_msg("%s", status_message());
	OK(plan_verify(q));
	OK(node_names_new(q, &names));
	for (node_id k = 0; k <= at; k++)
		strbuf_printf(&b, "%s%s", k ? " " : "", node_name(names, k));
	node_names_free(names);
	clv_frontiers_free(f);
	plan_free(p);
	plan_free(q);
	return taken(&b);
}

/* One name on each side. */
static clv_exact_options between(const char *const *prefix, const char *const *suffix)
{
	return (clv_exact_options){sizeof(clv_exact_options), prefix, 1, suffix, 1};
}

#define CHECK_PREFIX(text, options, want)                                                                              \
	do {                                                                                                               \
		char *got_ = prefix_names(text, options);                                                                      \
		assert_string_equal(got_, want);                                                                               \
		mem_free(got_);                                                                                                \
	} while (0)

/* Two branches, traced one after the other, that both end small: each position cuts one of them where it is large. */
static const char *const branches = HEAD "scope \"\" \"Net\"\nscope left \"Branch\"\nscope right \"Branch\"\n"
										 "input %x f32[4]\n"
										 "%1 = t::stem(%x) -> f32[4]\n"
										 "%2 = t::wide(%1) -> f32[1000] in left\n"
										 "%3 = t::narrow(%2) -> f32[900] in left\n"
										 "%4 = t::wide2(%1) -> f32[1000] in right\n"
										 "%5 = t::narrow2(%4) -> f32[1] in right\n"
										 "%6 = t::join(%3, %5) -> f32[1000]\n"
										 "output %6\n";

static void branches_are_cut_where_each_is_small(void **state)
{
	(void)state;
	const char *right = "right", *join = "join", *left = "left";
	clv_exact_options o = between(&right, &join);
	CHECK_PREFIX(branches, &o, "stem wide2 narrow2"); /* %1 and %5: 20 bytes; left stays whole in the suffix */
	o.must_prefix = &left;
	CHECK_PREFIX(branches, &o, "stem wide narrow wide2 narrow2"); /* %5 is less than %1 */
}

static void inputs_and_values_from_outside_keep_their_ids(void **state)
{
	(void)state;
	const char *right = "right", *join = "join";
	clv_exact_options o = between(&right, &join);
	plan *p = load_ok(branches), *q = NULL, *back = NULL;
	clv_frontiers *f = NULL;
	uint32_t at = 0;
	OK(clv_frontiers_create(p, NULL, &f));
	OK(clv_frontiers_exact(f, &o, &q, &at));
	assert_int_equal(at, 2);
	for (value_id v = 0; v < p->values.n; v++) {
		assert_int_equal(p->values.at[v].kind, q->values.at[v].kind);
		assert_int_equal(p->values.at[v].name, q->values.at[v].name);
	}
	assert_false(plan_equal(p, q));
	OK(plan_reorder(q, (const node_id[]){0, 3, 4, 1, 2, 5}, &back));
	assert_true(plan_equal(p, back));
	FAILS(plan_reorder(q, (const node_id[]){5, 3, 4, 1, 2, 0}, &back), CLV_E_VERIFY, "used before it is defined");
	FAILS(plan_reorder(q, (const node_id[]){0, 0, 1, 2, 3, 4}, &back), CLV_E_INVALID, "each node once");
	clv_frontiers_free(f);
	plan_free(p);
	plan_free(q);
	plan_free(back);
}

/* Buffers may be tied, and inputs may lie on them, after a plan was captured. */
static void a_plan_says_that_a_write_changed_places_with_a_use(void **state)
{
	(void)state;
	plan *p = load_ok("cleave-plan 1\nmodel \"M\" training=no grad=any\ninput %0 f32[4] name=\"x\"\nbuffer @a f32[4]\n"
	                  "buffer @b f32[4]\n%1 = aten::mul.Tensor(%0, @b) -> f32[4]\n"
	                  "%2 = aten::add_.Tensor(@a, %0, 1) -> f32[4] view-of @a writes @a\n"
	                  "%3 = aten::relu(%1) -> f32[4]\n%4 = aten::mul.Tensor(%3, @b) -> f32[4]\noutput %4\n");
	plan *same, *moved, *again;
	OK(plan_reorder(p, (const node_id[]){0, 2, 1, 3}, &same)); /* what is made on the way is on memory of its own */
	assert_false(same->moved);
	OK(plan_reorder(p, (const node_id[]){0, 2, 3, 1}, &moved));
	assert_true(moved->moved);
	strbuf b = STRBUF_INIT;
	plan_print(moved, &b);
	assert_non_null(strstr(b.at, "grad=any moved=yes\n"));
	OK(clv_plan_parse(b.at, b.n, &again));
	assert_true(again->moved && plan_equal(moved, again));
	strbuf_free(&b);
	plan_free(p);
	plan_free(same);
	plan_free(moved);
	plan_free(again);
}

static void uses_of_inputs_stay_where_they_were_between_writes(void **state)
{
	(void)state;
	plan *p = load_ok("cleave-plan 1\nmodel \"M\"\ninput %0 f32[4] name=\"x\"\nbuffer @a f32[4]\nbuffer @b f32[4]\n"
	                  "%1 = aten::neg(%0) -> f32[4]\n%2 = aten::add_.Tensor(@a, @b, 1) -> f32[4] view-of @a writes @a\n"
	                  "%3 = aten::neg(%0) -> f32[4]\n%4 = aten::neg(@b) -> f32[4]\noutput (%1, %3, %4)\n");
	order_pairs pairs = {0};
	bool before = false, after = false, other = false;
	OK(order_of_effects(p, &pairs));
	for (uint32_t i = 0; i < pairs.n; i++) {
		before |= pairs.at[i].before == 0 && pairs.at[i].after == 1;
		after |= pairs.at[i].before == 1 && pairs.at[i].after == 2;
		other |= pairs.at[i].before == 1 && pairs.at[i].after == 3;
	}
	assert_true(before && after && !other);
	vec_free(&pairs);
	plan_free(p);
}

static void draws_keep_their_order(void **state)
{
	(void)state;
	const char *second = "draw2", *last = "end";
	clv_exact_options o = between(&second, &last);
	CHECK_PREFIX(HEAD "input %x f32[4]\n"
	                  "%1 = t::draw1(%x) -> f32[4] {random}\n"
	                  "%2 = t::draw2(%x) -> f32[4] {random}\n"
	                  "%3 = t::end(%1, %2) -> f32[4]\n"
	                  "output %3\n",
	             &o, "draw1 draw2");
}

static void nothing_passes_a_guard(void **state)
{
	(void)state;
	const char *later = "later", *last = "end";
	clv_exact_options o = between(&later, &last);
	CHECK_PREFIX(HEAD "input %x f32[4]\n"
	                  "%1 = t::a(%x) -> f32[400]\n"
	                  "%2 = t::item(%1) -> float = 2.0 {host}\n"
	                  "%3 = t::later(%x) -> f32[4]\n"
	                  "%4 = t::end(%1, %3) -> f32[4]\n"
	                  "output %4\n",
	             &o, "a item later");
}

static const char *const written_later = HEAD "input %x f32[4]\n"
											  "%1 = t::big(%x) -> f32[10]\n"
											  "%2 = t::view(%1) -> f32[2] view-of %1\n"
											  "%3 = t::use(%1) -> f32[100]\n"
											  "%4 = t::write_(%2) -> f32[2] view-of %1 writes %2\n"
											  "%5 = t::end(%3, %4) -> f32[4]\n"
											  "output %5\n";

/* The view must be before and the write after the cut: the whole must not cross beside the view, whatever it costs. */
static void memory_that_is_written_later_crosses_once(void **state)
{
	(void)state;
	const char *view = "view", *write = "write_";
	clv_exact_options o = between(&view, &write);
	CHECK_PREFIX(written_later, &o, "big view use");
}

/* "use" makes less than "view" gives away, but who reads all memory of %1 stays on the side of who made it. */
static void memory_that_is_read_beyond_its_elements_does_not_cross(void **state)
{
	(void)state;
	const char *stem = "stem", *end = "end";
	clv_exact_options o = between(&stem, &end);
	static const char *const text = HEAD "input %%x f32[4]\n"
										 "%%1 = t::stem(%%x) -> f32[10]\n"
										 "%%2 = t::view(%%1) -> f32[1] view-of %%1\n"
										 "%%3 = aten::%s(%%2, [2], [3]) -> f32[2] view-of %%1\n"
										 "%%4 = t::use(%%3) -> f32[2]\n"
										 "%%5 = t::end(%%4) -> f32[4]\n"
										 "output %%5\n";
	char plain[512], beyond[512];
	snprintf(plain, sizeof plain, text, "slice");
	snprintf(beyond, sizeof beyond, text, "as_strided");
	CHECK_PREFIX(plain, &o, "stem view");
	CHECK_PREFIX(beyond, &o, "stem view as_strided");
}

static void what_cannot_be_parted_is_named(void **state)
{
	(void)state;
	const char *narrow = "narrow", *stem = "stem", *nobody = "nobdy";
	clv_exact_options o = between(&narrow, &stem);
	plan *p = load_ok(branches), *q = NULL,
		 *one = load_ok(HEAD "input %x f32[1]\n%1 = t::a(%x) -> f32[1]\noutput %1\n");
	clv_frontiers *f = NULL, *f1 = NULL;
	uint32_t at = 0;
	OK(clv_frontiers_create(p, NULL, &f));
	OK(clv_frontiers_create(one, NULL, &f1));
	FAILS(clv_frontiers_exact(f, &o, &q, &at), CLV_E_UNSUPPORTED,
	      "narrow must be in the prefix, and it needs stem, which must be in the suffix");
	o.must_prefix = &stem;
	FAILS(clv_frontiers_exact(f, &o, &q, &at), CLV_E_UNSUPPORTED, "stem must be in the prefix and in the suffix");
	o.must_prefix = &nobody;
	FAILS(clv_frontiers_exact(f, &o, &q, &at), CLV_E_NOT_FOUND, "must_prefix: no module or node is called \"nobdy\"");
	FAILS(clv_frontiers_exact(f1, NULL, &q, &at), CLV_E_UNSUPPORTED, "too few operators");
	FAILS(clv_frontiers_exact(f, NULL, NULL, &at), CLV_E_INVALID, "NULL");
	FAILS(clv_frontiers_exact(NULL, NULL, &q, &at), CLV_E_INVALID, "NULL");
	FAILS(clv_frontiers_exact(f, NULL, &q, NULL), CLV_E_INVALID, "NULL");
	o.must_prefix = NULL;
	FAILS(clv_frontiers_exact(f, &o, &q, &at), CLV_E_INVALID, "a name is NULL");
	o.size = 3;
	FAILS(clv_frontiers_exact(f, &o, &q, &at), CLV_E_INVALID, "clv_exact_options.size is 3");
	clv_frontiers_free(f);
	clv_frontiers_free(f1);
	plan_free(p);
	plan_free(one);
}

typedef struct wish {
	const clv_frontiers *f;
	const clv_exact_options *o;
} wish;

static clv_status cut_exactly(const void *ctx)
{
	const wish *w = ctx;
	plan *q = NULL;
	uint32_t at;
	clv_status st = clv_frontiers_exact(w->f, w->o, &q, &at);
	plan_free(q);
	return st;
}

static void sweep(const char *text, const clv_exact_options *o, clv_status want)
{
	plan *p = load_ok(text);
	clv_frontiers *f = NULL;
	OK(clv_frontiers_create(p, NULL, &f));
	sweep_faults(cut_exactly, &(wish){f, o}, want);
	clv_frontiers_free(f);
	plan_free(p);
}

static void every_allocation_may_fail(void **state)
{
	(void)state;
	const char *view = "view", *write = "write_", *stem = "stem", *nobody = "nobody";
	clv_exact_options searched = between(&view, &write), parted = between(&write, &view),
					  unknown = between(&stem, &nobody);
	sweep(branches, NULL, CLV_OK);
	sweep(written_later, &searched, CLV_OK);
	sweep(written_later, &parted, CLV_E_UNSUPPORTED);
	sweep(branches, &unknown, CLV_E_NOT_FOUND);
}

/* ---- large plans ----------------------------------------------------------------------------------------------------- */

static void timed(const char *text, const char *what)
{
	struct timespec a, b, c;
	plan *p = load_ok(text), *q = NULL;
	clv_frontiers *f = NULL;
	uint32_t at;
	timespec_get(&a, TIME_UTC);
	OK(clv_frontiers_create(p, NULL, &f));
	timespec_get(&b, TIME_UTC);
	OK(clv_frontiers_exact(f, NULL, &q, &at));
	timespec_get(&c, TIME_UTC);
	print_message("%-18s %6u nodes: frontiers %5.0f ms, exact cut %5.0f ms\n", what, p->nodes.n,
	              (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) * 1e-6,
	              (double)(c.tv_sec - b.tv_sec) * 1e3 + (double)(c.tv_nsec - b.tv_nsec) * 1e-6);
	clv_frontiers_free(f);
	plan_free(p);
	plan_free(q);
}

/* Blocks of three nodes around a residual, as a transformer has them; writes in place now and then. */
static char *residual_tower(int blocks)
{
	strbuf b = STRBUF_INIT;
	strbuf_puts(&b, HEAD "input %x0 f32[4,64]\n");
	for (int i = 0; i < blocks; i++) {
		strbuf_printf(&b, "%%a%d = t::up(%%x%d) -> f32[4,%d]\n", i, i, 200 + i % 7);
		strbuf_printf(&b, "%%b%d = t::act_(%%a%d) -> f32[4,%d] view-of %%a%d writes %%a%d\n", i, i, 200 + i % 7, i, i);
		strbuf_printf(&b, "%%c%d = t::down(%%b%d) -> f32[4,64]\n", i, i);
		strbuf_printf(&b, "%%x%d = t::add(%%x%d, %%c%d) -> f32[4,64]\n", i + 1, i, i);
	}
	strbuf_printf(&b, "output %%x%d\n", blocks);
	return taken(&b);
}

/* The same with `y += x; relu_(y)`, which cannot be cut in between: many equal cuts, half of them unsafe. */
static char *in_place_tower(int blocks)
{
	strbuf b = STRBUF_INIT;
	strbuf_puts(&b, HEAD "input %x f32[64]\n%r0 = t::stem(%x) -> f32[64]\n");
	for (int i = 0; i < blocks; i++) {
		strbuf_printf(&b, "%%c%d = t::conv(%%r%d) -> f32[64]\n", i, i);
		strbuf_printf(&b, "%%d%d = t::conv2(%%c%d) -> f32[64]\n", i, i);
		strbuf_printf(&b, "%%s%d = t::add_(%%d%d, %%r%d) -> f32[64] view-of %%d%d writes %%d%d\n", i, i, i, i, i);
		strbuf_printf(&b, "%%r%d = t::relu_(%%s%d) -> f32[64] view-of %%d%d writes %%d%d\n", i + 1, i, i, i);
	}
	strbuf_printf(&b, "output %%r%d\n", blocks);
	return taken(&b);
}

/* Down and up again with a skip at each level. */
static char *hourglass(int depth)
{
	strbuf b = STRBUF_INIT;
	strbuf_puts(&b, HEAD "input %d0 f32[16]\n");
	for (int i = 0; i < depth; i++)
		strbuf_printf(&b, "%%d%d = t::down(%%d%d) -> f32[%d]\n", i + 1, i, 16 + i % 5);
	strbuf_printf(&b, "%%u%d = t::mid(%%d%d) -> f32[4]\n", depth, depth);
	for (int i = depth; i-- > 0;)
		strbuf_printf(&b, "%%u%d = t::up(%%u%d, %%d%d) -> f32[%d]\n", i, i + 1, i, 16 + i % 5);
	strbuf_puts(&b, "output %u0\n");
	return taken(&b);
}

static void large_plans_are_cut(void **state)
{
	(void)state;
	char *tower = residual_tower(25000), *glass = hourglass(50000), *in_place = in_place_tower(25000);
	timed(tower, "residual tower");
	timed(glass, "hourglass");
	timed(in_place, "in-place tower");
	mem_free(tower);
	mem_free(glass);
	mem_free(in_place);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_network_is_cut_where_it_is_cheapest),
		cmocka_unit_test(the_exact_cut_has_the_fewest_bytes_of_all_divisions),
		cmocka_unit_test(branches_are_cut_where_each_is_small),
		cmocka_unit_test(inputs_and_values_from_outside_keep_their_ids),
		cmocka_unit_test(a_plan_says_that_a_write_changed_places_with_a_use),
		cmocka_unit_test(uses_of_inputs_stay_where_they_were_between_writes),
		cmocka_unit_test(draws_keep_their_order),
		cmocka_unit_test(nothing_passes_a_guard),
		cmocka_unit_test(memory_that_is_written_later_crosses_once),
		cmocka_unit_test(memory_that_is_read_beyond_its_elements_does_not_cross),
		cmocka_unit_test(what_cannot_be_parted_is_named),
		cmocka_unit_test(every_allocation_may_fail),
		cmocka_unit_test(large_plans_are_cut),
	};
	return cmocka_run_group_tests_name("mincut", tests, NULL, NULL);
}
