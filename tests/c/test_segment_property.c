/* Segments of random plans: whatever the plan, segments are convex, units whole, and a run in which segments get
 * copies and give copies ends with what a run node by node ends with. */
#include "segments.h"

#include <time.h>

#include "split/order.h"

/* ---- random plans ------------------------------------------------------------------------------------------------------ */

enum { MOST_VALUES = 400 };

typedef struct scribe {
	strbuf b;
	uint64_t seed;
	uint32_t n;                  /* values */
	char label[MOST_VALUES][16]; /* "%3", "@b1" */
	uint32_t root[MOST_VALUES];
} scribe;

static uint32_t below(scribe *s, uint32_t n)
{
	return random_below(&s->seed, n);
}

/* Near ones mostly. */
static uint32_t any_value(scribe *s)
{
	return below(s, 3) ? s->n - 1 - below(s, s->n < 6 ? s->n : 6) : below(s, s->n);
}

static void declare(scribe *s, const char *kind, const char *label)
{
	strbuf_printf(&s->b, "%s %s f32[%u]\n", kind, label, 1 + below(s, 9));
	snprintf(s->label[s->n], sizeof s->label[0], "%s", label);
	s->root[s->n] = s->n;
	s->n++;
}

static void add_node(scribe *s)
{
	uint32_t a = any_value(s), b = any_value(s), size = 1 + below(s, 20), kind = below(s, 24);
	const char *space = below(s, 5) ? "aten" : "no", *root = s->label[s->root[a]];
	char *label = s->label[s->n];
	s->root[s->n] = s->n;
	snprintf(label, sizeof s->label[0], "%%%u", s->n);
	strbuf_printf(&s->b, "%s = %s::", label, space);
	if (kind < 3) {
		s->root[s->n] = s->root[a];
		strbuf_printf(&s->b, "view(%s) -> f32[%u] view-of %s", s->label[a], size, root);
	} else if (kind < 7) {
		s->root[s->n] = s->root[a];
		strbuf_printf(&s->b, "put_(%s, %s) -> f32[%u] view-of %s writes %s", s->label[a], s->label[b], size, root,
		              s->label[a]);
	} else if (kind == 9) {
		s->root[s->n] = s->root[a];
		strbuf_printf(&s->b, "as_strided(%s) -> f32[%u] view-of %s", s->label[a], size, root);
	} else if (kind == 10) {
		strbuf_printf(&s->b, "norm(%s, %s) -> f32[%u] writes %s", s->label[b], s->label[a], size, s->label[a]);
	} else if (kind == 7) {
		strbuf_printf(&s->b, "draw(%s) -> f32[%u] {random}", s->label[a], size);
	} else if (kind == 8) {
		strbuf_printf(&s->b, "see(%s) -> f32[%u] {host}", s->label[a], size);
	} else {
		strbuf_printf(&s->b, "f%u(%s, %s) -> f32[%u]", below(s, 4), s->label[a], s->label[b], size);
	}
	strbuf_putc(&s->b, '\n');
	s->n++;
}

static plan *random_plan(uint64_t seed, uint32_t nodes)
{
	scribe *s = mem_alloc(sizeof *s);
	s->seed = seed;
	strbuf_puts(&s->b, HEAD);
	declare(s, "input", "%0");
	declare(s, "input", "%1");
	declare(s, "param", "@w");
	declare(s, "buffer", "@b");
	for (uint32_t i = 0; i < nodes; i++)
		add_node(s);
	if (below(s, 2) && s->root[s->n - 1] == s->n - 1)
		strbuf_printf(&s->b, "rebind @b = %s\n", s->label[s->n - 1]);
	strbuf_printf(&s->b, "output (%s, %s, %s)\n", s->label[s->n - 1], s->label[any_value(s)], s->label[any_value(s)]);
	char *text = taken(&s->b);
	plan *p = load_ok(text);
	mem_free(text);
	mem_free(s);
	return p;
}

/* ---- a machine ---------------------------------------------------------------------------------------------------------- */

