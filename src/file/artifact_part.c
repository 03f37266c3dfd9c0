/* Makes artifacts from others: parts, nodes of one plan, plans in another order. */
#include <string.h>

#include "file/artifact.h"
#include "plan/view.h"

typedef struct taker {
	const artifact *from;
	artifact *to;
	bool *wanted;    /* per tensor of `from` */
	uint32_t *moved; /* per tensor of `from`: its number in `to`; NONE: not there */
} taker;

static clv_status mark(taker *t, uint32_t i, const artifact_range *r)
{
	view v;
	TRY(view_range(t->from->plans.at[i].p, r->first, r->end, &v));
	for (uint32_t k = 0; k < v.externals.n; k++) {
		uint32_t tensor = artifact_tensor_of(t->from, i, v.externals.at[k]);
		if (tensor != NONE)
			t->wanted[tensor] = true;
	}
	view_free(&v);
	return CLV_OK;
}

/* The memory as it was, for a tensor whose elements stand otherwise in the file. */
static clv_status unfold(const payload *from, uint32_t memory, payload *to, const void **out)
{
	void *buffer = mem_alloc(from->memories.at[memory].nbytes + 1);
	TRY(payload_own(to, buffer));
	*out = buffer;
	return payload_fill(from, memory, buffer);
}

/* Tensor i, under this label. */
static clv_status borrow(const artifact *a, uint32_t i, const char *label, payload *to, uint32_t *out)
{
	const payload *from = a->tensors;
	payload_tensor t = from->tensors.at[i];
	t.label = label;
	if (!a->file) /* still knows the memory it was made of */
		return payload_add_tensor(to, &t, out);
	const payload_memory *m = &from->memories.at[t.memory];
	const void *start = m->data;
	if (!payload_as_is(from, t.memory))
		TRY(unfold(from, t.memory, to, &start));
	t.data = m->nbytes ? (const uint8_t *)start + t.offset : NULL;
	t.storage = m->dense ? NULL : start;
	t.has_lead = true;
	t.lead = m->lead;
	t.wish = ENC_PLAIN;
	return payload_add_tensor(to, &t, out);
}

static clv_status take_tensors(taker *t)
{
	const payload *from = t->from->tensors;
	for (uint32_t i = 0; i < from->tensors.n; i++)
		if (t->wanted[i])
			TRY(borrow(t->from, i, from->tensors.at[i].label, t->to->tensors, &t->moved[i]));
	return CLV_OK;
}

/* What goes with a plan, to the plan that was added last; constants keep their values. */
static clv_status take_facts(taker *t, const artifact_plan *from)
{
	artifact_plan *e = &t->to->plans.at[t->to->plans.n - 1];
	e->nstores = from->nstores;
	for (uint32_t k = 0; k < from->fixed.n; k++) {
		payload_number n = from->fixed.at[k];
		TRY(artifact_text(t->to, n.name, &n.name));
		TRY(vec_push(&e->fixed, n));
	}
	for (uint32_t k = 0; k < from->points.n; k++)
		TRY(vec_push(&e->points, from->points.at[k]));
	for (uint32_t k = 0; k < from->same.n; k++)
		TRY(vec_push(&e->same, from->same.at[k]));
	for (uint32_t k = 0; k < from->grads.n; k++)
		TRY(vec_push(&e->grads, from->grads.at[k]));
	for (uint32_t k = 0; k < from->consts.n; k++) {
		artifact_const c = from->consts.at[k];
		c.tensor = t->moved[c.tensor];
		if (c.tensor != NONE)
			TRY(vec_push(&e->consts, c));
	}
	return CLV_OK;
}

static clv_status take_plan(taker *t, uint32_t i, const artifact_range *r)
{
	const artifact_plan *from = &t->from->plans.at[i];
	plan *copy;
	TRY(plan_copy(from->p, &copy));
	TRY(artifact_add_plan(t->to, copy, from->signature));
	artifact_plan *e = &t->to->plans.at[i];
	e->first = r->first;
	e->end = r->end;
	e->cut = r->cut;
	return take_facts(t, from);
}

