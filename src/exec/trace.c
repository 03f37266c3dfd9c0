/* Tracing: chooses the nodes to compile, bisects segments that fail, and makes the traced artifact. */
#include "exec/trace.h"

#include <stdio.h>
#include <string.h>

#include "base/options.h"
#include "plan/ops.h"

/* The decisions about one plan of the artifact. */
typedef struct decision {
	tracer *t;
	uint32_t number;
	const plan *from; /* as it is in the artifact */
	const char **no;  /* per node: why it is not compiled */
	segments chosen;  /* of `from` */
	bool has_chosen;
	trace_plan ordered;
	attempt *at; /* per segment */
	uint32_t n;
	arena texts;
} decision;

/* ---- which nodes may be compiled ---------------------------------------------------------------------------------- */

static bool names_module(const plan *p, node_id n, const char *wanted)
{
	for (scope_id s = p->nodes.at[n].scope; s != NONE; s = p->scopes.at[s].parent)
		if (strcmp(plan_s(p, p->scopes.at[s].path), wanted) == 0 || strcmp(plan_s(p, p->scopes.at[s].cls), wanted) == 0)
			return true;
	return false;
}

static clv_status exclude(decision *d, node_id n, const char *why)
{
	if (d->no[n] || !why)
		return CLV_OK;
	d->no[n] = arena_str(&d->texts, why);
	return arena_status(&d->texts);
}

static clv_status ask_caller(decision *d, node_id n)
{
	const clv_trace_options *o = d->t->o;
	op_name op = op_split(plan_s(d->from, d->from->nodes.at[n].op));
	for (uint32_t i = 0; i < o->nops; i++)
		if (op_covers(o->ops[i], &op))
			TRY(exclude(d, n, "the caller wants this operator on the tape"));
	for (uint32_t i = 0; i < o->nmodules; i++)
		if (names_module(d->from, n, o->modules[i]))
			TRY(exclude(d, n, "the caller wants this module on the tape"));
	return o->select && !d->no[n] ? exclude(d, n, o->select(o->ctx, d->from, n)) : CLV_OK;
}

typedef struct reading {
	const decision *d;
	bool changes;
} reading;

static void look_at_state(void *ctx, value_id v)
{
	reading *x = ctx;
	const tracer *t = x->d->t;
	uint32_t tensor = artifact_tensor_of(t->from, x->d->number, v);
	x->changes |= tensor != NONE && t->r->changes[tensor];
}

/* Tensors that another plan changes: choosing segments sees only those that their own plan changes. */
static clv_status ask_plans(decision *d, node_id n)
{
	reading x = {d, false};
	if (d->t->from->plans.n > 1)
		node_each_arg(d->from, n, look_at_state, &x);
	return exclude(d, n, x.changes ? "reads a tensor of the model that runs change" : NULL);
}

static clv_status ask_support(decision *d)
{
	support_spec s = {.dynamic = d->t->o->dynamic};
	d->no = arena_alloc(&d->texts, (d->from->nodes.n + 1) * sizeof *d->no);
	TRY_MEM(d->no);
	TRY(d->t->b->support(d->t->b->ctx, d->from, &s, d->no, &d->texts));
	TRY(support_limit(d->from, d->no, &d->texts)); /* back ends that others add say only what is their own */
	for (node_id n = 0; n < d->from->nodes.n; n++) {
		TRY(ask_plans(d, n));
		TRY(ask_caller(d, n));
	}
	return CLV_OK;
}

/* Fails with a list of everything that is not compiled, for a caller who wants all of it compiled. */
static clv_status fail_not_compiled(const decision *d, const char *const *no, clv_status why, const char *what)
{
	strbuf b = STRBUF_INIT;
	uint32_t count = 0;
	strbuf_puts(&b, what);
	for (node_id n = 0; n < d->from->nodes.n; n++) {
		if (!no[n])
			continue;
		if (count++ == 100) {
			strbuf_puts(&b, "\n  and more");
			break;
		}
		strbuf_printf(&b, "\n  %s", plan_s(d->from, d->from->nodes.at[n].op));
		place_print(d->from, n, &b);
		strbuf_printf(&b, ": %s", no[n]);
	}
	return strbuf_fail(why, &b);
}