typedef struct machine {
	const plan *p;
	uint32_t *slot;    /* per value: where its memory is */
	uint64_t *content; /* per slot */
	uint64_t *beyond;  /* per slot: what lies beside the elements of the tensor that was given out */
	uint32_t nslots;
	uint64_t draws, sum;
	uint64_t seen;             /* by those that read beyond the elements */
	bool reaches;              /* the node that runs reads beyond the elements */
	value_id same_root, found; /* of alias_source */
} machine;

static uint64_t mix(uint64_t a, uint64_t b)
{
	uint64_t state = a * UINT64_C(0x9E3779B97F4A7C15) ^ b;
	return random64(&state);
}

static uint32_t new_slot(machine *m, uint64_t content, uint64_t beyond)
{
	m->content[m->nslots] = content;
	m->beyond[m->nslots] = beyond;
	return m->nslots++;
}

static void read_arg(void *ctx, value_id v)
{
	machine *m = ctx;
	m->sum = mix(m->sum, m->content[m->slot[v]]);
	if (m->reaches)
		m->sum = mix(m->sum, m->beyond[m->slot[v]]);
}

static void see_alias(void *ctx, value_id v)
{
	machine *m = ctx;
	if (m->found == NONE && alias_root(m->p, v) == m->same_root)
		m->found = v;
}

static void run_node(machine *m, node_id k)
{
	const node *n = &m->p->nodes.at[k];
	value_id result = m->p->args.at[n->results].u.v;
	m->sum = mix(n->op, k);
	m->reaches = strstr(plan_s(m->p, n->op), "as_strided") != NULL;
	node_each_arg(m->p, k, read_arg, m);
	if (n->flags & NODE_RANDOM)
		m->sum = mix(m->sum, m->draws++);
	for (uint32_t w = 0; w < n->nwrites; w++)
		m->content[m->slot[m->p->ids.at[n->writes + w]]] = m->sum;
	m->same_root = alias_root(m->p, result);
	m->found = NONE;
	if (m->same_root != result)
		node_each_arg(m->p, k, see_alias, m);
	m->slot[result] = m->found != NONE ? m->slot[m->found] : new_slot(m, m->sum, mix(3, k));
	if (m->reaches) /* it has other elements than what it is a view of, so who reads it sees them too */
		m->seen += m->sum;
}

static machine machine_new(const plan *p)
{
	machine m = {.p = p, .slot = mem_ids(p->values.n)};
	size_t slots = ((size_t)p->values.n + 4) * ((size_t)p->nodes.n + 4);
	m.content = mem_alloc(slots * sizeof *m.content);
	m.beyond = mem_alloc(slots * sizeof *m.beyond);
	for (value_id v = 0; v < p->values.n; v++)
		if (p->values.at[v].kind != VALUE_RESULT)
			m.slot[v] = new_slot(&m, mix(7, v), mix(5, v));
	return m;
}

static void machine_free(machine *m)
{
	mem_free(m->slot);
	mem_free(m->content);
	mem_free(m->beyond);
}

/* What lies beside a copy is like nothing else. */
static uint32_t copy_slot(machine *m, uint64_t content)
{
	return new_slot(m, content, mix(11, m->nslots));
}

/* A segment has copies of all it is given, each tensor for itself, weights as they were when it was compiled, and
   what it made leaves as copies. */
static void run_segment(machine *m, const node_id *at, uint32_t n, const uint32_t *of_node, uint32_t seg)
{
	const plan *p = m->p;
	uint32_t *before = mem_ids(p->values.n);
	memcpy(before, m->slot, p->values.n * sizeof *before);
	for (value_id v = 0; v < p->values.n; v++)
		if (m->slot[v] != NONE) {
			bool weight = p->values.at[v].kind != VALUE_INPUT && p->values.at[v].kind != VALUE_RESULT;
			m->slot[v] = copy_slot(m, weight ? mix(7, v) : m->content[m->slot[v]]);
		}
	for (uint32_t i = 0; i < n; i++)
		run_node(m, at[i]);
	for (value_id v = 0; v < p->values.n; v++) {
		node_id def = p->values.at[v].def;
		bool made = def != NONE && of_node[def] == seg;
		m->slot[v] = made ? copy_slot(m, m->content[m->slot[v]]) : before[v];
	}
	mem_free(before);
}