/* What the file says about the whole model. */
static clv_status take_notes(taker *t)
{
	const artifact *from = t->from;
	TRY(artifact_text(t->to, from->batch, &t->to->batch));
	for (uint32_t i = 0; i < from->weight_digests.n; i++)
		TRY(artifact_add_weight(t->to, from->weight_digests.at[i].name, from->weight_digests.at[i].value));
	t->to->any_size = from->any_size;
	t->to->weight_version = from->weight_version; /* a file of before digests has the version alone */
	for (uint32_t i = 0; i < t->from->notes.n; i++)
		TRY(artifact_note_add(t->to, t->from->notes.at[i].key, t->from->notes.at[i].text));
	return CLV_OK;
}

static clv_status take_all(taker *t, const artifact_range *ranges)
{
	for (uint32_t i = 0; i < t->from->plans.n; i++)
		TRY(mark(t, i, &ranges[i]));
	TRY(take_tensors(t));
	for (uint32_t i = 0; i < t->from->plans.n; i++)
		TRY(take_plan(t, i, &ranges[i]));
	TRY(artifact_text(t->to, t->from->boundary, &t->to->boundary));
	TRY(artifact_text(t->to, t->from->split_id, &t->to->split_id));
	return take_notes(t);
}

static clv_status taker_init(taker *t, const char *part)
{
	const artifact *from = t->from;
	uint32_t n = from->tensors->tensors.n;
	if (from->training)
		return fail(CLV_E_UNSUPPORTED, "the file is for training: nothing else can be made of it");
	t->wanted = mem_alloc(n * sizeof(bool) + 1);
	t->moved = mem_ids((size_t)n + 1);
	TRY_MEM(t->wanted && t->moved);
	TRY(artifact_new(part, &t->to));
	t->to->weights = from->weights;
	t->to->vouching = from->vouching;
	t->to->base = artifact_ref(from);
	return CLV_OK;
}

/* What was made, or nothing. */
static clv_status taker_end(taker *t, clv_status st, artifact **out)
{
	mem_free(t->wanted);
	mem_free(t->moved);
	if (st == CLV_OK)
		*out = t->to;
	else
		artifact_free(t->to);
	return st;
}

clv_status artifact_take(const artifact *from, const char *part, const artifact_range *ranges, artifact **out)
{
	taker t = {.from = from};
	clv_status st = taker_init(&t, part);
	if (st == CLV_OK)
		st = take_all(&t, ranges);
	return taker_end(&t, st, out);
}

/* ---- nodes of one plan -------------------------------------------------------------------------------------------- */

/* A label that no tensor has: names of constants count those of a whole model, which is not known here. */
static clv_status new_label(const payload *p, arena *a, uint32_t *number, const char **out)
{
	do {
		strbuf b = STRBUF_INIT;
		strbuf_printf(&b, "cleave.const.%u", (*number)++);
		TRY(arena_take(a, &b, out));
	} while (payload_find(p, *out) != NONE);
	return CLV_OK;
}

/* Parameters before constants: those have their names already. */
static clv_status take_externals(taker *t, uint32_t plan_number, const value_id *origin, bool constants)
{
	artifact_plan *e = &t->to->plans.at[0];
	uint32_t number = 0;
	for (value_id v = 0; v < e->p->values.n; v++) {
		uint8_t kind = e->p->values.at[v].kind;
		if (kind == VALUE_INPUT || kind == VALUE_RESULT || (kind == VALUE_CONST) != constants)
			continue;
		uint32_t tensor = artifact_tensor_of(t->from, plan_number, origin[v]);
		if (tensor == NONE)
			continue; /* a file without weights */
		const char *label = t->from->tensors->tensors.at[tensor].label;
		if (t->moved[tensor] == NONE && constants)
			TRY(new_label(t->to->tensors, &t->to->arena, &number, &label));
		if (t->moved[tensor] == NONE)
			TRY(borrow(t->from, tensor, label, t->to->tensors, &t->moved[tensor]));
		if (constants)
			TRY(vec_push(&e->consts, ((artifact_const){v, t->moved[tensor]})));
	}
	return CLV_OK;
}