static clv_status check_all_supported(const decision *d)
{
	for (node_id n = 0; n < d->from->nodes.n && !d->t->o->fallback; n++)
		if (d->no[n])
			return fail_not_compiled(d, d->no, CLV_E_UNSUPPORTED,
			                         "not everything can be compiled, and fallback is off:");
	return CLV_OK;
}

/* ---- segments of a plan ------------------------------------------------------------------------------------------- */

static void decision_reset(decision *d)
{
	for (uint32_t i = 0; i < d->n; i++)
		attempt_free(&d->at[i]);
	mem_free(d->at);
	d->at = NULL;
	d->n = 0;
	if (d->has_chosen)
		segments_free(&d->chosen);
	d->has_chosen = false;
	artifact_free(d->ordered.a);
	liveness_free(&d->ordered.live);
	mem_free(d->ordered.externals);
	d->ordered.a = NULL;
	d->ordered.p = NULL;
	d->ordered.externals = NULL;
}

static void decision_free(decision *d)
{
	decision_reset(d);
	vec_free(&d->ordered.calls);
	arena_free(&d->texts);
}

/* The tensors of the model by value of the ordered plan. */
static clv_status find_externals(decision *d)
{
	trace_plan *o = &d->ordered;
	o->externals = mem_alloc((o->p->values.n + 1) * sizeof *o->externals);
	TRY_MEM(o->externals);
	for (value_id v = 0; v < o->p->values.n; v++) {
		uint32_t here = artifact_tensor_of(o->a, d->number, v);
		if (here == NONE)
			continue;
		uint32_t there = payload_find(d->t->from->tensors, o->a->tensors->tensors.at[here].label);
		if (there != NONE)
			TRY(br_of(d->t->r->state[there], &o->externals[v]));
	}
	return CLV_OK;
}

static clv_status put_in_order(decision *d, node_id *firsts, node_id *ends)
{
	plan **plans = mem_alloc((d->t->from->plans.n + 1) * sizeof *plans);
	TRY_MEM(plans);
	clv_status st = segments_plan(&d->chosen, &plans[d->number], firsts, ends);
	if (st == CLV_OK)
		st = artifact_reordered(d->t->from, plans, &d->ordered.a);
	mem_free(plans);
	TRY(st);
	d->ordered.p = d->ordered.a->plans.at[d->number].p;
	TRY(liveness_new(d->ordered.p, &d->ordered.live));
	return find_externals(d);
}

static clv_status choose_segments(decision *d, const int64_t *sizes)
{
	const clv_trace_options *o = d->t->o;
	segments_spec spec = {.no = d->no,
	                      .minimum = o->fallback ? o->minimum_segment_size : 1,
	                      .most = o->max_subgraph_count,
	                      .syms = sizes};
	TRY(segments_choose(d->from, &spec, &d->chosen));
	d->has_chosen = true;
	uint32_t n = d->chosen.at.n;
	node_id *firsts = mem_alloc(2 * (n + 1) * sizeof *firsts), *ends = firsts ? firsts + n + 1 : NULL;
	d->at = mem_alloc((n + 1) * sizeof *d->at);
	clv_status st = firsts && d->at ? put_in_order(d, firsts, ends) : fail_nomem();
	for (; d->n < n && st == CLV_OK; d->n++)
		st = attempt_init(&d->ordered, firsts[d->n], ends[d->n], &d->at[d->n]);
	mem_free(firsts);
	return st;
}

/* ---- bisecting failures ------------------------------------------------------------------------------------------------------ */

/* Of the ordered plan, as nodes of the plan in the artifact. */
static node_id original(const decision *d, node_id k)
{
	return d->chosen.order.at[k];
}

static uint32_t unit_at(const decision *d, node_id k)
{
	return d->chosen.unit_of[original(d, k)];
}

/* The end of a first half: units stay whole. `first` where there is only one. */
static node_id halve(const decision *d, node_id first, node_id end)
{
	node_id middle = first + (end - first) / 2;
	for (node_id k = middle; k > first; k--)
		if (unit_at(d, k) != unit_at(d, k - 1))
			return k;
	for (node_id k = middle + 1; k < end; k++)
		if (unit_at(d, k) != unit_at(d, k - 1))
			return k;
	return first;
}

