/* A part of an artifact as one of its own: some nodes of each plan, and only the tensors they read. */
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
	if (!buffer)
		return fail_nomem();
	clv_status st = vec_push(&to->buffers, buffer);
	if (st != CLV_OK) {
		mem_free(buffer);
		return st;
	}
	*out = buffer;
	return payload_fill(from, memory, buffer);
}

static clv_status borrow(const payload *from, uint32_t i, payload *to, uint32_t *out)
{
	payload_tensor t = from->tensors.at[i];
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
			TRY(borrow(from, i, t->to->tensors, &t->moved[i]));
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
	e->nstores = from->nstores;
	for (uint32_t k = 0; k < from->fixed.n; k++) {
		payload_number n = from->fixed.at[k];
		TRY(artifact_text(t->to, n.name, &n.name));
		TRY(vec_push(&e->fixed, n));
	}
	for (uint32_t k = 0; k < from->points.n; k++)
		TRY(vec_push(&e->points, from->points.at[k]));
	for (uint32_t k = 0; k < from->consts.n; k++) {
		artifact_const c = from->consts.at[k];
		c.tensor = t->moved[c.tensor];
		if (c.tensor != NONE)
			TRY(vec_push(&e->consts, c));
	}
	return CLV_OK;
}

static clv_status take_all(taker *t, const artifact_range *ranges)
{
	for (uint32_t i = 0; i < t->from->plans.n; i++)
		TRY(mark(t, i, &ranges[i]));
	TRY(take_tensors(t));
	for (uint32_t i = 0; i < t->from->plans.n; i++)
		TRY(take_plan(t, i, &ranges[i]));
	TRY(artifact_text(t->to, t->from->batch, &t->to->batch));
	TRY(artifact_text(t->to, t->from->boundary, &t->to->boundary));
	TRY(artifact_text(t->to, t->from->split_id, &t->to->split_id));
	for (uint32_t i = 0; i < t->from->notes.n; i++)
		TRY(artifact_note_add(t->to, t->from->notes.at[i].key, t->from->notes.at[i].text));
	return CLV_OK;
}

clv_status artifact_take(const artifact *from, const char *part, const artifact_range *ranges, artifact **out)
{
	uint32_t n = from->tensors->tensors.n;
	taker t = {.from = from, .wanted = mem_alloc(n * sizeof(bool) + 1), .moved = mem_ids(n + 1)};
	clv_status st = t.wanted && t.moved ? artifact_new(part, &t.to) : fail_nomem();
	if (st == CLV_OK) {
		t.to->weights = from->weights;
		t.to->weight_version = from->weight_version;
		st = take_all(&t, ranges);
	}
	mem_free(t.wanted);
	mem_free(t.moved);
	if (st == CLV_OK)
		*out = t.to;
	else
		artifact_free(t.to);
	return st;
}