static void same_end(const machine *a, const machine *b)
{
	const plan *p = a->p;
	for (value_id v = 0; v < p->values.n; v++)
		if (p->values.at[v].kind != VALUE_RESULT)
			assert_true(a->content[a->slot[v]] == b->content[b->slot[v]]);
	for (uint32_t i = 0; i < p->out_tree.n; i++)
		if (p->out_tree.at[i].kind == TREE_VALUE) {
			value_id v = p->out_tree.at[i].u.v, root = alias_root(p, v);
			assert_true(a->content[a->slot[v]] == b->content[b->slot[v]]);
			if (p->values.at[root].kind != VALUE_RESULT)
				assert_int_equal(b->slot[v], b->slot[root]); /* the caller's own memory, as in eager */
		}
}

static void runs_the_same(const segments *s)
{
	machine whole = machine_new(s->p), parts = machine_new(s->p);
	for (node_id k = 0; k < s->p->nodes.n; k++)
		run_node(&whole, k);
	for (uint32_t i = 0; i < s->order.n;) {
		uint32_t seg = s->of_node[s->order.at[i]];
		if (seg == NONE) {
			run_node(&parts, s->order.at[i++]);
			continue;
		}
		assert_int_equal(s->at.at[seg].first, i);
		run_segment(&parts, &s->order.at[i], s->at.at[seg].n, s->of_node, seg);
		i += s->at.at[seg].n;
	}
	same_end(&whole, &parts);
	assert_true(whole.seen == parts.seen);
	machine_free(&whole);
	machine_free(&parts);
}

/* ---- rules -------------------------------------------------------------------------------------------------------------- */

typedef struct paths {
	const plan *p;
	bool *to; /* [from * n + to] */
	node_id now;
} paths;

static void path_from(paths *w, node_id before)
{
	uint32_t n = w->p->nodes.n;
	w->to[before * n + w->now] = true;
	for (node_id k = 0; k < before; k++)
		w->to[k * n + w->now] |= w->to[k * n + before];
}

static void path_of_value(void *ctx, value_id v)
{
	paths *w = ctx;
	if (w->p->values.at[v].kind == VALUE_RESULT)
		path_from(w, w->p->values.at[v].def);
}

static bool *find_paths(const plan *p)
{
	order_pairs pairs = {0};
	paths w = {p, mem_alloc((size_t)p->nodes.n * p->nodes.n + 1), 0};
	OK(order_of_effects(p, &pairs));
	for (w.now = 0; w.now < p->nodes.n; w.now++) {
		node_each_arg(p, w.now, path_of_value, &w);
		for (uint32_t i = 0; i < pairs.n; i++)
			if (pairs.at[i].after == w.now)
				path_from(&w, pairs.at[i].before);
	}
	vec_free(&pairs);
	return w.to;
}

/* Every path between two nodes of a segment, or unit, stays in it; and the order keeps all paths. */
static void is_convex(const segments *s, const bool *to)
{
	uint32_t n = s->p->nodes.n;
	uint32_t *place = mem_ids(n);
	for (uint32_t i = 0; i < n; i++)
		place[s->order.at[i]] = i;
	for (node_id a = 0; a < n; a++)
		for (node_id b = 0; b < n; b++) {
			if (!to[a * n + b])
				continue;
			assert_true(place[a] < place[b]);
			for (node_id c = 0; c < n; c++) {
				if (!to[b * n + c])
					continue;
				assert_false(s->of_node[a] != NONE && s->of_node[a] == s->of_node[c] && s->of_node[b] != s->of_node[a]);
				assert_false(s->unit_of[a] == s->unit_of[c] && s->unit_of[b] != s->unit_of[a]);
			}
		}
	mem_free(place);
}