static clv_status log_rejected(const tracer *t, const decision *d, node_id n, const char *why)
{
	strbuf b = STRBUF_INIT;
	char *text;
	if (!t->o->log)
		return CLV_OK;
	strbuf_printf(&b, "%s", plan_s(d->from, d->from->nodes.at[n].op));
	place_print(d->from, n, &b);
	strbuf_printf(&b, " goes to the tape: %s", why);
	TRY(strbuf_take(&b, &text));
	t->o->log(t->o->ctx, text);
	mem_free(text);
	return CLV_OK;
}

/* Messages of compilers are long: the first line is kept, and where that only announces a log, the last one too. */
static void shorten(const char *why, char *out, size_t room)
{
	size_t n = strcspn(why, "\n"), end = strlen(why);
	while (end > n && strchr(" \n", why[end - 1]))
		end--;
	size_t last = end;
	while (last > n && why[last - 1] != '\n')
		last--;
	while (last < end && why[last] == ' ')
		last++;
	bool announces = n && why[n - 1] == ':' && end > n;
	int k = snprintf(out, room, "%.*s", (int)(n < room / 2 ? n : room / 2), why);
	if (announces)
		snprintf(out + k, room - (size_t)k, " %.*s", (int)(end - last), why + last);
}

/* Puts node k of the ordered plan, and its whole unit, on the tape. */
static clv_status reject_unit(decision *d, node_id k, const char *why)
{
	char line[400];
	shorten(why, line, sizeof line);
	uint32_t unit = unit_at(d, k);
	TRY(log_rejected(d->t, d, original(d, k), line));
	while (k > 0 && unit_at(d, k - 1) == unit)
		k--;
	for (; k < d->ordered.p->nodes.n && unit_at(d, k) == unit; k++)
		TRY(exclude(d, original(d, k), line));
	return CLV_OK;
}

/* A range that fails. */
typedef struct candidate {
	node_id first, end;
	const char *why; /* in the decision's texts */
} candidate;

typedef VEC(candidate) candidates;

typedef struct bisection {
	decision *d;
	candidates now, next;
	VEC(attempt) halves; /* two for each of `now` that can be halved, in order */
} bisection;

static clv_status candidate_add(bisection *s, const attempt *a)
{
	const char *why = arena_str(&s->d->texts, a->why);
	TRY(arena_status(&s->d->texts));
	return vec_push(&s->next, ((candidate){a->segment.first, a->segment.end, why}));
}

static clv_status half_add(bisection *s, node_id first, node_id end)
{
	attempt a;
	clv_status st = attempt_init(&s->d->ordered, first, end, &a);
	a.half = true;
	if (st == CLV_OK)
		st = vec_push(&s->halves, a);
	if (st != CLV_OK)
		attempt_free(&a);
	return st;
}

/* Adds two halves to test, or rejects the only unit that is left. */
static clv_status test_halves(bisection *s, const candidate *x)
{
	node_id middle = halve(s->d, x->first, x->end);
	if (middle == x->first)
		return reject_unit(s->d, x->first, x->why);
	TRY(half_add(s, x->first, middle));
	return half_add(s, middle, x->end);
}

static clv_status reject_named(decision *d, const attempt *a)
{
	for (uint32_t i = 0; i < a->blamed.n; i++)
		TRY(reject_unit(d, a->blamed.at[i], a->why));
	return CLV_OK;
}

/* Nodes `first` to `end` on their own. */
static clv_status try_range(decision *d, node_id first, node_id end, attempt *a)
{
	clv_status st = attempt_init(&d->ordered, first, end, a);
	a->half = true;
	return st == CLV_OK ? attempts_run(&d->ordered, a, 1) : st;
}

/* A range fails, and neither of its halves does: something in the second half fails together with a node before it. It is
   the first unit with which the range from `first` on begins to fail. */
