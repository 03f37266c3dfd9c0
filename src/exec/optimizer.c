/* Chooses which variant of a program runs: see optimized.h. */
#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/human.h"
#include "exec/tolerance.h"
#include "exec/choice.h"
#include "exec/native_way.h"
#include "exec/optimized.h"
#include "runtime/handover.h"

enum { CAPTURED, SAFE, FAST, ROUNDS = 9, MOST_WORK = 512 };
static const double GAIN = 0.97;    /* of what gives the same numbers: only what takes less is worth other ones */
static const double BUDGET_S = 2.0; /* of measuring, on top of the run that every way is compared by */

/* Settings of passes that may give other numbers. One is dropped where a pass that it needs has nothing to do: it would be
   the same as another. */
static const struct setting {
	const char *name;
	bool gpu; /* only for plans with tensors on a GPU */
	optimize_spec spec;
	const char *needs[3]; /* NULL ends */
} settings[] = {
	{"fast", false, {.level = OPTIMIZE_FAST}, {NULL}},
	{"fast, channels_last", false, {.level = OPTIMIZE_FAST, .channels_last = true}, {"channels_last"}},
	{"fast, channels_last, conv_as_linear",
     true,
     {.level = OPTIMIZE_FAST, .channels_last = true, .conv_as_linear = true},
     {"channels_last", "conv_as_linear"}},
	{"fast, bias_apart", true, {.level = OPTIMIZE_FAST, .bias = BIAS_APART}, {"bias_apart"}},
	{"fast, bias_apart in sums", true, {.level = OPTIMIZE_FAST, .bias = BIAS_IN_SUMS}, {"bias_apart"}},
};

enum { SETTINGS = sizeof settings / sizeof *settings };
static const char NATIVE[] = "native"; /* a way, and the name of the pass that leaves it out */

/* A way to run. */
typedef struct candidate {
	const char *name;
	variant *v;   /* NULL: as captured */
	char *passes; /* that it went through, with their counts; NULL: none */
	bool off;     /* it is not used */
	char *why;    /* it is not; NULL: it would be the same as another */
	double error; /* measured, and what is allowed there; negative: not measured */
	double allowed;
	double ms; /* of the shortest run; negative: not measured */
} candidate;

struct optimizer {
	candidate at[FAST + SETTINGS + 1]; /* as captured, safe, then those that may give other numbers */
	uint32_t n;
	pthread_mutex_t lock;
	_Atomic(variant *) chosen; /* NULL: as captured, or not chosen yet */
	atomic_bool waits, open;   /* nobody asked yet; the next run has to choose */
	const char *why_not;       /* nothing can be measured; static */
	bool before;               /* what runs was chosen before, in another program or process */
	uint32_t least_rounds;     /* of timing, however long they take */
	uint32_t rounds;           /* that there were */
	const char *device; /* the GPU whose time counts, as a graph will repeat what is chosen; NULL: the host's time */
};

/* ---- making ------------------------------------------------------------------------------------------------------- */

/* The same inputs give the same outputs, and nothing else happens: it can be run again to see. */
static bool repeatable(const clv_program *g)
{
	if (g->writes_inputs)
		return false;
	for (uint32_t i = 0; i < g->v.nodes.n; i++) {
		const node *n = &g->p->nodes.at[g->v.nodes.at[i]];
		if ((n->flags & NODE_IMPURE) || node_draws(g->p, g->v.nodes.at[i]))
			return false;
		if (!op_known(plan_s(g->p, n->op)) && n->op_id != OP_cleave_guard_equal)
			return false;
		for (uint32_t k = 0; k < n->nwrites; k++)
			if (g->p->values.at[alias_root(g->p, g->p->ids.at[n->writes + k])].kind != VALUE_RESULT)
				return false;
	}
	return true;
}

static void let_go(candidate *c)
{
	variant_free(c->v);
	c->v = NULL;
	c->off = true;
}

static clv_status drop(candidate *c, const char *why)
{
	let_go(c);
	c->ms = -1;
	c->why = why ? mem_strdup(why, strlen(why)) : NULL;
	return c->why || !why ? CLV_OK : fail_nomem();
}

static bool did(const optimized_plan *p, const char *name)
{
	for (uint32_t i = 0; i < p->counts.n; i++)
		if (!strcmp(p->counts.at[i].pass, name))
			return true;
	return false;
}