static void follows_the_rules(const segments *s, const segments_spec *spec)
{
	for (node_id k = 0; k < s->p->nodes.n; k++) {
		assert_true((s->reason[k] == NULL) == (s->of_node[k] != NONE));
		assert_true(!spec->no[k] || s->reason[k] == spec->no[k]);
	}
	for (uint32_t i = 0; i < s->order.n; i++) {
		if (i && s->unit_of[s->order.at[i]] == s->unit_of[s->order.at[i - 1]])
			assert_int_equal(s->of_node[s->order.at[i]], s->of_node[s->order.at[i - 1]]);
		else
			assert_int_equal(s->unit_of[s->order.at[i]], i ? s->unit_of[s->order.at[i - 1]] + 1 : 0);
	}
	for (uint32_t i = 0; i < s->at.n; i++) {
		assert_true(s->at.at[i].n >= spec->minimum);
		assert_true(!i || s->at.at[i].first >= s->at.at[i - 1].first + s->at.at[i - 1].n);
	}
	assert_true(!spec->most || s->at.n <= spec->most);
}

static void check_plan(const plan *p, uint32_t minimum, uint32_t most)
{
	const char **no = no_of(p);
	segments_spec spec = {.no = no, .minimum = minimum, .most = most};
	segments s = {0};
	plan *ordered = NULL;
	OK(segments_choose(p, &spec, &s));
	follows_the_rules(&s, &spec);
	bool *to = find_paths(p);
	is_convex(&s, to);
	runs_the_same(&s);
	node_id *firsts = mem_ids(s.at.n), *ends = mem_ids(s.at.n);
	OK(segments_plan(&s, &ordered, firsts, ends));
	plan_free(ordered);
	mem_free(firsts);
	mem_free(ends);
	mem_free(to);
	segments_free(&s);
	mem_free(no);
}

static void segments_of_random_plans_are_right(void **state)
{
	(void)state;
	for (uint64_t seed = 0; seed < 400; seed++) {
		plan *p = random_plan(seed, 1 + (uint32_t)(seed % 40));
		check_plan(p, 1, 0);
		check_plan(p, 2 + (uint32_t)(seed % 3), 0);
		check_plan(p, 1, 1 + (uint32_t)(seed % 3));
		plan_free(p);
	}
}

/* ---- faults ------------------------------------------------------------------------------------------------------------- */

static clv_status choose_and_report(const void *ctx)
{
	const plan *p = ctx;
	segments s = {0};
	coverage c = {0};
	arena a = {0};
	strbuf b = STRBUF_INIT;
	const char **no = mem_alloc((p->nodes.n + 1) * sizeof *no);
	segments_spec spec = {.no = no, .minimum = 2, .most = 2};
	clv_status st = no ? support_of("inductor", p, &(support_spec){0}, no, &a) : CLV_E_NOMEM;
	if (st == CLV_OK)
		st = segments_choose(p, &spec, &s);
	if (st == CLV_OK)
		st = coverage_of(&s, &spec, true, &c);
	segment_row row = SEGMENT_ROW_INIT;
	segment_report r = {"inductor", &c, &row, 1, 1, 1, 1};
	if (st == CLV_OK)
		st = report_text(&r, &b);
	if (st == CLV_OK)
		st = report_json(&r, &b);
	strbuf_free(&b);
	coverage_free(&c);
	segments_free(&s);
	arena_free(&a);
	mem_free(no);
	return st;
}

static void every_allocation_may_fail(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed < 6; seed++) {
		plan *p = random_plan(seed, 20);
		assert_in_range(sweep_faults(choose_and_report, p, CLV_OK), 20, 5000);
		plan_free(p);
	}
}

/* ---- large plans -------------------------------------------------------------------------------------------------------- */

enum { NODES = 100000 };

typedef void (*shape_fn)(strbuf *b, uint32_t i);

static void a_chain(strbuf *b, uint32_t i)
{
	strbuf_printf(b, "%%%u = aten::f(%%%u) -> f32[8]\n", i + 1, i);
}