static clv_status find_partner(bisection *s, node_id first, node_id middle, node_id end, const char *why)
{
	for (node_id low = middle, at; (at = halve(s->d, low, end)) != low;) {
		attempt a;
		clv_status st = try_range(s->d, first, at, &a);
		bool failed = st == CLV_OK && a.why, named = failed && a.blamed.n;
		if (named)
			st = reject_named(s->d, &a);
		attempt_free(&a);
		if (st != CLV_OK || named)
			return st;
		if (failed)
			end = at;
		else
			low = at;
	}
	return reject_unit(s->d, end - 1, why);
}

/* Follows up both halves of a range that failed: those that fail too become candidates. */
static clv_status follow_halves(bisection *s, const attempt *a, const attempt *b, const char *why)
{
	const attempt *both[] = {a, b};
	for (int i = 0; i < 2; i++) {
		if (!both[i]->why)
			continue;
		TRY(both[i]->blamed.n ? reject_named(s->d, both[i]) : candidate_add(s, both[i]));
	}
	if (a->why || b->why)
		return CLV_OK;
	return find_partner(s, a->segment.first, a->segment.end, b->segment.end, why);
}

static void bisection_clear(bisection *s)
{
	for (uint32_t i = 0; i < s->halves.n; i++)
		attempt_free(&s->halves.at[i]);
	s->now.n = s->halves.n = 0;
}

/* The candidates that were found become the current ones. */
static void bisection_next(bisection *s)
{
	bisection_clear(s);
	candidates empty = s->now;
	s->now = s->next;
	s->next = empty;
}

/* If none of HOPELESS pieces compiles, the cause is no single operator, and each further piece would cost a compile. After
   MOST_JOBS jobs a trace has searched long enough. */
enum { HOPELESS = 8, MOST_JOBS = 128 };

static bool is_hopeless(const bisection *s)
{
	for (uint32_t i = 0; i < s->halves.n; i++)
		if (!s->halves.at[i].why || s->halves.at[i].blamed.n)
			return false;
	return s->halves.n >= HOPELESS;
}

static clv_status reject_range(bisection *s, node_id first, node_id end, const char *why)
{
	for (node_id k = first; k < end; k++)
		TRY(reject_unit(s->d, k, why));
	return CLV_OK;
}

static clv_status reject_halves(bisection *s)
{
	for (uint32_t i = 0; i < s->halves.n; i++)
		TRY(reject_range(s, s->halves.at[i].segment.first, s->halves.at[i].segment.end, s->halves.at[i].why));
	return CLV_OK;
}

static clv_status reject_candidates(bisection *s)
{
	for (uint32_t i = 0; i < s->now.n; i++)
		TRY(reject_range(s, s->now.at[i].first, s->now.at[i].end, s->now.at[i].why));
	return CLV_OK;
}

static clv_status bisect_round(bisection *s)
{
	if (s->d->t->jobs > MOST_JOBS)
		return reject_candidates(s);
	for (uint32_t i = 0; i < s->now.n; i++)
		TRY(test_halves(s, &s->now.at[i]));
	TRY(attempts_run(&s->d->ordered, s->halves.at, s->halves.n));
	if (is_hopeless(s))
		return reject_halves(s);
	for (uint32_t i = 0, h = 0; h + 1 < s->halves.n; i++) {
		const attempt *a = &s->halves.at[h];
		if (s->now.at[i].first != a->segment.first)
			continue; /* it could not be halved */
		TRY(follow_halves(s, a, &s->halves.at[h + 1], s->now.at[i].why));
		h += 2;
	}
	return CLV_OK;
}

static clv_status bisect_failures(decision *d)
{
	bisection s = {.d = d};
	clv_status st = CLV_OK;
	for (uint32_t i = 0; i < d->n && st == CLV_OK; i++)
		if (d->at[i].why)
			st = d->at[i].blamed.n ? reject_named(d, &d->at[i]) : candidate_add(&s, &d->at[i]);
	while (s.next.n && st == CLV_OK) {
		bisection_next(&s);
		st = bisect_round(&s);
	}
	bisection_next(&s);
	bisection_clear(&s);
	vec_free(&s.now);
	vec_free(&s.next);
	vec_free(&s.halves);
	return st;
}

/* ---- one plan ------------------------------------------------------------------------------------------------------- */