/* A pass of this level found something to do. */
static bool did_any(const optimized_plan *p, optimize_level level)
{
	for (const pass *x = passes; x->name; x++)
		if (x->level == level && did(p, x->name))
			return true;
	return false;
}

static clv_status tell_passes(const optimized_plan *p, char **out)
{
	strbuf b = STRBUF_INIT;
	for (uint32_t i = 0; i < p->counts.n; i++)
		strbuf_printf(&b, "%s%s %u", i ? ", " : "", p->counts.at[i].pass, p->counts.at[i].changes);
	return strbuf_take(&b, out);
}

static bool is_new(const optimized_plan *p, const struct setting *x)
{
	bool all = did_any(p, x->spec.level);
	for (uint32_t i = 0; all && x->needs[i]; i++)
		all = did(p, x->needs[i]);
	return all;
}

/* A variant that cannot be made is no reason not to run. */
static clv_status add_candidate(optimizer *o, const clv_program *g, const program_spec *spec, const struct setting *x)
{
	candidate *c = &o->at[o->n++];
	*c = (candidate){.name = x->name, .error = -1, .ms = -1};
	optimize_spec s = x->spec;
	s.off = spec->passes_off;
	s.guards_first = spec->guards_first;
	s.has_op = br_has_operator;
	clv_status st = variant_new(g, spec, &s, &c->v);
	if (st == CLV_E_NOMEM)
		return st;
	if (st != CLV_OK)
		return drop(c, status_message());
	const optimized_plan *p = variant_plan(c->v);
	return is_new(p, x) ? tell_passes(p, &c->passes) : drop(c, NULL);
}

/* What runs between its segments has the passes of "fast". Where compilers were asked for segments, they have them. */
static clv_status add_native(optimizer *o, const clv_program *g, const program_spec *spec)
{
	native_way *made;
	optimize_spec s = {.level = OPTIMIZE_FAST, .off = spec->passes_off, .has_op = br_has_operator};
	if (spec->ncodes || spec->guards_first || pass_is_off(spec->passes_off, NATIVE))
		return CLV_OK;
	candidate *c = &o->at[o->n++];
	*c = (candidate){.name = NATIVE, .error = -1, .ms = -1, .off = true};
	clv_status st = native_way_new(g, spec, &s, &made, &c->why);
	if (st == CLV_OK && made) {
		c->off = false;
		TRY(variant_of_native(made, &c->v));
		st = native_way_tell(made, &c->passes);
	}
	return st == CLV_OK || st == CLV_E_NOMEM ? st : drop(c, status_message());
}

/* Of a tensor of the plan; NULL: there is none. */
static const char *find_gpu(const plan *p)
{
	for (value_id v = 0; v < p->values.n; v++) {
		const char *device = p->values.at[v].type == TYPE_TENSOR ? plan_s(p, p->values.at[v].device) : "";
		if (!strncmp(device, "cuda", 4))
			return device;
	}
	return NULL;
}

static clv_status add_candidates(optimizer *o, const clv_program *g, const program_spec *spec)
{
	o->at[o->n++] = (candidate){.name = "as captured", .error = -1, .ms = -1};
	TRY(add_candidate(o, g, spec, &(struct setting){.name = "safe", .spec = {.level = OPTIMIZE_SAFE}}));
	atomic_init(&o->chosen, o->at[SAFE].v);
	if (spec->optimize < OPTIMIZE_FAST)
		return CLV_OK;
	if (!repeatable(g)) {
		o->why_not = "it writes tensors of others, draws random numbers or calls out (Python, operators of other "
					 "libraries): it cannot be run twice to compare";
		return CLV_OK;
	}
	bool any = false;
	const char *gpu = find_gpu(g->p);
	o->device = spec->guards_first ? gpu : NULL;
	o->least_rounds = gpu ? 2 : 0; /* first runs on a GPU load code; on the CPU they tell enough where they are long */
	for (uint32_t i = 0; i < SETTINGS; i++) {
		if (settings[i].gpu && !gpu)
			continue;
		TRY(add_candidate(o, g, spec, &settings[i]));
		any |= !o->at[o->n - 1].off;
	}
	if (!gpu)
		TRY(add_native(o, g, spec));
	any |= !o->at[o->n - 1].off;
	atomic_init(&o->waits, any && spec->choose_later);
	atomic_init(&o->open, any && !spec->choose_later);
	return CLV_OK;
}

