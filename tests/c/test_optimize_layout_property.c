/* Random plans of images: whatever is laid out channels last, outputs hold what they held, and nobody but nodes that
 * may sees the other layout. Plans are run on numbers that stand for contents: an operator gives a number made of its
 * name and of what it reads; conversions give what they get. */
#include "optimize/optimize.h"
#include "support.h"

enum { MOST_NODES = 24, PLANS = 4000 };

/* ---- plans -------------------------------------------------------------------------------------------------------- */

typedef struct tensor {
	char name[16], root[16];
	bool narrow; /* 4 channels, not 8 */
} tensor;

typedef struct writer {
	uint64_t state;
	strbuf text;
	tensor at[4 * MOST_NODES];
	uint32_t n, named;
} writer;

static tensor *pick(writer *w, bool narrow)
{
	for (uint32_t tries = 0; tries < 50; tries++) {
		tensor *t = &w->at[random_below(&w->state, w->n)];
		if (t->narrow == narrow)
			return t;
	}
	return NULL;
}

static tensor *add_tensor(writer *w, bool narrow, const char *root)
{
	tensor *t = &w->at[w->n++];
	t->narrow = narrow;
	snprintf(t->name, sizeof t->name, "t%u", w->named);
	if (root)
		snprintf(t->root, sizeof t->root, "%s", root);
	else
		snprintf(t->root, sizeof t->root, "t%u", w->named);
	w->named++;
	return t;
}

static const char *shape_of(bool narrow)
{
	return narrow ? "f32[2,4,8,8]" : "f32[2,8,8,8]";
}

static void write_fresh(writer *w, const char *op, const char *args, bool narrow)
{
	const tensor *t = add_tensor(w, narrow, NULL);
	strbuf_printf(&w->text, "%%%s = aten::%s(%s) -> %s\n", t->name, op, args, shape_of(narrow));
}

static void write_inplace(writer *w, const char *op, const tensor *on, const char *more)
{
	char root[16], name[16];
	bool narrow = on->narrow;
	snprintf(root, sizeof root, "%s", on->root);
	snprintf(name, sizeof name, "%s", on->name);
	const tensor *t = add_tensor(w, narrow, root);
	strbuf_printf(&w->text, "%%%s = aten::%s(%%%s%s) -> %s view-of %%%s writes %%%s\n", t->name, op, name, more,
	              shape_of(narrow), root, root);
}

static void write_chunk(writer *w, const tensor *on)
{
	char root[16], name[16];
	snprintf(root, sizeof root, "%s", on->root);
	snprintf(name, sizeof name, "%s", on->name);
	const tensor *a = add_tensor(w, true, root), *b = add_tensor(w, true, root);
	strbuf_printf(&w->text, "[%%%s, %%%s] = aten::chunk(%%%s, 2, 1) -> [%s view-of %%%s, %s view-of %%%s]\n", a->name,
	              b->name, name, shape_of(true), root, shape_of(true), root);
}

static void write_view(writer *w, const tensor *on)
{
	strbuf_printf(&w->text, "%%f%u = aten::flatten.using_ints(%%%s, 1, -1) -> f32[2,%u] view-of %%%s\n", w->named++,
	              on->name, on->narrow ? 256 : 512, on->root);
}

static void write_convolution(writer *w, const tensor *x)
{
	char args[96];
	snprintf(args, sizeof args, "%%%s, @%s, none, [1, 1], [1, 1], [1, 1], 1", x->name, x->narrow ? "v" : "w");
	write_fresh(w, "conv2d", args, false);
}

static void write_pair(writer *w, const char *format, const char *op, const tensor *a, const tensor *b, bool narrow)
{
	char args[96];
	snprintf(args, sizeof args, format, a->name, b->name);
	write_fresh(w, op, args, narrow);
}