static bool any_failed(const decision *d)
{
	for (uint32_t i = 0; i < d->n; i++)
		if (d->at[i].why)
			return true;
	return false;
}

/* Segments that cost more than they give run on the tape, unless all of it is to be compiled. */
static clv_status weigh_segments(decision *d)
{
	const clv_trace_options *o = d->t->o;
	if (o->keep_slower || !o->fallback)
		return CLV_OK;
	TRY(attempts_weigh(&d->ordered, d->at, d->n));
	for (uint32_t i = 0; i < d->n; i++)
		for (node_id k = d->at[i].segment.first; d->at[i].dropped && k < d->at[i].segment.end; k++)
			d->chosen.reason[original(d, k)] = SLOWER;
	return CLV_OK;
}

/* Sizes for counting: those of the call that is compiled on. */
static clv_status decide_at(decision *d, const int64_t *sizes)
{
	TRY(ask_support(d));
	TRY(check_all_supported(d));
	for (;;) {
		decision_reset(d);
		TRY(choose_segments(d, sizes));
		if (d->t->o->dryrun || d->n == 0)
			return CLV_OK;
		TRY(attempts_run(&d->ordered, d->at, d->n));
		if (!any_failed(d))
			TRY(attempts_time(&d->ordered, d->at, d->n));
		if (!any_failed(d))
			return weigh_segments(d);
		TRY(bisect_failures(d));
		TRY(check_all_supported(d));
	}
}

static clv_status leave_all(decision *d, const char *why)
{
	d->no = arena_alloc(&d->texts, (d->from->nodes.n + 1) * sizeof *d->no);
	for (node_id n = 0; d->no && n < d->from->nodes.n; n++)
		d->no[n] = why;
	return d->no ? choose_segments(d, NULL) : fail_nomem();
}

static clv_status decide_plan(decision *d)
{
	if (d->ordered.calls.n == 0)
		return leave_all(d, "no example has the sizes that this plan is for");
	int64_t *sizes = mem_alloc((d->from->symbols.n + 1) * sizeof *sizes);
	TRY_MEM(sizes);
	clv_status st = trace_symbols(&d->ordered, sizes);
	for (uint32_t i = 0; i < d->from->symbols.n; i++)
		if (sizes[i] < 0)
			sizes[i] = d->from->symbols.at[i].lo;
	if (st == CLV_OK)
		st = decide_at(d, sizes);
	mem_free(sizes);
	return st;
}

/* ---- the artifact that comes out ------------------------------------------------------------------------------------ */

static clv_status add_fact(artifact *a, artifact_segment *s, const char *key, const char *fmt, double x)
{
	char text[64];
	artifact_note n = {.key = key};
	if (!(x >= 0))
		return CLV_OK;
	snprintf(text, sizeof text, fmt, x);
	TRY(artifact_text(a, text, &n.text));
	return vec_push(&s->facts, n);
}

static clv_status add_facts(artifact *a, const tracer *t, attempt *from)
{
	const trace_made *m = &t->made.at[from->made];
	artifact_segment *s = &from->segment;
	TRY(add_fact(a, s, "error", "%.3g", from->error));
	TRY(add_fact(a, s, "allowed", "%.3g", from->allowed));
	TRY(add_fact(a, s, "compile_s", "%.3f", m->seconds));
	TRY(add_fact(a, s, "cached", "%.0f", m->cached));
	TRY(add_fact(a, s, "tape_ms", "%.4f", from->tape_ms));
	TRY(add_fact(a, s, "code_ms", "%.4f", from->code_ms));
	TRY(add_fact(a, s, "bytes_in", "%.0f", (double)from->bytes_in));
	return add_fact(a, s, "bytes_out", "%.0f", (double)from->bytes_out);
}

static clv_status seal_segment(artifact *a, const plan *p, artifact_segment *s)
{
	compiled made = {0};
	char text[SEAL_TEXT];
	clv_status st = pieces_join(NULL, s, &made);
	if (st == CLV_OK)
		st = seal_make(p, s, &made, text);
	compiled_free(&made);
	return st == CLV_OK && text[0] ? artifact_text(a, text, &s->seal) : st;
}