clv_status optimizer_new(const clv_program *g, const program_spec *spec, optimizer **out)
{
	optimizer *o = mem_alloc(sizeof *o);
	TRY_MEM(o);
	if (pthread_mutex_init(&o->lock, NULL) != 0) {
		mem_free(o);
		return fail_nomem();
	}
	clv_status st = add_candidates(o, g, spec);
	if (st != CLV_OK) {
		optimizer_free(o);
		return st;
	}
	*out = o;
	return CLV_OK;
}

void optimizer_free(optimizer *o)
{
	if (!o)
		return;
	for (uint32_t i = 0; i < o->n; i++) {
		variant_free(o->at[i].v);
		mem_free(o->at[i].passes);
		mem_free(o->at[i].why);
	}
	pthread_mutex_destroy(&o->lock);
	mem_free(o);
}

/* ---- choosing ----------------------------------------------------------------------------------------------------- */

/* Runs once into `out`, which is empty; x NULL: as captured. */
static clv_status run_once(variant *x, const clv_program *g, const run_spec *r, br_tensor **out, double *ms)
{
	run_spec mine = *r;
	mine.outputs = out;
	mine.numbers = NULL;
	double start = clock_seconds();
	clv_status st = x ? variant_run(x, g, &mine) : program_run_plain(g, &mine);
	if (st == CLV_OK)
		st = wait_for_all(out, g->outputs.n);
	*ms = (clock_seconds() - start) * 1e3;
	return st;
}

static clv_status off_by(candidate *c, uint32_t output, double error, double allowed)
{
	strbuf b = STRBUF_INIT;
	char *text;
	c->error = error;
	c->allowed = allowed;
	strbuf_printf(&b, "output %u is off by %.3g, %.3g is allowed", output, error, allowed);
	TRY(strbuf_take(&b, &text));
	clv_status st = drop(c, text);
	mem_free(text);
	return st;
}

static clv_status compare_candidate(candidate *c, br_tensor *const *got, br_tensor *const *want, uint32_t n)
{
	for (uint32_t i = 0; i < n && !c->off; i++) {
		double error, scale;
		br_meta m;
		if (!want[i] && !got[i])
			continue;
		if (!want[i] || !got[i])
			return drop(c, "an output is undefined");
		TRY(br_meta_get(want[i], &m));
		TRY(br_difference(got[i], want[i], &error, &scale));
		double allowed = tolerance_for(&m, scale, -1, -1);
		if (error > c->error) {
			c->error = error;
			c->allowed = allowed;
		}
		if (!(error <= allowed))
			TRY(off_by(c, i, error, allowed));
	}
	return CLV_OK;
}

/* Makes what is kept, which no later run makes again, and what guards give. Caller calls drop_guards, also on failure. */
static clv_status run_guards(variant *x, const clv_program *g, const run_spec *r, br_tensor ***guards, uint32_t *n)
{
	run_spec mine = *r;
	uint64_t generation;
	*n = mine.nguards = variant_guards(x);
	*guards = mine.outputs = mem_alloc((mine.nguards + 1) * sizeof *mine.outputs);
	return *guards ? variant_prepare(x, g, &mine, &generation) : fail_nomem();
}

static void drop_guards(br_tensor **guards, uint32_t n)
{
	if (guards)
		release_all(guards, n);
	mem_free(guards);
}

/* Drops it where nothing of it is left. */
static clv_status suit_native(candidate *c, const clv_program *g, const run_spec *r, br_tensor *const *want,
                              br_tensor **out)
{
	native_way *x = variant_native(c->v);
	run_spec mine = *r;
	bool left;
	char *why;
	if (!x)
		return CLV_OK;
	mine.outputs = out;
	mem_free(c->passes);
	c->passes = NULL;
	TRY(native_way_weigh(x, g, &mine, &left));
	if (!left)
		return drop(c, "its segments take longer than the tape");
	TRY(native_way_tell(x, &c->passes));
	TRY(native_way_lay_out(x, want, g->outputs.n, &why));
	clv_status st = why ? drop(c, why) : CLV_OK;
	mem_free(why);
	return st;
}