static clv_status take_batch(taker *t)
{
	const plan *p = t->to->plans.at[0].p;
	for (symbol_id s = 0; s < p->symbols.n; s++)
		if (strcmp(plan_s(p, p->symbols.at[s].name), t->from->batch) == 0)
			return artifact_text(t->to, t->from->batch, &t->to->batch);
	return CLV_OK;
}

static clv_status take_nodes(taker *t, uint32_t plan_number, node_id first, node_id end)
{
	plan *part;
	value_id *origin;
	TRY(plan_extract(t->from->plans.at[plan_number].p, first, end, &part, &origin));
	clv_status st = artifact_add_plan(t->to, part, "");
	if (st == CLV_OK)
		st = take_externals(t, plan_number, origin, false);
	if (st == CLV_OK)
		st = take_externals(t, plan_number, origin, true);
	mem_free(origin);
	return st == CLV_OK ? take_batch(t) : st;
}

clv_status artifact_take_nodes(const artifact *from, uint32_t plan_number, node_id first, node_id end, artifact **out)
{
	taker t = {.from = from};
	if (plan_number >= from->plans.n)
		return fail(CLV_E_INVALID, "there is no plan %u whose nodes could be taken", plan_number);
	clv_status st = taker_init(&t, "all");
	if (st == CLV_OK)
		st = take_nodes(&t, plan_number, first, end);
	return taker_end(&t, st, out);
}

/* ---- one segment --------------------------------------------------------------------------------------------------- */

/* The sizes it was compiled for, of the symbols that its own plan has. */
static clv_status take_sizes(const plan *from, const artifact_segment *s, const plan *to, artifact_segment *out)
{
	for (symbol_id i = 0; i < to->symbols.n; i++) {
		TRY(vec_push(&out->sizes, s->sizes.at[plan_find_symbol(from, to, i)]));
	}
	return CLV_OK;
}

/* Inputs and outputs are in the same order in both plans, which are in the order of their texts. */
static clv_status cover(const artifact *from, uint32_t plan_number, uint32_t segment, artifact *to)
{
	const artifact_segment *s = &from->plans.at[plan_number].segments.at[segment];
	artifact_segment all = *s;
	all.first = 0;
	all.end = to->plans.at[0].p->nodes.n;
	memset(&all.sizes, 0, sizeof all.sizes);
	clv_status st = take_sizes(from->plans.at[plan_number].p, s, to->plans.at[0].p, &all);
	if (st == CLV_OK)
		st = artifact_add_segment(to, 0, &all);
	vec_free(&all.sizes);
	return st;
}

clv_status artifact_take_segment(const artifact *from, uint32_t plan_number, uint32_t segment, artifact **out)
{
	artifact *made;
	if (plan_number >= from->plans.n || segment >= from->plans.at[plan_number].segments.n)
		return fail(CLV_E_INVALID, "there is no segment %u of plan %u", segment, plan_number);
	const artifact_segment *s = &from->plans.at[plan_number].segments.at[segment];
	TRY(artifact_take_nodes(from, plan_number, s->first, s->end, &made));
	clv_status st = cover(from, plan_number, segment, made);
	if (st == CLV_OK)
		*out = made;
	else
		artifact_free(made);
	return st;
}

/* ---- another order ------------------------------------------------------------------------------------------------ */

/* The plan with the values numbered as in its text; the plan given is gone. */
static clv_status renumber_plan(plan *p, plan **out)
{
	strbuf b = STRBUF_INIT;
	if (plan_in_text_order(p)) {
		*out = p;
		return CLV_OK;
	}
	plan_print(p, &b);
	clv_status st = b.failed ? fail_nomem() : plan_parse(b.at, b.n, out);
	strbuf_free(&b);
	plan_free(p);
	return st;
}

