/* Artifacts as data: made, filled, looked up, released. */
#include "file/artifact_packed.h"
#include "file/artifact_segments.h"
#include "memory/room.h"

#include <string.h>

clv_status artifact_new(const char *part, artifact **out)
{
	artifact *a = mem_alloc(sizeof *a);
	TRY_MEM(a);
	a->users = 1;
	pthread_mutex_init(&a->made_lock, NULL);
	a->split_id = a->boundary = a->batch = "";
	a->weights = true;
	clv_status st = artifact_text(a, part, &a->part);
	if (st == CLV_OK)
		st = payload_new(PAYLOAD_WEIGHTS, &a->tensors);
	if (st == CLV_OK)
		*out = a;
	else
		artifact_free(a);
	return st;
}

static void plan_entry_free(artifact_plan *e)
{
	plan_free(e->p);
	vec_free(&e->consts);
	vec_free(&e->points);
	vec_free(&e->fixed);
	vec_free(&e->same);
	vec_free(&e->grads);
	for (uint32_t i = 0; i < e->segments.n; i++)
		segment_free(&e->segments.at[i]);
	vec_free(&e->segments);
	for (uint32_t i = 0; i < e->dropped.n; i++)
		segment_free(&e->dropped.at[i]);
	vec_free(&e->dropped);
	vec_free(&e->fallbacks);
}

artifact *artifact_ref(const artifact *a)
{
	atomic_fetch_add(&((artifact *)a)->users, 1);
	return (artifact *)a;
}

void artifact_free(artifact *a)
{
	if (!a || atomic_fetch_sub(&a->users, 1) > 1)
		return;
	for (uint32_t i = 0; i < a->plans.n; i++)
		plan_entry_free(&a->plans.at[i]);
	vec_free(&a->plans);
	packed_list_free(a);
	room_give(a->room);
	vec_free(&a->notes);
	vec_free(&a->allowed);
	vec_free(&a->digests);
	vec_free(&a->weight_digests);
	payload_free(a->tensors);
	st_free(a->file);
	arena_free(&a->arena);
	file_unmap(&a->map);
	artifact_free(a->base);
	pthread_mutex_destroy(&a->made_lock);
	if (a->release)
		a->release(a->lent);
	mem_free(a);
}

clv_status artifact_text(artifact *a, const char *s, const char **out)
{
	return arena_keep(&a->arena, s, out);
}

clv_status artifact_note_add(artifact *a, const char *key, const char *text)
{
	artifact_note n;
	TRY(artifact_text(a, key, &n.key));
	TRY(artifact_text(a, text, &n.text));
	return vec_push(&a->notes, n);
}

/* ---- which weights ---------------------------------------------------------------------------------------------- */

/* A sum does not depend on the order, and one of its parts can be replaced by a process that has only that part. */
int64_t weight_digest(const char *name, const void *data, size_t n)
{
	return (int64_t)(digest_of_three(name, strlen(name) + 1, data, n, "", 0).low >> 1);
}

int64_t weight_sum(int64_t version, int64_t one)
{
	return (int64_t)(((uint64_t)version + (uint64_t)one) & INT64_MAX);
}

int64_t weight_difference(int64_t version, int64_t one)
{
	return (int64_t)(((uint64_t)version - (uint64_t)one) & INT64_MAX);
}

clv_status artifact_add_weight(artifact *a, const char *name, int64_t one)
{
	payload_number n = {.value = one};
	TRY(artifact_text(a, name, &n.name));
	TRY(vec_push(&a->weight_digests, n));
	a->weight_version = weight_sum(a->weight_version, one);
	return CLV_OK;
}

/* ---- plans ------------------------------------------------------------------------------------------------------ */

clv_status artifact_add_plan(artifact *a, plan *p, const char *signature)
{
	artifact_plan e = {.p = p, .end = p->nodes.n, .cut = NONE};
	clv_status st = artifact_text(a, signature, &e.signature);
	if (st == CLV_OK)
		st = vec_push(&a->plans, e);
	if (st != CLV_OK)
		plan_free(p);
	return st;
}

clv_status artifact_ready(artifact *a)
{
	TRY(artifact_check(a));
	if (a->file || a->ready)
		return CLV_OK;
	TRY(payload_entries(a->tensors));
	a->ready = true;
	return CLV_OK;
}

uint32_t artifact_point_size(const plan *p)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < p->symbols.n; i++)
		n += !p->symbols.at[i].data;
	return n;
}

static int by_value(const void *key, const void *element)
{
	value_id v = *(const value_id *)key, w = ((const artifact_const *)element)->value;
	return (v > w) - (v < w);
}

static uint32_t const_tensor(const artifact_plan *e, value_id v)
{
	const artifact_const *c = e->consts.n ? bsearch(&v, e->consts.at, e->consts.n, sizeof *c, by_value) : NULL;
	return c ? c->tensor : NONE;
}

uint32_t artifact_tensor_of(const artifact *a, uint32_t i, value_id v)
{
	const artifact_plan *e = &a->plans.at[i];
	const value *x = &e->p->values.at[v];
	if (x->kind == VALUE_CONST)
		return const_tensor(e, v);
	if (x->kind == VALUE_PARAM || x->kind == VALUE_BUFFER || x->kind == VALUE_ATTR)
		return payload_find(a->tensors, plan_s(e->p, x->name));
	return NONE;
}