static void write_node(writer *w)
{
	char args[64];
	const tensor *a = pick(w, random_below(&w->state, 4) == 0);
	const tensor *b = a ? pick(w, a->narrow) : NULL;
	if (!a || !b)
		return;
	snprintf(args, sizeof args, "%%%s", a->name);
	switch (random_below(&w->state, 12)) {
	case 0: write_fresh(w, "relu", args, a->narrow); return;
	case 1: write_inplace(w, "relu_", a, ""); return;
	case 2: write_pair(w, "%%%s, %%%s, 1", "add.Tensor", a, b, a->narrow); return;
	case 3:
		snprintf(args, sizeof args, ", %%%s, 1", b->name);
		write_inplace(w, "add_.Tensor", a, args);
		return;
	case 4: write_fresh(w, "softmax.int", strcat(args, ", 1, none"), a->narrow); return;
	case 5:
		if (random_below(&w->state, 3) == 0)
			write_inplace(w, "fill_.Scalar", a, ", 1");
		return;
	case 6: write_view(w, a); return;
	case 7:
		if (!a->narrow)
			write_chunk(w, a);
		return;
	case 8:
		if (a->narrow)
			write_pair(w, "[%%%s, %%%s], 1", "cat", a, b, false);
		return;
	default: write_convolution(w, a);
	}
}

static plan *random_images(uint64_t seed)
{
	writer w = {.state = seed, .text = STRBUF_INIT};
	strbuf_puts(&w.text, "cleave-plan 1\nmodel \"M\" training=no grad=any\nscope \"\" \"M\"\n");
	for (uint32_t i = 0; i < 2; i++)
		strbuf_printf(&w.text, "input %%%s f32[2,8,8,8] name=\"x%u\"\n", add_tensor(&w, false, NULL)->name, i);
	strbuf_puts(&w.text, "param @w f32[8,8,3,3]\nparam @v f32[8,4,3,3]\n");
	for (uint32_t i = 0; i < MOST_NODES; i++)
		write_node(&w);
	strbuf_puts(&w.text, "output (");
	for (uint32_t i = 0; i < 3; i++)
		strbuf_printf(&w.text, "%%%s, ", w.at[random_below(&w.state, w.n)].name);
	strbuf_printf(&w.text, "%%%s)\n", w.at[w.n - 1].name);
	char *text = taken(&w.text);
	plan *p = load_ok(text);
	mem_free(text);
	return p;
}

/* ---- runs --------------------------------------------------------------------------------------------------------- */

typedef struct machine {
	const plan *p;
	uint64_t *memory; /* per value that owns memory: what it holds */
	uint64_t *part;   /* per value: which part of its memory it is; 0: all */
	bool *last;       /* per value: channels last */
	uint64_t mixed;
	bool any_last, all_last;
} machine;

static uint64_t mix(uint64_t a, uint64_t b)
{
	uint64_t state = a * 31 + b;
	return random64(&state);
}

static uint64_t read_value(const machine *m, value_id v)
{
	uint64_t whole = m->memory[alias_root(m->p, v)];
	return m->part[v] ? mix(m->part[v], whole) : whole;
}

static void read_arg(void *ctx, value_id v)
{
	machine *m = ctx;
	m->mixed = mix(m->mixed, read_value(m, v));
	if (m->p->values.at[v].ndim != 4 || m->p->values.at[v].kind == VALUE_PARAM)
		return;
	m->any_last |= m->last[v];
	m->all_last &= m->last[v];
}

static bool may_be_last(const char *op)
{
	static const char *const listed[] = {"conv2d",      "relu",  "relu_", "add.Tensor",
	                                     "add_.Tensor", "chunk", "cat",   "clone"};
	for (size_t i = 0; i < sizeof listed / sizeof *listed; i++)
		if (!strcmp(op + strlen("aten::"), listed[i]))
			return true;
	return false;
}

typedef struct giver {
	machine *m;
	value_id self; /* argument 0 */
	uint64_t next;
	bool writes, views, last;
} giver;

static void give(void *ctx, value_id v)
{
	giver *g = ctx;
	machine *m = g->m;
	m->last[v] = g->last;
	if (m->p->values.at[v].alias == NONE)
		m->memory[v] = g->next;
	else
		m->part[v] = g->writes ? m->part[g->self] : mix(g->next++, m->part[g->self]);
}

/* The same for what works in place: without underscores. */
static uint64_t name_number(const char *op)
{
	uint64_t sum = 7;
	for (; *op; op++)
		if (*op != '_')
			sum = mix(sum, (uint64_t)*op);
	return sum;
}