/* The bytes live with the artifact, and weights that they have in common with it there alone. */
static clv_status own_members(artifact *a, const decision *d, artifact_segment *s)
{
	VEC(uint32_t) tensors = {0};
	view v;
	TRY(view_segment(d->ordered.p, &d->ordered.live, s->first, s->end, &v));
	clv_status st = CLV_OK;
	for (uint32_t i = 0; i < v.externals.n && st == CLV_OK; i++) {
		uint32_t tensor = artifact_tensor_of(a, d->number, v.externals.at[i]);
		if (tensor != NONE)
			st = vec_push(&tensors, tensor);
	}
	view_free(&v);
	if (st == CLV_OK)
		st = pieces_split(a, tensors.at, tensors.n, s);
	vec_free(&tensors);
	return st;
}

static clv_status put_traced_plan(artifact *a, decision *d)
{
	for (uint32_t i = 0; i < d->n && !d->t->o->dryrun; i++) {
		TRY(add_facts(a, d->t, &d->at[i]));
		if (d->at[i].dropped) {
			TRY(add_fact(a, &d->at[i].segment, "in_whole", "%.0f", d->at[i].dropped == SLOW_IN_WHOLE));
			TRY(artifact_add_dropped(a, d->number, &d->at[i].segment));
			continue;
		}
		TRY(seal_segment(a, d->ordered.p, &d->at[i].segment));
		TRY(own_members(a, d, &d->at[i].segment));
		TRY(artifact_add_segment(a, d->number, &d->at[i].segment));
	}
	for (node_id k = 0; k < d->ordered.p->nodes.n; k++) {
		const char *why = d->chosen.reason[original(d, k)];
		char planned[64];
		snprintf(planned, sizeof planned, DRY_RUN "%u", d->chosen.of_node[original(d, k)]);
		if (!why && d->t->o->dryrun)
			why = planned;
		if (why)
			TRY(artifact_add_fallback(a, d->number, k, why));
	}
	return CLV_OK;
}

static clv_status note_number(artifact *a, const char *key, uint32_t n)
{
	char text[16];
	snprintf(text, sizeof text, "%u", n);
	return artifact_note_add(a, key, text);
}

/* Drops the notes of an earlier trace. */
static void forget_notes(artifact *a)
{
	static const char *const keys[] = {"minimum_segment_size", "backend", "eager_ms", "tape_ms", "traced_ms"};
	uint32_t kept = 0;
	for (uint32_t i = 0; i < a->notes.n; i++) {
		bool old = false;
		for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
			old |= strcmp(a->notes.at[i].key, keys[k]) == 0;
		old |= strncmp(a->notes.at[i].key, EXAMPLE_SIZE, strlen(EXAMPLE_SIZE)) == 0;
		if (!old)
			a->notes.at[kept++] = a->notes.at[i];
	}
	a->notes.n = kept;
}

static clv_status note_example(const tracer *t, artifact *a)
{
	uint32_t i;
	clv_tensor *const *inputs = (clv_tensor *const *)t->o->calls[0].inputs;
	TRY(runtime_pick(t->r, inputs, t->o->calls[0].ninputs, &i));
	const plan_part *g = &t->r->plans.at[i].of;
	int64_t *sizes = mem_alloc((g->p->symbols.n + 1) * sizeof *sizes);
	clv_status st = sizes ? call_symbols(&g->v, inputs, NULL, sizes) : fail_nomem();
	for (symbol_id s = 0; s < g->p->symbols.n && st == CLV_OK; s++) {
		char key[128], text[24];
		snprintf(key, sizeof key, EXAMPLE_SIZE "%.64s", plan_s(g->p, g->p->symbols.at[s].name));
		snprintf(text, sizeof text, "%lld", (long long)sizes[s]);
		st = sizes[s] >= 0 ? artifact_note_add(a, key, text) : CLV_OK;
	}
	mem_free(sizes);
	return st;
}

static clv_status put_trace_notes(const tracer *t, artifact *a)
{
	forget_notes(a);
	TRY(note_example(t, a));
	TRY(note_number(a, "minimum_segment_size", t->o->minimum_segment_size));
	return artifact_note_add(a, "backend", t->b->name);
}

