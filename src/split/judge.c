/* Decides which frontiers are unsafe, and why.
 *
 * The suffix writes memory that crosses and that is also held elsewhere (memory that crosses once is copied by the suffix
 * before it writes); both halves use a tensor of the model that the forward changes; the suffix reads memory beyond the
 * elements that cross; something crosses that is no ordinary tensor; or nothing crosses at all. One walk over the values,
 * as good as linear: a frontier that has its reason is not looked at again. */
#include "split/frontier.h"

#include <string.h>

#include "plan/data.h"
#include "split/state.h"

typedef struct judgement {
	clv_frontiers *f;
	node_id *writer;   /* per root: last node that writes the storage; NONE: none does */
	value_id *oldest;  /* per root: first born of the values on it that can cross; NONE: none can */
	value_id *younger; /* per value: next born on the same storage; NONE: it is the last */
	node_id *open;     /* per position: leads to the first one from there on that has no reason yet */
	reach_list reaches;
	state_list states;
} judgement;

/* "%3", "%0 (x)" */
static void print_value(const plan *p, value_id v, strbuf *b)
{
	value_label(p, v, b);
	if (p->values.at[v].kind == VALUE_INPUT && p->values.at[v].name != NONE)
		strbuf_printf(b, " (%s)", plan_s(p, p->values.at[v].name));
}

/* "relu__1 in body at model.py:12" */
static void print_node(const judgement *j, node_id n, strbuf *b)
{
	strbuf_puts(b, node_name(j->f->names, n));
	place_print(j->f->p, n, b);
}

/* "relu__1 in body at model.py:12 writes %3 in place after the cut, <because>" */
static void say_written(const judgement *j, value_id root, strbuf *b)
{
	const plan *p = j->f->p;
	print_node(j, j->writer[root], b);
	strbuf_puts(b, " writes ");
	print_value(p, root, b);
	strbuf_printf(b, " in place after the cut, %s",
	              p->values.at[root].kind == VALUE_INPUT ? "and it is an input that belongs to the caller"
	                                                     : "and several tensors on that memory cross");
}

/* "@ema is used before the cut and after it, and mul_ in norm at model.py:12 changes it: …" */
static void say_state(const judgement *j, uint32_t i, strbuf *b)
{
	const state *s = &j->states.all.at[i];
	print_value(j->f->p, s->v, b);
	if (s->change == NONE) {
		strbuf_puts(b, " is used before the cut and becomes another tensor after it");
	} else {
		strbuf_puts(b, " is used on both sides of the cut, and ");
		print_node(j, s->change, b);
		strbuf_puts(b, " changes it");
	}
	strbuf_puts(b, " for the next call: halves that run apart would not see the same");
}

/* "%3, a sparse or nested tensor made by to_sparse in body at model.py:12, is needed after the cut, and …" */
static void say_odd(const judgement *j, value_id v, strbuf *b)
{
	static const char *const what[] = {"a sparse or nested tensor", "a bool",   "an int",   "a float",
	                                   "a complex number",          "a string", "an object"};
	const plan *p = j->f->p;
	const value *x = &p->values.at[v];
	print_value(p, v, b);
	if (x->type == TYPE_TENSOR && !(x->flags & VALUE_ODD))
		strbuf_printf(b, ", a tensor of dtype %s", dtype_name((dtype)x->dtype));
	else
		strbuf_printf(b, ", %s", what[x->type]);
	if (x->kind == VALUE_RESULT) {
		strbuf_puts(b, " made by ");
		print_node(j, x->def, b);
	}
	strbuf_puts(b, ", is needed after the cut, and only ordinary tensors can cross");
}

/* "as_strided in body at model.py:12 may read the memory of %3 beyond its elements after the cut, and only …" */
static void say_reach(const judgement *j, uint32_t i, strbuf *b)
{
	const reach *r = &j->reaches.at[i];
	print_node(j, r->node, b);
	strbuf_puts(b, " may read the memory of ");
	print_value(j->f->p, r->v, b);
	strbuf_puts(b, " beyond its elements after the cut, and only elements cross");
}

typedef void (*sayer)(const judgement *j, uint32_t about, strbuf *b);

/* The text is owned by the frontiers. */
static clv_status make_reason(const judgement *j, uint32_t about, sayer say, const char **out)
{
	strbuf b = STRBUF_INIT;
	char *text;
	say(j, about, &b);
	TRY(strbuf_take(&b, &text));
	clv_status st = vec_push(&j->f->reasons, text);
	if (st == CLV_OK)
		*out = text;
	else
		mem_free(text);
	return st;
}

/* Halves the way it goes, so that all searches together are as good as linear. */
static node_id next_open(node_id *open, node_id k)
{
	while (open[k] != k) {
		open[k] = open[open[k]];
		k = open[k];
	}
	return k;
}

/* Gives positions first … end-1 that have no reason yet this one. */
static clv_status mark_unsafe(judgement *j, uint32_t about, node_id first, node_id end, sayer say)
{
	const char *why = NULL;
	for (node_id k = next_open(j->open, first); k < end; k = next_open(j->open, k)) {
		if (!why)
			TRY(make_reason(j, about, say, &why));
		j->f->at[k].unsafe = why;
		j->open[k] = k + 1;
	}
	return CLV_OK;
}