static void run_node(machine *m, node_id n)
{
	const node *x = &m->p->nodes.at[n];
	const char *op = plan_s(m->p, x->op);
	const arg *first = &m->p->args.at[x->args];
	bool copies = !strcmp(op, "aten::clone") || !strcmp(op, "aten::contiguous");
	m->mixed = name_number(op);
	m->any_last = false;
	m->all_last = true;
	node_each_arg(m->p, n, read_arg, m);
	if (m->any_last && (!m->all_last || !may_be_last(op)))
		fail_msg("node %u (%s) reads images that are channels last", n, op);
	giver g = {.m = m, .self = first->kind == ARG_VALUE ? first->u.v : NONE, .writes = x->nwrites > 0};
	g.next = copies ? read_value(m, g.self) : m->mixed;
	g.last = copies ? m->p->args.at[x->args + 1].u.code == 2 : m->any_last;
	bool view = !copies && !x->nwrites && g.self != NONE && strcmp(op, "aten::conv2d") != 0;
	if (view && (!strcmp(op, "aten::chunk") || !strcmp(op, "aten::flatten.using_ints")))
		g.next = name_number(op); /* which part it is does not depend on what it holds */
	node_each_result(m->p, n, give, &g);
	if (x->nwrites) {
		value_id root = alias_root(m->p, g.self);
		m->memory[root] = m->part[g.self] ? mix(mix(m->mixed, m->part[g.self]), m->memory[root]) : m->mixed;
	}
}

/* What the caller sees: what outputs and inputs hold, and which of them share memory. */
static uint64_t run_plan(const plan *p)
{
	machine m = {.p = p};
	m.memory = mem_alloc((p->values.n + 1) * sizeof *m.memory);
	m.part = mem_alloc((p->values.n + 1) * sizeof *m.part);
	m.last = mem_alloc((p->values.n + 1) * sizeof *m.last);
	for (value_id v = 0; v < p->values.n; v++)
		m.memory[v] = p->values.at[v].kind == VALUE_RESULT ? 0 : v + 1;
	for (node_id n = 0; n < p->nodes.n; n++)
		run_node(&m, n);
	uint64_t seen = 0;
	for (uint32_t i = 0; i < p->out_tree.n; i++) {
		if (p->out_tree.at[i].kind != TREE_VALUE)
			continue;
		value_id v = p->out_tree.at[i].u.v;
		assert_false(m.last[v]);
		seen = mix(seen, read_value(&m, v));
		for (uint32_t k = 0; k < i; k++)
			if (p->out_tree.at[k].kind == TREE_VALUE)
				seen = mix(seen, alias_root(p, v) == alias_root(p, p->out_tree.at[k].u.v));
	}
	for (uint32_t i = 0; i < p->inputs.n; i++)
		seen = mix(seen, read_value(&m, p->inputs.at[i]));
	mem_free(m.memory);
	mem_free(m.part);
	mem_free(m.last);
	return seen;
}

static void test_random_plans_do_what_they_did(void **state)
{
	(void)state;
	static const char *const off[] = {"identity", "common", "dead", "fold_batch_norm", "fuse", "prelude", NULL};
	optimize_spec s = {.level = OPTIMIZE_FAST, .channels_last = true, .off = off};
	uint32_t changed = 0;
	for (uint64_t seed = 1; seed <= PLANS; seed++) {
		plan *p = random_images(seed);
		uint64_t at = seed;
		node_id first = random_below(&at, 3), end = p->nodes.n - random_below(&at, 3);
		optimized_plan o;
		if (optimize(p, first < end ? first : 0, end, &s, &o) != CLV_OK)
			fail_msg("plan %llu, nodes %u to %u: %s\n%s", (unsigned long long)seed, first, end, status_message(),
			         print_ok(p));
		if (run_plan(p) != run_plan(o.p))
			fail_msg("plan %llu does something else:\n%s\nnow\n%s", (unsigned long long)seed, print_ok(p),
			         print_ok(o.p));
		changed += o.counts.n > 0;
		optimized_plan_free(&o);
		plan_free(p);
	}
	assert_in_range(changed, PLANS / 4, PLANS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_plans_do_what_they_did)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