static clv_status put_together(tracer *t, decision *all, artifact **out)
{
	uint32_t n = t->from->plans.n;
	plan **plans = mem_alloc((n + 1) * sizeof *plans);
	TRY_MEM(plans);
	clv_status st = CLV_OK;
	for (uint32_t i = 0; i < n && st == CLV_OK; i++)
		st = plan_copy(all[i].ordered.p, &plans[i]);
	artifact *a = NULL;
	if (st == CLV_OK)
		st = artifact_reordered(t->from, plans, &a);
	else
		for (uint32_t i = 0; i < n; i++)
			plan_free(plans[i]);
	mem_free(plans);
	for (uint32_t i = 0; i < n && st == CLV_OK; i++)
		st = put_traced_plan(a, &all[i]);
	if (st == CLV_OK)
		st = put_trace_notes(t, a);
	if (st == CLV_OK)
		*out = a;
	else
		artifact_free(a);
	return st;
}

static clv_status check_enough(const decision *all, uint32_t n)
{
	const clv_trace_options *o = all->t->o;
	for (uint32_t i = 0; i < n; i++) {
		const decision *d = &all[i];
		uint32_t compiled_nodes = 0, nodes = d->from->nodes.n;
		for (node_id k = 0; k < nodes; k++)
			compiled_nodes += d->chosen.reason[k] == NULL || !strcmp(d->chosen.reason[k], SLOWER); /* it could be */
		if (!o->fallback && compiled_nodes < nodes)
			return fail_not_compiled(d, d->chosen.reason, CLV_E_UNSUPPORTED,
			                         "not everything could be compiled, and fallback is off:");
		if (nodes && (double)compiled_nodes < o->support_threshold * (double)nodes)
			return fail_not_compiled(d, d->chosen.reason, CLV_E_INVALID,
			                         "less of the model could be compiled than is asked for:");
	}
	return CLV_OK;
}

/* ---- the tracer ------------------------------------------------------------------------------------------------------ */

static clv_status check_trace_options(const clv_artifact *a, const clv_trace_options *o)
{
	if (!o->backend)
		return fail(CLV_E_INVALID, "clv_trace: no back end is named");
	if (o->ncalls == 0 || !o->calls)
		return fail(CLV_E_INVALID, "clv_trace: there is no example to compare compiled parts on");
	if (!(o->timeout >= 0) || !(o->support_threshold >= 0) || !(o->support_threshold <= 1))
		return fail(CLV_E_INVALID, "clv_trace: a timeout is not negative, a threshold is between 0 and 1");
	if (strcmp(a->part, "all") != 0)
		return fail(CLV_E_UNSUPPORTED, "this file holds the %s of a model; trace the whole", a->part);
	if (o->sandbox == CLV_SANDBOX_ON || o->sandbox > CLV_SANDBOX_OFF)
		return fail(CLV_E_INVALID, "clv_trace: there is no tracing in a sandbox; sandbox is CLV_SANDBOX_AUTO or _OFF");
	if (o->sandbox == CLV_SANDBOX_AUTO && artifact_unvouched(a))
		return fail_unvouched(a, fail(CLV_E_UNSUPPORTED, "and nothing is traced in a sandbox"));
	if (!a->weights)
		return fail(CLV_E_UNSUPPORTED, "this file has no weights, which compiled parts hold");
	return CLV_OK;
}

static clv_status tracer_open(tracer *t)
{
	clv_runtime_options ro = CLV_RUNTIME_OPTIONS_INIT;
	ro.unproven = ro.tape_only = true;
	ro.optimize = t->o->optimize;
	ro.engine = engine_tape.name;
	ro.sandbox = CLV_SANDBOX_OFF; /* check_trace_options has asked */
	TRY(backend_find(t->o->backend, &t->b));
	TRY(t->b->check_args(t->b->ctx, t->o->args, t->o->nargs));
	TRY(clv_runtime_create(t->from, &ro, &t->r));
	if (t->o->dryrun)
		return CLV_OK;
	strbuf_printf(&t->context, "cleave %s\n", clv_version());
	size_t before = t->context.n;
	TRY(t->b->version(t->b->ctx, &t->context));
	bool known = t->context.n > before; /* else nobody could tell what an older one made */
	strbuf_putc(&t->context, '\n');
	TRY(machine_features(&t->context));
	strbuf_putc(&t->context, '\0');
	TRY_MEM(!t->context.failed);
	if (known && cache_open(t->o->cache, 0, &t->kept) != CLV_OK && t->o->log) /* it costs time later, and nothing now */
		t->o->log(t->o->ctx, status_message());
	t->temporary = t->o->workdir == NULL;
	if (t->temporary)
		return folder_make_temporary(&t->folder);
	TRY(path_absolute(t->o->workdir, &t->folder));
	return folder_make(t->folder);
}

