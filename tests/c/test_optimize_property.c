/* Random plans through all passes: what a run gives, writes, draws and checks is the same after as before.
 *
 * A model of a run stands for torch: each memory has a number for its elements, each tensor a memory, a shape and whether
 * it looks at it turned. Operators mix numbers, writes change the memory; functions of each element give the same numbers
 * in place and beside it. Two runs are the same when
 * outputs have the same numbers and lie on memory in the same way, effects come in the same order, and what the caller
 * owns has the same data afterwards. */
#include "support.h"

#include <time.h>

#include "optimize/optimize.h"
#include "random_plan.h"

/* ---- the model --------------------------------------------------------------------------------------------------- */

typedef struct tensor {
	uint32_t memory, ndim, turns;
} tensor;

typedef struct world {
	const plan *p;
	tensor *of;         /* per value */
	VEC(uint64_t) data; /* per memory */
	VEC(uint64_t) effects;
	uint64_t guards; /* in any order */
} world;

static uint64_t mix(uint64_t a, uint64_t b)
{
	uint64_t state = a * UINT64_C(0x9E3779B97F4A7C15) ^ (b + 0x12345);
	return random64(&state);
}

static uint64_t mix_text(uint64_t a, const char *s)
{
	for (; *s; s++)
		a = mix(a, (unsigned char)*s);
	return a;
}

static tensor new_memory(world *w, uint64_t data, uint32_t ndim)
{
	OK(vec_push(&w->data, data));
	return (tensor){.memory = w->data.n - 1, .ndim = ndim};
}

static uint64_t elements_of(const world *w, value_id v)
{
	uint64_t h = w->data.at[w->of[v].memory];
	for (uint32_t i = 0; i < w->of[v].turns; i++)
		h = mix(h, 77);
	return h;
}

static uint64_t data_of(const world *w, value_id v)
{
	return mix(elements_of(w, v), w->of[v].ndim);
}

static bool same_view(const tensor *a, const tensor *b)
{
	return a->ndim == b->ndim && a->turns == b->turns;
}

static uint64_t mix_args(const world *w, uint64_t h, uint32_t first, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		const arg *a = &w->p->args.at[first + i];
		h = mix(h, a->kind);
		if (a->kind == ARG_VALUE)
			h = mix(h, data_of(w, a->u.v));
		else if (a->kind == ARG_INT)
			h = mix(h, a->u.e);
		else if (a->kind == ARG_LIST)
			h = mix_args(w, h, a->u.list.first, a->u.list.n);
	}
	return h;
}

static void give_externals(world *w, uint64_t inputs)
{
	w->of = mem_alloc((w->p->values.n + 1) * sizeof *w->of);
	assert_non_null(w->of);
	for (value_id v = 0; v < w->p->values.n; v++)
		if (w->p->values.at[v].kind != VALUE_RESULT)
			w->of[v] = new_memory(w, w->p->values.at[v].kind == VALUE_INPUT ? mix(inputs, v) : v + 1, 2);
}

static bool is_op(const world *w, const node *n, const char *op)
{
	return !strcmp(plan_s(w->p, n->op), op);
}

static bool is_one_of(const world *w, const node *n, const char *const *ops)
{
	for (; *ops; ops++)
		if (is_op(w, n, *ops))
			return true;
	return false;
}

/* Functions of each element, and whether they write; NULL ends. */
static const struct element_form {
	const char *op;
	bool writes;
} elements[] = {{"aten::relu", false},       {"aten::relu_", true},       {"aten::sin", false},
                {"aten::sin_", true},        {"aten::neg", false},        {"aten::neg_", true},
                {"aten::add.Tensor", false}, {"aten::add_.Tensor", true}, {NULL, false}};

static const struct element_form *element_form_of(const world *w, const node *n)
{
	for (const struct element_form *f = elements; f->op; f++)
		if (is_op(w, n, f->op))
			return f;
	return NULL;
}

/* The letter after "aten::" tells them apart. */
static uint64_t each_element(const world *w, const node *n)
{
	uint64_t h = (unsigned char)plan_s(w->p, n->op)[6];
	for (uint32_t i = 0; i < n->nargs; i++)
		if (w->p->args.at[n->args + i].kind == ARG_VALUE)
			h = mix(h, elements_of(w, w->p->args.at[n->args + i].u.v));
	return h;
}