static clv_status try_out(candidate *c, const clv_program *g, const run_spec *r, br_tensor *const *want,
                          br_tensor **out)
{
	br_tensor **guards;
	uint32_t n;
	clv_status st = run_guards(c->v, g, r, &guards, &n); /* so that no run is timed with what only the first does */
	drop_guards(guards, n);
	if (st == CLV_OK)
		st = suit_native(c, g, r, want, out);
	if (st == CLV_OK && c->off)
		return CLV_OK;
	if (st == CLV_OK)
		st = run_once(c->v, g, r, out, &c->ms);
	if (st == CLV_OK)
		st = compare_candidate(c, out, want, g->outputs.n);
	else if (st != CLV_E_NOMEM && st != CLV_E_CANCELLED)
		st = drop(c, status_message());
	release_all(out, g->outputs.n);
	return st;
}

/* What a graph repeats waits for no host: it is timed behind other work, as much as takes the device longer than the host
   takes to hand it the run. */
typedef struct stopwatch {
	br_clock *clock; /* NULL: the host's time counts */
	uint32_t work;
} stopwatch;

/* The run alone, with what guards gave before it. */
static clv_status time_behind(stopwatch *w, variant *x, const clv_program *g, const run_spec *r, double *ms)
{
	clv_status st = CLV_OK;
	for (bool again = true; st == CLV_OK && again;) {
		release_all(r->outputs, g->outputs.n);
		TRY(br_clock_start_behind(w->clock, w->work));
		st = x ? variant_run(x, g, r) : program_run_plain(g, r);
		if (st == CLV_OK)
			st = br_clock_stop(w->clock, ms);
		again = !br_clock_was_behind(w->clock) && w->work < MOST_WORK;
		w->work *= again ? 2 : 1;
	}
	return st;
}

static clv_status time_on_device(stopwatch *w, variant *x, const clv_program *g, const run_spec *r, br_tensor **out,
                                 double *ms)
{
	run_spec mine = *r;
	br_tensor **guards = NULL;
	mine.numbers = NULL;
	mine.nguards = 0;
	clv_status st = x ? run_guards(x, g, &mine, &guards, &mine.nguards) : CLV_OK;
	mine.guards = guards;
	mine.outputs = out;
	if (st == CLV_OK)
		st = time_behind(w, x, g, &mine, ms);
	drop_guards(guards, mine.nguards);
	return st;
}

/* For one more round; what was not timed yet takes as long as what was captured. */
static bool has_time(const optimizer *o, double start)
{
	double round = 0;
	for (uint32_t i = 0; i < o->n; i++)
		round += o->at[i].off ? 0 : o->at[o->at[i].ms < 0 ? CAPTURED : i].ms;
	return clock_seconds() - start + round * 1e-3 < BUDGET_S;
}

/* Every way in turn, so that what else the machine does falls on all of them. */
static clv_status time_rounds(optimizer *o, stopwatch *w, const clv_program *g, const run_spec *r, br_tensor **out)
{
	double start = clock_seconds(), ms;
	for (; o->rounds < ROUNDS && (o->rounds < o->least_rounds || has_time(o, start)); o->rounds++)
		for (uint32_t i = 0; i < o->n; i++) {
			candidate *c = &o->at[i];
			if (c->off)
				continue;
			TRY(w->clock ? time_on_device(w, c->v, g, r, out, &ms) : run_once(c->v, g, r, out, &ms));
			keep_shortest(ms, &c->ms);
			release_all(out, g->outputs.n);
		}
	return CLV_OK;
}

static clv_status time_all(optimizer *o, const clv_program *g, const run_spec *r, double first_ms, br_tensor **out)
{
	stopwatch w = {.work = 1};
	o->at[CAPTURED].ms = first_ms;
	for (uint32_t i = 0; i < o->n && o->least_rounds; i++)
		o->at[i].ms = -1;
	clv_status st = o->device ? br_clock_new(o->device, &w.clock) : CLV_OK;
	if (st == CLV_OK)
		st = time_rounds(o, &w, g, r, out);
	br_clock_free(w.clock);
	return st;
}

/* Nobody else runs those that may give other numbers, and they may hold much memory. */
static void let_others_go(optimizer *o, uint32_t best)
{
	for (uint32_t i = FAST; i < o->n; i++)
		if (i != best)
			let_go(&o->at[i]);
}