static void tracer_close(tracer *t)
{
	clv_runtime_free(t->r);
	for (uint32_t i = 0; i < t->made.n; i++) {
		compiled_free(&t->made.at[i].made);
		mem_free(t->made.at[i].why);
		vec_free(&t->made.at[i].blamed);
	}
	vec_free(&t->made);
	cache_close(&t->kept);
	strbuf_free(&t->context);
	if (t->folder && t->temporary)
		folder_remove(t->folder);
	mem_free(t->folder);
}

typedef struct call_plan {
	const runtime *r;
	clv_tensor *const *inputs;
	uint32_t plan;
} call_plan;

/* Of several plans for the same sizes, the one that serves an example shows when they run. */
static clv_status try_call(void *ctx, uint32_t i)
{
	call_plan *c = ctx;
	const runtime_plan *e = &c->r->plans.at[i];
	c->plan = i;
	if (c->r->plans.n == 1)
		return inputs_check(&e->of.v, c->inputs, NULL);
	clv_tensor **outputs = mem_alloc((e->noutputs + 1) * sizeof *outputs);
	clv_status st = outputs ? runtime_run_plan(c->r, i, &(run_call){.inputs = c->inputs}, outputs) : fail_nomem();
	for (uint32_t k = 0; st == CLV_OK && k < e->noutputs; k++)
		clv_tensor_free(outputs[k]);
	mem_free(outputs);
	return st;
}

static clv_status assign_calls(tracer *t, decision *all)
{
	for (uint32_t c = 0; c < t->o->ncalls; c++) {
		const clv_trace_call *call = &t->o->calls[c];
		call_plan found = {.r = t->r, .inputs = (clv_tensor *const *)call->inputs};
		clv_status st = runtime_serve(t->r, found.inputs, call->ninputs, try_call, &found);
		if (st != CLV_OK)
			return fail_more(st, "example %u", c);
		TRY(vec_push(&all[found.plan].ordered.calls, c));
	}
	return CLV_OK;
}

static clv_status trace_all(tracer *t, decision *all, artifact **out)
{
	uint32_t n = t->from->plans.n;
	for (uint32_t i = 0; i < n; i++) {
		all[i] = (decision){.t = t, .number = i, .from = t->from->plans.at[i].p};
		all[i].ordered.t = t;
		all[i].ordered.number = i;
	}
	TRY(assign_calls(t, all));
	for (uint32_t i = 0; i < n; i++) {
		clv_status st = decide_plan(&all[i]);
		if (st != CLV_OK)
			return n > 1 ? fail_more(st, "plan %u", i) : st;
	}
	TRY(check_enough(all, n));
	return put_together(t, all, out);
}

clv_status clv_trace(const clv_artifact *a, const clv_trace_options *options, clv_artifact **out)
{
	clv_trace_options o = CLV_TRACE_OPTIONS_INIT;
	if (!a || !out)
		return fail(CLV_E_INVALID, "clv_trace needs an artifact and a place for the new one");
	TRY(options_read(&o, sizeof o, options, "clv_trace_options"));
	TRY(check_trace_options(a, &o));
	tracer t = {.from = a, .o = &o};
	decision *all = mem_alloc((a->plans.n + 1) * sizeof *all);
	clv_status st = all ? tracer_open(&t) : fail_nomem();
	if (st == CLV_OK)
		st = trace_all(&t, all, out);
	for (uint32_t i = 0; all && i < a->plans.n; i++)
		decision_free(&all[i]);
	mem_free(all);
	tracer_close(&t);
	return st;
}