static void run_elements(world *w, const node *n, bool writes, value_id x, value_id r)
{
	uint64_t h = each_element(w, n), *at = &w->data.at[w->of[x].memory];
	if (!writes) {
		w->of[r] = new_memory(w, h, w->of[x].ndim);
		return;
	}
	*at = w->of[x].turns ? mix(*at, h) : h;
	w->of[r] = w->of[x];
}

/* What a node gives, from the data of its arguments. */
static void run_node(world *w, node_id id)
{
	static const char *const same[] = {"aten::dropout", "aten::dropout_", "aten::detach", "aten::to.dtype", NULL};
	static const char *const copies[] = {"aten::clone", "aten::contiguous", NULL};
	const node *n = &w->p->nodes.at[id];
	const struct element_form *form = element_form_of(w, n);
	uint64_t h = mix_args(w, mix_text(1, plan_s(w->p, n->op)), n->args, n->nargs);
	value_id r = n->nresults ? w->p->args.at[n->results].u.v : NONE;
	value_id x = n->nargs && w->p->args.at[n->args].kind == ARG_VALUE ? w->p->args.at[n->args].u.v : NONE;
	if (is_op(w, n, "aten::is_nonzero")) {
		w->guards += h;
	} else if (is_op(w, n, "test::log")) {
		OK(vec_push(&w->effects, h));
	} else if (n->flags & NODE_RANDOM && node_draws(w->p, id)) {
		OK(vec_push(&w->effects, h));
		w->of[r] = new_memory(w, mix(h, w->effects.n), w->of[x].ndim);
	} else if (form) {
		run_elements(w, n, form->writes, x, r);
	} else if (is_one_of(w, n, same)) {
		w->of[r] = w->of[x];
	} else if (is_op(w, n, "aten::view")) {
		w->of[r] = w->of[x];
		w->of[r].ndim = w->p->args.at[n->args + 1].u.list.n;
	} else if (is_op(w, n, "aten::t")) {
		w->of[r] = w->of[x];
		w->of[r].turns++;
	} else if (is_one_of(w, n, copies)) {
		bool copied = w->p->values.at[r].alias == NONE;
		w->of[r] = copied ? new_memory(w, elements_of(w, x), w->of[x].ndim) : w->of[x];
	} else {
		w->of[r] = new_memory(w, h, w->p->values.at[r].ndim);
	}
}

static void run_nodes(world *w, node_id first, node_id end)
{
	for (node_id n = first; n < end; n++)
		run_node(w, n);
}

static void end_world(world *w)
{
	mem_free(w->of);
	vec_free(&w->data);
	vec_free(&w->effects);
}

/* Outputs: all of the tree's leaves, which are values. */
static value_id output(const world *w, uint32_t i)
{
	return w->p->out_tree.at[i + 1].u.v;
}

static uint32_t outputs(const world *w)
{
	return w->p->out_tree.n - 1;
}

static void check_effects(const world *a, const world *b, uint32_t from)
{
	assert_int_equal(a->effects.n, b->effects.n - from);
	if (a->effects.n)
		assert_memory_equal(a->effects.at, b->effects.at + from, a->effects.n * sizeof *a->effects.at);
}

static void check_same(const world *a, const world *b)
{
	assert_int_equal(outputs(a), outputs(b));
	for (uint32_t i = 0; i < outputs(a); i++) {
		value_id x = output(a, i), y = output(b, i);
		assert_int_equal(x, y);
		assert_true(data_of(a, x) == data_of(b, y));
		assert_true(same_view(&a->of[x], &b->of[y]));
		for (value_id v = 0; v < a->p->values.n; v++) { /* which outputs and externals share memory */
			bool seen = a->p->values.at[v].kind != VALUE_RESULT;
			for (uint32_t k = 0; k < outputs(a) && !seen; k++)
				seen = output(a, k) == v;
			if (seen)
				assert_int_equal(a->of[x].memory == a->of[v].memory, b->of[y].memory == b->of[v].memory);
		}
	}
	for (value_id v = 0; v < a->p->values.n; v++)
		if (a->p->values.at[v].kind != VALUE_RESULT)
			assert_true(a->data.at[a->of[v].memory] == b->data.at[b->of[v].memory]);
}

/* ---- random plans ------------------------------------------------------------------------------------------------ */

typedef struct author {
	strbuf text;
	uint64_t dice;
	uint32_t n; /* values so far */
	struct {
		uint32_t root;
		bool flat, turned; /* f32[16]; not contiguous */
	} of[256];
} author;