/* The fastest. What may give other numbers must be clearly faster than what gives the same. */
static uint32_t fastest(const optimizer *o)
{
	const candidate *safe = &o->at[SAFE];
	uint32_t best = !safe->off && safe->ms <= o->at[CAPTURED].ms ? SAFE : CAPTURED; /* also where it was not timed */
	double least = o->at[safe->ms < 0 ? CAPTURED : best].ms * GAIN;
	for (uint32_t i = FAST; i < o->n; i++) {
		bool other =
			best >= FAST && !o->at[i].off && variant_native(o->at[i].v); /* engine: clearly faster than those, too */
		if (!o->at[i].off && o->at[i].ms < (other ? least * GAIN : least)) {
			best = i;
			least = o->at[i].ms;
		}
	}
	return best;
}

static clv_status try_all(optimizer *o, const clv_program *g, const run_spec *r, br_tensor **out, bool *any)
{
	for (uint32_t i = FAST; i < o->n; i++) {
		if (!o->at[i].off)
			TRY(try_out(&o->at[i], g, r, r->outputs, out));
		*any |= !o->at[i].off;
	}
	return CLV_OK;
}

/* Whether this was measured before: then its times are not taken again, its numbers are. */
static clv_status choose_as_before(optimizer *o, const char *name, const clv_program *g, const run_spec *r,
                                   br_tensor **out)
{
	uint32_t i = 0;
	while (i < o->n && (strcmp(o->at[i].name, name) != 0 || (o->at[i].off && i != CAPTURED)))
		i++;
	if (i == o->n)
		return CLV_OK;
	if (i >= FAST)
		TRY(try_out(&o->at[i], g, r, r->outputs, out));
	o->at[i].ms = -1; /* one run is no measurement */
	o->before = i < FAST || !o->at[i].off;
	if (!o->before)
		return CLV_OK;
	atomic_store(&o->chosen, o->at[i].v);
	let_others_go(o, i);
	return CLV_OK;
}

static clv_status tell_ways(const optimizer *o, char **out)
{
	strbuf b = STRBUF_INIT;
	for (uint32_t i = 0; i < o->n; i++)
		strbuf_printf(&b, "%s: %s\n", o->at[i].name, o->at[i].passes ? o->at[i].passes : "");
	return strbuf_take(&b, out);
}

/* first_ms: of the run as captured whose results are there. */
static clv_status measure_candidates(optimizer *o, const clv_program *g, const run_spec *r, double first_ms,
                                     br_tensor **out)
{
	char *ways, *name = NULL;
	digest key;
	bool any = false;
	TRY(tell_ways(o, &ways));
	bool keeps = choice_key(g, r, ways, &key);
	mem_free(ways);
	if (keeps)
		TRY(choice_find(key, &name));
	clv_status st = name ? choose_as_before(o, name, g, r, out) : CLV_OK;
	mem_free(name);
	if (st != CLV_OK || o->before)
		return st;
	TRY(try_all(o, g, r, out, &any));
	if (!any)
		return CLV_OK;
	TRY(time_all(o, g, r, first_ms, out));
	uint32_t best = fastest(o);
	atomic_store(&o->chosen, o->at[best].v);
	let_others_go(o, best);
	if (keeps && o->rounds)                       /* first runs are no measurement for others to rely on */
		(void)choice_keep(key, o->at[best].name); /* next time it is measured again */
	return CLV_OK;
}

/* The first run: as captured, whose results the caller gets; then the other candidates. A failure of these leaves things as
   they are. */
static clv_status choose_on_run(optimizer *o, const clv_program *g, const run_spec *r)
{
	double start = clock_seconds();
	TRY(program_run_plain(g, r));
	double first_ms = (clock_seconds() - start) * 1e3;
	run_spec rest = *r;
	rest.over = NULL;
	br_tensor **out = mem_alloc((g->outputs.n + 1) * sizeof *out);
	if (!out)
		return CLV_OK;
	if (measure_candidates(o, g, &rest, first_ms, out) != CLV_OK) {
		release_all(out, g->outputs.n);
		let_others_go(o, SAFE);
	}
	mem_free(out);
	return CLV_OK;
}

clv_status optimizer_run(optimizer *o, const clv_program *g, const run_spec *r)
{
	bool goes_on = r->over && r->over->left;
	if (atomic_load_explicit(&o->open, memory_order_acquire) && !goes_on && pthread_mutex_trylock(&o->lock) == 0) {
		clv_status st = CLV_OK;
		bool mine = atomic_load(&o->open);
		if (mine)
			st = choose_on_run(o, g, r);
		if (mine && st == CLV_OK)
			atomic_store_explicit(&o->open, false, memory_order_release);
		pthread_mutex_unlock(&o->lock);
		if (mine)
			return st;
	}
	variant *x = atomic_load_explicit(&o->chosen, memory_order_acquire);
	return x ? variant_run(x, g, r) : program_run_plain(g, r);
}