static void every_other(strbuf *b, uint32_t i)
{
	strbuf_printf(b, "%%%u = %s::f(%%%u) -> f32[8]\n", i + 1, i % 2 ? "no" : "aten", i);
}

static void every_third(strbuf *b, uint32_t i)
{
	strbuf_printf(b, "%%%u = %s::f(%%%u, %%%u) -> f32[8]\n", i + 1, i % 3 ? "aten" : "no", i, i / 2);
}

static void a_fan(strbuf *b, uint32_t i)
{
	strbuf_printf(b, "%%%u = %s::f(%%0) -> f32[8]\n", i + 1, i % 2 ? "no" : "aten");
}

static void skips(strbuf *b, uint32_t i)
{
	uint64_t seed = i;
	strbuf_printf(b, "%%%u = %s::f(%%%u, %%%u) -> f32[8]\n", i + 1, i % 7 ? "aten" : "no", random_below(&seed, i + 1),
	              i < 40 ? 0 : i - random_below(&seed, 40));
}

static void in_place(strbuf *b, uint32_t i)
{
	if (i % 2)
		strbuf_printf(b, "%%%u = %s::f_(%%%u) -> f32[8] view-of %%%u writes %%%u\n", i + 1, i % 9 ? "aten" : "no", i, i,
		              i);
	else
		strbuf_printf(b, "%%%u = aten::f(%%%u) -> f32[8]\n", i + 1, i);
}

static void one_memory(strbuf *b, uint32_t i)
{
	if (i % 2)
		strbuf_printf(b, "%%%u = aten::f_(%%1, %%%u) -> f32[8] view-of %%1 writes %%1\n", i + 1, i);
	else
		strbuf_printf(b, "%%%u = aten::f(%%%u) -> f32[8]\n", i + 1, i);
}

static void guards(strbuf *b, uint32_t i)
{
	strbuf_printf(b, "%%%u = aten::f(%%%u) -> f32[8]%s\n", i + 1, i, i % 3 ? "" : " {host}");
}

static void one_shape(const char *name, shape_fn shape)
{
	strbuf b = STRBUF_INIT;
	strbuf_puts(&b, HEAD "input %0 f32[8]\n");
	for (uint32_t i = 0; i < NODES; i++)
		shape(&b, i);
	strbuf_printf(&b, "output %%%u\n", NODES);
	char *text = taken(&b);
	plan *p = parse_ok(text);
	const char **no = no_of(p);
	for (uint32_t minimum = 1; minimum <= 3; minimum += 2) {
		segments s = {0};
		coverage c = {0};
		struct timespec from, to;
		segments_spec spec = {.no = no, .minimum = minimum, .most = minimum == 3 ? 100 : 0};
		timespec_get(&from, TIME_UTC);
		OK(segments_choose(p, &spec, &s));
		timespec_get(&to, TIME_UTC);
		double ms = (double)(to.tv_sec - from.tv_sec) * 1e3 + (double)(to.tv_nsec - from.tv_nsec) * 1e-6;
		OK(coverage_of(&s, &spec, false, &c));
		print_message("%-14s at least %u: %6.0f ms, %5u segments, %6u compiled\n", name, minimum, ms, s.at.n,
		              c.compiled);
		assert_true(ms < 60000);
		coverage_free(&c);
		segments_free(&s);
	}
	mem_free(no);
	mem_free(text);
	plan_free(p);
}

static void a_hundred_thousand_nodes_are_chosen_from(void **state)
{
	(void)state;
	one_shape("chain", a_chain);
	one_shape("every other", every_other);
	one_shape("every third", every_third);
	one_shape("fan", a_fan);
	one_shape("skips", skips);
	one_shape("in place", in_place);
	one_shape("one memory", one_memory);
	one_shape("guards", guards);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(segments_of_random_plans_are_right),
	cmocka_unit_test(every_allocation_may_fail),
	cmocka_unit_test(a_hundred_thousand_nodes_are_chosen_from),
};

int main(void)
{
	return cmocka_run_group_tests(tests, NULL, NULL);
}