static uint32_t roll(author *a, uint32_t n)
{
	return random_below(&a->dice, n);
}

static const char *type_of(const author *a, uint32_t v)
{
	return a->of[v].flat ? "f32[16]" : "f32[4,4]";
}

/* Values 0 and 1 are inputs, 2 and 3 constants, 4 a parameter. */
static void put_value(author *a, uint32_t v)
{
	static const char *const names[] = {"%x", "%y", "#0", "#1", "@w"};
	if (v < 5)
		strbuf_puts(&a->text, names[v]);
	else
		strbuf_printf(&a->text, "%%v%u", v);
}

static void put_result(author *a, uint32_t root, bool flat, bool turned)
{
	a->of[a->n].root = root;
	a->of[a->n].flat = flat;
	a->of[a->n].turned = turned;
	strbuf_printf(&a->text, "-> %s", type_of(a, a->n));
	if (root != a->n) {
		strbuf_puts(&a->text, " view-of ");
		put_value(a, root);
	}
}

static void put_call(author *a, const char *op, uint32_t x, const char *rest)
{
	strbuf_printf(&a->text, "%%v%u = %s(", a->n, op);
	put_value(a, x);
	strbuf_printf(&a->text, "%s) ", rest);
}

static void put_write(author *a, uint32_t x)
{
	strbuf_puts(&a->text, " writes ");
	put_value(a, x);
}

/* Another of the same shape; itself where none is found. */
static uint32_t like(author *a, uint32_t x)
{
	for (uint32_t i = 0; i < 8; i++) {
		uint32_t y = roll(a, a->n);
		if (a->of[y].flat == a->of[x].flat)
			return y;
	}
	return x;
}

static void put_sum(author *a, uint32_t x, uint32_t y)
{
	bool writes = roll(a, 8) == 0;
	strbuf_printf(&a->text, "%%v%u = aten::add%s.Tensor(", a->n, writes ? "_" : "");
	put_value(a, x);
	strbuf_puts(&a->text, ", ");
	put_value(a, y);
	strbuf_puts(&a->text, ", 1) ");
	put_result(a, writes ? a->of[x].root : a->n, a->of[x].flat, a->of[x].turned);
	if (writes)
		put_write(a, x);
}

static void write_node(author *a)
{
	static const char *const fresh[] = {"aten::relu", "aten::sin", "aten::neg", "aten::softmax.int"};
	uint32_t x = roll(a, 2) ? a->n - 1 : roll(a, a->n), me = a->n; /* chains of nodes, and any others */
	bool flat = a->of[x].flat, turned = a->of[x].turned;
	uint32_t what = roll(a, 36);
	if (what < 8) {
		put_call(a, fresh[what % 4], x, what % 4 == 3 ? ", 0, none" : "");
		put_result(a, me, flat, turned && what % 4 != 3);
	} else if (what < 11) {
		put_call(a, "aten::dropout", x, ", 0.5, false");
		put_result(a, a->of[x].root, flat, turned);
		strbuf_puts(&a->text, " {random}");
	} else if (what < 14) {
		bool other = roll(a, 2) && !turned;
		put_call(a, "aten::view", x, other != flat ? ", [16]" : ", [4, 4]");
		put_result(a, a->of[x].root, other != flat, turned);
	} else if (what < 15 && !flat) {
		put_call(a, "aten::t", x, "");
		put_result(a, a->of[x].root, flat, !turned);
	} else if (what < 17) {
		put_call(a, "aten::detach", x, "");
		put_result(a, a->of[x].root, flat, turned);
	} else if (what < 20) {
		put_call(a, "aten::clone", x, ", none");
		put_result(a, me, flat, turned);
	} else if (what < 22) {
		put_call(a, "aten::contiguous", x, ", memory:contiguous");
		put_result(a, turned ? me : a->of[x].root, flat, false);
	} else if (what < 24) {
		strbuf_printf(&a->text, "%%v%u = aten::arange(%u) ", me, roll(a, 2));
		put_result(a, me, true, false);
	} else if (what < 25) {
		put_call(a, "aten::relu_", x, "");
		put_result(a, a->of[x].root, flat, turned);
		put_write(a, x);
	} else if (what < 26) {
		put_call(a, "aten::dropout_", x, ", 0.5, false");
		put_result(a, a->of[x].root, flat, turned);
		put_write(a, x);
		strbuf_puts(&a->text, " {random}");
	} else if (what < 27) {
		put_call(a, "aten::bernoulli", x, "");
		put_result(a, me, flat, turned);
		strbuf_puts(&a->text, " {random}");
	} else if (what >= 30) {
		put_sum(a, x, like(a, x));
	} else {
		strbuf_puts(&a->text, what < 29 ? "%g" : "test::log(");
		if (what < 29)
			strbuf_printf(&a->text, "%u_%u = aten::is_nonzero(", me, (uint32_t)(a->text.n % 1000000));
		put_value(a, x);
		strbuf_puts(&a->text, what < 29 ? ") -> bool = true {host}\n" : ") {impure}\n");
		return;
	}
	strbuf_puts(&a->text, "\n");
	a->n++;
}