clv_status optimizer_prepare(optimizer *o, const clv_program *g, const run_spec *r, uint64_t *generation)
{
	variant *x = atomic_load(&o->chosen);
	*generation = 0;
	return x ? variant_prepare(x, g, r, generation) : CLV_OK;
}

void optimizer_forget(optimizer *o)
{
	variant *x = atomic_load(&o->chosen);
	if (x)
		variant_forget(x);
}

uint32_t optimizer_guards(optimizer *o)
{
	variant *x = atomic_load(&o->chosen);
	return x ? variant_guards(x) : 0;
}

bool optimizer_ask(optimizer *o)
{
	if (atomic_exchange(&o->waits, false))
		atomic_store(&o->open, true);
	return atomic_load(&o->open);
}

/* ---- report ------------------------------------------------------------------------------------------------------- */

static void report_kept(const variant *x, strbuf *b)
{
	int64_t bytes;
	if (!x || variant_keeps(x, &bytes) != CLV_OK || !bytes)
		return;
	strbuf_puts(b, "; keeps ");
	strbuf_bytes(b, bytes);
}

static void report_one(const optimizer *o, const candidate *c, strbuf *b)
{
	bool nothing = c->off && !c->why && !c->passes;
	const char *between = " ";
	strbuf_printf(b, "%s:", c->name);
	if (c->why || nothing)
		strbuf_printf(b, " %s%s", c->why ? "not used: " : "nothing to do", c->why ? c->why : "");
	if (c->passes && !c->why) {
		strbuf_printf(b, " %s", c->passes);
		between = "; ";
	}
	if (c->ms >= 0) {
		strbuf_printf(b, "%s%.3g ms%s", between, c->ms, o->device ? " on the device" : "");
		between = "; ";
	}
	if (c->error > 0 && !c->why)
		strbuf_printf(b, "; off by %.2g of %.2g allowed", c->error, c->allowed);
	if (!c->off && c->v == atomic_load(&o->chosen)) {
		strbuf_printf(b, "%sruns%s", between, o->before ? " (as measured before)" : "");
		report_kept(c->v, b);
	}
	strbuf_putc(b, '\n');
}

clv_status optimizer_report(optimizer *o, strbuf *b)
{
	pthread_mutex_lock(&o->lock);
	for (uint32_t i = 0; i < o->n; i++)
		if (i > CAPTURED || o->at[i].ms >= 0 || !atomic_load(&o->chosen))
			report_one(o, &o->at[i], b);
	if (o->why_not)
		strbuf_printf(b, "fast: not used: %s\n", o->why_not);
	if (atomic_load(&o->open) || atomic_load(&o->waits))
		strbuf_puts(b, "the first run chooses\n");
	pthread_mutex_unlock(&o->lock);
	return b->failed ? fail_nomem() : CLV_OK;
}

const optimized_plan *optimizer_plan(optimizer *o)
{
	variant *x = atomic_load(&o->chosen);
	return x ? variant_plan(x) : NULL;
}

bool program_ask(clv_program *g)
{
	native_turn waits = NATIVE_WAITS;
	if (!g->native)
		return g->optimizer && optimizer_ask(g->optimizer);
	(void)atomic_compare_exchange_strong(&g->turn, &waits, NATIVE_COMPARED);
	return atomic_load(&g->turn) == NATIVE_COMPARED;
}

pool *program_memory(const clv_program *g)
{
	variant *x = g->optimizer ? atomic_load(&g->optimizer->chosen) : NULL;
	return x ? variant_memory(x) : g->memory;
}

clv_status program_report(const clv_program *g, strbuf *b)
{
	pool *memory = program_memory(g);
	if (g->optimizer)
		TRY(optimizer_report(g->optimizer, b));
	else if (g->native)
		strbuf_puts(b, "by the native engine\n");
	else
		strbuf_puts(b, "as captured\n");
	if (memory)
		pool_report(memory, b);
	return b->failed ? fail_nomem() : CLV_OK;
}