static void add_older(void *ctx, value_id v)
{
	judgement *j = ctx;
	const plan *p = j->f->p;
	value_id root = alias_root(p, v);
	if (!can_cross(p, v) || !moves(p, root) || j->f->live.last[v] == NONE || j->writer[root] == NONE)
		return; /* the model's own memory: judge_state */
	j->younger[v] = j->oldest[root];
	j->oldest[root] = v;
}

static void find_written_memory(judgement *j)
{
	const plan *p = j->f->p;
	last_writers(p, j->writer);
	for (node_id k = p->nodes.n; k-- > 0;)
		node_each_result(p, k, add_older, j);
	for (uint32_t i = 0; i < p->inputs.n; i++)
		add_older(j, p->inputs.at[i]);
}

/* Memory of a result may cross once, as the suffix then writes its own copy: only where two values on it cross is it
   shared. Taken by birth, a value crosses together with an older one until the last of the older ones has died. */
static clv_status judge_memory(judgement *j, value_id root)
{
	const clv_frontiers *f = j->f;
	bool may_cross_once = f->p->values.at[root].kind == VALUE_RESULT;
	node_id older_die = 0;
	for (value_id v = j->oldest[root]; v != NONE; v = j->younger[v]) {
		node_id first = value_born(f->p, v), end = earlier(earlier(f->live.last[v], j->writer[root]), f->n);
		if (first >= end)
			continue;
		TRY(mark_unsafe(j, root, first, may_cross_once ? earlier(end, older_die) : end, say_written));
		older_die = end > older_die ? end : older_die;
	}
	return CLV_OK;
}

/* Only tensors can be sent: what a node makes on the host, and tensors without ordinary memory, stay on their side. */
static clv_status judge_value(judgement *j, value_id v)
{
	const clv_frontiers *f = j->f;
	const value *x = &f->p->values.at[v];
	if (!moves(f->p, v) || can_be_sent(x) || f->live.last[v] == NONE)
		return CLV_OK;
	return mark_unsafe(j, v, value_born(f->p, v), earlier(f->live.last[v], f->n), say_odd);
}

/* A number that the prefix reads from data and the suffix needs does not cross. */
static clv_status judge_reads(clv_frontiers *f)
{
	bool *bad = mem_alloc(f->p->nodes.n + 1);
	clv_status st = bad ? data_cuts(f->p, f->live.last, bad) : fail_nomem();
	for (node_id k = 0; st == CLV_OK && k < f->n; k++)
		if (bad[k] && !f->at[k].unsafe)
			f->at[k].unsafe = "a number that is read from data before the cut is used after it";
	mem_free(bad);
	return st;
}

static clv_status judge_state(judgement *j)
{
	const clv_frontiers *f = j->f;
	TRY(find_state(f->p, &j->states));
	for (uint32_t i = 0; i < j->states.all.n; i++) {
		const state *s = &j->states.all.at[i];
		if (s->first < f->n) /* NONE is beyond */
			TRY(mark_unsafe(j, i, s->first, earlier(s->last, f->n), say_state));
	}
	return CLV_OK;
}

/* From where the memory is first held by something that can cross, until it is read. */
static clv_status judge_reaches(judgement *j)
{
	const clv_frontiers *f = j->f;
	TRY(find_reaches(f->p, &j->reaches));
	for (uint32_t i = 0; f->n && i < j->reaches.n; i++) {
		const reach *r = &j->reaches.at[i];
		TRY(mark_unsafe(j, i, value_born(f->p, r->from), earlier(r->node, f->n), say_reach));
	}
	return CLV_OK;
}

static clv_status judge_all(judgement *j)
{
	clv_frontiers *f = j->f;
	for (node_id k = 0; k <= f->n; k++)
		j->open[k] = k;
	find_written_memory(j);
	for (value_id v = 0; f->n && v < f->p->values.n; v++)
		TRY(judge_value(j, v));
	for (value_id v = 0; v < f->p->values.n; v++)
		if (j->writer[v] != NONE)
			TRY(judge_memory(j, v));
	TRY(judge_state(j));
	TRY(judge_reaches(j));
	for (node_id k = 0; k < f->n; k++)
		if (!f->at[k].tensors && !f->at[k].unsafe)
			f->at[k].unsafe = "nothing crosses here";
	return judge_reads(f);
}

clv_status frontiers_judge(clv_frontiers *f)
{
	uint32_t n = f->p->values.n;
	judgement j = {
		.f = f, .writer = mem_ids(n), .oldest = mem_ids(n), .younger = mem_ids(n), .open = mem_ids(f->n + 1)};
	bool memory = j.writer && j.oldest && j.younger && j.open;
	clv_status st = memory ? judge_all(&j) : fail_nomem();
	mem_free(j.writer);
	mem_free(j.oldest);
	mem_free(j.younger);
	mem_free(j.open);
	vec_free(&j.reaches);
	state_list_free(&j.states);
	return st;
}