static plan *write_plan(uint64_t seed, uint32_t nodes)
{
	author a = {.text = STRBUF_INIT, .dice = seed, .n = 5};
	for (uint32_t v = 0; v < 5; v++)
		a.of[v].root = v;
	strbuf_puts(&a.text, "cleave-plan 1\nmodel \"M\"\ninput %x f32[4,4]\ninput %y f32[4,4]\n"
	                     "const #0 f32[4,4]\nconst #1 f32[4,4]\nparam @w f32[4,4]\n");
	for (uint32_t i = 0; i < nodes; i++)
		write_node(&a);
	strbuf_puts(&a.text, "output (");
	for (uint32_t i = 0, n = 1 + roll(&a, 4); i < n; i++) {
		put_value(&a, a.n - 1 - roll(&a, a.n < 12 ? a.n : 12));
		strbuf_puts(&a.text, ", ");
	}
	strbuf_puts(&a.text, ")\n");
	char *text = taken(&a.text);
	plan *p = load_ok(text);
	mem_free(text);
	return p;
}

/* ---- the same after as before ------------------------------------------------------------------------------------ */

static void check_run(const plan *p, const plan *q)
{
	world a = {.p = p}, b = {.p = q};
	give_externals(&a, 1);
	give_externals(&b, 1);
	run_nodes(&a, 0, p->nodes.n);
	run_nodes(&b, 0, q->nodes.n);
	check_same(&a, &b);
	check_effects(&a, &b, 0);
	assert_true(a.guards == b.guards);
	end_world(&a);
	end_world(&b);
}

/* NULL: of all passes. */
static uint32_t changes_of(const optimized_plan *o, const char *pass)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < o->counts.n; i++)
		if (!pass || !strcmp(o->counts.at[i].pass, pass))
			n += o->counts.at[i].changes;
	return n;
}

static void random_plans_do_the_same(void **state)
{
	(void)state;
	uint32_t changes = 0, in_place = 0;
	for (uint64_t seed = 1; seed <= 3000; seed++) {
		plan *p = write_plan(seed, 3 + (uint32_t)(seed % 40));
		uint64_t dice = seed;
		node_id first = seed % 3 ? 0 : random_below(&dice, p->nodes.n + 1);
		node_id end = seed % 3 ? p->nodes.n : first + random_below(&dice, p->nodes.n + 1 - first);
		optimize_spec s = {.level = OPTIMIZE_SAFE, .guards_first = seed % 2 == 0};
		optimized_plan o;
		OK(optimize(p, first, end, &s, &o));
		OK(plan_verify(o.p));
		assert_true(o.part[0] == first && o.part[0] <= o.part[PART_MAIN] && o.part[PART_MAIN] <= o.part[PARTS]);
		check_run(p, o.p);
		changes += changes_of(&o, NULL);
		in_place += changes_of(&o, "in_place");
		optimized_plan_free(&o);
		plan_free(p);
	}
	assert_true(changes > 10000);
	assert_true(in_place > 300);
}

/* Spans at random, ascending and apart. */
static uint32_t choose_spans(uint64_t *dice, node_id nodes, node_span out[8])
{
	uint32_t n = 0;
	for (node_id at = random_below(dice, 4); n < 8 && at < nodes; at += random_below(dice, 5)) {
		node_id end = at + 1 + random_below(dice, 6);
		out[n] = (node_span){at, end < nodes ? end : nodes};
		at = out[n++].end;
	}
	return n;
}