static value_id next_const(const plan *p, value_id v)
{
	while (v < p->values.n && p->values.at[v].kind != VALUE_CONST)
		v++;
	return v;
}

/* Constants are in the same order in both plans, whatever their numbers are. */
static void move_consts(const plan *from, artifact_plan *e)
{
	value_id old = next_const(from, 0), new = next_const(e->p, 0);
	for (uint32_t i = 0; i < e->consts.n; i++) {
		while (old < e->consts.at[i].value && new < e->p->values.n) {
			old = next_const(from, old + 1);
			new = next_const(e->p, new + 1);
		}
		e->consts.at[i].value = new;
	}
}

static clv_status keep_segments(taker *t, uint32_t i)
{
	const artifact_plan *from = &t->from->plans.at[i];
	for (uint32_t k = 0; k < from->segments.n; k++)
		TRY(artifact_add_segment(t->to, i, &from->segments.at[k]));
	for (uint32_t k = 0; k < from->dropped.n; k++)
		TRY(artifact_add_dropped(t->to, i, &from->dropped.at[k]));
	for (uint32_t k = 0; k < from->fallbacks.n; k++)
		TRY(artifact_add_fallback(t->to, i, from->fallbacks.at[k].node, from->fallbacks.at[k].reason));
	return CLV_OK;
}

static clv_status reorder_plan(taker *t, uint32_t i, plan *given /* taken; or NULL */)
{
	const artifact_plan *from = &t->from->plans.at[i];
	plan *p = given, *made;
	if (!given)
		TRY(plan_copy(from->p, &p));
	if (p->values.n != from->p->values.n || p->nodes.n != from->p->nodes.n) {
		plan_free(p);
		return fail(CLV_E_INVALID, "plan %u in another order does not have the values and nodes that it had", i);
	}
	TRY(renumber_plan(p, &made));
	TRY(artifact_add_plan(t->to, made, from->signature));
	TRY(take_facts(t, from));
	move_consts(from->p, &t->to->plans.at[i]);
	return given ? CLV_OK : keep_segments(t, i);
}

static clv_status reorder_all(taker *t, plan *const *plans, uint32_t *taken)
{
	for (uint32_t i = 0; i < t->from->tensors->tensors.n; i++)
		t->wanted[i] = true;
	TRY(take_tensors(t));
	while (*taken < t->from->plans.n) {
		uint32_t i = (*taken)++;
		TRY(reorder_plan(t, i, plans[i]));
	}
	return take_notes(t);
}

clv_status artifact_reordered(const artifact *from, plan *const *plans, artifact **out)
{
	taker t = {.from = from};
	uint32_t taken = 0;
	clv_status st = CLV_OK;
	if (strcmp(from->part, "all") != 0)
		st = fail(CLV_E_INVALID, "this is the %s of a model; only a whole one can be compiled", from->part);
	if (st == CLV_OK)
		st = taker_init(&t, "all");
	if (st == CLV_OK)
		st = reorder_all(&t, plans, &taken);
	for (uint32_t i = taken; i < from->plans.n; i++)
		plan_free(plans[i]);
	return taker_end(&t, st, out);
}

/* ---- all of it ---------------------------------------------------------------------------------------------------- */

clv_status artifact_copy(const artifact *from, artifact **out)
{
	taker t = {.from = from};
	artifact_range *ranges = mem_alloc((from->plans.n + 1) * sizeof *ranges);
	clv_status st = ranges ? taker_init(&t, from->part) : fail_nomem();
	for (uint32_t i = 0; ranges && i < from->plans.n; i++) {
		const artifact_plan *e = &from->plans.at[i];
		ranges[i] = (artifact_range){e->first, e->end, e->cut};
	}
	if (st == CLV_OK)
		st = take_all(&t, ranges);
	for (uint32_t i = 0; i < from->plans.n && st == CLV_OK; i++)
		st = keep_segments(&t, i);
	mem_free(ranges);
	return taker_end(&t, st, out);
}