static bool same_node(const plan *p, node_id a, const plan *q, node_id b)
{
	const node *x = &p->nodes.at[a], *y = &q->nodes.at[b];
	bool same = x->op == y->op && x->args == y->args && x->results == y->results && x->nargs == y->nargs &&
	            x->nresults == y->nresults && x->nwrites == y->nwrites;
	for (uint32_t i = 0; same && i < x->nargs; i++) {
		const arg *c = &p->args.at[x->args + i], *d = &q->args.at[y->args + i];
		same = c->kind == d->kind && (c->kind != ARG_VALUE || c->u.v == d->u.v);
	}
	return same;
}

static void pinned_nodes_stay_and_the_rest_does_the_same(void **state)
{
	(void)state;
	uint32_t changes = 0;
	for (uint64_t seed = 1; seed <= 3000; seed++) {
		plan *p = write_plan(seed, 3 + (uint32_t)(seed % 40));
		uint64_t dice = seed * 31;
		node_span spans[8];
		optimize_spec s = {
			.level = seed % 4 ? OPTIMIZE_SAFE : OPTIMIZE_FAST, .guards_first = seed % 5 == 0, .pinned = spans};
		s.npinned = choose_spans(&dice, p->nodes.n, spans);
		optimized_plan o;
		OK(optimize(p, 0, p->nodes.n, &s, &o));
		OK(plan_verify(o.p));
		for (uint32_t i = 0; i < s.npinned; i++) {
			uint32_t n = spans[i].end - spans[i].first;
			assert_int_equal(o.pinned[i].end - o.pinned[i].first, n);
			assert_true(o.pinned[i].first >= o.part[PART_MAIN] && o.pinned[i].end <= o.part[PARTS]);
			for (uint32_t k = 0; k < n; k++)
				assert_true(same_node(p, spans[i].first + k, o.p, o.pinned[i].first + k));
		}
		check_run(p, o.p);
		changes += changes_of(&o, NULL);
		optimized_plan_free(&o);
		plan_free(p);
	}
	assert_true(changes > 2000);
}

/* What the caller got is the caller's: it may be written before the next run. Constants are not written here. */
static void scribble(world *w)
{
	for (uint32_t i = 0; i < outputs(w); i++) {
		uint32_t at = w->of[output(w, i)].memory;
		bool external = false;
		for (value_id v = 0; v < w->p->values.n; v++)
			external |= w->p->values.at[v].kind != VALUE_RESULT && w->of[v].memory == at;
		if (!external)
			w->data.at[at] ^= 0xDEAD;
	}
}

static void new_inputs(world *w, uint64_t inputs)
{
	for (value_id v = 0; v < w->p->values.n; v++)
		if (w->p->values.at[v].kind == VALUE_INPUT)
			w->of[v] = new_memory(w, mix(inputs, v), 2);
}

static bool writes_constants(const plan *p)
{
	for (node_id n = 0; n < p->nodes.n; n++)
		for (uint32_t i = 0; i < p->nodes.at[n].nwrites; i++) {
			uint8_t kind = p->values.at[alias_root(p, p->ids.at[p->nodes.at[n].writes + i])].kind;
			if (kind == VALUE_CONST || kind == VALUE_PARAM)
				return true;
		}
	return false;
}

/* The prelude once, then the rest twice with other inputs: each like a run of the plan as it was. */
static void the_prelude_is_made_once(void **state)
{
	(void)state;
	uint32_t found = 0;
	for (uint64_t seed = 1; seed <= 2000; seed++) {
		plan *p = write_plan(seed, 40);
		optimize_spec s = {.level = seed % 2 ? OPTIMIZE_FAST : OPTIMIZE_SAFE};
		optimized_plan o;
		OK(optimize(p, 0, p->nodes.n, &s, &o));
		found += o.part[PART_MAIN];
		world b = {.p = o.p};
		give_externals(&b, 0);
		run_nodes(&b, 0, o.part[PART_MAIN]);
		assert_int_equal(b.effects.n, 0);
		for (uint64_t inputs = 1; inputs <= 2 && !writes_constants(p); inputs++) {
			world a = {.p = p};
			give_externals(&a, inputs);
			new_inputs(&b, inputs);
			run_nodes(&a, 0, p->nodes.n);
			b.effects.n = 0;
			run_nodes(&b, o.part[PART_MAIN], o.part[PARTS]);
			check_same(&a, &b);
			check_effects(&a, &b, 0);
			scribble(&b);
			end_world(&a);
		}
		end_world(&b);
		optimized_plan_free(&o);
		plan_free(p);
	}
	assert_true(found > 1000);
}

/* Plans with everything a plan can hold, and nothing that makes sense. */
static void any_plan_survives_all_passes(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 500; seed++) {
		plan *p = random_plan(seed);
		optimize_spec s = {.level = seed % 2 ? OPTIMIZE_SAFE : OPTIMIZE_FAST};
		optimized_plan o;
		OK(optimize(p, 0, p->nodes.n, &s, &o));
		char *text = print_ok(o.p);
		plan *again = load_ok(text);
		assert_true(plan_equal(o.p, again));
		assert_int_equal(o.p->rebinds.n, p->rebinds.n);
		plan_free(again);
		mem_free(text);
		optimized_plan_free(&o);
		plan_free(p);
	}
}

static clv_status optimize_once(const void *ctx)
{
	const plan *p = ctx;
	optimize_spec s = {.level = OPTIMIZE_SAFE};
	optimized_plan o;
	clv_status st = optimize(p, 0, p->nodes.n, &s, &o);
	optimized_plan_free(&o);
	return st;
}

static void failed_allocations_are_survived(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 5; seed++) {
		plan *p = write_plan(seed, 30);
		assert_true(sweep_faults(optimize_once, p, CLV_OK) > 50);
		plan_free(p);
	}
}

/* ---- scale ------------------------------------------------------------------------------------------------------- */

enum { NODES = 100000 };

static double now(void)
{
	struct timespec t;
	timespec_get(&t, TIME_UTC);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Each line is made of the one before: "%u" is this one, "%u" that one. */
static void time_passes(const char *what, const char *line, node_id want)
{
	strbuf b = STRBUF_INIT;
	strbuf_puts(&b, "cleave-plan 1\nmodel \"Long\"\nsymbol B 1..9\ninput %v0 f32[4,4]\nconst #0 f32[4,4]\n");
	for (uint32_t i = 1; i <= NODES; i++) {
		char text[256];
		snprintf(text, sizeof text, line, i, i - 1, i - 1);
		strbuf_puts(&b, text);
	}
	strbuf_printf(&b, "%%end = aten::cos(%%v%u) -> f32[4,4]\noutput %%end\n", NODES);
	char *text = taken(&b);
	plan *p = load_ok(text);
	double start = now();
	optimize_spec s = {.level = OPTIMIZE_SAFE};
	optimized_plan o;
	OK(optimize(p, 0, p->nodes.n, &s, &o));
	double took = now() - start;
	print_message("%-10s %6.0f ms\n", what, took * 1e3);
	assert_int_equal(o.p->nodes.n, want);
	assert_true(took < 20); /* what is not linear takes minutes, also with sanitizers */
	optimized_plan_free(&o);
	plan_free(p);
	mem_free(text);
}

static void a_hundred_thousand_nodes_take_little(void **state)
{
	(void)state;
	time_passes("plain", "%%v%u = aten::f(%%v%u, [1, 2], 0.5) -> f32[4,4]\n", NODES + 1);
	time_passes("identity", "%%v%u = aten::dropout(%%v%u, 0.5, false) -> f32[4,4] view-of %%v0 {random}\n", 1);
	time_passes("copies", "%%v%u = aten::clone(%%v%u, none) -> f32[4,4]\n", 1);
	time_passes("common", "%%v%u = aten::f(%%v0, 1) -> f32[4,4]\n", 2);
	time_passes("types", "%%v%u = aten::f(%%v0) -> f32[%u]\n", 2);
	time_passes("in place", "%%v%u = aten::neg(%%v%u) -> f32[4,4]\n", NODES + 1);
	time_passes("prelude", "%%v%u = aten::f(#0, %u) -> f32[4,4]\n", 2);
	time_passes("writes", "%%v%u = aten::relu_(%%v%u) -> f32[4,4] view-of %%v0 writes %%v%u\n", NODES + 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_plans_do_the_same),
		cmocka_unit_test(pinned_nodes_stay_and_the_rest_does_the_same),
		cmocka_unit_test(the_prelude_is_made_once),
		cmocka_unit_test(any_plan_survives_all_passes),
		cmocka_unit_test(failed_allocations_are_survived),
		cmocka_unit_test(a_hundred_thousand_nodes_take_little),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
